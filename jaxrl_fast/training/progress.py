"""Display of a run's progress: live lines on a terminal, plain lines elsewhere."""

import math
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from jaxrl_fast.settings.schema import by_dotted_key
from jaxrl_fast.training.callbacks import MeanRates, Row
from jaxrl_fast.training.records import read_status
from jaxrl_fast.training.run_folder import read_settings

PLAIN_INTERVAL_S = 5.0
REFRESH_HZ = 2
"""Refreshes of the live lines per second. They are few, since a thread that draws holds Python's
lock (GIL), for which training waits.
"""
NOT_COMPILED = ("seed", "name", "log", "eval", "checkpoint", "stop", "debug", "tuned")
"""Settings and sections of settings that are no part of a program."""
MOST_RUNS = 20
"""Earlier runs to look at."""
SPARKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 24


class ProgressDisplay:
    """Context manager that shows a run's progress; call it with each row of the run's history.

    ``compile_s`` is the compile time of an earlier similar run in seconds, or None. ``kind``
    describes the actions of evaluations.
    """

    def __init__(
        self,
        total_steps: int,
        console: Console | None = None,
        *,
        compile_s: float | None = None,
        kind: str = "greedy",
    ) -> None:
        self.console = console or Console(highlight=False)
        self.total_steps, self.compile_s, self.kind = total_steps, compile_s, kind
        self.opened_s = self.printed_s = time.perf_counter()
        self.first: Row | None = None
        self.last: Row = {}
        self.rates = MeanRates()
        self.since: Row = {}
        self.returns: list[float] = []
        self.greedy: list[float] = []
        self.told: list[str] = []
        self.live: Live | None = None

    def __enter__(self) -> "ProgressDisplay":
        if self.console.is_terminal:
            self.live = Live(
                console=self.console,
                get_renderable=self.lines,
                refresh_per_second=REFRESH_HZ,
                transient=True,
            )
            self.live.start()
        elif not self.console.quiet:
            self.console.print(f"  {self._compiling(None)}", soft_wrap=True)
        return self

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self.live.stop()

    def __call__(self, row: Row) -> None:
        """Show a row: a chunk's rates, or an evaluation's return."""
        if row["kind"] == "eval":
            self.greedy.append(row["eval_return_mean"])
            self._print_evaluation(row)
            return
        if self.first is None or (row["update_hz"] > 0 and not self.rates.learns):
            self.since = row  # with updates, steps take longer than before
        self.first, self.last = self.first or row, row
        self.rates.add(row)
        if row.get("episode_return") is not None:
            self.returns.append(row["episode_return"])
        if self.live is None and time.perf_counter() - self.printed_s > PLAIN_INTERVAL_S:
            self.printed_s = time.perf_counter()
            steps = f"{row['env_steps']:>11,} steps  {clock(row['wall_s'])}"
            self.console.print(f"  {steps}  {self._figures()}", soft_wrap=True)

    def tell(self, line: str) -> None:
        """Show a message above the live lines; the last one during training remains visible."""
        if self.first is not None:
            self.told.append(line)
        self.console.print(line, soft_wrap=True, markup=False)

    def _print_evaluation(self, row: Row) -> None:
        interval = row.get("eval_return_ci95")
        spread = (
            f"95 % [{interval[0]:.1f}, {interval[1]:.1f}]"
            if interval
            else f"± {row['eval_return_std']:.1f}"
        )
        success = (
            f", {share(row['eval_success_rate'])} succeeded" if "eval_success_rate" in row else ""
        )
        self.console.print(
            f"  {row['env_steps']:>11,} steps  {clock(row['wall_s'])}  {self.kind} return "
            f"{row['eval_return_mean']:.1f} {spread}  ({row['eval_episodes']} episodes{success})",
            soft_wrap=True,
        )

    def lines(self) -> Group:
        """Return the live lines: progress, returns so far, and the last message."""
        steps = min(self.last.get("env_steps", 0), self.total_steps)
        bar = Table.grid(padding=(0, 1))
        share = f"{100 * steps // self.total_steps:3d}%"
        bar.add_row(
            ProgressBar(self.total_steps, steps, width=24),
            share,
            Text(self._doing(), overflow="ellipsis", no_wrap=True),
        )
        lines: list[Table | Text] = [bar]
        for name, values in (
            (f"{self.kind} return", self.greedy),
            ("training return", self.returns),
        ):
            if len(values) > 1:
                lines.append(
                    Text(f"{name:<15}  {sparkline(values)}  {values[-1]:.1f}", no_wrap=True)
                )
                break
        if self.told:
            count = f"{len(self.told)} lines, the last: " if len(self.told) > 1 else ""
            lines.append(
                Text(f"{count}{self.told[-1]}", style="yellow", overflow="ellipsis", no_wrap=True)
            )
        return Group(*lines)

    def _doing(self) -> str:
        if self.first is None:
            return self._compiling(time.perf_counter() - self.opened_s)
        waits = self.last["env_steps"] >= self.total_steps
        return f"evaluating the last policy  {self._figures()}" if waits else self._figures()

    def _compiling(self, seconds: float | None) -> str:
        passed = "" if seconds is None else f", {seconds:.0f} s"
        if not self.compile_s or (seconds or 0.0) > self.compile_s:
            return f"compiling{passed}"
        return (
            f"compiling{passed} of about {self.compile_s:.0f} s"
            if passed
            else f"compiling, about {self.compile_s:.0f} s"
        )

    def _figures(self) -> str:
        row, rates = self.last, self.rates.now
        updates = f"{si(rates['update_hz'])} updates/s" if self.rates.learns else "no updates yet"
        parts = [f"{si(rates['sampling_hz'])} steps/s", updates]
        if row.get("episode_return") is not None:
            parts.append(f"return {row['episode_return']:.1f}")
        if row.get("dropped_updates"):
            parts.append(f"{row['dropped_updates']} updates dropped")
        steps = row["env_steps"] - self.since["env_steps"]
        if steps > 0 and row["env_steps"] < self.total_steps:
            seconds_per_step = (row["wall_s"] - self.since["wall_s"]) / steps
            parts.append(f"{clock((self.total_steps - row['env_steps']) * seconds_per_step)} left")
        return "  ".join(parts)


