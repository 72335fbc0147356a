"""Evaluation in a background process: the same rows as between chunks, also after the evaluator
fails.
"""

import csv
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from many_commands import refusal
from parallel_envs import Leaving
from processes_left import is_alive
from test_train import begin, finish, wait_for
from tiny import line

import jaxrl_fast as jf
from jaxrl_fast.assembly import bind
from jaxrl_fast.commands.run_config import compose
from jaxrl_fast.core import EpisodeTotals
from jaxrl_fast.policy.policies import make_policy, params_template, with_sampled_actions
from jaxrl_fast.replay.buffers import RingState
from jaxrl_fast.settings.run import to_yaml
from jaxrl_fast.settings.schema import EvalOptions
from jaxrl_fast.training.checkpoints import all_steps, read_description
from jaxrl_fast.training.episodes import STEP_LIMIT, evaluation_on_host
from jaxrl_fast.training.evaluator_process import EvaluatorProcess

STEPS, EVERY = 32 * 12, 32 * 3
LIMIT_S = 600.0
"""A test waits this long only for what never comes."""
WORDS = [
    "env=probe",
    "env.id=value",
    "algo=ppo",
    "num_envs=4",
    "eval.episodes=3",
    "seed=5",
    "num_seeds=2",
]


def quiet(line: str) -> None:
    pass


def learn(**options: Any) -> jf.Result:
    algorithm = jf.ppo(rollout_length=8, num_minibatches=1, policy_hidden=(8,), value_hidden=(8,))
    given = dict(total_steps=STEPS, eval_every=EVERY, eval_episodes=3, num_seeds=2, tell=quiet)
    return jf.learn(line(discrete=True), algorithm, **{**given, **options})


def rows(folder: Path) -> list[list[str]]:
    """Return ``evals.csv`` without times; none before the first evaluation."""
    table = folder / "evals.csv"
    found = list(csv.DictReader(table.read_text().splitlines())) if table.exists() else []
    return [[row[name] for name in ("seed", "env_steps", "return", "length")] for row in found]


def fail_at(*evaluations: int) -> Callable[[int], None]:
    def fail(number: int) -> None:
        if number in evaluations:
            raise ValueError("a user's environment\nbroke")

    return fail


class Evaluator:
    """Returns the params' sum as every return, after running a test's function."""

    def __init__(self, before=lambda number: None, num_seeds: int = 2) -> None:
        self.before, self.num_seeds, self.calls = before, num_seeds, 0

    def __call__(self, params, fresh=False) -> EpisodeTotals:
        self.calls += 1
        self.before(self.calls)
        sums = sum(
            np.asarray(x).reshape(self.num_seeds, -1).sum(axis=1) for x in jax.tree.leaves(params)
        )
        lengths = np.full((self.num_seeds, 3), 7, np.int32)
        return EpisodeTotals(np.repeat(sums[:, None], 3, axis=1).astype(np.float32), lengths)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    learn(run_dir=folder, evaluator=Evaluator())
    return folder


def test_the_rows_are_those_of_evaluation_between_chunks(tmp_path: Path):
    learn(run_dir=tmp_path / "beside", eval_beside=True)
    learn(run_dir=tmp_path / "between", eval_beside=False)
    assert rows(tmp_path / "beside") == rows(tmp_path / "between")
    assert len(rows(tmp_path / "beside")) == 4 * 2 * 3


def test_training_goes_on_meanwhile_and_waits_where_the_next_one_is_due(tmp_path: Path):
    """The first evaluation ends when training waits for it."""
    chunks, released = [], threading.Event()

    def hold(number: int) -> None:
        if number == 1:
            assert released.wait(LIMIT_S)

    def release() -> bool:
        if chunks == ["train"] * 6:  # the second evaluation is due, and training waits
            released.set()
        return False

    result = learn(
        evaluator=Evaluator(hold),
        on_metrics=lambda row: chunks.append(row["kind"]),
        should_stop=release,
    )
    assert chunks.index("eval") == 6
    assert [row["env_steps"] for row in result.history if row["kind"] == "eval"] == [
        96,
        192,
        288,
        384,
    ]
    assert result.summary["eval_wait_s"] > 0.0


@pytest.mark.parametrize("at", [1, 2, 4])
def test_a_snapshot_that_was_not_evaluated_is_in_the_checkpoint_and_resume_makes_up_for_it(
    tmp_path: Path, undisturbed: Path, at: int
):
    """``at``: the evaluation during which the run is stopped."""
    stopping, release = threading.Event(), threading.Event()

    def stop(number: int) -> None:
        if number == at:
            stopping.set()
            assert release.wait(LIMIT_S)

    try:
        learn(run_dir=tmp_path, evaluator=Evaluator(stop), should_stop=stopping.is_set)
    finally:
        release.set()
    waiting = read_description(
        tmp_path / "checkpoints" / str(all_steps(tmp_path / "checkpoints")[-1])
    ).progress
    assert waiting["snapshots"][0]["env_steps"] == at * EVERY
    assert len(rows(tmp_path)) == (at - 1) * 6
    learn(run_dir=tmp_path, evaluator=Evaluator(), resume=tmp_path)
    assert rows(tmp_path) == rows(undisturbed)


