"""Runs in a notebook: a plot that is updated during training, and the HTML of a result."""

import io
import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from jaxrl_fast.training.callbacks import MeanRates, Row
from jaxrl_fast.training.progress import clock, si

SHARE = 0.02
"""Largest fraction of time for drawing."""
SHOWN = (
    "env_steps",
    "updates",
    "eval_return_mean",
    "eval_return_std",
    "eval_success_rate",
    "eval_episodes",
    "wall_s",
)
RATES = {"sampling_hz": "steps/s", "update_hz": "updates/s", "update_frame_hz": "samples/s"}


class LivePlot:
    """Draws a run's returns in a notebook cell; call it with each row of the run's history."""

    def __init__(self) -> None:
        from IPython.display import HTML, display

        self.html, self.history = HTML, list[Row]()
        self.due_s = 0.0
        self.cell: Any = display(HTML("compiling …"), display_id=True)

    def __call__(self, row: Row) -> None:
        self.history.append(row)
        begin_s = time.monotonic()
        if begin_s < self.due_s and row["kind"] == "train":
            return
        self.cell.update(self.html(history_html(self.history)))
        end_s = time.monotonic()
        self.due_s = end_s + (end_s - begin_s) / SHARE


def history_html(history: Sequence[Row]) -> str:
    """Plot the returns so far above a line with the newest figures.

    Args:
        history: Rows of the run's history.

    Returns:
        HTML.
    """
    rows = [row for row in history if row["kind"] == "train"]
    last = rows[-1] if rows else {}
    figures = [f"{last['env_steps']:,} steps", clock(last["wall_s"])] if rows else []
    rates = MeanRates()
    for row in rows:
        rates.add(row)
    figures += [f"{si(rates.now[name])} {unit}" for name, unit in RATES.items()] if rows else []
    return f"<div>{history_svg(history)}<div>{escape(' · '.join(figures))}</div></div>"


def history_svg(history: Sequence[Row]) -> str:
    """Plot greedy and training returns against environment steps.

    Args:
        history: Rows of the run's history.

    Returns:
        SVG; "" without returns.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    greedy = [
        (row["env_steps"], row["eval_return_mean"]) for row in history if row["kind"] == "eval"
    ]
    training = [
        (row["env_steps"], row["episode_return"])
        for row in history
        if row.get("episode_return") is not None
    ]
    if not greedy and not training:
        return ""
    figure = Figure(figsize=(6.4, 3.0), layout="constrained")
    axes = figure.add_subplot()
    for label, points, style in (
        ("training", training, "#d55e00"),
        ("greedy", sorted(greedy), "#0072b2"),
    ):
        if points:
            marker = "o" if len(points) < 30 else None
            axes.plot(*zip(*points, strict=True), color=style, label=label, marker=marker, ms=3)
    axes.set(xlabel="environment steps", ylabel="return")
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    text = io.StringIO()
    FigureCanvasSVG(figure).print_svg(text)
    return text.getvalue()[text.getvalue().index("<svg") :]


def result_html(history: Sequence[Row], summary: Mapping[str, Any]) -> str:
    """Show a finished run: a plot of its returns and a table of its figures.

    Args:
        history: Rows of the run's history.
        summary: Summary of the run.

    Returns:
        HTML.
    """
    rows = "".join(
        f"<tr><th>{name}</th><td>{_written(summary[name])}</td></tr>"
        for name in SHOWN
        if name in summary
    )
    rates = " · ".join(
        f"{si(summary[name])} {unit}" for name, unit in RATES.items() if name in summary
    )
    return f"<div>{history_svg(history)}<table>{rows}<tr><th>rates</th><td>{escape(rates)}</td></tr></table></div>"


def _written(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else escape(str(value))
