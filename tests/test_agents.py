"""Multi-agent environments: spaces and rewards, networks, targets and optimizers of agents, and the
probes with two agents, each of which fails for a bug that only multi-agent code can have.
"""

import csv
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_fast as jf
from jaxrl_fast.algorithms.multi_agent import TAKES_PART, targets_of_agents, with_own_optimizers
from jaxrl_fast.algorithms.pqn_vdn import best_together, taken_together
from jaxrl_fast.assembly import bind, build_graph
from jaxrl_fast.core import OUT, STATE, Discrete, EnvSpec, Timestep, Transition
from jaxrl_fast.envs.env import Env, VecEnv, vectorize
from jaxrl_fast.envs.env_checks import check_start
from jaxrl_fast.envs.probes import TWO_AGENTS
from jaxrl_fast.learning.algorithm import Learned, Part, Values, apply_apart, init_params
from jaxrl_fast.learning.rollout import start, unroll
from jaxrl_fast.learning.run_graph import GraphOptions
from jaxrl_fast.networks.network import Network, make_network
from jaxrl_fast.networks.per_agent import obs_of_one, separate_networks, shared_network
from jaxrl_fast.numerics.normalization import init_stats, update_stats
from jaxrl_fast.numerics.optimizers import Linear, make_optimizer
from jaxrl_fast.policy.exporting import export_policy
from jaxrl_fast.policy.policies import PolicyParams, make_policy
from jaxrl_fast.runtime import graph as graphs
from jaxrl_fast.tuning.ceiling import random_actions

RNG = np.random.default_rng(1)
NUM_ENVS = 16


def counting(num_agents: int | None = 2, *, shared_reward: bool = False, **changes) -> Env:
    """Build a two-step environment: agent i is paid ``10 * i + action``; a shared reward is the sum
    of the actions.
    """
    obs = {"seen": jnp.zeros((2, 3)), STATE: jnp.zeros(4), OUT: jnp.zeros(2, bool)} | changes
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), obs)
    spec = EnvSpec(
        "counting", shapes, Discrete(2), 2, num_agents=num_agents, shared_reward=shared_reward
    )

    def step(state, action, key):
        own = 10.0 * jnp.arange(2) + action
        reward = jnp.sum(action).astype(jnp.float32) if shared_reward else own
        return state, Timestep(obs, obs, reward, jnp.zeros((), bool), jnp.zeros((), bool))

    return Env(spec, lambda key, params: (jnp.zeros(()), obs), step, shortest_episode=2)


@pytest.mark.parametrize("shared", [False, True])
def test_an_episode_counts_what_the_team_and_what_each_agent_got(shared: bool):
    single = counting(shared_reward=shared)
    check_start(single, "counting")
    env = vectorize(single, num_envs=3)
    state, _ = env.reset(jax.random.key(0))
    bank = env.draw_fresh(jax.random.key(1), 4)
    assert random_actions(env, jax.random.key(0)).shape == (3, 2)
    action = jnp.array([[0, 1], [1, 1], [0, 0]])
    for t in range(4):
        state, timestep = env.step(state, action, jax.random.key(2), bank, t)
    assert timestep.truncated.tolist() == [True] * 3 and not timestep.terminated.any()
    assert timestep.episode.length.tolist() == [2, 2, 2]
    if shared:
        assert timestep.episode.agents == () and timestep.episode.returns.tolist() == [
            2.0,
            4.0,
            0.0,
        ]
    else:
        assert timestep.episode.agents.tolist() == [[0.0, 22.0], [2.0, 22.0], [0.0, 20.0]]
        assert timestep.episode.returns.tolist() == [22.0, 24.0, 20.0]


BAD_WORLDS = {
    "num_agents=0: write a whole number of at least 1": counting(0),
    r"observation of shape \[3\]: with num_agents=2 write \[2, ...\]": counting(seen=jnp.zeros(3)),
    r"'out' is float32\[2\]: write bool\[2\]": counting(out=jnp.zeros(2)),
    r"action_mask has shape \[2\]: write one bool for each of the 2 actions of each agent": counting(
        action_mask=jnp.ones(2, bool)
    ),
    r"step gives reward float32\[\]: write for each agent one real number, shape \[2\]": counting(
        shared_reward=True
    )._replace(spec=counting().spec),
    r"step gives reward float32\[2\]: write one real number, shape \[\]": counting()._replace(
        spec=counting(shared_reward=True).spec
    ),
}


