"""Whole rollouts in the process that steps the environments, which selects their actions, too.

Before a rollout the trainer writes parameters and noise into shared arrays; the process then makes
``T`` steps without another message. Environments are rows, group after group, and seed after seed
in a group. No JAX, except in a worker whose program NumPy cannot express.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl_fast.envs.pool.codec import Arrays
from jaxrl_fast.envs.pool.stepping import GOES_ON, HostEnvSpec, Inside, describe_failure
from jaxrl_fast.envs.rollout_plan import ActProgram, Fields, Given, RolloutPlan


def rollout_fields(fields: Fields, length: int, workers: int) -> Fields:
    """List the arrays of a rollout that do not depend on the algorithm.

    Args:
        fields: Arrays of one step (`codec.array_fields`).
        length: Steps of each environment.
        workers: Number of processes.

    Returns:
        Shapes and dtypes: ``obs [T + 1, R, ...]``; ``final_obs``, ``action`` and ``facts``
        ``[T, R, ...]``; ``first [R]`` (whether an episode begins); ``returns [R]`` and
        ``lengths [R]`` (of running episodes after the last rollout); ``goes_on [T, R]`` (ends after
        which totals continue); ``lost_at [T, R]`` (steps that were lost); ``progress [workers]``
        (steps done); ``lost [workers]`` (a step was lost); ``bytes [workers]`` (memory).
    """
    rows = fields["facts"][0]
    steps = {
        name: ((length, *shape), dtype) for name, (shape, dtype) in fields.items() if name != "seed"
    }
    shape, dtype = fields["obs"]
    of_workers = ("progress", np.int64), ("lost", bool), ("bytes", np.int64)
    return {
        **steps,
        "obs": ((length + 1, *shape), dtype),
        "first": (rows, np.dtype(bool)),
        "returns": (rows, np.dtype(np.float64)),
        "lengths": (rows, np.dtype(np.int32)),
        "goes_on": ((length, *rows), np.dtype(bool)),
        "lost_at": ((length, *rows), np.dtype(bool)),
        **{name: ((max(workers, 1),), np.dtype(kind)) for name, kind in of_workers},
    }


class RollSegment(NamedTuple):
    """Environments of a process whose actions one call selects.

    Attributes:
        rows: Their rows.
        seed: Index of their seed.
        group: Index of their group.
    """

    rows: slice
    seed: int
    group: int


def segments_of(plan_sizes: tuple[int, int, int], rows: slice, joined: bool) -> list[RollSegment]:
    """Split a process's rows into segments of one seed and, unless ``joined``, one group.

    Args:
        plan_sizes: Number of all rows, of groups and of seeds.
        rows: Rows of the process.
        joined: Whether environments of several groups may share a call. Only with one seed.

    Returns:
        The segments, none of them empty.
    """
    num_rows, num_groups, num_seeds = plan_sizes
    if joined and num_seeds == 1:
        return [RollSegment(rows, 0, 0)] if rows.stop > rows.start else []
    size = num_rows // (num_groups * num_seeds)
    segments = []
    for part in range(num_groups * num_seeds):
        segment_rows = slice(max(rows.start, part * size), min(rows.stop, (part + 1) * size))
        if segment_rows.stop > segment_rows.start:
            segments.append(RollSegment(segment_rows, part % num_seeds, part // num_seeds))
    return segments


class Actor(NamedTuple):
    """Action selection of a segment.

    Attributes:
        begin: Reads parameters and carry before a rollout.
        act: ``(t)``, selects the actions of step ``t`` and writes them.
        end: Writes the carry after a rollout.
    """

    begin: Callable[[], None]
    act: Callable[[int], None]
    end: Callable[[], None]


def make_actor(plan: RolloutPlan, shared: dict[str, np.ndarray], segment: RollSegment) -> Actor:
    """Make the action selection of a segment.

    Args:
        plan: Plan of the rollout.
        shared: Shared arrays.
        segment: Environments.

    Returns:
        The action selection.
    """
    rows, length = segment.rows, plan.length
    count = rows.stop - rows.start
    doubled = count not in plan.programs  # one environment, acting as two equal ones
    begin_program = _load(plan.programs[2 if doubled else count])
    tick, noise = list[np.ndarray](), list[np.ndarray]()
    for i, layout in enumerate(plan.given):
        whole = shared[f"given{i}"]
        (noise if layout.each_step else tick).append(_own(whole, layout, segment))
    obs = [shared["obs"][name][:, rows] for name in plan.entries] or [shared["obs"][:, rows]]
    carried = [shared[f"carry{i}"][rows] for i in range(plan.num_carry)]
    decided = [
        shared["action"][:, rows],
        *(shared[f"decision{i}"][:, rows] for i in range(plan.num_decision)),
    ]
    remembered = [shared[f"memory{i}"][:, rows] for i in range(plan.num_memory)]
    ended = shared["facts"]["terminated"][:, rows], shared["facts"]["truncated"][:, rows]
    after, stored = 1 + plan.num_carry, 1 + plan.num_carry + plan.num_decision
    axes = [layout.axis for layout in plan.given if layout.each_step] + [0] * (
        plan.num_carry + len(obs) + 1
    )
    program: Any = None
    carry: list[Any] = []

    def begin() -> None:
        nonlocal program, carry
        fixed = [layout.axis for layout in plan.given if not layout.each_step]
        program = begin_program(_doubled(tick, fixed) if doubled else tick)
        carry = [x.copy() for x in carried]

    def act(t: int) -> None:
        nonlocal carry
        first = ended[0][t - 1] | ended[1][t - 1] if t else shared["first"][rows]
        inputs = [*[x[t] for x in noise], *carry, *[x[t] for x in obs], first]
        results = (
            [result[:1] for result in program(*_doubled(inputs, axes))]
            if doubled
            else program(*inputs)
        )
        carry = results[1:after]
        for array, value in zip(decided, (results[0], *results[after:stored]), strict=True):
            array[t] = value
        if t % plan.memory_every == 0 and t // plan.memory_every < length // plan.memory_every:
            for array, value in zip(remembered, results[stored:], strict=True):
                array[t // plan.memory_every] = value

    def end() -> None:
        for array, value in zip(carried, carry, strict=True):
            array[...] = value

    return Actor(begin, act, end)


def _doubled(arrays: Sequence[np.ndarray], axes: Sequence[int | None]) -> list[np.ndarray]:
    return [
        x if axis is None else np.repeat(x, 2, axis) for x, axis in zip(arrays, axes, strict=True)
    ]


def _own(whole: np.ndarray, layout: Given, segment: RollSegment) -> np.ndarray:
    """Return a segment's part of an array that the trainer wrote."""
    if layout.axis is None:
        # With `...`, a number stays a view, which the next rollout changes.
        return (
            whole[:, segment.group, segment.seed] if layout.each_step else whole[segment.seed, ...]
        )
    part = whole[:, segment.rows] if layout.each_step else whole[segment.rows]
    return np.moveaxis(part, int(layout.each_step), int(layout.each_step) + layout.axis)


