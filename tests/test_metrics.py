"""Metrics of environments: from a `Timestep` or an ``info`` to every table and page."""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st
from many_commands import Commands
from tiny import line

import jaxrl_fast as jf
from jaxrl_fast.core import EpisodeTotals
from jaxrl_fast.envs.env import Env, VecEnv, vectorize
from jaxrl_fast.envs.env_checks import check_shapes
from jaxrl_fast.envs.episode_metrics import (
    KINDS,
    MetricTotals,
    add_metrics,
    add_steps,
    mean_of_finite,
    no_metrics,
    of_values,
    values_of,
)
from jaxrl_fast.envs.from_gymnasium import make_custom_host, make_host
from jaxrl_fast.envs.pool.batches import PoolOptions, joined, just_reset, mark_lost
from jaxrl_fast.envs.pool.stepping import GOES_ON, reader_of
from jaxrl_fast.learning.rollout import start, unroll
from jaxrl_fast.policy.policies import spec_from_json, spec_to_json
from jaxrl_fast.runtime import hosts
from jaxrl_fast.training.episodes import play, play_on_host
from jaxrl_fast.training.evaluator_process import receive, serve
from jaxrl_fast.training.recorder import evaluation_row
from jaxrl_fast.training.resuming import with_metrics
from jaxrl_fast.training.run_folder import RunFolder, read_run, scores_of
from jaxrl_fast.views.dashboard_app import _curve_named, read_facts, row_of
from jaxrl_fast.views.report_page import describe_run, means_at

KEY = jax.eval_shape(jax.random.key, 0)
ALL = {kind: kind for kind in KINDS}
WORLD = """
import jax, jax.numpy as jnp, jaxrl_fast as jf

def make(**changed):
    '''A point that walks to the right for three steps, from a number that depends on the key.'''
    def reset(key, params):
        x = jnp.floor(8.0 * jax.random.uniform(key))
        return x, x[None]
    def step(x, action, key):
        x = x + 1.0 + action
        metrics = {"place": x, "top": -x, "sum": x, "average": x * x}
        return x, jf.Timestep(x[None], x[None], x, jnp.zeros((), bool), jnp.zeros((), bool), metrics=metrics)
    kinds = {"place": "last", "top": "max", "sum": "sum", "average": "mean"}
    obs = jax.ShapeDtypeStruct((1,), jnp.float32)
    spec = jf.EnvSpec("walk", obs, jf.Discrete(2), max_episode_steps=3, metrics=kinds)
    return jf.Env(spec._replace(**changed), reset, step)
"""
NAMES = ("place", "top", "sum", "average")


def world(**changed: Any) -> Env:
    names: dict[str, Any] = {}
    exec(WORLD, names)
    return names["make"](**changed)


def of_walk(first: float) -> dict[str, float]:
    """Return the metrics of an episode of `WORLD` without pushes, by hand."""
    xs = [first + 1.0, first + 2.0, first + 3.0]
    return {"place": xs[2], "top": -xs[0], "sum": sum(xs), "average": sum(x * x for x in xs) / 3}


def still(carry: Any, obs: jax.Array, first: jax.Array, key: jax.Array) -> tuple:
    return jnp.zeros(len(obs), jnp.int32), carry, {}


# Arithmetic.


def slowly(values: list[float], kind: str) -> float:
    """Compute an episode's metric from its steps, of which NaN is none."""
    told = [x for x in values if x == x]
    if kind == "last":
        return values[-1]
    if not told:
        return float("nan")
    return {"mean": sum(told) / len(told), "sum": sum(told), "max": max(told)}[kind]


@pytest.mark.parametrize("xp", [np, jnp], ids=["NumPy", "JAX"])
def test_every_kind_is_what_a_loop_over_the_steps_gives(xp: Any):
    rng = np.random.default_rng(0)
    steps = rng.normal(size=(9, 5, len(ALL))).astype(np.float32) - 2.0
    steps[rng.random(steps.shape) < 0.5] = np.nan
    totals = no_metrics(ALL, 5, xp)
    for t, values in enumerate(steps):
        totals = add_metrics(ALL, totals, xp.asarray(values), xp)
        assert all(np.isfinite(part).all() for part in totals)
        found = np.asarray(values_of(ALL, totals, xp))
        wanted = [
            [slowly(steps[: t + 1, e, k].tolist(), kind) for k, kind in enumerate(ALL)]
            for e in range(5)
        ]
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
        np.testing.assert_array_equal(
            np.asarray(values_of(ALL, of_values(xp.asarray(found), xp), xp)), found
        )


