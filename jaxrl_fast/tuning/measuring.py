"""Measurements of settings, each in a subprocess that is given one request after another."""

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

from jaxrl_fast.commands.run_config import Run, to_yaml
from jaxrl_fast.system import end_session, start_module
from jaxrl_fast.training.callbacks import ShouldStop
from jaxrl_fast.tuning.candidates import Candidate
from jaxrl_fast.tuning.search import GoOn, Outcome

What = Literal["training", "sampling", "environments", "updates"]
"""What of a run is measured: all of it, or one of the parts that bound it."""


class Request(NamedTuple):
    """What to measure: ``path``: of a run's ``config.yaml``; ``what``: the part of it; ``memory_cap``: bytes that it
    may use (None: a share of what is free); ``repeat_s``: seconds that a repeat takes at least."""

    path: str
    what: What
    memory_cap: float | None
    repeat_s: float


SILENCE_S = 900.0
"""Seconds without an answer after which a trial is ended: longer than any compilation or repeat should take."""
POLL_S = 0.1
LAST_WORDS = 2000
"""Characters at the end of a crashed trial's stderr that are read."""


class Failure(NamedTuple):
    """A candidate that gave no rate: ``status`` is ``skipped``, ``refused``, ``out of memory``, ``killed``, ``crashed``
    or ``silent``; ``why`` is a line on the reason."""

    status: str
    why: str

    @property
    def larger_fails(self) -> bool:
        """Whether a larger candidate would fail too, for lack of memory."""
        return self.status in ("skipped", "out of memory", "killed")


class Stopped(Exception):
    """An early end was asked for while a trial was waited for."""


class Child:
    """A trial in a process and a session of its own. A context manager: on leaving, it and what it started are ended.

    ``what`` of the run to measure; ``folder`` gets its settings and its stderr; ``memory_cap`` in bytes (None: a share
    of what is free); ``repeat_s``: how long a repeat takes at least; ``stopped`` is asked while it is waited for.
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
        path.write_text(to_yaml(run))
        self.errors = folder / f"{number}.txt"
        request = Request(str(path), what, memory_cap, repeat_s)
        with self.errors.open("w") as errors:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
            # Else JAX would reserve most of an accelerator's memory, and other trials would not see what is free.
            env = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
            self.process = start_module("jaxrl_fast.tuning.trial", json.dumps(request), env=env, text=True, **pipes)
        assert self.process.stdout is not None
        self.answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=_hand_on, args=(self.process.stdout, self.answers), daemon=True).start()

    def ready(self) -> dict[str, Any] | Failure:
        """Facts about the candidate once it is compiled (the ``ready`` answer of `trial`), or why it failed.

        Raises:
            Stopped: an end was asked for meanwhile.
        """
        return self._answer()

    def repeat(self) -> dict[str, Any] | Failure:
        """Measure one repeat: an answer with the ``seconds`` of ``ticks`` ticks, or why it failed.

        Raises:
            Stopped: an end was asked for meanwhile.
        """
        assert self.process.stdin is not None
        with suppress(OSError):  # it has ended, as the answer will show
            print("again", file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any] | Failure:
        until = time.monotonic() + SILENCE_S
        line: str | None = ""
        while line == "":
            if self.stopped():
                raise Stopped
            if time.monotonic() > until:
                return Failure("silent", f"said nothing for {SILENCE_S:.0f} s")
            with suppress(queue.Empty):
                line = self.answers.get(timeout=POLL_S)
        if line is None:
            self.answers.put(None)  # for whoever asks again
            return self._ended()
        answer = json.loads(line)
        return answer if answer["kind"] in ("ready", "repeat") else Failure(answer["kind"], answer["why"])

    def _ended(self) -> Failure:
        status = self.process.wait()
        lines = self.errors.read_text(errors="replace")[-LAST_WORDS:].strip().splitlines()
        last = f": {lines[-1]}" if lines else ""
        if status == -signal.SIGKILL:
            return Failure("killed", "ended by SIGKILL, as the system does where memory runs out")
        how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        return Failure("crashed", f"{how}{last}")

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *error: object) -> None:
        end_session(self.process)


def _hand_on(answers: IO[str], to: "queue.SimpleQueue[str | None]") -> None:
    """Pass on each line of JSON that is read, then None at the end. Other lines are ignored."""
    with suppress(ValueError):  # the pipe was closed meanwhile
        for line in answers:
            if line.startswith("{"):
                to.put(line)
    to.put(None)


class Row(NamedTuple):
    """One candidate as measured: ``knob``, ``value``, ``effect`` and ``run`` as in `Candidate`.

    ``what`` of the run was measured; ``status``: "measured", or that of a `Failure` with its ``why``; ``facts``: what
    its trial reported; ``tick_hz``: ticks/s of each repeat, none where it did not run; ``peak_bytes``: the most memory
    that its process had (None: unknown); ``others``: the largest share of the CPU, 0 to 1, that other programs took
    during a repeat; ``took_s``: all seconds, with the start of the process; ``in_turn``: others took turns with it.
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
        """Of every repeat, over all seeds: ``sampling_hz`` (environment steps/s), ``update_hz`` or ``update_frame_hz``
        (updates/s times the batch size)."""
        facts = self.facts
        if not self.tick_hz:
            return ()
        steps, updates = facts["num_envs"] * facts["rollout_length"], facts["updates_per_tick"]
        amounts = {"sampling_hz": steps, "update_hz": updates, "update_frame_hz": updates * facts["batch_size"]}
        return tuple(hz * facts["num_seeds"] * amounts[unit] for hz in self.tick_hz)

    def outcome(self, unit: str = "sampling_hz") -> Outcome:
        """The row as the search sees it."""
        larger_fails = not self.tick_hz and Failure(self.status, self.why).larger_fails
        return Outcome(self.rates(unit), larger_fails)


