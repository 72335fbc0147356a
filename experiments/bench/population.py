"""Populations on this machine: what a member costs, and searches against other ways to use the same
time or steps.

    python experiments/bench/population.py members            cost of a member by the number of
    members python experiments/bench/population.py ray                64 learning rates: this
    package and Ray Tune python experiments/bench/population.py halving            successive
    halving against random search python experiments/bench/population.py pbt
    population-based training against random search python experiments/bench/population.py gp
    cost-aware search against random search python experiments/bench/population.py pages
    write the tables of docs/populations.md

Each row is stored when it is complete, in experiments/results/population.json, and a repeated
command goes on. `members` and `ray` need an idle machine. `ray` needs Ray: RAY_PYTHON=<python with
this package and ray[tune]>.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent.parent / "results" / "population.json"
EVORL = RESULTS.with_name("population_evorl.json")
PAGE = Path(__file__).parent.parent.parent / "docs" / "populations.md"
MARKS = "<!-- measured -->", "<!-- end of measured -->"
CARTPOLE = ["env=cartpole", "algo=ppo", "tuned=false"]
RATE = "sample.algo.learning_rate=log:1e-5:1e-1"


def stored() -> dict[str, Any]:
    """Return the rows so far."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def store(name: str, row: dict[str, Any]) -> None:
    """Store a row with the machine."""
    from jaxrl_fast.settings.machine import cpu_cores, processor, versions

    cores = cpu_cores()
    machine = {"machine": f"{cores} core{'s' * (cores > 1)}, {processor()}", "versions": versions()}
    RESULTS.write_text(json.dumps({**stored(), name: {**row, **machine}}, indent=1) + "\n")
    print(name, row, flush=True)


def measure_members(devices: int, count: int, num_envs: int = 8, repeats: int = 7) -> None:
    """Measure the time of a tick for each member of a population, in this process."""
    from jaxrl_fast.settings.machine import setup

    setup(cpu_devices=devices)
    import jax

    from jaxrl_fast.assembly import make_job
    from jaxrl_fast.commands.run_config import compose, make_algorithm, make_envs
    from jaxrl_fast.population import slots as places

    place = "data_parallel" if devices > 1 else "fused"
    words = [
        *CARTPOLE,
        f"num_envs={num_envs}",
        f"num_seeds={count}",
        f"placement={place}",
        f"devices={devices}",
    ]
    run = compose(words)
    job = make_job(make_envs(run), make_algorithm(run), run, {})
    ticks = 8
    slots = places.make_slots(job, ticks, own_ticks=False)._replace(ticks_per_chunk=ticks)
    ready = places.compile_slots(slots)
    hypers = [
        job.algorithm.hyper._replace(learning_rate=rate) for rate in np.geomspace(1e-5, 1e-2, count)
    ]
    state = places.begin(slots, ready, list(range(count)), hypers)
    chunk_ticks = slots.program.ticks_per_chunk
    seconds = []
    for repeat in range(repeats + 2):
        began, done = time.perf_counter(), 0
        while time.perf_counter() - began < 1.0:
            state, metrics = ready.run(state)
            jax.block_until_ready(metrics)
            done += chunk_ticks
        if repeat > 1:
            seconds.append((time.perf_counter() - began) / done / count)
    print(json.dumps([1e3 * s for s in seconds]))


def members() -> None:
    """Measure all sizes, in turns in separate processes."""
    sizes = [(1, 1), (1, 4), (1, 16), (1, 64), (2, 4), (2, 16), (2, 64)]
    found: dict[str, list[float]] = {f"{d} {n}": [] for d, n in sizes}
    for _ in range(3):
        for devices, count in sizes:
            words = [sys.executable, __file__, "one", str(devices), str(count)]
            out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
            found[f"{devices} {count}"] += json.loads(out.splitlines()[-1])
            print(devices, count, found[f"{devices} {count}"][-3:], flush=True)
    alone = float(np.median(found["1 1"]))
    for name, times in found.items():
        low, middle, high = (float(np.percentile(times, q)) for q in (0, 50, 100))
        store(
            f"members {name}",
            {
                "ms": [middle, low, high],
                "ratio": middle / alone,
                "range": [low / alone, high / alone],
            },
        )


