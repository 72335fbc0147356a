"""Action selection in two parts: one runs before a rollout, the other needs observations.

A traced function becomes a flat list of operations. Operations that depend on parameters, rates and
random keys only run ahead, for all steps of a rollout in one call. The others are the program that
worker processes run at each step.
"""

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast import jaxprs


class When(IntEnum):
    """When a value is available. An operation's results are available when its latest input is."""

    ALWAYS = 0
    TICK = 1
    STEP = 2
    ACT = 3


class Value(NamedTuple):
    """A value of the program.

    Attributes:
        number: Number of the value.
        shape: Its shape.
        dtype: Its dtype.
    """

    number: int
    shape: tuple[int, ...]
    dtype: Any


Input = Value | np.ndarray
"""A value, or a constant."""


class Operation(NamedTuple):
    """An operation of a flat program.

    Attributes:
        name: Name of the JAX primitive.
        params: Parameters of the primitive.
        inputs: Inputs.
        outputs: Results.
        call: Computes the results, a list, from the inputs with JAX.
    """

    name: str
    params: dict[str, Any]
    inputs: list[Input]
    outputs: list[Value]
    call: Callable[..., Sequence[Any]]


class Split(NamedTuple):
    """A function in two parts.

    Attributes:
        ahead: Operations before the rollout, in order: for the whole rollout, and for each of its
            steps.
        act: Operations of each step, in order.
        given: Values that ``act`` gets from ``ahead`` or from its inputs, in order.
        when: When each of ``given`` is available: `When.TICK` or `When.STEP`.
        inputs: Inputs of the whole function by the time at which they are available.
        outputs: Results of the whole function.
    """

    ahead: tuple[list[Operation], list[Operation]]
    act: list[Operation]
    given: list[Value]
    when: list[When]
    inputs: dict[When, list[Value]]
    outputs: list[Input]


def split(function: Callable[..., Any], tick: Any, step: Any, act: Any) -> Split:
    """Trace a function and split it by the time at which its inputs are available.

    Args:
        function: ``(tick, step, act) -> results``, pytrees of arrays.
        tick: Shapes of the inputs that are available before a rollout.
        step: Shapes of the inputs that are available before a rollout for each of its steps.
        act: Shapes of the inputs that only the step gives.

    Returns:
        The two parts.
    """
    closed = jax.make_jaxpr(function)(tick, step, act)
    program = _Flat()
    values = [program.value(aval) for aval in closed.in_avals]
    counts = [len(jax.tree.leaves(part)) for part in (tick, step, act)]
    ends = np.cumsum(counts)
    inputs = {
        when: values[end - count : end]
        for when, count, end in zip((When.TICK, When.STEP, When.ACT), counts, ends, strict=True)
    }
    outputs = program.inline(jaxprs.program_of(closed), values)
    when = {value.number: at for at, of_time in inputs.items() for value in of_time}
    for operation in program.operations:
        latest = max(
            [when[i.number] for i in operation.inputs if isinstance(i, Value)], default=When.ALWAYS
        )
        when |= {value.number: latest for value in operation.outputs}
    live = _live(program.operations, outputs)
    acting = _with_broadcasts(
        [op for op in live if when[op.outputs[0].number] == When.ACT], live, outputs
    )
    made = {value.number for op in acting for value in op.outputs} | {
        value.number for value in inputs[When.ACT]
    }
    read = [value for op in acting for value in op.inputs] + outputs
    needed = list(
        {v.number: v for v in read if isinstance(v, Value) and v.number not in made}.values()
    )
    ahead = _live([op for op in live if when[op.outputs[0].number] != When.ACT], needed)
    times = [max(when[value.number], When.TICK) for value in needed]
    of_steps = [when[op.outputs[0].number] == When.STEP for op in ahead]
    fixed = [op for op, each in zip(ahead, of_steps, strict=True) if not each]
    by_step = [op for op, each in zip(ahead, of_steps, strict=True) if each]
    return Split(
        ahead=(fixed, by_step), act=acting, given=needed, when=times, inputs=inputs, outputs=outputs
    )


