"""The background process that draws may die, hang or refuse: training neither waits for it nor
changes.
"""

import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from many_commands import Commands
from processes_left import wait_until_gone
from test_train import begin, digest, finish
from untrained import untrained_run

from jaxrl_fast.training.checkpoints import all_steps, read_arrays, read_description
from jaxrl_fast.views import visualizer as visualizer_module
from jaxrl_fast.views.visualizer import LOG, Visualizer

TRAIN = [
    "env=cartpole",
    "algo=ppo",
    "tuned=false",
    "num_envs=8",
    "total_steps=24_576",
    "eval.every=8192",
    "eval.episodes=2",
    "eval.beside=false",
    "algo.num_epochs=1",
    "algo.policy_hidden=[8]",
    "algo.value_hidden=[8]",
]


def arrays(run: Path) -> dict[str, np.ndarray]:
    """Return the whole final state of a run, from its last checkpoint."""
    folder = run / "checkpoints"
    return read_arrays(read_description(folder / str(all_steps(folder)[-1])))


@pytest.fixture(autouse=True)
def _a_loaded_machine_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait longer for the last picture, which is drawn at idle priority."""
    monkeypatch.setattr(visualizer_module, "LAST_LIMIT_S", 3600.0)


def drawing(run: Path) -> int:
    """Return the id of the process that draws for ``run``, once there is one."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        for process in Path("/proc").iterdir():
            if process.name.isdigit() and _draws(process, run):
                return int(process.name)
        time.sleep(0.02)
    raise AssertionError("nothing draws")


def wait_until_idle(process: int) -> None:
    """Wait until the process runs at idle priority, which it sets when it starts."""
    deadline = time.monotonic() + 600
    while os.sched_getscheduler(process) != os.SCHED_IDLE:
        assert time.monotonic() < deadline, "it does not run at idle priority"
        time.sleep(0.01)


def _draws(process: Path, run: Path) -> bool:
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"jaxrl_fast.render" in words and str(run).encode() in words


needs_proc = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")


@needs_proc
def test_its_death_in_the_middle_changes_no_bit_and_loses_no_row(
    commands: Commands, tmp_path: Path
):
    training = begin(tmp_path, "train", *TRAIN, f"run_dir={tmp_path}/seen", "eval.picture=true")
    child = drawing(tmp_path / "seen")
    wait_until_idle(child)
    os.kill(child, signal.SIGKILL)
    status, out, err = finish(training)
    assert (status, err) == (0, "")
    said = [line for line in out.splitlines() if "its process ended" in line]
    assert [line.partition(":")[0] for line in said] == [
        "no policy.gif"
    ] and "exit code -9" in said[0]
    assert (
        f"{tmp_path}/seen: report.html, summary.json, curve.png, graph.svg, policy.gif, policy/"
        in out
    )
    assert (tmp_path / "seen" / "policy.gif").read_bytes().startswith(b"GIF89a")
    alone = commands.run(tmp_path, "train", *TRAIN, f"run_dir={tmp_path}/alone", trains=True)
    assert alone.status == 0 and "policy.gif" not in alone.out
    assert digest(tmp_path / "seen") == digest(tmp_path / "alone")
    seen, alone = arrays(tmp_path / "seen"), arrays(tmp_path / "alone")
    assert seen.keys() == alone.keys() and len(seen) > 20
    for name, array in seen.items():
        np.testing.assert_array_equal(array, alone[name], err_msg=name)


def hang(visualizer: Visualizer) -> subprocess.Popen:
    """Begin to draw in a process, and stop the process."""
    visualizer()
    process = visualizer.process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    return process


def test_one_that_hangs_is_ended_and_the_next_policy_is_drawn(tmp_path: Path):
    untrained_run(tmp_path, "env=cartpole")
    told: list[str] = []
    patient = Visualizer(tmp_path, "policy.gif", 0, told.append, limit_s=3600.0)
    waited_for = hang(patient)
    patient()
    assert patient.process is waited_for and told == []
    waited_for.kill()
    waited_for.wait()
    visualizer = Visualizer(tmp_path, "policy.gif", 0, told.append, limit_s=0.0)
    hung = hang(visualizer)
    visualizer.limit_s = 3600.0
    visualizer()
    assert told == [
        "no policy.gif: the process that draws it exceeded its time limit and was ended"
    ]
    assert visualizer.process is not hung
    wait_until_gone(hung.pid)
    assert visualizer.finish(lambda: False)
    assert len(told) == 1 and not (tmp_path / LOG).exists()
    assert (tmp_path / "policy.gif").exists()


def test_what_cannot_be_drawn_costs_one_line_and_is_not_tried_again(tmp_path: Path):
    untrained_run(tmp_path, "env=probe", "env.id=value")
    told: list[str] = []
    visualizer = Visualizer(tmp_path, "policy.gif", 0, told.append)
    visualizer()
    assert not visualizer.finish(lambda: False)
    visualizer()
    assert visualizer.process is None and not visualizer.finish(lambda: False)
    (line,) = told
    assert line.startswith("no policy.gif: probe value cannot be drawn: its Env has no draw")


def test_a_folder_that_is_gone_does_not_end_training(tmp_path: Path):
    told: list[str] = []
    visualizer = Visualizer(tmp_path / "gone", "policy.gif", 0, told.append)
    visualizer()
    assert not visualizer.finish(lambda: False)
    assert len(told) == 1 and "No such file" in told[0]


def test_a_run_that_is_stopped_does_not_wait_for_it(tmp_path: Path):
    untrained_run(tmp_path, "env=cartpole")
    visualizer = Visualizer(tmp_path, "policy.gif", 0, lambda line: None)
    visualizer()
    child = visualizer.process
    assert child is not None
    assert not visualizer.finish(lambda: True)
    visualizer.close()
    wait_until_gone(child.pid)
    assert not (tmp_path / LOG).exists() and not np.any(
        [p.suffix == ".unfinished" for p in tmp_path.iterdir()]
    )
