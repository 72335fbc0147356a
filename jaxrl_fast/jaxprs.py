"""Traced programs (jaxprs), read in the same way in every supported version of JAX.

JAX documents an equation's primitive, inputs, outputs and parameters, but neither the names of the
parameters nor their types: JAX 0.10 stores a called program as an open or a closed jaxpr, by
primitive, and counts a loop's constants and carry; JAX 0.11 has one class for both and no such
counts. This module is the only reader of such parameters, so that another version of JAX is
supported here or nowhere. ``tests/test_jaxprs.py`` runs each case.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Literal

CALLS = frozenset(
    (
        "jit",
        "pjit",
        "closed_call",
        "core_call",
        "custom_jvp_call",
        "custom_vjp_call",
        "remat2",
        "checkpoint",
    )
)
"""Primitives that compute what the one program among their parameters computes, from the same
inputs.
"""


class TracedProgram(NamedTuple):
    """A traced program and the arrays that it reads.

    Attributes:
        jaxpr: Its equations and variables.
        consts: Arrays for ``jaxpr.constvars``.
    """

    jaxpr: Any
    consts: Sequence[Any]


def inner_programs(eqn: Any) -> list[TracedProgram]:
    """List the programs among an equation's parameters.

    Args:
        eqn: Equation.

    Returns:
        The programs, in the order of the parameters.
    """
    leaves = jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns"))
    return [program_of(leaf) for leaf in leaves if hasattr(leaf, "eqns")]


def program_of(traced: Any) -> TracedProgram:
    """Return an open or closed jaxpr as a program.

    Args:
        traced: Jaxpr.

    Returns:
        The program.
    """
    return TracedProgram(getattr(traced, "jaxpr", traced), getattr(traced, "consts", ()))


def called_program(eqn: Any) -> TracedProgram | None:
    """Return the program that an equation only calls: a jitted function, one with a custom
    derivative.

    Args:
        eqn: Equation.

    Returns:
        The program, whose inputs and outputs are the equation's; None for another equation.
    """
    return inner_programs(eqn)[0] if eqn.primitive.name in CALLS else None


def chosen_branch(eqn: Any, index: Any) -> TracedProgram | None:
    """Return the branch of a conditional with a constant index.

    Args:
        eqn: Equation.
        index: Value of its first input; an array if it is constant.

    Returns:
        The branch, whose inputs are the equation's after the first; None for another equation.
    """
    if eqn.primitive.name != "cond" or not isinstance(index, np.ndarray):
        return None
    return inner_programs(eqn)[int(index)]


def platform_of_cpu(eqn: Any) -> np.ndarray | None:
    """Return the result of an equation that selects a branch by platform, on a CPU.

    Args:
        eqn: Equation.

    Returns:
        Index of the branch; None for another equation.
    """
    if eqn.primitive.name != "platform_index":
        return None
    platforms = eqn.params["platforms"]
    return np.array(
        next(i for i, names in enumerate(platforms) if names is None or "cpu" in names), np.int32
    )


def single_step(eqn: Any) -> TracedProgram | None:
    """Return the body of a loop that runs once, as a memory does where one observation is given.

    The body takes the loop's inputs in the same order. Of an input that has a value for each step,
    the body gets one value without the axis of steps, and so for results: the number of axes
    distinguishes them.

    Args:
        eqn: Equation.

    Returns:
        The body; None for another equation.
    """
    if eqn.primitive.name != "scan" or eqn.params["length"] != 1:
        return None
    return inner_programs(eqn)[0]


def shapes_of(variables: Sequence[Any]) -> list[tuple]:
    """Return the shapes of a program's or an equation's inputs or outputs.

    Args:
        variables: Variables, or literals.

    Returns:
        Shape of each.
    """
    return [tuple(variable.aval.shape) for variable in variables]


def is_literal(atom: Any) -> bool:
    """Return whether an input of an equation is a number in the program's text.

    Args:
        atom: Input.

    Returns:
        True for a number, False for a variable.
    """
    return isinstance(atom, Literal)


def literal_array(atom: Any) -> np.ndarray:
    """Return a literal as an array.

    Args:
        atom: Literal.

    Returns:
        Its value in its dtype.
    """
    return np.asarray(atom.val, atom.aval.dtype)


def einsum_formula(dimension_numbers: Any, axes_x: int, axes_w: int) -> str:
    """Write a general product of two arrays as a formula of ``einsum``.

    Args:
        dimension_numbers: Of `jax.lax.dot_general`: summed axes and batch axes of both arrays.
        axes_x: Number of axes of the first array.
        axes_w: Number of axes of the second.

    Returns:
        Formula, such as ``"ab,cb->ac"``.
    """
    (over_x, over_w), (batch_x, batch_w) = dimension_numbers
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    of_x, of_w = [next(letters) for _ in range(axes_x)], [next(letters) for _ in range(axes_w)]
    for a, b in zip((*batch_x, *over_x), (*batch_w, *over_w), strict=True):
        of_w[b] = of_x[a]
    free_x = [of_x[i] for i in range(axes_x) if i not in (*batch_x, *over_x)]
    free_w = [of_w[i] for i in range(axes_w) if i not in (*batch_w, *over_w)]
    result = [*(of_x[i] for i in batch_x), *free_x, *free_w]
    return f"{''.join(of_x)},{''.join(of_w)}->{''.join(result)}"
