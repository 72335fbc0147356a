"""One episode of a compiled environment with whatever is to be seen of its states."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import PyTree, Timestep
from jaxrl_fast.environments.env import Env, vectorize
from jaxrl_fast.evaluation.episodes import STEP_LIMIT, Playing, player
from jaxrl_fast.graph.compiler_choices import acting_options
from jaxrl_fast.policy.policies import Policy


class Watched(NamedTuple):
    """An episode of ``T`` steps.

    - ``seen``: what was seen of its states, the first and the last included, leaves ``[T + 1, ...]``.
    - ``rewards``: of its steps, ``[T]``.
    - ``end``: ``terminated``, ``truncated``, or ``cut`` where it goes on after the steps that were asked for.
    """

    seen: PyTree
    rewards: np.ndarray
    end: str


class _Moment(NamedTuple):
    """A state, and the reward and the end of the step that led to it."""

    state: PyTree
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array


def watch(
    policy: Policy, env: Env, key: jax.Array, *, see: Callable[[PyTree], PyTree], max_steps: int | None = None
) -> Watched:
    """The first episode of the greedy policy, the one that `evaluate_episodes` counts with the same key and one
    environment. ``see``: a pure function, picks arrays from a state of the environment; ``max_steps``: cut it after so
    many."""
    one = vectorize(_unending(env), num_envs=1)
    limit = env.spec.max_episode_steps or STEP_LIMIT
    most = min(limit, max_steps or limit)

    @partial(jax.jit, compiler_options=acting_options())
    def moments(params: PyTree) -> PyTree:
        start, step = player(policy.act, policy.initial_carry, one, params, key)

        def advance(now: Playing, _: None) -> tuple[Playing, _Moment]:
            moment = now.state.env_state
            return step(now), moment._replace(state=jax.vmap(see)(moment.state))

        return jax.tree.map(lambda x: x[:, 0], jax.lax.scan(advance, start, length=most + 1)[1])

    made = moments(policy.params)
    terminated, truncated = np.asarray(made.terminated), np.asarray(made.truncated)
    done = terminated | truncated
    steps = int(done.argmax()) if done.any() else most
    end = "terminated" if terminated[steps] else "truncated" if truncated[steps] or steps == limit else "cut"
    seen = jax.tree.map(lambda x: x[: steps + 1], made.state)
    return Watched(seen, np.asarray(made.reward)[1 : steps + 1], end)


def _unending(env: Env) -> Env:
    """``env`` without an end of its episodes: many of them side by side never reset, so the state in which an episode
    terminated, the fall itself, stays there to be seen."""

    def reset(key: jax.Array, params: PyTree) -> tuple[_Moment, PyTree]:
        state, obs = env.reset(key, params)
        never = jnp.zeros((), bool)
        return _Moment(state, jnp.zeros((), jnp.float32), never, never), obs

    def step(moment: _Moment, action: jax.Array, key: jax.Array) -> tuple[_Moment, Timestep]:
        state, ts = env.step(moment.state, action, key)
        ends = (ts.terminated.astype(bool), ts.truncated.astype(bool))
        following = _Moment(state, jnp.sum(ts.reward.astype(jnp.float32)), *ends)  # the team's, of several agents
        never = jnp.zeros((), bool)
        return following, ts._replace(terminated=never, truncated=never)

    return Env(env.spec._replace(max_episode_steps=None), reset, step, env.sample_params)
