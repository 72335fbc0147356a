"""The callbacks of a run, composed for its loop."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxrl_fast.core import EpisodeTotals
from jaxrl_fast.policy.policies import Policy
from jaxrl_fast.runtime import hosts
from jaxrl_fast.runtime.graph import TrainState
from jaxrl_fast.runtime.program import RunChunk
from jaxrl_fast.training.callbacks import (
    STOP_RETURN,
    BetweenChunks,
    CallbackError,
    EndedEpisodes,
    Evaluation,
    OnCheckpoint,
    OnEpisodeEnd,
    OnEval,
    OnLastPolicy,
    OnMetrics,
    OnNewPolicy,
    Row,
    ShouldStop,
    Tell,
    check_stop,
    describe_reached,
    reached,
    require_evaluations,
    to_stderr,
)
from jaxrl_fast.training.job import Job
from jaxrl_fast.training.run_folder import RunFolder


class Evaluated(NamedTuple):
    """An evaluation that a run has recorded.

    Attributes:
        env_steps: Environment steps of the run until then.
        totals: Returns and lengths of its episodes, ``[S, episodes]``.
        policy_of: ``(seed) -> policy`` that was evaluated.
        scores: Mean return of each seed, ``[S]``.
        tell: Shows messages to the user.
    """

    env_steps: int
    totals: EpisodeTotals
    policy_of: Callable[[int], Policy]
    scores: np.ndarray
    tell: Tell


class Listeners(NamedTuple):
    """Pages and pictures that follow a run in its folder. The training loop does not depend on
    them.

    Attributes:
        on_start: ``(folder, job, state, run)``, before the first chunk, with the compiled chunk.
        on_row: ``(folder)``, after each row of the history.
        on_finish: ``(folder, policy)``, when the last policy was written.
        on_end: ``(run_dir, tell)``, when all files are closed, also after an error.
    """

    on_start: Callable[[RunFolder, Job, TrainState, RunChunk], None] = (
        lambda folder, job, state, run: None
    )
    on_row: Callable[[RunFolder], None] = lambda folder: None
    on_finish: Callable[[RunFolder, Policy], None] = lambda folder, policy: None
    on_end: Callable[[Path, Tell], None] = lambda run_dir, tell: None


class LastPolicyCalls(NamedTuple):
    """What happens with the last policy of a run that has reached its end.

    Attributes:
        show: ``(policy, should_stop)``, when the policy is determined, once or several times.
        wait: ``(should_stop)``, at the end of the run, also of one that was stopped.
    """

    show: Callable[[Policy, ShouldStop], None] = lambda policy, should_stop: None
    wait: Callable[[ShouldStop], None] = lambda should_stop: None


class Calls(NamedTuple):
    """The callbacks of a run.

    Attributes:
        on_metrics: Called with each row; None for none.
        should_stop: Called before each chunk.
        should_save: Called after each chunk: whether to save now.
        between_chunks: Called after each chunk; None for none.
        on_new_policy: Called after each evaluation.
        evaluate: Replaces the run's evaluation; None for none.
        tell: Shows messages to the user.
        listeners: Pages and pictures in the run's folder.
        on_evaluation: Called in all processes when an evaluation is recorded.
        on_checkpoint: Called in the thread that writes checkpoints.
        last: Called with the last policy.
        ended_by: ``(scores [S]) -> setting``, the name of the setting by which a run ends whose
            last evaluation has these scores, "" to go on. Pure, so that a resumed run ends at the
            same chunk.
    """

    on_metrics: OnMetrics | None = None
    should_stop: ShouldStop = lambda: False
    should_save: Callable[[], bool] = lambda: False
    between_chunks: BetweenChunks | None = None
    on_new_policy: OnNewPolicy = lambda: None
    evaluate: Callable[..., EpisodeTotals] | None = None
    tell: Tell = to_stderr
    listeners: Listeners = Listeners()
    on_evaluation: Callable[[Evaluated], None] = lambda evaluated: None
    on_checkpoint: OnCheckpoint = lambda path: None
    last: LastPolicyCalls = LastPolicyCalls()
    ended_by: Callable[[np.ndarray], str] = lambda scores: ""


LAST_POLICY_POLL_S = 0.1
"""Interval in seconds at which a wait for the callback checks whether the run should stop."""


class LastPolicy:
    """Calls ``on_last_policy`` at most once, in a thread of process 0, unless the run should stop."""

    def __init__(self, on_last_policy: OnLastPolicy) -> None:
        self.on_last_policy = on_last_policy
        self._shown: Future[None] | None = None

    def show(self, policy: Policy, should_stop: ShouldStop) -> None:
        """Start the callback, unless it was started before."""
        if self._shown is not None or not hosts.is_first() or should_stop():
            return
        worker = ThreadPoolExecutor(1, thread_name_prefix="last policy")
        self._shown = worker.submit(self.on_last_policy, policy)
        worker.shutdown(wait=False)

    def wait(self, should_stop: ShouldStop) -> None:
        """Wait until the callback has ended and raise its error, unless the run should stop."""
        if self._shown is None:
            return
        while not self._shown.done() and not should_stop():
            wait([self._shown], timeout=LAST_POLICY_POLL_S)
        if self._shown.done():
            self._shown.result()


def with_callbacks(
    calls: Calls,
    job: Job,
    run_dir: str | Path | None,
    on_eval: OnEval | None = None,
    on_checkpoint: OnCheckpoint | None = None,
    on_episode_end: OnEpisodeEnd | None = None,
    on_last_policy: OnLastPolicy | None = None,
    stop_return: float | None = None,
) -> Calls:
    """Add callbacks, and the return at which a run stops.

    Args:
        calls: Callbacks of the run.
        job: Job of the run.
        run_dir: Folder of the run, or None.
        on_eval: Called with each evaluation, or None.
        on_checkpoint: Called with each checkpoint, or None.
        on_episode_end: Called with the ended training episodes of each chunk, or None.
        on_last_policy: Called with the last policy, or None.
        stop_return: Mean greedy return of an evaluation at which the run stops, or None.

    Returns:
        The callbacks.

    Raises:
        ValueError: The run makes no evaluations or checkpoints, or has reached ``stop_return``.
    """
    if on_eval is not None:
        require_evaluations("on_eval", job.run.eval)
        calls = calls._replace(on_evaluation=_evaluation_for(on_eval))
    if on_checkpoint is not None:
        if run_dir is None or not job.run.checkpoint.keep:
            raise ValueError(
                "on_checkpoint needs checkpoints: write run_dir=..., and checkpoint.keep of at least 1"
            )
        calls = calls._replace(on_checkpoint=_naming_its_errors(on_checkpoint))
    if on_episode_end is not None:
        calls = calls._replace(on_metrics=_with_episodes(calls.on_metrics, on_episode_end))
    if on_last_policy is not None:
        last = LastPolicy(on_last_policy)
        calls = calls._replace(last=LastPolicyCalls(last.show, last.wait))
    return calls if stop_return is None else stopping_at_return(calls, job, stop_return)


def _evaluation_for(on_eval: OnEval) -> Callable[[Evaluated], None]:
    def on_evaluation(evaluated: Evaluated) -> None:
        if hosts.is_first():
            totals = evaluated.totals
            success = None if isinstance(totals.success, tuple) else np.asarray(totals.success)
            evaluation = Evaluation(
                env_steps=evaluated.env_steps,
                returns=np.asarray(totals.returns),
                length=np.asarray(totals.length),
                success=success,
                policy_of=evaluated.policy_of,
            )
            on_eval(evaluation)

    return on_evaluation


def _naming_its_errors(on_checkpoint: OnCheckpoint) -> OnCheckpoint:
    def call(path: Path) -> None:
        try:
            on_checkpoint(path)
        except Exception as error:
            raise CallbackError(error) from None

    return call


def _with_episodes(on_metrics: OnMetrics | None, on_episode_end: OnEpisodeEnd) -> OnMetrics:
    def call(row: Row) -> None:
        if on_metrics is not None:
            on_metrics(row)
        if row["kind"] == "train" and row["episodes"]:
            of_seeds = row.get("seeds", [row])
            names = ("episodes", "episode_return", "episode_length")
            number, *means = ([seed[name] for seed in of_seeds] for name in names)
            on_episode_end(
                EndedEpisodes(
                    row["env_steps"], np.array(number), *(np.array(x, float) for x in means)
                )
            )

    return call


def stopping_at_return(calls: Calls, job: Job, stop_return: float) -> Calls:
    """Let an evaluation of a high return end a run.

    Args:
        calls: Callbacks of the run.
        job: Job of the run.
        stop_return: Mean greedy return over all seeds.

    Returns:
        The callbacks.

    Raises:
        ValueError: The run cannot be stopped by its evaluations, or the resumed run has reached the
            return.
    """
    check_stop(stop_return, job.run.eval)
    if job.resumed is not None and reached(stop_return, job.resumed.progress["scores"]):
        raise ValueError(
            describe_reached(stop_return, job.resumed.description.path, job.resumed.progress)
        )

    def on_evaluation(evaluated: Evaluated) -> None:
        calls.on_evaluation(evaluated)
        if reached(stop_return, evaluated.scores):
            score = float(evaluated.scores.mean())
            steps = f"{evaluated.env_steps:,} of {job.run.total_steps:,} steps"
            evaluated.tell(
                f"greedy return {score:.6g} reached {STOP_RETURN}={stop_return:g} after {steps}"
            )

    def ended_by(scores: np.ndarray) -> str:
        return STOP_RETURN if reached(stop_return, scores) else ""

    return calls._replace(on_evaluation=on_evaluation, ended_by=ended_by)