def sweep(words: list[str], folder: Path) -> tuple[dict[str, Any], float]:
    """Run the command, and return its summary and its seconds."""
    began = time.perf_counter()
    line = [sys.executable, "-m", "jaxrl_fast.sweep", *words, f"run_dir={folder}"]
    subprocess.run(line, check=True, capture_output=True, text=True, timeout=7200)
    return json.loads((folder / "summary.json").read_text()), time.perf_counter() - began


def in_new_folder(name: str) -> Path:
    """Return the path of a folder that does not exist yet."""
    return Path("runs") / f"population-{name}-{time.time_ns()}"


def empty_cache() -> dict[str, str]:
    """Return variables that give a process an empty cache of programs."""
    return {**os.environ, "JAXRL_FAST_CACHE": str(in_new_folder("cache").absolute())}


def ray(total_steps: int) -> None:
    """Time 64 learning rates as one command, and as trials of Ray Tune in a pool of two with one
    cache.
    """
    theirs_s, ours_s = [], []
    python = os.environ["RAY_PYTHON"]
    for _ in range(3 if total_steps < 500_000 else 1):
        began = time.perf_counter()
        words = [*CARTPOLE, RATE, "trials=64", f"total_steps={total_steps}", "finalists=1"]
        line = [
            sys.executable,
            "-m",
            "jaxrl_fast.sweep",
            *words,
            f"run_dir={in_new_folder('ours')}",
        ]
        subprocess.run(line, check=True, env=empty_cache(), capture_output=True)
        ours_s.append(time.perf_counter() - began)
        began = time.perf_counter()
        peer = Path(__file__).with_name("peer_ray_tune.py")
        done = subprocess.run(
            [python, peer, str(total_steps)], env=empty_cache(), capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-3000:])
        theirs_s.append(time.perf_counter() - began)
        print(total_steps, ours_s[-1], theirs_s[-1], flush=True)
    ratios = [a / b for a, b in zip(ours_s, theirs_s, strict=True)]
    row = {
        "ours_s": ours_s,
        "ray_s": theirs_s,
        "ratio": float(np.median(ratios)),
        "range": [min(ratios), max(ratios)],
    }
    store(f"ray {total_steps}", row)


HALVING = [
    "env=acrobot",
    "algo=ppo",
    "tuned=false",
    "total_steps=300_000",
    "trials=32",
    "at_once=16",
]
HALVING += ["sample.algo.learning_rate=log:1e-5:1e-1", "sample.algo.entropy_coef=log:1e-4:1e-1"]
HALVING += ["sample.algo.gae_lambda=uniform:0.8:1", "seeds_per_trial=1", "finalists=4"]


def halving(seed: int) -> None:
    """Compare successive halving with random search on the same points."""
    ways = {"random": [], "halving": ["halving=4"], "later": ["halving=4", "first_rung=50_000"]}
    for name, words in ways.items():
        if f"halving {name} {seed}" not in stored():
            summary, seconds = sweep([*HALVING, *words, f"seed={seed}"], in_new_folder(name))
            store(f"halving {name} {seed}", row_of(summary, seconds))


