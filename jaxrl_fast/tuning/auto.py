"""``num_envs=auto`` and ``overlap=auto``: as found here before, else by a short measurement where the run is long."""

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from math import log2
from pathlib import Path

from jaxrl_fast import envs
from jaxrl_fast.commands import tuning_cache
from jaxrl_fast.commands.run_config import Run
from jaxrl_fast.commands.tuning_cache import Finding
from jaxrl_fast.learning.run_graph import Overlap
from jaxrl_fast.runtime import cluster
from jaxrl_fast.settings.machine import AUTO
from jaxrl_fast.training.callbacks import Tell
from jaxrl_fast.training.progress import clock
from jaxrl_fast.tuning.candidates import NO_EFFECT, Candidate, at_width, widths
from jaxrl_fast.tuning.measuring import Row, Settings, measure, measure_in_turn
from jaxrl_fast.tuning.search import chosen, patience

WORTH_S = 600.0
"""Seconds; nothing is measured for a run that would end sooner."""
REPEATS, REPEAT_S = 3, 0.5
FACTORS = (0.25, 4.0)
"""Widths that are measured beside the environment's own, as multiples of it."""


def resolve(run: Run, *, may_measure: bool, tell: Tell = lambda line: print(line, flush=True)) -> Run:
    """The run with the number of environments that is fastest here, and the sizes that go with it; ``tell`` gets a
    line. Without a finding it is measured, if ``may_measure`` and the run is long; else the environment's own number
    stays.

    Raises:
        ValueError: the run is shared by several processes, which might choose differently.
    """
    if not run.auto_width:
        return run
    refuse_several(run, "num_envs=auto", "a number (python -m jaxrl_fast.autotune finds one)")
    asked = dataclasses.replace(run, auto_width=False)
    finding = tuning_cache.look_up(tuning_cache.make_key(asked, tuning_cache.this_device()))
    if finding is None and not may_measure:
        tell(f"num_envs=auto: nothing was measured here: {asked.num_envs} environments, as without it")
    if finding is None and may_measure:
        finding = look_around(asked, tell)
    if finding is None:
        return asked
    tell(
        f"num_envs=auto: {finding.learning['num_envs']} environments, measured here {finding.found} ({finding.effect})"
    )
    placed = {key: value for key, value in finding.free.items() if key in ("placement", "devices")}
    return tuning_cache.apply(asked, {**finding.learning, **placed})


def refuse_several(run: Run, word: str, instead: str) -> None:
    """Refuse ``word`` where several processes share the run, and might choose differently; ``instead``: what to write.

    Raises:
        ValueError: they do.
    """
    if run.processes or (run.distributed == "auto" and cluster.find()):
        raise ValueError(f"{word} is for a single process: write {instead}")


def look_around(asked: Run, tell: Tell) -> Finding | None:
    """Measure the environment's own number and, if the run is long enough to be worth it, a few around it."""
    legal, _ = widths(asked, learns=True)
    nearest = {min(legal, key=lambda w: (abs(log2(w / asked.num_envs / factor)), w)) for factor in FACTORS}
    others = sorted({asked.num_envs, *nearest})
    doing = f"looks at {', '.join(map(str, others))} environments"
    words = "num_envs=auto", f"{asked.num_envs} environments, as without it", doing
    own, ways = at_width(asked, asked.num_envs), [at_width(asked, width) for width in others]
    return conclude(asked, measure_if_long(own, ways, WORTH_S, REPEATS, words, tell))


