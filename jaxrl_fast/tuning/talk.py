"""The request that `child` sends to a `trial`."""

from typing import Literal, NamedTuple

What = Literal["training", "sampling", "environments", "updates"]
"""What of a run is measured: all of it, or one of the parts that bound it."""


class Request(NamedTuple):
    """What to measure: ``path``: of a run's ``config.yaml``; ``what``: the part of it; ``memory_cap``: bytes that it
    may use (None: a share of what is free); ``repeat_s``: seconds that a repeat takes at least."""

    path: str
    what: What
    memory_cap: float | None
    repeat_s: float