def test_means_leave_out_what_is_not_finite():
    assert mean_of_finite([1.0, np.nan, 3.0, np.inf]) == 2.0 and mean_of_finite([np.nan]) is None


# Compiled environments.


def test_ended_episodes_are_counted_once_also_over_two_rollouts():
    env = vectorize(world(), num_envs=6)
    state = start(env, (), jax.random.key(0))
    run = jax.jit(lambda state, key: unroll(env, still, state, key, 4))
    firsts, found = np.asarray(state.obs[:, 0]), []
    for t in range(2):
        state, rollout, metrics = run(state, jax.random.key(t))
        ended = np.argwhere(np.asarray(rollout.truncated))
        starts = {int(e): firsts[e] for _, e in ended}
        found.append((starts, metrics))
        # of the episodes that began at step 3
        firsts = np.asarray(rollout.obs[3, :, 0]) if t == 0 else firsts
    for starts, metrics in found:
        assert len(starts) == 6 == metrics["episodes"]
        for name in NAMES:
            assert metrics[f"env/{name}_episodes"] == 6
            wanted = sum(of_walk(float(first))[name] for first in starts.values())
            np.testing.assert_allclose(metrics[f"env/{name}_sum"], wanted, rtol=1e-6)


def test_no_value_and_infinities_are_left_out():
    def strange(value: float) -> Env:
        def step(x: Any, action: Any, key: Any) -> Any:
            x, ts = world().step(x, action, key)
            return x, ts._replace(metrics={**ts.metrics, "sum": jnp.where(x > 5.0, value, x)})

        return world()._replace(step=step)

    for value in (np.inf, np.nan):
        env = vectorize(strange(value), num_envs=64)
        run = jax.jit(lambda key, env=env: unroll(env, still, start(env, (), key), key, 3))
        _, rollout, metrics = run(jax.random.key(0))
        xs = np.asarray(rollout.next_obs[..., 0])
        wanted = np.where(xs > 5.0, value, xs)
        whole = np.isfinite(wanted).all(0) if value == np.inf else np.isfinite(wanted).any(0)
        assert 0 < whole.sum() < 64 and metrics["env/sum_episodes"] == whole.sum()
        np.testing.assert_allclose(metrics["env/sum_sum"], np.nansum(wanted[:, whole]), rtol=1e-5)
        assert metrics["env/average_episodes"] == metrics["episodes"] == 64


def test_evaluation_has_the_metrics_of_each_first_episode():
    env = vectorize(world(), num_envs=16)

    def act(params, carry, obs, first, key, step=0):
        return jnp.zeros(len(obs), jnp.int32), carry

    totals = jax.device_get(play(act, lambda n: (), env, (), jax.random.key(0)))
    firsts = totals.metrics["place"] - 3.0
    assert len(set(firsts.tolist())) > 2 and set(totals.metrics) == set(NAMES)
    for name in NAMES:
        np.testing.assert_allclose(
            totals.metrics[name], [of_walk(first)[name] for first in firsts.tolist()]
        )


def stripped(env: VecEnv) -> VecEnv:
    """Return the environment that reports the metrics, but does not declare them."""
    assert env.env is not None
    return vectorize(env.env._replace(spec=env.spec._replace(metrics={})), num_envs=env.num_envs)


def test_without_metrics_the_state_and_the_names_are_as_ever():
    for env in (line(discrete=True), stripped(vectorize(world(), num_envs=4))):
        state, _ = jax.eval_shape(env.reset, jax.random.key(0))
        assert (
            not jax.tree.leaves(state.episode.metrics) and len(jax.tree.leaves(state.episode)) == 2
        )
        _, _, metrics = jax.eval_shape(
            lambda key, env=env: unroll(env, still, start(env, (), key), key, 3), KEY
        )
        assert set(metrics) == {
            "episodes",
            "episode_return_sum",
            "episode_length_sum",
            "nonfinite_step",
        }


