"""Layers with trained noise for exploration: noisy nets (arXiv 1706.10295) and gSDE (arXiv 2005.05719).

The noise of noisy nets is a separate collection of Flax variables; without it a layer computes with its mean weights.
"""

import math
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_fast.core import PyTree, stable_hash

NOISE = "noise"
"""Flax's collection of the noise."""
INITIAL_NOISE = 0.5
"""Initial standard deviation of the noise times the square root of the inputs (σ0 of the paper, section 3.2)."""


INITIAL_DEVIATION, LEAST_VARIANCE = 0.8, 1e-6
"""Of `StateNoise`: initial deviation for features of mean square 1, as in Stable-Baselines3 with 256 features (e^-3
each), and a small variance that is added, as there.
"""


class NoisyDense(nn.Module):
    """A dense layer whose weights have factorized normal noise with trained standard deviations.

    Inputs are ``[rows, features]``, attributes as in `flax.linen.Dense`. The noise of a row is the product of two
    vectors, so that rows with separate noise need no separate weights.

    Source: Fortunato et al. (2018), equations 9 to 11, arXiv 1706.10295.
    """

    features: int
    kernel_init: nn.initializers.Initializer
    dot_general: Callable[..., jax.Array]
    bias_init: nn.initializers.Initializer = nn.initializers.zeros

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = x.shape[-1], self.features
        initial = nn.initializers.constant(INITIAL_NOISE / math.sqrt(shape[0]))
        kernel, bias = self.param("kernel", self.kernel_init, shape), self.param("bias", self.bias_init, shape[1:])
        kernel_noise = self.param("kernel_noise", initial, shape)
        bias_noise = self.param("bias_noise", initial, shape[1:])
        product = (((1,), (0,)), ((), ()))
        if not self.has_variable(NOISE, "inputs"):
            return self.dot_general(x, kernel, product) + bias[None]
        before: jax.Array = self.get_variable(NOISE, "inputs")
        after: jax.Array = self.get_variable(NOISE, "outputs")
        if 1 < len(before) < len(x):  # `QuantileMlp` has several rows for each step
            before, after = (jnp.repeat(noise, len(x) // len(before), axis=0) for noise in (before, after))
        if len(before) == 1:  # one product, half as much work as two
            kernel = kernel + kernel_noise * before.T * after
            return self.dot_general(x, kernel, product) + bias[None] + bias_noise[None] * after
        noise = (self.dot_general(x * before, kernel_noise, product) + bias_noise[None]) * after
        return self.dot_general(x, kernel, product) + bias[None] + noise


class StateNoise(nn.Module):
    """Means of actions, and noise that is linear in the features of the state.

    Inputs are ``[L, B, F]``. The outputs of ``features`` are ``[L, B, H]``, of ``mean`` ``[L, B, A]``. Results are the
    mean, the logarithm of the standard deviation, ``[L, B, A]``, and each feature's share of the noise, ``[L, B, H *
    A]``: times a standard normal matrix ``[H, A]`` and summed over features, it has this deviation.

    Source: Raffin et al. (2021), gSDE, section 3, arXiv 2005.05719.
    """

    features: Any
    mean: Any

    @nn.compact
    def __call__(self, x: jax.Array, *, learning: bool = False) -> dict[str, jax.Array]:
        x = self.features(x, learning=learning)
        mean = self.mean(x, learning=learning)
        shape = x.shape[-1], mean.shape[-1]
        initial = nn.initializers.constant(math.log(INITIAL_DEVIATION / math.sqrt(shape[0])))
        deviation = jnp.exp(self.param("log_deviation", initial, shape))
        variance = jnp.dot(jnp.square(x), jnp.square(deviation))
        share = (x[..., None] * deviation[None, None]).reshape(*x.shape[:2], -1)
        return {"mean": mean, "log_deviation": 0.5 * jnp.log(variance + LEAST_VARIANCE), "share": share}


def draw_noise(params: PyTree, key: jax.Array, role: str, rows: int = 1) -> PyTree:
    """Draw the noise of all `NoisyDense` layers of a network.

    Args:
        params: Params of the network.
        key: Random key, from which another is derived.
        role: Role of the params. Different roles have separate noise with the same key.
        rows: Number of rows of a batch of single steps, which have separate noise; 1 for equal noise of all inputs.

    Returns:
        The params with noise.
    """
    sizes, structure = jax.tree.flatten(_sizes_of(params["params"]))
    own_key = jax.random.fold_in(key, stable_hash(f"noise of {role}"))
    # One draw for all layers: separate draws take twice as long to compile.
    drawn = jax.random.normal(own_key, (rows, sum(sizes)))
    noise = jnp.split(jnp.sign(drawn) * jnp.sqrt(jnp.abs(drawn)), list(accumulate(sizes))[:-1], axis=-1)
    return {**params, NOISE: jax.tree.unflatten(structure, noise)}


def _sizes_of(layers: dict[str, Any]) -> dict[str, Any]:
    """Return the sizes of the noise of each layer, in the structure of the params."""
    if "kernel_noise" in layers:
        return dict(zip(("inputs", "outputs"), layers["kernel_noise"].shape, strict=True))
    return {name: _sizes_of(layer) for name, layer in layers.items() if isinstance(layer, dict)}
