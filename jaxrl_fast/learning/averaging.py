"""Several learners with equal shares of every batch.

A ``server`` applies their gradients at every update, or averages their parameters once a tick.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_fast.core import Batches, Metrics, PyTree
from jaxrl_fast.learning.acting import BoundAgent
from jaxrl_fast.learning.algorithm import GradientResult, Part
from jaxrl_fast.learning.feedback import add_feedback, make_feedback
from jaxrl_fast.learning.updates import (
    DROPPED,
    Average,
    Delays,
    Learners,
    Learning,
    PartState,
    States,
    Updated,
    apply_gradients,
    delayed,
    init_states,
    make_updates,
    metric_name,
    named,
    over_updates,
    read_outside,
    step_when_due,
    tags_of,
    teams_of,
)
from jaxrl_fast.numerics.optimizers import global_norm
from jaxrl_fast.runtime.graph import Channels, Fragment, ShardingAxes
from jaxrl_fast.runtime.placements import SERVER


def several_learners(
    learning: Learning, learners: int, average: Average, *, side_by_side: bool, max_shards: int
) -> Learners:
    """Build learners that share the batches, and their server.

    Args:
        learning: Settings of the learners.
        learners: Number of learners.
        average: Quantity that is averaged over them.
        side_by_side: Whether the parts may run at the same time.
        max_shards: Most logical shards, for messages.

    Returns:
        The fragments and their delays.

    Raises:
        ValueError: As `check_shares`.
    """
    check_shares(learning.agent, learners, max_shards)
    if average != "parameters":
        return averaging_gradients(learning, side_by_side, learners)
    pairs = [
        averaging_parameters(learning, team, learners)
        for team in teams_of(learning, side_by_side=side_by_side)
    ]
    return delayed(
        tuple(pair[0] for pair in pairs) + tuple(pair[1] for pair in pairs), learning.parts
    )


def check_shares(agent: BoundAgent, learners: int, max_shards: int) -> None:
    """Check that batches can be split into equal shares for the learners.

    Args:
        agent: Algorithm bound to its environments.
        learners: Number of learners.
        max_shards: Most logical shards, for the message.

    Raises:
        ValueError: The logical shards are not divisible by the number of learners.
    """
    shards = agent.experience.shards
    if learners < 1 or shards % learners:
        raise ValueError(
            f"learners={learners} cannot share the {shards} logical shards of the batches (common divisor of "
            f"{max_shards}, num_envs and the batch): write learners={_divisor_near(shards, learners)}, or "
            + (
                f"shards={learners} with sizes that {learners} divides"
                if learners > 0 and max_shards % learners
                else "other sizes"
            )
        )


def _divisor_near(number: int, wanted: int) -> int:
    return max(d for d in range(1, number + 1) if number % d == 0 and d <= max(wanted, 1))


def averaging_parameters(
    learning: Learning, team: tuple[str, ...], learners: int
) -> tuple[Fragment, Fragment]:
    """Build learners that each make the updates of a tick on separate shares, and a server that
    averages their params.

    Args:
        learning: Settings of the learners.
        team: Parts to update.
        learners: Number of learners.

    Returns:
        The fragments of all learners and of the server.
    """
    parts = learning.parts
    outside = read_outside(parts, team)
    learn, server = (named(role, parts, team) for role in ("learn", "server"))

    def init(key: jax.Array) -> States:
        alike = init_states(learning, team, key)
        return jax.tree.map(lambda x: jnp.broadcast_to(x[None], (learners, *x.shape)), alike)

    def step(
        private: States, inputs: Channels, hyper: Any, key: jax.Array, turn: jax.Array
    ) -> tuple:
        peers = {name: inputs[name] for name in outside}

        def one_learner(
            states: States, batches: Batches, key: jax.Array
        ) -> tuple[States, Channels, Metrics]:
            states = {
                name: _with_params(state, inputs[name].params) for name, state in states.items()
            }
            states, metrics, priorities = make_updates(
                learning, team, states, peers, batches, key, hyper, turn
            )
            feedback = {
                channel: make_feedback(batches, priorities) for channel in learning.feeds_back(team)
            }
            return states, feedback, metrics

        keys = jax.random.split(key, learners)
        private, feedback, metrics = jax.vmap(one_learner)(
            private, _shares(inputs["batches"], learners), keys
        )
        published = {_local(name): private[name].learned for name in team}
        return private, published | feedback, over_updates(metrics, learning.nan)

    def init_server(key: jax.Array) -> Channels:
        return {name: state.learned for name, state in init_states(learning, team, key).items()}

    def step_server(private: Channels, inputs: Channels, hyper: Any, key: jax.Array) -> tuple:
        means = {name: _mean(inputs[_local(name)]) for name in team}
        learned = {
            name: mean._replace(params=_held(parts[name], mean.params))
            for name, mean in means.items()
        }
        norms = {
            metric_name(team, name, "param_norm"): global_norm(learned[name].params)
            for name in team
        }
        return learned, learned, norms

    local = tuple(_local(name) for name in team)
    written = local + learning.feeds_back(team)
    reads, axes = (
        ("batches", *team, *outside),
        ShardingAxes(0, dict.fromkeys(written, 0), learners, "learners"),
    )
    how: dict[str, Any] = dict(start=learning.start, init_name="learn")
    tags = tags_of(learning, team)
    learn_all = Fragment(
        learn,
        init,
        step,
        reads=reads,
        writes=written,
        publish=lambda p: learning.no_feedback(team, learners),
        **how,
    )
    average = Fragment(
        server, init_server, step_server, reads=local, writes=team, publish=lambda p: p, **how
    )
    return (
        learn_all._replace(counts=True, tags=tags, division=axes),
        average._replace(tags=(SERVER, *tags[1:])),
    )


def averaging_gradients(learning: Learning, side_by_side: bool, learners: int) -> Learners:
    """Build a cycle with one round per update: the learners' gradients of a part, and the server's
    step.

    The server steps along the mean of the gradients, or along one learner's after another
    (`Learning.turns`).

    Args:
        learning: Settings of the learners.
        side_by_side: Whether the parts of a round may run at the same time.
        learners: Number of learners.

    Returns:
        The fragments and their delays.
    """
    parts = learning.parts
    pairs = {
        name: (_gradients_fragment(learning, name, learners), _gradient_server(learning, name))
        for name in parts
    }
    together = side_by_side or not any(part.reads for part in parts.values())
    if together:
        fragments = tuple(pair[i] for i in (0, 1) for pair in pairs.values())
    else:
        fragments = tuple(fragment for pair in pairs.values() for fragment in pair)
    delays: Delays = {}
    written: set[str] = set()
    for fragment in fragments:
        delays |= {(fragment.name, c): 1 for c in fragment.reads if c in parts and c not in written}
        written |= set(fragment.writes)
    return Learners(fragments, delays)


def _gradients_fragment(learning: Learning, name: str, learners: int) -> Fragment:
    part, rounds, take = (
        learning.parts[name],
        learning.agent.updates_per_tick,
        learning.agent.experience.take,
    )
    channel, back = _gradients(name), learning.feeds_back((name,))

    def init(key: jax.Array) -> Channels:
        return learning.no_feedback((name,), learners)

    def step(
        private: Channels, inputs: Channels, hyper: Any, key: jax.Array, turn: jax.Array
    ) -> tuple:
        peers = {other: inputs[other] for other in part.reads}
        batches = _shares(inputs["batches"], learners)

        def one_learner(
            share: Batches, feedback: Channels, key: jax.Array
        ) -> tuple[GradientResult, Channels]:
            index = share.indices[turn % rounds]
            result = part.gradients(inputs[name], peers, take(share.data, index), key, hyper)
            new_feedback = {
                c: add_feedback(feedback[c], share, index, result.priorities, turn % rounds)
                for c in back
            }
            return result._replace(priorities=()), new_feedback

        result, private = jax.vmap(one_learner)(batches, private, jax.random.split(key, learners))
        return private, {channel: result, **private}, {}

    reads, writes = ("batches", name, *part.reads), (channel, *back)
    fragment = Fragment(
        channel,
        init,
        step,
        reads=reads,
        writes=writes,
        publish=lambda p: p,
        start=learning.start,
        rounds=rounds,
        counts=True,
    )
    axes = ShardingAxes(0, dict.fromkeys(writes, 0), learners, "learners")
    return fragment._replace(tags=tags_of(learning, (name,)), division=axes)


def _gradient_server(learning: Learning, name: str) -> Fragment:
    part, rounds = learning.parts[name], learning.agent.updates_per_tick

    def init(key: jax.Array) -> States:
        return init_states(learning, (name,), key)

    def step(
        private: States, inputs: Channels, hyper: Any, key: jax.Array, turn: jax.Array
    ) -> tuple:
        def make(state: PartState) -> Updated:
            results = inputs[_gradients(name)]
            if learning.turns:
                return _apply_in_turns(learning, part, state, results, hyper, turn)
            return apply_gradients(
                part, state, _mean(results), hyper, turn, drop_nonfinite=learning.nan == "skip"
            )

        state, metrics, _ = (
            make(private[name])
            if part.every == 1
            else step_when_due(part, make, private[name], turn)
        )
        metrics["param_norm"] = global_norm(state.learned.params)
        # A cycle's metrics are summed over its rounds.
        return (
            {name: state},
            publish({name: state}),
            {k: v if k == DROPPED else v / rounds for k, v in metrics.items()},
        )

    def publish(private: States) -> Channels:
        return {name: private[name].learned}

    tags = (SERVER, *tags_of(learning, (name,))[1:])
    how: dict[str, Any] = dict(
        start=learning.start, rounds=rounds, counts=True, init_name="learn", tags=tags
    )
    return Fragment(
        f"server_{name}",
        init,
        step,
        reads=(_gradients(name),),
        writes=(name,),
        publish=publish,
        **how,
    )


def _apply_in_turns(
    learning: Learning,
    part: Part,
    state: PartState,
    results: GradientResult,
    hyper: Any,
    turn: jax.Array,
) -> Updated:
    """Step along the gradients of each learner, leaves ``[N, ...]``, all computed at the same
    params.

    The last learner's gradients are as old as A3C's with equally fast learners.
    """
    (learners,) = {leaf.shape[0] for leaf in jax.tree.leaves(results)}

    def one(state: PartState, xs: tuple[GradientResult, jax.Array]) -> tuple[PartState, Metrics]:
        updated = apply_gradients(
            part, state, xs[0], hyper, xs[1], drop_nonfinite=learning.nan == "skip"
        )
        return updated.state, updated.metrics

    state, metrics = jax.lax.scan(one, state, (results, turn * learners + jnp.arange(learners)))
    return Updated(state, over_updates(metrics, learning.nan))


def _with_params(state: PartState, params: dict[str, PyTree]) -> PartState:
    return state._replace(learned=state.learned._replace(params=params))


def _shares(batches: Batches, learners: int) -> Batches:
    """Split batches into each learner's logical shards: leaves ``[N, ...]``."""

    def split(leaf: jax.Array, axis: int) -> jax.Array:
        shape = (
            *leaf.shape[:axis],
            learners,
            leaf.shape[axis] // learners,
            *leaf.shape[axis + 1 :],
        )
        return jnp.moveaxis(leaf.reshape(shape), axis, 0)

    data, places = jax.tree.map(lambda leaf: split(leaf, 0), (batches.data, batches.places))
    return Batches(data, split(batches.indices, 1), places)


def _mean(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: jnp.mean(x, axis=0), tree)


def _held(part: Part, params: dict[str, PyTree]) -> dict[str, PyTree]:
    """Return params within the constraints of their networks."""
    return {name: part.networks[name].project(tree) for name, tree in params.items()}


def _local(name: str) -> str:
    return f"{name}_local"


def _gradients(name: str) -> str:
    return f"gradients_{name}"
