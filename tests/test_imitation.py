"""Teachers: their actions in a student's rollouts, and how their weight falls."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from many_commands import Commands
from tiny import line

import jaxrl_fast as jf
from jaxrl_fast.core import Extras, Transition
from jaxrl_fast.envs.env import Env, VecEnv, vectorize
from jaxrl_fast.policy.teacher import TEACHER, entries_for, labeling

REPLAY: dict[str, Any] = dict(
    batch_size=8, buffer_size=400, warmup_steps=8, policy_hidden=(8,), critic_hidden=(8,)
)
ROLLOUTS: dict[str, Any] = dict(rollout_length=8, num_minibatches=2)
STUDENTS = {
    "ppo": (
        True,
        lambda **more: jf.ppo(
            **ROLLOUTS, num_epochs=2, policy_hidden=(8,), value_hidden=(8,), **more
        ),
    ),
    "ppo, one network": (
        True,
        lambda **more: jf.ppo(**ROLLOUTS, num_epochs=2, share_torso=True, **more),
    ),
    "ppo, continuous, with a memory": (
        False,
        lambda **more: jf.ppo(**ROLLOUTS, num_epochs=2, recurrent_size=4, **more),
    ),
    "impala": (True, lambda **more: jf.impala(rollout_length=8, hidden=(8,), **more)),
    "sac": (False, lambda **more: jf.sac(**REPLAY, **more)),
    "sac with a memory": (
        False,
        lambda **more: jf.sac(**REPLAY, recurrent_size=4, sequence_length=2, burn_in=1, **more),
    ),
    "sac_discrete": (True, lambda **more: jf.sac_discrete(**REPLAY, **more)),
    "iql": (False, lambda **more: jf.iql(**REPLAY, **more)),
    "reppo": (
        False,
        lambda **more: jf.reppo(
            **ROLLOUTS, num_epochs=2, policy_hidden=(8,), critic_hidden=(8,), **more
        ),
    ),
    "td3": (False, lambda **more: jf.td3(**REPLAY, **more)),
    "flash_sac": (
        False,
        lambda **more: jf.flash_sac(
            **{**REPLAY, "policy_hidden": (4,), "critic_hidden": (4,)}, **more
        ),
    ),
}


def quiet(message: str) -> None:
    """Drop a message."""


def teacher_of(*, discrete: bool, **options: Any) -> jf.Policy:
    """Return the policy of a short run, which normalizes observations."""
    small: dict[str, Any] = dict(
        **ROLLOUTS, policy_hidden=(8,), value_hidden=(8,), learning_rate=1e-2, **options
    )
    return jf.learn(
        line(discrete=discrete), jf.ppo(**small), total_steps=320, eval_every=0, tell=quiet
    ).policy


@pytest.fixture(scope="module")
def teachers() -> dict[bool, jf.Policy]:
    return {discrete: teacher_of(discrete=discrete) for discrete in (False, True)}


def in_dictionary(*, discrete: bool) -> VecEnv:
    """Build the point on a line whose observation is an entry next to another one."""
    whole = line(discrete=discrete).env
    assert isinstance(whole, Env)

    def named(obs: jax.Array) -> dict[str, jax.Array]:
        return {"point": obs, "twice": 2.0 * obs}

    def reset(key: jax.Array, params: Any) -> tuple:
        state, obs = whole.reset(key, params)
        return state, named(obs)

    def step(state: Any, action: jax.Array, key: jax.Array) -> tuple:
        state, ts = whole.step(state, action, key)
        return state, ts._replace(obs=named(ts.obs), next_obs=named(ts.next_obs))

    spec = whole.spec._replace(obs={"point": whole.spec.obs, "twice": whole.spec.obs})
    return vectorize(whole._replace(spec=spec, reset=reset, step=step), num_envs=4)


def rollout_of(length: int, seed: int = 0) -> Transition:
    """Make random steps of 3 environments with some episode ends."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(length, 3, 2)).astype(np.float32)
    first = rng.random((length, 3)) < 0.3
    flat: Any = np.zeros((length, 3), np.float32)
    return Transition(
        jnp.asarray(obs), flat, flat, obs, flat, flat, jnp.asarray(first), Extras({}, {})
    )


