"""Signals that end a run after it is saved, and the one that saves a run which goes on.

Ctrl-C (INT), ``kill`` (TERM), a closed terminal (HUP), Ctrl-\\ (QUIT), a limit of CPU time (XCPU) and
some schedulers (USR2) end a run. USR1, which Slurm sends before a time limit, saves it.
"""

import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NamedTuple, NoReturn

from jaxrl_fast.system import ENDING, SAVING
from jaxrl_fast.training.callbacks import ShouldStop

REPEATED = (signal.SIGHUP, signal.SIGXCPU)
"""Signals that the system repeats for one event: a shell and the kernel both send HUP when a terminal
closes, and XCPU comes every second. So they end a run, and never one that is being saved.
"""
EXIT_CODES = tuple(128 + number for number in ENDING)
"""Exit codes of commands that a signal ended."""


class StopSignal:
    """Handler of the signals, and a `ShouldStop`.

    The first signal stops the run after its chunk, or at once if nothing was trained. The second
    ends the process at once. In a command, ending means to exit. In a program, Ctrl-C raises
    `KeyboardInterrupt` and others raise `SystemExit`, so that the program's own cleanup runs, and
    signals with a handler of the program remain the program's.

    Attributes:
        number: The signal that ended the run, or None.
        training: Whether the run has begun to train.
    """

    def __init__(
        self, *, in_program: bool = False, what: str = "training", stops: str = "after this chunk"
    ) -> None:
        self.number: int | None = None
        self.training = False
        self.in_program, self.what, self.stops = in_program, what, stops
        self._asked_to_save = False
        self._before = {
            number: signal.getsignal(number)
            for number in (*ENDING, SAVING)
            if self._may_handle(number)
        }
        for number in self._before:
            signal.signal(number, self._save if number == SAVING else self._handle)

    def _may_handle(self, number: signal.Signals) -> bool:
        """Return whether nobody else handles the signal; nohup ignores HUP."""
        handler = signal.getsignal(number)
        if self.in_program:
            return handler in (signal.SIG_DFL, signal.default_int_handler)
        return number != signal.SIGHUP or handler != signal.SIG_IGN

    def _save(self, number: int, frame: FrameType | None) -> None:
        self._asked_to_save = True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self.ignore()
        if self.training:
            self._print(f"stopping {self.stops}; press Ctrl-C again to stop at once")
        else:
            self._print(f"stopped before {self.what}")
        if number == signal.SIGHUP:
            mute_terminals()
        if not self.training:
            self._leave(number)

    def _print(self, line: str) -> None:
        # a closed terminal, or a signal that interrupts another print
        with suppress(OSError, RuntimeError):
            print(f"\n{line}", file=sys.stderr)

    def ignore(self) -> None:
        """Let the next signal end the process or interrupt the program, but not a repeated one."""
        for number, before in self._before.items():
            handler = before if self.in_program else signal.SIG_DFL
            ignored = self.number is not None and number in (*REPEATED, SAVING)
            signal.signal(number, signal.SIG_IGN if ignored else handler)

    def restore(self) -> None:
        """Restore the handlers from before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _leave(self, number: int) -> NoReturn:
        """Raise `SystemExit` until it is effective, or `KeyboardInterrupt` in a program.

        Python drops exceptions raised in a finalizer or in a callback of its garbage collector (JAX
        has one).
        """
        if self.in_program:
            raise self.error()  # if Python drops it, the run stops before its first chunk

        def raise_later(dropped: "sys.UnraisableHookArgs") -> None:
            if dropped.exc_value is leaving:
                # Not a thread: its start waits, and the signal could arrive here, where it would be
                # lost.
                signal.signal(signal.SIGALRM, lambda *_: self._leave(number))
                signal.setitimer(signal.ITIMER_REAL, 0.05)
            else:
                sys.__unraisablehook__(dropped)

        leaving = SystemExit(128 + number)
        sys.unraisablehook = raise_later
        raise leaving

    def error(self) -> BaseException:
        """Return what a program raises after the signal."""
        assert self.number is not None
        is_ctrl_c = self.number == signal.SIGINT
        return KeyboardInterrupt() if is_ctrl_c else SystemExit(128 + self.number)

    def __call__(self) -> bool:
        self.training = True
        return self.number is not None

    def should_save(self) -> bool:
        """Return whether USR1 came since the last call."""
        asked, self._asked_to_save = self._asked_to_save, False
        return asked


def mute_terminals() -> None:
    """Send later output to nowhere if it goes to a terminal, since writing to a closed one fails."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(stream).st_mode):
                os.dup2(nowhere, stream)
    os.close(nowhere)


class Stop(NamedTuple):
    """What signals request of a run.

    Attributes:
        should_stop: Whether the run should stop.
        should_save: Whether it should save and go on, asked since the last call.
    """

    should_stop: ShouldStop
    should_save: Callable[[], bool] = lambda: False


@contextmanager
def stopping_at_signals(should_stop: ShouldStop) -> Iterator[Stop]:
    """Let signals stop a run of a program as a true ``should_stop`` does, and end the program after
    the block.

    Only in the main thread, and only signals for which the program has no handler.

    Args:
        should_stop: The program's.

    Returns:
        Context manager of what the signals request.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed.
        SystemExit: Another signal ended the run.
    """
    if threading.current_thread() is not threading.main_thread():
        yield Stop(should_stop)
        return
    stop = StopSignal(in_program=True)
    try:
        yield Stop(lambda: stop() or should_stop(), stop.should_save)
    finally:
        stop.restore()
    if stop.number is not None:
        raise stop.error()
