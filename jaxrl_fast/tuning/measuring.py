"""Measurements of settings, each in a subprocess that receives one request after another."""

import dataclasses
import json
import os
import queue
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from jaxrl_fast.commands.run_config import chosen_later
from jaxrl_fast.settings.run import Run, to_yaml
from jaxrl_fast.system import end_session, start_module
from jaxrl_fast.training.callbacks import ShouldStop
from jaxrl_fast.tuning.candidates import Candidate
from jaxrl_fast.tuning.search import GoOn, Outcome

What = Literal["training", "sampling", "environments", "updates"]
"""Measured part of a run: all of it, or one of the parts that bound it."""


def without_choices(run: Run) -> Run:
    """Remove the options that `with_defaults` fills in, for a process that makes the environment.

    Args:
        run: Settings of the run.

    Returns:
        The settings without these options.
    """
    later = chosen_later(run)
    options = {
        name: value for name, value in run.algo_options.items() if f"algo.{name}" not in later
    }
    return dataclasses.replace(run, algo_options=options)


class Request(NamedTuple):
    """Request of a measurement.

    Attributes:
        path: Path of the run's ``config.yaml``.
        what: Part of the run.
        memory_cap: Bytes that it may use; None for a share of the free memory.
        repeat_s: Shortest duration of a repeat in seconds.
    """

    path: str
    what: What
    memory_cap: float | None
    repeat_s: float


SILENCE_S = 900.0
"""Seconds without an answer after which a trial is killed, longer than any compilation or repeat
should take.
"""
POLL_S = 0.1
LAST_WORDS = 2000
"""Characters at the end of a crashed trial's stderr that are read."""


class Failure(NamedTuple):
    """A candidate without a rate.

    Attributes:
        status: ``skipped``, ``refused``, ``out of memory``, ``killed``, ``crashed`` or ``silent``.
        why: Reason in a line.
    """

    status: str
    why: str

    @property
    def larger_fails(self) -> bool:
        """Whether a larger candidate would also fail, because of memory."""
        return self.status in ("skipped", "out of memory", "killed")


class Stopped(Exception):
    """The user requested a stop during a trial."""


class Child:
    """A trial in a subprocess with a separate session.

    It is a context manager that kills the process and its descendants at the end.

    Args:
        run: Run.
        what: Part of the run to measure.
        folder: Folder for its settings and stderr.
        memory_cap: Bytes that it may use; None for a share of the free memory.
        repeat_s: Shortest duration of a repeat in seconds.
        stopped: Whether the user requested a stop, called while waiting.
    """

    def __init__(
        self,
        run: Run,
        what: What,
        folder: Path,
        *,
        memory_cap: float | None = None,
        repeat_s: float = 1.0,
        stopped: ShouldStop = lambda: False,
    ) -> None:
        self.stopped = stopped
        number = len(list(folder.glob("*.yaml")))
        path = folder / f"{number}.yaml"
        path.write_text(to_yaml(without_choices(run)), encoding="utf-8")
        self.errors = folder / f"{number}.txt"
        request = Request(str(path), what, memory_cap, repeat_s)
        with self.errors.open("w", encoding="utf-8") as errors:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
            # Otherwise JAX reserves most of an accelerator's memory, which hides the free memory
            # from other trials.
            env = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
            self.process = start_module(
                "jaxrl_fast.tuning.trial", json.dumps(request), env=env, text=True, **pipes
            )
        assert self.process.stdout is not None
        self.answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(
            target=_hand_on, args=(self.process.stdout, self.answers), daemon=True
        ).start()

    def ready(self) -> dict[str, Any] | Failure:
        """Return facts about the compiled candidate (the ``ready`` answer of `trial`), or its
        failure.

        Raises:
            Stopped: The user requested a stop.
        """
        return self._answer()

    def repeat(self) -> dict[str, Any] | Failure:
        """Measure one repeat: return an answer with the ``seconds`` of ``ticks`` ticks, or the
        failure.

        Raises:
            Stopped: The user requested a stop.
        """
        assert self.process.stdin is not None
        with suppress(OSError):  # it has ended, which the answer reports
            print("again", file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any] | Failure:
        until = time.monotonic() + SILENCE_S
        line: str | None = ""
        while line == "":
            if self.stopped():
                raise Stopped
            if time.monotonic() > until:
                return Failure("silent", f"no answer for {SILENCE_S:.0f} s")
            with suppress(queue.Empty):
                line = self.answers.get(timeout=POLL_S)
        if line is None:
            self.answers.put(None)  # for the next call
            return self._ended()
        answer = json.loads(line)
        return (
            answer
            if answer["kind"] in ("ready", "repeat")
            else Failure(answer["kind"], answer["why"])
        )

    def _ended(self) -> Failure:
        status = self.process.wait()
        lines = (
            self.errors.read_text(encoding="utf-8", errors="replace")[-LAST_WORDS:]
            .strip()
            .splitlines()
        )
        last = f": {lines[-1]}" if lines else ""
        if status == -signal.SIGKILL:
            return Failure("killed", "ended by SIGKILL, which the system sends if memory runs out")
        how = (
            f"ended by {signal.Signals(-status).name}"
            if status < 0
            else f"ended with exit code {status}"
        )
        return Failure("crashed", f"{how}{last}")

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *error: object) -> None:
        end_session(self.process)


