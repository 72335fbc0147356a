"""The graph of a run: an algorithm bound to its environments, as fragments.

```
sample ──rollout──▶ statistics ──statistics──▶ (next tick)
   │
   └──rollout──▶ experience ──batches──▶ learn ──actor, critic──▶ (next tick)
```

One learner is a fragment ``learn`` that makes all K updates of a tick, or a fragment per part.
Several learners have equal shares of every batch. A ``server`` averages their gradients after every
update or their parameters once a tick, or applies their gradients in turns (`averaging`).
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import (
    Batches,
    EnvSpec,
    Products,
    PyTree,
    Transition,
    is_image,
    require_vectorized,
    reward_shape,
)
from jaxrl_fast.envs.env import VecEnv
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.learning.acting import Acting, BoundAgent, make_acting, uniform_first
from jaxrl_fast.learning.algorithm import (
    Agent,
    AnyAlgorithm,
    Learned,
    OnPolicy,
    Part,
    Replay,
    init_params,
    require_positive,
)
from jaxrl_fast.learning.averaging import averaging_gradients, averaging_parameters
from jaxrl_fast.learning.flat_params import make_learning
from jaxrl_fast.learning.frame_stack import View, make_view, stacked_acting, stacked_on_policy
from jaxrl_fast.learning.host_sampling import host_sampler
from jaxrl_fast.learning.minibatches import MAX_SHARDS, Experience, on_policy_experience
from jaxrl_fast.learning.off_policy import off_policy_experience, warmup_ticks
from jaxrl_fast.learning.offline import Recorded, starting_offline
from jaxrl_fast.learning.relabeling import transformed
from jaxrl_fast.learning.rollout import (
    SamplerState,
    sample_compiled,
    scan_packed,
    scan_sequences,
    start,
    unroll,
)
from jaxrl_fast.learning.updates import (
    PRIORITIES,
    Average,
    Delays,
    OnNan,
    all_finite,
    learn_fragment,
)
from jaxrl_fast.numerics.normalization import (
    Statistics,
    init_stats,
    normalize,
    normalizes,
    update_returns,
    update_stats,
)
from jaxrl_fast.numerics.optimizers import at_start, resolve, schedules
from jaxrl_fast.runtime.graph import (
    NOT_SHARDED,
    Channels,
    Fragment,
    Graph,
    ShardingAxes,
    check_graph,
)
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
        recorded: Steps that the run learns from without, or before, sampling its own; None for
            none.
    """

    overlap: Overlap = "none"
    learners: int = 1
    average: Average = "gradients"
    total_steps: int | None = None
    nan: OnNan = "stop"
    empty_until: int = 0
    joined: bool = False
    shards: int = MAX_SHARDS
    recorded: Recorded | None = None


class Learners(NamedTuple):
    """Fragments of learning, and their connections.

    Attributes:
        fragments: Fragments in the order in which they run.
        delays: 1 for each (reader, channel) whose data is one tick, or round, old (`graph.Graph`).
    """

    fragments: tuple[Fragment, ...]
    delays: Delays


def build_learners(
    agent: BoundAgent, options: GraphOptions = GraphOptions(), start: int = 0
) -> Learners:
    """Build the learning half of a graph.

    The fragments read ``batches`` and write a channel of `Learned` for each part. By default the
    parts take turns at every update, and each reads the others' newest parameters (SAC and TD3 as
    published). If ``options.overlap`` lets them run at the same time, each reads the others'
    parameters of the last exchange. An exchange is a tick, or an update if a server applies the
    gradients of several learners.

    Args:
        agent: Algorithm bound to its environments.
        options: Options of the graph.
        start: First tick with updates.

    Returns:
        The fragments and their delays.

    Raises:
        ValueError: The learners cannot share the batches equally.
    """
    learners, average, side_by_side = (
        options.learners,
        options.average,
        options.overlap in ("actor_critic", "all"),
    )
    if learners != 1:
        check_shares(agent, learners, options.shards)
    learning = make_learning(
        agent, start=start, nan=options.nan, turns=average == "turns", joined=options.joined
    )
    teams = [(name,) for name in agent.parts] if side_by_side else [tuple(agent.parts)]
    if learners > 1 and average != "parameters":
        return Learners(*averaging_gradients(learning, side_by_side, learners))
    if learners > 1:
        pairs = [averaging_parameters(learning, team, learners) for team in teams]
        return _delayed(
            tuple(pair[0] for pair in pairs) + tuple(pair[1] for pair in pairs), agent.parts
        )
    return _delayed(tuple(learn_fragment(learning, team) for team in teams), agent.parts)


