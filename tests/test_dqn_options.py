"""DQN's options against slow NumPy references: ε by environment, Munchausen, noisy nets, quantiles
at random levels.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
import replay_walks
import tiny

import jaxrl_fast as jf
from jaxrl_fast.assembly import bind
from jaxrl_fast.learning.algorithm import Learned, ReplayBatch, init_params
from jaxrl_fast.learning.critics import with_levels
from jaxrl_fast.learning.updates import init_part, update
from jaxrl_fast.networks.network import make_network
from jaxrl_fast.networks.noisy import NOISE
from jaxrl_fast.numerics.normalization import normalize
from jaxrl_fast.policy.exporting import export_policy

RNG = np.random.default_rng(11)
B, N, GAMMA = 6, 3, 0.9
MASKED = {"action_mask": jax.ShapeDtypeStruct((N,), jnp.bool_), "x": tiny.OBS}
SPEC = tiny.line(discrete=True).spec._replace(obs=MASKED, action=jf.Discrete(N))
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


def observations(*shape: int) -> dict:
    mask = RNG.random((*shape, N)) < 0.6
    mask[..., 1] = True
    return {"action_mask": mask, "x": RNG.normal(size=(*shape, 2)).astype(np.float32)}


def batch() -> ReplayBatch:
    bootstrap = np.float32(GAMMA) * (RNG.random((1, B)) < 0.7)
    action, reward = np.ones((1, B), np.int32), 3.0 * RNG.normal(size=(1, B)).astype(np.float32)
    return ReplayBatch(
        observations(1, B), action, reward, bootstrap.astype(np.float32), observations(1, B), {}
    )


def huber(error):
    return np.where(np.abs(error) <= 1, 0.5 * error**2, np.abs(error) - 0.5)


@pytest.mark.parametrize("make", [jf.dqn, jf.pqn], ids=lambda make: make.name)
def test_environments_have_separate_shares_of_random_actions(make):
    num_envs, draws, epsilon, spread = 4, 4000, 0.4, 7.0
    agent = bind(
        make(epsilon=epsilon, epsilon_spread=spread, q_hidden=(3,)),
        tiny.line(discrete=True).spec,
        num_envs,
    )
    outputs, hyper = {"critic": jnp.tile(jnp.array([0.0, 1.0]), (num_envs, 1))}, agent.hyper
    choice = agent.acting.initial_carry(num_envs).choice
    decide = make(epsilon_spread=spread).build(tiny.line(discrete=True).spec, num_envs).decide

    def one(key, explore=True):
        return decide(outputs, jnp.zeros((num_envs, 2)), choice, key, hyper, explore)[0]

    actions = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), draws)))
    for i in range(num_envs):  # half of the random actions are the worse one
        wanted = 0.5 * epsilon ** (1.0 + i / (num_envs - 1) * spread)
        assert np.mean(actions[:, i] == 0) == pytest.approx(
            wanted, abs=3.0 * np.sqrt(wanted / draws) + 1e-9
        )
    assert one(jax.random.key(0), explore=False).tolist() == [1] * num_envs


def test_without_a_spread_nothing_is_stored_and_one_environment_has_epsilon():
    spec = tiny.line(discrete=True).spec
    assert bind(small_dqn(), spec, 4).acting.initial_carry(4).choice == ()
    np.testing.assert_array_equal(
        bind(small_dqn(epsilon_spread=7.0), spec, 1).acting.initial_carry(1).choice, [1.0]
    )


def softmax_policy(q, mask, temperature):
    """Compute the log-probabilities of one state, -inf where an action is forbidden."""
    allowed = q[mask] / temperature
    log_policy = np.full(len(q), -np.inf)
    log_policy[mask] = allowed - allowed.max() - np.log(np.sum(np.exp(allowed - allowed.max())))
    return log_policy


def munchausen_target(q_now, now_mask, action, reward, bootstrap, following, mask, alpha, tau):
    """Compute equation 2 of arXiv 2007.14430 for one step, with the clip of its section 4;
    quantiles `[N, width]`.
    """
    added = alpha * np.clip(tau * softmax_policy(q_now, now_mask, tau)[action], -1.0, 0.0)
    log_policy = softmax_policy(following.mean(-1), mask, tau)
    soft = sum(
        np.exp(log_policy[a]) * (following[a] - tau * log_policy[a]) for a in np.flatnonzero(mask)
    )
    return reward + added + bootstrap * soft


def quantile_loss(outputs, target):
    shares = (np.arange(len(outputs)) + 0.5) / len(outputs)
    errors = target[None, :] - outputs[:, None]
    return np.sum(np.abs(shares[:, None] - (errors < 0)) * huber(errors)) / len(target)


@pytest.mark.parametrize(("kind", "width"), [("scalar", 1), ("quantiles", 3)])
def test_a_munchausen_update_equals_numpy(kind: str, width: int):
    alpha, tau = 0.9, 0.3  # τ at which the clip acts on some steps and not on others
    algorithm = small_dqn(
        munchausen=alpha, munchausen_temperature=tau, value_head=kind, num_atoms=3
    )
    part, hyper = algorithm.build(SPEC, 4).parts["critic"], algorithm.hyper
    state = jax.jit(lambda key: init_part(part, key, hyper))(jax.random.key(0))
    target = jax.tree.map(
        lambda x: x + RNG.normal(size=x.shape).astype(np.float32), state.learned.target
    )
    state, data = state._replace(learned=state.learned._replace(target=target)), batch()
    treedef = jax.tree.structure(state.learned.params["q"])
    leaves, slow = ([np.float64(x) for x in jax.tree.leaves(tree)] for tree in state.learned)

    def outputs_of(leaves, obs):
        return references.mlp(treedef.unflatten(leaves), np.float64(obs["x"][0])).reshape(
            B, N, width
        )

    now, following = outputs_of(slow, data.obs), outputs_of(slow, data.next_obs)
    wanted, clipped = [], []
    for i in range(B):
        masks, action = (
            (data.obs["action_mask"][0, i], data.next_obs["action_mask"][0, i]),
            data.action[0, i],
        )
        given = data.reward[0, i], data.bootstrap[0, i], following[i]
        wanted.append(
            munchausen_target(now[i].mean(-1), masks[0], action, *given, masks[1], alpha, tau)
        )
        clipped.append(tau * softmax_policy(now[i].mean(-1), masks[0], tau)[action] < -1.0)
    assert 0 < sum(clipped) < B

    def loss(leaves):
        outputs = outputs_of(leaves, data.obs)[np.arange(B), data.action[0]]
        one = quantile_loss if kind == "quantiles" else lambda x, y: huber(x - y)[0]
        return np.mean([one(*x) for x in zip(outputs, wanted, strict=True)])

    got, metrics, _ = jax.jit(
        lambda state, data: update(part, state, {}, data, jax.random.key(0), hyper)
    )(state, data)
    np.testing.assert_allclose(metrics["q_loss"], loss(leaves), rtol=1e-4)
    after = references.Adam(0.01, 0.5).step(leaves, references.gradient(loss, leaves))
    for one, other in zip(jax.tree.leaves(got.learned.params), after, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


ACTIONS = 5
MANY = {"action_mask": jax.ShapeDtypeStruct((ACTIONS,), jnp.bool_), "x": tiny.OBS}
WIDE = SPEC._replace(obs=MANY, action=jf.Discrete(ACTIONS))
MEMORY = dict(recurrent_size=3, memory="mingru", sequence_length=2)


@pytest.mark.parametrize(
    "options",
    [
        dict(double=False, n_step=3),
        dict(double=True, n_step=3),
        dict(**MEMORY, double=True, n_step=2, burn_in=2),
        dict(**MEMORY, munchausen=0.9, munchausen_temperature=0.3, burn_in=3),
        dict(**MEMORY, munchausen=0.9, munchausen_temperature=0.3, burn_in=0, noisy=True),
    ],
)
def test_targets_with_masks_equal_a_walk_through_the_window(options):
    """In every observation, the best action by each of the networks is forbidden; masks of no two
    steps need be equal.

    A window also has the masks of the burn-in, which the loss leaves out.
    """
    agent, hyper, key = small_dqn(**options).build(WIDE, 4), small_dqn().hyper, jax.random.key(0)
    part, data, net = agent.parts["critic"], agent.data, agent.parts["critic"].networks["q"]
    # as `bind` sets them
    data = data if net.recurrent else data._replace(sequence_length=1, burn_in=0)
    online, target = (replay_walks.drawn_params(RNG, part)["q"] for _ in range(2))
    sampled = replay_walks.draw(RNG, data, {"critic": net} if net.recurrent else {}, ACTIONS, B)
    q_now, q_next = replay_walks.walk(net, net.draw_noise(online, key, "online"), sampled, "critic")
    slow_now, slow_next = replay_walks.walk(
        net, net.draw_noise(target, key, "target"), sampled, "critic"
    )
    sampled = replay_walks.forbid(sampled, (q_now, slow_now), (q_next, slow_next))
    batch = replay_walks.batch_of(sampled, data, GAMMA, memory=net.recurrent)
    found = jax.jit(part.gradients)(Learned({"q": online}, {"q": target}), {}, batch, key, hyper)

    steps = jax.tree.map(lambda x: x[0], sampled.steps)
    errors = []
    for b in range(B):
        for begin in replay_walks.starts(data):
            window = slice(begin, begin + data.n_step)
            ends = steps.terminated[b, window], steps.truncated[b, window]
            total, bootstrap, last = references.n_step(steps.reward[b, window], *ends, GAMMA)
            at, action = begin + last, steps.action[b, begin]
            masks = steps.obs["action_mask"][b, begin], steps.next_obs["action_mask"][b, at]
            if "munchausen" in options:
                now, following = slow_now[begin, b], slow_next[at, b][:, None]
                given = action, total, bootstrap, following, masks[1], 0.9, 0.3
                wanted = munchausen_target(now, masks[0], *given)[0]
            else:
                chooser = q_next if options["double"] else slow_next
                best = np.where(masks[1], chooser[at, b], -np.inf).argmax()
                wanted = total + bootstrap * slow_next[at, b, best]
            errors.append(huber(q_now[begin, b, action] - wanted))
    np.testing.assert_allclose(found.metrics["q_loss"], np.mean(errors), rtol=1e-4)


def test_random_levels_go_with_a_memory_and_masks():
    """Only shapes are computed: levels are drawn for all steps at once, so that no walk has the
    same.
    """
    options = dict(
        **MEMORY, value_head="implicit", num_atoms=4, munchausen=0.9, dueling=True, burn_in=3
    )
    agent = small_dqn(**options).build(WIDE, 4)
    part, data = agent.parts["critic"], agent.data
    sampled = replay_walks.draw(RNG, data, {"critic": part.networks["q"]}, ACTIONS, B)
    batch = replay_walks.batch_of(sampled, data, GAMMA, memory=True)
    params = jax.eval_shape(lambda: init_params(part, jax.random.key(0)))
    found = jax.eval_shape(
        part.gradients, Learned(params, params), {}, batch, jax.random.key(0), small_dqn().hyper
    )
    assert jax.tree.map(jnp.shape, found.grads) == jax.tree.map(jnp.shape, params)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            dict(munchausen=0.9, value_head="categorical"),
            "munchausen does not support value_head=categorical: write",
        ),
        (
            dict(munchausen=0.9, n_step=3),
            "munchausen adds to the reward of one step, and n_step=3: write n_step=1",
        ),
        (dict(munchausen=1.5), "munchausen=1.5: write"),
        (
            dict(munchausen_temperature=0.0),
            "munchausen_temperature=0.0: write a number of at least 1e-08",
        ),
        (dict(epsilon_spread=-1.0), "epsilon_spread=-1.0: write a number of at least 0"),
        (dict(value_head="implicit", num_atoms=1), "num_atoms=1: write a number of at least 2"),
    ],
)
def test_what_does_not_fit_is_refused(options, says):
    with pytest.raises(ValueError, match=says):
        bind(small_dqn(**options), SPEC, 4)


def with_weights(params, noise=None, row=0):
    """Return params of dense layers: means, plus deviations times the factorized noise of one row."""
    layers = {}
    for name, layer in params["params"].items():
        kernel, bias = np.float64(layer["kernel"]), np.float64(layer["bias"])
        if noise is not None:
            before, after = (np.float64(noise[name][side]) for side in ("inputs", "outputs"))
            before, after = before[row], after[row]
            kernel = kernel + np.float64(layer["kernel_noise"]) * np.outer(before, after)
            bias = bias + np.float64(layer["bias_noise"]) * after
        layers[name.replace("NoisyDense", "Dense")] = {"kernel": kernel, "bias": bias}
    return {"params": layers}


def test_a_noisy_network_computes_with_factorized_noise_by_row_and_without_noise_with_the_means():
    q = make_network(tiny.OBS, 4, hidden=(5,), activation="tanh", noisy=True)
    params, obs = jax.jit(q.init)(jax.random.key(0)), RNG.normal(size=(1, B, 2)).astype(np.float32)
    assert params["params"]["NoisyDense_0"]["kernel_noise"][0, 0] == pytest.approx(0.5 / np.sqrt(2))
    apply, first = (
        jax.jit(lambda params: q.apply(params, (), obs, jnp.zeros((1, B), bool))[0]),
        None,
    )
    np.testing.assert_allclose(
        apply(params), references.mlp(with_weights(params), np.float64(obs)), rtol=1e-4
    )
    draw = jax.jit(q.draw_noise, static_argnums=(2, 3))
    for rows in (1, B):
        noisy = draw(params, jax.random.key(1), "acting", rows)
        got = np.asarray(apply(noisy))
        for i in range(B):
            weights = with_weights(params, noisy[NOISE], i % rows)
            np.testing.assert_allclose(
                got[0, i], references.mlp(weights, np.float64(obs[0, i])), rtol=1e-3, atol=1e-5
            )
        noise = np.asarray(noisy[NOISE]["NoisyDense_0"]["inputs"])
        assert noise.shape == (rows, 2) and len(np.unique(noise)) == noise.size
        first = noise if first is None else first
    other = draw(params, jax.random.key(1), "target", 1)[NOISE]["NoisyDense_0"]["inputs"]
    assert not np.allclose(first, other), "roles have separate noise"
    many = np.asarray(
        draw(params, jax.random.key(2), "acting", 20_000)[NOISE]["NoisyDense_0"]["inputs"]
    )
    # f(x) = sgn(x) √|x| of a normal
    np.testing.assert_allclose((np.sign(many) * many**2).std(), 1.0, atol=0.02)


def test_a_noisy_update_equals_numpy():
    algorithm = small_dqn(noisy=True)
    part, hyper, data, key = (
        algorithm.build(SPEC, 4).parts["critic"],
        algorithm.hyper,
        batch(),
        jax.random.key(5),
    )
    state = jax.jit(lambda key: init_part(part, key, hyper))(jax.random.key(0))
    # the roles then choose different actions
    louder = jax.tree.map(lambda x: x + 1.0, state.learned)
    state = state._replace(learned=louder)
    q, online, target = part.networks["q"], state.learned.params["q"], state.learned.target["q"]
    treedef = jax.tree.structure(online)

    def q_of(leaves, obs, role):
        params, noise = treedef.unflatten(leaves), q.draw_noise(online, key, role)[NOISE]
        return references.mlp(with_weights(params, noise), np.float64(obs["x"][0]))

    leaves, slow = ([np.float64(x) for x in jax.tree.leaves(tree)] for tree in (online, target))
    roles = [q_of(leaves, data.next_obs, role) for role in ("chooser", "target", "online")]
    best, *others = (
        np.where(data.next_obs["action_mask"][0], x, -np.inf).argmax(-1) for x in roles
    )
    assert all((best != other).any() for other in others), "separate noise matters here"
    following = q_of(slow, data.next_obs, "target")[np.arange(B), best]
    wanted = data.reward[0] + data.bootstrap[0] * following

    def loss(leaves):
        return huber(q_of(leaves, data.obs, "online")[np.arange(B), data.action[0]] - wanted).mean()

    got, metrics, _ = jax.jit(lambda state, data: update(part, state, {}, data, key, hyper))(
        state, data
    )
    np.testing.assert_allclose(metrics["q_loss"], loss(leaves), rtol=1e-4)
    after = references.Adam(0.01, 0.5).step(leaves, references.gradient(loss, leaves))
    for one, other in zip(jax.tree.leaves(got.learned.params), after, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_exploration_has_noise_by_environment_and_a_saved_policy_has_none(tmp_path):
    env = tiny.line(discrete=True)
    algorithm = small_dqn(
        noisy=True, epsilon=0.0, rollout_length=2, warmup_actions="policy", buffer_size=128
    )
    agent = bind(algorithm, env.spec, 64)
    learned = {
        "critic": init_part(agent.parts["critic"], jax.random.key(0), algorithm.hyper).learned
    }
    obs, first, carry = jnp.ones((64, 2)), jnp.zeros(64, bool), agent.acting.initial_carry(64)
    explore = jax.jit(
        lambda key: agent.acting.explore(learned, carry, obs, first, key, algorithm.hyper)[0]
    )
    actions = np.stack([explore(jax.random.key(i)) for i in range(2)])
    assert all(0 < row.sum() < 64 for row in actions) and (actions[0] != actions[1]).any()
    weights = agent.acting.greedy_weights(learned)
    greedy = agent.acting.greedy(
        weights, agent.acting.greedy_carry(64), obs, first, jax.random.key(0)
    )[0]
    mean = references.mlp(with_weights(weights["critic"]), np.ones((1, 2))).argmax()
    assert greedy.tolist() == [mean] * 64
    result = jf.learn(env, algorithm, total_steps=16, eval_episodes=2, tell=lambda line: None)
    jf.save_policy(result.policy, tmp_path)
    policy = jf.load_policy(tmp_path)
    some = RNG.normal(size=(9, 2)).astype(np.float32)
    np.testing.assert_array_equal(policy(some), result.policy(some))
    seen = np.float64(normalize(policy.params.obs, some))
    q = references.mlp(with_weights(policy.params.parts["critic"]), seen)
    np.testing.assert_array_equal(policy(some), q.argmax(-1))
    assert export_policy(policy, tmp_path, "jax")[1].endswith("0 actions differ from the policy's")


def test_a_network_without_noise_has_no_deviations():
    params = init_params(small_dqn().build(SPEC, 4).parts["critic"], jax.random.key(0))["q"]
    assert set(params["params"]) == {"Dense_0", "Dense_1"} and NOISE not in params


LEVELS, MIDPOINTS = 4, (np.arange(32) + 0.5) / 32


def quantiles_at(params, obs, levels, dueling: bool, noise=None) -> np.ndarray:
    """Compute Z of arXiv 1806.06923, section 3.1, for steps `[B, 2]` and levels `[B, M]`: quantiles
    `[B, M, N]`.
    """
    layers = params["params"]
    below, above = (
        with_weights({"params": layers[side]}, noise and noise[side]) for side in ("below", "above")
    )
    features = np.tanh(references.mlp(below, np.float64(obs)))
    cosines = np.cos(np.pi * levels[..., None] * np.arange(64))
    embed = jax.tree.map(np.float64, layers["Dense_0"])
    embedding = np.maximum(cosines @ embed["kernel"] + embed["bias"], 0.0)
    outputs = references.mlp(above, features[:, None] * embedding)
    if not dueling:
        return outputs
    return outputs[..., :1] + outputs[..., 1:] - outputs[..., 1:].mean(-1, keepdims=True)


def implicit_loss(quantiles, levels, targets) -> float:
    """Compute equation 3 of arXiv 1806.06923 for one step."""
    total = 0.0
    for quantile, level in zip(quantiles, levels, strict=True):
        for target in targets:
            total += abs(level - (target < quantile)) * huber(target - quantile) / len(targets)
    return total


def drawn_levels(q, params, key, use: str) -> np.ndarray:
    """Return the levels `[B, M]` that an update draws; every output of the network has the same."""
    apply = jax.jit(
        lambda: with_levels(q, key, use).apply(
            params, (), observations(1, B), jnp.zeros((1, B), bool)
        )[0]
    )
    outputs = apply()
    outputs = outputs if isinstance(outputs, jax.Array) else outputs["advantage"]
    levels = np.float64(outputs).reshape(B, N, 2, LEVELS)[:, :, 1]
    assert (levels == levels[:, :1]).all() and ((levels >= 0.0) & (levels < 1.0)).all()
    return levels[:, 0]


@pytest.mark.parametrize(
    "options", [dict(), dict(double=False, dueling=True), dict(munchausen=0.9)]
)
def test_an_update_of_quantiles_at_random_levels_equals_numpy(options):
    dueling, tau = options.get("dueling", False), 0.3
    sizes = dict(
        value_head="implicit", num_atoms=LEVELS, munchausen_temperature=tau, q_hidden=(3, 2)
    )
    algorithm = small_dqn(**sizes, **options)
    part, hyper, data, key = (
        algorithm.build(SPEC, 4).parts["critic"],
        algorithm.hyper,
        batch(),
        jax.random.key(3),
    )
    state = jax.jit(lambda key: init_part(part, key, hyper))(jax.random.key(0))
    target = jax.tree.map(
        lambda x: x + RNG.normal(size=x.shape).astype(np.float32), state.learned.target
    )
    state = state._replace(learned=state.learned._replace(target=target))
    online, other = (
        drawn_levels(part.networks["q"], target["q"], key, use) for use in ("online", "target")
    )
    assert len(np.unique(np.concatenate([online, other]))) == 2 * B * LEVELS, (
        "every step and use has separate levels"
    )
    treedef = jax.tree.structure(state.learned.params["q"])
    leaves, slow = ([np.float64(x) for x in jax.tree.leaves(tree)] for tree in state.learned)
    fixed, masks = (
        np.tile(MIDPOINTS, (B, 1)),
        (data.obs["action_mask"][0], data.next_obs["action_mask"][0]),
    )

    def z(leaves, obs, levels):
        return quantiles_at(treedef.unflatten(leaves), obs["x"][0], levels, dueling)

    following = z(slow, data.next_obs, other).swapaxes(1, 2)  # [B, N, M]
    chooser = z(leaves if options.get("double", True) else slow, data.next_obs, fixed).mean(1)
    best = np.where(masks[1], chooser, -np.inf).argmax(-1)
    wanted = data.reward[0][:, None] + data.bootstrap[0][:, None] * following[np.arange(B), best]
    if options.get("munchausen"):
        now, steps = z(slow, data.obs, fixed).mean(1), (data.reward[0], data.bootstrap[0])
        given = now, masks[0], data.action[0], *steps, following, masks[1]
        wanted = np.stack([munchausen_target(*(x[i] for x in given), 0.9, tau) for i in range(B)])

    def loss(leaves):
        quantiles = z(leaves, data.obs, online)[np.arange(B), :, data.action[0]]
        return np.mean([implicit_loss(*x) for x in zip(quantiles, online, wanted, strict=True)])

    got, metrics, _ = jax.jit(lambda state, data: update(part, state, {}, data, key, hyper))(
        state, data
    )
    np.testing.assert_allclose(metrics["q_loss"], loss(leaves), rtol=1e-4)
    after = references.Adam(0.01, 0.5).step(leaves, references.gradient(loss, leaves))
    for one, other in zip(jax.tree.leaves(got.learned.params), after, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_greedy_values_are_means_over_midpoints_and_noise_is_by_environment():
    options = dict(
        value_head="implicit", num_atoms=LEVELS, noisy=True, q_hidden=(3, 2), epsilon=0.0
    )
    agent = small_dqn(**options).build(SPEC, B)
    q = agent.parts["critic"].networks["q"]
    params, obs = jax.jit(q.init)(jax.random.key(0)), observations(1, B)
    noisy = q.draw_noise(params, jax.random.key(1), "acting", B)
    apply = jax.jit(lambda own: q.apply(own, (), obs, jnp.zeros((1, B), bool))[0][0])
    for own in (noisy, params):
        outputs = apply(own)
        values, levels = np.moveaxis(np.asarray(outputs).reshape(B, N, 2, 32), 2, 0)
        np.testing.assert_allclose(levels, np.broadcast_to(MIDPOINTS, (B, N, 32)), rtol=1e-6)
        for i in range(B):
            row = jax.tree.map(lambda x, i=i: x[i : i + 1], own.get(NOISE))
            wanted = quantiles_at(own, obs["x"][0, i : i + 1], MIDPOINTS[None], False, row)
            np.testing.assert_allclose(values[i], wanted[0].T, rtol=1e-3, atol=1e-4)
    seen = {**jax.tree.map(lambda x: x[0], obs), "action_mask": np.ones((B, N), bool)}
    choice = agent.decide({"critic": outputs}, seen, (), jax.random.key(0), None, False)[0]
    np.testing.assert_array_equal(choice, values.mean(-1).argmax(-1))


def test_a_policy_of_quantiles_is_saved_and_exported(tmp_path):
    algorithm = small_dqn(value_head="implicit", num_atoms=LEVELS, dueling=True, epsilon=0.1)
    result = jf.learn(
        tiny.line(discrete=True), algorithm, total_steps=16, eval_episodes=2, tell=lambda line: None
    )
    jf.save_policy(result.policy, tmp_path)
    policy, some = jf.load_policy(tmp_path), RNG.normal(size=(9, 2)).astype(np.float32)
    seen = normalize(policy.params.obs, some)
    quantiles = quantiles_at(policy.params.parts["critic"], seen, np.tile(MIDPOINTS, (9, 1)), True)
    np.testing.assert_array_equal(policy(some), quantiles.mean(1).argmax(-1))
    for name in ("jax", "onnx"):
        assert export_policy(policy, tmp_path, name)[1].endswith(
            "0 actions differ from the policy's"
        )
