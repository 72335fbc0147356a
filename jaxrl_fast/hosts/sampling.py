"""Sampling from host environments, driven from Python.

Actions are computed on the devices of the sampling fragment's group, for one group of environments
while the others step (double buffering, as in Sample Factory, arXiv 2006.11751, section 3.1).
"""

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import EpisodeTotals, Extras, Metrics, PyTree, Transition, select
from jaxrl_fast.envs.env import no_totals, sum_episodes
from jaxrl_fast.envs.host_env import MAX_STEPS, DeviceStep, DeviceSteps, HostEnv, HostStep
from jaxrl_fast.envs.host_rollout import HostRecord, Recording, as_rollout
from jaxrl_fast.learning.acting import BoundAgent
from jaxrl_fast.learning.rollout import first_nonfinite
from jaxrl_fast.numerics.normalization import normalize
from jaxrl_fast.runtime.graph import Channels, Fragment
from jaxrl_fast.runtime.placements import SAMPLING


class HostSamplerState(NamedTuple):
    """State of sampling on the host between ticks; shapes ``[E, ...]``, with several seeds
    ``[S, E, ...]``.

    Attributes:
        steps: Environment steps over the whole pool since its last reset, int32 (modulo
            `MAX_STEPS`).
        obs: As in `rollout.SamplerState`.
        first: As in `rollout.SamplerState`.
        carry: As in `rollout.SamplerState`.
    """

    steps: Any
    obs: PyTree
    first: Any
    carry: PyTree


def host_sample_fragment(env: HostEnv, agent: BoundAgent, rollout_shapes: Transition) -> Fragment:
    """Build the fragment ``sample`` for host environments; it serves all seeds of a pool.

    The first tick resets the environments. So does every tick in which their count of steps differs
    from the state's: after a resume, episodes restart.

    Args:
        env: Host environments.
        agent: Algorithm bound to them.
        rollout_shapes: Shapes of a rollout of one seed, ``[T, E, ...]``.

    Returns:
        The fragment.
    """
    if env.on_device is not None:
        return _device_sample_fragment(env, env.on_device, agent, rollout_shapes)
    axis, length = env_axis(env), agent.rollout_length
    rows = _slices(env.num_envs, env.num_groups)
    groups = range(env.num_groups)
    # groups whose actions one call computes
    turns = [[group] for group in groups] if env.overlaps else [list(groups)]
    act = over_slices(
        env,
        _remembering(make_act(agent), agent.experience.memory_every),
        (0, 0, 0, 0, 0, 0, None, 0, None),
    )
    no_extras = _extras_of_a_group(env, rollout_shapes.extras)

    @partial(jax.jit, donate_argnums=2)
    def decide(
        inputs: Channels,
        group_inputs: list[tuple],
        extras: list[PyTree],
        key: Any,
        hyper: Any,
        counts: list[int],
        t: int,
    ) -> list:
        return [
            act(inputs, *g, key, hyper, i, e, t)
            for g, e, i in zip(group_inputs, extras, counts, strict=True)
        ]

    def step(private: HostSamplerState, inputs: Channels, hyper: Any, key: jax.Array) -> tuple:
        now = begin(env, agent, private, key)
        now = now._replace(obs=jax.device_get(now.obs), first=np.asarray(now.first))
        group_inputs = [_part(now, of_group, axis) for of_group in rows]
        extras = [no_extras() for _ in groups]
        sent: list[Any] = [None] * env.num_groups
        recording = Recording(length, env.num_envs, axis, env.num_seeds)
        for t in range(length + 1):
            for turn in turns:
                for group in turn if t > 0 else ():
                    result = _by_slice(env, env.recv(group))
                    carry, obs, first = group_inputs[group]
                    recording.put(t - 1, rows[group], HostRecord(obs, first, sent[group], result))
                    group_inputs[group] = carry, result.obs, result.terminated | result.truncated
                if t == length:
                    continue
                counts = [t * env.num_groups + group for group in turn]
                decided = decide(
                    inputs,
                    [group_inputs[g] for g in turn],
                    [extras[g] for g in turn],
                    key,
                    hyper,
                    counts,
                    t,
                )
                for group, (action, carry, extras[group]) in zip(turn, decided, strict=True):
                    group_inputs[group] = carry, *group_inputs[group][1:]
                    sent[group] = np.asarray(action)
                    env.send(_in_rows(env, sent[group]), group)
        require_inside(env, recording.arrays, axis)
        rollout, metrics = as_rollout(
            recording.arrays, _join(extras, axis + 1), axis, env.spec.metrics
        )
        carry, obs, first = _join(group_inputs, axis)
        steps = np.full(now.steps.shape, env.steps() % MAX_STEPS, np.int32)
        return HostSamplerState(steps, obs, first, carry), {"rollout": rollout}, metrics

    return host_fragment(env, agent, rollout_shapes, step)


