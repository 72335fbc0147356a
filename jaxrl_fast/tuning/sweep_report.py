"""Results of a sweep: rows, files, and the picture of throughput by width."""

import csv
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from jaxrl_fast.settings import machine
from jaxrl_fast.settings.schema import command_line
from jaxrl_fast.system import replace_file, replacing
from jaxrl_fast.training.progress import si
from jaxrl_fast.tuning.candidates import words
from jaxrl_fast.tuning.ceiling import share_of_bound
from jaxrl_fast.tuning.measuring import Row, Settings, Spread, spread
from jaxrl_fast.tuning.width_sweep import Record, SweepPlan
from jaxrl_fast.views.description import byte_size
from jaxrl_fast.views.graph_tables import new_table

TRAINING, MEMORY, CHOSEN = "#1f5fa8", "#b8b8b8", "#c8402f"
CEILINGS = {
    "environments": ("environments alone", "#2e8b57", "--"),
    "sampling": ("sampling alone", "#7a9a01", "--"),
    "both": ("sampling and updates alone, one after the other", "#8a5a9e", ":"),
}
FAR = 4.0
"""Ceilings above this multiple of the highest rate are only named, because drawing them would
flatten the curve.
"""


def draw(doc: dict[str, Any], path: Path) -> None:
    """Draw throughput by width; writes nothing if no width was measured.

    Args:
        doc: Content of the JSON file.
        path: PNG file.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import EngFormatter, NullLocator

    rows = [row for row in doc["rows"] if row["knob"] == "num_envs" and row["sampling_hz"]]
    if not rows:
        return
    rows.sort(key=lambda row: row["num_envs"])
    figure, axes = plt.subplots(figsize=(8, 4.8), layout="constrained")
    x = np.array([row["num_envs"] for row in rows])
    axes.set_xscale("log", base=2)
    axes.set_xlim(x[0] / 2**0.5, x[-1] * 2**0.5)
    _memory(axes.twinx(), rows, x)
    _rates(axes, rows, x)
    ceilings = _ceilings(doc)
    top = max(row["sampling_hz"]["high"] for row in rows)
    highest = max([top, *(rate for rate in ceilings.values() if rate <= FAR * top)])
    for name, rate in ceilings.items():
        label, color, style = CEILINGS[name]
        if rate <= highest:
            axes.axhline(rate, color=color, linestyle=style, linewidth=1.5, label=label, zorder=2)
        else:
            axes.plot(
                [],
                [],
                color=color,
                linestyle=style,
                label=f"{label}: {si(rate)} steps/s, far above",
            )
    if doc["chosen"]:
        _mark(axes, doc["chosen"])
    axes.set_ylim(0, 1.12 * highest)
    # Powers of two within the range, or the widths if there are few.
    ticks = (
        [int(w) for w in x] if len(x) <= 7 else [2**k for k in range(32) if x[0] <= 2**k <= x[-1]]
    )
    axes.set_xticks(ticks, labels=[f"{value:,}" for value in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set(xlabel="parallel environments", ylabel="environment steps/s")
    axes.grid(alpha=0.25, zorder=0)
    axes.set_title(
        f"{doc['env']}, {doc['algo']}: {doc['objective']}", loc="left", fontweight="bold"
    )
    axes.set_title(doc["machine"], loc="right", fontsize="small", color="#666666")
    shown = axes.get_legend_handles_labels()
    figure.legend(
        *shown,
        loc="outside lower center",
        ncols=2,
        frameon=False,
        fontsize="small",
        markerscale=0.6,
    )
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _rates(axes: Any, rows: list[dict[str, Any]], x: np.ndarray) -> None:
    """Draw medians, joined, with quartiles as bars; hollow for a single repeat."""
    rate = np.array(
        [[row["sampling_hz"][part] for part in ("median", "low", "high")] for row in rows]
    )
    error = [rate[:, 0] - rate[:, 1], rate[:, 2] - rate[:, 0]]
    label = "measured: median and quartiles (hollow: one repeat)"
    axes.errorbar(
        x, rate[:, 0], yerr=error, color=TRAINING, linewidth=1.8, capsize=4, zorder=4, label=label
    )
    full = ["white" if row["repeats"] == 1 else TRAINING for row in rows]
    axes.scatter(x, rate[:, 0], s=34, c=full, edgecolors=TRAINING, linewidths=1.5, zorder=5)


def _memory(axes: Any, rows: list[dict[str, Any]], x: np.ndarray) -> None:
    """Draw memory as bars, on a second axis in the background."""
    points = [
        (width, row["memory_bytes"])
        for width, row in zip(x, rows, strict=True)
        if row.get("memory_bytes")
    ]
    axes.set_zorder(-1)
    axes.set_ylabel("memory as XLA predicts it", color="#8a8a8a")
    axes.yaxis.set_major_formatter(lambda number, _: byte_size(number))
    axes.tick_params(axis="y", colors="#8a8a8a")
    axes.spines["top"].set_visible(False)
    if points:
        widths, memory = np.array(points).T
        axes.bar(widths, memory, width=widths * 0.16, color=MEMORY, alpha=0.5)
        axes.set_ylim(0, 2.2 * memory.max())


def _ceilings(doc: dict[str, Any]) -> dict[str, float]:
    """Return bounds of steps/s.

    They were measured in turn with training at the selected width, and are multiplied by the ratio
    to its rate in the sweep, because the machine's speed varies.
    """
    bounds = doc["bounds"] or {}
    parts = [
        what for what in ("environments", "sampling") if what in bounds and what != doc["objective"]
    ]
    rates = {what: bounds[what]["sampling_hz"]["median"] for what in parts}
    if "training" not in bounds or not doc["chosen"]:
        return rates
    training = bounds["training"]["sampling_hz"]["median"]
    if "share_of_parts" in bounds:
        rates["both"] = training / bounds["share_of_parts"]["median"]
    return {what: rate * doc["chosen"]["sampling_hz"] / training for what, rate in rates.items()}


def _mark(axes: Any, chosen: dict[str, Any]) -> None:
    width, rate = chosen["num_envs"], chosen["sampling_hz"]
    axes.scatter(
        [width],
        [rate],
        s=190,
        facecolors="none",
        edgecolors=CHOSEN,
        linewidths=2.2,
        zorder=6,
        label="chosen",
    )
    speedup = f"\n{chosen['speedup']:.2f} × the requested run" if chosen["speedup"] else ""
    box = dict(boxstyle="round,pad=0.2", facecolor="white", edgecolor="none", alpha=0.8)
    place = {
        "xytext": (0, -16),
        "textcoords": "offset points",
        "ha": "center",
        "va": "top",
        "zorder": 7,
    }
    text = f"{width:,} environments{speedup}"
    axes.annotate(text, (width, rate), **place, color=CHOSEN, fontsize="small", bbox=box)


UNITS = ("sampling_hz", "update_hz", "update_frame_hz")
"""Spreeze's measures: environment steps/s, gradient updates/s, and the latter times the batch size.
"""
SPREEZE_NAMES = ("sampling Hz", "update Hz", "update frame rate")
EQUAL_BATCHES = (256, 8192)
"""Batch sizes of Spreeze's comparisons."""

