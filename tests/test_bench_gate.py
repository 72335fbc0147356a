"""When `make bench-gate` reports that a row has become slower. Nothing is timed here."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "experiments" / "bench"))
import gate
from gate_rule import Figure, compare, falls, figure

QUIET, LOUD = Figure(2.0, 0.01), Figure(2.0, 0.2)


@pytest.mark.parametrize(
    ("committed", "median", "expected"),
    [
        (QUIET, 1.79, True),
        (QUIET, 1.81, False),  # less than 10 %, at any noise
        (LOUD, 1.5, False),  # 25 %, but within three spreads of 0.2
        (LOUD, 1.39, True),
        (QUIET, 2.5, False),  # faster
    ],
)
def test_a_row_falls_beyond_a_tenth_and_three_spreads(committed, median, expected):
    assert falls(committed, Figure(median, 0.0)) is expected


def test_the_spread_is_between_the_quarters_so_that_one_disturbed_round_does_not_count():
    assert figure([1.0, 2.0, 3.0, 4.0, 5.0]) == Figure(3.0, 2.0)
    assert figure([1.0, 2.0, 3.0, 4.0, 500.0]) == Figure(3.0, 2.0)
    with pytest.raises(ValueError, match="at least 3"):
        figure([1.0, 2.0])


def test_every_row_has_one_line_and_only_those_that_fell_are_named():
    lines, fallen = compare(
        {"a": QUIET, "b": QUIET}, {"a": Figure(1.0, 0.3), "b": QUIET, "new": QUIET}
    )
    assert fallen == ["a"] and len(lines) == 3
    assert lines[0].endswith("-50.0%, FELL") and "FELL" not in lines[1] + lines[2]
    assert "nothing committed" in lines[2]


def run(monkeypatch, tmp_path, rounds: list[tuple[float, float]], *words: str) -> int:
    """Run the command with these rates of the package and of the fixed program, in place of a
    measurement.
    """
    monkeypatch.setattr(gate, "RESULT", tmp_path / "gate.json")
    monkeypatch.setattr(gate, "measure", lambda name: [{"ours": a, "fixed": b} for a, b in rounds])
    return gate.main(["pool", *words])


def test_the_command_writes_compares_and_refuses(monkeypatch, tmp_path, capsys):
    """A machine that is slower altogether causes no failure; a slower package does."""
    assert run(monkeypatch, tmp_path, [(3, 2)] * 3) == 2
    assert "--write" in capsys.readouterr().err
    assert run(monkeypatch, tmp_path, [(3, 2)] * 3, "--write") == 0
    assert json.loads((tmp_path / "gate.json").read_text())["rows"]["pool"]["median"] == 1.5
    assert run(monkeypatch, tmp_path, [(1.5, 1)] * 3) == 0
    assert run(monkeypatch, tmp_path, [(2.4, 2)] * 3) == 1
    assert capsys.readouterr().out.splitlines()[-1].endswith("-20.0%, FELL")
    assert gate.main(["puddle"]) == 2


def test_workers_of_every_row_are_there():
    folder = Path(gate.HERE)
    assert all(
        (folder / words[0]).exists()
        for row in gate.ROWS.values()
        for words in (row.ours, row.fixed)
    )