def _device_sample_fragment(
    env: HostEnv, simulator: DeviceSteps, agent: BoundAgent, rollout_shapes: Transition
) -> Fragment:
    """Build the fragment ``sample`` for a simulator whose arrays stay on the device
    (`HostEnv.on_device`).

    Two programs take turns with the simulator: one selects actions, the other reads the simulator's
    arrays once and writes them into the rollout. Totals of running episodes stay here between
    ticks, as in a pool.
    """
    length = agent.rollout_length
    arrange, decode_actions = simulator.arrange, simulator.decode
    act = _remembering(make_act(agent), agent.experience.memory_every)
    running: dict[str, EpisodeTotals] = {}

    @partial(jax.jit, donate_argnums=3)
    def decide(
        inputs: Channels, carry: PyTree, before: tuple, extras: PyTree, key: Any, hyper: Any, t: int
    ) -> tuple:
        action, carry, extras = act(inputs, carry, *before, key, hyper, t, extras, t)
        return action, decode_actions(action), carry, extras

    @partial(jax.jit, donate_argnums=0)
    def record(
        stored: tuple, t: int, before: tuple, action: jax.Array, step: DeviceStep, totals: Any
    ) -> tuple:
        terminated, truncated, began, reward = (  # simulators give [E] or [E, 1]
            jnp.broadcast_to(x.reshape(-1), env.num_envs).astype(dtype)
            for x, dtype in (
                (step.terminated, bool),
                (step.truncated, bool),
                (step.began, bool),
                (step.reward, jnp.float32),
            )
        )
        truncated &= ~terminated
        done = terminated | truncated
        totals = EpisodeTotals(totals.returns + reward, totals.length + ~began)
        obs = arrange(step.obs)
        next_obs = select(
            done, before[0] if step.final_obs is None else arrange(step.final_obs), obs
        )
        now = (
            Transition(
                obs=before[0],
                action=action,
                reward=reward,
                next_obs=next_obs,
                terminated=terminated,
                truncated=truncated,
                first=before[1],
                extras=(),
            ),
            totals,
        )
        stored = jax.tree.map(lambda rows, x: rows.at[t].set(x.astype(rows.dtype)), stored, now)
        return (
            stored,
            (jax.tree.map(jnp.copy, obs), done),
            select(done, no_totals(env.spec, env.num_envs), totals),
        )

    @jax.jit
    def measure(rollout: Transition, totals: EpisodeTotals) -> Metrics:
        sums = sum_episodes(rollout.terminated | rollout.truncated, totals)
        return sums | {"nonfinite_step": first_nonfinite(rollout)}

    empty = (
        rollout_shapes._replace(extras=()),
        jax.eval_shape(lambda: no_totals(env.spec, env.num_envs)),
    )
    empty = (
        empty[0],
        jax.tree.map(lambda s: jax.ShapeDtypeStruct((length, *s.shape), s.dtype), empty[1]),
    )

    def step(private: HostSamplerState, inputs: Channels, hyper: Any, key: jax.Array) -> tuple:
        now = private
        if not is_where_left(env, private):
            now = _first_state(
                env, agent, private, simulator.reset(int(jax.random.bits(key, (), jnp.uint32)))
            )
            running["totals"] = no_totals(env.spec, env.num_envs)
        carry, before, totals = now.carry, (now.obs, now.first), running["totals"]
        stored, extras = _zeros((empty, rollout_shapes.extras))
        for t in range(length):
            action, sent, carry, extras = decide(inputs, carry, before, extras, key, hyper, t)
            stored, before, totals = record(stored, t, before, action, simulator.step(sent), totals)
        running["totals"] = totals
        # an evaluation may step the simulator next, which overwrites its arrays
        jax.block_until_ready(before)
        rollout = stored[0]._replace(extras=extras)
        steps = np.int32(env.steps() % MAX_STEPS)
        obs, first = before
        after = HostSamplerState(steps=steps, obs=obs, first=first, carry=carry)
        return after, {"rollout": rollout}, measure(*stored)

    return host_fragment(env, agent, rollout_shapes, step)


