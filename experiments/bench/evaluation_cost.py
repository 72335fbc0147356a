"""The cost of evaluation: during training, and between its chunks, against the same run without
evaluation.

``python experiments/bench/evaluation_cost.py [pairs [job ...]]`` runs each job in all three ways in
turn, ``pairs`` times (default 3), after one run that fills the cache of compiled programs. The
whole jobs (8 minutes a run) must be named; before them, the beginning of one run and a short run
fill the cache. The run reports the seconds: of training until the last update, and of the whole
command, with the last evaluation, the evaluation of the best policy, and pictures. The run without
evaluation is the command with two functions left out, for which there is no option. The result is
written to experiments/results/evaluation_cost.json. Run it on an otherwise idle machine.
"""

import csv
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import machine, versions

WARM_S = 60.0
SHORT = "total_steps=9_600"
RESULTS = Path(__file__).resolve().parent.parent / "results" / "evaluation_cost.json"
JOBS = {
    "sac halfcheetah": ("env=halfcheetah", "algo=sac", "total_steps=32_000"),
    "ppo halfcheetah": ("env=halfcheetah", "algo=ppo", "total_steps=655_360"),
    "ppo cartpole": ("env=cartpole", "algo=ppo"),
    "sac halfcheetah, groups": (
        *("env=halfcheetah", "algo=sac", "total_steps=32_000"),
        *("placement=actor_critic", "overlap=all", "devices=2"),
    ),
    "ppo cartpole, cold": ("env=cartpole", "algo=ppo"),
    "sac halfcheetah, cold": ("env=halfcheetah", "algo=sac", "total_steps=32_000"),
    "sac halfcheetah, whole": ("env=halfcheetah", "algo=sac", "total_steps=160_000"),
    "ppo halfcheetah, whole": ("env=halfcheetah", "algo=ppo"),
}
"""*Cold* jobs have no programs on disk; the *whole* ones run only with evaluation during training
and without evaluation.
"""
WAYS = {"beside": (), "between chunks": ("eval.beside=false",), "none": ("eval.beside=false",)}
COMMAND = ("-m", "jaxrl_fast.train")
WITHOUT_ANY = """import sys
from jaxrl_fast import train
from jaxrl_fast.training.evaluations import Evaluations
Evaluations.add = lambda self, state: None
Evaluations.start_scoring_best = lambda self: None
sys.exit(train.main(sys.argv[1:], keep=True))
"""


def train(
    words: tuple[str, ...],
    way: str,
    folder: Path,
    *,
    cold: bool = False,
    only_s: float | None = None,
) -> None:
    """Make a run, or its first ``only_s`` seconds."""
    program = ("-c", WITHOUT_ANY) if way == "none" else COMMAND
    command = [
        sys.executable,
        *program,
        *words,
        *WAYS[way],
        f"run_dir={folder}",
        "checkpoint.keep=0",
    ]
    env = {**os.environ, **({"JAXRL_FAST_CACHE": "off"} if cold else {})}
    run = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        status = run.wait(only_s)
    except subprocess.TimeoutExpired:
        run.send_signal(signal.SIGINT)
        run.wait()
    else:
        if status:
            raise SystemExit(f"{' '.join(command)} ended with status {status}")


def seconds(words: tuple[str, ...], way: str, folder: Path, *, cold: bool) -> dict[str, float]:
    """Return the seconds of one run until its first step, until its last update, and in total."""
    train(words, way, folder, cold=cold)
    summary = json.loads((folder / "summary.json").read_text())
    rows = list(csv.DictReader((folder / "metrics.csv").open()))
    return {
        "first_step_s": summary["time_to_first_step_s"],
        "last_update_s": float(rows[-1]["wall_s"]),
        "all_s": summary["wall_s"],
        "eval_s": summary["eval_s"],
        "waited_s": summary["eval_wait_s"],
    }


def compare(name: str, pairs: int) -> dict[str, Any]:
    """Measure the seconds of every run, and medians of the ratios within each round."""
    words, cold, whole = JOBS[name], name.endswith("cold"), name.endswith("whole")
    ways = [way for way in WAYS if way != "between chunks" or not whole]
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as folder:
        for way in () if cold else ways:
            train(words, way, Path(folder) / f"{way} warm", only_s=WARM_S if whole else None)
            if whole:  # a stopped run has not compiled the program that draws its policy
                train((*words, SHORT), way, Path(folder) / f"{way} short")
        for number in range(pairs):
            for way in ways:
                found[way].append(seconds(words, way, Path(folder) / f"{way} {number}", cold=cold))
    ratios = {
        way: {
            until: spread(
                [
                    run[until] / base[until]
                    for run, base in zip(found[way], found["none"], strict=True)
                ]
            )
            for until in ("last_update_s", "all_s")
        }
        for way in ways
        if way != "none"
    }
    return {"words": list(words), "ratios": ratios, "runs": found}


def spread(values: list[float]) -> list[float]:
    """Median, least and most."""
    return [statistics.median(values), min(values), max(values)]


def main(pairs: int, names: list[str]) -> None:
    """Run the jobs named, or all; results of the others stay in the file."""
    result: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    result |= {"unit": "seconds; ratios: median, least, most"}
    where = {"machine": machine(), "versions": versions()}
    for name in names or [job for job in JOBS if not job.endswith("whole")]:
        result[name] = {"pairs": pairs, **where, **compare(name, pairs)}
        print(name, json.dumps(result[name]["ratios"]), flush=True)
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3, sys.argv[2:])
