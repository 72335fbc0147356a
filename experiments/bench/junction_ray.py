"""Worker: all agents of traffic junctions act, each with a separate network, in a separate Ray
actor.

``python junction_ray.py written|tuned <agents> <junctions>x<steps> ...``, as `junction_ours`.
``written`` has the design of the Reactor paper's benchmark, rewritten here: one junction; every
actor receives the observations of all agents as lists of numbers, takes one of them, and answers
with one action from PyTorch; the random seed is set in every step. The original's print in each
step is left out. ``tuned``: the observations of all junctions are one array, sent to each actor, or
put once for all where it is larger than Ray's limit for inline arguments; an actor answers for all
junctions in NumPy.
"""

import os
import random
import sys
import time
from typing import Any

import junction
import numpy as np
import ray
from worker import say

CORES = len(os.sched_getaffinity(0))
WARM, ALONG = 20, 100_000
"""Turns before the measurement, and the size in bytes up to which Ray sends an argument inline."""


class OneState:
    """An actor of ``written``."""

    def __init__(self, number: int, num_agents: int) -> None:
        import torch

        self.torch, self.number = torch, number
        first, second = (
            torch.nn.Linear(junction.num_seen(num_agents), junction.HIDDEN),
            torch.nn.Linear(64, 2),
        )
        weights = [torch.from_numpy(one[number]) for one in junction.networks(num_agents)]
        state = {
            "0.weight": weights[0].T,
            "0.bias": weights[1],
            "2.weight": weights[2].T,
            "2.bias": weights[3],
        }
        self.net = torch.nn.Sequential(first, torch.nn.ReLU(), second, torch.nn.Softmax(-1))
        self.net.load_state_dict(state)

    def act(self, seen: list[list[float]]) -> int:
        """Return the action; ``seen``: the observations of all agents."""
        random.seed(1)
        own = self.torch.from_numpy(np.array(seen[self.number])).float().unsqueeze(0)
        with self.torch.no_grad():
            return self.net(own).argmax(-1).item()


class ManyStates:
    """An actor of ``tuned``."""

    def __init__(self, number: int, num_agents: int) -> None:
        self.weights = tuple(one[number] for one in junction.networks(num_agents))

    def act(self, seen: np.ndarray) -> list[int]:
        """Compute actions, ``[E, seen]`` to ``[E]``, as a list, which Ray sends faster."""
        return junction.act(self.weights, seen).tolist()


def written(num_agents: int, steps: int, count: int) -> dict[str, Any]:
    """Step one junction, at any ``count``."""
    actors = [ray.remote(OneState).remote(i, num_agents) for i in range(num_agents)]
    world = junction.world(num_agents)
    seen, done, total, begin = world.reset(), [False] * num_agents, 0.0, 0.0
    for t in range(-WARM, steps):
        begin = time.perf_counter() if t == 0 else begin
        random.seed(1)
        if all(done):
            world.reset()
        action = ray.get([actor.act.remote(seen) for actor in actors])
        seen, rewards, done, _ = world.step(action)
        total += sum(rewards)
    return {"seconds": time.perf_counter() - begin, "rewards": total}


def tuned(num_agents: int, steps: int, count: int) -> dict[str, Any]:
    """Step ``count`` junctions in a batch."""
    actors = [ray.remote(ManyStates).remote(i, num_agents) for i in range(num_agents)]

    def play(worlds: list[Any], seen: np.ndarray, turns: int) -> float:
        total = 0.0
        for _ in range(turns):
            together = ray.put(seen) if seen.nbytes > ALONG else seen
            actions = ray.get([actor.act.remote(together) for actor in actors])
            total += junction.step_all(worlds, list(zip(*actions, strict=True)), seen)
        return total

    play(*junction.begin(num_agents, count), WARM)
    worlds, seen = junction.begin(num_agents, count)
    begin = time.perf_counter()
    total = play(worlds, seen, steps // count)
    return {"seconds": time.perf_counter() - begin, "rewards": total}


def main(how: str, num_agents: str, *asked: str) -> None:
    """Measure each number of junctions."""
    ray.init(num_cpus=CORES, include_dashboard=False, log_to_driver=False)
    side = {"written": written, "tuned": tuned}[how]
    say({count: side(int(num_agents), steps, count) for count, steps in junction.numbers(asked)})
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
