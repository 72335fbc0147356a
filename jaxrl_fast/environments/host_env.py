"""Environments that live on the host: many at once, stepped outside JAX, in NumPy.

A `HostEnv` is what the sampler pool (`envs.pool`) and EnvPool give. Nothing in it knows JAX: a fragment joins it to
the graph.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl_fast.core import EnvSpec

MAX_STEPS = 2**31
"""Where a state's count of steps begins anew: it is an int32."""


class HostStep(NamedTuple):
    """What one step of a group of environments gave, ``[E / G, ...]``; arrays of the receiver's own, never a view of
    shared memory.

    ``obs`` is what the policy sees next, after any reset; ``next_obs`` is the true successor, and may be the same array
    where no episode ended: all are read-only. ``terminated`` and
    ``truncated`` are bool and never both. ``episode_return`` and ``episode_length`` are the running totals up to and
    including this step, so those of the whole episode where it has ended; a length of 0: do not count this episode (a
    worker was lost, or only a life of a game).
    """

    obs: Any
    next_obs: Any
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    episode_return: np.ndarray
    episode_length: np.ndarray


class HostEnv(NamedTuple):
    """``num_envs`` environments in ``num_groups`` groups of equal size, which are stepped independently.

    One pool may serve several runs: ``num_seeds`` slices of ``num_envs`` environments each, of which every group holds
    an equal part, slice by slice; where shapes say ``E`` they then mean ``S * E``.

    ``reset(seed) -> obs [E, ...]`` starts every environment anew, environment ``i`` from a seed that depends on
    ``seed`` and ``i`` alone (with several slices: seeds ``[S]``, and ``i`` within the slice), and drops what was in
    flight. ``send(actions [E / G, ...], group)`` starts a step and returns at once; ``recv(group) -> HostStep`` waits
    for it. What a seed gives depends neither on workers nor on timing. ``steps()``
    counts the environment steps since the last ``reset``, over all environments. ``events()`` gives, and forgets, what
    a person should know (a worker restarted ...), in lines. ``another(num_envs)`` makes environments of the same kind,
    in one group and stepped in this process, as for evaluation. ``close()`` may be called twice.

    Where environments are served by arrival (``pool.order=arrival``) there is also ``recv_any() -> (indices [E / G],
    HostStep)``, those that were ready first (fewer where fewer are under way), and ``send_to(actions [n, ...], indices
    [n])``, which steps the environments that ``recv_any`` gave, or all with ``indices = arange(E)``. What a seed gives
    then depends on timing.

    ``overlaps``: groups are stepped elsewhere, while this process computes the actions of others.
    ``bridge``: how they are joined to compiled programs, ``host`` (called between these) or ``callback`` (from within).
    """

    spec: EnvSpec
    num_envs: int
    num_groups: int
    reset: Callable[[int | Sequence[int]], Any]
    send: Callable[[np.ndarray, int], None]
    recv: Callable[[int], HostStep]
    steps: Callable[[], int]
    events: Callable[[], list[str]]
    another: Callable[[int], "HostEnv"]
    close: Callable[[], None]
    send_to: Callable[[np.ndarray, np.ndarray], None] | None = None
    recv_any: Callable[[], tuple[np.ndarray, HostStep]] | None = None
    num_seeds: int = 1
    bridge: str = "host"
    overlaps: bool = True
