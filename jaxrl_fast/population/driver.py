"""Training of a population: members take slots, train a segment, are compared, and go on, wait, end
or are copied.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_fast.core import EpisodeTotals
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.policy.policies import Policy, PolicyParams
from jaxrl_fast.population import slots as places
from jaxrl_fast.population.member_groups import (
    MemberGroup,
    Partial,
    SearchPlan,
    described,
    scores_of,
)
from jaxrl_fast.population.rules import Copy, exchange
from jaxrl_fast.population.search_space import Shares, value_of
from jaxrl_fast.population.slots import Arrays
from jaxrl_fast.population.trials import Book, Trial
from jaxrl_fast.runtime import hosts
from jaxrl_fast.runtime.callback_errors import reraise_callback_error
from jaxrl_fast.runtime.graph import TrainState, tagged
from jaxrl_fast.runtime.hosts import named
from jaxrl_fast.runtime.placements import SAMPLING
from jaxrl_fast.settings.schema import EvalOptions
from jaxrl_fast.training import resuming
from jaxrl_fast.training.callbacks import ShouldStop, Tell, to_stderr
from jaxrl_fast.training.checkpoints import BESIDE
from jaxrl_fast.training.episodes import describe_cut, make_periodic_evaluation
from jaxrl_fast.training.job import Job

KEPT_POLICIES = 8
"""Most trials whose last policy is retained for the final evaluation."""


class Hooks(NamedTuple):
    """What a population calls.

    Attributes:
        should_stop: Called before every chunk.
        should_save: Called after every chunk: whether to save now.
        tell: Shows messages to the user.
        on_segment: Called with the book after each segment.
        save: ``(number of segments so far, job, state, progress, arrays)``, writes a checkpoint.
    """

    should_stop: ShouldStop = lambda: False
    should_save: Callable[[], bool] = lambda: False
    tell: Tell = to_stderr
    on_segment: Callable[[Book], None] = lambda book: None
    save: Callable[[int, Job, TrainState, dict[str, Any], Arrays], None] = lambda *parts: None


class Resume(NamedTuple):
    """A population's checkpoint.

    Attributes:
        progress: As given to ``Hooks.save``.
        arrays: Arrays of the state and of waiting members by name.
    """

    progress: dict[str, Any]
    arrays: Mapping[str, np.ndarray]


class Driver:
    """Trains a population.

    Attributes:
        plan: What it does.
        book: All trials.
        policies: Parameters of the last policies of the best trials, by number.
        done: Segments that were trained, over all groups.
    """

    def __init__(
        self, plan: SearchPlan, book: Book, make_job: Callable[[dict[str, Any]], Job], hooks: Hooks
    ) -> None:
        self.plan, self.book, self.make_job, self.hooks = plan, book, make_job, hooks
        self.groups: dict[str, MemberGroup] = {}
        self.current: MemberGroup | None = None
        self.stored: dict[int, list[Arrays]] = {}
        self.pending: list[Shares] = []
        self.asked = 0
        self.policies: dict[int, Any] = {}
        self.done, self.generation, self.wall_before_s, self.start_s = (
            0,
            0,
            0.0,
            time.perf_counter(),
        )
        self.compile_s = 0.0
        self.partial = Partial()
        self.told_cut = False

    def wall_s(self) -> float:
        """Return the seconds so far, those before a resume included."""
        return self.wall_before_s + time.perf_counter() - self.start_s

    def train(self) -> bool:
        """Train until no trial is left, and return whether it came so far."""
        while (group := self._next_group()) is not None:
            if self.plan.exchange is None:
                self._fill(group)
            else:
                self._seat_members(group)
            if not self._run_segment(group):
                self._save(group, now=True)
                return False
            self._record(group)
            if self.plan.exchange is None:
                self._settle(group)
            else:
                self._exchange(group)
            self.done += 1
            self.hooks.on_segment(self.book)
            self._save(group)
        self.book.finish()
        return True

    # who trains next

    def _next_group(self) -> MemberGroup | None:
        if self.current is not None and any(
            seat is not None for seat in self._training(self.current)
        ):
            return self.current
        if self.plan.exchange is not None:
            return self._population_group()
        waiting = self.book.next_waiting(all_started=self._all_started())
        shares = [self.book.trials[number].shares for number in waiting] or self._peek()
        if not shares:
            return None
        return self._enter(self._sizes(shares[0]))

    def _population_group(self) -> MemberGroup | None:
        if not self.book.trials:
            for number in range(self.plan.trials):
                self.book.start(self._ask(), self.plan.seeds(number))
        if self.generation >= self.plan.segments:
            return None
        return self._enter({})

    def _enter(self, sizes: dict[str, Any]) -> MemberGroup:
        name = str(sizes)
        if self.current is not None and self.current.sizes != sizes:
            self._put_away(self.current, range(len(self.current.seats)))
            self.current.state, self.current.seats = None, [None] * len(self.current.seats)
        self.current = self.groups.get(name) or self._make_group(sizes)
        return self.current

    def _make_group(self, sizes: dict[str, Any]) -> MemberGroup:
        """Build and compile the program of a group."""
        begin = time.perf_counter()
        group = self.groups[str(sizes)] = MemberGroup(sizes, self.make_job(sizes), self.plan)
        group.ready = places.compile_slots(group.slots)
        self.compile_s += time.perf_counter() - begin
        return group

    def _sizes(self, shares: Shares) -> dict[str, Any]:
        return {
            k: v for k, v in value_of(self.plan.space, shares).items() if k in self.plan.space.sizes
        }

    def _training(self, group: MemberGroup) -> list[int | None]:
        """Return the seats' trials that train on, None for the others."""
        return [
            n if n is not None and self.book.trials[n].status == "training" else None
            for n in group.seats
        ]

    def _all_started(self) -> bool:
        return self.asked >= self.plan.trials and not self.pending

    def _ask(self) -> Shares:
        self.asked += 1
        return self.plan.ask(self.asked - 1, self.book.outcomes())

    def _peek(self) -> list[Shares]:
        """Return the points that were chosen but not started, at least one if any trial is left."""
        if not self.pending and self._may_ask():
            self.pending.append(self._ask())
        return self.pending

    def _may_ask(self) -> bool:
        """Return whether to choose another point: not more than train at once, so that a sampler
        sees the others.
        """
        open_trials = [t for t in self.book.trials.values() if t.status == "training"]
        return (
            self.asked < self.plan.trials
            and len(self.pending) + len(open_trials) < self.plan.at_once
        )

    def _take_new(self, group: MemberGroup) -> Shares | None:
        """Return the point of a new trial of a group, or None."""
        while True:
            own = next((s for s in self.pending if self._sizes(s) == group.sizes), None)
            if own is not None:
                self.pending.remove(own)
                return own
            if not self._may_ask():
                return None
            self.pending.append(self._ask())

    # seats

    def _fill(self, group: MemberGroup) -> None:
        """Give the free seats to trials that may go on, then to new ones."""
        training = self._training(group)
        free = [seat for seat, number in enumerate(training) if number is None]
        if not self.plan.halving and len(free) < len(training):
            return  # members of a program with one tick begin together
        returning: dict[int, int] = {}
        for number in self.book.next_waiting(all_started=self._all_started()):
            if (
                len(returning) < len(free)
                and self._sizes(self.book.trials[number].shares) == group.sizes
            ):
                self.book.go_on(number)
                sits = group.seats.index(number) if number in group.seats else None
                seat = sits if sits in free else free[0]
                free.remove(seat)
                returning[seat] = number
        leaving = [seat for seat in range(len(group.seats)) if seat in free or seat in returning]
        self._put_away(
            group, [seat for seat in leaving if group.seats[seat] != returning.get(seat)]
        )
        new = {}
        for seat in free:
            shares = self._take_new(group)
            if shares is None:
                group.seats[seat] = None
                continue
            number = len(self.book.trials)
            new[seat] = self.book.start(shares, self.plan.seeds(number), group.segment_steps).number
        came_back = {seat: n for seat, n in returning.items() if group.seats[seat] != n}
        for seat, number in {**new, **returning}.items():
            group.seats[seat] = number
        self._begin(group, list(new))
        self._bring_back(group, came_back)

    def _put_away(self, group: MemberGroup, seats: Sequence[int] | range) -> None:
        """Store the members of seats that can still go on in the host's memory."""
        for seat in seats:
            number = group.seats[seat]
            if (
                number is not None
                and group.state is not None
                and self.book.may_go_on(number, self.plan.trials)
            ):
                self._store(group, seat, number)
        for number in [n for n in self.stored if not self.book.may_go_on(n, self.plan.trials)]:
            if self.plan.exchange is None and self.book.trials[number].status != "training":
                del self.stored[number]

    def _store(self, group: MemberGroup, seat: int, number: int) -> None:
        assert group.state is not None
        self.stored[number] = [
            places.take(group.slots, group.state, slot) for slot in group.slots_of(seat)
        ]

    def _bring_back(self, group: MemberGroup, seats: Mapping[int, int]) -> None:
        members = {
            slot: arrays
            for seat, number in seats.items()
            for slot, arrays in zip(group.slots_of(seat), self.stored.pop(number), strict=True)
        }
        assert group.state is not None
        group.state = places.put(group.slots, group.state, members)

    def _begin(self, group: MemberGroup, seats: Sequence[int]) -> None:
        """Make new members in seats; the first call fills all slots."""
        if group.state is None:
            group.state = self._fresh(group)
        elif seats:
            new = [
                slot in {s for seat in seats for s in group.slots_of(seat)}
                for slot in range(group.slots.number)
            ]
            lockstep = not group.slots.own_ticks
            fresh = self._fresh(group)
            group.state = fresh if lockstep else places.merged(group.slots, group.state, fresh, new)

    def _fresh(self, group: MemberGroup) -> TrainState:
        seeds, hypers = self._of_slots(group)
        return places.begin(group.slots, group.ready, seeds, hypers)

    def _of_slots(self, group: MemberGroup) -> tuple[list[int], list[Any]]:
        """Return the seed and the hyper-parameters of each slot; a free slot repeats the first
        seat's.
        """
        first = next(number for number in group.seats if number is not None)
        sitting = [self.book.trials[first if number is None else number] for number in group.seats]
        seeds = [seed for trial in sitting for seed in trial.seeds]
        hypers = [self._hyper(group, trial) for trial in sitting for _ in trial.seeds]
        return seeds, hypers

    def _hyper(self, group: MemberGroup, trial: Trial) -> Any:
        rates = {
            k: v
            for k, v in value_of(self.plan.space, trial.shares).items()
            if k in self.plan.space.rates
        }
        named = {key.removeprefix("algo."): value for key, value in rates.items()}
        return group.job.algorithm.hyper._replace(**named)

    # a segment

    def _run_segment(self, group: MemberGroup) -> bool:
        """Train all seats until the end of the segment; return False if the run shall stop before."""
        assert group.state is not None
        begin, going_on = time.perf_counter(), True
        with reraise_callback_error(group.job.failures):
            while self.partial.ticks < group.segment_ticks and going_on:
                going_on = not hosts.any_process(self.hooks.should_stop())
                if going_on:
                    group.state, metrics = group.ready.run(group.state)
                    self.partial.add(hosts.to_host(metrics))
                if hosts.any_process(self.hooks.should_save()):
                    self._save_as_requested(group)
                if isinstance(group.job.env, HostEnv):
                    for line in group.job.env.events():
                        self.hooks.tell(line)
        self.partial.seconds += float(hosts.from_first(np.float32(time.perf_counter() - begin)))
        return going_on

    def _record(self, group: MemberGroup) -> None:
        training, (metrics, seconds) = self._training(group), self.partial.take()
        active = sum(number is not None for number in training)
        (sampling,) = tagged(group.job.graph, SAMPLING)
        scores = scores_of(metrics, sampling)
        if self.plan.score == "evaluation":
            assert group.state is not None
            params, means = (
                group.evaluation.copy_params(group.state),
                np.zeros(group.slots.number, np.float32),
            )
            if hosts.is_first():
                totals: EpisodeTotals = group.evaluation.evaluate(params, False)
                self._tell_if_cut(totals, group.job)
                means = np.asarray(totals.returns, np.float32).mean(axis=1)
            means = hosts.from_first(means)
            scores = [
                one if one == -np.inf else float(mean)
                for one, mean in zip(scores, means, strict=True)
            ]
        for seat, number in enumerate(training):
            if number is not None:
                own = [scores[slot] for slot in group.slots_of(seat)]
                self.book.trials[number].add(own, seconds / active)

    def _tell_if_cut(self, totals: EpisodeTotals, job: Job) -> None:
        """Report once that evaluation episodes were cut which no time limit ends."""
        line = describe_cut(totals.length, job.env.spec.max_episode_steps)
        if line and not self.told_cut:
            self.told_cut = True
            self.hooks.tell(line)

    # what follows

    def _settle(self, group: MemberGroup) -> None:
        """Decide where the trials of a search stand, and retain the policies of those that are
        complete.
        """
        for number in self._training(group):
            if number is not None:
                self.book.settle(number)
        ended = [
            n for n in group.seats if n is not None and self.book.trials[n].status == "finished"
        ]
        self._keep_policies(group, [n for n in ended if n not in self.policies])

    def _keep_policies(self, group: MemberGroup, numbers: Sequence[int]) -> None:
        ranking = [n for n in self.book.ranking() if n in self.policies or n in numbers]
        best = ranking[: max(KEPT_POLICIES, self.plan.finalists)]
        if set(numbers) & set(best):
            assert group.state is not None
            params = group.evaluation.copy_params(group.state)
            for number in set(numbers) & set(best):
                own = list(group.slots_of(group.seats.index(number)))
                self.policies[number] = jax.tree.map(lambda leaf: np.asarray(leaf)[own], params)  # noqa: B023
        self.policies = {n: self.policies[n] for n in best}

    def _exchange(self, group: MemberGroup) -> None:
        """Copy the best members of a population over the worst, when all have trained the segment."""
        assert self.plan.exchange is not None and group.state is not None
        if self._behind():
            return  # other members have their turn first
        self.generation += 1
        trials = self.book.trials.items()
        scores = {number: trial.score for number, trial in trials if trial.score is not None}
        if all(trial.status == "diverged" for _, trial in trials):
            self.hooks.tell("all members diverged: write a range with smaller rates")
            self.generation = self.plan.segments
            return
        if self.generation == self.plan.segments:
            for number in self.book.trials:
                self.book.settle(number)
            for turn in self._turns():
                self._seat_turn(group, turn)
                self._keep_policies(
                    group, [n for n in turn if self.book.trials[n].status != "diverged"]
                )
            return
        rng = np.random.default_rng([self.plan.seed, self.generation])
        points = {number: trial.shares for number, trial in self.book.trials.items()}
        copies = exchange(self.plan.exchange, self.plan.space, points, scores, rng)
        self.book.copy(copies, self.generation)
        self._copy_members(group, copies)

    def _turns(self) -> list[list[int]]:
        """Return the members of each turn, if there are more than slots."""
        numbers, width = list(self.book.trials), self.plan.at_once
        return [numbers[i : i + width] for i in range(0, len(numbers), width)]

    def _behind(self) -> list[int]:
        """Return the members that have not trained in this generation; those that diverged do not."""
        trials = self.book.trials.items()
        return [n for n, t in trials if t.status == "training" and t.segments <= self.generation]

    def _seat_members(self, group: MemberGroup) -> None:
        """Seat the members of the turn that is next in this generation."""
        first = self._behind()[0]
        turn = next(turn for turn in self._turns() if first in turn)
        self._seat_turn(group, turn)

    def _seat_turn(self, group: MemberGroup, turn: Sequence[int]) -> None:
        seats = [*turn, *[None] * (len(group.seats) - len(turn))]
        if group.seats == seats and group.state is not None:
            return
        self._stand_up(group)
        group.seats = seats
        came_back = {seat: n for seat, n in enumerate(seats) if n is not None and n in self.stored}
        if not came_back or group.state is None:
            group.state = self._fresh(group)
        self._bring_back(group, came_back)

    def _copy_members(self, group: MemberGroup, copies: Sequence[Copy]) -> None:
        """Copy members, on the device if all sit in slots, else in the host's memory; give them
        their new rates.
        """
        if not copies:
            return
        if len(self._turns()) > 1:
            self._stand_up(group)
            self._copy_on_host(group, copies)
            return
        assert group.state is not None
        self._renew_diverged(group, [one.target for one in copies if one.diverged])
        for replay in (False, True):
            chosen = [one for one in copies if (one.diverged or self.plan.copy_replay) == replay]
            if chosen and group.slots.number > 1:
                marked = places.copied(group.job.graph, group.state, replay=replay)
                targets, sources = (
                    [s for n in column for s in self._slots_of(group, n)]
                    for column in _pairs(chosen)
                )
                group.state = places.adopt(group.state, marked, targets, sources)
        group.state = places.with_rates(group.slots, group.state, self._of_slots(group)[1])

    def _slots_of(self, group: MemberGroup, number: int) -> range:
        return group.slots_of(group.seats.index(number))

    def _renew_diverged(self, group: MemberGroup, numbers: Sequence[int]) -> None:
        """Begin the environments of members anew that diverged, since they may have non-finite
        states.
        """
        if not numbers:
            return
        assert group.state is not None
        new = [
            slot in {s for n in numbers for s in self._slots_of(group, n)}
            for slot in range(group.slots.number)
        ]
        fresh = self._fresh(group)
        group.state = places.merged(
            group.slots, group.state, fresh._replace(tick=group.state.tick), new
        )
        if isinstance(group.job.env, HostEnv):
            group.state, _ = resuming.end_episodes(group.state, group.job.graph, group.job.agent)

    def _stand_up(self, group: MemberGroup) -> None:
        """Store all seated members in the host's memory."""
        for seat, number in enumerate(group.seats):
            if number is not None and group.state is not None:
                self._store(group, seat, number)
        group.seats = [None] * len(group.seats)

    def _copy_on_host(self, group: MemberGroup, copies: Sequence[Copy]) -> None:
        assert group.state is not None
        marks = {
            r: places.named_marks(places.copied(group.job.graph, group.state, replay=r))
            for r in (False, True)
        }
        fresh: dict[int, list[Arrays]] = {}
        for one in copies:
            if one.diverged:
                group.seats = [one.target, *[None] * (len(group.seats) - 1)]
                begun = self._fresh(group)
                fresh[one.target] = [
                    places.take(group.slots, begun, slot) for slot in group.slots_of(0)
                ]
        group.seats = [None] * len(group.seats)
        sources = {one.source: self.stored[one.source] for one in copies}
        for one in copies:
            marked = marks[one.diverged or self.plan.copy_replay]
            base = fresh.get(one.target, self.stored[one.target])
            pairs = zip(base, sources[one.source], strict=True)
            tick = sources[one.source][0]["tick"]
            self.stored[one.target] = [
                {n: source[n] if marked[n] else own[n] for n in own} | {"tick": tick}
                for own, source in pairs
            ]
        for one in copies:
            rates = places.named_rates(self._hyper(group, self.book.trials[one.target]))
            for arrays in self.stored[one.target]:
                arrays.update(rates)

    # checkpoints

    def _save(self, group: MemberGroup, *, now: bool = False) -> None:
        """Write a checkpoint when one is due, or ``now``."""
        every = self.plan.save_every
        if not every or (self.done % every and not now):
            return
        assert group.state is not None
        progress = {
            **dict(
                book=self.book.as_json(), asked=self.asked, pending=self.pending, done=self.done
            ),
            **dict(generation=self.generation, wall_s=self.wall_s(), compile_s=self.compile_s),
            **dict(seats=group.seats, stored=list(self.stored), policies=list(self.policies)),
            **dict(
                plan=described(self.plan),
                partial_s=self.partial.seconds,
                partial=sorted(self.partial.metrics),
            ),
        }
        beside: Arrays = {
            f"{BESIDE}partial/{name}": values for name, values in self.partial.metrics.items()
        }
        for number, learners in self.stored.items():
            for i, arrays in enumerate(learners):
                beside |= {
                    f"{BESIDE}stored/{number}/{i}/{name}": array for name, array in arrays.items()
                }
        for number in self.policies:
            leaves = jax.tree.leaves(self.policies[number])
            beside |= {
                f"{BESIDE}policy/{number}/{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)
            }
        self.hooks.save(self.done, group.job, group.state, progress, beside)

    def _save_as_requested(self, group: MemberGroup) -> None:
        if not self.plan.save_every:
            self.hooks.tell("nothing is saved: there are no checkpoints (checkpoint.keep=0)")
            return
        self._save(group, now=True)
        self.hooks.tell(f"saved in segment {self.done + 1}, as requested; training goes on")

    def go_on_from(self, resume: Resume) -> None:
        """Continue from a checkpoint."""
        progress = resume.progress
        for name, now in described(self.plan).items():
            if (stored := progress.get("plan", {}).get(name, now)) != now:
                raise ValueError(
                    f"resume: the population began with {name}={stored}, and not {now}: write what it had"
                )
        self.book.go_on_from(progress["book"])
        self.asked, self.pending, self.done = (
            progress["asked"],
            progress["pending"],
            progress["done"],
        )
        self.generation, self.wall_before_s = progress["generation"], progress["wall_s"]
        sitting = [number for number in progress["seats"] if number is not None]
        # between the turns of a population nobody sits
        anyone = self.book.trials[sitting[0] if sitting else 0]
        group = self._enter(self._sizes(anyone.shares))
        group.seats = progress["seats"]
        template = self._fresh_template(group)
        names = named(template)
        group.state = places.placed(
            group.slots, template, {name: resume.arrays[name] for name in names}
        )
        if isinstance(group.job.env, HostEnv):
            group.state = resuming.begin_anew(
                group.state, template, group.job.graph, group.job.agent
            )
        for number in progress["stored"]:
            learners = range(len(self.book.trials[number].seeds))
            self.stored[number] = [
                _below(resume.arrays, f"{BESIDE}stored/{number}/{i}/") for i in learners
            ]
        for number in progress["policies"]:
            arrays = _below(resume.arrays, f"{BESIDE}policy/{number}/")
            self.policies[number] = [arrays[str(i)] for i in range(len(arrays))]
        metrics = {name: resume.arrays[f"{BESIDE}partial/{name}"] for name in progress["partial"]}
        self.partial.metrics, self.partial.seconds = metrics, progress["partial_s"]

    def _fresh_template(self, group: MemberGroup) -> TrainState:
        if all(number is None for number in group.seats):
            count = group.slots.number
            return places.begin(
                group.slots, group.ready, [0] * count, [group.job.algorithm.hyper] * count
            )
        return self._fresh(group)

    # the end

    def evaluate_best(self, most: int, episodes: int) -> dict[int, np.ndarray]:
        """Evaluate the best policies from initial states that no score used. Process 0 alone
        evaluates.

        Args:
            most: Number of trials to evaluate.
            episodes: Episodes of each learner.

        Returns:
            Returns ``[learners, episodes]`` by number of the trial.
        """
        chosen = [n for n in self.book.ranking() if n in self.policies][:most]
        found = {}
        for number in chosen:
            job, count = self._group_of(number).job, len(self.book.trials[number].seeds)
            options = EvalOptions(episodes=episodes, sample=job.run.eval.sample)
            played = make_periodic_evaluation(
                job.env, job.algorithm, job.agent, job.keys[:count], options
            )
            totals = played.evaluate(self._params_of(number), True)
            self._tell_if_cut(totals, job)
            found[number] = np.asarray(totals.returns)
            played.close()
        return found

    def policy(self, number: int, learner: int) -> Policy:
        """Return the last policy of a learner of a trial."""
        return self._group_of(number).evaluation.policy_of(self._params_of(number), learner)

    def steps_per_tick(self, number: int) -> int:
        """Return the environment steps of a tick, of each learner of a trial."""
        return self._group_of(number).job.plan.steps_per_tick

    def _group_of(self, number: int) -> MemberGroup:
        sizes = self._sizes(self.book.trials[number].shares)
        return self.groups.get(str(sizes)) or self._make_group(sizes)

    def _params_of(self, number: int) -> PolicyParams:
        """Return the parameters of a trial's policies; those from a checkpoint are a list of
        arrays.
        """
        params = self.policies[number]
        if isinstance(params, list):
            group = self._group_of(number)
            state = self._fresh_template(group) if group.state is None else group.state
            params = jax.tree.unflatten(
                jax.tree.structure(group.evaluation.copy_params(state)), params
            )
        return params

    def close(self) -> None:
        """Close the environments of all groups on the host."""
        for group in self.groups.values():
            group.evaluation.close()


def _pairs(copies: Sequence[Copy]) -> tuple[list[int], list[int]]:
    return [one.target for one in copies], [one.source for one in copies]


def _below(arrays: Mapping[str, np.ndarray], prefix: str) -> Arrays:
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }
