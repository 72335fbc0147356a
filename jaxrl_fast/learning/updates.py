"""Gradient updates: one update of a part (gradients, optimizer, constraint, target networks), and
all of a tick.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxrl_fast.core import Batches, Metrics, PyTree, stable_hash
from jaxrl_fast.learning.acting import BoundAgent
from jaxrl_fast.learning.algorithm import GradientResult, Learned, Part, init_params
from jaxrl_fast.learning.feedback import empty_feedback, make_feedback
from jaxrl_fast.networks.network import STATISTICS
from jaxrl_fast.numerics.optimizers import global_norm
from jaxrl_fast.runtime.graph import NOT_SHARDED, Channels, Fragment, Inner, ShardingAxes
from jaxrl_fast.runtime.placements import ACTING, LEARNING

DROPPED = "dropped_updates"
"""Metric that counts skipped updates."""


class Updated(NamedTuple):
    """A part after an update.

    Attributes:
        state: State of the part.
        metrics: Scalars of the losses and gradients, by name.
        priorities: Priority of each sequence of the batch, ``[B]``, or ``()``.
    """

    state: "PartState"
    metrics: Metrics
    priorities: Any = ()


class PartState(NamedTuple):
    """A part in training.

    Attributes:
        `learned`: Params and target networks.
        opt_state: State of the optimizer, by network.
    """

    learned: Learned
    opt_state: dict[str, PyTree]


def init_part(part: Part, key: jax.Array, hyper: Any) -> PartState:
    """Initialize a part; no two leaves of the result share a buffer.

    Args:
        part: Part.
        key: Random key.
        hyper: Hyper-parameters at the start of the run.

    Returns:
        The state before the first update.
    """
    params = init_params(part, key)
    opt_state = {
        name: part.optimizers[name](hyper).init(trainable(params[name])) for name in part.networks
    }
    return PartState(
        Learned(params, jax.tree.map(jnp.copy, {name: params[name] for name in part.targets})),
        opt_state,
    )


def update(
    part: Part,
    state: PartState,
    peers: dict[str, Learned],
    batch: Any,
    key: jax.Array,
    hyper: Any,
    updates: jax.Array | int = 0,
    *,
    drop_nonfinite: bool = False,
) -> Updated:
    """Make one gradient update of a part by one learner.

    Args:
        part: Part.
        state: Its state.
        peers: `Learned` of the other parts.
        batch: Minibatch.
        key: Random key.
        hyper: Hyper-parameters of this tick.
        updates: Number of updates of the run before this one.
        drop_nonfinite: Whether to skip an update with NaN or infinity.

    Returns:
        The updated part.
    """
    result = part.gradients(state.learned, peers, batch, key, hyper)
    return apply_gradients(part, state, result, hyper, updates, drop_nonfinite=drop_nonfinite)


UpdatePart = Callable[..., Updated]
"""(state of the part during updates, peers: `Learned` of the others by name, batch, key, hyper,
updates: how many the run had before) -> one gradient update of a part by one learner.
"""


class Trainer(NamedTuple):
    """How the updates of a tick treat a part, whose state may have another form during the updates.

    Attributes:
        begin: Converts the part's state to the form of the updates.
        end: Converts it back.
        `learned`: Returns the `Learned` that other parts of the same fragment read during the
            updates.
        published: Returns the `Learned` that other fragments read.
        update: Makes one update.
    """

    begin: Callable[[PartState], PartState]
    end: Callable[[PartState], PartState]
    learned: Callable[[PartState], Learned]
    published: Callable[[PartState], Learned]
    update: UpdatePart


def trainer(part: Part, like: PartState, drop_nonfinite: bool) -> Trainer:
    """Return a `Trainer` that does not change the form of a part's state.

    Args:
        part: Part.
        like: State of the part, unused here; other trainers need it.
        drop_nonfinite: Whether to skip updates with NaN or infinity.

    Returns:
        The trainer.
    """

    def step(
        state: PartState,
        peers: dict[str, Learned],
        batch: Any,
        key: jax.Array,
        hyper: Any,
        updates: jax.Array,
    ) -> Updated:
        return update(part, state, peers, batch, key, hyper, updates, drop_nonfinite=drop_nonfinite)

    learned = lambda state: state.learned  # noqa: E731
    return Trainer(
        begin=lambda state: state,
        end=lambda state: state,
        learned=learned,
        published=learned,
        update=step,
    )


def apply_gradients(
    part: Part,
    state: PartState,
    result: GradientResult,
    hyper: Any,
    updates: jax.Array | int = 0,
    *,
    drop_nonfinite: bool = False,
) -> Updated:
    """Step along the gradients.

    Args:
        part: Part.
        state: Its state.
        result: Gradients, metrics and new statistics.
        hyper: Hyper-parameters of this tick.
        updates: Number of updates of the run before this one.
        drop_nonfinite: Whether to skip a step that gives a NaN or infinity; ``dropped_updates`` is
            then 1.

    Returns:
        The updated part, and the metrics of losses and gradients.
    """
    params, opt_state, metrics = {}, {}, dict(result.metrics)
    for i, name in enumerate(part.networks):
        before, grads = state.learned.params[name], trainable(result.grads[name])
        optimizer, weights = (
            optax.with_extra_args_support(part.optimizers[name](hyper)),
            trainable(before),
        )
        change, opt_state[name] = optimizer.update(
            grads, state.opt_state[name], weights, metrics=result.metrics
        )
        params[name] = part.networks[name].project(optax.apply_updates(weights, change))
        if jax.tree.leaves(statistics_of(before)):
            params[name] = with_statistics(
                params[name], before, result.grads[name], result.statistics.get(name, {})
            )
        metrics["grad_norm" if i == 0 else f"{name}_grad_norm"] = global_norm(grads)
    learned = (
        _move_targets(part, params, state.learned, hyper, updates)
        if part.targets
        else Learned(params)
    )
    updated = Updated(PartState(learned, opt_state), metrics, result.priorities)
    return _drop_nonfinite(updated, state) if drop_nonfinite else updated


def _drop_nonfinite(updated: Updated, before: PartState) -> Updated:
    """Return the update, or the part ``before`` it if a number is not finite."""
    finite = all_finite((updated.state, updated.metrics))
    chosen = jax.tree.map(
        lambda after, before: jnp.where(finite, after, before), updated.state, before
    )
    return Updated(chosen, {**updated.metrics, DROPPED: 1.0 - finite}, updated.priorities)


def step_when_due(
    part: Part, make: Callable[[PartState], Updated], state: PartState, updates: jax.Array
) -> Updated:
    """Make an update if the part is due (`Part.every`), else leave the state unchanged.

    If it is not due, nothing is computed as long as ``updates`` is the same for all seeds, metrics
    are 0 and priorities NaN. Else metrics are multiplied by ``part.every``, so their mean over all
    updates is the mean over the part's updates.

    Args:
        part: Part.
        make: Makes the update.
        state: State of the part.
        updates: Number of updates of the run before this one.

    Returns:
        The part after the update, or unchanged.
    """
    _, metric_shapes, priority_shape = jax.eval_shape(make, state)

    def act(state: PartState) -> Updated:
        state, metrics, priorities = make(state)
        return Updated(
            state,
            {k: v if k == DROPPED else v * part.every for k, v in metrics.items()},
            priorities,
        )

    def rest(state: PartState) -> Updated:
        metrics = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), metric_shapes)
        return Updated(
            state,
            metrics,
            jax.tree.map(lambda x: jnp.full(x.shape, jnp.nan, x.dtype), priority_shape),
        )

    return jax.lax.cond(updates % part.every == 0, act, rest, state)


def trainable(params: PyTree) -> PyTree:
    """Return params without the statistics of batch norms.

    Args:
        params: Params of a network, or a tuple of an ensemble's.

    Returns:
        The trainable params.
    """
    if isinstance(params, tuple):
        return tuple(map(trainable, params))
    if isinstance(params, dict) and STATISTICS in params:
        return {name: value for name, value in params.items() if name != STATISTICS}
    return params


def statistics_of(params: PyTree) -> PyTree:
    """Return the statistics of batch norms, which `trainable` leaves out.

    Args:
        params: Params of a network, or a tuple of an ensemble's.

    Returns:
        The statistics; empty without batch norms.
    """
    if isinstance(params, tuple):
        return tuple(map(statistics_of, params))
    return params.get(STATISTICS, {}) if isinstance(params, dict) else {}


def with_statistics(
    weights: PyTree, before: PyTree, grads: PyTree, others: Mapping[str, PyTree] = {}
) -> PyTree:
    """Join updated weights and the new statistics of batch norms.

    Args:
        weights: Result of `trainable`, after the update.
        before: Params before the update.
        grads: Gradients, which hold the change of batch norms' statistics (`Network.in_loss`).
        others: New statistics that are not of batch norms.

    Returns:
        Params of the network or ensemble.
    """
    if isinstance(weights, tuple):
        return tuple(map(with_statistics, weights, before, grads))
    moved = jax.tree.map(jnp.add, before[STATISTICS], grads[STATISTICS])
    return {**weights, STATISTICS: {**moved, **others}}


def all_finite(tree: PyTree) -> jax.Array:
    """Return whether a pytree has no NaN and no infinity.

    Args:
        tree: Arrays.

    Returns:
        A bool scalar.
    """
    real = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in real]))


def _move_targets(
    part: Part, params: dict[str, PyTree], before: Learned, hyper: Any, updates: jax.Array | int
) -> Learned:
    rate = part.target_rate(hyper, jnp.asarray(updates))
    new = {name: params[name] for name in part.targets}
    return Learned(params, optax.incremental_update(new, before.target, rate))


OnNan = Literal["stop", "skip"]
"""Action on NaN or infinity: stop the run, or skip the update."""
Average = Literal["gradients", "parameters", "turns"]
"""What several learners average; "turns" steps along each learner's gradients instead (A3C, arXiv
1602.01783).
"""

PRIORITIES = "priorities"
"""Channel that sends priorities back to replay."""

States = dict[str, PartState]
"""States by part."""
Delays = dict[tuple[str, str], int]
"""By (reader, channel): age of the data, 0 or 1 (`graph.Graph`)."""


class Learners(NamedTuple):
    """Fragments of learning, and their connections.

    Attributes:
        fragments: Fragments in the order in which they run.
        delays: 1 for each (reader, channel) whose data is one tick, or round, old (`graph.Graph`).
    """

    fragments: tuple[Fragment, ...]
    delays: Delays


def delayed(fragments: tuple[Fragment, ...], parts: dict[str, Part]) -> Learners:
    """Let fragments read the parameters of parts as they were after the last tick.

    Args:
        fragments: Fragments of learning.
        parts: Parts of the algorithm.

    Returns:
        The fragments and their delays.
    """
    delays = {(f.name, c): 1 for f in fragments for c in f.reads if c in parts}
    return Learners(fragments, delays)


class Learning(NamedTuple):
    """Settings of every learner.

    Attributes:
        agent: Algorithm bound to its environments.
        start: First tick with updates.
        nan: Action on NaN or infinity.
        turns: Whether a server steps along the gradients of one learner after another, not along
            their mean.
        make_trainer: Makes the form of a part's state during updates, such as
            `flat_params.flat_trainer`.
        scan: Runs the updates of a tick, as `jax.lax.scan`.
    """

    agent: BoundAgent
    start: int = 0
    nan: OnNan = "stop"
    turns: bool = False
    make_trainer: Callable[[Part, PartState, bool], Trainer] = trainer
    scan: Callable[..., tuple] = jax.lax.scan

    @property
    def parts(self) -> dict[str, Part]:
        """Parts of the algorithm by name."""
        return self.agent.parts

    def feeds_back(self, team: tuple[str, ...]) -> tuple[str, ...]:
        """Return the channel of priorities, if one of these parts prioritizes replay."""
        return (PRIORITIES,) if self.agent.experience.prioritized_by in team else ()

    def no_feedback(self, team: tuple[str, ...], learners: int = 1) -> Channels:
        """Return the value of the channel of priorities before the first update."""
        if not self.feeds_back(team):
            return {}
        shards = self.agent.experience.shards
        sequences = self.agent.updates_per_tick * self.agent.batch_sequences // shards
        return {PRIORITIES: empty_feedback((learners, shards // learners, sequences))}


def teams_of(learning: Learning, *, side_by_side: bool) -> list[tuple[str, ...]]:
    """Group the parts that one fragment updates in turns.

    Args:
        learning: Settings of the learners.
        side_by_side: Whether the parts may run at the same time, so that each is alone.

    Returns:
        Names of parts by group.
    """
    return [(name,) for name in learning.parts] if side_by_side else [tuple(learning.parts)]


def one_learner(learning: Learning, *, side_by_side: bool) -> Learners:
    """Build one learner, which makes all updates.

    Args:
        learning: Settings of the learner.
        side_by_side: Whether the parts may run at the same time.

    Returns:
        The fragments and their delays.
    """
    teams = teams_of(learning, side_by_side=side_by_side)
    return delayed(tuple(learn_fragment(learning, team) for team in teams), learning.parts)


def learn_fragment(learning: Learning, team: tuple[str, ...] | None = None) -> Fragment:
    """Build one learner that makes all updates of a tick for some parts, which take turns.

    Args:
        learning: Settings of the learners.
        team: Parts to update; None for all.

    Returns:
        The fragment.
    """
    parts = learning.parts
    team = team or tuple(parts)
    outside, fed_back = read_outside(parts, team), learning.feeds_back(team)

    def init(key: jax.Array) -> States:
        return init_states(learning, team, key)

    trainers = trainers_of(
        learning, team, jax.eval_shape(lambda: init_states(learning, team, jax.random.key(0)))
    )

    def begin(private: States) -> States:
        return {name: trainers[name].begin(private[name]) for name in team}

    def end(private: States) -> States:
        return {name: trainers[name].end(private[name]) for name in team}

    def inner_step(
        private: States, inputs: Channels, hyper: Any, key: jax.Array, turn: jax.Array
    ) -> tuple:
        peers = {name: inputs[name] for name in outside}
        batches = inputs["batches"]
        private, metrics, priorities = run_updates(
            learning, trainers, private, peers, batches, key, hyper, turn
        )
        norms = {
            metric_name(team, name, "param_norm"): global_norm(private[name].learned.params)
            for name in team
        }
        outputs = {name: trainers[name].published(private[name]) for name in team}
        for channel in fed_back:
            outputs[channel] = jax.tree.map(lambda x: x[None], make_feedback(batches, priorities))
        return private, outputs, {**over_updates(metrics, learning.nan), **norms}

    def step(
        private: States, inputs: Channels, hyper: Any, key: jax.Array, turn: jax.Array
    ) -> tuple:
        private, outputs, metrics = inner_step(begin(private), inputs, hyper, key, turn)
        return end(private), outputs, metrics

    def publish(private: States) -> Channels:
        learned = {name: private[name].learned for name in team}
        return learned | learning.no_feedback(team) if fed_back else learned

    name, reads, writes = named("learn", parts, team), ("batches", *outside), team + fed_back
    fragment = Fragment(
        name,
        init,
        step,
        reads=reads,
        writes=writes,
        publish=publish,
        start=learning.start,
        init_name="learn",
        counts=True,
    )
    by_agents = (
        NOT_SHARDED if learning.agent.num_agents is None else divided_by_agents(learning, team)
    )
    inner = None if learning.make_trainer is trainer else Inner(begin, inner_step, end)
    return fragment._replace(tags=tags_of(learning, team), by_agents=by_agents, inner=inner)


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
    """Make K updates of some parts, with states in their usual form.

    Args:
        learning: Settings of the learners.
        team: Parts to update.
        states: Their states.
        peers: `Learned` of the other parts.
        batches: Batches of the tick.
        key: Random key.
        hyper: Hyper-parameters of this tick.
        turn: Number of ticks with updates before this one.

    Returns:
        As `run_updates`.
    """
    trainers = trainers_of(learning, team, states)
    begun = {name: trainers[name].begin(states[name]) for name in team}
    ended, metrics, priorities = run_updates(
        learning, trainers, begun, peers, batches, key, hyper, turn
    )
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
    """Make K updates of parts, which take turns, with states in the trainers' form.

    Args:
        learning: Settings of the learners.
        trainers: Trainers by part, in the order of the updates.
        states: States in the trainers' form.
        peers: `Learned` of the other parts.
        batches: Batches of the tick.
        key: Random key.
        hyper: Hyper-parameters of this tick.
        turn: Number of ticks with updates before this one.

    Returns:
        Next states, metrics ``[K]``, and priorities ``[K, B]`` of the part that prioritizes replay,
        or ``()``.
    """
    take, rounds, team = learning.agent.experience.take, batches.indices.shape[0], tuple(trainers)
    columns: list[str] = []

    def one_update(
        states: States, xs: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[States, tuple]:
        index, part_keys, count = xs
        batch = take(batches.data, index)
        metrics: Metrics = {}
        sampling_priorities: PyTree = ()
        for name, part_key in zip(team, part_keys, strict=True):
            all_peers = peers | {
                other: trainers[other].learned(state) for other, state in states.items()
            }
            arguments: dict[str, Any] = dict(
                peers=all_peers, batch=batch, key=part_key, hyper=hyper, updates=count
            )
            make, part = partial(trainers[name].update, **arguments), learning.parts[name]
            due = (
                make(states[name])
                if part.every == 1
                else step_when_due(part, make, states[name], count)
            )
            states = {**states, name: due.state}
            metrics |= {
                metric_name(team, name, metric): value for metric, value in due.metrics.items()
            }
            if name == learning.agent.experience.prioritized_by:
                sampling_priorities = due.priorities
        columns[:] = metrics
        return states, (
            jnp.stack([value.astype(jnp.float32) for value in metrics.values()]),
            sampling_priorities,
        )

    keys = jax.vmap(lambda key: jax.random.split(key, len(team)))(jax.random.split(key, rounds))
    counts = turn * rounds + jnp.arange(rounds)
    states, (rows, priorities) = learning.scan(one_update, states, (batches.indices, keys, counts))
    return states, {name: rows[:, i] for i, name in enumerate(columns)}, priorities


def trainers_of(learning: Learning, team: tuple[str, ...], states: States) -> dict[str, Trainer]:
    """Return the `Trainer` of each part.

    Args:
        learning: Settings of the learners.
        team: Parts, in order.
        states: Their states, or the shapes.

    Returns:
        Trainers by part.
    """
    drop = learning.nan == "skip"
    return {name: learning.make_trainer(learning.parts[name], states[name], drop) for name in team}


def init_states(learning: Learning, team: tuple[str, ...], key: jax.Array) -> States:
    """Initialize the states of parts.

    Args:
        learning: Settings of the learners.
        team: Parts.
        key: Random key.

    Returns:
        States before the first update.
    """
    parts, hyper = learning.parts, learning.agent.hyper
    return {
        name: init_part(parts[name], jax.random.fold_in(key, stable_hash(name)), hyper)
        for name in team
    }


def init_learned(agent: BoundAgent, names: tuple[str, ...], key: jax.Array) -> Channels:
    """Initialize the `Learned` of parts, for programs that run without training.

    Args:
        agent: Algorithm bound to its environments.
        names: Parts.
        key: Random key.

    Returns:
        `Learned` by part.
    """
    return {
        name: Learned(init_params(agent.parts[name], jax.random.fold_in(key, stable_hash(name))))
        for name in names
    }


def over_updates(metrics: Metrics, nan: OnNan) -> Metrics:
    """Average metrics over the updates of a tick, and over learners.

    Args:
        metrics: Metrics ``[K, ...]`` by name.
        nan: "skip" sums the dropped updates and excludes values that are not finite from the means.

    Returns:
        Scalars by name.
    """
    return (
        {name: jnp.mean(values) for name, values in metrics.items()}
        if nan == "stop"
        else _finite_means(metrics)
    )


def _finite_means(metrics: Metrics) -> Metrics:
    def mean(values: jax.Array) -> jax.Array:
        finite = jnp.isfinite(values)
        return jnp.sum(jnp.where(finite, values, 0.0)) / jnp.maximum(jnp.sum(finite), 1)

    return {name: jnp.sum(v) if name.endswith(DROPPED) else mean(v) for name, v in metrics.items()}


def read_outside(parts: dict[str, Part], team: tuple[str, ...]) -> tuple[str, ...]:
    """Return the parts that a team reads and that are not in it.

    Args:
        parts: All parts.
        team: Names of the team's parts.

    Returns:
        Names of parts.
    """
    return tuple(
        other
        for other in parts
        if other not in team and any(other in parts[name].reads for name in team)
    )


def tags_of(learning: Learning, team: tuple[str, ...]) -> tuple[str, ...]:
    """Return the tags of a learner's fragment.

    Args:
        learning: Settings of the learners.
        team: Parts of the fragment.

    Returns:
        `LEARNING`, and `ACTING` if all parts of ``team`` select actions and other parts are updated
        elsewhere.
    """
    chooses = len(team) < len(learning.parts) and set(team) <= set(learning.agent.acting.chooses)
    return (LEARNING, ACTING) if chooses else (LEARNING,)


def divided_by_agents(learning: Learning, team: tuple[str, ...]) -> ShardingAxes:
    """Return the axes along which params and optimizer moments may be sharded over agents.

    Args:
        learning: Settings of the learners.
        team: Parts of the fragment.

    Returns:
        The axes; `NOT_SHARDED` unless every agent has separate networks.
    """
    separate = [
        network.separate for name in team for network in learning.parts[name].networks.values()
    ]
    if not all(separate):
        return NOT_SHARDED
    return ShardingAxes(0, dict.fromkeys(team, 0), learning.agent.num_agents or 0, "agents")


def named(role: str, parts: dict[str, Part], team: tuple[str, ...]) -> str:
    """Name a fragment.

    Args:
        role: Role of the fragment.
        parts: All parts.
        team: Parts of the fragment.

    Returns:
        ``role``, followed by the parts in ``team`` unless they are all.
    """
    return role if len(team) == len(parts) else "_".join((role, *team))


def metric_name(team: tuple[str, ...], name: str, metric: str) -> str:
    """Name a metric.

    Args:
        team: Parts of the fragment.
        name: Part of the metric.
        metric: Name in the part.

    Returns:
        ``metric``, prefixed by the part's name if ``team`` has several.
    """
    return f"{name}/{metric}" if len(team) > 1 else metric
