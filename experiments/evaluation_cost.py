"""What evaluation costs a run: beside training, and between its chunks, against the same run without any.

``python experiments/evaluation_cost.py [pairs [job ...]]`` runs each job (the whole ones only where they are named:
8 minutes a run) in all three ways in turn, ``pairs`` times
(default 3), after one run that fills the cache of compiled programs. Seconds are the run's own: of training until the
last update, and of the whole command, with the last evaluation and that of the best policy; from the run without any
those that it cannot leave out are subtracted. Written to experiments/results/evaluation_cost.json; run nothing
else meanwhile.
"""

import csv
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from describe import machine, versions

RESULTS = Path(__file__).resolve().parent / "results" / "evaluation_cost.json"
JOBS = {
    "sac halfcheetah": ("env=halfcheetah", "algo=sac", "total_steps=32_000"),
    "ppo halfcheetah": ("env=halfcheetah", "algo=ppo", "total_steps=655_360"),
    "ppo cartpole": ("env=cartpole", "algo=ppo"),
    "sac halfcheetah, whole": ("env=halfcheetah", "algo=sac"),
    "ppo halfcheetah, whole": ("env=halfcheetah", "algo=ppo"),
}
WAYS = {
    "beside": (),
    "between chunks": ("eval.beside=false",),
    "none": ("eval.beside=false", "eval.every=1_000_000_000", "eval.episodes=1"),
}


def seconds(words: tuple[str, ...], folder: Path) -> dict[str, float]:
    """Of one run: until its first step, until its last update, and all."""
    subprocess.run(
        [sys.executable, "-m", "jaxrl_fast.train", *words, f"run_dir={folder}", "checkpoint.keep=0"],
        check=True,
        capture_output=True,
    )
    summary = json.loads((folder / "summary.json").read_text())
    rows = list(csv.DictReader((folder / "metrics.csv").open()))
    return {
        "first_step_s": summary["time_to_first_step_s"],
        "last_update_s": float(rows[-1]["wall_s"]),
        "all_s": summary["wall_s"],
        "eval_s": summary["eval_s"],
        "waited_s": summary["eval_wait_s"],
    }


def compare(words: tuple[str, ...], pairs: int) -> dict[str, Any]:
    """Seconds of every run, and medians of the ratios within each round."""
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        for way, more in WAYS.items():
            seconds((*words, *more), Path(folder) / f"{way} warm")
        for number in range(pairs):
            for way, more in WAYS.items():
                found[way].append(seconds((*words, *more), Path(folder) / f"{way} {number}"))
    without = [{**run, "all_s": run["all_s"] - run["eval_s"]} for run in found["none"]]
    ratios = {
        way: {
            until: spread([run[until] / base[until] for run, base in zip(found[way], without, strict=True)])
            for until in ("last_update_s", "all_s")
        }
        for way in ("beside", "between chunks")
    }
    return {"words": list(words), "ratios": ratios, "runs": found}


def spread(values: list[float]) -> list[float]:
    """Median, least and most."""
    return [statistics.median(values), min(values), max(values)]


def main(pairs: int, names: list[str]) -> None:
    """The jobs named, or all; results of the others stay in the file."""
    result: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    result |= {"machine": machine(), "versions": versions(), "unit": "seconds; ratios: median, least, most"}
    for name in names or [job for job in JOBS if not job.endswith("whole")]:
        result[name] = {"pairs": pairs, **compare(JOBS[name], pairs)}
        print(name, json.dumps(result[name]["ratios"]), flush=True)
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3, sys.argv[2:])
