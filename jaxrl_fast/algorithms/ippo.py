"""Independent PPO, several agents, any actions (arXiv 2011.09533): PPO for each agent, to which the others are a part
of the world.
"""

from collections.abc import Callable
from typing import Any

import jax

from jaxrl_fast.algorithms.multi_agent import network_of_all, ppo_of_agents
from jaxrl_fast.algorithms.ppo import first_output
from jaxrl_fast.core import EnvSpec
from jaxrl_fast.learning.algorithm import Algorithm, ValueOf
from jaxrl_fast.networks.network import Activation, Cnn, Network, Precision
from jaxrl_fast.numerics import losses
from jaxrl_fast.numerics.optimizers import OptimizerName


def ippo(
    *,
    learning_rate: Any = 3e-4,
    critic_learning_rate_ratio: Any = 1.0,
    discount: Any = 0.99,
    gae_lambda: Any = 0.95,
    clip_range: Any = 0.2,
    entropy_coef: Any = 0.01,
    max_grad_norm: Any = 0.5,
    reward_scale: Any = 1.0,
    weight_decay: Any = 0.0,
    rollout_length: int | None = None,
    num_epochs: int = 4,
    num_minibatches: int | None = None,
    normalize_observations: bool = False,
    normalize_rewards: bool = False,
    normalize_advantages: bool = True,
    share_parameters: bool = True,
    policy_hidden: tuple[int, ...] = (64, 64),
    value_hidden: tuple[int, ...] = (64, 64),
    policy_keys: tuple[str, ...] = (),
    critic_keys: tuple[str, ...] = (),
    activation: Activation = "tanh",
    layer_norm: bool = False,
    recurrent_size: int = 0,
    cnn: Cnn = "auto",
    optimizer: OptimizerName = "adam",
    precision: Precision = "f32",
    policy_loss: Callable[..., jax.Array] = losses.clipped_surrogate,
    value_loss: Callable[..., jax.Array] = losses.squared_error,
) -> Algorithm:
    """IPPO: policy and critic see what their agent observes.

    ``share_parameters``: all agents have the same networks, which see the agent's number; else each has networks and
    optimizers of its own. The other arguments are those of `jaxrl_fast.ppo`.
    """
    given = locals()

    def make_critic(spec: EnvSpec, one: Network) -> tuple[Network, ValueOf]:
        return network_of_all(one, spec, shared=share_parameters), first_output

    return ppo_of_agents("ippo", given, make_critic, own_critic_keys=critic_keys)
