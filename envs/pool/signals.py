"""Semaphores by which a pool and its workers wake each other, in shared memory whose name cannot be left behind.

On Linux they are POSIX semaphores, called through ctypes: posting one that nobody sleeps on, and looking whether one
was posted, need no system call. Elsewhere (macOS has none without a name) each is a pipe.
"""

import ctypes
import mmap
import os
import select
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

SLOT_BYTES = 64
"""The space of a semaphore: a cache line, which is more than a ``sem_t`` takes."""
_yield: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))


class Signals(NamedTuple):
    """Semaphores by number, and bytes of shared memory.

    - ``post(i)``: posts semaphore ``i``.
    - ``acquire(i, timeout_s)``: waits for it; 0 looks once. False if it was not posted in that time, or a signal of the
      system interrupted the wait.
    - ``clear(i)``: sets it to "not posted"; only while nobody else uses it.
    - ``board``: the bytes behind the semaphores, for commands.
    """

    post: Callable[[int], Any]
    acquire: Callable[[int, float], bool]
    clear: Callable[[int], Any]
    board: memoryview


def anonymous_file(content: bytes = b"", size_bytes: int = 0) -> int:
    """The descriptor of a file in memory without a name, which is freed when the last process that holds it ends."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("jaxrl_fast_pool")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.truncate(fd, max(size_bytes, len(content), 1))
    if content:
        os.pwrite(fd, content, 0)
    return fd


def make_signals(count: int, board_bytes: int, *, pipes: bool = sys.platform != "linux") -> tuple[int, ...]:
    """The descriptors of ``count`` semaphores and a board, for `open_signals` here and in processes that get them."""
    memory_fd = anonymous_file(size_bytes=count * SLOT_BYTES + board_bytes)
    if pipes:
        return memory_fd, *(fd for _ in range(count) for fd in os.pipe())
    signals = open_signals((memory_fd,), count)
    for i in range(count):
        signals.clear(i)
    return (memory_fd,)


def open_signals(fds: Sequence[int], count: int, *, awake_s: float = 0.0) -> Signals:
    """The semaphores of `make_signals`, in any process that holds its descriptors.

    A process that waits polls for ``awake_s`` seconds before it sleeps: being woken costs it 50 µs and, where its core
    went idle meanwhile, 20 µs of the process that wakes it.
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
    c, c_keeping_the_gil = ctypes.CDLL(None), ctypes.PyDLL(None)
    sem_post, sem_trywait = c_keeping_the_gil.sem_post, c_keeping_the_gil.sem_trywait  # these never wait
    sem_timedwait = c.sem_timedwait

    def sleep(i: int, timeout_s: float) -> bool:
        until_ns = time.time_ns() + int(1e9 * timeout_s)  # the only clock that it knows
        return sem_timedwait(at[i], ctypes.byref(_Timespec(*divmod(until_ns, 10**9)))) == 0

    return (lambda i: sem_post(at[i]), lambda i: sem_trywait(at[i]) == 0, sleep, lambda i: c.sem_init(at[i], 1, 0))


def _piped(ends: Sequence[int]) -> tuple[Callable[..., Any], ...]:
    for fd in ends:
        os.set_blocking(fd, False)
    polls = [select.poll() for _ in ends[::2]]
    for poll, reader in zip(polls, ends[::2], strict=True):
        poll.register(reader, select.POLLIN)

    def post(i: int) -> None:
        with suppress(BlockingIOError):  # full: there is enough to be woken by
            os.write(ends[2 * i + 1], b"+")

    def look(i: int) -> bool:
        return bool(polls[i].poll(0) and os.read(ends[2 * i], 1))

    def sleep(i: int, timeout_s: float) -> bool:
        return bool(polls[i].poll(1000 * timeout_s) and os.read(ends[2 * i], 1))

    def clear(i: int) -> None:
        while look(i):
            pass

    return post, look, sleep, clear
