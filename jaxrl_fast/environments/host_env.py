"""Environments stepped on the host: many at once, outside JAX, in NumPy.

A `HostEnv` is the interface of the sampler pool (`envs.pool`) and of EnvPool. Nothing in it knows JAX: the fragment
``sample`` (`fragments.host_sampling`) connects it to the graph.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

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


class ResetHosts(Protocol):
    """Starts a new episode in every environment, and discards steps in flight."""

    def __call__(self, seed: int | Sequence[int], /) -> Any:
        """Environment ``i`` is seeded by ``seed`` and ``i`` alone (with several slices: seeds ``[S]``, and ``i`` counts
        within the slice). Returns observations ``[E, ...]``."""


class Send(Protocol):
    """Starts a step of a group, and returns at once."""

    def __call__(self, actions: np.ndarray, group: int, /) -> None:
        """``actions`` ``[E / G, ...]``; ``group``: 0 to ``num_groups - 1``."""


class Receive(Protocol):
    """Waits for the step of a group."""

    def __call__(self, group: int, /) -> HostStep:
        """``group``: as given to `Send`. For the same seed and actions the result is the same, whatever the workers and
        the timing."""


class Another(Protocol):
    """Makes environments of the same kind, as for evaluation."""

    def __call__(self, num_envs: int, /) -> "HostEnv":
        """Returns ``num_envs`` environments in one group, stepped in this process."""


class SendTo(Protocol):
    """Steps some environments: those that `ReceiveAny` returned, or all in the beginning."""

    def __call__(self, actions: np.ndarray, indices: np.ndarray, /) -> None:
        """``actions`` ``[n, ...]`` for the environments ``indices`` ``[n]``."""


class ReceiveAny(Protocol):
    """Waits for the environments that are ready first."""

    def __call__(self) -> tuple[np.ndarray, HostStep]:
        """Returns their indices ``[E / G]`` and their step; fewer where fewer are under way."""


class CountSteps(Protocol):
    """Counts environment steps."""

    def __call__(self) -> int:
        """Returns those since the last reset, over all environments."""


class TakeEvents(Protocol):
    """Reports what happened that a person should know, such as a worker that was restarted."""

    def __call__(self) -> list[str]:
        """Returns one line for each event since the last call."""


class TellSuccess(Protocol):
    """Tells how episodes ended."""

    def __call__(self) -> np.ndarray:
        """Returns int8 ``[E]``: of the last episode that ended in each environment, whether that was a success (1) or
        not (0); `UNTOLD` where the environment does not say, or none has ended."""


class TellAgents(Protocol):
    """Tells what each of several agents got."""

    def __call__(self) -> np.ndarray:
        """Returns float32 ``[E, A]``: the returns of the last episode that ended in each environment."""


class CloseEnvs(Protocol):
    """Closes the environments and ends their processes."""

    def __call__(self) -> None:
        """May be called twice."""


class HostEnv(NamedTuple):
    """``num_envs`` environments in ``num_groups`` groups of equal size, which are stepped independently.

    One pool may serve several seeds: ``num_seeds`` slices of ``num_envs`` environments each. Every group then holds an
    equal part of each slice, one slice after the other, and where shapes say ``E`` they mean ``S * E``.

    - ``spec``: that of each environment.
    - ``reset``, ``send``, ``recv``: start episodes, start a step, wait for its results.
    - ``steps``: counts the steps since the last ``reset``.
    - ``events``: lines for the user.
    - ``another``: more environments of this kind, as for evaluation.
    - ``close``: ends all.
    - ``send_to``, ``recv_any``: with ``pool.order=arrival``, sampling uses these and serves whoever is ready first; the
      same seed then no longer gives the same run. None otherwise.
    - ``bridge``: how they are connected to compiled programs: ``host`` (called between programs) or ``callback``
      (called from within one).
    - ``overlaps``: whether a group is stepped elsewhere while this process computes the actions of another.
    - ``success``: how episodes ended; None where that is not known. Only evaluation asks.
    - ``agents``: the returns of each of several agents; None where there is one. Only evaluation asks.
    """

    spec: EnvSpec
    num_envs: int
    num_groups: int
    reset: ResetHosts
    send: Send
    recv: Receive
    steps: CountSteps
    events: TakeEvents
    another: Another
    close: CloseEnvs
    send_to: SendTo | None = None
    recv_any: ReceiveAny | None = None
    num_seeds: int = 1
    bridge: str = "host"
    overlaps: bool = True
    success: TellSuccess | None = None
    agents: TellAgents | None = None
