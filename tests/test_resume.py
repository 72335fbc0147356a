"""A run that is interrupted and resumed gives the numbers of an uninterrupted run."""

import csv
import hashlib
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from many_commands import Commands
from tiny import line

import jaxrl_fast as jf
from jaxrl_fast.algorithms.registry import ALGORITHMS
from jaxrl_fast.assembly import build_graph
from jaxrl_fast.learning.run_graph import GraphOptions
from jaxrl_fast.runtime.graph import init
from jaxrl_fast.settings.schema import SWITCHES
from jaxrl_fast.training.checkpoints import CheckpointError, read_description
from jaxrl_fast.training.episodes import vectorize


def tiny_ppo(**options: Any) -> jf.Algorithm:
    return jf.ppo(**{"rollout_length": 8, "policy_hidden": (8,), "value_hidden": (8,), **options})


REPLAY: dict[str, Any] = {
    "updates_per_tick": 2,
    "batch_size": 8,
    "buffer_size": 160,
    "warmup_steps": 24,
    "n_step": 2,
}


def tiny_sac(**options: Any) -> jf.Algorithm:
    return jf.sac(**{**REPLAY, "policy_hidden": (8,), "critic_hidden": (8,), **options})


def quiet(line: str) -> None:
    pass


def stop_after(chunks: int) -> dict[str, Any]:
    """Return arguments of `learn` that end a run after this many chunks."""
    seen: list[str] = []
    return {
        "should_stop": lambda: seen.count("train") >= chunks,
        "on_metrics": lambda row: seen.append(row["kind"]),
    }


def assert_same_state(a: jf.Result, b: jf.Result) -> None:
    for x, y in zip(jax.tree.leaves(a.state), jax.tree.leaves(b.state), strict=True):
        x, y = (
            jax.random.key_data(z) if jnp.issubdtype(z.dtype, jax.dtypes.prng_key) else z
            for z in (x, y)
        )
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def table(folder: Path, name: str) -> list[list[str]]:
    """Return a table without the columns of times."""
    rows = list(csv.reader((folder / name).read_text().splitlines()))
    timed = {i for i, column in enumerate(rows[0]) if column == "wall_s" or column.endswith("_hz")}
    return [[cell for i, cell in enumerate(row) if i not in timed] for row in rows]


def interrupted(
    folder: Path, env: jf.VecEnv, algorithm: jf.Algorithm, chunks: tuple[int, ...], **options: Any
) -> Any:
    """Stop a run after each number of chunks, resume it each time, and let it finish."""
    for number, chunk in enumerate(chunks):
        options["resume"] = folder if number else None
        jf.learn(env, algorithm, run_dir=folder, tell=quiet, **stop_after(chunk), **options)
    return jf.learn(env, algorithm, run_dir=folder, tell=quiet, **{**options, "resume": folder})


