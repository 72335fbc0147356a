"""Atomic file replacement, subprocesses of this package next to the training process, and code of
users.
"""

import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

ENDING = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGQUIT,
    signal.SIGXCPU,
    signal.SIGUSR2,
)
"""Signals that end a run after its chunk. Its exit code is 128 and the signal's number."""
SAVING = signal.SIGUSR1
"""Signal that saves a run after its chunk."""
UNFINISHED = ".unfinished"
"""Suffix of the name of a file that is being written."""


URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/", re.I)
"""Beginning of a URL, also of one that `pathlib` has shortened to one slash."""


def local_path(path: str | Path, name: str = "") -> Path:
    """Return the path of a file or folder of this machine.

    Args:
        path: Path that a user wrote.
        name: Name of the setting, for the message.

    Returns:
        The path.

    Raises:
        ValueError: It is a URL, which would otherwise be a folder of that name.
    """
    if URL.match(str(path)):
        setting = f"{name}={path}" if name else str(path)
        raise ValueError(f"{setting}: URLs are not supported: write a path of this machine")
    return Path(path)


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


def one_line(error: BaseException) -> str:
    """Format an error in one line of at most 200 characters.

    Args:
        error: Error.

    Returns:
        The line.
    """
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:199]}…"


def start_module(
    module: str, *words: str, env: Mapping[str, str], **pipes: Any
) -> subprocess.Popen:
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
    return subprocess.Popen(
        [sys.executable, "-m", module, *words], env=env, start_new_session=True, **pipes
    )


def end_session(process: subprocess.Popen) -> None:
    """Kill a process of `start_module` with all its descendants, and close its pipes.

    Args:
        process: Process that leads its session.
    """
    with suppress(ProcessLookupError):  # it has ended already
        os.killpg(process.pid, signal.SIGKILL)
    # before closing the pipes, so that a thread that reads from them reaches their end
    process.wait()
    for pipe in filter(None, (process.stdin, process.stdout)):
        with suppress(OSError):  # unsent data is lost
            pipe.close()


def leave_signals_to_parent() -> None:
    """Do nothing at a signal, in a process that its parent ends.

    A terminal and some schedulers send a run's signals to all its processes. They are handled, not
    ignored, since a program that an environment starts would inherit that.
    """
    for number in (*ENDING, SAVING):
        signal.signal(number, lambda number, frame: None)


LIBRARIES = re.compile(
    r"<|.*/(site|dist)-packages/(jax|jaxlib|numpy|gymnasium|gymnax|brax|flax|cloudpickle)/"
)
"""Beginning of the files in which an error of a user's code may be raised, but is not made."""
LONG_TEXT = 200
OWN, PYTHON = (os.path.dirname(__file__) + os.sep, os.path.dirname(os.__file__) + os.sep)


def place_of(error: BaseException) -> str | None:
    """Return the innermost line of a user's code that raised an error.

    Args:
        error: Error.

    Returns:
        File and line, or None if the error was not raised in a user's code.
    """
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{error.filename}, line {error.lineno}"
    calls = [
        (frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    places = [f"{file}, line {line}" for file, line in calls if is_of_a_user(file)]
    return places[-1] if places else None


def is_of_a_user(file: str) -> bool:
    """Return whether a file holds a user's code, and not a library's.

    Args:
        file: Path of a source file.

    Returns:
        True for files outside of this package, of Python and of the libraries that call users' code.
    """
    in_python = file.startswith(PYTHON) and "-packages" not in file
    return not (file.startswith(OWN) or in_python or LIBRARIES.match(file))


def fault_of(error: BaseException) -> str:
    """Describe an error of a user's code in one line.

    Args:
        error: Error.

    Returns:
        Its type, text, and `place_of`; the first line of a long text.
    """
    text = str(error.msg) if isinstance(error, SyntaxError) else str(error).strip()
    text, place = (
        " ".join((text if len(text) < LONG_TEXT else text.splitlines()[0]).split()),
        place_of(error),
    )
    return f"{type(error).__name__}: {text}{'' if place is None else f' ({place})'}"


CODE = "make", "network", "memory"
"""Arguments of algorithms that may be a user's function, or its path."""


def names_code(value: Any) -> bool:
    """Check whether a setting is the path of a function, as `import_function` takes it, and not a
    name.

    Args:
        value: Value of a setting.

    Returns:
        True for a text with a dot or a colon.
    """
    return isinstance(value, str) and ("." in value or ":" in value)


def import_function(path: str, key: str) -> Callable[..., Any]:
    """Import a user's function.

    Args:
        path: ``my_package.make`` or ``my_package:make``; the current directory is searched, too.
        key: Key of the command line for messages, such as ``env.make``.

    Returns:
        The function.

    Raises:
        ValueError: It cannot be imported.
    """
    module_name, _, attribute = path.replace(":", ".").rpartition(".")
    if not module_name or not attribute or "/" in path or path.startswith("."):
        raise ValueError(
            f"{key}={path}: write the function with its module, for example my_package.make"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = import_module(module_name)
    except (Exception, SystemExit) as error:
        missing = isinstance(error, ModuleNotFoundError) and place_of(error) is None
        hint = "; run from the folder that holds it, or install it" if missing else ""
        message = f"cannot import {module_name}: {fault_of(error)}{hint}"
        raise ValueError(f"{key}={path}: {message}") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise ValueError(f"{key}={path}: {module_name} has no function '{attribute}'")
    return function


def path_of(function: Any) -> str:
    """Return the path of a function, from which `import_function` imports it again.

    Args:
        function: Function, or a text, which is returned.

    Returns:
        ``my_package.make``.
    """
    return (
        function if isinstance(function, str) else f"{function.__module__}.{function.__qualname__}"
    )


def current_bytes() -> int:
    """Return the memory of this process.

    Returns:
        Bytes now; the peak so far if the system does not report the current value (Linux does).
    """
    try:
        return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * os.sysconf(
            "SC_PAGE_SIZE"
        )
    except OSError:
        return peak_bytes()


def peak_bytes() -> int:
    """Return the peak memory of this process so far.

    Returns:
        Bytes.
    """
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
