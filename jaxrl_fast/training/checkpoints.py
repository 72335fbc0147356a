"""The files of a checkpoint: written completely or not at all, and verified before they are read.

A checkpoint is a folder ``checkpoints/<environment steps>``, which gets this name when all of it is
on disk::

    description.json   the run's settings and progress, and a digest of every file
    state/arrays.bin   parameters, optimizers, statistics, environments, PRNG keys, channels that
                       cross a tick
    replay/arrays.bin  the replay buffer, in the newest checkpoint only

Nothing read from a checkpoint is executed: arrays are numbers, and everything else is JSON.

The bytes of the arrays lie one behind another, by name. Until 0.2.0, in format 2, Orbax wrote them.
One process writes arrays of the host in a thread here, so that Orbax's shards, processes and
threads were not used; ``experiments/results/checkpoint_files.json`` has what each costs.
"""

import errno
import hashlib
import importlib.metadata
import json
import math
import os
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_fast.core import PyTree
from jaxrl_fast.numerics.normalization import with_variances
from jaxrl_fast.runtime import hosts
from jaxrl_fast.runtime.graph import TrainState
from jaxrl_fast.runtime.hosts import as_numbers, from_numbers, name_of, named, to_host
from jaxrl_fast.settings.schema import Checkpoints
from jaxrl_fast.system import local_path, one_line, replacing
from jaxrl_fast.training.callbacks import CallbackError, OnCheckpoint, Row, Tell, to_stderr

FORMAT_VERSION = 3
READABLE = (2, FORMAT_VERSION)
"""Formats that can be read."""
PARTS = ("state", "replay")
ARRAYS = "arrays.bin"
"""File of the arrays of a part."""
BESIDE = "evaluation/"
"""Prefix of arrays that are not part of the run's state: snapshots that were not evaluated yet."""
SMALL_FILES = 65_536
"""Approximate size in bytes of a checkpoint's files that are not arrays."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be used. The message is one line."""


def is_replay(name: str, refills: Iterable[str]) -> bool:
    """Check whether an array of a run's state belongs to a replay buffer.

    Args:
        name: Name of the array.
        refills: Names of the fragments with a replay buffer.

    Returns:
        True for an array of these fragments.
    """
    return name.startswith(tuple(f"private.{fragment}." for fragment in refills))


class CheckpointFacts(NamedTuple):
    """Content of a checkpoint's ``description.json``.

    Attributes:
        path: Folder of the checkpoint.
        settings: Settings of the run, by key of the command line.
        progress: Progress of the run (`Recorder.progress`).
        score: Mean return of this state, None if it was not evaluated.
        arrays: Name -> ``shape`` and ``dtype``.
        files: Path -> SHA-256.
        versions: Versions of the packages that wrote it.
        refills: Names of the fragments with a replay buffer.
        left_out: Whether the replay buffer was not saved.
    """

    path: Path
    settings: dict[str, Any]
    progress: dict[str, Any]
    score: float | None
    arrays: dict[str, dict[str, Any]]
    files: dict[str, str]
    versions: dict[str, str]
    refills: list[str]
    left_out: bool

    @property
    def replay_lost(self) -> bool:
        """Whether the run has a replay buffer that this checkpoint does not contain."""
        saved = any(is_replay(name, self.refills) for name in self.arrays)
        return self.left_out or (saved and not (self.path / "replay").exists())


def write(
    folder: Path, steps: int, arrays: dict[str, np.ndarray], content: Mapping[str, Any]
) -> Path:
    """Write a checkpoint, and name it when it is complete.

    Args:
        folder: Folder of the checkpoints.
        steps: Environment steps of the state, the name of the checkpoint.
        arrays: Arrays by name.
        content: Fields of `CheckpointFacts` other than ``path``, ``arrays``, ``files`` and
            ``versions``.

    Returns:
        Path of the checkpoint.
    """
    unfinished, finished = folder / f"{steps}.unfinished", folder / str(steps)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        _require_space(
            unfinished / "room", sum(array.nbytes for array in arrays.values()) + SMALL_FILES
        )
        for part in PARTS:
            _save_arrays(unfinished / part, _of_part(part, arrays, content["refills"]))
        described = {
            name: {"shape": list(a.shape), "dtype": str(a.dtype)} for name, a in arrays.items()
        }
        files = {
            p.relative_to(unfinished).as_posix(): p for p in unfinished.rglob("*") if p.is_file()
        }
        digests = {name: _digest_of_file(path) for name, path in files.items()}
        _write_description(
            unfinished, {**content, "arrays": described, "files": digests, "versions": versions()}
        )
        if finished.exists():
            discard(finished)
        os.replace(unfinished, finished)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return finished


