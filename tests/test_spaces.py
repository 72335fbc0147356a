"""A user's spaces: arrays of training and back, by name, in Python, files and programs; random
spaces end to end.
"""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import parallel_envs
import pytest
from gymnasium import spaces as gym
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_from_gymnasium import SPACES

import jaxrl_fast as jf
from jaxrl_fast import spaces
from jaxrl_fast.core import Box, Discrete, EnvSpec, MultiDiscrete, Timestep
from jaxrl_fast.envs.pool.codec import encode_action, encode_obs
from jaxrl_fast.learning import acting
from jaxrl_fast.numerics import distributions
from jaxrl_fast.policy.exporting import export_policy
from jaxrl_fast.policy.policies import load_policy, save_policy, spec_from_json, spec_to_json
from jaxrl_fast.training.recorder import NonFiniteError

HERE = {"workers": 0, "num_groups": 1}
ON_POLICY = dict(
    rollout_length=8, num_minibatches=1, num_epochs=1, policy_hidden=(8,), value_hidden=(8,)
)
OFF_POLICY = dict(
    rollout_length=4, updates_per_tick=1, batch_size=8, buffer_size=64, warmup_steps=16
)


class Random(gymnasium.Env):
    """Observes samples of any space; the reward depends on observation and action."""

    def __init__(self, observed: gym.Space, acted: gym.Space, length: int = 5) -> None:
        self.observation_space, self.action_space, self.length = observed, acted, length

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        if seed is not None:
            self.observation_space.seed(seed)
        self.t, self.seen = 0, self.observe()
        return self.seen, {}

    def observe(self) -> Any:
        obs = self.observation_space.sample()
        if isinstance(obs, dict) and "action_mask" in obs:
            obs["action_mask"] = np.ones_like(obs["action_mask"])
            obs["action_mask"][0] = 0
        return obs

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        assert self.action_space.contains(action), (action, self.action_space)
        reward = float(np.sum(np.cos(np.asarray(action, np.float64)))) + float(
            np.mean(gym.flatten(self.observation_space, self.seen).astype(np.float64))
        )
        self.t, self.seen = self.t + 1, self.observe()
        return self.seen, reward, False, self.t >= self.length, {}


def trained(observed: gym.Space, acted: gym.Space, algorithm: jf.Algorithm, ticks: int = 2) -> Any:
    """Train a few ticks on `Random`; return the result."""
    env = jf.make_env("custom", make=partial(Random, observed, acted), num_envs=2, pool=HERE)
    try:
        length = algorithm.options.get("rollout_length") or (
            8 if "value_hidden" in algorithm.options else 4
        )
        return jf.learn(env, algorithm, total_steps=2 * length * ticks, eval_episodes=2)
    finally:
        env.close()


def batched(space: gym.Space, count: int) -> tuple[list[Any], Any]:
    """Return samples, and the same as arrays ``[count, ...]`` in the containers of the space."""
    samples = [space.sample() for _ in range(count)]
    return samples, jax.tree.map(lambda *leaves: np.stack(leaves), *samples)


@settings(deadline=None)
@given(space=SPACES, seed=st.integers(0, 2**16))
def test_a_policy_sees_what_the_pool_writes(space: gym.Space, seed: int):
    space.seed(seed)
    codec, (samples, batch) = encode_obs(space, "toy"), batched(space, 3)
    assert json.loads(json.dumps(codec.space)) == codec.space
    parts = spaces.parts_of(codec.space)
    values = {part.path: spaces.reader(part)(batch) for part in parts}
    rows = np.zeros((3, *codec.shape), codec.dtype)
    for i, obs in enumerate(samples):
        codec.write(rows[i, ...], obs)
    for xp in (np, jnp):
        seen = spaces.encode(codec.space, values, xp)
        wanted = {name: rows[name] for name in rows.dtype.names} if rows.dtype.names else rows
        jax.tree.map(np.testing.assert_array_equal, seen, wanted)
    assert codec.outside is None or not codec.outside(rows)


