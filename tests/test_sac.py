"""SAC's targets and updates against slow NumPy references."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
import tiny

import jaxrl_fast as jf
from jaxrl_fast.algorithms.sac import sac
from jaxrl_fast.assembly import bind
from jaxrl_fast.core import Transition, stable_hash
from jaxrl_fast.learning.acting import make_acting
from jaxrl_fast.learning.algorithm import Replay, ReplayBatch
from jaxrl_fast.learning.critics import random_critics, with_dropout
from jaxrl_fast.learning.updates import PartState, init_part
from jaxrl_fast.learning.updates import update as update_part
from jaxrl_fast.numerics.normalization import normalize
from jaxrl_fast.policy.exporting import export_policy
from jaxrl_fast.replay.buffers import SampledWindows, fold_n_steps

RNG = np.random.default_rng(5)
B, N = 6, 3
SPEC = tiny.line(discrete=False).spec
HYPER = sac(
    learning_rate=0.01,
    temperature_learning_rate=0.02,
    discount=0.9,
    tau=0.1,
    target_entropy_per_action=-0.5,
    max_grad_norm=0.2,
).hyper
LOW, HIGH = -2.0, 1.0


def small_sac(**options):
    defaults = dict(
        n_step=N,
        batch_size=8,
        buffer_size=64,
        updates_per_tick=1,
        warmup_steps=0,
        policy_hidden=(3,),
        critic_hidden=(3,),
        activation="tanh",
        initial_temperature=0.4,
    )
    return sac(**defaults | options)


@pytest.fixture(scope="module")
def parts():
    agent = small_sac().build(SPEC, 4)
    states = {
        name: jax.jit(lambda key, part=part: init_part(part, key, HYPER))(jax.random.key(i))
        for i, (name, part) in enumerate(agent.parts.items())
    }
    return agent.parts, states


def windows() -> Transition:
    """``[N, B]``: some windows end early, by termination or by truncation, some never."""
    terminated, truncated = np.zeros((N, B), bool), np.zeros((N, B), bool)
    terminated[0, 0] = terminated[1, 1] = truncated[1, 2] = terminated[2, 3] = True
    obs, next_obs = RNG.normal(size=(2, N, B, 2)).astype(np.float32)
    action = RNG.uniform(LOW, HIGH, (N, B, 1)).astype(np.float32)
    reward = RNG.normal(size=(N, B)).astype(np.float32)
    return Transition(obs, action, reward, next_obs, terminated, truncated, (), ())


def folded(data: Transition) -> ReplayBatch:
    """Return the losses' inputs from them, leaves ``[1, B, ...]``."""
    sizes = Replay(capacity=0, batch_size=B, num_batches=1, warmup_steps=0, n_step=N)
    steps = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1)[None], data)
    batch = fold_n_steps(SampledWindows(steps, (), None), HYPER.discount, sizes, memory=False)
    return jax.tree.map(lambda x: x[0].swapaxes(0, 1), batch)


def numbers(tree):
    return jax.tree.map(lambda x: np.array(x, np.float64), tree)


def policy_sample(params, obs, noise):
    """Compute an action in (−1, 1) and its log-probability."""
    outputs = references.mlp(params, obs)
    mean, scale = outputs[:, :1], references.softplus(outputs[:, 1:]) + 1e-3
    raw = mean + scale * noise
    return np.tanh(raw), references.tanh_normal_log_prob(mean, scale, raw)


def q_values(params, obs, unit_action):
    inputs = np.concatenate([unit_action, obs], axis=-1)
    return np.stack([references.mlp(p, inputs)[:, 0] for p in params])


def critic_targets(data: Transition, target, actor: dict, noise) -> np.ndarray:
    temperature, wanted = np.exp(actor["temperature"]), np.zeros(B)
    for b in range(B):
        total, bootstrap, last = references.n_step(
            data.reward[:, b], data.terminated[:, b], data.truncated[:, b], HYPER.discount
        )
        next_obs = np.float64(data.next_obs[last, b])[None]
        action, log_prob = policy_sample(actor["policy"], next_obs, noise[b])
        next_value = q_values(target, next_obs, action).min(0) - temperature * log_prob
        wanted[b] = total + bootstrap * next_value[0]
    return wanted


