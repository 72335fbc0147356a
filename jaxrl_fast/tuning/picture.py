"""The picture of a sweep: throughput against width, with memory, the ceilings and the choice."""

from pathlib import Path
from typing import Any

import numpy as np

from jaxrl_fast.inspection.labels import byte_size
from jaxrl_fast.runs.progress import si

TRAINING, MEMORY, CHOSEN = "#1f5fa8", "#b8b8b8", "#c8402f"
CEILINGS = {
    "environments": ("environments alone", "#2e8b57", "--"),
    "sampling": ("sampling alone", "#7a9a01", "--"),
    "both": ("sampling and updates alone, one after the other", "#8a5a9e", ":"),
}
FAR = 4.0
"""Ceilings more than so many times the highest rate are only named: drawn, they would press the curve flat."""


def draw(doc: dict[str, Any], path: Path) -> None:
    """Write the PNG; nothing where no width was measured."""
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
            axes.plot([], [], color=color, linestyle=style, label=f"{label}: {si(rate)} steps/s, far above")
    if doc["chosen"]:
        _mark(axes, doc["chosen"])
    axes.set_ylim(0, 1.12 * highest)
    # Powers of two within the range, and the widths themselves where these are few.
    ticks = [int(w) for w in x] if len(x) <= 7 else [2**k for k in range(32) if x[0] <= 2**k <= x[-1]]
    axes.set_xticks(ticks, labels=[f"{value:,}" for value in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set(xlabel="environments side by side", ylabel="environment steps/s")
    axes.grid(alpha=0.25, zorder=0)
    axes.set_title(f"{doc['env']}, {doc['algo']}: {doc['objective']}", loc="left", fontweight="bold")
    axes.set_title(doc["machine"], loc="right", fontsize="small", color="#666666")
    shown = axes.get_legend_handles_labels()
    figure.legend(*shown, loc="outside lower center", ncols=2, frameon=False, fontsize="small", markerscale=0.6)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _rates(axes: Any, rows: list[dict[str, Any]], x: np.ndarray) -> None:
    """Draw medians, joined, with quartiles as bars; hollow where only one repeat was made."""
    rate = np.array([[row["sampling_hz"][part] for part in ("median", "low", "high")] for row in rows])
    error = [rate[:, 0] - rate[:, 1], rate[:, 2] - rate[:, 0]]
    label = "measured: median and quartiles (hollow: one repeat)"
    axes.errorbar(x, rate[:, 0], yerr=error, color=TRAINING, linewidth=1.8, capsize=4, zorder=4, label=label)
    full = ["white" if row["repeats"] == 1 else TRAINING for row in rows]
    axes.scatter(x, rate[:, 0], s=34, c=full, edgecolors=TRAINING, linewidths=1.5, zorder=5)


def _memory(axes: Any, rows: list[dict[str, Any]], x: np.ndarray) -> None:
    """Draw memory as bars, on a second axis and behind everything."""
    known = [(width, row["memory_bytes"]) for width, row in zip(x, rows, strict=True) if row.get("memory_bytes")]
    axes.set_zorder(-1)
    axes.set_ylabel("memory as XLA predicts it", color="#8a8a8a")
    axes.yaxis.set_major_formatter(lambda number, _: byte_size(number))
    axes.tick_params(axis="y", colors="#8a8a8a")
    axes.spines["top"].set_visible(False)
    if known:
        widths, memory = np.array(known).T
        axes.bar(widths, memory, width=widths * 0.16, color=MEMORY, alpha=0.5)
        axes.set_ylim(0, 2.2 * memory.max())


def _ceilings(doc: dict[str, Any]) -> dict[str, float]:
    """Steps/s that no width can exceed. They were measured in turn with training at the chosen width, and are scaled to
    its rate in the sweep, since the machine is not always equally fast."""
    found = doc["bounds"] or {}
    parts = [what for what in ("environments", "sampling") if what in found and what != doc["objective"]]
    rates = {what: found[what]["sampling_hz"]["median"] for what in parts}
    if "training" not in found or not doc["chosen"]:
        return rates
    training = found["training"]["sampling_hz"]["median"]
    if "share_of_parts" in found:
        rates["both"] = training / found["share_of_parts"]["median"]
    return {what: rate * doc["chosen"]["sampling_hz"] / training for what, rate in rates.items()}


def _mark(axes: Any, chosen: dict[str, Any]) -> None:
    width, rate = chosen["num_envs"], chosen["sampling_hz"]
    axes.scatter([width], [rate], s=190, facecolors="none", edgecolors=CHOSEN, linewidths=2.2, zorder=6, label="chosen")
    speedup = f"\n{chosen['speedup']:.2f} × as asked for" if chosen["speedup"] else ""
    box = dict(boxstyle="round,pad=0.2", facecolor="white", edgecolor="none", alpha=0.8)
    place = {"xytext": (0, -16), "textcoords": "offset points", "ha": "center", "va": "top", "zorder": 7}
    text = f"{width:,} environments{speedup}"
    axes.annotate(text, (width, rate), **place, color=CHOSEN, fontsize="small", bbox=box)
