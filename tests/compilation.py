"""How programs of tests are compiled: with XLA's fast code generators, and into a cache that lasts."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from importlib.metadata import version
from pathlib import Path

from jaxrl_fast.settings.machine import cpu_fingerprint

OLDER_EMITTERS = "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters"
"""The older code for fused operations, which compiles faster and runs as fast at the sizes of the
tests. It is accepted as one of XLA_FLAGS only, not as an option of a program.
"""
ONE_PART = "--xla_cpu_parallel_codegen_split_count=1"
"""A program's code is generated as a whole. With both, PPO's tick compiles in 0.57 s instead of
2.82 (JAX 0.11).
"""
FEW_OPTIMIZATIONS = "--xla_backend_optimization_level=1"
"""The fixture `optimized` compiles as with ``clang -O1``: half as long as -O3, and the programs run
as fast here.
"""
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
PROBE = "from jaxlib import xla_client; xla_client.make_cpu_client()"
"""Parses XLA's flags without importing JAX, which takes four times as long."""
MAX_LASTING_BYTES = 3_000_000_000
"""Most bytes of programs in the lasting cache; the oldest are removed."""


def fast_flags() -> list[str]:
    """Return the flags of XLA with which tests compile fastest.

    Returns:
        Flags, each of which the installed version supports.
    """
    flags = [OLDER_EMITTERS, ONE_PART]
    if os.environ.get("JAX_DISABLE_MOST_OPTIMIZATIONS") == "true":
        flags.append(FEW_OPTIMIZATIONS)
    return flags if supports(" ".join(flags)) else [flag for flag in flags if supports(flag)]


def supports(flags: str) -> bool:
    """Return whether XLA supports flags; it ends a process that has others.

    Args:
        flags: Value of XLA_FLAGS.

    Returns:
        True if it does.
    """
    variables = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    return subprocess.run([sys.executable, "-c", PROBE], env=variables, **QUIET).returncode == 0


def set_fast_flags() -> None:
    """Set `fast_flags` here and for all processes that start from here, once; flags of the user's
    come last.
    """
    if "JAXRL_FAST_TEST_FLAGS" in os.environ:  # a worker of pytest-xdist
        return
    flags = fast_flags()
    os.environ["JAXRL_FAST_TEST_FLAGS"] = " ".join(flags)
    os.environ["XLA_FLAGS"] = " ".join([*flags, os.environ.get("XLA_FLAGS", "")]).strip()


def lasting_cache() -> Path:
    """Return the folder of compiled programs that lasts between runs, of this JAX and this kind of
    processor.

    Every Python with the same JAX reads it: a program's key is its code and JAX's version.

    Returns:
        The folder, in ``JAXRL_FAST_TEST_CACHE`` or the user's cache folder.
    """
    root = (
        os.environ.get("JAXRL_FAST_TEST_CACHE") or Path.home() / ".cache" / "jaxrl_fast" / "tests"
    )
    names = [f"{name}-{version(name)}" for name in ("jax", "jaxlib")]
    return Path(root) / "-".join([*names, cpu_fingerprint()])


class WorkerCache:
    """A worker's folder of programs, filled by hard links from the lasting one.

    JAX does not write its files atomically, so a process could read a file that another has half
    written: each worker has a folder, and files enter the lasting one as links to whole files.

    Attributes:
        root: What `settings.machine.cache_root` returns for the commands that tests start.
        programs: Folder of XLA's programs in it.
    """

    def __init__(self, lasting: Path) -> None:
        self.lasting = lasting
        (lasting / "programs").mkdir(parents=True, exist_ok=True)
        self.root = Path(tempfile.mkdtemp(prefix=f"worker-{os.getpid()}-", dir=lasting))
        self.programs = self.root / f"xla-{cpu_fingerprint()}"
        self.programs.mkdir(mode=0o700)
        link_files(lasting / "programs", self.programs)

    def close(self) -> None:
        """Link new programs into the lasting folder and remove this one."""
        link_files(self.programs, self.lasting / "programs", check=True)
        shutil.rmtree(self.root, ignore_errors=True)


def link_files(source: Path, target: Path, *, check: bool = False) -> None:
    """Link the files of a folder into another that lacks them.

    Args:
        source: Folder.
        target: Folder of the same file system.
        check: Whether to leave out files that a killed command has written in part.
    """
    there = {entry.name for entry in os.scandir(target)}
    for entry in os.scandir(source):
        if (
            entry.name.endswith("-cache")
            and entry.name not in there
            and (not check or is_whole(Path(entry.path)))
        ):
            with contextlib.suppress(FileExistsError, FileNotFoundError):
                os.link(entry.path, target / entry.name)


def is_whole(program: Path) -> bool:
    """Return whether a file of JAX's cache is complete.

    Args:
        program: File, compressed by zlib, which ends in a checksum.

    Returns:
        False also for another compression.
    """
    try:
        zlib.decompress(program.read_bytes())
    except (zlib.error, OSError):
        return False
    return True


def tidy(lasting: Path) -> None:
    """Remove the folders of workers that were killed, and the oldest programs above
    `MAX_LASTING_BYTES`.

    Args:
        lasting: Folder of `lasting_cache`.
    """
    for folder in lasting.glob("worker-*"):
        try:
            os.kill(int(folder.name.split("-")[1]), 0)  # macOS has no /proc
        except ProcessLookupError:
            shutil.rmtree(folder, ignore_errors=True)
        except PermissionError:  # it runs for another user
            pass
    files = sorted(
        (lasting / "programs").glob("*-cache"), key=lambda path: path.stat().st_mtime, reverse=True
    )
    total = 0
    for path in files:
        total += path.stat().st_size
        if total > MAX_LASTING_BYTES:
            path.unlink(missing_ok=True)
