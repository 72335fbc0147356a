"""Evaluation of a policy: undiscounted returns of whole episodes, and a confidence interval of their mean."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import EpisodeTotals, PyTree, select
from jaxrl_fast.environments.env import VecEnv, VecState, no_totals, vectorize
from jaxrl_fast.environments.host_env import UNTOLD
from jaxrl_fast.graph.compiler_choices import acting_options
from jaxrl_fast.policy.policies import Policy

STEP_LIMIT = 10_000
"""Steps after which an evaluation episode is cut in an environment without a time limit."""


def evaluate_policy(policy: Policy, env: VecEnv, key: jax.Array, *, episodes: int = 128) -> np.ndarray:
    """Undiscounted returns ``[episodes]`` of the greedy policy, each episode from an initial state of its own.

    Raises:
        ValueError: ``episodes`` is not positive.
    """
    return np.asarray(evaluate_episodes(policy, env, key, episodes=episodes).returns)


def evaluate_episodes(policy: Policy, env: VecEnv, key: jax.Array, *, episodes: int) -> EpisodeTotals:
    """As `evaluate_policy`: returns, lengths and successes of the episodes, ``[episodes]``."""
    if episodes < 1:
        raise ValueError(f"episodes={episodes}: write a whole number of at least 1")
    if env.env is None:
        raise ValueError("this environment cannot be copied for evaluation: make it with jaxrl_fast.vectorize")
    run = partial(play, policy.act, policy.initial_carry, vectorize(env.env, num_envs=episodes))
    return jax.jit(run, compiler_options=acting_options())(policy.params, key)


class Playing(NamedTuple):
    """Evaluation episodes under way in ``E`` environments.

    - ``t``: steps so far.
    - ``finished``: which environments have ended their first episode, bool ``[E]``.
    - ``totals``: of the first episode of each, so far, ``[E]``.
    - ``state``, ``obs``: of the environments.
    - ``first``: whether ``obs`` begins an episode, bool ``[E]``.
    - ``carry``: the policy's memory and stacks of frames, ``[E, ...]``.
    """

    t: jax.Array
    finished: jax.Array
    totals: EpisodeTotals
    state: VecState
    obs: PyTree
    first: jax.Array
    carry: PyTree


def player(
    act: Callable[..., Any], initial_carry: Callable[[int], PyTree], env: VecEnv, params: PyTree, key: jax.Array
) -> tuple[Playing, Callable[[Playing], Playing]]:
    """The initial `Playing` of an episode in every environment, and the pure function that takes one step."""
    reset_key, step_key = jax.random.split(key)
    state, obs = env.reset(reset_key)
    bank = jax.tree.map(lambda x: x[None], (state.env_state, obs))  # only first episodes count: any start will do

    def step(now: Playing) -> Playing:
        act_key, env_key = jax.random.split(jax.random.fold_in(step_key, now.t))
        action, carry = act(params, now.carry, now.obs, now.first, act_key)
        state, ts = env.step(now.state, action, env_key, bank, 0)
        totals = select(now.finished, now.totals, ts.episode)
        done = ts.terminated | ts.truncated
        return Playing(now.t + 1, now.finished | done, totals, state, ts.obs, done, carry)

    n = env.num_envs
    success = jnp.zeros(n, bool) if env.env is not None and env.env.success is not None else ()
    totals = no_totals(env.spec, n)._replace(success=success)
    return Playing(jnp.int32(0), jnp.zeros(n, bool), totals, state, obs, jnp.ones(n, bool), initial_carry(n)), step


def play(
    act: Callable[..., Any], initial_carry: Callable[[int], PyTree], env: VecEnv, params: PyTree, key: jax.Array
) -> EpisodeTotals:
    """The first episode of every environment, totals ``[E]``; pure, so it may be vmapped over ``params``.

    Runs until the last episode has ended, so short episodes cost little.
    """
    limit = env.spec.max_episode_steps or STEP_LIMIT
    start, step = player(act, initial_carry, env, params, key)
    return jax.lax.while_loop(lambda now: (now.t < limit) & ~jnp.all(now.finished), step, start).totals


def with_untold(totals: EpisodeTotals) -> EpisodeTotals:
    """``totals`` with an array as its ``success`` in any case, int8."""
    if isinstance(totals.success, tuple):
        return totals._replace(success=np.full(np.shape(totals.returns), UNTOLD, np.int8))
    return totals._replace(success=np.asarray(totals.success, np.int8))


def without_untold(totals: EpisodeTotals) -> EpisodeTotals:
    """What `with_untold` was given. Where some episodes tell of success, those that do not are none."""
    told = totals.success != UNTOLD
    return totals._replace(success=totals.success == 1 if told.any() else ())


def bootstrap_interval(samples: np.ndarray, *, resamples: int = 10_000, seed: int = 0) -> tuple[float, float]:
    """The 95 % percentile bootstrap interval of the mean (Efron and Tibshirani, 1993, chapter 13)."""
    rng = np.random.default_rng(seed)
    draws = rng.choice(np.asarray(samples), size=(resamples, len(samples)), replace=True)
    low, high = np.percentile(draws.mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def interquartile_mean(samples: np.ndarray) -> float:
    """The mean of the samples between the quartiles, of all where they are fewer than 4 (Agarwal et al., 2021,
    arXiv 2108.13264)."""
    cut = len(samples) // 4
    return float(np.sort(samples)[cut : len(samples) - cut].mean())
