"""The train step as a whole: the effects of overlap, warm-up, seeds, hyper-parameters, refusals."""

import itertools
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from jaxrl_fast.algorithms.ppo import ppo
from jaxrl_fast.algorithms.sac import sac
from jaxrl_fast.assembly import build_graph
from jaxrl_fast.core import Transition
from jaxrl_fast.learning.run_graph import GraphOptions
from jaxrl_fast.numerics.optimizers import Linear
from jaxrl_fast.runtime import graph as graphs

KEY = jax.random.key(0)


def small_ppo(**options):
    defaults = dict(
        rollout_length=4,
        num_epochs=2,
        num_minibatches=2,
        policy_hidden=(4,),
        value_hidden=(4,),
        learning_rate=0.02,
    )
    return ppo(**defaults | options)


def small_sac(**options):
    defaults = dict(
        rollout_length=1,
        updates_per_tick=2,
        batch_size=4,
        buffer_size=40,
        warmup_steps=12,
        policy_hidden=(4,),
        critic_hidden=(4,),
        learning_rate=0.02,
    )
    return sac(**defaults | options)


@cache
def train_step(name: str, overlap: str = "none"):
    """``(graph, init, jitted tick)``, built once for all tests."""
    algorithm = {"ppo": small_ppo, "sac": small_sac}[name]()
    graph, _ = build_graph(
        tiny.line(discrete=name == "ppo"), algorithm, GraphOptions(overlap=overlap)
    )
    init = jax.jit(lambda key, hyper: graphs.init(graph, key, hyper))
    tick = jax.jit(lambda state: graphs.tick(graph, state))
    return graph, lambda key=KEY, hyper=algorithm.hyper: init(key, hyper), tick


def run(state, tick, ticks: int):
    """Return the state after each tick, and the metrics of each tick."""
    states, metrics = [state], []
    for _ in range(ticks):
        state, own = tick(state)
        states.append(state)
        metrics.append(own)
    return states, metrics


def learners(state):
    return {name: private for name, private in state.private.items() if name.startswith("learn")}


def assert_close(got, want, atol=1e-5):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, atol=atol)


def moved(before, after) -> bool:
    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    return any(not np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    ("name", "overlap"),
    [
        ("ppo", "none"),
        ("ppo", "sampling"),
        ("ppo", "actor_critic"),
        ("sac", "none"),
        ("sac", "all"),
    ],
)
def test_every_overlap_builds_learns_and_stays_finite(name, overlap):
    _, init, tick = train_step(name, overlap)
    states, metrics = run(init(), tick, 5)
    assert moved(learners(states[0]), learners(states[-1]))
    for leaf in jax.tree.leaves((learners(states[-1]), metrics[-1])):
        assert np.isfinite(leaf).all()


def test_actor_and_critic_of_ppo_learn_the_same_side_by_side_as_in_turns():
    _, init, tick = train_step("ppo")
    _, init_split, tick_split = train_step("ppo", "actor_critic")
    turns, split = init(), init_split()
    for part in ("actor", "critic"):
        # both start alike
        assert not moved(split.private[f"learn_{part}"][part], turns.private["learn"][part])
    turns, split = run(turns, tick, 2)[0][-1], run(split, tick_split, 2)[0][-1]
    for part in ("actor", "critic"):
        assert_close(split.private[f"learn_{part}"][part], turns.private["learn"][part], atol=1e-5)


def test_overlapped_sampling_learns_from_the_batches_of_the_last_tick():
    graph, init, tick = train_step("ppo", "sampling")
    learn = next(f for f in graph.fragments if f.name == "learn")
    states, _ = run(init(), tick, 4)
    # the rollout of tick 0 is not normalized
    assert not moved(learners(states[0]), learners(states[2]))
    step_key = jax.random.fold_in(jax.random.fold_in(states[2].key, 2), graphs.stable_hash("learn"))
    old = {"batches": states[2].channels["batches"]}  # written in tick 1
    private, _, _ = jax.jit(learn.step)(
        states[2].private["learn"], old, states[2].hyper, step_key, states[2].tick
    )
    assert moved(states[2].private["learn"], private)
    assert_close(private, states[3].private["learn"], atol=1e-6)
    assert moved(states[2].channels["batches"].data, states[3].channels["batches"].data)


@pytest.mark.parametrize(("normalized", "first"), [(True, 1), (False, 0)])
def test_nothing_is_learned_from_the_rollout_before_the_statistics(normalized, first):
    algorithm = small_ppo(normalize_observations=normalized, normalize_rewards=False)
    graph, _ = build_graph(tiny.line(discrete=True), algorithm)
    tick = jax.jit(lambda state: graphs.tick(graph, state))
    states, _ = run(jax.jit(lambda: graphs.init(graph, KEY, algorithm.hyper))(), tick, 2)
    changed = [moved(learners(a), learners(b)) for a, b in itertools.pairwise(states)]
    assert changed == [first == 0, True]


@pytest.mark.parametrize("recurrent_size", [0, 4], ids=["feed_forward", "recurrent"])
def test_the_first_update_on_a_rollout_sees_the_policy_that_sampled_it(recurrent_size):
    algorithm = small_ppo(
        num_epochs=1, num_minibatches=1, recurrent_size=recurrent_size, learning_rate=0.1
    )
    graph, _ = build_graph(tiny.line(discrete=True), algorithm)
    tick = jax.jit(lambda state: graphs.tick(graph, state))
    states, metrics = run(jax.jit(lambda: graphs.init(graph, KEY, algorithm.hyper))(), tick, 4)
    assert states[-1].channels["statistics"].obs.mean[1] > 1.0  # observations are normalized
    for own in metrics:
        assert abs(own["learn/actor/approx_kl"]) < 1e-6
        assert own["learn/actor/clip_fraction"] == 0.0
    assert moved(learners(states[-2]), learners(states[-1]))


