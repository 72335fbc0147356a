"""Worker processes: starting them, sending commands, waiting for answers, restarting and ending them. Nothing here
knows what an environment is.

A worker is a plain ``python -c`` process: never a fork of one in which JAX runs, and never a second run of the user's
script, so neither a notebook nor a script needs a ``__main__`` guard. Its memory is an anonymous file that both hold by
descriptor: no name, so nothing can be left behind. Semaphores there wake either side once a batch; a pipe in each
direction, when it closes, shows that the other side is gone.
"""

import os
import pickle
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from envs.pool.signals import anonymous_file, make_signals, open_signals
from envs.pool.stepping import PoolError
from envs.pool.worker import BACKLOG, END, MAX_LAST_WORDS, NEWS, RESET, WorkerJob

BOOT = (
    "import mmap, pickle, sys; job, *rest = map(int, sys.argv[1:5]); "
    "sys.path[:], given = pickle.loads(mmap.mmap(job, 0, access=mmap.ACCESS_READ)); "
    "from envs.pool.worker import main; main(*rest, given)"
)
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""The workers are the parallelism: libraries inside them must not add threads."""
GRACE_S = 2.0
"""How long a worker may take to close its environments."""
AWAKE_S = 20e-6
"""How long a parent that waits polls before it sleeps: the workers and XLA need its core."""
NOTICE_S = 0.05
"""How often a parent that waits checks whether the worker is still alive."""


class Died(Exception):
    """A worker process has ended: ``worker``, its index; ``how`` it ended; ``words``: its last output, if any."""

    def __init__(self, worker: int, how: str, words: bytes) -> None:
        super().__init__(how)
        self.worker, self.how, self.words = worker, how, words.decode(errors="replace")


@dataclass
class Worker:
    """A worker process, the parent's ends of its pipes, and the ``words`` that came by them.

    ``replies`` have arrived and were not waited for yet; ``commands`` counts those that were sent.
    """

    index: int
    process: subprocess.Popen
    last_words: int
    lifeline: int
    poll: Any  # select.poll, which is a function
    replies: set[int] = field(default_factory=set)
    words: bytes = b""
    commands: int = 0


class Crew:
    """The workers of a job, one for each of its shares; ``close`` closes ``job.memory`` too.

    `wait` and `arrivals` raise `Died`, and `PoolError` where an environment raised.

    Raises:
        ValueError: this system has no such processes.
    """

    def __init__(self, job: WorkerJob) -> None:
        if os.name != "posix":
            raise ValueError("worker processes need Linux or macOS: write pool.workers=0")
        self.job = job._replace(signals=make_signals(job.num_signals, len(job.shares) * BACKLOG))
        self.signals = open_signals(self.job.signals, job.num_signals, awake_s=AWAKE_S)
        indices, commands = range(len(job.shares)), (*range(len(job.shares[0])), RESET)
        self.go = [job.go(index) for index in indices]
        self.done = [{command: job.done(index, command) for command in commands} for index in indices]
        self.job_fd = anonymous_file(pickle.dumps((sys.path, pickle.dumps(self.job))))
        self.workers = [_start(self.job, index, self.job_fd) for index in indices]
        self.owner, self.looked_s = os.getpid(), time.monotonic()

    def order(self, index: int, command: int) -> None:
        """Send a worker a command; returns at once."""
        worker = self.workers[index]
        self.signals.board[index * BACKLOG + worker.commands % BACKLOG] = command
        worker.commands += 1
        self.signals.post(self.go[index])

    def wait(self, index: int, reply: int, timeout_s: float) -> None:
        """Wait until a worker has answered the command ``reply``; each of its answers restarts the timeout."""
        worker, heard_s, done = self.workers[index], time.monotonic(), self.done[index][reply]
        while reply not in worker.replies and not self.signals.acquire(done, min(NOTICE_S, timeout_s)):
            _hear(worker)
            if others := self._replies(index):
                worker.replies |= others
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > timeout_s:
                raise _hung(worker, timeout_s)
        worker.replies.discard(reply)
        if reply == RESET:
            self._forget(index)  # the answers to steps that were sent before it

    def arrivals(self, timeout_s: float) -> list[tuple[int, int]]:
        """The answers that arrive next, ``[(worker, reply)]``; none after the timeout. Needs ``job.by_arrival``."""
        until_s = time.monotonic() + timeout_s
        while (now_s := time.monotonic()) < until_s:
            if now_s - self.looked_s > NOTICE_S:
                self.looked_s = now_s
                for worker in self.workers:
                    _hear(worker)
            if came := [(i, reply) for i in range(len(self.workers)) for reply in self._replies(i)]:
                for _ in came:
                    self.signals.acquire(NEWS, 0)
                return came
            self.signals.acquire(NEWS, min(NOTICE_S, timeout_s))
        return []

    def give_up(self, index: int, timeout_s: float) -> Died:
        """End a worker that did not answer in time; returns the error to report."""
        return _hung(self.workers[index], timeout_s)

    def replace(self, index: int) -> None:
        """Restart a worker; its pending commands are dropped."""
        _end([self.workers[index]], grace_s=0.0)
        self.signals.clear(self.go[index])
        self.workers[index] = _start(self.job, index, self.job_fd)
        self._forget(index)

    def close(self) -> None:
        """End all workers."""
        if not self.workers or os.getpid() != self.owner:  # a fork of the parent must leave the workers alone
            return
        for worker in self.workers:
            self.order(worker.index, END)
        _end(self.workers, grace_s=GRACE_S)
        self.workers.clear()
        for fd in (self.job_fd, self.job.memory, *self.job.signals):
            os.close(fd)

    def _replies(self, index: int) -> set[int]:
        return {reply for reply, done in self.done[index].items() if self.signals.acquire(done, 0)}

    def _forget(self, index: int) -> None:
        self.workers[index].replies.clear()
        for done in self.done[index].values():
            self.signals.clear(done)


def _start(job: WorkerJob, index: int, job_fd: int) -> Worker:
    (last_words, words_end), (lifeline_end, lifeline) = os.pipe(), os.pipe()
    numbers = [str(number) for number in (job_fd, index, words_end, lifeline_end)]
    quiet = {"JAX_PLATFORMS": "cpu", **dict.fromkeys(ONE_THREAD, "1")}
    process = subprocess.Popen(
        [sys.executable, "-c", BOOT, *numbers, f"worker {index} of {job.name}"],
        stdin=subprocess.DEVNULL,
        pass_fds=(job_fd, job.memory, *job.signals, words_end, lifeline_end),
        env={**quiet, **os.environ},
        process_group=0,  # Ctrl-C is for the parent; in a session of its own it would be scheduled without regard to it
    )
    for fd in (words_end, lifeline_end):
        os.close(fd)
    poll = select.poll()
    poll.register(last_words, select.POLLIN)
    return Worker(index, process, last_words, lifeline, poll)


def _hear(worker: Worker) -> None:
    """Read a worker's last words, if any. Raises `Died` at their end, `PoolError` where an environment raised."""
    while worker.poll.poll(0):
        heard = os.read(worker.last_words, MAX_LAST_WORDS)
        if not heard:
            raise _gone(worker)
        worker.words += heard


