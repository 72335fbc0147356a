"""``report.html``: curves, tables and facts of one or several runs in one self-contained page."""

import base64
import json
import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.resources import files
from os.path import commonpath
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl_fast.envs.episode_metrics import METRIC, mean_of_finite
from jaxrl_fast.numerics.intervals import LEAST_SEEDS, mean_interval
from jaxrl_fast.settings.schema import by_dotted_key, command_line, named_again, run_keys, written
from jaxrl_fast.system import replace_file
from jaxrl_fast.training.episodes import interquartile_mean
from jaxrl_fast.training.progress import clock, share, si
from jaxrl_fast.training.records import ENDED, MEMBERS, read_members
from jaxrl_fast.training.run_folder import (
    NOT_YET,
    UNEVALUATED,
    Columns,
    RunView,
    Scores,
    name_of,
    read_run,
    scores_of,
)
from jaxrl_fast.views.comparing import SEEDS, groups_of, joined

MAX_POINTS = 500
"""Largest number of points of a curve; more are averaged."""
X_COLUMNS = ("env_steps", "wall_s")
"""Horizontal axes of curves."""


def thinned(table: Columns, points: int = MAX_POINTS) -> Columns:
    """Average neighbouring rows of a table. Steps, seconds and updates are the last row's.

    Args:
        table: Columns by name.
        points: Largest number of rows.

    Returns:
        The table.
    """
    rows = len(next(iter(table.values()), ()))
    return table if rows <= points else _averaged(table, rows, points)


def _averaged(table: Columns, rows: int, points: int) -> Columns:
    edges = np.linspace(0, rows, points + 1).astype(int)
    return {
        name: column[edges[1:] - 1]
        if name in (*X_COLUMNS, "updates")
        else _bucket_means(column, edges)
        for name, column in table.items()
    }


def _bucket_means(column: np.ndarray, edges: np.ndarray) -> np.ndarray:
    finite = np.isfinite(column)
    sums = np.add.reduceat(np.where(finite, column, 0.0), edges[:-1])
    counts = np.add.reduceat(finite, edges[:-1], dtype=float)
    return np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)


ASSETS = files("jaxrl_fast.views") / "assets"


def assembled(name: str, **content: Any) -> str:
    """Fill the template of a page: ``{{name}}`` becomes the content of this name as JSON, else the
    file of this name.

    Args:
        name: File of the template.
        **content: Values for JSON.

    Returns:
        HTML.
    """
    # "<" in a name would end the script that contains the data.
    data = {
        key: json.dumps(value, allow_nan=False).replace("<", "\\u003c")
        for key, value in content.items()
    }
    page = text_of(name)
    return re.sub(r"\{\{([\w.]+)\}\}", lambda place: data.get(place[1]) or text_of(place[1]), page)


def text_of(name: str) -> str:
    """Read an asset.

    Args:
        name: Name of the file.

    Returns:
        Its text.
    """
    return (ASSETS / name).read_text("utf-8")


RATES = (
    ("sampling", "sampling_hz", "steps/s"),
    ("updates", "update_hz", "updates/s"),
    ("update frame rate", "update_frame_hz", "samples/s"),
)
"""Label, column and unit."""


def describe_run(view: RunView, name: str | None = None) -> dict[str, Any]:
    """Collect the curves and figures of one run.

    Args:
        view: Run.
        name: Displayed name, None for the path.

    Returns:
        Values for JSON.
    """
    scores, metrics = scores_of(view.evals), thinned(view.metrics)
    env, algo = (name_of(view.settings, g) or view.status.get(g, "") for g in ("env", "algo"))
    status, why = view.status, UNEVALUATED.get(view.status.get("eval.every"), NOT_YET)
    return {
        **dict(
            name=name or str(view.path),
            title=f"{env}, {algo}",
            state=view.state,
            error=status.get("error"),
        ),
        **dict(
            progress=[status.get("env_steps"), status.get("total_steps")],
            figures=figures(view, scores),
        ),
        "metrics": {column: plain(values) for column, values in metrics.items()},
        **dict(seeds=metrics_by_seed(view.of_seeds), scores=describe_scores(scores, view.evals)),
        **dict(
            unevaluated=f"{why.capitalize()}.",
            reference=status.get("reference"),
            warmup_rows=warmup_rows(metrics),
        ),
    }


