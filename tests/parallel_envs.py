"""Small multi-agent environments with PettingZoo's interface. They need no package."""

import os
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

LEAVES = {"a": 2, "b": 4, "c": 3}
"""Number of steps after which an agent's task is over."""
SIZES = {"a": (1, 2), "b": (2, 3), "c": (3, 4)}
"""Number of observations and of actions of each agent of `Unequal`."""


class Leaving:
    """Agents leave one after another: "a" and "c" terminate, and "b", the last, is truncated where
    ``last_is_cut``.

    Each observes [its number, steps, the seed's draw, process id]; its reward is its action plus
    ten times its number.
    """

    def __init__(self, last_is_cut: bool = True, render_mode: str | None = None) -> None:
        self.possible_agents, self.agents = list(LEAVES), []
        self.last_is_cut, self.render_mode, self.metadata = (
            last_is_cut,
            render_mode,
            {"render_fps": 5},
        )
        self.steps, self.draw = 0, 0.0

    def observation_space(self, agent: str) -> Any:
        return Box(-np.inf, np.inf, (4,), np.float64)

    def action_space(self, agent: str) -> Any:
        return Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents, self.steps, self.draw = list(LEAVES), 0, float(self.rng.normal())
        return {agent: self.observe(agent) for agent in self.agents}, {
            agent: {} for agent in self.agents
        }

    def observe(self, agent: str) -> Any:
        return np.array([self.possible_agents.index(agent), self.steps, self.draw, os.getpid()])

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        assert sorted(actions) == sorted(self.agents), "an agent that has left got an action"
        acted, self.steps = self.agents, self.steps + 1
        gone = {agent: self.steps >= LEAVES[agent] for agent in acted}
        cut = {agent: gone[agent] and agent == "b" and self.last_is_cut for agent in acted}
        self.agents = [agent for agent in acted if not gone[agent]]
        reward = {
            agent: float(np.sum(actions[agent])) + 10.0 * self.possible_agents.index(agent)
            for agent in acted
        }
        done = {agent: gone[agent] and not cut[agent] for agent in acted}
        return (
            {agent: self.observe(agent) for agent in acted},
            reward,
            done,
            cut,
            {agent: {} for agent in acted},
        )

    def render(self) -> np.ndarray:
        return np.full((4, 4, 3), 10 * self.steps, np.uint8)


class Pushing(Leaving):
    """`Leaving` with actions of two numbers, and the steps as the environment's state."""

    state_space = Box(0.0, 100.0, (1,), np.float32)

    def action_space(self, agent: str) -> Any:
        return Box(-1.0, 1.0, (2,), np.float32)

    def state(self) -> np.ndarray:
        return np.array([self.steps], np.float32)


class Unequal(Leaving):
    """`Leaving` with a different number of observations and actions for each agent.

    Agent "c" also has an action mask, which never allows its first action. An agent is paid 1 for
    its last action, else nothing.
    """

    def observation_space(self, agent: str) -> Any:
        plain = Box(-np.inf, np.inf, (SIZES[agent][0],), np.float32)
        return (
            Dict(observation=plain, action_mask=Box(0, 1, (4,), np.int8)) if agent == "c" else plain
        )

    def action_space(self, agent: str) -> Any:
        return Discrete(SIZES[agent][1])

    def observe(self, agent: str) -> Any:
        plain = np.full(SIZES[agent][0], 1.0, np.float32)
        return (
            {"observation": plain, "action_mask": np.array([0, 1, 1, 1], np.int8)}
            if agent == "c"
            else plain
        )

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        assert all(action < SIZES[agent][1] for agent, action in actions.items())
        obs, _, done, cut, infos = super().step(actions)
        return (
            obs,
            {agent: float(a == SIZES[agent][1] - 1) for agent, a in actions.items()},
            done,
            cut,
            infos,
        )


class Mixed(Leaving):
    """One agent has three discrete actions, the others continuous ones."""

    def action_space(self, agent: str) -> Any:
        return Discrete(3) if agent == "a" else Box(-1.0, 1.0, (2,), np.float32)
