"""The parts of `gpu`. Each takes its inputs and returns rows by name; one that fails stops no
other.
"""

import json
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from gpu_figures import Row, Rows, compare, rates, same_bits
from gpu_jobs import LAST_WORDS, Ended, Job, Processes, ending
from gpu_plan import Plan, ToReturn

from jaxrl_fast.commands.tuning_cache import Device
from jaxrl_fast.training.run_folder import read_columns, scores_of

EXACT = {"JAX_DEFAULT_MATMUL_PRECISION": "highest"}
"""Matrix products of float32 in float32: by default an accelerator rounds the factors to 10 bits,
or to 7.
"""
DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
ALLOWED = 1e-4
"""Largest allowed difference of another device, as a share of the change of parameters and
optimizers in the compared ticks.

Measured on a CPU: 1e-7 to 2e-6 where XLA compiled with few or other optimizations, 2e-3 to 3e-3
with products in bfloat16.
"""
TESTS_S = 600.0
STOPPED = 143
"""The exit code of training that was stopped by SIGTERM and has saved."""


class Bench(NamedTuple):
    """The inputs of parts: the ``device``, the ``plan``, ``processes`` that do the work, a
    ``folder`` for their files, and ``variants``: earlier measurements, by variant and job.
    """

    device: Device
    plan: Plan
    processes: Processes
    folder: Path
    variants: dict[str, Rows]


class Skipped(Exception):
    """A part cannot be measured here; the message names the reason."""


def tests(bench: Bench) -> Rows:
    """Run the suite's tests of devices, with the accelerator as JAX's default."""
    report = bench.folder / "tests.xml"
    workers = "4" if bench.device.platform == "gpu" else "0"
    variables = {
        "JAX_DEFAULT_MATMUL_PRECISION": "highest",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # workers share the memory
        "PYTHONPATH": str(Path(__file__).parent),
    }
    if bench.device.platform != "cpu":
        variables["JAX_DISABLE_MOST_OPTIMIZATIONS"] = (
            "false"  # else the suite compiles with few optimizations, unlike users
        )
    words = (
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "gpu_pytest",
        "-n",
        workers,
        f"--junitxml={report}",
    )
    ended = bench.processes.command([*words, *bench.plan.tests], variables, TESTS_S)
    if not report.exists():
        raise RuntimeError(last_line(ended))
    suite = ElementTree.parse(report).getroot()[0]
    counts = {
        name: int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")
    }
    broken = [
        case
        for case in suite.iter("testcase")
        if {"failure", "error"} & {child.tag for child in case}
    ]
    names = [f"{case.get('classname')}::{case.get('name')}" for case in broken]
    return {"tests of devices": {**counts, "failed": names, "seconds": ended.seconds}}


def law(bench: Bench) -> Rows:
    """Compare the accelerator with the host's CPU, and two processes with each other: the numbers
    must be equal.
    """
    jobs = bench.plan.law
    host = variant(bench, "host", EXACT | {"JAX_PLATFORMS": "cpu"}, jobs)
    exact = variant(bench, "exact", EXACT, jobs)
    again = variant(bench, "exact again", EXACT, jobs)
    rows = {}
    for job in jobs:
        row = compare(host[job.name], exact[job.name]) | {
            "bitwise_again": same_bits(exact[job.name], again[job.name])
        }
        rows[job.name] = (
            row if "error" in row else {**row, "holds": row["share_of_change"] <= ALLOWED}
        )
    return rows


def deterministic(bench: Bench) -> Rows:
    """Check whether two processes give the same bits, and their speed, without and with XLA's
    deterministic operations.
    """
    if bench.device.platform == "tpu":
        raise Skipped("XLA's deterministic operations are for GPUs")
    jobs = (*bench.plan.law, *bench.plan.flagged)
    rows = {}
    for name, variables in (("default", {}), ("deterministic", {"XLA_FLAGS": DETERMINISTIC})):
        first = variant(bench, name, variables, jobs)
        again = variant(bench, f"{name} again", variables, jobs)
        for job in jobs:
            rows[f"{job.name}, {name}"] = {
                **rates(job, first[job.name]),
                "bitwise_again": same_bits(first[job.name], again[job.name]),
                "again": rates(job, again[job.name]),
            }
    return rows


def graphs(bench: Bench) -> Rows:
    """Compare whole ticks as CUDA graphs with the default: equal results, and the speed."""
    if bench.device.platform != "gpu":
        raise Skipped("CUDA graphs are for NVIDIA's GPUs")
    jobs = (*bench.plan.law, *bench.plan.flagged, *bench.plan.graphed)
    default = variant(bench, "default", {}, jobs)
    whole = variant(bench, "graphs", {"JAXRL_FAST_GPU_GRAPHS": "1"}, jobs)
    rows: Rows = {}
    for job in jobs:
        rows[f"{job.name}, default"] = rates(job, default[job.name])
        rows[f"{job.name}, graphs"] = {
            **rates(job, whole[job.name]),
            **compare(default[job.name], whole[job.name]),
            "bitwise": same_bits(default[job.name], whole[job.name]),
        }
    return rows


