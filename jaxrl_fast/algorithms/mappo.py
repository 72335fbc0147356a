"""Multi-agent PPO, for several agents and any actions (arXiv 2103.01955).

Policies read the observation of their agent; the critic reads the global state.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax

from jaxrl_fast.algorithms.multi_agent import PpoOfAgents, ppo_of_agents, ppo_of_one
from jaxrl_fast.algorithms.ppo import first_output
from jaxrl_fast.algorithms.shared_fields import layers_of
from jaxrl_fast.core import STATE, EnvSpec, PyTree
from jaxrl_fast.learning.algorithm import Agent, ValueOf
from jaxrl_fast.networks.network import (
    Network,
    make_network,
)
from jaxrl_fast.networks.per_agent import separate_networks


@dataclass(frozen=True, kw_only=True, eq=False)
class Mappo(PpoOfAgents):
    """MAPPO.

    The critic reads the global state, or all agents' observations if there is none. It has one
    value if agents share their reward, else one for each agent.
    """

    name: ClassVar[str] = "mappo"
    critic_keys: tuple[str, ...] = ()
    """Entries of the whole observation that the critic reads; empty for ``state``, or for all
    entries without a state.
    """

    def sizes(self, num_envs: int, total_steps: int | None = None) -> dict[str, int]:
        """Compute the rollout's length and the minibatches, unless they were given."""
        return ppo_of_one(self).sizes(num_envs, total_steps)

    def build(self, spec: EnvSpec, num_envs: int) -> Agent:
        """Build the agent for one environment."""

        def make_critic(critic: Network) -> tuple[Network, ValueOf]:
            return central_critic(self, spec)

        return ppo_of_agents(self, ppo_of_one(self), spec, num_envs, make_critic)


mappo = Mappo


def central_critic(declared: Mappo, spec: EnvSpec) -> tuple[Network, ValueOf]:
    """Build the critic that reads the global state.

    Args:
        declared: MAPPO.
        spec: Environment of several agents.

    Returns:
        The network, and the function that reads its values.
    """
    assert spec.num_agents is not None
    has_state = isinstance(spec.obs, dict) and STATE in spec.obs
    each = declared.share_parameters and not spec.shared_reward
    value = make_network(
        spec.obs,
        spec.num_agents if each else 1,
        hidden=declared.value_hidden,
        keys=declared.critic_keys or ((STATE,) if has_state else ()),
        **layers_of(declared),
    )
    if not declared.share_parameters:
        return separate_networks(value, spec.num_agents, see_all=True), first_output
    return value, first_output if spec.shared_reward else all_outputs


def all_outputs(outputs: PyTree, obs: PyTree, action: jax.Array | None) -> jax.Array:
    """Return all outputs as values of the agents (`ValueOf`).

    Args:
        outputs: Outputs ``[..., A]``.
        obs: Unused.
        action: Unused.

    Returns:
        Values ``[..., A]``.
    """
    return outputs