def _zeros(shapes: PyTree) -> PyTree:
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)


def make_act(agent: BoundAgent) -> Callable[..., tuple]:
    """Return the function that selects the actions of one call.

    Args:
        agent: Algorithm bound to its environments.

    Returns:
        ``(inputs, carry, obs, first, key, hyper, i) -> (action, carry, extras)``, for the ``i``-th
        call in a tick.
    """

    def act(
        inputs: Channels,
        carry: PyTree,
        obs: PyTree,
        first: jax.Array,
        key: jax.Array,
        hyper: Any,
        i: int,
    ) -> tuple:
        learned = {name: inputs[name] for name in agent.acting.parts}
        network_obs = (
            normalize(inputs["statistics"].obs, obs) if agent.normalize_observations else obs
        )
        return agent.acting.explore(
            learned, carry, network_obs, first, jax.random.fold_in(key, i), hyper
        )

    return act


def host_fragment(
    env: HostEnv, agent: BoundAgent, rollout_shapes: Transition, step: Callable[..., tuple]
) -> Fragment:
    """Build the fragment ``sample`` around a step function. Its initial state marks the
    environments as not started.

    Args:
        env: Host environments.
        agent: Algorithm bound to them.
        rollout_shapes: Shapes of a rollout of one seed, ``[T, E, ...]``.
        step: Step of the fragment.

    Returns:
        The fragment.
    """
    reads = agent.acting.parts + (("statistics",) if agent.normalize_observations else ())

    def init(key: jax.Array) -> HostSamplerState:
        obs = jax.tree.map(lambda s: jnp.zeros((env.num_envs, *s.shape), s.dtype), env.spec.obs)
        first = jnp.ones(env.num_envs, bool)
        return HostSamplerState(
            jnp.zeros((), jnp.int32), obs, first, agent.acting.initial_carry(env.num_envs)
        )

    def publish(private: HostSamplerState) -> Channels:
        return {"rollout": jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), rollout_shapes)}

    return Fragment(
        "sample",
        init,
        step,
        reads=reads,
        writes=("rollout",),
        publish=publish,
        host=True,
        tags=(SAMPLING,),
    )


def env_axis(env: HostEnv) -> int:
    """Return the axis of the environments in a state's arrays: 1 with several seeds, whose axis
    comes first, else 0.

    Args:
        env: Host environments.

    Returns:
        The axis.
    """
    return int(env.num_seeds > 1)


def over_slices(env: HostEnv, function: Callable, in_axes: tuple) -> Callable:
    """Vmap a function of one seed over the seeds, if there are several.

    Args:
        env: Host environments.
        function: Function of one seed.
        in_axes: As in `jax.vmap`.

    Returns:
        The function of all seeds.
    """
    return jax.vmap(function, in_axes) if env.num_seeds > 1 else function


def begin(
    env: HostEnv, agent: BoundAgent, private: HostSamplerState, key: jax.Array
) -> HostSamplerState:
    """Return the state to sample from, after a reset if the environments are not where the state
    left them.

    Args:
        env: Host environments.
        agent: Algorithm bound to them.
        private: State of the fragment.
        key: Random key of the reset.

    Returns:
        ``private``, or the state after a reset of all environments.
    """
    taken = np.asarray(private.steps)
    if is_where_left(env, private):
        return private
    seeds = np.asarray(
        over_slices(env, partial(jax.random.bits, shape=(), dtype=jnp.uint32), (0,))(key)
    )
    obs = env.reset(seeds.tolist())
    if env.num_seeds > 1:
        obs = jax.tree.map(partial(_of_slices, env, (*taken.shape, env.num_envs)), obs)
    return _first_state(env, agent, private, obs)


def is_where_left(env: HostEnv, private: HostSamplerState) -> bool:
    """Check whether the environments are where a state left them.

    Args:
        env: Host environments.
        private: State of the fragment.

    Returns:
        False at the start, after a resume and after a reset by others.
    """
    taken = np.asarray(private.steps)
    return bool(taken.all() and (taken == env.steps() % MAX_STEPS).all())