def row_of(summary: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Pick the entries of a search that are stored."""
    names = (
        "env_steps",
        "eval_return_mean",
        "eval_return_std",
        "eval_episodes",
        "best_settings",
        "trials",
    )
    return {**{name: summary.get(name) for name in names}, "seconds": seconds}


PBT = ["env=breakout", "algo=ppo", "tuned=false", "total_steps=500_000"]
PBT += ["sample.algo.learning_rate=log:1e-5:1e-2", "sample.algo.entropy_coef=log:1e-4:1e-1"]


LONG = ["total_steps=2_000_000", "population.every=100_000"]
PBT_KINDS = {"pbt": [], "pbt2M": LONG, "asterix2M": ["env=asterix", *LONG]}
"""Words of each comparison, which replace words of `PBT`."""


def pbt(seed: int) -> None:
    """Compare population-based training of 8 with random search of 8 trials, of equal steps."""
    for kind, longer in PBT_KINDS.items():
        for name, words in {
            "random": ["trials=8"],
            "pbt": ["population.size=8", "population.every=25_000"],
        }.items():
            if f"{kind} {name} {seed}" not in stored():
                changed = [word.partition("=")[0] for word in longer]
                base = [word for word in [*PBT, *words] if word.partition("=")[0] not in changed]
                more = [
                    word for word in longer if name == "pbt" or not word.startswith("population.")
                ]
                asked = [*base, *more, f"seed={100 * seed}", "finalists=4"]
                folder = in_new_folder(name)
                summary, seconds = sweep(asked, folder)
                store(
                    f"{kind} {name} {seed}",
                    {**row_of(summary, seconds), "sampled": play_sampled(folder / "best")},
                )


def play_sampled(best: Path, episodes: int = 1_000) -> list[float]:
    """Return mean and deviation of the return when actions are drawn, as MinAtar's published
    returns are.

    A greedy policy of MinAtar's Breakout plays one of two episodes, by the side on which the ball
    starts.
    """
    words = [
        sys.executable,
        "-m",
        "jaxrl_fast.evaluate",
        str(best),
        f"episodes={episodes}",
        "sample=true",
    ]
    text = subprocess.run(words, check=True, capture_output=True, text=True, timeout=3600).stdout
    return [float(number) for number in re.findall(r"return +(\S+) ± (\S+)", text)[0]]


GP = [
    "env=acrobot",
    "algo=ppo",
    "tuned=false",
    "total_steps=500_000",
    "trials=16",
    "at_once=4",
    "finalists=2",
]
GP += ["sample.algo.learning_rate=log:1e-6:1", "sample.algo.gae_lambda=uniform:0.5:1"]
GP += ["sample.algo.entropy_coef=log:1e-4:1"]


def gp(seed: int) -> None:
    """Compare the cost-aware search, asked between rungs, with random search: return and seconds."""
    early = ["sampler=gp", "halving=4"]
    for name, words in (("random", []), ("gp", early), ("later", [*early, "first_rung=80_000"])):
        if f"gp {name} {seed}" not in stored():
            folder = in_new_folder(name)
            summary, seconds = sweep([*GP, *words, f"seed={seed}"], folder)
            store(
                f"gp {name} {seed}", {**row_of(summary, seconds), "curve": best_over_time(folder)}
            )


def best_over_time(folder: Path) -> list[list[float]]:
    """Return (seconds of training, best final score of a finished trial) in the order in which
    trials finished.
    """
    members = json.loads((folder / "members.json").read_text())["members"]
    curve, spent, best = [], 0.0, -np.inf
    for one in sorted(members, key=lambda m: m["number"]):
        spent += one["seconds"]
        if one["score"] is not None:
            best = max(best, one["score"])
            curve.append([spent, best])
    return curve


def write_page() -> None:
    """Write what was measured between the marks of the page."""
    rows, lines = stored(), []
    if "members 1 1" in rows:
        lines += ["| members | one CPU device | members divided over two |", "| --- | --- | --- |"]
        for count in (1, 4, 16, 64):
            cells = [cost_of(rows.get(f"members {devices} {count}")) for devices in (1, 2)]
            lines.append(f"| {count} | {cells[0]} | {cells[1]} |")
        lines += [
            "",
            "Cost of a member of PPO on CartPole, 8 environments, by one alone: median [least, most].",
        ]
    lines += ["", "| comparison | result |", "| --- | --- |", *comparisons(rows)]
    machines = {row["machine"] for row in rows.values()}
    text = "\n".join([*lines, "", f"Machines: {'; '.join(sorted(machines))}."])
    before, after = PAGE.read_text().split(MARKS[0])[0], PAGE.read_text().split(MARKS[1])[1]
    PAGE.write_text(f"{before}{MARKS[0]}\n{text}\n{MARKS[1]}{after}")


def cost_of(row: dict[str, Any] | None) -> str:
    """Write the cost of a member."""
    return (
        "" if row is None else f"{row['ratio']:.2f} [{row['range'][0]:.2f}, {row['range'][1]:.2f}]"
    )


def comparisons(rows: dict[str, Any]) -> list[str]:
    """List a line for each comparison that was made."""
    lines = []
    for steps, name in ((100_000, "100,000"), (1_000_000, "1 million")):
        if row := rows.get(f"ray {steps}"):
            seconds = f"{np.median(row['ours_s']):.0f} s against {np.median(row['ray_s']):.0f} s"
            label = f"64 learning rates, {name} steps each, against Ray Tune in a pool of two with one cache"
            lines.append(
                f"| {label} | {seconds}: {row['ratio']:.2f} [{row['range'][0]:.2f}, {row['range'][1]:.2f}] |"
            )
    labels = {
        "halving": (
            "successive halving, 32 trials of Acrobot, 300,000 steps, on the same points",
            "halving",
        ),
        "halving ": ("the same, first rung after 50,000 steps", "later"),
        "gp": ("`sampler=gp halving=4`, 16 trials of Acrobot, 500,000 steps", "gp"),
        "gp ": ("the same, first rung after 80,000 steps", "later"),
        "pbt": ("population-based training of 8 on MinAtar's Breakout, 500,000 steps", "pbt"),
        "pbt2M": ("the same, 2 million steps", "pbt"),
        "asterix2M": ("the same on MinAtar's Asterix, 2 million steps", "pbt"),
    }
    for kind, (label, way) in labels.items():
        kind = kind.strip()
        pairs = [(rows.get(f"{kind} random {i}"), rows.get(f"{kind} {way} {i}")) for i in range(3)]
        found = [(a, b) for a, b in pairs if a and b]
        if found:
            lines.append(
                f"| {label}, against random search, {len(found)} repeat{'s' * (len(found) > 1)} | {compared(found)} |"
            )
    if EVORL.exists():
        lines += evorl_lines(json.loads(EVORL.read_text()))
    return lines


def compared(found: list[tuple[dict[str, Any], dict[str, Any]]]) -> str:
    """Write returns, and shares of steps and seconds."""
    both = [
        [f"{row['eval_return_mean']:.1f} ± {row['eval_return_std']:.1f}" for row in pair]
        for pair in found
    ]
    drawn = [
        ["{:.1f} ± {:.1f}".format(*row["sampled"]) for row in pair]
        for pair in found
        if "sampled" in pair[1]
    ]
    steps = np.mean([b["env_steps"] / a["env_steps"] for a, b in found])
    seconds = [b["seconds"] / a["seconds"] for a, b in found]
    returns = "; ".join(f"{ours} (random {theirs})" for theirs, ours in both)
    if drawn:
        returns += "; with drawn actions " + "; ".join(
            f"{ours} (random {theirs})" for theirs, ours in drawn
        )
    spread = f"{np.median(seconds):.2f} [{min(seconds):.2f}, {max(seconds):.2f}]"
    return f"{returns}; {steps:.2f} × the steps, {spread} × the seconds"


def evorl_lines(done: dict[str, Any]) -> list[str]:
    """Write EvoRL's rows: processor seconds, since other work shared the cores."""
    lines = []
    ours = done["ours"]
    for name, label in (
        ("evorl", "its defaults"),
        ("evorl_cartpole_settings", "its settings for CartPole"),
    ):
        cells = [
            f"{np.median([one['processor_s'] for one in side]):.0f} s of processor time, returns "
            + ", ".join(f"{one['best_return_mean']:.0f}" for one in side)
            for side in (ours, done[name])
        ]
        head = (
            f"population-based training of 8, CartPole, 102,400 steps, against EvoRL with {label}"
        )
        lines.append(f"| {head} | {cells[0]}; EvoRL {cells[1]} |")
    return lines


if __name__ == "__main__":
    what, *rest = sys.argv[1:] or ["help"]
    if what == "one":
        measure_members(*map(int, rest))
    elif what == "members":
        members()
    elif what == "ray":
        for steps in map(int, rest or ["100000"]):
            ray(steps)
    elif what == "pages":
        write_page()
    elif what in ("halving", "pbt", "gp"):
        for repeat in range(3):
            {"halving": halving, "pbt": pbt, "gp": gp}[what](repeat)
    else:
        print(__doc__)
