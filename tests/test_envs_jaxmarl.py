"""JaxMARL's environments through the adapter, compared with JaxMARL.

Skipped where jaxmarl is not installed (pip install 'jaxrl_fast[jaxmarl]').
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_fast as jf
from jaxrl_fast import envs
from jaxrl_fast.assembly import bind
from jaxrl_fast.core import OUT, STATE, Discrete
from jaxrl_fast.envs.adapter_utils import relaxed
from jaxrl_fast.envs.env import vectorize

pytest.importorskip("jaxtyping")
adapter = pytest.importorskip("jaxrl_fast.suites.from_jaxmarl")
KEY = jax.random.key(3)


def test_simple_spread_is_jaxmarls_own_but_for_the_end_of_its_episodes():
    env, raw = envs.make("spread"), adapter.jaxmarl.make("MPE_simple_spread_v3")
    assert (env.spec.num_agents, env.spec.action, env.spec.shared_reward) == (3, Discrete(5), False)
    (state, _), (_, own) = jax.jit(env.reset)(KEY, ()), relaxed(raw.reset)(KEY)
    step, step_raw = jax.jit(env.step), relaxed(raw.step_env)
    for t in range(env.spec.max_episode_steps):
        key = jax.random.fold_in(KEY, t)
        action = jax.random.randint(key, (3,), 0, 5)
        state, timestep = step(state, action, key)
        obs, own, reward, done, _ = step_raw(
            key, own, {name: action[i] for i, name in enumerate(raw.agents)}
        )
        np.testing.assert_allclose(
            timestep.obs["obs"], [obs[name] for name in raw.agents], rtol=1e-5
        )
        np.testing.assert_allclose(
            timestep.reward, [reward[name] for name in raw.agents], rtol=1e-5
        )
        assert not timestep.terminated  # truncated, not terminated
        assert bool(done["__all__"]) == (t == env.spec.max_episode_steps - 1)


def test_a_battle_has_a_state_masks_and_units_that_are_out():
    single = envs.make("smax_3m")
    assert single.spec.shared_reward and set(single.spec.obs) == {"obs", "action_mask", STATE, OUT}
    env = vectorize(single, num_envs=8)

    @jax.jit
    def play(key):
        start = env.reset(key)
        bank = env.draw_fresh(key, 1)

        def step(carry, key):
            state, obs = carry
            action = jax.random.categorical(key, jnp.where(obs["action_mask"], 0.0, -1e9))
            state, timestep = env.step(state, action, key, bank, 0)
            return (state, timestep.obs), timestep

        return jax.lax.scan(step, start, jax.random.split(key, 60))[1]

    played = play(KEY)
    assert played.reward.shape == (60, 8) and played.terminated.any()
    out, allowed = np.asarray(played.next_obs[OUT]), np.asarray(played.next_obs["action_mask"])
    assert out.any() and not out.all() and not out[np.asarray(played.terminated)].any()
    assert (allowed[out].sum(axis=-1) == 1).all()  # no action is left


def test_unequal_agents_are_filled_up_to_the_largest():
    env = envs.make("jaxmarl", id="MPE_simple_speaker_listener_v4")
    assert env.spec.own_sizes == ((3, 3), (11, 5)) and env.spec.action == Discrete(5)
    _, first = env.reset(KEY, ())
    assert (
        first["obs"].shape == (2, 11)
        and not first["obs"][0, 3:].any()
        and first["obs"][1, 3:].any()
    )
    assert first["action_mask"].tolist() == [[True] * 3 + [False] * 2, [True] * 5]
    with pytest.raises(ValueError, match=r"3 and 3, 11 and 5.*write algo.share_parameters=false"):
        bind(jf.mappo(), env.spec, 4)


@pytest.mark.parametrize("id", ["MPE_simple_spread_v3", "HeuristicEnemySMAX"])
def test_a_world_is_drawn(id: str):
    env = envs.make("jaxmarl", id=id)
    assert env.draw is not None
    picture = env.draw(env.reset(KEY, ())[0])
    assert picture.dtype == np.uint8 and picture.shape == (640, 640, 3)
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 2


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "smax_3m",
            {"num_agents": 5},
            "env.num_agents=5: HeuristicEnemySMAX has 3 agents: leave it out",
        ),
        ("spread", {"banana": 1}, "has no option 'banana': write one of .*num_landmarks"),
        (
            "jaxmarl",
            {"id": "HeuristicEnemySMAX", "scenario": "9x"},
            "env.scenario=9x: write one of 3m, ",
        ),
        ("jaxmarl", {"id": "MPE_spread"}, "nearest: MPE_simple_spread_v3"),
    ],
)
def test_a_world_that_cannot_be_is_refused(name: str, options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        envs.make(name, **options)
