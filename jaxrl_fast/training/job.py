"""A job: the parts of a run, checked before anything is compiled, and its chunks."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from jaxrl_fast.envs.env import VecEnv
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.learning.acting import BoundAgent
from jaxrl_fast.learning.algorithm import AnyAlgorithm
from jaxrl_fast.learning.run_graph import GraphOptions
from jaxrl_fast.runtime import hosts
from jaxrl_fast.runtime import program as programs
from jaxrl_fast.runtime.graph import Graph
from jaxrl_fast.runtime.placements import Placement
from jaxrl_fast.runtime.program_store import Store
from jaxrl_fast.settings.run import Run
from jaxrl_fast.settings.schema import EvalOptions
from jaxrl_fast.training import resuming

CHUNKS_PER_RUN = 100
MAX_CHUNK_STEPS = 32_768
"""Largest number of environment steps in a chunk, unless one tick has more. Signals wait for the
end of a chunk.
"""
MAX_CHUNK_FRAMES = 524_288
"""Largest number of updates times batch size in a chunk, unless one tick has more."""


MAX_ENV_STEPS = 2**30
"""Most steps of one environment; counters of 32 bits hold twice as many (`replay.images` counts
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
        run: Settings of the run.
        graph_options: Options of its graph.
        graph_with: Builds its graph with other options.
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
    run: Run
    graph_options: GraphOptions
    graph_with: Callable[[GraphOptions], Graph]
    settings: Mapping[str, Any]
    resumed: resuming.Resumed | None = None
    store: Store | None = None
    config: str = ""

    @property
    def num_seeds(self) -> int:
        """Number of seeds."""
        return len(self.keys)