def _hand_on(answers: IO[str], to: "queue.SimpleQueue[str | None]") -> None:
    """Forward each line of JSON, then None at the end. Other lines are ignored."""
    with suppress(ValueError):  # the pipe was closed meanwhile
        for line in answers:
            if line.startswith("{"):
                to.put(line)
    to.put(None)


class Row(NamedTuple):
    """Result of a candidate.

    Attributes:
        knob: As in `Candidate`.
        value: As in `Candidate`.
        effect: As in `Candidate`.
        run: As in `Candidate`.
        what: Measured part of the run.
        status: "measured", or the status of a `Failure`.
        why: Reason of a failure.
        facts: Facts that its trial reported.
        tick_hz: Ticks/s of each repeat; empty if it did not run.
        peak_bytes: Peak memory of its process; None if the system does not report it.
        others: Largest share of the CPU, 0 to 1, that other programs used during a repeat.
        took_s: Seconds of all repeats, with the start of the process.
        in_turn: Whether it alternated with others.
    """

    knob: str
    value: Any
    effect: str
    run: Run
    what: What
    status: str
    why: str
    facts: dict[str, Any]
    tick_hz: tuple[float, ...]
    peak_bytes: int | None
    others: float
    took_s: float
    in_turn: bool = False

    def rates(self, unit: str) -> tuple[float, ...]:
        """Return the rates of every repeat, over all seeds.

        The unit is ``sampling_hz`` (environment steps/s), ``update_hz`` or ``update_frame_hz``
        (updates/s times the batch size).
        """
        facts = self.facts
        if not self.tick_hz:
            return ()
        steps, updates = facts["num_envs"] * facts["rollout_length"], facts["updates_per_tick"]
        amounts = {
            "sampling_hz": steps,
            "update_hz": updates,
            "update_frame_hz": updates * facts["batch_size"],
        }
        return tuple(hz * facts["num_seeds"] * amounts[unit] for hz in self.tick_hz)

    def outcome(self, unit: str = "sampling_hz") -> Outcome:
        """Return the result for the search."""
        larger_fails = not self.tick_hz and Failure(self.status, self.why).larger_fails
        return Outcome(self.rates(unit), larger_fails)


Spread = dict[str, float]
"""``median`` of numbers, and their lower (``low``) and upper (``high``) quartile."""


class Settings(NamedTuple):
    """Settings of trials.

    Attributes:
        folder: Folder of their files.
        memory_cap: Bytes that each may use; None for a share of the free memory.
        repeats: Most repeats of a candidate.
        repeat_s: Shortest duration of a repeat in seconds.
        enough_s: Seconds of repeats after which no more are made.
        stopped: Whether the user requested a stop, which ends a measurement with
            `measuring.Stopped`.
    """

    folder: Path
    memory_cap: float | None = None
    repeats: int = 5
    repeat_s: float = 1.0
    enough_s: float = 20.0
    stopped: ShouldStop = lambda: False


