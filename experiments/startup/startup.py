"""How the seconds from the command to the first training step are spent, at a first and at a second
start.

``python experiments/startup/startup.py [repeats [job ...]]`` starts the real command in a new
process: *cold*, with an empty cache folder, then *warm*, with the cache of the first, ``repeats``
times (default 3); `startup_watch` attributes every moment. With the environment of the other
libraries (``make bench`` makes it; ``BENCH_PEERS=<its python>``; ``=off`` leaves them out) it
starts brax.training and Rejax the same way, whose second start has JAX's cache. Medians are written
to experiments/results/startup.json and startup.png, and the table into docs/startup.md. Run it on
an otherwise idle machine.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import ROOT, machine, versions

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results"
PEERS = os.environ.get("BENCH_PEERS", str(ROOT / ".venv-peers" / "bin" / "python"))
PAGE, BEGIN, END = ROOT / "docs" / "startup.md", "<!-- table -->\n", "<!-- end of the table -->\n"
PICTURE = "![Seconds of a start by phase](../experiments/results/startup.png)"
SMALL_S = 0.1
"""Smaller parts are shown as "rest"."""


class Job(NamedTuple):
    """Words of our command, and the script of the other library."""

    words: tuple[str, ...]
    peer: tuple[str, ...]


JOBS = {
    "halfcheetah SAC": Job(("env=halfcheetah", "algo=sac"), ("peer_brax.py", "sac")),
    "halfcheetah PPO": Job(("env=halfcheetah", "algo=ppo"), ("peer_brax.py", "ppo")),
    "CartPole PPO": Job(("env=cartpole", "algo=ppo"), ("peer_rejax.py", "rate")),
}
STARTS = ("cold", "warm")
WORK = ("tracing", "lowering", "compiling", "programs from disk", "programs to disk")


def start(python: str, words: tuple[str, ...], cache: Path, folder: Path) -> dict[str, Any]:
    """Measure one start until the first training step: seconds in all, and by name."""
    out = folder / "watched.json"
    peer = words[0].endswith(".py")
    own = () if peer else (f"run_dir={folder / 'run'}",)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    env |= {"JAX_COMPILATION_CACHE_DIR": str(cache)} if peer else {"JAXRL_FAST_CACHE": str(cache)}
    command = [python, str(HERE / "startup_watch.py"), str(out), repr(time.time()), *words, *own]
    cwd = HERE.parent / "bench" if peer else ROOT
    done = subprocess.run(
        command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if not out.exists():
        raise SystemExit(f"{' '.join(words)} ended:\n{done.stderr[-3000:]}")
    found = json.loads(out.read_text())
    names: Counter[str] = Counter()
    for thread, phase, work, seconds in found["rows"]:
        if thread == "main":
            names[phase if work == "python" else f"{phase}: {work}"] += seconds
    return {"total_s": found["total_s"], "by_name": dict(names.most_common())}


def pair(python: str, words: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Measure a cold start and a warm one after it."""
    with tempfile.TemporaryDirectory(
        ignore_cleanup_errors=True
    ) as folder:  # the evaluator ends a moment later
        found = {}
        for kind in STARTS:
            own = Path(folder) / kind
            own.mkdir()
            found[kind] = start(python, words, Path(folder) / "cache", own)
        return found


