"""Worker: Rejax PPO on gymnax CartPole, in Rejax's separate environment.

``python peer_rejax.py rate [environments] [iterations]``: a repeat is 50 iterations of 64
environments x 128 steps (or the given numbers), without evaluation.

``python peer_rejax.py solve <learning rate> <raw|normalized> <steps> <evaluations>``: eight seeds
once under ``vmap``, on raw or normalized observations. Prints the seconds from an empty cache to
the last evaluation, and the mean return over seeds at each evaluation.
"""

import sys
import time
from typing import Any

import jax
import numpy as np
from rejax import PPO
from worker import say, serve

# Rejax scales the critic's loss by vf_coef and clips element by element; neither changes the amount
# of work.
SETTINGS = dict(
    env="CartPole-v1",
    num_envs=64,
    num_steps=128,
    num_epochs=4,
    num_minibatches=4,
    gamma=0.99,
    gae_lambda=0.95,
    clip_eps=0.2,
    ent_coef=0.01,
    max_grad_norm=0.5,
)
NETWORKS = dict(activation="tanh", hidden_layer_sizes=(64, 64))
SEEDS = 8


def rate(num_envs: int = 64, iterations: int = 50) -> None:
    """Measure steady-state training."""
    algo = PPO.create(**SETTINGS | dict(num_envs=num_envs), agent_kwargs=dict(NETWORKS))

    def many(state: Any) -> Any:
        return jax.lax.scan(lambda s, _: (algo.train_iteration(s), None), state, None, iterations)[
            0
        ]

    begin = time.perf_counter()
    state = jax.jit(algo.init_state)(jax.random.PRNGKey(0))
    run = jax.jit(many, donate_argnums=0).lower(state).compile()
    compile_s = time.perf_counter() - begin
    state = jax.block_until_ready(run(state))

    def repeat() -> dict[str, Any]:
        nonlocal state
        begin = time.perf_counter()
        state = jax.block_until_ready(run(state))
        seconds = time.perf_counter() - begin
        return {
            "seconds": seconds,
            "steps": iterations * num_envs * 128,
            "updates": iterations * 16,
        }

    serve(repeat, compile_s=compile_s)


def solve(learning_rate: float, observations: str, steps: int, evaluations: int) -> None:
    """Train eight seeds at once, as in Rejax's README."""
    begin = time.perf_counter()
    algo = PPO.create(
        **SETTINGS,
        agent_kwargs=dict(NETWORKS),
        learning_rate=learning_rate,
        total_timesteps=steps,
        eval_freq=steps // evaluations,
        skip_initial_evaluation=True,
        normalize_observations=observations == "normalized",
    )
    keys = jax.random.split(jax.random.PRNGKey(0), SEEDS)
    run = jax.jit(jax.vmap(algo.train)).lower(keys).compile()
    compiled = time.perf_counter()
    _, (_, returns) = jax.block_until_ready(run(keys))
    end = time.perf_counter()
    curve = np.asarray(returns).mean(axis=(0, 2))
    say(
        {
            "seconds": end - begin,
            "compile_s": compiled - begin,
            "steps": steps,
            "curve": curve.tolist(),
        }
    )


if __name__ == "__main__":
    if sys.argv[1] == "rate":
        rate(*map(int, sys.argv[2:]))
    else:
        solve(float(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
