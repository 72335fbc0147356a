"""Agents that differ in what they observe and can do: filled up to the largest. No JAX: the pool's workers import
this."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def largest_shape(name: str, kinds: Sequence[tuple[Any, tuple[int, ...]]]) -> tuple[int, ...]:
    """The shape that holds what each agent observes, by ``(dtype, shape)`` of each.

    Raises:
        ValueError: they differ in more than the length of vectors.
    """
    shapes = {shape for _, shape in kinds}
    if len({dtype for dtype, _ in kinds}) > 1 or (len(shapes) > 1 and {len(shape) for shape in shapes} != {1}):
        each = " and ".join(dict.fromkeys(f"{dtype}{list(shape)}" for dtype, shape in kinds))
        raise ValueError(f"{name}: its agents observe {each}: only vectors of one dtype may differ, in their length")
    return max(shapes)


def most_actions(name: str, numbers: Sequence[int], bounds: Sequence[tuple[Any, Any]]) -> int:
    """How many actions the agent has that has most, 0 where they are continuous, by ``numbers`` and ``bounds`` of each.

    Raises:
        ValueError: they differ in more than the number of discrete actions.
    """
    alike = all(np.array_equal(one, bounds[0]) for one in bounds)
    if not alike or len({number > 0 for number in numbers}) > 1:
        raise ValueError(f"{name}: its agents differ in their actions: only discrete ones may, in their number")
    return max(numbers)


def own_sizes(shapes: Sequence[tuple[int, ...]], numbers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """`EnvSpec.own_sizes` of agents with observations of these shapes and so many actions."""
    sizes = tuple((int(np.prod(shape)), number) for shape, number in zip(shapes, numbers, strict=True))
    return sizes if len(set(sizes)) > 1 else ()
