"""Workers and parents that are killed, hang or fail: real processes and signals."""

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
from pool_envs import Walk

from jaxrl_fast.envs.from_gymnasium import make_custom_host
from jaxrl_fast.envs.host_env import HostEnv, HostStep
from jaxrl_fast.envs.pool import parallel
from jaxrl_fast.envs.pool.batches import PoolOptions
from jaxrl_fast.envs.pool.stepping import PoolError

ROOT = Path(__file__).parent.parent
PID = 3
IN_TIME_S = 300.0
"""Far longer than any test here takes on a busy machine; it catches only hangs."""
SHORT = {"step_timeout_s": 0.2}
"""The limit of steps where all workers hang. `without_limit` suspends it where another one is
waited for.
"""


@pytest.fixture
def start() -> Iterator[Callable[..., HostEnv]]:
    hosts: list[HostEnv] = []

    def start(
        on_nine: str = "nothing", num_envs: int = 8, hung: Path | None = None, **options: object
    ) -> HostEnv:
        pool = PoolOptions(**{"workers": 2, "num_groups": 2, **options})  # type: ignore[arg-type]
        make = partial(Walk, on_nine=on_nine, hung=hung)
        hosts.append(make_custom_host(make, num_envs=num_envs, name="walk", pool=pool))
        return hosts[-1]

    yield start
    for host in hosts:
        host.close()


