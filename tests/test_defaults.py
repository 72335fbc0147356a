"""Defaults: sizes that follow from the number of environments and the length of a run, settings
that follow from the environment, and the first steps of a run.
"""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import jaxrl_fast as jf
from jaxrl_fast import envs
from jaxrl_fast.algorithms.defaults import FOLLOWING, default_envs, of_environment
from jaxrl_fast.algorithms.registry import ALGORITHMS
from jaxrl_fast.assembly import bind
from jaxrl_fast.commands.cli import keys_help
from jaxrl_fast.commands.run_config import compose, with_defaults
from jaxrl_fast.core import MultiDiscrete
from jaxrl_fast.envs.pool.codec import describe_obs
from jaxrl_fast.explain import rows_of
from jaxrl_fast.learning.acting import uniform_action
from jaxrl_fast.learning.algorithm import Replay, default_rollout, off_policy_sizes, on_policy_sizes
from jaxrl_fast.numerics import distributions
from jaxrl_fast.numerics.normalization import normalizes
from jaxrl_fast.settings.run import to_yaml
from jaxrl_fast.tuning.measuring import without_choices

CONTINUOUS = "sac", "td3", "flash_sac", "iql", "td3_bc", "fast_td3", "reppo"

WIDTHS = st.integers(1, 8192)


@given(WIDTHS, st.none() | st.integers(1, 300), st.sampled_from([1, 4]), st.booleans())
def test_default_minibatches_divide_the_sequences_and_are_not_smaller_than_asked(
    num_envs, length, least, whole
):
    sizes = on_policy_sizes(length, None, steps=512, least=least, whole_rollouts=whole)(num_envs)
    steps, minibatches = num_envs * sizes["rollout_length"], sizes["num_minibatches"]
    assert (num_envs if whole else steps) % minibatches == 0
    assert minibatches <= least or steps // minibatches >= 512
    assert 1 <= minibatches <= 32


