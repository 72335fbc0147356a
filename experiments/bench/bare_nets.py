"""Networks and an optimizer in plain JAX, for the fixed programs of `gate`.

They must not change, since other measurements are compared with them.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Layers = list[tuple[jax.Array, jax.Array]]


def make_mlp(key: jax.Array, *sizes: int) -> Layers:
    """Draw weights ``[in, out]`` and biases ``[out]`` of each layer."""
    keys = jax.random.split(key, len(sizes) - 1)
    pairs = zip(keys, sizes[:-1], sizes[1:], strict=True)
    return [(jax.random.normal(k, (a, b)) * (2 / a) ** 0.5, jnp.zeros(b)) for k, a, b in pairs]


def mlp(layers: Layers, x: jax.Array, activation: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Apply the layers, ``[..., in]`` to ``[..., out]``."""
    for weights, bias in layers[:-1]:
        x = activation(x @ weights + bias)
    weights, bias = layers[-1]
    return x @ weights + bias


def make_adam(params: Any) -> Any:
    """Build the optimizer's first state: both moments, and the count of steps."""
    first, second = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
    return first, second, jnp.zeros((), jnp.int32)


def adam(params: Any, state: Any, grads: Any, rate: float) -> tuple[Any, Any]:
    """Make a step of Adam (arXiv 1412.6980, algorithm 1)."""
    first, second, count = state
    count = count + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, grads)
    scale = jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    params = jax.tree.map(
        lambda p, m, v: p - rate * scale * m / (jnp.sqrt(v) + 1e-8), params, first, second
    )
    return params, (first, second, count)


def squashed(outputs: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Sample a tanh-squashed Gaussian ``[..., 2 A]``: action ``[..., A]``, raw action, log-density
    ``[...]``.
    """
    mean, log_std = jnp.split(outputs, 2, -1)
    raw = mean + jnp.exp(jnp.clip(log_std, -5, 2)) * jax.random.normal(key, mean.shape)
    return jnp.tanh(raw), raw, squashed_density(outputs, raw)


def squashed_density(outputs: jax.Array, raw: jax.Array) -> jax.Array:
    """Compute the log-density of a raw action."""
    mean, log_std = jnp.split(outputs, 2, -1)
    log_std = jnp.clip(log_std, -5, 2)
    normal = -0.5 * ((raw - mean) * jnp.exp(-log_std)) ** 2 - log_std - 0.9189385332
    return (normal - 2 * (0.6931471806 - raw - jax.nn.softplus(-2 * raw))).sum(-1)
