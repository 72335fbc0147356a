"""Images in an observation: which leaves are images, and the convolutions that read them.

Images are uint8 ``[height, width, channels]``, scaled to 0..1; a convolution asked for by name also reads bools and
real numbers of that shape (MinAtar).
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_fast.core import PyTree, is_image
from jaxrl_fast.networks.dense import Precision, dot_of, scaled_normal

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
