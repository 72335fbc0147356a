"""Compiles a run's programs for a target, and reports their use of its memory."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxrl_fast.assembly import build_graph, with_own_data
from jaxrl_fast.commands.prepare import taught_algorithm
from jaxrl_fast.commands.run_config import make_envs, with_defaults
from jaxrl_fast.hosts.io_callback_env import check_placement, in_graph
from jaxrl_fast.learning.acting import BoundAgent
from jaxrl_fast.runtime import program as programs
from jaxrl_fast.runtime.graph import Graph, TrainState, tagged
from jaxrl_fast.runtime.placements import LEARNING, REPLAY, SAMPLING, Placement, place_on
from jaxrl_fast.runtime.xla_options import starts_kernels_singly
from jaxrl_fast.settings.machine import AUTO
from jaxrl_fast.settings.run import Run, make_graph_options
from jaxrl_fast.settings.schema import ConfigError
from jaxrl_fast.targets.accelerators import Chip, Target, devices_of
from jaxrl_fast.targets.program_cost import ProgramCost, by_group, cost_of, find_dump, module_name
from jaxrl_fast.training.job import plan_run
from jaxrl_fast.views.description import compiled_parts

PREALLOCATED = {"cuda": 0.75, "tpu": 1.0}
"""Share of a device's memory that JAX allocates by default, by platform
(https://docs.jax.dev/en/latest/gpu_memory_allocation.html).
"""


class Stored(NamedTuple):
    """A replay buffer on a target.

    Attributes:
        buffer_size: Capacity in steps.
        group: Number of its group of devices.
        size_bytes: Bytes on each device of the group.
    """

    buffer_size: int
    group: int
    size_bytes: float


class Room(NamedTuple):
    """Memory of the fullest device.

    Attributes:
        needed_bytes: Bytes that the run needs.
        limit_bytes: Bytes available.
        largest_buffer_size: Largest capacity of replay with all else unchanged; None without
            replay.
        largest_num_envs: Lower bound of the environments that are possible, if everything but
            replay grows with them.
    """

    needed_bytes: float
    limit_bytes: float
    largest_buffer_size: int | None
    largest_num_envs: int


def stored_replay(
    options: Mapping[str, Any], graph: Graph, placed: Placement, state: TrainState
) -> Stored | None:
    """Return the size of a run's replay buffer.

    Args:
        options: Options of the algorithm.
        graph: Graph of the run.
        placed: Its placement.
        state: Shapes of its state, of all seeds.

    Returns:
        The replay buffer; None without one.
    """
    holders = tagged(graph, REPLAY)
    if not holders or "buffer_size" not in options:
        return None
    index = next(i for i, group in enumerate(placed.groups) if set(holders) & set(group.fragments))
    leaves = [leaf for name in holders for leaf in jax.tree.leaves(state.private[name])]
    size_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    return Stored(
        int(options["buffer_size"]), index, size_bytes / len(placed.groups[index].devices)
    )


def room_of(costs: Sequence[ProgramCost], stored: Stored | None, num_envs: int, chip: Chip) -> Room:
    """Compute how far a run could grow.

    Args:
        costs: Costs of its programs.
        stored: Its replay buffer; None without one.
        num_envs: Number of environments.
        chip: Kind of its devices.

    Returns:
        Memory of the fullest device.
    """
    limit = PREALLOCATED[chip.platform] * chip.memory_bytes
    needed = by_group((cost.group, cost.memory_bytes or 0) for cost in costs)
    buffer_size, fixed = None, dict.fromkeys(needed, 0.0)
    if stored is not None:
        fixed[stored.group] = stored.size_bytes
        free = limit - needed[stored.group]
        buffer_size = int(stored.buffer_size * max(0.0, 1 + free / stored.size_bytes))
    widths = [
        int(num_envs * max(0.0, limit - fixed[g]) / max(1.0, size - fixed[g]))
        for g, size in needed.items()
    ]
    return Room(max(needed.values()), limit, buffer_size, min(widths))


class Rounds(NamedTuple):
    """Repetitions within a tick.

    Attributes:
        steps: Steps of every environment.
        updates: Gradient updates.
        batch_size: Samples of each update.
        env_steps: Steps over all environments.
        sampling: Fragments that sample.
        learning: Fragments that update.
    """

    steps: int
    updates: int
    batch_size: int
    env_steps: int
    sampling: tuple[str, ...]
    learning: tuple[str, ...]


class ForTarget(NamedTuple):
    """A run compiled for a target.

    Attributes:
        graph: Graph of the run.
        placed: Its placement.
        state: Shapes of its state.
        compiled: Program of a chunk.
        ticks_per_chunk: Ticks of a chunk.
        costs: Cost of each of its programs.
        rounds: Repetitions within a tick.
        room: How far it could grow on the target's devices.
        compile_s: Seconds of the compilation.
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
    """Return the placement of a run on a target.

    Args:
        run: Settings.
        target: Target.

    Returns:
        The run's placement; by default one that uses all devices.

    Raises:
        ConfigError: The run sets a number of devices in addition to the target's.
    """
    if run.devices is not None:
        raise ConfigError(
            f"devices={run.devices}: the target sets their number ({target.name}): leave it out"
        )
    if run.placement != AUTO:
        return run.placement_name
    return "fused" if target.num_devices == 1 else "data_parallel"


def compile_for(run: Run, target: Target, dump: Path) -> ForTarget:
    """Compile all programs of a run for a target's devices.

    Args:
        run: Settings.
        target: Target.
        dump: Folder in which XLA writes.

    Returns:
        The compiled run.
    """
    env = make_envs(run)
    algorithm = taught_algorithm(with_defaults(run, env.spec))[0]
    algorithm, recorded = with_own_data(algorithm, run, env.spec)
    options = make_graph_options(run)._replace(joined=starts_kernels_singly(target.chip.platform))
    graph, agent = build_graph(in_graph(env).env, algorithm, options, recorded)
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
    room = room_of(
        costs, stored_replay(run.algo_options, graph, placed, state), env.num_envs, target.chip
    )
    return ForTarget(
        graph=graph,
        placed=placed,
        state=state,
        compiled=compiled,
        ticks_per_chunk=plan.ticks_per_chunk,
        costs=costs,
        rounds=rounds,
        room=room,
        compile_s=compile_s,
    )


def costs_of(
    compiled: Any, placed: Placement, ticks: int, target: Target, dump: Path
) -> tuple[ProgramCost, ...]:
    """Return the cost of each compiled program of a run, without steps on the host.

    Args:
        compiled: Program of a chunk.
        placed: Placement of the run.
        ticks: Ticks of a chunk.
        target: Target.
        dump: Folder in which XLA wrote.

    Returns:
        The costs.
    """
    group_of = {
        name: index for index, group in enumerate(placed.groups) for name in group.fragments
    }
    costs = []
    for fragments, step, calls in compiled_parts(compiled, tuple(group_of), ticks):
        if isinstance(step, jax.stages.Compiled):
            group = group_of[fragments[0]]
            where = {"group": group, "num_devices": len(placed.groups[group].devices)}
            dumped = find_dump(dump, module_name(step.as_text() or ""))
            costs.append(cost_of(step, fragments, target.chip, **where, calls=calls, dumped=dumped))
    return tuple(costs)


def rounds_of(graph: Graph, agent: BoundAgent, steps_per_tick: int) -> Rounds:
    """Return the repetitions within a tick of a graph.

    Args:
        graph: Graph.
        agent: Algorithm bound to its environments.
        steps_per_tick: Steps of a tick over all environments.

    Returns:
        The repetitions.
    """
    sampling, learning = (tuple(tagged(graph, tag)) for tag in (SAMPLING, LEARNING))
    return Rounds(
        steps=agent.rollout_length,
        updates=agent.updates_per_tick,
        batch_size=agent.batch_size,
        env_steps=steps_per_tick,
        sampling=sampling,
        learning=learning,
    )
