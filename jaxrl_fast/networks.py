"""flax.linen modules behind pairs of pure functions.

Every network maps a sequence of observations, leaves ``[L, B, ...]``, to outputs ``[L, B, out]``, so that
feed-forward and recurrent networks look alike to an algorithm. The memory (*carry*, leaves ``[B, ...]``) is
``()`` for feed-forward ones and is forgotten wherever ``first`` ``[L, B]`` is true.

Images in an observation, uint8 ``[height, width, channels]``, are scaled to 0..1 and go through convolutions first.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_fast.core import PyTree, select
from jaxrl_fast.normalize import is_mask

Activation = Literal["relu", "tanh", "swish", "elu", "gelu"]
Precision = Literal["f32", "bf16"]
Cnn = Literal["auto", "nature", "small", "none"]
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": nn.relu,
    "tanh": jnp.tanh,
    "swish": nn.swish,
    "elu": nn.elu,
    "gelu": nn.gelu,
}


class Convolution(NamedTuple):
    """``channels`` filters of ``size`` x ``size`` pixels, ``stride`` pixels apart, without padding; ``stride`` divides
    ``size``."""

    channels: int
    size: int
    stride: int


CNNS: dict[str, tuple[Convolution, ...]] = {
    "nature": (Convolution(32, 8, 4), Convolution(64, 4, 2), Convolution(64, 3, 1)),
    "small": (Convolution(16, 3, 1),),
}
"""Those of Mnih et al. (Nature, 2015), for 84 x 84 pixels, and of MinAtar (arXiv 1903.03176), for 10 x 10."""


class Network(NamedTuple):
    """``init(key) -> params``; ``apply(params, carry, obs, first) -> (outputs [L, B, out], carry)``;
    ``initial_carry(batch_size) -> carry``."""

    init: Callable[[jax.Array], PyTree]
    apply: Callable[[PyTree, PyTree, PyTree, jax.Array], tuple[jax.Array, PyTree]]
    initial_carry: Callable[[int], PyTree]


class Mlp(nn.Module):
    """Dense layers over ``[L, B, F]``, each followed by an optional layer norm and the activation; the last is linear.

    Weights start as in He et al. (arXiv 1502.01852), those of the last layer with standard deviation
    ``out_scale / sqrt(inputs)``.
    """

    hidden: tuple[int, ...]
    out: int
    activation: Callable[[jax.Array], jax.Array]
    layer_norm: bool
    precision: Precision
    out_scale: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        # One batch axis: with two, XLA's CPU compiler makes layer norms and activations slower (SAC by 40 %). The batch
        # stands before the sequence, so that a batch divided among devices stays where it is.
        length, batch, _ = x.shape
        x = x.swapaxes(0, 1).reshape(batch * length, -1)
        dense = partial(nn.Dense, dot_general=dot_of(self.precision))
        for size in self.hidden:
            x = dense(size, kernel_init=scaled_normal(2.0))(x)
            x = self.activation(nn.LayerNorm()(x) if self.layer_norm else x)
        x = dense(self.out, kernel_init=scaled_normal(self.out_scale**2))(x)
        return x.reshape(batch, length, self.out).swapaxes(0, 1)


class GruMlp(nn.Module):
    """A GRU over the sequence, with an `Mlp` on top of its outputs."""

    cell_size: int
    head: Mlp

    @nn.compact
    def __call__(self, carry: jax.Array, x: jax.Array, first: jax.Array) -> tuple[jax.Array, jax.Array]:
        def step(cell: nn.GRUCell, carry: jax.Array, xs: tuple) -> tuple[jax.Array, jax.Array]:
            x_t, first_t = xs
            return cell(select(first_t, jnp.zeros_like(carry), carry), x_t)

        scan = nn.scan(step, variable_broadcast="params", split_rngs={"params": False})
        cell = nn.GRUCell(self.cell_size, recurrent_kernel_init=scaled_normal(1.0))
        carry, x = scan(cell, carry, (x, first))
        return self.head(x), carry


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
            x = _scaled(x) if x.dtype == jnp.uint8 else x  # patches of bytes are cheaper to make
            dense = nn.Dense(channels, kernel_init=scaled_normal(2.0), dot_general=dot_of(self.precision))
            x = nn.relu(dense(x))
        return x.reshape(batch, length, -1).swapaxes(0, 1)


class PixelNetwork(nn.Module):
    """``body``, an `Mlp` or a `GruMlp`, on the features of an observation's images and on what else is in it."""

    layers: tuple[Convolution, ...]
    body: Any
    precision: Precision

    @nn.compact
    def __call__(self, *inputs: PyTree) -> Any:
        """``(obs)``, or ``(carry, obs, first)`` with a memory."""
        carry, obs, first = inputs if len(inputs) == 3 else ((), inputs[0], ())
        leaves = [leaf for path, leaf in jax.tree_util.tree_leaves_with_path(obs) if not is_mask(path)]
        seen = [Convolutions(self.layers, self.precision)(leaf) for leaf in leaves if is_image(leaf, axes=2)]
        rest = [leaf for leaf in leaves if not is_image(leaf, axes=2)]
        x = jnp.concatenate([*seen, features(rest)] if rest else seen, axis=-1)
        return self.body(carry, x, first) if len(inputs) == 3 else self.body(x)


