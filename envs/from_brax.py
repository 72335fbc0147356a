"""brax worlds. The only file that imports brax for its environments (https://github.com/google/brax)."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from brax import envs as brax_envs

from jaxrl_fast.core import Box, EnvSpec, PyTree, Timestep
from jaxrl_fast.env import Env

BACKENDS = ("generalized", "positional", "spring", "mjx")
MAX_EPISODE_STEPS = 1000
REFUSED = {
    "swimmer": "brax 0.14.2 calls jnp.clip(a_min=), which JAX 0.10 removed",
}

P = ParamSpec("P")
R = TypeVar("R")


def ids() -> list[str]:
    """The registered ids that run on current JAX."""
    return sorted(set(brax_envs._envs) - set(REFUSED))


def make(id: str, *, backend: str = "spring", episode_length: int = MAX_EPISODE_STEPS, **options: Any) -> Env:
    """A registered brax environment; ``options`` go to its constructor.

    Raises:
        ValueError: the environment is refused, or the backend unknown.
    """
    if id in REFUSED:
        raise ValueError(f"brax {id} does not run on this JAX: {REFUSED[id]}")
    if backend not in BACKENDS:
        raise ValueError(f"env.backend={backend}: write one of {', '.join(BACKENDS)}")
    world = brax_envs.get_environment(id, backend=backend, **options)
    return adapt(world, name=id, max_episode_steps=episode_length)


def adapt(world: brax_envs.Env, *, name: str, max_episode_steps: int | None = MAX_EPISODE_STEPS) -> Env:
    """Any object with brax's interface, unwrapped, as an `Env`. Its actions are taken to lie in [-1, 1]."""
    reset_world, step_world = _relaxed(world.reset), _relaxed(world.step)

    def reset(key: jax.Array, params: PyTree) -> tuple[PyTree, PyTree]:
        state = _weak_types_settled(reset_world(jax.random.key_data(key)))
        return state, state.obs

    def step(state: PyTree, action: jax.Array, key: jax.Array) -> tuple[PyTree, Timestep]:
        following = _like(step_world(state, action), state)
        terminated = following.done.astype(bool)
        return following, Timestep(
            following.obs, following.obs, following.reward, terminated, jnp.zeros_like(terminated)
        )

    obs = jax.eval_shape(lambda key: reset(key, ())[1], jax.random.key(0))
    bound = np.ones(world.action_size, np.float32)
    return Env(EnvSpec(name, obs, Box(-bound, bound), max_episode_steps), reset, step)


def _relaxed(function: Callable[P, R]) -> Callable[P, R]:
    """brax's physics promotes ranks implicitly; our own code runs with that forbidden."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            return function(*args, **kwargs)

    return call


def _weak_types_settled(state: PyTree) -> PyTree:
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.asarray(x).dtype), state)


def _like(state: PyTree, before: PyTree) -> PyTree:
    """Some worlds answer with another dtype than they reset with, which a scan cannot carry."""
    return jax.tree.map(lambda x, old: jnp.asarray(x, old.dtype), state, before)
