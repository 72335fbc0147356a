"""Worker: brax.training PPO or SAC on halfcheetah (spring), in brax's separate environment. A
repeat is a training epoch.

``python peer_brax.py ppo`` has the settings of brax's notebook, ``python peer_brax.py sac [batch]``
64 updates of 512 (or ``batch``) per 128 environment steps. Rates are brax's ``training/sps``, which
excludes evaluation. ``python peer_brax.py solve <environment> <steps> <seed> <evaluations>`` is a
whole run of SAC in any of brax's environments; each evaluation has 32 episodes, the first before
any training.
"""

import sys
import time
from typing import Any

from brax import envs
from brax.training import acting
from brax.training.agents.ppo import train as ppo
from brax.training.agents.sac import train as sac
from worker import say, wait_for_turn

MANY = 10_000
PPO = dict(
    num_envs=512,
    batch_size=512,
    unroll_length=20,
    num_minibatches=32,
    num_updates_per_batch=8,
    episode_length=1000,
    learning_rate=3e-4,
    discounting=0.95,
    entropy_cost=1e-3,
    normalize_observations=True,
    reward_scaling=1.0,
    run_evals=False,
)
SAC = dict(
    num_envs=128,
    batch_size=512,
    grad_updates_per_step=64,
    episode_length=1000,
    learning_rate=6e-4,
    discounting=0.99,
    normalize_observations=True,
    reward_scaling=1.0,
    min_replay_size=8192,
    max_replay_size=1_048_576,
)
STEPS_PER_EPOCH = {"ppo": 327_680, "sac": 128 * 2}
UPDATES_PER_EPOCH = {"ppo": 256, "sac": 64 * 2}


class NoEvaluation:
    """Replaces brax's evaluator, whose time must not count."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs

    def run_evaluation(
        self, params: Any, training_metrics: dict[str, Any], **_: Any
    ) -> dict[str, Any]:
        """Return the training metrics alone."""
        del params
        return dict(training_metrics)


def main(algorithm: str, batch_size: str = "512") -> None:
    """Train for ever, an epoch at each line from the driver. The first epoch, which compiles, does
    not count.
    """
    epochs = 0

    def progress(step: int, metrics: dict[str, Any]) -> None:
        nonlocal epochs
        if "training/sps" not in metrics:
            return
        seconds = STEPS_PER_EPOCH[algorithm] / float(metrics["training/sps"])
        if epochs == 0:
            say({"ready": {"first_s": seconds}})
        else:
            say(
                {
                    "seconds": seconds,
                    "steps": STEPS_PER_EPOCH[algorithm],
                    "updates": UPDATES_PER_EPOCH[algorithm],
                }
            )
        epochs += 1
        wait_for_turn()

    acting.Evaluator = NoEvaluation
    train, settings = {
        "ppo": (ppo.train, PPO),
        "sac": (sac.train, SAC | dict(batch_size=int(batch_size))),
    }[algorithm]
    prefill = settings.get("min_replay_size", 0)
    train(
        environment=envs.get_environment("halfcheetah", backend="spring"),
        progress_fn=progress,
        num_timesteps=prefill + STEPS_PER_EPOCH[algorithm] * MANY,
        num_evals=MANY + (algorithm == "sac"),
        **settings,
    )


def solve(environment: str, total_steps: str, seed: str, num_evals: str = "11") -> None:
    """Train a whole run of SAC; print (steps, greedy return of 32 episodes, seconds from the first
    import on).
    """
    begin, curve = time.perf_counter(), list[tuple[int, float, float]]()

    def progress(step: int, metrics: dict[str, Any]) -> None:
        curve.append((step, float(metrics["eval/episode_reward"]), time.perf_counter() - begin))
        print(environment, *curve[-1], flush=True)  # to standard error: see `worker`

    sac.train(
        environment=envs.get_environment(environment, backend="spring"),
        progress_fn=progress,
        num_timesteps=int(total_steps),
        num_evals=int(num_evals),
        num_eval_envs=32,
        deterministic_eval=True,
        seed=int(seed),
        **SAC,
    )
    say({"curve": curve, "seconds": time.perf_counter() - begin})


if __name__ == "__main__":
    solve(*sys.argv[2:]) if sys.argv[1] == "solve" else main(*sys.argv[1:])
