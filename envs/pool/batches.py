"""Options of a pool, and groups of its environments in the parent: rows and seeds, actions, results."""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from jaxrl_fast.core import EnvSpec
from jaxrl_fast.envs.host_env import HostEnv, HostStep
from jaxrl_fast.envs.pool.codec import Arrays
from jaxrl_fast.envs.pool.worker import RESET


class Groups:
    """What all pools share: equal ``groups`` of environments, lines for the user, and refusals. ``title``: of the pool,
    for messages; ``steps``: since the last reset. A pool adds ``reset``, ``send``, ``recv`` and ``close``, as those of
    `HostEnv`."""

    def __init__(self, title: str, num_envs: int, num_groups: int, reason: str = "") -> None:
        self.title, self.groups = title, split(slice(0, num_envs), num_groups)
        self.lines = [reason] if reason else []
        self.steps, self.is_open = 0, True

    def host_env(self: Any, spec: EnvSpec, num_envs: int, another: Callable[[int], HostEnv], **more: Any) -> HostEnv:
        """The pool as ``num_envs`` environments of each seed; ``more``: other fields of `HostEnv`."""
        own = (self.reset, self.send, self.recv, lambda: self.steps, self.events, another, self.close)
        return HostEnv(spec, num_envs, len(self.groups), *own, **more)

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
            raise ValueError(f"recv({group}): nothing was sent to group {group} since it was last received")


def env_seed(seed: int, index: int, restarts: int = 0) -> int:
    """The seed of one environment: of 31 bits, since some games take no more."""
    return int(np.random.SeedSequence(seed, spawn_key=(index, restarts)).generate_state(1)[0]) >> 1


