"""The learning table: its rows are valid configurations, and its figures match their names."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxrl_fast.commands.run_config import compose
from jaxrl_fast.training.episodes import interquartile_mean

sys.path.insert(0, str(Path(__file__).parent.parent / "experiments" / "learning"))
from learning import merge
from learning_page import PAGE, at_equal_steps, pages_of, passes, read_results, table_line
from learning_rows import PEERS, ROWS, Row


def curve(*points: tuple[int, float]) -> list[dict]:
    return [{"env_steps": steps, "returns": [value]} for steps, value in points]


@pytest.mark.parametrize("name", ROWS)
def test_every_row_is_a_run_and_its_rival_is_a_row(name):
    row = ROWS[name]
    compose([*row.words, f"num_seeds={row.num_seeds}"])
    assert row.rival is None or row.rival[0] in {**ROWS, **PEERS}


def test_the_interquartile_mean_leaves_the_best_and_the_worst_quarter_out():
    assert interquartile_mean(np.array([100.0, 1.0, 2.0, 3.0, -50.0])) == 2.0
    assert interquartile_mean(np.array([1.0, 2.0, 6.0])) == 3.0


def test_a_row_passes_by_its_number_its_rival_or_by_staying_below():
    ten, less = curve((100, 10.0)), curve((100, 9.9))
    assert passes(Row((), 10.0), ten, {}) and not passes(Row((), 10.0), less, {})
    assert passes(Row((), 10.0, unsolved=True), less, {}) and not passes(
        Row((), 10.0, unsolved=True), ten, {}
    )
    rival = Row((), rival=("other", 1.5))
    assert passes(rival, curve((100, 15.0)), {"other": ten}) and not passes(
        rival, curve((100, 14.9)), {"other": ten}
    )
    assert passes(rival, less, {})


def test_a_row_and_its_rival_are_compared_where_the_shorter_one_ends():
    longer = curve((40, 1.0), (80, 2.0), (120, 3.0))
    assert at_equal_steps(curve((80, 5.0)), longer) == (5.0, 2.0)
    assert at_equal_steps(curve((90, 5.0)), longer) == (5.0, 3.0)
    assert at_equal_steps(longer, curve((80, 5.0))) == (2.0, 5.0)
    assert at_equal_steps(longer, curve((90, 5.0))) == (2.0, 5.0)


def test_a_row_that_was_first_evaluated_after_its_rivals_end_has_not_passed():
    late, early = curve((80, 9.0), (160, 9.0)), curve((40, 1.0))
    assert math.isnan(at_equal_steps(late, early)[0])
    assert not passes(Row((), rival=("early", 1.0)), late, {"early": early})


def test_seeds_that_ran_apart_are_one_curve_and_their_seconds_add_up():
    one = [{"env_steps": 8, "wall_s": 1.0, "returns": [3.0]}]
    two = [{"env_steps": 8, "wall_s": 2.5, "returns": [5.0]}]
    assert merge([one, two]) == [{"env_steps": 8, "wall_s": 3.5, "returns": [3.0, 5.0]}]


def test_a_line_says_what_was_missed():
    result = {
        "return_mean": 9.0,
        "return_iqm": 9.5,
        "return_ci95": [8.0, 10.0],
        "env_steps": 1000,
        "wall_s": 3.4,
        "machine": "here",
        "curve": [{"env_steps": 1000, "returns": [8.0, 10.0]}],
    }
    line = table_line("cartpole_ppo", result, {})
    assert "| 2 | 9.00 [8.00, 10.00] | ≥ 475 (missed) |" in line
    assert "| 90.0 [8.0, 10.0] |" in table_line("cartpole_ppo", {**result, "return_mean": 90.0}, {})


def test_every_row_has_a_section_on_the_page_of_its_suite():
    pages = pages_of(read_results(PAGE.parents[1] / "experiments" / "results"))
    assert {path: (PAGE.parent / path).read_text() for path in pages} == pages
    for name in read_results(PAGE.parents[1] / "experiments" / "results"):
        assert (
            sum(f"\n## {name}\n" in text for path, text in pages.items() if path != PAGE.name) == 1
        )
