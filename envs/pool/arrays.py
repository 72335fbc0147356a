"""The arrays that a pool's processes share: a row for each environment. No JAX: the workers import this."""

import math
from typing import Any, NamedTuple

import numpy as np

from envs.pool.codec import ActionCodec, ObsCodec

ALIGNMENT_BYTES = 64


def facts_dtype(num_agents: int | None) -> np.dtype:
    """The record of a step's results, but for observations; of several agents each has a reward."""
    own = () if num_agents is None else (num_agents,)
    return np.dtype(
        [
            ("reward", np.float32, own),
            ("episode_return", np.float32),
            ("episode_length", np.int32),
            ("terminated", bool),
            ("truncated", bool),
        ],
        align=True,
    )


class Arrays(NamedTuple):
    """Shared arrays with a row for each of ``E`` environments.

    - ``obs``: what the policy sees next.
    - ``final_obs``: the last observation of an episode, valid only where one has just ended.
    - ``action``: what the next step takes.
    - ``facts``: all other results of a step, one record a row, so that they are copied at once. Views of its fields:
      ``reward``, ``terminated``, ``truncated``, ``episode_return``, ``episode_length`` (as in `HostStep`).
    - ``seed``: for `Stepper.reset`.
    """

    obs: np.ndarray
    final_obs: np.ndarray
    action: np.ndarray
    facts: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    episode_return: np.ndarray
    episode_length: np.ndarray
    seed: np.ndarray


def array_fields(
    num_envs: int, observe: ObsCodec, act: ActionCodec, num_agents: int | None = None
) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shapes and dtypes of the arrays that `place` allocates, by name."""
    obs, scalar = ((num_envs, *observe.shape), observe.dtype), (num_envs,)
    return {
        "obs": obs,
        "final_obs": obs,
        "action": ((num_envs, *act.shape), act.dtype),
        "facts": (scalar, facts_dtype(num_agents)),
        "seed": (scalar, np.dtype(np.int64)),
    }


def size_bytes(fields: dict[str, tuple[tuple[int, ...], np.dtype]]) -> int:
    """The bytes that `place` needs."""
    return sum(_aligned_bytes(shape, dtype) for shape, dtype in fields.values())


def place(fields: dict[str, tuple[tuple[int, ...], np.dtype]], buffer: Any) -> Arrays:
    """The arrays of `array_fields` one after another in ``buffer``, each beginning a cache line of its own."""
    placed, offset = {}, 0
    for name, (shape, dtype) in fields.items():
        placed[name] = np.ndarray(shape, dtype, buffer, offset)
        offset += _aligned_bytes(shape, dtype)
    facts = placed["facts"]
    return Arrays(**placed, **{name: facts[name] for name in facts.dtype.names or ()})


def _aligned_bytes(shape: tuple[int, ...], dtype: np.dtype) -> int:
    return -(-math.prod(shape) * dtype.itemsize // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
