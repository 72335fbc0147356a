"""How the time of a warm function is spent: XLA's trace, summed by kind of operation."""

import glob
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

KINDS = (
    ("matrix products", r"dot|gemm|convolution"),
    ("copies between layouts", r"copy|transpose"),
    ("gathers and scatters", r"gather|scatter|dynamic"),
    ("sorting", r"sort"),
    ("between devices", r"all-reduce|all-gather|collective|rendezvous"),
)
CONTAINERS = r"while|call|conditional|parallel"
TOP = 12
COVERED = 0.8
"""Smallest share of the call in a complete trace; the profiler has truncated a shorter one."""


def operations(function: Callable[[], Any]) -> dict[str, float]:
    """Return seconds by name of XLA operation, summed over threads, in one call of ``function``
    (which must be warm).
    """
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            begin = time.perf_counter()
            jax.block_until_ready(function())
            wall_s = time.perf_counter() - begin
        (file,) = glob.glob(str(Path(folder) / "**" / "*.xplane.pb"), recursive=True)
        data = jax.profiler.ProfileData.from_file(file)
        events = [
            (event.name, event.start_ns, event.duration_ns)
            for plane in data.planes
            for line in plane.lines
            for event in line.events
            if any(name == "hlo_op" for name, _ in event.stats)
        ]
    covered = (
        max(start + length for _, start, length in events) - min(start for _, start, _ in events)
    ) * 1e-9
    if covered < COVERED * wall_s:
        raise SystemExit(
            f"the trace covers {covered:.3f} of {wall_s:.3f} s: profile a smaller part"
        )
    seconds: dict[str, float] = defaultdict(float)
    for name, _, length in events:
        seconds[name] += length * 1e-9
    return {name: s for name, s in seconds.items() if not re.match(CONTAINERS, name)}


def shares(seconds: dict[str, float]) -> dict[str, float]:
    """Return the same by kind, as shares of all."""
    kinds: dict[str, float] = defaultdict(float)
    for name, value in seconds.items():
        kinds[
            next(
                (kind for kind, pattern in KINDS if re.search(pattern, name)),
                "elementwise and the rest",
            )
        ] += value
    total = sum(kinds.values())
    return {kind: value / total for kind, value in sorted(kinds.items(), key=lambda item: -item[1])}


def profile(function: Callable[[], Any]) -> dict[str, Any]:
    """Return shares by kind and the largest operations, in seconds summed over threads, with the
    wall-clock and CPU time of an untraced call.

    The work of a matrix product's separate thread pool is in the CPU time only. Tracing slows
    operations of a microsecond down, so that their sum may exceed the CPU time.
    """
    cpu, wall = time.process_time(), time.perf_counter()
    jax.block_until_ready(function())
    cpu_s, wall_s = time.process_time() - cpu, time.perf_counter() - wall
    seconds = operations(function)
    top = sorted(seconds.items(), key=lambda item: -item[1])[:TOP]
    return {
        "shares": shares(seconds),
        "traced_s": sum(seconds.values()),
        "cpu_s": cpu_s,
        "wall_s": wall_s,
        "top_s": dict(top),
    }
