"""A run is not resumed with the same path and other content: of a robot's file, of data, of code."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import line

import jaxrl_fast as jf
from jaxrl_fast.envs import from_mjcf
from jaxrl_fast.offline.datasets import save_dataset
from jaxrl_fast.training.checkpoints import CheckpointError

ARM = """<mujoco><option timestep="0.01"/><include file="parts/body.xml"/>
<actuator><motor name="m" joint="j" ctrlrange="-1 1"/></actuator></mujoco>"""
BODY = """<mujoco><worldbody><body name="b"><joint name="j" type="hinge" axis="0 1 0"/>
<geom type="capsule" size="0.05" fromto="0 0 0 0 0 -0.5" mass="1" rgba="1 0 0 1"/></body>
</worldbody></mujoco>"""
PPO = jf.ppo(rollout_length=4, num_minibatches=1, num_epochs=1)
TWO = jf.Checkpoints(every=8)


def reward(data: Any, action: Any) -> Any:
    return -(data.qpos[0] ** 2)


@pytest.fixture
def robot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a robot's folder, and a run in ``run`` there."""
    (tmp_path / "parts").mkdir()
    (tmp_path / "arm.xml").write_text(ARM)
    (tmp_path / "parts" / "body.xml").write_text(BODY)
    monkeypatch.chdir(tmp_path)
    trained("arm.xml", steps=8)
    return tmp_path


def learned(env: Any, algorithm: Any, steps: int, **more: Any) -> list[str]:
    """Train in ``run`` with a checkpoint every 8 steps, and return the lines."""
    lines: list[str] = []
    jf.learn(
        env,
        algorithm,
        total_steps=steps,
        eval_every=0,
        run_dir="run",
        log="none",
        checkpoints=TWO,
        tell=lines.append,
        **more,
    )
    return lines


def trained(file: str, steps: int, **more: Any) -> list[str]:
    """Train a robot on the host, and return the lines."""
    env = jf.make_env(
        "mjcf", file=file, backend="mujoco", reward=reward, num_envs=2, pool={"workers": 0}
    )
    try:
        return learned(env, PPO, steps, **more)
    finally:
        env.close()


def test_a_mass_in_an_included_file_is_named(robot: Path):
    body = robot / "parts" / "body.xml"
    body.write_text(BODY.replace('mass="1"', 'mass="50"'))
    with pytest.raises(CheckpointError, match=r"^env.file: the robot's model differs .* body_mass"):
        trained("arm.xml", 16, resume="run")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (("-0.5", "-0.6"), "body_ipos"),
        (('axis="0 1 0"', 'axis="1 0 0"'), "jnt_axis"),
        (('type="hinge"', 'type="hinge" damping="0.5"'), "dof_damping"),
    ],
)
def test_what_changes_the_physics_changes_a_digest(robot: Path, change: Any, named: str):
    before = from_mjcf.contents_of(from_mjcf.mujoco.MjModel.from_xml_path("arm.xml"))
    (robot / "parts" / "body.xml").write_text(BODY.replace(*change))
    after = from_mjcf.contents_of(from_mjcf.mujoco.MjModel.from_xml_path("arm.xml"))
    assert before[f"model {named}"] != after[f"model {named}"]


def test_names_colors_lights_and_the_place_of_the_file_may_change(robot: Path):
    (robot / "moved" / "parts").mkdir(parents=True)
    (robot / "arm.xml").rename(robot / "moved" / "hand.xml")
    light = (
        '<worldbody><light pos="0 0 3"/><geom type="box" size="1 1 1" contype="0" conaffinity="0"/>'
    )
    changed = BODY.replace('name="b"', 'name="forearm"').replace("1 0 0 1", "0 1 0 1")
    (robot / "moved" / "parts" / "body.xml").write_text(changed.replace("<worldbody>", light))
    lines = trained("moved/hand.xml", 16, resume="run")
    assert "changed: env.file: arm.xml -> moved/hand.xml" in lines


def test_other_data_at_the_same_place_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    env = line(discrete=True)
    data = jf.Dataset(
        obs=np.zeros((9, 2), np.float32),
        action=np.arange(8, dtype=np.int32) % 2,
        reward=np.ones(8, np.float32),
        terminated=np.arange(8) == 7,
        truncated=np.zeros(8, bool),
        lengths=np.array([8]),
    )
    save_dataset(data, "first")
    save_dataset(data, "second")
    save_dataset(data._replace(reward=np.full(8, 2.0)), "third")

    def cloned(path: str, steps: int, **more: Any) -> list[str]:
        bc = jf.bc(batch_size=4, policy_hidden=(4,))
        return learned(env, bc, steps, data=path, **more)

    cloned("first", 16)
    assert "changed: data: first -> second" in cloned("second", 32, resume="run")
    Path("second").rename("away")
    Path("third").rename("second")
    with pytest.raises(CheckpointError, match=r"^data: the recorded data differs .* in reward:"):
        cloned("second", 48, resume="run")


def test_a_script_with_the_name_of_the_file_is_not_executed(robot: Path):
    (robot / "arm.py").write_text("raise SystemExit('a script was executed')\n")
    trained("arm.xml", 16, resume="run")
    assert "arm" not in sys.modules


def test_changed_code_is_named_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    code = "from tiny import line\n\ndef make():\n    return line(discrete=True).env\n"
    (tmp_path / "own_package.py").write_text(code)

    def ran(steps: int, **more: Any) -> list[str]:
        env = jf.make_env("custom", make="own_package.make", num_envs=2)
        return learned(env, PPO, steps, **more)

    ran(8)
    assert not [text for text in ran(16, resume="run") if "your code differs" in text]
    (tmp_path / "own_package.py").write_text(f"{code}\n# another reward\n")
    sys.modules.pop("own_package")
    assert "changed: own_package.py: your code differs from the run's" in ran(24, resume="run")
    sys.modules.pop("own_package")
