"""Options of PPO against slow NumPy references, and whole runs with them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from scipy import stats

import jaxrl_fast as jf
from jaxrl_fast.algorithms.ppo import critic_part, ppo, value_errors
from jaxrl_fast.algorithms.ppo_options import (
    by_divergence,
    clipped_errors,
    joint_loss,
    with_free_outputs,
    with_normalized_values,
)
from jaxrl_fast.core import Box
from jaxrl_fast.learning.algorithm import Learned, OnPolicyBatch
from jaxrl_fast.networks.convolutions import orthogonal_weights
from jaxrl_fast.networks.network import STATISTICS, Head, make_network
from jaxrl_fast.numerics import distributions, losses
from jaxrl_fast.numerics.optimizers import make_optimizer

RNG = np.random.default_rng(8)
HYPER = ppo(
    learning_rate=0.01,
    critic_learning_rate_ratio=1.0,
    discount=0.9,
    gae_lambda=0.8,
    clip_range=0.2,
    entropy_coef=0.05,
    max_grad_norm=10.0,
    value_clip_range=0.3,
    max_kl=0.05,
    desired_kl=0.02,
).hyper
B = 7
OBS = jax.ShapeDtypeStruct((2,), jnp.float32)


def batch(target: np.ndarray, advantage: np.ndarray) -> OnPolicyBatch:
    obs = RNG.normal(size=(1, B, 2)).astype(np.float32)
    targets = {"value_target": jnp.asarray(target), "advantage": jnp.asarray(advantage)}
    return OnPolicyBatch(obs, np.zeros((1, B, 1)), np.zeros((1, B), bool), {}, {}, targets)


def numbers(scale: float = 1.0) -> np.ndarray:
    return (scale * RNG.normal(size=(1, B))).astype(np.float32)


def test_clipped_errors_equal_numpy():
    value, before, target = numbers(), numbers(), numbers()
    data = batch(target, target - before)
    loss, metrics = clipped_errors(losses.squared_error)(
        value[..., None], data, jax.random.key(0), HYPER
    )
    wanted = []
    for now, old, goal in zip(value[0], before[0], target[0], strict=True):
        kept = min(max(now, old - 0.3), old + 0.3)
        wanted.append(max(0.5 * (now - goal) ** 2, 0.5 * (kept - goal) ** 2))
    np.testing.assert_allclose(loss, np.mean(wanted), rtol=1e-5)
    np.testing.assert_allclose(metrics["value_loss"], np.mean(wanted), rtol=1e-5)


def test_a_value_beyond_its_clip_has_no_gradient():
    target, before = np.full((1, B), 5.0, np.float32), np.zeros((1, B), np.float32)
    loss = clipped_errors(losses.squared_error)

    def slope(value: float) -> float:
        data = batch(target, target - before)
        return jax.grad(lambda v: loss(jnp.full((1, B, 1), v), data, jax.random.key(0), HYPER)[0])(
            value
        )

    assert slope(0.2) < 0.0 == slope(0.4)


@pytest.mark.parametrize("adapt", [False, True])
@pytest.mark.parametrize("stop", [False, True])
def test_an_optimizer_by_divergence_equals_a_slow_loop(stop, adapt):
    make = make_optimizer("adam")
    near, plain = by_divergence(make, stop=stop, adapt=adapt)(HYPER), make(HYPER)
    params = {"w": jnp.asarray([0.5, -2.0])}
    state, inner, factor = near.init(params), plain.init(params), 1.0
    for kl in (0.0, 0.005, 0.03, 0.06, 0.05, 0.041, 0.02, 1.0, *[0.001] * 20, *[0.045] * 30):
        grads = {"w": jnp.asarray(RNG.normal(size=2), jnp.float32)}
        change, state = near.update(grads, state, params, metrics={"approx_kl": jnp.asarray(kl)})
        factor = factor / 1.5 if kl > 0.04 else factor * 1.5 if kl < 0.01 else factor
        factor = min(max(factor, 1e-5 / 0.01), 1e-2 / 0.01)
        wanted, after = plain.update(grads, inner, params)
        scale = factor if adapt else 1.0
        if stop and kl > 0.05:
            wanted = jax.tree.map(jnp.zeros_like, wanted)
        else:
            inner = after
        np.testing.assert_allclose(change["w"], scale * wanted["w"], rtol=1e-4)
        jax.tree.map(np.testing.assert_array_equal, state[0], inner)


def test_a_learning_rate_of_0_stays_finite():
    near = by_divergence(make_optimizer("adam"), stop=False, adapt=True)(
        HYPER._replace(learning_rate=0.0)
    )
    params = {"w": jnp.ones(2)}
    change, _ = near.update(
        params, near.init(params), params, metrics={"approx_kl": jnp.asarray(0.5)}
    )
    np.testing.assert_array_equal(change["w"], 0.0)


def test_normalized_values_equal_numpy():
    network = make_network(OBS, 1, hidden=(3,))
    plain = critic_part(network, losses.squared_error, "adam")
    part = with_normalized_values(plain, lambda x, batch: jnp.mean(x))
    scaled = part.networks["value"]
    params = scaled.init(jax.random.key(1))
    raw = network.init(jax.random.key(1))
    seen: list[np.ndarray] = []
    for mean, scale in ((1000.0, 3.0), (1010.0, 1.0), (-50.0, 200.0)):
        target = (mean + numbers(scale)).astype(np.float32)
        data = batch(target, numbers())
        own = Learned({"value": params})
        result = part.gradients(own, {}, data, jax.random.key(0), HYPER)
        seen.append(np.float64(target))
        center, spread = np.mean(seen), np.std(seen)
        found = result.statistics["value"]
        np.testing.assert_allclose(found["mean"], center, rtol=1e-5)
        np.testing.assert_allclose(np.sqrt(found["variance"]), spread, rtol=1e-4)

        def error(
            weights: Any, data=data, target=target, center=center, spread=spread
        ) -> jax.Array:
            value = network.apply(weights, (), data.obs, data.first)[0][..., 0]
            return 0.5 * jnp.mean(jnp.square(value - (target - center) / spread))

        wanted = jax.grad(error)(raw)
        own_grads = {"params": result.grads["value"]["params"]}
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-4), own_grads, wanted
        )
        params = {**params, STATISTICS: found}
        value = scaled.apply(params, (), data.obs, data.first)[0]
        plainly = network.apply(raw, (), data.obs, data.first)[0]
        np.testing.assert_allclose(value, center + spread * plainly, rtol=1e-4)


def test_the_statistics_of_values_forget():
    part = with_normalized_values(
        critic_part(make_network(OBS, 1, hidden=()), losses.squared_error, "adam"),
        lambda x, batch: jnp.mean(x),
    )
    params = part.networks["value"].init(jax.random.key(1))
    params[STATISTICS] = {
        "mean": jnp.asarray(3.0),
        "variance": jnp.asarray(4.0),
        "updates": jnp.asarray(2e9),
    }
    data = batch(np.full((1, B), 13.0, np.float32), numbers())
    found = part.gradients(
        Learned({"value": params}), {}, data, jax.random.key(0), HYPER
    ).statistics["value"]
    np.testing.assert_allclose(found["mean"] - 3.0, 1e-4, rtol=1e-2)
    np.testing.assert_allclose(found["variance"] - 4.0, (100.0 - 4.0) / 1e5, rtol=1e-2)


@pytest.mark.parametrize("head", ["", "policy"])
def test_free_outputs_follow_the_others_and_learn(head):
    heads: Any = {"value": Head(1), "policy": Head(2)} if head else 2
    network = make_network(OBS, heads, hidden=(3,))
    free = with_free_outputs(network, (0.5, -1.0), head)
    params = free.init(jax.random.key(0))
    obs, first = jnp.asarray(RNG.normal(size=(4, 3, 2)), jnp.float32), jnp.zeros((4, 3), bool)

    def outputs(params: Any) -> jax.Array:
        found = free.apply(params, (), obs, first)[0]
        return found[head] if head else found

    inner = network.apply(params, (), obs, first)[0]
    np.testing.assert_array_equal(outputs(params)[..., :2], inner[head] if head else inner)
    np.testing.assert_array_equal(outputs(params)[..., 2:], np.broadcast_to([0.5, -1.0], (4, 3, 2)))
    grads = jax.grad(lambda p: jnp.sum(outputs(p)[..., 2]) + 3.0 * jnp.sum(outputs(p)[..., 3]))(
        params
    )
    np.testing.assert_allclose(grads["free"]["outputs"], [12.0, 36.0])


def test_a_normal_equals_scipy():
    mean, scale, raw = (
        RNG.normal(size=(5, 2)),
        RNG.uniform(0.2, 3.0, (5, 2)),
        3.0 * RNG.normal(size=(5, 2)),
    )
    dist = distributions.Normal(jnp.asarray(mean, jnp.float32), jnp.asarray(scale, jnp.float32))
    wanted = stats.norm(mean, scale)
    np.testing.assert_allclose(
        distributions.log_prob(dist, raw), wanted.logpdf(raw).sum(-1), rtol=1e-4
    )
    np.testing.assert_allclose(
        distributions.entropy(dist, jax.random.key(0)), wanted.entropy().sum(-1), rtol=1e-5
    )
    np.testing.assert_array_equal(distributions.mode(dist), dist.mean)
    box = Box(np.float32([-2.0, 0.0]), np.float32([2.0, 1.0]))
    action = distributions.to_action(box, jnp.asarray([[-3.0, 0.5], [0.5, 7.0]]), dist)
    np.testing.assert_allclose(action, [[-2.0, 0.75], [1.0, 1.0]])


@pytest.mark.parametrize("shape", [(64, 64), (3, 64), (64, 2), (200, 50), (1, 1)])
def test_orthogonal_weights_are_orthogonal(shape):
    weights = np.float64(
        jax.vmap(lambda key: orthogonal_weights(2.0)(key, shape))(
            jax.random.split(jax.random.key(5))
        )
    )
    for each in weights:
        short = each if shape[0] >= shape[1] else each.T
        np.testing.assert_allclose(short.T @ short, 2.0 * np.eye(min(shape)), atol=1e-4)
    assert np.abs(weights[0] - weights[1]).max() > 1e-2 or shape == (1, 1)


def test_the_joint_loss_is_the_weighted_sum():
    outputs, data = jnp.asarray(numbers())[..., None], batch(numbers(), numbers())
    policy = lambda out, *_: (jnp.sum(out), {"policy_loss": jnp.sum(out)})  # noqa: E731
    both = joint_loss(policy, value_errors(losses.squared_error))
    hyper = HYPER._replace(critic_learning_rate_ratio=0.25)
    loss, metrics = both({"policy": outputs, "value": outputs}, data, jax.random.key(0), hyper)
    wanted = np.mean(0.5 * np.square(outputs[..., 0] - data.targets["value_target"]))
    np.testing.assert_allclose(loss, np.sum(outputs) + 0.25 * wanted, rtol=1e-5)
    np.testing.assert_allclose(metrics["value_loss"], wanted, rtol=1e-5)


SMALL: dict[str, Any] = dict(
    rollout_length=8, num_epochs=2, num_minibatches=2, policy_hidden=(8,), value_hidden=(8,)
)
RUNS: dict[str, dict[str, Any]] = {
    "near": dict(max_kl=0.01, desired_kl=0.01, value_clip_range=0.2),
    "values": dict(normalize_values=True, orthogonal=True, recurrent_size=4),
    "shared": dict(
        share_torso=True, clip_actions=True, free_deviation=True, max_kl=0.02, recurrent_size=4
    ),
    "free": dict(clip_actions=True, free_deviation=True),
}


@pytest.mark.parametrize(
    ("name", "discrete"),
    [("near", True), ("values", False), ("shared", True), ("shared", False), ("free", False)],
)
def test_every_option_trains_saves_and_goes_on(name, discrete, tmp_path):
    def run(steps: int, folder: str, **how: Any) -> jf.Result:
        env = tiny.line(discrete=discrete)
        return jf.learn(
            env,
            jf.ppo(**SMALL, **RUNS[name]),
            total_steps=steps,
            eval_episodes=2,
            **how
            | dict(
                run_dir=tmp_path / folder,
                log="none",
                num_seeds=2,
                eval_every=0,
                checkpoints=jf.Checkpoints(every=64),
            ),
        )

    whole, first = run(192, "whole"), run(128, "first")
    resumed = run(192, "second", resume=tmp_path / "first")
    jax.tree.map(
        np.testing.assert_array_equal, *(r.state.private["learn"] for r in (whole, resumed))
    )
    policy = jf.load_policy(tmp_path / "first")
    jax.tree.map(np.testing.assert_array_equal, policy.params, first.policy.params)


@pytest.mark.parametrize(
    ("name", "average"),
    [
        ("near", "gradients"),
        ("near", "parameters"),
        ("near", "turns"),
        ("values", "gradients"),
        ("shared", "gradients"),
    ],
)
def test_several_learners_work_with_every_option(name, average):
    options = {**SMALL, **RUNS[name]} | dict(recurrent_size=0)
    env, algorithm = tiny.line(discrete=False), jf.ppo(**options)
    init, step = jf.make_train_step(env, algorithm, learners=2, average=average)
    state = jax.jit(init)(jax.random.key(2))
    before = state
    for _ in range(3):
        state, metrics = jax.jit(step)(state)
    assert all(
        np.isfinite(value) for metric, value in metrics.items() if metric.endswith(("loss", "kl"))
    )
    moved = jax.tree.map(lambda a, b: bool(jnp.any(a != b)), before.channels, state.channels)
    assert any(jax.tree.leaves(moved))


def test_max_kl_holds_the_policy():
    def largest(max_kl: float) -> float:
        options = {**SMALL, "num_epochs": 8, "learning_rate": 0.1}
        init, step = jf.make_train_step(tiny.line(discrete=True), jf.ppo(**options, max_kl=max_kl))
        state, found = jax.jit(init)(jax.random.key(2)), 0.0
        for _ in range(6):
            state, metrics = jax.jit(step)(state)
            found = max(
                found, *(float(v) for name, v in metrics.items() if name.endswith("approx_kl"))
            )
        return found

    assert largest(0.01) < 0.5 * largest(0.0)


def test_agents_normalize_values_together_only():
    env = jf.make_env("traffic_junction_4", num_envs=2)
    for make in (jf.ippo, jf.mappo):
        init, step = jf.make_train_step(env, make(rollout_length=4, normalize_values=True))
        state = jax.jit(init)(jax.random.key(0))
        for _ in range(2):
            state, metrics = jax.jit(step)(state)
        assert all(
            np.isfinite(value) for name, value in metrics.items() if name.endswith("value_loss")
        )
        with pytest.raises(ValueError, match="normalize_values=true: write share_parameters=true"):
            make(normalize_values=True, share_parameters=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            dict(share_torso=True, normalize_values=True),
            "share_torso=true: leave normalize_values out",
        ),
        (dict(max_kl=-0.1), "max_kl=-0.1: write a number of at least 0"),
        (dict(orthogonal="yes"), "orthogonal=yes: write true or false"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        jf.make_train_step(tiny.line(discrete=True), jf.ppo(**SMALL, **options))