def _load(program: ActProgram) -> Callable[[Sequence[np.ndarray]], Callable[..., Sequence[Any]]]:
    """Return ``(tick) -> act``."""
    if program.source:
        scope: dict[str, Any] = {}
        exec(compile(program.source, "<action selection>", "exec"), scope)
        return lambda tick: scope["make"](np, program.constants, *tick)
    import jax

    call, cpu = (
        jax.jit(jax.export.deserialize(bytearray(program.exported)).call),
        jax.devices("cpu")[0],
    )

    def begin(tick: Sequence[np.ndarray]) -> Callable[..., Sequence[Any]]:
        on_device = jax.device_put([x.copy() for x in tick], cpu)

        def act(*inputs: Any) -> list[np.ndarray]:
            with jax.default_device(cpu):
                return [np.asarray(x) for x in call(*on_device, *inputs)]

        return act

    return begin


class RolloutSteps(NamedTuple):
    """Steps of a process's environments, written into the arrays of a rollout.

    Attributes:
        step: ``(t)``, steps all environments with the actions of step ``t``.
        lose: ``(t)``, records a step that was lost with the worker before.
    """

    step: Callable[[int], None]
    lose: Callable[[int], None]


def make_rollout_steps(
    inside: Inside,
    host_spec: HostEnvSpec,
    arrays: Arrays,
    shared: dict[str, np.ndarray],
    rows: slice,
) -> RolloutSteps:
    """Make the steps of a process's environments.

    Args:
        inside: Environments of the process and their running totals.
        host_spec: Spec of the environments.
        arrays: Arrays of one step.
        shared: Arrays of the rollout.
        rows: Rows of the process.

    Returns:
        The steps. They raise `PoolError`, too.
    """
    decode, write, kinds = host_spec.act.decode, host_spec.observe.write, host_spec.metrics
    obs, final, action, facts = (shared[name] for name in ("obs", "final_obs", "action", "facts"))
    terminations, truncations, reward_rows = (
        facts["terminated"],
        facts["truncated"],
        facts["reward"][:, rows],
    )
    going_on = shared["goes_on"]
    steps = [inside.envs[i].step for i in range(rows.start, rows.stop)]

    def step(t: int) -> None:
        rewards = list[Any]()
        views = [obs[t + 1, i, ...] for i in range(rows.start, rows.stop)]
        try:
            for step_one, row, one in zip(steps, views, decode(action[t, rows]), strict=True):
                observed, reward, terminated, truncated, info = step_one(one)
                if kinds:
                    inside.metrics.add(rows.start + len(rewards), info)
                if terminated or truncated:
                    observed = end(t, rows.start + len(rewards), observed, terminated, info)
                write(row, observed)
                rewards.append(reward)
            reward_rows[t] = rewards
        except (Exception, SystemExit) as error:
            i = min(rows.start + len(rewards), rows.stop - 1)
            raise describe_failure(
                error, host_spec.name, i, f"step {t + 1} of a rollout"
            ) from error

    def end(t: int, i: int, observed: Any, terminated: Any, info: dict) -> Any:
        (terminations if terminated else truncations)[t, i] = True
        goes_on = GOES_ON in info
        if goes_on:
            going_on[t, i] = True
        write(final[t, i, ...], observed)
        if kinds and not goes_on:
            inside.metrics.end(i)
            facts["metrics"][t, i] = arrays.facts["metrics"][i]
        return inside.envs[i].reset()[0]

    def lose(t: int) -> None:
        obs[t + 1, rows] = arrays.obs[rows]
        final[t, rows] = obs[t, rows]
        truncations[t, rows], terminations[t, rows], reward_rows[t] = True, False, 0.0
        going_on[t, rows], shared["lost_at"][t, rows] = False, True

    return RolloutSteps(step, lose)


