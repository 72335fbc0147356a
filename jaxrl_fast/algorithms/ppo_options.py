"""Options of PPO that are off by default: other losses, and wrappers of its networks and parts."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_fast.core import Actions, Metrics, PyTree
from jaxrl_fast.learning.acting import MakePolicy, sample_action
from jaxrl_fast.learning.algorithm import Agent, GradientResult, Learned, OnPolicy, OnPolicyBatch, Part, elementwise
from jaxrl_fast.networks.network import STATISTICS, Network, over

PartLoss = Callable[[PyTree, OnPolicyBatch, jax.Array, Any], tuple[jax.Array, Metrics]]
"""(outputs of a network ``[L, B, out]``, their batch, key, hyper) -> scalar loss and metrics."""
VALUE_UPDATES, SMALLEST = 1e5, 1e-6
"""Updates over which `with_normalized_values` averages, as published (0.99999), and the smallest variance."""


def clipped_errors(value_loss: Callable) -> PartLoss:
    """Return the values' loss, which is not smaller beyond ``hyper.value_clip_range`` from a value at sampling time.

    Args:
        value_loss: Loss of a value and its target.

    Returns:
        The loss.

    Source: Engstrom et al. (2020), section 3, arXiv 2005.12729.
    """

    def loss_of(outputs: PyTree, batch: OnPolicyBatch, key: jax.Array, hyper: Any) -> tuple[jax.Array, Metrics]:
        now, target = outputs[..., 0], batch.targets["value_target"]
        before = target - batch.targets["advantage"]
        clipped = before + jnp.clip(now - before, -hyper.value_clip_range, hyper.value_clip_range)
        errors = jnp.maximum(elementwise(value_loss, now, target), elementwise(value_loss, clipped, target))
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

    def loss_of(outputs: PyTree, batch: OnPolicyBatch, key: jax.Array, hyper: Any) -> tuple[jax.Array, Metrics]:
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
    data = agent.data._replace(critic="agent", network="network", value=lambda outputs, *_: outputs["value"][..., 0])
    decide = sample_action(space, remember=True, outputs_of=lambda outputs: outputs["agent"]["policy"], policy=policy)
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

    def run(function: Callable, params: PyTree, *given: Any) -> tuple[Any, PyTree]:
        outputs, memory = function(params, *given)
        own = outputs[head] if head else outputs
        free = jnp.broadcast_to(params["free"]["outputs"], (*own.shape[:-1], len(numbers)))
        own = jnp.concatenate([own, free], axis=-1)
        return ({**outputs, head: own} if head else own), memory

    return over(network, run)._replace(init=init)


def with_normalized_values(part: Part, mean: Callable[[jax.Array, OnPolicyBatch], jax.Array]) -> Part:
    """Let a critic learn targets that are scaled by their running mean and deviation, of about `VALUE_UPDATES` updates.

    Its values are scaled back wherever they are used. Mean and variance are statistics in the network's params, as in
    a batch norm, and updated with each minibatch before its loss.

    Args:
        part: Part of a network ``value``.
        mean: Mean over steps.

    Returns:
        The part.

    Source: Yu et al. (2022), section 5.1, arXiv 2103.01955, with variances in place of mean squares.
    """
    network = part.networks["value"]

    def init(key: jax.Array) -> PyTree:
        numbers = {"mean": 0.0, "variance": 1.0, "updates": 0.0}
        params = network.init(key)
        return {**params, STATISTICS: {**params.get(STATISTICS, {}), **jax.tree.map(jnp.float32, numbers)}}

    def apply(params: PyTree, memory: PyTree, obs: PyTree, first: jax.Array, action: Any = None) -> tuple[Any, PyTree]:
        outputs, memory = network.apply(params, memory, obs, first, action)
        return outputs * jnp.sqrt(params[STATISTICS]["variance"]) + params[STATISTICS]["mean"], memory

    def gradients(own: Learned, peers: dict, batch: OnPolicyBatch, key: jax.Array, hyper: Any) -> GradientResult:
        old, target = own.params["value"][STATISTICS], batch.targets["value_target"]
        count = jnp.minimum(old["updates"] + 1.0, VALUE_UPDATES)
        found = mean(target, batch)
        change = found - old["mean"]
        spread = mean(jnp.square(target - found), batch) + jnp.square(change) * (1.0 - 1.0 / count)
        variance = old["variance"] + (spread - old["variance"]) / count
        new = {"mean": old["mean"] + change / count, "variance": jnp.maximum(variance, SMALLEST), "updates": count}
        scale = jnp.sqrt(new["variance"])
        scaled = {"value_target": (target - new["mean"]) / scale, "advantage": batch.targets["advantage"] / scale}
        result = part.gradients(own, peers, batch._replace(targets=batch.targets | scaled), key, hyper)
        return result._replace(statistics={"value": new})

    return part._replace(networks={"value": network._replace(init=init, apply=apply)}, gradients=gradients)
