"""README's first figures: the first command of a new user, alone on the machine, with an empty
cache.

``python experiments/learning/cheetah.py`` (five minutes, on an otherwise idle machine) trains in
``runs/cheetah`` with an empty cache folder and writes experiments/results/cheetah.json; then it
draws docs/cheetah.gif.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import commit, machine, versions

from jaxrl_fast.training.run_folder import read_columns

RESULT = Path(__file__).parent.parent / "results" / "cheetah.json"
FOLDER = Path("runs") / "cheetah"
TRAIN = "-m jaxrl_fast.train env=halfcheetah"
PICTURE = "-m jaxrl_fast.render {} out=docs/cheetah.gif seconds=5 width=400 fps=20"


def train() -> dict[str, Any]:
    """Train a whole run; return its figures."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    with tempfile.TemporaryDirectory() as cache:
        words = [sys.executable, *TRAIN.split(), f"run_dir={FOLDER}"]
        subprocess.run(words, env={**os.environ, "JAXRL_FAST_CACHE": cache}, check=True)
    summary = json.loads((FOLDER / "summary.json").read_text())
    return {
        "command": f"python {TRAIN}",
        "picture": f"python {PICTURE.format('runs/latest')}",
        "machine": machine(),
        "versions": versions(),
        "commit": commit(),
        "env_steps": summary["env_steps"],
        "wall_s": summary["wall_s"],
        "minutes": summary["wall_s"] / 60,
        "time_to_first_step_s": summary["time_to_first_step_s"],
        "return_mean": summary["eval_return_mean"],
        "return_std": summary["eval_return_std"],
        "episodes": summary["eval_episodes"],
        "curve": curve(FOLDER),
    }


def curve(folder: Path) -> list[dict[str, Any]]:
    """Return steps, seconds and mean greedy return of every evaluation."""
    table = read_columns(folder / "evals.csv")
    points = []
    for steps in np.unique(table["env_steps"]):
        at = table["env_steps"] == steps
        mean, wall_s = float(table["return"][at].mean()), float(table["wall_s"][at].max())
        points.append({"env_steps": int(steps), "wall_s": wall_s, "return_mean": mean})
    return points


def main() -> None:
    """Train, write, and draw."""
    RESULT.write_text(json.dumps(train(), indent=1) + "\n")
    subprocess.run([sys.executable, *PICTURE.format(FOLDER).split()], check=True)


if __name__ == "__main__":
    main()
