"""Worker: Stable-Baselines3 or SBX with nothing tuned, for `experiments/learning/defaults.py`.

``python peer_defaults.py sb3|sbx|random ppo|sac|td3|dqn <environment> <seed> <steps> <every>``
trains with the library's own default settings, or takes random actions, and prints the curve:
(steps, mean greedy return, seconds of the processor, without the evaluations). The environment is
an id of Gymnasium, or the short name of a compiled one (``catch``), which `Adapter` steps one at a
time.
"""

import sys
import time
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from worker import say

EPISODES = 20


class Adapter(gymnasium.Env):
    """A compiled environment of ours as a Gymnasium environment; images become floats in one row."""

    def __init__(self, name: str) -> None:
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))
        import jax

        from jaxrl_fast import envs
        from jaxrl_fast.core import Discrete

        env = envs.make(name)

        def reset(key: jax.Array) -> tuple:
            params_key, reset_key = jax.random.split(key)
            return env.reset(reset_key, env.sample_params(params_key))

        shape, action = (int(np.prod(env.spec.obs.shape)),), env.spec.action
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32)
        if isinstance(action, Discrete):
            self.action_space: Any = gymnasium.spaces.Discrete(action.num_actions)
        else:
            self.action_space = gymnasium.spaces.Box(
                np.asarray(action.low), np.asarray(action.high), dtype=np.float32
            )
        self._reset, self._step, self._split = (
            jax.jit(reset),
            jax.jit(env.step),
            jax.jit(jax.random.split),
        )
        self._seeded, self._key, self._limit = (
            jax.random.key,
            jax.random.key(0),
            env.spec.max_episode_steps,
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        """Begin an episode."""
        self._key = self._key if seed is None else self._seeded(seed)
        self._key, key = self._split(self._key)
        self._state, obs = self._reset(key)
        self._steps = 0
        return np.asarray(obs, np.float32).reshape(-1), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Make one step."""
        self._key, key = self._split(self._key)
        self._state, step = self._step(self._state, np.asarray(action), key)
        self._steps += 1
        terminated = bool(step.terminated)
        truncated = not terminated and (bool(step.truncated) or self._steps == self._limit)
        obs = np.asarray(step.next_obs, np.float32).reshape(-1)
        return obs, float(step.reward), terminated, truncated, {}


def make(name: str) -> gymnasium.Env:
    """Make an environment, with the monitor that both libraries read episodes from."""
    from stable_baselines3.common.monitor import Monitor

    return Monitor(gymnasium.make(name) if "-v" in name else Adapter(name))


def random_return(env: gymnasium.Env, seed: int) -> float:
    """Return the mean return of random actions."""
    total = 0.0
    env.action_space.seed(seed)
    for episode in range(EPISODES):
        env.reset(seed=10_000 * seed + episode)
        done = False
        while not done:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            total, done = total + float(reward), terminated or truncated
    return total / EPISODES


def main(library: str, algo: str, name: str, seed: str, steps: str, every: str) -> None:
    """Train, and print the curve."""
    if library == "random":
        say({"curve": [(0, random_return(make(name), int(seed)), 0.0)]})
        return
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.evaluation import evaluate_policy

    module = import_module({"sb3": "stable_baselines3", "sbx": "sbx"}[library])
    judge, curve, began = make(name), [], time.process_time()
    judge.reset(seed=10_000 + int(seed))
    model = getattr(module, algo.upper())("MlpPolicy", make(name), seed=int(seed), device="cpu")

    class Marks(BaseCallback):
        """Evaluates every so many steps, outside of the seconds."""

        evaluated_s = 0.0

        def _on_step(self) -> bool:
            if self.num_timesteps % int(every) == 0:
                before = time.process_time()
                mean, _ = evaluate_policy(
                    self.model, judge, n_eval_episodes=EPISODES, deterministic=True, warn=False
                )
                curve.append((self.num_timesteps, float(mean), before - began - self.evaluated_s))
                print(library, algo, name, seed, *curve[-1], flush=True)
                self.evaluated_s += time.process_time() - before
            return True

    model.learn(int(steps), callback=Marks())
    say({"curve": curve})


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(*sys.argv[1:])
