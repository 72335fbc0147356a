"""``run.json``: what a run is, what it does at the moment and how it ended, for whoever looks on."""

import contextlib
import json
import math
import os
import platform
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxrl_fast.files import replace_file
from jaxrl_fast.runs.hooks import Row, Tell

FILE = "run.json"
WRITE_EVERY_S = 1.0
"""The file is written at most so often, but for a change of ``state``, in seconds."""
SILENT_S = 600.0
"""A run on another machine that has said nothing for so long counts as dead, in seconds."""
MAX_LINES = 200
"""Of the lines that a run has printed, so many are kept."""
ENDED = ("done", "stopped", "failed", "dead", "unknown")
"""The states of a run that does not go on."""
FROM_ROWS = ("env_steps", "wall_s", "sampling_hz", "update_hz", "update_frame_hz", "episode_return")


class RunStatus:
    """Keeps ``run.json`` of one run up to date. What the file held before stays if
    the run's own command wrote it, or an earlier start of a run that goes on (``resumed``).

    An entry ``state`` is ``compiling``, ``training``, ``evaluating``, ``done``, ``stopped`` or ``failed``. A file that
    cannot be written costs the file, not the run.
    """

    def __init__(self, folder: Path, *, resumed: bool = False, **facts: Any) -> None:
        self.folder, before = folder, read_status(folder)
        kept = before if resumed or "state" not in before else {}
        self.facts = {"lines": []} | kept | {"error": None, **facts, **_this_process()}
        self._written_s = 0.0
        self.set(state="compiling")

    def set(self, *, now: bool = True, **changes: Any) -> None:
        """Change entries, and write the file: at once, or when it was not written for a while."""
        self.facts |= changes
        if now or time.monotonic() - self._written_s > WRITE_EVERY_S:
            self._written_s = time.monotonic()
            write_status(self.folder, self.facts)

    def add(self, row: Row) -> None:
        """Note the figures of a row of the run's history."""
        if row["kind"] == "eval":
            newest, before = row["eval_return_mean"], self.facts.get("best_return")
            best = newest if before is None else max(before, newest)
            success = {"eval_success": row["eval_success_rate"]} if "eval_success_rate" in row else {}
            self.set(eval_steps=row["env_steps"], eval_return=newest, best_return=best, **success)
        else:
            first = self.facts["state"] != "training" or not self.facts.get("env_steps")
            self.set(now=first, state="training", **{name: row.get(name) for name in FROM_ROWS})

    def noting(self, tell: Tell) -> Tell:
        """A ``tell`` that also keeps what it is given."""

        def note(line: str) -> None:
            self.set(lines=[*self.facts["lines"], line][-MAX_LINES:])
            tell(line)

        return note

    def end(self, error: BaseException | None) -> None:
        """Note how the run ended: with an ``error``, early, or complete."""
        if error is not None:
            self.set(state="failed", error=" ".join(str(error).split()) or type(error).__name__)
            return
        complete = self.facts.get("env_steps", 0) >= self.facts.get("total_steps", 0)
        self.set(state="done" if complete else "stopped")


def read_status(folder: Path) -> dict[str, Any]:
    """What ``run.json`` says; nothing where there is none that can be read."""
    try:
        found = json.loads((folder / FILE).read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def write_status(folder: Path, facts: Mapping[str, Any]) -> None:
    """Replace ``run.json`` at once, so that no reader finds half of it; a folder that is gone is left alone."""
    with contextlib.suppress(OSError):
        replace_file(folder / FILE, json.dumps({**_finite(facts), "updated_at": time.time()}, indent=1) + "\n")


def state_now(facts: Mapping[str, Any]) -> str:
    """The ``state`` of a run, or ``dead`` where it says that it goes on and its process is gone; ``unknown`` without
    one."""
    state = facts.get("state", "unknown")
    if state in ENDED:
        return state
    if facts.get("host") != socket.gethostname():
        return state if time.time() - facts.get("updated_at", 0.0) < SILENT_S else "dead"
    return state if _runs(facts.get("pid", 0), facts.get("process_start")) else "dead"


def _finite(facts: Mapping[str, Any]) -> dict[str, Any]:
    """JSON knows neither NaN nor infinity."""
    return {key: None if isinstance(x, float) and not math.isfinite(x) else x for key, x in facts.items()}


def _this_process() -> dict[str, Any]:
    own = {"host": socket.gethostname(), "pid": os.getpid(), "process_start": _start_of(os.getpid())}
    return {**own, "started_at": time.time(), "system": f"{platform.system()} {platform.release()}"}


def _runs(pid: int, start: int | None) -> bool:
    """Whether the process runs, and is no later one that got the same number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return _start_of(pid) == start


def _start_of(pid: int) -> int | None:
    """When a process began, in clock ticks since this machine did; None where the system does not say (Linux does)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])
