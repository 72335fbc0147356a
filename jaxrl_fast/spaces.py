"""An environment's own observation and action spaces as plain data, and their conversion to the
arrays of training.

A space is a dictionary that JSON can hold: ``{"kind": "Discrete", "n": 3, "start": -1}``, or
``{"kind": "Dict", "spaces": {...}}``. Observations are encoded and actions decoded with NumPy or
with JAX (``xp``), over any leading batch axes. The pool's workers import this module: no JAX.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

NO_BOUND = 1e10
"""A bound of this size, such as the largest float, is none: actions scaled to it overflow."""


def is_bounded(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return which actions have two bounds.

    Args:
        low: Lower bounds.
        high: Upper bounds.

    Returns:
        Bool of their shape.
    """
    return (np.abs(low) < NO_BOUND) & (np.abs(high) < NO_BOUND)


Space = dict[str, Any]
"""A space as plain data. Its ``kind`` is one of Gymnasium's, or Agents: one space for each agent,
by name. An ``array`` is the dtype in training, ``layout`` the `AXES` of an image that has other axes
there.
"""
MASK = "action_mask"
CONTAINERS = ("Dict", "Tuple", "Agents")
KINDS = {"Box": "iufb", "Discrete": "iu", "MultiDiscrete": "iu", "MultiBinary": "iub"}
"""Kind of a part -> kinds of dtypes that its values may have; a Box of integers takes no real
numbers.
"""


AXES = {
    "HW": "gray",
    "CHW": "channels first",
    "KHW": "stacked gray frames",
    "KHWC": "stacked frames",
    "KCHW": "stacked frames, channels first",
}
"""Axes of images that training takes as ``[height, width, channels]``: K frames become channels."""
MOST_CHANNELS, LEAST_PIXELS = 4, 16
"""Channels of one picture, and height and width of a gray one or one of several frames, since small
tables of bytes are no pictures.
"""


def layout_of(shape: Sequence[int], dtype: Any) -> str | None:
    """Return the axes of an image that training takes with other axes, as far as shapes determine
    them.

    As in Stable-Baselines3, the smallest axis holds the channels.

    Args:
        shape: Shape of an observation.
        dtype: Its dtype.

    Returns:
        A key of `AXES`; None for other arrays, and for images ``[height, width, channels]``.
    """
    if np.dtype(dtype) != np.uint8:
        return None
    if len(shape) == 2 and min(shape) >= LEAST_PIXELS:
        return "HW"
    if len(shape) == 3 and shape[0] < min(shape[1:]):
        return "CHW" if shape[0] <= 3 else "KHW"
    if len(shape) == 4 and shape[3] <= MOST_CHANNELS and min(shape[1:3]) >= LEAST_PIXELS:
        return "KHWC"
    if len(shape) == 4 and shape[1] <= MOST_CHANNELS and min(shape[2:]) >= LEAST_PIXELS:
        return "KCHW"
    return None


def image_shape(shape: Sequence[int], layout: str) -> tuple[int, int, int]:
    """Return the shape ``[height, width, channels]`` of an image in training.

    Args:
        shape: Shape as the environment gives it.
        layout: Its axes.

    Returns:
        The shape.
    """
    size = dict(zip(layout, shape, strict=True))
    return size["H"], size["W"], size.get("K", 1) * size.get("C", 1)


def to_image(x: Any, layout: str, xp: Any) -> Any:
    """Return images ``[..., height, width, channels]``; later frames are later channels.

    Args:
        x: Images ``[..., *layout]``.
        layout: Their axes.
        xp: ``numpy`` or ``jax.numpy``.

    Returns:
        The images.
    """
    lead = x.shape[: x.ndim - len(layout)]
    order = [layout.index(axis) for axis in "HWKC" if axis in layout]
    moved = xp.transpose(x, (*range(len(lead)), *(len(lead) + axis for axis in order)))
    return moved.reshape((*lead, *image_shape(x.shape[len(lead) :], layout)))


def describe_images(space: Space) -> list[str]:
    """Describe how images are taken whose axes training changes, or their shapes do not determine.

    Args:
        space: Observation space.

    Returns:
        A line for each.
    """
    lines = []
    for part in parts_of(space):
        shape, what = own_shape(part.space), f"'{part.name}'" if part.path else "the observation"
        if layout := part.space.get("layout"):
            height, width, channels = image_shape(shape, layout)
            lines.append(
                f"{what}, uint8{list(shape)}, is taken as {AXES[layout]}: a picture of {height} x {width} pixels "
                f"with {channels} channel{'s' if channels > 1 else ''}"
            )
        elif (
            part.space["kind"] == "Box"
            and own_dtype(part.space) == np.uint8
            and len(shape) == 3
            and shape[2] >= min(shape[:2])
        ):
            lines.append(
                f"{what}, uint8{list(shape)}, is taken as [height, width, channels], which its shape does not determine"
            )
    return lines


