"""The tables of a run folder: CSV files that grow, and that are cut where a run is resumed."""

import csv
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl_fast.core import EpisodeTotals
from jaxrl_fast.files import replacing
from jaxrl_fast.runs.hooks import Row
from jaxrl_fast.runs.loggers import Kind

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
