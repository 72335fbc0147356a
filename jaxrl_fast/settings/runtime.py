"""Sets JAX up for this process. The commands do it; importing the library changes nothing."""

import contextlib
import gc
import hashlib
import os
import platform
import sys
from pathlib import Path

import jax

from jaxrl_fast.settings.own_folder import make_own_folder, make_room

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
