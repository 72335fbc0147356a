"""Signals end a run after it is saved, in commands and in programs, and USR1 saves a run that goes
on.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_faults import ENDLESS
from test_train import ROOT, begin, finish, wait_for

from jaxrl_fast.system import ENDING, SAVING
from jaxrl_fast.training.checkpoints import all_steps
from jaxrl_fast.training.records import RunStatus, read_status
from jaxrl_fast.training.stop_signals import REPEATED, StopSignal, stopping_at_signals

ALL = (*ENDING, SAVING)
by_name = pytest.mark.parametrize("number", ENDING, ids=lambda number: number.name)


@pytest.fixture
def handlers() -> Iterator[None]:
    """Restore the handlers of this process after a test."""
    before = {number: signal.getsignal(number) for number in ALL}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@by_name
def test_the_first_signal_stops_the_run_and_the_second_has_its_default_effect(
    handlers, number: signal.Signals
):
    before = signal.getsignal(number)
    stop = StopSignal()
    assert not stop()  # training begins
    # else the next line ends the tests
    assert signal.getsignal(number) not in (signal.SIG_DFL, signal.SIG_IGN, before)
    os.kill(os.getpid(), number)
    assert stop() and stop.number == number
    for one in ENDING:
        assert signal.getsignal(one) is (signal.SIG_IGN if one in REPEATED else signal.SIG_DFL)


def test_usr1_asks_once_for_a_checkpoint_and_does_not_stop(handlers):
    stop = StopSignal()
    assert not stop.should_save()
    os.kill(os.getpid(), SAVING)
    assert [stop.should_save(), stop.should_save(), stop()] == [True, False, False]


def test_a_hangup_that_is_ignored_stays_ignored(handlers):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stop = StopSignal()
    os.kill(os.getpid(), signal.SIGHUP)
    assert not stop()


@by_name
def test_a_program_ends_after_its_run_is_saved_and_its_handlers_return(handlers, number):
    before = {one: signal.getsignal(one) for one in ALL}
    ended = KeyboardInterrupt if number == signal.SIGINT else SystemExit
    with pytest.raises(ended) as error, stopping_at_signals(bool) as stop:
        assert not stop.should_stop()
        os.kill(os.getpid(), number)
        assert stop.should_stop()
    assert number == signal.SIGINT or error.value.code == 128 + number
    assert {one: signal.getsignal(one) for one in ALL} == before


@by_name
def test_a_signal_that_a_program_handles_remains_the_programs(handlers, number):
    received = []
    signal.signal(number, lambda number, frame: received.append(number))
    with stopping_at_signals(bool) as stop:
        assert not stop.should_stop()
        os.kill(os.getpid(), number)
        assert not stop.should_stop()
    assert received == [number]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(130)])
def test_an_interruption_before_training_is_no_failure(tmp_path: Path, error: BaseException):
    RunStatus(tmp_path).end(error)
    assert (read_status(tmp_path)["state"], read_status(tmp_path)["error"]) == ("stopped", None)
    RunStatus(tmp_path).end(None, complete=True)
    done = read_status(tmp_path)
    RunStatus(tmp_path, resumed=True).end(error)
    assert read_status(tmp_path) | {"updated_at": 0} == done | {"updated_at": 0}


def checkpoint_of(folder: Path) -> int:
    """Return the steps of a stopped run, which its newest checkpoint has, too."""
    summary = json.loads((folder / "summary.json").read_text())
    assert read_status(folder)["state"] == "stopped"
    assert all_steps(folder / "checkpoints")[-1] == summary["env_steps"]
    return summary["env_steps"]


@pytest.mark.parametrize(
    "number",
    [signal.SIGQUIT, signal.SIGXCPU],
    ids=lambda number: number.name,
)
def test_every_signal_saves_a_command(tmp_path: Path, number: signal.Signals):
    process = begin(tmp_path, "train", *ENDLESS, "run_dir=run", "eval.beside=false")
    wait_for(tmp_path / "run" / "metrics.csv")
    process.send_signal(number)
    done, _, err = finish(process)
    assert (done, "Traceback" in err) == (128 + number, False), err
    assert checkpoint_of(tmp_path / "run") > 0


def test_usr1_saves_a_command_that_goes_on_until_another_signal(tmp_path: Path):
    words = [*ENDLESS, "run_dir=run", "eval.beside=false", "checkpoint.every=1_000_000_000"]
    process = begin(tmp_path, "train", *words)
    wait_for(tmp_path / "run" / "metrics.csv")
    assert not all_steps(tmp_path / "run" / "checkpoints")
    process.send_signal(SAVING)
    while not (saved := all_steps(tmp_path / "run" / "checkpoints")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    done, _, err = finish(process)
    assert (done, "Traceback" in err) == (143, False), err
    assert checkpoint_of(tmp_path / "run") > saved[0]
    lines = read_status(tmp_path / "run")["lines"]
    assert f"saved after {saved[0]:,} steps, as requested; the run goes on" in lines


TERMINAL = """
import os, pty, signal, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.executable, [sys.executable, "-m", "jaxrl_fast.train", *sys.argv[1:]])
sys.stdin.read()
os.close(terminal)
os.kill(pid, signal.SIGHUP)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
"""A program that trains in a terminal, and closes it when its input ends."""


