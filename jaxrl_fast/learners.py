"""Learners: how batches become parameters, by one learner or several, each part in turn or side by side.

One learner is a fragment ``learn`` that makes all K updates of a tick, or a fragment per part. Several learners have
equal shares of every batch; what they find is averaged by a ``server``, after every update or once a tick.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxrl_fast.algorithm import Agent, Part, PartState, apply_gradients, update
from jaxrl_fast.buffers import take_batch
from jaxrl_fast.core import Batches, Metrics, PyTree
from jaxrl_fast.graph import Channels, Fragment, stable_hash

OnNan = Literal["stop", "skip"]
"""What a number that is not finite does: end the run, or be left out of what is learned."""
Average = Literal["gradients", "parameters"]
"""What several learners average: gradients at every update, or parameters after the updates of a tick."""
DROPPED = "dropped_updates"

Parts = dict[str, Part]
States = dict[str, PartState]
Delays = dict[tuple[str, str], int]
Take = Callable[[PyTree, jax.Array], Any]


class Learners(NamedTuple):
    """The fragments of learning, in schedule order, and the edges of age 1 among what they read of each other."""

    fragments: tuple[Fragment, ...]
    delays: Delays


def build_learners(
    agent: Agent, *, side_by_side: bool = False, learners: int = 1, average: Average = "gradients", start: int = 0,
    nan: OnNan = "stop",
) -> Learners:  # fmt: skip
    """The learning half of a graph; its fragments read ``batches`` and write a channel of params for each part.

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
    teams = [(name,) for name in agent.parts] if side_by_side else [tuple(agent.parts)]
    if learners > 1 and average == "gradients":
        return _averaging_gradients(agent, side_by_side, learners, start, nan)
    if learners > 1:
        pairs = [_averaging_parameters(agent, team, learners, start, nan) for team in teams]
        return _delayed(tuple(pair[0] for pair in pairs) + tuple(pair[1] for pair in pairs), agent.parts)
    take = agent.experience.take
    return _delayed(tuple(learn_fragment(agent.parts, team, start, nan, take) for team in teams), agent.parts)


def learn_fragment(
    parts: Parts, team: tuple[str, ...] | None = None, start: int = 0, nan: OnNan = "stop", take: Take = take_batch
) -> Fragment:
    """One learner that makes all updates of a tick for the parts of ``team`` (default: all), which take turns."""
    team = team or tuple(parts)
    outside = _read_outside(parts, team)

    def init(key: jax.Array) -> States:
        return _init_states(parts, team, key)

    def step(private: States, inputs: Channels, hyper: Any, key: jax.Array) -> tuple:
        peers = {name: inputs[name] for name in outside}
        private, metrics = _make_updates(parts, team, private, peers, inputs["batches"], key, hyper, nan, take)
        norms = {_metric(team, name, "param_norm"): optax.tree.norm(private[name].params) for name in team}
        return private, publish(private), {**_over_updates(metrics, nan), **norms}

    def publish(private: States) -> Channels:
        return {name: private[name].params for name in team}

    return Fragment(
        _named("learn", parts, team), init, step, ("batches", *outside), team, publish, start=start, init_name="learn"
    )


def _averaging_parameters(
    agent: Agent, team: tuple[str, ...], learners: int, start: int, nan: OnNan
) -> tuple[Fragment, Fragment]:
    """Learners that each make the updates of a tick on their own shares, and the server that averages their params."""
    parts = agent.parts
    outside = _read_outside(parts, team)
    learn, server = (_named(role, parts, team) for role in ("learn", "server"))

    def init(key: jax.Array) -> States:
        alike = _init_states(parts, team, key)
        return jax.tree.map(lambda x: jnp.broadcast_to(x[None], (learners, *x.shape)), alike)

    def step(private: States, inputs: Channels, hyper: Any, key: jax.Array) -> tuple:
        peers = {name: inputs[name] for name in outside}

        def one_learner(states: States, batches: Batches, key: jax.Array) -> tuple[States, Metrics]:
            states = {name: state._replace(params=inputs[name]) for name, state in states.items()}
            return _make_updates(parts, team, states, peers, batches, key, hyper, nan, agent.experience.take)

        keys = jax.random.split(key, learners)
        private, metrics = jax.vmap(one_learner)(private, _shares(inputs["batches"], learners), keys)
        own = {_local(name): private[name].params for name in team}
        return private, own, _over_updates(metrics, nan)

    def init_server(key: jax.Array) -> Channels:
        return {name: state.params for name, state in _init_states(parts, team, key).items()}

    def step_server(private: Channels, inputs: Channels, hyper: Any, key: jax.Array) -> tuple:
        params = {name: _mean(inputs[_local(name)]) for name in team}
        norms = {_metric(team, name, "param_norm"): optax.tree.norm(params[name]) for name in team}
        return params, params, norms

    local = tuple(_local(name) for name in team)
    return (
        Fragment(
            learn, init, step, ("batches", *team, *outside), local, start=start, init_name="learn", private_axes=0,
            write_axes=dict.fromkeys(local, 0), width=learners, unit="learners",
        ),
        Fragment(server, init_server, step_server, local, team, lambda p: p, start=start, init_name="learn"),
    )  # fmt: skip


