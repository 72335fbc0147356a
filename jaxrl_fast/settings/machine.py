"""What depends on the machine: the placement and how many devices are chosen here; neither changes learning.

``placement=auto`` takes the fastest placement as measured and committed in ``config/placements.yaml``
(``python experiments/placements.py`` measures it again); what was chosen is written into ``config.yaml``.
"""

import os
import platform
import re
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import yaml

TABLE = Path(__file__).parent.parent / "config" / "placements.yaml"
AUTO = "auto"


class Choice(NamedTuple):
    """A ``placement`` (its name), the number of ``devices`` it gets, and the ``reason`` in a few words, "" for none."""

    placement: str
    devices: int
    reason: str


def cpu_cores() -> int:
    """Cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def processor() -> str:
    """The processor's model name."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Versions of Python and of the packages on which speed depends."""
    names = ("jaxrl_fast", "jax", "jaxlib", "flax", "brax", "gymnax", "gymnasium", "numpy")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in names}}


def free_memory_bytes() -> int:
    """Memory that programs can still get, within the limit of a container; all memory where only that is known."""
    free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    meminfo, group = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
    if meminfo.exists():
        kilobytes = re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text())
        free = 1024 * int(kilobytes[1]) if kilobytes else free
    try:
        used = int((group / "memory.current").read_text()) - _file_cache_bytes(group / "memory.stat")
        limit = int((group / "memory.max").read_text())
    except (OSError, ValueError):  # no container, or one without a limit
        return free
    return max(0, min(free, limit - used))


def busy_seconds() -> tuple[float, float] | None:
    """CPU seconds that all programs have used on this machine so far, and those of this process, its session and its
    children, the dead ones that were waited for too; None where the system does not say (Linux does)."""
    ticks, tick_s = Path("/proc/stat"), 1 / os.sysconf("SC_CLK_TCK")
    if not ticks.exists():
        return None
    user, nice, system, _, _, *interrupts = map(int, ticks.read_text().splitlines()[0].split()[1:8])
    own, me, session = 0, os.getpid(), os.getsid(0)
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            # behind the name in brackets: state, parent, group, session ...; the 12th to 15th are times: its own
            # as a user and within the system, and the same two of its children that have ended
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[1]) == me or int(fields[3]) == session:
                own += sum(map(int, fields[11:15]))
    return (user + nice + system + sum(interrupts)) * tick_s, own * tick_s


def choose(suite: str, name: str, algo: str, *, num_envs: int, num_seeds: int, devices: int) -> Choice:
    """The fastest placement for an environment (its suite and short name) and an algorithm on ``devices`` cores.

    Seeds are divided first, since they exchange nothing. Only as many devices are used as divide the seeds, or else the
    environments, evenly.
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


def _file_cache_bytes(statistics: Path) -> int:
    """What a container uses to cache files, which programs can have when they need it."""
    found = re.search(r"^inactive_file (\d+)$", statistics.read_text(), re.MULTILINE)
    return int(found[1]) if found else 0


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of ``number`` that is at most ``limit``."""
    return max(d for d in range(1, min(number, limit) + 1) if number % d == 0)
