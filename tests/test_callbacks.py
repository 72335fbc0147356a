"""Callbacks for evaluations, checkpoints and ended episodes, and the return at which a run stops."""

import csv
import json
import sys
import threading
import time
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from many_commands import TRAINED, refusal

import jaxrl_fast as jf

sys.path.insert(0, str(Path(__file__).parent.parent / "docs" / "site"))
from docs_text import ROOT, python_blocks

from jaxrl_fast.commands.env_cache import store_of
from jaxrl_fast.commands.run_config import compose
from jaxrl_fast.core import EpisodeTotals
from jaxrl_fast.envs.env import vectorize
from jaxrl_fast.settings.run import flat_settings, to_yaml
from jaxrl_fast.training.callbacks import check_stop, reached
from jaxrl_fast.training.checkpoints import all_steps, read_arrays, read_description
from jaxrl_fast.training.run_folder import read_run

PAGE = ROOT / "docs" / "callbacks.md"
CHUNK, EVERY, STEPS = 32, 64, 32 * 12
LIMIT_S = 300.0
"""A test waits this long only for what never comes."""
STOP = 9.0
"""A return that the run of `learn` has from its third evaluation on."""


def learn(**options: Any) -> jf.Result:
    algorithm = jf.ppo(
        rollout_length=8,
        num_minibatches=1,
        num_epochs=2,
        policy_hidden=(8,),
        value_hidden=(8,),
        learning_rate=0.003,
    )
    given = dict(
        total_steps=STEPS,
        eval_every=EVERY,
        eval_episodes=4,
        num_seeds=2,
        seed=2,
        tell=lambda line: None,
    )
    return jf.learn(tiny.line(discrete=True, limit=20), algorithm, **{**given, **options})


@cache
def undisturbed() -> jf.Result:
    return learn(eval_beside=False)