def step(host: HostEnv, group: int, action: int | list[int] = 1) -> HostStep:
    host.send(np.broadcast_to(action, host.num_envs // host.num_groups), group)
    return host.recv(group)


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def gone(pids: list[int]) -> bool:
    return soon(lambda: not any(map(alive, pids)))


def soon(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + IN_TIME_S
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert gone([pid])


@contextmanager
def without_limit(host: HostEnv) -> Iterator[None]:
    """Suspend the limit of a step's time, which a worker that does not hang may exceed on a busy
    machine.
    """
    pool = host.recv.__self__  # type: ignore[attr-defined]
    limit_s, pool.step_timeout_s = pool.step_timeout_s, IN_TIME_S
    yield
    pool.step_timeout_s = limit_s


def until_answered(host: HostEnv, worker: int, group: int) -> None:
    """Wait until a worker has answered a step, and leave the answer to `recv`."""
    crew = host.recv.__self__.crew  # type: ignore[attr-defined]
    crew.wait(worker, group, IN_TIME_S)
    crew.workers[worker].replies.add(group)


def test_a_killed_worker_is_replaced_and_its_episodes_are_truncated_as_last_seen(start):
    host, undisturbed = start(), start(workers=0)
    for each in (host, undisturbed):
        each.reset(0)
        before = [step(each, group) for group in (0, 1)]
    before = [step(host, group) for group in (0, 1)]
    for group in (0, 1):
        step(undisturbed, group)
    victim = int(before[0].obs[2, PID])
    assert [int(pid) == victim for pid in before[0].obs[:, PID]] == [False, False, True, True]
    kill(victim)
    # the worker served both groups: neither may continue from an observation of a lost episode
    for group in (
        0,
        1,
    ):
        after, expected = step(host, group), step(undisturbed, group)
        np.testing.assert_array_equal(after.next_obs[:2, :PID], expected.next_obs[:2, :PID])
        np.testing.assert_array_equal(after.next_obs[2:], before[group].obs[2:])
        assert (
            after.truncated[2:].all()
            and not after.terminated[2:].any()
            and not after.reward[2:].any()
        )
        over = (before[group].terminated | before[group].truncated)[2:]
        np.testing.assert_array_equal(
            after.episode_length[2:], np.where(over, 0, before[group].episode_length[2:])
        )
        np.testing.assert_array_equal(
            after.episode_return[2:], np.where(over, 0, before[group].episode_return[2:])
        )
        # first step of the first episode of a new process
        np.testing.assert_array_equal(after.obs[2:, 1:PID], 0)
        assert victim not in after.obs[:, PID]
        again = step(host, group)
        np.testing.assert_array_equal(
            again.next_obs[:2, :PID], step(undisturbed, group).next_obs[:2, :PID]
        )
        np.testing.assert_array_equal(again.next_obs[2:, 1], 1)
        np.testing.assert_array_equal(again.episode_length[2:], 1)
    assert host.steps() == undisturbed.steps() - 4
    (line,) = host.events()
    assert "worker 1 of walk was killed by SIGKILL and was restarted" in line
    assert "4 environments start new episodes" in line and "1 restarts so far" in line


def test_a_worker_killed_with_steps_under_way_loses_them_in_every_group(start):
    host = start()
    first = host.reset(0)
    for group in (0, 1):
        host.send(np.ones(4, int), group)
    os.kill(int(first[0, PID]), signal.SIGKILL)
    for group in (1, 0):
        result = host.recv(group)
        lost = result.truncated & (result.episode_length == 0)
        # the worker may have finished some before it was killed: none, or all of its share
        assert lost[:2].all() or not lost[:2].any()
        assert not lost[2:].any()
    for _ in range(5):
        for group in (0, 1):
            step(host, group)


def test_by_arrival_workers_are_replaced_too(start):
    host = start("hang", order="arrival", **SHORT)
    with without_limit(host):
        first, _ = host.reset(0), host.events()
        actions = np.ones(8, int)
        actions[5] = 9
        host.send_to(actions, np.arange(8))
        lengths = np.zeros(8, int)
        while not lengths[
            [0, 2, 6]
        ].all():  # of one worker a group hangs, the other worker continues
            indices, result = host.recv_any()
            lengths[indices] = result.episode_length
            served = indices[indices % 4 > 1]
            host.send_to(np.ones(len(served), int), served)
        assert not np.isin([4, 5], np.flatnonzero(lengths)).any() and host.events() == []
        # so that only the group that hangs is under way
        assert sorted(host.recv_any()[0]) == [
            2,
            3,
            6,
            7,
        ]
    indices, result = host.recv_any()
    assert list(indices) == [4, 5] and result.truncated.all() and not result.episode_length.any()
    assert "worker 0 of walk did not answer within 0.2 s" in host.events()[-1] and not alive(
        int(first[5, PID])
    )
    pids, lines = np.zeros(8, int), list[str]()

    def serve() -> bool:
        indices, result = host.recv_any()
        assert all(result.truncated[result.episode_length == 0])
        pids[indices] = result.obs[:, PID]
        host.send_to(np.ones(len(indices), int), indices)
        lines.extend(host.events())
        return bool(lines)

    with without_limit(host):
        host.send_to(np.ones(8, int), np.arange(8))
        assert soon(lambda: serve() or pids[0] > 0) and not lines
        os.kill(pids[0], signal.SIGKILL)
        assert soon(serve)
    assert "worker 0 of walk was killed by SIGKILL" in lines[0]


def test_a_pool_that_is_forgotten_ends_its_workers(start):
    host = make_custom_host(Walk, num_envs=2, pool=PoolOptions(workers=2, num_groups=1))
    pids = [int(pid) for pid in host.reset(0)[:, PID]]
    del host
    gc.collect()
    assert gone(pids)


def test_new_environments_do_not_repeat_the_lost_ones(start):
    host = start(num_groups=1)
    first = host.reset(0)
    kill(int(first[0, PID]))
    fresh = step(host, 0).obs
    assert not np.isin(fresh[:4, 0], first[:, 0]).any()


def test_a_worker_that_hangs_is_replaced(start, tmp_path):
    host = start("hang", hung=tmp_path / "hung", **SHORT)
    first = host.reset(0)
    host.send(np.array([9, 1, 1, 1]), 0)
    until_answered(host, 1, 0)
    result = host.recv(0)
    assert result.truncated[:2].all()
    (line,) = host.events()
    assert "worker 0 of walk did not answer within 0.2 s" in line
    assert not alive(int(first[0, PID])) and alive(int(first[2, PID]))
    with without_limit(host):
        assert (step(host, 0).next_obs[:2, 1] == 1).all()


@pytest.mark.parametrize("how", ["abort", "hang"])
def test_a_worker_that_dies_again_and_again_ends_in_its_own_traceback(
    start, how: str, tmp_path, monkeypatch
):
    # enough to print the traceback on any machine
    monkeypatch.setattr(parallel, "GRACE_S", IN_TIME_S)
    hung = tmp_path / "hung"
    host = start(
        how, num_envs=2, workers=1, num_groups=1, hung=hung, **(SHORT if how == "hang" else {})
    )
    host.reset(0)
    with pytest.raises(PoolError) as caught:
        for _ in range(9):
            host.send(np.array([1, 9]), 0)
            if how == "hang":
                assert soon(hung.exists)
                hung.unlink()
            host.recv(0)
    message = str(caught.value)
    assert {
        "abort": "worker 0 of walk was killed by SIGABRT",
        "hang": "did not answer within 0.2 s",
    }[how] in message
    assert "is not restarted after 3 deaths within 10,000 batches" in message
    assert 'pool_envs.py", line' in message and "in misbehave" in message
    assert len(host.events()) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_an_environment_that_raises_shows_its_traceback_and_seed(start, workers: int):
    host = start("raise", workers=workers)
    pids = [int(pid) for pid in host.reset(0)[:, PID]]
    step(host, 1)
    with pytest.raises(PoolError) as caught:
        step(host, 1, [1, 1, 1, 9])
    message = str(caught.value)
    assert message.startswith(
        "environment 7 of walk raised KeyError: 'no such thing' (step 2 of an episode, seed "
    )
    assert 'raise KeyError("no such thing")' in message and "pool_envs.py" in message
    if workers:
        assert gone(pids)
        with pytest.raises(ValueError, match="closed"):
            host.recv(0)


def test_an_environment_that_raises_while_it_is_measured_shows_its_traceback():
    with pytest.raises(
        PoolError, match=r"raised KeyError: 'no such thing' .while its steps were measured"
    ):
        make_custom_host(partial(Walk, on_nine="raise"), num_envs=4, name="walk")


def test_environments_that_differ_between_processes_or_cannot_be_made_there_say_so():
    parent = os.getpid()

    def fails_elsewhere() -> Walk:
        if os.getpid() != parent:
            raise OSError("no display here")
        return Walk()

    host = make_custom_host(fails_elsewhere, num_envs=2, name="walk", pool=PoolOptions(workers=1))
    with pytest.raises(PoolError, match="OSError: no display here"):
        host.reset(0)
    locked = partial(lambda lock: Walk(), threading.Lock())
    with pytest.raises(ValueError, match="cannot be sent to worker processes"):
        make_custom_host(locked, num_envs=2, name="walk", pool=PoolOptions(workers=1))


PARENT = """
import os, sys, time
from functools import partial
import numpy as np
from pool_envs import Walk
from jaxrl_fast.envs.from_gymnasium import make_custom_host
from jaxrl_fast.envs.pool.batches import PoolOptions

host = make_custom_host(partial(Walk, on_nine="hang"), num_envs=4, pool=PoolOptions(workers=2, num_groups=2))
print(*{int(pid) for pid in host.reset(0)[:, 3]}, flush=True)
how = sys.argv[1]
host.send(np.array([9, 1]) if how == "stuck" else np.ones(2, int), 0)
print("sent", flush=True)
sys.stdin.readline()
if how == "raise":
    raise RuntimeError("the parent's own")
if how in ("stuck", "wait"):
    host.recv(0)
    time.sleep(1000)
"""


@pytest.mark.parametrize(
    ("how", "number"),
    [("stuck", signal.SIGKILL), ("wait", signal.SIGINT), ("wait", signal.SIGTERM), ("raise", None)],
)
def test_no_worker_and_no_shared_memory_outlives_the_parent(
    how: str, number: signal.Signals | None
):
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
    )
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2 and process.stdout.readline() == "sent\n"
    shared = {path for pid in (process.pid, *pids) for path in shared_memory_of(pid)}
    process.stdin.write("\n")
    process.stdin.flush()
    if number is not None:
        os.killpg(process.pid, number)  # as a terminal does
    _, err = process.communicate(timeout=IN_TIME_S)
    assert gone(pids)
    assert not [path for path in shared if os.path.exists(path)]
    # the parent's, not a worker's
    tracebacks = 1 if how == "raise" or number == signal.SIGINT else 0
    assert err.count("Traceback") == tracebacks, err


def shared_memory_of(pid: int) -> set[str]:
    """Return the files of shared memory that a process has mapped. Other tests have some meanwhile."""
    maps = Path(f"/proc/{pid}/maps")
    return set(re.findall(r"/dev/shm/\S+", maps.read_text())) if maps.exists() else set()
