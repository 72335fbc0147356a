"""``overlap=auto``: what may lag a tick, found here before, else by a short measurement where the run is long.

The rule: nothing lags, unless letting it makes at least `GAIN` times the steps a second, by the median of the rounds in
which both were measured in turn, and more in every round. A lag changes learning, so a small gain is not worth it.
"""

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import envs
from jaxrl_fast.fragments.build import Overlap
from jaxrl_fast.runs.hooks import Tell
from jaxrl_fast.runs.progress import clock
from jaxrl_fast.settings import findings
from jaxrl_fast.settings.findings import Finding
from jaxrl_fast.settings.machine import AUTO
from jaxrl_fast.settings.run_settings import Run
from jaxrl_fast.tuning.auto import refuse_several
from jaxrl_fast.tuning.candidates import NO_EFFECT, Candidate
from jaxrl_fast.tuning.measuring import Row, Settings, measure, measure_in_turn
from jaxrl_fast.tuning.search import patience

GAIN = 1.05
WORTH_S = 1_800.0
"""Seconds; nothing is measured for a run that would end sooner: several programs are compiled for it."""
REPEATS, REPEAT_S = 5, 0.5
OBJECTIVE = "overlap"
"""Of findings, beside the autotuner's."""
EFFECTS: dict[Overlap, str] = {
    "sampling": "acts on parameters that are a tick old",
    "actor_critic": "actor and critic learn from each other's parameters of a tick before",
    "all": "acts on parameters that are a tick old, and actor and critic learn from each other's of a tick before",
}


def resolve(run: Run, *, may_measure: bool, tell: Tell = lambda line: print(line, flush=True)) -> Run:
    """The run with the overlap, and the placement that goes with it, that is fastest here; ``tell`` gets a line.
    Without a finding it is measured, if ``may_measure`` and the run is long; else nothing lags.

    Raises:
        ValueError: the run is shared by several processes, which might choose differently.
    """
    if not run.auto_overlap:
        return run
    refuse_several(run, "overlap=auto", f"one of none, {', '.join(EFFECTS)}")
    asked, device = dataclasses.replace(run, auto_overlap=False), findings.this_device()
    finding = findings.look_up(findings.make_key(asked, device, OBJECTIVE))
    if finding is None and not may_measure:
        tell("overlap=auto: nothing was measured here: nothing lags")
    if finding is None and may_measure:
        finding = look_around(asked, device.number, tell)
    if finding is None:
        return asked
    tell(f"overlap=auto: {finding.effect}, measured here {finding.found}")
    return findings.apply(asked, {**finding.learning, **finding.free})


def ways(asked: Run, devices: int) -> Iterator[Candidate]:
    """What could lag, each with the placement under which it lets things run at the same time."""
    if envs.is_host(asked.env):
        yield Candidate("overlap", "sampling", dataclasses.replace(asked, overlap="sampling"), EFFECTS["sampling"])
        return
    together: tuple[tuple[Overlap, str, int], ...] = (
        ("actor_critic", "actor_critic", 2),
        ("all", "actor_critic", 2),
        ("sampling", "sampler_learner", devices),
    )
    for overlap, placement, count in together if devices > 1 else ():
        if asked.placement in (AUTO, placement) and asked.devices in (None, count):
            run = dataclasses.replace(asked, overlap=overlap, placement=placement, devices=count)
            yield Candidate("overlap", overlap, run, EFFECTS[overlap])


def look_around(asked: Run, devices: int, tell: Tell) -> Finding | None:
    """Measure the run as it is and, if it is long enough to be worth it, in turn with every other way."""
    own, others = Candidate("overlap", "none", asked, NO_EFFECT), list(ways(asked, devices))
    if not others:
        tell("overlap=auto: nothing could run at the same time here: nothing lags")
        return None
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(Path(folder), repeats=REPEATS, repeat_s=REPEAT_S)
        alone = measure(own, "training", patience([], 1), settings)
        if not alone.tick_hz:
            return None
        run_s = asked.total_steps * asked.num_seeds / alone.outcome().rate
        if run_s < WORTH_S:
            tell(f"overlap=auto: nothing was measured here, and the run takes about {clock(run_s)}: nothing lags")
            return None
        names = ", ".join(str(other.value) for other in others)
        tell(f"overlap=auto: the run takes about {clock(run_s)}: measures none, {names} in turn")
        rows = measure_in_turn([(candidate, "training") for candidate in (own, *others)], settings)
    return conclude(asked, rows)


def conclude(asked: Run, rows: Sequence[Row]) -> Finding | None:
    """What the rule says of ``rows``, of which the first is without overlap, as a finding, which is saved; None where
    that one did not run."""
    own, *others = rows
    if not own.tick_hz:
        return None
    gains = {row.value: _gains(row, own) for row in others if row.tick_hz}
    best = max(gains, key=lambda overlap: statistics.median(gains[overlap]), default=None)
    if best is None:
        learning, free, effect = {"overlap": "none"}, {}, "none: nothing else ran"
    else:
        row = next(row for row in others if row.value == best)
        least, median, most = min(gains[best]), statistics.median(gains[best]), max(gains[best])
        made = f"{median:.2f} × [{least:.2f}, {most:.2f}] the steps/s of none"
        worth = median >= GAIN and least > 1
        learning, free = {"overlap": best if worth else "none"}, _placed(asked, row) if worth else {}
        effect = f"{best} ({row.effect}): {made}" if worth else f"none: the fastest other, {best}, made {made}"
    finding = Finding(learning, free, effect, time.strftime("on %Y-%m-%d"), True)
    findings.remember(findings.make_key(asked, findings.device_of(own.facts), OBJECTIVE), finding)
    return finding


def _gains(row: Row, own: Row) -> list[float]:
    """How many times the steps/s of ``own``, in each round."""
    return [a / b for a, b in zip(row.tick_hz, own.tick_hz, strict=False)]


def _placed(asked: Run, row: Row) -> dict[str, str | int]:
    """Where it runs, if the run does not say so itself."""
    if row.run.placement == asked.placement or row.run.devices is None:
        return {}
    return {"placement": row.run.placement, "devices": row.run.devices}
