"""What the caller of a run hands in to be called while it goes on."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import numpy as np

from jaxrl_fast.core import EpisodeTotals
from jaxrl_fast.policy.policies import Policy
from jaxrl_fast.runtime.graph import TrainState

Row = dict[str, Any]
"""A row of a run's history, by column: ``kind`` is "train" (a chunk) or "eval" (an evaluation)."""


OnMetrics = Callable[[Row], None]
"""Called with each row of a run's history when it is made: the columns of ``metrics.csv`` or of an evaluation; not to
be changed."""


OnNewPolicy = Callable[[], None]
"""Called when the newest evaluated policy lies in the run's folder, in ``policy/``. Training waits for it, so it must
be quick."""


OnLastPolicy = Callable[[Policy], None]
"""Called with the policy that a run ends with, that of the result, written to ``policy/``."""


Tell = Callable[[str], None]
"""Shows a person what happens, for instance by printing it: a sentence without a line break at its end."""


def to_stderr(line: str) -> None:
    """The `Tell` of commands."""
    print(line, file=sys.stderr)


ShouldStop = Callable[[], bool]
"""Asked again and again whether to end early, so it must be quick. Returns True once the end is wanted, and from
then on."""


BetweenChunks = Callable[[TrainState, np.ndarray], TrainState | None]
"""Sees the state after every chunk, before its checkpoint, and may change it.

(state: all that the run is, leaves ``[S, ...]`` with several seeds, else without that axis; scores ``[S]``: the mean
returns of the last evaluation, empty before the first) -> the state to go on from, with other rates (``state.hyper``)
or params for instance, or None for the same. The state's buffers are overwritten by the next chunk: copy what you need.
"""


class Listeners(NamedTuple):
    """Pages and pictures that follow a run in its folder, which training does not know.

    - ``on_start(folder, job, state, run)``: before the first chunk; the `RunFolder`, the `Job`, the state and the
      compiled chunk.
    - ``on_row(folder)``: after each row of the history.
    - ``on_finish(folder, policy)``: when the last policy is written.
    - ``on_end(run_dir, tell)``: when all files are closed, however the run ended.
    """

    on_start: Callable[[Any, Any, Any, Any], None] = lambda folder, job, state, run: None
    on_row: Callable[[Any], None] = lambda folder: None
    on_finish: Callable[[Any, Policy], None] = lambda folder, policy: None
    on_end: Callable[[Path, Tell], None] = lambda run_dir, tell: None


class Calls(NamedTuple):
    """What a run calls while it goes on.

    ``on_metrics``: for each row (None: nothing); ``should_stop``: before each chunk; ``between_chunks``: after each;
    ``on_new_policy`` and ``on_last_policy``: with policies; ``evaluate``: in place of its own evaluation; ``tell``: for
    what a person should know; ``listeners``: in its folder.
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
