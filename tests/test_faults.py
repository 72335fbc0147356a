"""External faults of a run: killed, stopped, and its disk full. Real processes, signals and files."""

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest.mock import ANY

import pytest
from test_train import ROOT, begin, finish, wait_for

from jaxrl_fast.training.checkpoints import all_steps, read_arrays, read_description
from jaxrl_fast.training.run_folder import locked
from jaxrl_fast.training.stop_signals import Stop, stopping_at_signals

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


PROGRAM = """
import sys, jaxrl_fast as jf
env = jf.make_env("cartpole", num_envs=4)
words = dict(total_steps=100_000_000, eval_every=100_000_000, eval_episodes=2, run_dir="run")
words["checkpoints"] = jf.Checkpoints(every=100_000_000)
words["on_metrics"] = lambda row: print(row["env_steps"], flush=True)
try:
    jf.learn(env, jf.ppo(num_epochs=1), **words, **eval(sys.argv[1]))
except KeyboardInterrupt:
    import signal
    print("interrupted", signal.getsignal(signal.SIGINT) is signal.default_int_handler, flush=True)
"""


def program(folder: Path, **more: object) -> subprocess.Popen:
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, repr(more)], cwd=folder, env=variables, **pipes
    )


def test_ctrl_c_in_a_program_saves_its_run_and_is_then_raised(tmp_path):
    process = program(tmp_path)
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    status, out, err = finish(process)
    assert (status, out.split("\n")[-2]) == (0, "interrupted True"), err
    assert "stopping after this chunk" in err and "Traceback" not in err
    steps = json.loads((tmp_path / "run" / "summary.json").read_text())["env_steps"]
    assert all_steps(tmp_path / "run" / "checkpoints") == [steps]
    assert (tmp_path / "run" / "policy" / "params.msgpack").exists()


def test_a_second_ctrl_c_interrupts_a_program_at_once(tmp_path):
    process = program(tmp_path)
    process.stdout.readline()
    process.send_signal(signal.SIGSTOP)  # both signals arrive before the chunk can end
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    for line in process.stderr:
        if "again to stop at once" in line:
            break
    process.send_signal(signal.SIGINT)
    _, out, _ = finish(process)
    assert out.split("\n")[-2] == "interrupted True"


def test_the_second_ctrl_c_reaches_pythons_own_handler():
    with pytest.raises(KeyboardInterrupt, match="second"), stopping_at_signals(bool) as stop:
        assert not stop.should_stop()
        signal.raise_signal(signal.SIGINT)
        assert stop.should_stop() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("second") from None


def test_a_handler_of_the_program_stays_and_threads_have_none():
    def own(number, frame):
        return None

    signal.signal(signal.SIGINT, own)
    try:
        with stopping_at_signals(bool):
            assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    entered = []

    def elsewhere() -> None:
        with stopping_at_signals(bool) as stop:
            entered.append((stop, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert entered == [(Stop(bool, ANY), signal.default_int_handler)]


def test_a_folder_has_one_run_at_a_time_and_a_killed_one_leaves_no_lock(tmp_path, commands):
    process = begin(tmp_path, "train", *ENDLESS, "run_dir=run", "eval.beside=false")
    wait_for(tmp_path / "run" / "metrics.csv")
    while not all_steps(tmp_path / "run" / "checkpoints"):
        assert process.poll() is None
        time.sleep(0.05)
    again = ["run_dir=run"], ["run_dir=run", "resume=auto"], ["resume=run"]
    in_use = f"in use by process {process.pid} on {socket.gethostname()}: wait until it ends, or write another run_dir"
    lines = [["train", *(() if words[0][:6] == "resume" else ENDLESS), *words] for words in again]
    for ended in commands.run_all(tmp_path, lines):
        assert (ended.status, ended.err) == (2, f"jaxrl_fast: error: run is {in_use}\n")
    _, _, err = finish(program(tmp_path))
    assert err.endswith(f"ValueError: run is {in_use}\n")
    assert finish(begin(tmp_path, "report", "run"))[0] == 0  # readers need no lock
    process.kill()
    finish(process)
    with locked(tmp_path / "run"):
        pass


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


def test_a_finished_run_has_nothing_to_do_and_a_requeued_one_begins_if_there_is_none(
    commands, tmp_path
):
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
        timeout=900,
    )
    assert "Traceback" not in full.stderr
    assert "a checkpoint could not be written to run/checkpoints" in full.stdout
    assert "the last good checkpoint is run/checkpoints/4000" in full.stdout
    assert full.returncode in (0, 2), full.stderr
    assert read_arrays(good)


def test_a_run_folder_that_is_deleted_does_not_end_training(tmp_path):
    process = begin(
        tmp_path, "train", *ALONE, "total_steps=150_000", "run_dir=run", "checkpoint.every=20_000"
    )
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
    assert (
        "environment overflowing gave a NaN or an infinity" in err
        and "(fragment sample, tick " in err
    )
    newest = all_steps(tmp_path / "run" / "checkpoints")[-1]
    assert (
        f"; the last good checkpoint is run/checkpoints/{newest}; nan generated by primitive: log. At "
        in err
    )
    assert "my_package.py:" in err
    assert read_arrays(read_description(tmp_path / "run" / "checkpoints" / str(newest)))
