"""`HostEnv` stepped in this process, one environment after another."""

from collections.abc import Sequence

import numpy as np

from envs.pool.arrays import array_fields, place, size_bytes
from envs.pool.batches import Groups, check_groups, check_seeds, gather, put_actions, row_seeds
from envs.pool.stepping import HostEnvSpec, make_stepper
from jaxrl_fast.core import EnvSpec
from jaxrl_fast.environments.host_env import HostEnv, HostStep


def in_process(
    host_spec: HostEnvSpec, spec: EnvSpec, *, num_envs: int, num_groups: int = 1, num_seeds: int = 1, reason: str = ""
) -> HostEnv:
    """``num_envs`` environments over all seeds, stepped one after another in this process, a group when it is received.

    Raises:
        ValueError: the groups do not divide the environments.
    """
    check_groups(num_envs, num_groups)
    pool = _InProcess(host_spec, num_envs, num_groups, num_seeds, reason)
    return pool.host_env(
        spec,
        num_envs // num_seeds,
        lambda num_envs: in_process(host_spec, spec, num_envs=num_envs),
        num_seeds=num_seeds,
        overlaps=False,
        success=pool.stepper.success.copy,
        agents=None if host_spec.num_agents is None else pool.stepper.agents.copy,
    )


class _InProcess(Groups):
    def __init__(self, host_spec: HostEnvSpec, num_envs: int, num_groups: int, num_seeds: int, reason: str) -> None:
        super().__init__(f"the pool of {host_spec.name}", num_envs, num_groups, reason)
        fields = array_fields(num_envs, host_spec.observe, host_spec.act, host_spec.num_agents)
        self.arrays = place(fields, np.zeros(size_bytes(fields), np.uint8))
        self.stepper = make_stepper(host_spec, self.arrays, range(num_envs))
        self.num_seeds = num_seeds
        self.in_flight: set[int] = set()

    def reset(self, seed: int | Sequence[int]) -> np.ndarray:
        self.require_open()
        seeds, self.steps, num_rows = check_seeds(seed, self.num_seeds), 0, len(self.arrays.seed)
        self.in_flight.clear()
        self.arrays.seed[:] = row_seeds(seeds, range(num_rows), num_rows=num_rows, num_groups=len(self.groups))
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

    def close(self) -> None:
        self.is_open = False
        self.stepper.close()
