"""Episodes of evaluation: the first one of each environment counts, and each step has another key."""

from operator import itemgetter
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import tiny

from jaxrl_fast.training.episodes import HostEvaluation, host_seed, play, play_on_host, player


def always_right(params, carry, obs, first, key):
    """Select the second action, and carry a number drawn by the key."""
    drawn = jnp.broadcast_to(jax.random.bits(key, (), jnp.uint32), first.shape)
    return jnp.ones(first.shape, jnp.int32), drawn


def no_carry(num_envs):
    return jnp.zeros(num_envs, jnp.uint32)


def check_first_episodes(totals, places, push: float = 1.0) -> None:
    """Compare totals with walks from these places by equal pushes, which end beyond 3 or -3."""
    for x, returned, length in zip(np.float64(places), totals.returns, totals.length, strict=True):
        wanted, steps = 0.0, 0
        while abs(x) <= 3.0:
            x, steps = x + push, steps + 1
            wanted += 1.0 - abs(x)
        assert length == steps
        np.testing.assert_allclose(returned, wanted, rtol=1e-5)
    # so that some environments are in a later episode at the end
    assert len(set(totals.length.tolist())) > 1


def test_only_the_first_episode_of_each_environment_counts():
    env, key = tiny.line(discrete=True, num_envs=8, limit=20), jax.random.key(3)
    totals = jax.jit(lambda key: play(always_right, no_carry, env, (), key))(key)
    check_first_episodes(totals, env.reset(jax.random.split(key)[0])[1][:, 0])


def test_only_the_first_episode_of_each_host_environment_counts():
    env = tiny.host_line(discrete=True, num_envs=8, num_groups=1, limit=20)
    places = env.reset(5)[:, 0]
    totals = play_on_host(
        lambda *given: (np.ones(8, np.int32), ()), lambda num_envs: (), env, (), 5
    )
    check_first_episodes(totals, places)


def test_each_seed_is_evaluated_with_its_params_and_from_its_starts():
    def act(params, carry, obs, first, key):
        return jnp.broadcast_to(params, first.shape), carry

    env, keys = (
        tiny.host_line(discrete=True, num_envs=4, num_groups=1, limit=20),
        jax.random.split(jax.random.key(0)),
    )
    evaluate = HostEvaluation(
        SimpleNamespace(act_arrays=act, initial_carry=lambda num_envs: ()), env, 8
    )
    totals = evaluate(jnp.array([1, 0], jnp.int32), keys)
    starts = [env.another(8).reset(host_seed(key))[:, 0] for key in keys]
    assert (starts[0] != starts[1]).all()
    for seed, push in enumerate((1.0, -1.0)):
        check_first_episodes(jax.tree.map(itemgetter(seed), totals), starts[seed], push)
    evaluate.close()


def test_each_step_of_an_evaluation_has_another_key():
    now, step = player(always_right, no_carry, tiny.line(discrete=True), (), jax.random.key(0))
    step, drawn = jax.jit(step), []
    for _ in range(4):
        now = step(now)
        drawn.append(int(now.carry[0]))
    assert len(set(drawn)) == 4
