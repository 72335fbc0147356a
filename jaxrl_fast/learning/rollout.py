"""Rollouts of compiled environments: `unroll`, the only scan over environment steps in training,
and packed outputs.
"""

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import Metrics, PyTree, Transition, on_every_device
from jaxrl_fast.envs.env import Index, VecEnv, VecState
from jaxrl_fast.runtime.graph import Channels, Fragment

MAX_NUMBERS = 1024
"""Largest number of elements of each environment's array that is packed; larger arrays, such as
images, stay separate.
"""
WORDS = (jnp.float32, jnp.int32, jnp.uint32)
"""Types that are stored bit by bit; bools become words too."""


class PackedStep(NamedTuple):
    """A step in the outputs of a scan.

    Attributes:
        words: Packed leaves, uint32 ``[E, W]``.
        others: All other leaves, in order.
    """

    words: jax.Array
    others: tuple[jax.Array, ...]


def pack_step(step: PyTree) -> PackedStep:
    """Pack the leaves of a step.

    Args:
        step: Leaves ``[E, ...]``.

    Returns:
        The packed step.
    """
    leaves = jax.tree.leaves(step)
    packed = [_as_words(leaf) for leaf in leaves if is_packed(leaf)]
    return PackedStep(
        jnp.concatenate(packed, axis=1), tuple(leaf for leaf in leaves if not is_packed(leaf))
    )


def unpack_steps(packed: PackedStep, like: PyTree) -> PyTree:
    """Unpack the steps that a scan has stacked.

    Args:
        packed: Packed steps with a leading axis ``T``.
        like: Shapes of one step, ``[E, ...]``.

    Returns:
        Leaves ``[T, E, ...]``.
    """
    shapes, structure = jax.tree.flatten(like)
    others, start, leaves = iter(packed.others), 0, []
    for shape in shapes:
        if not is_packed(shape):
            leaves.append(next(others))
            continue
        width = prod(shape.shape[1:])
        words = packed.words[..., start : start + width]
        leaves.append(_from_words(words.reshape(*words.shape[:1], *shape.shape), shape.dtype))
        start += width
    return jax.tree.unflatten(structure, leaves)


def is_packed(leaf: Any) -> bool:
    """Return whether a leaf is packed.

    Args:
        leaf: Array or shape ``[E, ...]``.

    Returns:
        True for small arrays of `WORDS` or bools.
    """
    return leaf.dtype in (*WORDS, jnp.bool_) and prod(leaf.shape[1:]) <= MAX_NUMBERS


def _as_words(leaf: jax.Array) -> jax.Array:
    flat = leaf.reshape(leaf.shape[0], -1)
    return (
        flat.astype(jnp.uint32)
        if leaf.dtype == jnp.bool_
        else jax.lax.bitcast_convert_type(flat, jnp.uint32)
    )


def _from_words(words: jax.Array, dtype: Any) -> jax.Array:
    return (
        words.astype(jnp.bool_)
        if dtype == jnp.bool_
        else jax.lax.bitcast_convert_type(words, dtype)
    )


ActInRollout = Callable[[PyTree, PyTree, jax.Array, jax.Array], tuple[jax.Array, PyTree, PyTree]]
"""(carry and obs ``[E, ...]``, first ``[E]`` as in `SamplerState`, key) -> (actions ``[E, ...]``,
carry of the next step, extras ``[E, ...]`` to store in the rollout).
"""


class SamplerState(NamedTuple):
    """State of sampling between rollouts.

    Attributes:
        env: State of the environments.
        obs: Observations that the policy acts on next, ``[E, ...]``.
        first: Whether ``obs`` begins an episode, bool ``[E]``.
        carry: Recurrent memory and frame stacks of the policy, ``[E, ...]``.
        row: Initial states and observations ``[E, ...]`` that last over several rollouts, or
            ``()``.
    """

    env: VecState
    obs: PyTree
    first: jax.Array
    carry: PyTree
    row: PyTree = ()


def start(env: VecEnv, carry: PyTree, key: jax.Array) -> SamplerState:
    """Reset every environment.

    Args:
        env: Environments.
        carry: Initial carry of the policy, ``[E, ...]``.
        key: Random key.

    Returns:
        The state before the first step.
    """
    state, obs = env.reset(key)
    return SamplerState(state, obs, jnp.ones(env.num_envs, bool), carry)


