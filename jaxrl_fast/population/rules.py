"""The rules of a population: which members go on, which are copied, and how rates change. Numbers
in, numbers out.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import numpy as np

from jaxrl_fast.population.search_space import SearchSpace, Shares

Explore = Literal["perturb", "resample"]
FACTORS = (0.8, 1.2)
"""Factors by which ``perturb`` changes a rate, as published."""
RESAMPLED = 0.25
"""Chance with which ``resample`` draws a rate anew; otherwise it perturbs it, as published."""


class Halving(NamedTuple):
    """Asynchronous successive halving.

    Attributes:
        keep_one_in: At each rung, one of so many members goes on.
        rungs: Segments after which members are compared, ascending; the last is the whole run.

    Source: Li et al. (2018), arXiv 1810.05934, algorithm 2.
    """

    keep_one_in: int
    rungs: tuple[int, ...]


class Exchange(NamedTuple):
    """Population-based training.

    Attributes:
        quantile: Share of the members that are replaced, and share of those that are copied.
        explore: How the rates of a copy change.

    Source: Jaderberg et al. (2017), arXiv 1711.09846.
    """

    quantile: float
    explore: Explore


class Copy(NamedTuple):
    """A member that continues as a copy of another.

    Attributes:
        target: Number of the member that is replaced.
        source: Number of the member that is copied.
        shares: Its new point.
        diverged: Whether the replaced member had diverged.
    """

    target: int
    source: int
    shares: Shares
    diverged: bool


def rungs_of(ticks: int, keep_one_in: int, first: int | None = None) -> tuple[int, tuple[int, ...]]:
    """Divide a run into segments, of which some end at a rung.

    Args:
        ticks: Ticks of the run.
        keep_one_in: As in `Halving`.
        first: Ticks until the first rung; None for a share of the run between a 16th and a 27th, or
            one tick.

    Returns:
        Ticks of a segment, and the rungs in segments; the run is prolonged to whole segments.
    """
    depth = max(1, int(math.log(27, keep_one_in) + 1e-9))
    segment = max(1, -(-ticks // keep_one_in**depth)) if first is None else first
    total = -(-ticks // segment)
    rungs = [keep_one_in**k for k in range(64) if keep_one_in**k < total]
    return segment, (*rungs, total)


def ranked(scores: Mapping[int, float]) -> list[int]:
    """Order members from the best to the worst; equal ones by number.

    Args:
        scores: Score of each member by number.

    Returns:
        Numbers.
    """
    return sorted(scores, key=lambda number: (-scores[number], number))


def promoted(
    rule: Halving, scores: Mapping[int, float], gone_on: Iterable[int], *, complete: bool
) -> list[int]:
    """List the members that may go on from a rung.

    Args:
        rule: Rule.
        scores: Scores at the rung of all members that reached it.
        gone_on: Members that have gone on from it.
        complete: Whether no other member can reach the rung; at least one then goes on.

    Returns:
        Numbers, the best first. A member that diverged never goes on.
    """
    number = max(len(scores) // rule.keep_one_in, int(complete and len(scores) > 0))
    return [
        one
        for one in ranked(scores)[:number]
        if one not in set(gone_on) and scores[one] > -math.inf
    ]


def may_be_promoted(rule: Halving, scores: Mapping[int, float], number: int, at_most: int) -> bool:
    """Check whether a member that waits at a rung can still go on, when others reach the rung.

    Args:
        rule: Rule.
        scores: Scores at the rung of all members that reached it.
        number: Number of the member.
        at_most: Most members that can ever reach the rung.

    Returns:
        False if the places are taken by better ones.
    """
    return scores[number] > -math.inf and ranked(scores).index(number) < max(
        1, at_most // rule.keep_one_in
    )


def exchange(
    rule: Exchange,
    space: SearchSpace,
    points: Mapping[int, Shares],
    scores: Mapping[int, float],
    rng: np.random.Generator,
) -> list[Copy]:
    """Replace the worst members by copies of the best ones, with other rates.

    Args:
        rule: Rule.
        space: Search space of the rates.
        points: Point of each member by number.
        scores: Scores by number, -inf for a member that diverged. Members without a score are
            neither replaced nor copied.
        rng: Source of the choices.

    Returns:
        The copies; none if all members have the same score or all diverged.
    """
    order = ranked(scores)
    alive = [number for number in order if scores[number] > -math.inf]
    if not alive or len(set(scores.values())) == 1:
        return []
    count = max(1, int(len(points) * rule.quantile))
    best = alive[:count]
    worst = [number for number in order[-count:] if scores[number] < scores[best[-1]]]
    replaced = [number for number in order if number in worst or scores[number] == -math.inf]
    copies = []
    for target in replaced:
        source = int(rng.choice(best))
        shares = explored(rule.explore, space, points[source], rng)
        copies.append(Copy(target, source, shares, scores[target] == -math.inf))
    return copies


def explored(
    explore: Explore, space: SearchSpace, shares: Shares, rng: np.random.Generator
) -> Shares:
    """Change the rates of a copied member.

    Args:
        explore: ``perturb`` multiplies each rate by one of `FACTORS`, of a linear range moves it by
            a fifth, and of a list goes one step; ``resample`` also draws a rate anew with the
            chance `RESAMPLED`.
        space: Search space of the rates.
        shares: Point of the copied member.
        rng: Source of the choices.

    Returns:
        The new point.
    """
    new = dict(shares)
    for key, draw in space.rates.items():
        factor, again, anew = rng.choice(FACTORS), rng.random(), rng.random()
        value = draw.near(draw.at(shares[key]), float(factor))
        new[key] = (
            anew if explore == "resample" and again < RESAMPLED else min(draw.share_of(value), 1.0)
        )
    return new
