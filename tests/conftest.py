"""Settings of every test: no silent rank promotion, warnings as errors, repeatable hypothesis examples, and four CPU
devices, since placements are tested on 1, 2 and 4.
"""

import contextlib
import ctypes
import gc
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

# Most programs of tests and commands run only for a moment. `make gpu` sets this otherwise.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from many_commands import Commands

from jaxrl_fast.settings.machine import collect_garbage_seldom

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs and their children ignore Ctrl-C
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_rank_promotion", "raise")

settings.register_profile(
    "laws",
    deadline=None,
    max_examples=10,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("laws")

THIRD_PARTY_WARNINGS = (
    # brax 0.14.2 and gymnax 1.0.1 on import and in their physics
    "ignore::DeprecationWarning:brax.*",
    "ignore::DeprecationWarning:gymnax.*",
    "ignore::DeprecationWarning:flax.*",
    "ignore::DeprecationWarning:tensorboardX.*",
    "ignore:.*google.protobuf.*:DeprecationWarning",
    "ignore:.*jax.*deprecated.*:DeprecationWarning:(?!jaxrl_fast|envs)",
)
"""Exceptions to warnings-as-errors, each caused by other packages. Later lines win in pytest."""


def pytest_configure(config: pytest.Config) -> None:
    keep_compiled_programs(config)
    compile_in_half_the_time()
    collect_garbage_seldom()  # with Python's own thresholds, the tests took a tenth longer
    config.addinivalue_line("markers", "long: a wide grid; `make test` runs its cheapest member")
    for line in ("error", *THIRD_PARTY_WARNINGS):
        config.addinivalue_line("filterwarnings", line)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Report attributes that other packages no longer have before the failures that follow."""
    items.sort(key=lambda item: item.path.stem != "test_third_party")
    mark_long_tests(config, items)


LONG_TESTS = [line for line in Path(__file__).with_name("long_tests.txt").read_text().splitlines() if line[:1] != "#"]
"""Tests that only ``make test-long`` runs: ``test_file.py::name``, or how such names begin, followed by ``*``."""


def mark_long_tests(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of `LONG_TESTS` as ``long``.

    Raises:
        pytest.UsageError: The whole suite was collected, and a line names no test.
    """
    used = set()
    for item in items:
        name = f"{item.path.name}::{item.name}"
        lines = {line for line in LONG_TESTS if line == name or (line[-1] == "*" and name.startswith(line[:-1]))}
        used |= lines
        if lines:
            item.add_marker(pytest.mark.long)
    if config.args in (["tests"], [str(Path(__file__).parent)]) and (unused := set(LONG_TESTS) - used):
        raise pytest.UsageError(f"tests/long_tests.txt names no test: {', '.join(sorted(unused))}")


@pytest.fixture(autouse=True)
def _same_numbers_in_any_order(request: pytest.FixtureRequest) -> None:
    """Reset a module's ``RNG`` before each test, so that a test's numbers do not depend on the tests before it."""
    rng = getattr(request.module, "RNG", None)
    if rng is not None:
        rng.bit_generator.state = np.random.default_rng(1).bit_generator.state


MEMORY_LIMIT, LIVE_LIMIT = 1_000_000_000, 1_400_000_000
"""Bytes of a process above which a test returns free memory, and above which it then drops compiled programs."""


@pytest.fixture(autouse=True)
def _memory_is_bounded(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if memory_bytes() > MEMORY_LIMIT:
        return_free_memory()
    if memory_bytes() > LIVE_LIMIT:
        drop_programs(request.module)


@pytest.fixture(autouse=True, scope="module")
def _no_module_leaves_its_programs_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    drop_programs(request.module)


def drop_programs(module: ModuleType) -> None:
    """Empty the caches of a test module and, above `MEMORY_LIMIT`, the caches of JAX."""
    for value in vars(module).values():
        if hasattr(value, "cache_clear") and getattr(value, "__module__", "") == module.__name__:
            value.cache_clear()
    if memory_bytes() > MEMORY_LIMIT:
        jax.clear_caches()
        gc.collect()
        return_free_memory()


def return_free_memory() -> None:
    """Return the memory that glibc has freed to the system.

    Without it a worker grew to 3.3 GB: XLA's compiler leaves up to 1 GB of free memory behind, which glibc retains.
    """
    with contextlib.suppress(OSError, AttributeError):  # macOS, musl
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def memory_bytes() -> int:
    """Return the memory of this process in bytes; 0 where the system does not report it."""
    pages = Path("/proc/self/statm")
    return int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if pages.exists() else 0


def keep_compiled_programs(config: pytest.Config) -> None:
    """Set a cache folder for this process and for the commands that it starts.

    Each worker of pytest-xdist has a separate folder: JAX does not write its files atomically, so a process could read
    a file that another process has half written.
    """
    folder = tempfile.TemporaryDirectory(prefix="jaxrl_fast-tests-")
    config.add_cleanup(folder.cleanup)
    os.environ["JAXRL_FAST_CACHE"] = folder.name
    jax.config.update("jax_compilation_cache_dir", folder.name)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


EMITTERS = "xla_cpu_use_fusion_emitters"
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
PROBE = "from jaxlib import xla_client; xla_client.make_cpu_client()"
"""Parses XLA's flags without importing JAX, which takes four times as long."""


def compile_in_half_the_time() -> None:
    """Set the options that make XLA compile faster, here and in commands, if this version of XLA has them.

    JAX 0.10 has older emitters. The fixture `optimized` compiles as with ``clang -O1``: on a CPU, this takes half as
    long as -O3, and the programs run as fast at the sizes of the tests.
    """
    wanted = [f"--{EMITTERS}=false"]
    if os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] == "true":
        wanted.append("--xla_backend_optimization_level=1")
    for option in wanted:
        flags = os.environ.get("XLA_FLAGS", "")
        # XLA reads its flags once, and ends a process that has an unsupported flag.
        variables = {**os.environ, "XLA_FLAGS": f"{flags} {option}".strip(), "JAX_PLATFORMS": "cpu"}
        if option not in flags and not subprocess.run([sys.executable, "-c", PROBE], env=variables, **QUIET).returncode:
            os.environ["XLA_FLAGS"] = variables["XLA_FLAGS"]


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    with Commands(tmp_path_factory.mktemp("notes")) as commands:
        yield commands


@pytest.fixture
def strict_dtypes() -> Iterator[None]:
    """Forbid implicit promotion between dtypes, for this package's numerics."""
    with jax.numpy_dtype_promotion("strict"):
        yield


@pytest.fixture
def optimized() -> Iterator[None]:
    """Compile with the default optimization, for programs that run long or whose compiled text is examined."""
    before = jax.config.values["jax_disable_most_optimizations"]  # a flag, not an attribute
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture
def same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile every program with the options of small updates, so that all round alike however fragments are grouped.

    Programs that only act have others. On AMD's family 25, their products by Eigen differ in the last bit.
    """
    from jaxrl_fast.runtime import xla_options

    for name, value in xla_options.SMALL_OPTIONS.items():
        monkeypatch.setitem(xla_options.ACTING_OPTIONS, name, value)
    if EMITTERS in os.environ.get("XLA_FLAGS", ""):
        monkeypatch.setitem(xla_options.CPU_OPTIONS, EMITTERS, True)
