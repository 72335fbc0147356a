"""Importance-weighted actor-learner, for any actions (IMPALA, arXiv 1802.01561).

It is an actor-critic whose steps may come from a policy that is some updates old. Without this
delay (``overlap=none``) it is A2C (arXiv 1602.01783). Policy and value are two heads of one
network. Every update computes V-trace with the newest params.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import Actions, Box, Discrete, EnvSpec, Metrics, MultiDiscrete, PyTree
from jaxrl_fast.learning.acting import policy_of, sample_action
from jaxrl_fast.learning.algorithm import (
    Agent,
    Algorithm,
    GradientResult,
    Learned,
    OnPolicy,
    OnPolicyBatch,
    Part,
    after_rollout,
    elementwise,
    gradients_of,
    on_policy_sizes,
    over_rollout,
    require_actions,
)
from jaxrl_fast.networks.network import (
    SHARED,
    Activation,
    Cnn,
    Head,
    MemoryKind,
    Network,
    Precision,
    Torso,
    make_network,
)
from jaxrl_fast.numerics import distributions, losses
from jaxrl_fast.numerics.optimizers import (
    OptimizerName,
    Rate0,
    Rate01,
    check_optimizer,
    checks_numbers,
    make_optimizer,
)


class ImpalaHyper(NamedTuple):
    """Hyper-parameters, each a number or a schedule such as ``Linear(7e-4, 0.0)``.

    Attributes:
        learning_rate: Learning rate of all networks.
        discount: Discount factor γ per step.
        trace_lambda: λ of the traces (1: whole rollouts, as published).
        clip_rho: Upper bound of the importance ratios of errors.
        clip_c: Upper bound of the importance ratios of traces.
        value_coef: Weight of the value loss in the loss.
        entropy_coef: Weight of the policy's entropy in the loss.
        max_grad_norm: Norm to which gradients are clipped.
        reward_scale: Factor of the rewards.
        weight_decay: Weight decay of AdamW; 0 for other optimizers.
    """

    learning_rate: Any
    discount: Any
    trace_lambda: Any
    clip_rho: Any
    clip_c: Any
    value_coef: Any
    entropy_coef: Any
    max_grad_norm: Any
    reward_scale: Any
    weight_decay: Any


@checks_numbers()
def impala(
    *,
    learning_rate: Rate0 = 7e-4,
    discount: Rate01 = 0.99,
    trace_lambda: Rate01 = 1.0,
    clip_rho: Rate0 = 1.0,
    clip_c: Rate0 = 1.0,
    value_coef: Rate0 = 0.5,
    entropy_coef: Rate0 = 0.01,
    max_grad_norm: Rate0 = 0.5,
    reward_scale: Rate0 = 1.0,
    weight_decay: Rate0 = 0.0,
    rollout_length: int = 20,
    num_minibatches: int | None = None,
    normalize_observations: bool | None = None,
    normalize_rewards: bool = True,
    hidden: tuple[int, ...] = (64, 64),
    keys: tuple[str, ...] = (),
    activation: Activation = "tanh",
    layer_norm: bool = False,
    memory: MemoryKind = "gru",
    recurrent_size: int = 0,
    network: Torso = "mlp",
    cnn: Cnn = "auto",
    optimizer: OptimizerName = "rmsprop:2.4e-7:0.99",
    precision: Precision = "f32",
    value_loss: Callable[[jax.Array, jax.Array], jax.Array] = losses.squared_error,
) -> Algorithm:
    """Build IMPALA.

    A tick samples ``rollout_length`` steps in every environment and uses them once, in
    ``num_minibatches`` updates.

    Args:
        learning_rate: Learning rate of all networks.
        discount: Discount factor γ per step.
        trace_lambda: λ of the traces (1: whole rollouts, as published).
        clip_rho: Upper bound of the importance ratios of errors.
        clip_c: Upper bound of the importance ratios of traces.
        value_coef: Weight of the value loss in the loss.
        entropy_coef: Weight of the policy's entropy in the loss.
        max_grad_norm: Norm to which gradients are clipped.
        reward_scale: Factor of the rewards.
        weight_decay: Weight decay of AdamW; 0 for other optimizers.
        rollout_length: Steps of each environment in a tick.
        num_minibatches: Updates in a tick, of whole rollouts; None for minibatches of at least 640
            steps.
        normalize_observations: Whether to normalize observations; None for all but images and
            grids.
        normalize_rewards: Whether to divide rewards by the deviation of returns.
        hidden: Sizes of the hidden layers.
        keys: Entries of a dictionary observation that the network reads; empty for all.
        activation: Activation of the hidden layers.
        layer_norm: Whether to normalize the hidden layers.
        memory: Kind of the memory: "gru", "lstm", "mingru", "lru", "gtrxl-64x2" (window, layers),
            or your own function (`make_memory`).
        recurrent_size: Size of the memory before the hidden layers; 0 for none.
        network: Torso of the networks: "mlp", "residual", "simba", or your own function
            (`own_torso`).
        cnn: Convolutions for images (`make_network`).
        optimizer: ``adam``, ``adamw``, ``radam`` or ``rmsprop``; with constants
            ``adam:epsilon:beta1:beta2`` or ``rmsprop:epsilon:decay``.
        precision: "f32", or "bf16" for dense layers and convolutions.
        value_loss: ``(value, target) -> loss``, on scalars.

    Returns:
        The algorithm.
    """
    given = locals()
    rates = (
        learning_rate,
        discount,
        trace_lambda,
        clip_rho,
        clip_c,
        value_coef,
        entropy_coef,
        max_grad_norm,
    )
    hyper = ImpalaHyper(*rates, reward_scale, weight_decay)
    shared: dict[str, Any] = {name: given[name] for name in SHARED}
    options = shared | dict(hidden=tuple(hidden), keys=tuple(keys), optimizer=optimizer)
    sizes = on_policy_sizes(
        rollout_length, num_minibatches, steps=640, least=1, whole_rollouts=True
    )

    def build(spec: EnvSpec, num_envs: int) -> Agent:
        space = require_actions("impala", spec, (Discrete, MultiDiscrete, Box), "sac")
        check_optimizer(optimizer, weight_decay)
        sized = sizes(num_envs)
        heads = {"policy": Head(distributions.num_outputs(space), 0.01), "value": Head(1)}
        network = make_network(spec.obs, heads, hidden=hidden, keys=keys, **shared)
        return Agent(
            parts={"agent": agent_part(space, network, value_loss, optimizer)},
            data=OnPolicy(
                num_epochs=1,
                num_minibatches=sized["num_minibatches"],
                sequence_length=rollout_length,
            ),
            acts={"agent": "network"},
            decide=sample_action(space, remember=True, outputs_of=policy_outputs),
            outputs_of=policy_outputs,
            rollout_length=sized["rollout_length"],
            normalize_observations=normalize_observations,
            normalize_rewards=normalize_rewards,
        )

    return Algorithm("impala", hyper, options, build, sizes)


def policy_outputs(outputs: dict[str, Any]) -> jax.Array:
    """Pick the policy's outputs from the outputs by part.

    Args:
        outputs: Outputs by part.

    Returns:
        Outputs ``[..., num_outputs(space)]``.
    """
    return outputs["agent"]["policy"]


def agent_part(
    space: Actions, network: Network, value_loss: Callable, optimizer: OptimizerName
) -> Part:
    """Build the network's part: policy gradient with V-trace advantages, V-trace regression, and an
    entropy bonus.

    Args:
        space: Action space.
        network: Network with the heads ``policy`` and ``value``.
        value_loss: Loss of a value and its target.
        optimizer: `OptimizerName`.

    Returns:
        The part.

    Source: Espeholt et al. (2018), section 4.2, arXiv 1802.01561.
    """

    def gradients(
        own: Learned, peers: dict, batch: OnPolicyBatch, key: jax.Array, hyper: ImpalaHyper
    ) -> GradientResult:
        def loss_fn(params: PyTree) -> tuple[jax.Array, Metrics]:
            outputs, memories = over_rollout(network, params, batch, "agent")
            dist, value = policy_of(space, outputs["policy"], batch.obs), outputs["value"][..., 0]
            log_prob = distributions.log_prob(dist, batch.extras["raw_action"])
            ratio = losses.ratio_of(jax.lax.stop_gradient(log_prob) - batch.extras["log_prob"])
            target, advantage = traces(
                jax.lax.stop_gradient((params, value, memories)), ratio, batch, hyper
            )
            policy_loss = -jnp.mean(log_prob * advantage)
            regression = jnp.mean(elementwise(value_loss, value, target))
            entropy = jnp.mean(distributions.entropy(dist, key))
            metrics = {
                "policy_loss": policy_loss,
                "value_loss": regression,
                "entropy": entropy,
                "ratio_mean": jnp.mean(ratio),
                "ratio_deviation": jnp.std(ratio),
            }
            return (
                policy_loss + hyper.value_coef * regression - hyper.entropy_coef * entropy,
                metrics,
            )

        grads, metrics = gradients_of(loss_fn, own.params["network"])
        return GradientResult({"network": grads}, metrics)

    def traces(
        seen: tuple[PyTree, jax.Array, PyTree],
        ratio: jax.Array,
        batch: OnPolicyBatch,
        hyper: ImpalaHyper,
    ) -> tuple[jax.Array, jax.Array]:
        (params, value, memories), steps = seen, batch.transition
        following = after_rollout(network, params, batch, "agent", memories, steps.next_obs)
        return jax.vmap(losses.v_trace, in_axes=(1, 1, 1, 1, 1, 1, None, None, None), out_axes=1)(
            steps.reward,
            hyper.discount * (1.0 - steps.terminated),
            value,
            following["value"][..., 0],
            steps.terminated | steps.truncated,
            ratio,
            hyper.trace_lambda,
            hyper.clip_rho,
            hyper.clip_c,
        )

    return Part({"network": network}, gradients, {"network": make_optimizer(optimizer)})
