"""External faults of a run: killed, stopped, and its disk full. Real processes, signals and files."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_train import ROOT, begin, finish, wait_for

from jaxrl_fast.training.checkpoints import all_steps, read_arrays, read_description

sys.path.insert(0, str(ROOT / "experiments" / "laws"))
import kill

SMALL = ["env=probe", "env.id=observation", "algo=ppo", "tuned=false", "num_envs=4"]
SMALL += ["eval.episodes=2", "algo.num_epochs=1"]
ALONE = [*SMALL, "eval.beside=false"]
"""A command without a background process, for tests that do not need one."""
ENDLESS = [*SMALL, "total_steps=100_000_000", "checkpoint.every=40_000", "eval.every=100_000_000"]


@pytest.mark.parametrize("kills", [1, 2])
def test_killed_while_it_trains_and_while_it_saves_nothing_is_lost(tmp_path, kills):
    words = list(kill.JOBS["sac pendulum"])
    words += ["total_steps=4000", "checkpoint.every=400"]
    if kills == 1:  # needs neither gymnax nor an evaluating process
        words[words.index("env=pendulum")] = "env=probe"
        words += ["env.id=observation_continuous", "eval.beside=false"]
    assert kill.job(tuple(words), kills, tmp_path)["equal to the undisturbed run"]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_stopped_saves_at_once_and_goes_on_where_it_was(tmp_path, number, status):
    beside = f"eval.beside={str(number == signal.SIGINT).lower()}"
    process = begin(tmp_path, "train", *ENDLESS, "run_dir=run", beside)
    wait_for(tmp_path / "run" / "metrics.csv")
    process.send_signal(number)
    done, out, err = finish(process)
    assert done == status, err
    assert "Traceback" not in err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["stopped_by"], summary["eval_return_mean"]) == (number.name, None)
    steps = summary["env_steps"]
    assert all_steps(tmp_path / "run" / "checkpoints")[-1] == steps
    assert "not evaluated yet" in out
    assert "resume:   python -m jaxrl_fast.train resume=run" in out
    assert (tmp_path / "run" / "policy" / "params.msgpack").exists()
    if number == signal.SIGINT:
        return
    status, out, err = finish(begin(tmp_path, "train", "resume=run", f"total_steps={2 * steps}"))
    assert (status, err) == (0, "")
    assert f"resumes from run/checkpoints/{steps}, {steps:,} steps trained" in out
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["env_steps"] == 2 * steps


def test_a_second_ctrl_c_ends_at_once(tmp_path):
    process = begin(tmp_path, "train", *ENDLESS, "run_dir=run", "eval.beside=false")
    wait_for(tmp_path / "run" / "metrics.csv")
    process.send_signal(signal.SIGSTOP)  # both signals arrive before the chunk can end
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    for line in process.stderr:
        if "again to stop at once" in line:
            break
    process.send_signal(signal.SIGINT)
    status, _, _ = finish(process)
    assert status in (-signal.SIGINT, 130)


def test_a_finished_run_has_nothing_to_do_and_a_requeued_one_begins_if_there_is_none(commands, tmp_path):
    words = [*ALONE, "total_steps=4000", "run_dir=run", "resume=auto"]
    status, out, err = commands.run(tmp_path, "train", *words, trains=True)
    assert (status, err) == (0, "")
    assert "4,000 steps of 4 environments" in out
    status, out, err = commands.run(tmp_path, "train", *words, trains=True)
    assert (status, err) == (0, "")
    assert "all 4,000 steps are trained; write a larger total_steps=... to continue" in out
    for path in (tmp_path / "run" / "checkpoints").glob("*/description.json"):
        path.write_text("{")
    status, out, err = commands.run(tmp_path, "train", *words, trains=True)
    assert status == 0
    assert "skipped: checkpoint run/checkpoints/" in err
    assert "greedy return" in out
    assert list((tmp_path / "run").glob("checkpoints-damaged-*/*"))


def limited(limit_bytes: int) -> None:
    """Limit the size of this process's files, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))


def test_a_full_disk_does_not_end_training_nor_harm_the_last_good_checkpoint(tmp_path):
    """The replay buffer exceeds the largest file size, and the tables soon after."""
    words = [
        "env=pendulum",
        "algo=sac",
        "tuned=false",
        "num_envs=4",
        "total_steps=4000",
        "algo.updates_per_tick=1",
        "algo.batch_size=8",
        "algo.buffer_size=4000",
        "algo.warmup_steps=40",
        "algo.policy_hidden=[8]",
        "algo.critic_hidden=[8]",
        "eval.episodes=1",
        "run_dir=run",
    ]
    status, _, err = finish(begin(tmp_path, "train", *words))
    assert (status, err) == (0, "")
    good = read_description(tmp_path / "run" / "checkpoints" / "4000")
    code = (
        "import sys, os; sys.path[:0] = [os.environ['TESTS']]; import test_faults; test_faults.limited(60_000);"
        "from jaxrl_fast.train import main; sys.exit(main(sys.argv[1:]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TESTS": str(ROOT / "tests")}
    full = subprocess.run(
        [sys.executable, "-c", code, "resume=run", "total_steps=6000"],
        cwd=tmp_path,
        env=environment,
        text=True,
        capture_output=True,
        timeout=240,
    )
    assert "Traceback" not in full.stderr
    assert "a checkpoint could not be written to run/checkpoints" in full.stdout
    assert "the last good checkpoint is run/checkpoints/4000" in full.stdout
    assert full.returncode in (0, 2), full.stderr
    assert read_arrays(good)


def test_a_run_folder_that_is_deleted_does_not_end_training(tmp_path):
    process = begin(tmp_path, "train", *ALONE, "total_steps=150_000", "run_dir=run", "checkpoint.every=20_000")
    wait_for(tmp_path / "run" / "metrics.csv")
    process.send_signal(signal.SIGSTOP)
    shutil.rmtree(tmp_path / "run")
    process.send_signal(signal.SIGCONT)
    status, out, err = finish(process)
    assert status == 0, err
    assert "greedy return" in out
    steps = all_steps(tmp_path / "run" / "checkpoints")
    assert read_arrays(read_description(tmp_path / "run" / "checkpoints" / str(steps[-1])))
    assert (tmp_path / "run" / "summary.json").exists()


def test_a_nan_keeps_the_last_good_checkpoint_and_debug_names_the_operation(tmp_path):
    (tmp_path / "my_package.py").write_text(Path(__file__).with_name("overflowing.py").read_text())
    words = [
        "env=custom",
        "env.make=my_package.make",
        "algo=ppo",
        "num_envs=4",
        "total_steps=4000",
        "run_dir=run",
        "checkpoint.every=400",
        "algo.rollout_length=8",
        "eval.beside=false",
        "debug=true",
    ]
    status, _, err = finish(begin(tmp_path, "train", *words))
    assert status == 2
    assert err.count("\n") == 1
    assert "environment overflowing gave a NaN or an infinity" in err and "(fragment sample, tick " in err
    newest = all_steps(tmp_path / "run" / "checkpoints")[-1]
    assert f"; the last good checkpoint is run/checkpoints/{newest}; nan generated by primitive: log. At " in err
    assert "my_package.py:" in err
    assert read_arrays(read_description(tmp_path / "run" / "checkpoints" / str(newest)))
