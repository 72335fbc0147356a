"""Where the time of a compiled program goes: XLA's own trace, summed by kind of operation."""

import glob
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

KINDS = (
    ("matrix products", r"dot|convolution|gemm|ynn|xnn"),
    ("collectives and copies", r"all-reduce|all-gather|collective|copy|rendezvous"),
    ("sorting", r"sort"),
    ("random bits", r"rng|threefry"),
)


def operations(function: Callable[[], Any]) -> dict[str, float]:
    """Seconds by name of XLA operation, over all threads, in one call of ``function`` (which must be warm)."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(function())
        (file,) = glob.glob(str(Path(folder) / "**" / "*.xplane.pb"), recursive=True)
        data = jax.profiler.ProfileData.from_file(file)
        seconds: dict[str, float] = defaultdict(float)
        for plane in data.planes:
            for line in plane.lines:
                for event in line.events:
                    if any(name == "hlo_op" for name, _ in event.stats):
                        seconds[event.name] += event.duration_ns * 1e-9
    return dict(seconds)


def by_kind(seconds: dict[str, float]) -> dict[str, float]:
    """The same, by kind; a ``while`` or ``call`` contains others and is left out."""
    kinds: dict[str, float] = defaultdict(float)
    for name, value in seconds.items():
        if re.match(r"while|call|conditional|parallel", name):
            continue
        kinds[next((kind for kind, pattern in KINDS if re.search(pattern, name)), "elementwise and the rest")] += value
    return dict(kinds)