def summary(pairs: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Compute medians over the repeats; names come from the repeat whose total is the median."""
    result = {}
    for kind in STARTS:
        totals = sorted(one[kind]["total_s"] for one in pairs)
        middle = sorted((one[kind] for one in pairs), key=lambda one: one["total_s"])[
            len(pairs) // 2
        ]
        result[kind] = {
            "total_s": {
                "median": statistics.median(totals),
                "least": totals[0],
                "most": totals[-1],
            },
            "by_name": middle["by_name"],
        }
    return result


def spread(one: dict[str, float]) -> str:
    """Format the least and the most, where there were several starts."""
    return f" [{one['least']:.1f}, {one['most']:.1f}]" if one["least"] < one["most"] else ""


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Write the table of docs/startup.md."""
    lines = [
        "| job | first start, s | second start, s | peer, first | peer, second | first start, ratio to the peer |"
    ]
    lines.append("|---|---|---|---|---|---|")
    for name, row in rows.items():
        own = [row["ours"][kind]["total_s"] for kind in STARTS]
        cells = [f"{one['median']:.1f}{spread(one)}" for one in own]
        if "peer" in row:
            other = [row["peer"][kind]["total_s"]["median"] for kind in STARTS]
            cells += [*(f"{one:.1f}" for one in other), f"{own[0]['median'] / other[0]:.2f} ×"]
        else:
            cells += ["-", "-", "-"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def kinds(by_name: dict[str, float]) -> Counter[str]:
    """Sum the seconds by kind of work, over all phases."""
    found: Counter[str] = Counter()
    for name, seconds in by_name.items():
        phase, _, work = name.partition(": ")
        found["imports" if phase == "imports" else work if work in WORK else "other"] += seconds
    return found


def table_of_kinds(rows: dict[str, dict[str, Any]]) -> str:
    """Write the seconds by kind, a column for each start."""
    columns = {
        f"{job}, {kind}": kinds(row["ours"][kind]["by_name"])
        for job, row in rows.items()
        for kind in STARTS
    }
    lines = [f"| seconds | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    for work in ("imports", *WORK, "other"):
        lines.append(
            f"| {work} | {' | '.join(f'{column[work]:.1f}' for column in columns.values())} |"
        )
    return "\n".join(lines)


def parts(by_name: dict[str, float]) -> dict[str, float]:
    """Sum the seconds by name, the small ones together."""
    large = {name: seconds for name, seconds in by_name.items() if seconds >= SMALL_S}
    return {**large, "rest": sum(by_name.values()) - sum(large.values())}


def draw(rows: dict[str, dict[str, Any]], path: Path) -> None:
    """Plot a bar for each start, in its parts."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    bars = [
        (f"{job}, {kind}", parts(row["ours"][kind]["by_name"]))
        for job, row in rows.items()
        for kind in STARTS
    ]
    names = list(dict.fromkeys(name for _, part in bars for name in part))
    colors = {name: plt.get_cmap("tab20")(i % 20) for i, name in enumerate(names)}
    figure, axes = plt.subplots(figsize=(11, 0.7 * len(bars) + 2.5), layout="constrained")
    labelled: set[str] = set()
    for place, (_, part) in enumerate(bars):
        left = 0.0
        for name, seconds in part.items():
            label = None if name in labelled else name
            axes.barh(place, seconds, left=left, color=colors[name], label=label, edgecolor="white")
            labelled.add(name)
            left += seconds
        axes.text(left, place, f" {left:.1f} s", va="center")
    axes.set_yticks(range(len(bars)), [label for label, _ in bars])
    axes.invert_yaxis()
    axes.set_xlabel("seconds from the command to the first training step")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=4, fontsize=7, frameon=False)
    figure.savefig(path, dpi=130)


def main(repeats: str = "3", *jobs: str) -> None:
    """Measure, write and draw."""
    rows: dict[str, dict[str, Any]] = {}
    peers = PEERS != "off" and Path(PEERS).exists()
    for name, job in JOBS.items():
        if jobs and name not in jobs:
            continue
        ours, theirs = [], []
        for _ in range(int(repeats)):
            ours.append(pair(sys.executable, ("jaxrl_fast.train", *job.words)))
            if peers:
                theirs.append(pair(PEERS, job.peer))
            print(
                name, *(f"{kind} {ours[-1][kind]['total_s']:.1f} s" for kind in STARTS), flush=True
            )
        rows[name] = {"ours": summary(ours), **({"peer": summary(theirs)} if theirs else {})}
    result = {"machine": machine(), "versions": versions(), "repeats": int(repeats), "jobs": rows}
    (RESULTS / "startup.json").write_text(json.dumps(result, indent=1) + "\n")
    draw(rows, RESULTS / "startup.png")
    write_page(result)
    print(table(rows))


def write_page(result: dict[str, Any]) -> None:
    """Write the table into the page, with a description of the machine."""
    rows, repeats = result["jobs"], result["repeats"]
    shown = "Medians [least, most]" if repeats > 1 else "One start of each"
    measured = f"{shown}; {result['machine']}. {'The median start' if repeats > 1 else 'The start'} by phase"
    measured += " (*cold* is the first start, *warm* the second):"
    text = "\n\n".join((table(rows), measured, table_of_kinds(rows), PICTURE)) + "\n"
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}{text}{END}{after}")


if __name__ == "__main__":
    main(*sys.argv[1:])