def make_roll(
    inside: Inside,
    host_spec: HostEnvSpec,
    arrays: Arrays,
    plan: RolloutPlan,
    shared: dict[str, np.ndarray],
    place: Any,
) -> Callable[[], None]:
    """Make the function that steps a process's environments through a rollout.

    Args:
        inside: Environments of the process and their running totals.
        host_spec: Spec of the environments.
        arrays: Arrays of one step; ``obs`` holds the last observations before and after a rollout.
        plan: Plan of the rollout.
        shared: Arrays of the rollout.
        place: ``(rows, index)`` of the process.

    Returns:
        The function. It goes on after the steps that ``progress`` counts; if a step was ``lost``,
        that step is recorded as a truncation.
    """
    rows, index = place
    joined = all(layout.axis is not None or not layout.each_step for layout in plan.given)
    sizes = len(arrays.seed), plan.num_groups, plan.num_seeds
    actors = [make_actor(plan, shared, segment) for segment in segments_of(sizes, rows, joined)]
    recorded = make_rollout_steps(inside, host_spec, arrays, shared, rows)
    facts, progress, lost = shared["facts"][:, rows], shared["progress"], shared["lost"]
    for actor in actors if any(program.exported for program in plan.programs.values()) else ():
        actor.begin()  # compiles now, without the time limit of a step
        actor.act(0)

    def roll() -> None:
        totals = (shared["returns"], inside.returns), (shared["lengths"], inside.lengths)
        for stored, now in totals if lost[index] else ():
            now[rows] = stored[rows]
        with np.errstate(all="ignore"):
            for actor in actors:
                actor.begin()
            for t in range(int(progress[index]), plan.length):
                for actor in actors:
                    actor.act(t)
                (recorded.lose if lost[index] else recorded.step)(t)
                lost[index] = False
                progress[index] = t + 1
            for actor in actors:
                actor.end()
            add_up_rollout(
                facts, shared["goes_on"][:, rows], inside.returns[rows], inside.lengths[rows]
            )
        facts["episode_length"][shared["lost_at"][:, rows]] -= 1  # this step was not made
        for stored, now in totals:
            stored[rows] = now[rows]
        if host_spec.clip_rewards:
            np.sign(facts["reward"], out=facts["reward"])
        arrays.obs[rows] = shared["obs"][plan.length, rows]

    return roll


