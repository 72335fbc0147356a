"""Worker processes: how they are started, told, heard, replaced and ended. It knows bytes, not environments.

A worker is a plain ``python -c`` process: never a fork of one in which JAX runs, and never a second run of the user's
script, so neither a notebook nor a script needs a ``__main__`` guard. Its memory is an anonymous file that both hold by
descriptor: no name, so nothing can be left behind. Pipes carry one byte per batch each way; their end tells either side
that the other is gone.
"""

import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from envs.pool.stepping import PoolError
from envs.pool.worker import MAX_LAST_WORDS, RESET, Job

BOOT = (
    "import mmap, pickle, sys; job, *rest = map(int, sys.argv[1:7]); "
    "sys.path[:], told = pickle.loads(mmap.mmap(job, 0, access=mmap.ACCESS_READ)); "
    "from envs.pool.worker import main; main(*rest, told)"
)
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""The workers are the parallelism: libraries inside of them must not add threads of their own."""
GRACE_S = 2.0
"""How long a worker may take to close its environments."""


class Died(Exception):
    """``worker`` is gone, ``how`` says why; ``words`` are its last, possibly none."""

    def __init__(self, worker: int, how: str, words: bytes) -> None:
        super().__init__(how)
        self.worker, self.how, self.words = worker, how, words.decode(errors="replace")


@dataclass
class Worker:
    """A process and the parent's ends of its pipes. ``replies`` have come and were not waited for yet."""

    index: int
    process: subprocess.Popen
    command: int
    reply: int
    lifeline: int
    poll: Any  # select.poll, which is a function
    replies: set[int] = field(default_factory=set)
    words: bytes = b""


class Crew(NamedTuple):
    """``tell(worker, command)``; ``wait(worker, reply, timeout_s)`` for the answer, the time running anew with each
    answer; ``arrivals(timeout_s) -> [(worker, reply)]``, those that answer next, none if the time runs out. Both raise
    `Died`, and `PoolError` where an environment raised. ``give_up(worker, timeout_s)`` ends one that did not answer in
    time, ``replace(worker)`` starts it anew, ``close()`` ends all.
    """

    tell: Callable[[int, int], None]
    wait: Callable[[int, int, float], None]
    arrivals: Callable[[float], list[tuple[int, int]]]
    give_up: Callable[[int, float], Died]
    replace: Callable[[int], None]
    close: Callable[[], None]