ENVS = {
    "gymnax, recurrent ppo": (
        lambda: jf.make_env("cartpole", num_envs=4),
        lambda: tiny_ppo(recurrent_size=4),
        640,
        {},
    ),
    "gymnax, sac, two seeds": (
        lambda: jf.make_env("pendulum", num_envs=4),
        tiny_sac,
        240,
        {"num_seeds": 2},
    ),
    "line, ppo, rewards normalized, a chain of programs": (
        lambda: line(discrete=True),
        lambda: tiny_ppo(normalize_rewards=True),
        640,
        {"placement": "sharded_sampling", "devices": 2},
    ),
    "probe, sac, a schedule, all overlaps": (
        lambda: jf.make_env("probe", id="observation_continuous", num_envs=4),
        lambda: tiny_sac(tau=jf.Linear(0.1, 0.0)),
        240,
        {"overlap": "all"},
    ),
    "line, rainbow, two learners, overlap": (
        lambda: line(discrete=True),
        lambda: jf.dqn(
            **REPLAY, q_hidden=(8,), priority_exponent=0.6, value_head="quantiles", num_atoms=5
        ),
        240,
        {"learners": 2, "overlap": "sampling"},
    ),
    "line, td3 with options of critics, two seeds": (
        lambda: line(discrete=False),
        lambda: jf.td3(
            **REPLAY,
            policy_hidden=(8,),
            critic_hidden=(8,),
            num_critics=3,
            target_critics=2,
            critic_dropout=0.1,
            priority_exponent=0.6,
        ),
        240,
        {"num_seeds": 2},
    ),
    "line, flash_sac": (
        lambda: line(discrete=False),
        lambda: jf.flash_sac(**REPLAY, policy_hidden=(4,), critic_hidden=(4,), num_atoms=5),
        240,
        {},
    ),
    "line, fast_td3, overlap": (
        lambda: line(discrete=False),
        lambda: jf.fast_td3(**REPLAY, policy_hidden=(8,), critic_hidden=(8,), num_atoms=5),
        240,
        {"overlap": "sampling"},
    ),
    "line, reppo, two seeds": (
        lambda: line(discrete=False),
        lambda: jf.reppo(
            rollout_length=4, num_minibatches=2, policy_hidden=(8,), critic_hidden=(8,), num_atoms=5
        ),
        640,
        {"num_seeds": 2},
    ),
    "line, recurrent impala, overlap": (
        lambda: line(discrete=True),
        lambda: jf.impala(rollout_length=4, hidden=(8,), recurrent_size=4),
        640,
        {"overlap": "sampling"},
    ),
    "line, recurrent pqn": (
        lambda: line(discrete=True),
        lambda: jf.pqn(rollout_length=4, num_minibatches=2, q_hidden=(8,), recurrent_size=4),
        640,
        {},
    ),
    "brax without physics, ppo, two seeds": (
        lambda: jf.make_env("brax", id="fast", num_envs=4),
        tiny_ppo,
        640,
        {"num_seeds": 2},
    ),
    "brax, sac": (lambda: jf.make_env("inverted_pendulum", num_envs=2), tiny_sac, 120, {}),
}


@pytest.mark.parametrize("name", ENVS)
def test_resuming_equals_running_through_bit_for_bit(tmp_path, name):
    make_env, make_algorithm, total_steps, options = ENVS[name]
    env, algorithm = make_env(), make_algorithm()
    options = {"total_steps": total_steps, "eval_episodes": 2, **options}
    want = jf.learn(env, algorithm, run_dir=tmp_path / "through", tell=quiet, **options)
    # each start traces again, which takes seconds
    breaks = (3, 14) if name == "gymnax, sac, two seeds" else (5,)
    got = interrupted(tmp_path / "broken", env, algorithm, breaks, **options)
    assert_same_state(got, want)
    for file in ("metrics.csv", "evals.csv"):
        assert table(tmp_path / "broken", file) == table(tmp_path / "through", file)
    assert got.summary["env_steps"] == want.summary["env_steps"]
    assert got.summary["updates"] == want.summary["updates"]


def test_an_evaluation_that_a_signal_cut_short_is_made_up_for(tmp_path, monkeypatch):
    env, options = line(discrete=True), {"total_steps": 640, "eval_episodes": 2, "tell": quiet}
    want = jf.learn(env, tiny_ppo(), run_dir=tmp_path / "through", **options)
    seen: list[str] = []
    told: list[bool] = []
    monkeypatch.setattr("jaxrl_fast.training.evaluations.POLL_S", 0.0)

    def should_stop() -> bool:
        """Called before every chunk, and then while the first evaluation compiles, which takes long
        enough.
        """
        told.append(seen.count("train") >= 2)
        return told[-1]

    stopped = jf.learn(
        env,
        tiny_ppo(),
        run_dir=tmp_path / "broken",
        should_stop=should_stop,
        on_metrics=lambda row: seen.append(row["kind"]),
        eval_beside=False,
        **options,
    )
    assert seen == ["train", "train"] and True in told
    assert stopped.summary["eval_return_mean"] is None
    got = jf.learn(
        env, tiny_ppo(), run_dir=tmp_path / "broken", resume=tmp_path / "broken", **options
    )
    assert_same_state(got, want)
    assert table(tmp_path / "broken", "evals.csv") == table(tmp_path / "through", "evals.csv")


@pytest.fixture(scope="module")
def one_more_chunk(tmp_path_factory) -> Callable[..., jf.Result]:
    """Resume a stopped run for one chunk, as its arguments require."""
    env, algorithm, folder = (
        line(discrete=False),
        tiny_sac(),
        tmp_path_factory.mktemp("stopped") / "run",
    )
    options = {"total_steps": 240, "eval_episodes": 2, "eval_beside": False, "tell": quiet}
    jf.learn(env, algorithm, run_dir=folder, **stop_after(20), **options)
    return lambda **told: jf.learn(
        env, algorithm, resume=folder, **stop_after(1), **options, **told
    )


