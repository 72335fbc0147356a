"""Which tests `make test` runs: all cheap ones, and the witnesses of `witnesses.txt`."""

import json
from pathlib import Path

from costs import Cost

HERE = Path(__file__).parent
COSTS = HERE / "costs.json"
"""What each test cost when `make costs` recorded it."""
WITNESSES = HERE / "witnesses.txt"
MAX_CPU_S = 1.0
MAX_LARGE = 12
MAX_PROCESSES = 2
"""A test that cost more is dear."""
PLAY = 0.05
"""By this share the operations and processes of `make test` may exceed the recorded ones."""


def recorded_costs() -> dict[str, Cost]:
    """Return the recorded cost of each test, by ``test_file.py::name``.

    Returns:
        Costs; tests that were never recorded, or cost nothing, are absent.
    """
    lines = json.loads(COSTS.read_text(encoding="utf-8")) if COSTS.exists() else {}
    return {name: Cost(*numbers) for name, numbers in lines.items()}


def is_dear(cost: Cost) -> bool:
    """Return whether a test costs too much to be run by `make test` without a reason.

    Args:
        cost: Its recorded cost.

    Returns:
        True if one of its figures is above the limit.
    """
    return cost.cpu_s >= MAX_CPU_S or cost.large > MAX_LARGE or cost.processes > MAX_PROCESSES


def witnesses() -> dict[str, str]:
    """Return the law of each witness: a test's name, or the beginning of names followed by ``*``.

    Returns:
        Laws by name.

    Raises:
        ValueError: A line is no law and has none above it.
    """
    laws, law = dict[str, str](), ""
    for line in WITNESSES.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if not line.startswith("  "):
            law = line
        elif law:
            laws[line.strip()] = law
        else:
            raise ValueError(f"{WITNESSES.name}: no law above {line.strip()}")
    return laws


def matching(name: str, patterns: set[str]) -> set[str]:
    """Return the patterns that name a test.

    Args:
        name: ``test_file.py::name``.
        patterns: Names, or beginnings followed by ``*``.

    Returns:
        Those that match.
    """
    return {p for p in patterns if p == name or (p.endswith("*") and name.startswith(p[:-1]))}


def round_cost(cost: Cost) -> Cost:
    """Round a cost for `COSTS`, so that it changes only with the test.

    Args:
        cost: Measured cost.

    Returns:
        CPU seconds to a tenth, operations to hundreds.
    """
    return cost._replace(cpu_s=round(cost.cpu_s, 1), operations=round(cost.operations, -2))


def merged(recorded: dict[str, Cost], measured: dict[str, Cost]) -> dict[str, Cost]:
    """Replace the costs whose counts changed, or whose CPU seconds changed by more than a third.

    Args:
        recorded: Costs so far.
        measured: Costs of the tests that ran.

    Returns:
        New costs by name, in order, without tests that cost nothing.
    """
    new = dict(recorded)
    for name, cost in measured.items():
        old, cost = recorded.get(name), round_cost(cost)
        slower = old is not None and abs(cost.cpu_s - old.cpu_s) > max(0.3, old.cpu_s / 3)
        if old is None or slower or cost[1:] != old[1:]:
            new[name] = cost
    return {
        name: cost
        for name, cost in sorted(new.items())
        if cost.operations or cost.processes or cost.cpu_s >= 0.3
    }


def write_costs(costs: dict[str, Cost]) -> None:
    """Write `COSTS`, a line a test.

    Args:
        costs: Costs by name.
    """
    lines = [
        f"{json.dumps(name, ensure_ascii=False)}: {json.dumps(list(cost))}"
        for name, cost in costs.items()
    ]
    COSTS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def growth(recorded: dict[str, Cost], measured: dict[str, Cost]) -> str | None:
    """Compare the costs of the tests that ran with the recorded ones.

    CPU seconds are not compared, since they depend on the machine.

    Args:
        recorded: Recorded costs.
        measured: Costs of the tests that ran.

    Returns:
        What grew by more than `PLAY`, in a line; None if nothing did.
    """
    measured = {name: round_cost(cost) for name, cost in measured.items()}  # as the recorded ones
    for figure in ("operations", "processes"):
        before = sum(getattr(recorded.get(name, Cost()), figure) for name in measured)
        now = sum(getattr(cost, figure) for cost in measured.values())
        if now > (1 + PLAY) * before:
            grown = sorted(
                measured,
                key=lambda name: (
                    getattr(recorded.get(name, Cost()), figure) - getattr(measured[name], figure)
                ),
            )
            names = ", ".join(grown[:5])
            return (
                f"the tests' {figure} grew from {before:,} to {now:,}, by more than {PLAY:.0%}, most by {names}. "
                "Make them cheaper, or record their costs: make costs TESTS=FILE"
            )
    return None


def dearest(measured: dict[str, Cost], count: int = 20) -> list[str]:
    """List the dearest tests.

    Args:
        measured: Costs by name.
        count: Number of tests.

    Returns:
        A line each.
    """
    names = sorted(measured, key=lambda name: -measured[name].cpu_s)[:count]
    return [
        f"{measured[name].cpu_s:6.1f} CPU-s {measured[name].operations:8,} operations "
        f"{measured[name].processes:3} processes  {name}"
        for name in names
    ]
