"""What a sweep found, as JSON, CSV and text."""

import csv
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from jaxrl_fast.files import replace_file, replacing
from jaxrl_fast.inspection.labels import byte_size
from jaxrl_fast.inspection.tables import new_table
from jaxrl_fast.runs.progress import si
from jaxrl_fast.settings import machine
from jaxrl_fast.settings.grammar import command_line
from jaxrl_fast.tuning.candidates import words
from jaxrl_fast.tuning.ceiling import share_of_bound
from jaxrl_fast.tuning.measuring import Row, Settings, Spread, spread
from jaxrl_fast.tuning.sweep import Record, SweepPlan

UNITS = ("sampling_hz", "update_hz", "update_frame_hz")
"""Spreeze's measures: environment steps/s, gradient updates/s, and these times the batch size."""
SPREEZE_NAMES = ("sampling Hz", "update Hz", "update frame rate")
EQUAL_BATCHES = (256, 8192)
"""Batch sizes at which Spreeze compares."""

SHARES = {
    "sampling_of_environments": "the rate of the environments alone",
    "updates_of_bare_updates": "the rate of the updates alone",
    "share_of_bounds": "what environments and updates alone allow together, one after the other",
    "share_of_parts": "what sampling and updates alone allow together, one after the other",
}
QUARTILES = ("median", "low", "high")
DISTURBED = 0.1
"""Figures are called disturbed if other programs took more than this share of the CPU."""
OF_THE_DEVICE = ("platform", "device_kind", "available")

Document = dict[str, Any]


def document(
    plan: SweepPlan, record: Record, settings: Settings, argv: Sequence[str], *, interrupted: bool
) -> Document:
    """The content of the JSON file, from which the other files and the picture are made too."""
    return {
        "command": command_line(argv, "autotune"),
        "machine": f"{machine.cpu_cores()} cores, {machine.processor()}",
        "device": {key: record.own.facts.get(key) for key in OF_THE_DEVICE} if record.own else {},
        "versions": machine.versions(),
        "measured": time.strftime("%Y-%m-%d %H:%M"),
        "env": plan.asked.env,
        "algo": plan.asked.algo,
        "objective": plan.objective,
        "interrupted": interrupted,
        "repeats": settings.repeats,
        "repeat_s": settings.repeat_s,
        "memory_cap_gb": settings.memory_cap and settings.memory_cap / 1e9,
        "took_s": sum(row.took_s for row in record.rows) + max((row.took_s for row in record.bounds), default=0.0),
        "notes": [*record.notes, *disturbed(record)],
        "rows": [row_facts(plan, row) for row in record.rows],
        "chosen": choice(plan, record),
        "bounds": bounds(record),
        "spreeze": spreeze(record),
    }


def row_facts(plan: SweepPlan, row: Row) -> dict[str, Any]:
    """A row in plain numbers; rates are medians and quartiles over ``repeats`` repeats."""
    facts = {key: value for key, value in row.facts.items() if key not in ("kind", "events", *OF_THE_DEVICE)}
    rates = {unit: spread(row.rates(unit)) if row.tick_hz else None for unit in UNITS}
    own = {name: getattr(row, name) for name in ("knob", "value", "status", "why", "effect")}
    more = {name: getattr(row, name) for name in ("in_turn", "peak_bytes", "others", "took_s")}
    own |= {"words": words(plan.asked, row.run), **facts, "workers": row.run.pool.get("workers")}
    return {**own, "repeats": len(row.tick_hz), **more, **rates, "tick_hz": list(row.tick_hz)}


def disturbed(record: Record) -> list[str]:
    """A line if other programs took much of the CPU while something was measured."""
    names = [f"{row.knob}={row.value}" for row in record.rows if row.others > DISTURBED]
    most = max((row.others for row in (*record.rows, *record.bounds)), default=0.0)
    if most <= DISTURBED:
        return []
    which = f" ({', '.join(names)})" if names else ""
    return [f"other programs took up to {most:.0%} of the CPU meanwhile{which}: run it again when they are done"]


