"""A job: all that a run is made of, checked and put together before anything is compiled, and cut into chunks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxrl_fast.envs.env import VecEnv
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.learning.acting import BoundAgent
from jaxrl_fast.learning.algorithm import Algorithm, require_positive
from jaxrl_fast.learning.io_callback_env import Bridge, check_placement, in_graph
from jaxrl_fast.learning.run_graph import GraphOptions, bind, graph_of
from jaxrl_fast.numerics.optimizers import plain
from jaxrl_fast.runtime import hosts
from jaxrl_fast.runtime import program as programs
from jaxrl_fast.runtime.graph import Graph
from jaxrl_fast.runtime.placements import Make, Placement, place
from jaxrl_fast.runtime.program_store import FindStore, Store
from jaxrl_fast.runtime.xla_options import starts_kernels_singly
from jaxrl_fast.settings.schema import Checkpoints, EvalOptions, run_keys
from jaxrl_fast.training import resuming

CHUNKS_PER_RUN = 100
MAX_CHUNK_STEPS = 32_768
"""Most environment steps of a chunk, unless one tick has more: signals wait for the end of a chunk."""
MAX_CHUNK_FRAMES = 524_288
"""The same for updates times their batch size."""


class Plan(NamedTuple):
    """How a run is cut: into ``num_chunks`` chunks of ``ticks_per_chunk`` ticks, of ``steps_per_tick`` environment
    steps (over all environments) each.

    ``chunks_per_eval``, ``chunks_per_checkpoint``: an evaluation and a checkpoint follow every so many chunks.
    """

    ticks_per_chunk: int
    num_chunks: int
    chunks_per_eval: int
    chunks_per_checkpoint: int
    steps_per_tick: int


def plan_run(
    env: VecEnv | HostEnv,
    agent: BoundAgent,
    total_steps: int,
    eval_every: int | None,
    checkpoint_every: int | None = None,
    progress: dict[str, Any] | None = None,
) -> Plan:
    """Cut a run into about a hundred equal chunks, or more if these would be long, with the least overshoot over
    ``total_steps``. A resumed run keeps the chunks that it had, according to the ``progress`` of its checkpoint.

    Raises:
        ValueError: a resumed run has nothing left to do.
    """
    steps_per_tick = env.num_envs * agent.rollout_length
    frames_per_tick = agent.updates_per_tick * agent.batch_size
    ticks = -(-total_steps // steps_per_tick)
    if progress is not None and progress["env_steps"] >= total_steps and not _only_evaluations_lack(progress, ticks):
        raise ValueError(
            f"total_steps={total_steps}: all of them are trained ({progress['env_steps']} steps): write a larger "
            "total_steps to go on"
        )
    ticks_per_chunk = progress["ticks_per_chunk"] if progress else _chunk_size(ticks, steps_per_tick, frames_per_tick)

    def chunks(steps: int | None) -> int:
        return max(1, round((steps or max(1, total_steps // 10)) / (steps_per_tick * ticks_per_chunk)))

    num_chunks = -(-ticks // ticks_per_chunk)
    return Plan(ticks_per_chunk, num_chunks, chunks(eval_every), chunks(checkpoint_every), steps_per_tick)


def _only_evaluations_lack(progress: dict[str, Any], ticks: int) -> bool:
    """Whether a run of so many ``ticks`` was stopped behind its last one, before all was evaluated."""
    whole_run = -(-ticks // progress["ticks_per_chunk"]) * progress["ticks_per_chunk"]
    return bool(progress.get("snapshots")) and progress["ticks"] == whole_run


def ticks_within(
    steps_per_tick: int, frames_per_tick: int, *, max_steps: int = MAX_CHUNK_STEPS, max_frames: int = MAX_CHUNK_FRAMES
) -> int:
    """Ticks of a chunk that stays within both limits, if a single tick does."""
    return max(1, min(max_steps // steps_per_tick, max_frames // frames_per_tick))


def _chunk_size(ticks: int, steps_per_tick: int, frames_per_tick: int) -> int:
    cap = ticks_within(steps_per_tick, frames_per_tick)
    largest = min(cap, max(1, -(-ticks // (CHUNKS_PER_RUN // 2))))
    smallest = min(largest, max(1, ticks // (CHUNKS_PER_RUN * 3 // 2)))
    wanted = ticks / CHUNKS_PER_RUN
    return min(range(smallest, largest + 1), key=lambda n: (-(-ticks // n) * n, abs(n - wanted)))


def check_host(env: VecEnv | HostEnv, num_seeds: int, debug: bool) -> None:
    """Refuse environments on the host that were made for another number of seeds, or a ``debug`` that would step them
    again.

    Raises:
        ValueError: with what to write instead.
    """
    if isinstance(env, HostEnv) and debug:
        raise ValueError("debug=true computes a tick again, which environments on the host cannot: leave it out")
    if isinstance(env, HostEnv) and env.num_seeds != num_seeds:
        raise ValueError(
            f"num_seeds={num_seeds}: these environments on the host serve {env.num_seeds}: write "
            f"make_env(..., num_seeds={num_seeds})"
        )


def check_processes(env: VecEnv | HostEnv, settings: Mapping[str, Any]) -> None:
    """Refuse processes of one run that were started with different ``settings``, and what works in one process only.

    Raises:
        ValueError: naming the setting.
    """
    hosts.check_agreement(settings)
    if settings["debug"]:
        hosts.require_one("debug=true", jax.process_count())
    if isinstance(env, HostEnv):
        hosts.require_one(f"environment {env.spec.name}, which steps on the host,", jax.process_count())


class JobOptions(NamedTuple):
    """How a job is trained, beside its environment and algorithm; the fields mean the same as in `jaxrl_fast.learn`.

    ``total_steps``, ``seed``, ``num_seeds``; ``graph``: the options of its graph; ``placement`` and ``devices``;
    ``eval``: how it is evaluated; ``checkpoints``, ``resume`` and ``debug``.
    """

    total_steps: int
    seed: int
    num_seeds: int
    graph: GraphOptions
    placement: str | Make
    devices: int | None
    eval: EvalOptions
    checkpoints: Checkpoints
    resume: str | Path | None
    debug: bool


class Job(NamedTuple):
    """A run before it starts: ``env``, ``algorithm`` and the ``agent`` that binds the two; the ``graph`` that the
    ``options`` made of them, its ``placement`` and ``program``; and the ``plan`` of its chunks.

    ``keys`` ``[S]``: a random key for each seed; ``failures`` collects what environments on the host raise in a
    callback; ``settings``: what a checkpoint stores of them; ``resumed``: the checkpoint that the run goes on from, if
    any; ``store``: where compiled programs are stored, None for nowhere.
    """

    env: VecEnv | HostEnv
    algorithm: Algorithm
    agent: BoundAgent
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
    keep: FindStore = lambda program: None,
) -> Job:
    """Check everything that can be checked before anything is compiled, and put a run together.

    ``settings``: what a resumed run must have in common with this one (default: taken from the arguments); ``keep``
    says where programs are stored for later starts.

    Raises:
        ValueError: arguments do not fit together, or a checkpoint does not fit them.
    """
    total_steps, num_seeds, asked = options.total_steps, options.num_seeds, options.graph
    require_positive(total_steps=total_steps, num_seeds=num_seeds, eval_episodes=options.eval.episodes)
    agent = bind(algorithm, env.spec, env.num_envs, asked.shards)
    if settings is None:
        settings = settings_of_job(env, algorithm, agent, options)
    if not hosts.is_alone():
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
    plan = plan_run(env, agent, total_steps, options.eval.every, options.checkpoints.every, progress)
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


def settings_of_job(
    env: VecEnv | HostEnv, algorithm: Algorithm, agent: BoundAgent, options: JobOptions
) -> dict[str, Any]:
    """The settings of a job that no command line made, by key of the command line where there is one."""
    asked = {**options.graph._asdict(), **options._asdict()}
    named = {
        name: asked[name]
        for name, key in run_keys().items()
        if key.to and (key.resume == "fixed" or name == "total_steps") and key.is_stored(asked[name])
    }
    bound = "rollout_length updates_per_tick batch_size normalize_observations normalize_rewards".split()
    own = {**algorithm.options, **algorithm.hyper._asdict(), **{name: getattr(agent, name) for name in bound}}
    return {
        "env": env.spec.name,
        "num_envs": env.num_envs,
        "algo": algorithm.name,
        **named,
        **{f"algo.{key}": plain(value) for key, value in own.items()},
    }