SHARES = {
    "sampling_of_environments": "the rate of the environments alone",
    "updates_of_bare_updates": "the rate of the updates alone",
    "share_of_bounds": "the bound by environments and updates alone, one after the other",
    "share_of_parts": "the bound by sampling and updates alone, one after the other",
}
QUARTILES = ("median", "low", "high")
DISTURBED = 0.1
"""Share of the CPU used by other programs above which results are reported as disturbed."""
OF_THE_DEVICE = ("platform", "device_kind", "available")

Document = dict[str, Any]


def document(
    plan: SweepPlan, record: Record, settings: Settings, argv: Sequence[str], *, interrupted: bool
) -> Document:
    """Return the content of the JSON file, from which the other files and the picture are made.

    Args:
        plan: What was varied.
        record: Results.
        settings: Settings of the trials.
        argv: Arguments of the command.
        interrupted: Whether the sweep was stopped.

    Returns:
        Values for JSON.
    """
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
        "took_s": sum(row.took_s for row in record.rows)
        + max((row.took_s for row in record.bounds), default=0.0),
        "notes": [*record.notes, *disturbed(record)],
        "rows": [row_facts(plan, row) for row in record.rows],
        "chosen": choice(plan, record),
        "bounds": bounds(record),
        "spreeze": spreeze(record),
    }


