"""Memories of networks: recurrent cells, linear recurrences and a Transformer over a window of past
steps.

A memory maps features ``[L, B, F]`` of a sequence to features ``[L, B, any size]`` and its state
after every step, leaves ``[L, B, ...]``. The state is zeros at the start of an episode, and
forgotten where ``first`` ``[L, B]`` is true.
"""

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import PyTree
from jaxrl_fast.networks.convolutions import scaled_normal
from jaxrl_fast.system import fault_of, import_function, names_code, path_of

KINDS = "gru", "lstm", "mingru", "lru", "gtrxl"
"""Names of memories. "gtrxl-64x2", or "gtrxl", is a `GtrXl` with a window of 64 steps and 2 layers.
"""
MAX_WINDOW = 4096


class Memory(NamedTuple):
    """One kind of memory of one size.

    Attributes:
        initial: ``(batch_size) -> state`` at the start of an episode, leaves ``[batch_size, ...]``.
        run: ``(state, x, first) -> (features, state after every step)``, inside of a module of
            Flax.
        has_window: Whether the state is a window of past steps. Then
            ``run(state, x, first, after, at)`` returns the features ``[N, B, any size]`` at inputs
            ``after`` ``[N, B, F]`` that each follow step ``at`` ``[N, B]`` of the sequence, without
            the state after every step.
    """

    initial: Callable[[int], PyTree]
    run: Callable[..., Any]
    has_window: bool = False


def make_memory(kind: Any, size: int) -> Memory:
    """Build a memory.

    Args:
        kind: One of `KINDS`; or a function, or its path ``my_package.make``: ``(size) -> module``
            of Flax, which is a `flax.linen.RNNCellBase`, or maps
            ``(state, x [L, B, F], first [L, B])`` to features ``[L, B, any size]`` and the state
            after every step, and has ``initial_state(batch_size)``.
        size: Number of units.

    Returns:
        The memory.

    Raises:
        ValueError: Unknown kind, sizes that are not positive, or a function that fails or returns
            something else.
    """
    if size < 1:
        raise ValueError(
            f"memory={path_of(kind) if callable(kind) else kind} needs a size: write recurrent_size=64"
        )
    if not isinstance(kind, str) or names_code(kind):
        make = import_function(kind, "algo.memory") if isinstance(kind, str) else kind
        return _own_memory(make, size, f"memory={path_of(make)}")
    if kind.startswith("gtrxl"):
        made = partial(GtrXl, size, *_window_and_layers(kind))
        return _memory_of(made)._replace(has_window=True)
    if kind not in KINDS:
        raise ValueError(
            f"memory={kind}: write gru, lstm, mingru, lru, gtrxl, gtrxl-64x2 or my_package.make"
        )
    gru = partial(nn.GRUCell, recurrent_kernel_init=scaled_normal(1.0))
    kinds: dict[str, Callable[[int], Any]] = dict(
        gru=gru, lstm=nn.OptimizedLSTMCell, mingru=MinGru, lru=Lru
    )
    return _memory_of(partial(kinds[kind], size))


class WithMemory(nn.Module):
    """A memory over the sequence, followed by a ``head`` such as `network.Mlp`, which also reads an
    action if given.
    """

    memory: Memory
    head: Any

    @nn.compact
    def __call__(
        self,
        state: PyTree,
        x: jax.Array,
        first: jax.Array,
        action: jax.Array | None = None,
        *following: jax.Array,
        learning: bool = False,
    ) -> Any:
        """Return outputs and states; with ``following``, ``(after, at)`` of `Memory.has_window`,
        outputs alone.
        """
        result = self.memory.run(state, x, first, *following)
        remembered, states = (result, None) if following else result
        remembered = (
            remembered if action is None else jnp.concatenate([action, remembered], axis=-1)
        )
        outputs = self.head(remembered, learning=learning)
        return outputs if following else (outputs, states)


