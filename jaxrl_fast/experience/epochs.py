"""Epochs over one rollout: it is cut into sequences, which are shuffled for each epoch."""

import jax
import jax.numpy as jnp

from jaxrl_fast.algorithms.interface import OnPolicy
from jaxrl_fast.core import Batches, PyTree, over_two_axes
from jaxrl_fast.experience.minibatches import MAX_SHARDS, logical_shards


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
