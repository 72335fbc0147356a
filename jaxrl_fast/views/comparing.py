"""Several runs side by side: what names them, and runs that differ only in their seeds as one."""

from collections.abc import Sequence

import numpy as np

from jaxrl_fast.settings.schema import by_dotted_key, written
from jaxrl_fast.training.records import ENDED, RATES
from jaxrl_fast.training.run_folder import Columns, RunView, name_of

SAME = {"seed", "num_seeds", "name", "total_steps", "env", "algo", "devices", "placement"}
SAME_SECTIONS = ("checkpoint.", "eval.", "stop.", "env.")
"""Settings that may differ between runs of one line, and those shown elsewhere."""


def labels_of(views: Sequence[RunView]) -> list[str]:
    """Label each run by its algorithm, and its differences from other runs of that algorithm and environment.

    Args:
        views: Runs.

    Returns:
        One label per run.
    """
    tables = [by_dotted_key(view.settings) for view in views]
    kinds = [(name_of(view.settings, "env"), name_of(view.settings, "algo")) for view in views]
    labels = []
    for kind, table, view in zip(kinds, tables, views, strict=True):
        alike = [other for other, its_kind in zip(tables, kinds, strict=True) if its_kind == kind]
        counts = [k for k in table if k not in SAME and not k.startswith(SAME_SECTIONS)]
        differ = [k for k in counts if any(other.get(k) != table[k] for other in alike)]
        own = view.settings.get("name") or ", ".join(f"{k.removeprefix('algo.')}={written(table[k])}" for k in differ)
        labels.append(f"{kind[1]} ({own})" if own else kind[1])
    return labels


def groups_of(views: Sequence[RunView]) -> dict[tuple[str, str], list[RunView]]:
    """Group runs that differ only in their seeds.

    Args:
        views: Runs.

    Returns:
        Runs by label and environment.
    """
    grouped: dict[tuple[str, str], list[RunView]] = {}
    for view, label in zip(views, labels_of(views), strict=True):
        grouped.setdefault((label, name_of(view.settings, "env")), []).append(view)
    return grouped


def joined(views: Sequence[RunView]) -> RunView:
    """Join runs that differ only in their seeds into one with the seeds of all.

    Args:
        views: Runs.

    Returns:
        A run with the first's path and settings, all evaluations, and metrics averaged where all runs have them.
    """
    if len(views) == 1:
        return views[0]
    first, facts = views[0], [view.status for view in views]
    status = {**first.status, "num_seeds": sum(fact.get("num_seeds") or 1 for fact in facts)}
    for name in ("wall_s", *RATES):
        found = [x for view in views if (x := view.summary.get(name) or view.status.get(name)) is not None]
        status[name] = float(np.mean(found)) if found else None
    bests = [best for view in views if (best := view.summary.get("best") or view.status.get("best"))]
    status["best"] = max(bests, key=lambda best: best["return_mean"], default=None)
    state = next((view.state for view in views if view.state not in ENDED), first.state)
    metrics, evals = _averaged([view.metrics for view in views]), _all_seeds([view.evals for view in views])
    return first._replace(state=state, status=status, summary={}, metrics=metrics, of_seeds={}, evals=evals)


def _averaged(tables: Sequence[Columns]) -> Columns:
    names = [name for name in tables[0] if all(name in table for table in tables)]
    if "env_steps" not in names:
        return {}
    steps = tables[0]["env_steps"]
    steps = steps[np.all([np.isin(steps, table["env_steps"]) for table in tables], axis=0)]
    rows = [np.searchsorted(table["env_steps"], steps) for table in tables]
    return {name: np.mean([t[name][at] for t, at in zip(tables, rows, strict=True)], axis=0) for name in names}


def _all_seeds(tables: Sequence[Columns]) -> Columns:
    names = [name for name in tables[0] if all(name in table for table in tables)]
    if "seed" not in names:
        return {}
    counts = [int(table["seed"].max(initial=-1)) + 1 for table in tables]
    shifts = np.cumsum([0, *counts[:-1]])
    columns = {name: np.concatenate([table[name] for table in tables]) for name in names}
    seeds = [table["seed"] + shift for table, shift in zip(tables, shifts, strict=True)]
    return columns | {"seed": np.concatenate(seeds)}
