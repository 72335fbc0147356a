"""Priorities that the updates send back to replay, by the positions of the sequences in it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import Batches


class Places(NamedTuple):
    """Positions of windows in a buffer, leaves ``[G, N]``.

    Attributes:
        number: Number of the first step, counted from 1 (0 for no window).
        env: Environment in the shard.
    """

    number: jax.Array
    env: jax.Array


class Feedback(NamedTuple):
    """Priorities of a tick's sequences, computed by the updates; leaves
    ``[learners, G / learners, N]``.

    Attributes:
        places: Position of each sequence in replay.
        priority: Priority of each sequence; not finite if no update computed one.
    """

    places: Places
    priority: jax.Array


def empty_feedback(shape: tuple[int, ...]) -> Feedback:
    """Return the feedback of no sequence.

    Args:
        shape: Shape of the leaves.

    Returns:
        Zeros.
    """
    return Feedback(
        Places(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.int32)),
        jnp.zeros(shape, jnp.float32),
    )


def make_feedback(batches: Batches, priorities: jax.Array) -> Feedback:
    """Collect the priorities of a tick's updates by sequence.

    Args:
        batches: Batches of the tick.
        priorities: Priorities of each update's samples, ``[K, B]``.

    Returns:
        Feedback with leaves ``[G, N]``.
    """
    none = jnp.full(batches.places.number.shape, -jnp.inf, priorities.dtype)
    updates = batches.indices, priorities.reshape(batches.indices.shape)
    index, values = (x.swapaxes(0, 1).reshape(len(none), -1) for x in updates)
    return Feedback(batches.places, put_priorities(none, index, values))


def add_feedback(
    feedback: Feedback, batches: Batches, index: jax.Array, priorities: jax.Array, round: jax.Array
) -> Feedback:
    """Add the priorities of one update to the tick's feedback.

    Args:
        feedback: Feedback of the updates before; ignored in round 0.
        batches: Batches of the tick.
        index: Sequences of this update, ``[G, B / G]``.
        priorities: Priorities of its samples, ``[B]``.
        round: Number of this update in the tick, from 0.

    Returns:
        The feedback of all updates so far.
    """
    before = jnp.where(round == 0, -jnp.inf, feedback.priority)
    return Feedback(batches.places, put_priorities(before, index, priorities))


def put_priorities(by_sequence: jax.Array, index: jax.Array, priorities: jax.Array) -> jax.Array:
    """Write the priorities of sampled sequences, as the maximum where a sequence occurs twice.

    Args:
        by_sequence: Priorities by sequence, ``[G, N]``.
        index: Sequences ``[G, n]``.
        priorities: New priorities, ``[G, n]`` or flat.

    Returns:
        Priorities by sequence, ``[G, N]``.
    """
    shard = jnp.arange(by_sequence.shape[0])[:, None]
    return by_sequence.at[shard, index].max(priorities.reshape(index.shape))
