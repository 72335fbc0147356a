"""Many commands in little time: forked from one process that has imported them, each in a folder of its own.

JAX must not be forked once it has started, so that process imports and never computes. Run as a script it reads jobs
from stdin, a line of JSON each, and answers with exit statuses.
"""

import json
import os
import signal
import subprocess
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
LIMIT_S = 240
TRAINED = 99
"""The exit status in place of training, where a job must end before it."""


class Ended(NamedTuple):
    """How a command ended, and what it printed."""

    status: int
    out: str
    err: str


class Commands:
    """A context manager; ``notes`` is a folder for what the commands print, and for compiled programs."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes
        variables = {
            **os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "JAX_PLATFORMS": "cpu",
            "JAXRL_FAST_CACHE": str(notes / "cache"), "HYDRA_FULL_ERROR": "",
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables
        )

    def run(self, cwd: Path, command: str, *words: str, trains: bool = False, **variables: str) -> Ended:
        """``train``, ``evaluate`` or ``python`` (the words are then lines of a program). Unless it ``trains`` it is
        ended where training, or an evaluation, would be compiled, with the status `TRAINED`."""
        job = {
            "cwd": str(cwd), "notes": str(self.notes), "command": command, "words": words, "trains": trains,
            "variables": variables,
        }  # fmt: skip
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps(job), file=self.process.stdin, flush=True)
        status = int(self.process.stdout.readline())
        return Ended(status, *((self.notes / name).read_text() for name in ("out", "err")))

    def __enter__(self) -> "Commands":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.communicate(timeout=60)


def serve() -> None:
    """Answer jobs until stdin ends."""
    import_commands()
    for line in sys.stdin:
        job = json.loads(line)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # JAX warns of every fork
            child = os.fork()
        if child == 0:
            work(job)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def import_commands() -> None:
    """All that starts no JAX; gymnax does when it is imported."""
    import gymnasium  # noqa: F401
    import orbax.checkpoint  # noqa: F401
    from jax._src import xla_bridge

    import jaxrl_fast.evaluate
    import jaxrl_fast.train  # noqa: F401

    assert not xla_bridge.backends_are_initialized()


def work(job: dict[str, Any]) -> None:
    """One job in a process of its own, which ends here."""
    signal.alarm(LIMIT_S)
    os.chdir(job["cwd"])
    os.environ.update(job["variables"])
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(Path(job["notes"]) / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
    status = 1
    try:
        status = call(job)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def call(job: dict[str, Any]) -> int:
    """The exit status of a command."""
    from jaxrl_fast import evaluate, loop, train

    if job["command"] == "python":
        exec("\n".join(job["words"]), {})
        return 0
    if not job["trains"]:
        loop.start = evaluate.evaluate_episodes = lambda *args, **kwargs: os._exit(TRAINED)
    return {"train": train.main, "evaluate": evaluate.main}[job["command"]](job["words"])


if __name__ == "__main__":
    serve()
