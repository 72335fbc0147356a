"""``num_envs=auto``: the number of environments found here before, else a short measurement where the run is long."""

import dataclasses
import tempfile
import time
from collections.abc import Sequence
from math import log2
from pathlib import Path

from jaxrl_fast.runs.hooks import Tell
from jaxrl_fast.runs.progress import clock
from jaxrl_fast.settings import findings
from jaxrl_fast.settings.findings import Finding
from jaxrl_fast.settings.run_settings import Run
from jaxrl_fast.training import cluster
from jaxrl_fast.tuning.candidates import Candidate, at_width, widths
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
    finding = findings.look_up(findings.make_key(asked, findings.this_device()))
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
    return findings.apply(asked, {**finding.learning, **placed})


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
    finding = Finding(findings.sizes_of(row.run), {}, row.effect, time.strftime("on %Y-%m-%d by a short look"), True)
    findings.remember(findings.make_key(asked, findings.device_of(row.facts)), finding)
    return finding
