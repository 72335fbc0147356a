"""The protocol between `run.py` and a worker, one JSON line each way. Imports only packages that
both have.

A worker prints ``{"ready": ...}`` once its programs are compiled and warm, and then answers each
line on its standard input with one measured repeat. So two workers can be alive at once and be
measured in turn, with the other asleep.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

# Output of the measured code must not mix with the answers.
_ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def say(message: dict[str, Any]) -> None:
    """Send one line to the driver."""
    print(json.dumps(message), file=_ANSWERS, flush=True)


def wait_for_turn() -> None:
    """Sleep until the driver requests a repeat; end the process when the driver has finished."""
    if not sys.stdin.readline():
        os._exit(0)


def serve(repeat: Callable[[], dict[str, Any]], **ready: Any) -> None:
    """Answer every request with ``repeat()``."""
    say({"ready": ready})
    while True:
        wait_for_turn()
        say(repeat())
