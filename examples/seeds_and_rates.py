"""Train eight seeds x eight learning rates in one program: ``python examples/seeds_and_rates.py``.

A learning rate is a value, not an option of the compiler. So 64 trainings compile once and run at
the same time.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np

import jaxrl_fast as jf


def main(num_seeds: int = 8, num_rates: int = 8, ticks: int = 40, num_envs: int = 8) -> np.ndarray:
    """Train all pairs on CartPole; return the mean returns of the last quarter ``[seeds, rates]``."""
    algo = jf.ppo(rollout_length=64, num_minibatches=4)
    init, train_step = jf.make_train_step(jf.make_env("cartpole", num_envs=num_envs), algo)
    rates = jnp.logspace(-4, -1.5, num_rates)
    keys = jax.random.split(jax.random.key(0), num_seeds)

    def train(key: jax.Array, rate: jax.Array) -> jax.Array:
        state = init(key, algo.hyper._replace(learning_rate=rate))
        _, metrics = jax.lax.scan(lambda state, _: train_step(state), state, length=ticks)
        late = slice(ticks - ticks // 4, None)
        episodes = metrics["sample/episodes"][late].sum()
        return metrics["sample/episode_return_sum"][late].sum() / jnp.maximum(episodes, 1)

    grid = jax.vmap(jax.vmap(train, in_axes=(None, 0)), in_axes=(0, None))
    begin = time.perf_counter()
    program = jax.jit(grid).lower(keys, rates).compile()
    compiled = time.perf_counter()
    returns = np.asarray(program(keys, rates))
    seconds = time.perf_counter() - compiled

    print(f"{'rate':>8}  mean  least  most of the seeds")
    for rate, column in zip(np.asarray(rates), returns.T, strict=True):
        bar = "#" * round(float(column.mean()) / 10)
        print(f"{rate:8.1e} {column.mean():5.0f} {column.min():6.0f} {column.max():5.0f}   {bar}")
    steps = returns.size * ticks * num_envs * 64
    print(
        f"{returns.size} trainings, {steps:,} steps: compiled in {compiled - begin:.1f} s, ran in {seconds:.1f} s"
    )
    return returns


if __name__ == "__main__":
    main()
