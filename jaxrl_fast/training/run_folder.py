"""The folder of a run: tables, policies and summary; and reading of folders, also incomplete ones."""

import contextlib
import csv
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import yaml

from jaxrl_fast.core import EpisodeTotals, Log
from jaxrl_fast.envs.episode_metrics import column_of, mean_of_finite
from jaxrl_fast.policy.policies import Policy, save_policy
from jaxrl_fast.system import replace_file, replacing
from jaxrl_fast.training.callbacks import Row, Tell
from jaxrl_fast.training.records import (
    SILENT_S,
    Kind,
    Logger,
    RunStatus,
    open_logger,
    read_entries,
    read_status,
    state_now,
)

TABLES = ("metrics.csv", "metrics_seeds.csv", "evals.csv")
EVAL_COLUMNS = ("seed", "env_steps", "wall_s", "return", "length")
"""Columns of ``evals.csv``. ``success`` follows if the environment reports it, then ``env/`` and a
name for each of its metrics, and ``return_0`` and so on for agents with separate rewards.
"""


LOCK = ".lock"
"""File of a run folder that the process which trains there has locked. The system unlocks it when
the process ends.
"""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[str]:
    """Lock a run folder, which is created if it is missing, until the exit of the block.

    A file system that has no locks is used without one.

    Args:
        folder: Folder of the run.

    Returns:
        Context manager of the folder's path.

    Raises:
        ValueError: Another process or thread trains there, or the folder is not writable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("a+", encoding="utf-8")
    except (OSError, UnicodeEncodeError) as error:
        raise unwritable(folder, error) from None
    with file:
        _lock(file, folder, fcntl.LOCK_EX)
        with contextlib.suppress(OSError):  # a full disk
            file.truncate(0)
            os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield str(folder)


def check_unused(folder: Path) -> None:
    """Check that nobody trains in a folder, before the slow parts of a start; `locked` makes sure
    of it.

    Args:
        folder: Folder of a run, or a missing one.

    Raises:
        ValueError: Another process or thread trains there.
    """
    with (
        contextlib.suppress(OSError, UnicodeEncodeError),
        (folder / LOCK).open(encoding="utf-8") as file,
    ):
        # shared, so that the processes of one run do not refuse each other
        _lock(file, folder, fcntl.LOCK_SH)


def unwritable(folder: Path, error: OSError | UnicodeEncodeError) -> ValueError:
    """Make the error of a run folder that cannot be written.

    Args:
        folder: Folder of the run.
        error: Error of the system, or of a name that the encoding of its file names lacks.

    Returns:
        The error, with an advice.
    """
    if isinstance(error, UnicodeEncodeError):
        return ValueError(f"run_dir={str(folder)!a}: {lacking_letters()}")
    return ValueError(
        f"cannot write to the run folder {folder} ({error.strerror}): write another run_dir=..."
    )


def lacking_letters() -> str:
    """Return what to do about text that the encoding of file names lacks.

    Returns:
        The advice.
    """
    return f"the system's encoding ({sys.getfilesystemencoding()}) lacks some letter: set PYTHONUTF8=1, or write others"


def _lock(file: IO[str], folder: Path, kind: int) -> None:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _in_use(file, folder) from None
    except OSError:  # the file system has no locks
        return


def _in_use(file: IO[str], folder: Path) -> ValueError:
    file.seek(0)
    user = file.read() or "another process"
    return ValueError(f"{folder} is in use by {user}: wait until it ends, or write another run_dir")


class GrowingTable:
    """A CSV file that is created with its first rows, whose keys are its columns.

    ``resume_at`` is described in `RunFolder`; rows of the steps ``without`` are removed, too.
    """

    def __init__(self, path: Path, resume_at: int | None, without: Collection[int] = ()) -> None:
        self.path = path
        self._file: Any = None
        self.columns = _cut_table(path, resume_at, without)

    def add(self, rows: Sequence[Row]) -> None:
        """Write rows to disk."""
        if not rows:
            return
        if not self.columns:
            self.begin(list(rows[0]))
        self._write([[row.get(name) for name in self.columns] for row in rows])
        self._file.flush()

    def begin(self, columns: Sequence[str]) -> None:
        """Write the names of the columns, which are on disk after the first rows or when the file
        is closed.
        """
        self._write([columns])
        # after the write: a folder that was missing may exist for the next rows
        self.columns = list(columns)

    def _write(self, lines: Sequence[Sequence[Any]]) -> None:
        if self._file is None:
            self._file = self.path.open("a", encoding="utf-8", newline="")
        csv.writer(self._file).writerows(lines)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def reported(totals: EpisodeTotals) -> dict[str, np.ndarray]:
    """Collect what the environment reports of each episode of an evaluation: success and metrics.

    Args:
        totals: Totals ``[S, episodes]``.

    Returns:
        Values ``[S, episodes]`` by column of ``evals.csv``.
    """
    success = (
        {} if isinstance(totals.success, tuple) else {"success": np.asarray(totals.success, int)}
    )
    return success | {
        column_of(name): np.asarray(values) for name, values in dict(totals.metrics).items()
    }


def evaluation_rows(env_steps: int, wall_s: float, totals: EpisodeTotals) -> list[Row]:
    """Make one row for each episode of an evaluation.

    Args:
        env_steps: Environment steps at the evaluation.
        wall_s: Seconds of the run at the evaluation.
        totals: Totals ``[S, episodes]``.

    Returns:
        Rows of ``evals.csv``.
    """
    columns = {
        "return": np.asarray(totals.returns),
        "length": np.asarray(totals.length),
        **reported(totals),
    }
    if not isinstance(totals.agents, tuple):
        columns |= {
            f"return_{i}": own
            for i, own in enumerate(np.moveaxis(np.asarray(totals.agents), -1, 0))
        }

    def row(at: tuple[int, ...]) -> Row:
        when = {"seed": at[0], "env_steps": env_steps, "wall_s": f"{wall_s:.2f}"}
        return {**when, **{name: values[at].item() for name, values in columns.items()}}

    return [row(at) for at in np.ndindex(columns["return"].shape)]


def written_rows(folder: Path) -> set[tuple[Kind, int]]:
    """List the rows in a run's tables.

    Args:
        folder: Folder of the run.

    Returns:
        Kind and environment steps of each row.
    """
    tables: tuple[tuple[Kind, str], ...] = (("train", "metrics.csv"), ("eval", "evals.csv"))
    found = ((kind, folder / name) for kind, name in tables if (folder / name).exists())
    return {(kind, steps) for kind, path in found for steps in _steps_of(_read_table(path))}


def check_tables(folder: Path) -> None:
    """Check that the tables of a run that shall be resumed are readable.

    Args:
        folder: Folder of the run.

    Raises:
        ValueError: A table is not readable.
    """
    for name in TABLES:
        if (folder / name).exists():
            _read_table(folder / name)


def _cut_table(path: Path, env_steps: int | None, without: Collection[int] = ()) -> list[str]:
    """Remove a table's rows after ``env_steps`` (None: all) and of the steps ``without``; return
    its columns.
    """
    if env_steps is None or not path.exists():
        path.unlink(missing_ok=True)
        return []
    return _rewrite_table(path, env_steps, without)


def _rewrite_table(path: Path, env_steps: int, without: Collection[int]) -> list[str]:
    rows = _read_table(path)
    if len(rows) < 2:  # the next rows determine the columns
        path.unlink()
        return []
    steps = zip(rows[1:], _steps_of(rows), strict=True)
    left = [row for row, at in steps if at <= env_steps and at not in without]
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([rows[0], *left])
    return rows[0]


def _steps_of(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the column ``env_steps`` of a table whose first row contains the names."""
    at = rows[0].index("env_steps") if rows else 0
    return [int(row[at]) for row in rows[1:]]


