"""Invariants of vectorized environments: no leaks between batch elements, new initial states at
resets, termination distinct from truncation, correct totals.
"""

from typing import NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxrl_fast as jf
from jaxrl_fast.core import Discrete, EnvSpec, Timestep, over_two_axes
from jaxrl_fast.envs import from_gymnax
from jaxrl_fast.envs.env import FRESH_INTERVAL, Env, vectorize
from jaxrl_fast.learning.rollout import sample_compiled, start, unroll
from jaxrl_fast.runtime.graph import Fragment, step_of

NUM_ENVS = 4


class Walk(NamedTuple):
    """``name``: a number drawn at reset that identifies the episode; ``time``: steps since the
    reset.
    """

    name: jax.Array
    time: jax.Array


def walk(*, ends_at: int | None = None, limit: int | None = None, shortest: int = 1) -> Env:
    """Observes (name, time), pays action + time, terminates after ``ends_at`` steps; action 2 pays
    NaN.
    """

    def observe(state: Walk) -> jax.Array:
        return jnp.stack([state.name, state.time.astype(jnp.float32)])

    def reset(key, params):
        state = Walk(jax.random.uniform(key), jnp.zeros((), jnp.int32))
        return state, observe(state)

    def step(state, action, key):
        state = state._replace(time=state.time + 1)
        reward = jnp.where(action == 2, jnp.nan, (action + state.time).astype(jnp.float32))
        ended = jnp.asarray(False if ends_at is None else state.time >= ends_at)
        return state, Timestep(observe(state), observe(state), reward, ended, jnp.zeros((), bool))

    spec = EnvSpec("walk", jax.ShapeDtypeStruct((2,), jnp.float32), Discrete(3), limit)
    return Env(spec, reset, step, shortest_episode=shortest)


def scripted(actions):
    """Build a policy that plays ``actions`` ``[T, E]`` in turn; its memory is the index."""
    actions = jnp.asarray(actions, jnp.int32)
    return lambda index, obs, first, key: (actions[index[0]], index + 1, ())