def set_score(path: Path, score: float, progress: Mapping[str, Any]) -> None:
    """Store the mean return of a checkpoint's state, if it was evaluated after it was saved.

    Args:
        path: Path of the checkpoint.
        score: Mean return.
        progress: Entries of the checkpoint's ``progress`` that change.
    """
    content = read_description(path)._asdict()
    del content["path"]
    _write_description(
        path, {**content, "score": score, "progress": {**content["progress"], **progress}}
    )


def read_description(path: Path) -> CheckpointFacts:
    """Read and verify the description of a checkpoint.

    Args:
        path: Path of the checkpoint.

    Returns:
        The description.

    Raises:
        CheckpointError: The description is missing, damaged, or of another format version.
    """
    try:
        stored = json.loads((path / "description.json").read_text(encoding="utf-8"))
        version = stored["format"]
        if version in READABLE and stored["digest"] == _digest_of(stored["content"]):
            return CheckpointFacts(path, **stored["content"])
    except FileNotFoundError as error:
        raise _damaged(path, "description.json is missing") from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(path, f"description.json cannot be read: {one_line(error)}") from error
    raise (
        _damaged(path, "description.json has changed")
        if version in READABLE
        else _outdated(path, version)
    )


def _outdated(path: Path, version: Any) -> CheckpointError:
    readable = " and ".join(map(str, READABLE))
    found = f"checkpoint {path} has format {version}, this version of jaxrl_fast reads {readable}"
    return CheckpointError(f"{found}: resume it with the version that wrote it")


def verify(description: CheckpointFacts) -> None:
    """Check that no file of a checkpoint is missing or has changed. A lost replay buffer is not
    checked.

    Args:
        description: Description of the checkpoint.

    Raises:
        CheckpointError: A file is missing or has changed.
    """
    for name, digest in description.files.items():
        if description.replay_lost and name.startswith("replay/"):
            continue
        try:
            found = _digest_of_file(description.path / name)
        except OSError as error:
            raise _damaged(
                description.path, f"{name} cannot be read: {error.strerror or error}"
            ) from error
        if found != digest:
            raise _damaged(description.path, f"{name} has changed")


def read_arrays(description: CheckpointFacts) -> dict[str, np.ndarray]:
    """Verify and read the arrays of a checkpoint, except a lost replay buffer.

    Args:
        description: Description of the checkpoint.

    Returns:
        Arrays by name.

    Raises:
        CheckpointError: A file is missing or has changed.
    """
    path, arrays = description.path, {}
    # Verified first, since Orbax, which reads format 2, prints long tracebacks from threads.
    verify(description)
    refills, lost = description.refills, description.replay_lost
    wanted = {n: d for n, d in description.arrays.items() if not (lost and is_replay(n, refills))}
    for part in PARTS:
        names = _of_part(part, wanted, refills)
        try:
            arrays.update(_load_arrays(path / part, names))
        except Exception as error:  # any error of NumPy, or another version of Orbax
            raise _damaged(path, f"{part} cannot be read: {one_line(error)}") from error
    return with_variances(arrays)


def snapshot(
    state: TrainState, refills: Iterable[str], *, replay: bool = True
) -> dict[str, np.ndarray]:
    """Copy a state's arrays to the host. All processes must call it.

    Arrays are copied one at a time, since gathering needs a whole copy on every device.

    Args:
        state: State of the run.
        refills: Names of the fragments with a replay buffer.
        replay: Include the replay buffer.

    Returns:
        Arrays by name.
    """
    leaves = {
        name: leaf for name, leaf in named(state).items() if replay or not is_replay(name, refills)
    }
    for leaf in leaves.values():
        if isinstance(leaf, jax.Array) and leaf.is_fully_addressable:
            leaf.copy_to_host_async()
    return {name: np.array(to_host(leaf)) for name, leaf in leaves.items()}


