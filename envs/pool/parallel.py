"""Worker processes: start, commands, answers, restart and end, independent of the kind of
environment.

A worker is a plain ``python -c`` process, neither a fork of a process with JAX nor a second run of
the user's script. Therefore notebooks and scripts need no ``__main__`` guard. Parent and worker
share an anonymous file by descriptor, which leaves nothing behind. Semaphores in it wake either
side once a batch. A pipe in each direction signals by closing that the other side ended.
"""

import mmap
import os
import pickle
import select
import signal
import subprocess
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxrl_fast.core import EnvSpec
from jaxrl_fast.envs.host_env import HostEnv, HostStep, Rollouts
from jaxrl_fast.envs.pool.batches import (
    Groups,
    PoolOptions,
    check_seeds,
    common_rows,
    gather,
    joined,
    just_reset,
    mark_lost,
    put_actions,
    row_seeds,
    split,
)
from jaxrl_fast.envs.pool.codec import allocate, array_fields, place, size_bytes
from jaxrl_fast.envs.pool.rolling import begin_rollout, rolled_by, rollout_fields
from jaxrl_fast.envs.pool.stepping import HostEnvSpec, PoolError
from jaxrl_fast.envs.pool.worker import (
    BACKLOG,
    END,
    LOAD,
    MAX_LAST_WORDS,
    NEWS,
    RESET,
    ROLL,
    Died,
    WorkerJob,
    anonymous_file,
    make_signals,
    open_signals,
    portable,
)
from jaxrl_fast.envs.rollout_plan import RolloutPlan

BOOT = (
    "import mmap, pickle, sys; job, *rest = map(int, sys.argv[1:5]); "
    "sys.path[:], given = pickle.loads(mmap.mmap(job, 0, access=mmap.ACCESS_READ)); "
    "from jaxrl_fast.envs.pool.worker import main; main(*rest, given)"
)
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Set to 1 in workers: libraries must not add threads, since the workers are the parallelism."""
GRACE_S = 2.0
"""Time for a worker to close its environments, in seconds."""
AWAKE_S = 20e-6
"""How long a waiting parent polls before it sleeps, in seconds. It is short, since workers and XLA
need the core.
"""
NOTICE_S = 0.05
"""Interval in seconds at which a waiting parent checks whether the worker is alive."""


@dataclass
class Worker:
    """A worker process, and the parent's ends of its pipes.

    Attributes:
        index: Index of the worker.
        process: The process.
        last_words: Descriptor of the pipe for its error message.
        lifeline: Descriptor of the pipe that shows the worker whether the parent is alive.
        poll: ``select.poll`` of ``last_words``.
        replies: Answers that arrived but were not waited for yet.
        words: Its error message so far.
        commands: Number of commands sent.
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
    """The workers of a job, one for each of its shares; ``close`` closes ``job.memory``, too.

    `wait` and `arrivals` raise `Died` if a worker ended, and `PoolError` if an environment raised
    an error.

    Raises:
        ValueError: The system does not support such processes.
    """

    def __init__(self, job: WorkerJob) -> None:
        if os.name != "posix":
            raise ValueError("worker processes need Linux or macOS: write pool.workers=0")
        self.job = job._replace(signals=make_signals(job.num_signals, len(job.shares) * BACKLOG))
        self.signals = open_signals(self.job.signals, job.num_signals, awake_s=AWAKE_S)
        indices, commands = range(len(job.shares)), job.commands
        self.go = [job.go(index) for index in indices]
        self.done = [
            {command: job.done(index, command) for command in commands} for index in indices
        ]
        self.job_fd = anonymous_file(pickle.dumps((sys.path, pickle.dumps(self.job))))
        self.workers = [_start(self.job, index, self.job_fd) for index in indices]
        self.owner, self.looked_s = os.getpid(), time.monotonic()

    def order(self, index: int, command: int) -> None:
        """Send a command to a worker and return at once."""
        worker = self.workers[index]
        self.signals.board[index * BACKLOG + worker.commands % BACKLOG] = command
        worker.commands += 1
        self.signals.post(self.go[index])

    def wait(
        self, index: int, reply: int, timeout_s: float, progress: Callable[[], int] = lambda: 0
    ) -> None:
        """Wait until a worker has answered the command ``reply``.

        Each of its answers, and each change of its ``progress``, restarts the timeout.
        """
        worker, heard_s, done, reached = (
            self.workers[index],
            time.monotonic(),
            self.done[index][reply],
            progress(),
        )
        while reply not in worker.replies and not self.signals.acquire(
            done, min(NOTICE_S, timeout_s)
        ):
            _hear(worker)
            if others := self._replies(index):
                worker.replies |= others
                heard_s = time.monotonic()
            elif progress() != reached:
                reached, heard_s = progress(), time.monotonic()
            elif time.monotonic() - heard_s > timeout_s:
                raise _hung(worker, timeout_s)
        worker.replies.discard(reply)
        if reply == RESET:
            self._forget(index)  # drops the answers to steps that were sent before the reset

    def arrivals(self, timeout_s: float) -> list[tuple[int, int]]:
        """Return the next answers, ``[(worker, reply)]``, or none after the timeout. Needs
        ``job.by_arrival``.
        """
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
        """End a worker that did not answer in time, and return the error to report."""
        return _hung(self.workers[index], timeout_s)

    def replace(self, index: int) -> None:
        """Restart a worker and drop its pending commands."""
        _end([self.workers[index]], grace_s=0.0)
        self.signals.clear(self.go[index])
        self.workers[index] = _start(self.job, index, self.job_fd)
        self._forget(index)

    def close(self) -> None:
        """End all workers."""
        # a fork of the parent must leave the workers alone
        if not self.workers or os.getpid() != self.owner:
            return
        for worker in self.workers:
            self.order(worker.index, END)
        _end(self.workers, grace_s=GRACE_S)
        self.workers.clear()
        for fd in (self.job_fd, self.job.memory, *self.job.signals, *self.job.rollouts):
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
        pass_fds=(job_fd, job.memory, *job.signals, *job.rollouts, words_end, lifeline_end),
        env={**quiet, **os.environ, **({"JAX_PLATFORMS": "cpu"} if job.rollouts else {})},
        # Ctrl-C is for the parent. A new session would be scheduled independently of the parent.
        process_group=0,
    )
    for fd in (words_end, lifeline_end):
        os.close(fd)
    poll = select.poll()
    poll.register(last_words, select.POLLIN)
    return Worker(index, process, last_words, lifeline, poll)