def test_a_row_that_was_written_after_the_checkpoint_is_not_written_twice(
    tmp_path: Path, undisturbed: Path
):
    held, release = threading.Event(), threading.Event()

    def hold(number: int) -> None:
        if number == 2:
            held.set()
            assert release.wait(LIMIT_S)

    try:
        learn(run_dir=tmp_path, evaluator=Evaluator(hold), should_stop=held.is_set)
    finally:
        release.set()
    written = rows(undisturbed)[6:12]
    with (tmp_path / "evals.csv").open(
        "a"
    ) as file:  # as by a process that was killed before its next checkpoint
        csv.writer(file).writerows(
            [[seed, steps, "1.0", value, length] for seed, steps, value, length in written]
        )
    learn(run_dir=tmp_path, evaluator=Evaluator(), resume=tmp_path)
    assert rows(tmp_path) == rows(undisturbed)


def test_an_evaluation_that_fails_costs_a_line_and_is_made_up_for(
    tmp_path: Path, undisturbed: Path
):
    told: list[str] = []

    learn(run_dir=tmp_path, evaluator=Evaluator(fail_at(2)), tell=told.append)
    (line,) = [line for line in told if "evaluation" in line]
    assert line.startswith("an evaluation failed (a user's environment broke)")
    assert len(rows(tmp_path)) == 3 * 6
    learn(run_dir=tmp_path, evaluator=Evaluator(), resume=tmp_path)
    assert sorted(rows(tmp_path)) == sorted(rows(undisturbed))


def test_one_that_is_made_up_for_does_not_replace_newer_ones(tmp_path: Path, undisturbed: Path):
    written, found = tmp_path / "policy" / "params.msgpack", []

    def look(number: int) -> None:
        if number > 1:
            found.append(written.read_bytes())

    learn(run_dir=tmp_path, evaluator=Evaluator(fail_at(2, 4)))
    before = written.read_bytes()
    result = learn(run_dir=tmp_path, evaluator=Evaluator(look), resume=tmp_path)
    assert found[0] == before  # during the fourth evaluation, after the second was repeated
    expected = json.loads((undisturbed / "summary.json").read_text())
    assert result.summary["best"] == expected["best"]
    assert result.summary["eval_return_mean"] == expected["eval_return_mean"]


def test_a_newer_score_stays_when_an_older_one_is_made_up_for(tmp_path: Path, undisturbed: Path):
    learn(run_dir=tmp_path, evaluator=Evaluator(fail_at(2)))
    result = learn(run_dir=tmp_path, evaluator=Evaluator(), resume=tmp_path)
    expected = json.loads((undisturbed / "summary.json").read_text())
    assert result.summary["eval_return_mean"] == expected["eval_return_mean"]


def test_the_checkpoint_of_a_score_names_no_snapshot_that_it_lacks(tmp_path: Path):
    """All evaluations fail. When the run is resumed, the first is repeated while the later ones
    wait.
    """
    plan = jf.Checkpoints(every=EVERY, keep=9)
    learn(run_dir=tmp_path, evaluator=Evaluator(fail_at(1, 2, 3, 4)), checkpoints=plan)
    learn(
        run_dir=tmp_path, evaluator=Evaluator(fail_at(2, 3, 4)), checkpoints=plan, resume=tmp_path
    )
    facts = {
        steps: read_description(tmp_path / "checkpoints" / str(steps)) for steps in (EVERY, STEPS)
    }
    assert facts[EVERY].score is not None and facts[EVERY].progress["snapshots"] == []
    assert [waiting["env_steps"] for waiting in facts[STEPS].progress["snapshots"]] == [
        96,
        192,
        288,
        384,
    ]


def test_a_new_policy_lies_there_when_it_is_announced_and_an_older_one_is_not_announced(
    tmp_path: Path,
):
    seen: list[bytes] = []

    def look() -> None:
        seen.append((tmp_path / "policy" / "params.msgpack").read_bytes())

    learn(run_dir=tmp_path, evaluator=Evaluator(fail_at(2)), on_new_policy=look)
    assert len(seen) == len(set(seen)) == 3
    learn(run_dir=tmp_path, evaluator=Evaluator(), resume=tmp_path, on_new_policy=look)
    assert len(seen) == 3, "the second was made up for, and is older than the last"


