"""What all dense layers share: initial weights and the matrix product."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_fast.core import PyTree, is_image

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


Cnn = Literal["auto", "nature", "small", "none"]


class Convolution(NamedTuple):
    """A convolution without padding.

    - ``channels``: filters.
    - ``size``: width and height of a filter, in pixels.
    - ``stride``: pixels between two of its places; divides ``size``.
    """

    channels: int
    size: int
    stride: int


CNNS: dict[str, tuple[Convolution, ...]] = {
    "nature": (Convolution(32, 8, 4), Convolution(64, 4, 2), Convolution(64, 3, 1)),
    "small": (Convolution(16, 3, 1),),
}
"""Those of Mnih et al. (Nature, 2015), for 84 x 84 pixels, and of MinAtar (arXiv 1903.03176), for 10 x 10."""


class Convolutions(nn.Module):
    """Images ``[L, B, H, W, C]`` to features ``[L, B, F]``; each layer is followed by a ReLU, as published.

    A layer is a product of patches and filters: on a CPU, XLA 0.10 takes half as long for it, and under a ``vmap`` over
    seeds, as for a convolution (forward and backward, 256 images of 84 x 84 x 4, 2 cores: 180 against 380 ms).
    """

    layers: tuple[Convolution, ...]
    precision: Precision

    @nn.compact
    def __call__(self, image: jax.Array) -> jax.Array:
        length, batch = image.shape[:2]
        x = image.swapaxes(0, 1).reshape(batch * length, *image.shape[2:])
        for channels, size, stride in self.layers:
            x = patches(x, size, stride)
            x = to_real(x)  # patches of bytes are cheaper to make
            dense = nn.Dense(channels, kernel_init=scaled_normal(2.0), dot_general=dot_of(self.precision))
            x = nn.relu(dense(x))
        return x.reshape(batch, length, -1).swapaxes(0, 1)


def patches(x: jax.Array, size: int, stride: int) -> jax.Array:
    """The squares of ``size`` pixels, ``stride`` apart, that lie within images ``[N, H, W, C]``:
    ``[N, H', W', size * size * C]``. ``stride`` divides ``size``."""
    number, height, width, channels = x.shape
    tiles = size // stride
    rows, columns = ((side - size) // stride + 1 for side in (height, width))
    high, wide = rows + tiles - 1, columns + tiles - 1
    x = _cut(x, 0, high * stride, 0, wide * stride).reshape(number, high, stride, wide, stride * channels)
    x = x.swapaxes(2, 3).reshape(number, high, wide, stride * stride * channels)
    corners = [(i, j) for i in range(tiles) for j in range(tiles)]
    return jnp.concatenate([_cut(x, i, i + rows, j, j + columns) for i, j in corners], axis=-1)


def _cut(x: jax.Array, top: int, bottom: int, left: int, right: int) -> jax.Array:
    """A rectangle of images ``[N, H, W, C]``; indexing would be a gather where ``N`` is symbolic, as in an exported
    policy."""
    return jax.lax.slice_in_dim(jax.lax.slice_in_dim(x, top, bottom, axis=1), left, right, axis=2)


def choose_convolutions(obs_spec: PyTree, cnn: Cnn) -> tuple[Convolution, ...]:
    """The layers named ``cnn``, for the images in an observation; none where there is none.

    Raises:
        ValueError: as `make_network`.
    """
    sides = [min(leaf.shape[:2]) for leaf in jax.tree.leaves(obs_spec) if convolved_by(cnn)(leaf)]
    if cnn == "none" or (cnn == "auto" and not sides):
        return ()
    if not sides:
        raise ValueError(
            f"cnn={cnn} reads images [height, width, channels], and the observations hold none: write cnn=auto"
        )
    fitting = [name for name, layers in CNNS.items() if _side_after(layers, min(sides)) >= 1]
    if cnn == "auto":
        return CNNS[fitting[0]] if fitting else ()
    if cnn not in fitting:
        raise ValueError(f"cnn={cnn} does not fit images with a side of {min(sides)} pixels: write cnn=auto")
    return CNNS[cnn]


def convolved_by(cnn: Cnn) -> Callable[..., bool]:
    """``(leaf, *, axes=0) -> bool``: whether a leaf goes through the convolutions named ``cnn``."""
    return is_image if cnn == "auto" else _is_grid


def _is_grid(leaf: Any, *, axes: int = 0) -> bool:
    """Whether an array is bytes, bools or real numbers ``[height, width, channels]``, after ``axes`` more axes."""
    return len(leaf.shape) == axes + 3


def _side_after(layers: tuple[Convolution, ...], pixels: int) -> int:
    """The side of an image after these layers, in pixels; 0 where a filter does not fit."""
    for _, size, stride in layers:
        pixels = (pixels - size) // stride + 1 if pixels >= size else 0
    return pixels


def to_real(image: jax.Array) -> jax.Array:
    """As float32: bytes scaled to 0..1, bools and real numbers unchanged."""
    return image.astype(jnp.float32) / 255.0 if image.dtype == jnp.uint8 else image.astype(jnp.float32)


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
        x = x.swapaxes(0, 1).reshape(batch * length, -1)  # as in `network.Mlp`
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
