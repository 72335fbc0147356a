"""Atomic file replacement, and subprocesses of this package next to the training process."""

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
"""Suffix of the name of a file that is being written."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces ``path`` when the block ends.

    The temporary file is in the same folder and is removed if the block raises.

    Args:
        path: File to replace.

    Returns:
        A context manager that yields the temporary path.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(2)}{UNFINISHED}")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a file atomically, replacing an older one.

    Args:
        path: File to write.
        content: Text, written as UTF-8, or bytes.

    Raises:
        OSError: The file cannot be written.
    """
    with replacing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def start_module(module: str, *words: str, env: Mapping[str, str], **pipes: Any) -> subprocess.Popen:
    """Start ``python -m module words`` in a new session.

    Ctrl-C then reaches only this process, which has to end the other (`end_session`).

    Args:
        module: Name of the module.
        *words: Command-line arguments.
        env: All environment variables of the subprocess.
        **pipes: Keyword arguments of `subprocess.Popen`.

    Returns:
        The started process.

    Raises:
        OSError: The process cannot be started.
    """
    env = {**env, "JAX_ENABLE_X64": "0"}  # the user's variable, which the parent has ignored, too
    return subprocess.Popen([sys.executable, "-m", module, *words], env=env, start_new_session=True, **pipes)


def end_session(process: subprocess.Popen) -> None:
    """Kill a process of `start_module` with all its descendants, and close its pipes.

    Args:
        process: Process that leads its session.
    """
    with suppress(ProcessLookupError):  # it has ended already
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()  # before closing the pipes, so that a thread that reads from them reaches their end
    for pipe in filter(None, (process.stdin, process.stdout)):
        with suppress(OSError):  # unsent data is lost
            pipe.close()
