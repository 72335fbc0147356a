"""``report.html``: one or several runs on one page that needs nothing but itself."""

import os
import time
from collections.abc import Sequence
from os.path import commonpath
from pathlib import Path
from typing import Any

from jaxrl_fast.files import replace_file
from jaxrl_fast.inspection.page_files import assembled
from jaxrl_fast.inspection.report_curves import describe_run
from jaxrl_fast.inspection.report_tables import describe_details, differing_settings
from jaxrl_fast.runs.reading import RunView, read_run

FILE = "report.html"


def page_of(views: Sequence[RunView]) -> str:
    """The page of one run, or the comparison of several."""
    content: dict[str, Any] = {
        "written_at": time.time(),
        "runs": [describe_run(view, name) for view, name in zip(views, short_names(views), strict=True)],
        "details": describe_details(views[0]) if len(views) == 1 else None,
        "differing": differing_settings(views) if len(views) > 1 else [],
    }
    return assembled("report.html", content=content)


def write_report(folder: Path) -> None:
    """Write a run's ``report.html``, which replaces an older one at once.

    Raises:
        OSError: the folder cannot be written to.
    """
    replace_file(folder / FILE, page_of([read_run(folder)]))


def short_names(views: Sequence[RunView]) -> list[str]:
    """The runs' paths without what all have in common."""
    paths = [str(view.path) for view in views]
    if len(paths) == 1:
        return [Path(paths[0]).name or paths[0]]
    shared = commonpath([str(Path(path).parent) for path in map(os.path.abspath, paths)])
    return [os.path.relpath(os.path.abspath(path), shared) for path in paths]
