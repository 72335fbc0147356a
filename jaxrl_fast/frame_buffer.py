"""Replay of images: each frame is stored once, as bytes, with the true successors at the ends of episodes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.buffers import Buffer, RingState, draw_windows, gather_windows, in_batches, ring_buffer
from jaxrl_fast.core import Batches, Metrics, Transition
from jaxrl_fast.frames import Frames, sharded, take_stacks

ROOM_FOR_ENDS = 32
"""There is room for one successor at an end in so many steps, before the memory reaches less far back."""


class Place(NamedTuple):
    """Where a step's frame stands in its environment's stream, and where that of its episode's first step does; both
    count from the beginning of the run, int32."""

    position: jax.Array
    start: jax.Array


class FrameRingState(NamedTuple):
    """``ring``: steps, with a `Place` for their observation; ``frames``: uint8 ``[G, F, E / G, H, W, C]``, each
    environment's stream of frames, oldest overwritten first; ``head`` and ``start``, ``[G, E / G]``: where the stream
    ends, which is the successor of the last step, and where the running episode began."""

    ring: RingState
    frames: jax.Array
    head: jax.Array
    start: jax.Array


def frame_buffer(
    *, frame_stack: int, capacity: int, num_envs: int, batch_size: int, num_batches: int, n_step: int = 1
) -> Buffer:
    """As `buffers.ring_buffer`, for observations that are images ``[H, W, C]`` of uint8, ``frame_stack`` seen at once.

    The successor of a step is the next frame of its environment's stream: the observation of the next step or, where
    the episode ended, a frame of its own. With more ends than one in `ROOM_FOR_ENDS` steps the streams are overwritten
    sooner than the steps: what is drawn then comes from the newest steps, as many as are whole in all environments of a
    shard, in the worst case half of ``capacity``. Nothing is drawn whose frames are gone; the metric ``lost_steps``
    counts the steps, over all environments, that can no longer be.

    Of a window, frames stand there up to the step that ends its first episode; those of later steps, which no n-step
    return reads, are arbitrary.

    Raises:
        ValueError: as `buffers.ring_buffer`.
    """
    k = max(frame_stack, 1)
    plain = ring_buffer(
        capacity=capacity, num_envs=num_envs, batch_size=batch_size, num_batches=num_batches, n_step=n_step
    )
    shards, capacity_t = plain.shards, capacity // num_envs
    per_shard, width = num_envs // shards, k + n_step

    def init(example: Transition) -> FrameRingState:
        steps, frame = example.reward.shape[0], example.obs
        size = max(capacity_t + -(-capacity_t // ROOM_FOR_ENDS), 2 * max(steps, n_step)) + k
        count = jax.ShapeDtypeStruct(example.reward.shape, jnp.int32)
        ring = plain.init(example._replace(obs=Place(count, count), next_obs=()))  # type: ignore[arg-type]  # shapes
        frames = jnp.zeros((shards, size, per_shard, *frame.shape[2:]), frame.dtype)
        return FrameRingState(ring, frames, *(jnp.zeros((shards, per_shard), jnp.int32) for _ in range(2)))

    def add(state: FrameRingState, rollout: Transition) -> FrameRingState:
        steps, first = rollout.reward.shape[0], sharded(rollout.first, shards)
        time = jnp.arange(steps, dtype=jnp.int32)[None, :, None]
        position = state.head[:, None] + jnp.cumsum(first, axis=1, dtype=jnp.int32) + time
        start = jax.lax.cummax(jnp.where(first, position, state.start[:, None]), axis=1)
        # A step that goes on has been given its frame as the successor of the step before.
        new = first | (time == 0)
        frames = _write(state.frames, position, sharded(rollout.obs, shards), new)
        frames = _write(frames, position + 1, sharded(rollout.next_obs, shards), jnp.ones_like(new))
        place = Place(*(leaf.swapaxes(0, 1).reshape(steps, num_envs) for leaf in (position, start)))
        ring = plain.add(state.ring, rollout._replace(obs=place, next_obs=()))
        return FrameRingState(ring, frames, position[:, -1] + 1, start[:, -1])

    def usable(state: FrameRingState) -> jax.Array:
        """How many of the newest steps of each shard have all their frames, ``[G]``; older ones have lost some."""
        place: Place = state.ring.data.obs
        oldest = jnp.maximum(place.position - (k - 1), place.start)
        whole = oldest > (state.head - state.frames.shape[1])[:, None]
        count = jnp.min(jnp.sum(whole, axis=1, dtype=jnp.int32), axis=1)
        return jnp.minimum(count, jnp.minimum(state.ring.steps, capacity_t))

    def sample(state: FrameRingState, key: jax.Array) -> Batches:
        size = num_batches * (batch_size // shards)
        slot, env = draw_windows(
            key, state.ring.steps, usable(state)[:, None], (shards, size), capacity_t, per_shard, n_step
        )
        drawn = gather_windows(state.ring.data, slot, env)
        place: Place = drawn.obs
        base = place.position[..., :1] - (k - 1)
        where = (base + jnp.arange(width)[None, None]) % state.frames.shape[1]
        table = gather_windows(state.frames, where, env)
        offset = jnp.arange(size, dtype=jnp.int32)[None, :, None, None] * width

        def rows(last: jax.Array) -> jax.Array:
            """The stacks that end at ``last`` ``[G, N, n]``, as rows of the table ``[G, N, n, k]``."""
            lag = jnp.arange(k - 1, -1, -1, dtype=jnp.int32)[None, None, None]
            position = jnp.maximum(last[..., None] - lag, place.start[..., None])
            return jnp.clip(position - base[..., None], 0, width - 1) + offset

        obs = Frames(table.reshape(shards, -1, *table.shape[3:]), rows(place.position))
        return in_batches(drawn._replace(obs=obs, next_obs=rows(place.position + 1)), num_batches)

    def metrics(state: FrameRingState) -> Metrics:
        lost = jnp.minimum(state.ring.steps, capacity_t) - usable(state)
        return {"lost_steps": jnp.sum(lost).astype(jnp.float32) * per_shard}

    axes = FrameRingState(plain.state_axes, 0, 0, 0)  # type: ignore[arg-type]  # axes
    return Buffer(init, add, sample, shards, axes, take_stacks, metrics)


def _write(frames: jax.Array, position: jax.Array, values: jax.Array, mask: jax.Array) -> jax.Array:
    """``values`` ``[G, T, E / G, ...]`` at ``position`` of the streams ``[G, F, E / G, ...]``, where ``mask``."""
    size = frames.shape[1]
    slot = jnp.where(mask, position % size, size)  # out of bounds: dropped
    env = jnp.arange(frames.shape[2])[None]

    def write(stream: jax.Array, slot: jax.Array, values: jax.Array) -> jax.Array:
        return stream.at[slot, env].set(values, mode="drop")

    return jax.vmap(write)(frames, slot, values)
