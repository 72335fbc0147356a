"""On-policy experience: each rollout is learned from for some epochs, then discarded."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_fast.algorithms.interface import Agent, Learned, OnPolicy, OnPolicyBatch, Values
from jaxrl_fast.algorithms.sequences import apply_apart
from jaxrl_fast.core import Batches, PyTree, Transition
from jaxrl_fast.experience.epochs import cut, epoch_shards, shuffled_epochs
from jaxrl_fast.experience.minibatches import MAX_SHARDS, Experience, take_batch
from jaxrl_fast.experience.scale import Statistics, scale_experience
from jaxrl_fast.experience.view import (
    Tabled,
    View,
    add_rollout,
    init_recent,
    put_next_stacks,
    put_rows,
    put_stacks,
    take_tabled,
)
from jaxrl_fast.networks.network import Network


def on_policy_experience(
    agent: Agent, data: OnPolicy, view: View, num_envs: int, max_shards: int = MAX_SHARDS
) -> Experience:
    """The batches of `OnPolicy`, in at most ``max_shards`` logical shards."""
    assert data.sequence_length is not None  # `bind` has set it
    length = data.sequence_length
    shards = epoch_shards(num_envs, agent.rollout_length // length, data.num_minibatches, max_shards)
    stacks = view.stack > 1

    def batches_of(rollout: Transition, values: Any, hyper: Any, key: jax.Array) -> Batches:
        batch = make_batch(data, rollout, values, hyper)
        shuffled = shuffled_epochs(
            batch,
            key,
            num_envs=num_envs,
            sequence_length=length,
            num_epochs=data.num_epochs,
            num_minibatches=data.num_minibatches,
            max_shards=max_shards,
        )
        starts = jax.tree.map(lambda x: x[::length], rollout.extras.memory)
        return shuffled._replace(data=shuffled.data._replace(memory=cut(starts, shards, 1)))

    def step(
        state: PyTree, rollout: Transition, learned: dict, statistics: Statistics | None, hyper: Any, key: jax.Array
    ) -> tuple[PyTree, Batches]:
        scaled = scale_experience(rollout, statistics, hyper.reward_scale, agent.normalize_rewards, agent.max_return)
        if not stacks:
            return state, batches_of(scaled, values_of(agent, data, scaled, learned), hyper, key)
        state, tables, rows = add_rollout(view, state, rollout.obs, rollout.first, shards)
        scaled = scaled._replace(obs=put_rows(view, scaled.obs, rows))
        batches = batches_of(scaled, values_of_stacks(agent, data, scaled, tables, learned), hyper, key)
        return state, batches._replace(data=Tabled(batches.data, tables))

    return Experience(
        lambda example: init_recent(view, num_envs, shards) if stacks else (),
        step,
        take_tabled if stacks else take_batch,
        shards,
        reads=(data.critic,) if data.targets is not None else (),
        state_axes=0,
    )


def make_batch(data: OnPolicy, rollout: Transition, values: Values | None, hyper: Any) -> OnPolicyBatch:
    """The data of a rollout that losses get, ``[T, E, ...]``; ``memory`` is filled in later."""
    batch = OnPolicyBatch(rollout.obs, rollout.action, rollout.first, {}, rollout.extras.decision, {})
    if data.targets is not None:
        assert values is not None
        return batch._replace(targets=data.targets(values, rollout, hyper))
    return batch._replace(transition=rollout._replace(obs=(), action=(), first=(), extras=()))  # type: ignore[arg-type]


def values_of(agent: Agent, data: OnPolicy, rollout: Transition, learned: dict[str, Learned]) -> Values | None:
    """The critic's values of a rollout, all with its params from before the tick's updates."""
    if data.targets is None:
        return None
    network, params, memory = _critic(agent, data, rollout, learned)
    outputs, memory = apply_apart(network, params, memory, rollout.obs, rollout.first)
    following, _ = apply_apart(network, params, memory, rollout.next_obs, jnp.zeros_like(rollout.first))
    return Values(data.value(outputs, rollout.obs, rollout.action), data.value(following, rollout.next_obs, None))


def values_of_stacks(
    agent: Agent, data: OnPolicy, rollout: Transition, tables: PyTree, learned: dict[str, Learned]
) -> Values | None:
    """As `values_of` where the observations are rows of tables. One time step after another: the stacks of all steps at
    once would take more memory than the rollout."""
    if data.targets is None:
        return None
    network, params, memory = _critic(agent, data, rollout, learned)

    def one_step(xs: tuple) -> tuple[jax.Array, jax.Array]:
        obs, next_obs, action, first, memory = jax.tree.map(lambda x: x[None], xs)
        stack = put_stacks(tables, obs)
        next_stack = put_next_stacks(tables, stack, next_obs)
        outputs, memory = network.apply(params, jax.tree.map(lambda x: x[0], memory), stack, first)
        after = jax.tree.map(lambda x: x[0], memory)
        following, _ = network.apply(params, after, next_stack, jnp.zeros_like(first))
        return data.value(outputs, stack, action)[0], data.value(following, next_stack, None)[0]

    return Values(*jax.lax.map(one_step, (rollout.obs, rollout.next_obs, rollout.action, rollout.first, memory)))


def _critic(
    agent: Agent, data: OnPolicy, rollout: Transition, learned: dict[str, Learned]
) -> tuple[Network, PyTree, PyTree]:
    """The critic's network, its params, and its memory before every step of the rollout."""
    network = agent.parts[data.critic].networks[data.network]
    memory = rollout.extras.memory[data.critic] if network.recurrent else ()
    return network, learned[data.critic].params[data.network], memory
