"""A worker process of the pool, and the semaphores with which worker and parent wake each other.

On Linux they are POSIX semaphores in shared memory, called through ctypes: without a sleeping
process, post and test need no system call. On other systems each is a pipe, since macOS has no
unnamed semaphores.
"""

import ctypes
import faulthandler
import itertools
import mmap
import os
import pickle
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import cloudpickle

from jaxrl_fast.envs.episode_metrics import NO_KINDS
from jaxrl_fast.envs.pool.codec import Arrays, allocate, array_fields, place
from jaxrl_fast.envs.pool.rolling import make_roll
from jaxrl_fast.envs.pool.stepping import HostEnvSpec, PoolError, Stepper, make_stepper, of_env
from jaxrl_fast.system import current_bytes, leave_signals_to_parent

SLOT_BYTES = 64
"""Space of a semaphore in bytes: a cache line, which is larger than a ``sem_t``."""
_yield: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))


class Signals(NamedTuple):
    """Semaphores by number, and bytes of shared memory.

    Attributes:
        post: ``(i)``, posts semaphore ``i``.
        acquire: ``(i, timeout_s) -> bool``, waits for it; 0 tests once. False if it was not posted
            in time, or a system signal interrupted the wait.
        clear: ``(i)``, sets it to "not posted"; only while no other process uses it.
        board: Bytes after the semaphores, for commands.
    """

    post: Callable[[int], Any]
    acquire: Callable[[int, float], bool]
    clear: Callable[[int], Any]
    board: memoryview


def anonymous_file(content: bytes = b"", size_bytes: int = 0) -> int:
    """Create a file in memory without a name, which is freed when the last process that holds it
    ends.

    Args:
        content: Initial content.
        size_bytes: Size, at least the content's.

    Returns:
        File descriptor.
    """
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("jaxrl_fast_pool")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.truncate(fd, max(size_bytes, len(content), 1))
    if content:
        os.pwrite(fd, content, 0)
    return fd


def make_signals(
    count: int, board_bytes: int, *, pipes: bool = sys.platform != "linux"
) -> tuple[int, ...]:
    """Create semaphores and a board of commands, for `open_signals` in every process that gets the
    descriptors.

    Args:
        count: Number of semaphores.
        board_bytes: Size of the board.
        pipes: Use pipes instead of POSIX semaphores.

    Returns:
        File descriptors.
    """
    memory_fd = anonymous_file(size_bytes=count * SLOT_BYTES + board_bytes)
    if pipes:
        return memory_fd, *(fd for _ in range(count) for fd in os.pipe())
    signals = open_signals((memory_fd,), count)
    for i in range(count):
        signals.clear(i)
    return (memory_fd,)


def open_signals(fds: Sequence[int], count: int, *, awake_s: float = 0.0) -> Signals:
    """Open the semaphores of `make_signals`.

    A waiting process polls before it sleeps, since waking it costs it 50 µs and, if its core became
    idle, 20 µs of the process that wakes it.

    Args:
        fds: File descriptors.
        count: Number of semaphores.
        awake_s: Time to poll in seconds.

    Returns:
        The semaphores and the board.
    """
    memory = mmap.mmap(fds[0], 0)
    post, look, sleep, clear = _piped(fds[1:]) if len(fds) > 1 else _posix(memory, count)

    def acquire(i: int, timeout_s: float) -> bool:
        if look(i):
            return True
        until_s = time.perf_counter() + min(awake_s, timeout_s)
        while time.perf_counter() < until_s:
            _yield()
            if look(i):
                return True
        return timeout_s > 0 and sleep(i, timeout_s)

    return Signals(post, acquire, clear, memoryview(memory)[count * SLOT_BYTES :])


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


def _posix(memory: mmap.mmap, count: int) -> tuple[Callable[..., Any], ...]:
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    at = [ctypes.c_void_p(base + i * SLOT_BYTES) for i in range(count)]
    c, c_with_gil = ctypes.CDLL(None), ctypes.PyDLL(None)
    sem_post, sem_trywait = c_with_gil.sem_post, c_with_gil.sem_trywait  # these never wait
    sem_timedwait = c.sem_timedwait

    def sleep(i: int, timeout_s: float) -> bool:
        until_ns = time.time_ns() + int(1e9 * timeout_s)  # sem_timedwait supports only this clock
        return sem_timedwait(at[i], ctypes.byref(_Timespec(*divmod(until_ns, 10**9)))) == 0

    return (
        lambda i: sem_post(at[i]),
        lambda i: sem_trywait(at[i]) == 0,
        sleep,
        lambda i: c.sem_init(at[i], 1, 0),
    )


