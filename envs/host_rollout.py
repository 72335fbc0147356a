"""Rollouts of environments on the host, as arrays that are filled step by step."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_fast.core import PyTree, Transition
from jaxrl_fast.envs.episode_metrics import metric_sums
from jaxrl_fast.envs.host_env import HostEnv, HostStep


class HostRecord(NamedTuple):
    """One step of some environments, without the extras of the decision.

    Attributes:
        obs: Observations of the policy.
        first: Whether they began an episode.
        action: Actions of the policy.
        step: Results of the step.
    """

    obs: PyTree
    first: Any
    action: np.ndarray
    step: HostStep


class Recording:
    """A rollout that is being filled: arrays ``[T, E, ...]``, with several seeds
    ``[S, T, E, ...]``.
    """

    def __init__(self, length: int, num_envs: int, axis: int, num_seeds: int = 1) -> None:
        self.shape, self.axis = (*[num_seeds] * axis, length, num_envs), axis
        self.arrays: Any = None

    def put(self, t: Any, rows: Any, record: HostRecord) -> None:
        """Write step ``t`` of the environments ``rows``: a number and a slice, or two index arrays
        of equal length.
        """
        if self.arrays is None:
            self.arrays = jax.tree.map(
                lambda x: np.empty((*self.shape, *x.shape[self.axis + 1 :]), x.dtype), record
            )
        at = (*[slice(None)] * self.axis, t, rows)
        for whole, part in zip(jax.tree.leaves(self.arrays), jax.tree.leaves(record), strict=True):
            whole[at] = part


def as_rollout(
    record: HostRecord, extras: PyTree, axis: int = 0, kinds: Iterable[str] = ()
) -> tuple[Transition, dict[str, Any]]:
    """Build the rollout and the same metrics as `rollout.unroll`.

    Args:
        record: Steps ``[T, E, ...]``, with several seeds ``[S, T, E, ...]``.
        extras: Extras of the decisions, with the same leading axes.
        axis: Axis of time.
        kinds: Names of the environments' metrics.

    Returns:
        The rollout and its metrics.
    """
    step = record.step
    arrays: Any = step  # of NumPy
    action: Any = record.action
    rollout = Transition(
        obs=record.obs,
        action=action,
        reward=arrays.reward,
        next_obs=arrays.next_obs,
        terminated=arrays.terminated,
        truncated=arrays.truncated,
        first=record.first,
        extras=extras,
    )
    # no steps that a lost worker did not make
    done = (step.terminated | step.truncated) & (step.episode_length > 0)
    real = [
        x
        for x in jax.tree.leaves((step.next_obs, step.reward))
        if np.issubdtype(x.dtype, np.floating)
    ]
    bad = np.any(
        [~np.isfinite(x).reshape(*x.shape[: axis + 1], -1).all(axis=-1) for x in real], axis=0
    )
    both = (axis, axis + 1)
    metrics = {
        "episodes": done.sum(both, dtype=np.int32),
        "episode_return_sum": np.where(done, step.episode_return, 0.0).sum(both, dtype=np.float32),
        "episode_length_sum": np.where(done, step.episode_length, 0).sum(both, dtype=np.int32),
        "nonfinite_step": np.where(bad.any(axis), bad.argmax(axis), -1).astype(np.int32),
    }
    measured = metric_sums(kinds, done, step.metrics, both) if kinds else {}
    return rollout, metrics | measured


def no_steps(env: HostEnv, seeds: tuple[int, ...]) -> dict[str, Any]:
    """Return the metrics of a tick without steps.

    Args:
        env: Host environments.
        seeds: Leading axis of several seeds, if any.

    Returns:
        The metrics that `as_rollout` returns.
    """
    shape = (*seeds, 1, env.num_envs)
    flags, zeros, kinds = np.zeros(shape, bool), np.zeros(shape, np.float32), env.spec.metrics
    metrics = np.zeros((*shape, len(kinds)), np.float32) if kinds else ()
    step = HostStep(
        obs=(),
        next_obs=(),
        reward=zeros,
        terminated=flags,
        truncated=flags,
        episode_return=zeros,
        episode_length=np.zeros(shape, np.int32),
        metrics=metrics,
    )
    return as_rollout(HostRecord((), flags, zeros, step), (), len(seeds), kinds)[1]
