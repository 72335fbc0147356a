"""Intervals over seeds: they have the coverage that they name, and a comparison needs five seeds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from jaxrl_fast.numerics.intervals import compare, difference_interval, mean_interval

RETURNS = st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=12)


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_an_interval_of_normal_samples_covers_their_mean_in_95_per_cent(seeds: int):
    samples = np.random.default_rng(0).normal(7.0, 2.0, (8_000, seeds))
    covered = [low <= 7.0 <= high for low, high in map(mean_interval, samples)]
    assert 0.94 <= np.mean(covered) <= 0.96


@pytest.mark.parametrize(("ours", "theirs"), [(3, 3), (5, 5), (5, 10)])
def test_an_interval_of_a_difference_covers_it_with_other_variances(ours: int, theirs: int):
    rng = np.random.default_rng(1)
    sides = zip(
        rng.normal(3.0, 1.0, (8_000, ours)), rng.normal(1.0, 1.5, (8_000, theirs)), strict=True
    )
    covered = [low <= 2.0 <= high for low, high in (difference_interval(*side) for side in sides)]
    assert 0.94 <= np.mean(covered) <= 0.97


@given(ours=RETURNS, theirs=RETURNS)
def test_the_intervals_are_students_and_welchs(ours: list[float], theirs: list[float]):
    spread = max(np.ptp(ours), np.ptp(theirs))
    if min(np.ptp(ours), np.ptp(theirs)) < 1e-3 * max(1.0, spread):
        return  # SciPy divides by 0
    expected = stats.ttest_1samp(ours, 0.0).confidence_interval()
    np.testing.assert_allclose(mean_interval(ours), expected, rtol=1e-6, atol=1e-6)
    expected = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval()
    np.testing.assert_allclose(difference_interval(ours, theirs), expected, rtol=1e-6, atol=1e-6)


def test_few_seeds_have_no_interval_and_no_verdict():
    assert mean_interval([1.0, 2.0]) is None
    assert difference_interval([1.0, 2.0, 3.0], [1.0, 2.0]) is None
    assert compare([9.0, 9.1, 9.2, 9.3], [1.0, 1.1, 1.2, 1.3, 1.4]) == "too few seeds"


def test_a_verdict_follows_the_interval_of_the_difference():
    base = np.array([1.0, 1.1, 1.2, 1.3, 1.4])
    assert compare(base + 1.0, base) == "above"
    assert compare(base, base + 1.0) == "below"
    assert compare(base + 0.1, base) == "not apart"
    assert compare(np.full(5, 2.0), np.full(5, 1.0)) == "above"
    assert compare(np.full(5, 1.0), np.full(5, 1.0)) == "not apart"


def test_a_difference_of_three_deviations_is_found_with_five_seeds():
    rng = np.random.default_rng(2)
    pairs = zip(rng.normal(3.0, 1.0, (500, 5)), rng.normal(0.0, 1.0, (500, 5)), strict=True)
    assert np.mean([compare(*pair) == "above" for pair in pairs]) > 0.95
