"""How a fragment may be divided among devices: what `layout` reads of it."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Division(NamedTuple):
    """The axes along which a fragment's arrays may be divided.

    ``private`` and ``writes`` (by channel) name the axis of each leaf, as prefix trees like those of ``vmap`` (None:
    not divided); ``width`` is how long these axes are, 0 for none, and ``unit`` what they count, such as environments.
    ``limit``: a setting of which ``width`` is a divisor, with its value, for messages.
    """

    private: Any = None
    writes: Mapping[str, Any] = {}
    width: int = 0
    unit: str = "parts"
    limit: tuple[str, int] | None = None


WHOLE = Division()
"""Not divided: every device has all of it."""
