"""Learners: how batches become parameters, by one learner or several, each part in turn or side by side.

One learner is a fragment ``learn`` that makes all K updates of a tick, or a fragment per part. Several learners have
equal shares of every batch; what they find is averaged by a ``server``, after every update or once a tick.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxrl_fast.algorithms.interface import Found, Learned, Part, init_params
from jaxrl_fast.core import Batches, Metrics, PyTree, stable_hash
from jaxrl_fast.experience.binding import Bound
from jaxrl_fast.fragments.updates import DROPPED, PartState, apply_gradients, init_part, step_or_rest, update
from jaxrl_fast.graph.dataflow import Channels, Fragment

OnNan = Literal["stop", "skip"]
"""On NaN or Inf: end the run, or leave it out of what is learned."""
Average = Literal["gradients", "parameters"]
"""What several learners average: gradients at every update, or parameters after the updates of a tick."""

States = dict[str, PartState]
Delays = dict[tuple[str, str], int]


class Learners(NamedTuple):
    """The fragments of learning, in schedule order, and the edges of age 1 among what they read of each other."""

    fragments: tuple[Fragment, ...]
    delays: Delays


class Learning(NamedTuple):
    """What every learner needs: who learns, from the tick ``start`` on, and what it does on ``nan``."""

    agent: Bound
    start: int = 0
    nan: OnNan = "stop"

    @property
    def parts(self) -> dict[str, Part]:
        """By name."""
        return self.agent.parts


def build_learners(
    agent: Bound,
    *,
    side_by_side: bool = False,
    learners: int = 1,
    average: Average = "gradients",
    start: int = 0,
    nan: OnNan = "stop",
) -> Learners:
    """The learning half of a graph; its fragments read ``batches`` and write a channel of `Learned` for each part.

    In turns, each part sees what the others have just learned, at every update (SAC and TD3 as published);
    ``side_by_side`` each sees the others' parameters of the last exchange, so that they can run at the same time: an
    exchange is a tick, or an update where several learners average their gradients.

    Raises:
        ValueError: the batches do not divide into equal shares for so many learners.
    """
    shards = agent.experience.shards
    if learners < 1 or shards % learners:
        raise ValueError(
            f"learners={learners} cannot share the {shards} logical shards of the batches (common divisor of 8, "
            f"num_envs and the batch): write learners={_divisor_near(shards, learners)}, or other sizes"
        )
    learning = Learning(agent, start, nan)
    teams = [(name,) for name in agent.parts] if side_by_side else [tuple(agent.parts)]
    if learners > 1 and average == "gradients":
        return _averaging_gradients(learning, side_by_side, learners)
    if learners > 1:
        pairs = [_averaging_parameters(learning, team, learners) for team in teams]
        return _delayed(tuple(pair[0] for pair in pairs) + tuple(pair[1] for pair in pairs), agent.parts)
    return _delayed(tuple(learn_fragment(learning, team) for team in teams), agent.parts)


def learn_fragment(learning: Learning, team: tuple[str, ...] | None = None) -> Fragment:
    """One learner that makes all updates of a tick for the parts of ``team`` (default: all), which take turns."""
    parts = learning.parts
    team = team or tuple(parts)
    outside = _read_outside(parts, team)

    def init(key: jax.Array) -> States:
        return _init_states(learning, team, key)

    def step(private: States, inputs: Channels, hyper: Any, key: jax.Array, turn: jax.Array) -> tuple:
        peers = {name: inputs[name] for name in outside}
        private, metrics = _make_updates(learning, team, private, peers, inputs["batches"], key, hyper, turn)
        norms = {_metric(team, name, "param_norm"): optax.tree.norm(private[name].learned.params) for name in team}
        return private, publish(private), {**_over_updates(metrics, learning.nan), **norms}

    def publish(private: States) -> Channels:
        return {name: private[name].learned for name in team}

    return Fragment(
        _named("learn", parts, team),
        init,
        step,
        ("batches", *outside),
        team,
        publish,
        start=learning.start,
        init_name="learn",
        counts=True,
    )


def _averaging_parameters(learning: Learning, team: tuple[str, ...], learners: int) -> tuple[Fragment, Fragment]:
    """Learners that each make the updates of a tick on their own shares, and the server that averages their params."""
    parts = learning.parts
    outside = _read_outside(parts, team)
    learn, server = (_named(role, parts, team) for role in ("learn", "server"))

    def init(key: jax.Array) -> States:
        alike = _init_states(learning, team, key)
        return jax.tree.map(lambda x: jnp.broadcast_to(x[None], (learners, *x.shape)), alike)

    def step(private: States, inputs: Channels, hyper: Any, key: jax.Array, turn: jax.Array) -> tuple:
        peers = {name: inputs[name] for name in outside}

        def one_learner(states: States, batches: Batches, key: jax.Array) -> tuple[States, Metrics]:
            states = {name: _with_params(state, inputs[name].params) for name, state in states.items()}
            return _make_updates(learning, team, states, peers, batches, key, hyper, turn)

        keys = jax.random.split(key, learners)
        private, metrics = jax.vmap(one_learner)(private, _shares(inputs["batches"], learners), keys)
        own = {_local(name): private[name].learned for name in team}
        return private, own, _over_updates(metrics, learning.nan)

    def init_server(key: jax.Array) -> Channels:
        return {name: state.learned for name, state in _init_states(learning, team, key).items()}

    def step_server(private: Channels, inputs: Channels, hyper: Any, key: jax.Array) -> tuple:
        means = {name: _mean(inputs[_local(name)]) for name in team}
        learned = {name: mean._replace(params=parts[name].project(mean.params)) for name, mean in means.items()}
        norms = {_metric(team, name, "param_norm"): optax.tree.norm(learned[name].params) for name in team}
        return learned, learned, norms

    local = tuple(_local(name) for name in team)
    return (
        Fragment(
            learn,
            init,
            step,
            ("batches", *team, *outside),
            local,
            start=learning.start,
            init_name="learn",
            counts=True,
            private_axes=0,
            write_axes=dict.fromkeys(local, 0),
            width=learners,
            unit="learners",
        ),
        Fragment(server, init_server, step_server, local, team, lambda p: p, start=learning.start, init_name="learn"),
    )


def _averaging_gradients(learning: Learning, side_by_side: bool, learners: int) -> Learners:
    """A cycle of one round per update: the learners' gradients for a part, and the server's step along their mean."""
    parts = learning.parts
    pairs = {name: _gradients_and_server(learning, name, learners) for name in parts}
    together = side_by_side or not any(part.reads for part in parts.values())
    if together:
        fragments = tuple(pair[i] for i in (0, 1) for pair in pairs.values())
    else:
        fragments = tuple(fragment for pair in pairs.values() for fragment in pair)
    delays: Delays = {}
    seen: set[str] = set()
    for fragment in fragments:
        delays |= {(fragment.name, c): 1 for c in fragment.reads if c in parts and c not in seen}
        seen |= set(fragment.writes)
    return Learners(fragments, delays)


def _gradients_and_server(learning: Learning, name: str, learners: int) -> tuple[Fragment, Fragment]:
    part, rounds, take = learning.parts[name], learning.agent.updates_per_tick, learning.agent.experience.take

    def step(private: tuple, inputs: Channels, hyper: Any, key: jax.Array, turn: jax.Array) -> tuple:
        peers = {other: inputs[other] for other in part.reads}
        batches = _shares(inputs["batches"], learners)

        def one_learner(share: Batches, key: jax.Array) -> Found:
            batch = take(share.data, share.indices[turn % rounds])
            return part.gradients(inputs[name], peers, batch, key, hyper)

        found = jax.vmap(one_learner)(batches, jax.random.split(key, learners))
        return private, {_gradients(name): found}, {}

    def init_server(key: jax.Array) -> States:
        return _init_states(learning, (name,), key)

    def step_server(private: States, inputs: Channels, hyper: Any, key: jax.Array, turn: jax.Array) -> tuple:
        def make(state: PartState) -> tuple[PartState, Metrics]:
            found = _mean(inputs[_gradients(name)])
            return apply_gradients(part, state, found, hyper, turn, drop_nonfinite=learning.nan == "skip")

        state, metrics = step_or_rest(part, make, private[name], turn)
        metrics["param_norm"] = optax.tree.norm(state.learned.params)
        # A cycle's metrics are summed over its rounds.
        return {name: state}, publish({name: state}), {k: v if k == DROPPED else v / rounds for k, v in metrics.items()}

    def publish(private: States) -> Channels:
        return {name: private[name].learned}

    own = _gradients(name)
    return (
        Fragment(
            own,
            lambda key: (),
            step,
            ("batches", name, *part.reads),
            (own,),
            start=learning.start,
            rounds=rounds,
            counts=True,
            write_axes={own: 0},
            width=learners,
            unit="learners",
        ),
        Fragment(
            f"server_{name}",
            init_server,
            step_server,
            (own,),
            (name,),
            publish,
            start=learning.start,
            rounds=rounds,
            counts=True,
            init_name="learn",
        ),
    )


def _make_updates(
    learning: Learning,
    team: tuple[str, ...],
    states: States,
    peers: Channels,
    batches: Batches,
    key: jax.Array,
    hyper: Any,
    turn: jax.Array,
) -> tuple[States, Metrics]:
    """K updates of the parts in ``team``, in turns in this order, against ``peers``; metrics ``[K]``."""
    parts, take, drop = learning.parts, learning.agent.experience.take, learning.nan == "skip"
    rounds = batches.indices.shape[0]

    def one_update(states: States, xs: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[States, Metrics]:
        index, key, count = xs
        batch = take(batches.data, index)
        metrics: Metrics = {}
        for name, part_key in zip(team, jax.random.split(key, len(team)), strict=True):
            seen = peers | {other: state.learned for other, state in states.items()}

            def make(
                state: PartState, name: str = name, seen: Channels = seen, part_key: jax.Array = part_key
            ) -> tuple:
                return update(parts[name], state, seen, batch, part_key, hyper, count, drop_nonfinite=drop)

            new, own = step_or_rest(parts[name], make, states[name], count)
            states = {**states, name: new}
            metrics |= {_metric(team, name, metric): value for metric, value in own.items()}
        return states, metrics

    keys, counts = jax.random.split(key, rounds), turn * rounds + jnp.arange(rounds)
    return jax.lax.scan(one_update, states, (batches.indices, keys, counts))


def _init_states(learning: Learning, team: tuple[str, ...], key: jax.Array) -> States:
    parts, hyper = learning.parts, learning.agent.hyper
    return {name: init_part(parts[name], jax.random.fold_in(key, stable_hash(name)), hyper) for name in team}


def init_learned(agent: Bound, names: tuple[str, ...], key: jax.Array) -> Channels:
    """What parts have learned before the first update, for what runs without training."""
    return {name: Learned(init_params(agent.parts[name], jax.random.fold_in(key, stable_hash(name)))) for name in names}


def _with_params(state: PartState, params: dict[str, PyTree]) -> PartState:
    return state._replace(learned=state.learned._replace(params=params))


def _shares(batches: Batches, learners: int) -> Batches:
    """Each learner's share of the batches, its own logical shards: leaves ``[N, ...]``."""

    def split(leaf: jax.Array, axis: int) -> jax.Array:
        shape = (*leaf.shape[:axis], learners, leaf.shape[axis] // learners, *leaf.shape[axis + 1 :])
        return jnp.moveaxis(leaf.reshape(shape), axis, 0)

    return Batches(jax.tree.map(lambda leaf: split(leaf, 0), batches.data), split(batches.indices, 1))


def _mean(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: jnp.mean(x, axis=0), tree)


def _over_updates(metrics: Metrics, nan: OnNan) -> Metrics:
    """Means over the updates of a tick (and over learners), dropped ones left out and counted."""
    if nan == "stop":
        return {name: jnp.mean(values) for name, values in metrics.items()}

    def mean(values: jax.Array) -> jax.Array:
        finite = jnp.isfinite(values)
        return jnp.sum(jnp.where(finite, values, 0.0)) / jnp.maximum(jnp.sum(finite), 1)

    return {name: jnp.sum(v) if name.endswith(DROPPED) else mean(v) for name, v in metrics.items()}


def _delayed(fragments: tuple[Fragment, ...], parts: dict[str, Part]) -> Learners:
    delays = {(f.name, c): 1 for f in fragments for c in f.reads if c in parts}
    return Learners(fragments, delays)


def _read_outside(parts: dict[str, Part], team: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(other for other in parts if other not in team and any(other in parts[name].reads for name in team))


def _named(role: str, parts: dict[str, Part], team: tuple[str, ...]) -> str:
    return role if len(team) == len(parts) else "_".join((role, *team))


def _metric(team: tuple[str, ...], name: str, metric: str) -> str:
    return f"{name}/{metric}" if len(team) > 1 else metric


def _local(name: str) -> str:
    return f"{name}_local"


def _gradients(name: str) -> str:
    return f"gradients_{name}"


def _divisor_near(number: int, wanted: int) -> int:
    return max(d for d in range(1, number + 1) if number % d == 0 and d <= max(wanted, 1))
