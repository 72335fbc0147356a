"""A sweep: measures the width first, then each other setting with the best so far, then the bounds
of the best.
"""

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

from jaxrl_fast.settings import machine
from jaxrl_fast.settings.run import Run
from jaxrl_fast.tuning import candidates
from jaxrl_fast.tuning.candidates import FREE, ON_REQUEST, Candidate, at_width, widths
from jaxrl_fast.tuning.measuring import Row, Settings, What, measure, measure_in_turn
from jaxrl_fast.tuning.search import (
    GAIN,
    GoOn,
    Outcome,
    T,
    chosen,
    finalists,
    find_option,
    find_size,
)

Objective = Literal["training", "sampling"]
"""Quantity to maximize: speed of the whole train step with constant learning settings, or of its
sampling alone.
"""
PARTS: dict[Objective, tuple[What, ...]] = {
    "training": ("training", "sampling", "environments", "updates"),
    "sampling": ("sampling", "environments"),
}
"""Parts that are measured in turn at the end, starting with the objective."""
STARTS = 2
"""Number of processes in which close candidates are measured in turn."""


class SweepPlan(NamedTuple):
    """What to vary in a run.

    Attributes:
        asked: The run.
        objective: Quantity to maximize.
        knobs: Settings to vary.
        requested: Settings that the user named, which are adopted even if they change learning.
        max_num_envs: Largest number of environments; None for the default limit.
    """

    asked: Run
    objective: Objective
    knobs: tuple[str, ...]
    requested: tuple[str, ...] = ()
    max_num_envs: int | None = None


class Record:
    """Results of a sweep.

    Attributes:
        rows: Results so far.
        bounds: Results of the best run and its parts, measured in turn.
        asked: Result of the user's run, in turn with these.
        notes: Messages.
        own: Result of the user's run.
        width: Result of the best number of environments.
        best: Best result.
        complete: Whether the search for a width has ended.
        on_row: ``(record, row)``, called after each result.
    """

    def __init__(self, on_row: Callable[["Record", Row], None] = lambda record, row: None) -> None:
        self.rows: list[Row] = []
        self.bounds: list[Row] = []
        self.asked: Row | None = None
        self.notes: list[str] = []
        self.own: Row | None = None
        self.width: Row | None = None
        self.best: Row | None = None
        self.complete = False
        self.on_row = on_row

    def add(self, row: Row, instead_of: Row | None = None) -> None:
        """Add a result, or replace another one."""
        if instead_of is None:
            self.rows.append(row)
        else:
            self.rows[self.rows.index(instead_of)] = row
            self.own, self.width, self.best = (
                row if old is instead_of else old for old in (self.own, self.width, self.best)
            )
        self.on_row(self, row)


def run_knobs(plan: SweepPlan, record: Record, settings: Settings) -> None:
    """Measure everything in a plan.

    Args:
        plan: What to vary.
        record: Receives the results.
        settings: Settings of the trials.

    Raises:
        ValueError: The user's run is not possible.
    """
    try_widths(plan, record, settings)
    if record.best is None:
        return
    options: dict[str, Callable[[Run, int], Iterable[Candidate]]] = {
        "placement": candidates.placement_choices,
        "devices": candidates.device_counts,
        "pool": lambda run, _: candidates.pools(run, machine.cpu_cores()),
        "updates_per_tick": lambda run, _: candidates.bursts(run),
        "batch_size": lambda run, _: candidates.batch_sizes(run),
    }
    for knob, make in options.items():
        if knob in plan.knobs and not (plan.objective == "sampling" and knob in ON_REQUEST):
            try_options(
                plan, record, settings, list(make(record.best.run, record.best.facts["available"]))
            )
    measure_bounds(plan, record, settings)


def measure_bounds(plan: SweepPlan, record: Record, settings: Settings) -> None:
    """Measure in turn the best run, its parts and, if it differs, the user's run.

    Args:
        plan: What to vary.
        record: Receives the results.
        settings: Settings of the trials.
    """
    assert record.best is not None
    best, requested = Candidate("bound", "", record.best.run, record.best.effect), record.own
    turns: list[tuple[Candidate, What]] = [(best, what) for what in PARTS[plan.objective]]
    if requested is not None and requested.tick_hz and requested.run != record.best.run:
        turns.append((Candidate("asked", "", requested.run, requested.effect), plan.objective))
    rows = measure_in_turn(turns, settings)
    record.bounds = [row for row in rows if row.knob == "bound"]
    record.asked = next((row for row in rows if row.knob == "asked"), None)


