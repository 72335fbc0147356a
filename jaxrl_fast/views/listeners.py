"""Writes pages and pictures of a run to its folder: graph, curve, and ``report.html`` during and
after training.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl_fast.policy.policies import Policy
from jaxrl_fast.runtime.graph import TrainState
from jaxrl_fast.runtime.program import RunChunk
from jaxrl_fast.system import one_line
from jaxrl_fast.training.callbacks import Tell
from jaxrl_fast.training.calls import Listeners
from jaxrl_fast.training.job import Job
from jaxrl_fast.training.records import FILE
from jaxrl_fast.training.run_folder import RunFolder, read_columns, scores_of
from jaxrl_fast.views.graph_picture import draw_run
from jaxrl_fast.views.report_page import write_report

EVERY_S = 10.0
"""Shortest interval between writes of the page, in seconds."""
SHARE = 0.01
"""Largest fraction of time for writing the page."""


class LiveReport:
    """Rewrites a run's page when it is due. Call it any number of times. An error prints a message
    and stops it.
    """

    def __init__(self) -> None:
        self.due_s = 0.0

    def __call__(self, folder: RunFolder) -> None:
        begin_s = time.monotonic()
        if begin_s < self.due_s:
            return
        written = try_to_write(folder.path, folder.tell)
        end_s = time.monotonic()
        self.due_s = end_s + max(EVERY_S, (end_s - begin_s) / SHARE) if written else float("inf")


def make_listeners() -> Listeners:
    """Make the `Listeners` of one run.

    Returns:
        The listeners.
    """
    return Listeners(draw_graph, LiveReport(), draw_curve, write_last_report)


def draw_graph(folder: RunFolder, job: Job, state: TrainState, run: RunChunk) -> None:
    """Draw ``graph.svg`` of a job that is about to start.

    Args:
        folder: Folder of the run.
        job: Job.
        state: First state.
        run: Compiled chunk.
    """
    how = f"placement {job.placement.name}, overlap {job.graph_options.overlap}"
    title = f"{job.env.spec.name}, {job.algorithm.name}, {how}"
    draw_run(
        folder.path / "graph.svg",
        title,
        job.graph,
        job.placement,
        state,
        run,
        job.num_seeds,
        folder.tell,
    )


def draw_curve(folder: RunFolder, policy: Policy) -> None:
    """Draw ``curve.png``: greedy return against environment steps, with its spread over episodes or
    seeds.

    Args:
        folder: Folder of the run; nothing is drawn without evaluations.
        policy: Last policy, for the title.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    scores = scores_of(read_columns(folder.path / "evals.csv"))
    steps, returns, low, high = scores.env_steps, scores.returns, scores.low, scores.high
    if not steps.size:
        return
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    label = "mean of the episodes, 10 to 90 % shaded"
    if returns.shape[1] > 1:
        low, high, label = (
            returns.min(axis=1),
            returns.max(axis=1),
            f"mean of {returns.shape[1]} seeds, range shaded",
        )
    axes.fill_between(steps, low, high, alpha=0.25, linewidth=0)
    axes.plot(steps, returns.mean(axis=1), marker="o", markersize=3.5, label=label)
    axes.set(xlabel="environment steps", ylabel="greedy return", xlim=(0, None))
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    unit, unit_s = ("minutes", 60.0) if scores.wall_s.max() > 180 else ("seconds", 1.0)
    clock = axes.secondary_xaxis("top", functions=_steps_to_time(steps, scores.wall_s / unit_s))
    clock.set_xlabel(f"wall-clock, {unit}", fontsize="small")
    figure.suptitle(f"{policy.spec.name}, {policy.made_by['algo']}")
    figure.savefig(folder.path / "curve.png", dpi=130)


def _steps_to_time(steps: np.ndarray, time: np.ndarray) -> tuple[Any, Any]:
    """Return the linear regression of the evaluations' times and its inverse: rates are constant
    after the start.
    """
    rate, start = np.polyfit(steps, time, 1) if len(np.unique(steps)) > 1 else (0.0, -1.0)
    if start < 0:  # a fast warm-up, or a single evaluation: a run cannot start before time 0
        rate, start = float(steps @ time) / max(float(steps @ steps), 1.0), 0.0
    rate = max(rate, 1e-12)
    return (lambda x: start + x * rate), (lambda x: (x - start) / rate)


def write_last_report(run_dir: Path, tell: Tell) -> None:
    """Write the page a last time, if the run has started.

    Args:
        run_dir: Folder of the run.
        tell: Gets a line if it fails.
    """
    if (run_dir / FILE).exists():
        try_to_write(run_dir, tell)


def try_to_write(folder: Path, tell: Tell) -> bool:
    """Write the page. The run does not depend on its success.

    Args:
        folder: Folder of the run.
        tell: Gets a line if it fails.

    Returns:
        Whether it was written.
    """
    try:
        write_report(folder)
    except Exception as error:
        tell(f"no report.html ({one_line(error)})")
        return False
    return True
