"""Memories of networks: a sequence equals its steps, forgets at the start of an episode, and
exports.
"""

import math
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from random_batches import drawn_batch, drawn_learned, redrawn

import jaxrl_fast as jf
from jaxrl_fast.assembly import bind
from jaxrl_fast.core import Extras, Transition
from jaxrl_fast.learning.algorithm import Learned, Replay, ReplayBatch, after_steps, over_replay
from jaxrl_fast.learning.minibatches import over_sequences
from jaxrl_fast.learning.run_graph import rollout_shapes
from jaxrl_fast.learning.updates import PartState, update
from jaxrl_fast.networks.memories import _by_halves, _by_steps, complex_product
from jaxrl_fast.networks.network import ensemble, make_network
from jaxrl_fast.policy.exporting import export_policy
from jaxrl_fast.policy.policies import save_policy
from jaxrl_fast.replay.buffers import Window, ring_buffer

KEY = jax.random.key(3)
LENGTH, BATCH = 9, 3
SPEC = jax.ShapeDtypeStruct((4,), jnp.float32)
PIXELS = jax.ShapeDtypeStruct((8, 8, 1), jnp.uint8)
KINDS = "gru", "lstm", "mingru", "lru", "gtrxl-3x2", "my_memories.simple", "my_memories.mean"
OWN = '''
import flax.linen as nn
import jax
import jax.numpy as jnp


def simple(size):
    return nn.SimpleCell(size)


class Mean(nn.Module):
    """The mean of all features of an episode."""

    size: int

    @nn.compact
    def __call__(self, state, x, first):
        def step(state, xs):
            x_t, first_t = xs
            total, count = jax.tree.map(lambda s: jnp.where(first_t[:, None], 0.0, s), state)
            state = total + x_t, count + 1.0
            return state, state

        states = jax.lax.scan(step, state, (nn.Dense(self.size)(x), first))[1]
        return states[0] / states[1], states

    def initial_state(self, batch_size):
        return jnp.zeros((batch_size, self.size)), jnp.zeros((batch_size, 1))


def mean(size):
    return Mean(size)


def fails(size):
    raise RuntimeError("no such memory")


def text(size):
    return "a memory"


def dense(size):
    return nn.Dense(size)


class Other(Mean):
    def __call__(self, x, state, first):
        return x, state


def other(size):
    return Other(size)


class Short(Mean):
    @nn.compact
    def __call__(self, state, x, first):
        features, states = Mean(self.size)(state, x, first)
        return features[0], states


def short(size):
    return Short(size)


class Stateless(Mean):
    def initial_state(self):
        return ()


def stateless(size):
    return Stateless(size)


class Raises(Mean):
    @nn.compact
    def __call__(self, state, x, first):
        return nn.Dense("three")(x), state


def raises(size):
    return Raises(size)
'''


@pytest.fixture(autouse=True)
def memories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_memories.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("my_memories", None)
    return tmp_path


def sequence(spec: Any = SPEC, length: int = LENGTH) -> tuple[jax.Array, jax.Array]:
    """Return observations and episodes that end inside, or at the first step, or never."""
    obs = jax.random.randint(KEY, (length, BATCH, *spec.shape), 0, 255).astype(spec.dtype)
    first = np.zeros((length, BATCH), bool)
    first[[4, 6], 0] = first[0, 1] = True
    return obs / 100.0 if spec.dtype == jnp.float32 else obs, jnp.asarray(first)


def steps_of(
    net: Any, params: Any, memory: Any, obs: jax.Array, first: jax.Array, action: Any = None
) -> tuple:
    """Run one step after another."""
    outputs, memories = [], []
    step = jax.jit(net.apply)
    for t in range(len(first)):
        now = [None if x is None else x[t : t + 1] for x in (obs, first, action)]
        output, after = step(params, memory, *now)
        memory = jax.tree.map(lambda x: x[0], after)
        outputs.append(output[0])
        memories.append(memory)
    return jnp.stack(outputs), jax.tree.map(lambda *xs: jnp.stack(xs), *memories)


def close(got: Any, want: Any) -> None:
    jax.tree.map(partial(np.testing.assert_allclose, atol=2e-5, rtol=2e-5), got, want)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spec", [SPEC, PIXELS], ids=["numbers", "pixels"])
