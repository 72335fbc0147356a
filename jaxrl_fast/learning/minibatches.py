"""Minibatches out of logical shards, and those of on-policy data: epochs over one rollout.

The data that updates learn from has a leading axis of ``G`` *logical shards*. ``G`` depends on ``shards``, the number
of environments and the batch size, never on the number of devices, and every minibatch takes the same share from each
shard. So a batch is the same set of samples however the shards are spread over devices, and no data moves between
devices to make it.
"""

from collections.abc import Callable
from math import gcd
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import Batches, Metrics, PyTree, Transition, over_two_axes
from jaxrl_fast.learning.algorithm import Agent, Learned, OnPolicy, OnPolicyBatch, Peers, Values, apply_apart
from jaxrl_fast.networks.network import Network
from jaxrl_fast.numerics.normalization import Statistics, scale_experience

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
"""(state, `prioritized_replay.Feedback`) -> the state with new priorities of the sequences that were learned from."""


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


def epoch_shards(num_envs: int, sequences_per_env: int, num_minibatches: int, most: int = MAX_SHARDS) -> int:
    """``G`` of `shuffled_epochs`."""
    return logical_shards(num_envs, num_envs * sequences_per_env // num_minibatches, most)


def shuffled_epochs(
    rollout: PyTree, key: jax.Array, data: OnPolicy, num_envs: int, max_shards: int = MAX_SHARDS
) -> Batches:
    """Cut one rollout, leaves ``[T, E, ...]``, into sequences and shuffle them for each epoch.

    The sequences' leaves are ``[G, N, L, ...]``. Every epoch visits each sequence once; a minibatch takes
    ``N / num_minibatches`` of each logical shard's own sequences.
    """
    length = data.sequence_length or 1
    per_env = jax.tree.leaves(rollout)[0].shape[0] // length
    shards = epoch_shards(num_envs, per_env, data.num_minibatches, max_shards)
    sequences = per_env * num_envs // shards

    keys = jax.vmap(lambda k: jax.random.split(k, shards))(jax.random.split(key, data.num_epochs))
    order = over_two_axes(lambda k: random_order(k, sequences), keys)
    index = order.reshape(data.num_epochs, shards, data.num_minibatches, -1).swapaxes(1, 2)
    return Batches(cut(rollout, shards, length), index.reshape(data.num_epochs * data.num_minibatches, shards, -1))


def cut(data: PyTree, shards: int, sequence_length: int) -> PyTree:
    """Leaves ``[T, E, ...]`` as sequences ``[G, N, L, ...]``."""

    def cut_leaf(leaf: jax.Array) -> jax.Array:
        steps, num_envs, *rest = leaf.shape
        leaf = leaf.reshape(steps // sequence_length, sequence_length, shards, num_envs // shards, *rest)
        order = (2, 0, 3, 1, *range(4, leaf.ndim))
        return leaf.transpose(order).reshape(shards, -1, sequence_length, *rest)

    return jax.tree.map(cut_leaf, data)


def random_order(key: jax.Array, size: int) -> jax.Array:
    """The numbers ``0 .. size - 1`` (int32) in random order.

    Random bits with the number in their low bits are sorted: one array, which XLA sorts 6 to 12 times faster on a CPU
    than the pairs of `jax.random.permutation`. Numbers whose random bits agree, one pair in ``2^32 / size``, keep
    their order.
    """
    low = max(1, (size - 1).bit_length())
    words = (jax.random.bits(key, (size,), jnp.uint32) << low) | jnp.arange(size, dtype=jnp.uint32)
    return (jnp.sort(words) & jnp.uint32(2**low - 1)).astype(jnp.int32)


def on_policy_experience(agent: Agent, data: OnPolicy, num_envs: int, max_shards: int = MAX_SHARDS) -> Experience:
    """The batches of `OnPolicy`, in at most ``max_shards`` logical shards."""

    def step(
        state: PyTree, rollout: Transition, learned: Peers, statistics: Statistics | None, hyper: Any, key: jax.Array
    ) -> tuple[PyTree, Batches]:
        scaled = scale_experience(rollout, statistics, hyper.reward_scale, agent.normalize_rewards, agent.max_return)
        batch = make_batch(data, scaled, values_of(agent, data, scaled, learned), hyper)
        return state, epochs_of(data, batch, scaled.extras.memory, key, num_envs, max_shards)

    shards = shards_of(agent, data, num_envs, max_shards)
    reads = (data.critic,) if data.targets is not None else ()
    return Experience(lambda example: (), step, take_batch, shards, reads, state_axes=0)


def shards_of(agent: Agent, data: OnPolicy, num_envs: int, max_shards: int) -> int:
    """The number of logical shards of on-policy batches."""
    assert data.sequence_length is not None  # `bind` has set it
    return epoch_shards(num_envs, agent.rollout_length // data.sequence_length, data.num_minibatches, max_shards)


def epochs_of(
    data: OnPolicy, batch: OnPolicyBatch, memory: PyTree, key: jax.Array, num_envs: int, max_shards: int
) -> Batches:
    """The minibatches of all epochs, of a rollout's ``batch`` ``[T, E, ...]`` and the memory before each step."""
    shuffled = shuffled_epochs(batch, key, data, num_envs, max_shards)
    starts = cut(jax.tree.map(lambda x: x[:: data.sequence_length], memory), shuffled.indices.shape[1], 1)
    return shuffled._replace(data=shuffled.data._replace(memory=starts))


def make_batch(data: OnPolicy, rollout: Transition, values: Values | None, hyper: Any) -> OnPolicyBatch:
    """The data of a rollout that losses get, ``[T, E, ...]``; ``memory`` is filled in later."""
    batch = OnPolicyBatch(rollout.obs, rollout.action, rollout.first, {}, rollout.extras.decision, {})
    if data.targets is not None:
        assert values is not None
        return batch._replace(targets=data.targets(values, rollout, hyper))
    return batch._replace(transition=rollout._replace(obs=(), action=(), first=(), extras=()))  # type: ignore[arg-type]


def values_of(agent: Agent, data: OnPolicy, rollout: Transition, trained: Peers) -> Values | None:
    """The critic's values of a rollout, all with its params from before the tick's updates."""
    if data.targets is None:
        return None
    network, params, memory = critic_of(agent, data, rollout, trained)
    outputs, memory = apply_apart(network, params, memory, rollout.obs, rollout.first)
    following, _ = apply_apart(network, params, memory, rollout.next_obs, jnp.zeros_like(rollout.first))
    return Values(data.value(outputs, rollout.obs, rollout.action), data.value(following, rollout.next_obs, None))


def critic_of(agent: Agent, data: OnPolicy, rollout: Transition, trained: Peers) -> tuple[Network, PyTree, PyTree]:
    """The critic's network, its params, and its memory before every step of the rollout."""
    network = agent.parts[data.critic].networks[data.network]
    memory = rollout.extras.memory[data.critic] if network.recurrent else ()
    return network, trained[data.critic].params[data.network], memory