@pytest.mark.parametrize("memory", [0, 4])
def test_a_teacher_says_what_it_would_do_in_each_step(memory: int) -> None:
    """Also across rollouts: a teacher with a memory goes on where the last one ended."""
    policy = teacher_of(discrete=False, recurrent_size=memory)
    apply = labeling(policy, entries_for(policy.spec, policy.spec, "ppo"))
    agent = jf.with_teacher(jf.sac(**REPLAY), policy).build(line(discrete=False).spec, 3)
    assert agent.transform is not None
    state = agent.transform.init()
    carry, key = policy.initial_carry(3), jax.random.key(0)
    for number in range(2):
        rollout = rollout_of(5, number)
        labeled, state = apply(rollout, {}, state, None, key)
        for t in range(5):
            action, carry = policy.act_arrays(
                policy.params, carry, rollout.obs[t], rollout.first[t], key
            )
            np.testing.assert_allclose(
                labeled.extras.decision[TEACHER][t], action, rtol=1e-5, atol=1e-6
            )


@pytest.mark.parametrize("name", STUDENTS)
def test_a_student_becomes_like_its_teacher_and_then_learns_alone(
    name: str, teachers: dict[bool, jf.Policy]
) -> None:
    discrete, make = STUDENTS[name]
    taught = jf.with_teacher(make(learning_rate=1e-2), teachers[discrete], share=0.5)
    result = jf.learn(line(discrete=discrete), taught, total_steps=1_600, eval_every=0, tell=quiet)
    (key,) = [key for key in result.history[-1] if key.endswith("/teacher_loss")]
    losses = [row[key] for row in result.history if row.get(key) is not None]
    assert min(losses) < 0.5 * losses[0]
    assert result.history[-1]["rate/teacher_weight"] == 0.0
    assert result.policy.made_by["algo"] == taught.name


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_the_gradient_is_the_teachers_at_first_and_the_algorithms_own_in_the_end(
    name: str, teachers: dict[bool, jf.Policy]
) -> None:
    discrete, make = STUDENTS[name]
    runs = {}
    env, options = line(discrete=discrete), dict(total_steps=64, eval_every=0, tell=quiet)
    plain = make()
    for weight in (0.0, 1.0):
        taught = jf.with_teacher(plain, teachers[discrete])
        taught = taught._replace(hyper=taught.hyper._replace(teacher_weight=weight))
        runs[weight] = jf.learn(env, taught, **options).state.channels
    alone = jf.learn(env, plain, **options).state.channels
    for part in {"actor", "critic"} & set(alone):
        jax.tree.map(np.testing.assert_array_equal, runs[0.0][part], alone[part])
    differ = jax.tree.map(lambda a, b: bool(jnp.any(a != b)), runs[1.0]["actor"], alone["actor"])
    assert any(jax.tree.leaves(differ))


