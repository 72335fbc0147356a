"""Proximal policy optimization, for any actions (arXiv 1707.06347).

Actor and critic have separate networks, optimizers and gradient-norm clips. Within a tick neither reads the other's
newest parameters, so they can be updated at the same time without changing a result.
"""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import Actions, Box, Discrete, EnvSpec, Metrics, MultiDiscrete, PyTree, Transition
from jaxrl_fast.learning.acting import policy_of, sample_action
from jaxrl_fast.learning.algorithm import (
    Agent,
    Algorithm,
    GradientResult,
    Learned,
    OnPolicy,
    OnPolicyBatch,
    Part,
    ValueOf,
    Values,
    elementwise,
    gradients_of,
    on_policy_sizes,
    over_rollout,
    require_actions,
)
from jaxrl_fast.networks.network import Activation, Cnn, Network, Precision, make_network
from jaxrl_fast.numerics import distributions, losses
from jaxrl_fast.numerics.optimizers import (
    FROM_0,
    OptimizerName,
    Rate0,
    Rate01,
    check_optimizer,
    checks_numbers,
    make_optimizer,
)


class PpoHyper(NamedTuple):
    """Hyper-parameters, each a number or a schedule such as ``Linear(3e-4, 0.0)``.

    Attributes:
        learning_rate: Learning rate of the policy.
        critic_learning_rate_ratio: Learning rate of the critic, relative to ``learning_rate``.
        discount: Discount factor γ per step.
        gae_lambda: λ of the advantages.
        clip_range: Largest deviation of the probability ratio from 1 (ε of PPO's loss).
        entropy_coef: Weight of the policy's entropy in the loss.
        max_grad_norm: Norm to which the gradients of each network are clipped.
        reward_scale: Factor of the rewards.
        weight_decay: Weight decay of AdamW; 0 for other optimizers.
    """

    learning_rate: Any
    critic_learning_rate_ratio: Any
    discount: Any
    gae_lambda: Any
    clip_range: Any
    entropy_coef: Any
    max_grad_norm: Any
    reward_scale: Any
    weight_decay: Any = 0.0


Mean = Callable[[jax.Array, OnPolicyBatch], jax.Array]
"""(x ``[L, B]``, or ``[L, B, A]`` of several agents; its batch) -> mean over the steps that count: a scalar, or one
number for each agent's separate network, ``[1, 1, A]``, whose losses are summed.
"""


def over_all_steps(x: jax.Array, batch: OnPolicyBatch) -> jax.Array:
    """Return the mean of one agent (`Mean`).

    Args:
        x: Values ``[L, B]``.
        batch: Unused.

    Returns:
        A float32 scalar.
    """
    return jnp.mean(x, dtype=jnp.float32)


