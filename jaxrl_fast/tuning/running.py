"""Runs a whole sweep: prints its progress and saves its files, picture and result."""

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from jaxrl_fast.commands import tuning_cache
from jaxrl_fast.commands.tuning_cache import Finding
from jaxrl_fast.settings.schema import ConfigError, command_line
from jaxrl_fast.training.stop_signals import StopSignal
from jaxrl_fast.tuning import candidates, sweep_report
from jaxrl_fast.tuning.measuring import Row, Settings, Stopped
from jaxrl_fast.tuning.sweep_report import draw
from jaxrl_fast.tuning.width_sweep import Record, SweepPlan, run_knobs
from jaxrl_fast.views.graph_tables import new_console


def run_sweep(
    plan: SweepPlan, settings: Settings, stem: Path, argv: Sequence[str], own_keys: Sequence[str]
) -> int:
    """Run a sweep, print and write its results. After a signal, the results so far are saved.

    Args:
        plan: What to vary.
        settings: Settings of the trials.
        stem: Path of the result files without suffix.
        argv: Arguments of the command.
        own_keys: Keys of the autotuner, which a training command does not have.

    Returns:
        Exit code.

    Raises:
        ConfigError: No candidate ran.
    """

    def on_row(record: Record, row: Row) -> None:
        print(sweep_report.line(row, row is record.best), flush=True)
        sweep_report.write(
            sweep_report.document(plan, record, settings, argv, interrupted=True), stem
        )

    record, stop = Record(on_row), StopSignal(stops="this trial")
    stop.training = True  # each result is saved
    try:
        run_knobs(plan, record, settings._replace(stopped=stop))
    except Stopped:
        print("\nstopped; the results so far are saved", file=sys.stderr)
    stop.ignore()
    doc = sweep_report.document(plan, record, settings, argv, interrupted=stop())
    sweep_report.write(doc, stem)
    draw(doc, stem.with_suffix(".png"))
    console = new_console()
    console.print(sweep_report.table(doc))
    print("\n".join(["", *sweep_report.closing(doc)]))
    print(f"written: {', '.join(str(stem.with_suffix(end)) for end in ('.json', '.csv', '.png'))}")
    if stop.number is not None:
        return 128 + stop.number
    if record.best is None:
        raise ConfigError(
            f"no candidate ran; the last one: {record.rows[-1].status}: {record.rows[-1].why}"
        )
    print_use(plan, record, remember(plan, record), argv, own_keys)
    return 0


def remember(plan: SweepPlan, record: Record) -> Path | None:
    """Save the result of a complete sweep for later runs.

    Args:
        plan: What was varied.
        record: Results.

    Returns:
        The file; None without a complete result.
    """
    if record.width is None or record.best is None or not record.complete:
        return None
    run, free = record.best.run, dict[str, Any]()
    if "placement" in plan.knobs:
        free |= {"placement": run.placement, "devices": run.devices}
    if "pool" in plan.knobs and run.pool["workers"] is not None:
        free |= {"pool.workers": run.pool["workers"]}
    learning, when = tuning_cache.sizes_of(record.width.run), time.strftime("on %Y-%m-%d")
    key = tuning_cache.make_key(
        plan.asked, tuning_cache.device_of(record.best.facts), plan.objective
    )
    return tuning_cache.remember(key, Finding(learning, free, record.width.effect, when, False))


def print_use(
    plan: SweepPlan, record: Record, path: Path | None, argv: Sequence[str], own_keys: Sequence[str]
) -> None:
    """Print the command that trains with the result.

    Args:
        plan: What was varied.
        record: Results.
        path: File of the saved result; None if it was not saved.
        argv: Arguments of the command.
        own_keys: Keys of the autotuner.
    """
    if path is not None:
        print(f"saved in {path}{', for num_envs=auto' if plan.objective == 'training' else ''}")
    elif not record.complete:
        print("not saved for num_envs=auto: num_envs was not among the knobs")
    if plan.objective == "training" and record.best is not None:
        found = candidates.words(plan.asked, record.best.run)
        replaced = {*own_keys, *(word.partition("=")[0] for word in found)}
        given = [word for word in argv if word.partition("=")[0] not in replaced]
        print(f"train: {command_line([*given, *found])}")


def make_folder(path: Path) -> None:
    """Create a writable folder.

    Args:
        path: Folder.

    Raises:
        ConfigError: It cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ConfigError(
            f"cannot write to out={path} ({error.strerror}): write another folder"
        ) from None


@contextmanager
def results_folder(path: Path) -> Iterator[Path]:
    """Create a writable folder, and remove it at the end if it is empty.

    Args:
        path: Folder.

    Returns:
        A context manager that yields the folder.

    Raises:
        ConfigError: It cannot be written.
    """
    make_folder(path)
    try:
        yield path
    finally:
        with suppress(OSError):
            path.rmdir()
