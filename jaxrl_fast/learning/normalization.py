"""Normalization of observations and rewards, when batches are made; what is stored stays raw."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import EnvSpec, Transition, is_image
from jaxrl_fast.numerics.running_stats import RunningStats, normalize

MAX_SCALED_REWARD = 10.0
"""Rewards normalized by the deviation of returns are clipped here, as in Stable-Baselines3's VecNormalize."""


class Statistics(NamedTuple):
    """Running statistics over all environments.

    - ``obs``: of observations.
    - ``returns``: of discounted returns, whose deviation is the scale of rewards.
    - ``largest``: discounted return so far, by size; ``()`` where there is no `Agent.max_return`.
    """

    obs: RunningStats
    returns: RunningStats
    largest: Any = ()


def scale_experience(
    data: Transition,
    statistics: Statistics | None,
    reward_scale: jax.Array,
    normalize_rewards: bool,
    max_return: float | None = None,
) -> Transition:
    """Steps with rewards multiplied by ``reward_scale``, and normalized observations and rewards where ``statistics``
    are given; ``max_return`` as in `Agent`."""
    reward = data.reward * reward_scale
    if statistics is None:
        return data._replace(reward=reward)
    if normalize_rewards:
        reward = _normalize_rewards(reward, statistics, max_return)
    obs, next_obs = normalize(statistics.obs, data.obs), normalize(statistics.obs, data.next_obs)
    return data._replace(obs=obs, next_obs=next_obs, reward=reward)


def _normalize_rewards(reward: jax.Array, statistics: Statistics, max_return: float | None) -> jax.Array:
    count = jnp.maximum(statistics.returns.samples, 1.0)
    variance = jnp.where(statistics.returns.samples > 0, statistics.returns.m2 / count, 1.0)
    factor = jax.lax.rsqrt(variance + 1e-8)
    if max_return is not None:
        factor = jnp.minimum(factor, max_return / jnp.maximum(statistics.largest, 1e-8))
    # Clipped, since the first reward of a sparse environment would be divided by a deviation of 0.
    return jnp.clip(reward * factor, -MAX_SCALED_REWARD, MAX_SCALED_REWARD)


def normalizes(asked: bool | None, spec: EnvSpec) -> bool:
    """Whether observations are normalized: as ``asked``; by default (None) unless all are images.

    Raises:
        ValueError: it was asked for, and there are only images.
    """
    only_images = all(is_image(leaf) for leaf in jax.tree.leaves(spec.obs))
    if asked and only_images:
        raise ValueError(
            f"normalize_observations=true is for real numbers, and {spec.name} observes images, whose bytes are scaled "
            "to 0..1 as they are: leave it out"
        )
    return not only_images if asked is None else asked