def test_the_last_policy_is_shown_while_the_best_one_is_scored_once_more(tmp_path: Path):
    shown: list[jf.Policy] = []
    begun, released = threading.Event(), threading.Event()

    class Held(Evaluator):
        def __call__(self, params, fresh=False) -> EpisodeTotals:
            if fresh:
                begun.set()
            assert not fresh or released.wait(LIMIT_S), "the last policy was not shown meanwhile"
            return super().__call__(params, fresh)

    def show(policy: jf.Policy) -> None:
        assert begun.wait(LIMIT_S), "the best policy is not being evaluated"
        assert (tmp_path / "curve.png").exists() and (
            tmp_path / "policy" / "params.msgpack"
        ).exists()
        shown.append(policy)
        released.set()

    result = learn(run_dir=tmp_path, evaluator=Held(), on_last_policy=show)
    assert shown == [result.policy] and "fresh_return_mean" in result.summary["best"]


def test_of_one_seed_it_is_shown_while_it_is_evaluated(tmp_path: Path):
    shown: list[jf.Policy] = []
    begun, released = threading.Event(), threading.Event()

    def hold_the_last(number: int) -> None:
        if number == STEPS // EVERY:
            begun.set()
            assert released.wait(LIMIT_S), "the last policy was not shown meanwhile"

    def show(policy: jf.Policy) -> None:
        assert begun.wait(LIMIT_S), "the last policy is not being evaluated"
        shown.append(policy)
        released.set()

    result = learn(
        run_dir=tmp_path,
        evaluator=Evaluator(hold_the_last, num_seeds=1),
        on_last_policy=show,
        num_seeds=1,
    )
    assert shown == [result.policy] and len(rows(tmp_path)) == 3 * STEPS // EVERY


def test_what_showing_it_raises_ends_the_run():
    def show(policy: jf.Policy) -> None:
        raise OSError("no display")

    with pytest.raises(OSError, match="no display"):
        learn(evaluator=Evaluator(), on_last_policy=show)


def test_a_stopped_run_does_not_wait_until_it_is_shown():
    stopped, released, shown = threading.Event(), threading.Event(), threading.Event()

    def show(policy: jf.Policy) -> None:
        stopped.set()
        released.wait(LIMIT_S)
        shown.set()

    learn(evaluator=Evaluator(), on_last_policy=show, should_stop=stopped.is_set)
    assert not shown.is_set()
    released.set()


def test_a_stopped_run_shows_no_last_policy():
    evaluator = Evaluator()
    learn(
        evaluator=evaluator,
        should_stop=lambda: evaluator.calls > 0,
        on_last_policy=lambda policy: pytest.fail(),
    )


def test_copied_params_own_their_memory():
    """A NumPy view would change when the next chunk overwrites the state."""
    seen: list[bool] = []

    class Owned(Evaluator):
        def __call__(self, params, fresh=False) -> EpisodeTotals:
            seen.extend(leaf.flags.writeable for leaf in jax.tree.leaves(params))
            return super().__call__(params, fresh)

    learn(evaluator=Owned(), total_steps=EVERY)
    assert seen and all(seen)


def test_between_chunks_the_error_is_raised():
    with pytest.raises(ValueError, match="a user's environment"):
        learn(evaluator=Evaluator(fail_at(1)), eval_beside=False)


def test_checkpoints_get_their_scores_and_the_best_is_kept(tmp_path: Path):
    given = iter([1.0, 9.0, 2.0, 3.0])

    class Scores(Evaluator):
        def __call__(self, params, fresh=False) -> EpisodeTotals:
            score = 7.0 if fresh else next(given)
            return EpisodeTotals(
                np.float32([[score] * 3, [score - 1] * 3]), np.full((2, 3), 7, np.int32)
            )

    plan = jf.Checkpoints(every=EVERY, keep=1)
    result = learn(run_dir=tmp_path, evaluator=Scores(), checkpoints=plan)
    kept = {steps: read_description(tmp_path / "checkpoints" / str(steps)) for steps in (192, 384)}
    assert all_steps(tmp_path / "checkpoints") == [192, 384]
    assert {steps: facts.score for steps, facts in kept.items()} == {192: 8.5, 384: 2.5}
    assert kept[384].progress["snapshots"] == []
    assert result.summary["best"] == {
        "env_steps": 192,
        "seed": 0,
        "return_mean": 9.0,
        "fresh_return_mean": 7.0,
        "fresh_return_std": 0.0,
        "fresh_return_episodes": 3,
    }
    best, newest = jf.load_policy(tmp_path / "policy" / "best"), jf.load_policy(tmp_path / "policy")
    assert not np.array_equal(*(jax.tree.leaves(policy.params)[0] for policy in (best, newest)))