class _Flat:
    """Operations of a traced function, with the functions that it calls written out."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.count = 0

    def value(self, aval: Any) -> Value:
        self.count += 1
        return Value(self.count, tuple(aval.shape), aval.dtype)

    def inline(self, program: jaxprs.TracedProgram, values: Sequence[Input]) -> list[Input]:
        jaxpr, consts = program
        bound: dict[Any, Input] = dict(
            zip(jaxpr.constvars, map(self.constant, consts), strict=True)
        )
        bound |= zip(jaxpr.invars, values, strict=True)

        def read(atom: Any) -> Input:
            return jaxprs.literal_array(atom) if jaxprs.is_literal(atom) else bound[atom]

        for eqn in jaxpr.eqns:
            bound |= zip(
                eqn.outvars, self.equation(eqn, [read(atom) for atom in eqn.invars]), strict=True
            )
        return [read(atom) for atom in jaxpr.outvars]

    def constant(self, value: Any) -> Input:
        if not jax.dtypes.issubdtype(getattr(value, "dtype", np.float32), jax.dtypes.prng_key):
            return np.asarray(value)
        of_key = Value(self.count + 1, tuple(value.shape), value.dtype)
        self.count += 1
        self.operations.append(
            Operation("key", params={}, inputs=[], outputs=[of_key], call=lambda: [value])
        )
        return of_key

    def equation(self, eqn: Any, inputs: list[Input]) -> list[Input]:
        if (called := jaxprs.called_program(eqn)) is not None:
            return self.inline(called, inputs)
        if (platform := jaxprs.platform_of_cpu(eqn)) is not None:  # workers run on the CPU
            return [platform]
        if inputs and (branch := jaxprs.chosen_branch(eqn, inputs[0])) is not None:
            return self.inline(branch, inputs[1:])
        if (body := jaxprs.single_step(eqn)) is not None:
            return self.one_step(eqn, body, inputs)
        primitive, params = eqn.primitive, eqn.params

        def call(*arrays: Any) -> Sequence[Any]:
            results = primitive.bind(*arrays, **params)
            return results if primitive.multiple_results else [results]

        if (
            inputs
            and all(isinstance(x, np.ndarray) and x.ndim == 0 for x in inputs)
            and not eqn.outvars[0].aval.shape
        ):
            return [np.asarray(result) for result in call(*inputs)]
        outputs = [self.value(var.aval) for var in eqn.outvars]
        self.operations.append(
            Operation(primitive.name, params=params, inputs=inputs, outputs=outputs, call=call)
        )
        return list(outputs)

    def one_step(self, eqn: Any, body: jaxprs.TracedProgram, inputs: list[Input]) -> list[Input]:
        """Write out a loop of one step, whose stacked inputs and results have an additional axis of
        length 1.
        """
        step_inputs = zip(inputs, jaxprs.shapes_of(body.jaxpr.invars), strict=True)
        results = self.inline(body, [self.reshaped(x, shape) for x, shape in step_inputs])
        stacked = zip(results, jaxprs.shapes_of(eqn.outvars), strict=True)
        return [self.reshaped(y, shape) for y, shape in stacked]

    def reshaped(self, x: Input, shape: tuple[int, ...]) -> Input:
        if x.shape == shape:
            return x
        if isinstance(x, np.ndarray):
            return x.reshape(shape)
        result = Value(self.count + 1, shape, x.dtype)
        self.count += 1
        call = lambda array: [jnp.reshape(array, shape)]  # noqa: E731
        self.operations.append(
            Operation(
                "reshape", params={"new_sizes": shape}, inputs=[x], outputs=[result], call=call
            )
        )
        return result


def _live(operations: Sequence[Operation], results: Sequence[Input]) -> list[Operation]:
    """Return the operations on which the results depend, in order."""
    needed, live = {value.number for value in results if isinstance(value, Value)}, []
    for operation in reversed(operations):
        if needed.intersection(value.number for value in operation.outputs):
            needed |= {value.number for value in operation.inputs if isinstance(value, Value)}
            live.append(operation)
    return live[::-1]


def _with_broadcasts(
    acting: list[Operation], live: Sequence[Operation], outputs: Sequence[Input]
) -> list[Operation]:
    """Add the broadcasts and reshapes whose results ``acting`` reads, since their inputs are
    smaller.
    """
    broadcasts = {op.outputs[0].number: op for op in live if _is_view(op)}
    order = {id(op): i for i, op in enumerate(live)}
    chosen = {id(op): op for op in acting}
    pending = [value for op in acting for value in op.inputs] + list(outputs)
    while pending:
        value = pending.pop()
        operation = broadcasts.get(value.number) if isinstance(value, Value) else None
        if operation is not None and id(operation) not in chosen:
            chosen[id(operation)] = operation
            pending += operation.inputs
    return sorted(chosen.values(), key=lambda op: order[id(op)])


def _is_view(operation: Operation) -> bool:
    """Return whether an operation only adds values to an axis, or adds or removes axes of length 1."""
    if operation.name == "broadcast_in_dim":
        return True
    if operation.name not in ("reshape", "expand_dims", "squeeze"):
        return False
    before, after = (
        [size for size in x.shape if size != 1] for x in (operation.inputs[0], operation.outputs[0])
    )
    return before == after


def run_operations(operations: Sequence[Operation], arrays: dict[int, Any]) -> dict[int, Any]:
    """Compute operations with JAX.

    Args:
        operations: Operations, in order.
        arrays: Arrays of their inputs by number.

    Returns:
        Arrays by number, ``arrays`` included.
    """
    arrays = dict(arrays)
    for operation in operations:
        inputs = [arrays[x.number] if isinstance(x, Value) else x for x in operation.inputs]
        results = operation.call(*inputs)
        arrays |= {
            value.number: result for value, result in zip(operation.outputs, results, strict=True)
        }
    return arrays


def require_same(one: Split, other: Split) -> None:
    """Check that a function is split in the same way for two numbers of environments.

    Args:
        one: Split of the function for some number of environments.
        other: Split for another number.

    Raises:
        ValueError: The values that the steps get differ.
    """
    kinds = [
        [(len(v.shape), v.dtype, at) for v, at in zip(each.given, each.when, strict=True)]
        for each in (one, other)
    ]
    if kinds[0] != kinds[1]:
        raise ValueError("action selection depends on the number of environments")


def environment_axes(one: Split, other: Split, sizes: tuple[int, int]) -> list[int | None]:
    """Return the axis of the environments in each given value, by comparing two numbers of
    environments.

    Args:
        one: Split of the function for some number of environments.
        other: Split of the same function for another number.
        sizes: Both numbers.

    Returns:
        For each of ``given`` the axis, or None.

    Raises:
        ValueError: The function is not the same for both numbers.
    """
    require_same(one, other)
    axes: list[int | None] = []
    for a, b in zip(one.given, other.given, strict=True):
        differing = [
            axis
            for axis, sizes in enumerate(zip(a.shape, b.shape, strict=True))
            if sizes[0] != sizes[1]
        ]
        if any((a.shape[axis], b.shape[axis]) != sizes for axis in differing) or len(differing) > 1:
            raise ValueError("action selection relates environments to each other")
        axes.append(differing[0] if differing else None)
    return axes


def require_apart(program: Split) -> None:
    """Check with random inputs that no environment's results depend on another's observation,
    memory or end.

    Args:
        program: Split function for several environments, the first axis of its inputs at each step
            and of its results.

    Raises:
        ValueError: One does, as with ``x - x.mean(0)``.
    """
    rng = np.random.default_rng(0)
    fixed = {value.number: _random(rng, value) for value in program.given}
    one, other = (
        {value.number: _random(rng, value) for value in program.inputs[When.ACT]} for _ in range(2)
    )
    changed = {number: np.concatenate([other[number][:1], x[1:]]) for number, x in one.items()}
    made = [out for out in program.outputs if isinstance(out, Value) and out.number not in fixed]

    @jax.jit
    def results(at_step: dict[int, Any]) -> list[Any]:
        arrays = run_operations(program.act, fixed | at_step)
        return [arrays[value.number] for value in made]

    for before, after in zip(results(one), results(changed), strict=True):
        one_part, other_part = (np.asarray(x)[1:].astype(np.float64) for x in (before, after))
        if not np.allclose(one_part, other_part, rtol=1e-5, atol=1e-6, equal_nan=True):
            raise ValueError("action selection relates environments to each other")


def _random(rng: np.random.Generator, value: Value) -> np.ndarray:
    if np.issubdtype(value.dtype, np.bool_) or np.issubdtype(value.dtype, np.integer):
        return rng.integers(0, 2, value.shape).astype(value.dtype)
    return rng.normal(size=value.shape).astype(value.dtype)
