"""Evaluation of policies in whole episodes, compiled or on the host, and statistics of the results."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import cache, partial
from itertools import count, islice
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import EpisodeTotals, PyTree, require_key, require_vectorized, select
from jaxrl_fast.envs.env import VecEnv, VecState, no_totals, vectorize
from jaxrl_fast.envs.episode_metrics import by_metric, values_of
from jaxrl_fast.envs.host_env import UNTOLD, HostEnv, HostStep, as_one_group
from jaxrl_fast.envs.host_rollout import HostRecord
from jaxrl_fast.learning.acting import BoundAgent
from jaxrl_fast.learning.algorithm import AnyAlgorithm
from jaxrl_fast.policy.policies import (
    Policy,
    PolicyParams,
    make_policy,
    require_policy,
    with_sampled_actions,
)
from jaxrl_fast.runtime import hosts
from jaxrl_fast.runtime.graph import TrainState
from jaxrl_fast.runtime.program_store import Jit, Store, compile_stored, trace
from jaxrl_fast.runtime.xla_options import acting_options
from jaxrl_fast.settings.schema import EvalOptions
from jaxrl_fast.training.callbacks import to_stderr

STEP_LIMIT, LONGEST = 10_000, 200_000
"""Time limit in steps of an evaluation episode in an environment without one, and the longest time
limit that counts as one.
"""


def evaluation_limit(limit: int | None) -> int:
    """Return the most steps of an evaluation episode.

    Args:
        limit: Time limit of the environment in steps, or None.

    Returns:
        The time limit, or `STEP_LIMIT` if there is none or it is longer than `LONGEST`.
    """
    return STEP_LIMIT if limit is None or limit > LONGEST else limit


def tell_limit(limit: int | None, tell: Callable[[str], None] = to_stderr) -> None:
    """Report that evaluation episodes do not reach a time limit that is too long.

    Args:
        limit: Time limit of the environment in steps, or None.
        tell: Shows messages to the user.
    """
    if limit is not None and limit > LONGEST:
        tell(
            f"evaluation episodes end after {STEP_LIMIT:,} steps: the time limit of {limit:,} is too long for them"
        )


def describe_cut(lengths: Any, limit: int | None) -> str:
    """Describe that evaluation episodes were cut which no time limit ends.

    Args:
        lengths: Steps of the episodes, of any shape.
        limit: Time limit of the environment in steps, or None.

    Returns:
        A line; "" if no episode was cut.
    """
    steps = np.asarray(lengths)
    cut = 0 if limit == evaluation_limit(limit) else int((steps >= STEP_LIMIT).sum())
    if not cut:
        return ""
    return (
        f"{cut} of {steps.size} evaluation episodes were cut after {STEP_LIMIT:,} steps, since no time limit ends them: "
        "write one, such as max_episode_steps in the environment's spec, or +env.max_episode_steps=1000"
    )


def evaluate_policy(
    policy: Policy, env: VecEnv | HostEnv, key: jax.Array, *, episodes: int = 128
) -> np.ndarray:
    """Evaluate the greedy policy, each episode in a separate initial state.

    Args:
        policy: Policy.
        env: Environment, of which copies are made.
        key: PRNG key.
        episodes: Number of episodes, played in parallel.

    Returns:
        Undiscounted returns ``[episodes]``.

    Raises:
        ValueError: ``episodes`` is not positive, the environment cannot be copied, or the policy is
            not for it.
    """
    return np.asarray(evaluate_episodes(policy, env, key, episodes=episodes).returns)


def evaluate_episodes(
    policy: Policy, env: VecEnv | HostEnv, key: jax.Array, *, episodes: int, share: bool = False
) -> EpisodeTotals:
    """Evaluate the greedy policy as `evaluate_policy`.

    Args:
        policy: Policy.
        env: Environment.
        key: PRNG key.
        episodes: Number of episodes, played in parallel.
        share: Play in the host environments of ``env``, and make no others.

    Returns:
        Returns, lengths, successes and metrics of the episodes, ``[episodes]``.

    Raises:
        ValueError: ``episodes`` is not positive, or the environment cannot be copied.
    """
    if episodes < 1:
        raise ValueError(f"episodes={episodes}: write a whole number of at least 1")
    require_vectorized(env)
    require_policy(policy, env.spec)
    require_key(key)
    tell_limit(env.spec.max_episode_steps)
    totals = _play_all(policy, env, key, episodes, share=share)
    if not isinstance(totals.length, jax.core.Tracer):
        line = describe_cut(totals.length, env.spec.max_episode_steps)
        if line:
            to_stderr(line)
    return totals


def _play_all(
    policy: Policy, env: VecEnv | HostEnv, key: jax.Array, episodes: int, *, share: bool
) -> EpisodeTotals:
    if isinstance(env, HostEnv):
        with closing(evaluation_on_host(policy, env, episodes, share=share)) as evaluate:
            totals = evaluate(jax.tree.map(lambda x: x[None], policy.params), key[None])
        return jax.tree.map(lambda x: x[0], totals)
    if env.env is None:
        raise ValueError(
            "this environment cannot be copied for evaluation: make it with jaxrl_fast.vectorize"
        )
    run = partial(
        play, policy.act_arrays, policy.initial_carry, vectorize(env.env, num_envs=episodes)
    )
    return jax.jit(run, compiler_options=acting_options())(policy.params, key)


class Playing(NamedTuple):
    """Running evaluation episodes in ``E`` environments.

    Attributes:
        t: Steps so far.
        finished: Environments whose first episode has ended, bool ``[E]``.
        totals: Totals of each environment's first episode so far, ``[E]``.
        state: State of the environments.
        obs: Observations, ``[E, ...]``.
        first: Whether ``obs`` begins an episode, bool ``[E]``.
        carry: Recurrent state of the policy and frame stacks, ``[E, ...]``.
    """

    t: jax.Array
    finished: jax.Array
    totals: EpisodeTotals
    state: VecState
    obs: PyTree
    first: jax.Array
    carry: PyTree


def player(
    act: Callable[..., Any],
    initial_carry: Callable[[int], PyTree],
    env: VecEnv,
    params: PyTree,
    key: jax.Array,
) -> tuple[Playing, Callable[[Playing], Playing]]:
    """Start an episode in every environment.

    Args:
        act: `Policy.act_arrays`.
        initial_carry: `Policy.initial_carry`.
        env: Compiled environment.
        params: Parameters of the policy.
        key: PRNG key.

    Returns:
        The initial `Playing`, and the pure function that takes one step.
    """
    reset_key, step_key = jax.random.split(key)
    state, obs = env.reset(reset_key)
    # only first episodes count: any start will do
    bank = jax.tree.map(lambda x: x[None], (state.env_state, obs))

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
    return Playing(
        jnp.int32(0), jnp.zeros(n, bool), totals, state, obs, jnp.ones(n, bool), initial_carry(n)
    ), step


def play(
    act: Callable[..., Any],
    initial_carry: Callable[[int], PyTree],
    env: VecEnv,
    params: PyTree,
    key: jax.Array,
) -> EpisodeTotals:
    """Play the first episode of every environment. Pure, so that it can be vmapped over ``params``.

    The loop ends with the last episode, so that short episodes cost little.

    Args:
        act: `Policy.act_arrays`.
        initial_carry: `Policy.initial_carry`.
        env: Compiled environment.
        params: Parameters of the policy.
        key: PRNG key.

    Returns:
        Totals ``[E]``.
    """
    limit = evaluation_limit(env.spec.max_episode_steps)
    start, step = player(act, initial_carry, env, params, key)
    totals = jax.lax.while_loop(
        lambda now: (now.t < limit) & ~jnp.all(now.finished), step, start
    ).totals
    return with_values(env.spec.metrics, totals) if env.spec.metrics else totals


def with_values(kinds: Mapping[str, str], totals: EpisodeTotals) -> EpisodeTotals:
    """Replace the totals of metrics by the metrics of each episode, by name.

    Args:
        kinds: Kind of each metric by name.
        totals: Totals of episodes of compiled environments, ``[E]``.

    Returns:
        The totals, with ``metrics`` ``[E]`` by name.
    """
    return totals._replace(metrics=by_metric(kinds, values_of(kinds, totals.metrics, jnp)))


def with_untold(totals: EpisodeTotals) -> EpisodeTotals:
    """Convert ``success`` to an int8 array, with `UNTOLD` for unreported ones.

    Args:
        totals: Totals of episodes.

    Returns:
        The totals.
    """
    if isinstance(totals.success, tuple):
        return totals._replace(success=np.full(np.shape(totals.returns), UNTOLD, np.int8))
    return totals._replace(success=np.asarray(totals.success, np.int8))


def without_untold(totals: EpisodeTotals) -> EpisodeTotals:
    """Undo `with_untold`. If some episodes report success, those that do not count as failures.

    Args:
        totals: Result of `with_untold`.

    Returns:
        The totals, with a bool ``success``, or ``()`` if no episode reports it.
    """
    told = totals.success != UNTOLD
    return totals._replace(success=totals.success == 1 if told.any() else ())


def interquartile_mean(samples: np.ndarray) -> float:
    """Compute the mean of the samples between the quartiles, or of all samples if they are fewer
    than 4.

    Args:
        samples: Samples, ``[n]``.

    Returns:
        The interquartile mean.

    Source: Agarwal et al. (2021), arXiv 2108.13264.
    """
    cut = len(samples) // 4
    return float(np.sort(samples)[cut : len(samples) - cut].mean())


def act_by_step(policy: Policy) -> Callable[..., Any]:
    """Compile a policy's action selection with a separate random key for each step.

    Args:
        policy: Policy.

    Returns:
        ``(params, carry, obs, first, key, step) -> (actions, carry)``, where ``step`` counts from
        0.
    """

    def act(
        params: PyTree, carry: PyTree, obs: PyTree, first: Any, key: jax.Array, step: int
    ) -> tuple:
        return policy.act_arrays(params, carry, obs, first, jax.random.fold_in(key, step))

    return jax.jit(act)


def steps_on_host(
    act: Callable[..., Any],
    initial_carry: Callable[[int], PyTree],
    env: HostEnv,
    params: PyTree,
    seed: int,
) -> Iterator[HostRecord]:
    """Start an episode in every host environment, and iterate over the policy's steps without end.

    Args:
        act: Result of `act_by_step`.
        initial_carry: `Policy.initial_carry`.
        env: Host environment with one group.
        params: Parameters of the policy.
        seed: Seed of the environments and of actions.

    Returns:
        Iterator over the steps.
    """
    return _steps_from(
        env.reset(seed), act, initial_carry(env.num_envs), env, params, jax.random.key(seed)
    )


def _steps_from(
    obs: Any, act: Callable[..., Any], carry: PyTree, env: HostEnv, params: PyTree, key: jax.Array
) -> Iterator[HostRecord]:
    first = np.ones(env.num_envs, bool)
    for number in count():
        action, carry = act(params, carry, obs, first, key, number)
        env.send(np.asarray(action), 0)
        step = env.recv(0)
        yield HostRecord(obs, first, np.asarray(action), step)
        obs, first = step.obs, step.terminated | step.truncated


def play_on_host(
    act: Callable[..., Any],
    initial_carry: Callable[[int], PyTree],
    env: HostEnv,
    params: PyTree,
    seed: int,
) -> EpisodeTotals:
    """Play the first episode of every host environment, as `play`.

    Args:
        act: Result of `act_by_step`.
        initial_carry: `Policy.initial_carry`.
        env: Host environment with one group.
        params: Parameters of the policy.
        seed: Seed of the environments and of actions.

    Returns:
        Totals ``[E]``, with ``success`` as returned by `HostEnv.success`, and metrics by name.
    """
    n = env.num_envs
    finished, success = np.zeros(n, bool), np.full(n, UNTOLD, np.int8)
    totals = EpisodeTotals(np.zeros(n, np.float32), np.zeros(n, np.int32))  # type: ignore[arg-type]
    agents = None if env.agents is None else np.zeros_like(env.agents())
    metrics = np.full((n, len(env.spec.metrics)), np.nan, np.float32)
    limit = evaluation_limit(env.spec.max_episode_steps)
    for *_, step in islice(steps_on_host(act, initial_carry, env, params, seed), limit):
        own = EpisodeTotals(step.episode_return, step.episode_length)  # type: ignore[arg-type]
        totals = jax.tree.map(partial(np.where, finished), totals, own)
        metrics = (
            np.where(finished[:, None], metrics, step.metrics) if env.spec.metrics else metrics
        )
        done = (step.terminated | step.truncated) & (step.episode_length > 0)
        if env.success is not None and done.any():
            success = np.where(done & ~finished, env.success(), success)
        if agents is not None and env.agents is not None:
            agents = np.where((done & ~finished)[:, None], env.agents(), agents)
        finished = finished | done
        if finished.all():
            break
    named = by_metric(env.spec.metrics, metrics) if env.spec.metrics else ()
    return totals._replace(success=success, agents=() if agents is None else agents, metrics=named)


def host_seed(key: jax.Array) -> int:
    """Derive the seed of the host environments of an evaluation.

    Args:
        key: PRNG key of the evaluation.

    Returns:
        The seed.
    """
    return int(jax.random.bits(jax.random.fold_in(key, 0xE7A1), (), jnp.uint32))


class HostEvaluation:
    """Evaluates policies in host environments, from the same initial states at each call.

    The first call makes an environment for each episode. They remain until `close`, or until one of
    them raises an error. With ``share``, the environments of the run play the episodes instead, the
    first episodes of several resets.
    """

    def __init__(self, policy: Policy, env: HostEnv, episodes: int, *, share: bool = False) -> None:
        self.act, self.initial_carry = act_by_step(policy), policy.initial_carry
        self.env, self.episodes, self.share = env, episodes, share
        self.made: HostEnv | None = None
        self.stopped = False

    def __call__(self, params: PolicyParams, keys: jax.Array) -> EpisodeTotals:
        """Evaluate ``params [S, ...]`` with ``keys [S]``, and return totals ``[S, episodes]``."""
        self.made = self.made or (self._shared() if self.share else self.env.another(self.episodes))
        try:
            rows = [
                self._play(self.made, jax.tree.map(itemgetter(i), params), key)
                for i, key in enumerate(keys)
            ]
        except BaseException:
            self.close()
            raise
        return without_untold(jax.tree.map(lambda *totals: np.stack(totals), *rows))

    def _play(self, env: HostEnv, params: PyTree, key: jax.Array) -> EpisodeTotals:
        """Play ``episodes`` episodes with one policy, one episode of each environment after a
        reset.
        """
        keys = [
            key,
            *(jax.random.fold_in(key, i) for i in range(1, -(-self.episodes // env.num_envs))),
        ]
        rounds = [
            play_on_host(self.act, self.initial_carry, env, params, host_seed(own)) for own in keys
        ]
        return jax.tree.map(lambda *totals: np.concatenate(totals)[: self.episodes], *rounds)

    def _shared(self) -> HostEnv:
        """Return the environments of the run, whose evaluation `stop` ends at its next step."""
        env = as_one_group(self.env)

        def recv(group: int) -> HostStep:
            if self.stopped:
                raise RuntimeError("the run ends")
            return env.recv(group)

        return env._replace(recv=recv)

    def stop(self) -> bool:
        """End a running evaluation in the environments of the run; return whether to wait for its
        end.
        """
        self.stopped = self.share
        return self.share

    def close(self) -> None:
        """Close the environments, unless they are the run's."""
        made, self.made = self.made, None
        if made is not None:
            made.close()


