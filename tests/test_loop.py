"""The training loop: fixed chunks, one compilation, constant memory, a NaN reported with its step,
and run files.
"""

import csv
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

import jaxrl_fast as jf
from jaxrl_fast.assembly import bind, build_graph
from jaxrl_fast.training.job import plan_run
from jaxrl_fast.training.recorder import summarize_metrics
from jaxrl_fast.training.run_folder import RunFolder, write_summary
from jaxrl_fast.views.listeners import _steps_to_time


def counting_env(bad_step: int | None = None) -> jf.Env:
    """Counts its steps; gives a NaN reward at step ``bad_step`` of an episode."""
    spec = jf.EnvSpec(
        "counter", jax.ShapeDtypeStruct((1,), jnp.float32), jf.Discrete(2), max_episode_steps=50
    )

    def reset(key, params):
        return jnp.zeros((), jnp.int32), jnp.zeros(1)

    def step(state, action, key):
        state = state + 1
        reward = jnp.where(state == bad_step, jnp.nan, 1.0) if bad_step else jnp.float32(1.0)
        obs = state.astype(jnp.float32)[None]
        no = jnp.zeros((), bool)
        return state, jf.Timestep(obs, obs, reward, no, no)

    return jf.Env(spec, reset, step)


def tiny_ppo(**options) -> jf.Algorithm:
    return jf.ppo(
        **{
            "rollout_length": 8,
            "num_epochs": 4,
            "policy_hidden": (8,),
            "value_hidden": (8,),
            **options,
        }
    )


def test_a_nan_is_named_with_its_step():
    env = jf.vectorize(counting_env(bad_step=21), num_envs=4)
    with pytest.raises(
        jf.NonFiniteError, match=r"counter .* at step 21 of an environment, 84 steps over all 4"
    ):
        jf.learn(env, tiny_ppo(), total_steps=1000)


def test_a_nan_at_reset_is_named():
    single = counting_env()
    single = single._replace(
        reset=lambda key, params: (jnp.zeros((), jnp.int32), jnp.full(1, jnp.nan))
    )
    with pytest.raises(jf.NonFiniteError, match="its first observation"):
        jf.learn(jf.vectorize(single, num_envs=2), tiny_ppo(), total_steps=1000)


def test_a_diverging_update_is_named():
    with pytest.raises(
        jf.NonFiniteError, match=r"metric \S+ of fragment learn .* in tick .*learning_rate"
    ):
        jf.learn(
            jf.vectorize(counting_env(), num_envs=2),
            tiny_ppo(learning_rate=1e38),
            total_steps=10_000,
        )


@pytest.mark.parametrize("total_steps", [1, 31, 32, 33, 1000, 99_999, 3_300_000])
def test_a_plan_covers_the_steps_with_equal_chunks(total_steps):
    env = jf.vectorize(counting_env(), num_envs=4)
    _, agent = build_graph(env, tiny_ppo())
    plan = plan_run(env, agent, total_steps, None)
    steps = plan.num_chunks * plan.ticks_per_chunk * plan.steps_per_tick
    assert total_steps <= steps < total_steps + plan.ticks_per_chunk * plan.steps_per_tick
    assert plan.num_chunks <= 150


def test_one_compilation_whatever_the_number_of_chunks(caplog):
    def compilations(total_steps: int) -> int:
        caplog.clear()
        jf.learn(
            jf.vectorize(counting_env(), num_envs=4),
            tiny_ppo(),
            total_steps=total_steps,
            eval_episodes=2,
        )
        return sum(
            "Finished XLA compilation of jit(chunk)" in r.getMessage() for r in caplog.records
        )

    jax.config.update("jax_log_compiles", True)
    try:
        assert compilations(32 * 4) == 1
        assert compilations(32 * 60) == 1
    finally:
        jax.config.update("jax_log_compiles", False)


def test_a_placement_of_ones_own_as_in_the_docs_gives_the_same_numbers():
    code = (Path(__file__).parent.parent / "docs" / "concepts.md").read_text()
    code = code.partition("from jaxrl_fast.placement import")[1:]
    names: dict = {"jf": jf}
    exec("".join(code).partition("\njf.learn")[0], names)
    env = jf.vectorize(counting_env(), num_envs=4)
    options = dict(total_steps=32 * 5, eval_episodes=2, devices=2)
    want = jf.learn(env, tiny_ppo(), **options)
    got = jf.learn(env, tiny_ppo(), placement=names["learner_apart"], **options)
    assert len(got.summary["devices"]) == 2
    for a, b in zip(
        jax.tree.leaves(got.state.private), jax.tree.leaves(want.state.private), strict=True
    ):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("placement", "devices", "message"),
    [
        ("spread", None, "placement=spread: write one of fused, data_parallel"),
        ("fused", 99, r"devices=99: JAX has 4 here, write a number from 1 to 4"),
        ("fused", 0, "devices=0: write a number of at least 1"),
    ],
)
def test_a_placement_that_cannot_be_made_is_refused(placement, devices, message):
    env = jf.vectorize(counting_env(), num_envs=4)
    with pytest.raises(ValueError, match=message):
        jf.learn(env, tiny_ppo(), total_steps=32, placement=placement, devices=devices)