def add_up_rollout(
    facts: np.ndarray, goes_on: np.ndarray, returns: np.ndarray, lengths: np.ndarray
) -> None:
    """Write the totals of the episodes that ended in a rollout.

    Args:
        facts: Facts ``[T, n]``; ``episode_return`` and ``episode_length``, which are 0, are written
            at ends.
        goes_on: Ends after which the totals continue, bool ``[T, n]``.
        returns: Running returns, float64 ``[n]``, changed in place.
        lengths: Running lengths in steps, int32 ``[n]``, changed in place.
    """
    reward = facts["reward"]
    sums = np.cumsum(reward if reward.ndim == 2 else reward.sum(axis=2), axis=0, dtype=np.float64)
    sums += returns
    counts = lengths + np.arange(1, len(facts) + 1, dtype=np.int32)[:, None]
    over = (facts["terminated"] | facts["truncated"]) & ~goes_on
    column, t = np.nonzero(over.T)
    ends, ended_at = sums[t, column], counts[t, column]
    again = (
        np.concatenate([[False], column[1:] == column[:-1]]) if len(column) else np.zeros(0, bool)
    )
    before = np.concatenate([[0.0], ends[:-1]]) if len(column) else ends
    before_count = np.concatenate([[0], ended_at[:-1]]) if len(column) else ended_at
    facts["episode_return"][t, column] = ends - np.where(again, before, 0.0)
    facts["episode_length"][t, column] = ended_at - np.where(again, before_count, 0)
    returns[:], lengths[:] = sums[-1], counts[-1]
    returns[column] = sums[-1, column] - ends
    lengths[column] = counts[-1, column] - ended_at


def begin_rollout(shared: dict[str, np.ndarray], arrays: Arrays) -> None:
    """Prepare the shared arrays for a rollout.

    Args:
        shared: Arrays of the rollout, changed in place.
        arrays: Arrays of one step, with the last observations.
    """
    for name in ("facts", "goes_on", "lost_at"):
        shared[name].fill(0)
    shared["progress"][:], shared["lost"][:] = 0, False
    shared["obs"][0] = arrays.obs


def rolled_by(workers: int, plan: RolloutPlan) -> str:
    """Describe where actions are selected.

    Args:
        workers: Number of worker processes; 0 for the parent process.
        plan: Plan of the rollout.

    Returns:
        A line for the user.
    """
    where = f"{workers} worker process{'es' if workers > 1 else ''}" if workers else "this process"
    by = "NumPy" if all(program.source for program in plan.programs.values()) else "JAX"
    return f"whole rollouts of {plan.length} steps in {where}, actions by {by}"
