"""Replay: a ring buffer of steps, from which windows of consecutive steps are sampled, and their n-step returns."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import Extras, PyTree, Transition
from jaxrl_fast.learning.algorithm import Replay, ReplayBatch
from jaxrl_fast.learning.minibatches import (
    MAX_SHARDS,
    EndEpisodes,
    InitStorage,
    LearnPriorities,
    StorageMetrics,
    by_shard,
    logical_shards,
)
from jaxrl_fast.numerics import losses


class Window(NamedTuple):
    """What is sampled and what must be stored for it.

    - ``length``: consecutive steps in a window (``W``).
    - ``stride``: windows begin at multiples of so many steps since the start of the run.
    - ``keep``: names of the decision's extras that are stored.
    - ``memory``: whether ``first``, and the recurrent memory at each step where a window may begin, are stored too.
    """

    length: int = 1
    stride: int = 1
    keep: tuple[str, ...] = ()
    memory: bool = False


class SampledWindows(NamedTuple):
    """``N`` windows from each logical shard.

    - ``steps``: leaves ``[G, N, W, ...]``.
    - ``memory``: the recurrent memory before the first step of each, ``[G, N, ...]``, or ``()``.
    - ``tables``: the images that the observations' rows refer to (`frame_stack.Tabled`), or None.
    """

    steps: Transition
    memory: PyTree
    tables: PyTree


AddRollout = Callable[[PyTree, Transition], PyTree]
"""(state, rollout ``[T, E, ...]``) -> the state that stores it, over the oldest steps where the buffer is full."""


class Buffer(NamedTuple):
    """A replay buffer: pure functions of its state.

    - ``init``, ``add``: make it, store a rollout.
    - ``available(state)``: how many time steps were ever added, and how many of the newest can be sampled, a scalar or
      ``[G, 1]``.
    - ``windows(state, start [G, N], env [G, N])``: reads windows of consecutive steps: the step at which each begins,
      and its environment in the shard.
    - ``end_episodes``: marks that what is added next does not continue the newest steps.
    - ``shards``: the number of logical shards, ``G``.
    - ``envs_per_shard``: environments in each of them, ``E / G``.
    - ``slots``: how many windows of an environment there is room for.
    - ``state_axes``: the axis of the logical shards in the state's leaves, as `Experience.state_axes`.
    - ``metrics``: what to report of the state.
    """

    init: InitStorage
    add: AddRollout
    available: Callable[[PyTree], tuple[jax.Array, jax.Array]]
    windows: Callable[[PyTree, jax.Array, jax.Array], SampledWindows]
    end_episodes: EndEpisodes
    shards: int
    envs_per_shard: int
    slots: int
    state_axes: PyTree
    metrics: StorageMetrics = lambda state: {}


class Sampled(NamedTuple):
    """The windows of a tick's batches.

    - ``windows``: what was sampled.
    - ``weight``: importance weights ``[G, N]`` of their losses, ``()`` where all windows are alike.
    - ``places``: where they stand in the buffer (`Places`), ``()`` without priorities.
    """

    windows: SampledWindows
    weight: PyTree = ()
    places: PyTree = ()


class Places(NamedTuple):
    """Where windows stand in a buffer, leaves ``[G, N]``.

    - ``number``: of the step at which each begins, counted from 1 (0: there is none).
    - ``env``: its environment in the shard.
    """

    number: jax.Array
    env: jax.Array


class Source(NamedTuple):
    """A buffer, and how its windows are sampled. The state may hold more than the buffer's.

    - ``init``, ``add``, ``end_episodes``, ``state_axes``, ``metrics``: as those of `Buffer`.
    - ``sample(state, key, hyper)``: samples the windows of all batches of a tick.
    - ``learn_priorities``: as `Experience.learn_priorities`.
    """

    init: InitStorage
    add: AddRollout
    sample: Callable[[PyTree, jax.Array, Any], Sampled]
    end_episodes: EndEpisodes
    state_axes: PyTree
    metrics: StorageMetrics
    learn_priorities: LearnPriorities = lambda state, feedback: state


class RingState(NamedTuple):
    """The state of a `ring_buffer`.

    - ``data``: stored steps, leaves ``[G, capacity_T, E / G, ...]``; the oldest are overwritten first.
    - ``steps``: time steps added since the start of the run, int32.
    - ``memory``: recurrent memory at every ``stride``-th step, ``[G, capacity_T / stride, E / G, ...]``, or ``()``.
    """

    data: Transition
    steps: jax.Array
    memory: PyTree


def ring_buffer(
    *, capacity: int, num_envs: int, batch_size: int, window: Window = Window(), max_shards: int = MAX_SHARDS
) -> Buffer:
    """A replay buffer of ``capacity`` transitions over all environments, for batches of ``batch_size`` windows, in at
    most ``max_shards`` logical shards.

    Raises:
        ValueError: a batch, or a window in time, does not fit into the buffer.
    """
    capacity_t = capacity // num_envs // window.stride * window.stride
    _check_sizes(capacity, capacity_t, num_envs, batch_size, window)
    shards = logical_shards(num_envs, batch_size, max_shards)
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

    def windows(state: RingState, start: jax.Array, env: jax.Array) -> SampledWindows:
        return gather_windows(state, start, env, window)

    axes = RingState(data=0, steps=None, memory=0 if window.memory else ())  # type: ignore[arg-type]  # axes
    return Buffer(init, add, available, windows, end_episodes, shards, per_shard, capacity_t // window.stride, axes)


def end_episodes(state: RingState) -> RingState:
    """The state (with the seeds first if there are several) with the newest steps marked as truncated: what is added
    next does not continue them, and no n-step return may reach across."""
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


def gather_windows(state: RingState, start: jax.Array, env: jax.Array, window: Window) -> SampledWindows:
    """The windows of ``env`` that begin at the steps ``start``, both ``[G, N]``."""
    capacity_t = state.data.reward.shape[1]
    slot = (start[..., None] + jnp.arange(window.length)[None, None]) % capacity_t
    stride = (start // window.stride % (capacity_t // window.stride))[..., None]
    memory = jax.tree.map(lambda leaf: leaf[:, :, 0], gather(state.memory, stride, env))
    return SampledWindows(gather(state.data, slot, env), memory, None)


def gather(data: PyTree, slot: jax.Array, env: jax.Array) -> PyTree:
    """The entries at ``slot`` ``[G, N, W]`` of ``env`` ``[G, N]``, out of leaves ``[G, slots, E / G, ...]``."""
    return jax.tree.map(lambda leaf: jax.vmap(lambda shard, t, e: shard[t, e[:, None]])(leaf, slot, env), data)


def _storable(rollout: Transition, window: Window) -> Transition:
    """A rollout without what only on-policy methods need."""
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


def window_length(data: Replay) -> int:
    """How many consecutive steps a sequence needs."""
    return data.burn_in + data.sequence_length + data.n_step - 1


def fold_n_steps(sampled: SampledWindows, discount: jax.Array, data: Replay, *, memory: bool) -> ReplayBatch:
    """Windows ``[G, N, W, ...]`` as sequences ``[G, N, L, ...]``; rewards and observations are already normalized.

    ``memory``: whether a network is recurrent. If so, ``obs`` holds the whole window, as `ReplayBatch` says; if not,
    only the steps that are learned from.
    """
    steps = sampled.steps
    learned = slice(data.burn_in, data.burn_in + data.sequence_length)
    inside = data.burn_in + jnp.arange(data.sequence_length)[:, None] + jnp.arange(data.n_step)[None]
    rewards, ends, cuts = (x[:, :, inside] for x in (steps.reward, steps.terminated, steps.truncated))
    reward, bootstrap, last = _n_step(rewards, ends, cuts, discount)
    last += data.burn_in + jnp.arange(data.sequence_length, dtype=jnp.int32)[None, None]

    def of_learned(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[:, :, learned], tree)

    def at_last(leaf: jax.Array) -> jax.Array:
        return leaf[:, :, learned] if data.n_step == 1 else jax.vmap(jax.vmap(lambda x, i: x[i]))(leaf, last)

    extras = of_learned(steps.extras.decision) if data.keep else {}
    obs, action = of_learned((steps.obs, steps.action))
    batch = ReplayBatch(obs, action, reward, bootstrap, jax.tree.map(at_last, steps.next_obs), extras)
    if not memory:
        return batch
    before = jax.tree.map(lambda leaf: leaf[:, :, None], sampled.memory)
    return batch._replace(obs=steps.obs, first=steps.first, memory=before, last=last)


def _n_step(reward: jax.Array, terminated: jax.Array, truncated: jax.Array, discount: jax.Array) -> Any:
    """`losses.n_step` of ``[G, N, L, n]``."""
    return jax.vmap(jax.vmap(jax.vmap(losses.n_step, (0, 0, 0, None)), (0, 0, 0, None)), (0, 0, 0, None))(
        reward, terminated, truncated, discount
    )
