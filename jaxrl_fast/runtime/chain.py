"""Chains: the programs of several groups, dispatched tick by tick from Python without waiting for
any of them.

Neighbouring fragments of a group become one program, a segment of the chain. Channels are copied
between devices if a reader's devices differ from the writer's. A host fragment is a segment that is
called instead of dispatched; segments that do not wait for it are dispatched first, so that devices
work during the call.

With several processes, each runs through the whole chain in the same order, and skips the segments
on whose devices it has no part (`transfer`).
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, Sharding

from jaxrl_fast.core import Metrics
from jaxrl_fast.runtime import graph as graphs
from jaxrl_fast.runtime import hosts, program_store, transfer
from jaxrl_fast.runtime.graph import Channels, Fragment, Graph, TrainState
from jaxrl_fast.runtime.layout import (
    CompileAhead,
    CompileRun,
    InitState,
    PlaceState,
    channel_axes,
    init_seeds,
    lay,
    over_seeds,
    state_layout,
)
from jaxrl_fast.runtime.placements import SAMPLING
from jaxrl_fast.runtime.program_store import Jit, Store
from jaxrl_fast.runtime.xla_options import compiler_options, starting_options


class Segment(NamedTuple):
    """Neighbouring fragments of one group as one program, or one host fragment.

    Attributes:
        fragments: Fragments in schedule order.
        step: ``(private, stored, fresh, hyper, key, tick, round) -> (private, written, metrics)``,
            of the channels after the last tick and of those written by earlier segments in this
            tick.
        stored: Channels of the first kind that are already on its devices.
        fresh: Channels of the second kind that are already on its devices.
        written: Channels that it returns.
        `moved`: For either kind, the shardings to which the other channels are copied, by channel.
        whole: Sharding of the hyper-parameters and the key.
        devices: Its devices.
        jit: Source of the compiled ``step``; None on the host.
    """

    fragments: tuple[Fragment, ...]
    step: Any
    stored: tuple[str, ...]
    fresh: tuple[str, ...]
    written: tuple[str, ...]
    moved: tuple[dict[str, Any], dict[str, Any]]
    whole: Sharding
    devices: tuple[jax.Device, ...]
    jit: Jit | None = None

    @property
    def name(self) -> str:
        """Names of its fragments."""
        return ", ".join(f.name for f in self.fragments)

    @property
    def host(self) -> bool:
        """Whether it is called, not dispatched."""
        return self.fragments[0].host

    @property
    def here(self) -> bool:
        """Whether this process takes part in it."""
        return transfer.is_here(self.devices)

    @property
    def joint(self) -> bool:
        """Whether this process takes part in it with others."""
        return self.here and transfer.spans_processes(self.devices)


class Stage(NamedTuple):
    """Segments that take turns ``rounds`` times a tick.

    Attributes:
        segments: Parts of a cycle that spans groups, or one segment.
        rounds: Turns of each in a tick.
    """

    segments: tuple[Segment, ...]
    rounds: int = 1


def make_stages(graph: Graph, home: dict[str, Mesh], num_seeds: int) -> tuple[Stage, ...]:
    """Build the stages of a tick.

    Args:
        graph: Graph.
        home: Device meshes by fragment.
        num_seeds: Number of seeds.

    Returns:
        The stages in the order of dispatch.
    """
    spans = _spanning(graph, home)
    cut = dispatch_order(graph, home)
    segments = [
        _segment(graph, home, run, num_seeds, one_round=run[0].name in spans) for run in cut
    ]
    stages: list[Stage] = []
    for cycle, members in groupby(segments, lambda s: spans.get(s.fragments[0].name)):
        together = tuple(members)
        rounds = together[0].fragments[0].rounds
        stages += [Stage((s,)) for s in together] if cycle is None else [Stage(together, rounds)]
    return tuple(stages)


def dispatch_order(graph: Graph, home: dict[str, Mesh]) -> list[tuple[Fragment, ...]]:
    """Cut the fragments of a tick into the segments of a chain, in an order that lets groups run at
    the same time.

    Fragments that wait for the fewest other groups come first. Among equals, host fragments come
    last, because they block. A segment ends where another group waits for its channels, because a
    program returns nothing before it ends. A cycle that spans groups becomes one segment per turn.

    Args:
        graph: Graph.
        home: Device meshes by fragment.

    Returns:
        Fragments of each segment.
    """
    writer = {c: f.name for f in graph.fragments for c in f.writes}
    hosts = {f.name for f in graph.fragments if f.host}
    now = {
        f.name: {writer[c] for c in f.reads if not graphs.age_of(graph, f.name, c)}
        for f in graph.fragments
    }
    waits: dict[str, int] = {}
    exports: set[str] = set()
    for stage in graphs.stages(graph.fragments):
        names = {f.name for f in stage}
        apart = {(w, n) for n in names for w in now[n] if w in hosts or home[w] is not home[n]}
        exports |= {w for w, _ in apart}
        before = [waits[w] + ((w, n) in apart) for n in names for w in now[n] - names]
        waits |= dict.fromkeys(names, max(before, default=0))
    spans = _spanning(graph, home)
    segments: list[tuple[Fragment, ...]] = []
    label: Any = None
    for fragment in sorted(graph.fragments, key=lambda f: (waits[f.name], f.host)):
        name = fragment.name
        last, label = label, (id(home[name]), waits[name], spans.get(name), fragment.host)
        if label == last and segments[-1][-1].name not in exports:
            segments[-1] += (fragment,)
        else:
            segments.append((fragment,))
    return segments


def _spanning(graph: Graph, home: dict[str, Mesh]) -> dict[str, int]:
    """Return the members of cycles that span several groups, with a number for each cycle."""
    cycles = [
        stage
        for stage in graphs.stages(graph.fragments)
        if len({id(home[f.name]) for f in stage}) > 1
    ]
    return {f.name: i for i, cycle in enumerate(cycles) for f in cycle}


def _segment(
    graph: Graph,
    home: dict[str, Mesh],
    fragments: tuple[Fragment, ...],
    num_seeds: int,
    *,
    one_round: bool,
) -> Segment:
    mesh = home[fragments[0].name]
    produced = {c for f in fragments for c in f.writes}
    aged = {c for f in fragments for c in f.reads if graphs.age_of(graph, f.name, c) == 1}
    now = {c for f in fragments for c in f.reads if graphs.age_of(graph, f.name, c) == 0} - produced
    held = produced & set(graphs.stored_channels(graph))
    outside = set(graphs.stored_channels(graph)) | {
        c for f in graph.fragments if f not in fragments for c in f.reads
    }
    stored, fresh, written = (
        tuple(sorted(names)) for names in (aged | held, now, produced & outside)
    )
    axes = channel_axes(graph)
    writer = {c: f.name for f in graph.fragments for c in f.writes}
    at = {c: lay(mesh, axes[c], num_seeds) for c in (*stored, *fresh, *written)}
    host = fragments[0].host
    jit = (
        None
        if host
        else _jit(graph, mesh, fragments, (stored, fresh, written), at, num_seeds, one_round)
    )
    step = (
        jit.jitted()
        if jit
        else _called(graph, fragments[0], {c: at[c] for c in written}, num_seeds)
    )

    def come(names: tuple[str, ...]) -> dict[str, Any]:
        return {c: at[c] for c in names if home[writer[c]] is not mesh}

    moved = come(stored), come(fresh)
    stay = [
        tuple(c for c in names if c not in moves)
        for names, moves in zip((stored, fresh), moved, strict=True)
    ]
    whole, devices = lay(mesh, None, num_seeds), tuple(mesh.devices.flat)
    if not transfer.is_here(devices):
        step = transfer.passed_over(step, {c: at[c] for c in written}, whole)
    return Segment(
        fragments,
        step,
        stored=stay[0],
        fresh=stay[1],
        written=written,
        moved=moved,
        whole=whole,
        devices=devices,
        jit=jit,
    )


def _jit(
    graph: Graph,
    mesh: Mesh,
    fragments: tuple[Fragment, ...],
    channels: tuple[tuple[str, ...], ...],
    at: dict[str, Any],
    num_seeds: int,
    one_round: bool,
) -> Jit:
    stored, fresh, written = channels

    def one_seed(
        private: Any,
        stored: Channels,
        fresh: Channels,
        hyper: Any,
        key: jax.Array,
        tick: jax.Array,
        round: jax.Array,
    ) -> tuple:
        step = graphs.step_round if one_round else graphs.step_fragments
        moment = graphs.Moment(hyper, key, tick, round if one_round else 0)
        after, outputs, metrics = step(graph, fragments, private, stored, fresh, moment)
        return after, {c: outputs[c] for c in written}, metrics

    # the program's name in profiles and compiler dumps
    one_seed.__name__ = "_".join(f.name for f in fragments)
    private = {f.name: lay(mesh, f.division.private, num_seeds) for f in fragments}
    whole = lay(mesh, None, num_seeds)
    acting = all(SAMPLING in f.tags for f in fragments)
    return Jit(
        name=one_seed.__name__,
        function=over_seeds(one_seed, num_seeds, (0, 0, 0, 0, 0, None, None), 0),
        donate=(0,),
        in_shardings=(
            private,
            {c: at[c] for c in stored},
            {c: at[c] for c in fresh},
            whole,
            whole,
            None,
            None,
        ),
        out_shardings=(private, {c: at[c] for c in written}, whole),
        options=compiler_options(mesh, products=graph.products, acting=acting),
    )


def _called(graph: Graph, fragment: Fragment, written: dict[str, Any], num_seeds: int) -> Any:
    """Return the step of a host fragment, with hyper-parameters and keys; results are transferred
    to its group.
    """
    rates = jax.jit(over_seeds(graph.hyper_at, num_seeds, (0, None), 0))
    own_key = jax.jit(
        over_seeds(lambda key, tick: graphs.step_key(fragment, key, tick), num_seeds, (0, None), 0)
    )

    def step(
        private: Any,
        stored: Channels,
        fresh: Channels,
        hyper: Any,
        key: jax.Array,
        tick: Any,
        round: Any,
    ) -> tuple:
        inputs = {
            c: (stored if graphs.age_of(graph, fragment.name, c) else fresh)[c]
            for c in fragment.reads
        }
        own_step = graphs.step_of(fragment, tick)
        after, outputs, metrics = own_step(
            private[fragment.name], inputs, rates(hyper, tick), own_key(key, tick)
        )
        named = {f"{fragment.name}/{name}": value for name, value in metrics.items()}
        return (
            {fragment.name: after},
            jax.device_put({c: outputs[c] for c in written}, written),
            named,
        )

    return step


class Chain(NamedTuple):
    """Stages in the order of dispatch, called like one program: a chunk.

    Only the end of the chunk waits for the devices, to fetch the metrics.

    Attributes:
        stages: The stages.
        ticks_per_chunk: Ticks of one call.
        watch: ``(segment, called_s, inputs, outputs)``, called after each segment's call, for a
            timeline. ``called_s`` is `time.perf_counter` at the call, ``inputs`` the segment's
            channels ``(stored, fresh)``, and ``outputs`` ``(written, metrics)``, which devices may
            still be computing.
    """

    stages: tuple[Stage, ...]
    ticks_per_chunk: int
    watch: Callable[[Segment, float, Any, Any], None] | None = None

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All segments in order."""
        return tuple(segment for stage in self.stages for segment in stage.segments)

    def __call__(self, state: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """Run a chunk, as `Program.run`."""
        first_tick = int(state.tick)
        copied = hosts.own_copy((state.hyper, state.key))
        shared = {id(s): hosts.put(copied, s.whole) for s in self.segments}
        now, rows = state, []
        for tick in range(first_tick, first_tick + self.ticks_per_chunk):
            now, metrics = self._tick(now, np.int32(tick), shared)
            rows.append(metrics)
        columns = _columns(hosts.own_shares(rows))
        transfer.turns.wait()
        columns = hosts.add_up(columns)
        return now._replace(tick=state.tick + self.ticks_per_chunk), columns

    def _tick(
        self, state: TrainState, tick: np.int32, shared: dict[int, Any]
    ) -> tuple[TrainState, list[Metrics]]:
        """Run a tick; ``shared`` has hyper-parameters and key on each segment's devices. Metrics
        are listed by call.
        """
        private, fresh, metrics = dict(state.private), Channels(), []
        for stage in self.stages:
            stored = dict(state.channels)
            for round in range(stage.rounds):
                for segment in stage.segments:
                    after, written, more = self._run(
                        segment, private, stored, fresh, shared[id(segment)], tick, round
                    )
                    private |= after
                    fresh |= written
                    metrics.append(more)
                if stage.rounds > 1:  # an edge of age 1 within a cycle is one round old
                    stored |= {
                        c: fresh[c] for s in stage.segments for c in s.written if c in stored
                    }
        return state._replace(
            private=private, channels={c: fresh[c] for c in state.channels}
        ), metrics

    def _run(
        self,
        segment: Segment,
        private: dict[str, Any],
        stored: Channels,
        fresh: Channels,
        shared: Any,
        tick: np.int32,
        round: int,
    ) -> tuple[dict[str, Any], Channels, Metrics]:
        of_segment = {f.name: private[f.name] for f in segment.fragments}
        inputs = [
            {c: channels[c] for c in names} | transfer.move({c: channels[c] for c in moved}, moved)
            for channels, names, moved in zip(
                (stored, fresh), (segment.stored, segment.fresh), segment.moved, strict=True
            )
        ]
        called_s = time.perf_counter()
        if segment.joint:
            transfer.turns.wait()
        out = segment.step(of_segment, *inputs, *shared, tick, np.int32(round))
        if segment.joint:
            transfer.turns.began(out[1:])
        if self.watch is not None:
            self.watch(segment, called_s, inputs, out[1:])
        return out


class ChainParts(NamedTuple):
    """A chain before it is compiled, with the functions of a `jaxrl_fast.runtime.program.Program`.

    Attributes:
        init: As in `Program`.
        run: As in `Program`.
        ready: As in `Program`.
        compile_run: As in `Program`.
        place: As in `Program`.
    """

    init: InitState
    run: Chain
    ready: CompileAhead
    compile_run: CompileRun
    place: PlaceState


def make_chain(
    graph: Graph, home: dict[str, Mesh], ticks_per_chunk: int, num_seeds: int
) -> ChainParts:
    """Build the chain of a graph.

    Args:
        graph: Graph.
        home: Device meshes by fragment.
        ticks_per_chunk: Ticks of one call.
        num_seeds: Number of seeds.

    Returns:
        The chain and its other functions.
    """
    layout = state_layout(graph, home, num_seeds)
    if not hosts.is_alone():
        alike: Any = hosts.everywhere()
        layout = layout._replace(hyper=alike, tick=alike, key=alike)
    stages = make_stages(graph, home, num_seeds)
    init_jit = Jit("init", init_seeds(graph, num_seeds), options=starting_options())
    first = init_jit.jitted()
    axes, writer = channel_axes(graph), {c: f.name for f in graph.fragments for c in f.writes}

    def place(state: TrainState) -> TrainState:
        return hosts.put(state, layout)

    def lay_channels(names: Iterable[str]) -> dict[str, Any]:
        return {c: lay(home[writer[c]], axes[c], num_seeds) for c in names}

    def compile_run(keys: jax.Array, hyper: Any) -> Chain:
        state = jax.eval_shape(first, keys, hyper)
        return Chain(_compile_stages(stages, state, lay_channels, num_seeds), ticks_per_chunk)

    def ready(keys: jax.Array, hyper: Any, store: Store | None = None) -> tuple[InitState, Chain]:
        loaded = None if store is None else _ready_from(store, stages, init_jit, keys, hyper)
        if loaded is not None:
            first_state, own_stages = loaded
            return lambda keys, hyper: place(first_state(keys, hyper)), Chain(
                own_stages, ticks_per_chunk
            )
        jax.eval_shape(first, keys, hyper)  # cached by JAX, otherwise both threads trace it
        pool = ThreadPoolExecutor(1)
        init = pool.submit(lambda: first.lower(keys, hyper).compile())
        pool.shutdown(wait=False)
        run = compile_run(keys, hyper)
        return lambda keys, hyper: place(init.result()(keys, hyper)), run

    run, anywhere = Chain(stages, ticks_per_chunk), init_jit.anywhere()
    return ChainParts(
        lambda keys, hyper: place(anywhere(keys, hyper)), run, ready, compile_run, place
    )


def _compile_stages(
    stages: tuple[Stage, ...],
    state: TrainState,
    lay_channels: Callable[[Iterable[str]], dict[str, Any]],
    num_seeds: int,
) -> tuple[Stage, ...]:
    """Compile the segments of stages, and the transfers before them, at the same time.

    ``state`` has the shapes of the state, ``lay_channels`` returns the shardings of channels where
    their writers leave them.
    """
    pool = ThreadPoolExecutor()
    fresh: Channels = {}
    steps: dict[int, Any] = {}
    transfers: list[Any] = []
    for segment in (s for stage in stages for s in stage.segments):
        if segment.host:
            publish = segment.fragments[0].publish
            assert publish is not None  # `placements.check_placed` requires it
            published = over_seeds(publish, num_seeds, (0,), 0)
            fresh |= jax.eval_shape(published, state.private[segment.name])
            continue
        arguments = _arguments(segment, state, fresh)
        for channels, moved in zip(arguments[1:3], segment.moved, strict=True):
            values = {c: channels[c] for c in moved}
            transfers.append(pool.submit(transfer.compile_move, values, lay_channels(moved), moved))
        if not segment.here:
            fresh |= jax.tree.map(_shape, segment.step(*arguments)[1])
            continue
        traced = segment.step.trace(*arguments)
        fresh |= jax.tree.map(_shape, traced.out_info[1])
        steps[id(segment)] = pool.submit(_compile, traced)
    pool.shutdown(wait=False)

    def compiled(segment: Segment) -> Segment:
        step = steps.get(id(segment))
        return segment if step is None else segment._replace(step=step.result())

    meshes = [moved.result() for moved in transfers]
    hosts.connect([*(s.devices for stage in stages for s in stage.segments), *meshes])
    return tuple(stage._replace(segments=tuple(map(compiled, stage.segments))) for stage in stages)


def _ready_from(
    store: Store, stages: tuple[Stage, ...], init: Jit, keys: jax.Array, hyper: Any
) -> tuple[InitState, tuple[Stage, ...]] | None:
    """Return the initial state's program and stages of compiled segments, in a single process.

    They are traced only if the ``store`` lacks them, and then stored. Returns None with a host
    segment, or a program that cannot be stored.
    """
    segments = [segment for stage in stages for segment in stage.segments]
    if any(segment.host for segment in segments):
        return None
    jits = [*(segment.jit for segment in segments if segment.jit is not None), init]
    programs = program_store.compile_stored(
        store, jits, lambda: _trace(segments, init, keys, hyper)
    )
    if programs is None:
        return None
    *programs, first_state = programs
    steps = dict(zip(map(id, segments), programs, strict=True))
    done = [
        stage._replace(segments=tuple(s._replace(step=steps[id(s)]) for s in stage.segments))
        for stage in stages
    ]
    return first_state, tuple(done)


def _trace(
    segments: Sequence[Segment], init: Jit, keys: jax.Array, hyper: Any
) -> Iterator[program_store.Traced]:
    """Trace the programs of all segments, none of which is on the host, and last the initial
    state's.
    """
    state, fresh = jax.eval_shape(init.jitted(), keys, hyper), Channels()
    for segment in segments:
        assert segment.jit is not None
        traced = program_store.trace(segment.jit, *_arguments(segment, state, fresh))
        fresh |= traced.out_shapes[1]
        yield traced
    yield program_store.trace(init, keys, hyper)


def _shape(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _compile(traced: Any) -> jax.stages.Compiled:
    return traced.lower().compile()


def _arguments(segment: Segment, state: TrainState, fresh: Channels) -> tuple:
    private = {f.name: state.private[f.name] for f in segment.fragments}
    stored = {c: state.channels[c] for c in (*segment.stored, *segment.moved[0])}
    inputs = {c: fresh[c] for c in (*segment.fresh, *segment.moved[1])}
    return (
        private,
        stored,
        inputs,
        state.hyper,
        state.key,
        state.tick,
        jax.ShapeDtypeStruct((), np.int32),
    )


def _columns(rows: list[list[Metrics]]) -> dict[str, np.ndarray]:
    """Stack the segments' metrics of each tick to ``[S, ticks]``; metrics of a cycle's rounds are
    summed.
    """
    ticks = []
    for row in rows:
        total: dict[str, Any] = {}
        for metrics in row:
            total |= {
                name: total[name] + value if name in total else value
                for name, value in metrics.items()
            }
        ticks.append(total)
    return {
        name: np.stack([np.atleast_1d(total[name]) for total in ticks], axis=1) for name in ticks[0]
    }