def test_a_sequence_equals_its_steps(kind: str, spec: Any):
    net = make_network(spec, 2, hidden=(8,), memory=kind, recurrent_size=8, action_shape=(3,))
    params, (obs, first) = jax.jit(net.init)(KEY), sequence(spec)
    action = jax.random.normal(KEY, (LENGTH, BATCH, 3))
    # as if from the steps before
    start = jax.tree.map(lambda x: x + 0.5, net.initial_memory(BATCH))
    whole = jax.jit(net.apply)(params, start, obs, first, action)
    close(whole, steps_of(net, params, start, obs, first, action))
    assert (
        np.abs(
            whole[0][0]
            - jax.jit(net.apply)(params, net.initial_memory(BATCH), obs, first, action)[0][0]
        ).max()
        > 1e-4
    )


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_another_episode_or_element_is_remembered(kind: str):
    net = make_network(SPEC, 2, hidden=(8,), memory=kind, recurrent_size=8)
    params, (obs, first) = jax.jit(net.init)(KEY), sequence()
    apply = jax.jit(net.apply)
    outputs, _ = apply(params, net.initial_memory(BATCH), obs, first)
    others, _ = apply(
        params,
        jax.tree.map(lambda x: x + 1.0, net.initial_memory(BATCH)),
        obs.at[:4, 0].set(9.0),
        first,
    )
    np.testing.assert_allclose(outputs[4:, 0], others[4:, 0], atol=1e-6)  # a new episode
    np.testing.assert_allclose(outputs[:, 1], others[:, 1], atol=1e-6)
    assert np.abs(outputs[1:4, 0] - others[1:4, 0]).max() > 1e-4
    again, _ = apply(params, net.initial_memory(BATCH), obs.at[0, 2].set(9.0), first)
    assert np.abs(outputs[1, 2] - again[1, 2]).max() > 1e-6  # remembered within the episode


@pytest.mark.parametrize("members", [0, 2])
def test_a_window_is_read_after_each_step_without_the_states_of_all_steps(members: int):
    one = make_network(
        SPEC, 2, hidden=(8,), memory="gtrxl-3x2", recurrent_size=8, action_shape=(1,)
    )
    net = ensemble(one, members) if members else one
    params, (obs, first) = jax.jit(net.init)(KEY), sequence()
    start = jax.tree.map(lambda x: x + 0.5, net.initial_memory(BATCH))
    next_obs = jax.random.normal(KEY, (4, BATCH, 4))
    at = jnp.asarray([[0, 1, 2], [3, 3, 3], [4, 5, 6], [8, 8, 0]])
    action = jax.random.normal(KEY, (4, BATCH, 1))
    steps = start, obs, first
    memories = net.apply(params, *steps, jnp.zeros((LENGTH, BATCH, 1)))[1]
    wanted = after_steps(net._replace(after=None), params, steps, memories, next_obs, at, action)
    close(after_steps(net, params, steps, None, next_obs, at, action), wanted)


def test_gradients_flow_through_a_linear_recurrence_in_both_ways_alike():
    factor, added = jax.random.uniform(KEY, (16, 2, 6)), jax.random.normal(KEY, (16, 2, 6))
    for product in (jnp.multiply, complex_product):

        def loss(run, *given, product=product):
            return jnp.sum(jnp.sin(run(product, *given)))

        grads = [
            jax.jit(jax.grad(partial(loss, run), (0, 1, 2)))(factor, added, added[0])
            for run in (_by_steps, _by_halves)
        ]
        close(*grads)


@settings(max_examples=15, deadline=None)
@given(length=st.integers(1, 40), seed=st.integers(0, 2**31))
def test_linear_recurrences_equal_a_loop(length: int, seed: int):
    rng = np.random.default_rng(seed)
    factor, added, start = (
        rng.normal(size=shape) for shape in ((length, 2, 4), (length, 2, 4), (2, 4))
    )
    expected, state = [], start[..., :2] + 1j * start[..., 2:]
    for a, b in zip(factor, added, strict=True):
        state = (a[..., :2] + 1j * a[..., 2:]) * state + b[..., :2] + 1j * b[..., 2:]
        expected.append(np.concatenate([state.real, state.imag], axis=-1))
    scale = max(np.abs(np.asarray(expected)).max(), 1.0)
    for run in (_by_steps, _by_halves):
        found = run(complex_product, *(jnp.asarray(x, jnp.float32) for x in (factor, added, start)))
        np.testing.assert_allclose(found / scale, np.asarray(expected) / scale, atol=1e-5)