def anonymous_file(content: bytes = b"", size_bytes: int = 0) -> int:
    """A descriptor of memory that no name leads to: it is gone when the last process that holds it is."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("jaxrl_fast_pool")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.truncate(fd, max(size_bytes, len(content), 1))
    if content:
        os.pwrite(fd, content, 0)
    return fd


def start_crew(job: Job, memory_fd: int) -> Crew:
    """Start a worker for each of the job's shares; returns before they have begun.

    ``memory_fd`` holds the arrays of the job and is closed by ``close``.

    Raises:
        ValueError: this system has no such processes.
    """
    if os.name != "posix":
        raise ValueError("worker processes need Linux or macOS: write pool.workers=0")
    job_fd = anonymous_file(pickle.dumps((sys.path, pickle.dumps(job))))
    workers = [_start(job.name, index, job_fd, memory_fd) for index in range(len(job.shares))]
    owner = os.getpid()

    def tell(index: int, command: int) -> None:
        with suppress(BrokenPipeError):  # `wait` finds out
            os.write(workers[index].command, bytes((command,)))

    def wait(index: int, reply: int, timeout_s: float) -> None:
        worker = workers[index]
        while reply not in worker.replies:
            if not worker.poll.poll(1000 * timeout_s):
                raise _hung(worker, timeout_s)
            _listen(worker)
        worker.replies.discard(reply)
        if reply == RESET:
            worker.replies.clear()  # of steps that were sent before it

    def replace(index: int) -> None:
        _end([workers[index]], grace_s=0.0)
        workers[index] = _start(job.name, index, job_fd, memory_fd)

    def close() -> None:
        nonlocal job_fd
        if not workers or os.getpid() != owner:  # a fork of the parent must leave the workers alone
            return
        _end(workers, grace_s=GRACE_S)
        workers.clear()
        os.close(job_fd)
        os.close(memory_fd)

    def give_up(index: int, timeout_s: float) -> Died:
        return _hung(workers[index], timeout_s)

    return Crew(tell, wait, _arrivals(workers), give_up, replace, close)


def _arrivals(workers: list[Worker]) -> Callable[[float], list[tuple[int, int]]]:
    def arrivals(timeout_s: float) -> list[tuple[int, int]]:
        poll, index_of = select.poll(), {worker.reply: i for i, worker in enumerate(workers)}
        for fd in index_of:
            poll.register(fd, select.POLLIN)
        ready = [index_of[fd] for fd, _ in poll.poll(1000 * timeout_s)]
        for i in ready:
            _listen(workers[i])
        came = [(i, reply) for i in ready for reply in workers[i].replies]
        for i in ready:
            workers[i].replies.clear()
        return came

    return arrivals


def _start(name: str, index: int, job_fd: int, memory_fd: int) -> Worker:
    (commands, command), (reply, replies), (lifeline_end, lifeline) = os.pipe(), os.pipe(), os.pipe()
    fds = (memory_fd, commands, replies, lifeline_end)
    numbers = [str(number) for number in (job_fd, index, *fds)]
    quiet = {"JAX_PLATFORMS": "cpu", **dict.fromkeys(ONE_THREAD, "1")}
    process = subprocess.Popen(
        [sys.executable, "-c", BOOT, *numbers, f"worker {index} of {name}"],
        stdin=subprocess.DEVNULL, pass_fds=(job_fd, *fds), env={**quiet, **os.environ},
        start_new_session=True,  # Ctrl-C in a terminal is for the parent
    )  # fmt: skip
    for fd in (commands, replies, lifeline_end):
        os.close(fd)
    poll = select.poll()
    poll.register(reply, select.POLLIN)
    return Worker(index, process, command, reply, lifeline, poll)


def _listen(worker: Worker) -> None:
    """Take in what a worker wrote. Raises `Died` at the end of it, `PoolError` where an environment raised."""
    heard = os.read(worker.reply, MAX_LAST_WORDS)
    while heard and heard[0] <= RESET and not worker.words:
        worker.replies.add(heard[0])
        heard = heard[1:]
        if not heard:
            return
    if heard:
        worker.words += heard
        return
    try:
        status = worker.process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        worker.process.kill()
        status = worker.process.wait()
    if status == 1 and worker.words:
        raise PoolError(worker.words.decode(errors="replace"))
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
    raise Died(worker.index, how, worker.words)


def _hung(worker: Worker, timeout_s: float) -> Died:
    """Have ``faulthandler`` say where it hangs, by SIGABRT, then kill it."""
    worker.process.send_signal(signal.SIGABRT)
    with suppress(subprocess.TimeoutExpired):
        worker.process.wait(GRACE_S / 2)
    worker.process.kill()
    worker.process.wait()
    with suppress(Died, PoolError):
        while worker.poll.poll(0):
            _listen(worker)
    return Died(worker.index, f"did not answer within {timeout_s:g} s", worker.words)


def _end(workers: Sequence[Worker], *, grace_s: float) -> None:
    """Let workers close their environments, for a while; then kill them."""
    deadline = time.monotonic() + grace_s
    for worker in workers:
        os.close(worker.command)
        if grace_s == 0.0:
            worker.process.kill()
    for worker in workers:
        with suppress(subprocess.TimeoutExpired):
            worker.process.wait(max(deadline - time.monotonic(), 0.0))
        worker.process.kill()
        worker.process.wait()
        os.close(worker.reply)
        os.close(worker.lifeline)
