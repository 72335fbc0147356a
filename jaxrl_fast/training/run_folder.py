"""The folder of a run: tables that grow, policies and the summary; and reading a folder in any condition."""

import contextlib
import csv
import json
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from jaxrl_fast.core import EpisodeTotals, Log
from jaxrl_fast.policy.policies import Policy, save_policy
from jaxrl_fast.system import replace_file, replacing
from jaxrl_fast.training.callbacks import Row, Tell
from jaxrl_fast.training.records import SILENT_S, Kind, Logger, RunStatus, open_logger, read_status, state_now

TABLES = ("metrics.csv", "metrics_seeds.csv", "evals.csv")
EVAL_COLUMNS = ("seed", "env_steps", "wall_s", "return", "length")
"""Of ``evals.csv``; a column ``success`` follows where the environment knows success, and ``return_0`` and so on, the
returns of several agents, where these have rewards of their own."""


class GrowingTable:
    """A CSV file that is made with its first rows, whose names are its columns; ``resume_at`` as in `RunFolder`, which
    removes the rows of the steps ``without``, too."""

    def __init__(self, path: Path, resume_at: int | None, without: Collection[int] = ()) -> None:
        self.path = path
        self._file: Any = None
        self.columns = _cut_table(path, resume_at, without)

    def add(self, rows: Sequence[Row]) -> None:
        """Write rows, and have them on disk."""
        if not rows:
            return
        if not self.columns:
            self.begin(list(rows[0]))
        self._write([[row.get(name) for name in self.columns] for row in rows])
        self._file.flush()

    def begin(self, columns: Sequence[str]) -> None:
        """Write the names of the columns, which are on disk with the first rows or when the file is closed."""
        self._write([columns])
        self.columns = list(columns)  # not before: a folder that was gone may be there again for the next rows

    def _write(self, lines: Sequence[Sequence[Any]]) -> None:
        if self._file is None:
            self._file = self.path.open("a", newline="")
        csv.writer(self._file).writerows(lines)

    def close(self) -> None:
        """Close the file; no rows may follow."""
        if self._file is not None:
            self._file.close()


def evaluation_rows(env_steps: int, wall_s: float, totals: EpisodeTotals) -> list[Row]:
    """A row for each episode of totals ``[S, episodes]``."""
    columns = {"return": np.asarray(totals.returns), "length": np.asarray(totals.length)}
    if not isinstance(totals.success, tuple):
        columns["success"] = np.asarray(totals.success, int)
    if not isinstance(totals.agents, tuple):
        columns |= {f"return_{i}": own for i, own in enumerate(np.moveaxis(np.asarray(totals.agents), -1, 0))}

    def row(at: tuple[int, ...]) -> Row:
        when = {"seed": at[0], "env_steps": env_steps, "wall_s": f"{wall_s:.2f}"}
        return {**when, **{name: values[at].item() for name, values in columns.items()}}

    return [row(at) for at in np.ndindex(columns["return"].shape)]


def written_rows(folder: Path) -> set[tuple[Kind, int]]:
    """Kind and environment steps of the rows that a run's tables hold."""
    tables: tuple[tuple[Kind, str], ...] = (("train", "metrics.csv"), ("eval", "evals.csv"))
    found = ((kind, folder / name) for kind, name in tables if (folder / name).exists())
    return {(kind, steps) for kind, path in found for steps in _steps_of(_read_table(path))}


def check_tables(folder: Path) -> None:
    """Refuse to resume a run one of whose tables cannot be read.

    Raises:
        ValueError: naming the one that cannot be read.
    """
    for name in TABLES:
        if (folder / name).exists():
            _read_table(folder / name)


def _cut_table(path: Path, env_steps: int | None, without: Collection[int] = ()) -> list[str]:
    """Drop a table's rows past ``env_steps`` (None: all of it) and those of the steps ``without``; returns its columns,
    if it has any."""
    if env_steps is None or not path.exists():
        path.unlink(missing_ok=True)
        return []
    rows = _read_table(path)
    if len(rows) < 2:  # the first rows to come say which columns there are
        path.unlink()
        return []
    steps = zip(rows[1:], _steps_of(rows), strict=True)
    left = [row for row, at in steps if at <= env_steps and at not in without]
    with replacing(path) as temporary, temporary.open("w", newline="") as file:
        csv.writer(file).writerows([rows[0], *left])
    return rows[0]


def _steps_of(rows: Sequence[Sequence[str]]) -> list[int]:
    """The column ``env_steps`` of a table whose first row has the names."""
    at = rows[0].index("env_steps") if rows else 0
    return [int(row[at]) for row in rows[1:]]


