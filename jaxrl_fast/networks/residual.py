"""Torsos other than dense layers: residual blocks with weights of unit norm as in FlashSAC (arXiv
2604.04539), with layer norms as in SimBa (arXiv 2410.09754), and a user's.
"""

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_fast.core import PyTree
from jaxrl_fast.networks.convolutions import Precision, dot_of
from jaxrl_fast.system import fault_of, import_function, names_code, path_of

EXPANSION = 4
"""Width of the hidden layer of a residual block, relative to the block's width."""
SMALLEST = 1e-8


def unit_columns(
    key: jax.Array, shape: tuple[int, int], dtype: jnp.dtype = jnp.float32
) -> jax.Array:
    """Initialize weights with a random direction of unit norm for each output.

    Args:
        key: Random key.
        shape: ``(inputs, outputs)``.
        dtype: Type of the weights.

    Returns:
        Weights ``[inputs, outputs]``.
    """
    return _unit(jax.random.normal(key, shape, dtype))


class ResidualTorso(nn.Module):
    """Residual blocks over ``[L, B, F]``, one per entry of ``hidden``, of equal width, and a layer
    of all heads.

    With ``learning=True``, batch norms use the statistics of the batch and merge them into the
    running ones. Outputs grow with the width of the torso: heads read features of norm
    ``sqrt(width)``.
    """

    hidden: tuple[int, ...]
    heads: tuple[Any, ...]
    activation: Callable[[jax.Array], jax.Array]
    precision: Precision

    @nn.compact
    def __call__(self, x: jax.Array, *, learning: bool = False) -> jax.Array:
        length, batch, _ = x.shape
        x = x.swapaxes(0, 1).reshape(batch * length, -1)  # as in `network.Mlp`
        dense = partial(nn.Dense, kernel_init=unit_columns, dot_general=dot_of(self.precision))
        # The fast variance (mean of squares minus square of the mean) loses digits where a feature
        # hardly varies.
        normalized = partial(
            nn.BatchNorm, use_running_average=not learning, momentum=0.99, use_fast_variance=False
        )
        x = dense(self.hidden[0], use_bias=False)(normalized()(x))
        for width in self.hidden:
            inside = self.activation(normalized()(dense(EXPANSION * width, use_bias=False)(x)))
            x = x + self.activation(normalized()(dense(width, use_bias=False)(inside)))
        x = nn.RMSNorm()(x)
        x = dense(sum(head.size for head in self.heads))(x)
        return x.reshape(batch, length, -1).swapaxes(0, 1)


def residual_torso(
    hidden: tuple[int, ...],
    heads: tuple[Any, ...],
    activation: Callable[[jax.Array], jax.Array],
    precision: Precision,
) -> ResidualTorso:
    """Build residual blocks of equal width.

    Args:
        hidden: Widths of the blocks.
        heads: Heads (`network.Head`).
        activation: Activation.
        precision: "bf16" for dense layers.

    Returns:
        The module.

    Raises:
        ValueError: There is no block, or their widths differ.
    """
    if len(set(hidden)) != 1:
        raise ValueError(
            f"residual blocks of sizes {list(hidden)}: write at least one size, all equal"
        )
    return ResidualTorso(hidden, heads, activation, precision)


class Simba(nn.Module):
    """Residual blocks over features ``[N, F]``, one per entry of ``hidden``, with layer norms
    (arXiv 2410.09754).
    """

    hidden: tuple[int, ...]
    activation: Callable[[jax.Array], jax.Array]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dense = partial(nn.Dense, kernel_init=nn.initializers.he_normal())
        x = nn.Dense(self.hidden[0])(x)
        for width in self.hidden:
            inside = self.activation(dense(EXPANSION * width)(nn.LayerNorm()(x)))
            x = x + dense(width)(inside)
        return nn.LayerNorm()(x)