def check_shares(agent: BoundAgent, learners: int, max_shards: int) -> None:
    """Check that batches can be split into equal shares for the learners.

    Args:
        agent: Algorithm bound to its environments.
        learners: Number of learners.
        max_shards: Most logical shards, for the message.

    Raises:
        ValueError: The logical shards are not divisible by the number of learners.
    """
    shards = agent.experience.shards
    if learners < 1 or shards % learners:
        raise ValueError(
            f"learners={learners} cannot share the {shards} logical shards of the batches (common divisor of "
            f"{max_shards}, num_envs and the batch): write learners={_divisor_near(shards, learners)}, or "
            + (
                f"shards={learners} with sizes that {learners} divides"
                if learners > 0 and max_shards % learners
                else "other sizes"
            )
        )


def _delayed(fragments: tuple[Fragment, ...], parts: dict[str, Part]) -> Learners:
    delays = {(f.name, c): 1 for f in fragments for c in f.reads if c in parts}
    return Learners(fragments, delays)


def _divisor_near(number: int, wanted: int) -> int:
    return max(d for d in range(1, number + 1) if number % d == 0 and d <= max(wanted, 1))


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
    return Fragment("sample", init, step, reads, ("rollout",), tags=(SAMPLING,), division=axes)


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
    return Fragment("statistics", init, step, ("rollout",), ("statistics",), publish, division=axes)


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
        ("statistics",) if _needs_statistics(agent) else ()
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
    axes = ShardingAxes(agent.experience.state_axes, written, agent.experience.shards, unit, limit)
    return Fragment("experience", init, step, reads, ("batches",), tags=tags, division=axes)


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


def build_graph(
    env: VecEnv | HostEnv, algorithm: AnyAlgorithm, options: GraphOptions = GraphOptions()
) -> tuple[Graph, BoundAgent]:
    """Build the graph of one run.

    Args:
        env: Environments.
        algorithm: Algorithm.
        options: Options of the graph.

    Returns:
        The graph, and the algorithm bound to its environments.

    Raises:
        ValueError: As `bind` or `graph_of`.
    """
    require_vectorized(env, algorithm)
    agent = bind(algorithm, env.spec, env.num_envs, options.shards)
    return graph_of(env, algorithm, agent, options), agent


def graph_of(
    env: VecEnv | HostEnv, algorithm: AnyAlgorithm, agent: BoundAgent, options: GraphOptions
) -> Graph:
    """Build the graph of one run from a bound algorithm.

    Args:
        env: Environments.
        algorithm: Algorithm.
        agent: Algorithm bound to the environments.
        options: Options of the graph.

    Returns:
        The graph.

    Raises:
        ValueError: A schedule lacks ``total_steps``, or the learners cannot share the batches.
    """
    steps_per_tick = env.num_envs * agent.rollout_length
    if (names := ", ".join(schedules(algorithm.hyper))) and options.total_steps is None:
        raise ValueError(
            f"{names} of {algorithm.name} is a schedule: write total_steps=..., or a constant {names}"
        )
    lag = options.overlap in ("sampling", "all")
    learning = build_learners(agent, options, options.empty_until + agent.warmup_ticks + lag)
    statistics = (statistics_fragment(env, agent, options.nan),) if _needs_statistics(agent) else ()
    experience = experience_fragment(env, agent, options.shards)
    experience = (
        experience
        if agent.experience.prioritized_by is None
        else with_priorities(experience, agent)
    )
    before = (sampler(env, agent, joined=options.joined), *statistics, experience)
    before = (
        starting_offline(before, env, agent, rollout_shapes, options.recorded)
        if options.recorded
        else before
    )
    last_tick = {"statistics", PRIORITIES, *agent.parts}
    delays = {(f.name, c): 1 for f in before for c in f.reads if c in last_tick} | learning.delays
    delays |= {(f.name, "batches"): 1 for f in learning.fragments if lag and "batches" in f.reads}

    def hyper_at(hyper: Any, tick: jax.Array) -> Any:
        return resolve(
            hyper,
            jnp.clip(tick * (steps_per_tick / (options.total_steps or steps_per_tick)), 0.0, 1.0),
        )

    return check_graph(
        Graph(before + learning.fragments, delays, hyper_at, products=products_beside(env, agent))
    )


