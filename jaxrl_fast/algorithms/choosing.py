"""Choosing actions: from a stochastic policy, or by Q-values."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_fast.algorithms.interface import Decide
from jaxrl_fast.core import Box, Discrete, PyTree
from jaxrl_fast.networks.network import action_mask
from jaxrl_fast.numerics import distributions
from jaxrl_fast.numerics.distributions import Distribution


def policy_of(space: Discrete | Box, outputs: jax.Array, obs: PyTree) -> Distribution:
    """The policy at network outputs ``[..., out]``, without the actions that an ``action_mask`` forbids."""
    return distributions.of_outputs(space, outputs, action_mask(obs))


def sample_action(space: Discrete | Box, *, remember: bool) -> Decide:
    """Sample from the policy of the part ``actor``; greedily, take its mode. ``remember``: store the raw action and its
    log-probability for the update, as ``raw_action`` and ``log_prob``."""

    def decide(outputs: dict, obs: PyTree, state: PyTree, key: jax.Array, hyper: Any, explore: bool) -> tuple:
        dist = policy_of(space, outputs["actor"], obs)
        raw = distributions.sample(dist, key) if explore else distributions.mode(dist)
        extras = {"raw_action": raw, "log_prob": distributions.log_prob(dist, raw)} if explore and remember else {}
        return distributions.to_action(space, raw), state, extras

    return decide


def greedy_action(q: jax.Array, obs: PyTree) -> jax.Array:
    """The allowed action ``[...]`` with the largest of the Q-values ``[..., num_actions]``."""
    return distributions.mode(distributions.categorical(q, action_mask(obs)))


def epsilon_greedy(q: jax.Array, obs: PyTree, epsilon: jax.Array, key: jax.Array) -> jax.Array:
    """`greedy_action`, or with probability ``epsilon`` an allowed action, uniformly."""
    best, (which_key, action_key) = greedy_action(q, obs), jax.random.split(key)
    any_allowed = distributions.categorical(jnp.zeros_like(q), action_mask(obs))
    at_random = jax.random.uniform(which_key, best.shape) < epsilon
    return jnp.where(at_random, distributions.sample(any_allowed, action_key), best)


def value_of(q: jax.Array, action: jax.Array) -> jax.Array:
    """The Q-value ``[...]`` of ``action``, out of ``[..., num_actions]``."""
    return jnp.take_along_axis(q, action[..., None], axis=-1)[..., 0]
