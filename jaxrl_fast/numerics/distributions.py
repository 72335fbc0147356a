"""Action distributions: masked categorical, products of them, and tanh-normal. Tested against
SciPy.

A distribution is a NamedTuple of parameters, used by free functions. Samples and log-probabilities
use *raw* actions; ``to_action`` maps a raw action into the environment's range. Storing raw actions
avoids the inverse of tanh, which loses all precision near the bounds.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import Actions, Box, Discrete, MultiDiscrete, PyTree

MASKED_LOGIT = -1e9
MIN_SCALE = 1e-3
PUBLISHED_DEVIATIONS = math.exp(-20.0), math.exp(2.0)
"""Smallest and largest standard deviation in the code of SAC's authors
(github.com/rail-berkeley/softlearning).
"""
_LOG_SQRT_2PI = 0.9189385332046727
_LOG_2 = 0.6931471805599453
_SQRT_2 = 1.4142135623730951
_ABOVE_MINUS_1 = np.nextafter(np.float32(-1.0), np.float32(0.0))


class Categorical(NamedTuple):
    """Distribution over discrete actions.

    Attributes:
        logits: Unnormalized log-probabilities, `MASKED_LOGIT` for masked actions,
            ``[..., num_actions]``.
    """

    logits: jax.Array


class TanhNormal(NamedTuple):
    """Independent normals squashed by tanh into (-1, 1), for ``A`` action dimensions.

    Attributes:
        mean: Means before the squashing, ``[..., A]``.
        scale: Standard deviations before the squashing, ``[..., A]``.

    Source: Haarnoja et al. (2018), appendix C, arXiv 1801.01290.
    """

    mean: jax.Array
    scale: jax.Array


class Normal(NamedTuple):
    """Independent normals whose samples `to_action` clips to [-1, 1], for ``A`` action dimensions.

    Attributes:
        mean: Means, ``[..., A]``.
        scale: Standard deviations, ``[..., A]``.
    """

    mean: jax.Array
    scale: jax.Array


class MultiCategorical(NamedTuple):
    """Independent distributions over the ``D`` parts of a `MultiDiscrete` action.

    Attributes:
        logits: As of `Categorical`, ``[..., D, largest size]``; parts with fewer values are filled
            with `MASKED_LOGIT`.
    """

    logits: jax.Array


Distribution = Categorical | TanhNormal | Normal | MultiCategorical


def categorical(logits: jax.Array, mask: jax.Array | None = None) -> Categorical:
    """Build a distribution over discrete actions.

    Args:
        logits: Logits ``[..., num_actions]``.
        mask: True where an action is allowed, ``[..., num_actions]``; None allows all.

    Returns:
        The distribution.
    """
    return Categorical(
        logits if mask is None else jnp.where(mask.astype(bool), logits, MASKED_LOGIT)
    )


def multi_categorical(
    sizes: tuple[int, ...], outputs: jax.Array, mask: jax.Array | None = None
) -> MultiCategorical:
    """Build the distribution of several discrete actions.

    Args:
        sizes: Number of values of each part.
        outputs: Logits of all parts, one after another, ``[..., sum(sizes)]``.
        mask: True where a value is allowed, in the same order; None allows all.

    Returns:
        The distribution.
    """
    return MultiCategorical(by_part(sizes, categorical(outputs, mask).logits, MASKED_LOGIT))


def by_part(sizes: tuple[int, ...], values: jax.Array, fill: float) -> jax.Array:
    """Split the values of the parts of a `MultiDiscrete` action.

    Args:
        sizes: Number of values of each part.
        values: Values of all parts, one after another, ``[..., sum(sizes)]``.
        fill: Value at the end of smaller parts.

    Returns:
        Values ``[..., D, largest size]``.
    """
    rows, start = [], 0
    for size in sizes:
        row = jax.lax.slice_in_dim(values, start, start + size, axis=-1)
        missing = jnp.full((*values.shape[:-1], max(sizes) - size), fill, values.dtype)
        row = jnp.concatenate([row, missing], axis=-1) if max(sizes) > size else row
        rows.append(jnp.expand_dims(row, -2))
        start += size
    return jnp.concatenate(rows, axis=-2)


def tanh_normal(outputs: jax.Array, bounds: tuple[float, float] | None = None) -> TanhNormal:
    """Build a tanh-normal distribution from network outputs.

    Args:
        outputs: Means, then standard deviations before a softplus, or with ``bounds`` their
            logarithms, ``[..., 2 A]``.
        bounds: Smallest and largest standard deviation; None for a softplus without an upper bound.

    Returns:
        The distribution.
    """
    mean, raw_scale = jnp.split(outputs, 2, axis=-1)
    if bounds is None:
        return TanhNormal(mean, softplus(raw_scale) + MIN_SCALE)
    return TanhNormal(mean, jnp.exp(jnp.clip(raw_scale, *map(math.log, bounds))))


def normal(space: Actions, outputs: jax.Array, obs: PyTree = None) -> Normal:
    """Build the distribution of actions that are clipped, not squashed, from network outputs.

    Args:
        space: Unused.
        outputs: As of `tanh_normal`.
        obs: Unused.

    Returns:
        The distribution.
    """
    return Normal(*tanh_normal(outputs))


def deviation_bounds(least: float | None, most: float | None) -> tuple[float, float] | None:
    """Return the bounds of standard deviations for `tanh_normal`.

    Args:
        least: Smallest standard deviation; None for the published one if there is a largest.
        most: Largest standard deviation; None for the published one if there is a smallest.

    Returns:
        Both bounds; None if neither is given.

    Raises:
        ValueError: The smallest is not below the largest.
    """
    if least is None and most is None:
        return None
    low, high = (
        PUBLISHED_DEVIATIONS[0] if least is None else least,
        PUBLISHED_DEVIATIONS[1] if most is None else most,
    )
    if not low < high:
        raise ValueError(
            f"deviation_min={low:g} is not below deviation_max={high:g}: write such as 0.01 and 2.0"
        )
    return low, high


def of_outputs(space: Actions, outputs: jax.Array, mask: jax.Array | None = None) -> Distribution:
    """Build the action distribution of a space from network outputs.

    Args:
        space: Action space.
        outputs: Network outputs ``[..., num_outputs(space)]``.
        mask: Allowed actions ``[..., num_actions]``, of discrete spaces; None allows all.

    Returns:
        The distribution.
    """
    if isinstance(space, MultiDiscrete):
        return multi_categorical(space.sizes, outputs, mask)
    return categorical(outputs, mask) if isinstance(space, Discrete) else tanh_normal(outputs)


def num_outputs(space: Actions) -> int:
    """Return the number of outputs of a policy network.

    Args:
        space: Action space.

    Returns:
        Number of logits, or of means and standard deviations.
    """
    if isinstance(space, MultiDiscrete):
        return sum(space.sizes)
    return space.num_actions if isinstance(space, Discrete) else 2 * space.low.size


def initial_biases(space: Box, deviation: float) -> tuple[float, ...]:
    """Return biases of a policy network's last layer that give normal actions a standard deviation.

    Args:
        space: Continuous actions.
        deviation: Standard deviation before the squashing, in half ranges of the actions.

    Returns:
        Biases by output.

    Raises:
        ValueError: The deviation is not above `MIN_SCALE`.
    """
    if not MIN_SCALE < deviation < math.inf:
        raise ValueError(
            f"initial_deviation={deviation}: write a number above {MIN_SCALE}, such as 0.5"
        )
    raw = deviation - MIN_SCALE
    return (0.0,) * space.low.size + (raw + math.log(-math.expm1(-raw)),) * space.low.size


def sample(dist: Distribution, key: jax.Array) -> jax.Array:
    """Draw one raw action per batch element.

    Args:
        dist: Distribution.
        key: Random key.

    Returns:
        Raw actions, int32 ``[...]`` or ``[..., D]``, or float32 ``[..., A]``.
    """
    if not isinstance(dist, TanhNormal | Normal):
        return jax.random.categorical(key, dist.logits).astype(jnp.int32)
    return dist.mean + dist.scale * standard_normal(key, dist.mean.shape)


def standard_normal(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draw the numbers of `jax.random.normal`.

    On a CPU the inverse error function runs in a loop of two iterations, which XLA runs once;
    otherwise XLA copies the function into each of the five operations that use the result. An odd
    number of elements is drawn by `jax.random`.

    Args:
        key: Random key.
        shape: Shape of the result.

    Returns:
        float32 array of this shape.
    """
    if math.prod(shape) % 2:
        return jax.random.normal(key, shape)
    uniform = jax.random.uniform(key, shape, minval=_ABOVE_MINUS_1, maxval=1.0)
    return jax.lax.platform_dependent(uniform, cpu=_normal_by_halves, default=_normal)


