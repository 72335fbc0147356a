"""Periodic evaluation during a run: of all seeds, by process 0, given up once the run is to stop."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.algorithms.interface import Algorithm
from jaxrl_fast.core import EpisodeTotals
from jaxrl_fast.environments.env import VecEnv, vectorize
from jaxrl_fast.environments.host_env import HostEnv
from jaxrl_fast.evaluation.episodes import play
from jaxrl_fast.evaluation.on_host import evaluation_on_host
from jaxrl_fast.experience.binding import Bound
from jaxrl_fast.graph import distributed
from jaxrl_fast.graph.dataflow import TrainState
from jaxrl_fast.policy.policies import Policy, PolicyParams, make_policy

T = TypeVar("T")
POLL_S = 0.5


class PeriodicEvaluation(NamedTuple):
    """``totals(state)``: those of all seeds ``[S, episodes]``, always from the same starts, or None once the run is to
    stop; ``best_policy(state, scores [S])``: the policy of the seed with the best score, on the host."""

    totals: Callable[[TrainState], EpisodeTotals | None]
    best_policy: Callable[[TrainState, np.ndarray], Policy]


def make_periodic_evaluation(
    env: VecEnv | HostEnv,
    algorithm: Algorithm,
    agent: Bound,
    keys: jax.Array,
    episodes: int,
    should_stop: Callable[[], bool],
) -> PeriodicEvaluation:
    """How the policies of a run's seeds, one for each of ``keys``, are evaluated, and which is stored in the end."""
    num_seeds = len(keys)
    made_by = {
        "algo": algorithm.name,
        "options": algorithm.options,
        "num_envs": env.num_envs,
        "normalize_observations": agent.normalize_observations,
    }
    evaluate = make_evaluation(env, make_policy(env.spec, agent.acting, PolicyParams({}, None), made_by), episodes)

    def totals(state: TrainState) -> EpisodeTotals | None:
        params = policy_params(agent, state, num_seeds)
        return at_first(lambda: evaluate(params, keys), (num_seeds, episodes), should_stop)

    def best_policy(state: TrainState, scores: np.ndarray) -> Policy:
        best = int(np.argmax(scores)) if scores.size else 0
        params = jax.tree.map(lambda x: jnp.array(x[best]), policy_params(agent, state, num_seeds))
        return make_policy(env.spec, agent.acting, params, made_by)

    return PeriodicEvaluation(totals, best_policy)


def make_evaluation(
    env: VecEnv | HostEnv, policy: Policy, episodes: int
) -> Callable[[PolicyParams, jax.Array], EpisodeTotals]:
    """A compiled evaluation of all seeds: totals ``[S, episodes]``, always from the same starts."""
    if isinstance(env, HostEnv):
        return evaluation_on_host(policy, env, episodes)
    if env.world is None:
        raise ValueError("this environment cannot be copied for evaluation")
    worlds = vectorize(env.world, num_envs=episodes)

    def one_seed(params: PolicyParams, key: jax.Array) -> EpisodeTotals:
        return play(policy.act, policy.initial_carry, worlds, params, jax.random.fold_in(key, 0xE7A1))

    return jax.jit(jax.vmap(one_seed))


def at_first(
    evaluate: Callable[[], EpisodeTotals], shape: tuple[int, int], should_stop: Callable[[], bool]
) -> EpisodeTotals | None:
    """An evaluation's totals, of this ``shape``, made by process 0 and known to all; None once the run is to stop."""
    first = distributed.is_first()
    totals = unless_stopped(lambda: jax.device_get(evaluate()), should_stop) if first else None
    nothing = EpisodeTotals(jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.int32))
    made, totals = distributed.from_first((np.int32(totals is not None), totals or nothing))
    return totals if made else None


def unless_stopped(work: Callable[[], T], should_stop: Callable[[], bool]) -> T | None:
    """What ``work`` gives; None, without waiting for it, once the run is to stop. An evaluation may take longer to
    compile than a cluster waits after its signal."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="evaluation")
    future = pool.submit(work)
    pool.shutdown(wait=False)
    while not wait([future], timeout=POLL_S).done:
        if should_stop():
            return None
    return future.result()


def policy_params(agent: Bound, state: TrainState, num_seeds: int) -> PolicyParams:
    """What acting needs, out of a program's state: leaves ``[S, ...]`` on the host, so that they can act anywhere."""
    parts = agent.acting.greedy_weights(state.channels)
    stats = state.channels["statistics"].obs if agent.normalize_observations else None
    params = PolicyParams(*distributed.to_host((parts, stats)))
    return params if num_seeds > 1 else jax.tree.map(lambda x: np.asarray(x)[None], params)
