"""Deep Q-learning (Mnih et al., 2015, Nature 518, with arXiv 1509.06461) on one screen, as the
engine computes it.

From one state, a tick of `jaxrl_fast.dqn()` with default options gives the same numbers
(`tests/test_reference.py`). Axes: ``T`` rollout steps, ``E`` environments, ``K`` updates, ``B``
batch size, ``G`` logical shards.
"""

import math
from functools import partial
from typing import Any, NamedTuple
from zlib import crc32

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from jaxrl_fast.envs import from_gymnax


class Config(NamedTuple):
    """Settings; the defaults are the engine's for 8 environments. Engine: algorithms.dqn.DqnHyper."""

    num_envs: int = 8
    rollout_length: int = 4
    updates_per_tick: int = 8
    batch_size: int = 128
    buffer_size: int = 100_000
    warmup_steps: int = 5_000  # of uniformly random actions
    total_steps: int = 240_000
    learning_rate: float = 3e-4
    discount: float = 0.99
    epsilon: float = 0.05  # after a tenth of the run, falling from 1
    tau: float = 0.005
    max_grad_norm: float = 10.0
    hidden: tuple[int, ...] = (128, 128)


class State(NamedTuple):
    """Everything a run is. Engine: runtime.graph.TrainState."""

    env: Any  # environment states, leaves [E, ...]
    obs: jax.Array  # what the policy sees next, [E, ...]
    totals: tuple[jax.Array, jax.Array]  # return and length of the running episodes, [E]
    # of observations: count, mean, sum of squared deviations
    stats: tuple[jax.Array, jax.Array, jax.Array]
    replay: dict[str, jax.Array]  # steps as they were sampled, [G, buffer_size / E, E / G, ...]
    params: Any
    target: Any  # a slow copy of the parameters
    moments: Any  # of Adam
    tick: jax.Array
    key: jax.Array  # the run's, never changed


class Mlp(nn.Module):
    """Dense layers with ReLU between them. Engine: networks.network.Mlp."""

    layers: tuple[tuple[int, float], ...]  # size, and variance of the weights times inputs

    @nn.compact
    def __call__(self, x):
        for i, (size, variance) in enumerate(self.layers):
            init = nn.initializers.variance_scaling(variance, "fan_in", "truncated_normal")
            x = nn.Dense(size, kernel_init=init)(nn.relu(x) if i else x)
        return x


def make(env, c):
    """Make the Q-network and its optimizer. Engine: algorithms.dqn.dqn."""
    layers = (*((size, 2.0) for size in c.hidden), (env.spec.action.num_actions, 1.0))
    return Mlp(layers), optax.chain(
        optax.clip_by_global_norm(c.max_grad_norm), optax.adam(c.learning_rate)
    )


def reset(env, keys):
    """Begin an episode for each key, with environment parameters drawn for it. Engine:
    envs.env.vectorize.
    """
    pairs = jax.vmap(jax.random.split)(keys)
    return jax.vmap(env.reset)(pairs[:, 1], jax.vmap(env.sample_params)(pairs[:, 0]))


def init(env, c, key):
    """Make the state before the first tick. Engine: runtime.graph.init, learning.updates.init_part."""
    sample_key, learn_key = (jax.random.fold_in(key, crc32(name)) for name in (b"sample", b"learn"))
    env_state, obs = reset(env, jax.random.split(sample_key, c.num_envs))
    network, optimizer = make(env, c)
    params = network.init(jax.random.fold_in(learn_key, crc32(b"critic")), obs)
    totals, stats = (
        (jnp.zeros(c.num_envs), jnp.zeros(c.num_envs, jnp.int32)),
        jnp.zeros((2, *obs.shape[1:])),
    )
    shards = math.gcd(8, c.num_envs, c.batch_size)
    slots = shards, c.buffer_size // c.num_envs, c.num_envs // shards
    step = dict(obs=obs, action=totals[1], reward=totals[0], next_obs=obs, terminated=totals[0] > 0)
    replay = {name: jnp.zeros((*slots, *x.shape[1:]), x.dtype) for name, x in step.items()}
    moments, stats = optimizer.init(params), (jnp.int32(0), *stats)
    return State(env_state, obs, totals, stats, replay, params, params, moments, jnp.int32(0), key)


