"""Worker: Sample Factory's APPO on CartPole-v1 with the sizes of `worker_acting`:
``python peer_sample_factory.py``.

It needs an environment with ``sample-factory`` 2.1 and ``numpy<2``. Two workers with 8 environments
each and the learner wait for each other, as the other sides do. Its minibatches are whole rollouts,
so that rollouts have 64 steps, and 512 of them make a training step of 10 epochs: as many steps and
updates as on the other sides. Prints the seconds of a training step, after two that warm up.
"""

import tempfile
import time
from typing import Any

import gymnasium
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner
from worker import say

ROUNDS, WARM = 4, 2
WORDS = {
    "algo": "APPO",
    "async_rl": False,
    "env": "CartPole-v1",
    "device": "cpu",
    "num_workers": 2,
    "num_envs_per_worker": 8,
    "worker_num_splits": 2,
    "rollout": 64,
    "batch_size": 64,
    "num_batches_per_epoch": 512,
    "num_epochs": 10,
    "use_rnn": False,
    "recurrence": 1,
    "nonlinearity": "tanh",
    "save_every_sec": 10_000,
    "experiment_summaries_interval": 10_000,
    "train_for_env_steps": 16 * 2_048 * ROUNDS,
}


class Times(AlgoObserver):
    """The times at which training iterations ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
        """Note the time."""
        self.ends.append(time.perf_counter())


def make(name: str, *rest: Any, **more: Any) -> gymnasium.Env:
    """Make an environment, in a worker, too."""
    return gymnasium.make(name)


def main() -> None:
    """Train, and print the mean seconds of the iterations after the first two."""
    register_env("CartPole-v1", make)
    with tempfile.TemporaryDirectory() as place:
        words = WORDS | {"train_dir": place}
        args = [f"--{name}={value}" for name, value in words.items()] + [
            "--encoder_mlp_layers",
            "64",
            "64",
        ]
        parser, _ = parse_sf_args(argv=args)
        _, runner = make_runner(parse_full_cfg(parser, args))
        times = Times()
        runner.register_observer(times)
        runner.init()
        runner.run()
    say(
        {
            "seconds": (times.ends[-1] - times.ends[WARM - 1]) / (len(times.ends) - WARM),
            "rounds": len(times.ends),
        }
    )


if __name__ == "__main__":
    main()
