"""Suites of other libraries through their adapters: the same numbers, no broken rule, and one line
for wrong words.

A suite that is not installed is skipped (``make suites`` installs those that go together).
"""

import bz2
import pickle
import sys
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_fast as jf
from jaxrl_fast import envs
from jaxrl_fast.commands.run_config import compose
from jaxrl_fast.core import Box, Discrete, MultiDiscrete
from jaxrl_fast.envs.adapter_utils import relaxed
from jaxrl_fast.envs.env import Env, vectorize
from jaxrl_fast.envs.episode_metrics import values_of

PACKAGES = {"playground": "mujoco_playground"}
KEY = jax.random.key(3)

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs


def needs(suite: str) -> None:
    if find_spec(PACKAGES.get(suite, suite)) is None:
        pytest.skip(f"{suite} is not installed")


def made(suite: str, **options: Any) -> Env:
    needs(suite)
    return envs.make(suite, **options)


def random_action(env: Env, key: jax.Array, obs: Any) -> jax.Array:
    space = env.spec.action
    if isinstance(space, Box):
        return jax.random.uniform(key, space.low.shape, minval=space.low, maxval=space.high)
    if isinstance(space, MultiDiscrete):
        return jax.random.randint(key, (len(space.sizes),), 0, jnp.asarray(space.sizes))
    allowed = (
        obs["action_mask"]
        if isinstance(obs, dict) and "action_mask" in obs
        else jnp.ones(space.num_actions, bool)
    )
    return jax.random.categorical(key, jnp.where(allowed, 0.0, -jnp.inf))


def played(env: Env, steps: int, key: jax.Array = KEY) -> Any:
    """Play one environment without resets; return its first state, actions, states and time steps."""

    @jax.jit
    def play(key: jax.Array) -> Any:
        first, obs = env.reset(key, env.sample_params(jax.random.fold_in(key, 1)))

        def step(carried: Any, key: jax.Array) -> Any:
            state, obs = carried
            action = random_action(env, key, obs)
            state, ts = env.step(state, action, key)
            return (state, ts.obs), (action, state, ts)

        return first, jax.lax.scan(step, (first, obs), jax.random.split(key, steps))[1]

    return play(key)


def batch_played(env: Env, num_envs: int, steps: int) -> Any:
    """Play a batch of environments with random actions; return the time steps."""
    vec = vectorize(env, num_envs=num_envs)

    @jax.jit
    def play(key: jax.Array) -> Any:
        start, bank = vec.reset(key), vec.draw_fresh(key, steps)

        def step(carried: Any, t: jax.Array) -> Any:
            state, obs = carried
            now = jax.random.fold_in(key, t)
            actions = jax.vmap(lambda key, obs: random_action(env, key, obs))(
                jax.random.split(now, num_envs), obs
            )
            state, ts = vec.step(state, actions, now, bank, t)
            return (state, ts.obs), ts

        return jax.lax.scan(step, start, jnp.arange(steps))[1]

    return play(KEY)


RULES = [
    ("playground", {"id": "CartpoleSwingup"}),
    ("playground", {"id": "ReacherEasy"}),
    ("craftax", {"id": "Craftax-Classic-Symbolic-v1"}),
    ("xminigrid", {"id": "XLand-MiniGrid-R1-9x9"}),
    ("xminigrid", {"id": "MiniGrid-DoorKey-5x5"}),
    ("pgx", {"id": "2048"}),
    ("pgx", {"id": "minatar-breakout"}),
    ("pgx", {"id": "tic_tac_toe", "opponent": "one_ply"}),
    ("octax", {"id": "pong"}),
    ("navix", {"id": "Navix-Empty-5x5-v0"}),
    ("jumanji", {"id": "Snake-v1"}),
    ("jumanji", {"id": "Cleaner-v0"}),
    ("jumanji", {"id": "Minesweeper-v0"}),
    ("jumanji", {"id": "SearchAndRescue-v0"}),
]


@pytest.mark.parametrize(
    ("suite", "options"), RULES, ids=lambda x: x if isinstance(x, str) else x["id"]
)
def test_it_follows_the_rules_of_an_environment(suite: str, options: dict):
    report = jf.check_env(made(suite, **options), num_steps=100, tell=lambda line: None)
    assert not report.wrong, str(report)
    assert report.steps_per_s > 0


