"""Placements contain every fragment once; a chunk is compiled once and reuses the memory of its
state.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from jaxrl_fast.algorithms.ppo import ppo
from jaxrl_fast.assembly import build_graph
from jaxrl_fast.runtime import graph as graphs
from jaxrl_fast.runtime import placements
from jaxrl_fast.runtime import program as programs
from jaxrl_fast.runtime.graph import Fragment, Graph, GraphError
from jaxrl_fast.runtime.placements import Group, Placement

DEVICE = jax.devices()[0]


def small_ppo():
    return ppo(
        rollout_length=4, num_epochs=1, num_minibatches=2, policy_hidden=(8,), value_hidden=(8,)
    )


def counter(name: str, **options) -> Fragment:
    def step(private, inputs, hyper, key):
        return private + 1, {}, {"count": private + 1}

    return Fragment(name, lambda key: jnp.zeros((), jnp.int32), step, (), (), **options)


@pytest.mark.parametrize(
    ("placed", "message"),
    [
        ((("a",),), "leaves fragment 'b' out"),
        ((("a", "b"), ("a",)), "places fragment 'a' twice"),
        ((("a", "b", "c"),), "places fragment 'c', which the graph does not have"),
    ],
)
def test_a_placement_that_does_not_hold_every_fragment_once_is_refused(placed, message):
    graph = Graph((counter("a"), counter("b")))
    groups = tuple(Group(names, (DEVICE,)) for names in placed)
    with pytest.raises(GraphError, match=f"placement 'mine' {message}"):
        programs.compile(graph, Placement("mine", groups), 1)


def test_fused_holds_the_whole_graph_on_the_first_device():
    graph = Graph((counter("a"), counter("b")))
    assert placements.fused(graph, jax.devices()).groups == (Group(("a", "b"), (DEVICE,)),)


def test_sharded_sampling_divides_the_sampler_alone_and_serves_a_graph_without_one():
    devices = jax.devices()[:2]
    graph = Graph((counter("sample", tags=(placements.SAMPLING,)), counter("b")))
    groups = placements.sharded_sampling(graph, devices).groups
    assert groups == (Group(("sample",), tuple(devices)), Group(("b",), (DEVICE,)))
    assert placements.sharded_sampling(Graph((counter("b"),)), devices).groups == (
        Group(("b",), (DEVICE,)),
    )


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_resting_fragment_is_skipped_and_not_computed_and_thrown_away(seeds):
    graph = Graph((counter("a", every=2),))
    program = programs.compile(graph, placements.fused(graph, [DEVICE]), 4, seeds)
    state = program.init(jax.random.split(jax.random.key(0), seeds), {})
    assert " cond[" in str(program.run.trace(state).jaxpr)
    state, metrics = program.run(state)
    np.testing.assert_array_equal(metrics["a/count"], [[1, 0, 2, 0]] * seeds)
    assert state.tick == 4


@pytest.fixture(scope="module")
def program():
    graph, _ = build_graph(tiny.line(discrete=True), small_ppo())
    return graph, programs.compile(graph, placements.fused(graph, jax.devices()), 3, 2)


def test_a_chunk_equals_its_ticks_for_every_seed(program):
    graph, program = program
    keys = jax.random.split(jax.random.key(0), 2)
    hyper = small_ppo().hyper
    state, metrics = program.run(program.init(keys, hyper))
    tick = jax.jit(lambda s: graphs.tick(graph, s))
    for seed in range(2):
        one = jax.jit(lambda key: graphs.init(graph, key, hyper))(keys[seed])
        for t in range(3):
            one, own = tick(one)
            np.testing.assert_allclose(
                metrics["learn/actor/policy_loss"][seed, t],
                own["learn/actor/policy_loss"],
                atol=1e-5,
            )
        for got, want in zip(
            jax.tree.leaves(state.private), jax.tree.leaves(one.private), strict=True
        ):
            np.testing.assert_allclose(got[seed], want, atol=1e-5)


def test_chunks_compile_once_donate_their_state_and_do_not_grow_memory(program):
    _, program = program
    state = program.init(jax.random.split(jax.random.key(0), 2), small_ppo().hyper)
    sizes = []
    for _ in range(30):
        old, (state, metrics) = state, program.run(state)
        jax.block_until_ready(metrics)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(old))
        del old
        sizes.append((len(jax.live_arrays()), sum(x.nbytes for x in jax.live_arrays())))
    assert program.run._cache_size() == 1
    assert len(set(sizes[2:])) == 1
    assert {leaf.device for leaf in jax.tree.leaves(state)} == {DEVICE}
