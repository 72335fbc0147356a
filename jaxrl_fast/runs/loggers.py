"""Where a run's scalars go beside its tables: TensorBoard, Weights & Biases, or nowhere else."""

import os
import secrets
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from jaxrl_fast.runs.hooks import Tell
from jaxrl_fast.runs.status import RunStatus

Log = Literal["tensorboard", "wandb", "none"]
Kind = Literal["train", "eval"]
"""Of a row: those of ``metrics.csv`` and those of evaluations."""
PROJECT = "jaxrl_fast"
"""Of Weights & Biases, unless ``WANDB_PROJECT`` names another."""


class Logger(Protocol):
    """Gets the scalars of a run as they come. An `OSError` of it costs a line, not the run."""

    def add(self, kind: Kind, scalars: Mapping[str, float], env_steps: int) -> None:
        """``scalars`` by name, as they were after ``env_steps`` environment steps."""

    def close(self, failed: bool) -> None:
        """The run has ended; nothing may follow."""


def check_logger(log: Log) -> None:
    """Refuse one whose package is missing, before anything is compiled.

    Raises:
        ImportError: it is not installed.
    """
    if log == "wandb":
        _import_wandb()


def open_logger(
    log: Log,
    path: Path,
    *,
    resume_at: int | None,
    written: Collection[tuple[Kind, int]],
    settings: Mapping[str, Any],
    status: RunStatus,
    tell: Tell,
) -> Logger:
    """A logger that writes into the run folder ``path``; ``resume_at``: go on after this number of environment steps.
    ``written``: kind and environment steps of the rows that the tables had when the run was interrupted.

    Raises:
        ImportError: its package is not installed.
        ValueError: Weights & Biases does not let us in.
    """
    if log == "tensorboard":
        return _TensorBoard(path, resume_at)
    return _WeightsAndBiases(path, written, settings, status, tell) if log == "wandb" else _Nowhere()


class _TensorBoard:
    def __init__(self, path: Path, resume_at: int | None) -> None:
        from tensorboardX import SummaryWriter

        purge_step = None if resume_at is None else resume_at + 1
        self._writer = SummaryWriter(str(path), write_to_disk=True, purge_step=purge_step)

    def add(self, kind: Kind, scalars: Mapping[str, float], env_steps: int) -> None:
        for name, value in scalars.items():
            self._writer.add_scalar(f"{kind}/{name}", value, env_steps)

    def close(self, failed: bool) -> None:
        self._writer.close()


class _WeightsAndBiases:
    """A run that is resumed goes on under its id, which ``run.json`` keeps. Rows cannot be taken back there: those that
    it has from before an interruption are not sent again."""

    def __init__(
        self,
        path: Path,
        written: Collection[tuple[Kind, int]],
        settings: Mapping[str, Any],
        status: RunStatus,
        tell: Tell,
    ) -> None:
        wandb = _import_wandb()
        self._error = wandb.Error
        id = status.facts.get("wandb_id")
        self._there = frozenset(written) if id else frozenset()
        id = id or secrets.token_hex(4)
        project = os.environ.get("WANDB_PROJECT") or PROJECT
        options = wandb.Settings(console="off", silent=True)
        try:
            self._run = wandb.init(
                project=project,
                name=path.resolve().name,
                id=id,
                resume="allow",
                dir=path,
                config=dict(settings),
                settings=options,
            )
        except wandb.Error as error:
            why = " ".join(str(error).split()).rstrip(".")
            raise ValueError(f"log=wandb: {why}: set WANDB_MODE=offline, or write log=tensorboard") from None
        status.set(wandb_id=id)
        # An evaluation comes later than rows of later steps, which W&B's own count of steps would not allow.
        self._run.define_metric("*", step_metric="env_steps")
        folder = Path(self._run.dir).parent
        tell(f"Weights & Biases: {f'later, with wandb sync {folder}' if self._run.offline else self._run.url}")

    def add(self, kind: Kind, scalars: Mapping[str, float], env_steps: int) -> None:
        if (kind, env_steps) in self._there:
            return
        try:
            self._run.log({**{f"{kind}/{name}": value for name, value in scalars.items()}, "env_steps": env_steps})
        except self._error as error:
            raise OSError(str(error)) from error

    def close(self, failed: bool) -> None:
        try:
            self._run.finish(exit_code=int(failed))
        except self._error as error:
            raise OSError(str(error)) from error


class _Nowhere:
    def add(self, kind: Kind, scalars: Mapping[str, float], env_steps: int) -> None:
        return

    def close(self, failed: bool) -> None:
        return


def _import_wandb() -> Any:
    try:
        import wandb
    except ImportError as error:
        raise ImportError("log=wandb needs a package: pip install wandb, or write log=tensorboard") from error
    if not hasattr(wandb, "init"):  # the folder in which it keeps its own files, where it is not installed
        raise ImportError("log=wandb needs a package: pip install wandb, or write log=tensorboard")
    return wandb
