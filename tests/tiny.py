"""Environments that compile in little time."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import Box, Discrete, EnvSpec, Timestep
from jaxrl_fast.envs.env import Env, VecEnv, vectorize
from jaxrl_fast.envs.host_env import HostEnv, HostStep

OBS = jax.ShapeDtypeStruct((2,), jnp.float32)


def line(*, discrete: bool, num_envs: int = 4, limit: int = 5) -> VecEnv:
    """Build a point on a line. It is paid for staying near 0; falling off at 3 terminates,
    ``limit`` steps truncate.
    """
    action = (
        Discrete(2) if discrete else Box(np.full(1, -2.0, np.float32), np.full(1, 1.0, np.float32))
    )

    def observe(x: jax.Array) -> jax.Array:
        return jnp.stack([x, 5.0 + 2.0 * x])

    def reset(key: jax.Array, params: tuple) -> tuple[jax.Array, jax.Array]:
        x = jax.random.uniform(key, (), jnp.float32, -1.0, 1.0)
        return x, observe(x)

    def step(x: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Timestep]:
        push = 2.0 * action.astype(jnp.float32) - 1.0 if discrete else action[0]
        x = x + push
        off = jnp.abs(x) > 3.0
        obs = observe(x)
        return x, Timestep(obs, obs, 1.0 - jnp.abs(x), off, jnp.zeros_like(off))

    return vectorize(Env(EnvSpec("line", OBS, action, limit), reset, step), num_envs=num_envs)


def host_line(
    *,
    discrete: bool,
    num_envs: int = 4,
    num_groups: int = 2,
    num_seeds: int = 1,
    limit: int = 5,
    bridge: str = "host",
) -> HostEnv:
    """Build the same point in NumPy, as a host environment; a fault in the order of calls raises."""
    spec = line(discrete=discrete, limit=limit).spec
    per_seed, num_envs = num_envs, num_envs * num_seeds
    size = num_envs // num_groups
    x, length, total = (
        np.zeros(num_envs),
        np.zeros(num_envs, np.int32),
        np.zeros(num_envs, np.float32),
    )
    count, flying, rngs = [0], dict[int, np.ndarray](), list[np.random.Generator]()

    def observe(x: np.ndarray) -> np.ndarray:
        return np.stack([x, 5.0 + 2.0 * x], axis=-1).astype(np.float32)

    def reset(seed: int | Sequence[int]) -> np.ndarray:
        seeds = seed if isinstance(seed, list) else [seed]
        part = size // num_seeds
        own = [
            (seeds[row % size // part], row // size * part + row % part) for row in range(num_envs)
        ]
        rngs[:] = [np.random.default_rng(words) for words in own]
        x[:], length[:], total[:], count[0] = [rng.uniform(-1, 1) for rng in rngs], 0, 0.0, 0
        flying.clear()
        return observe(x)

    def send(actions: np.ndarray, group: int) -> None:
        assert group not in flying and actions.shape[0] == size
        flying[group] = np.array(actions)

    def recv(group: int) -> HostStep:
        own = slice(group * size, (group + 1) * size)
        action = flying.pop(group)
        x[own] += 2.0 * action - 1.0 if discrete else action[:, 0]
        count[0] += size
        reward = (1.0 - np.abs(x[own])).astype(np.float32)
        length[own] += 1
        total[own] += reward
        terminated = np.abs(x[own]) > 3.0
        truncated = (length[own] >= limit) & ~terminated
        next_obs, totals, lengths = observe(x[own]), total[own].copy(), length[own].copy()
        for i in np.flatnonzero(terminated | truncated) + group * size:
            x[i], length[i], total[i] = rngs[i].uniform(-1, 1), 0, 0.0
        return HostStep(observe(x[own]), next_obs, reward, terminated, truncated, totals, lengths)

    def another(num_envs: int) -> HostEnv:
        return host_line(discrete=discrete, num_envs=num_envs, num_groups=1, limit=limit)

    return HostEnv(
        spec,
        per_seed,
        num_groups,
        reset,
        send,
        recv,
        lambda: count[0],
        list,
        another,
        lambda: None,
        num_seeds=num_seeds,
        bridge=bridge,
    )