def _read_table(path: Path) -> list[list[str]]:
    """The names and the rows of a table, but for one that a killed process has written half of."""
    try:
        with path.open(newline="") as file:
            rows = list(csv.reader(file))
        rows = [row for row in rows if len(row) == len(rows[0])]
        _steps_of(rows)
    except (ValueError, csv.Error) as error:
        raise ValueError(
            f"{path} is not the table that a run writes ({error}): move it away, and the run goes on with a new one"
        ) from error
    return rows


class RunFolder:
    """Writes one run's files as they come; every row is on disk before the next chunk ends. A context manager.

    ``resume_at``: go on with the tables that are there, without their rows past this number of environment steps, nor
    those of evaluations after the steps ``evaluated_again``.
    ``tell`` gets a line, once, if a table can no longer be written; that does not end training. The attribute ``tell``
    also keeps the lines that it is given, in ``run.json``, which ``status`` writes; ``facts`` go there, too.
    ``log``: where scalars go beside the tables, and with them the ``settings``, if that shows any.

    Raises:
        ValueError: the folder cannot be written to, or the logger does not open.
        ImportError: the logger's package is missing.
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
        self.path, self.broken = path, False
        try:
            path.mkdir(parents=True, exist_ok=True)
            written = set() if resume_at is None else written_rows(path)
            self._metrics = GrowingTable(path / "metrics.csv", resume_at)
            self._of_seeds = GrowingTable(path / "metrics_seeds.csv", resume_at)
            self._evals = GrowingTable(path / "evals.csv", resume_at, evaluated_again)
            self.status = RunStatus(path, resumed=resume_at is not None, **(facts or {}))
            self.tell = self.status.noting(tell)
            self._logger = self._open_logger(log, path, resume_at, written, settings or {}, self.status, self.tell)
        except OSError as error:
            text = f"cannot write to the run folder {path} ({error.strerror}): write another run_dir=..."
            raise ValueError(text) from error

    def add_metrics(self, row: Row) -> None:
        """One row a chunk, and one for each of its ``seeds`` where there are several."""
        of_seeds = row.get("seeds", [])
        row = {name: value for name, value in row.items() if name not in ("kind", "seeds")}

        def add() -> None:
            self._metrics.add([row])
            self._of_seeds.add(of_seeds)
            numbers = {n: x for n, x in row.items() if isinstance(x, int | float) and not n.startswith("rate/")}
            self._logger.add("train", numbers, row["env_steps"])

        self._try(add)

    def add_evaluation(self, env_steps: int, wall_s: float, totals: EpisodeTotals) -> None:
        """One row an episode; totals are ``[S, episodes]``."""

        def add() -> None:
            self._evals.add(evaluation_rows(env_steps, wall_s, totals))
            means = {"return_mean": float(np.mean(totals.returns)), "length_mean": float(np.mean(totals.length))}
            if not isinstance(totals.success, tuple):
                means["success_rate"] = float(np.mean(totals.success))
            self._logger.add("eval", means, env_steps)

        self._try(add)

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not self._evals.columns:
            self._try(lambda: self._evals.begin(EVAL_COLUMNS))
        for file in (self._metrics, self._of_seeds, self._evals):
            self._try(file.close)
        self._try(lambda: self._logger.close(error is not None))
        self.status.end(error)

    def keep_policy(self, policy: Policy, *, newest: bool, best: bool) -> None:
        """Write an evaluated policy as the ``newest``, as the ``best``, or both."""

        def write() -> None:
            if newest:
                save_policy(policy, self.path / "policy")
            if best:
                save_policy(policy, self.path / "policy" / "best")

        self._try(write)

    def finish(self, policy: Policy) -> None:
        """Write the last policy.

        Raises:
            OSError: the folder can no longer be written to.
        """
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
                self.tell(f"cannot write to {self.path} ({error.strerror or error}): training goes on without it")
            self.broken = True


def write_summary(folder: Path, summary: Row) -> None:
    """Write ``summary.json``, adding to what it holds already; what cannot be read is replaced."""
    path = folder / "summary.json"
    try:
        before = dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        before = {}
    replace_file(path, json.dumps({**before, **summary}, indent=2) + "\n")


def link_latest(folder: Path, runs: Path) -> None:
    """Point ``runs/latest`` to the newest run, where the file system knows links. A folder of that name, which may
    hold a run, is left as it is."""
    with contextlib.suppress(OSError), replacing(runs / "latest") as temporary:
        temporary.symlink_to(os.path.relpath(folder, runs), target_is_directory=True)


def read_evaluations(folder: Path) -> dict[str, np.ndarray]:
    """The columns of ``evals.csv``."""
    with open(folder / "evals.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name]) for row in rows]) for name in EVAL_COLUMNS}


MARKS = ("run.json", "config.yaml", "metrics.csv")
"""A folder that holds one of these files is a run's."""
Columns = dict[str, np.ndarray]
"""A table: float64 ``[rows]`` by name; NaN where nothing stands."""