def evaluation_on_host(
    policy: Policy, env: HostEnv, episodes: int, *, share: bool = False
) -> HostEvaluation:
    """Make the evaluation in host environments.

    Args:
        policy: Policy whose parameters are replaced.
        env: Host environment of the run.
        episodes: Number of episodes per seed.
        share: Play in the environments of ``env``, one episode of each after another, and make no
            others.

    Returns:
        ``(params [S, ...], keys [S]) -> totals [S, episodes]``, to be closed.
    """
    return HostEvaluation(policy, env, episodes, share=share)


FRESH = 0xF5E5
"""Folded into the keys of an evaluation with initial states that no other evaluation uses."""


class Snapshot(NamedTuple):
    """The policies of a run at one time, in host memory.

    Attributes:
        env_steps: Environment steps of the run until then.
        wall_s: Seconds of the run until then.
        params: Parameters of all seeds, leaves ``[S, ...]``.
    """

    env_steps: int
    wall_s: float
    params: PolicyParams


Evaluate = Callable[[PolicyParams, bool], EpisodeTotals]
"""``(params [S, ...], fresh) -> totals [S, episodes]`` in host memory: plays whole episodes with
the policies of all seeds, from the same initial states at each call, or with ``fresh`` from others.
"""


class PeriodicEvaluation(NamedTuple):
    """The functions that copy and evaluate a run's policies.

    Attributes:
        copy_params: ``(state) -> params``, copies the parameters for acting of all seeds out of a
            program's state, leaves ``[S, ...]`` in host memory. All processes must call it.
        evaluate: Plays whole episodes with them.
        policy_of: ``(params [S, ...], seed) -> policy``, the policy of one seed, from 0.
        close: Closes the environments on the host.
        stop: Ends a running evaluation in the environments of training; returns whether to wait for
            its end.
    """

    copy_params: Callable[[TrainState], PolicyParams]
    evaluate: Evaluate
    policy_of: Callable[[PolicyParams, int], Policy]
    close: Callable[[], None] = lambda: None
    stop: Callable[[], bool] = lambda: False