def restore(
    state: TrainState,
    description: CheckpointFacts,
    arrays: Mapping[str, np.ndarray],
    new_rates: Iterable[str] = (),
) -> TrainState:
    """Replace the arrays of a run's first state by a checkpoint's, on the host.

    Arrays of a replay buffer that was not saved, and hyper-parameters in ``new_rates``, are not
    replaced.

    Args:
        state: First state of the run.
        description: Description of the checkpoint.
        arrays: Arrays of the checkpoint by name.
        new_rates: Hyper-parameters that are taken from this run.

    Returns:
        The state.

    Raises:
        CheckpointError: Names, shapes or dtypes of the arrays differ from this run's.
    """
    # a schedule has more names after the point
    ours = tuple(f"hyper.{rate}." for rate in new_rates)
    arrays = {name: array for name, array in arrays.items() if not f"{name}.".startswith(ours)}
    leaves = [name for name in named(state) if not f"{name}.".startswith(ours)]
    missing = {n for n in leaves if n not in arrays and not is_replay(n, description.refills)}
    strange = {n for n in arrays if n not in leaves and not n.startswith(BESIDE)}
    for name in sorted(missing | strange)[:1]:
        owner, other = (
            ("this run", "the checkpoint") if name in missing else ("the checkpoint", "this run")
        )
        raise CheckpointError(
            f"checkpoint {description.path} is incompatible: {owner} has {name}, {other} does not"
        )

    def put(path: tuple, leaf: jax.Array) -> Any:
        name = name_of(path)
        if name not in arrays:
            return leaf
        given, wanted = arrays[name], as_numbers(leaf)
        if (given.shape, given.dtype) != (wanted.shape, wanted.dtype):
            raise CheckpointError(
                f"checkpoint {description.path} is incompatible: {name} is {given.dtype}{list(given.shape)} there and "
                f"{wanted.dtype}{list(wanted.shape)} in this run"
            )
        return from_numbers(leaf, given)

    return jax.tree_util.tree_map_with_path(put, state)


def discard(path: Path) -> None:
    """Remove a folder. It is renamed first, so that no process reads a partial folder under its
    name.

    Args:
        path: Folder.
    """
    rubbish = path.with_name(f"{path.name}.rubbish")
    shutil.rmtree(rubbish, ignore_errors=True)
    os.replace(path, rubbish)
    shutil.rmtree(rubbish, ignore_errors=True)


def all_steps(folder: Path) -> list[int]:
    """List the complete checkpoints in a folder.

    Args:
        folder: Folder of the checkpoints.

    Returns:
        Their environment steps, in ascending order.
    """
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdigit())


def sizes(state: TrainState, refills: Iterable[str]) -> tuple[int, int]:
    """Compute the size of a checkpoint.

    Args:
        state: State of the run.
        refills: Names of the fragments with a replay buffer.

    Returns:
        Bytes of the state without its replay buffer, and bytes of the replay buffer.
    """
    replay = {name: leaf.nbytes for name, leaf in named(state).items() if is_replay(name, refills)}
    return sum(leaf.nbytes for leaf in named(state).values()) - sum(replay.values()), sum(
        replay.values()
    )


def versions() -> dict[str, str]:
    """Return the versions of the packages that affect a run's numbers.

    Returns:
        Package -> version.
    """
    return {name: importlib.metadata.version(name) for name in ("jax", "jaxlib")}


def others(folder: Path, but: str = "") -> str:
    """Suggest another checkpoint to resume.

    Args:
        folder: Folder of the checkpoints.
        but: Name of the checkpoint that cannot be used.

    Returns:
        Text for an error message.
    """
    found = [str(folder / str(steps)) for steps in reversed(all_steps(folder)) if str(steps) != but]
    return (
        f"resume another, such as resume={found[0]}"
        if found
        else "there is no other checkpoint of this run"
    )


