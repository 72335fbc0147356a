"""Soft actor-critic, for continuous actions (arXiv 1812.05905).

Two parts: the critic (two Q-networks and their target networks) and the actor (the policy and the temperature).
"""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import Box, EnvSpec, Metrics, PyTree
from jaxrl_fast.learning.acting import sample_action, temperature_gradient, temperature_network, temperature_optimizer
from jaxrl_fast.learning.algorithm import (
    Agent,
    Algorithm,
    GradientResult,
    Learned,
    Part,
    Replay,
    ReplayBatch,
    WarmupActions,
    gradients_of,
    off_policy_sizes,
    over_replay,
    over_successors,
    require_actions,
)
from jaxrl_fast.learning.critics import policy_and_critics, regression
from jaxrl_fast.networks.network import Activation, Cnn, Network, Precision
from jaxrl_fast.numerics import distributions, losses
from jaxrl_fast.numerics.optimizers import (
    ABOVE_0,
    AnyRate,
    OptimizerName,
    Rate0,
    Rate01,
    check_optimizer,
    checks_numbers,
    make_optimizer,
)


class SacHyper(NamedTuple):
    """Hyper-parameters, each a number or a schedule such as ``Linear(3e-4, 0.0)``.

    Attributes:
        learning_rate: Learning rate of all networks.
        temperature_learning_rate: Learning rate of the temperature's logarithm.
        discount: Discount factor γ per step.
        tau: Weight of the new params in target networks at each update, 0 to 1.
        target_entropy_per_action: Target entropy in nats per action dimension.
        max_grad_norm: Norm to which the gradients of each network are clipped.
        reward_scale: Factor of the rewards.
        weight_decay: Weight decay of AdamW; 0 for other optimizers.
    """

    learning_rate: Any
    temperature_learning_rate: Any
    discount: Any
    tau: Any
    target_entropy_per_action: Any
    max_grad_norm: Any
    reward_scale: Any
    weight_decay: Any = 0.0


@checks_numbers()
def sac(
    *,
    learning_rate: Rate0 = 3e-4,
    temperature_learning_rate: Rate0 = 3e-4,
    discount: Rate01 = 0.99,
    tau: Rate01 = 0.005,
    target_entropy_per_action: AnyRate = -0.5,
    max_grad_norm: Rate0 = 1e6,
    reward_scale: Rate0 = 1.0,
    weight_decay: Rate0 = 0.0,
    rollout_length: int = 1,
    updates_per_tick: int | None = None,
    batch_size: int = 256,
    buffer_size: int = 1_000_000,
    warmup_steps: int | None = None,
    warmup_actions: WarmupActions = "uniform",
    n_step: int = 1,
    sequence_length: int = 8,
    burn_in: int = 4,
    normalize_observations: bool | None = None,
    policy_hidden: tuple[int, ...] = (256, 256),
    critic_hidden: tuple[int, ...] = (256, 256),
    policy_keys: tuple[str, ...] = (),
    critic_keys: tuple[str, ...] = (),
    activation: Activation = "relu",
    critic_layer_norm: bool = False,
    recurrent_size: int = 0,
    initial_temperature: Annotated[float, ABOVE_0] = 1.0,
    cnn: Cnn = "auto",
    optimizer: OptimizerName = "adam",
    precision: Precision = "f32",
    critic_loss: Callable[[jax.Array, jax.Array], jax.Array] = losses.squared_error,
) -> Algorithm:
    """Build SAC.

    A tick samples ``rollout_length`` steps in every environment, then makes ``updates_per_tick`` updates once
    ``warmup_steps`` steps are in the buffer. Images are stored once each.

    Args:
        learning_rate: Learning rate of all networks.
        temperature_learning_rate: Learning rate of the temperature's logarithm.
        discount: Discount factor γ per step.
        tau: Weight of the new params in target networks at each update, 0 to 1.
        target_entropy_per_action: Target entropy in nats per action dimension.
        max_grad_norm: Norm to which the gradients of each network are clipped.
        reward_scale: Factor of the rewards.
        weight_decay: Weight decay of AdamW; 0 for other optimizers.
        rollout_length: Steps of each environment in a tick.
        updates_per_tick: Gradient updates in a tick; None for one per sampled step, at most 64.
        batch_size: Transitions in a minibatch, or sequences with a GRU.
        buffer_size: Capacity of the replay buffer in steps over all environments.
        warmup_steps: Steps over all environments before the first update; None for 5,000, or a 20th of a short run.
        warmup_actions: Actions of these steps: uniformly random ones, or the policy's.
        n_step: Steps whose rewards are summed before bootstrapping.
        sequence_length: Steps of a training sequence with a GRU.
        burn_in: Steps before each sequence that only compute the GRU's memory.
        normalize_observations: Whether to normalize observations; None for all but images and grids.
        policy_hidden: Sizes of the policy's hidden layers.
        critic_hidden: Sizes of the critics' hidden layers.
        policy_keys: Entries of a dictionary observation that the policy reads; empty for all.
        critic_keys: Entries of a dictionary observation that the critic reads; empty for all.
        activation: Activation of the hidden layers.
        critic_layer_norm: Whether to normalize the critics' hidden layers.
        recurrent_size: Size of a GRU before the hidden layers; 0 for none.
        initial_temperature: Temperature at the start of the run.
        cnn: Convolutions for images (`make_network`).
        optimizer: ``adam``, ``adamw``, ``radam`` or ``rmsprop``; with constants ``adam:epsilon:beta1:beta2`` or
            ``rmsprop:epsilon:decay``.
        precision: "f32", or "bf16" for dense layers and convolutions.
        critic_loss: ``(q, target) -> loss``, on scalars.

    Returns:
        The algorithm.
    """
    rates = learning_rate, temperature_learning_rate, discount, tau, target_entropy_per_action
    hyper = SacHyper(*rates, max_grad_norm, reward_scale, weight_decay)
    options: dict[str, Any] = dict(activation=activation, recurrent_size=recurrent_size, cnn=cnn, precision=precision)
    options |= dict(policy_hidden=tuple(policy_hidden), critic_hidden=tuple(critic_hidden))
    options |= dict(policy_keys=tuple(policy_keys), critic_keys=tuple(critic_keys))
    options |= dict(critic_layer_norm=critic_layer_norm, optimizer=optimizer)
    sizes = off_policy_sizes(rollout_length, updates_per_tick, warmup_steps)

    def build(spec: EnvSpec, num_envs: int) -> Agent:
        box = require_actions("sac", spec, (Box,), "sac_discrete")
        check_optimizer(optimizer, weight_decay)
        updates, warmup = sizes(num_envs).values()
        data = Replay(buffer_size, batch_size, updates, warmup, n_step, sequence_length, burn_in)
        data = data._replace(warmup_actions=warmup_actions)
        size = distributions.num_outputs(box)
        policy, q = policy_and_critics(spec.obs, options, policy_size=size, action_shape=(box.low.size,))
        networks = {"policy": policy, "temperature": temperature_network(initial_temperature)}
        return Agent(
            parts={
                "critic": critic_part(box, policy, q, data, critic_loss, optimizer),
                "actor": actor_part(box, networks, q, data, optimizer),
            },
            data=data,
            acts={"actor": "policy"},
            remembers={"critic": "q"} if recurrent_size else {},
            decide=sample_action(box, remember=False),
            rollout_length=rollout_length,
            normalize_observations=normalize_observations,
        )

    return Algorithm("sac", hyper, options, build, sizes)