def make_periodic_evaluation(
    env: VecEnv | HostEnv,
    algorithm: AnyAlgorithm,
    agent: BoundAgent,
    keys: jax.Array,
    asked: EvalOptions,
    *,
    ahead: PolicyParams | None = None,
    device: jax.Device | None = None,
    store: Store | None = None,
) -> PeriodicEvaluation:
    """Make the evaluation of a run.

    Compiled environments: the evaluation is compiled at its first call, or at once if ``ahead`` is
    given.

    Args:
        env: Environment of the run.
        algorithm: Algorithm of the run.
        agent: Algorithm bound to the environment.
        keys: One PRNG key per seed, ``[S]``.
        asked: Number of episodes per seed, whether the host environments of the run play them, and
            whether actions are sampled.
        ahead: Parameters ``[S, ...]`` with the shapes to compile for.
        device: Device that evaluates, None for JAX's default.
        store: Store of compiled programs for ``ahead``, read and written; None for none.

    Returns:
        The evaluation.

    Raises:
        ValueError: The policy has no distribution to sample from.
    """
    made_by = {"algo": algorithm.name, "options": algorithm.options, "num_envs": env.num_envs}
    made_by |= {"normalize_observations": agent.normalize_observations}
    acting = make_policy(env.spec, agent.acting, PolicyParams({}, None), made_by)
    acting = with_sampled_actions(acting, algorithm) if asked.sample else acting
    if isinstance(env, HostEnv):
        totals: Any = evaluation_on_host(acting, env, asked.episodes, share=asked.share)
    else:
        jit = Jit(
            "evaluation",
            make_evaluation(env, acting, asked.episodes),
            options=acting_options(device),
        )
        totals = jit.jitted() if ahead is None else compile_ahead(jit, ahead, keys, store)

    @cache
    def own_keys(fresh: bool) -> jax.Array:
        found = jax.vmap(jax.random.fold_in, (0, None))(keys, FRESH) if fresh else keys
        return found if device is None else jax.device_put(found, device)

    def evaluate(params: PolicyParams, fresh: bool = False) -> EpisodeTotals:
        with jax.default_device(device):
            return jax.device_get(totals(params, own_keys(fresh)))

    def policy_of(params: PolicyParams, seed: int) -> Policy:
        own = jax.tree.map(lambda x: jnp.array(x[seed]), params)
        return make_policy(env.spec, agent.acting, own, made_by)

    evaluation = PeriodicEvaluation(partial(policy_params, agent, len(keys)), evaluate, policy_of)
    if isinstance(env, HostEnv):
        return evaluation._replace(close=totals.close, stop=totals.stop)
    return evaluation


