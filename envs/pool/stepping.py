"""The inner loop: steps environments one after another and writes results into rows of shared
arrays. No JAX.
"""

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from operator import itemgetter
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from jaxrl_fast.envs.episode_metrics import (
    NO_KINDS,
    add_steps,
    check_kinds,
    is_number,
    no_metrics,
    number_of,
    values_of,
)
from jaxrl_fast.envs.errors import EnvFailed, RuleBroken
from jaxrl_fast.envs.pool.codec import (
    ActionCodec,
    Arrays,
    ObsCodec,
    SpaceError,
    encode_action,
    encode_obs,
    sample_allowed,
)
from jaxrl_fast.envs.pool.several_agents import AgentsTogether, encode_agents
from jaxrl_fast.spaces import MASK
from jaxrl_fast.system import place_of

GOES_ON = "jaxrl_fast.goes_on"
"""Key in the ``info`` of a step that ends an episode for training only: a life was lost, and the
game continues. Its totals continue, too, and the step has length 0, so that no episode is counted.
"""
SUCCESS = ("is_success", "success")
"""Keys in the ``info`` of a step that ends an episode: whether it was a success, as in
Gymnasium-Robotics.
"""
UNTOLD = -1
"""`host_env.UNTOLD`, repeated here since that module imports JAX."""


class PoolError(EnvFailed):
    """The environments can no longer be stepped: one raised an error, or its worker died
    repeatedly.
    """


MakeGymnasium = Callable[[], gymnasium.Env]
"""Makes a new Gymnasium environment at each call, always with the same spaces, in the parent or in
a worker.
"""


class HostEnvSpec(NamedTuple):
    """Spec of a pool's environments.

    Attributes:
        name: Name in messages.
        make: Makes one environment.
        observe: Codec of observations.
        act: Codec of actions.
        clip_rewards: Use the signs of rewards for training; totals of episodes add up the rewards
            themselves.
        num_agents: As in `EnvSpec`.
        own_sizes: As in `EnvSpec`.
        draws: As in `HostEnv`.
        step_s: Measured time of a step in seconds, or None.
        metrics: Kind of each metric in ``info``, by name, as in `EnvSpec`.
    """

    name: str
    make: MakeGymnasium
    observe: ObsCodec
    act: ActionCodec
    clip_rewards: bool = False
    num_agents: int | None = None
    own_sizes: tuple[tuple[int, int], ...] = ()
    draws: bool = False
    step_s: float | None = None
    metrics: dict[str, str] = NO_KINDS


class Inside(NamedTuple):
    """The environments of a process and the totals of their running episodes.

    Attributes:
        envs: Environments by row.
        returns: Running returns, float64 ``[E]``.
        lengths: Running lengths in steps, int32 ``[E]``.
        metrics: Metrics of running episodes.
    """

    envs: dict[int, gymnasium.Env]
    returns: np.ndarray
    lengths: np.ndarray
    metrics: "Measuring"


class Stepper(NamedTuple):
    """The environments of one process; their actions and results are rows of `Arrays`.

    Attributes:
        reset: Resets all environments with the seeds in the arrays, and writes ``obs``.
        step: ``(rows)``, takes one step and resets environments whose episode ended. Reads
            ``action`` of ``rows``, and writes everything but ``seed``.
        close: Closes all environments; may be called twice.
        success: Int8 ``[E]`` as returned by `HostEnv.success`, changed in place, not shared between
            processes.
        agents: Float32 ``[E, A]`` as returned by `HostEnv.agents`, likewise; ``[E, 0]`` with one
            agent.
        inside: The environments, for whole rollouts (`rolling.make_roll`).
    """

    reset: Callable[[], None]
    step: Callable[[slice], None]
    close: Callable[[], None]
    success: np.ndarray
    agents: np.ndarray
    inside: Inside


