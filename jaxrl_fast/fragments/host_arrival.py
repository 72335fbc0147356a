"""Sampling by arrival: environments of very uneven speed, served in the order in which they are ready.

Every environment still contributes ``T`` steps to a rollout, and waits for the others only at its end. The same seed
does not give the same run, since the order depends on timing (as in EnvPool's asynchronous mode, arXiv 2206.10558).
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_fast.core import PyTree, Transition
from jaxrl_fast.environments.host_env import MAX_STEPS, HostEnv
from jaxrl_fast.experience.binding import Bound
from jaxrl_fast.fragments.host_sampling import (
    HostRecord,
    HostSamplerState,
    Recording,
    begin,
    collect,
    host_fragment,
    make_act,
)
from jaxrl_fast.graph.dataflow import Channels, Fragment


class Pending(NamedTuple):
    """The step under way in each environment, ``[E, ...]``.

    - ``obs``: what the policy saw; ``first``: whether it began an episode.
    - ``action``: what the policy chose; ``extras``: those of that decision.
    """

    obs: Any
    first: Any
    action: Any
    extras: Any


def arrival_sample_fragment(env: HostEnv, agent: Bound, rollout_shapes: Transition) -> Fragment:
    """As `host_sampling.host_sample_fragment`, by ``recv_any`` and ``send_to``."""
    num_envs, batch, length = env.num_envs, env.num_envs // env.num_groups, agent.rollout_length
    act = jax.jit(make_act(agent))
    assert env.send_to is not None and env.recv_any is not None
    send_to, recv_any = env.send_to, env.recv_any

    def step(private: HostSamplerState, inputs: Channels, hyper: Any, key: jax.Array) -> tuple:
        start = begin(env, agent, private, key)
        # Copied: the state that the tick was given must not change.
        obs, first, carry = jax.tree.map(np.array, jax.device_get((start.obs, start.first, start.carry)))
        one = jax.tree.map(lambda s: np.zeros(s.shape[1:], s.dtype), (rollout_shapes.action, rollout_shapes.extras))
        now = Pending(obs, first, *one)
        recording = Recording(length, num_envs, 0)
        extras = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), rollout_shapes.extras)
        taken, calls = np.zeros(num_envs, np.int32), 0

        def ask(indices: np.ndarray) -> None:
            nonlocal calls
            padded = np.resize(indices, batch)  # one compiled program, however few are asked
            seen = jax.tree.map(lambda x: x[padded], (carry, now.obs, now.first))
            action, after, more = jax.device_get(act(inputs, *seen, key, hyper, calls))
            calls += 1
            decided = jax.tree.map(lambda x: x[: len(indices)], (after, action, more))
            _set((carry, now.action, now.extras), indices, decided)
            send_to(decided[1], indices)

        for group in range(env.num_groups):
            ask(np.arange(group * batch, (group + 1) * batch))
        while (taken < length).any():
            indices, result = recv_any()
            at = taken[indices]
            own = jax.tree.map(lambda x, indices=indices: x[indices], now)
            recording.put(at, indices, HostRecord(own.obs, own.first, own.action, result))
            _set(extras, (at, indices), own.extras)
            _set((now.obs, now.first), indices, (result.obs, result.terminated | result.truncated))
            taken[indices] += 1
            going = indices[taken[indices] < length]
            if going.size:
                ask(going)
        rollout, metrics = collect(recording.arrays, extras)
        steps = np.int32(env.steps() % MAX_STEPS)
        return HostSamplerState(steps, now.obs, now.first, carry), {"rollout": rollout}, metrics

    return host_fragment(env, agent, rollout_shapes, step)


def _set(arrays: PyTree, at: Any, values: PyTree) -> None:
    for whole, part in zip(jax.tree.leaves(arrays), jax.tree.leaves(values), strict=True):
        whole[at] = part
