"""Progress output: plain lines where the output is no terminal, and times with a label."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from jaxrl_fast.training import progress
from jaxrl_fast.training.callbacks import MeanRates
from jaxrl_fast.training.progress import ProgressDisplay, clock, earlier_compile_s, si, sparkline
from jaxrl_fast.training.records import write_status


def train_row(env_steps: int, wall_s: float) -> dict:
    rates = {
        "sampling_hz": 12_345.0,
        "update_hz": 99.0,
        "update_frame_hz": 990.0,
        "episode_return": 7.25,
    }
    return {"kind": "train", "env_steps": env_steps, "wall_s": wall_s, **rates}


def shown(rows: list[dict], monkeypatch: pytest.MonkeyPatch, terminal: bool) -> str:
    monkeypatch.setattr(progress, "PLAIN_INTERVAL_S", -1.0)
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100, highlight=False)
    with ProgressDisplay(10_000, console) as display:
        for row in rows:
            display(row)
    return console.file.getvalue()


def test_the_time_left_does_not_count_compilation(monkeypatch):
    text = shown([train_row(1000, 100.0), train_row(2000, 101.0)], monkeypatch, terminal=False)
    compiling, first, second = text.splitlines()
    assert compiling == "  compiling"
    assert "left" not in first
    assert second.split("  ")[-1] == "0:08 left"
    assert "12.3k steps/s" in second
    assert "return 7.2" in second


def test_a_run_has_one_speed_which_begins_with_the_first_update(monkeypatch):
    rates = MeanRates()
    filling = {**train_row(1000, 1.0), "update_hz": 0.0, "update_frame_hz": 0.0}
    assert rates.now == {"sampling_hz": 0.0, "update_hz": 0.0, "update_frame_hz": 0.0}
    assert rates.add(filling)["sampling_hz"] == pytest.approx(12_345.0)
    text = shown(
        [filling, {**filling, "env_steps": 2000, "wall_s": 1.1}], monkeypatch, terminal=False
    )
    assert "no updates yet" in text and "0 updates/s" not in text
    for steps_per_s, updates_per_s in ((100.0, 10.0), (300.0, 30.0)):
        of_chunk = dict(
            sampling_hz=steps_per_s, update_hz=updates_per_s, update_frame_hz=updates_per_s * 8
        )
        found = rates.add({**filling, **of_chunk})
    assert found == pytest.approx(
        {"sampling_hz": 150.0, "update_hz": 15.0, "update_frame_hz": 120.0}
    ), "equal steps"
    assert rates.add(filling) == found, "chunks without updates do not count any more"


def test_an_evaluation_shows_its_spread(monkeypatch):
    row = {
        "kind": "eval",
        "env_steps": 5,
        "wall_s": 61.0,
        "eval_return_mean": 3.0,
        "eval_return_std": 0.5,
    }
    row["eval_episodes"] = 32
    assert "1:01  greedy return 3.0 ± 0.5  (32 episodes)" in shown(
        [row], monkeypatch, terminal=False
    )
    row["eval_return_ci95"] = [1.0, 4.0]
    assert "3.0 95 % [1.0, 4.0]" in shown([row], monkeypatch, terminal=False)


def test_a_terminal_gets_a_bar_that_is_taken_away_with_its_cursor_restored(monkeypatch):
    text = shown([train_row(1000, 1.0), train_row(5000, 2.0)], monkeypatch, terminal=True)
    assert "50%" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def live_lines(display: ProgressDisplay) -> str:
    with display.console.capture() as captured:
        display.console.print(display.lines())
    return captured.get()


def test_the_live_lines_say_what_it_does_how_returns_went_and_what_it_said_last(monkeypatch):
    console = Console(file=io.StringIO(), force_terminal=True, width=100, highlight=False)
    now = [100.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    display = ProgressDisplay(10_000, console, compile_s=30.0)
    now[0] += 12.2
    assert "compiling, 12 s of about 30 s" in live_lines(display)
    now[0] += 30.0
    assert "compiling, 42 s\n" in live_lines(display)
    display.tell("before training")
    for value in (1.0, 9.0):
        display({**train_row(5000, 1.0), "episode_return": value})
    assert "training return" in live_lines(display) and "▁█  9.0" in live_lines(display)
    for value in (5.0, 2.0, 3.0):
        row = {
            "kind": "eval",
            "env_steps": 5,
            "wall_s": 1.0,
            "eval_return_mean": value,
            "eval_return_std": 0.5,
        }
        display({**row, "eval_episodes": 3})
    display.tell("one"), display.tell("two")
    text = live_lines(display)
    assert "greedy return" in text and "█▁▃  3.0" in text and "2 lines, the last: two" in text
    assert "before" not in text and " 50%" in text
    display(train_row(10_000, 2.0))
    assert "evaluating the last policy" in live_lines(display)


def test_plain_lines_name_the_time_of_an_earlier_run(tmp_path):
    for name, seconds in (("20260101", 7.0), ("20260102", 31.0)):
        (tmp_path / name).mkdir()
        write_status(tmp_path / name, {"compile_s": seconds})
    (tmp_path / "20260103").mkdir()
    assert earlier_compile_s(tmp_path / "20260104") == 31.0
    assert earlier_compile_s(tmp_path / "20260102") == 7.0
    assert earlier_compile_s(tmp_path / "none" / "x") is None
    for name, text in (("20260104", "{num_envs: 4, seed: 1}"), ("20260103", "{num_envs: 4}")):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "config.yaml").write_text(text)
    assert earlier_compile_s(tmp_path / "20260104") is None, "other settings are another program"
    (tmp_path / "20260102" / "config.yaml").write_text("{num_envs: 4, seed: 3, eval: {every: 7}}")
    assert earlier_compile_s(tmp_path / "20260104") == 31.0
    console = Console(file=io.StringIO(), width=100)
    with ProgressDisplay(10_000, console, compile_s=31.0):
        pass
    assert console.file.getvalue() == "  compiling, about 31 s\n"


@pytest.mark.parametrize(
    ("values", "bars"),
    [
        ([], ""),
        ([3.0], "▅"),
        ([0.0, 1.0], "▁█"),
        ([float("nan"), 0.0, 7.0], "▁█"),
        ([0.0] * 50 + [1.0] * 50, None),
    ],
)
def test_sparkline(values, bars):
    assert (
        sparkline(values) == bars if bars is not None else sparkline(values) == "▁" * 12 + "█" * 12
    )


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (61, "1:01"), (3599.6, "1:00:00"), (7325, "2:02:05")]
)
def test_clock(seconds, text):
    assert clock(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5"),
        (999, "999"),
        (12_345, "12.3k"),
        (3.7e5, "370k"),
        (2e9, "2G"),
        (999_600, "1M"),
        (3e12, "3T"),
    ],
)
def test_si(value, text):
    assert si(value) == text
