"""A sweep on a machine that slows down all the time: decisions use measurements taken in turn."""

from pathlib import Path

import pytest

from jaxrl_fast.commands.run_config import compose
from jaxrl_fast.tuning import sweep_report, width_sweep
from jaxrl_fast.tuning.candidates import Candidate
from jaxrl_fast.tuning.measuring import Row, Settings, What
from jaxrl_fast.tuning.search import GoOn
from jaxrl_fast.tuning.width_sweep import Record, SweepPlan

ASKED = compose(["env=cartpole", "algo=ppo"])
SETTINGS = Settings(Path("unused"), repeats=5)


class SlowingMachine:
    """Replaces the trials: a candidate's ticks/s are ``ideal(candidate)``, less 1 % for every
    repeat since the start; candidates measured in turn slow down together.

    ``fails_beside``: a value whose trial is killed when it is measured in turn with others.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, ideal, fails_beside: int | None = None
    ) -> None:
        self.ideal, self.fails_beside, self.speed = ideal, fails_beside, 1.0
        self.turns: list[list[object]] = []
        monkeypatch.setattr(width_sweep, "measure", self.measure)
        monkeypatch.setattr(width_sweep, "measure_in_turn", self.measure_in_turn)

    def row(self, candidate: Candidate, what: What) -> Row:
        options = candidate.run.algo_options
        facts = {
            "num_envs": candidate.run.num_envs,
            "rollout_length": options["rollout_length"],
            "num_seeds": 1,
            "updates_per_tick": 1,
            "batch_size": options.get("batch_size", 1),
            "available": 2,
            "compile_s": 1.0,
        }
        return Row(
            *candidate[:2],
            candidate.effect,
            candidate.run,
            what,
            "measured",
            "",
            facts,
            (),
            None,
            0.0,
            2.0,
        )

    def repeat(self, row: Row, candidate: Candidate) -> Row:
        return row._replace(
            tick_hz=(*row.tick_hz, self.speed * self.ideal(candidate)), took_s=row.took_s + 1
        )

    def measure(
        self,
        candidate: Candidate,
        what: What,
        go_on: GoOn,
        settings: Settings,
        unit: str = "sampling_hz",
    ) -> Row:
        row = self.row(candidate, what)
        while go_on(row.rates(unit)):
            row = self.repeat(row, candidate)
            self.speed *= 0.99
        return row

    def measure_in_turn(self, candidates, settings: Settings) -> list[Row]:
        self.turns.append([candidate.value for candidate, _ in candidates])
        rows = [self.row(*asked) for asked in candidates]
        for _ in range(settings.repeats):
            rows = [
                self.repeat(row, candidate)
                for row, (candidate, _) in zip(rows, candidates, strict=True)
            ]
            self.speed *= 0.99
        if self.fails_beside in self.turns[-1]:
            rows[-1] = rows[-1]._replace(status="killed", why="no memory", tick_hz=())
        return rows


def flat_but_for(value: int | str | None = None, gain: float = 1.0):
    """Equal steps/s at every width and placement, except one."""

    def ideal(candidate: Candidate) -> float:
        run = candidate.run
        faster = gain if value in (run.num_envs, run.placement) else 1.0
        return faster * 1e4 / run.num_envs / run.algo_options["rollout_length"]

    return ideal


def test_what_decides_is_measured_in_turn_and_stands_in_the_table(monkeypatch: pytest.MonkeyPatch):
    machine = SlowingMachine(monkeypatch, flat_but_for(128, 1.06))
    record = Record()
    width_sweep.run_knobs(SweepPlan(ASKED, "training", ("num_envs",)), record, SETTINGS)
    assert record.own is not None and record.width is not None and record.best is record.width
    # as first measured; later, it was slower than the requested configuration
    assert record.best.value == 128
    assert record.own.value == ASKED.num_envs and {record.own.value, 128} <= set(machine.turns[0])
    in_turn = [row for row in record.rows if row.in_turn]
    assert sorted(row.value for row in in_turn) == sorted(machine.turns[0])
    assert all(len(row.tick_hz) == 6 for row in in_turn)
    assert (
        record.own in record.rows and record.best in record.rows and len(record.rows) > len(in_turn)
    )
    assert sweep_report.speedup(record) == pytest.approx(1.06)


def test_of_placements_only_one_that_is_faster_in_turn_is_taken(monkeypatch: pytest.MonkeyPatch):
    plan = SweepPlan(ASKED, "training", ("placement",))
    SlowingMachine(monkeypatch, flat_but_for("data_parallel", 1.05))
    record = Record()
    width_sweep.run_knobs(plan, record, SETTINGS)
    assert record.best is not None and record.best.value == "data_parallel" and record.best.in_turn
    machine = SlowingMachine(monkeypatch, flat_but_for("sharded_sampling", 1.01))
    record = Record()
    width_sweep.run_knobs(plan, record, SETTINGS)
    assert (
        record.best is record.own
        and record.best in record.rows
        and "sharded_sampling" in machine.turns[0]
    )
    assert record.width is record.own


def test_where_one_ends_beside_the_others_everything_stays_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
):
    SlowingMachine(monkeypatch, flat_but_for(), fails_beside=ASKED.num_envs)
    record = Record()
    width_sweep.try_widths(SweepPlan(ASKED, "training", ("num_envs",)), record, SETTINGS)
    assert record.best is record.own and not any(row.in_turn for row in record.rows)
    assert any("in turn with others: killed: no memory" in note for note in record.notes)
