"""DQN's updates against slow NumPy references, its exploration, and its slow target network."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
import tiny
from hypothesis import given
from hypothesis import strategies as st

import jaxrl_fast as jf
from jaxrl_fast.assembly import bind
from jaxrl_fast.learning.algorithm import ReplayBatch
from jaxrl_fast.learning.critics import make_value_head
from jaxrl_fast.learning.updates import init_part, update
from jaxrl_fast.numerics import losses
from jaxrl_fast.numerics.distributions import project

RNG = np.random.default_rng(7)
B, GAMMA = 6, 0.9
SPEC = tiny.line(discrete=True).spec
SIZES = dict(
    q_hidden=(3,),
    activation="tanh",
    batch_size=8,
    buffer_size=64,
    warmup_steps=0,
    updates_per_tick=1,
)


def small_dqn(**options):
    return jf.dqn(
        **dict(learning_rate=0.01, discount=GAMMA, tau=0.1, max_grad_norm=0.5) | SIZES | options
    )


def batch() -> ReplayBatch:
    obs, next_obs = RNG.normal(size=(2, 1, B, 2)).astype(np.float32)
    action = RNG.integers(0, 2, (1, B)).astype(np.int32)
    reward = 3.0 * RNG.normal(size=(1, B)).astype(np.float32)
    bootstrap = np.float32(GAMMA) * (RNG.random((1, B)) < 0.7)
    return ReplayBatch(obs, action, reward, bootstrap.astype(np.float32), next_obs, {})


def q_values(params, obs, dueling: bool) -> np.ndarray:
    outputs = references.mlp(params, np.float64(obs))
    if not dueling:
        return outputs
    value, advantage = outputs[..., :1], outputs[..., 1:]
    return value + advantage - advantage.mean(-1, keepdims=True)


def taken(q, action):
    return np.take_along_axis(q, action[..., None], -1)[..., 0]


def huber(error):
    return np.where(np.abs(error) <= 1, 0.5 * error**2, np.abs(error) - 0.5)


@pytest.mark.parametrize(
    ("double", "dueling"), [(False, False), (True, True)]
)  # for the default see test_reference.py
def test_two_updates_equal_numpy(double: bool, dueling: bool):
    algorithm = small_dqn(double=double, dueling=dueling)
    part, hyper = algorithm.build(SPEC, 4).parts["critic"], algorithm.hyper
    state = jax.jit(lambda key: init_part(part, key, hyper))(jax.random.key(0))
    target = jax.tree.map(
        lambda x: x + RNG.normal(size=x.shape).astype(np.float32), state.learned.target
    )
    state = state._replace(learned=state.learned._replace(target=target))
    step = jax.jit(lambda state, data: update(part, state, {}, data, jax.random.key(0), hyper))
    treedef = jax.tree.structure(state.learned.params["q"])
    leaves, slow = ([np.float64(x) for x in jax.tree.leaves(tree)] for tree in state.learned)
    adam = references.Adam(0.01, 0.5)
    for _ in range(2):
        data = batch()
        state, metrics, _ = step(state, data)
        next_q = q_values(treedef.unflatten(slow), data.next_obs, dueling)
        chooser = q_values(treedef.unflatten(leaves), data.next_obs, dueling) if double else next_q
        wanted = data.reward + data.bootstrap * taken(next_q, chooser.argmax(-1))

        def loss(leaves, data=data, wanted=wanted):
            return huber(
                taken(q_values(treedef.unflatten(leaves), data.obs, dueling), data.action) - wanted
            ).mean()

        np.testing.assert_allclose(metrics["q_loss"], loss(leaves), rtol=1e-4)
        leaves = adam.step(leaves, references.gradient(loss, leaves))
        slow = [0.9 * old + 0.1 * new for old, new in zip(slow, leaves, strict=True)]
        for got, want in zip(jax.tree.leaves(tuple(state.learned)), leaves + slow, strict=True):
            np.testing.assert_allclose(got, want, atol=1e-4)


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def categorical_loss(outputs, reward, bootstrap, following, atoms):
    """Compute C51's loss of one sample, after algorithm 1 of arXiv 1707.06887."""
    spacing, target = atoms[1] - atoms[0], np.zeros(len(atoms))
    for atom, probability in zip(atoms, softmax(following), strict=True):
        place = (np.clip(reward + bootstrap * atom, atoms[0], atoms[-1]) - atoms[0]) / spacing
        below, above = int(np.floor(place)), int(np.ceil(place))
        target[below] += probability * (1.0 if below == above else above - place)
        target[above] += probability * (0.0 if below == above else place - below)
    return -(target * np.log(softmax(outputs))).sum()


