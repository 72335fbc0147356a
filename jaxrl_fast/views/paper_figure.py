"""A figure for a paper: learning curves, aggregate metrics and performance profiles over seeds,
computed by rliable.

Source: Agarwal et al. (2021), arXiv 2108.13264.
"""

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np

from jaxrl_fast.numerics.intervals import LEAST_SEEDS, mean_interval
from jaxrl_fast.training.run_folder import NOT_YET, UNEVALUATED, RunView, scores_of
from jaxrl_fast.views.comparing import groups_of, joined

RESAMPLES = 2000
LABEL_WIDTH = 28
"""Letters of a label's line."""
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#e69f00", "#555555")
"""Okabe and Ito's colors, which are distinguishable for color-blind people."""
AGGREGATES = {
    "median": "median",
    "interquartile mean": "iqm",
    "mean": "mean",
    "optimality gap": "optimality_gap",
}
"""Title -> rliable's name."""
MANY_TASKS = 5
"""Fewest tasks of a stratified bootstrap: over the seeds of few tasks it is too narrow."""


class Line(NamedTuple):
    """The curve of one color in one environment.

    Attributes:
        env_steps: Environment steps of the evaluations, ``[N]``.
        returns: Mean greedy return of each seed of all its runs, ``[N, S]``.
        reference: A published return, or None.
        random: A published return of random actions, or None.
    """

    env_steps: np.ndarray
    returns: np.ndarray
    reference: float | None
    random: float | None


Lines = dict[str, dict[str, Line]]
"""By label, then by environment."""


