"""Training killed with SIGKILL again and again, also while it saves, and resumed: is anything lost?

``python experiments/laws/kill.py [kills]`` runs each job once undisturbed, then with
``run_dir=X resume=auto`` as a cluster requeues it, killed ``kills`` times (default 20). At the end
parameters, tables and the whole last checkpoint must equal the undisturbed run's, bit for bit. The
result is written to experiments/results/kill.json.
"""

import csv
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import ROOT, machine, versions

from jaxrl_fast.training.checkpoints import all_steps, read_arrays, read_description, verify

RESULTS = Path(__file__).resolve().parent.parent / "results"
JOBS = {
    "sac pendulum": (
        "env=pendulum",
        "algo=sac",
        "tuned=false",
        "num_envs=4",
        "total_steps=40_000",
        "algo.updates_per_tick=2",
        "algo.batch_size=64",
        "algo.buffer_size=20_000",
        "algo.warmup_steps=400",
        "algo.policy_hidden=[32,32]",
        "algo.critic_hidden=[32,32]",
        "eval.episodes=2",
        "checkpoint.every=4000",
    ),
    "ppo cartpole": (
        "env=cartpole",
        "algo=ppo",
        "tuned=false",
        "num_envs=8",
        "total_steps=1_000_000",
        "algo.rollout_length=32",
        "eval.episodes=2",
        "checkpoint.every=100_000",
    ),
}
HOW = ("training", "saving", "training", "saving", "starting")
"""The activity of the process when it is killed, in turn."""


def command(*words: str) -> subprocess.Popen:
    """Start a training process."""
    return subprocess.Popen(
        [sys.executable, "-m", "jaxrl_fast.train", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tempfile.gettempdir(),  # where `runs/latest` is written
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def rows(folder: Path) -> list[list[str]]:
    """Read ``metrics.csv``, without a last incomplete line."""
    path = folder / "metrics.csv"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return list(csv.reader(line for line in lines if line.endswith("\n")))


def steps_done(folder: Path) -> int:
    """Return the number of environment steps in the tables."""
    table = rows(folder)
    return int(table[-1][table[0].index("env_steps")]) if len(table) > 1 else 0


def good_steps(folder: Path) -> int:
    """Return the environment steps of the newest complete checkpoint.

    Raises:
        CheckpointError: A checkpoint with a complete name is damaged.
    """
    steps = all_steps(folder / "checkpoints")
    for step in steps[-1:]:
        verify(read_description(folder / "checkpoints" / str(step)))
    return steps[-1] if steps else 0


def kill_once(
    words: tuple[str, ...], folder: Path, how: str, chance: random.Random
) -> dict[str, Any] | None:
    """Start or resume a run and kill it at a random moment; return None if it ended before."""
    before, begin = steps_done(folder), time.monotonic()
    process = command(*words, f"run_dir={folder}", "resume=auto")
    wanted = before + chance.randint(1, number(words, "total_steps") // 4)
    moment = begin + chance.uniform(0.2, 4.0)
    while process.poll() is None:
        if how == "starting" and time.monotonic() > moment:
            break
        if how == "training" and steps_done(folder) >= wanted:
            time.sleep(chance.uniform(0.0, 0.05))
            break
        if (
            how == "saving"
            and steps_done(folder) >= wanted
            and list(folder.glob("checkpoints/*.unfinished"))
        ):
            time.sleep(chance.uniform(0.0, 0.05))
            break
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    errors = process.communicate()[1]
    if process.returncode != -signal.SIGKILL:
        assert process.returncode == 0, errors
        return None
    unfinished = bool(list(folder.glob("checkpoints/*.unfinished")))
    return {
        "how": how,
        "steps": steps_done(folder),
        "kept": good_steps(folder),
        "in the middle of a save": unfinished,
    }


def number(words: tuple[str, ...], key: str) -> int:
    """Return a job's last value of a key."""
    return int([word for word in words if word.startswith(f"{key}=")][-1].partition("=")[2])


def without_times(folder: Path, name: str) -> list[list[str]]:
    """Return a table without the columns of times."""
    table = list(csv.reader((folder / name).read_text().splitlines()))
    timed = {i for i, column in enumerate(table[0]) if column == "wall_s" or column.endswith("_hz")}
    return [[cell for i, cell in enumerate(row) if i not in timed] for row in table]


def same_end(a: Path, b: Path) -> bool:
    """Return whether two runs ended with the same tables and the same whole state."""
    (last,) = {all_steps(folder / "checkpoints")[-1] for folder in (a, b)}
    states = [
        read_arrays(read_description(folder / "checkpoints" / str(last))) for folder in (a, b)
    ]
    equal = states[0].keys() == states[1].keys() and all(
        np.array_equal(x, states[1][n]) for n, x in states[0].items()
    )
    tables = all(
        without_times(a, name) == without_times(b, name) for name in ("metrics.csv", "evals.csv")
    )
    return equal and tables


def run(*words: str) -> None:
    """Train a whole run.

    Raises:
        AssertionError: It failed.
    """
    process = command(*words)
    errors = process.communicate()[1]
    assert process.returncode == 0, errors


def job(words: tuple[str, ...], kills: int, folder: Path, seed: int = 0) -> dict[str, Any]:
    """Run one job, undisturbed and killed; print the loss of each kill.

    Raises:
        CheckpointError: A kill left a damaged checkpoint behind.
        AssertionError: The end differs from the undisturbed run's, or more than two intervals were
            lost.
    """
    chance = random.Random(seed)
    whole, killed = folder / "whole", folder / "killed"
    run(*words, f"run_dir={whole}")
    events: list[dict[str, Any]] = []
    while len(events) < kills:
        event = kill_once(words, killed, HOW[len(events) % len(HOW)], chance)
        if event is None:  # it ended: start again, so that every kill counts
            assert same_end(whole, killed)
            killed = folder / f"killed-{len(events)}"
            continue
        events.append(event)
        print(event, flush=True)
    run(*words, f"run_dir={killed}", "resume=auto")
    assert same_end(whole, killed)
    interval = number(words, "checkpoint.every")
    lost = max((e["steps"] - e["kept"]) / interval for e in events)
    assert lost <= 2
    return {"kills": events, "most lost, in intervals": lost, "equal to the undisturbed run": True}


def main(kills: int) -> None:
    """Run both jobs, half of the kills each."""
    result: dict[str, Any] = {
        "command": f"python experiments/laws/kill.py {kills}",
        "machine": machine(),
    }
    result["versions"] = versions()
    with tempfile.TemporaryDirectory() as folder:
        for name, words in JOBS.items():
            result[name] = job(words, kills // len(JOBS), Path(folder) / name.replace(" ", "-"))
    (RESULTS / "kill.json").write_text(json.dumps(result, indent=1) + "\n")
    print({name: result[name]["most lost, in intervals"] for name in JOBS})


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
