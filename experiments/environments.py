"""Environments that only the experiments need."""

import jax

import envs
from jaxrl_fast.environments.env import Env


def pendulum_without_velocity() -> Env:
    """Pendulum-v1 that shows the angle only: how fast it turns must be remembered from step to step."""
    pendulum = envs.make("pendulum")
    shown = 2

    def reset(key, params):
        state, obs = pendulum.reset(key, params)
        return state, obs[:shown]

    def step(state, action, key):
        state, timestep = pendulum.step(state, action, key)
        return state, timestep._replace(obs=timestep.obs[:shown], next_obs=timestep.next_obs[:shown])

    obs = jax.ShapeDtypeStruct((shown,), pendulum.spec.obs.dtype)
    spec = pendulum.spec._replace(name="Pendulum without velocity", obs=obs)
    return pendulum._replace(spec=spec, reset=reset, step=step)
