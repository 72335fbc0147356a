"""Runs the pairs of ``docs/coming_from.md``: the same training in another library and here, one after the other.

``python experiments/coming_from/run.py [sb3 rejax brax purejaxrl cleanrl]``. Peers run in the environments that ``make
bench`` and ``make bench-host`` set up; for CleanRL and PureJaxRL name a copy of their repositories: ``CLEANRL=<folder>
PUREJAXRL=<folder>``, and for the first a Python that has what it needs: ``CLEANRL_PYTHON=<python>``. Results go to
``experiments/results/coming_from.json``; seconds count everything, from the first import to the last line.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
sys.path.insert(0, str(FOLDER.parent))
RESULTS = FOLDER.parent / "results" / "coming_from.json"
LIMIT_S = 1_800


class Pair(NamedTuple):
    """One program twice: ``theirs`` and ``ours``, words behind a Python; ``python``: theirs, relative to the
    repository; ``path``: the variable that names where their script lies, in a ``subfolder`` of it."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    python: str
    path: str = ""
    subfolder: str = ""


def programs(name: str, python: str, path: str = "", subfolder: str = "") -> Pair:
    """A pair of files of this folder."""
    files = (f"experiments/coming_from/{side}_{name}.py" for side in ("theirs", "ours"))
    return Pair(*((file,) for file in files), python, path, subfolder)


PPO = "--learning-rate 1e-3 --num-envs 8 --num-steps 128 --num-minibatches 4 --update-epochs 8"
SAME = "algo.learning_rate=linear:1e-3:0 num_envs=8 algo.rollout_length=128 algo.num_minibatches=4 algo.num_epochs=8"
PAIRS = {
    "sb3": programs("sb3", ".venv-peers-host"),
    "rejax": programs("rejax", ".venv-peers"),
    "purejaxrl": programs("purejaxrl", ".venv-peers", "PUREJAXRL", "purejaxrl"),
    "brax": programs("brax", ".venv-peers"),
    "cleanrl": Pair(
        ("cleanrl/ppo.py", "--env-id", "CartPole-v1", "--total-timesteps", "100000", *PPO.split()),
        (
            "-m",
            "jaxrl_fast.train",
            "env=gymnasium",
            "env.id=CartPole-v1",
            "algo=ppo",
            "total_steps=100000",
            *SAME.split(),
        ),
        ".venv-peers-host",
        "CLEANRL",
    ),
}


def run(command: list[str], folder: Path, **variables: str) -> dict[str, Any]:
    """What a program printed last that is a return, and how long it took."""
    begin = time.perf_counter()
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, timeout=LIMIT_S
    )
    seconds = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    found = re.findall(r"(?:return|episodic_return=)[^\d\n=-]*\[?(-?[\d,]+\.?\d*)", done.stdout)
    return {"return": float(found[-1].replace(",", "")) if found else None, "seconds": seconds}


def measure(pair: Pair) -> dict[str, Any]:
    """Both sides, each in an empty folder of compiled programs."""
    from describe import machine

    theirs = Path(os.environ.get(pair.path, "")) if pair.path else ROOT
    folder = ROOT if pair.theirs[0].startswith("experiments") else theirs
    python = os.environ.get("CLEANRL_PYTHON") if pair.path == "CLEANRL" else None
    python = python or str(ROOT / pair.python / "bin" / "python")
    more = os.pathsep.join([str(theirs / pair.subfolder), os.environ.get("STAND_INS", "")])
    return {
        "theirs": run([python, *pair.theirs], folder, PYTHONPATH=more),
        "ours": run([sys.executable, *pair.ours], ROOT, PYTHONPATH=str(ROOT), JAXRL_FAST_CACHE="off"),
        "machine": machine(),
    }


def main(names: list[str]) -> None:
    """Measure the pairs that are named, all by default."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in names or PAIRS:
        results[name] = measure(PAIRS[name])
        print(name, results[name], flush=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
