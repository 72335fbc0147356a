"""Off-policy data: a replay buffer stores steps, and batches are sampled from it."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_fast.core import Batches, PyTree, Transition
from jaxrl_fast.learning.algorithm import Agent, Peers, Replay, require_positive
from jaxrl_fast.learning.frame_stack import Tabled, View, take_tabled
from jaxrl_fast.learning.minibatches import MAX_SHARDS, Batching, Experience, take_batch
from jaxrl_fast.numerics.normalization import Statistics, scale_experience
from jaxrl_fast.replay.buffers import (
    Buffer,
    Source,
    Window,
    fold_n_steps,
    ring_buffer,
    uniform_source,
    window_length,
)
from jaxrl_fast.replay.images import image_buffer
from jaxrl_fast.replay.prioritized import prioritized_source
from jaxrl_fast.replay.relabeling import hindsight_buffer, hindsight_source

MakeSource = Callable[[Buffer, int, int, Window], Source]
"""(buffer of the run's own steps; steps of a tick over all environments; windows of each shard in a
tick; their shape) -> source of the batches.
"""


def from_replay(
    agent: Agent,
    data: Replay,
    view: View | None,
    num_envs: int,
    *,
    memory: bool,
    max_shards: int,
    recorded: MakeSource | None = None,
) -> Batching:
    """Return the batches of off-policy data.

    Args:
        agent: Algorithm built for one environment.
        data: Data of the updates.
        view: How networks read images; None without images.
        num_envs: Number of environments.
        memory: Whether an acting network is recurrent.
        max_shards: Most logical shards.
        recorded: As in `off_policy_experience`.

    Returns:
        The batches.

    Raises:
        ValueError: As `off_policy_experience`.
    """
    require_positive(
        updates_per_tick=data.num_batches, batch_size=data.batch_size, n_step=data.n_step
    )
    ticks = warmup_ticks(agent, data, num_envs)
    experience = off_policy_experience(
        agent, data, view, num_envs, memory=memory, max_shards=max_shards, recorded=recorded
    )
    return Batching(
        experience=experience,
        updates_per_tick=data.num_batches,
        batch_size=data.batch_size * data.sequence_length,
        batch_sequences=data.batch_size,
        warmup_ticks=ticks,
    )


def off_policy_experience(
    agent: Agent,
    data: Replay,
    view: View | None,
    num_envs: int,
    *,
    memory: bool,
    max_shards: int = MAX_SHARDS,
    recorded: MakeSource | None = None,
) -> Experience:
    """Build the minibatches of off-policy data; images are stored once.

    Args:
        agent: Algorithm built for one environment.
        data: Data of the updates.
        view: How networks read images; None without images.
        num_envs: Number of environments.
        memory: Whether an acting network is recurrent.
        max_shards: Most logical shards.
        recorded: Makes the source of a run with recorded steps; None for a run without.

    Returns:
        The minibatches, with a replay buffer as state.

    Raises:
        ValueError: Sizes do not match (`check_sizes`, `buffers.ring_buffer`), or images shall be
            relabeled.
    """
    check_sizes(agent, data, num_envs)
    window = Window(window_length(data), data.sequence_length if memory else 1, data.keep, memory)
    sizes: dict[str, Any] = dict(
        capacity=data.capacity,
        num_envs=num_envs,
        batch_size=data.batch_size,
        window=window,
        max_shards=max_shards,
    )
    buffer = ring_buffer(**sizes) if view is None else image_buffer(view, **sizes)
    if data.relabel and view is not None:
        raise ValueError(
            "relabel does not support images, which replay stores once: use an environment without images"
        )
    buffer = hindsight_buffer(buffer) if data.relabel else buffer
    number, prioritize = data.num_batches * (data.batch_size // buffer.shards), data.prioritize
    source = uniform_source(buffer, number, window)
    if prioritize:
        source = prioritized_source(buffer, number, prioritize, window)
    if recorded is not None:
        source = recorded(buffer, num_envs * agent.rollout_length, number, window)
    if data.relabel:
        source = hindsight_source(
            source, data.relabel, window, lambda state: state.buffer if prioritize else state
        )

    def step(
        state: PyTree,
        rollout: Transition,
        learned: Peers,
        statistics: Statistics | None,
        hyper: Any,
        key: jax.Array,
    ) -> tuple[PyTree, Batches]:
        state = source.add(state, rollout)
        sampled, weight, places = source.sample(state, key, hyper)
        scaling = hyper.reward_scale, agent.normalize_rewards, agent.max_return
        steps = scale_experience(sampled.steps, statistics, *scaling)
        batch = fold_n_steps(sampled._replace(steps=steps), hyper.discount, data, memory=memory)
        if prioritize:
            batch = batch._replace(weight=jnp.broadcast_to(weight[..., None], batch.reward.shape))
        return state, Batches(
            batch if view is None else Tabled(batch, sampled.tables),
            in_turn(data, buffer.shards),
            places,
        )

    take, part = (
        take_batch if view is None else take_tabled,
        prioritize.part if prioritize else None,
    )
    experience = Experience(
        source.init, step, take, buffer.shards, state_axes=source.state_axes, metrics=source.metrics
    )
    # A window may begin wherever the steps of the run, a multiple of a rollout's, are a multiple of
    # a sequence's.
    every = math.gcd(agent.rollout_length, window.stride)
    experience = experience._replace(
        refills=True, end_episodes=source.end_episodes, memory_every=every
    )
    return experience._replace(prioritized_by=part, learn_priorities=source.learn_priorities)


def in_turn(data: Replay, shards: int) -> jax.Array:
    """Return the indices of sequences that are already in random order, one batch after another.

    Args:
        data: Numbers of batches and of their sequences.
        shards: Number of logical shards.

    Returns:
        Indices int32 ``[K, G, B / G]``.
    """
    size = data.num_batches * data.batch_size // shards
    index = jnp.arange(size, dtype=jnp.int32).reshape(data.num_batches, 1, -1)
    return jnp.broadcast_to(index, (data.num_batches, shards, size // data.num_batches))


def warmup_ticks(agent: Agent, data: Replay, num_envs: int) -> int:
    """Return how many ticks only fill the buffer, until it contains enough steps to sample from.

    Args:
        agent: Algorithm built for one environment.
        data: Data of the updates.
        num_envs: Number of environments.

    Returns:
        Number of ticks.
    """
    # a window begins at a multiple of the sequence's length
    longest = window_length(data) + data.sequence_length - 1
    enough = -(-data.warmup_steps // (num_envs * agent.rollout_length))
    return max(enough, -(-longest // agent.rollout_length)) - 1


def check_sizes(agent: Agent, data: Replay, num_envs: int) -> None:
    """Check the sizes of off-policy data.

    Args:
        agent: Algorithm built for one environment.
        data: Data of the updates.
        num_envs: Number of environments.

    Raises:
        ValueError: Warm-up or rollout are larger than the buffer, or the exponent of priorities is
            not positive and finite.
    """
    if data.prioritize and not 0.0 < data.prioritize.exponent < math.inf:
        raise ValueError(
            f"priority_exponent={data.prioritize.exponent}: write a number of at least 0, such as 0.6"
        )
    capacity, steps_per_tick = data.capacity, num_envs * agent.rollout_length
    if data.warmup_steps > capacity:
        raise ValueError(
            f"warmup_steps={data.warmup_steps} exceeds buffer_size={capacity}: write a smaller warm-up"
        )
    if agent.rollout_length > capacity // num_envs:
        raise ValueError(
            f"rollout_length={agent.rollout_length} in {num_envs} environments exceeds buffer_size={capacity}: "
            f"write a buffer_size of at least {steps_per_tick}"
        )