def normalize(stats, obs):
    """Normalize observations; without data, return them. Engine: numerics.normalization.normalize."""
    count, mean, variance = stats
    scaled = (obs - mean) / jnp.sqrt(variance + 1e-6)
    return jnp.where(count > 0, jnp.clip(scaled, -10.0, 10.0), obs)


def update_stats(stats, obs):
    """Merge a rollout ``[T, E, ...]`` (Chan et al., 1979). Engine:
    numerics.normalization.update_stats.
    """
    (count, mean, variance), size, new = stats, obs.shape[0] * obs.shape[1], obs.mean((0, 1))
    share, delta, spread = size / (count + size), new - mean, jnp.square(obs - new).mean((0, 1))
    return (
        count + size,
        mean + share * delta,
        variance + share * (spread + (1 - share) * jnp.square(delta) - variance),
    )


def explore(c, q, step, key):
    """Take the best action, or any with probability ε, at first 1. Engine:
    learning.acting.epsilon_greedy.
    """
    which_key, action_key = jax.random.split(key)
    progress = jnp.clip(
        step // c.rollout_length * (c.num_envs * c.rollout_length / c.total_steps), 0.0, 1.0
    )
    at_random = jax.random.uniform(which_key, q.shape[:1]) < 1.0 + (c.epsilon - 1.0) * jnp.minimum(
        progress / 0.1, 1.0
    )
    action = jnp.where(at_random, jax.random.categorical(action_key, 0.0 * q), q.argmax(-1)).astype(
        jnp.int32
    )
    anything = jax.random.categorical(jax.random.fold_in(key, crc32(b"uniform")), 0.0 * q).astype(
        jnp.int32
    )
    return jnp.where(step < -(-c.warmup_steps // c.num_envs), anything, action)


def sample(env, c, s, key):
    """Take T steps in every environment, with automatic resets. Engine: learning.rollout.unroll,
    envs.env.vectorize.
    """
    limit, network = env.spec.max_episode_steps or 2**31 - 1, make(env, c)[0]
    # steps that share a row of E initial states, the bank
    interval = max(1, min(8, env.shortest_episode, limit))
    (bank_key, scan_key), num_rows = jax.random.split(key), -(-c.rollout_length // interval)
    bank = jax.vmap(lambda keys: reset(env, keys))(
        jax.random.split(bank_key, (num_rows, c.num_envs))
    )

    def step(carry, xs):
        (env_state, obs, (returns, length)), (t, (act_key, env_key)) = carry, xs
        q = network.apply(s.params, normalize(s.stats, obs))
        action = explore(c, q, s.tick * c.rollout_length + t, act_key)
        env_state, ts = jax.vmap(env.step)(env_state, action, jax.random.split(env_key, c.num_envs))
        returns, length = returns + ts.reward, length + 1
        done = ts.terminated | ts.truncated | (length >= limit)
        row = dict(
            obs=obs, action=action, reward=ts.reward, next_obs=ts.next_obs, terminated=ts.terminated
        )
        old = env_state, ts.next_obs
        env_state, obs = jax.tree.map(
            lambda new, x: jax.vmap(jnp.where)(done, new[t // interval], x), bank, old
        )
        totals = jnp.where(done, 0.0, returns), jnp.where(done, 0, length)
        return (env_state, obs, totals), (row, jnp.where(done, returns, jnp.nan))

    keys = jax.vmap(jax.random.split)(jax.random.split(scan_key, c.rollout_length))
    carry, (rollout, returns) = jax.lax.scan(
        step, (s.env, s.obs, s.totals), (jnp.arange(c.rollout_length), keys)
    )
    return s._replace(env=carry[0], obs=carry[1], totals=carry[2]), rollout, returns


def through_replay(c, s, rollout, key):
    """Store a rollout over the oldest, then sample ``[K, B, ...]``. Engine:
    replay.buffers.ring_buffer.
    """
    (shards, slots, width), (time_key, env_key) = s.replay["reward"].shape, jax.random.split(key)
    added, sizes = (s.tick + 1) * c.rollout_length, (c.updates_per_tick, c.batch_size)
    stored, at = (
        jnp.minimum(added, slots),
        (added - c.rollout_length + jnp.arange(c.rollout_length)) % slots,
    )
    rollout = jax.tree.map(
        lambda x: x.reshape(-1, shards, width, *x.shape[2:]).swapaxes(0, 1), rollout
    )
    replay = jax.tree.map(lambda ring, x: ring.at[:, at].set(x), s.replay, rollout)
    # with replacement
    draw = partial(jax.random.randint, shape=(shards, math.prod(sizes) // shards), minval=0)
    drawn = (added - stored + draw(time_key, maxval=stored)) % slots, draw(env_key, maxval=width)
    index = (
        jnp.arange(shards)[:, None],
        *(x.reshape(shards, sizes[0], -1).swapaxes(0, 1) for x in drawn),
    )
    batches = jax.tree.map(lambda x: x[index].reshape(*sizes, *x.shape[3:]), replay)
    return replay, batches | {
        name: normalize(s.stats, batches[name]) for name in ("obs", "next_obs")
    }


def update(env, c, carry, batch):
    """Regress on the double Q-learning target, by Huber's loss. Engine: algorithms.dqn.critic_part."""
    (params, moments, target), (network, optimizer) = carry, make(env, c)
    best = network.apply(params, batch["next_obs"]).argmax(-1)
    value = jnp.take_along_axis(network.apply(target, batch["next_obs"]), best[:, None], axis=1)[
        :, 0
    ]
    goal = batch["reward"] + c.discount * (1.0 - batch["terminated"]) * value

    def loss(params):
        q = jnp.take_along_axis(
            network.apply(params, batch["obs"]), batch["action"][:, None], axis=1
        )[:, 0]
        return jnp.mean(optax.huber_loss(q, goal))

    change, moments = optimizer.update(jax.grad(loss)(params), moments)
    params = optax.apply_updates(params, change)
    return (params, moments, optax.incremental_update(params, target, c.tau)), None


def tick(env, c, s):
    """Sample, then learn from replay. Engine: runtime.graph.tick, learning.updates.run_updates."""
    tick_key = jax.random.fold_in(s.key, s.tick)
    sample_key, data_key = (
        jax.random.fold_in(tick_key, crc32(name)) for name in (b"sample", b"experience")
    )
    sampled, rollout, returns = sample(env, c, s, sample_key)
    replay, batches = through_replay(c, s, rollout, data_key)
    warm = (s.tick + 1) * c.num_envs * c.rollout_length >= c.warmup_steps
    learner, learn = (s.params, s.moments, s.target), partial(jax.lax.scan, partial(update, env, c))
    params, moments, target = jax.lax.cond(
        warm, lambda: learn(learner, batches)[0], lambda: learner
    )
    s = sampled._replace(
        params=params, moments=moments, target=target, replay=replay, tick=s.tick + 1
    )
    return s._replace(stats=update_stats(s.stats, rollout["obs"])), jnp.nanmean(returns)


if __name__ == "__main__":
    config = Config(num_envs=16, updates_per_tick=16, learning_rate=5e-4)
    env = from_gymnax.make("CartPole-v1")
    state = init(env, config, jax.random.key(0))
    run = jax.jit(lambda s: jax.lax.scan(lambda s, _: tick(env, config, s), s, length=125))
    for steps in range(8_000, 248_000, 8_000):
        state, returns = run(state)
        mean = jnp.nanmean(returns)
        print(
            f"{steps:7,} steps: mean return {mean:5.1f} of 500{', solved' if mean > 475 else ''}",
            flush=True,
        )
        if mean > 475:
            break