@checks_numbers()
def ppo(
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
    num_epochs: int = 10,
    num_minibatches: int | None = None,
    normalize_observations: bool | None = None,
    normalize_rewards: bool | None = None,
    normalize_advantages: bool = True,
    policy_hidden: tuple[int, ...] = (64, 64),
    value_hidden: tuple[int, ...] = (64, 64),
    policy_keys: tuple[str, ...] = (),
    critic_keys: tuple[str, ...] = (),
    activation: Activation = "tanh",
    layer_norm: bool = False,
    recurrent_size: int = 0,
    initial_deviation: Annotated[float, FROM_0] = 0.4,
    cnn: Cnn = "auto",
    optimizer: OptimizerName = "adam:1e-5",
    precision: Precision = "f32",
    policy_loss: Callable[..., jax.Array] = losses.clipped_surrogate,
    value_loss: Callable[..., jax.Array] = losses.squared_error,
) -> Algorithm:
    """Build PPO.

    A tick samples ``rollout_length`` steps in every environment and makes ``num_epochs * num_minibatches`` updates with
    them.

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
        rollout_length: Steps of each environment in a tick; None for a length that depends on ``num_envs``
            (`default_rollout`).
        num_epochs: Passes over a rollout.
        num_minibatches: Minibatches in an epoch; None for a power of two that depends on ``num_envs``
            (`on_policy_sizes`).
        normalize_observations: Whether to normalize observations; None for all but images and grids.
        normalize_rewards: Whether to divide rewards by the running deviation of returns; None for continuous actions.
        normalize_advantages: Whether to normalize advantages in each minibatch.
        policy_hidden: Sizes of the policy's hidden layers.
        value_hidden: Sizes of the value network's hidden layers.
        policy_keys: Entries of a dictionary observation that the policy reads; empty for all.
        critic_keys: Entries of a dictionary observation that the critic reads; empty for all.
        activation: Activation of the hidden layers.
        layer_norm: Whether to normalize the hidden layers.
        recurrent_size: Size of a GRU before the hidden layers; 0 for none. With a GRU, minibatches are whole sequences.
        initial_deviation: Standard deviation of continuous actions at the start, in half ranges, before the squashing.
        cnn: Convolutions for images (`make_network`).
        optimizer: ``adam``, ``adamw``, ``radam`` or ``rmsprop``; with constants ``adam:epsilon:beta1:beta2`` or
            ``rmsprop:epsilon:decay``.
        precision: "f32", or "bf16" for dense layers and convolutions.
        policy_loss: ``(log_ratio, advantage, clip_range) -> loss``, on scalars.
        value_loss: ``(value, target) -> loss``, on scalars.

    Returns:
        The algorithm.
    """
    rates = learning_rate, critic_learning_rate_ratio, discount, gae_lambda, clip_range, entropy_coef, max_grad_norm
    hyper = PpoHyper(*rates, reward_scale, weight_decay)
    shared: dict[str, Any] = dict(activation=activation, layer_norm=layer_norm, recurrent_size=recurrent_size)
    shared |= dict(cnn=cnn, precision=precision)
    options = shared | dict(policy_hidden=tuple(policy_hidden), value_hidden=tuple(value_hidden), optimizer=optimizer)
    options |= dict(policy_keys=tuple(policy_keys), critic_keys=tuple(critic_keys))
    sizes = on_policy_sizes(rollout_length, num_minibatches, steps=64, least=4, whole_rollouts=recurrent_size > 0)

    def build(spec: EnvSpec, num_envs: int) -> Agent:
        space = require_actions("ppo", spec, (Discrete, MultiDiscrete, Box), "sac")
        check_optimizer(optimizer, weight_decay)
        sized = sizes(num_envs)
        size = distributions.num_outputs(space)
        bias = distributions.initial_biases(space, initial_deviation) if isinstance(space, Box) else ()
        out: dict[str, Any] = dict(out_scale=0.01, out_bias=bias)
        policy = make_network(spec.obs, size, hidden=policy_hidden, keys=policy_keys, **out, **shared)
        value = make_network(spec.obs, 1, hidden=value_hidden, keys=critic_keys, **shared)
        parts = {"critic": critic_part(value, value_loss, optimizer)}
        parts["actor"] = actor_part(space, policy, policy_loss, normalize_advantages, optimizer)
        data = OnPolicy(num_epochs, sized["num_minibatches"], critic="critic", network="value", targets=targets)
        scaled = isinstance(space, Box) if normalize_rewards is None else normalize_rewards
        more: dict[str, Any] = dict(normalize_observations=normalize_observations, normalize_rewards=scaled)
        more["remembers"] = {"critic": "value"} if recurrent_size else {}
        decide = sample_action(space, remember=True)
        return Agent(parts, data, {"actor": "policy"}, decide, sized["rollout_length"], **more)

    return Algorithm("ppo", hyper, options, build, sizes)


def targets(values: Values, rollout: Transition, hyper: PpoHyper) -> dict[str, jax.Array]:
    """Compute advantages and value targets, with the critic from before the tick's updates.

    Args:
        values: Values of the critic, ``[T, E]``.
        rollout: Normalized rollout.
        hyper: Hyper-parameters of this tick.

    Returns:
        ``advantage`` and ``value_target``, ``[T, E]``.
    """
    discount = hyper.discount * (1.0 - rollout.terminated)
    done = rollout.terminated | rollout.truncated
    gae = jax.vmap(losses.gae, in_axes=(1, 1, 1, 1, 1, None), out_axes=1)
    advantage = gae(rollout.reward, discount, values.now, values.next, done, hyper.gae_lambda)
    return {"advantage": advantage, "value_target": advantage + values.now}


