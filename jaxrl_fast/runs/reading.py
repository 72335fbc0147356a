"""Reads run folders as they are: finished, half written, damaged, or of an older version."""

import csv
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from jaxrl_fast.runs.csv_tables import EVAL_COLUMNS
from jaxrl_fast.runs.status import SILENT_S, read_status, state_now

MARKS = ("run.json", "config.yaml", "metrics.csv")
"""A folder that holds one of these files is a run's."""
Columns = dict[str, np.ndarray]
"""A table: float64 ``[rows]`` by name; NaN where nothing stands."""


class RunView(NamedTuple):
    """What a run folder holds now. Whatever is missing or cannot be read is empty.

    - ``path``: of the folder.
    - ``state``: `status.state_now`; of a folder without ``run.json`` guessed from its files.
    - ``status``, ``settings``, ``summary``: ``run.json``, ``config.yaml`` and ``summary.json``.
    - ``metrics``: ``metrics.csv``, a row a chunk.
    - ``of_seeds``: ``metrics_seeds.csv``, a row a chunk and seed.
    - ``evals``: ``evals.csv``, a row an episode.
    """

    path: Path
    state: str
    status: dict[str, Any]
    settings: dict[str, Any]
    summary: dict[str, Any]
    metrics: Columns
    of_seeds: Columns
    evals: Columns


class Scores(NamedTuple):
    """The evaluations of a run.

    - ``env_steps``, ``wall_s``: when each policy was, ``[N]``.
    - ``returns``: each seed's mean over its episodes, ``[N, S]``.
    - ``low``, ``high``: the 10th and 90th percentile over all episodes, ``[N]``.
    - ``success``: the share of all episodes that were a success, ``[N]``; NaN where that is not known.
    """

    env_steps: np.ndarray
    wall_s: np.ndarray
    returns: np.ndarray
    low: np.ndarray
    high: np.ndarray
    success: np.ndarray


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run."""
    return any((folder / name).is_file() for name in MARKS)


def read_run(folder: Path) -> RunView:
    """Everything that is in a folder."""
    status = read_status(folder)
    summary = _read_json(folder / "summary.json")
    return RunView(
        folder,
        state_now(status) if status else _guess_state(folder, summary),
        status,
        _read_yaml(folder / "config.yaml"),
        summary,
        read_columns(folder / "metrics.csv"),
        read_columns(folder / "metrics_seeds.csv"),
        read_columns(folder / "evals.csv"),
    )


def name_of(settings: Mapping[str, Any], group: str) -> str:
    """The name chosen for ``env`` or ``algo``; of a family of environments the id. "" where it is not known."""
    section = settings.get(group)
    if not isinstance(section, dict):
        return str(section or "")
    return str(section.get("id") or section.get("make") or section.get("name") or "")


def scores_of(evals: Columns) -> Scores:
    """The evaluations in ``evals.csv``, the oldest first; those that lack a seed are left out."""
    known = set(EVAL_COLUMNS) <= set(evals)
    steps, seeds = (np.unique(evals[name]) if known else np.zeros(0) for name in ("env_steps", "seed"))
    found = [(step, _scores_at(evals, step, seeds)) for step in steps[np.isfinite(steps)]]
    whole = [(step, *scores) for step, scores in found if scores is not None]
    columns = [np.array(column) for column in zip(*whole, strict=True)] if whole else [np.zeros(0)] * 6
    at, times, returns, low, high, success = columns
    return Scores(at, times, returns.reshape(len(at), -1) if whole else np.zeros((0, 0)), low, high, success)


def read_columns(path: Path) -> Columns:
    """A table of numbers. Rows that are not whole, as a process leaves that is killed while it writes, are left out."""
    try:
        with path.open(newline="", errors="replace") as file:
            rows = list(csv.reader(line.replace("\0", "") for line in file))
    except (OSError, csv.Error):
        return {}
    if not rows:
        return {}
    names, whole = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]
    numbers = np.array([[_number(cell) for cell in row] for row in whole]).reshape(len(whole), len(names))
    return {name: numbers[:, column] for column, name in enumerate(names)}


def _scores_at(evals: Columns, step: float, seeds: np.ndarray) -> tuple[float, np.ndarray, float, float, float] | None:
    here = evals["env_steps"] == step
    returns, of_seed = evals["return"][here], evals["seed"][here]
    if not np.isfinite(returns).all() or not np.isin(seeds, of_seed).all():
        return None
    means = np.array([returns[of_seed == seed].mean() for seed in seeds])
    low, high = np.percentile(returns, [10, 90])
    success = float(evals["success"][here].mean()) if "success" in evals else float("nan")
    return float(evals["wall_s"][here].max()), means, float(low), float(high), success


def _guess_state(folder: Path, summary: Mapping[str, Any]) -> str:
    """Of a folder that an older version wrote."""
    if summary:
        return "stopped" if summary.get("stopped_by") else "done"
    try:
        silent_s = time.time() - (folder / "metrics.csv").stat().st_mtime
    except OSError:
        return "unknown"
    return "training" if silent_s < SILENT_S else "dead"


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("nan")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        found = yaml.load(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}
