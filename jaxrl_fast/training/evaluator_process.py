"""Evaluation in a separate process, which training neither waits for nor depends on.

The two processes communicate by pipes: a message is its length in 8 bytes, followed by msgpack.
Messages are never executed.
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

import jax
import numpy as np
from flax import serialization

from jaxrl_fast.core import EpisodeTotals
from jaxrl_fast.policy.policies import PolicyParams, by_name, from_names
from jaxrl_fast.system import end_session, start_module
from jaxrl_fast.training.episodes import Evaluate

LOG = "evaluator.log"
ONE_THREAD = {"PJRT_NPROC": "1"}
"""Environment variable that limits XLA to one thread, which is enough for few environments. An
episode of 32 halfcheetah environments on two cores took 3.6 s and 5.2 core-seconds with two
threads, 2.6 s and 2.6 core-seconds with one, with identical results; 512 environments took 55 s
with either.
"""
MANY_EPISODES = 512
"""Evaluations of more parallel episodes than this use one thread per core, as do evaluations with
images.
"""


class EvaluatorProcess:
    """Evaluates in a process that rebuilds the run from its ``config.yaml``; a process that ended
    is restarted.

    It ends when the parent process ends. Its output goes to ``evaluator.log``.

    Attributes:
        folder: Folder of the run.
        device: "cpu" for the cores of the host, "same" for the device that trains.
        one_thread: Whether XLA uses one core only.
        process: The running process.
        memory_mb: Largest memory of the process so far, in MB.
    """

    def __init__(self, folder: Path, device: str, *, one_thread: bool = True) -> None:
        self.folder, self.device, self.one_thread = folder, device, one_thread
        self.memory_mb = 0.0
        self.process = self._start()

    def __call__(self, params: PolicyParams, fresh: bool = False) -> EpisodeTotals:
        """Evaluate, as `episodes.Evaluate`.

        Raises:
            RuntimeError: The evaluation failed, or its process ended.
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
            raise RuntimeError(
                f"its process ended with exit code {self.process.wait()}: see {self.folder / LOG}"
            )
        if "error" in answer:
            raise RuntimeError(answer["error"])
        self.memory_mb = max(self.memory_mb, answer["memory_mb"])
        return EpisodeTotals(
            **{name: answer[name] for name in EpisodeTotals._fields if name in answer}
        )

    def close(self) -> None:
        """Kill the process."""
        end_session(self.process)
        log = self.folder / LOG
        if log.exists() and not log.stat().st_size:
            log.unlink()

    def _start(self) -> subprocess.Popen:
        platform = {"JAX_PLATFORMS": "cpu"} if self.device == "cpu" else {}
        threads = ONE_THREAD if self.one_thread else {}
        with (self.folder / LOG).open("a", encoding="utf-8") as log:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
            env = {**threads, **os.environ, **platform}
            return start_module("jaxrl_fast.evaluator", str(self.folder), env=env, **pipes)


def serve(
    evaluate: Evaluate,
    template: PolicyParams,
    requests: Iterator[dict[str, Any]],
    answers: IO[bytes],
) -> None:
    """Answer requests of evaluations.

    Args:
        evaluate: Evaluates parameters.
        template: Parameters with the structure of those in requests.
        requests: Result of `read_ahead`.
        answers: Pipe for the answers.
    """
    for message in requests:
        try:
            params = from_names(template, message["params"])
            totals = evaluate(params, message["fresh"])
            told = {name: x for name, x in totals._asdict().items() if not isinstance(x, tuple)}
            answer: dict[str, Any] = jax.tree.map(np.asarray, told)
        except Exception as error:  # an environment may raise anything
            answer = {"error": f"{type(error).__name__}: {error}"}
        send(answers, {**answer, "memory_mb": peak_memory_mb()})


def take_what_is_left(process: int = 0) -> None:
    """Run a process at idle priority.

    SAC on two cores with five evaluations in 70 s took 4.0 s longer this way, and 7.0 s longer with
    niceness alone (one measurement).

    Args:
        process: Process id, 0 for this process.
    """
    os.setpriority(os.PRIO_PROCESS, process, 19)
    if hasattr(os, "SCHED_IDLE"):  # Linux
        os.sched_setscheduler(process, os.SCHED_IDLE, os.sched_param(0))
    _be_nice_as_a_session(process, 19)


def take_a_share() -> None:
    """Give this process the same share of busy cores as training, since training waits for a late
    evaluation.

    It only has an effect if the system schedules sessions.
    """
    _be_nice_as_a_session(0, 0)


def _be_nice_as_a_session(process: int, niceness: int) -> None:
    """Set the niceness of a process's session, if the process leads it; other sessions may contain
    other processes.

    Linux may schedule sessions first, and processes by priority within each (`man 7 sched`,
    autogroups).
    """
    if os.getsid(process) == (process or os.getpid()):
        with suppress(OSError):  # not Linux, or changed too recently
            Path(f"/proc/{process or 'self'}/autogroup").write_text(str(niceness), encoding="utf-8")


def read_ahead(requests: IO[bytes]) -> Iterator[dict[str, Any]]:
    """Read messages in a thread.

    The first message gives this process its share of the cores, and the end of the pipe ends this
    process.

    Args:
        requests: Pipe of the requests.

    Returns:
        Iterator over the messages.
    """
    waiting: queue.Queue[dict[str, Any]] = queue.Queue()

    def read() -> None:
        while (message := receive(requests)) is not None:
            take_a_share()
            waiting.put(message)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return iter(waiting.get, None)


def send(pipe: IO[bytes], message: dict[str, Any]) -> None:
    """Write a message to a pipe.

    Args:
        pipe: Pipe.
        message: Arrays and numbers by name.
    """
    content = serialization.msgpack_serialize(message)
    pipe.write(len(content).to_bytes(8, "big") + content)
    pipe.flush()


def receive(pipe: IO[bytes]) -> dict[str, Any] | None:
    """Read a message from a pipe.

    Args:
        pipe: Pipe.

    Returns:
        The message, or None at the end.
    """
    length = pipe.read(8)
    if len(length) < 8:
        return None
    content = pipe.read(int.from_bytes(length, "big"))
    return dict(serialization.msgpack_restore(content))


def peak_memory_mb() -> float:
    """Return the largest memory of this process so far.

    Returns:
        Resident memory in MB.
    """
    import resource

    unit = 1e-6 if sys.platform == "darwin" else 1e-3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
