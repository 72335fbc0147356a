"""Replay buffers: a minibatch contains only added steps, in time order, an equal share from every
logical shard.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_fast.core import Extras, Transition
from jaxrl_fast.learning.algorithm import OnPolicy, Replay
from jaxrl_fast.learning.minibatches import (
    logical_shards,
    random_order,
    shuffled_epochs,
    take_batch,
)
from jaxrl_fast.replay.buffers import Window, ring_buffer, uniform_source
from jaxrl_fast.replay.off_policy import in_turn

NUM_BATCHES = 3


def rollout(start: int, length: int, num_envs: int) -> Transition:
    """Steps whose elements name their environment and their time.

    Time counts from 1, since a zero looks like a hole.
    """
    t, env = np.meshgrid(np.arange(start, start + length) + 1, np.arange(num_envs), indexing="ij")
    no = np.zeros((length, num_envs), bool)
    obs = np.stack([t, env], axis=-1).astype(np.int32)
    extras = Extras({"log_prob": t.astype(np.float32), "noise": -t}, {"actor": obs[..., :1] * 100})
    return Transition(
        obs,
        obs[..., 0] * 10,
        t.astype(np.float32),
        {"t": obs[..., 0] + 1},
        no,
        no,
        t % 5 == 1,
        extras,
    )


@cache
def compiled(capacity_t: int, num_envs: int, batch_size: int, window: Window):
    """``init``; ``add(state, start, length)``; ``batches(state, key)``: the time-major minibatches
    of one draw.
    """
    buffer = ring_buffer(
        capacity=capacity_t * num_envs, num_envs=num_envs, batch_size=batch_size, window=window
    )
    source = uniform_source(buffer, NUM_BATCHES * (batch_size // buffer.shards), window)

    def batches(state, key):
        sampled = source.sample(state, key, None).windows
        assert sampled.tables is None
        data = sampled.steps, jax.tree.map(lambda x: x[:, :, None], sampled.memory)
        taken = [take_batch(data, index) for index in indices(buffer.shards, batch_size)]
        return [(steps, jax.tree.map(lambda x: x[0], memory)) for steps, memory in taken]

    init = jax.jit(lambda: buffer.init(jax.tree.map(jnp.asarray, rollout(0, 1, num_envs))))
    return init, jax.jit(buffer.add), jax.jit(batches)


def indices(shards: int, batch_size: int) -> jax.Array:
    sizes = Replay(capacity=0, batch_size=batch_size, num_batches=NUM_BATCHES, warmup_steps=0)
    index = in_turn(sizes, shards)
    assert index.dtype == jnp.int32
    return index


EPOCHS = jax.jit(shuffled_epochs, static_argnums=(2, 3))
TAKE = jax.jit(jax.vmap(take_batch, in_axes=(None, 0)))


def filled(
    capacity_t: int, num_envs: int, batch_size: int, window: Window | int, chunks: list[int]
):
    window = Window(window) if isinstance(window, int) else window
    init, add, batches = compiled(capacity_t, num_envs, batch_size, window)
    state, time = init(), 0
    for length in chunks:
        state, time = add(state, rollout(time, length, num_envs)), time + length
    return batches, state, time


@settings(max_examples=12)
@given(
    sizes=st.sampled_from([(5, 4, 8, 2), (7, 2, 2, 3), (4, 3, 6, 1), (6, 16, 16, 5)]),
    chunks=st.lists(st.sampled_from([1, 3, 4]), min_size=1, max_size=6),
    seed=st.integers(0, 99),
)
def test_windows_are_consecutive_recent_and_whole(sizes, chunks, seed):
    capacity_t, num_envs, batch_size, n_step = sizes
    if sum(chunks) < n_step:
        chunks = [*chunks, *([1] * n_step)]
    draw, state, time = filled(capacity_t, num_envs, batch_size, n_step, chunks)
    for batch, _ in draw(state, jax.random.key(seed)):
        t, env = np.moveaxis(np.asarray(batch.obs), -1, 0)
        assert t.shape == (n_step, batch_size)
        assert (np.diff(t, axis=0) == 1).all()
        assert (env == env[0]).all()
        assert t.min() > max(0, time - capacity_t)
        assert t.max() <= time
        np.testing.assert_array_equal(batch.action, t * 10)  # the leaves of a step stay together
        np.testing.assert_array_equal(batch.next_obs["t"], t + 1)


def test_every_stored_window_is_drawn():
    draw, state, _ = filled(5, 4, 16, 2, [3, 3, 3])
    sampled = set()
    for seed in range(20):
        for batch, _ in draw(state, jax.random.key(seed)):
            sampled |= {tuple(pair) for pair in np.asarray(batch.obs[0]).tolist()}
    assert sampled == {(t, env) for t in (5, 6, 7, 8) for env in range(4)}


def test_windows_are_drawn_uniformly():
    draw, state, _ = filled(4, 256, 1024, 1, [3, 3])  # the ring has wrapped in the middle
    times, envs = np.concatenate([batch.obs[0] for batch, _ in draw(state, jax.random.key(0))]).T
    np.testing.assert_allclose(np.bincount(times)[3:] / len(times), 0.25, atol=0.03)
    # The environment in a shard of 32 does not depend on the step: each pair is expected 24 times.
    pairs = np.bincount((times - 3) * 32 + envs % 32, minlength=128)
    assert len(pairs) == 128 and pairs.min() > 5 and pairs.max() < 50


def test_updates_of_one_tick_get_different_batches():
    draw, state, _ = filled(50, 4, 8, 1, [50])
    (first, _), (second, _), _ = draw(state, jax.random.key(0))
    assert not np.array_equal(first.obs, second.obs)


def test_every_batch_takes_the_same_share_of_each_logical_shard():
    draw, state, _ = filled(6, 16, 32, 1, [6])
    assert logical_shards(16, 32) == 8
    for batch, _ in draw(state, jax.random.key(0)):
        shard = np.asarray(batch.obs[0, :, 1]) // 2  # 16 environments over 8 shards
        np.testing.assert_array_equal(np.bincount(shard), np.full(8, 4))


def test_the_number_of_shards_depends_on_sizes_alone():
    assert len(jax.devices()[:2]) == 2
    assert [logical_shards(*sizes) for sizes in ((64, 256), (12, 256), (3, 256), (64, 6))] == [
        8,
        4,
        1,
        2,
    ]


def test_replay_stores_of_a_decision_what_it_is_asked_to():
    _, state, _ = filled(5, 4, 8, 1, [2])
    assert (state.data.extras, state.data.first, state.memory) == ((), (), ())
    draw, state, _ = filled(5, 4, 8, Window(keep=("noise",)), [5])
    for batch, memory in draw(state, jax.random.key(0)):
        assert list(batch.extras.decision) == ["noise"] and memory == ()
        np.testing.assert_array_equal(batch.extras.decision["noise"], -batch.obs[..., 0])


@settings(max_examples=12)
@given(
    sizes=st.sampled_from([(12, 4, 8, 6, 3), (10, 2, 4, 7, 2), (9, 3, 6, 3, 3)]),
    chunks=st.lists(st.sampled_from([1, 3, 4]), min_size=1, max_size=9),
    seed=st.integers(0, 99),
)
def test_sequences_begin_where_the_memory_is_known(sizes, chunks, seed):
    """Each window starts at a multiple of the stride, has the memory of exactly that step, is whole
    and is recent.
    """
    capacity_t, num_envs, batch_size, length, stride = sizes
    if sum(chunks) < length + stride - 1:
        chunks = [*chunks, *([1] * (length + stride - 1))]
    draw, state, time = filled(
        capacity_t, num_envs, batch_size, Window(length, stride, memory=True), chunks
    )
    for batch, memory in draw(state, jax.random.key(seed)):
        t, env = np.moveaxis(np.asarray(batch.obs), -1, 0)
        assert (np.diff(t, axis=0) == 1).all() and (env == env[0]).all()
        assert ((t[0] - 1) % stride == 0).all()
        assert max(0, time - capacity_t) < t.min() and t.max() <= time
        np.testing.assert_array_equal(memory["actor"], t[0][:, None] * 100)
        np.testing.assert_array_equal(batch.first, t % 5 == 1)


def test_what_does_not_fit_is_refused():
    with pytest.raises(
        ValueError, match=r"batch_size=256 is larger than buffer_size=128: .* at least 256"
    ):
        ring_buffer(capacity=128, num_envs=4, batch_size=256)
    with pytest.raises(ValueError, match=r"windows of 3 .*: write a buffer_size of at least 16"):
        ring_buffer(capacity=12, num_envs=4, batch_size=4, window=Window(3))
    with pytest.raises(ValueError, match="9 steps exceeds a buffer of 5"):
        filled(5, 4, 8, 1, [9])


@settings(max_examples=6)
@given(
    sizes=st.sampled_from([(8, 4, 1, 4), (8, 8, 8, 2), (6, 6, 3, 3), (4, 3, 1, 2), (8, 16, 4, 1)]),
    seed=st.integers(0, 99),
)
def test_every_epoch_visits_every_sequence_once_in_time_order(sizes, seed):
    steps, num_envs, length, num_minibatches = sizes
    data = rollout(0, steps, num_envs).obs
    sampled = EPOCHS(data, jax.random.key(seed), OnPolicy(2, num_minibatches, length), num_envs)
    assert sampled.indices.shape[0] == 2 * num_minibatches
    for epoch in np.split(np.asarray(TAKE(sampled.data, sampled.indices)), 2):
        starts = []
        for batch in epoch:
            t, env = np.moveaxis(batch, -1, 0)
            assert t.shape == (length, steps * num_envs // length // num_minibatches)
            assert (np.diff(t, axis=0) == 1).all()
            assert (env == env[0]).all()
            starts += zip(t[0].tolist(), env[0].tolist(), strict=True)
        want = [(t, env) for t in range(1, steps + 1, length) for env in range(num_envs)]
        assert sorted(starts) == sorted(want)


def test_epochs_are_shuffled_anew():
    sampled = EPOCHS(rollout(0, 8, 4).obs, jax.random.key(0), OnPolicy(2, 1), 4)
    assert not np.array_equal(sampled.indices[0], sampled.indices[1])


def test_a_minibatch_of_epochs_takes_the_same_share_of_each_logical_shard():
    sampled = EPOCHS(rollout(0, 4, 8).obs, jax.random.key(0), OnPolicy(1, 2), 8)
    for batch in np.asarray(TAKE(sampled.data, sampled.indices)):
        env = batch[0, :, 1]
        np.testing.assert_array_equal(np.bincount(env), np.full(8, 2))


def test_take_batch_is_time_major():
    data = {"x": jnp.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)}  # G, N, L, rest
    batch = take_batch(data, jnp.array([[2, 0], [1, 1]]))["x"]
    assert batch.shape == (4, 4, 5)
    for column, (shard, n) in enumerate([(0, 2), (0, 0), (1, 1), (1, 1)]):
        np.testing.assert_array_equal(batch[:, column], data["x"][shard, n])


@pytest.mark.parametrize("size", [1, 2, 7, 64, 1000])
def test_a_random_order_holds_every_number_once(size):
    order = np.asarray(jax.jit(random_order, static_argnums=1)(jax.random.key(size), size))
    np.testing.assert_array_equal(np.sort(order), np.arange(size))


def test_in_a_random_order_every_number_is_equally_likely_everywhere():
    draws, size = 6000, 5
    orders = np.asarray(
        jax.jit(jax.vmap(lambda k: random_order(k, size)))(
            jax.random.split(jax.random.key(0), draws)
        )
    )
    counts = np.stack([np.bincount(orders[:, place], minlength=size) for place in range(size)])
    sigma = np.sqrt(draws * (1 / size) * (1 - 1 / size))
    assert np.abs(counts - draws / size).max() < 4.5 * sigma
    pairs = np.bincount(orders[:, 0] * size + orders[:, 1], minlength=size * size)
    assert (pairs[np.eye(size, dtype=bool).ravel()] == 0).all()
    assert np.abs(pairs[~np.eye(size, dtype=bool).ravel()] - draws / 20).max() < 4.5 * np.sqrt(
        draws / 20
    )