@pytest.mark.parametrize("beside", [True, False])
def test_the_best_policy_is_scored_once_more_from_fresh_starts(tmp_path: Path, beside: bool):
    calls: list[tuple[bool, np.ndarray]] = []

    class Remembers(Evaluator):
        def __call__(self, params, fresh=False) -> EpisodeTotals:
            calls.append((fresh, jax.tree.leaves(params)[0].copy()))
            totals = super().__call__(params, fresh)
            return totals._replace(returns=totals.returns + 100.0 * fresh)

    result = learn(run_dir=tmp_path, evaluator=Remembers(), eval_beside=beside)
    best = result.summary["best"]
    assert [fresh for fresh, _ in calls] == [False] * 4 + [True]
    np.testing.assert_array_equal(calls[-1][1], calls[best["env_steps"] // EVERY - 1][1])
    assert best["fresh_return_mean"] == pytest.approx(best["return_mean"] + 100.0)
    if beside:  # a resumed run reads the best score from its folder
        calls.clear()
        learn(run_dir=tmp_path, evaluator=Evaluator(), resume=tmp_path, total_steps=STEPS + EVERY)
        newer = json.loads((tmp_path / "summary.json").read_text())["best"]
        assert newer["fresh_return_episodes"] == 3


def test_a_run_that_is_stopped_does_not_wait_for_that():
    fresh: list[bool] = []

    class Notes(Evaluator):
        def __call__(self, params, fresh_starts=False) -> EpisodeTotals:
            fresh.append(fresh_starts)
            return super().__call__(params)

    learn(evaluator=Notes(), should_stop=lambda: len(fresh) > 1)
    assert True not in fresh


def process_for(folder: Path) -> EvaluatorProcess:
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(to_yaml(compose(WORDS)))
    return EvaluatorProcess(folder, "cpu")


def wait_until(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.02)


def wait_for_share_of_session(process: int, niceness: str) -> None:
    """Wait until the session of ``process`` has this nice value, where Linux divides cores among
    sessions.
    """
    group = Path(f"/proc/{process}/autogroup")
    wait_until(lambda: not group.exists() or group.read_text().split()[-1:] == [niceness])


def is_idle(process: int) -> bool:
    """Return whether a process has idle priority."""
    scheduled = (
        os.sched_getscheduler(process) == os.SCHED_IDLE if hasattr(os, "SCHED_IDLE") else True
    )
    return scheduled and os.getpriority(os.PRIO_PROCESS, process) == 19


def take_from_idle(process: int) -> None:
    """Give a process ordinary priority where this is permitted, so that a test does not wait for an
    idle machine.
    """
    for thread in Path(f"/proc/{process}/task").glob("*"):
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, int(thread.name), 0)
            os.sched_setscheduler(int(thread.name), os.SCHED_OTHER, os.sched_param(0))


def take_next_from_idle(evaluator: EvaluatorProcess, process: int) -> None:
    """Wait for the process after ``process`` and give it ordinary priority."""
    wait_until(lambda: evaluator.process.pid != process and is_idle(evaluator.process.pid))
    take_from_idle(evaluator.process.pid)


def programs_in(cache: Path) -> dict[str, int]:
    """Return the stored programs, each with a number that changes when it is rewritten."""
    return {path.name: path.stat().st_ino for path in (cache / "kept").glob("program-*-evaluation")}


def test_a_process_gives_the_same_bits_and_survives_its_own_death(tmp_path: Path, monkeypatch):
    from jaxrl_fast.assembly import bind, build_graph
    from jaxrl_fast.commands.run_config import make_algorithm, make_envs
    from jaxrl_fast.learning.run_graph import GraphOptions
    from jaxrl_fast.runtime.graph import init
    from jaxrl_fast.training.episodes import make_periodic_evaluation

    run = compose(WORDS)
    env, algorithm = make_envs(run), make_algorithm(run)
    keys = jax.random.split(jax.random.key(run.seed), run.num_seeds)
    evaluation = make_periodic_evaluation(
        env, algorithm, bind(algorithm, env.spec, 4), keys, run.eval
    )
    graph, _ = build_graph(env, algorithm, GraphOptions())
    params = evaluation.copy_params(
        jax.jit(jax.vmap(lambda key: init(graph, key, algorithm.hyper)))(keys)
    )
    monkeypatch.setenv("JAXRL_FAST_CACHE", str(tmp_path / "cache"))
    evaluator = process_for(tmp_path)
    try:
        wait_until(lambda: is_idle(evaluator.process.pid))  # it compiles while idle
        wait_for_share_of_session(evaluator.process.pid, "19")
        take_from_idle(evaluator.process.pid)
        for fresh in (False, True):
            here, there = evaluation.evaluate(params, fresh), evaluator(params, fresh)
            np.testing.assert_array_equal(here.returns, there.returns)
            np.testing.assert_array_equal(here.length, there.length)
        wait_for_share_of_session(evaluator.process.pid, "0")
        assert evaluator.memory_mb > 10
        os.kill(evaluator.process.pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match="its process ended with exit code -9"):
            evaluator.process.wait()
            # it dies just before the request
            monkeypatch.setattr(evaluator.process, "poll", lambda: None)
            evaluator(params)
        monkeypatch.delattr(evaluator.process, "poll")
        kept = programs_in(tmp_path / "cache")
        again = threading.Thread(
            target=take_next_from_idle, args=(evaluator, evaluator.process.pid)
        )
        again.start()
        np.testing.assert_array_equal(
            evaluator(params).returns, evaluation.evaluate(params).returns
        )
        # the second process wrote no program
        assert len(kept) == 1 and programs_in(tmp_path / "cache") == kept
        assert (tmp_path / "evaluator.log").read_text() == ""
        again.join()
    finally:
        evaluator.close()


def test_a_device_of_its_own_computes_and_gives_the_same_numbers(monkeypatch):
    from jaxrl_fast.assembly import bind
    from jaxrl_fast.training.episodes import make_periodic_evaluation

    env, algorithm = line(discrete=True), jf.ppo(rollout_length=8, num_minibatches=1)
    keys = jax.random.split(jax.random.key(0), 2)
    own = jax.devices()[1]
    places, get = [], jax.device_get
    monkeypatch.setattr(
        jax, "device_get", lambda tree: places.append(tree.returns.devices()) or get(tree)
    )
    agent = bind(algorithm, env.spec, 4)
    template = params_template(env.spec, agent.parts, agent.acting, agent.normalize_observations)
    params = jax.tree.map(lambda x: np.stack([x] * 2), template)
    here = make_periodic_evaluation(env, algorithm, agent, keys, EvalOptions(episodes=3)).evaluate(
        params
    )
    there = make_periodic_evaluation(
        env, algorithm, agent, keys, EvalOptions(episodes=3), device=own
    ).evaluate(params)
    assert places == [{jax.devices()[0]}, {own}]
    np.testing.assert_array_equal(here.returns, there.returns)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads /proc")
@pytest.mark.parametrize("one_thread", [True, False])
def test_of_few_episodes_it_computes_by_one_thread(tmp_path: Path, monkeypatch, one_thread: bool):
    monkeypatch.delenv("PJRT_NPROC", raising=False)
    (tmp_path / "config.yaml").write_text(to_yaml(compose(WORDS)))
    evaluator = EvaluatorProcess(tmp_path, "cpu", one_thread=one_thread)
    process = Path(f"/proc/{evaluator.process.pid}")
    # until then it is a copy of this process
    while b"jaxrl_fast.evaluator" not in (process / "cmdline").read_bytes():
        time.sleep(0.01)
    given = (process / "environ").read_bytes().split(b"\0")
    evaluator.close()
    assert (b"PJRT_NPROC=1" in given) == one_thread


def test_it_ends_when_training_is_killed(tmp_path: Path):
    script = (
        "import sys, time; from pathlib import Path; "
        "from jaxrl_fast.training.evaluator_process import EvaluatorProcess; "
        "print(EvaluatorProcess(Path(sys.argv[1]), 'cpu').process.pid, flush=True); time.sleep(600)"
    )
    (tmp_path / "config.yaml").write_text(to_yaml(compose(WORDS)))
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    wait_until(lambda: not is_alive(child))


def test_a_run_that_lacks_only_its_last_evaluation_is_resumed_for_it(
    tmp_path: Path, undisturbed: Path
):
    learn(run_dir=tmp_path, evaluator=Evaluator(fail_at(4)))
    result = learn(run_dir=tmp_path, evaluator=Evaluator(), resume=tmp_path)
    assert rows(tmp_path) == rows(undisturbed)
    assert result.summary["env_steps"] == STEPS
    with pytest.raises(ValueError, match="the run is complete"):
        learn(run_dir=tmp_path, evaluator=Evaluator(), resume=tmp_path)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cartpole", {"episode_length": 10**10}),
        ("brax", {"id": "fast", "episode_length": 10**10}),
        ("gymnasium", {"id": "Pendulum-v1", "max_episode_steps": 10**10}),
    ],
)
def test_a_time_limit_that_32_bits_do_not_hold_is_refused(name, options):
    with pytest.raises(ValueError, match="0000000000: write a number of at most 2147483647"):
        jf.make_env(name, num_envs=2, **options)