def test_two_critic_updates_equal_numpy(parts):
    parts, states = parts
    learned = states["critic"].learned
    learned = learned._replace(target=jax.tree.map(lambda x: x + 0.3, learned.target))
    state, peers = (
        states["critic"]._replace(learned=learned),
        {name: s.learned for name, s in states.items()},
    )
    update = jax.jit(
        lambda state, data, key: update_part(
            parts["critic"], state, peers, folded(data), key, HYPER
        )
    )
    treedef = jax.tree.structure(learned.params["q"])
    leaves, slow = (
        jax.tree.leaves(numbers(learned.params)),
        jax.tree.leaves(numbers(learned.target)),
    )
    adam = references.Adam(0.01, 0.2)
    for seed in range(2):
        data, key = windows(), jax.random.key(seed)
        noise = np.float64(jax.random.normal(key, (B, 1)))
        state, metrics, _ = update(state, data, key)
        target = critic_targets(
            data, treedef.unflatten(slow), numbers(peers["actor"].params), noise
        )
        obs, unit = (
            np.float64(data.obs[0]),
            (np.float64(data.action[0]) - LOW) / (HIGH - LOW) * 2 - 1,
        )

        def loss(leaves, obs=obs, unit=unit, target=target):
            return (
                0.5 * ((q_values(treedef.unflatten(leaves), obs, unit) - target) ** 2).mean(1).sum()
            )

        np.testing.assert_allclose(metrics["critic_loss"], loss(leaves), rtol=1e-4)
        np.testing.assert_allclose(
            metrics["q_mean"], q_values(treedef.unflatten(leaves), obs, unit).mean(), rtol=1e-3
        )
        leaves = adam.step(leaves, references.gradient(loss, leaves))
        slow = [0.9 * old + 0.1 * new for old, new in zip(slow, leaves, strict=True)]
        for got, want in zip(jax.tree.leaves(tuple(state.learned)), leaves + slow, strict=True):
            np.testing.assert_allclose(got, want, atol=1e-4)