def sampling(bench: Bench) -> Rows:
    """Measure environment steps per second by number of environments."""
    return timed(bench, bench.plan.sampling)


def updates(bench: Bench) -> Rows:
    """Measure gradient updates alone by batch size, against their roofline."""
    rows = timed(bench, bench.plan.updates)
    for row in rows.values():
        if "an_update" in row:
            row["us_an_update"] = 1e6 / row["update_hz"]["median"]
    return rows


def ticks(bench: Bench) -> Rows:
    """Measure whole ticks of training, which `experiments/gpu/targets.py` predicts."""
    return timed(bench, bench.plan.ticks)


def members(bench: Bench) -> Rows:
    """Measure whole ticks of populations by the number of members."""
    return timed(bench, bench.plan.members)


def placements(bench: Bench) -> Rows:
    """Measure two devices: separate with overlap, sharded, and one alone."""
    if bench.device.platform == "cpu" or bench.device.number < 2:
        raise Skipped("one device here: placements need two")
    return timed(bench, bench.plan.apart)


def returns(bench: Bench) -> Rows:
    """Measure the seconds of the train command until a mean return, compilation included."""
    jobs = enumerate(bench.plan.returns.items())
    return {
        name: reach(bench, goal, bench.folder / f"run{number}") for number, (name, goal) in jobs
    }


def roofline(bench: Bench) -> Rows:
    """Run ``explain target=this``: a measured tick, compared with the prediction of XLA's model of
    this card.
    """
    out = bench.folder / "explain"
    words = ("-m", "jaxrl_fast.explain", *bench.plan.explained.split(), "target=this", f"out={out}")
    ended = bench.processes.command(words, {})
    if ended.status:
        raise RuntimeError(last_line(ended))
    return {
        "sac": {
            "words": bench.plan.explained,
            **json.loads((out / "graph.json").read_text())["target"],
        }
    }


PARTS: dict[str, Callable[[Bench], Rows]] = {
    "law": law,
    "sampling": sampling,
    "updates": updates,
    "ticks": ticks,
    "members": members,
    "returns": returns,
    "placements": placements,
    "roofline": roofline,
    "deterministic": deterministic,
    "graphs": graphs,
    "tests": tests,
}


def variant(bench: Bench, name: str, variables: Mapping[str, str], jobs: tuple[Job, ...]) -> Rows:
    """Return the answers to jobs under some variables, in a separate process; earlier answers are
    reused.
    """
    known = bench.variants.setdefault(name, {})
    bench.processes.close()
    for job in jobs:
        if job.name not in known:
            keep = bench.folder / f"{name}-{job.name}.npz".replace(" ", "-")
            answer = bench.processes.ask(
                job._replace(keep=str(keep)), {**bench.plan.fresh, **variables}
            )
            known[job.name] = {**answer, "keep": str(keep)}
    return {job.name: known[job.name] for job in jobs}


def timed(bench: Bench, jobs: tuple[Job, ...]) -> Rows:
    """Measure the rates of jobs with users' options."""
    return {job.name: rates(job, bench.processes.ask(job, {})) for job in jobs}


def reach(bench: Bench, goal: ToReturn, folder: Path) -> Row:
    """Train, and read when the goal was reached."""
    began = time.time()
    words = (
        "-m",
        "jaxrl_fast.train",
        *goal.words.split(),
        f"stop.return={goal.goal}",
        f"run_dir={folder}",
    )
    ended = bench.processes.command(words, bench.plan.fresh, goal.limit_s)
    scores = scores_of(read_columns(folder / "evals.csv"))
    if not scores.wall_s.size:
        return {"words": goal.words, "error": last_line(ended)}
    before_s = (
        folder / "config.yaml"
    ).stat().st_mtime - began  # the process has started, training begins
    means = scores.returns.mean(axis=1)
    seconds = [before_s + float(s) for s in scores.wall_s]
    reached = next((i for i, mean in enumerate(means) if mean >= goal.goal), None)
    summary = folder / "summary.json"
    failed = reached is None and ended.status not in (0, STOPPED)
    failure = {"error": last_line(ended)} if failed else {}
    return failure | {
        "words": goal.words,
        "goal": goal.goal,
        "reached_s": None if reached is None else seconds[reached],
        "reached_at_steps": None if reached is None else int(scores.env_steps[reached]),
        "evaluations": [
            [int(n), s, float(m)] for n, s, m in zip(scores.env_steps, seconds, means, strict=True)
        ],
        "stopped_by_the_clock": ended.late,
        "process_s": ended.seconds,
        "summary": json.loads(summary.read_text()) if summary.exists() else None,
    }


def last_line(ended: Ended) -> str:
    """Describe why a command failed."""
    if ended.late:
        return f"longer than {ended.seconds:.0f} s"
    lines = ended.said.strip().splitlines()
    return lines[-1][:LAST_WORDS] if lines else ending(ended.status)
