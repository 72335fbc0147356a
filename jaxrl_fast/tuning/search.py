"""Search for the fastest of sorted sizes, with the measurement as an argument. Uses no process and
no device.

The search assumes that throughput over the logarithm of the size has one peak, which may be flat.
The user's size is measured first: it shows whether anything runs at all, and much slower sizes need
no repeats. From there it measures sizes a factor of four apart, upwards until two are no faster and
then down. Then it halves the gap next to the best size that may contain a faster one, by the
straight lines through its neighbors, until none is left. The first halving gives powers of two;
measuring all of these would take more than a quarter of the time of a full grid if the peak is at
large sizes.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import log2
from typing import NamedTuple, TypeVar

CLIMB = 4
"""Factor between the sizes that are measured first."""
GAIN = 0.02
"""Relative gain that counts as faster; of sizes within it, the nearest to the user's is selected.
"""
BEHIND = (0.15, 0.05)
"""A candidate is dropped if its first repeat is slower than the best median by more than the first
share, or its first two by more than the second; after more repeats, by more than `GAIN`.
"""
HALVINGS = 4
"""Most sizes that are measured after the climb."""
CLOSE, FINALISTS = 0.1, 3
"""Rates measured minutes apart that differ by less than `CLOSE` are not comparable: the `FINALISTS`
fastest are measured again in turn."""

T = TypeVar("T")
C = TypeVar("C", contravariant=True)


GoOn = Callable[[Sequence[float]], bool]
"""(rates of its repeats so far, more is better) -> whether to make another repeat of a candidate.
"""


class Outcome(NamedTuple):
    """Result of a candidate.

    Attributes:
        rates: Rates of its repeats, more is better; empty if it did not run.
        larger_fails: Whether it failed and larger candidates would also fail, because of memory.
    """

    rates: tuple[float, ...] = ()
    larger_fails: bool = False

    @property
    def rate(self) -> float:
        """The median; 0 if it did not run."""
        return statistics.median(self.rates) if self.rates else 0.0


Measure = Callable[[C, GoOn], Outcome]
"""(candidate, go_on) -> outcome, with repeats until ``go_on(rates so far)`` is false."""


Results = dict[int, Outcome]
"""Outcomes by size."""


def find_size(measure: Measure[int], sizes: Sequence[int], start: int, *, repeats: int) -> Results:
    """Measure few of some sizes; `chosen` selects one of them.

    Args:
        measure: Measures a size.
        sizes: Sizes in order.
        start: Size to measure first.
        repeats: Most repeats of a size.

    Returns:
        Outcomes in the order of the measurements.
    """
    results: Results = {}

    def ask(size: int) -> None:
        results[size] = measure(size, patience(results.values(), repeats))

    ladder = rungs(sizes, start)
    at = ladder.index(start)
    _climb(ask, ladder[at:], results, upwards=True)
    _climb(ask, ladder[:at][::-1], results, upwards=False)
    for _ in range(HALVINGS):
        size = _next_between(sizes, results)
        if size is None:
            break
        ask(size)
    return results


def find_option(
    measure: Measure[T], options: Iterable[T], incumbent: Outcome, *, repeats: int
) -> list[Outcome]:
    """Measure options against the best so far.

    Args:
        measure: Measures an option.
        options: Options.
        incumbent: Outcome of the best so far.
        repeats: Most repeats of an option.

    Returns:
        Outcomes in order.
    """
    outcomes = [incumbent]
    for option in options:
        outcomes.append(measure(option, patience(outcomes, repeats)))
    return outcomes[1:]


def patience(outcomes: Iterable[Outcome], repeats: int) -> GoOn:
    """Return the rule that stops repeats once even the fastest is clearly slower than the best.

    Args:
        outcomes: Outcomes so far.
        repeats: Most repeats.

    Returns:
        The rule.
    """
    best = max((outcome.rate for outcome in outcomes), default=0.0)

    def go_on(rates: Sequence[float]) -> bool:
        behind = dict(enumerate(BEHIND, 1)).get(len(rates), GAIN)
        return len(rates) < repeats and (not rates or max(rates) >= best * (1 - behind))

    return go_on


def chosen(results: Results, requested: int) -> int | None:
    """Select a size: of those nearly as fast as the fastest, the nearest to the user's.

    Args:
        results: Outcomes by size.
        requested: The user's size.

    Returns:
        The size; None if nothing ran.
    """
    best = max((outcome.rate for outcome in results.values()), default=0.0)
    near = [
        size
        for size, outcome in results.items()
        if outcome.rate and outcome.rate >= best * (1 - GAIN)
    ]
    return min(near, key=lambda size: (abs(log2(size / requested)), size), default=None)


def finalists(results: dict[T, Outcome], requested: T) -> list[T]:
    """Select the candidates to measure again in turn: the user's, and the fastest if they are
    close.

    Args:
        results: Outcomes by candidate.
        requested: The user's candidate, with which gains are compared.

    Returns:
        Candidates; empty if only one remains.
    """
    best = max((outcome.rate for outcome in results.values()), default=0.0)
    ran = {name: outcome.rate for name, outcome in results.items() if outcome.rate}
    close = [name for name, rate in ran.items() if name == requested or rate >= best * (1 - CLOSE)]
    close.sort(key=lambda name: (name != requested, -ran[name]))
    return close[:FINALISTS] if len(close) > 1 else []


def rungs(sizes: Sequence[int], middle: int) -> list[int]:
    """Return the sizes nearest to a size times powers of `CLIMB`.

    Args:
        sizes: Sizes in order.
        middle: Size in the middle.

    Returns:
        Sizes in order.
    """
    down = range(-int(log2(middle / sizes[0]) / log2(CLIMB)), 0) if middle > sizes[0] else range(0)
    up = range(int(log2(sizes[-1] / middle) / log2(CLIMB)) + 1)
    wanted = [middle * CLIMB ** float(k) for k in (*down, *up)]
    if sizes[-1] / wanted[-1] >= CLIMB / 2:
        wanted.append(sizes[-1])
    return sorted({min(sizes, key=lambda size: abs(log2(size / target))) for target in wanted})


def _climb(
    ask: Callable[[int], None], ladder: Sequence[int], results: Results, *, upwards: bool
) -> None:
    """Measure along the ladder.

    Upwards until two in a row are no faster, or one fails such that larger ones would also fail;
    downwards until one is no faster, but at least until one runs.
    """
    in_vain = 0
    for size in ladder:
        before = max((outcome.rate for outcome in results.values()), default=0.0)
        ask(size)
        in_vain = 0 if results[size].rate > before * (1 + GAIN) else in_vain + 1
        if upwards and (in_vain == 2 or results[size].larger_fails):
            return
        if not upwards and in_vain and before:
            return


def _next_between(sizes: Sequence[int], results: Results) -> int | None:
    """Return the middle of the gap next to the best size with the largest headroom, if that is more
    than `GAIN`.
    """
    ran = sorted(size for size, outcome in results.items() if outcome.rate)
    if not ran:
        return _middle(sizes, sizes[0] / 2, min(results), results)
    best = max(ran, key=lambda size: results[size].rate)
    measured = [sizes[0] / 2, *sorted(results), sizes[-1] * 2]
    at = measured.index(best)
    gaps = [
        gap
        for gap in pairwise(measured[at - 1 : at + 2])
        if _middle(sizes, *gap, results) is not None
    ]
    bounds = {gap: headroom(gap, ran, results) for gap in gaps}
    wide = [gap for gap in gaps if bounds[gap] > 1 + GAIN]
    return _middle(sizes, *max(wide, key=lambda gap: bounds[gap]), results) if wide else None


def headroom(gap: tuple[float, float], ran: Sequence[int], results: Results) -> float:
    """Bound the rate inside a gap relative to its faster end, by the lines through the two sizes on
    either side.

    The bound holds if the logarithm of the rate is concave over the logarithm of the size.

    Args:
        gap: Sizes on both sides.
        ran: Sizes that ran, in order.
        results: Outcomes by size.

    Returns:
        The ratio; infinite if there is no line.
    """
    low, high = gap
    below, above = (
        [size for size in ran if size <= low][-2:],
        [size for size in ran if size >= high][:2],
    )
    lines = [_line(pair, results) for pair in (below, above) if len(pair) == 2]
    if not lines:
        return float("inf")
    places = [log2(low) + share * log2(high / low) / 16 for share in range(17)]
    bound = max(min(line(place) for line in lines) for place in places)
    return 2**bound / max(results[size].rate for size in (*below[-1:], *above[:1]))


def _line(pair: Sequence[int], results: Results) -> Callable[[float], float]:
    (x0, x1), (y0, y1) = map(log2, pair), (log2(results[size].rate) for size in pair)
    return lambda place: y0 + (y1 - y0) * (place - x0) / (x1 - x0)


def _middle(sizes: Sequence[int], low: float, high: float, results: Results) -> int | None:
    """Return the size in the middle between two on a logarithmic scale; None if none is left."""
    inside = [size for size in sizes if low < size < high and size not in results]
    target = log2(low * high) / 2
    return min(inside, key=lambda size: (abs(log2(size) - target), size), default=None)
