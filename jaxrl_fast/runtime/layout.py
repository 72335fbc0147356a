"""A compiled program: its functions, the sharding of its arrays, and many ticks in one program."""

from collections.abc import Callable
from functools import partial
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
        """Make the state.

        Args:
            keys: A random key for each seed, ``[S]``.
            hyper: Hyper-parameters with which all seeds begin, numbers or schedules.

        Returns:
            The state.
        """


class RunChunk(Protocol):
    """Trains for a chunk: a fixed number of ticks."""

    def __call__(self, state: TrainState, /) -> tuple[TrainState, Metrics]:
        """Run the chunk.

        Args:
            state: State, which must not be used again: its private states are donated.

        Returns:
            The next state, and metrics ``[S, ticks]`` named ``fragment/metric``.
        """


class CompileAhead(Protocol):
    """Compiles both functions before anything runs, in threads."""

    def __call__(
        self, keys: jax.Array, hyper: Any, /, store: Store | None = None
    ) -> tuple[InitState, RunChunk]:
        """Compile for the shapes of `InitState`'s arguments.

        Programs that the ``store`` contains are not traced; it gets the programs that it lacks.
        Returns both functions.
        """


CompileRun = Callable[[jax.Array, Any], RunChunk]
"""(keys and hyper as in `InitState`, or their shapes) -> compiled `RunChunk`."""


PlaceState = Callable[[TrainState], TrainState]
"""(state on any device or in NumPy, such as one from a file) -> state on the devices where
`RunChunk` requires it.
"""


SEED_AXES: Any = TrainState._make((0, 0, 0, None, 0))
"""All seeds share the tick, so all skip the same fragments and a skipped fragment costs nothing."""
OWN_TICKS: Any = SEED_AXES._replace(tick=0)
"""Each seed counts its own ticks, so that seeds can begin at any time; steps of skipped fragments
are computed and discarded.
"""

NO_AXIS = -1
"""In a tree of axes: leaves without a sharded axis and without an axis for the seeds."""


def homes(placement: Placement, num_seeds: int) -> dict[str, Mesh]:
    """Return each fragment's devices; fragments of one group share one mesh object.

    Args:
        placement: Placement.
        num_seeds: Number of seeds.

    Returns:
        Device meshes by fragment.
    """
    meshes = [_mesh(group, num_seeds) for group in placement.groups]
    return {
        name: mesh
        for group, mesh in zip(placement.groups, meshes, strict=True)
        for name in group.fragments
    }


def lay(mesh: Mesh, axes: PyTree, num_seeds: int) -> Any:
    """Return the shardings of arrays on a device mesh.

    Args:
        mesh: Device mesh.
        axes: Sharded axis of each leaf, counted without the seeds' axis; None for none.
        num_seeds: Number of seeds.

    Returns:
        Shardings as a prefix tree like ``axes``.
    """
    if mesh.size == 1:
        return SingleDeviceSharding(mesh.devices.item())
    seeds = ("seed",) if num_seeds > 1 else ()
    return jax.tree.map(partial(_sharding, mesh, seeds), axes, is_leaf=lambda x: x is None)


def _sharding(mesh: Mesh, seeds: tuple[str, ...], axis: int | None) -> NamedSharding:
    if axis == NO_AXIS:
        return NamedSharding(mesh, PartitionSpec())
    behind = () if axis is None else (*[None] * axis, "batch")
    return NamedSharding(mesh, PartitionSpec(*seeds, *behind))


def state_layout(
    graph: Graph, home: dict[str, Mesh], num_seeds: int, axes_of: TrainState = SEED_AXES
) -> TrainState:
    """Return the shardings of a `TrainState`.

    Args:
        graph: Graph.
        home: Device meshes by fragment.
        num_seeds: Number of seeds.
        axes_of: `SEED_AXES` or `OWN_TICKS`.

    Returns:
        Shardings: each part is with the fragment that has or writes it, the rest with the first
            fragment.
    """
    axes = channel_axes(graph)
    writer = {c: f.name for f in graph.fragments for c in f.writes}
    private = {f.name: lay(home[f.name], f.division.private, num_seeds) for f in graph.fragments}
    channels = {c: lay(home[writer[c]], axes[c], num_seeds) for c in graphs.stored_channels(graph)}
    mesh = home[graph.fragments[0].name]
    alone = lay(mesh, None, num_seeds)
    return TrainState(
        private,
        channels,
        alone,
        lay(mesh, NO_AXIS if axes_of.tick is None else None, num_seeds),
        alone,
    )


