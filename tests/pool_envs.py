"""Small environments for the tests of the pool."""

import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete


class Walk(gymnasium.Env):
    """A random walk that ends after a random number of steps, alternately by termination and
    truncation.

    Observes [position, steps of the episode, episodes, process id, 1 if JAX is loaded]. Action 9
    triggers ``on_nine``; a file ``hung`` then exists from where it hangs. Step 20 kills the process
    whose id is in the file ``victim``.
    """

    def __init__(
        self,
        jitter_s: float = 0.0,
        on_nine: str = "nothing",
        *,
        hung: Path | None = None,
        victim: Path | None = None,
    ) -> None:
        self.observation_space = Box(-np.inf, np.inf, (5,), np.float64)
        self.action_space = Discrete(10)
        self.jitter_s, self.on_nine, self.hung, self.victim, self.lived = (
            jitter_s,
            on_nine,
            hung,
            victim,
            0,
        )
        self.position, self.steps, self.episodes, self.length = 0.0, 0, 0, 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.episodes = 0 if seed is not None else self.episodes + 1
        self.position, self.steps = float(self.np_random.normal()), 0
        self.length = int(self.np_random.integers(2, 12))
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        if action == 9:
            misbehave(self.on_nine, self.hung)
        self.lived += 1
        if self.victim and self.lived == 20 and self.victim.read_text() == str(os.getpid()):
            misbehave("kill")
        if self.jitter_s:
            time.sleep(self.jitter_s * random.random())
        self.position += action + float(self.np_random.normal())
        self.steps += 1
        over = self.steps >= self.length
        terminated = over and self.episodes % 2 == 0
        return self._observe(), self.position, terminated, over and not terminated, {}

    def _observe(self) -> np.ndarray:
        return np.array(
            [self.position, self.steps, self.episodes, os.getpid(), "jax" in sys.modules]
        )


def misbehave(how: str, hung: Path | None = None) -> None:
    if how == "raise":
        raise KeyError("no such thing")
    if how == "hang":
        if hung is not None:
            hung.touch()
        time.sleep(3600)
    if how == "abort":
        os.abort()
    if how == "kill":
        os.kill(os.getpid(), 9)


class Uneven(gymnasium.Env):
    """Count the steps; a quarter of the seeds give an environment that calls ``before`` each step."""

    observation_space = Box(0, 1e6, (2,), np.float32)
    action_space = Discrete(3)

    def __init__(self, before: Callable[[], None] | None = None) -> None:
        self.before, self.slow, self.steps = before, False, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        self.slow, self.steps = seed is not None and seed % 4 == 0, 0
        return np.array([0, self.slow], np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        if self.slow and self.before is not None:
            self.before()
        self.steps += 1
        return np.array([self.steps, self.slow], np.float32), float(action), False, False, {}


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


class Kinds(gymnasium.Env):
    """A walk with any kind of observation and action, which ends after 3 to 8 steps.

    Observations are a ``vector``, an ``image`` or a ``dict`` of a vector and a mask; actions
    ``Discrete``, a ``Box`` or ``MultiDiscrete``.
    """

    def __init__(self, obs: str = "vector", action: str = "Discrete", size: int = 6) -> None:
        vector, image = Box(-10.0, 10.0, (3,), np.float32), Box(0, 255, (8, 8, 1), np.uint8)
        mask = Box(0, 1, (3,), np.int8)
        observed: dict[str, Any] = {"vector": vector, "image": image}
        observed["dict"] = Dict({"action_mask": mask, "vector": vector})
        acted: dict[str, Any] = {
            "Discrete": Discrete(3),
            "Box": Box(-2.0, 1.0, (size,), np.float32),
        }
        acted["MultiDiscrete"] = MultiDiscrete([2, 3])
        self.observation_space, self.action_space = observed[obs], acted[action]
        self.kind, self.place, self.steps, self.length = obs, np.zeros(3), 0, 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.place, self.steps = self.np_random.normal(size=3), 0
        self.length = int(self.np_random.integers(3, 9))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.place = np.clip(self.place + 0.1 * np.sum(action) - 0.05, -9, 9)
        self.steps += 1
        over = self.steps >= self.length
        ended = over and self.length % 2 == 0
        return (
            self._observe(),
            float(self.place[0]),
            ended,
            over and not ended,
            {"height": float(self.place[1])},
        )

    def _observe(self) -> Any:
        vector = self.place.astype(np.float32)
        image = np.full((8, 8, 1), int(20 * abs(self.place[0])) % 255, np.uint8)
        mask = np.array([1, self.steps % 2, 1], np.int8)
        return {"vector": vector, "image": image, "dict": {"action_mask": mask, "vector": vector}}[
            self.kind
        ]
