"""Distributions against SciPy and numeric integration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from jaxrl_fast.core import Box, Discrete
from jaxrl_fast.numerics import distributions as d

pytestmark = pytest.mark.usefixtures("strict_dtypes")

KEY = jax.random.key(0)
MEAN, SCALE = jnp.float32([0.3, -1.0]), jnp.float32([0.5, 1.5])
SPACE = Box(np.float32([-2.0, 0.0]), np.float32([1.0, 10.0]))
LOG_PROB = jax.jit(d.log_prob)


def squashed_log_density(action, mean, scale):
    """SciPy's normal density at atanh(action), with the slope of atanh."""
    return scipy.stats.norm.logpdf(np.arctanh(action), mean, scale) - np.log1p(-(action**2))


@given(st.lists(st.floats(-3, 3, width=32), min_size=2, max_size=2))
def test_tanh_normal_log_prob_equals_scipy(raw):
    got = LOG_PROB(d.TanhNormal(MEAN, SCALE), jnp.float32(raw))
    want = squashed_log_density(np.tanh(np.float64(raw)), np.float64(MEAN), np.float64(SCALE)).sum()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_tanh_normal_density_integrates_to_one():
    raw = jnp.linspace(-12.0, 12.0, 20_001)[:, None]
    dist = d.TanhNormal(
        jnp.broadcast_to(MEAN[:1], raw.shape), jnp.broadcast_to(SCALE[:1], raw.shape)
    )
    density = np.exp(np.float64(d.log_prob(dist, raw)))
    np.testing.assert_allclose(
        np.trapezoid(density, np.tanh(np.float64(raw[:, 0]))), 1.0, atol=1e-3
    )


def test_tanh_normal_entropy_is_right_on_average():
    size = 100_000
    dist = d.TanhNormal(jnp.broadcast_to(MEAN, (size, 2)), jnp.broadcast_to(SCALE, (size, 2)))
    raw = np.linspace(-12, 12, 20_001)
    want = 0.0
    for mean, scale in zip(np.float64(MEAN), np.float64(SCALE), strict=True):
        log_density = scipy.stats.norm.logpdf(raw, mean, scale) - np.log(1.0 / np.cosh(raw) ** 2)
        want -= np.trapezoid(scipy.stats.norm.pdf(raw, mean, scale) * log_density, raw)
    np.testing.assert_allclose(jnp.mean(d.entropy(dist, KEY)), want, atol=0.02)


def test_tanh_normal_samples_have_its_mean_and_scale():
    size = 100_000
    raw = d.sample(
        d.TanhNormal(jnp.broadcast_to(MEAN, (size, 2)), jnp.broadcast_to(SCALE, (size, 2))), KEY
    )
    np.testing.assert_allclose(jnp.mean(raw, axis=0), MEAN, atol=0.02)
    np.testing.assert_allclose(jnp.std(raw, axis=0), SCALE, atol=0.02)


def test_scales_stay_positive_and_follow_the_softplus():
    dist = d.tanh_normal(jnp.float32([1.0, 2.0, -50.0, 0.5]))
    np.testing.assert_allclose(dist.mean, [1.0, 2.0])
    np.testing.assert_allclose(dist.scale, [1e-3, np.log1p(np.exp(0.5)) + 1e-3], rtol=1e-5)


@pytest.mark.parametrize("raw", [-1e4, -50.0, 50.0, 1e4])
def test_extreme_actions_have_finite_values_and_gradients(raw):
    def score(mean, raw):
        return d.log_prob(d.TanhNormal(mean, jnp.ones(1)), raw)

    value, grads = jax.value_and_grad(score, argnums=(0, 1))(
        jnp.zeros(1), jnp.full(1, raw, jnp.float32)
    )
    assert np.isfinite(value) and np.isfinite(grads[0]).all() and np.isfinite(grads[1]).all()
    # log(1 - tanh²) tends to log 4 − 2|raw|, where the plain formula is −inf
    want = -0.5 * raw**2 - 0.5 * np.log(2 * np.pi) - np.log(4) + 2 * abs(raw)
    np.testing.assert_allclose(value, want, rtol=1e-5)


def test_categorical_equals_scipy():
    logits = np.float32([[0.5, -1.0, 2.0], [0.0, 0.0, 0.0]])
    dist = d.categorical(jnp.asarray(logits))
    want = scipy.special.log_softmax(logits, axis=-1)
    for action in range(3):
        got = d.log_prob(dist, jnp.full(2, action, jnp.int32))
        np.testing.assert_allclose(got, want[:, action], rtol=1e-5)
    entropy = [scipy.stats.entropy(np.exp(row)) for row in want]
    np.testing.assert_allclose(d.entropy(dist, KEY), entropy, rtol=1e-5)
    assert d.mode(dist).tolist() == [2, 0]