def _averaging_gradients(agent: Agent, side_by_side: bool, learners: int, start: int, nan: OnNan) -> Learners:
    """A cycle of one round per update: the learners' gradients for a part, and the server's step along their mean."""
    pairs = {name: _gradients_and_server(agent, name, learners, start, nan) for name in agent.parts}
    together = side_by_side or not any(part.reads for part in agent.parts.values())
    if together:
        fragments = tuple(pair[i] for i in (0, 1) for pair in pairs.values())
    else:
        fragments = tuple(fragment for pair in pairs.values() for fragment in pair)
    delays: Delays = {}
    seen: set[str] = set()
    for fragment in fragments:
        delays |= {(fragment.name, c): 1 for c in fragment.reads if _is_learned(c, agent.parts) and c not in seen}
        seen |= set(fragment.writes)
    return Learners(fragments, delays)


def _gradients_and_server(agent: Agent, name: str, learners: int, start: int, nan: OnNan) -> tuple[Fragment, Fragment]:
    part, rounds = agent.parts[name], agent.updates_per_tick
    shape = jax.eval_shape(part.init, jax.random.key(0))
    # Few algorithms have slow targets in every part.
    target = (_target(name),) if jax.tree.leaves(shape.target) else ()

    def step(private: jax.Array, inputs: Channels, hyper: Any, key: jax.Array) -> tuple:
        state = PartState(inputs[name], (), inputs[target[0]] if target else ())
        peers = {other: inputs[other] for other in (name, *part.reads)}
        batches = _shares(inputs["batches"], learners)

        def one_learner(share: Batches, key: jax.Array) -> tuple[PyTree, Metrics]:
            batch = agent.experience.take(share.data, share.indices[private])
            return part.gradients(state, peers, batch, key, hyper)

        found = jax.vmap(one_learner)(batches, jax.random.split(key, learners))
        return (private + 1) % rounds, {_gradients(name): found}, {}

    def step_server(private: States, inputs: Channels, hyper: Any, key: jax.Array) -> tuple:
        grads, metrics = _mean(inputs[_gradients(name)])
        state, metrics = apply_gradients(part, private[name], grads, metrics, hyper, drop_nonfinite=nan == "skip")
        metrics["param_norm"] = optax.tree.norm(state.params)
        # A cycle's metrics are summed over its rounds.
        return {name: state}, publish({name: state}), {k: v if k == DROPPED else v / rounds for k, v in metrics.items()}

    def publish(private: States) -> Channels:
        return {name: private[name].params} | dict.fromkeys(target, private[name].target)

    own = _gradients(name)
    return (
        Fragment(
            own, lambda key: jnp.zeros((), jnp.int32), step, ("batches", name, *target, *part.reads), (own,),
            start=start, rounds=rounds, write_axes={own: 0}, width=learners, unit="learners",
        ),
        Fragment(
            f"server_{name}", lambda key: _init_states(agent.parts, (name,), key), step_server, (own,),
            (name, *target), publish, start=start, rounds=rounds, init_name="learn",
        ),
    )  # fmt: skip


def _make_updates(
    parts: Parts, team: tuple[str, ...], states: States, peers: Channels, batches: Batches, key: jax.Array, hyper: Any,
    nan: OnNan, take: Take,
) -> tuple[States, Metrics]:  # fmt: skip
    """K updates of the parts in ``team``, in turns in this order, against ``peers``; metrics ``[K]``."""

    def one_update(states: States, xs: tuple[jax.Array, jax.Array]) -> tuple[States, Metrics]:
        index, key = xs
        batch = take(batches.data, index)
        metrics: Metrics = {}
        for name, part_key in zip(team, jax.random.split(key, len(team)), strict=True):
            seen = peers | {other: state.params for other, state in states.items()}
            drop = nan == "skip"
            new, own = update(parts[name], states[name], seen, batch, part_key, hyper, drop_nonfinite=drop)
            states = {**states, name: new}
            metrics |= {_metric(team, name, metric): value for metric, value in own.items()}
        return states, metrics

    return jax.lax.scan(one_update, states, (batches.indices, jax.random.split(key, batches.indices.shape[0])))


def _init_states(parts: Parts, team: tuple[str, ...], key: jax.Array) -> States:
    return {name: parts[name].init(jax.random.fold_in(key, stable_hash(name))) for name in team}


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


def _delayed(fragments: tuple[Fragment, ...], parts: Parts) -> Learners:
    delays = {(f.name, c): 1 for f in fragments for c in f.reads if c in parts}
    return Learners(fragments, delays)


def _read_outside(parts: Parts, team: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(other for other in parts if other not in team and any(other in parts[name].reads for name in team))


def _named(role: str, parts: Parts, team: tuple[str, ...]) -> str:
    return role if len(team) == len(parts) else "_".join((role, *team))


def _metric(team: tuple[str, ...], name: str, metric: str) -> str:
    return f"{name}/{metric}" if len(team) > 1 else metric


def _local(name: str) -> str:
    return f"{name}_local"


def _gradients(name: str) -> str:
    return f"gradients_{name}"


def _target(name: str) -> str:
    return f"{name}_target"


def _is_learned(channel: str, parts: Parts) -> bool:
    return channel in parts or channel in {_target(name) for name in parts}


def _divisor_near(number: int, wanted: int) -> int:
    return max(d for d in range(1, number + 1) if number % d == 0 and d <= max(wanted, 1))
