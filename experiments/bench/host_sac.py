"""SAC on Gymnasium's HalfCheetah-v5, one update of 256 per step: ours, its bound, SBX and
Stable-Baselines3, in turn.

``make bench-host`` sets up the other libraries and runs both parts: ``rates`` (updates per second,
all contenders warm and asleep except in their turn; ratios within a round) and ``returns`` (a whole
run of each: greedy return of 10 episodes against steps and wall-clock time from the first import
on). Run it on an otherwise idle machine.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent)]

from describe import machine, versions  # noqa: E402
from run import Worker, once, spread  # noqa: E402

RESULTS = HERE.parent / "results" / "bench"
PEERS = Path(
    os.environ.get("BENCH_PEERS", HERE.parent.parent / ".venv-peers-host" / "bin" / "python")
)
CONTENDERS = {
    "ours": (sys.executable, "ours_host.py", "train"),
    "ours, callbacks": (sys.executable, "ours_host.py", "train", "callback"),
    "ours, overlap=sampling": (sys.executable, "ours_host.py", "train", "host", "sampling"),
    "updates alone": (sys.executable, "ours_host.py", "update"),
    "sbx": (str(PEERS), "peer_sb3.py", "sbx", "train"),
    "sb3": (str(PEERS), "peer_sb3.py", "sb3", "train"),
}
MUST = {"updates alone": 0.91, "sbx": 1.5, "sb3": 2.3}
"""Ours against each, in updates per second."""
ROUNDS, SEED, STEPS, EVERY, GOAL = 7, 1, 100_000, 5_000, 4_000


def rates() -> dict[str, Any]:
    """Measure the updates per second of all contenders, and the ratio of ours to each."""
    workers: dict[str, Worker] = {}
    ready: dict[str, Any] = {}
    rounds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    try:
        for name, command in CONTENDERS.items():
            workers[name] = Worker(*command)
            ready[name] = workers[name].read()["ready"]
            print(f"{name} ready, {ready[name]}", flush=True)
        for _ in range(ROUNDS):
            for name, worker in workers.items():
                answer = worker.repeat()
                rounds[name].append(answer["updates"] / answer["seconds"])
    finally:
        for worker in workers.values():
            worker.process.terminate()
            worker.process.wait()
    ratio = {
        name: spread([a / b for a, b in zip(rounds["ours"], values, strict=True)])
        for name, values in rounds.items()
    }
    for name, values in rounds.items():
        line = spread(values)
        print(
            f"{name:24} {line['median']:7.1f} updates/s [{line['least']:.1f}, {line['most']:.1f}]   ours against it "
            f"{ratio[name]['median']:.2f} [{ratio[name]['least']:.2f}, {ratio[name]['most']:.2f}]"
            + (f", must be {MUST[name]}" if name in MUST else ""),
            flush=True,
        )
    rate = {name: spread(values) for name, values in rounds.items()}
    return {"rate": rate, "ours_against": ratio, "must": MUST, "ready": ready, "rounds": rounds}


def returns() -> dict[str, Any]:
    """Measure the curve of one whole run each, and the seconds until the goal."""
    words = (str(SEED), str(STEPS), str(EVERY))
    found = {}
    for name in ("ours", "sbx", "sb3"):
        command = (
            (sys.executable, "ours_host.py")
            if name == "ours"
            else (str(PEERS), "peer_sb3.py", name)
        )
        run = once(*command, "solve", *words)
        reached = next((seconds for _, value, seconds in run["curve"] if value >= GOAL), None)
        found[name] = {**run, f"seconds_to_{GOAL}": reached}
        print(
            f"{name:6} return {run['curve'][-1][1]:.0f} after {STEPS:,} steps and {run['seconds']:.0f} s",
            flush=True,
        )
        print(
            f"{'':6} {GOAL} after {'never' if reached is None else f'{reached:.0f} s'}", flush=True
        )
    draw(found)
    return found


def draw(found: dict[str, Any]) -> None:
    """Plot the greedy return against steps and against seconds."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    figure, (by_steps, by_seconds) = plt.subplots(
        1, 2, figsize=(10, 3.6), sharey=True, layout="constrained"
    )
    for name, run in found.items():
        steps, values, seconds = zip(*run["curve"], strict=True)
        by_steps.plot(steps, values, label=name)
        by_seconds.plot(seconds, values, label=name)
    by_steps.set(
        xlabel="environment steps", ylabel="greedy return, 10 episodes", title="SAC, HalfCheetah-v5"
    )
    by_seconds.set(xlabel="seconds, all counted", title="the same by wall-clock")
    for plot in (by_steps, by_seconds):
        plot.axhline(GOAL, color="0.7", linewidth=0.8, linestyle="--")
        plot.spines[["top", "right"]].set_visible(False)
    by_steps.legend(frameon=False)
    figure.savefig(RESULTS / "host_sac.png", dpi=120)


def main() -> None:
    """Measure the requested parts (default: both) and write them."""
    if not PEERS.exists():
        raise SystemExit(
            f"{PEERS.name} of the peers is missing: run make bench-host, which makes their environment"
        )
    path = RESULTS / "host_sac.json"
    document = json.loads(path.read_text()) if path.exists() else {}
    for what in sys.argv[1:] or ["rates", "returns"]:
        if what not in ("rates", "returns"):
            raise SystemExit(f"{what}: write rates or returns")
        measured = rates() if what == "rates" else returns()
        document[what] = {**measured, "machine": machine(), "versions": versions(PEERS)}
        path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