def row_facts(plan: SweepPlan, row: Row) -> dict[str, Any]:
    """Convert a result for JSON; rates are medians and quartiles over ``repeats`` repeats.

    Args:
        plan: What was varied.
        row: Result.

    Returns:
        Values for JSON.
    """
    facts = {
        key: value
        for key, value in row.facts.items()
        if key not in ("kind", "events", *OF_THE_DEVICE)
    }
    rates = {unit: spread(row.rates(unit)) if row.tick_hz else None for unit in UNITS}
    fields = {name: getattr(row, name) for name in ("knob", "value", "status", "why", "effect")}
    more = {name: getattr(row, name) for name in ("in_turn", "peak_bytes", "others", "took_s")}
    fields |= {"words": words(plan.asked, row.run), **facts, "workers": row.run.pool.get("workers")}
    return {**fields, "repeats": len(row.tick_hz), **more, **rates, "tick_hz": list(row.tick_hz)}


def disturbed(record: Record) -> list[str]:
    """Return a message if other programs used much of the CPU during measurements.

    Args:
        record: Results.

    Returns:
        No or one message.
    """
    names = [f"{row.knob}={row.value}" for row in record.rows if row.others > DISTURBED]
    most = max((row.others for row in (*record.rows, *record.bounds)), default=0.0)
    if most <= DISTURBED:
        return []
    which = f" ({', '.join(names)})" if names else ""
    return [
        f"other programs took up to {most:.0%} of the CPU meanwhile{which}: run it again when they have ended"
    ]


def choice(plan: SweepPlan, record: Record) -> dict[str, Any] | None:
    """Describe the selected settings: their arguments, speedup and effect on learning.

    Args:
        plan: What was varied.
        record: Results.

    Returns:
        Values for JSON; None if nothing ran.
    """
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
    """Return the speed of the best run relative to the user's, from measurements in turn if there
    are any.

    Args:
        record: Results.

    Returns:
        The ratio; None without both rates.
    """
    if record.asked is not None and record.asked.tick_hz and record.bounds[0].tick_hz:
        pairs = zip(
            record.bounds[0].rates("sampling_hz"), record.asked.rates("sampling_hz"), strict=True
        )
        return statistics.median(best / requested for best, requested in pairs)
    requested = record.own.outcome().rate if record.own else 0.0
    return record.best.outcome().rate / requested if requested and record.best else None


def bounds(record: Record) -> dict[str, Any] | None:
    """Describe the parts of the best run, measured in turn, and its share of the bound that they
    give.

    Args:
        record: Results.

    Returns:
        Values for JSON; None if nothing was measured.
    """
    rows = {row.what: row for row in record.bounds if row.tick_hz}
    units = {"training": UNITS, "updates": UNITS[1:]}
    result: dict[str, Any] = {
        what: {unit: spread(row.rates(unit)) for unit in units.get(what, UNITS[:1])}
        for what, row in rows.items()
    }
    result["failed"] = {
        row.what: f"{row.status}: {row.why}" for row in record.bounds if not row.tick_hz
    }
    whole = "training" if "training" in rows else "sampling"
    if whole not in rows or "environments" not in rows:
        return result if record.bounds else None
    result["sampling_of_environments"] = _ratio(rows[whole], rows["environments"])
    if {"training", "updates"} <= set(rows):
        result["updates_of_bare_updates"] = _ratio(rows["training"], rows["updates"])
        for name, part in (("environments", "share_of_bounds"), ("sampling", "share_of_parts")):
            if name in rows:
                rounds = zip(
                    *(rows[what].tick_hz for what in ("training", name, "updates")), strict=False
                )
                result[part] = spread([share_of_bound(1 / a, 1 / b, 1 / c) for a, b, c in rounds])
    return result


def spreeze(record: Record) -> list[dict[str, Any]]:
    """Return the rates at Spreeze's batch sizes, and at the one with the highest update frame rate.

    Args:
        record: Results.

    Returns:
        Values for JSON.
    """
    rows = {
        row.facts["batch_size"]: row
        for row in record.rows
        if row.tick_hz and row.knob == "batch_size"
    }
    if record.best is not None and record.best.what == "training" and rows:
        rows.setdefault(record.best.facts["batch_size"], record.best)
    best = max(rows, key=lambda size: rows[size].outcome("update_frame_hz").rate, default=0)
    return [
        {
            "batch_size": size,
            "best": size == best,
            **{unit: spread(rows[size].rates(unit)) for unit in UNITS},
        }
        for size in sorted(rows)
        if size in EQUAL_BATCHES or size == best
    ]


