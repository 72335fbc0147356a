"""The `between_chunks` callback: it sees the whole state and each seed's scores, and may return
another state.
"""

import csv
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

import jaxrl_fast as jf

RATES = jnp.float32([0.0, 0.02, 0.3])


def run(hook=None, *, ticks: int = 6, num_seeds: int = 3, **options) -> jf.Result:
    algorithm = jf.ppo(
        learning_rate=0.01,
        rollout_length=4,
        num_epochs=1,
        num_minibatches=1,
        policy_hidden=(4,),
        value_hidden=(4,),
    )
    calls = {} if hook is None else {"between_chunks": hook}
    return jf.learn(
        tiny.line(discrete=True),
        algorithm,
        total_steps=ticks * 16,
        num_seeds=num_seeds,
        eval_episodes=2,
        eval_every=32,
        tell=lambda line: None,
        **calls,
        **options,
    )


def actors(result: jf.Result) -> list[np.ndarray]:
    return [
        np.asarray(x)
        for x in jax.tree.leaves(result.state.private["learn"]["actor"].learned.params)
    ]


def rates_of_their_own(state, scores):
    return state._replace(hyper=state.hyper._replace(learning_rate=RATES))


@pytest.mark.parametrize("num_seeds", [1, 3])
def test_it_is_called_after_every_chunk_with_the_scores_of_the_last_evaluation(num_seeds):
    seen = []
    result = run(
        lambda state, scores: seen.append((int(state.tick), scores.tolist())), num_seeds=num_seeds
    )
    assert [tick for tick, _ in seen] == [1, 2, 3, 4, 5, 6]
    assert [len(scores) for _, scores in seen] == [0] + [num_seeds] * 5
    means = [row["eval_return_mean"] for row in result.history if row["kind"] == "eval"]
    assert np.mean(seen[-1][1]) == pytest.approx(means[-1])


def test_a_hook_that_gives_nothing_back_changes_nothing():
    for ours, theirs in zip(actors(run(lambda state, scores: None)), actors(run()), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_rates_may_differ_per_seed_and_stand_in_the_tables(tmp_path: Path):
    first = []

    def hook(state, scores):
        if not first:
            first.append(jax.tree.map(np.array, state.private["learn"]["actor"].learned.params))
        return rates_of_their_own(state, scores)

    result = run(hook, run_dir=tmp_path)
    for before, after in zip(jax.tree.leaves(first[0]), actors(result), strict=True):
        np.testing.assert_array_equal(after[0], before[0])  # a rate of 0
        assert (np.abs(after[1:] - before[1:]) > 0).any()
    with (tmp_path / "metrics_seeds.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["seed"], row["env_steps"]) for row in rows[:4]] == [
        ("0", "16"),
        ("1", "16"),
        ("2", "16"),
        ("0", "32"),
    ]
    np.testing.assert_allclose(
        [float(row["rate/learning_rate"]) for row in rows[:3]], 0.01, rtol=1e-6
    )
    np.testing.assert_allclose(
        [float(row["rate/learning_rate"]) for row in rows[3:6]], RATES, rtol=1e-6
    )
    with (tmp_path / "metrics.csv").open() as file:
        means = [float(row["learn/critic/value_loss"]) for row in list(csv.DictReader(file))[1:]]
    of_seeds = np.array([float(row["learn/critic/value_loss"]) for row in rows[3:]]).reshape(-1, 3)
    np.testing.assert_allclose(of_seeds.mean(axis=1), means, rtol=1e-5)


def test_a_resumed_run_has_the_rates_that_the_hook_gave(tmp_path: Path):
    def once(state, scores):
        return rates_of_their_own(state, scores) if int(state.tick) == 1 else None

    whole = run(once)
    chunks = []
    run(
        once,
        run_dir=tmp_path,
        on_metrics=lambda row: chunks.append(row["kind"]),
        should_stop=lambda: chunks.count("train") >= 3,
    )
    resumed = run(once, run_dir=tmp_path, resume=tmp_path)
    np.testing.assert_array_equal(resumed.state.hyper.learning_rate, RATES)
    for ours, theirs in zip(actors(resumed), actors(whole), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_rate_that_is_changed_on_resume_is_that_of_the_command_and_the_others_the_checkpoints(
    tmp_path: Path,
):
    def once(state, scores):
        hyper = state.hyper._replace(learning_rate=RATES, entropy_coef=RATES)
        return state._replace(hyper=hyper) if int(state.tick) == 1 else None

    run(once, run_dir=tmp_path)
    other = jf.ppo(
        learning_rate=0.5,
        rollout_length=4,
        num_epochs=1,
        num_minibatches=1,
        policy_hidden=(4,),
        value_hidden=(4,),
    )
    resumed = jf.learn(
        tiny.line(discrete=True),
        other,
        total_steps=7 * 16,
        num_seeds=3,
        eval_episodes=2,
        eval_every=32,
        tell=lambda line: None,
        resume=tmp_path,
    )
    np.testing.assert_allclose(resumed.state.hyper.learning_rate, [0.5] * 3)
    np.testing.assert_array_equal(resumed.state.hyper.entropy_coef, RATES)
