"""Actions that the project draws respect masks, also while steps are measured."""

from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxrl_fast as jf
from jaxrl_fast.core import EnvSpec, Timestep
from jaxrl_fast.envs.env import VecEnv
from jaxrl_fast.runtime.graph import init, tick
from jaxrl_fast.spaces import draw_allowed
from jaxrl_fast.tuning import ceiling

SIZES = {"discrete": (5,), "several": (2, 3, 4)}


@given(seed=st.integers(0, 10**6), sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_drawn_actions_are_allowed_and_all_allowed_ones_are_drawn(seed: int, sizes: list[int]):
    rng = np.random.default_rng(seed)
    mask = rng.random(sum(sizes)) < 0.5
    starts = np.cumsum([0, *sizes])
    for first, size in zip(starts, sizes, strict=False):
        mask[first + rng.integers(size)] = True
    masks = np.broadcast_to(mask, (300, len(mask)))
    drawn = draw_allowed(masks, sizes, rng.random(masks.shape), np)
    for part, (first, size) in enumerate(zip(starts, sizes, strict=False)):
        assert set(drawn[:, part]) == set(np.flatnonzero(mask[first : first + size]))


class Asserting(gym.Env):
    """Allows one value of each part, another in each step, and asserts it."""

    def __init__(self, kind: str) -> None:
        self.sizes = SIZES[kind]
        masks = [gym.spaces.MultiBinary(size) for size in self.sizes]
        self.observation_space = gym.spaces.Dict(
            {
                "action_mask": masks[0] if len(masks) == 1 else gym.spaces.Tuple(masks),
                "obs": gym.spaces.Box(-1, 1, (2,)),
            }
        )
        self.action_space = (
            gym.spaces.Discrete(self.sizes[0])
            if len(masks) == 1
            else gym.spaces.MultiDiscrete(self.sizes)
        )

    def observed(self) -> dict[str, Any]:
        self.allowed = [int(self.np_random.integers(size)) for size in self.sizes]
        masks = [
            (np.arange(size) == one).astype(np.int8)
            for size, one in zip(self.sizes, self.allowed, strict=True)
        ]
        mask = masks[0] if len(masks) == 1 else tuple(masks)
        return {"action_mask": mask, "obs": np.zeros(2, np.float32)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.steps = 0
        return self.observed(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        assert np.ravel(action).tolist() == self.allowed
        self.steps += 1
        return self.observed(), 1.0, False, self.steps >= 7, {}


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("workers", [0, "auto"])
def test_an_environment_that_asserts_its_mask_is_made_and_measured(kind: str, workers: int | str):
    pool = {"workers": workers, "num_groups": 2}
    env = jf.make_env("custom", make=Asserting, kind=kind, num_envs=4, pool=pool)
    try:
        ceiling.host_environments_only(env)(20)
    finally:
        env.close()


def compiled(kind: str) -> VecEnv:
    """Return compiled environments whose reward is 1 for the allowed action, else 0."""
    sizes = SIZES[kind]

    def observed(key: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        allowed = jnp.stack(
            [jax.random.randint(jax.random.fold_in(key, i), (), 0, n) for i, n in enumerate(sizes)]
        )
        masks = [jnp.arange(n) == one for n, one in zip(sizes, allowed, strict=True)]
        return allowed, {"action_mask": jnp.concatenate(masks), "obs": jnp.zeros(2)}

    def step(state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Timestep]:
        right = jnp.all(action.reshape(-1) == state)
        state, obs = observed(key)
        false = jnp.zeros((), bool)
        return state, Timestep(obs, obs, right.astype(jnp.float32), false, false)

    obs = jax.eval_shape(lambda: observed(jax.random.key(0))[1])
    action = jf.Discrete(sizes[0]) if len(sizes) == 1 else jf.MultiDiscrete(sizes)
    env = jf.Env(EnvSpec("asserting", obs, action, None), lambda key, params: observed(key), step)
    return jf.vectorize(env, num_envs=4)


@pytest.mark.parametrize("kind", SIZES)
def test_the_ceiling_of_a_compiled_environment_takes_allowed_actions(kind: str):
    env = compiled(kind)
    graph = ceiling.environments_only(env, rollout_length=8)
    _, metrics = tick(graph, init(graph, jax.random.key(0), ()))
    assert float(metrics["sample/reward_sum"]) == 4 * 8
