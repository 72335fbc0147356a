"""Runs of full length: return, steps/s and memory over hours, one seed each, next to published
figures.

``python experiments/learning/long_runs.py halfcheetah_flash_sac core=0`` makes a run on one core,
or goes on with it: Ctrl-C pauses it, to the bit. Without a name it only writes the page,
``docs/long_runs.md``, and its picture. Run folders are in ``runs/long/``. Run nothing else on the
core.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import ROOT, commit, machine, versions
from learning import finished, read_curve

from jaxrl_fast.training.run_folder import read_columns

RESULTS = ROOT / "experiments" / "results"
RESULT, PICTURE, PAGE = (
    RESULTS / "long_runs.json",
    RESULTS / "long_runs.png",
    ROOT / "docs" / "long_runs.md",
)
RUNS = Path("runs") / "long"
SAMPLE_S = 15.0
"""Seconds between two samples of the memory."""
HEAD = """# Runs of full length

`python experiments/learning/long_runs.py NAME core=N` makes a run, and without a name this page. One seed and one
core each, with evaluations in the same process. *Published* is another trainer's return on the same task, after as
many steps where nothing else is written. *Speed* is the median of environment steps a second in the first and in the
last fifth of the run; it falls where a longer episode or a better policy makes steps dearer, or where the machine did
other work. *Memory* is what the process alone holds (its proportional set), after the first tenth and at the end (the
median of five samples, since the last may see the process exit). A
*paused* run is shown up to its last evaluation; its published return is of the whole length. One bad policy can spoil
the last evaluation, and one good policy flatters the *highest* of all.