def _write_description(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps({"format": FORMAT_VERSION, "digest": _digest_of(content), "content": content})
    with (
        replacing(path / "description.json") as temporary,
        temporary.open("w", encoding="utf-8") as file,
    ):
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _require_space(path: Path, size: int) -> None:
    """Raise OSError without space for ``size`` bytes, before any array is written."""
    with path.open("wb") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        elif shutil.disk_usage(path.parent).free < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    path.unlink()


def _save_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    if arrays:
        path.mkdir()
        with (path / ARRAYS).open("wb") as file:
            for name in sorted(arrays):
                arrays[name].tofile(file)
            os.fsync(file.fileno())


def _load_arrays(path: Path, described: dict[str, dict[str, Any]]) -> dict[str, np.ndarray]:
    if not described:
        return {}
    if not (path / ARRAYS).exists():
        return _load_format_2(path, described)
    with (path / ARRAYS).open("rb") as file:
        arrays = {
            name: np.fromfile(file, d["dtype"], math.prod(d["shape"])).reshape(d["shape"])
            for name, d in sorted(described.items())
        }
        if file.read(1):
            raise ValueError(f"{ARRAYS} has more bytes than its arrays")
    return arrays


def _load_format_2(path: Path, described: dict[str, dict[str, Any]]) -> dict[str, np.ndarray]:
    """Read arrays that Orbax wrote, which has no empty ones."""
    empty = {n: np.zeros(d["shape"], d["dtype"]) for n, d in described.items() if 0 in d["shape"]}
    if len(empty) == len(described):
        return empty
    import orbax.checkpoint as ocp

    # One process: Orbax would wait for the others, which read at other times.
    own = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(primary_host=own, active_processes={own})
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=alone)
    as_numpy = ocp.RestoreArgs(restore_type=np.ndarray)
    names = [name for name in described if name not in empty]
    with ocp.Checkpointer(handler, multiprocessing_options=alone) as orbax:
        asked = ocp.args.PyTreeRestore(restore_args=dict.fromkeys(names, as_numpy))
        restored = orbax.restore(path.absolute(), args=asked)
    return empty | {name: restored[name] for name in names}


def _of_part(part: str, by_name: Mapping[str, Any], refills: Iterable[str]) -> dict[str, Any]:
    return {
        name: value
        for name, value in by_name.items()
        if is_replay(name, refills) == (part == "replay")
    }


def _digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of(content: PyTree) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _damaged(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {path} is damaged ({why}): {others(path.parent, but=path.name)}"
    )


FOLDER = "checkpoints"


class Checkpointer:
    """Writes the checkpoints of one run in a thread, one at a time.

    A write that fails does not end training: ``tell`` gets a line.

    Attributes:
        refills: Names of the fragments with a replay buffer.
        newest: Path of the newest checkpoint, or None.
        unscored: Environment steps of checkpoints that may still get a score and are retained until
            then.
    """

    def __init__(
        self,
        folder: Path,
        plan: Checkpoints,
        settings: Mapping[str, Any],
        refills: Sequence[str],
        tell: Tell = to_stderr,
        on_checkpoint: OnCheckpoint = lambda path: None,
    ) -> None:
        self.folder, self.plan, self.settings = folder, plan, dict(settings)
        self.tell, self.on_checkpoint = tell, on_checkpoint
        self.refills = list(refills)
        self.newest: Path | None = None
        self.unscored: set[int] = set()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future | None = None

    def save(
        self,
        steps: int,
        state: TrainState,
        progress: Row,
        score: float | None,
        beside: Row | None = None,
    ) -> None:
        """Copy the state, which the next chunk will overwrite, and write it during training.

        Every process must call it; process 0 writes. ``score`` is the mean return of this state,
        None if it is not evaluated or not yet (`add_score`). ``beside`` are more arrays, whose
        names begin with `BESIDE`.
        """
        self.wait()
        arrays = snapshot(state, self.refills, replay=self.plan.replay) | dict(beside or {})
        if not hosts.is_first():
            return
        if any(waiting["env_steps"] == steps for waiting in progress.get("snapshots", [])):
            self.unscored.add(steps)
        left_out = not self.plan.replay and sizes(state, self.refills)[1] > 0
        content = dict(
            settings=self.settings,
            progress=progress,
            score=score,
            refills=self.refills,
            left_out=left_out,
        )
        self._pending = self._worker.submit(self._write, steps, arrays, content)

    def add_score(self, steps: int, score: float, progress: Mapping[str, Any]) -> None:
        """Store the mean return of the state saved after ``steps``, and changes of its
        ``progress``.
        """
        if hosts.is_first() and steps in self.unscored:
            self.wait()
            self._pending = self._worker.submit(self._score, steps, score, dict(progress))

    def wait(self) -> None:
        """Wait until the running write has ended. An error of ``on_checkpoint`` is raised."""
        if self._pending is None:
            return
        error, self._pending = self._pending.exception(), None
        if isinstance(error, CallbackError):
            raise error.cause
        if error is not None:
            last = (
                f"the last good checkpoint is {self.newest}"
                if self.newest
                else "there is no checkpoint yet"
            )
            self.tell(
                f"a checkpoint could not be written to {self.folder} ({one_line(error)}): {last}"
            )

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, *error: object) -> None:
        self._worker.shutdown()
        self.wait()

    def _score(self, steps: int, score: float, progress: dict[str, Any]) -> None:
        self.unscored.discard(steps)
        if (self.folder / str(steps)).exists():
            set_score(self.folder / str(steps), score, progress)
        prune(self.folder, self.plan.keep, self.unscored)

    def _write(self, steps: int, arrays: dict[str, np.ndarray], content: dict[str, Any]) -> None:
        self.newest = write(self.folder, steps, arrays, content)
        prune(self.folder, self.plan.keep, self.unscored)
        self.on_checkpoint(self.newest)


