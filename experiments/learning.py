"""The learning runs that we publish: each row is one command; its figures and curve go to ``experiments/results/``.

``python experiments/learning.py`` runs every row, ``python experiments/learning.py cartpole_ppo`` one.
"""

import json
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from describe import machine

from jaxrl_fast.runs.folder import read_evaluations

RESULTS = Path(__file__).parent / "results"


class Row(NamedTuple):
    """The words of a command, and the greedy return (mean over seeds) that it must reach."""

    words: tuple[str, ...]
    must_reach: float


ROWS = {
    "cartpole_ppo": Row(("env=cartpole", "algo=ppo", "num_seeds=8"), 475.0),
    "cartpole_dqn": Row(("env=cartpole", "algo=dqn", "num_seeds=8"), 475.0),
    "breakout_dqn": Row(("env=breakout", "algo=dqn"), 10.0),
    "cartpole_pqn": Row(("env=cartpole", "algo=pqn", "num_seeds=5"), 475.0),
    "cartpole_impala": Row(("env=cartpole", "algo=impala", "num_seeds=5", "overlap=sampling"), 475.0),
    "pendulum_td3": Row(("env=pendulum", "algo=td3", "num_seeds=5"), -170.0),
    "pendulum_sac": Row(("env=pendulum", "algo=sac", "num_seeds=8"), -180.0),
    "halfcheetah_ppo": Row(("env=halfcheetah", "algo=ppo", "num_seeds=3", "total_steps=819_200"), 1000.0),
    "halfcheetah_sac": Row(("env=halfcheetah", "algo=sac", "num_seeds=3", "total_steps=150_400"), 2000.0),
}


def main(names: list[str]) -> None:
    """Run rows and print a table."""
    RESULTS.mkdir(exist_ok=True)
    lines = [measure(name, ROWS[name]) for name in names or ROWS]
    print("\n| row | steps | greedy return, mean over seeds [95 %] | must | wall-clock |\n|---|---|---|---|---|")
    print("\n".join(lines))


def measure(name: str, row: Row) -> str:
    """Train, keep what was measured, and return a line of the table."""
    words = ["-m", "jaxrl_fast.train", *row.words]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / name
        subprocess.run([sys.executable, *words, f"run_dir={folder}"], check=True)
        summary = json.loads((folder / "summary.json").read_text())
        table = read_evaluations(folder)
        shutil.copy(folder / "curve.png", RESULTS / f"{name}.png")
        shutil.copy(folder / "config.yaml", RESULTS / f"{name}.yaml")
    steps = np.unique(table["env_steps"])
    curve = [
        {"env_steps": int(step), "returns": [mean_of(table, step, seed) for seed in np.unique(table["seed"])]}
        for step in steps
    ]
    result = {
        "command": " ".join(["python", *words]),
        "machine": machine(),
        "python": platform.python_version(),
        "must_reach": row.must_reach,
        "reached": summary["eval_return_mean"] >= row.must_reach,
        "summary": summary,
        "curve": curve,
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    interval = summary.get("eval_return_ci95")  # of several seeds
    spread = "" if interval is None else " [{:.1f}, {:.1f}]".format(*interval)
    return (
        f"| {name} | {summary['env_steps']:,} | {summary['eval_return_mean']:.1f}{spread} "
        f"| {row.must_reach:g} | {summary['wall_s']:.0f} s |"
    )


def mean_of(table: dict[str, np.ndarray], step: float, seed: float) -> float:
    """The mean return of one seed's episodes in one evaluation."""
    return float(table["return"][(table["env_steps"] == step) & (table["seed"] == seed)].mean())


if __name__ == "__main__":
    main(sys.argv[1:])