def test_metrics_change_no_number_of_training():
    env = vectorize(world(), num_envs=4)
    algorithm = jf.ppo(
        rollout_length=8, num_minibatches=2, num_epochs=1, policy_hidden=(8,), value_hidden=(8,)
    )
    ends = []
    for own in (env, stripped(env)):
        init, step = jf.make_train_step(own, algorithm)
        state, run = jax.jit(init)(jax.random.key(0)), jax.jit(step)
        for _ in range(3):
            state, _ = run(state)
        ends.append(state)
    with_them, without = (state.private.pop("sample") for state in ends)
    for a, b in zip(jax.tree.leaves(ends[0]), jax.tree.leaves(ends[1]), strict=True):
        if not jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(with_them.env.env_state, without.env.env_state)


@pytest.mark.parametrize(
    ("kinds", "metrics", "words"),
    [
        (
            {"a": "median"},
            {"a": 1.0},
            "metric 'a' is of kind 'median': write one of mean, sum, last, max",
        ),
        (["a"], {"a": 1.0}, r"its metrics are \['a'\]: write kinds by name"),
        (
            {"a": "sum"},
            {"b": 1.0},
            r"gives the metrics \['b'\], and its spec declares \['a'\]: write EnvSpec",
        ),
        ({"a": "sum"}, (), r"gives the metrics \[\], and its spec declares \['a'\]"),
        ({}, {"b": 1.0}, r"EnvSpec\(metrics=\{'b': 'mean'\}\)"),
        ({"a": "sum"}, {"a": jnp.zeros(2)}, r"metric 'a' has shape \[2\]: write one number"),
    ],
)
def test_a_wrong_declaration_is_one_line(kinds: Any, metrics: Any, words: str):
    def step(x: Any, action: Any, key: Any) -> Any:
        x, ts = world().step(x, action, key)
        return x, ts._replace(metrics=metrics)

    env = world(metrics=kinds)._replace(step=step)
    with pytest.raises(ValueError, match=words) as error:
        check_shapes(env, "walk")
    assert "\n" not in str(error.value)


def test_vectorize_refuses_them_too():
    env = vectorize(world(metrics={"other": "sum"}), num_envs=2)
    with pytest.raises(ValueError, match=r"declares \['other'\]"):
        jax.eval_shape(
            lambda key: unroll(env, still, start(env, (), key), key, 2), jax.random.key(0)
        )


def test_a_spec_keeps_its_metrics_as_json():
    assert (
        spec_from_json(json.loads(json.dumps(spec_to_json(world().spec)))).metrics
        == world().spec.metrics
    )
    older = {name: value for name, value in spec_to_json(world().spec).items() if name != "metrics"}
    assert spec_from_json(older).metrics == {}


# brax.


def test_the_metrics_of_brax_come_without_a_line():
    env = jf.make_env("halfcheetah", num_envs=2, episode_length=4)
    assert env.spec.metrics == dict.fromkeys(
        ("reward_ctrl", "reward_run", "x_position", "x_velocity"), "mean"
    )
    action = jnp.full((2, 6), 0.5)

    def run(key: jax.Array) -> tuple:
        state, _ = env.reset(key)
        bank, seen = env.draw_fresh(key, 4), []
        for t in range(4):
            state, ts = env.step(state, action, key, bank, t)
            seen.append(ts)
        return seen

    seen = jax.jit(run)(jax.random.key(0))
    sums = np.asarray(values_of(env.spec.metrics, seen[-1].episode.metrics))
    parts = dict(zip(env.spec.metrics, sums.T, strict=True))
    wanted = np.mean([ts.reward for ts in seen], axis=0)  # the sum of its two parts
    np.testing.assert_allclose(parts["reward_ctrl"] + parts["reward_run"], wanted, rtol=1e-4)
    few = jf.make_env("halfcheetah", num_envs=2, metrics={"x_position": "last"})
    assert few.spec.metrics == {"x_position": "last"}
    with pytest.raises(ValueError, match="has no metric 'speed': write some of reward_ctrl, "):
        jf.make_env("halfcheetah", num_envs=2, metrics={"speed": "last"})
    assert jf.make_env("inverted_pendulum", num_envs=2, metrics={}).spec.metrics == {}


# Environments on the host.


class Told(gymnasium.Env):
    """A counter whose ``info`` has numbers and other things, some of them only now and then."""

    observation_space, action_space = Box(-99, 99, (1,)), Discrete(2)

    def __init__(self) -> None:
        self.steps, self.first = 0, 0.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.first = 0, float(self.np_random.integers(8))
        return np.full(1, self.first, np.float32), {"place": 77.0, "only_here": 1.0}

    def step(self, action):
        self.steps += 1
        x = self.first + self.steps
        info = {
            "place": x,
            "count": np.int64(self.steps),
            "up": np.array([True]),
            "word": "no",
            "list": [1],
            "none": None,
        }
        info |= (
            {"is_success": True}
            | ({} if self.steps == 2 else {"odd": x})
            | {"broken": 1.0 if self.steps < 2 else "?"}
        )
        return np.full(1, x, np.float32), 1.0, False, self.steps == 3, info


