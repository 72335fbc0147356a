"""Makes a pool with the number of workers that suits the measured time of a step; and a camera for
one environment.
"""

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from jaxrl_fast.core import EnvSpec
from jaxrl_fast.envs.host_env import HostEnv, HostStep, Rollouts
from jaxrl_fast.envs.pool.batches import (
    Groups,
    PoolOptions,
    check_groups,
    check_options,
    check_seeds,
    gather,
    put_actions,
    row_seeds,
)
from jaxrl_fast.envs.pool.codec import (
    allocate,
    array_fields,
    place,
    sample_allowed,
    size_bytes,
)
from jaxrl_fast.envs.pool.parallel import make_workers
from jaxrl_fast.envs.pool.rolling import begin_rollout, make_roll, rolled_by, rollout_fields
from jaxrl_fast.envs.pool.several_agents import AgentsTogether
from jaxrl_fast.envs.pool.stepping import HostEnvSpec, MakeGymnasium, describe_failure, make_stepper
from jaxrl_fast.envs.rollout_plan import RolloutPlan

HERE_S, WAKE_UP_S = 20e-6, 40e-6
"""Overhead of a batch in seconds: in the parent process, and with workers (measured by
experiments/bench/pool.py).
"""
DECISION_S = 250e-6
"""Lower bound of the time to compute the actions of a group, in seconds. It occupies a core."""
COLD = 1.5
"""Factor by which steps and action computations are slower if they share a core or take turns, and
so evict each other from caches. From PPO's step rates with 0, 1 and 2 workers on 2 cores, with 4 to
64 environments of CartPole, Pendulum and HalfCheetah.
"""
MEASURE_S, MEASURE_STEPS, CHUNK = 0.05, 1000, 20
"""Longest time in seconds and number of steps of a measurement, and steps per part of it. The
median over parts ignores interruptions by other programs.
"""


def choose_workers(
    host_spec: HostEnvSpec, group_size: int, options: PoolOptions
) -> tuple[int, str]:
    """Select the number of workers that should step all environments, including actions, in the
    least time.

    Args:
        host_spec: Spec of the environments.
        group_size: Environments per group.
        options: Options of the pool.

    Returns:
        The number of workers (0: the parent process), and a line for the user with the reason.
    """
    if group_size == options.num_groups == 1:  # nothing to share
        return 0, ""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    if options.bridge == "worker":
        several = cores > 1 and os.name == "posix"
        return (min(cores, group_size * (options.num_groups or 1)) if several else 0), ""
    if options.order == "arrival":
        workers = max(n for n in range(1, min(cores, group_size) + 1) if group_size % n == 0)
        return workers, f"{host_spec.name} is stepped by {_processes(workers)}"
    assert host_spec.step_s is not None
    step_s = host_spec.step_s
    took_s = turns_s(cores, group_size, step_s, options)
    best = min(took_s, key=lambda n: took_s[n])
    by = f"by {_processes(best)}" if best else "in this process"
    others = ", ".join(
        f"{1e3 * s:.2g} ms {f'by {n}' if n else 'here'}" for n, s in took_s.items() if n != best
    )
    return best, (
        f"{host_spec.name} is stepped {by}: a step takes {1e6 * step_s:.2g} µs, one of all environments and its "
        f"actions about {1e3 * took_s[best]:.2g} ms ({others or 'there is one core'})"
    )


def turns_s(cores: int, group_size: int, step_s: float, options: PoolOptions) -> dict[int, float]:
    """Estimate the time of one step of all groups, including actions, for each number of workers
    worth considering.

    Args:
        cores: Number of cores.
        group_size: Environments per group.
        step_s: Time of one environment step in seconds.
        options: Options of the pool.

    Returns:
        Number of workers (0: the parent process) -> seconds.
    """
    workers = sorted({min(n, group_size) for n in (cores - 1, cores) if n > 0 and cores > 1})
    return {n: _turn_s(n, cores, group_size, step_s, options) for n in (0, *workers)}