| run | steps | greedy return | highest | published | hours | speed, first → last fifth | memory, GB |
|---|---|---|---|---|---|---|---|
"""
FLASH_SAC = "the curves that FlashSAC publishes (arXiv 2604.04539), Gymnasium v4"
MINATAR = "PPO of gymnax-blines after 10 M steps"
BRAX = "the upper end of the axis in brax's training notebook, after 50 M steps"


class Run(NamedTuple):
    """One run: words of the command, and the published return with its source."""

    words: str
    published: float
    source: str


HOST = "algo=flash_sac total_steps=500_000 eval.every=25_000 eval.episodes=10 pool.workers=0 pool.num_groups=1"
LONG = "total_steps=50_000_000 eval.every=2_500_000 eval.episodes=64"
RUNNERS: dict[str, Run] = {
    "halfcheetah_flash_sac": Run(f"env=gymnasium env.id=HalfCheetah-v5 {HOST}", 12_200, FLASH_SAC),
    "humanoid_flash_sac": Run(f"env=gymnasium env.id=Humanoid-v5 {HOST}", 11_400, FLASH_SAC),
    "breakout_ppo": Run(f"env=breakout algo=ppo {LONG}", 28, MINATAR),
    "breakout_pqn": Run(f"env=breakout algo=pqn {LONG}", 28, MINATAR),
    "ant_ppo": Run(
        "env=ant algo=ppo total_steps=30_000_000 eval.every=1_500_000 eval.episodes=32", 8_000, BRAX
    ),
    "humanoid_ppo": Run(
        "env=humanoid algo=ppo total_steps=30_000_000 eval.every=1_500_000", 13_000, BRAX
    ),
}


def main(words: list[str]) -> None:
    """Make a run, or only write the page."""
    asked = dict(word.split("=") for word in words if "=" in word)
    names = [word for word in words if "=" not in word]
    for name in names:
        if name not in RUNNERS:
            raise SystemExit(f"{name}: write one of {', '.join(RUNNERS)}")
        make(name, int(asked.get("core", "0")))
        save(name)
    write_page()


def make(name: str, core: int) -> None:
    """Start or continue a run, and sample its memory into ``memory.csv``, until it ends or Ctrl-C
    pauses it.
    """
    folder = RUNS / name
    folder.mkdir(parents=True, exist_ok=True)
    os.sched_setaffinity(0, {core})
    command = [
        sys.executable,
        "-m",
        "jaxrl_fast.train",
        *RUNNERS[name].words.split(),
        "seed=0",
        "eval.beside=false",
    ]
    command += [f"run_dir={folder / 'run'}", "resume=auto"]
    with (folder / "output.txt").open("a") as output, (folder / "memory.csv").open("a") as table:
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            while child.poll() is None:
                time.sleep(SAMPLE_S)
                table.write(f"{time.time():.0f},{memory_mb(child.pid):.1f}\n")
                table.flush()
        except KeyboardInterrupt:
            child.wait()


def memory_mb(pid: int) -> float:
    """Return the proportional resident set of a process in MB; 0 once it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def save(name: str) -> None:
    """Store the figures of a run, complete or paused, that was evaluated at least once."""
    folder = RUNS / name
    curve = [
        [point["env_steps"], point["returns"][0], point["wall_s"]]
        for point in read_curve(folder / "run")
    ]
    if not curve:
        return
    summary = json.loads((folder / "run" / "summary.json").read_text())
    table = read_columns(folder / "run" / "metrics.csv")
    steps, seconds = np.asarray(table["env_steps"]), np.asarray(table["wall_s"])
    memory = np.loadtxt(folder / "memory.csv", delimiter=",", ndmin=2)
    memory = memory[memory[:, 1] > 0]
    pauses_cut = np.minimum(np.diff(memory[:, 0], prepend=memory[0, 0]), 2 * SAMPLE_S)
    every, fewer = max(len(steps) // 200, 1), max(len(memory) // 200, 1)
    found = {
        "command": f"python -m jaxrl_fast.train {RUNNERS[name].words} seed=0 eval.beside=false",
        "machine": f"1 core of {machine()}",
        "commit": commit(),
        "versions": versions(),
        "wall_s": summary["wall_s"],
        "complete": finished(folder / "run"),
        "curve": curve,
        "steps": steps[::every].tolist(),
        "seconds": seconds[::every].tolist(),
        "memory_s": np.cumsum(pauses_cut)[::fewer].tolist(),
        "memory_mb": memory[::fewer, 1].tolist(),
    }
    results = read()
    results[name] = found
    RESULT.write_text(json.dumps(results, indent=1) + "\n")
    shutil.copy(folder / "run" / "config.yaml", RESULTS / f"long_{name}.yaml")


def read() -> dict[str, Any]:
    """Return the results so far."""
    return json.loads(RESULT.read_text()) if RESULT.exists() else {}


def speeds(found: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return hours, and environment steps a second between two rows."""
    steps, seconds = np.array(found["steps"]), np.array(found["seconds"])
    return seconds[1:] / 3600, np.diff(steps) / np.diff(seconds)


def line(name: str, found: dict[str, Any]) -> str:
    """Write a row of the table."""
    _, rate = speeds(found)
    fifth, memory = max(len(rate) // 5, 1), np.array(found["memory_mb"]) / 1000
    last, run = found["curve"][-1], RUNNERS[name]
    cells = [
        f"`{name}`",
        f"{last[0]:,}" if found.get("complete", True) else f"{last[0]:,}, paused",
        f"{last[1]:,.1f}",
        f"{max(value for _, value, _ in found['curve']):,.1f}",
        f"{run.published:,.0f}: {run.source}",
        f"{found['wall_s'] / 3600:.2f}",
        f"{np.median(rate[:fifth]):,.0f} → {np.median(rate[-fifth:]):,.0f}",
        f"{memory[len(memory) // 10]:.2f} → {np.median(memory[-5:]):.2f}",
    ]
    return f"| {' | '.join(cells)} |\n"


def write_page() -> None:
    """Write the table of all runs with results, and their picture."""
    results = read()
    missing = [
        name for name in RUNNERS if not results.get(name, {"complete": False}).get("complete", True)
    ]
    rows = "".join(line(name, results[name]) for name in RUNNERS if name in results)
    text = (
        HEAD
        + rows
        + "\n![Return, steps/s and memory over hours](../experiments/results/long_runs.png)\n"
    )
    if missing:
        text += f"\nNot run to the end yet: {', '.join(f'`{name}`' for name in missing)}.\n"
    PAGE.write_text(
        text
        + "".join(f"\n- `{name}`: `{found['command']}`" for name, found in results.items())
        + "\n"
    )
    if results:
        draw(results)


def draw(results: dict[str, Any]) -> None:
    """Plot return, steps/s and memory over hours, a row of pictures for each run."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    figure, rows = plt.subplots(
        len(results), 3, figsize=(11, 2.4 * len(results)), squeeze=False, layout="constrained"
    )
    for plots, (name, found) in zip(rows, results.items(), strict=True):
        curve, (hours, rate) = np.array(found["curve"]), speeds(found)
        plots[0].plot(curve[:, 2] / 3600, curve[:, 1], marker="o", markersize=3)
        plots[0].axhline(
            RUNNERS[name].published,
            color="tab:gray",
            linestyle="--",
            linewidth=1,
            label="published",
        )
        plots[1].plot(hours, rate, linewidth=1)
        plots[2].plot(
            np.array(found["memory_s"]) / 3600, np.array(found["memory_mb"]) / 1000, linewidth=1
        )
        plots[0].set_title(f"{name}: greedy return", fontsize="medium", loc="left")
        plots[1].set_title("environment steps/s", fontsize="medium", loc="left")
        plots[2].set_title("memory, GB", fontsize="medium", loc="left")
        plots[0].legend(fontsize="small", frameon=False)
        for plot in plots:
            plot.set_ylim(bottom=min(0, plot.get_ylim()[0]))
            plot.set_xlabel("hours")
            plot.grid(alpha=0.3)
    figure.savefig(PICTURE, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main(sys.argv[1:])