def warmup_rows(metrics: Columns) -> int:
    """Count the rows up to the first one with updates, whose beginning may be without.

    Args:
        metrics: Columns of ``metrics.csv``.

    Returns:
        Number of rows; 0 if the first row has updates, or no row after these.
    """
    learns = np.nan_to_num(metrics.get("update_hz", np.zeros(1))) > 0
    first = int(np.argmax(learns))
    return first + 1 if first and learns[first + 1 :].any() else 0


def describe_scores(scores: Scores, evals: Columns) -> dict[str, Any]:
    """Collect the curves of greedy returns: mean, interval, each seed's mean, success in per cent,
    and metrics.

    Args:
        scores: Scores of the run.
        evals: Columns of ``evals.csv``.

    Returns:
        Values for JSON.
    """
    num_seeds = scores.returns.shape[1]
    low, high = scores.low, scores.high
    if num_seeds > 1:
        intervals = [mean_interval(row) or () for row in scores.returns]
        low, high = np.array(intervals).reshape(-1, 2).T  # empty for two seeds
    episodes = round(len(evals.get("return", ())) / max(1, scores.returns.size))
    what = f"10 to 90 % of {episodes} episodes"
    if num_seeds > 1:
        several = num_seeds >= LEAST_SEEDS
        what = f"{'95 % interval of the mean, ' if several else ''}{num_seeds} seeds"
    means = scores.returns.mean(axis=1) if scores.returns.size else np.zeros(0)
    success = 100 * scores.success if np.isfinite(scores.success).any() else np.zeros(0)
    curves = {
        "env_steps": scores.env_steps,
        "wall_s": scores.wall_s,
        "mean": means,
        "low": low,
        "high": high,
    }
    seeds = [plain(column) for column in scores.returns.T] if num_seeds > 1 else []
    curves |= {"success": success} | {
        n: means_at(scores, evals, n) for n in evals if n.startswith(METRIC)
    }
    return {**{k: plain(x) for k, x in curves.items()}, "seeds": seeds, "interval": what}


def means_at(scores: Scores, evals: Columns, name: str) -> np.ndarray:
    """Compute the mean of a metric in each evaluation.

    Args:
        scores: Scores of the run.
        evals: Columns of ``evals.csv``.
        name: Column of the metric.

    Returns:
        Means over the episodes with a value, ``[N]``; NaN where there are none.
    """
    means = [mean_of_finite(evals[name][evals["env_steps"] == step]) for step in scores.env_steps]
    return np.array(means, float)


def spread_of(scores: Scores) -> str:
    """Describe the spread of the last evaluation.

    Args:
        scores: Scores of the run, with an evaluation.

    Returns:
        The interval of the mean over seeds, each of two seeds, or the spread of one's episodes.
    """
    last = scores.returns[-1]
    if len(last) == 1:
        return f"10 to 90 % of episodes: {scores.low[-1]:.1f} to {scores.high[-1]:.1f}"
    interval = mean_interval(last)
    if interval is None:
        return f"seeds {' and '.join(f'{one:.1f}' for one in last)}"
    return f"95 % interval {interval[0]:.1f} to {interval[1]:.1f}"


def figures(view: RunView, scores: Scores) -> list[dict[str, str]]:
    """List the figures at the top of the page.

    Args:
        view: Run.
        scores: Scores of the run.

    Returns:
        Label, value and note of each figure.
    """
    rows: list[tuple[str, str, str]] = []
    if scores.returns.size:
        last = scores.returns[-1]
        iqm = f", interquartile mean {interquartile_mean(last):.1f}" if len(last) > 3 else ""
        kind = "sampled" if by_dotted_key(view.settings).get("eval.sample") else "greedy"
        rows.append((f"{kind} return", f"{last.mean():.1f}", f"{spread_of(scores)}{iqm}"))
        if np.isfinite(scores.success[-1]):
            rows.append(("success", share(scores.success[-1]), f"of the {kind} episodes"))
    if best := view.status.get("best") or view.summary.get("best"):
        fresh = (
            f"; {best['fresh_return_mean']:.1f} in new episodes"
            if "fresh_return_mean" in best
            else ""
        )
        rows.append(
            ("best", f"{best['return_mean']:.1f}", f"after {best['env_steps']:,} steps{fresh}")
        )
    total = view.status.get("total_steps")
    steps = (
        view.status.get("env_steps")
        or view.summary.get("env_steps")
        or last_of(view.metrics, "env_steps")
    )
    if steps is not None:
        data, online = view.settings.get("data"), view.settings.get("online_steps")
        where = (
            (f", the last {online:,} in the environment" if online else ", from data alone")
            if data
            else ""
        )
        label = "steps" if data else "environment steps"
        rows.append((label, f"{round(steps):,}", f"of {total:,}{where}" if total else ""))
    if wall_s(view) is not None:
        rows.append(("wall-clock", clock(wall_s(view) or 0.0), remaining(view)))
    rates = (
        (label, view.summary.get(column) or view.status.get(column), note)
        for label, column, note in RATES
    )
    rows += [(label, si(rate), note) for label, rate, note in rates if rate]
    return [{"label": label, "value": value, "note": note} for label, value, note in rows]