Spread = dict[str, float]
"""The ``median`` of some numbers, and their lower (``low``) and upper (``high``) quartile."""


class Settings(NamedTuple):
    """How trials are made.

    ``folder``: for their files; ``memory_cap``: bytes that each may use (None: a share of what is free); ``repeats``:
    of a candidate at most, each of at least ``repeat_s`` seconds; once they took ``enough_s`` seconds there are enough;
    ``stopped``: asked all the time, it ends a measurement with `measuring.Stopped`.
    """

    folder: Path
    memory_cap: float | None = None
    repeats: int = 5
    repeat_s: float = 1.0
    enough_s: float = 20.0
    stopped: ShouldStop = lambda: False


def measure(candidate: Candidate, what: What, go_on: GoOn, settings: Settings, unit: str = "sampling_hz") -> Row:
    """Measure one candidate until ``go_on(rates so far)`` is false."""
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
    """Measure several side by side: all are compiled at the same time and then repeated by turns, so that a machine
    that slows down slows all of them. Ratios within a round are what to compare."""
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
    """Start the process of a trial."""
    return Child(
        run, what, settings.folder, memory_cap=settings.memory_cap, repeat_s=settings.repeat_s, stopped=settings.stopped
    )


def spread(rates: Sequence[float]) -> Spread:
    """Median and quartiles of at least one number."""
    if len(rates) == 1:
        return dict.fromkeys(("median", "low", "high"), rates[0])
    low, median, high = statistics.quantiles(rates, n=4, method="inclusive")
    return {"median": median, "low": low, "high": high}


def _first_row(candidate: Candidate, what: What, answer: dict[str, Any] | Failure, began_s: float) -> Row:
    row = Row(*candidate[:2], candidate.effect, candidate.run, what, "measured", "", {}, (), None, 0.0, 0.0)
    row = row._replace(took_s=time.perf_counter() - began_s)
    if isinstance(answer, Failure):
        return row._replace(status=answer.status, why=answer.why)
    resolved = dataclasses.replace(candidate.run, placement=answer["placement"], devices=answer["devices"])
    return row._replace(run=resolved, facts=answer)


def _with_repeat(row: Row, answer: dict[str, Any] | Failure, began_s: float) -> Row:
    """The row with one repeat more. A candidate that fails in the middle has no rate: it would not finish a run."""
    took_s = time.perf_counter() - began_s
    if isinstance(answer, Failure):
        return row._replace(status=answer.status, why=answer.why, tick_hz=(), took_s=took_s)
    tick_hz = (*row.tick_hz, answer["ticks"] / answer["seconds"])
    others = max(row.others, answer["others"] or 0.0)
    return row._replace(tick_hz=tick_hz, peak_bytes=answer["peak_bytes"], others=others, took_s=took_s)
