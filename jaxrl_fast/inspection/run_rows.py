"""A run as a row of a list and as a curve, from files in any condition."""

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl_fast.inspection.thinning import thinned
from jaxrl_fast.runs.reading import Columns, name_of, read_columns, read_run, scores_of
from jaxrl_fast.runs.status import read_status, state_now

Facts = dict[str, Any]
"""What ``run.json`` says, or would say."""
ACTIVE = ("compiling", "training", "evaluating")
STATES = (*ACTIVE, "done", "stopped", "failed", "dead", "unknown")
MAX_TEXT = 500
"""So many characters of a text are shown."""
Curve = dict[str, list[float | None]]
"""Columns of equal length, or empty: ``steps``, ``wall_s`` and ``mean``, and its range from ``low`` to ``high``."""


RunRow = dict[str, Any]
"""A run in the list. None is not known.

- ``name``: the path of its folder below the root.
- ``env``, ``algo``, ``num_seeds``: what it trains.
- ``state``: one of `STATES`; ``error``: why it failed.
- ``env_steps``, ``total_steps``: of each seed, until now and in the end.
- ``eval_return``, ``eval_steps``: the newest evaluation, a mean over seeds; ``best_return``: the highest.
- ``eval_success``: the share of its episodes that were a success.
- ``episode_return``: of the episodes that training ended.
- ``sampling_hz``, ``update_hz``, ``update_frame_hz``: steps, updates and samples of updates in a second.
- ``elapsed_s``, ``left_s``: seconds trained, and to go at the pace until now.
- ``started_at``: when its process began, in seconds since 1970.
"""
NUMBERS = (
    *("num_seeds", "env_steps", "total_steps", "eval_return", "eval_steps", "best_return", "eval_success"),
    *("episode_return", "sampling_hz", "update_hz", "update_frame_hz", "started_at"),
)
"""Numbers of a row that stand in ``run.json``."""


def read_facts(folder: Path) -> Facts:
    """What ``run.json`` says; of a run that an older version wrote, or that has just begun, what it would say."""
    facts = read_status(folder)
    if "state" not in facts:
        facts = {**_guessed(folder), **facts}
    if "best_return" not in facts:
        facts["best_return"] = _best(folder)
    return facts


def row_of(name: str, facts: Facts) -> RunRow:
    """The row of a run. Facts of a wrong kind count as not known."""
    row: RunRow = {key: _number(facts.get(key)) for key in NUMBERS}
    steps, total, elapsed_s, left_s = row["env_steps"], row["total_steps"], _number(facts.get("wall_s")), None
    state = _state(facts)
    if state in ACTIVE and steps and elapsed_s and total:
        trained_s = max(elapsed_s - (_number(facts.get("compile_s")) or 0.0), 0.0)
        left_s = max(total - steps, 0.0) * trained_s / steps
    env = _text(facts.get("env.id") or facts.get("env.make") or facts.get("env"))
    texts = {"name": name, "env": env, "algo": _text(facts.get("algo")), "error": _text(facts.get("error"))}
    return {**row, **texts, "state": state, "elapsed_s": elapsed_s, "left_s": left_s}


def greedy_curve(evals: Columns) -> Curve:
    """Of ``evals.csv``: the mean over seeds and their range; for one seed the 10th and 90th percentile of its
    episodes."""
    scores = scores_of(evals)
    if not len(scores.env_steps):
        return _curve()
    returns = scores.returns
    several = returns.shape[1] > 1
    low, high = (returns.min(axis=1), returns.max(axis=1)) if several else (scores.low, scores.high)
    return _curve(scores.env_steps, scores.wall_s, returns.mean(axis=1), low, high)


def success_curve(evals: Columns) -> Curve:
    """Of ``evals.csv``: the share of greedy episodes that were a success, in per cent."""
    scores = scores_of(evals)
    told = np.isfinite(scores.success)
    return _curve(scores.env_steps[told], scores.wall_s[told], 100 * scores.success[told])


def training_curve(metrics: Columns) -> Curve:
    """Of ``metrics.csv``: the return of the episodes that training ended, which has no spread."""
    names = ("env_steps", "wall_s", "episode_return")
    if not set(names) <= set(metrics) or not np.isfinite(metrics["episode_return"]).any():
        return _curve()
    kept = np.isfinite(metrics["episode_return"])
    return _curve(*thinned({name: metrics[name][kept] for name in names}).values())


def _guessed(folder: Path) -> Facts:
    view = read_run(folder)
    last = {name: float(column[-1]) for name, column in view.metrics.items() if len(column)}
    scores = scores_of(view.evals)
    newest = {"eval_steps": scores.env_steps, "eval_return": scores.returns, "eval_success": scores.success}
    evaluated = {name: np.mean(column[-1]) for name, column in newest.items() if len(column)}
    ended = view.state if view.state in ("done", "stopped") else None
    return {
        **last,
        **{name: float(value) for name, value in evaluated.items()},
        "env": name_of(view.settings, "env"),
        "algo": name_of(view.settings, "algo"),
        "num_seeds": view.settings.get("num_seeds"),
        "total_steps": view.settings.get("total_steps"),
        "state": ended or ("training" if last else "compiling"),
        "started_at": _changed_at(folder / "config.yaml"),
        "updated_at": _changed_at(folder / "metrics.csv") or _changed_at(folder / "config.yaml") or 0.0,
    }


def _state(facts: Facts) -> str:
    whole: Facts = {
        "state": facts.get("state") if facts.get("state") in STATES else "unknown",
        "host": _text(facts.get("host")),
        "pid": int(_number(facts.get("pid")) or 0),
        "process_start": facts.get("process_start"),
        "updated_at": _number(facts.get("updated_at")) or 0.0,
    }
    # 0 and less are names of groups of processes, and what lies above no process has.
    return state_now(whole) if 0 < whole["pid"] < 2**31 or not whole["host"] else "unknown"


def _best(folder: Path) -> float | None:
    scores = scores_of(read_columns(folder / "evals.csv"))
    return float(scores.returns.mean(axis=1).max()) if len(scores.env_steps) else None


def _curve(*columns: np.ndarray) -> Curve:
    names = ("steps", "wall_s", "mean", "low", "high")
    found = {name: [_number(x) for x in column.tolist()] for name, column in zip(names, columns, strict=False)}
    return {name: found.get(name, []) for name in names}


def _changed_at(path: Path) -> float | None:
    with suppress(OSError):
        return path.stat().st_mtime
    return None


def _number(value: Any) -> float | None:
    """A number that JSON and the browser know."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not -1e300 < value < 1e300:
        return None
    return value if math.isfinite(value) else None


def _text(value: Any) -> str:
    return "" if value is None else str(value)[:MAX_TEXT]
