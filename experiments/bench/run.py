"""The benchmark against other libraries: ours and theirs in turn, with the bounds of the same run
in each row.

``make bench`` sets up the other libraries and runs every row, ``make bench ROWS=sac_halfcheetah``
one. A row's workers are compiled and warm before the first repeat, and then measured A B A B ...: a
ratio is the median over the repeats of rival and ours in the same round, so that a machine that
slows down slows both. Run it on an otherwise idle machine.
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent)]

from describe import machine, versions  # noqa: E402

from jaxrl_fast.tuning.ceiling import share_of_bound  # noqa: E402

RESULTS = HERE.parent / "results" / "bench"
PEERS = Path(os.environ.get("BENCH_PEERS", HERE.parent.parent / ".venv-peers" / "bin" / "python"))


class Row(NamedTuple):
    """One line of the table: the other library's worker, the counted unit (``steps`` or ``updates``
    per second), and the goals.

    ``bf16``, ``apart``: whether ours is measured with `precision=bf16` too, and with actor and
    critic on separate devices.
    """

    title: str
    peer: tuple[str, ...]
    unit: str
    must: float
    aim: float
    repeats: int
    bf16: bool = True
    apart: bool = True


def _rejax(num_envs: int, iterations: int) -> tuple[str, ...]:
    return ("peer_rejax.py", "rate", str(num_envs), str(iterations))


ROWS = {
    "ppo_halfcheetah": Row(
        "PPO halfcheetah (brax spring), steps/s",
        ("peer_brax.py", "ppo"),
        "steps",
        1.6,
        2.0,
        3,
        bf16=False,
    ),
    "sac_halfcheetah": Row(
        "SAC halfcheetah (brax spring), updates/s of 512",
        ("peer_brax.py", "sac"),
        "updates",
        1.05,
        1.3,
        15,
    ),
    "sac_halfcheetah_256": Row(
        "SAC halfcheetah, updates/s of 256",
        ("peer_brax.py", "sac", "256"),
        "updates",
        1.05,
        1.3,
        15,
        bf16=False,
    ),
    "ppo_cartpole": Row(
        "PPO CartPole (gymnax), 64 environments, steps/s", _rejax(64, 50), "steps", 1.6, 2.5, 9
    ),
    "ppo_cartpole_4": Row(
        "PPO CartPole, 4 environments, steps/s", _rejax(4, 200), "steps", 1.2, 2.5, 9, bf16=False
    ),
    "ppo_cartpole_2048": Row(
        "PPO CartPole, 2,048 environments, steps/s",
        _rejax(2048, 4),
        "steps",
        1.5,
        2.5,
        9,
        bf16=False,
    ),
}
SOLVE = "cartpole_8_seeds"
SOLVE_REPEATS = 3
SOLVE_AT = {
    "peer": ("2e-3", "normalized", 10 * 65_536),
    "ours": ("2e-3", "normalized", 6 * 65_536),
    "ours, raw": ("2e-3", "raw", 2 * 65_536),
}
"""Learning rate, observations, and the fewest steps, in multiples of 65,536, at which the mean over
seeds reached 475.

Searched with ``solve <rate> <raw|normalized> <steps> <evaluations>`` over the rates 1e-3, 2e-3 and
4e-3. On this machine Rejax reached 475 within 655,360 steps in this setting only, so both libraries
are compared in it. The third line is ours in its best setting.
"""


class Worker:
    """A process that compiles one program and measures it on request."""

    def __init__(self, python: str, *words: str) -> None:
        self.process = subprocess.Popen(
            [python, *words],
            cwd=HERE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.words = words

    def read(self) -> dict[str, Any]:
        """Return the next answer; other output of the library is skipped."""
        assert self.process.stdout is not None and self.process.stderr is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"{' '.join(self.words)} ended:\n{self.process.stderr.read()[-3000:]}")

    def repeat(self) -> dict[str, Any]:
        """Make one measurement."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.read()


def measure(name: str) -> dict[str, Any]:
    """Measure all workers of a row, in turn, and compute the figures of each."""
    row = ROWS[name]
    words = {
        "peer": (str(PEERS), *row.peer),
        "ours": (sys.executable, "ours.py", name, "train"),
        "environments alone": (sys.executable, "ours.py", name, "env"),
        "updates alone": (sys.executable, "ours.py", name, "update"),
    }
    if row.bf16:
        words["ours, bf16"] = (sys.executable, "ours.py", name, "train", "", "bf16")
    if row.apart:
        words["ours, apart"] = (
            sys.executable,
            "ours.py",
            name,
            "train",
            "actor_critic",
            "f32",
            "actor_critic",
        )
    workers: dict[str, Worker] = {}
    ready: dict[str, dict[str, Any]] = {}
    rounds: dict[str, list[dict[str, Any]]] = {what: [] for what in words}
    try:
        for what, command in words.items():
            workers[what] = Worker(*command)
            ready[what] = workers[what].read()["ready"]
            print(f"{name}: {what} ready, {ready[what]}", flush=True)
        for number in range(row.repeats):
            for what, worker in workers.items():
                rounds[what].append(worker.repeat())
            seconds = ", ".join(
                f"{what} {times[-1]['seconds']:.2f} s" for what, times in rounds.items()
            )
            print(f"{name}: round {number + 1} of {row.repeats}: {seconds}", flush=True)
    finally:
        for worker in workers.values():
            worker.process.kill()
            worker.process.wait()
    return summarize(name, ready, rounds)