def _memory_of(make: Callable[[], Any]) -> Memory:
    """Return the memory of a cell or module; the module of the first call is only asked for its
    state.
    """
    module = make()
    if not isinstance(module, nn.RNNCellBase):
        return Memory(module.initial_state, lambda *inputs: make()(*inputs))
    shapes = jax.eval_shape(lambda: module.initialize_carry(jax.random.key(0), (1, 1)))
    return Memory(partial(_zeros, shapes), lambda *inputs: over_steps(make(), *inputs))


def _own_memory(make: Callable[[int], Any], size: int, name: str) -> Memory:
    """Return a user's memory, whose faults are errors of one line."""
    try:
        module = make(size)
    except Exception as error:
        raise ValueError(f"{name} failed: {fault_of(error)}") from error
    if not isinstance(module, nn.Module) or not (
        isinstance(module, nn.RNNCellBase) or hasattr(module, "initial_state")
    ):
        raise ValueError(
            f"{name} returned {type(module).__name__}: return a flax.linen.RNNCellBase, or a module with "
            "initial_state(batch_size)"
        )
    try:
        memory = _memory_of(partial(make, size))
        memory.initial(1)
    except Exception as error:
        raise ValueError(
            f"{name} has no state at the start of an episode: {fault_of(error)}"
        ) from error

    def run(state: PyTree, x: jax.Array, first: jax.Array) -> tuple[jax.Array, PyTree]:
        try:
            features, states = memory.run(state, x, first)
        except Exception as error:
            raise ValueError(f"{name} fails with x {jnp.shape(x)}: {fault_of(error)}") from error
        wanted = jax.tree.map(lambda old: (*first.shape, *old.shape[1:]), state)
        shape, state_shapes = getattr(features, "shape", ()), jax.tree.map(jnp.shape, states)
        if shape[:-1] != first.shape or state_shapes != wanted:
            raise ValueError(
                f"{name} returns features {shape} and states {state_shapes} for x {jnp.shape(x)}: write features "
                f"{(*first.shape, size)}, of any last size, and states {wanted}"
            )
        return features, states

    return memory._replace(run=run)


def _zeros(shapes: PyTree, batch_size: int) -> PyTree:
    return jax.tree.map(lambda one: jnp.zeros((batch_size, *one.shape[1:]), one.dtype), shapes)


def _window_and_layers(kind: str) -> tuple[int, int]:
    sizes = re.fullmatch(r"gtrxl-(\d+)x(\d+)", "gtrxl-64x2" if kind == "gtrxl" else kind)
    window, layers = map(int, sizes.groups()) if sizes else (0, 0)
    if not (1 <= window <= MAX_WINDOW and layers >= 1):
        raise ValueError(
            f"memory={kind}: write gtrxl-64x2 for a window of 64 steps (1 to {MAX_WINDOW}) and 2 layers"
        )
    return window, layers


def over_steps(
    cell: nn.RNNCellBase, state: PyTree, x: jax.Array, first: jax.Array
) -> tuple[jax.Array, PyTree]:
    """Run a cell on one step after another.

    Args:
        cell: Cell.
        state: State before the first step, leaves ``[B, ...]``.
        x: Features ``[L, B, F]``.
        first: Whether a step begins an episode, ``[L, B]``.

    Returns:
        Features ``[L, B, size]`` and the state after every step, leaves ``[L, B, ...]``.
    """

    def step(cell: nn.RNNCellBase, state: PyTree, xs: tuple) -> tuple[PyTree, tuple]:
        x_t, first_t = xs
        state, features = cell(jax.tree.map(partial(_forgetting, first_t), state), x_t)
        return state, (features, state)

    scan = nn.scan(step, variable_broadcast="params", split_rngs={"params": False})
    return scan(cell, state, (x, first))[1]


def _forgetting(first: jax.Array, state: jax.Array) -> jax.Array:
    return jnp.where(first.reshape(-1, *(1,) * (state.ndim - 1)), jnp.zeros_like(state), state)


Product = Callable[[jax.Array, jax.Array], jax.Array]
"""(factors, values) -> values, both ``[..., size]``; associative."""