def test_the_memory_of_an_lru_lasts_as_long_as_asked():
    net = make_network(SPEC, 1, hidden=(), memory="lru", recurrent_size=64)
    params = net.init(KEY)["params"]["Lru_0"]
    radius = np.exp(-np.exp(params["log_decay"]))
    assert radius.min() >= 0.9 - 1e-5 and radius.max() <= 0.999 + 1e-5
    assert params["angle"].min() >= 0.0 and params["angle"].max() <= 2 * math.pi


ON_POLICY = dict(rollout_length=8, num_minibatches=2)
REPLAY = dict(
    batch_size=8,
    buffer_size=128,
    warmup_steps=32,
    updates_per_tick=2,
    rollout_length=8,
    sequence_length=4,
)
MEMORY = dict(memory="mingru", recurrent_size=4, activation="tanh")
BOTH = dict(policy_hidden=(4,), critic_hidden=(4,), burn_in=0)
SIZES: dict[str, dict] = {
    "ppo": ON_POLICY | MEMORY | dict(policy_hidden=(4,), value_hidden=(4,)),
    "impala": ON_POLICY | MEMORY | dict(hidden=(4,)),
    "pqn": ON_POLICY | MEMORY | dict(epsilon=0.1, q_hidden=(4,)),
    "dqn": REPLAY | MEMORY | dict(epsilon=0.1, n_step=2, burn_in=2, q_hidden=(4,)),
    "sac_discrete": REPLAY | MEMORY | BOTH,
    "sac": REPLAY | MEMORY | BOTH | dict(num_critics=1),
    "td3": REPLAY | MEMORY | BOTH | dict(policy_delay=1, num_critics=1),
}


def memory_of(params: Any) -> list[np.ndarray]:
    """Return the params of the memory of a network, or of each network of an ensemble."""
    params = params if isinstance(params, tuple) else (params,)
    return jax.tree.leaves(
        [{name: own for name, own in one["params"].items() if name != "head"} for one in params]
    )


@pytest.mark.parametrize("algo", SIZES)
def test_every_algorithm_acts_and_learns_by_its_memory(algo: str):
    """A stored memory changes losses and actions, but not where an episode begins; an update
    changes its params.

    One kind of memory is enough here: algorithms call all kinds by the functions that the tests
    above compare.
    """
    algorithm, env = (
        getattr(jf, algo)(**SIZES[algo]),
        tiny.line(discrete=algo not in ("sac", "td3")),
    )
    agent, hyper, rng = (
        bind(algorithm, env.spec, env.num_envs),
        algorithm.hyper,
        np.random.default_rng(1),
    )
    learned = drawn_learned(rng, agent.parts)

    def step(learned: dict[str, Learned], batch: Any) -> Any:
        after, metrics = {}, {}
        for name, part in agent.parts.items():
            moments = {
                n: part.optimizers[n](hyper).init(own) for n, own in learned[name].params.items()
            }
            state, metrics[name], _ = update(
                part, PartState(learned[name], moments), learned, batch, KEY, hyper
            )
            after[name] = state.learned.params
        return after, metrics

    def begins(batch: Any, other: Any) -> tuple[Any, Any]:
        first = np.array(batch.first)
        first[0] = True
        return batch._replace(first=first), other._replace(first=first)

    one, step = drawn_batch(rng, env, agent), jax.jit(step)
    other = one._replace(memory=redrawn(rng, one.memory, 3.0))
    (after, remembered), (_, differently) = step(learned, one), step(learned, other)
    forgotten = [step(learned, batch)[1] for batch in begins(one, other)]
    for name, part in agent.parts.items():
        assert remembered[name]["grad_norm"] != differently[name]["grad_norm"]
        assert forgotten[0][name]["grad_norm"] == forgotten[1][name]["grad_norm"]
        for network in set(part.networks) - {"temperature"}:
            both = (memory_of(params[network]) for params in (learned[name].params, after[name]))
            pairs = list(zip(*both, strict=True))
            assert pairs and all(np.abs(before - now).max() > 1e-6 for before, now in pairs)

    size, greedy = 64, jax.jit(agent.acting.greedy)
    obs, no = redrawn(rng, np.zeros((size, 2))), np.zeros(size, bool)
    carries = [redrawn(rng, agent.acting.greedy_carry(size), 10.0) for _ in "ab"]
    acted = [
        [
            greedy(agent.acting.greedy_weights(learned), carry, obs, first, KEY)[0]
            for carry in carries
        ]
        for first in (no, ~no)
    ]
    assert not np.array_equal(*acted[0]) and np.array_equal(*acted[1])


