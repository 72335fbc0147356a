"""The evaluations of a run, one at a time and in order, during training or between its chunks."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

import jax
import numpy as np

from jaxrl_fast.core import EpisodeTotals
from jaxrl_fast.envs.env import no_totals
from jaxrl_fast.policy.policies import PolicyParams, by_name, from_names, load_policy
from jaxrl_fast.runtime import hosts
from jaxrl_fast.runtime.graph import TrainState
from jaxrl_fast.system import one_line
from jaxrl_fast.training import resuming
from jaxrl_fast.training.callbacks import Row
from jaxrl_fast.training.calls import Calls, Evaluated
from jaxrl_fast.training.checkpoints import BESIDE, Checkpointer
from jaxrl_fast.training.episodes import PeriodicEvaluation, Snapshot, with_untold, without_untold
from jaxrl_fast.training.job import Job
from jaxrl_fast.training.recorder import Recorder

POLL_S = 0.5
"""Interval in seconds at which a wait for an evaluation checks whether the run should stop."""


class Evaluations:
    """Evaluates snapshots of a run and records the results. Process 0 evaluates; all processes must
    call every method.

    If an evaluation during training fails, a message is printed, and its snapshot remains for the
    resumed run. Between chunks its error is raised.

    Attributes:
        evaluation: Functions that copy and evaluate policies.
        job: Job of the run.
        recorder: Records results.
        saver: Writes checkpoints, or None.
        calls: Callbacks of the run.
        folder: Folder of the run, or None.
        beside: Whether to evaluate during training.
        waiting: Snapshots that are not recorded yet, oldest first. Checkpoints contain them.
    """

    def __init__(
        self,
        evaluation: PeriodicEvaluation,
        job: Job,
        recorder: Recorder,
        saver: Checkpointer | None,
        calls: Calls,
    ) -> None:
        self.evaluation, self.job, self.recorder, self.saver, self.calls = (
            evaluation,
            job,
            recorder,
            saver,
            calls,
        )
        self.folder, self.beside = recorder.folder, job.run.eval.beside
        self.waiting: list[Snapshot] = []
        self._failed: set[int] = set()
        self._running: Future[EpisodeTotals] | None = None
        self._best: PolicyParams | None = None
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="evaluation")

    def add(self, state: TrainState) -> TrainState:
        """Evaluate the policies of ``state``, and return the state to train from. Training waits
        for an evaluation.
        """
        self.finish()
        self.take_up(
            [
                Snapshot(
                    self.recorder.env_steps(),
                    self.recorder.wall_s(),
                    self.evaluation.copy_params(state),
                )
            ]
        )
        if not self.beside:
            self.finish()
        return self._anew(state) if self.job.run.eval.share else state

    def _anew(self, state: TrainState) -> TrainState:
        """Truncate the running episodes of the environments that have played others, and count
        them.
        """
        state, number = resuming.end_episodes(state, self.job.graph, self.job.agent)
        self.recorder.truncated += number
        return state

    def take_up(self, snapshots: Sequence[Snapshot]) -> None:
        """Append snapshots to those that wait."""
        self.waiting += snapshots
        self._start_next()

    def collect(self) -> None:
        """Record the running evaluation if it has ended."""
        ended = self._running is not None and self._running.done()
        if not hosts.any_process(ended):
            return
        snapshot = self._next()
        assert snapshot is not None
        totals = self._take_result("training continues, and resuming the run repeats it")
        if totals is not None:
            self.waiting = [other for other in self.waiting if other is not snapshot]
            self._record(snapshot, totals)
        else:
            self._failed.add(snapshot.env_steps)
        self._start_next()

    def finish(self) -> None:
        """Wait until all snapshots are recorded or have failed, or the run should stop."""
        begin = time.perf_counter()
        self.collect()
        if not hosts.any_process(self._running is not None):
            return
        while self._go_on_waiting():
            self.collect()
        self.recorder.waited(begin)

    def start_scoring_best(self) -> None:
        """Start to evaluate the best policy from initial states not used to select it, unless the
        run should stop.
        """
        params = self._best_params()
        if params is not None and hosts.is_first() and not self.calls.should_stop():
            self._running = self._worker.submit(self._evaluate, params, True)

    def finish_scoring_best(self) -> None:
        """Wait until that evaluation has ended and record it, unless the run should stop."""
        while self._go_on_waiting():
            if hosts.any_process(self._running is not None and self._running.done()):
                totals = self._take_result(
                    "the score of the best policy remains the one it was selected by"
                )
                if totals is not None:
                    self.recorder.add_fresh_score(totals)

    def progress(self, until: int | None = None) -> Row:
        """Return the progress entry of waiting snapshots taken ``until`` these environment steps
        (None: all).
        """
        held = [s for s in self.waiting if until is None or s.env_steps <= until]
        return {"snapshots": [{"env_steps": s.env_steps, "wall_s": s.wall_s} for s in held]}

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the parameters of waiting snapshots by name, for a checkpoint."""
        held = [
            (f"{BESIDE}{snapshot.env_steps}", by_name(snapshot.params)) for snapshot in self.waiting
        ]
        return {
            f"{prefix}/{name}": np.asarray(leaf)
            for prefix, params in held
            for name, leaf in params.items()
        }

    def go_on_from(
        self, state: TrainState, progress: Row, arrays: Mapping[str, np.ndarray]
    ) -> None:
        """Add the snapshots of a checkpoint, from which ``state`` was restored."""
        template = self.evaluation.copy_params(state)
        for waiting in progress.get("snapshots", []):
            prefix = f"{BESIDE}{waiting['env_steps']}/"
            leaves = {name: arrays[f"{prefix}{name}"] for name in by_name(template)}
            if self.saver is not None:
                self.saver.unscored.add(waiting["env_steps"])
            self.take_up(
                [Snapshot(waiting["env_steps"], waiting["wall_s"], from_names(template, leaves))]
            )
        if progress.get("evaluation_due"):  # from a version that evaluated between chunks only
            self.add(state)
        if not self.beside:
            self.finish()

    def close(self) -> None:
        """Abandon the running evaluation, which may take longer than a stopped run has time, and
        close its envs.
        """
        self._worker.submit(self.evaluation.close)
        self._worker.shutdown(wait=self.evaluation.stop())

    def _next(self) -> Snapshot | None:
        """Return the oldest snapshot that has not failed, which is the running one if there is one."""
        return next(
            (snapshot for snapshot in self.waiting if snapshot.env_steps not in self._failed), None
        )

    def _start_next(self) -> None:
        snapshot = self._next()
        if self._running is None and snapshot is not None and hosts.is_first():
            self._running = self._worker.submit(self._evaluate, snapshot.params, False)

    def _evaluate(self, params: PolicyParams, fresh: bool) -> EpisodeTotals:
        begin = time.perf_counter()
        totals = self.evaluation.evaluate(params, fresh)
        self.recorder.eval_s += time.perf_counter() - begin
        return totals

    def _go_on_waiting(self) -> bool:
        """Wait `POLL_S` for a running evaluation of any process; False if there is none or the run
        should stop.
        """
        if not hosts.any_process(self._running is not None) or hosts.any_process(
            self.calls.should_stop()
        ):
            return False
        if self.folder is not None:
            self.folder.status.set(now=False, state="evaluating")
        if self._running is not None:
            wait([self._running], timeout=POLL_S)
        return True

    def _take_result(self, consequence: str) -> EpisodeTotals | None:
        """Return the totals of the ended evaluation in all processes; None if it failed, which
        prints a message.
        """
        totals, error = None, self._running.exception() if self._running is not None else None
        if error is not None and not self.beside:
            raise error
        if error is not None:
            self.calls.tell(f"an evaluation failed ({one_line(error)}); {consequence}")
        elif self._running is not None:
            totals = self._running.result()
        self._running = None
        return totals if hosts.is_alone() else self._share(totals)

    def _share(self, totals: EpisodeTotals | None) -> EpisodeTotals | None:
        """Return the totals of process 0 in every process."""
        shapes = jax.eval_shape(lambda: no_totals(self.job.env.spec, self.job.run.eval.episodes))
        shapes = shapes._replace(
            metrics=dict.fromkeys(self.job.env.spec.metrics, shapes.returns) or ()
        )
        nothing = jax.tree.map(lambda x: np.zeros((self.job.num_seeds, *x.shape), x.dtype), shapes)
        made, shared = hosts.from_first(
            (np.int32(totals is not None), with_untold(totals or nothing))
        )
        return without_untold(shared) if made else None

    def _best_params(self) -> PolicyParams | None:
        """Return the best parameters ``[S, ...]``, from disk if the run was resumed and none was
        better since.
        """
        if self._best is not None or not self.recorder.best or self.folder is None:
            return self._best
        return self._stored_best(self.folder.path)

    def _stored_best(self, folder: Path) -> PolicyParams | None:
        try:
            stored = load_policy(folder / "policy" / "best", algorithm=self.job.algorithm).params
        except ValueError:
            return None
        return jax.tree.map(lambda x: np.stack([x] * self.recorder.num_seeds), stored)

    def _record(self, snapshot: Snapshot, totals: EpisodeTotals) -> None:
        scores = self.recorder.add_evaluation(snapshot, totals)
        steps, seed = snapshot.env_steps, int(np.argmax(scores))
        best = self.recorder.is_best(snapshot, seed, float(scores[seed]))
        self._best = snapshot.params if best else self._best
        if self.saver is not None:
            self.saver.add_score(
                steps, float(scores.mean()), {**self.recorder.evaluated(), **self.progress(steps)}
            )
        if self.folder is not None:
            policy = self.evaluation.policy_of(snapshot.params, seed)
            newest = steps == self.recorder.eval_steps
            self.folder.keep_policy(policy, newest=newest, best=best)
            if newest:
                self.calls.on_new_policy()
        evaluated = Evaluated(
            env_steps=snapshot.env_steps,
            totals=totals,
            policy_of=partial(self.evaluation.policy_of, snapshot.params),
            scores=self.recorder.scores,
            tell=self.calls.tell,
        )
        self.calls.on_evaluation(evaluated)
