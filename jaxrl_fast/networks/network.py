"""Networks as pure functions, made of flax.linen modules.

Every network maps a sequence of observations, leaves ``[L, B, ...]``, to outputs ``[L, B, out]``,
so algorithms treat feed-forward and recurrent networks alike. The memory, leaves ``[B, ...]``, is
``()`` for feed-forward networks and is reset wherever ``first`` ``[L, B]`` is true.

A network has an input stage (the selected keys of an observation; convolutions for images, uint8
``[height, width, channels]``, scaled to 0..1), a torso (dense layers or residual blocks, after an
optional GRU) and heads.
"""

from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any, Literal, NamedTuple, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_fast.core import PyTree, is_image
from jaxrl_fast.networks import convolutions
from jaxrl_fast.networks.convolutions import (
    Cnn,
    PixelNetwork,
    Precision,
    Weights,
    convolved_by,
    dot_of,
    features,
    orthogonal_weights,
    scaled_normal,
)
from jaxrl_fast.networks.memories import WithMemory, make_memory
from jaxrl_fast.networks.noisy import NoisyDense, Split, draw_noise
from jaxrl_fast.networks.residual import (
    hold_unit_norm,
    own_torso,
    residual_torso,
    run_own,
    takes_observation,
)
from jaxrl_fast.system import path_of

STATISTICS = "batch_stats"
"""Flax's collection of batch-norm statistics: part of the params, but not changed by optimizers."""

Torso = str
"""Kind of a network's dense layers: "mlp", "residual", "simba", or ``my_package.make``; also the
function itself.
"""


MemoryKind = str
"""Kind of a memory (`make_memory`); also the function itself."""


class Head(NamedTuple):
    """One output of a network.

    Attributes:
        size: Number of values.
        scale: Initial weights have standard deviation ``scale / sqrt(inputs)``.
        bias: Initial biases; empty for zeros. Residual torsos ignore it.
    """

    size: int
    scale: float = 1.0
    bias: tuple[float, ...] = ()


Heads = dict[str, Head]
"""Heads by name."""


def weights_of_heads(heads: tuple[Head, ...], weights: Weights) -> nn.initializers.Initializer:
    """Return an initializer of the joint weights ``[inputs, out]`` of several heads, each with its
    scale.

    Args:
        heads: Heads in the order of the outputs.
        weights: Makes the initializer of one head.

    Returns:
        The initializer.
    """
    return weights(heads[0].scale ** 2) if len(heads) == 1 else _side_by_side(heads, weights)


def _side_by_side(heads: tuple[Head, ...], weights: Weights) -> nn.initializers.Initializer:
    def init(key: jax.Array, shape: tuple[int, int], dtype: Any = jnp.float32) -> jax.Array:
        keys = jax.random.split(key, len(heads))
        blocks = [
            weights(head.scale**2)(k, (shape[0], head.size), dtype)
            for k, head in zip(keys, heads, strict=True)
        ]
        return jnp.concatenate(blocks, axis=1)

    return init


def biases_of_heads(heads: tuple[Head, ...]) -> nn.initializers.Initializer:
    """Return an initializer of the joint biases ``[out]`` of several heads.

    Args:
        heads: Heads in the order of the outputs.

    Returns:
        The initializer.
    """
    biases = [bias for head in heads for bias in head.bias or (0.0,) * head.size]
    return lambda key, shape, dtype=jnp.float32: jnp.asarray(biases, dtype)


def choose_keys(obs: PyTree, keys: tuple[str, ...]) -> PyTree:
    """Select entries of a dictionary observation.

    Args:
        obs: Observation or its shapes.
        keys: Entries to select, with the ``action_mask``; empty for all entries. ``camera`` also
            selects ``camera.front``, an entry of a nested dictionary.

    Returns:
        The selected observation.

    Raises:
        ValueError: A key is missing, or the observation is not a dictionary.
    """
    if not keys:
        return obs
    known = sorted(set(obs) - {"action_mask"}) if isinstance(obs, dict) else []
    chosen = {
        name for name in known if name in keys or any(name.startswith(f"{key}.") for key in keys)
    }
    for key in keys:
        if not any(name == key or name.startswith(f"{key}.") for name in known):
            there = (
                f"write some of {', '.join(known)}"
                if known
                else "they are not a dictionary: leave the keys out"
            )
            raise ValueError(f"the observations have no key '{key}': {there}")
    return {key: value for key, value in obs.items() if key in chosen or key == "action_mask"}


