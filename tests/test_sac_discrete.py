"""Discrete SAC's updates against slow NumPy references."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
import replay_walks
import tiny

import jaxrl_fast as jf
from jaxrl_fast.assembly import bind
from jaxrl_fast.core import MultiDiscrete
from jaxrl_fast.learning.acting import TEMPERATURES, temperature_optimizer
from jaxrl_fast.learning.algorithm import Learned, ReplayBatch
from jaxrl_fast.learning.updates import init_part, update
from jaxrl_fast.numerics import distributions

RNG = np.random.default_rng(3)
B, GAMMA = 6, 0.9
SPEC = tiny.line(discrete=True).spec


def small(**options):
    sizes = dict(
        policy_hidden=(3,), critic_hidden=(3,), batch_size=8, buffer_size=64, updates_per_tick=1
    )
    rates = dict(
        learning_rate=0.01,
        temperature_learning_rate=0.02,
        discount=GAMMA,
        tau=0.1,
        max_grad_norm=0.2,
    )
    return jf.sac_discrete(
        **sizes | rates | dict(activation="tanh", warmup_steps=0, initial_temperature=0.4) | options
    )


def batch() -> ReplayBatch:
    obs, next_obs = RNG.normal(size=(2, 1, B, 2)).astype(np.float32)
    action = RNG.integers(0, 2, (1, B)).astype(np.int32)
    reward = RNG.normal(size=(1, B)).astype(np.float32)
    bootstrap = np.float32(GAMMA) * (RNG.random((1, B)) < 0.7)
    return ReplayBatch(obs, action, reward, bootstrap.astype(np.float32), next_obs, {})


def numbers(tree):
    return jax.tree.map(lambda x: np.array(x, np.float64), tree)


def q_values(params, obs) -> np.ndarray:
    return np.stack([references.mlp(p, np.float64(obs)) for p in params])


def soft_value(policy, temperature, obs, q) -> tuple[np.ndarray, np.ndarray]:
    """Compute the mean over actions of ``q`` less the temperature's share, and the entropy."""
    log_prob = references.log_softmax(references.mlp(policy, np.float64(obs)))
    prob = np.exp(log_prob)
    return (prob * (q - temperature * log_prob)).sum(-1), -(prob * log_prob).sum(-1)


@pytest.fixture(scope="module")
def made():
    algorithm = small()
    parts, hyper = algorithm.build(SPEC, 4).parts, algorithm.hyper
    states = {
        name: jax.jit(lambda key, part=part: init_part(part, key, hyper))(jax.random.key(i))
        for i, (name, part) in enumerate(parts.items())
    }
    return parts, hyper, states


def test_two_critic_updates_equal_numpy(made):
    parts, hyper, states = made
    state, peers = states["critic"], {"actor": states["actor"].learned}
    target = jax.tree.map(
        lambda x: x + RNG.normal(size=x.shape).astype(np.float32), state.learned.target
    )
    state = state._replace(learned=state.learned._replace(target=target))
    step = jax.jit(
        lambda state, data: update(parts["critic"], state, peers, data, jax.random.key(0), hyper)
    )
    treedef = jax.tree.structure(state.learned.params["q"])
    leaves, slow = ([np.float64(x) for x in jax.tree.leaves(tree)] for tree in state.learned)
    adam, actor = references.Adam(0.01, 0.2), numbers(peers["actor"].params)
    for _ in range(2):
        data = batch()
        state, metrics, _ = step(state, data)
        next_q = q_values(treedef.unflatten(slow), data.next_obs).mean(0)
        value, _ = soft_value(actor["policy"], np.exp(actor["temperature"]), data.next_obs, next_q)
        wanted = data.reward + data.bootstrap * value

        def loss(leaves, data=data, wanted=wanted):
            q = q_values(treedef.unflatten(leaves), data.obs)
            taken = np.take_along_axis(q, np.stack([data.action] * 2)[..., None], -1)[..., 0]
            return 0.5 * ((taken - wanted) ** 2).mean((1, 2)).sum()

        np.testing.assert_allclose(metrics["critic_loss"], loss(leaves), rtol=1e-4)
        leaves = adam.step(leaves, references.gradient(loss, leaves))
        slow = [0.9 * old + 0.1 * new for old, new in zip(slow, leaves, strict=True)]
        for got, want in zip(jax.tree.leaves(tuple(state.learned)), leaves + slow, strict=True):
            np.testing.assert_allclose(got, want, atol=1e-4)


