"""Measures candidates: one trial after another, or several that take turns, into rows of figures."""

import dataclasses
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl_fast.runs.hooks import ShouldStop
from jaxrl_fast.settings.run_settings import Run
from jaxrl_fast.tuning.candidates import Candidate
from jaxrl_fast.tuning.child import Child, Failure
from jaxrl_fast.tuning.search import GoOn, Outcome
from jaxrl_fast.tuning.talk import What


class Row(NamedTuple):
    """One candidate as measured: ``knob``, ``value``, ``effect`` and ``run`` as in `Candidate`.

    ``what`` of the run was measured; ``status``: "measured", or that of a `Failure` with its ``why``; ``facts``: what
    its trial reported; ``tick_hz``: ticks/s of each repeat, none where it did not run; ``peak_bytes``: the most memory
    that its process had (None: unknown); ``others``: the largest share of the CPU, 0 to 1, that other programs took
    during a repeat; ``took_s``: all seconds, with the start of the process; ``in_turn``: others took turns with it.
    """

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
        """The row as the search sees it."""
        larger_fails = not self.tick_hz and Failure(self.status, self.why).larger_fails
        return Outcome(self.rates(unit), larger_fails)


Spread = dict[str, float]
"""The ``median`` of some numbers, and their lower (``low``) and upper (``high``) quartile."""


class Settings(NamedTuple):
    """How trials are made.

    ``folder``: for their files; ``memory_cap``: bytes that each may use (None: a share of what is free); ``repeats``:
    of a candidate at most, each of at least ``repeat_s`` seconds; once they took ``enough_s`` seconds there are enough;
    ``stopped``: asked all the time, it ends a measurement with `child.Stopped`.
    """

    folder: Path
    memory_cap: float | None = None
    repeats: int = 5
    repeat_s: float = 1.0
    enough_s: float = 20.0
    stopped: ShouldStop = lambda: False


def measure(candidate: Candidate, what: What, go_on: GoOn, settings: Settings, unit: str = "sampling_hz") -> Row:
    """Measure one candidate until ``go_on(rates so far)`` is false."""
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
    """Start the process of a trial."""
    return Child(
        run, what, settings.folder, memory_cap=settings.memory_cap, repeat_s=settings.repeat_s, stopped=settings.stopped
    )


def spread(rates: Sequence[float]) -> Spread:
    """Median and quartiles of at least one number."""
    if len(rates) == 1:
        return dict.fromkeys(("median", "low", "high"), rates[0])
    low, median, high = statistics.quantiles(rates, n=4, method="inclusive")
    return {"median": median, "low": low, "high": high}


def _first_row(candidate: Candidate, what: What, answer: dict[str, Any] | Failure, began_s: float) -> Row:
    row = Row(*candidate[:2], candidate.effect, candidate.run, what, "measured", "", {}, (), None, 0.0, 0.0)
    row = row._replace(took_s=time.perf_counter() - began_s)
    if isinstance(answer, Failure):
        return row._replace(status=answer.status, why=answer.why)
    resolved = dataclasses.replace(candidate.run, placement=answer["placement"], devices=answer["devices"])
    return row._replace(run=resolved, facts=answer)


def _with_repeat(row: Row, answer: dict[str, Any] | Failure, began_s: float) -> Row:
    """The row with one repeat more. A candidate that fails in the middle has no rate: it would not finish a run."""
    took_s = time.perf_counter() - began_s
    if isinstance(answer, Failure):
        return row._replace(status=answer.status, why=answer.why, tick_hz=(), took_s=took_s)
    tick_hz = (*row.tick_hz, answer["ticks"] / answer["seconds"])
    others = max(row.others, answer["others"] or 0.0)
    return row._replace(tick_hz=tick_hz, peak_bytes=answer["peak_bytes"], others=others, took_s=took_s)
