"""The runs below a folder, looked for again and again; what has not changed is not read again."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from jaxrl_fast.inspection.run_rows import Facts, RunRow, read_facts, row_of
from jaxrl_fast.runs.reading import MARKS

TABLES = ("run.json", "config.yaml", "summary.json", "metrics.csv", "metrics_seeds.csv", "evals.csv")
"""The files of a run that are read."""
SERVED = ("report.html", "policy.html", "policy.gif", "graph.svg", "curve.png")
"""The files of a run that are handed out as they are."""
MAX_DEPTH = 4
"""A run lies at most so many folders below the root, as ``<env>/<algo>/<label>`` does."""
MAX_FOLDERS = 20_000
"""After so many folders the search ends: a root such as ``/`` holds everything."""
FRESH_S = 1.0
"""Rows are looked up at most so often, in seconds."""
IDLE_SHARE = 4.0
"""And never more often than once in so many times the seconds that it takes."""

Stamp = tuple[tuple[str, int, int, int], ...]
"""Name, time of change in ns, size and inode of each file: another stamp, other contents."""


class FoundRuns:
    """The runs below ``root``. Links are never followed, so nothing outside is read and ``latest`` counts once.

    May be called from several threads.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._read: dict[str, tuple[Stamp, Facts]] = {}
        self._rows: dict[str, RunRow] = {}
        self._lock, self._look_at_s = threading.Lock(), 0.0

    def rows(self) -> dict[str, RunRow]:
        """A row for each run by its name, which is its path below the root; at most `FRESH_S` old."""
        with self._lock:
            began_s = time.monotonic()
            if began_s >= self._look_at_s:
                read: dict[str, tuple[Stamp, Facts]] = {}
                for name, stamp in find_runs(self.root):
                    known, facts = self._read.get(name, ((), {}))
                    read[name] = stamp, facts if stamp == known else read_facts(self.root / name)
                self._read = read
                self._rows = {name: row_of(name, facts) for name, (_, facts) in self._read.items()}
                now_s = time.monotonic()
                self._look_at_s = now_s + max(FRESH_S, IDLE_SHARE * (now_s - began_s))
            return self._rows

    def path_of(self, name: str, file: str) -> Path:
        """Where a file of a run lies. Every path that a visitor asks for goes through here.

        Raises:
            FileNotFoundError: no such run or file, a file that is none of `TABLES` and `SERVED`, or a link in its path.
        """
        path = self.root / name / file
        known = name in self.rows() and file in (*TABLES, *SERVED)
        # A path that resolves to another one has a link in it.
        if not known or not path.is_file() or path.resolve() != path:
            raise FileNotFoundError(f"no {file} of a run {name}")
        return path


def find_runs(root: Path) -> Iterator[tuple[str, Stamp]]:
    """Name and stamp of each run below ``root``. Folders within runs, hidden ones, and those whose tables are links or
    whose names are not text are left out."""
    waiting, seen = [""], 0
    while waiting and seen < MAX_FOLDERS:
        folder, seen = waiting.pop(), seen + 1
        entries = _entries(root / folder)
        tables = [entry for entry in entries if entry.name in TABLES]
        if folder and any(entry.name in MARKS for entry in tables):
            stamp = _stamp(tables)
            if stamp is not None:
                yield folder, stamp
        elif not folder or folder.count("/") < MAX_DEPTH - 1:
            waiting += [f"{folder}/{entry.name}".lstrip("/") for entry in entries if _may_hold_runs(entry)]


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What a folder holds; nothing once it is gone."""
    with suppress(OSError), os.scandir(folder) as entries:
        return list(entries)
    return []


def _may_hold_runs(entry: os.DirEntry[str]) -> bool:
    # A name that is not text has no address on the page.
    return entry.name[0] != "." and entry.name.isprintable() and entry.is_dir(follow_symlinks=False)


def _stamp(tables: list[os.DirEntry[str]]) -> Stamp | None:
    """None where one of them is a link, a pipe or gone."""
    if not all(entry.is_file(follow_symlinks=False) for entry in tables):
        return None
    with suppress(OSError):
        found = [(entry.name, entry.stat(follow_symlinks=False)) for entry in tables]
        return tuple(sorted((name, stat.st_mtime_ns, stat.st_size, stat.st_ino) for name, stat in found))
    return None