@pytest.mark.parametrize(("overlap", "first_update"), [("none", 3), ("sampling", 4)])
def test_sac_does_not_learn_before_the_warm_up_is_over_and_does_right_after(overlap, first_update):
    # 12 steps of warm-up, 4 environments, 1 step a tick: updates start in the third tick
    _, init, tick = train_step("sac", overlap)
    states, metrics = run(init(), tick, first_update)
    assert not moved(learners(states[0]), learners(states[-2]))
    assert moved(learners(states[-2]), learners(states[-1]))
    assert metrics[-2]["learn/critic/grad_norm"] == 0.0 < metrics[-1]["learn/critic/grad_norm"]


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_seeds_and_learning_rates_vmapped_equal_separate_runs_and_compile_once(name):
    graph, init, tick = train_step(name)
    algorithm = {"ppo": small_ppo, "sac": small_sac}[name]()
    keys, rates = jax.random.split(KEY, 2), jnp.float32([0.02, 0.001])

    def init_one(key, rate):
        return graphs.init(graph, key, algorithm.hyper._replace(learning_rate=rate))

    together = jax.jit(jax.vmap(init_one))(keys, rates)
    tick_all = jax.jit(jax.vmap(lambda state: graphs.tick(graph, state)))
    together = run(together, tick_all, 4)[0][-1]
    assert tick_all._cache_size() == 1
    for seed in range(2):
        alone = init(keys[seed], algorithm.hyper._replace(learning_rate=rates[seed]))
        alone = run(alone, tick, 4)[0][-1]
        mine = jax.tree.map(lambda leaf, seed=seed: leaf[seed], learners(together))
        assert_close(mine, learners(alone), atol=1e-4)
    assert tick._cache_size() == 1


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_an_eagerly_made_state_can_be_donated(name):
    algorithm = small_ppo() if name == "ppo" else small_sac()
    graph, _ = build_graph(tiny.line(discrete=name == "ppo"), algorithm)
    state = graphs.init(graph, KEY, algorithm.hyper)
    jax.block_until_ready(jax.jit(lambda s: graphs.tick(graph, s), donate_argnums=0)(state))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.private))


def test_a_scheduled_rate_changes_with_progress():
    env = tiny.line(discrete=True)  # 4 environments x 4 steps: 16 steps a tick
    algorithm = small_ppo(learning_rate=Linear(0.02, 0.0))
    graph, _ = build_graph(env, algorithm, GraphOptions(total_steps=64))
    rates = [
        float(graph.hyper_at(algorithm.hyper, jnp.int32(t)).learning_rate) for t in (0, 2, 4, 9)
    ]
    np.testing.assert_allclose(rates, [0.02, 0.01, 0.0, 0.0], atol=1e-8)
    tick = jax.jit(lambda state: graphs.tick(graph, state))
    states, _ = run(jax.jit(lambda: graphs.init(graph, KEY, algorithm.hyper))(), tick, 5)
    params = [state.private["learn"]["actor"].learned.params for state in states]
    assert moved(params[3], params[4])
    assert not moved(params[4], params[5])


def test_rewards_are_normalized_with_or_without_observations():
    env = tiny.line(discrete=True)
    graph, _ = build_graph(env, small_ppo(normalize_observations=False, normalize_rewards=True))
    names = [f.name for f in graph.fragments]
    assert names == ["sample", "statistics", "experience", "learn"]
    statistics = graph.fragments[1]
    private = statistics.init(KEY)
    reward, ended = jnp.float32([[1, 0], [2, 4], [3, 0]]), jnp.array([[0, 0], [1, 0], [0, 0]], bool)
    obs = jnp.zeros((3, 2, 2))
    rollout = Transition(obs, reward, reward, obs, ended, jnp.zeros_like(ended), ended, ())
    hyper = small_ppo(discount=0.5).hyper
    private, outputs, _ = statistics.step(
        private._replace(discounted=jnp.zeros(2)), {"rollout": rollout}, hyper, KEY
    )
    # Discounted returns by hand: 1, 2.5 | 3 (the first ended); 0, 4, 2. Unfinished returns are
    # carried over.
    np.testing.assert_allclose(private.discounted, [3.0, 2.0])
    returns = outputs["statistics"].returns
    np.testing.assert_allclose(returns.variance, np.var([1, 2.5, 3, 0, 4, 2]), rtol=1e-5)
    assert (
        sum(float(jnp.sum(jnp.abs(x))) for x in jax.tree.leaves(outputs["statistics"].obs)) == 0.0
    )


@pytest.mark.parametrize(
    ("discrete", "algorithm", "message"),
    [
        (
            True,
            small_sac(),
            "algo=sac does not work with the discrete actions of line: write algo=sac_discrete",
        ),
        (
            True,
            small_ppo(learning_rate=Linear(1.0, 0.0)),
            "learning_rate of ppo is a schedule: write total_steps",
        ),
        (False, small_sac(batch_size=41), "batch_size=41 is larger than buffer_size=40"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(discrete, algorithm, message):
    with pytest.raises(ValueError, match=message):
        build_graph(tiny.line(discrete=discrete), algorithm)
