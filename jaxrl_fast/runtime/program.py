"""Programs: a graph under a placement, compiled.

Only this module, `placements`, `layout`, `xla_options` and `chain` depend on devices. A placement
of one group becomes one program that scans over the ticks of a chunk. Several groups, or a host
fragment, become a chain of programs.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from jaxrl_fast.core import Metrics
from jaxrl_fast.runtime import hosts, placements, program_store, transfer
from jaxrl_fast.runtime.chain import make_chain
from jaxrl_fast.runtime.graph import Graph, TrainState, check_graph
from jaxrl_fast.runtime.layout import (
    SEED_AXES,
    CompileAhead,
    CompileRun,
    InitState,
    PlaceState,
    RunChunk,
    homes,
    init_seeds,
    over_seeds,
    scan_ticks,
    state_layout,
)
from jaxrl_fast.runtime.placements import Placement
from jaxrl_fast.runtime.program_store import Jit, Store, Traced
from jaxrl_fast.runtime.xla_options import compiler_options, starting_options


class Program(NamedTuple):
    """A graph that is ready to run.

    Leaves of a state have a leading axis ``[S, ...]`` (but the tick) if there are several seeds.
    With one seed, an axis of length 1 makes XLA copy arrays that it can otherwise update in place.

    Attributes:
        init: Makes the initial state.
        run: Trains a chunk, compiled once.
        ready: Compiles both ahead of time.
        compile_run: Compiles ``run`` alone, for devices that need not exist here.
        place: Transfers a state to the devices where ``run`` requires it.
        ticks_per_chunk: Ticks of a chunk.
    """

    init: InitState
    run: RunChunk
    ready: CompileAhead
    compile_run: CompileRun
    place: PlaceState
    ticks_per_chunk: int


def compile(
    graph: Graph, placement: Placement, ticks: int, num_seeds: int = 1, axes: Any = SEED_AXES
) -> Program:
    """Build the program of a graph.

    Args:
        graph: Graph.
        placement: Placement of its fragments.
        ticks: Ticks of a chunk.
        num_seeds: Number of seeds.
        axes: `SEED_AXES`, or `OWN_TICKS` for several seeds in one program.

    Returns:
        The program.

    Raises:
        GraphError: The graph cannot run, or the placement does not support it.
    """
    check_graph(graph)
    placements.check_placed(graph, placement, num_seeds)
    graph, home = placements.divided(graph, placement), homes(placement, num_seeds)
    if len(placement.groups) == 1 and not any(f.host for f in graph.fragments):
        return _one_program(graph, placement, home, ticks, num_seeds, axes)
    chain = make_chain(graph, home, ticks, num_seeds)
    return Program(
        init=chain.init,
        run=chain.run,
        ready=chain.ready,
        compile_run=chain.compile_run,
        place=chain.place,
        ticks_per_chunk=ticks,
    )


def with_seed_axis(state: TrainState, num_seeds: int) -> TrainState:
    """Return a state with the leading axis ``[S, ...]``, which a single seed's state lacks.

    Args:
        state: State of a program.
        num_seeds: Number of seeds.

    Returns:
        The state with the axis in all leaves but the tick.
    """
    if num_seeds > 1:
        return state
    with_axis = (lambda x: x[None]) if hosts.is_alone() else transfer.with_axis
    return jax.tree.map(with_axis, state)._replace(tick=state.tick)


def by_agents(home: dict[str, Mesh]) -> AbstractContextManager[Any]:
    """Set the device mesh over which agents are sharded, for code traced in this context
    (`core.on_every_device`).

    Args:
        home: Device meshes by fragment.

    Returns:
        A context manager.
    """
    mesh = next(iter(home.values()))
    return jax.sharding.use_abstract_mesh(mesh.abstract_mesh) if mesh.size > 1 else nullcontext()


def _one_program(
    graph: Graph,
    placement: Placement,
    home: dict[str, Mesh],
    ticks_per_chunk: int,
    num_seeds: int,
    axes_of: TrainState,
) -> Program:
    layout = state_layout(graph, home, num_seeds, axes_of)

    def one_seed(state: TrainState) -> tuple[TrainState, Metrics]:
        with nullcontext() if placement.divides == "batch" else by_agents(home):
            return scan_ticks(graph, state, ticks_per_chunk)

    def chunk(state: TrainState) -> tuple[TrainState, Metrics]:
        state, metrics = over_seeds(one_seed, num_seeds, (axes_of,), (axes_of, 0))(state)
        return state, {
            name: value.reshape(num_seeds, ticks_per_chunk) for name, value in metrics.items()
        }

    options = compiler_options(home[graph.fragments[0].name], products=graph.products)
    init_jit = Jit(
        "init",
        init_seeds(graph, num_seeds, axes_of),
        out_shardings=layout,
        options=starting_options(),
    )
    run_jit = Jit("chunk", chunk, (0,), (layout,), (layout, layout.key), options)
    init, run = init_jit.jitted(), run_jit.jitted()

    def compile_run(keys: jax.Array, hyper: Any) -> RunChunk:
        return run.lower(jax.eval_shape(init, keys, hyper)).compile()

    def ready(
        keys: jax.Array, hyper: Any, store: Store | None = None
    ) -> tuple[InitState, RunChunk]:
        programs = (
            None if store is None else _ready_from(store, init, init_jit, run_jit, keys, hyper)
        )
        if programs is not None:
            return programs
        jax.eval_shape(init, keys, hyper)  # cached by JAX, otherwise both threads trace it
        pool = ThreadPoolExecutor(1)
        first = pool.submit(lambda: init.lower(keys, hyper).compile())
        pool.shutdown(wait=False)
        compiled = compile_run(keys, hyper)
        return first.result(), compiled

    anywhere = init_jit.anywhere()
    return Program(
        anywhere, run, ready, compile_run, lambda state: hosts.put(state, layout), ticks_per_chunk
    )


def _ready_from(
    store: Store, init: Any, init_jit: Jit, run_jit: Jit, keys: jax.Array, hyper: Any
) -> tuple[InitState, RunChunk] | None:
    def trace() -> Iterator[Traced]:  # the program with the longest compilation is first
        yield program_store.trace(run_jit, jax.eval_shape(init, keys, hyper))
        yield program_store.trace(init_jit, keys, hyper)

    programs = program_store.compile_stored(store, (run_jit, init_jit), trace)
    return None if programs is None else (programs[1], programs[0])
