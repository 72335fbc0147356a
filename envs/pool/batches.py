"""Options of a pool, and groups of its environments in the parent: rows, seeds, actions and
results.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from jaxrl_fast.core import EnvSpec
from jaxrl_fast.envs.host_env import HostEnv, HostStep
from jaxrl_fast.envs.pool.codec import Arrays
from jaxrl_fast.envs.pool.worker import RESET


class Groups:
    """Base class of all pools: equal groups of environments, lines for the user, and checks of
    calls.

    A pool adds ``reset``, ``send``, ``recv`` and ``close`` of `HostEnv`.

    Attributes:
        title: Name of the pool in messages.
        groups: Rows of each group.
        lines: Lines for the user that were not read yet.
        steps: Steps since the last reset, over all environments.
        is_open: Whether the pool was not closed.
    """

    def __init__(self, title: str, num_envs: int, num_groups: int, reason: str = "") -> None:
        self.title, self.groups = title, split(slice(0, num_envs), num_groups)
        self.lines = [reason] if reason else []
        self.steps, self.is_open = 0, True

    def host_env(
        self: Any, spec: EnvSpec, num_envs: int, another: Callable[[int], HostEnv], **more: Any
    ) -> HostEnv:
        """Return the pool as a `HostEnv` of ``num_envs`` environments per seed, with other fields
        in ``more``.
        """
        return HostEnv(
            spec=spec,
            num_envs=num_envs,
            num_groups=len(self.groups),
            reset=self.reset,
            send=self.send,
            recv=self.recv,
            steps=lambda: self.steps,
            events=self.events,
            another=another,
            close=self.close,
            **more,
        )

    def note(self, line: str) -> None:
        self.lines.append(line)

    def events(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines

    def require_open(self) -> None:
        if not self.is_open:
            raise ValueError(f"{self.title} is closed: make another")

    def require_idle(self, group: int, in_flight: bool) -> None:
        if not 0 <= group < len(self.groups):
            raise ValueError(f"group {group}: there are groups 0 to {len(self.groups) - 1}")
        if in_flight:
            raise ValueError(f"send to group {group}: its last step is still to be received")

    def require_sent(self, group: int, in_flight: bool) -> None:
        if not in_flight:
            raise ValueError(
                f"recv({group}): nothing was sent to group {group} since it was last received"
            )


def env_seed(seed: int, index: int, restarts: int = 0) -> int:
    """Derive the seed of one environment.

    Args:
        seed: Seed of the run.
        index: Index of the environment.
        restarts: How often its worker was restarted.

    Returns:
        A seed of 31 bits, the most that some games accept.
    """
    return int(np.random.SeedSequence(seed, spawn_key=(index, restarts)).generate_state(1)[0]) >> 1


def row_seeds(
    seeds: Sequence[int], rows: Iterable[int], *, num_rows: int, num_groups: int, restarts: int = 0
) -> list[int]:
    """Derive the seeds of several environments from their slice's seed and their index in the
    slice.

    Every group holds an equal part of each slice, one slice after the other.

    Args:
        seeds: One seed per slice.
        rows: Rows of the environments.
        num_rows: Number of all rows.
        num_groups: Number of groups.
        restarts: How often the worker of these rows was restarted.

    Returns:
        One seed per row.
    """
    part = num_rows // (num_groups * len(seeds))
    place = ((*divmod(row // part, len(seeds)), row % part) for row in rows)
    return [env_seed(seeds[which], group * part + i, restarts) for group, which, i in place]


def check_seeds(seed: int | Sequence[int], num_seeds: int) -> tuple[int, ...]:
    """Check the seeds of a pool.

    Args:
        seed: One seed, or one per slice.
        num_seeds: Number of slices.

    Returns:
        One seed per slice.

    Raises:
        ValueError: The number of seeds is wrong, or a seed is not a whole number of at least 0.
    """
    seeds = tuple(seed) if isinstance(seed, list | tuple) else (seed,)
    for one in seeds:
        if isinstance(one, bool) or not isinstance(one, int | np.integer) or one < 0:
            raise ValueError(f"seed={one}: write a whole number of at least 0")
    if len(seeds) != num_seeds:
        raise ValueError(f"{len(seeds)} seeds for a pool of {num_seeds} slices: write one for each")
    return tuple(map(int, seeds))


def split(rows: slice, parts: int, turn: int = 0) -> list[slice]:
    """Split rows into slices of as equal length as possible.

    Args:
        rows: Rows to split.
        parts: Number of slices.
        turn: Index of the first of the longer slices.

    Returns:
        The slices, in order.
    """
    count = rows.stop - rows.start
    sizes = [count // parts + ((part - turn) % parts < count % parts) for part in range(parts)]
    return [slice(*pair) for pair in pairwise(accumulate(sizes, initial=rows.start))]


def common_rows(a: slice, b: slice) -> slice:
    """Return the rows that two slices have in common.

    Args:
        a: Rows.
        b: Other rows.

    Returns:
        Their common rows, which may be none.
    """
    start = max(a.start, b.start)
    return slice(start, max(start, min(a.stop, b.stop)))


def check_groups(num_envs: int, num_groups: int) -> None:
    """Check that environments can be split into equal groups.

    Args:
        num_envs: Number of environments.
        num_groups: Number of groups.

    Raises:
        ValueError: A number is not positive, there are too many groups, or ``num_envs`` is not
            divisible by ``num_groups``.
    """
    for what, value in (("num_envs", num_envs), ("pool.num_groups", num_groups)):
        if type(value) is not int or value < 1:
            raise ValueError(f"{what}={value}: write a whole number of at least 1")
    if num_groups > RESET:
        raise ValueError(f"pool.num_groups={num_groups}: write at most {RESET}")
    if num_envs % num_groups:
        up = num_envs + num_groups - num_envs % num_groups
        raise ValueError(
            f"num_envs={num_envs} does not divide into pool.num_groups={num_groups} equal groups: "
            f"write num_envs={up} or pool.num_groups=1"
        )


def put_actions(arrays: Arrays, rows: slice, actions: np.ndarray) -> None:
    """Copy actions into the shared arrays.

    Args:
        arrays: Shared arrays.
        rows: Rows to write.
        actions: Actions ``[n, ...]``.

    Raises:
        ValueError: The actions have another shape.
    """
    wanted = (rows.stop - rows.start, *arrays.action.shape[1:])
    if np.shape(actions) != wanted:
        raise ValueError(
            f"actions of shape {list(np.shape(actions))} were sent: these environments take {list(wanted)}"
        )
    arrays.action[rows] = actions


def gather(arrays: Arrays, rows: slice) -> HostStep:
    """Copy the results of one step out of the shared arrays.

    Args:
        arrays: Shared arrays.
        rows: Rows to read.

    Returns:
        Read-only results. ``next_obs`` is ``obs`` if no episode ended.
    """
    obs = next_obs = arrays.obs[rows].copy()
    facts = arrays.facts[rows].copy()
    facts.setflags(write=False)
    terminated, truncated = facts["terminated"], facts["truncated"]
    ended = terminated | truncated
    if ended.any():
        next_obs = obs.copy()
        next_obs[ended] = arrays.final_obs[rows][ended]
        next_obs.setflags(write=False)
    obs.setflags(write=False)
    returns, lengths = facts["episode_return"], facts["episode_length"]
    metrics = () if arrays.metrics is None else facts["metrics"]
    return HostStep(
        obs=obs,
        next_obs=next_obs,
        reward=facts["reward"],
        terminated=terminated,
        truncated=truncated,
        episode_return=returns,
        episode_length=lengths,
        metrics=metrics,
    )


def just_reset(obs: np.ndarray) -> HostStep:
    """Return a `HostStep` of environments that were not stepped since their reset.

    Args:
        obs: First observations, ``[n, ...]``.

    Returns:
        Results with zero rewards and lengths.
    """
    count = len(obs)
    nothing, no = np.zeros(count, np.float32), np.zeros(count, bool)
    return HostStep(
        obs=obs,
        next_obs=obs,
        reward=nothing,
        terminated=no,
        truncated=no,
        episode_return=nothing,
        episode_length=np.zeros(count, np.int32),
    )


def mark_lost(step: HostStep, part: slice, last: HostStep, last_part: slice) -> HostStep:
    """Truncate the episodes of environments whose worker was lost.

    The running step of these environments is not counted.

    Args:
        step: Results of the step.
        part: Rows in ``step`` of the lost environments.
        last: Results that were received last from these environments.
        last_part: Rows in ``last`` of the lost environments.

    Returns:
        ``step`` with the observations and totals of ``last`` in the lost rows, read-only.
    """
    step = _each(np.copy, step)
    ended = (last.terminated | last.truncated)[last_part]
    step.next_obs[part] = last.obs[last_part]
    step.reward[part], step.terminated[part], step.truncated[part] = 0.0, False, True
    step.episode_return[part] = np.where(ended, 0.0, last.episode_return[last_part])
    step.episode_length[part] = np.where(ended, 0, last.episode_length[last_part])
    if not isinstance(step.metrics, tuple):
        step.metrics[part] = np.nan  # the worker had them
    return sealed(step)


def _each(function: Callable[..., np.ndarray], *steps: HostStep) -> HostStep:
    """Apply a function to each array of a step, or to the arrays of a field in several steps."""
    parts: Any = zip(*steps, strict=True)
    fields: Any = [() if isinstance(arrays[0], tuple) else function(*arrays) for arrays in parts]
    return HostStep._make(fields)


def sealed(step: HostStep) -> HostStep:
    """Make the arrays of a step read-only, in place.

    Args:
        step: Results of a step.

    Returns:
        ``step``.
    """
    for array in step:
        if not isinstance(array, tuple):
            array.setflags(write=False)
    return step


def joined(steps: list[HostStep]) -> HostStep:
    """Concatenate the steps of several shares.

    Args:
        steps: Results of each share.

    Returns:
        One step.
    """
    return _each(lambda *arrays: np.concatenate(arrays), *steps)


class PoolOptions(NamedTuple):
    """How environments are stepped on the host. ``workers`` and ``step_timeout_s`` do not change
    the results of a run.

    Attributes:
        workers: Number of worker processes; 0 steps in the parent process, ``"auto"`` measures a
            few steps and selects.
        num_groups: Groups of environments that take turns: one is stepped while another's actions
            are computed. None for `default_groups`.
        order: ``"fixed"``, or ``"arrival"``, which serves the environments that are ready first. It
            is for environments of very uneven speed; the same seed then no longer gives the same
            run.
        step_timeout_s: A worker that does not answer within this time, in seconds, is restarted.
        backend: ``"workers"``, or ``"envpool"`` for EnvPool's environments.
        bridge: ``"host"``: called between compiled programs. ``"callback"``: called from within the
            single program of a run, on one device. ``"worker"``: the processes of the environments
            select the actions of whole rollouts.
        out_of_space: ``"stop"``: an observation outside of its space stops the run. ``"count"``:
            they are only counted.
    """

    workers: int | str = "auto"
    num_groups: int | None = None
    order: str = "fixed"
    step_timeout_s: float = 60.0
    backend: str = "workers"
    bridge: str = "host"
    out_of_space: str = "stop"


def default_groups(
    num_envs: int, num_seeds: int = 1, workers: int | str | None = "auto", order: str = "fixed"
) -> int:
    """Return the default number of groups: 2 if these can be equal and have an environment for each
    worker, else 1.

    Args:
        num_envs: Number of environments per seed.
        num_seeds: Number of seeds.
        workers: Number of workers, or None or ``"auto"`` if it follows the groups.
        order: As in `PoolOptions`; workers of ``"arrival"`` have equal shares.

    Returns:
        A divisor of ``num_envs``.
    """
    size, number = num_envs * num_seeds // 2, workers if isinstance(workers, int) else 0
    fits = number <= size and not (order == "arrival" and number > 0 and size % number)
    return 2 if num_envs % 2 == 0 and fits else 1


def check_options(options: PoolOptions, num_envs: int, num_seeds: int = 1) -> PoolOptions:
    """Check the options of a pool, and fill in the number of groups.

    Args:
        options: Options of the pool.
        num_envs: Number of environments per seed.
        num_seeds: Number of seeds.

    Returns:
        The options.

    Raises:
        ValueError: An option is out of range, or contradicts another option or the number of
            environments.
    """
    if type(num_seeds) is not int or num_seeds < 1:
        raise ValueError(f"num_seeds={num_seeds}: write a whole number of at least 1")
    if options.num_groups is None:
        check_groups(num_envs, 1)
        options = options._replace(
            num_groups=default_groups(num_envs, num_seeds, options.workers, options.order)
        )
    assert options.num_groups is not None
    check_groups(num_envs, options.num_groups)
    _check_choices(options)
    group_size = num_envs * num_seeds // options.num_groups
    if options.bridge == "worker":
        group_size *= options.num_groups  # workers share the environments of all groups
    _check_workers(options.workers, group_size)
    if options.order == "arrival":
        _check_arrival(options, num_seeds, group_size)
    if options.backend == "envpool" and options.bridge == "worker":
        raise ValueError(
            "pool.bridge=worker needs environments in Python: write pool.backend=workers"
        )
    return options


def _check_choices(options: PoolOptions) -> None:
    allowed = {
        "order": ("fixed", "arrival"),
        "backend": ("workers", "envpool"),
        "bridge": ("host", "callback", "worker"),
        "out_of_space": ("stop", "count"),
    }
    for name, choices in allowed.items():
        value = getattr(options, name)
        if value not in choices:
            *others, last = choices
            raise ValueError(f"pool.{name}={value}: write {', '.join(others)} or {last}")
    timeout_s = options.step_timeout_s
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s > 0:
        raise ValueError(f"pool.step_timeout_s={timeout_s}: write seconds, such as 60")


def _check_workers(workers: Any, group_size: int) -> None:
    if workers == "auto":
        return
    if not (type(workers) is int and workers >= 0):
        raise ValueError(
            f"pool.workers={workers}: write auto, 0 (in this process) or a number of processes"
        )
    if workers > group_size:
        raise ValueError(
            f"pool.workers={workers}: a group has {group_size} environments: "
            f"write at most {group_size}"
        )


def _check_arrival(options: PoolOptions, num_seeds: int, group_size: int) -> None:
    if options.bridge == "worker":
        raise ValueError(
            "pool.order=arrival serves single steps, and pool.bridge=worker whole rollouts: "
            "leave one out"
        )
    if num_seeds > 1:
        raise ValueError(
            f"num_seeds={num_seeds}: pool.order=arrival serves one: write pool.order=fixed"
        )
    if options.workers == 0:
        raise ValueError(
            "pool.order=arrival needs worker processes: write pool.workers=auto or at least 1"
        )
    if options.workers != "auto" and group_size % int(options.workers):
        raise ValueError(
            f"pool.order=arrival: {options.workers} workers do not divide a group of "
            f"{group_size} environments evenly"
        )
