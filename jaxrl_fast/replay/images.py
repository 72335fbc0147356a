"""Replay of images: each frame is stored once, as bytes, and so is the terminal observation of an
episode.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import Metrics, PyTree, Transition
from jaxrl_fast.learning.frame_stack import View, only_images, put_rows, without_images
from jaxrl_fast.learning.minibatches import MAX_SHARDS, by_shard
from jaxrl_fast.replay.buffers import (
    Buffer,
    RingState,
    SampledWindows,
    Window,
    end_episodes,
    gather,
    gather_windows,
    ring_buffer,
)

STEPS_PER_END = 32
"""Steps per episode end for which the streams of frames have space; with more ends, fewer steps can
be sampled.
"""


class Place(NamedTuple):
    """Position of a step's frame in its environment's stream of frames; int32, counted from the
    start of the run.

    Attributes:
        position: Position of this step's frame.
        start: Position of its episode's first frame.
    """

    position: jax.Array
    start: jax.Array


class Placed(NamedTuple):
    """A stored observation.

    Attributes:
        place: Position of its images.
        rest: Observation without images.
    """

    place: Place
    rest: PyTree


class ImageRingState(NamedTuple):
    """State of an `image_buffer`.

    Attributes:
        ring: Stored steps, with `Placed` observations.
        frames: Stream of frames of each environment, a tree of images uint8
            ``[G, F, E / G, H, W, C]``; new frames overwrite the oldest.
        head: Position of the newest frame, the last step's ``next_obs``, ``[G, E / G]``.
        start: Position of the current episode's first frame, ``[G, E / G]``.
    """

    ring: RingState
    frames: PyTree
    head: jax.Array
    start: jax.Array


def image_buffer(
    view: View,
    *,
    capacity: int,
    num_envs: int,
    batch_size: int,
    window: Window = Window(),
    max_shards: int = MAX_SHARDS,
) -> Buffer:
    """Build a `buffers.ring_buffer` for observations with images.

    The next frame of an environment's stream is a step's ``next_obs``: the observation of the next
    step or, at an episode's end, the terminal observation. With more than one end in
    `STEPS_PER_END` steps, frames are overwritten sooner than steps. Then only the newest steps are
    sampled, as many as have all their frames in every environment of a shard, in the worst case
    half of ``capacity``. The metric ``lost_steps`` counts the stored steps, over all environments,
    that can no longer be sampled.

    Without a recurrent memory, a window's frames are valid up to the step that ends its first
    episode. Frames of later steps, which no n-step return reads, are arbitrary.

    Args:
        view: How networks read observations.
        capacity: Stored steps over all environments.
        num_envs: Number of environments.
        batch_size: Windows in a batch.
        window: Shape of the sampled windows.
        max_shards: Most logical shards.

    Returns:
        The buffer.

    Raises:
        ValueError: As `buffers.ring_buffer`.
    """
    k = view.stack
    plain = ring_buffer(
        capacity=capacity,
        num_envs=num_envs,
        batch_size=batch_size,
        window=window,
        max_shards=max_shards,
    )
    shards, per_shard = plain.shards, plain.envs_per_shard
    capacity_t = capacity // num_envs // window.stride * window.stride
    # Every episode end within a window takes one more frame.
    width = k + window.length * (2 if window.memory else 1)

    def init(example: Transition) -> ImageRingState:
        steps = example.reward.shape[0]
        size = max(capacity_t + -(-capacity_t // STEPS_PER_END), 2 * max(steps, window.length)) + k
        count = jax.ShapeDtypeStruct(example.reward.shape, jnp.int32)
        ring = plain.init(_placed(view, example, Place(count, count)))  # type: ignore[arg-type]  # shapes
        frames = jax.tree.map(
            lambda s: jnp.zeros((shards, size, per_shard, *s.shape), s.dtype), view.images
        )
        return ImageRingState(
            ring=ring,
            frames=frames,
            head=jnp.zeros((shards, per_shard), jnp.int32),
            start=jnp.zeros((shards, per_shard), jnp.int32),
        )

    def add(state: ImageRingState, rollout: Transition) -> ImageRingState:
        steps, first = rollout.reward.shape[0], by_shard(rollout.first, shards)
        time = jnp.arange(steps, dtype=jnp.int32)[None, :, None]
        position = state.head[:, None] + jnp.cumsum(first, axis=1, dtype=jnp.int32) + time
        start = jax.lax.cummax(jnp.where(first, position, state.start[:, None]), axis=1)
        # Within an episode, a step's frame was already written as the next observation of the step
        # before.
        new = first | (time == 0)

        def write(stream: jax.Array, frame: jax.Array, successor: jax.Array) -> jax.Array:
            stream = _write(stream, position, by_shard(frame, shards), new)
            return _write(stream, position + 1, by_shard(successor, shards), jnp.ones_like(new))

        frames = jax.tree.map(
            write, state.frames, only_images(view, rollout.obs), only_images(view, rollout.next_obs)
        )
        place = Place(*(leaf.swapaxes(0, 1).reshape(steps, num_envs) for leaf in (position, start)))
        return ImageRingState(
            plain.add(state.ring, _placed(view, rollout, place)),
            frames,
            position[:, -1] + 1,
            start[:, -1],
        )

    def available(state: ImageRingState) -> tuple[jax.Array, jax.Array]:
        return state.ring.steps, _usable(state, k)[:, None]

    def windows(state: ImageRingState, start: jax.Array, env: jax.Array) -> SampledWindows:
        return _with_frames(
            view, state.frames, gather_windows(state.ring, start, env, window), env, width
        )

    def metrics(state: ImageRingState) -> Metrics:
        lost = jnp.minimum(state.ring.steps, capacity_t) - _usable(state, k)
        return {"lost_steps": jnp.sum(lost).astype(jnp.float32) * per_shard}

    axes = ImageRingState(plain.state_axes, 0, 0, 0)  # type: ignore[arg-type]  # axes
    return Buffer(
        init,
        add,
        available,
        windows,
        _end_episodes,
        shards=shards,
        envs_per_shard=per_shard,
        slots=plain.slots,
        state_axes=axes,
        metrics=metrics,
    )


def _usable(state: ImageRingState, k: int) -> jax.Array:
    """Return how many of the newest steps of each shard have all frames of their stacks of ``k``,
    ``[G]``.
    """
    place: Place = state.ring.data.obs.place
    oldest = jnp.maximum(place.position - (k - 1), place.start)
    whole = oldest > (state.head - jax.tree.leaves(state.frames)[0].shape[1])[:, None]
    count = jnp.min(jnp.sum(whole, axis=1, dtype=jnp.int32), axis=1)
    return jnp.minimum(count, jnp.minimum(state.ring.steps, whole.shape[1]))


def _end_episodes(state: ImageRingState) -> ImageRingState:
    return state._replace(ring=end_episodes(state.ring))


def _with_frames(
    view: View, frames: PyTree, sampled: SampledWindows, env: jax.Array, width: int
) -> SampledWindows:
    """Return windows with rows in place of images, and the tables for these rows: ``width`` frames
    for each window.
    """
    k, (place, rest) = view.stack, sampled.steps.obs
    base = place.position[..., :1] - (k - 1)
    ring_size = jax.tree.leaves(frames)[0].shape[1]
    tables = gather(frames, (base + jnp.arange(width)[None, None]) % ring_size, env)
    offset = jnp.arange(base.shape[1], dtype=jnp.int32)[None, :, None, None] * width

    def rows(last: jax.Array) -> jax.Array:
        """Return the stacks that end at ``last`` ``[G, N, W]``, as rows of the table
        ``[G, N, W, k]``.
        """
        lag = jnp.arange(k - 1, -1, -1, dtype=jnp.int32)[None, None, None]
        position = jnp.maximum(last[..., None] - lag, place.start[..., None])
        return jnp.clip(position - base[..., None], 0, width - 1) + offset

    steps = sampled.steps._replace(
        obs=put_rows(view, rest, rows(place.position)),
        next_obs=put_rows(view, sampled.steps.next_obs, rows(place.position + 1)),
    )
    return sampled._replace(
        steps=steps, tables=jax.tree.map(lambda t: t.reshape(t.shape[0], -1, *t.shape[3:]), tables)
    )


def _placed(view: View, rollout: Transition, place: Place) -> Transition:
    obs = Placed(place, without_images(view, rollout.obs))
    return rollout._replace(obs=obs, next_obs=without_images(view, rollout.next_obs))


def _write(frames: jax.Array, position: jax.Array, values: jax.Array, mask: jax.Array) -> jax.Array:
    """Write ``values`` ``[G, T, E / G, ...]`` at ``position`` of streams ``[G, F, E / G, ...]``
    where ``mask``.
    """
    size = frames.shape[1]
    slot = jnp.where(mask, position % size, size)  # out of bounds: dropped
    env = jnp.arange(frames.shape[2])[None]

    def write(stream: jax.Array, slot: jax.Array, values: jax.Array) -> jax.Array:
        return stream.at[slot, env].set(values, mode="drop")

    return jax.vmap(write)(frames, slot, values)