def try_widths(plan: SweepPlan, record: Record, settings: Settings) -> None:
    """Search for the fastest number of environments; without this setting in the plan, measure the
    user's.

    Args:
        plan: What to vary.
        record: Receives the results.
        settings: Settings of the trials.
    """
    learns, requested = plan.objective == "training", plan.asked.num_envs
    legal, notes = widths(plan.asked, learns=learns, max_num_envs=plan.max_num_envs)
    legal = legal if "num_envs" in plan.knobs else [requested]
    record.notes += notes if len(legal) > 1 else []
    rows: dict[int, Row] = {}

    def take() -> None:
        best = chosen({width: row.outcome() for width, row in rows.items()}, requested)
        record.best = record.width = rows.get(best or 0)
        record.own = rows.get(requested, record.own)

    def ask(width: int, go_on: GoOn) -> Outcome:
        row = measure(at_width(plan.asked, width, learns=learns), plan.objective, go_on, settings)
        if not rows and row.status == "refused":
            raise ValueError(row.why)
        record.notes += row.facts.get("events", []) if not rows else []
        rows[width] = row
        take()
        record.add(row)
        return row.outcome()

    find_size(
        ask, legal, requested, repeats=settings.repeats if len(legal) == 1 else screening(settings)
    )
    rows = play_off(record, rows, requested, settings)
    take()
    record.complete = len(legal) > 1


def try_options(
    plan: SweepPlan, record: Record, settings: Settings, options: list[Candidate]
) -> None:
    """Measure other values of a setting against the best so far, and adopt a clearly faster one if
    allowed.

    Args:
        plan: What to vary.
        record: Receives the results.
        settings: Settings of the trials.
        options: Candidates of one setting.
    """
    assert record.best is not None
    unit = "update_frame_hz" if options and options[0].knob == "batch_size" else "sampling_hz"
    incumbent = (record.best.knob, record.best.value)
    rows = {incumbent: record.best}

    def take() -> None:
        fastest = max(rows.values(), key=lambda row: row.outcome(unit).rate)
        before = rows[incumbent].outcome(unit).rate if incumbent in rows else 0.0
        record.best = (
            fastest if fastest.outcome(unit).rate > before * (1 + GAIN) else rows[incumbent]
        )

    def ask(candidate: Candidate, go_on: GoOn) -> Outcome:
        row = measure(candidate, plan.objective, go_on, settings, unit)
        if candidate.knob in FREE or candidate.knob in plan.requested:
            rows[candidate.knob, candidate.value] = row
            take()
        record.add(row)
        return row.outcome(unit)

    find_option(ask, options, record.best.outcome(unit), repeats=screening(settings))
    rows = play_off(record, rows, incumbent, settings, unit)
    take()


def screening(settings: Settings) -> int:
    """Return the repeats of a candidate before the fastest are measured in turn.

    Args:
        settings: Settings of the trials.

    Returns:
        Number of repeats.
    """
    return (settings.repeats + 1) // 2


def play_off(
    record: Record, rows: dict[T, Row], requested: T, settings: Settings, unit: str = "sampling_hz"
) -> dict[T, Row]:
    """Measure the fastest candidates again in turn, and return only these.

    Between their first measurements the machine's speed may have changed by more than they differ,
    and processes with one program may differ in speed, so each candidate is started several times.

    Args:
        record: Receives the results.
        rows: Results by candidate.
        requested: The user's candidate.
        settings: Settings of the trials.
        unit: Unit of the rates.

    Returns:
        Results of the fastest; ``rows`` if none are close, or one fails.
    """
    names = finalists({name: row.outcome(unit) for name, row in rows.items()}, requested)
    if not names:
        return rows
    before = [rows[name] for name in names]
    turns = [(Candidate(row.knob, row.value, row.run, row.effect), row.what) for row in before]
    starts = [
        measure_in_turn(turns, settings._replace(repeats=screening(settings)))
        for _ in range(STARTS)
    ]
    ended = [row for rows in starts for row in rows if not row.tick_hz]
    if ended:
        record.notes += [
            f"{row.knob}={row.value} in turn with others: {row.status}: {row.why}" for row in ended
        ]
        return rows
    after: dict[T, Row] = {}
    for name, old, *new in zip(names, before, *starts, strict=True):
        after[name] = old._replace(
            tick_hz=tuple(hz for row in new for hz in row.tick_hz),
            in_turn=True,
            others=max(row.others for row in new),
            took_s=old.took_s + sum(row.took_s for row in new) / len(before),
        )
        record.add(after[name], instead_of=old)
    return after


def left_open(run: Run, named: tuple[str, ...]) -> tuple[str, ...]:
    """Return the settings to vary.

    Args:
        run: Run.
        named: Settings that the user named.

    Returns:
        ``named``, or all settings that the run does not set.
    """
    if named:
        return named
    fixed = {
        "placement": run.placement != machine.AUTO or run.devices is not None,
        "devices": run.devices is not None,
        "pool": run.pool.get("workers") is not None,
    }
    return tuple(knob for knob in candidates.KNOBS if not fixed.get(knob))