@pytest.mark.parametrize(
    ("space", "wrong", "says"),
    [
        (gym.Discrete(4), 4, "none of the values of Discrete"),
        (gym.Discrete(4, start=-1), 3, "none of the values"),
        (gym.MultiDiscrete([2, 3]), [1, 3], "none of the values"),
        (gym.Box(-1, 1, (2, 2)), np.full((2, 2), 1.5), r"1.5 at \[0, 0\], not within -1 to 1"),
        (gym.Box(0, 9, (2,), np.int64), np.array([0, 10]), r"10 at \[1\]"),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_a_value_outside_of_its_space_is_found_and_named(
    space: gym.Space, wrong: Any, says: str, inside: bool
):
    codec = encode_obs(gym.Dict(a=gym.Discrete(2), b=space) if inside else space, "toy")
    rows = np.zeros((3, *codec.shape), codec.dtype)
    for i in range(3):
        one = wrong if i == 1 else space.sample()
        codec.write(
            rows[i : i + 1] if rows.ndim == 1 and not inside else rows[i],
            {"a": 0, "b": one} if inside else one,
        )
    assert codec.outside is not None
    ((row, entry, text),) = codec.outside(rows)
    assert (row, entry) == (1, "b" if inside else "")
    assert re.search(says, text), text


@pytest.mark.parametrize(
    ("space", "obs", "says"),
    [
        (gym.Dict(t=gym.Box(-1, 1, (3,))), {"t": 0.5}, r"'t': an observation has shape \(\)"),
        (
            gym.Box(0, 9, (1,), np.int64),
            np.array([1_700_000_000_000]),
            r"1.7e\+12, more than int32 holds",
        ),
        (
            gym.Box(-np.inf, np.inf, (1,), np.float64),
            np.array([1e300]),
            r"1e\+300, more than float32 holds",
        ),
        (gym.Discrete(3), np.array([1]), "an observation has shape"),
        (gym.MultiDiscrete([2, 2]), 1, "an observation has shape"),
    ],
)
def test_what_no_array_holds_stops_in_one_line(space: gym.Space, obs: Any, says: str):
    class Wrong(Random):
        def observe(self) -> Any:
            return obs

    env = jf.make_env("custom", make=lambda: Wrong(space, gym.Discrete(2)), num_envs=2, pool=HERE)
    with pytest.raises(RuntimeError, match=says) as caught:
        env.reset(0)
    assert "\n" not in str(caught.value) and "environment 0" in str(caught.value)
    env.close()


def test_whole_numbers_beyond_32_bits_are_rounded_and_never_wrapped():
    codec = encode_obs(gym.Box(-(2**62), 2**62, (1,), np.int64), "toy")
    row = np.zeros(codec.shape, codec.dtype)
    codec.write(row, np.array([1_700_000_000_000]))
    assert row.dtype == np.float32 and row[0] == np.float32(1.7e12)


def test_a_run_stops_at_an_observation_outside_of_its_space_or_counts_it():
    class Outside(Random):
        def observe(self) -> Any:
            return {"x": np.full(1, 0.3 * getattr(self, "t", 0), np.float32)}

    def make(**pool: Any) -> Any:
        space = gym.Dict(x=gym.Box(-1, 1, (1,)))
        return jf.make_env(
            "custom",
            make=lambda: Outside(space, gym.Discrete(2)),
            num_envs=2,
            pool={**HERE, **pool},
        )

    with pytest.raises(
        RuntimeError, match=r"environment 0, step 5: 'x' is 1.2 at \[0\], not within -1 to 1"
    ):
        jf.learn(make(), jf.ppo(**ON_POLICY), total_steps=32)
    env = make(out_of_space="count")
    lines: list[str] = []
    counted = env._replace(events=lambda: lines.extend(env.events()) or [])
    jf.learn(counted, jf.ppo(**ON_POLICY), total_steps=32)
    assert "2 observations were outside" in lines[-1]


MANY = MultiDiscrete((3, 1, 4))


@given(parts=st.lists(st.integers(1, 5), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_actions_of_several_parts_have_numbers_and_masks(parts: list[int], seed: int):
    space, rng = MultiDiscrete(tuple(parts)), np.random.default_rng(seed)
    numbers = jnp.arange(np.prod(parts))
    actions = acting.of_number(space, numbers)
    np.testing.assert_array_equal(
        actions, np.stack(np.unravel_index(np.asarray(numbers), parts), -1)
    )
    np.testing.assert_array_equal(acting.number_of(space, actions), numbers)
    mask = rng.random(sum(parts)) < 0.7
    masks, wanted = np.split(mask, np.cumsum(parts)[:-1]), np.ones(1, bool)
    for one in masks:
        wanted = np.logical_and.outer(wanted, one).ravel()
    np.testing.assert_array_equal(
        acting.joint_mask(space, {"action_mask": jnp.asarray(mask)}), wanted
    )


def test_the_distribution_of_several_parts_is_the_product_of_theirs():
    rng, mask = np.random.default_rng(0), np.array([1, 0, 1, 1, 1, 1, 0, 1], bool)
    outputs = jnp.asarray(rng.normal(size=(5, 8)), jnp.float32)
    dist = distributions.of_outputs(MANY, outputs, mask)
    ends = np.cumsum(MANY.sizes)[:-1]
    each = [
        distributions.categorical(o, jnp.asarray(m))
        for o, m in zip(jnp.split(outputs, ends, -1), np.split(mask, ends), strict=True)
    ]
    actions = distributions.sample(dist, jax.random.key(0))
    assert actions.shape == (5, 3) and (np.asarray(actions) < MANY.sizes).all()
    wanted = sum(distributions.log_prob(one, actions[:, i]) for i, one in enumerate(each))
    np.testing.assert_allclose(distributions.log_prob(dist, actions), wanted, rtol=1e-6)
    np.testing.assert_array_equal(
        distributions.mode(dist), jnp.stack([distributions.mode(one) for one in each], -1)
    )
    wanted = sum(distributions.entropy(one, jax.random.key(0)) for one in each)
    np.testing.assert_allclose(distributions.entropy(dist, jax.random.key(0)), wanted, rtol=1e-6)
    many = distributions.sample(
        distributions.MultiCategorical(jnp.repeat(dist.logits[:1], 500, 0)), jax.random.key(1)
    )
    assert not (many[:, 0] == 1).any() and not (many[:, 2] == 2).any()


def several() -> jf.Env:
    """Make an environment whose episodes are one action of three parts, paid by their sum, with a
    mask.
    """

    def reset(key: jax.Array, params: Any) -> tuple:
        obs = {
            "action_mask": jnp.asarray([1, 1, 0, 1, 1, 1, 1, 0], bool),
            "x": jax.random.uniform(key, (1,)),
        }
        return obs, obs

    def step(state: Any, action: jax.Array, key: jax.Array) -> tuple:
        yes = jnp.ones((), bool)
        return state, Timestep(state, state, jnp.sum(action).astype(jnp.float32), yes, ~yes)

    obs = {
        "action_mask": jax.ShapeDtypeStruct((8,), bool),
        "x": jax.ShapeDtypeStruct((1,), jnp.float32),
    }
    return jf.Env(EnvSpec("several", obs, MANY, 1), reset, step)


@pytest.mark.parametrize("name", ["ppo", "impala", "sac_discrete", "dqn", "pqn"])
def test_every_algorithm_of_discrete_actions_learns_several_parts_with_masks(name: str):
    env = jf.vectorize(several(), num_envs=16)
    options: dict[str, Any] = dict(learning_rate=1e-2, rollout_length=8)
    if name in ("sac_discrete", "dqn"):
        options |= dict(
            OFF_POLICY, buffer_size=2048, batch_size=32, updates_per_tick=8, warmup_steps=128
        )
    algorithm = getattr(jf, name)(**options)
    result = jf.learn(
        env, algorithm, total_steps=16 * 8 * 40, eval_episodes=4, eval_every=16 * 8 * 40
    )
    best = 1 + 0 + 2  # the masks forbid 2 of the first part and 3 of the last
    assert result.summary["eval_return_mean"] == best
    np.testing.assert_array_equal(
        result.policy({"x": [0.5], "action_mask": [1, 1, 0, 1, 1, 1, 1, 0]}), [1, 0, 2]
    )
    np.testing.assert_array_equal(
        result.policy({"x": [0.5], "action_mask": [1, 0, 0, 1, 1, 0, 0, 0]}), [0, 0, 0]
    )


def test_more_combinations_than_q_values_are_refused_in_one_line():
    spec = EnvSpec("many", jax.ShapeDtypeStruct((1,), jnp.float32), MultiDiscrete((20, 20, 20)), 1)
    ended = Timestep(jnp.zeros(1), jnp.zeros(1), jnp.float32(0), jnp.bool_(True), jnp.bool_(False))
    single = jf.Env(
        spec, lambda key, params: (jnp.zeros(1),) * 2, lambda state, action, key: (state, ended)
    )
    env = jf.vectorize(single, num_envs=2)
    with pytest.raises(ValueError, match=r"8,000 combinations.*write algo=ppo"):
        jf.make_train_step(env, jf.dqn())


MASKED = gym.Dict(
    action_mask=gym.MultiBinary(3),
    pos=gym.Box(-1, 1, (2,), np.float64),
    task=gym.Discrete(4, start=-1),
)
NESTED = gym.Dict(
    b=gym.Tuple([gym.MultiDiscrete([2, 3], start=[1, 0]), gym.Box(0, 9, (2,), np.int64)]),
    a=gym.MultiBinary(2),
)
IMAGE = gym.Dict(image=gym.Box(0, 255, (12, 12, 3), np.uint8), vector=gym.Box(-1, 1, (2,)))
CASES = [
    (MASKED, gym.Discrete(3, start=-1), "ppo"),
    (NESTED, gym.MultiDiscrete([3, 2], start=[-1, 5]), "dqn"),
    (IMAGE, gym.Box(-1, 2, (2, 2), np.float64), "sac"),
    (gym.Discrete(3, start=2), gym.MultiBinary((2, 2)), "sac_discrete"),
    (gym.Box(0, 255, (12, 12, 3), np.uint8), gym.Box(-1, 1, (1,)), "td3"),
]


def plays(act: Any, env: gymnasium.Env, seed: int) -> float:
    """Return an episode's return in a plain loop."""
    obs, _ = env.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        obs, reward, terminated, truncated, _ = env.step(act(obs))
        total, over = total + reward, terminated or truncated
    return total


def options_of(name: str) -> dict[str, Any]:
    return dict(ON_POLICY) if name in ("ppo", "impala") else dict(OFF_POLICY)


@pytest.mark.parametrize(("observed", "acted", "name"), CASES)
def test_a_policy_acts_in_the_users_own_loop(
    observed: gym.Space, acted: gym.Space, name: str, tmp_path: Path
):
    result = trained(observed, acted, getattr(jf, name)(**options_of(name)))
    policy, env = result.policy, Random(observed, acted)
    save_policy(policy, tmp_path)
    loaded, fast = load_policy(tmp_path), policy.fast()
    wanted = plays(policy, env, 7)
    assert abs(plays(loaded, env, 7) - wanted) < 1e-4 and abs(plays(fast, env, 7) - wanted) < 1e-4
    observed.seed(3)
    samples, batch = batched(observed, 6)
    if isinstance(observed, gym.Dict) and "action_mask" in observed.spaces:
        batch["action_mask"][:] = [0, 1, 1]
        samples = [{**obs, "action_mask": np.array([0, 1, 1], np.int8)} for obs in samples]
    own = np.stack([policy(obs) for obs in samples])
    assert own.dtype == acted.dtype and own.shape[1:] == acted.shape
    grid = jax.tree.map(lambda x: x.reshape(2, 3, *x.shape[1:]), batch)
    np.testing.assert_allclose(policy(grid).reshape(own.shape), own, atol=1e-5)
    np.testing.assert_allclose(jax.jit(policy)(batch), own, atol=1e-5)
    np.testing.assert_allclose(fast(batch), own, atol=1e-5)
    for kind in ("jax", "onnx"):
        path, difference = export_policy(policy, tmp_path, kind)
        assert path.exists() and "differ from the policy's" in difference


def test_a_policy_names_what_does_not_fit():
    policy = trained(IMAGE, gym.Discrete(2), jf.ppo(**ON_POLICY)).policy
    good = {"vector": [0.0, 1.0], "image": np.zeros((12, 12, 3), np.uint8)}
    assert policy(good) in (0, 1)
    real = np.zeros((12, 12, 3), np.float32)
    wrong = {
        "no 'vector'": {"image": good["image"], "vec": good["vector"]},
        r"'image' is float32\[12, 12, 3\], not uint8\[12, 12, 3\]": {**good, "image": real},
        r"'vector' is float64\[3\], not float32\[2\]": {**good, "vector": [0.0, 1.0, 2.0]},
        "differ in their batch axes": {**good, "vector": np.zeros((4, 2))},
    }
    for says, obs in wrong.items():
        with pytest.raises(ValueError, match=says) as caught:
            policy(obs)
        assert "\n" not in str(
            caught.value
        ) and "takes {image: uint8[12, 12, 3], vector: float32[2]}" in str(caught.value)
    assert len(repr(policy)) < 80


def test_a_policy_of_one_array_names_its_observation_once():
    policy = trained(gym.Discrete(5), gym.Discrete(2), jf.ppo(**ON_POLICY)).policy
    for obs, end in (
        (np.zeros(3, np.float32), r"is float32\[3\]"),
        (7, r"is int64\[\]: it is outside of .*"),
    ):
        with pytest.raises(ValueError, match=rf"this observation {end}$"):
            policy(obs)


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_only_what_selects_actions_is_asked_for(name: str, tmp_path: Path):
    observed = gym.Dict(obs=gym.Box(-1, 1, (2,)), privileged_state=gym.Box(-1, 1, (3,)))
    options = {**options_of(name), "policy_keys": ["obs"]}
    acted = gym.Discrete(2) if name == "ppo" else gym.Box(-1, 1, (1,))
    policy = trained(observed, acted, getattr(jf, name)(**options)).policy
    assert acted.contains(policy({"obs": [0.0, 1.0]})) and acted.contains(
        policy.fast()({"obs": [0.0, 1.0]})
    )
    for kind in ("jax", "onnx"):
        export_policy(policy, tmp_path, kind)


@pytest.mark.parametrize("env", ["Leaving", "Pushing", "Unequal"])
def test_a_policy_of_several_agents_takes_and_gives_dictionaries(env: str, tmp_path: Path):
    make = getattr(parallel_envs, env)
    host = jf.make_env("custom", make=make, num_envs=2, pool=HERE)
    policy = jf.learn(
        host,
        jf.ippo(**ON_POLICY, share_parameters=env != "Unequal"),
        total_steps=32,
        eval_episodes=2,
    ).policy
    host.close()
    save_policy(policy, tmp_path)
    own, arrays = make(), []
    obs, _ = own.reset(seed=1)
    while own.agents:
        actions = load_policy(tmp_path)({agent: obs[agent] for agent in own.agents})
        assert set(actions) == set(own.agents) and all(
            own.action_space(a).contains(x) for a, x in actions.items()
        )
        arrays.append(actions)
        obs, *_ = own.step(actions)
    assert len(arrays) == 4
    full, _ = own.reset(seed=1)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-5), policy.fast()(full), policy(full))
    for kind in ("jax", "onnx"):
        export_policy(policy, tmp_path, kind)
    inner = jax.tree.map(lambda x: np.zeros(x.shape[1:], x.dtype), host.spec.obs)
    inner = {name: x for name, x in inner.items() if name != "state"}
    assert own.action_space("b").contains(policy.agent(1)(inner))
    assert set(policy({**full, "world_state": np.zeros(3)})) == set(full)
    for wrong in ({"nobody": 0}, {"world_state": np.zeros(3)}):
        with pytest.raises(ValueError, match="its agents are a, b, c"):
            policy(wrong)


def specs() -> dict[str, EnvSpec]:
    """Return specs that use every field."""
    made = [
        make() for make in (parallel_envs.Leaving, parallel_envs.Pushing, parallel_envs.Unequal)
    ]
    hosts = [jf.make_env("custom", make=lambda m=m: m, num_envs=2, pool=HERE) for m in made]
    found = {type(m).__name__: host.spec for m, host in zip(made, hosts, strict=True)}
    for i, (observed, acted, _) in enumerate(CASES):
        found[str(i)] = jf.make_env(
            "custom", make=partial(Random, observed, acted), num_envs=2, pool=HERE
        ).spec
    found["several"] = several().spec._replace(frame_stack=4, shared_reward=True)
    found["box"] = EnvSpec(
        "box", jnp.zeros(2), Box(-np.ones(2, np.float32), np.ones(2, np.float32)), 7
    )
    found["nested"] = EnvSpec("nested", {"a": [jnp.zeros(2)], "b": jnp.zeros((2, 2))}, Discrete(2))
    return found


def test_every_field_of_a_spec_survives_its_file():
    made = specs()
    functions = {"goal_reward", "contents"}  # only training reads them
    for field in set(EnvSpec._fields) - functions:
        default = EnvSpec._field_defaults.get(field, "none")
        assert any(getattr(spec, field) is not default for spec in made.values()), field
    for spec in made.values():
        again = spec_from_json(json.loads(json.dumps(spec_to_json(spec))))
        # what made it is in the run's folder
        for field in set(EnvSpec._fields) - functions - {"obs", "action", "arguments"}:
            assert getattr(again, field) == getattr(spec, field), field
        assert str(again.action) == str(spec.action)
        for one, other in zip(jax.tree.leaves(again.obs), jax.tree.leaves(spec.obs), strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)


ACTIONS = st.one_of(
    st.builds(gym.Discrete, st.integers(1, 4), start=st.integers(-2, 2)),
    st.lists(st.integers(1, 3), min_size=1, max_size=3).map(
        lambda n: gym.MultiDiscrete(n, start=[-1] * len(n))
    ),
    st.builds(gym.MultiBinary, st.integers(1, 3)),
    st.builds(
        lambda shape, low: gym.Box(low, low + 3, shape, np.float64),
        st.sampled_from([(1,), (2, 2)]),
        st.integers(-3, 1),
    ),
)
FUZZED = ["ppo", "impala", "dqn", "pqn", "sac_discrete", "sac", "td3", "flash_sac"]


def fuzz(observed: gym.Space, acted: gym.Space, name: str, seed: int, folder: Path) -> None:
    """Train two ticks, save, load, export and play: training and the plain loop have the same
    actions.
    """
    observed.seed(seed)
    options = (
        dict(OFF_POLICY)
        if name not in ("ppo", "impala", "pqn")
        else dict(rollout_length=8, num_minibatches=1)
    )
    try:
        result = trained(observed, acted, getattr(jf, name)(**options))
    except (ValueError, RuntimeError, NonFiniteError) as error:
        assert re.fullmatch(
            rf"algo={name} does not work with the (continuous|discrete) actions of .*", str(error)
        ), error
        return
    policy, env = result.policy, Random(observed, acted)
    save_policy(policy, folder)
    arrays = encode_obs(observed, "toy")
    obs, _ = env.reset(seed=seed)
    row = np.zeros((1, *arrays.shape), arrays.dtype)
    arrays.write(row[0, ...], obs)
    inner = {field: row[field] for field in row.dtype.names} if row.dtype.names else row
    in_training, _ = policy.act_arrays(
        policy.params, policy.initial_carry(1), inner, np.ones(1, bool), jax.random.key(0)
    )
    decoded = encode_action(acted, "toy").decode(np.asarray(in_training))[0]
    np.testing.assert_allclose(policy(obs), decoded, atol=1e-5)
    assert abs(plays(load_policy(folder), env, seed) - plays(policy, env, seed)) < 1e-4
    for kind in ("jax", "onnx"):
        export_policy(policy, folder, kind)


def of_space(observed: gym.Space) -> jf.Env:
    """Make a compiled environment that observes the arrays of a space; its reward depends on all
    that it sees.
    """
    codec = encode_obs(observed, "toy")
    fields = codec.dtype.fields or {"": (codec.dtype,)}
    shapes = {
        name: jax.ShapeDtypeStruct(kind[0].shape or codec.shape, kind[0].base)
        for name, kind in fields.items()
    }
    obs = {
        "inner": [shapes.pop(name) for name in list(shapes)[1:]],
        "first": next(iter(shapes.values())),
    }

    def draw(key: jax.Array) -> Any:
        return jax.tree.map(lambda s: jax.random.randint(key, s.shape, 0, 2).astype(s.dtype), obs)

    def reset(key: jax.Array, params: Any) -> tuple:
        return draw(key), draw(key)

    def step(state: Any, action: jax.Array, key: jax.Array) -> tuple:
        seen = sum(
            (jnp.sum(x.astype(jnp.float32)) for x in jax.tree.leaves(state)), start=jnp.zeros(())
        )
        after = draw(key)
        return after, Timestep(after, after, seen, jnp.zeros((), bool), jnp.zeros((), bool))

    return jf.Env(EnvSpec("toy", obs, Discrete(2), 5), reset, step)


@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(observed=SPACES)
def test_random_compiled_environments_train_and_their_policies_are_called_by_name(
    observed: gym.Space,
):
    env = of_space(observed)
    result = jf.learn(
        jf.vectorize(env, num_envs=2), jf.ppo(**ON_POLICY), total_steps=32, eval_episodes=2
    )
    _, obs = env.reset(jax.random.key(0), ())
    batch = jax.tree.map(lambda x: x[None], obs)
    policy = result.policy
    wanted, _ = policy.act_arrays(policy.params, (), batch, np.ones(1, bool), jax.random.key(0))
    # another order of the same names
    renamed = dict(reversed(jax.tree.map(np.asarray, obs).items()))
    assert (
        policy(renamed) == wanted[0]
        and policy.act(policy.params, (), batch, np.ones(1, bool), None)[0] == wanted
    )


@pytest.mark.parametrize("name", FUZZED)
@settings(max_examples=1, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(observed=SPACES, acted=ACTIONS, seed=st.integers(0, 99))
def test_random_spaces_train_and_play(
    name: str, observed: gym.Space, acted: gym.Space, seed: int, tmp_path_factory: Any
):
    fuzz(observed, acted, name, seed, tmp_path_factory.mktemp("fuzz"))


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(observed=SPACES, acted=ACTIONS, seed=st.integers(0, 99), name=st.sampled_from(FUZZED))
def test_many_random_spaces_train_and_play(
    name: str, observed: gym.Space, acted: gym.Space, seed: int, tmp_path_factory: Any
):
    fuzz(observed, acted, name, seed, tmp_path_factory.mktemp("fuzz"))
