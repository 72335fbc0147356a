"""Where the time of a row's training goes: XLA's own trace of its two parts, summed by kind of operation.

Environments and updates are traced apart, since a whole tick has more events than the profiler's buffer holds; how much
each weighs in training follows from their bare rates, which `run.py` has measured.
``python experiments/bench/profiling.py`` profiles every row, after `run.py`; results stand beside the row's.
"""

import glob
import json
import re
import subprocess
import sys
import tempfile
import time
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
PARTS = {"environments alone": "env:profile", "updates alone": "update:profile"}
TOP = 12
COVERED = 0.8
"""A trace that spans less of the call than this was cut short by the profiler."""


def operations(function: Callable[[], Any]) -> dict[str, float]:
    """Seconds by name of XLA operation, summed over threads, in one call of ``function`` (which must be warm)."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            begin = time.perf_counter()
            jax.block_until_ready(function())
            wall_s = time.perf_counter() - begin
        (file,) = glob.glob(str(Path(folder) / "**" / "*.xplane.pb"), recursive=True)
        data = jax.profiler.ProfileData.from_file(file)
        events = [
            (event.name, event.start_ns, event.duration_ns)
            for plane in data.planes for line in plane.lines for event in line.events
            if any(name == "hlo_op" for name, _ in event.stats)
        ]  # fmt: skip
    covered = (max(start + length for _, start, length in events) - min(start for _, start, _ in events)) * 1e-9
    if covered < COVERED * wall_s:
        raise SystemExit(f"the trace covers {covered:.3f} of {wall_s:.3f} s: profile a smaller part")
    seconds: dict[str, float] = defaultdict(float)
    for name, _, length in events:
        seconds[name] += length * 1e-9
    return {name: s for name, s in seconds.items() if not re.match(CONTAINERS, name)}


def shares(seconds: dict[str, float]) -> dict[str, float]:
    """The same by kind, as shares of all."""
    kinds: dict[str, float] = defaultdict(float)
    for name, value in seconds.items():
        kinds[next((kind for kind, pattern in KINDS if re.search(pattern, name)), "elementwise and the rest")] += value
    total = sum(kinds.values())
    return {kind: value / total for kind, value in sorted(kinds.items(), key=lambda item: -item[1])}


def profile(function: Callable[[], Any]) -> dict[str, Any]:
    """Shares by kind and the largest operations, in seconds summed over threads, beside the wall-clock and CPU time of
    an untraced call.

    What the threads of a matrix product's own pool do is in the CPU time only; and tracing slows operations of
    a microsecond down, so that their sum may exceed the CPU time.
    """
    cpu, wall = time.process_time(), time.perf_counter()
    jax.block_until_ready(function())
    cpu_s, wall_s = time.process_time() - cpu, time.perf_counter() - wall
    seconds = operations(function)
    top = sorted(seconds.items(), key=lambda item: -item[1])[:TOP]
    return {
        "shares": shares(seconds), "traced_s": sum(seconds.values()), "cpu_s": cpu_s, "wall_s": wall_s,
        "top_s": dict(top),
    }  # fmt: skip


def main(names: list[str]) -> None:
    """Profile rows, each in a process of its own, and write the report again."""
    from ours import ROWS
    from report import write_report

    for name in names or ROWS:
        rate = json.loads((RESULTS / f"{name}.json").read_text())["rate"]
        parts = {part: profile_part(name, words) for part, words in PARTS.items()}
        per_unit = {part: 1 / rate[part]["median"] for part in parts}
        for part, result in parts.items():
            result["share_of_training"] = per_unit[part] / sum(per_unit.values())
        (RESULTS / f"profile_{name}.json").write_text(json.dumps(parts, indent=1) + "\n")
    print(write_report(RESULTS))


def profile_part(row: str, what: str) -> dict[str, Any]:
    """One part's profile, from a process of its own."""
    command = [sys.executable, "ours.py", row, what]
    answer = subprocess.run(command, cwd=HERE, stdout=subprocess.PIPE, text=True, check=True).stdout
    return json.loads(next(line for line in answer.splitlines() if line.startswith("{")))


if __name__ == "__main__":
    main(sys.argv[1:])
