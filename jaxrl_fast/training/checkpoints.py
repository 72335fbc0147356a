"""The files of a checkpoint: written in whole, and read only once every bit is known to be as it was written.

A checkpoint is a folder ``checkpoints/<environment steps>``, which bears this name only once all of it is on disk::

    description.json   the run's settings, where it stood, and a digest of every file
    state/             Orbax: parameters, optimizers, statistics, environments, keys, channels that cross a tick
    replay/            Orbax: the replay buffer; only the newest checkpoint keeps it

Nothing read from a checkpoint is ever executed: arrays are numbers, all else is JSON.
"""

import errno
import hashlib
import importlib.metadata
import json
import os
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import PyTree
from jaxrl_fast.runtime import hosts
from jaxrl_fast.runtime.graph import TrainState
from jaxrl_fast.runtime.hosts import to_host
from jaxrl_fast.settings.schema import Checkpoints
from jaxrl_fast.system import replacing
from jaxrl_fast.training.callbacks import Row, Tell

FORMAT_VERSION = 2
PARTS = ("state", "replay")
BESIDE = "evaluation/"
"""Begins the names of arrays that are not of the run's state: snapshots that were not evaluated yet."""
SMALL_FILES = 65_536
"""Bytes of a checkpoint that are not arrays, roughly."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message is one line."""


def is_replay(name: str, refills: Iterable[str]) -> bool:
    """Whether an array of a run's state belongs to a fragment that ``refills``: a replay buffer."""
    return name.startswith(tuple(f"private.{fragment}." for fragment in refills))


class CheckpointFacts(NamedTuple):
    """What ``description.json`` says of the checkpoint at ``path``.

    ``settings``: the run's, by key of the command line; ``progress``: where the run stood (`Recorder.progress`);
    ``score``: the return of this very state, None if it was not evaluated; ``arrays``: name -> ``shape`` and ``dtype``;
    ``files``: path -> SHA-256; ``versions`` of the packages that wrote it; ``refills``: the fragments that hold a
    replay buffer; ``left_out``: whether the buffer was not saved.
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
        """Whether the run has a replay buffer that cannot be read from here."""
        saved = any(is_replay(name, self.refills) for name in self.arrays)
        return self.left_out or (saved and not (self.path / "replay").exists())


def write(folder: Path, steps: int, arrays: dict[str, np.ndarray], content: Mapping[str, Any]) -> Path:
    """Write a checkpoint; it gets its name when it is complete. ``content`` is what its `CheckpointFacts` is to say,
    but for arrays and files. Returns its path."""
    unfinished, finished = folder / f"{steps}.unfinished", folder / str(steps)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        _require_space(unfinished / "room", sum(array.nbytes for array in arrays.values()) + SMALL_FILES)
        for part in PARTS:
            _save_arrays(unfinished / part, _of_part(part, arrays, content["refills"]))
        described = {name: {"shape": list(a.shape), "dtype": str(a.dtype)} for name, a in arrays.items()}
        files = {p.relative_to(unfinished).as_posix(): p for p in unfinished.rglob("*") if p.is_file()}
        digests = {name: _digest_of_file(path) for name, path in files.items()}
        _write_description(unfinished, {**content, "arrays": described, "files": digests, "versions": versions()})
        if finished.exists():
            discard(finished)
        os.replace(unfinished, finished)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return finished


def set_score(path: Path, score: float, progress: Mapping[str, Any]) -> None:
    """Note the return of a checkpoint's state, which was evaluated after it was saved, and what that changes of its
    ``progress``."""
    content = read_description(path)._asdict()
    del content["path"]
    _write_description(path, {**content, "score": score, "progress": {**content["progress"], **progress}})


def read_description(path: Path) -> CheckpointFacts:
    """What a checkpoint says of itself.

    Raises:
        CheckpointError: it is missing, damaged, or of another version.
    """
    try:
        stored = json.loads((path / "description.json").read_text())
        version = stored["format"]
        if version == FORMAT_VERSION and stored["digest"] == _digest_of(stored["content"]):
            return CheckpointFacts(path, **stored["content"])
    except FileNotFoundError as error:
        raise _damaged(path, "description.json is missing") from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(path, f"description.json cannot be read: {one_line(error)}") from error
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"checkpoint {path} has format {version}, this version of jaxrl_fast reads format {FORMAT_VERSION}: "
            "resume it with the version that wrote it"
        )
    raise _damaged(path, "description.json is not as it was written")


def verify(description: CheckpointFacts) -> None:
    """Refuse a checkpoint with a file that is missing or has changed; those of a lost replay buffer do not count.

    Raises:
        CheckpointError: naming the file.
    """
    for name, digest in description.files.items():
        if description.replay_lost and name.startswith("replay/"):
            continue
        try:
            found = _digest_of_file(description.path / name)
        except OSError as error:
            raise _damaged(description.path, f"{name} cannot be read: {error.strerror or error}") from error
        if found != digest:
            raise _damaged(description.path, f"{name} is not as it was written")


def read_arrays(description: CheckpointFacts) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint by name, without those of a replay buffer that is gone.

    Raises:
        CheckpointError: a file is missing or not as it was written.
    """
    path, arrays = description.path, {}
    # First of all: of what they cannot read, Orbax and TensorStore print long tracebacks from threads of theirs.
    verify(description)
    refills, lost = description.refills, description.replay_lost
    wanted = {n: d for n, d in description.arrays.items() if not (lost and is_replay(n, refills))}
    for part in PARTS:
        names = _of_part(part, wanted, refills)
        try:
            arrays.update(_load_arrays(path / part, names))
        except Exception as error:  # whatever another version of Orbax may stumble over
            raise _damaged(path, f"{part} cannot be read: {one_line(error)}") from error
    return arrays