def _hear(worker: Worker) -> None:
    """Read a worker's error message. Raises `Died` at its end, `PoolError` if an environment raised
    an error.
    """
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
    how = (
        f"was killed by {signal.Signals(-status).name}"
        if status < 0
        else f"ended with exit code {status}"
    )
    return Died(worker.index, how, worker.words)


def _hung(worker: Worker, timeout_s: float) -> Died:
    """Let ``faulthandler`` print a worker's stack by SIGABRT, then kill the worker."""
    worker.process.send_signal(signal.SIGABRT)
    with suppress(subprocess.TimeoutExpired):
        worker.process.wait(GRACE_S / 2)
    worker.process.kill()
    worker.process.wait()
    with suppress(Died, PoolError):
        _hear(worker)
    return Died(worker.index, f"did not answer within {timeout_s:g} s", worker.words)


def _end(workers: Sequence[Worker], *, grace_s: float) -> None:
    """Give workers ``grace_s`` seconds to close their environments, then kill them; 0 kills at
    once.
    """
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


START_TIMEOUT_S = 120.0
"""Time for a worker to make and reset its environments in seconds, unless ``step_timeout_s`` is
longer.
"""
MAX_DEATHS, DEATH_WINDOW = 3, 10_000
"""A worker that dies this often within this number of batches is not restarted."""