@pytest.mark.parametrize("limit", [None, 10**9], ids=["none", "too long"])
def test_an_evaluation_ends_where_the_time_limit_is_none_and_says_so(
    limit: int | None, capsys: pytest.CaptureFixture
):
    def step(state, action, key):
        return state, jf.Timestep(state, state, jnp.float32(1), jnp.bool_(False), jnp.bool_(False))

    spec = jf.EnvSpec("endless", jax.ShapeDtypeStruct((1,), np.float32), jf.Discrete(2), limit)
    env = jf.vectorize(jf.Env(spec, lambda key, params: (jnp.zeros(1),) * 2, step), num_envs=2)
    lines: list[str] = []
    algo = jf.ppo(
        rollout_length=4, num_minibatches=1, num_epochs=1, policy_hidden=(4,), value_hidden=(4,)
    )
    result = jf.learn(env, algo, total_steps=16, eval_every=8, eval_episodes=1, tell=lines.append)
    assert result.summary["eval_return_mean"] == STEP_LIMIT
    cut = [line for line in lines if "were cut after 10,000 steps" in line]
    assert len(cut) == 1 and cut[0].startswith("1 of 1 evaluation episodes")
    ahead = (
        "evaluation episodes end after 10,000 steps: the time limit of 1,000,000,000 is too long"
    )
    assert (ahead in lines[0]) == (limit is not None)
    capsys.readouterr()
    jf.evaluate_policy(result.policy, env, jax.random.key(0), episodes=3)
    assert "3 of 3 evaluation episodes were cut" in capsys.readouterr().err
    jf.collect_episodes(result.policy, env, episodes=1)
    assert "1 of 1 evaluation episodes were cut" in capsys.readouterr().err
    lines.clear()
    rates = {"learning_rate": "log:1e-4:1e-2"}
    jf.train_population(
        env, algo, rates=rates, total_steps=16, trials=2, final_episodes=1, tell=lines.append
    )
    assert sum("were cut after 10,000 steps" in line for line in lines) == 1


