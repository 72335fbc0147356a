"""Parallelised Q-network, for discrete actions (PQN, arXiv 2407.04811): Q-learning from the steps of many environments
as they come, with λ-returns and layer norm instead of a replay buffer and a target network.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import Discrete, EnvSpec, Metrics, PyTree, Transition
from jaxrl_fast.learning.acting import by_q_values, greedy_value, value_of
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
from jaxrl_fast.numerics import losses
from jaxrl_fast.numerics.optimizers import OptimizerName, check_optimizer, make_optimizer


class PqnHyper(NamedTuple):
    """Rates, each a number or a schedule such as ``Linear(1.0, 0.05, 0.2)``.

    - ``learning_rate``: of the optimizer; ``max_grad_norm``: to which gradients are clipped.
    - ``discount``, ``q_lambda``: γ per step, and λ of the returns that are learned.
    - ``epsilon``: the share of random actions.
    - ``reward_scale``: a factor of rewards; ``weight_decay``: of AdamW.
    """

    learning_rate: Any
    discount: Any
    q_lambda: Any
    epsilon: Any
    max_grad_norm: Any
    reward_scale: Any
    weight_decay: Any


def pqn(
    *,
    learning_rate: Any = 5e-4,
    discount: Any = 0.99,
    q_lambda: Any = 0.65,
    epsilon: Any = 0.1,
    max_grad_norm: Any = 10.0,
    reward_scale: Any = 1.0,
    weight_decay: Any = 0.0,
    rollout_length: int = 32,
    num_epochs: int = 2,
    num_minibatches: int | None = None,
    normalize_observations: bool | None = None,
    normalize_rewards: bool = False,
    q_hidden: tuple[int, ...] = (128, 128),
    q_keys: tuple[str, ...] = (),
    activation: Activation = "relu",
    layer_norm: bool = True,
    recurrent_size: int = 0,
    cnn: Cnn = "auto",
    optimizer: OptimizerName = "radam",
    precision: Precision = "f32",
    q_loss: Callable[[jax.Array, jax.Array], jax.Array] = losses.squared_error,
) -> Algorithm:
    """PQN. A tick samples ``rollout_length`` steps in every environment and learns from them
    ``num_epochs * num_minibatches`` times; by default minibatches of 128 steps or more.

    ``recurrent_size`` > 0 puts a GRU in front; minibatches are then whole sequences. ``q_keys``: which entries of a
    dictionary observation are read, all by default. ``q_loss(q, target)`` takes and gives scalars.
    """
    hyper = PqnHyper(learning_rate, discount, q_lambda, epsilon, max_grad_norm, reward_scale, weight_decay)
    shared: dict[str, Any] = dict(
        activation=activation, layer_norm=layer_norm, recurrent_size=recurrent_size, cnn=cnn, precision=precision
    )
    options = shared | dict(q_hidden=tuple(q_hidden), q_keys=tuple(q_keys), optimizer=optimizer)
    sizes = on_policy_sizes(rollout_length, num_minibatches, steps=128, least=4, whole_rollouts=recurrent_size > 0)

    def build(spec: EnvSpec, num_envs: int) -> Agent:
        size = require_actions("pqn", spec, (Discrete,), "ppo").num_actions
        check_optimizer(optimizer, weight_decay)
        sized = sizes(num_envs)
        q = make_network(spec.obs, size, hidden=q_hidden, keys=q_keys, **shared)
        how: dict[str, Any] = dict(critic="critic", network="q", value=best_value, targets=targets)
        return Agent(
            parts={"critic": critic_part(q, q_loss, optimizer)},
            data=OnPolicy(num_epochs, sized["num_minibatches"], **how),
            acts={"critic": "q"},
            decide=by_q_values(lambda outputs: outputs["critic"]),
            rollout_length=sized["rollout_length"],
            normalize_observations=normalize_observations,
            normalize_rewards=normalize_rewards,
        )

    return Algorithm("pqn", hyper, options, build, sizes)


def best_value(outputs: PyTree, obs: PyTree, action: jax.Array | None) -> jax.Array:
    """The value of the best allowed action (`ValueOf`)."""
    return greedy_value(outputs, obs)


def targets(values: Values, rollout: Transition, hyper: PqnHyper) -> dict[str, jax.Array]:
    """λ-returns ``[T, E]`` that continue with the best action's value (arXiv 2407.04811)."""
    target = jax.vmap(losses.lambda_return, in_axes=(1, 1, 1, 1, None), out_axes=1)(
        rollout.reward,
        hyper.discount * (1.0 - rollout.terminated),
        values.next,
        rollout.terminated | rollout.truncated,
        hyper.q_lambda,
    )
    return {"q_target": target}


def chosen_value(outputs: PyTree, obs: PyTree, action: jax.Array | None) -> jax.Array:
    """The value of the action that was taken (`ValueOf`)."""
    assert action is not None
    return value_of(outputs, action)


def critic_part(
    q_network: Network, q_loss: Callable, optimizer: OptimizerName, value_taken: ValueOf = chosen_value
) -> Part:
    """Regression on the λ-returns."""

    def gradients(own: Learned, peers: dict, batch: OnPolicyBatch, key: jax.Array, hyper: PqnHyper) -> GradientResult:
        def loss_fn(params: PyTree) -> tuple[jax.Array, Metrics]:
            outputs, _ = over_rollout(q_network, params, batch, "critic")
            q = value_taken(outputs, batch.obs, batch.action)
            loss = jnp.mean(elementwise(q_loss, q, batch.targets["q_target"]))
            return loss, {"q_loss": loss, "q_mean": jnp.mean(q), "epsilon": jnp.asarray(hyper.epsilon)}

        grads, metrics = gradients_of(loss_fn, own.params["q"])
        return GradientResult({"q": grads}, metrics)

    return Part({"q": q_network}, gradients, {"q": make_optimizer(optimizer)})
