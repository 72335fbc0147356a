"""Environments with PettingZoo's interface in the pool: agents that left, rewards, terminations and
truncations.
"""

import csv
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from parallel_envs import Leaving, Mixed, Pushing, Unequal

import jaxrl_fast as jf
from jaxrl_fast import envs
from jaxrl_fast.core import OUT, STATE, Box, Discrete
from jaxrl_fast.envs.host_env import HostEnv, HostStep

HERE = {"workers": 0, "num_groups": 1}


def made(make: Any, num_envs: int = 2, pool: dict | None = None, **options: Any) -> HostEnv:
    env = envs.make_vec("custom", make=make, num_envs=num_envs, pool=pool or HERE, **options)
    assert isinstance(env, HostEnv)
    return env


def played(env: HostEnv, actions: list[Any]) -> list[HostStep]:
    steps = []
    for action in actions:
        env.send(np.asarray(action), 0)
        steps.append(env.recv(0))
    return steps


def test_agents_that_leave_are_out_and_their_pay_is_their_own():
    env = made(Leaving)
    assert (env.spec.num_agents, env.spec.action, env.spec.own_sizes) == (3, Discrete(3), ())
    first = env.reset(3)
    assert first["obs"].shape == (2, 3, 4) and not first[OUT].any()
    steps = played(env, [[[0, 1, 2], [2, 1, 0]]] * 4)
    # "a" leaves after 2 steps, "c" after 3, "b" is truncated after 4; then an agent's observation
    # is zero
    out = [(~step.next_obs[OUT]).sum(axis=1).tolist() for step in steps]
    assert out == [[3, 3], [2, 2], [1, 1], [1, 1]]
    assert steps[1].next_obs[OUT][0].tolist() == [True, False, False]
    assert steps[1].next_obs["obs"][0, 0, 1] == 2 and not steps[2].next_obs["obs"][0, 0].any()
    np.testing.assert_array_equal(
        [step.reward[0] for step in steps], [[0, 11, 22]] * 2 + [[0, 11, 22], [0, 11, 0]]
    )
    assert [bool(step.truncated.all()) for step in steps] == [False, False, False, True]
    assert not any(step.terminated.any() for step in steps)
    # it bootstraps; a new episode
    assert not steps[3].next_obs[OUT][0, 1] and not steps[3].obs[OUT].any()
    assert steps[3].obs["obs"][0, 0, 1] == 0 and steps[3].next_obs["obs"][0, 1, 1] == 4
    assert steps[3].episode_return.tolist() == [110.0, 2 + 2 + 4 * 11 + 3 * 20]
    assert env.agents is not None and env.agents().tolist() == [[0, 44, 66], [4, 44, 60]]
    env.close()


def test_a_world_whose_last_agent_is_done_terminates():
    env = made(Leaving, last_is_cut=False)
    env.reset(0)
    last = played(env, [np.zeros((2, 3), int)] * 4)[-1]
    assert last.terminated.all() and not last.truncated.any() and last.next_obs[OUT].all()
    env.close()


def test_workers_give_the_steps_of_this_process():
    found = []
    for pool in (HERE, {"workers": 2, "num_groups": 1}):
        env = made(Pushing, num_envs=4, pool=pool)
        assert isinstance(env.spec.action, Box) and env.spec.obs[STATE].shape == (1,)
        env.reset(5)
        steps = played(env, np.linspace(-1, 1, 6 * 4 * 3 * 2, dtype=np.float32).reshape(6, 4, 3, 2))
        assert (env.agents is None) == (pool is not HERE)
        found.append(
            [jax.tree.map(lambda x: x[..., :3] if x.ndim == 3 else x, step) for step in steps]
        )
        env.close()
    jax.tree.map(np.testing.assert_array_equal, *found)
    assert found[0][1].obs[STATE].tolist() == [[2.0]] * 4


