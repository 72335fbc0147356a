"""Replay: a ring of steps, from which windows of consecutive ones are drawn."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from jaxrl_fast.core import Extras, Metrics, PyTree, Transition
from jaxrl_fast.experience.minibatches import LearnPriorities, by_shard, logical_shards


class Window(NamedTuple):
    """What is drawn: ``length`` consecutive steps, beginning at multiples of ``stride`` steps since the start of the
    run. ``keep``: the names of the decision's extras that are stored; ``memory``: whether episodes' first steps, and
    the memory before each step at which a window may begin, are stored too."""

    length: int = 1
    stride: int = 1
    keep: tuple[str, ...] = ()
    memory: bool = False


class Drawn(NamedTuple):
    """Windows: ``steps``, leaves ``[G, N, W, ...]``; ``memory`` before the first of each, ``[G, N, ...]``, or ``()``;
    ``tables``: where the images of the observations stand (`view.Tabled`), or None."""

    steps: Transition
    memory: PyTree
    tables: PyTree


class Buffer(NamedTuple):
    """``init(example) -> state`` with ``example`` a rollout's shapes; ``add(state, rollout) -> state``;
    ``available(state) -> (steps, usable)``: how many time steps were ever added, and how many of the newest can be
    sampled, a scalar or ``[G, 1]``; ``windows(state, start, env) -> Drawn``: those of ``env`` ``[G, N]`` of a shard
    that begin at the steps ``start`` ``[G, N]``. ``shards`` is ``G``, with ``envs_per_shard`` environments each and
    room for ``slots`` windows of each; ``state_axes``: where the state's leaves have ``G``; ``end_episodes(state)``:
    what is added next does not follow the newest steps; ``metrics(state)``: what a person should know of it."""

    init: Callable[[Transition], PyTree]
    add: Callable[[PyTree, Transition], PyTree]
    available: Callable[[PyTree], tuple[jax.Array, jax.Array]]
    windows: Callable[[PyTree, jax.Array, jax.Array], Drawn]
    end_episodes: Callable[[PyTree], PyTree]
    shards: int
    envs_per_shard: int
    slots: int
    state_axes: PyTree
    metrics: Callable[[PyTree], Metrics] = lambda state: {}


class Sampled(NamedTuple):
    """The windows of a tick's batches; with priorities, ``weight`` ``[G, N]`` of their losses and the `Places` where
    they stand, else ``()``."""

    drawn: Drawn
    weight: PyTree = ()
    places: PyTree = ()


class Places(NamedTuple):
    """Where windows stand in a buffer, leaves ``[G, N]``: the ``number`` of the step at which each begins, counted from
    1 (0: there is none), and its environment of the shard."""

    number: jax.Array
    env: jax.Array


class SampleTick(Protocol):
    """Samples the windows of all batches of a tick."""

    def __call__(self, state: PyTree, key: jax.Array, hyper: Any, /) -> Sampled:
        """``hyper``: the rates of the tick."""


class Source(NamedTuple):
    """A buffer, and which of its windows are sampled: ``sample`` as `SampleTick`. ``learn_priorities``
    as `LearnPriorities`; the others as those of `Buffer`, of a state that may hold more."""

    init: Callable[[Transition], PyTree]
    add: Callable[[PyTree, Transition], PyTree]
    sample: SampleTick
    end_episodes: Callable[[PyTree], PyTree]
    state_axes: PyTree
    metrics: Callable[[PyTree], Metrics]
    learn_priorities: LearnPriorities = lambda state, feedback: state


class RingState(NamedTuple):
    """``data``: leaves ``[G, capacity_T, E / G, ...]``, oldest overwritten first; ``steps``: time steps ever added;
    ``memory``: as ``data``, one for each stride, or ``()``."""

    data: Transition
    steps: jax.Array
    memory: PyTree


def ring_buffer(*, capacity: int, num_envs: int, batch_size: int, window: Window = Window()) -> Buffer:
    """A replay buffer of ``capacity`` transitions over all environments, for batches of ``batch_size`` windows.

    Raises:
        ValueError: a batch, or a window in time, does not fit into the buffer.
    """
    capacity_t = capacity // num_envs // window.stride * window.stride
    _check_sizes(capacity, capacity_t, num_envs, batch_size, window)
    shards = logical_shards(num_envs, batch_size)
    per_shard = num_envs // shards

    def empty(leaf: jax.ShapeDtypeStruct, slots: int) -> jax.Array:
        return jnp.zeros((shards, slots, per_shard, *leaf.shape[2:]), leaf.dtype)

    def init(example: Transition) -> RingState:
        data = jax.tree.map(lambda leaf: empty(leaf, capacity_t), _storable(example, window))
        memory = example.extras.memory if window.memory else ()
        memory = jax.tree.map(lambda leaf: empty(leaf, capacity_t // window.stride), memory)
        return RingState(data, jnp.zeros((), jnp.int32), memory)

    def add(state: RingState, rollout: Transition) -> RingState:
        new = _storable(rollout, window)
        length = new.reward.shape[0]
        if length > capacity_t:
            raise ValueError(f"a rollout of {length} steps does not fit a buffer of {capacity_t} steps")
        time = state.steps + jnp.arange(length)

        def write(ring: jax.Array, leaf: jax.Array) -> jax.Array:
            return ring.at[:, time % capacity_t].set(by_shard(leaf, shards), unique_indices=True)

        def write_memory(ring: jax.Array, leaf: jax.Array) -> jax.Array:
            strides = capacity_t // window.stride
            slot = jnp.where(time % window.stride == 0, time // window.stride % strides, strides)
            return ring.at[:, slot].set(by_shard(leaf, shards), mode="drop")

        memory = jax.tree.map(write_memory, state.memory, rollout.extras.memory) if window.memory else ()
        return RingState(jax.tree.map(write, state.data, new), state.steps + length, memory)

    def available(state: RingState) -> tuple[jax.Array, jax.Array]:
        return state.steps, jnp.minimum(state.steps, capacity_t)

    def windows(state: RingState, start: jax.Array, env: jax.Array) -> Drawn:
        return gather_windows(state, start, env, window)

    axes = RingState(data=0, steps=None, memory=0 if window.memory else ())  # type: ignore[arg-type]  # axes
    return Buffer(init, add, available, windows, end_episodes, shards, per_shard, capacity_t // window.stride, axes)


def end_episodes(state: RingState) -> RingState:
    """A buffer's state (seeds first if there are several) whose newest steps end their episodes, truncated: what will
    be added next does not follow them, and no n-step return may reach across."""
    steps = state.steps[..., None, None, None]
    time = jnp.arange(state.data.truncated.shape[-2])[:, None]
    newest = (time.reshape((1,) * (state.data.truncated.ndim - 2) + time.shape) == (steps - 1) % len(time)) & (
        steps > 0
    )
    return state._replace(data=state.data._replace(truncated=state.data.truncated | (newest & ~state.data.terminated)))


def uniform_source(buffer: Buffer, num_windows: int, window: Window = Window()) -> Source:
    """``num_windows`` (N) windows of each shard in a tick, uniformly and with replacement."""
    shape = (buffer.shards, num_windows)

    def sample(state: PyTree, key: jax.Array, hyper: Any) -> Sampled:
        time_key, env_key = jax.random.split(key)
        oldest, newest = window_range(*buffer.available(state), window)
        number = jax.random.randint(time_key, shape, 0, jnp.maximum(newest - oldest + 1, 1))
        env = jax.random.randint(env_key, shape, 0, buffer.envs_per_shard)
        start = (jnp.broadcast_to(oldest, (shape[0], 1)) + number) * window.stride
        return Sampled(buffer.windows(state, start, env))

    return Source(buffer.init, buffer.add, sample, buffer.end_episodes, buffer.state_axes, buffer.metrics)


def window_range(steps: jax.Array, usable: jax.Array, window: Window) -> tuple[jax.Array, jax.Array]:
    """The first and the last window among the newest ``usable``, a scalar or ``[G, 1]``, of ``steps`` ever added;
    windows are counted from the start of the run."""
    oldest = -((usable - steps) // window.stride)  # rounded up
    return oldest, (steps - window.length) // window.stride


def gather_windows(state: RingState, start: jax.Array, env: jax.Array, window: Window) -> Drawn:
    """The windows of ``env`` that begin at the steps ``start``, both ``[G, N]``."""
    capacity_t = state.data.reward.shape[1]
    slot = (start[..., None] + jnp.arange(window.length)[None, None]) % capacity_t
    stride = (start // window.stride % (capacity_t // window.stride))[..., None]
    memory = jax.tree.map(lambda leaf: leaf[:, :, 0], gather(state.memory, stride, env))
    return Drawn(gather(state.data, slot, env), memory, None)


def gather(data: PyTree, slot: jax.Array, env: jax.Array) -> PyTree:
    """What stands at ``slot`` ``[G, N, W]`` of ``env`` ``[G, N]`` in leaves ``[G, slots, E / G, ...]``."""
    return jax.tree.map(lambda leaf: jax.vmap(lambda shard, t, e: shard[t, e[:, None]])(leaf, slot, env), data)


def _storable(rollout: Transition, window: Window) -> Transition:
    """What replay keeps of a rollout: not what only on-policy methods need."""
    decision = {name: rollout.extras.decision[name] for name in window.keep}
    extras: Any = Extras(decision, {}) if decision else ()
    return rollout._replace(extras=extras, first=rollout.first if window.memory else ())  # type: ignore[arg-type]


def _check_sizes(capacity: int, capacity_t: int, num_envs: int, batch_size: int, window: Window) -> None:
    if batch_size > capacity:
        raise ValueError(
            f"batch_size={batch_size} is larger than buffer_size={capacity}: "
            f"write a buffer_size of at least {batch_size} or a smaller batch"
        )
    least = window.length + window.stride
    if capacity_t < least:
        raise ValueError(
            f"buffer_size={capacity} holds {capacity_t} steps of each of the {num_envs} environments, too few for "
            f"windows of {window.length} (burn-in, sequence and n_step): write a buffer_size of at least "
            f"{least * num_envs}"
        )
