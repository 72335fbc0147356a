"""Conversion of Gymnasium's spaces to arrays, and a pool's shared arrays. Workers import this module: no JAX."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

MAX_JOINT_ACTIONS = 4096
"""Largest number of combinations of a MultiDiscrete or MultiBinary space that are numbered as one Discrete action."""
NARROWED = {"float64": np.float32, "int64": np.int32, "uint64": np.uint32}
"""64-bit dtypes, which JAX does not use by default -> their replacement."""


WriteObs = Callable[[np.ndarray, Any], None]
"""``(row [*shape], obs)``: writes an observation of the environment into a row."""


DecodeActions = Callable[[np.ndarray], Any]
"""``(actions [n, *shape]) -> sequence``: ``n`` actions for environments, none a view of the array."""


class ObsCodec(NamedTuple):
    """Conversion of an observation to an array.

    Attributes:
        shape: Shape of the array.
        dtype: Dtype of the array.
        write: Writes an observation into a row.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    write: WriteObs


class ActionCodec(NamedTuple):
    """Conversion of an array to an action.

    Attributes:
        shape: Shape of the array.
        dtype: Dtype of the array.
        decode: Converts arrays to actions of the environments.
        num_actions: Number of discrete actions; 0 if actions are continuous.
        low: Lower bounds of continuous actions, float32 ``[*shape]``.
        high: Upper bounds of continuous actions, float32 ``[*shape]``.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    decode: DecodeActions
    num_actions: int
    low: np.ndarray
    high: np.ndarray


def encode_obs(space: spaces.Space, name: str) -> ObsCodec:
    """Make the codec of an observation space.

    The shape and dtype of a Box do not change (64 bits become 32). Every other space becomes one float32 vector in the
    order of `gymnasium.spaces.flatten`: a Dict by key, a Tuple by position, Discrete and MultiDiscrete one-hot.

    Args:
        space: Observation space.
        name: Name in error messages.

    Returns:
        The codec.

    Raises:
        ValueError: The space has no fixed size.
    """
    if isinstance(space, spaces.Box):
        dtype = np.dtype(space.dtype)
        return ObsCodec(space.shape, np.dtype(NARROWED.get(dtype.name, dtype)), _write_box)
    size, write = _flat(space, 0, name)
    return ObsCodec((size,), np.dtype(np.float32), write)


def encode_action(space: spaces.Space, name: str) -> ActionCodec:
    """Make the codec of an action space.

    Supported are a bounded Box of floats, Discrete, and MultiDiscrete or MultiBinary of at most `MAX_JOINT_ACTIONS`
    combinations, which are numbered with the last part varying fastest.

    Args:
        space: Action space.
        name: Name in error messages.

    Returns:
        The codec.

    Raises:
        ValueError: Any other space.
    """
    if isinstance(space, spaces.Box):
        return _box_action(space, name)
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return _numbered(int(space.n), lambda actions: (actions + start).tolist())
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        return _joint_action(space, name)
    raise ValueError(
        f"{name} has actions of kind {type(space).__name__}: Box, Discrete, MultiDiscrete and MultiBinary are "
        "supported; a wrapper may change it, as gymnasium.wrappers.TransformAction"
    )


def sample(codec: ActionCodec, rng: np.random.Generator, size: int) -> np.ndarray:
    """Sample random actions.

    Args:
        codec: Codec of the action space.
        rng: Random generator.
        size: Number of actions.

    Returns:
        Actions ``[size, *shape]``.
    """
    if codec.num_actions:
        return rng.integers(codec.num_actions, size=(size, *codec.shape), dtype=np.int32)
    return (codec.low + rng.random((size, *codec.shape), np.float32) * (codec.high - codec.low)).astype(np.float32)


def _write_box(row: np.ndarray, obs: Any) -> None:
    if getattr(obs, "shape", None) != row.shape and np.shape(obs) != row.shape:
        raise ValueError(f"an observation has shape {np.shape(obs)}, but observation_space has shape {row.shape}")
    row[...] = obs


def _flat(space: spaces.Space, start: int, name: str) -> tuple[int, WriteObs]:
    """Return the length of a flattened space, and a function that writes it into a row from ``start`` on."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return _flat_parts(space, start, name)
    if isinstance(space, spaces.Discrete):
        return int(space.n), _one_hot(start, start + int(space.n), np.asarray(start - int(space.start)))
    if isinstance(space, spaces.MultiDiscrete):
        sizes = space.nvec.ravel()
        firsts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        return int(sizes.sum()), _one_hot(start, start + int(sizes.sum()), start + firsts - space.start.ravel())
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        size = math.prod(space.shape)
        return size, _plain(slice(start, start + size))
    raise ValueError(
        f"{name} has observations of kind {type(space).__name__}: Box, Discrete, MultiDiscrete, MultiBinary, and Dict "
        "and Tuple of these are supported; a wrapper may change it, as gymnasium.wrappers.TransformObservation"
    )


def _flat_parts(space: spaces.Dict | spaces.Tuple, start: int, name: str) -> tuple[int, WriteObs]:
    named = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    parts, end = [], start
    for key, inner in named:
        size, write = _flat(inner, end, name)
        parts.append((key, write))
        end += size

    def write_parts(row: np.ndarray, obs: Any) -> None:
        for key, write in parts:
            write(row, obs[key])

    return end - start, write_parts