class Declared(Told):
    metadata = {"episode_metrics": {"place": "last", "odd": "sum", "late": "max"}}  # noqa: RUF012


def of_told(first: float) -> dict[str, float]:
    odd = (first + 1.0 + first + 3.0) / 2
    return {"place": first + 2.0, "count": 2.0, "up": 1.0, "odd": odd, "broken": 1.0}


def rollout_on_host(make: Any, pool: PoolOptions, num_seeds: int = 1) -> dict[str, Any]:
    host = make_custom_host(make, num_envs=4, num_seeds=num_seeds, name="told", pool=pool)
    algorithm = jf.ppo(
        rollout_length=6, num_minibatches=1, num_epochs=1, policy_hidden=(4,), value_hidden=(4,)
    )
    ended = jf.learn(host, algorithm, total_steps=48, num_seeds=num_seeds, eval_episodes=2)
    host.close()
    return {"rows": [row for row in ended.history if row["kind"] == "train"], **ended.summary}


def test_numbers_of_info_come_by_themselves_from_every_pool():
    named = dict.fromkeys(of_told(0.0), "mean")
    first = rollout_on_host(Told, PoolOptions(workers=0))
    host = make_custom_host(Told, num_envs=2, pool=PoolOptions(workers=0))
    assert host.spec.metrics == named
    host.close()
    for row in first["rows"]:
        assert (
            row["episodes"] == 8
            and row["env/count"] == 2.0
            and row["env/up"] == 1.0
            and row["env/broken"] == 1.0
        )
        assert row["env/odd"] == row["env/place"] and 2.0 <= row["env/place"] <= 9.0
    assert first["eval_metrics"]["count"] == 2.0 and set(first["eval_metrics"]) == set(named)
    for pool in (PoolOptions(workers=2), PoolOptions(workers=2, num_groups=1)):
        other = rollout_on_host(Told, pool)
        assert other["eval_metrics"] == first["eval_metrics"]
        same = [
            {name: x for name, x in row.items() if name.startswith("env/")} for row in other["rows"]
        ]
        if pool.num_groups is None:
            assert same == [{name: row[name] for name in same[0]} for row in first["rows"]]
    several = rollout_on_host(Told, PoolOptions(workers=0), num_seeds=2)
    assert [row["env/count"] for row in several["rows"][0]["seeds"]] == [2.0, 2.0]


@pytest.mark.parametrize(
    "pool",
    [PoolOptions(workers=2, order="arrival"), PoolOptions(workers=0, bridge="callback")],
    ids=["arrival", "bridge"],
)
def test_they_come_in_the_order_of_arrival_and_through_a_callback(pool: PoolOptions):
    for row in rollout_on_host(Told, pool)["rows"]:
        assert (
            row["episodes"] == 8 and row["env/count"] == 2.0 and row["env/odd"] == row["env/place"]
        )


def test_one_of_gymnasium_declares_kinds_in_its_metadata():
    host = make_custom_host(Declared, num_envs=8, pool=PoolOptions(workers=0))
    assert host.spec.metrics == {"place": "last", "odd": "sum", "late": "max"}

    def act(params, carry, obs, first, key, step=0):
        return np.zeros(len(obs), int), carry

    totals = play_on_host(act, lambda n: (), host.another(8), (), 0)
    place, odd = totals.metrics["place"], totals.metrics["odd"]
    assert len(set(place.tolist())) > 2 and np.isnan(totals.metrics["late"]).all()
    np.testing.assert_array_equal(odd, (place - 2.0) + place)
    assert evaluation_row(jax.tree.map(lambda x: x[None], totals))["eval_metrics"]["late"] is None
    twice = host.another(2)
    twice.reset(0)
    for t in range(6):
        twice.send(np.zeros(2, np.int32), 0)
        step = twice.recv(0)
        if t % 3 == 2:  # also of the second episode
            np.testing.assert_array_equal(step.metrics[:, 0], step.next_obs[:, 0])
            np.testing.assert_array_equal(step.metrics[:, 1], 2 * step.next_obs[:, 0] - 2.0)
    host.close(), twice.close()

    class Wrong(Told):
        metadata = {"episode_metrics": {"place": "best"}}  # noqa: RUF012

    with pytest.raises(
        ValueError, match="'place' is of kind 'best': write one of mean, sum, last, max"
    ):
        make_custom_host(Wrong, num_envs=2, pool=PoolOptions(workers=0))


