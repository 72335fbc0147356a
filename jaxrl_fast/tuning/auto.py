"""``num_envs=auto`` and ``overlap=auto``: from the cache, else by a short measurement if the run is
long.
"""

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from math import log2
from pathlib import Path

from jaxrl_fast import envs
from jaxrl_fast.commands import tuning_cache
from jaxrl_fast.commands.tuning_cache import Finding
from jaxrl_fast.learning.run_graph import Overlap
from jaxrl_fast.runtime import cluster
from jaxrl_fast.settings.machine import AUTO
from jaxrl_fast.settings.run import Run
from jaxrl_fast.training.callbacks import Tell
from jaxrl_fast.training.progress import clock
from jaxrl_fast.tuning.candidates import NO_EFFECT, Candidate, at_width, widths
from jaxrl_fast.tuning.measuring import Row, Settings, measure, measure_in_turn
from jaxrl_fast.tuning.search import chosen, patience

WORTH_S = 600.0
"""Expected seconds of a run from which its width is measured."""
REPEATS, REPEAT_S = 3, 0.5
FACTORS = (0.25, 4.0)
"""Measured widths in addition to the environment's default, as multiples of it."""


def resolve(
    run: Run, *, may_measure: bool, log: Tell = lambda line: print(line, flush=True)
) -> Run:
    """Set the number of environments that is fastest here, and the sizes that depend on it.

    Args:
        run: Run, which may have ``num_envs=auto``.
        may_measure: Whether to measure a long run without a cached result; else the environment's
            default is used.
        log: Receives a message.

    Returns:
        The run with a number of environments.
    """
    if not run.auto_width:
        return run
    refuse_several(run, "num_envs=auto", "a number (python -m jaxrl_fast.autotune finds one)")
    default = dataclasses.replace(run, auto_width=False)
    finding = tuning_cache.look_up(tuning_cache.make_key(default, tuning_cache.this_device()))
    if finding is None and not may_measure:
        log(
            f"num_envs=auto: no cached measurement on this machine: {default.num_envs} environments, the default"
        )
    if finding is None and may_measure:
        finding = look_around(default, log)
    if finding is None:
        return default
    log(
        f"num_envs=auto: {finding.learning['num_envs']} environments, measured here {finding.found} ({finding.effect})"
    )
    placed = {key: value for key, value in finding.free.items() if key in ("placement", "devices")}
    return tuning_cache.apply(default, {**finding.learning, **placed})


def refuse_several(run: Run, word: str, instead: str) -> None:
    """Check that a run has a single process, because several might select different values.

    Args:
        run: Run.
        word: Setting, for the message.
        instead: Supported setting, for the message.

    Raises:
        ValueError: Several processes share the run.
    """
    if run.processes or (run.distributed == "auto" and cluster.find()):
        raise ValueError(f"{word} is for a single process: write {instead}")


def look_around(default: Run, log: Tell) -> Finding | None:
    """Measure the environment's default width and, if the run is long enough, a few others.

    Args:
        default: Run with the default width.
        log: Receives messages.

    Returns:
        The fastest width, which is saved; None if nothing was measured.
    """
    legal, _ = widths(default, learns=True)
    nearest = {
        min(legal, key=lambda w: (abs(log2(w / default.num_envs / factor)), w))
        for factor in FACTORS
    }
    others = sorted({default.num_envs, *nearest})
    doing = f"measures {', '.join(map(str, others))} environments"
    messages = "num_envs=auto", f"{default.num_envs} environments, the default", doing
    baseline = at_width(default, default.num_envs)
    candidates = [at_width(default, width) for width in others]
    rows = measure_if_long(baseline, candidates, WORTH_S, REPEATS, messages, log)
    return conclude(default, rows)


def measure_if_long(
    baseline: Candidate,
    candidates: Sequence[Candidate],
    worth_s: float,
    repeats: int,
    messages: Sequence[str],
    log: Tell,
) -> list[Row]:
    """Measure candidates in turn if the run is long.

    Args:
        baseline: Candidate of the run, from which its duration is estimated.
        candidates: Candidates to compare.
        worth_s: Expected seconds of the run from which they are measured.
        repeats: Repeats of each candidate.
        messages: Parts of the messages: the key, the consequence without a measurement, and the
            measurement.
        log: Receives messages.

    Returns:
        Results; empty if the run is short or does not run.
    """
    key, otherwise, doing = messages
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(Path(folder), repeats=repeats, repeat_s=REPEAT_S)
        alone = measure(baseline, "training", patience([], 1), settings)
        if not alone.tick_hz:
            return []
        run_s = baseline.run.total_steps * baseline.run.num_seeds / alone.outcome().rate
        if run_s < worth_s:
            log(
                f"{key}: no cached measurement, and the run takes only about {clock(run_s)}: {otherwise}"
            )
            return []
        log(f"{key}: the run takes about {clock(run_s)}: {doing}")
        return measure_in_turn([(candidate, "training") for candidate in candidates], settings)


def conclude(default: Run, rows: Sequence[Row]) -> Finding | None:
    """Save the fastest of the measured widths.

    Args:
        default: Run with the default width.
        rows: Results.

    Returns:
        The fastest width; None if nothing ran.
    """
    best = chosen({row.value: row.outcome() for row in rows}, default.num_envs)
    if best is None:
        return None
    row = next(row for row in rows if row.value == best)
    finding = Finding(
        learning=tuning_cache.sizes_of(row.run),
        free={},
        effect=row.effect,
        found=time.strftime("on %Y-%m-%d by a short look"),
        quick=True,
    )
    tuning_cache.remember(
        tuning_cache.make_key(default, tuning_cache.device_of(row.facts)), finding
    )
    return finding