def choice(plan: SweepPlan, record: Record) -> dict[str, Any] | None:
    """The words to add to the command line, how much faster they are than what was asked for, and their effect on
    learning."""
    if record.best is None:
        return None
    taken = [row for row in (record.width, record.best) if row is not None]
    effects = dict.fromkeys(row.effect for row in taken if not row.effect.startswith("none"))
    return {
        "num_envs": record.best.facts["num_envs"],
        "words": words(plan.asked, record.best.run),
        "effect": "; ".join(effects) or "none",
        "sampling_hz": record.best.outcome().rate,
        "speedup": speedup(record),
    }


def speedup(record: Record) -> float | None:
    """How many times as fast the best is as what was asked for, from measurements in turn where there are any."""
    if record.asked is not None and record.asked.tick_hz and record.bounds[0].tick_hz:
        pairs = zip(record.bounds[0].rates("sampling_hz"), record.asked.rates("sampling_hz"), strict=True)
        return statistics.median(best / own for best, own in pairs)
    own = record.own.outcome().rate if record.own else 0.0
    return record.best.outcome().rate / own if own and record.best else None


def bounds(record: Record) -> dict[str, Any] | None:
    """The parts of the best candidate, each alone, measured in turn, and how near the whole is to what they allow."""
    rows = {row.what: row for row in record.bounds if row.tick_hz}
    units = {"training": UNITS, "updates": UNITS[1:]}
    result: dict[str, Any] = {
        what: {unit: spread(row.rates(unit)) for unit in units.get(what, UNITS[:1])} for what, row in rows.items()
    }
    result["failed"] = {row.what: f"{row.status}: {row.why}" for row in record.bounds if not row.tick_hz}
    whole = "training" if "training" in rows else "sampling"
    if whole not in rows or "environments" not in rows:
        return result if record.bounds else None
    result["sampling_of_environments"] = _ratio(rows[whole], rows["environments"])
    if {"training", "updates"} <= set(rows):
        result["updates_of_bare_updates"] = _ratio(rows["training"], rows["updates"])
        for name, part in (("environments", "share_of_bounds"), ("sampling", "share_of_parts")):
            if name in rows:
                rounds = zip(*(rows[what].tick_hz for what in ("training", name, "updates")), strict=False)
                result[part] = spread([share_of_bound(1 / a, 1 / b, 1 / c) for a, b, c in rounds])
    return result


def spreeze(record: Record) -> list[dict[str, Any]]:
    """Rates at the batch sizes that Spreeze compares at, and at the one with the highest update frame rate."""
    rows = {row.facts["batch_size"]: row for row in record.rows if row.tick_hz and row.knob == "batch_size"}
    if record.best is not None and record.best.what == "training" and rows:
        rows.setdefault(record.best.facts["batch_size"], record.best)
    best = max(rows, key=lambda size: rows[size].outcome("update_frame_hz").rate, default=0)
    return [
        {"batch_size": size, "best": size == best, **{unit: spread(rows[size].rates(unit)) for unit in UNITS}}
        for size in sorted(rows)
        if size in EQUAL_BATCHES or size == best
    ]


def write(doc: Document, stem: Path) -> None:
    """``<stem>.json`` and ``<stem>.csv``, each in one piece."""
    columns = (
        *("knob", "value", "status", "num_envs", "rollout_length", "updates_per_tick", "batch_size", "placement"),
        *("devices", "workers", "repeats", "in_turn", "memory_bytes", "peak_bytes", "compile_s", "took_s", "effect"),
        "why",
    )
    rates = [f"{unit}_{part}" for unit in UNITS for part in QUARTILES]
    with replacing(stem.with_suffix(".csv")) as temporary, temporary.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*columns, *rates])
        for row in doc["rows"]:
            values = [(row[unit] or {}).get(part) for unit in UNITS for part in QUARTILES]
            table.writerow([*(row.get(column) for column in columns), *values])
    replace_file(stem.with_suffix(".json"), json.dumps(doc, indent=1) + "\n")


