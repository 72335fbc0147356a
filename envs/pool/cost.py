"""How many worker processes are fastest: a few steps are measured, and what a batch costs beside them is known."""

import os
import time

import gymnasium
import numpy as np

from envs.pool.codec import sample
from envs.pool.options import PoolOptions
from envs.pool.stepping import World, describe_failure

HERE_S, WAKE_UP_S = 20e-6, 40e-6
"""What a batch costs beside its steps, in this process and by workers (experiments/pool.py measures it)."""
DECISION_S = 250e-6
"""What computing the actions of a group costs this process at the least, which takes a core."""
COLD = 1.5
"""How much longer both take on a core, or in turn, where each finds its caches used by the other. From PPO's rates with
0, 1 and 2 workers on 2 cores, 4 to 64 environments of CartPole, Pendulum and HalfCheetah."""
MEASURE_S, MEASURE_STEPS, CHUNK = 0.05, 1000, 20
"""How long and how often a step is measured; the median over chunks leaves out what other programs took."""


def choose_workers(world: World, group_size: int, options: PoolOptions) -> tuple[int, str]:
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
        raise describe_failure(error, world.name, 0, "while its steps were measured") from error
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