def make_network(
    obs_spec: PyTree,
    out: int,
    *,
    hidden: tuple[int, ...],
    activation: Activation = "relu",
    layer_norm: bool = False,
    precision: Precision = "f32",
    recurrent_size: int = 0,
    out_scale: float = 1.0,
    cnn: Cnn = "auto",
) -> Network:
    """A multi-layer perceptron over the flattened observation, behind a GRU if ``recurrent_size`` > 0.

    Where there are images it reads what the convolutions named ``cnn`` make of them; ``"auto"`` takes the largest that
    fits, ``"none"`` the pixels. ``precision="bf16"`` concerns the dense layers and the convolutions; the GRU's small
    products stay in float32.

    Raises:
        ValueError: there are no images for ``cnn``, or they are too small for it.
    """
    layers = choose_convolutions(obs_spec, cnn)
    mlp = Mlp(tuple(hidden), out, ACTIVATIONS[activation], layer_norm, precision, out_scale)
    body = GruMlp(recurrent_size, mlp) if recurrent_size else mlp
    module: nn.Module = PixelNetwork(layers, body, precision) if layers else body
    see = (lambda obs: obs) if layers else features

    def initial_carry(batch_size: int) -> PyTree:
        return jnp.zeros((batch_size, recurrent_size), jnp.float32) if recurrent_size else ()

    def inputs(x: PyTree, carry: PyTree, first: jax.Array) -> tuple:
        return (carry, x, first) if recurrent_size else (x,)

    def init(key: jax.Array) -> PyTree:
        obs = jax.tree.map(lambda s: jnp.zeros((1, 1, *s.shape), s.dtype), obs_spec)
        return module.init(key, *inputs(see(obs), initial_carry(1), jnp.ones((1, 1), bool)))

    def apply(params: PyTree, carry: PyTree, obs: PyTree, first: jax.Array) -> tuple[jax.Array, PyTree]:
        outputs: Any = module.apply(params, *inputs(see(obs), carry, first))
        return outputs if recurrent_size else (outputs, ())

    return Network(init, apply, initial_carry)


def scaled_normal(scale: float) -> nn.initializers.Initializer:
    """Truncated normal weights of variance ``scale / inputs``.

    Not orthogonal ones: they need a QR decomposition, and two of them under ``vmap`` (several seeds) hang for ever on a
    CPU of two cores, since each blocks a thread of XLA's pool while it waits for another (seen with JAX 0.10.2).
    """
    return nn.initializers.variance_scaling(scale, "fan_in", "truncated_normal")


def features(obs: PyTree) -> jax.Array:
    """Flatten an observation ``[L, B, ...]`` into float32 ``[L, B, features]``, its ``action_mask`` left out and its
    images scaled to 0..1."""
    leaves = [
        (_scaled(leaf) if is_image(leaf, axes=2) else leaf.astype(jnp.float32)).reshape(*leaf.shape[:2], -1)
        for path, leaf in jax.tree_util.tree_leaves_with_path(obs)
        if not is_mask(path)
    ]
    return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves, axis=-1)


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
    """A part of images ``[N, H, W, C]``; indexing would be a gather where ``N`` is symbolic, as in an exported file."""
    return jax.lax.slice_in_dim(jax.lax.slice_in_dim(x, top, bottom, axis=1), left, right, axis=2)


def is_image(leaf: Any, *, axes: int = 0) -> bool:
    """Whether an array of this shape and dtype, without its first ``axes``, is one image: bytes
    ``[height, width, channels]``."""
    return leaf.dtype == jnp.uint8 and len(leaf.shape) == axes + 3


def choose_convolutions(obs_spec: PyTree, cnn: Cnn) -> tuple[Convolution, ...]:
    """The layers named ``cnn``, for the images in an observation; none where there is none.

    Raises:
        ValueError: as `make_network`.
    """
    sides = [min(leaf.shape[:2]) for leaf in jax.tree.leaves(obs_spec) if is_image(leaf)]
    if cnn == "none" or (cnn == "auto" and not sides):
        return ()
    if not sides:
        raise ValueError(
            f"cnn={cnn} reads images, uint8 [height, width, channels], and the observations hold none: write cnn=auto"
        )
    fitting = [name for name, layers in CNNS.items() if _side_after(layers, min(sides)) >= 1]
    if cnn == "auto":
        return CNNS[fitting[0]] if fitting else ()
    if cnn not in fitting:
        raise ValueError(f"cnn={cnn} does not fit images with a side of {min(sides)} pixels: write cnn=auto")
    return CNNS[cnn]


def _side_after(layers: tuple[Convolution, ...], pixels: int) -> int:
    """What a side of so many pixels becomes; 0 where a filter does not fit."""
    for _, size, stride in layers:
        pixels = (pixels - size) // stride + 1 if pixels >= size else 0
    return pixels


def _scaled(image: jax.Array) -> jax.Array:
    """Bytes as numbers from 0 to 1."""
    return image.astype(jnp.float32) / 255.0


def action_mask(obs: PyTree) -> jax.Array | None:
    """The mask of allowed actions that rides in a dictionary observation, or None."""
    return obs.get("action_mask") if isinstance(obs, dict) else None


def dot_of(precision: Precision) -> Callable[..., jax.Array]:
    """The matrix product of a dense layer: bf16 operands keep a float32 sum and float32 parameters."""
    if precision == "f32":
        return jax.lax.dot_general

    def bf16_dot(x: jax.Array, w: jax.Array, dimension_numbers: Any, precision: Any = None, **_: Any) -> jax.Array:
        x, w = x.astype(jnp.bfloat16), w.astype(jnp.bfloat16)
        return jax.lax.dot_general(x, w, dimension_numbers, precision=precision, preferred_element_type=jnp.float32)

    return bf16_dot
