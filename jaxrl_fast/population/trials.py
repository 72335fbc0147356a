"""The book of a population: every trial with its point, its scores, and where it stands. Plain
data, as in JSON.
"""

import math
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxrl_fast.population.rules import Copy, Halving, may_be_promoted, promoted
from jaxrl_fast.population.search_space import SearchSpace, Shares, TrialOutcome, value_of

Status = Literal["training", "waiting", "stopped", "finished", "diverged"]


LOWEST = -1e38
"""Score of a trial that has ended no episode, where trials are ordered."""


class Trial:
    """A point of the search space and what became of it; of a population, a member.

    Attributes:
        number: Its number, in the order of their start.
        shares: Its point.
        seeds: Seeds of its learners.
        segments: Segments that it has trained.
        scores: Scores of its learners after each segment, None without an episode, -inf if it
            diverged.
        seconds: Seconds of computing for it after each segment, of all its learners.
        status: Where it stands.
        parent: Trial that it was copied from last, or None.
        segment_steps: Environment steps of a segment, of each learner.
        since: Segments after which it was copied last, whose scores no longer count.
    """

    def __init__(
        self, number: int, shares: Shares, seeds: Iterable[int], segment_steps: int
    ) -> None:
        self.number, self.shares, self.seeds = number, dict(shares), list(seeds)
        self.segment_steps = segment_steps
        self.segments = self.since = 0
        self.scores: list[list[float | None]] = []
        self.seconds: list[float] = []
        self.status: Status = "training"
        self.parent: int | None = None

    @property
    def score(self) -> float | None:
        """Score after the last segment, as `score_at`."""
        return self.score_at(self.segments)

    @property
    def env_steps(self) -> int:
        """Environment steps of each learner."""
        return self.segments * self.segment_steps

    def score_at(self, segments: int) -> float | None:
        """Return the mean of the learners' scores after some segments.

        A learner without an ended episode in a segment has the score of the segment before. None if
        no learner has ended an episode yet; -inf if one has diverged.
        """
        newest = [
            next((one for one in reversed(column) if one is not None), None)
            for column in zip(*self.scores[self.since : segments], strict=True)
        ]
        present = [one for one in newest if one is not None]
        return float(np.mean(present)) if present else None

    def add(self, scores: Iterable[float | None], seconds: float) -> None:
        """Record a segment."""
        self.scores.append([None if one is None else float(one) for one in scores])
        self.seconds.append(seconds + (self.seconds[-1] if self.seconds else 0.0))
        self.segments += 1
        if any(one == -math.inf for one in self.scores[-1]):
            self.status = "diverged"

    def as_json(self) -> dict[str, Any]:
        """Return its content as plain data; JSON has no infinity, so that -inf is a text."""
        scores = [[str(one) if one == -math.inf else one for one in row] for row in self.scores]
        return {**vars(self), "scores": scores}


def trial_from(content: dict[str, Any]) -> Trial:
    """Undo `Trial.as_json`.

    Args:
        content: Plain data.

    Returns:
        The trial.
    """
    trial = Trial(content["number"], content["shares"], content["seeds"], content["segment_steps"])
    vars(trial).update(content)
    trial.scores = [
        [float(one) if isinstance(one, str) else one for one in row] for row in content["scores"]
    ]
    return trial


class Lineage(NamedTuple):
    """A row of the lineage of a population.

    Attributes:
        segment: Segments that were trained before.
        member: Number of the member.
        parent: Member that it was copied from, or None for the first rates.
        shares: Its point from then on.
    """

    segment: int
    member: int
    parent: int | None
    shares: Shares


