"""Which size is fastest: a search over sorted sizes, with the measurement passed in. No process, no device.

Throughput over the logarithm of the size is assumed to have one peak, which may be flat. The size that was asked for is
measured first: it shows whether anything runs at all, and sizes far behind it need no repeats. From there sizes a
factor of four apart are measured, upwards until two bring nothing more and then down. Then the gap beside the best
size that may hold a faster one, by the straight lines through its neighbors, is halved until none is left. The first
halving gives powers of two; to measure all of these would take more than a quarter of the time of a full grid where
the peak is at large sizes.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import log2
from typing import NamedTuple, TypeVar

CLIMB = 4
"""Factor between the sizes that are measured first."""
GAIN = 0.02
"""What counts as faster; of sizes that differ by less, the nearest to the one that was asked for is chosen."""
BEHIND = (0.15, 0.05)
"""A candidate is given up if its first repeat is behind the best median by more than the first share, or its first two
by more than the second; after more repeats, by more than `GAIN`."""
HALVINGS = 4
"""At most so many sizes are measured after the climb."""
CLOSE, FINALISTS = 0.1, 3
"""Rates that were measured minutes apart and differ by less than this share do not compare: so many of the fastest are
measured again in turn."""

T = TypeVar("T")
C = TypeVar("C", contravariant=True)


GoOn = Callable[[Sequence[float]], bool]
"""(rates of its repeats so far, more is better) -> whether a candidate deserves another repeat."""


class Outcome(NamedTuple):
    """A candidate's result: the ``rates`` of its repeats, more is better, none where it did not run. ``larger_fails``:
    it did not run and nothing larger would, as for lack of memory."""

    rates: tuple[float, ...] = ()
    larger_fails: bool = False

    @property
    def rate(self) -> float:
        """The median, 0 where it did not run."""
        return statistics.median(self.rates) if self.rates else 0.0


Measure = Callable[[C, GoOn], Outcome]
"""Measures a candidate: repeats the measurement until ``go_on(rates so far)`` is false."""


Results = dict[int, Outcome]
"""Outcomes by size."""


def find_size(measure: Measure[int], sizes: Sequence[int], own: int, *, repeats: int) -> Results:
    """Measure few of ``sizes`` (sorted), beginning with ``own``; outcomes in the order in which they were measured.
    `chosen` says which one to take."""
    results: Results = {}

    def ask(size: int) -> None:
        results[size] = measure(size, patience(results.values(), repeats))

    ladder = rungs(sizes, own)
    at = ladder.index(own)
    _climb(ask, ladder[at:], results, upwards=True)
    _climb(ask, ladder[:at][::-1], results, upwards=False)
    for _ in range(HALVINGS):
        size = _next_between(sizes, results)
        if size is None:
            break
        ask(size)
    return results


def find_option(measure: Measure[T], options: Iterable[T], incumbent: Outcome, *, repeats: int) -> list[Outcome]:
    """Measure each of ``options`` against the best so far, ``incumbent``; their outcomes in order."""
    seen = [incumbent]
    for option in options:
        seen.append(measure(option, patience(seen, repeats)))
    return seen[1:]


def patience(seen: Iterable[Outcome], repeats: int) -> GoOn:
    """Goes on for all ``repeats``, unless even the fastest of the first ones is clearly behind the best of ``seen``."""
    best = max((outcome.rate for outcome in seen), default=0.0)

    def go_on(rates: Sequence[float]) -> bool:
        behind = dict(enumerate(BEHIND, 1)).get(len(rates), GAIN)
        return len(rates) < repeats and (not rates or max(rates) >= best * (1 - behind))

    return go_on


def chosen(results: Results, own: int) -> int | None:
    """Of the sizes that are as fast as the fastest, or nearly, the nearest to ``own``; None where nothing ran."""
    best = max((outcome.rate for outcome in results.values()), default=0.0)
    near = [size for size, outcome in results.items() if outcome.rate and outcome.rate >= best * (1 - GAIN)]
    return min(near, key=lambda size: (abs(log2(size / own)), size), default=None)


def finalists(results: dict[T, Outcome], own: T) -> list[T]:
    """What to measure again in turn: ``own``, with which a gain is compared, and the fastest if they are close to each
    other; empty if only one would remain."""
    best = max((outcome.rate for outcome in results.values()), default=0.0)
    ran = {name: outcome.rate for name, outcome in results.items() if outcome.rate}
    close = [name for name, rate in ran.items() if name == own or rate >= best * (1 - CLOSE)]
    close.sort(key=lambda name: (name != own, -ran[name]))
    return close[:FINALISTS] if len(close) > 1 else []


def rungs(sizes: Sequence[int], own: int) -> list[int]:
    """The sizes nearest to ``own`` times or divided by powers of `CLIMB`, within the range of ``sizes``."""
    down = range(-int(log2(own / sizes[0]) / log2(CLIMB)), 0) if own > sizes[0] else range(0)
    up = range(int(log2(sizes[-1] / own) / log2(CLIMB)) + 1)
    wanted = [own * CLIMB ** float(k) for k in (*down, *up)]
    if sizes[-1] / wanted[-1] >= CLIMB / 2:
        wanted.append(sizes[-1])
    return sorted({min(sizes, key=lambda size: abs(log2(size / target))) for target in wanted})


def _climb(ask: Callable[[int], None], ladder: Sequence[int], results: Results, *, upwards: bool) -> None:
    """Measure along the ladder: upwards until two in a row bring nothing more, or one fails that larger ones would fail
    with; downwards until one brings nothing more, but at least until something runs."""
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
    """The middle of that gap beside the best which may hold the most, if that is enough to matter."""
    ran = sorted(size for size, outcome in results.items() if outcome.rate)
    if not ran:
        return _middle(sizes, sizes[0] / 2, min(results), results)
    best = max(ran, key=lambda size: results[size].rate)
    known = [sizes[0] / 2, *sorted(results), sizes[-1] * 2]
    at = known.index(best)
    gaps = [gap for gap in pairwise(known[at - 1 : at + 2]) if _middle(sizes, *gap, results) is not None]
    bounds = {gap: headroom(gap, ran, results) for gap in gaps}
    wide = [gap for gap in gaps if bounds[gap] > 1 + GAIN]
    return _middle(sizes, *max(wide, key=lambda gap: bounds[gap]), results) if wide else None


def headroom(gap: tuple[float, float], ran: Sequence[int], results: Results) -> float:
    """How many times the rate of its faster end a size inside a gap may reach, if the logarithm of the rate is concave
    over that of the size: the lines through the two sizes on either side bound it. Infinite where neither line is
    known."""
    low, high = gap
    below, above = [size for size in ran if size <= low][-2:], [size for size in ran if size >= high][:2]
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
    """The size in the middle between two, on a scale of logarithms; None where there is none left."""
    inside = [size for size in sizes if low < size < high and size not in results]
    target = log2(low * high) / 2
    return min(inside, key=lambda size: (abs(log2(size) - target), size), default=None)
