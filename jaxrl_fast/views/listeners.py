"""What follows a run in its folder: its graph as a picture, and ``report.html`` while it goes on and after it."""

import time
from pathlib import Path
from typing import Any

from jaxrl_fast.runtime.graph import TrainState
from jaxrl_fast.runtime.program import RunChunk
from jaxrl_fast.training.callbacks import Listeners, Tell
from jaxrl_fast.training.checkpoints import one_line
from jaxrl_fast.training.records import FILE
from jaxrl_fast.training.run_folder import RunFolder
from jaxrl_fast.views.graph_picture import draw_run
from jaxrl_fast.views.report_page import write_report

EVERY_S = 10.0
"""The page is written at most so often, in seconds."""
SHARE = 0.01
"""Writing it takes at most this share of the time."""


class LiveReport:
    """Writes a run's page again if it is time; call it as often as you like. An error costs a line, once."""

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
    """The `Listeners` of one run."""
    return Listeners(draw_graph, LiveReport(), write_last_report)


def draw_graph(folder: RunFolder, job: Any, state: TrainState, run: RunChunk) -> None:
    """Draw ``graph.svg`` of a job that is about to start."""
    how = f"placement {job.placement.name}, overlap {job.options.graph.overlap}"
    title = f"{job.env.spec.name}, {job.algorithm.name}, {how}"
    draw_run(folder.path / "graph.svg", title, job.graph, job.placement, state, run, job.num_seeds, folder.tell)


def write_last_report(run_dir: Path, tell: Tell) -> None:
    """Write the page once more, if the run has begun."""
    if (run_dir / FILE).exists():
        try_to_write(run_dir, tell)


def try_to_write(folder: Path, tell: Tell) -> bool:
    """Write the page; whether that went well. The run does not depend on it."""
    try:
        write_report(folder)
    except Exception as error:
        tell(f"no report.html ({one_line(error)})")
        return False
    return True
