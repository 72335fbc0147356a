"""Layouts: where the arrays of a group of fragments lie on its devices. Shared by `program` and `chain`."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from jaxrl_fast.core import PyTree
from jaxrl_fast.graph import dataflow as graphs
from jaxrl_fast.graph import placements
from jaxrl_fast.graph.dataflow import Graph, GraphError, TrainState
from jaxrl_fast.graph.placements import Group, Placement
from jaxrl_fast.graph.program_functions import InitState

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
