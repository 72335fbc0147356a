"""Inference of several agents, as in the Reactor paper's benchmark: ours against Ray with one actor
per agent.

The environment of all programs is ma-gym's TrafficJunction in Python, with 4 and 10 agents. Each
agent sees the observations of all and has a separate network of 64 hidden units.

``make bench-agents`` sets up `.venv-peers-ray` and, in a folder next to it, ma-gym, and runs
everything; ``python experiments/bench/agents_inference.py [4] [10] [--turns=1]`` runs a part. Turns
already in the file are not repeated, so an interrupted run can be resumed. ``--page`` writes the
table only. Every contender is a new process in every turn. Slow programs run fewer steps than the
paper's 100,000; the table scales. Ours and Ray tuned get the same sum of rewards from equal numbers
of steps, except for decisions that rounding changes. Run it on an otherwise idle machine.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent)]

from describe import commit, machine, versions  # noqa: E402
from run import once, spread  # noqa: E402

RESULT = HERE.parent / "results" / "bench" / "agents_inference.json"
PAGE = RESULT.with_suffix(".md")
ROOT = HERE.parent.parent
RAY = Path(os.environ.get("BENCH_RAY", ROOT / ".venv-peers-ray" / "bin" / "python"))
MAGYM = Path(os.environ.setdefault("BENCH_MAGYM", str(ROOT / ".venv-peers-ray" / "magym")))
AGENTS, TURNS, PAPER_STEPS, MUST = (4, 10), 3, 100_000, 5.12
MANY = ("64x12800", "256x51200")
CONTENDERS = {
    "ours": (sys.executable, "junction_ours.py", "host", ("1x5000", *MANY)),
    "ours, workers act": (sys.executable, "junction_ours.py", "workers", ("1x6400", *MANY)),
    "Ray, tuned": (str(RAY), "junction_ray.py", "tuned", ("1x200", *MANY)),
    "Ray, as written": (str(RAY), "junction_ray.py", "written", ("1x200",)),
    "ma-gym alone": (sys.executable, "junction_ours.py", "alone", ("1x5000", *MANY)),
    "ours, compiled": (sys.executable, "junction_ours.py", "compiled", ("1x5000", *MANY)),
}
"""Python, worker, description, and the numbers of junctions and of steps."""


def measure(num_agents: int, document: dict[str, Any], turns: int) -> None:
    """Measure this many turns of all contenders, or the missing ones; write after each contender."""
    runs = document["rows"].setdefault(str(num_agents), {})
    lacking = [
        turn for turn in range(TURNS) if any(len(runs.get(name, [])) <= turn for name in CONTENDERS)
    ]
    for turn in lacking[:turns]:
        for name, (python, worker, how, asked) in CONTENDERS.items():
            done = runs.setdefault(name, [])
            if len(done) > turn:
                continue
            words = worker, how, str(num_agents), *asked
            found = once(python, *words)
            seconds = {word.split("x")[0]: per_100_000(found, word) for word in asked}
            where = {"machine": machine(), "versions": versions(RAY), "commit": commit()}
            done.append({"seconds": seconds, "found": found, "command": " ".join(words), **where})
            RESULT.write_text(json.dumps(document, indent=1) + "\n")
            print(f"{num_agents} agents, turn {turn + 1}: {name} {seconds}", flush=True)


def per_100_000(found: dict[str, Any], word: str) -> float:
    """Scale the seconds of ``junctions x steps`` to the paper's number of steps."""
    count, _, steps = word.partition("x")
    return found[count]["seconds"] * PAPER_STEPS / (int(steps) // int(count) * int(count))


def page(document: dict[str, Any]) -> str:
    """Write the table, or a note that there is none yet."""
    lines = [
        "| agents | junctions | program | 100,000 steps, s | Ray tuned / this | bound: Ray tuned / ma-gym alone |"
    ]
    lines.append("|---|---|---|---|---|---|")
    for num_agents in AGENTS:
        runs = document["rows"].get(str(num_agents), {})
        if not runs:
            lines.append(f"| {num_agents} | | not run yet | | | |")
            continue
        for count in ("1", "64", "256"):
            names = [
                name for name in CONTENDERS if name in runs and count in runs[name][0]["seconds"]
            ]
            lines += [line(num_agents, count, name, runs) for name in names]
    return "\n".join(lines) + "\n"


def line(num_agents: int, count: str, name: str, runs: dict[str, list[dict[str, Any]]]) -> str:
    """Write a program's line: medians [least, most]; ratios within a turn."""

    def times(other: str, side: str) -> str:
        pairs = zip(runs[other], runs[side], strict=False)
        found = spread([a["seconds"][count] / b["seconds"][count] for a, b in pairs])
        return f"{found['median']:.2f} × [{found['least']:.2f}, {found['most']:.2f}]"

    took = spread([run["seconds"][count] for run in runs[name]])
    seconds = f"{took['median']:.1f} [{took['least']:.1f}, {took['most']:.1f}]"
    cells = [str(num_agents), count, name, seconds, "", ""]
    if not name.startswith("Ray, tuned") and name != "ma-gym alone":
        cells[4] = times("Ray, tuned", name)
    if name == "ours":
        cells[5] = times("Ray, tuned", "ma-gym alone")
    return f"| {' | '.join(cells)} |"


def main(words: list[str]) -> None:
    """Measure the requested rows, and write the page."""
    turns = TURNS
    for word in words:
        if word.startswith("--turns=") and word.removeprefix("--turns=").isdigit():
            turns = int(word.removeprefix("--turns="))
        elif word not in (*map(str, AGENTS), "--page"):
            raise SystemExit(f"{word}: write {' or '.join(map(str, AGENTS))}, --turns=1 or --page")
    known = json.loads(RESULT.read_text()) if RESULT.exists() else {"must": MUST, "rows": {}}
    asked = [int(word) for word in words if not word.startswith("--")] or AGENTS
    for needed in () if "--page" in words else (RAY, MAGYM):
        if not needed.exists():
            raise SystemExit(f"{needed} is missing: run make bench-agents, which makes it")
    for num_agents in () if "--page" in words else asked:
        measure(num_agents, known, turns)
    PAGE.write_text(page(known))
    print(PAGE.read_text())


if __name__ == "__main__":
    main(sys.argv[1:])