def test_two_actor_updates_equal_numpy(made):
    parts, hyper, states = made
    state, peers = states["actor"], {"critic": states["critic"].learned}
    step = jax.jit(
        lambda state, data: update(parts["actor"], state, peers, data, jax.random.key(0), hyper)
    )
    first = state.learned.params
    treedef, critic = jax.tree.structure(first["policy"]), numbers(peers["critic"].params["q"])
    leaves, log_temperature = (
        jax.tree.leaves(numbers(first["policy"])),
        np.float64(first["temperature"]),
    )
    adam, temperature_adam = references.Adam(0.01, 0.2), references.Adam(0.02, 0.2)
    for _ in range(2):
        data = batch()
        state, metrics, _ = step(state, data)
        q, temperature = q_values(critic, data.obs).mean(0), np.exp(log_temperature)

        def loss(leaves, data=data, q=q, temperature=temperature):
            return -soft_value(treedef.unflatten(leaves), temperature, data.obs, q)[0].mean()

        entropy = soft_value(treedef.unflatten(leaves), temperature, data.obs, q)[1].mean()
        np.testing.assert_allclose(metrics["policy_loss"], loss(leaves), rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(metrics["entropy"], entropy, rtol=1e-3)
        leaves = adam.step(leaves, references.gradient(loss, leaves))
        slope = -temperature * (0.3 * np.log(2.0) - entropy)
        (log_temperature,) = temperature_adam.step([log_temperature], [slope])
        for got, want in zip(
            jax.tree.leaves(state.learned.params), [*leaves, log_temperature], strict=True
        ):
            np.testing.assert_allclose(got, want, atol=1e-4)


def test_a_forbidden_action_has_no_share_in_the_value():
    obs = {"x": tiny.OBS, "action_mask": jax.ShapeDtypeStruct((2,), jnp.bool_)}
    algorithm = small()
    parts = algorithm.build(SPEC._replace(obs=obs), 4).parts
    states = {
        name: init_part(part, jax.random.key(0), algorithm.hyper) for name, part in parts.items()
    }
    data, mask = batch(), np.broadcast_to(np.array([True, False]), (1, B, 2))
    data = data._replace(
        obs={"x": data.obs, "action_mask": mask},
        next_obs={"x": data.next_obs, "action_mask": mask},
        action=np.zeros((1, B), np.int32),
    )
    peers = {name: state.learned for name, state in states.items()}
    for name, part in parts.items():
        step = jax.jit(
            lambda state, part=part: update(
                part, state, peers, data, jax.random.key(0), algorithm.hyper
            )
        )
        _, metrics, _ = step(states[name])
        assert all(np.isfinite(value) for value in metrics.values())
    assert metrics["entropy"] == 0.0


ACTIONS = 4
MANY = {"action_mask": jax.ShapeDtypeStruct((ACTIONS,), jnp.bool_), "x": tiny.OBS}


@pytest.mark.parametrize("memory", [False, True])
def test_losses_with_masks_equal_a_walk_through_the_window(memory: bool):
    """In every observation, the actions that critics and policy would take are forbidden; masks of
    two steps differ.
    """
    options = (
        dict(recurrent_size=3, memory="mingru", sequence_length=2, burn_in=2) if memory else {}
    )
    algorithm = small(n_step=2, **options)
    agent, hyper = (
        algorithm.build(SPEC._replace(obs=MANY, action=jf.Discrete(ACTIONS)), 4),
        algorithm.hyper,
    )
    # as `bind` sets them
    data = agent.data if memory else agent.data._replace(sequence_length=1, burn_in=0)
    nets = {
        "critic": agent.parts["critic"].networks["q"],
        "actor": agent.parts["actor"].networks["policy"],
    }
    online, slow, actor = (
        replay_walks.drawn_params(RNG, agent.parts[part]) for part in ("critic", "critic", "actor")
    )
    sampled = replay_walks.draw(RNG, data, nets if memory else {}, ACTIONS, B)
    q_now, _ = replay_walks.walk(nets["critic"], online["q"], sampled, "critic")
    _, q_next = (x.mean(1) for x in replay_walks.walk(nets["critic"], slow["q"], sampled, "critic"))
    logits = replay_walks.walk(nets["actor"], actor["policy"], sampled, "actor")
    sampled = replay_walks.forbid(sampled, (q_now.mean(1), logits[0]), (q_next, logits[1]))
    steps, temperature = (
        jax.tree.map(lambda x: x[0], sampled.steps),
        np.exp(np.float64(actor["temperature"])),
    )

    def allowed_value(logits, q, mask):
        log_prob = references.log_softmax(logits[mask])
        return np.sum(np.exp(log_prob) * (q[mask] - temperature * log_prob))

    critic_errors, values = [], []
    for b in range(B):
        for begin in replay_walks.starts(data):
            window = slice(begin, begin + data.n_step)
            ends = steps.terminated[b, window], steps.truncated[b, window]
            total, bootstrap, last = references.n_step(steps.reward[b, window], *ends, GAMMA)
            at = begin + last, b
            following = allowed_value(
                logits[1][at], q_next[at], steps.next_obs["action_mask"][b, begin + last]
            )
            taken = q_now[begin, :, b, steps.action[b, begin]]
            critic_errors.append(0.5 * np.sum((taken - total - bootstrap * following) ** 2))
            mask = steps.obs["action_mask"][b, begin]
            values.append(allowed_value(logits[0][begin, b], q_now.mean(1)[begin, b], mask))
    batch = replay_walks.batch_of(sampled, data, GAMMA, memory=memory)
    learned = {"critic": Learned(online, slow), "actor": Learned(actor)}

    def metrics(learned, batch):
        found = [
            part.gradients(learned[name], learned, batch, jax.random.key(0), hyper)
            for name, part in parts
        ]
        return found[0].metrics | found[1].metrics

    parts = [(name, agent.parts[name]) for name in ("critic", "actor")]
    got = jax.jit(metrics)(learned, batch)
    np.testing.assert_allclose(got["critic_loss"], np.mean(critic_errors), rtol=1e-4)
    np.testing.assert_allclose(got["policy_loss"], -np.mean(values), rtol=1e-4)


def test_continuous_actions_are_refused():
    message = "algo=sac_discrete does not work with the continuous actions of line: write algo=sac"
    with pytest.raises(ValueError, match=message):
        bind(small(), tiny.line(discrete=False).spec, 4)


def test_the_target_entropy_counts_only_the_actions_that_are_allowed():
    mask = jnp.array(
        [[True, True, False, False], [True, False, False, False], [True, True, True, True]]
    )
    dist = distributions.categorical(jnp.zeros((3, 4)), mask)
    np.testing.assert_allclose(distributions.largest_entropy(dist), np.log([2, 1, 4]), rtol=1e-6)
    parts = distributions.of_outputs(
        MultiDiscrete((2, 3)), jnp.zeros(5), jnp.array([True, True, False, True, True])
    )
    np.testing.assert_allclose(
        distributions.largest_entropy(parts), np.log(2) + np.log(2), rtol=1e-6
    )


def test_a_temperature_stops_at_its_bounds():
    optimizer = temperature_optimizer()(Rates(10.0, 1.0))
    for gradient, bound in ((-1.0, TEMPERATURES[1]), (1.0, TEMPERATURES[0])):
        log_temperature = jnp.float32(0.0)
        state = optimizer.init(log_temperature)
        for _ in range(20):
            change, state = optimizer.update(jnp.float32(gradient), state, log_temperature)
            log_temperature = log_temperature + change
        np.testing.assert_allclose(jnp.exp(log_temperature), bound, rtol=1e-5)


class Rates(NamedTuple):
    temperature_learning_rate: float
    max_grad_norm: float


def test_a_memory_and_a_mask_train_together():
    shapes = {
        "x": jax.ShapeDtypeStruct((2,), jnp.float32),
        "action_mask": jax.ShapeDtypeStruct((3,), jnp.bool_),
    }
    seen = {"x": jnp.ones(2), "action_mask": jnp.array([True, False, True])}
    no, step = jnp.zeros((), bool), jnp.ones((), jnp.float32)
    spec = jf.EnvSpec("masked", shapes, jf.Discrete(3), max_episode_steps=5)
    env = jf.Env(
        spec,
        lambda key, params: ((), seen),
        lambda s, a, key: ((), jf.Timestep(seen, seen, step, no, no)),
    )
    sizes = dict(
        batch_size=4,
        buffer_size=200,
        warmup_steps=40,
        updates_per_tick=1,
        sequence_length=3,
        burn_in=2,
    )
    algorithm = jf.sac_discrete(
        recurrent_size=4, policy_hidden=(4,), critic_hidden=(4,), rollout_length=10, **sizes
    )
    init_state, tick = jf.make_train_step(jf.vectorize(env, num_envs=2), algorithm)
    state, tick = init_state(jax.random.key(0)), jax.jit(tick)
    for _ in range(4):
        state, metrics = tick(state)
    assert float(metrics["learn/actor/target_entropy"]) == pytest.approx(0.3 * np.log(2), rel=1e-5)
