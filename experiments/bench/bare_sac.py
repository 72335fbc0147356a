"""The fixed program that is compared with our SAC:
``python bare_sac.py halfcheetah|HalfCheetah-v5`` (see `gate`).

Plain JAX: a step in every environment, then updates. Number of updates, batch size and buffer size
match the rows of `ours` and `ours_host`. brax's environment is in the same program; Gymnasium's are
stepped in a loop. Its returns do not matter. The program must not change.
"""

import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from bare_nets import adam, make_adam, make_mlp, mlp, squashed
from bare_ppo import halfcheetah
from worker import serve

OBS, ACT, ROWS = 17, 6, 1_048_576


class Settings(NamedTuple):
    """Sizes of a tick, and ticks in a repeat."""

    num_envs: int
    updates: int
    batch_size: int
    ticks: int


SETTINGS = {"halfcheetah": Settings(128, 64, 512, 2), "HalfCheetah-v5": Settings(16, 16, 256, 32)}


def make_learned(key: jax.Array) -> Any:
    """Networks of 256 x 256, the target networks and the temperature, and the optimizers' states."""
    keys = jax.random.split(key, 3)
    critics = [make_mlp(k, OBS + ACT, 256, 256, 1) for k in keys[:2]]
    params = {
        "critic": critics,
        "actor": make_mlp(keys[2], OBS, 256, 256, 2 * ACT),
        "log_alpha": jnp.zeros(()),
    }
    return params, jax.tree.map(jnp.copy, critics), make_adam(params)


def q_values(critics: Any, obs: jax.Array, action: jax.Array) -> jax.Array:
    """Compute both critics' values, ``[2, B]``."""
    both = jnp.concatenate([obs, action], -1)
    return jnp.stack([mlp(q, both, jax.nn.relu)[..., 0] for q in critics])


def loss(params: Any, target: Any, batch: jax.Array, key: jax.Array) -> jax.Array:
    """Compute the sum of the three losses; each has gradients in its networks only."""
    obs, following, action = (
        batch[:, :OBS],
        batch[:, OBS : 2 * OBS],
        batch[:, 2 * OBS : 2 * OBS + ACT],
    )
    reward, goes_on = batch[:, -2], batch[:, -1]
    held = jax.lax.stop_gradient(params)
    alpha, (key_next, key_now) = jnp.exp(held["log_alpha"]), jax.random.split(key)
    next_action, _, next_log_prob = squashed(mlp(held["actor"], following, jax.nn.relu), key_next)
    soft = q_values(target, following, next_action).min(0) - alpha * next_log_prob
    critic = (
        (q_values(params["critic"], obs, action) - (reward + 0.99 * goes_on * soft)) ** 2
    ).mean()
    now_action, _, log_prob = squashed(mlp(params["actor"], obs, jax.nn.relu), key_now)
    actor = (alpha * log_prob - q_values(held["critic"], obs, now_action).min(0)).mean()
    temperature = -(params["log_alpha"] * (jax.lax.stop_gradient(log_prob) - 0.5 * ACT)).mean()
    return critic + actor + temperature


def make_updates(at: Settings) -> Callable[..., Any]:
    """Build ``updates(learned, buffer [ROWS, columns], filled, key)``: the updates of a tick."""

    def updates(learned: Any, buffer: jax.Array, filled: jax.Array, key: jax.Array) -> Any:
        def update(learned: Any, key: jax.Array) -> tuple[Any, None]:
            params, target, state = learned
            key_batch, key_loss = jax.random.split(key)
            batch = buffer[jax.random.randint(key_batch, (at.batch_size,), 0, filled)]
            params, state = adam(
                params, state, jax.grad(loss)(params, target, batch, key_loss), 3e-4
            )
            target = jax.tree.map(
                lambda old, new: old + 0.005 * (new - old), target, params["critic"]
            )
            return (params, target, state), None

        return jax.lax.scan(update, learned, jax.random.split(key, at.updates))[0]

    return updates


def rows(obs: Any, following: Any, action: Any, reward: Any, done: Any, numpy: Any) -> Any:
    """Return the buffer rows of a step in every environment ``[E, columns]``."""
    return numpy.concatenate([obs, following, action, reward[:, None], 1.0 - done[:, None]], -1)