def measure(
    candidate: Candidate, what: What, go_on: GoOn, settings: Settings, unit: str = "sampling_hz"
) -> Row:
    """Measure one candidate.

    Args:
        candidate: Candidate.
        what: Part of the run.
        go_on: Whether to make another repeat, called with the rates so far.
        settings: Settings of the trial.
        unit: Unit of the rates (`Row.rates`).

    Returns:
        The result.
    """
    began_s = time.perf_counter()
    with start(candidate.run, what, settings) as child:
        row = _first_row(candidate, what, child.ready(), began_s)
        ready_s = row.took_s
        while row.status == "measured" and go_on(row.rates(unit)):
            row = _with_repeat(row, child.repeat(), began_s)
            if row.took_s - ready_s > settings.enough_s:
                break
    return row


def measure_in_turn(candidates: Sequence[tuple[Candidate, What]], settings: Settings) -> list[Row]:
    """Measure several candidates in alternating repeats, after all are compiled.

    A machine that slows down then slows all of them. Only ratios within a round are comparable.

    Args:
        candidates: Candidates, each with the part of the run.
        settings: Settings of the trials.

    Returns:
        Results in the order of the candidates.
    """
    began_s = time.perf_counter()
    with ExitStack() as stack:
        children = [stack.enter_context(start(c.run, what, settings)) for c, what in candidates]
        rows = []
        for (candidate, what), child in zip(candidates, children, strict=True):
            rows.append(_first_row(candidate, what, child.ready(), began_s)._replace(in_turn=True))
        for _ in range(settings.repeats):
            for i, child in enumerate(children):
                if rows[i].status == "measured":
                    rows[i] = _with_repeat(rows[i], child.repeat(), began_s)
    return rows


def start(run: Run, what: What, settings: Settings) -> Child:
    """Start the process of a trial.

    Args:
        run: Run.
        what: Part of the run.
        settings: Settings of the trial.

    Returns:
        The process.
    """
    return Child(
        run,
        what,
        settings.folder,
        memory_cap=settings.memory_cap,
        repeat_s=settings.repeat_s,
        stopped=settings.stopped,
    )


def spread(rates: Sequence[float]) -> Spread:
    """Compute median and quartiles.

    Args:
        rates: At least one number.

    Returns:
        Median and quartiles.
    """
    if len(rates) == 1:
        return dict.fromkeys(("median", "low", "high"), rates[0])
    low, median, high = statistics.quantiles(rates, n=4, method="inclusive")
    return {"median": median, "low": low, "high": high}


def _first_row(
    candidate: Candidate, what: What, answer: dict[str, Any] | Failure, began_s: float
) -> Row:
    row = Row(
        knob=candidate.knob,
        value=candidate.value,
        effect=candidate.effect,
        run=candidate.run,
        what=what,
        status="measured",
        why="",
        facts={},
        tick_hz=(),
        peak_bytes=None,
        others=0.0,
        took_s=time.perf_counter() - began_s,
    )
    if isinstance(answer, Failure):
        return row._replace(status=answer.status, why=answer.why)
    resolved = dataclasses.replace(
        candidate.run, placement=answer["placement"], devices=answer["devices"]
    )
    return row._replace(run=resolved, facts=answer)


def _with_repeat(row: Row, answer: dict[str, Any] | Failure, began_s: float) -> Row:
    """Add a repeat to a result. A candidate that fails later has no rate, because it would not
    finish a run.
    """
    took_s = time.perf_counter() - began_s
    if isinstance(answer, Failure):
        return row._replace(status=answer.status, why=answer.why, tick_hz=(), took_s=took_s)
    tick_hz = (*row.tick_hz, answer["ticks"] / answer["seconds"])
    others = max(row.others, answer["others"] or 0.0)
    return row._replace(
        tick_hz=tick_hz, peak_bytes=answer["peak_bytes"], others=others, took_s=took_s
    )