def action_mask(obs: PyTree) -> jax.Array | None:
    """Return the mask of allowed actions.

    Args:
        obs: Observation.

    Returns:
        The entry ``action_mask`` of a dictionary, or None.
    """
    return obs.get("action_mask") if isinstance(obs, dict) else None


Activation = Literal["relu", "tanh", "swish", "elu", "gelu"]
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = dict(
    relu=nn.relu, tanh=jnp.tanh, swish=nn.swish, elu=nn.elu, gelu=nn.gelu
)
SHARED = "activation", "layer_norm", "memory", "recurrent_size", "network", "cnn", "precision"
"""Arguments of `make_network` that all networks of an algorithm share."""


class Mlp(nn.Module):
    """Dense layers over ``[L, B, F]``, each followed by an optional normalization and the
    activation.

    The last layer holds all heads and is linear; it is missing without heads. With
    ``learning=True``, a batch norm uses the batch's statistics and merges them into the running
    ones (arXiv 1502.03167). Weights are initialized as in He et al. (arXiv 1502.01852), or
    orthogonal. Dropout is active only with a key of that name (`Network.with_dropout`).
    """

    hidden: tuple[int, ...]
    heads: tuple[Head, ...]
    activation: Callable[[jax.Array], jax.Array]
    layer_norm: bool
    batch_norm: bool
    precision: Precision
    dropout: float = 0.0
    noisy: bool = False
    weights: Weights = scaled_normal

    @nn.compact
    def __call__(self, x: jax.Array, *, learning: bool = False) -> jax.Array:
        # One batch axis: with two, XLA's CPU compiler makes layer norms and activations slower (SAC
        # by 40 %). The batch comes before the sequence, so that a batch sharded over devices is not
        # transferred.
        length, batch, _ = x.shape
        x = x.swapaxes(0, 1).reshape(batch * length, -1)
        dense = partial(NoisyDense if self.noisy else nn.Dense, dot_general=dot_of(self.precision))
        for size in self.hidden:
            x = dense(size, kernel_init=self.weights(2.0))(x)
            if self.dropout and self.has_rng("dropout"):
                x = nn.Dropout(self.dropout, deterministic=False)(x)
            if self.layer_norm:
                x = nn.LayerNorm()(x)
            if self.batch_norm:
                x = nn.BatchNorm(use_running_average=not learning)(x)
            x = self.activation(x)
        bias_init = (
            biases_of_heads(self.heads)
            if any(head.bias for head in self.heads)
            else nn.initializers.zeros
        )
        if out := sum(head.size for head in self.heads):
            x = dense(
                out, kernel_init=weights_of_heads(self.heads, self.weights), bias_init=bias_init
            )(x)
        return x.reshape(batch, length, -1).swapaxes(0, 1)


class WithHeads(nn.Module):
    """A torso of `own_torso` over ``[L, B, F]`` or an observation ``[L, B, ...]``, and a linear
    layer of all heads.

    A torso that ``ends`` with their outputs has no layer after it.
    """

    torso: nn.Module
    heads: tuple[Head, ...]
    precision: Precision
    weights: Weights
    ends: bool = False

    @nn.compact
    def __call__(self, x: PyTree, *, learning: bool = False) -> jax.Array:
        length, batch = jax.tree.leaves(x)[0].shape[:2]
        # as in `Mlp`
        rows = jax.tree.map(
            lambda leaf: leaf.swapaxes(0, 1).reshape(batch * length, *leaf.shape[2:]), x
        )
        size, dot = sum(head.size for head in self.heads), dot_of(self.precision)
        x = run_own(self.torso, rows, size if self.ends else None, learning=learning)
        kernel, bias = weights_of_heads(self.heads, self.weights), biases_of_heads(self.heads)
        x = (
            x
            if self.ends
            else nn.Dense(size, kernel_init=kernel, bias_init=bias, dot_general=dot)(x)
        )
        return x.reshape(batch, length, -1).swapaxes(0, 1)


