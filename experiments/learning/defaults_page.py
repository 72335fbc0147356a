"""The table and the picture of `defaults`, from its runs."""

from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from rliable import library, metrics
from time_to_return_page import reached_s

from jaxrl_fast.numerics.intervals import compare, mean_interval

PAGE = Path(__file__).resolve().parents[2] / "docs" / "defaults.md"
HEAD = """# Defaults

`python experiments/learning/defaults.py` makes these runs and writes this page. Nobody tuned anything on either side.
Ours are `algo=... tuned=false`, whose [defaults](algorithms.md#default-settings) follow the environment and the run's
length; the other library has its own defaults, with one environment. Both have made equally many environment steps.
Settings were developed on these environments. Environments without two seeds on each side are not shown yet. Returns
are means over the last greedy evaluation (20 episodes), with the 95 % interval of Student's t over seeds, from three
seeds on. *Difference* is "above" or "below" where Welch's 95 % interval of the difference excludes 0, with at least
five seeds on each side ([intervals](intervals.md)). The score is 0 for
random actions and 1 for the other library's mean; where that mean is below random (td3 on hopper), a higher return
has a lower score, so read the interquartile mean. Seconds (median over seeds, and how many seeds reached it) are
of one core's processor until an evaluation reaches the other library's final mean return. Ours include start-up,
compilation and evaluations; theirs do not include evaluations.
"""
LIBRARY = {"sb3": "Stable-Baselines3", "sbx": "SBX"}
OURS, THEIRS = "#1f5fa8", "#8a8a8a"


class Line(NamedTuple):
    """One algorithm in one environment after one number of steps.

    Attributes:
        algo: Algorithm.
        env: Environment.
        steps: Environment steps.
        who: The other library.
        ours: Our mean return by seed.
        theirs: Theirs.
        random: Mean return of random actions.
        our_s: Our seconds to their mean return, by seed, of the seeds that reach it.
        their_s: Theirs.
    """

    algo: str
    env: str
    steps: int
    who: str
    ours: np.ndarray
    theirs: np.ndarray
    random: float
    our_s: list[float]
    their_s: list[float]

    def scores(self, returns: np.ndarray) -> np.ndarray:
        """Scale returns: 0 is random, 1 is the other library's mean."""
        return (returns - self.random) / (self.theirs.mean() - self.random)


def lines(
    runs: dict[str, Any], steps: dict[str, dict[str, tuple[int, ...]]], who: dict[str, Any]
) -> list[Line]:
    """List what both sides have run with at least two seeds."""
    curves: dict[tuple[str, ...], list[list[Any]]] = {}
    for key, made in runs.items():
        curves.setdefault(tuple(key.split()[:-1]), []).append(made["curve"])
    asked = [
        (algo, env, n, max(ns))
        for algo, envs in steps.items()
        for env, ns in envs.items()
        for n in ns
    ]
    found = []
    for algo, env, number, longest in asked:
        ours = curves.get(("ours", algo, env, str(number)), [])
        theirs = [
            cut(curve, number) for curve in curves.get((who[algo][0], algo, env, str(longest)), [])
        ]
        chance = curves.get(("random", "ppo", env, "0"), [])
        if len(ours) > 1 and len(theirs) > 1 and chance:
            goal = float(np.mean([curve[-1][1] for curve in theirs]))
            seconds = [
                [s for curve in side if (s := reached_s(curve, goal)) is not None]
                for side in (ours, theirs)
            ]
            last = [np.array([curve[-1][1] for curve in side]) for side in (ours, theirs, chance)]
            found.append(
                Line(
                    algo,
                    env,
                    number,
                    who[algo][0],
                    last[0],
                    last[1],
                    float(last[2].mean()),
                    *seconds,
                )
            )
    return found


def cut(curve: list[Any], steps: int) -> list[Any]:
    """Return a curve's points until a number of steps."""
    return [point for point in curve if point[0] <= steps]


def verdict(line: Line) -> str:
    """Compare both means."""
    found = compare(line.ours, line.theirs)
    return f"**{found}**" if found in ("above", "below") else found


