"""FlashSAC's updates against slow NumPy references: its weight constraint, its noise, its reward
normalization.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
import tiny
from test_probes import play, train

import jaxrl_fast as jf
from jaxrl_fast.assembly import bind, build_graph
from jaxrl_fast.core import Transition
from jaxrl_fast.learning.algorithm import ReplayBatch
from jaxrl_fast.learning.updates import init_part, trainable, update
from jaxrl_fast.networks.network import hold_unit_norm
from jaxrl_fast.numerics.normalization import RunningStats, Statistics, scale_experience

RNG = np.random.default_rng(4)
B, GAMMA, NUM_ATOMS = 7, 0.9, 5
ATOMS = np.linspace(-2.0, 2.0, NUM_ATOMS)
SPEC = tiny.line(discrete=False).spec
LOW, HIGH = (float(bound[0]) for bound in (SPEC.action.low, SPEC.action.high))


def small_flash_sac(**options):
    sizes = dict(
        policy_hidden=(2,), critic_hidden=(3, 3), batch_size=8, buffer_size=64, updates_per_tick=1
    )
    rates = dict(
        learning_rate=0.01,
        temperature_learning_rate=0.02,
        discount=GAMMA,
        tau=0.1,
        max_grad_norm=0.2,
    )
    values = dict(num_atoms=NUM_ATOMS, max_return=2.0, initial_temperature=0.3, warmup_steps=0)
    return jf.flash_sac(**sizes | rates | values | options)


def batch() -> ReplayBatch:
    obs, next_obs = RNG.normal(size=(2, 1, B, 2)).astype(np.float32)
    action = RNG.uniform(LOW, HIGH, (1, B, 1)).astype(np.float32)
    reward = RNG.normal(size=(1, B)).astype(np.float32)
    bootstrap = np.float32(GAMMA) * (RNG.random((1, B)) < 0.7)
    return ReplayBatch(obs, action, reward, bootstrap.astype(np.float32), next_obs, {})


def numbers(tree):
    return jax.tree.map(lambda x: np.array(x, np.float64), tree)


def residual(params: dict, x: np.ndarray, *, learning: bool) -> tuple[np.ndarray, dict]:
    """Compute the torso of arXiv 2604.04539 on ``[N, F]``, and the means and variances of its batch
    norms.
    """
    layers, seen = params["params"], {}

    def normalized(i: int, x: np.ndarray) -> np.ndarray:
        own, running = layers[f"BatchNorm_{i}"], params["batch_stats"][f"BatchNorm_{i}"]
        seen[f"BatchNorm_{i}"] = {"mean": x.mean(0), "var": x.var(0)}
        used = seen[f"BatchNorm_{i}"] if learning else running
        return (x - used["mean"]) / np.sqrt(used["var"] + 1e-5) * own["scale"] + own["bias"]

    x = normalized(0, x) @ layers["Dense_0"]["kernel"]
    blocks = (len(layers) - 4) // 4
    for i in range(1, 2 * blocks, 2):
        inside = np.maximum(normalized(i, x @ layers[f"Dense_{i}"]["kernel"]), 0.0)
        x = x + np.maximum(normalized(i + 1, inside @ layers[f"Dense_{i + 1}"]["kernel"]), 0.0)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * layers["RMSNorm_0"]["scale"]
    last = layers[f"Dense_{2 * blocks + 1}"]
    return x @ last["kernel"] + last["bias"], seen


def policy(params, obs, *, learning: bool):
    outputs, seen = residual(params, np.float64(obs), learning=learning)
    return outputs[:, :1], references.softplus(outputs[:, 1:]) + 1e-3, seen


def critics(params, obs, unit, *, learning: bool):
    inputs = np.concatenate([unit, np.float64(obs)], axis=-1)
    outputs, seen = zip(*[residual(p, inputs, learning=learning) for p in params], strict=True)
    return np.stack(outputs), seen


def probabilities(outputs):
    return np.exp(references.log_softmax(outputs))


def projected(positions, chances):
    """Compute algorithm 1 of arXiv 1707.06887 for one sample."""
    target, spacing = np.zeros(NUM_ATOMS), ATOMS[1] - ATOMS[0]
    for position, chance in zip(positions, chances, strict=True):
        place = (np.clip(position, ATOMS[0], ATOMS[-1]) - ATOMS[0]) / spacing
        below = min(int(place), NUM_ATOMS - 2)
        target[below] += chance * (below + 1 - place)
        target[below + 1] += chance * (place - below)
    return target


def made():
    algorithm = small_flash_sac()
    parts, hyper = algorithm.build(SPEC, 4).parts, algorithm.hyper
    states = {}
    for i, (name, part) in enumerate(parts.items()):
        state = jax.jit(lambda key, part=part: init_part(part, key, hyper))(jax.random.key(i))
        moved = jax.tree.map(
            lambda x: x + 0.2 * RNG.random(x.shape).astype(np.float32), state.learned
        )
        states[name] = state._replace(learned=moved)
    return parts, hyper, states


def check_step(before, after, grads, adam, seen) -> None:
    """Apply Adam's step and then the constraint; running statistics change by a hundredth."""
    leaves = [np.float64(x) for x in jax.tree.leaves(trainable(before))]
    stepped = jax.tree.unflatten(jax.tree.structure(trainable(before)), adam.step(leaves, grads))
    for got, want in zip(
        jax.tree.leaves(trainable(after)), jax.tree.leaves(hold_by_hand(stepped)), strict=True
    ):
        np.testing.assert_allclose(got, want, atol=2e-4)
    networks = (
        zip(before, after, seen, strict=True)
        if isinstance(before, tuple)
        else [(before, after, seen)]
    )
    for old, new, own in networks:
        wanted = jax.tree.map(lambda x, y: 0.99 * x + 0.01 * y, numbers(old["batch_stats"]), own)
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), new["batch_stats"], wanted
        )


