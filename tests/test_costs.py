"""What tests cost is counted and compared without a clock, and compiled programs last between runs."""

import os
import subprocess
import sys
import zlib
from pathlib import Path

import compilation
import jax
import jax.numpy as jnp
import pytest
import selection
from compilation import WorkerCache, link_files, tidy
from costs import COUNTERS, Cost, difference
from hypothesis import given
from hypothesis import strategies as st
from selection import PLAY, growth, is_dear, matching, merged

NAMES = st.sampled_from([f"test_a.py::test_{i}" for i in range(4)])
COSTS = st.builds(
    Cost,
    cpu_s=st.floats(0, 9),
    programs=st.integers(0, 9),
    large=st.integers(0, 20),
    operations=st.integers(0, 90_000),
    processes=st.integers(0, 9),
)


def test_programs_and_processes_are_counted_also_where_they_are_cached():
    program = lambda x: jnp.tanh(x) + 12.5  # noqa: E731
    spent = []
    for _ in range(2):  # the second is read from the cache on disk
        before = COUNTERS.now()
        jax.jit(lambda x: program(x)).lower(1.0).compile()
        subprocess.run([sys.executable, "-c", ""], check=True)
        spent.append(difference(before, COUNTERS.now()))
    for cost in spent:
        assert (cost.programs, cost.large, cost.processes) == (1, 0, 1)
        assert 0 < cost.operations < 20 and cost.cpu_s > 0.0
    assert spent[0].operations == spent[1].operations


def test_a_dear_test_is_one_above_a_limit():
    assert not is_dear(Cost(cpu_s=0.9, large=12, processes=2, operations=10**9))
    assert is_dear(Cost(cpu_s=1.0)) and is_dear(Cost(large=13)) and is_dear(Cost(processes=3))


@given(st.dictionaries(NAMES, COSTS), st.dictionaries(NAMES, COSTS))
def test_growth_is_found_in_the_tests_that_ran_and_recording_ends_it(recorded, measured):
    recorded, measured = (
        {n: selection.round_cost(c) for n, c in x.items()} for x in (recorded, measured)
    )
    for figure in ("operations", "processes"):
        before = sum(getattr(recorded.get(name, Cost()), figure) for name in measured)
        now = sum(getattr(cost, figure) for cost in measured.values())
        if now > (1 + PLAY) * before:
            assert growth(recorded, measured) is not None
    assert growth(measured, measured) is None
    faster = {name: cost._replace(cpu_s=0.0) for name, cost in measured.items()}
    assert growth(faster, measured) is None  # no clock
    written = merged({}, measured)
    for name, cost in written.items():
        assert abs(cost.operations - measured[name].operations) <= 50


def test_a_recorded_cost_is_replaced_only_where_it_changed():
    old = {
        "test_a.py::test_1": Cost(2.0, 3, 1, 5_000, 1),
        "test_a.py::test_2": Cost(2.0, 3, 1, 5_000, 1),
    }
    measured = {
        "test_a.py::test_1": Cost(1.9, 3, 1, 5_040, 1),
        "test_a.py::test_2": Cost(2.0, 3, 1, 5_060, 1),
    }
    new = merged(old, measured)
    assert new["test_a.py::test_1"] == old["test_a.py::test_1"]
    assert new["test_a.py::test_2"].operations == 5_100
    # it costs nothing now
    assert merged(old, {"test_a.py::test_1": Cost()}).keys() == {"test_a.py::test_2"}


def test_every_witness_has_a_law_and_the_tests_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    laws = selection.witnesses()
    assert laws and all(law.endswith(".") for law in laws.values())
    assert matching(
        "test_a.py::test_1[x]", {"test_a.py::test_1*", "test_a.py::test_1", "test_b.py::*"}
    ) == {"test_a.py::test_1*"}
    monkeypatch.setattr(selection, "WITNESSES", tmp_path / "witnesses.txt")
    selection.WITNESSES.write_text("  test_a.py::test_1\n")
    with pytest.raises(ValueError, match="no law above"):
        selection.witnesses()


def program_file(folder: Path, name: str, content: bytes = b"program") -> Path:
    path = folder / f"{name}-cache"
    path.write_bytes(zlib.compress(content))
    return path


def test_workers_begin_with_the_programs_of_all_before_and_leave_theirs(tmp_path: Path):
    one, two = WorkerCache(tmp_path), WorkerCache(tmp_path)
    program_file(one.programs, "a")
    program_file(two.programs, "a")
    program_file(two.programs, "b")
    torn = program_file(two.programs, "torn")
    torn.write_bytes(torn.read_bytes()[:-3])  # by a command that was killed
    one.close()
    two.close()
    three = WorkerCache(tmp_path)
    assert {path.name for path in three.programs.iterdir()} == {"a-cache", "b-cache"}
    # what commands save otherwise does not last
    assert list(three.root.iterdir()) == [three.programs]
    three.close()
    assert {path.name for path in tmp_path.iterdir()} == {"programs"}


def test_killed_workers_and_the_oldest_programs_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cache = WorkerCache(tmp_path)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / f"worker-{ended.pid}-x").mkdir()
    for age, name in enumerate("abc"):
        path = program_file(tmp_path / "programs", name, os.urandom(1_000))
        os.utime(path, (1_000 - age, 1_000 - age))
    monkeypatch.setattr(compilation, "MAX_LASTING_BYTES", 2_500)
    tidy(tmp_path)
    assert {path.name for path in (tmp_path / "programs").iterdir()} == {"a-cache", "b-cache"}
    assert set(tmp_path.glob("worker-*")) == {cache.root}
    link_files(tmp_path / "programs", cache.programs)
    assert len(list(cache.programs.iterdir())) == 2


def test_every_witness_is_a_test(pytestconfig: pytest.Config):
    """The set exists where all tests were collected."""
    assert getattr(pytestconfig, "unused_witnesses", set()) == set()
