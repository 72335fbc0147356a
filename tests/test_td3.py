"""TD3's updates against slow NumPy references, its delays, and the noise of every environment."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
import tiny

import jaxrl_fast as jf
from jaxrl_fast.assembly import bind
from jaxrl_fast.core import stable_hash
from jaxrl_fast.learning.algorithm import ReplayBatch
from jaxrl_fast.learning.critics import with_dropout
from jaxrl_fast.learning.updates import init_part, update

RNG = np.random.default_rng(3)
B, GAMMA = 6, 0.9
SPEC = tiny.line(discrete=False).spec
LOW, HIGH = (float(bound[0]) for bound in (SPEC.action.low, SPEC.action.high))


def small_td3(**options):
    sizes = dict(
        policy_hidden=(3,), critic_hidden=(3,), batch_size=8, buffer_size=64, updates_per_tick=1
    )
    rates = dict(
        learning_rate=0.01,
        actor_learning_rate_ratio=0.5,
        discount=GAMMA,
        tau=0.1,
        max_grad_norm=0.2,
    )
    noise = dict(target_noise=0.4, target_noise_clip=0.3, exploration_noise=0.2)
    return jf.td3(**sizes | rates | noise | dict(activation="tanh", warmup_steps=0) | options)


def batch() -> ReplayBatch:
    obs, next_obs = RNG.normal(size=(2, 1, B, 2)).astype(np.float32)
    action = RNG.uniform(LOW, HIGH, (1, B, 1)).astype(np.float32)
    reward = RNG.normal(size=(1, B)).astype(np.float32)
    bootstrap = np.float32(GAMMA) * (RNG.random((1, B)) < 0.7)
    return ReplayBatch(obs, action, reward, bootstrap.astype(np.float32), next_obs, {})


def numbers(tree):
    return jax.tree.map(lambda x: np.array(x, np.float64), tree)


def actions(policy, obs) -> np.ndarray:
    return np.tanh(references.mlp(policy, np.float64(obs)))


def q_values(params, obs, unit) -> np.ndarray:
    inputs = np.concatenate([unit, np.float64(obs)], axis=-1)
    return np.stack([references.mlp(p, inputs)[..., 0] for p in params])


def made(**options):
    algorithm = small_td3(**options)
    parts, hyper = algorithm.build(SPEC, 4).parts, algorithm.hyper
    states = {
        name: jax.jit(lambda key, part=part: init_part(part, key, hyper))(jax.random.key(i))
        for i, (name, part) in enumerate(parts.items())
    }
    moved = jax.tree.map(
        lambda x: x + RNG.normal(size=x.shape).astype(np.float32), states["actor"].learned.target
    )
    actor = states["actor"]._replace(learned=states["actor"].learned._replace(target=moved))
    return parts, hyper, states | {"actor": actor}


@pytest.mark.parametrize("num_critics", [1, 2])
def test_two_critic_updates_equal_numpy(num_critics: int):
    """Compute the target: the least critic, at the target policy's action with clipped noise."""
    parts, hyper, states = made(num_critics=num_critics)
    state, peers = states["critic"], {"actor": states["actor"].learned}
    step = jax.jit(
        lambda state, data, key, count: update(
            parts["critic"], state, peers, data, key, hyper, count
        )
    )
    treedef = jax.tree.structure(state.learned.params["q"])
    leaves, slow = ([np.float64(x) for x in jax.tree.leaves(tree)] for tree in state.learned)
    adam = references.Adam(0.01, 0.2)
    for count in range(2):
        data, key = batch(), jax.random.key(count)
        noise = np.clip(0.4 * np.float64(jax.random.normal(key, (1, B, 1))), -0.3, 0.3)
        state, metrics, _ = step(state, data, key, jnp.int32(count))
        unit = np.clip(
            actions(numbers(peers["actor"].target["policy"]), data.next_obs) + noise, -1.0, 1.0
        )
        wanted = data.reward + data.bootstrap * q_values(
            treedef.unflatten(slow), data.next_obs, unit
        ).min(0)
        taken = (np.float64(data.action) - LOW) / (HIGH - LOW) * 2 - 1

        def loss(leaves, data=data, taken=taken, wanted=wanted):
            return (
                0.5
                * ((q_values(treedef.unflatten(leaves), data.obs, taken) - wanted) ** 2)
                .mean((1, 2))
                .sum()
            )

        np.testing.assert_allclose(metrics["critic_loss"], loss(leaves), rtol=1e-4)
        leaves = adam.step(leaves, references.gradient(loss, leaves))
        if count % 2 == 0:  # the target networks update together with the actor
            slow = [0.9 * old + 0.1 * new for old, new in zip(slow, leaves, strict=True)]
        for got, want in zip(jax.tree.leaves(tuple(state.learned)), leaves + slow, strict=True):
            np.testing.assert_allclose(got, want, atol=1e-4)


