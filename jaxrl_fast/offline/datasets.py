"""Episodes in files: one ``.npy`` file per array and a description, without pickle; or a data set
of Minari.

Every episode of ``n`` steps has ``n + 1`` observations, as in Minari. Observations and actions are
the arrays of training (``EnvSpec.obs`` and ``EnvSpec.action``), as sampled: not normalized, images
not stacked.
"""

import hashlib
import importlib.metadata
import json
import math
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_fast import spaces
from jaxrl_fast.core import (
    Actions,
    Box,
    Discrete,
    EnvSpec,
    Extras,
    MultiDiscrete,
    PyTree,
    Transition,
)
from jaxrl_fast.system import local_path

DESCRIPTION, FORMAT_VERSION = "dataset.json", 1
MINARI = "minari:"
"""Prefix of the name of a data set of Minari, in place of a folder."""


NOT_SAID: dict[str, Any] = {}
"""`Dataset.about` of data of unknown origin."""


class Dataset(NamedTuple):
    """Whole episodes, one after another, in ``N`` steps and ``K`` episodes.

    Attributes:
        obs: Observations ``[N + K, ...]`` by path in the environment's observation; ``""`` for a
            single array.
        action: Actions ``[N, ...]``.
        reward: Rewards ``[N]``, float32; ``[N, A]`` with several agents.
        terminated: Whether the task ended with a step, bool ``[N]``.
        truncated: Whether an episode was cut after a step, bool ``[N]``.
        lengths: Steps of each episode, int ``[K]``.
        about: What made the data, for people: text and numbers by name.
    """

    obs: dict[str, np.ndarray]
    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    lengths: np.ndarray
    about: dict[str, Any] = NOT_SAID

    @property
    def returns(self) -> np.ndarray:
        """Undiscounted return of each episode, ``[K]``, summed over agents."""
        total = self.reward.astype(np.float64).reshape(len(self.reward), -1).sum(1)
        return np.add.reduceat(total, np.cumsum(self.lengths) - self.lengths)

    def __repr__(self) -> str:
        return f"Dataset({len(self.lengths):,} episodes, {len(self.action):,} steps, {self.about.get('env', 'own')})"


def named_leaves(tree: PyTree) -> dict[str, Any]:
    """Return the leaves of an observation by path.

    Args:
        tree: Observation, or its shapes.

    Returns:
        Leaves by paths such as ``camera`` or ``arm/joints``; ``""`` for a single array.
    """
    keystr = jax.tree_util.keystr
    return {
        keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree.leaves_with_path(tree)
    }


OUTCOME = "action", "reward", "terminated"


def join(episodes: Iterable[Transition], spec: EnvSpec, about: dict[str, Any]) -> Dataset:
    """Join episodes.

    Args:
        episodes: Steps of each episode, leaves ``[n, ...]``. One that neither terminates nor is
            truncated is cut.
        spec: Environment.
        about: What made the data.

    Returns:
        The data set.

    Raises:
        ValueError: There is no episode.
    """
    found = [jax.tree.map(np.asarray, episode) for episode in episodes]
    if not found:
        raise ValueError("there is no episode to store: collect more steps")
    observed = [
        named_leaves(jax.tree.map(lambda x, y: np.concatenate([x, y[-1:]]), e.obs, e.next_obs))
        for e in found
    ]
    obs = {name: np.concatenate([one[name] for one in observed]) for name in named_leaves(spec.obs)}
    cuts = [e.truncated.copy() for e in found]
    for cut, episode in zip(cuts, found, strict=True):
        cut[-1] |= ~episode.terminated[-1]
    action, reward, terminated = (np.concatenate([getattr(e, n) for e in found]) for n in OUTCOME)
    lengths = np.array([len(e.reward) for e in found])
    return Dataset(
        obs, action, reward, terminated, np.concatenate(cuts), lengths, {"env": spec.name, **about}
    )


