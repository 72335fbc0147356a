"""Write an environment: ``python examples/own_world.py``.

A rocket falls. Its engine is on or off. Hitting the ground faster than 1 m/s is a crash. The
environment has no batch axis; `jf.vectorize` adds batching, auto-reset, time limit and episode
statistics.
"""

from typing import Any

import jax
import jax.numpy as jnp

import jaxrl_fast as jf

STEP_S, GRAVITY, THRUST, SOFT = 0.1, 1.6, 4.0, 1.0  # s, m/s², m/s², m/s


def make_lander() -> jf.Env:
    """Make one lander: the state is (height in m, velocity in m/s); the actions are engine off and
    on.
    """

    def reset(key: jax.Array, params: Any) -> tuple[jax.Array, jax.Array]:
        height = jax.random.uniform(key, (), jnp.float32, 10.0, 20.0)
        state = jnp.stack([height, jnp.zeros(())])
        return state, state

    def step(state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, jf.Timestep]:
        height, velocity = state
        velocity = velocity + STEP_S * (THRUST * action - GRAVITY)
        height = height + STEP_S * velocity
        state = jnp.stack([height, velocity])
        landed = height <= 0.0
        reward = jnp.where(landed, 10.0 - 5.0 * jnp.abs(velocity), -0.05 - 0.05 * action)
        return state, jf.Timestep(state, state, reward, landed, jnp.zeros((), bool))

    spec = jf.EnvSpec(
        "lander", jax.ShapeDtypeStruct((2,), jnp.float32), jf.Discrete(2), max_episode_steps=200
    )
    return jf.Env(
        spec, reset, step, success=lambda s: (s[0] <= 0.0) & (jnp.abs(s[1]) < SOFT), step_s=STEP_S
    )


def main(total_steps: int = 200_000, num_envs: int = 64, episodes: int = 64) -> None:
    """Train a policy, print the share of soft landings, and draw one landing."""
    env = jf.vectorize(make_lander(), num_envs=num_envs)
    algo = jf.ppo(learning_rate=3e-3, rollout_length=32, discount=0.999)
    result = jf.learn(env, algo, total_steps=total_steps, eval_episodes=episodes)
    rows = [row for row in result.history if row["kind"] == "eval"]
    print("soft landings:", " -> ".join(f"{row['eval_success_rate']:.0%}" for row in rows))

    world, key = make_lander(), jax.random.key(7)
    step, (state, obs) = jax.jit(world.step), world.reset(key, ())
    for t in range(200):
        action = result.policy(obs)
        if t % 5 == 0:
            flame = "*" if action else " "
            print(
                f"{t * STEP_S:5.1f} s {float(state[1]):6.2f} m/s |{' ' * int(2 * max(state[0], 0))}{flame}>"
            )
        state, ts = step(state, action, key)
        obs = ts.obs
        if ts.terminated:
            break
    print(f"down at {float(state[1]):.2f} m/s: {'soft' if world.success(state) else 'a crash'}")


if __name__ == "__main__":
    main()