def test_two_actor_updates_equal_numpy():
    parts, hyper, states = made()
    state, critic = states["actor"], states["critic"].learned
    step = jax.jit(
        lambda state, data: update(
            parts["actor"], state, {"critic": critic}, data, jax.random.key(0), hyper
        )
    )
    treedef = jax.tree.structure(state.learned.params["policy"])
    leaves, slow = ([np.float64(x) for x in jax.tree.leaves(tree)] for tree in state.learned)
    adam = references.Adam(0.005, 0.2)
    for _ in range(2):
        data = batch()
        state, metrics, _ = step(state, data)

        def loss(leaves, data=data):
            unit = actions(treedef.unflatten(leaves), data.obs)
            return -q_values(numbers(critic.params["q"]), data.obs, unit)[0].mean()

        np.testing.assert_allclose(metrics["policy_loss"], loss(leaves), rtol=1e-3, atol=1e-5)
        leaves = adam.step(leaves, references.gradient(loss, leaves))
        slow = [0.9 * old + 0.1 * new for old, new in zip(slow, leaves, strict=True)]
        for got, want in zip(jax.tree.leaves(tuple(state.learned)), leaves + slow, strict=True):
            np.testing.assert_allclose(got, want, atol=1e-4)


def test_updates_with_all_options_equal_numpy():
    """Random critics in the target, dropout, weights and priorities; the policy maximizes the mean
    of all critics.
    """
    options = dict(
        num_critics=3, target_critics=2, critic_dropout=0.4, priority_exponent=0.5, target_noise=0.0
    )
    parts, hyper, states = made(**options, policy_delay=1, max_grad_norm=1e6)
    critic, actor = states["critic"], states["actor"]
    slow = jax.tree.map(
        lambda x: x + RNG.normal(size=x.shape).astype(np.float32), critic.learned.target
    )
    critic = critic._replace(learned=critic.learned._replace(target=slow))
    data = batch()._replace(weight=RNG.uniform(0.2, 1.0, (1, B)).astype(np.float32))
    key, given = (
        jax.random.key(5),
        (jnp.ones((1, B, 2)), jnp.zeros((1, B), bool), jnp.ones((1, B, 1))),
    )

    def values(obs, unit, use):
        net = with_dropout(parts["critic"].networks["q"], key, use)
        masks = references.dropout_masks(
            lambda: net.apply(critic.learned.params["q"], (), *given), 3
        )
        inputs = np.concatenate([unit, np.float64(obs)], axis=-1)[0]
        return lambda params: np.stack(
            [references.mlp(p, inputs, m, 0.4)[:, 0] for p, m in zip(params, masks, strict=True)]
        )

    unit = actions(numbers(actor.learned.target["policy"]), data.next_obs)
    next_q = values(data.next_obs, unit, "target")(numbers(critic.learned.target["q"]))
    chosen = np.asarray(jax.random.permutation(jax.random.fold_in(key, stable_hash("critics")), 3))[
        :2
    ]
    assert (data.bootstrap * (np.minimum(*next_q[chosen]) - next_q.min(0))).max() > 0.1
    target = (data.reward + data.bootstrap * np.minimum(*next_q[chosen]))[0]
    own = values(data.obs, (np.float64(data.action) - LOW) / (HIGH - LOW) * 2 - 1, "loss")
    treedef = jax.tree.structure(critic.learned.params["q"])

    def loss(leaves):
        return 0.5 * (data.weight * (own(treedef.unflatten(leaves)) - target) ** 2).mean(1).sum()

    leaves = [np.float64(x) for x in jax.tree.leaves(critic.learned.params)]
    step = jax.jit(
        lambda name, state, peers: update(parts[name], state, peers, data, key, hyper),
        static_argnums=0,
    )
    found, metrics, priorities = step("critic", critic, {"actor": actor.learned})
    np.testing.assert_allclose(metrics["critic_loss"], loss(leaves), rtol=1e-4)
    np.testing.assert_allclose(
        priorities, np.abs(own(treedef.unflatten(leaves)) - target).mean(0), rtol=1e-4
    )
    wanted = references.Adam(0.01, 1e6).step(leaves, references.gradient(loss, leaves))
    for got, want in zip(jax.tree.leaves(found.learned.params), wanted, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4)
    _, metrics, _ = step("actor", actor, {"critic": critic.learned})
    unit = actions(numbers(actor.learned.params["policy"]), data.obs)
    q = values(data.obs, unit, "policy")(numbers(critic.learned.params["q"]))
    np.testing.assert_allclose(metrics["policy_loss"], -q.mean(), rtol=1e-4)


