"""Running statistics against the statistics of all data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st

import jaxrl_fast as jf
from jaxrl_fast.assembly import bind
from jaxrl_fast.core import Transition
from jaxrl_fast.learning.run_graph import statistics_fragment
from jaxrl_fast.numerics.normalization import (
    RunningStats,
    init_stats,
    normalize,
    update_stats,
    with_variances,
)

pytestmark = pytest.mark.usefixtures("strict_dtypes")

DATA = (
    np.random.default_rng(0)
    .normal([100.0, -2.0, 0.0], [5.0, 0.5, 30.0], (24, 3))
    .astype(np.float32)
)

UPDATE = jax.jit(update_stats, static_argnums=2)
ROLLOUTS = dict(rollout_length=4, num_minibatches=1)


def after(*batches: np.ndarray, shape: tuple[int, ...] = (3,)):
    stats = init_stats(jax.ShapeDtypeStruct(shape, jnp.float32))
    for batch in batches:
        stats = UPDATE(stats, jnp.asarray(batch), 1)
    return stats


@given(st.lists(st.sampled_from([1, 5, 12, 19, 23]), max_size=3, unique=True))
def test_any_split_into_batches_gives_the_statistics_of_all_data(borders):
    stats = after(*np.split(DATA, sorted(borders)))
    assert stats.samples == 24
    np.testing.assert_allclose(stats.mean, DATA.mean(0, dtype=np.float64), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(stats.variance, DATA.var(0, dtype=np.float64), rtol=1e-4)


def test_both_axes_of_a_rollout_are_merged():
    stats = update_stats(init_stats(jnp.zeros(3)), jnp.asarray(DATA.reshape(4, 6, 3)), batch_axes=2)
    np.testing.assert_allclose(stats.mean, DATA.mean(0), rtol=1e-5, atol=1e-4)


def test_a_large_offset_does_not_swallow_the_variance():
    data = (np.float64(DATA[:, :1]) * 0.01 + 1000.0).astype(np.float32)
    stats = after(data[:7], data[7:], shape=(1,))
    np.testing.assert_allclose(stats.variance, np.var(np.float64(data), 0), rtol=0.02)


def test_normalized_data_has_mean_zero_and_variance_one():
    out = normalize(after(DATA), jnp.asarray(DATA))
    np.testing.assert_allclose(out.mean(0), np.zeros(3), atol=1e-4)
    np.testing.assert_allclose(out.std(0), np.ones(3), atol=1e-3)


def test_normalize_is_the_identity_while_there_is_no_data():
    x = jnp.float32([1e6, -3.0, 0.0])
    np.testing.assert_array_equal(normalize(after(), x), x)


def test_outliers_are_clipped():
    out = normalize(after(DATA), jnp.float32([1e9, -1e9, 0.0]), clip=5.0)
    np.testing.assert_allclose(out[:2], [5.0, -5.0])


def test_masks_and_integers_pass_through_a_dictionary_observation():
    obs = {
        "action_mask": jnp.float32([[0.0, 1.0], [1.0, 1.0]]),
        "count": jnp.int32([[3], [9]]),
        "x": jnp.float32([[1.0], [3.0]]),
    }
    spec = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), obs)
    out = normalize(update_stats(init_stats(spec), obs, batch_axes=1), obs)
    np.testing.assert_array_equal(out["action_mask"], obs["action_mask"])
    np.testing.assert_array_equal(out["count"], obs["count"])
    assert out["count"].dtype == jnp.int32
    np.testing.assert_allclose(out["x"], [[-1.0], [1.0]], rtol=1e-5)


@pytest.mark.parametrize("samples", [2**24, 2**30, 2**31 - 1])
@pytest.mark.parametrize("size", [1, 64, 4096])
def test_long_runs_keep_mean_and_variance(samples, size):
    start = RunningStats(jnp.int32(samples), jnp.float32([3.0]), jnp.float32([1.0]))

    def step(stats: RunningStats, key: jax.Array) -> tuple[RunningStats, None]:
        return update_stats(stats, 3.0 + jax.random.normal(key, (size, 1)), 1), None

    ticks = 40_000 if size < 4096 else 1_000
    stats, _ = jax.jit(
        lambda: jax.lax.scan(step, start, jax.random.split(jax.random.key(0), ticks))
    )()
    np.testing.assert_allclose(stats.mean, [3.0], atol=0.02)
    np.testing.assert_allclose(stats.variance, [1.0], atol=0.02)
    assert 0 < stats.samples <= 2**31 - 1


def test_a_long_run_follows_observations_that_change():
    start = RunningStats(jnp.int32(2**31 - 1), jnp.float32([0.0]), jnp.float32([1.0]))
    ticks = 2**21

    def step(i: jax.Array, stats: RunningStats) -> RunningStats:
        return update_stats(stats, jnp.float32([[99.0], [101.0]]), 1)

    stats = jax.jit(lambda: jax.lax.fori_loop(0, ticks, step, start))()
    faded = np.exp(-2.0)  # of a weight of 2^-20 in 2^21 ticks
    np.testing.assert_allclose(stats.mean, [100.0 * (1 - faded)], rtol=2e-3)
    np.testing.assert_allclose(stats.variance, [1.0 + 1e4 * faded * (1 - faded)], rtol=2e-3)


@pytest.mark.parametrize("separator", ["/", "."])
@pytest.mark.parametrize("seeds", [(), (2,)])
def test_stored_sums_of_squares_are_read_as_variances(separator, seeds):
    count = np.full(seeds, 50.0, np.float32)
    sums = {
        "a": np.full((*seeds, 3), 200.0, np.float32),
        "b": np.full((*seeds,), 100.0, np.float32),
    }
    old = {
        f"obs{separator}samples": count,
        f"obs{separator}mean{separator}a": sums["a"] / 100,
        "tick": np.int32(4),
    }
    old |= {f"obs{separator}m2{separator}{name}": x for name, x in sums.items()}
    new = with_variances(old)
    assert new[f"obs{separator}samples"].dtype == np.int32 and np.all(
        new[f"obs{separator}samples"] == 50
    )
    assert [n for n in new if "m2" in n] == [] and new["tick"] == 4
    np.testing.assert_array_equal(
        new[f"obs{separator}variance{separator}a"], np.full((*seeds, 3), 4.0)
    )
    np.testing.assert_array_equal(new[f"obs{separator}variance{separator}b"], np.full(seeds, 2.0))
    assert all(np.array_equal(value, new[name]) for name, value in with_variances(new).items())


def test_a_rollout_is_merged_with_its_observations_and_returns_that_end_with_their_episodes():
    env = tiny.line(discrete=True, num_envs=2)
    agent = bind(
        jf.ppo(discount=0.5, reward_scale=2.0, normalize_rewards=True, **ROLLOUTS),
        env.spec,
        env.num_envs,
    )
    fragment, rng, totals, returns, seen = (
        statistics_fragment(env, agent),
        np.random.default_rng(0),
        np.zeros(2),
        [],
        [],
    )
    private, step = fragment.init(jax.random.key(0)), jax.jit(fragment.step)
    for _ in range(2):  # the second continues the episodes of the first
        obs, next_obs = rng.normal(size=(2, 4, 2, 2)).astype(np.float32)
        reward, (terminated, truncated) = (
            rng.normal(size=(4, 2)).astype(np.float32),
            np.zeros((2, 4, 2), bool),
        )
        terminated[1, 0] = truncated[2, 1] = True
        rollout = Transition(obs, (), reward, next_obs, terminated, truncated, (), ())
        private, _, _ = step(private, {"rollout": rollout}, agent.hyper, jax.random.key(0))
        seen.append(obs)
        for t in range(4):
            totals = 0.5 * totals + 2.0 * np.float64(reward[t])
            returns.append(totals)
            totals = np.where(terminated[t] | truncated[t], 0.0, totals)
    for stats, data in (
        (private.statistics.obs, np.concatenate(seen)),
        (private.statistics.returns, np.stack(returns)),
    ):
        axes = tuple(range(data.ndim - np.ndim(stats.mean)))
        np.testing.assert_allclose(stats.mean, data.mean(axes), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(stats.variance, data.var(axes), rtol=1e-4)
    np.testing.assert_allclose(private.discounted, totals, rtol=1e-5)
