"""Compiles a run's programs for a target, and says what of its memory they take."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxrl_fast.commands.run_config import Run, graph_options, make_algorithm, make_envs
from jaxrl_fast.learning.acting import BoundAgent
from jaxrl_fast.learning.io_callback_env import check_placement, in_graph
from jaxrl_fast.learning.run_graph import build_graph
from jaxrl_fast.runtime import program as programs
from jaxrl_fast.runtime.graph import Graph, TrainState, tagged
from jaxrl_fast.runtime.placements import LEARNING, REPLAY, SAMPLING, Placement, place_on
from jaxrl_fast.runtime.xla_options import starts_kernels_singly
from jaxrl_fast.settings.machine import AUTO
from jaxrl_fast.settings.schema import ConfigError
from jaxrl_fast.targets.accelerators import Chip, Target, devices_of
from jaxrl_fast.targets.program_cost import ProgramCost, by_group, cost_of, find_dump, module_name
from jaxrl_fast.training.job import plan_run
from jaxrl_fast.views.description import compiled_parts

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


class Rounds(NamedTuple):
    """How often a tick repeats what it consists of: ``steps`` of every environment (``env_steps`` over all of them),
    gradient ``updates`` of ``batch_size`` samples each, in the fragments ``sampling`` and ``learning``."""

    steps: int
    updates: int
    batch_size: int
    env_steps: int
    sampling: tuple[str, ...]
    learning: tuple[str, ...]


class ForTarget(NamedTuple):
    """A run, compiled for a target.

    - ``graph``, ``placed``: what runs, and on which devices.
    - ``state``: the shapes of its state.
    - ``compiled``: the program of a chunk of ``ticks_per_chunk`` ticks, in ``compile_s`` seconds.
    - ``costs``: of each of its programs.
    - ``rounds``: how often a tick repeats what it consists of.
    - ``room``: how far it could grow on the target's devices.
    """

    graph: Graph
    placed: Placement
    state: TrainState
    compiled: Any
    ticks_per_chunk: int
    costs: tuple[ProgramCost, ...]
    rounds: Rounds
    room: Room
    compile_s: float


def placement_for(run: Run, target: Target) -> str:
    """The placement that the run asks for; without one, that of all devices.

    Raises:
        ConfigError: the run names a number of devices beside the target's.
    """
    if run.devices is not None:
        raise ConfigError(f"devices={run.devices}: the target says how many there are ({target.name}): leave it out")
    if run.placement != AUTO:
        return run.placement
    return "fused" if target.num_devices == 1 else "data_parallel"


def compile_for(run: Run, target: Target, dump: Path) -> ForTarget:
    """Compile everything that the run would run on the target's devices; XLA writes into ``dump``."""
    env = make_envs(run)
    algorithm = make_algorithm(run)
    options = graph_options(run)._replace(joined=starts_kernels_singly(target.chip.platform))
    graph, agent = build_graph(in_graph(env).env, algorithm, options)
    placed = place_on(graph, placement_for(run, target), devices_of(target))
    check_placement(env, placed)
    plan = plan_run(env, agent, run.total_steps, run.eval.every, run.checkpoint.every)
    program = programs.compile(graph, placed, plan.ticks_per_chunk, run.num_seeds)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), run.num_seeds))
    begin = time.perf_counter()
    compiled = program.compile_run(keys, algorithm.hyper)
    compile_s = time.perf_counter() - begin
    state = jax.eval_shape(program.init, keys, algorithm.hyper)
    costs = costs_of(compiled, placed, plan.ticks_per_chunk, target, dump)
    rounds = rounds_of(graph, agent, plan.steps_per_tick)
    room = room_of(costs, stored_replay(run.algo_options, graph, placed, state), env.num_envs, target.chip)
    return ForTarget(graph, placed, state, compiled, plan.ticks_per_chunk, costs, rounds, room, compile_s)


def costs_of(compiled: Any, placed: Placement, ticks: int, target: Target, dump: Path) -> tuple[ProgramCost, ...]:
    """What each program of the run costs; those that the host steps are left out."""
    group_of = {name: index for index, group in enumerate(placed.groups) for name in group.fragments}
    costs = []
    for fragments, step, calls in compiled_parts(compiled, tuple(group_of), ticks):
        if isinstance(step, jax.stages.Compiled):
            group = group_of[fragments[0]]
            where = {"group": group, "num_devices": len(placed.groups[group].devices)}
            dumped = find_dump(dump, module_name(step.as_text() or ""))
            costs.append(cost_of(step, fragments, target.chip, **where, calls=calls, dumped=dumped))
    return tuple(costs)


def rounds_of(graph: Graph, agent: BoundAgent, steps_per_tick: int) -> Rounds:
    """How often a tick of this graph steps its environments and updates its networks."""
    sampling, learning = (tuple(tagged(graph, tag)) for tag in (SAMPLING, LEARNING))
    return Rounds(agent.rollout_length, agent.updates_per_tick, agent.batch_size, steps_per_tick, sampling, learning)
