"""Proximal policy optimization (Schulman et al., 2017, arXiv 1707.06347) on one screen, as the
engine computes it.

From one state, a tick of `jaxrl_fast.ppo()` with default options gives the same numbers
(`tests/test_reference.py`). Axes: ``T`` rollout steps, ``E`` environments, ``K`` updates, ``B``
minibatch size, ``G`` logical shards.
"""

import math
from typing import Any, NamedTuple
from zlib import crc32

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from jaxrl_fast.envs import from_gymnax


class Config(NamedTuple):
    """Settings; the defaults are the engine's for 64 environments. Engine: algorithms.ppo.PpoHyper."""

    num_envs: int = 64
    rollout_length: int = 32
    num_epochs: int = 10
    num_minibatches: int = 32
    learning_rate: float = 3e-4
    discount: float = 0.99
    gae_lambda: float = 0.95
    clip_range: float = 0.2
    entropy_coef: float = 0.01
    max_grad_norm: float = 0.5
    initial_deviation: float = 0.4
    hidden: tuple[int, ...] = (64, 64)


class State(NamedTuple):
    """Everything a run is. Engine: runtime.graph.TrainState."""

    env: Any  # environment states, leaves [E, ...]
    obs: jax.Array  # what the policy sees next, [E, ...]
    totals: tuple[jax.Array, jax.Array]  # return and length of the running episodes, [E]
    # of observations: count, mean, sum of squared deviations
    stats: tuple[jax.Array, jax.Array, jax.Array]
    params: dict[str, Any]  # by network
    moments: Any  # of Adam
    tick: jax.Array
    key: jax.Array  # the run's, never changed


