"""Numbers that are not finite: detected and reported in the tick in which they arise, or left out
and counted.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tiny import OBS, line

import jaxrl_fast as jf
from jaxrl_fast.assembly import build_graph
from jaxrl_fast.core import Batches
from jaxrl_fast.learning.acting import BoundAgent
from jaxrl_fast.learning.algorithm import GradientResult, Part
from jaxrl_fast.learning.minibatches import Experience, take_batch
from jaxrl_fast.learning.updates import (
    Learning,
    OnNan,
    all_finite,
    init_part,
    learn_fragment,
    update,
)
from jaxrl_fast.networks.network import scalar
from jaxrl_fast.runtime.graph import Fragment, init
from jaxrl_fast.training.find_nan import find_operation

SHORT = {"rollout_length": 2, "num_minibatches": 1, "num_epochs": 1}


def tiny_ppo(**options) -> jf.Algorithm:
    return jf.ppo(**{"rollout_length": 8, "policy_hidden": (8,), "value_hidden": (8,), **options})


def adding(metric_of=lambda new: jnp.sum(new)) -> Part:
    """Add the batch to the parameters."""

    def gradients(own, peers, batch, key, hyper):
        return GradientResult(
            {"x": -batch[0, 0]}, {"loss": metric_of(own.params["x"] + batch[0, 0])}
        )

    network = scalar(lambda: jnp.zeros(2))
    return Part({"x": network}, gradients, {"x": lambda hyper: optax.sgd(1.0)})


def learning(part: Part, nan: OnNan = "stop") -> Fragment:
    """Build the fragment that trains it."""
    sizes = dict(
        rollout_length=1, updates_per_tick=3, batch_size=1, batch_sequences=1, warmup_ticks=0
    )
    experience = Experience(lambda example: (), lambda *args: ((), None), take_batch, 1)
    agent = BoundAgent(
        {"part": part},
        None,
        experience,
        (),
        normalize_observations=False,
        normalize_rewards=False,
        **sizes,
    )
    return learn_fragment(Learning(agent, nan=nan))


def batches(*values: float) -> Batches:
    """Make one update per value, each of one sequence."""
    data = jnp.array(values, jnp.float32)[None, :, None, None] * jnp.ones((1, 1, 1, 2))
    return Batches(data, jnp.arange(len(values))[:, None, None])


def step(fragment, *values: float) -> tuple:
    private = fragment.init(jax.random.key(0))
    return fragment.step(
        private, {"batches": batches(*values)}, (), jax.random.key(0), jnp.int32(0)
    )


@pytest.mark.parametrize(
    ("tree", "sound"),
    [
        ({"a": jnp.ones(3), "n": jnp.int32(4)}, True),
        ({"a": jnp.array([1.0, jnp.nan])}, False),
        ((jnp.ones(2), jnp.float32(-jnp.inf)), False),
        ((), True),
    ],
)
def test_all_finite_looks_at_every_real_number(tree, sound):
    assert bool(all_finite(tree)) == sound


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_update_changes_nothing_is_counted_and_leaves_the_means_alone(bad):
    private, _, metrics = step(learning(adding(), nan="skip"), 1.0, bad, 2.0)
    np.testing.assert_array_equal(private["part"].learned.params["x"], [3.0, 3.0])
    assert float(metrics["dropped_updates"]) == 1
    assert float(metrics["loss"]) == (2.0 + 6.0) / 2


def test_parameters_that_overflow_show_in_the_same_tick_even_if_no_loss_does():
    fine = adding(metric_of=lambda new: jnp.zeros(()))
    _, _, metrics = step(learning(fine), 1.0, np.inf)
    assert float(metrics["loss"]) == 0.0
    assert not np.isfinite(metrics["param_norm"])


def test_a_dropped_update_is_one_that_would_have_been_bad():
    state = init_part(adding(), jax.random.key(0), ())
    kept, metrics, _ = update(
        adding(), state, {}, jnp.full((1, 1, 2), 2.0), jax.random.key(0), (), drop_nonfinite=True
    )
    np.testing.assert_array_equal(kept.learned.params["x"], [2.0, 2.0])
    assert float(metrics["dropped_updates"]) == 0


def poisoned(step_number: int) -> jf.VecEnv:
    """Build environments in which a tenth of the episodes have one step with NaN observation and
    reward.
    """
    spec = jf.EnvSpec("poisoned", OBS, jf.Discrete(2), max_episode_steps=20)

    def reset(key, params):
        return (jnp.int32(0), jax.random.bernoulli(key, 0.1)), jnp.zeros(2)

    def move(state, action, key):
        count, bad = state[0] + 1, state[1]
        obs = jnp.where(bad & (count == step_number), jnp.nan, jnp.sin(count + jnp.arange(2.0)))
        no = jnp.zeros((), bool)
        return (count, bad), jf.Timestep(obs, obs, obs[0], no, no)

    return jf.vectorize(jf.Env(spec, reset, move), num_envs=8)


def test_with_nan_skip_a_run_goes_on_counts_what_it_drops_and_stays_finite():
    result = jf.learn(
        poisoned(5), tiny_ppo(normalize_rewards=True), total_steps=6400, eval_episodes=2, nan="skip"
    )
    assert 0 < result.summary["dropped_updates"] < result.summary["updates"]
    assert bool(all_finite((result.state.private["learn"], result.state.private["statistics"])))
    assert (
        sum(row.get("dropped_updates", 0) for row in result.history)
        == result.summary["dropped_updates"]
    )
    with pytest.raises(
        jf.NonFiniteError, match=r"environment poisoned .* \(fragment sample, tick \d+, seed 0\)"
    ):
        jf.learn(poisoned(5), tiny_ppo(), total_steps=6400, eval_episodes=2)


def test_where_nothing_is_wrong_nan_skip_changes_numbers_by_rounding_only():
    def end(nan: str) -> jf.Result:
        return jf.learn(line(discrete=True), tiny_ppo(), total_steps=640, eval_episodes=2, nan=nan)

    stop, skip = end("stop"), end("skip")
    assert skip.summary["dropped_updates"] == 0
    for a, b in zip(
        jax.tree.leaves(skip.state.private), jax.tree.leaves(stop.state.private), strict=True
    ):
        np.testing.assert_allclose(np.asarray(a, float), np.asarray(b, float), atol=1e-5)


def test_the_error_names_fragment_tick_and_seed():
    algorithm = tiny_ppo(value_loss=lambda value, target: jnp.sqrt(-jnp.abs(value - target)))
    with pytest.raises(
        jf.NonFiniteError, match=r"metric critic/\S+ of fragment learn .* in tick 1, seed 0"
    ) as caught:
        jf.learn(line(discrete=True), algorithm, total_steps=640, eval_episodes=2, num_seeds=2)
    assert (caught.value.fragment, caught.value.tick, caught.value.seed) == ("learn", 1, 0)


def found_in(env: jf.VecEnv, algorithm: jf.Algorithm, tick: int, fragment: str) -> str:
    graph, _ = build_graph(env, algorithm)
    state = jax.jit(partial(init, graph))(jax.random.key(0), algorithm.hyper)
    return find_operation(graph, state, tick, fragment)


def test_the_operation_that_gave_a_nan_is_found_and_its_line():
    algorithm = tiny_ppo(
        **SHORT, value_loss=lambda value, target: jnp.log(-jnp.abs(value - target))
    )
    found = found_in(line(discrete=True), algorithm, 1, "learn")
    assert "nan generated by primitive: log" in found
    assert "test_nan.py:" in found


@pytest.mark.parametrize(
    ("reward", "found"),
    [
        (lambda count: 1.0 / (count - 3.0), "division by zero"),
        (lambda count: jnp.where(count == 3, jnp.nan, 1.0), "nan"),
        (lambda count: jnp.exp(100.0 * (count - 2.0)), "overflowed float32"),
    ],
)
def test_what_a_world_does_is_found_some_ticks_later(reward, found):
    spec = jf.EnvSpec("bad", OBS, jf.Discrete(2), max_episode_steps=20)

    def move(count, action, key):
        no = jnp.zeros((), bool)
        return count + 1, jf.Timestep(
            jnp.zeros(2), jnp.zeros(2), reward(count.astype(jnp.float32)), no, no
        )

    single = jf.Env(spec, lambda key, params: (jnp.int32(0), jnp.zeros(2)), move)
    assert found in found_in(jf.vectorize(single, num_envs=2), tiny_ppo(**SHORT), 1, "sample")


def test_an_operation_that_is_not_found_is_said_to_be_so():
    assert "computed finite numbers in this tick" in found_in(
        line(discrete=True), tiny_ppo(**SHORT), 1, "sample"
    )
