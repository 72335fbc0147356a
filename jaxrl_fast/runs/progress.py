"""What a person sees while a run goes on: a live line on a terminal, plain lines elsewhere."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from jaxrl_fast.runs.hooks import Row

PLAIN_INTERVAL_S = 5.0


class ProgressDisplay:
    """Shows a run's progress while it is open (a context manager); call it with each row of the run's history."""

    def __init__(self, total_steps: int, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self.total_steps = total_steps
        self.printed_s = time.perf_counter()
        self.first: Row | None = None
        self.bar: Progress | None = None

    def __enter__(self) -> "ProgressDisplay":
        if self.console.is_terminal:
            columns = BarColumn(bar_width=24), TextColumn("{task.percentage:3.0f}%  {task.description}")
            self.bar = Progress(*columns, console=self.console)
            self.bar.start()
            self.task = self.bar.add_task("compiling", total=self.total_steps)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def __call__(self, row: Row) -> None:
        """Show a row: a chunk's rates, or an evaluation's return."""
        if row["kind"] == "eval":
            interval = row.get("eval_return_ci95")
            spread = f"95 % [{interval[0]:.1f}, {interval[1]:.1f}]" if interval else f"± {row['eval_return_std']:.1f}"
            self.console.print(
                f"  {row['env_steps']:>11,} steps  {clock(row['wall_s'])}  greedy return "
                f"{row['eval_return_mean']:.1f} {spread}  ({row['eval_episodes']} episodes)",
                soft_wrap=True,
            )
            return
        text = self._describe(row)
        if self.bar is not None:
            self.bar.update(self.task, completed=min(row["env_steps"], self.total_steps), description=text)
        elif time.perf_counter() - self.printed_s > PLAIN_INTERVAL_S:
            self.printed_s = time.perf_counter()
            self.console.print(f"  {row['env_steps']:>11,} steps  {clock(row['wall_s'])}  {text}", soft_wrap=True)

    def tell(self, line: str) -> None:
        """Show a line beside the bar."""
        self.console.print(line, soft_wrap=True, markup=False)

    def _describe(self, row: Row) -> str:
        parts = [f"{si(row['sampling_hz'])} steps/s", f"{si(row['update_hz'])} updates/s"]
        if row.get("episode_return") is not None:
            parts.append(f"return {row['episode_return']:.1f}")
        if row.get("dropped_updates"):
            parts.append(f"{row['dropped_updates']} updates dropped")
        if self.first is None:
            self.first = row
        steps = row["env_steps"] - self.first["env_steps"]
        if steps > 0:
            seconds_per_step = (row["wall_s"] - self.first["wall_s"]) / steps
            parts.append(f"{clock(max(self.total_steps - row['env_steps'], 0) * seconds_per_step)} left")
        return "  ".join(parts)


def clock(seconds: float) -> str:
    """``m:ss`` or ``h:mm:ss``."""
    minutes, second = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{second:02}" if hours else f"{minutes}:{second:02}"


def si(value: float) -> str:
    """Three figures with a unit prefix: 12.3k."""
    for limit, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{prefix}"
    return f"{value:.3g}"
