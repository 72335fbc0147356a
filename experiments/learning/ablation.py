"""The value of each idea: wall-clock time to the return with the default command, and with one idea
left out or added.

``python experiments/learning/ablation.py [halfcheetah] [halfcheetah_v5] [seeds=1]`` (90 minutes, on
an otherwise idle machine) starts every variant of a row in turn, a new process for each seed, until
an evaluation reaches the return. Programs are on disk from an earlier start, except for the variant
without cached programs. The result is written to experiments/results/ablation.json and
ablation.png, and the table to ablation.md. Results in the file are not repeated; ``--page`` only
draws.
"""

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import commit, machine, versions
from time_to_return import ours
from time_to_return_page import reached_s
from time_to_return_rows import Ours, Row

RESULT = Path(__file__).parent.parent / "results" / "ablation.json"
AS_IT_IS = "as it is"
LABELS = {
    AS_IT_IS: "default",
    "no kept programs": "no cached programs",
    "no bank of fresh starts": "no bank of initial states",
    "with actor and critic apart": "actor and critic on separate devices",
    "with both apart and overlap": "actor and critic on separate devices, overlap",
    "with sampling divided": "sampling on both devices",
}
"""Names of the table for names of the result file."""
EVERY_STEP = "import jaxrl_fast.envs.env as env\nenv.FRESH_INTERVAL = 1"
"""Initial states for every environment at every step, as auto-reset draws them in other libraries.
"""


class Part(NamedTuple):
    """A row: its words, the return, and the choice of seeds and of steps between evaluations.

    ``ways``: by name, additional words, and Python that runs first.
    """

    title: str
    words: str
    goal: float
    every: int
    seeds: int
    ways: dict[str, tuple[str, str]]


COMMON = {
    AS_IT_IS: ("", ""),
    "no kept programs": ("", ""),
    "evaluation between chunks": ("eval.beside=false", ""),
}
GROUPS = "placement=actor_critic devices=2"
PARTS = {
    "halfcheetah": Part(
        "brax halfcheetah (spring), SAC, to 1,500",
        "env=halfcheetah algo=sac",
        1_500.0,
        8_000,
        3,
        {
            **COMMON,
            "an eighth of the width": ("num_envs=4 algo.updates_per_tick=4", ""),
            "no bank of fresh starts": ("", EVERY_STEP),
            "with actor and critic apart": (GROUPS, ""),
            "with both apart and overlap": (f"{GROUPS} overlap=all", ""),
            "with sampling divided": ("placement=sharded_sampling devices=2", ""),
        },
    ),
    "halfcheetah_v5": Part(
        "HalfCheetah-v5, SAC, to 4,000",
        "env=gymnasium env.id=HalfCheetah-v5 algo=sac",
        4_000.0,
        5_000,
        1,
        {
            **COMMON,
            "no pool of processes": ("pool.workers=0 pool.num_groups=1", ""),
            "one environment": ("num_envs=1 algo.updates_per_tick=1 pool.num_groups=1", ""),
            "with actor and critic apart": (GROUPS, ""),
            "with both apart and overlap": (f"{GROUPS} overlap=all", ""),
        },
    ),
}


def contender(part: Part, way: str) -> Ours:
    """Return the command of a variant."""
    words, before = part.ways[way]
    return Ours(
        tuple(f"{part.words} {words}".split()), warm=way != "no kept programs", before=before
    )


def measure(name: str, document: dict[str, Any], seeds: int) -> None:
    """Make the missing runs: all variants, seed by seed; the file is written after each."""
    part, runs = PARTS[name], document["rows"].setdefault(name, {})
    row = Row(part.title, part.goal, part.every, {}, {}, {}, {}, seeds, 0.0)
    first_evaluation = row._replace(goal=-float("inf"))
    with tempfile.TemporaryDirectory() as caches:
        for seed in range(seeds):
            for number, way in enumerate(part.ways):
                done = runs.setdefault(way, [])
                if len(done) > seed:
                    continue
                command, cache = contender(part, way), Path(caches) / str(number)
                if command.warm and not cache.exists():
                    ours(first_evaluation, command._replace(warm=False), seed, cache)
                found = ours(row, command, seed, cache)
                found |= {"seed": seed, "reached_s": reached_s(found["curve"], part.goal)}
                done.append(
                    {**found, "machine": machine(), "versions": versions(), "commit": commit()}
                )
                RESULT.write_text(json.dumps(document, indent=1) + "\n")
                print(f"{name}, seed {seed}: {way}: {found['reached_s']} s", flush=True)