def own_torso(
    network: Any,
    hidden: tuple[int, ...],
    activation: Callable[[jax.Array], jax.Array],
    outputs: int,
) -> tuple[nn.Module, bool]:
    """Build residual blocks with layer norms, or a user's torso.

    Args:
        network: "simba"; or a function, or its path ``my_package.make``:
            ``(hidden, activation) -> module`` of Flax, which maps features ``[N, F]`` to features
            ``[N, any size]``. With batch norms, it takes ``learning=False``, True in a loss, where
            they use the batch's statistics. If the module has ``takes_observation = True``, it gets
            the observation instead, leaves ``[N, ...]``; in a critic that takes an action,
            ``{"action": ..., "obs": ...}``. A function ``(hidden, activation, outputs)`` makes the
            head, too: ``[N, outputs]``.
        hidden: Sizes of the hidden layers, or widths of the blocks.
        activation: Activation.
        outputs: Number of outputs of all heads.

    Returns:
        The module, and whether its last layer is the head.

    Raises:
        ValueError: Unknown name, a function that fails or returns something else, or blocks that
            differ in width.
    """
    if network == "simba":
        if len(set(hidden)) != 1:
            raise ValueError(
                f"residual blocks of sizes {list(hidden)}: write at least one size, all equal"
            )
        return Simba(hidden, activation), False
    if isinstance(network, str) and not names_code(network):
        raise ValueError(f"network={network}: write mlp, residual, simba or my_package.make")
    make = import_function(network, "algo.network") if isinstance(network, str) else network
    try:
        ends = "outputs" in inspect.signature(make).parameters
        made = make(hidden, activation, outputs) if ends else make(hidden, activation)
    except Exception as error:
        raise ValueError(f"network={path_of(network)} failed: {fault_of(error)}") from error
    if not isinstance(made, nn.Module):
        raise ValueError(
            f"network={path_of(network)} returned {type(made).__name__}: return a module of flax.linen"
        )
    return made, ends


def takes_observation(module: nn.Module, recurrent_size: int) -> bool:
    """Return whether the torso of a `network.WithHeads` reads the observation, and not its features
    in a vector.

    Args:
        module: Module.
        recurrent_size: Size of the GRU before it.

    Returns:
        The attribute ``takes_observation`` of the torso.

    Raises:
        ValueError: It does, after a GRU.
    """
    torso = getattr(module, "torso", None)
    takes = getattr(torso, "takes_observation", False)
    if takes and recurrent_size:
        raise ValueError(
            f"network: {path_of(type(torso))} takes the observation: write recurrent_size=0"
        )
    return bool(takes)


def run_own(
    torso: nn.Module, x: PyTree, outputs: int | None = None, *, learning: bool = False
) -> jax.Array:
    """Run a torso of `own_torso`.

    Args:
        torso: Module.
        x: Features ``[N, F]``, or an observation, leaves ``[N, ...]``.
        outputs: Number of outputs that it must have; None for any.
        learning: Whether batch norms use the batch's statistics.

    Returns:
        Features ``[N, any size]``, or outputs.

    Raises:
        ValueError: It fails, changes the number of rows, or has another state than batch norms that
            it can switch.
    """
    name = f"network: {path_of(type(torso))}"
    switches = "learning" in inspect.signature(torso.__call__).parameters
    try:
        y = torso(x, learning=learning) if switches else torso(x)
    except Exception as error:
        raise ValueError(
            f"{name} fails with inputs {jax.tree.map(jnp.shape, x)}: {fault_of(error)}"
        ) from error
    rows = jax.tree.leaves(x)[0].shape[0]
    wanted = f"({rows}, {'any size' if outputs is None else outputs})"
    if jnp.ndim(y) != 2 or y.shape[0] != rows or y.shape[1] != (outputs or y.shape[1]):
        raise ValueError(
            f"{name} returns {jnp.shape(y)}: write {wanted}, a row for each of the input"
        )
    states = sorted(set(torso.variables) - {"params"})
    if states == ["batch_stats"] and not switches:
        raise ValueError(
            f"{name} has batch norms that cannot see when they learn: write __call__(self, x, *, learning=False) and "
            "nn.BatchNorm(use_running_average=not learning), or layer norms"
        )
    if states not in ([], ["batch_stats"]):
        raise ValueError(
            f"{name} has a state ({', '.join(states)}), which losses do not update: leave it out"
        )
    return y


def hold_unit_norm(params: PyTree) -> PyTree:
    """Scale params to the norms that `ResidualTorso` requires.

    Args:
        params: Params of one network, or a tuple of an ensemble's.

    Returns:
        Params in which the weights of each output have unit norm, and scale and bias of each
        normalization layer together have the norm ``sqrt(features)``. Statistics, and biases of
        dense layers, are unchanged.
    """
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
