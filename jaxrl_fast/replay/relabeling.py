"""Changes of windows as a batch is drawn, such as their goals in hindsight.

`algorithm.Relabel` declares them. Only an algorithm that has one goes through this file.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import PyTree, Transition, stable_hash
from jaxrl_fast.learning.algorithm import Relabel
from jaxrl_fast.learning.minibatches import by_shard
from jaxrl_fast.replay.buffers import (
    Buffer,
    RingState,
    Sampled,
    SampledWindows,
    Source,
    Window,
    gather,
)


class HindsightState(NamedTuple):
    """State of a buffer with the remaining length of each episode.

    Attributes:
        ring: State of the buffer.
        ahead: Stored steps of the same episode after each step, int32 ``[G, capacity_T, E / G]``.
    """

    ring: RingState
    ahead: jax.Array


def hindsight_buffer(buffer: Buffer) -> Buffer:
    """Add the distance to the last stored step of the same episode to a buffer.

    Args:
        buffer: Buffer of `buffers.ring_buffer`.

    Returns:
        The buffer; its windows have their positions in ``at``.
    """

    def init(example: Transition) -> HindsightState:
        ring = buffer.init(example)
        return HindsightState(ring, jnp.zeros(ring.data.reward.shape, jnp.int32))

    def add(state: HindsightState, rollout: Transition) -> HindsightState:
        ring, capacity_t = state.ring, state.ahead.shape[1]
        new = steps_ahead(by_shard(rollout.terminated | rollout.truncated, buffer.shards))
        newest = ring.steps - 1
        time = newest - (newest - jnp.arange(capacity_t)) % capacity_t
        ended = (ring.data.terminated | ring.data.truncated)[:, newest % capacity_t]
        reaches = time[None, :, None] + state.ahead == newest
        goes_on = reaches & ~ended[:, None] & (time >= 0)[None, :, None]
        ahead = jnp.where(goes_on, state.ahead + 1 + new[:, :1], state.ahead)
        slots = (ring.steps + jnp.arange(new.shape[1])) % capacity_t
        return HindsightState(
            buffer.add(ring, rollout), ahead.at[:, slots].set(new, unique_indices=True)
        )

    def windows(state: HindsightState, start: jax.Array, env: jax.Array) -> SampledWindows:
        return buffer.windows(state.ring, start, env)._replace(at=(start, env))

    return buffer._replace(
        init=init,
        add=add,
        available=lambda state: buffer.available(state.ring),
        windows=windows,
        end_episodes=lambda state: state._replace(ring=buffer.end_episodes(state.ring)),
        state_axes=HindsightState(buffer.state_axes, 0),  # type: ignore[arg-type]  # axes
        metrics=lambda state: buffer.metrics(state.ring),
    )


def steps_ahead(done: jax.Array) -> jax.Array:
    """Count the steps of the same episode after each step of a rollout.

    Args:
        done: Whether an episode ends with a step, ``[G, T, E / G]``.

    Returns:
        int32 ``[G, T, E / G]``.
    """

    def back(after: jax.Array, ends: jax.Array) -> tuple[jax.Array, jax.Array]:
        ahead = jnp.where(ends, 0, after + 1)
        return ahead, ahead

    last = jnp.full(done[:, 0].shape, -1, jnp.int32)
    return jax.lax.scan(back, last, done.swapaxes(0, 1), reverse=True)[1].swapaxes(0, 1)


def hindsight_source(
    source: Source, relabel: Relabel, window: Window, state_of: Callable[[PyTree], HindsightState]
) -> Source:
    """Relabel the windows of a source with a later step of the same episode.

    Args:
        source: Source of a `hindsight_buffer`.
        relabel: Changes a window.
        window: Shape of the windows.
        state_of: Returns the buffer's state in the source's.

    Returns:
        The source.
    """

    def sample(state: PyTree, key: jax.Array, hyper: Any) -> Sampled:
        sampled = source.sample(state, key, hyper)
        (start, env), buffer = sampled.windows.at, state_of(state)
        capacity_t = buffer.ahead.shape[1]
        time_key, own_key = jax.random.split(jax.random.fold_in(key, stable_hash("hindsight")))
        most = gather(buffer.ahead, start[..., None] % capacity_t, env)[..., 0]
        least = jnp.minimum(window.length - 1, most)
        offset = least + jax.random.randint(time_key, start.shape, 0, most - least + 1)
        future = gather(buffer.ring.data, (start + offset)[..., None] % capacity_t, env)
        later = jax.tree.map(lambda leaf: leaf[:, :, 0], future)
        keys = jax.random.split(own_key, start.shape)
        steps = jax.vmap(jax.vmap(relabel))(sampled.windows.steps, later, keys)
        return sampled._replace(windows=sampled.windows._replace(steps=steps, at=()))

    return source._replace(sample=sample)