@pytest.mark.parametrize("message", BAD_WORLDS)
def test_a_world_that_is_not_what_it_says_is_refused(message: str):
    with pytest.raises(ValueError, match=message):
        check_start(BAD_WORLDS[message], "world")


def test_the_world_of_the_docs_is_one():
    text = (Path(__file__).parent.parent / "docs" / "algorithms.md").read_text()
    scope: dict = {}
    exec(text.partition("```python\n")[2].partition("```")[0], scope)
    env = scope["make"](4)
    check_start(env, "meeting")
    agent = bind(jf.mappo(), env.spec, 4)
    assert env.spec.num_agents == 4 and set(agent.parts) == {"actor", "critic"}


def test_algorithms_are_for_one_agent_or_for_several():
    several, one = (
        counting().spec,
        EnvSpec("alone", jax.ShapeDtypeStruct((2,), jnp.float32), Discrete(2)),
    )
    for algorithm in (jf.ppo(), jf.pqn(), jf.dqn()):
        with pytest.raises(
            ValueError,
            match=r"is for one agent, and counting has 2: write algo=ippo, algo=mappo or",
        ):
            bind(algorithm, several, 4)
    for algorithm in (jf.ippo(), jf.mappo(), jf.pqn_vdn()):
        with pytest.raises(
            ValueError, match="is for several agents, and alone has one: write algo=ppo"
        ):
            bind(algorithm, one, 4)
    with pytest.raises(ValueError, match="no key 'state': write some of seen"):
        blind = several._replace(obs={"seen": several.obs["seen"]})
        bind(jf.mappo(critic_keys=("state",)), blind, 4)


def observations(steps: int, num_envs: int) -> dict:
    """Build a batch of three agents, ``[steps, num_envs, 3, ...]``."""
    return {
        "a": jnp.asarray(RNG.normal(size=(steps, num_envs, 3, 4)), jnp.float32),
        "b": jnp.asarray(RNG.normal(size=(steps, num_envs, 3, 2)), jnp.float32),
        STATE: jnp.zeros((steps, num_envs, 5)),
        OUT: jnp.zeros((steps, num_envs, 3), bool),
    }


def networks(obs: dict, recurrent_size: int) -> tuple[Network, Network, Network]:
    """Build a network for one agent, and the two ways to build a network for all agents from it."""
    spec = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), obs)
    one, numbered = (
        make_network(
            obs_of_one(spec, 3, shared=shared), 2, hidden=(8,), recurrent_size=recurrent_size
        )
        for shared in (False, True)
    )
    return one, separate_networks(one, 3), shared_network(numbered, 3)


@pytest.mark.parametrize("recurrent_size", [0, 4])
def test_networks_of_all_agents_say_what_that_of_each_would(recurrent_size: int):
    obs, first = observations(5, 2), jnp.zeros((5, 2), bool).at[0].set(True).at[3, 1].set(True)
    one, separate, shared = networks(obs, recurrent_size)
    own, together = (
        jax.jit(separate.init)(jax.random.key(0)),
        jax.jit(shared.init)(jax.random.key(1)),
    )
    outputs, after = jax.jit(separate.apply)(own, separate.initial_memory(2), obs, first)
    say, alone = jax.jit(shared.apply), jax.jit(one.apply)
    numbered, _ = say(together, shared.initial_memory(2), obs, first)
    assert outputs.shape == numbered.shape == (5, 2, 3, 2)
    for i in range(3):
        mine = {"a": obs["a"][:, :, i], "b": obs["b"][:, :, i]}
        params = jax.tree.map(lambda x, i=i: x[i], own)
        expected, memories = alone(params, one.initial_memory(2), mine, first)
        np.testing.assert_allclose(outputs[:, :, i], expected, atol=1e-6)
        for x, y in zip(jax.tree.leaves(after), jax.tree.leaves(memories), strict=True):
            np.testing.assert_allclose(x[:, :, i], y, atol=1e-6)
        # The agents' shared network gives the same output for agent i in agent i's place.
        alike = {**obs, "a": obs["a"].at[:].set(obs["a"][:, :, i : i + 1])}
        alike |= {"b": obs["b"].at[:].set(obs["b"][:, :, i : i + 1])}
        others, _ = say(together, shared.initial_memory(2), alike, first)
        np.testing.assert_allclose(others[:, :, i], numbered[:, :, i], atol=1e-6)
        # it sees its number
        assert not np.allclose(others[:, :, (i + 1) % 3], numbered[:, :, i], atol=1e-3)
    for network, params in ((separate, own), (shared, together)):
        memory = jax.tree.map(lambda x: jnp.stack([x] * 5), network.initial_memory(2))
        apart, _ = jax.jit(partial(apply_apart, network))(params, memory, obs, jnp.ones_like(first))
        each, _ = jax.jit(network.apply)(
            params, network.initial_memory(2), obs, jnp.ones_like(first)
        )
        np.testing.assert_allclose(apart, each, atol=1e-6)


