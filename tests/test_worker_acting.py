"""Processes that select the actions of whole rollouts: the numbers of central inference, without a
message a step.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parallel_envs import Pushing
from pool_envs import Kinds, Walk

import jaxrl_fast as jf
from jaxrl_fast.assembly import bind, build_graph, sampler
from jaxrl_fast.commands.prepare import choose
from jaxrl_fast.commands.run_config import compose, with_bridge
from jaxrl_fast.envs.from_gymnasium import make_custom_host
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.envs.pool.batches import PoolOptions
from jaxrl_fast.envs.pool.codec import facts_dtype
from jaxrl_fast.envs.pool.rolling import add_up_rollout, segments_of
from jaxrl_fast.envs.pool.stepping import PoolError
from jaxrl_fast.hosts.act_split import When, environment_axes, require_apart, run_operations, split
from jaxrl_fast.hosts.numpy_source import Unsupported, to_numpy
from jaxrl_fast.hosts.worker_sampling import by_seed, in_rows
from jaxrl_fast.learning.algorithm import Learned
from jaxrl_fast.learning.run_graph import GraphOptions, init_params, init_statistics
from jaxrl_fast.numerics.optimizers import resolve
from jaxrl_fast.runtime import placements
from jaxrl_fast.runtime import program as programs
from jaxrl_fast.runtime.graph import GraphError
from jaxrl_fast.settings.schema import ConfigError

LENGTH = 8
PID = 3


def pool(bridge: str = "worker", workers: int = 0, num_groups: int = 1, **more: Any) -> PoolOptions:
    return PoolOptions(workers=workers, num_groups=num_groups, bridge=bridge, **more)


def statistics(env: HostEnv, agent: Any) -> Any:
    """Return statistics of some data."""
    empty = init_statistics(env, agent)
    shifted = jax.tree.map(
        lambda x: x + jnp.asarray(0.4 if x.dtype == jnp.float32 else 7, x.dtype), empty.obs
    )
    return empty._replace(obs=shifted)


def rollouts(env: HostEnv, algorithm: jf.Algorithm, ticks: int = 2) -> list[Any]:
    """Return the rollout, the metrics and the state after each tick."""
    agent, key, seeds = bind(algorithm, env.spec, env.num_envs), jax.random.key(5), env.num_seeds
    sample = sampler(env, agent)

    def begin(key: jax.Array) -> tuple:
        inputs: dict[str, Any] = {
            name: Learned(init_params(agent.parts[name], key)) for name in agent.acting.parts
        }
        inputs |= {"statistics": statistics(env, agent)} if agent.normalize_observations else {}
        return (
            inputs,
            sample.init(key),
            jax.tree.map(jnp.float32, resolve(agent.hyper, jnp.float32(0.3))),
        )

    keys = key if seeds == 1 else jax.random.split(key, seeds)
    inputs, state, hyper = jax.jit(begin if seeds == 1 else jax.vmap(begin))(keys)
    fold = jax.random.fold_in if seeds == 1 else jax.vmap(jax.random.fold_in, (0, None))
    results = []
    for tick in range(ticks):
        changed = (
            inputs
            if tick == 0
            else {n: jax.tree.map(lambda x: 2 * x, one) for n, one in inputs.items()}
        )
        state, outputs, metrics = sample.step(state, changed, hyper, fold(keys, tick))
        results.append(jax.device_get((outputs["rollout"], metrics, state)))
    env.close()
    return results


def require_close(got: Any, want: Any, atol: float = 1e-6) -> None:
    def compare(a: Any, b: Any) -> None:
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=atol, atol=atol)

    jax.tree.map(compare, got, want)


def kinds(
    obs: str, action: str, options: PoolOptions, num_envs: int = 4, seeds: int = 1, stack: int = 0
) -> HostEnv:
    env = make_custom_host(
        partial(Kinds, obs, action), num_envs=num_envs, num_seeds=seeds, name="kinds", pool=options
    )
    return env._replace(spec=env.spec._replace(frame_stack=stack))


MEMORY = {"recurrent_size": 8}
CASES = {
    "ppo": (jf.ppo, {}, "vector", "Discrete"),
    "ppo box": (jf.ppo, {}, "vector", "Box"),
    "ppo parts": (jf.ppo, {}, "vector", "MultiDiscrete"),
    "ppo mask": (jf.ppo, {}, "dict", "Discrete"),
    "ppo image": (jf.ppo, {}, "image", "Discrete"),
    "impala": (jf.impala, {}, "vector", "Discrete"),
    "sac": (jf.sac, {}, "vector", "Box"),
    "td3": (jf.td3, {}, "vector", "Box"),
    "flash_sac": (jf.flash_sac, {}, "vector", "Box"),
    "fast_td3": (jf.fast_td3, {}, "vector", "Box"),
    "reppo": (jf.reppo, {}, "vector", "Box"),
    "dqn": (jf.dqn, {}, "vector", "Discrete"),
    "dqn parts": (jf.dqn, {}, "vector", "MultiDiscrete"),
    "dqn mask": (jf.dqn, {}, "dict", "Discrete"),
    "dqn noisy": (jf.dqn, {"noisy": True}, "vector", "Discrete"),
    "dqn quantiles": (jf.dqn, {"value_head": "quantiles"}, "vector", "Discrete"),
    "pqn": (jf.pqn, {}, "vector", "Discrete"),
    "sac_discrete": (jf.sac_discrete, {}, "vector", "Discrete"),
    **{
        f"ppo {memory}": (jf.ppo, MEMORY | {"memory": memory}, "vector", "Discrete")
        for memory in ("gru", "lru")
    },
    "ppo mingru": (jf.ppo, MEMORY | {"memory": "mingru"}, "vector", "Box"),
    "ppo gtrxl": (jf.ppo, MEMORY | {"memory": "gtrxl-4x1"}, "vector", "Discrete"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_rollout_of_every_algorithm_and_kind_is_the_one_of_central_inference(case):
    make, options, obs, action = CASES[case]
    stack = 3 if obs == "image" else 0
    own = partial(make, rollout_length=LENGTH, **options)
    want = rollouts(kinds(obs, action, pool("host"), stack=stack), own())
    got = rollouts(kinds(obs, action, pool(), stack=stack), own())
    require_close(got, want)
    assert want[0][0].terminated.any() and want[0][0].truncated.any()


@pytest.mark.parametrize("size", [1, 2, 3, 6])
@pytest.mark.parametrize("num_envs", [4, 5])
def test_noise_of_any_number_of_actions_reaches_the_environment_that_it_was_drawn_for(
    size, num_envs
):
    def run(**options: Any) -> list[Any]:
        env = make_custom_host(
            partial(Kinds, "vector", "Box", size),
            num_envs=num_envs,
            name="kinds",
            pool=pool(**options),
        )
        return rollouts(env, jf.ppo(rollout_length=LENGTH))

    want = run(bridge="host")
    for workers in (0, 2, 3):
        require_close(run(workers=workers), want)


def test_an_algorithm_that_cannot_be_split_gets_its_actions_from_the_trainer():
    results = []
    for bridge in ("host", "worker"):
        env = jf.make_env(
            "custom",
            make=Pushing,
            num_envs=4,
            pool={"workers": 0, "num_groups": 1, "bridge": bridge},
        )
        results.append(rollouts(env, jf.ippo(rollout_length=LENGTH)))
        line = "no whole rollouts by the environments' processes, actions by the trainer"
        assert any(line in told for told in env.events()) == (bridge == "worker")
    jax.tree.map(np.testing.assert_array_equal, *results)


def test_runs_that_share_environments_load_their_own_plan():
    env, again = (kinds("vector", "Discrete", pool(workers=1)) for _ in range(2))
    first, second = jf.ppo(rollout_length=LENGTH), jf.dqn(rollout_length=2 * LENGTH)
    agents = [bind(algorithm, env.spec, env.num_envs) for algorithm in (first, second)]
    inputs = [
        {n: Learned(init_params(a.parts[n], jax.random.key(5))) for n in a.acting.parts}
        for a in agents
    ]
    inputs = [
        {**one, "statistics": statistics(env, a)} for one, a in zip(inputs, agents, strict=True)
    ]
    hypers = [jax.tree.map(jnp.float32, resolve(a.hyper, jnp.float32(0.3))) for a in agents]

    def steps(host: HostEnv, which: list[int]) -> list[Any]:
        samples = [sampler(host, agent) for agent in agents]
        results = []
        for i in which:
            host.reset(0)
            results.append(
                samples[i].step(
                    samples[i].init(jax.random.key(0)), inputs[i], hypers[i], jax.random.key(1)
                )
            )
        return jax.device_get([one[1] for one in results])

    mixed = steps(env, [0, 1, 0])
    jax.tree.map(np.testing.assert_array_equal, mixed[0], mixed[2])
    jax.tree.map(np.testing.assert_array_equal, mixed[1], steps(again, [1])[0])
    env.close()
    again.close()


@pytest.mark.parametrize(("num_groups", "seeds"), [(1, 1), (2, 1), (1, 2), (2, 2), (4, 1)])
@pytest.mark.parametrize("noisy", [False, True])
def test_keys_depend_on_groups_and_seeds_but_nothing_on_the_workers(num_groups, seeds, noisy):
    algorithm = partial(jf.dqn, rollout_length=LENGTH, noisy=noisy)

    def run(**options: Any) -> list[Any]:
        return rollouts(
            kinds("vector", "Discrete", pool(num_groups=num_groups, **options), seeds=seeds),
            algorithm(),
        )

    here = run()
    require_close(here, run(bridge="host"))
    for workers in (1, 3):  # of three, two have a single environment
        jax.tree.map(np.testing.assert_array_equal, run(workers=workers), here)


def test_where_numpy_lacks_an_operation_jax_acts_in_the_worker():
    def decide(x: jax.Array) -> jax.Array:
        return jnp.sort(x)

    one = split(
        lambda tick, step, seen: decide(seen), (), (), jax.ShapeDtypeStruct((4, 3), jnp.float32)
    )
    with pytest.raises(Unsupported, match="sort"):
        to_numpy(one)
    algorithm = partial(jf.ppo, rollout_length=LENGTH, precision="bf16")
    for workers in (0, 2):
        env = kinds("vector", "Discrete", pool(workers=workers))
        results = rollouts(env, algorithm())
        assert "actions by JAX" in env.events()[0]
        require_close(
            results, rollouts(kinds("vector", "Discrete", pool("host")), algorithm()), 1e-2
        )


FUNCTIONS: dict[str, Any] = {
    "arithmetic": lambda x, k: (x * 2 + k, x - k, -x, abs(x), x / (1 + x * x), x**3, jnp.sign(x)),
    "exponentials": lambda x, k: (
        jnp.exp(x),
        jnp.log1p(x * x),
        jnp.expm1(x),
        jax.nn.sigmoid(x),
        jnp.tanh(x),
    ),
    "activations": lambda x, k: (
        jax.nn.relu(x),
        jax.nn.silu(x),
        jax.nn.softplus(x),
        jax.nn.elu(x),
        jax.nn.leaky_relu(x),
    ),
    "softmax": lambda x, k: (
        jax.nn.softmax(x),
        jax.nn.log_softmax(x, axis=0),
        jax.nn.logsumexp(x, axis=1),
    ),
    "comparisons": lambda x, k: (
        x > 0,
        x <= k,
        (x > 0) & (x < 1),
        ~(x > 0),
        jnp.where(x > 0, x, 1.0),
        x == k,
    ),
    "reductions": lambda x, k: (
        x.sum(1),
        x.max(0),
        x.min(1),
        x.argmax(1),
        x.argmin(0),
        x.mean(),
        (x > 0).any(1),
    ),
    "shapes": lambda x, k: (
        x.T,
        x.reshape(3, 4),
        x[:, None],
        x[1:, ::2],
        jnp.concatenate([x, x], 1),
        jnp.stack([x, x]),
    ),
    "broadcasts": lambda x, k: (
        jnp.broadcast_to(k, (4, 3)) + x,
        jnp.zeros((4, 3)) + x,
        x + jnp.arange(3.0)[None],
    ),
    "products": lambda x, k: (
        x @ x.T,
        jnp.einsum("ab,cb->ca", x, x),
        jnp.einsum("ab,ac->abc", x, x),
    ),
    "integers": lambda x, k: (
        (x * 5).astype(jnp.int32) // 2,
        (x * 5).astype(jnp.int32) % 3,
        x.astype(bool),
    ),
    "picks": lambda x, k: (
        jnp.take_along_axis(x, x.argmax(1)[:, None], 1),
        x[:, 1],
        jnp.cumsum(x, 0),
    ),
    "constants": lambda x, k: (
        jnp.full((4, 3), 2.0),
        jnp.arange(4),
        x + jnp.array([1.0, -1.0, jnp.inf])[None],
    ),
    "roots": lambda x, k: (
        jnp.sqrt(abs(x)),
        jax.lax.rsqrt(1 + x * x),
        jnp.clip(x, -0.5, 0.5),
        jnp.maximum(x, k),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_numpy_source_computes_what_jax_does(name):
    x, k = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32), np.float32(0.3)
    shapes = jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((), np.float32)
    own = FUNCTIONS[name]
    program = split(
        lambda tick, step, seen: own(seen, jax.lax.stop_gradient(tick)), shapes[1], (), shapes[0]
    )
    source = to_numpy(program)
    known = run_operations(program.ahead[0], {program.inputs[When.TICK][0].number: k})
    scope: dict[str, Any] = {}
    exec(source.text, scope)
    with np.errstate(all="ignore"):
        act = scope["make"](
            np, source.constants, *[np.asarray(known[value.number]) for value in program.given]
        )
        for got, want in zip(act(x), own(jnp.asarray(x), jnp.float32(k)), strict=True):
            assert (got.shape, got.dtype) == (want.shape, want.dtype)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_random_numbers_are_drawn_before_and_the_environments_axis_is_known():
    def act(tick: Any, step: Any, seen: Any) -> Any:
        noise = jax.random.normal(step, seen.shape)
        return tick * seen + noise, jax.random.uniform(step, (2,))

    def of(size: int) -> Any:
        return split(
            act, jnp.float32(1), jax.random.key(0), jax.ShapeDtypeStruct((size, 2), jnp.float32)
        )

    one = of(4)
    assert not any("random" in op.name or "threefry" in op.name for op in one.act)
    assert one.when == [When.TICK, When.STEP, When.STEP]
    assert environment_axes(one, of(5), (4, 5)) == [None, 0, None]

    def mixed(size: int) -> Any:
        def product(a: Any, b: Any, x: Any) -> Any:
            return (x @ x.T) * jax.random.normal(b, (size, size))

        return split(product, (), jax.random.key(0), jax.ShapeDtypeStruct((size, 2), jnp.float32))

    with pytest.raises(ValueError, match="relates environments to each other"):
        environment_axes(*(mixed(n) for n in (4, 5)), (4, 5))


COUPLED = {
    "centered": lambda x: x - x.mean(0, keepdims=True),
    "summed": lambda x: jnp.cumsum(x, axis=0),
    "reversed": lambda x: jnp.flip(x, 0),
}


@pytest.mark.parametrize("coupled", COUPLED.values(), ids=COUPLED)
def test_environments_whose_actions_depend_on_each_other_are_refused(coupled):
    seen = jax.ShapeDtypeStruct((3, 2), jnp.float32)
    require_apart(split(lambda tick, step, x: tick * x + 1.0, jnp.float32(1), (), seen))
    with pytest.raises(ValueError, match="relates environments to each other"):
        require_apart(split(lambda tick, step, x: tick * coupled(x), jnp.float32(1), (), seen))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 2**31), st.booleans())
def test_totals_of_a_rollout_are_those_of_single_steps(length, count, seed, several):
    rng = np.random.default_rng(seed)
    facts = np.zeros((length, count), facts_dtype(2 if several else None))
    facts["reward"] = rng.normal(size=facts["reward"].shape)
    facts["terminated"], facts["truncated"] = rng.random((length, count)) < 0.3, False
    goes_on = facts["terminated"] & (rng.random((length, count)) < 0.3)
    returns, lengths = rng.normal(size=count), rng.integers(0, 5, count).astype(np.int32)
    running, counts, want = returns.copy(), lengths.copy(), []
    for t in range(length):
        reward = facts["reward"][t]
        running, counts = running + (reward.sum(-1) if several else reward), counts + 1
        over = facts["terminated"][t] & ~goes_on[t]
        want.append((np.where(over, running, 0), np.where(over, counts, 0)))
        running, counts = np.where(over, 0, running), np.where(over, 0, counts)
    add_up_rollout(facts, goes_on, returns, lengths)
    np.testing.assert_allclose(facts["episode_return"], [row[0] for row in want], atol=1e-5)
    np.testing.assert_array_equal(facts["episode_length"], [row[1] for row in want])
    np.testing.assert_allclose(returns, running, atol=1e-9)
    np.testing.assert_array_equal(lengths, counts)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.data())
def test_segments_are_the_rows_of_a_process_and_rows_return_to_their_seeds(
    groups, seeds, size, data
):
    num_rows = groups * seeds * size
    start = data.draw(st.integers(0, num_rows - 1))
    stop = data.draw(st.integers(start + 1, num_rows))
    for joined in (False, True):
        segments = segments_of((num_rows, groups, seeds), slice(start, stop), joined)
        assert [i for one in segments for i in range(one.rows.start, one.rows.stop)] == list(
            range(start, stop)
        )
        for one in segments if not (joined and seeds == 1) else ():
            assert {
                (i // (seeds * size), i // size % seeds)
                for i in range(one.rows.start, one.rows.stop)
            } == {(one.group, one.seed)}
    env: Any = HostEnv(*[None] * 10)._replace(
        num_envs=groups * size, num_groups=groups, num_seeds=seeds
    )  # type: ignore[arg-type]
    shape = (seeds, groups * size) if seeds > 1 else (groups * size,)
    value = np.arange(num_rows * 2).reshape(*shape, 2)
    np.testing.assert_array_equal(by_seed(env, in_rows(env, value), 0), value)


def test_a_worker_killed_in_a_rollout_loses_one_step_of_its_environments_and_nothing_else(tmp_path):
    """It is killed within the 20th step of its first environment."""
    algorithm, victims = jf.ppo(rollout_length=40), tmp_path / "victim"
    env = make_custom_host(
        partial(Walk, victim=victims), num_envs=4, name="walk", pool=pool(workers=2)
    )
    undisturbed = rollouts(
        make_custom_host(Walk, num_envs=4, name="walk", pool=pool()), algorithm, 1
    )[0][0]
    agent = bind(algorithm, env.spec, 4)
    inputs: dict[str, Any] = {
        n: Learned(init_params(agent.parts[n], jax.random.key(5))) for n in agent.acting.parts
    }
    inputs["statistics"] = init_statistics(env, agent)
    victim = int(env.reset(0)[3, PID])
    victims.write_text(str(victim))
    sample = sampler(env, agent)
    state, outputs, metrics = sample.step(
        sample.init(jax.random.key(0)),
        inputs,
        agent.hyper,
        jax.random.fold_in(jax.random.key(5), 0),
    )
    rollout = outputs["rollout"]
    for name in ("reward", "terminated", "truncated", "first"):  # of the other worker
        np.testing.assert_allclose(
            getattr(rollout, name)[:, :2], getattr(undisturbed, name)[:, :2], rtol=1e-5
        )
    lost = (rollout.truncated & (rollout.reward == 0))[:, 2:]
    assert lost.sum() == 2 and lost.all(axis=1).sum() == 1
    at = int(np.flatnonzero(lost[:, 0])[0])
    assert at == 19
    np.testing.assert_array_equal(rollout.next_obs[at, 2:], rollout.obs[at, 2:])
    np.testing.assert_array_equal(rollout.reward[:at, 2:], undisturbed.reward[:at, 2:])
    assert rollout.first[at + 1, 2:].all() and victim not in rollout.obs[at + 1 :, :, PID]
    ended = undisturbed.terminated | undisturbed.truncated
    assert int(metrics["episodes"]) >= int(ended[:at].sum()) and env.steps() == 4 * 40 - 2
    lines = " ".join(env.events())
    assert (
        "worker 1 of walk was killed by SIGKILL and was restarted" in lines
        and "2 steps are lost" in lines
    )
    sample.step(state, inputs, agent.hyper, jax.random.key(1))
    env.close()


def test_a_worker_that_hangs_in_a_rollout_is_replaced():
    options = pool(workers=1, step_timeout_s=1.0)
    env = make_custom_host(partial(Walk, on_nine="hang"), num_envs=2, name="walk", pool=options)
    with pytest.raises(
        PoolError, match="did not answer within 1 s and is not restarted after 3 deaths"
    ):
        rollouts(env, jf.ppo(rollout_length=90), 1)
    assert any("did not answer within 1 s" in line for line in env.events())


def test_learning_with_workers_that_act_is_learning(tmp_path):
    env = jf.make_env(
        "gymnasium", id="CartPole-v1", num_envs=8, pool={"workers": 2, "bridge": "worker"}
    )
    algorithm = jf.ppo(rollout_length=64, num_epochs=4, num_minibatches=4)
    rows: list[Any] = []
    how: dict[str, Any] = dict(
        placement="worker_acting", eval_every=8192, eval_episodes=4, run_dir=tmp_path / "run"
    )
    result = jf.learn(env, algorithm, total_steps=8192, on_metrics=rows.append, **how)
    assert [row["eval_return_mean"] for row in rows if row["kind"] == "eval"][-1] > 60
    again = jf.learn(
        env,
        algorithm,
        total_steps=16384,
        resume=tmp_path / "run",
        **how | {"run_dir": tmp_path / "next"},
    )
    assert again.state.tick > result.state.tick
    env.close()


@pytest.mark.parametrize("overlap", ["none", "sampling"])
def test_a_run_of_two_ticks_learns_what_central_inference_does(overlap):
    results = []
    for bridge in ("host", "worker"):
        env = kinds("vector", "Box", pool(bridge, num_groups=2))
        algorithm = jf.ppo(
            rollout_length=LENGTH,
            num_epochs=8,
            num_minibatches=1,
            optimizer="adam:0.5:0.9:0.999",
            learning_rate=0.5,
        )
        graph, _ = build_graph(env, algorithm, GraphOptions(overlap=overlap))
        place = placements.PLACEMENTS["worker_acting" if bridge == "worker" else "fused"]
        program = programs.compile(graph, place(graph, jax.devices()), 2)
        init, run = program.ready(jax.random.split(jax.random.key(0), 1), algorithm.hyper)
        state, metrics = run(init(jax.random.split(jax.random.key(0), 1), algorithm.hyper))
        results.append(jax.device_get((state.channels, metrics)))
        env.close()
    require_close(*results, 1e-4)


def test_the_command_selects_workers_for_long_rollouts_and_says_how_not_to():
    def placed(*words: str) -> tuple[str, str]:
        run = compose(["env=gymnasium", "env.id=CartPole-v1", "algo=ppo", *words])
        if run.placement == "auto":
            run = with_bridge(dataclasses.replace(run, placement=choose(run, 1).placement))
        return run.placement, run.pool["bridge"]

    assert placed() == ("worker_acting", "worker")
    assert placed("placement=fused") == ("fused", "host")
    assert placed("placement=worker_acting") == ("worker_acting", "worker")
    assert placed("pool.bridge=worker") == ("worker_acting", "worker")
    assert placed("pool.bridge=worker", "placement=fused") == ("fused", "worker")
    for words in (
        "algo.rollout_length=8",
        "pool.bridge=callback",
        "pool.order=arrival",
        "eval.share=true",
    ):
        assert placed(words)[0] == "fused"
    with pytest.raises(
        ConfigError, match=r"placement=worker_acting has pool\.bridge=worker: leave one out"
    ):
        compose(
            ["env=gymnasium", "env.id=CartPole-v1", "placement=worker_acting", "pool.bridge=host"]
        )


def test_what_workers_cannot_do_is_refused_in_a_line():
    host = jf.make_env("gymnasium", id="CartPole-v1", num_envs=2, pool={"workers": 0})
    with pytest.raises(
        GraphError, match=r"these wait for actions: make the environments with pool=\{'bridge'"
    ):
        jf.learn(host, jf.ppo(), total_steps=1000, placement="worker_acting")
    host.close()
    with pytest.raises(
        GraphError, match="this run has compiled ones, or recorded steps: write placement=fused"
    ):
        jf.learn(
            jf.make_env("cartpole", num_envs=2),
            jf.ppo(),
            total_steps=1000,
            placement="worker_acting",
        )
    for options, line in (
        (
            dict(order="arrival", workers=1),
            "pool.order=arrival serves single steps, and pool.bridge=worker whole",
        ),
        (
            dict(backend="envpool"),
            "pool.bridge=worker needs environments in Python: write pool.backend=workers",
        ),
    ):
        with pytest.raises(ValueError, match=line.replace(".", r"\.")):
            jf.make_env(
                "gymnasium", id="CartPole-v1", num_envs=2, pool={"bridge": "worker", **options}
            )
