"""One worker process: waits for a command, steps its environments, answers. No JAX.

`envs.pool.supervision` starts it as ``python -c BOOT``. A command is a byte on the signals' board: a group to step,
`RESET` or `END`; the answer is a semaphore of that command's own. What comes down the pipe is the worker's last words,
from Python or from ``faulthandler``.
"""

import faulthandler
import itertools
import mmap
import os
import pickle
import select
import signal
import sys
from typing import Any, NamedTuple

from envs.pool.arrays import Arrays, array_fields, place
from envs.pool.signals import open_signals
from envs.pool.stepping import HostEnvSpec, PoolError, Stepper, make_stepper, of_env

RESET, END = 8, 9
"""The commands to reset and to close; smaller bytes are groups."""
BACKLOG = 16
"""How many commands a worker's part of the board can hold: one for every group, and more."""
AWAKE_S = 300e-6
"""How long a worker polls for a command before it sleeps: PPO on HalfCheetah was 5 to 15 % faster that way with one
worker on two cores, and 20 % with two, than with workers that sleep at once."""
LOOK_S = 1.0
"""How often an idle worker checks whether its parent is still alive; on Linux it is notified at once."""
MAX_LAST_WORDS = 30_000
"""In characters: fewer than a pipe holds, so that a dying worker never waits for a reader."""


class WorkerJob(NamedTuple):
    """What every worker of a pool is given.

    - ``name``, ``clip_rewards``: as in `HostEnvSpec`; ``make``: the same, pickled.
    - ``num_envs``: environments of the whole pool, over all seeds.
    - ``fields``: shapes and dtypes of the shared arrays, from `array_fields`.
    - ``shares``: ``shares[worker][group]`` are the rows that a worker steps.
    - ``memory``, ``signals``: file descriptors of shared memory and semaphores, the same in every process.
    - ``by_arrival``: the parent waits for whoever is ready first, by a semaphore that all workers post.
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

    @property
    def num_signals(self) -> int:
        """How many semaphores the pool needs."""
        return 1 + len(self.shares) * (len(self.shares[0]) + 2)

    def go(self, worker: int) -> int:
        """The number of the semaphore that announces a command."""
        return 1 + worker * (len(self.shares[0]) + 2)

    def done(self, worker: int, command: int) -> int:
        """The number of the semaphore that answers a command."""
        return self.go(worker) + 1 + min(command, len(self.shares[0]))


NEWS = 0
"""The number of the semaphore that every worker posts with ``by_arrival``."""


def main(index: int, words_fd: int, lifeline_fd: int, job: bytes) -> None:
    """Serve until the parent commands `END`, or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to handle
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # an environment that prints must not be stopped for it
    _die_with_parent(lifeline_fd)
    faulthandler.enable(words_fd)
    status = 0
    try:
        given: WorkerJob = pickle.loads(job)
        for fd in (words_fd, lifeline_fd, given.memory, *given.signals):
            os.set_inheritable(fd, False)  # a game server that an environment starts must not hold them open
        arrays = place(given.fields, mmap.mmap(given.memory, 0))
        stepper = _stepper(given, arrays, index)
        _serve(stepper, given, index, lifeline_fd)
        stepper.close()
    except BaseException as error:
        words = str(error) if isinstance(error, PoolError) else f"{type(error).__name__}: {error}"
        os.write(words_fd, words[-MAX_LAST_WORDS:].encode(errors="replace"))
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # an environment's threads or exit handlers must not keep the process


def _serve(stepper: Stepper, job: WorkerJob, index: int, lifeline_fd: int) -> None:
    signals, shares, go = open_signals(job.signals, job.num_signals, awake_s=AWAKE_S), job.shares[index], job.go(index)
    for turn in itertools.count():
        while not signals.acquire(go, LOOK_S):
            if _is_cut(lifeline_fd):
                return
        command = signals.board[index * BACKLOG + turn % BACKLOG]
        if command == END:
            return
        if command == RESET:
            stepper.reset()
        else:
            stepper.step(shares[command])
        signals.post(job.done(index, command))
        if job.by_arrival:
            signals.post(NEWS)


def _stepper(job: WorkerJob, arrays: Arrays, index: int) -> Stepper:
    make = pickle.loads(job.make)
    owned = [i for rows in job.shares[index] for i in range(rows.start, rows.stop)]
    probe = make()
    host_spec: HostEnvSpec = of_env(probe, make, job.name)
    if array_fields(job.num_envs, host_spec.observe, host_spec.act, host_spec.num_agents) != job.fields:
        raise PoolError(
            f"{job.name} has other spaces in worker {index} than in the parent: make must always give the same"
        )
    first = [probe]
    host_spec = host_spec._replace(make=lambda: first.pop() if first else make(), clip_rewards=job.clip_rewards)
    return make_stepper(host_spec, arrays, owned)


def _die_with_parent(lifeline_fd: int) -> None:
    """Have the kernel end this process when the parent dies, even in an environment that never returns."""
    if sys.platform != "linux":
        return  # `_serve` checks it between two steps
    import fcntl

    fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, fcntl.fcntl(lifeline_fd, fcntl.F_GETFL) | os.O_ASYNC)
    if _is_cut(lifeline_fd):
        os._exit(1)


def _is_cut(lifeline_fd: int) -> bool:
    poll = select.poll()
    poll.register(lifeline_fd)
    return any(event & select.POLLHUP for _, event in poll.poll(0))
