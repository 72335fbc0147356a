"""`HostEnv` of Gymnasium environments: options, the choice between processes and this one, and stepping in this one."""

import os
import time
from collections.abc import Sequence
from typing import NamedTuple

import gymnasium
import numpy as np

from envs.pool.batches import check_groups, check_seeds, gather, put_actions, row_seeds, split
from envs.pool.codec import sample
from envs.pool.processes import make_workers
from envs.pool.stepping import World, explain, layout, make_stepper, place, size_bytes
from jaxrl_fast.core import EnvSpec
from jaxrl_fast.host_env import HostEnv, HostStep

HERE_S, WAKE_UP_S = 20e-6, 40e-6
"""What a batch costs beside its steps, in this process and by workers (experiments/pool.py measures it)."""
DECISION_S = 250e-6
"""What computing the actions of a group costs this process at the least, which takes a core."""
COLD = 1.5
"""How much longer both take on a core, or in turn, where each finds its caches used by the other. From PPO's rates with
0, 1 and 2 workers on 2 cores, 4 to 64 environments of CartPole, Pendulum and HalfCheetah."""
MEASURE_S, MEASURE_STEPS, CHUNK = 0.05, 1000, 20
"""How long and how often a step is measured; the median over chunks leaves out what other programs took."""


class PoolOptions(NamedTuple):
    """How environments are stepped. Only ``num_groups``, ``order``, ``backend`` and ``bridge`` can change a number.

    ``workers``: processes; 0 steps in this one; ``"auto"`` measures a few steps and chooses. ``num_groups`` groups of
    environments take turns, so that one is stepped while the other's actions are computed. ``order="arrival"`` serves
    what is ready first, for environments of very uneven speed: the same seed then no longer gives the same run. A
    worker that is silent for ``step_timeout_s`` is started anew. ``backend="envpool"``: EnvPool's own environments.
    ``bridge="host"``: a fragment of the graph that is called between compiled programs; ``"callback"``: called from
    within the one program of a run, on one device.
    """

    workers: int | str = "auto"
    num_groups: int = 2
    order: str = "fixed"
    step_timeout_s: float = 60.0
    backend: str = "workers"
    bridge: str = "host"


def check_options(options: PoolOptions, num_envs: int, num_seeds: int = 1) -> None:
    """Raises ValueError, in one line, where an option makes no pool of ``num_envs`` environments for each seed."""
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


