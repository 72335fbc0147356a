"""Candidates as they are measured: rows of figures, from one trial after another or from several that take turns."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl_fast.settings.run_settings import Run
from jaxrl_fast.tuning.candidates import Candidate
from jaxrl_fast.tuning.child import Child, Failure
from jaxrl_fast.tuning.search import GoOn, Outcome
from jaxrl_fast.tuning.talk import What


class Row(NamedTuple):
    """One candidate as measured. ``facts`` are what its trial said of it; ``tick_hz`` are ticks/s, a number a repeat,
    none where it did not run (``why``). ``others`` is the largest share of the CPU that other programs took during a
    repeat, ``took_s`` everything, with the start of the process; ``in_turn`` says that others took turns with it."""

    knob: str
    value: Any
    effect: str
    run: Run
    what: What
    status: str
    why: str
    facts: dict[str, Any]
    tick_hz: tuple[float, ...]
    peak_bytes: int | None
    others: float
    took_s: float
    in_turn: bool = False

    def rates(self, unit: str) -> tuple[float, ...]:
        """Of every repeat, over all seeds: ``sampling_hz`` (environment steps/s), ``update_hz`` or ``update_frame_hz``
        (updates/s times the batch size)."""
        facts = self.facts
        if not self.tick_hz:
            return ()
        steps, updates = facts["num_envs"] * facts["rollout_length"], facts["updates_per_tick"]
        amounts = {"sampling_hz": steps, "update_hz": updates, "update_frame_hz": updates * facts["batch_size"]}
        return tuple(hz * facts["num_seeds"] * amounts[unit] for hz in self.tick_hz)

    def outcome(self, unit: str = "sampling_hz") -> Outcome:
        """What the search sees of it."""
        larger_fails = not self.tick_hz and Failure(self.status, self.why).larger_fails
        return Outcome(self.rates(unit), larger_fails)


class Spread(NamedTuple):
    """Median and quartiles."""

    median: float
    low: float
    high: float


class Settings(NamedTuple):
    """How trials are made: where their files go, the memory that each may use in bytes (None: a share of what is free),
    how often and how long each is repeated; once a candidate's repeats took ``enough_s`` seconds, there are enough.
    ``stopped`` is asked all the time, and ends a measurement with `child.Stopped`."""

    folder: Path
    memory_cap: float | None = None
    repeats: int = 5
    repeat_s: float = 1.0
    enough_s: float = 20.0
    stopped: Callable[[], bool] = lambda: False


def measure(candidate: Candidate, what: What, go_on: GoOn, settings: Settings, unit: str = "sampling_hz") -> Row:
    """Measure one candidate for as long as ``go_on(rates so far)`` says so."""
    began_s = time.perf_counter()
    with start(candidate.run, what, settings) as child:
        row = _first_row(candidate, what, child.ready(), began_s)
        ready_s = row.took_s
        while row.status == "measured" and go_on(row.rates(unit)):
            row = _with_repeat(row, child.repeat(), began_s)
            if row.took_s - ready_s > settings.enough_s:
                break
    return row


def measure_in_turn(candidates: Sequence[tuple[Candidate, What]], settings: Settings) -> list[Row]:
    """Measure several side by side: all are compiled at the same time and then repeated by turns, so that a machine
    that slows down slows all of them. Ratios within a round are what to compare."""
    began_s = time.perf_counter()
    with ExitStack() as stack:
        children = [stack.enter_context(start(c.run, what, settings)) for c, what in candidates]
        rows = []
        for (candidate, what), child in zip(candidates, children, strict=True):
            rows.append(_first_row(candidate, what, child.ready(), began_s)._replace(in_turn=True))
        for _ in range(settings.repeats):
            for i, child in enumerate(children):
                if rows[i].status == "measured":
                    rows[i] = _with_repeat(rows[i], child.repeat(), began_s)
    return rows


def start(run: Run, what: What, settings: Settings) -> Child:
    """The process of a trial."""
    return Child(
        run, what, settings.folder, memory_cap=settings.memory_cap, repeat_s=settings.repeat_s, stopped=settings.stopped
    )


def spread(rates: Sequence[float]) -> Spread:
    """Median and quartiles of at least one number."""
    if len(rates) == 1:
        return Spread(rates[0], rates[0], rates[0])
    low, median, high = statistics.quantiles(rates, n=4, method="inclusive")
    return Spread(median, low, high)


def _first_row(candidate: Candidate, what: What, answer: dict[str, Any] | Failure, began_s: float) -> Row:
    row = Row(*candidate[:2], candidate.effect, candidate.run, what, "measured", "", {}, (), None, 0.0, 0.0)
    row = row._replace(took_s=time.perf_counter() - began_s)
    if isinstance(answer, Failure):
        return row._replace(status=answer.status, why=answer.why)
    settled = dataclasses.replace(candidate.run, placement=answer["placement"], devices=answer["devices"])
    return row._replace(run=settled, facts=answer)


def _with_repeat(row: Row, answer: dict[str, Any] | Failure, began_s: float) -> Row:
    """A candidate that ends in the middle has no rate: it would not have ended the run."""
    took_s = time.perf_counter() - began_s
    if isinstance(answer, Failure):
        return row._replace(status=answer.status, why=answer.why, tick_hz=(), took_s=took_s)
    tick_hz = (*row.tick_hz, answer["ticks"] / answer["seconds"])
    others = max(row.others, answer["others"] or 0.0)
    return row._replace(tick_hz=tick_hz, peak_bytes=answer["peak_bytes"], others=others, took_s=took_s)
