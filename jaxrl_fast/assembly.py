"""A run is assembled here, and nowhere else: what an algorithm, its environments and its settings need
is selected and handed to the rooms that compute.

Compiled environments or environments on the host, with or without workers that act; one learner or
several; rollouts or replay; stacked frames; recorded steps. `learning.run_graph` composes what it
is given, and names none of them.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax

from jaxrl_fast.core import EnvSpec, require_vectorized
from jaxrl_fast.envs.env import VecEnv
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.hosts.io_callback_env import Bridge, check_placement, in_graph
from jaxrl_fast.hosts.sampler import host_sampler
from jaxrl_fast.learning.acting import BoundAgent, uniform_first
from jaxrl_fast.learning.algorithm import AnyAlgorithm, OnPolicy, require_positive
from jaxrl_fast.learning.averaging import several_learners
from jaxrl_fast.learning.flat_params import make_learning
from jaxrl_fast.learning.frame_stack import stacked_on_policy
from jaxrl_fast.learning.minibatches import MAX_SHARDS, from_rollouts, on_policy_experience
from jaxrl_fast.learning.observation_view import acting_of, view_of
from jaxrl_fast.learning.run_graph import (
    GraphOptions,
    bound_agent,
    compiled_sampler,
    compose,
    delays_sampling,
    experience_fragment,
    needs_statistics,
    products_beside,
    require_agents,
    require_total_steps,
    rollout_shapes,
    statistics_fragment,
    with_priorities,
    with_sequences,
)
from jaxrl_fast.learning.transforms import transformed
from jaxrl_fast.learning.updates import Learners, one_learner
from jaxrl_fast.numerics.normalization import normalizes
from jaxrl_fast.offline.recorded import Recorded, read_recorded, starting_offline, with_data
from jaxrl_fast.replay.off_policy import from_replay
from jaxrl_fast.runtime import hosts
from jaxrl_fast.runtime import program as programs
from jaxrl_fast.runtime.graph import NOT_SHARDED, Fragment, Graph, ShardingAxes
from jaxrl_fast.runtime.placements import place
from jaxrl_fast.runtime.program_store import FindStore
from jaxrl_fast.settings.run import CONTENTS, Run, make_graph_options, stored_settings
from jaxrl_fast.training import resuming
from jaxrl_fast.training.job import Job, check_host, check_processes, check_share, plan_run


def bind(
    algorithm: AnyAlgorithm,
    spec: EnvSpec,
    num_envs: int,
    shards: int = MAX_SHARDS,
    recorded: Recorded | None = None,
) -> BoundAgent:
    """Bind an algorithm to environments.

    Args:
        algorithm: Algorithm.
        spec: Environment.
        num_envs: Number of environments.
        shards: Most logical shards of its data.
        recorded: Recorded steps of its run (`with_own_data`); None for none.

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
        make = on_policy_experience
        if view is not None and view.stack > 1:
            make = partial(stacked_on_policy, view)
        batching = from_rollouts(agent, data, num_envs, shards, make)
    else:
        batching = from_replay(
            agent,
            data,
            view,
            num_envs,
            memory=memory,
            max_shards=shards,
            recorded=None if recorded is None else recorded.source,
        )
        if data.warmup_actions == "uniform" and data.warmup_steps:
            acting = uniform_first(acting, spec.action, data.warmup_steps)
    if agent.transform is not None:
        changed = transformed(batching.experience, agent, algorithm.hyper)
        batching = batching._replace(experience=changed)
    return bound_agent(algorithm, agent, spec, acting, batching)


def sampler(env: VecEnv | HostEnv, agent: BoundAgent, *, joined: bool = False) -> Fragment:
    """Build the fragment ``sample`` for compiled or host environments.

    Args:
        env: Environments.
        agent: Algorithm bound to them.
        joined: Whether compiled steps are stored packed.

    Returns:
        The fragment.
    """
    sample = (
        host_sampler(env, agent, rollout_shapes(env, agent))
        if isinstance(env, HostEnv)
        else compiled_sampler(env, agent, joined=joined)
    )
    by_agents = (
        NOT_SHARDED
        if agent.num_agents is None
        else ShardingAxes(None, {}, agent.num_agents, "agents")
    )
    return sample._replace(by_agents=by_agents)


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
    side_by_side = options.overlap in ("actor_critic", "all")
    learning = make_learning(
        agent,
        start=start,
        nan=options.nan,
        turns=options.average == "turns",
        joined=options.joined,
    )
    if options.learners == 1:
        return one_learner(learning, side_by_side=side_by_side)
    return several_learners(
        learning,
        options.learners,
        options.average,
        side_by_side=side_by_side,
        max_shards=options.shards,
    )


def build_graph(
    env: VecEnv | HostEnv,
    algorithm: AnyAlgorithm,
    options: GraphOptions = GraphOptions(),
    recorded: Recorded | None = None,
) -> tuple[Graph, BoundAgent]:
    """Build the graph of one run.

    Args:
        env: Environments.
        algorithm: Algorithm.
        options: Options of the graph.
        recorded: Recorded steps of the run (`with_own_data`); None for none.

    Returns:
        The graph, and the algorithm bound to its environments.

    Raises:
        ValueError: As `bind` or `graph_of`.
    """
    require_vectorized(env, algorithm)
    agent = bind(algorithm, env.spec, env.num_envs, options.shards, recorded)
    return graph_of(env, algorithm, agent, options, recorded), agent


