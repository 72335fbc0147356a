"""The commands as a person uses them: real processes, real signals, real files."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SMALL = ["env=cartpole", "algo=ppo", "tuned=false", "num_envs=4", "eval.episodes=2", "algo.num_epochs=1"]
WORLD = """
import jax, jax.numpy as jnp, jaxrl_fast as jf

def make(bad_step=7):
    def step(count, action, key):
        count = count + 1
        obs = jnp.where(count == bad_step, jnp.nan, 1.0) * jnp.ones(2)
        return count, jf.Timestep(obs, obs, jnp.float32(0.0), jnp.bool_(False), jnp.bool_(False))
    spec = jf.EnvSpec("broken", jax.ShapeDtypeStruct((2,), jnp.float32), jf.Discrete(2), max_episode_steps=50)
    return jf.Env(spec, lambda key, params: (jnp.int32(0), jnp.ones(2)), step)
"""


def begin(folder: Path, command: str, *words: str) -> subprocess.Popen:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "JAXRL_FAST_CACHE": os.environ.get("JAXRL_FAST_CACHE", str(folder / "c")),
    }
    return subprocess.Popen(
        [sys.executable, "-m", f"jaxrl_fast.{command}", *words],
        cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 240
    while not path.exists() or path.stat().st_size == 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, str]:
    """A folder in which one run has been made, and what the run printed."""
    folder = tmp_path_factory.mktemp("work")
    status, out, err = finish(begin(folder, "train", *SMALL, "total_steps=20_000", "seed=5"))
    assert (status, err) == (0, "")
    return folder, out


def test_a_run_leaves_what_the_design_names(trained):
    folder, out = trained
    run = next((folder / "runs" / "cartpole" / "ppo").iterdir())
    names = {path.name for path in run.iterdir() if not path.name.startswith("events")}
    assert names == {"config.yaml", "summary.json", "metrics.csv", "evals.csv", "curve.png", "policy", "checkpoints"}
    assert (folder / "runs" / "latest").resolve() == run.resolve()
    assert {path.name for path in folder.iterdir()} == {"runs", "c"}
    assert out.startswith("cartpole = gymnax, CartPole-v1\n")
    summary = json.loads((run / "summary.json").read_text())
    keys = {
        "env", "env_id", "env_backend", "algo", "placement", "overlap", "seed", "num_seeds", "num_envs", "batch_size",
        "devices", "jax_version", "env_steps", "updates", "wall_s", "compile_s", "time_to_first_step_s", "sampling_hz",
        "update_hz", "update_frame_hz", "eval_return_mean", "eval_return_std", "eval_episodes",
    }  # fmt: skip
    assert keys <= set(summary)
    assert summary["env_steps"] == 20_480
    assert summary["wall_s"] > summary["time_to_first_step_s"] > summary["compile_s"] > 0


def test_the_command_it_names_repeats_the_run(trained):
    folder, out = trained
    words = next(line for line in out.splitlines() if line.startswith("again:")).split()[4:]
    again = folder / "again"
    status, _, _ = finish(begin(folder, "train", *words, f"run_dir={again}"))
    assert status == 0
    first = next((folder / "runs" / "cartpole" / "ppo").iterdir())

    def rows(run: Path) -> list[list[str]]:
        table = [line.split(",") for line in (run / "metrics.csv").read_text().splitlines()]
        timed = {i for i, name in enumerate(table[0]) if name == "wall_s" or name.endswith("_hz")}
        return [[cell for i, cell in enumerate(row) if i not in timed] for row in table]

    assert rows(again) == rows(first)


def test_what_the_machine_chose_is_shown_and_kept(trained):
    folder, out = trained
    run = next((folder / "runs" / "cartpole" / "ppo").iterdir())
    assert "\nplacement fused on 1 device (measured)\n" in out
    kept = (run / "config.yaml").read_text()
    assert "placement: fused\n" in kept
    assert "devices: 1\n" in kept


@pytest.mark.parametrize("placement", ["data_parallel", "sharded_sampling"])
def test_a_named_placement_trains_on_the_devices_it_is_given(tmp_path, placement):
    words = [*SMALL, "total_steps=4000", f"placement={placement}", "devices=2", "run_dir=run"]
    status, out, err = finish(begin(tmp_path, "train", *words))
    assert (status, err) == (0, "")
    assert f"placement {placement} on 2 devices\n" in out
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["placement"], len(summary["devices"])) == (placement, 2)


def test_a_width_that_the_devices_do_not_divide_is_refused_only_where_the_placement_is_named(tmp_path):
    words = [*SMALL, "num_envs=5", "algo.num_minibatches=1", "total_steps=1000", "devices=2"]
    status, _, err = finish(begin(tmp_path, "train", *words, "placement=data_parallel"))
    assert status == 2
    assert err.startswith("jaxrl_fast: error: placement=data_parallel divides the 5 environments of 'sample' among 2")
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()
    status, out, _ = finish(begin(tmp_path, "train", *words))
    assert status == 0
    assert "placement fused on 1 device" in out


def test_evaluate_plays_the_policy_of_a_run(trained):
    status, out, _ = finish(begin(trained[0], "evaluate", "runs/latest", "episodes=5"))
    assert status == 0
    assert "5 episodes" in out


def test_a_signal_before_training_ends_at_once(tmp_path):
    process = begin(tmp_path, "train", *SMALL, "run_dir=run")
    wait_for(tmp_path / "run" / "config.yaml")
    process.send_signal(signal.SIGINT)
    status, _, err = finish(process)
    assert status == 130
    assert err.strip() == "stopped before anything was trained"


def test_a_world_that_gives_a_nan_is_named_with_its_step(tmp_path):
    (tmp_path / "my_package.py").write_text(WORLD)
    words = ["env=custom", "env.make=my_package.make", "+env.bad_step=9", "num_envs=4", "total_steps=1000"]
    status, _, err = finish(begin(tmp_path, "train", *words))
    assert status == 2
    assert err.startswith(
        "jaxrl_fast: error: environment broken gave a NaN or an infinity (observation or reward) at step 9"
    )
    assert err.count("\n") == 1


def test_the_world_of_the_readme_trains_from_another_folder(tmp_path):
    code = (ROOT / "README.md").read_text().partition("# my_package.py\n")[2].partition("```")[0]
    (tmp_path / "my_package.py").write_text(code)
    words = ["env=custom", "env.make=my_package.make", "+env.speed=0.1", "num_envs=8", "total_steps=5000"]
    status, out, err = finish(begin(tmp_path, "train", *words))
    assert (status, err) == (0, "")
    assert "greedy return" in out