def test_a_run_whose_terminal_closes_is_saved(tmp_path: Path):
    """The kernel and a shell both send HUP, and every print fails."""
    process = subprocess.Popen(
        [sys.executable, "-c", TERMINAL, *ENDLESS, "run_dir=run", "eval.beside=false"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    wait_for(tmp_path / "run" / "metrics.csv")
    _, out, err = finish(process)
    assert out == f"{128 + signal.SIGHUP}\n", err
    assert checkpoint_of(tmp_path / "run") > 0


PROGRAM = """
import jaxrl_fast as jf
env = jf.make_env("probe", id="observation", num_envs=4)
common = dict(total_steps=100_000_000, run_dir="run")
{}
"""
LEARN = """
jf.learn(env, jf.ppo(), eval_every=0, on_metrics=lambda row: print("row", flush=True), **common)
"""
POPULATION = """
jf.train_population(env, jf.ppo(), rates={"learning_rate": "log:1e-4:1e-2"}, size=2, every=64,
    tell=lambda line: print("row", flush=True), **common)
"""


@pytest.mark.parametrize(
    ("call", "kind"),
    [(LEARN, "checkpoints"), (POPULATION, "population")],
    ids=["learn", "train_population"],
)
def test_a_program_saves_its_run_and_ends_at_sigterm(tmp_path: Path, call: str, kind: str):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(call)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "row\n", process.stderr.read()
    process.send_signal(signal.SIGTERM)
    status, _, err = finish(process)
    assert (status, "Traceback" in err) == (143, False), err
    assert read_status(tmp_path / "run")["state"] == "stopped"
    assert all_steps(tmp_path / "run" / kind)


@pytest.mark.parametrize("after_s", [0.3, 0.8, 1.5])
def test_ctrl_c_while_a_command_imports_its_modules_prints_no_traceback(
    tmp_path: Path, after_s: float
):
    process = begin(tmp_path, "train", *ENDLESS)
    time.sleep(after_s)
    process.send_signal(signal.SIGINT)
    status, _, err = finish(process)
    assert (status, err.strip()) in ((130, ""), (130, "stopped before training"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_while_a_resumed_run_compiles_leaves_the_run_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
):
    monkeypatch.setenv("JAXRL_FAST_CACHE", "off")  # so that it compiles for seconds
    run = tmp_path / "run"
    words = [*ENDLESS, "run_dir=run", "eval.beside=false", "total_steps=40_000"]
    assert finish(begin(tmp_path, "train", *words))[0] == 0
    late = "stopping after this chunk; press Ctrl-C again to stop at once"
    for _ in range(3):
        before, summary = read_status(run), (run / "summary.json").read_bytes()
        process = begin(tmp_path, "train", "resume=run", "total_steps=100_000_000")
        while (state := read_status(run)["state"]) != "compiling":
            assert process.poll() is None and state != "training"
            time.sleep(0.01)
        process.send_signal(number)
        status, _, err = finish(process)
        if err.strip() != late:  # else it trained already, as on a busy machine
            break
    assert (status, err.strip()) == (128 + number, "stopped before training")
    after = read_status(run)
    assert (after["state"], after["eval_return"]) == (before["state"], before["eval_return"])
    assert (run / "summary.json").read_bytes() == summary
