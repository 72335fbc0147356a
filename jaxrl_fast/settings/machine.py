"""Setup of JAX on this machine: devices, caches in the user's private folders, and measured
placements.
"""

import contextlib
import gc
import hashlib
import os
import platform
import re
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import jax
import yaml


def make_own_folder(folder: Path) -> str | None:
    """Create a folder that only its owner can open, or restrict an older one that others can only
    read.

    Args:
        folder: Folder.

    Returns:
        None, or an error message with a fix if there is no folder that can be trusted.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        folder_stat = folder.lstat()
        if not stat.S_ISDIR(folder_stat.st_mode) or folder_stat.st_uid != os.geteuid():
            return f"{folder} is not a folder of yours: remove it, or write JAXRL_FAST_CACHE=<another folder>"
        if folder_stat.st_mode & 0o022:
            return f"others can write to {folder}: remove it, or write JAXRL_FAST_CACHE=<another folder>"
        if folder_stat.st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        return f"cannot make {folder} ({error.strerror}): write JAXRL_FAST_CACHE=<another folder>"
    return None


def make_room(folder: Path, max_bytes: int) -> None:
    """Remove the least recently used files of a folder.

    Args:
        folder: Folder.
        max_bytes: Most bytes of the remaining files.

    Raises:
        OSError: The folder cannot be read, or a file cannot be removed.
    """
    files, total = [], 0
    for entry in os.scandir(folder):
        with contextlib.suppress(FileNotFoundError):  # another process may remove files too
            files.append((entry.stat(follow_symlinks=False), entry.path))
    for file_stat, path in sorted(
        files, key=lambda file: -max(file[0].st_atime_ns, file[0].st_mtime_ns)
    ):
        total += file_stat.st_size
        if total > max_bytes and stat.S_ISREG(file_stat.st_mode):
            Path(path).unlink(missing_ok=True)


MAX_CACHE_BYTES = 2_000_000_000
"""Most bytes of XLA's programs on disk, of all versions; the least recently used files are removed.
"""


def setup(*, cpu_devices: int | None = None, cache: bool = True) -> None:
    """Prepare this process for training, before anything uses a device.

    The cache is the folder ``JAXRL_FAST_CACHE``, else ``jaxrl_fast`` in the user's cache folder;
    ``JAXRL_FAST_CACHE=off`` disables it. A folder that the user does not own, or to which others
    can write, is not used, because its programs would be executed.

    Args:
        cpu_devices: Number of XLA devices to make of the CPU's cores; None for JAX's default.
        cache: Whether to save compiled programs on disk, which makes a second start fast.

    Raises:
        RuntimeError: JAX has already started, so the settings would have no effect.
        ValueError: ``cpu_devices`` is less than 1.
    """
    if jax_has_started():
        raise RuntimeError(
            "jaxrl_fast.setup must be called before JAX is used: move the call to the top of your program"
        )
    if cpu_devices is not None:
        if cpu_devices < 1:
            raise ValueError(f"cpu_devices={cpu_devices}: at least one device is needed")
        jax.config.update("jax_num_cpu_devices", cpu_devices)
    if jax.config.values["jax_enable_x64"]:
        print("jax_enable_x64 is switched off: jaxrl_fast computes in 32 bits", file=sys.stderr)
        jax.config.update("jax_enable_x64", False)
    folder = cache_folder() if cache else None
    wrong = None if folder is None else make_own_folder(folder)
    if wrong is not None:
        print(f"{wrong}. Until then compiled programs are not saved", file=sys.stderr)
    elif folder is not None:
        with contextlib.suppress(OSError):  # a read-only folder works, too
            make_room(folder, MAX_CACHE_BYTES)
        jax.config.update("jax_compilation_cache_dir", str(folder))
        # Also programs that compile fast: building a brax environment compiles a hundred small
        # ones.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def collect_garbage_seldom() -> None:
    """Make Python collect garbage less often, in a process that is a command.

    Tracing makes many objects that stay alive. Until everything was traced, halfcheetah's PPO took
    5.1 s with the default and takes 4.1 s with these thresholds, with equal memory.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def cache_root() -> Path | None:
    """Return the folder of all data that is saved between runs.

    Returns:
        The folder; None with ``JAXRL_FAST_CACHE=off``, or for a user without a home folder.
    """
    base = os.environ.get("JAXRL_FAST_CACHE")
    if base == "off":
        return None
    if base:
        return Path(base)
    with suppress(RuntimeError):  # neither HOME nor an entry in the system's list of users
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxrl_fast"
    return None


def cache_folder() -> Path | None:
    """Return the folder of compiled programs, one per kind of CPU, because programs contain its
    instructions.

    Returns:
        The folder; None with ``JAXRL_FAST_CACHE=off``.
    """
    root = cache_root()
    return None if root is None else root / f"xla-{cpu_fingerprint()}"


def cpu_fingerprint() -> str:
    """Hash the machine type and, if the system lists them, the CPU's instruction sets.

    Returns:
        12 hexadecimal digits.
    """
    features = platform.machine() + platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
        features += "".join(next((x for x in lines if x.startswith(("flags", "Features"))), ""))
    return hashlib.sha256(features.encode()).hexdigest()[:12]