class SpacePart(NamedTuple):
    """One array of an observation.

    Attributes:
        path: Keys and positions that lead to it.
        space: Its space, which is no container.
    """

    path: tuple[str | int, ...]
    space: Space

    @property
    def name(self) -> str:
        """Return the path in one word, such as ``camera.front``; "" for an observation of one
        array.
        """
        return ".".join(map(str, self.path))


def parts_of(space: Space, path: tuple[str | int, ...] = ()) -> list[SpacePart]:
    """List the arrays of an observation.

    Args:
        space: Observation space.
        path: Path of the space.

    Returns:
        The parts, in the order of the space.
    """
    if space["kind"] not in CONTAINERS:
        return [SpacePart(path, space)]
    inner = space["spaces"]
    items = inner.items() if isinstance(inner, Mapping) else enumerate(inner)
    return [part for key, one in items for part in parts_of(one, (*path, key))]


def own_shape(space: Space) -> tuple[int, ...]:
    """Return the shape of a part as the environment gives it.

    Args:
        space: Space that is no container.

    Returns:
        The shape.
    """
    if space["kind"] == "Discrete":
        return ()
    return np.shape(space["nvec"]) if space["kind"] == "MultiDiscrete" else tuple(space["shape"])


def own_dtype(space: Space) -> np.dtype:
    """Return the dtype of a part as the environment gives it.

    Args:
        space: Space that is no container.

    Returns:
        The dtype.
    """
    return np.dtype(space.get("dtype", "int64"))


def sizes_of(space: Space) -> list[int]:
    """Return the number of values of each discrete number in a part.

    Args:
        space: Discrete, MultiDiscrete or MultiBinary space.

    Returns:
        The numbers, flat.
    """
    if space["kind"] == "Discrete":
        return [space["n"]]
    return (
        [2] * math.prod(space["shape"])
        if space["kind"] == "MultiBinary"
        else np.ravel(space["nvec"]).tolist()
    )


def array_of(space: Space) -> tuple[tuple[int, ...], np.dtype]:
    """Return shape and dtype of a part in training.

    Args:
        space: Space that is no container.

    Returns:
        Shape and dtype. Discrete numbers are one-hot, one after another.
    """
    dtype = np.dtype(space.get("array", "float32"))
    if space["kind"] in ("Discrete", "MultiDiscrete"):
        return (sum(sizes_of(space)),), dtype
    if layout := space.get("layout"):
        return image_shape(space["shape"], layout), dtype
    return (
        tuple(space["shape"]) if space["kind"] == "Box" else (math.prod(space["shape"]),)
    ), dtype


def text_of(space: Space) -> str:
    """Describe a space by its shapes and dtypes.

    Args:
        space: Observation or action space.

    Returns:
        Text, such as ``{image: uint8[8, 8, 3], task: one of 0..3}``.
    """
    if space["kind"] in CONTAINERS:
        inner = space["spaces"]
        if isinstance(inner, Mapping):
            return "{" + ", ".join(f"{key}: {text_of(one)}" for key, one in inner.items()) + "}"
        return "(" + ", ".join(map(text_of, inner)) + ")"
    if space["kind"] == "Discrete":
        return f"one of {space['start']}..{space['start'] + space['n'] - 1}"
    return f"{own_dtype(space)}{list(own_shape(space))}"