def _read_table(path: Path) -> list[list[str]]:
    """Read the names and rows of a table, without partial rows of a killed process."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
        rows = [row for row in rows if len(row) == len(rows[0])]
        _steps_of(rows)
    except (ValueError, csv.Error) as error:
        raise ValueError(
            f"{path} is not the table that a run writes ({error}): move it away, and the run starts a new one"
        ) from error
    return rows


class RunFolder:
    """Context manager that writes the files of a run; every row is on disk before the next chunk
    ends.

    ``resume_at`` continues existing tables without their rows after this number of environment
    steps, and without evaluations after the steps ``evaluated_again``. ``facts`` are entries of
    ``run.json``. ``log`` is the logger of scalars and of the ``settings``. A file that cannot be
    written prints one message and does not end training.

    Attributes:
        path: Folder of the run.
        broken: Whether a file could not be written.
        complete: Whether the run has reached its end.
        status: ``run.json`` of the run.
        tell: Shows messages to the user, and stores them in ``run.json``.

    Raises:
        ValueError: The folder is not writable, or the logger cannot be opened.
        ImportError: The package of the logger is not installed.
    """

    def __init__(
        self,
        path: Path,
        *,
        resume_at: int | None = None,
        evaluated_again: Collection[int] = (),
        tell: Tell = lambda line: None,
        facts: Mapping[str, Any] | None = None,
        log: Log = "tensorboard",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.path, self.broken, self.complete = path, False, False
        try:
            path.mkdir(parents=True, exist_ok=True)
            written = set() if resume_at is None else written_rows(path)
            self._metrics = GrowingTable(path / "metrics.csv", resume_at)
            self._of_seeds = GrowingTable(path / "metrics_seeds.csv", resume_at)
            self._evals = GrowingTable(path / "evals.csv", resume_at, evaluated_again)
            self.status = RunStatus(path, resumed=resume_at is not None, **(facts or {}))
            self.tell = self.status.noting(tell)
            self._logger = self._open_logger(
                log, path, resume_at, written, settings or {}, self.status, self.tell
            )
        except OSError as error:
            raise unwritable(path, error) from error

    def add_metrics(self, row: Row) -> None:
        """Write a row of a chunk, and one of each of its ``seeds`` if there are several."""
        of_seeds = row.get("seeds", [])
        row = {name: value for name, value in row.items() if name not in ("kind", "seeds")}

        def add() -> None:
            self._metrics.add([row])
            self._of_seeds.add(of_seeds)
            numbers = {
                n: x
                for n, x in row.items()
                if isinstance(x, int | float) and not n.startswith("rate/")
            }
            self._logger.add("train", numbers, row["env_steps"])

        self._try(add)

    def add_evaluation(self, env_steps: int, wall_s: float, totals: EpisodeTotals) -> None:
        """Write a row per episode; totals are ``[S, episodes]``."""

        def add() -> None:
            self._evals.add(evaluation_rows(env_steps, wall_s, totals))
            means = {
                "return_mean": float(np.mean(totals.returns)),
                "length_mean": float(np.mean(totals.length)),
            }
            found = {
                "success_rate" if n == "success" else n: mean_of_finite(x)
                for n, x in reported(totals).items()
            }
            self._logger.add(
                "eval", means | {n: x for n, x in found.items() if x is not None}, env_steps
            )

        self._try(add)

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not self._evals.columns:
            self._try(lambda: self._evals.begin(EVAL_COLUMNS))
        for file in (self._metrics, self._of_seeds, self._evals):
            self._try(file.close)
        self._try(lambda: self._logger.close(error is not None))
        self.status.end(error, self.complete)

    def keep_policy(self, policy: Policy, *, newest: bool, best: bool) -> None:
        """Write an evaluated policy as the ``newest``, as the ``best``, or both."""

        def write() -> None:
            if newest:
                save_policy(policy, self.path / "policy")
            if best:
                save_policy(policy, self.path / "policy" / "best")

        self._try(write)

    def finish(self, policy: Policy, complete: bool) -> None:
        """Write the last policy of a run that is ``complete`` or was stopped.

        Raises:
            OSError: The folder is no longer writable.
        """
        self.complete = complete
        self.path.mkdir(parents=True, exist_ok=True)
        save_policy(policy, self.path / "policy")

    def _open_logger(self, *how: Any) -> Logger:
        try:
            return open_logger(*how)
        except BaseException as error:
            self.status.end(error)
            raise

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            if not self.broken:
                self.tell(
                    f"cannot write to {self.path} ({error.strerror or error}): training continues without it"
                )
            self.broken = True


def write_summary(folder: Path, summary: Row) -> None:
    """Write ``summary.json``. Other entries that it contains are retained; an unreadable file is
    replaced.

    Args:
        folder: Folder of the run.
        summary: Entries to write.
    """
    path = folder / "summary.json"
    replace_file(path, json.dumps({**read_entries(path), **summary}, indent=2) + "\n")


def link_latest(folder: Path, runs: Path) -> None:
    """Point the link ``latest`` to the newest run, if the file system supports links.

    A folder of this name, which may contain a run, is not replaced.

    Args:
        folder: Folder of the newest run.
        runs: Folder that contains the link, created if missing.
    """
    link, target = runs / "latest", folder.resolve()
    if target == runs.resolve() / "latest":
        return
    with contextlib.suppress(OSError):
        runs.mkdir(exist_ok=True)
        with replacing(link) as temporary:
            temporary.symlink_to(os.path.relpath(target, runs.resolve()), target_is_directory=True)


MARKS = ("run.json", "config.yaml", "metrics.csv")
"""A folder with one of these files is a run's."""
Columns = dict[str, np.ndarray]
"""A table: float64 ``[rows]`` by name; NaN for empty cells."""


