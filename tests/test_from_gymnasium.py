"""Gymnasium's spaces and environments in the pool; EnvPool where it is installed."""

from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from jaxrl_fast.core import Box, Discrete
from jaxrl_fast.envs.from_gymnasium import make_custom_host, make_host
from jaxrl_fast.envs.pool import from_envpool
from jaxrl_fast.envs.pool.batches import PoolOptions, env_seed
from jaxrl_fast.envs.pool.codec import encode_action, flat_obs

HERE = PoolOptions(workers=0, num_groups=1)

LEAVES = st.one_of(
    st.builds(spaces.Discrete, st.integers(1, 5), start=st.integers(-2, 2)),
    st.builds(
        lambda sizes: spaces.MultiDiscrete(sizes, start=[3] * len(sizes)),
        st.lists(st.integers(1, 4), min_size=1),
    ),
    st.builds(spaces.MultiBinary, st.integers(1, 4)),
    st.builds(
        lambda shape: spaces.Box(-2, 2, shape), st.lists(st.integers(1, 3), max_size=2).map(tuple)
    ),
    st.just(spaces.Box(0, 255, (2, 2), np.uint8)),
)
SPACES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
        st.dictionaries(st.sampled_from("zyxab"), inner, min_size=1, max_size=3).map(spaces.Dict),
    ),
    max_leaves=5,
)


class OneStep(gymnasium.Env):
    """An environment of any spaces; it observes a sample, and ``judge`` computes the reward from
    the action.
    """

    def __init__(
        self, observed: spaces.Space, acted: spaces.Space, judge: Any = lambda action: 0.0
    ) -> None:
        self.observation_space, self.action_space, self.judge = observed, acted, judge

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        return self.observation_space.sample(), self.judge(action), True, True, {}


@given(space=SPACES, seed=st.integers(0, 2**16))
def test_observations_are_flattened_as_gymnasium_does(space: spaces.Space, seed: int):
    space.seed(seed)
    codec = flat_obs(spaces.Tuple([space, spaces.Discrete(1)]), "toy")
    assert codec.dtype == np.float32
    row = np.full(codec.shape, np.nan, codec.dtype)
    for _ in range(2):  # a row is overwritten again and again
        obs = space.sample()
        codec.write(row, (obs, 0))
        np.testing.assert_array_equal(row, [*spaces.flatten(space, obs).astype(np.float32), 1.0])


@pytest.mark.parametrize(
    ("dtype", "kept"),
    [
        ("uint8", "uint8"),
        ("float64", "float32"),
        ("int64", "int32"),
        ("float16", "float16"),
        ("int16", "int16"),
    ],
)
def test_a_box_keeps_its_shape_and_its_dtype_up_to_32_bits(dtype: str, kept: str):
    space = spaces.Box(0, 100, (3, 2, 1), dtype)
    host = make_custom_host(
        lambda: OneStep(space, spaces.Discrete(2)), num_envs=2, name="toy", pool=HERE
    )
    assert (host.spec.obs.shape, host.spec.obs.dtype) == ((3, 2, 1), kept)
    obs = host.reset(3)
    space.seed(env_seed(3, 1))
    np.testing.assert_array_equal(obs[1], space.sample().astype(kept))
    assert obs.dtype == kept
    host.close()


def test_an_observation_of_another_shape_is_told():
    wrong = OneStep(spaces.Box(0, 1, (3,)), spaces.Discrete(2))
    wrong.observation_space.sample = lambda: np.zeros(1)  # NumPy would broadcast it to all three
    host = make_custom_host(lambda: wrong, num_envs=1, name="toy", pool=HERE)
    with pytest.raises(
        RuntimeError,
        match=r"an observation has shape \(1,\), but observation_space has shape \(3,\)",
    ):
        host.reset(0)