def test_no_gradient_reaches_the_burn_in():
    net, rng = (
        make_network(SPEC, 2, hidden=(), memory="mingru", recurrent_size=3),
        np.random.default_rng(1),
    )
    data = Replay(
        capacity=64, batch_size=BATCH, num_batches=1, warmup_steps=0, sequence_length=2, burn_in=3
    )
    params = redrawn(rng, jax.eval_shape(net.init, KEY))
    obs, reward = redrawn(rng, np.zeros((5, BATCH, 4))), np.zeros((2, BATCH))
    memory = {"critic": redrawn(rng, jax.tree.map(lambda x: x[None], net.initial_memory(BATCH)))}
    batch = ReplayBatch(
        obs, (), reward, (), (), {}, first=np.zeros((5, BATCH), bool), memory=memory
    )

    def total(obs):
        return jnp.sum(over_replay(data, net, params, batch._replace(obs=obs), "critic"))

    slopes = np.abs(jax.jit(jax.grad(total))(obs)).max(axis=(1, 2))
    np.testing.assert_array_equal(slopes > 0.0, [False, False, False, True, True])


def test_acting_stores_the_memory_before_a_step_and_carries_the_one_after():
    algorithm, env, rng = jf.pqn(**SIZES["pqn"]), tiny.line(discrete=True), np.random.default_rng(1)
    agent = bind(algorithm, env.spec, env.num_envs)
    learned = drawn_learned(rng, agent.parts)
    obs, first, carry = (
        redrawn(rng, np.zeros((4, 2))),
        np.arange(4) == 1,
        redrawn(rng, agent.acting.initial_carry(4)),
    )
    weights, net = agent.acting.greedy_weights(learned), agent.parts["critic"].networks["q"]

    def all_of(carry):
        _, explored, extras = agent.acting.explore(learned, carry, obs, first, KEY, algorithm.hyper)
        _, greedy = agent.acting.greedy(weights, carry, obs, first, KEY)
        wanted = net.apply(
            learned["critic"].params["q"], carry.memory["critic"], obs[None], first[None]
        )[1]
        return explored.memory, greedy.memory, extras.memory, wanted

    explored, greedy, stored, wanted = jax.jit(all_of)(carry)
    close(stored, carry.memory)
    for after in (explored, greedy):
        close(after["critic"], jax.tree.map(lambda x: x[0], wanted))


@pytest.mark.parametrize(
    ("rollout_length", "sequence_length", "stored"), [(8, None, 1), (8, 4, 2), (8, 8, 1), (8, 1, 8)]
)
def test_memory_is_stored_only_where_sequences_begin(
    rollout_length: int, sequence_length: Any, stored: int
):
    env = tiny.line(discrete=True)
    agent = bind(
        jf.ppo(recurrent_size=8, rollout_length=rollout_length, num_minibatches=1),
        env.spec,
        env.num_envs,
    )
    if sequence_length:
        algorithm = jf.dqn(
            recurrent_size=8,
            rollout_length=rollout_length,
            sequence_length=sequence_length,
            batch_size=4,
        )
        agent = bind(algorithm, env.spec, env.num_envs)
    shapes: Transition = rollout_shapes(env, agent)
    assert {leaf.shape[0] for leaf in jax.tree.leaves(shapes.extras.memory)} == {stored}


@pytest.mark.parametrize("kind", KINDS)
def test_policies_with_a_memory_are_saved_and_exported(kind: str, memories: Path):
    pytest.importorskip("onnxruntime")
    env, algorithm = (
        tiny.line(discrete=True),
        jf.ppo(memory=kind, recurrent_size=8, policy_hidden=(8,), **ON_POLICY),
    )
    result = jf.learn(env, algorithm, total_steps=64, eval_episodes=2, eval_every=64)
    save_policy(result.policy, memories / "policy")
    own = {"algorithm": lambda **options: jf.ppo(**options)} if "." in kind else {}
    if own:
        with pytest.raises(ValueError, match=re.escape(f"algo.memory={kind} again")):
            jf.load_policy(memories / "policy")
    policy = jf.load_policy(memories / "policy", **own)
    (memories / "exported").mkdir()
    for name in ("jax", "onnx"):
        path, compared = export_policy(policy, memories / "exported", name)
        assert path.exists() and compared, compared