def _normal_by_halves(uniform: jax.Array) -> jax.Array:
    return jax.lax.map(_normal, uniform.reshape(2, -1)).reshape(uniform.shape)


def _normal(uniform: jax.Array) -> jax.Array:
    return _SQRT_2 * jax.lax.erf_inv(uniform)


def mode(dist: Distribution) -> jax.Array:
    """Return the greedy raw action.

    Args:
        dist: Distribution.

    Returns:
        Raw actions, int32 ``[...]`` or ``[..., D]``, or float32 ``[..., A]``.
    """
    if not isinstance(dist, TanhNormal | Normal):
        return jnp.argmax(dist.logits, axis=-1).astype(jnp.int32)
    return dist.mean


def log_prob(dist: Distribution, raw: jax.Array) -> jax.Array:
    """Compute the log-density of the squashed action, in (-1, 1) units, or of the sample of a
    `Normal`.

    Args:
        dist: Distribution.
        raw: Raw actions, int32 ``[...]`` or ``[..., D]``, or float32 ``[..., A]``.

    Returns:
        Log-probability or log-density ``[...]``.
    """
    if not isinstance(dist, TanhNormal | Normal):
        return _over_parts(dist, pick(jax.nn.log_softmax(dist.logits), raw))
    normal = -0.5 * jnp.square((raw - dist.mean) / dist.scale) - jnp.log(dist.scale) - _LOG_SQRT_2PI
    return jnp.sum(normal if isinstance(dist, Normal) else normal - _log_tanh_slope(raw), axis=-1)


