"""Callbacks of a run, given by its caller.

The training loop calls the fields of `Calls`. `with_callbacks` composes the ones that few runs have
into these fields.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl_fast.policy.policies import Policy
from jaxrl_fast.runtime.graph import TrainState
from jaxrl_fast.settings.schema import EvalOptions

Row = dict[str, Any]
"""A row of a run's history, by column. ``kind`` is "train" (a chunk) or "eval" (an evaluation)."""


RATES = ("sampling_hz", "update_hz", "update_frame_hz")
"""Columns of a row with rates: environment steps, gradient updates and samples in updates per
second.
"""


class MeanRates:
    """Averages the rates of a run's chunks: over those with updates, or over all until there is
    one.

    All chunks of a run have the same number of steps. This is the one speed of a run that lines and
    pages show; the rows of ``metrics.csv`` are of single chunks.

    Attributes:
        learns: Whether there were updates.
        now: The rates so far by their columns, 0 before the first chunk.
    """

    def __init__(self) -> None:
        self.learns, self.sums, self.now = False, np.zeros(4), dict.fromkeys(RATES, 0.0)

    def add(self, row: Row) -> dict[str, float]:
        """Add the row of a chunk, and return the rates so far by their columns."""
        learns = row["update_hz"] > 0
        if learns or not self.learns:
            added = np.array([1.0, row["update_hz"], row["update_frame_hz"], 1.0])
            added[1:] /= row["sampling_hz"]  # each chunk counts as one unit of steps
            self.sums = added + (self.sums if learns == self.learns else 0.0)
            self.learns, self.now = (
                learns,
                dict(zip(RATES, (self.sums[:3] / self.sums[3]).tolist(), strict=True)),
            )
        return self.now


OnMetrics = Callable[[Row], None]
"""``(row)``: called with each new row of a run's history, the columns of ``metrics.csv`` or of an
evaluation. The row must not be changed.
"""


OnNewPolicy = Callable[[], None]
"""Called when the newest evaluated policy was written to ``policy/`` in the run's folder. Training
waits for it, so it must be quick.
"""


OnLastPolicy = Callable[[Policy], None]
"""``(policy)``: called with the last policy of a run, which the result contains and ``policy/``
stores.
"""


class Evaluation(NamedTuple):
    """Result of an evaluation of all ``S`` seeds, for `OnEval`.

    Attributes:
        env_steps: Environment steps of each seed when its policy was copied. Training may have
            continued since then.
        returns: Undiscounted returns, ``[S, episodes]``.
        length: Steps of the episodes, ``[S, episodes]``.
        success: Whether the episodes ended in a success, bool ``[S, episodes]``; None if the
            environment reports none.
        policy_of: ``(seed) -> policy``, the evaluated policy of a seed, from 0.
    """

    env_steps: int
    returns: np.ndarray
    length: np.ndarray
    success: np.ndarray | None
    policy_of: Callable[[int], Policy]

    @property
    def policy(self) -> Policy:
        """Policy of the seed with the highest mean return."""
        return self.policy_of(int(np.argmax(self.returns.mean(axis=1))))


class EndedEpisodes(NamedTuple):
    """Training episodes that ended in a chunk, for `OnEpisodeEnd`.

    The compiled program only returns sums, so that single episodes are not available.

    Attributes:
        env_steps: Environment steps of each seed at the end of the chunk.
        number: Number of ended episodes of each seed, ``[S]``.
        returns: Their mean return, ``[S]``; NaN for a seed without one.
        length: Their mean length in steps, ``[S]``; NaN for a seed without one.
    """

    env_steps: int
    number: np.ndarray
    returns: np.ndarray
    length: np.ndarray


OnEval = Callable[[Evaluation], None]
"""``(evaluation)``: called when an evaluation is recorded, after its policy was written. Training
waits for it.
"""


OnCheckpoint = Callable[[Path], None]
"""``(path)``: called when a checkpoint is complete, in the thread that writes checkpoints. Training
continues. The folder is not removed before the call returns. An error ends the run at the next
checkpoint, or at its end.
"""


OnEpisodeEnd = Callable[[EndedEpisodes], None]
"""``(episodes)``: called after each chunk in which training episodes ended, once for all of them.
Training waits for it.
"""


Tell = Callable[[str], None]
"""``(line)``: shows a message to the user, for instance by printing it. The line has no line break
at its end.
"""


def to_stderr(line: str) -> None:
    """Print a message to stderr: the `Tell` of commands.

    Args:
        line: Message.
    """
    print(line, file=sys.stderr)


ShouldStop = Callable[[], bool]
"""``() -> bool``: whether the run should stop early. It is called often, so it must be quick. After
the first True it must always return True.
"""


BetweenChunks = Callable[[TrainState, np.ndarray], TrainState | None]
"""``(state, scores) -> state``: reads the state after every chunk, before its checkpoint, and may
change it.

``state`` is the complete state of the run, leaves ``[S, ...]`` with several seeds, else without
that axis. ``scores`` ``[S]`` are the mean returns of the last evaluation, empty before the first.
The result is the state to continue with, for instance with other hyper-parameters (``state.hyper``)
or network parameters, or None for no change. The next chunk overwrites the buffers of the state, so
copy what you need.
"""


class CallbackError(Exception):
    """An error of ``on_checkpoint``, ``cause``, which is not an error of writing."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


STOP_RETURN = "stop.return"


def check_stop(stop_return: float | None, asked: EvalOptions) -> None:
    """Check that the evaluations of a run can stop it, so that the run repeats.

    Args:
        stop_return: Mean greedy return at which the run stops, or None.
        asked: Options of evaluation.

    Raises:
        ValueError: There are no evaluations, or they are played during training.
    """
    if stop_return is None:
        return
    require_evaluations(STOP_RETURN, asked)
    if asked.beside:
        raise ValueError(
            f"{STOP_RETURN} evaluates between chunks: leave eval.beside out, or write eval.beside=false"
        )


def require_evaluations(what: str, asked: EvalOptions) -> None:
    """Check that a run has evaluations.

    Args:
        what: Name of the argument that needs them.
        asked: Options of evaluation.

    Raises:
        ValueError: There are none.
    """
    if asked.every == 0:
        raise ValueError(
            f"{what} needs evaluations, and eval.every=0 makes none: leave one of them out"
        )


def reached(stop_return: float | None, scores: Sequence[float] | np.ndarray) -> bool:
    """Check whether an evaluation has reached the return at which a run stops.

    Args:
        stop_return: The return, or None.
        scores: Each seed's mean return, ``[S]``; empty before the first evaluation.

    Returns:
        Whether the mean over seeds is at least as high.
    """
    return stop_return is not None and len(scores) > 0 and float(np.mean(scores)) >= stop_return


def describe_reached(stop_return: float, checkpoint: Path, progress: Row) -> str:
    """Describe that a run cannot be resumed because it has reached its return.

    Args:
        stop_return: The return.
        checkpoint: Checkpoint that should be resumed.
        progress: Its progress.

    Returns:
        A line.
    """
    score = float(np.mean(progress["scores"]))
    return (
        f"{checkpoint}: the greedy return {score:.6g} has reached {STOP_RETURN}={stop_return:g}; write a higher "
        f"{STOP_RETURN}, or {STOP_RETURN}=null, to continue"
    )
