"""Independent PPO, for several agents and any actions (arXiv 2011.09533).

Each agent runs PPO and treats the others as a part of the environment.
"""

from dataclasses import dataclass
from typing import ClassVar

from jaxrl_fast.algorithms.multi_agent import PpoOfAgents, network_of_all, ppo_of_agents, ppo_of_one
from jaxrl_fast.algorithms.ppo import first_output
from jaxrl_fast.core import EnvSpec
from jaxrl_fast.learning.algorithm import Agent, ValueOf
from jaxrl_fast.networks.network import Network


@dataclass(frozen=True, kw_only=True, eq=False)
class Ippo(PpoOfAgents):
    """IPPO: policy and critic read the observation of one agent."""

    name: ClassVar[str] = "ippo"

    def sizes(self, num_envs: int, total_steps: int | None = None) -> dict[str, int]:
        """Compute the rollout's length and the minibatches, unless they were given."""
        return ppo_of_one(self).sizes(num_envs, total_steps)

    def build(self, spec: EnvSpec, num_envs: int) -> Agent:
        """Build the agent for one environment."""
        one = ppo_of_one(self, self.critic_keys)

        def make_critic(critic: Network) -> tuple[Network, ValueOf]:
            return network_of_all(critic, spec, shared=self.share_parameters), first_output

        return ppo_of_agents(self, one, spec, num_envs, make_critic)


ippo = Ippo
