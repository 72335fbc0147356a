"""How a run is cut into chunks: pieces of equal size, each one call of a compiled program."""

from typing import Any, NamedTuple

from jaxrl_fast.environments.env import VecEnv
from jaxrl_fast.environments.host_env import HostEnv
from jaxrl_fast.experience.binding import Bound

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
    agent: Bound,
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