def sparkline(values: Sequence[float], width: int = SPARK_WIDTH) -> str:
    """Draw numbers as a row of bars, the lowest ▁ and the highest █.

    Args:
        values: Numbers; those not finite are omitted.
        width: Largest number of bars. More numbers are averaged in groups.

    Returns:
        The bars.
    """
    values = [value for value in values if math.isfinite(value)]
    groups = max(1, min(len(values), width))
    edges = [len(values) * i // groups for i in range(groups + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges) if b > a]
    low, high = min(means, default=0.0), max(means, default=0.0)
    levels = [(mean - low) / (high - low) if high > low else 0.5 for mean in means]
    return "".join(SPARKS[min(int(level * len(SPARKS)), len(SPARKS) - 1)] for level in levels)


def earlier_compile_s(folder: Path) -> float | None:
    """Look up the compile time of the newest run of the same program in the same parent folder.

    Names of runs sort by time.

    Args:
        folder: Folder of this run, with its ``config.yaml``.

    Returns:
        Seconds, or None if none of the newest runs has these settings, but for those in
        `NOT_COMPILED`.
    """
    asked = _compiled(read_settings(folder))
    for other in sorted(
        (other for other in folder.parent.glob("*") if other != folder), reverse=True
    )[:MOST_RUNS]:
        compile_s = read_status(other).get("compile_s")
        if compile_s and _compiled(read_settings(other)) == asked:
            return float(compile_s)
    return None


def _compiled(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in by_dotted_key(settings).items()
        if key.split(".")[0] not in NOT_COMPILED
    }


def clock(seconds: float) -> str:
    """Format a duration.

    Args:
        seconds: Duration.

    Returns:
        ``m:ss`` or ``h:mm:ss``.
    """
    minutes, second = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{second:02}" if hours else f"{minutes}:{second:02}"


def share(part: float) -> str:
    """Format a fraction in per cent with three digits.

    Args:
        part: Fraction.

    Returns:
        Text, such as ``12.5 %``.
    """
    return f"{100 * part:.3g} %"


def si(value: float) -> str:
    """Format a number with three digits and a unit prefix.

    Args:
        value: Number.

    Returns:
        Text, such as ``12.3k``.
    """
    for limit, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if limit <= float(f"{value:.3g}") < 1e15:
            return f"{float(f'{value:.3g}') / limit:.3g}{prefix}"
    return f"{value:.3g}"
