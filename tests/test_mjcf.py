"""A robot from a MuJoCo file: MJX against MuJoCo, the user's functions, wrong files and options,
and the tutorial.
"""

import re
import shlex
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_fast as jf
from jaxrl_fast.envs import from_mjcf

TUTORIAL = Path(__file__).parent.parent / "docs" / "tutorials" / "robot.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TUTORIAL.read_text(), flags=re.DOTALL)


XML = blocks("xml")[0]
SENSORS = '<sensor><jointpos name="where" joint="slide"/><jointvel name="turning" joint="hinge"/></sensor></mujoco>'


@pytest.fixture
def pole(tmp_path):
    path = tmp_path / "pole.xml"
    path.write_text(XML.replace("</mujoco>", SENSORS))
    return str(path)


def reward(data, action):
    return 1.0 - data.qpos[1] ** 2 + 0.1 * action[0]


def fallen(data):
    return data.qpos[1] ** 2 > 0.04


def start(model, uniform):
    return np.array([0.1, 0.15]), np.array([0.0, 0.2])


def heavier(model, uniform):
    return {"body_mass": model.body_mass * uniform(2.0, 3.0, model.body_mass.shape)}


def test_mjx_and_mujoco_take_the_same_steps(pole):
    options = dict(reward=reward, terminated=fallen, start=start, reset_noise=0.0)
    env, host = from_mjcf.make(pole, **options), from_mjcf.HostRobot(pole, **options)
    state, obs = jax.jit(env.reset)(jax.random.key(0), ())
    seen, _ = host.reset(seed=0)
    step, ends = jax.jit(env.step), []
    np.testing.assert_allclose(obs, seen, atol=1e-6)
    for action in np.random.default_rng(0).uniform(-1, 1, (25, 1)).astype(np.float32):
        state, ts = step(state, action, jax.random.key(1))
        seen, own, over, _, _ = host.step(action)
        np.testing.assert_allclose(ts.obs, seen, atol=1e-3)
        np.testing.assert_allclose(ts.reward, own, atol=1e-3)
        assert bool(ts.terminated) == over
        ends.append(over)
    assert ends[-1] and not ends[0]


def test_a_reset_is_not_drawn_for_each_step(pole):
    for given, rows in (({}, 1), ({"terminated": fallen}, 16)):
        env = from_mjcf.make(pole, reward=reward, **given)
        bank = jax.eval_shape(
            lambda key, env=env: jf.vectorize(env, num_envs=8).draw_fresh(key, 64),
            jax.random.key(0),
        )
        # where it may fall at once, each of 4 starts once
        assert jax.tree.leaves(bank)[0].shape[:2] == (
            rows,
            8,
        )


def test_each_episode_has_its_own_model_and_the_file_s_comes_back(pole):
    options = dict(reward=reward, randomize=heavier)
    env, host = from_mjcf.make(pole, **options), from_mjcf.HostRobot(pole, **options)
    before = host.model.body_mass.copy()
    masses = [env.reset(jax.random.key(i), ())[0].changed["body_mass"] for i in range(2)]
    assert not np.array_equal(*masses)
    for mass in masses:
        assert (np.asarray(mass)[1:] >= 1.99 * before[1:]).all()
    for seed in range(3):
        host.reset(seed=seed)
        assert (
            (host.model.body_mass[1:] >= 2 * before[1:])
            & (host.model.body_mass[1:] <= 3 * before[1:])
        ).all()
    heavy = env.step(env.reset(jax.random.key(0), ())[0], jnp.ones(1), jax.random.key(0))[1].obs
    light = from_mjcf.make(pole, reward=reward)
    light = light.step(light.reset(jax.random.key(0), ())[0], jnp.ones(1), jax.random.key(0))[1].obs
    assert abs(float(heavy[2])) < 0.7 * abs(float(light[2]))  # the same push moves it less


@pytest.mark.parametrize("backend", from_mjcf.BACKENDS)
def test_observations_are_positions_and_velocities_or_sensors_or_a_function(pole, backend):
    for given, size in (
        ({}, 4),
        ({"observe": ["turning", "where"]}, 2),
        ({"observe": lambda data: data.qpos[:1]}, 1),
    ):
        env = jf.make_env("mjcf", file=pole, reward=reward, backend=backend, num_envs=2, **given)
        assert env.spec.obs.shape == (size,)
        assert env.spec.max_episode_steps == 1_000
        if backend == "mujoco":
            env.close()


BAD = [
    (dict(reward=None), "needs a reward"),
    (dict(file="none.xml"), "there is no such file in"),
    (dict(observe=["wrong"]), "has no sensor 'wrong': write some of where, turning"),
    (dict(frame_skip=0), "env.frame_skip=0"),
    (dict(episode_length=0), "env.episode_length=0"),
    (dict(reset_noise=-1.0), "env.reset_noise=-1.0: write"),
    (dict(reward="nowhere.reward"), "nowhere"),
    (dict(reset_noise="big"), "env.reset_noise='big': write a number"),
    (dict(observe=5), "env.observe=5: write a function"),
    (dict(observe=[]), "env.observe=[]: write a function"),
    (dict(observe=lambda data: data.nothing), "nothing"),
    (dict(rewards=reward), "mjcf has no option 'rewards': write one of backend, episode_length"),
]


@pytest.mark.parametrize("backend", from_mjcf.BACKENDS)
@pytest.mark.parametrize(("options", "message"), BAD)
def test_a_wrong_option_is_one_line(pole, backend, options, message):
    given = {"file": pole, "reward": reward, "backend": backend, "num_envs": 2} | options
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        jf.make_env("mjcf", **given)
    assert "\n" not in str(error.value)


