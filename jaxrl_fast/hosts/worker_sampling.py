"""Sampling by processes that hold the policy: a rollout needs one message to each, not one for
every step.

The function that selects actions is split (`act_split`): what depends on parameters, rates and
random keys is computed here before a rollout, for all of its steps, with the keys of
`sampling`. What needs observations runs in the processes of the environments
(`envs.pool.rolling`), as NumPy or, where NumPy lacks an operation, by JAX.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import Extras, PyTree, Transition, is_image
from jaxrl_fast.envs.host_env import MAX_STEPS, HostEnv, HostStep
from jaxrl_fast.envs.host_rollout import HostRecord, as_rollout
from jaxrl_fast.envs.pool.rolling import segments_of
from jaxrl_fast.envs.rollout_plan import ActProgram, Given, RolloutPlan
from jaxrl_fast.hosts.act_split import (
    Split,
    When,
    environment_axes,
    require_apart,
    require_same,
    run_operations,
    split,
)
from jaxrl_fast.hosts.numpy_source import Unsupported, to_numpy, to_xla
from jaxrl_fast.hosts.sampling import (
    HostSamplerState,
    begin,
    env_axis,
    host_fragment,
    host_sample_fragment,
    make_act,
    over_slices,
    require_inside,
)
from jaxrl_fast.learning.acting import BoundAgent
from jaxrl_fast.runtime.graph import Channels, Fragment
from jaxrl_fast.runtime.placements import WORKERS


class Ahead(NamedTuple):
    """Computation before a rollout, and how its results reach the processes.

    Attributes:
        compute: ``(inputs, hyper, key) -> arrays`` of the plan's ``given``, as rows; compiled.
        plan: Plan of the rollouts.
    """

    compute: Callable[[Channels, Any, Any], list[Any]]
    plan: RolloutPlan


def worker_sample_fragment(env: HostEnv, agent: BoundAgent, rollout_shapes: Transition) -> Fragment:
    """Build the fragment ``sample`` for environments whose processes select the actions.

    The first tick resets the environments. So does every tick in which their count of steps differs
    from the state's: after a resume, episodes restart.

    Args:
        env: Host environments with ``rollouts``.
        agent: Algorithm bound to them.
        rollout_shapes: Shapes of a rollout of one seed, ``[T, E, ...]``.

    Returns:
        The fragment.

    Raises:
        ValueError: The environments have no ``rollouts``.
    """
    if env.rollouts is None:
        raise ValueError(
            f"pool.bridge=worker needs environments that a pool steps one by one, and {env.spec.name} has others: "
            "write pool.bridge=host"
        )
    rollouts, axis, length = env.rollouts, env_axis(env), agent.rollout_length
    loaded: dict[str, Any] = {}

    def load(inputs: Channels, hyper: Any, key: Any) -> None:
        try:
            loaded["ahead"] = plan_rollouts(env, agent, rollout_shapes, (inputs, hyper, key))
        except ValueError as error:
            rollouts.log(
                f"no whole rollouts by the environments' processes, actions by the trainer: {error}"
            )
            loaded["central"] = host_sample_fragment(env, agent, rollout_shapes)

    def step(private: HostSamplerState, inputs: Channels, hyper: Any, key: jax.Array) -> tuple:
        if not loaded:
            load(inputs, hyper, key)
        if "central" in loaded:
            return loaded["central"].step(private, inputs, hyper, key)
        # none, or of another run in the same environments
        if rollouts.plan() is not loaded["ahead"].plan:
            loaded["shared"] = rollouts.load(loaded["ahead"].plan)
        ahead, shared = loaded["ahead"], loaded["shared"]
        computed = ahead.compute(inputs, hyper, key)
        now = begin(env, agent, private, key)
        for i, value in enumerate(jax.device_get(computed)):
            shared[f"given{i}"][...] = value
        carry, treedef = jax.tree.flatten(jax.device_get(now.carry))
        for i, value in enumerate(carry):
            shared[f"carry{i}"][...] = in_rows(env, value)
        shared["first"][...] = in_rows(env, np.asarray(now.first))
        rollouts.roll()
        record, extras, last = read_rollout(env, shared, now, rollout_shapes, length)
        require_inside(env, record, axis)
        rollout, metrics = as_rollout(record, extras, axis, env.spec.metrics)
        after = [by_seed(env, shared[f"carry{i}"], 0) for i in range(len(carry))]
        steps = np.full(np.shape(now.steps), env.steps() % MAX_STEPS, np.int32)
        ended = record.step.terminated | record.step.truncated
        first = ended[:, -1] if axis else ended[-1]
        state = HostSamplerState(steps, last, first, jax.tree.unflatten(treedef, after))
        return state, {"rollout": rollout}, metrics

    fragment = host_fragment(env, agent, rollout_shapes, step)
    return fragment._replace(tags=(*fragment.tags, WORKERS))


def one_seed(env: HostEnv, inputs: PyTree) -> PyTree:
    """Return the shapes of a fragment's inputs for one seed.

    Args:
        env: Host environments.
        inputs: Inputs, with a leading axis of several seeds.

    Returns:
        Shapes and dtypes.
    """
    cut = env_axis(env)
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(jnp.shape(x)[cut:], jnp.result_type(x)), inputs
    )


def plan_rollouts(
    env: HostEnv, agent: BoundAgent, rollout_shapes: Transition, example: tuple[Any, Any, Any]
) -> Ahead:
    """Split the selection of actions, and plan the rollouts.

    Args:
        env: Host environments.
        agent: Algorithm bound to them.
        rollout_shapes: Shapes of a rollout of one seed.
        example: Channels, hyper-parameters and key of a tick.

    Returns:
        The computation before a rollout, and the plan.

    Raises:
        ValueError: The selection of actions cannot be split.
    """
    whole_size = env.num_envs // env.num_groups
    inputs, hyper, key = one_seed(env, example)
    act = make_act(agent)

    def of_size(size: int) -> Split:
        carry = jax.eval_shape(lambda: agent.acting.initial_carry(size))
        obs = jax.tree.map(lambda s: jax.ShapeDtypeStruct((size, *s.shape), s.dtype), env.spec.obs)
        at_step = carry, obs, jax.ShapeDtypeStruct((size,), bool)
        return split(
            lambda tick, step, at_step: act(tick[0], *at_step, step[0], tick[1], step[1]),
            (inputs, hyper),
            (key, jax.ShapeDtypeStruct((), jnp.int32)),
            at_step,
        )

    whole = of_size(whole_size)
    if any(jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key) for value in whole.given):
        raise ValueError("random numbers depend on observations")
    axes: list[int | None] = [None] * len(whole.given)
    # a single environment of a group has its own part of each value, and needs no axis
    if whole_size > 1:
        axes = environment_axes(whole, of_size(whole_size + 1), (whole_size, whole_size + 1))
    layouts = [Given(when == When.STEP, a) for when, a in zip(whole.when, axes, strict=True)]
    joined = all(one.axis is not None or not one.each_step for one in layouts)
    rows = env.num_envs * env.num_seeds
    sizes = {
        max(segment.rows.stop - segment.rows.start, min(whole_size, LEAST))
        for part in env.rollouts.parts  # type: ignore[union-attr]
        for segment in segments_of((rows, env.num_groups, env.num_seeds), part, joined)
    }
    splits = {size: whole if size == whole_size else of_size(size) for size in sizes}
    for one in splits.values():
        require_same(whole, one)
    if max(splits) > 1:
        require_apart(splits[max(splits)])
    images = any(map(is_image, jax.tree.leaves(env.spec.obs)))
    programs = {size: act_program(one, images) for size, one in splits.items()}
    compute = jax.jit(computed_ahead(env, whole, layouts, agent.rollout_length))
    fields, (num_carry, num_decision, num_memory) = algorithm_fields(env, agent, rollout_shapes)
    for i, value in enumerate(jax.eval_shape(compute, *example)):
        fields[f"given{i}"] = value.shape, np.dtype(value.dtype)
    plan = RolloutPlan(
        length=agent.rollout_length,
        num_seeds=env.num_seeds,
        num_groups=env.num_groups,
        programs=programs,
        given=layouts,
        entries=tuple(sorted(env.spec.obs)) if isinstance(env.spec.obs, dict) else (),
        num_carry=num_carry,
        num_decision=num_decision,
        num_memory=num_memory,
        memory_every=agent.experience.memory_every,
        fields=fields,
    )
    return Ahead(compute, plan)


LEAST = 2
"""Least number of environments of a program: networks may treat a single one in another way
(`rolling.Actor`).
"""


def act_program(program: Split, images: bool = False) -> ActProgram:
    """Write the program of a split function for the processes of the environments.

    Args:
        program: Split function for their number of environments.
        images: Whether observations have images, whose convolutions are left to JAX.

    Returns:
        NumPy source, or a JAX function for images and where NumPy lacks an operation.
    """
    if images:
        return ActProgram("", [], to_xla(program))
    try:
        source = to_numpy(program)
        return ActProgram(source.text, source.constants)
    except Unsupported:
        return ActProgram("", [], to_xla(program))


def computed_ahead(
    env: HostEnv, whole: Split, layouts: list[Given], length: int
) -> Callable[..., list[Any]]:
    """Return the function that computes what rollouts need before their first step.

    Args:
        env: Host environments.
        whole: Split function for the environments of a group.
        layouts: How its values are arranged.
        length: Steps of a rollout, ``T``.

    Returns:
        ``(inputs, hyper, key) -> arrays`` as described by `Given`.
    """
    fixed, by_step = whole.ahead

    def of_seed(inputs: Channels, hyper: Any, key: Any) -> list[Any]:
        leaves = jax.tree.leaves((inputs, hyper))
        arrays = {value.number: x for value, x in zip(whole.inputs[When.TICK], leaves, strict=True)}
        arrays = run_operations(fixed, arrays)

        def at(i: Any) -> list[Any]:
            drawn = {
                value.number: x for value, x in zip(whole.inputs[When.STEP], (key, i), strict=True)
            }
            all_known = run_operations(by_step, arrays | drawn)
            return [
                all_known[value.number]
                for value, one in zip(whole.given, layouts, strict=True)
                if one.each_step
            ]

        calls = jnp.arange(length * env.num_groups, dtype=jnp.int32).reshape(length, env.num_groups)
        drawn = iter(jax.vmap(jax.vmap(at))(calls))  # [T, G, ...]
        return [
            next(drawn) if one.each_step else arrays[value.number]
            for value, one in zip(whole.given, layouts, strict=True)
        ]

    def compute(inputs: Channels, hyper: Any, key: Any) -> list[Any]:
        values = over_slices(env, of_seed, (0, 0, 0))(inputs, hyper, key)
        if env.num_seeds == 1:
            values = [value[None] for value in values]
        return [arranged(env, value, one) for value, one in zip(values, layouts, strict=True)]

    return compute


def arranged(env: HostEnv, value: Any, layout: Given) -> Any:
    """Arrange a computed value as the processes read it.

    Args:
        env: Host environments.
        value: Array ``[S, ...]``, of each step ``[S, T, G, ...]``, with the environments of a group
            at ``layout.axis`` of the rest.
        layout: How it is arranged.

    Returns:
        The array as described by `Given`.
    """
    if layout.each_step:
        value = jnp.moveaxis(value, 0, 2)  # [T, G, S, ...]
        if layout.axis is None:
            return value
        value = jnp.moveaxis(value, 3 + layout.axis, 3)
        return value.reshape(value.shape[0], -1, *value.shape[4:])
    if layout.axis is None:
        return value
    value = jnp.moveaxis(value, 1 + layout.axis, 1)
    every_group = jnp.broadcast_to(value[None], (env.num_groups, *value.shape))
    return every_group.reshape(-1, *value.shape[2:])


def algorithm_fields(
    env: HostEnv, agent: BoundAgent, rollout_shapes: Transition
) -> tuple[dict[str, Any], tuple[int, int, int]]:
    """List the shared arrays that depend on the algorithm: carry, decisions and memory, each with
    all rows.

    Args:
        env: Host environments.
        agent: Algorithm bound to them.
        rollout_shapes: Shapes of a rollout of one seed.

    Returns:
        Shapes and dtypes by name, and the numbers of arrays of each kind.
    """
    rows, extras = env.num_envs * env.num_seeds, rollout_shapes.extras
    fields: dict[str, Any] = {}
    carry = jax.tree.leaves(jax.eval_shape(lambda: agent.acting.initial_carry(env.num_envs)))
    decision, memory = jax.tree.leaves(extras.decision), jax.tree.leaves(extras.memory)
    for i, leaf in enumerate(carry):
        fields[f"carry{i}"] = (rows, *leaf.shape[1:]), np.dtype(leaf.dtype)
    for name, leaves in (("decision", decision), ("memory", memory)):
        for i, leaf in enumerate(leaves):
            fields[f"{name}{i}"] = (leaf.shape[0], rows, *leaf.shape[2:]), np.dtype(leaf.dtype)
    return fields, (len(carry), len(decision), len(memory))


def in_rows(env: HostEnv, value: np.ndarray) -> np.ndarray:
    """Arrange an array ``[E, ...]``, with several seeds ``[S, E, ...]``, as rows ``[R, ...]``.

    Args:
        env: Host environments.
        value: Array.

    Returns:
        The rows: group after group, in a group seed after seed.
    """
    if env.num_seeds == 1:
        return value
    parts = value.reshape(env.num_seeds, env.num_groups, -1, *value.shape[2:])
    return np.moveaxis(parts, 1, 0).reshape(-1, *value.shape[2:])


def by_seed(env: HostEnv, rows: np.ndarray, before: int) -> np.ndarray:
    """Copy rows ``[..., R, ...]`` as ``[..., E, ...]``, with several seeds ``[S, ..., E, ...]``.

    Args:
        env: Host environments.
        rows: Array with ``before`` axes before the rows.
        before: 0, or 1 for an axis of time.

    Returns:
        A copy.
    """
    if env.num_seeds == 1:
        return rows.copy()
    lead, rest = rows.shape[:before], rows.shape[before + 1 :]
    parts = rows.reshape(*lead, env.num_groups, env.num_seeds, -1, *rest)
    parts = np.moveaxis(parts, before + 1, 0)
    return np.array(parts.reshape(env.num_seeds, *lead, env.num_envs, *rest))


def read_rollout(
    env: HostEnv,
    shared: dict[str, np.ndarray],
    now: HostSamplerState,
    rollout_shapes: Transition,
    length: int,
) -> tuple[HostRecord, Extras, PyTree]:
    """Copy a rollout out of the shared arrays.

    Args:
        env: Host environments.
        shared: Arrays of the rollout.
        now: State before the rollout.
        rollout_shapes: Shapes of a rollout of one seed.
        length: Steps of the rollout.

    Returns:
        The steps ``[T, E, ...]``, with several seeds ``[S, T, E, ...]``, the extras, and the last
        observations.
    """
    axis = env_axis(env)
    facts = by_seed(env, shared["facts"], 1)
    ended = facts["terminated"] | facts["truncated"]
    first = np.concatenate(
        [np.expand_dims(np.asarray(now.first), axis), ended[:, :-1] if axis else ended[:-1]], axis
    )
    final_rows = shared["facts"]["terminated"] | shared["facts"]["truncated"]

    def observed(obs: np.ndarray, final: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        following = obs[1:].copy()
        following[final_rows] = final[final_rows]
        next_by_seed = following if env.num_seeds == 1 else by_seed(env, following, 1)
        return by_seed(env, obs[:-1], 1), next_by_seed, by_seed(env, obs[-1], 0)

    if isinstance(env.spec.obs, dict):
        entries = {
            name: observed(shared["obs"][name], shared["final_obs"][name])
            for name in sorted(env.spec.obs)
        }
        observations: Any = [{name: parts[i] for name, parts in entries.items()} for i in range(3)]
    else:
        observations = observed(shared["obs"], shared["final_obs"])
    obs, next_obs, last = observations
    step = HostStep(
        obs=obs,
        next_obs=next_obs,
        reward=facts["reward"],
        terminated=facts["terminated"],
        truncated=facts["truncated"],
        episode_return=facts["episode_return"],
        episode_length=facts["episode_length"],
        metrics=facts["metrics"] if env.spec.metrics else (),
    )
    record = HostRecord(obs, first, by_seed(env, shared["action"], 1), step)
    kinds = {}
    for name, tree in (
        ("decision", rollout_shapes.extras.decision),
        ("memory", rollout_shapes.extras.memory),
    ):
        leaves = [by_seed(env, shared[f"{name}{i}"], 1) for i in range(len(jax.tree.leaves(tree)))]
        kinds[name] = jax.tree.unflatten(jax.tree.structure(tree), leaves)
    return record, Extras(**kinds), last
