"""Environments for the tests of the autotuner: cheap ones, and some that end the measuring process."""

import os
import resource
import time

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import Box, EnvSpec, Timestep
from jaxrl_fast.envs.env import Env


def walk(
    abort_at: int = 0, starve_at: int = 0, hang_in_make: bool = False, leave_pid: str = ""
) -> Env:
    """Build a point on a line.

    With ``abort_at`` environments a step calls abort(); with ``starve_at`` the process limits its
    memory, and then allocates some.
    """
    if leave_pid:
        with open(leave_pid, "a") as file:
            print(os.getpid(), file=file)
    if hang_in_make:
        time.sleep(1000)

    def reset(key: jax.Array, params: tuple) -> tuple[jax.Array, jax.Array]:
        x = jax.random.uniform(key, (1,))
        return x, x

    def step(x: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Timestep]:
        x = jnp.clip(x + 0.1 * action, -1.0, 1.0)
        if abort_at or starve_at:
            x = jax.pure_callback(fate, x, x, vmap_method="broadcast_all")
        no = jnp.zeros((), bool)
        return x, Timestep(x, x, -jnp.abs(x[0]), no, no)

    def fate(x: np.ndarray) -> np.ndarray:
        if len(x) == abort_at:
            os.abort()
        if len(x) == starve_at:
            resource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20))
            return np.ones((1 << 30,), np.float32)[: len(x), None]
        return np.asarray(x)

    spec = EnvSpec(
        "walk",
        jax.ShapeDtypeStruct((1,), jnp.float32),
        Box(-np.ones(1, np.float32), np.ones(1, np.float32)),
        20,
    )
    return Env(spec, reset, step)
