"""Folders from which a process takes what it then runs: the user's own, closed to all others, and not too large."""

import contextlib
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


def make_room(folder: Path, max_bytes: int) -> None:
    """Remove the files that were not used for longest, so that the others have at most ``max_bytes`` together.

    Raises:
        OSError: the folder cannot be read, or a file not be removed.
    """
    files, total = [], 0
    for entry in os.scandir(folder):
        with contextlib.suppress(FileNotFoundError):  # another process may make room too
            files.append((entry.stat(follow_symlinks=False), entry.path))
    for found, path in sorted(files, key=lambda file: -max(file[0].st_atime_ns, file[0].st_mtime_ns)):
        total += found.st_size
        if total > max_bytes and stat.S_ISREG(found.st_mode):
            Path(path).unlink(missing_ok=True)