@pytest.mark.parametrize("name", ["ppo, continuous, with a memory", "sac"])
def test_placements_and_seeds_change_a_taught_run_only_by_rounding(
    name: str, teachers: dict[bool, jf.Policy]
) -> None:
    discrete, make = STUDENTS[name]
    taught, env = jf.with_teacher(make(), teachers[discrete]), line(discrete=discrete)
    options: dict[str, Any] = dict(total_steps=96, eval_every=0, tell=quiet)
    alone = jf.learn(env, taught, **options).state.channels
    sharded = jf.learn(env, taught, placement="data_parallel", devices=2, **options).state.channels
    apart = jf.learn(env, taught, placement="sampler_learner", devices=2, **options).state.channels
    seeds = jf.learn(env, taught, num_seeds=2, **options).state.channels
    parts = [part for part in ("actor", "agent") if part in alone]
    for other in (sharded, apart, seeds):
        for part in parts:
            for a, b in zip(
                jax.tree.leaves(alone[part]), jax.tree.leaves(other[part]), strict=True
            ):
                np.testing.assert_allclose(a[0], b[0], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("memory", [0, 4])
def test_a_resumed_taught_run_equals_an_uninterrupted_one(memory: int, tmp_path: Path) -> None:
    teacher = teacher_of(discrete=False, recurrent_size=memory)
    env, taught = line(discrete=False), jf.with_teacher(jf.sac(**REPLAY), teacher)
    options: dict[str, Any] = dict(total_steps=240, eval_every=0, tell=quiet)
    whole = jf.learn(env, taught, run_dir=tmp_path / "whole", **options).state
    rows: list[Any] = []
    stop: Any = dict(on_metrics=rows.append, should_stop=lambda: len(rows) >= 20)
    jf.learn(env, taught, run_dir=tmp_path / "cut", **stop, **options)
    last = jf.learn(env, taught, run_dir=tmp_path / "cut", resume=tmp_path / "cut", **options).state
    for a, b in zip(jax.tree.leaves(whole.private), jax.tree.leaves(last.private), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_teacher_reads_only_the_entries_that_it_was_trained_on() -> None:
    """And the student only its own keys."""
    env = in_dictionary(discrete=False)
    teacher = jf.learn(
        env, jf.sac(**REPLAY, policy_keys=("twice",)), total_steps=80, eval_every=0, tell=quiet
    ).policy
    half = teacher._replace(spec=teacher.spec._replace(obs={"twice": teacher.spec.obs["twice"]}))
    assert set(entries_for(half.spec, env.spec, "sac")({"point": 1, "twice": 2})) == {"twice"}
    taught = jf.with_teacher(jf.ppo(**ROLLOUTS, policy_keys=("point",)), teacher)
    student = jf.learn(env, taught, total_steps=320, eval_every=0, tell=quiet).policy
    obs = {"point": jnp.ones((1, 2)), "twice": jnp.ones((1, 2))}
    other = {**obs, "twice": jnp.full((1, 2), 9.0)}
    np.testing.assert_array_equal(student(obs), student(other))


def test_what_cannot_teach_is_refused_in_one_line(teachers: dict[bool, jf.Policy]) -> None:
    def learn(env: VecEnv, algorithm: jf.Algorithm) -> None:
        jf.learn(env, algorithm, total_steps=80)

    with pytest.raises(ValueError, match="with_teacher takes a policy"):
        jf.with_teacher(jf.ppo(), "runs/latest")
    with pytest.raises(ValueError, match="an algorithm without a teacher"):
        jf.with_teacher(jf.with_teacher(jf.ppo(), teachers[True]), teachers[True])
    flags, lengths = np.zeros(99, bool), np.array([50, 49])
    data = jf.Dataset(
        {"": np.zeros((101, 2))}, np.zeros((99, 1)), np.zeros(99), flags, flags, lengths
    )
    with pytest.raises(ValueError, match="leave teacher or data out"):
        jf.learn(
            line(discrete=False),
            jf.with_teacher(jf.sac(**REPLAY), teachers[False]),
            total_steps=80,
            data=data,
        )
    with pytest.raises(ValueError, match="teacher: algo=dqn has values and no policy"):
        learn(line(discrete=True), jf.with_teacher(jf.dqn(epsilon=0.1), teachers[True]))
    with pytest.raises(ValueError, match="whose actions differ from those in line"):
        learn(line(discrete=True), jf.with_teacher(jf.ppo(), teachers[False]))
    with pytest.raises(ValueError, match="train a teacher on entries of the student's observation"):
        learn(in_dictionary(discrete=False), jf.with_teacher(jf.ppo(), teachers[False]))
    with pytest.raises(ValueError, match=r"teacher_share=0.0: write a number above 0"):
        jf.with_teacher(jf.ppo(), teachers[False], share=0.0)


def test_a_command_teaches_and_resumes_without_the_teachers_folder(
    tmp_path: Path, commands: Commands
) -> None:
    def call(*words: str, status: int = 0) -> str:
        ended = commands.run(tmp_path, "train", *words, trains=True)
        assert ended.status == status, ended.err
        return ended.err if status else ended.out

    small = [
        "env=pendulum",
        "num_envs=4",
        "eval.episodes=4",
        "eval.beside=false",
        "algo.policy_hidden=[8]",
    ]
    call(*small, "algo=sac", "total_steps=400", "algo.critic_hidden=[8]", "run_dir=teacher")
    student = ["algo=ppo", "algo.rollout_length=16", "total_steps=640", "run_dir=student"]
    assert "the policy of teacher teaches it" in call(*small, *student, "teacher=teacher")
    shutil.rmtree(tmp_path / "teacher")
    call("resume=student", "total_steps=1280")
    assert json.loads((tmp_path / "student" / "summary.json").read_text())["env_steps"] == 1280
    told = call(*small, *student, "run_dir=another", "teacher=teacher", status=2)
    assert "teacher holds no policy" in told