def linear_recurrence(
    factor: jax.Array, added: jax.Array, start: jax.Array, product: Product
) -> jax.Array:
    """Compute ``h_t = product(factor_t, h_{t-1}) + added_t`` of all steps.

    On a CPU one step after another, 1.1 to 3.5 times as fast there (gradients of 128 steps of 16
    environments, 64 and 256 units; 2 cores, AMD EPYC of family 26); elsewhere in logarithmic depth.

    Args:
        factor: Factors ``[L, B, size]``.
        added: Summands ``[L, B, size]``.
        start: ``h_0``, ``[B, size]``.
        product: Multiplies.

    Returns:
        ``h_1`` to ``h_L``, ``[L, B, size]``.

    Source: Blelloch (1990), Prefix sums and their applications, section 1.4.
    """
    if len(factor) == 1:
        return (product(factor[0], start) + added[0])[None]
    choose = jax.lax.platform_dependent
    return choose(
        factor, added, start, cpu=partial(_by_steps, product), default=partial(_by_halves, product)
    )


def _by_steps(product: Product, factor: jax.Array, added: jax.Array, start: jax.Array) -> jax.Array:
    """Compute a `linear_recurrence` by one step after another."""

    def step(state: jax.Array, xs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        state = product(xs[0], state) + xs[1]
        return state, state

    return jax.lax.scan(step, start, (factor, added))[1]


def _by_halves(
    product: Product, factor: jax.Array, added: jax.Array, start: jax.Array
) -> jax.Array:
    """Compute a `linear_recurrence` by an associative scan."""

    def joined(early: tuple, late: tuple) -> tuple[jax.Array, jax.Array]:
        return product(late[0], early[0]), product(late[0], early[1]) + late[1]

    added = added.at[0].add(product(factor[0], start))
    return jax.lax.associative_scan(joined, (factor, added))[1]


def complex_product(a: jax.Array, b: jax.Array) -> jax.Array:
    """Multiply complex numbers, whose real parts come before the imaginary parts on the last axis.

    Args:
        a: Numbers ``[..., 2 N]``.
        b: Numbers ``[..., 2 N]``.

    Returns:
        Products ``[..., 2 N]``.
    """
    (a_re, a_im), (b_re, b_im) = jnp.split(a, 2, axis=-1), jnp.split(b, 2, axis=-1)
    return jnp.concatenate([a_re * b_re - a_im * b_im, a_re * b_im + a_im * b_re], axis=-1)


MOST_STEPS = 100.0
"""A `MinGru`'s units at first forget over 2 to about so many steps."""


class MinGru(nn.Module):
    """A GRU whose gate and candidate do not read its state, so that it is a `linear_recurrence`.

    Its gates begin with spans from short to long, as their biases cannot come from the state; as
    many spans are from 1 to 10 steps as from 10 to 100. (Tallec and Ollivier have more long ones,
    with which Pendulum without its velocity takes three times as many steps.)

    Source: Feng et al. (2024), section 3.1, arXiv 2410.01201; biases: Tallec and Ollivier (2018),
    section 2, arXiv 1804.11188.
    """

    size: int

    @nn.compact
    def __call__(
        self, state: jax.Array, x: jax.Array, first: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        gate, candidate = jnp.split(_dense(x, 2 * self.size), 2, axis=-1)
        gate = nn.sigmoid(gate - self.param("log_steps", _log_steps, (self.size,))[None, None])
        states = linear_recurrence(
            jnp.where(first[..., None], 0.0, 1.0 - gate), gate * candidate, state, jnp.multiply
        )
        return states, states

    def initial_state(self, batch_size: int) -> jax.Array:
        """Return the state ``[batch_size, size]`` at the start of an episode."""
        return jnp.zeros((batch_size, self.size), jnp.float32)


def _log_steps(key: jax.Array, shape: tuple[int], dtype: Any = jnp.float32) -> jax.Array:
    """Draw the logarithms of spans of 1 to `MOST_STEPS`, uniformly."""
    return jax.random.uniform(key, shape, dtype, 0.0, math.log(MOST_STEPS))


LEAST_RADIUS, MOST_RADIUS = 0.9, 0.999
"""Range of the initial absolute values of an `Lru`'s eigenvalues: memories of 10 to 1,000 steps."""


class Lru(nn.Module):
    """A linear recurrent unit: a complex diagonal recurrence, stored as pairs of reals, between two
    linear layers.

    Source: Orvieto et al. (2023), section 3 and appendix A, arXiv 2303.06349.
    """

    size: int

    @nn.compact
    def __call__(
        self, state: jax.Array, x: jax.Array, first: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        decay = jnp.exp(-jnp.exp(self.param("log_decay", _log_decays, (self.size,))))
        angle = self.param("angle", nn.initializers.uniform(2.0 * math.pi), (self.size,))
        factor = jnp.concatenate([decay * jnp.cos(angle), decay * jnp.sin(angle)])
        # inputs of variance 1 then give states of variance 1
        scale = jnp.sqrt(1.0 - jnp.square(decay))
        added = (
            _dense(x, 2 * self.size, use_bias=False) * jnp.concatenate([scale, scale])[None, None]
        )
        factors = jnp.where(first[..., None], 0.0, jnp.broadcast_to(factor, added.shape))
        states = linear_recurrence(factors, added, state, complex_product)
        return _dense(states, self.size) + _dense(x, self.size, use_bias=False), states

    def initial_state(self, batch_size: int) -> jax.Array:
        """Return the state ``[batch_size, 2 size]`` at the start of an episode."""
        return jnp.zeros((batch_size, 2 * self.size), jnp.float32)


def _log_decays(key: jax.Array, shape: tuple[int], dtype: Any = jnp.float32) -> jax.Array:
    """Draw ``log(-log(radius))`` of radii that are uniform by area."""
    return jnp.log(
        -0.5 * jnp.log(jax.random.uniform(key, shape, dtype, LEAST_RADIUS**2, MOST_RADIUS**2))
    )


def _dense(x: jax.Array, size: int, *, use_bias: bool = True) -> jax.Array:
    """Run a dense layer over ``[..., F]`` as one product of rows."""
    rows = x.reshape(-1, x.shape[-1])
    return nn.Dense(size, use_bias, kernel_init=scaled_normal(1.0))(rows).reshape(
        *x.shape[:-1], size
    )


NUM_HEADS, GATE_BIAS = 4, 2.0
"""Of a `GtrXl`: most attention heads, and the bias by which its gates pass their input at first
(section 3.2).
"""


class GtrXl(nn.Module):
    """A gated Transformer-XL, which attends to the last ``window`` steps of the episode.

    Gates are GRUs, layer norms precede attention and dense layers, and positions are relative
    (arXiv 1901.02860, section 3.3). No gradient reaches the window before the sequence. The state
    has ``hidden``, the inputs of all layers at the past steps, oldest first,
    ``[B, W, layers * size]``, and ``valid``, 1 where a step is of the episode.

    Source: Parisotto et al. (2020), sections 3.1 and 3.2, arXiv 1910.06764.
    """

    size: int
    window: int
    layers: int

    @nn.compact
    def __call__(
        self,
        state: dict[str, jax.Array],
        x: jax.Array,
        first: jax.Array,
        after: jax.Array | None = None,
        at: jax.Array | None = None,
    ) -> Any:
        """Return features and states, or only the features at ``after`` (`Memory.has_window`)."""
        length = len(x)
        begun = first.astype(jnp.float32)
        episode = begun if length == 1 else jnp.cumsum(begun, axis=0)
        # [W + L, B]
        episodes = jnp.concatenate([jnp.where(state["valid"].T > 0.0, 0.0, -1.0), episode])
        past = jax.lax.stop_gradient(
            jnp.split(state["hidden"].swapaxes(0, 1), self.layers, axis=-1)
        )
        embed = nn.Dense(self.size, kernel_init=scaled_normal(1.0), name="embed")
        hidden, queries, entered = embed(x), None if after is None else embed(after), []
        steps = jnp.broadcast_to(jnp.arange(length)[:, None], first.shape)
        now = None, _view(steps - 1, episode, episodes, self.window)[1]
        later = (
            None
            if at is None
            else _view(at, jnp.take_along_axis(episode, at, axis=0), episodes, self.window)
        )
        for i in range(self.layers):
            block = Block(self.size, self.window, name=f"layer_{i}")
            context = jnp.concatenate([past[i], hidden])
            entered.append(context)
            queries = (
                queries if queries is None or later is None else block(queries, context, *later)
            )
            hidden = block(hidden, context, *now)
        if queries is not None:
            return queries
        return hidden, _windows(jnp.concatenate(entered, axis=-1), episodes, length, self.window)

    def initial_state(self, batch_size: int) -> dict[str, jax.Array]:
        """Return the state at the start of an episode."""
        hidden = jnp.zeros((batch_size, self.window, self.layers * self.size), jnp.float32)
        return {"hidden": hidden, "valid": jnp.zeros((batch_size, self.window), jnp.float32)}


def _view(
    at: jax.Array, episode: jax.Array, episodes: jax.Array, window: int
) -> tuple[jax.Array, jax.Array]:
    """Return what queries after the steps ``at`` ``[N, B]`` see of the context of W + L steps.

    Returns:
        W less the distance, 1 to W, to each step of the context, ``[B, 1, N, W + L]``, and whether
        it is seen.
    """
    index = jnp.arange(len(episodes))[None, None] - at.T[..., None] - 1
    visible = (index >= 0) & (index < window) & (episode.T[..., None] == episodes.T[:, None])
    return jnp.clip(index, 0, window - 1)[:, None], visible[:, None]


def _windows(
    entered: jax.Array, episodes: jax.Array, length: int, window: int
) -> dict[str, jax.Array]:
    """Return the states after every step, with leaves ``[L, B, W, ...]``."""
    index = np.arange(length)[:, None] + 1 + np.arange(window)[None]
    hidden, of = (
        jax.lax.slice_in_dim(x, 1, None)[None] if length == 1 else x[index]
        for x in (entered, episodes)
    )
    valid = (of == jax.lax.slice_in_dim(episodes, window, None)[:, None]).astype(jnp.float32)
    return {"hidden": hidden.swapaxes(1, 2), "valid": valid.swapaxes(1, 2)}


class Block(nn.Module):
    """A layer of a `GtrXl`: attention to a context, then two dense layers, each added through a
    gate.
    """

    size: int
    window: int

    @nn.compact
    def __call__(
        self, inputs: jax.Array, context: jax.Array, index: Any, visible: jax.Array
    ) -> jax.Array:
        """Map inputs ``[N, B, size]`` to outputs; ``context`` is ``[W + L, B, size]``, the others
        are of `_view`.

        ``index`` is None where the query n follows the step n - 1.
        """
        norm = nn.LayerNorm(name="norm_attention")
        attended = nn.relu(
            Attention(self.size, self.window)(norm(inputs), norm(context), index, visible)
        )
        inputs = Gate(self.size, name="gate_attention")(inputs, attended)
        inside = nn.relu(nn.Dense(self.size)(nn.LayerNorm()(inputs)))
        return Gate(self.size, name="gate_dense")(inputs, nn.relu(nn.Dense(self.size)(inside)))


class Attention(nn.Module):
    """Attention of steps to themselves and to a context, by content and by distance."""

    size: int
    window: int

    @nn.compact
    def __call__(
        self, inputs: jax.Array, context: jax.Array, index: Any, visible: jax.Array
    ) -> jax.Array:
        heads = math.gcd(NUM_HEADS, self.size)
        by_head = lambda x: x.reshape(*x.shape[:2], heads, self.size // heads).transpose(1, 2, 0, 3)  # noqa: E731
        dense = partial(nn.Dense, self.size, use_bias=False, kernel_init=scaled_normal(1.0))
        keys, values = dense(name="key"), dense(name="value")
        query = by_head(dense(name="query")(inputs))  # [B, H, N, D]
        sinusoids = jnp.asarray(_sinusoids(self.window + 1, self.size))[:, None]
        places = by_head(dense(name="place")(sinusoids))[0]  # [H, W + 1, D]
        bias = partial(
            self.param, init_fn=nn.initializers.zeros, shape=(1, 1, heads, self.size // heads)
        )
        by_content, by_place = (
            query + bias(name).swapaxes(1, 2) for name in ("content", "distance")
        )
        further, nearest = _split_last(jnp.einsum("bhnd,hjd->bhnj", by_place, places))
        further = (
            _shifted(further) if index is None else jnp.take_along_axis(further, index, axis=-1)
        )
        # [B, H, N, W + L]
        apart = jnp.einsum("bhnd,bhjd->bhnj", by_content, by_head(keys(context))) + further
        apart = jnp.where(visible, apart, -1e9)
        itself = jnp.sum(by_content * by_head(keys(inputs)), axis=-1, keepdims=True) + nearest
        most = jax.lax.stop_gradient(jnp.maximum(jnp.max(apart, axis=-1, keepdims=True), itself))
        of_context, of_itself = (
            jnp.exp((x - most) / math.sqrt(query.shape[-1])) for x in (apart, itself)
        )
        read = jnp.einsum(
            "bhnj,bhjd->bhnd", of_context, by_head(values(context))
        ) + of_itself * by_head(values(inputs))
        read = read / (jnp.sum(of_context, axis=-1, keepdims=True) + of_itself)
        return dense(name="out")(read.transpose(2, 0, 1, 3).reshape(inputs.shape))


def _shifted(x: jax.Array) -> jax.Array:
    """Move row ``n`` of ``x [B, H, N, W]`` by ``n`` places to the right, among ``W + N`` places."""
    rows, width = x.shape[2], x.shape[2] + x.shape[3]
    wide = jnp.concatenate([x, jnp.zeros_like(x, shape=(*x.shape[:3], rows + 1))], axis=-1)
    # a row is one place longer than the rows that are cut
    flat = wide.reshape(*x.shape[:2], rows * (width + 1))
    return jax.lax.slice_in_dim(flat, 0, rows * width, axis=-1).reshape(*x.shape[:3], width)


def _split_last(x: jax.Array) -> list[jax.Array]:
    """Split off the last element of the last axis. Indexing would be a gather where the batch is
    symbolic.
    """
    return jnp.split(x, [x.shape[-1] - 1], axis=-1)


def _sinusoids(count: int, size: int) -> np.ndarray:
    """Return sines and cosines of the distances ``count - 1`` to 0, ``[count, size]``."""
    rates = 1e4 ** (-np.arange((size + 1) // 2) / ((size + 1) // 2))
    angles = np.arange(count)[::-1, None] * rates[None]
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)[:, :size].astype(np.float32)


class Gate(nn.Module):
    """A GRU that adds ``y`` to ``x``, open for ``x`` at first."""

    size: int

    @nn.compact
    def __call__(self, x: jax.Array, y: jax.Array) -> jax.Array:
        dense = partial(nn.Dense, kernel_init=scaled_normal(1.0), use_bias=False)
        of_y, of_x = (
            jnp.split(dense(3 * self.size)(y), 3, axis=-1),
            jnp.split(dense(2 * self.size)(x), 2, axis=-1),
        )
        bias = self.param("bias", nn.initializers.constant(GATE_BIAS), (self.size,))
        reset, update = (
            nn.sigmoid(of_y[0] + of_x[0]),
            nn.sigmoid(of_y[1] + of_x[1] - bias[None, None]),
        )
        candidate = jnp.tanh(of_y[2] + dense(self.size)(reset * x))
        return (1.0 - update) * x + update * candidate
