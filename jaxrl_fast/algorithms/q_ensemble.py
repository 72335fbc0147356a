"""What off-policy actor-critics share: a policy, an ensemble of Q-networks, and the regression of the latter."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_fast.algorithms.interface import ReplayBatch, elementwise
from jaxrl_fast.algorithms.sequences import mean_loss
from jaxrl_fast.core import PyTree
from jaxrl_fast.networks.network import Network, ensemble, make_network


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