def snapshot(state: TrainState, refills: Iterable[str], *, replay: bool = True) -> dict[str, np.ndarray]:
    """Copies of a state's arrays on the host, by name. Collective. One array at a time, since gathering puts a whole
    copy of it on every device."""
    leaves = {name: leaf for name, leaf in _leaves(state).items() if replay or not is_replay(name, refills)}
    for leaf in leaves.values():
        if isinstance(leaf, jax.Array) and leaf.is_fully_addressable:
            leaf.copy_to_host_async()
    return {name: np.array(to_host(leaf)) for name, leaf in leaves.items()}


def restore(
    state: TrainState, description: CheckpointFacts, arrays: Mapping[str, np.ndarray], new_rates: Iterable[str] = ()
) -> TrainState:
    """``state``, a run's first, with the arrays of a checkpoint put in (still on the host), except a replay buffer that
    was not saved and the rates ``new_rates``.

    Raises:
        CheckpointError: the checkpoint's arrays are not those of this run.
    """
    ours = tuple(f"hyper.{rate}." for rate in new_rates)  # a schedule's name goes on behind the point
    arrays = {name: array for name, array in arrays.items() if not f"{name}.".startswith(ours)}
    leaves = [name for name in _leaves(state) if not f"{name}.".startswith(ours)]
    missing = {n for n in leaves if n not in arrays and not is_replay(n, description.refills)}
    strange = {n for n in arrays if n not in leaves and not n.startswith(BESIDE)}
    for name in sorted(missing | strange)[:1]:
        owner, other = ("this run", "the checkpoint") if name in missing else ("the checkpoint", "this run")
        raise CheckpointError(f"checkpoint {description.path} does not fit: {owner} has {name}, {other} does not")

    def put(path: tuple, leaf: jax.Array) -> Any:
        name = _name(path)
        if name not in arrays:
            return leaf
        given, wanted = arrays[name], _data(leaf)
        if (given.shape, given.dtype) != (wanted.shape, wanted.dtype):
            raise CheckpointError(
                f"checkpoint {description.path} does not fit: {name} is {given.dtype}{list(given.shape)} there and "
                f"{wanted.dtype}{list(wanted.shape)} in this run"
            )
        if _is_key(leaf):
            return jax.random.wrap_key_data(jnp.asarray(given), impl=jax.random.key_impl(leaf))
        return given

    return jax.tree_util.tree_map_with_path(put, state)


def discard(path: Path) -> None:
    """Remove a folder; it is renamed first, so that nobody sees half of it under its name."""
    rubbish = path.with_name(f"{path.name}.rubbish")
    shutil.rmtree(rubbish, ignore_errors=True)
    os.replace(path, rubbish)
    shutil.rmtree(rubbish, ignore_errors=True)


def all_steps(folder: Path) -> list[int]:
    """The environment steps of the complete checkpoints in ``folder``, in order."""
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdigit())


