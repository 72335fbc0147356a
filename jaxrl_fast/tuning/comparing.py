"""Compares two sweeps: is the choice the same, or within the spread?"""

import json
from pathlib import Path
from typing import Any

from rich.table import Table

from jaxrl_fast.inspection.tables import new_table
from jaxrl_fast.runs.progress import si
from jaxrl_fast.settings.schema import ConfigError
from jaxrl_fast.tuning.search import GAIN


def read(path: str) -> dict[str, Any]:
    """The JSON of a sweep.

    Raises:
        ConfigError: it is none.
    """
    try:
        doc = json.loads(Path(path).read_text())
        if {"rows", "chosen", "objective"} <= set(doc):
            return doc
    except (OSError, ValueError, TypeError):
        pass
    raise ConfigError(f"{path} is no result of a sweep: write the path of its .json")


def side_by_side(a: dict[str, Any], b: dict[str, Any]) -> Table:
    """Every candidate of either, with the rates in both and their ratio."""
    table = new_table("candidate", ">A steps/s", ">B steps/s", ">B / A")
    rates = [{(row["knob"], str(row["value"])): row for row in doc["rows"]} for doc in (a, b)]
    for key in dict.fromkeys([*rates[0], *rates[1]]):
        rows = [rate.get(key) for rate in rates]
        medians = [row["sampling_hz"]["median"] if row and row["sampling_hz"] else None for row in rows]
        ratio = f"{medians[1] / medians[0]:.2f}" if medians[0] and medians[1] else ""
        table.add_row("=".join(key), *(_shown(row) for row in rows), ratio)
    return table


def verdict(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Where each was measured, what each chose, and whether the two agree."""
    lines = [
        f"{name}: {doc['machine']}, jax {doc['versions']['jax']}, {doc['measured']}: {_choice(doc)}"
        for name, doc in (("A", a), ("B", b))
    ]
    if (a["env"], a["algo"], a["objective"]) != (b["env"], b["algo"], b["objective"]):
        return [*lines, "they are sweeps of different work: rates are not comparable"]
    if not a["chosen"] or not b["chosen"]:
        return [*lines, "one of them found nothing"]
    if a["chosen"]["words"] == b["chosen"]["words"]:
        return [*lines, "the same choice"]
    if all(_near(doc, other) for doc, other in ((a, b), (b, a))):
        return [*lines, "different choices, each within the spread of the other sweep"]
    return [*lines, "different choices"]


def _near(doc: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether the width that ``other`` chose is as fast in ``doc`` as its own, but for the spread."""
    rows = {
        row["num_envs"]: row["sampling_hz"] for row in doc["rows"] if row["knob"] == "num_envs" and row["sampling_hz"]
    }
    own, theirs = (rows.get(d["chosen"]["num_envs"]) for d in (doc, other))
    return own is not None and theirs is not None and theirs["high"] >= min(own["low"], own["median"] * (1 - GAIN))


def _choice(doc: dict[str, Any]) -> str:
    return " ".join(doc["chosen"]["words"]) or "as asked for" if doc["chosen"] else "nothing ran"


def _shown(row: dict[str, Any] | None) -> str:
    if row is None:
        return "-"
    rate = row["sampling_hz"]
    return row["status"] if rate is None else f"{si(rate['median'])} [{si(rate['low'])}, {si(rate['high'])}]"
