"""Callbacks of a run, given by its caller, and the one that handles Ctrl-C and SIGTERM."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import numpy as np

from jaxrl_fast.core import EpisodeTotals
from jaxrl_fast.policy.policies import Policy
from jaxrl_fast.runtime.graph import TrainState

Row = dict[str, Any]
"""A row of a run's history, by column. ``kind`` is "train" (a chunk) or "eval" (an evaluation)."""


OnMetrics = Callable[[Row], None]
"""``(row)``: called with each new row of a run's history, the columns of ``metrics.csv`` or of an evaluation. The
row must not be changed.
"""


OnNewPolicy = Callable[[], None]
"""Called when the newest evaluated policy was written to ``policy/`` in the run's folder. Training waits for it, so
it must be quick.
"""


OnLastPolicy = Callable[[Policy], None]
"""``(policy)``: called with the last policy of a run, which the result contains and ``policy/`` stores."""


Tell = Callable[[str], None]
"""``(line)``: shows a message to the user, for instance by printing it. The line has no line break at its end."""


def to_stderr(line: str) -> None:
    """Print a message to stderr: the `Tell` of commands.

    Args:
        line: Message.
    """
    print(line, file=sys.stderr)


ShouldStop = Callable[[], bool]
"""``() -> bool``: whether the run should stop early. It is called often, so it must be quick. After the first True
it must always return True.
"""


BetweenChunks = Callable[[TrainState, np.ndarray], TrainState | None]
"""``(state, scores) -> state``: reads the state after every chunk, before its checkpoint, and may change it.

``state`` is the complete state of the run, leaves ``[S, ...]`` with several seeds, else without that axis.
``scores`` ``[S]`` are the mean returns of the last evaluation, empty before the first. The result is the state to
continue with, for instance with other hyper-parameters (``state.hyper``) or network parameters, or None for no
change. The next chunk overwrites the buffers of the state, so copy what you need.
"""


class Listeners(NamedTuple):
    """Pages and pictures that follow a run in its folder. The training loop does not depend on them.

    Attributes:
        on_start: ``(folder, job, state, run)``, before the first chunk, with `RunFolder`, `Job`, state and compiled
            chunk.
        on_row: ``(folder)``, after each row of the history.
        on_finish: ``(folder, policy)``, when the last policy was written.
        on_end: ``(run_dir, tell)``, when all files are closed, also after an error.
    """

    on_start: Callable[[Any, Any, Any, Any], None] = lambda folder, job, state, run: None
    on_row: Callable[[Any], None] = lambda folder: None
    on_finish: Callable[[Any, Policy], None] = lambda folder, policy: None
    on_end: Callable[[Path, Tell], None] = lambda run_dir, tell: None


class Calls(NamedTuple):
    """The callbacks of a run.

    Attributes:
        on_metrics: Called with each row; None for none.
        should_stop: Called before each chunk.
        between_chunks: Called after each chunk.
        on_new_policy: Called after each evaluation.
        on_last_policy: Called with the last policy; None for none.
        evaluate: Replaces the run's evaluation; None for none.
        tell: Shows messages to the user.
        listeners: Pages and pictures in the run's folder.
    """

    on_metrics: OnMetrics | None = None
    should_stop: ShouldStop = lambda: False
    between_chunks: BetweenChunks = lambda state, scores: None
    on_new_policy: OnNewPolicy = lambda: None
    on_last_policy: OnLastPolicy | None = None
    evaluate: Callable[..., EpisodeTotals] | None = None
    tell: Tell = to_stderr
    listeners: Listeners = Listeners()


class StopSignal:
    """Handler of Ctrl-C and SIGTERM, and a `ShouldStop`.

    The first signal stops the run after its chunk, or at once if nothing was trained. The second ends the process at
    once. In a command, ending means to exit; in a program, which only gives Ctrl-C away, to raise `KeyboardInterrupt`.
    """

    def __init__(self, *, in_program: bool = False) -> None:
        self.number: int | None = None
        self.training = False
        exits = {signal.SIGINT: signal.SIG_DFL, signal.SIGTERM: signal.SIG_DFL}
        self.after = {signal.SIGINT: signal.default_int_handler} if in_program else exits
        for number in self.after:
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self.ignore()
        if not self.training:
            print("\nstopped before training", file=sys.stderr)
            self._leave(number, frame)
        print("\nstopping after this chunk; press Ctrl-C again to stop at once", file=sys.stderr)

    def ignore(self) -> None:
        """Restore the default handlers, so that the next signal ends the process, or interrupts the program."""
        for number, handler in self.after.items():
            signal.signal(number, handler)

    def _leave(self, number: int, frame: FrameType | None) -> NoReturn:
        """Raise `SystemExit` until it is effective, or `KeyboardInterrupt` in a program.

        Python drops exceptions raised in a finalizer or in a callback of its garbage collector (JAX has one).
        """

        if self.after[signal.Signals(number)] is signal.default_int_handler:
            raise KeyboardInterrupt  # if Python drops it, the run stops before its first chunk

        def raise_later(dropped: "sys.UnraisableHookArgs") -> None:
            if dropped.exc_value is leaving:
                # Not a thread: its start waits, and the signal could arrive here, where it would be lost.
                signal.signal(signal.SIGALRM, lambda _, frame: self._leave(number, frame))
                signal.setitimer(signal.ITIMER_REAL, 0.05)
            else:
                sys.__unraisablehook__(dropped)

        leaving = SystemExit(128 + number)
        sys.unraisablehook = raise_later
        raise leaving

    def __call__(self) -> bool:
        self.training = True
        return self.number is not None


@contextmanager
def stopping_at_ctrl_c(should_stop: ShouldStop) -> Iterator[ShouldStop]:
    """Let Ctrl-C stop a run of a program as a true ``should_stop`` does, and raise `KeyboardInterrupt` after the block.

    Only in the main thread, and only if the program has Python's own handler of Ctrl-C.

    Args:
        should_stop: The program's.

    Returns:
        Context manager of the function that replaces it.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    own = signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    if own or threading.current_thread() is not threading.main_thread():
        yield should_stop
        return
    stop = StopSignal(in_program=True)
    try:
        yield lambda: stop() or should_stop()
    finally:
        stop.ignore()
    if stop.number is not None:
        raise KeyboardInterrupt