def sizes(state: TrainState, refills: Iterable[str]) -> tuple[int, int]:
    """Bytes of a checkpoint's state, and of its replay buffer."""
    replay = {name: leaf.nbytes for name, leaf in _leaves(state).items() if is_replay(name, refills)}
    return sum(leaf.nbytes for leaf in _leaves(state).values()) - sum(replay.values()), sum(replay.values())


def versions() -> dict[str, str]:
    """Versions of the packages on which a run's numbers depend."""
    return {name: importlib.metadata.version(name) for name in ("jax", "jaxlib")}


def others(folder: Path, but: str = "") -> str:
    """What to resume instead of the checkpoint ``but``."""
    found = [str(folder / str(steps)) for steps in reversed(all_steps(folder)) if str(steps) != but]
    return f"resume another, such as resume={found[0]}" if found else "there is no other beside it"


def one_line(error: BaseException) -> str:
    """An error in a line of moderate length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:199]}…"


def _write_description(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps({"format": FORMAT_VERSION, "digest": _digest_of(content), "content": content})
    with replacing(path / "description.json") as temporary, temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _require_space(path: Path, size: int) -> None:
    """Find out whether the disk is full before Orbax does, whose threads print tracebacks of their own.

    Raises:
        OSError: ``size`` bytes do not fit.
    """
    with path.open("wb") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        elif shutil.disk_usage(path.parent).free < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    path.unlink()


def _save_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    if arrays:
        import orbax.checkpoint as ocp

        with _checkpointer() as orbax:
            orbax.save(path.absolute(), args=ocp.args.PyTreeSave({n: a for n, a in arrays.items() if a.size}))


def _load_arrays(path: Path, described: dict[str, dict[str, Any]]) -> dict[str, np.ndarray]:
    empty = {n: np.zeros(d["shape"], d["dtype"]) for n, d in described.items() if 0 in d["shape"]}
    if len(empty) == len(described):
        return empty
    import orbax.checkpoint as ocp

    as_numpy = ocp.RestoreArgs(restore_type=np.ndarray)
    with _checkpointer() as orbax:
        names = [name for name in described if name not in empty]
        restored = orbax.restore(
            path.absolute(), args=ocp.args.PyTreeRestore(restore_args=dict.fromkeys(names, as_numpy))
        )
    return empty | {name: restored[name] for name in names}


def _checkpointer() -> Any:
    import orbax.checkpoint as ocp

    # Alone: it would wait for the other processes, which write nothing and read in their own time.
    own = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(primary_host=own, active_processes={own})
    # Uncompressed: what is printed beforehand is the true size, and compressing would take cores from training.
    handler = ocp.PyTreeCheckpointHandler(use_compression=False, multiprocessing_options=alone)
    return ocp.Checkpointer(handler, multiprocessing_options=alone)


def _of_part(part: str, by_name: Mapping[str, Any], refills: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in by_name.items() if is_replay(name, refills) == (part == "replay")}


def _leaves(state: TrainState) -> dict[str, Any]:
    """A state's arrays by name, keys as the numbers they are made of."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {_name(path): _data(leaf) for path, leaf in leaves}