def measure_if_long(
    own: Candidate, candidates: Sequence[Candidate], worth_s: float, repeats: int, words: Sequence[str], tell: Tell
) -> list[Row]:
    """Measure ``candidates`` in turn if the run, with ``own``, takes ``worth_s`` seconds or more; empty if it does not,
    or does not run. ``words``, for ``tell``: the key, what follows if nothing is measured, and if something is."""
    key, otherwise, doing = words
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(Path(folder), repeats=repeats, repeat_s=REPEAT_S)
        alone = measure(own, "training", patience([], 1), settings)
        if not alone.tick_hz:
            return []
        run_s = own.run.total_steps * own.run.num_seeds / alone.outcome().rate
        if run_s < worth_s:
            tell(f"{key}: nothing was measured here, and the run takes about {clock(run_s)}: {otherwise}")
            return []
        tell(f"{key}: the run takes about {clock(run_s)}: {doing}")
        return measure_in_turn([(candidate, "training") for candidate in candidates], settings)


def conclude(asked: Run, rows: Sequence[Row]) -> Finding | None:
    """The fastest of the measured widths as a finding, which is saved; None where nothing ran."""
    best = chosen({row.value: row.outcome() for row in rows}, asked.num_envs)
    if best is None:
        return None
    row = next(row for row in rows if row.value == best)
    finding = Finding(
        tuning_cache.sizes_of(row.run), {}, row.effect, time.strftime("on %Y-%m-%d by a short look"), True
    )
    tuning_cache.remember(tuning_cache.make_key(asked, tuning_cache.device_of(row.facts)), finding)
    return finding


GAIN = 1.05
OVERLAP_WORTH_S = 1_800.0
"""Seconds; nothing is measured for a run that would end sooner: several programs are compiled for it."""
OVERLAP_REPEATS = 5
OBJECTIVE = "overlap"
"""Of findings, beside the autotuner's."""
EFFECTS: dict[Overlap, str] = {
    "sampling": "acts on parameters that are a tick old",
    "actor_critic": "actor and critic learn from each other's parameters of a tick before",
    "all": "acts on parameters that are a tick old, and actor and critic learn from each other's of a tick before",
}


def resolve_overlap(run: Run, *, may_measure: bool, tell: Tell = lambda line: print(line, flush=True)) -> Run:
    """The run with the overlap, and the placement that goes with it, that is fastest here; ``tell`` gets a line.
    Without a finding it is measured, if ``may_measure`` and the run is long; else nothing lags.

    Raises:
        ValueError: the run is shared by several processes, which might choose differently.
    """
    if not run.auto_overlap:
        return run
    refuse_several(run, "overlap=auto", f"one of none, {', '.join(EFFECTS)}")
    asked, device = dataclasses.replace(run, auto_overlap=False), tuning_cache.this_device()
    finding = tuning_cache.look_up(tuning_cache.make_key(asked, device, OBJECTIVE))
    if finding is None and not may_measure:
        tell("overlap=auto: nothing was measured here: nothing lags")
    if finding is None and may_measure:
        finding = look_around_overlap(asked, device.number, tell)
    if finding is None:
        return asked
    tell(f"overlap=auto: {finding.effect}, measured here {finding.found}")
    return tuning_cache.apply(asked, {**finding.learning, **finding.free})


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


def look_around_overlap(asked: Run, devices: int, tell: Tell) -> Finding | None:
    """Measure the run as it is and, if it is long enough to be worth it, in turn with every other way."""
    own, others = Candidate("overlap", "none", asked, NO_EFFECT), list(ways(asked, devices))
    if not others:
        tell("overlap=auto: nothing could run at the same time here: nothing lags")
        return None
    words = "overlap=auto", "nothing lags", f"measures none, {', '.join(str(other.value) for other in others)} in turn"
    return conclude_overlap(asked, measure_if_long(own, [own, *others], OVERLAP_WORTH_S, OVERLAP_REPEATS, words, tell))


def conclude_overlap(asked: Run, rows: Sequence[Row]) -> Finding | None:
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
    tuning_cache.remember(tuning_cache.make_key(asked, tuning_cache.device_of(own.facts), OBJECTIVE), finding)
    return finding


def _placed(asked: Run, row: Row) -> dict[str, str | int]:
    """Where it runs, if the run does not say so itself."""
    if row.run.placement == asked.placement or row.run.devices is None:
        return {}
    return {"placement": row.run.placement, "devices": row.run.devices}
