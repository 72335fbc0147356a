"""Does this tree compute the same numbers as another commit, bit for bit?

``python experiments/laws/same_numbers.py COMMIT [JOB ...]`` (CPU, two virtual devices) trains small
jobs at both commits, each in a separate process, from the same initial parameters. The other commit
draws these; at both commits, mapped by name, they replace the parameters of the graph's first state
(of the function ``init(graph, key, hyper)``). ``JOB`` is a prefix of the names of jobs.
`same_numbers_jobs` contains the jobs; `same_numbers_run` has ``RENAMES``, to fill in where names of
leaves or columns have changed.

The last state is compared leaf by leaf: parameters and targets must all have a partner; optimizers,
replay, environments and keys are compared where a leaf of that name and shape exists, and the
others are counted as unmapped. ``metrics.csv``, a row per tick, and ``evals.csv`` are compared
without times; a column that is new in this tree is left out.

A job that differs runs once more at both commits on a simulated processor without fused
multiply-add (XLA's ``--xla_cpu_max_isa=AVX``). If it is equal there, the programs compute the same,
and the compiler only fused another product with the same sum. The exit code is 1 where a job
differs both times. The result is written to experiments/results/same_numbers.json, job by job.
"""

import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import ROOT, machine, versions
from same_numbers_jobs import JOBS, Job
from same_numbers_run import mapped, mapped_env, required

SCRIPT = Path(__file__).with_name("same_numbers_run.py")
RESULT = Path(__file__).parent.parent / "results" / "same_numbers.json"
TABLES = ("metrics.csv", "evals.csv")
NO_FMA = "--xla_cpu_max_isa=AVX"
"""Processors with AVX only have no fused multiply-add, which rounds once where a product and a sum
round twice.
"""


class Difference(NamedTuple):
    """Difference between ``where`` and its partner; infinite where there are no two numbers to
    subtract.

    ``row``: the first row of a table that differs, counted from 1, so the tick of ``metrics.csv``;
    0 for a leaf.
    """

    size: float
    where: str
    row: int = 0


