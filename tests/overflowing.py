"""An environment that observes the logarithm of a number that is not positive after 200 steps of an
episode.
"""

import jax
import jax.numpy as jnp

import jaxrl_fast as jf

GOOD_STEPS = 200


def make() -> jf.Env:
    spec = jf.EnvSpec(
        "overflowing",
        jax.ShapeDtypeStruct((1,), jnp.float32),
        jf.Discrete(2),
        max_episode_steps=500,
    )

    def step(count: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, jf.Timestep]:
        count = count + 1
        obs = jnp.log(1.0 + GOOD_STEPS - count)[None]
        no = jnp.zeros((), bool)
        return count, jf.Timestep(obs, obs, jnp.float32(1.0), no, no)

    return jf.Env(spec, lambda key, params: (jnp.float32(0.0), jnp.zeros(1)), step)
