"""Does the autotuner's search select a width near the best of a full grid, and in which share of
the grid's time?

``python experiments/bench/autotune_search.py grid <job> [seconds]`` measures every width of the
search space, with all repeats, and resumes an earlier call that stopped after so many seconds.
``search <job>`` searches. Both compile without a cache. ``report`` prints the result,
experiments/results/autotune_search.json.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import machine, versions

from jaxrl_fast.commands import run_config
from jaxrl_fast.settings.machine import busy_seconds, cpu_cores
from jaxrl_fast.tuning.candidates import at_width, widths
from jaxrl_fast.tuning.measuring import Row, Settings, measure
from jaxrl_fast.tuning.search import GoOn, Outcome, patience
from jaxrl_fast.tuning.sweep_report import DISTURBED
from jaxrl_fast.tuning.sweep_report import line as report_line
from jaxrl_fast.tuning.width_sweep import Record, SweepPlan, try_widths

RESULT = Path(__file__).resolve().parent.parent / "results" / "autotune_search.json"
JOBS = {
    "pendulum_ppo": ["env=pendulum", "algo=ppo", "num_envs=96", "algo.rollout_length=105"],
    "inverted_pendulum_ppo": [
        "env=inverted_pendulum",
        "algo=ppo",
        "num_envs=96",
        "algo.rollout_length=105",
        "total_steps=1_000_000",
    ],
    "halfcheetah_sac": ["env=halfcheetah", "algo=sac"],
    "halfcheetah_ppo": ["env=halfcheetah", "algo=ppo"],
}
"""The tuned settings; for the pendulums with 10,080 samples per update, a number with many
divisors.
"""
REPEATS, REPEAT_S, QUIET_S = 5, 1.0, 3.0


def one(job: str, width: int, go_on: GoOn, folder: Path) -> Row:
    """Measure a width in a process without compiled programs on disk; repeat once where other
    programs disturbed it.
    """
    asked = run_config.compose(JOBS[job])
    while True:
        with tempfile.TemporaryDirectory() as programs:
            os.environ["JAXRL_FAST_CACHE"] = programs
            settings = Settings(folder, repeats=REPEATS, repeat_s=REPEAT_S)
            row = measure(at_width(asked, width), "training", go_on, settings)
        if row.others <= DISTURBED:
            return row
        print(f"{width}: other programs took {row.others:.0%} of the CPU, repeating", flush=True)
        wait_until_quiet()


def wait_until_quiet() -> None:
    """Return when other programs have left the machine idle for a few seconds; give up after a
    minute.
    """
    quiet_s, until = 0.0, time.monotonic() + 60
    while quiet_s < QUIET_S:
        if time.monotonic() > until:
            raise SystemExit(
                "other programs occupy the machine: run this again when they have ended"
            )
        before = busy_seconds()
        time.sleep(1.0)
        after = busy_seconds()
        if before is None or after is None:
            return
        busy = (after[0] - before[0]) / cpu_cores()
        quiet_s = quiet_s + 1.0 if busy < DISTURBED else 0.0


def facts(row: Row) -> dict[str, Any]:
    """Return the stored figures of a width."""
    return {
        "width": row.value,
        "status": row.status,
        "rates": row.rates("sampling_hz"),
        "took_s": row.took_s,
        "in_turn": row.in_turn,
    }


def grid(job: str, results: dict[str, Any], seconds: float) -> None:
    """Measure the missing widths, for about this many seconds."""
    legal = widths(run_config.compose(JOBS[job]), learns=True)[0]
    rows = results.setdefault(job, {}).setdefault("grid", [])
    until = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        for width in legal:
            if width in [row["width"] for row in rows] or time.monotonic() > until:
                continue
            rows.append(facts(one(job, width, patience([], REPEATS), Path(folder))))
            print(rows[-1], flush=True)
            keep(results)
    print(f"{job}: {len(rows)} of {len(legal)} widths")


def search(job: str, results: dict[str, Any]) -> None:
    """Search as a sweep does, with an empty cache of compiled programs, and store the measurements."""
    asked = run_config.compose(JOBS[job])
    record = Record(lambda record, row: print(report_line(row, row is record.best), flush=True))
    began_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as programs:
        os.environ["JAXRL_FAST_CACHE"] = programs
        settings = Settings(Path(folder), repeats=REPEATS, repeat_s=REPEAT_S)
        try_widths(SweepPlan(asked, "training", ("num_envs",)), record, settings)
    took_s = time.perf_counter() - began_s
    if record.width is None or any(row.others > DISTURBED for row in record.rows):
        raise SystemExit("other programs disturbed it: run this again when they are done")
    found = {
        "rows": [facts(row) for row in record.rows],
        "chosen": record.width.value,
        "took_s": took_s,
    }
    results.setdefault(job, {}).setdefault("searches", []).append(found)
    keep(results)


def keep(results: dict[str, Any]) -> None:
    """Write the results, with a description of the machine."""
    described = {
        "machine": machine(),
        "versions": versions(),
        "repeats": REPEATS,
        "repeat_s": REPEAT_S,
        "words": JOBS,
    }
    RESULT.write_text(json.dumps({**results, "measured with": described}, indent=1) + "\n")


def report(results: dict[str, Any]) -> None:
    """Compare each search with the grid: its choice against the best, both as the grid measured
    them, and its time.
    """
    for job in JOBS:
        rates = {
            row["width"]: Outcome(tuple(row["rates"])).rate
            for row in results.get(job, {}).get("grid", ())
        }
        grid_s = sum(row["took_s"] for row in results.get(job, {}).get("grid", ()))
        for found in results.get(job, {}).get("searches", ()) if rates else ():
            took_s = found["took_s"]
            best = max(rates, key=lambda width: rates[width])
            share = rates[found["chosen"]] / rates[best]
            print(
                f"{job}: grid of {len(rates)} widths {grid_s:.0f} s, best {best} at {rates[best]:,.0f} steps/s; "
                f"search of {len(found['rows'])} widths {took_s:.0f} s ({took_s / grid_s:.0%}), "
                f"chose {found['chosen']}, in the grid {share:.1%} of the best"
            )


def main(command: str, job: str = "", seconds: str = "1e9") -> None:
    """Run one step of the measurement."""
    results = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    if command == "grid":
        grid(job, results, float(seconds))
    if command == "search":
        search(job, results)
    report(results)


if __name__ == "__main__":
    main(*sys.argv[1:])
