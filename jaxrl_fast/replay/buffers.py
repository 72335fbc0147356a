"""Replay: a ring buffer of steps, from which windows of consecutive steps are sampled, and their
n-step returns.
"""

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
    """Shape of the sampled windows, and the data to store for them.

    Attributes:
        length: Consecutive steps in a window (``W``).
        stride: Windows begin at multiples of this many steps since the start of the run.
        `keep`: Names of the decision's extras that are stored.
        memory: Whether to store ``first``, and the recurrent memory at each step where a window may
            begin.
    """

    length: int = 1
    stride: int = 1
    keep: tuple[str, ...] = ()
    memory: bool = False


class SampledWindows(NamedTuple):
    """``N`` windows from each logical shard.

    Attributes:
        steps: Leaves ``[G, N, W, ...]``.
        memory: Recurrent memory before the first step of each window, ``[G, N, ...]``, or ``()``.
        tables: Images that the observations' rows refer to (`frame_stack.Tabled`), or None.
        at: First step and environment of each window, ``[G, N]``, for `relabeling`; else ``()``.
    """

    steps: Transition
    memory: PyTree
    tables: PyTree
    at: Any = ()


AddRollout = Callable[[PyTree, Transition], PyTree]
"""(state, rollout ``[T, E, ...]``) -> state that stores it, in place of the oldest steps if the
buffer is full.
"""


class Buffer(NamedTuple):
    """A replay buffer: pure functions of its state.

    Attributes:
        init: Makes the empty state.
        add: Stores a rollout.
        available: ``(state) -> (steps ever added, number of newest steps that can be sampled)``,
            the latter a scalar or ``[G, 1]``.
        windows: ``(state, start [G, N], env [G, N]) -> windows`` of consecutive steps, by their
            first step and their environment in the shard.
        end_episodes: Marks that the next rollout does not continue the newest steps.
        shards: Number of logical shards, ``G``.
        envs_per_shard: Environments of each shard, ``E / G``.
        slots: Capacity in windows of an environment.
        state_axes: Axis of the logical shards in the state's leaves, as `Experience.state_axes`.
        metrics: Scalars to report on the state.
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
    """Windows of a tick's batches.

    Attributes:
        windows: The windows.
        weight: Importance weights of their losses, ``[G, N]``; ``()`` for uniform sampling.
        places: Positions in the buffer (`Places`), ``()`` without priorities.
    """

    windows: SampledWindows
    weight: PyTree = ()
    places: PyTree = ()


class Source(NamedTuple):
    """A buffer with its way of sampling. The state may contain more than the buffer's.

    Attributes:
        init: As in `Buffer`.
        add: As in `Buffer`.
        sample: ``(state, key, hyper) -> windows`` of all batches of a tick.
        end_episodes: As in `Buffer`.
        state_axes: As in `Buffer`.
        metrics: As in `Buffer`.
        learn_priorities: As in `Experience`.
    """

    init: InitStorage
    add: AddRollout
    sample: Callable[[PyTree, jax.Array, Any], Sampled]
    end_episodes: EndEpisodes
    state_axes: PyTree
    metrics: StorageMetrics
    learn_priorities: LearnPriorities = lambda state, feedback: state


class RingState(NamedTuple):
    """State of a `ring_buffer`.

    Attributes:
        data: Stored steps, leaves ``[G, capacity_T, E / G, ...]``; new steps overwrite the oldest.
        steps: Time steps added since the start of the run, int32.
        memory: Recurrent memory at every ``stride``-th step,
            ``[G, capacity_T / stride, E / G, ...]``, or ``()``.
    """

    data: Transition
    steps: jax.Array
    memory: PyTree


def ring_buffer(
    *,
    capacity: int,
    num_envs: int,
    batch_size: int,
    window: Window = Window(),
    max_shards: int = MAX_SHARDS,
) -> Buffer:
    """Build a replay buffer of single steps.

    Args:
        capacity: Stored transitions over all environments.
        num_envs: Number of environments.
        batch_size: Windows in a batch.
        window: Shape of the windows.
        max_shards: Most logical shards.

    Returns:
        The buffer.

    Raises:
        ValueError: A batch, or a window in time, is larger than the buffer.
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
            raise ValueError(f"a rollout of {length} steps exceeds a buffer of {capacity_t} steps")
        time = state.steps + jnp.arange(length)

        def write(ring: jax.Array, leaf: jax.Array) -> jax.Array:
            return ring.at[:, time % capacity_t].set(by_shard(leaf, shards), unique_indices=True)

        def write_memory(ring: jax.Array, leaf: jax.Array) -> jax.Array:
            strides, starts = capacity_t // window.stride, time[:: length // len(leaf)]
            slot = jnp.where(
                starts % window.stride == 0, starts // window.stride % strides, strides
            )
            return ring.at[:, slot].set(by_shard(leaf, shards), mode="drop")

        memory = (
            jax.tree.map(write_memory, state.memory, rollout.extras.memory) if window.memory else ()
        )
        return RingState(jax.tree.map(write, state.data, new), state.steps + length, memory)

    def available(state: RingState) -> tuple[jax.Array, jax.Array]:
        return state.steps, jnp.minimum(state.steps, capacity_t)

    def windows(state: RingState, start: jax.Array, env: jax.Array) -> SampledWindows:
        return gather_windows(state, start, env, window)

    axes = RingState(data=0, steps=None, memory=0 if window.memory else ())  # type: ignore[arg-type]  # axes
    return Buffer(
        init,
        add,
        available,
        windows,
        end_episodes,
        shards=shards,
        envs_per_shard=per_shard,
        slots=capacity_t // window.stride,
        state_axes=axes,
    )