def episodes_in(rollout: Transition) -> Iterator[Transition]:
    """Cut the steps of environments into episodes.

    Args:
        rollout: Consecutive steps ``[T, E, ...]``, in host memory.

    Returns:
        Iterator over episodes, leaves ``[n, ...]``: also the first and last of each environment,
        which may be cut.
    """
    done = rollout.terminated | rollout.truncated
    for env in range(done.shape[1]):
        own = jax.tree.map(lambda x, env=env: x[:, env], rollout)
        ends = [*np.flatnonzero(done[:, env]) + 1, len(done)]
        for start, end in zip([0, *ends], ends, strict=False):
            if end > start:
                yield jax.tree.map(lambda x, start=start, end=end: x[start:end], own)


def steps_in(dataset: Dataset, spec: EnvSpec) -> Transition:
    """Return all steps of a data set.

    Args:
        dataset: Data set of this environment (`usable`).
        spec: Environment.

    Returns:
        Steps ``[N, ...]``, without extras.
    """
    episode = np.repeat(np.arange(len(dataset.lengths)), dataset.lengths)
    at = np.arange(len(episode)) + episode
    obs = jax.tree.unflatten(
        jax.tree.structure(spec.obs), [dataset.obs[name] for name in named_leaves(spec.obs)]
    )
    first = np.zeros(len(at), bool)
    first[np.cumsum(dataset.lengths) - dataset.lengths] = True
    arrays: Any = dataset  # of NumPy
    ended: Any = dataset.truncated & ~dataset.terminated
    begins: Any = first
    return Transition(
        obs=jax.tree.map(lambda x: x[at], obs),
        action=arrays.action,
        reward=arrays.reward,
        next_obs=jax.tree.map(lambda x: x[at + 1], obs),
        terminated=arrays.terminated,
        truncated=ended,
        first=begins,
        extras=Extras({}, {}),
    )


def usable(given: Any, spec: EnvSpec, name: str) -> Dataset:
    """Return a data set as training takes it: numbers of 32 bits, and the last step of each episode
    marked as an end.

    Args:
        given: Data set, read from files or built from arrays.
        spec: Environment.
        name: Name of the data set in messages.

    Returns:
        The data set.

    Raises:
        ValueError: It is no data set; its sizes do not match; observations or actions are of
            another environment; or it has NaNs, actions that the environment does not have, or an
            end within an episode.
    """
    if not isinstance(given, Dataset):
        raise ValueError(
            f"data={name}: write a folder, or in Python a jf.Dataset, not {type(given).__name__}"
        )
    dataset = with_images(in_arrays(given, f"data={name}"), spec)
    last = np.zeros(len(dataset.reward), bool)
    last[np.cumsum(dataset.lengths) - 1] = True
    _check_same_spaces(dataset, spec, name)
    _check_contents(dataset, spec, last, name)
    return dataset._replace(truncated=dataset.truncated | last & ~dataset.terminated)


def with_images(dataset: Dataset, spec: EnvSpec) -> Dataset:
    """Return a data set whose images have the axes of training.

    Args:
        dataset: Data set, with these axes or the environment's own.
        spec: Environment.

    Returns:
        The data set.
    """
    obs = dict(dataset.obs)
    parts = [] if spec.obs_space is None else spaces.parts_of(spec.obs_space)
    for part in parts:
        layout, name = part.space.get("layout"), part.name.replace(".", "/")
        if layout and name in obs and obs[name].shape[1:] == spaces.own_shape(part.space):
            obs[name] = spaces.to_image(obs[name], layout, np)
    return dataset._replace(obs=obs)


def in_arrays(given: Dataset, name: str) -> Dataset:
    """Return a data set with arrays of 32 bits whose lengths match.

    Args:
        given: Data set whose fields may be lists, arrays of other types, or of JAX; observations
            may be an array or a nested dictionary.
        name: Name of the data set in messages.

    Returns:
        The data set.

    Raises:
        ValueError: A field holds no numbers or has a wrong shape, or the sizes do not match.
    """
    nested = isinstance(given.obs, Mapping | tuple)
    observed = named_leaves(given.obs) if nested else {"": given.obs}
    flat: Any = Dataset(
        obs={
            path: _in_32_bits(_numbers(leaf, f"observations {path}".rstrip(), name))
            for path, leaf in observed.items()
        },
        action=_in_32_bits(_numbers(given.action, "actions", name)),
        reward=_column(given.reward, "rewards", name).astype(np.float32),
        terminated=_flags(given.terminated, "terminated", name),
        truncated=_flags(given.truncated, "truncated", name),
        lengths=_whole_numbers(given.lengths, "lengths", name),
        about=given.about,
    )
    return _checked(flat, name)


