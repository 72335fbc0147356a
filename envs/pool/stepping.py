"""The tight loop: some environments stepped one after another, their results put into rows of shared arrays. No JAX."""

import math
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from envs.pool.codec import ActionCodec, ObsCodec, encode_action, encode_obs

ALIGNMENT_BYTES = 64
GOES_ON = "jaxrl_fast.goes_on"
"""In the ``info`` of a step that ends an episode for who learns, while the totals of the episode run on: a life was
lost, and the game goes on. The step says then, with a length of 0, that no episode is to be counted."""


class PoolError(RuntimeError):
    """The environments cannot be stepped any more: one of them raised, or its worker died again and again."""


class World(NamedTuple):
    """What is stepped: ``make()`` gives one environment; ``observe`` and ``act`` say how it lies in arrays.
    ``clip_rewards``: learning gets the signs of rewards, while an episode's totals add up the rewards themselves."""

    name: str
    make: Callable[[], gymnasium.Env]
    observe: ObsCodec
    act: ActionCodec
    clip_rewards: bool = False


FACTS = np.dtype(
    [
        ("reward", np.float32),
        ("episode_return", np.float32),
        ("episode_length", np.int32),
        ("terminated", bool),
        ("truncated", bool),
    ],
    align=True,
)


class Arrays(NamedTuple):
    """Rows of ``E`` environments. ``obs`` is what the policy sees next; ``final_obs`` is the last observation of an
    episode and valid only where one has just ended. ``seed`` is what `Stepper.reset` starts from. ``facts`` are all the
    others that a step leaves, in one record a row, so that they are copied at once."""

    obs: np.ndarray
    final_obs: np.ndarray
    action: np.ndarray
    facts: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    episode_return: np.ndarray
    episode_length: np.ndarray
    seed: np.ndarray


class Stepper(NamedTuple):
    """Environments ``[E]``: ``reset()`` starts all of those that it owns from their seeds, ``step(rows)`` takes the
    actions of ``rows``, one step each, and starts a new episode where one ended; both leave their results in the
    arrays. ``close()`` closes the environments."""

    reset: Callable[[], None]
    step: Callable[[slice], None]
    close: Callable[[], None]


def describe(make: Callable[[], gymnasium.Env], name: str) -> World:
    """Make one environment to learn its spaces.

    Raises:
        ValueError: it cannot be made, or its spaces are not supported.
    """
    try:
        env = make()
    except ModuleNotFoundError as error:
        raise ValueError(f"{name} needs the package '{error.name}': pip install {error.name}") from error
    except Exception as error:
        raise ValueError(f"{name} cannot be made: {type(error).__name__}: {' '.join(str(error).split())}") from error
    try:
        world = of_env(env, make, name)
    finally:
        env.close()
    return world


def of_env(env: Any, make: Callable[[], gymnasium.Env], name: str) -> World:
    """The `World` whose spaces are those of ``env``.

    Raises:
        ValueError: they are not supported, or ``env`` has none.
    """
    observed, acted = getattr(env, "observation_space", None), getattr(env, "action_space", None)
    if not (isinstance(observed, gymnasium.Space) and isinstance(acted, gymnasium.Space)):
        raise ValueError(f"{name} is {type(env).__name__}: a gymnasium.Env has observation_space and action_space")
    return World(name, make, encode_obs(observed, name), encode_action(acted, name))