def test_metrics_of_an_actor_update_equal_numpy(parts):
    parts, states = parts
    state, critic = states["actor"], states["critic"].learned
    update = jax.jit(
        lambda data, key: update_part(
            parts["actor"], state, {"critic": critic}, folded(data), key, HYPER
        )
    )
    data, key = windows(), jax.random.key(0)
    policy, log_temperature = (
        numbers(state.learned.params["policy"]),
        np.float64(state.learned.params["temperature"]),
    )
    action, log_prob = policy_sample(
        policy, np.float64(data.obs[0]), np.float64(jax.random.normal(key, (B, 1)))
    )
    q = q_values(numbers(critic.params["q"]), np.float64(data.obs[0]), action).min(0)
    metrics = update(data, key).metrics
    loss = (np.exp(log_temperature) * log_prob - q).mean()
    np.testing.assert_allclose(metrics["policy_loss"], loss, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(metrics["entropy"], -log_prob.mean(), rtol=1e-3)
    np.testing.assert_allclose(metrics["temperature"], np.exp(log_temperature), rtol=1e-5)


OPTIONS = dict(
    num_critics=4,
    target_critics=2,
    critic_dropout=0.3,
    priority_exponent=0.6,
    critic_layer_norm=True,
)
OPTIONS |= dict(
    fixed_temperature=0.3, deviation_min=0.9, deviation_max=1.1, n_step=1, critic_hidden=(5, 4)
)


@pytest.fixture(scope="module")
def optional():
    """Return the parts with every option and their states, a batch with weights, its key, and the
    masks of a use.
    """
    algorithm = small_sac(**OPTIONS)
    parts = algorithm.build(SPEC, 4).parts
    hyper = HYPER._replace(fixed_temperature=0.3, max_grad_norm=1e6)
    states = {
        name: jax.jit(lambda key, part=part: init_part(part, key, hyper))(jax.random.key(i + 7))
        for i, (name, part) in enumerate(parts.items())
    }
    policy = jax.tree.map(lambda x: x + RNG.normal(size=x.shape), states["actor"].learned.params)
    states["actor"] = states["actor"]._replace(
        learned=states["actor"].learned._replace(params=policy)
    )
    batch = folded(windows())._replace(weight=RNG.uniform(0.2, 1.0, (1, B)).astype(np.float32))
    key, q = jax.random.key(11), parts["critic"].networks["q"]

    def masks(use: str):
        net, params = with_dropout(q, key, use), states["critic"].learned.params["q"]
        given = jnp.ones((1, B, 2)), jnp.zeros((1, B), bool), jnp.ones((1, B, 1))
        return references.dropout_masks(lambda: net.apply(params, (), *given), 4)

    return parts, states, batch, key, hyper, masks


def bounded_sample(params, obs, noise):
    """Compute an action and its log-probability; the network returns logarithms of deviations."""
    outputs = references.mlp(params, obs)
    scale = np.exp(np.minimum(np.maximum(outputs[:, 1:], np.log(0.9)), np.log(1.1)))
    raw = outputs[:, :1] + scale * noise
    return np.tanh(raw), references.tanh_normal_log_prob(outputs[:, :1], scale, raw)


def dropped_values(params, obs, unit_action, masks):
    inputs = np.concatenate([unit_action, obs], axis=-1)
    return np.stack(
        [references.mlp(p, inputs, own, 0.3)[:, 0] for p, own in zip(params, masks, strict=True)]
    )


def test_a_critic_update_with_all_options_equals_numpy(optional):
    parts, states, batch, key, hyper, masks = optional
    state, peers = states["critic"], {name: s.learned for name, s in states.items()}
    slow = jax.tree.map(lambda x: x + 0.3, state.learned.target)
    state = state._replace(learned=state.learned._replace(target=slow))
    found, metrics, priorities = jax.jit(
        lambda: update_part(parts["critic"], state, peers, batch, key, hyper)
    )()
    noise = np.float64(jax.random.normal(key, (B, 1)))
    action, log_prob = bounded_sample(
        numbers(peers["actor"].params["policy"]), np.float64(batch.next_obs[0]), noise
    )
    next_q = dropped_values(
        numbers(slow["q"]), np.float64(batch.next_obs[0]), action, masks("target")
    )
    chosen = np.asarray(jax.random.permutation(jax.random.fold_in(key, stable_hash("critics")), 4))[
        :2
    ]
    next_value = np.minimum(next_q[chosen[0]], next_q[chosen[1]]) - 0.3 * log_prob
    target = np.float64(batch.reward[0]) + np.float64(batch.bootstrap[0]) * next_value
    unit = (np.float64(batch.action[0]) - LOW) / (HIGH - LOW) * 2 - 1
    own, treedef = masks("loss"), jax.tree.structure(state.learned.params["q"])

    def values(leaves):
        return dropped_values(treedef.unflatten(leaves), np.float64(batch.obs[0]), unit, own)

    def loss(leaves):
        return 0.5 * (np.float64(batch.weight) * (values(leaves) - target) ** 2).mean(1).sum()

    leaves = jax.tree.leaves(numbers(state.learned.params))
    np.testing.assert_allclose(metrics["critic_loss"], loss(leaves), rtol=1e-4)
    np.testing.assert_allclose(priorities, np.abs(values(leaves) - target).mean(0), rtol=1e-4)
    wanted = references.Adam(0.01, 1e6).step(leaves, references.gradient(loss, leaves))
    for got, want in zip(jax.tree.leaves(found.learned.params), wanted, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4)


def test_an_actor_update_with_all_options_equals_numpy(optional):
    """The policy maximizes the mean of all critics, and the temperature is a number."""
    parts, states, batch, key, hyper, masks = optional
    state, critic = states["actor"], states["critic"].learned
    update = jax.jit(
        lambda: update_part(parts["actor"], state, {"critic": critic}, batch, key, hyper)
    )
    noise, own, obs = (
        np.float64(jax.random.normal(key, (B, 1))),
        masks("policy"),
        np.float64(batch.obs[0]),
    )
    leaves, treedef = (
        jax.tree.leaves(numbers(state.learned.params)),
        jax.tree.structure(state.learned.params["policy"]),
    )

    def loss(leaves):
        action, log_prob = bounded_sample(treedef.unflatten(leaves), obs, noise)
        return (
            0.3 * log_prob - dropped_values(numbers(critic.params["q"]), obs, action, own).mean(0)
        ).mean()

    found, metrics, _ = update()
    assert set(found.learned.params) == {"policy"}
    np.testing.assert_allclose(metrics["policy_loss"], loss(leaves), rtol=1e-3)
    np.testing.assert_allclose(metrics["temperature"], 0.3, rtol=1e-6)
    wanted = references.Adam(0.01, 1e6).step(leaves, references.gradient(loss, leaves))
    for got, want in zip(jax.tree.leaves(found.learned.params), wanted, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4)


def test_every_use_of_the_critics_drops_other_outputs(optional):
    used = [
        np.concatenate([m.ravel() for own in optional[-1](use) for m in own])
        for use in ("loss", "target", "policy")
    ]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert (used[one] != used[other]).any()


def test_critics_of_a_target_are_distinct_and_equally_frequent():
    q = jnp.arange(4.0)[:, None, None] * jnp.ones((4, 1, 2))
    chosen = jax.vmap(lambda key: random_critics(q, 2, key))(
        jax.random.split(jax.random.key(0), 3_000)
    )
    assert (chosen[..., 0] == chosen[..., 1]).all()  # the same critics for the whole batch
    pairs = np.sort(np.asarray(chosen[:, :, 0, 0]), axis=1)
    counts = np.unique(pairs, axis=0, return_counts=True)
    assert counts[0].tolist() == [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]
    np.testing.assert_allclose(counts[1], 500, atol=80)
    assert random_critics(q, 4, jax.random.key(0)) is q


def test_deviations_are_bounded_also_in_a_policy_that_is_built_again():
    algorithm = small_sac(deviation_min=0.2, deviation_max=0.25)
    again = sac(**algorithm.options)  # as `load_policy` builds it
    agent = bind(algorithm, SPEC, 4)
    learned = {"actor": init_part(agent.parts["actor"], jax.random.key(0), HYPER).learned}
    for own in (agent, bind(again, SPEC, 4)):
        given = (
            own.acting.initial_carry(4_096),
            jnp.ones((4_096, 2)),
            jnp.zeros(4_096, bool),
            jax.random.key(1),
        )
        carry, obs, first, key = given
        action = np.asarray(jax.jit(own.acting.explore)(learned, carry, obs, first, key, HYPER)[0])
        raw = np.arctanh((np.float64(action) - LOW) / (HIGH - LOW) * 2 - 1)
        assert 0.24 < raw.std() < 0.26  # the network's output is near 0, a deviation of 1


def state_noise(params, obs) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute means, deviations, and features times weights `[B, H, A]`, after section 3 of arXiv
    2005.05719.
    """
    layers = params["params"]
    features = np.tanh(references.mlp({"params": layers["features"]}, obs))
    share = features[:, :, None] * np.exp(layers["log_deviation"])
    return (
        references.mlp({"params": layers["mean"]}, features),
        np.sqrt((share**2).sum(1) + 1e-6),
        share,
    )


@pytest.fixture(scope="module")
def matrix_noise():
    """Return the parts with noise that depends on the state and is constant for three steps, and
    their states.
    """
    agent = small_sac(noise_steps=3, deviation_max=0.6, n_step=1).build(SPEC, B)
    states = {
        name: jax.jit(lambda key, part=part: init_part(part, key, HYPER))(jax.random.key(i + 3))
        for i, (name, part) in enumerate(agent.parts.items())
    }
    params = jax.tree.map(
        lambda x: x + 0.3 * RNG.normal(size=x.shape).astype(np.float32), states["actor"].learned
    )
    return agent, states | {"actor": states["actor"]._replace(learned=params)}


def test_updates_with_state_noise_equal_numpy(matrix_noise):
    agent, states = matrix_noise
    batch, key, hyper = folded(windows()), jax.random.key(2), HYPER._replace(max_grad_norm=1e6)
    peers = {name: state.learned for name, state in states.items()}
    run = jax.jit(
        lambda name: update_part(agent.parts[name], states[name], peers, batch, key, hyper),
        static_argnums=0,
    )
    noise = np.float64(jax.random.normal(key, (B, 1)))
    critic, actor = numbers(states["critic"].learned), numbers(states["actor"].learned.params)
    temperature = np.exp(actor["temperature"])

    def act(params, obs):
        mean, deviation, _ = state_noise(params, np.float64(obs))
        deviation = np.minimum(deviation, 0.6)
        raw = mean + deviation * noise
        return np.tanh(raw), references.tanh_normal_log_prob(mean, deviation, raw), deviation

    action, log_prob, _ = act(actor["policy"], batch.next_obs[0])
    next_value = (
        q_values(critic.target["q"], np.float64(batch.next_obs[0]), action).min(0)
        - temperature * log_prob
    )
    target = np.float64(batch.reward[0]) + np.float64(batch.bootstrap[0]) * next_value
    unit = (np.float64(batch.action[0]) - LOW) / (HIGH - LOW) * 2 - 1
    q = q_values(critic.params["q"], np.float64(batch.obs[0]), unit)
    np.testing.assert_allclose(
        run("critic").metrics["critic_loss"], 0.5 * ((q - target) ** 2).mean(1).sum(), rtol=1e-4
    )
    leaves, treedef = jax.tree.leaves(actor["policy"]), jax.tree.structure(actor["policy"])

    def loss(leaves):
        action, log_prob, _ = act(treedef.unflatten(leaves), batch.obs[0])
        return (
            temperature * log_prob
            - q_values(critic.params["q"], np.float64(batch.obs[0]), action).min(0)
        ).mean()

    deviation = act(actor["policy"], batch.obs[0])[2]
    assert (deviation == 0.6).any() and (deviation < 0.6).any(), (
        "the bound acts on some steps and not on others"
    )
    found, metrics, _ = run("actor")
    np.testing.assert_allclose(metrics["policy_loss"], loss(leaves), rtol=1e-3)
    wanted = references.Adam(0.01, 1e6).step(leaves, references.gradient(loss, leaves))
    for got, want in zip(jax.tree.leaves(found.learned.params["policy"]), wanted, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4)


def test_exploration_repeats_a_matrix_of_noise_for_some_steps(matrix_noise):
    acting = make_acting(matrix_noise[0])
    learned = {"actor": matrix_noise[1]["actor"].learned}
    explore = jax.jit(
        lambda carry, obs, key: acting.explore(learned, carry, obs, jnp.zeros(B, bool), key, HYPER)[
            :2
        ]
    )
    carry, matrices = acting.initial_carry(B), []
    for step in range(7):
        obs = RNG.normal(size=(B, 2)).astype(np.float32)
        action, carry = explore(carry, obs, jax.random.key(step))
        matrices.append(np.float64(carry.choice.noise))
        mean, deviation, share = state_noise(
            numbers(learned["actor"].params["policy"]), np.float64(obs)
        )
        noise = (share * matrices[-1]).sum(1) * np.minimum(deviation, 0.6) / deviation
        np.testing.assert_allclose(
            action, LOW + (np.tanh(mean + noise) + 1) * 1.5, rtol=1e-4, atol=1e-5
        )
    assert [(matrices[i] == matrices[i + 1]).all() for i in range(6)] == [True, True, False] * 2
    assert len(np.unique(matrices[0])) == len(np.unique(matrices[3])) == B * 3, (
        "each environment has a separate matrix"
    )
    given = (
        learned,
        acting.initial_carry(4_000),
        jnp.ones((4_000, 2)),
        jnp.zeros(4_000, bool),
        jax.random.key(9),
        HYPER,
    )
    many = np.asarray(jax.jit(lambda: acting.explore(*given)[1].choice.noise)())
    np.testing.assert_allclose([many.mean(), many.std()], [0.0, 1.0], atol=0.03)


def test_a_policy_with_state_noise_acts_by_its_mean_also_from_its_files(tmp_path):
    algorithm = small_sac(noise_steps=3, rollout_length=2, buffer_size=128)
    result = jf.learn(
        tiny.line(discrete=False),
        algorithm,
        total_steps=32,
        eval_sample=True,
        tell=lambda line: None,
    )
    jf.save_policy(result.policy, tmp_path)
    policy, obs = jf.load_policy(tmp_path), RNG.normal(size=(9, 2)).astype(np.float32)
    seen = np.float64(normalize(policy.params.obs, obs))
    mean = state_noise(numbers(policy.params.parts["actor"]), seen)[0]
    np.testing.assert_allclose(policy(obs), LOW + (np.tanh(mean) + 1) * 1.5, rtol=1e-4, atol=1e-5)
    for name in ("jax", "onnx"):
        assert "by at most" in export_policy(policy, tmp_path, name)[1]


def test_a_critic_loss_of_ones_own_is_used(parts):
    _, states = parts
    part = (
        small_sac(critic_loss=lambda q, target: 0.0 * q * target + 7.0)
        .build(SPEC, 4)
        .parts["critic"]
    )
    peers = {name: s.learned for name, s in states.items()}
    state, metrics, _ = jax.jit(
        lambda d: update_part(part, states["critic"], peers, folded(d), jax.random.key(0), HYPER)
    )(windows())
    assert metrics["critic_loss"] == 14.0  # two critics
    assert isinstance(state, PartState)
    for got, want in zip(
        jax.tree.leaves(state.learned.params),
        jax.tree.leaves(states["critic"].learned.params),
        strict=True,
    ):
        np.testing.assert_array_equal(got, want)


def test_actions_stay_within_their_bounds_and_greedy_is_the_mode(parts):
    acting = bind(small_sac(), SPEC, 4).acting
    learned = {"actor": parts[1]["actor"].learned}
    obs, first, key = jnp.ones((512, 2)), jnp.zeros(512, bool), jax.random.key(0)
    action = np.asarray(
        jax.jit(acting.explore)(learned, acting.initial_carry(512), obs, first, key, HYPER)[0]
    )
    assert LOW <= action.min() < -1.0
    assert 0.5 < action.max() <= HIGH
    greedy = np.asarray(
        jax.jit(acting.greedy)(
            acting.greedy_weights(learned), acting.greedy_carry(512), obs, first, key
        )[0]
    )
    mean = references.mlp(numbers(learned["actor"].params["policy"]), np.ones((512, 2)))[:, :1]
    np.testing.assert_allclose(greedy, LOW + (np.tanh(mean) + 1) * 1.5, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(batch_size=65), "batch_size=65 is larger than buffer_size=64"),
        (dict(warmup_steps=65), "warmup_steps=65 exceeds buffer_size=64"),
        (dict(n_step=16), r"too few for windows of 16 \(burn-in, sequence and n_step\)"),
        (dict(rollout_length=17), "rollout_length=17.*buffer_size of at least 68"),
        (dict(num_critics=0), "num_critics=0: write a positive number"),
        (dict(target_critics=3), r"target_critics=3: write 1 to 2 \(num_critics\)"),
        (dict(target_critics=0), "target_critics=0: write 1 to 2"),
        (dict(critic_dropout=1.0), "critic_dropout=1.0: write a number of at most 0.9"),
        (dict(fixed_temperature=-0.1), "fixed_temperature=-0.1: write a number of at least 0"),
        (dict(priority_exponent=-1.0), "priority_exponent=-1.0: write a number of at least 0"),
        (
            dict(deviation_min=2.0, deviation_max=2.0),
            "deviation_min=2 is not below deviation_max=2",
        ),
        (dict(deviation_min=8.0), "deviation_min=8 is not below deviation_max=7.389"),
        (dict(deviation_max=0.0), "deviation_max=0.0: write a number of at least 1e-08"),
        (dict(noise_steps=-1), "noise_steps=-1: write a number of at least 0"),
        (
            dict(noise_steps=4, policy_hidden=()),
            "last hidden layer: write at least one size in policy_hidden",
        ),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        bind(small_sac(**options), SPEC, 4)


def test_a_line_tells_that_the_temperature_is_at_its_bound():
    told: list[str] = []
    sizes: dict[str, Any] = dict(
        batch_size=8, buffer_size=64, warmup_steps=8, policy_hidden=(4,), critic_hidden=(4,)
    )
    unreachable = jf.sac(target_entropy_per_action=100.0, temperature_learning_rate=5.0, **sizes)
    jf.learn(
        tiny.line(discrete=False), unreachable, total_steps=120, eval_episodes=2, tell=told.append
    )
    assert len([line for line in told if "the temperature is at its bound" in line]) == 1


def test_a_fixed_temperature_has_no_bound_to_tell_of():
    told: list[str] = []
    sizes: dict[str, Any] = dict(
        batch_size=8, buffer_size=64, warmup_steps=8, policy_hidden=(4,), critic_hidden=(4,)
    )
    jf.learn(
        tiny.line(discrete=False),
        jf.sac(fixed_temperature=1e-9, **sizes),
        total_steps=60,
        tell=told.append,
    )
    assert not [line for line in told if "bound" in line]


def test_one_seed_at_the_bound_of_the_temperature_is_told_of():
    told: list[str] = []
    sizes: dict[str, Any] = dict(
        batch_size=8, buffer_size=64, warmup_steps=8, policy_hidden=(4,), critic_hidden=(4,)
    )
    algorithm = jf.sac(target_entropy_per_action=100.0, temperature_learning_rate=5.0, **sizes)

    def only_the_first_rises(state, scores):
        rates = state.hyper._replace(temperature_learning_rate=np.float32([5.0, 0.0]))
        return state._replace(hyper=rates)

    still = algorithm._replace(hyper=algorithm.hyper._replace(temperature_learning_rate=0.0))
    options: dict[str, Any] = dict(
        num_seeds=2, between_chunks=only_the_first_rises, tell=told.append, eval_every=0
    )
    jf.learn(tiny.line(discrete=False), still, total_steps=120, **options)
    assert len([line for line in told if "the temperature is at its bound" in line]) == 1
