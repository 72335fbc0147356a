"""Compiled environments: a single one (`Env`), many at once (`VecEnv`), and how one becomes many (`vectorize`).

What every `VecEnv` guarantees, each point covered by a test:

* environments do not influence each other;
* after ``terminated | truncated``, ``obs`` starts a new episode and ``next_obs`` stays the true successor;
* an episode that spans two rollouts is counted as one.
"""

from typing import Any, NamedTuple, Protocol

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


class Reset(Protocol):
    """Begins an episode; pure."""

    def __call__(self, key: jax.Array, params: PyTree, /) -> tuple[PyTree, PyTree]:
        """``params``: what `SampleParams` returned for this episode. Returns ``(state, obs)``."""


class StepOne(Protocol):
    """Takes one step; pure."""

    def __call__(self, state: PyTree, action: jax.Array, key: jax.Array, /) -> tuple[PyTree, Timestep]:
        """``action``: of the spec's action space, of several agents ``[A, ...]``. Returns ``(state, Timestep)``; its
        ``obs`` and ``next_obs`` are the same, since a single environment never resets itself."""


class SampleParams(Protocol):
    """Samples what differs from episode to episode (domain randomization)."""

    def __call__(self, key: jax.Array, /) -> PyTree:
        """Returns the parameters of an episode, given to `Reset`, which puts them into the state if ``step`` needs
        them."""


class Draw(Protocol):
    """Draws a state, for ``python -m jaxrl_fast.render``; called outside of compiled programs, so it may use NumPy."""

    def __call__(self, state: PyTree, /) -> np.ndarray:
        """``state``: as `Reset` and `StepOne` return it. Returns an RGB picture, uint8 ``[height, width, 3]``,
        of the same size for every state."""


class Succeeded(Protocol):
    """Tells whether a state is a success, such as a goal that is reached; pure."""

    def __call__(self, state: PyTree, /) -> jax.Array:
        """``state``: as `StepOne` returns it. Returns one bool. An episode is a success if its last state is."""


class Env(NamedTuple):
    """A single environment, written without a batch axis.

    - ``spec``: its observations, actions and time limit.
    - ``reset``, ``step``, ``sample_params``: pure functions.
    - ``shortest_episode``: no episode has fewer steps; the larger it is, the fewer initial states are sampled.
    - ``step_s``: how long a step lasts in its pictures, in seconds.
    - ``draw``: draws its states; None where there are no pictures of them.
    - ``success``: tells which states are a success; None where there is no such thing.
    """

    spec: EnvSpec
    reset: Reset
    step: StepOne
    sample_params: SampleParams = no_params
    shortest_episode: int = 1
    step_s: float = 0.1
    draw: Draw | None = None
    success: Succeeded | None = None


class VecState(NamedTuple):
    """The state of a `VecEnv`.

    - ``env_state``: the states of its environments, leaves ``[E, ...]``.
    - ``episode``: totals ``[E]`` of the episodes under way.
    """

    env_state: PyTree
    episode: EpisodeTotals


class ResetAll(Protocol):
    """Begins an episode in every environment."""

    def __call__(self, key: jax.Array, /) -> tuple[VecState, PyTree]:
        """Returns ``(state, obs [E, ...])``."""


class DrawFresh(Protocol):
    """Samples the initial states for the resets of the next steps, outside any scan."""

    def __call__(self, key: jax.Array, num_steps: int, /) -> PyTree:
        """Returns the bank for ``num_steps`` steps: rows of E initial states and observations. A row serves
        `FRESH_INTERVAL` steps, or fewer where ``shortest_episode`` is smaller, so that no environment starts twice from
        the same state and no step pays for a reset."""


class StepAll(Protocol):
    """Takes one step in every environment, and starts a new episode where one ends."""

    def __call__(
        self, state: VecState, action: jax.Array, key: jax.Array, bank: PyTree, t: jax.Array | int, /
    ) -> tuple[VecState, Timestep]:
        """``action`` ``[E, ...]``; ``bank``: from `DrawFresh`; ``t``: which of its steps this is, from 0. Returns
        ``(state, Timestep [E, ...])``."""


class VecEnv(NamedTuple):
    """``num_envs`` environments side by side, with time limit, auto-reset and episode totals.

    - ``spec``: that of each environment; ``num_envs``: how many there are (``E``).
    - ``reset``, ``draw_fresh``, ``step``: pure functions.
    - ``env``: the single environment they are copies of; None where there is none to copy.
    """

    spec: EnvSpec
    num_envs: int
    reset: ResetAll
    draw_fresh: DrawFresh
    step: StepAll
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