def describe(
    make: MakeGymnasium,
    name: str,
    first: Any = None,
    measure: Callable[[gymnasium.Env, HostEnvSpec], float] | None = None,
    metrics: bool = True,
) -> HostEnvSpec:
    """Make one environment to read its spaces and the metrics in its ``info``, and close it.

    Args:
        make: Makes one environment.
        name: Name in messages.
        first: Environment to read and close, None to make one.
        measure: Returns ``HostEnvSpec.step_s``, None if it is not needed.
        metrics: Whether numbers in the ``info`` of a step are metrics if the environment declares
            none.

    Returns:
        The spec.

    Raises:
        ValueError: The environment cannot be made.
        RuleBroken: Its spaces, wrappers or metrics are not supported, or its ``reset`` or ``step``
            is not Gymnasium's.
    """
    env = make_one(make, name) if first is None else first
    try:
        host_spec = of_env(env, make, name)
        info = check_calls(env, host_spec, always=metrics)
        host_spec = host_spec._replace(metrics=metrics_of(env, info, name))
        return host_spec if measure is None else host_spec._replace(step_s=measure(env, host_spec))
    except ValueError as error:
        raise RuleBroken(str(error)) from error
    finally:
        env.close()


def make_one(make: MakeGymnasium, name: str) -> gymnasium.Env:
    """Make one environment.

    Args:
        make: Makes one environment.
        name: Name in messages.

    Returns:
        The environment.

    Raises:
        ValueError: The environment cannot be made.
    """
    try:
        return make()
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{name} needs the package '{error.name}': pip install {error.name}"
        ) from error
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"{name} cannot be made: {type(error).__name__}: {' '.join(str(error).split())}"
        ) from error


STATEFUL = {
    "NormalizeObservation": "algo.normalize_observations=true (the default without images)",
    "NormalizeReward": "algo.normalize_rewards=true (with on-policy algorithms)",
}
"""Wrappers with running statistics, of `WRITERS` -> our option."""
WRITERS = ("gymnasium", "gym")


def refuse_statistics(kind: Any, name: str) -> None:
    """Refuse a wrapper with running statistics, which evaluation and the policy's files would lack.

    Args:
        kind: Class of a wrapper or environment.
        name: Name in messages.

    Raises:
        ValueError: It is such a wrapper, or a subclass.
    """
    for base in getattr(kind, "__mro__", ()):
        if base.__name__ in STATEFUL and base.__module__.split(".")[0] in WRITERS:
            raise ValueError(
                f"{name}: {kind.__name__} has running statistics that evaluation lacks: write {STATEFUL[base.__name__]}"
            )


METRICS = "episode_metrics"
"""Key in the ``metadata`` of an environment: its metrics, kinds by the key in ``info``."""


