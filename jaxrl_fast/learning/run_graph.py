"""The graph of a run: an algorithm bound to its environments, as fragments.

```
sample ──rollout──▶ statistics ──statistics──▶ (next tick)
   │
   └──rollout──▶ experience ──batches──▶ learn ──actor, critic──▶ (next tick)
```

What differs between runs is handed in (`assembly`): the fragment that samples, the batches of the
algorithm's data, and the learners. One learner is a fragment ``learn`` that makes all K updates of
a tick, or a fragment per part. Several learners have a ``server`` (`averaging`).
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import Batches, EnvSpec, Products, PyTree, Transition, reward_shape
from jaxrl_fast.envs.env import VecEnv
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.learning.acting import Acting, BoundAgent
from jaxrl_fast.learning.algorithm import (
    Agent,
    AnyAlgorithm,
    Learned,
    OnPolicy,
    Replay,
    init_params,
)
from jaxrl_fast.learning.minibatches import MAX_SHARDS, Batching
from jaxrl_fast.learning.rollout import (
    SamplerState,
    sample_compiled,
    scan_packed,
    scan_sequences,
    start,
    unroll,
)
from jaxrl_fast.learning.updates import PRIORITIES, Average, Learners, OnNan, all_finite
from jaxrl_fast.numerics.normalization import (
    Statistics,
    init_stats,
    normalize,
    update_returns,
    update_stats,
)
from jaxrl_fast.numerics.optimizers import at_start, resolve, schedules
from jaxrl_fast.runtime.graph import Channels, Fragment, Graph, ShardingAxes, check_graph
from jaxrl_fast.runtime.placements import REPLAY, SAMPLING

Overlap = Literal["none", "sampling", "actor_critic", "all"]


class GraphOptions(NamedTuple):
    """Options of a graph, in addition to algorithm and environment, without the placement, which
    changes no result.

    Attributes:
        overlap: Which fragments read data of the last tick, so that they can run at the same time
            as its writers.
        learners: Number of learners that share the gradient updates.
        average: Quantity that is averaged over the learners.
        total_steps: Environment steps of the run over all environments, at which schedules end.
        nan: Whether NaN or infinity stops the run, or skips the update.
        empty_until: Tick at which replay starts to fill; later than 0 in a resumed run without its
            replay data.
        joined: Whether similar arrays are joined into one, for devices that start kernels singly;
            changes results only by rounding.
        shards: Most logical shards of replay and minibatches, so most devices that share them.
    """

    overlap: Overlap = "none"
    learners: int = 1
    average: Average = "gradients"
    total_steps: int | None = None
    nan: OnNan = "stop"
    empty_until: int = 0
    joined: bool = False
    shards: int = MAX_SHARDS


class StatisticsState(NamedTuple):
    """State of the fragment ``statistics``.

    Attributes:
        statistics: Running statistics of observations and returns.
        discounted: Running discounted return of each environment, ``[E]``, or of each of its
            agents, ``[E, A]``.
    """

    statistics: Statistics
    discounted: jax.Array


def sample_fragment(
    env: VecEnv, agent: BoundAgent, scan: Callable[..., tuple] = jax.lax.scan
) -> Fragment:
    """Build the fragment ``sample``, which writes ``rollout`` ``[T, E, ...]``, sampled with
    exploration.

    Args:
        env: Compiled environments.
        agent: Algorithm bound to them.
        scan: As in `unroll`.

    Returns:
        The fragment.
    """
    reads = agent.acting.parts + (("statistics",) if agent.normalize_observations else ())

    def init(key: jax.Array) -> SamplerState:
        return start(env, agent.acting.initial_carry(env.num_envs), key)

    def step(private: SamplerState, inputs: Channels, hyper: Any, key: jax.Array) -> tuple:
        learned = {name: inputs[name] for name in agent.acting.parts}

        def act(carry: PyTree, obs: PyTree, first: jax.Array, key: jax.Array) -> tuple:
            return agent.acting.explore(
                learned, carry, _seen(inputs.get("statistics"), obs), first, key, hyper
            )

        private, rollout, metrics = unroll(env, act, private, key, agent.rollout_length, scan)
        return private, {"rollout": rollout}, metrics

    axes = ShardingAxes(0, {"rollout": 1}, env.num_envs, "environments")
    return Fragment(
        "sample", init, step, reads=reads, writes=("rollout",), tags=(SAMPLING,), division=axes
    )


def statistics_fragment(env: VecEnv | HostEnv, agent: BoundAgent, nan: OnNan = "stop") -> Fragment:
    """Build the fragment ``statistics``, which merges each rollout into the running statistics.

    With ``nan="skip"`` it skips rollouts with a NaN or infinity, because one NaN would stay in the
    statistics.

    Args:
        env: Environments.
        agent: Algorithm bound to them.
        nan: Action on NaN or infinity.

    Returns:
        The fragment.
    """

    def init(key: jax.Array) -> StatisticsState:
        discounted = jnp.zeros((env.num_envs, *reward_shape(env.spec)), jnp.float32)
        return StatisticsState(init_statistics(env, agent), discounted)

    def step(private: StatisticsState, inputs: Channels, hyper: Any, key: jax.Array) -> tuple:
        rollout: Transition = inputs["rollout"]
        statistics, discounted = private
        if agent.normalize_rewards:
            statistics, discounted = update_returns(statistics, discounted, rollout, hyper)
        if agent.normalize_observations:
            statistics = statistics._replace(obs=update_stats(statistics.obs, rollout.obs, 2))
        after = StatisticsState(statistics, discounted)
        if nan == "skip":
            after = _if_finite(rollout, after, private)
        return after, {"statistics": after.statistics}, {}

    def publish(private: StatisticsState) -> Channels:
        return {"statistics": private.statistics}

    axes = ShardingAxes(StatisticsState(None, 0), {}, env.num_envs, "environments")  # type: ignore[arg-type]
    return Fragment(
        "statistics",
        init,
        step,
        reads=("rollout",),
        writes=("statistics",),
        publish=publish,
        division=axes,
    )


def experience_fragment(
    env: VecEnv | HostEnv, agent: BoundAgent, max_shards: int = MAX_SHARDS
) -> Fragment:
    """Build the fragment that turns rollouts into the ``batches`` of a tick; its state is the
    replay buffer, if any.

    Args:
        env: Environments.
        agent: Algorithm bound to them.
        max_shards: Most logical shards with which the agent was bound, for messages.

    Returns:
        The fragment.
    """
    reads = ("rollout", *agent.experience.reads) + (
        ("statistics",) if needs_statistics(agent) else ()
    )

    def init(key: jax.Array) -> PyTree:
        return agent.experience.init(
            rollout_shapes(env, agent) if agent.experience.refills else None
        )

    def step(private: PyTree, inputs: Channels, hyper: Any, key: jax.Array) -> tuple:
        learned = {name: inputs[name] for name in agent.experience.reads}
        rollout, statistics = inputs["rollout"], inputs.get("statistics")
        private, batches = agent.experience.step(private, rollout, learned, statistics, hyper, key)
        return private, {"batches": batches}, agent.experience.metrics(private)

    unit = f"logical shards (common divisor of {max_shards}, num_envs and the batch)"
    written = {"batches": Batches(data=0, indices=1, places=0)}  # type: ignore[arg-type]
    limit, tags = ("shards", max_shards), (REPLAY,) if agent.experience.refills else ()
    axes = ShardingAxes(
        private=agent.experience.state_axes,
        writes=written,
        width=agent.experience.shards,
        unit=unit,
        limit=limit,
    )
    return Fragment(
        "experience", init, step, reads=reads, writes=("batches",), tags=tags, division=axes
    )


def with_priorities(fragment: Fragment, agent: BoundAgent) -> Fragment:
    """Add the update of priorities to the fragment that makes batches.

    Args:
        fragment: Fragment of `experience_fragment`.
        agent: Algorithm with prioritized replay.

    Returns:
        The fragment, which first reads the last updates' priorities.
    """

    def step(private: PyTree, inputs: Channels, hyper: Any, key: jax.Array) -> tuple:
        private = agent.experience.learn_priorities(private, inputs[PRIORITIES])
        return fragment.step(private, inputs, hyper, key)  # type: ignore[call-arg]

    return fragment._replace(step=step, reads=(*fragment.reads, PRIORITIES))


def compiled_sampler(env: VecEnv, agent: BoundAgent, *, joined: bool = False) -> Fragment:
    """Build the fragment ``sample`` for compiled environments.

    Args:
        env: Environments.
        agent: Algorithm bound to them.
        joined: Whether steps are stored packed.

    Returns:
        The fragment.
    """
    scan, every = scan_packed if joined else jax.lax.scan, agent.experience.memory_every
    scan = scan if every == 1 else partial(scan_sequences, every, scan)
    return sample_compiled(
        partial(sample_fragment, agent=agent, scan=scan), env, agent.rollout_length
    )


def require_total_steps(algorithm: AnyAlgorithm, options: GraphOptions) -> None:
    """Check that the length of the run is given if a hyper-parameter is a schedule.

    Args:
        algorithm: Algorithm.
        options: Options of the graph.

    Raises:
        ValueError: A schedule lacks ``total_steps``.
    """
    if (names := ", ".join(schedules(algorithm.hyper))) and options.total_steps is None:
        raise ValueError(
            f"{names} of {algorithm.name} is a schedule: write total_steps=..., or a constant {names}"
        )


def delays_sampling(options: GraphOptions) -> bool:
    """Return whether the learners read the batches of the last tick.

    Args:
        options: Options of the graph.

    Returns:
        True if sampling and learning may run at the same time.
    """
    return options.overlap in ("sampling", "all")


def compose(
    before: tuple[Fragment, ...],
    learning: Learners,
    agent: BoundAgent,
    options: GraphOptions,
    *,
    steps_per_tick: int,
    products: Products,
) -> Graph:
    """Join the fragments of a run into its graph.

    Args:
        before: Fragments that make the batches: ``sample``, ``statistics`` if the algorithm needs
            them, and ``experience``.
        learning: Fragments of learning.
        agent: Algorithm bound to its environments.
        options: Options of the graph.
        steps_per_tick: Environment steps of a tick, over all environments.
        products: Matrix products of the updates, and whether the program also steps environments.

    Returns:
        The graph.
    """
    last_tick = {"statistics", PRIORITIES, *agent.parts}
    delays = {(f.name, c): 1 for f in before for c in f.reads if c in last_tick} | learning.delays
    if delays_sampling(options):
        delays |= {(f.name, "batches"): 1 for f in learning.fragments if "batches" in f.reads}

    def hyper_at(hyper: Any, tick: jax.Array) -> Any:
        return resolve(
            hyper,
            jnp.clip(tick * (steps_per_tick / (options.total_steps or steps_per_tick)), 0.0, 1.0),
        )

    return check_graph(Graph(before + learning.fragments, delays, hyper_at, products=products))


def products_beside(env: VecEnv | HostEnv, agent: BoundAgent) -> Products:
    """Return the size of an agent's matrix products in a program that also steps compiled
    environments.

    Args:
        env: Environments.
        agent: Algorithm bound to them.

    Returns:
        The products.
    """
    return agent.products._replace(environments=not isinstance(env, HostEnv))


def init_statistics(env: VecEnv | HostEnv, agent: BoundAgent) -> Statistics:
    """Return `Statistics` before the first rollout.

    Args:
        env: Environments.
        agent: Algorithm bound to them.

    Returns:
        Statistics of no data.
    """
    largest = () if agent.max_return is None else jnp.zeros(())
    return Statistics(
        init_stats(env.spec.obs), init_stats(jax.ShapeDtypeStruct((), jnp.float32)), largest
    )


def rollout_shapes(env: VecEnv | HostEnv, agent: BoundAgent) -> Transition:
    """Return the shapes of a rollout without tracing the environment, which can take seconds.

    Args:
        env: Environments.
        agent: Algorithm bound to them.

    Returns:
        Shapes ``[T, E, ...]``.
    """

    def one_step(key: jax.Array) -> Transition:
        learned = {
            name: Learned(init_params(agent.parts[name], key)) for name in agent.acting.parts
        }
        obs = jax.tree.map(lambda s: jnp.zeros((env.num_envs, *s.shape), s.dtype), env.spec.obs)
        flag = jnp.zeros(env.num_envs, bool)
        reward = jnp.zeros((env.num_envs, *reward_shape(env.spec)), jnp.float32)
        carry = agent.acting.initial_carry(env.num_envs)
        action, _, extras = agent.acting.explore(learned, carry, obs, flag, key, agent.hyper)
        return Transition(
            obs=obs,
            action=action,
            reward=reward,
            next_obs=obs,
            terminated=flag,
            truncated=flag,
            first=flag,
            extras=extras,
        )

    step = jax.eval_shape(one_step, jax.random.key(0))
    whole = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((agent.rollout_length, *x.shape), x.dtype), step
    )
    starts = agent.rollout_length // agent.experience.memory_every
    memory = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((starts, *x.shape), x.dtype), step.extras.memory
    )
    return whole._replace(extras=whole.extras._replace(memory=memory))


def needs_statistics(agent: Agent | BoundAgent) -> bool:
    """Return whether an algorithm normalizes with running statistics.

    Args:
        agent: Algorithm, bound or not.

    Returns:
        True if it normalizes observations or rewards.
    """
    return bool(agent.normalize_observations or agent.normalize_rewards)


def _seen(statistics: Statistics | None, obs: PyTree) -> PyTree:
    return obs if statistics is None else normalize(statistics.obs, obs)


def _if_finite(
    rollout: Transition, after: StatisticsState, before: StatisticsState
) -> StatisticsState:
    """Return ``after`` if the rollout is finite, else ``before``."""
    finite = all_finite((rollout.obs, rollout.reward))
    return jax.tree.map(lambda new, old: jnp.where(finite, new, old), after, before)


def bound_agent(
    algorithm: AnyAlgorithm, agent: Agent, spec: EnvSpec, acting: Acting, batching: Batching
) -> BoundAgent:
    """Join what an algorithm has in its environments.

    Args:
        algorithm: Algorithm.
        agent: Algorithm built for one environment.
        spec: Environment.
        acting: Action selection.
        batching: Batches of its data.

    Returns:
        The bound algorithm.
    """
    # The first rollout is not normalized: losses of its raw numbers would be thousands of times too
    # large.
    return BoundAgent(
        parts=agent.parts,
        acting=acting,
        experience=batching.experience,
        hyper=at_start(algorithm.hyper),
        rollout_length=agent.rollout_length,
        updates_per_tick=batching.updates_per_tick,
        batch_size=batching.batch_size,
        batch_sequences=batching.batch_sequences,
        warmup_ticks=max(batching.warmup_ticks, int(needs_statistics(agent))),
        normalize_observations=bool(agent.normalize_observations),
        normalize_rewards=agent.normalize_rewards,
        max_return=agent.max_return,
        num_agents=spec.num_agents,
        products=products_of(agent, spec, batching.batch_size),
    )


def products_of(agent: Agent, spec: EnvSpec, batch_size: int) -> Products:
    """Estimate the matrix products of an agent's updates.

    The size is infinite if there may be convolutions, whose products have a row for every position
    of an image.

    Args:
        agent: Algorithm built for one environment.
        spec: Environment.
        batch_size: Steps in the minibatch of an update.

    Returns:
        The products.
    """
    networks = [network for part in agent.parts.values() for network in part.networks.values()]
    sequences = spec.num_agents is not None and any(network.recurrent for network in networks)
    params = [
        jax.eval_shape(partial(init_params, part), jax.random.key(0))
        for part in agent.parts.values()
    ]
    sizes = [math.prod(leaf.shape) for leaf in jax.tree.leaves(params)]
    images = any(len(leaf.shape) > 2 for leaf in jax.tree.leaves(spec.obs))
    return Products(sequences, math.inf if images else batch_size * max(sizes), sum(sizes))


def require_agents(algorithm: AnyAlgorithm, spec: EnvSpec) -> None:
    """Check that an algorithm supports the number and kind of an environment's agents.

    Args:
        algorithm: Algorithm.
        spec: Environment.

    Raises:
        ValueError: One of both is for several agents and the other for one, or different agents
            share parameters.
    """
    if algorithm.for_agents and spec.num_agents is None:
        raise ValueError(
            f"algo={algorithm.name} is for several agents, and {spec.name} has one: write algo=ppo"
        )
    if spec.num_agents is not None and not algorithm.for_agents:
        raise ValueError(
            f"algo={algorithm.name} is for one agent, and {spec.name} has {spec.num_agents}: write algo=ippo, "
            "algo=mappo or algo=pqn_vdn"
        )
    if spec.own_sizes and algorithm.options["share_parameters"]:
        sizes = ", ".join(f"{obs_size} and {number}" for obs_size, number in spec.own_sizes)
        raise ValueError(
            f"the agents of {spec.name} differ in observations or actions (sizes: {sizes}) and cannot share a network: "
            "write algo.share_parameters=false"
        )


def with_sequences(agent: Agent, *, memory: bool) -> OnPolicy | Replay:
    """Return an agent's data with the length of its sequences filled in.

    Args:
        agent: Algorithm built for one environment.
        memory: Whether an acting network is recurrent.

    Returns:
        The data.
    """
    data = agent.data
    if isinstance(data, Replay):
        return data if memory else data._replace(sequence_length=1, burn_in=0)
    length = data.sequence_length or (agent.rollout_length if memory else 1)
    return data._replace(sequence_length=length)
