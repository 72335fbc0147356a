"""How a fragment may be divided among devices: what `layout` reads of it."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Division(NamedTuple):
    """``private`` and ``writes`` (by channel) name the axis of each leaf along which it may be divided, as prefix trees
    like those of ``vmap`` (None: kept whole); ``width`` is how long these axes are, in ``unit``, 0 for none."""

    private: Any = None
    writes: Mapping[str, Any] = {}
    width: int = 0
    unit: str = "parts"


WHOLE = Division()
"""Kept whole on every device."""
