"""Minibatches out of logical shards.

What is learned from keeps a leading axis of ``G`` *logical shards*. ``G`` depends on the number of environments and the
batch size, never on the number of devices, and every minibatch takes the same share from each shard; so a batch is the
same set of samples however the shards are spread over devices, and drawing it moves nothing between them.
"""

from collections.abc import Callable
from math import gcd
from typing import Any, NamedTuple, Protocol

import jax

from jaxrl_fast.algorithms.interface import Learned
from jaxrl_fast.core import Batches, Metrics, PyTree, Transition
from jaxrl_fast.experience.scale import Statistics

MAX_SHARDS = 8


class MakeBatches(Protocol):
    """Takes in a rollout and gives the batches of a tick."""

    def __call__(
        self,
        state: PyTree,
        rollout: Transition,
        learned: dict[str, Learned],
        statistics: Statistics | None,
        hyper: Any,
        key: jax.Array,
    ) -> tuple[PyTree, Batches]:
        """``rollout`` ``[T, E, ...]`` as the environments gave it; ``learned``: that of the parts it ``reads``."""


class LearnPriorities(Protocol):
    """Takes in what learners have found of the sequences that they were given."""

    def __call__(self, state: PyTree, feedback: PyTree, /) -> PyTree:
        """``feedback``: `prioritized.Feedback`. Returns the state."""


class Experience(NamedTuple):
    """How rollouts become minibatches.

    ``init(example) -> state`` with ``example`` the shapes of a rollout; ``step`` as `MakeBatches`; ``reads``: the parts
    that it needs. ``shards`` is the number of logical shards of its batches, ``state_axes`` the axis of the state's
    leaves that counts them (a prefix tree; None: kept whole). ``take(data, index)`` makes one minibatch, as
    `take_batch`; ``metrics(state)`` says what a person should know of the state; ``end_episodes(state)``: the next
    rollout does not follow the last. ``refills``: whether the state fills again by itself, as a replay buffer does.
    ``prioritized_by``: the part whose priorities decide what is sampled, None without such; the state takes them in by
    ``learn_priorities(state, feedback)``.
    """

    init: Callable[[Transition], PyTree]
    step: MakeBatches
    take: Callable[[PyTree, jax.Array], Any]
    shards: int
    reads: tuple[str, ...] = ()
    state_axes: Any = None
    metrics: Callable[[PyTree], Metrics] = lambda state: {}
    end_episodes: Callable[[PyTree], PyTree] = lambda state: state
    refills: bool = False
    prioritized_by: str | None = None
    learn_priorities: LearnPriorities = lambda state, feedback: state


def logical_shards(num_envs: int, batch_size: int) -> int:
    """``G``: how many logical shards both sizes divide into."""
    return gcd(MAX_SHARDS, num_envs, batch_size)


def by_shard(leaf: jax.Array, shards: int) -> jax.Array:
    """``[T, E, ...]`` as ``[G, T, E / G, ...]``."""
    steps, num_envs, *rest = leaf.shape
    return leaf.reshape(steps, shards, num_envs // shards, *rest).swapaxes(0, 1)


def take_batch(data: PyTree, index: jax.Array) -> PyTree:
    """The minibatch that ``index`` ``[G, B / G]`` names, time-major: leaves ``[L, B, ...]``."""

    def take(leaf: jax.Array) -> jax.Array:
        rows = jax.vmap(lambda shard, i: shard[i])(leaf, index)
        return rows.reshape(-1, *rows.shape[2:]).swapaxes(0, 1)

    return jax.tree.map(take, data)