def compiled_world(at: Settings) -> Callable[[], jax.Array]:
    """Build a repeat on brax: environments and updates in one program."""
    world, updates = halfcheetah(), make_updates(at)

    def tick(carry: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        learned, envs, buffer, filled = carry
        key_act, key_env, key_update = jax.random.split(key, 3)
        obs = jax.vmap(world.obs)(envs)
        action = squashed(mlp(learned[0]["actor"], obs, jax.nn.relu), key_act)[0]
        envs, reward, done = jax.vmap(world.step)(
            jax.random.split(key_env, at.num_envs), envs, action
        )
        new = rows(obs, jax.vmap(world.obs)(envs), action, reward, done, jnp)
        buffer = jax.lax.dynamic_update_slice(buffer, new, (filled % ROWS, 0))
        filled = filled + at.num_envs
        return (updates(learned, buffer, filled, key_update), envs, buffer, filled), reward.mean()

    run = jax.jit(
        lambda state, key: jax.lax.scan(tick, state, jax.random.split(key, at.ticks)),
        donate_argnums=0,
    )
    key_learned, key_envs = jax.random.split(jax.random.key(0))
    envs = jax.jit(jax.vmap(world.reset))(jax.random.split(key_envs, at.num_envs))
    buffer = jnp.zeros((ROWS, 2 * OBS + ACT + 2))
    state, count = (make_learned(key_learned), envs, buffer, jnp.zeros((), jnp.int32)), 0

    def repeat() -> jax.Array:
        nonlocal state, count
        count += 1
        state, reward = run(state, jax.random.key(count))
        return jax.block_until_ready(reward)

    return repeat


def host_world(at: Settings) -> Callable[[], jax.Array]:
    """Build a repeat on Gymnasium: a loop over environments, one program that acts and one that
    updates.
    """
    import gymnasium

    envs = [gymnasium.make("HalfCheetah-v5") for _ in range(at.num_envs)]
    obs = np.stack([env.reset(seed=i)[0] for i, env in enumerate(envs)]).astype(np.float32)
    act = jax.jit(lambda actor, obs, key: squashed(mlp(actor, obs, jax.nn.relu), key)[0])
    updates = make_updates(at)

    def learn(
        learned: Any, buffer: jax.Array, new: jax.Array, filled: jax.Array, key: jax.Array
    ) -> Any:
        buffer = jax.lax.dynamic_update_slice(buffer, new, (filled % ROWS, 0))
        return updates(learned, buffer, filled + at.num_envs, key), buffer

    learn = jax.jit(learn, donate_argnums=(0, 1))
    learned, buffer = make_learned(jax.random.key(0)), jnp.zeros((ROWS, 2 * OBS + ACT + 2))
    count = 0

    def repeat() -> jax.Array:
        nonlocal learned, buffer, obs, count
        total = 0.0
        for _ in range(at.ticks):
            keys = jax.random.split(jax.random.key(count))
            action = np.asarray(act(learned[0]["actor"], obs, keys[0]))
            stepped = [env.step(one) for env, one in zip(envs, action, strict=True)]
            following = np.stack([one[0] for one in stepped]).astype(np.float32)
            reward = np.array([one[1] for one in stepped], np.float32)
            new = rows(
                obs,
                following,
                action,
                reward,
                np.array([one[2] for one in stepped], np.float32),
                np,
            )
            learned, buffer = learn(learned, buffer, new, count * at.num_envs, keys[1])
            over = [one[2] or one[3] for one in stepped]
            fresh = (
                env.reset()[0] if ended else row
                for env, ended, row in zip(envs, over, following, strict=True)
            )
            obs, count, total = (
                np.stack(list(fresh)).astype(np.float32),
                count + 1,
                total + reward.mean(),
            )
        jax.block_until_ready(learned)
        return jnp.asarray(total)

    return repeat


def main(name: str) -> None:
    """Compile, warm up, and serve."""
    at = SETTINGS[name]
    once = (compiled_world if name == "halfcheetah" else host_world)(at)
    begin = time.perf_counter()
    once()
    compile_s = time.perf_counter() - begin

    def repeat() -> dict[str, Any]:
        begin = time.perf_counter()
        reward = once()
        seconds = time.perf_counter() - begin
        assert jnp.isfinite(reward).all()
        return {"seconds": seconds, "updates": at.ticks * at.updates}

    repeat()
    serve(repeat, compile_s=compile_s)


if __name__ == "__main__":
    main(*sys.argv[1:])
