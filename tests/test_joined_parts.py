"""Joined arrays: packing loses nothing, and a run with joined arrays computes the same numbers."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxrl_fast as jf
from jaxrl_fast.assembly import bind, build_graph
from jaxrl_fast.learning import flat_params
from jaxrl_fast.learning.flat_params import (
    can_join,
    pack,
    pack_moments,
    packing_of,
    stacked,
    unpack,
    unpack_moments,
)
from jaxrl_fast.learning.rollout import pack_step, unpack_steps
from jaxrl_fast.learning.run_graph import GraphOptions
from jaxrl_fast.learning.updates import init_part
from jaxrl_fast.runtime.graph import init, tick
from jaxrl_fast.runtime.layout import scan_ticks

SMALL = dict(policy_hidden=(8,), critic_hidden=(8,))
OFF_POLICY = dict(updates_per_tick=3, batch_size=16, warmup_steps=16, buffer_size=256)
ALGORITHMS = {
    "sac": ("pendulum", jf.sac(**SMALL, **OFF_POLICY)),
    "sac with memory": (
        "pendulum",
        jf.sac(**SMALL, **OFF_POLICY, recurrent_size=4, sequence_length=2, burn_in=1),
    ),
    "td3": (
        "pendulum",
        jf.td3(**SMALL, **OFF_POLICY, num_critics=3, target_critics=2, critic_dropout=0.2),
    ),
    "iql": ("pendulum", jf.iql(**SMALL, **OFF_POLICY)),
    "td3_bc": ("pendulum", jf.td3_bc(**SMALL, **OFF_POLICY)),
    "fast_td3": ("pendulum", jf.fast_td3(**SMALL, **OFF_POLICY)),
    "reppo": ("pendulum", jf.reppo(**SMALL, rollout_length=8, num_minibatches=2, num_epochs=2)),
    "ppo": ("cartpole", jf.ppo(rollout_length=8, num_minibatches=2, num_epochs=2)),
}


def leaves_equal(one, other) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def network(seed: float) -> dict:
    own = {
        "kernel": jnp.arange(6.0).reshape(2, 3) + seed,
        "bias": jnp.arange(3.0) - seed,
        "scale": jnp.float32(seed),
    }
    return {"params": own}


TREES = pytest.mark.parametrize(
    ("params", "size"),
    [
        (network(0.5), 0),
        ((network(1.0), network(2.0)), 2),
        ((network(1.0), {"other": jnp.ones(2)}), 0),
    ],
    ids=["network", "ensemble", "any tuple"],
)


@TREES
def test_packing_gives_back_what_was_packed(params, size):
    packing = packing_of(params, size)
    leaves_equal(unpack(packing, pack(packing, params)), params)
    leaves_equal(pack(packing, stacked(packing, pack(packing, params))), pack(packing, params))


@TREES
@pytest.mark.parametrize(
    "optimizer", [optax.adam(1e-3), optax.chain(optax.clip(1.0), optax.rmsprop(1e-3))]
)
def test_an_optimizers_moments_are_packed_and_its_counts_are_not(params, size, optimizer):
    packing, state = packing_of(params, size), optimizer.init(params)
    packed = pack_moments(packing, state)
    assert jax.tree.structure(packed) == jax.tree.structure(optimizer.init(pack(packing, params)))
    leaves_equal(unpack_moments(packing, (packed, state)), state)


def test_an_optimizer_that_nobody_knows_has_its_arrays_one_by_one():
    """LAMB, for example, uses the norm of each array."""
    own = jf.make_env("pendulum", num_envs=8)
    part = bind(ALGORITHMS["sac"][1], own.spec, 8).parts["critic"]
    state = init_part(part, jax.random.key(0), ALGORITHMS["sac"][1].hyper)
    assert can_join(part, state)
    lamb = part._replace(
        optimizers=dict.fromkeys(part.optimizers, lambda hyper: optax.lamb(hyper.learning_rate))
    )
    assert not can_join(lamb, state)


@given(st.integers(0, 2**32 - 1))
def test_steps_keep_every_bit(seed):
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2**32, (5, 4, 3), np.uint32)
    steps = {
        "obs": jnp.asarray(bits.view(np.float32)),  # NaNs with any payload among them
        "flag": jnp.asarray(rng.integers(0, 2, (5, 4)).astype(bool)),
        "action": jnp.asarray(rng.integers(-(2**31), 2**31, (5, 4, 2), np.int32)),
        "image": jnp.asarray(rng.integers(0, 256, (5, 4, 40, 40), np.uint8)),
    }
    _, packed = jax.lax.scan(lambda carry, step: (carry, pack_step(step)), (), steps)
    assert packed.words.shape == (5, 4, 3 + 1 + 2)
    back = unpack_steps(
        packed, jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), steps)
    )
    for name, value in steps.items():
        np.testing.assert_array_equal(np.asarray(back[name]).tobytes(), np.asarray(value).tobytes())


@pytest.mark.parametrize(
    ("name", "kernels_singly"),
    [
        *((name, True) for name in ALGORITHMS),
        *((name, False) for name in ("sac with memory", "td3", "ppo")),
    ],
)
def test_a_run_computes_the_same_joined(name, kernels_singly, monkeypatch):
    """Run ticks with separate arrays, and in one program whose state is joined from the first tick
    to the last: where joining is requested, and where networks are small.
    """
    monkeypatch.setattr(flat_params, "SMALL_NETWORKS", 0)
    env_name, algorithm = ALGORITHMS[name]
    env = jf.make_env(env_name, num_envs=8)
    graph, agent = build_graph(env, algorithm, GraphOptions(total_steps=1000))
    state, step = (
        jax.jit(partial(init, graph))(jax.random.key(0), algorithm.hyper),
        jax.jit(partial(tick, graph)),
    )
    length, rows = agent.warmup_ticks + 2, []
    for _ in range(length):
        state, metrics = step(state)
        rows.append(metrics)
    assert not any(fragment.inner for fragment in graph.fragments)
    if not kernels_singly:
        monkeypatch.undo()
    joined, _ = build_graph(env, algorithm, GraphOptions(total_steps=1000, joined=kernels_singly))
    assert any(fragment.inner for fragment in joined.fragments)
    first = jax.jit(partial(init, joined))(jax.random.key(0), algorithm.hyper)
    state_joined, columns = jax.jit(partial(scan_ticks, joined, length=length))(first)
    assert jax.tree.structure(state) == jax.tree.structure(state_joined)
    one, other = (end._replace(key=()) for end in (state, state_joined))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), one, other)
    assert rows[-1].keys() == columns.keys()
    for metric, values in columns.items():
        want = np.stack([row[metric] for row in rows])
        assert values.dtype == want.dtype
        np.testing.assert_allclose(values, want, rtol=1e-4, atol=1e-5, err_msg=metric)