def make_pool(world: World, spec: EnvSpec, *, num_envs: int, num_seeds: int, options: PoolOptions) -> HostEnv:
    """``num_envs`` environments for each of ``num_seeds``, stepped as ``options`` say.

    Raises:
        ValueError: an option is wrong, or the environments cannot be sent to other processes.
    """
    check_options(options, num_envs, num_seeds)
    num_rows = num_envs * num_seeds
    by_arrival, reason = options.order == "arrival", ""
    workers = options.workers
    if workers == "auto":
        workers, reason = _choose(world, num_rows // options.num_groups, options)
    if by_arrival:
        reason = f"{reason}{'; ' if reason else ''}pool.order=arrival: the same seed does not give the same run"
    if workers == 0:
        return in_process(
            world, spec, num_envs=num_rows, num_groups=options.num_groups, num_seeds=num_seeds, reason=reason
        )
    return make_workers(
        world, spec, num_envs=num_rows, num_groups=options.num_groups, num_seeds=num_seeds, num_workers=int(workers),
        reason=reason,
        step_timeout_s=options.step_timeout_s, by_arrival=by_arrival,
        another=lambda num_envs: in_process(world, spec, num_envs=num_envs),
    )  # fmt: skip


def in_process(
    world: World, spec: EnvSpec, *, num_envs: int, num_groups: int = 1, num_seeds: int = 1, reason: str = ""
) -> HostEnv:
    """``num_envs`` environments over all seeds, stepped one after another in this process, a group when it is received.

    Raises:
        ValueError: the groups do not divide the environments.
    """
    check_groups(num_envs, num_groups)
    pool = _InProcess(world, num_envs, num_groups, num_seeds, reason)
    return HostEnv(
        spec, num_envs // num_seeds, num_groups, pool.reset, pool.send, pool.recv, lambda: pool.steps, pool.events,
        lambda num_envs: in_process(world, spec, num_envs=num_envs), pool.close, num_seeds=num_seeds, overlaps=False,
    )  # fmt: skip


class _InProcess:
    def __init__(self, world: World, num_envs: int, num_groups: int, num_seeds: int, reason: str) -> None:
        fields = layout(num_envs, world.observe, world.act)
        self.arrays = place(fields, np.zeros(size_bytes(fields), np.uint8))
        self.stepper = make_stepper(world, self.arrays, range(num_envs))
        self.groups = split(slice(0, num_envs), num_groups)
        self.num_seeds = num_seeds
        self.in_flight: set[int] = set()
        self.told = [reason] if reason else []
        self.name, self.steps, self.is_open = world.name, 0, True

    def reset(self, seed: int | Sequence[int]) -> np.ndarray:
        self._require_open()
        seeds, self.steps, num_rows = check_seeds(seed, self.num_seeds), 0, len(self.arrays.seed)
        self.in_flight.clear()
        self.arrays.seed[:] = row_seeds(seeds, range(num_rows), num_rows=num_rows, num_groups=len(self.groups))
        self.stepper.reset()
        return self.arrays.obs.copy()

    def send(self, actions: np.ndarray, group: int) -> None:
        self._require_open()
        if not 0 <= group < len(self.groups):
            raise ValueError(f"group {group}: there are groups 0 to {len(self.groups) - 1}")
        if group in self.in_flight:
            raise ValueError(f"send to group {group}: its last step is still to be received")
        put_actions(self.arrays, self.groups[group], actions)
        self.in_flight.add(group)

    def recv(self, group: int) -> HostStep:
        self._require_open()
        if group not in self.in_flight:
            raise ValueError(f"recv({group}): nothing was sent to group {group} since it was last received")
        rows = self.groups[group]
        self.in_flight.discard(group)
        self.stepper.step(rows)
        self.steps += rows.stop - rows.start
        return gather(self.arrays, rows)

    def events(self) -> list[str]:
        told, self.told = self.told, []
        return told

    def close(self) -> None:
        self.is_open = False
        self.stepper.close()

    def _require_open(self) -> None:
        if not self.is_open:
            raise ValueError(f"the pool of {self.name} is closed: make another")


def _choose(world: World, group_size: int, options: PoolOptions) -> tuple[int, str]:
    """The number of workers, and why: what is expected to step all environments once, actions included, the soonest."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if options.order == "arrival":
        workers = max(n for n in range(1, min(cores, group_size) + 1) if group_size % n == 0)
        return workers, f"{world.name} is stepped by {_processes(workers)}"
    step_s = step_cost_s(world)
    took_s = turns_s(cores, group_size, step_s, options)
    best = min(took_s, key=lambda n: took_s[n])
    by = f"by {_processes(best)}" if best else "in this process"
    others = ", ".join(f"{1e3 * s:.2g} ms {f'by {n}' if n else 'here'}" for n, s in took_s.items() if n != best)
    return best, (
        f"{world.name} is stepped {by}: a step takes {1e6 * step_s:.2g} µs, one of all environments and its actions "
        f"about {1e3 * took_s[best]:.2g} ms ({others or 'there is one core'})"
    )


def turns_s(cores: int, group_size: int, step_s: float, options: PoolOptions) -> dict[int, float]:
    """Workers -> seconds that a step of all groups and its actions are expected to take, for those worth a thought."""
    workers = sorted({min(n, group_size) for n in (cores - 1, cores) if n > 0 and cores > 1})
    return {n: _turn_s(n, cores, group_size, step_s, options) for n in (0, *workers)}


def _turn_s(workers: int, cores: int, group_size: int, step_s: float, options: PoolOptions) -> float:
    """Seconds of a step of all groups with their actions."""
    if workers == 0:
        return COLD * (options.num_groups * (HERE_S + group_size * step_s) + DECISION_S)
    share_s = -(-group_size // workers) * step_s
    if options.num_groups == 1 or options.bridge == "callback":
        return options.num_groups * (WAKE_UP_S + COLD * (share_s + DECISION_S))
    if workers < cores:
        return options.num_groups * (WAKE_UP_S + max(share_s, DECISION_S))
    all_cores_s = (group_size * step_s + COLD * DECISION_S) / cores
    return options.num_groups * (WAKE_UP_S + max(share_s, COLD * DECISION_S, all_cores_s))


def _processes(workers: int) -> str:
    return f"{workers} worker process{'es' if workers > 1 else ''}"


def step_cost_s(world: World) -> float:
    """Seconds that one step takes, with random actions and an environment made for this.

    Raises:
        PoolError: the environment raised.
    """
    env = world.make()
    try:
        return _median_step_s(env, world)
    except Exception as error:
        raise explain(error, world.name, 0, "while its steps were measured") from error
    finally:
        env.close()


def _median_step_s(env: gymnasium.Env, world: World) -> float:
    actions = world.act.decode(sample(world.act, np.random.default_rng(0), MEASURE_STEPS))
    row = np.zeros(world.observe.shape, world.observe.dtype)
    env.reset(seed=0)
    env.step(actions[0])  # the first may load and compile things
    env.reset()
    took_s: list[float] = []
    end_s = time.perf_counter() + MEASURE_S
    for first in range(0, MEASURE_STEPS, CHUNK):
        began_s, steps = time.perf_counter(), 0
        for action in actions[first : first + CHUNK]:
            obs, _, terminated, truncated, _ = env.step(action)
            world.observe.write(row, obs)
            steps += 1
            if terminated or truncated:
                env.reset()
            if time.perf_counter() > end_s:
                break
        took_s.append((time.perf_counter() - began_s) / steps)
        if time.perf_counter() > end_s:
            break
    return float(np.median(took_s))
