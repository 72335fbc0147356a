"""Evaluation of a policy: undiscounted returns of whole episodes, and a confidence interval of their mean."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import islice
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import EpisodeTotals, PyTree, select
from jaxrl_fast.envs.env import VecEnv, VecState, no_totals, vectorize
from jaxrl_fast.envs.host_env import UNTOLD, HostEnv, HostStep
from jaxrl_fast.learning.acting import BoundAgent
from jaxrl_fast.learning.algorithm import Algorithm
from jaxrl_fast.policy.policies import Policy, PolicyParams, make_policy
from jaxrl_fast.runtime import hosts
from jaxrl_fast.runtime.graph import TrainState
from jaxrl_fast.runtime.program_store import Jit, Store, compile_stored, trace
from jaxrl_fast.runtime.xla_options import acting_options

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
    agent: BoundAgent,
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
    made_by = {"algo": algorithm.name, "options": algorithm.options, "num_envs": env.num_envs}
    made_by |= {"normalize_observations": agent.normalize_observations}
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
    programs = None if store is None else compile_stored(store, [jit], lambda: [trace(jit, params, keys)])
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


def policy_params(agent: BoundAgent, state: TrainState, num_seeds: int) -> PolicyParams:
    """A copy of the params that acting needs, out of a program's state: leaves ``[S, ...]``, in host memory, so that
    any device can use them, and after the program has overwritten its state."""
    parts = agent.acting.greedy_weights(state.channels)
    stats = state.channels["statistics"].obs if agent.normalize_observations else None
    params = PolicyParams(*hosts.to_host((parts, stats)))
    return jax.tree.map(lambda x: np.array(x if num_seeds > 1 else np.asarray(x)[None]), params)
