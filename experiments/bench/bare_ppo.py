"""The fixed program that is compared with our PPO: ``python bare_ppo.py halfcheetah|cartpole`` (see
`gate`).

One jitted loop in plain JAX, on the environment's original package: a rollout, advantages, epochs
over minibatches in time order. Networks, minibatches, epochs and steps match the rows in `ours`.
Environments are sharded over two devices, and the compiler shards the rest. Its returns do not
matter. The program must not change.
"""

import functools
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from bare_nets import adam, make_adam, make_mlp, mlp, squashed, squashed_density
from worker import serve


class World(NamedTuple):
    """One environment: ``reset(key) -> state``;
    ``step(key, state, action) -> state, reward, done``; ``obs(state) -> [O]``; ``act_size``
    actions, ``discrete`` or in (-1, 1).
    """

    reset: Callable
    step: Callable
    obs: Callable
    obs_size: int
    act_size: int
    discrete: bool


class Settings(NamedTuple):
    """Sizes of a tick, ticks in a repeat, and layers of policy and value."""

    num_envs: int
    rollout_length: int
    num_epochs: int
    num_minibatches: int
    ticks: int
    policy: tuple[int, ...]
    value: tuple[int, ...]
    activation: Callable


def halfcheetah() -> World:
    """Build brax's environment: episodes of 1,000 steps, which reset to their first state."""
    from brax import envs

    env = envs.create("halfcheetah", backend="spring", episode_length=1000, auto_reset=False)

    def step(key: jax.Array, state: Any, action: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        first, now = state
        now = env.step(now, action)
        done = now.done > 0
        begun = jax.tree.map(
            lambda a, b: jnp.where(done, a, b), first.pipeline_state, now.pipeline_state
        )
        info = {**now.info, "steps": jnp.where(done, 0.0, now.info["steps"])}
        obs, never = jnp.where(done, first.obs, now.obs), jnp.zeros_like(now.done)
        after = now.replace(pipeline_state=begun, obs=obs, done=never, info=info)
        return (first, after), now.reward, done

    def reset(key: jax.Array) -> Any:
        first = env.reset(key)
        return first, first

    return World(
        reset, step, lambda state: state[1].obs, env.observation_size, env.action_size, False
    )


def cartpole() -> World:
    """Build gymnax's environment, with gymnax's reset."""
    import gymnax

    env, params = gymnax.make("CartPole-v1")

    def reset(key: jax.Array) -> Any:
        return env.reset(key, params)

    def step(key: jax.Array, state: Any, action: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        obs, inner, reward, done, *_ = env.step(key, state[1], action, params)
        return (obs, inner), reward, done

    return World(reset, step, lambda state: state[0], 4, 2, True)


WORLDS = {
    # As `ours.SHORT["ppo_halfcheetah"]`: minibatches as large as in brax's notebook, but fewer.
    "halfcheetah": (halfcheetah, Settings(256, 80, 8, 2, 1, (32,) * 4, (256,) * 5, jax.nn.swish)),
    "cartpole": (cartpole, Settings(64, 128, 4, 4, 50, (64, 64), (64, 64), jnp.tanh)),
}


def choose(
    world: World, outputs: jax.Array, key: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return action, raw action and log-density."""
    if not world.discrete:
        return squashed(outputs, key)
    action = jax.random.categorical(key, outputs)
    return action, action, density(world, outputs, action)


def density(world: World, outputs: jax.Array, raw: jax.Array) -> jax.Array:
    """Compute the log-density of a raw action."""
    if not world.discrete:
        return squashed_density(outputs, raw)
    return jnp.take_along_axis(jax.nn.log_softmax(outputs), raw[..., None], -1)[..., 0]


def advantages(reward: jax.Array, done: jax.Array, value: jax.Array, last: jax.Array) -> jax.Array:
    """Compute generalized advantages ``[T, E]`` (γ 0.99, λ 0.95)."""
    following = jnp.concatenate([value[1:], last[None]])
    goes_on = 1.0 - done
    delta = reward + 0.99 * goes_on * following - value

    def back(carry: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        carry = now[0] + 0.99 * 0.95 * now[1] * carry
        return carry, carry

    return jax.lax.scan(back, jnp.zeros_like(last), (delta, goes_on), reverse=True)[1]


def make_loss(world: World, at: Settings) -> Callable[[Any, Any], jax.Array]:
    """Compute PPO's loss of a minibatch (observation, raw action, old log-density, advantage,
    target).
    """

    def loss(params: Any, batch: Any) -> jax.Array:
        obs, raw, old, advantage, target = batch
        outputs = mlp(params["policy"], obs, at.activation)
        log_prob = density(world, outputs, raw)
        ratio = jnp.exp(log_prob - old)
        gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage)
        value = mlp(params["value"], obs, at.activation)[..., 0]
        return (-gain + 0.5 * (value - target) ** 2 + 1e-3 * log_prob).mean()

    return loss


def make_tick(world: World, at: Settings) -> Callable[[Any, jax.Array], tuple[Any, jax.Array]]:
    """Build ``tick((params, adam, envs), key)``: a rollout, and the updates on it."""

    def act(carry: Any, key: jax.Array) -> tuple[Any, Any]:
        params, envs = carry
        key_act, key_env = jax.random.split(key)
        obs = jax.vmap(world.obs)(envs)
        action, raw, log_prob = choose(world, mlp(params["policy"], obs, at.activation), key_act)
        envs, reward, done = jax.vmap(world.step)(
            jax.random.split(key_env, at.num_envs), envs, action
        )
        return (params, envs), (obs, raw, log_prob, reward, done)

    loss = make_loss(world, at)

    def update(carry: Any, batch: Any) -> tuple[Any, None]:
        params, state = carry
        return adam(params, state, jax.grad(loss)(params, batch), 3e-4), None

    def tick(carry: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        params, state, envs = carry
        (_, envs), (obs, raw, old, reward, done) = jax.lax.scan(
            act, (params, envs), jax.random.split(key, at.rollout_length)
        )
        value = mlp(params["value"], obs, at.activation)[..., 0]
        last = mlp(params["value"], jax.vmap(world.obs)(envs), at.activation)[..., 0]
        advantage = advantages(reward, done, value, last)
        scaled = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        rows = at.rollout_length // at.num_minibatches
        batches = jax.tree.map(
            lambda x: x.reshape(at.num_minibatches, rows, *x.shape[1:]),
            (obs, raw, old, scaled, advantage + value),
        )
        epochs = lambda carry, _: jax.lax.scan(update, carry, batches)  # noqa: E731
        (params, state), _ = jax.lax.scan(epochs, (params, state), None, at.num_epochs)
        return (params, state, envs), reward.mean()

    return tick


def main(name: str) -> None:
    """Compile, warm up, and serve."""
    jax.config.update("jax_num_cpu_devices", 2)
    make, at = WORLDS[name]
    world = make()
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("e",))
    spread, whole = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in (("e",), ()))
    keys = jax.random.split(jax.random.key(0), 3)
    outputs = world.act_size if world.discrete else 2 * world.act_size
    params = {
        "policy": make_mlp(keys[0], world.obs_size, *at.policy, outputs),
        "value": make_mlp(keys[1], world.obs_size, *at.value, 1),
    }
    learned = jax.device_put((params, make_adam(params)), whole)
    envs = jax.jit(jax.vmap(world.reset), out_shardings=spread)(
        jax.random.split(keys[2], at.num_envs)
    )

    @functools.partial(jax.jit, donate_argnums=0, out_shardings=((whole, whole, spread), whole))
    def run(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        return jax.lax.scan(make_tick(world, at), state, jax.random.split(key, at.ticks))

    begin = time.perf_counter()
    state, count = (*learned, envs), 0
    compiled = run.lower(state, jax.random.key(0)).compile()
    compile_s = time.perf_counter() - begin

    def repeat() -> dict[str, Any]:
        nonlocal state, count
        count += 1
        key, begin = jax.random.key(count), time.perf_counter()
        state, reward = jax.block_until_ready(compiled(state, key))
        seconds = time.perf_counter() - begin
        assert jnp.isfinite(reward).all()
        return {"seconds": seconds, "steps": at.ticks * at.num_envs * at.rollout_length}

    repeat()
    serve(repeat, compile_s=compile_s)


if __name__ == "__main__":
    main(*sys.argv[1:])