def jax_has_started() -> bool:
    """Return whether JAX has made its devices, after which their number cannot change.

    Returns:
        True if it has.
    """
    devices = jax.config.values["jax_num_cpu_devices"]
    try:
        jax.config.update("jax_num_cpu_devices", devices + 1)
    except RuntimeError:
        return True
    jax.config.update("jax_num_cpu_devices", devices)
    return False


TABLE = Path(__file__).parent.parent / "config" / "placements.yaml"
AUTO = "auto"


class Choice(NamedTuple):
    """A placement for a run.

    Attributes:
        placement: Name of the placement.
        devices: Number of devices.
        reason: Reason in a few words; "" for none.
    """

    placement: str
    devices: int
    reason: str


def cpu_cores() -> int:
    """Return the number of cores that this process may use.

    Returns:
        Number of cores.
    """
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def processor() -> str:
    """Return the processor's model name.

    Returns:
        The name.
    """
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages on which speed depends.

    Returns:
        Versions by package.
    """
    names = ("jaxrl_fast", "jax", "jaxlib", "flax", "brax", "gymnax", "gymnasium", "numpy")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in names}}


def free_memory_bytes() -> int:
    """Return the memory that programs can still get, within the limit of a container.

    Returns:
        Bytes; the machine's total memory if the system does not report more.
    """
    free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    meminfo, group = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
    if meminfo.exists():
        kilobytes = re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text(encoding="utf-8"))
        free = 1024 * int(kilobytes[1]) if kilobytes else free
    try:
        used = int((group / "memory.current").read_text(encoding="utf-8")) - _file_cache_bytes(
            group / "memory.stat"
        )
        limit = int((group / "memory.max").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no container, or one without a limit
        return free
    return max(0, min(free, limit - used))


def free_bytes(devices: Iterable[jax.Device]) -> int:
    """Return the memory that programs can still get on some devices.

    Args:
        devices: Devices; the CPU's have the memory of this machine together.

    Returns:
        Bytes.
    """
    stats = [device.memory_stats() or {} for device in devices if device.platform != "cpu"]
    on_devices = [
        one["bytes_limit"] - one.get("bytes_in_use", 0) for one in stats if "bytes_limit" in one
    ]
    return sum(on_devices) if on_devices else free_memory_bytes()


def busy_seconds() -> tuple[float, float] | None:
    """Return the CPU seconds used so far by all programs, and by this process with its session and
    children.

    Children that have ended count if they were waited for.

    Returns:
        Seconds of all programs and of this process; None if the system does not report them (Linux
        does).
    """
    ticks, tick_s = Path("/proc/stat"), 1 / os.sysconf("SC_CLK_TCK")
    if not ticks.exists():
        return None
    user, nice, system, _, _, *interrupts = map(
        int, ticks.read_text(encoding="utf-8").splitlines()[0].split()[1:8]
    )
    own_ticks, me, session = 0, os.getpid(), os.getsid(0)
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            # after the name in brackets: state, parent, group, session ...; the 12th to 15th are
            # the user and system times of the process, and of its children that have ended
            fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
            if int(fields[1]) == me or int(fields[3]) == session:
                own_ticks += sum(map(int, fields[11:15]))
    return (user + nice + system + sum(interrupts)) * tick_s, own_ticks * tick_s


def choose(
    suite: str, name: str, algo: str, *, num_envs: int, num_seeds: int, devices: int
) -> Choice:
    """Select the fastest placement for an environment and an algorithm.

    Seeds are sharded first, because they exchange nothing. Only as many devices are used as divide
    the seeds, or else the environments, evenly.

    Args:
        suite: Suite of the environment.
        name: Short name of the environment.
        algo: Name of the algorithm.
        num_envs: Number of environments.
        num_seeds: Number of seeds.
        devices: Number of cores.

    Returns:
        The placement.
    """
    by_seeds = largest_divisor(num_seeds, devices)
    if by_seeds > 1:
        return Choice("data_parallel", by_seeds, f"{num_seeds} seeds on {by_seeds} devices")
    table = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    measured = table.get(name, table.get(suite, {})).get(algo)
    if measured is None:
        return Choice("fused", 1, f"no measurement of {algo} on env={suite}")
    even = largest_divisor(num_envs, devices)
    if measured == "fused" or even == 1:
        return Choice(
            "fused",
            1,
            "measured" if measured == "fused" else "one device, or an odd number of environments",
        )
    return Choice(measured, even, "measured")


def _file_cache_bytes(statistics: Path) -> int:
    """Return the bytes with which a container caches files, and which programs can get."""
    match = re.search(
        r"^inactive_file (\d+)$", statistics.read_text(encoding="utf-8"), re.MULTILINE
    )
    return int(match[1]) if match else 0


def largest_divisor(number: int, limit: int) -> int:
    """Return the largest divisor of a number up to a limit.

    Args:
        number: Positive number.
        limit: Largest allowed divisor.

    Returns:
        The divisor.
    """
    return max(d for d in range(1, min(number, limit) + 1) if number % d == 0)
