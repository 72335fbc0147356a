"""Worker: another library until it reaches a greedy return, for
`experiments/learning/time_to_return.py`.

``python peer_returns.py brax|rejax|sb3|sbx <task> <seed> <goal> <steps> <every> <began>`` evaluates
every so many steps and prints the curve: (steps, mean return, seconds since ``began``, a
`time.time` before the start of this process). An evaluation has 32 episodes for brax, 128 for Rejax
(its default, in the compiled program), and 10 for the other two, as their users do.
"""

import os
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from worker import say

Note = Callable[[int, float], None]
"""Takes steps and a return; at the goal, it prints the curve and ends the process."""
WARMUP_STEPS = 5_000
"""Settings of SAC on HalfCheetah-v5, as in `peer_sb3.solve`."""


def brax(task: str, seed: int, steps: int, every: int, note: Note) -> None:
    """Train brax.training's SAC with 64 updates of 512 for each step of 128 environments."""
    from brax import envs
    from brax.training.agents.sac import train as sac
    from peer_brax import SAC

    def progress(step: int, metrics: dict[str, Any]) -> None:
        note(step, float(metrics["eval/episode_reward"]))

    evals = steps // every
    sac.train(
        environment=envs.get_environment(task, backend="spring"),
        progress_fn=progress,
        num_timesteps=SAC["min_replay_size"] + evals * every,
        num_evals=evals + 1,
        num_eval_envs=32,
        deterministic_eval=True,
        seed=seed,
        **SAC,
    )


REJAX: dict[str, tuple[str, dict[str, Any]]] = {
    "cartpole": (
        "PPO",
        dict(
            env="CartPole-v1",
            agent_kwargs=dict(activation="tanh"),
            num_envs=5,
            num_steps=100,
            num_epochs=5,
            num_minibatches=5,
            learning_rate=7.5e-4,
            max_grad_norm=0.5,
            gamma=0.99,
            gae_lambda=0.95,
            clip_eps=0.2,
            ent_coef=0.01,
        ),
    ),
    "pendulum": (
        "SAC",
        dict(
            env="Pendulum-v1",
            agent_kwargs=dict(activation="swish"),
            num_envs=1,
            buffer_size=10_000,
            fill_buffer=256,
            batch_size=256,
            learning_rate=1e-2,
            num_epochs=1,
            gamma=0.99,
            polyak=0.98,
            target_entropy_ratio=None,
            normalize_observations=True,
        ),
    ),
}
"""Algorithm and settings, as Rejax publishes them for the task."""


def rejax(task: str, seed: int, steps: int, every: int, note: Note) -> None:
    """Train Rejax, one seed in one program, which reports each evaluation when it is made."""
    import jax
    from jax.experimental import io_callback

    name, settings = REJAX[task]
    made = getattr(import_module("rejax"), name).create(
        **settings, total_timesteps=steps, eval_freq=every, skip_initial_evaluation=True
    )
    original = made.eval_callback

    def tell(step: Any, value: Any) -> None:
        note(int(step), float(value))

    def evaluate(algo: Any, state: Any, key: Any) -> Any:
        lengths, returns = original(algo, state, key)
        io_callback(tell, None, state.global_step, returns.mean(), ordered=True)
        return lengths, returns

    made = made.replace(eval_callback=evaluate)
    jax.block_until_ready(jax.jit(made.train)(jax.random.PRNGKey(seed)))
    jax.effects_barrier()


def falling(start: float) -> Callable[[float], float]:
    """Return a learning rate that decays to 0, in Stable-Baselines3's form."""
    return lambda left: left * start


ZOO: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "cartpole": (
        "PPO",
        "CartPole-v1",
        8,
        dict(n_steps=32, batch_size=256, gae_lambda=0.8, gamma=0.98, n_epochs=20, ent_coef=0.0),
    ),
    "pendulum": ("SAC", "Pendulum-v1", 1, dict(learning_rate=1e-3)),
    "HalfCheetah-v5": (
        "SAC",
        "HalfCheetah-v5",
        1,
        dict(train_freq=1, gradient_steps=1, batch_size=256, learning_starts=WARMUP_STEPS),
    ),
}
"""Algorithm, environment, number of environments, and settings: from RL Baselines3 Zoo; for
HalfCheetah-v5 as `peer_sb3`.
"""


def baselines(library: str, task: str, seed: int, steps: int, every: int, note: Note) -> None:
    """Train Stable-Baselines3 or SBX."""
    import gymnasium
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    name, id, num_envs, settings = ZOO[task]
    if name == "PPO":
        settings = settings | dict(learning_rate=falling(1e-3), clip_range=falling(0.2))
    module = import_module({"sb3": "stable_baselines3", "sbx": "sbx"}[library])
    model = getattr(module, name)(
        "MlpPolicy", make_vec_env(id, num_envs, seed=seed), seed=seed, device="cpu", **settings
    )
    judge, made = gymnasium.make(id), 0

    def callback(local: dict, own: dict) -> bool:
        nonlocal made
        if model.num_timesteps // every == made:
            return True
        made = model.num_timesteps // every
        mean, _ = evaluate_policy(model, judge, n_eval_episodes=10, deterministic=True, warn=False)
        note(model.num_timesteps, float(mean))
        return True

    model.learn(steps, callback=callback)


def main(library: str, task: str, seed: str, goal: str, steps: str, every: str, began: str) -> None:
    """Train until the goal or the last step, and print the curve."""
    curve: list[tuple[int, float, float]] = []

    def note(step: int, value: float) -> None:
        curve.append((step, value, time.time() - float(began)))
        print(library, task, *curve[-1], flush=True)  # to standard error: see `worker`
        if value >= float(goal):
            say({"curve": curve})
            os._exit(0)

    run = {"brax": brax, "rejax": rejax}.get(library, partial(baselines, library))
    run(task, int(seed), int(steps), int(every), note)
    say({"curve": curve})


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(*sys.argv[1:])