class Mlp(nn.Module):
    """Dense layers with tanh between them. Engine: networks.network.Mlp."""

    # size, variance of the weights times inputs, bias of the second half
    layers: tuple[tuple[int, float, float], ...]

    @nn.compact
    def __call__(self, x):
        for i, (size, variance, bias) in enumerate(self.layers):
            init, place = (
                nn.initializers.variance_scaling(variance, "fan_in", "truncated_normal"),
                jnp.arange(size),
            )
            biases = nn.initializers.constant(bias * (place >= size // 2))
            x = nn.Dense(size, kernel_init=init, bias_init=biases)(jnp.tanh(x) if i else x)
        return x


def make(env, c):
    """Make two networks that share nothing, with an optimizer each. Engine: algorithms.ppo.ppo."""
    space, rule = (
        env.spec.action,
        (optax.clip_by_global_norm(c.max_grad_norm), optax.adam(c.learning_rate, eps=1e-5)),
    )
    hidden, raw = (
        [(size, 2.0, 0.0) for size in c.hidden],
        math.log(math.expm1(c.initial_deviation - 1e-3)),
    )
    outputs = (
        (space.num_actions, 1e-4, 0.0)
        if hasattr(space, "num_actions")
        else (2 * space.low.size, 1e-4, raw)
    )
    networks = {"critic": Mlp((*hidden, (1, 1.0, 0.0))), "actor": Mlp((*hidden, outputs))}
    return networks, optax.partition(
        dict.fromkeys(networks, optax.chain(*rule)), {name: name for name in networks}
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
    (networks, optimizer), (env_state, obs) = (
        make(env, c),
        reset(env, jax.random.split(sample_key, c.num_envs)),
    )
    params = {
        n: net.init(jax.random.fold_in(learn_key, crc32(n.encode())), obs)
        for n, net in networks.items()
    }
    totals, stats = (
        (jnp.zeros(c.num_envs), jnp.zeros(c.num_envs, jnp.int32)),
        jnp.zeros((2, *obs.shape[1:])),
    )
    return State(
        env_state,
        obs,
        totals,
        (jnp.int32(0), *stats),
        params,
        optimizer.init(params),
        jnp.int32(0),
        key,
    )


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


def policy(env, outputs, key, raw=None):
    """Sample raw actions unless given; score them, with the entropy. Engine:
    learning.acting.sample_action.
    """
    if hasattr(env.spec.action, "num_actions"):
        raw = jax.random.categorical(key, outputs).astype(jnp.int32) if raw is None else raw
        log_p = jax.nn.log_softmax(outputs)
        return (
            raw,
            raw,
            jnp.take_along_axis(log_p, raw[..., None], -1)[..., 0],
            -jnp.sum(jnp.exp(log_p) * log_p, -1),
        )
    mean, scale = jnp.split(outputs, 2, axis=-1)  # of a normal that tanh squashes into the bounds
    (low, high), scale, constant = (
        env.spec.action,
        jax.nn.softplus(scale) + 1e-3,
        0.5 * math.log(2.0 * math.pi),
    )
    sampled = mean + scale * jax.random.normal(key, mean.shape)
    raw = sampled if raw is None else raw
    action = low + (jnp.tanh(raw).reshape(-1, *low.shape) + 1.0) * 0.5 * (high - low)
    # log of tanh's
    slope, other = (2.0 * (math.log(2.0) - x - jax.nn.softplus(-2.0 * x)) for x in (raw, sampled))
    log_prob = -0.5 * jnp.square((raw - mean) / scale) - jnp.log(scale) - constant - slope
    return raw, action, log_prob.sum(-1), (0.5 + constant + jnp.log(scale) + other).sum(-1)


def sample(env, c, s, key):
    """Take T steps in every environment, with automatic resets. Engine: learning.rollout.unroll,
    envs.env.vectorize.
    """
    limit, actor = env.spec.max_episode_steps or 2**31 - 1, make(env, c)[0]["actor"]
    # steps that share a row of E initial states, the bank
    interval = max(1, min(8, env.shortest_episode, limit))
    (bank_key, scan_key), num_rows = jax.random.split(key), -(-c.rollout_length // interval)
    bank = jax.vmap(lambda keys: reset(env, keys))(
        jax.random.split(bank_key, (num_rows, c.num_envs))
    )

    def step(carry, xs):
        (env_state, obs, (returns, length)), (t, (act_key, env_key)) = carry, xs
        outputs = actor.apply(s.params["actor"], normalize(s.stats, obs))
        raw, action, log_prob, _ = policy(env, outputs, act_key)
        env_state, ts = jax.vmap(env.step)(env_state, action, jax.random.split(env_key, c.num_envs))
        returns, length = returns + ts.reward, length + 1
        done = ts.terminated | ts.truncated | (length >= limit)
        row = dict(
            obs=obs, raw=raw, log_prob=log_prob, reward=ts.reward, next_obs=ts.next_obs, done=done
        )
        row |= dict(terminated=ts.terminated, ended=jnp.where(done, returns, jnp.nan))
        old = env_state, ts.next_obs
        env_state, obs = jax.tree.map(
            lambda new, x: jax.vmap(jnp.where)(done, new[t // interval], x), bank, old
        )
        return (env_state, obs, (jnp.where(done, 0.0, returns), jnp.where(done, 0, length))), row

    keys = jax.vmap(jax.random.split)(jax.random.split(scan_key, c.rollout_length))
    carry, rollout = jax.lax.scan(
        step, (s.env, s.obs, s.totals), (jnp.arange(c.rollout_length), keys)
    )
    return s._replace(env=carry[0], obs=carry[1], totals=carry[2]), rollout


def add_targets(env, c, s, rollout):
    """Add advantages and value targets (arXiv 1506.02438, equation 16). Engine:
    algorithms.ppo.targets.
    """
    obs, next_obs = normalize(s.stats, rollout["obs"]), normalize(s.stats, rollout["next_obs"])
    value, next_value = (
        make(env, c)[0]["critic"].apply(s.params["critic"], x)[..., 0] for x in (obs, next_obs)
    )
    # a truncated step bootstraps from its terminal observation
    discount = c.discount * (1.0 - rollout["terminated"])
    delta, decay = (
        rollout["reward"] + discount * next_value - value,
        discount * c.gae_lambda * (1.0 - rollout["done"]),
    )
    _, advantage = jax.lax.scan(
        lambda a, x: (x[0] + x[1] * a,) * 2, 0.0 * delta[0], (delta, decay), reverse=True
    )
    return rollout | dict(obs=obs, advantage=advantage, target=advantage + value)


def minibatches(c, data, key):
    """Shuffle a rollout into ``[K, B, ...]`` for all epochs. Engine:
    learning.minibatches.shuffled_epochs.
    """
    steps, epochs, batches = c.num_envs * c.rollout_length, c.num_epochs, c.num_minibatches
    # each minibatch takes equally many steps of every shard
    shards = math.gcd(8, c.num_envs, steps // batches)
    size, bits = steps // shards, max(1, (steps // shards - 1).bit_length())
    keys = jax.vmap(lambda k: jax.random.split(k, shards))(jax.random.split(key, epochs))
    words = jax.vmap(jax.vmap(lambda k: jax.random.bits(k, (size,), jnp.uint32)))(keys) << bits
    # [epochs, G, steps / G]
    order = jnp.sort(words | jnp.arange(size, dtype=jnp.uint32)) & jnp.uint32(2**bits - 1)
    order = (
        order.reshape(epochs, shards, batches, -1)
        .swapaxes(1, 2)
        .reshape(epochs * batches, shards, -1)
    )
    data = jax.tree.map(
        lambda x: x.reshape(c.rollout_length, shards, -1, *x.shape[2:]).swapaxes(0, 1), data
    )
    shard, width = jnp.arange(shards)[:, None], c.num_envs // shards
    return jax.tree.map(
        lambda x: x[shard, order // width, order % width].reshape(len(order), -1, *x.shape[3:]),
        data,
    )


def loss(params, env, c, batch, key):
    """Add both losses (equation 7). Engine: algorithms.ppo.value_errors,
    algorithms.ppo.surrogate_loss.
    """
    value, outputs = (
        network.apply(params[name], batch["obs"]) for name, network in make(env, c)[0].items()
    )
    _, _, log_prob, entropy = policy(env, outputs, key, batch["raw"])
    advantage = (batch["advantage"] - batch["advantage"].mean()) / (batch["advantage"].std() + 1e-8)
    ratio = jnp.exp(log_prob - batch["log_prob"])
    surrogate = jnp.minimum(
        ratio * advantage, jnp.clip(ratio, 1 - c.clip_range, 1 + c.clip_range) * advantage
    )
    return jnp.mean(
        0.5 * jnp.square(value[..., 0] - batch["target"]) - surrogate - c.entropy_coef * entropy
    )


def tick(env, c, s):
    """Sample, and learn from tick 1 on, with statistics. Engine: runtime.graph.tick,
    learning.updates.run_updates.
    """
    names, tick_key = (b"sample", b"experience", b"learn"), jax.random.fold_in(s.key, s.tick)
    sample_key, data_key, learn_key = (jax.random.fold_in(tick_key, crc32(name)) for name in names)
    sampled, rollout = sample(env, c, s, sample_key)
    batches = minibatches(c, add_targets(env, c, s, rollout), data_key)

    def update(carry, xs):
        (params, moments), (batch, key) = carry, xs
        grads = jax.grad(loss)(params, env, c, batch, jax.random.split(key)[1])
        change, moments = make(env, c)[1].update(grads, moments)
        return (optax.apply_updates(params, change), moments), None

    before, xs = (s.params, s.moments), (batches, jax.random.split(learn_key, len(batches["raw"])))
    params, moments = jax.lax.cond(
        s.tick > 0, lambda: jax.lax.scan(update, before, xs)[0], lambda: before
    )
    s = sampled._replace(
        params=params, moments=moments, stats=update_stats(s.stats, rollout["obs"]), tick=s.tick + 1
    )
    return s, jnp.nanmean(rollout["ended"])


if __name__ == "__main__":
    env, config = from_gymnax.make("CartPole-v1"), Config()
    state, step = init(env, config, jax.random.key(0)), jax.jit(lambda s: tick(env, config, s))
    for steps in range(2048, 100 * 2048, 2048):
        state, mean = step(state)
        print(
            f"{steps:7,} steps: mean return {mean:5.1f} of 500{', solved' if mean > 475 else ''}",
            flush=True,
        )
