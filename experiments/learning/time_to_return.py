"""Wall-clock time from the command to a return, start and compilation included, ours and theirs in
turn.

``python experiments/learning/time_to_return.py`` runs every row, ``... cartpole pendulum`` some,
``repeats=1`` fewer seeds. ``--plan`` prints the plan and the expected time, ``--page`` only writes
the table. Each is a new process with an empty cache ("second start": with the cache of the start
just before). Time counts from before the process exists to the moment at which an evaluation
reaches the return; then the process is stopped. Results in the file are not repeated, so an
interrupted row can be resumed. It needs the environments of ``make bench`` and ``make bench-host``,
and an otherwise idle machine.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import ROOT, commit, machine, versions
from time_to_return_page import reached_s, table
from time_to_return_rows import ROWS, Ours, Peer, Row

from jaxrl_fast.training.run_folder import read_columns

RESULT = Path(__file__).parent.parent / "results" / "time_to_return.json"
PAGE = RESULT.with_suffix(".md")
LOOK_S = 0.25
"""Interval in seconds at which a run of ours is checked."""
END_S = 120.0
COMMAND = (
    "\nimport sys\nfrom jaxrl_fast import train\nsys.exit(train.main(sys.argv[1:], keep=True))"
)
"""The program of ``-m jaxrl_fast.train``."""


def ours(row: Row, contender: Ours, seed: int, cache: Path) -> dict[str, Any]:
    """Run our command until its first evaluation at the goal, or its end."""
    if not contender.warm:
        shutil.rmtree(cache, ignore_errors=True)
    elif not cache.exists():
        ours(row, contender._replace(warm=False), seed, cache)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        program = (
            ["-c", contender.before + COMMAND] if contender.before else ["-m", "jaxrl_fast.train"]
        )
        words = [*program, *contender.words, f"seed={seed}", f"eval.every={row.every}"]
        variables = {**os.environ, "PYTHONPATH": str(ROOT), "JAXRL_FAST_CACHE": str(cache)}
        with open(Path(place) / "said.txt", "w+", encoding="utf-8") as said:
            began = time.time()
            command = [sys.executable, *words, f"run_dir={folder}"]
            process = subprocess.Popen(command, env=variables, cwd=place, stdout=said, stderr=said)
            curve = follow(process, folder, row.goal, began)
            ended = process.poll()
            end(process)
            if ended:
                said.seek(0)
                raise SystemExit(f"{' '.join(words)} ended with {ended}:\n{said.read()[-3000:]}")
    return {"curve": curve, "command": " ".join(["python", *words])}


def follow(process: subprocess.Popen, folder: Path, goal: float, began: float) -> list[list[float]]:
    """Yield evaluations as they arrive: (steps, mean return, seconds), until one is at the goal or
    the process has ended.
    """
    curve: list[list[float]] = []
    running = True
    while running and not any(value >= goal for _, value, _ in curve):
        running = process.poll() is None
        time.sleep(LOOK_S)
        now = time.time() - began
        known = len(curve)
        curve += [[*point, now] for point in evaluations(folder)[known:]]
    return curve


def evaluations(folder: Path) -> list[tuple[int, float]]:
    """Return (steps, mean return) of each evaluation in the run folder."""
    if not (folder / "evals.csv").exists():
        return []
    found = read_columns(folder / "evals.csv")
    steps = np.unique(found["env_steps"])
    return [
        (int(step), float(found["return"][found["env_steps"] == step].mean())) for step in steps
    ]


def end(process: subprocess.Popen) -> None:
    """Stop a run of ours as a user does."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def python_of(peer: Peer) -> Path:
    """Return the Python of the other library.

    Raises:
        SystemExit: Its environment is missing.
    """
    python = ROOT / peer.environment / "bin" / "python"
    if not python.exists():
        target = "bench-host" if peer.environment.endswith("host") else "bench"
        raise SystemExit(f"{peer.environment} is missing, which make {target} makes")
    return python


def theirs(row: Row, peer: Peer, seed: int) -> dict[str, Any]:
    """Run another library until its first evaluation at the goal, or its last step."""
    settings = [str(seed), str(row.goal), str(peer.steps), str(row.every)]
    words = ["peer_returns.py", *peer.words, *settings]
    variables = {
        name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"
    }
    command = [str(python_of(peer)), *words, repr(time.time())]
    done = subprocess.run(
        command,
        cwd=RESULT.parent.parent / "bench",
        env=variables,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    said = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not said:
        raise SystemExit(f"{' '.join(words)} ended:\n{done.stderr[-3000:]}")
    return {**json.loads(said[-1]), "command": " ".join([peer.environment, *words])}


def measure(name: str, document: dict[str, Any], repeats: int) -> None:
    """Make the missing runs of a row, contenders in turn, a seed a repeat; the file is written
    after each.
    """
    row, runs = ROWS[name], document["rows"].setdefault(name, {})
    with tempfile.TemporaryDirectory() as caches:
        for seed in range(repeats):
            for who, contender in {**row.ours, **row.peers}.items():
                done = runs.setdefault(who, [])
                if len(done) > seed:
                    continue
                if isinstance(contender, Ours):
                    cache = Path(caches) / f"{seed}-{'_'.join(contender.words)}".replace("/", "_")
                    found, seen = ours(row, contender, seed, cache), versions()
                else:
                    found, seen = theirs(row, contender, seed), versions(python_of(contender))
                found |= {"seed": seed, "reached_s": reached_s(found["curve"], row.goal)}
                done.append({**found, "machine": machine(), "versions": seen, "commit": commit()})
                RESULT.write_text(json.dumps(document, indent=1) + "\n")
                print(f"{name}, seed {seed}: {who}: {found['reached_s']} s", flush=True)


def plan(names: list[str], document: dict[str, Any], repeats: int | None) -> None:
    """Print the missing runs, and about how long they take."""
    for name in names:
        row, runs = ROWS[name], document["rows"].get(name, {})
        wanted = repeats or row.repeats
        lack = {who: max(0, wanted - len(runs.get(who, []))) for who in (*row.ours, *row.peers)}
        share = sum(lack.values()) / len(lack)
        print(
            f"{name}: about {row.minutes * share:.0f} minutes for {wanted} seeds; missing runs: {lack}"
        )


def main(words: list[str]) -> None:
    """Run the requested rows, and write the page."""
    names = [word for word in words if word in ROWS] or list(ROWS)
    given = [word for word in words if word.startswith("repeats=") and word[8:].isdigit()]
    unknown = [word for word in words if word not in (*ROWS, *given, "--plan", "--page")]
    if unknown:
        print(
            f"{unknown[0]}: write one of {', '.join(ROWS)}, repeats=3, --plan, --page",
            file=sys.stderr,
        )
        sys.exit(2)
    repeats = int(given[-1][8:]) if given else None
    document = json.loads(RESULT.read_text()) if RESULT.exists() else {"rows": {}}
    if "--plan" in words:
        plan(names, document, repeats)
        return
    asked = [] if "--page" in words else names
    for peer in (peer for name in asked for peer in ROWS[name].peers.values()):
        python_of(peer)
    for name in asked:
        measure(name, document, repeats or ROWS[name].repeats)
    PAGE.write_text(table(document))
    print(PAGE.read_text())


if __name__ == "__main__":
    main(sys.argv[1:])