def init_seeds(graph: Graph, num_seeds: int, axes_of: TrainState = SEED_AXES) -> InitState:
    """Return the function that makes the initial state of every seed.

    Args:
        graph: Graph.
        num_seeds: Number of seeds.
        axes_of: `SEED_AXES` or `OWN_TICKS`.

    Returns:
        ``init(keys [S], hyper)``.
    """

    def init(keys: jax.Array, hyper: Any) -> TrainState:
        if len(keys) != num_seeds:
            raise GraphError(f"{len(keys)} keys for a program of {num_seeds} seeds")
        one_seed = over_seeds(lambda key: graphs.init(graph, key, hyper), num_seeds, (0,), axes_of)
        return one_seed(keys if num_seeds > 1 else keys[0])

    return init


def over_seeds(function: Callable, num_seeds: int, in_axes: tuple, out_axes: Any) -> Callable:
    """Vmap a function over the seeds, if there are several: tracing a vmapped environment takes
    twice as long.

    Args:
        function: Function of one seed.
        num_seeds: Number of seeds.
        in_axes: As in `jax.vmap`.
        out_axes: As in `jax.vmap`.

    Returns:
        The function of all seeds.
    """
    return function if num_seeds == 1 else jax.vmap(function, in_axes=in_axes, out_axes=out_axes)


def _mesh(group: Group, num_seeds: int) -> Mesh:
    devices = np.array(group.devices).reshape(placements.shards(group, num_seeds))
    return Mesh(devices, ("seed", "batch"), axis_types=(AxisType.Auto, AxisType.Auto))


def channel_axes(graph: Graph) -> dict[str, Any]:
    """Return the axes along which channels may be sharded, as their writers name them.

    Args:
        graph: Graph.

    Returns:
        Axes of the leaves by channel.
    """
    return {c: f.division.writes.get(c) for f in graph.fragments for c in f.writes}


def scan_ticks(graph: Graph, state: TrainState, length: int) -> tuple[TrainState, Metrics]:
    """Run consecutive ticks.

    Args:
        graph: Graph.
        state: State of one seed.
        length: Number of ticks.

    Returns:
        The next state, and metrics ``[length]``.
    """
    within = {f.name: f.inner for f in graph.fragments if f.inner is not None}
    own_form = [f if f.inner is None else f._replace(step=f.inner.step) for f in graph.fragments]
    inside = graph._replace(fragments=tuple(own_form))
    names: dict[str, list[str]] = {}

    def one(carry: tuple, _: None) -> tuple[tuple, dict[str, jax.Array]]:
        private, channels, number = carry
        after, metrics = tick(
            inside, state._replace(private=private, channels=channels, tick=number)
        )
        names.clear()
        for name, value in metrics.items():
            names.setdefault(str(value.dtype), []).append(name)
        rows = {
            dtype: jnp.stack([metrics[name] for name in of_dtype])
            for dtype, of_dtype in names.items()
        }
        return (after.private, after.channels, after.tick), rows

    begun = {name: form.begin(state.private[name]) for name, form in within.items()}
    carry, rows = jax.lax.scan(
        one, (state.private | begun, state.channels, state.tick), length=length
    )
    private, channels, number = carry
    ended = {name: form.end(private[name]) for name, form in within.items()}
    columns = {
        name: rows[dtype][:, i]
        for dtype, of_dtype in names.items()
        for i, name in enumerate(of_dtype)
    }
    return state._replace(private=private | ended, channels=channels, tick=number), columns
