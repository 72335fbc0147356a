"""gymnax worlds. The only file that imports gymnax (https://github.com/RobertTLange/gymnax, 1.0 and later)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import spaces

from jaxrl_fast.core import Box, Discrete, EnvSpec, PyTree, Timestep
from jaxrl_fast.env import Env, no_params

REFUSED = {
    "MNISTBandit-bsuite": "it downloads a data set when made",
}


class GymnaxState(NamedTuple):
    """gymnax's own state, and the parameters of this episode (``()``: the defaults)."""

    world: PyTree
    params: PyTree


def ids() -> list[str]:
    """The registered ids that can run."""
    return sorted(set(gymnax.registered_envs) - set(REFUSED))


def make(id: str, *, episode_length: int | None = None, **options: Any) -> Env:
    """A registered gymnax environment; ``options`` override its default parameters.

    Raises:
        ValueError: the environment is refused, or has no such parameter.
    """
    if id in REFUSED:
        raise ValueError(f"gymnax {id} is not supported: {REFUSED[id]}")
    world, params = gymnax.make(id)
    unknown = set(options) - set(vars(params))
    if unknown:
        raise ValueError(
            f"gymnax {id} has no parameter '{sorted(unknown)[0]}': write one of {', '.join(sorted(vars(params)))}"
        )
    if episode_length is not None:
        options["max_steps_in_episode"] = episode_length
    return adapt(world, params.replace(**options), name=id)


def adapt(
    world: Any, params: Any = None, *, name: str, sample_params: Callable[[jax.Array], PyTree] = no_params
) -> Env:
    """Any object with gymnax's interface as an `Env`.

    ``sample_params(key)`` returns gymnax parameters, drawn anew for every episode.
    """
    default = world.default_params if params is None else params

    def reset(key: jax.Array, params: PyTree) -> tuple[GymnaxState, PyTree]:
        obs, state = world.reset_env(key, default if params == () else params)
        return GymnaxState(jax.tree.map(_strong, state), params), jax.tree.map(one_hot_or_array, obs)

    def step(state: GymnaxState, action: jax.Array, key: jax.Array) -> tuple[GymnaxState, Timestep]:
        params = default if state.params == () else state.params
        obs, following, reward, terminated, _ = world.step_env(key, state.world, action, params)
        following = jax.tree.map(lambda x, old: jnp.asarray(x, old.dtype), following, state.world)
        obs = jax.tree.map(one_hot_or_array, obs)
        terminated = jnp.asarray(terminated, bool).reshape(())
        truncated = jnp.asarray(world.is_truncated(following, params), bool).reshape(()) & ~terminated
        reward = jnp.asarray(reward, jnp.float32).reshape(())
        return GymnaxState(following, params if state.params != () else ()), Timestep(
            obs, obs, reward, terminated, truncated
        )

    obs_space = world.observation_space(default)

    def one_hot_or_array(obs: jax.Array) -> jax.Array:
        obs = jnp.asarray(obs)
        if isinstance(obs_space, spaces.Discrete):
            return jax.nn.one_hot(obs, obs_space.n, dtype=jnp.float32)
        return _strong(obs)

    obs = jax.eval_shape(lambda key: reset(key, sample_params(key))[1], jax.random.key(0))
    limit = getattr(default, "max_steps_in_episode", None)
    spec = EnvSpec(name, obs, _action_space(name, world.action_space(default)), None if limit is None else int(limit))
    return Env(spec, reset, step, sample_params)


def _action_space(name: str, space: Any) -> Discrete | Box:
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    if not isinstance(space, spaces.Box):
        raise ValueError(f"{name} has actions of kind {type(space).__name__}; Discrete and Box are supported")
    low = np.broadcast_to(np.asarray(space.low, np.float32), space.shape)
    high = np.broadcast_to(np.asarray(space.high, np.float32), space.shape)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ValueError(f"{name} has unbounded actions; write a world with finite bounds")
    return Box(low, high)


def _strong(x: Any) -> jax.Array:
    """An array whose dtype no longer follows what it is combined with."""
    x = jnp.asarray(x)
    return jnp.asarray(x, x.dtype)