def table(found: list[Line]) -> str:
    """Write all lines."""
    text = [
        "| algorithm | environment | steps | ours | the other | random | score | difference | seconds to their return |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for line in found:
        score = line.scores(line.ours).mean()
        text.append(
            f"| {line.algo} | {line.env} | {line.steps:,} | {value(line.ours)} | {value(line.theirs)} {line.who} |"
            f" {line.random:.4g} | {score:.2f} | {verdict(line)} | {seconds(line)} |"
        )
    return "\n".join(text) + "\n"


def value(returns: np.ndarray) -> str:
    """Write a mean with its 95 % interval."""
    interval = mean_interval(returns)
    spread = "" if interval is None else f" [{interval[0]:.4g}, {interval[1]:.4g}]"
    return f"{returns.mean():.4g}{spread}, {len(returns)} seeds"


def seconds(line: Line) -> str:
    """Write medians of both sides, and their ratio."""
    sides = [
        f"{np.median(side):.0f} ({len(side)})" if side else "– (0)"
        for side in (line.our_s, line.their_s)
    ]
    ratio = (
        f": **{np.median(line.our_s) / np.median(line.their_s):.2f} ×**"
        if line.our_s and line.their_s
        else ""
    )
    return f"{sides[0]} / {sides[1]}{ratio}"


def aggregates(found: list[Line]) -> str:
    """Write rliable's aggregates over environments, of as many seeds as every environment has."""
    np.random.seed(0)  # noqa: NPY002 - rliable samples from this global generator
    text = [
        "| algorithm, steps | environments, seeds | mean score | interquartile mean | median |",
        "|---|---|---|---|---|",
    ]
    for algo, steps in dict.fromkeys((line.algo, line.steps) for line in found):
        own = [line for line in found if (line.algo, line.steps) == (algo, steps)]
        seeds = min(len(line.ours) for line in own)
        scores = np.stack([line.scores(line.ours)[:seeds] for line in own], axis=1)
        cells = [
            interval(scores, kind)
            for kind in (metrics.aggregate_mean, metrics.aggregate_iqm, np.median)
        ]
        text.append(f"| {algo}, {steps:,} | {len(own)}, {seeds} | {' | '.join(cells)} |")
    return "\n".join(text) + "\n"


def interval(scores: np.ndarray, kind: Any) -> str:
    """Write an aggregate of ``[seeds, environments]`` with its 95 % stratified bootstrap interval."""
    point, ends = library.get_interval_estimates(
        {"ours": scores}, lambda x: np.array([kind(x)]), reps=2000
    )
    (low,), (high,) = ends["ours"]
    return f"{point['ours'][0]:.2f} [{low:.2f}, {high:.2f}]"


def write_page(found: list[Line], facts: str) -> None:
    """Write ``docs/defaults.md``."""
    PAGE.write_text(f"{HEAD}\n{aggregates(found)}\n{table(found)}\n{facts}\n")


def draw(found: list[Line], path: Path) -> None:
    """Draw the scores of both sides with their intervals, by environment."""
    groups = list(dict.fromkeys((line.algo, line.steps) for line in found))
    heights = [sum((line.algo, line.steps) == group for line in found) for group in groups]
    shape: dict[str, Any] = dict(height_ratios=heights, hspace=0.5)
    size = (8, 0.34 * sum(heights) + 0.9 * len(groups) + 0.5)
    figure, rows = plt.subplots(
        len(groups), 1, figsize=size, sharex=True, squeeze=False, gridspec_kw=shape
    )
    for axes, (algo, steps) in zip(rows[:, 0], groups, strict=True):
        own = [line for line in found if (line.algo, line.steps) == (algo, steps)]
        for place, (y, color) in enumerate([(0.14, THEIRS), (-0.14, OURS)]):
            values = [line.scores((line.theirs, line.ours)[place]) for line in own]
            at = np.arange(len(own)) + y
            for height, scores in zip(at, values, strict=True):
                axes.plot(scores, [height] * len(scores), ".", color=color, alpha=0.4, markersize=4)
                if (interval := mean_interval(scores)) is not None:
                    axes.hlines(height, *interval, color=color, linewidth=2)
            label = ("jaxrl_fast" if place else LIBRARY[own[0].who]) + ", mean and 95 % interval"
            axes.plot([x.mean() for x in values], at, "o", color=color, markersize=5, label=label)
        axes.axvline(1.0, color="#cccccc", zorder=0)
        axes.set_yticks(range(len(own)), [line.env for line in own])
        axes.invert_yaxis()
        axes.set_xscale("symlog", linthresh=2.0, linscale=2.0)
        axes.set_title(f"{algo}, {steps:,} steps", loc="left", fontsize=10)
        place = dict(loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2)
        axes.legend(fontsize=7, ncols=2, frameon=False, **place)
    rows[-1, 0].set_xticks(ticks := [0, 0.5, 1, 2, 5, 10, 20], map(str, ticks))
    rows[-1, 0].set_xlabel("score: 0 is random, 1 is the other library's mean return")
    figure.savefig(path, dpi=150, bbox_inches="tight")
    plt.close(figure)
