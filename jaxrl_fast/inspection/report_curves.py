"""The curves and figures of runs that a report shows, as plain JSON."""

from typing import Any

import numpy as np

from jaxrl_fast.evaluation.episodes import bootstrap_interval, interquartile_mean
from jaxrl_fast.inspection.thinning import X_COLUMNS, thinned
from jaxrl_fast.runs.progress import clock, share, si
from jaxrl_fast.runs.reading import Columns, RunView, Scores, name_of, scores_of
from jaxrl_fast.runs.status import ENDED

RATES = (
    ("sampling", "sampling_hz", "steps/s"),
    ("updates", "update_hz", "updates/s"),
    ("update frame rate", "update_frame_hz", "samples/s"),
)
"""Label, column and unit."""


def describe_run(view: RunView, name: str | None = None) -> dict[str, Any]:
    """The curves and figures of one run; ``name``: what to call it, by default its path."""
    scores, metrics = scores_of(view.evals), thinned(view.metrics)
    env, algo = (view.status.get(g) or name_of(view.settings, g) for g in ("env", "algo"))
    return {
        "name": name or str(view.path),
        "title": f"{name_of(view.settings, 'env') or env}, {algo}",
        "state": view.state,
        "error": view.status.get("error"),
        "progress": [view.status.get("env_steps"), view.status.get("total_steps")],
        "figures": figures(view, scores),
        "metrics": {column: plain(values) for column, values in metrics.items()},
        "seeds": metrics_by_seed(view.of_seeds),
        "scores": describe_scores(scores, view.evals),
        "reference": view.status.get("reference"),
    }


def describe_scores(scores: Scores, evals: Columns) -> dict[str, Any]:
    """The greedy return: each evaluation's mean, the interval around it and what that is, and every seed's mean;
    ``success``: the share of successes in per cent."""
    num_seeds = scores.returns.shape[1]
    low, high = scores.low, scores.high
    if num_seeds > 1:
        low, high = np.array([bootstrap_interval(row) for row in scores.returns]).reshape(-1, 2).T
    episodes = round(len(evals.get("return", ())) / max(1, scores.returns.size))
    what = f"95 % interval of the mean, {num_seeds} seeds" if num_seeds > 1 else f"10 to 90 % of {episodes} episodes"
    means = scores.returns.mean(axis=1) if scores.returns.size else np.zeros(0)
    success = 100 * scores.success if np.isfinite(scores.success).any() else np.zeros(0)
    curves = {"env_steps": scores.env_steps, "wall_s": scores.wall_s, "mean": means, "low": low, "high": high}
    seeds = [plain(column) for column in scores.returns.T] if num_seeds > 1 else []
    return {**{k: plain(x) for k, x in curves.items()}, "seeds": seeds, "interval": what, "success": plain(success)}


def figures(view: RunView, scores: Scores) -> list[dict[str, str]]:
    """The figures on top: a label, a value and a note each."""
    found: list[tuple[str, str, str]] = []
    if scores.returns.size:
        last = scores.returns[-1]
        low, high = bootstrap_interval(last) if len(last) > 1 else (scores.low[-1], scores.high[-1])
        iqm = f", interquartile mean {interquartile_mean(last):.1f}" if len(last) > 3 else ""
        found.append(("greedy return", f"{last.mean():.1f}", f"{low:.1f} to {high:.1f}{iqm}"))
        if np.isfinite(scores.success[-1]):
            found.append(("success", share(scores.success[-1]), "of the greedy episodes"))
    best = view.status.get("best") or view.summary.get("best")
    if best:
        fresh = f"; {best['fresh_return_mean']:.1f} from fresh starts" if "fresh_return_mean" in best else ""
        found.append(("best", f"{best['return_mean']:.1f}", f"after {best['env_steps']:,} steps{fresh}"))
    total = view.status.get("total_steps")
    steps = view.status.get("env_steps") or view.summary.get("env_steps") or last_of(view.metrics, "env_steps")
    if steps is not None:
        found.append(("environment steps", f"{round(steps):,}", f"of {total:,}" if total else ""))
    if wall_s(view) is not None:
        found.append(("wall-clock", clock(wall_s(view) or 0.0), remaining(view)))
    for label, column, note in RATES:
        rate = view.summary.get(column) or view.status.get(column)
        if rate:
            found.append((label, si(rate), note))
    return [{"label": label, "value": value, "note": note} for label, value, note in found]


def remaining(view: RunView) -> str:
    """How long a run that goes on will take, at the rate so far; "" of others."""
    steps, seconds = (view.metrics.get(name, np.zeros(0)) for name in X_COLUMNS)
    total = view.status.get("total_steps")
    if view.state in ENDED or not total or len(steps) < 2 or steps[-1] <= steps[0]:
        return ""
    left_s = (total - steps[-1]) * (seconds[-1] - seconds[0]) / (steps[-1] - steps[0])
    return f"{clock(max(left_s, 0.0))} left"


def wall_s(view: RunView) -> float | None:
    """Seconds of the run so far."""
    return view.summary.get("wall_s") or view.status.get("wall_s") or last_of(view.metrics, "wall_s")


def metrics_by_seed(table: Columns) -> list[dict[str, list[float | None]]]:
    """Each seed's metrics over its own steps, thinned."""
    if "seed" not in table:
        return []
    own = [{k: v[table["seed"] == seed] for k, v in table.items() if k != "seed"} for seed in np.unique(table["seed"])]
    return [{name: plain(values) for name, values in thinned(one).items()} for one in own]


def last_of(table: Columns, name: str) -> float | None:
    """The last number of a column."""
    column = table.get(name, np.zeros(0))
    return float(column[-1]) if len(column) else None


def plain(values: np.ndarray) -> list[float | None]:
    """Numbers with 6 figures, as JSON knows them; None for NaN and infinity."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values]
