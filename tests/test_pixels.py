"""Agents that see images: the networks, frame stacks (which change only storage), and environments
that need them.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pixel_envs
import pytest

import jaxrl_fast as jf
from jaxrl_fast.assembly import bind, build_graph
from jaxrl_fast.learning.algorithm import Algorithm
from jaxrl_fast.networks.convolutions import CNNS, choose_convolutions, patches
from jaxrl_fast.networks.network import make_network
from jaxrl_fast.runtime import graph as graphs
from jaxrl_fast.runtime import placements
from jaxrl_fast.runtime import program as programs
from jaxrl_fast.training import checkpoints

KEY = jax.random.key(0)
IMAGE = jax.ShapeDtypeStruct((84, 84, 4), jnp.uint8)


def small_ppo(**options) -> Algorithm:
    defaults = dict(
        rollout_length=6, num_epochs=2, num_minibatches=2, policy_hidden=(8,), value_hidden=(8,)
    )
    return jf.ppo(**defaults | options)


def small_sac(**options) -> Algorithm:
    defaults = dict(
        updates_per_tick=2,
        batch_size=8,
        buffer_size=160,
        warmup_steps=0,
        policy_hidden=(8,),
        critic_hidden=(8,),
        rollout_length=3,
    )
    return jf.sac(**defaults | options)


@pytest.mark.parametrize(("size", "stride"), [(4, 2), (3, 1)])
def test_a_product_of_patches_is_a_convolution(size: int, stride: int):
    image, filters = (
        jax.random.normal(KEY, (2, 21, 14, 3)),
        jax.random.normal(jax.random.key(1), (size, size, 3, 5)),
    )
    want = jax.lax.conv_general_dilated(
        image, filters, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    tiles = size // stride
    kernel = filters.reshape(tiles, stride, tiles, stride, 3, 5).swapaxes(1, 2).reshape(-1, 5)
    np.testing.assert_allclose(patches(image, size, stride) @ kernel, want, rtol=1e-4, atol=1e-4)


def test_an_image_of_84_pixels_goes_through_the_published_layers():
    network = make_network(IMAGE, 6, hidden=(512,))
    shapes = jax.eval_shape(network.init, KEY)
    inputs = sorted(
        leaf.shape for path, leaf in jax.tree.leaves_with_path(shapes) if path[-1].key == "kernel"
    )
    assert inputs == [(256, 32), (512, 6), (512, 64), (576, 64), (3136, 512)]


def test_brightness_is_scaled_and_a_white_image_is_not_a_black_one():
    network = make_network(jax.ShapeDtypeStruct((10, 10, 1), jnp.uint8), 3, hidden=(8,))
    params, first = jax.jit(network.init)(KEY), jnp.zeros((1, 2), bool)
    images = jnp.stack([jnp.full((10, 10, 1), byte, jnp.uint8) for byte in (0, 255)])[None]
    black, white = jax.jit(network.apply)(params, (), images, first)[0][0]
    assert black.dtype == jnp.float32
    assert 0.01 < np.abs(white - black).max() < 10.0


@pytest.mark.parametrize(("recurrent_size", "precision"), [(5, "f32"), (0, "bf16")])
def test_images_stand_beside_other_numbers_in_any_network(recurrent_size: int, precision):
    spec = {
        "action_mask": jax.ShapeDtypeStruct((3,), bool),
        "image": jax.ShapeDtypeStruct((10, 10, 2), jnp.uint8),
        "speed": jax.ShapeDtypeStruct((2,), jnp.float32),
    }
    network = make_network(spec, 3, hidden=(8,), recurrent_size=recurrent_size, precision=precision)
    params = jax.jit(network.init)(KEY)
    obs = jax.tree.map(lambda s: jnp.ones((4, 2, *s.shape), s.dtype), spec)
    first, carry = jnp.zeros((4, 2), bool), network.initial_memory(2)

    @jax.jit
    def run(obs):
        return network.apply(params, carry, obs, first)[0]

    before = run(obs)
    assert (before.shape, before.dtype) == ((4, 2, 3), jnp.float32)
    for key in ("image", "speed"):
        changed = run({**obs, key: obs[key].at[:, 1].mul(100)})
        np.testing.assert_array_equal(changed[:, 0], before[:, 0])
        assert np.abs(changed[:, 1] - before[:, 1]).max() > 1e-3


@pytest.mark.parametrize(
    ("shape", "dtype", "chosen"),
    [
        ((84, 84, 4), jnp.uint8, "nature"),
        ((36, 96, 3), jnp.uint8, "nature"),
        ((35, 96, 3), jnp.uint8, "small"),
        ((2, 9, 3), jnp.uint8, None),
        ((10, 10, 4), jnp.float32, None),
        ((10, 10, 4), jnp.bool_, None),
        ((84, 84), jnp.uint8, None),
    ],
)
def test_convolutions_are_chosen_for_bytes_with_channels_alone(shape, dtype, chosen):
    assert choose_convolutions({"x": jax.ShapeDtypeStruct(shape, dtype)}, "auto") == CNNS.get(
        chosen, ()
    )


@pytest.mark.parametrize("dtype", [jnp.bool_, jnp.float32])
def test_small_images_of_truth_values_and_real_numbers_are_convolved_where_a_convolution_is_named(
    dtype,
):
    network = make_network(jax.ShapeDtypeStruct((10, 10, 4), dtype), 6, hidden=(32,), cnn="small")
    shapes = jax.eval_shape(network.init, KEY)
    inputs = sorted(
        leaf.shape for path, leaf in jax.tree.leaves_with_path(shapes) if path[-1].key == "kernel"
    )
    assert inputs == [(32, 6), (36, 16), (1024, 32)]
    obs = jnp.ones((1, 2, 10, 10, 4), dtype).at[0, 1].set(jnp.zeros((), dtype))
    one, zero = jax.jit(network.apply)(
        jax.jit(network.init)(KEY), (), obs, jnp.zeros((1, 2), bool)
    )[0][0]
    assert np.abs(one - zero).max() > 1e-3


@pytest.mark.parametrize(
    ("algorithm", "says"),
    [
        (
            small_ppo(cnn="nature"),
            "cnn=nature is too large for images with a side of 8 pixels: write cnn=auto",
        ),
        (
            small_ppo(normalize_observations=True),
            "motion, whose observations are images.*Leave normalize_obs",
        ),
        (
            small_sac(),
            "algo=sac does not work with the discrete actions of motion: write algo=sac_discrete",
        ),
    ],
)
def test_what_images_do_not_go_with_is_refused(algorithm: Algorithm, says: str):
    with pytest.raises(ValueError, match=says):
        bind(algorithm, pixel_envs.motion().spec, 8)
    with pytest.raises(ValueError, match=r"cnn=small reads images .* contain none: write cnn=auto"):
        bind(
            small_ppo(cnn="small"),
            jf.EnvSpec("x", jax.ShapeDtypeStruct((4,), jnp.float32), jf.Discrete(2)),
            8,
        )


def test_only_images_are_not_normalized_by_default():
    spec = pixel_envs.walk().spec
    mixed = spec._replace(
        obs={"a": spec.obs, "b": jax.ShapeDtypeStruct((2,), jnp.float32)}, frame_stack=0
    )
    for make in (small_ppo, small_sac):
        assert [bind(make(), s, 8).normalize_observations for s in (spec, mixed)] == [False, True]


def trained(env: jf.Env, algorithm: Algorithm, ticks: int, num_envs: int = 8):
    graph, _ = build_graph(jf.vectorize(env, num_envs=num_envs), algorithm)
    tick = jax.jit(lambda state: graphs.tick(graph, state))
    state, metrics = jax.jit(lambda: graphs.init(graph, KEY, algorithm.hyper))(), []
    for _ in range(ticks):
        state, more = tick(state)
        metrics.append(more)
    return state, metrics


@pytest.mark.parametrize(
    ("algorithm", "left_out"), [(small_ppo(), False), (small_sac(), True)], ids=["ppo", "sac"]
)
def test_the_images_before_a_rollout_are_kept_where_replay_is_not(
    algorithm: Algorithm, left_out: bool
):
    graph, _ = build_graph(jf.vectorize(pixel_envs.walk(), num_envs=8), algorithm)
    state = jax.eval_shape(lambda: graphs.init(graph, KEY, algorithm.hyper))
    state = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), state._replace(key=()))
    refills = graphs.tagged(graph, placements.REPLAY)
    own, replay = checkpoints.sizes(state, refills)
    assert (replay > 0, own > 0) == (left_out, True)
    names = checkpoints.snapshot(state, refills, replay=False)
    assert any(name.startswith("private.experience") for name in names) != left_out


@pytest.mark.usefixtures("optimized")
def test_replay_of_images_is_updated_in_place():
    algorithm = small_sac(buffer_size=8 * 5_000)
    graph, _ = build_graph(jf.vectorize(pixel_envs.walk(), num_envs=8), algorithm)
    keys = jax.random.split(KEY, 1)
    program = programs.compile(graph, placements.data_parallel(graph, jax.devices()[:2]), 1)
    text = program.ready(keys, algorithm.hyper)[1].as_text()
    frames = (
        jax.eval_shape(lambda: graphs.init(graph, KEY, algorithm.hyper))
        .private["experience"]
        .frames
    )
    for slots in (5_000, frames.shape[1]):
        ring = rf"\[[\d,]*\b{slots}\b[\d,]*\]\S*"
        assert re.search(ring, text)
        assert not re.findall(rf"{ring} copy(?:-start)?\(", text)
    assert set(re.findall(r" (all-reduce|all-gather|all-to-all|collective-permute)\(", text)) == {
        "all-reduce"
    }


@pytest.mark.parametrize("algorithm", [small_ppo(), small_sac(n_step=2)], ids=["ppo", "sac"])
def test_stacks_made_here_teach_what_stacks_of_the_environment_teach(algorithm: Algorithm):
    """Action selection, rollouts, replay and learners use the stacks that a stacking environment
    would return.
    """
    env = pixel_envs.walk()
    ours, metrics = trained(env, algorithm, 3)
    theirs, _ = trained(pixel_envs.stacking(env), algorithm, 3)
    for got, want in zip(
        *(jax.tree.leaves(learned(state)) for state in (ours, theirs)), strict=True
    ):
        np.testing.assert_allclose(got, want, atol=1e-5)
    assert np.isfinite(metrics[-1]["sample/episode_return_sum"])


def learned(state: graphs.TrainState) -> list:
    return [
        part.learned.params
        for name in sorted(state.private)
        if name.startswith("learn")
        for part in state.private[name].values()
    ]


@pytest.mark.usefixtures("optimized")
def test_a_single_image_of_that_world_says_nothing():
    env = pixel_envs.motion()
    key, right = jax.random.split(KEY), []
    for direction in (-1, 1):
        state, _ = env.reset(key[0], ())
        (*_, _), step = env.step(
            (state[0], state[1], jnp.int32(direction), jnp.int32(0)), jnp.int32(0), key[1]
        )
        right.append(step.obs)
    np.testing.assert_array_equal(*right)
