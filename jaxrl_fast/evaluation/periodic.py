"""Periodic evaluation during a run: what is copied of its state, and how the copies are evaluated."""

from collections.abc import Callable
from functools import cache
from typing import Any, Literal, NamedTuple

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
from jaxrl_fast.graph.compiler_choices import acting_options
from jaxrl_fast.graph.dataflow import TrainState
from jaxrl_fast.graph.kept import Jit, Store, compile_kept, trace
from jaxrl_fast.policy.policies import Policy, PolicyParams, make_policy

FRESH = 0xF5E5
"""Folded into the keys of an evaluation whose initial states no other one has."""


class Snapshot(NamedTuple):
    """The policies of a run at one time, in host memory.

    - ``env_steps``, ``wall_s``: environment steps and seconds of the run until then.
    - ``params``: of all seeds, leaves ``[S, ...]``.
    """

    env_steps: int
    wall_s: float
    params: PolicyParams


Evaluate = Callable[[PolicyParams, bool], EpisodeTotals]
"""(params ``[S, ...]``, fresh): plays whole episodes with the policies of all seeds. Returns totals ``[S, episodes]``
in host memory, from the same initial states at each call; with ``fresh`` from others."""


class PeriodicEvaluation(NamedTuple):
    """How a run's policies are copied and evaluated.

    - ``copy_params(state)``: copies the params that acting needs, of all seeds, out of a program's state: leaves
      ``[S, ...]`` in host memory. Collective.
    - ``evaluate``: plays whole episodes with them.
    - ``policy_of(params [S, ...], seed)``: the policy of one seed, from 0.
    """

    copy_params: Callable[[TrainState], PolicyParams]
    evaluate: Evaluate
    policy_of: Callable[[PolicyParams, int], Policy]


def make_periodic_evaluation(
    env: VecEnv | HostEnv,
    algorithm: Algorithm,
    agent: Bound,
    keys: jax.Array,
    episodes: int,
    *,
    ahead: PolicyParams | None = None,
    device: jax.Device | None = None,
    store: Store | None = None,
) -> PeriodicEvaluation:
    """The `PeriodicEvaluation` of a run, with one of ``keys`` for each seed. Compiled environments: evaluation is
    compiled at the first, or at once for params like ``ahead`` ``[S, ...]``, from what an earlier start left in the
    ``store``, or leaves there now. ``device``: which computes; default JAX's own."""
    num_seeds = len(keys)
    made_by = {
        "algo": algorithm.name,
        "options": algorithm.options,
        "num_envs": env.num_envs,
        "normalize_observations": agent.normalize_observations,
    }
    acting = make_policy(env.spec, agent.acting, PolicyParams({}, None), made_by)
    if isinstance(env, HostEnv):
        totals: Any = evaluation_on_host(acting, env, episodes)
    else:
        jit = Jit("evaluation", make_evaluation(env, acting, episodes), options=acting_options(device))
        totals = jit.jitted() if ahead is None else compile_ahead(jit, ahead, keys, store)

    @cache
    def own_keys(fresh: bool) -> jax.Array:
        found = jax.vmap(jax.random.fold_in, (0, None))(keys, FRESH) if fresh else keys
        return found if device is None else jax.device_put(found, device)

    def copy_params(state: TrainState) -> PolicyParams:
        return policy_params(agent, state, num_seeds)

    def evaluate(params: PolicyParams, fresh: bool = False) -> EpisodeTotals:
        with jax.default_device(device):
            return jax.device_get(totals(params, own_keys(fresh)))

    def policy_of(params: PolicyParams, seed: int) -> Policy:
        own = jax.tree.map(lambda x: jnp.array(x[seed]), params)
        return make_policy(env.spec, agent.acting, own, made_by)

    return PeriodicEvaluation(copy_params, evaluate, policy_of)


def compile_ahead(jit: Jit, params: PolicyParams, keys: jax.Array, store: Store | None) -> Any:
    """``jit`` compiled for arguments like these, from the ``store`` where it has it."""
    programs = None if store is None else compile_kept(store, [jit], lambda: [trace(jit, params, keys)])
    return programs[0] if programs else jit.jitted().lower(params, keys).compile()


def evaluation_device(name: Literal["cpu", "same"]) -> jax.Device | None:
    """The device that "cpu" means beside an accelerator: the host's cores. None for the one that trains."""
    if name == "same":
        return None
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX was started without it
        return None


def make_evaluation(env: VecEnv, policy: Policy, episodes: int) -> Callable[[PolicyParams, jax.Array], EpisodeTotals]:
    """A pure function of params ``[S, ...]`` and keys ``[S]`` that returns totals ``[S, episodes]``."""
    if env.env is None:
        raise ValueError("this environment cannot be copied for evaluation: make it with jaxrl_fast.vectorize")
    own_envs = vectorize(env.env, num_envs=episodes)

    def one_seed(params: PolicyParams, key: jax.Array) -> EpisodeTotals:
        return play(policy.act, policy.initial_carry, own_envs, params, jax.random.fold_in(key, 0xE7A1))

    return jax.vmap(one_seed)


def policy_params(agent: Bound, state: TrainState, num_seeds: int) -> PolicyParams:
    """A copy of the params that acting needs, out of a program's state: leaves ``[S, ...]``, in host memory, so that
    any device can use them, and after the program has overwritten its state."""
    parts = agent.acting.greedy_weights(state.channels)
    stats = state.channels["statistics"].obs if agent.normalize_observations else None
    params = PolicyParams(*distributed.to_host((parts, stats)))
    return jax.tree.map(lambda x: np.array(x if num_seeds > 1 else np.asarray(x)[None]), params)