def write(doc: Document, stem: Path) -> None:
    """Write ``<stem>.json`` and ``<stem>.csv``, each atomically.

    Args:
        doc: Content of the JSON file.
        stem: Path without suffix.
    """
    columns = (
        *(
            "knob",
            "value",
            "status",
            "num_envs",
            "rollout_length",
            "updates_per_tick",
            "batch_size",
            "placement",
        ),
        *(
            "devices",
            "workers",
            "repeats",
            "in_turn",
            "memory_bytes",
            "peak_bytes",
            "compile_s",
            "took_s",
            "effect",
        ),
        "why",
    )
    rates = [f"{unit}_{part}" for unit in UNITS for part in QUARTILES]
    with (
        replacing(stem.with_suffix(".csv")) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as file,
    ):
        table = csv.writer(file)
        table.writerow([*columns, *rates])
        for row in doc["rows"]:
            values = [(row[unit] or {}).get(part) for unit in UNITS for part in QUARTILES]
            table.writerow([*(row.get(column) for column in columns), *values])
    replace_file(stem.with_suffix(".json"), json.dumps(doc, indent=1) + "\n")


def line(row: Row, best: bool) -> str:
    """Format a result for the terminal.

    Args:
        row: Result.
        best: Whether it is the best so far.

    Returns:
        A line of text.
    """
    name = f"{row.knob}={row.value}"
    if not row.tick_hz:
        return f"  {name:<32} {row.status}: {row.why}"
    rate, updates = (spread(row.rates(unit)) for unit in ("sampling_hz", "update_hz"))
    seconds = f"{row.took_s:.0f} s, {row.facts['compile_s']:.0f} s of it to compile"
    text = f"  {name:<32} {_shown(rate):>28} steps/s  {si(updates['median']):>6} updates/s  "
    if row.in_turn:
        return f"{text}again, in turn with close candidates"
    return f"{text}{seconds}{'  best so far' if best else ''}"


def table(doc: Document) -> Table:
    """Build the table of all results, with the selected one marked.

    Args:
        doc: Content of the JSON file.

    Returns:
        The table.
    """
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
    """Describe effects on learning, bounds, Spreeze's measures and the selection.

    Args:
        doc: Content of the JSON file.

    Returns:
        Lines of text.
    """
    lines = ["effect on learning, and why a candidate did not run:"]
    lines += [
        f"  {row['knob']}={row['value']}: {row['why'] or row['effect']}" for row in doc["rows"]
    ]
    lines += [f"  {note}" for note in doc["notes"]]
    bounds = doc["bounds"] or {}
    for what in ("sampling", "environments", "updates"):
        unit, word = ("update_hz", "updates/s") if what == "updates" else ("sampling_hz", "steps/s")
        if what in bounds and what != doc["objective"]:
            lines.append(f"{what} alone: {_shown(bounds[what][unit])} {word}")
    lines += [f"{what} alone: {why}" for what, why in bounds.get("failed", {}).items()]
    for key, text in SHARES.items():
        if key in bounds:
            lines.append(
                f"{doc['objective']} reaches {_shown(bounds[key], '{:.0%}'.format)} of {text}"
            )
    for row in doc["spreeze"]:
        rates = (
            f"{name} {si(row[unit]['median'])}"
            for unit, name in zip(UNITS, SPREEZE_NAMES, strict=True)
        )
        lines.append(
            f"batch {row['batch_size']:,}{' (best)' if row['best'] else ''}: {', '.join(rates)}"
        )
    return [*lines, *_verdict(doc)]


def _verdict(doc: Document) -> list[str]:
    chosen = doc["chosen"]
    if chosen is None:
        return ["nothing ran"]
    faster = f", {chosen['speedup']:.2f} × the requested run" if chosen["speedup"] else ""
    best = "best so far" if doc["interrupted"] else "chosen"
    what = " ".join(chosen["words"]) or "the requested run"
    return [
        f"{best}: {what}: {si(chosen['sampling_hz'])} steps/s{faster}",
        f"effect on learning: {chosen['effect']}",
    ]


def _ratio(a: Row, b: Row) -> Spread:
    return spread([x / y for x, y in zip(a.tick_hz, b.tick_hz, strict=False)])


def _shown(figure: Spread, write: Callable[[float], str] = si) -> str:
    median, low, high = (write(figure[part]) for part in QUARTILES)
    return f"{median} [{low}, {high}]"
