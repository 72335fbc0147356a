"""PQN's targets and updates against slow NumPy references."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
import tiny

import jaxrl_fast as jf
from jaxrl_fast.assembly import bind
from jaxrl_fast.core import Extras, Transition
from jaxrl_fast.learning.algorithm import OnPolicyBatch
from jaxrl_fast.learning.minibatches import make_batch, values_of
from jaxrl_fast.learning.updates import init_part, update

RNG = np.random.default_rng(5)
T, E = 4, 3
SPEC = tiny.line(discrete=True).spec


def small_pqn(**options):
    rates = dict(
        learning_rate=0.01, discount=0.9, q_lambda=0.7, max_grad_norm=0.5, optimizer="adam"
    )
    return jf.pqn(
        **rates
        | dict(
            q_hidden=(3,), activation="tanh", layer_norm=False, rollout_length=T, num_minibatches=1
        )
        | options
    )


def rollout() -> Transition:
    obs, next_obs = RNG.normal(size=(2, T, E, 2)).astype(np.float32)
    terminated, truncated = np.zeros((T, E), bool), np.zeros((T, E), bool)
    terminated[1, 0] = truncated[2, 1] = True
    reward = RNG.normal(size=(T, E)).astype(np.float32)
    action = RNG.integers(0, 2, (T, E)).astype(np.int32)
    return Transition(
        obs, action, reward, next_obs, terminated, truncated, np.zeros((T, E), bool), Extras({}, {})
    )


def test_targets_are_lambda_returns_of_the_best_action():
    algorithm = small_pqn()
    agent = algorithm.build(SPEC, E)
    state = jax.jit(lambda key: init_part(agent.parts["critic"], key, algorithm.hyper))(
        jax.random.key(0)
    )
    steps = rollout()

    def targets(learned):
        values = values_of(agent, agent.data, steps, {"critic": learned})
        return make_batch(agent.data, steps, values, algorithm.hyper).targets["q_target"]

    got = jax.jit(targets)(state.learned)
    params = jax.tree.map(np.float64, state.learned.params["q"])
    best = references.mlp(params, np.float64(steps.next_obs)).max(-1)
    for e in range(E):
        want = references.lambda_return(
            steps.reward[:, e], steps.terminated[:, e], steps.truncated[:, e], best[:, e], 0.9, 0.7
        )
        np.testing.assert_allclose(got[:, e], want, rtol=1e-4, atol=1e-5)


def test_two_updates_equal_numpy():
    algorithm = small_pqn()
    part, hyper = algorithm.build(SPEC, E).parts["critic"], algorithm.hyper
    state = jax.jit(lambda key: init_part(part, key, hyper))(jax.random.key(0))
    step = jax.jit(lambda state, data: update(part, state, {}, data, jax.random.key(0), hyper))
    treedef = jax.tree.structure(state.learned.params["q"])
    leaves, adam = (
        [np.float64(x) for x in jax.tree.leaves(state.learned.params)],
        references.Adam(0.01, 0.5),
    )
    for _ in range(2):
        obs, action = (
            RNG.normal(size=(1, 6, 2)).astype(np.float32),
            RNG.integers(0, 2, (1, 6)).astype(np.int32),
        )
        target = 3.0 * RNG.normal(size=(1, 6)).astype(np.float32)
        data = OnPolicyBatch(obs, action, np.zeros((1, 6), bool), {}, {}, {"q_target": target})
        state, metrics, _ = step(state, data)

        def loss(leaves, obs=obs, action=action, target=target):
            q = references.mlp(treedef.unflatten(leaves), np.float64(obs))
            return 0.5 * np.mean(
                (np.take_along_axis(q, action[..., None], -1)[..., 0] - target) ** 2
            )

        np.testing.assert_allclose(metrics["q_loss"], loss(leaves), rtol=1e-4)
        leaves = adam.step(leaves, references.gradient(loss, leaves))
        for got, want in zip(jax.tree.leaves(state.learned.params), leaves, strict=True):
            np.testing.assert_allclose(got, want, atol=1e-4)


def test_a_forbidden_action_is_never_the_best():
    obs = {"x": tiny.OBS, "action_mask": jax.ShapeDtypeStruct((2,), jnp.bool_)}
    agent = small_pqn().build(SPEC._replace(obs=obs), E)
    q, mask = jnp.array([[[1.0, 5.0], [3.0, 2.0]]]), jnp.array([[[True, False], [True, True]]])
    seen = {"x": jnp.zeros((1, 2, 2)), "action_mask": mask}
    np.testing.assert_array_equal(agent.data.value(q, seen, None), [[1.0, 3.0]])


def test_continuous_actions_are_refused():
    with pytest.raises(
        ValueError,
        match="algo=pqn does not work with the continuous actions of line: write algo=ppo",
    ):
        bind(small_pqn(), tiny.line(discrete=False).spec, 4)
