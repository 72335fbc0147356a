"""Options of PPO that are off by default: other losses and optimizers, and wrappers of its networks
and parts.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl_fast.core import Actions, Metrics, PyTree
from jaxrl_fast.learning.acting import MakePolicy, sample_action
from jaxrl_fast.learning.algorithm import (
    Agent,
    GradientResult,
    Learned,
    OnPolicy,
    OnPolicyBatch,
    Part,
    elementwise,
)
from jaxrl_fast.networks.network import STATISTICS, Network, over
from jaxrl_fast.numerics.optimizers import MakeOptimizer, NamedOptimizer

PartLoss = Callable[[PyTree, OnPolicyBatch, jax.Array, Any], tuple[jax.Array, Metrics]]
"""(outputs of a network ``[L, B, out]``, their batch, key, hyper) -> scalar loss and metrics."""
VALUE_UPDATES, SMALLEST = 1e5, 1e-6
"""Updates over which `with_normalized_values` averages, as published (0.99999), and the smallest
variance.
"""


KL = "approx_kl"
"""Metric of a policy's part that `by_divergence` reads: its divergence from the policy that acted,
in nats.
"""
RATES, RATE_STEP, RATE_BAND = (1e-5, 1e-2), 1.5, 2.0


def by_divergence(make: NamedOptimizer, *, stop: bool, adapt: bool) -> MakeOptimizer:
    """Return a factory of an optimizer of a policy that stays near the policy that acted.

    With ``stop``, a minibatch on which the divergence is above ``hyper.max_kl`` changes nothing
    (all later minibatches of the tick are then alike). With ``adapt``, each minibatch whose
    divergence is above twice ``hyper.desired_kl`` divides the learning rate by 1.5, and each below
    half of it multiplies the rate, within `RATES`.

    Args:
        make: Factory of the optimizer.
        stop: Whether there is a largest divergence.
        adapt: Whether the learning rate follows the divergence.

    Returns:
        The factory.

    Source: Rudin et al. (2021), arXiv 2109.11978, and its code (github.com/leggedrobotics/rsl_rl),
    for the rate.
    """

    def build(hyper: Any) -> optax.GradientTransformationExtraArgs:
        inner = make(hyper)
        rate = jnp.maximum(make.rate(hyper), 1e-8)  # a schedule may end at 0

        def init(params: PyTree) -> tuple[PyTree, jax.Array]:
            return inner.init(params), jnp.zeros(())

        def update(
            grads: PyTree, state: PyTree, params: PyTree = None, *, metrics: Mapping[str, Any]
        ) -> tuple:
            divergence, factor = metrics[KL], state[1]
            if adapt:
                near = jnp.where(divergence < hyper.desired_kl / RATE_BAND, 1.0, 0.0)
                step = jnp.where(divergence > hyper.desired_kl * RATE_BAND, -1.0, near) * math.log(
                    RATE_STEP
                )
                factor = jnp.clip(factor + step, *(jnp.log(bound / rate) for bound in RATES))
            change, after = inner.update(grads, state[0], params)
            change = jax.tree.map(lambda x: x * jnp.exp(factor), change) if adapt else change
            if not stop:
                return change, (after, factor)
            keep = divergence <= hyper.max_kl
            change = jax.tree.map(lambda x: jnp.where(keep, x, jnp.zeros_like(x)), change)
            return change, (
                jax.tree.map(lambda new, old: jnp.where(keep, new, old), after, state[0]),
                factor,
            )

        return optax.GradientTransformationExtraArgs(init, update)

    return build


def clipped_errors(value_loss: Callable) -> PartLoss:
    """Return the values' loss, which is not smaller beyond ``hyper.value_clip_range`` from a value
    at sampling time.

    Args:
        value_loss: Loss of a value and its target.

    Returns:
        The loss.

    Source: Engstrom et al. (2020), section 3, arXiv 2005.12729.
    """

    def loss_of(
        outputs: PyTree, batch: OnPolicyBatch, key: jax.Array, hyper: Any
    ) -> tuple[jax.Array, Metrics]:
        now, target = outputs[..., 0], batch.targets["value_target"]
        before = target - batch.targets["advantage"]
        clipped = before + jnp.clip(now - before, -hyper.value_clip_range, hyper.value_clip_range)
        errors = jnp.maximum(
            elementwise(value_loss, now, target), elementwise(value_loss, clipped, target)
        )
        return jnp.mean(errors), {"value_loss": jnp.mean(errors)}

    return loss_of


def joint_loss(actor: PartLoss, critic: PartLoss) -> PartLoss:
    """Return the loss of a network with the heads ``policy`` and ``value``.

    Args:
        actor: Loss of the policy.
        critic: Loss of the values, weighted by ``hyper.critic_learning_rate_ratio``.

    Returns:
        The sum.
    """

    def loss_of(
        outputs: PyTree, batch: OnPolicyBatch, key: jax.Array, hyper: Any
    ) -> tuple[jax.Array, Metrics]:
        policy_loss, metrics = actor(outputs["policy"], batch, key, hyper)
        value_loss, more = critic(outputs["value"], batch, key, hyper)
        return policy_loss + hyper.critic_learning_rate_ratio * value_loss, metrics | more

    return loss_of


def in_one_part(agent: Agent, part: Part, space: Actions, policy: MakePolicy) -> Agent:
    """Put policy and value into one part.

    Args:
        agent: PPO's agent with two parts.
        part: Part ``agent`` of a network ``network`` with the heads ``policy`` and ``value``.
        space: Action space.
        policy: Builds the distribution, as `policy_of`.

    Returns:
        The agent.
    """
    assert isinstance(agent.data, OnPolicy)
    data = agent.data._replace(
        critic="agent", network="network", value=lambda outputs, *_: outputs["value"][..., 0]
    )
    decide = sample_action(
        space, remember=True, outputs_of=lambda outputs: outputs["agent"]["policy"], policy=policy
    )
    return agent._replace(
        parts={"agent": part},
        data=data,
        acts={"agent": "network"},
        decide=decide,
        remembers={},
        outputs_of=lambda outputs: outputs["agent"]["policy"],
    )


def with_free_outputs(network: Network, numbers: tuple[float, ...], head: str = "") -> Network:
    """Let trained numbers that do not depend on the observation follow a network's outputs.

    Args:
        network: Network.
        numbers: Their initial values; empty for an unchanged network.
        head: Head whose outputs they follow, if the network has several.

    Returns:
        The network.
    """
    if not numbers:
        return network

    def init(key: jax.Array) -> PyTree:
        return {**network.init(key), "free": {"outputs": jnp.asarray(numbers, jnp.float32)}}

    def run(function: Callable, params: PyTree, *inputs: Any) -> tuple[Any, PyTree]:
        outputs, memory = function(params, *inputs)
        head_outputs = outputs[head] if head else outputs
        free = jnp.broadcast_to(params["free"]["outputs"], (*head_outputs.shape[:-1], len(numbers)))
        head_outputs = jnp.concatenate([head_outputs, free], axis=-1)
        return ({**outputs, head: head_outputs} if head else head_outputs), memory

    return over(network, run)._replace(init=init)


def with_normalized_values(
    part: Part, mean: Callable[[jax.Array, OnPolicyBatch], jax.Array]
) -> Part:
    """Let a critic learn targets that are scaled by their running mean and deviation, of about
    `VALUE_UPDATES` updates.

    Its values are scaled back wherever they are used. Mean and variance are statistics in the
    network's params, as in a batch norm, and updated with each minibatch before its loss.

    Args:
        part: Part of a network ``value``.
        mean: Mean over steps.

    Returns:
        The part.

    Source: Yu et al. (2022), section 5.1, arXiv 2103.01955, with variances in place of mean
    squares.
    """
    network = part.networks["value"]

    def init(key: jax.Array) -> PyTree:
        numbers = {"mean": 0.0, "variance": 1.0, "updates": 0.0}
        params = network.init(key)
        return {
            **params,
            STATISTICS: {**params.get(STATISTICS, {}), **jax.tree.map(jnp.float32, numbers)},
        }

    def apply(
        params: PyTree, memory: PyTree, obs: PyTree, first: jax.Array, action: Any = None
    ) -> tuple[Any, PyTree]:
        outputs, memory = network.apply(params, memory, obs, first, action)
        return outputs * jnp.sqrt(params[STATISTICS]["variance"]) + params[STATISTICS][
            "mean"
        ], memory

    def gradients(
        learned: Learned, peers: dict, batch: OnPolicyBatch, key: jax.Array, hyper: Any
    ) -> GradientResult:
        old, target = learned.params["value"][STATISTICS], batch.targets["value_target"]
        count = jnp.minimum(old["updates"] + 1.0, VALUE_UPDATES)
        batch_mean = mean(target, batch)
        change = batch_mean - old["mean"]
        spread = mean(jnp.square(target - batch_mean), batch) + jnp.square(change) * (
            1.0 - 1.0 / count
        )
        variance = old["variance"] + (spread - old["variance"]) / count
        new = {
            "mean": old["mean"] + change / count,
            "variance": jnp.maximum(variance, SMALLEST),
            "updates": count,
        }
        scale = jnp.sqrt(new["variance"])
        scaled = {
            "value_target": (target - new["mean"]) / scale,
            "advantage": batch.targets["advantage"] / scale,
        }
        result = part.gradients(
            learned, peers, batch._replace(targets=batch.targets | scaled), key, hyper
        )
        return result._replace(statistics={"value": new})

    return part._replace(
        networks={"value": network._replace(init=init, apply=apply)}, gradients=gradients
    )
