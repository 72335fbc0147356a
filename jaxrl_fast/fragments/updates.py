"""One gradient update of a part: gradients, the optimizer's step, the constraint on params, the target networks."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxrl_fast.algorithms.interface import Found, Learned, Part, init_params
from jaxrl_fast.core import Metrics, PyTree
from jaxrl_fast.networks.dense import STATISTICS
from jaxrl_fast.numerics.norms import global_norm

DROPPED = "dropped_updates"
"""The metric that counts skipped updates."""


class Updated(NamedTuple):
    """A part after an update.

    - ``state``: the part.
    - ``metrics``: of the losses and gradients, scalars by name.
    - ``priorities``: how much each sequence of the batch surprised, ``[B]``, or ``()``.
    """

    state: "PartState"
    metrics: Metrics
    priorities: Any = ()


class PartState(NamedTuple):
    """A part in training.

    - ``learned``: its params and target networks.
    - ``opt_state``: the optimizer's state, by network.
    """

    learned: Learned
    opt_state: dict[str, PyTree]


def init_part(part: Part, key: jax.Array, hyper: Any) -> PartState:
    """A part before its first update; no two of its leaves share a buffer."""
    params = init_params(part, key)
    opt_state = {name: part.optimizers[name](hyper).init(trainable(params[name])) for name in part.networks}
    return PartState(Learned(params, jax.tree.map(jnp.copy, {name: params[name] for name in part.targets})), opt_state)


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
    """One gradient update of a part by one learner; ``updates``: how many the run has made before it."""
    found = part.gradients(state.learned, peers, batch, key, hyper)
    return apply_gradients(part, state, found, hyper, updates, drop_nonfinite=drop_nonfinite)


UpdatePart = Callable[[PartState, dict[str, Learned], Any, jax.Array, Any, jax.Array], Updated]
"""(state of the part while updates are made, what the others have learned by name, batch, key, hyper, how many updates
the run has made before) -> one gradient update of a part by one learner."""


class Trainer(NamedTuple):
    """How the updates of a tick treat a part, whose state may look otherwise meanwhile.

    - ``begin``, ``end``: the part's state as it is updated, and back.
    - ``learned``: what other parts see of it meanwhile; ``published``: the same as other fragments know it.
    - ``update``: one update.
    """

    begin: Callable[[PartState], PartState]
    end: Callable[[PartState], PartState]
    learned: Callable[[PartState], Learned]
    published: Callable[[PartState], Learned]
    update: UpdatePart


def trainer(part: Part, like: PartState, drop_nonfinite: bool) -> Trainer:
    """A `Trainer` that leaves a part's state in its own form; ``like``: the state, which other trainers need."""

    def step(
        state: PartState, peers: dict[str, Learned], batch: Any, key: jax.Array, hyper: Any, updates: jax.Array
    ) -> Updated:
        return update(part, state, peers, batch, key, hyper, updates, drop_nonfinite=drop_nonfinite)

    learned = lambda state: state.learned  # noqa: E731
    return Trainer(lambda state: state, lambda state: state, learned, learned, step)


def apply_gradients(
    part: Part,
    state: PartState,
    found: Found,
    hyper: Any,
    updates: jax.Array | int = 0,
    *,
    drop_nonfinite: bool = False,
) -> Updated:
    """The part after a step along the gradients, and the metrics of both.

    With ``drop_nonfinite`` a step that would give a NaN or an infinity is skipped, and ``dropped_updates`` is 1.
    """
    params, opt_state, metrics = {}, {}, dict(found.metrics)
    for i, name in enumerate(part.networks):
        before, grads = state.learned.params[name], trainable(found.grads[name])
        change, opt_state[name] = part.optimizers[name](hyper).update(grads, state.opt_state[name], trainable(before))
        params[name] = optax.apply_updates(trainable(before), change)
        if name in found.statistics or jax.tree.leaves(statistics_of(before)):
            params[name] = together(params[name], found.statistics.get(name, statistics_of(before)))
        metrics["grad_norm" if i == 0 else f"{name}_grad_norm"] = global_norm(grads)
    learned = Learned(part.project(params))
    if part.targets:
        learned = _move_targets(part, learned.params, state.learned.target, hyper, updates)
    new = PartState(learned, opt_state)
    updated = Updated(new, metrics, found.priorities)
    return _drop_nonfinite(updated, state) if drop_nonfinite else updated


def _drop_nonfinite(updated: Updated, before: PartState) -> Updated:
    """The update, or the part ``before`` it where a number is not finite."""
    finite = all_finite((updated.state, updated.metrics))
    chosen = jax.tree.map(lambda after, before: jnp.where(finite, after, before), updated.state, before)
    return Updated(chosen, {**updated.metrics, DROPPED: 1.0 - finite}, updated.priorities)


def step_when_due(part: Part, make: Callable[[PartState], Updated], state: PartState, updates: jax.Array) -> Updated:
    """``make(state)`` where the part is due (`Part.every`) after ``updates`` updates, else the state as it is.

    Where it is not due nothing is computed, as long as ``updates`` is the same for all seeds. Metrics are then 0, and
    multiplied by ``part.every`` otherwise, so that their mean over all updates is that over the part's own; priorities
    are then NaN.
    """
    _, metric_shapes, priority_shape = jax.eval_shape(make, state)

    def act(state: PartState) -> Updated:
        state, metrics, priorities = make(state)
        return Updated(state, {k: v if k == DROPPED else v * part.every for k, v in metrics.items()}, priorities)

    def rest(state: PartState) -> Updated:
        metrics = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), metric_shapes)
        return Updated(state, metrics, jax.tree.map(lambda x: jnp.full(x.shape, jnp.nan, x.dtype), priority_shape))

    return jax.lax.cond(updates % part.every == 0, act, rest, state)


def trainable(params: PyTree) -> PyTree:
    """A network's params, or those of an ensemble, without the statistics of batch norms."""
    if isinstance(params, tuple):
        return tuple(map(trainable, params))
    if isinstance(params, dict) and STATISTICS in params:
        return {name: value for name, value in params.items() if name != STATISTICS}
    return params


def statistics_of(params: PyTree) -> PyTree:
    """The statistics of batch norms, which `trainable` leaves out; empty without one."""
    if isinstance(params, tuple):
        return tuple(map(statistics_of, params))
    return params.get(STATISTICS, {}) if isinstance(params, dict) else {}


def together(weights: PyTree, statistics: PyTree) -> PyTree:
    """A network's params, put together from its `trainable` weights and its `statistics_of` batch norms."""
    if isinstance(weights, tuple):
        return tuple(map(together, weights, statistics))
    return {**weights, STATISTICS: statistics} if jax.tree.leaves(statistics) else weights


def all_finite(tree: PyTree) -> jax.Array:
    """Whether there is no NaN and no infinity anywhere in ``tree``; a scalar."""
    real = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in real]))


def _move_targets(
    part: Part, params: dict[str, PyTree], target: Mapping[str, PyTree], hyper: Any, updates: jax.Array | int
) -> Learned:
    rate = part.target_rate(hyper, jnp.asarray(updates))
    return Learned(params, optax.incremental_update({name: params[name] for name in part.targets}, target, rate))
