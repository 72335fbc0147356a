"""One worker process: waits for a byte, steps its environments, answers with that byte. No JAX.

`envs.pool.supervision` starts it as ``python -c BOOT``. A command is one byte: a group to step, or `RESET`. The answer
is the same byte; anything printable that follows is the worker's last words, from Python or from ``faulthandler``.
"""

import faulthandler
import mmap
import os
import pickle
import select
import signal
import sys
from typing import Any, NamedTuple

from envs.pool.stepping import Arrays, PoolError, Stepper, World, layout, make_stepper, of_env, place

RESET = 8
"""The command to reset; smaller bytes are groups."""
MAX_LAST_WORDS = 30_000
"""Characters; fewer than a pipe holds, so that a worker never waits to be heard."""


class Job(NamedTuple):
    """What every worker of a pool is told. ``shares[worker][group]`` are the rows it steps; ``make`` is pickled."""

    name: str
    make: bytes
    num_envs: int
    fields: dict[str, Any]
    shares: list[list[slice]]
    clip_rewards: bool = False


def main(index: int, memory_fd: int, command_fd: int, reply_fd: int, lifeline_fd: int, job: bytes) -> None:
    """Serve until the parent closes the commands' pipe, or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's affair
    _die_with_parent(lifeline_fd)
    for fd in (memory_fd, command_fd, reply_fd, lifeline_fd):
        os.set_inheritable(fd, False)  # a game server that an environment starts must not hold them open
    faulthandler.enable(reply_fd)
    status = 0
    try:
        told: Job = pickle.loads(job)
        arrays = place(told.fields, mmap.mmap(memory_fd, 0))
        stepper = _stepper(told, arrays, index)
        _serve(stepper, told.shares[index], command_fd, reply_fd)
        stepper.close()
    except BaseException as error:
        words = str(error) if isinstance(error, PoolError) else f"{type(error).__name__}: {error}"
        os.write(reply_fd, words[-MAX_LAST_WORDS:].encode(errors="replace"))
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # an environment's threads or exit handlers must not keep the process


def _serve(stepper: Stepper, shares: list[slice], command_fd: int, reply_fd: int) -> None:
    while command := os.read(command_fd, 1):
        if command[0] == RESET:
            stepper.reset()
        else:
            stepper.step(shares[command[0]])
        os.write(reply_fd, command)


def _stepper(job: Job, arrays: Arrays, index: int) -> Stepper:
    make = pickle.loads(job.make)
    owned = [i for rows in job.shares[index] for i in range(rows.start, rows.stop)]
    probe = make()
    world: World = of_env(probe, make, job.name)
    if layout(job.num_envs, world.observe, world.act) != job.fields:
        raise PoolError(
            f"{job.name} has other spaces in worker {index} than in the parent: make must always give the same"
        )
    first = [probe]
    world = world._replace(make=lambda: first.pop() if first else make(), clip_rewards=job.clip_rewards)
    return make_stepper(world, arrays, owned)


def _die_with_parent(lifeline_fd: int) -> None:
    """Have the kernel end this process when the other end closes, even in an environment that never returns."""
    if sys.platform != "linux":
        return  # the end of the commands tells it too, between two steps
    import fcntl

    fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, fcntl.fcntl(lifeline_fd, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(lifeline_fd)
    if any(event & select.POLLHUP for _, event in poll.poll(0)):
        os._exit(1)
