"""Files in the user's own cache folder that spare a second start its work.

What is read from them becomes running programs. So the folder must be the user's own and closed to all others (mode
700), each file must be as it was written, under the name under which it was written, and a name says all that its
content depends on (`jaxrl_fast.settings.identity`). What does not pass costs a line and is made anew.
"""

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flax import serialization

from jaxrl_fast.files import replacing
from jaxrl_fast.settings.own_folder import make_own_folder, make_room

MAX_BYTES = 512_000_000
"""Of all files together; those that were not read for longest give way."""
FOLDER = "kept"
HEAD = b"jaxrl_fast kept 1\n"
DIGEST_BYTES = 32


class KeptFiles:
    """A folder of files by name, each a dictionary of numbers, texts, bytes and arrays. ``tell`` gets a line where a
    file, or the folder, cannot be used."""

    def __init__(self, folder: Path, tell: Callable[[str], None], max_bytes: int = MAX_BYTES) -> None:
        self.folder, self.tell, self.max_bytes = folder, tell, max_bytes
        wrong = make_own_folder(folder)
        self.usable = wrong is None
        if wrong is not None:
            tell(f"{wrong}; until then nothing is kept for a second start")

    def read(self, name: str) -> dict[str, Any] | None:
        """The content of a file; None where there is none that can be used."""
        path = self.folder / name
        if not self.usable:
            return None
        try:
            content = _read_own(path)
            if content[: len(HEAD)] != HEAD:
                raise ValueError("it is of another kind")
            digest, body = content[len(HEAD) :][:DIGEST_BYTES], content[len(HEAD) + DIGEST_BYTES :]
            if digest != _digest(name, body):
                raise ValueError("it is not as it was written")
            os.utime(path)
            return dict(serialization.msgpack_restore(body))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            self.tell(f"{path} cannot be used ({_reason(error)}) and is made anew")
            return None

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Replace a file in one step, and remove old ones if all are more than ``max_bytes``."""
        if not self.usable:
            return
        body = serialization.msgpack_serialize(content)
        try:
            with (
                replacing(self.folder / name) as temporary,
                open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file,
            ):
                file.write(HEAD + _digest(name, body) + body)
            make_room(self.folder, self.max_bytes)
        except OSError as error:
            self.tell(f"cannot write to {self.folder} ({error.strerror}): the next start is as slow as this one")


def _read_own(path: Path) -> bytes:
    """The bytes of a file that belongs to the user, and that no other can have written."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise ValueError("others can write to it")
        return file.read()


def _digest(name: str, body: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\n" + body).digest()


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())