def prune(folder: Path, keep: int, unscored: Collection[int] = ()) -> None:
    """Remove old checkpoints, and old replay buffers.

    The newest ``keep``, the one with the best score and the ``unscored`` remain. Only the newest
    retains its replay buffer.

    Args:
        folder: Folder of the checkpoints.
        keep: Number of newest checkpoints to retain.
        unscored: Environment steps of checkpoints that may still get a score.
    """
    steps = all_steps(folder)
    scores = {s: score for s in steps if (score := _score(folder / str(s))) is not None}
    best = [max(scores, key=lambda s: (scores[s], s))] if scores else []
    for step in steps:
        if step not in (*steps[-keep:], *best, *unscored):
            discard(folder / str(step))
        elif step != steps[-1] and (folder / str(step) / "replay").exists():
            discard(folder / str(step) / "replay")


def remove_stale(folder: Path, after: int | None = None) -> None:
    """Remove unfinished files of a killed process, and checkpoints that are too new.

    Args:
        folder: Folder of the checkpoints.
        after: Remove checkpoints after this number of environment steps; None removes none.
    """
    for path in [
        *folder.glob("*.unfinished"),
        *folder.glob("*.rubbish"),
        *folder.glob("*/*.rubbish"),
    ]:
        shutil.rmtree(path, ignore_errors=True)
    for steps in all_steps(folder):
        if after is not None and steps > after:
            discard(folder / str(steps))


def find(path: Path) -> Path:
    """Find the checkpoint of a path.

    Args:
        path: A checkpoint, or the folder of a run, which means its newest checkpoint.

    Returns:
        Path of the checkpoint.

    Raises:
        CheckpointError: There is no checkpoint.
    """
    local_path(path, "resume")
    if (path / "description.json").exists() or path.parent.name == FOLDER:
        if not (path / "description.json").exists():
            raise CheckpointError(
                f"{path} is not a complete checkpoint: {others(path.parent, but=path.name)}"
            )
        return path
    steps = all_steps(path / FOLDER)
    if not steps:
        raise CheckpointError(f"{path} contains no checkpoint{_instead(path)}")
    return path / FOLDER / str(steps[-1])


def _instead(path: Path) -> str:
    """Suggest the newest run of the same environment with a checkpoint, next to a run that ended
    before its first.
    """
    if (path / "sweep.json").exists():
        return f", but a sweep's: write python -m jaxrl_fast.sweep resume={path}"
    config = path.resolve() / "config.yaml"
    if not config.exists():
        return ": write the folder of a run, such as runs/latest"
    env = "".join(config.read_text(encoding="utf-8").partition("\nalgo:")[:2])
    same = [
        one.parent
        for one in path.resolve().parent.glob("*/config.yaml")
        if one.read_text("utf-8").startswith(env)
    ]
    runs = sorted(run for run in same if all_steps(run / FOLDER))
    found = f"resume={runs[-1]} has one" if runs else f"repeat it with config={path}/config.yaml"
    return f", since the run ended before its first one: {found}"


def newest_good(run_folder: Path, tell: Tell) -> Path | None:
    """Find the newest undamaged checkpoint of a run.

    Args:
        run_folder: Folder of the run.
        tell: Gets a line for each damaged checkpoint.

    Returns:
        Path of the checkpoint, or None.
    """
    for steps in reversed(all_steps(run_folder / FOLDER)):
        path = run_folder / FOLDER / str(steps)
        try:
            verify(read_description(path))
        except CheckpointError as error:
            tell(f"skipped: {error}")
            continue
        return path
    return None


def _score(path: Path) -> float | None:
    try:
        return read_description(path).score
    except CheckpointError:
        return None
