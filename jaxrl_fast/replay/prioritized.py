"""Prioritized replay: sequences with large errors are sampled most often (Schaul et al., arXiv
1511.05952).

Each logical shard has separate priorities and gives the same share of every batch, so a batch does
not depend on how shards are placed on devices. Importance weights use the resulting probabilities.

A tick samples all its batches at once, from a sum tree that is rebuilt each time.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import Metrics, PyTree, Transition
from jaxrl_fast.learning.algorithm import Prioritize
from jaxrl_fast.learning.feedback import Feedback, Places
from jaxrl_fast.replay.buffers import Buffer, Sampled, Source, Window, window_range

SMALLEST = 1e-6
"""Added to every priority, so that every sequence can be sampled again."""


class Priorities(NamedTuple):
    """Priorities of a buffer's windows.

    Attributes:
        weight: Priorities raised to the exponent, of the window that begins at every stride,
            ``[G, slots, E / G]``.
        largest: Largest weight of a shard so far, which new steps get, ``[G]``.
    """

    weight: jax.Array
    largest: jax.Array


class PrioritizedState(NamedTuple):
    """A buffer with priorities.

    Attributes:
        buffer: State of the buffer.
        priorities: Priorities of its windows.
    """

    buffer: PyTree
    priorities: Priorities


class Chosen(NamedTuple):
    """Sampled windows, leaves ``[G, N]``.

    Attributes:
        start: First step of each window.
        env: Environment in the shard.
        weight: Factor of the loss, ``(probability · number of windows)^-correction``, at most 1
            (arXiv 1511.05952, section 3.4).
    """

    start: jax.Array
    env: jax.Array
    weight: jax.Array


def prioritized_source(
    buffer: Buffer, num_windows: int, prioritize: Prioritize, window: Window = Window()
) -> Source:
    """Build a source that samples windows in proportion to their priority, with replacement.

    Args:
        buffer: Buffer of steps.
        num_windows: Windows of each shard in a tick, ``N``.
        prioritize: Exponents.
        window: Shape of the windows.

    Returns:
        The source.
    """

    def init(example: Transition) -> PrioritizedState:
        return PrioritizedState(
            buffer.init(example),
            init_priorities(buffer.shards, buffer.slots, buffer.envs_per_shard),
        )

    def add(state: PrioritizedState, rollout: Transition) -> PrioritizedState:
        steps, _ = buffer.available(state.buffer)
        priorities = add_priorities(state.priorities, steps, rollout.reward.shape[0], window)
        return PrioritizedState(buffer.add(state.buffer, rollout), priorities)

    def sample(state: PrioritizedState, key: jax.Array, hyper: Any) -> Sampled:
        steps, usable = buffer.available(state.buffer)
        correction = prioritize.correction(hyper)
        chosen = choose_windows(
            state.priorities, key, steps, usable, num_windows, correction, window
        )
        windows = buffer.windows(state.buffer, chosen.start, chosen.env)
        return Sampled(windows, chosen.weight, Places(chosen.start + 1, chosen.env))

    def end_episodes(state: PrioritizedState) -> PrioritizedState:
        return state._replace(buffer=buffer.end_episodes(state.buffer))

    def learn_priorities(state: PrioritizedState, feedback: Feedback) -> PrioritizedState:
        steps, _ = buffer.available(state.buffer)
        feedback = jax.tree.map(lambda x: x.reshape(buffer.shards, -1), feedback)
        priorities = update_priorities(
            state.priorities, feedback, steps, prioritize.exponent, window
        )
        return state._replace(priorities=priorities)

    def metrics(state: PrioritizedState) -> Metrics:
        return buffer.metrics(state.buffer)

    axes = PrioritizedState(buffer.state_axes, 0)  # type: ignore[arg-type]  # axes
    return Source(init, add, sample, end_episodes, axes, metrics, learn_priorities)


def init_priorities(shards: int, slots: int, envs_per_shard: int) -> Priorities:
    """Return the priorities of an empty buffer.

    Args:
        shards: Number of logical shards.
        slots: Windows of each environment.
        envs_per_shard: Environments of each shard.

    Returns:
        Zero weights and largest weights of 1.
    """
    return Priorities(
        jnp.zeros((shards, slots, envs_per_shard), jnp.float32), jnp.ones(shards, jnp.float32)
    )


def add_priorities(
    priorities: Priorities, steps: jax.Array, length: int, window: Window
) -> Priorities:
    """Give new steps the largest priority so far.

    Args:
        priorities: Priorities.
        steps: Number of steps added before.
        length: Number of new steps.
        window: Shape of the windows.

    Returns:
        The new priorities.
    """
    slots = priorities.weight.shape[1]
    time = steps + jnp.arange(length)
    # out of bounds: dropped
    slot = jnp.where(time % window.stride == 0, time // window.stride % slots, slots)
    new = jnp.broadcast_to(priorities.largest[:, None, None], (len(priorities.largest), length, 1))
    return priorities._replace(weight=priorities.weight.at[:, slot].set(new, mode="drop"))


def update_priorities(
    priorities: Priorities, feedback: Feedback, steps: jax.Array, exponent: float, window: Window
) -> Priorities:
    """Replace the priorities of the sequences in past updates, duplicates by their maximum.

    Sequences that were overwritten since, and priorities that are not finite, are ignored.

    Args:
        priorities: Priorities.
        feedback: New priorities, leaves ``[G, n]``.
        steps: Number of steps ever added.
        exponent: Exponent of the priorities.
        window: Shape of the windows.

    Returns:
        The new priorities.
    """
    weight, largest = priorities
    slots, start = weight.shape[1], feedback.places.number - 1
    stored = (
        (start >= 0)
        & (start < steps)
        & (start // window.stride > (steps - 1) // window.stride - slots)
    )
    slot = jnp.where(
        stored & jnp.isfinite(feedback.priority), start // window.stride % slots, slots
    )
    new = (jnp.abs(feedback.priority) + SMALLEST) ** exponent
    shard = jnp.arange(len(largest))[:, None]
    cleared = weight.at[shard, slot, feedback.places.env].set(0.0, mode="drop")
    largest_new = jnp.max(jnp.where(slot < slots, new, 0.0), axis=1)
    return Priorities(
        cleared.at[shard, slot, feedback.places.env].max(new, mode="drop"),
        jnp.maximum(largest, largest_new),
    )


def choose_windows(
    priorities: Priorities,
    key: jax.Array,
    steps: jax.Array,
    usable: jax.Array,
    num_windows: int,
    correction: jax.Array | float,
    window: Window,
) -> Chosen:
    """Sample windows with probabilities in proportion to their priorities, with replacement.

    Args:
        priorities: Priorities.
        key: Random key.
        steps: Number of steps ever added.
        usable: Number of newest steps that can be sampled, a scalar or ``[G, 1]``.
        num_windows: Windows of each shard, ``N``.
        correction: Exponent of the importance weights, 0 to 1.
        window: Shape of the windows.

    Returns:
        The windows.
    """
    shards, slots, per_shard = priorities.weight.shape
    oldest, newest = window_range(steps, usable, window)
    last = (steps - 1) // window.stride
    number = last - (last - jnp.arange(slots)) % slots  # window in each slot, counted in strides
    there = jnp.broadcast_to(
        (number[None] >= jnp.maximum(oldest, 0)) & (number[None] <= newest), (shards, slots)
    )
    weight = jnp.where(there[..., None], priorities.weight, 0.0).reshape(shards, -1)
    levels = sum_tree(weight)
    total = levels[0]
    leaf = jax.vmap(descend)(levels, jax.random.uniform(key, (shards, num_windows)))
    probability = jnp.take_along_axis(weight, leaf, axis=1) / jnp.maximum(total, SMALLEST) / shards
    scaled = jnp.maximum(probability * jnp.sum(there) * per_shard, SMALLEST) ** -correction
    start = jnp.broadcast_to(number[None], (shards, slots))
    start = jnp.take_along_axis(start, leaf // per_shard, axis=1) * window.stride
    return Chosen(jnp.maximum(start, 0), leaf % per_shard, scaled / jnp.max(scaled))


def sum_tree(weight: jax.Array) -> list[jax.Array]:
    """Sum weights over 1, 2, 4 ... neighbors.

    Args:
        weight: Weights ``[G, M]``.

    Returns:
        Levels of the tree from the root: ``[G, 1]``, ``[G, 2]`` and so on.
    """
    size = 1 << (weight.shape[1] - 1).bit_length()
    levels = [jnp.pad(weight, ((0, 0), (0, size - weight.shape[1])))]
    while levels[0].shape[1] > 1:
        levels.insert(0, levels[0][:, 0::2] + levels[0][:, 1::2])
    return levels


def descend(levels: list[jax.Array], share: jax.Array) -> jax.Array:
    """Return the leaves at which the cumulative weight reaches a share of the total.

    Args:
        levels: Levels of one shard's tree from the root.
        share: Shares of the total weight, 0 to 1, ``[N]``.

    Returns:
        Leaves ``[N]``, none with weight 0.
    """
    left_over, node = share * levels[0][0], jnp.zeros(share.shape, jnp.int32)
    for level in levels[1:]:
        left, right = level[2 * node], level[2 * node + 1]
        goes_right = (left_over >= left) & (right > 0.0)  # a share may be rounded up to the whole
        left_over = jnp.where(goes_right, left_over - left, left_over)
        node = 2 * node + goes_right
    return node
