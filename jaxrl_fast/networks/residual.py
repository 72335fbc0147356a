"""FlashSAC's torso: residual blocks between batch norms, with weights of unit norm (arXiv 2604.04539)."""

import math
from collections.abc import Callable
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_fast.core import PyTree
from jaxrl_fast.networks.dense import Head, Precision, dot_of

EXPANSION = 4
"""How many times wider a block is inside."""
SMALLEST = 1e-8


def unit_columns(key: jax.Array, shape: tuple[int, int], dtype: jnp.dtype = jnp.float32) -> jax.Array:
    """Weights ``[inputs, outputs]`` of a random direction for each output, of unit norm."""
    return _unit(jax.random.normal(key, shape, dtype))


class ResidualTorso(nn.Module):
    """Residual blocks over ``[L, B, F]``, one for each of ``hidden``, which are all of one width; the last layer is all
    heads side by side. While ``learning``, batch norms take the statistics of the batch and add them to their own.

    Outputs are the larger the wider the torso is: heads read features of norm ``sqrt(width)``.
    """

    hidden: tuple[int, ...]
    heads: tuple[Head, ...]
    activation: Callable[[jax.Array], jax.Array]
    precision: Precision

    @nn.compact
    def __call__(self, x: jax.Array, *, learning: bool = False) -> jax.Array:
        length, batch, _ = x.shape
        x = x.swapaxes(0, 1).reshape(batch * length, -1)  # as in `modules.Mlp`
        dense = partial(nn.Dense, kernel_init=unit_columns, dot_general=dot_of(self.precision))
        # The fast variance, mean of squares minus square of the mean, loses digits where a feature hardly varies.
        normalized = partial(nn.BatchNorm, use_running_average=not learning, momentum=0.99, use_fast_variance=False)
        x = dense(self.hidden[0], use_bias=False)(normalized()(x))
        for width in self.hidden:
            inside = self.activation(normalized()(dense(EXPANSION * width, use_bias=False)(x)))
            x = x + self.activation(normalized()(dense(width, use_bias=False)(inside)))
        x = nn.RMSNorm()(x)
        x = dense(sum(head.size for head in self.heads))(x)
        return x.reshape(batch, length, -1).swapaxes(0, 1)


def hold_unit_norm(params: PyTree) -> PyTree:
    """Params with the weights of each output of unit norm, and scale and bias of each normalization layer together of
    the norm ``sqrt(features)``. Statistics, and biases of dense layers, stay as they are."""
    if isinstance(params, tuple):
        return tuple(map(hold_unit_norm, params))
    if not isinstance(params, dict):
        return params
    if "kernel" in params:
        return {**params, "kernel": _unit(params["kernel"])}
    if "scale" in params:
        squares = sum(jnp.sum(jnp.square(x)) for x in params.values())
        factor = math.sqrt(params["scale"].size) * jax.lax.rsqrt(squares + SMALLEST)
        return {name: x * factor for name, x in params.items()}
    return {name: hold_unit_norm(x) for name, x in params.items()}


def _unit(kernel: jax.Array) -> jax.Array:
    return kernel * jax.lax.rsqrt(jnp.sum(jnp.square(kernel), axis=0, keepdims=True) + SMALLEST)
