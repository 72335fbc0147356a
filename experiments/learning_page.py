"""Pictures and the page of the learning table."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from learning_rows import ROWS, Row

PAGE = Path(__file__).parent.parent / "docs" / "learning.md"
HEAD = """# What learns what

Greedy return of the last evaluation, averaged over seeds, with its 95 % bootstrap interval and its interquartile mean
(Agarwal et al., arXiv 2108.13264). Seconds are those of the whole command, all seeds together, compilation and
evaluations included. This page is written by `python experiments/learning.py`; each row's settings, curve and picture
lie in `experiments/results/`.

| row | command | steps | seeds | greedy return [95 %] | interquartile mean | must | seconds | machine |
|---|---|---|---|---|---|---|---|---|
"""


def interquartile_mean(values: np.ndarray) -> float:
    """The mean of the values between the quartiles; with fewer than 4 values the mean of all."""
    cut = len(values) // 4
    return float(np.sort(values)[cut : len(values) - cut].mean())


def must(row: Row) -> str:
    """What a row must reach, in words."""
    if row.rival is not None:
        name, factor = row.rival
        return f"≥ {factor:g} × {name}"
    if row.must_reach is None:
        return "–"
    return f"{'< ' if row.unsolved else '≥ '}{row.must_reach:g}"


def passes(row: Row, value: float) -> bool | None:
    """Whether a return is what the row must reach; None where no number says so."""
    if row.must_reach is None:
        return None
    return value < row.must_reach if row.unsolved else value >= row.must_reach


def table_line(name: str, result: dict[str, Any]) -> str:
    """A row of the page."""
    row, interval = ROWS[name], result["return_ci95"]
    spread = "" if interval is None else " [{:.1f}, {:.1f}]".format(*interval)
    missed = " (missed)" if passes(row, result["return_mean"]) is False else ""
    cells = [
        f"[{name}](../experiments/results/{name}.png)",
        f"`{' '.join(row.words)}`",
        f"{result['env_steps']:,}",
        f"{len(result['curve'][-1]['returns'])}",
        f"{result['return_mean']:.1f}{spread}",
        f"{result['return_iqm']:.1f}",
        f"{must(row)}{missed}",
        f"{result['wall_s']:.0f}",
        result["machine"],
    ]
    return f"| {' | '.join(cells)} |"


def write_page(results: Path) -> None:
    """Write ``docs/learning.md`` from the results that are there."""
    lines = []
    for name in ROWS:
        path = results / f"{name}.json"
        result = json.loads(path.read_text()) if path.exists() else {}
        lines.append(table_line(name, result) if "return_iqm" in result else f"| {name} | not run yet{' |' * 8}")
    PAGE.write_text(HEAD + "\n".join(lines) + "\n")


def draw(curve: list[dict[str, Any]], title: str, path: Path) -> None:
    """Each seed's greedy return, and their interquartile mean, against steps and seconds."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    steps = [point["env_steps"] for point in curve]
    seconds = [point["wall_s"] for point in curve]
    returns = np.array([point["returns"] for point in curve])
    middle = [interquartile_mean(values) for values in returns]
    figure, plots = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True, layout="constrained")
    for plot, x, label in zip(plots, (steps, seconds), ("environment steps", "seconds, all counted"), strict=True):
        plot.plot(x, returns, color="tab:blue", alpha=0.3, linewidth=1)
        plot.plot(x, middle, color="tab:blue", marker="o", markersize=3)
        plot.set_xlabel(label)
        plot.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter(sep=""))
        plot.grid(alpha=0.3)
    plots[0].set_ylabel(f"greedy return: {returns.shape[1]} seeds, interquartile mean")
    figure.suptitle(title, fontsize="medium")
    figure.savefig(path, dpi=110)
    plt.close(figure)
