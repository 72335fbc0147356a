"""Convolutions over images, and the initial weights and matrix products that all layers share."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_fast.core import PyTree, is_image
from jaxrl_fast.numerics.normalization import is_mask

Precision = Literal["f32", "bf16"]


def scaled_normal(scale: float) -> nn.initializers.Initializer:
    """Return an initializer of truncated normal weights with variance ``scale / inputs``.

    Orthogonal weights need a QR decomposition. Two of them under ``vmap`` (several seeds) hang on a
    CPU of two cores, because each blocks a thread of XLA's pool while it waits for another (JAX
    0.10.2).

    Args:
        scale: Variance times the number of inputs.

    Returns:
        The initializer.
    """
    return nn.initializers.variance_scaling(scale, "fan_in", "truncated_normal")


ORTHOGONAL_STEPS = 40
"""Newton-Schulz steps, each of which multiplies small singular values by 1.5: a ratio of 1e-6 needs
34.
"""


def orthogonal_weights(scale: float) -> nn.initializers.Initializer:
    """Return an initializer of uniformly distributed orthogonal weights, times the root of
    ``scale``.

    They are the orthogonal factor of normal weights, by products alone (see `scaled_normal`).

    Args:
        scale: Square of the gain.

    Returns:
        The initializer.

    Source: Saxe et al. (2014), arXiv 1312.6120; Björck and Bowie (1971), equation 2.8 (the
    iteration).
    """

    def init(key: jax.Array, shape: tuple[int, int], dtype: Any = jnp.float32) -> jax.Array:
        wide = shape[0] < shape[1]
        x = jax.random.normal(key, shape[::-1] if wide else shape, dtype)
        x, dot = x / jnp.linalg.norm(x), partial(jnp.matmul, precision="highest")
        x = jax.lax.fori_loop(
            0, ORTHOGONAL_STEPS, lambda _, x: 1.5 * x - 0.5 * dot(x, dot(x.T, x)), x
        )
        return math.sqrt(scale) * (x.T if wide else x)

    return init


Weights = Callable[[float], nn.initializers.Initializer]
"""`scaled_normal` or `orthogonal_weights`."""


def dot_of(precision: Precision) -> Callable[..., jax.Array]:
    """Return the matrix product of a dense layer.

    Args:
        precision: "bf16" rounds the operands, but sums in float32; parameters stay float32.

    Returns:
        A function with the arguments of `jax.lax.dot_general`.
    """
    return jax.lax.dot_general if precision == "f32" else _bf16_dot


def _bf16_dot(
    x: jax.Array, w: jax.Array, dimension_numbers: Any, precision: Any = None, **_: Any
) -> jax.Array:
    x, w = x.astype(jnp.bfloat16), w.astype(jnp.bfloat16)
    return jax.lax.dot_general(
        x, w, dimension_numbers, precision=precision, preferred_element_type=jnp.float32
    )


Cnn = Literal["auto", "nature", "small", "none"]


class Convolution(NamedTuple):
    """A convolution without padding.

    Attributes:
        channels: Number of filters.
        size: Width and height of a filter, in pixels.
        stride: Distance between positions of the filter, in pixels; divides ``size``.
    """

    channels: int
    size: int
    stride: int


CNNS: dict[str, tuple[Convolution, ...]] = {
    "nature": (Convolution(32, 8, 4), Convolution(64, 4, 2), Convolution(64, 3, 1)),
    "small": (Convolution(16, 3, 1),),
}
"""Layers of Mnih et al. (Nature, 2015), for 84 x 84 pixels, and of MinAtar (arXiv 1903.03176), for
10 x 10.
"""


class Convolutions(nn.Module):
    """Convolutions from images ``[L, B, H, W, C]`` to features ``[L, B, F]``, each with a ReLU, as
    published.

    A layer is a product of patches and filters. On a CPU this takes XLA 0.10 half as long as a
    convolution, also under a ``vmap`` over seeds (forward and backward, 256 images of 84 x 84 x 4,
    2 cores: 180 instead of 380 ms).
    """

    layers: tuple[Convolution, ...]
    precision: Precision
    weights: Weights = scaled_normal

    @nn.compact
    def __call__(self, image: jax.Array) -> jax.Array:
        length, batch = image.shape[:2]
        x = image.swapaxes(0, 1).reshape(batch * length, *image.shape[2:])
        for channels, size, stride in self.layers:
            x = patches(x, size, stride)
            x = to_real(x)  # after cutting, because patches of bytes are cheaper
            dense = nn.Dense(
                channels, kernel_init=self.weights(2.0), dot_general=dot_of(self.precision)
            )
            x = nn.relu(dense(x))
        return x.reshape(batch, length, -1).swapaxes(0, 1)


def patches(x: jax.Array, size: int, stride: int) -> jax.Array:
    """Cut images into the squares that a convolution without padding reads.

    Args:
        x: Images ``[N, H, W, C]``.
        size: Side of a square in pixels.
        stride: Distance between squares in pixels; divides ``size``.

    Returns:
        Flattened squares ``[N, H', W', size * size * C]``.
    """
    number, height, width, channels = x.shape
    tiles = size // stride
    rows, columns = ((side - size) // stride + 1 for side in (height, width))
    high, wide = rows + tiles - 1, columns + tiles - 1
    x = _cut(x, 0, high * stride, 0, wide * stride).reshape(
        number, high, stride, wide, stride * channels
    )
    x = x.swapaxes(2, 3).reshape(number, high, wide, stride * stride * channels)
    corners = [(i, j) for i in range(tiles) for j in range(tiles)]
    return jnp.concatenate([_cut(x, i, i + rows, j, j + columns) for i, j in corners], axis=-1)


def _cut(x: jax.Array, top: int, bottom: int, left: int, right: int) -> jax.Array:
    """Cut a rectangle of images ``[N, H, W, C]``; indexing is a gather if ``N`` is symbolic, as in
    an export.
    """
    return jax.lax.slice_in_dim(jax.lax.slice_in_dim(x, top, bottom, axis=1), left, right, axis=2)


def choose_convolutions(obs_spec: PyTree, cnn: Cnn) -> tuple[Convolution, ...]:
    """Return the convolution layers for the images of an observation.

    Args:
        obs_spec: Shapes of one observation.
        cnn: Name in `CNNS`, "auto" or "none".

    Returns:
        The layers; empty if none apply.

    Raises:
        ValueError: The named layers have no images to read, or the images are too small.
    """
    sides = [min(leaf.shape[:2]) for leaf in jax.tree.leaves(obs_spec) if convolved_by(cnn)(leaf)]
    if cnn == "none" or (cnn == "auto" and not sides):
        return ()
    if not sides:
        raise ValueError(
            f"cnn={cnn} reads images [height, width, channels], and the observations contain none: write cnn=auto"
        )
    fitting = [name for name, layers in CNNS.items() if _side_after(layers, min(sides)) >= 1]
    if cnn == "auto":
        return CNNS[fitting[0]] if fitting else ()
    if cnn not in fitting:
        raise ValueError(
            f"cnn={cnn} is too large for images with a side of {min(sides)} pixels: write cnn=auto"
        )
    return CNNS[cnn]


def convolved_by(cnn: Cnn) -> Callable[..., bool]:
    """Return the predicate for leaves that the convolutions read.

    Args:
        cnn: Name in `CNNS`, "auto" or "none".

    Returns:
        ``(leaf, *, axes=0) -> bool``, with the number of leading batch axes.
    """
    return is_image if cnn == "auto" else _is_grid


def _is_grid(leaf: Any, *, axes: int = 0) -> bool:
    """Return whether an array has the axes ``[height, width, channels]`` after ``axes`` others,
    whatever its dtype.
    """
    return len(leaf.shape) == axes + 3


def _side_after(layers: tuple[Convolution, ...], pixels: int) -> int:
    """Return the side of an image after these layers, in pixels; 0 if a filter is larger than its
    input.
    """
    for _, size, stride in layers:
        pixels = (pixels - size) // stride + 1 if pixels >= size else 0
    return pixels


def to_real(image: jax.Array) -> jax.Array:
    """Convert images to float32.

    Args:
        image: Bytes, bools or real numbers, of any shape.

    Returns:
        Bytes scaled to 0..1; bools and real numbers with unchanged values.
    """
    return (
        image.astype(jnp.float32) / 255.0 if image.dtype == jnp.uint8 else image.astype(jnp.float32)
    )


def features(obs: PyTree) -> jax.Array:
    """Flatten an observation to one vector per step, without its ``action_mask``.

    Args:
        obs: Observation ``[L, B, ...]``; images are scaled to 0..1.

    Returns:
        float32 ``[L, B, features]``.
    """
    unmasked = [
        leaf for path, leaf in jax.tree_util.tree_leaves_with_path(obs) if not is_mask(path)
    ]
    leaves = [
        (to_real(x) if is_image(x, axes=2) else x.astype(jnp.float32)).reshape(*x.shape[:2], -1)
        for x in unmasked
    ]
    return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves, axis=-1)


class PixelNetwork(nn.Module):
    """Convolutions of an observation's images, followed by ``body``, such as an `Mlp` or a
    `WithMemory`.

    ``convolves`` selects the leaves that are images; the other leaves are concatenated to the
    images' features.
    """

    layers: tuple[Convolution, ...]
    convolves: Callable[..., bool]
    body: Any
    precision: Precision
    weights: Weights

    @nn.compact
    def __call__(self, *inputs: PyTree, learning: bool = False) -> Any:
        """Run the network on ``(obs)``, or on a `WithMemory`'s arguments, with observations in
        place of features.
        """
        recurrent = len(inputs) > 1
        obs = inputs[1] if recurrent else inputs[0]
        images = [leaf for leaf in self.leaves_of(obs) if self.convolves(leaf, axes=2)]
        stages = [Convolutions(self.layers, self.precision, self.weights) for _ in images]

        def see(obs: PyTree) -> jax.Array:
            leaves = self.leaves_of(obs)
            convolved = [
                s(x)
                for s, x in zip(
                    stages, (x for x in leaves if self.convolves(x, axes=2)), strict=True
                )
            ]
            rest = [leaf for leaf in leaves if not self.convolves(leaf, axes=2)]
            return jnp.concatenate([*convolved, features(rest)] if rest else convolved, axis=-1)

        if not recurrent:
            return self.body(see(obs), learning=learning)
        state, _, first, action, *following = inputs
        after = (see(following[0]), following[1]) if following else ()
        return self.body(state, see(obs), first, action, *after, learning=learning)

    def leaves_of(self, obs: PyTree) -> list[jax.Array]:
        """Return the arrays of an observation, without its mask."""
        return [
            leaf for path, leaf in jax.tree_util.tree_leaves_with_path(obs) if not is_mask(path)
        ]
