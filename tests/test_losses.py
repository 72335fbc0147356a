"""Losses against hand-computed values and plain formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrl_fast.numerics import losses

pytestmark = pytest.mark.usefixtures("strict_dtypes")

NUMBER = st.floats(-3, 3, width=32)


@pytest.mark.parametrize(
    "ratio, advantage, loss, slope",
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.5, 2.0, -2.4, 0.0),  # clipped at 1.2, no further gain
        (0.5, 2.0, -1.0, -1.0),  # a good action made less likely is not clipped
        (0.5, -2.0, 1.6, 0.0),  # clipped at 0.8
        (1.5, -2.0, 3.0, 3.0),  # a bad action made more likely is not clipped
    ],
)
def test_clipped_surrogate_by_hand(ratio, advantage, loss, slope):
    at = jnp.log(jnp.float32(ratio))
    value, grad = jax.value_and_grad(losses.clipped_surrogate)(
        at, jnp.float32(advantage), jnp.float32(0.2)
    )
    np.testing.assert_allclose((value, grad), (loss, slope), rtol=1e-5)


@given(NUMBER, NUMBER, st.floats(0.125, 0.5, width=32))
def test_clipped_surrogate_never_promises_more_than_the_plain_one(log_ratio, advantage, clip_range):
    loss = losses.clipped_surrogate(
        jnp.float32(log_ratio), jnp.float32(advantage), jnp.float32(clip_range)
    )
    ratio = np.exp(np.float64(log_ratio))
    want = -min(ratio * advantage, np.clip(ratio, 1 - clip_range, 1 + clip_range) * advantage)
    np.testing.assert_allclose(loss, want, rtol=1e-4, atol=1e-5)
    assert loss >= -ratio * advantage - 1e-4


def test_squared_error_has_the_error_as_its_gradient():
    value, grad = jax.value_and_grad(losses.squared_error)(jnp.float32(5.0), jnp.float32(2.0))
    assert (value, grad) == (4.5, 3.0)


def test_soft_target_by_hand():
    # 1 + 0.5 · (min(4, 3) − 0.1 · (−2)) = 2.6
    target = losses.soft_target(
        *map(jnp.float32, (1.0, 0.5)), jnp.float32([4, 3]), *map(jnp.float32, (-2.0, 0.1))
    )
    np.testing.assert_allclose(target, 2.6, rtol=1e-6)


def test_soft_policy_by_hand():
    loss = losses.soft_policy(jnp.float32([4, 3]), jnp.float32(-2.0), jnp.float32(0.1))
    np.testing.assert_allclose(loss, -3.2, rtol=1e-6)


def test_temperature_rises_where_the_policy_is_less_random_than_wanted():
    def slope(log_prob):
        return jax.grad(losses.temperature)(
            jnp.float32(0.0), jnp.float32(log_prob), jnp.float32(-1.0)
        )

    assert slope(3.0) < 0.0  # entropy −3 below the target −1: descent raises the temperature
    assert slope(-3.0) > 0.0


def test_no_gradient_of_the_temperature_loss_reaches_the_policy():
    grad = jax.grad(losses.temperature, argnums=1)(
        jnp.float32(0.3), jnp.float32(-2.0), jnp.float32(-1.0)
    )
    assert grad == 0.0


@pytest.mark.parametrize("advantage", [-2.0, 2.0])
@pytest.mark.parametrize("log_ratio", [-1e4, -89.0, 0.1, 19.9, 89.0, 1e4])
def test_the_surrogate_of_any_ratio_has_finite_gradients(log_ratio, advantage):
    loss, slope = jax.value_and_grad(losses.clipped_surrogate)(
        *map(jnp.float32, (log_ratio, advantage, 0.2))
    )
    assert np.isfinite(loss) and np.isfinite(slope)
    if abs(log_ratio) < 20:
        np.testing.assert_allclose(
            losses.ratio_of(jnp.float32(log_ratio)), np.exp(np.float32(log_ratio)), rtol=1e-5
        )
