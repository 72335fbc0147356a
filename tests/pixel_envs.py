"""Image environments: one that can be solved only from the motion between two images, and one of
random bytes.
"""

import jax
import jax.numpy as jnp

from jaxrl_fast.core import Box, Discrete, EnvSpec, Timestep
from jaxrl_fast.envs.env import Env

SIDE = 8
IMAGE = jax.ShapeDtypeStruct((SIDE, SIDE, 1), jnp.uint8)
UNIT = Box(-jnp.ones(1), jnp.ones(1))


def dot(row: jax.Array, column: jax.Array) -> jax.Array:
    """Draw a bright pixel on black."""
    return jnp.zeros((SIDE, SIDE, 1), jnp.uint8).at[row, column].set(255)


def motion(*, discrete: bool = True, frame_stack: int = 2) -> Env:
    """Show a dot for two steps; it moves to the left or to the right between them.

    The second action is paid for naming the direction: 1 for action 1 after a move to the right and
    for action 0 after a move to the left; or -(a - d / 2)², with d = ±1. The dot's last position
    alone gives no information: both directions are equally likely.
    """

    def reset(key, params):
        place_key, side_key = jax.random.split(key)
        row, column = jax.random.randint(place_key, (2,), 1, SIDE - 1)
        direction = jax.random.rademacher(side_key, (), jnp.int32)
        return (row, column, direction, jnp.zeros((), jnp.int32)), dot(row, column - direction)

    def step(state, action, key):
        row, column, direction, t = state
        told = (action == (direction > 0)) if discrete else -jnp.square(action[0] - 0.5 * direction)
        obs, last = dot(row, column), t == 1
        reward = jnp.where(last, told.astype(jnp.float32), 0.0)
        return (row, column, direction, t + 1), Timestep(
            obs, obs, reward, last, jnp.zeros((), bool)
        )

    return Env(
        EnvSpec("motion", IMAGE, Discrete(2) if discrete else UNIT, 2, frame_stack),
        reset,
        step,
        shortest_episode=2,
    )


def walk(*, frame_stack: int = 3, limit: int | None = 9) -> Env:
    """Random bytes, 4 x 3 pixels of 2 channels. Episodes end at random steps, or are truncated
    after ``limit``.
    """
    spec = EnvSpec("walk", jax.ShapeDtypeStruct((4, 3, 2), jnp.uint8), UNIT, limit, frame_stack)

    def look(key):
        return jax.random.randint(key, spec.obs.shape, 0, 256).astype(jnp.uint8)

    def reset(key, params):
        return jnp.zeros((), jnp.int32), look(key)

    def step(t, action, key):
        obs_key, end_key = jax.random.split(key)
        obs, over = look(obs_key), jax.random.bernoulli(end_key, 0.15)
        return t + 1, Timestep(obs, obs, action[0], over, jnp.zeros((), bool))

    return Env(spec, reset, step)


def stacking(env: Env) -> Env:
    """Build the same environment, which stacks frames inside."""
    k, (height, width, channels) = env.spec.frame_stack, env.spec.obs.shape
    obs = jax.ShapeDtypeStruct((height, width, k * channels), jnp.uint8)

    def reset(key, params):
        state, frame = env.reset(key, params)
        stack = jnp.concatenate([frame] * k, axis=-1)
        return (state, stack), stack

    def step(state, action, key):
        state, stack = state
        state, timestep = env.step(state, action, key)
        stack = jnp.concatenate([stack[..., channels:], timestep.next_obs], axis=-1)
        return (state, stack), timestep._replace(obs=stack, next_obs=stack)

    return Env(
        env.spec._replace(obs=obs, frame_stack=0),
        reset,
        step,
        shortest_episode=env.shortest_episode,
    )