@pytest.fixture(scope="module")
def fused_chunk(one_more_chunk) -> jf.Result:
    return one_more_chunk()


@pytest.mark.parametrize(("placement", "devices"), [("data_parallel", 2), ("sharded_sampling", 4)])
def test_under_another_placement_it_goes_on_with_equal_numbers(
    one_more_chunk, fused_chunk, placement, devices
):
    got = one_more_chunk(placement=placement, devices=devices)
    assert len(got.summary["devices"]) == devices
    for a, b in zip(
        jax.tree.leaves(got.state.private), jax.tree.leaves(fused_chunk.state.private), strict=True
    ):
        if not jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(np.asarray(a, float), np.asarray(b, float), atol=1e-6)


def test_a_run_may_be_made_longer_and_its_rates_changed_which_is_told(tmp_path):
    env = line(discrete=True)
    jf.learn(env, tiny_ppo(), total_steps=640, eval_episodes=2, run_dir=tmp_path, tell=quiet)
    told: list[str] = []
    longer = jf.learn(
        env,
        tiny_ppo(learning_rate=0.0, clip_range=0.1),
        total_steps=960,
        eval_episodes=2,
        run_dir=tmp_path,
        resume=tmp_path,
        tell=told.append,
    )
    assert longer.summary["env_steps"] == 960
    assert "changed: algo.learning_rate: 0.0003 -> 0.0" in told
    assert "changed: algo.clip_range: 0.2 -> 0.1" in told
    assert "changed: total_steps: 640 -> 960" in told
    steps = [int(row[0]) for row in table(tmp_path, "metrics.csv")[1:]]
    assert steps == sorted(set(steps)) and steps[-1] == 960
    norms = [row["learn/actor/param_norm"] for row in longer.history if row["kind"] == "train"]
    assert len(set(norms)) == 1  # the new learning rate counts


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"algorithm": tiny_ppo(rollout_length=16)},
            "algo.rollout_length was 8 in .* and is 16: .* only hyper",
        ),
        (
            {"algorithm": tiny_ppo(policy_hidden=(9,))},
            r"algo.policy_hidden was \[8\] in .* and is \[9\]",
        ),
        ({"env": line(discrete=True, num_envs=8)}, "num_envs was 4 in .* and is 8"),
        ({"algorithm": tiny_sac(), "env": line(discrete=False)}, "algo was ppo in .* and is sac"),
        ({"env": jf.make_env("cartpole", num_envs=4)}, "env was line in .* and is cartpole"),
        ({"seed": 1}, "seed was 0 in .* and is 1"),
        ({"num_seeds": 2}, "num_seeds was 1 in .* and is 2"),
        ({"overlap": "all"}, "overlap was none in .* and is all"),
        (
            {"shards": 16},
            "shards was 8 in .* and is 16: a resumed run needs the settings it was started with",
        ),
        ({"total_steps": 32}, "the run is complete"),
        (
            {"algorithm": tiny_ppo(max_kl=0.02)},
            r"max_kl was 0.0 in .* and is 0.02: .* not from or to 0; start a new run",
        ),
        (
            {"algorithm": tiny_ppo(desired_kl=jf.Linear(0.02, 0.01))},
            r"desired_kl was 0.0 in .* and is linear.* not from",
        ),
    ],
)
def test_what_makes_another_run_is_refused_and_named(finished, tmp_path, changes, message):
    told = {
        "env": line(discrete=True),
        "algorithm": tiny_ppo(),
        "total_steps": 640,
        "eval_episodes": 2,
        **changes,
    }
    with pytest.raises(ValueError, match=message):
        jf.learn(**told, resume=finished, tell=quiet)