class Counting(gymnasium.Env):
    """Observes [number of the episode since the last seed, step], as the seed draws the first
    number; ends after 7.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.number = float(self.np_random.integers(10_000))
        self.number, self.t = self.number + 0.5, 0
        return np.array([self.number, self.t], np.float32), {}

    def step(self, action):
        self.t += 1
        reward = float(action[0]) + self.number
        return np.array([self.number, self.t], np.float32), reward, False, self.t >= 7, {}


def tiny_sac(**options: Any) -> jf.Algorithm:
    sizes = dict(
        policy_hidden=(4,), critic_hidden=(4,), batch_size=8, warmup_steps=16, updates_per_tick=1
    )
    return jf.sac(**{**sizes, "buffer_size": 512, "n_step": 3, **options})


def shared(
    algorithm: jf.Algorithm, num_envs: int = 3, seeds: int = 1, pool: Any = None, **options: Any
) -> jf.Result:
    given = dict(
        total_steps=num_envs * 40,
        eval_every=num_envs * 10,
        eval_episodes=4,
        num_seeds=seeds,
        tell=quiet,
    )
    chosen = {"workers": 0} if pool is None else pool
    env = jf.make_env("custom", make=Counting, num_envs=num_envs, num_seeds=seeds, pool=chosen)
    try:
        return jf.learn(env, algorithm, **{**given, "eval_share": True, **options})
    finally:
        env.close()


def stored(result: jf.Result, steps: int) -> Any:
    """Return the steps in the replay buffer, leaves ``[T, S, E, ...]``."""
    parts = jax.tree.leaves(result.state.private, is_leaf=lambda x: isinstance(x, RingState))
    # leaves [S, E, slots, 1, ...]
    (ring,) = [part for part in parts if isinstance(part, RingState)]
    return jax.tree.map(lambda x: np.moveaxis(np.asarray(x)[:, :, :steps, 0], 2, 0), ring.data)


def test_an_evaluation_of_as_many_steps_as_training_is_noticed():
    """Otherwise the next chunk would continue from observations of other episodes."""
    data = stored(shared(tiny_sac(rollout_length=1), 2, eval_every=14, total_steps=56), 28)
    np.testing.assert_array_equal(data.obs[..., 0], data.next_obs[..., 0])


@pytest.mark.parametrize(
    ("seeds", "pool"), [(1, None), (2, {"workers": 0, "num_groups": 1}), (1, {"workers": 2})]
)
def test_evaluation_in_the_environments_of_training_truncates_their_episodes(seeds, pool):
    """Each stored step is followed by the next of its episode, or ends it; the truncated episodes
    are counted.
    """
    result = shared(tiny_sac(rollout_length=1), 2, seeds, pool)
    data = stored(result, 40)
    done = data.terminated | data.truncated
    goes_on = (data.obs[1:] == data.next_obs[:-1]).all(-1)
    np.testing.assert_array_equal(goes_on, ~done[:-1])
    early = done & (data.next_obs[..., 1] < 7)
    assert np.flatnonzero(early.any(axis=(1, 2))).tolist() == [9, 19, 29, 39]
    assert early[[9, 19, 29, 39]].all() and not data.terminated.any()
    assert result.summary["truncated_episodes"] == 4 * seeds * 2
    returns = [row["eval_return_mean"] for row in result.history if row["kind"] == "eval"]
    assert len(returns) == 4 and result.summary["eval_episodes"] == 4 * seeds


def test_shared_evaluation_equals_evaluation_in_separate_environments():
    """With as many environments as episodes; in fewer, the first episodes of several resets are
    played.
    """

    def returns(num_envs: int, groups: int, episodes: int, share: bool) -> np.ndarray:
        env = jf.make_env(
            "custom", make=Counting, num_envs=num_envs, pool={"workers": 0, "num_groups": groups}
        )
        agent = bind(tiny_sac(normalize_observations=False), env.spec, num_envs)
        zeros = params_template(env.spec, agent.parts, agent.acting, agent.normalize_observations)
        policy = make_policy(env.spec, agent.acting, zeros, {})
        params = jax.tree.map(lambda x: jnp.full_like(jnp.asarray(x), 0.01)[None], policy.params)
        evaluate = evaluation_on_host(policy, env, episodes, share=share)
        found = evaluate(params, jax.random.key(3)[None])
        again = evaluate(params, jax.random.key(3)[None])
        np.testing.assert_array_equal(found.returns, again.returns)
        assert (found.length == 7).all()
        evaluate.close()
        env.close()
        return found.returns[0]

    apart = returns(4, 1, 4, False)
    np.testing.assert_array_equal(returns(4, 2, 4, True), apart)
    np.testing.assert_array_equal(returns(4, 1, 6, True)[:4], apart)
    assert len(set(np.round(returns(1, 1, 5, True), 3))) == 5, "the episodes differ"


def test_resuming_at_a_shared_evaluation_is_exact(tmp_path):
    saved = {"checkpoints": jf.Checkpoints(every=20, keep=9)}
    whole = shared(tiny_sac(), 2, run_dir=tmp_path / "whole", **saved)
    rows: list[int] = []
    given = {
        "on_metrics": lambda row: rows.append(row["env_steps"]),
        "should_stop": lambda: 40 in rows,
    }
    stopped = shared(tiny_sac(), 2, run_dir=tmp_path / "part", **saved, **given)
    assert stopped.summary["env_steps"] == 40
    resumed = shared(tiny_sac(), 2, run_dir=tmp_path / "part", resume=tmp_path / "part", **saved)
    for one, other in zip(
        jax.tree.leaves(whole.state.channels), jax.tree.leaves(resumed.state.channels), strict=True
    ):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    assert resumed.summary["truncated_episodes"] == whole.summary["truncated_episodes"]
    assert resumed.summary["eval_return_mean"] == whole.summary["eval_return_mean"]


REFUSED = [
    ({}, {"bridge": "callback"}, "eval.share=true does not support pool.bridge=callback"),
    ({}, {"order": "arrival", "workers": 1}, "eval.share=true does not support pool.order=arrival"),
    ({"beside": True}, {}, "eval.share=true evaluates between chunks: leave eval.beside out"),
    ({}, None, "eval.share=true is for environments on the host"),
]


def test_command_and_library_refuse_the_same_sharing(tmp_path, commands):
    lines = []
    for options, pool, _ in REFUSED:
        words = ["env=pendulum"] if pool is None else ["env=gymnasium", "env.id=Pendulum-v1"]
        words += [f"eval.{name}=true" for name in options] + [
            f"pool.{name}={x}" for name, x in (pool or {}).items()
        ]
        lines.append(["train", *words, "algo=sac", "eval.share=true", "num_envs=2"])
    lines.append(
        [
            "train",
            "env=gymnasium",
            "env.id=Pendulum-v1",
            "algo=sac",
            "eval.share=true",
            "eval.picture=true",
        ]
    )
    *ended, picture = commands.run_all(tmp_path, lines)
    assert "eval.picture=true needs" in refusal(picture)
    for (options, pool, said), answer in zip(REFUSED, ended, strict=True):
        assert said in refusal(answer)
        chosen = {"pool": {"workers": 0, **pool}, "make": Counting} if pool is not None else {}
        env = jf.make_env("pendulum" if pool is None else "custom", num_envs=2, **chosen)
        with pytest.raises(ValueError, match=said):
            jf.learn(
                env,
                tiny_sac(),
                total_steps=20,
                eval_share=True,
                **{f"eval_{k}": v for k, v in options.items()},
            )
        if pool is not None:
            env.close()


def test_sharing_switches_the_background_process_off(tmp_path):
    run = compose(["env=gymnasium", "env.id=Pendulum-v1", "algo=sac", "eval.share=true"])
    assert (run.eval.beside, run.sources["eval.beside"]) == (False, "follows eval.share")
    (tmp_path / "config.yaml").write_text(to_yaml(run))
    assert compose([f"config='{tmp_path}/config.yaml'"]).eval == run.eval


@pytest.mark.parametrize("kind", ["agents", "frames"])
def test_several_agents_and_frame_stacks_share(kind):
    small: dict[str, Any] = dict(
        rollout_length=5, num_minibatches=1, num_epochs=1, policy_hidden=(4,), value_hidden=(4,)
    )
    if kind == "agents":
        env, algorithm = (
            jf.make_env("custom", make=Leaving, num_envs=2, pool={"workers": 0}),
            jf.ippo(**small),
        )
    else:
        env = jf.make_env("custom", make=Picture, num_envs=2, frame_stack=3, pool={"workers": 0})
        algorithm = jf.ppo(**small, cnn="small")
    given = dict(total_steps=40, eval_every=20, eval_episodes=3, tell=quiet)
    separate = jf.learn(env, algorithm, **given, eval_beside=False)
    together = jf.learn(env, algorithm, **given, eval_share=True)
    env.close()
    first = [
        next(row for row in result.history if row["kind"] == "eval")
        for result in (separate, together)
    ]
    assert (
        first[0]["eval_length_mean"]
        == first[1]["eval_length_mean"]
        == (4 if kind == "agents" else 6)
    )
    assert together.summary["eval_episodes"] == 3 and together.summary["truncated_episodes"] == 4


class Picture(gymnasium.Env):
    """Images with the number of the step; an episode has 6."""

    observation_space = gymnasium.spaces.Box(0, 255, (12, 12, 1), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros((12, 12, 1), np.uint8), {}

    def step(self, action):
        self.t += 1
        return np.full((12, 12, 1), self.t, np.uint8), float(action), self.t >= 6, False, {}


SLOW = """
import time, gymnasium, numpy as np
class Slow(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}
    def step(self, action):
        Slow.steps += 1
        if Slow.steps == 200:
            open("evaluating", "w").write("x")
        time.sleep(0.05 if Slow.steps > 200 else 0)
        return np.zeros(2, np.float32), 0.0, False, False, {}