def make_workers(
    host_spec: HostEnvSpec,
    spec: EnvSpec,
    *,
    num_envs: int,
    num_groups: int,
    num_seeds: int,
    num_workers: int,
    options: PoolOptions,
    another: Callable[[int], HostEnv],
    reason: str,
) -> HostEnv:
    """Make a pool of worker processes, each of which steps a share of every group.

    Args:
        host_spec: Spec of the environments.
        spec: Spec for the policy.
        num_envs: Number of environments over all seeds.
        num_groups: Number of groups.
        num_seeds: Number of seeds.
        num_workers: Number of worker processes.
        options: Options of the pool.
        another: `HostEnv.another`.
        reason: Line for the user, or "".

    Returns:
        The environment.

    Raises:
        ValueError: The environments cannot be sent to worker processes.
    """
    pool = _Pool(host_spec, num_envs, num_groups, num_seeds, num_workers, options, reason)
    host = pool.host_env(spec, num_envs // num_seeds, another, num_seeds=num_seeds)
    if options.bridge == "worker":
        parts = tuple(split(slice(0, num_envs), num_workers))
        rollouts = Rollouts(
            load=pool.load, roll=pool.roll, parts=parts, log=pool.note, plan=lambda: pool.plan
        )
        host = host._replace(rollouts=rollouts)
    return (
        host._replace(send_to=pool.send_to, recv_any=pool.recv_any)
        if options.order == "arrival"
        else host
    )


class _Pool(Groups):
    """A pool of workers. A share ``(worker, group)`` is the part of a group that one worker steps.

    ``known`` is the last result received of a share, as (step, rows of that step). ``lost`` are the
    shares whose environments were reset since, because their worker was restarted: their next step
    is not made but reported as a truncation.
    """

    def __init__(
        self,
        host_spec: HostEnvSpec,
        num_envs: int,
        num_groups: int,
        num_seeds: int,
        num_workers: int,
        options: PoolOptions,
        reason: str,
    ) -> None:
        super().__init__(f"the pool of {host_spec.name}", num_envs, num_groups, reason)
        self.host_spec, self.num_workers, self.step_timeout_s = (
            host_spec,
            num_workers,
            options.step_timeout_s,
        )
        rolls, by_arrival = options.bridge == "worker", options.order == "arrival"
        extra = num_envs // num_groups % num_workers
        parts = [split(rows, num_workers, turn=g * extra) for g, rows in enumerate(self.groups)]
        if rolls:
            shares_of_workers = split(slice(0, num_envs), num_workers)
            parts = [
                [common_rows(rows, part) for part in shares_of_workers] for rows in self.groups
            ]
        self.shares = {(w, g): parts[g][w] for g in range(num_groups) for w in range(num_workers)}
        sizes = host_spec.num_agents, len(host_spec.metrics)
        self.fields = fields = array_fields(num_envs, host_spec.observe, host_spec.act, *sizes)
        make = portable(host_spec)
        memory_fd = anonymous_file(size_bytes=size_bytes(fields))
        self.arrays = place(fields, mmap.mmap(memory_fd, 0))
        shares = [[parts[g][w] for g in range(num_groups)] for w in range(num_workers)]
        job = WorkerJob(
            name=host_spec.name,
            make=make,
            num_envs=num_envs,
            fields=fields,
            shares=shares,
            memory=memory_fd,
            clip_rewards=host_spec.clip_rewards,
            by_arrival=by_arrival,
        )
        self.plan: RolloutPlan | None = None
        self.rolling = False
        self.shared: dict[str, np.ndarray] = {}
        files = (anonymous_file(), anonymous_file()) if rolls else ()
        self.crew = Crew(job._replace(metrics=host_spec.metrics, rollouts=files))
        self.batches = 0
        self.seeds = (0,) * num_seeds
        self.in_flight: set[tuple[int, int]] = set()
        self.lost: set[tuple[int, int]] = set()
        self.known: dict[tuple[int, int], tuple[HostStep, slice]] = {}
        self.arrived: deque[tuple[int, int]] = deque()
        self.heard_s = [0.0] * num_workers
        self.deaths: dict[int, list[int]] = {w: [] for w in range(num_workers)}
        weakref.finalize(self, self.crew.close)  # at garbage collection of the pool, or at exit

    def reset(self, seed: int | Sequence[int]) -> np.ndarray:
        self.require_open()
        self.seeds, self.steps = check_seeds(seed, len(self.seeds)), 0
        self._seed_rows(slice(0, len(self.arrays.seed)))
        self.lost.clear()
        self.in_flight.clear()
        self.arrived.clear()
        self.rolling = False
        for name in ("returns", "lengths") if self.shared else ():
            self.shared[name][:] = 0
        for worker in range(self.num_workers):
            self.crew.order(worker, RESET)
        for worker in range(self.num_workers):
            self._await(worker, RESET)
        self.lost.clear()  # workers that died meanwhile were reset too
        first = just_reset(self.arrays.obs.copy())
        self.known = dict.fromkeys(self.shares, (first, slice(0, len(self.arrays.seed))))
        return first.obs.copy()

    def send(self, actions: np.ndarray, group: int) -> None:
        self.require_open()
        self.require_idle(group, (0, group) in self.in_flight)
        put_actions(self.arrays, self.groups[group], actions)
        for worker in range(self.num_workers):
            self._begin((worker, group))

    def recv(self, group: int) -> HostStep:
        self.require_open()
        self.require_sent(group, (0, group) in self.in_flight)
        for worker in range(self.num_workers):
            if (worker, group) not in self.lost:
                self._await(worker, group)
        return self._take(
            [(worker, group) for worker in range(self.num_workers)], self.groups[group]
        )

    def load(self, plan: RolloutPlan) -> dict[str, np.ndarray]:
        """Prepare the workers for rollouts, as `host_env.Rollouts`."""
        self.require_open()
        self._end_roll()
        self.plan = plan
        fields = rollout_fields(self.fields, plan.length, self.num_workers) | plan.fields
        plan_fd, memory_fd = self.crew.job.rollouts
        os.truncate(plan_fd, 0)
        os.pwrite(plan_fd, pickle.dumps(plan._replace(fields=fields)), 0)
        os.truncate(memory_fd, size_bytes(fields))
        self.shared = allocate(fields, mmap.mmap(memory_fd, 0))
        for worker in range(self.num_workers):
            self.crew.order(worker, LOAD)
        for worker in range(self.num_workers):
            self._await(worker, LOAD)
        most = max(self.shared["bytes"])
        self.lines.append(
            f"{rolled_by(self.num_workers, plan)}; {most / 1e6:.0f} MB in a process at most"
        )
        return self.shared

    def roll(self) -> None:
        """Make a rollout, as `host_env.Rollouts`."""
        self.require_open()
        assert self.plan is not None
        self._end_roll()
        begin_rollout(self.shared, self.arrays)
        self.rolling = True
        for worker in range(self.num_workers):
            self.crew.order(worker, ROLL)
        self._end_roll()
        self.steps += self.plan.length * len(self.arrays.seed)
        self.batches += self.plan.length
        self.lost.clear()

    def _end_roll(self) -> None:
        """Wait for the end of a rollout, also of one in which Ctrl-C was pressed."""
        for worker in range(self.num_workers) if self.rolling else ():
            self._await(worker, ROLL)
        self.rolling = False

    def send_to(self, actions: np.ndarray, indices: np.ndarray) -> None:
        """Step the environments ``indices``: whole shares as returned by `recv_any`, or all of
        them, in order.
        """
        self.require_open()
        shares = self._shares_of(np.asarray(indices))
        size = len(indices) // len(shares)
        for i, share in enumerate(shares):
            put_actions(self.arrays, self.shares[share], actions[i * size : (i + 1) * size])
            if not self._waiting_for(share[0]):
                self.heard_s[share[0]] = time.monotonic()
        for share in shares:
            self._begin(share)
            if share in self.lost:
                self.arrived.append(share)

    def recv_any(self) -> tuple[np.ndarray, HostStep]:
        """Return ``(indices, step)`` of the shares that were ready first: as many as make a group,
        or all under way.
        """
        self.require_open()
        if not self.in_flight:
            raise ValueError("recv_any(): nothing is under way: send_to environments first")
        wanted = min(self.num_workers, len(self.in_flight))
        while len(self.arrived) < wanted:
            self._listen()
        shares = [self.arrived.popleft() for _ in range(wanted)]
        steps = [self._take([share], self.shares[share]) for share in shares]
        return np.concatenate([_indices(self.shares[share]) for share in shares]), joined(steps)

    def close(self) -> None:
        self.is_open = False
        self.crew.close()

    def _begin(self, share: tuple[int, int]) -> None:
        self.in_flight.add(share)
        if share not in self.lost:
            self.crew.order(*share)

    def _take(self, shares: list[tuple[int, int]], rows: slice) -> HostStep:
        """Return the results of ``shares``, which make up ``rows``; read-only, since they are
        stored as ``known``.
        """
        step = gather(self.arrays, rows)
        self.steps += rows.stop - rows.start
        self.batches += 1
        for share in self.lost.intersection(shares) if self.lost else ():
            last, of_rows = self.known[share]
            step = mark_lost(step, self._within(share, rows), last, self._within(share, of_rows))
            self.steps -= self._count(share)
        for share in shares:
            self.known[share] = step, rows
        self.lost.difference_update(shares)
        self.in_flight.difference_update(shares)
        return step

    def _within(self, share: tuple[int, int], rows: slice) -> slice:
        """Return the rows of a share in an array of ``rows``."""
        rows_of_worker = self.shares[share]
        return slice(rows_of_worker.start - rows.start, rows_of_worker.stop - rows.start)

    def _await(self, worker: int, reply: int) -> None:
        timeout_s = (
            max(START_TIMEOUT_S, self.step_timeout_s)
            if reply in (RESET, LOAD)
            else self.step_timeout_s
        )
        try:
            self.crew.wait(
                worker,
                reply,
                timeout_s,
                lambda: self.shared["progress"][worker] if self.rolling else 0,
            )
        except Died as death:
            self._revive(death)
            if reply == ROLL:
                self._go_on(worker)
        except PoolError:
            self.close()
            raise

    def _go_on(self, worker: int) -> None:
        """Let a worker that was restarted in a rollout make the rest of it."""
        assert self.plan is not None
        self.shared["progress"][worker] = min(self.shared["progress"][worker], self.plan.length - 1)
        self.shared["lost"][worker] = True
        self.steps -= sum(self._count(share) for share in self.shares if share[0] == worker)
        self.crew.order(worker, ROLL)
        self._await(worker, ROLL)

    def _listen(self) -> None:
        """Wait until a share is ready, and store which are."""
        try:
            came = self.crew.arrivals(self.step_timeout_s)
        except Died as death:
            self._lose(death)
            return
        except PoolError:
            self.close()
            raise
        self.arrived.extend(came)
        now_s = time.monotonic()
        for worker, _ in came:
            self.heard_s[worker] = now_s
        for worker, heard_s in enumerate(self.heard_s):
            if now_s - heard_s > self.step_timeout_s and self._waiting_for(worker):
                self._lose(self.crew.give_up(worker, self.step_timeout_s))

    def _lose(self, death: Died) -> None:
        waiting = self._waiting_for(death.worker)
        self._revive(death)
        self.arrived.extend(waiting)

    def _waiting_for(self, worker: int) -> list[tuple[int, int]]:
        return [
            share for share in self.in_flight if share[0] == worker and share not in self.arrived
        ]

    def _revive(self, death: Died) -> None:
        """Restart a worker with new seeds of its environments; its pending steps are lost."""
        began = time.monotonic()
        worker, first = death.worker, death
        mine = [share for share in self.shares if share[0] == worker]
        while True:
            self._note(death)
            for share in mine:
                self._seed_rows(self.shares[share], restarts=len(self.deaths[worker]))
            self.crew.replace(worker)
            if self.plan is not None:
                self.crew.order(worker, LOAD)
            self.crew.order(worker, RESET)
            try:
                if self.plan is not None:
                    self.crew.wait(worker, LOAD, max(START_TIMEOUT_S, self.step_timeout_s))
                self.crew.wait(worker, RESET, max(START_TIMEOUT_S, self.step_timeout_s))
                break
            except Died as again:
                death = again
            except PoolError:
                self.close()
                raise
        under_way = (
            mine
            if self.rolling
            else [share for share in mine if share in self.in_flight and share not in self.lost]
        )
        steps = sum(map(self._count, under_way))
        self.lost.update(mine)
        self.lines.append(
            f"worker {worker} of {self.host_spec.name} {first.how} and was restarted in "
            f"{time.monotonic() - began:.1f} s: {sum(map(self._count, mine))} environments start new episodes, "
            f"{steps} steps are lost; {sum(map(len, self.deaths.values()))} restarts so far"
        )

    def _note(self, death: Died) -> None:
        deaths = self.deaths[death.worker]
        deaths.append(self.batches)
        recent = [batch for batch in deaths if batch > self.batches - DEATH_WINDOW]
        if len(recent) < MAX_DEATHS:
            return
        self.close()
        message = (
            f"Its error message:\n{death.words}"
            if death.words
            else "It left no traceback. Is there enough memory?"
        )
        raise PoolError(
            f"worker {death.worker} of {self.host_spec.name} {death.how} and is not restarted after {len(recent)} "
            f"deaths within {DEATH_WINDOW:,} batches. {message}"
        )

    def _seed_rows(self, rows: slice, restarts: int = 0) -> None:
        size = {"num_rows": len(self.arrays.seed), "num_groups": len(self.groups)}
        self.arrays.seed[rows] = row_seeds(
            self.seeds, range(rows.start, rows.stop), **size, restarts=restarts
        )

    def _count(self, share: tuple[int, int]) -> int:
        return self.shares[share].stop - self.shares[share].start

    def _shares_of(self, indices: np.ndarray) -> list[tuple[int, int]]:
        size = self._count((0, 0))
        by_start = {rows.start: share for share, rows in self.shares.items()}
        shares = [by_start.get(int(start)) for start in indices[::size]]
        whole = [share for share in shares if share is not None and share not in self.in_flight]
        if len(whole) != len(shares) or not np.array_equal(
            np.concatenate([_indices(self.shares[share]) for share in whole]), indices
        ):
            raise ValueError(
                "send_to: write indices as recv_any gave them, or all of them in order, not under way"
            )
        return whole


def _indices(rows: slice) -> np.ndarray:
    return np.arange(rows.start, rows.stop)
