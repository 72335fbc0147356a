"""Environments: one world (`Env`), many at once (`VecEnv`), and the step from one to the other (`vectorize`).

Laws that every `VecEnv` obeys, each held by a test:

* environments do not leak into each other;
* after ``terminated | truncated`` the next observation starts a fresh episode, ``next_obs`` stays the true successor;
* an episode's totals survive the border between two rollouts.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import Box, Discrete, EnvSpec, EpisodeTotals, PyTree, Timestep

FRESH_INTERVAL = 8
"""At most this many steps share one row of the bank of initial states (see `VecEnv.draw_fresh`)."""


def no_params(key: jax.Array) -> tuple[()]:
    """The world has no parameters to randomize."""
    del key
    return ()


class Env(NamedTuple):
    """One world, written without a batch axis.

    ``reset(key, params) -> (state, obs)`` and ``step(state, action, key) -> (state, Timestep)`` are pure.
    Parameters ride in the state: ``sample_params(key)`` is drawn anew for every episode (domain randomization)
    and handed to ``reset``. A world sets ``obs`` and ``next_obs`` of its `Timestep` alike: it never resets itself.
    ``shortest_episode``: no episode can be shorter; the larger it is, the fewer initial states need to be drawn.
    """

    spec: EnvSpec
    reset: Callable[[jax.Array, PyTree], tuple[PyTree, PyTree]]
    step: Callable[[PyTree, jax.Array, jax.Array], tuple[PyTree, Timestep]]
    sample_params: Callable[[jax.Array], PyTree] = no_params
    shortest_episode: int = 1


class VecState(NamedTuple):
    """``world``: the states of E worlds; ``episode``: the running totals ``[E]``."""

    world: PyTree
    episode: EpisodeTotals


class VecEnv(NamedTuple):
    """``num_envs`` worlds with time limit, auto-reset and episode statistics.

    ``reset(key) -> (VecState, obs [E, ...])``;
    ``draw_fresh(key, num_steps) -> bank``: initial states for the resets of the next ``num_steps`` steps, drawn
    outside any scan; ``step(state, action [E, ...], key, bank, t) -> (VecState, Timestep)`` with ``t`` the index
    of the step within those. The row of the bank changes every `FRESH_INTERVAL` steps, or sooner where the world's
    ``shortest_episode`` is shorter, so that no episode repeats another's start and no step pays for a reset.
    """

    spec: EnvSpec
    num_envs: int
    reset: Callable[[jax.Array], tuple[VecState, PyTree]]
    draw_fresh: Callable[[jax.Array, int], Any]
    step: Callable[..., tuple[VecState, Timestep]]
    world: Env | None = None


def vectorize(env: Env, *, num_envs: int) -> VecEnv:
    """Run ``num_envs`` copies of one world side by side.

    Raises:
        ValueError: ``num_envs`` is not positive.
    """
    if num_envs < 1:
        raise ValueError(f"num_envs={num_envs}: at least one environment is needed, for example num_envs=64")
    limit = env.spec.max_episode_steps
    fresh_interval = max(1, min(FRESH_INTERVAL, env.shortest_episode, limit or FRESH_INTERVAL))

    def reset_world(key: jax.Array) -> tuple[PyTree, PyTree]:
        params_key, reset_key = jax.random.split(key)
        return env.reset(reset_key, env.sample_params(params_key))

    def reset(key: jax.Array) -> tuple[VecState, PyTree]:
        world, obs = jax.vmap(reset_world)(jax.random.split(key, num_envs))
        return VecState(world, _no_totals(num_envs)), obs

    def draw_fresh(key: jax.Array, num_steps: int) -> PyTree:
        rows = -(-num_steps // fresh_interval)
        return jax.vmap(jax.vmap(reset_world))(jax.random.split(key, (rows, num_envs)))

    def step(
        state: VecState, action: jax.Array, key: jax.Array, bank: PyTree, t: jax.Array
    ) -> tuple[VecState, Timestep]:
        world, timestep = jax.vmap(env.step)(state.world, action, jax.random.split(key, num_envs))
        reward = timestep.reward.astype(jnp.float32)
        episode = EpisodeTotals(state.episode.returns + reward, state.episode.length + 1)
        terminated = timestep.terminated.astype(bool)
        truncated = timestep.truncated.astype(bool)
        if limit is not None:
            truncated |= episode.length >= limit
        truncated &= ~terminated
        done = terminated | truncated
        fresh = jax.tree.map(lambda rows: rows[t // fresh_interval], bank)
        world, obs = select(done, fresh, (world, timestep.next_obs))
        running = select(done, _no_totals(num_envs), episode)
        return VecState(world, running), Timestep(obs, timestep.next_obs, reward, terminated, truncated, episode)

    return VecEnv(env.spec, num_envs, reset, draw_fresh, step, env)


def check_world(env: Env, name: str) -> None:
    """Hold a world written by a user to what `vectorize` expects, before anything is compiled but its reset.

    Raises:
        ValueError: one line that names what is wrong.
    """
    key = jax.random.key(0)
    state, obs = _shapes(name, "reset", lambda: env.reset(key, env.sample_params(key)))
    _require_like(name, "reset gives an observation", obs, "its spec", env.spec.obs)
    action = _an_action(name, env.spec)
    stepped = _shapes(name, "step", lambda state, action: env.step(state, action, key), state, action)
    if not (isinstance(stepped, tuple) and len(stepped) == 2 and isinstance(stepped[1], Timestep)):
        raise ValueError(f"{name}: step must return (state, jaxrl_fast.Timestep)")
    after, timestep = stepped
    _require_like(name, "step gives a state", after, "reset", state)
    _require_like(name, "step gives a next_obs", timestep.next_obs, "its spec", env.spec.obs)
    for field, kinds in (("reward", "real number"), ("terminated", "bool"), ("truncated", "bool")):
        _require_scalar(name, field, getattr(timestep, field), kinds)
    first = jax.jit(lambda key: env.reset(key, env.sample_params(key))[1])(key)
    for leaf in jax.tree.leaves(first):
        if jnp.issubdtype(leaf.dtype, jnp.floating) and not jnp.all(jnp.isfinite(leaf)):
            raise ValueError(f"{name}: reset gives a NaN or an infinity in its observation")


def _shapes(name: str, what: str, function: Callable[..., Any], *args: Any) -> Any:
    try:
        return jax.eval_shape(function, *args)
    except Exception as error:
        raise ValueError(f"{name}: {what} failed: {type(error).__name__}: {str(error).splitlines()[0]}") from error


def _an_action(name: str, spec: EnvSpec) -> jax.ShapeDtypeStruct:
    space = spec.action
    if isinstance(space, Discrete) and space.num_actions >= 1:
        return jax.ShapeDtypeStruct((), jnp.int32)
    if isinstance(space, Box):
        low, high = np.asarray(space.low), np.asarray(space.high)
        if low.shape == high.shape and np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all():
            return jax.ShapeDtypeStruct(low.shape, jnp.float32)
    raise ValueError(
        f"{name}: actions {space!r} are not supported: write Discrete(n) with n >= 1, or Box(low, high) with finite "
        "bounds, low < high"
    )


def _require_like(name: str, what: str, given: PyTree, whose: str, wanted: PyTree) -> None:
    def text(tree: PyTree) -> str:
        shown = jax.tree.map(lambda x: f"{jnp.result_type(x)}{list(jnp.shape(x))}", tree)
        return str(shown).replace("'", "")

    if text(given) != text(wanted):
        raise ValueError(f"{name}: {what} {text(given)}, but {whose} has {text(wanted)}: shapes and dtypes must agree")


def _require_scalar(name: str, field: str, value: Any, kind: str) -> None:
    dtype = jnp.result_type(value)
    real = jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)
    if jnp.shape(value) != () or not (real if kind == "real number" else jnp.issubdtype(dtype, jnp.bool_)):
        raise ValueError(f"{name}: step gives {field} {dtype}{list(jnp.shape(value))}: write one {kind}, shape []")


def select(mask: jax.Array, on_true: PyTree, on_false: PyTree) -> PyTree:
    """Choose whole elements of the leading axis: ``mask`` ``[E]``, leaves ``[E, ...]``."""

    def choose(a: jax.Array, b: jax.Array) -> jax.Array:
        b = jnp.asarray(b)
        return jnp.where(mask.reshape(mask.shape + (1,) * (b.ndim - mask.ndim)), jnp.asarray(a, b.dtype), b)

    return jax.tree.map(choose, on_true, on_false)


def _no_totals(num_envs: int) -> EpisodeTotals:
    return EpisodeTotals(jnp.zeros(num_envs, jnp.float32), jnp.zeros(num_envs, jnp.int32))
