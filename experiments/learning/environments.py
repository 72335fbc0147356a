"""Environments that only the experiments need."""

import jax
import jax.numpy as jnp

from jaxrl_fast import envs
from jaxrl_fast.core import Discrete, EnvSpec, Timestep
from jaxrl_fast.envs.env import Env


def pendulum_without_velocity() -> Env:
    """Build a Pendulum-v1 that shows the angle only: the angular velocity must be remembered from
    step to step.
    """
    pendulum = envs.make("pendulum")
    shown = 2

    def reset(key, params):
        state, obs = pendulum.reset(key, params)
        return state, obs[:shown]

    def step(state, action, key):
        state, timestep = pendulum.step(state, action, key)
        return state, timestep._replace(
            obs=timestep.obs[:shown], next_obs=timestep.next_obs[:shown]
        )

    obs = jax.ShapeDtypeStruct((shown,), pendulum.spec.obs.dtype)
    spec = pendulum.spec._replace(name="Pendulum without velocity", obs=obs)
    return pendulum._replace(spec=spec, reset=reset, step=step)


def points(num_agents: int | None = None) -> Env:
    """Build agents (None: one alone) that are each paid for bringing a separate point to its goal.

    Each additional agent costs as much as one.
    """
    shape = () if num_agents is None else (num_agents,)
    pushes = jnp.array([[0.0, 0.0], [0.1, 0.0], [-0.1, 0.0], [0.0, 0.1], [0.0, -0.1]])

    def observe(state: jax.Array) -> jax.Array:
        return jnp.concatenate(
            [state, state**2, jnp.sin(3.0 * state), jnp.cos(3.0 * state)], axis=-1
        )

    def reset(key: jax.Array, params: tuple) -> tuple[jax.Array, jax.Array]:
        state = jax.random.uniform(key, (*shape, 4), minval=-1.0)
        return state, observe(state)

    def step(state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Timestep]:
        state = state.at[..., :2].add(pushes[action])
        reward = -jnp.sum(jnp.square(state[..., :2] - state[..., 2:]), axis=-1)
        obs, never = observe(state), jnp.zeros((), bool)
        return state, Timestep(obs, obs, reward, never, never)

    obs = jax.ShapeDtypeStruct((*shape, 16), jnp.float32)
    return Env(
        EnvSpec("points", obs, Discrete(5), 25, num_agents=num_agents),
        reset,
        step,
        shortest_episode=25,
    )
