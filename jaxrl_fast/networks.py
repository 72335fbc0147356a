"""flax.linen modules behind pairs of pure functions.

Every network maps a sequence of observations, leaves ``[L, B, ...]``, to outputs ``[L, B, out]``, so that
feed-forward and recurrent networks look alike to an algorithm. The memory (*carry*, leaves ``[B, ...]``) is
``()`` for feed-forward ones and is forgotten wherever ``first`` ``[L, B]`` is true.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_fast.core import PyTree
from jaxrl_fast.env import select
from jaxrl_fast.normalize import is_mask

Activation = Literal["relu", "tanh", "swish", "elu", "gelu"]
Precision = Literal["f32", "bf16"]
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": nn.relu,
    "tanh": jnp.tanh,
    "swish": nn.swish,
    "elu": nn.elu,
    "gelu": nn.gelu,
}


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
) -> Network:
    """A multi-layer perceptron over the flattened observation, behind a GRU if ``recurrent_size`` > 0.

    ``precision="bf16"`` concerns the dense layers; the GRU's small products stay in float32.
    """
    mlp = Mlp(tuple(hidden), out, ACTIVATIONS[activation], layer_norm, precision, out_scale)
    module = GruMlp(recurrent_size, mlp) if recurrent_size else mlp

    def initial_carry(batch_size: int) -> PyTree:
        return jnp.zeros((batch_size, recurrent_size), jnp.float32) if recurrent_size else ()

    def init(key: jax.Array) -> PyTree:
        obs = jax.tree.map(lambda s: jnp.zeros((1, 1, *s.shape), s.dtype), obs_spec)
        x = features(obs)
        if not recurrent_size:
            return module.init(key, x)
        return module.init(key, initial_carry(1), x, jnp.ones((1, 1), bool))

    def apply(params: PyTree, carry: PyTree, obs: PyTree, first: jax.Array) -> tuple[jax.Array, PyTree]:
        x = features(obs)
        if not recurrent_size:
            outputs: Any = module.apply(params, x)
            return outputs, ()
        return module.apply(params, carry, x, first)

    return Network(init, apply, initial_carry)


def scaled_normal(scale: float) -> nn.initializers.Initializer:
    """Truncated normal weights of variance ``scale / inputs``.

    Not orthogonal ones: they need a QR decomposition, and two of them under ``vmap`` (several seeds) hang for ever on a
    CPU of two cores, since each blocks a thread of XLA's pool while it waits for another (seen with JAX 0.10.2).
    """
    return nn.initializers.variance_scaling(scale, "fan_in", "truncated_normal")


def features(obs: PyTree) -> jax.Array:
    """Flatten an observation ``[L, B, ...]`` into float32 ``[L, B, features]``, its ``action_mask`` left out."""
    leaves = [
        leaf.reshape(*leaf.shape[:2], -1).astype(jnp.float32)
        for path, leaf in jax.tree_util.tree_leaves_with_path(obs)
        if not is_mask(path)
    ]
    return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves, axis=-1)


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
