"""Atari games: the workers' observations, the data for learning and evaluation, and the commands."""

import json
import sys

import numpy as np
import pytest
from many_commands import Commands

import jaxrl_fast as jf
from jaxrl_fast.core import Discrete
from jaxrl_fast.envs.host_env import HostEnv, HostStep

pytest.importorskip("ale_py")
pytest.importorskip("cv2")

HERE = {"workers": 0, "num_groups": 1}


def game(id: str, num_envs: int = 2, pool=HERE, **options) -> HostEnv:
    env = jf.make_env("atari", id=id, num_envs=num_envs, pool=pool, **options)
    assert isinstance(env, HostEnv)
    return env


def played(env: HostEnv, steps: int, seed: int = 0) -> list[HostStep]:
    """Play random actions."""
    env.reset(seed)
    rng, size = np.random.default_rng(seed), env.num_envs // env.num_groups
    done = []
    for _ in range(steps):
        for group in range(env.num_groups):
            env.send(rng.integers(0, env.spec.action.num_actions, size), group)
        done += [env.recv(group) for group in range(env.num_groups)]
    env.close()
    return done


@pytest.mark.parametrize("id", ["Pong", "ALE/Pong-v5"])
def test_a_step_gives_one_grey_frame_and_a_policy_sees_four(id: str):
    env = game(id)
    assert (env.spec.obs.shape, env.spec.obs.dtype, env.spec.action) == (
        (84, 84, 1),
        np.uint8,
        Discrete(6),
    )
    assert (env.spec.frame_stack, env.spec.max_episode_steps) == (4, 27_000)
    frames = np.stack([step.obs for step in played(env, 30)])
    assert (frames.dtype, frames.shape) == (np.uint8, (30, 2, 84, 84, 1))
    # the ball changes its position
    assert all((frames[t] != frames[t + 1]).any() for t in range(20, 29))
    assert frames[0].std() > 10


def test_the_last_two_frames_of_a_step_are_joined():
    """Many games draw a sprite in every second frame only."""
    options = dict(noop_max=0, sticky=False)
    joined, alone = (
        np.stack(
            [step.obs for step in played(game("SpaceInvaders", 1, frame_skip=n, **options), 60)]
        )
        for n in (2, 1)
    )
    assert joined.mean() >= alone.mean()
    assert not np.array_equal(joined[:30], alone[1:60:2])


def test_learning_gets_signs_and_lives_while_returns_are_those_of_whole_games():
    options = dict(noop_max=3, sticky=True)
    plain = played(game("SpaceInvaders", clip_rewards=False, **options), 700)
    clipped = played(game("SpaceInvaders", life_loss=True, **options), 700)
    lives = over = 0
    for one, other in zip(plain, clipped, strict=True):
        np.testing.assert_array_equal(one.obs, other.obs)  # a life is lost without a separate step
        np.testing.assert_array_equal(np.sign(one.reward), other.reward)
        lost = other.terminated & ~one.terminated
        assert not other.episode_length[lost].any()
        np.testing.assert_array_equal(one.episode_return[~lost], other.episode_return[~lost])
        np.testing.assert_array_equal(one.episode_length[~lost], other.episode_length[~lost])
        lives, over = lives + lost.sum(), over + (one.terminated & other.terminated).sum()
    assert lives >= 3 and over >= 1
    assert (
        max(step.episode_return.max() for step in clipped)
        > max(step.reward.max() for step in clipped)
        == 1
    )


def test_workers_clip_as_this_process_does_and_evaluation_plays_whole_games():
    options = dict(life_loss=True, noop_max=3)
    here = played(game("SpaceInvaders", 4, {"workers": 0}, **options), 200)
    there = played(game("SpaceInvaders", 4, {"workers": 2}, **options), 200)
    for one, other in zip(here, there, strict=True):
        for left, right in zip(one, other, strict=True):
            np.testing.assert_array_equal(left, right)
    env = game("SpaceInvaders", **options)
    judged = played(env.another(2), 400)
    assert max(step.reward.max() for step in judged) >= 5
    assert all((step.episode_length > 0).all() for step in judged)
    env.close()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("env.id=Pongg", "env.id=Pongg: Atari has no such game; nearest: Pong"),
        (
            "env.id=Pong +env.screen_size=no",
            "env.screen_size='no': write a whole number",
        ),
        ("env.id=Pong +env.wings=2", "Pong cannot be made: TypeError"),
        ("env.id=Pong algo.normalize_observations=true", "Pong, whose observations are images"),
        ("env.id=Pong pool.backend=envpool", "leave it out for env=atari"),
    ],
)
def test_what_makes_no_game_is_refused_in_one_line(
    commands: Commands, tmp_path, words: str, says: str
):
    ended = commands.run(tmp_path, "train", "env=atari", *words.split(), "run_dir=run")
    assert (ended.status, ended.err.count("\n")) == (2, 1)
    assert says in ended.err


def test_a_missing_package_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch):
    for package in ("cv2", "ale_py"):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ValueError, match=r"pip install 'jaxrl_fast\[atari\]'"):
            game("Pong")


def test_the_commands_train_and_evaluate_a_game(commands: Commands, tmp_path):
    small = [
        "num_envs=4",
        "+env.screen_size=36",
        "env.noop_max=1",
        "env.episode_length=40",
        "algo.rollout_length=8",
        "algo.num_epochs=1",
        "algo.num_minibatches=1",
        "algo.policy_hidden=[8]",
        "algo.value_hidden=[8]",
        "eval.episodes=2",
        "eval.every=1000",
        "eval.beside=false",
        "checkpoint.every=1000",
        "pool.workers=2",
    ]
    words = ["env=atari", "env.id=Pong", *small, "total_steps=128", "run_dir=run"]
    trained = commands.run(tmp_path, "train", *words, trains=True)
    assert (
        trained.status,
        "settings tuned for this environment (tuned/atari_ppo.yaml)" in trained.out,
    ) == (0, True)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["env_steps"], summary["env_id"]) == (128, "Pong")
    assert summary["eval_return_mean"] <= 0
    judged = commands.run(tmp_path, "evaluate", "run", "episodes=3", trains=True)
    assert (judged.status, "3 episodes" in judged.out) == (0, True)
    policy = jf.load_policy(tmp_path / "run" / "policy")
    assert policy.spec.frame_stack == 4
    frame = np.zeros((1, 36, 36, 1), np.uint8)
    action, carry = policy.act(
        policy.params, policy.initial_carry(1), frame, np.ones(1, bool), None
    )
    assert action.shape == (1,) and carry.frames.shape == (1, 36, 36, 3)