def test_what_counts_as_a_number():
    told = {
        "a": True,
        "b": np.float32(2),
        "c": np.array([[3]]),
        "d": "4",
        "e": None,
        "f": np.zeros(2),
        "g": 10**400,
    }
    found = reader_of([*"abcdefgh"])(told)
    assert (
        found[:3] == [1.0, 2.0, 3.0]
        and np.isnan([*found[3:6], found[7]]).all()
        and found[6] == np.inf
    )


def test_environments_of_gymnasium_report_and_select():
    host = make_host("HalfCheetah-v5", num_envs=2, pool=PoolOptions(workers=0))
    few = make_host(
        "HalfCheetah-v5", num_envs=2, pool=PoolOptions(workers=0), metrics={"x_position": "last"}
    )
    bare = make_host("CartPole-v1", num_envs=2, pool=PoolOptions(workers=0))
    assert host.spec.metrics["reward_forward"] == "mean" and few.spec.metrics == {
        "x_position": "last"
    }
    assert bare.spec.metrics == {}
    for own, size in ((host, len(host.spec.metrics)), (few, 1), (bare, None)):
        own.reset(0)
        own.send(np.zeros((1, 6), np.float32) if size else np.zeros(1, np.int32), 0)
        step = own.recv(0)
        assert step.metrics == () if size is None else step.metrics.shape == (1, size)
        own.close()
    with pytest.raises(
        ValueError,
        match=r"env.metrics of CartPole-v1: metric 'x' is of kind 'mid': write one of mean",
    ):
        make_host("CartPole-v1", num_envs=2, pool=PoolOptions(workers=0), metrics={"x": "mid"})


def test_the_episodes_of_a_lost_worker_have_no_metrics():
    step = just_reset(np.zeros((2, 1), np.float32))._replace(
        metrics=np.full((2, 1), 9.0, np.float32)
    )
    last = step._replace(metrics=np.array([[5.0], [6.0]]), truncated=np.array([False, True]))
    found = mark_lost(step, slice(0, 2), last, slice(0, 2))
    assert np.isnan(found.metrics).all()
    fresh = mark_lost(step, slice(0, 1), just_reset(np.zeros((2, 1), np.float32)), slice(0, 1))
    np.testing.assert_array_equal(fresh.metrics, [[np.nan], [9.0]])
    assert (
        joined([found, found]).metrics.shape == (4, 1)
        and joined([last._replace(metrics=())] * 2).metrics == ()
    )


# Runs.

TOTALS = EpisodeTotals(
    np.ones((2, 2), np.float32),
    np.full((2, 2), 3, np.int32),
    metrics={
        "a": np.array([[1.0, np.nan], [3.0, 5.0]], np.float32),
        "b": np.full((2, 2), np.nan, np.float32),
    },
)


def test_tables_have_a_column_for_each(tmp_path: Path):
    with RunFolder(tmp_path, log="none") as folder:
        folder.add_evaluation(10, 1.5, TOTALS)
    header, *rows = csv.reader((tmp_path / "evals.csv").read_text().splitlines())
    assert header[-2:] == ["env/a", "env/b"] and [row[-2] for row in rows] == [
        "1.0",
        "nan",
        "3.0",
        "5.0",
    ]
    assert evaluation_row(TOTALS)["eval_metrics"] == {"a": 3.0, "b": None}
    view = read_run(tmp_path)
    np.testing.assert_array_equal(means_at(scores_of(view.evals), view.evals, "env/a"), [3.0])
    json.dumps(describe_run(view), allow_nan=False)


