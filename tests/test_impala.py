"""IMPALA's updates against slow NumPy references, and the effect of lag on its ratios."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
import tiny

import jaxrl_fast as jf
from jaxrl_fast.assembly import bind
from jaxrl_fast.core import Transition
from jaxrl_fast.learning.algorithm import OnPolicyBatch
from jaxrl_fast.learning.updates import init_part, update

RNG = np.random.default_rng(11)
T, B, GAMMA = 5, 3, 0.9
SPEC = tiny.line(discrete=True).spec


def small_impala(**options):
    rates = dict(
        learning_rate=0.01,
        discount=GAMMA,
        trace_lambda=0.9,
        clip_rho=1.1,
        clip_c=0.8,
        optimizer="adam",
    )
    return jf.impala(
        **rates | dict(hidden=(3,), rollout_length=T, entropy_coef=0.05, value_coef=0.4) | options
    )


def batch() -> OnPolicyBatch:
    obs, next_obs = RNG.normal(size=(2, T, B, 2)).astype(np.float32)
    terminated, truncated, no = (
        np.zeros((T, B), bool),
        np.zeros((T, B), bool),
        np.zeros((T, B), bool),
    )
    terminated[1, 0] = truncated[2, 1] = True
    reward, behavior = RNG.normal(size=(2, T, B)).astype(np.float32)
    action = RNG.integers(0, 2, (T, B)).astype(np.int32)
    steps = Transition((), (), reward, next_obs, terminated, truncated, (), ())
    extras = {"raw_action": action, "log_prob": 0.3 * behavior - 0.7}
    return OnPolicyBatch(obs, action, no, {}, extras, {}, steps)


def terms(params, data: OnPolicyBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute log-probabilities of the taken actions, entropies and values, each ``[T, B]``."""
    outputs = references.mlp(params, np.float64(data.obs))
    log_probs = references.log_softmax(outputs[..., :2])
    taken = np.take_along_axis(log_probs, data.action[..., None], -1)[..., 0]
    return taken, -(np.exp(log_probs) * log_probs).sum(-1), outputs[..., 2]


def traces(params, data: OnPolicyBatch) -> tuple[np.ndarray, np.ndarray]:
    log_prob, _, value = terms(params, data)
    ratio = np.exp(log_prob - data.extras["log_prob"])
    next_value = references.mlp(params, np.float64(data.transition.next_obs))[..., 2]
    steps, targets, advantages = data.transition, np.zeros((T, B)), np.zeros((T, B))
    for b in range(B):
        own = (
            x[:, b]
            for x in (steps.reward, steps.terminated, steps.truncated, value, next_value, ratio)
        )
        targets[:, b], advantages[:, b] = references.v_trace(*own, GAMMA, 0.9, 1.1, 0.8)
    return targets, advantages


def test_two_updates_equal_numpy():
    algorithm = small_impala(max_grad_norm=0.2)
    part, hyper = algorithm.build(SPEC, B).parts["agent"], algorithm.hyper
    state = jax.jit(lambda key: init_part(part, key, hyper))(jax.random.key(0))
    step = jax.jit(lambda state, data: update(part, state, {}, data, jax.random.key(0), hyper))
    treedef = jax.tree.structure(state.learned.params["network"])
    leaves, adam = (
        [np.float64(x) for x in jax.tree.leaves(state.learned.params)],
        references.Adam(0.01, 0.2),
    )
    for _ in range(2):
        data = batch()
        state, metrics, _ = step(state, data)
        target, advantage = traces(treedef.unflatten(leaves), data)

        def loss(leaves, data=data, target=target, advantage=advantage):
            log_prob, entropy, value = terms(treedef.unflatten(leaves), data)
            regression = 0.5 * np.mean((value - target) ** 2)
            return -np.mean(log_prob * advantage) + 0.4 * regression - 0.05 * np.mean(entropy)

        log_prob, _, value = terms(treedef.unflatten(leaves), data)
        np.testing.assert_allclose(
            metrics["policy_loss"], -np.mean(log_prob * advantage), rtol=1e-3, atol=1e-5
        )
        np.testing.assert_allclose(
            metrics["value_loss"], 0.5 * np.mean((value - target) ** 2), rtol=1e-3
        )
        ratio = np.exp(log_prob - data.extras["log_prob"])
        np.testing.assert_allclose(metrics["ratio_deviation"], ratio.std(), rtol=1e-3)
        leaves = adam.step(leaves, references.gradient(loss, leaves))
        for got, want in zip(jax.tree.leaves(state.learned.params), leaves, strict=True):
            np.testing.assert_allclose(got, want, atol=1e-4)


def deviations(**options) -> list[float]:
    """Return statistics of the ratios, tick by tick."""
    seen: list[float | None] = []
    jf.learn(
        tiny.line(discrete=True, num_envs=8),
        small_impala(learning_rate=0.05),
        total_steps=8 * T * 6,
        eval_episodes=2,
        tell=lambda line: None,
        on_metrics=lambda row: (
            seen.append(row["learn/ratio_deviation"]) if row["kind"] == "train" else None
        ),
        **options,
    )
    return [value for value in seen if value is not None]  # no updates in the first tick


def test_ratios_are_one_without_lag_and_not_where_sampling_goes_on_meanwhile():
    """V-trace is computed within the update, with the current parameters."""
    assert max(deviations()) < 1e-5  # A2C
    assert max(deviations(overlap="sampling")[1:]) > 1e-2


@pytest.mark.parametrize("discrete", [False, True])
def test_it_acts_in_any_space(discrete: bool):
    agent = bind(small_impala(), tiny.line(discrete=discrete).spec, 4)
    assert agent.updates_per_tick == 1 and agent.batch_size == 4 * T
    assert jnp.isfinite(agent.hyper.learning_rate)