def end_episodes(state: RingState) -> RingState:
    """Mark the newest steps as truncated, so that no n-step return extends into steps added later.

    Args:
        state: State of the buffer, with the seeds as first axis if there are several.

    Returns:
        The new state.
    """
    steps = state.steps[..., None, None, None]
    time = jnp.arange(state.data.truncated.shape[-2])[:, None]
    newest = (
        time.reshape((1,) * (state.data.truncated.ndim - 2) + time.shape) == (steps - 1) % len(time)
    ) & (steps > 0)
    return state._replace(
        data=state.data._replace(truncated=state.data.truncated | (newest & ~state.data.terminated))
    )


def uniform_source(buffer: Buffer, num_windows: int, window: Window = Window()) -> Source:
    """Build a source that samples windows uniformly, with replacement.

    Args:
        buffer: Buffer of steps.
        num_windows: Windows of each shard in a tick, ``N``.
        window: Shape of the windows.

    Returns:
        The source.
    """
    shape = (buffer.shards, num_windows)

    def sample(state: PyTree, key: jax.Array, hyper: Any) -> Sampled:
        time_key, env_key = jax.random.split(key)
        oldest, newest = window_range(*buffer.available(state), window)
        number = jax.random.randint(time_key, shape, 0, jnp.maximum(newest - oldest + 1, 1))
        env = jax.random.randint(env_key, shape, 0, buffer.envs_per_shard)
        start = (jnp.broadcast_to(oldest, (shape[0], 1)) + number) * window.stride
        return Sampled(buffer.windows(state, start, env))

    return Source(
        buffer.init, buffer.add, sample, buffer.end_episodes, buffer.state_axes, buffer.metrics
    )


