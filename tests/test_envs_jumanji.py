"""Jumanji's environments through the adapter, compared with Jumanji.

Skipped where jumanji is not installed (pip install 'jaxrl_fast[jumanji]').
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_fast as jf
from jaxrl_fast import envs
from jaxrl_fast.core import Discrete
from jaxrl_fast.envs.adapter_utils import relaxed
from jaxrl_fast.envs.env import Env, vectorize

pytest.importorskip("jumanji")
adapter = pytest.importorskip("jaxrl_fast.suites.from_jumanji")
KEY = jax.random.key(3)


def played(env: Env, steps: int, num_envs: int):
    vec = vectorize(env, num_envs=num_envs)

    @jax.jit
    def play(key):
        start, bank = vec.reset(key), vec.draw_fresh(key, 1)

        def step(carry, xs):
            state, obs = carry
            action = jax.random.categorical(xs, jnp.where(obs["action_mask"], 0.0, -1e9))
            state, timestep = vec.step(state, action, xs, bank, 0)
            return (state, timestep.obs), (action, timestep)

        return start, jax.lax.scan(step, start, jax.random.split(key, steps))[1]

    return play(KEY)


def test_foraging_is_jumanjis_own_and_its_time_limit_cuts():
    env = envs.make("lbf")
    assert (env.spec.num_agents, env.spec.action, env.spec.shared_reward) == (2, Discrete(6), False)
    raw = adapter.LevelBasedForaging(time_limit=100)
    (state, _), (actions, steps) = played(env, 100, 16)
    own = jax.jit(jax.vmap(relaxed(raw.step)))
    state, ended = state.env_state, np.zeros(16, bool)
    for t in range(100):
        state, given = own(state, actions[t])
        going = ~ended
        seen = jax.tree.map(lambda x, t=t: np.asarray(x[t]), steps.next_obs)
        np.testing.assert_array_equal(seen["obs"][going], given.observation.agents_view[going])
        np.testing.assert_array_equal(
            seen["action_mask"][going], given.observation.action_mask[going]
        )
        np.testing.assert_allclose(steps.reward[t][going], given.reward[going], rtol=1e-6)
        done = np.asarray(steps.terminated[t] | steps.truncated[t])
        np.testing.assert_array_equal(done[going], given.last()[going])
        ended |= done
    # random actions never collect all food, and an episode truncated at step 100 still bootstraps
    assert ended.all() and steps.truncated[99].any() and not steps.truncated[:99].any()
    assert np.abs(steps.reward).sum() > 0


def test_foraging_ends_with_the_last_food_which_is_a_success():
    env = envs.make("lbf")
    state, _ = jax.jit(env.reset)(KEY, ())
    state = state.replace(food_items=state.food_items.replace(eaten=jnp.ones(2, bool)))
    state, last = jax.jit(env.step)(state, jnp.zeros(2, jnp.int32), KEY)
    assert last.terminated and env.success(state)


def test_a_warehouse_shares_its_reward():
    env = envs.make("rware", num_agents=2, episode_length=20)
    assert env.spec.shared_reward and env.spec.num_agents == 2 and env.spec.max_episode_steps == 20
    (_, first), (_, steps) = played(env, 20, 4)
    assert first["obs"].dtype == jnp.float32 and steps.reward.shape == (20, 4)
    # masks forbid most collisions
    assert steps.truncated[19].any() and not steps.terminated[19].any()


@pytest.mark.parametrize("name", ["lbf", "rware"])
def test_a_world_is_drawn(name: str):
    env = envs.make(name)
    picture = env.draw(jax.jit(env.reset)(KEY, ())[0])
    assert picture.dtype == np.uint8 and max(picture.shape) <= 640 and picture.shape[2] == 3
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 3


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "jumanji",
            {"id": "Snake-v2"},
            "env.id=Snake-v2: jumanji has no such environment; nearest: Snake-v1",
        ),
        (
            "jumanji",
            {"id": "Snake-v1", "banana": 1},
            "has no option 'banana': write one of episode_length, num",
        ),
        (
            "jumanji",
            {"id": "Snake-v1", "time_limit": 9},
            "no option 'time_limit': write one of episode_length, num",
        ),
        (
            "jumanji",
            {"id": "Snake-v1", "num_rows": "x"},
            "env.num_rows=x: write a number, such as 12",
        ),
        (
            "jumanji",
            {"id": "Snake-v1", "num_rows": 0},
            "env.num_rows=0: write a whole number of at least 1",
        ),
        (
            "jumanji",
            {"id": "Snake-v1", "episode_length": 0},
            "env.episode_length=0: write a number",
        ),
        (
            "jumanji",
            {"id": "Snake-v1", "num_agents": 2},
            "env.num_agents=2: jumanji Snake-v1 takes none: leave it out",
        ),
        (
            "lbf",
            {"banana": 1},
            "jumanji LevelBasedForaging has no option 'banana': write one of .*grid_size",
        ),
        ("lbf", {"grid_size": 4}, "does not take these options: Grid size must be"),
        ("lbf", {"num_agents": 0}, "env.num_agents=0: write a number of at least 1"),
        ("lbf", {"force_coop": 1}, "env.force_coop=1: write true or false"),
        ("rware", {"shelf_columns": 2}, "does not take these options: .*odd number"),
    ],
)
def test_a_world_that_cannot_be_is_refused(name: str, options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        envs.make(name, **options)


def test_agents_learn_to_forage():
    """Food that one agent can take alone; two random agents collect about a third of it in 25
    steps.
    """
    env = jf.make_env(
        "lbf", num_envs=64, grid_size=5, num_food=1, force_coop=False, episode_length=25
    )
    algo = jf.ippo(
        rollout_length=25, num_minibatches=4, learning_rate=2e-3, normalize_observations=True
    )
    result = jf.learn(
        env, algo, total_steps=160_000, eval_every=160_000, eval_episodes=64, eval_beside=False
    )
    assert result.summary["eval_return_mean"] > 0.8, result.summary["eval_return_mean"]