def test_by_arrival_agents_see_the_same_entries():
    env = made(Leaving, num_envs=2, pool={"workers": 2, "num_groups": 1, "order": "arrival"})
    assert env.send_to is not None and env.recv_any is not None
    assert set(env.reset(0)) == {"obs", OUT}
    env.send_to(np.zeros((2, 3), np.int32), np.arange(2))
    indices, step = env.recv_any()
    assert (
        sorted(indices.tolist()) == [0, 1]
        and step.obs["obs"].shape == (2, 3, 4)
        and step.reward.shape == (2, 3)
    )
    env.close()


def test_the_smaller_are_filled_up_and_masked():
    env = made(Unequal, num_envs=1)
    assert env.spec.own_sizes == ((1, 2), (2, 3), (3, 4)) and env.spec.action == Discrete(4)
    first = env.reset(0)
    assert first["obs"][0].tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert first["action_mask"][0].tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1]]
    env.close()


def test_a_run_learns_and_its_tables_have_each_agent(tmp_path: Path):
    env = jf.make_env("custom", make=Unequal, num_envs=8, pool=HERE)
    with pytest.raises(
        ValueError, match=r"agents .* differ .*2 and 3, .*algo.share_parameters=false"
    ):
        jf.learn(env, jf.ippo(), total_steps=8)
    algo = jf.ippo(
        share_parameters=False,
        rollout_length=32,
        learning_rate=3e-3,
        policy_hidden=(16,),
        value_hidden=(16,),
    )
    result = jf.learn(
        env,
        algo,
        total_steps=8 * 32 * 16,
        run_dir=tmp_path,
        eval_every=8 * 32 * 16,
        eval_episodes=4,
    )
    env.close()
    rows = list(csv.DictReader((tmp_path / "evals.csv").read_text().splitlines()))
    own = [[float(row[f"return_{i}"]) for i in range(3)] for row in rows]
    assert own == [[2.0, 4.0, 3.0]] * 4  # as many as the steps of the agent
    assert [float(row["return"]) for row in rows] == [9.0] * 4
    assert result.state is not None


def test_a_world_on_the_host_is_drawn():
    film = envs.make_to_draw("custom", make=Leaving)
    film.env.reset(0)
    played(film.env, [np.zeros((1, 3), int)] * 2)
    assert film.picture().max() == 20 and film.step_s == 0.2
    film.env.close()  # the environment has no `close`


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("custom", {"make": Mixed}, "its agents differ in their actions: only discrete ones may"),
        ("pettingzoo", {"id": "spread"}, "env.id=spread: write a family and a name"),
        ("pettingzoo", {"id": "no_such_package/x_v0"}, "no_such_package"),
        ("pettingzoo", {}, "env=pettingzoo needs env.id, for example env.id=mpe2/simple_spread_v3"),
    ],
)
def test_a_world_that_cannot_be_is_refused(name: str, options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        envs.make_vec(name, num_envs=2, pool=HERE, **options)


def test_pettingzoos_own_world():
    pytest.importorskip("mpe2")
    env = envs.make_vec(
        "pettingzoo", id="mpe/simple_spread_v3", num_envs=2, pool=HERE, max_cycles=5
    )
    assert (env.spec.num_agents, env.spec.action) == (3, Discrete(5)) and STATE in env.spec.obs
    env.reset(0)
    steps = played(env, [np.zeros((2, 3), int)] * 5)
    assert [bool(step.truncated.any()) for step in steps] == [False] * 4 + [True]
    env.close()
    with pytest.raises(ValueError, match=r"TypeError.*banana"):
        envs.make_vec("pettingzoo", id="mpe/simple_spread_v3", num_envs=2, pool=HERE, banana=1)
    with pytest.raises(ValueError, match=r"env.num_agents=5: .* has 3 agents.*\+env.N=5"):
        envs.make_vec("pettingzoo", id="mpe/simple_spread_v3", num_envs=2, pool=HERE, num_agents=5)
