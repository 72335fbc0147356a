"""Layouts: where the arrays of a group of fragments lie on its devices. Shared by `program` and `chain`."""

import os
from collections.abc import Callable
from functools import cache
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

EIGEN = "xla_cpu_experimental_ynn_fusion_type"
CPU_OPTIONS: dict[str, str | bool] = {EIGEN: ""}
"""Matrix products by Eigen, not by YNNPACK: on 2 cores 5 % more SAC updates of 512, 6 % more PPO updates of 10,240
(medians of 8 and 4 rounds in turn, JAX 0.10.2). Not where products are small: of several agents with a memory, whose
minibatches are a few sequences, Eigen takes 1.4 times as long (`experiments/bench/agents.py`, one core)."""

ACTING_OPTIONS: dict[str, str | bool] = {**CPU_OPTIONS, "xla_cpu_use_fusion_emitters": False}
"""Programs that only act and step environments: an evaluation of halfcheetah takes 1.9 s so, on one core, 2.4 s with
XLA's newer code for fused operations, and 2.8 s with YNNPACK as well; ant 1.0, 1.3 and 1.4 s. Where there are updates
too, the newer code is better: SAC on halfcheetah makes 18 % fewer without it. PPO there, where a program of its own
samples, takes 12 % more steps."""

STARTING_OPTIONS: dict[str, str | bool] = {"xla_backend_optimization_level": "0", "xla_cpu_use_fusion_emitters": False}
"""The program of the first state, which runs once, for milliseconds: that of halfcheetah is compiled in 1 core-second
so, otherwise in 6, that of CartPole in 0.3 and 1.6 (AMD EPYC, JAX 0.10.2)."""

GPU_GRAPHS: dict[str, str | bool] = {
    "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,CONDITIONAL,WHILE",
    "xla_gpu_graph_min_graph_size": "1",
}
"""Loops and branches become part of CUDA graphs, so that a GPU starts a whole tick at once and its host never waits.
Compiled for an H100 and never run on one, so only with ``JAXRL_FAST_GPU_GRAPHS=1``."""


GPU_PLATFORMS = ("gpu", "cuda", "rocm")


def starts_kernels_singly(platform: str) -> bool:
    """Whether a device's host starts kernel after kernel, so that many small ones cost more than a few large ones."""
    return platform in GPU_PLATFORMS


def homes(placement: Placement, num_seeds: int) -> dict[str, Mesh]:
    """Each fragment's devices; fragments of one group share the very mesh."""
    meshes = [_mesh(group, num_seeds) for group in placement.groups]
    return {name: mesh for group, mesh in zip(placement.groups, meshes, strict=True) for name in group.fragments}


def compiler_options(mesh: Mesh, *, small_products: bool = False, acting: bool = False) -> dict[str, str | bool]:
    """Options of XLA for these devices, as far as this version of it has them; ``small_products``: as in `Graph`;
    ``acting``: for a program that plays and learns nothing."""
    platform = mesh.devices.flat[0].platform
    if platform in GPU_PLATFORMS and os.environ.get("JAXRL_FAST_GPU_GRAPHS") == "1":
        return GPU_GRAPHS
    options = (ACTING_OPTIONS if acting else CPU_OPTIONS) if platform == "cpu" else {}
    return _known({name: value for name, value in options.items() if not (small_products and name == EIGEN)})


def acting_options(device: jax.Device | None = None) -> dict[str, str | bool]:
    """`compiler_options` of a program that plays, on one ``device``; default JAX's own."""
    platform = jax.default_backend() if device is None else device.platform
    return _known(ACTING_OPTIONS) if platform == "cpu" else {}


def starting_options() -> dict[str, str | bool]:
    """`compiler_options` of the program that makes the first state, on JAX's own device."""
    return _known(STARTING_OPTIONS) if jax.default_backend() == "cpu" else {}


def _known(options: dict[str, str | bool]) -> dict[str, str | bool]:
    return {name: value for name, value in options.items() if xla_knows(name, value)}


@cache
def xla_knows(option: str, value: str | bool) -> bool:
    """Whether XLA compiles a program for the CPU with this option."""
    cpu = SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
    lowered = jax.jit(lambda x: x).lower(jax.ShapeDtypeStruct((), np.float32, sharding=cpu))
    try:
        lowered.compile(compiler_options={option: value})
    except jax.errors.JaxRuntimeError:
        return False
    return True


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
