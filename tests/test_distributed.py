"""One run over several real processes on loopback: the numbers of one process, one end for all, and
no hang.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import distributed_program
import numpy as np
import pytest
from processes_left import wait_until_gone
from test_evaluations import rows, take_from_idle, wait_until
from test_train import ROOT, finish, wait_for

from jaxrl_fast.__main__ import COMMANDS
from jaxrl_fast.commands import cli
from jaxrl_fast.runtime import cluster, hosts
from jaxrl_fast.runtime.cluster import Processes
from jaxrl_fast.training.checkpoints import BESIDE, all_steps, read_arrays, read_description

SMALL = [
    "env=probe",
    "env.id=value",
    "algo=ppo",
    "num_envs=4",
    "algo.rollout_length=8",
    "algo.policy_hidden=[4]",
    "algo.value_hidden=[4]",
    "algo.num_epochs=1",
    "algo.num_minibatches=1",
    "eval.episodes=2",
    "eval.every=1_280",
]
LONG = [*SMALL, "total_steps=51_200", "algo.learning_rate=3e-4", "run_dir=run"]
"""Arguments of a run long enough to be interrupted, in chunks of 4 ticks; the processes exchange
several messages in each.
"""
NODE = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_NODELIST": "node[03-04]",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "3",
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def spawn(folder: Path, *words: str, **variables: str) -> subprocess.Popen[str]:
    """Start Python with these words, with no cluster variables but ``variables``."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM_", "OMPI_"))
    }
    environment = {
        **kept,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
        "PYTHONUNBUFFERED": "1",
        "JAX_PLATFORMS": "cpu",
    }
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env={**environment, **variables},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def keys(port: int, process_id: int) -> list[str]:
    return [
        f"distributed.coordinator=127.0.0.1:{port}",
        "distributed.num_processes=2",
        f"distributed.process_id={process_id}",
    ]


def start_two(folder: Path, *words: str) -> list[subprocess.Popen[str]]:
    port = free_port()
    return [spawn(folder, "-m", "jaxrl_fast.train", *words, *keys(port, i)) for i in (0, 1)]


