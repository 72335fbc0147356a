"""Write a training loop: ``python examples/train_step.py``.

``make_train_step`` returns two pure functions. This loop jits the step, donates the state, and
prints the mean return of finished episodes. It stops as soon as CartPole is solved, and evaluates
the policy of the last state.
"""

import time
from typing import Any

import jax

import jaxrl_fast as jf

SOLVED = 475.0


def main(num_envs: int = 32, ticks: int = 96, rollout_length: int = 64) -> float:
    """Train for at most ``ticks`` train steps; return the mean return of the last finished
    episodes.
    """
    steps_per_tick = num_envs * rollout_length
    env = jf.make_env("cartpole", num_envs=num_envs)
    algo = jf.ppo(
        learning_rate=jf.Linear(1e-3, 0.0),
        rollout_length=rollout_length,
        num_epochs=8,
        num_minibatches=8,
    )
    init, train_step = jf.make_train_step(env, algo, total_steps=ticks * steps_per_tick)
    train_step = jax.jit(train_step, donate_argnums=0)

    begin, state, last = time.perf_counter(), init(jax.random.key(0)), 0.0
    for tick in range(1, ticks + 1):
        state, metrics = train_step(state)
        last = mean_return(metrics, last)
        if tick % max(1, ticks // 12) == 0 or last >= SOLVED:
            seconds = time.perf_counter() - begin
            print(
                f"{tick * steps_per_tick:7,} steps {seconds:5.1f} s  {'#' * round(last / 10):<50} {last:5.0f}"
            )
        if last >= SOLVED:
            break
    returns = jf.evaluate_policy(
        jf.trained_policy(env, algo, state), env, jax.random.key(1), episodes=64
    )
    print(f"greedy return {returns.mean():.0f}")
    return last


def mean_return(metrics: dict[str, Any], before: float) -> float:
    """Return the mean return of the episodes that ended in this train step, or ``before`` without
    such episodes.
    """
    episodes = int(metrics["sample/episodes"])
    return float(metrics["sample/episode_return_sum"]) / episodes if episodes else before


if __name__ == "__main__":
    main()