def metrics_of(env: gymnasium.Env, info: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return the metrics of an environment: those that its metadata declares, else the numbers in
    its ``info``.

    Args:
        env: Environment.
        info: ``info`` of a step.
        name: Name in messages.

    Returns:
        Kind of each metric by name.

    Raises:
        ValueError: The declaration is wrong.
    """
    declared = (getattr(env, "metadata", None) or {}).get(METRICS)
    if declared is None:
        numbers = [key for key, value in info.items() if isinstance(key, str) and is_number(value)]
        return {key: "mean" for key in numbers if key not in (*SUCCESS, GOES_ON)}
    check_kinds(declared, f"{name}, metadata['{METRICS}']")
    return dict(declared)


def check_calls(
    env: gymnasium.Env, host_spec: HostEnvSpec, *, always: bool = False
) -> Mapping[str, Any]:
    """Reset and step an environment once, and check the results against Gymnasium's interface.

    Other errors are left to the pool, which names their place.

    Args:
        env: Environment, to be closed afterwards.
        host_spec: Its spec.
        always: Also call environments of Gymnasium and ALE.

    Returns:
        ``info`` of the step; empty if there was no step.

    Raises:
        ValueError: The environment has the interface of Gym before 0.26, or returns something else.
    """
    trusted = not always and type(env.unwrapped).__module__.split(".")[0] in ("gymnasium", "ale_py")
    if trusted or host_spec.num_agents is not None:
        return {}
    name = host_spec.name
    try:
        first = env.reset(seed=0)
        if not (isinstance(first, tuple) and len(first) == 2 and isinstance(first[1], dict)):
            raise ValueError(f"{name}: {OLD_RESET}")
        row = np.zeros(host_spec.observe.shape, host_spec.observe.dtype)
        if MASK in (row.dtype.names or ()):
            host_spec.observe.write(row, first[0])
        drawn = sample_allowed(host_spec.act, np.random.default_rng(0), row)
        action = host_spec.act.decode(drawn[None])[0]
        result: Any = env.step(action)
        number = len(result) if isinstance(result, tuple) else 1
        if number != 5:
            raise ValueError(f"{name}: step returns {number} values: {NEW_STEP}")
        if not is_reward(result[1]):
            raise ValueError(
                f"{name}: step returns the reward {result[1]!r}: write one number, such as float(reward)"
            )
        return result[4] if isinstance(result[4], dict) else {}
    except (Exception, SystemExit) as error:
        said = str(error)
        if "(expected 5, got " in said:  # in a wrapper of Gymnasium
            number = int(said.rpartition("got ")[2].rstrip(") "))
            raise ValueError(f"{name}: step returns {number} values: {NEW_STEP}") from error
        if (
            isinstance(error, TypeError)
            and "reset()" in said
            and ("seed" in said or "options" in said)
        ):
            raise ValueError(f"{name}: {OLD_RESET}") from error
        if said.startswith(name):
            raise
        return {}


def is_reward(reward: Any) -> bool:
    """Check whether a reward is one number.

    Args:
        reward: Reward of a step.

    Returns:
        True for a number of Python, NumPy or another package, and for an array without axes.
    """
    try:
        array = np.asarray(reward)
    except Exception:  # of another package's type
        return False
    return array.ndim == 0 and bool(np.issubdtype(array.dtype, np.number) or array.dtype == bool)


OLD_RESET = (
    "reset must be reset(self, *, seed=None, options=None) and return (obs, info), as in Gymnasium"
)
NEW_STEP = (
    "return obs, reward, terminated, truncated, info, as in Gymnasium; truncated marks a time limit, after which "
    "values are bootstrapped"
)


def of_env(env: Any, make: MakeGymnasium, name: str) -> HostEnvSpec:
    """Return the spec of an environment.

    Args:
        env: Environment with the spaces.
        make: Makes one environment.
        name: Name in messages.

    Returns:
        The spec.

    Raises:
        ValueError: The environment has no spaces, or they or a wrapper are not supported.
    """
    layer = env
    while layer is not None:
        refuse_statistics(type(layer), name)
        layer = getattr(layer, "__dict__", {}).get("env")
    together = getattr(env, "unwrapped", None)
    if isinstance(together, AgentsTogether):
        observe, act, sizes = encode_agents(together, name)
        of_agents: dict[str, Any] = {"num_agents": len(together.names), "own_sizes": sizes}
        return HostEnvSpec(name, make, observe, act, **of_agents, draws=has_pictures(env))
    observed, acted = getattr(env, "observation_space", None), getattr(env, "action_space", None)
    if not (isinstance(observed, gymnasium.Space) and isinstance(acted, gymnasium.Space)):
        raise ValueError(
            f"{name} is {type(env).__name__}: a gymnasium.Env has observation_space and action_space"
        )
    return HostEnvSpec(
        name, make, encode_obs(observed, name), encode_action(acted, name), draws=has_pictures(env)
    )


RENDER_MODE = "rgb_array"
DRAWN_BY_PYGAME = tuple(
    f"gymnasium.envs.{family}" for family in ("classic_control", "toy_text", "box2d")
)


def lacks_pygame(env: gymnasium.Env) -> bool:
    """Check whether an environment of Gymnasium draws by pygame, which is not installed.

    Args:
        env: Environment.

    Returns:
        True if it cannot be drawn.
    """
    return (
        type(env.unwrapped).__module__.startswith(DRAWN_BY_PYGAME) and find_spec("pygame") is None
    )


def has_pictures(env: gymnasium.Env) -> bool:
    """Check whether an environment can be drawn, without making another one with a camera.

    Args:
        env: Environment of any ``render_mode``.

    Returns:
        Whether its metadata names pictures, or it has a ``render`` and its metadata names nothing.
    """
    modes = (getattr(env, "metadata", None) or {}).get("render_modes")
    renders = type(env.unwrapped).render is not gymnasium.Env.render
    drawn = RENDER_MODE in modes if modes else renders
    return drawn and not lacks_pygame(env)


def make_stepper(host_spec: HostEnvSpec, arrays: Arrays, owned: Sequence[int]) -> Stepper:
    """Make a process's environments.

    Args:
        host_spec: Spec of the environments.
        arrays: Shared arrays.
        owned: Rows of ``arrays`` whose environments this process steps.

    Returns:
        The stepper. Its ``reset`` and ``step`` raise `PoolError`, too.

    Raises:
        PoolError: An environment raised an error. The message ends with the environment's
            traceback.
    """
    rows = _make_rows(host_spec, arrays, owned)

    def close() -> None:
        while rows.envs:
            rows.envs.popitem()[1].close()

    return Stepper(
        reset=partial(_reset, host_spec, arrays, rows),
        step=_make_step(host_spec, arrays, rows),
        close=close,
        success=rows.success,
        agents=rows.agents,
        inside=Inside(rows.envs, rows.returns, rows.lengths, rows.metrics),
    )


class _Rows(NamedTuple):
    """The environments of a process and their running episodes, by row of the shared arrays.

    Attributes:
        envs: Environments that this process steps.
        steps: Their functions ``step``; others raise an error.
        obs: Rows of the observations.
        final_obs: Rows of the terminal observations.
        returns: Returns so far.
        lengths: Lengths so far.
        goes_on: Whether a game goes on after the end of an episode (`GOES_ON`).
        success: Success of the last episode.
        agent_returns: Returns of each agent so far.
        agents: Returns of each agent in the last episode.
        metrics: Metrics of the environment.
    """

    envs: dict[int, gymnasium.Env]
    steps: list[Callable]
    obs: list[np.ndarray]
    final_obs: list[np.ndarray]
    returns: np.ndarray
    lengths: np.ndarray
    goes_on: np.ndarray
    success: np.ndarray
    agent_returns: np.ndarray
    agents: np.ndarray
    metrics: "Measuring"


def _make_rows(host_spec: HostEnvSpec, arrays: Arrays, owned: Sequence[int]) -> _Rows:
    count = len(arrays.seed)
    agent_returns, agents = np.zeros((2, count, host_spec.num_agents or 0), np.float32)
    envs: dict[int, gymnasium.Env] = {}
    steps: list[Callable] = [_not_ours] * count
    for i in owned:
        try:
            envs[i] = host_spec.make()
        except (Exception, SystemExit) as error:
            raise describe_failure(error, host_spec.name, i, "making it") from error
        steps[i] = envs[i].step
    return _Rows(
        envs=envs,
        steps=steps,
        # Not by iteration, which gives scalars instead of arrays without axes.
        obs=[arrays.obs[i, ...] for i in range(len(arrays.obs))],
        final_obs=[arrays.final_obs[i, ...] for i in range(len(arrays.final_obs))],
        returns=np.zeros(count),
        lengths=np.zeros(count, np.int32),
        goes_on=np.zeros(count, bool),
        success=np.full(count, UNTOLD, np.int8),
        agent_returns=agent_returns,
        agents=agents,
        metrics=make_measuring(host_spec.metrics, arrays),
    )


def _reset(host_spec: HostEnvSpec, arrays: Arrays, rows: _Rows) -> None:
    for i, env in rows.envs.items():
        try:
            host_spec.observe.write(rows.obs[i], env.reset(seed=int(arrays.seed[i]))[0])
        except (Exception, SystemExit) as error:
            where = f"reset, seed {arrays.seed[i]}"
            raise describe_failure(error, host_spec.name, i, where) from error
    rows.returns[:], rows.lengths[:], rows.agent_returns[:] = 0.0, 0, 0.0
    rows.metrics.clear()


def _make_step(host_spec: HostEnvSpec, arrays: Arrays, rows: _Rows) -> Callable[[slice], None]:
    write, decode = host_spec.observe.write, host_spec.act.decode
    has_metrics, metrics = bool(host_spec.metrics), rows.metrics

    def step(part: slice) -> None:
        arrays.terminated[part] = arrays.truncated[part] = False
        rewards = list[Any]()
        try:
            for step_one, row, action in zip(
                rows.steps[part], rows.obs[part], decode(arrays.action[part]), strict=True
            ):
                obs, reward, terminated, truncated, info = step_one(action)
                if has_metrics:
                    metrics.add(part.start + len(rewards), info)
                if terminated or truncated:
                    obs = end(part.start + len(rewards), obs, terminated, info)
                write(row, obs)
                rewards.append(reward)
            arrays.reward[part] = rewards
        except (Exception, SystemExit) as error:
            i = min(part.start + len(rewards), part.stop - 1)
            where = f"step {rows.lengths[i] + 1} of an episode, seed {arrays.seed[i]}"
            raise describe_failure(error, host_spec.name, i, where) from error
        if host_spec.num_agents is not None:
            add_up_each(arrays, part, rows.agent_returns, rows.agents)
        add_up(arrays, part, rows.returns, rows.lengths, rows.goes_on)
        if host_spec.clip_rewards:
            np.sign(arrays.reward[part], out=arrays.reward[part])

    def end(i: int, obs: Any, terminated: Any, info: dict) -> Any:
        """Write the terminal observation and success of an episode, and reset the environment."""
        arrays.terminated[i], arrays.truncated[i] = terminated, not terminated
        rows.goes_on[i] = GOES_ON in info
        rows.success[i] = told_success(info)
        if has_metrics and not rows.goes_on[i]:
            metrics.end(i)
        write(rows.final_obs[i], obs)
        return rows.envs[i].reset()[0]

    return step


def told_success(info: dict) -> int:
    """Read the success of an episode.

    Args:
        info: ``info`` of the episode's last step.

    Returns:
        1, 0, or `UNTOLD`.
    """
    value = next((info[key] for key in SUCCESS if key in info), None)
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    return (
        int(bool(value)) if isinstance(value, bool | int | float | np.bool_ | np.number) else UNTOLD
    )


FLOATS = frozenset((float, np.float64, np.float32))
"""Types of numbers that need no conversion."""


def reader_of(names: Iterable[str]) -> Callable[[dict], Sequence[float]]:
    """Make the function that reads the metrics of a step.

    Args:
        names: Names of the metrics.

    Returns:
        ``(info) -> values``; NaN for a metric that is missing or no number.
    """
    wanted = list(names)
    # of a single name it gives no tuple
    take = itemgetter(*wanted, *wanted[:1]) if wanted else lambda info: ()

    def read(info: dict) -> Sequence[float]:
        try:
            values = take(info)[: len(wanted)]
        except KeyError:
            values = tuple(info.get(name, np.nan) for name in wanted)
        return values if FLOATS.issuperset(map(type, values)) else list(map(number_of, values))

    return read


MOST_UNREAD = 1024
"""Steps of an episode whose metrics are stored before they are added up."""


class Measuring(NamedTuple):
    """Metrics of running episodes.

    Attributes:
        add: ``(i, info)``, adds a step of an environment.
        end: ``(i)``, writes the metrics of an episode that ended.
        clear: Forgets all running episodes.
    """

    add: Callable[[int, dict], None]
    end: Callable[[int], None]
    clear: Callable[[], None]


def make_measuring(kinds: Mapping[str, str], arrays: Arrays) -> Measuring:
    """Make the metrics of a process's environments.

    Steps are stored and added up when their episode ends, because NumPy takes as long as a
    simulator for one step.

    Args:
        kinds: Kind of each metric by name.
        arrays: Shared arrays; ``metrics`` is written.

    Returns:
        The functions.
    """
    read, unread = reader_of(kinds), [list[Any]() for _ in arrays.seed]
    totals = [no_metrics(kinds, 1) for _ in arrays.seed]

    def add(i: int, info: dict) -> None:
        unread[i].append(read(info))
        if len(unread[i]) == MOST_UNREAD:
            add_up_steps(i)

    def add_up_steps(i: int) -> None:
        with np.errstate(over="ignore", invalid="ignore"):  # infinities are left out later
            totals[i] = add_steps(kinds, totals[i], np.array(unread[i], np.float32))
        unread[i].clear()

    def end(i: int) -> None:
        assert arrays.metrics is not None
        if unread[i]:
            add_up_steps(i)
        arrays.metrics[i] = values_of(kinds, totals[i])
        totals[i] = no_metrics(kinds, 1)

    def clear() -> None:
        for i, values in enumerate(unread):
            values.clear()
            totals[i] = no_metrics(kinds, 1)

    return Measuring(add, end, clear)


def add_up(
    arrays: Arrays, rows: slice, returns: np.ndarray, lengths: np.ndarray, goes_on: np.ndarray
) -> None:
    """Add a step to the totals of running episodes, and reset those that ended.

    Args:
        arrays: Shared arrays; ``episode_return`` and ``episode_length`` are written.
        rows: Rows that were stepped.
        returns: Running returns, ``[E]``, changed in place.
        lengths: Running lengths in steps, ``[E]``, changed in place.
        goes_on: Environments in which only a life was lost, so that no episode is counted, bool
            ``[E]``.
    """
    running, counts, reward = returns[rows], lengths[rows], arrays.reward[rows]
    running += reward if reward.ndim == 1 else reward.sum(axis=1)
    counts += 1
    arrays.episode_return[rows], arrays.episode_length[rows] = running, counts
    ended = arrays.terminated[rows] | arrays.truncated[rows]
    if ended.any():
        over, lost = ended & ~goes_on[rows], ended & goes_on[rows]
        running[over], counts[over] = 0.0, 0
        arrays.episode_return[rows][lost], arrays.episode_length[rows][lost] = 0.0, 0


def add_up_each(arrays: Arrays, rows: slice, running: np.ndarray, ended: np.ndarray) -> None:
    """Add a step to the returns of each agent, and store the returns of finished episodes.

    Args:
        arrays: Shared arrays.
        rows: Rows that were stepped.
        running: Running returns, ``[E, A]``, changed in place.
        ended: Returns of the last finished episode, ``[E, A]``, changed in place.
    """
    totals, over = running[rows], arrays.terminated[rows] | arrays.truncated[rows]
    totals += arrays.reward[rows]
    ended[rows][over] = totals[over]
    totals[over] = 0.0


def _not_ours(action: Any) -> Any:
    raise AssertionError("this environment is another worker's")


def describe_failure(error: BaseException, name: str, index: int, where: str) -> PoolError:
    """Wrap an environment's error for the user.

    Args:
        error: Error of the environment.
        name: Name of the environments.
        index: Index of the environment.
        where: What the environment was doing.

    Returns:
        The error to raise.
    """
    if isinstance(error, SpaceError):
        return PoolError(f"environment {index} of {name}: {error} ({where})")
    what, place = " ".join(traceback.format_exception_only(error)[-1].split()), place_of(error)
    lines = "".join(traceback.format_exception(error)).rstrip()
    at = "" if place is None else f" in {place}"
    return PoolError(
        f"environment {index} of {name} raised {what} ({where}){at}. Its traceback:\n{lines}"
    )
