"""What a newcomer waits for: the README's commands, one after the other, in a fresh clone with
empty caches of ours.

``python experiments/startup/newcomer.py [step ...]`` (``make newcomer``; steps: clone, setup,
cartpole, cheetah, test; default: all, an hour or more) runs the steps in a new folder and writes
their seconds to experiments/results/newcomer_waits.json and .md, for docs/startup.md. pip's own
cache stays. The last figure of a step that is not named stays. Run it on an otherwise idle machine.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import ROOT, commit, machine

RESULT = ROOT / "experiments" / "results" / "newcomer_waits.json"


def run(clone: Path, *words: str) -> tuple[float, str]:
    """Run a command in the clone; return its seconds and what it printed."""
    env = {
        key: value
        for key, value in os.environ.items()
        if key not in ("PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS")
    }
    env |= {"JAXRL_FAST_CACHE": str(clone.parent / "cache")}
    begin_s = time.perf_counter()
    done = subprocess.run(
        words, cwd=clone, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return time.perf_counter() - begin_s, done.stdout


def trained(clone: Path, *words: str) -> dict[str, Any]:
    """Train by ``make train``; return seconds, those to the first step, and the return."""
    seconds, _ = run(clone, "make", "train", *words)
    summary = json.loads((clone / "runs" / "latest" / "summary.json").read_text())
    first_s = seconds - summary["wall_s"] + summary["time_to_first_step_s"]
    return {"seconds": seconds, "first_step_s": first_s, "return": summary["eval_return_mean"]}


def tested(clone: Path) -> dict[str, Any]:
    """Run ``make test``; return seconds and the number of tests that passed."""
    seconds, out = run(clone, "make", "test")
    return {"seconds": seconds, "passed": int(re.findall(r"(\d+) passed", out)[-1])}


STEPS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "setup": lambda clone: {"seconds": run(clone, "make", "setup")[0]},
    "cartpole": lambda clone: trained(clone, "ARGS=env=cartpole algo=ppo"),
    "cheetah": trained,
    "test": tested,
}
"""Steps after the clone; all but the first need ``setup`` in the same call."""
COMMANDS = {
    "clone": "`git clone`, from this disk",
    "setup": "`make setup`",
    "cartpole": '`make train ARGS="env=cartpole algo=ppo"`',
}
COMMANDS |= {"cheetah": "`make train`", "test": "`make test`"}


def table(found: dict[str, Any]) -> str:
    """Write the table."""
    rows = ["| command | seconds | of these to the first step | result |", "|---|---|---|---|"]
    for name, command in COMMANDS.items():
        row = found.get(name)
        if row is None:
            rows.append(f"| {command} | not run yet | | |")
            continue
        first = f"{row['first_step_s']:.0f}" if "first_step_s" in row else ""
        result = (
            f"return {row['return']:,.0f}"
            if "return" in row
            else f"{row['passed']:,} passed"
            if "passed" in row
            else ""
        )
        rows.append(f"| {command} | {row['seconds']:,.0f} | {first} | {result} |")
    return "\n".join(rows) + "\n"


def main(words: list[str]) -> None:
    """Run the steps, and write the table."""
    for word in words:
        if word not in COMMANDS:
            raise SystemExit(f"{word}: write one of {', '.join(COMMANDS)}")
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        clone, begin_s = Path(folder) / "jaxrl_fast", time.perf_counter()
        subprocess.run(["git", "clone", "--quiet", "--no-local", str(ROOT), str(clone)], check=True)
        steps = {"clone": lambda clone: {"seconds": cloned_s}} | STEPS
        cloned_s, at = time.perf_counter() - begin_s, commit()
        for name, step in steps.items():
            if words and name not in words:
                continue
            found[name] = {**step(clone), "machine": machine(), "commit": at}
            print(name, found[name], flush=True)
            RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            RESULT.with_suffix(".md").write_text(table(found))


if __name__ == "__main__":
    main(sys.argv[1:])
