"""When a run is saved, which checkpoints are kept, and which one to resume from.

The arrays are written by Orbax (see `checkpoint_files`). Its `CheckpointManager` is not used: it can
neither drop a part of an older checkpoint nor notice a flipped bit.
"""

import shutil
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl_fast.graph import distributed
from jaxrl_fast.graph.dataflow import TrainState
from jaxrl_fast.runs.checkpoint_files import (
    CheckpointError,
    all_steps,
    discard,
    one_line,
    others,
    read_description,
    set_score,
    sizes,
    snapshot,
    verify,
    write,
)
from jaxrl_fast.runs.hooks import Tell

FOLDER = "checkpoints"


class Checkpoints(NamedTuple):
    """When to save, and what to keep.

    ``every``: environment steps between two checkpoints (None: a tenth of the run); ``keep``: how many of the newest
    are kept, beside the best (0: none is ever made); ``replay``: whether the newest holds the replay buffer.
    """

    every: int | None = None
    keep: int = 2
    replay: bool = True


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
        self,
        steps: int,
        state: TrainState,
        progress: Mapping[str, Any],
        score: float | None,
        beside: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Copy the state, whose buffers the next chunk will overwrite, and write it while training goes on. Every
        process must call it; process 0 writes.

        ``score``: the mean return of this state, None if it is not evaluated or not yet (`add_score`); ``beside``: more
        arrays, whose names begin with `BESIDE`.
        """
        self.wait()
        arrays = snapshot(state, self.refills, replay=self.plan.replay) | dict(beside or {})
        if not distributed.is_first():
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
        if distributed.is_first() and steps in self.unscored:
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
