"""Placements: which fragments are compiled into one program, and the devices each program runs on.

The only file that knows devices. A placement changes numbers only by float rounding, since delays, keys and shards
belong to the graph. `fused`, one program on one device, is the first; others add groups.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from jaxrl_fast import graph as graphs
from jaxrl_fast.core import Metrics
from jaxrl_fast.graph import Graph, GraphError, TrainState

SEED_AXES: Any = TrainState._make((0, 0, 0, None, 0))
"""All seeds share the tick, so that what is skipped in a tick is skipped by all and costs nothing."""


class Group(NamedTuple):
    """Fragments compiled into one program, and the devices it runs on."""

    fragments: tuple[str, ...]
    devices: tuple[jax.Device, ...]


class Placement(NamedTuple):
    """A name and the groups that together hold every fragment exactly once."""

    name: str
    groups: tuple[Group, ...]


class Program(NamedTuple):
    """A graph ready to run. ``init(keys, hyper) -> TrainState`` and ``run(state) -> (state, metrics)``, a chunk of
    fixed size compiled once. Leaves have a leading seed axis ``[S, ...]`` (but the tick), metrics are ``[S, ticks]``.
    ``run`` donates its argument and returns before the device has finished."""

    init: jax.stages.Wrapped
    run: jax.stages.Wrapped
    ticks_per_chunk: int


def fused(graph: Graph, devices: Sequence[jax.Device]) -> Placement:
    """The whole graph as one program on the first device."""
    return Placement("fused", (Group(tuple(f.name for f in graph.fragments), (devices[0],)),))


PLACEMENTS: dict[str, Callable[[Graph, Sequence[jax.Device]], Placement]] = {"fused": fused}


def check(graph: Graph, placement: Placement) -> None:
    """Refuse a placement that does not hold every fragment exactly once.

    Raises:
        GraphError: naming the fragment.
    """
    known = [f.name for f in graph.fragments]
    placed = [name for group in placement.groups for name in group.fragments]
    for name in placed:
        if name not in known:
            raise GraphError(f"placement '{placement.name}' places fragment '{name}', which the graph does not have")
        if placed.count(name) > 1:
            raise GraphError(f"placement '{placement.name}' places fragment '{name}' twice")
    for name in known:
        if name not in placed:
            raise GraphError(f"placement '{placement.name}' leaves fragment '{name}' out")


def compile(graph: Graph, placement: Placement, ticks_per_chunk: int) -> Program:
    """Turn a graph into a program. Only placements of one group on one device can be compiled so far.

    Raises:
        GraphError: the placement does not fit the graph.
    """
    graphs.check(graph)
    check(graph, placement)
    if len(placement.groups) != 1 or len(placement.groups[0].devices) != 1:
        raise GraphError(f"placement '{placement.name}': only one group on one device can be compiled")
    device = placement.groups[0].devices[0]

    def init(keys: jax.Array, hyper: Any) -> TrainState:
        return _over_seeds(lambda key: graphs.init(graph, key, hyper), 0, SEED_AXES)(keys)

    def chunk(state: TrainState) -> tuple[TrainState, Metrics]:
        def one_seed(state: TrainState) -> tuple[TrainState, Metrics]:
            return jax.lax.scan(lambda s, _: graphs.tick(graph, s), state, length=ticks_per_chunk)

        return _over_seeds(one_seed, SEED_AXES, (SEED_AXES, 0))(state)

    sharding = jax.sharding.SingleDeviceSharding(device)
    return Program(
        jax.jit(init, out_shardings=sharding),
        jax.jit(chunk, donate_argnums=0, out_shardings=sharding),
        ticks_per_chunk,
    )


def _over_seeds(function: Callable[[Any], Any], in_axes: Any, out_axes: Any) -> Callable[[Any], Any]:
    """``vmap`` over the seed axis. A single seed is taken out and put back instead: tracing a vmapped world takes
    twice as long, which would be felt at every start."""

    def call(batch: Any) -> Any:
        if len(jax.tree.leaves(batch)[0]) > 1:
            return jax.vmap(function, in_axes=(in_axes,), out_axes=out_axes)(batch)
        return _at_axes(lambda x: x[None], function(_at_axes(lambda x: x[0], batch, in_axes)), out_axes)

    return call


def _at_axes(change: Callable[[jax.Array], jax.Array], tree: Any, axes: Any) -> Any:
    """Change the leaves that have a seed axis; ``axes`` is a prefix of ``tree`` as for ``vmap``."""

    def subtree(axis: int | None, part: Any) -> Any:
        return part if axis is None else jax.tree.map(change, part)

    return jax.tree.map(subtree, axes, tree, is_leaf=lambda x: x is None)
