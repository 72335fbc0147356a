"""Code that algorithms for several agents share: it extends an algorithm for one agent to all
agents.

Agents share a network, which reads their number, or have separate networks (`networks.per_agent`).
If agents can be out, losses exclude the steps that they do not take.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from jaxrl_fast.algorithms import ppo
from jaxrl_fast.algorithms.ppo_options import with_normalized_values
from jaxrl_fast.algorithms.shared_fields import AgentFields, same_fields
from jaxrl_fast.core import OUT, EnvSpec, PyTree, Transition
from jaxrl_fast.learning.algorithm import (
    Agent,
    MakeTargets,
    OnPolicy,
    OnPolicyBatch,
    Part,
    ValueOf,
    Values,
)
from jaxrl_fast.networks.network import Network
from jaxrl_fast.networks.per_agent import NUMBER, obs_of_one, separate_networks, shared_network
from jaxrl_fast.numerics.optimizers import MakeOptimizer, make_optimizer

TAKES_PART = "takes_part"
"""Target that marks which agents take part in a step, bool ``[T, E, A]``."""
MakeCritic = Callable[[Network], tuple[Network, ValueOf]]
"""(critic of one agent) -> critic of all agents, and the function that reads its values."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PpoOfAgents(AgentFields, ppo.PpoFields):
    """Fields of PPO for several agents."""

    for_agents: ClassVar[bool] = True

    num_epochs: int = 4
    normalize_observations: bool = False
    """Whether to normalize observations."""
    normalize_rewards: bool = False
    """Whether to divide rewards by the deviation of returns."""

    def __post_init__(self) -> None:
        """Check and convert the fields.

        Raises:
            ValueError: A value is not allowed, or ``normalize_values`` of agents with separate
                networks.
        """
        super().__post_init__()
        if self.normalize_values and not self.share_parameters:
            raise ValueError("normalize_values=true: write share_parameters=true, or leave it out")


def spec_of_one(spec: EnvSpec, *, shared: bool) -> EnvSpec:
    """Return the environment as the network of one agent reads it.

    Args:
        spec: Environment of several agents.
        shared: Whether agents share the network.

    Returns:
        An environment of one agent.
    """
    assert spec.num_agents is not None  # `learning.acting` has checked it
    obs = obs_of_one(spec.obs, spec.num_agents, shared=shared)
    return spec._replace(obs=obs, num_agents=None, shared_reward=False)


def keys_of_one(keys: tuple[str, ...], *, shared: bool) -> tuple[str, ...]:
    """Return the entries of `spec_of_one` that a network reads.

    Args:
        keys: Entries of an agent's observation; empty for all.
        shared: Whether agents share the network, which then also reads the agent's number.

    Returns:
        The entries.
    """
    return (*keys, NUMBER) if keys and shared else tuple(keys)


def network_of_all(one: Network, spec: EnvSpec, *, shared: bool) -> Network:
    """Extend the network of one agent to all agents.

    Args:
        one: Network of one agent.
        spec: Environment of several agents.
        shared: Whether agents share the network.

    Returns:
        A network over the agents' axis.
    """
    assert spec.num_agents is not None
    return (
        shared_network(one, spec.num_agents) if shared else separate_networks(one, spec.num_agents)
    )


def with_own_optimizers(part: Part) -> Part:
    """Give agents with separate networks separate optimizers.

    Args:
        part: Part.

    Returns:
        The part, with optimizers mapped over agents.
    """
    separate = {name for name, network in part.networks.items() if network.separate}
    each = {
        name: _each_agent(make) if name in separate else make
        for name, make in part.optimizers.items()
    }
    return part._replace(optimizers=each)