def text_of_value(value: Any) -> str:
    """Describe an observation by its shapes and dtypes.

    Args:
        value: Observation.

    Returns:
        Text as of `text_of`.
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {text_of_value(one)}" for key, one in value.items()) + "}"
    if isinstance(value, tuple) or (
        isinstance(value, list) and any(isinstance(one, Mapping) for one in value)
    ):
        return "(" + ", ".join(map(text_of_value, value)) + ")"
    try:
        value = value if hasattr(value, "dtype") else np.asarray(value)
    except ValueError:
        return type(value).__name__
    return f"{value.dtype}{list(np.shape(value))}"


Read = Callable[[Any], Any]
"""``(obs) -> array``: takes a part out of an observation, by its names, or raises a ``ValueError``.
"""


def reader(part: SpacePart) -> Read:
    """Make the function that takes one part out of observations.

    Args:
        part: SpacePart.

    Returns:
        The function. Observations are as the environment gives them, with any leading batch axes;
        NumPy, JAX or plain Python. The array has a dtype that JAX does not change.
    """
    space, shape, path = part.space, own_shape(part.space), part.path
    what, axes = f"'{part.name}'" if path else "it", len(shape)
    real = "f" in (kind_of(own_dtype(space)), kind_of(file_dtype(space)))
    kinds = KINDS[space["kind"]] if real else KINDS[space["kind"]].replace("f", "")
    discrete = space["kind"] in ("Discrete", "MultiDiscrete")
    narrow, limits = np.dtype(np.int32) if discrete else array_of(space)[1], range_of(space)

    def read(obs: Any) -> Any:
        value = obs
        try:
            for key in path:
                value = value[key]
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"it has no '{part.name}'") from error
        array = value if hasattr(value, "dtype") and hasattr(value, "shape") else np.asarray(value)
        fits = array.shape == shape or (
            len(array.shape) > axes and array.shape[len(array.shape) - axes :] == shape
        )
        if not fits or kind_of(array.dtype) not in kinds:
            raise ValueError(f"{what} is {array.dtype}{list(array.shape)}, not {text_of(space)}")
        if not isinstance(array, np.ndarray | np.generic):
            return array
        if (
            limits is not None
            and (discrete or array.dtype != narrow)
            and not np.all(_within(array, *limits))
        ):
            raise ValueError(f"{what} is outside of {text_of(space)}")
        require_finite(array, what)
        return array if array.dtype in (narrow, np.bool_) else np.asarray(array, narrow)

    return read


def require_finite(array: Any, what: str) -> None:
    """Check that an observation has no NaN and no infinity, from which a policy computes no action.

    Args:
        array: Array of NumPy or JAX.
        what: Its name.

    Raises:
        ValueError: It has one.
    """
    if kind_of(array.dtype) != "f":
        return
    native = isinstance(array, np.ndarray) and array.dtype.kind == "f"
    finite = np.isfinite(array if native else np.asarray(array, np.float32))  # bfloat16
    if not finite.all():
        at = tuple(np.argwhere(~finite)[0].tolist())
        raise ValueError(f"{what} has {float(array[at])} at {list(at)}")


def _within(x: Any, low: Any, high: Any) -> Any:
    return (low <= x) & (x <= high)


def lead_of(parts: Sequence[SpacePart], values: Sequence[Any]) -> tuple[int, ...]:
    """Return the batch axes of an observation.

    Args:
        parts: Parts of the observation.
        values: Their arrays.

    Returns:
        The leading axes.

    Raises:
        ValueError: The parts differ in them.
    """
    leads = [
        x.shape[: len(x.shape) - len(own_shape(part.space))]
        for part, x in zip(parts, values, strict=True)
    ]
    if leads.count(leads[0]) < len(leads):
        raise ValueError(
            f"its parts differ in their batch axes: {' and '.join(str(list(one)) for one in leads)}"
        )
    return leads[0]


def kind_of(dtype: Any) -> str:
    """Return the kind of a dtype as NumPy writes it, "f" also for bfloat16.

    Args:
        dtype: Dtype of NumPy or JAX.

    Returns:
        One letter, such as "f", "i", "u" or "b".
    """
    kind = getattr(dtype, "kind", "O")
    return "f" if kind == "V" and str(dtype).startswith("bfloat") else kind


def range_of(space: Space) -> tuple[Any, Any] | None:
    """Return the smallest and largest value of a part of whole numbers.

    Args:
        space: Space that is no container.

    Returns:
        The limits, or None for real numbers.
    """
    if space["kind"] in ("Discrete", "MultiDiscrete"):
        start = np.asarray(space["start"])
        return start, start + np.asarray(
            space["nvec"] if space["kind"] == "MultiDiscrete" else space["n"]
        ) - 1
    dtype = array_of(space)[1]
    return (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype.kind in "iu" else None


def encode(space: Space, values: Mapping[tuple, Any], xp: Any) -> Any:
    """Encode an observation for the networks.

    Args:
        space: Observation space.
        values: Array of each part by path, ``[..., *own_shape]``.
        xp: ``numpy`` or ``jax.numpy``.

    Returns:
        One array, or arrays by name for a Dict or Tuple; parts without a value are missing. Parts
        of an ``action_mask`` are joined.
    """
    arrays = {
        part.name: _encode(part.space, values[part.path], xp)
        for part in parts_of(space)
        if part.path in values
    }
    if space["kind"] not in CONTAINERS:
        return arrays[""]
    masks = [name for name in arrays if name.startswith(f"{MASK}.")]
    if masks:
        arrays[MASK] = xp.concatenate([arrays.pop(name) for name in masks], axis=-1)
    return arrays


def _encode(space: Space, x: Any, xp: Any) -> Any:
    dtype = array_of(space)[1]
    x = xp.asarray(x)
    lead = x.shape[: x.ndim - len(own_shape(space))]
    if space["kind"] == "Box":
        x = to_image(x, space["layout"], xp) if "layout" in space else x
        return x.astype(dtype)
    x = x.reshape((*lead, -1))
    if space["kind"] == "MultiBinary":
        return x.astype(dtype)
    sizes, starts = sizes_of(space), np.ravel(space["start"])
    # [D, sum(sizes)]: the columns of each part
    columns = np.repeat(np.eye(len(sizes), dtype=np.int32), sizes, axis=1)
    values = np.concatenate(
        [np.arange(size) + start for size, start in zip(sizes, starts, strict=True)]
    )
    # Not by indexing, which is a gather where the batch is symbolic, as in an exported file.
    ones = (1,) * len(lead)
    each = (
        x.reshape((*lead, len(sizes), 1)).astype(np.int32)
        * columns.reshape((*ones, *columns.shape))
    ).sum(axis=-2)
    return (each == values.astype(np.int32).reshape((*ones, -1))).astype(dtype)


def encode_agents(
    space: Space, acts: Space, shapes: Mapping[str, Any], values: Mapping[tuple, Any], xp: Any
) -> dict[str, Any]:
    """Encode the observations of several agents for the networks, padded to the largest.

    Args:
        space: Observation space of kind Agents.
        acts: Action space of kind Agents.
        shapes: Shape and dtype of each array of training, ``[A, ...]``.
        values: Array of each part by path, which begins with the agent's name. Agents without any
            are out.
        xp: ``numpy`` or ``jax.numpy``.

    Returns:
        Arrays ``[..., A, *own]`` by name, without the global state.
    """
    present = [part for part in parts_of(space) if part.path in values]
    lead = lead_of(present[:1], [values[present[0].path]])
    arrays: dict[str, list[Any]] = {name: [] for name in shapes if name != "state"}
    for name, agent_space in space["spaces"].items():
        inner = {path[1:]: x for path, x in values.items() if path[0] == name}
        encoded = encode(agent_space, inner, xp) if inner else {}
        encoded = encoded if isinstance(encoded, dict) else {"": encoded}
        act = acts["spaces"][name]
        every = xp.ones((*lead, 0 if act["kind"] == "Box" else sum(sizes_of(act))), bool)
        rows = {MASK: encoded.pop(MASK, every), "out": xp.full(lead, not inner)}
        vectors = [
            x if len(encoded) == 1 else x.reshape((*lead, -1)).astype(np.float32)
            for x in encoded.values()
        ]
        rows |= (
            {"obs": vectors[0] if len(vectors) == 1 else xp.concatenate(vectors, axis=-1)}
            if vectors
            else {}
        )
        for entry, each in arrays.items():
            each.append(
                _padded(rows.get(entry), lead, shapes[entry].shape[1:], shapes[entry].dtype, xp)
            )
    at = len(lead)
    return {
        entry: xp.concatenate([xp.expand_dims(x, at) for x in each], axis=at)
        for entry, each in arrays.items()
    }


def _padded(x: Any, lead: tuple, shape: tuple, dtype: Any, xp: Any) -> Any:
    """Pad vectors with zeros at the end; None gives zeros."""
    if x is None:
        return xp.zeros((*lead, *shape), dtype)
    missing = shape[-1] - x.shape[-1] if shape else 0
    x = x.astype(dtype)
    return xp.concatenate([x, xp.zeros((*lead, missing), dtype)], axis=-1) if missing else x


def draw_allowed(mask: Any, sizes: Sequence[int], uniform: Any, xp: Any) -> Any:
    """Draw discrete actions that a mask allows.

    Args:
        mask: Allowed values of all parts, one after another, bool ``[..., sum(sizes)]``.
        sizes: Number of values of each part.
        uniform: Random numbers from 0 to 1, of the mask's shape.
        xp: ``numpy`` or ``jax.numpy``.

    Returns:
        Values ``[..., parts]``, int32; 0 of a part without an allowed value.
    """
    ranks = xp.where(mask, uniform, -1.0)
    parts = xp.split(ranks, np.cumsum(sizes)[:-1], axis=-1)
    return xp.stack([part.argmax(axis=-1) for part in parts], axis=-1).astype(np.int32)


def decode(space: Space, action: Any, xp: Any) -> Any:
    """Decode actions of the policy for the environment.

    Args:
        space: Action space.
        action: Actions of training: numbers from 0 of a Discrete space, ``[..., D]`` of
            MultiDiscrete and MultiBinary spaces, ``[..., *shape]`` of a Box; with several agents
            ``[..., A, *one]``.
        xp: ``numpy`` or ``jax.numpy``. NumPy gives the dtype of the space, JAX at most 32 bits.

    Returns:
        Actions ``[..., *shape]`` as the environment takes them; with several agents by name.
    """
    if space["kind"] == "Agents":
        axes = 1 + _action_axes(next(iter(space["spaces"].values())))
        each = xp.split(action, len(space["spaces"]), axis=action.ndim - axes)
        actions = [
            one.reshape((*one.shape[: one.ndim - axes], *one.shape[one.ndim - axes + 1 :]))
            for one in each
        ]
        return {
            name: decode(one, x, xp)
            for (name, one), x in zip(space["spaces"].items(), actions, strict=True)
        }
    dtype = own_dtype(space)
    dtype = dtype if xp is np else np.dtype(f"{dtype.kind}{min(dtype.itemsize, 4)}")
    if space["kind"] == "Box":
        return action.astype(dtype)
    shape = own_shape(space)
    lead = action.shape if space["kind"] == "Discrete" else action.shape[:-1]
    starts = np.broadcast_to(np.asarray(space.get("start", 0), dtype), shape)
    return action.reshape((*lead, *shape)).astype(dtype) + starts.reshape(
        (*(1,) * len(lead), *shape)
    )


def _action_axes(space: Space) -> int:
    """Return the axes of one action in training."""
    if space["kind"] == "Box":
        return len(space["shape"])
    return 0 if space["kind"] == "Discrete" else 1


def file_dtype(space: Space) -> np.dtype:
    """Return the dtype of a part in exported files, which have at most 32 bits.

    Args:
        space: Space that is no container.

    Returns:
        The dtype.
    """
    dtype = own_dtype(space)
    if dtype.itemsize <= 4:
        return dtype
    return array_of(space)[1] if space["kind"] == "Box" else np.dtype(f"{dtype.kind}4")


def build(space: Space, leaves: Mapping[tuple, Any], path: tuple[str | int, ...] = ()) -> Any:
    """Put arrays into the containers of a space.

    Args:
        space: Observation space.
        leaves: Array by path. Entries of dictionaries without any array are left out.
        path: Path of the space.

    Returns:
        Nested dictionaries and tuples.
    """
    if space["kind"] not in CONTAINERS:
        return leaves[path]
    inner = space["spaces"]
    if not isinstance(inner, Mapping):
        return tuple(build(one, leaves, (*path, i)) for i, one in enumerate(inner))
    held = {
        key: one
        for key, one in inner.items()
        if any(p[: len(path) + 1] == (*path, key) for p in leaves)
    }
    return {key: build(one, leaves, (*path, key)) for key, one in held.items()}


def with_layouts(space: Space, path: tuple[str | int, ...] = ()) -> Space:
    """Return an observation space with the layouts of its images.

    Args:
        space: Observation space.
        path: Path of the space.

    Returns:
        The space.
    """
    if space["kind"] in CONTAINERS:
        inner = space["spaces"]
        if isinstance(inner, Mapping):
            return space | {"spaces": {k: with_layouts(v, (*path, k)) for k, v in inner.items()}}
        return space | {"spaces": [with_layouts(v, (*path, i)) for i, v in enumerate(inner)]}
    if space["kind"] != "Box" or path[:1] == (MASK,):
        return space
    layout = layout_of(space["shape"], space["dtype"])
    return space if layout is None else space | {"layout": layout}


def space_of_arrays(obs: Any) -> Space:
    """Return the space of an environment whose observations are the arrays of training.

    Args:
        obs: Shapes and dtypes, in dictionaries, lists and tuples.

    Returns:
        The space; None, an empty container, becomes an empty Tuple.
    """
    if isinstance(obs, Mapping):
        return {"kind": "Dict", "spaces": {key: space_of_arrays(obs[key]) for key in sorted(obs)}}
    if obs is None or isinstance(obs, list | tuple):
        return {"kind": "Tuple", "spaces": [space_of_arrays(one) for one in obs or ()]}
    dtype = np.dtype(obs.dtype)
    return {"kind": "Box", "shape": list(obs.shape), "dtype": dtype.name, "array": dtype.name}