def torso_of(
    network: Torso,
    hidden: tuple[int, ...],
    heads: tuple[Head, ...],
    activation: Callable,
    *how: Any,
) -> Any:
    """Return the module of a network other than "mlp".

    Args:
        network: As in `make_network`.
        hidden: Sizes of the hidden layers.
        heads: Heads.
        activation: Activation.
        *how: Precision, initial weights, and whether random draws are asked for, which only an
            "mlp" has.

    Returns:
        The module.

    Raises:
        ValueError: Unknown network, or one without the random draws that are asked for.
    """
    precision, weights, draws = how
    if draws:
        raise ValueError(
            f"network={path_of(network)} has no noise, no dropout and no implicit quantiles: leave them out, or write "
            "network=mlp"
        )
    if network == "residual":
        return residual_torso(hidden, heads, activation, precision)
    torso, ends = own_torso(network, hidden, activation, sum(head.size for head in heads))
    return WithHeads(torso, heads, precision, weights, ends)


# All that an algorithm imports, so that it depends on no other module of this package.
__all__ = [
    "Activation",
    "Apply",
    "Cnn",
    "Head",
    "Heads",
    "MemoryKind",
    "Network",
    "Precision",
    "Torso",
    "action_mask",
]
__all__ += ["ensemble", "hold_unit_norm", "make_network", "over", "scalar"]


class Apply(Protocol):
    """Runs a network over a sequence."""

    def __call__(
        self,
        params: PyTree,
        memory: PyTree,
        obs: PyTree,
        first: jax.Array,
        action: jax.Array | None = None,
    ) -> tuple[Any, PyTree]:
        """Run the network.

        Args:
            params: Params of the network.
            memory: Memory before the first step, ``[B, ...]``.
            obs: Observations ``[L, B, ...]``.
            first: Whether a step begins an episode, ``[L, B]``.
            action: Actions ``[L, B, ...]``, for networks that take them.

        Returns:
            Outputs ``[L, B, out]`` (a dictionary for several heads) and the memory after every
            step, ``[L, B, ...]``.
        """


NO_MEMORY, UNCONSTRAINED = (lambda batch_size: ()), (lambda params: params)
"""Memory of a feed-forward `Network`, and the constraint of one without."""


