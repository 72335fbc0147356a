"""unroll: the fields that a rollout stores for each decision, and the sums over the episodes that
ended in it.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from jaxrl_fast.core import Discrete, EnvSpec, Timestep
from jaxrl_fast.envs.env import Env, vectorize
from jaxrl_fast.learning.rollout import start, unroll


def always_right(carry, obs, first, key):
    action = jnp.ones(first.shape, jnp.int32)
    return action, jnp.where(first, 0, carry) + 1, {"steps_remembered": carry}


@pytest.fixture(scope="module")
def rollouts():
    """Return two consecutive rollouts of 7 steps, walking right until falling off or 3 steps."""
    env = tiny.line(discrete=True, limit=3)

    def both(key):
        state = start(env, jnp.zeros(4, jnp.int32), key)
        state, one, sums_one = unroll(env, always_right, state, key, 7)
        _, two, sums_two = unroll(env, always_right, state, jax.random.fold_in(key, 1), 7)
        whole = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), one, two)
        return whole, sums_one, sums_two

    return jax.tree.map(np.asarray, jax.jit(both)(jax.random.key(0)))


def test_each_step_follows_from_the_one_before(rollouts):
    whole, _, _ = rollouts
    done = whole.terminated | whole.truncated
    np.testing.assert_array_equal(whole.obs[1:][~done[:-1]], whole.next_obs[:-1][~done[:-1]])
    np.testing.assert_allclose(whole.next_obs[..., 0], whole.obs[..., 0] + 1.0, atol=1e-6)
    np.testing.assert_allclose(whole.reward, 1.0 - np.abs(whole.next_obs[..., 0]), atol=1e-6)


def test_first_marks_the_step_after_an_end_and_the_very_first(rollouts):
    whole, _, _ = rollouts
    done = whole.terminated | whole.truncated
    assert whole.terminated.any()
    assert whole.truncated.any()
    assert whole.first[0].all()
    np.testing.assert_array_equal(whole.first[1:], done[:-1])
    assert (
        np.abs(whole.obs[whole.first][:, 0]) <= 1.0
    ).all()  # a new initial state, not the terminal observation


def test_the_memory_of_the_policy_is_carried_from_rollout_to_rollout(rollouts):
    whole, _, _ = rollouts
    carried = whole.extras["steps_remembered"]
    assert carried[7].max() > 0
    np.testing.assert_array_equal(carried[1:], np.where(whole.first[:-1], 0, carried[:-1]) + 1)


def test_sums_over_episodes_equal_those_counted_by_hand(rollouts):
    whole, sums_one, sums_two = rollouts
    episodes, returns, lengths = 0, 0.0, 0
    for env in range(4):
        total, length = 0.0, 0
        for t in range(14):
            total, length = total + whole.reward[t, env], length + 1
            if whole.terminated[t, env] or whole.truncated[t, env]:
                episodes, returns, lengths = episodes + 1, returns + total, lengths + length
                total, length = 0.0, 0
    assert sums_one["episodes"] + sums_two["episodes"] == episodes
    assert sums_one["episode_length_sum"] + sums_two["episode_length_sum"] == lengths
    np.testing.assert_allclose(
        sums_one["episode_return_sum"] + sums_two["episode_return_sum"], returns, rtol=1e-5
    )
    assert sums_one["nonfinite_step"] == sums_two["nonfinite_step"] == -1


def test_the_first_step_that_is_not_finite_is_named():
    def step(t, action, key):
        t = t + 1
        no = jnp.zeros((), bool)
        reward = jnp.where(t >= 3, jnp.nan, 0.0)
        return t, Timestep(t[None].astype(jnp.float32), t[None].astype(jnp.float32), reward, no, no)

    def reset(key, params):
        return jnp.zeros((), jnp.int32), jnp.zeros(1)

    spec = EnvSpec("bad", jax.ShapeDtypeStruct((1,), jnp.float32), Discrete(2))
    env = vectorize(Env(spec, reset, step), num_envs=2)
    metrics = jax.jit(
        lambda key: unroll(env, always_right, start(env, jnp.zeros(2, jnp.int32), key), key, 5)[2]
    )
    assert metrics(jax.random.key(0))["nonfinite_step"] == 2


def test_every_key_of_a_rollout_is_used_once():
    """Starts, steps and actions of each environment draw numbers that are all different.

    An action splits its key as a step does, so that a key that both get gives equal numbers.
    """

    def drawn(key):
        return jax.random.bits(key, (1,), jnp.uint32).astype(jnp.int32)

    def step(state, action, key):
        no = jnp.zeros((), bool)
        return state, Timestep(drawn(key), drawn(key), jnp.zeros(()), no, no)

    def act(carry, obs, first, key):
        return (
            jnp.zeros(first.shape, jnp.int32),
            carry,
            {"drawn": jax.vmap(drawn)(jax.random.split(key, first.size))},
        )

    spec = EnvSpec("keys", jax.ShapeDtypeStruct((1,), jnp.int32), Discrete(2), max_episode_steps=2)
    env = vectorize(Env(spec, lambda key, params: ((), drawn(key)), step), num_envs=3)
    run = jax.jit(lambda one, other: unroll(env, act, start(env, (), one), other, 5)[1])
    rollout = run(jax.random.key(0), jax.random.key(1))
    starts = rollout.obs[rollout.first]
    numbers = np.concatenate(
        [np.ravel(x) for x in (starts, rollout.next_obs, rollout.extras["drawn"])]
    )
    assert len(starts) == 9 and len(set(numbers.tolist())) == len(numbers) == 9 + 15 + 15
