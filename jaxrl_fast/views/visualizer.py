"""Draws an episode of the newest policy during training, in a process that training does not depend
on.
"""

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from jaxrl_fast.system import UNFINISHED, end_session, start_module
from jaxrl_fast.training.callbacks import ShouldStop, Tell
from jaxrl_fast.training.evaluator_process import ONE_THREAD, take_what_is_left

LOG = "render.log"
POLL_S = 0.1
LIMIT_S, LAST_LIMIT_S = 600.0, 60.0
"""Time limits of a drawing in seconds, during training and after its end."""
REFUSED = 2
"""Exit code of a command with invalid settings, which would fail again."""


class Visualizer:
    """Draws ``out`` in the folder of a run by ``python -m jaxrl_fast.render``, from the run's
    ``policy/`` and ``seed``.

    Call it after each new policy. While one is drawn, newer ones wait, and the newest is drawn
    next. A failure of the process prints a message (``tell``), and its output is in ``render.log``.

    Attributes:
        process: The process that draws, or None.
    """

    def __init__(
        self,
        folder: Path,
        out: str,
        seed: int,
        tell: Tell,
        *,
        own: Sequence[str] = (),
        limit_s: float = LIMIT_S,
    ) -> None:
        self.folder, self.out, self.seed, self.tell, self.limit_s = folder, out, seed, tell, limit_s
        self.own = own
        self.process: subprocess.Popen | None = None
        self._until_s = 0.0
        self._waiting = self._drawn = self._refused = False

    def __call__(self) -> None:
        """Draw the newest policy, or let it wait for the one being drawn."""
        self._waiting = True
        if not self._is_drawing():
            self._start()
        if self.process is not None:
            with suppress(OSError):  # it has ended already
                take_what_is_left(self.process.pid)

    def finish(self, should_stop: ShouldStop) -> bool:
        """Draw the newest policy and wait for it; return whether that succeeded."""
        if self._waiting:
            self.close()
            self._start()
        self._until_s = min(self._until_s, time.perf_counter() + LAST_LIMIT_S)
        while self._is_drawing() and not should_stop():
            time.sleep(POLL_S)
        return self._drawn

    def close(self) -> None:
        """Kill the process."""
        if self.process is None:
            return
        end_session(self.process)
        self.process = None
        self._remove(LOG, *(path.name for path in self.folder.glob(f".{self.out}.*{UNFINISHED}")))

    def _start(self) -> None:
        if self._refused:
            return
        self._waiting = self._drawn = False
        self._until_s = time.perf_counter() + self.limit_s
        words = [
            str(self.folder.resolve()),
            f"out={self.folder / self.out}",
            f"seed={self.seed}",
            *self.own,
        ]
        try:
            with (self.folder / LOG).open("w", encoding="utf-8") as log:
                pipes = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
                self.process = start_module(
                    "jaxrl_fast.render", *words, env={**ONE_THREAD, **os.environ}, **pipes
                )
        except OSError as error:
            self.tell(f"no {self.out}: {error}")

    def _is_drawing(self) -> bool:
        """Check whether the process draws, and handle its end."""
        if self.process is None:
            return False
        status = self.process.poll()
        if status is None and time.perf_counter() < self._until_s:
            return True
        self._drawn, self._refused = status == 0, status == REFUSED
        if status is None:
            self.close()
            self.tell(
                f"no {self.out}: the process that draws it exceeded its time limit and was ended"
            )
        elif self._refused:
            self.tell(f"no {self.out}: {self._last_word()}")
        elif not self._drawn:
            self.tell(
                f"no {self.out}: its process ended with exit code {status}: see {self.folder / LOG}"
            )
        self.process = None
        if self._drawn or self._refused:
            self._remove(LOG)
        return False

    def _last_word(self) -> str:
        try:
            said = (self.folder / LOG).read_text(encoding="utf-8").strip()
        except OSError as error:
            return str(error)
        return said.rpartition("\n")[2].removeprefix("jaxrl_fast: error: ")

    def _remove(self, *names: str) -> None:
        for name in names:
            with suppress(OSError):
                (self.folder / name).unlink(missing_ok=True)
