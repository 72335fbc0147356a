"""Conversion of Gymnasium's spaces to arrays, and a pool's shared arrays. Workers import this
module: no JAX.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from jaxrl_fast.spaces import (
    CONTAINERS,
    MASK,
    Space,
    SpacePart,
    array_of,
    decode,
    draw_allowed,
    is_bounded,
    layout_of,
    parts_of,
    sizes_of,
    to_image,
    with_layouts,
)

NARROWED = {"float64": np.float32, "int64": np.int32, "uint64": np.uint32}
"""64-bit dtypes, which JAX does not use by default -> their replacement."""


class SpaceError(ValueError):
    """An environment gave an observation of another shape than its space, or a number that no dtype
    of ours holds.
    """


WriteObs = Callable[[np.ndarray, Any], None]
"""``(row [*shape], obs)``: writes an observation of the environment into a row."""


Outside = Callable[[Any], list[tuple[int, str, str]]]
"""``(rows) -> [(row, entry, text)]``: values outside of their space."""


DecodeActions = Callable[[np.ndarray], Any]
"""``(actions [n, *shape]) -> sequence``: ``n`` actions for environments, none a view of the array.
"""


class ObsCodec(NamedTuple):
    """Conversion of an observation to an array, or to a record with a field for each part.

    Attributes:
        shape: Shape of the array; ``()`` for a record.
        dtype: Dtype of the array or record.
        write: Writes an observation into a row.
        space: The space as plain data (`jaxrl_fast.spaces`).
        outside: ``(rows [n, *shape]) -> [(row, entry, text)]``: values outside of their space.
            Records may be given as dictionaries of their fields. None if nothing is bounded.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    write: WriteObs
    space: Space
    outside: Outside | None = None


