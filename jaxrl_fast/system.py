"""Files that are replaced in one step, and processes of this package beside the one that trains."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

UNFINISHED = ".unfinished"
"""The end of the name of a file that is being written."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a new path beside ``path``, which takes its place when the block ends; removed if the block raises."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(2)}{UNFINISHED}")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a file, text as UTF-8, in the place of an older one.

    Raises:
        OSError: it cannot be written.
    """
    with replacing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def start_module(module: str, *words: str, env: Mapping[str, str], **pipes: Any) -> subprocess.Popen:
    """Run ``python -m module words`` in a session of its own: Ctrl-C is for this process, which then ends that one.

    ``env``: all its environment variables; ``pipes``: as of `subprocess.Popen`.

    Raises:
        OSError: it cannot be started.
    """
    return subprocess.Popen([sys.executable, "-m", module, *words], env=env, start_new_session=True, **pipes)


def end_session(process: subprocess.Popen) -> None:
    """Kill a process of `start_module` and all that it started, whatever they are doing, and close its pipes."""
    with suppress(ProcessLookupError):  # it has ended already
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()  # before its pipes are closed, so that a thread that reads from them finds their end
    for pipe in filter(None, (process.stdin, process.stdout)):
        with suppress(OSError):  # what was not sent is lost
            pipe.close()