def graph_of(
    env: VecEnv | HostEnv,
    algorithm: AnyAlgorithm,
    agent: BoundAgent,
    options: GraphOptions,
    recorded: Recorded | None = None,
) -> Graph:
    """Build the graph of one run from a bound algorithm.

    Args:
        env: Environments.
        algorithm: Algorithm.
        agent: Algorithm bound to the environments.
        options: Options of the graph.
        recorded: Recorded steps with which the algorithm was bound; None for none.

    Returns:
        The graph.

    Raises:
        ValueError: A schedule lacks ``total_steps``, or the learners cannot share the batches.
    """
    require_total_steps(algorithm, options)
    start = options.empty_until + agent.warmup_ticks + delays_sampling(options)
    learning = build_learners(agent, options, start)
    statistics = (statistics_fragment(env, agent, options.nan),) if needs_statistics(agent) else ()
    experience = experience_fragment(env, agent, options.shards)
    if agent.experience.prioritized_by is not None:
        experience = with_priorities(experience, agent)
    before = (sampler(env, agent, joined=options.joined), *statistics, experience)
    if recorded is not None:
        before = starting_offline(before, env, agent, rollout_shapes(env, agent), recorded)
    return compose(
        before,
        learning,
        agent,
        options,
        steps_per_tick=env.num_envs * agent.rollout_length,
        products=products_beside(env, agent),
    )


def make_job(
    env: VecEnv | HostEnv,
    algorithm: AnyAlgorithm,
    run: Run,
    settings: Mapping[str, Any] | None = None,
    keep: FindStore = lambda program: None,
    config: str = "",
) -> Job:
    """Assemble a run, after all checks that are possible before compilation.

    Args:
        env: Environment.
        algorithm: Algorithm.
        run: Settings of the run.
        settings: Settings that a checkpoint stores, and that a resumed run must have in common
            with this one; None takes them from the run.
        keep: Returns the store of compiled programs for later starts, or None.
        config: As in `Job`.

    Returns:
        The job.

    Raises:
        ValueError: Arguments contradict each other, or the checkpoint.
    """
    require_vectorized(env, algorithm)
    algorithm, recorded = with_own_data(algorithm, run, env.spec)
    graph_options = make_graph_options(run)
    agent = bind(algorithm, env.spec, env.num_envs, run.shards, recorded)
    settings = stored_settings(run, env, algorithm) if settings is None else settings
    if recorded is not None and settings:
        settings = {**settings, CONTENTS: {**settings.get(CONTENTS, {}), **recorded.contents}}
    if not hosts.is_alone():
        check_processes(env, {**settings, "resume": run.resume, "debug": run.debug})
    vec_env, failures = (
        (env, []) if isinstance(env, VecEnv) and not run.eval.share else bridge_of(env, run)
    )
    resumed = None if run.resume is None else resuming.read(run.resume, settings, algorithm)
    if resumed is not None:
        graph_options = graph_options._replace(empty_until=resumed.empty_until)
    graph_with = partial(graph_of, vec_env, algorithm, agent, recorded=recorded)
    graph = graph_with(graph_options)
    plan = plan_run(
        env,
        agent,
        run.total_steps,
        run.eval.every,
        run.checkpoint.every,
        resumed.progress if resumed is not None else None,
    )
    placed = place(graph, run.placement, run.devices)
    if isinstance(env, HostEnv):
        check_placement(env, placed)
    program = programs.compile(graph, placed, plan.ticks_per_chunk, run.num_seeds)
    store = keep((graph_options, recorded, placed, plan.ticks_per_chunk, run.num_seeds))
    return Job(
        env=env,
        algorithm=algorithm,
        agent=agent,
        graph=graph,
        placement=placed,
        program=program,
        plan=plan,
        keys=jax.random.split(jax.random.key(run.seed), run.num_seeds),
        failures=failures,
        run=run,
        graph_options=graph_options,
        graph_with=graph_with,
        settings=settings,
        resumed=resumed,
        store=store,
        config=config,
    )


def with_own_data(
    algorithm: AnyAlgorithm, run: Run, spec: EnvSpec
) -> tuple[AnyAlgorithm, Recorded | None]:
    """Let an algorithm learn from the data of its run, if there are any.

    Args:
        algorithm: Algorithm.
        run: Settings of the run.
        spec: Environment of the run.

    Returns:
        The algorithm, and its recorded steps; None for none.

    Raises:
        ValueError: The data are missing, damaged or of another environment.
    """
    if not algorithm.needs_data and run.data is None and not run.online_steps:
        return algorithm, None
    recorded = read_recorded(run.data, algorithm, spec, run.total_steps, run.online_steps)
    return with_data(algorithm), recorded


def bridge_of(env: VecEnv | HostEnv, run: Run) -> Bridge:
    """Check host environments, and convert them for the graph.

    Args:
        env: Host environment.
        run: Settings of the run.

    Returns:
        The environment for the graph, and the list of errors raised in callbacks.
    """
    check_host(env, run.num_seeds, run.debug)
    if run.eval.share:
        check_share(env, run.eval)
    return in_graph(env)
