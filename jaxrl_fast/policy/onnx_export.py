"""A function as an ONNX graph, converted from its jaxpr primitive by primitive.

It supports the primitives that policies use and raises for others. Values that depend on no input
become constants; values on which no output depends are omitted.

This module replaces jax2onnx 0.13, the last version that can be installed with our other packages:
it supports neither a GRU nor many jaxprs of JAX 0.11, and depends on 25 packages.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_fast import jaxprs
from jaxrl_fast.jaxprs import einsum_formula

OPSET = 18
IR_VERSION = 8
"""Version of 2022, which any later runtime can read."""

Value = str | np.ndarray
"""A tensor of the graph by its name, or a constant."""


class OnnxGraph(NamedTuple):
    """An ONNX graph that is being written.

    Attributes:
        nodes: Nodes so far, in order.
        constants: Constants by name.
        batched: Name of an input whose first axis is the batch.
    """

    nodes: list[Any]
    constants: dict[str, np.ndarray]
    batched: str


def to_onnx(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    inputs: Sequence[str],
    outputs: Sequence[str],
    metadata: dict[str, str],
) -> bytes:
    """Convert a function to a serialized ONNX model.

    Args:
        function: Function.
        arguments: Pytrees of ``ShapeDtypeStruct`` whose first axis is one symbolic batch size.
        inputs: Names of the arguments' leaves.
        outputs: Names of the results' leaves.
        metadata: Texts to store with the model.

    Returns:
        The model.

    Raises:
        ValueError: The function uses an unsupported primitive, or an unsupported form of one.
        ImportError: The package onnx is missing.
    """
    import onnx
    from onnx import helper

    closed = jax.make_jaxpr(function)(*arguments)
    graph = OnnxGraph([], {}, inputs[0])
    results = _convert(graph, jaxprs.program_of(closed), inputs)
    for name, value in zip(outputs, results, strict=True):
        graph.nodes.append(helper.make_node("Identity", [_name(graph, value)], [name]))
    onnx_graph = helper.make_graph(
        graph.nodes,
        metadata["env"],
        [_described(name, shape) for name, shape in zip(inputs, closed.in_avals, strict=True)],
        [_described(name, shape) for name, shape in zip(outputs, closed.out_avals, strict=True)],
        [onnx.numpy_helper.from_array(array, name) for name, array in graph.constants.items()],
    )
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(
        onnx_graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="jaxrl_fast"
    )
    helper.set_model_props(model, metadata)
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()


def _convert(
    graph: OnnxGraph, program: jaxprs.TracedProgram, values: Sequence[Value]
) -> list[Value]:
    """Write a program's equations into the graph; return its results."""
    jaxpr, consts = program
    bound: dict[Any, Value] = dict(zip(jaxpr.constvars, map(np.asarray, consts), strict=True))
    bound |= zip(jaxpr.invars, values, strict=True)

    def read(atom: Any) -> Value:
        return jaxprs.literal_array(atom) if jaxprs.is_literal(atom) else bound[atom]

    for eqn in _live(jaxpr):
        bound |= zip(
            eqn.outvars, _equation(graph, eqn, [read(atom) for atom in eqn.invars]), strict=True
        )
    return [read(atom) for atom in jaxpr.outvars]


def _live(jaxpr: Any) -> list[Any]:
    """Return the equations that the results depend on, in order."""
    needed, live = set(_variables(jaxpr.outvars)), []
    for eqn in reversed(jaxpr.eqns):
        if needed & set(eqn.outvars):
            needed |= set(_variables(eqn.invars))
            live.append(eqn)
    return live[::-1]


def _variables(atoms: Sequence[Any]) -> list[Any]:
    return [atom for atom in atoms if not jaxprs.is_literal(atom)]