def summarize(
    name: str, ready: dict[str, Any], rounds: dict[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    """Compute medians and spreads; ratios are computed round by round."""
    row = ROWS[name]
    rates = {what: [r[row.unit] / r["seconds"] for r in times] for what, times in rounds.items()}
    per_step = {what: [r["seconds"] / r["steps"] for r in times] for what, times in rounds.items()}
    parts = (per_step[what] for what in ("ours", "environments alone", "updates alone"))
    peer_s = [r["seconds"] for r in rounds["peer"]]
    peer_compile = ready["peer"].get("compile_s")
    if peer_compile is None:
        peer_compile = ready["peer"]["first_s"] - statistics.median(peer_s)
        # brax compiles within its first epoch: a time below the spread of epochs has no meaning.
        peer_compile = peer_compile if peer_compile > max(peer_s) - min(peer_s) else None
    result = {
        "title": row.title,
        "must": row.must,
        "aim": row.aim,
        "unit": row.unit,
        "repeats": row.repeats,
        "rate": {what: spread(values) for what, values in rates.items()},
        "ratio": spread([a / b for a, b in zip(rates["ours"], rates["peer"], strict=True)]),
        "share_of_bound": spread(
            [share_of_bound(*seconds) for seconds in zip(*parts, strict=True)]
        ),
        "compile_s": {"peer": peer_compile, "ours": ready["ours"]["compile_s"]},
        "rounds": rounds,
    }
    for kind in ("bf16", "apart"):
        if f"ours, {kind}" in rates:
            ratios = [a / b for a, b in zip(rates[f"ours, {kind}"], rates["peer"], strict=True)]
            result[f"ratio_{kind}"] = spread(ratios)
    return result


def spread(values: list[float]) -> dict[str, float]:
    """Median, least and most."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def solve() -> dict[str, Any]:
    """Measure the wall-clock time from an empty cache to 475 over eight seeds: new processes, in
    turn, one evaluation at the end.
    """
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in SOLVE_AT}
    for _ in range(SOLVE_REPEATS):
        for side, (rate, observations, steps) in SOLVE_AT.items():
            words = (
                (str(PEERS), "peer_rejax.py", "solve")
                if side == "peer"
                else (sys.executable, "ours.py", "solve")
            )
            runs[side].append(once(*words, rate, observations, str(steps), "1"))
            print(f"{SOLVE}: {side} {runs[side][-1]}", flush=True)
    ratio = {
        side: spread(
            [a["seconds"] / b["seconds"] for a, b in zip(times, runs["peer"], strict=True)]
        )
        for side, times in runs.items()
    }
    return {
        "title": "8 seeds of PPO CartPole, wall-clock with compile to 475, s",
        "must": 0.5,
        "aim": 0.25,
        "unit": "seconds",
        "repeats": SOLVE_REPEATS,
        "settings": SOLVE_AT,
        "runs": runs,
        "rate": {side: spread([r["seconds"] for r in times]) for side, times in runs.items()},
        "ratio": ratio["ours"],
        "ratio_raw": ratio["ours, raw"],
        "compile_s": {
            side: statistics.median(r["compile_s"] for r in times) for side, times in runs.items()
        },
        "reached": {side: [r["curve"][-1] for r in times] for side, times in runs.items()},
    }


def once(*words: str) -> dict[str, Any]:
    """Return the answer of a worker that does one thing and ends."""
    return Worker(*words).read()


def main(names: list[str]) -> None:
    """Measure rows, write each as JSON, and write the table and the chart of all measured rows."""
    from report import write_report

    if not PEERS.exists():
        raise SystemExit(f"{PEERS} is missing: run make bench, which makes the peers' environment")
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in names or [*ROWS, SOLVE]:
        if name not in (*ROWS, SOLVE):
            raise SystemExit(f"no row {name}: write one of {', '.join((*ROWS, SOLVE))}")
        result = solve() if name == SOLVE else measure(name)
        result |= {
            "command": f"python experiments/bench/run.py {name}",
            "machine": machine(),
            "versions": versions(PEERS),
        }
        (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(write_report(RESULTS))


if __name__ == "__main__":
    main(sys.argv[1:])
