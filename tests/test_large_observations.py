"""Very large observations: statistics stay finite, a line names them, and a policy refuses a NaN
and an infinity.
"""

import functools
from typing import Any

import gymnasium as gym
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxrl_fast as jf
from jaxrl_fast.numerics.normalization import LARGEST, init_stats, normalize, update_stats
from jaxrl_fast.training.recorder import NonFiniteError

SIZES = st.floats(-(2.0**127), 2.0**127, width=32, allow_subnormal=False)


@given(values=st.lists(SIZES, min_size=2, max_size=8))
def test_statistics_of_finite_numbers_are_finite(values: list[float]):
    x = jnp.asarray(np.array(values, np.float32)[:, None])
    stats = init_stats(jnp.zeros(1))
    for _ in range(3):
        stats = update_stats(stats, x, 1)
    assert np.isfinite([stats.mean, stats.variance]).all()
    assert np.isfinite(normalize(stats, x)).all()
    clipped = np.clip(np.asarray(x, np.float64), -LARGEST, LARGEST)
    np.testing.assert_allclose(
        stats.mean[0], clipped.mean(), rtol=1e-4, atol=1e-5 * abs(clipped).max()
    )


class Nothing(gym.Env):
    """Observes 1e20 where it detects nothing."""

    action_space = gym.spaces.Box(-1, 1, (1,))

    def __init__(self, inside: bool = False) -> None:
        self.inside = inside
        ranges = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.observation_space = gym.spaces.Dict({"lidar": ranges}) if inside else ranges

    def observed(self) -> Any:
        ranges = self.np_random.normal(size=3).astype(np.float32)
        ranges[2] = 1e20
        return {"lidar": ranges} if self.inside else ranges

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.steps = 0
        return self.observed(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict]:
        self.steps += 1
        return self.observed(), 1.0, False, self.steps >= 8, {}


SMALL = dict(rollout_length=8, num_minibatches=1, num_epochs=1)


@functools.cache
def policy() -> jf.Policy:
    return trained(False, []).policy


def trained(inside: bool, told: list[str], **options: Any) -> jf.Result:
    env = jf.make_env("custom", make=Nothing, inside=inside, num_envs=4, pool={"workers": 0})
    try:
        return jf.learn(
            env,
            jf.ppo(**SMALL, **options),
            total_steps=64,
            eval_every=0,
            tell=told.append,
            on_metrics=lambda row: None,
        )
    finally:
        env.close()


def test_a_value_for_nothing_is_named_once_and_training_goes_on():
    for inside, what in ((False, "an observation"), (True, "observation 'lidar'")):
        told: list[str] = []
        result = trained(inside, told)
        assert np.isfinite(result.policy(Nothing(inside).reset(seed=1)[0])).all()
        (line,) = [line for line in told if "hides all others" in line]
        assert line.startswith(f"{what} reaches 1e+20 at [2]: ")


def test_the_error_of_an_update_names_the_observation_and_not_the_rate():
    with pytest.raises(NonFiniteError, match=r"seed 0: an observation reaches 1e\+20 at \[2\]"):
        trained(False, [], normalize_observations=False, activation="relu")


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray, list])
@pytest.mark.parametrize("fast", [False, True], ids=["policy", "fast"])
def test_a_policy_refuses_what_is_no_number(fast: bool, kind: Any, wrong: float):
    act = policy().fast() if fast else policy()
    obs = np.array([[0.5, 0.5, 0.5], [0.5, wrong, 0.5]], np.float32)
    with pytest.raises(ValueError, match=rf" has {wrong} at \[1, 1\]"):
        act(kind(obs))
