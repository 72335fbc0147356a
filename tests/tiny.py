"""Worlds small enough that compiling them costs next to nothing."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import Box, Discrete, EnvSpec, Timestep
from jaxrl_fast.env import Env, VecEnv, vectorize

OBS = jax.ShapeDtypeStruct((2,), jnp.float32)


def line(*, discrete: bool, num_envs: int = 4, limit: int = 5) -> VecEnv:
    """A point on a line that is paid for staying near 0; falling off at 3 terminates, ``limit`` steps truncate."""
    action = Discrete(2) if discrete else Box(np.full(1, -2.0, np.float32), np.full(1, 1.0, np.float32))

    def observe(x: jax.Array) -> jax.Array:
        return jnp.stack([x, 5.0 + 2.0 * x])

    def reset(key: jax.Array, params: tuple) -> tuple[jax.Array, jax.Array]:
        x = jax.random.uniform(key, (), jnp.float32, -1.0, 1.0)
        return x, observe(x)

    def step(x: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Timestep]:
        push = 2.0 * action.astype(jnp.float32) - 1.0 if discrete else action[0]
        x = x + push
        off = jnp.abs(x) > 3.0
        obs = observe(x)
        return x, Timestep(obs, obs, 1.0 - jnp.abs(x), off, jnp.zeros_like(off))

    return vectorize(Env(EnvSpec("line", OBS, action, limit), reset, step), num_envs=num_envs)