def _equation(graph: OnnxGraph, eqn: Any, values: list[Value]) -> Sequence[Value]:
    name = eqn.primitive.name
    if (called := jaxprs.called_program(eqn)) is not None:
        return _convert(graph, called, values)
    if (platform := jaxprs.platform_of_cpu(eqn)) is not None:
        return [platform]
    if values and (branch := jaxprs.chosen_branch(eqn, values[0])) is not None:
        return _convert(graph, branch, values[1:])
    constant = [value for value in values if isinstance(value, np.ndarray)]
    if len(constant) == len(values) and not any(_symbolic(var.aval.shape) for var in eqn.outvars):
        results = eqn.primitive.bind(*constant, **eqn.params)
        return [
            np.asarray(result)
            for result in (results if eqn.primitive.multiple_results else [results])
        ]
    if name in SAME:
        return [_emit(graph, SAME[name], *values)]
    if name not in RULES:
        raise _unknown(eqn)
    results = RULES[name](graph, eqn, *values)
    return results if isinstance(results, list) else [results]


def _unknown(eqn: Any) -> ValueError:
    return ValueError(f"the ONNX export does not support '{eqn.primitive.name}' of this policy")


def _emit(graph: OnnxGraph, op: str, *values: Value, **attributes: Any) -> str:
    return _emit_many(graph, op, 1, *values, **attributes)[0]


def _emit_many(
    graph: OnnxGraph, op: str, count: int, *values: Value, **attributes: Any
) -> list[str]:
    from onnx import helper

    names = [f"{op.lower()}_{len(graph.nodes)}" + (f"_{i}" if i else "") for i in range(count)]
    inputs = [_name(graph, value) for value in values]
    graph.nodes.append(helper.make_node(op, inputs, names, **attributes))
    return names


def _name(graph: OnnxGraph, value: Value) -> str:
    """Return the name of a value; a constant gets one."""
    if isinstance(value, str):
        return value
    name = f"constant_{len(graph.constants)}"
    graph.constants[name] = value
    return name


def _described(name: str, aval: Any) -> Any:
    from onnx import helper

    shape = ["batch" if _symbolic((size,)) else size for size in aval.shape]
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(np.dtype(aval.dtype)), shape
    )


def _symbolic(shape: Sequence[Any]) -> bool:
    return any(not isinstance(size, int) for size in shape)


def _integers(numbers: Sequence[int]) -> np.ndarray:
    return np.asarray(numbers, np.int64)