WRONG_FILES = [
    (XML.replace('ctrlrange="-1 1"', ""), "its actuator 0 has no ctrlrange"),
    (re.sub("<actuator>.*</actuator>", "", XML), "it has no actuator"),
    ("<mujoco><nothing/></mujoco>", "MuJoCo cannot read it"),
]


@pytest.mark.parametrize(("text", "message"), WRONG_FILES)
def test_a_wrong_file_is_one_line(tmp_path, text, message):
    (tmp_path / "robot.xml").write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        jf.make_env("mjcf", file=str(tmp_path / "robot.xml"), reward=reward, num_envs=2)
    assert "\n" not in str(error.value)


def test_a_reward_that_fails_is_one_line(pole):
    with pytest.raises(ValueError, match=r"cannot be compiled: .*wrong_name.*env.backend=mujoco"):
        jf.make_env("mjcf", file=pole, reward=lambda data, action: data.wrong_name, num_envs=2)


def command(text: str) -> list[str]:
    return shlex.split(text)[3:]


@pytest.mark.parametrize("backend", from_mjcf.BACKENDS)
def test_the_tutorial_balances_the_pole(tmp_path, commands, backend):
    """As written, but shorter than its 30,000 steps, after which the return is 996."""
    (tmp_path / "pole.xml").write_text(XML)
    (tmp_path / "pole.py").write_text(blocks("python")[0])
    lines = [
        line
        for line in TUTORIAL.read_text().splitlines()
        if line.startswith("python -m jaxrl_fast.train env=mjcf")
    ]
    words = [
        *command(lines[0]),
        f"env.backend={backend}",
        "total_steps=1_500",
        "eval.episodes=4",
        "eval.every=1_500",
    ]
    words += ["num_envs=4", "env.episode_length=100", "run_dir=run"]
    done = commands.run(tmp_path, "train", *words, trains=True)
    assert "greedy return" in done.out, done
    assert (tmp_path / "run" / "policy").is_dir()


def test_the_tutorials_simulator_trains(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    (tmp_path / "pendulums.py").write_text(blocks("python")[1])
    monkeypatch.syspath_prepend(str(tmp_path))
    env = jf.make_env("custom", make="pendulums.make", num_envs=16)
    assert env.on_device is not None
    result = jf.learn(env, jf.sac(rollout_length=4, batch_size=32), total_steps=2_000)
    assert np.isfinite(result.summary["eval_return_mean"])
    env.close()


FREE = """<mujoco><worldbody><body name="ball" pos="0 0 1"><freejoint/><geom size="0.1"/></body>
<body name="arm"><joint name="hinge" axis="0 1 0"/><geom type="capsule" fromto="0 0 0 0 0 0.5" size="0.05"/></body>
</worldbody>
<actuator><general joint="hinge" dyntype="filter" dynprm="0.1" ctrlrange="-1 1"/></actuator>
<keyframe><key qpos="0 0 2 1 0 0 0 0.3" act="0.7"/></keyframe></mujoco>"""


@pytest.fixture
def free(tmp_path):
    (tmp_path / "free.xml").write_text(FREE)
    return str(tmp_path / "free.xml")


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_an_episode_begins_at_the_keyframe_with_its_activation_and_unit_quaternions(free, noise):
    env = from_mjcf.make(free, reward=lambda data, action: 0.0, reset_noise=noise)
    host = from_mjcf.HostRobot(free, reward=lambda data, action: 0.0, reset_noise=noise)
    for obs in (env.reset(jax.random.key(1), ())[1], host.reset(seed=1)[0]):
        np.testing.assert_allclose(np.linalg.norm(obs[3:7]), 1.0, atol=1e-5)
        assert obs[-1] == np.float32(0.7)
        np.testing.assert_allclose(obs[:3], [0, 0, 2], atol=noise + 1e-6)


def test_physics_that_fail_give_a_nan_and_no_silent_restart(free):
    host = from_mjcf.HostRobot(
        free,
        reward=lambda data, action: 0.0,
        start=lambda model, uniform: (model.qpos0, 1e12 * np.ones(7)),
    )
    host.reset(seed=0)
    seen = [host.step(np.ones(1, np.float32))[0] for _ in range(3)]
    assert not np.isfinite(seen[-1]).all() or np.abs(seen[-1]).max() > 1e6


@pytest.mark.parametrize("backend", from_mjcf.BACKENDS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda model, uniform: {"body_mas": 1.0},
            "randomize changes 'body_mas', which a model does not have",
        ),
        (
            lambda model, uniform: {"body_mass": 1.0},
            r"randomize changes body_mass to shape \[\]: the model has",
        ),
    ],
)
def test_wrong_changes_of_the_model_are_told_alike(pole, backend, change, message):
    with pytest.raises((ValueError, RuntimeError), match=message):
        env = jf.make_env(
            "mjcf", file=pole, reward=reward, randomize=change, backend=backend, num_envs=2
        )
        env.reset(0)


@pytest.mark.parametrize("backend", from_mjcf.BACKENDS)
def test_nested_fields_may_differ_and_starts_may_be_lists(pole, backend):
    options = dict(
        reward=reward,
        randomize=lambda model, uniform: {"opt.gravity": model.opt.gravity * uniform(0.1, 0.2)},
        start=lambda model, uniform: ([0.0, 0.1], [0.0, 0.0]),
    )
    if backend == "mjx":
        env = from_mjcf.make(pole, **options)
        state, _ = env.reset(jax.random.key(0), ())
        assert -2.0 < float(state.changed["opt.gravity"][2]) < -0.9
        return
    host = from_mjcf.HostRobot(pole, **options)
    host.reset(seed=0)
    assert -2.0 < host.model.opt.gravity[2] < -0.9
