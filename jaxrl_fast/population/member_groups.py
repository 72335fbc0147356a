"""The members that share a program, their measurements, and the plan that they follow."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxrl_fast.population import slots as places
from jaxrl_fast.population.rules import Exchange, Halving
from jaxrl_fast.population.search_space import Ask, SearchSpace
from jaxrl_fast.population.slots import CompiledSlots, Slots
from jaxrl_fast.runtime.graph import TrainState
from jaxrl_fast.training.episodes import make_periodic_evaluation
from jaxrl_fast.training.job import Job

SCORED_EPISODES = 100
"""A training score is the mean return of the last so many episodes, or of fewer if fewer ended in
the segment.
"""


class SearchPlan(NamedTuple):
    """What a population does.

    Attributes:
        space: Search space.
        trials: Number of trials, or members of a population.
        at_once: Trials that train at once in a program.
        seeds: Seed of each learner of a trial, by number of the trial.
        segment_steps: Environment steps of a segment, of each learner; a group rounds them to its
            ticks.
        segments: Segments of a whole run.
        halving: Rule by which trials stop early, or None.
        exchange: Rule by which members are copied, or None.
        copy_replay: Whether a copy takes over the replay buffer, too.
        score: Whether members are compared by returns of training or by evaluations after each
            segment.
        seed: Seed of the search.
        ask: Chooses the point of a new trial.
        finalists: Trials that are evaluated again at the end.
        save_every: Segments between two checkpoints; 0 for none.
    """

    space: SearchSpace
    trials: int
    at_once: int
    seeds: Callable[[int], list[int]]
    segment_steps: int
    segments: int
    halving: Halving | None
    exchange: Exchange | None
    copy_replay: bool
    score: Literal["training", "evaluation"]
    seed: int
    ask: Ask
    finalists: int = 4
    save_every: int = 1


def described(plan: SearchPlan) -> dict[str, str]:
    """Return what a checkpoint continues with, as text by name.

    Args:
        plan: Plan.

    Returns:
        What determines the members' numbers, and how many are at once in the stored state.
    """
    facts = plan._asdict() | {
        "ask": None,
        "finalists": 0,
        "save_every": 0,
        "seeds": plan.seeds(0),
        "space": plan.space.draws,
    }
    return {name: str(value) for name, value in facts.items()}


class MemberGroup:
    """The members that share a program: the program, who sits in its slots, and their state.

    Attributes:
        sizes: Values of the settings that are compiled in, by key.
        segment_ticks: Ticks of a segment.
        segment_steps: Environment steps of a segment, of each learner.
        slots: The slots.
        ready: The compiled programs.
        seats: Trial in each place of ``at_once``, or None.
        state: State of all slots, or None before the first trial.
        evaluation: Evaluation of the members' policies.
    """

    def __init__(self, sizes: dict[str, Any], job: Job, plan: SearchPlan) -> None:
        self.sizes, self.plan, self.job = sizes, plan, job
        self.segment_ticks = max(1, round(plan.segment_steps / job.plan.steps_per_tick))
        self.segment_steps = self.segment_ticks * job.plan.steps_per_tick
        self.slots: Slots = places.make_slots(
            job, self.segment_ticks, own_ticks=plan.halving is not None
        )
        self.seats: list[int | None] = [None] * plan.at_once
        self.state: TrainState | None = None
        self.evaluation = make_periodic_evaluation(
            job.env, job.algorithm, job.agent, job.keys, job.run.eval
        )
        self.ready: CompiledSlots

    def slots_of(self, seat: int) -> range:
        """Return the slots of a seat: one for each learner of its trial."""
        each = self.slots.number // len(self.seats)
        return range(seat * each, (seat + 1) * each)


class Partial:
    """What was measured of the segment that is not complete.

    Attributes:
        metrics: Metrics ``[S, ticks]`` by name.
        seconds: Seconds.
    """

    def __init__(self) -> None:
        self.metrics: dict[str, np.ndarray] = {}
        self.seconds = 0.0

    @property
    def ticks(self) -> int:
        """Number of ticks."""
        return next((values.shape[1] for values in self.metrics.values()), 0)

    def add(self, metrics: Mapping[str, np.ndarray]) -> None:
        """Append the metrics of a chunk."""
        before = self.metrics or {name: values[:, :0] for name, values in metrics.items()}
        self.metrics = {
            name: np.concatenate([before[name], values], axis=1) for name, values in metrics.items()
        }

    def take(self) -> tuple[dict[str, np.ndarray], float]:
        """Return metrics and seconds, and begin anew."""
        taken = self.metrics, self.seconds
        self.metrics, self.seconds = {}, 0.0
        return taken


def scores_of(metrics: Mapping[str, np.ndarray], sampling: str) -> list[float | None]:
    """Compute the training score of each slot.

    Args:
        metrics: Metrics ``[S, ticks]`` of a segment by name.
        sampling: Name of the sampling fragment.

    Returns:
        Mean return of the last `SCORED_EPISODES` episodes, rounded up to whole ticks; None without
        an episode, -inf if the learner or its environment computed a NaN or an infinity.
    """
    bad = ~np.all([np.isfinite(values).all(axis=1) for values in metrics.values()], axis=0)
    bad |= (metrics[f"{sampling}/nonfinite_step"] >= 0).any(axis=1)
    episodes = np.cumsum(metrics[f"{sampling}/episodes"][:, ::-1], axis=1)
    returns = np.cumsum(metrics[f"{sampling}/episode_return_sum"][:, ::-1], axis=1)
    scores: list[float | None] = []
    for slot in range(len(bad)):
        at = min(int(np.searchsorted(episodes[slot], SCORED_EPISODES)), episodes.shape[1] - 1)
        count = episodes[slot, at]
        scores.append(-np.inf if bad[slot] else float(returns[slot, at] / count) if count else None)
    return scores