def sampler(env: VecEnv | HostEnv, agent: BoundAgent, *, joined: bool = False) -> Fragment:
    """Build the fragment ``sample`` for compiled or host environments.

    Args:
        env: Environments.
        agent: Algorithm bound to them.
        joined: Whether compiled steps are stored packed.

    Returns:
        The fragment.
    """
    if isinstance(env, HostEnv):
        sample = host_sampler(env, agent, rollout_shapes(env, agent))
    else:
        scan, every = scan_packed if joined else jax.lax.scan, agent.experience.memory_every
        scan = scan if every == 1 else partial(scan_sequences, every, scan)
        sample = sample_compiled(
            partial(sample_fragment, agent=agent, scan=scan), env, agent.rollout_length
        )
    by_agents = (
        NOT_SHARDED
        if agent.num_agents is None
        else ShardingAxes(None, {}, agent.num_agents, "agents")
    )
    return sample._replace(by_agents=by_agents)


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
        return Transition(obs, action, reward, obs, flag, flag, flag, extras)

    step = jax.eval_shape(one_step, jax.random.key(0))
    whole = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((agent.rollout_length, *x.shape), x.dtype), step
    )
    starts = agent.rollout_length // agent.experience.memory_every
    memory = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((starts, *x.shape), x.dtype), step.extras.memory
    )
    return whole._replace(extras=whole.extras._replace(memory=memory))


def _needs_statistics(agent: Agent | BoundAgent) -> bool:
    return bool(agent.normalize_observations or agent.normalize_rewards)


def _seen(statistics: Statistics | None, obs: PyTree) -> PyTree:
    return obs if statistics is None else normalize(statistics.obs, obs)


def _if_finite(
    rollout: Transition, after: StatisticsState, before: StatisticsState
) -> StatisticsState:
    """Return ``after`` if the rollout is finite, else ``before``."""
    finite = all_finite((rollout.obs, rollout.reward))
    return jax.tree.map(lambda new, old: jnp.where(finite, new, old), after, before)


