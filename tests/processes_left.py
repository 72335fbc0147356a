"""Checks whether processes that a test started are still running."""

import time
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(*pids: int) -> None:
    """Wait until all have ended."""
    until = time.monotonic() + 600
    while any(map(is_alive, pids)):
        assert time.monotonic() < until, "a process was left behind"
        time.sleep(0.05)
