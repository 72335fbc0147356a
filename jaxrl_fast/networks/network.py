"""flax.linen modules behind pairs of pure functions.

Every network maps a sequence of observations, leaves ``[L, B, ...]``, to outputs ``[L, B, out]``, so that
feed-forward and recurrent networks look alike to an algorithm. The memory, leaves ``[B, ...]``, is ``()`` for
feed-forward ones and is forgotten wherever ``first`` ``[L, B]`` is true.

An input stage (the chosen keys of an observation; images, uint8 ``[height, width, channels]``, scaled to 0..1 and
through convolutions), a torso (a GRU if wanted, dense layers) and heads.
"""

from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_fast.core import PyTree
from jaxrl_fast.networks.dense import STATISTICS, Head, Heads, Precision
from jaxrl_fast.networks.images import Cnn, choose_convolutions, convolved_by
from jaxrl_fast.networks.inputs import action_mask, choose_keys, features
from jaxrl_fast.networks.modules import ACTIVATIONS, Activation, GruMlp, Mlp, PixelNetwork

__all__ = [
    "Activation",
    "Apply",
    "Cnn",
    "Head",
    "Heads",
    "Network",
    "Precision",
    "action_mask",
    "ensemble",
    "make_network",
    "scalar",
]  # what an algorithm needs of this room


class Apply(Protocol):
    """Runs a network over a sequence."""

    def __call__(
        self, params: PyTree, memory: PyTree, obs: PyTree, first: jax.Array, action: jax.Array | None = None
    ) -> tuple[Any, PyTree]:
        """``memory`` ``[B, ...]`` before the first step, ``obs`` ``[L, B, ...]``, ``first`` ``[L, B]``, and for a
        network of actions ``action`` ``[L, B, ...]``. Returns outputs ``[L, B, out]`` (a dictionary of them for several
        heads) and the memory after every step, ``[L, B, ...]``."""


class ApplyLearning(Protocol):
    """As `Apply`, while the network learns: a batch norm sees the batch."""

    def __call__(
        self, params: PyTree, memory: PyTree, obs: PyTree, first: jax.Array, action: jax.Array | None = None
    ) -> tuple[Any, PyTree, PyTree]:
        """Returns outputs, memory, and what the collection ``batch_stats`` of the params is from now on (empty without
        a batch norm)."""


class Network(NamedTuple):
    """Pure functions of one network.

    ``init(key) -> params``: Flax variables, with the statistics of normalization layers beside the weights; ``apply``:
    `Apply`; ``apply_learning``: `ApplyLearning`; ``initial_memory(batch_size) -> memory`` ``[B, ...]``, ``()`` unless
    it is ``recurrent``; ``action_shape``: that of the action, for a network of observation and action.
    """

    init: Callable[[jax.Array], PyTree]
    apply: Apply
    apply_learning: ApplyLearning
    initial_memory: Callable[[int], PyTree] = lambda batch_size: ()
    recurrent: bool = False
    action_shape: tuple[int, ...] | None = None


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
) -> Network:
    """A multi-layer perceptron over the flattened observation, behind a GRU if ``recurrent_size`` > 0.

    ``out`` is the number of outputs, or heads by name, which share everything but the last layer. ``keys`` names the
    entries of a dictionary observation that are read (default: all); ``action_shape`` makes it a network of
    observation and action. Where there are images it reads what the convolutions named ``cnn`` make of them; ``"auto"``
    takes the largest that fits images of bytes, ``"none"`` the pixels, and a name also convolves real and truth values
    ``[height, width, channels]``. ``precision="bf16"`` concerns the dense layers and the convolutions; the GRU's small
    products stay in float32.

    Raises:
        ValueError: there are no images for ``cnn``, they are too small for it, or the observation lacks a key.
    """
    seen_spec = choose_keys(obs_spec, keys)
    layers = choose_convolutions(seen_spec, cnn)
    heads = out if isinstance(out, dict) else {"": Head(out, out_scale)}
    mlp = Mlp(tuple(hidden), tuple(heads.values()), ACTIVATIONS[activation], layer_norm, batch_norm, precision)
    body = GruMlp(recurrent_size, mlp) if recurrent_size else mlp
    module: nn.Module = PixelNetwork(layers, convolved_by(cnn), body, precision) if layers else body

    def initial_memory(batch_size: int) -> PyTree:
        return jnp.zeros((batch_size, recurrent_size), jnp.float32) if recurrent_size else ()

    def inputs(obs: PyTree, memory: PyTree, first: jax.Array, action: jax.Array | None) -> tuple:
        obs = choose_keys(obs, keys)
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
        result: Any = module.apply(params, *inputs(obs, memory, first, action))
        outputs, memories = result if recurrent_size else (result, ())
        return (_by_head(outputs, heads) if isinstance(out, dict) else outputs), memories

    def apply_learning(
        params: PyTree, memory: PyTree, obs: PyTree, first: jax.Array, action: jax.Array | None = None
    ) -> tuple[Any, PyTree, PyTree]:
        if not batch_norm:
            return *apply(params, memory, obs, first, action), {}
        given = inputs(obs, memory, first, action)
        result, changed = module.apply(params, *given, learning=True, mutable=[STATISTICS])
        outputs, memories = result if recurrent_size else (result, ())
        return (_by_head(outputs, heads) if isinstance(out, dict) else outputs), memories, changed[STATISTICS]

    return Network(init, apply, apply_learning, initial_memory, recurrent_size > 0, action_shape)


def ensemble(network: Network, size: int) -> Network:
    """``size`` networks alike but for their initial weights; outputs ``[size, L, B, out]``, one memory for each."""

    def init(key: jax.Array) -> PyTree:
        return tuple(network.init(k) for k in jax.random.split(key, size))

    def apply(
        params: PyTree, memory: PyTree, obs: PyTree, first: jax.Array, action: jax.Array | None = None
    ) -> tuple[jax.Array, PyTree]:
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

    return network._replace(init=init, apply=apply, apply_learning=apply_learning, initial_memory=initial_memory)


def scalar(init: Callable[[], jax.Array]) -> Network:
    """One number that is learned, such as a logarithm of a temperature: its own output."""

    def apply(
        params: PyTree, memory: PyTree, obs: PyTree, first: jax.Array, action: jax.Array | None = None
    ) -> tuple[jax.Array, PyTree]:
        return params, ()

    return Network(lambda key: init(), apply, lambda *given: (*apply(*given), {}))


def step(network: Network, params: PyTree, memory: PyTree, obs: PyTree, first: jax.Array) -> tuple[Any, PyTree]:
    """One step of a batch: outputs ``[B, out]`` and memory ``[B, ...]`` from observations ``[B, ...]``."""
    outputs, memories = network.apply(params, memory, *jax.tree.map(lambda x: x[None], (obs, first)))
    return jax.tree.map(lambda x: x[0], (outputs, memories))


def _by_head(outputs: jax.Array, heads: Heads) -> dict[str, jax.Array]:
    ends = list(accumulate(head.size for head in heads.values()))
    return {name: outputs[..., end - heads[name].size : end] for name, end in zip(heads, ends, strict=True)}