@given(WIDTHS, st.integers(1, 8), st.sampled_from([1, 4]))
def test_default_updates_are_one_for_so_many_steps_up_to_a_limit(num_envs, length, per_update):
    updates = off_policy_sizes(length, None, steps_per_update=per_update)(num_envs)[
        "updates_per_tick"
    ]
    assert updates == max(1, min(num_envs * length // per_update, 64))


@given(WIDTHS, st.none() | st.integers(1, 10**10))
def test_default_rollouts_are_powers_of_two_that_fill_a_tick_of_the_runs_length(
    num_envs, total_steps
):
    length = default_rollout(num_envs, total_steps)
    assert length >= 16 and length & (length - 1) == 0
    wanted = min(max(2048, (total_steps or 0) / 500), 16_384)
    assert num_envs * length <= wanted or length == 16
    assert 2 * num_envs * length > wanted


@given(st.integers(1, 10**10))
def test_a_default_warm_up_is_a_small_part_of_a_run(total_steps):
    warmup = off_policy_sizes(1, None)(4, total_steps)["warmup_steps"]
    assert 1 <= warmup <= max(1, total_steps / 20) and warmup <= 5_000
    assert off_policy_sizes(1, None)(4)["warmup_steps"] == 5_000


@given(WIDTHS)
def test_sizes_that_are_given_stay(num_envs):
    given_sizes = {"rollout_length": 7, "num_minibatches": 5}
    assert on_policy_sizes(7, 5, steps=512, least=4, whole_rollouts=False)(num_envs) == given_sizes
    given_sizes = {"updates_per_tick": 0, "warmup_steps": 7}  # refused when it is bound
    assert off_policy_sizes(1, 0, 7)(num_envs, 100) == given_sizes


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_agents_are_built_with_the_sizes_that_are_said(name):
    several = {
        "ippo": "traffic_junction_4",
        "mappo": "traffic_junction_4",
        "pqn_vdn": "traffic_junction_4",
    }
    env = several.get(name, "pendulum" if name in CONTINUOUS else "cartpole")
    for num_envs in (1, 64):
        algorithm = ALGORITHMS[name]()
        agent = algorithm.build(envs.make(env).spec, num_envs)
        found = {"rollout_length": agent.rollout_length}
        if isinstance(agent.data, Replay):
            found |= {
                "updates_per_tick": agent.data.num_batches,
                "warmup_steps": agent.data.warmup_steps,
            }
        else:
            found["num_minibatches"] = agent.data.num_minibatches
        assert algorithm.sizes(num_envs).items() <= found.items()
        bind(algorithm, envs.make(env).spec, num_envs)


def test_the_settings_of_a_run_have_the_numbers():
    narrow, wide = (compose(["env=acrobot", f"num_envs={n}"]).algo_options for n in (16, 64))
    assert (narrow["rollout_length"], wide["rollout_length"]) == (128, 32)
    assert (
        compose(["env=acrobot", "num_envs=64", "total_steps=5e6"]).algo_options["rollout_length"]
        == 128
    )
    assert compose(["env=acrobot", "num_envs=512"]).algo_options["rollout_length"] == 16
    assert (
        compose(["env=pendulum", "tuned=false", "total_steps=1e4"]).algo_options["warmup_steps"]
        == 500
    )
    assert (
        compose(["env=pendulum", "tuned=false", "num_envs=2"]).algo_options["updates_per_tick"] == 2
    )
    assert (
        compose(["env=acrobot", "num_envs=64", "algo.num_minibatches=2"]).algo_options[
            "num_minibatches"
        ]
        == 2
    )


SMALL: dict[str, Any] = dict(batch_size=4, buffer_size=400, updates_per_tick=1)


@pytest.mark.parametrize(
    "make", [jf.sac, jf.td3, jf.flash_sac, jf.dqn, jf.sac_discrete], ids=lambda make: make.name
)
def test_the_first_actions_are_uniform_and_the_next_are_the_policys(make):
    # so 3 steps of each
    env, steps = (
        tiny.line(discrete=make in (jf.dqn, jf.sac_discrete), num_envs=4),
        10,
    )
    more = {"epsilon": 0.0} if make is jf.dqn else {}
    init, tick = jf.make_train_step(
        env, make(**SMALL, **more, warmup_steps=steps, rollout_length=6)
    )
    state = init(jax.random.key(0))
    weights = init(jax.random.key(7)).channels
    other = state._replace(
        channels=jax.tree.map(lambda x: 300 * x if x.dtype == jnp.float32 else x, weights)
    )
    actions = [jax.jit(tick)(s)[0].private["experience"].data.action for s in (state, other)]
    first, second = (np.swapaxes(np.asarray(a), 0, 1).reshape(-1, 4) for a in actions)
    np.testing.assert_array_equal(first[:3], second[:3])
    assert (first[3:6] != second[3:6]).any()


def test_uniform_actions_fill_their_bounds_and_spare_what_a_mask_forbids():
    box = jf.Box(np.array([-2.0, 0.0], np.float32), np.array([1.0, 10.0], np.float32))
    drawn = np.asarray(uniform_action(box, jnp.zeros((4000, 1)), (4000,), jax.random.key(0)))
    for values, low, high in zip(drawn.T, box.low, box.high, strict=True):
        assert stats.kstest(values, stats.uniform(low, high - low).cdf).pvalue > 1e-3
    mask = jnp.array([True, False, True, True, False])
    obs = {"action_mask": jnp.tile(mask, (3000, 1))}
    for space, allowed in ((jf.Discrete(5), [0, 2, 3]), (MultiDiscrete((3, 2)), [(0, 0), (2, 0)])):
        numbers = np.asarray(uniform_action(space, obs, (3000,), jax.random.key(1)))
        found, counts = np.unique(numbers, axis=0, return_counts=True)
        assert found.tolist() == [list(a) if isinstance(a, tuple) else a for a in allowed]
        assert stats.chisquare(counts).pvalue > 1e-3


@given(st.floats(0.01, 5.0))
@settings(max_examples=10)
def test_continuous_actions_start_with_the_deviation_that_is_asked_for(deviation):
    spec = tiny.line(discrete=False).spec
    agent = jf.ppo(initial_deviation=deviation, policy_hidden=(8,)).build(spec, 4)
    network = agent.parts["actor"].networks["policy"]
    obs = jax.random.normal(jax.random.key(1), (1, 50, 2))
    outputs, _ = network.apply(network.init(jax.random.key(0)), (), obs, jnp.zeros((1, 50), bool))
    np.testing.assert_allclose(distributions.tanh_normal(outputs).scale, deviation, rtol=0.1)


@pytest.mark.parametrize("algo", ["ppo", "sac", "dqn", "td3"])
def test_a_program_gets_the_settings_of_the_command(algo):
    name = "cartpole" if algo == "dqn" else "pendulum"
    run = compose([f"env={name}", f"algo={algo}", "tuned=false", "num_envs=4", "total_steps=9000"])
    env = jf.make_env(name, num_envs=4)
    shown = with_defaults(run, env.spec)
    found = jf.defaults(algo, env, total_steps=9000)
    assert {key: shown.algo_options[key] for key in found} == found


def test_a_setting_that_was_given_stays_and_the_others_say_where_they_come_from():
    spec = jf.make_env("pendulum", num_envs=4).spec
    run = compose(["env=pendulum", "algo=ppo", "tuned=false", "algo.normalize_rewards=false"])
    filled = with_defaults(run, spec)
    assert filled.algo_options["normalize_rewards"] is False
    assert filled.sources["algo.normalize_rewards"] == "command line"
    assert filled.sources["algo.entropy_coef"] == "chosen for the environment"


@pytest.mark.parametrize(
    ("numbers", "actions", "found"),
    [
        (3, 1, {"initial_deviation": 1.0, "free_deviation": True, "normalize_observations": False}),
        (13, 3, {"initial_deviation": 1.0, "free_deviation": True}),
        (12, 4, {"initial_deviation": 0.4, "normalize_observations": False}),
        (17, 6, {"initial_deviation": 0.4}),
    ],
)
def test_exploration_and_scales_follow_the_number_of_actions_and_of_observed_numbers(
    numbers, actions, found
):
    box = jf.Box(-np.ones(actions, np.float32), np.ones(actions, np.float32))
    spec = jf.EnvSpec("any", jax.ShapeDtypeStruct((numbers,), jnp.float32), box)
    rewards = {"normalize_rewards": True, "entropy_coef": 0.0}
    assert of_environment("ppo", spec) == rewards | found
    assert of_environment("ippo", spec) == rewards
    assert of_environment("ppo", spec._replace(action=jf.Discrete(3))) == {
        "normalize_rewards": True
    }
    assert of_environment("sac", spec) == {}


@pytest.mark.parametrize(
    ("bounds", "normalized"),
    [((0.5, 0.07), True), ((0.5, 8.0), False), ((0.07, np.inf), True), ((0.0, np.inf), False)],
)
def test_numbers_that_are_declared_to_be_small_are_normalized(bounds, normalized):
    space = describe_obs(gymnasium.spaces.Box(-np.float32(bounds), np.float32(bounds)), "any")
    box = jf.Box(-np.ones(1, np.float32), np.ones(1, np.float32))
    spec = jf.EnvSpec("any", jax.ShapeDtypeStruct((2,), jnp.float32), box, obs_space=space)
    assert ("normalize_observations" not in of_environment("ppo", spec)) == normalized


def test_a_train_step_without_an_end_names_the_schedule_and_what_to_write():
    env = tiny.line(discrete=True)
    with pytest.raises(
        ValueError,
        match=r"epsilon of dqn is a schedule: write total_steps=.* or a constant epsilon",
    ):
        jf.make_train_step(env, jf.dqn())
    jf.make_train_step(env, jf.dqn(epsilon=0.1))


@pytest.mark.parametrize("algo", ["ppo", "sac", "td3", "flash_sac", "fast_td3", "reppo"])
def test_a_policy_does_not_read_what_only_the_simulator_has(algo):
    """MuJoCo Playground's robots observe ``state`` and ``privileged_state``."""
    inner = tiny.line(discrete=False, num_envs=8).env
    both = {"privileged_state": inner.spec.obs, "state": inner.spec.obs}

    def step(state, action, key):
        state, ts = inner.step(state, action, key)
        obs = dict.fromkeys(both, ts.obs)
        return state, ts._replace(obs=obs, next_obs=obs)

    def reset(key, params):
        state, obs = inner.reset(key, params)
        return state, dict.fromkeys(both, obs)

    env = jf.vectorize(
        inner._replace(spec=inner.spec._replace(obs=both), reset=reset, step=step), num_envs=8
    )
    chosen = jf.defaults(algo, env, total_steps=1_000)
    if "warmup_steps" in chosen:
        chosen |= {"warmup_steps": 8, "batch_size": 8}
    policy = jf.learn(env, ALGORITHMS[algo](**chosen), total_steps=16).policy
    assert policy({"state": np.zeros(2, np.float32)}).shape == (1,), (
        "the policy needs no other entry"
    )
    run = with_defaults(compose(["env=pendulum", f"algo={algo}"]), env.spec)
    assert (run.algo_options["policy_keys"], run.algo_options["critic_keys"]) == (
        ("state",),
        ("privileged_state",),
    )


@pytest.mark.parametrize("algo", sorted(ALGORITHMS))
def test_what_the_environment_chooses_is_announced(algo):
    box = jf.Box(-np.ones(2, np.float32), np.ones(2, np.float32))
    part = jax.ShapeDtypeStruct((4,), jnp.float32)
    spec = jf.EnvSpec("any", {"privileged_state": part, "state": part}, box)
    assert set(of_environment(algo, spec)) == set(FOLLOWING.get(algo, ()))
    assert not {"policy_keys", "critic_keys"} & set(
        of_environment(algo, spec._replace(obs={"state": part}))
    )
    run = compose(["env=gymnasium", "env.id=Hopper-v5", "algo=ppo", "algo.entropy_coef=0.1"])
    rows = {key: rest for key, *rest in rows_of(run)}
    assert rows["algo.initial_deviation"] == ["auto", "chosen for the environment"]
    assert rows["algo.entropy_coef"] == ["0.1", "command line"]
    assert "algo.initial_deviation=(by env)" in keys_help(
        ["env=gymnasium", "env.id=Hopper-v5", "algo=ppo"]
    )


@given(st.sampled_from([4, 16, 64, 2048]), st.integers(1, 10**9))
def test_a_short_run_has_fewer_environments(most, total_steps):
    number = default_envs(most, total_steps)
    assert min(most, 4) <= number <= most
    assert number in (4, most) or (
        number & (number - 1) == 0 and 25_000 * number <= total_steps < 50_000 * number
    )


def test_the_number_of_environments_follows_the_steps_unless_it_is_given():
    words = ["env=freeway", "algo=ppo", "total_steps=100_000"]
    assert compose(words).num_envs == 4 and compose([*words, "num_envs=32"]).num_envs == 32
    assert compose(["env=freeway", "algo=ppo"]).num_envs == 64
    assert compose(["env=freeway", "algo=dqn", "total_steps=50_000"]).num_envs == 4
    assert compose(["env=freeway", "algo=pqn", "total_steps=50_000"]).num_envs == 64
    assert compose(["env=cartpole", "total_steps=1e5"]).num_envs == 32  # of the tuned file


def test_grids_keep_their_units_and_vectors_are_normalized():
    def spec(obs):
        return jf.EnvSpec("any", obs, jf.Discrete(2))

    grid, vector = (
        jax.ShapeDtypeStruct((5, 5, 3), jnp.float32),
        jax.ShapeDtypeStruct((4,), jnp.float32),
    )
    mask = jax.ShapeDtypeStruct((2,), jnp.bool_)
    assert [normalizes(None, spec(x)) for x in (grid, vector)] == [False, True]
    assert not normalizes(None, spec({"grid": grid, "action_mask": mask}))
    assert normalizes(None, spec({"grid": grid, "speed": vector})) and normalizes(True, spec(grid))


def test_an_environment_that_leaves_its_space_is_counted():
    words = ["env=gymnasium", "env.id=LunarLander-v3", "algo=ppo"]
    assert compose(words).pool["out_of_space"] == "count"
    assert compose([*words, "pool.out_of_space=stop"]).pool["out_of_space"] == "stop"


def test_what_the_environment_chooses_is_chosen_again_in_a_trial_of_the_autotuner(tmp_path):
    run = compose(
        ["env=gymnasium", "env.id=Hopper-v5", "algo=ppo", "tuned=false", "algo.entropy_coef=0.1"]
    )
    (tmp_path / "config.yaml").write_text(to_yaml(without_choices(run)), encoding="utf-8")
    box = jf.Box(-np.ones(3, np.float32), np.ones(3, np.float32))
    spec = jf.EnvSpec("any", jax.ShapeDtypeStruct((11,), jnp.float32), box)
    own, again = (
        with_defaults(each, spec).algo_options
        for each in (run, compose([f"config={tmp_path}/config.yaml"]))
    )
    assert own == again and own["initial_deviation"] == 1.0 and own["entropy_coef"] == 0.1
