"""When each program of a chain ran: a normal chunk, while threads record when inputs and results
are ready.
"""

import time
from collections import defaultdict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax

from jaxrl_fast.runtime.chain import Chain, Segment
from jaxrl_fast.runtime.graph import TrainState


class Span(NamedTuple):
    """One run of a segment on one group's devices; seconds since the chunk began."""

    segment: str
    devices: tuple[str, ...]
    start_s: float
    end_s: float


class Timeline(NamedTuple):
    """A chunk's spans, in order of dispatch, its ticks and wall-clock time, and the seconds until
    all was dispatched.
    """

    spans: list[Span]
    ticks: int
    wall_s: float
    dispatch_s: float

    def busy(self) -> dict[str, list[tuple[float, float]]]:
        """Return when each device was busy, as sorted disjoint intervals."""
        on: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for span in sorted(self.spans, key=lambda span: span.start_s):
            for device in span.devices:
                merged = on[device]
                if merged and span.start_s <= merged[-1][1]:
                    merged[-1] = merged[-1][0], max(merged[-1][1], span.end_s)
                else:
                    merged.append((span.start_s, span.end_s))
        return dict(on)

    def idle_share(self) -> dict[str, float]:
        """Return for each device the share of the wall-clock time in which it was idle."""
        busy_s = {
            device: sum(end - start for start, end in spans)
            for device, spans in self.busy().items()
        }
        return {device: 1.0 - seconds / self.wall_s for device, seconds in sorted(busy_s.items())}

    def together_share(self) -> float:
        """Return the share of the wall-clock time in which two devices or more were busy."""
        spans = [span for spans in self.busy().values() for span in spans]
        edges = [edge for start, end in spans for edge in ((start, 1), (end, -1))]
        total_s, at_work, since = 0.0, 0, 0.0
        for t, step in sorted(edges):
            total_s += (t - since) * (at_work > 1)
            at_work, since = at_work + step, t
        return total_s / self.wall_s


def record(chain: Chain, state: TrainState) -> tuple[TrainState, Timeline]:
    """Run a chunk and record when each program of it ran. ``state`` is donated as in training."""
    pools: dict[tuple[jax.Device, ...], ThreadPoolExecutor] = {}
    notes: list[tuple[Segment, Future]] = []
    dispatched_s = 0.0
    begin_s = time.perf_counter()

    def watch(segment: Segment, called_s: float, inputs: Any, outputs: Any) -> None:
        nonlocal dispatched_s
        dispatched_s = time.perf_counter() - begin_s
        if segment.devices not in pools:
            pools[segment.devices] = ThreadPoolExecutor(1, thread_name_prefix="timeline")
        started_s = called_s if segment.host else None
        notes.append(
            (segment, pools[segment.devices].submit(_ready_times, started_s, inputs, outputs))
        )

    state, _ = chain._replace(watch=watch)(state)
    jax.block_until_ready(state)
    wall_s = time.perf_counter() - begin_s
    spans = []
    for segment, times in notes:
        start_s, end_s = times.result()
        spans.append(
            Span(segment.name, tuple(map(str, segment.devices)), start_s - begin_s, end_s - begin_s)
        )
    for pool in pools.values():
        pool.shutdown()
    return state, Timeline(spans, chain.ticks_per_chunk, wall_s, dispatched_s)


def _ready_times(started_s: float | None, inputs: Any, outputs: Any) -> tuple[float, float]:
    """A group's programs end in order of dispatch, so this one begins when the previous one has
    ended.
    """
    if started_s is None:
        jax.block_until_ready(inputs)
        started_s = time.perf_counter()
    jax.block_until_ready(outputs)
    return started_s, time.perf_counter()
