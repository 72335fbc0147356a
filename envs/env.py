"""Compiled environments: a single one (`Env`), many at once (`VecEnv`), and how one becomes many (`vectorize`).

What every `VecEnv` guarantees, each point covered by a test:

* environments do not influence each other;
* after ``terminated | truncated``, ``obs`` starts a new episode and ``next_obs`` stays the true successor;
* an episode that spans two rollouts is counted as one.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import EnvSpec, EpisodeTotals, PyTree, Timestep, over_two_axes, reward_shape, select

FRESH_INTERVAL = 8
"""At most this many steps share one row of the bank of initial states (see `VecEnv.draw_fresh`)."""


def no_params(key: jax.Array) -> tuple[()]:
    """`Env.sample_params` of an environment without parameters to randomize."""
    del key
    return ()


SampleParams = Callable[[jax.Array], PyTree]
"""(key) -> what differs from episode to episode (domain randomization), as `Env.reset` takes it; reset puts it into the
state if ``step`` needs it."""


Draw = Callable[[PyTree], np.ndarray]
"""(state) -> an RGB picture, uint8 ``[height, width, 3]``, of the same size for every state, for ``python -m
jaxrl_fast.render``; called outside of compiled programs, so it may use NumPy."""


class Env(NamedTuple):
    """A single environment, written without a batch axis.

    - ``spec``: its observations, actions and time limit.
    - ``reset(key, params)``: begins an episode with parameters of ``sample_params``. Returns ``(state, obs)``; pure.
    - ``step(state, action, key)``: takes one step; ``action``: of the spec's action space, of several agents
      ``[A, ...]``. Returns ``(state, Timestep)``; its ``obs`` and ``next_obs`` are equal, since a single environment
      never resets itself; pure.
    - ``sample_params(key)``: samples the parameters of an episode; pure.
    - ``shortest_episode``: no episode has fewer steps; the larger it is, the fewer initial states are sampled.
    - ``step_s``: how long a step lasts in its pictures, in seconds.
    - ``draw``: draws its states; None where there are no pictures of them.
    - ``success(state)``: whether a state is a success, such as a goal that is reached: one bool; pure. An episode is a
      success if its last state is. None where there is no such thing.
    """

    spec: EnvSpec
    reset: Callable[[jax.Array, PyTree], tuple[PyTree, PyTree]]
    step: Callable[[PyTree, jax.Array, jax.Array], tuple[PyTree, Timestep]]
    sample_params: SampleParams = no_params
    shortest_episode: int = 1
    step_s: float = 0.1
    draw: Draw | None = None
    success: Callable[[PyTree], jax.Array] | None = None


class VecState(NamedTuple):
    """The state of a `VecEnv`.

    - ``env_state``: the states of its environments, leaves ``[E, ...]``.
    - ``episode``: totals ``[E]`` of the episodes under way.
    """

    env_state: PyTree
    episode: EpisodeTotals


class VecEnv(NamedTuple):
    """``num_envs`` environments side by side, with time limit, auto-reset and episode totals.

    - ``spec``: that of each environment; ``num_envs``: how many there are (``E``).
    - ``reset(key)``: begins an episode in every environment. Returns ``(state, obs [E, ...])``; pure.
    - ``draw_fresh(key, num_steps)``: samples the bank of the resets of the next steps, outside any scan: rows of E
      initial states and observations. A row serves `FRESH_INTERVAL` steps, or fewer where ``shortest_episode`` is
      smaller, so that no environment starts twice from the same state and no step pays for a reset.
    - ``step(state, action, key, bank, t)``: takes one step in every environment, and starts a new episode where one
      ends; ``action`` ``[E, ...]``; ``bank``: from ``draw_fresh``; ``t``: which of its steps this is, from 0. Returns
      ``(state, Timestep [E, ...])``; pure.
    - ``env``: the single environment they are copies of; None where there is none to copy.
    """

    spec: EnvSpec
    num_envs: int
    reset: Callable[[jax.Array], tuple[VecState, PyTree]]
    draw_fresh: Callable[[jax.Array, int], PyTree]
    step: Callable[[VecState, jax.Array, jax.Array, PyTree, jax.Array | int], tuple[VecState, Timestep]]
    env: Env | None = None


def vectorize(env: Env, *, num_envs: int) -> VecEnv:
    """Run ``num_envs`` copies of a single environment side by side.

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

    def reset_one(key: jax.Array) -> tuple[PyTree, PyTree]:
        params_key, reset_key = jax.random.split(key)
        return env.reset(reset_key, env.sample_params(params_key))

    def reset(key: jax.Array) -> tuple[VecState, PyTree]:
        env_state, obs = jax.vmap(reset_one)(jax.random.split(key, num_envs))
        return VecState(env_state, no_totals(env.spec, num_envs)), obs

    def draw_fresh(key: jax.Array, num_steps: int) -> PyTree:
        rows = -(-num_steps // fresh_interval)
        return over_two_axes(reset_one, jax.random.split(key, (rows, num_envs)))

    def step(
        state: VecState, action: jax.Array, key: jax.Array, bank: PyTree, t: jax.Array | int
    ) -> tuple[VecState, Timestep]:
        env_state, timestep = jax.vmap(env.step)(state.env_state, action, jax.random.split(key, num_envs))
        reward = timestep.reward.astype(jnp.float32)
        episode = _with_step(state.episode, reward)
        terminated = timestep.terminated.astype(bool)
        truncated = timestep.truncated.astype(bool)
        if limit is not None:
            truncated |= episode.length >= limit
        truncated &= ~terminated
        done = terminated | truncated
        fresh = jax.tree.map(lambda rows: rows[t // fresh_interval], bank)
        success = () if env.success is None else jax.vmap(env.success)(env_state).astype(bool)
        env_state, obs = select(done, fresh, (env_state, timestep.next_obs))
        running = select(done, no_totals(env.spec, num_envs), episode)
        totals = episode._replace(success=success)
        return VecState(env_state, running), Timestep(obs, timestep.next_obs, reward, terminated, truncated, totals)

    return VecEnv(env.spec, num_envs, reset, draw_fresh, step, env)


def is_count(value: Any) -> bool:
    """Whether a value is a whole number of at least 1."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= 1


def no_totals(spec: EnvSpec, num_envs: int) -> EpisodeTotals:
    """Totals ``[E]`` of episodes that begin."""
    own = reward_shape(spec)
    agents = jnp.zeros((num_envs, *own), jnp.float32) if own else ()
    return EpisodeTotals(jnp.zeros(num_envs, jnp.float32), jnp.zeros(num_envs, jnp.int32), agents=agents)


def _with_step(before: EpisodeTotals, reward: jax.Array) -> EpisodeTotals:
    """Totals after one more step with ``reward`` ``[E]``, or ``[E, A]`` where agents have their own."""
    if isinstance(before.agents, tuple):
        return EpisodeTotals(before.returns + reward, before.length + 1)
    team = jnp.sum(reward, axis=1)
    return EpisodeTotals(before.returns + team, before.length + 1, agents=before.agents + reward)
