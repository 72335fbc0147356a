"""Chains of programs: the order of dispatch, cycles across groups, and devices that work at the
same time.
"""

import ctypes
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_fast.runtime import graph as graphs
from jaxrl_fast.runtime import program as programs
from jaxrl_fast.runtime.chain import Chain, dispatch_order
from jaxrl_fast.runtime.graph import Fragment, Graph, check_graph
from jaxrl_fast.runtime.layout import homes
from jaxrl_fast.runtime.placements import Group, Placement

sys.path.insert(0, str(Path(__file__).parent.parent / "experiments" / "bench"))
import timeline as timelines
from timeline import Span, Timeline, record

CPU = jax.devices()


def box(name: str, reads=(), writes=(), **options) -> Fragment:
    """Add the inputs and a draw from the key."""

    def step(private, inputs, hyper, key):
        private = (
            private + jax.random.uniform(key) + sum((inputs[c] for c in reads), start=jnp.zeros(()))
        )
        return private, dict.fromkeys(writes, private), {"sum": private}

    return Fragment(
        name,
        lambda key: jnp.zeros(()),
        step,
        tuple(reads),
        tuple(writes),
        lambda p: dict.fromkeys(writes, p),
        **options,
    )


def names(graph: Graph, *groups: tuple[str, ...]) -> list[str]:
    """Return the segments in order of dispatch, with each of these groups on one device."""
    placed = Placement("mine", tuple(Group(group, (CPU[i],)) for i, group in enumerate(groups)))
    return [
        " ".join(f.name for f in segment) for segment in dispatch_order(graph, homes(placed, 1))
    ]


SAMPLE, BATCH = box("sample", ["weights"], ["rollout"]), box("experience", ["rollout"], ["batches"])
LEARN = box("learn", ["batches"], ["weights"])
LATE = {("sample", "weights"): 1}


def test_what_waits_for_no_other_group_goes_first():
    graph = Graph((SAMPLE, BATCH, LEARN), LATE)
    assert names(graph, ("sample",), ("experience", "learn")) == ["sample", "experience learn"]
    overlapped = Graph((SAMPLE, BATCH, LEARN), LATE | {("learn", "batches"): 1})
    assert names(overlapped, ("sample",), ("experience", "learn")) == [
        "sample",
        "learn",
        "experience",
    ]
    assert names(overlapped, ("sample", "experience", "learn")) == ["sample experience learn"]


def test_a_segment_ends_where_another_group_waits_for_it():
    actor, critic = box("actor", ["batches"], ["weights"]), box("critic", ["batches"], ["values"])
    graph = Graph((SAMPLE, BATCH, critic, actor), LATE)
    assert names(graph, ("experience", "critic"), ("sample", "actor")) == [
        "sample",
        "experience",
        "critic",
        "actor",
    ]


def test_a_host_fragment_is_called_after_what_does_not_wait_for_it():
    host = SAMPLE._replace(host=True)
    graph = Graph((host, BATCH, LEARN), LATE | {("learn", "batches"): 1})
    assert names(graph, ("sample", "experience", "learn")) == ["learn", "sample", "experience"]
    graph = Graph((host, BATCH, LEARN), LATE)
    assert names(graph, ("sample", "experience", "learn")) == ["sample", "experience learn"]


@pytest.mark.parametrize("rest", [{}, {"start": 2}, {"every": 2}])
def test_a_cycle_computes_the_same_bits_in_one_program_and_across_groups(rest):
    worker = box("worker", ["batches", "weights"], ["found"], rounds=3, **rest)
    server = box("server", ["found"], ["weights"], rounds=3, **rest)
    graph = Graph((SAMPLE, BATCH, worker, server), LATE | {("worker", "weights"): 1})
    ends = []
    for groups in (
        [("sample", "experience", "worker", "server")],
        [("sample", "experience", "worker"), ("server",)],
    ):
        placed = Placement("mine", tuple(Group(group, (CPU[i],)) for i, group in enumerate(groups)))
        program = programs.compile(graph, placed, 5)
        keys = jax.random.split(jax.random.key(0), 1)
        init, run = program.ready(keys, ())
        state, metrics = run(init(keys, ()))
        ends.append(jax.device_get((state.private, state.channels, dict(metrics))))
    jax.tree.map(np.testing.assert_array_equal, *ends)
    assert isinstance(run, Chain)
    assert [(stage.rounds, len(stage.segments)) for stage in run.stages] == [(1, 1), (3, 2)]


def test_within_a_cycle_an_edge_of_age_1_is_one_round_old():
    def step(private, inputs, hyper, key):
        return private + 1, {"count": private + 1}, {"saw": inputs["count"]}

    def reader(private, inputs, hyper, key):
        return private, {}, {"saw": inputs["count"]}

    writer = Fragment(
        "w",
        lambda key: jnp.zeros(()),
        step,
        ("count",),
        ("count",),
        lambda p: {"count": p},
        rounds=3,
    )
    outside = Fragment("r", lambda key: (), reader, ("count",), ())
    graph = Graph((writer, outside), {("w", "count"): 1, ("r", "count"): 1})
    check_graph(graph)
    state = graphs.init(graph, jax.random.key(0), ())
    sums = []
    for _ in range(2):
        state, metrics = jax.jit(lambda s: graphs.tick(graph, s))(state)
        sums.append((float(metrics["w/saw"]), float(metrics["r/saw"])))
    assert sums == [(0 + 1 + 2, 0.0), (3 + 4 + 5, 3.0)]
    with pytest.raises(
        graphs.GraphError,
        match="'r' reads channel 'count' at age 0, which 'w' writes 3 times a tick",
    ):
        check_graph(Graph((writer, outside), {("w", "count"): 1}))


