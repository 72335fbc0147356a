"""The choice of how many worker processes to use: from the measured time of a step and known costs of a batch."""

import os
import time

import gymnasium
import numpy as np

from envs.pool.codec import sample
from envs.pool.options import PoolOptions
from envs.pool.stepping import HostEnvSpec, describe_failure

HERE_S, WAKE_UP_S = 20e-6, 40e-6
"""The cost of a batch beside its steps: in this process, and by workers (experiments/pool.py measures it)."""
DECISION_S = 250e-6
"""The least that computing the actions of a group takes; it occupies a core."""
COLD = 1.5
"""The factor by which steps and decisions are slower where they share a core or take turns, and so evict each other
from caches. From PPO's rates with 0, 1 and 2 workers on 2 cores, 4 to 64 environments of CartPole, Pendulum and
HalfCheetah."""
MEASURE_S, MEASURE_STEPS, CHUNK = 0.05, 1000, 20
"""The time and the number of steps of a measurement, and steps in a chunk of it; the median over chunks ignores what
other programs took."""


def choose_workers(host_spec: HostEnvSpec, group_size: int, options: PoolOptions) -> tuple[int, str]:
    """The number of workers expected to step all environments once, actions included, in the least time, and a line
    that says why."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if options.order == "arrival":
        workers = max(n for n in range(1, min(cores, group_size) + 1) if group_size % n == 0)
        return workers, f"{host_spec.name} is stepped by {_processes(workers)}"
    step_s = step_cost_s(host_spec)
    took_s = turns_s(cores, group_size, step_s, options)
    best = min(took_s, key=lambda n: took_s[n])
    by = f"by {_processes(best)}" if best else "in this process"
    others = ", ".join(f"{1e3 * s:.2g} ms {f'by {n}' if n else 'here'}" for n, s in took_s.items() if n != best)
    return best, (
        f"{host_spec.name} is stepped {by}: a step takes {1e6 * step_s:.2g} µs, one of all environments and its "
        f"actions about {1e3 * took_s[best]:.2g} ms ({others or 'there is one core'})"
    )


def turns_s(cores: int, group_size: int, step_s: float, options: PoolOptions) -> dict[int, float]:
    """By number of workers, those worth considering: the seconds that a step of all groups and its actions should
    take."""
    workers = sorted({min(n, group_size) for n in (cores - 1, cores) if n > 0 and cores > 1})
    return {n: _turn_s(n, cores, group_size, step_s, options) for n in (0, *workers)}


def _turn_s(workers: int, cores: int, group_size: int, step_s: float, options: PoolOptions) -> float:
    """Seconds that a step of all groups and its actions should take."""
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


def step_cost_s(host_spec: HostEnvSpec) -> float:
    """Seconds that one step takes, with random actions, in an environment made for this measurement.

    Raises:
        PoolError: the environment raised.
    """
    env = host_spec.make()
    try:
        return _median_step_s(env, host_spec)
    except Exception as error:
        raise describe_failure(error, host_spec.name, 0, "while its steps were measured") from error
    finally:
        env.close()


def _median_step_s(env: gymnasium.Env, host_spec: HostEnvSpec) -> float:
    actions = host_spec.act.decode(sample(host_spec.act, np.random.default_rng(0), MEASURE_STEPS))
    row = np.zeros(host_spec.observe.shape, host_spec.observe.dtype)
    env.reset(seed=0)
    env.step(actions[0])  # the first may load and compile things
    env.reset()
    took_s: list[float] = []
    end_s = time.perf_counter() + MEASURE_S
    for first in range(0, MEASURE_STEPS, CHUNK):
        began_s, steps = time.perf_counter(), 0
        for action in actions[first : first + CHUNK]:
            obs, _, terminated, truncated, _ = env.step(action)
            host_spec.observe.write(row, obs)
            steps += 1
            if terminated or truncated:
                env.reset()
            if time.perf_counter() > end_s:
                break
        took_s.append((time.perf_counter() - began_s) / steps)
        if time.perf_counter() > end_s:
            break
    return float(np.median(took_s))