def _numbers(values: Any, of: str, name: str) -> np.ndarray:
    try:
        array = np.asarray(values)
        parts = f" of {type(array.flat[0]).__name__}" if array.ndim and array.size else ""
        kind = f"{type(values).__name__}{parts}"
    except (TypeError, ValueError):
        array, kind = np.asarray(None), "rows of several lengths"
    if isinstance(values, tuple) and any(np.ndim(value) for value in values):
        array, kind = np.asarray(None), f"tuple of {len(values)} parts"  # not one row a step
    if array.dtype.kind not in "biuf" or array.ndim == 0:
        raise ValueError(
            f"{name}: its {of} are no array of numbers: {kind}; a data set has one row a step"
        )
    return array


def _column(values: Any, of: str, name: str) -> np.ndarray:
    """Return one number a step ``[N]``, also of ``[N, 1]``."""
    array = _numbers(values, of, name)
    if any(size != 1 for size in array.shape[1:]):
        raise ValueError(
            f"{name}: its {of} have the shape {list(array.shape)}: write one number a step, [{len(array)}]"
        )
    return array.reshape(len(array))


def _flags(values: Any, of: str, name: str) -> np.ndarray:
    array = _column(values, of, name)
    if not np.isin(array, (0, 1)).all():
        raise ValueError(f"{name}: its {of} are not all true or false")
    return array.astype(bool)


def _whole_numbers(values: Any, of: str, name: str) -> np.ndarray:
    array = _column(values, of, name)
    if not (np.isfinite(array) & (array == np.floor(array))).all():
        raise ValueError(f"{name}: its {of} are not all whole numbers")
    return array.astype(np.int64)


def _check_contents(dataset: Dataset, spec: EnvSpec, last: np.ndarray, name: str) -> None:
    for of, leaf in {**dataset.obs, "action": dataset.action, "reward": dataset.reward}.items():
        if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
            raise ValueError(
                f"data={name}: its {of or 'observations'} have a NaN or an infinity: leave the episode out"
            )
    if not isinstance(spec.action, Box):
        sizes = (
            spec.action.sizes if isinstance(spec.action, MultiDiscrete) else spec.action.num_actions
        )
        if ((dataset.action < 0) | (dataset.action >= np.array(sizes))).any():
            least, most = dataset.action.min(0), dataset.action.max(0)
            raise ValueError(
                f"data={name}: its actions are {least} to {most}, {spec.name} has {sizes}, counted from 0"
            )
    else:
        _check_bounds(dataset.action, spec.action, f"data={name}", spec.name)
    within = np.flatnonzero((dataset.terminated | dataset.truncated) & ~last)
    if within.size:
        raise ValueError(
            f"data={name}: step {within[0]} ends an episode, which goes on by its lengths: split it there"
        )


ROUNDING = 1e-4
"""How far a recorded action may lie outside its bounds, as a share of their distance."""


def _check_bounds(action: np.ndarray, space: Box, name: str, env: str) -> None:
    low, high = np.asarray(space.low, np.float64), np.asarray(space.high, np.float64)
    play = ROUNDING * (high - low)
    outside = ((action < low - play) | (action > high + play)).any(0)
    if outside.any():
        entry: tuple[int, ...] = tuple(np.argwhere(outside)[0].tolist())
        column = action.reshape(len(action), -1)[:, np.flatnonzero(outside)[0]]
        raise ValueError(
            f"{name}: its actions{list(entry) or ''} are {column.min():g} to {column.max():g}, {env} has "
            f"{low[entry]:g} to {high[entry]:g}: write what the environment received, such as "
            "np.clip(action, low, high), or scale the actions"
        )