@pytest.mark.parametrize(
    ("space", "sizes"),
    [
        (spaces.Discrete(3, start=-1), ()),
        (spaces.MultiDiscrete([2, 3, 4], start=[0, 5, 0]), (2, 3, 4)),
        (spaces.MultiDiscrete([[2, 3], [1, 2]]), (2, 3, 1, 2)),
        (spaces.MultiBinary(3), (2, 2, 2)),
        (spaces.MultiBinary((2, 2)), (2, 2, 2, 2)),
    ],
)
def test_every_action_of_a_finite_space_is_taken(space: spaces.Space, sizes: tuple[int, ...]):
    codec = encode_action(space, "toy")
    assert (codec.sizes, codec.num_actions) == (sizes, 0 if sizes else 3)
    parts = np.stack(
        np.unravel_index(np.arange(np.prod(sizes or 3)), sizes or (3,)), axis=-1
    ).astype(np.int32)
    decoded = codec.decode(parts if sizes else parts[:, 0])
    assert all(space.contains(action) for action in decoded)
    assert len({np.asarray(action).tobytes() for action in decoded}) == len(parts)
    if isinstance(decoded, np.ndarray):
        decoded[0] = 99  # an environment may store and change its arguments
        assert space.contains(codec.decode(parts)[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_real_actions_come_in_the_dtype_of_their_space(dtype: type):
    space = spaces.Box(np.array([-1, 0], dtype), np.array([1, 3], dtype), dtype=dtype)
    seen: list[np.ndarray] = []
    judge = lambda action: (seen.append(action), 0.0)[1]  # noqa: E731
    host = make_custom_host(
        lambda: OneStep(spaces.Box(0, 1), space, judge), num_envs=2, name="toy", pool=HERE
    )
    assert isinstance(host.spec.action, Box)
    np.testing.assert_array_equal(host.spec.action.high, np.array([1, 3], np.float32))
    seen.clear()  # the check before the run
    host.reset(0)
    for value in (0.25, 0.5):
        host.send(np.full((2, 2), value, np.float32), 0)
        step = host.recv(0)
    assert step.terminated.all() and not step.truncated.any()  # never both
    assert [action.dtype for action in seen] == [dtype] * 4
    # none is a NumPy view
    np.testing.assert_array_equal(np.stack(seen), np.repeat([0.25, 0.5], 4).reshape(4, 2))
    host.close()


@pytest.mark.parametrize(
    ("observed", "acted", "says"),
    [
        (spaces.Graph(spaces.Box(0, 1), None), spaces.Discrete(2), "observations of kind Graph"),
        (spaces.Dict(text=spaces.Text(5)), spaces.Discrete(2), "observations of kind Text"),
        (spaces.Box(0, 1), spaces.Box(-np.inf, 1), "unbounded actions"),
        (spaces.Box(0, 1), spaces.Box(-1e30, 1e30), "unbounded actions (-1e+30 to 1e+30)"),
        (
            spaces.Box(0, 1),
            spaces.Box(-np.finfo(np.float32).max, np.finfo(np.float32).max),
            "unbounded actions",
        ),
        (spaces.Box(0, 1), spaces.Box(0, 9, dtype=np.int32), "Box with floats is supported"),
        (
            spaces.Box(0, 1),
            spaces.Box(np.array([-1, 0]), np.array([1, 0]), dtype=float),
            "low < high",
        ),
        (spaces.Box(0, 1, (0,)), spaces.Discrete(2), "no numbers to observe"),
        (spaces.Sequence(spaces.Discrete(2)), spaces.Discrete(2), "observations of kind Sequence"),
        (spaces.Box(0, 1), spaces.Tuple([spaces.Discrete(2)]), "actions of kind Tuple"),
        (None, spaces.Discrete(2), "a gymnasium.Env has observation_space"),
    ],
)
def test_spaces_that_are_not_supported_are_refused_in_one_line(
    observed: Any, acted: Any, says: str
):
    with pytest.raises(ValueError) as caught:
        make_custom_host(lambda: OneStep(observed, acted), num_envs=1, name="toy", pool=HERE)
    message = str(caught.value)
    assert says in message and message.startswith("toy") and "\n" not in message


def test_wrappers_options_and_time_limits_reach_the_environment():
    host = make_host(
        "MountainCar-v0",
        num_envs=1,
        pool=HERE,
        max_episode_steps=3,
        goal_velocity=0.01,
        wrappers=[
            "FlattenObservation",
            {"gymnasium.wrappers.TransformReward": {"func": float.__abs__}},
        ],
    )
    assert (host.spec.name, host.spec.max_episode_steps, host.spec.action) == (
        "MountainCar-v0",
        3,
        Discrete(3),
    )
    host.reset(0)
    for _ in range(3):
        host.send(np.zeros(1, int), 0)
        step = host.recv(0)
    assert (step.truncated[0], step.reward[0], step.episode_return[0], step.episode_length[0]) == (
        True,
        1,
        3,
        3,
    )
    host.close()


@pytest.mark.parametrize(
    ("id", "options", "says"),
    [
        ("CartPole-v9", {}, "env.id=CartPole-v9: Gymnasium: Environment version `v9`"),
        ("cartpole-v1", {}, "Did you mean: `CartPole`?"),
        ("nowhere:Mine-v0", {}, "needs the package 'nowhere': pip install nowhere"),
        ("CartPole-v1", {"wings": 2}, "CartPole-v1 cannot be made: TypeError"),
        (
            "CartPole-v1",
            {"max_episode_steps": 0},
            "max_episode_steps=0: write a number of at least 1",
        ),
        (
            "CartPole-v1",
            {"wrappers": ["NoSuch"]},
            "there is no NoSuch: write a name of gymnasium.wrappers",
        ),
        ("CartPole-v1", {"wrappers": [3]}, "wrappers: 3: write a name"),
    ],
)
def test_wrong_ids_options_and_wrappers_are_refused_in_one_line(id: str, options: dict, says: str):
    with pytest.raises(ValueError) as caught:
        make_host(id, num_envs=2, pool=HERE, **options)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_it_is_said_where_envpool_could_serve():
    for id, served in [("CartPole-v1", True), ("FrozenLake-v1", False)]:
        host = make_host(id, num_envs=1, pool=HERE)
        assert any("pool.backend=envpool" in line for line in host.events()) == served
        assert not host.events()
        host.close()


def test_envpool_obeys_the_same_laws():
    envpool = pytest.importorskip("envpool")
    newest = {id.rpartition("-v")[0] for id in envpool.list_all_envs()}
    assert set(from_envpool.SERVES) <= newest
    host = make_host(
        "CartPole-v1", num_envs=6, pool=PoolOptions(backend="envpool"), max_episode_steps=30
    )
    runs = []
    for _ in range(2):
        first, steps = host.reset(3), []
        for t in range(60):
            for group in (0, 1):
                host.send(np.full(3, t % 2) if group else np.ones(3, int), group)
            steps.append([host.recv(1), host.recv(0)])
        runs.append(
            [first, *(np.asarray(array) for pair in steps for step in pair for array in step)]
        )
    for left, right in zip(*runs, strict=True):
        np.testing.assert_array_equal(left, right)
    for before, after in pairwise(steps):
        for one, following in zip(before, after, strict=True):
            ended = one.terminated | one.truncated
            np.testing.assert_array_equal(
                following.episode_length, np.where(ended, 1, one.episode_length + 1)
            )
            assert (np.abs(one.obs[ended]) <= 0.05).all()  # the first of an episode
            np.testing.assert_array_equal(one.obs[~ended], one.next_obs[~ended])
            assert (one.episode_length[one.truncated] == 30).all()
            # CartPole gives 1 a step
            np.testing.assert_array_equal(one.episode_return, one.episode_length)
    assert host.steps() == 6 * 60 and any(one.truncated.any() for one, _ in steps)
    host.close()