def _piped(ends: Sequence[int]) -> tuple[Callable[..., Any], ...]:
    for fd in ends:
        os.set_blocking(fd, False)
    polls = [select.poll() for _ in ends[::2]]
    for poll, reader in zip(polls, ends[::2], strict=True):
        poll.register(reader, select.POLLIN)

    def post(i: int) -> None:
        with suppress(BlockingIOError):  # a full pipe wakes the reader, too
            os.write(ends[2 * i + 1], b"+")

    def look(i: int) -> bool:
        return bool(polls[i].poll(0) and os.read(ends[2 * i], 1))

    def sleep(i: int, timeout_s: float) -> bool:
        return bool(polls[i].poll(1000 * timeout_s) and os.read(ends[2 * i], 1))

    def clear(i: int) -> None:
        while look(i):
            pass

    return post, look, sleep, clear


RESET, LOAD, ROLL, END = 8, 9, 10, 11
"""Commands to reset, to load the plan of rollouts, to make a rollout, and to close. Smaller bytes
are groups.
"""
BACKLOG = 16
"""Number of commands that a worker's part of the board can hold: more than one per group."""
AWAKE_S = 300e-6
"""How long a worker polls for a command before it sleeps, in seconds. PPO on HalfCheetah was 5 to
15 % faster with it for one worker on two cores, and 20 % for two, than with workers that sleep at
once.
"""
LOOK_S = 1.0
"""Interval in seconds at which an idle worker checks whether its parent is alive. Linux notifies it
at once.
"""
MAX_LAST_WORDS = 30_000
"""In characters: fewer than a pipe holds, so that a dying worker never waits for a reader."""


class WorkerJob(NamedTuple):
    """Arguments of every worker of a pool.

    Attributes:
        name: As in `HostEnvSpec`.
        make: `HostEnvSpec.make`, pickled.
        num_envs: Environments of the whole pool, over all seeds.
        fields: Shapes and dtypes of the shared arrays, from `array_fields`.
        shares: ``shares[worker][group]`` are the rows that a worker steps.
        memory: File descriptor of the shared memory, the same in every process.
        clip_rewards: As in `HostEnvSpec`.
        by_arrival: The parent waits for the first answer of any worker, with a semaphore that all
            workers post.
        signals: File descriptors of the semaphores, the same in every process.
        metrics: As in `HostEnvSpec`.
        rollouts: File descriptors of a pickled `RolloutPlan` and of its arrays, both written before
            `LOAD`; () for a pool without rollouts.
    """

    name: str
    make: bytes
    num_envs: int
    fields: dict[str, Any]
    shares: list[list[slice]]
    memory: int
    clip_rewards: bool = False
    by_arrival: bool = False
    signals: tuple[int, ...] = ()
    metrics: dict[str, str] = NO_KINDS
    rollouts: tuple[int, ...] = ()

    @property
    def commands(self) -> tuple[int, ...]:
        """Commands that are answered."""
        return (*range(len(self.shares[0])), RESET, *((LOAD, ROLL) if self.rollouts else ()))

    @property
    def num_signals(self) -> int:
        """Number of semaphores of the pool."""
        return 1 + len(self.shares) * (len(self.commands) + 1)

    def go(self, worker: int) -> int:
        """Return the number of the semaphore that announces a command."""
        return 1 + worker * (len(self.commands) + 1)

    def done(self, worker: int, command: int) -> int:
        """Return the number of the semaphore that answers a command."""
        return self.go(worker) + 1 + self.commands.index(command)


def portable(host_spec: HostEnvSpec) -> bytes:
    """Pickle the function that makes an environment.

    Args:
        host_spec: Spec of the environments.

    Returns:
        The pickled ``make``.

    Raises:
        ValueError: It cannot be pickled.
    """
    try:
        return cloudpickle.dumps(host_spec.make)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        message = " ".join(str(error).split())
        raise ValueError(
            f"{host_spec.name} cannot be sent to worker processes ({message}): write pool.workers=0"
        ) from error


class Died(Exception):
    """A worker process ended.

    Attributes:
        worker: Index of the worker.
        how: How it ended.
        words: Its last output, or "".
    """

    def __init__(self, worker: int, how: str, words: bytes) -> None:
        super().__init__(how)
        self.worker, self.how, self.words = worker, how, words.decode(errors="replace")


NEWS = 0
"""Number of the semaphore that every worker posts with ``by_arrival``."""


