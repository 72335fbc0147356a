"""Defaults that nobody tuned, ours and Stable-Baselines3's and SBX's, after equal numbers of
environment steps.

``python experiments/learning/defaults.py`` makes all missing runs, ``... ppo Pendulum-v1`` only
some algorithms or environments; ``seeds=1`` fewer seeds, ``who=sb3`` one contender, ``core=1`` on
another core, ``--page`` only the table and the picture. Every run is a process on one core, and is
written when it ends, so an interrupted script goes on where it was. It needs the environment of
``make bench-host``, and ``box2d==2.3.10`` in both.

A score is 0 for random actions and 1 for the other library's mean return after as many steps. The
aggregate over environments is the mean score with a stratified bootstrap, by rliable (Agarwal et
al. 2021, arXiv 2108.13264).
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from defaults_page import draw, lines, write_page
from describe import ROOT, commit, machine, machines_line, versions
from learning import read_curve

RESULT = Path(__file__).parent.parent / "results" / "defaults.json"
PICTURE = RESULT.with_suffix(".png")
PEERS = ROOT / ".venv-peers-host" / "bin" / "python"
SEEDS, EVALUATIONS, EPISODES = 5, 10, 20
DISCRETE = ("CartPole-v1", "Acrobot-v1", "LunarLander-v3", "catch", "freeway")
CONTINUOUS = (
    "Pendulum-v1",
    "MountainCarContinuous-v0",
    "Hopper-v5",
    "Walker2d-v5",
    "HalfCheetah-v5",
    "hopper",
    "inverted_pendulum",
)
STEPS: dict[str, dict[str, tuple[int, ...]]] = {
    "ppo": dict.fromkeys((*DISCRETE, *CONTINUOUS), (100_000, 300_000)),
    "sac": dict.fromkeys(CONTINUOUS, (20_000,)),
    "td3": dict.fromkeys(CONTINUOUS, (20_000,)),
    "dqn": dict.fromkeys(DISCRETE, (50_000,)),
}
"""Environment steps by algorithm and environment. Nothing in the other libraries follows a run's
length, so that their longest run shows the smaller numbers, too.
"""
WHO = {"ppo": ("sb3",), "sac": ("sbx",), "td3": ("sbx",), "dqn": ("sbx",)}
"""Contenders. SBX has the settings of Stable-Baselines3, and is several times faster where networks
are large.
"""


def words_of(env: str) -> list[str]:
    """Return our words for an environment: an id of Gymnasium, or a short name."""
    return ["env=gymnasium", f"env.id={env}"] if "-v" in env else [f"env={env}"]


def ours(algo: str, env: str, steps: int, seed: int, core: int) -> dict[str, Any]:
    """Make a run of ours; seconds are of the processor, from before the process exists, and include
    evaluations.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        words = [
            "-m",
            "jaxrl_fast.train",
            *words_of(env),
            f"algo={algo}",
            "tuned=false",
            f"total_steps={steps}",
        ]
        words += [f"seed={seed}", f"eval.every={every(steps)}", f"eval.episodes={EPISODES}"]
        began, before = time.time(), processor_s()
        run(
            core,
            [sys.executable, *words, "checkpoint.keep=0", "log=none", f"run_dir={folder}"],
            place,
        )
        curve = [(p["env_steps"], p["returns"][0], p["wall_s"]) for p in read_curve(folder)]
        summary = json.loads((folder / "summary.json").read_text())
    passed_s, busy_s = time.time() - began, processor_s() - before
    start_s = passed_s - summary["wall_s"]
    return {
        "curve": [(n, value, (start_s + wall_s) * busy_s / passed_s) for n, value, wall_s in curve]
    }


def processor_s() -> float:
    """Return the seconds of the processor of all ended child processes, which other processes here
    do not prolong.
    """
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def theirs(library: str, algo: str, env: str, steps: int, seed: int, core: int) -> dict[str, Any]:
    """Make a run of another library, or random actions."""
    words = ["peer_defaults.py", library, algo, env, str(seed), str(steps), str(every(steps))]
    return json.loads(
        run(core, [str(PEERS), *words], ROOT / "experiments" / "bench").splitlines()[-1]
    )


def every(steps: int) -> int:
    """Return the steps between evaluations."""
    return 20_000 if steps % 100_000 == 0 else steps // EVALUATIONS


def run(core: int, command: list[str], place: Any) -> str:
    """Run a command on one core, and return what it printed."""
    done = subprocess.run(
        ["taskset", "-c", str(core), *command],
        cwd=place,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        raise SystemExit(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}"
        )
    return done.stdout


def tasks(words: list[str]) -> list[tuple[str, str, str, int, int]]:
    """List (contender, algorithm, environment, steps, seed) of the asked runs, one seed after
    another.
    """
    algos = [word for word in words if word in STEPS] or list(STEPS)
    found = []
    for seed in range(int(option(words, "seeds", SEEDS))):
        for algo in algos:
            for env, numbers in STEPS[algo].items():
                if any(word in (*DISCRETE, *CONTINUOUS) for word in words) and env not in words:
                    continue
                found += [("ours", algo, env, steps, seed) for steps in numbers]
                found += [(library, algo, env, max(numbers), seed) for library in WHO[algo]]
                found += [("random", "ppo", env, 0, seed)]
    who = option(words, "who", None)
    return list(dict.fromkeys(task for task in found if who in (None, task[0])))


def option(words: list[str], name: str, default: Any) -> Any:
    """Return the value of a word ``name=value``."""
    return next((word.partition("=")[2] for word in words if word.startswith(f"{name}=")), default)


def measure(words: list[str]) -> None:
    """Make the missing runs of a list."""
    core = int(option(words, "core", 0))
    for who, algo, env, steps, seed in tasks(words):
        key = f"{who} {algo} {env} {steps} {seed}"
        if key in read():
            continue
        made = (
            ours(algo, env, steps, seed, core)
            if who == "ours"
            else theirs(who, algo, env, steps, seed, core)
        )
        seen = versions() if who == "ours" else versions(PEERS)
        done = read() | {key: {**made, "machine": machine(), "versions": seen, "commit": commit()}}
        RESULT.write_text(json.dumps(done, indent=1) + "\n")
        print(key, *made["curve"][-1], flush=True)


def read() -> dict[str, Any]:
    """Return all runs by key."""
    return json.loads(RESULT.read_text()) if RESULT.exists() else {}


if __name__ == "__main__":
    if "--page" not in sys.argv:
        measure(sys.argv[1:])
    runs = read()
    found = lines(runs, STEPS, WHO)
    write_page(found, machines_line(runs.values()))
    if found:
        draw(found, PICTURE)
