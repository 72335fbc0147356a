"""What `child` asks a `trial` for."""

from typing import Literal, NamedTuple

What = Literal["training", "sampling", "environments", "updates"]
"""What of a run is measured: all of it, or one of the parts that bound it."""


class Request(NamedTuple):
    """The path of a run's ``config.yaml``, the part of it to measure, the bytes that it may use (None: a share of what
    is free), and the seconds that a repeat takes at least."""

    path: str
    what: What
    memory_cap: float | None
    repeat_s: float
