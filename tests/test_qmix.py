"""QMIX's mixing network, its updates against a slow NumPy reference, and the game that VDN cannot
represent.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from hypothesis import given
from hypothesis import strategies as st

import jaxrl_fast as jf
from jaxrl_fast.algorithms.pqn_vdn import best_together, mix, taken_together
from jaxrl_fast.assembly import bind, build_graph
from jaxrl_fast.core import OUT, STATE, Discrete, EnvSpec, Extras, Timestep, Transition
from jaxrl_fast.envs.env import Env, vectorize
from jaxrl_fast.learning.algorithm import OnPolicyBatch, Values
from jaxrl_fast.learning.minibatches import values_of
from jaxrl_fast.learning.rollout import start, unroll
from jaxrl_fast.learning.run_graph import GraphOptions
from jaxrl_fast.learning.updates import init_part, update
from jaxrl_fast.policy.exporting import export_policy
from jaxrl_fast.runtime import graph as graphs
from jaxrl_fast.runtime import placements

RNG = np.random.default_rng(3)
A, SIZE, B = 2, 4, 5
PAYOFFS = np.array([[[7.0, 7.0], [7.0, 7.0]], [[0.0, 1.0], [1.0, 8.0]]], np.float32)
"""Rewards of the second step, by the first action of agent 0, then by both actions (section 6.1 of
the paper).
"""


def two_step() -> Env:
    """Build the two-step game: agent 0 chooses one of two matrix games, which both then play. The
    best return is 8.
    """
    shapes = {
        "own": jax.ShapeDtypeStruct((A, 3), jnp.float32),
        STATE: jax.ShapeDtypeStruct((3,), jnp.float32),
    }

    def observe(place):
        return {"own": jnp.tile(jnp.eye(3)[place], (A, 1)), STATE: jnp.eye(3)[place]}

    def step(place, action, key):
        last = place > 0
        paid = jnp.asarray(PAYOFFS)[jnp.maximum(place - 1, 0), action[0], action[1]]
        following = jnp.where(last, place, 1 + action[0])
        obs = observe(following)
        return following, Timestep(obs, obs, jnp.where(last, paid, 0.0), last, jnp.zeros((), bool))

    def reset(key, params):
        return jnp.int32(0), observe(jnp.int32(0))

    spec = EnvSpec("two_step", shapes, Discrete(2), 2, num_agents=A, shared_reward=True)
    return Env(spec, reset, step, shortest_episode=2)


def weights_of(*shape: int, size: int = SIZE) -> dict[str, np.ndarray]:
    sizes = {"first": A * size, "bias": size, "last": size, "value": 1}
    return {name: RNG.normal(size=(*shape, 1, n)).astype(np.float32) for name, n in sizes.items()}


def mixed(q, first, bias, last, value):
    """Compute the value of one team: a network with absolute weights and an ELU."""
    total = value[0]
    for j in range(len(bias)):
        z = bias[j] + sum(abs(first[i * len(bias) + j]) * q[i] for i in range(A))
        total += abs(last[j]) * (z if z > 0 else np.expm1(z))
    return total


@given(
    st.lists(st.floats(-20.0, 20.0), min_size=A, max_size=A),
    st.integers(0, A - 1),
    st.floats(0.0, 20.0),
)
def test_the_value_of_the_team_grows_with_that_of_every_agent(q, agent, more):
    weights, q = weights_of(), jnp.asarray(q, jnp.float32)
    low, high = mix(q, weights), mix(q.at[agent].add(more), weights)
    assert high >= low - 1e-5 * (1.0 + abs(float(low)))


def test_values_of_the_team_equal_numpy_with_masks_and_without_agents_that_are_out():
    steps, num_actions = 20, 3
    q, weights = RNG.normal(size=(steps, A, num_actions)).astype(np.float32), weights_of(steps)
    mask = RNG.random(q.shape) < 0.6
    mask[..., 1] = True
    out, action = RNG.random((steps, A)) < 0.4, RNG.integers(num_actions, size=(steps, A))
    best, taken = np.zeros((2, steps))
    for t in range(steps):
        own = [
            np.where(out[t], 0.0, np.where(mask[t], q[t], -np.inf).max(-1)),
            q[t, np.arange(A), action[t]],
        ]
        own[1] = np.where(out[t], 0.0, own[1])
        best[t], taken[t] = (mixed(x, *(weights[name][t, 0] for name in weights)) for x in own)
    obs = {"own": jnp.zeros((steps, A, 1)), "action_mask": jnp.asarray(mask), OUT: jnp.asarray(out)}
    outputs, space = jax.tree.map(jnp.asarray, (q, weights)), Discrete(num_actions)
    np.testing.assert_allclose(best_together(space, outputs, obs, None), best, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        taken_together(space, outputs, obs, jnp.asarray(action)), taken, rtol=1e-4, atol=1e-5
    )


def small_qmix(**options):
    rates = dict(
        learning_rate=0.01,
        discount=0.9,
        q_lambda=0.7,
        max_grad_norm=0.5,
        optimizer="adam",
        epsilon=0.1,
    )
    sizes = dict(
        q_hidden=(3,), mixer_size=SIZE, mixer_hidden=(3,), rollout_length=4, num_minibatches=1
    )
    return jf.pqn_vdn(
        **rates | sizes | dict(mixer="qmix", activation="tanh", layer_norm=False) | options
    )


def places(*shape: int) -> dict:
    own, state = (
        RNG.normal(size=(*shape, A, 3)).astype(np.float32),
        RNG.normal(size=(*shape, 3)).astype(np.float32),
    )
    return {"own": own, STATE: state}


def q_and_weights(networks: dict, obs: dict):
    """Compute the outputs of both networks: agents read their one-hot number, then their
    observation.
    """
    numbers = np.broadcast_to(np.eye(A), (*obs["own"].shape[:-1], A))
    q = references.mlp(networks["q"], np.concatenate([numbers, np.float64(obs["own"])], -1))
    outputs = references.mlp(networks["mixer"], np.float64(obs[STATE]))
    return q, np.split(outputs, np.cumsum([A * SIZE, SIZE, SIZE]), -1)


def of_team(q, weights):
    """Compute the team's values ``[L, B]`` from the agents' ``[L, B, A]``."""
    each = [
        [mixed(q[t, b], *(w[t, b] for w in weights)) for b in range(q.shape[1])]
        for t in range(q.shape[0])
    ]
    return np.array(each)


def test_an_update_and_the_values_of_a_rollout_equal_numpy():
    spec = two_step().spec
    algorithm = small_qmix()
    agent, hyper = algorithm.build(spec, B), algorithm.hyper
    part = agent.parts["critic"]
    state = jax.jit(lambda key: init_part(part, key, hyper))(jax.random.key(0))
    params = jax.tree.map(
        lambda x: x + 0.3 * RNG.normal(size=x.shape).astype(np.float32), state.learned.params
    )
    state = state._replace(learned=state.learned._replace(params=params))
    treedefs = {name: jax.tree.structure(tree) for name, tree in params.items()}
    obs, action = places(1, B), RNG.integers(0, 2, (1, B, A)).astype(np.int32)
    target = 3.0 * RNG.normal(size=(1, B)).astype(np.float32)
    data = OnPolicyBatch(obs, action, np.zeros((1, B), bool), {}, {}, {"q_target": target})
    got, metrics, _ = jax.jit(
        lambda state, data: update(part, state, {}, data, jax.random.key(0), hyper)
    )(state, data)
    leaves = {name: [np.float64(x) for x in jax.tree.leaves(tree)] for name, tree in params.items()}

    def loss(own, name):
        networks = {
            key: treedefs[key].unflatten(own if key == name else leaves[key]) for key in leaves
        }
        q, weights = q_and_weights(networks, obs)
        return 0.5 * np.mean(
            (of_team(np.take_along_axis(q, action[..., None], -1)[..., 0], weights) - target) ** 2
        )

    np.testing.assert_allclose(metrics["q_loss"], loss(leaves["q"], "q"), rtol=1e-4)
    for name, own in leaves.items():
        grads = references.gradient(partial(loss, name=name), own)
        wanted = references.Adam(0.01, 0.5).step(own, grads)
        for x, y in zip(jax.tree.leaves(got.learned.params[name]), wanted, strict=True):
            np.testing.assert_allclose(x, y, atol=1e-4)

    flags = np.zeros((3, B), bool)
    steps = Transition(
        places(3, B),
        RNG.integers(0, 2, (3, B, A)),
        flags * 0.0,
        places(3, B),
        *[flags] * 3,
        Extras({}, {}),
    )
    found = jax.jit(lambda learned: values_of(agent, agent.data, steps, {"critic": learned}))(
        state.learned
    )
    networks = {name: treedefs[name].unflatten(leaves[name]) for name in leaves}
    wanted = Values(
        *(
            of_team(q.max(-1), w)
            for q, w in (q_and_weights(networks, x) for x in (steps.obs, steps.next_obs))
        )
    )
    np.testing.assert_allclose(found.next, wanted.next, rtol=1e-4)


def greedy_return(mixer: str) -> float:
    """Train with random actions only, as in the paper, and return the mean return of the greedy
    policy.
    """
    env = vectorize(two_step(), num_envs=16)
    rates = dict(learning_rate=5e-3, discount=0.99, q_lambda=0.0, epsilon=1.0)
    sizes = dict(
        rollout_length=16,
        num_epochs=4,
        num_minibatches=4,
        q_hidden=(16,),
        mixer_size=8,
        mixer_hidden=(16,),
    )
    algorithm = jf.pqn_vdn(**rates, **sizes, mixer=mixer, layer_norm=False)
    agent = bind(algorithm, env.spec, 16)
    graph, _ = build_graph(env, algorithm, GraphOptions(total_steps=16_384))

    def run(key):
        state = graphs.init(graph, key, algorithm.hyper)
        state = jax.lax.scan(lambda s, _: (graphs.tick(graph, s)[0], None), state, length=64)[0]
        learned = {part: own.learned for part, own in state.private["learn"].items()}

        def greedy(carry, obs, first, key):
            action, carry = agent.acting.greedy(
                agent.acting.greedy_weights(learned), carry, obs, first, key
            )
            return action, carry, ()

        _, _, metrics = unroll(env, greedy, start(env, agent.acting.greedy_carry(16), key), key, 16)
        return metrics["episode_return_sum"] / metrics["episodes"]

    return float(jax.jit(run)(jax.random.key(0)))


@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize(("mixer", "best"), [("vdn", 7.0), ("qmix", 8.0)])
def test_qmix_solves_the_two_step_game_that_sums_cannot_represent(mixer: str, best: float):
    """The best sums are 6.5 or less in the second game, so that VDN takes the first."""
    assert greedy_return(mixer) == pytest.approx(best)


def test_a_policy_of_qmix_needs_no_state_and_is_rebuilt(tmp_path):
    algorithm = small_qmix(recurrent_size=3, share_parameters=False)
    env = vectorize(two_step(), num_envs=4)
    result = jf.learn(
        env, algorithm, total_steps=32, eval_episodes=2, tell=lambda line: None, num_seeds=2
    )
    jf.save_policy(result.policy, tmp_path)
    policy = jf.load_policy(tmp_path)
    assert set(result.policy.params.parts) == {"critic"} and "mixer" not in str(
        jax.tree.structure(policy.params)
    )
    assert export_policy(policy, tmp_path, "jax")[1].endswith("0 actions differ from the policy's")


def test_without_a_state_the_mixer_reads_all_observations():
    spec = two_step().spec
    blind = spec._replace(obs={"own": spec.obs["own"]})
    for own, inputs in ((spec, 3), (blind, A * 3)):
        params = jax.eval_shape(
            small_qmix().build(own, 4).parts["critic"].networks["mixer"].init, jax.random.key(0)
        )
        assert params["params"]["Dense_0"]["kernel"].shape == (inputs, 3)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="mixer=sum: write one of vdn, qmix"):
        small_qmix(mixer="sum")
    with pytest.raises(ValueError, match="mixer_size=0: write a positive number"):
        bind(small_qmix(mixer_size=0), two_step().spec, 4)
    graph, _ = build_graph(vectorize(two_step(), num_envs=4), small_qmix(share_parameters=False))
    with pytest.raises(graphs.GraphError, match=r"\(and algo\.mixer=vdn"):
        placements.agents(graph, jax.devices()[:2])
