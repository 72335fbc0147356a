"""Success of evaluation episodes: from each place where an environment reports it for the last
state, to every page.
"""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from many_commands import Commands

import jaxrl_fast as jf
from jaxrl_fast.core import EpisodeTotals, Timestep
from jaxrl_fast.envs.env import Env, vectorize
from jaxrl_fast.envs.from_gymnasium import make_custom_host
from jaxrl_fast.envs.host_env import UNTOLD as UNTOLD_ON_HOST
from jaxrl_fast.envs.pool.batches import PoolOptions
from jaxrl_fast.envs.pool.stepping import UNTOLD, told_success
from jaxrl_fast.training.episodes import play, play_on_host, with_untold, without_untold
from jaxrl_fast.training.recorder import evaluation_row
from jaxrl_fast.training.run_folder import RunFolder, read_run, scores_of
from jaxrl_fast.views.dashboard_app import read_facts, row_of, success_curve
from jaxrl_fast.views.report_page import describe_run

WORLD = """
import jax, jax.numpy as jnp, jaxrl_fast as jf

def make():
    '''A point that starts at 0, or too far to the left to reach 2, where it should be after three steps.'''
    def reset(key, params):
        x = -9.0 * jax.random.bernoulli(key)
        return x, x[None]
    def step(x, action, key):
        x = x + action
        return x, jf.Timestep(x[None], x[None], x, jnp.zeros((), bool), jnp.zeros((), bool))
    spec = jf.EnvSpec("reach", jax.ShapeDtypeStruct((1,), jnp.float32), jf.Discrete(2), max_episode_steps=3)
    return jf.Env(spec, reset, step, success=lambda x: x == 2)
"""


def world() -> Env:
    names: dict[str, Any] = {}
    exec(WORLD, names)
    return names["make"]()


def until(goal: float) -> Callable[..., Any]:
    """Build a policy that moves to the right until it reaches ``goal``."""

    def act(params, carry, obs, first, key, step=0):
        return (obs[:, 0] < goal).astype(int), carry

    return act


# Compiled environments.


@pytest.mark.parametrize(("goal", "reached"), [(2.0, True), (3.0, False)])
def test_the_last_state_says_it_and_not_one_on_the_way_nor_the_first_of_the_next(
    goal: float, reached: bool
):
    totals = play(until(goal), lambda n: (), vectorize(world(), num_envs=16), (), jax.random.key(0))
    near = np.asarray(totals.returns) > 0
    assert 0 < near.sum() < 16
    np.testing.assert_array_equal(totals.success, near & reached)


def test_an_environment_without_it_says_nothing_and_the_rest_is_the_same():
    without = world()._replace(success=None)
    told, silent = (
        play(until(2.0), lambda n: (), vectorize(env, num_envs=4), (), jax.random.key(0))
        for env in (world(), without)
    )
    assert silent.success == ()
    np.testing.assert_array_equal(told.returns, silent.returns)
    np.testing.assert_array_equal(told.length, silent.length)


def test_a_state_of_training_holds_nothing_of_it():
    env = vectorize(world(), num_envs=4)
    state, _ = jax.eval_shape(env.reset, jax.random.key(0))
    bank = jax.eval_shape(lambda key: env.draw_fresh(key, 1), jax.random.key(0))
    after, step = jax.eval_shape(
        env.step, state, jnp.zeros(4, jnp.int32), jax.random.key(0), bank, 0
    )
    assert (
        state.episode.success == after.episode.success == () and step.episode.success.dtype == bool
    )
    assert isinstance(step, Timestep)


# Environments on the host.


class Reach(gymnasium.Env):
    """`WORLD` on the host; ``tell`` returns a step's info, given whether it reached the goal."""

    observation_space, action_space = Box(-9, 9, (1,)), Discrete(2)

    def __init__(self, tell: Callable[[bool], dict[str, Any]]) -> None:
        self.tell, self.x, self.steps = tell, 0.0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.steps = -9.0 * self.np_random.integers(2), 0
        return np.full(1, self.x, np.float32), {}

    def step(self, action):
        self.x, self.steps = self.x + action, self.steps + 1
        return (
            np.full(1, self.x, np.float32),
            float(self.x),
            False,
            self.steps == 3,
            self.tell(self.x == 2),
        )


@pytest.mark.parametrize(
    ("tell", "known"),
    [
        (lambda reached: {"is_success": np.bool_(reached)}, True),
        (lambda reached: {"success": float(reached), "is_success": np.array([reached])}, True),
        (lambda reached: {"success": True} if reached else {}, True),
        (lambda reached: {"success": "of a kind"}, False),
        (lambda reached: {}, False),
    ],
    ids=("bool", "number", "only where there is one", "text", "nothing"),
)
def test_one_of_gymnasium_says_it_in_its_info(tell, known: bool):
    pool = make_custom_host(
        lambda: Reach(tell), num_envs=2, name="reach", pool=PoolOptions(workers=1)
    )
    own = pool.another(12)
    played = play_on_host(until(2.0), lambda n: (), own, (), 3)
    totals = without_untold(played)
    pool.close(), own.close()
    near = totals.returns > 0
    assert 0 < near.sum() < 12 and (totals.length == 3).all()
    assert known or isinstance(totals.success, tuple)
    np.testing.assert_array_equal(totals.success, near if known else ())