class Network(NamedTuple):
    """One network as pure functions.

    Attributes:
        init: ``(key) -> params``, Flax variables: weights, and statistics of normalization layers.
        apply: Runs the network over a sequence.
        in_loss: Runs the network in a loss of its params, where batch norms use the batch's
            statistics. The gradient of the running statistics is their change.
        initial_memory: ``(batch_size) -> memory`` at the start of an episode, leaves
            ``[batch_size, ...]``; ``()`` for a feed-forward network.
        recurrent: Whether the network has a memory.
        action_shape: Shape of the action that the network takes in addition to the observation;
            None for no action.
        ensemble_size: Number of members of an `ensemble`; 0 for a single network.
        trailing_axes: Axes of outputs and memory after the batch; 2 if each of several agents has
            its own.
        separate: Whether agents have separate networks, with stacked params ``[A, ...]``.
        of_agent: ``(number, params) -> (network, params)`` of one of several agents, counted from
            0. The network maps this agent's observations ``[L, B, ...]`` to ``[L, B, out]``. None
            with one agent.
        with_dropout: ``(key) -> network`` whose ``apply`` drops outputs of hidden layers at random,
            if it has dropout.
        draw_noise: ``(params, key, role, rows=1) -> params`` with noise (`noisy.draw_noise`), or
            unchanged params.
        with_levels: ``(key) -> network`` whose ``apply`` draws random levels, if it outputs
            quantiles (`QuantileMlp`).
        after: ``(params, memory, obs, first, next_obs, at, action) -> outputs [N, B, out]`` at
            ``next_obs`` ``[N, B, ...]`` that each follow step ``at`` ``[N, B]`` of a sequence; None
            if `apply` on the memories of all steps takes less space.
        project: ``(params) -> params``, a constraint such as unit norm, after each step and after
            averaging.
    """

    init: Callable[[jax.Array], PyTree]
    apply: Apply
    in_loss: Apply
    initial_memory: Callable[[int], PyTree] = NO_MEMORY
    recurrent: bool = False
    action_shape: tuple[int, ...] | None = None
    ensemble_size: int = 0
    trailing_axes: int = 1
    separate: bool = False
    of_agent: Callable[[int, PyTree], tuple["Network", PyTree]] | None = None
    with_dropout: Callable[[jax.Array], "Network"] | None = None
    draw_noise: Callable[..., PyTree] = lambda params, *given: params
    with_levels: Callable[[jax.Array], "Network"] | None = None
    after: Callable[..., jax.Array] | None = None
    project: Callable[[PyTree], PyTree] = UNCONSTRAINED


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
    dropout: float = 0.0,
    precision: Precision = "f32",
    memory: MemoryKind = "gru",
    recurrent_size: int = 0,
    out_scale: float = 1.0,
    out_bias: tuple[float, ...] = (),
    cnn: Cnn = "auto",
    network: Torso = "mlp",
    noisy: bool = False,
    orthogonal: bool = False,
    split: Split | None = None,
) -> Network:
    """Build a network of dense layers over the flattened observation, after a memory if
    ``recurrent_size`` > 0.

    Args:
        obs_spec: Shapes of one observation.
        out: Number of outputs, or heads by name, which share all layers but the last.
        hidden: Sizes of the hidden layers, or widths of residual blocks.
        keys: Entries of a dictionary observation that the network reads; empty for all.
        action_shape: Shape of an action that the network takes too; None for no action.
        activation: Name in `ACTIVATIONS`.
        layer_norm: Whether to normalize each hidden layer's outputs; ignored by residual blocks.
        batch_norm: Whether to normalize them over the batch; residual blocks always do.
        dropout: Share of each hidden layer's outputs that `Network.with_dropout` sets to 0, before
            layer norm; not of residual blocks.
        precision: "bf16" for dense layers and convolutions; a memory's small products stay in
            float32.
        memory: Kind of the memory (`make_memory`).
        recurrent_size: Size of the memory; 0 for none.
        out_scale: Scale of a single head's initial weights (`Head`).
        out_bias: Initial biases of a single head.
        cnn: Convolutions for images. "auto" takes the largest that the images' size allows, for
            images of bytes. "none" reads the pixels directly. A name also convolves real numbers
            and bools ``[height, width, channels]``.
        network: "mlp", "residual" for residual blocks with batch norms and weights of unit norm,
            "simba" for layer norms instead, a user's function or its path (`own_torso`).
        noisy: Whether the dense layers of an "mlp" have trained noise (`Network.draw_noise`).
        orthogonal: Whether the initial weights of convolutions and an "mlp" are orthogonal instead
            of normal.
        split: Makes a module of two parts of the dense layers, such as `quantiles.two_parts`; None
            for an `Mlp`.

    Returns:
        The network.

    Raises:
        ValueError: There are no images for ``cnn``, they are too small, the observation lacks a
            key, or the residual blocks differ in width.
    """
    choose = partial(choose_keys, keys=keys) if keys else lambda obs: obs
    heads = out if isinstance(out, dict) else {"": Head(out, out_scale, out_bias)}
    shape = tuple(hidden), tuple(heads.values()), ACTIVATIONS[activation]
    weights, draws = orthogonal_weights if orthogonal else scaled_normal, noisy or dropout or split
    mlp = partial(
        Mlp,
        *shape,
        layer_norm,
        batch_norm,
        precision,
        dropout=dropout,
        noisy=noisy,
        weights=weights,
    )
    plain: nn.Module = (
        mlp() if network == "mlp" else torso_of(network, *shape, precision, weights, draws)
    )
    whole = network != "mlp" and takes_observation(plain, recurrent_size)
    convolved = cnn != "auto" or (
        not whole and any(is_image(leaf) for leaf in jax.tree.leaves(choose(obs_spec)))
    )
    layers = convolutions.choose_convolutions(choose(obs_spec), cnn) if convolved else ()
    dense = split(plain, bool(layers or recurrent_size)) if split else plain
    remembers = make_memory(memory, recurrent_size) if recurrent_size or memory != "gru" else None
    module, initial = (
        (WithMemory(remembers, dense), remembers.initial) if remembers else (dense, NO_MEMORY)
    )
    module = (
        PixelNetwork(layers, convolved_by(cnn), module, precision, weights) if layers else module
    )

    def inputs(obs: PyTree, memory: PyTree, first: jax.Array, action: jax.Array | None) -> tuple:
        obs = choose(obs)
        if action is not None and not recurrent_size:
            obs = {"action": action, "obs": obs}
        x = obs if layers or whole else features(obs)
        return (
            (memory, x, first, action if action is None else features(action))
            if remembers
            else (x,)
        )

    def init(key: jax.Array) -> PyTree:
        obs = jax.tree.map(lambda s: jnp.zeros((1, 1, *s.shape), s.dtype), obs_spec)
        action = None if action_shape is None else jnp.zeros((1, 1, *action_shape))
        return module.init(key, *inputs(obs, initial(1), jnp.ones((1, 1), bool), action))

    def apply(
        params: PyTree,
        memory: PyTree,
        obs: PyTree,
        first: jax.Array,
        action: jax.Array | None = None,
        rngs: Any = None,
    ) -> tuple[Any, PyTree]:
        return outputs_of(module.apply(params, *inputs(obs, memory, first, action), rngs=rngs))

    def outputs_of(result: Any) -> tuple[Any, PyTree]:
        outputs, memories = result if recurrent_size else (result, ())
        return (_by_head(outputs, heads) if isinstance(out, dict) else outputs), memories

    made = Network(init, apply, apply, initial, recurrent_size > 0, action_shape)
    if remembers or batch_norm or network != "mlp":
        made = _with_batch_norms(
            _with_after(made, module, inputs, outputs_of), network, module, inputs, outputs_of
        )
    return _with_draws(made, apply, noisy, dropout=dropout, levels=split) if draws else made


