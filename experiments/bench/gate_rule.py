"""When a row of `gate` has become slower: the rule, and its messages. Measures nothing."""

import statistics
from typing import NamedTuple

FALL, SPREADS = 0.10, 3.0
"""A row fails where its ratio is lower by more than this share *and* by more than this many
committed spreads.
"""


class Figure(NamedTuple):
    """Ours against the fixed program: the ``median`` of the rounds' ratios and their ``spread``,
    the interquartile range.
    """

    median: float
    spread: float


def figure(ratios: list[float]) -> Figure:
    """Compute it from the ratios of rounds.

    Raises:
        ValueError: There are fewer than three.
    """
    if len(ratios) < 3:
        raise ValueError(f"{len(ratios)} rounds have no spread: measure at least 3")
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Figure(statistics.median(ratios), high - low)


def falls(committed: Figure, now: Figure) -> bool:
    """Return whether a row has become slower beyond both limits."""
    lost = committed.median - now.median
    return lost > FALL * committed.median and lost > SPREADS * committed.spread


def verdict(name: str, committed: Figure | None, now: Figure) -> str:
    """Write a row's line."""
    said = f"{name}: {now.median:.3f} of the fixed program's rate, spread {now.spread:.3f}"
    if committed is None:
        return f"{said}; nothing committed"
    change = now.median / committed.median - 1
    said += f"; committed {committed.median:.3f}, spread {committed.spread:.3f}: {change:+.1%}"
    return f"{said}, FELL" if falls(committed, now) else said


def compare(committed: dict[str, Figure], now: dict[str, Figure]) -> tuple[list[str], list[str]]:
    """Return a line for every measured row, and the names of the slower ones."""
    lines = [verdict(name, committed.get(name), one) for name, one in now.items()]
    return lines, [
        name for name, one in now.items() if name in committed and falls(committed[name], one)
    ]
