"""Multi-agent PPO, several agents, any actions (arXiv 2103.01955): policies see what their agent observes, the critic
sees the state of the world.
"""

from collections.abc import Callable
from typing import Any

import jax

from jaxrl_fast.algorithms.multi_agent import ppo_of_agents
from jaxrl_fast.algorithms.ppo import first_output
from jaxrl_fast.core import STATE, EnvSpec, PyTree
from jaxrl_fast.learning.algorithm import Algorithm, ValueOf
from jaxrl_fast.networks.network import Activation, Cnn, Network, Precision, make_network
from jaxrl_fast.networks.per_agent import separate_networks
from jaxrl_fast.numerics import losses
from jaxrl_fast.numerics.optimizers import OptimizerName


def mappo(
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
    """MAPPO. The critic reads the entries ``critic_keys`` of the whole observation: by default the world's ``state``,
    or all that agents observe side by side where it has none. It has one value where agents share their reward, else
    one for each.

    ``share_parameters``: all agents have the same networks, and the policy sees the agent's number; else each has
    networks and optimizers of its own. The other arguments are those of `jaxrl_fast.ppo`.
    """
    given = locals()

    def make_critic(spec: EnvSpec, one: Network) -> tuple[Network, ValueOf]:
        assert spec.num_agents is not None
        has_state = isinstance(spec.obs, dict) and STATE in spec.obs
        size = spec.num_agents if share_parameters and not spec.shared_reward else 1
        keys = tuple(critic_keys) or ((STATE,) if has_state else ())
        how: dict[str, Any] = dict(activation=activation, layer_norm=layer_norm, cnn=cnn, precision=precision)
        network = make_network(spec.obs, size, hidden=value_hidden, keys=keys, recurrent_size=recurrent_size, **how)
        if not share_parameters:
            return separate_networks(network, spec.num_agents, see_all=True), first_output
        return network, first_output if spec.shared_reward else all_outputs

    return ppo_of_agents("mappo", given, make_critic)


def all_outputs(outputs: PyTree, obs: PyTree, action: jax.Array | None) -> jax.Array:
    """A value for each agent (`ValueOf`)."""
    return outputs
