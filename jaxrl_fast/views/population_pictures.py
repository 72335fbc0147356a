"""Pictures of a population: score over each setting, all settings together, and the rates of its
members over time.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl_fast.settings.schema import written

RANGES = ("log", "uniform")
BEST, OTHERS = "#d55e00", "#7a8591"


def draw_population(folder: Path, data: Mapping[str, Any]) -> list[str]:
    """Draw the pictures of a population.

    Args:
        folder: Folder for the pictures.
        data: Content of ``members.json``.

    Returns:
        Names of the files; none before a trial has a score.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    scored = [one for one in data["members"] if one["score"] is not None]
    if not scored:
        return []
    drawn = {"rates.png": draw_scores(plt, data, scored)}
    if len(scored) > 1 and len(data["settings"]) > 1:
        drawn["parallel.png"] = draw_parallel(plt, data, scored)
    if any(parent is not None for _, _, parent, _ in data["lineage"]):
        drawn["lineage.png"] = draw_lineage(plt, data)
    for name, figure in drawn.items():
        if figure is not None:
            figure.savefig(folder / name, dpi=130)
            plt.close(figure)
    return [name for name, figure in drawn.items() if figure is not None]


def draw_scores(plt: Any, data: Mapping[str, Any], scored: list[dict[str, Any]]) -> Any:
    """Draw the score of each trial over each setting, in the color of the rung that it reached.

    Args:
        plt: Matplotlib's ``pyplot``.
        data: Content of ``members.json``.
        scored: Members with a score.

    Returns:
        The figure.
    """
    settings = data["settings"]
    columns = min(3, len(settings))
    rows = -(-len(settings) // columns)
    figure, axes = plt.subplots(
        rows,
        columns,
        figsize=(4.4 * columns, 3.4 * rows),
        layout="constrained",
        squeeze=False,
        sharey=True,
    )
    steps = np.array([one["env_steps"] for one in scored])
    for i, (key, kind, values) in enumerate(settings):
        at = axes[i // columns][i % columns]
        points = [one["point"][key] for one in scored]
        x = points if kind in RANGES else [_place(point, values) for point in points]
        shown = at.scatter(
            x,
            [one["score"] for one in scored],
            c=steps,
            cmap="viridis_r",
            s=26,
            edgecolors="white",
            lw=0.4,
        )
        at.set(xlabel=key.removeprefix("algo."), xscale="log" if kind == "log" else "linear")
        if kind not in RANGES:
            at.set_xticks(range(len(values)), values)
        at.grid(alpha=0.3)
    for i in range(len(settings), rows * columns):
        axes[i // columns][i % columns].set_axis_off()
    for row in axes:
        row[0].set_ylabel("score, return")
    if len(set(steps.tolist())) > 1:
        figure.colorbar(shown, ax=axes, label="environment steps of the trial")
    return figure


def draw_parallel(plt: Any, data: Mapping[str, Any], scored: list[dict[str, Any]]) -> Any:
    """Draw each trial as a line through all settings to its score, the best quarter in color.

    Args:
        plt: Matplotlib's ``pyplot``.
        data: Content of ``members.json``.
        scored: Members with a score, the best first.

    Returns:
        The figure.
    """
    keys = [key for key, _, _ in data["settings"]]
    scores = [one["score"] for one in scored]
    low, high = min(scores), max(scores)
    figure, at = plt.subplots(figsize=(2.2 * (len(keys) + 2), 3.8), layout="constrained")
    for rank, one in reversed(list(enumerate(scored))):
        heights = [one["shares"][key] for key in keys] + [
            (one["score"] - low) / max(high - low, 1e-9)
        ]
        best = rank < max(1, len(scored) // 4)
        at.plot(
            heights,
            color=BEST if best else OTHERS,
            lw=1.6 if best else 0.7,
            alpha=0.9 if best else 0.45,
        )
    at.set_xticks(range(len(keys) + 1), [*(key.removeprefix("algo.") for key in keys), "score"])
    at.set(yticks=[], ylim=(-0.06, 1.06), xlim=(-0.1, len(keys) + 0.4))
    ends = [(values[0], values[-1]) for _, _, values in data["settings"]] + [
        (f"{low:.4g}", f"{high:.4g}")
    ]
    for i, (first, last) in enumerate(ends):
        at.axvline(i, color="#1b232c", lw=0.8)
        at.text(i + 0.03, -0.05, first, fontsize="small")
        at.text(i + 0.03, 1.02, last, fontsize="small")
    return figure


def draw_lineage(plt: Any, data: Mapping[str, Any]) -> Any:
    """Draw the rates of all members over time; a dotted line leads to a copy from the member that
    it continues.

    Args:
        plt: Matplotlib's ``pyplot``.
        data: Content of ``members.json``.

    Returns:
        The figure, or None without a rate that has a range.
    """
    ranged = [(i, key, kind) for i, (key, kind, _) in enumerate(data["settings"]) if kind in RANGES]
    if not ranged:
        return None
    best = data["members"][0]["number"]
    figure, axes = plt.subplots(
        len(ranged),
        1,
        figsize=(7.5, 2.8 * len(ranged)),
        layout="constrained",
        squeeze=False,
        sharex=True,
    )
    for (index, key, kind), (at,) in zip(ranged, axes, strict=True):
        for member in data["members"]:
            draw_rate(at, data, member, index, best=member["number"] == best)
        at.set(ylabel=key.removeprefix("algo."), yscale="log" if kind == "log" else "linear")
        at.grid(alpha=0.3)
    axes[-1][0].set_xlabel(f"environment steps; in color: member {best}, the best")
    return figure


def draw_rate(
    at: Any, data: Mapping[str, Any], member: Mapping[str, Any], index: int, *, best: bool
) -> None:
    """Draw one rate of a member over time.

    Args:
        at: Axes.
        data: Content of ``members.json``.
        member: The member.
        index: Position of the rate among the settings.
        best: Whether it is drawn in color.
    """
    color = BEST if best else OTHERS
    rows = [row for row in data["lineage"] if row[1] == member["number"]]
    ends = [*(row[0] for row in rows[1:]), member["env_steps"]]
    for (steps, _, parent, point), end in zip(rows, ends, strict=True):
        at.plot([steps, end], [point[index]] * 2, color=color, lw=2.2 if best else 1.0)
        before = [
            values[index]
            for begin, number, _, values in data["lineage"]
            if number == parent and begin < steps
        ]
        if before:
            at.plot([steps, steps], [before[-1], point[index]], color=color, lw=0.8, ls=":")


def _place(value: Any, values: list[str]) -> int:
    return values.index(written(value))