def _first_state(
    env: HostEnv, agent: BoundAgent, private: HostSamplerState, obs: PyTree
) -> HostSamplerState:
    taken = np.asarray(private.steps)
    carry = jax.tree.map(
        lambda x: np.broadcast_to(x, (*taken.shape, *x.shape)),
        agent.acting.initial_carry(env.num_envs),
    )
    return HostSamplerState(
        np.zeros_like(taken), obs, np.ones((*taken.shape, env.num_envs), bool), carry
    )


def _of_slices(env: HostEnv, shape: tuple[int, ...], rows: np.ndarray) -> np.ndarray:
    """Arrange rows of all environments, group after group, as ``[*shape, ...]``, which starts with
    the seeds.
    """
    parts = rows.reshape(env.num_groups, env.num_seeds, -1, *rows.shape[1:])
    return np.moveaxis(parts, 0, 1).reshape(*shape, *rows.shape[1:])


def _by_slice(env: HostEnv, step: HostStep) -> HostStep:
    """Split the rows ``[S * E / G, ...]`` of a group's step by seed."""
    if env.num_seeds == 1:
        return step
    return jax.tree.map(lambda x: x.reshape(env.num_seeds, -1, *x.shape[1:]), step)


def _in_rows(env: HostEnv, actions: np.ndarray) -> np.ndarray:
    """Join actions ``[S, E / G, ...]`` into the rows that the pool takes."""
    return actions if env.num_seeds == 1 else actions.reshape(-1, *actions.shape[2:])


def _slices(num_envs: int, groups: int) -> list[slice]:
    size = num_envs // groups
    return [slice(group * size, (group + 1) * size) for group in range(groups)]


def _part(state: HostSamplerState, rows: slice, axis: int) -> tuple[PyTree, PyTree, Any]:
    """Return a group's inputs of action selection: carry, obs and first."""
    at = (*[slice(None)] * axis, rows)
    return jax.tree.map(itemgetter(at), (state.carry, state.obs, state.first))