GAIN = 1.05
OVERLAP_WORTH_S = 1_800.0
"""Expected seconds of a run from which overlaps are measured, for which several programs are
compiled.
"""
OVERLAP_REPEATS = 5
OBJECTIVE = "overlap"
"""Objective of the cached results, in addition to the autotuner's."""
EFFECTS: dict[Overlap, str] = {
    "sampling": "sampling uses parameters that are a tick old",
    "actor_critic": "actor and critic use each other's parameters of the last tick",
    "all": "sampling uses parameters that are a tick old, actor and critic each other's of the last tick",
}


def resolve_overlap(
    run: Run, *, may_measure: bool, log: Tell = lambda line: print(line, flush=True)
) -> Run:
    """Set the overlap that is fastest here, and its placement.

    Args:
        run: Run, which may have ``overlap=auto``.
        may_measure: Whether to measure a long run without a cached result; else the overlap is
            "none".
        log: Receives a message.

    Returns:
        The run with an overlap.
    """
    if not run.auto_overlap:
        return run
    refuse_several(run, "overlap=auto", f"one of none, {', '.join(EFFECTS)}")
    default, device = dataclasses.replace(run, auto_overlap=False), tuning_cache.this_device()
    finding = tuning_cache.look_up(tuning_cache.make_key(default, device, OBJECTIVE))
    if finding is None and not may_measure:
        log("overlap=auto: no cached measurement on this machine: no overlap")
    if finding is None and may_measure:
        finding = look_around_overlap(default, device.number, log)
    if finding is None:
        return default
    log(f"overlap=auto: {finding.effect}, measured here {finding.found}")
    return tuning_cache.apply(default, {**finding.learning, **finding.free})


def ways(default: Run, devices: int) -> Iterator[Candidate]:
    """List the overlaps of a run, each with the placement that lets fragments run at the same time.

    Args:
        default: Run without overlap.
        devices: Number of devices.

    Returns:
        Candidates.
    """
    if envs.is_host(default.env):
        yield Candidate(
            "overlap",
            "sampling",
            dataclasses.replace(default, overlap="sampling"),
            EFFECTS["sampling"],
        )
        return
    together: tuple[tuple[Overlap, str, int], ...] = (
        ("actor_critic", "actor_critic", 2),
        ("all", "actor_critic", 2),
        ("sampling", "sampler_learner", devices),
    )
    for overlap, placement, count in together if devices > 1 else ():
        if default.placement in (AUTO, placement) and default.devices in (None, count):
            run = dataclasses.replace(default, overlap=overlap, placement=placement, devices=count)
            yield Candidate("overlap", overlap, run, EFFECTS[overlap])


def look_around_overlap(default: Run, devices: int, log: Tell) -> Finding | None:
    """Measure the run without overlap and, if it is long enough, in turn with every overlap.

    Args:
        default: Run without overlap.
        devices: Number of devices.
        log: Receives messages.

    Returns:
        The result, which is saved; None if nothing was measured.
    """
    baseline = Candidate("overlap", "none", default, NO_EFFECT)
    others = list(ways(default, devices))
    if not others:
        log("overlap=auto: nothing could run at the same time on this machine: no overlap")
        return None
    messages = (
        "overlap=auto",
        "no overlap",
        f"measures none, {', '.join(str(other.value) for other in others)} in turn",
    )
    return conclude_overlap(
        default,
        measure_if_long(
            baseline, [baseline, *others], OVERLAP_WORTH_S, OVERLAP_REPEATS, messages, log
        ),
    )


def conclude_overlap(default: Run, rows: Sequence[Row]) -> Finding | None:
    """Save the overlap that is clearly faster than none, or none.

    Args:
        default: Run without overlap.
        rows: Results, the first without overlap.

    Returns:
        The result; None if the run without overlap did not run.
    """
    if not rows or not rows[0].tick_hz:
        return None
    baseline, *others = rows
    # Steps/s relative to ``baseline`` in each round.
    gains = [
        (row, [a / b for a, b in zip(row.tick_hz, baseline.tick_hz, strict=False)])
        for row in others
        if row.tick_hz
    ]
    learning, free, effect = {"overlap": "none"}, dict[str, str | int](), "none: nothing else ran"
    if gains:
        row, gain = max(gains, key=lambda pair: statistics.median(pair[1]))
        median = statistics.median(gain)
        made = f"{median:.2f} × [{min(gain):.2f}, {max(gain):.2f}] the steps/s of none"
        effect = f"none: the fastest other, {row.value}, made {made}"
        if median >= GAIN and min(gain) > 1:
            learning, free, effect = (
                {"overlap": row.value},
                _placed(default, row),
                f"{row.value} ({row.effect}): {made}",
            )
    finding = Finding(
        learning=learning, free=free, effect=effect, found=time.strftime("on %Y-%m-%d"), quick=True
    )
    tuning_cache.remember(
        tuning_cache.make_key(default, tuning_cache.device_of(baseline.facts), OBJECTIVE), finding
    )
    return finding


def _placed(default: Run, row: Row) -> dict[str, str | int]:
    """Return the placement and devices, if the run does not set them."""
    if row.run.placement == default.placement or row.run.devices is None:
        return {}
    return {"placement": row.run.placement_name, "devices": row.run.devices}