def remaining(view: RunView) -> str:
    """Estimate the remaining time of a run at the rate so far.

    Args:
        view: Run.

    Returns:
        Text; "" for a run that has ended or just started.
    """
    steps, seconds = (view.metrics.get(name, np.zeros(0)) for name in X_COLUMNS)
    total = view.status.get("total_steps")
    if view.state in ENDED or not total or len(steps) < 2 or steps[-1] <= steps[0]:
        return ""
    left_s = (total - steps[-1]) * (seconds[-1] - seconds[0]) / (steps[-1] - steps[0])
    return f"{clock(max(left_s, 0.0))} left"


def wall_s(view: RunView) -> float | None:
    """Return the seconds of a run so far.

    Args:
        view: Run.

    Returns:
        Seconds, or None.
    """
    return (
        view.summary.get("wall_s") or view.status.get("wall_s") or last_of(view.metrics, "wall_s")
    )


def metrics_by_seed(table: Columns) -> list[dict[str, list[float | None]]]:
    """Split the metrics by seed and thin them.

    Args:
        table: Columns of ``metrics_seeds.csv``.

    Returns:
        Columns of each seed.
    """
    if "seed" not in table:
        return []
    tables = [
        {k: v[table["seed"] == seed] for k, v in table.items() if k != "seed"}
        for seed in np.unique(table["seed"])
    ]
    return [{name: plain(values) for name, values in thinned(one).items()} for one in tables]


def last_of(table: Columns, name: str) -> float | None:
    """Return the last number of a column.

    Args:
        table: Columns by name.
        name: Name of the column.

    Returns:
        The number, or None.
    """
    column = table.get(name, np.zeros(0))
    return float(column[-1]) if len(column) else None


def plain(values: np.ndarray) -> list[float | None]:
    """Convert numbers for JSON, with 6 digits.

    Args:
        values: Numbers, ``[n]``.

    Returns:
        List of numbers; None for NaN and infinity.
    """
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values]


def describe_details(view: RunView) -> dict[str, Any]:
    """Collect the parts of a single run's page other than curves.

    Args:
        view: Run.

    Returns:
        Values for JSON.
    """
    return {
        **dict(time=time_spent(view), settings=settings_table(view), machine=machine_table(view)),
        **dict(
            lines=view.status.get("lines", []),
            commands=command_lines(view),
            members=read_members(view.path),
        ),
        "graph": _as_uri(view.path / "graph.svg", "image/svg+xml"),
        **dict(
            animation=_as_uri(view.path / "policy.gif", "image/gif"),
            episode=_read_text(view.path / "policy.html"),
        ),
    }


def time_spent(view: RunView) -> list[dict[str, Any]]:
    """Split the wall-clock time of a run.

    Sampling and learning are one program, so that they are one entry, except for chunks that only
    fill a replay buffer.

    Args:
        view: Run.

    Returns:
        Label and seconds of each part; ``beside`` marks evaluation parallel to the others.
    """
    whole = wall_s(view)
    if whole is None:
        return []
    compile_s = view.summary.get("compile_s") or view.status.get("compile_s") or 0.0
    first_s = view.summary.get("time_to_first_step_s") or compile_s
    filling_s, training_s = chunk_seconds(view)
    waited_s = view.summary.get("eval_wait_s") or 0.0
    parts = {"start": max(0.0, first_s - compile_s), "compile": compile_s}
    parts |= {"sample only, before the first update": filling_s, "sample and learn": training_s}
    parts["wait for an evaluation"] = waited_s
    rest = "between chunks: checkpoints, tables, pages"
    rest = (
        "train and compare members; checkpoints, pages" if (view.path / MEMBERS).exists() else rest
    )
    parts[rest] = whole - sum(parts.values())
    bars: list[dict[str, Any]] = [
        {"label": label, "seconds": seconds} for label, seconds in parts.items()
    ]
    beside_s = view.summary.get("eval_s", 0.0) - waited_s
    bars.append({"label": "evaluate, parallel to the others", "seconds": beside_s, "beside": True})
    return [part for part in bars if part["seconds"] > 0]


