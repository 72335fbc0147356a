"""Learning in other libraries' suites: nothing tuned but Craftax, next to random actions and their
own trainers.

``python experiments/learning/suites.py`` makes the missing runs, ``... CheetahRun sac`` only some
rows or algorithms, ``seeds=1`` fewer seeds, ``core=1`` on another core; ``--page`` only the table
of ``docs/suites.md``. Every run is a process on one core, and is written when it ends, so an
interrupted script goes on where it was. It needs the environment of ``make suites``; peers need
``.venv-peers`` of ``make bench`` with ``playground<1`` and ``craftax``.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import ROOT, commit, machine, machines_line, versions
from learning import read_curve

from jaxrl_fast.numerics.intervals import mean_interval

RESULT, PAGE = ROOT / "experiments" / "results" / "suites.json", ROOT / "docs" / "suites.md"
PEERS = ROOT / ".venv-peers" / "bin" / "python"
SEEDS, EVALUATIONS, EPISODES = 3, 10, 32
MARKS = "<!-- learning -->", "<!-- end of learning -->"


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        suite: Suite of the environment.
        id: Its id.
        algos: Algorithms, nothing tuned.
        steps: Environment steps of a run.
        peer: What else learns there, if anything, as `peer_suites.py` names it.
        words: More words of the command.
    """

    suite: str
    id: str
    algos: tuple[str, ...]
    steps: int
    peer: str = ""
    words: tuple[str, ...] = ("tuned=false",)


# Rejax evaluates sampled actions, and has the settings of Craftax's authors, as our tuned file of
# PPO.
CRAFTAX = "tuned=true", "eval.sample=true"
SAC = ("sac", "flash_sac")
ROWS = [
    Row("playground", "CartpoleSwingup", SAC, 150_000, "brax_sac"),
    Row("playground", "FingerSpin", SAC, 150_000, "brax_sac"),
    Row("playground", "CheetahRun", SAC, 150_000, "brax_sac"),
    Row("playground", "WalkerRun", SAC, 150_000, "brax_sac"),
    Row("playground", "HopperHop", SAC, 150_000, "brax_sac"),
    Row("craftax", "Craftax-Classic-Symbolic-v1", ("ppo", "pqn"), 1_000_000, "rejax_ppo", CRAFTAX),
    Row("xminigrid", "XLand-MiniGrid-R1-9x9", ("ppo",), 500_000),
    Row("xminigrid", "MiniGrid-Empty-8x8", ("ppo",), 500_000),
    Row("jumanji", "Snake-v1", ("ppo",), 10_000_000),
    Row("jumanji", "Game2048-v1", ("ppo",), 1_000_000),
    Row("octax", "brix", ("ppo",), 200_000),
    Row("octax", "cavern1", ("ppo",), 200_000),
    Row("pgx", "2048", ("ppo",), 1_000_000),
    Row("pgx", "connect_four", ("ppo",), 500_000),
]


def ours(row: Row, algo: str, seed: int, core: int) -> dict[str, Any]:
    """Make a run of ours; return its curve of (steps, mean return of an evaluation) and its rates."""
    words = [f"env={row.suite}", f"env.id={row.id}", f"algo={algo}", f"seed={seed}", "devices=1"]
    # it has no distribution
    words += [word for word in row.words if (algo, word) != ("pqn", "eval.sample=true")]
    words += [
        f"total_steps={row.steps}",
        f"eval.every={row.steps // EVALUATIONS}",
        f"eval.episodes={EPISODES}",
    ]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        began = time.time()
        run(
            core,
            [
                sys.executable,
                "-m",
                "jaxrl_fast.train",
                *words,
                "checkpoint.keep=0",
                "log=none",
                f"run_dir={folder}",
            ],
        )
        curve = [(point["env_steps"], point["returns"][0]) for point in read_curve(folder)]
        summary = json.loads((folder / "summary.json").read_text())
    rates = {
        name: summary[name] for name in ("steps_per_s", "compile_s", "num_envs") if name in summary
    }
    return {"curve": curve, "seconds": time.time() - began, **rates}


