"""Run many commands in little time: each is forked from one process that has imported them, and has
a separate folder.

JAX must not be forked once it has started, so this process imports and never computes. Run as a
script, it reads jobs from stdin, one line of JSON each, and answers with exit codes.
"""

import functools
import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any, NamedTuple

from costs import COUNTERS

ROOT = Path(__file__).parent.parent
LIMIT_S = 900
TRAINED = 99
"""The exit code that replaces training, where a job must end before training."""


class Ended(NamedTuple):
    """Exit code and output of a command."""

    status: int
    out: str
    err: str


class Commands:
    """A context manager; ``notes`` is a folder for the output of the commands."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes
        variables = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "JAX_PLATFORMS": "cpu",
            "HYDRA_FULL_ERROR": "",
        }
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=variables,
        )

    def run(
        self, cwd: Path, command: str, *words: str, trains: bool = False, **variables: str
    ) -> Ended:
        """Run a command of jaxrl_fast, or ``python`` (the words are then lines of a program).

        Unless the command ``trains``, it ends where training or an evaluation would be compiled,
        with exit code `TRAINED`.
        """
        (ended,) = self.run_all(cwd, [[command, *words]], trains=trains, **variables)
        return ended

    def run_all(
        self, cwd: Path, lines: list[list[str]], *, trains: bool = False, **variables: str
    ) -> list[Ended]:
        """Run commands one after another in one process, which starts JAX once with one device.

        Much quicker, for commands that do not train.
        """
        job = {
            "cwd": str(cwd),
            "notes": str(self.notes),
            "lines": lines,
            "trains": trains,
            "variables": variables,
        }
        COUNTERS.processes += 1
        (self.notes / "statuses").write_text("")
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps(job), file=self.process.stdin, flush=True)
        last = int(self.process.stdout.readline())
        statuses = [*map(int, (self.notes / "statuses").read_text().split()), last]
        ended = [
            Ended(
                status, *((self.notes / f"{name}-{number}").read_text() for name in ("out", "err"))
            )
            for number, status in enumerate(statuses)
        ]
        assert len(ended) == len(lines), f"{lines[len(ended) - 1]} ended the process: {ended[-1]}"
        return ended

    def __enter__(self) -> "Commands":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.communicate(timeout=900)


def serve() -> None:
    """Answer jobs until stdin ends."""
    import_commands()
    for line in sys.stdin:
        job = json.loads(line)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # JAX warns at every fork
            child = os.fork()
        if child == 0:
            work(job)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def import_commands() -> None:
    """Import every module that does not start JAX; gymnax starts it on import."""
    import gymnasium

    import jaxrl_fast.autotune
    import jaxrl_fast.check
    import jaxrl_fast.collect
    import jaxrl_fast.evaluate
    import jaxrl_fast.render
    import jaxrl_fast.sweep
    import jaxrl_fast.train
    from jaxrl_fast.settings.machine import jax_has_started

    assert not jax_has_started()


def work(job: dict[str, Any]) -> None:
    """Run one job in a separate process, which ends here with the exit code of its last command."""
    signal.alarm(LIMIT_S)
    os.chdir(job["cwd"])
    os.environ.update(job["variables"])
    sys.path[:0] = job["variables"].get("PYTHONPATH", "").split(os.pathsep)
    if not job["trains"]:
        stop_before_training()
    if len(job["lines"]) > 1:
        start_jax_once()
    for number, (command, *words) in enumerate(job["lines"]):
        status = redirected(Path(job["notes"]), number, command, words)
        if number < len(job["lines"]) - 1:
            with open(Path(job["notes"]) / "statuses", "a") as file:
                print(status, file=file)
    os._exit(status)


def redirected(notes: Path, number: int, command: str, words: list[str]) -> int:
    """Return the exit code of a command that prints into ``out-<number>`` and ``err-<number>``."""
    for descriptor, name in ((1, "out"), (2, "err")):
        file = os.open(notes / f"{name}-{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
        os.close(file)
    try:
        return call(command, words)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def call(command: str, words: list[str]) -> int:
    """Return the exit code of a command."""
    if command == "python":
        exec("\n".join(words), {})
        return 0
    return importlib.import_module(f"jaxrl_fast.{command}").main(words)


def stop_before_training() -> None:
    """End the process at the first training or evaluation from here on."""
    from jaxrl_fast import evaluate
    from jaxrl_fast.training import loop

    loop.start = evaluate.evaluate_episodes = lambda *args, **kwargs: os._exit(TRAINED)


def start_jax_once() -> None:
    """Let only the first command set up JAX."""
    from jaxrl_fast import check, evaluate, render
    from jaxrl_fast.commands import prepare
    from jaxrl_fast.settings.machine import setup

    once = functools.cache(setup)
    prepare.setup = check.setup = evaluate.setup = render.setup = lambda **options: once()


def everything(folder: Path) -> dict[str, bytes | None]:
    """Return the contents of a folder by path, None for a folder."""
    return {
        str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None
        for p in folder.rglob("*")
    }


def refusal(ended: Ended) -> str:
    """Check that a command was refused correctly; return its error message."""
    assert ended.status == 2, ended
    assert ended.out == ""
    assert ended.err.startswith("jaxrl_fast: error: ") and ended.err.count("\n") == 1, ended.err
    assert ended.err.endswith("\n") and len(ended.err) < 700
    return ended.err


def refused(commands: Commands, cwd: Path, command: str, *words: str) -> str:
    """Check that a command was refused and left the folder unchanged; return its error message."""
    before = everything(cwd)
    said = refusal(commands.run(cwd, command, *words))
    assert everything(cwd) == before
    return said


if __name__ == "__main__":
    serve()
