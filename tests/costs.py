"""What each test costs: compiled programs, their operations, and processes.

Counts depend neither on the machine, nor on its load, nor on the compilation cache, so a check may
compare them. CPU seconds are recorded for people, and to select the tests of `make test`.
"""

import contextlib
import multiprocessing.process
import os
import pkgutil
import resource
import sys
from pathlib import Path
from typing import Any, NamedTuple

LARGE_OPERATIONS = 1_000
"""Operations of a lowered program from which it counts as large; a small tick of PPO on CartPole
has 3,300.
"""


class Cost(NamedTuple):
    """What a test cost.

    Attributes:
        cpu_s: CPU seconds of this process and its descendants.
        programs: Programs that were compiled or loaded from the compilation cache.
        large: Programs of at least `LARGE_OPERATIONS` operations.
        operations: Operations of all programs.
        processes: Processes that were started, forks included.
    """

    cpu_s: float = 0.0
    programs: int = 0
    large: int = 0
    operations: int = 0
    processes: int = 0


class Counters:
    """Counts since the start of the process."""

    def __init__(self) -> None:
        self.programs = self.large = self.operations = self.processes = 0

    def program(self, operations: int) -> None:
        self.programs += 1
        self.operations += operations
        self.large += operations >= LARGE_OPERATIONS

    def now(self) -> Cost:
        return Cost(tree_cpu_s(), self.programs, self.large, self.operations, self.processes)


COUNTERS = Counters()


COMPILE = "jax._src.compiler.compile_or_get_cached"
"""Called for each program, also for one that is then read from the compilation cache."""


def watch() -> None:
    """Count the programs and processes of this process from now on."""
    module, _, name = COMPILE.rpartition(".")
    compiler = pkgutil.resolve_name(module)
    compile_or_load = getattr(compiler, name)

    def counted(backend: Any, computation: Any, *args: Any, **kwargs: Any) -> Any:
        COUNTERS.program(operations_of(computation))
        return compile_or_load(backend, computation, *args, **kwargs)

    setattr(compiler, name, counted)
    sys.addaudithook(_count_process)
    start = multiprocessing.process.BaseProcess.start

    def counted_start(process: Any) -> None:
        COUNTERS.processes += 1
        start(process)

    multiprocessing.process.BaseProcess.start = counted_start


def operations_of(module: Any) -> int:
    """Return the number of operations of a lowered module, an MLIR module of JAX."""
    from jaxlib.mlir.ir import WalkResult

    count = 0

    def add(operation: Any) -> WalkResult:
        nonlocal count
        count += 1
        return WalkResult.ADVANCE

    module.operation.walk(add)
    return count


def _count_process(event: str, arguments: tuple) -> None:
    if event in ("subprocess.Popen", "os.fork"):
        COUNTERS.processes += 1


TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def tree_cpu_s() -> float:
    """Return the CPU seconds of this process and all its descendants, also of those that still run."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = resource.getrusage(resource.RUSAGE_SELF)
    return (
        ended.ru_utime
        + ended.ru_stime
        + own.ru_utime
        + own.ru_stime
        + sum(map(_cpu_s, _children("self")))
    )


def _children(pid: str) -> list[str]:
    with contextlib.suppress(OSError):
        return " ".join(p.read_text() for p in Path(f"/proc/{pid}/task").glob("*/children")).split()
    return []


def _cpu_s(pid: str) -> float:
    with contextlib.suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / TICKS_PER_S + sum(map(_cpu_s, _children(pid)))
    return 0.0


def difference(before: Cost, after: Cost) -> Cost:
    """Return what was spent between two readings of `Counters.now`.

    Args:
        before: First reading.
        after: Second reading.

    Returns:
        The cost.
    """
    return Cost(*(late - early for early, late in zip(before, after, strict=True)))
