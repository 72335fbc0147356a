"""Programs: a graph under a placement, compiled. With `placement`, the only file that knows devices.

A placement of one group becomes one program that scans over the ticks of a chunk. Several groups become a chain of
programs that Python dispatches tick by tick without waiting for any of them, and channels are copied between devices.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from jaxrl_fast import graph as graphs
from jaxrl_fast import placement as placements
from jaxrl_fast.core import Metrics, PyTree
from jaxrl_fast.graph import Channels, Fragment, Graph, GraphError, TrainState
from jaxrl_fast.placement import Group, Placement

SEED_AXES: Any = TrainState._make((0, 0, 0, None, 0))
"""All seeds share the tick, so that what is skipped in a tick is skipped by all and costs nothing."""

NO_AXIS = -1
"""In a tree of axes: leaves that have no axis to divide and none for the seeds."""

CPU_OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": ""}
"""Matrix products by Eigen, not by YNNPACK: on 2 cores 5 % more SAC updates of 512, 6 % more PPO updates of 10,240
(medians of 8 and 4 rounds in turn, JAX 0.10.2)."""

Run = Callable[[TrainState], tuple[TrainState, Metrics]]


class Program(NamedTuple):
    """A graph ready to run.

    ``init(keys, hyper) -> TrainState`` and ``run(state) -> (state, metrics)``, a chunk of fixed size compiled once.
    Leaves have a leading axis ``[S, ...]`` (but the tick) if there are several seeds: for a single one, an axis of
    length 1 would make XLA copy what it could update in place. Metrics are ``[S, ticks]`` always. ``run`` donates the
    private states that it is given. ``ready(keys, hyper) -> (init, run)`` compiles both ahead of time. ``place(state)``
    puts a state from elsewhere where ``run`` wants it.
    """

    init: Callable[[jax.Array, Any], TrainState]
    run: Run
    ready: Callable[[jax.Array, Any], tuple[Callable[[jax.Array, Any], TrainState], Run]]
    place: Callable[[TrainState], TrainState]
    ticks_per_chunk: int


class Segment(NamedTuple):
    """Neighbours in the schedule that belong to one group: one program of a chain.

    ``step(private, stored, fresh, hyper, key, tick) -> (private, written, metrics)`` takes the channels ``stored``, as
    the last tick left them, and ``fresh``, written by earlier segments, where ``inputs`` says; ``whole`` is where it
    takes the rates and the key.
    """

    fragments: tuple[Fragment, ...]
    step: Any
    stored: tuple[str, ...]
    fresh: tuple[str, ...]
    inputs: tuple[dict[str, Any], dict[str, Any]]
    whole: Sharding


class Chain(NamedTuple):
    """The programs of several groups, called like one: a chunk of ``ticks_per_chunk`` ticks.

    Programs and copies are dispatched ahead; only the end of the chunk waits for the devices, to fetch the metrics.
    """

    segments: tuple[Segment, ...]
    ticks_per_chunk: int

    def __call__(self, state: TrainState) -> tuple[TrainState, Metrics]:
        """Run a chunk, as `Program.run`."""
        first_tick = int(state.tick)
        shared = [jax.device_put((state.hyper, state.key), segment.whole) for segment in self.segments]
        now, rows = state, []
        for tick in range(first_tick, first_tick + self.ticks_per_chunk):
            now, metrics = self._tick(now._replace(tick=np.int32(tick)), shared)  # type: ignore[arg-type]
            rows.append(metrics)
        host = jax.device_get(rows)
        columns: dict[str, Any] = {
            name: np.stack([np.atleast_1d(row[name]) for row in host], axis=1) for name in rows[0]
        }
        return now._replace(tick=state.tick + self.ticks_per_chunk), columns

    def _tick(self, state: TrainState, shared: list[tuple[Any, jax.Array]]) -> tuple[TrainState, Metrics]:
        """``shared``: the rates and the key where each segment wants them."""
        private = dict(state.private)
        fresh: Channels = {}
        metrics: Metrics = {}
        for segment, (hyper, key) in zip(self.segments, shared, strict=True):
            own, stored, given, *_ = _arguments(segment, state, fresh)
            stored, given = jax.device_put((stored, given), segment.inputs)
            own, written, more = segment.step(own, stored, given, hyper, key, state.tick)
            private |= own
            fresh |= written
            metrics |= more
        return state._replace(private=private, channels={c: fresh[c] for c in state.channels}), metrics


def compile(graph: Graph, placement: Placement, ticks_per_chunk: int, num_seeds: int = 1) -> Program:
    """Turn a graph into a program for ``num_seeds`` seeds.

    Raises:
        GraphError: the placement does not fit the graph.
    """
    graphs.check(graph)
    placements.check(graph, placement, num_seeds)
    meshes = [_mesh(group, num_seeds) for group in placement.groups]
    home = {name: mesh for group, mesh in zip(placement.groups, meshes, strict=True) for name in group.fragments}
    if len(placement.groups) == 1:
        return _one_program(graph, home, ticks_per_chunk, num_seeds)
    return _chain(graph, home, ticks_per_chunk, num_seeds)


def with_seed_axis(state: TrainState, num_seeds: int) -> TrainState:
    """A program's state with the leading axis ``[S, ...]`` that a single seed's lacks."""
    if num_seeds > 1:
        return state
    return jax.tree.map(lambda x: x[None], state)._replace(tick=state.tick)


def _one_program(graph: Graph, home: dict[str, Mesh], ticks_per_chunk: int, num_seeds: int) -> Program:
    layout = _state_layout(graph, home, num_seeds)

    def one_seed(state: TrainState) -> tuple[TrainState, Metrics]:
        return jax.lax.scan(lambda s, _: graphs.tick(graph, s), state, length=ticks_per_chunk)

    def chunk(state: TrainState) -> tuple[TrainState, Metrics]:
        state, metrics = _over_seeds(one_seed, num_seeds, (SEED_AXES,), (SEED_AXES, 0))(state)
        return state, {name: value.reshape(num_seeds, ticks_per_chunk) for name, value in metrics.items()}

    init = jax.jit(_init_seeds(graph, num_seeds), out_shardings=layout)
    run = jax.jit(
        chunk, donate_argnums=0, in_shardings=(layout,), out_shardings=(layout, layout.key),
        compiler_options=_options(home[graph.fragments[0].name]),
    )  # fmt: skip

    def ready(keys: jax.Array, hyper: Any) -> tuple[Callable[[jax.Array, Any], TrainState], Run]:
        shapes = jax.eval_shape(init, keys, hyper)
        pool = ThreadPoolExecutor(2)
        compiled = [
            pool.submit(lambda: init.lower(keys, hyper).compile()), pool.submit(lambda: run.lower(shapes).compile())
        ]  # fmt: skip
        pool.shutdown(wait=False)
        return compiled[0].result(), compiled[1].result()

    return Program(init, run, ready, lambda state: jax.device_put(state, layout), ticks_per_chunk)


def _chain(graph: Graph, home: dict[str, Mesh], ticks_per_chunk: int, num_seeds: int) -> Program:
    layout = _state_layout(graph, home, num_seeds)
    runs = [tuple(run) for _, run in groupby(graph.fragments, lambda f: id(home[f.name]))]
    segments = [_segment(graph, home[fragments[0].name], fragments, num_seeds) for fragments in runs]
    first = jax.jit(_init_seeds(graph, num_seeds))

    def place(state: TrainState) -> TrainState:
        return jax.device_put(state, layout)

    def ready(keys: jax.Array, hyper: Any) -> tuple[Callable[[jax.Array, Any], TrainState], Run]:
        state = jax.eval_shape(first, keys, hyper)
        pool = ThreadPoolExecutor()
        init = pool.submit(lambda: first.lower(keys, hyper).compile())
        fresh: Channels = {}
        steps = []
        for segment in segments:
            traced = segment.step.trace(*_arguments(segment, state, fresh))
            fresh |= jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), traced.out_info[1])
            steps.append(pool.submit(_compile, traced))
        pool.shutdown(wait=False)
        compiled = [s._replace(step=step.result()) for s, step in zip(segments, steps, strict=True)]
        return lambda keys, hyper: place(init.result()(keys, hyper)), chain(compiled)

    def chain(segments: list[Segment]) -> Run:
        # mypy does not see that a NamedTuple can be called
        return Chain(tuple(segments), ticks_per_chunk)  # type: ignore[return-value]

    return Program(lambda keys, hyper: place(first(keys, hyper)), chain(segments), ready, place, ticks_per_chunk)


def _segment(graph: Graph, mesh: Mesh, fragments: tuple[Fragment, ...], num_seeds: int) -> Segment:
    own = {c for f in fragments for c in f.writes}
    aged = {c for f in fragments for c in f.reads if graphs.age_of(graph, f.name, c) == 1}
    now = {c for f in fragments for c in f.reads if graphs.age_of(graph, f.name, c) == 0} - own
    kept = own & set(graphs.stored_channels(graph))
    outside = set(graphs.stored_channels(graph)) | {c for f in graph.fragments if f not in fragments for c in f.reads}
    stored, fresh, written = sorted(aged | kept), sorted(now), sorted(own & outside)
    axes = graphs.channel_axes(graph)

    def lay(axes: PyTree) -> Any:
        return _lay(mesh, axes, num_seeds)

    def one_seed(private: Any, stored: Channels, fresh: Channels, hyper: Any, key: Any, tick: Any) -> tuple:
        after, channels, metrics = graphs.step_fragments(graph, fragments, private, stored, fresh, hyper, key, tick)
        return after, {c: channels[c] for c in written}, metrics

    private = {f.name: lay(f.private_axes) for f in fragments}
    inputs = {c: lay(axes[c]) for c in stored}, {c: lay(axes[c]) for c in fresh}
    step = jax.jit(
        _over_seeds(one_seed, num_seeds, (0, 0, 0, 0, 0, None), 0),
        donate_argnums=0,
        in_shardings=(private, *inputs, lay(None), lay(None), None),
        out_shardings=(private, {c: lay(axes[c]) for c in written}, lay(None)),
        compiler_options=_options(mesh),
    )
    return Segment(fragments, step, tuple(stored), tuple(fresh), inputs, lay(None))


def _compile(traced: Any) -> jax.stages.Compiled:
    return traced.lower().compile()


def _arguments(segment: Segment, state: TrainState, fresh: Channels) -> tuple:
    private = {f.name: state.private[f.name] for f in segment.fragments}
    stored = {c: state.channels[c] for c in segment.stored}
    return private, stored, {c: fresh[c] for c in segment.fresh}, state.hyper, state.key, state.tick


def _init_seeds(graph: Graph, num_seeds: int) -> Callable[[jax.Array, Any], TrainState]:
    def init(keys: jax.Array, hyper: Any) -> TrainState:
        if len(keys) != num_seeds:
            raise GraphError(f"{len(keys)} keys for a program of {num_seeds} seeds")
        one_seed = _over_seeds(lambda key: graphs.init(graph, key, hyper), num_seeds, (0,), SEED_AXES)
        return one_seed(keys if num_seeds > 1 else keys[0])

    return init


def _mesh(group: Group, num_seeds: int) -> Mesh:
    devices = np.array(group.devices).reshape(placements.shards(group, num_seeds))
    return Mesh(devices, ("seed", "batch"), axis_types=(AxisType.Auto, AxisType.Auto))


def _options(mesh: Mesh) -> dict[str, str]:
    return CPU_OPTIONS if mesh.devices.flat[0].platform == "cpu" else {}


def _lay(mesh: Mesh, axes: PyTree, num_seeds: int) -> Any:
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


def _state_layout(graph: Graph, home: dict[str, Mesh], num_seeds: int) -> TrainState:
    """Where each part of a `TrainState` lies: with the fragment that owns or writes it, the rest with the first."""
    axes = graphs.channel_axes(graph)
    writer = {c: f.name for f in graph.fragments for c in f.writes}
    private = {f.name: _lay(home[f.name], f.private_axes, num_seeds) for f in graph.fragments}
    channels = {c: _lay(home[writer[c]], axes[c], num_seeds) for c in graphs.stored_channels(graph)}
    mesh = home[graph.fragments[0].name]
    alone = _lay(mesh, None, num_seeds)
    return TrainState(private, channels, alone, _lay(mesh, NO_AXIS, num_seeds), alone)


def _over_seeds(function: Callable, num_seeds: int, in_axes: tuple, out_axes: Any) -> Callable:
    """``vmap`` over the seed axis, where there is one: tracing a vmapped world takes twice as long."""
    return function if num_seeds == 1 else jax.vmap(function, in_axes=in_axes, out_axes=out_axes)
