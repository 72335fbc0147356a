"""Periodic evaluation during a run: of all seeds, by process 0, abandoned when the run is asked to stop."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import NamedTuple, Protocol, TypeVar

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
"""How often it is checked whether the run is asked to stop, in seconds."""


class EvaluateSeeds(Protocol):
    """Evaluates the policies of all seeds."""

    def __call__(self, state: TrainState, /) -> EpisodeTotals | None:
        """``state``: of the training program. Returns totals ``[S, episodes]``, from the same initial states at each
        call; None where the run is asked to stop meanwhile."""


class BestPolicy(Protocol):
    """Picks the policy that a run stores at its end."""

    def __call__(self, state: TrainState, scores: np.ndarray, /) -> Policy:
        """``scores`` ``[S]``, one for each seed; empty: none was evaluated. Returns the policy of the best seed (of the
        first without scores)."""


class PeriodicEvaluation(NamedTuple):
    """How a run's policies are evaluated, and which of them is stored.

    - ``totals``: evaluates all seeds.
    - ``best_policy``: the policy of the seed with the best score.
    """

    totals: EvaluateSeeds
    best_policy: BestPolicy


def make_periodic_evaluation(
    env: VecEnv | HostEnv,
    algorithm: Algorithm,
    agent: Bound,
    keys: jax.Array,
    episodes: int,
    should_stop: Callable[[], bool],
) -> PeriodicEvaluation:
    """The `PeriodicEvaluation` of a run, with one of ``keys`` for each seed."""
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
    """A function of params ``[S, ...]`` and keys ``[S]`` that returns totals ``[S, episodes]``, compiled where the
    environments are."""
    if isinstance(env, HostEnv):
        return evaluation_on_host(policy, env, episodes)
    if env.env is None:
        raise ValueError("this environment cannot be copied for evaluation: make it with jaxrl_fast.vectorize")
    own_envs = vectorize(env.env, num_envs=episodes)

    def one_seed(params: PolicyParams, key: jax.Array) -> EpisodeTotals:
        return play(policy.act, policy.initial_carry, own_envs, params, jax.random.fold_in(key, 0xE7A1))

    return jax.jit(jax.vmap(one_seed))


def at_first(
    evaluate: Callable[[], EpisodeTotals], shape: tuple[int, int], should_stop: Callable[[], bool]
) -> EpisodeTotals | None:
    """The totals of an evaluation, of this ``shape``: computed by process 0 and sent to all; None where the run is
    asked to stop."""
    first = distributed.is_first()
    totals = unless_stopped(lambda: jax.device_get(evaluate()), should_stop) if first else None
    nothing = EpisodeTotals(jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.int32))
    made, totals = distributed.from_first((np.int32(totals is not None), totals or nothing))
    return totals if made else None


def unless_stopped(work: Callable[[], T], should_stop: Callable[[], bool]) -> T | None:
    """The result of ``work``; None, without waiting for it, where the run is asked to stop: an evaluation may take
    longer to compile than a cluster waits after its signal."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="evaluation")
    future = pool.submit(work)
    pool.shutdown(wait=False)
    while not wait([future], timeout=POLL_S).done:
        if should_stop():
            return None
    return future.result()


def policy_params(agent: Bound, state: TrainState, num_seeds: int) -> PolicyParams:
    """The params that acting needs, out of a program's state: leaves ``[S, ...]``, in host memory, so that any device
    can use them."""
    parts = agent.acting.greedy_weights(state.channels)
    stats = state.channels["statistics"].obs if agent.normalize_observations else None
    params = PolicyParams(*distributed.to_host((parts, stats)))
    return params if num_seeds > 1 else jax.tree.map(lambda x: np.asarray(x)[None], params)
