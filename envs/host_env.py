"""Vectorized environments stepped on the host, outside JAX, in NumPy.

`HostEnv` is the interface of the sampler pool (`jaxrl_fast.envs.pool`) and of EnvPool. It calls
nothing of JAX: the fragment ``sample`` (`hosts.sampling`) connects it to the graph.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_fast.core import EnvSpec, MadeEnv
from jaxrl_fast.envs.rollout_plan import RolloutPlan

MAX_STEPS = 2**31
"""Where the step counter of a sampling state, an int32, wraps around to 0."""
UNTOLD = -1
"""Marks the success of an episode whose environment does not report it."""


class HostStep(NamedTuple):
    """Results of one step of a group of environments, ``[E / G, ...]``, where ``G`` is the number
    of groups.

    All arrays are read-only copies that belong to the receiver, never views of shared memory.

    Attributes:
        obs: Next observation for the policy; after the end of an episode, the first one of the next
            episode.
        next_obs: Terminal observation where an episode ended, else ``obs``. May be the same array
            if no episode ended.
        reward: Training reward, float32; ``[E / G, A]`` with several agents.
        terminated: Bool, false where ``truncated``.
        truncated: Bool.
        episode_return: Return of the episode including this step.
        episode_length: Length of the episode including this step. A length of 0 at the end of an
            episode means that it must not be counted: its worker died, or the game only lost a
            life.
        metrics: Metrics of the episode, valid only where one has just ended, in the order of
            ``EnvSpec.metrics``, float32 ``[E / G, K]``; NaN where there is none. ``()`` without
            metrics.
    """

    obs: Any
    next_obs: Any
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    episode_return: np.ndarray
    episode_length: np.ndarray
    metrics: Any = ()


TakeEvents = Callable[[], list[str]]
"""Returns one line for each event since the last call that the user should read, such as a worker
that restarted.
"""


class DeviceStep(NamedTuple):
    """Results of one step of a simulator on the device of training, JAX arrays ``[E, ...]`` that it
    may overwrite.

    Attributes:
        obs: Observations in the simulator's form.
        final_obs: Terminal ones where episodes ended, in the same form; None if the simulator gives
            none.
        reward: Rewards.
        terminated: Whether an episode ended by termination.
        truncated: Whether an episode ended by its limit.
        began: Whether the step only began an episode, and is not counted.
    """

    obs: Any
    final_obs: Any
    reward: Any
    terminated: Any
    truncated: Any
    began: Any


class DeviceSteps(NamedTuple):
    """How a simulator steps without its arrays leaving the device of training.

    Attributes:
        reset: ``(seed) -> obs [E, ...]``, starts an episode in every environment.
        step: ``(actions) -> DeviceStep``, for actions of ``decode``. Arrays of the last step must
            have been read before.
        arrange: ``(obs) -> obs [E, ...]``, from the simulator's form to training's; pure.
        decode: ``(actions [E, ...]) -> actions`` as the simulator takes them; pure.
    """

    reset: Callable[[int], Any]
    step: Callable[[Any], DeviceStep]
    arrange: Callable[[Any], Any]
    decode: Callable[[Any], Any]


class Rollouts(NamedTuple):
    """Whole rollouts where the environments are stepped (``pool.bridge=worker``).

    Attributes:
        load: ``(plan) -> arrays by name``, prepares the processes for a plan,
            whose ``fields`` it completes, and returns the shared arrays.
        roll: Makes a rollout from the shared arrays; its results are in them afterwards.
        parts: Rows of each process.
        log: Adds a line for the user.
        plan: Returns the plan that was loaded last, or None.
    """

    load: Callable[[RolloutPlan], dict[str, np.ndarray]]
    roll: Callable[[], None]
    parts: tuple[slice, ...]
    log: Callable[[str], None]
    plan: Callable[[], RolloutPlan | None]


class HostEnv(NamedTuple):
    """``num_envs`` environments in ``num_groups`` groups of equal size, which are stepped
    independently.

    One pool may serve several seeds with ``num_seeds`` slices of ``num_envs`` environments each.
    Every group then holds an equal part of each slice, one slice after the other, and ``E`` means
    ``S * E`` in shapes.

    Attributes:
        spec: Spec of each environment.
        num_envs: Number of environments, ``E``.
        num_groups: Number of groups, ``G``.
        reset: ``(seed) -> obs [E, ...]``, starts an episode in every environment and discards steps
            in flight. The seed of environment ``i`` depends on ``seed`` and ``i`` only. With
            several slices, seeds are ``[S]``, and ``i`` counts within the slice.
        send: ``(actions [E / G, ...], group)``, starts a step of a group, 0 to ``num_groups - 1``,
            and returns at once.
        recv: ``(group) -> HostStep``, waits for that step. The result depends on the seed and the
            actions only, not on the workers or the timing.
        steps: Counts the steps since the last ``reset``, over all environments.
        events: Lines for the user.
        another: ``(num_envs) -> HostEnv`` of the same kind in one group, stepped in this process,
            as for evaluation.
        close: Closes the environments and ends their processes; may be called twice.
        send_to: ``(actions [n, ...], indices [n])``, steps those environments, or all in the
            beginning. Used instead of ``send`` with ``pool.order=arrival``, else None. The same
            seed then no longer gives the same run.
        recv_any: ``() -> (indices [E / G], HostStep)`` of the environments that are ready first,
            fewer where fewer are under way. Used with ``send_to``, else None.
        num_seeds: Number of slices, ``S``.
        bridge: Connection to compiled programs: ``host`` (called between programs), ``callback``
            (called from within one) or ``worker`` (whole rollouts, with ``rollouts``).
        overlaps: Whether a group is stepped elsewhere while this process computes the actions of
            another.
        success: ``() -> int8 [E]`` of each environment's last finished episode: 1 success, 0
            failure, `UNTOLD` if the environment does not report it or no episode finished. None if
            unsupported. Only evaluation calls it.
        agents: ``() -> float32 [E, A]``, the agents' returns in each environment's last finished
            episode. None with one agent. Only evaluation calls it.
        require_inside: ``(obs [n, ...], place)``, raises an error if an observation is outside of
            its space; ``place`` names the environment and step of a row. None if nothing is
            bounded.
        watched: ``(num_envs, tell) -> HostEnv`` as ``another``, whose environments report values
            outside of their spaces to ``tell``. None with EnvPool.
        rollouts: Whole rollouts in the processes of the environments, or None.
        on_device: How a simulator is stepped on the device of training, instead of by ``send`` and
            ``recv``, or None.
        draws: Whether an environment made with a camera has pictures, according to its metadata.
        made: How `jaxrl_fast.make_env` made it; None if another function did.
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
    require_inside: Callable[[Any, Callable[[int], str]], None] | None = None
    watched: Callable[[int, Callable[[str], None]], "HostEnv"] | None = None
    rollouts: Rollouts | None = None
    on_device: DeviceSteps | None = None
    draws: bool = False
    made: MadeEnv | None = None


def as_one_group(host: HostEnv) -> HostEnv:
    """Return all environments of a pool as one group, also of several seeds.

    Args:
        host: Environments with a fixed order.

    Returns:
        The same environments, ``num_envs`` of them, which its ``close`` leaves open.
    """
    rows = host.num_envs * host.num_seeds
    size = rows // host.num_groups

    def reset(seed: Any) -> Any:
        return host.reset([seed + i for i in range(host.num_seeds)] if host.num_seeds > 1 else seed)

    def send(actions: np.ndarray, group: int) -> None:
        for part in range(host.num_groups):
            host.send(actions[part * size : (part + 1) * size], part)

    def recv(group: int) -> HostStep:
        steps = [host.recv(part) for part in range(host.num_groups)]
        return (
            steps[0]
            if len(steps) == 1
            else jax.tree.map(lambda *parts: np.concatenate(parts), *steps)
        )

    functions: dict[str, Any] = {"reset": reset, "send": send, "recv": recv, "close": lambda: None}
    return host._replace(num_envs=rows, num_groups=1, num_seeds=1, **functions)
