"""Environments stepped on the host: many at once, outside JAX, in NumPy.

A `HostEnv` is the interface of the sampler pool (`jaxrl_fast.envs.pool`) and of EnvPool. Nothing in it knows JAX: the
fragment ``sample`` (`learning.host_sampling`) connects it to the graph.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl_fast.core import EnvSpec

MAX_STEPS = 2**31
"""Where the count of steps in a sampling state wraps around to 0: it is an int32."""
UNTOLD = -1
"""Stands for the success of an episode of which its environment says nothing."""


class HostStep(NamedTuple):
    """The results of one step of a group of environments, ``[E / G, ...]``, where ``G`` is the number of groups.

    All arrays are copies that belong to the receiver, never views of shared memory, and read-only.

    - ``obs``: what the policy sees next; after the end of an episode, the first observation of the next one.
    - ``next_obs``: the true successor; may be the same array as ``obs`` where no episode ended.
    - ``reward``: float32, as learning gets it; ``[E / G, A]`` of several agents.
    - ``terminated``, ``truncated``: bool, never both true.
    - ``episode_return``, ``episode_length``: totals of the episode up to and including this step. A length of 0 where
      an episode ended: do not count this episode (its worker died, or only a life of the game was lost).
    """

    obs: Any
    next_obs: Any
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    episode_return: np.ndarray
    episode_length: np.ndarray


TakeEvents = Callable[[], list[str]]
"""Returns one line for each event since the last call that a person should know, such as a worker that restarted."""


class HostEnv(NamedTuple):
    """``num_envs`` environments in ``num_groups`` groups of equal size, which are stepped independently.

    One pool may serve several seeds: ``num_seeds`` slices of ``num_envs`` environments each. Every group then holds an
    equal part of each slice, one slice after the other, and where shapes say ``E`` they mean ``S * E``.

    - ``spec``: that of each environment.
    - ``reset(seed)``: starts a new episode in every environment, and discards steps in flight. Environment ``i`` is
      seeded by ``seed`` and ``i`` alone (with several slices: seeds ``[S]``, and ``i`` counts within the slice).
      Returns observations ``[E, ...]``.
    - ``send(actions [E / G, ...], group)``: starts a step of a group, 0 to ``num_groups - 1``, and returns at once.
    - ``recv(group)``: waits for that step. For the same seed and actions the result is the same, whatever the workers
      and the timing.
    - ``steps()``: counts the steps since the last ``reset``, over all environments.
    - ``events``: lines for the user.
    - ``another(num_envs)``: makes environments of this kind in one group, stepped in this process, as for evaluation.
    - ``close()``: closes the environments and ends their processes; may be called twice.
    - ``send_to(actions [n, ...], indices [n])``, ``recv_any()``: with ``pool.order=arrival``, sampling uses these and
      serves whoever is ready first; the same seed then no longer gives the same run. ``recv_any`` waits for those and
      returns their indices ``[E / G]`` and their step, fewer where fewer are under way; ``send_to`` steps them, or all
      in the beginning. None otherwise.
    - ``bridge``: how they are connected to compiled programs: ``host`` (called between programs) or ``callback``
      (called from within one).
    - ``overlaps``: whether a group is stepped elsewhere while this process computes the actions of another.
    - ``success()``: int8 ``[E]``, of the last episode that ended in each environment: whether that was a success (1) or
      not (0); `UNTOLD` where the environment does not report it, or none has ended. None where that is not known. Only
      evaluation asks.
    - ``agents()``: float32 ``[E, A]``, the returns of each of several agents in the last episode that ended in each
      environment; None where there is one agent. Only evaluation asks.
    """

    spec: EnvSpec
    num_envs: int
    num_groups: int
    reset: Callable[[int | Sequence[int]], Any]
    send: Callable[[np.ndarray, int], None]
    recv: Callable[[int], HostStep]
    steps: Callable[[], int]
    events: TakeEvents
    another: Callable[[int], "HostEnv"]
    close: Callable[[], None]
    send_to: Callable[[np.ndarray, np.ndarray], None] | None = None
    recv_any: Callable[[], tuple[np.ndarray, HostStep]] | None = None
    num_seeds: int = 1
    bridge: str = "host"
    overlaps: bool = True
    success: Callable[[], np.ndarray] | None = None
    agents: Callable[[], np.ndarray] | None = None
