"""What the machine chooses: the placement and how many devices. None of it is a learning setting.

``placement=auto`` takes the fastest placement as measured and committed in ``config/placements.yaml``
(``python experiments/placements.py`` measures it again); what was chosen is written into ``config.yaml``.
"""

import os
from pathlib import Path
from typing import NamedTuple

import yaml

TABLE = Path(__file__).parent / "config" / "placements.yaml"
AUTO = "auto"


class Choice(NamedTuple):
    """A placement, the number of devices it gets, and in a few words why."""

    placement: str
    devices: int
    reason: str


def cpu_cores() -> int:
    """Cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def choose(suite: str, name: str, algo: str, *, num_envs: int, num_seeds: int, devices: int) -> Choice:
    """The fastest placement for an environment (its suite and short name) and an algorithm on ``devices`` cores.

    Seeds are divided first, since they have nothing to say to each other. Only as many devices are used as divide the
    seeds, or else the environments, evenly.
    """
    by_seeds = largest_divisor(num_seeds, devices)
    if by_seeds > 1:
        return Choice("data_parallel", by_seeds, f"{num_seeds} seeds on {by_seeds} devices")
    table = yaml.safe_load(TABLE.read_text())
    measured = table.get(name, table.get(suite, {})).get(algo)
    if measured is None:
        return Choice("fused", 1, f"nothing is measured for {algo} on env={suite}")
    even = largest_divisor(num_envs, devices)
    if measured == "fused" or even == 1:
        return Choice("fused", 1, "measured" if measured == "fused" else "one device, or an odd number of environments")
    return Choice(measured, even, "measured")


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of ``number`` that is at most ``limit``."""
    return max(d for d in range(1, min(number, limit) + 1) if number % d == 0)