def _over_parts(dist: Categorical | MultiCategorical, each: jax.Array) -> jax.Array:
    return jnp.sum(each, axis=-1) if isinstance(dist, MultiCategorical) else each


def pick(values: jax.Array, index: jax.Array) -> jax.Array:
    """Select one entry of the last axis.

    Accelerators use a mask: the gradient of a gather is a scatter, slow there and not deterministic
    on a GPU.

    Args:
        values: Values ``[..., n]``.
        index: Indices ``[...]``.

    Returns:
        Selected entries ``[...]``.
    """
    return jax.lax.platform_dependent(values, index, cpu=_gather, default=_masked)


def _gather(values: jax.Array, index: jax.Array) -> jax.Array:
    return jnp.take_along_axis(values, index[..., None], axis=-1)[..., 0]


def _masked(values: jax.Array, index: jax.Array) -> jax.Array:
    chosen = jax.nn.one_hot(index, values.shape[-1], dtype=bool)
    return jnp.sum(jnp.where(chosen, values, 0.0), axis=-1)


def entropy(dist: Distribution, key: jax.Array) -> jax.Array:
    """Compute the entropy: an unbiased estimate from one sample for tanh-normal, else exact.

    Args:
        dist: Distribution.
        key: Random key of the estimate.

    Returns:
        Entropies ``[...]``.
    """
    if not isinstance(dist, TanhNormal | Normal):
        log_probs = jax.nn.log_softmax(dist.logits)
        return _over_parts(dist, -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1))
    gaussian = 0.5 + _LOG_SQRT_2PI + jnp.log(dist.scale)
    return jnp.sum(
        gaussian if isinstance(dist, Normal) else gaussian + _log_tanh_slope(sample(dist, key)),
        axis=-1,
    )


def largest_entropy(dist: Categorical | MultiCategorical) -> jax.Array:
    """Compute the entropy of uniformly random choices among the actions that no mask forbids.

    Args:
        dist: Distribution.

    Returns:
        Entropies ``[...]``.
    """
    allowed = jnp.sum(dist.logits > 0.5 * MASKED_LOGIT, axis=-1, dtype=jnp.float32)
    return _over_parts(dist, jnp.log(jnp.maximum(allowed, 1.0)))


def to_action(space: Actions, raw: jax.Array, dist: Distribution | None = None) -> jax.Array:
    """Map raw actions to the environment's actions.

    Args:
        space: Action space.
        raw: Raw actions, int32 ``[...]`` or ``[..., D]``, or float32 ``[..., A]``.
        dist: Their distribution, if it may be a `Normal`.

    Returns:
        Discrete actions unchanged; else squashed by tanh, or clipped to [-1, 1] if they are samples
        of a `Normal`, and scaled into ``[low, high]``, ``[..., *action_shape]``.
    """
    if not isinstance(space, Box):
        return raw
    return from_unit(space, jnp.clip(raw, -1.0, 1.0) if isinstance(dist, Normal) else jnp.tanh(raw))


def from_unit(space: Box, unit: jax.Array) -> jax.Array:
    """Scale actions from ``[-1, 1]`` to ``[low, high]``.

    Args:
        space: Action space.
        unit: Actions in ``[-1, 1]``, ``[..., A]``.

    Returns:
        Actions ``[..., *action_shape]``.
    """
    low, half_range = _bounds(space, unit)
    action = low + (unit + 1.0) * half_range
    return action.reshape(*unit.shape[:-1], *space.low.shape)


def to_unit(space: Box, action: jax.Array) -> jax.Array:
    """Scale actions from ``[low, high]`` to ``[-1, 1]``.

    Args:
        space: Action space.
        action: Actions ``[..., *action_shape]``.

    Returns:
        Actions in ``[-1, 1]``, ``[..., A]``.
    """
    flat = action.reshape(*action.shape[: action.ndim - space.low.ndim], -1)
    low, half_range = _bounds(space, flat)
    return (flat - low) / half_range - 1.0


