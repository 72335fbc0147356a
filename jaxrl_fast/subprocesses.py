"""Processes of this package beside the one that trains."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any


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
    for pipe in filter(None, (process.stdin, process.stdout)):
        with suppress(OSError):  # what was not sent is lost
            pipe.close()
    process.wait()
