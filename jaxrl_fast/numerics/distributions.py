"""Action distributions: categorical with a mask, and tanh-normal. Tested against SciPy.

A distribution is a NamedTuple of parameters plus free functions. What is sampled and scored is the *raw* action;
``to_action`` maps it into the environment's range. Keeping the raw action avoids the inverse of tanh, which loses
all precision near the bounds.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import Box, Discrete

MASKED_LOGIT = -1e9
MIN_SCALE = 1e-3
_LOG_SQRT_2PI = 0.9189385332046727
_LOG_2 = 0.6931471805599453
_SQRT_2 = 1.4142135623730951
_ABOVE_MINUS_1 = np.nextafter(np.float32(-1.0), np.float32(0.0))


class Categorical(NamedTuple):
    """A distribution over discrete actions: ``logits`` ``[..., num_actions]``, `MASKED_LOGIT` for masked actions."""

    logits: jax.Array


class TanhNormal(NamedTuple):
    """Independent normals squashed by tanh into (-1, 1) (SAC, arXiv 1801.01290, appendix C).

    - ``mean``, ``scale``: mean and standard deviation before the squashing, ``[..., A]`` for ``A`` action dimensions.
    """

    mean: jax.Array
    scale: jax.Array


Distribution = Categorical | TanhNormal


def categorical(logits: jax.Array, mask: jax.Array | None = None) -> Categorical:
    """A distribution over discrete actions; ``mask`` ``[..., num_actions]`` is true where an action is allowed."""
    return Categorical(logits if mask is None else jnp.where(mask.astype(bool), logits, MASKED_LOGIT))


def tanh_normal(outputs: jax.Array) -> TanhNormal:
    """A tanh-normal from network outputs ``[..., 2 A]``: means, and scales through a softplus."""
    mean, raw_scale = jnp.split(outputs, 2, axis=-1)
    return TanhNormal(mean, softplus(raw_scale) + MIN_SCALE)


def of_outputs(space: Discrete | Box, outputs: jax.Array, mask: jax.Array | None = None) -> Distribution:
    """The distribution over actions from network outputs ``[..., num_outputs(space)]``."""
    return categorical(outputs, mask) if isinstance(space, Discrete) else tanh_normal(outputs)


def num_outputs(space: Discrete | Box) -> int:
    """The number of outputs of a policy network."""
    return space.num_actions if isinstance(space, Discrete) else 2 * space.low.size


def sample(dist: Distribution, key: jax.Array) -> jax.Array:
    """One raw action per batch element: int32 ``[...]`` or float32 ``[..., A]``."""
    if isinstance(dist, Categorical):
        return jax.random.categorical(key, dist.logits).astype(jnp.int32)
    return dist.mean + dist.scale * standard_normal(key, dist.mean.shape)


def standard_normal(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The numbers of `jax.random.normal`, float32 of this ``shape``. On a CPU by a loop of two turns, which XLA runs
    once, where it copies an inverse error function into each of the five operations that use the result."""
    if math.prod(shape) % 2:
        return jax.random.normal(key, shape)
    uniform = jax.random.uniform(key, shape, minval=_ABOVE_MINUS_1, maxval=1.0)
    return jax.lax.platform_dependent(uniform, cpu=_normal_by_halves, default=_normal)


def _normal_by_halves(uniform: jax.Array) -> jax.Array:
    return jax.lax.map(_normal, uniform.reshape(2, -1)).reshape(uniform.shape)


def _normal(uniform: jax.Array) -> jax.Array:
    return _SQRT_2 * jax.lax.erf_inv(uniform)


def mode(dist: Distribution) -> jax.Array:
    """The greedy raw action."""
    if isinstance(dist, Categorical):
        return jnp.argmax(dist.logits, axis=-1).astype(jnp.int32)
    return dist.mean


def log_prob(dist: Distribution, raw: jax.Array) -> jax.Array:
    """Log-density ``[...]`` of the squashed action, in (-1, 1) units, at raw action ``raw``."""
    if isinstance(dist, Categorical):
        return pick(jax.nn.log_softmax(dist.logits), raw)
    normal = -0.5 * jnp.square((raw - dist.mean) / dist.scale) - jnp.log(dist.scale) - _LOG_SQRT_2PI
    return jnp.sum(normal - _log_tanh_slope(raw), axis=-1)


def pick(values: jax.Array, index: jax.Array) -> jax.Array:
    """The entries ``[...]`` of ``values`` ``[..., n]`` at ``index`` ``[...]``. On accelerators by a mask: a gather's
    gradient is a scatter, slow there, and on a GPU not deterministic."""
    return jax.lax.platform_dependent(values, index, cpu=_gather, default=_masked)


