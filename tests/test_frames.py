"""Frame stacks: action selection, updates and replay use the same stacks, none of which reaches
across the start of an episode.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pixel_envs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_fast.core import Discrete, EnvSpec, Transition
from jaxrl_fast.learning.frame_stack import (
    View,
    add_rollout,
    init_recent,
    initial_frames,
    look,
    make_view,
    put_rows,
    put_stacks,
)
from jaxrl_fast.learning.minibatches import take_batch
from jaxrl_fast.replay.buffers import Window, ring_buffer, uniform_source
from jaxrl_fast.replay.images import image_buffer

FRAME = (2, 1, 3)
"""Height, width and channels."""


def view_of(k: int, *, beside: bool = False) -> View:
    """Stacks of ``k`` frames, alone or in a dictionary with two numbers."""
    frame = jax.ShapeDtypeStruct(FRAME, jnp.uint8)
    obs = {"image": frame, "speed": jax.ShapeDtypeStruct((2,), jnp.float32)} if beside else frame
    return make_view(EnvSpec("toy", obs, Discrete(2), None, k))


def with_speed(obs: np.ndarray, beside: bool):
    """Observations of images ``[T, E, ...]``, in a dictionary with numbers that identify the image."""
    return {"image": obs, "speed": obs[..., 0, 0, :2].astype(np.float32)} if beside else obs


def streams(
    done: np.ndarray, seed: int, restarts: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Frames, `next_obs` and first-step flags ``[T, E, ...]`` of environments whose episodes end
    where ``done``; where there is a restart, an environment starts a new episode before this step,
    without termination or truncation.
    """
    rng = np.random.default_rng(seed)
    steps, num_envs = done.shape
    obs = rng.integers(0, 256, (steps + 1, num_envs, *FRAME), np.uint8)
    apart = (
        done
        if restarts is None
        else done | np.concatenate([restarts[1:], np.zeros_like(restarts[:1])])
    )
    own = rng.integers(0, 256, (steps, num_envs, *FRAME), np.uint8)
    next_obs = np.where(apart[..., None, None, None], own, obs[1:])
    return obs[:-1], next_obs, np.concatenate([np.ones_like(done[:1]), apart[:-1]])


