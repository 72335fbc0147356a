"""Ctrl-C and SIGTERM while a run goes on."""

import os
import signal
import sys
import threading
from types import FrameType
from typing import NoReturn


class StopSignal:
    """Handles Ctrl-C and SIGTERM: the first ends the run after its chunk (at once while there is nothing to save), the
    second ends the process wherever it is. Calling it says whether to stop."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.training = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self.ignore()
        if not self.training:
            print("\nstopped before anything was trained", file=sys.stderr)
            self._leave(number, frame)
        print("\nstopping after this chunk; once more to stop at once", file=sys.stderr)

    def ignore(self) -> None:
        """Stop handling signals: from here on one ends the process."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)

    def _leave(self, number: int, frame: FrameType | None) -> NoReturn:
        """Exit by `SystemExit`, again and again until it gets through: Python drops what is raised in a finalizer or in
        a callback of its garbage collector (JAX has one)."""

        def raise_later(dropped: "sys.UnraisableHookArgs") -> None:
            if dropped.exc_value is leaving:
                signal.signal(number, self._leave)
                threading.Timer(0.01, os.kill, [os.getpid(), number]).start()
            else:
                sys.__unraisablehook__(dropped)

        leaving = SystemExit(128 + number)
        sys.unraisablehook = raise_later
        raise leaving

    def __call__(self) -> bool:
        self.training = True
        return self.number is not None
