"""Images whose channels come first, gray images and stacks of frames become
``[height, width, channels]``, and a policy takes the environment's own layout.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_spaces import fuzz

import jaxrl_fast as jf
from jaxrl_fast.core import EnvSpec, Timestep
from jaxrl_fast.envs.env import describe_images
from jaxrl_fast.envs.from_gymnasium import make_custom_host
from jaxrl_fast.envs.pool.batches import PoolOptions
from jaxrl_fast.offline.datasets import usable
from jaxrl_fast.spaces import AXES, image_shape, layout_of, to_image

IN_PROCESS = PoolOptions(workers=0, num_groups=1)
LAYOUTS = [
    ((3, 64, 64), "CHW"),
    ((1, 84, 84), "CHW"),
    ((4, 84, 84), "KHW"),
    ((84, 84), "HW"),
    ((4, 84, 84, 1), "KHWC"),
    ((4, 96, 96, 3), "KHWC"),
    ((4, 3, 64, 64), "KCHW"),
    ((64, 64, 3), None),
    ((7, 7, 3), None),
    ((10, 10, 16), None),
    ((3, 3, 3), None),
    ((5, 7), None),
    ((16,), None),
    ((2, 3, 4, 5), None),
]


@pytest.mark.parametrize(("shape", "layout"), LAYOUTS)
def test_the_smallest_axis_of_an_image_holds_its_channels(
    shape: tuple[int, ...], layout: str | None
):
    assert layout_of(shape, np.uint8) == layout
    for dtype in (np.float32, np.bool_, np.int32):
        assert layout_of(shape, dtype) is None


@given(data=st.data(), layout=st.sampled_from(list(AXES)), lead=st.lists(st.integers(1, 3)))
def test_a_pixel_is_where_its_axes_say(data: st.DataObject, layout: str, lead: list[int]):
    shape = tuple(data.draw(st.integers(1, 4)) for _ in layout)
    x = np.random.default_rng(0).integers(0, 256, (*lead, *shape)).astype(np.uint8)
    image = to_image(x, layout, np)
    assert image.shape == (*lead, *image_shape(shape, layout))
    channels = shape[layout.index("C")] if "C" in layout else 1
    for at in np.ndindex(shape):
        where = dict(zip(layout, at, strict=True))
        channel = where.get("K", 0) * channels + where.get("C", 0)
        np.testing.assert_array_equal(image[..., where["H"], where["W"], channel], x[..., *at])
    np.testing.assert_array_equal(to_image(jnp.asarray(x), layout, jnp), image)


SHAPES = {
    "CHW": (3, 24, 20),
    "KHW": (4, 24, 20),
    "HW": (24, 20),
    "KHWC": (2, 24, 20, 3),
    "KCHW": (2, 3, 24, 20),
}


class Pictures(gym.Env):
    """Shows pictures with other axes, or the same ones with the axes of training."""

    def __init__(self, layout: str, *, moved: bool, inside: bool) -> None:
        self.layout, self.moved, self.inside = layout, moved, inside
        shape: tuple[int, ...] = SHAPES[layout]
        shape = image_shape(shape, layout) if moved else shape
        picture = gym.spaces.Box(0, 255, shape, np.uint8)
        vector = gym.spaces.Box(-1, 1, (2,))
        self.observation_space = (
            gym.spaces.Dict({"camera": picture, "arm": vector}) if inside else picture
        )
        self.action_space = gym.spaces.Discrete(3)

    def observed(self) -> Any:
        picture = self.np_random.integers(0, 256, SHAPES[self.layout], dtype=np.uint8)
        picture = to_image(picture, self.layout, np) if self.moved else picture
        return {"camera": picture, "arm": np.full(2, 0.5, np.float32)} if self.inside else picture

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.steps = 0
        return self.observed(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        self.steps += 1
        return self.observed(), float(action), False, self.steps >= 5, {}


PPO = jf.ppo(rollout_length=4, num_minibatches=1, num_epochs=1)


def trained(env: Any) -> jf.Result:
    return jf.learn(
        env, PPO, total_steps=16, eval_every=0, tell=LINES.append, on_metrics=lambda row: None
    )


LINES: list[str] = []


@pytest.fixture(autouse=True)
def _no_lines() -> Iterator[None]:
    LINES.clear()
    yield


def same_parameters(one: jf.Result, other: jf.Result) -> None:
    jax.tree.map(np.testing.assert_array_equal, one.policy.params, other.policy.params)


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "dictionary"])
@pytest.mark.parametrize("layout", SHAPES)
def test_training_is_that_on_the_moved_images_and_the_policy_takes_the_own(
    layout: str, inside: bool
):
    results = []
    for moved in (False, True):
        host = make_custom_host(
            lambda moved=moved: Pictures(layout, moved=moved, inside=inside),
            num_envs=2,
            name="pictures",
            pool=IN_PROCESS,
        )
        results.append(trained(host))
        host.close()
    same_parameters(*results)
    told = [line for line in LINES if "is taken as" in line]
    assert len(told) == 1 and AXES[layout] in told[0]
    envs = [Pictures(layout, moved=moved, inside=inside) for moved in (False, True)]
    for seed in range(5):
        own, moved = (env.reset(seed=seed)[0] for env in envs)
        assert results[0].policy(own) == results[1].policy(moved)


def compiled(layout: str, *, moved: bool, inside: bool) -> jf.Env:
    """Return an environment of JAX that shows pictures."""
    shape = SHAPES[layout]

    def observed(key: jax.Array) -> Any:
        picture = jax.random.randint(key, shape, 0, 256).astype(jnp.uint8)
        picture = to_image(picture, layout, jnp) if moved else picture
        return {"camera": picture, "arm": jnp.full(2, 0.5)} if inside else picture

    def step(state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Timestep]:
        obs = observed(key)
        over = state + 1 >= 5
        reward = action.astype(jnp.float32)
        return state + 1, Timestep(obs, obs, reward, jnp.zeros((), bool), over)

    def reset(key: jax.Array, params: Any) -> tuple[jax.Array, Any]:
        return jnp.zeros((), jnp.int32), observed(key)

    obs = jax.eval_shape(observed, jax.random.key(0))
    return jf.Env(EnvSpec("pictures", obs, jf.Discrete(3), None), reset, step)


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "dictionary"])
def test_a_compiled_environment_follows_the_same_rule(inside: bool):
    envs = [compiled("CHW", moved=moved, inside=inside) for moved in (False, True)]
    results = [trained(jf.vectorize(env, num_envs=2)) for env in envs]
    same_parameters(*results)
    assert sum("channels first" in line for line in LINES) == 1
    for seed in range(5):
        own, moved = (env.reset(jax.random.key(seed), ())[1] for env in envs)
        assert int(results[0].policy(own)) == int(results[1].policy(moved))


def test_shapes_that_do_not_determine_the_axes_are_named_and_left():
    spec = EnvSpec("toy", jax.ShapeDtypeStruct((3, 3, 3), jnp.uint8), jf.Discrete(2), None)
    (line,) = describe_images(spec)
    assert line.endswith("[height, width, channels], which its shape does not determine")
    for shape in ((64, 64, 3), (7, 7, 3), (84, 84, 4)):
        obs = jax.ShapeDtypeStruct(shape, jnp.uint8)
        assert describe_images(spec._replace(obs=obs)) == []


def test_the_check_names_the_axes():
    report = jf.check_env(
        lambda: Pictures("CHW", moved=False, inside=True), num_steps=8, tell=LINES.append
    )
    (note,) = [verdict for verdict in report.findings if verdict.rule == "image"]
    assert note.kind == "note" and "'camera', uint8[3, 24, 20]" in note.words


def test_recorded_images_may_have_the_environments_own_axes():
    spec = jf.vectorize(compiled("CHW", moved=False, inside=False), num_envs=1).spec
    pictures = np.random.default_rng(0).integers(0, 256, (3, *SHAPES["CHW"])).astype(np.uint8)
    own = jf.Dataset(
        obs={"": pictures},
        action=np.zeros(2, np.int32),
        reward=np.zeros(2, np.float32),
        terminated=np.array([False, True]),
        truncated=np.zeros(2, bool),
        lengths=np.array([2]),
    )
    moved = own._replace(obs={"": to_image(pictures, "CHW", np)})
    for dataset in (own, moved):
        np.testing.assert_array_equal(usable(dataset, spec, "own").obs[""], moved.obs[""])


@settings(max_examples=3)
@given(
    layout=st.sampled_from(list(SHAPES)),
    inside=st.booleans(),
    name=st.sampled_from(["ppo", "dqn", "sac_discrete"]),
    seed=st.integers(0, 99),
)
def test_random_layouts_train_save_export_and_play(
    layout: str, inside: bool, name: str, seed: int, tmp_path_factory: Any
):
    env = Pictures(layout, moved=False, inside=inside)
    folder: Path = tmp_path_factory.mktemp("fuzz")
    fuzz(env.observation_space, env.action_space, name, seed, folder)
