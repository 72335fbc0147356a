"""What a run leaves behind: the run folder, its tables, its curve and its summary."""

import contextlib
import csv
import json
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl_fast.core import EpisodeTotals
from jaxrl_fast.files import replace_file, replacing
from jaxrl_fast.policy.policies import Policy, save_policy
from jaxrl_fast.runs.csv_tables import EVAL_COLUMNS, GrowingTable, evaluation_rows, written_rows
from jaxrl_fast.runs.hooks import Row, Tell
from jaxrl_fast.runs.loggers import Kind, Log, Logger, open_logger
from jaxrl_fast.runs.status import RunStatus


class RunFolder:
    """Writes one run's files as they come; every row is on disk before the next chunk ends. A context manager.

    ``resume_at``: go on with the tables that are there, without their rows past this number of environment steps, nor
    those of evaluations after the steps ``evaluated_again``.
    ``tell`` gets a line, once, if a table can no longer be written; that does not end training. The attribute ``tell``
    also keeps the lines that it is given, in ``run.json``, which ``status`` writes; ``facts`` go there, too.
    ``log``: where scalars go beside the tables, and with them the ``settings``, if that shows any.

    Raises:
        ValueError: the folder cannot be written to, or the logger does not open.
        ImportError: the logger's package is missing.
    """

    def __init__(
        self,
        path: Path,
        *,
        resume_at: int | None = None,
        evaluated_again: Collection[int] = (),
        tell: Tell = lambda line: None,
        facts: Mapping[str, Any] | None = None,
        log: Log = "tensorboard",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.path, self.broken = path, False
        try:
            path.mkdir(parents=True, exist_ok=True)
            written = set() if resume_at is None else written_rows(path)
            self._metrics = GrowingTable(path / "metrics.csv", resume_at)
            self._of_seeds = GrowingTable(path / "metrics_seeds.csv", resume_at)
            self._evals = GrowingTable(path / "evals.csv", resume_at, evaluated_again)
            self.status = RunStatus(path, resumed=resume_at is not None, **(facts or {}))
            self.tell = self.status.noting(tell)
            self._logger = self._open_logger(log, resume_at, written, settings or {})
        except OSError as error:
            raise ValueError(
                f"cannot write to the run folder {path} ({error.strerror}): write another run_dir=..."
            ) from error

    def add_metrics(self, row: Row) -> None:
        """One row a chunk, and one for each of its ``seeds`` where there are several."""
        of_seeds = row.get("seeds", [])
        row = {name: value for name, value in row.items() if name not in ("kind", "seeds")}

        def add() -> None:
            self._metrics.add([row])
            self._of_seeds.add(of_seeds)
            numbers = {
                name: x for name, x in row.items() if isinstance(x, int | float) and not name.startswith("rate/")
            }
            self._logger.add("train", numbers, row["env_steps"])

        self._try(add)

    def add_evaluation(self, env_steps: int, wall_s: float, totals: EpisodeTotals) -> None:
        """One row an episode; totals are ``[S, episodes]``."""

        def add() -> None:
            self._evals.add(evaluation_rows(env_steps, wall_s, totals))
            means = {"return_mean": float(np.mean(totals.returns)), "length_mean": float(np.mean(totals.length))}
            if not isinstance(totals.success, tuple):
                means["success_rate"] = float(np.mean(totals.success))
            self._logger.add("eval", means, env_steps)

        self._try(add)

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not self._evals.columns:
            self._try(lambda: self._evals.begin(EVAL_COLUMNS))
        for file in (self._metrics, self._of_seeds, self._evals):
            self._try(file.close)
        self._try(lambda: self._logger.close(error is not None))
        self.status.end(error)

    def keep_policy(self, policy: Policy, *, newest: bool, best: bool) -> None:
        """Write an evaluated policy as the ``newest``, as the ``best``, or both."""

        def write() -> None:
            if newest:
                save_policy(policy, self.path / "policy")
            if best:
                save_policy(policy, self.path / "policy" / "best")

        self._try(write)

    def finish(self, policy: Policy) -> None:
        """Write the last policy and the curve.

        Raises:
            OSError: the folder can no longer be written to.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        save_policy(policy, self.path / "policy")
        if (self.path / "evals.csv").exists():
            draw_curve(self.path, title=f"{policy.spec.name}, {policy.made_by['algo']}")

    def _open_logger(
        self, log: Log, resume_at: int | None, written: Collection[tuple[Kind, int]], settings: Mapping[str, Any]
    ) -> Logger:
        try:
            return open_logger(
                log,
                self.path,
                resume_at=resume_at,
                written=written,
                settings=settings,
                status=self.status,
                tell=self.tell,
            )
        except BaseException as error:
            self.status.end(error)
            raise

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            if not self.broken:
                self.tell(f"cannot write to {self.path} ({error.strerror or error}): training goes on without it")
            self.broken = True


def write_summary(folder: Path, summary: Row) -> None:
    """Write ``summary.json``, adding to what it holds already; what cannot be read is replaced."""
    path = folder / "summary.json"
    try:
        before = dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        before = {}
    replace_file(path, json.dumps({**before, **summary}, indent=2) + "\n")


def link_latest(folder: Path, runs: Path) -> None:
    """Point ``runs/latest`` to the newest run, where the file system knows links. A folder of that name, which may
    hold a run, is left as it is."""
    with contextlib.suppress(OSError), replacing(runs / "latest") as temporary:
        temporary.symlink_to(os.path.relpath(folder, runs), target_is_directory=True)


def read_evaluations(folder: Path) -> dict[str, np.ndarray]:
    """The columns of ``evals.csv``."""
    with open(folder / "evals.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name]) for row in rows]) for name in EVAL_COLUMNS}


def draw_curve(folder: Path, *, title: str) -> None:
    """``curve.png``: greedy return against environment steps, with its spread over episodes or seeds."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    table = read_evaluations(folder)
    if not table["seed"].size:
        return
    steps = np.unique(table["env_steps"])
    seeds = np.unique(table["seed"])
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    scores = np.array([[_mean_where(table, step, seed) for step in steps] for seed in seeds])
    if len(seeds) > 1:
        low, high, label = scores.min(axis=0), scores.max(axis=0), f"mean of {len(seeds)} seeds, range shaded"
    else:
        at = [table["return"][table["env_steps"] == step] for step in steps]
        low, high = np.array([np.percentile(x, [10, 90]) for x in at]).T
        label = f"mean of {len(at[0])} episodes, 10 to 90 % shaded"
    axes.fill_between(steps, low, high, alpha=0.25, linewidth=0)
    axes.plot(steps, scores.mean(axis=0), marker="o", markersize=3.5, label=label)
    axes.set(xlabel="environment steps", ylabel="greedy return", xlim=(0, None))
    axes.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter())
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    unit, unit_s = ("minutes", 60.0) if table["wall_s"].max() > 180 else ("seconds", 1.0)
    clock = axes.secondary_xaxis("top", functions=_steps_to_time(table["env_steps"], table["wall_s"] / unit_s))
    clock.set_xlabel(f"wall-clock, {unit}", fontsize="small")
    figure.suptitle(title)
    figure.savefig(folder / "curve.png", dpi=130)
    plt.close(figure)


def _mean_where(table: dict[str, np.ndarray], step: float, seed: float) -> float:
    return float(table["return"][(table["env_steps"] == step) & (table["seed"] == seed)].mean())


def _steps_to_time(steps: np.ndarray, time: np.ndarray) -> tuple[Any, Any]:
    """The straight line that fits the evaluations' times, and its inverse: rates are steady after the start."""
    rate, start = np.polyfit(steps, time, 1) if len(np.unique(steps)) > 1 else (0.0, -1.0)
    if start < 0:  # a fast warm-up, or a single evaluation: no time before the run
        rate, start = float(steps @ time) / max(float(steps @ steps), 1.0), 0.0
    rate = max(rate, 1e-12)
    return (lambda x: start + x * rate), (lambda x: (x - start) / rate)