def _name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _data(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of(content: PyTree) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _damaged(path: Path, why: str) -> CheckpointError:
    return CheckpointError(f"checkpoint {path} is damaged ({why}): {others(path.parent, but=path.name)}")


FOLDER = "checkpoints"


class Checkpointer:
    """Writes one run's checkpoints in a thread, one at a time. A write that fails does not end training: ``tell`` gets
    a line.

    - ``refills``: the fragments that hold a replay buffer.
    - ``unscored``: the environment steps of checkpoints whose score may still come, which are kept until then.
    """

    def __init__(
        self, folder: Path, plan: Checkpoints, settings: Mapping[str, Any], refills: Sequence[str], tell: Tell
    ) -> None:
        self.folder, self.plan, self.settings, self.tell = folder, plan, dict(settings), tell
        self.refills = list(refills)
        self.newest: Path | None = None
        self.unscored: set[int] = set()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future | None = None

    def save(
        self, steps: int, state: TrainState, progress: Row, score: float | None, beside: Row | None = None
    ) -> None:
        """Copy the state, whose buffers the next chunk will overwrite, and write it while training goes on. Every
        process must call it; process 0 writes.

        ``score``: the mean return of this state, None if it is not evaluated or not yet (`add_score`); ``beside``: more
        arrays, whose names begin with `BESIDE`.
        """
        self.wait()
        arrays = snapshot(state, self.refills, replay=self.plan.replay) | dict(beside or {})
        if not hosts.is_first():
            return
        if any(waiting["env_steps"] == steps for waiting in progress.get("snapshots", [])):
            self.unscored.add(steps)
        left_out = not self.plan.replay and sizes(state, self.refills)[1] > 0
        content = dict(
            settings=self.settings, progress=dict(progress), score=score, refills=self.refills, left_out=left_out
        )
        self._pending = self._worker.submit(self._write, steps, arrays, content)

    def add_score(self, steps: int, score: float, progress: Mapping[str, Any]) -> None:
        """Note the mean return of the state that was saved after ``steps`` environment steps, if it was, and what that
        changes of its ``progress``."""
        if hosts.is_first() and steps in self.unscored:
            self.wait()
            self._pending = self._worker.submit(self._score, steps, score, dict(progress))

    def wait(self) -> None:
        """Wait until the write that is under way has ended."""
        if self._pending is None:
            return
        error, self._pending = self._pending.exception(), None
        if error is not None:
            last = f"the last good checkpoint is {self.newest}" if self.newest else "there is no checkpoint yet"
            self.tell(f"a checkpoint could not be written to {self.folder} ({one_line(error)}): {last}")

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, *error: object) -> None:
        self.wait()
        self._worker.shutdown()

    def _score(self, steps: int, score: float, progress: dict[str, Any]) -> None:
        self.unscored.discard(steps)
        if (self.folder / str(steps)).exists():
            set_score(self.folder / str(steps), score, progress)
        prune(self.folder, self.plan.keep, self.unscored)

    def _write(self, steps: int, arrays: dict[str, np.ndarray], content: dict[str, Any]) -> None:
        self.newest = write(self.folder, steps, arrays, content)
        prune(self.folder, self.plan.keep, self.unscored)


def prune(folder: Path, keep: int, unscored: Collection[int] = ()) -> None:
    """Leave the ``keep`` newest checkpoints, the one with the best score and those that may yet get one
    (``unscored``), and a replay buffer in the newest only."""
    steps = all_steps(folder)
    scores = {s: score for s in steps if (score := _score(folder / str(s))) is not None}
    best = [max(scores, key=lambda s: (scores[s], s))] if scores else []
    for step in steps:
        if step not in (*steps[-keep:], *best, *unscored):
            discard(folder / str(step))
        elif step != steps[-1] and (folder / str(step) / "replay").exists():
            discard(folder / str(step) / "replay")


def remove_stale(folder: Path, after: int | None = None) -> None:
    """Remove what a killed process left unfinished, and the checkpoints later than ``after`` environment steps."""
    for path in folder.glob("*.unfinished"):
        shutil.rmtree(path, ignore_errors=True)
    for path in [*folder.glob("*.rubbish"), *folder.glob("*/*.rubbish")]:
        shutil.rmtree(path, ignore_errors=True)
    for steps in all_steps(folder):
        if after is not None and steps > after:
            discard(folder / str(steps))


def find(path: Path) -> Path:
    """The checkpoint that ``path`` means: itself, or the newest of a run's folder.

    Raises:
        CheckpointError: there is none.
    """
    if (path / "description.json").exists() or path.parent.name == FOLDER:
        if not (path / "description.json").exists():
            raise CheckpointError(f"{path} is no complete checkpoint: {others(path.parent, but=path.name)}")
        return path
    steps = all_steps(path / FOLDER)
    if not steps:
        raise CheckpointError(f"{path} holds no checkpoint: write the folder of a run, such as runs/latest")
    return path / FOLDER / str(steps[-1])


def newest_good(run_folder: Path, tell: Tell) -> Path | None:
    """The newest undamaged checkpoint of a run, or None; ``tell`` gets a line for each damaged one."""
    for steps in reversed(all_steps(run_folder / FOLDER)):
        path = run_folder / FOLDER / str(steps)
        try:
            verify(read_description(path))
        except CheckpointError as error:
            tell(f"passed over: {error}")
            continue
        return path
    return None


def _score(path: Path) -> float | None:
    try:
        return read_description(path).score
    except CheckpointError:
        return None