class Book:
    """All trials of a search or population, and who trains next.

    Attributes:
        space: Search space.
        segments: Segments of a whole run.
        segment_steps: Environment steps of a segment, of each learner; trials of a group with
            longer ticks differ.
        halving: Rule by which trials stop early, or None.
        trials: Trials by number.
        lineage: Rows of a population's lineage.
        gone_on: Trials that have gone on from a rung, by the segments of the rung.
        best: Trial with the highest return in new episodes at the end, None before.
    """

    def __init__(
        self, space: SearchSpace, segments: int, segment_steps: int, halving: Halving | None
    ) -> None:
        self.space, self.segments, self.segment_steps, self.halving = (
            space,
            segments,
            segment_steps,
            halving,
        )
        self.trials: dict[int, Trial] = {}
        self.lineage: list[Lineage] = []
        self.gone_on: dict[int, list[int]] = {}
        self.best: int | None = None

    def start(
        self, shares: Shares, seeds: Iterable[int], segment_steps: int | None = None
    ) -> Trial:
        """Begin a trial."""
        trial = Trial(len(self.trials), shares, seeds, segment_steps or self.segment_steps)
        self.trials[trial.number] = trial
        self.lineage.append(Lineage(0, trial.number, None, trial.shares))
        return trial

    def point(self, number: int) -> dict[str, Any]:
        """Return the settings of a trial by key."""
        return value_of(self.space, self.trials[number].shares)

    def at_rung(self, rung: int) -> dict[int, float]:
        """Return the scores at a rung, in segments, of all trials that came so far.

        A trial that diverged counts at the first rung that it did not pass. One without an ended
        episode has the lowest score that can still go on.
        """
        scores = {}
        rungs = () if self.halving is None else self.halving.rungs
        for number, trial in self.trials.items():
            if trial.status == "diverged":
                last = next((one for one in rungs if one >= trial.segments), trial.segments)
                if rung == last:
                    scores[number] = -math.inf
                if rung >= last:
                    continue
            if trial.segments >= rung:
                score = trial.score_at(rung)
                scores[number] = LOWEST if score is None else score
        return scores

    def settle(self, number: int) -> None:
        """Determine where a trial stands after a segment."""
        trial = self.trials[number]
        if trial.status == "diverged":
            return
        if trial.segments >= self.segments:
            trial.status = "finished"
        elif self.halving is not None and trial.segments in self.halving.rungs:
            trial.status = "waiting"

    def next_waiting(self, *, all_started: bool) -> list[int]:
        """Return the trials that wait at a rung and may go on, those at the highest rung first."""
        if self.halving is None:
            return []
        by_rung: list[list[int]] = []
        training = [trial.segments for trial in self.trials.values() if trial.status == "training"]
        for rung in self.halving.rungs[:-1]:
            complete = (
                all_started
                and not any(by_rung)
                and not any(segments < rung for segments in training)
            )
            more = promoted(
                self.halving, self.at_rung(rung), self.gone_on.get(rung, []), complete=complete
            )
            by_rung.append(
                [
                    n
                    for n in more
                    if self.trials[n].status == "waiting" and self.trials[n].segments == rung
                ]
            )
        return [number for numbers in reversed(by_rung) for number in numbers]

    def go_on(self, number: int) -> None:
        """Let a waiting trial train on."""
        trial = self.trials[number]
        trial.status = "training"
        self.gone_on.setdefault(trial.segments, []).append(number)

    def may_go_on(self, number: int, most_trials: int) -> bool:
        """Check whether a waiting trial could still go on, if ``most_trials`` are started."""
        trial = self.trials[number]
        if self.halving is None or trial.status != "waiting":
            return False
        others = [t for t in self.trials.values() if t.status in ("training", "waiting")]
        below = (
            sum(other.segments < trial.segments for other in others)
            + most_trials
            - len(self.trials)
        )
        scores = self.at_rung(trial.segments)
        return may_be_promoted(self.halving, scores, number, len(scores) + below)

    def copy(self, copies: Iterable[Copy], segment: int) -> None:
        """Record an exchange of a population."""
        for one in copies:
            trial = self.trials[one.target]
            trial.shares, trial.parent, trial.status = dict(one.shares), one.source, "training"
            while trial.segments < segment:  # it diverged when nobody could be copied
                trial.add([None] * len(trial.seeds), 0.0)
            trial.since = segment
            self.lineage.append(Lineage(segment, one.target, one.source, trial.shares))

    def finish(self) -> None:
        """Mark the trials that wait in vain as stopped."""
        for trial in self.trials.values():
            if trial.status in ("waiting", "training"):
                trial.status = "stopped"

    def outcomes(self) -> list[TrialOutcome]:
        """Return the trials as a sampler sees them."""
        return [
            TrialOutcome(
                shares=t.shares,
                score=t.score,
                steps=t.env_steps,
                seconds=t.seconds[-1] / len(t.seeds) if t.seconds else 0.0,
                finished=t.status in ("finished", "diverged", "stopped"),
            )
            for t in self.trials.values()
        ]

    def ranking(self) -> list[int]:
        """Return the numbers of all trials with a score: the longest trained first, of these the
        best.
        """
        scored = [t for t in self.trials.values() if t.scores]
        scored.sort(
            key=lambda t: (
                t.status == "diverged",
                -t.segments,
                -(LOWEST if t.score is None else t.score),
                t.number,
            )
        )
        return [t.number for t in scored]

    def as_json(self) -> dict[str, Any]:
        """Return its content as plain data."""
        return {
            "trials": [trial.as_json() for trial in self.trials.values()],
            "lineage": [list(row) for row in self.lineage],
            "gone_on": [[rung, numbers] for rung, numbers in self.gone_on.items()],
        }

    def go_on_from(self, content: dict[str, Any]) -> None:
        """Restore the content of `as_json`."""
        self.trials = {one["number"]: trial_from(one) for one in content["trials"]}
        self.lineage = [Lineage(*row) for row in content["lineage"]]
        self.gone_on = dict(content["gone_on"])