def test_categorical_samples_follow_the_probabilities():
    logits = jnp.float32([0.5, -1.0, 2.0])
    raw = d.sample(d.categorical(jnp.broadcast_to(logits, (50_000, 3))), KEY)
    assert raw.dtype == jnp.int32
    np.testing.assert_allclose(np.bincount(raw) / 50_000, scipy.special.softmax(logits), atol=0.01)


def test_masked_actions_have_probability_zero_and_are_never_taken():
    mask = jnp.array([False, True, False, True])
    logits = jnp.float32([50.0, 0.0, 5.0, 1.0])  # the forbidden ones look best
    dist = d.categorical(logits, mask)
    log_probs = [float(d.log_prob(dist, jnp.int32(a))) for a in range(4)]
    want = scipy.special.log_softmax([0.0, 1.0])
    np.testing.assert_allclose(
        np.exp(log_probs), [0, np.exp(want[0]), 0, np.exp(want[1])], rtol=1e-5
    )
    many = d.Categorical(jnp.broadcast_to(dist.logits, (20_000, 4)))
    assert set(np.unique(d.sample(many, KEY))) == {1, 3}
    assert d.mode(dist) == 3
    np.testing.assert_allclose(d.entropy(dist, KEY), scipy.stats.entropy(np.exp(want)), rtol=1e-5)
    grad = jax.grad(lambda x: d.entropy(d.categorical(x, mask), KEY))(logits)
    assert np.isfinite(grad).all() and grad[0] == grad[2] == 0.0


def test_a_mask_of_numbers_is_a_mask():
    dist = d.categorical(jnp.zeros(2), jnp.float32([0.0, 1.0]))
    assert d.mode(dist) == 1


@given(st.lists(st.floats(-2, 2, width=32), min_size=2, max_size=2))
def test_to_unit_inverts_the_scaling_of_to_action(raw):
    action = d.to_action(SPACE, jnp.float32(raw))
    assert (action >= SPACE.low).all() and (action <= SPACE.high).all()
    np.testing.assert_allclose(d.to_unit(SPACE, action), np.tanh(raw), atol=1e-5)


def test_to_action_reaches_the_bounds_and_no_further():
    for raw, bound in ((-1e4, SPACE.low), (1e4, SPACE.high)):
        np.testing.assert_allclose(
            d.to_action(SPACE, jnp.full(2, raw, jnp.float32)), bound, rtol=1e-6
        )


def test_discrete_actions_pass_through():
    raw = jnp.int32([3, 1])
    assert d.to_action(Discrete(4), raw) is raw
    assert d.num_outputs(Discrete(4)) == 4 and d.num_outputs(SPACE) == 4


def test_actions_of_any_shape_are_scaled_bound_by_bound():
    space = Box(np.float32([[-1.0, 0.0], [2.0, -3.0]]), np.float32([[1.0, 4.0], [3.0, 3.0]]))
    action = d.to_action(space, jnp.zeros((5, 4)))
    assert action.shape == (5, 2, 2)
    np.testing.assert_allclose(action[0], [[0.0, 2.0], [2.5, 0.0]])
    np.testing.assert_allclose(d.to_unit(space, action), np.zeros((5, 4)), atol=1e-6)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(0, 2**31 - 1))
def test_standard_normal_is_that_of_jax_bit_for_bit(shape, seed):
    key, shape = jax.random.key(seed), tuple(shape)
    np.testing.assert_array_equal(d.standard_normal(key, shape), jax.random.normal(key, shape))


def test_a_sample_is_computed_once_however_often_it_is_used():
    def loss(mean, key):
        raw = d.sample(d.TanhNormal(mean, jnp.ones_like(mean)), key)
        return jnp.mean(d.log_prob(d.TanhNormal(mean, jnp.ones_like(mean)), raw)) + jnp.sum(
            jnp.tanh(raw) * mean
        )

    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        compiled = jax.jit(jax.value_and_grad(loss)).lower(jnp.zeros((64, 6)), KEY).compile()
    of_inverse_error_function = "0.246640727"
    assert compiled.as_text().count(of_inverse_error_function) == 1


@given(st.floats(-1e4, 1e4, width=32))
def test_softplus_and_its_slope_equal_numpy(x):
    value, slope = jax.value_and_grad(d.softplus)(jnp.float32(x))
    np.testing.assert_allclose(value, np.logaddexp(0.0, np.float64(x)), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(slope, scipy.special.expit(np.float64(x)), rtol=1e-6, atol=1e-7)