def bind(
    algorithm: AnyAlgorithm, spec: EnvSpec, num_envs: int, shards: int = MAX_SHARDS
) -> BoundAgent:
    """Bind an algorithm to environments.

    Args:
        algorithm: Algorithm.
        spec: Environment.
        num_envs: Number of environments.
        shards: Most logical shards of its data.

    Returns:
        The bound algorithm.

    Raises:
        ValueError: The algorithm does not support the environment, or two sizes do not match.
    """
    if algorithm.for_agents or spec.num_agents is not None:
        require_agents(algorithm, spec)
    view = view_of(spec)
    agent = algorithm.build(spec if view is None else view.spec, num_envs)
    agent = agent._replace(normalize_observations=normalizes(agent.normalize_observations, spec))
    acting = acting_of(agent, view)
    memory = bool(acting.initial_carry(1).memory)
    data = with_sequences(agent, memory=memory)
    require_positive(
        rollout_length=agent.rollout_length,
        sequence_length=data.sequence_length or 1,
        shards=shards,
    )
    if isinstance(data, OnPolicy):
        sizes, experience = _from_rollouts(agent, data, view, num_envs, shards)
    else:
        sizes, experience = _from_replay(agent, data, view, num_envs, shards, memory)
        if data.warmup_actions == "uniform" and data.warmup_steps:
            acting = uniform_first(acting, spec.action, data.warmup_steps)
    # The first rollout is not normalized: losses of its raw numbers would be thousands of times too
    # large.
    updates_per_tick, batch_size, batch_sequences, warmup_ticks = sizes
    if agent.transform is not None:
        experience = transformed(experience, agent, algorithm.hyper)
    return BoundAgent(
        parts=agent.parts,
        acting=acting,
        experience=experience,
        hyper=at_start(algorithm.hyper),
        rollout_length=agent.rollout_length,
        updates_per_tick=updates_per_tick,
        batch_size=batch_size,
        batch_sequences=batch_sequences,
        warmup_ticks=max(warmup_ticks, int(_needs_statistics(agent))),
        normalize_observations=bool(agent.normalize_observations),
        normalize_rewards=agent.normalize_rewards,
        max_return=agent.max_return,
        num_agents=spec.num_agents,
        products=products_of(agent, spec, batch_size),
    )


Made = tuple[tuple[int, int, int, int], Experience]
"""Updates in a tick, steps and sequences in a minibatch, ticks of warm-up; and where batches come
from.
"""


def _from_rollouts(
    agent: Agent, data: OnPolicy, view: View | None, num_envs: int, shards: int
) -> Made:
    steps = _minibatch_steps(agent, data, num_envs)
    make = (
        on_policy_experience
        if view is None or view.stack == 1
        else partial(stacked_on_policy, view)
    )
    sizes = data.num_epochs * data.num_minibatches, steps, steps // (data.sequence_length or 1), 0
    return sizes, make(agent, data, num_envs, shards)


def _from_replay(
    agent: Agent, data: Replay, view: View | None, num_envs: int, shards: int, memory: bool
) -> Made:
    require_positive(
        updates_per_tick=data.num_batches, batch_size=data.batch_size, n_step=data.n_step
    )
    steps = data.batch_size * data.sequence_length
    sizes = data.num_batches, steps, data.batch_size, warmup_ticks(agent, data, num_envs)
    return sizes, off_policy_experience(
        agent, data, view, num_envs, memory=memory, max_shards=shards
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
        sizes = ", ".join(f"{seen} and {number}" for seen, number in spec.own_sizes)
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


def _minibatch_steps(agent: Agent, data: OnPolicy, num_envs: int) -> int:
    """Return the number of steps per minibatch.

    Raises:
        ValueError: The rollout cannot be split equally into minibatches.
    """
    require_positive(num_epochs=data.num_epochs, num_minibatches=data.num_minibatches)
    steps, length = agent.rollout_length, data.sequence_length or 1
    if steps % length:
        raise ValueError(f"rollout_length={steps} is not a multiple of sequence_length={length}")
    sequences, count = num_envs * steps // length, data.num_minibatches
    if sequences % count:
        write = f"steps, which algo.num_minibatches={count} does not divide: write {math.gcd(sequences, count)}"
        raise ValueError(
            f"num_envs={num_envs} rollout_length={steps} gives {sequences} sequences of {length} {write}"
        )
    return sequences // count * length


def view_of(spec: EnvSpec) -> View | None:
    """Return how networks read the images of an observation.

    Args:
        spec: Environment.

    Returns:
        The view; None without images and frame stack.
    """
    images = any(is_image(leaf) for leaf in jax.tree.leaves(spec.obs))
    return make_view(spec) if images or spec.frame_stack != 0 else None


def acting_of(agent: Agent, view: View | None) -> Acting:
    """Build the `Acting` of an agent, on single frames.

    Args:
        agent: Algorithm built for one environment.
        view: How networks read images; None without images.

    Returns:
        The action selection.
    """
    acting = make_acting(agent)
    return acting if view is None or view.stack == 1 else stacked_acting(acting, view)