def actor_part(
    space: Actions,
    policy: Network,
    policy_loss: Callable,
    normalize_advantages: bool,
    optimizer: OptimizerName,
    mean: Mean = over_all_steps,
) -> Part:
    """Build the policy's part: clipped surrogate with an entropy bonus.

    Args:
        space: Action space.
        policy: Policy network.
        policy_loss: Loss of a log-ratio and an advantage.
        normalize_advantages: Whether to normalize advantages in each minibatch.
        optimizer: `OptimizerName`.
        mean: Mean over steps.

    Returns:
        The part.
    """

    def gradients(own: Learned, peers: dict, batch: OnPolicyBatch, key: jax.Array, hyper: PpoHyper) -> GradientResult:
        advantage = batch.targets["advantage"]
        if normalize_advantages:
            centered = advantage - mean(advantage, batch)
            advantage = centered / (jnp.sqrt(mean(jnp.square(centered), batch)) + 1e-8)

        def loss_fn(params: PyTree) -> tuple[jax.Array, Metrics]:
            outputs, _ = over_rollout(policy, params, batch, "actor")
            dist = policy_of(space, outputs, batch.obs)
            log_ratio = distributions.log_prob(dist, batch.extras["raw_action"]) - batch.extras["log_prob"]
            surrogate = elementwise(policy_loss, log_ratio, advantage, hyper.clip_range)
            loss, entropy = mean(surrogate, batch), mean(distributions.entropy(dist, key), batch)
            change = jnp.expm1(jnp.minimum(log_ratio, losses.MAX_LOG_RATIO))
            metrics = {"policy_loss": loss, "entropy": entropy, "approx_kl": mean(change - log_ratio, batch)}
            metrics["clip_fraction"] = mean(jnp.abs(change) > hyper.clip_range, batch)
            return jnp.sum(loss - hyper.entropy_coef * entropy), jax.tree.map(jnp.mean, metrics)

        grads, metrics = gradients_of(loss_fn, own.params["policy"])
        return GradientResult({"policy": grads}, metrics)

    return Part({"policy": policy}, gradients, {"policy": make_optimizer(optimizer)})


def first_output(outputs: PyTree, obs: PyTree, action: jax.Array | None) -> jax.Array:
    """Return the first output as the value (`ValueOf`).

    Args:
        outputs: Outputs ``[..., 1]``.
        obs: Unused.
        action: Unused.

    Returns:
        Values ``[...]``.
    """
    return outputs[..., 0]


def critic_part(
    value: Network, value_loss: Callable, optimizer: str, value_of: ValueOf = first_output, mean: Mean = over_all_steps
) -> Part:
    """Build the value network's part: regression on the targets.

    Args:
        value: Value network.
        value_loss: Loss of a value and its target.
        optimizer: `OptimizerName`.
        value_of: Computes values from the network's outputs.
        mean: Mean over steps.

    Returns:
        The part.
    """

    def gradients(own: Learned, peers: dict, batch: OnPolicyBatch, key: jax.Array, hyper: PpoHyper) -> GradientResult:
        def loss_fn(params: PyTree) -> tuple[jax.Array, Metrics]:
            outputs, _ = over_rollout(value, params, batch, "critic")
            now = value_of(outputs, batch.obs, batch.action)
            loss = mean(elementwise(value_loss, now, batch.targets["value_target"]), batch)
            return jnp.sum(loss), {"value_loss": jnp.mean(loss)}

        grads, metrics = gradients_of(loss_fn, own.params["value"])
        return GradientResult({"value": grads}, metrics)

    own_rate = make_optimizer(optimizer, rate=lambda hyper: hyper.learning_rate * hyper.critic_learning_rate_ratio)
    return Part({"value": value}, gradients, {"value": own_rate})
