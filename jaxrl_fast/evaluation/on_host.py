"""Evaluation in environments stepped on the host."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import EpisodeTotals, PyTree
from jaxrl_fast.environments.host_env import UNTOLD, HostEnv, HostStep
from jaxrl_fast.evaluation.episodes import STEP_LIMIT, without_untold
from jaxrl_fast.policy.policies import Policy, PolicyParams


def steps_on_host(
    act: Callable[..., Any], initial_carry: Callable[[int], PyTree], env: HostEnv, params: PyTree, seed: int
) -> Iterator[HostStep]:
    """Begins an episode in every environment, and returns the steps that the policy then takes, without end. ``act``
    should be compiled."""
    return _steps_from(env.reset(seed), act, initial_carry(env.num_envs), env, params, jax.random.key(seed))


def _steps_from(
    obs: Any, act: Callable[..., Any], carry: PyTree, env: HostEnv, params: PyTree, key: jax.Array
) -> Iterator[HostStep]:
    first = np.ones(env.num_envs, bool)
    while True:
        action, carry = act(params, carry, obs, first, key)
        env.send(np.asarray(action), 0)
        step = env.recv(0)
        yield step
        obs, first = step.obs, step.terminated | step.truncated


def play_on_host(
    act: Callable[..., Any], initial_carry: Callable[[int], PyTree], env: HostEnv, params: PyTree, seed: int
) -> EpisodeTotals:
    """The first episode of every environment, totals ``[E]``, as `episodes.play`; ``success`` is as `HostEnv.success`
    gives it. ``act`` should be compiled."""
    n = env.num_envs
    finished, success = np.zeros(n, bool), np.full(n, UNTOLD, np.int8)
    totals = EpisodeTotals(np.zeros(n, np.float32), np.zeros(n, np.int32))  # type: ignore[arg-type]
    agents = None if env.agents is None else np.zeros_like(env.agents())
    limit = env.spec.max_episode_steps or STEP_LIMIT
    for step in islice(steps_on_host(act, initial_carry, env, params, seed), limit):
        own = EpisodeTotals(step.episode_return, step.episode_length)  # type: ignore[arg-type]
        totals = jax.tree.map(partial(np.where, finished), totals, own)
        done = step.terminated | step.truncated
        if env.success is not None and done.any():
            success = np.where(done & ~finished, env.success(), success)
        if agents is not None and env.agents is not None:
            agents = np.where((done & ~finished)[:, None], env.agents(), agents)
        finished = finished | done
        if finished.all():
            break
    return totals._replace(success=success, agents=() if agents is None else agents)


def host_seed(key: jax.Array) -> int:
    """The seed of the environments of an evaluation on the host."""
    return int(jax.random.bits(jax.random.fold_in(key, 0xE7A1), (), jnp.uint32))


def evaluation_on_host(
    policy: Policy, env: HostEnv, episodes: int
) -> Callable[[PolicyParams, jax.Array], EpisodeTotals]:
    """A function of params ``[S, ...]`` and keys ``[S]`` that returns totals ``[S, episodes]``: in environments of its
    own, and with the same initial states at each call."""
    act = jax.jit(policy.act)

    def evaluate(params: PolicyParams, keys: jax.Array) -> EpisodeTotals:
        own_envs, rows = env.another(episodes), []
        try:
            for i, key in enumerate(keys):
                one = jax.tree.map(itemgetter(i), params)
                rows.append(play_on_host(act, policy.initial_carry, own_envs, one, host_seed(key)))
        finally:
            own_envs.close()
        return without_untold(jax.tree.map(lambda *totals: np.stack(totals), *rows))

    return evaluate
