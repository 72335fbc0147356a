"""PPO's metrics, optimizer, normalization and masks; `test_reference.py` compares its updates."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import references
import tiny

from jaxrl_fast.algorithms.ppo import ppo
from jaxrl_fast.assembly import bind
from jaxrl_fast.core import Extras, Transition
from jaxrl_fast.learning.algorithm import Learned, OnPolicyBatch
from jaxrl_fast.learning.updates import init_part
from jaxrl_fast.learning.updates import update as update_part
from jaxrl_fast.numerics.normalization import RunningStats, Statistics, scale_experience
from jaxrl_fast.numerics.optimizers import make_optimizer

RNG = np.random.default_rng(3)
B = 6
HYPER = ppo(
    learning_rate=0.01,
    critic_learning_rate_ratio=2.0,
    discount=0.9,
    gae_lambda=0.8,
    clip_range=0.2,
    entropy_coef=0.05,
    max_grad_norm=0.1,
).hyper


def agent(discrete: bool, **options):
    algorithm = ppo(
        rollout_length=4, num_minibatches=1, policy_hidden=(3,), value_hidden=(3,), **options
    )
    return algorithm.build(tiny.line(discrete=discrete).spec, 4)


def batch(discrete: bool) -> OnPolicyBatch:
    """Old log-probabilities that differ enough from the new ones that some ratios are clipped."""
    raw = (
        RNG.integers(0, 2, (1, B)).astype(np.int32)
        if discrete
        else RNG.normal(size=(1, B, 1)).astype(np.float32)
    )
    numbers = RNG.normal(size=(3, 1, B)).astype(np.float32)
    obs = RNG.normal(size=(1, B, 2)).astype(np.float32)
    extras = {"raw_action": raw, "log_prob": numbers[0] - 1.0}
    targets = {"advantage": numbers[1], "value_target": numbers[2]}
    return OnPolicyBatch(obs, raw, np.zeros((1, B), bool), {}, extras, targets)


def policy_terms(params, data: OnPolicyBatch, noise) -> tuple[np.ndarray, np.ndarray]:
    """Compute the log-probability of the taken actions and the entropy, each ``[1, B]``."""
    outputs = references.mlp(params, np.float64(data.obs))
    if noise is None:
        log_probs = references.log_softmax(outputs)
        return np.take_along_axis(log_probs, data.extras["raw_action"][..., None], -1)[..., 0], -(
            np.exp(log_probs) * log_probs
        ).sum(-1)
    mean, scale = outputs[..., :1], references.softplus(outputs[..., 1:]) + 1e-3
    slope = 1.0 - np.tanh(mean + scale * noise) ** 2
    entropy = (0.5 + 0.5 * np.log(2 * np.pi) + np.log(scale) + np.log(slope)).sum(-1)
    return references.tanh_normal_log_prob(mean, scale, data.extras["raw_action"]), entropy


def actor_loss(params, data: OnPolicyBatch, noise) -> dict[str, float]:
    log_prob, entropy = policy_terms(params, data, noise)
    ratio = np.exp(log_prob - data.extras["log_prob"])
    advantage = np.float64(data.targets["advantage"])
    advantage = (advantage - advantage.mean()) / advantage.std()
    surrogate = np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
    return {
        "policy_loss": -surrogate.mean(),
        "entropy": entropy.mean(),
        "approx_kl": (ratio - 1 - np.log(ratio)).mean(),
        "clip_fraction": (np.abs(ratio - 1) > 0.2).mean(),
    }


@pytest.mark.parametrize("discrete", [True, False], ids=["discrete", "continuous"])
def test_metrics_of_an_actor_update_equal_numpy(discrete):
    part = agent(discrete).parts["actor"]
    state = jax.jit(lambda key: init_part(part, key, HYPER))(jax.random.key(0))
    uneven = jax.tree.map(
        lambda x: x + RNG.normal(size=x.shape).astype(np.float32), state.learned.params
    )
    data, key = batch(discrete), jax.random.key(0)
    noise = None if discrete else np.float64(jax.random.normal(key, (1, B, 1)))
    state = state._replace(learned=Learned(uneven))
    metrics = jax.jit(lambda *xs: update_part(part, xs[0], {}, xs[1], xs[2], HYPER))(
        state, data, key
    ).metrics
    wanted = actor_loss(jax.tree.map(np.float64, uneven)["policy"], data, noise)
    for name, value in wanted.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-3, atol=1e-5, err_msg=name)


def test_the_global_norm_is_clipped_and_not_each_number():
    # norms 5 and 0.3
    slopes = [
        [np.float32([3.0, 0.0]), np.float32(4.0)],
        [np.float32([0.1, 0.2]), np.float32(0.2)],
    ]
    params = [jnp.zeros(2), jnp.zeros(())]
    optimizer = make_optimizer("adam")(HYPER._replace(learning_rate=0.1, max_grad_norm=1.0))
    opt_state, adam, want = (
        optimizer.init(params),
        references.Adam(0.1, 1.0),
        [np.zeros(2), np.zeros(())],
    )
    for grads in slopes:
        change, opt_state = optimizer.update(grads, opt_state, params)
        params = optax.apply_updates(params, change)
        want = adam.step(want, grads)
    for got, leaf in zip(params, want, strict=True):
        np.testing.assert_allclose(got, leaf, rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (dict(optimizer="lion"), "optimizer=lion: write one of adam, adamw, radam, rmsprop"),
        (dict(weight_decay=0.1), "optimizer=adam:1e-5 has no weight decay: write optimizer=adamw"),
    ],
)
def test_an_optimizer_that_does_not_fit_is_refused(options, says):
    with pytest.raises(ValueError, match=says):
        agent(True, **options)


def rollout(steps: int, envs: int) -> Transition:
    obs, next_obs = RNG.normal(size=(2, steps, envs, 2)).astype(np.float32)
    terminated = RNG.random((steps, envs)) < 0.3
    truncated = (RNG.random((steps, envs)) < 0.3) & ~terminated
    reward = RNG.normal(size=(steps, envs)).astype(np.float32)
    extras = Extras({"raw_action": reward, "log_prob": reward}, {})
    return Transition(obs, reward, reward, next_obs, terminated, truncated, truncated, extras)


def test_rewards_are_divided_by_the_deviation_of_returns_and_observations_normalized():
    data = rollout(2, 2)
    obs = RunningStats(jnp.int32(4), jnp.float32([1.0, 2.0]), jnp.float32([4.0, 1.0]))
    statistics = Statistics(obs, RunningStats(jnp.int32(4), jnp.float32(7.0), jnp.float32(9.0)))
    scaled = scale_experience(data, statistics, jnp.float32(0.5), True)
    np.testing.assert_allclose(scaled.reward, data.reward * 0.5 / 3.0, rtol=1e-4)
    np.testing.assert_allclose(
        scaled.obs, (data.obs - [1.0, 2.0]) / [2.0, 1.0], rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(
        scaled.next_obs, (data.next_obs - [1.0, 2.0]) / [2.0, 1.0], rtol=1e-4, atol=1e-5
    )
    silent = statistics._replace(
        returns=RunningStats(jnp.int32(4), jnp.float32(0.0), jnp.float32(0.0))
    )
    first = scale_experience(
        data._replace(reward=np.float32([[1.0, -1.0]])), silent, jnp.float32(1.0), True
    ).reward
    # the first reward of a sparse environment does not explode
    np.testing.assert_array_equal(first, [[10.0, -10.0]])
    raw = scale_experience(data, statistics, jnp.float32(0.5), False)
    np.testing.assert_allclose(raw.reward, data.reward * 0.5, rtol=1e-6)


def test_minibatches_must_divide_the_rollout():
    with pytest.raises(
        ValueError, match=r"16 sequences of 1 steps, which algo\.num_minibatches=3 does not divide"
    ):
        bind(ppo(rollout_length=4, num_minibatches=3), tiny.line(discrete=True).spec, 4)


def test_masked_actions_are_never_explored_and_never_greedy():
    spec = tiny.line(discrete=True).spec._replace(
        obs={"x": tiny.OBS, "action_mask": jax.ShapeDtypeStruct((2,), jnp.bool_)}
    )
    algorithm = ppo(rollout_length=4, num_minibatches=1, policy_hidden=(3,), value_hidden=(3,))
    built = bind(algorithm, spec, 64)
    learned = {
        "actor": jax.jit(lambda key: init_part(built.parts["actor"], key, HYPER))(
            jax.random.key(0)
        ).learned
    }
    allowed = np.arange(64) % 2
    obs = {"x": jnp.ones((64, 2)), "action_mask": jax.nn.one_hot(allowed, 2, dtype=jnp.bool_)}
    first, key, acting = jnp.zeros(64, bool), jax.random.key(1), built.acting
    explored = jax.jit(acting.explore)(learned, acting.initial_carry(64), obs, first, key, HYPER)[0]
    np.testing.assert_array_equal(explored, allowed)
    weights = acting.greedy_weights(learned)
    np.testing.assert_array_equal(
        jax.jit(acting.greedy)(weights, acting.greedy_carry(64), obs, first, key)[0], allowed
    )
