"""Worker: HalfCheetah-v5 under random actions, 16 environments in turn: the pool, or the
environments in a plain loop.

``python ours_pool.py pool`` runs two workers and two groups. ``python ours_pool.py loop`` is the
fixed program for comparison, in plain Gymnasium (see `gate`), which must not change. A repeat is a
second.
"""

import sys
import time
from collections.abc import Callable

import gymnasium
import numpy as np
from worker import serve

NUM_ENVS, BATCHES, SECONDS = 16, 64, 1.0


def loop() -> Callable[[np.ndarray], int]:
    """Step all environments ``[E, A]``, one after another."""
    envs = [gymnasium.make("HalfCheetah-v5") for _ in range(NUM_ENVS)]
    for i, env in enumerate(envs):
        env.reset(seed=i)

    def batch(actions: np.ndarray) -> int:
        for env, action in zip(envs, actions, strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        return NUM_ENVS

    return batch


def pool() -> Callable[[np.ndarray], int]:
    """Do the same with our pool."""
    from pool import PoolOptions, make_host, of_host

    return of_host(
        make_host("HalfCheetah-v5", num_envs=NUM_ENVS, pool=PoolOptions(workers=2, num_groups=2))
    ).batch


def main(what: str) -> None:
    """Warm up, and serve."""
    actions = np.random.default_rng(0).uniform(-1, 1, (BATCHES, NUM_ENVS, 6)).astype(np.float32)
    batch = {"pool": pool, "loop": loop}[what]()

    def repeat() -> dict[str, float]:
        steps, at, begin = 0, 0, time.perf_counter()
        while time.perf_counter() - begin < SECONDS:
            steps += batch(actions[at % BATCHES])
            at += 1
        return {"seconds": time.perf_counter() - begin, "steps": steps}

    repeat()
    serve(repeat)


if __name__ == "__main__":
    main(*sys.argv[1:])
