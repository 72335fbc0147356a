"""What lies behind the paths of a run's settings: digests of models, of data and of users' code.

A checkpoint stores them by kind and name (``model body_mass``, ``data reward``, ``source
my_package.py``), so that a run is not resumed with the same path and other content.
"""

import inspect
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl_fast.system import is_of_a_user, names_code

Digests = dict[str, str]


def digests_of_arrays(kind: str, arrays: Mapping[str, Any]) -> Digests:
    """Return the digest of each array.

    Args:
        kind: Kind of the content.
        arrays: Arrays by name.

    Returns:
        Digests by kind and name.
    """
    return {f"{kind} {name}": _digest(np.ascontiguousarray(x)) for name, x in arrays.items()}


def _digest(content: Any) -> str:
    return f"{zlib.crc32(content):08x}"


def digests_of_sources(settings: Mapping[str, Any]) -> Digests:
    """Return the digest of each file of a user's code that settings name.

    Args:
        settings: Settings by key; functions, or their paths such as ``my_package.make``. Only
            modules that are imported already are looked at.

    Returns:
        Digests by kind and name of the file.
    """
    files = {_file_of(value) for value in settings.values()}
    return {f"source {path.name}": _digest(path.read_bytes()) for path in files if path is not None}


def _file_of(value: Any) -> Path | None:
    """Return the file in which a user wrote a function or class, None for other values.

    Nothing is imported: the environment and the algorithm are made, so their modules are, and a text
    such as ``arm.xml`` must not execute an ``arm.py``.
    """
    function: Callable[..., Any] | None = value if callable(value) else None
    if names_code(value):
        module, _, name = value.replace(":", ".").rpartition(".")
        function = getattr(sys.modules.get(module), name, None)
    try:
        file = None if function is None else inspect.getsourcefile(inspect.unwrap(function))
    except TypeError:  # built in, or an object
        return None
    return Path(file) if file is not None and is_of_a_user(file) and Path(file).is_file() else None


def differing(before: Mapping[str, str], now: Mapping[str, str], kind: str) -> list[str]:
    """Return the names of a kind whose contents differ.

    Args:
        before: Digests of the checkpoint.
        now: Digests of the run that resumes it.
        kind: Kind of the contents.

    Returns:
        Names that both have.
    """
    keys = [(name, f"{kind} {name}") for name in _of_kind(before, kind)]
    return [name for name, key in keys if key in now and now[key] != before[key]]


def is_same(before: Mapping[str, str], now: Mapping[str, str], kind: str) -> bool:
    """Return whether contents of a kind are there and equal.

    Args:
        before: Digests of the checkpoint.
        now: Digests of the run that resumes it.
        kind: Kind of the contents.

    Returns:
        True if both have some, and none differs.
    """
    return bool(set(_of_kind(before, kind)) & set(_of_kind(now, kind))) and not differing(
        before, now, kind
    )


def _of_kind(digests: Iterable[str], kind: str) -> list[str]:
    return [name.removeprefix(f"{kind} ") for name in digests if name.startswith(f"{kind} ")]
