"""A job: all that a run is made of, checked and put together before anything is compiled."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax

from jaxrl_fast.algorithms.interface import Algorithm, require_positive
from jaxrl_fast.environments.env import VecEnv
from jaxrl_fast.environments.host_env import HostEnv
from jaxrl_fast.experience.binding import Bound, bind
from jaxrl_fast.experience.minibatches import MAX_SHARDS
from jaxrl_fast.fragments.build import graph_of
from jaxrl_fast.fragments.callbacks import Bridge, check_placement, in_graph
from jaxrl_fast.fragments.learners import GraphOptions
from jaxrl_fast.graph import distributed
from jaxrl_fast.graph import program as programs
from jaxrl_fast.graph.compiler_choices import starts_kernels_singly
from jaxrl_fast.graph.dataflow import Graph
from jaxrl_fast.graph.kept import Keep, Store
from jaxrl_fast.graph.placements import Make, Placement, place
from jaxrl_fast.runs.checkpointing import Checkpoints
from jaxrl_fast.training import resuming
from jaxrl_fast.training.planning import Plan, plan_run
from jaxrl_fast.training.refusals import check_host, check_processes


class JobOptions(NamedTuple):
    """How a job is trained, beside its environment and algorithm; the fields mean the same as in `jaxrl_fast.learn`.

    ``total_steps``, ``seed``, ``num_seeds``; ``graph``: the options of its graph; ``placement`` and ``devices``;
    ``eval_every``, ``eval_episodes``, ``eval_beside`` (whether evaluations run beside training) and ``eval_device``;
    ``checkpoints``, ``resume`` and ``debug``.
    """

    total_steps: int
    seed: int = 0
    num_seeds: int = 1
    graph: GraphOptions = GraphOptions()
    placement: str | Make = "fused"
    devices: int | None = None
    eval_every: int | None = None
    eval_episodes: int = 32
    eval_beside: bool = True
    eval_device: Literal["cpu", "same"] = "cpu"
    checkpoints: Checkpoints = Checkpoints()
    resume: str | Path | None = None
    debug: bool = False


class Job(NamedTuple):
    """A run before it starts: ``env``, ``algorithm`` and the ``agent`` that binds the two; the ``graph`` that
    ``options.graph`` made of them, its ``placement`` and ``program``; and the ``plan`` of its chunks.

    ``keys`` ``[S]``: a random key for each seed; ``failures`` collects what environments on the host raise in a
    callback; ``settings``: what a checkpoint stores of them; ``resumed``: the checkpoint that the run goes on from, if
    any; ``store``: where compiled programs are stored, None for nowhere.
    """

    env: VecEnv | HostEnv
    algorithm: Algorithm
    agent: Bound
    graph: Graph
    placement: Placement
    program: programs.Program
    plan: Plan
    keys: jax.Array
    failures: list[Exception]
    options: JobOptions
    settings: Mapping[str, Any]
    resumed: resuming.Resumed | None = None
    store: Store | None = None

    @property
    def num_seeds(self) -> int:
        """How many seeds are trained at once."""
        return len(self.keys)


def make_job(
    env: VecEnv | HostEnv,
    algorithm: Algorithm,
    options: JobOptions,
    settings: Mapping[str, Any] | None = None,
    keep: Keep = lambda program: None,
) -> Job:
    """Check everything that can be checked before anything is compiled, and put a run together.

    ``settings``: what a resumed run must have in common with this one (default: taken from the arguments); ``keep``
    says where programs are stored for later starts.

    Raises:
        ValueError: arguments do not fit together, or a checkpoint does not fit them.
    """
    total_steps, num_seeds, asked = options.total_steps, options.num_seeds, options.graph
    require_positive(total_steps=total_steps, num_seeds=num_seeds, eval_episodes=options.eval_episodes)
    agent = bind(algorithm, env.spec, env.num_envs, asked.shards)
    if settings is None:
        settings = settings_of_job(env, algorithm, agent, options)
    if not distributed.is_alone():
        check_processes(env, {**settings, "resume": options.resume, "debug": options.debug})
    vec_env, failures = (env, []) if isinstance(env, VecEnv) else bridge_of(env, num_seeds, options.debug)
    resumed = None if options.resume is None else resuming.read(options.resume, settings, algorithm)
    graph_options = asked._replace(
        total_steps=total_steps,
        empty_until=resumed.empty_until if resumed else 0,
        joined=starts_kernels_singly(jax.default_backend()),
    )
    options = options._replace(graph=graph_options)
    graph = graph_of(vec_env, algorithm, agent, graph_options)
    progress = resumed.progress if resumed else None
    plan = plan_run(env, agent, total_steps, options.eval_every, options.checkpoints.every, progress)
    placed = place(graph, options.placement, options.devices)
    if isinstance(env, HostEnv):
        check_placement(env, placed)
    program = programs.compile(graph, placed, plan.ticks_per_chunk, num_seeds)
    keys = jax.random.split(jax.random.key(options.seed), num_seeds)
    store = keep((graph_options, placed, plan.ticks_per_chunk, num_seeds))
    parts = env, algorithm, agent, graph, placed, program, plan, keys, failures
    return Job(*parts, options, settings, resumed, store)


def bridge_of(env: HostEnv, num_seeds: int, debug: bool) -> Bridge:
    """The environments that the graph of a job on the host is built with, checked."""
    check_host(env, num_seeds, debug)
    return in_graph(env)


def settings_of_job(env: VecEnv | HostEnv, algorithm: Algorithm, agent: Bound, options: JobOptions) -> dict[str, Any]:
    """The settings of a job that no command line made, by key of the command line where there is one."""
    graph = options.graph
    named = {
        "seed": options.seed,
        "num_seeds": options.num_seeds,
        "overlap": graph.overlap,
        "learners": graph.learners,
        "average": graph.average,
        "total_steps": options.total_steps,
        **({} if graph.shards == MAX_SHARDS else {"shards": graph.shards}),
    }
    return resuming.settings_of(env, algorithm, agent, **named)
