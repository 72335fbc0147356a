"""Print the mean return of 64 episodes of random actions: ``python suites_random.py <suite> <id>``."""

import sys

import jax
import jax.numpy as jnp

import jaxrl_fast as jf
from jaxrl_fast.learning.acting import uniform_action

EPISODES, LEAST_STEPS = 64, 1_000


def main(suite: str, id: str) -> None:
    """Play until each of the environments has ended an episode, or for its time limit."""
    vec = jf.make_env(suite, id=id, num_envs=EPISODES)
    assert isinstance(vec, jf.VecEnv)
    steps = max(LEAST_STEPS, vec.spec.max_episode_steps or 0)
    chunk = 50

    @jax.jit
    def play(state: object, obs: object, key: jax.Array) -> tuple:
        bank = vec.draw_fresh(key, chunk)

        def step(carried: tuple, t: jax.Array) -> tuple:
            state, obs = carried
            now = jax.random.fold_in(key, t)
            state, ts = vec.step(
                state, uniform_action(vec.spec.action, obs, (EPISODES,), now), now, bank, t
            )
            return (state, ts.obs), (ts.terminated | ts.truncated, ts.episode.returns)

        return jax.lax.scan(step, (state, obs), jnp.arange(chunk))

    state, obs = jax.jit(vec.reset)(jax.random.key(0))
    first = jnp.full(EPISODES, jnp.nan)
    for i in range(-(-steps // chunk)):
        (state, obs), (done, returns) = play(state, obs, jax.random.key(i + 1))
        ended = jnp.where(
            done.any(0), returns[jnp.argmax(done, axis=0), jnp.arange(EPISODES)], jnp.nan
        )
        first = jnp.where(jnp.isnan(first), ended, first)
        if not jnp.isnan(first).any():
            break
    print(float(jnp.nanmean(first)))


if __name__ == "__main__":
    main(*sys.argv[1:])
