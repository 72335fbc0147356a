"""Folders from which a process takes what it then runs: the user's own, and closed to all others."""

import os
import stat
from pathlib import Path


def make_own_folder(folder: Path) -> str | None:
    """Make a folder that its owner alone can open, or close an older one that others can only read. Returns what is
    wrong, a few words and what to do, where there is none that can be trusted."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return f"{folder} is not a folder of yours: remove it, or write JAXRL_FAST_CACHE=<another folder>"
        if found.st_mode & 0o022:
            return f"others can write to {folder}: remove it, or write JAXRL_FAST_CACHE=<another folder>"
        if found.st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        return f"cannot make {folder} ({error.strerror}): write JAXRL_FAST_CACHE=<another folder>"
    return None