def test_agents_with_networks_of_their_own_have_optimizers_of_their_own():
    separate = networks(observations(1, 1), 0)[1]
    hyper = jf.ppo(max_grad_norm=0.1).hyper
    part = Part({"policy": separate}, lambda *given: None, {"policy": make_optimizer("adam")})
    optimizer, alone = (
        with_own_optimizers(part).optimizers["policy"](hyper),
        make_optimizer("adam")(hyper),
    )
    params = jax.jit(separate.init)(jax.random.key(0))
    grads = jax.tree.map(lambda x: jnp.asarray(RNG.normal(size=x.shape), x.dtype), params)
    grads = jax.tree.map(
        lambda x: x * jnp.array([1.0, 10.0, 1e-3]).reshape(3, *[1] * (x.ndim - 1)), grads
    )
    change, _ = jax.jit(optimizer.update)(grads, optimizer.init(params), params)
    step = jax.jit(alone.update)
    for i in range(3):
        mine, mine_grads = jax.tree.map(lambda x, i=i: x[i], (params, grads))
        expected, _ = step(mine_grads, alone.init(mine), mine)
        jax.tree.map(
            partial(np.testing.assert_allclose, rtol=1e-5),
            jax.tree.map(lambda x, i=i: x[i], change),
            expected,
        )


@pytest.mark.parametrize("shared", [False, True])
def test_an_agent_that_goes_out_ends_its_own_return_but_not_the_teams(shared: bool):
    hyper = jf.ppo(discount=0.5, gae_lambda=1.0).hyper
    # [T, E, A]: agent 1 leaves after a step
    out = jnp.array([[[False, False]], [[False, True]], [[False, True]]])
    next_out = jnp.concatenate([out[1:], out[-1:]])
    flag, ended = jnp.zeros((3, 1), bool), jnp.array([[False], [False], [True]])
    reward = jnp.ones((3, 1)) if shared else jnp.ones((3, 1, 2))
    rollout = Transition(
        {OUT: out}, jnp.zeros((3, 1, 2)), reward, {OUT: next_out}, ended, flag, flag, ()
    )
    zeros = jnp.zeros((3, 1, 2))
    found = targets_of_agents(counting(shared_reward=shared).spec)(
        Values(zeros, zeros), rollout, hyper
    )
    assert found["value_target"][0, 0].tolist() == ([1.75, 1.75] if shared else [1.75, 1.0])
    assert found[TAKES_PART][:, 0].tolist() == [[True, True], [True, False], [True, False]]
    if shared:  # one value for the team
        found = targets_of_agents(counting(shared_reward=True).spec)(
            Values(flag * 0.0, flag * 0.0), rollout, hyper
        )
        assert found["value_target"].shape == (3, 1) and found["advantage"][0, 0].tolist() == [
            1.75,
            1.75,
        ]