def _with_after(
    network: Network, module: nn.Module, inputs: Callable, outputs_of: Callable
) -> Network:
    """Add `Network.after`, if a memory has a window."""
    memory = getattr(getattr(module, "body", module), "memory", None)
    if memory is None or not memory.has_window:
        return network

    def after(
        params: PyTree,
        memory: PyTree,
        obs: PyTree,
        first: jax.Array,
        next_obs: PyTree,
        at: jax.Array,
        action: Any,
    ) -> Any:
        given, following = (
            inputs(obs, memory, first, action),
            inputs(next_obs, memory, first, None)[1],
        )
        return outputs_of((module.apply(params, *given, following, at), ()))[0]

    return network._replace(after=after)


def _with_draws(network: Network, apply: Callable[..., Any], noisy: bool, **draws: Any) -> Network:
    """Add the random draws of noisy layers, and in ``apply`` of all ``draws`` that are given, by
    Flax's name.
    """
    network = network._replace(draw_noise=draw_noise) if noisy else network

    def drawing(name: str, key: jax.Array) -> Network:
        draws = partial(apply, rngs={name: key})
        return network._replace(apply=draws, in_loss=draws)

    given: dict[str, Any] = {
        f"with_{name}": partial(drawing, name) for name, on in draws.items() if on
    }
    return network._replace(**given)


def _with_batch_norms(
    network: Network, kind: Torso, module: nn.Module, inputs: Callable, outputs_of: Callable
) -> Network:
    """Let the batch norms of a module, if any, learn in losses, as the FP8 scales of
    `flax.linen.fp8_ops`.
    """
    if STATISTICS not in jax.eval_shape(network.init, jax.random.key(0)):
        return network

    def in_loss(
        params: PyTree,
        memory: PyTree,
        obs: PyTree,
        first: jax.Array,
        action: jax.Array | None = None,
    ) -> tuple[Any, PyTree]:
        given = inputs(obs, memory, first, action)
        result, changed = module.apply(params, *given, learning=True, mutable=[STATISTICS])
        old = params[STATISTICS]
        change = jax.tree.map(
            lambda new, old: jax.lax.stop_gradient(new - old), changed[STATISTICS], old
        )
        return _with_gradient(outputs_of(result), old, change)

    return network._replace(
        in_loss=in_loss, project=hold_unit_norm if kind == "residual" else UNCONSTRAINED
    )


@jax.custom_vjp
def _with_gradient(outputs: PyTree, inputs: PyTree, gradient: PyTree) -> PyTree:
    """Return the outputs; the gradient of the inputs is the given one, whatever the loss."""
    return outputs


_with_gradient.defvjp(
    lambda outputs, inputs, gradient: (outputs, gradient),
    lambda gradient, of_outputs: (of_outputs, gradient, jax.tree.map(jnp.zeros_like, gradient)),
)


