"""Evaluation in a process of its own, which training neither waits for nor depends on.

The two talk through pipes: a message is its length in 8 bytes, then msgpack. Nothing in one is ever executed.
"""

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from flax import serialization

from jaxrl_fast.core import EpisodeTotals
from jaxrl_fast.policy.policies import PolicyParams, by_name, from_names
from jaxrl_fast.system import end_session, start_module
from jaxrl_fast.training.episodes import Evaluate

LOG = "evaluator.log"
ONE_THREAD = {"PJRT_NPROC": "1"}
"""What a process has in its environment so that XLA computes by one thread. Few environments are not worth more: 32 of
halfcheetah for an episode, on two cores, took 3.6 s and 5.2 core-seconds by two threads, 2.6 and 2.6 by one, with the
same bits; 512 took 55 s by either."""
MANY_EPISODES = 512
"""Evaluations of more episodes at once than this have a thread for each core, and so have those of images."""


class EvaluatorProcess:
    """Evaluates in a process that makes the run of a folder's ``config.yaml`` again; one that ended is started anew.

    ``device`` is "cpu" for the host's cores, or "same" for what training runs on; ``one_thread``: of the cores, XLA is
    to use one. What the process prints goes to ``evaluator.log``. It ends by itself when this process does. ``process``
    is the one that runs, ``memory_mb`` the most memory that it was seen to have.
    """

    def __init__(self, folder: Path, device: str, *, one_thread: bool = True) -> None:
        self.folder, self.device, self.one_thread = folder, device, one_thread
        self.memory_mb = 0.0
        self.process = self._start()

    def __call__(self, params: PolicyParams, fresh: bool = False) -> EpisodeTotals:
        """As `episodes.Evaluate`.

        Raises:
            RuntimeError: the evaluation failed, or its process ended.
        """
        if self.process.poll() is not None:
            self.close()
            self.process = self._start()
        assert self.process.stdin is not None and self.process.stdout is not None
        arrays = {name: np.asarray(leaf) for name, leaf in by_name(params).items()}
        try:
            send(self.process.stdin, {"params": arrays, "fresh": fresh})
            answer = receive(self.process.stdout)
        except OSError:
            answer = None
        if answer is None:
            raise RuntimeError(f"its process ended with status {self.process.wait()}: see {self.folder / LOG}")
        if "error" in answer:
            raise RuntimeError(answer["error"])
        self.memory_mb = max(self.memory_mb, answer["memory_mb"])
        return EpisodeTotals(**{name: answer[name] for name in EpisodeTotals._fields if name in answer})

    def close(self) -> None:
        """End the process, whatever it is doing."""
        end_session(self.process)
        log = self.folder / LOG
        if log.exists() and not log.stat().st_size:
            log.unlink()

    def _start(self) -> subprocess.Popen:
        platform = {"JAX_PLATFORMS": "cpu"} if self.device == "cpu" else {}
        threads = ONE_THREAD if self.one_thread else {}
        with (self.folder / LOG).open("a") as log:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
            env = {**threads, **os.environ, **platform}
            return start_module("jaxrl_fast.evaluator", str(self.folder), env=env, **pipes)


def serve(evaluate: Evaluate, template: PolicyParams, requests: Iterator[dict[str, Any]], answers: IO[bytes]) -> None:
    """Answer evaluations, as `read_ahead` gives them."""
    for message in requests:
        try:
            params = from_names(template, message["params"])
            totals = evaluate(params, message["fresh"])
            told = {name: x for name, x in totals._asdict().items() if not isinstance(x, tuple)}
            answer: dict[str, Any] = {name: np.asarray(x) for name, x in told.items()}
        except Exception as error:  # an environment may raise anything
            answer = {"error": f"{type(error).__name__}: {error}"}
        send(answers, {**answer, "memory_mb": peak_memory_mb()})


def take_what_is_left(process: int = 0) -> None:
    """Run this process, or another one by its number, only where the cores would rest. One reading, SAC on two cores, a
    run of 70 s with five evaluations: 4.0 s longer so, 7.0 s by niceness alone."""
    os.setpriority(os.PRIO_PROCESS, process, 19)
    if hasattr(os, "SCHED_IDLE"):  # Linux
        os.sched_setscheduler(process, os.SCHED_IDLE, os.sched_param(0))
    _be_nice_as_a_session(process, 19)


def take_a_share() -> None:
    """Have as much of a busy core as training has, where the system divides cores among sessions: training waits for an
    evaluation that is late."""
    _be_nice_as_a_session(0, 0)


def _be_nice_as_a_session(process: int, niceness: int) -> None:
    """Linux may divide cores among sessions first, and regard the priorities of processes within each (`man 7 sched`,
    autogroups). Only of a process that leads its session, which else has others in it."""
    if os.getsid(process) == (process or os.getpid()):
        with suppress(OSError):  # not Linux, or changed too recently
            Path(f"/proc/{process or 'self'}/autogroup").write_text(str(niceness))


def read_ahead(requests: IO[bytes]) -> Iterator[dict[str, Any]]:
    """Messages as they come, read by a thread from now on: when the first is there, this process takes its share of the
    cores, and when there are no more, it ends, whatever it is doing."""
    waiting: queue.Queue[dict[str, Any]] = queue.Queue()

    def read() -> None:
        while (message := receive(requests)) is not None:
            take_a_share()
            waiting.put(message)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return iter(waiting.get, None)


def send(pipe: IO[bytes], message: dict[str, Any]) -> None:
    """Write a message."""
    content = serialization.msgpack_serialize(message)
    pipe.write(len(content).to_bytes(8, "big") + content)
    pipe.flush()


def receive(pipe: IO[bytes]) -> dict[str, Any] | None:
    """Read a message; None at the end."""
    length = pipe.read(8)
    if len(length) < 8:
        return None
    content = pipe.read(int.from_bytes(length, "big"))
    return dict(serialization.msgpack_restore(content))


def peak_memory_mb() -> float:
    """The most memory that this process has had, in MB."""
    import resource

    unit = 1e-6 if sys.platform == "darwin" else 1e-3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
