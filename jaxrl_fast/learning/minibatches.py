"""Minibatches from logical shards, and on-policy minibatches: epochs over one rollout.

The data of the updates has a leading axis of ``G`` *logical shards*. ``G`` depends on ``shards``,
the number of environments and the batch size, never on the number of devices, and every minibatch
takes the same number of samples from each shard. So a batch is the same set of samples however the
shards are spread over devices, and building it transfers no data between devices.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import Batches, Metrics, PyTree, Transition, over_two_axes
from jaxrl_fast.learning.algorithm import (
    Agent,
    Learned,
    OnPolicy,
    OnPolicyBatch,
    Peers,
    Values,
    after_steps,
    apply_apart,
    require_positive,
)
from jaxrl_fast.learning.feedback import Feedback
from jaxrl_fast.networks.network import Network
from jaxrl_fast.networks.per_agent import with_mixer
from jaxrl_fast.numerics.normalization import Statistics, scale_experience

MAX_SHARDS = 8
"""Default limit of logical shards, so of the devices over which data is sharded."""


MakeBatches = Callable[
    [PyTree, Transition, dict[str, Learned], Statistics | None, Any, jax.Array],
    tuple[PyTree, Batches],
]
"""(state of this `Experience`; rollout ``[T, E, ...]`` as sampled, not normalized; `Learned` of the
parts that it ``reads``; statistics for normalization, None without; hyper; key) -> (next state,
batches of a tick).
"""


InitStorage = Callable[[Any], PyTree]
"""(shapes and dtypes of a rollout, ``[T, E, ...]``; None unless `Experience.refills`) -> state of
the storage before the first rollout.
"""


StorageMetrics = Callable[[PyTree], Metrics]
"""(state) -> scalars to report on the stored data, by name."""


EndEpisodes = Callable[[PyTree], PyTree]
"""(state) -> state with its stored episodes truncated, because the next rollout does not continue
them. Leaves start with the seeds if there are several.
"""


LearnPriorities = Callable[[PyTree, Feedback], PyTree]
"""(state, priorities of past updates) -> state with new priorities of the sequences in past
updates.
"""


class Experience(NamedTuple):
    """How rollouts become minibatches.

    Attributes:
        init: Makes the state of the storage.
        step: Stores a rollout and makes the batches of a tick.
        take: ``(data, index [G, B / G]) -> minibatch`` of these sequences of the `Batches`, as
            `take_batch`: `OnPolicyBatch` or `ReplayBatch`, leaves ``[L, B, ...]``.
        shards: Number of logical shards of the batches, ``G``.
        reads: Parts whose `Learned` it needs.
        state_axes: Axis of the logical shards in the state's leaves (a prefix tree; None for none).
        metrics: Scalars to report on the state.
        end_episodes: Marks a break between the last rollout and the next.
        refills: Whether training may resume from an empty state, as with a replay buffer.
        prioritized_by: Part whose priorities weight the sampling; None for uniform sampling.
        learn_priorities: Updates the priorities.
        memory_every: Steps of a rollout between two stored memories; the first step's is stored.
    """

    init: InitStorage
    step: MakeBatches
    take: Callable[[PyTree, jax.Array], Any]
    shards: int
    reads: tuple[str, ...] = ()
    state_axes: Any = None
    metrics: StorageMetrics = lambda state: {}
    end_episodes: EndEpisodes = lambda state: state
    refills: bool = False
    prioritized_by: str | None = None
    learn_priorities: LearnPriorities = lambda state, feedback: state
    memory_every: int = 1


class Batching(NamedTuple):
    """The batches of a bound algorithm, and how many there are.

    Attributes:
        experience: How rollouts become minibatches.
        updates_per_tick: Gradient updates in a tick.
        batch_size: Environment steps in the minibatch of an update.
        batch_sequences: Sequences in the minibatch of an update.
        warmup_ticks: Ticks that only fill the storage.
    """

    experience: Experience
    updates_per_tick: int
    batch_size: int
    batch_sequences: int
    warmup_ticks: int = 0


def logical_shards(num_envs: int, batch_size: int, most: int = MAX_SHARDS) -> int:
    """Return ``G``, the number of logical shards.

    Args:
        num_envs: Number of environments.
        batch_size: Samples in a minibatch.
        most: Limit of the shards.

    Returns:
        The greatest common divisor of all three.
    """
    return math.gcd(most, num_envs, batch_size)


def by_shard(leaf: jax.Array, shards: int) -> jax.Array:
    """Split the environments' axis by shard.

    Args:
        leaf: Array ``[T, E, ...]``.
        shards: Number of logical shards.

    Returns:
        Array ``[G, T, E / G, ...]``.
    """
    steps, num_envs, *rest = leaf.shape
    return leaf.reshape(steps, shards, num_envs // shards, *rest).swapaxes(0, 1)


def take_batch(data: PyTree, index: jax.Array) -> PyTree:
    """Gather a minibatch, time-major.

    Args:
        data: Sequences, leaves ``[G, N, L, ...]``.
        index: Sequences of the minibatch, ``[G, B / G]``.

    Returns:
        Leaves ``[L, B, ...]``.
    """

    def take(leaf: jax.Array) -> jax.Array:
        rows = jax.vmap(lambda shard, i: shard[i])(leaf, index)
        return rows.reshape(-1, *rows.shape[2:]).swapaxes(0, 1)

    return jax.tree.map(take, data)


def epoch_shards(
    num_envs: int, sequences_per_env: int, num_minibatches: int, most: int = MAX_SHARDS
) -> int:
    """Return ``G`` of `shuffled_epochs`.

    Args:
        num_envs: Number of environments.
        sequences_per_env: Sequences of each environment in a rollout.
        num_minibatches: Minibatches in an epoch.
        most: Limit of the shards.

    Returns:
        The number of logical shards.
    """
    return logical_shards(num_envs, num_envs * sequences_per_env // num_minibatches, most)


def shuffled_epochs(
    rollout: PyTree, key: jax.Array, data: OnPolicy, num_envs: int, max_shards: int = MAX_SHARDS
) -> Batches:
    """Cut one rollout into sequences and shuffle them for each epoch.

    Every epoch visits each sequence once. A minibatch takes ``N / num_minibatches`` sequences of
    each logical shard.

    Args:
        rollout: Leaves ``[T, E, ...]``.
        key: Random key.
        data: Numbers of epochs and minibatches, and the length of sequences.
        num_envs: Number of environments.
        max_shards: Limit of the shards.

    Returns:
        Batches with sequences ``[G, N, L, ...]``.
    """
    length = data.sequence_length or 1
    per_env = jax.tree.leaves(rollout)[0].shape[0] // length
    shards = epoch_shards(num_envs, per_env, data.num_minibatches, max_shards)
    sequences = per_env * num_envs // shards

    keys = jax.vmap(lambda k: jax.random.split(k, shards))(jax.random.split(key, data.num_epochs))
    order = over_two_axes(lambda k: random_order(k, sequences), keys)
    index = order.reshape(data.num_epochs, shards, data.num_minibatches, -1).swapaxes(1, 2)
    return Batches(
        cut(rollout, shards, length),
        index.reshape(data.num_epochs * data.num_minibatches, shards, -1),
    )


def cut(data: PyTree, shards: int, sequence_length: int) -> PyTree:
    """Cut a rollout into sequences.

    Args:
        data: Leaves ``[T, E, ...]``.
        shards: Number of logical shards.
        sequence_length: Steps of a sequence, ``L``.

    Returns:
        Sequences ``[G, N, L, ...]``.
    """

    def cut_leaf(leaf: jax.Array) -> jax.Array:
        steps, num_envs, *rest = leaf.shape
        leaf = leaf.reshape(
            steps // sequence_length, sequence_length, shards, num_envs // shards, *rest
        )
        order = (2, 0, 3, 1, *range(4, leaf.ndim))
        return leaf.transpose(order).reshape(shards, -1, sequence_length, *rest)

    return jax.tree.map(cut_leaf, data)


def random_order(key: jax.Array, size: int) -> jax.Array:
    """Return a random permutation of ``0 .. size - 1``.

    It sorts random bits with the number in their low bits: one array, which XLA sorts 6 to 12 times
    faster on a CPU than the pairs of `jax.random.permutation`. Numbers with equal random bits, one
    pair in ``2^32 / size``, stay in order.

    Args:
        key: Random key.
        size: Number of elements.

    Returns:
        int32 ``[size]``.
    """
    low = max(1, (size - 1).bit_length())
    words = (jax.random.bits(key, (size,), jnp.uint32) << low) | jnp.arange(size, dtype=jnp.uint32)
    return (jnp.sort(words) & jnp.uint32(2**low - 1)).astype(jnp.int32)


MakeExperience = Callable[[Agent, OnPolicy, int, int], Experience]
"""As `on_policy_experience`."""


def from_rollouts(
    agent: Agent, data: OnPolicy, num_envs: int, max_shards: int, make: MakeExperience
) -> Batching:
    """Return the batches of on-policy data.

    Args:
        agent: Algorithm built for one environment.
        data: Data of the updates, with the length of sequences filled in.
        num_envs: Number of environments.
        max_shards: Limit of the shards.
        make: Builds the minibatches.

    Returns:
        The batches.

    Raises:
        ValueError: The rollout cannot be split equally into minibatches.
    """
    steps = minibatch_steps(agent, data, num_envs)
    return Batching(
        experience=make(agent, data, num_envs, max_shards),
        updates_per_tick=data.num_epochs * data.num_minibatches,
        batch_size=steps,
        batch_sequences=steps // (data.sequence_length or 1),
    )


def minibatch_steps(agent: Agent, data: OnPolicy, num_envs: int) -> int:
    """Return the number of steps per minibatch.

    Args:
        agent: Algorithm built for one environment.
        data: Data of the updates.
        num_envs: Number of environments.

    Returns:
        The number of steps.

    Raises:
        ValueError: The rollout cannot be split equally into minibatches.
    """
    require_positive(num_epochs=data.num_epochs, num_minibatches=data.num_minibatches)
    steps, length = agent.rollout_length, data.sequence_length or 1
    if steps % length:
        raise ValueError(f"rollout_length={steps} is not a multiple of sequence_length={length}")
    sequences, count = num_envs * steps // length, data.num_minibatches
    if sequences % count:
        write = f"steps, which algo.num_minibatches={count} does not divide: write {math.gcd(sequences, count)}"
        raise ValueError(
            f"num_envs={num_envs} rollout_length={steps} gives {sequences} sequences of {length} {write}"
        )
    return sequences // count * length


def on_policy_experience(
    agent: Agent, data: OnPolicy, num_envs: int, max_shards: int = MAX_SHARDS
) -> Experience:
    """Build the minibatches of on-policy data.

    Args:
        agent: Algorithm built for one environment.
        data: Data of the updates.
        num_envs: Number of environments.
        max_shards: Limit of the shards.

    Returns:
        The minibatches, without stored state.
    """

    def step(
        state: PyTree,
        rollout: Transition,
        learned: Peers,
        statistics: Statistics | None,
        hyper: Any,
        key: jax.Array,
    ) -> tuple[PyTree, Batches]:
        scaled = scale_experience(
            rollout, statistics, hyper.reward_scale, agent.normalize_rewards, agent.max_return
        )
        batch = make_batch(data, scaled, values_of(agent, data, scaled, learned), hyper)
        return state, epochs_of(data, batch, scaled.extras.memory, key, num_envs, max_shards)

    shards, every = shards_of(agent, data, num_envs, max_shards), data.sequence_length or 1
    reads = (data.critic,) if data.targets is not None else ()
    return Experience(
        lambda example: (),
        step,
        take_batch,
        shards=shards,
        reads=reads,
        state_axes=0,
        memory_every=every,
    )


def shards_of(agent: Agent, data: OnPolicy, num_envs: int, max_shards: int) -> int:
    """Return the number of logical shards of on-policy batches.

    Args:
        agent: Algorithm built for one environment.
        data: Data of the updates, with the length of sequences filled in.
        num_envs: Number of environments.
        max_shards: Limit of the shards.

    Returns:
        The number of logical shards.
    """
    assert data.sequence_length is not None  # `bind` has set it
    return epoch_shards(
        num_envs, agent.rollout_length // data.sequence_length, data.num_minibatches, max_shards
    )


def epochs_of(
    data: OnPolicy,
    batch: OnPolicyBatch,
    memory: PyTree,
    key: jax.Array,
    num_envs: int,
    max_shards: int,
) -> Batches:
    """Return the minibatches of all epochs.

    Args:
        data: Data of the updates.
        batch: Data of a rollout, ``[T, E, ...]``.
        memory: Recurrent memory before each sequence, ``[T / L, E, ...]``.
        key: Random key.
        num_envs: Number of environments.
        max_shards: Limit of the shards.

    Returns:
        The batches, with the memory at the start of each sequence.
    """
    shuffled = shuffled_epochs(batch, key, data, num_envs, max_shards)
    return shuffled._replace(
        data=shuffled.data._replace(memory=cut(memory, shuffled.indices.shape[1], 1))
    )


def make_batch(
    data: OnPolicy, rollout: Transition, values: Values | None, hyper: Any
) -> OnPolicyBatch:
    """Build the losses' data from a rollout; ``memory`` is filled in later.

    Args:
        data: Data of the updates.
        rollout: Normalized rollout ``[T, E, ...]``.
        values: Values of the critic; None without targets.
        hyper: Hyper-parameters of this tick.

    Returns:
        Data ``[T, E, ...]``.
    """
    batch = OnPolicyBatch(
        rollout.obs,
        rollout.action,
        rollout.first,
        memory={},
        extras=rollout.extras.decision,
        targets={},
    )
    if data.targets is not None:
        assert values is not None
        return batch._replace(targets=data.targets(values, rollout, hyper))
    return batch._replace(transition=rollout._replace(obs=(), action=(), first=(), extras=()))  # type: ignore[arg-type]


def values_of(agent: Agent, data: OnPolicy, rollout: Transition, trained: Peers) -> Values | None:
    """Compute the critic's values of a rollout, with the params from before the tick's updates.

    Args:
        agent: Algorithm built for one environment.
        data: Data of the updates.
        rollout: Normalized rollout ``[T, E, ...]``.
        trained: `Learned` by part.

    Returns:
        Values ``[T, E]``; None if the data has no targets.
    """
    if data.targets is None:
        return None
    network, params, memory = critic_of(agent, data, rollout, trained)
    if network.recurrent:
        outputs, following = over_sequences(network, params, memory, rollout)
    else:
        outputs, _ = apply_apart(network, params, memory, rollout.obs, rollout.first)
        following, _ = apply_apart(
            network, params, memory, rollout.next_obs, jnp.zeros_like(rollout.first)
        )
    return Values(
        data.value(outputs, rollout.obs, rollout.action),
        data.value(following, rollout.next_obs, None),
    )


def over_sequences(
    network: Network, params: PyTree, memory: PyTree, rollout: Transition
) -> tuple[Any, Any]:
    """Run a network with memory over the sequences of a rollout, and at the next observations.

    Args:
        network: Network.
        params: Its params.
        memory: Memory before each sequence, ``[T / L, E, ...]``.
        rollout: Rollout ``[T, E, ...]``.

    Returns:
        Outputs ``[T, E, ...]`` at both.
    """
    count, (steps, num_envs) = len(jax.tree.leaves(memory)[0]), rollout.first.shape

    def side_by_side(x: jax.Array) -> jax.Array:
        # The environments come before their sequences: if they are sharded over devices, nothing is
        # transferred.
        x = x.reshape(count, steps // count, num_envs, *x.shape[2:])
        return jnp.moveaxis(x, 0, 2).reshape(steps // count, -1, *x.shape[3:])

    def in_order(x: jax.Array) -> jax.Array:
        x = x.reshape(steps // count, num_envs, count, *x.shape[2:])
        return jnp.moveaxis(x, 2, 0).reshape(steps, num_envs, *x.shape[3:])

    obs, next_obs, first = jax.tree.map(
        side_by_side, (rollout.obs, rollout.next_obs, rollout.first)
    )
    before = jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:]), memory)
    outputs, memories = network.apply(params, before, obs, first)
    following = after_steps(network, params, (before, obs, first), memories, next_obs)
    return jax.tree.map(in_order, (outputs, following))


def critic_of(
    agent: Agent, data: OnPolicy, rollout: Transition, trained: Peers
) -> tuple[Network, PyTree, PyTree]:
    """Return the critic's network, its params, and its memory before every sequence of the rollout.

    Args:
        agent: Algorithm built for one environment.
        data: Data of the updates, which name the critic.
        rollout: Rollout ``[T, E, ...]``.
        trained: `Learned` by part.

    Returns:
        Network, params and memory.
    """
    networks, params = agent.parts[data.critic].networks, trained[data.critic].params
    network = networks[data.network]
    memory = rollout.extras.memory[data.critic] if network.recurrent else ()
    if data.mixer:
        pair = with_mixer(network, networks[data.mixer])
        return pair, (params[data.network], params[data.mixer]), memory
    return network, params[data.network], memory
