"""Worker: Gymnasium's Blackjack-v1 and nothing else:
``python q_alone.py <hit below> <minibatch> <rounds>``.

One process per core steps its share of the environments of `q_learning`, one call after another,
with a rule (hit below a sum) that costs nothing. A trainer that steps these environments on these
cores, with episodes as long, cannot be faster. Below 18, an episode has 1.70 steps; below 14, 1.41.
"""

import multiprocessing
import os
import sys
import time
from typing import Any

BEGIN = time.perf_counter()
import gymnasium  # noqa: E402
from q_settings import SETTINGS  # noqa: E402
from worker import say  # noqa: E402


def play(hit_below: int, first: int, count: int, steps: int, ready: Any, results: Any) -> None:
    """Make ``steps`` steps of ``count`` environments; report the seconds and the mean return."""
    envs = [gymnasium.make("Blackjack-v1", disable_env_checker=True) for _ in range(count)]
    sums, rewards = [env.reset(seed=first + i)[0][0] for i, env in enumerate(envs)], []
    ready.wait()
    begin = time.perf_counter()
    for _ in range(steps):
        for i, env in enumerate(envs):
            obs, reward, terminated, truncated, _ = env.step(int(sums[i] < hit_below))
            if terminated or truncated:
                rewards.append(reward)
                obs, _ = env.reset()
            sums[i] = obs[0]
    results.put((time.perf_counter() - begin, sum(rewards) / len(rewards)))


def main(hit_below: str, minibatch: str, rounds: str) -> None:
    """Play once, and print the seconds of the slowest process."""
    size, steps = (
        min(len(os.sched_getaffinity(0)), SETTINGS.num_envs),
        int(rounds) * SETTINGS.rollout_length,
    )
    shares = [SETTINGS.num_envs // size + (i < SETTINGS.num_envs % size) for i in range(size)]
    context = multiprocessing.get_context("fork")
    ready, results = context.Barrier(size), context.Queue()
    players = [
        context.Process(
            target=play, args=(int(hit_below), sum(shares[:i]), share, steps, ready, results)
        )
        for i, share in enumerate(shares)
    ]
    for player in players:
        player.start()
    seconds, returns = zip(*[results.get() for _ in players], strict=True)
    for player in players:
        player.join()
    total = time.perf_counter() - BEGIN
    say(
        {
            "seconds": max(seconds),
            "total_s": total,
            "return": sum(returns) / size,
            "processes": size,
        }
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
