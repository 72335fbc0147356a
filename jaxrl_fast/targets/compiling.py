"""Compiles a run's programs for a target, in the process that has its compiler."""

import time
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxrl_fast.experience.binding import Bound
from jaxrl_fast.fragments.build import build_graph
from jaxrl_fast.fragments.callbacks import check_placement, in_graph
from jaxrl_fast.graph import program as programs
from jaxrl_fast.graph.compiler_choices import starts_kernels_singly
from jaxrl_fast.graph.dataflow import Graph, TrainState, tagged
from jaxrl_fast.graph.placements import LEARNING, SAMPLING, Placement, place_on
from jaxrl_fast.inspection.description import compiled_parts
from jaxrl_fast.settings.machine import AUTO
from jaxrl_fast.settings.run_settings import Run, graph_options, make_algorithm, make_envs
from jaxrl_fast.settings.schema import ConfigError
from jaxrl_fast.targets.dumps import find_dump, module_name
from jaxrl_fast.targets.program_cost import ProgramCost, cost_of
from jaxrl_fast.targets.room import Room, room_of, stored_replay
from jaxrl_fast.targets.target import Target, devices_of
from jaxrl_fast.training.planning import plan_run


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
    plan = plan_run(env, agent, run.total_steps, run.eval_every, run.checkpoints.every)
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


def rounds_of(graph: Graph, agent: Bound, steps_per_tick: int) -> Rounds:
    """How often a tick of this graph steps its environments and updates its networks."""
    sampling, learning = (tuple(tagged(graph, tag)) for tag in (SAMPLING, LEARNING))
    return Rounds(agent.rollout_length, agent.updates_per_tick, agent.batch_size, steps_per_tick, sampling, learning)
