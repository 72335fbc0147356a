"""Several runs side by side: what names them, and runs that differ only in their seeds as one."""

from collections.abc import Sequence
from statistics import mean
from typing import Any, NamedTuple

import numpy as np

from jaxrl_fast.settings.schema import by_dotted_key, written
from jaxrl_fast.training.callbacks import RATES
from jaxrl_fast.training.run_folder import Columns, RunView, name_of


class Aside(NamedTuple):
    """Settings that may differ between runs of one line.

    Attributes:
        keys: Names.
        sections: Beginnings of names.
    """

    keys: frozenset[str]
    sections: tuple[str, ...]


SEEDS = Aside(frozenset({"seed", "num_seeds", "name", "log"}), ("checkpoint.", "stop."))
"""Of pages, where runs that differ only in their seeds are one line."""
IN_FIGURES = Aside(
    frozenset({*SEEDS.keys, "total_steps", "env", "algo", "devices", "placement"}),
    (*SEEDS.sections, "eval.", "env."),
)
"""Of figures for papers: also how it was trained and evaluated. Environments have a panel each."""


class RunGroup(NamedTuple):
    """Runs of one line.

    Attributes:
        label: Algorithm, and name or settings that differ from other groups of the environment.
        task: Name of the environment.
        views: The runs.
    """

    label: str
    task: str
    views: list[RunView]


def labels_of(views: Sequence[RunView], aside: Aside = IN_FIGURES) -> list[str]:
    """Label each run by its algorithm, and its name or its differences from other runs of algorithm
    and environment.

    Args:
        views: Runs.
        aside: Settings that may differ.

    Returns:
        One label per run.
    """
    tables, kinds = [_counted(view, aside) for view in views], [_kind(view) for view in views]
    labels = []
    for kind, table, view in zip(kinds, tables, views, strict=True):
        alike = [other for other, its_kind in zip(tables, kinds, strict=True) if its_kind == kind]
        differ = [k for k in table if any(other.get(k) != table[k] for other in alike)]
        name = view.settings.get("name") or ", ".join(
            f"{k.removeprefix('algo.')}={table[k]}" for k in differ
        )
        labels.append(f"{kind[1]} ({name})" if name else kind[1])
    return labels


def groups_of(views: Sequence[RunView], aside: Aside = IN_FIGURES) -> list[RunGroup]:
    """RunGroup runs of one line.

    Args:
        views: Runs.
        aside: Settings that may differ.

    Returns:
        Groups in the order of their first runs. On pages, a run without settings is alone, and so
        are runs of one name with other settings. Runs with a seed in common are not in one group,
        where it would count twice.
    """
    groups: list[tuple[Any, RunGroup]] = []
    for view, label in zip(views, labels_of(views, aside), strict=True):
        settings = tuple(_counted(view, aside).items()) or view.path
        key = label, _kind(view), settings if aside is SEEDS else ()
        seeds = seeds_of(view)
        alike = (
            group
            for other, group in groups
            if other == key and not any(seeds & seeds_of(one) for one in group.views)
        )
        if (group := next(alike, None)) is not None:
            group.views.append(view)
        else:
            groups.append((key, RunGroup(label, _kind(view)[0], [view])))
    return [group for _, group in groups]


def seeds_of(view: RunView) -> set[int]:
    """Return the seeds of a run, none if its settings do not name them.

    Args:
        view: Run.

    Returns:
        The seeds.
    """
    first, number = view.settings.get("seed"), view.settings.get("num_seeds", 1)
    if not (isinstance(first, int) and isinstance(number, int)):
        return set()
    return set(range(first, first + number))


def _kind(view: RunView) -> tuple[str, str]:
    env, algo = (
        name_of(view.settings, group) or view.status.get(group, "") for group in ("env", "algo")
    )
    return env, algo


def _counted(view: RunView, aside: Aside) -> dict[str, str]:
    table = by_dotted_key(view.settings)
    return {
        k: written(x)
        for k, x in table.items()
        if k not in aside.keys and not k.startswith(aside.sections)
    }


def joined(views: Sequence[RunView]) -> RunView:
    """Join runs of one line into one with the seeds of all.

    Args:
        views: Runs.

    Returns:
        A run with the first's path and settings, the steps of the slowest, all evaluations, and
        metrics averaged where all runs have them. Runs without evaluations, or without metrics, do
        not count there.
    """
    if len(views) == 1:
        return views[0]
    worst = min(views, key=lambda view: STATES.index(view.state) if view.state in STATES else -1)
    status = {
        **views[0].status,
        "num_seeds": sum(view.status.get("num_seeds") or 1 for view in views),
    }
    status |= {"error": worst.status.get("error")}
    for name in ("env_steps", "wall_s", *RATES):
        values = [
            x
            for view in views
            if (x := view.summary.get(name) or view.status.get(name)) is not None
        ]
        status[name] = None if not values else min(values) if name == "env_steps" else mean(values)
    bests = [
        best for view in views if (best := view.summary.get("best") or view.status.get("best"))
    ]
    status["best"] = max(bests, key=lambda best: best["return_mean"], default=None)
    metrics, evals = (
        _averaged([view.metrics for view in views]),
        _all_seeds([view.evals for view in views]),
    )
    return views[0]._replace(
        state=worst.state, status=status, summary={}, metrics=metrics, of_seeds={}, evals=evals
    )


STATES = ("failed", "dead", "unknown", "compiling", "training", "evaluating", "stopped", "done")
"""The state of a joined run is the first of these that one of its runs has."""


def _averaged(tables: Sequence[Columns]) -> Columns:
    tables = [table for table in tables if len(table.get("env_steps", ()))]
    if not tables:
        return {}
    names = [name for name in tables[0] if all(name in table for table in tables)]
    steps = tables[0]["env_steps"]
    steps = steps[np.all([np.isin(steps, table["env_steps"]) for table in tables], axis=0)]
    rows = [np.searchsorted(table["env_steps"], steps) for table in tables]
    return {
        name: np.mean([t[name][at] for t, at in zip(tables, rows, strict=True)], axis=0)
        for name in names
    }


def _all_seeds(tables: Sequence[Columns]) -> Columns:
    tables = [_finite_seeds(table) for table in tables if len(table.get("seed", ()))]
    if not tables:
        return {}
    names = [name for name in tables[0] if all(name in table for table in tables)]
    counts = [int(table["seed"].max(initial=-1)) + 1 for table in tables]
    shifts = np.cumsum([0, *counts[:-1]])
    columns = {name: np.concatenate([table[name] for table in tables]) for name in names}
    seeds = [table["seed"] + shift for table, shift in zip(tables, shifts, strict=True)]
    return columns | {"seed": np.concatenate(seeds)}


def _finite_seeds(table: Columns) -> Columns:
    whole = np.isfinite(table["seed"])
    return {name: column[whole] for name, column in table.items()}
