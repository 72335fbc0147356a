"""Implicit Q-learning from recorded steps, for continuous actions (IQL, arXiv 2110.06169).

No loss evaluates an action that is not in the data: a value network learns an upper expectile of
the Q-values of the recorded actions, Q-networks bootstrap from that value, and the policy imitates
recorded actions with weights that grow with their advantage.
"""

import math
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.algorithms.ppo_options import with_free_outputs
from jaxrl_fast.core import Actions, Box, EnvSpec, Metrics, Number, PyTree
from jaxrl_fast.learning.acting import sample_action
from jaxrl_fast.learning.algorithm import (
    Agent,
    Algorithm,
    GradientResult,
    Learned,
    Part,
    Replay,
    ReplayBatch,
    gradients_of,
    off_policy_sizes,
    over_replay,
    over_successors,
    require_actions,
)
from jaxrl_fast.learning.critics import policy_and_critics, regression
from jaxrl_fast.networks.network import Activation, Cnn, Network, Precision, Torso, make_network
from jaxrl_fast.numerics import distributions, losses
from jaxrl_fast.numerics.distributions import Normal
from jaxrl_fast.numerics.optimizers import (
    OptimizerName,
    Rate0,
    Rate01,
    check_optimizer,
    checks_numbers,
    make_optimizer,
)

MAX_WEIGHT = 100.0
"""Largest weight of a recorded action, as published."""
LOG_DEVIATIONS = -5.0, 2.0
"""Bounds of the logarithm of the policy's standard deviations, as published."""


class IqlHyper(NamedTuple):
    """Hyper-parameters, each a number or a schedule such as ``Cosine(3e-4, 0.0)``.

    Attributes:
        learning_rate: Learning rate of the critics.
        actor_learning_rate_ratio: Learning rate of the actor, relative to ``learning_rate``.
        discount: Discount factor γ per step.
        tau: Weight of the new params in the target Q-networks, 0 to 1.
        expectile: Expectile of the Q-values that the value network learns, 0.5 (mean) to 1
            (maximum).
        advantage_scale: Factor of the advantage in the exponent of a recorded action's weight; β in
            the paper.
        max_grad_norm: Norm to which the gradients of each network are clipped.
        reward_scale: Factor of the rewards.
        weight_decay: Weight decay of AdamW; 0 for other optimizers.
    """

    learning_rate: Any
    actor_learning_rate_ratio: Any
    discount: Any
    tau: Any
    expectile: Any
    advantage_scale: Any
    max_grad_norm: Any
    reward_scale: Any
    weight_decay: Any


