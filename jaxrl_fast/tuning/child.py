"""The parent's end of a `trial`: starts it, asks it for repeats, and notices how it ends."""

import json
import os
import queue
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from jaxrl_fast.runs.hooks import ShouldStop
from jaxrl_fast.settings.run_settings import Run, to_yaml
from jaxrl_fast.subprocesses import end_session, start_module
from jaxrl_fast.tuning.talk import Request, What

SILENCE_S = 900.0
"""Seconds without an answer after which a trial is ended: longer than any compilation or repeat should take."""
POLL_S = 0.1
LAST_WORDS = 2000
"""Characters at the end of a crashed trial's stderr that are read."""


class Failure(NamedTuple):
    """A candidate that gave no rate: ``status`` is ``skipped``, ``refused``, ``out of memory``, ``killed``, ``crashed``
    or ``silent``; ``why`` is a line on the reason."""

    status: str
    why: str

    @property
    def larger_fails(self) -> bool:
        """Whether a larger candidate would fail too, for lack of memory."""
        return self.status in ("skipped", "out of memory", "killed")


class Stopped(Exception):
    """An early end was asked for while a trial was waited for."""


class Child:
    """A trial in a process and a session of its own. A context manager: on leaving, it and what it started are ended.

    ``what`` of the run to measure; ``folder`` gets its settings and its stderr; ``memory_cap`` in bytes (None: a share
    of what is free); ``repeat_s``: how long a repeat takes at least; ``stopped`` is asked while it is waited for.
    """

    def __init__(
        self,
        run: Run,
        what: What,
        folder: Path,
        *,
        memory_cap: float | None = None,
        repeat_s: float = 1.0,
        stopped: ShouldStop = lambda: False,
    ) -> None:
        self.stopped = stopped
        number = len(list(folder.glob("*.yaml")))
        path = folder / f"{number}.yaml"
        path.write_text(to_yaml(run))
        self.errors = folder / f"{number}.txt"
        request = Request(str(path), what, memory_cap, repeat_s)
        with self.errors.open("w") as errors:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
            # Else JAX would reserve most of an accelerator's memory, and other trials would not see what is free.
            env = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
            self.process = start_module("jaxrl_fast.tuning.trial", json.dumps(request), env=env, text=True, **pipes)
        assert self.process.stdout is not None
        self.answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=_hand_on, args=(self.process.stdout, self.answers), daemon=True).start()

    def ready(self) -> dict[str, Any] | Failure:
        """Facts about the candidate once it is compiled (the ``ready`` answer of `trial`), or why it failed.

        Raises:
            Stopped: an end was asked for meanwhile.
        """
        return self._answer()

    def repeat(self) -> dict[str, Any] | Failure:
        """Measure one repeat: an answer with the ``seconds`` of ``ticks`` ticks, or why it failed.

        Raises:
            Stopped: an end was asked for meanwhile.
        """
        assert self.process.stdin is not None
        with suppress(OSError):  # it has ended, as the answer will show
            print("again", file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any] | Failure:
        until = time.monotonic() + SILENCE_S
        line: str | None = ""
        while line == "":
            if self.stopped():
                raise Stopped
            if time.monotonic() > until:
                return Failure("silent", f"said nothing for {SILENCE_S:.0f} s")
            with suppress(queue.Empty):
                line = self.answers.get(timeout=POLL_S)
        if line is None:
            self.answers.put(None)  # for whoever asks again
            return self._ended()
        answer = json.loads(line)
        return answer if answer["kind"] in ("ready", "repeat") else Failure(answer["kind"], answer["why"])

    def _ended(self) -> Failure:
        status = self.process.wait()
        lines = self.errors.read_text(errors="replace")[-LAST_WORDS:].strip().splitlines()
        last = f": {lines[-1]}" if lines else ""
        if status == -signal.SIGKILL:
            return Failure("killed", "ended by SIGKILL, as the system does where memory runs out")
        how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        return Failure("crashed", f"{how}{last}")

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *error: object) -> None:
        end_session(self.process)


def _hand_on(answers: IO[str], to: "queue.SimpleQueue[str | None]") -> None:
    """Pass on each line of JSON that is read, then None at the end. Other lines are ignored."""
    try:
        for line in answers:
            if line.startswith("{"):
                to.put(line)
    finally:
        to.put(None)
