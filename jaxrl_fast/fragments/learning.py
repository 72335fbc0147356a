"""One learner: the K gradient updates of a tick, for all parts in turn or for some of them."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.algorithms.interface import Learned, Part, init_params
from jaxrl_fast.core import Batches, Metrics, PyTree, stable_hash
from jaxrl_fast.experience.binding import Bound
from jaxrl_fast.experience.prioritized import empty_feedback, make_feedback
from jaxrl_fast.fragments.updates import DROPPED, PartState, Trainer, Updated, init_part, step_when_due, trainer
from jaxrl_fast.graph.dataflow import Channels, Fragment, Inner
from jaxrl_fast.graph.division import WHOLE, Division
from jaxrl_fast.graph.placements import ACTING, LEARNING
from jaxrl_fast.numerics.norms import global_norm

OnNan = Literal["stop", "skip"]
"""On NaN or Inf: stop the run, or skip the update."""
Average = Literal["gradients", "parameters", "turns"]
"""What several learners average: gradients at every update, parameters after the updates of a tick, or nothing: a step
along the gradients of each, in turns (A3C, arXiv 1602.01783)."""

PRIORITIES = "priorities"
"""The channel by which priorities go back to replay."""

States = dict[str, PartState]
"""By part."""
Delays = dict[tuple[str, str], int]
"""By (reader, channel): the age of what is read, 0 or 1 (`dataflow.Graph`)."""


class Learning(NamedTuple):
    """What every learner needs.

    - ``agent``: the algorithm, bound to its environments.
    - ``start``: the first tick with updates.
    - ``nan``: what to do on NaN or Inf.
    - ``turns``: a server steps along the gradients of one learner after another, not along their mean.
    - ``make_trainer``: the form of a part's state while updates are made, such as `joined_parts.flat_trainer`.
    - ``scan``: runs the updates of a tick, as `jax.lax.scan`.
    """

    agent: Bound
    start: int = 0
    nan: OnNan = "stop"
    turns: bool = False
    make_trainer: Callable[[Part, PartState, bool], Trainer] = trainer
    scan: Callable[..., tuple] = jax.lax.scan

    @property
    def parts(self) -> dict[str, Part]:
        """The algorithm's parts by name."""
        return self.agent.parts

    def feeds_back(self, team: tuple[str, ...]) -> tuple[str, ...]:
        """The channel of priorities, if replay is prioritized by one of these parts."""
        return (PRIORITIES,) if self.agent.experience.prioritized_by in team else ()

    def no_feedback(self, team: tuple[str, ...], learners: int = 1) -> Channels:
        """What stands in that channel before the first update."""
        if not self.feeds_back(team):
            return {}
        shards = self.agent.experience.shards
        sequences = self.agent.updates_per_tick * self.agent.batch_sequences // shards
        return {PRIORITIES: empty_feedback((learners, shards // learners, sequences))}


def learn_fragment(learning: Learning, team: tuple[str, ...] | None = None) -> Fragment:
    """One learner that makes all updates of a tick for the parts of ``team`` (default: all), which take turns."""
    parts = learning.parts
    team = team or tuple(parts)
    outside, fed_back = read_outside(parts, team), learning.feeds_back(team)

    def init(key: jax.Array) -> States:
        return init_states(learning, team, key)

    trainers = trainers_of(learning, team, jax.eval_shape(lambda: init_states(learning, team, jax.random.key(0))))

    def begin(private: States) -> States:
        return {name: trainers[name].begin(private[name]) for name in team}

    def end(private: States) -> States:
        return {name: trainers[name].end(private[name]) for name in team}

    def inner_step(private: States, inputs: Channels, hyper: Any, key: jax.Array, turn: jax.Array) -> tuple:
        peers = {name: inputs[name] for name in outside}
        batches = inputs["batches"]
        private, metrics, priorities = run_updates(learning, trainers, private, peers, batches, key, hyper, turn)
        norms = {metric_name(team, name, "param_norm"): global_norm(private[name].learned.params) for name in team}
        outputs = {name: trainers[name].published(private[name]) for name in team}
        for channel in fed_back:
            outputs[channel] = jax.tree.map(lambda x: x[None], make_feedback(batches, priorities))
        return private, outputs, {**over_updates(metrics, learning.nan), **norms}

    def step(private: States, inputs: Channels, hyper: Any, key: jax.Array, turn: jax.Array) -> tuple:
        private, outputs, metrics = inner_step(begin(private), inputs, hyper, key, turn)
        return end(private), outputs, metrics

    def publish(private: States) -> Channels:
        learned = {name: private[name].learned for name in team}
        return learned | learning.no_feedback(team) if fed_back else learned

    return Fragment(
        named("learn", parts, team),
        init,
        step,
        ("batches", *outside),
        team + fed_back,
        publish,
        start=learning.start,
        init_name="learn",
        counts=True,
        tags=tags_of(learning, team),
        by_agents=WHOLE if learning.agent.num_agents is None else divided_by_agents(learning, team),
        inner=None if learning.make_trainer is trainer else Inner(begin, inner_step, end),
    )


def make_updates(
    learning: Learning,
    team: tuple[str, ...],
    states: States,
    peers: Channels,
    batches: Batches,
    key: jax.Array,
    hyper: Any,
    turn: jax.Array,
) -> tuple[States, Metrics, PyTree]:
    """As `run_updates`, of the parts in ``team``, with states as they are outside."""
    trainers = trainers_of(learning, team, states)
    begun = {name: trainers[name].begin(states[name]) for name in team}
    ended, metrics, priorities = run_updates(learning, trainers, begun, peers, batches, key, hyper, turn)
    return {name: trainers[name].end(ended[name]) for name in team}, metrics, priorities


def run_updates(
    learning: Learning,
    trainers: dict[str, Trainer],
    states: States,
    peers: Channels,
    batches: Batches,
    key: jax.Array,
    hyper: Any,
    turn: jax.Array,
) -> tuple[States, Metrics, PyTree]:
    """K updates of the parts that have ``trainers``, in turns in this order, against ``peers``; ``states`` as they keep
    them. Returns the next states, metrics ``[K]``, and the priorities ``[K, B]`` of the part that decides what is
    sampled, or ()."""
    take, rounds, team = learning.agent.experience.take, batches.indices.shape[0], tuple(trainers)
    columns: list[str] = []

    def one_update(states: States, xs: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[States, tuple]:
        index, part_keys, count = xs
        batch = take(batches.data, index)
        metrics: Metrics = {}
        found: PyTree = ()
        for name, part_key in zip(team, part_keys, strict=True):
            seen = peers | {other: trainers[other].learned(state) for other, state in states.items()}

            def make(
                state: PartState, name: str = name, seen: Channels = seen, part_key: jax.Array = part_key
            ) -> Updated:
                return trainers[name].update(state, seen, batch, part_key, hyper, count)

            part = learning.parts[name]
            due = make(states[name]) if part.every == 1 else step_when_due(part, make, states[name], count)
            new, own, priorities = due
            states = {**states, name: new}
            metrics |= {metric_name(team, name, metric): value for metric, value in own.items()}
            found = priorities if name == learning.agent.experience.prioritized_by else found
        columns[:] = metrics
        return states, (jnp.stack([value.astype(jnp.float32) for value in metrics.values()]), found)

    keys = jax.vmap(lambda key: jax.random.split(key, len(team)))(jax.random.split(key, rounds))
    counts = turn * rounds + jnp.arange(rounds)
    states, (rows, priorities) = learning.scan(one_update, states, (batches.indices, keys, counts))
    return states, {name: rows[:, i] for i, name in enumerate(columns)}, priorities


def trainers_of(learning: Learning, team: tuple[str, ...], states: States) -> dict[str, Trainer]:
    """The `Trainer` of each part in ``team``, in this order; ``states``: theirs, or the shapes of these."""
    drop = learning.nan == "skip"
    return {name: learning.make_trainer(learning.parts[name], states[name], drop) for name in team}


def init_states(learning: Learning, team: tuple[str, ...], key: jax.Array) -> States:
    """The states of the parts in ``team`` before the first update."""
    parts, hyper = learning.parts, learning.agent.hyper
    return {name: init_part(parts[name], jax.random.fold_in(key, stable_hash(name)), hyper) for name in team}


def init_learned(agent: Bound, names: tuple[str, ...], key: jax.Array) -> Channels:
    """The `Learned` of the parts ``names`` before the first update, for programs that run without training."""
    return {name: Learned(init_params(agent.parts[name], jax.random.fold_in(key, stable_hash(name)))) for name in names}


def over_updates(metrics: Metrics, nan: OnNan) -> Metrics:
    """Means over the updates of a tick (and over learners); dropped updates are counted and left out of the means."""
    return {name: jnp.mean(values) for name, values in metrics.items()} if nan == "stop" else _finite_means(metrics)


def _finite_means(metrics: Metrics) -> Metrics:
    def mean(values: jax.Array) -> jax.Array:
        finite = jnp.isfinite(values)
        return jnp.sum(jnp.where(finite, values, 0.0)) / jnp.maximum(jnp.sum(finite), 1)

    return {name: jnp.sum(v) if name.endswith(DROPPED) else mean(v) for name, v in metrics.items()}


def read_outside(parts: dict[str, Part], team: tuple[str, ...]) -> tuple[str, ...]:
    """The parts that ``team`` reads and that are not in it."""
    return tuple(other for other in parts if other not in team and any(other in parts[name].reads for name in team))


def tags_of(learning: Learning, team: tuple[str, ...]) -> tuple[str, ...]:
    """`LEARNING`, and `ACTING` too where all parts of ``team`` choose actions and other parts learn elsewhere."""
    chooses = len(team) < len(learning.parts) and set(team) <= set(learning.agent.acting.chooses)
    return (LEARNING, ACTING) if chooses else (LEARNING,)


def divided_by_agents(learning: Learning, team: tuple[str, ...]) -> Division:
    """Params and moments of the parts in ``team``, where each of several agents has its own."""
    separate = [network.separate for name in team for network in learning.parts[name].networks.values()]
    if not all(separate):
        return WHOLE
    return Division(0, dict.fromkeys(team, 0), learning.agent.num_agents or 0, "agents")


def named(role: str, parts: dict[str, Part], team: tuple[str, ...]) -> str:
    """The name of a fragment: ``role``, followed by the parts in ``team`` unless these are all."""
    return role if len(team) == len(parts) else "_".join((role, *team))


def metric_name(team: tuple[str, ...], name: str, metric: str) -> str:
    """``metric``, with the part's name before it where ``team`` has several."""
    return f"{name}/{metric}" if len(team) > 1 else metric