def _one_hot(start: int, stop: int, offset: np.ndarray) -> WriteObs:
    """Make a writer of one-hot parts. ``offset``: position of each part's value 0; a scalar for one part."""
    whole, one = slice(start, stop), int(offset) if offset.ndim == 0 else None

    def write_one(row: np.ndarray, obs: Any) -> None:
        row[whole] = 0
        row[obs + one] = 1

    def write_each(row: np.ndarray, obs: Any) -> None:
        row[whole] = 0
        row[np.ravel(obs) + offset] = 1

    return write_each if one is None else write_one


def _plain(part: slice) -> WriteObs:
    def write(row: np.ndarray, obs: Any) -> None:
        row[part] = np.ravel(obs)

    return write


def _box_action(space: spaces.Box, name: str) -> ActionCodec:
    low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    if np.dtype(space.dtype).kind != "f":
        raise ValueError(f"{name} has actions of kind Box with {space.dtype}: Box with floats is supported")
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ValueError(
            f"{name} has unbounded actions: bound them with a wrapper, as gymnasium.wrappers.TransformAction"
        )
    return ActionCodec(space.shape, np.dtype(np.float32), lambda actions: actions.astype(space.dtype), 0, low, high)


def _joint_action(space: spaces.MultiDiscrete | spaces.MultiBinary, name: str) -> ActionCodec:
    sizes = (
        [int(n) for n in space.nvec.ravel()]
        if isinstance(space, spaces.MultiDiscrete)
        else [2] * math.prod(space.shape)
    )
    count = math.prod(sizes)
    if count > MAX_JOINT_ACTIONS:
        raise ValueError(
            f"{name} has {type(space).__name__} actions with {count:,} combinations: at most {MAX_JOINT_ACTIONS:,} can "
            "be numbered; offer fewer with a wrapper, as gymnasium.wrappers.TransformAction"
        )
    table = np.stack(np.unravel_index(np.arange(count), sizes), axis=-1).reshape(count, *space.shape)
    if isinstance(space, spaces.MultiDiscrete):
        table = table + space.start
    table = table.astype(space.dtype)
    return _numbered(count, lambda actions: table[actions])


def _numbered(count: int, decode: DecodeActions) -> ActionCodec:
    none = np.zeros((), np.float32)
    return ActionCodec((), np.dtype(np.int32), decode, count, none, none)


ALIGNMENT_BYTES = 64


def facts_dtype(num_agents: int | None) -> np.dtype:
    """Return the dtype of a record with a step's results other than observations.

    Args:
        num_agents: Number of agents with separate rewards, or None.

    Returns:
        An aligned record dtype.
    """
    own = () if num_agents is None else (num_agents,)
    return np.dtype(
        [
            ("reward", np.float32, own),
            ("episode_return", np.float32),
            ("episode_length", np.int32),
            ("terminated", bool),
            ("truncated", bool),
        ],
        align=True,
    )


class Arrays(NamedTuple):
    """Shared arrays with a row for each of ``E`` environments.

    Attributes:
        obs: Next observation for the policy.
        final_obs: Terminal observation, valid only where an episode has just ended.
        action: Action of the next step.
        facts: Other results of a step, one record a row, so that one copy is enough. The next five are views of its
            fields.
        reward: As in `HostStep`.
        terminated: As in `HostStep`.
        truncated: As in `HostStep`.
        episode_return: As in `HostStep`.
        episode_length: As in `HostStep`.
        seed: Seeds for `Stepper.reset`.
    """

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


def array_fields(
    num_envs: int, observe: ObsCodec, act: ActionCodec, num_agents: int | None = None
) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """List the arrays that `place` allocates.

    Args:
        num_envs: Number of environments.
        observe: Codec of observations.
        act: Codec of actions.
        num_agents: Number of agents with separate rewards, or None.

    Returns:
        Shape and dtype by name.
    """
    obs, scalar = ((num_envs, *observe.shape), observe.dtype), (num_envs,)
    return {
        "obs": obs,
        "final_obs": obs,
        "action": ((num_envs, *act.shape), act.dtype),
        "facts": (scalar, facts_dtype(num_agents)),
        "seed": (scalar, np.dtype(np.int64)),
    }


def size_bytes(fields: dict[str, tuple[tuple[int, ...], np.dtype]]) -> int:
    """Compute the size of the arrays that `place` allocates.

    Args:
        fields: Result of `array_fields`.

    Returns:
        Bytes.
    """
    return sum(_aligned_bytes(shape, dtype) for shape, dtype in fields.values())


def place(fields: dict[str, tuple[tuple[int, ...], np.dtype]], buffer: Any) -> Arrays:
    """Place arrays one after another in a buffer, each at the start of a separate cache line.

    Args:
        fields: Result of `array_fields`.
        buffer: Buffer of at least `size_bytes`.

    Returns:
        The arrays.
    """
    placed, offset = {}, 0
    for name, (shape, dtype) in fields.items():
        placed[name] = np.ndarray(shape, dtype, buffer, offset)
        offset += _aligned_bytes(shape, dtype)
    facts = placed["facts"]
    return Arrays(**placed, **{name: facts[name] for name in facts.dtype.names or ()})


def _aligned_bytes(shape: tuple[int, ...], dtype: np.dtype) -> int:
    return -(-math.prod(shape) * dtype.itemsize // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
