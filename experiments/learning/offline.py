"""Learning from recorded data: IQL and TD3+BC next to behaviour cloning and d3rlpy, and then
online.

``python experiments/learning/offline.py`` makes the missing runs, one after another;
``... Hopper-v5 iql`` only some; ``--page`` only the page ``docs/offline.md``. The data are made by
SAC, untuned: its first steps, up to half of its return (*half*), and episodes of its final policy
(*final*). They stay in ``experiments/data``, which git ignores. A result is written when its run
ends, so an interrupted script goes on where it was.

d3rlpy has a separate environment: ``python -m venv .venv-d3rlpy``,
``.venv-d3rlpy/bin/pip install d3rlpy==2.8.1``.
"""

import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import teachers

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import ROOT, commit, machine, versions

import jaxrl_fast as jf
from jaxrl_fast.numerics.intervals import mean_interval
from jaxrl_fast.offline.datasets import episodes_in, join, load_dataset, save_dataset, steps_in

RESULT, PAGE = ROOT / "experiments" / "results" / "offline.json", ROOT / "docs" / "offline.md"
DATA, PEER = ROOT / "experiments" / "data", ROOT / ".venv-d3rlpy" / "bin" / "python"
SAC_STEPS = {"Pendulum-v1": 20_000, "HalfCheetah-v5": 100_000, "Hopper-v5": 100_000}
RANDOM = {"Pendulum-v1": -1_200.0, "HalfCheetah-v5": -280.0, "Hopper-v5": 18.0}
"""Mean return of uniformly random actions, from which half of SAC's return is counted."""
KINDS = "half", "final"
UPDATES = {"Pendulum-v1": 10_000, "HalfCheetah-v5": 25_000, "Hopper-v5": 25_000}
SEEDS, EPISODES, ONLINE = 3, 20, 20_000
SEEDS_ANEW = {"HalfCheetah-v5": 5, "Hopper-v5": 8}
"""Runs without data, whose returns vary most."""
OURS, THEIRS = ("bc", "iql", "td3_bc"), ("d3rlpy bc", "d3rlpy iql", "d3rlpy td3_bc")
ONLINE_ROWS = "online iql", "online td3_bc", "online sac", "anew sac"


def train(*words: str) -> None:
    """Run the command of training."""
    subprocess.run(
        [sys.executable, "-m", "jaxrl_fast.train", *words],
        check=True,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )


def environment(env: str) -> list[str]:
    """Return the words of an environment."""
    return [
        "env=gymnasium",
        f"env.id={env}",
        "tuned=false",
        "devices=1",
        "num_envs=1",
        f"eval.episodes={EPISODES}",
    ]


def make_data(env: str) -> None:
    """Train SAC, and write both data sets."""
    run, steps = DATA / f"sac_{env}", SAC_STEPS[env]
    if not (run / "summary.json").exists():
        every = [f"eval.every={steps // 20}", f"checkpoint.every={steps}"]
        train(*environment(env), "algo=sac", f"total_steps={steps}", *every, f"run_dir={run}")
    collect = [sys.executable, "-m", "jaxrl_fast.collect", str(run)]
    if not (DATA / f"{env}_final").exists():
        subprocess.run(
            [*collect, f"out={DATA / f'{env}_final'}", "episodes=50", "policy=best"],
            check=True,
            cwd=ROOT,
        )
    if (DATA / f"{env}_half").exists():
        return
    subprocess.run([*collect, f"out={DATA / f'{env}_whole'}", "replay=true"], check=True, cwd=ROOT)
    curve = [(at, value) for (_, at), value in evaluations(run).items()]
    half = RANDOM[env] + 0.5 * (max(value for _, value in curve) - RANDOM[env])
    until = next(at for at, value in curve if value >= half)
    spec = spec_of(env)
    whole = steps_in(load_dataset(DATA / f"{env}_whole"), spec)
    first = jax.tree.map(lambda x: x[:until, None], whole)
    about = {
        "algo": "sac",
        "replay": f"the first {until} of {steps} steps, until a return of {half:.0f}",
    }
    save_dataset(join(episodes_in(first), spec, about), DATA / f"{env}_half")


def spec_of(env: str) -> Any:
    """Return the spec of an environment."""
    made = jf.make_env("gymnasium", id=env, num_envs=1)
    made.close()
    return made.spec


def ours(env: str, kind: str, algo: str) -> dict[str, Any]:
    """Train all seeds of an algorithm of this package on a data set; return the last evaluation of
    each.
    """
    steps, began = UPDATES[env], time.time()
    words = [
        f"algo={algo}",
        f"data={DATA / f'{env}_{kind}'}",
        f"total_steps={steps}",
        f"num_seeds={SEEDS}",
    ]
    # A wide tick makes many updates in one program; nothing else depends on it while a run is
    # offline.
    words += ["algo.updates_per_tick=50", "algo.rollout_length=50", f"eval.every={steps}"]
    return {"returns": trained(env, *words), "seconds": time.time() - began}


def online(env: str, algo: str) -> dict[str, Any]:
    """Learn from the first data set alone, then for `ONLINE` steps also from the environment; or
    anew, without data.
    """
    began, place, seeds = time.time(), DATA / f"{env}_half", []
    kind, algo = algo.split()
    for seed in range(SEEDS_ANEW.get(env, SEEDS) if kind == "anew" else SEEDS):
        words = [f"algo={algo}", f"seed={seed}", f"eval.every={ONLINE // 4}"]
        if kind == "anew":
            words += [f"total_steps={ONLINE}"]
        else:
            offline = 0 if algo == "sac" else UPDATES[env]
            words += [f"data={place}", f"total_steps={offline + ONLINE}", f"online_steps={ONLINE}"]
        seeds += trained(env, *words)
    return {"returns": seeds, "seconds": time.time() - began}