def over(one: Network, run: Callable[..., tuple[Any, PyTree]]) -> Network:
    """Change what a network reads and returns, in losses and outside of them.

    Args:
        one: Network.
        run: ``(function, params, memory, obs, first, action=None) -> (outputs, memory)`` with
            ``function`` in place of the network's `Apply`.

    Returns:
        The changed network.
    """
    return one._replace(
        apply=partial(run, one.apply), in_loss=partial(run, one.in_loss), after=None
    )


def ensemble(network: Network, size: int) -> Network:
    """Build an ensemble of networks that differ only in their initial weights.

    Params are a tuple. Without memory, they may also be stacked, ``[size, ...]``, for one batched
    product.

    Args:
        network: Network to repeat.
        size: Number of members.

    Returns:
        A network with outputs ``[size, L, B, out]`` and a memory for each member.
    """

    def init(key: jax.Array) -> PyTree:
        return tuple(network.init(k) for k in jax.random.split(key, size))

    def initial_memory(batch_size: int) -> PyTree:
        return (
            tuple(network.initial_memory(batch_size) for _ in range(size))
            if network.recurrent
            else ()
        )

    def with_dropout(key: jax.Array) -> Network:
        draws = _apply_members(network, size, jax.random.split(key, size))
        return whole._replace(apply=draws, in_loss=draws)

    apply = _apply_members(network, size)
    in_loss = _apply_members(network._replace(apply=network.in_loss), size)
    whole = network._replace(
        init=init, apply=apply, in_loss=in_loss, initial_memory=initial_memory, ensemble_size=size
    )
    if network.after:
        whole = whole._replace(after=partial(_after_members, network.after))
    if network.project is not UNCONSTRAINED:
        whole = whole._replace(project=lambda params: tuple(map(network.project, params)))
    return whole._replace(with_dropout=with_dropout) if network.with_dropout else whole


def _apply_members(network: Network, size: int, keys: jax.Array | None = None) -> Apply:
    """Return the `Apply` of an ensemble, with one key of dropout for each member."""

    def member(key: jax.Array | None) -> Network:
        return network if key is None or network.with_dropout is None else network.with_dropout(key)

    def apply(
        params: PyTree,
        memory: PyTree,
        obs: PyTree,
        first: jax.Array,
        action: jax.Array | None = None,
    ) -> tuple[jax.Array, PyTree]:
        if not isinstance(params, tuple):
            return jax.vmap(lambda own, key: member(key).apply(own, (), obs, first, action)[0])(
                params, keys
            ), ()
        own = memory if network.recurrent else ((),) * size
        each = zip(params, own, (None,) * size if keys is None else keys, strict=True)
        results = [member(key).apply(p, m, obs, first, action) for p, m, key in each]
        outputs, memories = zip(*results, strict=True)
        return jnp.stack(outputs), memories if network.recurrent else ()

    return apply


def _after_members(
    after: Callable[..., Any], params: PyTree, memory: PyTree, *given: Any
) -> jax.Array:
    """Run `Network.after` of each member of an ensemble."""
    return jnp.stack([after(p, m, *given) for p, m in zip(params, memory, strict=True)])


def scalar(init: Callable[[], jax.Array]) -> Network:
    """Build a network of a single trainable number, such as the logarithm of a temperature.

    Args:
        init: Function that returns the initial value.

    Returns:
        A network whose output is the number.
    """

    def apply(
        params: PyTree,
        memory: PyTree,
        obs: PyTree,
        first: jax.Array,
        action: jax.Array | None = None,
    ) -> tuple[jax.Array, PyTree]:
        return params, ()

    return Network(lambda key: init(), apply, apply)


def _by_head(outputs: jax.Array, heads: Heads) -> dict[str, jax.Array]:
    # more than 1 with `QuantileMlp`
    width = outputs.shape[-1] // sum(head.size for head in heads.values())
    ends = list(accumulate(width * head.size for head in heads.values()))
    # Not by indexing, which is a gather where the batch is symbolic, as in an exported file.
    slices = {
        name: (end - width * heads[name].size, end) for name, end in zip(heads, ends, strict=True)
    }
    return {
        name: jax.lax.slice_in_dim(outputs, *limits, axis=-1) for name, limits in slices.items()
    }