def slow_stacks(
    obs: np.ndarray, next_obs: np.ndarray, first: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Compute stacks of every step and of its `next_obs`, frame by frame; before its start an
    episode repeats its first frame.
    """
    stacks = np.zeros((*obs.shape[:-1], k * FRAME[-1]), np.uint8)
    following = np.zeros_like(stacks)
    for e in range(obs.shape[1]):
        memory: list[np.ndarray] = []
        for t in range(obs.shape[0]):
            memory = [obs[t, e]] * k if first[t, e] else [*memory[1:], obs[t, e]]
            stacks[t, e] = np.concatenate(memory, axis=-1)
            following[t, e] = np.concatenate([*memory[1:], next_obs[t, e]], axis=-1)
    return stacks, following


def ends(steps: int, num_envs: int, seed: int, often: float) -> np.ndarray:
    return np.random.default_rng(seed + 1).random((steps, num_envs)) < often


@pytest.mark.parametrize("beside", [False, True], ids=["image", "dictionary"])
@given(seed=st.integers(0, 99), often=st.sampled_from([0.0, 0.2, 0.6, 1.0]))
def test_who_acts_sees_the_stacks(beside: bool, seed: int, often: float):
    view = view_of(3, beside=beside)
    obs, next_obs, first = streams(ends(9, 4, seed, often), seed)
    want, _ = slow_stacks(obs, next_obs, first, 3)
    frames = jax.tree.map(lambda x: jnp.full_like(x, 7), initial_frames(view, 4))
    for t in range(9):
        own = with_speed(obs[t], beside)
        seen, frames = look(view, frames, own, first[t])
        np.testing.assert_array_equal(seen["image"] if beside else seen, want[t])
        if beside:
            np.testing.assert_array_equal(seen["speed"], own["speed"])


@cache
def history_of(k: int, num_envs: int, shards: int, beside: bool):
    view = view_of(k, beside=beside)

    def add(recent, obs, first):
        recent, tables, rows = add_rollout(view, recent, obs, first, shards)
        return recent, put_stacks(tables, put_rows(view, obs, rows)), tables

    return init_recent(view, num_envs, shards), jax.jit(add)


@pytest.mark.parametrize("beside", [False, True], ids=["image", "dictionary"])
@given(
    seed=st.integers(0, 99), often=st.sampled_from([0.0, 0.2, 0.6, 1.0]), k=st.sampled_from([2, 4])
)
def test_a_learner_of_rollouts_sees_the_same_stacks(beside: bool, seed: int, often: float, k: int):
    state, add = history_of(k, 6, 3, beside)
    obs, next_obs, first = streams(ends(6, 6, seed, often), seed)
    want, _ = slow_stacks(obs, next_obs, first, k)
    for t in range(0, 6, 2):
        own = with_speed(obs[t : t + 2], beside)
        state, seen, tables = add(state, own, first[t : t + 2])
        np.testing.assert_array_equal(seen["image"] if beside else seen, want[t : t + 2])
        if beside:
            np.testing.assert_array_equal(seen["speed"], own["speed"])
        (table,) = jax.tree.leaves(tables)
        # each frame once, and the few frames before
        assert table.size == (2 + k - 1) * 6 * np.prod(FRAME)


class Both:
    """A buffer of frames, and a plain one that stores whole stacks, given the same steps."""

    def __init__(
        self, k: int, capacity_t: int, num_envs: int, batch_size: int, n_step: int, length: int
    ) -> None:
        sizes = dict(
            capacity=capacity_t * num_envs,
            num_envs=num_envs,
            batch_size=batch_size,
            window=Window(n_step),
        )
        self.k, self.n_step, self.num_envs, self.length = k, n_step, num_envs, length
        self.batch_size = batch_size
        self.ours, self.plain = image_buffer(view_of(k), **sizes), ring_buffer(**sizes)
        self.add_ours, self.add_plain = jax.jit(self.ours.add), jax.jit(self.plain.add)
        self.take_ours, self.take_plain = (
            jax.jit(self._taken(self.ours)),
            jax.jit(self._taken(self.plain)),
        )

    def _taken(self, buffer):
        source = uniform_source(buffer, 2 * (self.batch_size // buffer.shards), Window(self.n_step))

        def windows(state, key):
            sampled = source.sample(state, key, None).windows
            every = jnp.broadcast_to(
                jnp.arange(sampled.steps.reward.shape[1]), sampled.steps.reward.shape[:2]
            )
            batch = take_batch(sampled.steps, every)
            if sampled.tables is None:
                return [batch]
            return [
                batch._replace(
                    **{
                        f: put_stacks(sampled.tables, getattr(batch, f))
                        for f in ("obs", "next_obs")
                    }
                )
            ]

        return windows

    def fill(
        self,
        done: np.ndarray,
        truncated: np.ndarray,
        seed: int,
        restarts=None,
        before=lambda t, states: states,
    ):
        obs, next_obs, first = streams(done, seed, restarts)
        stacks, following = slow_stacks(obs, next_obs, first, self.k)
        number = np.arange(done.size, dtype=np.float32).reshape(done.shape)
        plain = Transition(
            stacks,
            number[..., None],
            number,
            following,
            done & ~truncated,
            done & truncated,
            first,
            (),
        )
        ours = plain._replace(obs=obs, next_obs=next_obs)
        part = lambda tree, t: jax.tree.map(lambda x: x[t : t + self.length], tree)  # noqa: E731
        shapes = [
            jax.eval_shape(lambda x=x: part(x, 0))
            for x in (jax.tree.map(jnp.asarray, (ours, plain)))
        ]
        states = self.ours.init(shapes[0]), self.plain.init(shapes[1])
        for t in range(0, done.shape[0], self.length):
            states = before(t, states)
            states = (
                self.add_ours(states[0], part(ours, t)),
                self.add_plain(states[1], part(plain, t)),
            )
        return states, plain


@cache
def both(*sizes: int) -> Both:
    return Both(*sizes)


def used(batch: Transition) -> np.ndarray:
    """Return the steps of windows ``[n, B]`` that an n-step return reads: up to the first end of an
    episode.
    """
    over = np.asarray(batch.terminated | batch.truncated)
    return np.concatenate([np.ones_like(over[:1]), ~np.logical_or.accumulate(over, axis=0)[:-1]])


def assert_same(got: Transition, want: Transition) -> None:
    mask = used(want)
    for name in ("obs", "next_obs", "action", "reward", "terminated", "truncated"):
        a, b = np.asarray(getattr(got, name)), np.asarray(getattr(want, name))
        assert (a.dtype, a.shape) == (b.dtype, b.shape), name
        np.testing.assert_array_equal(a[mask], b[mask], err_msg=name)


@settings(max_examples=12)
@given(
    sizes=st.sampled_from([(4, 40, 4, 8, 1, 1), (3, 33, 4, 8, 3, 4), (1, 36, 3, 6, 2, 2)]),
    steps=st.sampled_from([24, 72, 144]),
    seed=st.integers(0, 999),
)
def test_replay_equals_one_that_stores_whole_stacks(sizes: tuple[int, ...], steps: int, seed: int):
    """Equal bit for bit, also after a wrap, unless more episodes end than the buffer has room for."""
    pair = both(*sizes)
    capacity_t, num_envs = sizes[1:3]
    done = np.zeros((steps, num_envs), bool)
    rng = np.random.default_rng(seed)
    for e in range(num_envs):  # one end in this many steps, at any place
        done[rng.integers(0, capacity_t) :: capacity_t, e] = True
    (ours, plain), _ = pair.fill(done, rng.random(done.shape) < 0.5, seed)
    assert pair.ours.metrics(ours)["lost_steps"] == 0
    for key in jax.random.split(jax.random.key(seed), 2):
        for got, want in zip(pair.take_ours(ours, key), pair.take_plain(plain, key), strict=True):
            assert_same(got, want)


@settings(max_examples=12)
@given(
    sizes=st.sampled_from([(4, 40, 4, 8, 1, 1), (3, 33, 4, 8, 3, 4)]),
    often=st.sampled_from([0.1, 0.4, 1.0]),
    seed=st.integers(0, 999),
)
def test_with_many_ends_replay_reaches_less_far_back_and_is_still_true(
    sizes: tuple[int, ...], often: float, seed: int
):
    pair = both(*sizes)
    capacity_t, num_envs = sizes[1:3]
    steps = 3 * capacity_t // pair.length * pair.length
    done = ends(steps, num_envs, seed, often)
    (ours, _), all_ = pair.fill(done, ends(steps, num_envs, seed + 7, 0.5), seed)
    lost = float(pair.ours.metrics(ours)["lost_steps"])
    assert lost <= capacity_t * num_envs / 2 + num_envs
    assert (lost > 0) == (often > 0.2) or often == 0.1
    window = np.arange(pair.n_step)[:, None]
    for key in jax.random.split(jax.random.key(seed), 3):
        for got in pair.take_ours(ours, key):
            t, e = np.divmod(np.asarray(got.reward[0]).astype(int), num_envs)
            assert t.min() >= steps - capacity_t
            assert_same(
                got,
                jax.tree.map(
                    lambda leaf, t=t, e=e: leaf[t + window, e], all_._replace(first=(), extras=())
                ),
            )


def test_an_environment_that_begins_anew_without_an_end_counts_as_cut_off():
    """As host environments do in a resumed run: the step before a restart retains its `next_obs`,
    and no return reaches across the restart.
    """
    pair = both(3, 33, 4, 8, 3, 4)
    restarts = np.zeros((8, 4), bool)
    restarts[4] = True

    def resumed(t: int, states: tuple) -> tuple:
        ours, plain = states
        return states if t != 4 else (pair.ours.end_episodes(ours), pair.plain.end_episodes(plain))

    (ours, plain), _ = pair.fill(
        np.zeros((8, 4), bool), np.zeros((8, 4), bool), 3, restarts, resumed
    )
    seen = set()
    for key in jax.random.split(jax.random.key(0), 10):
        for got, want in zip(pair.take_ours(ours, key), pair.take_plain(plain, key), strict=True):
            assert_same(got, want)
            t, _ = np.divmod(np.asarray(got.reward).astype(int), 4)
            np.testing.assert_array_equal(got.truncated, t == 3)
            seen |= set(t[np.asarray(got.truncated)])
    assert seen == {3}


def test_replay_takes_one_frame_a_step_and_bytes_until_a_batch_is_made():
    k, num_envs, capacity = 4, 8, 12_800
    view = make_view(
        EnvSpec("toy", jax.ShapeDtypeStruct((84, 84, 1), jnp.uint8), Discrete(2), None, k)
    )
    buffer = image_buffer(view, capacity=capacity, num_envs=num_envs, batch_size=16)
    source = uniform_source(buffer, 6)
    frame, flag = (
        jax.ShapeDtypeStruct((1, num_envs, 84, 84, 1), jnp.uint8),
        jax.ShapeDtypeStruct((1, num_envs), bool),
    )
    number = jax.ShapeDtypeStruct((1, num_envs), jnp.float32)
    example = Transition(frame, number, number, frame, flag, flag, flag, ())
    state = jax.eval_shape(buffer.init, example)
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    assert capacity * 84 * 84 <= size <= 1.04 * capacity * 84 * 84

    def add_and_sample(state, rollout, key):
        return source.sample(buffer.add(state, rollout), key, None).windows

    sampled = jax.make_jaxpr(add_and_sample)(state, example, jax.random.key(0))
    avals = [var.aval for eqn in equations(sampled.jaxpr) for var in eqn.outvars]
    images = [aval for aval in avals if 84 in aval.shape]
    assert images and {aval.dtype for aval in images} == {np.dtype(np.uint8)}
    (table,) = jax.tree.leaves(
        jax.eval_shape(add_and_sample, state, example, jax.random.key(0)).tables
    )
    assert table.size == 3 * 16 * (k + 1) * 84 * 84  # not two stacks of four


def equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jax.tree.leaves(
            eqn.params, is_leaf=lambda x: hasattr(x, "jaxpr") or hasattr(x, "eqns")
        ):
            if hasattr(inner, "jaxpr") or hasattr(inner, "eqns"):
                yield from equations(getattr(inner, "jaxpr", inner))


@pytest.mark.parametrize(
    ("obs", "k", "says"),
    [
        (
            jax.ShapeDtypeStruct((4,), jnp.float32),
            4,
            r"its observations are float32\[4\]: leave frame_stack out",
        ),
        (jax.ShapeDtypeStruct((8, 8), jnp.uint8), 2, r"uint8\[8, 8\]"),
        (
            {"speed": jax.ShapeDtypeStruct((4,), jnp.float32)},
            2,
            r"its observations are \{'speed': 'float32\[4\]'\}",
        ),
        (pixel_envs.IMAGE, -1, "frame_stack=-1: write the number"),
        (pixel_envs.IMAGE, 2.5, "frame_stack=2.5: write the number"),
    ],
)
def test_only_images_are_stacked(obs, k, says):
    with pytest.raises(ValueError, match=says):
        make_view(EnvSpec("toy", obs, Discrete(2), None, k))
    assert make_view(EnvSpec("toy", obs, Discrete(2), None, 1)).spec.obs == obs
