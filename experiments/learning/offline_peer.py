"""d3rlpy 2.8 on a data set:
``python offline_peer.py <folder> <env> <algorithm> <seed> <updates> <episodes>``.

It prints the mean return of greedy episodes as the last word.
"""

import sys
from pathlib import Path

import d3rlpy
import gymnasium
import numpy as np


def episodes_of(folder: Path) -> d3rlpy.dataset.MDPDataset:
    """Read a data set."""
    arrays = {path.stem: np.load(path) for path in folder.glob("*.npy")}
    lengths = arrays["lengths"]
    ends = np.cumsum(lengths)
    rows = np.concatenate(
        [np.arange(e - n, e) + k for k, (e, n) in enumerate(zip(ends, lengths, strict=True))]
    )
    timeouts = arrays["truncations"] & ~arrays["terminations"]
    return d3rlpy.dataset.MDPDataset(
        arrays["observations"][rows],
        arrays["actions"],
        arrays["rewards"],
        arrays["terminations"].astype(np.float32),
        timeouts.astype(np.float32),
    )


def configured(name: str, env: str) -> d3rlpy.base.LearnableConfig:
    """Return an algorithm with its own defaults; observations are normalized, and actions scaled to
    [-1, 1].
    """
    scalers = dict(
        observation_scaler=d3rlpy.preprocessing.StandardObservationScaler(),
        action_scaler=d3rlpy.preprocessing.MinMaxActionScaler(),
    )
    kinds = {
        "bc": d3rlpy.algos.BCConfig,
        "iql": d3rlpy.algos.IQLConfig,
        "td3_bc": d3rlpy.algos.TD3PlusBCConfig,
    }
    return kinds[name](batch_size=256, **scalers)


def main(folder: str, env: str, name: str, seed: str, updates: str, episodes: str) -> None:
    """Train and evaluate."""
    d3rlpy.seed(int(seed))
    algorithm = configured(name.removeprefix("d3rlpy "), env).create(device="cpu:0")
    steps = int(updates)
    algorithm.fit(
        episodes_of(Path(folder)),
        n_steps=steps,
        n_steps_per_epoch=steps,
        show_progress=False,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
    )
    world, total = gymnasium.make(env), 0.0
    for number in range(int(episodes)):
        obs, _ = world.reset(seed=10_000 + 100 * int(seed) + number)
        done = False
        while not done:
            obs, reward, terminated, truncated, _ = world.step(
                algorithm.predict(np.asarray(obs, np.float32)[None])[0]
            )
            total, done = total + float(reward), terminated or truncated
    print(total / int(episodes))


if __name__ == "__main__":
    main(*sys.argv[1:])
