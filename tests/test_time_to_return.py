"""Wall-clock time to a return, and the measurement of Ray: the counts of the experiments, the texts
of their pages, and Blackjack's rules.

Nothing is timed here.
"""

import csv
import subprocess
import sys
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_fast.commands.run_config import compose
from jaxrl_fast.training.run_folder import EVAL_COLUMNS

sys.path.insert(0, str(Path(__file__).parent.parent / "experiments" / "learning"))
sys.path.insert(0, str(Path(__file__).parent.parent / "experiments" / "bench"))
import ablation
import agents_inference
import q_blackjack_jax as rules
import q_learning
import time_to_return
from time_to_return_page import beside, reached_s, row_lines, seconds
from time_to_return_rows import ROWS

CURVE = [[10, 1.0, 5.0], [20, 4.0, 9.0], [30, 2.0, 12.0], [40, 5.0, 15.0]]


@pytest.mark.parametrize("name", ROWS)
def test_every_row_is_a_run_and_every_peer_has_what_it_must_be(name):
    row = ROWS[name]
    for contender in row.ours.values():
        compose([*contender.words, "seed=0", f"eval.every={row.every}"])
    assert set(row.peers) == set(row.must) == set(row.aim)


def test_the_first_evaluation_at_the_return_counts():
    assert (
        reached_s(CURVE, 4.0) == 9.0
        and reached_s(CURVE, 4.5) == 15.0
        and reached_s(CURVE, 6.0) is None
    )
    assert reached_s([{"returns": [3.0, 5.0], "wall_s": 7}], 4.0) == 7.0


def test_a_seed_that_never_got_there_is_longer_than_any():
    runs = [{"reached_s": value} for value in (20.0, None, 10.0)]
    assert seconds(runs) == "20 [10, not reached], 3 seeds, 1 not reached"
    assert seconds(runs[1:]) == "not reached [10, not reached], 2 seeds, 1 not reached"
    assert seconds([]) == "not run yet"


def test_ratios_are_taken_seed_by_seed_and_never_to_an_earlier_run():
    row = ROWS["halfcheetah_v5"]
    found = {
        "`algo=sac`": [{"reached_s": 10.0}, {"reached_s": 30.0}],
        "SBX SAC": [{"reached_s": 40.0}],
    }
    said = beside(row, found, "`algo=sac`")
    assert said.startswith("**0.25 ×** [0.25, 0.25] SBX<br>– Stable-Baselines3")
    lines = row_lines(row, {})
    assert any("not run yet; an earlier run" in line for line in lines) and not any(
        "**" in line for line in lines
    )


@pytest.mark.parametrize("name", ablation.PARTS)
def test_every_way_of_the_ablation_is_a_run(name):
    part = ablation.PARTS[name]
    for way in part.ways:
        command = ablation.contender(part, way)
        compose([*command.words, "seed=0", f"eval.every={part.every}"])
        compile(command.before, way, "exec")


def test_an_idea_is_worth_what_the_same_seeds_took_without_it():
    way = list(ablation.COMMON)[1]
    runs = {
        ablation.AS_IT_IS: [
            {"reached_s": 10.0, "curve": CURVE},
            {"reached_s": 20.0, "curve": CURVE},
        ],
        way: [{"reached_s": 15.0, "curve": CURVE}, {"reached_s": None, "curve": CURVE[:1]}],
    }
    assert ablation.worth(runs, way) == ([15.0], [1.5])
    assert ablation.worth(runs, ablation.AS_IT_IS) == ([10.0, 20.0], [1.0, 1.0])
    assert ablation.speed(runs, way) == "3"
    said = ablation.table({"rows": {"halfcheetah": runs}})
    assert (
        f"| {ablation.LABELS[way]} | 15 | 1.50 | 40 | 3 | 1 of 2 |" in said
        and "| not run yet |" in said
    )