def draw_figure(views: Sequence[RunView], path: Path) -> None:
    """Write the figure of several runs.

    Args:
        views: Runs.
        path: File, whose suffix determines the format.

    Raises:
        ValueError: rliable is not installed, or there is nothing to draw or to compare.
    """
    try:
        import rliable.library  # noqa: F401
    except ImportError:
        raise ValueError(
            "a figure needs rliable: pip install 'jaxrl_fast[paper]', or write out=....html"
        ) from None
    from matplotlib import pyplot as plt

    plt.switch_backend("agg")
    np.random.seed(0)  # noqa: NPY002 - rliable samples from this global generator
    lines = lines_of(views)
    tasks = list(dict.fromkeys(task for by_task in lines.values() for task in by_task))
    scores = final_scores(lines, tasks)
    with plt.rc_context(
        {"pdf.fonttype": 42, "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    ):
        layout: Any = [
            [f"curve {task}" for task in tasks],
            ["gap"] * len(tasks),
            ["profile"] * len(tasks),
        ]
        figure, axes = plt.subplot_mosaic(
            layout,
            figsize=(max(6.5, 3.4 * len(tasks)), 8.5),
            layout="constrained",
            height_ratios=(3, 2, 2.4),
        )
        for task in tasks:
            draw_curves(axes[f"curve {task}"], lines, task)
        draw_aggregates(figure, axes["gap"], scores)
        draw_profile(axes["profile"], scores, scale_of(lines))
        figure.savefig(path, dpi=160)
        plt.close(figure)


def lines_of(views: Sequence[RunView]) -> Lines:
    """Group the evaluations of runs. Runs that differ in their seeds only form one line.

    Args:
        views: Runs.

    Returns:
        The lines.

    Raises:
        ValueError: A run has no evaluation, or runs of a line were evaluated at different steps or
            have a seed in common.
    """
    lines: Lines = {}
    for label, task, members in groups_of(views):
        if task in lines.get(label, {}):
            raise ValueError(
                f"{members[0].path} has a seed in common with another run of {label} on {task}, which would count twice: "
                "leave one of them out"
            )
        for view in members:
            if not scores_of(view.evals).returns.size:
                why = UNEVALUATED.get(view.status.get("eval.every"), NOT_YET)
                raise ValueError(f"{view.path} is {why}: leave it out")
        scores = scores_of(joined(members).evals)
        if not scores.returns.size:
            raise ValueError(
                f"the runs of {label} on {task} have no evaluations at the same steps: compare others"
            )
        reference = members[0].status.get("reference") or {}
        line = Line(
            scores.env_steps, scores.returns, reference.get("return"), reference.get("random")
        )
        lines.setdefault(label, {})[task] = line
    return lines


def final_scores(lines: Lines, tasks: Sequence[str]) -> dict[str, np.ndarray]:
    """Compute normalized final returns.

    The published return of random actions (without one, the lowest return in the figure) is 0, and
    the reference (without one, the highest return) is 1.

    Args:
        lines: Lines of the figure.
        tasks: Environments.

    Returns:
        Scores ``[seeds, tasks]`` by label.

    Raises:
        ValueError: A label lacks an environment, or has another number of seeds there.
    """
    scaled: dict[str, list[np.ndarray]] = {label: [] for label in lines}
    for task in tasks:
        drawn = [by_task[task] for by_task in lines.values() if task in by_task]
        lows = [line.random for line in drawn if line.random is not None]
        low = min(lows) if lows else min(line.returns.mean(axis=1).min() for line in drawn)
        references = [line.reference for line in drawn if line.reference is not None]
        high = (
            max([*references, low + 1e-9])
            if references
            else max(line.returns.mean(axis=1).max() for line in drawn)
        )
        for label, by_task in lines.items():
            if task not in by_task:
                raise ValueError(
                    f"{label} has no run on {task}: compare runs that cover the same environments"
                )
            scaled[label].append((by_task[task].returns[-1] - low) / max(high - low, 1e-9))
    for label, columns in scaled.items():
        if len({len(column) for column in columns}) > 1:
            raise ValueError(
                f"{label} has different numbers of seeds by environment: use the same number in each"
            )
    return {label: np.stack(columns, axis=1) for label, columns in scaled.items()}


def draw_curves(axes: Any, lines: Lines, task: str) -> None:
    """Draw the mean over seeds against steps, with its interval, and each seed's returns as points.

    Args:
        axes: Axes of the figure.
        lines: Lines of the figure.
        task: Environment.
    """
    from matplotlib.ticker import EngFormatter

    for color, (label, by_task) in zip(COLORS * len(lines), lines.items(), strict=False):
        line = by_task[task]
        seeds = line.returns.shape[1]
        axes.plot(
            line.env_steps,
            line.returns.mean(axis=1),
            color=color,
            label=_wrapped(f"{label}, {seeds} seed{'s' * (seeds > 1)}", 2),
        )
        if seeds >= LEAST_SEEDS:
            low, high = np.array([mean_interval(row) for row in line.returns]).T
            axes.fill_between(line.env_steps, low, high, color=color, alpha=0.2, linewidth=0)
        if seeds > 1:
            axes.plot(line.env_steps, line.returns, ".", color=color, alpha=0.4, markersize=2)
    axes.set(title=task, xlabel="environment steps", ylabel="greedy return, mean")
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.legend(frameon=False, fontsize="small")


def draw_aggregates(figure: Any, axes: Any, scores: dict[str, np.ndarray]) -> None:
    """Draw median, interquartile mean, mean and optimality gap of the final returns, with
    intervals.

    Args:
        figure: Figure.
        axes: Axes of the figure.
        scores: Scores ``[seeds, tasks]`` by label.
    """
    from matplotlib.ticker import MaxNLocator
    from rliable import metrics

    names = [_wrapped(label) for label in scores]
    axes.set_axis_off()
    panels = axes.get_subplotspec().subgridspec(1, len(AGGREGATES))
    for column, (title, name) in enumerate(AGGREGATES.items()):
        panel = figure.add_subplot(panels[column])
        for row, (color, matrix) in enumerate(
            zip(COLORS * len(scores), scores.values(), strict=False)
        ):
            function = getattr(metrics, f"aggregate_{name}")
            point, interval = float(function(matrix)), _interval(matrix, name, function)
            if interval is not None:
                low, high = interval
                panel.barh(row, high - low, left=low, height=0.6, color=color, alpha=0.35)
            panel.plot([point, point], [row - 0.3, row + 0.3], color=color, linewidth=2)
        panel.set_yticks(range(len(scores)), names if column == 0 else [""] * len(scores))
        panel.xaxis.set_major_locator(MaxNLocator(2))
        panel.set_title(title, fontsize="medium")
        panel.set(ylim=(len(scores) - 0.5, -0.5))
        panel.tick_params(left=False)


def scale_of(lines: Lines) -> str:
    """Describe which returns have the scores 0 and 1.

    Args:
        lines: Lines of the figure.

    Returns:
        Label of an axis.
    """
    by_environment: dict[str, list[Line]] = {}
    for by_task in lines.values():
        for task, line in by_task.items():
            by_environment.setdefault(task, []).append(line)

    def either(flags: list[bool], published: str, otherwise: str) -> str:
        return (
            published if all(flags) else f"{published} or {otherwise}" if any(flags) else otherwise
        )

    drawn = by_environment.values()
    random = [any(line.random is not None for line in one) for one in drawn]
    reference = [any(line.reference is not None for line in one) for one in drawn]
    zero = either(random, "random actions (published)", "the lowest return in the figure")
    one = either(reference, "the published reference", "the highest return in the figure")
    return fill(f"score: 0 is {zero}, 1 is {one}", 80)


def draw_profile(axes: Any, scores: dict[str, np.ndarray], scale: str) -> None:
    """Draw the fraction of runs above each score.

    Args:
        axes: Axes of the figure.
        scores: Scores ``[seeds, tasks]`` by label.
        scale: Label of the horizontal axis.
    """
    from rliable import library

    top = max(1.0, *(float(matrix.max()) for matrix in scores.values()))
    taus = np.linspace(0.0, 1.05 * top, 101)
    shares, intervals = library.create_performance_profile(scores, taus, reps=RESAMPLES)
    for color, label in zip(COLORS * len(scores), scores, strict=False):
        axes.plot(taus, shares[label], color=color, label=label)
        if scores[label].shape[1] >= MANY_TASKS:
            axes.fill_between(taus, *intervals[label], color=color, alpha=0.2, linewidth=0)
    axes.set(
        xlabel=scale,
        ylabel="share of runs above it",
        ylim=(-0.02, 1.02),
        title="performance profile",
    )


def _wrapped(label: str, columns: int = 1) -> str:
    return fill(label, columns * LABEL_WIDTH, break_long_words=False, break_on_hyphens=False)


def _interval(matrix: np.ndarray, name: str, function: Any) -> tuple[float, float] | None:
    """Compute the 95 % interval of a metric of ``[seeds, tasks]``.

    Of many tasks it is rliable's stratified bootstrap, of few the interval of the mean alone, by
    Student's t over the seeds' means.
    """
    from rliable import library

    if len(matrix) < LEAST_SEEDS:
        return None
    if matrix.shape[1] < MANY_TASKS:
        return mean_interval(matrix.mean(axis=1)) if name == "mean" else None
    bootstrap = library.StratifiedBootstrap(matrix)
    low, high = bootstrap.conf_int(
        lambda x: np.array([function(x)]), reps=RESAMPLES, size=0.95, method="percentile"
    )
    return float(low[0]), float(high[0])