@checks_numbers()
def iql(
    *,
    learning_rate: Rate0 = 3e-4,
    actor_learning_rate_ratio: Rate0 = 1.0,
    discount: Rate01 = 0.99,
    tau: Rate01 = 0.005,
    expectile: Rate01 = 0.7,
    advantage_scale: Rate0 = 3.0,
    max_grad_norm: Rate0 = 1e6,
    reward_scale: Rate0 = 1.0,
    weight_decay: Rate0 = 0.0,
    rollout_length: int = 1,
    updates_per_tick: int | None = None,
    batch_size: int = 256,
    buffer_size: int = 1_000_000,
    warmup_steps: int | None = None,
    n_step: int = 1,
    normalize_observations: bool | None = None,
    policy_hidden: tuple[int, ...] = (256, 256),
    critic_hidden: tuple[int, ...] = (256, 256),
    policy_dropout: Annotated[float, Number(0, 0.9)] = 0.0,
    policy_keys: tuple[str, ...] = (),
    critic_keys: tuple[str, ...] = (),
    activation: Activation = "relu",
    critic_layer_norm: bool = False,
    network: Torso = "mlp",
    cnn: Cnn = "auto",
    optimizer: OptimizerName = "adam",
    precision: Precision = "f32",
) -> Algorithm:
    """Build IQL.

    Args:
        learning_rate: Learning rate of the critics.
        actor_learning_rate_ratio: Learning rate of the actor, relative to ``learning_rate``.
        discount: Discount factor γ per step.
        tau: Weight of the new params in the target Q-networks, 0 to 1.
        expectile: Expectile of the Q-values that the value network learns, 0.5 (mean) to 1
            (maximum).
        advantage_scale: Factor of the advantage in the exponent of a recorded action's weight; β in
            the paper.
        max_grad_norm: Norm to which the gradients of each network are clipped.
        reward_scale: Factor of the rewards, which scales advantages, too.
        weight_decay: Weight decay of AdamW; 0 for other optimizers.
        rollout_length: Steps of each environment in a tick.
        updates_per_tick: Gradient updates in a tick; None for one per step, at most 64.
        batch_size: Transitions in a minibatch.
        buffer_size: Capacity of the replay buffer of sampled steps.
        warmup_steps: Steps before the first update, without data; None for 5,000, or a 20th of a
            short run.
        n_step: Steps whose rewards are summed before bootstrapping.
        normalize_observations: Whether to normalize observations; None for all but images and
            grids.
        policy_hidden: Sizes of the policy's hidden layers.
        critic_hidden: Sizes of the hidden layers of critics and value network.
        policy_dropout: Share of the outputs of the policy's hidden layers that an update sets to 0.
        policy_keys: Entries of a dictionary observation that the policy reads; empty for all.
        critic_keys: Entries of a dictionary observation that the critics read; empty for all.
        activation: Activation of the hidden layers.
        critic_layer_norm: Whether to normalize the critics' hidden layers.
        network: Torso of the networks: "mlp", "residual", "simba", or your own function
            (`own_torso`).
        cnn: Convolutions for images (`make_network`).
        optimizer: ``adam``, ``adamw``, ``radam`` or ``rmsprop``; with constants
            ``adam:epsilon:beta1:beta2`` or ``rmsprop:epsilon:decay``.
        precision: "f32", or "bf16" for dense layers and convolutions.

    Returns:
        The algorithm.
    """
    rates = learning_rate, actor_learning_rate_ratio, discount, tau, expectile, advantage_scale
    hyper = IqlHyper(*rates, max_grad_norm, reward_scale, weight_decay)
    shared: dict[str, Any] = dict(
        activation=activation, network=network, cnn=cnn, precision=precision
    )
    options: dict[str, Any] = dict(
        policy_hidden=tuple(policy_hidden), critic_hidden=tuple(critic_hidden), **shared
    )
    options |= dict(
        policy_keys=tuple(policy_keys),
        critic_keys=tuple(critic_keys),
        policy_dropout=policy_dropout,
    )
    options |= dict(critic_layer_norm=critic_layer_norm, optimizer=optimizer)
    sizes = off_policy_sizes(rollout_length, updates_per_tick, warmup_steps)

    def build(spec: EnvSpec, num_envs: int) -> Agent:
        box = require_actions("iql", spec, (Box,), "bc")
        check_optimizer(optimizer, weight_decay)
        updates, warmup = sizes(num_envs).values()
        data = Replay(buffer_size, batch_size, updates, warmup, n_step)
        plain = {**options, "memory": "gru", "recurrent_size": 0}
        _, q = policy_and_critics(spec.obs, plain, policy_size=1, action_shape=(box.low.size,))
        critic = dict(
            hidden=options["critic_hidden"],
            keys=options["critic_keys"],
            layer_norm=critic_layer_norm,
        )
        value = make_network(spec.obs, 1, **critic, **shared)
        actor = dict(
            hidden=options["policy_hidden"], keys=options["policy_keys"], dropout=policy_dropout
        )
        policy = make_network(spec.obs, box.low.size, out_scale=0.01, **actor, **shared)
        return Agent(
            parts={
                "critic": critic_part(box, q, value, data, optimizer),
                "actor": actor_part(
                    box, with_deviations(policy, box.low.size), q, value, data, optimizer
                ),
            },
            data=data,
            acts={"actor": "policy"},
            decide=sample_action(box, remember=False, policy=bounded_normal),
            rollout_length=rollout_length,
            normalize_observations=normalize_observations,
        )

    return Algorithm("iql", hyper, options, build, sizes)


def with_deviations(policy: Network, size: int) -> Network:
    """Let trained deviations that are the same in every state follow the policy's means.

    Args:
        policy: Network of the means.
        size: Number of action dimensions.

    Returns:
        The network, also with dropout if ``policy`` has it.
    """
    whole, dropped = with_free_outputs(policy, (0.0,) * size), policy.with_dropout
    if dropped is None:
        return whole
    return whole._replace(with_dropout=lambda key: with_free_outputs(dropped(key), (0.0,) * size))


def bounded_normal(space: Actions, outputs: jax.Array, obs: PyTree = None) -> Normal:
    """Build the policy: normals with means in (-1, 1), whose samples are clipped.

    Args:
        space: Unused.
        outputs: Means before tanh, then logarithms of standard deviations, ``[..., 2 A]``.
        obs: Unused.

    Returns:
        The distribution.
    """
    mean, log_deviation = jnp.split(outputs, 2, axis=-1)
    return Normal(jnp.tanh(mean), jnp.exp(jnp.clip(log_deviation, *LOG_DEVIATIONS)))