class RunView(NamedTuple):
    """Content of a run folder at one time. Parts that are missing or unreadable are empty.

    Attributes:
        path: The folder.
        state: `records.state_now`, or a guess from the files of a folder without ``run.json``.
        status: ``run.json``.
        settings: ``config.yaml``.
        summary: ``summary.json``.
        metrics: ``metrics.csv``, one row per chunk.
        of_seeds: ``metrics_seeds.csv``, one row per chunk and seed.
        evals: ``evals.csv``, one row per episode.
    """

    path: Path
    state: str
    status: dict[str, Any]
    settings: dict[str, Any]
    summary: dict[str, Any]
    metrics: Columns
    of_seeds: Columns
    evals: Columns


class Scores(NamedTuple):
    """The evaluations of a run.

    Attributes:
        env_steps: Environment steps of each policy, ``[N]``.
        wall_s: Seconds of the run at each policy, ``[N]``.
        returns: Each seed's mean over episodes, ``[N, S]``.
        low: 10th percentile over all episodes, ``[N]``.
        high: 90th percentile over all episodes, ``[N]``.
        success: Fraction of successful episodes, ``[N]``; NaN if it is not reported.
    """

    env_steps: np.ndarray
    wall_s: np.ndarray
    returns: np.ndarray
    low: np.ndarray
    high: np.ndarray
    success: np.ndarray


