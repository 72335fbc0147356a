"""Settings of every test: no silent rank promotion, warnings as errors, repeatable hypothesis
examples, and four CPU devices, since placements are tested on 1, 2 and 4.
"""

import contextlib
import ctypes
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

# Most programs of tests and commands run only for a moment. `make gpu` sets this otherwise.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")

import costs
import jax
import numpy as np
import pytest
import selection
from compilation import WorkerCache, lasting_cache, set_fast_flags, tidy
from hypothesis import HealthCheck, settings
from many_commands import Commands

from jaxrl_fast.settings.machine import collect_garbage_seldom

# a shell's background jobs and their children ignore Ctrl-C, and under nohup HUP
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
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


COSTS_KEY = "cost"
"""Name of a report's property that holds the cost of its test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--costs",
        choices=["check", "record"],
        help="compare costs with costs.json, or write them there",
    )


def pytest_configure(config: pytest.Config) -> None:
    set_fast_flags()  # before JAX makes its devices
    if not is_worker(config):
        tidy(lasting_cache())
    if is_worker(config) or not config.getoption("numprocesses", None):
        cache_programs(config)
        costs.watch()
    collect_garbage_seldom()  # with Python's own thresholds, the tests took a tenth longer
    config.addinivalue_line(
        "markers", "long: neither cheap nor a witness: `make test` does not run it"
    )
    config.addinivalue_line(
        "markers", "text: checks texts and the form of code: `make lint` runs it"
    )
    for line in ("error", *THIRD_PARTY_WARNINGS):
        config.addinivalue_line("filterwarnings", line)


def is_worker(config: pytest.Config) -> bool:
    """Return whether this process is a worker of pytest-xdist."""
    return hasattr(config, "workerinput")


def cache_programs(config: pytest.Config) -> None:
    """Set the cache folder of this process and of the commands that it starts."""
    cache = WorkerCache(lasting_cache())
    config.add_cleanup(cache.close)
    os.environ["JAXRL_FAST_CACHE"] = str(cache.root)
    jax.config.update("jax_compilation_cache_dir", str(cache.programs))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark dear tests, and order files so that two workers end at the same time.

    Attributes that other packages no longer have come first, before the failures that follow.
    """
    recorded, laws = selection.recorded_costs(), selection.witnesses()
    used = set()
    for item in items:
        matching = selection.matching(name_of(item), set(laws))
        used |= matching
        if not matching and selection.is_dear(recorded.get(name_of(item), costs.Cost())):
            item.add_marker(pytest.mark.long)
    if config.args in (["tests"], [str(Path(__file__).parent)]):
        config.unused_witnesses = set(laws) - used  # for `test_costs`
    selected = config.getoption("markexpr", "")
    of_file: dict[Path, float] = {}
    for item in items:
        is_long = item.get_closest_marker("long") is not None
        if not selected or is_long == selected.startswith("long"):
            cost = recorded.get(name_of(item), costs.Cost())
            of_file[item.path] = of_file.get(item.path, 0.0) + cost.cpu_s
    items.sort(
        key=lambda item: (
            item.path.stem != "test_third_party",
            -of_file.get(item.path, 0.0),
            str(item.path),
        )
    )


def name_of(item: pytest.Item) -> str:
    return f"{item.path.name}::{item.name}"


STARTED = pytest.StashKey[costs.Cost]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[STARTED] = costs.COUNTERS.now()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
    report = yield
    if call.when == "teardown":
        now = costs.COUNTERS.now()
        spent = costs.difference(item.stash.get(STARTED, now), now)
        report.user_properties.append((COSTS_KEY, [name_of(item), *spent]))
    return report


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Collect the costs that workers report, in the process that prints."""
    if not is_worker(session.config):
        session.config.pluginmanager.register(CostReport(session.config))


class CostReport:
    """Costs of the tests that ran: compared, recorded, and the dearest printed."""

    def __init__(self, config: pytest.Config) -> None:
        self.mode = config.getoption("--costs")
        self.measured: dict[str, costs.Cost] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, numbers in report.user_properties:
            if name == COSTS_KEY and report.when == "teardown":
                self.measured[numbers[0]] = costs.Cost(*numbers[1:])

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        recorded = selection.recorded_costs()
        if self.mode == "record":
            selection.write_costs(selection.merged(recorded, self.measured))
        self.grown = selection.growth(recorded, self.measured) if self.mode == "check" else None
        if self.grown and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.mode is None:
            return
        total = sum(cost.cpu_s for cost in self.measured.values()) / 60
        terminalreporter.write_line(
            f"{len(self.measured):,} tests, {total:.1f} CPU-minutes; the dearest:"
        )
        for line in selection.dearest(self.measured):
            terminalreporter.write_line(line)
        if self.grown:
            terminalreporter.write_line(self.grown, red=True)


@pytest.fixture(autouse=True)
def _same_numbers_in_any_order(request: pytest.FixtureRequest) -> None:
    """Reset a module's ``RNG`` before each test, so that a test's numbers do not depend on the
    tests before it.
    """
    rng = getattr(request.module, "RNG", None)
    if rng is not None:
        rng.bit_generator.state = np.random.default_rng(1).bit_generator.state


MEMORY_LIMIT, LIVE_LIMIT = 1_000_000_000, 1_400_000_000
"""Bytes of a process above which a test returns free memory, and above which it then drops compiled
programs.
"""


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

    Without it a worker grew to 3.3 GB: XLA's compiler leaves up to 1 GB of free memory behind,
    which glibc retains.
    """
    with contextlib.suppress(OSError, AttributeError):  # macOS, musl
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def memory_bytes() -> int:
    """Return the memory of this process in bytes; 0 where the system does not report it."""
    pages = Path("/proc/self/statm")
    return int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if pages.exists() else 0


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
    """Compile with the default optimization, for programs that run long or whose compiled text is
    examined.
    """
    before = jax.config.values["jax_disable_most_optimizations"]  # a flag, not an attribute
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture
def same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile every program with the options of small updates, so that all round alike however
    fragments are grouped.

    Programs that only act have others. On AMD's family 25, their products by Eigen differ in the
    last bit.
    """
    from jaxrl_fast.runtime import xla_options

    for name, value in xla_options.SMALL_OPTIONS.items():
        monkeypatch.setitem(xla_options.ACTING_OPTIONS, name, value)
