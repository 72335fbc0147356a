"""Environments that live on the host: many at once, stepped outside JAX, in NumPy.

A `HostEnv` is what the sampler pool (`envs.pool`) and EnvPool give. Nothing in it knows JAX: a fragment joins it to
the graph.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

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


class ResetHosts(Protocol):
    """Starts every environment anew, and drops what was in flight."""

    def __call__(self, seed: int | Sequence[int], /) -> Any:
        """Environment ``i`` begins from a seed that depends on ``seed`` and ``i`` alone (with several slices: seeds
        ``[S]``, and ``i`` within the slice). Returns observations ``[E, ...]``."""


class Send(Protocol):
    """Starts a step of a group, and returns at once."""

    def __call__(self, actions: np.ndarray, group: int, /) -> None:
        """``actions`` ``[E / G, ...]``."""


class Receive(Protocol):
    """Waits for the step of a group."""

    def __call__(self, group: int, /) -> HostStep:
        """What a seed gives depends neither on workers nor on timing."""


class Another(Protocol):
    """Makes environments of the same kind, as for evaluation."""

    def __call__(self, num_envs: int, /) -> "HostEnv":
        """In one group, and stepped in this process."""


class SendTo(Protocol):
    """Steps the environments that ``recv_any`` gave, or all to begin with."""

    def __call__(self, actions: np.ndarray, indices: np.ndarray, /) -> None:
        """``actions`` ``[n, ...]`` for the environments ``indices`` ``[n]``."""


class HostEnv(NamedTuple):
    """``num_envs`` environments in ``num_groups`` groups of equal size, which are stepped independently.

    One pool may serve several runs: ``num_seeds`` slices of ``num_envs`` environments each, of which every group holds
    an equal part, slice by slice; where shapes say ``E`` they then mean ``S * E``.

    ``reset``, ``send``, ``recv`` and ``another``: `ResetHosts`, `Send`, `Receive`, `Another`. ``steps()`` counts the
    environment steps since the last ``reset``, over all environments. ``events()`` gives, and forgets, what a person
    should know (a worker restarted ...), in lines. ``close()`` may be called twice.

    Where environments are served by arrival (``pool.order=arrival``) there are also ``recv_any() -> (indices [E / G],
    HostStep)``, those that were ready first (fewer where fewer are under way), and ``send_to`` (`SendTo`). What a seed
    gives then depends on timing.

    ``overlaps``: groups are stepped elsewhere, while this process computes the actions of others.
    ``bridge``: how they are joined to compiled programs, ``host`` (called between these) or ``callback`` (from within).
    """

    spec: EnvSpec
    num_envs: int
    num_groups: int
    reset: ResetHosts
    send: Send
    recv: Receive
    steps: Callable[[], int]
    events: Callable[[], list[str]]
    another: Another
    close: Callable[[], None]
    send_to: SendTo | None = None
    recv_any: Callable[[], tuple[np.ndarray, HostStep]] | None = None
    num_seeds: int = 1
    bridge: str = "host"
    overlaps: bool = True