def row_seeds(
    seeds: Sequence[int], rows: Iterable[int], *, num_rows: int, num_groups: int, restarts: int = 0
) -> list[int]:
    """The seeds of the environments in ``rows``, each from the seed of its slice and its index among the environments
    of that slice. Every group holds a part of each slice, one slice after the other."""
    part = num_rows // (num_groups * len(seeds))
    place = ((*divmod(row // part, len(seeds)), row % part) for row in rows)
    return [env_seed(seeds[which], group * part + i, restarts) for group, which, i in place]


def check_seeds(seed: int | Sequence[int], num_seeds: int) -> tuple[int, ...]:
    """One seed for each slice. Raises ValueError where their number is wrong, or one is no whole number from 0 on."""
    seeds = tuple(seed) if isinstance(seed, list | tuple) else (seed,)
    for one in seeds:
        if isinstance(one, bool) or not isinstance(one, int | np.integer) or one < 0:
            raise ValueError(f"seed={one}: write a whole number of at least 0")
    if len(seeds) != num_seeds:
        raise ValueError(f"{len(seeds)} seeds for a pool of {num_seeds} slices: write one for each")
    return tuple(map(int, seeds))


def split(rows: slice, parts: int, turn: int = 0) -> list[slice]:
    """``parts`` slices of ``rows``, as equal as possible; the longer ones are number ``turn`` and those after it."""
    count = rows.stop - rows.start
    sizes = [count // parts + ((part - turn) % parts < count % parts) for part in range(parts)]
    return [slice(*pair) for pair in pairwise(accumulate(sizes, initial=rows.start))]


def check_groups(num_envs: int, num_groups: int) -> None:
    """Raises ValueError where ``num_envs`` do not make ``num_groups`` equal groups."""
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
    """Copy actions ``[n, ...]`` into ``rows``. Raises ValueError where they are of another shape."""
    wanted = (rows.stop - rows.start, *arrays.action.shape[1:])
    if np.shape(actions) != wanted:
        raise ValueError(
            f"actions of shape {list(np.shape(actions))} were sent: these environments take {list(wanted)}"
        )
    arrays.action[rows] = actions


def gather(arrays: Arrays, rows: slice) -> HostStep:
    """The results of one step of ``rows``, copied and read-only; where no episode ended, ``next_obs`` is ``obs``."""
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
    return HostStep(obs, next_obs, facts["reward"], terminated, truncated, returns, lengths)


def just_reset(obs: np.ndarray) -> HostStep:
    """A `HostStep` of environments that have not been stepped since their reset."""
    count = len(obs)
    nothing, no = np.zeros(count, np.float32), np.zeros(count, bool)
    return HostStep(obs, obs, nothing, no, no, nothing, np.zeros(count, np.int32))


def mark_lost(step: HostStep, part: slice, known: HostStep, known_part: slice) -> HostStep:
    """``step`` with the episodes of ``part``, whose worker was lost, ended: truncated, with the observations and totals
    last received (``known``). The step under way does not count."""
    step = HostStep(*(array.copy() for array in step))
    ended = (known.terminated | known.truncated)[known_part]
    step.next_obs[part] = known.obs[known_part]
    step.reward[part], step.terminated[part], step.truncated[part] = 0.0, False, True
    step.episode_return[part] = np.where(ended, 0.0, known.episode_return[known_part])
    step.episode_length[part] = np.where(ended, 0, known.episode_length[known_part])
    return sealed(step)


def sealed(step: HostStep) -> HostStep:
    """The same arrays, read-only."""
    for array in step:
        array.setflags(write=False)
    return step


def joined(steps: list[HostStep]) -> HostStep:
    """The steps of several shares as one."""
    return HostStep(*map(np.concatenate, zip(*steps, strict=True)))


class PoolOptions(NamedTuple):
    """How environments on the host are stepped. Only ``num_groups``, ``order``, ``backend`` and ``bridge`` can change a
    number.

    - ``workers``: worker processes; 0: step in this process; ``"auto"``: measure a few steps and choose.
    - ``num_groups``: groups of environments that take turns: one is stepped while another's actions are computed.
    - ``order``: ``"fixed"``, or ``"arrival"``: whoever is ready first, for environments of very uneven speed; the same
      seed then no longer gives the same run.
    - ``step_timeout_s``: a worker that does not answer for so many seconds is restarted.
    - ``backend``: ``"workers"``, or ``"envpool"``: EnvPool's own environments.
    - ``bridge``: ``"host"``: called between compiled programs; ``"callback"``: called from within the one program of a
      run, on one device.
    """

    workers: int | str = "auto"
    num_groups: int = 2
    order: str = "fixed"
    step_timeout_s: float = 60.0
    backend: str = "workers"
    bridge: str = "host"


def check_options(options: PoolOptions, num_envs: int, num_seeds: int = 1) -> None:
    """Raises ValueError, in one line, where an option does not fit another, or ``num_envs`` environments per seed."""
    check_groups(num_envs, options.num_groups)
    if type(num_seeds) is not int or num_seeds < 1:
        raise ValueError(f"num_seeds={num_seeds}: write a whole number of at least 1")
    workers, size = options.workers, num_envs * num_seeds // options.num_groups
    if workers != "auto" and not (type(workers) is int and workers >= 0):
        raise ValueError(f"pool.workers={workers}: write auto, 0 (in this process) or a number of processes")
    if workers != "auto" and int(workers) > size:
        raise ValueError(f"pool.workers={workers}: a group has {size} environments: write at most {size}")
    if options.order not in ("fixed", "arrival"):
        raise ValueError(f"pool.order={options.order}: write fixed or arrival")
    if options.order == "arrival" and num_seeds > 1:
        raise ValueError(f"num_seeds={num_seeds}: pool.order=arrival serves one: write pool.order=fixed")
    if options.order == "arrival" and workers == 0:
        raise ValueError("pool.order=arrival needs worker processes: write pool.workers=auto or at least 1")
    if options.order == "arrival" and workers != "auto" and size % int(workers):
        raise ValueError(f"pool.order=arrival: {workers} workers do not divide a group of {size} environments evenly")
    timeout_s = options.step_timeout_s
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s > 0:
        raise ValueError(f"pool.step_timeout_s={timeout_s}: write seconds, such as 60")
    if options.backend not in ("workers", "envpool"):
        raise ValueError(f"pool.backend={options.backend}: write workers or envpool")
    if options.bridge not in ("host", "callback"):
        raise ValueError(f"pool.bridge={options.bridge}: write host or callback")