def _check_same_spaces(dataset: Dataset, spec: EnvSpec, name: str) -> None:
    wanted = {path: (tuple(s.shape), str(s.dtype)) for path, s in named_leaves(spec.obs).items()}
    found = {path: (x.shape[1:], str(x.dtype)) for path, x in dataset.obs.items()}
    if wanted != found:
        raise ValueError(
            f"data={name}: its observations are {_shapes(found)}, those in {spec.name} are {_shapes(wanted)}: "
            "collect data in this environment"
        )
    shape, kind = _action_shape(spec.action)
    if dataset.action.shape[1:] != shape or dataset.action.dtype.kind not in kind:
        raise ValueError(
            f"data={name}: its actions are {dataset.action.dtype} {list(dataset.action.shape[1:])}, {spec.name} takes "
            f"{'whole numbers' if kind == 'iu' else 'numbers'} {list(shape)}: collect data in this environment"
        )


def _shapes(leaves: dict[str, tuple]) -> str:
    return ", ".join(
        f"{name or 'an array'} {dtype} {list(shape)}" for name, (shape, dtype) in leaves.items()
    )


def _action_shape(space: Actions) -> tuple[tuple[int, ...], str]:
    if isinstance(space, Box):
        return space.low.shape, "f"
    return ((len(space.sizes),) if isinstance(space, MultiDiscrete) else ()), "iu"