class Later(Reach):
    """Only its first episode is no success; with every second seed that episode is long."""

    def reset(self, *, seed=None, options=None):
        self.first, self.steps = seed is not None, -4 * (seed % 2) if seed is not None else 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), 1.0, self.steps > 0, False, self.tell(not self.first)


def test_later_episodes_do_not_count():
    host = make_custom_host(
        lambda: Later(lambda x: {"success": x}), num_envs=2, pool=PoolOptions(workers=0)
    )
    own = host.another(8)
    totals = play_on_host(until(2.0), lambda n: (), own, (), 0)
    host.close(), own.close()
    assert {*totals.length.tolist()} == {1, 5} and not totals.success.any()


def test_what_counts_as_said():
    assert [
        told_success({"success": x}) for x in (True, 0, 0.5, np.float32(0), np.array([[1]]))
    ] == [1, 0, 1, 0, 1]
    assert {
        told_success({"success": x}) for x in (None, "yes", {}, np.zeros(2), np.array("yes"))
    } == {UNTOLD}
    assert UNTOLD == UNTOLD_ON_HOST


# Uses of the success rate.

TOLD = EpisodeTotals(
    np.ones((2, 2), np.float32),
    np.full((2, 2), 3, np.int32),
    np.array([[True, False], [True, True]]),
)


def test_it_comes_through_a_broadcast_and_back():
    coded = with_untold(TOLD)
    assert coded.success.dtype == np.int8
    np.testing.assert_array_equal(without_untold(coded).success, TOLD.success)
    silent = TOLD._replace(success=())
    assert (
        with_untold(silent).success.shape == (2, 2)
        and without_untold(with_untold(silent)).success == ()
    )


def test_tables_have_the_column_where_there_is_something_to_say(tmp_path: Path):
    for totals, name in ((TOLD, "told"), (TOLD._replace(success=()), "silent")):
        with RunFolder(tmp_path / name, log="none") as folder:
            folder.add_evaluation(10, 1.5, totals)
    assert (tmp_path / "silent/evals.csv").read_text().splitlines()[:2] == [
        "seed,env_steps,wall_s,return,length",
        "0,10,1.50,1.0,3",
    ]
    header, *rows = csv.reader((tmp_path / "told/evals.csv").read_text().splitlines())
    assert header[-1] == "success" and [row[-1] for row in rows] == ["1", "0", "1", "1"]
    assert evaluation_row(TOLD)["eval_success_rate"] == 0.75
    assert "eval_success_rate" not in evaluation_row(TOLD._replace(success=()))
    with RunFolder(
        tmp_path / "silent", resume_at=10, log="none"
    ) as folder:  # of a version without this key
        folder.add_evaluation(20, 2.5, TOLD)
    assert (tmp_path / "silent/evals.csv").read_text().splitlines()[-1] == "1,20,2.50,1.0,3"


def test_a_run_that_ended_before_its_first_evaluation_has_a_table_and_may_still_tell_of_it(
    tmp_path: Path,
):
    with RunFolder(tmp_path, log="none"):
        pass
    assert (tmp_path / "evals.csv").read_text().splitlines() == [
        "seed,env_steps,wall_s,return,length"
    ]
    with RunFolder(tmp_path, resume_at=0, log="none") as folder:
        folder.add_evaluation(10, 1.5, TOLD)
    header, first, *_ = (tmp_path / "evals.csv").read_text().splitlines()
    assert (header, first) == ("seed,env_steps,wall_s,return,length,success", "0,10,1.50,1.0,3,1")


SMALL = [
    "tuned=false",
    "num_envs=4",
    "algo.rollout_length=8",
    "algo.policy_hidden=[4]",
    "algo.value_hidden=[4]",
]


def test_a_run_shows_it_everywhere(commands: Commands, tmp_path: Path):
    (tmp_path / "world.py").write_text(WORLD)
    words = [
        "env=custom",
        "env.make=world.make",
        "algo=ppo",
        "algo.num_minibatches=1",
        "total_steps=640",
        *SMALL,
        "eval.beside=false",
    ]
    ended = commands.run(
        tmp_path, "train", *words, "run_dir=run", "eval.episodes=8", "eval.every=320", trains=True
    )
    assert (ended.status, ended.err) == (0, "")
    run = tmp_path / "run"
    table = np.genfromtxt(run / "evals.csv", delimiter=",", names=True)
    rate = table["success"][table["env_steps"] == table["env_steps"].max()].mean()
    summary = json.loads((run / "summary.json").read_text())
    assert summary["eval_success_rate"] == rate and 0 <= summary["best"]["fresh_success_rate"] <= 1
    assert ended.out.count("(8 episodes, ") == len(np.unique(table["env_steps"]))
    assert f"8 episodes, {100 * rate:.3g} % succeeded) after 640 steps" in ended.out
    view = read_run(run)
    assert scores_of(view.evals).success[-1] == rate
    described = describe_run(view)
    assert described["scores"]["success"][-1] == 100 * rate
    assert ("success", f"{100 * rate:.3g} %") in [
        (f["label"], f["value"]) for f in described["figures"]
    ]
    assert row_of("run", read_facts(run))["eval_success"] == rate
    assert success_curve(view.evals)["mean"][-1] == 100 * rate
    ended = commands.run(tmp_path, "evaluate", "run", "episodes=16", trains=True)
    assert (ended.status, ended.err) == (0, "") and " % of the episodes\n" in ended.out


def test_public_names_are_enough_to_write_such_a_world():
    assert jf.vectorize(world(), num_envs=2).env.success is not None
