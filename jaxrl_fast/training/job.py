"""A job: the parts of a run, checked and assembled before anything is compiled, and its chunks."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import jax
import yaml

from jaxrl_fast.core import EnvSpec, made_by, require_vectorized
from jaxrl_fast.envs.env import VecEnv
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.fields import replaced_functions, types_of
from jaxrl_fast.learning.acting import BoundAgent
from jaxrl_fast.learning.algorithm import AnyAlgorithm, DeclaredAlgorithm, declaration_of
from jaxrl_fast.learning.datasets import Dataset
from jaxrl_fast.learning.io_callback_env import Bridge, check_placement, in_graph
from jaxrl_fast.learning.offline import from_data
from jaxrl_fast.learning.run_graph import GraphOptions, bind, graph_of
from jaxrl_fast.numerics.optimizers import is_function, plain
from jaxrl_fast.runtime import hosts
from jaxrl_fast.runtime import program as programs
from jaxrl_fast.runtime.graph import Graph
from jaxrl_fast.runtime.placements import Make, Placement, place
from jaxrl_fast.runtime.program_store import FindStore, Store
from jaxrl_fast.runtime.xla_options import starts_kernels_singly
from jaxrl_fast.settings.schema import Checkpoints, EvalOptions, run_keys
from jaxrl_fast.system import CODE
from jaxrl_fast.training import resuming

CHUNKS_PER_RUN = 100
MAX_CHUNK_STEPS = 32_768
"""Largest number of environment steps in a chunk, unless one tick has more. Signals wait for the
end of a chunk.
"""
MAX_CHUNK_FRAMES = 524_288
"""Largest number of updates times batch size in a chunk, unless one tick has more."""


MAX_ENV_STEPS = 2**30
"""Most steps of one environment; counters of 32 bits hold twice as many (`image_replay` counts
resets, too).
"""


class Plan(NamedTuple):
    """The chunks of a run.

    Attributes:
        ticks_per_chunk: Ticks of a chunk.
        num_chunks: Chunks of the run.
        chunks_per_eval: Chunks between evaluations; 0 for no evaluation.
        chunks_per_checkpoint: Chunks between checkpoints.
        steps_per_tick: Environment steps of a tick, over all environments.
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
    """Split a run into chunks.

    There are about 100 equal chunks, or more if these would be too long, with the least overshoot
    over ``total_steps``. A resumed run has the chunk size of its checkpoint.

    Args:
        env: Environment.
        agent: Algorithm bound to the environment.
        total_steps: Environment steps of the run.
        eval_every: Environment steps between evaluations, None for a tenth of the run, 0 for no
            evaluation.
        checkpoint_every: Environment steps between checkpoints, None for a tenth of the run.
        progress: Progress of the checkpoint that is resumed, or None.

    Returns:
        The plan.

    Raises:
        ValueError: A resumed run has no steps left, or an environment makes more than
            `MAX_ENV_STEPS`.
    """
    steps_per_tick = env.num_envs * agent.rollout_length
    if total_steps > MAX_ENV_STEPS * env.num_envs:
        raise _too_long(total_steps)
    frames_per_tick = agent.updates_per_tick * agent.batch_size
    ticks = -(-total_steps // steps_per_tick)
    if progress is not None:
        _check_left(progress, total_steps, ticks)
    ticks_per_chunk = (
        progress["ticks_per_chunk"]
        if progress
        else _chunk_size(ticks, steps_per_tick, frames_per_tick)
    )

    def chunks(steps: int | None) -> int:
        return (
            0
            if steps == 0
            else max(1, round((steps or total_steps / 10) / (steps_per_tick * ticks_per_chunk)))
        )

    return Plan(
        ticks_per_chunk=ticks_per_chunk,
        num_chunks=-(-ticks // ticks_per_chunk),
        chunks_per_eval=chunks(eval_every),
        chunks_per_checkpoint=chunks(checkpoint_every),
        steps_per_tick=steps_per_tick,
    )


def _too_long(total_steps: int) -> ValueError:
    return ValueError(
        f"total_steps={total_steps:,}: write num_envs={-(-total_steps // MAX_ENV_STEPS)} or fewer steps"
    )


def _check_left(progress: dict[str, Any], total_steps: int, ticks: int) -> None:
    if progress["env_steps"] >= total_steps and not _only_evaluations_lack(progress, ticks):
        raise ValueError(
            f"total_steps={total_steps}: the run is complete ({progress['env_steps']} steps): write a larger "
            "total_steps to continue"
        )


def _only_evaluations_lack(progress: dict[str, Any], ticks: int) -> bool:
    """Check whether a run of ``ticks`` was stopped after its last tick, before all evaluations."""
    whole_run = -(-ticks // progress["ticks_per_chunk"]) * progress["ticks_per_chunk"]
    return bool(progress.get("snapshots")) and progress["ticks"] == whole_run


def ticks_within(
    steps_per_tick: int,
    frames_per_tick: int,
    *,
    max_steps: int = MAX_CHUNK_STEPS,
    max_frames: int = MAX_CHUNK_FRAMES,
) -> int:
    """Compute the ticks of a chunk that respects both limits.

    Args:
        steps_per_tick: Environment steps of a tick.
        frames_per_tick: Updates times batch size of a tick.
        max_steps: Limit of environment steps.
        max_frames: Limit of updates times batch size.

    Returns:
        Ticks, at least 1.
    """
    return max(1, min(max_steps // steps_per_tick, max_frames // frames_per_tick))


def _chunk_size(ticks: int, steps_per_tick: int, frames_per_tick: int) -> int:
    cap = ticks_within(steps_per_tick, frames_per_tick)
    largest = min(cap, max(1, -(-ticks // (CHUNKS_PER_RUN // 2))))
    smallest = min(largest, max(1, ticks // (CHUNKS_PER_RUN * 3 // 2)))
    wanted = ticks / CHUNKS_PER_RUN
    return min(range(smallest, largest + 1), key=lambda n: (-(-ticks // n) * n, abs(n - wanted)))


def check_host(env: VecEnv | HostEnv, num_seeds: int, debug: bool) -> None:
    """Check the number of seeds of host environments, and that ``debug`` is not used with them.

    Args:
        env: Environment.
        num_seeds: Number of seeds of the run.
        debug: Whether a failing tick shall be repeated, which host environments do not support.

    Raises:
        ValueError: The environments serve another number of seeds, or ``debug`` is true.
    """
    if isinstance(env, HostEnv) and debug:
        raise ValueError(
            "debug=true repeats a tick, which environments on the host do not support: leave it out"
        )
    if isinstance(env, HostEnv) and env.num_seeds != num_seeds:
        raise ValueError(
            f"num_seeds={num_seeds}: these environments on the host serve {env.num_seeds}: write "
            f"make_env(..., num_seeds={num_seeds})"
        )


def check_processes(env: VecEnv | HostEnv, settings: Mapping[str, Any]) -> None:
    """Check that all processes of a run have the same settings, and that these support several
    processes.

    Args:
        env: Environment.
        settings: Settings of this process.

    Raises:
        ValueError: A setting differs, or is supported in one process only.
    """
    hosts.check_agreement(settings)
    if settings["debug"]:
        hosts.require_one("debug=true", jax.process_count())
    if isinstance(env, HostEnv):
        hosts.require_one(
            f"environment {env.spec.name}, which steps on the host,", jax.process_count()
        )


def check_share(env: VecEnv | HostEnv, asked: EvalOptions) -> None:
    """Check that the environments of training can play the evaluations.

    Args:
        env: Environment.
        asked: Options of evaluation, with ``share``.

    Raises:
        ValueError: The environment is compiled or has no fixed order, or another option needs other
            environments.
    """
    if not isinstance(env, HostEnv):
        raise ValueError(
            "eval.share=true is for environments on the host, since others are copied: leave it out"
        )
    if asked.beside:
        raise ValueError(
            "eval.share=true evaluates between chunks: leave eval.beside out, or write eval.beside=false"
        )
    if asked.picture:
        raise ValueError(
            "eval.share=true makes no other environment, which eval.picture=true needs: leave one out"
        )
    if env.bridge != "host" or env.recv_any is not None:
        one = f"pool.bridge={env.bridge}" if env.bridge != "host" else "pool.order=arrival"
        raise ValueError(f"eval.share=true does not support {one}: leave it out")


class JobOptions(NamedTuple):
    """How a job is trained; the fields mean the same as in `jaxrl_fast.learn`.

    Attributes:
        total_steps: Environment steps per seed.
        seed: Seed of the run.
        num_seeds: Number of seeds.
        graph: Options of the graph.
        placement: Name of a placement, or a function that makes one.
        devices: Number of devices, or None.
        eval: Options of evaluation.
        checkpoints: Options of checkpoints.
        resume: Checkpoint or folder of a run, or None.
        debug: Find the operation that computed a non-finite number.
        data: Recorded episodes, or their place; None for none.
        online_steps: Last of ``total_steps``, in which the environment is stepped, with ``data``.
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
    data: Dataset | str | Path | None = None
    online_steps: int = 0


class Job(NamedTuple):
    """A run before it starts.

    Attributes:
        env: Environment.
        algorithm: Algorithm.
        agent: Algorithm bound to the environment.
        graph: Graph made of them.
        placement: Placement of the graph.
        program: Program of a chunk.
        plan: Plan of the chunks.
        keys: One PRNG key per seed, ``[S]``.
        failures: Errors that host environments raised in a callback.
        options: Options of the job.
        settings: Settings that a checkpoint stores.
        resumed: Checkpoint that is resumed, or None.
        store: Store of compiled programs, or None.
        config: Content of ``config.yaml``, or "" if another function writes it or none can repeat
            the job.
    """

    env: VecEnv | HostEnv
    algorithm: AnyAlgorithm
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
    config: str = ""

    @property
    def num_seeds(self) -> int:
        """Number of seeds."""
        return len(self.keys)


def make_job(
    env: VecEnv | HostEnv,
    algorithm: AnyAlgorithm,
    options: JobOptions,
    settings: Mapping[str, Any] | None = None,
    keep: FindStore = lambda program: None,
) -> Job:
    """Assemble a run, after all checks that are possible before compilation.

    Args:
        env: Environment.
        algorithm: Algorithm.
        options: Options of the job.
        settings: Settings that a resumed run must have in common with this one; None takes them
            from the arguments.
        keep: Returns the store of compiled programs for later starts, or None.

    Returns:
        The job.

    Raises:
        ValueError: Arguments contradict each other, or the checkpoint.
    """
    require_vectorized(env, algorithm)
    total_steps, num_seeds = options.total_steps, options.num_seeds
    algorithm, asked = with_own_data(algorithm, options, env.spec)
    agent = bind(algorithm, env.spec, env.num_envs, asked.shards)
    config = config_of_job(env, algorithm, options) if settings is None else ""
    settings = settings_of_job(env, algorithm, agent, options) if settings is None else settings
    if not hosts.is_alone():
        check_processes(env, {**settings, "resume": options.resume, "debug": options.debug})
    vec_env, failures = (
        (env, []) if isinstance(env, VecEnv) and not options.eval.share else bridge_of(env, options)
    )
    resumed = None if options.resume is None else resuming.read(options.resume, settings, algorithm)
    graph_options = asked._replace(
        total_steps=total_steps,
        empty_until=resumed.empty_until if resumed else 0,
        joined=starts_kernels_singly(jax.default_backend()),
    )
    options = options._replace(graph=graph_options)
    graph = graph_of(vec_env, algorithm, agent, options.graph)
    progress, every = resumed and resumed.progress, options.eval.every
    plan = plan_run(env, agent, total_steps, every, options.checkpoints.every, progress)
    placed = place(graph, options.placement, options.devices)
    if isinstance(env, HostEnv):
        check_placement(env, placed)
    program = programs.compile(graph, placed, plan.ticks_per_chunk, num_seeds)
    keys = jax.random.split(jax.random.key(options.seed), num_seeds)
    store = keep((options.graph, placed, plan.ticks_per_chunk, num_seeds))
    return Job(
        env=env,
        algorithm=algorithm,
        agent=agent,
        graph=graph,
        placement=placed,
        program=program,
        plan=plan,
        keys=keys,
        failures=failures,
        options=options,
        settings=settings,
        resumed=resumed,
        store=store,
        config=config,
    )


def with_own_data(
    algorithm: AnyAlgorithm, options: JobOptions, spec: EnvSpec
) -> tuple[AnyAlgorithm, GraphOptions]:
    """Let an algorithm learn from the data of its run, if there are any.

    Args:
        algorithm: Algorithm.
        options: Options of the job.
        spec: Environment of the run.

    Returns:
        The algorithm, and the options of the graph.

    Raises:
        ValueError: The data are missing, damaged or of another environment.
    """
    if algorithm.needs_data or options.data is not None or options.online_steps:
        return from_data(algorithm, options, spec)
    return algorithm, options.graph


def bridge_of(env: VecEnv | HostEnv, options: JobOptions) -> Bridge:
    """Check host environments, and convert them for the graph.

    Args:
        env: Host environment.
        options: Options of the job.

    Returns:
        The environment for the graph, and the list of errors raised in callbacks.
    """
    check_host(env, options.num_seeds, options.debug)
    if options.eval.share:
        check_share(env, options.eval)
    return in_graph(env)


LENGTHS = "total_steps", "online_steps"
"""Settings that a checkpoint names though a resumed run may change them."""


def settings_of_job(
    env: VecEnv | HostEnv, algorithm: AnyAlgorithm, agent: BoundAgent, options: JobOptions
) -> dict[str, Any]:
    """Collect the settings of a job that was not made from a command line.

    Args:
        env: Environment.
        algorithm: Algorithm.
        agent: Algorithm bound to the environment.
        options: Options of the job.

    Returns:
        Settings by key of the command line.
    """
    asked = {
        **options.graph._asdict(),
        **options._asdict(),
        "data": options.data and str(options.data),
    }
    keys = {name: key for name, key in run_keys().items() if key.to and key.is_stored(asked[name])}
    named = {n: asked[n] for n, key in keys.items() if key.resume == "fixed" or n in LENGTHS}
    bound = [
        "rollout_length",
        "updates_per_tick",
        "batch_size",
        "normalize_observations",
        "normalize_rewards",
    ]
    own = {
        **algorithm.options,
        **algorithm.hyper._asdict(),
        **{name: getattr(agent, name) for name in bound},
    }
    made = {
        "env": env.spec.name,
        "env.arguments": env.spec.arguments,
        "num_envs": env.num_envs,
        "algo": algorithm.name,
    }
    return {**made, **named, **{f"algo.{key}": plain(value) for key, value in own.items()}}


NAMELESS = "<locals>", "<lambda>", "__main__.", "function from "
"""Parts of the paths of functions that another process cannot import, and of schedules from Python.
"""


def config_of_job(env: VecEnv | HostEnv, algorithm: AnyAlgorithm, options: JobOptions) -> str:
    """Write the file with which the command repeats a job that was not made from a command line.

    Args:
        env: Environment.
        algorithm: Algorithm.
        options: Options of the job.

    Returns:
        YAML; empty if `jaxrl_fast.make_env` did not make the environment, the algorithm is not a
        declared one, or a part has no name.
    """
    of_env, declared = made_by(env), declaration_of(algorithm)
    if (
        of_env is None
        or declared is None
        or replaced_functions(declared)
        or not isinstance(options.placement, str)
        or isinstance(options.data, Dataset)
    ):
        return ""
    keys, own, more = run_keys(), settings_of(declared), _words(of_env.arguments["options"])
    asked = {
        **options.graph._asdict(),
        **options._asdict(),
        "precision": own.pop("precision", "f32"),
    }
    tree = {
        "env": {
            "name": of_env.arguments["name"],
            **{n: x for n, x in more.items() if f"env.{n}" in keys},
        },
        "algo": {**name_of(declared), **own, **algorithm.sizes(env.num_envs)},
        **dict(
            eval=asdict(options.eval),
            checkpoint=asdict(options.checkpoints),
            pool=more.pop("pool", {}),
        ),
        **{n: asked[n] for n, key in keys.items() if n in asked and key.is_stored(asked[n])},
        **dict(placement=options.placement, num_envs=of_env.arguments["num_envs"], tuned=False),
    }
    tree["env"]["options"] = {n: x for n, x in more.items() if n not in (*tree["env"], "num_seeds")}
    with suppress(yaml.YAMLError):
        text = yaml.safe_dump(tree, sort_keys=False)
        return "" if any(part in text for part in NAMELESS) else text
    return ""


def name_of(declared: DeclaredAlgorithm) -> dict[str, str]:
    """Return the keys that select a declared algorithm.

    Args:
        declared: Algorithm.

    Returns:
        ``name``, and ``make`` of a user's, without ``algo.``.
    """
    cls = type(declared)
    if cls.__module__.startswith("jaxrl_fast."):
        return {"name": declared.name}
    return {"name": "custom", "make": f"{cls.__module__}.{cls.__qualname__}"}


def settings_of(declared: DeclaredAlgorithm) -> dict[str, Any]:
    """Return the settings of a declared algorithm, for a file.

    Args:
        declared: Algorithm.

    Returns:
        Numbers and texts by field, without functions such as losses.
    """
    hints = types_of(type(declared))
    return {n: plain(getattr(declared, n)) for n, hint in hints.items() if not is_function(hint)}


def _words(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Convert arguments for a file, except functions that it cannot name."""
    return {
        name: value if callable(value) and name not in CODE else plain(value)
        for name, value in arguments.items()
    }