def _gather(values: jax.Array, index: jax.Array) -> jax.Array:
    return jnp.take_along_axis(values, index[..., None], axis=-1)[..., 0]


def _masked(values: jax.Array, index: jax.Array) -> jax.Array:
    chosen = jax.nn.one_hot(index, values.shape[-1], dtype=bool)
    return jnp.sum(jnp.where(chosen, values, 0.0), axis=-1)


def entropy(dist: Distribution, key: jax.Array) -> jax.Array:
    """Entropy ``[...]``: exact for categorical, an unbiased one-sample estimate for tanh-normal."""
    if isinstance(dist, Categorical):
        log_probs = jax.nn.log_softmax(dist.logits)
        return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)
    gaussian = 0.5 + _LOG_SQRT_2PI + jnp.log(dist.scale)
    return jnp.sum(gaussian + _log_tanh_slope(sample(dist, key)), axis=-1)


def to_action(space: Discrete | Box, raw: jax.Array) -> jax.Array:
    """The environment's action ``[..., *action_shape]``: the raw one if discrete, else squashed and scaled into
    ``[low, high]``."""
    return raw if isinstance(space, Discrete) else from_unit(space, jnp.tanh(raw))


def from_unit(space: Box, unit: jax.Array) -> jax.Array:
    """Actions ``[..., A]`` in ``[-1, 1]`` scaled to ``[..., *action_shape]`` in ``[low, high]``."""
    low, half_range = _bounds(space, unit)
    action = low + (unit + 1.0) * half_range
    return action.reshape(*unit.shape[:-1], *space.low.shape)


def to_unit(space: Box, action: jax.Array) -> jax.Array:
    """The scaling inverted: actions ``[..., *action_shape]`` in ``[low, high]`` to ``[..., A]`` in ``[-1, 1]``."""
    flat = action.reshape(*action.shape[: action.ndim - space.low.ndim], -1)
    low, half_range = _bounds(space, flat)
    return (flat - low) / half_range - 1.0


@jax.custom_jvp
def softplus(x: jax.Array) -> jax.Array:
    """``log(1 + exp(x))`` to within 1e-7 and rounding. `jax.nn.softplus` is exact where that is smaller too, but of its
    ``log1p`` XLA makes a slow program for the CPU, with which an update of SAC takes 3 to 9 % longer."""
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
    """Move a distribution onto evenly spaced ``atoms`` ``[N]``: its ``probabilities`` ``[M]`` at ``positions`` ``[M]``
    are shared between the two atoms around each, those outside go to the first or last (arXiv 1707.06887, equation 7).
    Returns ``[N]``."""
    spacing = atoms[1] - atoms[0]
    distance = jnp.abs(jnp.clip(positions, atoms[0], atoms[-1])[None, :] - atoms[:, None]) / spacing
    # A product, since XLA computes a plain sum anew for each use of its result.
    return jnp.dot(jnp.clip(1.0 - distance, 0.0, 1.0), probabilities, precision="highest")


def cross_entropy(logits: jax.Array, target: jax.Array) -> jax.Array:
    """Of probabilities ``target`` ``[N]`` under ``logits`` ``[N]``, in nats."""
    return -jnp.sum(target * jax.nn.log_softmax(logits))


def divergence(logits: jax.Array, target: jax.Array) -> jax.Array:
    """The Kullback-Leibler divergence of ``logits`` ``[N]`` from probabilities ``target`` ``[N]``, in nats.

    Summed over differences of logarithms: cross-entropy minus entropy would lose digits where the two are alike.
    """
    log_target = jnp.log(jnp.maximum(target, jnp.finfo(target.dtype).tiny))
    return jnp.sum(target * (log_target - jax.nn.log_softmax(logits)))


def quantile_levels(size: int) -> jax.Array:
    """The levels, 0 to 1, of ``size`` quantiles: the middles of as many equal parts (arXiv 1710.10044, lemma 2)."""
    return (jnp.arange(size, dtype=jnp.float32) + 0.5) / size


def quantile_huber(quantiles: jax.Array, targets: jax.Array, threshold: float = 1.0) -> jax.Array:
    """The loss of ``quantiles`` ``[N]`` against samples ``targets`` ``[M]``: the sum over quantiles of the mean over
    samples; quadratic up to errors of ``threshold`` (arXiv 1710.10044, equations 9 and 10)."""
    error = targets[None, :] - quantiles[:, None]
    size = jnp.abs(error)
    huber = jnp.where(size <= threshold, 0.5 * jnp.square(error), threshold * (size - 0.5 * threshold))
    share = jnp.abs(quantile_levels(len(quantiles))[:, None] - (error < 0.0))
    return jnp.sum(jnp.mean(share * huber / threshold, axis=1))
