"""Sizes that follow from the number of environments: they divide it, and are the same wherever they are computed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrl_fast import envs
from jaxrl_fast.algorithms.registry import ALGORITHMS
from jaxrl_fast.commands.run_config import compose
from jaxrl_fast.learning.algorithm import Replay, off_policy_sizes, on_policy_sizes
from jaxrl_fast.learning.run_graph import bind

WIDTHS = st.integers(1, 8192)


@given(WIDTHS, st.none() | st.integers(1, 300), st.sampled_from([1, 4]), st.booleans())
def test_default_minibatches_divide_the_sequences_and_are_not_smaller_than_asked(num_envs, length, least, whole):
    sizes = on_policy_sizes(length, None, steps=512, least=least, whole_rollouts=whole)(num_envs)
    steps, minibatches = num_envs * sizes["rollout_length"], sizes["num_minibatches"]
    assert (num_envs if whole else steps) % minibatches == 0
    assert minibatches <= least or steps // minibatches >= 512
    assert 1 <= minibatches <= 32


@given(WIDTHS, st.integers(1, 8), st.sampled_from([1, 4]))
def test_default_updates_are_one_for_so_many_steps_up_to_a_limit(num_envs, length, per_update):
    updates = off_policy_sizes(length, None, steps_per_update=per_update)(num_envs)["updates_per_tick"]
    assert updates == max(1, min(num_envs * length // per_update, 64))


@given(WIDTHS)
def test_sizes_that_are_given_stay(num_envs):
    given_sizes = {"rollout_length": 7, "num_minibatches": 5}
    assert on_policy_sizes(7, 5, steps=512, least=4, whole_rollouts=False)(num_envs) == given_sizes
    assert off_policy_sizes(1, 0)(num_envs) == {"updates_per_tick": 0}  # refused when it is bound


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_agents_are_built_with_the_sizes_that_are_said(name):
    several = {"ippo": "traffic_junction_4", "mappo": "traffic_junction_4", "pqn_vdn": "traffic_junction_4"}
    env = several.get(name, "pendulum" if name in ("sac", "td3", "flash_sac") else "cartpole")
    for num_envs in (1, 64):
        algorithm = ALGORITHMS[name]()
        agent = algorithm.build(envs.make(env).spec, num_envs)
        found = {"rollout_length": agent.rollout_length}
        if isinstance(agent.data, Replay):
            found["updates_per_tick"] = agent.data.num_batches
        else:
            found["num_minibatches"] = agent.data.num_minibatches
        assert algorithm.sizes(num_envs).items() <= found.items()
        bind(algorithm, envs.make(env).spec, num_envs)


def test_the_settings_of_a_run_have_the_numbers():
    narrow, wide = (compose(["env=acrobot", f"num_envs={n}"]).algo_options for n in (16, 64))
    assert (narrow["num_minibatches"], wide["num_minibatches"]) == (8, 32)
    assert compose(["env=acrobot", "num_envs=512"]).algo_options["rollout_length"] == 32
    assert compose(["env=pendulum", "tuned=false", "num_envs=2"]).algo_options["updates_per_tick"] == 2
    assert compose(["env=acrobot", "num_envs=64", "algo.num_minibatches=2"]).algo_options["num_minibatches"] == 2