def git(*words: str) -> str:
    """Return git's output, in this repository."""
    return subprocess.run(
        ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def unpack(commit: str, folder: Path) -> Path:
    """Extract the files of a commit."""
    folder.mkdir()
    archive = subprocess.run(
        ["git", "archive", commit], cwd=ROOT, check=True, capture_output=True
    ).stdout
    subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
    return folder


def run(name: str, tree: Path, folder: Path, flags: str, *words: str | Path) -> None:
    """Run one job with the code of ``tree``; the other tree reuses its compiled programs.

    Raises:
        RuntimeError: It failed; with the last lines of its output.
    """
    settings = {
        "PYTHONPATH": str(tree),
        "JAX_PLATFORMS": "cpu",
        "JAX_TRACEBACK_FILTERING": "off",  # or JAX's message would come last
        "JAX_COMPILATION_CACHE_DIR": str(folder.parent / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip(),
    }
    ended = subprocess.run(
        [sys.executable, "-P", SCRIPT, name, tree, folder, *words],
        cwd=folder.parent,
        capture_output=True,
        text=True,
        env={**os.environ, **settings},
    )
    if ended.returncode:
        said = "\n".join(ended.stderr.strip().splitlines()[-3:])
        raise RuntimeError(f"{name}, by the code of {tree.name}:\n{said}")


def compare_states(
    other: dict[str, np.ndarray], own: dict[str, np.ndarray], rename: Callable[[str], str]
) -> tuple[list[Difference], int, list[str]]:
    """Return the differences, the number of compared leaves, and the names of leaves without a
    partner.
    """
    partners = {name: rename(name) for name in own}
    lost = required(other) - set(partners.values())
    differences, unmapped = (
        [Difference(float("inf"), f"{name} is gone") for name in sorted(lost)],
        [],
    )
    for name, partner in partners.items():
        fits = partner in other and kind(other[partner]) == kind(own[name])
        if not fits and required([partner]):
            differences.append(Difference(float("inf"), f"{name} finds no partner"))
        elif not fits:
            unmapped.append(name)
        elif other[partner].tobytes() != own[name].tobytes():
            apart = np.abs(other[partner].astype(np.float64) - own[name].astype(np.float64))
            differences.append(Difference(float(np.max(apart)), name))
    compared = len(own) - len(unmapped)
    return differences, compared, unmapped + sorted(set(other) - set(partners.values()) - lost)


def kind(leaf: np.ndarray) -> tuple[Any, ...]:
    """Check the facts that must agree before numbers can be compared."""
    return leaf.shape, leaf.dtype


def compare_tables(
    name: str, other: list[dict[str, str]], own: list[dict[str, str]]
) -> tuple[list[Difference], int]:
    """Return the differences in a table, for each column the first row that differs, and the number
    of compared columns.
    """
    if len(other) != len(own):
        return [Difference(float("inf"), f"{name} has {len(own)} rows, not {len(other)}")], 0
    columns = [c for c in other[0] if c != "wall_s" and not c.endswith("_hz")]
    differences = []
    for column in columns:
        if column not in own[0]:
            differences.append(Difference(float("inf"), f"{name}: column {column} is gone"))
            continue
        pairs = [(a[column], b[column]) for a, b in zip(other, own, strict=True)]
        unequal = [row for row, (a, b) in enumerate(pairs) if a != b]
        if unequal:
            largest = max(distance(*pairs[row]) for row in unequal)
            differences.append(Difference(largest, f"{name}: {column}", unequal[0] + 1))
    return differences, len(columns)


def distance(a: str, b: str) -> float:
    """Return the difference of two cells."""
    try:
        return abs(float(a) - float(b))
    except ValueError:
        return float("inf")


def rows(path: Path) -> list[dict[str, str]]:
    """Read a table, a dictionary per row."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def compare(other: Path, own: Path, job: Job) -> dict[str, Any]:
    """Return the results of a job, from the folders of both trees."""
    states = [dict(np.load(folder / "final.npz")) for folder in (other, own)]
    old = not any(".learned." in name for name in states[0])
    rename = partial(mapped, job=job) if old else str
    before_env_state = any(".env.world" in name for name in states[0])
    differences, leaves, unmapped = compare_states(
        *states, lambda name: mapped_env(rename(name)) if before_env_state else rename(name)
    )
    columns = 0
    for table in TABLES:
        more, compared = compare_tables(
            table, *(rows(folder / "run" / table) for folder in (other, own))
        )
        differences, columns = differences + more, columns + compared
    differences.sort(key=lambda found: -found.size)
    return {
        "leaves": leaves,
        "columns": columns,
        "unmapped": unmapped,
        "equal": not differences,
        "differences": [found._asdict() for found in differences],
    }


def do(name: str, job: Job, trees: tuple[Path, Path], folder: Path) -> dict[str, Any]:
    """Return a job's result, and where it differs, whether it is equal without fused multiply-adds."""
    begin = time.perf_counter()
    result = run_both(name, job, trees, folder)
    if result["differences"]:
        again = run_both(name, job, trees, folder, NO_FMA)
        result |= {
            "equal_without_fma": again["equal"],
            "differences_without_fma": again["differences"],
        }
    return {"ticks": job.ticks, **result, "seconds": round(time.perf_counter() - begin, 1)}


def run_both(
    name: str, job: Job, trees: tuple[Path, Path], folder: Path, flags: str = ""
) -> dict[str, Any]:
    """Run a job at the other commit, then here, and compare."""
    partner = job.as_ or name
    other, own = (
        folder / f"{job_name} {side}{flags}"
        for job_name, side in ((partner, "other"), (name, "own"))
    )
    try:
        if not (other / "final.npz").exists():
            run(partner, trees[0], other, flags)
        run(
            name,
            trees[1],
            own,
            flags,
            "--initial",
            other / "initial.npz",
            *(["--broken"] if job.as_ else []),
        )
        return compare(other, own, job)
    except RuntimeError as error:
        return {
            "leaves": 0,
            "columns": 0,
            "unmapped": [],
            "equal": False,
            "error": str(error),
            "differences": [],
        }


def describe(name: str, result: dict[str, Any]) -> str:
    """Write a line of the table."""
    said = "equal" if result["equal"] else "FAILED: " + result.get("error", "")
    if found := result["differences"]:
        said = (
            "equal without fused multiply-adds; with them " if result["equal_without_fma"] else ""
        )
        said += f"DIFFERS in {len(found)}, most by {found[0]['size']:.1e}: {found[0]['where']}"
        said += "".join(f"; first in row {d['row']} of {d['where']}" for d in first_rows(found)[:1])
    unmapped = f" (+{len(result['unmapped'])} unmapped)" if result["unmapped"] else ""
    return f"{name:33}{result['ticks']:>5}{result['leaves']:>8}{result['columns']:>9}  {said}{unmapped}"


def first_rows(differences: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the differences of tables, the earliest first, ``metrics.csv`` before ``evals.csv``."""
    tables = [found for found in differences if found["row"]]
    return sorted(tables, key=lambda found: (found["where"].startswith("evals"), found["row"]))


def keep(commits: dict[str, Any], name: str, result: dict[str, Any]) -> None:
    """Write a result into the file; results of other jobs stay if they are of the same commits."""
    known = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    jobs = known["jobs"] if known.get("commits") == commits else {}
    jobs = {job: result if job == name else jobs[job] for job in JOBS if job == name or job in jobs}
    document = {"commits": commits, "machine": machine(), "versions": versions(), "jobs": jobs}
    RESULT.write_text(json.dumps(document, indent=1) + "\n")


def main(commit: str, words: Iterable[str]) -> None:
    """Do the jobs, print the table, write the JSON; the exit code is 1 if a job differs."""
    chosen = {name: job for name, job in JOBS.items() if not words or name.startswith(tuple(words))}
    if not chosen:
        sys.exit(f"no job begins so: write the beginning of one of {'; '.join(JOBS)}")
    changed = bool(git("status", "--porcelain", "--", "jaxrl_fast", "envs"))
    commits = {
        "other": git("rev-parse", commit),
        "this": git("rev-parse", "HEAD"),
        "this_has_changes": changed,
    }
    all_equal = True
    print(f"{'job':33}{'ticks':>5}{'leaves':>8}{'columns':>9}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        trees = unpack(commit, folder / "other"), ROOT
        for job_name, job in chosen.items():
            result = do(job_name, job, trees, folder)
            print(describe(job_name, result), flush=True)
            keep(commits, job_name, result)
            all_equal &= result["equal"] or result.get("equal_without_fma", False)
    sys.exit(not all_equal)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