CONTINUOUS = "sac", "td3", "flash_sac", "iql", "td3_bc", "fast_td3", "reppo"


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_rates_that_a_resumed_run_cannot_switch_on_are_those_that_add_a_state(algo):
    of_several = {"two_credit": ("ippo", "mappo", "pqn_vdn"), "action_continuous": CONTINUOUS}
    probe = next((probe for probe, names in of_several.items() if algo in names), "observation")
    env = jf.make_env("probe", id=probe, num_envs=4)
    adamw = (
        {"optimizer": "adamw"}
        if "optimizer" in inspect.signature(ALGORITHMS[algo]).parameters
        else {}
    )

    def state_of(**options: float) -> Any:
        algorithm = ALGORITHMS[algo](**options, **adamw)
        graph, _ = build_graph(env, algorithm, GraphOptions(total_steps=1_000))
        return jax.eval_shape(
            lambda key: init(graph, key, algorithm.hyper), jax.random.key(0)
        ).private

    taken, plain = inspect.signature(ALGORITHMS[algo]).parameters, state_of()
    off = [
        name
        for name in ALGORITHMS[algo]().hyper._fields
        if name in taken and taken[name].default == 0.0
    ]
    assert {f"algo.{name}" for name in off if state_of(**{name: 0.02}) != plain} == {
        key for key in SWITCHES if key.removeprefix("algo.") in off
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """Return a run stopped after a tenth."""
    folder = tmp_path_factory.mktemp("finished")
    env = line(discrete=True)
    jf.learn(
        env,
        tiny_ppo(),
        total_steps=640,
        eval_episodes=2,
        run_dir=folder,
        tell=quiet,
        **stop_after(2),
    )
    return folder


def test_without_its_replay_a_run_fills_a_new_buffer_before_it_learns(tmp_path):
    env, algorithm = line(discrete=False), tiny_sac()
    options = {
        "total_steps": 240,
        "eval_episodes": 2,
        "run_dir": tmp_path,
        "checkpoints": jf.Checkpoints(replay=False),
    }
    told: list[str] = []
    stopped = jf.learn(env, algorithm, tell=told.append, **stop_after(30), **options)
    assert "without replay" in told[0] and "fills a new buffer before it updates again" in told[0]
    told.clear()
    resumed = jf.learn(env, algorithm, resume=tmp_path, tell=told.append, **options)
    assert any(
        "the replay buffer was not saved: the next 20 steps fill a new one" in line for line in told
    )
    losses = [row["learn/critic/critic_loss"] for row in resumed.history if row["kind"] == "train"]
    ticks = 24 // 4 - 1  # of the warm-up, which ends with the tick that fills the buffer
    assert [loss is None for loss in losses] == [True] * ticks + [False] * (len(losses) - ticks)
    assert resumed.summary["updates"] == stopped.summary["updates"] + 2 * (len(losses) - ticks)
    assert int(np.asarray(resumed.state.private["experience"].steps).max()) == len(losses)


def test_an_earlier_checkpoint_starts_a_branch_and_the_run_stays_as_it_is(tmp_path):
    env, algorithm = line(discrete=True), tiny_ppo()
    options = {"total_steps": 640, "eval_episodes": 2, "tell": quiet}
    through = jf.learn(
        env, algorithm, run_dir=tmp_path / "run", checkpoints=jf.Checkpoints(keep=99), **options
    )
    before = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    branch = jf.learn(
        env,
        algorithm,
        run_dir=tmp_path / "branch",
        resume=tmp_path / "run" / "checkpoints" / "192",
        **options,
    )
    assert_same_state(branch, through)
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == before
    assert int(table(tmp_path / "branch", "metrics.csv")[1][0]) > 192


def test_checkpoints_lie_at_the_steps_asked_for_and_remember_their_return(tmp_path):
    env = line(discrete=True)
    options = {
        "eval_every": 160,
        "eval_episodes": 2,
        "checkpoints": jf.Checkpoints(every=96, keep=99),
    }
    result = jf.learn(env, tiny_ppo(), total_steps=640, run_dir=tmp_path, tell=quiet, **options)
    steps = sorted(int(path.name) for path in (tmp_path / "checkpoints").iterdir())
    assert steps == [*range(96, 640, 96), 640]
    evaluated = {
        row["env_steps"]: row["eval_return_mean"] for row in result.history if row["kind"] == "eval"
    }
    for step in steps:
        score = read_description(tmp_path / "checkpoints" / str(step)).score
        assert score == (pytest.approx(evaluated[step]) if step in evaluated else None)


def test_a_folder_with_checkpoints_is_not_overwritten_by_a_new_run(finished):
    with pytest.raises(
        ValueError, match="contains checkpoints of a run: resume it, or write another run_dir"
    ):
        jf.learn(line(discrete=True), tiny_ppo(), total_steps=640, run_dir=finished, tell=quiet)


def test_a_world_with_keys_in_its_state_is_resumed(tmp_path):
    """Environments also carry typed keys, zero-sized leaves and several dtypes."""
    spec = jf.EnvSpec(
        "keys", jax.ShapeDtypeStruct((1,), jnp.float32), jf.Discrete(2), max_episode_steps=7
    )

    def reset(key, params):
        return {"key": key, "count": jnp.uint8(0), "none": jnp.zeros((0,))}, jnp.zeros(1)

    def step(state, action, key):
        ours, next_key = jax.random.split(state["key"])
        obs = jax.random.normal(ours, (1,))
        no = jnp.zeros((), bool)
        state = {"key": next_key, "count": state["count"] + jnp.uint8(1), "none": state["none"]}
        return state, jf.Timestep(obs, obs, obs[0] * action, no, no)

    env = vectorize(jf.Env(spec, reset, step), num_envs=4)
    options = {"total_steps": 640, "eval_episodes": 2, "num_seeds": 2}
    want = jf.learn(env, tiny_ppo(), **options)
    got = interrupted(tmp_path / "run", env, tiny_ppo(), (4,), **options)
    assert_same_state(got, want)


def test_a_checkpoint_of_learn_that_lacks_settings_resumes(tmp_path: Path):
    """Until 0.2.0, `learn` stored only the settings on which networks depend."""
    env, algorithm = line(discrete=True), tiny_ppo(initial_deviation=0.3, num_epochs=2)
    jf.learn(env, algorithm, total_steps=64, eval_every=0, run_dir=tmp_path, tell=quiet)
    for file in (tmp_path / "checkpoints").glob("*/description.json"):
        stored = json.loads(file.read_text())
        content = stored["content"]
        now = content["settings"]
        kept = ("total_steps", "num_envs", "seed", "num_seeds", "overlap", "algo.rollout_length")
        content["settings"] = {name: now[name] for name in kept} | {
            "env": now["made.env"],
            "env.arguments": now["made.arguments"],
            "algo": now["made.algo"],
            "algo.batch_size": 8,
            "algo.learning_rate": now["algo.learning_rate"],
        }
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        file.write_text(json.dumps({**stored, "digest": digest}))
    options: dict[str, Any] = dict(eval_every=0, resume=tmp_path, tell=quiet)
    assert jf.learn(env, algorithm, total_steps=128, **options).summary["env_steps"] == 128
    with pytest.raises(CheckpointError, match=r"algo\.rollout_length was 8 .* and is 16"):
        jf.learn(env, tiny_ppo(rollout_length=16), total_steps=128, **options)


def test_a_run_from_before_an_option_resumes_without_it(tmp_path: Path, commands: Commands):
    words = ["env=pendulum", "algo=ppo", "tuned=false", "num_envs=4", "algo.rollout_length=8"]
    words += ["algo.free_deviation=false"]
    words += [
        "algo.policy_hidden=[8]",
        "algo.value_hidden=[8]",
        "eval.every=0",
        "log=none",
        f"run_dir={tmp_path}/old",
    ]
    assert commands.run(tmp_path, "train", *words, "total_steps=64", trains=True).status == 0
    for file in (tmp_path / "old" / "checkpoints").glob("*/description.json"):
        stored = json.loads(file.read_text())
        content = stored["content"]
        for name in (
            "free_deviation",
            "clip_actions",
            "orthogonal",
            "share_torso",
            "normalize_values",
            "max_kl",
            "value_clip_range",
        ):
            del content["settings"][f"algo.{name}"]
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        file.write_text(json.dumps({**stored, "digest": digest}))
    resumed = [f"resume={tmp_path}/old", "total_steps=128", f"run_dir={tmp_path}/new"]
    done = commands.run(tmp_path, "train", *resumed, "algo.value_clip_range=0.5", trains=True)
    assert (
        done.status == 0
        and "changed: total_steps: 64 -> 128" in done.out
        and "max_kl" not in done.out
    )
    assert "changed: algo.value_clip_range: None -> 0.5" in done.out
    assert "free_deviation: false" in (tmp_path / "new" / "config.yaml").read_text()
