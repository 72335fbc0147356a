"""Times a graph under a placement: compiles it, warms it up, and measures its chunks. Compilation is timed apart."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.stages import Compiled

from jaxrl_fast.core import Metrics
from jaxrl_fast.graph import program as programs
from jaxrl_fast.graph.chain import Chain
from jaxrl_fast.graph.dataflow import Graph, TrainState
from jaxrl_fast.graph.placements import Placement
from jaxrl_fast.inspection import hlo


class Ready(NamedTuple):
    """A program that is compiled and has not run: ``init()`` makes its first state, a new one each time since a
    chunk donates it, with fixed keys and rates; ``run`` runs a chunk of ``ticks`` ticks; ``compile_s``: the seconds
    that compiling took."""

    init: Callable[[], TrainState]
    run: programs.RunChunk
    ticks: int
    compile_s: float


def compile_timed(graph: Graph, placement: Placement, hyper: Any, *, ticks: int, num_seeds: int = 1) -> Ready:
    """Compile chunks of ``ticks`` ticks."""
    program = programs.compile(graph, placement, ticks, num_seeds)
    keys = jax.random.split(jax.random.key(0), num_seeds)
    begin_s = time.perf_counter()
    init, run = program.ready(keys, hyper)
    return Ready(lambda: init(keys, hyper), run, ticks, time.perf_counter() - begin_s)


def memory_bytes(ready: Ready, placement: Placement) -> int | None:
    """Memory that the programs need, as XLA predicts it: on a CPU that of all devices together, else that of the device
    that needs most. A channel that several programs read counts for each. None where XLA does not say."""
    per_device: dict[jax.Device, int] = {}
    for devices, step in _programs(ready.run, placement):
        wanted = hlo.program_bytes(step)
        if wanted is None:
            return None
        for device in devices:
            per_device[device] = per_device.get(device, 0) + wanted
    together = sum if next(iter(per_device)).platform == "cpu" else max
    return together(per_device.values())


def warm(ready: Ready, num_ticks: int) -> Callable[[int], tuple[float, Metrics]]:
    """Run at least ``num_ticks`` ticks; then ``repeat(chunks)`` gives the seconds of so many chunks, and the metrics of
    the last."""
    state = ready.init()

    def repeat(chunks: int) -> tuple[float, Metrics]:
        nonlocal state
        begin_s = time.perf_counter()
        for _ in range(chunks):
            state, metrics = ready.run(state)
            # As training does. Several calls in flight can starve each other's collectives of threads on a CPU.
            jax.block_until_ready((state, metrics))
        return time.perf_counter() - begin_s, metrics

    repeat(1 + -(-num_ticks // ready.ticks))
    return repeat


def _programs(run: Any, placement: Placement) -> list[tuple[tuple[jax.Device, ...], Compiled]]:
    if isinstance(run, Chain):
        return [(segment.devices, segment.step) for segment in run.segments if isinstance(segment.step, Compiled)]
    return [(placement.groups[0].devices, run)]