def at_random(row: Row, core: int) -> dict[str, Any]:
    """Return the mean return of episodes of random actions."""
    script = Path(__file__).with_name("suites_random.py")
    return {
        "curve": [
            (0, float(run(core, [sys.executable, str(script), row.suite, row.id]).split()[-1]))
        ]
    }


def theirs(row: Row, seed: int, core: int) -> dict[str, Any]:
    """Make a run of another library's trainer."""
    script = ROOT / "experiments" / "bench" / "peer_suites.py"
    words = [
        str(PEERS),
        str(script),
        row.peer,
        row.id,
        str(seed),
        str(row.steps),
        str(row.steps // EVALUATIONS),
    ]
    return json.loads(run(core, words).splitlines()[-1])


def run(core: int, command: list[str]) -> str:
    """Run a command on one core, and return what it printed."""
    done = subprocess.run(
        ["taskset", "-c", str(core), *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        raise SystemExit(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}"
        )
    return done.stdout


def measure(words: list[str]) -> None:
    """Make the missing runs of the asked rows, one seed after another."""
    options = dict(word.split("=") for word in words if "=" in word)
    core, seeds = int(options.get("core", 0)), int(options.get("seeds", SEEDS))
    asked = [row for row in ROWS if row.id in words] or ROWS
    for seed in range(seeds):
        for row in asked:
            whos = [
                *row.algos,
                *([row.peer] if row.peer and seed == 0 else []),
                *(["random"] if seed == 0 else []),
            ]
            for who in [who for who in whos if who in words] or whos:
                _measure_one(row, who, seed, core)


def _measure_one(row: Row, who: str, seed: int, core: int) -> None:
    key = f"{row.id} {who} {seed}"
    if key in read():
        return
    if who in row.algos:
        made = ours(row, who, seed, core)
    else:
        made = at_random(row, core) if who == "random" else theirs(row, seed, core)
    seen = versions(PEERS) if who == row.peer else versions()
    done = read() | {key: {**made, "machine": machine(), "versions": seen, "commit": commit()}}
    RESULT.write_text(json.dumps(done, indent=1) + "\n")
    print(key, made["curve"][-1], round(made.get("seconds", 0)), flush=True)


def read() -> dict[str, Any]:
    """Return all runs by key."""
    return json.loads(RESULT.read_text()) if RESULT.exists() else {}


def cell(runs: dict[str, Any], id: str, who: str) -> str:
    """Return the mean last return of all seeds with its 95 % interval, and the steps per second."""
    found = [runs[key] for key in runs if key.rsplit(" ", 1)[0] == f"{id} {who}"]
    last = [run["curve"][-1][1] for run in found]
    if not last:
        return "not run"
    middle = statistics.mean(last)
    interval = mean_interval(last)
    if interval is None:
        return f"{middle:.4g}{f' ({len(last)} seeds)' if len(last) > 1 else ''}"
    return f"{middle:.4g} [{interval[0]:.4g}, {interval[1]:.4g}]"


def write_page() -> None:
    """Write the table between its marks."""
    runs = read()
    head = [
        "environment",
        "steps",
        "random",
        "PPO",
        "PQN",
        "SAC",
        "FlashSAC",
        "another trainer, one seed",
    ]
    rows = [head, ["---"] * len(head)]
    for row in [row for row in ROWS if any(key.startswith(f"{row.id} ") for key in runs)]:
        cells = [
            cell(runs, row.id, algo) if algo in row.algos else ""
            for algo in ("ppo", "pqn", "sac", "flash_sac")
        ]
        peer = f"{cell(runs, row.id, row.peer)} ({row.peer.replace('_', ' ')})" if row.peer else ""
        rows.append(
            [f"{row.suite} {row.id}", f"{row.steps:,}", cell(runs, row.id, "random"), *cells, peer]
        )
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    before, after = PAGE.read_text().split(MARKS[0])[0], PAGE.read_text().split(MARKS[1])[1]
    PAGE.write_text(
        f"{before}{MARKS[0]}\n{table}\n\n{machines_line(runs.values())}\n{MARKS[1]}{after}"
    )


if __name__ == "__main__":
    if "--page" not in sys.argv:
        measure(sys.argv[1:])
    write_page()