def window_range(
    steps: jax.Array, usable: jax.Array, window: Window
) -> tuple[jax.Array, jax.Array]:
    """Return the first and last window that can be sampled, counted from the start of the run.

    Args:
        steps: Number of steps ever added.
        usable: Number of newest steps that can be sampled, a scalar or ``[G, 1]``.
        window: Shape of the windows.

    Returns:
        First and last window.
    """
    oldest = -((usable - steps) // window.stride)  # rounded up
    return oldest, (steps - window.length) // window.stride


def gather_windows(
    state: RingState, start: jax.Array, env: jax.Array, window: Window
) -> SampledWindows:
    """Read windows from a ring buffer.

    Args:
        state: State of the buffer.
        start: First step of each window, ``[G, N]``.
        env: Environment in the shard, ``[G, N]``.
        window: Shape of the windows.

    Returns:
        The windows.
    """
    capacity_t = state.data.reward.shape[1]
    slot = (start[..., None] + jnp.arange(window.length)[None, None]) % capacity_t
    stride = (start // window.stride % (capacity_t // window.stride))[..., None]
    memory = jax.tree.map(lambda leaf: leaf[:, :, 0], gather(state.memory, stride, env))
    return SampledWindows(gather(state.data, slot, env), memory, None)


def gather(data: PyTree, slot: jax.Array, env: jax.Array) -> PyTree:
    """Gather entries of environments.

    Args:
        data: Leaves ``[G, slots, E / G, ...]``.
        slot: Slots ``[G, N, W]``.
        env: Environment in the shard, ``[G, N]``.

    Returns:
        Leaves ``[G, N, W, ...]``.
    """
    return jax.tree.map(
        lambda leaf: jax.vmap(lambda shard, t, e: shard[t, e[:, None]])(leaf, slot, env), data
    )


def _storable(rollout: Transition, window: Window) -> Transition:
    """Return a rollout without the data that only on-policy methods need."""
    decision = {name: rollout.extras.decision[name] for name in window.keep}
    extras: Any = Extras(decision, {}) if decision else ()
    return rollout._replace(extras=extras, first=rollout.first if window.memory else ())  # type: ignore[arg-type]


def _check_sizes(
    capacity: int, capacity_t: int, num_envs: int, batch_size: int, window: Window
) -> None:
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
    """Return how many consecutive steps a sequence needs.

    Args:
        data: Data of the updates.

    Returns:
        Number of steps.
    """
    return data.burn_in + data.sequence_length + data.n_step - 1


def fold_n_steps(
    sampled: SampledWindows, discount: jax.Array, data: Replay, *, memory: bool
) -> ReplayBatch:
    """Compute n-step returns of windows, and arrange them as sequences.

    Args:
        sampled: Windows ``[G, N, W, ...]``, with normalized rewards and observations.
        discount: γ, scalar.
        data: Lengths of the sequences.
        memory: Whether a network is recurrent. ``obs`` then contains the whole window
            (`ReplayBatch`), else only the steps in the loss.

    Returns:
        Sequences ``[G, N, L, ...]``.
    """
    steps = sampled.steps
    learned = slice(data.burn_in, data.burn_in + data.sequence_length)
    inside = (
        data.burn_in + jnp.arange(data.sequence_length)[:, None] + jnp.arange(data.n_step)[None]
    )
    rewards, ends, cuts = (
        x[:, :, inside] for x in (steps.reward, steps.terminated, steps.truncated)
    )
    reward, bootstrap, last = _n_step(rewards, ends, cuts, discount)
    last += data.burn_in + jnp.arange(data.sequence_length, dtype=jnp.int32)[None, None]

    def of_learned(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[:, :, learned], tree)

    def at_last(leaf: jax.Array) -> jax.Array:
        return (
            leaf[:, :, learned]
            if data.n_step == 1
            else jax.vmap(jax.vmap(lambda x, i: x[i]))(leaf, last)
        )

    extras = of_learned(steps.extras.decision) if data.keep else {}
    obs, action = of_learned((steps.obs, steps.action))
    batch = ReplayBatch(
        obs,
        action,
        reward,
        bootstrap,
        next_obs=jax.tree.map(at_last, steps.next_obs),
        extras=extras,
    )
    if not memory:
        return batch
    before = jax.tree.map(lambda leaf: leaf[:, :, None], sampled.memory)
    return batch._replace(obs=steps.obs, first=steps.first, memory=before, last=last)


def _n_step(
    reward: jax.Array, terminated: jax.Array, truncated: jax.Array, discount: jax.Array
) -> Any:
    """Apply `losses.n_step` to ``[G, N, L, n]``."""
    return jax.vmap(
        jax.vmap(jax.vmap(losses.n_step, (0, 0, 0, None)), (0, 0, 0, None)), (0, 0, 0, None)
    )(reward, terminated, truncated, discount)