def critic_part(
    box: Box, q_networks: Network, value: Network, data: Replay, optimizer: OptimizerName
) -> Part:
    """Build the part of the value network and the Q-networks.

    Args:
        box: Action space.
        q_networks: Ensemble of two Q-networks.
        value: Value network.
        data: Data of the updates.
        optimizer: `OptimizerName`.

    Returns:
        The part.

    Source: Kostrikov et al. (2021), equations 5 and 6, arXiv 2110.06169.
    """

    def gradients(
        own: Learned, peers: dict[str, Learned], batch: ReplayBatch, key: jax.Array, hyper: IqlHyper
    ) -> GradientResult:
        action = distributions.to_unit(box, batch.action)
        slow_q = jnp.min(
            over_replay(data, q_networks, own.target["q"], batch, "critic", action)[..., 0], axis=0
        )
        next_value = over_successors(data, value, own.params["value"], batch, "critic")[..., 0]
        target = batch.reward + batch.bootstrap * next_value

        def value_loss(params: PyTree) -> tuple[jax.Array, Metrics]:
            now = over_replay(data, value, params, batch, "critic")[..., 0]
            loss = jnp.mean(expectile_error(slow_q - now, hyper.expectile))
            return loss, {"value_loss": loss, "value_mean": jnp.mean(now)}

        def q_loss(params: PyTree) -> tuple[jax.Array, Metrics]:
            q = over_replay(data, q_networks, params, batch, "critic", action)[..., 0]
            loss = regression(losses.squared_error, q, target, batch)
            return loss, {"critic_loss": loss, "q_mean": jnp.mean(q)}

        value_grads, of_value = gradients_of(value_loss, own.params["value"])
        q_grads, of_q = gradients_of(q_loss, own.params["q"])
        return GradientResult({"q": q_grads, "value": value_grads}, of_value | of_q)

    optimizers = dict.fromkeys(("q", "value"), make_optimizer(optimizer))
    return Part({"q": q_networks, "value": value}, gradients, optimizers, targets=("q",))


def expectile_error(error: jax.Array, expectile: jax.Array | float) -> jax.Array:
    """Compute the asymmetric squared error, whose minimum is at the expectile.

    Args:
        error: Differences of samples and prediction, ``[...]``.
        expectile: Weight of positive differences; negative ones have the rest.

    Returns:
        Errors ``[...]``.

    Source: Kostrikov et al. (2021), equation 4, arXiv 2110.06169.
    """
    return jnp.where(error > 0, expectile, 1.0 - expectile) * jnp.square(error)


def actor_part(
    box: Box,
    policy: Network,
    q_networks: Network,
    value: Network,
    data: Replay,
    optimizer: OptimizerName,
) -> Part:
    """Build the policy's part, which imitates recorded actions by the exponent of their advantage.

    Args:
        box: Action space.
        policy: Policy network.
        q_networks: Ensemble of Q-networks.
        value: Value network.
        data: Data of the updates.
        optimizer: `OptimizerName`.

    Returns:
        The part.

    Source: Kostrikov et al. (2021), equation 7, arXiv 2110.06169.
    """

    def gradients(
        own: Learned, peers: dict[str, Learned], batch: ReplayBatch, key: jax.Array, hyper: IqlHyper
    ) -> GradientResult:
        action, critic = distributions.to_unit(box, batch.action), peers["critic"]
        q = over_replay(
            data, q_networks, critic.target["q"], batch, "critic", action, learning=False
        )[..., 0]
        now = over_replay(data, value, critic.params["value"], batch, "critic", learning=False)[
            ..., 0
        ]
        weight = jnp.exp(
            jnp.minimum(hyper.advantage_scale * (jnp.min(q, axis=0) - now), math.log(MAX_WEIGHT))
        )
        learning = policy.with_dropout(key) if policy.with_dropout else policy

        def loss_fn(params: PyTree) -> tuple[jax.Array, Metrics]:
            dist = bounded_normal(box, over_replay(data, learning, params, batch, "actor"))
            loss = -jnp.mean(weight * distributions.log_prob(dist, action))
            return loss, {"policy_loss": loss, "weight_mean": jnp.mean(weight)}

        grads, metrics = gradients_of(loss_fn, own.params["policy"])
        return GradientResult({"policy": grads}, metrics)

    own_rate = make_optimizer(
        optimizer, rate=lambda hyper: hyper.learning_rate * hyper.actor_learning_rate_ratio
    )
    return Part({"policy": policy}, gradients, {"policy": own_rate}, reads=("critic",))
