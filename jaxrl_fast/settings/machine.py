"""JAX's set-up on this machine: devices, caches in folders of the user's own, and placements measured before."""

import contextlib
import gc
import hashlib
import os
import platform
import re
import stat
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import jax
import yaml


def make_own_folder(folder: Path) -> str | None:
    """Make a folder that its owner alone can open, or close an older one that others can only read. Returns what is
    wrong, a few words and what to do, where there is none that can be trusted."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return f"{folder} is not a folder of yours: remove it, or write JAXRL_FAST_CACHE=<another folder>"
        if found.st_mode & 0o022:
            return f"others can write to {folder}: remove it, or write JAXRL_FAST_CACHE=<another folder>"
        if found.st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        return f"cannot make {folder} ({error.strerror}): write JAXRL_FAST_CACHE=<another folder>"
    return None


def make_room(folder: Path, max_bytes: int) -> None:
    """Remove the files that were not used for longest, so that the others have at most ``max_bytes`` together.

    Raises:
        OSError: the folder cannot be read, or a file not be removed.
    """
    files, total = [], 0
    for entry in os.scandir(folder):
        with contextlib.suppress(FileNotFoundError):  # another process may make room too
            files.append((entry.stat(follow_symlinks=False), entry.path))
    for found, path in sorted(files, key=lambda file: -max(file[0].st_atime_ns, file[0].st_mtime_ns)):
        total += found.st_size
        if total > max_bytes and stat.S_ISREG(found.st_mode):
            Path(path).unlink(missing_ok=True)


MAX_CACHE_BYTES = 2_000_000_000
"""Of XLA's programs on disk, those of earlier versions among them; what was not used for longest gives way."""


def setup(*, cpu_devices: int | None = None, cache: bool = True) -> None:
    """Prepare this process for training; call it before anything that touches a device.

    ``cpu_devices``: how many XLA devices to make of the CPU's cores; ``cache``: save compiled programs on disk, so
    that a second start is fast (in the folder ``JAXRL_FAST_CACHE``, else ``jaxrl_fast`` in the user's cache folder;
    ``JAXRL_FAST_CACHE=off`` keeps nothing). A folder that is not the user's own, or to which others can write, is not
    used, since what is in it would be executed.

    Raises:
        RuntimeError: JAX has already started, so the settings would have no effect.
    """
    if jax_has_started():
        raise RuntimeError(
            "jaxrl_fast.setup must be called before JAX is used: move the call to the top of your program"
        )
    if cpu_devices is not None:
        if cpu_devices < 1:
            raise ValueError(f"cpu_devices={cpu_devices}: at least one device is needed")
        jax.config.update("jax_num_cpu_devices", cpu_devices)
    folder = cache_folder() if cache else None
    wrong = None if folder is None else make_own_folder(folder)
    if wrong is not None:
        print(f"{wrong}; until then compiled programs are not saved", file=sys.stderr)
    elif folder is not None:
        with contextlib.suppress(OSError):  # a folder that can only be read serves as well
            make_room(folder, MAX_CACHE_BYTES)
        jax.config.update("jax_compilation_cache_dir", str(folder))
        # Also programs that compile fast: building a brax environment alone compiles a hundred small ones.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def collect_garbage_seldom() -> None:
    """Let Python look for garbage less often, in a process that is nothing but a command. Tracing makes many objects
    that stay: until everything is traced, halfcheetah's PPO took 5.1 s, and takes 4.1 s so, with as much memory."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def cache_root() -> Path | None:
    """The folder of all that is saved between runs; None with ``JAXRL_FAST_CACHE=off``."""
    base = os.environ.get("JAXRL_FAST_CACHE")
    if base == "off":
        return None
    return Path(base) if base else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxrl_fast"


def cache_folder() -> Path | None:
    """Where compiled programs are saved: one folder per kind of CPU, since programs hold its instructions."""
    root = cache_root()
    return None if root is None else root / f"xla-{cpu_fingerprint()}"


def cpu_fingerprint() -> str:
    """A hash of the machine type and, where the system lists them, the CPU's instruction sets."""
    features = platform.machine() + platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        features += "".join(next((x for x in lines if x.startswith(("flags", "Features"))), ""))
    return hashlib.sha256(features.encode()).hexdigest()[:12]


def jax_has_started() -> bool:
    """Whether JAX has made its devices: it then refuses another number of them."""
    devices = jax.config.jax_num_cpu_devices  # type: ignore[attr-defined]
    try:
        jax.config.update("jax_num_cpu_devices", devices + 1)
    except RuntimeError:
        return True
    jax.config.update("jax_num_cpu_devices", devices)
    return False


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