def chunk_seconds(view: RunView) -> tuple[float, float]:
    """Compute the seconds in chunks without and with gradient updates.

    Args:
        view: Run.

    Returns:
        Seconds without updates, and with.
    """
    table = view.metrics
    if not {"env_steps", "sampling_hz", "updates"} <= set(table) or not len(table["env_steps"]):
        return 0.0, 0.0
    steps = np.diff(table["env_steps"], prepend=0.0) * (view.status.get("num_seeds") or 1)
    seconds = np.nan_to_num(steps / table["sampling_hz"])
    learns = np.diff(table["updates"], prepend=0.0) > 0
    return float(seconds[~learns].sum()), float(seconds[learns].sum())


def settings_table(view: RunView) -> list[list[str]]:
    """List the settings of a run.

    Args:
        view: Run.

    Returns:
        Rows of key, value and origin. A setting that members draw has the range or the list.
    """
    chosen = view.status.get("chosen")
    origin = (dict(placement=chosen, devices=chosen) if chosen else {}) | view.status.get(
        "sources", {}
    )
    settings = by_dotted_key(view.settings)
    means = meanings_of_null(name_of(view.settings, "algo"))
    shown = {
        key: means.get(key, "null") if value is None else written(value)
        for key, value in settings.items()
    }
    for key, kind, values in (read_members(view.path) or {}).get("settings", []):
        shown[key], origin[key] = f"{kind}: {', '.join(values)}", "drawn by each member"
    return [[key, value, origin.get(key, "default")] for key, value in shown.items()]


def meanings_of_null(algo: str) -> dict[str, str]:
    """Write what ``null`` means for settings, from their descriptions.

    Args:
        algo: Name of the algorithm; a user's has no descriptions here.

    Returns:
        Text by key, such as ``null: all``, of those that describe it.
    """
    from jaxrl_fast.settings.signatures import texts_of_algorithm

    texts = {key: declared.text for key, declared in run_keys().items()} | texts_of_algorithm(algo)
    matches = {
        key: re.search(r"(?:\bNone (?:for )?|; (?!None))(.+?)(?:(?<!\.)\.)?$", text)
        for key, text in texts.items()
    }
    return {key: f"null: {match[1]}" for key, match in matches.items() if match}


def differing_settings(groups: Sequence[Sequence[RunView]]) -> list[list[str]]:
    """List the settings that differ between groups of runs, and their folders.

    Args:
        groups: Runs of each column.

    Returns:
        Rows of key and the value of each group; several values of a group are joined by commas.
    """
    tables = [[by_dotted_key(view.settings) for view in views] for views in groups]
    keys = list(
        dict.fromkeys(key for group in tables for table in group for key in table if key != "name")
    )
    rows = [[key, *(_values(group, key) for group in tables)] for key in keys]
    names = iter(short_names([view for views in groups for view in views]))
    folders = [", ".join(next(names) for _ in views) for views in groups]
    return [*(row for row in rows if len(set(row[1:])) > 1), ["folder", *folders]]


def _values(tables: Sequence[dict[str, Any]], key: str) -> str:
    return ", ".join(
        dict.fromkeys(written(table[key]) if key in table else "–" for table in tables)
    )


def machine_table(view: RunView) -> list[list[str]]:
    """List the machine and the versions of a run.

    Args:
        view: Run.

    Returns:
        Rows of label and value.
    """
    machine, versions = view.status.get("machine", {}), view.status.get("versions", {})
    rows = [
        ["processor", f"{machine['processor']}, {machine['cores']} cores"] if machine else None,
        ["devices", ", ".join(view.summary.get("devices") or machine.get("devices", []))],
        ["system", f"{view.status['system']}, {view.status['host']}"]
        if "system" in view.status
        else None,
    ]
    return [
        row
        for row in (*rows, *([n, str(version)] for n, version in versions.items()))
        if row and row[1]
    ]


