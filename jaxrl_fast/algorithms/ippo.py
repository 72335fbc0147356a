"""Independent PPO, for several agents and any actions (arXiv 2011.09533).

Each agent runs PPO and treats the others as a part of the environment.
"""

from collections.abc import Callable

import jax

from jaxrl_fast.algorithms.multi_agent import network_of_all, ppo_of_agents
from jaxrl_fast.algorithms.ppo import first_output
from jaxrl_fast.core import EnvSpec
from jaxrl_fast.learning.algorithm import Algorithm, ValueOf
from jaxrl_fast.networks.network import Activation, Cnn, MemoryKind, Network, Precision, Torso
from jaxrl_fast.numerics import losses
from jaxrl_fast.numerics.optimizers import OptimizerName, Rate0, Rate01, checks_numbers


@checks_numbers()
def ippo(
    *,
    learning_rate: Rate0 = 3e-4,
    critic_learning_rate_ratio: Rate0 = 1.0,
    discount: Rate01 = 0.99,
    gae_lambda: Rate01 = 0.95,
    clip_range: Rate0 = 0.2,
    entropy_coef: Rate0 = 0.01,
    max_grad_norm: Rate0 = 0.5,
    reward_scale: Rate0 = 1.0,
    weight_decay: Rate0 = 0.0,
    rollout_length: int | None = None,
    num_epochs: int = 4,
    num_minibatches: int | None = None,
    normalize_observations: bool = False,
    normalize_rewards: bool = False,
    normalize_advantages: bool = True,
    normalize_values: bool = False,
    share_parameters: bool = True,
    policy_hidden: tuple[int, ...] = (64, 64),
    value_hidden: tuple[int, ...] = (64, 64),
    policy_keys: tuple[str, ...] = (),
    critic_keys: tuple[str, ...] = (),
    activation: Activation = "tanh",
    layer_norm: bool = False,
    memory: MemoryKind = "gru",
    recurrent_size: int = 0,
    network: Torso = "mlp",
    cnn: Cnn = "auto",
    optimizer: OptimizerName = "adam:1e-5",
    precision: Precision = "f32",
    policy_loss: Callable[..., jax.Array] = losses.clipped_surrogate,
    value_loss: Callable[..., jax.Array] = losses.squared_error,
) -> Algorithm:
    """Build IPPO: policy and critic read the observation of one agent.

    Args:
        learning_rate: Learning rate of the policy.
        critic_learning_rate_ratio: Learning rate of the critic, relative to ``learning_rate``.
        discount: Discount factor γ per step.
        gae_lambda: λ of the advantages.
        clip_range: Largest deviation of the probability ratio from 1 (ε of PPO's loss).
        entropy_coef: Weight of the policy's entropy in the loss.
        max_grad_norm: Norm to which the gradients of each network are clipped.
        reward_scale: Factor of the rewards.
        weight_decay: Weight decay of AdamW; 0 for other optimizers.
        rollout_length: Steps of each environment in a tick; None for a length that depends on
            ``num_envs`` (`default_rollout`).
        num_epochs: Passes over a rollout.
        num_minibatches: Minibatches in an epoch; None for a power of two that depends on
            ``num_envs`` (`on_policy_sizes`).
        normalize_observations: Whether to normalize observations.
        normalize_rewards: Whether to divide rewards by the deviation of returns.
        normalize_advantages: Whether to normalize advantages in each minibatch.
        normalize_values: Whether the critic learns targets that are scaled by their running mean
            and deviation.
        share_parameters: Whether agents share networks, which read the agent's number, or have
            separate networks and optimizers.
        policy_hidden: Sizes of the policy's hidden layers.
        value_hidden: Sizes of the value network's hidden layers.
        policy_keys: Entries of a dictionary observation that the policy reads; empty for all.
        critic_keys: Entries of a dictionary observation that the critic reads; empty for all.
        activation: Activation of the hidden layers.
        layer_norm: Whether to normalize the hidden layers.
        memory: Kind of the memory: "gru", "lstm", "mingru", "lru", "gtrxl-64x2" (window, layers),
            or your own function (`make_memory`).
        recurrent_size: Size of the memory before the hidden layers; 0 for none.
            With it, minibatches are whole sequences.
        network: Torso of the networks: "mlp", "residual", "simba", or your own function
            (`own_torso`).
        cnn: Convolutions for images (`make_network`).
        optimizer: ``adam``, ``adamw``, ``radam`` or ``rmsprop``; with constants
            ``adam:epsilon:beta1:beta2`` or ``rmsprop:epsilon:decay``.
        precision: "f32", or "bf16" for dense layers and convolutions.
        policy_loss: ``(log_ratio, advantage, clip_range) -> loss``, on scalars.
        value_loss: ``(value, target) -> loss``, on scalars.

    Returns:
        The algorithm.
    """
    given = locals()

    def make_critic(spec: EnvSpec, one: Network) -> tuple[Network, ValueOf]:
        return network_of_all(one, spec, shared=share_parameters), first_output

    return ppo_of_agents("ippo", given, make_critic, own_critic_keys=critic_keys)
