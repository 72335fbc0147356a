"""gymnax: every id steps, and the adapter's step equals gymnax's step."""

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_fast import envs
from jaxrl_fast.core import Discrete
from jaxrl_fast.envs import from_gymnax
from jaxrl_fast.envs.env import FRESH_INTERVAL, vectorize
from jaxrl_fast.learning.rollout import start, unroll

NUM_ENVS = 2


def random_actions(space, key, shape):
    if isinstance(space, Discrete):
        return jax.random.randint(key, shape, 0, space.num_actions)
    return jax.random.uniform(
        key, (*shape, *space.low.shape), jnp.float32, space.low.min(), space.high.max()
    )


def shapes(obs):
    return jax.tree.map(lambda x: (x.shape, x.dtype), obs)


@pytest.mark.parametrize("id", from_gymnax.ids())
def test_every_id_steps(id):
    single = envs.make("gymnax", id=id)
    env = vectorize(single, num_envs=NUM_ENVS)

    @jax.jit
    def few_steps(key):
        def act(carry, obs, first, key):
            return random_actions(single.spec.action, key, (NUM_ENVS,)), carry, ()

        return unroll(env, act, start(env, (), key), key, 3)

    _, rollout, metrics = few_steps(jax.random.key(0))
    expected = jax.tree.map(lambda s: ((3, NUM_ENVS, *s.shape), s.dtype), single.spec.obs)
    assert shapes(rollout.obs) == expected
    assert metrics["nonfinite_step"] == -1


@pytest.mark.parametrize("id", ["CartPole-v1", "Pendulum-v1"])
def test_a_step_is_gymnax_own(id):
    """Check that the same keys and actions give the results of gymnax's `step_env`."""
    single, params = gymnax.make(id)
    ours = envs.make("gymnax", id=id)
    key = jax.random.key(3)
    obs, theirs = single.reset_env(key, params)
    state, our_obs = ours.reset(key, ())
    np.testing.assert_array_equal(our_obs, obs)
    step, their_step = jax.jit(ours.step), jax.jit(single.step_env)
    for i in range(30):
        action = random_actions(ours.spec.action, jax.random.fold_in(key, i), ())
        obs, theirs, reward, terminated, _ = their_step(key, theirs, action, params)
        state, timestep = step(state, action, key)
        np.testing.assert_allclose(timestep.next_obs, obs, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(timestep.reward, reward, rtol=1e-5)
        assert bool(timestep.terminated) == bool(terminated)
        if terminated:
            break
    assert i >= FRESH_INTERVAL - 1


@pytest.mark.parametrize("id", ["CartPole-v1", "Catch-bsuite", "DeepSea-bsuite"])
def test_long_episodes_are_as_long_as_declared(id):
    """Check `LONG_EPISODES` under every constant action."""
    single = envs.make("gymnax", id=id)
    assert single.shortest_episode == FRESH_INTERVAL

    @jax.jit
    def ended_early(key, action):
        state, _ = single.reset(key, ())

        def step(state, key):
            state, timestep = single.step(state, action, key)
            return state, timestep.terminated

        return jax.lax.scan(step, state, jax.random.split(key, FRESH_INTERVAL - 1))[1]

    keys = jax.random.split(jax.random.key(0), 500)
    for action in range(single.spec.action.num_actions):
        assert not np.any(jax.vmap(ended_early, (0, None))(keys, jnp.int32(action)))


def test_discrete_observations_are_one_hot():
    _, obs = envs.make("frozen_lake").reset(jax.random.key(0), ())
    np.testing.assert_array_equal(obs, np.eye(16)[0])


def test_the_time_limit_truncates():
    single = envs.make("cartpole", episode_length=3)
    state, _ = single.reset(jax.random.key(0), ())
    ends = []
    for _ in range(3):
        state, timestep = single.step(state, jnp.int32(0), jax.random.key(0))
        ends.append((bool(timestep.terminated), bool(timestep.truncated)))
    assert ends == [(False, False), (False, False), (False, True)]
    assert single.spec.max_episode_steps == 3


def test_options_are_gymnax_parameters():
    assert envs.make("pendulum", max_torque=1.0).spec.action.high == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"id": "MNISTBandit-bsuite"},
            "MNISTBandit-bsuite is not supported: it downloads a data set",
        ),
        (
            {"id": "CartPole-v1", "gravty": 1.0},
            "has no option 'gravty': write one of force_mag, gravity",
        ),
        (
            {"id": "CartPole-v1", "episode_length": 0},
            "episode_length=0: write a number of at least 1",
        ),
    ],
)
def test_what_cannot_run_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        envs.make("gymnax", **options)


def test_unbounded_actions_are_refused():
    class Unbounded(type(gymnax.make("Pendulum-v1")[0])):
        def action_space(self, params=None):
            return gymnax.environments.spaces.Box(-jnp.inf, jnp.inf, (1,))

    with pytest.raises(ValueError, match="unbounded actions"):
        from_gymnax.adapt(Unbounded(), name="unbounded")
