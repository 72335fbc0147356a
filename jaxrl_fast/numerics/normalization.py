"""Running mean and variance of pytrees, merged batch by batch (Chan, Golub and LeVeque, 1979), and what they normalize.

Keys named ``action_mask`` and leaves that are not floating point pass through untouched. Observations and rewards are
normalized when batches are made; stored data stays raw.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import EnvSpec, PyTree, Transition, is_image


class RunningStats(NamedTuple):
    """Mean and variance of the elements seen so far.

    - ``samples``: how many there were, a float32 scalar.
    - ``mean``: of each number of an element, with the shape of one element.
    - ``m2``: sum of squared deviations from the mean; the variance is ``m2 / samples``.
    """

    samples: jax.Array
    mean: PyTree
    m2: PyTree


def init_stats(spec: PyTree) -> RunningStats:
    """Statistics of no data; ``spec``: shapes of one element, a pytree of arrays or ``ShapeDtypeStruct``."""

    def zeros(x: jax.ShapeDtypeStruct) -> jax.Array:
        return jnp.zeros(x.shape, jnp.float32)

    return RunningStats(jnp.zeros((), jnp.float32), jax.tree.map(zeros, spec), jax.tree.map(zeros, spec))


def update_stats(stats: RunningStats, batch: PyTree, batch_axes: int) -> RunningStats:
    """Merge a batch of elements, whose leaves have ``batch_axes`` leading batch axes."""
    axes = tuple(range(batch_axes))
    size = float(math.prod(jax.tree.leaves(batch)[0].shape[:batch_axes]))
    count = stats.samples + size

    def merge(mean: jax.Array, m2: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = x.astype(jnp.float32)
        batch_mean = jnp.mean(x, axis=axes)
        batch_m2 = jnp.sum(jnp.square(x - jnp.expand_dims(batch_mean, axes)), axis=axes)
        delta = batch_mean - mean
        return mean + delta * (size / count), m2 + batch_m2 + jnp.square(delta) * (stats.samples * size / count)

    merged = jax.tree.map(merge, stats.mean, stats.m2, batch)
    mean, m2 = jax.tree.transpose(jax.tree.structure(stats.mean), jax.tree.structure((0, 0)), merged)
    return RunningStats(count, mean, m2)


def normalize(stats: RunningStats, x: PyTree, clip: float = 10.0) -> PyTree:
    """``(x - mean) / std``, clipped to ``[-clip, clip]``; the identity while there is no data."""

    def apply(path: tuple, mean: jax.Array, m2: jax.Array, leaf: jax.Array) -> jax.Array:
        if is_mask(path) or not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        std = jnp.where(stats.samples > 0, jnp.sqrt(m2 / jnp.maximum(stats.samples, 1.0) + 1e-6), 1.0)
        lead = tuple(range(leaf.ndim - mean.ndim))
        scaled = (leaf - jnp.expand_dims(mean, lead)) / jnp.expand_dims(std, lead)
        return jnp.where(stats.samples > 0, jnp.clip(scaled, -clip, clip), leaf)

    return jax.tree_util.tree_map_with_path(apply, stats.mean, stats.m2, x)


def is_mask(path: tuple) -> bool:
    """Whether a leaf of an observation is its ``action_mask``."""
    return bool(path) and getattr(path[-1], "key", None) == "action_mask"


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
