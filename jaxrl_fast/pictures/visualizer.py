"""An episode of the newest policy, drawn while training goes on, by a process that training does not depend on."""

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from jaxrl_fast.evaluation.evaluator_process import take_what_is_left
from jaxrl_fast.runs.hooks import ShouldStop, Tell

LOG = "render.log"
POLL_S = 0.1
LIMIT_S = 600.0
"""After so many seconds a drawing is given up."""
REFUSED = 2
"""The exit status of a command that says what is wrong, and would say it again."""


class Visualizer:
    """Draws ``out`` in the folder of a run by ``python -m jaxrl_fast.render``, from the run's ``policy/`` and ``seed``.
    Call it when a new policy lies there: while one is being drawn, newer ones wait, and the newest is next.

    What becomes of that process costs a line (``tell``); what it printed is then in ``render.log``. ``process`` is the
    one that draws, None where none does.
    """

    def __init__(self, folder: Path, out: str, seed: int, tell: Tell) -> None:
        self.folder, self.out, self.seed, self.tell = folder, out, seed, tell
        self.process: subprocess.Popen | None = None
        self._begun_s = 0.0
        self._waiting = self._drawn = self._refused = False

    def __call__(self) -> None:
        """Draw the newest policy, or have it wait for the one that is being drawn."""
        self._waiting = True
        if self._is_drawing() or self._refused:
            return
        process = self._start()
        with suppress(OSError):  # it has ended already
            take_what_is_left(process.pid)

    def finish(self, should_stop: ShouldStop) -> bool:
        """Draw the newest policy and wait for it; returns whether that succeeded."""
        if self._waiting and not self._refused:
            self.close()
            self._start()
        while self._is_drawing() and not should_stop():
            time.sleep(POLL_S)
        return self._drawn

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        self.process = None
        for name in (LOG, f"{self.out}.unfinished"):
            (self.folder / name).unlink(missing_ok=True)

    def _start(self) -> subprocess.Popen:
        self._waiting = self._drawn = False
        self._begun_s = time.perf_counter()
        words = [str(self.folder.resolve()), f"out={self.folder / self.out}", f"seed={self.seed}"]
        with (self.folder / LOG).open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jaxrl_fast.render", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for training, which then ends this
            )
        return self.process

    def _is_drawing(self) -> bool:
        """Whether the process draws; takes note of its end."""
        if self.process is None:
            return False
        status = self.process.poll()
        if status is None and time.perf_counter() - self._begun_s < LIMIT_S:
            return True
        if status is None:
            self.close()
            self.tell(f"no {self.out}: it took longer than {LIMIT_S:.0f} seconds")
            return False
        self.process, self._drawn, self._refused = None, status == 0, status == REFUSED
        log = self.folder / LOG
        if status == REFUSED:
            said = log.read_text().strip().rpartition("\n")[2].removeprefix("jaxrl_fast: error: ")
            self.tell(f"no {self.out}: {said}")
        elif status != 0:
            self.tell(f"no {self.out}: the process that draws it ended with status {status}: see {log}")
            return False
        log.unlink(missing_ok=True)
        return False