def compile_ahead(jit: Jit, params: PolicyParams, keys: jax.Array, store: Store | None) -> Any:
    """Compile a function for arguments of given shapes, or load it from the store.

    Args:
        jit: Function to compile.
        params: Parameters with the shapes to compile for.
        keys: PRNG keys with the shape to compile for.
        store: Store of compiled programs, or None.

    Returns:
        The compiled function.
    """
    programs = (
        None if store is None else compile_stored(store, [jit], lambda: [trace(jit, params, keys)])
    )
    return programs[0] if programs else jit.jitted().lower(params, keys).compile()


def evaluation_device(name: Literal["cpu", "same"]) -> jax.Device | None:
    """Return the device that evaluates.

    Args:
        name: "cpu" for the cores of the host, "same" for the device that trains.

    Returns:
        The CPU device, or None for the device that trains, also if JAX has no CPU backend.
    """
    if name == "same":
        return None
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX was started without it
        return None


def make_evaluation(
    env: VecEnv, policy: Policy, episodes: int
) -> Callable[[PolicyParams, jax.Array], EpisodeTotals]:
    """Make the evaluation in compiled environments as a pure function.

    Args:
        env: Compiled environment.
        policy: Policy whose parameters are replaced.
        episodes: Number of episodes per seed.

    Returns:
        ``(params [S, ...], keys [S]) -> totals [S, episodes]``.

    Raises:
        ValueError: The environment cannot be copied.
    """
    if env.env is None:
        raise ValueError(
            "this environment cannot be copied for evaluation: make it with jaxrl_fast.vectorize"
        )
    own_envs = vectorize(env.env, num_envs=episodes)

    def one_seed(params: PolicyParams, key: jax.Array) -> EpisodeTotals:
        return play(
            policy.act_arrays,
            policy.initial_carry,
            own_envs,
            params,
            jax.random.fold_in(key, 0xE7A1),
        )

    return jax.vmap(one_seed)


def policy_params(agent: BoundAgent, num_seeds: int, state: TrainState) -> PolicyParams:
    """Copy the parameters for acting out of a program's state to host memory.

    There any device can use them, also after the program has overwritten its state.

    Args:
        agent: Algorithm bound to the environment.
        num_seeds: Number of seeds, ``S``.
        state: State of the program.

    Returns:
        Parameters, leaves ``[S, ...]``.
    """
    parts = agent.acting.greedy_weights(state.channels)
    stats = state.channels["statistics"].obs if agent.normalize_observations else None
    params = PolicyParams(*hosts.to_host((parts, stats)))
    return jax.tree.map(lambda x: np.array(x if num_seeds > 1 else np.asarray(x)[None]), params)
