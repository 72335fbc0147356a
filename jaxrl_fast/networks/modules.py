"""Torsos: flax.linen modules from a sequence of observations ``[L, B, ...]`` to the outputs of all heads."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_fast.core import PyTree
from jaxrl_fast.networks.dense import Head, Precision, dot_of, normal_of_heads, scaled_normal
from jaxrl_fast.networks.images import Convolution, Convolutions
from jaxrl_fast.networks.inputs import features
from jaxrl_fast.numerics.running_stats import is_mask

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