def _each_agent(make: MakeOptimizer) -> MakeOptimizer:
    def make_all(hyper: Any) -> optax.GradientTransformation:
        one = make(hyper)

        def update(grads: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
            return jax.vmap(one.update)(grads, state, params)

        return optax.GradientTransformation(jax.vmap(one.init), update)

    return make_all


def out_of(obs: PyTree) -> jax.Array | None:
    """Return which agents are out.

    Args:
        obs: Observation.

    Returns:
        bool ``[..., A]``; None if no agent is ever out.
    """
    return obs.get(OUT) if isinstance(obs, dict) else None


def mean_over_agents(*, separate: bool, masked: bool) -> ppo.Mean:
    """Return the mean over steps of several agents.

    Args:
        separate: Whether each agent has a mean, ``[1, 1, A]``, instead of one mean of all.
        masked: Whether to exclude the steps in which agents are out.

    Returns:
        The mean.
    """
    axes = (0, 1) if separate else None

    def mean(x: jax.Array, batch: OnPolicyBatch) -> jax.Array:
        if not masked:
            return jnp.mean(x, axis=axes, dtype=jnp.float32, keepdims=separate)
        counts = batch.targets[TAKES_PART]
        total = jnp.sum(jnp.where(counts, x, 0.0), axis=axes, keepdims=separate)
        return total / jnp.maximum(jnp.sum(counts, axis=axes, keepdims=separate), 1)

    return mean


def ppo_of_one(declared: PpoOfAgents, critic_keys: tuple[str, ...] = ()) -> ppo.Ppo:
    """Return PPO for one agent.

    Args:
        declared: PPO for several agents.
        critic_keys: Entries that the critic of one agent reads, if it is used.

    Returns:
        PPO.
    """
    shared = declared.share_parameters
    keys = {
        "policy_keys": keys_of_one(declared.policy_keys, shared=shared),
        "critic_keys": keys_of_one(critic_keys, shared=shared),
    }
    return ppo.Ppo(**same_fields(declared, ppo.Ppo) | keys)


def ppo_of_agents(
    declared: PpoOfAgents, one: ppo.Ppo, spec: EnvSpec, num_envs: int, make_critic: MakeCritic
) -> Agent:
    """Build PPO for several agents.

    Args:
        declared: PPO for several agents.
        one: PPO for one agent (`ppo_of_one`).
        spec: Environment of several agents.
        num_envs: Number of environments.
        make_critic: Builds the critic of all agents.

    Returns:
        The agent.
    """
    shared = declared.share_parameters
    agent = one.build(spec_of_one(spec, shared=shared), num_envs)
    assert isinstance(agent.data, OnPolicy)
    policy = network_of_all(agent.parts["actor"].networks["policy"], spec, shared=shared)
    value, value_of = make_critic(agent.parts["critic"].networks["value"])
    masked = out_of(spec.obs) is not None
    acting = mean_over_agents(separate=policy.separate, masked=masked)
    valued = mean_over_agents(separate=value.separate, masked=masked and not spec.shared_reward)
    critic = ppo.critic_part(value, declared.value_loss, declared.optimizer, value_of, valued)
    if declared.normalize_values:
        critic = with_normalized_values(critic, valued)
    loss = ppo.surrogate_loss(
        spec.action, declared.policy_loss, declared.normalize_advantages, acting
    )
    actor = ppo.part_of("actor", "policy", policy, loss, make_optimizer(declared.optimizer))
    return agent._replace(
        parts={"critic": with_own_optimizers(critic), "actor": with_own_optimizers(actor)},
        data=agent.data._replace(targets=targets_of_agents(spec), value=value_of),
    )


def targets_of_agents(spec: EnvSpec) -> MakeTargets:
    """Return the function that computes PPO's targets for each agent.

    If agents have separate rewards, an agent's return stops when it is out. A shared reward
    continues.

    Args:
        spec: Environment of several agents.

    Returns:
        The function.
    """

    def targets(values: Values, rollout: Transition, hyper: Any) -> dict[str, jax.Array]:
        shape = values.now.shape  # [T, E] where the team has one value, else [T, E, A]

        def flat(x: jax.Array) -> jax.Array:
            x = x if x.ndim == len(shape) else x[..., None]
            return jnp.broadcast_to(x, shape).reshape(shape[0], -1)

        gone = None if spec.shared_reward else out_of(rollout.next_obs)
        terminated = rollout.terminated if gone is None else rollout.terminated[..., None] | gone
        steps = rollout._replace(
            reward=flat(rollout.reward),
            terminated=flat(terminated),
            truncated=flat(rollout.truncated),
        )
        arrays = ppo.targets(Values(flat(values.now), flat(values.next)), steps, hyper)
        arrays = {name: x.reshape(shape) for name, x in arrays.items()}
        if len(shape) == 2:
            arrays["advantage"] = jnp.broadcast_to(
                arrays["advantage"][..., None], (*shape, spec.num_agents)
            )
        out = out_of(rollout.obs)
        return arrays if out is None else arrays | {TAKES_PART: ~out}

    return targets
