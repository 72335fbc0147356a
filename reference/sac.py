"""Soft actor-critic (Haarnoja et al., 2018, arXiv 1812.05905) on one screen, as the engine computes
it.

From one state, a tick of `jaxrl_fast.sac()` with default options gives the same numbers
(`tests/test_reference.py`). Axes: ``E`` environments, ``K`` updates, ``B`` batch size, ``G``
logical shards. A tick takes one step.
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
    """Settings; the engine's defaults for one environment, whose warm-up is 5,000. Engine:
    algorithms.sac.SacHyper.
    """

    num_envs: int = 1
    updates_per_tick: int = 1
    batch_size: int = 256
    buffer_size: int = 1_000_000
    warmup_steps: int = 1_000  # of uniformly random actions
    learning_rate: float = 3e-4
    temperature_learning_rate: float = 3e-4
    discount: float = 0.99
    tau: float = 0.005
    target_entropy_per_action: float = -0.5
    max_grad_norm: float = 1e6
    hidden: tuple[int, ...] = (256, 256)


class State(NamedTuple):
    """Everything a run is. Engine: runtime.graph.TrainState."""

    env: Any  # environment states, leaves [E, ...]
    obs: jax.Array  # what the policy sees next, [E, ...]
    totals: tuple[jax.Array, jax.Array]  # return and length of the running episodes, [E]
    # of observations: count, mean, sum of squared deviations
    stats: tuple[jax.Array, jax.Array, jax.Array]
    replay: dict[str, jax.Array]  # steps as they were sampled, [G, buffer_size / E, E / G, ...]
    params: dict[str, Any]  # by network
    target: Any  # slow copies of the critics
    moments: Any  # of Adam, by network
    tick: jax.Array
    key: jax.Array  # the run's, never changed


class Mlp(nn.Module):
    """Dense layers with ReLU between them. Engine: networks.network.Mlp."""

    layers: tuple[tuple[int, float], ...]  # size, and variance of the weights times inputs

    @nn.compact
    def __call__(self, *inputs):
        x = jnp.concatenate(inputs, axis=-1)
        for i, (size, variance) in enumerate(self.layers):
            init = nn.initializers.variance_scaling(variance, "fan_in", "truncated_normal")
            x = nn.Dense(size, kernel_init=init)(nn.relu(x) if i else x)
        return x


def make(env, c):
    """Make critic, actor, and the optimizers. Engine: algorithms.sac.sac,
    algorithms.shared_fields.policy_and_critics.
    """
    hidden, clip = [(size, 2.0) for size in c.hidden], optax.clip_by_global_norm(c.max_grad_norm)
    critic, actor = Mlp((*hidden, (1, 1.0))), Mlp((*hidden, (2 * env.spec.action.low.size, 1e-4)))
    rates = dict(q=c.learning_rate, policy=c.learning_rate, temperature=c.temperature_learning_rate)
    return (
        critic,
        actor,
        {name: optax.chain(clip, optax.adam(rate)) for name, rate in rates.items()},
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
    critic_key, actor_key = (
        jax.random.fold_in(learn_key, crc32(name)) for name in (b"critic", b"actor")
    )
    env_state, obs = reset(env, jax.random.split(sample_key, c.num_envs))
    (critic, actor, optimizers), action = (
        make(env, c),
        jnp.zeros((c.num_envs, *env.spec.action.low.shape)),
    )
    q = tuple(critic.init(k, action, obs) for k in jax.random.split(critic_key))
    # the latter as its logarithm
    params = dict(q=q, policy=actor.init(actor_key, obs), temperature=jnp.zeros(()))
    moments = {name: optimizers[name].init(params[name]) for name in params}
    totals, stats = (
        (jnp.zeros(c.num_envs), jnp.zeros(c.num_envs, jnp.int32)),
        jnp.zeros((2, *obs.shape[1:])),
    )
    slots = (
        (shards := math.gcd(8, c.num_envs, c.batch_size)),
        c.buffer_size // c.num_envs,
        c.num_envs // shards,
    )
    step = dict(obs=obs, action=action, reward=totals[0], next_obs=obs, terminated=totals[0] > 0)
    replay = {name: jnp.zeros((*slots, *x.shape[1:]), x.dtype) for name, x in step.items()}
    return State(
        env_state,
        obs,
        totals,
        (jnp.int32(0), *stats),
        replay,
        params,
        q,
        moments,
        jnp.int32(0),
        key,
    )


def normalize(stats, obs):
    """Normalize observations; without data, return them. Engine: numerics.normalization.normalize."""
    count, mean, variance = stats
    scaled = (obs - mean) / jnp.sqrt(variance + 1e-6)
    return jnp.where(count > 0, jnp.clip(scaled, -10.0, 10.0), obs)


def update_stats(stats, obs):
    """Merge observations ``[E, ...]`` (Chan et al., 1979). Engine:
    numerics.normalization.update_stats.
    """
    (count, mean, variance), size, new = stats, len(obs), obs.mean(0)
    share, delta, spread = size / (count + size), new - mean, jnp.square(obs - new).mean(0)
    return (
        count + size,
        mean + share * delta,
        variance + share * (spread + (1 - share) * jnp.square(delta) - variance),
    )


def policy(outputs, key):
    """Sample actions in [-1, 1] and score them. Engine: learning.acting.sample_action."""
    mean, scale = jnp.split(outputs, 2, axis=-1)
    scale, noise = jax.nn.softplus(scale) + 1e-3, jax.random.normal(key, mean.shape)
    raw = mean + scale * noise
    log_slope = 2.0 * (math.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))  # of tanh
    log_prob = -0.5 * jnp.square(noise) - jnp.log(scale) - 0.5 * math.log(2.0 * math.pi) - log_slope
    return jnp.tanh(raw), log_prob.sum(-1)


def sample(env, c, s, key):
    """Take a step in every environment, with automatic resets. Engine: learning.rollout.unroll,
    envs.env.vectorize.
    """
    (bank_key, scan_key), (low, high) = jax.random.split(key), env.spec.action
    act_key, env_key = jax.random.split(jax.random.split(scan_key, 1)[0])
    initial = reset(env, jax.random.split(bank_key, (1, c.num_envs))[0])
    unit = policy(make(env, c)[1].apply(s.params["policy"], normalize(s.stats, s.obs)), act_key)[0]
    anything = jax.random.uniform(
        jax.random.fold_in(act_key, crc32(b"uniform")), unit.shape, minval=-1.0
    )
    action = low + (
        jnp.where(s.tick < -(-c.warmup_steps // c.num_envs), anything, unit) + 1.0
    ) * 0.5 * (high - low)
    env_state, ts = jax.vmap(env.step)(s.env, action, jax.random.split(env_key, c.num_envs))
    returns, length = s.totals[0] + ts.reward, s.totals[1] + 1
    done = ts.terminated | ts.truncated | (length >= (env.spec.max_episode_steps or 2**31 - 1))
    step = dict(
        obs=s.obs, action=action, reward=ts.reward, next_obs=ts.next_obs, terminated=ts.terminated
    )
    env_state, obs = jax.tree.map(
        lambda new, x: jax.vmap(jnp.where)(done, new, x), initial, (env_state, ts.next_obs)
    )
    s = s._replace(
        env=env_state, obs=obs, totals=(jnp.where(done, 0.0, returns), jnp.where(done, 0, length))
    )
    return s, step, jnp.where(done, returns, jnp.nan)


def through_replay(c, s, step, key):
    """Store a step over the oldest, then sample ``[K, B, ...]``. Engine:
    replay.buffers.ring_buffer.
    """
    (shards, slots, width), (time_key, env_key) = s.replay["reward"].shape, jax.random.split(key)
    at, stored, sizes = (
        s.tick % slots,
        jnp.minimum(s.tick + 1, slots),
        (c.updates_per_tick, c.batch_size),
    )
    replay = jax.tree.map(
        lambda ring, x: ring.at[:, at].set(x.reshape(shards, width, *x.shape[1:])), s.replay, step
    )
    # with replacement
    draw = partial(jax.random.randint, shape=(shards, math.prod(sizes) // shards), minval=0)
    drawn = (
        (s.tick + 1 - stored + draw(time_key, maxval=stored)) % slots,
        draw(env_key, maxval=width),
    )
    index = (
        jnp.arange(shards)[:, None],
        *(x.reshape(shards, sizes[0], -1).swapaxes(0, 1) for x in drawn),
    )
    batches = jax.tree.map(lambda x: x[index].reshape(*sizes, *x.shape[3:]), replay)
    return replay, batches | {
        name: normalize(s.stats, batches[name]) for name in ("obs", "next_obs")
    }


def update(env, c, carry, xs):
    """Update all networks (equations 2, 3, 7, 18). Engine: algorithms.sac.critic_part,
    algorithms.sac.actor_part.
    """
    (params, moments, target), (batch, key), (critic, actor, optimizers) = carry, xs, make(env, c)
    (low, high), (critic_key, actor_key) = env.spec.action, jax.random.split(key)
    obs, next_obs, temperature = batch["obs"], batch["next_obs"], jnp.exp(params["temperature"])

    def q_values(q, action, obs):
        return jnp.stack([critic.apply(p, action, obs)[..., 0] for p in q])

    def descend(name, grads):
        change, moment = optimizers[name].update(grads, moments[name])
        return params | {name: optax.apply_updates(params[name], change)}, moments | {name: moment}

    action, log_prob = policy(actor.apply(params["policy"], next_obs), critic_key)
    value = q_values(target, action, next_obs).min(0) - temperature * log_prob
    goal = batch["reward"] + c.discount * (1.0 - batch["terminated"]) * value

    def critic_loss(q):
        unit = (batch["action"] - low) / (0.5 * (high - low)) - 1.0
        return 0.5 * jnp.sum(jnp.mean(jnp.square(q_values(q, unit, obs) - goal), axis=1))

    params, moments = descend("q", jax.grad(critic_loss)(params["q"]))
    target = optax.incremental_update(params["q"], target, c.tau)

    def actor_loss(p):
        action, log_prob = policy(actor.apply(p, obs), actor_key)
        return jnp.mean(
            temperature * log_prob - q_values(params["q"], action, obs).min(0)
        ), -log_prob.mean()

    grads, entropy = jax.grad(actor_loss, has_aux=True)(params["policy"])
    params, moments = descend("policy", grads)
    return (
        *descend("temperature", temperature * (entropy - c.target_entropy_per_action * low.size)),
        target,
    ), None


def tick(env, c, s):
    """Take a step, then learn from replay. Engine: runtime.graph.tick,
    learning.updates.run_updates.
    """
    names, tick_key = (b"sample", b"experience", b"learn"), jax.random.fold_in(s.key, s.tick)
    sample_key, data_key, learn_key = (jax.random.fold_in(tick_key, crc32(name)) for name in names)
    sampled, step, returns = sample(env, c, s, sample_key)
    replay, batches = through_replay(c, s, step, data_key)
    learner, xs = (
        (s.params, s.moments, s.target),
        (batches, jax.random.split(learn_key, c.updates_per_tick)),
    )
    warm, learn = (
        (s.tick + 1) * c.num_envs >= c.warmup_steps,
        partial(jax.lax.scan, partial(update, env, c)),
    )
    params, moments, target = jax.lax.cond(warm, lambda: learn(learner, xs)[0], lambda: learner)
    s = sampled._replace(
        params=params, moments=moments, target=target, replay=replay, tick=s.tick + 1
    )
    return s._replace(stats=update_stats(s.stats, step["obs"])), jnp.nanmean(returns)


if __name__ == "__main__":
    state = init(env := from_gymnax.make("Pendulum-v1"), config := Config(), jax.random.key(0))
    run = jax.jit(lambda s: jax.lax.scan(lambda s, _: tick(env, config, s), s, length=1000))
    for steps in range(1000, 11_000, 1000):
        state, returns = run(state)
        print(
            f"{steps:6,} steps: mean return {jnp.nanmean(returns):6.0f}; about -150 is solved",
            flush=True,
        )