DRAWN = [
    ("craftax", "Craftax-Classic-Symbolic-v1"),
    ("xminigrid", "MiniGrid-Empty-8x8"),
    ("pgx", "connect_four"),
    ("octax", "pong"),
    ("navix", "Navix-Empty-5x5-v0"),
    ("jumanji", "Snake-v1"),
]


@pytest.mark.parametrize(("suite", "id"), DRAWN, ids=lambda x: x)
def test_a_picture_shows_the_state(suite: str, id: str):
    env = made(suite, id=id)
    first, (_, states, _) = played(env, 9)
    pictures = [
        env.draw(state)
        for state in (first, *(jax.tree.map(lambda x, t=t: x[t], states) for t in (2, 5, 8)))
    ]
    assert all(picture.dtype == np.uint8 and picture.shape[2:] == (3,) for picture in pictures)
    assert any((picture != pictures[0]).any() for picture in pictures[1:])


def test_a_game_of_pgx_with_many_layers_has_no_picture():
    assert made("pgx", id="chess").draw is None


def test_playground_gives_playgrounds_own_numbers():
    env = made("playground", id="FingerSpin", episode_length=30)
    from mujoco_playground import registry

    own = registry.load("FingerSpin", config_overrides={"impl": "jax"})
    first, (actions, _, steps) = played(env, 20)
    state, step = first, jax.jit(relaxed(own.step))
    for t in range(20):
        state = step(state, actions[t])
        np.testing.assert_allclose(steps.obs[t], state.obs, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(steps.reward[t], state.reward, atol=1e-3)
    assert (
        env.spec.max_episode_steps == 30
        and env.steps_per_reset is not None
        and env.bodies is not None
    )


def test_playgrounds_episodes_have_different_models_with_its_domain_randomization():
    made("playground", id="CartpoleBalance")
    from jaxrl_fast.suites import from_playground

    base = from_playground.registry.load("CartpoleBalance", config_overrides={"impl": "jax"})
    mass = base.mjx_model.body_mass
    models = base.mjx_model.replace(body_mass=jnp.stack([mass, 3.0 * mass]))
    axes = jax.tree.map(lambda x: None, base.mjx_model).replace(body_mass=0)
    env = from_playground.adapt(
        from_playground.OneModel(base, "_mjx_model", models, axes), name="two masses"
    )
    pushed = []
    for seed in range(8):
        state, _ = jax.jit(env.reset)(jax.random.key(seed), ())
        pushed.append(
            (
                int(state.info["model"]),
                float(jax.jit(env.step)(state, jnp.ones(1), KEY)[0].data.qvel[0]),
            )
        )
    light, heavy = (np.mean([v for model, v in pushed if model == which]) for which in (0, 1))
    assert light > 1.5 * heavy


def test_craftax_reports_achievements_and_its_time_limit_truncates():
    env = made("craftax", id="Craftax-Classic-Symbolic-v1", episode_length=12)
    assert len(env.spec.metrics) == 23 and env.spec.metrics["achievements"] == "last"
    steps = batch_played(env, 8, 12)
    assert steps.truncated[-1].all() and not steps.terminated.any()
    reached = values_of(
        env.spec.metrics, jax.tree.map(lambda x: np.asarray(x[-1]), steps.episode.metrics)
    )
    np.testing.assert_allclose(reached[:, 0], reached[:, 1:].sum(-1))  # the number, and each
    assert reached[:, 0].max() >= 1, "somebody wakes, drinks or gathers something in 12 steps"


def test_craftax_in_pixels_is_bytes():
    needs("craftax")
    pytest.importorskip("craftax")
    env = made("craftax", id="Craftax-Classic-Pixels-v1")
    _, obs = jax.jit(env.reset)(KEY, ())
    assert (obs.shape, obs.dtype) == ((63, 63, 3), jnp.uint8) and obs.max() > 100


def test_xland_ends_with_its_goal_and_samples_the_rulesets_of_a_file(tmp_path):
    env = made("xminigrid", id="XLand-MiniGrid-R1-9x9")
    steps = batch_played(env, 64, 243)
    over, length = np.asarray(steps.terminated), np.asarray(steps.episode.length)
    assert over.any() and not (over & np.asarray(steps.truncated)).any()
    np.testing.assert_array_equal(steps.reward > 0, over)
    np.testing.assert_array_equal(steps.episode.success, over)
    np.testing.assert_array_equal(steps.truncated, (length == 243) & ~over)
    np.testing.assert_allclose(steps.reward[over], 1.0 - 0.9 * length[over] / 243, rtol=1e-5)

    rules = np.zeros((3, 1, 7), np.uint8)
    goals = np.asarray([[1, 3, color, 0, 0] for color in (1, 2, 3)], np.uint8)
    tiles = np.asarray([[[3, color]] for color in (1, 2, 3)], np.uint8)
    content = {
        "goals": jnp.asarray(goals),
        "rules": jnp.asarray(rules),
        "init_tiles": jnp.asarray(tiles),
    }
    with bz2.open(tmp_path / "three.pkl", "wb") as file:
        pickle.dump(content | {"num_rules": jnp.zeros(3)}, file)
    env = envs.make("xminigrid", id="XLand-MiniGrid-R1-9x9", benchmark=str(tmp_path / "three.pkl"))
    states, _ = jax.jit(jax.vmap(lambda key: env.reset(key, env.sample_params(key))))(
        jax.random.split(KEY, 32)
    )
    assert set(np.asarray(states.state.goal_encoding)[:, 2].tolist()) == {1, 2, 3}


def test_an_episode_of_minigrid_that_ends_with_a_failure_is_no_success():
    steps = batch_played(made("xminigrid", id="MiniGrid-MemoryS8"), 64, 300)
    over, paid = np.asarray(steps.terminated), np.asarray(steps.reward) > 0
    assert (over & paid).any() and (over & ~paid).any()
    np.testing.assert_array_equal(steps.episode.success, paid)


def test_playground_repeats_actions_and_its_time_limit_counts_the_repeated():
    once, twice = (made("playground", id="CartpoleBalance", action_repeat=n) for n in (1, 2))
    assert (once.spec.max_episode_steps, twice.spec.max_episode_steps) == (1000, 500)
    assert (
        twice.bodies is not None and twice.bodies.scene().step_s == 2 * once.bodies.scene().step_s
    )
    first, _ = jax.jit(once.reset)(KEY, ())
    second, _ = jax.jit(twice.reset)(KEY, ())
    action, step, paid = jnp.full(1, 0.3), jax.jit(once.step), 0.0
    for _ in range(2):
        first, ts = step(first, action, KEY)
        paid += ts.reward
    _, both = jax.jit(twice.step)(second, action, KEY)
    np.testing.assert_allclose(both.obs, ts.obs, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(both.reward, paid, rtol=1e-5)


def test_freeways_time_limit_truncates():
    env = made("pgx", id="minatar-freeway")
    _, (_, _, steps) = played(env, env.spec.max_episode_steps)
    assert env.spec.max_episode_steps == 2500 and not steps.terminated.any()


def test_pgx_passes_the_key_of_a_step_on():
    env = made("pgx", id="2048")
    state, _ = jax.jit(env.reset)(KEY, ())
    boards = [
        jax.jit(env.step)(state, jnp.int32(0), jax.random.key(i))[1].obs["obs"] for i in range(8)
    ]
    assert len({board.tobytes() for board in map(np.asarray, boards)}) > 1


def test_pgx_gives_the_agent_its_own_rewards_and_a_stronger_opponent_wins_more():
    def wins(**options: Any) -> tuple[float, float]:
        env = made("pgx", id="connect_four", **options)
        steps = batch_played(env, 256, 40)
        over, reward, mask = (
            np.asarray(x) for x in (steps.terminated, steps.reward, steps.next_obs["action_mask"])
        )
        assert (
            mask.any(-1).all()
            and not reward[~over].any()
            and set(np.unique(reward).tolist()) <= {-1.0, 0.0, 1.0}
        )
        np.testing.assert_array_equal(steps.episode.success, reward > 0)
        return float((reward > 0).sum()), float((reward < 0).sum())

    won, lost = wins()
    assert 0.8 < won / lost < 1.25, "equal players"
    won, lost = wins(opponent="one_ply")
    assert won / lost < 0.8


def test_octax_gives_octaxs_own_numbers():
    env = made("octax", id="brix")
    from octax.environments import create_environment

    own, _ = relaxed(create_environment)("brix")
    first, (actions, _, steps) = played(env, 60)
    state, step = first, jax.jit(relaxed(own.step))
    for t in range(60):
        state, frames, reward, over, _, _ = step(state, actions[t])
        np.testing.assert_array_equal(steps.obs[t], np.asarray(frames).transpose(2, 1, 0))
        assert (steps.reward[t], steps.terminated[t]) == (reward, over)
    assert env.draw(state).shape == (256, 512, 3)


def test_jumanjis_masks_are_one_number_where_they_are_of_combinations():
    mines = made("jumanji", id="Minesweeper-v0")
    assert mines.spec.action == Discrete(100) and mines.spec.obs["action_mask"].shape == (100,)
    state, _ = jax.jit(mines.reset)(KEY, ())
    after, ts = jax.jit(mines.step)(state, jnp.int32(37), KEY)
    assert after.board[3, 7] >= 0 and not ts.obs["action_mask"][37]
    cleaner = envs.make("jumanji", id="Cleaner-v0")
    assert cleaner.spec.action == MultiDiscrete((4, 4, 4)) and cleaner.spec.obs[
        "action_mask"
    ].shape == (12,)
    assert cleaner.spec.metrics == {"num_dirty_tiles": "last", "ratio_dirty_tiles": "last"}
    rescue = envs.make("jumanji", id="SearchAndRescue-v0")
    assert rescue.spec.num_agents == 2 and rescue.spec.obs["targets_remaining"].shape == (2, 1)


def test_jumanjis_time_limit_truncates_where_its_own_would_terminate():
    env = made("jumanji", id="Maze-v0", episode_length=5)
    _, (_, _, steps) = played(env, 5)
    assert not steps.terminated.any() and env.spec.max_episode_steps == 5


REFUSED = [
    (
        "playground",
        {"id": "CheetahRum"},
        "env.id=CheetahRum: playground has no such environment; nearest: CheetahRun",
    ),
    ("playground", {"id": "CheetahRun", "impl": "c"}, "env.impl=c: write one of jax, warp"),
    (
        "playground",
        {"id": "CheetahRun", "banana": 1},
        "playground CheetahRun has no option 'banana': write one of",
    ),
    (
        "playground",
        {"id": "CheetahRun", "action_repeat": "x"},
        "env.action_repeat=x: write a number, such as 1",
    ),
    (
        "playground",
        {"id": "CheetahRun", "randomized_models": 4},
        "no domain randomization of CheetahRun: leave it out",
    ),
    (
        "playground",
        {"id": "CheetahRun", "num_agents": 2},
        "env.num_agents=2: env=playground has one agent",
    ),
    (
        "playground",
        {"id": "CheetahRun", "action_repeat": 0},
        "env.action_repeat=0: write a whole number of",
    ),
    (
        "playground",
        {"id": "CheetahRun", "sim_dt": -1.0},
        "env.sim_dt=-1.0, env.ctrl_dt=0.01: write seconds above 0",
    ),
    (
        "craftax",
        {"id": "Craftax-Symbolic-v1", "day_length": 0},
        "env.day_length=0: write a whole number of at least 1",
    ),
    (
        "craftax",
        {"id": "Craftax-Symbolic-v1", "day": 1},
        "craftax Craftax-Symbolic-v1 has no option 'day'",
    ),
    (
        "craftax",
        {"id": "Craftax-Symbolic-v1", "episode_length": 0},
        "env.episode_length=0: write a number",
    ),
    (
        "craftax",
        {"id": "Craftax-Symbolic-v1", "metrics": {"gold": "last"}},
        "has no metric 'gold': write some of",
    ),
    (
        "xminigrid",
        {"id": "MiniGrid-Empty-5x5", "benchmark": "x"},
        "xminigrid MiniGrid-Empty-5x5: has no rules",
    ),
    (
        "xminigrid",
        {"id": "XLand-MiniGrid-R1-9x9", "benchmark": "no.pkl"},
        "env.benchmark=no.pkl: no such file",
    ),
    (
        "xminigrid",
        {"id": "MiniGrid-Empty-5x5", "view_size": 4},
        "env.view_size=4: write an odd number of at least 3",
    ),
    (
        "xminigrid",
        {"id": "MiniGrid-Empty-5x5", "height": -1},
        "env.height=-1: write a whole number of at least 1",
    ),
    (
        "xminigrid",
        {"id": "XLand-MiniGrid-R1-9x9", "grid_type": "R"},
        "does not take env.grid_type: RuntimeError",
    ),
    *(
        ("xminigrid", {"id": "XLand-MiniGrid-R1-9x9", "ruleset": ruleset}, f"env.ruleset{message}")
        for ruleset, message in (
            ({"goal": [3]}, "=.*: write goal, rules, init_tiles"),
            (5, "=5: write goal, rules, init_tiles"),
            (
                {"goal": [3, 3, 5], "rules": None, "init_tiles": [[3, 5]]},
                ".rules=None: write lists of up to 7 numbers",
            ),
            (
                {"goal": [1.5, 3, 5], "rules": [[0]], "init_tiles": [[3, 5]]},
                ".goal=.*: write up to 5 numbers",
            ),
            (
                {"goal": [99, 3, 5], "rules": [[0]], "init_tiles": [[3, 5]]},
                ": write a goal below 15 and tiles below 13",
            ),
            (
                {"goal": [1, 3, 5], "rules": [[0]], "init_tiles": [[3, 50]]},
                ": write colors below 12",
            ),
        )
    ),
    (
        "xminigrid",
        {"id": "XLand-MiniGrid-R1-9x9", "size": 3},
        "has no option 'size': write one of grid_type, height",
    ),
    (
        "pgx",
        {"id": "2048", "opponent": "random"},
        "env.opponent=random: 2048 has one player: leave it out",
    ),
    (
        "pgx",
        {"id": "2048", "banana": 1},
        "pgx 2048 has no option 'banana': write one of episode_length, opponent",
    ),
    (
        "pgx",
        {"id": "go_9x9", "opponent": "expert"},
        "env.opponent=expert: write one of random, one_ply",
    ),
    (
        "octax",
        {"id": "pong", "frame_skip": 0},
        "env.frame_skip=0: write a whole number of at least 1",
    ),
    (
        "octax",
        {"id": "pong", "banana": 0},
        "octax pong has no option 'banana': write one of frame_skip, instruction_frequency",
    ),
    (
        "navix",
        {"id": "Navix-Empty-5x5-v0", "view": "x"},
        "env.view=x: write one of first_person, whole, pixels",
    ),
    (
        "navix",
        {"id": "Navix-Empty-5x5-v0", "banana": 1},
        "does not take these options: .*banana.*: leave them out",
    ),
    (
        "jaxtari",
        {"id": "pong", "banana": 1},
        "jaxtari pong has no option 'banana': write one of episode_length, frame_skip",
    ),
    ("jaxtari", {"id": "pong", "view": "x"}, "env.view=x: write one of objects, pixels"),
    (
        "jaxtari",
        {"id": "pong", "sticky_actions": 2},
        "env.sticky_actions=2: write a number of at most 1",
    ),
]


def test_robots_call_clip_by_the_name_of_its_bound_before_jax_0_10():
    needs("playground")
    from jaxrl_fast.suites import from_playground

    for module in from_playground.WITH_OLD_CLIP:
        assert module.jp.clip(jnp.float32(2.0), a_max=1.0) == 1.0
        assert module.jp.clip(jnp.float32(-2.0), -1.0, 1.0) == -1.0


@pytest.mark.parametrize(("suite", "options", "message"), REFUSED)
def test_wrong_words_give_one_line(suite: str, options: dict, message: str):
    needs(suite)
    with pytest.raises(ValueError, match=message) as caught:
        envs.make(suite, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "suite", sorted({*PACKAGES, "craftax", "xminigrid", "pgx", "octax", "jaxtari", "navix"})
)
def test_a_suite_that_is_not_installed_is_named_with_its_extra(suite: str):
    if find_spec(PACKAGES.get(suite, suite)) is not None:
        pytest.skip(f"{suite} is installed")
    wanted = rf"env={suite} needs the package .*: pip install 'jaxrl_fast\[{suite}\]'"
    if sys.version_info < envs.SUITES[suite].oldest_python:
        wanted = f"env={suite} needs Python 3.12 or later"
    with pytest.raises(ValueError, match=wanted):
        envs.make(suite, id=envs.SUITES[suite].example)


@pytest.mark.parametrize("suite", envs.REFUSED_SUITES)
def test_a_suite_that_does_not_install_here_is_refused_with_the_reason(suite: str):
    with pytest.raises(ValueError, match=f"env={suite} is not supported: it "):
        envs.make(suite, id="any")
    with pytest.raises(ValueError, match=f"env={suite} is not supported: it "):
        compose([f"env={suite}", "env.id=any"])


@pytest.mark.parametrize("auto_reset", [True, False])
def test_an_environment_in_the_style_of_gymnax_is_recognized_by_its_interface(auto_reset: bool):
    needs("craftax")
    from craftax.craftax_env import make_craftax_env_from_name

    env = envs.make(
        "custom", make=lambda: make_craftax_env_from_name("Craftax-Classic-Symbolic-v1", auto_reset)
    )
    assert env.spec.action == Discrete(17) and env.spec.obs.shape == (1345,)