def test_a_run_is_followed_until_the_return_and_then_stopped(tmp_path):
    with open(tmp_path / "evals.csv", "w", newline="") as file:
        rows = [
            dict.fromkeys(EVAL_COLUMNS, 0) | {"env_steps": s, "return": r}
            for s, r in ((8, 1), (8, 3), (16, 9))
        ]
        writer = csv.DictWriter(file, EVAL_COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    curve = time_to_return.follow(process, tmp_path, 5.0, 0.0)
    assert [point[:2] for point in curve] == [[8, 2.0], [16, 9.0]] and process.poll() is None
    time_to_return.end(process)
    assert process.poll() is not None
    assert time_to_return.follow(process, tmp_path, 50.0, 0.0)[-1][:2] == [16, 9.0]


def test_the_page_of_q_learning_says_what_was_not_run():
    run = {"seconds": 2.0, "total_s": 3.0, "return": -0.1}
    rows = {
        "500": {name: [run] for name in q_learning.CONTENDERS}
        | {"ours, pool": [run | {"seconds": 1.0}]}
    }
    lines = q_learning.page({"rows": rows, "rounds": 500}, q_learning.CONTENDERS).splitlines()
    assert "| 500 | ours, pool | 1.0 [1.0, 1.0] | 0.50 [0.50, 0.50] |" in lines[2]
    assert lines[-2:] == ["| 1,000 | not run yet | | | | | |", "| 2,000 | not run yet | | | | | |"]


def test_the_page_of_inference_says_how_often_ray_takes_as_long_and_its_bound():
    took = {
        "ours": 2.0,
        "Ray, tuned": 6.0,
        "Ray, as written": 12.0,
        "ma-gym alone": 1.5,
        "ours, compiled": 0.5,
    }
    rows = {"4": {name: [{"seconds": {"64": seconds}}] for name, seconds in took.items()}}
    del rows["4"]["Ray, as written"][0]["seconds"]["64"]
    rows["4"]["ours"][0]["seconds"]["1"] = 2.0
    rows["4"]["Ray, tuned"][0]["seconds"]["1"] = rows["4"]["ma-gym alone"][0]["seconds"]["1"] = 8.0
    lines = agents_inference.page({"rows": rows}).splitlines()
    assert "| 4 | 1 | ours | 2.0 [2.0, 2.0] | 4.00 × [4.00, 4.00] | 1.00 × [1.00, 1.00] |" in lines
    assert "| 4 | 64 | ours | 2.0 [2.0, 2.0] | 3.00 × [3.00, 3.00] | 4.00 × [4.00, 4.00] |" in lines
    assert lines[-1] == "| 10 | | not run yet | | | |"
    assert agents_inference.per_100_000({"64": {"seconds": 1.0}}, "64x1000") == pytest.approx(
        100_000 / 960
    )


class Dealt:
    """A generator that gives these cards."""

    def __init__(self, cards: list[int]) -> None:
        self.cards = cards

    def choice(self, deck: list[int]) -> int:
        return self.cards.pop(0)


def test_blackjack_in_jax_is_gymnasiums():
    """Thousands of decisions from the same hands, with the same cards."""
    rng = np.random.default_rng(0)
    cards = np.minimum(rng.integers(1, 14, (4000, 4 + rules.DRAWS)), 10)
    cards[:400, 0] = 1  # more naturals and soft hands
    hit = rng.random(4000) < 0.5
    env = gymnasium.make("Blackjack-v1").unwrapped
    expected = []
    for row, action in zip(cards.tolist(), hit.tolist(), strict=True):
        env.player, env.dealer = row[:2], row[2:4]
        env.np_random = Dealt(row[4:])
        obs, reward, terminated, *_ = env.step(int(action))
        expected.append([*obs, reward, terminated])

    @jax.jit
    @jax.vmap
    def decide(row, action):
        table = rules.Table(rules.dealt(row[:2]), rules.dealt(row[2:4]), row[2])
        table, reward, over = rules.settle(table, action, row[4:])
        return jnp.stack([*rules.observe(table), reward, over.astype(jnp.float32)])

    np.testing.assert_array_equal(decide(cards, hit), np.array(expected, np.float32))