def hold_by_hand(params):
    if isinstance(params, tuple):
        return tuple(map(hold_by_hand, params))
    layers = {}
    for name, layer in params["params"].items():
        if "kernel" in layer:
            layers[name] = {
                **layer,
                "kernel": layer["kernel"] / np.linalg.norm(layer["kernel"], axis=0),
            }
        else:
            size = np.sqrt(sum((x**2).sum() for x in layer.values()))
            layers[name] = {
                key: x * np.sqrt(layer["scale"].size) / size for key, x in layer.items()
            }
    return {"params": layers}


def with_weights(params, leaves):
    """Return the network with other weights and the same statistics."""
    weights = jax.tree.unflatten(jax.tree.structure(trainable(params)), leaves)
    if isinstance(params, tuple):
        return tuple(
            {**own, "batch_stats": p["batch_stats"]} for own, p in zip(weights, params, strict=True)
        )
    return {**weights, "batch_stats": params["batch_stats"]}


def test_a_critic_update_equals_numpy():
    """Steps and next observations form one batch; the target is the distribution of the lower
    target critic, with an entropy cost.
    """
    parts, hyper, states = made()
    state, actor, data, key = states["critic"], states["actor"].learned, batch(), jax.random.key(5)
    got, metrics, _ = jax.jit(
        lambda state: update(parts["critic"], state, {"actor": actor}, data, key, hyper)
    )(state)
    params, temperature = (
        numbers(state.learned.params["q"]),
        np.exp(float(actor.params["temperature"])),
    )
    mean, scale, _ = policy(numbers(actor.params["policy"]), data.next_obs[0], learning=False)
    raw = mean + scale * np.float64(jax.random.normal(key, (1, B, 1)))[0]
    price = temperature * references.tanh_normal_log_prob(mean, scale, raw)
    obs = np.concatenate([data.obs[0], data.next_obs[0]])
    unit = np.concatenate([(np.float64(data.action[0]) - LOW) / (HIGH - LOW) * 2 - 1, np.tanh(raw)])
    following = probabilities(
        critics(numbers(state.learned.target["q"]), obs, unit, learning=True)[0]
    )[:, B:]
    lower = (following @ ATOMS).argmin(0)
    assert set(lower) == {0, 1}
    reward, bootstrap = np.float64(data.reward[0]), np.float64(data.bootstrap[0])
    target = np.stack(
        [
            projected(reward[i] + bootstrap[i] * (ATOMS - price[i]), following[lower[i], i])
            for i in range(B)
        ]
    )

    def loss(leaves):
        outputs, _ = critics(with_weights(params, leaves), obs, unit, learning=True)
        return -(target * references.log_softmax(outputs[:, :B])).sum(-1).mean()

    leaves = jax.tree.leaves(trainable(params))
    np.testing.assert_allclose(metrics["critic_loss"], loss(leaves), rtol=1e-4)
    grads, adam = references.gradient(loss, leaves), references.Adam(0.01, 0.2)
    seen = critics(params, obs, unit, learning=True)[1]
    check_step(state.learned.params["q"], got.learned.params["q"], grads, adam, seen)
    jax.tree.map(
        lambda slow, old, new: np.testing.assert_allclose(slow, 0.9 * old + 0.1 * new, atol=1e-5),
        got.learned.target["q"],
        state.learned.target["q"],
        got.learned.params["q"],
    )


