"""Targets and losses of algorithms, where steps terminate and where they are truncated, against
slow NumPy references.

Here are the algorithms whose updates no other file compares: PPO's targets, FastTD3, REPPO, IQL,
TD3+BC and BC.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
import tiny

import jaxrl_fast as jf
from jaxrl_fast.algorithms import ppo
from jaxrl_fast.algorithms.multi_agent import TAKES_PART, mean_over_agents, targets_of_agents
from jaxrl_fast.algorithms.pqn_vdn import team_targets
from jaxrl_fast.algorithms.td3_bc import NEXT_ACTION
from jaxrl_fast.core import OUT, Extras, Transition
from jaxrl_fast.learning.algorithm import Learned, OnPolicyBatch, ReplayBatch, Values, init_params

RNG = np.random.default_rng(1)
T, B, GAMMA = 4, 5, 0.9
SPEC = tiny.line(discrete=False).spec
LOW, HIGH = (float(bound[0]) for bound in (SPEC.action.low, SPEC.action.high))
ATOMS = np.linspace(-2.0, 2.0, 5)
KEY = jax.random.key(7)
REPLAYED = dict(batch_size=8, buffer_size=64, warmup_steps=0, updates_per_tick=1, discount=GAMMA)
SMALL = dict(policy_hidden=(3,), critic_hidden=(3,), activation="tanh")


def replayed() -> ReplayBatch:
    obs, next_obs = RNG.normal(size=(2, 1, B, 2)).astype(np.float32)
    action = RNG.uniform(LOW, HIGH, (1, B, 1)).astype(np.float32)
    reward = RNG.normal(size=(1, B)).astype(np.float32)
    bootstrap = np.float32(GAMMA) * np.float32([[1.0, 0.0, 1.0, 1.0, 0.0]])
    return ReplayBatch(obs, action, reward, bootstrap, next_obs, {})


def rollout() -> Transition:
    obs, next_obs = RNG.normal(size=(2, T, B, 2)).astype(np.float32)
    terminated, truncated, no = np.zeros((3, T, B), bool)
    terminated[1, 0] = terminated[-1, 2] = truncated[2, 1] = truncated[-1, 3] = True
    reward, action = RNG.normal(size=(T, B)), RNG.uniform(LOW, HIGH, (T, B, 1))
    outcome = reward.astype(np.float32), next_obs, terminated, truncated
    return Transition(obs, action.astype(np.float32), *outcome, no, Extras({}, {}))


def made(algorithm: jf.Algorithm, spec: jf.EnvSpec = SPEC):
    """Return the parts of an algorithm, and `Learned` with random params by part, for which nothing
    is compiled.
    """
    parts = algorithm.build(spec, B).parts

    def drawn(shapes):
        return jax.tree.map(lambda s: 0.7 * RNG.normal(size=s.shape).astype(np.float32), shapes)

    learned = {}
    for name, part in parts.items():
        params = drawn(jax.eval_shape(lambda part=part: init_params(part, KEY)))
        learned[name] = Learned(params, drawn({target: params[target] for target in part.targets}))
    return parts, learned


def numbers(tree):
    return jax.tree.map(lambda x: np.array(x, np.float64), tree)


def check(part, own, peers, data, hyper, losses) -> None:
    """Compare losses and the slopes of losses with slow functions ``(params) -> loss``, by network
    and metric.
    """
    found = jax.jit(part.gradients)(own, peers, data, KEY, hyper)
    for (network, metric), loss in losses.items():
        params = numbers(own.params[network])
        np.testing.assert_allclose(
            found.metrics[metric], loss(params), rtol=2e-4, atol=1e-5, err_msg=metric
        )
        direction = jax.tree.map(lambda x: RNG.normal(size=x.shape), params)
        above, below = (
            loss(jax.tree.map(lambda x, d, h=h: x + h * d, params, direction))
            for h in (1e-5, -1e-5)
        )
        pairs = zip(jax.tree.leaves(found.grads[network]), jax.tree.leaves(direction), strict=True)
        slope = sum(np.sum(np.float64(gradient) * d) for gradient, d in pairs)
        np.testing.assert_allclose(
            slope, (above - below) / 2e-5, rtol=2e-3, atol=1e-4, err_msg=metric
        )


def smoothed(action: np.ndarray) -> np.ndarray:
    """Add TD3's noise to the target's action, clipped as the noise is; some actions reach a bound."""
    noisy = action + np.clip(0.4 * noise(action.shape), -0.3, 0.3)
    assert np.abs(noisy).max() > 1.0
    return np.clip(noisy, -1.0, 1.0)


def bolder(learned: Learned) -> Learned:
    return jax.tree.map(lambda x: 3.0 * x, learned)


def unit(action) -> np.ndarray:
    return (np.float64(action) - LOW) / (HIGH - LOW) * 2 - 1


def mlp(params, obs) -> np.ndarray:
    return references.mlp(params, np.float64(obs))


def q_outputs(params, obs, action) -> np.ndarray:
    """Compute the outputs of an ensemble's networks, or of a single network."""
    inputs = np.concatenate([action, np.float64(obs)], axis=-1)
    return (
        np.stack([references.mlp(p, inputs) for p in params])
        if isinstance(params, tuple)
        else mlp(params, inputs)
    )


