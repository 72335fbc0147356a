"""How often 95 % intervals over seeds cover the true mean, and how often a comparison finds a gap.

``python experiments/laws/coverage.py`` (a minute) draws samples of normal and of skewed
distributions, and writes experiments/results/coverage.json and the tables of docs/intervals.md.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import ROOT, versions

from jaxrl_fast.numerics.intervals import compare, mean_interval

RESULT, PAGE = ROOT / "experiments" / "results" / "coverage.json", ROOT / "docs" / "intervals.md"
SEEDS, DRAWS, RESAMPLES = (3, 5, 10), 4_000, 1_000
Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
DISTRIBUTIONS: dict[str, tuple[Draw, float]] = {
    "normal": (lambda rng, shape: rng.normal(size=shape), 0.0),
    "exponential": (lambda rng, shape: rng.exponential(size=shape), 1.0),
    "log-normal": (lambda rng, shape: rng.lognormal(size=shape), float(np.exp(0.5))),
    "one of ten seeds fails": (
        lambda rng, shape: np.where(rng.random(shape) < 0.1, 0.0, rng.normal(10.0, 1.0, shape)),
        9.0,
    ),
    "half of the seeds fail": (
        lambda rng, shape: np.where(rng.random(shape) < 0.5, 0.0, rng.normal(10.0, 1.0, shape)),
        5.0,
    ),
}
"""Name -> how samples are drawn, and their mean."""
GAPS = (0.0, 1.0, 2.0, 3.0)
"""Differences of two means, in standard deviations."""


def bootstrap_interval(samples: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """Compute the percentile bootstrap interval of the mean, for comparison."""
    draws = rng.choice(samples, size=(RESAMPLES, len(samples))).mean(axis=1)
    low, high = np.percentile(draws, [2.5, 97.5])
    return float(low), float(high)


def coverage(draw: Draw, mean: float, seeds: int) -> dict[str, float]:
    """Return the share of intervals that cover the mean, by kind of interval."""
    rng = np.random.default_rng(seeds)
    samples = draw(rng, (DRAWS, seeds))
    kinds = {
        "student": [mean_interval(row) for row in samples],
        "bootstrap": [bootstrap_interval(row, rng) for row in samples[: DRAWS // 4]],
    }
    return {
        kind: float(np.mean([low <= mean <= high for low, high in intervals]))
        for kind, intervals in kinds.items()
    }


def detection(gap: float) -> dict[str, float]:
    """Return the share of gaps between two sides of five seeds that are called apart."""
    rng = np.random.default_rng(5)
    pairs = [(rng.normal(gap, 1.0, 5), rng.normal(0.0, 1.0, 5)) for _ in range(1_000)]
    welch = [compare(*pair) in ("above", "below") for pair in pairs]
    apart = []
    for ours, theirs in pairs:
        one, other = mean_interval(ours), mean_interval(theirs)
        apart.append(one[0] > other[1] or one[1] < other[0])
    return {"welch": float(np.mean(welch)), "disjoint": float(np.mean(apart))}


def write_tables(result: dict[str, dict[str, dict[str, float]]]) -> None:
    """Write both tables of the page between their marks."""
    covered = ["| samples | " + " | ".join(f"{n} seeds" for n in SEEDS) + " |", "|---|---|---|---|"]
    for name, by_seeds in result["coverage"].items():
        cells = [
            f"{by_seeds[str(n)]['student']:.2f} ({by_seeds[str(n)]['bootstrap']:.2f})"
            for n in SEEDS
        ]
        covered.append(f"| {name} | {' | '.join(cells)} |")
    found = ["| gap, in deviations | Welch's interval | disjoint intervals |", "|---|---|---|"]
    for gap, shares in result["detection"].items():
        found.append(f"| {gap} | {shares['welch']:.2f} | {shares['disjoint']:.2f} |")
    text = PAGE.read_text()
    for name, lines in (("coverage", covered), ("detection", found)):
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        table = "\n".join(lines)
        text = f"{before}{begin}\n{table}\n\n{end}{rest.partition(end)[2]}"
    PAGE.write_text(text)


def main() -> None:
    """Draw all samples and write the result and the page."""
    result = {
        "coverage": {
            name: {str(seeds): coverage(draw, mean, seeds) for seeds in SEEDS}
            for name, (draw, mean) in DISTRIBUTIONS.items()
        },
        "detection": {f"{gap:g}": detection(gap) for gap in GAPS},
        "versions": versions(),
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    write_tables(result)
    print(PAGE.read_text())


if __name__ == "__main__":
    main()