class RunView(NamedTuple):
    """What a run folder holds now. Whatever is missing or cannot be read is empty.

    - ``path``: of the folder.
    - ``state``: `records.state_now`; of a folder without ``run.json`` guessed from its files.
    - ``status``, ``settings``, ``summary``: ``run.json``, ``config.yaml`` and ``summary.json``.
    - ``metrics``: ``metrics.csv``, a row a chunk.
    - ``of_seeds``: ``metrics_seeds.csv``, a row a chunk and seed.
    - ``evals``: ``evals.csv``, a row an episode.
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

    - ``env_steps``, ``wall_s``: when each policy was, ``[N]``.
    - ``returns``: each seed's mean over its episodes, ``[N, S]``.
    - ``low``, ``high``: the 10th and 90th percentile over all episodes, ``[N]``.
    - ``success``: the share of all episodes that were a success, ``[N]``; NaN where that is not known.
    """

    env_steps: np.ndarray
    wall_s: np.ndarray
    returns: np.ndarray
    low: np.ndarray
    high: np.ndarray
    success: np.ndarray


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run."""
    return any((folder / name).is_file() for name in MARKS)


def read_run(folder: Path) -> RunView:
    """Everything that is in a folder."""
    status = read_status(folder)
    summary = _read_json(folder / "summary.json")
    state, settings = state_now(status) if status else _guess_state(folder, summary), _read_yaml(folder / "config.yaml")
    tables = (read_columns(folder / f"{name}.csv") for name in ("metrics", "metrics_seeds", "evals"))
    return RunView(folder, state, status, settings, summary, *tables)


def name_of(settings: Mapping[str, Any], group: str) -> str:
    """The name chosen for ``env`` or ``algo``; of a family of environments the id. "" where it is not known."""
    section = settings.get(group)
    if not isinstance(section, dict):
        return str(section or "")
    return str(section.get("id") or section.get("make") or section.get("name") or "")


def scores_of(evals: Columns) -> Scores:
    """The evaluations in ``evals.csv``, the oldest first; those that lack a seed are left out."""
    known = set(EVAL_COLUMNS) <= set(evals)
    steps, seeds = (np.unique(evals[name]) if known else np.zeros(0) for name in ("env_steps", "seed"))
    found = [(step, _scores_at(evals, step, seeds)) for step in steps[np.isfinite(steps)]]
    whole = [(step, *scores) for step, scores in found if scores is not None]
    columns = [np.array(column) for column in zip(*whole, strict=True)] if whole else [np.zeros(0)] * 6
    at, times, returns, low, high, success = columns
    return Scores(at, times, returns.reshape(len(at), -1) if whole else np.zeros((0, 0)), low, high, success)


def read_columns(path: Path) -> Columns:
    """A table of numbers. Rows that are not whole, as a process leaves that is killed while it writes, are left out."""
    try:
        with path.open(newline="", errors="replace") as file:
            rows = list(csv.reader(line.replace("\0", "") for line in file))
    except (OSError, csv.Error):
        return {}
    if not rows:
        return {}
    names, whole = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]
    numbers = np.array([[_number(cell) for cell in row] for row in whole]).reshape(len(whole), len(names))
    return {name: numbers[:, column] for column, name in enumerate(names)}


def _scores_at(evals: Columns, step: float, seeds: np.ndarray) -> tuple[float, np.ndarray, float, float, float] | None:
    here = evals["env_steps"] == step
    returns, of_seed = evals["return"][here], evals["seed"][here]
    if not np.isfinite(returns).all() or not np.isin(seeds, of_seed).all():
        return None
    means = np.array([returns[of_seed == seed].mean() for seed in seeds])
    low, high = np.percentile(returns, [10, 90])
    success = float(evals["success"][here].mean()) if "success" in evals else float("nan")
    return float(evals["wall_s"][here].max()), means, float(low), float(high), success


def _guess_state(folder: Path, summary: Mapping[str, Any]) -> str:
    """Of a folder that an older version wrote."""
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


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        found = yaml.load(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}
