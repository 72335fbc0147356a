"""Decisions that depend on the machine: the measured placement, and the number of devices, which divides the work.

The numbers of training do not depend on the machine.
"""

import pytest
import yaml

from jaxrl_fast.algorithms.registry import ALGORITHMS
from jaxrl_fast.envs import SHORT_NAMES
from jaxrl_fast.runtime.placements import PLACEMENTS
from jaxrl_fast.settings.machine import TABLE, choose, cpu_cores, largest_divisor


def chosen(suite: str, name: str, algo: str, **sizes: int) -> tuple[str, int]:
    choice = choose(suite, name, algo, **{"num_envs": 64, "num_seeds": 1, "devices": 2, **sizes})
    return choice.placement, choice.devices


@pytest.mark.parametrize(
    ("asked", "sizes", "answer"),
    [
        (("brax", "halfcheetah", "ppo"), {}, ("sharded_sampling", 2)),
        (("brax", "halfcheetah", "ppo"), {"devices": 1}, ("fused", 1)),
        (("brax", "halfcheetah", "ppo"), {"num_envs": 65}, ("fused", 1)),
        (("brax", "halfcheetah", "ppo"), {"num_envs": 100, "devices": 8}, ("sharded_sampling", 5)),
        (("brax", "ant", "ppo"), {"devices": 4}, ("sharded_sampling", 4)),
        (("gymnax", "cartpole", "ppo"), {}, ("fused", 1)),
        (("gymnax", "cartpole", "ppo"), {"num_seeds": 8}, ("data_parallel", 2)),
        (("gymnax", "cartpole", "ppo"), {"num_seeds": 6, "devices": 4}, ("data_parallel", 3)),
        (("brax", "halfcheetah", "ppo"), {"num_seeds": 3}, ("sharded_sampling", 2)),
        (("custom", "custom", "ppo"), {}, ("fused", 1)),
    ],
)
def test_the_measured_placement_is_chosen_on_devices_that_come_out_even(asked, sizes, answer):
    assert chosen(*asked, **sizes) == answer


def test_the_table_names_only_what_exists():
    table = yaml.safe_load(TABLE.read_text())
    suites = {suite for suite, *_ in SHORT_NAMES.values()}
    for name, row in table.items():
        assert name in suites | set(SHORT_NAMES)
        assert set(row) <= set(ALGORITHMS)
        assert set(row.values()) <= set(PLACEMENTS)
    assert set(table) >= suites


def test_divisors_and_cores():
    assert [largest_divisor(12, limit) for limit in (1, 2, 5, 8, 100)] == [1, 2, 4, 6, 12]
    assert cpu_cores() >= 1