def test_an_actor_update_equals_numpy():
    """The policy sees steps and next observations in one batch and trains on the steps; critics run
    in inference.
    """
    parts, hyper, states = made()
    state, critic, data, key = states["actor"], states["critic"].learned, batch(), jax.random.key(6)
    got, metrics, _ = jax.jit(
        lambda state: update(parts["actor"], state, {"critic": critic}, data, key, hyper)
    )(state)
    params, q = numbers(state.learned.params["policy"]), numbers(critic.params["q"])
    log_temperature = float(state.learned.params["temperature"])
    obs, noise = (
        np.concatenate([data.obs[0], data.next_obs[0]]),
        np.float64(jax.random.normal(key, (1, B, 1)))[0],
    )

    def terms(leaves):
        mean, scale, _ = policy(with_weights(params, leaves), obs, learning=True)
        raw = mean[:B] + scale[:B] * noise
        log_prob = references.tanh_normal_log_prob(mean[:B], scale[:B], raw)
        outputs, _ = critics(q, data.obs[0], np.tanh(raw), learning=False)
        return log_prob, (probabilities(outputs) @ ATOMS).min(0)

    def loss(leaves):
        log_prob, value = terms(leaves)
        return (np.exp(log_temperature) * log_prob - value).mean()

    leaves = jax.tree.leaves(trainable(params))
    np.testing.assert_allclose(metrics["policy_loss"], loss(leaves), rtol=1e-4, atol=1e-5)
    grads, adam = references.gradient(loss, leaves), references.Adam(0.01, 0.2)
    check_step(
        state.learned.params["policy"],
        got.learned.params["policy"],
        grads,
        adam,
        policy(params, obs, learning=True)[2],
    )
    above = -terms(leaves)[0].mean() > hyper.target_entropy_per_action
    change = float(got.learned.params["temperature"]) - log_temperature
    np.testing.assert_allclose(change, -0.02 if above else 0.02, rtol=1e-3)  # Adam's first step


def test_a_network_starts_within_the_constraint_and_the_constraint_holds_itself():
    parts, hyper, _ = made()
    for part in parts.values():
        params = jax.jit(lambda key, part=part: init_part(part, key, hyper))(
            jax.random.key(0)
        ).learned.params
        held = hold_unit_norm(params)
        for got, want in zip(jax.tree.leaves(held), jax.tree.leaves(params), strict=True):
            np.testing.assert_allclose(got, want, atol=1e-6)


def test_noise_stays_for_as_many_steps_as_zipf_says_for_each_environment_apart():
    num_envs, steps = 64, 400
    agent = bind(small_flash_sac(max_repeats=4, buffer_size=1_024), SPEC, num_envs)
    learned = {"actor": init_part(agent.parts["actor"], jax.random.key(0), agent.hyper).learned}
    obs, first = jnp.ones((num_envs, 2)), jnp.zeros(num_envs, bool)

    def step(carry, key):
        action, carry, _ = agent.acting.explore(learned, carry, obs, first, key, agent.hyper)
        return carry, action[:, 0]

    keys = jax.random.split(jax.random.key(1), steps)
    action = np.asarray(
        jax.jit(lambda: jax.lax.scan(step, agent.acting.initial_carry(num_envs), keys))()[1]
    )
    runs = []
    for env in range(num_envs):
        changes = np.flatnonzero(np.diff(action[:, env])) + 1
        runs += list(np.diff(changes))
    share = np.bincount(runs, minlength=5)[1:5] / len(runs)
    chances = np.arange(1, 5) ** -2.0
    assert max(runs) <= 4
    np.testing.assert_allclose(share, chances / chances.sum(), atol=0.02)
    assert len(np.unique(action[0])) == num_envs
    same = agent.acting.greedy(
        agent.acting.greedy_weights(learned),
        agent.acting.greedy_carry(num_envs),
        obs,
        first,
        keys[0],
    )[0]
    assert len(np.unique(np.asarray(same))) == 1