def test_another_process_sends_them_and_every_process_gets_them(monkeypatch: pytest.MonkeyPatch):
    pipe = io.BytesIO()
    serve(lambda params, fresh: TOTALS, {}, iter([{"params": {}, "fresh": False}]), pipe)  # type: ignore[arg-type]
    pipe.seek(0)
    answer: Any = receive(pipe)
    np.testing.assert_array_equal(answer["metrics"]["a"], TOTALS.metrics["a"])

    from jaxrl_fast.training.evaluations import Evaluations

    sent = []
    monkeypatch.setattr(hosts, "from_first", lambda tree: sent.append(tree) or tree)
    spec = world(metrics={"a": "sum", "b": "sum"}).spec
    options = type("Options", (), {"eval": type("Eval", (), {"episodes": 2})})
    job = type(
        "Job",
        (),
        {
            "env": vectorize(world(metrics=spec.metrics), num_envs=2),
            "run": options,
            "num_seeds": 2,
        },
    )
    run = type("Run", (), {"job": job})
    shared = Evaluations._share(run, TOTALS)  # type: ignore[arg-type]
    assert Evaluations._share(run, None) is None  # type: ignore[arg-type]
    one, other = sent
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert [(x.shape, x.dtype) for x in jax.tree.leaves(one[1])] == [
        (x.shape, x.dtype) for x in jax.tree.leaves(other[1])
    ]
    assert shared is not None and shared.metrics["a"] is TOTALS.metrics["a"]


SMALL = [
    "tuned=false",
    "num_envs=4",
    "algo.rollout_length=8",
    "algo.policy_hidden=[4]",
    "algo.value_hidden=[4]",
]


def test_a_run_shows_them_everywhere(commands: Commands, tmp_path: Path):
    (tmp_path / "world.py").write_text(WORLD)
    words = [
        "env=custom",
        "env.make=world.make",
        "algo=ppo",
        "algo.num_minibatches=1",
        "total_steps=320",
        *SMALL,
    ]
    words += [
        "num_seeds=2",
        "eval.episodes=8",
        "eval.every=160",
        "eval.beside=false",
        "run_dir=run",
    ]
    ended = commands.run(tmp_path, "train", *words, trains=True)
    assert (ended.status, ended.err) == (0, "")
    run = tmp_path / "run"
    table = np.genfromtxt(run / "evals.csv", delimiter=",", names=True, deletechars="")
    last = table["env_steps"] == table["env_steps"].max()
    summary = json.loads((run / "summary.json").read_text())
    np.testing.assert_allclose(
        summary["eval_metrics"]["average"], table["env/average"][last].mean(), rtol=1e-6
    )
    np.testing.assert_allclose(table["env/sum"], table["return_"])
    training = np.genfromtxt(run / "metrics.csv", delimiter=",", names=True, deletechars="")
    np.testing.assert_allclose(training["env/sum"], training["episode_return"], rtol=1e-6)
    seeds = np.genfromtxt(run / "metrics_seeds.csv", delimiter=",", names=True, deletechars="")
    np.testing.assert_allclose(seeds["env/sum"], seeds["episode_return"], rtol=1e-6)
    assert len(set(seeds["env/sum"])) > 2
    view = read_run(run)
    described = describe_run(view)
    assert (
        described["scores"]["env/sum"] == described["scores"]["mean"]
        and "env/top" in described["metrics"]
    )
    assert row_of("run", read_facts(run))["eval_metrics"] == summary["eval_metrics"]
    assert _curve_named("eval env/sum")[1](view.evals)["mean"] == described["scores"]["mean"]
    file, curve = _curve_named("train env/sum")
    assert file == "metrics.csv"
    np.testing.assert_allclose(curve(view.metrics)["mean"], training["episode_return"], rtol=1e-6)
    for kind, columns in (("train", view.metrics), ("eval", view.evals)):
        assert _curve_named(f"{kind} env/none")[1](columns)["mean"] == []
    assert b"train/env/average" in next(run.glob("events.*")).read_bytes()
    assert b"eval/env/average" in next(run.glob("events.*")).read_bytes()
    ended = commands.run(tmp_path, "evaluate", "run", "episodes=16", trains=True)
    assert (ended.status, ended.err) == (0, "") and "\naverage  " in ended.out


def test_sharded_environments_sum_them_alike():
    env = vectorize(world(), num_envs=4)
    algorithm = jf.ppo(
        rollout_length=8, num_minibatches=2, num_epochs=1, policy_hidden=(4,), value_hidden=(4,)
    )
    rows: list[list[Any]] = []
    for where in ({}, {"placement": "data_parallel", "devices": 2}):
        history = jf.learn(env, algorithm, total_steps=96, eval_episodes=2, **where).history
        rows.append([row["env/average"] for row in history if row["kind"] == "train"])
    assert len(rows[0]) > 1 and np.isfinite(rows[0]).all()
    np.testing.assert_allclose(rows[0], rows[1], rtol=1e-6)


