"""Has a change made training slower? ``make bench-gate``, six minutes on two cores of an otherwise
idle machine.

Each row is a training program of ours and a fixed program in plain JAX or Gymnasium
(``bare_*.py``), with the same environment, networks and batches; no other library is needed. Both
are compiled and warm, and then measured A B A B. The ratio of a round counts, since a slow machine
slows both. The medians are compared with the committed ones in experiments/results/bench_gate.json
by the rule of `gate_rule`; a slower row gives exit code 1.
``python experiments/bench/gate.py --write [row ...]`` commits new figures, ``--plan`` prints the
plan.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent)]

from describe import commit, machine, versions  # noqa: E402
from gate_rule import Figure, compare, figure  # noqa: E402
from run import Worker  # noqa: E402

RESULT = HERE.parent / "results" / "bench_gate.json"


class Row(NamedTuple):
    """Words of both workers, the counted unit, rounds, and about how many minutes the row takes."""

    ours: tuple[str, ...]
    fixed: tuple[str, ...]
    unit: str
    rounds: int
    minutes: float


ROWS = {
    "ppo_halfcheetah": Row(
        ("ours.py", "ppo_halfcheetah_short", "train"), ("bare_ppo.py", "halfcheetah"), "steps", 7, 2
    ),
    "sac_halfcheetah": Row(
        ("ours.py", "sac_halfcheetah", "train"), ("bare_sac.py", "halfcheetah"), "updates", 11, 2
    ),
    "ppo_cartpole": Row(
        ("ours.py", "ppo_cartpole", "train"), ("bare_ppo.py", "cartpole"), "steps", 9, 1
    ),
    "sac_host": Row(("ours_host.py", "train"), ("bare_sac.py", "HalfCheetah-v5"), "updates", 7, 1),
    "pool": Row(("ours_pool.py", "pool"), ("ours_pool.py", "loop"), "steps", 9, 0.5),
}


def measure(name: str) -> list[dict[str, float]]:
    """Measure the rates of both in every round, and the seconds of the row."""
    row, rounds = ROWS[name], []
    begin = time.perf_counter()
    both = {
        what: Worker(sys.executable, *words)
        for what, words in (("ours", row.ours), ("fixed", row.fixed))
    }
    try:
        for worker in both.values():
            worker.read()
        ready_s = time.perf_counter() - begin
        for number in range(row.rounds):
            order = list(both) if number % 2 == 0 else list(both)[::-1]
            said = {what: both[what].repeat() for what in order}
            rounds.append({what: one[row.unit] / one["seconds"] for what, one in said.items()})
    finally:
        for worker in both.values():
            worker.process.terminate()
            worker.process.wait()
    print(
        f"{name}: ready after {ready_s:.0f} s, measured after {time.perf_counter() - begin:.0f} s",
        flush=True,
    )
    return rounds


def read_committed() -> dict[str, Any]:
    """Read the committed figures."""
    return json.loads(RESULT.read_text()) if RESULT.exists() else {"rows": {}}


def write(rounds: dict[str, list[dict[str, float]]], figures: dict[str, Figure]) -> None:
    """Write rows into the committed file."""
    where = {"machine": machine(), "versions": versions(), "commit": commit()}
    rows = {
        name: {**figures[name]._asdict(), "unit": ROWS[name].unit, "rounds": rounds[name], **where}
        for name in rounds
    }
    document = {
        "command": "python experiments/bench/gate.py --write",
        "rows": read_committed()["rows"] | rows,
    }
    RESULT.write_text(json.dumps(document, indent=1) + "\n")


def main(words: list[str]) -> int:
    """Measure, and compare or write; return the exit code."""
    names = [word for word in words if not word.startswith("--")] or list(ROWS)
    unknown = [word for word in words if word not in (*ROWS, "--write", "--plan")]
    if unknown:
        return refuse(f"{unknown[0]}: write one of {', '.join(ROWS)}, --write, --plan")
    if "--plan" in words:
        print(
            *(f"{name}: about {ROWS[name].minutes:g} minutes, {ROWS[name]}" for name in names),
            sep="\n",
        )
        return 0
    known = read_committed()["rows"]
    lacking = [name for name in names if name not in known]
    if lacking and "--write" not in words:
        return refuse(
            f"no committed figures of {', '.join(lacking)}: write python experiments/bench/gate.py --write"
        )
    rounds = {name: measure(name) for name in names}
    figures = {
        name: figure([one["ours"] / one["fixed"] for one in each]) for name, each in rounds.items()
    }
    committed = {name: Figure(row["median"], row["spread"]) for name, row in known.items()}
    if "--write" in words:
        write(rounds, figures)
    lines, fallen = compare(committed, figures)
    print(*lines, sep="\n")
    if machines := {row["machine"] for name, row in known.items() if name in names} - {machine()}:
        print(
            f"measured on {machine()}, committed on {', '.join(machines)}: a ratio may differ for that alone"
        )
    if "--write" in words:
        return 0
    return 1 if fallen else 0


def refuse(line: str) -> int:
    """Print the error."""
    print(f"bench-gate: {line}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