def worth(runs: dict[str, list[dict[str, Any]]], way: str) -> tuple[list[float], list[float]]:
    """Return the seconds to the return, and their ratio to the default command's, over seeds that
    both brought there.
    """
    pairs = zip(runs.get(way, []), runs.get(AS_IT_IS, []), strict=False)
    reached = [
        (a["reached_s"], b["reached_s"]) for a, b in pairs if a["reached_s"] and b["reached_s"]
    ]
    return [a for a, _ in reached], [a / b for a, b in reached]


def speed(runs: dict[str, list[dict[str, Any]]], way: str) -> str:
    """Return environment steps a second between a run's first evaluation and its last."""
    spans = [(run["curve"][0], run["curve"][-1]) for run in runs[way] if len(run["curve"]) > 1]
    rates = [(last[0] - first[0]) / (last[2] - first[2]) for first, last in spans]
    return f"{statistics.median(rates):,.0f}" if rates else "–"


def steps(done: list[dict[str, Any]]) -> str:
    """Return environment steps at the evaluation that reached the return, of runs that reached it."""
    found = [run["curve"][-1][0] for run in done if run["reached_s"]]
    return f"{statistics.median(found):,.0f}" if found else "–"


def spread(values: list[float], digits: int) -> str:
    """Format as median [least, most]."""
    if not values:
        return "–"
    found = [
        f"{value:.{digits}f}" for value in (statistics.median(values), min(values), max(values))
    ]
    return found[0] if len(values) == 1 else f"{found[0]} [{found[1]}, {found[2]}]"


def table(document: dict[str, Any]) -> str:
    """Write all rows, also rows without results."""
    lines = [
        "| to the return | variant | seconds | ratio to default | steps | steps/s after first evaluation | reached |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for name, part in PARTS.items():
        runs = document["rows"].get(name, {})
        for way in part.ways:
            if not runs.get(way):
                lines.append(f"| {part.title} | {LABELS.get(way, way)} | not run yet | | | | |")
                continue
            seconds, ratios = worth(runs, way)
            got = f"{sum(run['reached_s'] is not None for run in runs[way])} of {len(runs[way])}"
            rates = (spread(seconds, 0), spread(ratios, 2), steps(runs[way]), speed(runs, way), got)
            cells = (part.title, LABELS.get(way, way), *rates)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(document: dict[str, Any]) -> None:
    """Plot a bar for each variant: the ratio of its seconds to the default command's; a dot for
    each seed.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    rows = {name: part for name, part in PARTS.items() if document["rows"].get(name)}
    figure, plots = plt.subplots(
        len(rows), 1, figsize=(8, 2.9 * len(rows)), layout="constrained", squeeze=False
    )
    for axes, (name, part) in zip(plots[:, 0], rows.items(), strict=True):
        found = {way: worth(document["rows"][name], way)[1] for way in part.ways if way != AS_IT_IS}
        found = {way: ratios for way, ratios in found.items() if ratios}
        axes.barh(
            list(found), [statistics.median(ratios) for ratios in found.values()], color="#9ec5e8"
        )
        for place, ratios in enumerate(found.values()):
            axes.plot(ratios, [place] * len(ratios), "o", color="#1f4e79", markersize=4)
        axes.axvline(1.0, color="black", linewidth=0.8)
        axes.invert_yaxis()
        axes.set(title=part.title, xlabel="seconds to the return, relative to the default command")
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(RESULT.with_suffix(".png"), dpi=130)
    plt.close(figure)


def main(words: list[str]) -> None:
    """Run the requested rows, write and draw."""
    names = [word for word in words if word in PARTS] or list(PARTS)
    given = [word for word in words if word.startswith("seeds=") and word[6:].isdigit()]
    unknown = [word for word in words if word not in (*PARTS, *given, "--page")]
    if unknown:
        print(f"{unknown[0]}: write one of {', '.join(PARTS)}, seeds=1, --page", file=sys.stderr)
        sys.exit(2)
    document = json.loads(RESULT.read_text()) if RESULT.exists() else {"rows": {}}
    for name in [] if "--page" in words else names:
        measure(name, document, int(given[-1][6:]) if given else PARTS[name].seeds)
    RESULT.with_suffix(".md").write_text(table(document))
    draw(document)
    print(table(document))


if __name__ == "__main__":
    main(sys.argv[1:])
