"""The learning table: each row is a command over several seeds.

Figures, curve and settings are written to ``experiments/results/``, the table to
``docs/learning.md``.

``python experiments/learning/learning.py`` runs every row,
``python experiments/learning/learning.py cartpole_ppo`` one, and
``python experiments/learning/learning.py --page`` only writes the table. An interrupted row resumes
with its missing seeds; its run folders are in ``runs/learning/``. A finished row runs again.
"""

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import machine, versions
from learning_page import draw, table_line, value_of, write_page
from learning_rows import PEERS, ROWS, Peer, Row

from jaxrl_fast.numerics.intervals import mean_interval
from jaxrl_fast.training.episodes import interquartile_mean
from jaxrl_fast.training.run_folder import read_columns

RESULTS = Path(__file__).parent.parent / "results"
RUNS = Path("runs") / "learning"


def main(names: list[str]) -> None:
    """Run rows, and write the table of all that have results."""
    known = {**ROWS, **PEERS}
    unknown = set(names) - {"--page", *known}
    if unknown:
        raise SystemExit(f"{', '.join(unknown)}: write one of {', '.join(known)}")
    RESULTS.mkdir(exist_ok=True)
    for name in [] if "--page" in names else names or known:
        result = measure(name, ROWS[name]) if name in ROWS else measure_peer(name, PEERS[name])
        (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
        draw(result["curve"], result["command"], RESULTS / f"{name}.png", value_of(known[name]))
        print(table_line(name, result, {}), flush=True)
    write_page(RESULTS)


def measure(name: str, row: Row) -> dict[str, Any]:
    """Train the missing seeds, and store the results of all."""
    groups = [(seed, 1) for seed in range(row.num_seeds)] if row.apart else [(0, row.num_seeds)]
    folders = [train(name, row, first, count) for first, count in groups]
    curve = merge(
        [read_curve(folder, "success" if row.success else "return") for folder in folders]
    )
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in folders]
    shutil.copy(folders[0] / "config.yaml", RESULTS / f"{name}.yaml")
    shutil.rmtree(RUNS / name)
    return {
        "command": " ".join(
            ["python", "-m", "jaxrl_fast.train", *row.words, f"num_seeds={row.num_seeds}"]
        ),
        "one_program_for_all_seeds": not row.apart,
        "must_reach": row.must_reach,
        **end_of(curve),
        "wall_s": sum(summary["wall_s"] for summary in summaries),
        "summaries": summaries,
    }


def measure_peer(name: str, peer: Peer) -> dict[str, Any]:
    """Make a whole run of another library."""
    bench = RESULTS.parent / "bench"
    python = (
        bench.parent.parent / peer.environment / "bin" / "python"
        if peer.environment
        else Path(sys.executable)
    )
    if not python.exists():
        target = "bench-host" if peer.environment.endswith("host") else "bench"
        raise SystemExit(f"{name}: {peer.environment} is missing, which make {target} makes")
    done = subprocess.run(
        [python, *peer.words], cwd=bench, stdout=subprocess.PIPE, text=True, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    curve = [
        {
            "env_steps": steps,
            "returns": value if isinstance(value, list) else [value],
            "wall_s": wall_s,
        }
        for steps, value, wall_s in found["curve"]
    ]
    command = " ".join([peer.environment or "python", *peer.words])
    return {
        "command": command,
        **end_of(curve),
        "wall_s": found["seconds"],
        "versions": versions(python),
    }


def end_of(curve: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of the last evaluation, the whole curve, and a description of the machine."""
    last = np.array(curve[-1]["returns"])
    return {
        "machine": machine(),
        "python": platform.python_version(),
        "return_mean": float(last.mean()),
        "return_ci95": mean_interval(last),
        "return_iqm": interquartile_mean(last),
        "env_steps": curve[-1]["env_steps"],
        "curve": curve,
    }


def train(name: str, row: Row, first: int, count: int) -> Path:
    """Return the folder of some seeds' run, after starting or resuming it where it is not finished."""
    folder = RUNS / name / f"seed-{first}"
    if not finished(folder):
        words = ["-m", "jaxrl_fast.train", *row.words, f"seed={first}", f"num_seeds={count}"]
        subprocess.run([sys.executable, *words, f"run_dir={folder}", "resume=auto"], check=True)
    return folder


def finished(folder: Path) -> bool:
    """Return whether a run's last start finished."""
    summary = folder / "summary.json"
    return summary.exists() and json.loads(summary.read_text())["stopped_by"] is None


def read_curve(folder: Path, column: str = "return") -> list[dict[str, Any]]:
    """Return steps, seconds and each seed's mean of a ``column``, the greedy return, of every
    evaluation.
    """
    table = read_columns(folder / "evals.csv")
    curve = []
    for steps in np.unique(table["env_steps"]):
        at = table["env_steps"] == steps
        returns = [
            float(table[column][at & (table["seed"] == seed)].mean())
            for seed in np.unique(table["seed"])
        ]
        curve.append(
            {
                "env_steps": int(steps),
                "wall_s": float(table["wall_s"][at].max()),
                "returns": returns,
            }
        )
    return curve


def merge(curves: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Join curves of other seeds at the same steps into one; seconds are the sum over all runs."""
    return [
        {
            "env_steps": points[0]["env_steps"],
            "wall_s": sum(point["wall_s"] for point in points),
            "returns": [value for point in points for value in point["returns"]],
        }
        for points in zip(*curves, strict=True)
    ]


if __name__ == "__main__":
    main(sys.argv[1:])
