"""The files of a population: tables of trials and lineage, and the rates of its best member over
time.
"""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl_fast.numerics.optimizers import plain
from jaxrl_fast.population.search_space import SearchSpace, value_of
from jaxrl_fast.population.trials import Book, Trial
from jaxrl_fast.settings.schema import written
from jaxrl_fast.system import replace_file
from jaxrl_fast.training.records import MEMBERS

TRIALS, LINEAGE, BEST = "trials.csv", "lineage.csv", "best"
MOST_ROWS = 4_000
"""Most points of curves in `MEMBERS`; of more, only the longest trained members have curves."""


def write_tables(folder: Path, book: Book, facts: Mapping[str, Any]) -> None:
    """Write the tables of all trials atomically.

    Args:
        folder: Folder of the population.
        book: The trials.
        facts: More entries of the file that pages read.
    """
    replace_file(folder / TRIALS, _as_csv(trial_rows(book)))
    if any(row.parent is not None for row in book.lineage):
        replace_file(folder / LINEAGE, _as_csv(lineage_rows(book)))
    replace_file(folder / MEMBERS, json.dumps({**facts, **members(book)}, allow_nan=False))


def trial_rows(book: Book) -> list[dict[str, Any]]:
    """List a row for each trial and segment.

    Args:
        book: The trials.

    Returns:
        Rows: trial, its seeds, steps, seconds, score of each learner and their mean, status, and
            its settings then.
    """
    rows = []
    for trial in book.trials.values():
        for segment in range(1, trial.segments + 1):
            scores = trial.scores[segment - 1]
            last = segment == trial.segments
            rows.append(
                {
                    "trial": trial.number,
                    "env_steps": segment * trial.segment_steps,
                    "seconds": round(trial.seconds[segment - 1], 3),
                    "score": _mean(scores),
                    **(
                        {f"score_{seed}": x for seed, x in enumerate(scores)}
                        if len(scores) > 1
                        else {}
                    ),
                    "status": trial.status if last else "",
                    "seed": trial.seeds[0],
                    **{
                        key: plain(value)
                        for key, value in settings_at(book, trial, segment).items()
                    },
                }
            )
    return rows


def settings_at(book: Book, trial: Trial, segment: int) -> dict[str, Any]:
    """Return the settings with which a trial trained a segment.

    Args:
        book: The trials.
        trial: The trial.
        segment: Number of the segment, from 1.

    Returns:
        Values by key.
    """
    rows = [row for row in book.lineage if row.member == trial.number and row.segment < segment]
    return value_of(book.space, rows[-1].shares)


def lineage_rows(book: Book) -> list[dict[str, Any]]:
    """List the exchanges of a population.

    Args:
        book: The trials.

    Returns:
        Rows: steps, member, the member that it continues, and its settings from then on.
    """
    return [
        {
            "env_steps": row.segment * book.segment_steps,
            "member": row.member,
            "parent": "" if row.parent is None else row.parent,
            **{key: plain(value) for key, value in value_of(book.space, row.shares).items()},
        }
        for row in book.lineage
    ]


def _as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    table.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else value


def _mean(scores: Sequence[float | None]) -> float | None:
    present = [one for one in scores if one is not None]
    return float(np.mean(present)) if present else None


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


def members(book: Book) -> dict[str, Any]:
    """Collect what pages show of a population, for JSON.

    Args:
        book: The trials.

    Returns:
        ``settings`` (key, kind of draw), ``members`` in the order of their rank, after the one that
        was best at the end, ``lineage`` and ``segment_steps``.
    """
    space: SearchSpace = book.space
    shown, entries = MOST_ROWS, []
    first = [] if book.best is None else [book.best]
    for number in dict.fromkeys([*first, *book.ranking(), *book.trials]):
        trial = book.trials[number]
        shown -= trial.segments
        point = value_of(space, trial.shares)
        entries.append(
            {
                "number": number,
                "status": trial.status,
                "env_steps": trial.env_steps,
                "segment_steps": trial.segment_steps,
                "seconds": round(trial.seconds[-1], 1) if trial.seconds else 0.0,
                "score": _finite(trial.score),
                "scores": [_finite(_mean(scores)) for scores in trial.scores] if shown >= 0 else [],
                "parent": trial.parent,
                "point": {key: plain(value) for key, value in point.items()},
                "shares": {key: round(share, 4) for key, share in trial.shares.items()},
            }
        )
    steps, rows = book.segment_steps, book.lineage
    points = [[plain(value) for value in value_of(space, row.shares).values()] for row in rows]
    lineage = [
        [row.segment * steps, row.member, row.parent, point]
        for row, point in zip(rows, points, strict=True)
    ]
    settings = [
        [key, draw.kind, [written(plain(v)) for v in draw.values]]
        for key, draw in space.draws.items()
    ]
    return {
        **dict(settings=settings, members=entries, lineage=lineage),
        **dict(segment_steps=book.segment_steps, segments=book.segments),
    }


def ancestry(book: Book, number: int) -> list[tuple[int, dict[str, Any]]]:
    """Return the rates with which a member's network was trained, through all members that it was
    copied from.

    Args:
        book: The trials.
        number: Number of the member.

    Returns:
        ``(segment, settings)`` from which settings held, ascending from 0.
    """
    changes: list[tuple[int, dict[str, Any]]] = []
    member, until = number, book.segments + 1
    while True:
        rows = [row for row in book.lineage if row.member == member and row.segment < until]
        row = rows[-1]
        changes.append((row.segment, value_of(book.space, row.shares)))
        if row.parent is None:
            return changes[::-1]
        member, until = row.parent, row.segment


def schedules_of(
    book: Book, number: int, steps_per_tick: int = 1
) -> dict[str, list[tuple[float, Any]]]:
    """Return the schedule of each rate that a member's network was trained with.

    A change holds from half a tick before the tick in which it was made, so that rounding does not
    move it.

    Args:
        book: The trials.
        number: Number of the member.
        steps_per_tick: Environment steps of a tick, of each learner.

    Returns:
        ``(share of the run, value)`` by key, for the rates that changed.
    """
    changes = ancestry(book, number)
    schedules = {}
    for key in book.space.rates:
        early = 0.5 * steps_per_tick / (book.segments * book.segment_steps)
        rows = [
            (max(0.0, segment / book.segments - early), settings[key])
            for segment, settings in changes
        ]
        changed = [row for i, row in enumerate(rows) if i == 0 or row[1] != rows[i - 1][1]]
        if len(changed) > 1:
            schedules[key] = changed
    return schedules


def write_schedules(folder: Path, book: Book, number: int, steps_per_tick: int) -> dict[str, str]:
    """Write the rates of a member over time, as files that a single run can follow.

    Args:
        folder: Folder for the files.
        book: The trials.
        number: Number of the member.
        steps_per_tick: Environment steps of a tick, of each learner.

    Returns:
        Text of the schedule by key, as on the command line but without a file.
    """
    texts = {}
    for key, rows in schedules_of(book, number, steps_per_tick).items():
        lines = ["progress,value", *(f"{share:.6g},{value:.6g}" for share, value in rows)]
        replace_file(folder / f"{key.removeprefix('algo.')}.csv", "\n".join(lines) + "\n")
        texts[key] = "steps:" + ",".join(f"{share:.6g}={value:.6g}" for share, value in rows)
    return texts