def resumed(path: Path, env: VecEnv, steps: int, **more: Any) -> list[Any]:
    algorithm = jf.ppo(
        rollout_length=4, num_minibatches=1, num_epochs=1, policy_hidden=(4,), value_hidden=(4,)
    )
    return jf.learn(
        env, algorithm, total_steps=steps, run_dir=path, eval_episodes=2, **more
    ).history


def test_a_checkpoint_of_a_version_without_them_resumes_and_its_running_episodes_are_left_out(
    tmp_path: Path,
):
    # episodes of 3 steps and rollouts of 4: some run at every checkpoint
    env = vectorize(world(), num_envs=4)
    resumed(tmp_path / "run", stripped(env), 16)
    rows = [
        row
        for row in resumed(tmp_path / "run", env, 48, resume=tmp_path / "run")
        if row["kind"] == "train"
    ]
    first, later = rows[0], rows[-1]
    assert first["episodes"] and (first["env/sum"] is None) == (first["episodes"] == 4)
    assert later["env/sum"] is not None and later["env/place"] is not None
    assert first["env/place"] is not None  # needs the last step only


@pytest.fixture
def state() -> Iterator[Any]:
    env = vectorize(world(), num_envs=4)
    yield jf.make_train_step(env, jf.ppo(rollout_length=4, num_minibatches=1))[0](jax.random.key(0))


def test_totals_of_other_metrics_are_not_taken(state: Any):
    names = [f"private.sample.env.episode.metrics.{part}" for part in ("total", "count")]
    same = {name: np.full((4, 4), 5.0, np.float32) for name in names}
    found = with_metrics(state, {"x": np.zeros(1), **same})
    assert [found[name][0, 0] for name in names] == [5.0, 5.0] and len(found) == 3
    for arrays in ({}, {name: np.zeros((4, 3), np.float32) for name in names}):
        found = with_metrics(state, arrays)
        assert found[names[0]].shape == (4, 4) and (found[names[1]] < 0).all()
    bare = jf.make_train_step(
        stripped(vectorize(world(), num_envs=4)), jf.ppo(rollout_length=4, num_minibatches=1)
    )[0]
    assert with_metrics(bare(jax.random.key(0)), same) == {}


@settings(max_examples=60)
@given(st.data())
def test_steps_are_added_at_once_as_one_by_one(data):
    numbers = st.sampled_from([np.nan, -3.0, 0.5, 2.0, np.inf]) | st.floats(-100, 100, width=32)
    kinds = {
        f"m{i}": kind
        for i, kind in enumerate(
            data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))
        )
    }
    parts = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    at_once = MetricTotals(*(part[0] for part in no_metrics(kinds, 1)))
    one_by_one = no_metrics(kinds, 1)
    for steps in parts:
        row = st.lists(numbers, min_size=len(kinds), max_size=len(kinds))
        block = np.array(data.draw(st.lists(row, min_size=steps, max_size=steps)), np.float32)
        with np.errstate(invalid="ignore"):
            at_once = add_steps(kinds, at_once, block)
            for own in block:
                one_by_one = add_metrics(kinds, one_by_one, own[None])
            found, wanted = values_of(kinds, at_once), values_of(kinds, one_by_one)[0]
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(at_once.count, one_by_one.count[0])


class Long(gymnasium.Env):
    """Counts its steps; every 1,000 a life is lost, every third of which ends the game."""

    observation_space, action_space = Box(-1, 1, (1,)), Discrete(2)
    metadata = {"episode_metrics": {"place": "mean", "top": "max"}}  # noqa: RUF012
    steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        lost = self.steps % 1_000 == 0
        info = {"place": float(self.steps), "top": -float(self.steps)}
        info |= {GOES_ON: True} if lost and self.steps % 3_000 else {}
        return np.zeros(1, np.float32), 0.0, lost, False, info


def test_a_long_episode_is_added_up_in_parts_and_a_life_ends_none():
    host = make_custom_host(Long, num_envs=1, pool=PoolOptions(workers=0))
    host.reset(0)
    for step in range(1, 6_001):
        host.send(np.zeros(1, np.int32), 0)
        found = host.recv(0)
        if step % 3_000 == 0:
            np.testing.assert_allclose(
                found.metrics[0], [step - 3_000 + 1_500.5, -(step - 2_999)], rtol=1e-5
            )
    host.close()