def _remembering(act: Callable[..., tuple], memory_every: int) -> Callable[..., tuple]:
    """Wrap ``act`` to write its extras at ``t`` into the rollout's, ``[T, E, ...]``, on the device.

    Memories are written only at multiples of ``memory_every``. Copying each step's extras to the
    host takes as long as the decisions.
    """

    def call(*args: Any) -> tuple:
        *inputs, remembered, t = args
        action, carry, extras = act(*inputs)

        def write_memory(all_: jax.Array, new: jax.Array) -> jax.Array:
            slot = jnp.where(t % memory_every == 0, t // memory_every, len(all_))
            return all_.at[slot].set(new, mode="drop")

        decision = jax.tree.map(
            lambda all_, new: all_.at[t].set(new), remembered.decision, extras.decision
        )
        return (
            action,
            carry,
            Extras(decision, jax.tree.map(write_memory, remembered.memory, extras.memory)),
        )

    return call


def _extras_of_a_group(env: HostEnv, shapes: PyTree) -> Callable[[], PyTree]:
    """Return a function that allocates a group's extras ``[T, E / G, ...]``, with several seeds
    ``[S, T, ...]``.
    """
    seeds, size = (env.num_seeds,) * env_axis(env), env.num_envs // env.num_groups
    return lambda: jax.tree.map(
        lambda s: jnp.zeros((*seeds, s.shape[0], size, *s.shape[2:]), s.dtype), shapes
    )


def _join(groups: list[PyTree], axis: int) -> PyTree:
    """Concatenate the arrays of all groups along the environments' ``axis``."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis), *jax.device_get(groups))


def require_inside(env: HostEnv, record: HostRecord, axis: int = 0) -> None:
    """Check that all observations of a rollout are inside of their space
    (`HostEnv.require_inside`).

    Args:
        env: Host environments.
        record: Steps ``[T, E, ...]``, with several seeds ``[S, T, E, ...]``.
        axis: Axis of time.

    Raises:
        RuntimeError: An observation is outside.
    """
    if env.require_inside is None:
        return
    shape = record.step.terminated.shape
    steps = env.steps() // (env.num_seeds * env.num_envs) - shape[axis]
    begun = np.flatnonzero(record.first)

    def place(index: int, after: int) -> str:
        at = np.unravel_index(index, shape)
        seed = f"seed {at[0]}, " if axis else ""
        step = steps + int(at[axis]) + after
        return f"{seed}environment {at[-1]}, {'' if after else 'reset after '}step {step}"

    following, first = jax.tree.map(
        lambda x: x.reshape(-1, *x.shape[axis + 2 :]), (record.step.next_obs, record.obs)
    )
    env.require_inside(following, lambda row: place(row, 1))
    if begun.size:
        env.require_inside(
            jax.tree.map(lambda x: x[begun], first), lambda row: place(int(begun[row]), 0)
        )


class Pending(NamedTuple):
    """The unfinished step of each environment, ``[E, ...]``.

    Attributes:
        obs: Observation of the policy.
        first: Whether it began an episode.
        action: Action of the policy.
        extras: Extras of the decision.
    """

    obs: Any
    first: Any
    action: Any
    extras: Any


def arrival_sample_fragment(
    env: HostEnv, agent: BoundAgent, rollout_shapes: Transition
) -> Fragment:
    """Build the fragment ``sample`` for environments that are stepped in the order of their arrival
    (``recv_any``).

    Args:
        env: Host environments.
        agent: Algorithm bound to them.
        rollout_shapes: Shapes of a rollout, ``[T, E, ...]``.

    Returns:
        The fragment.
    """
    num_envs, batch, length = env.num_envs, env.num_envs // env.num_groups, agent.rollout_length
    act = jax.jit(make_act(agent))
    assert env.send_to is not None and env.recv_any is not None
    send_to, recv_any = env.send_to, env.recv_any

    def step(private: HostSamplerState, inputs: Channels, hyper: Any, key: jax.Array) -> tuple:
        start = begin(env, agent, private, key)
        # Copied, because the tick's input state must not change.
        obs, first, carry = jax.tree.map(
            np.array, jax.device_get((start.obs, start.first, start.carry))
        )
        action, decided = jax.tree.map(
            lambda s: np.zeros(s.shape[1:], s.dtype), (rollout_shapes.action, rollout_shapes.extras)
        )
        now = Pending(obs=obs, first=first, action=action, extras=decided)
        recording = Recording(length, num_envs, 0)
        extras = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), rollout_shapes.extras)
        taken, calls = np.zeros(num_envs, np.int32), 0

        def ask(indices: np.ndarray) -> None:
            nonlocal calls
            # one compiled program for any number of environments
            padded = np.resize(indices, batch)
            batch_inputs = jax.tree.map(lambda x: x[padded], (carry, now.obs, now.first))
            action, after, more = jax.device_get(act(inputs, *batch_inputs, key, hyper, calls))
            calls += 1
            decided = jax.tree.map(lambda x: x[: len(indices)], (after, action, more))
            _set((carry, now.action, now.extras), indices, decided)
            send_to(decided[1], indices)

        for group in range(env.num_groups):
            ask(np.arange(group * batch, (group + 1) * batch))
        while (taken < length).any():
            indices, result = recv_any()
            at = taken[indices]
            current = jax.tree.map(lambda x, indices=indices: x[indices], now)
            recording.put(
                at, indices, HostRecord(current.obs, current.first, current.action, result)
            )
            _set(extras.decision, (at, indices), current.extras.decision)
            begins = at % agent.experience.memory_every == 0
            starts = (at // agent.experience.memory_every)[begins], indices[begins]
            _set(
                extras.memory,
                starts,
                jax.tree.map(lambda x, begins=begins: x[begins], current.extras.memory),
            )
            _set((now.obs, now.first), indices, (result.obs, result.terminated | result.truncated))
            taken[indices] += 1
            going = indices[taken[indices] < length]
            if going.size:
                ask(going)
        require_inside(env, recording.arrays)
        rollout, metrics = as_rollout(recording.arrays, extras, kinds=env.spec.metrics)
        steps = np.int32(env.steps() % MAX_STEPS)
        return HostSamplerState(steps, now.obs, now.first, carry), {"rollout": rollout}, metrics

    return host_fragment(env, agent, rollout_shapes, step)


def _set(arrays: PyTree, at: Any, values: PyTree) -> None:
    for whole, part in zip(jax.tree.leaves(arrays), jax.tree.leaves(values), strict=True):
        whole[at] = part
