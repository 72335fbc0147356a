"""Networks as pure functions, made of flax.linen modules.

Every network maps a sequence of observations, leaves ``[L, B, ...]``, to outputs ``[L, B, out]``, so that an algorithm
can treat feed-forward and recurrent networks alike. The memory, leaves ``[B, ...]``, is ``()`` for feed-forward ones
and is reset wherever ``first`` ``[L, B]`` is true.

A network has an input stage (the chosen keys of an observation; convolutions for images, uint8 ``[height, width,
channels]``, scaled to 0..1), a torso (dense layers or residual blocks, behind a GRU if asked for) and heads.
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any, Literal, NamedTuple, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_fast.core import PyTree, is_image
from jaxrl_fast.numerics.normalization import is_mask

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


def choose_keys(obs: PyTree, keys: tuple[str, ...]) -> PyTree:
    """The entries ``keys`` of a dictionary observation, and its ``action_mask``; all entries where no key is named.

    Raises:
        ValueError: a key is missing, or the observation is not a dictionary.
    """
    if not keys:
        return obs
    known = sorted(set(obs) - {"action_mask"}) if isinstance(obs, dict) else []
    for key in keys:
        if key not in known:
            there = f"write some of {', '.join(known)}" if known else "they are no dictionary: leave the keys out"
            raise ValueError(f"the observations have no key '{key}': {there}")
    return {key: value for key, value in obs.items() if key in keys or key == "action_mask"}


def features(obs: PyTree) -> jax.Array:
    """Flatten an observation ``[L, B, ...]`` into float32 ``[L, B, features]``, its ``action_mask`` left out and its
    images scaled to 0..1."""
    leaves = [
        (to_real(leaf) if is_image(leaf, axes=2) else leaf.astype(jnp.float32)).reshape(*leaf.shape[:2], -1)
        for path, leaf in jax.tree_util.tree_leaves_with_path(obs)
        if not is_mask(path)
    ]
    return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves, axis=-1)


def action_mask(obs: PyTree) -> jax.Array | None:
    """The mask of allowed actions in a dictionary observation, or None."""
    return obs.get("action_mask") if isinstance(obs, dict) else None


Activation = Literal["relu", "tanh", "swish", "elu", "gelu"]
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = dict(
    relu=nn.relu, tanh=jnp.tanh, swish=nn.swish, elu=nn.elu, gelu=nn.gelu
)


class Mlp(nn.Module):
    """Dense layers over ``[L, B, F]``, each followed by an optional normalization and the activation; the last, which
    is all heads side by side, is linear. While ``learning``, a batch norm takes the statistics of the batch and adds
    them to its own (arXiv 1502.03167).

    Weights start as in He et al. (arXiv 1502.01852).
    """

    hidden: tuple[int, ...]
    heads: tuple[Head, ...]
    activation: Callable[[jax.Array], jax.Array]
    layer_norm: bool
    batch_norm: bool
    precision: Precision

    @nn.compact
    def __call__(self, x: jax.Array, *, learning: bool = False) -> jax.Array:
        # One batch axis: with two, XLA's CPU compiler makes layer norms and activations slower (SAC by 40 %). The batch
        # stands before the sequence, so that a batch divided among devices stays where it is.
        length, batch, _ = x.shape
        x = x.swapaxes(0, 1).reshape(batch * length, -1)
        dense = partial(nn.Dense, dot_general=dot_of(self.precision))
        for size in self.hidden:
            x = dense(size, kernel_init=scaled_normal(2.0))(x)
            if self.layer_norm:
                x = nn.LayerNorm()(x)
            if self.batch_norm:
                x = nn.BatchNorm(use_running_average=not learning)(x)
            x = self.activation(x)
        out = sum(head.size for head in self.heads)
        x = dense(out, kernel_init=normal_of_heads(self.heads))(x)
        return x.reshape(batch, length, out).swapaxes(0, 1)


class GruMlp(nn.Module):
    """A GRU over the sequence, with an `Mlp` or the like on top of its outputs; an action joins them there."""

    cell_size: int
    head: Any

    @nn.compact
    def __call__(
        self,
        memory: jax.Array,
        x: jax.Array,
        first: jax.Array,
        action: jax.Array | None = None,
        *,
        learning: bool = False,
    ) -> tuple[jax.Array, jax.Array]:
        def step(cell: nn.GRUCell, memory: jax.Array, xs: tuple) -> tuple[jax.Array, jax.Array]:
            x_t, first_t = xs
            return cell(jnp.where(first_t[:, None], jnp.zeros_like(memory), memory), x_t)

        scan = nn.scan(step, variable_broadcast="params", split_rngs={"params": False})
        cell = nn.GRUCell(self.cell_size, recurrent_kernel_init=scaled_normal(1.0))
        _, memories = scan(cell, memory, (x, first))
        seen = memories if action is None else jnp.concatenate([features(action), memories], axis=-1)
        return self.head(seen, learning=learning), memories


class PixelNetwork(nn.Module):
    """``body``, an `Mlp` or a `GruMlp`, on the features of an observation's images, those leaves that it ``convolves``,
    and on what else is in it."""

    layers: tuple[Convolution, ...]
    convolves: Callable[..., bool]
    body: Any
    precision: Precision

    @nn.compact
    def __call__(self, *inputs: PyTree, learning: bool = False) -> Any:
        """``(obs)``, or ``(memory, obs, first, action)`` with a memory."""
        recurrent = len(inputs) > 1
        obs = inputs[1] if recurrent else inputs[0]
        leaves = [leaf for path, leaf in jax.tree_util.tree_leaves_with_path(obs) if not is_mask(path)]
        seen = [Convolutions(self.layers, self.precision)(leaf) for leaf in leaves if self.convolves(leaf, axes=2)]
        rest = [leaf for leaf in leaves if not self.convolves(leaf, axes=2)]
        x = jnp.concatenate([*seen, features(rest)] if rest else seen, axis=-1)
        given = (inputs[0], x, *inputs[2:]) if recurrent else (x,)
        return self.body(*given, learning=learning)


# What an algorithm imports, so that it need not know the other modules of this package.
__all__ = ["Activation", "Apply", "Cnn", "Head", "Heads", "Network", "Precision", "Torso", "action_mask"]
__all__ += ["ensemble", "hold_unit_norm", "make_network", "scalar"]


Torso = Literal["mlp", "residual"]
"""The dense layers of a network, by name."""


class Apply(Protocol):
    """Runs a network over a sequence."""

    def __call__(
        self, params: PyTree, memory: PyTree, obs: PyTree, first: jax.Array, action: jax.Array | None = None
    ) -> tuple[Any, PyTree]:
        """``memory``: before the first step, ``[B, ...]``; ``obs``: ``[L, B, ...]``; ``first``: whether a step begins
        an episode, ``[L, B]``; ``action``: for networks that take one, ``[L, B, ...]``. Returns outputs ``[L, B, out]``
        (a dictionary of them for several heads) and the memory after every step, ``[L, B, ...]``."""


class ApplyLearning(Protocol):
    """As `Apply`, in a loss: batch norms use the statistics of the batch."""

    def __call__(
        self, params: PyTree, memory: PyTree, obs: PyTree, first: jax.Array, action: jax.Array | None = None
    ) -> tuple[Any, PyTree, PyTree]:
        """Returns outputs, memory, and the new statistics of batch norms, the collection ``batch_stats`` of the params
        (empty without a batch norm)."""


class Network(NamedTuple):
    """One network as pure functions.

    - ``init(key)``: makes its params, Flax variables: weights, and the statistics of normalization layers.
    - ``apply``: runs it over a sequence.
    - ``apply_learning``: the same in a loss, where batch norms are updated.
    - ``initial_memory(batch_size)``: its memory at the start of an episode, leaves ``[batch_size, ...]``; ``()`` for a
      feed-forward network.
    - ``recurrent``: whether it has a memory.
    - ``action_shape``: of the action that it takes beside the observation; None: it takes none.
    - ``ensemble_size``: of an `ensemble`; 0: it is none.
    - ``trailing_axes``: of its outputs and memory, behind the batch; 2 where each of several agents has its own.
    - ``separate``: agents have networks of their own, whose params are stacked, ``[A, ...]``.
    - ``of_agent(number, params)``: the network of one of several agents alone, from 0, and its params, out of the
      params of all; it maps what this agent observes, ``[L, B, ...]``, to ``[L, B, out]``. None where there is one
      agent.
    """

    init: Callable[[jax.Array], PyTree]
    apply: Apply
    apply_learning: ApplyLearning
    initial_memory: Callable[[int], PyTree] = lambda batch_size: ()
    recurrent: bool = False
    action_shape: tuple[int, ...] | None = None
    ensemble_size: int = 0
    trailing_axes: int = 1
    separate: bool = False
    of_agent: Callable[[int, PyTree], tuple["Network", PyTree]] | None = None


def make_network(
    obs_spec: PyTree,
    out: int | Heads,
    *,
    hidden: tuple[int, ...],
    keys: tuple[str, ...] = (),
    action_shape: tuple[int, ...] | None = None,
    activation: Activation = "relu",
    layer_norm: bool = False,
    batch_norm: bool = False,
    precision: Precision = "f32",
    recurrent_size: int = 0,
    out_scale: float = 1.0,
    cnn: Cnn = "auto",
    torso: Torso = "mlp",
) -> Network:
    """A multi-layer perceptron over the flattened observation, behind a GRU if ``recurrent_size`` > 0.

    ``torso="residual"`` takes residual blocks with batch norms instead, one for each of ``hidden``; their params are to
    be held by `hold_unit_norm`.

    ``out`` is the number of outputs, or heads by name, which share everything but the last layer. ``keys`` names the
    entries of a dictionary observation that are read (default: all); with ``action_shape`` the network takes an action
    too. Images go through the convolutions named ``cnn``: ``"auto"`` takes the largest that fits images of bytes,
    ``"none"`` reads the pixels themselves, and a name also convolves real numbers and bools ``[height, width,
    channels]``. ``precision="bf16"`` concerns dense layers and convolutions; the GRU's small products stay in
    float32.

    Raises:
        ValueError: there are no images for ``cnn``, they are too small for it, the observation lacks a key, or residual
            blocks are not of one width.
    """
    choose = partial(choose_keys, keys=keys) if keys else lambda obs: obs
    seen_spec = choose(obs_spec)
    convolved = cnn != "auto" or any(is_image(leaf) for leaf in jax.tree.leaves(seen_spec))
    layers = choose_convolutions(seen_spec, cnn) if convolved else ()
    heads = out if isinstance(out, dict) else {"": Head(out, out_scale)}
    residual = torso == "residual"
    if residual and len(set(hidden)) != 1:
        raise ValueError(f"residual blocks of the sizes {list(hidden)}: write at least one, all of the same size")
    shape = tuple(hidden), tuple(heads.values()), ACTIVATIONS[activation]
    dense = ResidualTorso(*shape, precision) if residual else Mlp(*shape, layer_norm, batch_norm, precision)
    body = GruMlp(recurrent_size, dense) if recurrent_size else dense
    module: nn.Module = PixelNetwork(layers, convolved_by(cnn), body, precision) if layers else body

    def initial_memory(batch_size: int) -> PyTree:
        return jnp.zeros((batch_size, recurrent_size), jnp.float32) if recurrent_size else ()

    def inputs(obs: PyTree, memory: PyTree, first: jax.Array, action: jax.Array | None) -> tuple:
        obs = choose(obs)
        if action is not None and not recurrent_size:
            obs = {"action": action, "obs": obs}
        x = obs if layers else features(obs)
        return (memory, x, first, action) if recurrent_size else (x,)

    def init(key: jax.Array) -> PyTree:
        obs = jax.tree.map(lambda s: jnp.zeros((1, 1, *s.shape), s.dtype), obs_spec)
        action = None if action_shape is None else jnp.zeros((1, 1, *action_shape))
        return module.init(key, *inputs(obs, initial_memory(1), jnp.ones((1, 1), bool), action))

    def apply(
        params: PyTree, memory: PyTree, obs: PyTree, first: jax.Array, action: jax.Array | None = None
    ) -> tuple[Any, PyTree]:
        return outputs_of(module.apply(params, *inputs(obs, memory, first, action)))

    def outputs_of(result: Any) -> tuple[Any, PyTree]:
        outputs, memories = result if recurrent_size else (result, ())
        return (_by_head(outputs, heads) if isinstance(out, dict) else outputs), memories

    learning = without_statistics(apply)
    if batch_norm or residual:
        learning = _with_statistics(module, inputs, outputs_of)
    return Network(init, apply, learning, initial_memory, recurrent_size > 0, action_shape)


def without_statistics(apply: Apply) -> ApplyLearning:
    """A network without batch norms in a loss."""
    return lambda *given: (*apply(*given), {})


def _with_statistics(module: nn.Module, inputs: Callable[..., tuple], outputs_of: Callable) -> ApplyLearning:
    """A network with batch norms in a loss."""

    def apply_learning(
        params: PyTree, memory: PyTree, obs: PyTree, first: jax.Array, action: jax.Array | None = None
    ) -> tuple[Any, PyTree, PyTree]:
        given = inputs(obs, memory, first, action)
        result, changed = module.apply(params, *given, learning=True, mutable=[STATISTICS])
        return *outputs_of(result), changed[STATISTICS]

    return apply_learning


def ensemble(network: Network, size: int) -> Network:
    """``size`` networks that differ in their initial weights only; outputs ``[size, L, B, out]``, a memory for each.

    Params are a tuple; those of networks without memory may also be stacked, ``[size, ...]``: then all are one product.
    """

    def init(key: jax.Array) -> PyTree:
        return tuple(network.init(k) for k in jax.random.split(key, size))

    def apply(
        params: PyTree, memory: PyTree, obs: PyTree, first: jax.Array, action: jax.Array | None = None
    ) -> tuple[jax.Array, PyTree]:
        if not isinstance(params, tuple):
            return jax.vmap(lambda own: network.apply(own, (), obs, first, action)[0])(params), ()
        own = memory if network.recurrent else ((),) * size
        results = [network.apply(p, m, obs, first, action) for p, m in zip(params, own, strict=True)]
        outputs, memories = zip(*results, strict=True)
        return jnp.stack(outputs), memories if network.recurrent else ()

    def apply_learning(
        params: PyTree, memory: PyTree, obs: PyTree, first: jax.Array, action: jax.Array | None = None
    ) -> tuple[jax.Array, PyTree, PyTree]:
        own = memory if network.recurrent else ((),) * size
        results = [network.apply_learning(p, m, obs, first, action) for p, m in zip(params, own, strict=True)]
        outputs, memories, statistics = zip(*results, strict=True)
        return jnp.stack(outputs), memories if network.recurrent else (), statistics

    def initial_memory(batch_size: int) -> PyTree:
        return tuple(network.initial_memory(batch_size) for _ in range(size)) if network.recurrent else ()

    return network._replace(
        init=init, apply=apply, apply_learning=apply_learning, initial_memory=initial_memory, ensemble_size=size
    )


def scalar(init: Callable[[], jax.Array]) -> Network:
    """A learned number, such as the logarithm of a temperature, as a network: its output is the number itself."""

    def apply(
        params: PyTree, memory: PyTree, obs: PyTree, first: jax.Array, action: jax.Array | None = None
    ) -> tuple[jax.Array, PyTree]:
        return params, ()

    return Network(lambda key: init(), apply, without_statistics(apply))


def step(network: Network, params: PyTree, memory: PyTree, obs: PyTree, first: jax.Array) -> tuple[Any, PyTree]:
    """One step of a batch: outputs ``[B, out]`` and memory ``[B, ...]`` from observations ``[B, ...]``."""
    outputs, memories = network.apply(params, memory, *jax.tree.map(lambda x: x[None], (obs, first)))
    return jax.tree.map(lambda x: x[0], (outputs, memories))


def _by_head(outputs: jax.Array, heads: Heads) -> dict[str, jax.Array]:
    ends = list(accumulate(head.size for head in heads.values()))
    # Indexing would be a gather where the batch is symbolic, as in an exported file.
    slices = {name: (end - heads[name].size, end) for name, end in zip(heads, ends, strict=True)}
    return {name: jax.lax.slice_in_dim(outputs, *limits, axis=-1) for name, limits in slices.items()}
