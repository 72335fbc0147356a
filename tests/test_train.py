"""The commands in use: real processes, real signals, real files."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "experiments" / "laws"))
from determinism import digest

ROOT = Path(__file__).parent.parent

SMALL = [
    "env=cartpole",
    "algo=ppo",
    "tuned=false",
    "num_envs=4",
    "eval.episodes=2",
    "algo.num_epochs=1",
]


def begin(folder: Path, command: str, *words: str) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", f"jaxrl_fast.{command}", *words],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=900)
    return process.returncode, out, err


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 900
    while not path.exists() or path.stat().st_size == 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, str]:
    """Make a folder with one run; return it and the output of the run."""
    folder = tmp_path_factory.mktemp("work")
    status, out, err = finish(begin(folder, "train", *SMALL, "total_steps=20_000", "seed=5"))
    assert (status, err) == (0, "")
    return folder, out


def test_a_run_leaves_what_the_design_names(trained):
    folder, out = trained
    run = next((folder / "runs" / "cartpole" / "ppo").iterdir())
    names = {path.name for path in run.iterdir() if not path.name.startswith("events")}
    assert names == {
        "config.yaml",
        "run.json",
        "report.html",
        "summary.json",
        "metrics.csv",
        "evals.csv",
        "curve.png",
        "graph.svg",
        ".lock",
        "policy",
        "checkpoints",
    }
    assert (folder / "runs" / "latest").resolve() == run.resolve()
    assert {path.name for path in folder.iterdir()} == {"runs"}
    assert out.startswith("cartpole = gymnax, CartPole-v1\n")
    summary = json.loads((run / "summary.json").read_text())
    keys = {
        "env",
        "env_id",
        "env_backend",
        "algo",
        "placement",
        "overlap",
        "seed",
        "num_seeds",
        "num_envs",
        "batch_size",
        "devices",
        "jax_version",
        "env_steps",
        "updates",
        "wall_s",
        "compile_s",
        "time_to_first_step_s",
        "sampling_hz",
        "update_hz",
        "update_frame_hz",
        "eval_return_mean",
        "eval_return_std",
        "eval_episodes",
    }
    assert keys <= set(summary)
    assert summary["env_steps"] == 20_480
    assert summary["wall_s"] > summary["time_to_first_step_s"] > summary["compile_s"] > 0


def test_the_command_it_names_repeats_the_run_bit_for_bit(trained):
    folder, out = trained
    words = next(line for line in out.splitlines() if line.startswith("repeat:")).split()[4:]
    status, _, _ = finish(begin(folder, "train", *words, f"run_dir={folder / 'again'}"))
    assert status == 0
    first = next((folder / "runs" / "cartpole" / "ppo").iterdir())
    assert digest(folder / "again") == digest(first)


def test_what_the_machine_chose_is_shown_and_kept(trained):
    folder, out = trained
    run = next((folder / "runs" / "cartpole" / "ppo").iterdir())
    assert "\nplacement fused on 1 device (measured)\n" in out
    kept = (run / "config.yaml").read_text()
    assert "placement: fused\n" in kept
    assert "devices: 1\n" in kept


def test_a_named_placement_trains_on_the_devices_it_is_given(commands, tmp_path):
    words = [
        *SMALL,
        "total_steps=4000",
        "placement=sharded_sampling",
        "devices=2",
        "run_dir=run",
        "eval.beside=false",
    ]
    status, out, err = commands.run(tmp_path, "train", *words, trains=True)
    assert (status, err) == (0, "")
    assert "placement sharded_sampling on 2 devices\n" in out
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["placement"], len(summary["devices"])) == ("sharded_sampling", 2)


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
    assert err.strip() == "stopped before training"


def test_a_signal_ends_the_process_even_where_python_drops_exceptions(tmp_path):
    (tmp_path / "collected.py").write_text("""
import gc, os, signal, time
from jaxrl_fast.training.stop_signals import StopSignal

def interrupt(phase, info):
    gc.callbacks.remove(interrupt)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.1)  # here it is heard

class Unrelated:
    def __del__(self):
        raise OSError("another's")

stop = StopSignal()
gc.callbacks.append(interrupt)
gc.collect()
Unrelated()
time.sleep(3600)
""")
    done = subprocess.run(
        [sys.executable, "collected.py"], cwd=tmp_path, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 128 + signal.SIGTERM
    assert done.stderr.startswith("\nstopped before training\n")
    assert "SystemExit" not in done.stderr
    assert "OSError: another's" in done.stderr


def test_the_world_of_the_readme_trains_from_another_folder(commands, tmp_path):
    code = (ROOT / "README.md").read_text().partition("# my_package.py\n")[2].partition("```")[0]
    (tmp_path / "my_package.py").write_text(code)
    words = [
        "env=custom",
        "env.make=my_package.make",
        "+env.speed=0.1",
        "num_envs=8",
        "total_steps=5000",
    ]
    status, out, err = commands.run(tmp_path, "train", *words, "eval.beside=false", trains=True)
    assert (status, err) == (0, "")
    assert "greedy return" in out