def _gone(worker: Worker) -> Exception:
    try:
        status = worker.process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        worker.process.kill()
        status = worker.process.wait()
    if status == 1 and worker.words:
        return PoolError(worker.words.decode(errors="replace"))
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
    return Died(worker.index, how, worker.words)


def _hung(worker: Worker, timeout_s: float) -> Died:
    """Have ``faulthandler`` write where it hangs, by SIGABRT, then kill it."""
    worker.process.send_signal(signal.SIGABRT)
    with suppress(subprocess.TimeoutExpired):
        worker.process.wait(GRACE_S / 2)
    worker.process.kill()
    worker.process.wait()
    with suppress(Died, PoolError):
        _hear(worker)
    return Died(worker.index, f"did not answer within {timeout_s:g} s", worker.words)


def _end(workers: Sequence[Worker], *, grace_s: float) -> None:
    """Give workers ``grace_s`` seconds to close their environments, then kill them; 0 kills at once."""
    deadline = time.monotonic() + grace_s
    for worker in workers if grace_s == 0.0 else ():
        worker.process.kill()
    for worker in workers:
        with suppress(subprocess.TimeoutExpired):
            worker.process.wait(max(deadline - time.monotonic(), 0.0))
        worker.process.kill()
        worker.process.wait()
        os.close(worker.last_words)
        os.close(worker.lifeline)
