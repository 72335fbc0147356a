"""Environments: one world (`Env`), many at once (`VecEnv`), and the step from one to the other (`vectorize`).

Laws that every `VecEnv` obeys, each held by a test:

* environments do not leak into each other;
* after ``terminated | truncated`` the next observation starts a fresh episode, ``next_obs`` stays the true successor;
* an episode's totals survive the border between two rollouts.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import EnvSpec, EpisodeTotals, PyTree, Timestep, select

FRESH_INTERVAL = 8
"""At most this many steps share one row of the bank of initial states (see `VecEnv.draw_fresh`)."""


def no_params(key: jax.Array) -> tuple[()]:
    """The world has no parameters to randomize."""
    del key
    return ()


class Env(NamedTuple):
    """One world, written without a batch axis.

    ``reset(key, params) -> (state, obs)`` and ``step(state, action, key) -> (state, Timestep)`` are pure.
    Parameters ride in the state: ``sample_params(key)`` is drawn anew for every episode (domain randomization)
    and handed to ``reset``. A world sets ``obs`` and ``next_obs`` of its `Timestep` alike: it never resets itself.
    ``shortest_episode``: no episode can be shorter; the larger it is, the fewer initial states need to be drawn.
    """

    spec: EnvSpec
    reset: Callable[[jax.Array, PyTree], tuple[PyTree, PyTree]]
    step: Callable[[PyTree, jax.Array, jax.Array], tuple[PyTree, Timestep]]
    sample_params: Callable[[jax.Array], PyTree] = no_params
    shortest_episode: int = 1


class VecState(NamedTuple):
    """``world``: the states of E worlds; ``episode``: the running totals ``[E]``."""

    world: PyTree
    episode: EpisodeTotals


class VecEnv(NamedTuple):
    """``num_envs`` worlds with time limit, auto-reset and episode statistics.

    ``reset(key) -> (VecState, obs [E, ...])``;
    ``draw_fresh(key, num_steps) -> bank``: initial states for the resets of the next ``num_steps`` steps, drawn
    outside any scan; ``step(state, action [E, ...], key, bank, t) -> (VecState, Timestep)`` with ``t`` the index
    of the step within those. The row of the bank changes every `FRESH_INTERVAL` steps, or sooner where the world's
    ``shortest_episode`` is shorter, so that no episode repeats another's start and no step pays for a reset.
    """

    spec: EnvSpec
    num_envs: int
    reset: Callable[[jax.Array], tuple[VecState, PyTree]]
    draw_fresh: Callable[[jax.Array, int], Any]
    step: Callable[..., tuple[VecState, Timestep]]
    world: Env | None = None


def vectorize(env: Env, *, num_envs: int) -> VecEnv:
    """Run ``num_envs`` copies of one world side by side.

    Raises:
        ValueError: ``num_envs``, the time limit or the shortest episode is not a positive whole number.
    """
    if num_envs < 1:
        raise ValueError(f"num_envs={num_envs}: at least one environment is needed, for example num_envs=64")
    limit = env.spec.max_episode_steps
    for what, steps in (("max_episode_steps", limit), ("shortest_episode", env.shortest_episode)):
        if not (is_count(steps) or (steps is None and what == "max_episode_steps")):
            raise ValueError(f"{env.spec.name}: {what}={steps!r}: write a whole number of at least 1")
    fresh_interval = max(1, min(FRESH_INTERVAL, env.shortest_episode, limit or FRESH_INTERVAL))

    def reset_world(key: jax.Array) -> tuple[PyTree, PyTree]:
        params_key, reset_key = jax.random.split(key)
        return env.reset(reset_key, env.sample_params(params_key))

    def reset(key: jax.Array) -> tuple[VecState, PyTree]:
        world, obs = jax.vmap(reset_world)(jax.random.split(key, num_envs))
        return VecState(world, _no_totals(num_envs)), obs

    def draw_fresh(key: jax.Array, num_steps: int) -> PyTree:
        rows = -(-num_steps // fresh_interval)
        return jax.vmap(jax.vmap(reset_world))(jax.random.split(key, (rows, num_envs)))

    def step(
        state: VecState, action: jax.Array, key: jax.Array, bank: PyTree, t: jax.Array
    ) -> tuple[VecState, Timestep]:
        world, timestep = jax.vmap(env.step)(state.world, action, jax.random.split(key, num_envs))
        reward = timestep.reward.astype(jnp.float32)
        episode = EpisodeTotals(state.episode.returns + reward, state.episode.length + 1)
        terminated = timestep.terminated.astype(bool)
        truncated = timestep.truncated.astype(bool)
        if limit is not None:
            truncated |= episode.length >= limit
        truncated &= ~terminated
        done = terminated | truncated
        fresh = jax.tree.map(lambda rows: rows[t // fresh_interval], bank)
        world, obs = select(done, fresh, (world, timestep.next_obs))
        running = select(done, _no_totals(num_envs), episode)
        return VecState(world, running), Timestep(obs, timestep.next_obs, reward, terminated, truncated, episode)

    return VecEnv(env.spec, num_envs, reset, draw_fresh, step, env)


def is_count(value: Any) -> bool:
    """Whether a value is a whole number of at least 1."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= 1


def _no_totals(num_envs: int) -> EpisodeTotals:
    return EpisodeTotals(jnp.zeros(num_envs, jnp.float32), jnp.zeros(num_envs, jnp.int32))
