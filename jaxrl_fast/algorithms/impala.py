"""Importance-weighted actor-learner, for any actions (IMPALA, arXiv 1802.01561).

It is an actor-critic whose steps may come from a policy that is some updates old. Without this
delay (``overlap=none``) it is A2C (arXiv 1602.01783). Policy and value are two heads of one
network. Every update computes V-trace with the newest params.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxrl_fast.algorithms.shared_fields import (
    MemoryFields,
    NormedFields,
    ObservationFields,
    OptimizerFields,
    Rates,
    RolloutFields,
    layers_of,
    sizes_of_rollout,
)
from jaxrl_fast.core import Actions, Box, Discrete, EnvSpec, Metrics, MultiDiscrete, PyTree
from jaxrl_fast.learning.acting import policy_of, sample_action
from jaxrl_fast.learning.algorithm import (
    Agent,
    GradientResult,
    Learned,
    OnPolicy,
    OnPolicyBatch,
    Part,
    after_rollout,
    elementwise,
    gradients_of,
    over_rollout,
    require_actions,
)
from jaxrl_fast.networks.network import (
    Activation,
    Head,
    Network,
    make_network,
)
from jaxrl_fast.numerics import distributions, losses
from jaxrl_fast.numerics.optimizers import (
    OptimizerName,
    Rate0,
    Rate01,
    check_optimizer,
    make_optimizer,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class ImpalaHyper(Rates):
    """Rates of IMPALA; ``weight_decay`` is in `OptimizerFields`."""

    learning_rate: Rate0 = 7e-4
    trace_lambda: Rate01 = 1.0
    """λ of the traces (1: whole rollouts, as published)."""
    clip_rho: Rate0 = 1.0
    """Upper bound of the importance ratios of errors."""
    clip_c: Rate0 = 1.0
    """Upper bound of the importance ratios of traces."""
    value_coef: Rate0 = 0.5
    """Weight of the value loss in the loss."""
    entropy_coef: Rate0 = 0.01
    """Weight of the policy's entropy in the loss."""
    max_grad_norm: Rate0 = 0.5
    """Norm to which gradients are clipped."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Impala(
    OptimizerFields,
    NormedFields,
    MemoryFields,
    ObservationFields,
    RolloutFields,
    ImpalaHyper,
):
    """IMPALA.

    A tick samples ``rollout_length`` steps in every environment and uses them once, in
    ``num_minibatches`` updates.
    """

    name: ClassVar[str] = "impala"

    rollout_length: int = 20
    """Steps of each environment in a tick."""
    num_minibatches: int | None = None
    """Updates in a tick, of whole rollouts; None for minibatches of at least 640 steps."""
    normalize_rewards: bool = True
    """Whether to divide rewards by the deviation of returns."""
    hidden: tuple[int, ...] = (64, 64)
    """Sizes of the hidden layers."""
    keys: tuple[str, ...] = ()
    """Entries of a dictionary observation that the network reads; empty for all."""
    activation: Activation = "tanh"
    optimizer: OptimizerName = "rmsprop:2.4e-7:0.99"
    value_loss: Callable[[jax.Array, jax.Array], jax.Array] = losses.squared_error
    """``(value, target) -> loss``, on scalars."""

    def sizes(self, num_envs: int, total_steps: int | None = None) -> dict[str, int]:
        """Compute the minibatches, unless they were given."""
        return sizes_of_rollout(
            self, num_envs, total_steps, steps=640, least=1, whole_rollouts=True
        )

    def build(self, spec: EnvSpec, num_envs: int) -> Agent:
        """Build the agent for one environment."""
        space = require_actions("impala", spec, (Discrete, MultiDiscrete, Box), "sac")
        check_optimizer(self.optimizer, self.weight_decay)
        heads = {"policy": Head(distributions.num_outputs(space), 0.01), "value": Head(1)}
        network = make_network(
            spec.obs, heads, hidden=self.hidden, keys=self.keys, **layers_of(self)
        )
        return Agent(
            parts={"agent": agent_part(space, network, self.value_loss, self.optimizer)},
            data=OnPolicy(
                num_epochs=1,
                num_minibatches=self.sizes(num_envs)["num_minibatches"],
                sequence_length=self.rollout_length,
            ),
            acts={"agent": "network"},
            decide=sample_action(space, remember=True, outputs_of=policy_outputs),
            outputs_of=policy_outputs,
            rollout_length=self.rollout_length,
            normalize_observations=self.normalize_observations,
            normalize_rewards=self.normalize_rewards,
        )


impala = Impala


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
        learned: Learned, peers: dict, batch: OnPolicyBatch, key: jax.Array, hyper: ImpalaHyper
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

        grads, metrics = gradients_of(loss_fn, learned.params["network"])
        return GradientResult({"network": grads}, metrics)

    def traces(
        evaluated: tuple[PyTree, jax.Array, PyTree],
        ratio: jax.Array,
        batch: OnPolicyBatch,
        hyper: ImpalaHyper,
    ) -> tuple[jax.Array, jax.Array]:
        (params, value, memories), steps = evaluated, batch.transition
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