def _cast(graph: OnnxGraph, value: Value, dtype: Any) -> str:
    from onnx import helper

    return _emit(graph, "Cast", value, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def _reshape(graph: OnnxGraph, value: Value, shape: Sequence[Any]) -> str:
    return _emit(
        graph, "Reshape", value, _integers([-1 if _symbolic((size,)) else size for size in shape])
    )


def _broadcast(graph: OnnxGraph, eqn: Any, x: Value) -> str:
    shape, old = eqn.params["shape"], eqn.invars[0].aval.shape
    aligned = [1] * len(shape)
    for axis, size in zip(eqn.params["broadcast_dimensions"], old, strict=True):
        aligned[axis] = size
    x = _reshape(graph, x, aligned)
    if tuple(aligned) == tuple(shape):
        return x
    batch = _emit(graph, "Shape", graph.batched, start=0, end=1)
    sizes: list[Value] = [batch if _symbolic((size,)) else _integers([size]) for size in shape]
    return _emit(graph, "Expand", x, _emit(graph, "Concat", *sizes, axis=0))


def _dot(graph: OnnxGraph, eqn: Any, x: Value, w: Value) -> str:
    """Compute a product in float32, also of bf16 operands: of layers, agents or attention."""
    summed, batches = eqn.params["dimension_numbers"]
    dtype, operands = eqn.outvars[0].aval.dtype, []
    for value, var, over, batch in zip((x, w), eqn.invars, summed, batches, strict=True):
        free = [axis for axis in range(len(var.aval.shape)) if axis not in (*over, *batch)]
        constant = value.astype(dtype) if isinstance(value, np.ndarray) else None
        wide = (
            constant
            if constant is not None
            else value
            if var.aval.dtype == dtype
            else _cast(graph, value, dtype)
        )
        operands.append((wide, list(batch), free, list(over)))
    count = len(batches[0])
    if _is_matmul(*operands):
        return _matmul(graph, *operands)
    if not _is_matmul(*operands[::-1]):
        formula = einsum_formula(
            eqn.params["dimension_numbers"], *(len(var.aval.shape) for var in eqn.invars)
        )
        return _emit(graph, "Einsum", *(value for value, *_ in operands), equation=formula)
    product = _matmul(graph, *operands[::-1])
    last = count + len(operands[1][2])
    return _emit(graph, "Transpose", product, perm=[*range(count), last, *range(count, last)])


def _is_matmul(left: tuple, right: tuple) -> bool:
    """Return whether `_matmul` multiplies two operands: one axis is summed, and the second has one
    free axis.
    """
    (_, batch, free, over), (_, _, free_right, _) = left, right
    return len(over) == len(free_right) == 1 and not (batch and not free)


def _matmul(graph: OnnxGraph, left: tuple, right: tuple) -> str:
    """Multiply ``(value, batch axes, free axes, summed axes)``."""
    (x, batch_x, free_x, of_x), (w, batch_w, free_w, of_w) = left, right
    orders = [*batch_x, *free_x, *of_x], [*batch_w, *of_w, *free_w]
    x, w = (
        value if axes == sorted(axes) else _emit(graph, "Transpose", value, perm=axes)
        for value, axes in zip((x, w), orders, strict=True)
    )
    if batch_x and len(free_x) > 1:  # equal for all but the last of these axes
        w = _emit(
            graph, "Unsqueeze", w, _integers(range(len(batch_x), len(batch_x) + len(free_x) - 1))
        )
    return _emit(graph, "MatMul", x, w)


def _select(graph: OnnxGraph, eqn: Any, which: Value, *cases: Value) -> Value:
    if len(cases) != 2 or eqn.invars[0].aval.dtype != bool:
        raise _unknown(eqn)
    if isinstance(which, np.ndarray) and which.ndim == 0:
        return cases[int(which)]
    return _emit(graph, "Where", which, cases[1], cases[0])


def _gather(graph: OnnxGraph, eqn: Any, x: Value, index: Value) -> str:
    """Compute ``x[i]`` along one axis, for a constant ``i``."""
    numbers, shape = eqn.params["dimension_numbers"], eqn.invars[0].aval.shape
    axes = numbers.collapsed_slice_dims
    whole = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    one_axis = (
        len(axes) == 1 and axes == numbers.start_index_map and eqn.params["slice_sizes"] == whole
    )
    if not one_axis or not isinstance(index, np.ndarray) or index.shape != (1,):
        raise _unknown(eqn)
    return _emit(graph, "Gather", x, _integers(index.item()), axis=axes[0])


def _slice(graph: OnnxGraph, eqn: Any, x: Value) -> str:
    starts, ends, shape = (
        eqn.params["start_indices"],
        eqn.params["limit_indices"],
        eqn.invars[0].aval.shape,
    )
    cut = [axis for axis, size in enumerate(shape) if (starts[axis], ends[axis]) != (0, size)]
    steps = eqn.params["strides"] or (1,) * len(shape)
    if any(steps[axis] != 1 for axis in range(len(shape)) if axis not in cut):
        raise _unknown(eqn)
    parts = [_integers([numbers[axis] for axis in cut]) for numbers in (starts, ends)]
    return _emit(
        graph, "Slice", x, *parts, _integers(cut), _integers([steps[axis] for axis in cut])
    )


def _scan(graph: OnnxGraph, eqn: Any, *values: Value) -> list[Value]:
    """Inline one step of a loop, as action selection runs it. Results stacked over steps have an
    additional axis.
    """
    body = jaxprs.single_step(eqn)
    if body is None:
        raise _unknown(eqn)

    def fit(value: Value, old: tuple, new: tuple) -> Value:
        return value if len(old) == len(new) else _reshape(graph, value, new)

    outer_shapes, taken = jaxprs.shapes_of(eqn.invars), jaxprs.shapes_of(body.jaxpr.invars)
    inputs = [fit(x, old, new) for x, old, new in zip(values, outer_shapes, taken, strict=True)]
    results = _convert(graph, body, inputs)
    made, stacked = jaxprs.shapes_of(body.jaxpr.outvars), jaxprs.shapes_of(eqn.outvars)
    return [fit(y, old, new) for y, old, new in zip(results, made, stacked, strict=True)]


def _stack(graph: OnnxGraph, eqn: Any, *values: Value) -> str:
    """Concatenate along a new axis; JAX 0.11 has a primitive for it."""
    axis = eqn.params["axis"]
    parts = [_emit(graph, "Unsqueeze", value, _integers([axis])) for value in values]
    return _emit(graph, "Concat", *parts, axis=axis)


SAME = {
    "abs": "Abs",
    "add": "Add",
    "and": "And",
    "ceil": "Ceil",
    "cos": "Cos",
    "div": "Div",
    "eq": "Equal",
    "erf": "Erf",
    "exp": "Exp",
    "floor": "Floor",
    "ge": "GreaterOrEqual",
    "gt": "Greater",
    "le": "LessOrEqual",
    "log": "Log",
    "logistic": "Sigmoid",
    "lt": "Less",
    "max": "Max",
    "min": "Min",
    "mul": "Mul",
    "neg": "Neg",
    "not": "Not",
    "or": "Or",
    "pow": "Pow",
    "rem": "Mod",
    "sign": "Sign",
    "sin": "Sin",
    "sqrt": "Sqrt",
    "sub": "Sub",
    "stop_gradient": "Identity",
    "tanh": "Tanh",
}
"""Primitives that ONNX has under another name."""

RULES: dict[str, Callable[..., Any]] = {
    "argmax": lambda g, e, x: _cast(
        g, _emit(g, "ArgMax", x, axis=e.params["axes"][0], keepdims=0), e.params["index_dtype"]
    ),
    "broadcast_in_dim": _broadcast,
    "concatenate": lambda g, e, *xs: _emit(g, "Concat", *xs, axis=e.params["dimension"]),
    "convert_element_type": lambda g, e, x: _cast(g, x, e.params["new_dtype"]),
    "dot_general": _dot,
    "expm1": lambda g, e, x: _emit(
        g, "Sub", _emit(g, "Exp", x), np.ones((), e.invars[0].aval.dtype)
    ),
    "gather": _gather,
    "integer_pow": lambda g, e, x: _emit(
        g, "Pow", x, np.asarray(e.params["y"], e.invars[0].aval.dtype)
    ),
    "reduce_max": lambda g, e, x: _emit(g, "ReduceMax", x, _integers(e.params["axes"]), keepdims=0),
    "reduce_sum": lambda g, e, x: _emit(g, "ReduceSum", x, _integers(e.params["axes"]), keepdims=0),
    "reshape": lambda g, e, x: _reshape(g, x, e.params["new_sizes"]),
    "rsqrt": lambda g, e, x: _emit(g, "Reciprocal", _emit(g, "Sqrt", x)),
    "scan": _scan,
    "select_n": _select,
    "slice": _slice,
    "split": lambda g, e, x: _emit_many(
        g, "Split", len(e.params["sizes"]), x, _integers(e.params["sizes"]), axis=e.params["axis"]
    ),
    "stack": _stack,
    "square": lambda g, e, x: _emit(g, "Mul", x, x),
    "transpose": lambda g, e, x: _emit(g, "Transpose", x, perm=e.params["permutation"]),
}