def test_a_teams_value_sums_what_is_allowed_over_the_agents_that_take_part():
    num_steps, num_agents, num_actions = 20, 3, 4
    q = RNG.normal(size=(num_steps, num_agents, num_actions)).astype(np.float32)
    mask = RNG.random(q.shape) < 0.6
    mask[..., 1] = True
    out, action = RNG.random(q.shape[:2]) < 0.4, RNG.integers(num_actions, size=q.shape[:2])
    best, taken = np.zeros((2, num_steps), np.float32)
    for t in range(num_steps):
        for agent in np.flatnonzero(~out[t]):
            best[t] += max(q[t, agent, a] for a in range(num_actions) if mask[t, agent, a])
            taken[t] += q[t, agent, action[t, agent]]
    assert (best != np.where(out, 0.0, q.max(axis=-1)).sum(axis=-1)).any(), "masks matter here"
    space = Discrete(num_actions)
    obs = {
        "seen": jnp.zeros((num_steps, num_agents, 1)),
        "action_mask": jnp.asarray(mask),
        OUT: jnp.asarray(out),
    }
    np.testing.assert_allclose(best_together(space, jnp.asarray(q), obs, None), best, rtol=1e-5)
    np.testing.assert_allclose(
        taken_together(space, jnp.asarray(q), obs, jnp.asarray(action)), taken, rtol=1e-5
    )


def one_of(which: jax.Array) -> VecEnv:
    """Build the two-agent probe number ``which``, where ``which`` is an argument of the compiled
    program.
    """
    probes = [make() for make in TWO_AGENTS.values()]

    def reset(key, params):
        return jax.lax.switch(which, [probe.reset for probe in probes], key, params)

    def step(state, action, key):
        return jax.lax.switch(which, [probe.step for probe in probes], state, action, key)

    return vectorize(Env(probes[0].spec, reset, step), num_envs=NUM_ENVS)


COMMON = dict(
    learning_rate=Linear(1e-2, 0.0),
    discount=0.8,
    rollout_length=16,
    num_epochs=4,
    num_minibatches=4,
)
NETWORKS = dict(policy_hidden=(16,), value_hidden=(16,), entropy_coef=0.001)
ALGORITHMS = {
    "ippo": jf.ippo(**COMMON, **NETWORKS, share_parameters=False),
    "mappo": jf.mappo(**COMMON, **NETWORKS),
    "pqn_vdn": jf.pqn_vdn(**COMMON, epsilon=0.3, q_hidden=(16,), layer_norm=False),
}


@cache
def trained(name: str):
    """Return the mean return of the greedy policy in each probe, the critic's value in
    ``two_state`` where the state is 1, and the actions in all probes.
    """
    algorithm, total_steps = ALGORITHMS[name], 10_000
    agent = bind(algorithm, one_of(jnp.int32(0)).spec, NUM_ENVS)

    def run(which, key):
        env = one_of(which)
        graph, _ = build_graph(env, algorithm, GraphOptions(total_steps=total_steps))
        state = graphs.init(graph, key, algorithm.hyper)
        ticks = total_steps // (NUM_ENVS * agent.rollout_length)
        private = jax.lax.scan(lambda s, _: (graphs.tick(graph, s)[0], None), state, length=ticks)[
            0
        ].private
        learned = {part: state.learned for part, state in private["learn"].items()}

        def greedy(carry, obs, first, key):
            action, carry = agent.acting.greedy(
                agent.acting.greedy_weights(learned), carry, obs, first, key
            )
            return action, carry, ()

        carry = agent.acting.greedy_carry(NUM_ENVS)
        _, rollout, metrics = unroll(env, greedy, start(env, carry, key), key, 64)
        (network_name, network), *_ = agent.parts["critic"].networks.items()
        obs = {
            "own": jnp.ones((1, 1, 2, 1)),
            STATE: jnp.ones((1, 1, 1)),
            OUT: jnp.zeros((1, 1, 2), bool),
        }
        params = learned["critic"].params[network_name]
        outputs, _ = network.apply(params, network.initial_memory(1), obs, jnp.ones((1, 1), bool))
        return (
            metrics["episode_return_sum"] / metrics["episodes"],
            outputs.reshape(-1),
            rollout.action,
        )

    scores, values, actions = jax.jit(jax.vmap(run, (0, None)))(
        jnp.arange(len(TWO_AGENTS)), jax.random.key(1)
    )
    places = {probe: i for i, probe in enumerate(TWO_AGENTS)}
    return (
        {probe: float(scores[i]) for probe, i in places.items()},
        values[places["two_state"]],
        actions[places["two_out"]],
    )


