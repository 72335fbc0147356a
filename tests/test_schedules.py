"""Schedules: values over progress, stored like numbers."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_fast as jf
from jaxrl_fast.numerics.optimizers import Cosine, Linear, resolve, schedules, value_at

pytestmark = pytest.mark.usefixtures("strict_dtypes")


class Rates(NamedTuple):
    a: Any
    b: Any


@pytest.mark.parametrize(
    "schedule, halfway, quarter",
    [(Linear(1.0, 0.2), 0.6, 0.8), (Cosine(1.0, 0.2), 0.6, 0.2 + 0.4 * (1 + np.sqrt(0.5)))],
)
def test_a_schedule_runs_from_start_to_end(schedule, halfway, quarter):
    values = [value_at(schedule, jnp.float32(p)) for p in (0.0, 0.25, 0.5, 1.0)]
    np.testing.assert_allclose(values, [1.0, quarter, halfway, 0.2], rtol=1e-5)


def test_a_schedule_may_end_before_the_run_does():
    values = [value_at(Linear(1.0, 0.2, 0.5), jnp.float32(p)) for p in (0.0, 0.25, 0.5, 1.0)]
    np.testing.assert_allclose(values, [1.0, 0.6, 0.2, 0.2], rtol=1e-6)


def test_resolve_leaves_numbers_alone():
    rates = resolve(Rates(Linear(1.0, 0.0), 3.0), jnp.float32(0.5))
    assert rates == Rates(0.5, 3.0)


def test_schedules_are_found_by_name():
    assert list(schedules(Rates(1.0, Cosine(1.0, 0.0)))) == [Rates._fields[1]]
    assert not schedules(Rates(1.0, 2.0))


def test_the_ends_of_a_schedule_can_be_swept():
    values = jax.vmap(lambda start: value_at(Linear(start, 0.0), jnp.float32(0.5)))(
        jnp.float32([1.0, 2.0])
    )
    np.testing.assert_allclose(values, [0.5, 1.0])


@pytest.mark.parametrize("until", [0, -0.5, 1.5, float("nan")])
@pytest.mark.parametrize("kind", [jf.Linear, jf.Cosine])
def test_a_schedule_that_ends_outside_of_the_run_is_refused(kind, until):
    with pytest.raises(ValueError, match=r"learning_rate=.*write a number or a schedule"):
        jf.ppo(learning_rate=kind(1e-3, 0.0, until))