def quantile_loss(outputs, reward, bootstrap, following):
    """Compute QR-DQN's loss of one sample, after equation 10 of arXiv 1710.10044."""
    total = 0.0
    for i, quantile in enumerate(outputs):
        for sample in reward + bootstrap * following:
            share = abs((i + 0.5) / len(outputs) - (sample < quantile))
            total += share * huber(sample - quantile) / len(following)
    return total


@pytest.mark.parametrize("kind", ["categorical", "quantiles"])
@pytest.mark.parametrize("dueling", [False, True])
def test_an_update_of_distributions_equals_numpy(kind: str, dueling: bool):
    num_atoms, atoms = 5, np.linspace(-4.0, 4.0, 5)
    algorithm = small_dqn(
        value_head=kind, num_atoms=num_atoms, value_min=-4.0, value_max=4.0, dueling=dueling
    )
    part, hyper = algorithm.build(SPEC, 4).parts["critic"], algorithm.hyper
    state = jax.jit(lambda key: init_part(part, key, hyper))(jax.random.key(0))
    leaves = jax.tree.map(
        lambda x: x + 0.3 * RNG.normal(size=x.shape).astype(np.float32), state.learned.params
    )
    state = state._replace(learned=state.learned._replace(params=leaves))
    treedef = jax.tree.structure(state.learned.params["q"])
    leaves, slow = ([np.float64(x) for x in jax.tree.leaves(tree)] for tree in state.learned)
    data = batch()

    def outputs_of(leaves, obs):
        outputs = references.mlp(treedef.unflatten(leaves), np.float64(obs))[0]
        if not dueling:
            return outputs.reshape(B, 2, num_atoms)
        value, advantage = (
            outputs[:, None, :num_atoms],
            outputs[:, num_atoms:].reshape(B, 2, num_atoms),
        )
        return value + advantage - advantage.mean(1, keepdims=True)

    def expected(outputs):
        return (softmax(outputs) * atoms).sum(-1) if kind == "categorical" else outputs.mean(-1)

    best = expected(outputs_of(leaves, data.next_obs)).argmax(-1)
    following = outputs_of(slow, data.next_obs)[np.arange(B), best]

    def loss(leaves):
        outputs = outputs_of(leaves, data.obs)[np.arange(B), data.action[0]]
        given = zip(
            outputs,
            np.float64(data.reward[0]),
            np.float64(data.bootstrap[0]),
            following,
            strict=True,
        )
        own = (lambda *x: categorical_loss(*x, atoms)) if kind == "categorical" else quantile_loss
        return np.mean([own(*x) for x in given])

    got, metrics, _ = jax.jit(
        lambda state, data: update(part, state, {}, data, jax.random.key(0), hyper)
    )(state, data)
    np.testing.assert_allclose(metrics["q_loss"], loss(leaves), rtol=1e-4)
    wanted = references.Adam(0.01, 0.5).step(leaves, references.gradient(loss, leaves))
    for one, other in zip(jax.tree.leaves(got.learned.params), wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


@given(st.integers(2, 9), st.floats(-3.0, 3.0), st.floats(0.0, 1.0), st.integers(0, 2**31))
def test_a_projection_keeps_the_mass_and_within_the_atoms_the_mean(
    size: int, reward: float, discount: float, seed: int
):
    atoms = np.linspace(-5.0, 7.0, size).astype(np.float32)
    probabilities = np.random.default_rng(seed).dirichlet(np.ones(size)).astype(np.float32)
    positions = np.float32(reward) + np.float32(discount) * atoms
    got = np.asarray(project(positions, probabilities, atoms))
    assert (got >= 0.0).all() and abs(got.sum() - 1.0) < 1e-5
    wanted = (np.clip(positions, atoms[0], atoms[-1]) * probabilities).sum()
    np.testing.assert_allclose((got * atoms).sum(), wanted, atol=1e-4)


def test_surprise_is_the_divergence_from_the_target_and_none_where_the_target_is_said():
    head = make_value_head("categorical", 5, (0.0, 4.0), losses.huber)
    outputs = jnp.array([0.0, 1.0, 2.0, 1.0, -1.0])
    same = head.loss(outputs, jnp.float32(0.0), jnp.float32(1.0), outputs)[1]
    other = head.loss(outputs, jnp.float32(1.0), jnp.float32(0.0), outputs)[1]
    np.testing.assert_allclose(same, 0.0, atol=1e-6)
    np.testing.assert_allclose(other, -jax.nn.log_softmax(outputs)[1], rtol=1e-6)


def test_the_slow_target_moves_every_so_many_updates_of_the_run():
    algorithm = small_dqn(tau=1.0, target_period=3)
    part, hyper = algorithm.build(SPEC, 4).parts["critic"], algorithm.hyper
    state = jax.jit(lambda key: init_part(part, key, hyper))(jax.random.key(0))
    step = jax.jit(
        lambda state, count: update(part, state, {}, batch(), jax.random.key(0), hyper, count)[0]
    )
    for count in range(7):
        before, state = state.learned, step(state, jnp.int32(count))
        moved = jax.tree.leaves(state.learned.params if count % 3 == 2 else before.target)
        for got, want in zip(jax.tree.leaves(state.learned.target), moved, strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("epsilon", [0.0, 0.25, 1.0])
def test_a_share_of_actions_is_random_and_none_is_forbidden(epsilon: float):
    obs = {"x": tiny.OBS, "action_mask": jax.ShapeDtypeStruct((4,), jnp.bool_)}
    algorithm = small_dqn(epsilon=epsilon, rollout_length=1, buffer_size=8000)
    agent = bind(algorithm, SPEC._replace(obs=obs, action=jf.Discrete(4)), 4000)
    learned = {
        "critic": init_part(agent.parts["critic"], jax.random.key(0), algorithm.hyper).learned
    }
    mask = np.array([True, False, True, True])
    seen = {"x": jnp.ones((4000, 2)), "action_mask": jnp.broadcast_to(mask, (4000, 4))}
    first, acting = jnp.zeros(4000, bool), agent.acting
    carry, key = acting.initial_carry(4000), jax.random.key(1)
    action = np.asarray(
        jax.jit(acting.explore)(learned, carry, seen, first, key, algorithm.hyper)[0]
    )
    weights = acting.greedy_weights(learned)
    greedy = np.asarray(
        jax.jit(acting.greedy)(weights, acting.greedy_carry(4000), seen, first, key)[0]
    )
    assert len(set(greedy)) == 1 and mask[greedy[0]]
    share = np.bincount(action, minlength=4) / 4000
    wanted = epsilon * mask / 3 + (1.0 - epsilon) * np.eye(4)[greedy[0]]
    np.testing.assert_allclose(share, wanted, atol=0.03)
    assert share[1] == 0.0


def test_epsilon_may_be_a_schedule_of_the_run():
    algorithm = small_dqn(epsilon=jf.Linear(1.0, 0.2, 0.5), rollout_length=1)
    seen: list[float | None] = []
    jf.learn(
        tiny.line(discrete=True),
        algorithm,
        total_steps=48,
        eval_episodes=2,
        tell=lambda line: None,
        on_metrics=lambda row: (
            seen.append(row["learn/epsilon"]) if row["kind"] == "train" else None
        ),
    )
    assert seen[0] is None  # the first tick gives the statistics
    np.testing.assert_allclose(
        seen[1:], [1.0 - 0.8 * min(tick / 6, 1.0) for tick in range(1, 12)], rtol=1e-5
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (dict(target_period=0), "target_period=0: write a positive number"),
        (dict(batch_size=65), "batch_size=65 is larger than buffer_size=64"),
        (dict(optimizer="lion"), "optimizer=lion: write one of"),
        (dict(value_head="c51"), "value_head=c51: write one of scalar, categorical, quantiles"),
        (dict(value_head="quantiles", num_atoms=1), "num_atoms=1: write a number of at least 2"),
        (
            dict(value_head="categorical", value_min=1.0, value_max=1.0),
            "value_min=1.0 is not below value_max=1.0",
        ),
        (dict(priority_exponent=-1.0), "priority_exponent=-1.0: write a number of at least 0"),
    ],
)
def test_what_does_not_fit_is_refused(options, says):
    with pytest.raises(ValueError, match=says):
        bind(small_dqn(**options), SPEC, 4)
    with pytest.raises(
        ValueError,
        match="algo=dqn does not work with the continuous actions of line: write algo=sac",
    ):
        bind(small_dqn(), tiny.line(discrete=False).spec, 4)


@pytest.mark.parametrize(
    ("options", "tau"), [({}, 0.005), ({"target_period": 1000}, 1.0), ({"tau": 0.1}, 0.1)]
)
def test_a_target_network_with_a_period_is_a_copy(options, tau):
    assert jf.dqn(**options).hyper.tau == tau
    assert jf.dqn(target_period=7, tau=0.5).hyper.tau == 0.5
