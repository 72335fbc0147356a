"""Semaphores between processes, of both kinds: each post is acquired exactly once, and no process
waits for ever.
"""

import subprocess
import sys
import threading
import time
from functools import partial

import numpy as np
import pytest
from pool_envs import Walk

from jaxrl_fast.envs.from_gymnasium import make_custom_host
from jaxrl_fast.envs.pool import parallel
from jaxrl_fast.envs.pool.batches import PoolOptions
from jaxrl_fast.envs.pool.worker import make_signals, open_signals

KINDS = ["posix", "pipes"] if sys.platform == "linux" else ["pipes"]


@pytest.fixture(params=KINDS)
def pipes(request) -> bool:
    return request.param == "pipes"


def test_every_post_is_acquired_once_and_by_its_number(pipes):
    signals = open_signals(make_signals(3, 0, pipes=pipes), 3)
    for _ in range(5):
        signals.post(1)
    assert [signals.acquire(1, 0) for _ in range(6)] == [True] * 5 + [False]
    signals.post(2)
    signals.clear(2)
    assert not any(signals.acquire(i, 0.001) for i in range(3))


@pytest.mark.parametrize("after_s", [0.0, 0.02])
def test_a_waiter_is_woken_awake_or_asleep(pipes, after_s):
    signals = open_signals(make_signals(1, 0, pipes=pipes), 1)
    poster = threading.Thread(target=lambda: (time.sleep(after_s), signals.post(0)))
    poster.start()
    assert signals.acquire(0, 60.0)
    poster.join()


def test_another_process_answers_and_reads_the_board(pipes):
    fds = make_signals(2, 1, pipes=pipes)
    code = (
        f"from jaxrl_fast.envs.pool.worker import open_signals; signals = open_signals({fds}, 2)\n"
        "while signals.acquire(0, 60.0): signals.board[0] += 1; signals.post(1)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], pass_fds=fds)
    signals = open_signals(fds, 2)
    for turn in range(1, 201):  # fewer than a byte holds
        signals.post(0)
        assert signals.acquire(1, 60.0)
        assert signals.board[0] == turn
    process.kill()
    process.wait()


def test_a_pool_whose_signals_are_pipes_gives_the_same(monkeypatch):
    def roll() -> list[np.ndarray]:
        host = make_custom_host(Walk, num_envs=4, name="walk", pool=PoolOptions(workers=2))
        obs = [host.reset(3)]
        for t in range(50):
            for group in (0, 1):
                host.send(np.full(2, t % 9), group)
            obs += [host.recv(group).obs for group in (0, 1)]
        host.close()
        return [part[:, :3] for part in obs]  # the process id follows

    usual = roll()
    monkeypatch.setattr(parallel, "make_signals", partial(make_signals, pipes=True))
    np.testing.assert_array_equal(np.concatenate(roll()), np.concatenate(usual))