def array_fields(num_envs: int, observe: ObsCodec, act: ActionCodec) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shape and dtype of what `place` places."""
    obs, scalar = ((num_envs, *observe.shape), observe.dtype), (num_envs,)
    return {
        "obs": obs,
        "final_obs": obs,
        "action": ((num_envs, *act.shape), act.dtype),
        "facts": (scalar, FACTS),
        "seed": (scalar, np.dtype(np.int64)),
    }


def size_bytes(fields: dict[str, tuple[tuple[int, ...], np.dtype]]) -> int:
    """What `place` needs."""
    return sum(_aligned_bytes(shape, dtype) for shape, dtype in fields.values())


def place(fields: dict[str, tuple[tuple[int, ...], np.dtype]], buffer: Any) -> Arrays:
    """The arrays of `array_fields` one after another in ``buffer``, each beginning a cache line of its own."""
    placed, offset = {}, 0
    for name, (shape, dtype) in fields.items():
        placed[name] = np.ndarray(shape, dtype, buffer, offset)
        offset += _aligned_bytes(shape, dtype)
    return Arrays(**placed, **{name: placed["facts"][name] for name in FACTS.names or ()})


def make_stepper(world: World, arrays: Arrays, owned: Sequence[int]) -> Stepper:
    """Make the environments ``owned``, indices into the rows of ``arrays``.

    Raises (here and from ``reset`` and ``step``):
        PoolError: an environment raised; its message ends with the environment's traceback.
    """
    envs: dict[int, gymnasium.Env] = {}
    steps: list[Callable] = [_not_ours] * len(arrays.seed)
    returns, lengths = np.zeros(len(arrays.seed)), np.zeros(len(arrays.seed), np.int32)
    goes_on = np.zeros(len(arrays.seed), bool)
    write, decode = world.observe.write, world.act.decode
    obs_rows, final_rows = list(arrays.obs), list(arrays.final_obs)

    def make_all() -> None:
        for i in owned:
            try:
                envs[i] = world.make()
            except (Exception, SystemExit) as error:
                raise describe_failure(error, world.name, i, "making it") from error
            steps[i] = envs[i].step

    def reset() -> None:
        for i in owned:
            try:
                write(obs_rows[i], envs[i].reset(seed=int(arrays.seed[i]))[0])
            except (Exception, SystemExit) as error:
                raise describe_failure(error, world.name, i, f"reset, seed {arrays.seed[i]}") from error
        returns[:], lengths[:] = 0.0, 0

    def step(rows: slice) -> None:
        arrays.terminated[rows] = arrays.truncated[rows] = False
        rewards: list[Any] = []
        try:
            for step_one, row, action in zip(steps[rows], obs_rows[rows], decode(arrays.action[rows]), strict=True):
                obs, reward, terminated, truncated, info = step_one(action)
                if terminated or truncated:
                    obs = end(rows.start + len(rewards), obs, terminated, info)
                write(row, obs)
                rewards.append(reward)
            arrays.reward[rows] = rewards
        except (Exception, SystemExit) as error:
            i = min(rows.start + len(rewards), rows.stop - 1)
            where = f"step {lengths[i] + 1} of an episode, seed {arrays.seed[i]}"
            raise describe_failure(error, world.name, i, where) from error
        add_up(arrays, rows, returns, lengths, goes_on)
        if world.clip_rewards:
            np.sign(arrays.reward[rows], out=arrays.reward[rows])

    def end(i: int, obs: Any, terminated: Any, info: dict) -> Any:
        """Note the end of an episode and begin the next."""
        arrays.terminated[i], arrays.truncated[i] = terminated, not terminated
        goes_on[i] = GOES_ON in info
        write(final_rows[i], obs)
        return envs[i].reset()[0]

    def close() -> None:
        while envs:
            envs.popitem()[1].close()

    make_all()
    return Stepper(reset, step, close)


def add_up(arrays: Arrays, rows: slice, returns: np.ndarray, lengths: np.ndarray, goes_on: np.ndarray) -> None:
    """Add a step to the totals of ``rows``, and begin anew where an episode ended. ``returns``, ``lengths``: running
    totals ``[E]``; ``goes_on``: where the environment plays on behind the end (a life of a game), so that no episode
    is counted."""
    running, counts = returns[rows], lengths[rows]
    running += arrays.reward[rows]
    counts += 1
    arrays.episode_return[rows], arrays.episode_length[rows] = running, counts
    ended = arrays.terminated[rows] | arrays.truncated[rows]
    if ended.any():
        over, lost = ended & ~goes_on[rows], ended & goes_on[rows]
        running[over], counts[over] = 0.0, 0
        arrays.episode_return[rows][lost], arrays.episode_length[rows][lost] = 0.0, 0


def _not_ours(action: Any) -> Any:
    raise AssertionError("this environment is another worker's")


def describe_failure(error: BaseException, name: str, index: int, where: str) -> PoolError:
    """The error that a user sees in place of the environment's own."""
    what = traceback.format_exception_only(error)[-1].strip()
    told = "".join(traceback.format_exception(error)).rstrip()
    return PoolError(f"environment {index} of {name} raised {what} ({where}). Its traceback:\n{told}")


def _aligned_bytes(shape: tuple[int, ...], dtype: np.dtype) -> int:
    return -(-math.prod(shape) * dtype.itemsize // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