def trained(env: str, *words: str) -> list[float]:
    """Train a run, and return the mean return of each seed's last evaluation."""
    with tempfile.TemporaryDirectory() as place:
        train(*environment(env), *words, f"run_dir={place}/run", "log=none", "checkpoint.keep=0")
        found = evaluations(Path(place) / "run")
    last = max(at for _, at in found)
    return [value for (_, at), value in sorted(found.items()) if at == last]


def evaluations(run: Path) -> dict[tuple[int, int], float]:
    """Return the mean return of each evaluation by seed and steps."""
    returns: dict[tuple[int, int], list[float]] = {}
    with (run / "evals.csv").open() as file:
        for row in csv.DictReader(file):
            returns.setdefault((int(row["seed"]), int(row["env_steps"])), []).append(
                float(row["return"])
            )
    return {at: float(np.mean(values)) for at, values in returns.items()}


def theirs(env: str, kind: str, algo: str) -> dict[str, Any]:
    """Train three seeds of d3rlpy's algorithm on the same files, with as many updates."""
    began, returns = time.time(), []
    script = Path(__file__).with_name("offline_peer.py")
    for seed in range(SEEDS):
        words = [
            str(DATA / f"{env}_{kind}"),
            env,
            algo,
            str(seed),
            str(UPDATES[env]),
            str(EPISODES),
        ]
        ended = subprocess.run(
            [str(PEER), str(script), *words], check=True, capture_output=True, text=True
        )
        returns.append(float(ended.stdout.split()[-1]))
    return {"returns": returns, "seconds": time.time() - began}


def interval(returns: list[float]) -> tuple[float, float, float]:
    """Return mean and 95 % interval of the mean, by Student's t."""
    low, high = mean_interval(returns) or (float("nan"), float("nan"))
    return float(np.mean(returns)), low, high


def read() -> dict[str, Any]:
    """Return all results by key."""
    return json.loads(RESULT.read_text()) if RESULT.exists() else {}


def write(key: str, made: dict[str, Any]) -> None:
    """Add a result to the file."""
    done = read() | {
        key: {**made, "machine": machine(), "versions": versions(), "commit": commit()}
    }
    RESULT.write_text(json.dumps(done, indent=1) + "\n")
    print(key, made, flush=True)


HEAD = """# Learning from data

`python experiments/learning/offline.py` makes these runs and writes this page. The mean return of three seeds with its
95 % interval, each seed's as the mean of 20 greedy episodes after the last update. *half*: the first steps of SAC,
untuned, up to half of its return. *final*: 50 episodes of its best policy. Both sides learn from the same files, with
as many updates of 256 steps and their own defaults.
"""


def write_page() -> None:
    """Write the tables of all results."""
    done, lines = read(), [HEAD]
    names = [*OURS, *THEIRS]
    rows = [
        [f"{env}, {kind}", *(cell(done, f"{env} {kind} {name}") for name in names)]
        for env in SAC_STEPS
        for kind in KINDS
    ]
    lines += table(["data", *names], rows)
    lines += [
        f"Then {ONLINE:,} steps in the environment, half of each batch recorded (*half*).",
        "`anew` has no data; on HalfCheetah and Hopper, whose returns differ most, it has five and eight seeds.",
        "",
    ]
    rows = [[env, *(cell(done, f"{env} {name}") for name in ONLINE_ROWS)] for env in SAC_STEPS]
    lines += table(["environment", *ONLINE_ROWS], rows)
    PAGE.write_text("\n".join([*lines, *teacher_lines()]))


TAUGHT = """## A teacher

`python experiments/learning/teachers.py`: Pendulum whose angular velocity only the teacher sees (SAC). The student is
PPO with a GRU of 64 units. Environment steps until a greedy evaluation of 50 episodes has 95 % of the teacher's score
(0 for random actions), three seeds. The teacher's own steps are not counted.
"""


def teacher_lines() -> list[str]:
    """Return the section on teachers, if there are results."""
    done = teachers.read()
    named = [name for name in ("taught", "alone") if name in done]
    if not named:
        return []
    rows = [[name, *(f"{steps:,.0f}" for steps in teachers.steps_of(done, name))] for name in named]
    return [TAUGHT, *table(["student", "seed 0", "seed 1", "seed 2"], rows)]


def cell(done: dict[str, Any], key: str) -> str:
    """Return the text of a result."""
    if key not in done:
        return "not run"
    mean, low, high = interval(done[key]["returns"])
    return f"{mean:,.0f} [{low:,.0f}, {high:,.0f}]"


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Return the lines of a table."""
    return [f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows]] + [""]


def main(words: list[str]) -> None:
    """Make the missing rows."""
    envs = [env for env in SAC_STEPS if env in words] or list(SAC_STEPS)
    asked = [name for name in (*OURS, *THEIRS, *ONLINE_ROWS) if name.replace(" ", "_") in words]
    asked = asked or [*OURS, *THEIRS, *ONLINE_ROWS]
    for env in envs if "--page" not in words else ():
        make_data(env)
        for name in asked:
            for kind in ("",) if name in ONLINE_ROWS else KINDS:
                key = " ".join(filter(None, (env, kind, name)))
                if key in read():
                    continue
                if name in ONLINE_ROWS:
                    write(key, online(env, name))
                else:
                    write(key, (ours if name in OURS else theirs)(env, kind, name))
    write_page()


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main(sys.argv[1:])
