"""Critics of off-policy algorithms: ensembles of Q-networks and their regression, and values by quantiles or bins."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import PyTree
from jaxrl_fast.learning.algorithm import ReplayBatch, elementwise, mean_loss
from jaxrl_fast.networks.network import Head, Heads, Network, ensemble, make_network
from jaxrl_fast.numerics.distributions import cross_entropy, divergence, project, quantile_huber


def policy_and_critics(
    obs_spec: PyTree,
    options: dict[str, Any],
    *,
    policy_size: int,
    q_size: int = 1,
    action_shape: tuple[int, ...] | None = None,
    num_critics: int = 2,
) -> tuple[Network, Network]:
    """The policy, with ``policy_size`` outputs, and ``num_critics`` Q-networks with ``q_size`` outputs each, which take
    an action where ``action_shape`` is given. ``options``: those of the factory (`Algorithm.options`)."""
    shared = {name: options[name] for name in ("activation", "recurrent_size", "cnn", "precision")}
    policy = make_network(
        obs_spec, policy_size, hidden=options["policy_hidden"], keys=options["policy_keys"], out_scale=0.01, **shared
    )
    critic = {"hidden": options["critic_hidden"], "keys": options["critic_keys"]}
    critic |= {"layer_norm": options["critic_layer_norm"], "action_shape": action_shape}
    return policy, ensemble(make_network(obs_spec, q_size, **critic, **shared), num_critics)


def regression(critic_loss: Callable, q: jax.Array, target: jax.Array, batch: ReplayBatch) -> jax.Array:
    """The sum over critics of the mean loss of values ``q`` ``[N, L, B]`` against ``target`` ``[L, B]``."""
    return sum((mean_loss(elementwise(critic_loss, x, target), batch) for x in q), start=jnp.zeros(()))


ValueKind = Literal["scalar", "categorical", "quantiles"]


class ValueHead(NamedTuple):
    """How values are represented.

    - ``width``: outputs for each action.
    - ``expected(outputs [..., width])``: the values ``[...]`` that these mean.
    - ``loss(outputs, reward, bootstrap, following)``: compares one step with its Bellman target: ``outputs``
      ``[width]`` at the step, ``following`` ``[width]`` behind it; ``bootstrap``: the discount, 0 at an end. Returns
      the loss, and how much the step surprised (the priority of prioritized replay).
    """

    width: int
    expected: Callable[[jax.Array], jax.Array]
    loss: Callable[[jax.Array, jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]


def make_value_head(
    kind: ValueKind, num_atoms: int, value_range: tuple[float, float], scalar_loss: Callable[..., jax.Array]
) -> ValueHead:
    """The head named ``kind``; ``num_atoms`` is the width of a distribution, ``value_range`` where the atoms of a
    categorical one lie.

    Raises:
        ValueError: there is no such head, it has fewer than 2 atoms, or the range is empty.
    """
    if kind == "scalar":
        return scalar_head(scalar_loss)
    if kind not in ("categorical", "quantiles"):
        raise ValueError(f"value_head={kind}: write scalar, categorical or quantiles")
    if num_atoms < 2:
        raise ValueError(f"num_atoms={num_atoms}: write a number of at least 2, such as 51")
    if kind == "quantiles":
        return quantile_head(num_atoms)
    if not value_range[0] < value_range[1]:
        low, high = value_range
        raise ValueError(f"value_min={low} is not below value_max={high}: write the range of discounted returns")
    return categorical_head(num_atoms, value_range)


def scalar_head(scalar_loss: Callable[..., jax.Array]) -> ValueHead:
    """The value itself; ``scalar_loss(value, target)``."""

    def loss(
        outputs: jax.Array, reward: jax.Array, bootstrap: jax.Array, following: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        target = reward + bootstrap * following[0]
        return scalar_loss(outputs[0], target), outputs[0] - target

    return ValueHead(1, lambda outputs: outputs[..., 0], loss)


def categorical_head(num_atoms: int, value_range: tuple[float, float]) -> ValueHead:
    """Probabilities of evenly spaced returns, as logits (C51, arXiv 1707.06887); surprise is the Kullback-Leibler
    divergence from the target (Rainbow, arXiv 1710.02298)."""

    def atoms() -> jax.Array:
        return jnp.linspace(*value_range, num_atoms)

    def expected(outputs: jax.Array) -> jax.Array:
        return jnp.sum(jax.nn.softmax(outputs) * jnp.broadcast_to(atoms(), outputs.shape), axis=-1)

    def loss(
        outputs: jax.Array, reward: jax.Array, bootstrap: jax.Array, following: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        target = project(reward + bootstrap * atoms(), jax.nn.softmax(following), atoms())
        return cross_entropy(outputs, target), divergence(outputs, target)

    return ValueHead(num_atoms, expected, loss)


def quantile_head(num_quantiles: int) -> ValueHead:
    """Quantiles of the return (QR-DQN, arXiv 1710.10044); surprise is the loss."""

    def loss(
        outputs: jax.Array, reward: jax.Array, bootstrap: jax.Array, following: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        found = quantile_huber(outputs, reward + bootstrap * following)
        return found, found

    return ValueHead(num_quantiles, lambda outputs: jnp.mean(outputs, axis=-1), loss)


def q_outputs(num_actions: int, width: int, dueling: bool) -> int | Heads:
    """The heads of a network that says ``width`` numbers of each action."""
    return {"value": Head(width), "advantage": Head(num_actions * width)} if dueling else num_actions * width


def by_action(outputs: Any, width: int) -> jax.Array:
    """``[..., num_actions, width]`` of the outputs of `q_outputs`; dueling heads are added up (arXiv 1511.06581,
    equation 9)."""
    if not isinstance(outputs, dict):
        return outputs.reshape(*outputs.shape[:-1], -1, width)
    advantage = by_action(outputs["advantage"], width)
    return by_action(outputs["value"], width) + advantage - jnp.mean(advantage, axis=-2, keepdims=True)


def of_action(outputs: jax.Array, action: jax.Array) -> jax.Array:
    """``[..., width]`` that ``outputs`` ``[..., num_actions, width]`` say of ``action`` ``[...]``."""
    return jnp.take_along_axis(outputs, action[..., None, None], axis=-2)[..., 0, :]
