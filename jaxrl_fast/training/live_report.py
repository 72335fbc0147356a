"""``report.html`` while a run goes on, and after it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jaxrl_fast.inspection.report_page import write_report
from jaxrl_fast.runs.checkpoint_files import one_line
from jaxrl_fast.runs.hooks import Tell
from jaxrl_fast.runs.status import FILE

EVERY_S = 10.0
"""The page is written at most so often, in seconds."""
SHARE = 0.01
"""Writing it takes at most this share of the time."""


class LiveReport:
    """Writes a run's page again if it is time; call it as often as you like. What goes wrong costs a line, once."""

    def __init__(self, folder: Path, tell: Tell) -> None:
        self.folder, self.tell = folder, tell
        self.due_s = 0.0

    def __call__(self) -> None:
        begin_s = time.monotonic()
        if begin_s < self.due_s:
            return
        written = try_to_write(self.folder, self.tell)
        end_s = time.monotonic()
        self.due_s = end_s + max(EVERY_S, (end_s - begin_s) / SHARE) if written else float("inf")


@contextmanager
def last_report(run_dir: str | Path | None, tell: Tell) -> Iterator[None]:
    """Write the page once more on leaving, however the run ended."""
    try:
        yield
    finally:
        if run_dir is not None and (Path(run_dir) / FILE).exists():
            try_to_write(Path(run_dir), tell)


def try_to_write(folder: Path, tell: Tell) -> bool:
    """Write the page; whether that went well. The run does not depend on it."""
    try:
        write_report(folder)
    except Exception as error:
        tell(f"no report.html ({one_line(error)})")
        return False
    return True
