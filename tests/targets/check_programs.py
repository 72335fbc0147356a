"""Checks that the cost of programs on accelerators does not grow: ``make test-targets`` (minutes;
needs ``make targets``).

The reference is the committed figures of experiments/results/targets.json. A change that raises the
cost on purpose commits new figures (``python experiments/gpu/targets.py NAME ...``).
"""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments" / "gpu"))
from targets import RESULTS, ROWS, compile_row

from jaxrl_fast.settings.schema import ConfigError
from jaxrl_fast.targets.accelerators import CHIPS, python_for

NAMES = (
    *(
        "ppo_cartpole_h100",
        "ppo_cartpole_h100x8",
        "sac_h100",
        "sac_h100_graphs",
        "sac_v5e_2x4",
        "dqn_h100",
    ),
    "sac_h100x2_split",
)
WARM_UP = {"sac_h100": 1, "dqn_h100": 1, "sac_h100x2_split": 2}
"""Host waits per tick of these programs: a learner's program asks the device whether the replay
warm-up is over.

The other programs never wait.
"""
GROWTH = 1.05
"""Largest allowed growth of the number of kernels; a change of XLA's heuristics shifts some."""


def compilers_missing() -> bool:
    """Return whether this machine cannot compile for accelerators."""
    try:
        return not (python_for("cuda") and python_for("tpu"))
    except ConfigError:
        return True


def figures(row: dict) -> dict:
    """Return the checked figures of a row."""
    programs = row["programs"]
    return {
        "kernels": sum(program["kernels"] for program in programs),
        "kernels_an_update": row["kernels_an_update"],
        "kernels_a_step": row["kernels_a_step"],
        "launches": [program["launches"] for program in programs],
        "all_reduces": [
            [found["instructions"], found["runs"]]
            for program in programs
            for found in program["collectives"]
            if found["kind"] == "all-reduce"
        ],
        "other_collectives": sorted(
            {c["kind"] for p in programs for c in p["collectives"]} - {"all-reduce"}
        ),
    }


pytestmark = pytest.mark.skipif(
    compilers_missing(), reason="no compilers for accelerators here: make targets"
)


@pytest.mark.parametrize("name", NAMES)
def test_programs_cost_what_is_committed(name):
    found, committed = compile_row(*ROWS[name]), json.loads(RESULTS.read_text())[name]
    now, held = figures(found), figures(committed)
    check_kernels(now, held)
    assert now["all_reduces"] == held["all_reduces"]
    assert now["other_collectives"] == held["other_collectives"]
    waits = sum(
        program["launches"]["host_syncs"] for program in found["programs"] if program["launches"]
    )
    assert waits <= WARM_UP.get(name, 0)
    check_memory(found)


def check_kernels(now: dict, held: dict) -> None:
    """Check that the numbers of kernels and of launches have not grown much."""
    assert now["kernels"] <= GROWTH * held["kernels"]
    for each in ("kernels_an_update", "kernels_a_step"):
        for fragment, number in held[each].items():
            assert number is None or now[each][fragment] <= GROWTH * number, (each, fragment)
    for before, after in zip(held["launches"], now["launches"], strict=True):
        assert before is None or all(after[key] <= GROWTH * before[key] for key in before), (
            before,
            after,
        )


def check_memory(found: dict) -> None:
    """Check that no replay buffer is copied, and that the program does not exceed the memory."""
    memory = CHIPS[found["target"].partition(":")[0]].memory_bytes
    for program in found["programs"]:
        assert not program["big_copies"]
        assert program["memory_bytes"] < memory
