"""The graph: refused graphs, the values of a delay, the ticks in which fragments step, and the keys
of fragments.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_fast.runtime import graph as graphs
from jaxrl_fast.runtime.graph import Fragment, Graph, GraphError, check_graph

KEY = jax.random.key(7)


def box(name, reads=(), writes=(), *, publish=True, **options) -> Fragment:
    """Counts its steps; writes the count; reports its inputs, its count and a draw from its key."""

    def step(private, inputs, hyper, key):
        private = private + 1
        metrics = {f"saw_{c}": inputs[c] for c in reads} | {
            "count": private,
            "draw": jax.random.uniform(key),
        }
        return private, dict.fromkeys(writes, private), metrics

    first = (lambda private: dict.fromkeys(writes, private)) if publish and writes else None
    return Fragment(
        name,
        lambda key: jnp.zeros((), jnp.int32),
        step,
        tuple(reads),
        tuple(writes),
        first,
        **options,
    )


def run(graph: Graph, ticks: int) -> dict[str, np.ndarray]:
    check_graph(graph)
    state = graphs.init(graph, KEY, {"rate": 1.0})
    _, metrics = jax.jit(
        lambda s: jax.lax.scan(lambda s, _: graphs.tick(graph, s), s, length=ticks)
    )(state)
    return {name: np.asarray(values) for name, values in metrics.items()}


@pytest.mark.parametrize(
    ("fragments", "delays", "message"),
    [
        (
            (box("a", writes=["x"]), box("b", writes=["x"])),
            {},
            "channel 'x' has two writers, fragments 'a' and 'b'",
        ),
        ((box("a", reads=["x"]),), {}, "fragment 'a' reads channel 'x', which no fragment writes"),
        ((box("a"), box("a")), {}, "two fragments are named 'a'"),
        (
            (box("a", ["y"], ["x"]), box("b", ["x"], ["y"])),
            {},
            "'a' reads channel 'y' at age 0.*'b'.*cycle of age 0",
        ),
        ((box("a", ["x"], ["x"]),), {}, "'a' reads channel 'x' at age 0.*cycle of age 0"),
        (
            (box("a", writes=["x"]), box("b")),
            {("b", "x"): 1},
            "fragment 'b' does not read channel 'x'",
        ),
        (
            (box("a", writes=["x"]), box("b", ["x"])),
            {("b", "x"): 2},
            r"\('b', 'x'\) is 2: an edge's age is 0 or 1",
        ),
        (
            (box("a", reads=["x"]), box("b", writes=["x"], publish=False)),
            {("a", "x"): 1},
            "'a' reads channel 'x' in the first tick.*'b'.*publish",
        ),
    ],
)
def test_a_graph_without_meaning_is_refused_by_name(fragments, delays, message):
    with pytest.raises(GraphError, match=message):
        check_graph(Graph(fragments, delays))


def test_an_edge_carries_this_tick_or_the_last_one():
    graph = Graph(
        (box("w", writes=["x"]), box("now", ["x"]), box("late", ["x"])), {("late", "x"): 1}
    )
    metrics = run(graph, 4)
    assert metrics["now/saw_x"].tolist() == [1, 2, 3, 4]
    assert metrics["late/saw_x"].tolist() == [0, 1, 2, 3]


def test_a_delay_breaks_a_cycle():
    metrics = run(Graph((box("a", ["y"], ["x"]), box("b", ["x"], ["y"])), {("a", "y"): 1}), 3)
    assert metrics["a/saw_y"].tolist() == [0, 1, 2]
    assert metrics["b/saw_x"].tolist() == [1, 2, 3]


def test_a_channel_that_nobody_published_is_zero_before_its_first_tick():
    metrics = run(
        Graph((box("w", writes=["x"], publish=False), box("r", ["x"])), {("r", "x"): 1}), 2
    )
    assert metrics["r/saw_x"].tolist() == [0, 1]


def test_fragments_step_from_start_every_so_often_and_rest_in_between():
    fragments = box("w", writes=["x"], start=4, every=3), box("r", ["x"])
    metrics = run(Graph(fragments), 9)
    # metrics are zero in a tick without a step
    assert metrics["w/count"].tolist() == [
        0,
        0,
        0,
        0,
        1,
        0,
        0,
        2,
        0,
    ]
    # its channel retains its value
    assert metrics["r/saw_x"].tolist() == [
        0,
        0,
        0,
        0,
        1,
        1,
        1,
        2,
        2,
    ]
    counted = [graphs.active_ticks(fragments[0], 0, n) for n in range(10)]
    assert counted == [0, 0, 0, 0, 0, 1, 1, 1, 2, 2]
    assert graphs.active_ticks(fragments[0], 3, 6) == 1


def test_a_delay_on_a_resting_writer_still_carries_its_last_value():
    graph = Graph((box("w", writes=["x"], every=2), box("r", ["x"])), {("r", "x"): 1})
    assert run(graph, 5)["r/saw_x"].tolist() == [0, 1, 1, 2, 2]


def test_keys_depend_on_the_name_and_the_tick_and_not_on_the_other_fragments():
    alone = run(Graph((box("a"),)), 3)["a/draw"]
    together = run(Graph((box("z"), box("a"), box("b"))), 3)
    np.testing.assert_array_equal(alone, together["a/draw"])
    draws = np.concatenate([together[f"{name}/draw"] for name in "zab"])
    assert len(set(draws.tolist())) == 9


def test_rates_are_given_as_values_of_the_tick():
    def step(private, inputs, hyper, key):
        return private, {}, {"rate": hyper["rate"]}

    fragment = Fragment("f", lambda key: (), step, (), ())
    graph = Graph((fragment,), {}, lambda hyper, tick: {"rate": hyper["rate"] * tick})
    assert run(graph, 3)["f/rate"].tolist() == [0.0, 1.0, 2.0]


def test_a_name_has_the_same_hash_in_every_process():
    assert graphs.stable_hash("learn") == 1745787996


def test_an_eagerly_made_state_can_be_donated_even_if_its_parts_share_arrays():
    shared = jnp.ones(3)
    fragment = box("w", writes=["x"])._replace(init=lambda key: {"obs": shared, "state": shared})
    fragment = fragment._replace(
        step=lambda private, inputs, hyper, key: (private, {"x": private["obs"]}, {}),
        publish=lambda private: {"x": private["obs"]},
    )
    graph = Graph((fragment, box("r", ["x"])), {("r", "x"): 1})
    state = graphs.init(graph, KEY, {"rate": jnp.float32(1.0)})
    jax.block_until_ready(jax.jit(lambda s: graphs.tick(graph, s), donate_argnums=0)(state))
    assert not shared.is_deleted()
    assert not KEY.is_deleted()
