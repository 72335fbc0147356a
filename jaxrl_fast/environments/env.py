"""Environments: one world (`Env`), many at once (`VecEnv`), and the step from one to the other (`vectorize`).

Laws that every `VecEnv` obeys, each held by a test:

* environments do not leak into each other;
* after ``terminated | truncated`` the next observation starts a fresh episode, ``next_obs`` stays the true successor;
* an episode's totals survive the border between two rollouts.
"""

from typing import Any, NamedTuple, Protocol

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


class Reset(Protocol):
    """Begins an episode; pure."""

    def __call__(self, key: jax.Array, params: PyTree, /) -> tuple[PyTree, PyTree]:
        """``params``: what `SampleParams` drew for this episode. Returns ``(state, obs)``."""


class StepOne(Protocol):
    """Takes one step; pure."""

    def __call__(self, state: PyTree, action: jax.Array, key: jax.Array, /) -> tuple[PyTree, Timestep]:
        """``action`` as the spec says. Returns ``(state, Timestep)``, whose ``obs`` and ``next_obs`` are alike: an
        environment never resets itself."""


class SampleParams(Protocol):
    """Draws what differs from episode to episode (domain randomization)."""

    def __call__(self, key: jax.Array, /) -> PyTree:
        """Returns the parameters of an episode, which ride in its state."""


class Env(NamedTuple):
    """One environment, written without a batch axis: ``reset`` (`Reset`), ``step`` (`StepOne`), ``sample_params``
    (`SampleParams`). ``shortest_episode``: no episode can be shorter; the larger it is, the fewer initial states need
    to be drawn.
    """

    spec: EnvSpec
    reset: Reset
    step: StepOne
    sample_params: SampleParams = no_params
    shortest_episode: int = 1


class VecState(NamedTuple):
    """``world``: the states of E worlds; ``episode``: the running totals ``[E]``."""

    world: PyTree
    episode: EpisodeTotals


class ResetAll(Protocol):
    """Begins an episode in every environment."""

    def __call__(self, key: jax.Array, /) -> tuple[VecState, PyTree]:
        """Returns ``(state, obs [E, ...])``."""


class DrawFresh(Protocol):
    """Draws the initial states for the resets of the next steps, outside any scan."""

    def __call__(self, key: jax.Array, num_steps: int, /) -> PyTree:
        """Returns the bank for ``num_steps`` steps. Its row changes every `FRESH_INTERVAL` steps, or sooner where the
        environment's ``shortest_episode`` is shorter, so that no episode repeats another's start and no step pays for a
        reset."""


class StepAll(Protocol):
    """Takes one step in every environment, and begins anew where an episode ends."""

    def __call__(
        self, state: VecState, action: jax.Array, key: jax.Array, bank: PyTree, t: jax.Array | int, /
    ) -> tuple[VecState, Timestep]:
        """``action`` ``[E, ...]``; ``t``: which of the bank's steps this is. Returns ``(state, Timestep [E, ...])``."""


class VecEnv(NamedTuple):
    """``num_envs`` environments with time limit, auto-reset and episode statistics: ``reset`` (`ResetAll`),
    ``draw_fresh`` (`DrawFresh`), ``step`` (`StepAll`). ``world``: one of them, where there is such a thing."""

    spec: EnvSpec
    num_envs: int
    reset: ResetAll
    draw_fresh: DrawFresh
    step: StepAll
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
        state: VecState, action: jax.Array, key: jax.Array, bank: PyTree, t: jax.Array | int
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
