"""Host environments called from within a compiled program: no step is lost, a stale state is
detected, vmap is refused.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

import jaxrl_fast as jf
from jaxrl_fast.algorithms.ppo import ppo
from jaxrl_fast.algorithms.sac import sac
from jaxrl_fast.assembly import build_graph
from jaxrl_fast.core import Discrete, EnvSpec
from jaxrl_fast.envs.host_env import HostEnv, HostStep
from jaxrl_fast.hosts.io_callback_env import BridgeError, make_bridge
from jaxrl_fast.learning.rollout import start, unroll
from jaxrl_fast.learning.updates import init_learned
from jaxrl_fast.runtime import placements
from jaxrl_fast.runtime import program as programs
from jaxrl_fast.runtime.callback_errors import reraise_callback_error

PPO = ppo(rollout_length=6, num_epochs=1, num_minibatches=2, policy_hidden=(4,), value_hidden=(4,))
SAC = sac(
    rollout_length=2,
    updates_per_tick=1,
    batch_size=8,
    buffer_size=200,
    warmup_steps=8,
    policy_hidden=(4,),
    critic_hidden=(4,),
    n_step=2,
)


def push(carry, obs, first, key):
    return jax.random.uniform(key, (obs.shape[0], 1), minval=-2.0), carry, ()


def test_a_compiled_rollout_tells_what_happened_in_the_environments():
    host = tiny.host_line(discrete=False)
    env = make_bridge(host).env

    @jax.jit
    def run(key):
        return unroll(env, push, start(env, (), key), key, 40)

    end, rollout, metrics = run(jax.random.key(0))
    done = rollout.terminated | rollout.truncated
    assert done.any() and not done.all()
    np.testing.assert_allclose(
        rollout.next_obs[..., 0] - rollout.obs[..., 0], rollout.action[..., 0], atol=1e-6
    )
    np.testing.assert_array_equal(rollout.obs[1:][~done[:-1]], rollout.next_obs[:-1][~done[:-1]])
    np.testing.assert_array_equal(rollout.first[1:], done[:-1])
    assert int(metrics["episodes"]) == done.sum()
    assert int(end.env.env_state) == host.steps() == done.size


def test_the_train_step_jits_scans_and_donates_and_each_state_is_stepped_once():
    host = tiny.host_line(discrete=True)
    init, train_step = jf.make_train_step(host, PPO)
    step = jax.jit(train_step)
    first = jax.jit(init)(jax.random.key(0))
    second, _ = step(first)
    jax.block_until_ready(second)
    with pytest.raises(
        jax.errors.JaxRuntimeError, match="is at step 0 and the environments at step 24"
    ):
        jax.block_until_ready(step(first))
    many = jax.jit(
        lambda state: jax.lax.scan(lambda s, _: train_step(s), state, length=3), donate_argnums=0
    )
    end, metrics = many(second)
    assert int(end.private["sample"].env.env_state) == host.steps() == 4 * 24
    assert (
        np.isfinite(jax.tree.leaves(jax.device_get(metrics))).all()
        and metrics["sample/episodes"].sum() > 0
    )
    with pytest.raises(
        ValueError, match=r"cannot be vmapped \(2 times here\): .* learn\(num_seeds=...\)"
    ):
        jax.vmap(train_step)(jax.tree.map(lambda x: jnp.stack([x, x]), end))
    with pytest.raises(ValueError, match="cannot be vmapped"):
        jax.vmap(init)(jax.random.split(jax.random.key(0)))


def test_learning_through_callbacks_is_repeatable_and_resumes_with_new_episodes(tmp_path):
    def learn(total_steps: int, **options) -> jf.Result:
        env = tiny.host_line(discrete=False, bridge="callback")
        return jf.learn(
            env, SAC, total_steps=total_steps, eval_episodes=2, tell=lambda line: None, **options
        )

    first, again = learn(96, run_dir=tmp_path / "run"), learn(96)
    jax.tree.map(
        np.testing.assert_array_equal, first.state.private["learn"], again.state.private["learn"]
    )
    on = learn(192, resume=tmp_path / "run")
    assert on.summary["env_steps"] == 192
    assert int(on.state.private["sample"].env.env_state[0]) == 96  # counted from the new start
    ring = on.state.private["experience"]
    newest = 96 // 4 - 1  # of the first run
    assert (ring.data.truncated | ring.data.terminated)[0, :, newest].all()


def test_what_a_callback_raised_is_raised_by_learn():
    env = tiny.host_line(discrete=True, bridge="callback")

    def fail(group: int) -> HostStep:
        raise KeyError("no such thing")

    with pytest.raises(KeyError, match="no such thing"):
        jf.learn(env._replace(recv=fail), PPO, total_steps=96, eval_episodes=1)
    with pytest.raises(jax.errors.JaxRuntimeError, match="elsewhere"), reraise_callback_error([]):
        raise jax.errors.JaxRuntimeError("elsewhere")


def test_what_cannot_be_bridged_is_refused_in_a_line():
    env = tiny.host_line(discrete=True, bridge="callback")
    with pytest.raises(
        ValueError, match=r"pool\.bridge=callback is compiled into one program for one device"
    ):
        jf.learn(env, PPO, total_steps=96, placement="sampler_learner", devices=2)
    several = tiny.host_line(discrete=True, bridge="callback", num_seeds=2)
    with pytest.raises(
        ValueError,
        match=r"num_seeds=2: an ordered callback serves one seed: write pool\.bridge=host",
    ):
        jf.learn(several, PPO, total_steps=96, num_seeds=2)
    with pytest.raises(ValueError, match=r"pool\.order=arrival has no fixed order to compile"):
        make_bridge(env._replace(recv_any=lambda: None))  # type: ignore[arg-type, return-value]


def pictures(num_envs: int, bridge: str) -> HostEnv:
    """Observations of 450 KB a step over all environments, which contain each environment's step
    count.
    """
    count, sent = np.zeros(num_envs, np.int64), list[np.ndarray]()
    no, zero = np.zeros(num_envs, bool), np.zeros(num_envs, np.float32)
    canvas = np.zeros((num_envs, 84, 84, 4), np.uint8)

    def look() -> np.ndarray:
        canvas[:] = (count % 251).astype(np.uint8)[:, None, None, None]
        return canvas.copy()

    def reset(seed: int) -> np.ndarray:
        count[:] = 0
        return look()

    def recv(group: int) -> HostStep:
        count[:] += 1
        obs = look()
        return HostStep(
            obs, obs, sent.pop().astype(np.float32), no, no, zero, count.astype(np.int32)
        )

    spec = EnvSpec("pictures", jax.ShapeDtypeStruct((84, 84, 4), np.uint8), Discrete(7))
    return HostEnv(
        spec,
        num_envs,
        1,
        reset,
        lambda actions, group: sent.append(np.array(actions)),
        recv,
        lambda: int(count.sum()),
        list,
        lambda num_envs: pictures(num_envs, bridge),
        lambda: None,
        bridge=bridge,
    )


def test_ten_thousand_steps_of_pictures_by_callback_do_not_deadlock():
    host = pictures(16, "callback")
    env = make_bridge(host).env

    @jax.jit
    def many(state):
        def step(state, t):
            action = (t + jnp.arange(16)) % 7
            seen = state.obs[:, 5, 5, 3]
            after, timestep = env.step(state.env, action, jax.random.key(0), (), t)
            right = jnp.all(seen == t % 251) & jnp.all(timestep.reward == action)
            return state._replace(env=after, obs=timestep.obs), right

        return jax.lax.scan(step, state, jnp.arange(10_000))

    _, right = many(jax.jit(lambda key: start(env, (), key))(jax.random.key(0)))
    assert right.all() and host.steps() == 160_000


def test_ten_thousand_steps_of_pictures_by_a_host_fragment_do_not_deadlock():
    host = pictures(6, "host")
    algorithm = ppo(
        rollout_length=100, num_minibatches=1, policy_hidden=(1,), value_hidden=(1,), cnn="none"
    )
    graph, agent = build_graph(host, algorithm)
    program = programs.compile(graph, placements.fused(graph, jax.devices()), 1)
    keys = jax.random.split(jax.random.key(0), 1)
    state = program.init(keys, algorithm.hyper)
    sample = graph.fragments[0]
    inputs = init_learned(agent, agent.acting.parts, keys[0])
    private = state.private["sample"]
    for tick in range(100):
        private, outputs, _ = sample.step(private, inputs, (), jax.random.fold_in(keys[0], tick))
        seen = outputs["rollout"].obs[:, :, 5, 5, 3]
        np.testing.assert_array_equal(
            seen,
            np.broadcast_to(np.arange(tick * 100, tick * 100 + 100)[:, None] % 251, seen.shape),
        )
    assert host.steps() == 60_000


def test_the_error_of_a_stale_state_has_a_name_of_its_own():
    host = tiny.host_line(discrete=True)
    bridge = make_bridge(host)
    state, _ = bridge.env.reset(jax.random.key(0))
    step = jax.jit(
        lambda state: bridge.env.step(state, jnp.zeros(4, jnp.int32), jax.random.key(0), (), 0)
    )
    jax.block_until_ready(step(state))
    with (
        pytest.raises(BridgeError, match="each state can be stepped once"),
        reraise_callback_error(bridge.failures),
    ):
        jax.block_until_ready(step(state))
