"""The common parts of all programs of `agents_inference`: ma-gym's TrafficJunction with full
observations, and the networks.

Imports only packages that all programs have; ma-gym 0.0.14 and gym 0.20.0 come from the folder
BENCH_MAGYM.
"""

import os
import random
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

HIDDEN, ACTIONS, MAX_STEPS = 64, 2, 100


def world(num_agents: int) -> Any:
    """Make TrafficJunction4-v1 or TrafficJunction10-v1, as in the paper's benchmark."""
    if os.environ["BENCH_MAGYM"] not in sys.path:
        sys.path.append(os.environ["BENCH_MAGYM"])
    from ma_gym.envs.traffic_junction.traffic_junction import TrafficJunction

    return TrafficJunction(n_max=num_agents, full_observable=True, max_steps=MAX_STEPS)


def num_seen(num_agents: int) -> int:
    """Return the size of a car's observation: for each car its position, its route, and the cars in
    nine cells.
    """
    return num_agents * 9 * (num_agents + 5)


def networks(num_agents: int) -> tuple[np.ndarray, ...]:
    """Draw a network of one hidden layer for each agent: weights ``[A, seen, 64]``, biases
    ``[A, 64]``, weights ``[A, 64, 2]``, biases ``[A, 2]``.
    """
    rng, seen = np.random.default_rng(0), num_seen(num_agents)
    shapes = (
        (num_agents, seen, HIDDEN),
        (num_agents, HIDDEN),
        (num_agents, HIDDEN, ACTIONS),
        (num_agents, ACTIONS),
    )
    scales = seen**-0.5, 0.1, HIDDEN**-0.5, 0.1
    pairs = zip(shapes, scales, strict=True)
    return tuple(rng.normal(scale=scale, size=shape).astype(np.float32) for shape, scale in pairs)


def act(nets: tuple[np.ndarray, ...], seen: np.ndarray) -> np.ndarray:
    """Compute the actions of one agent's network, ``[E, seen]`` to ``[E]``."""
    first, first_bias, second, second_bias = nets
    return (np.maximum(seen @ first + first_bias, 0.0) @ second + second_bias).argmax(1)


def begin(num_agents: int, count: int) -> tuple[list[Any], np.ndarray]:
    """Make this many junctions; return them and the observations of all cars of each,
    ``[E, seen]``.

    Resets the random seed.
    """
    worlds = [world(num_agents) for _ in range(count)]
    random.seed(0)
    return worlds, np.array([one.reset()[0] for one in worlds], np.float32)


def step_all(worlds: list[Any], actions: Sequence[Sequence[int]], seen: np.ndarray) -> float:
    """Step each junction, and reset it where all cars are done; return the sum of all rewards.

    ``actions`` ``[E, A]``; writes ``seen`` ``[E, seen]``.
    """
    total = 0.0
    for i, (one, action) in enumerate(zip(worlds, actions, strict=True)):
        obs, rewards, done, _ = one.step(action)
        total += sum(rewards)
        seen[i] = (one.reset() if all(done) else obs)[0]  # the same list for every car
    return total


def numbers(words: tuple[str, ...]) -> list[tuple[int, int]]:
    """Parse words such as ``64x25600`` into (junctions, steps)."""
    return [(int(count), int(steps)) for count, steps in (word.split("x") for word in words)]