def _turn_s(
    workers: int, cores: int, group_size: int, step_s: float, options: PoolOptions
) -> float:
    """Estimate the seconds of one step of all groups, including actions."""
    num_groups = options.num_groups or 1
    if workers == 0:
        return COLD * (num_groups * (HERE_S + group_size * step_s) + DECISION_S)
    share_s = -(-group_size // workers) * step_s
    if num_groups == 1 or options.bridge == "callback":
        return num_groups * (WAKE_UP_S + COLD * (share_s + DECISION_S))
    if workers < cores:
        return num_groups * (WAKE_UP_S + max(share_s, DECISION_S))
    all_cores_s = (group_size * step_s + COLD * DECISION_S) / cores
    return num_groups * (WAKE_UP_S + max(share_s, COLD * DECISION_S, all_cores_s))


def _processes(workers: int) -> str:
    return f"{workers} worker process{'es' if workers > 1 else ''}"


def measurement(
    options: PoolOptions, num_rows: int
) -> Callable[[gymnasium.Env, HostEnvSpec], float] | None:
    """Return the measurement that the number of workers needs.

    Args:
        options: Options of the pool.
        num_rows: Number of environments over all seeds.

    Returns:
        `step_cost_s`, or None if the number follows from other options.
    """
    open_ = options.workers == "auto" and options.bridge != "worker"
    needed = open_ and options.order != "arrival" and num_rows > 1
    return step_cost_s if needed else None


def step_cost_s(env: gymnasium.Env, host_spec: HostEnvSpec) -> float:
    """Measure the time of one step with random actions.

    Args:
        env: Environment, which no episode needs later.
        host_spec: Its spec.

    Returns:
        Seconds.

    Raises:
        PoolError: The environment raised an error.
    """
    try:
        return _median_step_s(env, host_spec)
    except (Exception, SystemExit) as error:
        raise describe_failure(error, host_spec.name, 0, "while its steps were measured") from error


def _median_step_s(env: gymnasium.Env, host_spec: HostEnvSpec) -> float:
    rng, act = np.random.default_rng(0), host_spec.act
    row = np.zeros(host_spec.observe.shape, host_spec.observe.dtype)

    def reset(seed: int | None = None) -> None:
        host_spec.observe.write(row, env.reset(seed=seed)[0])

    def step() -> float:
        """Step with an action that the last observation allows; return the seconds."""
        action = act.decode(sample_allowed(act, rng, row)[None])[0]
        began_s = time.perf_counter()
        obs, _, terminated, truncated, _ = env.step(action)
        host_spec.observe.write(row, obs)
        if terminated or truncated:
            reset()
        return time.perf_counter() - began_s

    reset(0)
    step()  # the first step may import and compile
    reset()
    took_s: list[float] = []
    end_s = time.perf_counter() + MEASURE_S
    while len(took_s) < MEASURE_STEPS and time.perf_counter() < end_s:
        took_s.append(step())
    chunks = [took_s[i : i + CHUNK] for i in range(0, len(took_s), CHUNK)]
    return float(np.median([np.mean(chunk) for chunk in chunks]))


def in_process(
    host_spec: HostEnvSpec,
    spec: EnvSpec,
    *,
    num_envs: int,
    num_groups: int = 1,
    num_seeds: int = 1,
    reason: str = "",
) -> HostEnv:
    """Make a pool that steps its environments one after another in the parent process, each group
    when it is received.

    Args:
        host_spec: Spec of the environments.
        spec: Spec for the policy.
        num_envs: Number of environments over all seeds.
        num_groups: Number of groups.
        num_seeds: Number of seeds.
        reason: Line for the user, or "".

    Returns:
        The environment.

    Raises:
        ValueError: ``num_envs`` is not divisible by ``num_groups``.
    """
    check_groups(num_envs, num_groups)
    pool = _InProcess(host_spec, num_envs, num_groups, num_seeds, reason)
    another = partial(in_process, host_spec, spec)
    agents = None if host_spec.num_agents is None else pool.stepper.agents.copy
    reports: dict[str, Any] = dict(success=pool.stepper.success.copy, agents=agents)
    reports |= dict(num_seeds=num_seeds, overlaps=False, draws=host_spec.draws)
    rollouts = Rollouts(
        load=pool.load,
        roll=pool.roll,
        parts=(slice(0, num_envs),),
        log=pool.note,
        plan=lambda: pool.plan,
    )
    reports |= dict(rollouts=rollouts)
    return pool.host_env(spec, num_envs // num_seeds, lambda n: another(num_envs=n), **reports)


class _InProcess(Groups):
    def __init__(
        self, host_spec: HostEnvSpec, num_envs: int, num_groups: int, num_seeds: int, reason: str
    ) -> None:
        super().__init__(f"the pool of {host_spec.name}", num_envs, num_groups, reason)
        sizes = host_spec.num_agents, len(host_spec.metrics)
        fields = array_fields(num_envs, host_spec.observe, host_spec.act, *sizes)
        self.arrays = place(fields, np.zeros(size_bytes(fields), np.uint8))
        self.stepper = make_stepper(host_spec, self.arrays, range(num_envs))
        self.host_spec, self.fields = host_spec, fields
        self.num_seeds = num_seeds
        self.in_flight: set[int] = set()
        self.rolled: Callable[[], int] = lambda: 0
        self.plan: RolloutPlan | None = None

    def reset(self, seed: int | Sequence[int]) -> np.ndarray:
        self.require_open()
        seeds, self.steps, num_rows = check_seeds(seed, self.num_seeds), 0, len(self.arrays.seed)
        self.in_flight.clear()
        self.arrays.seed[:] = row_seeds(
            seeds, range(num_rows), num_rows=num_rows, num_groups=len(self.groups)
        )
        self.stepper.reset()
        return self.arrays.obs.copy()

    def send(self, actions: np.ndarray, group: int) -> None:
        self.require_open()
        self.require_idle(group, group in self.in_flight)
        put_actions(self.arrays, self.groups[group], actions)
        self.in_flight.add(group)

    def recv(self, group: int) -> HostStep:
        self.require_open()
        self.require_sent(group, group in self.in_flight)
        rows = self.groups[group]
        self.in_flight.discard(group)
        self.stepper.step(rows)
        self.steps += rows.stop - rows.start
        return gather(self.arrays, rows)

    def load(self, plan: RolloutPlan) -> dict[str, np.ndarray]:
        """Prepare for rollouts, as `host_env.Rollouts`."""
        self.plan = plan
        fields = rollout_fields(self.fields, plan.length, 1) | plan.fields
        shared = allocate(fields, np.zeros(size_bytes(fields), np.uint8))
        place = slice(0, len(self.arrays.seed)), 0
        roll = make_roll(self.stepper.inside, self.host_spec, self.arrays, plan, shared, place)

        def rolled() -> int:
            begin_rollout(shared, self.arrays)
            roll()
            return plan.length

        self.rolled = rolled
        self.lines.append(rolled_by(0, plan))
        return shared

    def roll(self) -> None:
        """Make a rollout, as `host_env.Rollouts`."""
        self.require_open()
        self.steps += self.rolled() * len(self.arrays.seed)

    def close(self) -> None:
        self.is_open = False
        self.stepper.close()


def make_pool(
    host_spec: HostEnvSpec, spec: EnvSpec, *, num_envs: int, num_seeds: int, options: PoolOptions
) -> HostEnv:
    """Make a pool in the parent process or with workers.

    Args:
        host_spec: Spec of the environments, with ``step_s`` if `measurement` is not None.
        spec: Spec for the policy.
        num_envs: Number of environments per seed.
        num_seeds: Number of seeds.
        options: Options of the pool.

    Returns:
        The environment.

    Raises:
        ValueError: An option is wrong, or the environments cannot be sent to worker processes.
    """
    options = check_options(options, num_envs, num_seeds)
    num_rows, num_groups = num_envs * num_seeds, options.num_groups or 1
    by_arrival, reason = options.order == "arrival", ""
    workers = options.workers
    if workers == "auto":
        workers, reason = choose_workers(host_spec, num_rows // num_groups, options)
    if by_arrival:
        reason = f"{reason}{'; ' if reason else ''}pool.order=arrival: the same seed does not give the same run"

    def watched(num_envs: int, tell: Callable[[str], None]) -> HostEnv:
        return in_process(
            host_spec._replace(make=partial(watch_spaces, host_spec.make, tell)),
            spec,
            num_envs=num_envs,
        )

    how: dict[str, Any] = dict(
        num_envs=num_rows, num_groups=num_groups, num_seeds=num_seeds, reason=reason
    )
    if workers == 0:
        return in_process(host_spec, spec, **how)._replace(watched=watched)
    how |= dict(num_workers=int(workers), options=options)
    made = make_workers(
        host_spec, spec, another=lambda n: in_process(host_spec, spec, num_envs=n), **how
    )
    return made._replace(watched=watched, draws=host_spec.draws)


class SpaceWatch(gymnasium.Wrapper):
    """Reports observations, rewards and ends of an environment that are not in their spaces."""

    def __init__(self, env: gymnasium.Env, tell: Callable[[str], None]) -> None:
        super().__init__(env)
        self.tell, self.steps = tell, 0

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        obs, info = self.env.reset(**options)
        self.steps = 0
        self._look_at(obs)
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.steps += 1
        self._look_at(obs)
        for what, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, bool | np.bool_):
                self.tell(f"step {self.steps} returns {what}={flag!r}: write a bool")
        if not np.issubdtype(np.asarray(reward).dtype, np.number):
            self.tell(f"step {self.steps} returns the reward {reward!r}: write a number")
        return obs, reward, terminated, truncated, info

    def _look_at(self, obs: Any) -> None:
        together = self.env.unwrapped
        if isinstance(together, AgentsTogether):
            for agent, agent_obs in obs.obs.items():
                self._compare(
                    agent_obs, together.env.observation_space(agent), f"the observation of {agent}"
                )
        else:
            self._compare(obs, self.env.observation_space, "an observation")

    def _compare(self, obs: Any, space: gymnasium.Space, what: str) -> None:
        if space.contains(obs):
            return
        if (
            isinstance(space, gymnasium.spaces.Dict)
            and isinstance(obs, dict)
            and set(obs) == set(space)
        ):
            for name, entry_space in space.items():
                self._compare(obs[name], entry_space, f"{what}, entry {name!r},")
            return
        where = f"step {self.steps}" if self.steps else "reset"
        converts = (
            isinstance(obs, np.ndarray)
            and obs.shape == space.shape
            and space.contains(obs.astype(space.dtype))
        )
        how = f"; training converts it to {space.dtype}" if converts else ""
        self.tell(f"{where} returns {what} {described(obs)}, which is not in {space}{how}")


def described(obs: Any) -> str:
    """Describe an observation in a few words.

    Args:
        obs: Observation.

    Returns:
        Dtype, shape and range of an array, or the value itself, cut.
    """
    if isinstance(obs, np.ndarray) and obs.size and np.issubdtype(obs.dtype, np.number):
        return f"{obs.dtype}{list(obs.shape)} from {obs.min():g} to {obs.max():g}"
    return repr(obs)[:80]


def watch_spaces(make: MakeGymnasium, tell: Callable[[str], None]) -> SpaceWatch:
    """Make an environment that reports values outside of its spaces.

    Args:
        make: Makes an environment.
        tell: Gets a line for each.

    Returns:
        The environment.
    """
    return SpaceWatch(make(), tell)


class FilmedHost(NamedTuple):
    """One environment on the host, and its camera.

    Attributes:
        env: `HostEnv` with this environment, to be closed by the receiver.
        picture: Draws the state after the last step, also if that step ended the episode: RGB,
            uint8 ``[height, width, 3]``.
        step_s: Duration of a step in pictures, in seconds.
    """

    env: HostEnv
    picture: Callable[[], np.ndarray]
    step_s: float


class Camera(gymnasium.Wrapper):
    """Stores the picture of an episode's last state, since the pool resets the environment in the
    same step.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.last: Any = None

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment, and draw its last state."""
        result = self.env.step(action)
        self.last = self.env.render() if result[2] or result[3] else None
        return result

    def picture(self) -> np.ndarray:
        """Draw the state after the last step, as `FilmedHost.picture`."""
        return np.asarray(self.env.render() if self.last is None else self.last)