def test_every_environment_explores_with_a_noise_of_its_own():
    num_envs, draws = 5, 2_000
    agent = bind(small_td3(noise_spread=4.0), SPEC, num_envs)
    state = init_part(agent.parts["actor"], jax.random.key(0), agent.hyper)
    learned, acting = {"actor": state.learned}, agent.acting
    obs, first, carry = (
        jnp.ones((num_envs, 2)),
        jnp.zeros(num_envs, bool),
        acting.initial_carry(num_envs),
    )
    explore = jax.jit(
        jax.vmap(lambda key: acting.explore(learned, carry, obs, first, key, agent.hyper)[0])
    )
    action = np.asarray(explore(jax.random.split(jax.random.key(1), draws)))[..., 0]
    unit = (action - LOW) / (HIGH - LOW) * 2 - 1
    greedy, _ = acting.greedy(
        acting.greedy_weights(learned), acting.greedy_carry(num_envs), obs, first, jax.random.key(0)
    )
    middle = (np.asarray(greedy)[0, 0] - LOW) / (HIGH - LOW) * 2 - 1
    deviation = np.sqrt(np.mean((unit[:, :3] - middle) ** 2, axis=0))
    np.testing.assert_allclose(deviation, [0.05, 0.1, 0.2], rtol=0.1)
    assert np.abs(unit).max() <= 1.0 and deviation[2] < np.std(unit[:, 4])
    np.testing.assert_allclose(bind(small_td3(), SPEC, 1).acting.initial_carry(1).choice, [1.0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(noise_spread=0.5), "noise_spread=0.5: write a number of at least 1"),
        (dict(policy_delay=0), "policy_delay=0: write a positive number"),
        (dict(num_critics=0), "num_critics=0: write a positive number"),
        (dict(target_critics=3), "target_critics=3: write 1 to 2"),
        (dict(critic_dropout=-0.1), "critic_dropout=-0.1: write a number of at least 0"),
        (dict(priority_exponent=1.5), "priority_exponent=1.5: write a number of at most 1"),
        (dict(optimizer="sgd"), "optimizer=sgd: write one of adam"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        bind(small_td3(**options), SPEC, 4)


def test_discrete_actions_are_refused():
    with pytest.raises(
        ValueError, match="algo=td3 does not work with the discrete actions of line: write algo=dqn"
    ):
        bind(small_td3(), tiny.line(discrete=True).spec, 4)
