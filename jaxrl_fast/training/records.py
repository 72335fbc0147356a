"""``run.json``, which describes a run and its state, and loggers of its scalars."""

import contextlib
import json
import math
import os
import platform
import secrets
import socket
import time
from collections import deque
from collections.abc import Collection, Mapping
from itertools import starmap
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Literal, Protocol

from jaxrl_fast.core import Log
from jaxrl_fast.system import replace_file
from jaxrl_fast.training.callbacks import RATES, Row, Tell

FILE = "run.json"
MEMBERS = "members.json"
"""File of a population's folder with all that pages show of its members."""
WRITE_EVERY_S = 1.0
"""Shortest interval in seconds between writes of the file, unless ``state`` changes."""
SILENT_S = 600.0
"""A run on another machine counts as dead if its file was not updated for this number of seconds.
"""
MAX_LINES = 200
"""Largest number of stored messages of a run."""
ENDED = ("done", "stopped", "failed", "dead", "unknown")
"""States of a run that has ended."""
REPORTED = {"eval_success": "eval_success_rate", "eval_metrics": "eval_metrics"}
"""Entries that only some environments have, and their names in the row of an evaluation."""
Facts = Mapping[str, Any]
FROM_ROWS = ("env_steps", "wall_s", "episode_return")


class RunStatus:
    """Updates the ``run.json`` of one run.

    Entries that the file contained before are retained if the run's command wrote them, or an
    earlier start of a run that is ``resumed``. The entry ``state`` is ``compiling``, ``training``,
    ``evaluating``, ``done``, ``stopped`` or ``failed``. If the file cannot be written, the run
    continues without it.
    """

    def __init__(self, folder: Path, *, resumed: bool = False, **facts: Any) -> None:
        self.folder, before = folder, read_status(folder)
        self._before = before if resumed and "state" in before else None
        kept = before if resumed or "state" not in before else {}
        self.facts = {"lines": []} | kept | {"error": None, **facts, **_this_process()}
        self._written_s = 0.0
        self.set(state="compiling")

    def set(self, *, now: bool = True, **changes: Any) -> None:
        """Change entries, and write the file: at once, or if it was not written for
        `WRITE_EVERY_S`.
        """
        self.facts |= changes
        if now or time.monotonic() - self._written_s > WRITE_EVERY_S:
            self._written_s = time.monotonic()
            write_status(self.folder, self.facts)

    def add(self, row: Row, rates: Mapping[str, float]) -> None:
        """Store the figures of a row of the run's history, and the ``rates`` of the run so far."""
        if row["kind"] == "eval":
            newest, before = row["eval_return_mean"], self.facts.get("best_return")
            best = newest if before is None else max(before, newest)
            told = {name: row[column] for name, column in REPORTED.items() if column in row}
            self.set(eval_steps=row["env_steps"], eval_return=newest, best_return=best, **told)
        else:
            self._before = None
            first = self.facts["state"] != "training" or not self.facts.get("env_steps")
            found = {name: row.get(name) for name in FROM_ROWS} | {
                name: rates[name] for name in RATES
            }
            self.set(now=first, state="training", **found)

    def noting(self, tell: Tell) -> Tell:
        """Wrap a ``tell`` so that it also stores its messages."""

        def note(line: str) -> None:
            self.set(lines=[*self.facts["lines"], line][-MAX_LINES:])
            tell(line)

        return note

    def end(self, error: BaseException | None, complete: bool = False) -> None:
        """Store how the run ended: with an ``error``, early, or ``complete``.

        A run that a signal ended before it trained is as it was before it was resumed.
        """
        if isinstance(error, KeyboardInterrupt | SystemExit):
            if self._before is not None:
                write_status(self.folder, self._before)
            else:
                self.set(state="stopped")
            return
        if error is not None:
            self.set(state="failed", error=" ".join(str(error).split()) or type(error).__name__)
            return
        self.set(state="done" if complete else "stopped")

    def end_at_error(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        """Store how the run ended if it ended with an error: the ``__exit__`` of a context."""
        if error is not None:
            self.end(error)


def read_status(folder: Path) -> dict[str, Any]:
    """Read ``run.json``.

    Args:
        folder: Folder of the run.

    Returns:
        The entries, empty if there is no readable file.
    """
    return read_entries(folder / FILE)


def read_members(folder: Path) -> dict[str, Any] | None:
    """Read what pages show of a population's members.

    Args:
        folder: Folder of a run or population.

    Returns:
        The content of `MEMBERS`, or None of a run.
    """
    found = read_entries(folder / MEMBERS)
    return found if "members" in found else None


def read_entries(path: Path) -> dict[str, Any]:
    """Read a file of JSON.

    Args:
        path: File.

    Returns:
        The entries, empty if there is no readable file.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def write_status(folder: Path, facts: Facts) -> None:
    """Replace ``run.json`` atomically; do nothing if the folder does not exist.

    Args:
        folder: Folder of the run.
        facts: Entries. Numbers that are not finite become null.
    """
    with contextlib.suppress(OSError):
        replace_file(
            folder / FILE,
            json.dumps({**_finite(facts), "updated_at": time.time()}, indent=1) + "\n",
        )


def state_now(facts: Facts) -> str:
    """Return the current state of a run.

    Args:
        facts: Entries of ``run.json``.

    Returns:
        The stored ``state``, but ``dead`` if the process of a running state is gone, and
        ``unknown`` without a state.
    """
    state = facts.get("state", "unknown")
    if state in ENDED:
        return state
    if facts.get("host") != socket.gethostname():
        return state if time.time() - facts.get("updated_at", 0.0) < SILENT_S else "dead"
    return state if _runs(facts.get("pid", 0), facts.get("process_start")) else "dead"


def _finite(facts: Facts) -> dict[str, Any]:
    """Replace NaN and infinity, which JSON does not support, by None."""
    return {
        key: None if isinstance(x, float) and not math.isfinite(x) else x
        for key, x in facts.items()
    }


def _this_process() -> dict[str, Any]:
    own = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "process_start": _start_of(os.getpid()),
    }
    return {**own, "started_at": time.time(), "system": f"{platform.system()} {platform.release()}"}


def _runs(pid: int, start: int | None) -> bool:
    """Check whether the process runs, and is not a later one with the same id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return _start_of(pid) == start


def _start_of(pid: int) -> int | None:
    """Return the start of a process in clock ticks since the machine's start; None if the system is
    not Linux.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


Kind = Literal["train", "eval"]
"""Kind of a row: of ``metrics.csv``, or of an evaluation."""
Written = Collection[tuple[Kind, int]]
"""Kind and environment steps of rows."""
PROJECT = "jaxrl_fast"
"""Default project of Weights & Biases; ``WANDB_PROJECT`` overrides it."""


class Logger(Protocol):
    """Receives the scalars of a run. An `OSError` of it prints a message and does not end the run."""

    def add(self, kind: Kind, scalars: Mapping[str, float], env_steps: int) -> None:
        """Log ``scalars`` by name, as of ``env_steps`` environment steps."""

    def close(self, failed: bool) -> None:
        """Close the logger at the end of the run."""


def check_logger(log: Log) -> None:
    """Check that the package of a logger is installed.

    Args:
        log: Name of the logger.

    Raises:
        ImportError: The package is not installed.
    """
    if log == "wandb":
        _import_wandb()


def open_logger(
    log: Log,
    path: Path,
    resume_at: int | None,
    written: Written,
    settings: Facts,
    status: RunStatus,
    tell: Tell,
) -> Logger:
    """Open a logger that writes to the folder of a run.

    Args:
        log: Name of the logger.
        path: Folder of the run.
        resume_at: Environment steps after which to continue, or None for a new run.
        written: Kind and environment steps of the rows in the tables when the run was interrupted.
        settings: Settings of the run.
        status: ``run.json`` of the run.
        tell: Shows messages to the user.

    Returns:
        The logger.

    Raises:
        ImportError: The package of the logger is not installed.
        ValueError: Weights & Biases refuses the run.
    """
    if log == "tensorboard":
        return _TensorBoard(path, resume_at)
    return (
        _WeightsAndBiases(path, written, settings, status, tell) if log == "wandb" else _Nowhere()
    )


class _TensorBoard:
    def __init__(self, path: Path, resume_at: int | None) -> None:
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(
            str(path), purge_step=None if resume_at is None else resume_at + 1
        )
        # Ctrl-C may interrupt the main thread within a lock of tensorboardX, or of an executor, but
        # not in this queue.
        self._rows: SimpleQueue[tuple[str, float, int] | None] = SimpleQueue()
        written = starmap(self._writer.add_scalar, iter(self._rows.get, None))
        self._thread = Thread(target=deque, args=(written, 0), daemon=True)
        self._thread.start()

    def add(self, kind: Kind, scalars: Mapping[str, float], env_steps: int) -> None:
        for name, value in scalars.items():
            self._rows.put((f"{kind}/{name}", value, env_steps))

    def close(self, failed: bool) -> None:
        self._rows.put(None)
        self._thread.join()
        self._writer.close()


class _WeightsAndBiases:
    """Logs to Weights & Biases.

    A resumed run continues under its id, which ``run.json`` stores. Rows cannot be removed there,
    so that rows logged before an interruption are not sent again.
    """

    def __init__(
        self, path: Path, written: Written, settings: Facts, status: RunStatus, tell: Tell
    ) -> None:
        wandb = _import_wandb()
        self._error = wandb.Error
        id = status.facts.get("wandb_id")
        self._there = frozenset(written) if id else frozenset()
        id = id or secrets.token_hex(4)
        project = os.environ.get("WANDB_PROJECT") or PROJECT
        options = wandb.Settings(console="off", silent=True)
        try:
            self._run = wandb.init(
                project=project,
                name=path.resolve().name,
                id=id,
                resume="allow",
                dir=path,
                config=dict(settings),
                settings=options,
            )
        except wandb.Error as error:
            why = " ".join(str(error).split()).rstrip(".")
            raise ValueError(
                f"log=wandb: {why}: set WANDB_MODE=offline, or write log=tensorboard"
            ) from None
        status.set(wandb_id=id)
        # An evaluation may follow rows of later steps, which W&B's default step counter does not
        # allow.
        self._run.define_metric("*", step_metric="env_steps")
        folder = Path(self._run.dir).parent
        tell(
            f"Weights & Biases: {f'offline; upload with wandb sync {folder}' if self._run.offline else self._run.url}"
        )

    def add(self, kind: Kind, scalars: Mapping[str, float], env_steps: int) -> None:
        if (kind, env_steps) in self._there:
            return
        try:
            self._run.log(
                {
                    **{f"{kind}/{name}": value for name, value in scalars.items()},
                    "env_steps": env_steps,
                }
            )
        except self._error as error:
            raise OSError(str(error)) from error

    def close(self, failed: bool) -> None:
        try:
            self._run.finish(exit_code=int(failed))
        except self._error as error:
            raise OSError(str(error)) from error


class _Nowhere:
    def add(self, kind: Kind, scalars: Mapping[str, float], env_steps: int) -> None:
        return

    def close(self, failed: bool) -> None:
        return


def _import_wandb() -> Any:
    try:
        import wandb
    except ImportError as error:
        raise ImportError(
            "log=wandb needs a package: pip install wandb, or write log=tensorboard"
        ) from error
    if not hasattr(wandb, "init"):  # a folder of its files is importable where it is not installed
        raise ImportError("log=wandb needs a package: pip install wandb, or write log=tensorboard")
    return wandb
