"""Evaluation in environments stepped on the host."""

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import EpisodeTotals, PyTree
from jaxrl_fast.environments.host_env import HostEnv
from jaxrl_fast.evaluation.episodes import STEP_LIMIT
from jaxrl_fast.policy.policies import Policy, PolicyParams


def play_on_host(
    act: Callable[..., Any], initial_carry: Callable[[int], PyTree], env: HostEnv, params: PyTree, seed: int
) -> EpisodeTotals:
    """The first episode of every environment, totals ``[E]``, as `episodes.play`. ``act`` should be compiled."""
    obs = env.reset(seed)
    finished = np.zeros(env.num_envs, bool)
    totals = EpisodeTotals(np.zeros(env.num_envs, np.float32), np.zeros(env.num_envs, np.int32))  # type: ignore[arg-type]
    carry, first = initial_carry(env.num_envs), ~finished
    key = jax.random.key(seed)
    for _ in range(env.spec.max_episode_steps or STEP_LIMIT):
        action, carry = act(params, carry, obs, first, key)
        env.send(np.asarray(action), 0)
        step = env.recv(0)
        obs, first = step.obs, step.terminated | step.truncated
        own = EpisodeTotals(step.episode_return, step.episode_length)  # type: ignore[arg-type]
        totals = jax.tree.map(partial(np.where, finished), totals, own)
        finished = finished | first
        if finished.all():
            break
    return totals


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
                seed = int(jax.random.bits(jax.random.fold_in(key, 0xE7A1), (), jnp.uint32))
                one = jax.tree.map(itemgetter(i), params)
                rows.append(play_on_host(act, policy.initial_carry, own_envs, one, seed))
        finally:
            own_envs.close()
        return jax.tree.map(lambda *totals: np.stack(totals), *rows)

    return evaluate
