"""Dense layers that output quantiles of returns at any level: implicit quantile networks (IQN, arXiv 1806.06923)."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_fast.networks.convolutions import Precision, dot_of, scaled_normal
from jaxrl_fast.networks.noisy import StateNoise
from jaxrl_fast.numerics.distributions import quantile_levels

LEVELS = "levels"
"""Name of the key with which levels are random."""
NUM_COSINES = 64
"""Cosines of a level that its embedding reads (n of the paper's equation 4)."""
NUM_MIDPOINTS = 32
"""Levels of action selection: the mean over fixed midpoints is the same value in training, evaluation and exported
files. As many as the samples K of the paper (section 3.2).
"""


class QuantileMlp(nn.Module):
    """Dense layers over ``[L, B, F]``, whose outputs are the quantiles at N levels, then these levels.

    Features of the observation, the outputs of ``below``, are multiplied by an embedding of each level; ``above``
    computes quantiles from the product. With a key named `LEVELS` (`Network.with_levels`) every step has ``num_levels``
    levels, uniformly random in [0, 1), otherwise N is `NUM_MIDPOINTS`. Outputs are ``[L, B, out * 2 N]``, for each of
    the ``out`` outputs of ``above`` one after another.

    Source: Dabney et al. (2018), section 3.1 and equation 4, arXiv 1806.06923.
    """

    below: Any
    above: Any
    num_levels: int
    precision: Precision

    @nn.compact
    def __call__(self, x: jax.Array, *, learning: bool = False) -> jax.Array:
        x = self.below(x, learning=learning)
        length, batch, width = x.shape
        rows = x.swapaxes(0, 1).reshape(batch * length, 1, width)  # as in `network.Mlp`
        levels = quantile_levels(NUM_MIDPOINTS)[None]
        if self.has_rng(LEVELS):
            levels = jax.random.uniform(self.make_rng(LEVELS), (batch * length, self.num_levels))
        cosines = jnp.cos(jnp.pi * jnp.arange(NUM_COSINES, dtype=jnp.float32)[None] * levels.reshape(-1, 1))
        embed = nn.Dense(width, kernel_init=scaled_normal(2.0), dot_general=dot_of(self.precision))
        embedding = nn.relu(embed(cosines)).reshape(*levels.shape, width)
        quantiles = self.above((rows * embedding).reshape(1, -1, width), learning=learning)
        quantiles = quantiles.reshape(batch * length, levels.shape[1], -1).swapaxes(1, 2)
        outputs = jnp.concatenate([quantiles, jnp.broadcast_to(levels[:, None], quantiles.shape)], axis=-1)
        return outputs.reshape(batch, length, -1).swapaxes(0, 1)


Split = Callable[[Any, bool], nn.Module]
"""(an `Mlp`; whether convolutions or a GRU come before) -> a module of two parts of its layers."""


def two_parts(mlp: Any, after_others: bool, num_levels: int = 0) -> nn.Module:
    """Split dense layers in two parts, of a `QuantileMlp` or a `StateNoise`.

    The upper part of a `QuantileMlp` has the last hidden layer, as published; if it is the only layer of the network,
    the lower part has it.

    Args:
        mlp: An `Mlp`.
        after_others: Whether convolutions or a GRU come before.
        num_levels: Random levels of a `QuantileMlp`; 0 for a `StateNoise`.

    Returns:
        The module.
    """
    hidden = mlp.hidden
    cut = max(len(hidden) - 1, 0 if after_others else 1) if num_levels else len(hidden)
    parts = mlp.clone(hidden=hidden[:cut], heads=()), mlp.clone(hidden=hidden[cut:])
    return QuantileMlp(*parts, num_levels, mlp.precision) if num_levels else StateNoise(*parts)
