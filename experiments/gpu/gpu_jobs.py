"""Requests of `gpu` to other processes: jobs of a worker that occupies the device, and whole
commands.

XLA reads its flags once, and only one process at a time can hold a card's memory. So there is one
worker for each set of environment variables, which ends before another starts. A job that ends its
worker costs that job alone.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
WORKER = Path(__file__).with_name("gpu_worker.py")
LIMIT_S = 300.0
"""Time limit of a job in seconds: a large program takes one or two minutes to compile."""
LAST_WORDS = 300
"""Maximal length of a stored error message."""
TO_END_S = 30.0


class Job(NamedTuple):
    """The options of a job that a worker compiles and times.

    - ``name``: of the row; ``words``: of the train command.
    - ``what`` of the run: "training", "sampling", "environments" or "updates".
    - ``repeats`` of at least ``repeat_s`` seconds each; 0 times nothing.
    - ``ticks``: of a chunk; None: as many as in training.
    - ``keep``: the file (.npz) for the first state and the state after two chunks, "" for none.
    """

    name: str
    words: str
    what: str = "training"
    repeats: int = 5
    repeat_s: float = 0.5
    ticks: int | None = None
    keep: str = ""


class Ended(NamedTuple):
    """The result of a command: its ``status``, the end of its output, and its ``seconds``;
    ``late``: it was ended after its time limit.
    """

    status: int
    said: str
    seconds: float
    late: bool


class Processes:
    """A context manager that ends the worker on exit. ``variables`` are added to the variables of
    this process.
    """

    def __init__(self) -> None:
        self._worker: subprocess.Popen[str] | None = None
        self._variables: dict[str, str] = {}
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 (closed on leaving)

    def ask(
        self, job: Job, variables: Mapping[str, str], limit_s: float = LIMIT_S
    ) -> dict[str, Any]:
        """Return a job's answer, or ``{"error": line}``. Starts and ends workers as required."""
        worker = self._worker_with(dict(variables))
        assert worker.stdin is not None and worker.stdout is not None
        late = threading.Event()
        timer = threading.Timer(limit_s, lambda: (late.set(), worker.kill()))
        timer.start()
        try:
            print(json.dumps(job._asdict()), file=worker.stdin, flush=True)
            line = worker.stdout.readline()
        except OSError:  # it has ended
            line = ""
        finally:
            timer.cancel()
        if line:
            return json.loads(line)
        status = worker.wait()
        said = self._last_words()
        self.close()
        how = f"longer than {limit_s:.0f} s" if late.is_set() else ending(status)
        return {"error": f"{how}: {said}" if said and not late.is_set() else how}

    def command(
        self, words: Sequence[str], variables: Mapping[str, str], limit_s: float = LIMIT_S
    ) -> Ended:
        """Run Python with ``words``. After its time limit a command gets SIGTERM, at which training
        saves and ends.
        """
        self.close()
        begin = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env=environment(variables),
            start_new_session=True,
        )
        late = False
        try:
            said, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            late = True
            said = end(process)
        return Ended(process.returncode, said, time.monotonic() - begin, late)

    def close(self) -> None:
        """End the worker, so that the device is free."""
        if self._worker is not None:
            self._worker.kill()
            self._worker.communicate()
            self._worker = None

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
        self._errors.close()

    def _worker_with(self, variables: dict[str, str]) -> subprocess.Popen[str]:
        if (
            self._worker is not None
            and self._variables == variables
            and self._worker.poll() is None
        ):
            return self._worker
        self.close()
        self._variables = variables
        self._errors.seek(0)
        self._errors.truncate()
        self._worker = subprocess.Popen(
            [sys.executable, str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            env=environment(variables),
        )
        return self._worker

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return lines[-1][:LAST_WORDS] if lines else ""


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of another process: XLA's flags and Python's path are appended to the
    existing ones, the others replace them.
    """
    flags = " ".join(filter(None, (os.environ.get("XLA_FLAGS"), variables.get("XLA_FLAGS"))))
    path = os.pathsep.join(
        filter(None, (str(ROOT), variables.get("PYTHONPATH"), os.environ.get("PYTHONPATH")))
    )
    return {
        **os.environ,
        **variables,
        "PYTHONPATH": path,
        **({"XLA_FLAGS": flags} if flags else {}),
    }


def end(process: subprocess.Popen[str]) -> str:
    """End a command and its child processes; return its output."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        return process.communicate(timeout=TO_END_S)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0]


def ending(status: int) -> str:
    """Describe how a process ended."""
    return (
        f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    )
