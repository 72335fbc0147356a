"""Returns against hand-computed cases and slow references."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from hypothesis import given
from hypothesis import strategies as st

from jaxrl_fast.numerics import losses

pytestmark = pytest.mark.usefixtures("strict_dtypes")

NUMBER = st.floats(-10, 10, width=32)
GAE = jax.jit(losses.gae)
N_STEP = jax.jit(losses.n_step)
LAMBDA_RETURN = jax.jit(losses.lambda_return)
V_TRACE = jax.jit(losses.v_trace)


@st.composite
def sequences(draw, lengths=(1, 2, 5, 11)):
    n = draw(st.sampled_from(lengths))
    numbers = st.lists(NUMBER, min_size=n, max_size=n)
    flags = st.lists(st.booleans(), min_size=n, max_size=n)
    reward, value, next_value = (np.array(draw(numbers), np.float32) for _ in range(3))
    terminated = np.array(draw(flags))
    truncated = np.array(draw(flags)) & ~terminated
    return reward, value, next_value, terminated, truncated


def run_gae(reward, terminated, truncated, value, next_value, discount, gae_lambda):
    gamma = jnp.float32(discount) * (1.0 - jnp.asarray(terminated, jnp.float32))
    done = jnp.asarray(terminated | truncated)
    return GAE(
        jnp.asarray(reward),
        gamma,
        jnp.asarray(value),
        jnp.asarray(next_value),
        done,
        jnp.float32(gae_lambda),
    )


def test_gae_by_hand():
    # Two steps, γ = 0.5, λ = 0.5: δ₁ = 2 + 0.5·4 − 3 = 1, δ₀ = 1 + 0.5·3 − 2 = 0.5, A₀ = 0.5 +
    # 0.25·1
    flags = np.zeros(2, bool)
    advantage = run_gae(
        np.float32([1, 2]), flags, flags, np.float32([2, 3]), np.float32([3, 4]), 0.5, 0.5
    )
    np.testing.assert_allclose(advantage, [0.75, 1.0], rtol=1e-6)


def test_gae_bootstraps_a_truncated_step_and_not_a_terminated_one():
    one, yes, no = np.float32([1]), np.array([True]), np.array([False])
    assert run_gae(one, yes, no, one, 10 * one, 0.5, 0.9) == 0.0
    assert run_gae(one, no, yes, one, 10 * one, 0.5, 0.9) == 5.0


@given(sequences(), st.floats(0, 1, width=32), st.floats(0, 1, width=32))
def test_gae_equals_the_sum_it_stands_for(case, discount, gae_lambda):
    reward, value, next_value, terminated, truncated = case
    got = run_gae(reward, terminated, truncated, value, next_value, discount, gae_lambda)
    want = references.gae(reward, terminated, truncated, value, next_value, discount, gae_lambda)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_gae_with_lambda_one_is_return_minus_value():
    reward, value = np.float32([1, 2, 3]), np.float32([5, 6, 7])
    last = np.array([False, False, True])
    advantage = run_gae(reward, last, ~last & False, value, np.float32([6, 7, 99]), 1.0, 1.0)
    np.testing.assert_allclose(advantage, np.float32([6, 5, 3]) - value, rtol=1e-6)


def test_n_step_by_hand():
    no = jnp.zeros(3, bool)
    total, bootstrap, last = N_STEP(jnp.float32([1, 2, 4]), no, no, jnp.float32(0.5))
    assert (total, bootstrap, last) == (3.0, 0.125, 2)
    ends = jnp.array([False, True, False])
    assert [float(x) for x in N_STEP(jnp.float32([1, 2, 4]), ends, no, jnp.float32(0.5))] == [
        2.0,
        0.0,
        1.0,
    ]
    assert [float(x) for x in N_STEP(jnp.float32([1, 2, 4]), no, ends, jnp.float32(0.5))] == [
        2.0,
        0.25,
        1.0,
    ]


@given(sequences(lengths=(1, 3, 5)), st.floats(0.125, 1, width=32))
def test_n_step_stops_with_the_episode(case, discount):
    reward, _, _, terminated, truncated = case
    got = N_STEP(
        jnp.asarray(reward), jnp.asarray(terminated), jnp.asarray(truncated), jnp.float32(discount)
    )
    want = references.n_step(reward, terminated, truncated, discount)
    np.testing.assert_allclose([float(x) for x in got], want, rtol=1e-4, atol=1e-4)


def gamma_of(discount: float, terminated: np.ndarray) -> jax.Array:
    return jnp.float32(discount) * (1.0 - jnp.asarray(terminated, jnp.float32))


@given(sequences(), st.floats(0, 1, width=32), st.floats(0, 1, width=32))
def test_a_lambda_return_is_the_weighted_mean_of_n_step_returns(case, discount, return_lambda):
    reward, _, next_value, terminated, truncated = case
    got = LAMBDA_RETURN(
        jnp.asarray(reward),
        gamma_of(discount, terminated),
        jnp.asarray(next_value),
        jnp.asarray(terminated | truncated),
        jnp.float32(return_lambda),
    )
    want = references.lambda_return(
        reward, terminated, truncated, next_value, discount, return_lambda
    )
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def run_v_trace(case, ratio, discount, trace_lambda, clip_rho, clip_c):
    reward, value, next_value, terminated, truncated = case
    return V_TRACE(
        jnp.asarray(reward),
        gamma_of(discount, terminated),
        jnp.asarray(value),
        jnp.asarray(next_value),
        jnp.asarray(terminated | truncated),
        jnp.asarray(ratio),
        *(jnp.float32(x) for x in (trace_lambda, clip_rho, clip_c)),
    )


@pytest.mark.parametrize("clips", [(1.0, 1.0, 1.0), (0.9, 1.0, 1.0), (1.0, 2.0, 0.5)])
@given(sequences(), st.floats(0.125, 1, width=32), st.integers(0, 9))
def test_v_trace_equals_the_sum_of_the_paper(clips, case, discount, seed):
    reward, value, next_value, terminated, truncated = case
    ratio = np.exp(np.random.default_rng(seed).normal(size=len(reward))).astype(np.float32)
    got = run_v_trace(case, ratio, discount, *clips)
    want = references.v_trace(
        reward, terminated, truncated, value, next_value, ratio, discount, *clips
    )
    for ours, reference in zip(got, want, strict=True):
        np.testing.assert_allclose(ours, reference, rtol=1e-4, atol=1e-4)


@given(sequences(), st.floats(0, 1, width=32))
def test_without_lag_v_trace_is_the_return_of_a2c(case, discount):
    """Ratios of 1: the targets are λ-returns with λ = 1, where the value of `next_obs` is the next
    step's value.
    """
    reward, value, next_value, terminated, truncated = case
    next_value = np.where(
        terminated | truncated, next_value, np.append(value[1:], next_value[-1])
    ).astype(np.float32)
    same = reward, value, next_value, terminated, truncated
    target, _ = run_v_trace(same, np.ones_like(reward), discount, 1.0, 1.0, 1.0)
    want = references.lambda_return(reward, terminated, truncated, next_value, discount, 1.0)
    np.testing.assert_allclose(target, want, rtol=1e-4, atol=1e-3)