def critic_part(
    box: Box, policy: Network, q_networks: Network, data: Replay, critic_loss: Callable, optimizer: OptimizerName
) -> Part:
    """Build the Q-networks' part: regression on the soft Bellman target, then a step of the target networks.

    Args:
        box: Action space.
        policy: Policy network.
        q_networks: Ensemble of Q-networks.
        data: Data of the updates.
        critic_loss: Loss of a value and its target.
        optimizer: `OptimizerName`.

    Returns:
        The part.
    """

    def gradients(
        own: Learned, peers: dict[str, Learned], batch: ReplayBatch, key: jax.Array, hyper: SacHyper
    ) -> GradientResult:
        actor = peers["actor"].params
        dist = distributions.tanh_normal(over_successors(data, policy, actor["policy"], batch, "actor"))
        raw = distributions.sample(dist, key)
        next_q = over_successors(data, q_networks, own.target["q"], batch, "critic", jnp.tanh(raw))[..., 0]
        soft_target = jax.vmap(jax.vmap(losses.soft_target, (0, 0, 1, 0, None)), (0, 0, 1, 0, None))
        target = soft_target(
            batch.reward, batch.bootstrap, next_q, distributions.log_prob(dist, raw), jnp.exp(actor["temperature"])
        )

        def loss_fn(params: PyTree) -> tuple[jax.Array, Metrics]:
            action = distributions.to_unit(box, batch.action)
            q = over_replay(data, q_networks, params, batch, "critic", action)[..., 0]
            loss = regression(critic_loss, q, target, batch)
            return loss, {"critic_loss": loss, "q_mean": jnp.mean(q)}

        grads, metrics = gradients_of(loss_fn, own.params["q"])
        return GradientResult({"q": grads}, metrics)

    return Part({"q": q_networks}, gradients, {"q": make_optimizer(optimizer)}, reads=("actor",), targets=("q",))


def actor_part(
    box: Box, networks: dict[str, Network], q_networks: Network, data: Replay, optimizer: OptimizerName
) -> Part:
    """Build the part of the policy, which maximizes the critic's value plus entropy, and of the temperature.

    The temperature's logarithm is trained to hold the entropy at its target.

    Args:
        box: Action space.
        networks: Policy and temperature.
        q_networks: Ensemble of Q-networks.
        data: Data of the updates.
        optimizer: `OptimizerName`.

    Returns:
        The part.
    """
    action_size = box.low.size

    def gradients(
        own: Learned, peers: dict[str, Learned], batch: ReplayBatch, key: jax.Array, hyper: SacHyper
    ) -> GradientResult:
        log_temperature, critic = own.params["temperature"], peers["critic"].params["q"]
        temperature = jnp.exp(log_temperature)

        def policy_loss(params: PyTree) -> tuple[jax.Array, Metrics]:
            dist = distributions.tanh_normal(over_replay(data, networks["policy"], params, batch, "actor"))
            raw = distributions.sample(dist, key)
            log_prob = distributions.log_prob(dist, raw)
            q = over_replay(data, q_networks, critic, batch, "critic", jnp.tanh(raw))[..., 0]
            soft_policy = jax.vmap(jax.vmap(losses.soft_policy, (1, 0, None)), (1, 0, None))
            loss = jnp.mean(soft_policy(q, log_prob, temperature))
            return loss, {"policy_loss": loss, "entropy": -jnp.mean(log_prob)}

        policy_grads, metrics = gradients_of(policy_loss, own.params["policy"])
        target_entropy = hyper.target_entropy_per_action * action_size
        temperature_grad = temperature_gradient(log_temperature, metrics["entropy"], target_entropy)
        grads = {"policy": policy_grads, "temperature": temperature_grad}
        return GradientResult(grads, {**metrics, "temperature": temperature})

    optimizers = {"policy": make_optimizer(optimizer), "temperature": temperature_optimizer()}
    return Part(networks, gradients, optimizers, reads=("critic",))
