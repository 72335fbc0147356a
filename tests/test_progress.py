"""What a person sees: plain lines where the output is no terminal, and times that say what they mean."""

import io

import pytest
from rich.console import Console

from jaxrl_fast.runs import progress
from jaxrl_fast.runs.progress import ProgressDisplay, clock, si


def train_row(env_steps: int, wall_s: float) -> dict:
    rates = {"sampling_hz": 12_345.0, "update_hz": 99.0, "episode_return": 7.25}
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
    first, second = text.splitlines()
    assert "left" not in first
    assert second.split("  ")[-1] == "0:08 left"
    assert "12.3k steps/s" in second
    assert "return 7.2" in second


def test_an_evaluation_shows_its_spread(monkeypatch):
    row = {"kind": "eval", "env_steps": 5, "wall_s": 61.0, "eval_return_mean": 3.0, "eval_return_std": 0.5}
    row["eval_episodes"] = 32
    assert "1:01  greedy return 3.0 ± 0.5  (32 episodes)" in shown([row], monkeypatch, terminal=False)
    row["eval_return_ci95"] = [1.0, 4.0]
    assert "3.0 95 % [1.0, 4.0]" in shown([row], monkeypatch, terminal=False)


def test_a_terminal_gets_a_bar_that_is_taken_away_with_its_cursor_restored(monkeypatch):
    text = shown([train_row(1000, 1.0), train_row(5000, 2.0)], monkeypatch, terminal=True)
    assert "50%" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (61, "1:01"), (3599.6, "1:00:00"), (7325, "2:02:05")])
def test_clock(seconds, text):
    assert clock(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.5, "0.5"), (999, "999"), (12_345, "12.3k"), (3.7e5, "370k"), (2e9, "2G")]
)
def test_si(value, text):
    assert si(value) == text
