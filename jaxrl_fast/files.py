"""Files that are replaced in one step, so that no reader and no killed process ever finds half of one."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

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
