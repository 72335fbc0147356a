"""Measures on this machine what was predicted for it: ``explain ... target=this``."""

import statistics
import time
from pathlib import Path
from typing import Any, Protocol

import jax

from jaxrl_fast.graph.dataflow import TrainState
from jaxrl_fast.graph.placements import Placement
from jaxrl_fast.inspection.tables import new_console
from jaxrl_fast.runs.progress import si
from jaxrl_fast.targets.chips import CHIPS, Chip
from jaxrl_fast.targets.compiling import Rounds, costs_of
from jaxrl_fast.targets.cost_tables import band, band_table, cost_facts, launch_table
from jaxrl_fast.targets.target import THIS, Target
from jaxrl_fast.tuning.stopwatch import Ready

REPEATS = 5
ENOUGH_S = 10.0


class MakeFirstState(Protocol):
    """Makes the state before the first tick."""

    def __call__(self) -> TrainState:
        """Returns it on its devices."""


def compare_here(ready: Ready, placed: Placement, rounds: Rounds, dump: Path, *, warmup_ticks: int) -> dict[str, Any]:
    """Measure, print it beside what XLA predicted where that is known, and return both."""
    measured = measure_ticks(ready, warmup_ticks)
    low_s, tick_s, high_s = (f(measured["tick_s"]) for f in (min, statistics.median, max))
    rates = [n / tick_s for n in (rounds.env_steps, rounds.updates, rounds.updates * rounds.batch_size)]
    kind, number = jax.devices()[0].device_kind, len({d for group in placed.groups for d in group.devices})
    print(
        f"measured on {number} {kind}: {1e3 * tick_s:.3g} ms a tick "
        f"[{1e3 * low_s:.3g}, {1e3 * high_s:.3g}], {si(rates[0])} steps/s, "
        f"{si(rates[1])} updates/s, {si(rates[2])} frames/s"
    )
    facts = {"name": THIS, "chip": kind, "num_devices": number, "measured": measured}
    chip = chip_here()
    if chip is None:
        print(f"nothing is predicted for {kind}: write target=h100 for what its programs would cost there")
        return facts
    target = Target(THIS, chip, number, "")
    costs = costs_of(ready.run, placed, ready.ticks, target, dump)
    for table in (launch_table(costs), band_table(costs, rounds, target)):
        new_console().print(table)
    shares = ", ".join(f"{1e6 * tick_s / us:.3g} x at {name}" for name, us in band(costs))
    print(f"measured / predicted: {shares}")
    return {**facts, **cost_facts(costs, rounds, target)}


def chip_here() -> Chip | None:
    """What is known of this machine's devices; None of a CPU, and of cards without figures here."""
    kind = jax.devices()[0].device_kind.lower().replace(" ", "")
    return next((chip for name, chip in CHIPS.items() if name.removeprefix("tpu-") in kind), None)


def measure_ticks(ready: Ready, warmup_ticks: int) -> dict[str, Any]:
    """Run chunks until the warm-up of replay is over, then time some more; ``tick_s``: seconds of a tick, one for each
    of these chunks, ``first_chunk_s``: seconds of the very first chunk."""
    state, seconds = ready.init(), list[float]()
    warm = 1 + warmup_ticks // ready.ticks
    while len(seconds) < warm + REPEATS and sum(seconds[warm:]) < ENOUGH_S:
        begin = time.perf_counter()
        state, _ = jax.block_until_ready(ready.run(state))
        seconds.append(time.perf_counter() - begin)
    return {"first_chunk_s": seconds[0], "tick_s": [s / ready.ticks for s in seconds[warm:]]}
