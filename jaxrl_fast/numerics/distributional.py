"""Distributions of returns: the projection of C51, and the loss of quantiles.

Arrays in, arrays out, one sample each; the caller vmaps.
"""

import jax
import jax.numpy as jnp


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