def command_lines(view: RunView) -> list[list[str]]:
    """List commands to continue with a run.

    Args:
        view: Run.

    Returns:
        Rows of purpose and command; none of a run without ``config.yaml``, whose environment has no
        name.
    """
    if not (view.path / "config.yaml").is_file():
        return []
    folder, own_code = str(view.path), named_again(view.settings)
    rows: list[tuple[str, ...]] = [("repeat", "train", f"config={folder}/config.yaml")]
    rows += (
        [("resume", "train", f"resume={folder}", *own_code)]
        if (view.path / "checkpoints").is_dir()
        else []
    )
    if (view.path / "policy").is_dir():
        rows += [
            ("evaluate", "evaluate", folder, *own_code, "episodes=100"),
            ("export", "export", folder, *own_code),
        ]
        rows += [("draw", "render", folder, *own_code)] if view.status.get("draws") else []
    return [[what, command_line(words, command)] for what, command, *words in rows]


def _as_uri(file: Path, kind: str) -> str | None:
    with suppress(OSError):
        return f"data:{kind};base64,{base64.b64encode(file.read_bytes()).decode()}"
    return None


def _read_text(file: Path) -> str | None:
    with suppress(OSError, ValueError):
        return file.read_text("utf-8")
    return None


REPORT_FILE = "report.html"


def page_of(views: Sequence[RunView]) -> str:
    """Make the page of one run, or the comparison of several.

    Args:
        views: Runs.

    Returns:
        HTML.
    """
    if len(views) > 1:
        return _page_of_several(views)
    return _filled([describe_run(views[0], views[0].path.name)], describe_details(views[0]))


def _filled(
    runs: list[dict[str, Any]], details: dict[str, Any] | None, differing: Sequence[list[str]] = ()
) -> str:
    content = dict(written_at=time.time(), runs=runs, details=details, differing=differing)
    return assembled("report.html", content=content)


def _page_of_several(views: Sequence[RunView]) -> str:
    groups = groups_of(views, SEEDS)
    several = len({group.task for group in groups}) > 1
    names = [f"{group.label}, {group.task}" if several else group.label for group in groups]
    runs = [
        describe_run(joined(group.views), name) for group, name in zip(groups, names, strict=True)
    ]
    return _filled(runs, None, differing_settings([group.views for group in groups]))


def page_of_joined(views: Sequence[RunView], joined: dict[str, Any]) -> str:
    """Make the page of several populations over the same settings.

    Args:
        views: Folders of populations.
        joined: Result of `joined_members`.

    Returns:
        HTML.
    """
    first = describe_run(views[0], ", ".join(short_names(views)))
    details = {
        **describe_details(views[0]),
        "members": joined,
        "commands": [],
        "lines": [],
        "settings": [],
    }
    return _filled([first], details)


def joined_members(views: Sequence[RunView]) -> dict[str, Any] | None:
    """Join the members of several populations over the same settings, the best first.

    Args:
        views: Folders of populations.

    Returns:
        Content as of one ``members.json``, or None if a folder is a run's or the settings differ.
    """
    populations = [read_members(view.path) for view in views]
    readable = [one for one in populations if one is not None]
    if len(readable) < len(views) or any(
        one["settings"] != readable[0]["settings"] for one in readable
    ):
        return None
    members, lineage = [], []
    for job, one in zip(short_names(views), readable, strict=True):
        members += [
            {**m, "number": f"{job}/{m['number']}", "parent": _named(job, m["parent"])}
            for m in one["members"]
        ]
        lineage += [
            [s, f"{job}/{number}", _named(job, parent), point]
            for s, number, parent, point in one["lineage"]
        ]
    members.sort(key=lambda m: (-m["env_steps"], m["score"] is None, -(m["score"] or 0.0)))
    return {**readable[0], "members": members, "lineage": lineage, "commands": []}


def _named(job: str, number: int | None) -> str | None:
    return None if number is None else f"{job}/{number}"


def write_report(folder: Path) -> None:
    """Write a run's ``report.html`` atomically.

    Args:
        folder: Folder of the run.
    """
    replace_file(folder / REPORT_FILE, page_of([read_run(folder)]))


def short_names(views: Sequence[RunView]) -> list[str]:
    """Shorten the paths of runs by their common part.

    Args:
        views: Runs.

    Returns:
        One name per run.
    """
    paths = [str(view.path) for view in views]
    if len(paths) == 1:
        return [Path(paths[0]).name or paths[0]]
    shared = commonpath([str(Path(path).parent) for path in map(os.path.abspath, paths)])
    return [os.path.relpath(os.path.abspath(path), shared) for path in paths]
