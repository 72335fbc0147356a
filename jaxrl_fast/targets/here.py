"""Measures on this machine what was predicted for it: ``explain ... target=this``."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxrl_fast.graph.dataflow import TrainState
from jaxrl_fast.graph.placements import Placement
from jaxrl_fast.graph.program_functions import RunChunk
from jaxrl_fast.inspection.tables import new_console
from jaxrl_fast.runs.progress import si
from jaxrl_fast.targets.chips import CHIPS, Chip
from jaxrl_fast.targets.compiling import Rounds, costs_of
from jaxrl_fast.targets.cost_tables import band, band_table, cost_facts, launch_table
from jaxrl_fast.targets.target import THIS, Target

REPEATS = 5
ENOUGH_S = 10.0


class Started(NamedTuple):
    """A compiled run: ``init()`` makes its state before the first tick, on its devices, ``run`` a chunk."""

    init: Callable[[], TrainState]
    run: RunChunk


class MeasuredTicks(NamedTuple):
    """``tick_s``: seconds of a tick, one for each repeat of a whole chunk that followed the warm-up; ``first_chunk_s``:
    seconds of the very first chunk."""

    first_chunk_s: float
    tick_s: tuple[float, ...]


def compare_here(
    ready: Started, placed: Placement, rounds: Rounds, ticks_per_chunk: int, dump: Path, *, warmup_ticks: int
) -> dict[str, Any]:
    """Measure, print it beside what XLA predicted where that is known, and return both."""
    measured = measure_ticks(ready, ticks_per_chunk, warmup_ticks)
    tick_s = statistics.median(measured.tick_s)
    rates = [n / tick_s for n in (rounds.env_steps, rounds.updates, rounds.updates * rounds.batch_size)]
    kind, number = jax.devices()[0].device_kind, len({d for group in placed.groups for d in group.devices})
    print(
        f"measured on {number} {kind}: {1e3 * tick_s:.3g} ms a tick "
        f"[{1e3 * min(measured.tick_s):.3g}, {1e3 * max(measured.tick_s):.3g}], {si(rates[0])} steps/s, "
        f"{si(rates[1])} updates/s, {si(rates[2])} frames/s"
    )
    facts = {"name": THIS, "chip": kind, "num_devices": number, "measured": measured._asdict()}
    chip = chip_here()
    if chip is None:
        print(f"nothing is predicted for {kind}: write target=h100 for what its programs would cost there")
        return facts
    target = Target(THIS, chip, number, "")
    costs = costs_of(ready.run, placed, ticks_per_chunk, target, dump)
    for table in (launch_table(costs), band_table(costs, rounds, target)):
        new_console().print(table)
    predicted = dict(band(costs))
    print(
        "measured / predicted: " + ", ".join(f"{1e6 * tick_s / us:.3g} x at {name}" for name, us in predicted.items())
    )
    return {**facts, **cost_facts(costs, rounds, target)}


def chip_here() -> Chip | None:
    """What is known of this machine's devices; None of a CPU, and of cards without figures here."""
    kind = jax.devices()[0].device_kind.lower().replace(" ", "")
    return next((chip for name, chip in CHIPS.items() if name.removeprefix("tpu-") in kind), None)


def measure_ticks(ready: Started, ticks_per_chunk: int, warmup_ticks: int) -> MeasuredTicks:
    """Run chunks until the warm-up of replay is over, then time some more."""
    state = ready.init()
    begin = time.perf_counter()
    state, _ = jax.block_until_ready(ready.run(state))
    first_s = time.perf_counter() - begin
    for _ in range(warmup_ticks // ticks_per_chunk):
        state, _ = ready.run(state)
    jax.block_until_ready(state)
    seconds: list[float] = []
    while len(seconds) < REPEATS and sum(seconds) < ENOUGH_S:
        begin = time.perf_counter()
        state, _ = jax.block_until_ready(ready.run(state))
        seconds.append(time.perf_counter() - begin)
    return MeasuredTicks(first_s, tuple(s / ticks_per_chunk for s in seconds))