def save_dataset(dataset: Dataset, folder: str | Path) -> Path:
    """Write a data set: arrays as ``.npy`` files, then ``dataset.json`` with sizes, digests and
    what made it.

    Args:
        dataset: Data set.
        folder: New or empty folder, created if missing.

    Returns:
        The folder.

    Raises:
        ValueError: The folder contains a data set already, or is not writable.
    """
    folder = local_path(folder)
    dataset = in_arrays(dataset, f"out={folder}")
    refuse_full(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = {
            name: _write_array(folder, name, array) for name, array in _by_file(dataset).items()
        }
        returns = dataset.returns
        numbers = {"episodes": len(dataset.lengths), "steps": len(dataset.action)}
        returned = {"return_mean": float(returns.mean()), "return_std": float(returns.std())}
        content = {
            "format": FORMAT_VERSION,
            **numbers,
            **returned,
            "about": dataset.about,
            "files": files,
        }
        (folder / DESCRIPTION).write_text(f"{json.dumps(content, indent=2)}\n", encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"{folder} is not writable ({error.strerror}): write another out"
        ) from error
    return folder


def refuse_full(folder: Path) -> None:
    """Check that a folder contains nothing.

    Args:
        folder: Folder.

    Raises:
        ValueError: It contains a data set or other files.
    """
    if (folder / DESCRIPTION).exists():
        raise ValueError(
            f"out={folder} contains a data set already: write another out, or remove it"
        )
    if folder.is_dir() and any(folder.iterdir()):
        raise ValueError(f"out={folder} contains other files: write a new folder, or remove them")


def load_dataset(path: str | Path) -> Dataset:
    """Read a data set, and verify its digests.

    Args:
        path: Folder of `save_dataset`, or ``minari:<id>`` of a local data set of Minari.

    Returns:
        The data set.

    Raises:
        ValueError: There is none, it is damaged, or Minari is missing.
    """
    if str(path).startswith(MINARI):
        return _from_minari(str(path).removeprefix(MINARI))
    folder = local_path(path, "data")
    try:
        content = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        files, version = content["files"], content["format"]
    except OSError as error:
        raise ValueError(
            f"data={folder} holds no data set ({error.strerror}): make one by python -m jaxrl_fast.collect, or write "
            f"data={MINARI}<id>"
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"data={folder}: {DESCRIPTION} is damaged ({error}): collect the data again"
        ) from error
    if version != FORMAT_VERSION:
        raise ValueError(
            f"data={folder} has format {version}, this version reads {FORMAT_VERSION}: collect it again"
        )
    arrays = {name: _read_array(folder, name, facts) for name, facts in files.items()}
    obs = {
        name.removeprefix("observations").removeprefix("."): arrays.pop(name)
        for name in list(arrays)
        if _is_obs(name)
    }
    obs = {name.replace(".", "/"): array for name, array in obs.items()}
    missing = [name for name in COLUMNS if name not in arrays]
    if missing:
        raise ValueError(
            f"data={folder}: {DESCRIPTION} does not name '{missing[0]}': collect the data again"
        )
    stored: Any = Dataset(
        obs=obs,
        action=arrays["actions"],
        reward=arrays["rewards"],
        terminated=arrays["terminations"],
        truncated=arrays["truncations"],
        lengths=arrays["lengths"],
        about=content.get("about", {}),
    )
    return _checked(stored, f"data={folder}")


COLUMNS = "actions", "rewards", "terminations", "truncations", "lengths"


def _is_obs(name: str) -> bool:
    return name.partition(".")[0] == "observations"


def _by_file(dataset: Dataset) -> dict[str, np.ndarray]:
    observed = {
        ".".join(["observations", *path.split("/")]).rstrip("."): leaf
        for path, leaf in dataset.obs.items()
    }
    columns = dataset.action, dataset.reward, dataset.terminated, dataset.truncated, dataset.lengths
    return observed | dict(zip(COLUMNS, columns, strict=True))


def _write_array(folder: Path, name: str, array: np.ndarray) -> dict[str, Any]:
    file = folder / f"{name}.npy"
    np.save(file, array, allow_pickle=False)
    return {"shape": list(array.shape), "dtype": str(array.dtype), "sha256": _digest(file)}


def _read_array(folder: Path, name: str, facts: dict[str, Any]) -> np.ndarray:
    file = folder / f"{name}.npy"
    try:
        if file.parent != folder or _digest(file) != facts["sha256"]:
            raise ValueError("it has changed")
        return np.load(file, allow_pickle=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"data={folder}: {file.name} is damaged ({error}): collect the data again"
        ) from error


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _checked(dataset: Dataset, name: str) -> Dataset:
    """Return a data set whose arrays have matching lengths."""
    steps, episodes, lengths = len(dataset.action), len(dataset.lengths), dataset.lengths
    if not (episodes and lengths.min() > 0 and lengths.sum() == steps):
        raise ValueError(f"{name}: its lengths must be above 0 and add up to its {steps:,} actions")
    sizes = {of: (len(getattr(dataset, of)), steps) for of in ("reward", "terminated", "truncated")}
    sizes |= {
        f"observations {path}".rstrip(): (len(x), steps + episodes)
        for path, x in dataset.obs.items()
    }
    for of, (rows, needed) in sizes.items():
        if rows != needed:
            raise ValueError(
                f"{name}: its {of} has {rows:,} rows, not {needed:,}; an episode has n actions and n + 1 obs"
            )
    return dataset


def import_minari() -> Any:
    """Import Minari.

    Returns:
        The package.

    Raises:
        ValueError: It is missing.
    """
    try:
        return import_module("minari")
    except ImportError as error:
        raise ValueError(
            f"Minari is missing ({error}): pip install 'jaxrl_fast[minari]'"
        ) from error


def _from_minari(name: str) -> Dataset:
    """Read a local data set of Minari; rewards and observations become float32."""
    try:
        stored = import_minari().load_dataset(name)
    except (OSError, KeyError) as error:  # of its file, or a name without namespace
        raise ValueError(
            f"data={MINARI}{name}: {error}; minari list local shows the names"
        ) from error
    episodes = list(stored.iterate_episodes())
    if not episodes:
        raise ValueError(f"data={MINARI}{name} has no episodes")
    of = f"data={MINARI}{name}"
    observed = [named_leaves(episode.observations) for episode in episodes]
    obs = {
        path: _in_32_bits(
            np.concatenate([_numbers(one[path], f"observations {path}", of) for one in observed])
        )
        for path in observed[0]
    }
    action = _in_32_bits(
        np.concatenate([_numbers(episode.actions, "actions", of) for episode in episodes])
    )
    terminated, truncated = (
        np.concatenate([_flags(getattr(episode, flag), flag, of) for episode in episodes])
        for flag in ("terminations", "truncations")
    )
    reward = np.concatenate([_column(episode.rewards, "rewards", of) for episode in episodes])
    lengths = np.array([len(e.rewards) for e in episodes])
    last = np.cumsum(lengths) - 1
    truncated[last] |= ~terminated[last]
    about = {"env": str(stored.env_spec.id if stored.env_spec else name), "minari": name}
    dataset = Dataset(
        obs=obs,
        action=action,
        reward=reward.astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        lengths=lengths,
        about=about,
    )
    return _checked(dataset, of)


def _in_32_bits(array: np.ndarray) -> np.ndarray:
    narrowed: Any = {np.dtype(np.float64): np.float32, np.dtype(np.int64): np.int32}
    return array.astype(narrowed.get(array.dtype, array.dtype), copy=False)


def to_minari(dataset: Dataset, name: str, spec: EnvSpec, env_id: str | None = None) -> None:
    """Write a data set in Minari's layout, where Minari stores its local data sets.

    Args:
        dataset: Data set.
        name: Id such as ``pendulum/sac-v0``.
        spec: Environment of the data.
        env_id: Id of the environment in Gymnasium, if it has one.

    Raises:
        ValueError: Minari is missing, refuses the name, has a data set of this name, or the
            environment's own spaces are nested.
    """
    minari = import_minari()
    if spec.obs_space is not None or spec.action_space is not None or spec.num_agents is not None:
        raise ValueError(
            f"{spec.name} has spaces of another form, which are not written for Minari: leave format out"
        )
    spaces, buffer = (
        import_module("gymnasium.spaces"),
        import_module("minari.data_collector").EpisodeBuffer,
    )
    ends = np.cumsum(dataset.lengths)
    episodes = []
    for number, (start, end) in enumerate(zip(ends - dataset.lengths, ends, strict=True)):
        obs = {path: leaf[start + number : end + number + 1] for path, leaf in dataset.obs.items()}
        own = slice(start, end)
        flags = dataset.terminated[own], dataset.truncated[own]
        observed: Any = obs.get("", obs)
        episodes.append(
            buffer(number, None, None, observed, dataset.action[own], dataset.reward[own], *flags)
        )
    about = dataset.about
    facts: dict[str, Any] = dict(
        env=env_id, algorithm_name=str(about.get("algo", "")), description=json.dumps(about)
    )
    facts |= dict(
        observation_space=_space(spaces, spec.obs), action_space=_action_space(spaces, spec.action)
    )
    try:
        # it asks for a link to code and for an address
        with warnings.catch_warnings(action="ignore"):
            minari.create_dataset_from_buffers(name, episodes, author="jaxrl_fast", **facts)
    except (ValueError, AssertionError) as error:
        raise ValueError(f"out={MINARI}{name}: Minari refuses it: {error}") from error


def _space(spaces: Any, obs: PyTree) -> Any:
    leaves = named_leaves(obs)
    made = {path: _box(spaces, leaf) for path, leaf in leaves.items()}
    return made[""] if "" in made else spaces.Dict(made)


def _box(spaces: Any, leaf: Any) -> Any:
    dtype = np.dtype(leaf.dtype)
    if dtype.kind == "f":
        return spaces.Box(-math.inf, math.inf, leaf.shape, dtype)
    if dtype.kind == "b":
        return spaces.Box(0, 1, leaf.shape, np.uint8)
    return spaces.Box(np.iinfo(dtype).min, np.iinfo(dtype).max, leaf.shape, dtype)


def _action_space(spaces: Any, space: Actions) -> Any:
    if isinstance(space, Box):
        return spaces.Box(np.asarray(space.low), np.asarray(space.high), dtype=np.float32)
    return (
        spaces.Discrete(space.num_actions)
        if isinstance(space, Discrete)
        else spaces.MultiDiscrete(space.sizes)
    )


def made_here() -> dict[str, Any]:
    """Return entries of a data set's description: the version of the package, and the time.

    Returns:
        Text by name.
    """
    return {
        "jaxrl_fast": importlib.metadata.version("jaxrl_fast"),
        "made": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
