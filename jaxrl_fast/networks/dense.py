"""What all dense layers share: initial weights and the matrix product."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

Precision = Literal["f32", "bf16"]
STATISTICS = "batch_stats"
"""Flax's collection of the statistics of batch norms: part of the params, but not changed by optimizers."""


class Head(NamedTuple):
    """One of a network's outputs.

    - ``size``: how many numbers it has.
    - ``scale``: its weights start with standard deviation ``scale / sqrt(inputs)``.
    """

    size: int
    scale: float = 1.0


Heads = dict[str, Head]
"""By name."""


def scaled_normal(scale: float) -> nn.initializers.Initializer:
    """Truncated normal weights of variance ``scale / inputs``.

    Not orthogonal ones: they need a QR decomposition, and two of them under ``vmap`` (several seeds) hang on a
    CPU of two cores, since each blocks a thread of XLA's pool while it waits for another (seen with JAX 0.10.2).
    """
    return nn.initializers.variance_scaling(scale, "fan_in", "truncated_normal")


def normal_of_heads(heads: tuple[Head, ...]) -> nn.initializers.Initializer:
    """Weights ``[inputs, out]`` of several heads side by side, each of its own scale."""
    return scaled_normal(heads[0].scale ** 2) if len(heads) == 1 else _side_by_side(heads)


def _side_by_side(heads: tuple[Head, ...]) -> nn.initializers.Initializer:
    def init(key: jax.Array, shape: tuple[int, int], dtype: Any = jnp.float32) -> jax.Array:
        keys = jax.random.split(key, len(heads))
        blocks = [
            scaled_normal(head.scale**2)(k, (shape[0], head.size), dtype) for k, head in zip(keys, heads, strict=True)
        ]
        return jnp.concatenate(blocks, axis=1)

    return init


def dot_of(precision: Precision) -> Callable[..., jax.Array]:
    """The matrix product of a dense layer: bf16 operands keep a float32 sum and float32 parameters."""
    return jax.lax.dot_general if precision == "f32" else _bf16_dot


def _bf16_dot(x: jax.Array, w: jax.Array, dimension_numbers: Any, precision: Any = None, **_: Any) -> jax.Array:
    x, w = x.astype(jnp.bfloat16), w.astype(jnp.bfloat16)
    return jax.lax.dot_general(x, w, dimension_numbers, precision=precision, preferred_element_type=jnp.float32)