def probabilities(outputs) -> np.ndarray:
    return np.exp(references.log_softmax(outputs))


def projected(positions: np.ndarray, chances: np.ndarray) -> np.ndarray:
    """Compute algorithm 1 of arXiv 1707.06887 for one sample."""
    target, spacing = np.zeros(len(ATOMS)), ATOMS[1] - ATOMS[0]
    for position, chance in zip(positions, chances, strict=True):
        place = (np.clip(position, ATOMS[0], ATOMS[-1]) - ATOMS[0]) / spacing
        below = min(int(place), len(ATOMS) - 2)
        target[below] += chance * (below + 1 - place)
        target[below + 1] += chance * (place - below)
    return target


def noise(size: tuple[int, ...]) -> np.ndarray:
    return np.float64(jax.random.normal(KEY, size))


def test_advantages_of_ppo_bootstrap_truncated_steps_and_no_terminated_ones():
    steps, values = rollout(), Values(*RNG.normal(size=(2, T, B)).astype(np.float32))
    hyper = jf.ppo(discount=GAMMA, gae_lambda=0.8).hyper
    got = ppo.targets(values, jax.tree.map(jnp.asarray, steps), hyper)
    for b in range(B):
        own = (
            x[:, b]
            for x in (steps.reward, steps.terminated, steps.truncated, values.now, values.next)
        )
        want = references.gae(*own, GAMMA, 0.8)
        np.testing.assert_allclose(got["advantage"][:, b], want, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(
            got["value_target"][:, b], want + values.now[:, b], rtol=1e-4, atol=1e-5
        )


def rollout_of_agents(shared: bool) -> Transition:
    """Draw a rollout of two agents, of which some are out, and then get another reward that must
    not count.
    """
    steps = rollout()
    out, next_out = RNG.random((2, T, B, 2)) < 0.3
    reward = steps.reward if shared else RNG.normal(size=(T, B, 2)).astype(np.float32)
    steps = steps._replace(
        obs={OUT: out},
        next_obs={OUT: next_out},
        reward=reward,
        action=np.zeros((T, B, 2), np.int32),
    )
    return jax.tree.map(jnp.asarray, steps)


@pytest.mark.parametrize("shared", [False, True])
def test_the_targets_of_a_team_stop_with_its_episode(shared: bool):
    steps, values = (
        rollout_of_agents(shared),
        Values(*RNG.normal(size=(2, T, B)).astype(np.float32)),
    )
    got = team_targets(values, steps, jf.pqn_vdn(discount=GAMMA, q_lambda=0.7).hyper)["q_target"]
    reward = steps.reward if shared else np.where(steps.obs[OUT], 0.0, steps.reward).sum(-1)
    for b in range(B):
        ends = steps.terminated[:, b], steps.truncated[:, b]
        want = references.lambda_return(reward[:, b], *ends, values.next[:, b], GAMMA, 0.7)
        np.testing.assert_allclose(got[:, b], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shared", [False, True])
def test_the_targets_of_an_agent_stop_where_it_leaves_or_the_episode_ends(shared: bool):
    steps, values = (
        rollout_of_agents(shared),
        Values(*RNG.normal(size=(2, T, B, 2)).astype(np.float32)),
    )
    spec = SPEC._replace(num_agents=2, shared_reward=shared)
    got = targets_of_agents(spec)(values, steps, jf.ppo(discount=GAMMA, gae_lambda=0.8).hyper)
    np.testing.assert_array_equal(got[TAKES_PART], ~steps.obs[OUT])
    for b, agent in np.ndindex(B, 2):
        terminated = steps.terminated[:, b] | (
            False if shared else steps.next_obs[OUT][:, b, agent]
        )
        reward = steps.reward[:, b] if shared else steps.reward[:, b, agent]
        own = values.now[:, b, agent], values.next[:, b, agent]
        want = references.gae(reward, terminated, steps.truncated[:, b], *own, GAMMA, 0.8)
        np.testing.assert_allclose(got["advantage"][:, b, agent], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("separate", [False, True])
def test_a_mean_over_agents_leaves_out_those_that_are_out(separate: bool):
    x, takes_part = RNG.normal(size=(T, B, 2)).astype(np.float32), RNG.random((T, B, 2)) < 0.6
    batch = OnPolicyBatch((), (), (), {}, {}, {TAKES_PART: jnp.asarray(takes_part)})
    got = mean_over_agents(separate=separate, masked=True)(jnp.asarray(x), batch)
    each = [x[..., agent][takes_part[..., agent]].mean() for agent in range(2)]
    np.testing.assert_allclose(
        np.ravel(got), each if separate else [x[takes_part].mean()], rtol=1e-5
    )
    got = mean_over_agents(separate=separate, masked=False)(jnp.asarray(x), batch)
    np.testing.assert_allclose(
        np.ravel(got), x.mean((0, 1)) if separate else [x.mean()], rtol=1e-4, atol=1e-6
    )


def test_the_critics_of_fast_td3_learn_the_distribution_of_the_lower_one():
    rates = dict(
        target_noise=0.4, target_noise_clip=0.3, num_atoms=5, value_min=-2.0, value_max=2.0
    )
    algorithm = jf.fast_td3(**REPLAYED, **SMALL, **rates)
    parts, learned = made(algorithm)
    learned["actor"] = bolder(learned["actor"])
    data, slow, actor = (
        replayed(),
        numbers(learned["critic"].target["q"]),
        numbers(learned["actor"].params["policy"]),
    )
    action = smoothed(np.tanh(mlp(actor, data.next_obs)))
    following = probabilities(q_outputs(slow, data.next_obs, action))[:, 0]
    lower = (following * ATOMS).sum(-1).argmin(0)
    assert 0 < lower.sum() < B
    wanted = np.stack(
        [
            projected(data.reward[0, b] + data.bootstrap[0, b] * ATOMS, following[lower[b], b])
            for b in range(B)
        ]
    )

    def critic_loss(params):
        return (
            -np.sum(
                wanted
                * references.log_softmax(q_outputs(params, data.obs, unit(data.action)))[:, 0]
            )
            / B
        )

    def policy_loss(params):
        outputs = q_outputs(
            numbers(learned["critic"].params["q"]), data.obs, np.tanh(mlp(params, data.obs))
        )
        return -(probabilities(outputs) * ATOMS).sum(-1).min(0).mean()

    check(
        parts["critic"],
        learned["critic"],
        learned,
        data,
        algorithm.hyper,
        {("q", "critic_loss"): critic_loss},
    )
    check(
        parts["actor"],
        learned["actor"],
        learned,
        data,
        algorithm.hyper,
        {("policy", "policy_loss"): policy_loss},
    )


def small_reppo() -> jf.Algorithm:
    rates = dict(
        discount=GAMMA,
        return_lambda=0.7,
        kl_bound=0.3,
        max_return=2.0,
        num_atoms=5,
        layer_norm=False,
    )
    return jf.reppo(**SMALL, **rates, rollout_length=T, num_minibatches=1, num_epochs=1)


def normal_of(outputs) -> tuple[np.ndarray, np.ndarray]:
    return outputs[..., :1], references.softplus(outputs[..., 1:]) + 1e-3


def shares_around(target: float) -> np.ndarray:
    """Compute the shares of a normal with the deviation 0.75 bins, of the bins around `ATOMS`."""
    spacing = ATOMS[1] - ATOMS[0]
    edges = np.append(ATOMS - spacing / 2, ATOMS[-1] + spacing / 2)
    places = (edges - np.clip(target, ATOMS[0], ATOMS[-1])) / (0.75 * spacing)
    shares = np.diff([0.5 * (1.0 + math.erf(place / math.sqrt(2.0))) for place in places])
    return shares / shares.sum()


def test_the_critic_of_reppo_learns_soft_lambda_returns():
    algorithm = small_reppo()
    parts, learned = made(algorithm)
    steps, actor, own = (
        rollout(),
        numbers(learned["actor"].params),
        numbers(learned["critic"].params["q"]),
    )
    data = OnPolicyBatch(steps.obs, steps.action, steps.first, {}, {}, {}, steps)
    mean, scale = normal_of(mlp(actor["policy"], steps.next_obs))
    raw = mean + scale * noise((T, B, 1))
    next_value = (probabilities(q_outputs(own, steps.next_obs, np.tanh(raw))) * ATOMS).sum(-1)
    price = np.exp(actor["temperature"]) * references.tanh_normal_log_prob(mean, scale, raw)
    reward = steps.reward - GAMMA * ~steps.terminated * price
    wanted = np.zeros((T, B, 5))
    for b in range(B):
        ends = steps.terminated[:, b], steps.truncated[:, b]
        targets = references.lambda_return(reward[:, b], *ends, next_value[:, b], GAMMA, 0.7)
        wanted[:, b] = [shares_around(target) for target in targets]

    def loss(params):
        outputs = q_outputs(params, steps.obs, unit(steps.action))
        return -(wanted * references.log_softmax(outputs)).sum(-1).mean()

    check(
        parts["critic"],
        learned["critic"],
        learned,
        data,
        algorithm.hyper,
        {("q", "critic_loss"): loss},
    )


def test_the_policy_of_reppo_is_pulled_back_where_it_has_left_the_bound():
    algorithm = small_reppo()
    parts, learned = made(algorithm)
    steps, own = rollout(), numbers(learned["actor"].params)
    now = mlp(own["policy"], steps.obs)
    outputs = (now + RNG.choice([0.1, 1.5], (T, B, 1))).astype(np.float32)
    data = OnPolicyBatch(steps.obs, steps.action, steps.first, {}, {"outputs": outputs}, {}, steps)
    old_mean, old_scale = normal_of(np.float64(outputs))
    temperature, weight = (np.exp(own[name]) for name in ("temperature", "kl_weight"))
    q = numbers(learned["critic"].params["q"])

    def divergence(params):
        mean, scale = normal_of(mlp(params, steps.obs))
        spread = (old_scale**2 + (old_mean - mean) ** 2) / (2 * scale**2)
        return (np.log(scale / old_scale) + spread - 0.5)[..., 0]

    def loss(params):
        mean, scale = normal_of(mlp(params, steps.obs))
        raw, kl = mean + scale * noise((T, B, 1)), divergence(params)
        value = (probabilities(q_outputs(q, steps.obs, np.tanh(raw))) * ATOMS).sum(-1)
        inside = temperature * references.tanh_normal_log_prob(mean, scale, raw) - value
        return np.where(kl < 0.3, inside, weight * kl).mean()

    assert 0 < (divergence(own["policy"]) < 0.3).sum() < T * B
    check(
        parts["actor"],
        learned["actor"],
        learned,
        data,
        algorithm.hyper,
        {("policy", "policy_loss"): loss},
    )


def test_iql_learns_an_expectile_values_of_the_next_step_and_weighted_actions():
    algorithm = jf.iql(**REPLAYED, **SMALL, expectile=0.8, advantage_scale=2.0)
    parts, learned = made(algorithm)
    data, critic = replayed(), learned["critic"]
    critic.params["value"]["params"]["Dense_1"]["bias"] += 1.0  # advantages of both signs
    params, taken = numbers(critic.params), unit(data.action)
    slow = q_outputs(numbers(critic.target["q"]), data.obs, taken)[..., 0].min(0)
    target = data.reward + data.bootstrap * mlp(params["value"], data.next_obs)[..., 0]
    advantage = slow - mlp(params["value"], data.obs)[..., 0]
    assert 0 < (advantage > 0).sum() < B

    def value_loss(params):
        error = slow - mlp(params, data.obs)[..., 0]
        return np.mean(np.where(error > 0, 0.8, 0.2) * error**2)

    def critic_loss(params):
        return 0.5 * np.sum((q_outputs(params, data.obs, taken)[..., 0] - target) ** 2) / B

    def policy_loss(params):
        free = params["free"]["outputs"]
        mean, deviation = np.tanh(mlp(params, data.obs)), np.exp(np.clip(free, -5.0, 2.0))
        log_prob = (
            -0.5 * ((taken - mean) / deviation) ** 2 - np.log(deviation) - 0.5 * np.log(2 * np.pi)
        )
        return -np.mean(np.minimum(np.exp(2.0 * advantage), 100.0) * log_prob[..., 0])

    wanted = {("value", "value_loss"): value_loss, ("q", "critic_loss"): critic_loss}
    check(parts["critic"], critic, learned, data, algorithm.hyper, wanted)
    check(
        parts["actor"],
        learned["actor"],
        learned,
        data,
        algorithm.hyper,
        {("policy", "policy_loss"): policy_loss},
    )


def test_td3_bc_pays_for_the_distance_to_recorded_actions_where_there_are_any():
    rates = dict(actor_penalty=0.4, critic_penalty=0.7, target_noise=0.4, target_noise_clip=0.3)
    algorithm = jf.td3_bc(**REPLAYED, **SMALL, **rates, critic_layer_norm=False)
    parts, learned = made(algorithm)
    learned["actor"] = bolder(learned["actor"])
    recorded = RNG.uniform(LOW, HIGH, (1, B, 1)).astype(np.float32)
    recorded[0, 2] = np.nan  # a sampled step
    data = replayed()._replace(extras={NEXT_ACTION: recorded})
    taken, critic = unit(data.action), numbers(learned["critic"].params["q"])
    action = smoothed(np.tanh(mlp(numbers(learned["actor"].target["policy"]), data.next_obs)))
    least = q_outputs(numbers(learned["critic"].target["q"]), data.next_obs, action)[..., 0].min(0)
    apart = np.nan_to_num((action - unit(recorded)) ** 2)[..., 0]
    target = data.reward + data.bootstrap * (least - 0.7 * apart)

    def critic_loss(params):
        return 0.5 * np.sum((q_outputs(params, data.obs, taken)[..., 0] - target) ** 2) / B

    own = q_outputs(
        critic, data.obs, np.tanh(mlp(numbers(learned["actor"].params["policy"]), data.obs))
    )[0]
    size = np.abs(own).mean()  # a constant, through which no gradient goes

    def policy_loss(params):
        action = np.tanh(mlp(params, data.obs))
        value = q_outputs(critic, data.obs, action)[0]
        return -value.mean() / size + 0.4 * np.mean((action - taken) ** 2)

    check(
        parts["critic"],
        learned["critic"],
        learned,
        data,
        algorithm.hyper,
        {("q", "critic_loss"): critic_loss},
    )
    check(
        parts["actor"],
        learned["actor"],
        learned,
        data,
        algorithm.hyper,
        {("policy", "policy_loss"): policy_loss},
    )


@pytest.mark.parametrize("discrete", [False, True])
def test_bc_repeats_the_action_of_the_step_among_those_that_are_allowed(discrete: bool):
    spec, data = SPEC, replayed()
    if discrete:
        masked = {"x": tiny.OBS, "action_mask": jax.ShapeDtypeStruct((3,), jnp.bool_)}
        spec, mask = SPEC._replace(obs=masked, action=jf.Discrete(3)), np.array([True, False, True])
        obs = {"x": data.obs, "action_mask": np.broadcast_to(mask, (1, B, 3))}
        data = data._replace(obs=obs, action=RNG.choice([0, 2], (1, B)).astype(np.int32))
    algorithm = jf.bc(policy_hidden=(3,), activation="tanh", batch_size=8, updates_per_tick=1)
    parts, learned = made(algorithm, spec)

    def loss(params):
        if not discrete:
            return np.mean((np.tanh(mlp(params, data.obs)) - unit(data.action)) ** 2)
        logits = np.where(mask, mlp(params, data.obs["x"]), -np.inf)
        return -np.take_along_axis(
            references.log_softmax(logits), data.action[..., None], -1
        ).mean()

    check(
        parts["actor"],
        learned["actor"],
        {},
        data,
        algorithm.hyper,
        {("policy", "policy_loss"): loss},
    )
