"""`HostEnv` stepped in this process, one environment after another."""

from collections.abc import Sequence

import numpy as np

from envs.pool.arrays import array_fields, place, size_bytes
from envs.pool.batches import check_groups, check_seeds, gather, put_actions, row_seeds, split
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
    return HostEnv(
        spec,
        num_envs // num_seeds,
        num_groups,
        pool.reset,
        pool.send,
        pool.recv,
        lambda: pool.steps,
        pool.events,
        lambda num_envs: in_process(host_spec, spec, num_envs=num_envs),
        pool.close,
        num_seeds=num_seeds,
        overlaps=False,
        success=pool.stepper.success.copy,
        agents=None if host_spec.num_agents is None else pool.stepper.agents.copy,
    )


class _InProcess:
    def __init__(self, host_spec: HostEnvSpec, num_envs: int, num_groups: int, num_seeds: int, reason: str) -> None:
        fields = array_fields(num_envs, host_spec.observe, host_spec.act, host_spec.num_agents)
        self.arrays = place(fields, np.zeros(size_bytes(fields), np.uint8))
        self.stepper = make_stepper(host_spec, self.arrays, range(num_envs))
        self.groups = split(slice(0, num_envs), num_groups)
        self.num_seeds = num_seeds
        self.in_flight: set[int] = set()
        self.lines = [reason] if reason else []
        self.name, self.steps, self.is_open = host_spec.name, 0, True

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
        lines, self.lines = self.lines, []
        return lines

    def close(self) -> None:
        self.is_open = False
        self.stepper.close()

    def _require_open(self) -> None:
        if not self.is_open:
            raise ValueError(f"the pool of {self.name} is closed: make another")