def end_all(started: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    try:
        return [finish(process) for process in started]
    finally:
        for process in started:
            process.kill()


def arrays(folder: Path, steps: int) -> dict[str, np.ndarray]:
    return read_arrays(read_description(folder / "checkpoints" / str(steps)))


def assert_same_end(one: Path, other: Path) -> None:
    """Check that the whole states of the last checkpoints are equal, bit for bit."""
    (last,) = {all_steps(folder / "checkpoints")[-1] for folder in (one, other)}
    a, b = arrays(one, last), arrays(other, last)
    assert a.keys() == b.keys()
    assert not [name for name in a if not np.array_equal(a[name], b[name])]


@pytest.fixture(scope="module")
def programs(tmp_path_factory, request) -> tuple[Path, list[str]]:
    """Return the folder of the selected runs that two processes of a program made together, and the
    output of each.
    """
    folder = tmp_path_factory.mktemp("together")
    here = [
        item
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    ]
    # other files also have a parameter "name"
    selected = {item.callspec.params.get("name") for item in here}
    names = [name for name in distributed_program.jobs() if name in {*selected, "ppo_with_server"}]
    names += [name for name in distributed_program.POPULATIONS if name in selected]
    address = f"127.0.0.1:{free_port()}"
    script = str(ROOT / "tests" / "distributed_program.py")
    ended = end_all([spawn(folder, script, address, str(i), str(folder), *names) for i in (0, 1)])
    assert [status for status, _, _ in ended] == [0, 0], ended
    return folder, [out for _, out, _ in ended]


@pytest.mark.parametrize("name", distributed_program.jobs())
def test_two_processes_compute_what_one_does_with_as_many_devices(programs, name, tmp_path):
    result = distributed_program.train(name, tmp_path)
    assert_same_end(programs[0] / name, tmp_path / name)
    for file in ("policy/params.msgpack", "checkpoints"):
        assert (programs[0] / name / file).exists()
    assert (programs[0] / name / "policy/params.msgpack").read_bytes() == (
        tmp_path / name / "policy/params.msgpack"
    ).read_bytes()
    evaluations = [rows(folder / name) for folder in (programs[0], tmp_path)]
    assert evaluations[0] == evaluations[1] and len(evaluations[0]) >= 2 * 4
    said = f"{name} {result.summary['eval_return_mean']} {len(result.history)}"
    assert all(said in out for out in programs[1])


@pytest.mark.parametrize("name", distributed_program.POPULATIONS)
def test_members_divided_over_two_processes_compute_what_they_do_in_one(programs, name, tmp_path):
    ours = distributed_program.population(tmp_path / name, **distributed_program.POPULATIONS[name])
    for process in (0, 1):
        assert json.loads((programs[0] / f"{name}-{process}.json").read_text()) == json.loads(
            json.dumps(ours)
        )
    written = [folder / name / "trials.csv" for folder in (programs[0], tmp_path)]
    assert all(path.exists() for path in written)


def test_one_process_goes_on_from_what_two_have_saved(programs, tmp_path):
    name = "ppo_with_server"  # SAC's earlier checkpoint no longer has its replay buffer
    half, end = all_steps(programs[0] / name / "checkpoints")
    distributed_program.train(name, tmp_path, resume=programs[0] / name / "checkpoints" / str(half))
    assert all_steps(tmp_path / name / "checkpoints")[-1] == end
    assert_same_end(programs[0] / name, tmp_path / name)


def test_a_program_speaks_through_process_0_and_is_refused_what_processes_cannot_share(programs):
    first, second = programs[1]
    for out in programs[1]:
        assert "spread and read: True\n" in out
        assert (
            "process 1 was started with seed=1, process 0 with seed=0: start all of them with the same"
            in out
        )
        assert "placement=fused stays within one process: write placement=data_parallel" in out
        assert "debug=true works in a single process only, not in 2: write distributed=off" in out
    assert "train\n" in first and "eval\n" in first
    assert "train\n" not in second and "eval\n" not in second
    assert not (programs[0] / "nowhere").exists()


def evaluators_of(process: subprocess.Popen[str]) -> list[int]:
    """Return the processes that evaluate for this one."""
    children = Path(f"/proc/{process.pid}/task").glob("*/children")
    found = [int(child) for file in children for child in file.read_text().split()]
    return [child for child in found if b"jaxrl_fast.evaluator" in command_of(child)]


def command_of(process: int) -> bytes:
    """Return the command line of a process, which is empty once it has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def wait_for_evaluation(run: Path, after: int, first: subprocess.Popen[str]) -> int:
    """Wait until a policy of more than ``after`` environment steps is evaluated; return the steps
    of the last one.

    The evaluating process of ``first`` gets ordinary priority.
    """
    last = 0

    def is_evaluated() -> bool:
        nonlocal last
        for process in evaluators_of(first):
            take_from_idle(process)
        last = max((int(row[1]) for row in rows(run)), default=0)
        return last > after

    wait_until(is_evaluated)
    return last


class Stopped(NamedTuple):
    """Results of two processes, one of which received a signal; ``evaluators``: the evaluation
    processes of each before one was killed, and all later ones.
    """

    folder: Path
    ended: list[tuple[int, str, str]]
    evaluators: list[list[int]]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> Stopped:
    """Run two processes that SLURM seems to have started.

    One evaluation process is killed, then the second process receives a SIGTERM.
    """
    folder = tmp_path_factory.mktemp("stopped")
    slurm = {
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_NODELIST": "127.0.0.1",
        "SLURM_NTASKS": "2",
        "SLURM_LOCALID": "0",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "JAX_COORDINATOR_PORT": str(free_port()),
    }
    words = ["-m", "jaxrl_fast.train", *LONG]
    started = [spawn(folder, *words, **slurm, SLURM_PROCID=str(i)) for i in (0, 1)]
    evaluated = wait_for_evaluation(folder / "run", 0, started[0])
    evaluators = [evaluators_of(process) for process in started]
    os.kill(evaluators[0][0], signal.SIGKILL)
    wait_for_evaluation(folder / "run", evaluated, started[0])
    evaluators += [evaluators_of(process) for process in started]
    started[1].send_signal(signal.SIGTERM)
    return Stopped(folder, end_all(started), evaluators)


def test_a_signal_to_one_process_ends_all_at_the_same_chunk_saved(stopped):
    folder, ended, _ = stopped
    (first, out, err), (second, other_out, other_err) = ended
    assert (first, second) == (143, 143), ended
    assert (
        err == "" and "stopping after this chunk; press Ctrl-C again to stop at once" in other_err
    )
    assert "placement data_parallel on 2 devices (of 2 processes)\n" in out and "resume:" in out
    lines = other_out.splitlines()
    assert len(lines) == 1 and lines[0].startswith("process 1 of 2 on ")
    assert lines[0].endswith("drives 1 device (cpu 2048)")
    table = (folder / "run" / "metrics.csv").read_text().splitlines()
    trained = table[-1].split(",")[table[0].split(",").index("env_steps")]
    assert all_steps(folder / "run" / "checkpoints")[-1] == int(trained)


def test_process_0_alone_has_an_evaluator_which_may_die_and_ends_with_it(stopped):
    first, none, again, none_again = stopped.evaluators
    assert len(first) == len(again) == 1 and first != again
    assert none == none_again == []
    wait_until_gone(*first, *again)


def test_it_goes_on_as_one_process_would_and_a_killed_process_ends_the_other(stopped, tmp_path):
    shutil.copytree(stopped.folder / "run", tmp_path / "run")
    shutil.copytree(stopped.folder / "run", tmp_path / "alone")
    steps = all_steps(tmp_path / "run" / "checkpoints")[-1]
    chunk = (tmp_path / "run" / "metrics.csv").read_text().count("\n") - 1
    words = ["placement=sampler_learner", "devices=2", f"checkpoint.every={steps // chunk}"]
    started = start_two(tmp_path, "resume=run", *words, "checkpoint.keep=1000000")
    wait_for(tmp_path / "run" / "checkpoints" / str(steps + steps // chunk) / "description.json")
    started[1].send_signal(signal.SIGKILL)
    (status, _, err), (killed, _, _) = end_all(started)
    assert killed == -signal.SIGKILL
    assert status != 0
    assert "jaxrl_fast: error: process 0 of 2 ended before the run: another process died" in err
    assert "Traceback" not in err

    goal = steps + steps // chunk
    status, _, err = finish(
        spawn(
            tmp_path,
            "-m",
            "jaxrl_fast.train",
            "resume=alone",
            f"total_steps={goal}",
            "eval.beside=false",
            *words,
        )
    )
    assert (status, err) == (0, "")
    one, other = arrays(tmp_path / "run", goal), arrays(tmp_path / "alone", goal)
    states = [{name for name in found if not name.startswith(BESIDE)} for found in (one, other)]
    assert states[0] == states[1]  # timing decides which policies still wait for their evaluation
    assert not [name for name in states[0] if not np.array_equal(one[name], other[name])]


def test_commands_that_differ_and_folders_that_cannot_be_written_end_all_in_one_line(tmp_path):
    (tmp_path / "file").touch()
    port = free_port()
    words = ["-m", "jaxrl_fast.train", *SMALL, "total_steps=64"]
    ended = end_all([spawn(tmp_path, *words, f"seed={i}", *keys(port, i)) for i in (0, 1)])
    ended += end_all(start_two(tmp_path, *words[2:], "run_dir=file/run"))
    for status, _, err in ended:
        assert status == 2, ended
        assert err.startswith("jaxrl_fast: error: ") and err.count("\n") == 1, err
    assert all(
        "with seed=0: start all of them with the same command" in err for _, _, err in ended[:2]
    )
    assert all("cannot write to the run folder file/run" in err for _, _, err in ended[2:])
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_port_that_is_taken_and_a_host_that_is_unknown_are_said_before_anything_is_waited_for():
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(
            ValueError, match=f"process 0 cannot listen at port {port} .* write another"
        ):
            cluster.start(Processes(f"127.0.0.1:{port}", 2, 0))
    with pytest.raises(ValueError, match=r"this machine cannot resolve no_such_host.invalid"):
        cluster.start(Processes("no_such_host.invalid:4321", 2, 1))


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, Processes("node03:61517", 4, 3, None)),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x2)"}, Processes("node03:61517", 4, 3, (1,))),
        (
            {"SLURM_STEP_TASKS_PER_NODE": "2(x2)", "CUDA_VISIBLE_DEVICES": "1"},
            Processes("node03:61517", 4, 3, None),
        ),
        ({"JAX_COORDINATOR_PORT": "4321"}, Processes("node03:4321", 4, 3, None)),
        ({"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, None),
    ],
)
def test_slurm_tells_who_takes_part_and_one_process_a_node_drives_all_its_devices(
    told, expected, monkeypatch
):
    for name, value in {
        **NODE,
        "SLURM_LOCALID": "1",
        "SLURM_STEP_TASKS_PER_NODE": "1(x4)",
        **told,
    }.items():
        monkeypatch.setenv(name, value)
    assert cluster.find() == expected


def test_open_mpi_tells_who_takes_part(monkeypatch):
    monkeypatch.setenv("OMPI_MCA_orte_hnp_uri", "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911")
    for name, value in {"SIZE": "2", "RANK": "1", "LOCAL_RANK": "0", "LOCAL_SIZE": "1"}.items():
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    found = cluster.find()
    assert found is not None and found[1:] == (2, 1, None)
    assert found.coordinator.startswith("10.96.0.1:")


def test_without_a_cluster_there_is_one_process_and_half_a_cluster_is_named(monkeypatch):
    assert cluster.find() is None
    monkeypatch.setenv("OMPI_MCA_orte_hnp_uri", "nonsense")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(
        ValueError, match="several processes were started, but their connection is not defined"
    ):
        cluster.find()


def test_a_jax_without_what_several_processes_need_is_named(monkeypatch):
    monkeypatch.setattr(cluster, "CLUSTERS", {"SLURM_JOB_ID": "jax.clusters.NoSuchCluster"})
    assert cluster.find() is None
    for name, value in NODE.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        ValueError, match=r"JAX \S+ has no jax.clusters.NoSuchCluster.*distributed=off"
    ):
        cluster.find()
    monkeypatch.setattr(cluster, "MEETING", "jax.no_such_meeting")
    with pytest.raises(
        ValueError, match=r"JAX \S+ has no jax.no_such_meeting.*install another version"
    ):
        cluster.start(Processes("localhost:4321", 2, 1))


def test_devices_are_shared_evenly():
    assert hosts.share_of(8, 4) == 2
    with pytest.raises(
        ValueError, match="devices=3 cannot be shared evenly by 2 processes: write a multiple of 2"
    ):
        hosts.share_of(3, 2)


def test_the_last_word_is_said_only_by_who_is_ended_from_outside_and_did_not_take_it_back():
    script = (
        "import os, sys; from jaxrl_fast.runtime.cluster import last_word; "
        "last_word.say('one'); last_word.say(sys.argv[1]); os.abort()"
    )
    for word, expected in (("two", "jaxrl_fast: error: two\n"), ("", "")):
        status, _, err = finish(spawn(ROOT, "-c", script, word))
        assert (status, err) == (-signal.SIGABRT, expected)


def commands_of_the_docs() -> list[str]:
    # lines of the first are cut, and lines of the second need its package (test_plugins.py)
    other = ("limits.md", "suite.md")
    pages = [path for path in sorted(ROOT.glob("docs/**/*.md")) if path.name not in other]
    text = "\n".join(path.read_text() for path in [ROOT / "README.md", *pages])
    lines = re.findall(r"python -m jaxrl_fast\.\w+[^\n`#|\\]*(?:\\\n[^\n`#|\\]*)*", text)
    return sorted({re.sub(r"\s*\\\n\s*", " ", line).strip() for line in lines})


@pytest.mark.parametrize("line", commands_of_the_docs())
def test_the_commands_of_the_docs_name_keys_that_exist(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command, *words = line.removeprefix("python -m jaxrl_fast.").split()
    assert command in COMMANDS
    if command != "train" or not words or words[-1] == "...":
        return
    plain = [re.sub(r"['\"]", "", re.sub(r"\$\(.*?\)|\$\{?\w+\}?", "1", word)) for word in words]
    absent = ("--", "config=runs", "resume=runs", "+env.", "algo.learning_rate=file:")
    known = [w for w in plain if w and not w.startswith(absent) and w != "..."]
    assert cli.expand(known)
