"""Sampling by arrival: environments of very uneven speed, served in the order in which they are ready.

Every environment still gives ``T`` steps to a rollout, and waits for the others only at its end. What the same seed
gives depends on timing (as in EnvPool's asynchronous mode, arXiv 2206.10558).
"""

from typing import Any

import jax
import numpy as np

from jaxrl_fast.algorithm import Agent
from jaxrl_fast.core import PyTree, Transition
from jaxrl_fast.graph import Channels, Fragment
from jaxrl_fast.host import MAX_STEPS, HostRecord, HostSamplerState, begin, collect, host_fragment, make_act
from jaxrl_fast.host_env import HostEnv, HostStep


class _Rollout:
    """A rollout in the making: arrays ``[T, E, ...]``, and how many steps of each environment are in them."""

    def __init__(self, private: HostSamplerState, length: int, num_envs: int) -> None:
        # Copied: the state that a tick was given may be asked for again.
        self.obs, self.first, self.carry = jax.tree.map(np.array, (private.obs, private.first, private.carry))
        self.taken = np.zeros(num_envs, np.int32)
        self.shape = (length, num_envs)
        self.record: PyTree = None

    def put(self, indices: np.ndarray, decided: PyTree, step: HostStep) -> None:
        """The next step of the environments ``indices``, which were ``decided`` on as (obs, first, action, extras)."""
        obs, first, action, extras = decided
        new = HostRecord(obs, first, action, extras, step)
        if self.record is None:
            self.record = jax.tree.map(lambda x: np.zeros((*self.shape, *x.shape[1:]), x.dtype), new)
        at = self.taken[indices], indices
        jax.tree.map(lambda ring, x: ring.__setitem__(at, x), self.record, new)
        self.obs[indices], self.first[indices] = step.obs, step.terminated | step.truncated
        self.taken[indices] += 1


def arrival_sample_fragment(env: HostEnv, agent: Agent, rollout_shapes: Transition) -> Fragment:
    """As `host.host_sample_fragment`, by ``recv_any`` and ``send_to``."""
    batch, length = env.num_envs // env.num_groups, agent.rollout_length
    act = jax.jit(make_act(agent))
    assert env.send_to is not None and env.recv_any is not None
    send_to, recv_any = env.send_to, env.recv_any

    def step(private: HostSamplerState, inputs: Channels, hyper: Any, key: jax.Array) -> tuple:
        rollout = _Rollout(begin(env, agent, jax.device_get(private), key), length, env.num_envs)
        decided: dict[int, PyTree] = {}
        calls = 0

        def ask(indices: np.ndarray) -> None:
            nonlocal calls
            padded = np.resize(indices, batch)  # one compiled program, however few are asked
            obs, first, carry = jax.tree.map(lambda x: x[padded], (rollout.obs, rollout.first, rollout.carry))
            action, carry, extras = jax.device_get(act(inputs, carry, obs, first, key, calls))
            calls += 1
            jax.tree.map(lambda all_, x: all_.__setitem__(padded, x), rollout.carry, carry)
            for row, index in enumerate(indices.tolist()):
                decided[index] = jax.tree.map(lambda x, row=row: x[row], (obs, first, action, extras))
            send_to(action[: len(indices)], indices)

        for group in range(env.num_groups):
            ask(np.arange(group * batch, (group + 1) * batch))
        while (rollout.taken < length).any():
            indices, result = recv_any()
            rows = [decided.pop(index) for index in indices.tolist()]
            rollout.put(indices, jax.tree.map(lambda *leaves: np.stack(leaves), *rows), result)
            going = indices[rollout.taken[indices] < length]
            if going.size:
                ask(going)
        transitions, metrics = collect(rollout.record)
        steps = np.int32(env.steps() % MAX_STEPS)
        return HostSamplerState(steps, rollout.obs, rollout.first, rollout.carry), {"rollout": transitions}, metrics

    return host_fragment(env, agent, rollout_shapes, step)