def test_memory_does_not_grow_with_the_number_of_steps():
    live = []
    env = jf.vectorize(counting_env(), num_envs=4)
    jf.learn(
        env,
        tiny_ppo(),
        total_steps=32 * 300,
        eval_every=32 * 30,
        eval_episodes=2,
        eval_beside=False,  # arrays of a running evaluation would count
        on_metrics=lambda row: live.append(sum(x.nbytes for x in jax.live_arrays())),
    )
    assert len(live) > 50
    assert max(live[len(live) // 2 :]) <= max(live[: len(live) // 2])


def test_metrics_count_only_ticks_in_which_a_fragment_was_active():
    env = jf.vectorize(counting_env(), num_envs=4)
    graph, _ = build_graph(env, tiny_ppo())
    graph = graph._replace(
        fragments=tuple(f._replace(start=2) if f.name == "learn" else f for f in graph.fragments)
    )
    metrics = {
        "sample/episodes": np.array([[0, 1, 0, 1]]),
        "sample/episode_return_sum": np.array([[0.0, 10.0, 0.0, 20.0]]),
        "sample/episode_length_sum": np.array([[0, 5, 0, 7]]),
        "learn/loss": np.array([[0.0, 0.0, 1.0, 3.0]]),
    }
    row = summarize_metrics(graph, metrics, 0, 4)
    assert row == {"episodes": 2, "episode_return": 15.0, "episode_length": 6.0, "learn/loss": 2.0}


def test_a_run_folder_holds_what_the_design_names(tmp_path):
    env = jf.vectorize(counting_env(), num_envs=4)
    result = jf.learn(
        env,
        tiny_ppo(),
        total_steps=320,
        num_seeds=2,
        eval_every=160,
        eval_episodes=3,
        run_dir=tmp_path,
    )
    rows = list(csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines()))
    assert [int(r["env_steps"]) for r in rows] == [32 * (i + 1) for i in range(10)]
    episodes = list(csv.DictReader((tmp_path / "evals.csv").read_text().splitlines()))
    assert set(episodes[0]) == {"seed", "env_steps", "wall_s", "return", "length"}
    assert len(episodes) == 2 * 2 * 3
    assert {e["return"] for e in episodes} == {"50.0"}
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (
        summary["eval_return_mean"] == 50.0
        and summary["updates"] == result.summary["updates"] == 9 * 16
    )
    assert summary["update_frame_hz"] == pytest.approx(summary["update_hz"] * summary["batch_size"])
    assert (tmp_path / "curve.png").stat().st_size > 5000
    assert (tmp_path / "policy" / "policy.json").exists()
    assert list(tmp_path.glob("events.out.tfevents*"))


def test_stopping_between_chunks_saves_at_once_and_writes_without_an_evaluation(tmp_path):
    env = jf.vectorize(counting_env(), num_envs=4)
    rows = []
    result = jf.learn(
        env,
        tiny_ppo(),
        total_steps=32 * 40,
        eval_episodes=2,
        on_metrics=rows.append,
        run_dir=tmp_path,
        should_stop=lambda: len(rows) >= 3,
    )
    assert [row["kind"] for row in rows] == ["train", "train", "train"]
    assert result.summary["env_steps"] == 3 * 32
    assert result.summary["eval_return_mean"] is None
    assert (tmp_path / "summary.json").exists()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["96"]


def test_a_resumed_table_has_no_row_past_the_checkpoint_and_no_half_row(tmp_path):
    (tmp_path / "metrics.csv").write_text("env_steps,updates\n32,1\n64,2\n96,3\n12")
    (tmp_path / "evals.csv").write_text(
        "seed,env_steps,wall_s,return,length\n0,64,1.0,5.0,5\n0,96,1.5,6.0,6\n"
    )
    with RunFolder(tmp_path, resume_at=64) as folder:
        folder.add_metrics({"kind": "train", "env_steps": 96, "updates": 30})
    assert (tmp_path / "metrics.csv").read_text().splitlines() == [
        "env_steps,updates",
        "32,1",
        "64,2",
        "96,30",
    ]
    assert (tmp_path / "evals.csv").read_text().splitlines()[1:] == ["0,64,1.0,5.0,5"]


def test_a_damaged_summary_of_an_earlier_start_is_replaced(tmp_path):
    (tmp_path / "summary.json").write_text("{")
    write_summary(tmp_path, {"env_steps": 3})
    assert json.loads((tmp_path / "summary.json").read_text()) == {"env_steps": 3}


@pytest.mark.parametrize("name", ["total_steps", "num_seeds", "eval_episodes"])
def test_numbers_that_must_be_positive(name):
    arguments = {"total_steps": 100, name: 0}
    with pytest.raises(ValueError, match=f"{name}=0"):
        jf.learn(jf.vectorize(counting_env(), num_envs=2), tiny_ppo(), **arguments)


def test_an_unwritable_folder_is_refused_before_anything_slow(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot write to the run folder"):
        jf.learn(
            jf.vectorize(counting_env(), num_envs=2),
            tiny_ppo(),
            total_steps=100,
            run_dir=tmp_path / "file" / "run",
        )


@pytest.mark.parametrize("times", [[30.0, 74.0], [10.0, 74.0], [50.0]])
def test_the_clock_of_a_curve_never_shows_a_time_before_the_run(times):
    steps = np.array([16_000.0, 32_000.0])[: len(times)]
    to_time, to_steps = _steps_to_time(steps, np.array(times))
    assert to_time(0.0) >= 0.0
    assert to_steps(to_time(8000.0)) == pytest.approx(8000.0)


def test_a_run_beyond_the_counters_is_refused():
    env = tiny.line(discrete=True, num_envs=2)
    agent = bind(jf.dqn(buffer_size=64, batch_size=4, warmup_steps=8), env.spec, env.num_envs)
    assert plan_run(env, agent, 2**31, None).num_chunks > 0
    with pytest.raises(
        ValueError, match="total_steps=2,147,483,649: write num_envs=3 or fewer steps"
    ):
        plan_run(env, agent, 2**31 + 1, None)
