"""What of a device's memory a run takes, and how far it could grow there."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from jaxrl_fast.graph.dataflow import Graph, TrainState, tagged
from jaxrl_fast.graph.placements import REPLAY, Placement
from jaxrl_fast.targets.chips import Chip
from jaxrl_fast.targets.program_cost import ProgramCost, by_group

PREALLOCATED = {"cuda": 0.75, "tpu": 1.0}
"""The share of a device's memory that JAX takes by default, by platform
(https://docs.jax.dev/en/latest/gpu_memory_allocation.html)."""


class Stored(NamedTuple):
    """A replay buffer of ``buffer_size`` steps: ``size_bytes`` on each device of a group."""

    buffer_size: int
    group: int
    size_bytes: float


class Room(NamedTuple):
    """Of the fullest device.

    - ``needed_bytes``: what the run takes; ``limit_bytes``: what there is.
    - ``largest_buffer_size``: of replay, if all else stays as it is; None without replay.
    - ``largest_num_envs``: environments that fit if everything but replay grew with them, so at least so many.
    """

    needed_bytes: float
    limit_bytes: float
    largest_buffer_size: int | None
    largest_num_envs: int


def stored_replay(options: Mapping[str, Any], graph: Graph, placed: Placement, state: TrainState) -> Stored | None:
    """The replay buffer of a run whose algorithm has these ``options``; ``state``: shapes, of all its seeds."""
    holders = tagged(graph, REPLAY)
    if not holders or "buffer_size" not in options:
        return None
    index = next(i for i, group in enumerate(placed.groups) if set(holders) & set(group.fragments))
    leaves = [leaf for name in holders for leaf in jax.tree.leaves(state.private[name])]
    size_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    return Stored(int(options["buffer_size"]), index, size_bytes / len(placed.groups[index].devices))


def room_of(costs: Sequence[ProgramCost], stored: Stored | None, num_envs: int, chip: Chip) -> Room:
    """How far a run of ``num_envs`` environments could grow."""
    limit = PREALLOCATED[chip.platform] * chip.memory_bytes
    needed = by_group((cost.group, cost.memory_bytes or 0) for cost in costs)
    buffer_size, fixed = None, dict.fromkeys(needed, 0.0)
    if stored is not None:
        fixed[stored.group] = stored.size_bytes
        free = limit - needed[stored.group]
        buffer_size = int(stored.buffer_size * max(0.0, 1 + free / stored.size_bytes))
    widths = [int(num_envs * max(0.0, limit - fixed[g]) / max(1.0, size - fixed[g])) for g, size in needed.items()]
    return Room(max(needed.values()), limit, buffer_size, min(widths))
