"""The norm of a pytree against NumPy's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_fast.numerics.optimizers import FEW, SLICES, global_norm

pytestmark = pytest.mark.usefixtures("strict_dtypes")


def numbers(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("size", [1, FEW, FEW + 1, FEW + SLICES - 1, 5 * FEW + 7])
def test_norm_counts_every_number_once(size):
    array = numbers(size)
    want = np.linalg.norm(np.float64(array))
    np.testing.assert_allclose(jax.jit(global_norm)(array), want, rtol=1e-6)
    moved = array.copy()
    moved[-1] += 100.0
    np.testing.assert_allclose(
        jax.jit(global_norm)(moved), np.linalg.norm(np.float64(moved)), rtol=1e-6
    )


def test_norm_is_over_all_leaves_of_any_shape():
    tree = {"w": numbers(96, 64), "b": (numbers(64), numbers(3, 5, 7))}
    want = np.sqrt(sum(np.sum(np.float64(leaf) ** 2) for leaf in jax.tree.leaves(tree)))
    np.testing.assert_allclose(jax.jit(global_norm)(tree), want, rtol=1e-6)


def test_norms_of_seeds_do_not_mix():
    seeds = numbers(3, 70, 90)
    want = [np.linalg.norm(np.float64(seed)) for seed in seeds]
    np.testing.assert_allclose(jax.jit(jax.vmap(global_norm))(seeds), want, rtol=1e-6)


def test_nothing_has_norm_zero_and_nan_is_seen():
    assert global_norm({}) == 0.0
    assert jnp.isnan(jax.jit(global_norm)(numbers(2 * FEW) * np.float32("nan")))
