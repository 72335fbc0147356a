"""On-policy experience: each rollout is learned from for some epochs, then discarded."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_fast.algorithms.interface import Agent, OnPolicy, OnPolicyBatch, Peers, Values
from jaxrl_fast.algorithms.sequences import apply_apart
from jaxrl_fast.core import Batches, PyTree, Transition
from jaxrl_fast.experience.epochs import cut, epoch_shards, shuffled_epochs
from jaxrl_fast.experience.minibatches import MAX_SHARDS, Experience, take_batch
from jaxrl_fast.experience.scale import Statistics, scale_experience
from jaxrl_fast.networks.network import Network


def on_policy_experience(agent: Agent, data: OnPolicy, num_envs: int, max_shards: int = MAX_SHARDS) -> Experience:
    """The batches of `OnPolicy`, in at most ``max_shards`` logical shards."""

    def step(
        state: PyTree, rollout: Transition, learned: Peers, statistics: Statistics | None, hyper: Any, key: jax.Array
    ) -> tuple[PyTree, Batches]:
        scaled = scale_experience(rollout, statistics, hyper.reward_scale, agent.normalize_rewards, agent.max_return)
        batch = make_batch(data, scaled, values_of(agent, data, scaled, learned), hyper)
        return state, epochs_of(data, batch, scaled.extras.memory, key, num_envs, max_shards)

    shards = shards_of(agent, data, num_envs, max_shards)
    reads = (data.critic,) if data.targets is not None else ()
    return Experience(lambda example: (), step, take_batch, shards, reads, state_axes=0)


def shards_of(agent: Agent, data: OnPolicy, num_envs: int, max_shards: int) -> int:
    """The number of logical shards of on-policy batches."""
    assert data.sequence_length is not None  # `bind` has set it
    return epoch_shards(num_envs, agent.rollout_length // data.sequence_length, data.num_minibatches, max_shards)


def epochs_of(
    data: OnPolicy, batch: OnPolicyBatch, memory: PyTree, key: jax.Array, num_envs: int, max_shards: int
) -> Batches:
    """The minibatches of all epochs, of a rollout's ``batch`` ``[T, E, ...]`` and the memory before each step."""
    shuffled = shuffled_epochs(batch, key, data, num_envs, max_shards)
    starts = cut(jax.tree.map(lambda x: x[:: data.sequence_length], memory), shuffled.indices.shape[1], 1)
    return shuffled._replace(data=shuffled.data._replace(memory=starts))


def make_batch(data: OnPolicy, rollout: Transition, values: Values | None, hyper: Any) -> OnPolicyBatch:
    """The data of a rollout that losses get, ``[T, E, ...]``; ``memory`` is filled in later."""
    batch = OnPolicyBatch(rollout.obs, rollout.action, rollout.first, {}, rollout.extras.decision, {})
    if data.targets is not None:
        assert values is not None
        return batch._replace(targets=data.targets(values, rollout, hyper))
    return batch._replace(transition=rollout._replace(obs=(), action=(), first=(), extras=()))  # type: ignore[arg-type]


def values_of(agent: Agent, data: OnPolicy, rollout: Transition, learned: Peers) -> Values | None:
    """The critic's values of a rollout, all with its params from before the tick's updates."""
    if data.targets is None:
        return None
    network, params, memory = critic_of(agent, data, rollout, learned)
    outputs, memory = apply_apart(network, params, memory, rollout.obs, rollout.first)
    following, _ = apply_apart(network, params, memory, rollout.next_obs, jnp.zeros_like(rollout.first))
    return Values(data.value(outputs, rollout.obs, rollout.action), data.value(following, rollout.next_obs, None))


def critic_of(agent: Agent, data: OnPolicy, rollout: Transition, learned: Peers) -> tuple[Network, PyTree, PyTree]:
    """The critic's network, its params, and its memory before every step of the rollout."""
    network = agent.parts[data.critic].networks[data.network]
    memory = rollout.extras.memory[data.critic] if network.recurrent else ()
    return network, learned[data.critic].params[data.network], memory
