"""The types that every room shares.

Axis letters, the same everywhere: ``T`` time, ``E`` environments, ``B`` batch, ``K`` gradient updates,
``S`` seeds, ``L`` steps of a training sequence. Arrays are time-major: ``[T, E, ...]``.
Observations are pytrees: one array in the common case, a dictionary where an ``action_mask`` rides along.
"""

import zlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

__version__ = "0.1.0"

PyTree = Any
Metrics = dict[str, jax.Array]


class Discrete(NamedTuple):
    """Actions ``0 .. num_actions - 1`` (int32 scalars)."""

    num_actions: int


class Box(NamedTuple):
    """Real actions between ``low`` and ``high``, both float32 ``[*action_shape]`` and finite."""

    low: np.ndarray
    high: np.ndarray


class EnvSpec(NamedTuple):
    """What an algorithm may know of an environment before it runs.

    ``obs`` is a pytree of ``jax.ShapeDtypeStruct``; ``max_episode_steps`` is the time limit that
    ``vectorize`` enforces (``None``: no limit). ``frame_stack``: how many of the last observations, then images, the
    networks see at once (0 and 1: the last one); `experience.view` makes the stacks.
    """

    name: str
    obs: PyTree
    action: Discrete | Box
    max_episode_steps: int | None = None
    frame_stack: int = 0


class EpisodeTotals(NamedTuple):
    """Undiscounted return and number of steps of an episode, up to and including this step."""

    returns: jax.Array
    length: jax.Array


class Timestep(NamedTuple):
    """What one step of an environment gives back.

    ``obs`` is what the policy sees next, after any reset; ``next_obs`` is the true successor, the one to
    bootstrap from. ``terminated`` (the task ended: no future reward) and ``truncated`` (only the recording
    ended) are never merged. ``episode`` is filled by ``vectorize``; a world leaves it empty.
    """

    obs: PyTree
    next_obs: PyTree
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    episode: Any = ()


class Extras(NamedTuple):
    """What is remembered of a decision: what the algorithm asked for, by name, and the memory of its networks before
    it, by part."""

    decision: dict[str, jax.Array]
    memory: dict[str, PyTree]


class Transition(NamedTuple):
    """One decision and what came of it; a *rollout* is a `Transition` with leaves ``[T, E, ...]``.

    ``first`` marks the first step of an episode; ``extras`` are `Extras`.
    """

    obs: PyTree
    action: jax.Array
    reward: jax.Array
    next_obs: PyTree
    terminated: jax.Array
    truncated: jax.Array
    first: jax.Array
    extras: PyTree


class Batches(NamedTuple):
    """The minibatches of ``K`` gradient updates.

    ``data`` leaves are ``[G, N, ...]``: ``N`` sequences in each of ``G`` logical shards. ``indices`` is int32
    ``[K, G, B / G]``: the sequences of each update, the same share from every shard. ``places``, with prioritized
    replay: where the sequences stand in it, leaves ``[G, N]``; else ``()``.
    """

    data: PyTree
    indices: jax.Array
    places: PyTree = ()


def stable_hash(name: str) -> int:
    """The same number for a name in every process."""
    return zlib.crc32(name.encode())


def select(mask: jax.Array, on_true: PyTree, on_false: PyTree) -> PyTree:
    """Choose whole elements of the leading axis: ``mask`` ``[E]``, leaves ``[E, ...]``."""

    def choose(a: jax.Array, b: jax.Array) -> jax.Array:
        b = jnp.asarray(b)
        return jnp.where(mask.reshape(mask.shape + (1,) * (b.ndim - mask.ndim)), jnp.asarray(a, b.dtype), b)

    return jax.tree.map(choose, on_true, on_false)
