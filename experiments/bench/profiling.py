"""Where the time of a row's training goes: XLA's own trace of one chunk, summed by kind of operation.

``python experiments/bench/profiling.py`` profiles every row, after `run.py`; results stand beside the row's.
"""

import glob
import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results" / "bench"
KINDS = (
    ("matrix products", r"dot|gemm|convolution"),
    ("copies between layouts", r"copy|transpose"),
    ("gathers and scatters", r"gather|scatter|dynamic"),
    ("sorting", r"sort"),
    ("between devices", r"all-reduce|all-gather|collective|rendezvous"),
)
CONTAINERS = r"while|call|conditional|parallel"
TOP = 12


def operations(function: Callable[[], Any]) -> dict[str, float]:
    """Seconds by name of XLA operation, summed over threads, in one call of ``function`` (which must be warm)."""
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
    return {name: s for name, s in seconds.items() if not re.match(CONTAINERS, name)}


def shares(seconds: dict[str, float]) -> dict[str, float]:
    """The same by kind, as shares of all."""
    kinds: dict[str, float] = defaultdict(float)
    for name, value in seconds.items():
        kinds[next((kind for kind, pattern in KINDS if re.search(pattern, name)), "elementwise and the rest")] += value
    total = sum(kinds.values())
    return {kind: value / total for kind, value in sorted(kinds.items(), key=lambda item: -item[1])}


def profile(function: Callable[[], Any], wall_s: float) -> dict[str, Any]:
    """Shares by kind, the largest operations, and the threads busy on average in an untraced call of ``wall_s``."""
    seconds = operations(function)
    top = sorted(seconds.items(), key=lambda item: -item[1])[:TOP]
    return {
        "shares": shares(seconds),
        "busy_threads": sum(seconds.values()) / wall_s,
        "wall_s": wall_s,
        "top_s": dict(top),
    }


def main(names: list[str]) -> None:
    """Profile rows, each in a process of its own, and write the report again."""
    from ours import ROWS
    from report import write_report

    for name in names or ROWS:
        answer = subprocess.run(
            [sys.executable, "ours.py", name, "profile"], cwd=HERE, stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        line = next(line for line in answer.splitlines() if line.startswith("{"))
        (RESULTS / f"profile_{name}.json").write_text(json.dumps(json.loads(line), indent=1) + "\n")
    print(write_report(RESULTS))


if __name__ == "__main__":
    main(sys.argv[1:])
