"""Parallel Q-learning as in the Reactor paper: ours against Ray, as the authors wrote it and tuned,
in turn.

The job: Blackjack, 16 environments x 100 steps and one update a round, 500 rounds, minibatches of
500, 1,000 and 2,000, MLP 3-32-2.

``make bench-ray`` makes Ray's environment and runs everything;
``python experiments/bench/q_learning.py [500|1000|2000 ...]`` runs some rows. ``workers`` compares
ours with workers that act, in shorter turns. A row's rounds that are already in the file are not
repeated, so an interrupted run can be resumed. ``--plan`` prints the plan, ``--page`` writes the
table only. Every contender is a new process. Ray and ours step the same Gymnasium Blackjack-v1,
except "ours, compiled", which has the same rules in JAX. Run it on an otherwise idle machine.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent)]

from describe import commit, machine, versions  # noqa: E402
from run import once, spread  # noqa: E402

RESULT = HERE.parent / "results" / "bench" / "q_learning.json"
RAY = Path(os.environ.get("BENCH_RAY", HERE.parent.parent / ".venv-peers-ray" / "bin" / "python"))
MINIBATCHES, ROUNDS, REPEATS = (500, 1000, 2000), 500, 3
CONTENDERS = {
    "ours, pool": (sys.executable, "ours_q.py", "pool"),
    "ours, callbacks": (sys.executable, "ours_q.py", "callback"),
    "ours, compiled": (sys.executable, "ours_q.py", "compiled"),
    "Ray, tuned": (str(RAY), "q_ray.py", "tuned"),
    "Ray, as written": (str(RAY), "q_ray.py", "written"),
    "Blackjack alone": (sys.executable, "q_alone.py", "18"),
}
WORKERS = {"ours, workers act": (sys.executable, "ours_q.py", "workers")}
WORKERS |= {"ours, workers act, overlap": (sys.executable, "ours_q.py", "overlap")}
WORKERS |= {name: CONTENDERS[name] for name in ("ours, pool", "Ray, tuned", "Blackjack alone")}
WORKERS |= {"Blackjack alone, shorter episodes": (sys.executable, "q_alone.py", "14")}
"""Programs of ``workers``, whose turns were run later and have separate results."""
WORKER_ROUNDS = 250
WRITTEN = "Ray, as written"
MUST, AIM = 0.688, 0.1
"""Relative to Ray tuned: the paper's −31.2 %, and −90 %."""
MINUTES = {500: 12, 1000: 6, 2000: 6}
"""On two cores."""


def turns(minibatch: int, name: str) -> int:
    """Number of runs of a contender.

    Ray as written takes five minutes where the others take seconds, and no ratio refers to it: it
    runs once, with the minibatch for which the paper gives a time.
    """
    if name != WRITTEN:
        return REPEATS
    return int(minibatch == MINIBATCHES[0])


def measure(
    minibatch: int, document: dict[str, Any], rounds: int, programs: dict[str, Any], path: Path
) -> None:
    """Run all contenders in turn, as often as results are missing; write after each."""
    runs = document["rows"].setdefault(str(minibatch), {})
    for repeat in range(REPEATS):
        for name, words in programs.items():
            done = runs.setdefault(name, [])
            if len(done) >= turns(minibatch, name) or len(done) > repeat:
                continue
            found = once(*words, str(minibatch), str(rounds))
            where = {"machine": machine(), "versions": versions(RAY), "commit": commit()}
            done.append(
                {**found, "command": " ".join([*words[1:], str(minibatch), str(rounds)]), **where}
            )
            path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            print(
                f"{minibatch}: {name} {found['seconds']:.1f} s, {found['total_s']:.1f} s in all",
                flush=True,
            )


def page(document: dict[str, Any], programs: dict[str, Any]) -> str:
    """Write the table, or a note that there is none yet."""
    seconds = f"{document['rounds']} rounds, s | ratio to Ray tuned | with start and compilation, s | ratio to Ray tuned"
    lines = [f"| minibatch | program | {seconds} | mean return at the end |"]
    lines.append("|---|---|---|---|---|---|---|")
    for minibatch in MINIBATCHES:
        runs = document["rows"].get(str(minibatch), {})
        ran = [name for name in programs if runs.get(name)]
        if not ran and programs is WORKERS:
            continue
        if not ran:
            lines.append(f"| {minibatch:,} | not run yet | | | | | |")
            continue
        lines += [line(minibatch, name, runs) for name in ran]
    return "\n".join(lines) + "\n"


def line(minibatch: int, name: str, runs: dict[str, list[dict[str, Any]]]) -> str:
    """Write a contender's line: medians [least, most]; ratios within a turn."""
    cells = [f"{minibatch:,}", name]
    for key in ("seconds", "total_s"):
        seconds = spread([run[key] for run in runs[name]])
        of = spread(
            [run[key] / ray[key] for run, ray in zip(runs[name], runs["Ray, tuned"], strict=False)]
        )
        cells.append(f"{seconds['median']:.1f} [{seconds['least']:.1f}, {seconds['most']:.1f}]")
        cells.append(f"{of['median']:.2f} [{of['least']:.2f}, {of['most']:.2f}]")
    cells.append(f"{spread([run['return'] for run in runs[name]])['median']:.3f}")
    return f"| {' | '.join(cells)} |"


def main(words: list[str]) -> None:
    """Measure the requested rows, and write the page."""
    known = [*map(str, MINIBATCHES), "--plan", "--page", "workers"]
    for word in words:
        if word not in known:
            raise SystemExit(f"{word}: write one of {', '.join(known)}")
    later = "workers" in words
    path, programs = (
        (RESULT.with_stem("q_learning_workers"), WORKERS) if later else (RESULT, CONTENDERS)
    )
    new = {"rounds": WORKER_ROUNDS if later else ROUNDS, "must": MUST, "aim": AIM, "rows": {}}
    document = json.loads(path.read_text()) if path.exists() else new
    asked = [int(word) for word in words if word.isdigit()] or list(MINIBATCHES)
    if "--plan" in words:
        for minibatch in asked:
            have = {
                name: len(document["rows"].get(str(minibatch), {}).get(name, []))
                for name in programs
            }
            wanted = {name: turns(minibatch, name) for name in programs}
            print(
                f"{minibatch}: about {MINUTES[minibatch]} minutes; required {wanted}, measured {have}"
            )
        return
    if "--page" not in words:
        if not RAY.exists():
            raise SystemExit(f"{RAY} is missing: run make bench-ray, which makes Ray's environment")
        for minibatch in asked:
            measure(minibatch, document, document["rounds"], programs, path)
    path.with_suffix(".md").write_text(page(document, programs))
    print(path.with_suffix(".md").read_text())


if __name__ == "__main__":
    main(sys.argv[1:])