def is_run(folder: Path) -> bool:
    """Check whether a folder contains a run.

    Args:
        folder: Folder.

    Returns:
        True if one of `MARKS` exists.
    """
    return any((folder / name).is_file() for name in MARKS)


def read_settings(folder: Path) -> dict[str, Any]:
    """Read the settings of a run.

    Args:
        folder: Folder of the run.

    Returns:
        Content of ``config.yaml``, empty if it is not readable.
    """
    try:
        text = (folder / "config.yaml").read_text(encoding="utf-8")
        found = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}


def read_run(folder: Path) -> RunView:
    """Read all files of a run folder.

    Args:
        folder: Folder of the run.

    Returns:
        The content.
    """
    status = read_status(folder)
    summary = read_entries(folder / "summary.json")
    return RunView(
        path=folder,
        state=state_now(status) if status else _guess_state(folder, summary),
        status=status,
        settings=read_settings(folder),
        summary=summary,
        metrics=read_columns(folder / "metrics.csv"),
        of_seeds=read_columns(folder / "metrics_seeds.csv"),
        evals=read_columns(folder / "evals.csv"),
    )


UNEVALUATED: dict[Any, str] = {0: "not evaluated (eval.every=0)"}
NOT_YET = "not evaluated yet"
"""What to show in place of the greedy returns of a run that has none, by ``eval.every`` in
``run.json``, or else.
"""