def test_rewards_are_so_small_that_no_return_leaves_the_atoms():
    rewards = np.float32([[1.0, -3.0]])
    zeros = jnp.zeros((1, 2))
    data = Transition(zeros, zeros, rewards, zeros, zeros, zeros, zeros, ())
    returns = RunningStats(jnp.int32(4), jnp.float32(0.0), jnp.float32(9.0))  # a deviation of 3
    for largest, divided_by in ((4.0, 3.0), (60.0, 12.0)):
        statistics = Statistics(
            RunningStats(zeros[0], zeros[0], zeros[0]), returns, jnp.float32(largest)
        )
        scaled = scale_experience(data, statistics, jnp.float32(1.0), True, max_return=5.0)
        np.testing.assert_allclose(scaled.reward, rewards / divided_by, rtol=1e-6)


def test_the_largest_return_is_kept():
    graph, _ = build_graph(tiny.line(discrete=False), small_flash_sac(discount=0.5))
    statistics = next(f for f in graph.fragments if f.name == "statistics")
    private = statistics.init(jax.random.key(0))._replace(discounted=jnp.zeros(2))
    hyper, none = small_flash_sac(discount=0.5).hyper, jnp.zeros((3, 2), bool)
    for reward, largest in (
        ([[1, 0], [-2, -4], [3, 0]], 4.0),
        ([[0, 1], [0, 0], [0, 0]], 4.0),
        ([[9, 0]] * 3, 15.8),
    ):
        obs, reward = jnp.zeros((3, 2, 2)), jnp.float32(reward)
        rollout = Transition(obs, reward, reward, obs, none, none, none, ())
        private, outputs, _ = statistics.step(
            private, {"rollout": rollout}, hyper, jax.random.key(0)
        )
        assert float(outputs["statistics"].largest) == pytest.approx(largest, rel=0.02)


@pytest.mark.usefixtures("optimized")
def test_the_best_policy_of_the_probe_is_found():
    """A varying observation; with a constant one, batch norms divide by a deviation of 0."""
    algorithm = jf.flash_sac(
        learning_rate=jf.Linear(3e-3, 0.0),
        temperature_learning_rate=1e-2,
        initial_temperature=0.1,
        target_entropy_per_action=-2.0,
        discount=0.8,
        tau=0.05,
        num_atoms=41,
        updates_per_tick=16,
        batch_size=64,
        buffer_size=8_000,
        warmup_steps=256,
        policy_hidden=(16,),
        critic_hidden=(32,),
    )
    trained = train(("observation_continuous",), algorithm, 4_000)
    assert float(play(lambda names: trained, trained.names)[1][0]) == pytest.approx(0.0, abs=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(policy_delay=0), "policy_delay=0: write a positive number"),
        (dict(max_repeats=0), "max_repeats=0: write a positive number"),
        (dict(num_atoms=1), "num_atoms=1 and max_return=2.0: write such as 101 and 5.0"),
        (dict(max_return=0.0), "max_return=0.0: write a number of at least"),
        (
            dict(critic_hidden=(4, 8)),
            r"residual blocks of sizes \[4, 8\]: write at least one size, all equal",
        ),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        bind(small_flash_sac(**options), SPEC, 4)


def test_discrete_actions_are_refused():
    with pytest.raises(
        ValueError,
        match="algo=flash_sac does not work with the discrete actions of line: write algo=",
    ):
        bind(small_flash_sac(), tiny.line(discrete=True).spec, 4)
