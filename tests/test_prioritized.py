"""Prioritized replay: the sampled windows, their frequencies and weights, and the priorities that
updates return.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxrl_fast as jf
from jaxrl_fast.assembly import build_graph
from jaxrl_fast.core import Batches, Transition
from jaxrl_fast.learning.feedback import (
    Feedback,
    Places,
    add_feedback,
    empty_feedback,
    make_feedback,
)
from jaxrl_fast.learning.run_graph import GraphOptions
from jaxrl_fast.replay.buffers import Window, ring_buffer
from jaxrl_fast.replay.prioritized import (
    SMALLEST,
    Priorities,
    add_priorities,
    choose_windows,
    descend,
    init_priorities,
    prioritized_source,
    sum_tree,
    update_priorities,
)
from jaxrl_fast.runtime.graph import init, tick

G, SLOTS, ENVS = 2, 6, 3
CHOOSE = jax.jit(choose_windows, static_argnums=(4, 6))
UPDATE = jax.jit(update_priorities, static_argnums=(3, 4))
ADD = jax.jit(add_priorities, static_argnums=(2, 3))


def priorities_of(weight, largest=1.0) -> Priorities:
    return Priorities(jnp.asarray(weight, jnp.float32), jnp.full(G, largest, jnp.float32))


@settings(max_examples=40, deadline=None)
@given(
    weight=st.lists(
        st.sampled_from([0.0, 1e-6, 0.1, 1.0, 3.0, 1e4]), min_size=1, max_size=13
    ).filter(any),
    share=st.sampled_from(
        [0.0, 1e-7, 0.25, 0.5, 0.999, float(np.float32(1.0) - np.float32(2.0**-24))]
    ),
)
def test_a_descent_ends_where_the_running_sum_passes_the_share(weight, share):
    levels = [level[0] for level in sum_tree(jnp.asarray([weight], jnp.float32))]
    (leaf,) = np.asarray(descend(levels, jnp.asarray([share], jnp.float32)))
    assert weight[leaf] > 0.0
    running = np.cumsum(np.float64(weight))
    before, after = (running[leaf] - weight[leaf]) / running[-1], running[leaf] / running[-1]
    assert before - 1e-6 <= share <= after + 1e-6


@pytest.mark.parametrize("window", [Window(), Window(length=3), Window(length=4, stride=2)])
@pytest.mark.parametrize("steps", [5, 9, 29])
def test_windows_are_sampled_in_proportion_and_weighted_for_it(window: Window, steps: int):
    """Compare with a slow table of all windows that may be sampled."""
    rng = np.random.default_rng(steps)
    slots, capacity_t = SLOTS, SLOTS * window.stride
    state = init_priorities(G, slots, ENVS)
    for step in range(steps):
        state = ADD(state, jnp.int32(step), 1, window)
    weight = np.where(
        np.asarray(state.weight) > 0.0, rng.uniform(0.5, 4.0, state.weight.shape), 0.0
    )
    usable = min(steps, capacity_t)
    table = {}  # (shard, start, env) -> weight
    for start in range(0, steps, window.stride):
        if start >= steps - usable and start + window.length <= steps:
            for g in range(G):
                table |= {
                    (g, start, e): weight[g, start // window.stride % slots, e] for e in range(ENVS)
                }
    number, beta = 20_000, 0.7
    chosen = CHOOSE(
        priorities_of(weight),
        jax.random.key(1),
        jnp.int32(steps),
        jnp.int32(usable),
        number,
        beta,
        window,
    )
    start, env, importance = map(np.asarray, chosen)
    sums = [sum(w for (g, _, _), w in table.items() if g == shard) for shard in range(G)]
    probability = {place: w / sums[place[0]] / G for place, w in table.items()}
    wanted = {place: (p * len(table)) ** -beta for place, p in probability.items()}
    largest = max(wanted.values())
    for place, p in probability.items():
        here = (start[place[0]] == place[1]) & (env[place[0]] == place[2])
        np.testing.assert_allclose(here.sum() / (number * G), p, atol=0.01)
        np.testing.assert_allclose(importance[place[0]][here], wanted[place] / largest, rtol=1e-4)
    everywhere = {(g, s, e) for g in range(G) for s, e in zip(start[g], env[g], strict=True)}
    assert everywhere == set(table)


def test_new_steps_get_the_largest_priority_so_far():
    state = priorities_of(np.zeros((G, SLOTS, ENVS)), largest=1.0)._replace(
        largest=jnp.array([2.0, 5.0])
    )
    state = ADD(state, jnp.int32(4), 3, Window())
    wanted = np.zeros((G, SLOTS, ENVS))
    wanted[:, [4, 5, 0]] = np.array([2.0, 5.0])[:, None, None]
    np.testing.assert_array_equal(state.weight, wanted)


def test_of_duplicates_the_largest_counts_and_what_was_overwritten_or_not_finite_is_passed_over():
    steps, exponent = 10, 0.5  # in the ring: steps 4 to 9
    number = np.array([[5, 5, 4, 11, 0], [10, 8, 8, 7, 6]]) + 0
    env = np.array([[0, 0, 1, 1, 2], [2, 1, 1, 0, 0]])
    priority = np.array([[3.0, 7.0, 9.0, 9.0, 9.0], [0.5, np.nan, 2.0, np.inf, 0.25]], np.float32)
    feedback = Feedback(Places(jnp.asarray(number), jnp.asarray(env)), jnp.asarray(priority))
    before = np.full((G, SLOTS, ENVS), 1.5, np.float32)
    after = UPDATE(priorities_of(before, 2.0), feedback, jnp.int32(steps), exponent, Window())
    wanted = np.float64(before)
    for g in range(G):
        seen: dict = {}
        for n, e, p in zip(number[g], env[g], priority[g], strict=True):
            if steps - SLOTS <= n - 1 < steps and np.isfinite(p):
                seen[(n - 1) % SLOTS, e] = max(p, seen.get(((n - 1) % SLOTS, e), 0.0))
        for (slot, e), p in seen.items():
            wanted[g, slot, e] = (p + SMALLEST) ** exponent
    np.testing.assert_allclose(after.weight, wanted, rtol=1e-6)
    np.testing.assert_allclose(
        after.largest, np.maximum(2.0, [7.0**exponent, 2.0**exponent]), rtol=1e-6
    )


def test_priorities_come_back_to_the_sequences_they_belong_to():
    places = Places(jnp.arange(12).reshape(G, 6) + 1, jnp.zeros((G, 6), jnp.int32))
    indices = jnp.asarray(
        np.random.default_rng(0).permuted(np.tile(np.arange(6), (G, 1)), axis=1).reshape(G, 3, 2)
    )
    indices = indices.swapaxes(0, 1).astype(jnp.int32)  # [K, G, B / G]
    batches = Batches((), indices, places)
    found = jnp.take_along_axis(places.number[None] * 10.0, indices, axis=2).reshape(3, -1)
    whole = make_feedback(batches, found)
    np.testing.assert_array_equal(whole.priority, places.number * 10.0)
    by_round = empty_feedback((G, 6))
    for k in range(3):
        by_round = add_feedback(by_round, batches, indices[k], found[k], jnp.int32(k))
    np.testing.assert_array_equal(by_round.priority, whole.priority)


def small(**options) -> jf.Algorithm:
    sizes = dict(
        rollout_length=2,
        batch_size=8,
        buffer_size=64,
        warmup_steps=16,
        updates_per_tick=3,
        q_hidden=(8,),
    )
    return jf.dqn(
        **dict(priority_exponent=0.6, importance_exponent=jf.Linear(0.4, 1.0)) | sizes | options
    )


@pytest.mark.parametrize(
    "options",
    [
        GraphOptions("all", total_steps=400),
        GraphOptions(learners=2, total_steps=400),
        GraphOptions(learners=2, average="parameters", total_steps=400),
    ],
    ids=["overlap", "gradients", "parameters"],
)
def test_what_learning_finds_reaches_replay_a_tick_later(options: GraphOptions):
    """The weights in replay come from the TD errors of the latest update of each sequence."""
    graph, agent = build_graph(tiny.line(discrete=True), small(), options)
    state = jax.jit(lambda key: init(graph, key, agent.hyper))(jax.random.key(0))
    step = jax.jit(lambda s: tick(graph, s))
    for _ in range(12):
        before, (state, _) = state, step(state)
    feedback = jax.tree.map(
        lambda x: np.asarray(x).reshape(agent.experience.shards, -1), before.channels["priorities"]
    )
    weight = np.asarray(state.private["experience"].priorities.weight)
    slots, taken = weight.shape[1], 0
    for g in range(len(weight)):
        largest: dict = {}
        for n, e, p in zip(
            feedback.places.number[g], feedback.places.env[g], feedback.priority[g], strict=True
        ):
            assert n > 0 and np.isfinite(p)
            largest[n, e] = max(p, largest.get((n, e), 0.0))
        # two steps of this tick overwrite older ones
        newest = int(before.private["experience"].buffer.steps) + 2
        for (n, e), p in largest.items():
            if n - 1 >= newest - slots:
                np.testing.assert_allclose(
                    weight[g, (n - 1) % slots, e], (p + SMALLEST) ** 0.6, rtol=1e-5
                )
                taken += 1
    assert taken > 8


@pytest.mark.parametrize(
    "options",
    [
        GraphOptions(total_steps=400),
        GraphOptions(learners=2, total_steps=400),
        GraphOptions(learners=2, average="parameters", total_steps=400),
    ],
    ids=["one learner", "gradients", "parameters"],
)
def test_the_priority_of_a_sequence_is_the_one_that_its_own_losses_gave(options: GraphOptions):
    """Losses whose value identifies the step; the test reads it at the sequence's place in the
    buffer.
    """
    algorithm = small(normalize_observations=False)

    def build(spec, num_envs):
        agent = algorithm.build(spec, num_envs)
        critic = agent.parts["critic"]

        def gradients(own, peers, batch, key, hyper):
            return critic.gradients(own, peers, batch, key, hyper)._replace(
                priorities=10.0 + batch.obs[0, :, 0]
            )

        return agent._replace(parts={"critic": critic._replace(gradients=gradients)})

    graph, agent = build_graph(tiny.line(discrete=True), algorithm._replace(build=build), options)
    state = jax.jit(lambda key: init(graph, key, agent.hyper))(jax.random.key(0))
    step = jax.jit(lambda s: tick(graph, s)[0])
    for _ in range(12):
        state = step(state)
    feedback = jax.tree.map(
        lambda x: x.reshape(agent.experience.shards, -1), state.channels["priorities"]
    )
    buffer = ring_buffer(capacity=64, num_envs=4, batch_size=8, window=Window())
    stored = state.private["experience"].buffer
    windows = jax.jit(buffer.windows)(stored, feedback.places.number - 1, feedback.places.env)
    named = np.asarray(windows.steps.obs[:, :, 0, 0])
    assert len(np.unique(named)) > 10
    np.testing.assert_allclose(feedback.priority, 10.0 + named, rtol=1e-6)


def test_without_an_exponent_nothing_changes():
    graph, _ = build_graph(
        tiny.line(discrete=True), small(priority_exponent=0.0), GraphOptions(total_steps=400)
    )
    assert "priorities" not in {c for f in graph.fragments for c in f.writes}


def test_the_transition_is_what_a_place_names():
    """A sampled window equals the steps at its place."""
    buffer = ring_buffer(capacity=32, num_envs=4, batch_size=4, window=Window())
    source = prioritized_source(
        buffer, 16, small().build(tiny.line(discrete=True).spec, 4).data.prioritize
    )
    t, e = np.meshgrid(np.arange(5), np.arange(4), indexing="ij")
    no = jnp.zeros((5, 4), bool)
    named = jnp.asarray(np.stack([t, e], -1), jnp.int32)
    rollout = Transition(named, named[..., 0], jnp.zeros((5, 4)), named, no, no, no, ())
    state = jax.jit(lambda rollout: source.add(source.init(rollout), rollout))(rollout)
    sampled, weight, places = jax.jit(source.sample)(
        state, jax.random.key(0), small(importance_exponent=0.4).hyper
    )
    np.testing.assert_array_equal(sampled.steps.obs[:, :, 0, 0], places.number - 1)
    per_shard = 4 // buffer.shards
    np.testing.assert_array_equal(
        sampled.steps.obs[:, :, 0, 1], places.env + per_shard * np.arange(buffer.shards)[:, None]
    )
    np.testing.assert_array_equal(weight, np.ones_like(weight))