@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_agents_learn_what_only_two_can_get_wrong(name: str):
    scores, values, actions = trained(name)
    assert scores["two_credit"] == pytest.approx(2.0, abs=0.02)
    assert scores["two_observations"] == pytest.approx(2.0, abs=0.02)
    assert (np.asarray(actions) == 1).all()
    if name.startswith("mappo"):
        assert values.tolist() == pytest.approx([1.0, -1.0], abs=0.05)


@pytest.mark.parametrize("shared", [False, True])
def test_one_agents_policy_does_what_that_of_all_does_in_its_place(shared: bool, tmp_path):
    spec, sizes = counting().spec, dict(policy_hidden=(4,), value_hidden=(4,), recurrent_size=3)
    algorithm = jf.mappo(**sizes, share_parameters=shared, normalize_observations=True)
    agent = bind(algorithm, spec, 4)
    learned = {
        "actor": Learned(jax.jit(partial(init_params, agent.parts["actor"]))(jax.random.key(0)))
    }
    seen = jax.tree.map(
        lambda s: jnp.asarray(3.0 * RNG.normal(size=(6, *s.shape)) + 1.0, s.dtype), spec.obs
    )
    params = PolicyParams(
        agent.acting.greedy_weights(learned), update_stats(init_stats(spec.obs), seen, 1)
    )
    made_by = {"algo": "mappo", "options": algorithm.options, "normalize_observations": True}
    policy = make_policy(spec, agent.acting, params, made_by)
    first, key = jnp.array([True, False, True, False, False, True]), jax.random.key(0)
    carry = jax.tree.map(lambda x: x + 0.5, policy.initial_carry(6))
    together, after = jax.jit(policy.act)(policy.params, carry, seen, first, key)
    for number in range(2):
        alone = policy.agent(number)
        assert alone.spec.num_agents is None and alone.spec.obs == {
            "seen": jax.ShapeDtypeStruct((3,), jnp.float32)
        }
        mine, own = jax.tree.map(lambda x, i=number: x[:, i], (seen["seen"], carry))
        action, own = jax.jit(alone.act)(alone.params, own, {"seen": mine}, first, key)
        assert action.tolist() == together[:, number].tolist()
        for x, y in zip(jax.tree.leaves(own), jax.tree.leaves(after), strict=True):
            np.testing.assert_allclose(x, y[:, number], atol=1e-6)
    assert export_policy(alone, tmp_path, "jax")[1].endswith("0 actions differ from the policy's")
    with pytest.raises(ValueError, match="counting has 2, write a number from 0 to 1"):
        policy.agent(2)
    with pytest.raises(ValueError, match="counting has one agent: use its policy directly"):
        alone.agent(0)
    with pytest.raises(ValueError, match="the policy of agent 1 cannot be saved alone"):
        jf.save_policy(alone, tmp_path)


def test_a_run_of_several_agents_leaves_what_one_of_a_single_one_does(tmp_path):
    env = vectorize(TWO_AGENTS["two_credit"](), num_envs=4)
    algo = jf.mappo(
        rollout_length=4,
        policy_hidden=(4,),
        value_hidden=(4,),
        recurrent_size=3,
        share_parameters=False,
    )
    result = jf.learn(
        env, algo, total_steps=32, eval_every=32, eval_episodes=3, run_dir=tmp_path / "run"
    )
    with (tmp_path / "run" / "evals.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [
        "seed",
        "env_steps",
        "wall_s",
        "return",
        "length",
        "return_0",
        "return_1",
    ]
    assert all(
        float(row["return"]) == float(row["return_0"]) + float(row["return_1"]) for row in rows
    )
    policy = jf.load_policy(tmp_path / "run" / "policy")
    assert policy.spec == env.spec
    obs, first = env.reset(jax.random.key(0))[1], jnp.ones(4, bool)
    for own in (policy, result.policy):
        action, _ = own.act(own.params, own.initial_carry(4), obs, first, jax.random.key(0))
        assert action.shape == (4, 2) and action.dtype == jnp.int32
    for name in ("jax", "onnx"):
        assert export_policy(policy, tmp_path, name)[1].endswith(
            "0 actions differ from the policy's"
        )
