"""What `gpu` asks of other processes: jobs of a worker that keeps the device, and whole commands.

XLA reads its flags once, and one process at a time can have a card's memory; so there is one worker for each set of
environment variables, ended before another starts. A job that ends its worker costs that job alone.
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
"""Seconds after which a job is given up: a large program takes one or two minutes to compile."""
LAST_WORDS = 300
"""Characters of an error that are kept, from its beginning."""
TO_END_S = 30.0


class Job(NamedTuple):
    """What a worker compiles and times.

    - ``name``: of the row; ``words``: of the train command.
    - ``what`` of the run: "training", "sampling", "environments" or "updates".
    - ``repeats`` of at least ``repeat_s`` seconds each; 0 times nothing.
    - ``ticks``: of a chunk; None: as many as in training.
    - ``keep``: the file (.npz) for the first state and that after two chunks, "" for none.
    """

    name: str
    words: str
    what: str = "training"
    repeats: int = 5
    repeat_s: float = 0.5
    ticks: int | None = None
    keep: str = ""


class Ended(NamedTuple):
    """How a command ended: its ``status``, the end of what it printed, and the ``seconds`` that it took; ``late``: it
    was ended after its time."""

    status: int
    said: str
    seconds: float
    late: bool


class Processes:
    """A context manager: on leaving, the worker is ended. ``variables`` are added to those of this process."""

    def __init__(self) -> None:
        self._worker: subprocess.Popen[str] | None = None
        self._variables: dict[str, str] = {}
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed on leaving)

    def ask(self, job: Job, variables: Mapping[str, str], limit_s: float = LIMIT_S) -> dict[str, Any]:
        """A job's answer, or ``{"error": line}``. Workers are started and ended as it needs them."""
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

    def command(self, words: Sequence[str], variables: Mapping[str, str], limit_s: float = LIMIT_S) -> Ended:
        """Run Python with ``words``. After its time a command gets SIGTERM, at which training saves and ends."""
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
        if self._worker is not None and self._variables == variables and self._worker.poll() is None:
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
    """The variables of another process: XLA's flags and Python's path are added to those that are there, the others
    replace them."""
    flags = " ".join(filter(None, (os.environ.get("XLA_FLAGS"), variables.get("XLA_FLAGS"))))
    path = os.pathsep.join(filter(None, (str(ROOT), variables.get("PYTHONPATH"), os.environ.get("PYTHONPATH"))))
    return {**os.environ, **variables, "PYTHONPATH": path, **({"XLA_FLAGS": flags} if flags else {})}


def end(process: subprocess.Popen[str]) -> str:
    """End a command and what it started; returns what it printed."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        return process.communicate(timeout=TO_END_S)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0]


def ending(status: int) -> str:
    """How a process ended, in words."""
    return f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
