"""brax: every environment traces with every backend, runs with one, and prints nothing while it
loads.
"""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_fast import envs
from jaxrl_fast.envs import from_brax


def default_backend(id: str) -> str:
    return envs.SHORT_NAMES[id].options["backend"] if id in envs.SHORT_NAMES else "spring"


def another_backend(number: int, id: str) -> str:
    """Return a backend other than the default, which runs below; backends alternate, so that each
    traces several environments.
    """
    others = [backend for backend in from_brax.BACKENDS if backend != default_backend(id)]
    return others[number % len(others)]


PAIRS = [(id, another_backend(number, id)) for number, id in enumerate(from_brax.ids())]


def kinds_of(tree):
    return [(path, x.shape, x.dtype) for path, x in jax.tree_util.tree_leaves_with_path(tree)]


@pytest.mark.parametrize(("id", "backend"), PAIRS)
def test_every_environment_traces_on_another_backend_too(id, backend):
    single = envs.make("brax", id=id, backend=backend)
    action = jax.ShapeDtypeStruct(single.spec.action.low.shape, jnp.float32)

    def reset_and_step(key, action):
        state, _ = single.reset(key, ())
        following, timestep = single.step(state, action, key)
        return state, following, timestep

    state, following, timestep = jax.eval_shape(reset_and_step, jax.random.key(0), action)
    # Compare the leaves: mjx's states hold arrays that are not leaves, which Python 3.13 cannot
    # compare.
    assert kinds_of(state) == kinds_of(following)
    assert timestep.next_obs == single.spec.obs


@pytest.mark.parametrize("id", from_brax.ids())
def test_every_environment_runs(id):
    """Check a few steps under full thrust: finite numbers, motion, and no episode shorter than
    declared.
    """
    single = envs.make("brax", id=id, backend=default_backend(id))

    @jax.jit
    def few_steps(key):
        thrust = jnp.sign(jax.random.normal(key, single.spec.action.low.shape))
        state, obs = single.reset(key, ())
        return obs, jax.lax.scan(lambda state, _: single.step(state, thrust, key), state, length=7)[
            1
        ]

    obs, steps = few_steps(jax.random.key(0))
    assert jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), obs) == single.spec.obs
    assert all(np.isfinite(x).all() for x in (*jax.tree.leaves(steps.next_obs), steps.reward))
    assert not steps.terminated[: single.shortest_episode - 1].any()
    assert np.any(np.asarray(steps.next_obs[0]) != np.asarray(obs))


def test_a_step_leaves_the_state_it_was_given_alone():
    """brax's hopper writes into the dictionary of metrics that it is given."""
    single = envs.make("hopper")

    def kept(key):
        state, _ = single.reset(key, ())
        before = dict(state.metrics)
        single.step(state, jnp.zeros(3), key)
        assert all(state.metrics[name] is value for name, value in before.items())
        return key

    jax.eval_shape(kept, jax.random.key(0))


def test_dictionary_observations():
    single = envs.make("brax", id="fast", obs_mode="dict_state")
    assert single.spec.obs == {"state": jax.ShapeDtypeStruct((2,), jnp.float32)}


def test_loading_is_quiet(tmp_path):
    script = "from jaxrl_fast import envs; envs.make('halfcheetah')"
    ran = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}; {script}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"id": "swimmer"}, "swimmer does not run on this JAX: brax 0.14.2 calls"),
        (
            {"id": "ant", "backend": "warp"},
            "env.backend=warp: write one of generalized, positional, spring, mjx",
        ),
        ({"id": "ant", "speed": 1}, "brax ant does not take these options: .*'speed'"),
        ({"id": "ant", "episode_length": 0}, "episode_length=0"),
    ],
)
def test_what_cannot_run_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        envs.make("brax", **options)


def test_swimmer_is_still_broken():
    """If this test fails, brax has fixed the bug: remove the environment from `REFUSED`."""
    with from_brax.quiet():
        single = from_brax.brax_envs.get_environment("swimmer")
    single = from_brax.adapt(single, name="swimmer")
    with pytest.raises(TypeError, match="a_min"):
        jax.eval_shape(
            lambda key: single.step(single.reset(key, ())[0], jnp.zeros(2), key), jax.random.key(0)
        )