@jax.custom_jvp
def softplus(x: jax.Array) -> jax.Array:
    """Compute ``log(1 + exp(x))`` to within 1e-7 and rounding.

    `jax.nn.softplus` is exact also where the result is smaller than 1e-7, but XLA compiles its
    ``log1p`` to a slow program for the CPU: an update of SAC takes 3 to 9 % longer with it.

    Args:
        x: Values of any shape.

    Returns:
        Values of the same shape.
    """
    return jnp.maximum(x, 0.0) + jnp.log(1.0 + jnp.exp(-jnp.abs(x)))


@softplus.defjvp
def _softplus_slope(at: tuple[jax.Array], along: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    return softplus(*at), jax.nn.sigmoid(*at) * along[0]


def _bounds(space: Box, like: jax.Array) -> tuple[jax.Array, jax.Array]:
    low = jnp.broadcast_to(jnp.asarray(space.low.reshape(-1), jnp.float32), like.shape)
    high = jnp.broadcast_to(jnp.asarray(space.high.reshape(-1), jnp.float32), like.shape)
    return low, 0.5 * (high - low)


def _log_tanh_slope(raw: jax.Array) -> jax.Array:
    """``log(1 - tanh(raw)^2)``, in a form that does not lose precision for large ``|raw|``."""
    return 2.0 * (_LOG_2 - raw - softplus(-2.0 * raw))


def project(positions: jax.Array, probabilities: jax.Array, atoms: jax.Array) -> jax.Array:
    """Project a distribution onto evenly spaced atoms.

    The probability of each position is shared between the two atoms around it. Positions outside go
    to the first or last.

    Args:
        positions: Support of the distribution, ``[M]``.
        probabilities: Its probabilities, ``[M]``.
        atoms: Evenly spaced atoms, ``[N]``.

    Returns:
        Probabilities of the atoms, ``[N]``.

    Source: Bellemare et al. (2017), equation 7, arXiv 1707.06887.
    """
    spacing = atoms[1] - atoms[0]
    distance = jnp.abs(jnp.clip(positions, atoms[0], atoms[-1])[None, :] - atoms[:, None]) / spacing
    # A dot product, because XLA recomputes a plain sum for each use of its result.
    return jnp.dot(jnp.clip(1.0 - distance, 0.0, 1.0), probabilities, precision="highest")


def cross_entropy(logits: jax.Array, target: jax.Array) -> jax.Array:
    """Compute the cross-entropy of a categorical distribution against a target, in nats.

    Args:
        logits: Logits ``[N]``.
        target: Probabilities ``[N]``.

    Returns:
        A scalar.
    """
    return -jnp.sum(target * jax.nn.log_softmax(logits))


def divergence(logits: jax.Array, target: jax.Array) -> jax.Array:
    """Compute the Kullback-Leibler divergence from a target to a categorical distribution, in nats.

    The sum is over differences of logarithms: cross-entropy minus entropy loses digits where the
    two are alike.

    Args:
        logits: Logits ``[N]``.
        target: Probabilities ``[N]``.

    Returns:
        A scalar, KL(target || softmax(logits)).
    """
    log_target = jnp.log(jnp.maximum(target, jnp.finfo(target.dtype).tiny))
    return jnp.sum(target * (log_target - jax.nn.log_softmax(logits)))


def quantile_levels(size: int) -> jax.Array:
    """Return the levels of evenly spaced quantiles: the midpoints of equal parts of [0, 1].

    Args:
        size: Number of quantiles ``N``.

    Returns:
        Levels in (0, 1), ``[N]``.

    Source: Dabney et al. (2018), lemma 2, arXiv 1710.10044.
    """
    return (jnp.arange(size, dtype=jnp.float32) + 0.5) / size


def quantile_huber(
    quantiles: jax.Array,
    targets: jax.Array,
    threshold: float = 1.0,
    levels: jax.Array | None = None,
) -> jax.Array:
    """Compute the quantile Huber loss: the sum over quantiles of the mean over samples.

    Args:
        quantiles: Predicted quantiles ``[N]``.
        targets: Samples of the target ``[M]``.
        threshold: Error up to which the loss is quadratic.
        levels: Levels of the quantiles ``[N]``; None for `quantile_levels`.

    Returns:
        A scalar.

    Source: Dabney et al. (2018), equations 9 and 10, arXiv 1710.10044; random levels: equation 3,
    arXiv 1806.06923.
    """
    error = targets[None, :] - quantiles[:, None]
    size = jnp.abs(error)
    huber = jnp.where(
        size <= threshold, 0.5 * jnp.square(error), threshold * (size - 0.5 * threshold)
    )
    levels = quantile_levels(len(quantiles)) if levels is None else levels
    share = jnp.abs(levels[:, None] - (error < 0.0))
    return jnp.sum(jnp.mean(share * huber / threshold, axis=1))
