"""A compiled program: its functions, where its arrays lie on devices, and many ticks in one program."""

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from jaxrl_fast.core import Metrics, PyTree
from jaxrl_fast.runtime import graph as graphs
from jaxrl_fast.runtime import placements
from jaxrl_fast.runtime.graph import Graph, GraphError, TrainState, tick
from jaxrl_fast.runtime.placements import Group, Placement
from jaxrl_fast.runtime.program_store import Store


class InitState(Protocol):
    """Makes the state before the first tick."""

    def __call__(self, keys: jax.Array, hyper: Any, /) -> TrainState:
        """``keys`` ``[S]``: a random key for each seed; ``hyper``: the rates or schedules that all seeds begin with."""


class RunChunk(Protocol):
    """Trains for a chunk: a fixed number of ticks."""

    def __call__(self, state: TrainState, /) -> tuple[TrainState, Metrics]:
        """``state`` must not be used again: its private states are donated. Returns the state at the end and metrics
        ``[S, ticks]`` named ``fragment/metric``."""


class CompileAhead(Protocol):
    """Compiles before anything runs, in threads."""

    def __call__(self, keys: jax.Array, hyper: Any, /, store: Store | None = None) -> tuple[InitState, RunChunk]:
        """Takes what `InitState` takes, for the shapes. Returns both functions, compiled. Programs that a ``store`` has
        are not traced; it gets those that it lacks."""


CompileRun = Callable[[jax.Array, Any], RunChunk]
"""(as `InitState` takes, or shapes): compiles `RunChunk` alone."""


PlaceState = Callable[[TrainState], TrainState]
"""Puts a state, for instance one from a file, from any device or NumPy on the devices where `RunChunk` expects it."""


SEED_AXES: Any = TrainState._make((0, 0, 0, None, 0))
"""All seeds share the tick, so that what is skipped in a tick is skipped by all and costs nothing."""

NO_AXIS = -1
"""In a tree of axes: leaves that have no axis to divide and none for the seeds."""


def homes(placement: Placement, num_seeds: int) -> dict[str, Mesh]:
    """Each fragment's devices; fragments of one group share the very mesh."""
    meshes = [_mesh(group, num_seeds) for group in placement.groups]
    return {name: mesh for group, mesh in zip(placement.groups, meshes, strict=True) for name in group.fragments}


def lay(mesh: Mesh, axes: PyTree, num_seeds: int) -> Any:
    """Shardings as a prefix tree like ``axes``, which counts axes without that of the seeds."""
    if mesh.size == 1:
        return SingleDeviceSharding(mesh.devices.item())
    seeds = ("seed",) if num_seeds > 1 else ()

    def sharding(axis: int | None) -> NamedSharding:
        if axis == NO_AXIS:
            return NamedSharding(mesh, PartitionSpec())
        behind = () if axis is None else (*[None] * axis, "batch")
        return NamedSharding(mesh, PartitionSpec(*seeds, *behind))

    return jax.tree.map(sharding, axes, is_leaf=lambda x: x is None)


def state_layout(graph: Graph, home: dict[str, Mesh], num_seeds: int) -> TrainState:
    """Where each part of a `TrainState` lies: with the fragment that owns or writes it, the rest with the first."""
    axes = channel_axes(graph)
    writer = {c: f.name for f in graph.fragments for c in f.writes}
    private = {f.name: lay(home[f.name], f.division.private, num_seeds) for f in graph.fragments}
    channels = {c: lay(home[writer[c]], axes[c], num_seeds) for c in graphs.stored_channels(graph)}
    mesh = home[graph.fragments[0].name]
    alone = lay(mesh, None, num_seeds)
    return TrainState(private, channels, alone, lay(mesh, NO_AXIS, num_seeds), alone)


def init_seeds(graph: Graph, num_seeds: int) -> InitState:
    """``init(keys [S], hyper)``: the first state of every seed."""

    def init(keys: jax.Array, hyper: Any) -> TrainState:
        if len(keys) != num_seeds:
            raise GraphError(f"{len(keys)} keys for a program of {num_seeds} seeds")
        one_seed = over_seeds(lambda key: graphs.init(graph, key, hyper), num_seeds, (0,), SEED_AXES)
        return one_seed(keys if num_seeds > 1 else keys[0])

    return init


def over_seeds(function: Callable, num_seeds: int, in_axes: tuple, out_axes: Any) -> Callable:
    """``vmap`` over the seed axis, where there is one: tracing a vmapped environment takes twice as long."""
    return function if num_seeds == 1 else jax.vmap(function, in_axes=in_axes, out_axes=out_axes)


def _mesh(group: Group, num_seeds: int) -> Mesh:
    devices = np.array(group.devices).reshape(placements.shards(group, num_seeds))
    return Mesh(devices, ("seed", "batch"), axis_types=(AxisType.Auto, AxisType.Auto))


def channel_axes(graph: Graph) -> dict[str, Any]:
    """For each channel the axes along which its leaves may be divided, as its writer names them."""
    return {c: f.division.writes.get(c) for f in graph.fragments for c in f.writes}


def scan_ticks(graph: Graph, state: TrainState, length: int) -> tuple[TrainState, Metrics]:
    """``length`` ticks, one after another; metrics ``[length]``."""
    within = {f.name: f.inner for f in graph.fragments if f.inner is not None}
    inside = graph._replace(
        fragments=tuple(f if f.inner is None else f._replace(step=f.inner.step) for f in graph.fragments)
    )
    names: dict[str, list[str]] = {}

    def one(carry: tuple, _: None) -> tuple[tuple, dict[str, jax.Array]]:
        private, channels, number = carry
        after, metrics = tick(inside, state._replace(private=private, channels=channels, tick=number))
        names.clear()
        for name, value in metrics.items():
            names.setdefault(str(value.dtype), []).append(name)
        rows = {dtype: jnp.stack([metrics[name] for name in own]) for dtype, own in names.items()}
        return (after.private, after.channels, after.tick), rows

    begun = {name: form.begin(state.private[name]) for name, form in within.items()}
    carry, rows = jax.lax.scan(one, (state.private | begun, state.channels, state.tick), length=length)
    private, channels, number = carry
    ended = {name: form.end(private[name]) for name, form in within.items()}
    columns = {name: rows[dtype][:, i] for dtype, own in names.items() for i, name in enumerate(own)}
    return state._replace(private=private | ended, channels=channels, tick=number), columns
