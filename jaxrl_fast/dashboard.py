"""``python -m jaxrl_fast.dashboard``: the runs in a folder as a page of this machine that keeps itself up to date."""

import errno
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxrl_fast.commands import cli
from jaxrl_fast.settings.schema import ConfigError
from jaxrl_fast.training.run_folder import is_run
from jaxrl_fast.views.dashboard_app import FoundRuns

HELP = """python -m jaxrl_fast.dashboard [runs=runs] [port=8321]
  runs   the folder below which runs lie
  port   of http://127.0.0.1, where the page is; 0 takes a free one
It only reads, and only this machine can open it. Ctrl-C ends it."""
ADDRESS = "127.0.0.1"
CLOSE_S = 1
"""Pages that are still open get so long when it ends, in seconds."""


def show_runs(words: Sequence[str]) -> int:
    """Serve the page until Ctrl-C.

    Raises:
        ValueError: one line that says what was wrong and what to write instead.
        ImportError: a package is missing.
        KeyboardInterrupt: after Ctrl-C.
    """
    folder, port = read_words(words)
    try:
        import uvicorn

        from jaxrl_fast.views.dashboard_app import make_app
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise ImportError("the dashboard needs two packages: pip install 'jaxrl_fast[dashboard]'") from None
    listener = listen(port)
    port = listener.getsockname()[1]
    app = make_app(FoundRuns(folder), port)
    plain: dict[str, Any] = {"http": "h11", "ws": "none", "lifespan": "off", "loop": "asyncio", "server_header": False}
    config = uvicorn.Config(app, **plain, log_level="critical", timeout_graceful_shutdown=CLOSE_S)
    missing = "" if folder.is_dir() else ", which is not there yet"
    print(f"http://{ADDRESS}:{port}/  shows the runs below {folder}{missing}; Ctrl-C ends it", flush=True)
    with listener:
        uvicorn.Server(config).run(sockets=[listener])
    return 0


def read_words(words: Sequence[str]) -> tuple[Path, int]:
    """The folder of runs and the port.

    Raises:
        ConfigError: an unknown word, no port, or a folder that is a run itself.
    """
    given = {"runs": "runs", "port": "8321"}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in given:
            raise ConfigError(f"unknown word '{word}': the dashboard knows runs=<folder> and port=<number>")
        given[key] = value
    folder = Path(given["runs"])
    if not given["port"].isdecimal() or int(given["port"]) > 65535:
        raise ConfigError(f"port={given['port']}: write a number from 0 to 65535, for example port=8321")
    if is_run(folder):
        raise ConfigError(f"runs={folder} is a run itself: write the folder that it lies in, runs={folder.parent}")
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"runs={folder} is no folder: write the one below which runs lie, such as runs=runs")
    return folder, int(given["port"])


def listen(port: int) -> socket.socket:
    """A socket of this machine alone.

    Raises:
        ConfigError: another program has the port, or it is not for everyone.
    """
    listener = socket.socket()
    # Otherwise the port stays taken for a minute after an earlier page.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((ADDRESS, port))
        listener.listen()
    except OSError as error:
        listener.close()
        why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be had ({error.strerror})"
        raise ConfigError(f"port={port} {why}: write another, or port=0 for a free one") from None
    return listener


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    return cli.main("dashboard", show_runs, argv, lambda: HELP)


if __name__ == "__main__":
    sys.exit(main())
