"""Minibatches out of logical shards.

The data that updates learn from has a leading axis of ``G`` *logical shards*. ``G`` depends on ``shards``, the number
of environments and the batch size, never on the number of devices, and every minibatch takes the same share from each
shard. So a batch is the same set of samples however the shards are spread over devices, and no data moves between
devices to make it.
"""

from collections.abc import Callable
from math import gcd
from typing import Any, NamedTuple

import jax

from jaxrl_fast.algorithms.interface import Learned
from jaxrl_fast.core import Batches, Metrics, PyTree, Transition
from jaxrl_fast.experience.scale import Statistics

MAX_SHARDS = 8
"""The most logical shards unless ``shards`` says otherwise, so the most devices that data is divided among."""


MakeBatches = Callable[
    [PyTree, Transition, dict[str, Learned], Statistics | None, Any, jax.Array], tuple[PyTree, Batches]
]
"""(state of this `Experience`; rollout ``[T, E, ...]`` as sampled, not normalized; learned of the parts that it
``reads``; statistics for normalization, None without; hyper; key) -> (next state, the batches of a tick)."""


InitStorage = Callable[[Any], PyTree]
"""(shapes and dtypes of a rollout, ``[T, E, ...]``; None unless `Experience.refills`) -> the state that stores
experience, before the first rollout."""


StorageMetrics = Callable[[PyTree], Metrics]
"""(state) -> scalars by name, to report on stored experience."""


EndEpisodes = Callable[[PyTree], PyTree]
"""Ends the stored episodes of a state as truncated, since the next rollout does not continue them; its leaves have the
seeds first if there are several."""


LearnPriorities = Callable[[PyTree, PyTree], PyTree]
"""(state, `prioritized.Feedback`) -> the state with new priorities of the sequences that were learned from."""


class Experience(NamedTuple):
    """How rollouts become minibatches.

    - ``init``, ``step``: the state that it stores, and the batches of a tick.
    - ``take(data, index [G, B / G])``: makes one minibatch, as `take_batch`, of these sequences of `Batches`' data:
      `OnPolicyBatch` or `ReplayBatch`, leaves ``[L, B, ...]``.
    - ``shards``: the number of logical shards of its batches, ``G``.
    - ``reads``: the parts whose `Learned` it needs.
    - ``state_axes``: the axis of the logical shards in the state's leaves (a prefix tree; None: not divided).
    - ``metrics``: what to report of the state.
    - ``end_episodes``: marks a break between the last rollout and the next.
    - ``refills``: whether training may go on from an empty state, as with a replay buffer.
    - ``prioritized_by``: the part whose priorities decide what is sampled, None without such.
    - ``learn_priorities``: takes these into the state.
    """

    init: InitStorage
    step: MakeBatches
    take: Callable[[PyTree, jax.Array], Any]
    shards: int
    reads: tuple[str, ...] = ()
    state_axes: Any = None
    metrics: StorageMetrics = lambda state: {}
    end_episodes: EndEpisodes = lambda state: state
    refills: bool = False
    prioritized_by: str | None = None
    learn_priorities: LearnPriorities = lambda state, feedback: state


def logical_shards(num_envs: int, batch_size: int, most: int = MAX_SHARDS) -> int:
    """``G``: the number of logical shards that both sizes divide into, a divisor of ``most``."""
    return gcd(most, num_envs, batch_size)


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
