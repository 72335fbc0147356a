"""Chains: the programs of several groups, dispatched tick by tick from Python without waiting for any of them.

Channels are copied between devices where a reader is placed elsewhere than the writer. A host fragment is a link of
the chain that is called instead of dispatched; what does not wait for it is dispatched first, so that devices work
meanwhile.

Among several processes each goes through the whole chain, in the same order, and passes over the links on whose devices
it has no share (`jaxrl_fast.graph.exchange`).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jaxrl_fast.core import Metrics
from jaxrl_fast.graph import distributed, exchange, kept
from jaxrl_fast.graph.compiler_choices import starting_options
from jaxrl_fast.graph.dataflow import Channels, Graph, TrainState
from jaxrl_fast.graph.kept import Jit, Store
from jaxrl_fast.graph.layout import channel_axes, init_seeds, lay, over_seeds, state_layout
from jaxrl_fast.graph.program_functions import CompileAhead, CompileRun, InitState, PlaceState
from jaxrl_fast.graph.segments import Segment, Stage, make_stages


class Chain(NamedTuple):
    """``stages`` in the order of dispatch, called like one program: a chunk of ``ticks_per_chunk`` ticks.

    Only the end of the chunk waits for the devices, to fetch the metrics. ``watch(segment, called_s, inputs,
    outputs)``, if given, sees every call, as for a timeline. ``called_s``: `time.perf_counter` at the call; ``inputs``:
    the segment's channels ``(stored, fresh)``; ``outputs``: ``(written, metrics)``, which its devices may still
    compute.
    """

    stages: tuple[Stage, ...]
    ticks_per_chunk: int
    watch: Callable[[Segment, float, Any, Any], None] | None = None

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The links of the chain, in order."""
        return tuple(segment for stage in self.stages for segment in stage.segments)

    def __call__(self, state: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """Run a chunk, as `Program.run`."""
        first_tick = int(state.tick)
        own = distributed.own_copy((state.hyper, state.key))
        shared = {id(s): distributed.put(own, s.whole) for s in self.segments}
        now, rows = state, []
        for tick in range(first_tick, first_tick + self.ticks_per_chunk):
            now, metrics = self._tick(now, np.int32(tick), shared)
            rows.append(metrics)
        columns = _columns(distributed.own_shares(rows))
        exchange.turns.wait()
        columns = distributed.add_up(columns)
        return now._replace(tick=state.tick + self.ticks_per_chunk), columns

    def _tick(self, state: TrainState, tick: np.int32, shared: dict[int, Any]) -> tuple[TrainState, list[Metrics]]:
        """``shared``: the rates and the key on each segment's devices. Metrics are those of each segment's call."""
        private, fresh, metrics = dict(state.private), Channels(), []
        for stage in self.stages:
            stored = dict(state.channels)
            for round in range(stage.rounds):
                for segment in stage.segments:
                    own, written, more = self._run(segment, private, stored, fresh, shared[id(segment)], tick, round)
                    private |= own
                    fresh |= written
                    metrics.append(more)
                if stage.rounds > 1:  # an edge of age 1 within a cycle is one round old
                    stored |= {c: fresh[c] for s in stage.segments for c in s.written if c in stored}
        return state._replace(private=private, channels={c: fresh[c] for c in state.channels}), metrics

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
        own = {f.name: private[f.name] for f in segment.fragments}
        inputs = [
            {c: given[c] for c in names} | exchange.move({c: given[c] for c in moved}, moved)
            for given, names, moved in zip((stored, fresh), (segment.stored, segment.fresh), segment.moved, strict=True)
        ]
        called_s = time.perf_counter()
        if segment.joint:
            exchange.turns.wait()
        out = segment.step(own, *inputs, *shared, tick, np.int32(round))
        if segment.joint:
            exchange.turns.began(out[1:])
        if self.watch is not None:
            self.watch(segment, called_s, inputs, out[1:])
        return out


class ChainParts(NamedTuple):
    """A chain before it is compiled, with the other functions of a `jaxrl_fast.graph.program.Program`: ``init``,
    ``run``, ``ready``, ``compile_run`` and ``place`` mean the same there."""

    init: InitState
    run: Chain
    ready: CompileAhead
    compile_run: CompileRun
    place: PlaceState


def make_chain(graph: Graph, home: dict[str, Mesh], ticks_per_chunk: int, num_seeds: int) -> ChainParts:
    """The chain of a graph whose fragments have their devices in ``home``."""
    layout = state_layout(graph, home, num_seeds)
    if not distributed.is_alone():
        alike: Any = distributed.everywhere()
        layout = layout._replace(hyper=alike, tick=alike, key=alike)
    stages = make_stages(graph, home, num_seeds)
    init_jit = Jit("init", init_seeds(graph, num_seeds), options=starting_options())
    first = init_jit.jitted()
    axes, writer = channel_axes(graph), {c: f.name for f in graph.fragments for c in f.writes}

    def place(state: TrainState) -> TrainState:
        return distributed.put(state, layout)

    def compile_run(keys: jax.Array, hyper: Any) -> Chain:
        state = jax.eval_shape(first, keys, hyper)
        pool = ThreadPoolExecutor()
        fresh: Channels = {}
        steps: dict[int, Any] = {}
        prepared: list[Any] = []
        for segment in (s for stage in stages for s in stage.segments):
            if segment.host:
                publish = segment.fragments[0].publish
                assert publish is not None  # `placements.check` has seen to it
                fresh |= jax.eval_shape(over_seeds(publish, num_seeds, (0,), 0), state.private[segment.name])
                continue
            arguments = _arguments(segment, state, fresh)
            for channels, moved in zip(arguments[1:3], segment.moved, strict=True):
                come = {c: lay(home[writer[c]], axes[c], num_seeds) for c in moved}
                prepared.append(pool.submit(exchange.compile_move, {c: channels[c] for c in moved}, come, moved))
            if not segment.here:
                fresh |= jax.tree.map(_shape, segment.step(*arguments)[1])
                continue
            traced = segment.step.trace(*arguments)
            fresh |= jax.tree.map(_shape, traced.out_info[1])
            steps[id(segment)] = pool.submit(_compile, traced)
        pool.shutdown(wait=False)

        def compiled(segment: Segment) -> Segment:
            return segment._replace(step=steps[id(segment)].result()) if id(segment) in steps else segment

        moving = [devices.result() for devices in prepared]
        distributed.connect([*(s.devices for stage in stages for s in stage.segments), *moving])
        done = tuple(stage._replace(segments=tuple(map(compiled, stage.segments))) for stage in stages)
        return Chain(done, ticks_per_chunk)

    def ready(keys: jax.Array, hyper: Any, store: Store | None = None) -> tuple[InitState, Chain]:
        found = None if store is None else _ready_from(store, stages, init_jit, keys, hyper)
        if found is not None:
            first_state, own_stages = found
            return lambda keys, hyper: place(first_state(keys, hyper)), Chain(own_stages, ticks_per_chunk)
        jax.eval_shape(first, keys, hyper)  # kept by JAX: else both threads would trace it at once
        pool = ThreadPoolExecutor(1)
        init = pool.submit(lambda: first.lower(keys, hyper).compile())
        pool.shutdown(wait=False)
        run = compile_run(keys, hyper)
        return lambda keys, hyper: place(init.result()(keys, hyper)), run

    run, anywhere = Chain(stages, ticks_per_chunk), init_jit.anywhere()
    return ChainParts(lambda keys, hyper: place(anywhere(keys, hyper)), run, ready, compile_run, place)


def _ready_from(
    store: Store, stages: tuple[Stage, ...], init: Jit, keys: jax.Array, hyper: Any
) -> tuple[InitState, tuple[Stage, ...]] | None:
    """The first state's program, and stages of compiled segments, in a single process; traced only where they are not
    in the ``store``, which then gets them. None with a segment on the host, or one that cannot be kept."""
    segments = [segment for stage in stages for segment in stage.segments]
    if any(segment.host for segment in segments):
        return None
    jits = [*(segment.jit for segment in segments if segment.jit is not None), init]
    programs = kept.compile_kept(store, jits, lambda: _trace(segments, init, keys, hyper))
    if programs is None:
        return None
    *programs, first_state = programs
    steps = dict(zip(map(id, segments), programs, strict=True))
    done = [stage._replace(segments=tuple(s._replace(step=steps[id(s)]) for s in stage.segments)) for stage in stages]
    return first_state, tuple(done)


def _trace(segments: Sequence[Segment], init: Jit, keys: jax.Array, hyper: Any) -> Iterator[kept.Traced]:
    """The programs of all segments, none of which is on the host, and, last, that of the first state."""
    state, fresh = jax.eval_shape(init.jitted(), keys, hyper), Channels()
    for segment in segments:
        assert segment.jit is not None
        traced = kept.trace(segment.jit, *_arguments(segment, state, fresh))
        fresh |= traced.out_shapes[1]
        yield traced
    yield kept.trace(init, keys, hyper)


def _shape(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _compile(traced: Any) -> jax.stages.Compiled:
    return traced.lower().compile()


def _arguments(segment: Segment, state: TrainState, fresh: Channels) -> tuple:
    private = {f.name: state.private[f.name] for f in segment.fragments}
    stored = {c: state.channels[c] for c in (*segment.stored, *segment.moved[0])}
    given = {c: fresh[c] for c in (*segment.fresh, *segment.moved[1])}
    return private, stored, given, state.hyper, state.key, state.tick, jax.ShapeDtypeStruct((), np.int32)


def _columns(rows: list[list[Metrics]]) -> dict[str, np.ndarray]:
    """Metrics ``[S, ticks]`` from what the segments gave in each tick; what a cycle gave in each round is added up."""
    ticks = []
    for row in rows:
        total: dict[str, Any] = {}
        for metrics in row:
            total |= {name: total[name] + value if name in total else value for name, value in metrics.items()}
        ticks.append(total)
    return {name: np.stack([np.atleast_1d(total[name]) for total in ticks], axis=1) for name in ticks[0]}