@pytest.mark.parametrize("kind", ["gru", "gtrxl-3x1"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_values_of_a_rollout_follow_the_memories_at_the_starts_of_its_sequences(
    kind: str, count: int
):
    net, steps = make_network(SPEC, 1, hidden=(8,), memory=kind, recurrent_size=8), 8
    params, (obs, first) = jax.jit(net.init)(KEY), sequence(length=steps)
    next_obs = jax.random.normal(KEY, obs.shape)
    outputs, memories = steps_of(net, params, net.initial_memory(BATCH), obs, first)
    before = jax.tree.map(
        lambda start, after: jnp.concatenate([start[None], after]),
        net.initial_memory(BATCH),
        memories,
    )
    starts = jax.tree.map(lambda x: x[: steps : steps // count], before)
    none: Any = ()
    rollout = Transition(obs, none, none, next_obs, none, none, first, none)
    found, following = over_sequences(net, params, starts, rollout)
    close(found, outputs)
    for t in range(steps):
        after = jax.tree.map(lambda x, t=t: x[t], memories)
        close(
            following[t],
            net.apply(params, after, next_obs[t : t + 1], jnp.zeros((1, BATCH), bool))[0][0],
        )


@pytest.mark.parametrize("rollout_length", [2, 4, 8])
def test_replay_returns_the_memory_before_each_window(rollout_length: int):
    """Memories are numbered by their step; a window begins at multiples of 4 steps."""
    window = Window(4, 4, (), memory=True)
    buffer = ring_buffer(capacity=32, num_envs=2, batch_size=2, window=window)
    every = math.gcd(rollout_length, window.stride)

    def rollout(begin: int) -> Transition:
        time = jnp.broadcast_to(
            begin + jnp.arange(rollout_length, dtype=jnp.float32)[:, None], (rollout_length, 2)
        )
        flag = jnp.zeros((rollout_length, 2), bool)
        extras = Extras({}, {"actor": time[::every, :, None]})
        return Transition(time, time, time, time, flag, flag, flag, extras)

    state = buffer.init(rollout(0))
    for begin in range(0, 24, rollout_length):
        state = buffer.add(state, rollout(begin))
    start = jnp.asarray([[8, 12], [16, 20]][: buffer.shards])
    windows = buffer.windows(state, start, jnp.zeros_like(start))
    np.testing.assert_array_equal(windows.memory["actor"][..., 0], start)
    np.testing.assert_array_equal(windows.steps.obs[..., 0], start)


@pytest.mark.parametrize(
    ("memory", "size", "expected"),
    [
        (
            "gruu",
            8,
            "memory=gruu: write gru, lstm, mingru, lru, gtrxl, gtrxl-64x2 or my_package.make",
        ),
        ("lstm", 0, "memory=lstm needs a size: write recurrent_size=64"),
        (
            "gtrxl-64",
            8,
            "memory=gtrxl-64: write gtrxl-64x2 for a window of 64 steps (1 to 4096) and 2 layers",
        ),
        ("gtrxl-0x2", 8, "memory=gtrxl-0x2: write gtrxl-64x2"),
        ("my_memories.nothing", 8, "my_memories has no function 'nothing'"),
        ("my_memories.fails", 8, "memory=my_memories.fails failed: RuntimeError: no such memory"),
        (
            "my_memories.text",
            8,
            "memory=my_memories.text returned str: return a flax.linen.RNNCellBase, or a module with",
        ),
        (
            "my_memories.dense",
            8,
            "memory=my_memories.dense returned Dense: return a flax.linen.RNNCellBase",
        ),
        ("my_memories.other", 8, "memory=my_memories.other returns features () and states"),
        ("my_memories.raises", 8, "memory=my_memories.raises fails with x (1, 1, 4): TypeError"),
        (
            "my_memories.short",
            8,
            "memory=my_memories.short returns features (1, 8) and states ((1, 1, 8), (1, 1, 1))",
        ),
        (
            "my_memories.stateless",
            8,
            "memory=my_memories.stateless has no state at the start of an episode: TypeError",
        ),
    ],
)
def test_a_wrong_memory_is_one_line(memory: str, size: int, expected: str):
    with pytest.raises(ValueError, match=re.escape(expected)):
        agent = jf.ppo(memory=memory, recurrent_size=size).build(
            jf.make_env("cartpole", num_envs=4).spec, 4
        )
        agent.parts["actor"].networks["policy"].init(KEY)
