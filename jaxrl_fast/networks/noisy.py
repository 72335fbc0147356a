"""Layers with random draws: noisy nets (arXiv 1706.10295), gSDE (arXiv 2005.05719), and implicit
quantile networks at random levels (IQN, arXiv 1806.06923).

The noise of noisy nets is a separate collection of Flax variables; without it a layer computes with
its mean weights.
"""

import math
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_fast.core import PyTree, stable_hash
from jaxrl_fast.networks.convolutions import Precision, dot_of, scaled_normal
from jaxrl_fast.numerics.distributions import quantile_levels

NOISE = "noise"
"""Flax's collection of the noise."""
INITIAL_NOISE = 0.5
"""Initial standard deviation of the noise times the square root of the inputs (σ0 of the paper,
section 3.2).
"""


INITIAL_DEVIATION, LEAST_VARIANCE = 0.8, 1e-6
"""Of `StateNoise`: initial deviation for features of mean square 1, as in Stable-Baselines3 with
256 features (e^-3 each), and a small variance that is added, as there.
"""


class NoisyDense(nn.Module):
    """A dense layer whose weights have factorized normal noise with trained standard deviations.

    Inputs are ``[rows, features]``, attributes as in `flax.linen.Dense`. The noise of a row is the
    product of two vectors, so that rows with separate noise need no separate weights.

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
        kernel, bias = (
            self.param("kernel", self.kernel_init, shape),
            self.param("bias", self.bias_init, shape[1:]),
        )
        kernel_noise = self.param("kernel_noise", initial, shape)
        bias_noise = self.param("bias_noise", initial, shape[1:])
        product = (((1,), (0,)), ((), ()))
        if not self.has_variable(NOISE, "inputs"):
            return self.dot_general(x, kernel, product) + bias[None]
        before: jax.Array = self.get_variable(NOISE, "inputs")
        after: jax.Array = self.get_variable(NOISE, "outputs")
        if 1 < len(before) < len(x):  # `QuantileMlp` has several rows for each step
            before, after = (
                jnp.repeat(noise, len(x) // len(before), axis=0) for noise in (before, after)
            )
        if len(before) == 1:  # one product, half as much work as two
            kernel = kernel + kernel_noise * before.T * after
            return self.dot_general(x, kernel, product) + bias[None] + bias_noise[None] * after
        noise = (self.dot_general(x * before, kernel_noise, product) + bias_noise[None]) * after
        return self.dot_general(x, kernel, product) + bias[None] + noise


class StateNoise(nn.Module):
    """Means of actions, and noise that is linear in the features of the state.

    Inputs are ``[L, B, F]``. The outputs of ``features`` are ``[L, B, H]``, of ``mean``
    ``[L, B, A]``. Results are the mean, the logarithm of the standard deviation, ``[L, B, A]``, and
    each feature's share of the noise, ``[L, B, H * A]``: times a standard normal matrix ``[H, A]``
    and summed over features, it has this deviation.

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
        return {
            "mean": mean,
            "log_deviation": 0.5 * jnp.log(variance + LEAST_VARIANCE),
            "share": share,
        }


def draw_noise(params: PyTree, key: jax.Array, role: str, rows: int = 1) -> PyTree:
    """Draw the noise of all `NoisyDense` layers of a network.

    Args:
        params: Params of the network.
        key: Random key, from which another is derived.
        role: Role of the params. Different roles have separate noise with the same key.
        rows: Number of rows of a batch of single steps, which have separate noise; 1 for equal
            noise of all inputs.

    Returns:
        The params with noise.
    """
    sizes, structure = jax.tree.flatten(_sizes_of(params["params"]))
    own_key = jax.random.fold_in(key, stable_hash(f"noise of {role}"))
    # One draw for all layers: separate draws take twice as long to compile.
    drawn = jax.random.normal(own_key, (rows, sum(sizes)))
    noise = jnp.split(
        jnp.sign(drawn) * jnp.sqrt(jnp.abs(drawn)), list(accumulate(sizes))[:-1], axis=-1
    )
    return {**params, NOISE: jax.tree.unflatten(structure, noise)}