def make():
    return Slow()
"""


QUICK = """
import threading, time
from pathlib import Path
SLOW
def make():
    class Quick(Slow):
        t = 0
        def step(self, action):
            with open("steps", "a") as file:
                file.write("e" if threading.current_thread().name.startswith("evaluation") else "t")
            time.sleep(0.002)
            self.t += 1
            obs, reward, *_ = super().step(action)
            return obs, reward, self.t % 50 == 0, False, {}
    return Quick()
""".replace("SLOW", SLOW.replace("Slow.steps == 200", "False").replace("Slow.steps > 200", "False"))


def test_a_signal_ends_a_shared_evaluation_at_its_next_step(tmp_path):
    """It would take 10,000 steps, 500 seconds."""
    (tmp_path / "slow_env.py").write_text(SLOW)
    words = [
        "env=custom",
        "env.make=slow_env.make",
        "algo=ppo",
        "num_envs=1",
        "eval.share=true",
        "run_dir=run",
    ]
    words += [
        "algo.rollout_length=8",
        "algo.num_minibatches=1",
        "total_steps=64",
        "eval.every=8",
        "eval.episodes=1",
    ]
    process = begin(tmp_path, "train", *words)
    wait_for(tmp_path / "evaluating")
    process.send_signal(signal.SIGINT)
    status, out, err = finish(process)
    assert status == 130 and "Traceback" not in err, err
    assert all_steps(tmp_path / "run" / "checkpoints") == [8]
    assert read_description(tmp_path / "run" / "checkpoints" / "8").progress["snapshots"]
    assert "resume=run" in out
    (tmp_path / "slow_env.py").write_text(QUICK)
    status, out, err = finish(begin(tmp_path, "train", "resume=run"))
    assert status == 0, err
    steps = (tmp_path / "steps").read_text()
    assert steps.startswith(f"t{'e' * 50}{'t' * 8}e"), (
        "after a check, the waiting evaluation, then training"
    )


def test_sampled_evaluations_draw_from_the_policy_and_greedy_ones_do_not(tmp_path):
    env, seen = line(discrete=True, num_envs=4), {}
    for sample in (False, True):
        sizes = dict(
            rollout_length=4, num_minibatches=2, num_epochs=1, policy_hidden=(4,), value_hidden=(4,)
        )
        options = dict(total_steps=32, eval_episodes=64, eval_beside=False, tell=lambda text: None)
        result = jf.learn(env, jf.ppo(learning_rate=0.0, **sizes), eval_sample=sample, **options)
        seen[sample] = result.summary
        again = jf.learn(env, jf.ppo(learning_rate=0.0, **sizes), eval_sample=sample, **options)
        assert again.summary["eval_return_mean"] == result.summary["eval_return_mean"]
    # the greedy policy always does the same
    assert seen[True]["eval_return_std"] > seen[False]["eval_return_std"]
    with pytest.raises(ValueError, match="algo=dqn has no distribution to sample actions from"):
        jf.learn(env, jf.dqn(epsilon=0.1), total_steps=32, eval_sample=True)


def test_a_sampled_policy_has_the_shares_of_its_distribution():
    env = line(discrete=True, num_envs=4)
    result = jf.learn(
        env,
        jf.ppo(rollout_length=4, num_minibatches=2),
        total_steps=64,
        eval_episodes=2,
        tell=print,
    )
    policy = with_sampled_actions(result.policy)
    obs = jnp.zeros((2000, 2))
    first, carry = jnp.ones(2000, bool), policy.initial_carry(2000)
    drawn, _ = policy.act_arrays(policy.params, carry, obs, first, jax.random.key(0))
    greedy, _ = result.policy.act_arrays(policy.params, carry, obs, first, jax.random.key(0))
    assert len(set(np.asarray(greedy).tolist())) == 1 and set(np.asarray(drawn).tolist()) == {0, 1}
