"""Worker: SAC on HalfCheetah-v5 with Stable-Baselines3 (PyTorch) or SBX (its JAX sibling), one
update of 256 per step.

``python peer_sb3.py sb3|sbx train`` serves repeats of 512 steps;
``solve <seed> <steps> <every> [id [warmup]]`` is a whole run, also in another environment, with
``warmup`` steps before the first update. Both have their default settings: one environment,
networks 256 × 256, learning rate 3e-4, one update after each step.
"""

import sys
import time
import warnings
from importlib import import_module
from typing import Any

import gymnasium
from worker import say, serve

STEPS = 512


def make(library: str, seed: int, learning_starts: int, id: str = "HalfCheetah-v5") -> Any:
    """Build the algorithm, on a separate environment."""
    module = import_module({"sb3": "stable_baselines3", "sbx": "sbx"}[library])
    env = gymnasium.make(id)
    options = dict(train_freq=1, gradient_steps=1, batch_size=256, learning_starts=learning_starts)
    return module.SAC("MlpPolicy", env, seed=seed, verbose=0, **options)


def train(library: str) -> None:
    """Warm up, and serve."""
    begin = time.perf_counter()
    model = make(library, 0, 1_000)
    model.learn(1_500)
    ready_s = time.perf_counter() - begin

    def repeat() -> dict[str, Any]:
        begin, before = time.perf_counter(), model._n_updates
        model.learn(STEPS, reset_num_timesteps=False)
        return {"seconds": time.perf_counter() - begin, "updates": model._n_updates - before}

    serve(repeat, first_s=ready_s)


def solve(
    library: str,
    seed: str,
    total_steps: str,
    every: str,
    id: str = "HalfCheetah-v5",
    warmup_steps: str = "5_000",
) -> None:
    """Train a whole run; print (steps, greedy return of 10 episodes, seconds) at every evaluation."""
    from stable_baselines3.common.evaluation import evaluate_policy

    begin, curve = time.perf_counter(), list[tuple[int, float, float]]()
    model, judge = make(library, int(seed), int(warmup_steps), id), gymnasium.make(id)
    for _ in range(int(total_steps) // int(every)):
        model.learn(int(every), reset_num_timesteps=False)
        mean, _ = evaluate_policy(model, judge, n_eval_episodes=10, deterministic=True, warn=False)
        curve.append((model.num_timesteps, float(mean), time.perf_counter() - begin))
    say({"curve": curve, "seconds": time.perf_counter() - begin})


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    solve(sys.argv[1], *sys.argv[3:]) if sys.argv[2] == "solve" else train(sys.argv[1])