def _sizes_of(layers: dict[str, Any]) -> dict[str, Any]:
    """Return the sizes of the noise of each layer, in the structure of the params."""
    if "kernel_noise" in layers:
        return dict(zip(("inputs", "outputs"), layers["kernel_noise"].shape, strict=True))
    return {name: _sizes_of(layer) for name, layer in layers.items() if isinstance(layer, dict)}


LEVELS = "levels"
"""Name of the key with which levels are random."""
NUM_COSINES = 64
"""Cosines of a level that its embedding reads (n of the paper's equation 4)."""
NUM_MIDPOINTS = 32
"""Levels of action selection: the mean over fixed midpoints is the same value in training,
evaluation and exported files. As many as the samples K of the paper (section 3.2).
"""


class QuantileMlp(nn.Module):
    """Dense layers over ``[L, B, F]``, whose outputs are the quantiles at N levels, then these
    levels.

    Features of the observation, the outputs of ``below``, are multiplied by an embedding of each
    level; ``above`` computes quantiles from the product. With a key named `LEVELS`
    (`Network.with_levels`) every step has ``num_levels`` levels, uniformly random in [0, 1),
    otherwise N is `NUM_MIDPOINTS`. Outputs are ``[L, B, out * 2 N]``, for each of the ``out``
    outputs of ``above`` one after another.

    Source: Dabney et al. (2018), section 3.1 and equation 4, arXiv 1806.06923.
    """

    below: Any
    above: Any
    num_levels: int
    precision: Precision

    @nn.compact
    def __call__(self, x: jax.Array, *, learning: bool = False) -> jax.Array:
        x = self.below(x, learning=learning)
        length, batch, width = x.shape
        rows = x.swapaxes(0, 1).reshape(batch * length, 1, width)  # as in `network.Mlp`
        levels = quantile_levels(NUM_MIDPOINTS)[None]
        if self.has_rng(LEVELS):
            levels = jax.random.uniform(self.make_rng(LEVELS), (batch * length, self.num_levels))
        cosines = jnp.cos(
            jnp.pi * jnp.arange(NUM_COSINES, dtype=jnp.float32)[None] * levels.reshape(-1, 1)
        )
        embed = nn.Dense(width, kernel_init=scaled_normal(2.0), dot_general=dot_of(self.precision))
        embedding = nn.relu(embed(cosines)).reshape(*levels.shape, width)
        quantiles = self.above((rows * embedding).reshape(1, -1, width), learning=learning)
        quantiles = quantiles.reshape(batch * length, levels.shape[1], -1).swapaxes(1, 2)
        outputs = jnp.concatenate(
            [quantiles, jnp.broadcast_to(levels[:, None], quantiles.shape)], axis=-1
        )
        return outputs.reshape(batch, length, -1).swapaxes(0, 1)


Split = Callable[[Any, bool], nn.Module]
"""(an `Mlp`; whether convolutions or a GRU come before) -> a module of two parts of its layers."""


def two_parts(mlp: Any, after_others: bool, num_levels: int = 0) -> nn.Module:
    """Split dense layers in two parts, of a `QuantileMlp` or a `StateNoise`.

    The upper part of a `QuantileMlp` has the last hidden layer, as published; if it is the only
    layer of the network, the lower part has it.

    Args:
        mlp: An `Mlp`.
        after_others: Whether convolutions or a GRU come before.
        num_levels: Random levels of a `QuantileMlp`; 0 for a `StateNoise`.

    Returns:
        The module.
    """
    hidden = mlp.hidden
    cut = max(len(hidden) - 1, 0 if after_others else 1) if num_levels else len(hidden)
    parts = mlp.clone(hidden=hidden[:cut], heads=()), mlp.clone(hidden=hidden[cut:])
    return QuantileMlp(*parts, num_levels, mlp.precision) if num_levels else StateNoise(*parts)
