"""``python -m jaxrl_fast.dashboard``: shows the runs of a folder as a live page on this machine."""

import errno
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxrl_fast.commands import cli
from jaxrl_fast.settings.schema import ConfigError, Key
from jaxrl_fast.training.run_folder import is_run

KEYS = {
    "runs": Key(str, "runs", text="folder that contains runs, also in subfolders", path=True),
    "port": Key(int, 8321, 0, "port of the page on http://127.0.0.1; 0 selects a free one", 65_535),
}
HELP = cli.help_of(
    "dashboard",
    KEYS,
    "Only this machine can open the page, which changes nothing. Ctrl-C ends the command.",
)
ADDRESS = "127.0.0.1"
CLOSE_S = 1
"""Time for open pages at the end, in seconds."""


def show_runs(words: Sequence[str]) -> int:
    """Serve the page until Ctrl-C.

    Args:
        words: Words of the command line.

    Returns:
        Exit code.

    Raises:
        ConfigError: Invalid words, or the port is not available.
        ImportError: A package is missing.
        KeyboardInterrupt: After Ctrl-C.
    """
    folder, port = read_words(words)
    try:
        import uvicorn

        from jaxrl_fast.views.dashboard_app import FoundRuns, make_app
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise ImportError(
            "the dashboard needs two packages: pip install 'jaxrl_fast[dashboard]'"
        ) from None
    listener = listen(port)
    port = listener.getsockname()[1]
    app = make_app(FoundRuns(folder), port)
    plain: dict[str, Any] = {
        "http": "h11",
        "ws": "none",
        "lifespan": "off",
        "loop": "asyncio",
        "server_header": False,
    }
    config = uvicorn.Config(app, **plain, log_level="critical", timeout_graceful_shutdown=CLOSE_S)
    missing = "" if folder.is_dir() else ", which does not exist yet"
    print(
        f"http://{ADDRESS}:{port}/  shows the runs below {folder}{missing}; Ctrl-C ends it",
        flush=True,
    )
    with listener:
        uvicorn.Server(config).run(sockets=[listener])
    return 0


def read_words(words: Sequence[str]) -> tuple[Path, int]:
    """Parse the words of the command line.

    Args:
        words: Words of the command line.

    Returns:
        Folder of runs, and port.

    Raises:
        ConfigError: Unknown word, invalid port, or a folder that is a run.
    """
    others, options = cli.split_words(words, "dashboard", KEYS)
    if others:
        raise ConfigError(f"unknown word '{others[0]}': write runs=<folder> or port=<number>")
    folder = Path(options["runs"])
    if is_run(folder):
        raise ConfigError(
            f"runs={folder} is a run: write the folder that contains it, runs={folder.parent}"
        )
    if folder.exists() and not folder.is_dir():
        raise ConfigError(
            f"runs={folder} is not a folder: write a folder that contains runs, such as runs=runs"
        )
    return folder, options["port"]


def listen(port: int) -> socket.socket:
    """Open a socket that only this machine can reach.

    Args:
        port: Port, 0 for a free one.

    Returns:
        The socket.

    Raises:
        ConfigError: The port is in use or not permitted.
    """
    listener = socket.socket()
    # Otherwise the port remains in use for a minute after an earlier page.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((ADDRESS, port))
        listener.listen()
    except OSError as error:
        listener.close()
        why = (
            "is in use"
            if error.errno == errno.EADDRINUSE
            else f"is not available ({error.strerror})"
        )
        raise ConfigError(f"port={port} {why}: write another, or port=0 for a free one") from None
    return listener


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: Words of the command line, None for the arguments of the process.

    Returns:
        Exit code.
    """
    return cli.main("dashboard", show_runs, argv, lambda: HELP)


if __name__ == "__main__":
    sys.exit(main())