def main(index: int, words_fd: int, lifeline_fd: int, job: bytes) -> None:
    """Run a worker until the parent sends `END` or dies.

    Args:
        index: Index of the worker.
        words_fd: Descriptor of the pipe for the error message.
        lifeline_fd: Descriptor of the pipe that closes when the parent dies.
        job: Pickled `WorkerJob`.
    """
    leave_signals_to_parent()
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # an environment that prints must not be stopped
    _die_with_parent(lifeline_fd)
    faulthandler.enable(words_fd)
    status = 0
    try:
        given: WorkerJob = pickle.loads(job)
        for fd in (words_fd, lifeline_fd, given.memory, *given.signals, *given.rollouts):
            # processes that an environment starts must not hold them open
            os.set_inheritable(fd, False)
        arrays = place(given.fields, mmap.mmap(given.memory, 0))
        stepper, host_spec = _stepper(given, arrays, index)
        _serve(stepper, host_spec, arrays, given, index, lifeline_fd)
        stepper.close()
    except BaseException as error:
        words = str(error) if isinstance(error, PoolError) else f"{type(error).__name__}: {error}"
        os.write(words_fd, words[-MAX_LAST_WORDS:].encode(errors="replace"))
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # an environment's threads or exit handlers must not delay the exit


def _serve(
    stepper: Stepper,
    host_spec: HostEnvSpec,
    arrays: Arrays,
    job: WorkerJob,
    index: int,
    lifeline_fd: int,
) -> None:
    signals, shares, go = (
        open_signals(job.signals, job.num_signals, awake_s=AWAKE_S),
        job.shares[index],
        job.go(index),
    )
    done = {command: job.done(index, command) for command in job.commands}
    roll: Callable[[], None] | None = None
    for turn in itertools.count():
        while not signals.acquire(go, LOOK_S):
            if _is_cut(lifeline_fd):
                return
        command = signals.board[index * BACKLOG + turn % BACKLOG]
        if command == END:
            return
        if command == RESET:
            stepper.reset()
        elif command == LOAD:
            roll = _load(stepper, host_spec, arrays, job, index)
        elif command == ROLL:
            assert roll is not None  # `LOAD` comes before
            roll()
        else:
            stepper.step(shares[command])
        signals.post(done[command])
        if job.by_arrival:
            signals.post(NEWS)


def _load(
    stepper: Stepper, host_spec: HostEnvSpec, arrays: Arrays, job: WorkerJob, index: int
) -> Callable[[], None]:
    """Read the plan of rollouts, and return the function that makes one."""
    plan_fd, memory_fd = job.rollouts
    plan = pickle.loads(os.pread(plan_fd, os.fstat(plan_fd).st_size, 0))
    shared = allocate(plan.fields, mmap.mmap(memory_fd, 0))
    own = [rows for rows in job.shares[index] if rows.stop > rows.start]
    rows = slice(own[0].start, own[-1].stop)
    roll = make_roll(stepper.inside, host_spec, arrays, plan, shared, (rows, index))
    shared["bytes"][index] = current_bytes()
    return roll


def _stepper(job: WorkerJob, arrays: Arrays, index: int) -> tuple[Stepper, HostEnvSpec]:
    make = pickle.loads(job.make)
    owned = [i for rows in job.shares[index] for i in range(rows.start, rows.stop)]
    probe = make()
    host_spec: HostEnvSpec = of_env(probe, make, job.name)
    own = host_spec.num_agents, len(job.metrics)
    if array_fields(job.num_envs, host_spec.observe, host_spec.act, *own) != job.fields:
        raise PoolError(
            f"{job.name} has other spaces in worker {index} than in the parent: make must always return the same spaces"
        )
    first = [probe]
    host_spec = host_spec._replace(
        make=lambda: first.pop() if first else make(), clip_rewards=job.clip_rewards
    )
    host_spec = host_spec._replace(metrics=job.metrics)
    return make_stepper(host_spec, arrays, owned), host_spec


def _die_with_parent(lifeline_fd: int) -> None:
    """Let the kernel end this process when the parent dies, even in an environment that never
    returns.
    """
    if sys.platform != "linux":
        return  # `_serve` checks the parent between two steps
    import fcntl

    fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, fcntl.fcntl(lifeline_fd, fcntl.F_GETFL) | os.O_ASYNC)
    if _is_cut(lifeline_fd):
        os._exit(1)


def _is_cut(lifeline_fd: int) -> bool:
    poll = select.poll()
    poll.register(lifeline_fd)
    return any(event & select.POLLHUP for _, event in poll.poll(0))