def name_of(settings: Mapping[str, Any], group: str) -> str:
    """Return the name of the environment or the algorithm in settings.

    Args:
        settings: Content of ``config.yaml``.
        group: ``env`` or ``algo``.

    Returns:
        The id of an environment of a suite, else the name, or "".
    """
    section = settings.get(group)
    if not isinstance(section, dict):
        return str(section or "")
    return str(section.get("id") or section.get("make") or section.get("name") or "")


def scores_of(evals: Columns) -> Scores:
    """Compute the scores of a run's evaluations.

    Args:
        evals: Columns of ``evals.csv``.

    Returns:
        Scores, oldest first, without evaluations that lack a seed.
    """
    known = set(EVAL_COLUMNS) <= set(evals)
    steps, seeds = (
        np.unique(evals[name]) if known else np.zeros(0) for name in ("env_steps", "seed")
    )
    found = [(step, _scores_at(evals, step, seeds)) for step in steps[np.isfinite(steps)]]
    whole = [(step, *scores) for step, scores in found if scores is not None]
    columns = (
        [np.array(column) for column in zip(*whole, strict=True)] if whole else [np.zeros(0)] * 6
    )
    at, times, returns, low, high, success = columns
    return Scores(
        at, times, returns.reshape(len(at), -1) if whole else np.zeros((0, 0)), low, high, success
    )


def read_columns(path: Path) -> Columns:
    """Read a table of numbers, without partial rows of a killed process.

    Args:
        path: CSV file.

    Returns:
        Columns by name, empty if the file is not readable.
    """
    try:
        with path.open(encoding="utf-8", newline="", errors="replace") as file:
            rows = list(csv.reader(line.replace("\0", "") for line in file))
    except (OSError, csv.Error):
        return {}
    if not rows:
        return {}
    names, whole = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]
    numbers = np.array([[_number(cell) for cell in row] for row in whole]).reshape(
        len(whole), len(names)
    )
    return {name: numbers[:, column] for column, name in enumerate(names)}


def _scores_at(
    evals: Columns, step: float, seeds: np.ndarray
) -> tuple[float, np.ndarray, float, float, float] | None:
    here = evals["env_steps"] == step
    returns, of_seed = evals["return"][here], evals["seed"][here]
    if not np.isfinite(returns).all() or not np.isin(seeds, of_seed).all():
        return None
    means = np.array([returns[of_seed == seed].mean() for seed in seeds])
    low, high = np.percentile(returns, [10, 90])
    success = float(evals["success"][here].mean()) if "success" in evals else float("nan")
    return float(evals["wall_s"][here].max()), means, float(low), float(high), success


def _guess_state(folder: Path, summary: Mapping[str, Any]) -> str:
    """Guess the state of a run whose folder an older version wrote."""
    if summary:
        return "stopped" if summary.get("stopped_by") else "done"
    try:
        silent_s = time.time() - (folder / "metrics.csv").stat().st_mtime
    except OSError:
        return "unknown"
    return "training" if silent_s < SILENT_S else "dead"


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("nan")