class ActionCodec(NamedTuple):
    """Conversion of an array to an action.

    Attributes:
        shape: Shape of the array.
        dtype: Dtype of the array.
        decode: Converts arrays to actions of the environments.
        num_actions: Number of discrete actions; 0 if actions are continuous.
        low: Lower bounds of continuous actions, float32 ``[*shape]``.
        high: Upper bounds of continuous actions, float32 ``[*shape]``.
        space: The space as plain data (`jaxrl_fast.spaces`).
        sizes: Numbers of values of several discrete parts, as in `MultiDiscrete`; ``()`` for other
            actions.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    decode: DecodeActions
    num_actions: int
    low: np.ndarray
    high: np.ndarray
    space: Space
    sizes: tuple[int, ...] = ()


def encode_obs(space: spaces.Space, name: str) -> ObsCodec:
    """Make the codec of an observation space.

    A Box has its shape and dtype (64 bits become 32, or float32 if its bounds need more). Discrete
    and MultiDiscrete become one-hot vectors. A Dict or Tuple becomes a record with a field for each
    part by its path, such as ``camera.front``: images stay bytes, an ``action_mask`` of the
    outermost Dict is bool, all else is float32.

    Args:
        space: Observation space.
        name: Name in error messages.

    Returns:
        The codec.

    Raises:
        ValueError: The space has no fixed size or no numbers, or two parts have the same path.
    """
    whole = describe_obs(space, name)
    parts = parts_of(whole)
    if not sum(math.prod(array_of(part.space)[0]) for part in parts if part.path[:1] != (MASK,)):
        raise ValueError(
            f"{name} has no numbers to observe: its observation_space is {' '.join(repr(space).split())}"
        )
    inner = {part.path: _inner(space, part.path) for part in parts}
    if whole["kind"] not in CONTAINERS:
        shape, dtype = array_of(whole)
        write, outside = _writer(space, whole), _outside(space, whole)
        check = (
            None if outside is None else lambda rows: [(i, "", text) for i, text in outside(rows)]
        )
        return ObsCodec(shape, dtype, write, whole, check)
    slots = _slots(parts, name)
    fields = {field: (dtype, shape) for _, field, dtype, shape, _ in slots}
    dtype = np.dtype([(field, *kind) for field, kind in fields.items()], align=True)
    writers = [
        (part.path, field, where, _writer(inner[part.path], part.space))
        for part, field, _, _, where in slots
    ]
    checks = [
        (part.name, field, where, _outside(inner[part.path], part.space))
        for part, field, _, _, where in slots
    ]

    def write_parts(row: Any, obs: Any) -> None:
        for path, field, where, write in writers:
            value = obs
            for key in path:
                value = value[key]
            try:
                write(row[field] if where is None else row[field][where], value)
            except SpaceError as error:
                raise SpaceError(f"'{'.'.join(map(str, path))}': {error}") from error

    def outside_parts(rows: Any) -> list[tuple[int, str, str]]:
        faults = []
        for entry, field, where, check in checks:
            if check is not None:
                values = rows[field] if where is None else rows[field][:, where]
                faults += [(i, entry, text) for i, text in check(values)]
        return faults

    bounded = any(check is not None for *_, check in checks)
    return ObsCodec(
        shape=(),
        dtype=dtype,
        write=write_parts,
        space=whole,
        outside=outside_parts if bounded else None,
    )


def _smallest_range(space: spaces.Box) -> dict[str, float]:
    """Return half the distance of the closest bounds of real numbers; nothing for images, and
    without bounds.
    """
    half = 0.5 * (space.high.astype(np.float64) - space.low.astype(np.float64))
    smallest = float(np.min(half, where=half > 0.0, initial=np.inf))
    return (
        {"half_range": smallest}
        if np.issubdtype(space.dtype, np.floating) and smallest < np.inf
        else {}
    )


def describe_obs(space: spaces.Space, name: str, path: tuple[str | int, ...] = ()) -> Space:
    """Describe an observation space as plain data.

    Args:
        space: Observation space.
        name: Name in error messages.
        path: Path of the space within the observation.

    Returns:
        The space.

    Raises:
        ValueError: The space has no fixed size.
    """
    if isinstance(space, spaces.Dict):
        if odd := [key for key in space.spaces if not isinstance(key, str)]:
            raise ValueError(f"{name} has observations with the key {odd[0]!r}: write names")
        inner = {key: describe_obs(one, name, (*path, key)) for key, one in space.spaces.items()}
        return {"kind": "Dict", "spaces": inner}
    if isinstance(space, spaces.Tuple):
        return {
            "kind": "Tuple",
            "spaces": [describe_obs(one, name, (*path, i)) for i, one in enumerate(space.spaces)],
        }
    if isinstance(space, spaces.Box):
        box: Space = {"kind": "Box", "shape": list(space.shape), "dtype": str(space.dtype)}
        box |= {"array": _array_dtype(space, path)} | _smallest_range(space)
        return with_layouts(box, path)
    array = {"array": "bool"} if path[:1] == (MASK,) else {}
    if isinstance(space, spaces.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"kind": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    if isinstance(space, spaces.MultiBinary):
        return {
            "kind": "MultiBinary",
            "shape": list(space.shape),
            "dtype": str(space.dtype),
            **array,
        }
    raise ValueError(
        f"{name} has observations of kind {type(space).__name__}: Box, Discrete, MultiDiscrete, MultiBinary, and Dict "
        "and Tuple of these are supported; write a wrapper, such as +env.wrappers=[minigrid.wrappers.ImgObsWrapper]"
    )


def _array_dtype(space: spaces.Box, path: tuple[str | int, ...]) -> str:
    """Return the dtype of a Box in training."""
    dtype = np.dtype(space.dtype)
    if path:
        is_image = dtype == np.uint8 and (
            len(space.shape) == 3 or layout_of(space.shape, dtype) is not None
        )
        return "bool" if path[:1] == (MASK,) else "uint8" if is_image else "float32"
    narrow = np.dtype(NARROWED.get(dtype.name, dtype))
    if narrow.kind not in "iu" or narrow == dtype or not space.low.size:
        return narrow.name
    limits = np.iinfo(narrow)
    return (
        narrow.name
        if space.low.min() >= limits.min and space.high.max() <= limits.max
        else "float32"
    )


def _inner(space: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        space = space.spaces[key]
    return space


def _slots(
    parts: Sequence[SpacePart], name: str
) -> list[tuple[SpacePart, str, np.dtype, tuple[int, ...], slice | None]]:
    """Return each part with its field's name, dtype and shape, and where it lies in it; a mask is
    one field.
    """
    masks = [part for part in parts if part.path[:1] == (MASK,)]
    lengths = [math.prod(array_of(part.space)[0]) for part in masks]
    slots: list[tuple[SpacePart, str, np.dtype, tuple[int, ...], slice | None]] = []
    for part in parts:
        shape, dtype = array_of(part.space)
        if part in masks:
            start = sum(lengths[: masks.index(part)])
            slots.append(
                (
                    part,
                    MASK,
                    np.dtype(bool),
                    (sum(lengths),),
                    slice(start, start + math.prod(shape)),
                )
            )
        else:
            slots.append((part, part.name, dtype, shape, None))
    names = [part.name for part in parts]
    if twice := [one for one in names if names.count(one) > 1]:
        raise ValueError(f"{name} has two observations of the name '{twice[0]}': rename one")
    return slots


def flat_obs(space: spaces.Space, name: str) -> ObsCodec:
    """Make the codec of an observation space as one array: of its only part, or one float32 vector
    of all parts.

    Args:
        space: Observation space.
        name: Name in error messages.

    Returns:
        The codec.

    Raises:
        ValueError: As `encode_obs`.
    """
    whole = encode_obs(space, name)
    if whole.dtype.fields is None:
        return whole
    sizes = {field: math.prod(kind[0].shape) for field, kind in whole.dtype.fields.items()}
    if len(sizes) == 1:
        ((field, kind),) = whole.dtype.fields.items()
        only = np.zeros((), whole.dtype)

        def write_only(row: np.ndarray, obs: Any) -> None:
            whole.write(only, obs)
            row[...] = only[field]

        return ObsCodec(kind[0].shape, kind[0].base, write_only, whole.space)
    record = np.zeros((), whole.dtype)

    def write(row: np.ndarray, obs: Any) -> None:
        whole.write(record, obs)
        row[...] = np.concatenate([np.ravel(record[field]) for field in sizes])

    return ObsCodec((sum(sizes.values()),), np.dtype(np.float32), write, whole.space)


def encode_action(space: spaces.Space, name: str) -> ActionCodec:
    """Make the codec of an action space.

    Supported are a bounded Box of floats, Discrete, MultiDiscrete and MultiBinary.

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
    none = np.zeros((), np.float32)
    if isinstance(space, spaces.Discrete):
        described: Space = {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
        return ActionCodec(
            shape=(),
            dtype=np.dtype(np.int32),
            decode=_python_numbers(int(space.start)),
            num_actions=int(space.n),
            low=none,
            high=none,
            space=described,
        )
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        described = {"kind": type(space).__name__, "dtype": str(space.dtype)}
        described |= (
            {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
            if isinstance(space, spaces.MultiDiscrete)
            else {"shape": list(space.shape)}
        )
        sizes = tuple(sizes_of(described))
        return ActionCodec(
            shape=(len(sizes),),
            dtype=np.dtype(np.int32),
            decode=partial(decode, described, xp=np),
            num_actions=0,
            low=none,
            high=none,
            space=described,
            sizes=sizes,
        )
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
    if codec.sizes:
        return rng.integers(codec.sizes, size=(size, *codec.shape), dtype=np.int32)
    if codec.num_actions:
        return rng.integers(codec.num_actions, size=(size, *codec.shape), dtype=np.int32)
    return (
        codec.low + rng.random((size, *codec.shape), np.float32) * (codec.high - codec.low)
    ).astype(np.float32)


def sample_allowed(codec: ActionCodec, rng: np.random.Generator, row: np.ndarray) -> np.ndarray:
    """Draw one uniform action that an observation allows.

    Args:
        codec: Codec of the action space.
        rng: Random generator.
        row: Record of the observation, with an ``action_mask`` if actions are masked.

    Returns:
        An action ``[*shape]``.
    """
    if MASK not in (row.dtype.names or ()) or not (codec.sizes or codec.num_actions):
        return sample(codec, rng, 1)[0]
    sizes = codec.sizes or (codec.num_actions,)
    drawn = draw_allowed(row[MASK], sizes, rng.random(row[MASK].shape), np)
    return drawn.reshape(codec.shape)


def _writer(space: spaces.Space, described: Space) -> WriteObs:
    """Return a function that writes one part into its row."""
    if isinstance(space, spaces.Box):
        if described["array"] == "bool":
            return _write_flat
        if "layout" in described:
            return _image_writer(described["layout"], space.shape)
        return (
            _write_checked
            if np.dtype(described["array"]) != space.dtype and described["array"] != "uint8"
            else _write_box
        )
    if isinstance(space, spaces.MultiBinary):
        return _write_flat
    if isinstance(space, spaces.Discrete):
        return _one_hot(int(space.n), int(space.start))
    sizes = np.array(sizes_of(described))
    firsts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    return _one_hots(np.shape(described["nvec"]), sizes, np.ravel(described["start"]), firsts)


def _image_writer(layout: str, shape: tuple[int, ...]) -> WriteObs:
    def write(row: np.ndarray, obs: Any) -> None:
        if np.shape(obs) != shape:
            raise SpaceError(
                f"an observation has shape {np.shape(obs)}, but observation_space has shape {shape}"
            )
        row[...] = to_image(np.asarray(obs), layout, np)

    return write


def _write_box(row: np.ndarray, obs: Any) -> None:
    if getattr(obs, "shape", None) != row.shape and np.shape(obs) != row.shape:
        raise SpaceError(
            f"an observation has shape {np.shape(obs)}, but observation_space has shape {row.shape}"
        )
    row[...] = obs


def _write_checked(row: np.ndarray, obs: Any) -> None:
    """Write numbers into a dtype that may not hold them."""
    with np.errstate(over="ignore", invalid="ignore"):
        _write_box(row, obs)
        # A product takes a quarter of the time of `isfinite(row).all()`, and is finite unless a
        # number is large.
        if row.dtype.kind == "f" and row.ndim == 1 and math.isfinite(row.dot(row)):
            return
    if row.dtype.kind in "iu" and not np.array_equal(row, obs):
        raise SpaceError(f"an observation is {_largest(obs)}, more than {row.dtype} holds")
    if row.dtype.kind == "f" and not np.isfinite(row).all() and np.isfinite(obs).all():
        raise SpaceError(
            f"an observation is {_largest(obs)}, more than {row.dtype} holds: scale it"
        )


def _largest(obs: Any) -> str:
    return f"{np.max(np.abs(np.asarray(obs, np.float64))):.6g}"


def _write_flat(row: np.ndarray, obs: Any) -> None:
    if np.size(obs) != row.size:
        raise SpaceError(
            f"an observation has shape {np.shape(obs)}, but observation_space has {row.size} numbers"
        )
    row[...] = np.ravel(obs)


def _one_hot(size: int, start: int) -> WriteObs:
    def write(row: np.ndarray, obs: Any) -> None:
        row.fill(0)
        index = obs - start
        if isinstance(index, np.ndarray) and index.ndim:
            raise SpaceError(
                f"an observation has shape {np.shape(obs)}, but observation_space is Discrete"
            )
        if 0 <= index < size:  # else `_outside` finds it
            row[index] = 1

    return write


def _one_hots(
    shape: tuple[int, ...], sizes: np.ndarray, starts: np.ndarray, firsts: np.ndarray
) -> WriteObs:
    def write(row: np.ndarray, obs: Any) -> None:
        if np.shape(obs) != shape:
            raise SpaceError(
                f"an observation has shape {np.shape(obs)}, but observation_space has shape {shape}"
            )
        row[...] = 0
        index = np.ravel(obs) - starts
        inside = (index >= 0) & (index < sizes)
        row[(index + firsts)[inside]] = 1

    return write


def _outside(
    space: spaces.Space, described: Space
) -> Callable[[np.ndarray], list[tuple[int, str]]] | None:
    """Return a function that finds values outside of a space: row and text of each row with such a
    value, no NaNs.
    """
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        count = len(sizes_of(described))
        text = f"none of the values of {' '.join(repr(space).split())}"
        return lambda rows: [(int(i), text) for i in np.flatnonzero(rows.sum(axis=1) != count)]
    if not isinstance(space, spaces.Box) or described["array"] == "bool":
        return None
    dtype = np.dtype(described["array"])
    low, high = space.low.astype(dtype), space.high.astype(dtype)
    if "layout" in described:
        low, high = (to_image(bound, described["layout"], np) for bound in (low, high))
    limits: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    if (low <= limits.min).all() and (high >= limits.max).all():
        return None

    def find(rows: np.ndarray) -> list[tuple[int, str]]:
        wrong = (rows < low) | (rows > high)
        if not wrong.any():
            return []
        each = [np.argwhere(row_wrong)[0] for row_wrong in wrong if row_wrong.any()]
        bounds = [(tuple(at), low[tuple(at)], high[tuple(at)]) for at in each]
        indices = np.flatnonzero(wrong.reshape(len(wrong), -1).any(axis=1))
        return [
            (
                int(i),
                f"{rows[i][at]:.6g} at {list(map(int, at))}, not within {least:.6g} to {most:.6g}",
            )
            for i, (at, least, most) in zip(indices, bounds, strict=True)
        ]

    return find


def _python_numbers(start: int) -> DecodeActions:
    return lambda actions: (actions + start).tolist()


def _box_action(space: spaces.Box, name: str) -> ActionCodec:
    low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    if np.dtype(space.dtype).kind != "f":
        raise ValueError(
            f"{name} has actions of kind Box with {space.dtype}: Box with floats is supported"
        )
    if not is_bounded(low, high).all():
        raise ValueError(
            f"{name} has unbounded actions ({low.min():g} to {high.max():g}): bound them with a wrapper, as "
            "gymnasium.wrappers.RescaleAction or TransformAction"
        )
    described = {"kind": "Box", "shape": list(space.shape), "dtype": str(space.dtype)}
    return ActionCodec(
        shape=space.shape,
        dtype=np.dtype(np.float32),
        decode=partial(decode, described, xp=np),
        num_actions=0,
        low=low,
        high=high,
        space=described,
    )


ALIGNMENT_BYTES = 64


def facts_dtype(num_agents: int | None, num_metrics: int = 0) -> np.dtype:
    """Return the dtype of a record with a step's results other than observations.

    Args:
        num_agents: Number of agents with separate rewards, or None.
        num_metrics: Number of metrics; without any, the record has no field for them.

    Returns:
        An aligned record dtype.
    """
    shape = () if num_agents is None else (num_agents,)
    metrics = [("metrics", np.float32, (num_metrics,))] if num_metrics else []
    return np.dtype(
        [
            ("reward", np.float32, shape),
            ("episode_return", np.float32),
            ("episode_length", np.int32),
            ("terminated", bool),
            ("truncated", bool),
            *metrics,
        ],
        align=True,
    )


class Arrays(NamedTuple):
    """Shared arrays with a row for each of ``E`` environments.

    Attributes:
        obs: Next observation for the policy.
        final_obs: Terminal observation, valid only where an episode has just ended.
        action: Action of the next step.
        facts: Other results of a step, one record a row, so that one copy is enough. The next five
            and the metrics are views of its fields.
        reward: As in `HostStep`.
        terminated: As in `HostStep`.
        truncated: As in `HostStep`.
        episode_return: As in `HostStep`.
        episode_length: As in `HostStep`.
        seed: Seeds for `Stepper.reset`.
        metrics: As in `HostStep`; None without metrics.
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
    metrics: np.ndarray | None = None


def array_fields(
    num_envs: int,
    observe: ObsCodec,
    act: ActionCodec,
    num_agents: int | None = None,
    num_metrics: int = 0,
) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """List the arrays that `place` allocates.

    Args:
        num_envs: Number of environments.
        observe: Codec of observations.
        act: Codec of actions.
        num_agents: Number of agents with separate rewards, or None.
        num_metrics: Number of metrics.

    Returns:
        Shape and dtype by name.
    """
    obs, scalar = ((num_envs, *observe.shape), observe.dtype), (num_envs,)
    return {
        "obs": obs,
        "final_obs": obs,
        "action": ((num_envs, *act.shape), act.dtype),
        "facts": (scalar, facts_dtype(num_agents, num_metrics)),
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
    """Place the arrays of a pool in a buffer.

    Args:
        fields: Result of `array_fields`.
        buffer: Buffer of at least `size_bytes`.

    Returns:
        The arrays.
    """
    placed = allocate(fields, buffer)
    facts = placed["facts"]
    return Arrays(**placed, **{name: facts[name] for name in facts.dtype.names or ()})


def allocate(
    fields: dict[str, tuple[tuple[int, ...], np.dtype]], buffer: Any
) -> dict[str, np.ndarray]:
    """Place arrays one after another in a buffer, each at the start of a separate cache line.

    Args:
        fields: Shape and dtype by name.
        buffer: Buffer of at least `size_bytes`.

    Returns:
        The arrays by name.
    """
    placed, offset = {}, 0
    for name, (shape, dtype) in fields.items():
        placed[name] = np.ndarray(shape, dtype, buffer, offset)
        offset += _aligned_bytes(shape, dtype)
    return placed


def _aligned_bytes(shape: tuple[int, ...], dtype: np.dtype) -> int:
    return -(-math.prod(shape) * dtype.itemsize // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