def play(env: Env, actions, seed: int = 0, num_steps: int | None = None):
    """Return the final state and all rollouts of ``num_steps`` steps (default: one rollout) under
    scripted actions, joined.
    """
    num_envs = np.shape(actions)[1]
    vec_env = vectorize(env, num_envs=num_envs)
    num_steps = num_steps or len(actions)
    state = start(vec_env, jnp.zeros(num_envs, jnp.int32), jax.random.key(seed))
    step = jax.jit(lambda s, k: unroll(vec_env, scripted(actions), s, k, num_steps))
    rollouts, metrics = [], []
    for i in range(len(actions) // num_steps):
        state, rollout, own = step(state, jax.random.key(100 * seed + i))
        rollouts.append(rollout)
        metrics.append(own)
    joined = jax.tree.map(lambda *xs: np.concatenate([np.asarray(x) for x in xs]), *rollouts)
    return joined, metrics


def test_environments_do_not_leak_into_each_other():
    actions = np.zeros((10, NUM_ENVS), int)
    changed = actions.copy()
    changed[:, 1] = 2
    before, _ = play(walk(ends_at=3), actions)
    after, _ = play(walk(ends_at=3), changed)
    others = [0, 2, 3]
    for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(a[:, others], b[:, others])
    assert np.isnan(after.reward[:, 1]).all()


def test_next_obs_is_the_true_successor_and_obs_a_fresh_start():
    rollout, _ = play(walk(ends_at=3), np.zeros((12, NUM_ENVS), int))
    done = rollout.terminated | rollout.truncated
    assert done.sum() == 4 * NUM_ENVS
    np.testing.assert_array_equal(rollout.next_obs[..., 0], rollout.obs[..., 0])
    np.testing.assert_array_equal(rollout.next_obs[..., 1], rollout.obs[..., 1] + 1)
    running = ~done[:-1]
    np.testing.assert_array_equal(rollout.obs[1:][running], rollout.next_obs[:-1][running])
    assert (rollout.obs[1:][~running][:, 1] == 0).all()
    np.testing.assert_array_equal(rollout.first[1:], done[:-1])
    assert rollout.first[0].all()


@pytest.mark.parametrize(
    ("ends_at", "limit", "terminated"),
    [(3, None, True), (None, 3, False), (3, 3, True), (3, 5, True), (5, 3, False)],
)
def test_terminated_and_truncated_are_told_apart(ends_at, limit, terminated):
    rollout, _ = play(walk(ends_at=ends_at, limit=limit), np.zeros((9, NUM_ENVS), int))
    expected = np.zeros((9, NUM_ENVS), bool)
    expected[2::3] = True
    np.testing.assert_array_equal(rollout.terminated, expected & terminated)
    np.testing.assert_array_equal(rollout.truncated, expected & (not terminated))


@settings(max_examples=6)
@given(
    ends_at=st.integers(1, 9),
    limit=st.one_of(st.none(), st.integers(1, 9)),
    num_steps=st.sampled_from([1, 5, 10]),
    seed=st.integers(0, 99),
)
def test_episode_totals_survive_the_border_between_rollouts(ends_at, limit, num_steps, seed):
    actions = np.random.default_rng(seed).integers(0, 2, (20, 3))
    rollout, metrics = play(walk(ends_at=ends_at, limit=limit), actions, num_steps=num_steps)
    episodes = whole_episodes(rollout.reward, min(ends_at, limit or ends_at))
    assert sum(int(m["episodes"]) for m in metrics) == len(episodes)
    assert sum(int(m["episode_length_sum"]) for m in metrics) == sum(len(e) for e in episodes)
    np.testing.assert_allclose(
        sum(float(m["episode_return_sum"]) for m in metrics), sum(map(sum, episodes)), rtol=1e-6
    )


def whole_episodes(reward, length):
    """Slow reference: cut each environment's rewards ``[T, E]`` every ``length`` steps, without the
    partial rest.
    """
    columns = reward.T
    return [list(c[i : i + length]) for c in columns for i in range(0, len(c) - length + 1, length)]


@settings(max_examples=6)
@given(
    ends_at=st.integers(1, 12),
    shortest=st.integers(1, 12),
    num_steps=st.sampled_from([1, 3, 8, 13, 24]),
    seed=st.integers(0, 99),
)
def test_no_episode_repeats_the_start_of_another(ends_at, shortest, num_steps, seed):
    """Also where a rollout is no multiple of the interval, and in environments of one step."""
    env = walk(ends_at=ends_at, shortest=min(shortest, ends_at))
    rollout, _ = play(
        env, np.zeros((num_steps * (24 // num_steps), 3), int), seed, num_steps=num_steps
    )
    names = rollout.obs[..., 0][rollout.first]
    assert len(set(names.tolist())) == len(names)


@settings(max_examples=8)
@given(
    ends_at=st.integers(1, 5),
    num_envs=st.sampled_from([1, 3, 8, 24, 40]),
    steps=st.integers(1, 40),
    num_steps=st.sampled_from([1, 8, 24]),
    seed=st.integers(0, 99),
)
def test_an_environment_never_starts_twice_from_one_state_where_resets_are_shared(
    ends_at, num_envs, steps, num_steps, seed
):
    env = walk(ends_at=ends_at, shortest=ends_at)._replace(steps_per_reset=steps)
    rollout, _ = play(
        env, np.zeros((num_steps * (24 // num_steps), num_envs), int), seed, num_steps=num_steps
    )
    for names, first in zip(rollout.obs[..., 0].T, rollout.first.T, strict=True):
        assert len(set(names[first].tolist())) == first.sum()


def test_resets_that_cost_more_than_steps_are_drawn_as_often_as_declared():
    def rows(env: Env, num_envs: int) -> int:
        bank = jax.eval_shape(
            lambda k: vectorize(env, num_envs=num_envs).draw_fresh(k, 64), jax.random.key(0)
        )
        return jax.tree.leaves(bank)[0].shape[0]

    env = walk()._replace(steps_per_reset=32)
    assert [rows(env, num_envs) for num_envs in (1, 8, 64, 256)] == [64, 16, 2, 2]
    assert rows(walk(shortest=100)._replace(steps_per_reset=32), 8) == 2


def test_a_reset_bank_is_no_larger_than_it_must_be():
    def rows(env: Env, num_steps: int) -> int:
        bank = jax.eval_shape(
            lambda k: vectorize(env, num_envs=2).draw_fresh(k, num_steps), jax.random.key(0)
        )
        return jax.tree.leaves(bank)[0].shape[0]

    assert rows(walk(), 32) == 32
    assert rows(walk(shortest=100), 32) == 32 // FRESH_INTERVAL
    assert rows(walk(shortest=100), 33) == 32 // FRESH_INTERVAL + 1
    assert rows(walk(shortest=100, limit=2), 32) == 16


def test_a_nan_is_named_by_its_step():
    actions = np.zeros((9, NUM_ENVS), int)
    _, metrics = play(walk(ends_at=3), actions)
    assert metrics[0]["nonfinite_step"] == -1
    actions[4, 2] = actions[7, 0] = 2
    _, metrics = play(walk(ends_at=3), actions)
    assert metrics[0]["nonfinite_step"] == 4


def test_no_environment_at_all_is_refused():
    with pytest.raises(ValueError, match="num_envs=0: at least one environment"):
        vectorize(walk(), num_envs=0)


def test_sample_params_varies_gravity_per_environment_and_per_episode():
    """Domain randomization: Pendulum with a different gravity for every episode."""
    theirs, default = gymnax.make("Pendulum-v1")

    def sample_params(key):
        return default.replace(
            g=jax.random.uniform(key, minval=5.0, maxval=15.0), max_steps_in_episode=5
        )

    env = vectorize(
        from_gymnax.adapt(theirs, default, name="pendulum", sample_params=sample_params),
        num_envs=NUM_ENVS,
    )
    state = start(env, (), jax.random.key(0))

    def act(carry, obs, first, key):
        return jnp.zeros((NUM_ENVS, 1)), carry, ()

    _, rollout, _ = jax.jit(lambda s, k: unroll(env, act, s, k, 15))(state, jax.random.key(1))
    gravity = gravity_felt(np.asarray(rollout.obs), np.asarray(rollout.next_obs))
    np.testing.assert_array_equal(np.asarray(rollout.truncated).sum(axis=0), 3)
    per_episode = np.median(gravity.reshape(3, 5, NUM_ENVS), axis=1)
    np.testing.assert_allclose(
        gravity.reshape(3, 5, NUM_ENVS), np.broadcast_to(per_episode[:, None], (3, 5, 4)), rtol=0.02
    )
    assert len(np.unique(per_episode.round(3))) == 3 * NUM_ENVS
    assert per_episode.min() > 4.9 and per_episode.max() < 15.1


def gravity_felt(obs, next_obs):
    """Solve θ'' = 3 g / 2 l sin θ, one Euler step of 0.05 s without torque, for g (with m = l = 1)."""
    return (next_obs[..., 2] - obs[..., 2]) / 0.05 / (1.5 * obs[..., 1])


@pytest.mark.parametrize("shape", [(1, 1), (3, 4), (8, 1)])
def test_one_axis_for_two_gives_what_two_maps_give_to_the_bit(shape):
    def draw(key):
        first, second = jax.random.split(key)
        return {
            "state": jax.random.normal(first, (3,)),
            "key": jax.random.key_data(second),
            "one": jnp.float32(1),
        }

    keys = jax.random.split(jax.random.key(5), shape)
    got, want = (
        jax.jit(f)(keys) for f in (lambda keys: over_two_axes(draw, keys), jax.vmap(jax.vmap(draw)))
    )
    jax.tree.map(np.testing.assert_array_equal, got, want)


@settings(max_examples=8)
@given(
    ends_at=st.integers(1, 5),
    steps=st.integers(2, 24),
    rollout_length=st.sampled_from([1, 2, 3]),
    num_envs=st.sampled_from([1, 3, 8, 40]),
    seed=st.integers(0, 99),
)
def test_a_row_of_initial_states_that_lasts_over_ticks_is_never_started_from_twice(
    ends_at, steps, rollout_length, num_envs, seed
):
    env = vectorize(
        walk(ends_at=ends_at, shortest=ends_at)._replace(steps_per_reset=steps), num_envs=num_envs
    )
    act, draws = scripted(np.zeros((100, num_envs), int)), []

    def counted(key, num_steps):
        jax.debug.callback(draws.append, num_steps, ordered=True)
        return env.draw_fresh(key, num_steps)

    def make(env):
        def step(private, inputs, hyper, key):
            private, rollout, metrics = unroll(env, act, private, key, rollout_length)
            return private, {"rollout": rollout}, metrics

        return Fragment(
            "sample",
            lambda key: start(env, jnp.zeros(num_envs, jnp.int32), key),
            step,
            (),
            ("rollout",),
        )

    fragment = sample_compiled(make, env._replace(draw_fresh=counted), rollout_length)
    state, rollouts, ticks = fragment.init(jax.random.key(seed)), [], 24
    step = jax.jit(lambda state, key, tick: step_of(fragment, tick)(state, {}, None, key)[:2])
    for tick in range(ticks):
        state, written = step(state, jax.random.key(1000 * seed + tick), tick)
        rollouts.append(written["rollout"])
    jax.effects_barrier()
    rollout = jax.tree.map(lambda *xs: np.concatenate(xs), *rollouts)
    for names, first in zip(rollout.obs[..., 0].T, rollout.first.T, strict=True):
        assert len(set(names[first].tolist())) == first.sum()
    every = max(1, env.steps_per_draw // rollout_length)
    assert len(draws) == -(-ticks // every)


def test_a_lasting_row_serves_several_seeds_and_is_divided_over_devices():
    """Each seed as alone, and the same numbers however its environments are divided."""
    single = walk(ends_at=3, shortest=3)
    spec = single.spec._replace(action=Discrete(2))  # the third action pays NaN
    env = vectorize(single._replace(spec=spec, steps_per_reset=12), num_envs=8)
    assert env.steps_per_draw == 12
    options = {"total_steps": 400, "eval_every": 0}
    algorithm = jf.dqn(rollout_length=1, batch_size=8, q_hidden=(8,))

    def params(result):
        return jax.tree.leaves(jax.device_get(result.state.channels))

    together = params(jf.learn(env, algorithm, num_seeds=2, **options))
    alone = params(jf.learn(env, algorithm, **options))
    divided = params(jf.learn(env, algorithm, placement="data_parallel", devices=2, **options))
    for both, one, parts in zip(together, alone, divided, strict=True):
        np.testing.assert_allclose(both[0], one[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(parts[0], one[0], rtol=1e-4, atol=1e-5)