def line(row: Row, best: bool) -> str:
    """The line that is printed when a candidate has been measured."""
    name = f"{row.knob}={row.value}"
    if not row.tick_hz:
        return f"  {name:<32} {row.status}: {row.why}"
    rate, updates = (spread(row.rates(unit)) for unit in ("sampling_hz", "update_hz"))
    seconds = f"{row.took_s:.0f} s, {row.facts['compile_s']:.0f} s of it to compile"
    text = f"  {name:<32} {_shown(rate):>28} steps/s  {si(updates['median']):>6} updates/s  "
    if row.in_turn:
        return f"{text}again, in turn with what is close"
    return f"{text}{seconds}{'  best so far' if best else ''}"


def table(doc: Document) -> Table:
    """All rows for the terminal; what is chosen is marked."""
    title = f"{doc['env']}, {doc['algo']}, objective {doc['objective']}"
    columns = (">steps/s [quartiles]", ">updates/s", ">frames/s", ">memory", ">compile", ">took")
    result = new_table(title, *columns)
    chosen = doc["chosen"]["words"] if doc["chosen"] else None
    for row in doc["rows"]:
        mark = "→ " if row["words"] == chosen and row["status"] == "measured" else "  "
        name = f"{mark}{row['knob']}={row['value']}"
        if row["sampling_hz"] is None:
            result.add_row(name, row["status"])
            continue
        rates = _shown(row["sampling_hz"]), *(si(row[unit]["median"]) for unit in UNITS[1:])
        seconds = (f"{row[name]:.0f} s" for name in ("compile_s", "took_s"))
        result.add_row(name, *rates, byte_size(row["memory_bytes"]), *seconds)
    return result


def closing(doc: Document) -> list[str]:
    """The lines below the table: effects on learning, ceilings, Spreeze's measures and the choice."""
    lines = ["effect on learning, and why a candidate did not run:"]
    lines += [f"  {row['knob']}={row['value']}: {row['why'] or row['effect']}" for row in doc["rows"]]
    lines += [f"  {note}" for note in doc["notes"]]
    found = doc["bounds"] or {}
    for what in ("sampling", "environments", "updates"):
        unit, word = ("update_hz", "updates/s") if what == "updates" else ("sampling_hz", "steps/s")
        if what in found and what != doc["objective"]:
            lines.append(f"{what} alone: {_shown(found[what][unit])} {word}")
    lines += [f"{what} alone: {why}" for what, why in found.get("failed", {}).items()]
    for key, text in SHARES.items():
        if key in found:
            lines.append(f"{doc['objective']} reaches {_shown(found[key], '{:.0%}'.format)} of {text}")
    for row in doc["spreeze"]:
        rates = (f"{name} {si(row[unit]['median'])}" for unit, name in zip(UNITS, SPREEZE_NAMES, strict=True))
        lines.append(f"batch {row['batch_size']:,}{' (best)' if row['best'] else ''}: {', '.join(rates)}")
    return [*lines, *_verdict(doc)]


def _verdict(doc: Document) -> list[str]:
    chosen = doc["chosen"]
    if chosen is None:
        return ["nothing ran"]
    faster = f", {chosen['speedup']:.2f} × what was asked for" if chosen["speedup"] else ""
    best = "best so far" if doc["interrupted"] else "chosen"
    what = " ".join(chosen["words"]) or "what was asked for"
    return [f"{best}: {what}: {si(chosen['sampling_hz'])} steps/s{faster}", f"effect on learning: {chosen['effect']}"]


def _ratio(a: Row, b: Row) -> Spread:
    return spread([x / y for x, y in zip(a.tick_hz, b.tick_hz, strict=False)])


def _shown(figure: Spread, write: Callable[[float], str] = si) -> str:
    median, low, high = (write(figure[part]) for part in QUARTILES)
    return f"{median} [{low}, {high}]"