def assert_same(one: jf.Result, other: jf.Result) -> None:
    """Check that two runs have the same last state, policy and evaluations, bit for bit."""
    for ours, theirs in zip(leaves(one), leaves(other), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert evaluations(one) == evaluations(other)


def leaves(result: jf.Result) -> list[np.ndarray]:
    numbers = result.state._replace(key=jax.random.key_data(result.state.key)), result.policy.params
    return [np.asarray(leaf) for leaf in jax.tree.leaves(numbers)]


def evaluations(result: jf.Result) -> list[tuple[int, float]]:
    return [
        (row["env_steps"], row["eval_return_mean"])
        for row in result.history
        if row["kind"] == "eval"
    ]


def rows(folder: Path) -> list[list[str]]:
    table = list(csv.DictReader((folder / "evals.csv").read_text().splitlines()))
    return [[row[name] for name in ("seed", "env_steps", "return", "length")] for row in table]


def stopped_at() -> int:
    """Return the steps of the first evaluation at `STOP`, which is neither the first nor the last
    one.
    """
    steps = [steps for steps, mean in evaluations(undisturbed()) if mean >= STOP]
    assert EVERY < steps[0] < STEPS
    return steps[0]


def test_callbacks_change_no_number(tmp_path: Path):
    seen: list[str] = []
    result = learn(
        eval_beside=False,
        run_dir=tmp_path,
        on_eval=lambda evaluation: seen.append("eval"),
        on_checkpoint=lambda path: seen.append("checkpoint"),
        on_episode_end=lambda episodes: seen.append("episodes"),
    )
    assert_same(result, undisturbed())
    assert {seen.count("eval"), seen.count("checkpoint")} == {6, 12} and seen.count("episodes") > 1
    assert result.summary["stopped_by"] is None


@pytest.mark.parametrize("beside", [True, False])
def test_an_evaluation_has_the_episodes_of_the_table_and_the_policies_that_played_them(
    tmp_path: Path, beside: bool
):
    seen: list[jf.Evaluation] = []
    written: list[bool] = []

    def on_eval(evaluation: jf.Evaluation) -> None:
        seen.append(evaluation)
        written.append((tmp_path / "policy" / "params.msgpack").exists())

    result = learn(run_dir=tmp_path, on_eval=on_eval, eval_beside=beside)
    expected = [
        [str(seed), str(one.env_steps), str(one.returns[seed, i].item()), str(one.length[seed, i])]
        for one in seen
        for seed in range(2)
        for i in range(4)
    ]
    assert rows(tmp_path) == expected and all(written)
    last = seen[-1]
    best = int(np.argmax(last.returns.mean(axis=1)))
    for policy in (last.policy, last.policy_of(best)):
        for ours, theirs in zip(
            jax.tree.leaves(policy.params), jax.tree.leaves(result.policy.params), strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)
    others = jax.tree.leaves(last.policy_of(1 - best).params), jax.tree.leaves(last.policy.params)
    assert any((one != other).any() for one, other in zip(*others, strict=True))
    assert last.success is None


def test_an_evaluation_has_the_successes_of_the_environment():
    single = tiny.line(discrete=True, limit=20).env
    env = vectorize(single._replace(success=lambda x: jnp.abs(x) < 0.5), num_envs=4)
    seen: list[jf.Evaluation] = []
    result = jf.learn(
        env,
        jf.ppo(rollout_length=8, num_minibatches=1),
        total_steps=64,
        eval_episodes=6,
        on_eval=seen.append,
    )
    assert seen[-1].success.shape == (1, 6) and seen[-1].success.dtype == bool
    assert seen[-1].success.mean() == result.summary["eval_success_rate"]


def test_what_on_eval_raises_ends_the_run():
    def on_eval(evaluation: jf.Evaluation) -> None:
        raise OSError("no display")

    with pytest.raises(OSError, match="no display"):
        learn(on_eval=on_eval)


def test_every_checkpoint_is_complete_when_it_is_reported_and_stays_until_the_call_has_returned(
    tmp_path: Path,
):
    """The run has the next state, which is due, before a call returns."""
    seen: list[Path] = []
    threads, trained = set(), threading.Semaphore(0)

    def on_checkpoint(path: Path) -> None:
        threads.add(threading.current_thread())
        seen.append(path)
        assert len(seen) == 4 or trained.acquire(timeout=LIMIT_S)
        time.sleep(0.1)  # for a run that would not wait
        assert read_arrays(read_description(path))

    plan = jf.Checkpoints(every=CHUNK, keep=1)
    given = dict(on_metrics=lambda row: row["env_steps"] > CHUNK and trained.release())
    given |= dict(checkpoints=plan, eval_every=0, total_steps=CHUNK * 4)
    learn(run_dir=tmp_path, on_checkpoint=on_checkpoint, **given)
    assert seen == [tmp_path / "checkpoints" / str(CHUNK * number) for number in (1, 2, 3, 4)]
    assert threading.current_thread() not in threads


@pytest.mark.parametrize("at", [1, 12])
def test_what_on_checkpoint_raises_ends_the_run(tmp_path: Path, at: int):
    """``at``: the checkpoint, the last one among them, after which nothing else is saved."""
    seen: list[Path] = []
    told: list[str] = []

    def on_checkpoint(path: Path) -> None:
        seen.append(path)
        if len(seen) == at:
            raise OSError("no network")

    with pytest.raises(OSError, match="no network"):
        learn(run_dir=tmp_path, on_checkpoint=on_checkpoint, tell=told.append)
    assert len(seen) in (at, at + 1) and all_steps(tmp_path / "checkpoints")
    assert not [line for line in told if "could not be written" in line]


def test_ended_episodes_are_those_of_a_slow_count():
    """Every episode has 20 steps: of 4 environments, each with as many steps as the run has, the
    20th ends one.
    """
    single = tiny.line(discrete=True, limit=20).env

    def step(x, action, key):
        x, timestep = single.step(x, action, key)
        return x, timestep._replace(reward=jnp.float32(0.5), terminated=jnp.zeros((), bool))

    seen: list[jf.EndedEpisodes] = []
    env = vectorize(single._replace(step=step), num_envs=4)
    algorithm = jf.ppo(rollout_length=8, num_minibatches=1, num_epochs=1)
    rows: list[dict] = []
    options = dict(total_steps=CHUNK * 10, eval_every=0, num_seeds=3, on_metrics=rows.append)
    result = jf.learn(env, algorithm, on_episode_end=seen.append, **options)
    assert rows == result.history and len(rows) == 10  # on_metrics is still called
    expected = {}
    for chunk in range(1, 11):  # chunks of 8 steps of each environment
        ended = sum(1 for step in range(8 * (chunk - 1) + 1, 8 * chunk + 1) if step % 20 == 0)
        if ended:
            expected[CHUNK * chunk] = [4 * ended] * 3
    assert {one.env_steps: one.number.tolist() for one in seen} == expected
    assert all(
        one.returns.tolist() == [10.0] * 3 and one.length.tolist() == [20.0] * 3 for one in seen
    )


def test_a_seed_without_an_ended_episode_has_no_mean():
    seen: list[jf.EndedEpisodes] = []
    learn(on_episode_end=seen.append, eval_every=0, num_seeds=3)
    lacking = [one for one in seen if (one.number == 0).any()]
    assert lacking and all((np.isnan(one.returns) == (one.number == 0)).all() for one in seen)


def test_a_run_stops_at_a_return_as_if_it_had_been_that_long(tmp_path: Path):
    told: list[str] = []
    result = learn(stop_return=STOP, run_dir=tmp_path, tell=told.append)
    at = stopped_at()
    short = learn(total_steps=at, eval_beside=False)
    assert_same(result, short)
    assert (
        result.summary["best"] == short.summary["best"]
        and "fresh_return_mean" in result.summary["best"]
    )
    assert (result.summary["stopped_by"], short.summary["stopped_by"]) == ("stop.return", None)
    assert json.loads((tmp_path / "summary.json").read_text())["stopped_by"] == "stop.return"
    assert read_run(tmp_path).state == "done"
    assert all_steps(tmp_path / "checkpoints")[-1] == at
    assert [
        line
        for line in told
        if "reached stop.return=9" in line and f"after {at} of {STEPS} steps" in line
    ]
    stored = jf.load_policy(tmp_path / "policy").params
    for ours, theirs in zip(
        jax.tree.leaves(stored), jax.tree.leaves(result.policy.params), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_a_return_that_is_not_reached_changes_nothing():
    assert_same(learn(stop_return=1e6), undisturbed())


def test_the_mean_over_seeds_counts():
    assert reached(2.0, np.array([1.0, 3.0])) and not reached(2.0, np.array([1.0, 2.9]))
    assert not reached(0.0, []) and not reached(None, [1.0]) and reached(0.0, [0.0])


def test_a_stopped_run_goes_on_only_without_its_return(tmp_path: Path):
    at = stopped_at()
    learn(stop_return=STOP, run_dir=tmp_path)
    with pytest.raises(
        ValueError, match=rf"/{at}: the greedy return \S+ has reached stop.return=9; write a higher"
    ):
        learn(stop_return=STOP, run_dir=tmp_path, resume=tmp_path, total_steps=2 * STEPS)
    result = learn(run_dir=tmp_path, resume=tmp_path, eval_beside=False)
    assert result.summary["stopped_by"] is None and result.summary["env_steps"] == STEPS
    assert json.loads((tmp_path / "summary.json").read_text())["stopped_by"] is None
    for ours, theirs in zip(leaves(result), leaves(undisturbed()), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("evaluation", [2, 3])
def test_a_run_that_is_interrupted_stops_where_it_would_have(tmp_path: Path, evaluation: int):
    """``evaluation``: during which the run is interrupted; the third one reaches the return."""
    whole, part = tmp_path / "whole", tmp_path / "part"
    expected = learn(stop_return=STOP, run_dir=whole)
    stopping, release, calls = threading.Event(), threading.Event(), [0]
    real: list[Any] = []

    def evaluator(params, fresh=False):
        calls[0] += 1
        if calls[0] == evaluation:
            stopping.set()
            assert release.wait(LIMIT_S)
        return real[0](params, fresh)

    real.append(recorded_evaluation())
    try:
        learn(stop_return=STOP, run_dir=part, evaluator=evaluator, should_stop=stopping.is_set)
    finally:
        release.set()
    assert (
        json.loads((part / "summary.json").read_text())["stopped_by"] is None
        and read_run(part).state == "stopped"
    )
    result = learn(stop_return=STOP, run_dir=part, resume=part)
    assert rows(part) == rows(whole)
    assert result.summary["env_steps"] == expected.summary["env_steps"]
    assert (
        result.summary["stopped_by"] == "stop.return"
        and result.summary["best"] == expected.summary["best"]
    )
    for ours, theirs in zip(leaves(result), leaves(expected), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def recorded_evaluation() -> Any:
    """Return the evaluation that `learn` makes."""
    from jaxrl_fast.assembly import bind
    from jaxrl_fast.settings.schema import EvalOptions
    from jaxrl_fast.training.episodes import make_periodic_evaluation

    env = tiny.line(discrete=True, limit=20)
    algorithm = jf.ppo(
        rollout_length=8,
        num_minibatches=1,
        num_epochs=2,
        policy_hidden=(8,),
        value_hidden=(8,),
        learning_rate=0.003,
    )
    agent, keys = bind(algorithm, env.spec, env.num_envs), jax.random.split(jax.random.key(2), 2)
    return make_periodic_evaluation(env, algorithm, agent, keys, EvalOptions(episodes=4)).evaluate


REFUSED = [
    (
        dict(stop_return=1.0, eval_every=0),
        "stop.return needs evaluations, and eval.every=0 makes none",
    ),
    (
        dict(stop_return=1.0, eval_beside=True),
        "stop.return evaluates between chunks: leave eval.beside out",
    ),
    (dict(stop_return=float("nan")), "stop_return=nan: write a number that is finite"),
    (dict(stop_return="high"), "stop_return='high': write a number"),
    (dict(on_eval=print, eval_every=0), "on_eval needs evaluations, and eval.every=0 makes none"),
    (dict(on_checkpoint=print), "on_checkpoint needs checkpoints: write run_dir="),
    (
        dict(on_checkpoint=print, run_dir="run", checkpoints=jf.Checkpoints(keep=0)),
        "on_checkpoint needs checkpoints",
    ),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_cannot_be_called_is_refused(options: dict, message: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        learn(**options)


def test_the_setting_switches_evaluation_during_training_off_and_is_stored_only_if_given(
    tmp_path: Path,
):
    plain, run = compose(["env=cartpole"]), compose(["env=cartpole", "stop.return=475"])
    assert (run.stop.return_, run.eval.beside, run.sources["eval.beside"]) == (
        475.0,
        False,
        "follows stop.return",
    )
    assert compose(["env=cartpole", "stop.return=0"]).eval.beside is False
    assert (
        plain.eval.beside
        and "stop.return" not in flat_settings(plain)
        and "\nstop:" not in to_yaml(plain)
    )
    assert flat_settings(run)["stop.return"] == 475.0
    (tmp_path / "plain.yaml").write_text(to_yaml(plain))
    (tmp_path / "config.yaml").write_text(to_yaml(run))
    again = compose([f"config='{tmp_path}/config.yaml'"])
    assert (again.stop, again.eval) == (run.stop, run.eval)
    # the file has true
    assert compose([f"config='{tmp_path}/plain.yaml'", "stop.return=3"]).eval.beside is False
    check_stop(None, plain.eval)


def test_the_command_stops_and_resumes_only_without_its_return(tmp_path: Path, commands):
    words = [
        "env=probe",
        "env.id=value",
        "algo=ppo",
        "num_envs=4",
        "total_steps=2000",
        "eval.every=200",
    ]
    words += [
        "eval.episodes=2",
        "algo.rollout_length=8",
        "algo.num_minibatches=1",
        "log=none",
        "seed=5",
    ]
    ended = commands.run(tmp_path, "train", *words, "stop.return=-5", "run_dir=run", trains=True)
    assert ended.status == 0, ended.err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["stopped_by"] == "stop.return" and summary["env_steps"] < 2000
    assert "updates, stopped by stop.return\n" in ended.out and "last measured" not in ended.out
    assert "resume=run stop.return=null" in ended.out
    assert "stop:\n  return: -5" in (tmp_path / "run" / "config.yaml").read_text()
    again = ["resume=run", "total_steps=4000"]
    lines = [
        ["train", *again],
        ["train", *again, "stop.return=-6"],
        ["train", *words, "stop.return=1", "eval.every=0"],
    ]
    lines += [
        ["train", *words, "stop.return=1", "eval.beside=true"],
        ["train", *words, "stop.return=nan"],
    ]
    same, lower, *wrong = commands.run_all(tmp_path, lines)
    for one in (same, lower):
        assert (
            one.status == 0
            and len(one.out.splitlines()) == 1
            and "has reached stop.return=-" in one.out
        ), one
    assert "stop.return needs evaluations" in refusal(wrong[0])
    assert "stop.return evaluates between chunks" in refusal(wrong[1])
    assert "stop.return=nan" in refusal(wrong[2])
    whole = commands.run(
        tmp_path, "train", "resume=run", "stop.return=null", "eval.beside=false", trains=True
    )
    assert whole.status == 0, whole.err
    assert "changed: stop.return: -5.0 -> None" in whole.out
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["stopped_by"] is None and summary["env_steps"] >= 2000


def block_of_the_page(word: str) -> str:
    """Return the code of `docs/callbacks.md` that contains a word, up to its call of `learn`."""
    (block,) = [block for block in python_blocks(PAGE) if word in block.code]
    return f"{block.first}\n{block.code}"


def test_the_rate_of_the_page_is_halved_after_three_evaluations_without_a_better_one():
    names: dict[str, Any] = {}
    exec(block_of_the_page("halve_at_a_plateau").partition("\nresult =")[0], names)
    means = [1.0, 2.0, 1.5, 2.0, 0.0, 1.0, 1.0, 1.0, 3.0, 1.0, 1.0, 1.0]

    def evaluator(params, fresh=False):
        mean = 0.0 if fresh else means[len(names["seen_all"])]
        return EpisodeTotals(np.full((2, 3), mean, np.float32), np.ones((2, 3), np.int32))

    def on_eval(evaluation: jf.Evaluation) -> None:
        names["seen_all"].append(evaluation.env_steps)
        names["seen"].append(evaluation.returns.mean())

    names["seen_all"] = []
    result = learn(
        eval_every=CHUNK,
        evaluator=evaluator,
        on_eval=on_eval,
        between_chunks=names["halve_at_a_plateau"],
    )
    rates = [row["rate/learning_rate"] for row in result.history if row["kind"] == "train"]
    halvings, best, since = [], means[0], 0
    for i, mean in enumerate(means[1:], 1):  # a slow reference
        best, since = (mean, 0) if mean > best else (best, since + 1)
        if since == 3:
            halvings.append(i)
            since = 0
    assert halvings == [4, 7, 11]
    expected = [0.003 / 2 ** sum(i > at for at in halvings) for i in range(len(means))]
    np.testing.assert_allclose(rates, expected, rtol=1e-5)


@pytest.mark.parametrize("num_seeds", [1, 2])
def test_the_curriculum_of_the_page_raises_its_level_across_resets_and_resumes(
    tmp_path: Path, num_seeds: int
):
    names: dict[str, Any] = {}
    exec(block_of_the_page("raise_level").partition("\nenv =")[0], names)
    env = names["with_level"](vectorize(names["make"](), num_envs=4))
    algorithm = jf.ppo(rollout_length=64, num_minibatches=1, num_epochs=1)
    levels: list[float] = []
    ended: list[int] = []

    def between_chunks(state, scores):
        (level,) = set(np.asarray(state.private["sample"].env.env_state["level"]).ravel().tolist())
        levels.append(level)
        return names["raise_level"](state, scores)

    options = dict(
        num_seeds=num_seeds, eval_episodes=2, between_chunks=between_chunks, tell=lambda line: None
    )
    options |= dict(
        run_dir=tmp_path, on_episode_end=lambda episodes: ended.append(episodes.number.sum())
    )
    jf.learn(env, algorithm, total_steps=256 * 4, **options)
    jf.learn(env, algorithm, total_steps=256 * 6, resume=tmp_path, **options)
    np.testing.assert_allclose(levels, 0.02 * np.arange(6), rtol=1e-5)
    assert sum(ended) >= 4 * num_seeds * 6  # every environment was reset
    assert jax.eval_shape(env.env.reset, jax.random.key(0), 0.1)[0]["level"].shape == ()


def test_the_return_is_no_part_of_a_compiled_program():
    keeper: Any = SimpleNamespace(files=None, identity={"code": {}})
    words = ["env=cartpole", "eval.beside=false"]
    settings = [
        flat_settings(compose([*words, *more]))
        for more in ([], ["stop.return=475"], ["num_envs=2"])
    ]
    same, stopped, other = (store_of(keeper, own, None).key for own in settings)
    assert same == stopped != other


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["algo=ppo", "total_steps=2000"],
            "no update: learning begins after 2,048 steps; write total_steps=4096 or more",
        ),
        (["algo=ppo", "total_steps=2049"], ""),
        (
            ["algo=ppo", "total_steps=4096", "overlap=sampling"],
            "begins after 4,096 steps; write total_steps=6144 or more",
        ),
        (
            ["algo=dqn", "total_steps=40", "algo.warmup_steps=80"],
            "no update: learning begins after 64 steps",
        ),
    ],
)
def test_a_run_that_ends_before_its_first_update_says_so(commands, tmp_path, words, told):
    ended = commands.run(tmp_path, "train", "env=cartpole", "num_envs=4", "tuned=false", *words)
    assert (
        ended.status == TRAINED and ("no update" in ended.out) == bool(told) and told in ended.out
    )