LIMIT_S = 300.0
"""Only a program that waits for one that never begins takes this long."""
HANDLERS: list = []
"""References to functions that only programs call."""


def calling(name: str, reads: tuple, writes: tuple, call) -> Fragment:
    """A program that runs ``call(name)`` in a thread of its device at each tick.

    A callback of JAX would let the dispatch wait for the program, so this is a custom call: a C
    function, which leaves its operand as it was.
    """

    def handle(frame: int) -> None:
        fields = ctypes.cast(frame, ctypes.POINTER(ctypes.c_void_p))
        # XLA asks once for the version of its interface that the function supports: its current one
        if fields[1]:
            extension, api = (
                ctypes.cast(fields[i], ctypes.POINTER(ctypes.c_void_p)) for i in (1, 2)
            )
            ctypes.cast(extension[3], ctypes.POINTER(ctypes.c_void_p))[3] = api[4]
        else:
            call(name)

    target = f"{name}_{len(HANDLERS)}"
    HANDLERS.append(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(handle))
    jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(HANDLERS[-1]), platform="cpu")

    def step(private, inputs, hyper, key):
        x = jax.ffi.ffi_call(target, private, input_output_aliases={0: 0})(private)
        x = jax.lax.fori_loop(
            0, 40, lambda i, x: x @ x / jnp.linalg.norm(x), x + sum(inputs[c] for c in reads)
        )
        return x, dict.fromkeys(writes, x[0, 0]), {}

    return Fragment(
        name,
        lambda key: jnp.ones((40, 40)),
        step,
        reads,
        writes,
        lambda p: dict.fromkeys(writes, p[0, 0]),
    )


def chained(call, ages: dict, ticks: int):
    """Return a chain of two such programs on two devices, each of which reads a result of the
    other, and its state.
    """
    graph = Graph((calling("a", ("y",), ("x",), call), calling("b", ("x",), ("y",), call)), ages)
    placed = Placement(
        "mine", tuple(Group((f.name,), (CPU[i],)) for i, f in enumerate(graph.fragments))
    )
    keys = jax.random.split(jax.random.key(0), 1)
    init, run = programs.compile(graph, placed, ticks).ready(keys, ())
    return run, init(keys, ())


def test_two_devices_work_at_the_same_time_only_where_a_delay_lets_them():
    """With a delay, neither program ends before both run; without, each begins after the end of the
    other.
    """
    together, met, apart = threading.Barrier(2), [], []
    run, state = chained(
        lambda name: met.append(name + str(together.wait(LIMIT_S))),
        {("a", "y"): 1, ("b", "x"): 1},
        4,
    )
    jax.block_until_ready(run(state))
    assert not together.broken and len(met) == 8

    def note(name: str) -> None:
        apart.append(name)
        time.sleep(0.01)  # here the other could begin
        apart.append(name)

    run, state = chained(note, {("a", "y"): 1}, 4)
    jax.block_until_ready(run(state))
    assert "".join(apart) == "aabb" * 4


def test_a_timeline_shows_that_two_devices_worked_together(monkeypatch):
    """No program ends before the timeline has noted that both have begun."""
    notes, calls, held, noted = Counter(), Counter(), [], threading.Condition()

    def clock() -> float:
        with noted:
            notes[threading.get_ident()] += threading.current_thread().name.startswith("timeline")
            noted.notify_all()
        return time.perf_counter()

    def hold(name: str) -> None:
        with noted:
            calls[name] += 1  # a timeline has two notes of each call: of its begin and its end
            limit_s, number = LIMIT_S if all(held) else 0.0, 2 * calls[name] - 2
            held.append(
                noted.wait_for(
                    lambda: sum(count > number for count in notes.values()) == 2, limit_s
                )
            )

    monkeypatch.setattr(timelines, "time", SimpleNamespace(perf_counter=clock))
    _, timeline = record(*chained(hold, {("a", "y"): 1, ("b", "x"): 1}, 4))
    assert held == [True] * 8
    assert [(span.segment, span.devices) for span in timeline.spans] == [
        ("a", (str(CPU[0]),)),
        ("b", (str(CPU[1]),)),
    ] * 4
    for a, b in zip(timeline.spans[::2], timeline.spans[1::2], strict=True):
        assert max(a.start_s, b.start_s) < min(a.end_s, b.end_s)
    assert timeline.together_share() > 0
    assert set(timeline.idle_share()) == {str(CPU[0]), str(CPU[1])}
    assert 0 < timeline.dispatch_s <= timeline.wall_s


def test_shares_of_a_timeline_by_hand():
    spans = [
        Span("a", ("0",), 0.0, 4.0),
        Span("b", ("1",), 2.0, 6.0),
        Span("a", ("0", "1"), 7.0, 8.0),
    ]
    timeline = Timeline(spans, 2, 10.0, 1.0)
    assert timeline.idle_share() == {"0": pytest.approx(0.5), "1": pytest.approx(0.5)}
    assert timeline.together_share() == pytest.approx(0.3)