def unroll(
    env: VecEnv,
    act: Callable,
    state: SamplerState,
    key: jax.Array,
    num_steps: int,
    scan: Callable = jax.lax.scan,
) -> tuple[SamplerState, Transition, Metrics]:
    """Take ``num_steps`` (T) steps in every environment.

    Args:
        env: Environments.
        act: Action selection, `ActInRollout`.
        state: State to start from.
        key: Random key.
        num_steps: Steps of each environment.
        scan: Runs the steps, as `jax.lax.scan` or `scan_packed`.

    Returns:
        The next state, the rollout ``[T, E, ...]``, and metrics: sums over the episodes that ended
        in the rollout, and ``nonfinite_step``, the first step with an observation or reward that is
        not finite, or -1.
    """
    bank_key, scan_key = jax.random.split(key)
    bank = env.draw_fresh(bank_key, num_steps)

    def step(
        state: SamplerState, xs: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[SamplerState, tuple]:
        t, act_key, env_key = xs
        action, carry, extras = act(state.carry, state.obs, state.first, act_key)
        # Devices with separate agents all step the whole environment, which avoids transfers of its
        # parts.
        env_state, ts = on_every_device(
            env.step(state.env, on_every_device(action), env_key, bank, t)
        )
        done = ts.terminated | ts.truncated
        transition = Transition(
            obs=state.obs,
            action=action,
            reward=ts.reward,
            next_obs=ts.next_obs,
            terminated=ts.terminated,
            truncated=ts.truncated,
            first=state.first,
            extras=extras,
        )
        return SamplerState(env_state, ts.obs, done, carry), (transition, ts.episode)

    keys = jax.vmap(jax.random.split)(jax.random.split(scan_key, num_steps))
    end, (transitions, episodes) = scan(
        step, state, (jnp.arange(num_steps), keys[:, 0], keys[:, 1])
    )
    metrics = env.sums(transitions.terminated | transitions.truncated, episodes)
    return end, transitions, metrics | {"nonfinite_step": first_nonfinite(transitions)}


def scan_packed(step: Callable, state: SamplerState, xs: PyTree) -> tuple[SamplerState, tuple]:
    """Scan like `jax.lax.scan`, with the small outputs of each step stored as one array
    (`PackedStep`).

    Args:
        step: Step of the scan.
        state: Initial state.
        xs: Inputs of the steps.

    Returns:
        Final state and stacked outputs.
    """
    shapes: list[PyTree] = []

    def packed(state: SamplerState, x: PyTree) -> tuple[SamplerState, PackedStep]:
        state, outputs = step(state, x)
        shapes[:] = [jax.eval_shape(lambda: outputs)]
        return state, pack_step(outputs)

    end, steps = jax.lax.scan(packed, state, xs)
    return end, unpack_steps(steps, shapes[0])


def scan_sequences(
    every: int, scan: Callable, step: Callable, state: SamplerState, xs: PyTree
) -> tuple:
    """Scan over steps that store the policy's memory only before every ``every``-th step.

    Args:
        every: Steps between two stored memories, a divisor of the number of steps.
        scan: Scan over the steps between them.
        step: Step of the scan.
        state: Initial state.
        xs: Inputs of the steps, leaves ``[T, ...]``.

    Returns:
        Final state and stacked outputs ``[T, ...]``, with the memories ``[T / every, ...]`` in
        ``Extras.memory``.
    """

    def without_memory(state: SamplerState, x: PyTree) -> tuple[SamplerState, tuple]:
        state, (transition, episode) = step(state, x)
        return state, (transition._replace(extras=transition.extras._replace(memory={})), episode)

    def sequence(state: SamplerState, xs: PyTree) -> tuple[SamplerState, tuple]:
        end, outputs = scan(without_memory, state, xs)
        return end, (state.carry.memory, outputs)

    cut = jax.tree.map(lambda x: x.reshape(-1, every, *x.shape[1:]), xs)
    end, (memory, outputs) = jax.lax.scan(sequence, state, cut)
    transitions, episodes = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), outputs)
    return end, (transitions._replace(extras=transitions.extras._replace(memory=memory)), episodes)


def sample_compiled(
    make: Callable[[VecEnv], Fragment], env: VecEnv, rollout_length: int
) -> Fragment:
    """Build a fragment that samples. Where initial states last over several ticks, it draws them
    only then.

    Args:
        make: ``(env) -> fragment`` whose step calls `unroll` and whose state is a `SamplerState`.
        env: Compiled environments.
        rollout_length: Steps of each environment in a tick.

    Returns:
        The fragment.
    """
    plain, ticks = make(env), env.steps_per_draw // rollout_length
    return plain if ticks < 2 else _with_lasting_row(plain, make, env, rollout_length)


def _with_lasting_row(
    plain: Fragment, make: Callable[[VecEnv], Fragment], env: VecEnv, rollout_length: int
) -> Fragment:
    """Build a fragment that draws initial states once in so many ticks."""
    ticks = env.steps_per_draw // rollout_length

    def draw(key: jax.Array) -> PyTree:
        return jax.tree.map(lambda rows: rows[0], env.draw_fresh(key, ticks * rollout_length))

    def init(key: jax.Array) -> SamplerState:
        empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(draw, key))
        return plain.init(key)._replace(row=empty)

    def step(
        private: SamplerState, inputs: Channels, hyper: Any, key: jax.Array, turn: jax.Array
    ) -> tuple:
        since = turn % ticks
        # Several seeds share one count of ticks, so this stays a condition: a reset may cost
        # hundreds of steps.
        row = jax.lax.cond(since == 0, draw, lambda key: private.row, jax.random.split(key)[0])

        def step_later(
            state: VecState, action: jax.Array, key: jax.Array, bank: PyTree, t: Index
        ) -> tuple:
            return env.step(state, action, key, bank, since * rollout_length + t)

        stored = env._replace(
            draw_fresh=lambda key, steps: jax.tree.map(lambda x: x[None], row), step=step_later
        )
        own_step: Callable[..., tuple] = make(stored).step
        after, channels, metrics = own_step(private._replace(row=()), inputs, hyper, key)
        return after._replace(row=row), channels, metrics

    return plain._replace(init=init, step=step, counts=True)


def first_nonfinite(transitions: Transition) -> jax.Array:
    """Find the first step with a NaN or infinity in its next observation or reward.

    Args:
        transitions: Rollout ``[T, E, ...]``.

    Returns:
        Its index, or -1.
    """
    bad = jnp.zeros(transitions.reward.shape[0], bool)
    for leaf in jax.tree.leaves((transitions.next_obs, transitions.reward)):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            bad |= ~jnp.all(jnp.isfinite(leaf), axis=tuple(range(1, leaf.ndim)))
    return jnp.where(jnp.any(bad), jnp.argmax(bad), -1).astype(jnp.int32)
