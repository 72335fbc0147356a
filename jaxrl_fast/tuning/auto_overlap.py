"""``overlap=auto``: what may lag a tick, found here before, else by a short measurement where the run is long.

The rule: nothing lags, unless letting it makes at least `GAIN` times the steps a second, by the median of the rounds in
which both were measured in turn, and more in every round. A lag changes learning, so a small gain is not worth it.
"""

import dataclasses
import statistics
import time
from collections.abc import Iterator, Sequence

import envs
from jaxrl_fast.fragments.learners import Overlap
from jaxrl_fast.runs.hooks import Tell
from jaxrl_fast.settings import findings
from jaxrl_fast.settings.findings import Finding
from jaxrl_fast.settings.machine import AUTO
from jaxrl_fast.settings.run_settings import Run
from jaxrl_fast.tuning.auto import measure_if_long, refuse_several
from jaxrl_fast.tuning.candidates import NO_EFFECT, Candidate
from jaxrl_fast.tuning.measuring import Row

GAIN = 1.05
WORTH_S = 1_800.0
"""Seconds; nothing is measured for a run that would end sooner: several programs are compiled for it."""
REPEATS = 5
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
    words = "overlap=auto", "nothing lags", f"measures none, {', '.join(str(other.value) for other in others)} in turn"
    return conclude(asked, measure_if_long(own, [own, *others], WORTH_S, REPEATS, words, tell))


def conclude(asked: Run, rows: Sequence[Row]) -> Finding | None:
    """What the rule says of ``rows``, of which the first is without overlap, as a finding, which is saved; None where
    that one did not run."""
    if not rows or not rows[0].tick_hz:
        return None
    own, *others = rows
    # How many times the steps/s of ``own``, in each round.
    gains = [(row, [a / b for a, b in zip(row.tick_hz, own.tick_hz, strict=False)]) for row in others if row.tick_hz]
    learning, free, effect = {"overlap": "none"}, dict[str, str | int](), "none: nothing else ran"
    if gains:
        row, gain = max(gains, key=lambda pair: statistics.median(pair[1]))
        median = statistics.median(gain)
        made = f"{median:.2f} × [{min(gain):.2f}, {max(gain):.2f}] the steps/s of none"
        effect = f"none: the fastest other, {row.value}, made {made}"
        if median >= GAIN and min(gain) > 1:
            learning, free, effect = {"overlap": row.value}, _placed(asked, row), f"{row.value} ({row.effect}): {made}"
    finding = Finding(learning, free, effect, time.strftime("on %Y-%m-%d"), True)
    findings.remember(findings.make_key(asked, findings.device_of(own.facts), OBJECTIVE), finding)
    return finding


def _placed(asked: Run, row: Row) -> dict[str, str | int]:
    """Where it runs, if the run does not say so itself."""
    if row.run.placement == asked.placement or row.run.devices is None:
        return {}
    return {"placement": row.run.placement, "devices": row.run.devices}
