"""A sweep: the width first, then each other knob at the best so far, then what bounds the best. Kept as it grows."""

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

from jaxrl_fast import machine
from jaxrl_fast.config import Run
from jaxrl_fast.tuning import candidates
from jaxrl_fast.tuning.candidates import FREE, ON_REQUEST, Candidate, at_width, widths
from jaxrl_fast.tuning.measuring import Row, Settings, measure, measure_in_turn
from jaxrl_fast.tuning.search import GAIN, GoOn, Outcome, chosen, find_option, find_size
from jaxrl_fast.tuning.talk import What

Objective = Literal["training", "sampling"]
"""What is to be fast: the whole train step at fixed learning settings, or its sampling alone."""
PARTS: dict[Objective, tuple[What, ...]] = {
    "training": ("training", "sampling", "environments", "updates"),
    "sampling": ("sampling", "environments"),
}
"""What is measured side by side at the end, beginning with the objective."""


class Plan(NamedTuple):
    """What to vary in the run that was asked for. Knobs that were ``requested`` may be chosen whatever they do."""

    asked: Run
    objective: Objective
    knobs: tuple[str, ...]
    requested: tuple[str, ...] = ()
    max_num_envs: int | None = None


class Record:
    """All that a sweep has measured so far: what was asked for (``own``), the best ``width``, the best of all, and the
    parts that bound it. ``keep`` is told of every row; ``complete`` says that the search for a width has ended."""

    def __init__(self, keep: Callable[["Record", Row], None] = lambda record, row: None) -> None:
        self.rows: list[Row] = []
        self.bounds: list[Row] = []
        self.notes: list[str] = []
        self.own: Row | None = None
        self.width: Row | None = None
        self.best: Row | None = None
        self.complete = False
        self.keep = keep

    def add(self, row: Row) -> None:
        """Take in a row."""
        self.rows.append(row)
        self.keep(self, row)


def sweep(plan: Plan, record: Record, settings: Settings) -> None:
    """Measure everything that the plan asks for, into ``record``.

    Raises:
        ValueError: not even what was asked for makes a run.
    """
    try_widths(plan, record, settings)
    if record.best is None:
        return
    options: dict[str, Callable[[Run, int], Iterable[Candidate]]] = {
        "placement": candidates.placements,
        "devices": candidates.device_counts,
        "pool": lambda run, _: candidates.pools(run, machine.cpu_cores()),
        "updates_per_tick": lambda run, _: candidates.bursts(run),
        "batch_size": lambda run, _: candidates.batches(run),
    }
    for knob, make in options.items():
        if knob in plan.knobs and not (plan.objective == "sampling" and knob in ON_REQUEST):
            try_options(plan, record, settings, list(make(record.best.run, record.best.facts["available"])))
    best = Candidate("bound", "", record.best.run, record.best.effect)
    record.bounds = measure_in_turn([(best, what) for what in PARTS[plan.objective]], settings)


def try_widths(plan: Plan, record: Record, settings: Settings) -> None:
    """Find the fastest number of environments; without the knob, measure the one that was asked for."""
    learns, own = plan.objective == "training", plan.asked.num_envs
    found = widths(plan.asked, learns=learns, max_num_envs=plan.max_num_envs)
    legal = found.legal if "num_envs" in plan.knobs else [own]
    record.notes += found.notes if len(legal) > 1 else []
    rows: dict[int, Row] = {}

    def ask(width: int, go_on: GoOn) -> Outcome:
        row = measure(at_width(plan.asked, width, learns=learns), plan.objective, go_on, settings)
        if not rows and row.status == "refused":
            raise ValueError(row.why)
        record.notes += row.facts.get("told", []) if not rows else []
        rows[width] = row
        best = chosen({w: r.outcome() for w, r in rows.items()}, own)
        record.best = record.width = rows.get(best or 0)
        record.own = rows[own]
        record.add(row)
        return row.outcome()

    find_size(ask, legal, own, repeats=settings.repeats)
    record.complete = len(legal) > 1


def try_options(plan: Plan, record: Record, settings: Settings, options: list[Candidate]) -> None:
    """Measure other values of a knob against the best so far, and take one that is clearly faster, if it may be."""
    assert record.best is not None
    unit = "update_frame_hz" if options and options[0].knob == "batch_size" else "sampling_hz"

    def ask(candidate: Candidate, go_on: GoOn) -> Outcome:
        row = measure(candidate, plan.objective, go_on, settings, unit)
        allowed = candidate.knob in FREE or candidate.knob in plan.requested
        if allowed and record.best and row.outcome(unit).rate > record.best.outcome(unit).rate * (1 + GAIN):
            record.best = row
        record.add(row)
        return row.outcome(unit)

    find_option(ask, options, record.best.outcome(unit), repeats=settings.repeats)


def left_open(asked: Run, named: tuple[str, ...]) -> tuple[str, ...]:
    """The knobs to vary: those that were named, or all but those that the run fixes."""
    if named:
        return named
    fixed = {
        "placement": asked.placement != machine.AUTO or asked.devices is not None,
        "devices": asked.devices is not None,
        "pool": asked.pool.get("workers") is not None,
    }
    return tuple(knob for knob in candidates.KNOBS if not fixed.get(knob))
