"""A split function's program as NumPy source, for worker processes without JAX.

Each operation becomes a line. Broadcasts are left to NumPy: a value may have axes of length 1 where
JAX's has more (`Array.shape`), and is expanded only for operations that need its whole shape. Lines
that read parameters only are computed once a rollout.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_fast.hosts.act_split import Operation, Split, Value, When, run_operations
from jaxrl_fast.jaxprs import einsum_formula


class Unsupported(ValueError):
    """An operation has no line in NumPy."""


class ActSource(NamedTuple):
    """NumPy source of a program.

    Attributes:
        text: Source of ``make(np, constants, *tick)``, which returns
            ``act(*step_and_act) -> results``.
        constants: Arrays that the source reads.
    """

    text: str
    constants: list[np.ndarray]


class Array(NamedTuple):
    """A value in the source.

    Attributes:
        text: Name, or a number.
        shape: Shape in NumPy, which broadcasts to ``full``.
        full: Shape in JAX.
        dtype: Dtype.
        fixed: Whether it is constant during a rollout.
        of: The value that it has in another shape, or None.
    """

    text: str
    shape: tuple[int, ...]
    full: tuple[int, ...]
    dtype: np.dtype
    fixed: bool
    of: "Array | None" = None


class SourceLine(NamedTuple):
    """A line of the source.

    Attributes:
        name: Name of its result.
        text: Text that computes it.
        reads: Names that the text reads.
        fixed: As in `Array`.
    """

    name: str
    text: str
    reads: frozenset[str]
    fixed: bool


class _Writer:
    """Lines of the source so far."""

    def __init__(self) -> None:
        self.lines: list[SourceLine] = []
        self.constants: list[np.ndarray] = []
        self.count = 0

    def line(
        self, text: str, shape: tuple[int, ...], full: tuple[int, ...], dtype: Any, *read: Array
    ) -> Array:
        """Write a line that computes ``text``, and return its result."""
        fixed, self.count = all(x.fixed for x in read), self.count + 1
        name = f"v{self.count}"
        self.lines.append(SourceLine(name, text, frozenset(x.text for x in read), fixed))
        return Array(name, shape=shape, full=full, dtype=np.dtype(dtype), fixed=fixed)

    def constant(self, value: np.ndarray) -> Array:
        if value.ndim == 0 and np.isfinite(value):
            text = repr(value.item())
            return Array(
                f"({text})" if text[0] == "-" else text,
                shape=(),
                full=(),
                dtype=value.dtype,
                fixed=True,
            )
        self.constants.append(value)
        return Array(
            f"constants[{len(self.constants) - 1}]",
            shape=value.shape,
            full=value.shape,
            dtype=value.dtype,
            fixed=True,
        )

    def reshaped(self, x: Array, full: tuple[int, ...]) -> Array:
        """Return a value in another shape; back in its first shape, it is the first value."""
        first = x.of or x
        if first.shape == first.full == full:
            return first
        result = self.line(f"{first.text}.reshape({full})", full, full, first.dtype, first)
        return result._replace(of=first)

    def whole(self, x: Array) -> Array:
        """Return a value expanded to its full shape."""
        if x.text[0] not in "vcs":  # a number
            x = self.line(f"np.asarray({x.text}, '{x.dtype}')", (), x.full, x.dtype, x)
        if x.shape == x.full:
            return x
        return self.line(f"np.broadcast_to({x.text}, {x.full})", x.full, x.full, x.dtype, x)


def to_numpy(program: Split) -> ActSource:
    """Write the program of each step as NumPy source.

    Args:
        program: Split function.

    Returns:
        The source. ``make`` takes ``given`` of `When.TICK` in order; ``act`` takes ``given`` of
        `When.STEP` and then the inputs of `When.ACT`.

    Raises:
        Unsupported: An operation or a dtype has no counterpart in NumPy.
    """
    writer, values = _Writer(), dict[int, Array]()
    tick, step = list[str](), list[str]()
    inputs_ahead = list(zip(program.given, program.when, strict=True))
    for value, when in [*inputs_ahead, *((value, When.ACT) for value in program.inputs[When.ACT])]:
        if np.dtype(value.dtype).name not in NATIVE:
            raise Unsupported(f"dtype {value.dtype}")
        name = f"s{len(tick) + len(step)}"
        values[value.number] = Array(
            name,
            shape=value.shape,
            full=value.shape,
            dtype=np.dtype(value.dtype),
            fixed=when == When.TICK,
        )
        (tick if when == When.TICK else step).append(name)
    for operation in program.act:
        for result in operation.outputs:
            if np.dtype(result.dtype).name not in NATIVE:
                raise Unsupported(f"dtype {result.dtype}")
        inputs = [
            values[x.number] if isinstance(x, Value) else writer.constant(x)
            for x in operation.inputs
        ]
        results = _write(writer, operation, inputs)
        values |= {value.number: one for value, one in zip(operation.outputs, results, strict=True)}
    outputs = [
        writer.whole(values[x.number] if isinstance(x, Value) else writer.constant(x))
        for x in program.outputs
    ]
    needed, lines = {x.text for x in outputs}, list[SourceLine]()
    for line in reversed(writer.lines):
        if line.name in needed:
            needed |= line.reads
            lines.insert(0, line)
    body = [
        f"def make({', '.join(['np', 'constants', *tick])}):",
        *(f"    {line.name} = {line.text}" for line in lines if line.fixed),
        f"    def act({', '.join(step)}):",
        *(f"        {line.name} = {line.text}" for line in lines if not line.fixed),
        f"        return [{', '.join(x.text for x in outputs)}]",
        "    return act",
    ]
    return ActSource("\n".join(body) + "\n", writer.constants)


NATIVE = frozenset(
    (
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
    )
)
"""Dtypes of NumPy; bfloat16 is not one."""


def _write(writer: _Writer, operation: Operation, inputs: list[Array]) -> list[Array]:
    name = operation.name
    if (inputs and all(x.fixed and x.text[0] not in "sv" for x in inputs)) or not inputs:
        folded = _folded(writer, operation)
        if folded is not None:
            return folded
    if name in SAME:
        return [_elementwise(writer, operation, SAME[name], inputs)]
    if name not in RULES:
        raise Unsupported(f"operation {name}")
    results = RULES[name](writer, operation, *inputs)
    return results if isinstance(results, list) else [results]


def _folded(writer: _Writer, operation: Operation) -> list[Array] | None:
    """Compute an operation of constants while the source is written, unless NumPy's broadcasts make
    it free.
    """
    if operation.name == "broadcast_in_dim" or any(isinstance(x, Value) for x in operation.inputs):
        return None
    return [writer.constant(np.asarray(result)) for result in operation.call(*operation.inputs)]


def _elementwise(
    writer: _Writer, operation: Operation, text: str, inputs: Sequence[Array]
) -> Array:
    full, dtype = operation.outputs[0].shape, operation.outputs[0].dtype
    shape = np.broadcast_shapes(*(x.shape for x in inputs))
    names = [x.text for x in inputs]
    if all(name[0] not in "vcs" for name in names):
        names[0] = f"np.asarray({names[0]}, '{inputs[0].dtype}')"
    return writer.line(text.format(*names), shape, full, dtype, *inputs)


def _broadcast(writer: _Writer, operation: Operation, x: Array) -> Array:
    full = operation.outputs[0].shape
    if max(x.shape, default=1) == min(x.shape, default=1) == 1:
        return x._replace(full=full, of=None)
    aligned, missing = [1] * len(full), len(x.full) - len(x.shape)
    for axis, size in zip(
        operation.params["broadcast_dimensions"], (1,) * missing + x.shape, strict=True
    ):
        aligned[axis] = size
    if tuple(aligned) == full and x.shape == x.full:
        return writer.reshaped(x, full)
    if tuple(aligned[len(aligned) - len(x.shape) :]) == x.shape:  # NumPy adds leading axes itself
        return x._replace(full=full, of=None)
    return writer.line(f"{x.text}.reshape({tuple(aligned)})", tuple(aligned), full, x.dtype, x)


def _reshape(writer: _Writer, operation: Operation, x: Array) -> Array:
    full = operation.outputs[0].shape
    if (x.shape == () and x.full != ()) or x.text[0] not in "vcs":
        return x._replace(full=full, of=None)
    return writer.reshaped(writer.whole(x), full)


def _transpose(writer: _Writer, operation: Operation, x: Array) -> Array:
    x, order = writer.whole(x), tuple(operation.params["permutation"])
    full, longer = operation.outputs[0].shape, [axis for axis in order if x.full[axis] != 1]
    if longer == sorted(longer):  # only axes of length 1 move
        return writer.reshaped(x, full)
    return writer.line(f"{x.text}.transpose({order})", full, full, x.dtype, x)


def _dot(writer: _Writer, operation: Operation, x: Array, w: Array) -> Array:
    (over_x, over_w), (batch_x, _) = operation.params["dimension_numbers"]
    x, w = writer.whole(x), writer.whole(w)
    full, dtype = operation.outputs[0].shape, np.dtype(operation.outputs[0].dtype)
    last = len(x.full) - 1
    if (
        x.dtype == w.dtype == dtype
        and not batch_x
        and tuple(over_x) == (last,)
        and len(w.full) == 2
    ):
        turned = w.text if tuple(over_w) == (0,) else f"{w.text}.T"
        return writer.line(f"{x.text} @ {turned}", full, full, dtype, x, w)
    formula = einsum_formula(operation.params["dimension_numbers"], len(x.full), len(w.full))
    text = f"np.einsum('{formula}', {x.text}, {w.text}, dtype='{dtype}', optimize=True)"
    return writer.line(text, full, full, dtype, x, w)


def _select(writer: _Writer, operation: Operation, which: Array, *cases: Array) -> Array:
    if len(cases) != 2 or which.dtype != bool:
        raise Unsupported("operation select_n of more than two cases")
    result = _elementwise(writer, operation, "np.where({0}, {2}, {1})", [which, *cases])
    numbers = [case for case in cases if case.text[0] not in "vcs"]
    if (
        len(numbers) < 2 and all(case.text[0] in "vcs" or case.dtype.kind != "f" for case in cases)
    ) or not numbers:
        return result
    # numbers of Python would give float64
    return _cast_to(writer, result, operation.outputs[0].dtype)


def _cast_to(writer: _Writer, x: Array, dtype: Any) -> Array:
    return writer.line(f"{x.text}.astype('{np.dtype(dtype)}')", x.shape, x.full, dtype, x)


def _convert(writer: _Writer, operation: Operation, x: Array) -> Array:
    dtype = np.dtype(operation.params["new_dtype"])
    if dtype == x.dtype:
        return x
    if x.text[0] not in "vcs":
        x = writer.whole(x._replace(full=()))._replace(full=operation.outputs[0].shape)
    return _cast_to(writer, x, dtype)


def _slice(writer: _Writer, operation: Operation, x: Array) -> Array:
    x, params = writer.whole(x), operation.params
    steps = params["strides"] or (1,) * len(x.full)
    parts = zip(params["start_indices"], params["limit_indices"], steps, strict=True)
    at = ", ".join(f"{a}:{b}" + (f":{s}" if s != 1 else "") for a, b, s in parts)
    full = operation.outputs[0].shape
    return writer.line(f"{x.text}[{at}]", full, full, x.dtype, x)


def _split(writer: _Writer, operation: Operation, x: Array) -> list[Array]:
    x, axis, start, parts = writer.whole(x), operation.params["axis"], 0, []
    for result, size in zip(operation.outputs, operation.params["sizes"], strict=True):
        at = ", ".join([":"] * axis + [f"{start}:{start + size}"])
        parts.append(writer.line(f"{x.text}[{at}]", result.shape, result.shape, x.dtype, x))
        start += size
    return parts


def _concatenate(writer: _Writer, operation: Operation, *xs: Array) -> Array:
    whole = [writer.whole(x) for x in xs]
    full = operation.outputs[0].shape
    text = f"np.concatenate(({', '.join(x.text for x in whole)},), {operation.params['dimension']})"
    return writer.line(text, full, full, operation.outputs[0].dtype, *whole)


def _stack(writer: _Writer, operation: Operation, *xs: Array) -> Array:
    whole, full = [writer.whole(x) for x in xs], operation.outputs[0].shape
    text = f"np.stack(({', '.join(x.text for x in whole)},), {operation.params['axis']})"
    return writer.line(text, full, full, operation.outputs[0].dtype, *whole)


def _reduction(function: str) -> Callable[..., Array]:
    def write(writer: _Writer, operation: Operation, x: Array) -> Array:
        x, full = writer.whole(x), operation.outputs[0].shape
        dtype = operation.outputs[0].dtype
        axes = tuple(operation.params["axes"])
        text = f"{x.text}.{function}({axes[0] if len(axes) == 1 else axes})"
        same = f".astype('{np.dtype(dtype)}')" if function in ("argmax", "argmin") else ""
        return writer.line(text + same, full, full, dtype, x)

    return write


def _sum(writer: _Writer, operation: Operation, x: Array) -> Array:
    x, full, dtype = (
        writer.whole(x),
        operation.outputs[0].shape,
        np.dtype(operation.outputs[0].dtype),
    )
    axes = tuple(operation.params["axes"])
    kind = "" if dtype.kind == "f" else f", dtype='{dtype}'"
    return writer.line(
        f"{x.text}.sum({axes[0] if len(axes) == 1 else axes}{kind})", full, full, dtype, x
    )


def _cumulative(function: str) -> Callable[..., Array]:
    def write(writer: _Writer, operation: Operation, x: Array) -> Array:
        x, full, axis = writer.whole(x), operation.outputs[0].shape, operation.params["axis"]
        if operation.params["reverse"]:
            raise Unsupported(f"operation {operation.name} from the end")
        return writer.line(
            f"np.{function}({x.text}, {axis}, dtype='{x.dtype}')",
            full,
            full,
            operation.outputs[0].dtype,
            x,
        )

    return write


def _gather(writer: _Writer, operation: Operation, x: Array, index: Array) -> Array:
    """Write ``x[i]`` along one axis for a fixed ``i``, or with one index for each row of the last
    axis.
    """
    numbers, shape = operation.params["dimension_numbers"], operation.inputs[0].shape
    last = len(shape) - 1
    of_rows = (
        numbers.collapsed_slice_dims == numbers.start_index_map == (last,)
        and not numbers.offset_dims
    )
    if (
        of_rows
        and tuple(numbers.operand_batching_dims) == tuple(range(last))
        and len(index.full) == last + 2
    ):
        x, index, full = writer.whole(x), writer.whole(index), operation.outputs[0].shape
        if index.full[last] == 1:
            rows = writer.constant(np.arange(math.prod(shape[:last])))
            x = writer.reshaped(x, (*rows.shape, shape[last]))
            index = writer.reshaped(index, rows.full)
            picked = writer.line(
                f"{x.text}[{rows.text}, {index.text}]", rows.full, rows.full, x.dtype, x, index
            )
            return writer.reshaped(picked, full)
        text = f"np.take_along_axis({x.text}, {index.text}[..., 0], {last})"
        return writer.line(text, full, full, x.dtype, x, index)
    axes, constant = numbers.collapsed_slice_dims, operation.inputs[1]
    whole = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    one_axis = (
        len(axes) == 1
        and axes == numbers.start_index_map
        and operation.params["slice_sizes"] == whole
    )
    if not one_axis or not isinstance(constant, np.ndarray) or constant.shape != (1,):
        raise Unsupported("operation gather by computed indices")
    x, full = writer.whole(x), operation.outputs[0].shape
    at = ", ".join([":"] * axes[0] + [str(int(constant[0]))])
    return writer.line(f"{x.text}[{at}]", full, full, x.dtype, x)


def _same(writer: _Writer, operation: Operation, x: Array) -> Array:
    return x


def _power(writer: _Writer, operation: Operation, x: Array) -> Array:
    return _elementwise(writer, operation, f"{{}} ** {operation.params['y']}", [x])


def _pow(writer: _Writer, operation: Operation, x: Array, y: Array) -> Array:
    result = _elementwise(writer, operation, "{} ** {}", [x, y])
    return result if x.dtype == y.dtype else _cast_to(writer, result, operation.outputs[0].dtype)


def _divide(writer: _Writer, operation: Operation, x: Array, y: Array) -> Array:
    if x.dtype.kind == "f":
        return _elementwise(writer, operation, "{} / {}", [x, y])
    # XLA's quotients of integers round towards 0
    text = f"np.trunc(np.divide({{}}, {{}})).astype('{x.dtype}')"
    return _elementwise(writer, operation, text, [x, y])


ARITHMETIC = {"add": "+", "add_any": "+", "and": "&", "mul": "*", "or": "|", "sub": "-", "xor": "^"}
COMPARISONS = {"eq": "==", "ge": ">=", "gt": ">", "le": "<=", "lt": "<", "ne": "!="}
FUNCTIONS = "ceil cos exp exp2 expm1 floor log log1p sign sin sqrt square tan tanh"
SAME = {
    **{name: f"{{}} {operator} {{}}" for name, operator in {**ARITHMETIC, **COMPARISONS}.items()},
    **{name: f"np.{name}({{}})" for name in FUNCTIONS.split()},
    "abs": "abs({})",
    "clamp": "np.minimum(np.maximum({1}, {0}), {2})",
    "is_finite": "np.isfinite({})",
    "logistic": "1.0 / (1.0 + np.exp(-{}))",
    "max": "np.maximum({}, {})",
    "min": "np.minimum({}, {})",
    "neg": "-{}",
    "not": "~{}",
    "rem": "np.fmod({}, {})",
    "rsqrt": "1.0 / np.sqrt({})",
}
"""Elementwise operations."""

RULES: dict[str, Callable[..., Any]] = {
    "argmax": _reduction("argmax"),
    "argmin": _reduction("argmin"),
    "broadcast_in_dim": _broadcast,
    "concatenate": _concatenate,
    "convert_element_type": _convert,
    "copy": _same,
    "cumprod": _cumulative("cumprod"),
    "cumsum": _cumulative("cumsum"),
    "div": _divide,
    "dot_general": _dot,
    "expand_dims": _reshape,
    "gather": _gather,
    "integer_pow": _power,
    "pow": _pow,
    "reduce_and": _reduction("all"),
    "reduce_max": _reduction("max"),
    "reduce_min": _reduction("min"),
    "reduce_or": _reduction("any"),
    "reduce_sum": _sum,
    "reshape": _reshape,
    "select_n": _select,
    "slice": _slice,
    "split": _split,
    "squeeze": _reshape,
    "stack": _stack,
    "stop_gradient": _same,
    "transpose": _transpose,
}
"""Other operations."""


def to_xla(program: Split) -> bytes:
    """Compile the program of each step for worker processes with JAX.

    Args:
        program: Split function.

    Returns:
        Serialized ``(*tick, *step, *act) -> results``, with the inputs in the order of `to_numpy`.
    """
    of_time = {
        when: [v for v, at in zip(program.given, program.when, strict=True) if at == when]
        for when in When
    }
    inputs = [*of_time[When.TICK], *of_time[When.STEP], *program.inputs[When.ACT]]

    def function(*arrays: Any) -> list[Any]:
        computed = run_operations(
            program.act, {value.number: x for value, x in zip(inputs, arrays, strict=True)}
        )
        return [
            computed[x.number] if isinstance(x, Value) else jax.numpy.asarray(x)
            for x in program.outputs
        ]

    shapes = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in inputs]
    return bytes(jax.export.export(jax.jit(function), platforms=("cpu",))(*shapes).serialize())
