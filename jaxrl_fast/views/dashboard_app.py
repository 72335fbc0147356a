"""The dashboard: lists runs as rows and curves, and serves browsers on this machine only."""

import asyncio
import json
import math
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import (
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jaxrl_fast.envs.episode_metrics import METRIC
from jaxrl_fast.training.records import MEMBERS, read_members, read_status, state_now
from jaxrl_fast.training.run_folder import (
    MARKS,
    UNEVALUATED,
    Columns,
    name_of,
    read_columns,
    read_run,
    scores_of,
)
from jaxrl_fast.views.report_page import assembled, means_at, text_of, thinned

Facts = dict[str, Any]
"""Content of ``run.json``, or a reconstruction."""
ACTIVE = ("compiling", "training", "evaluating")
STATES = (*ACTIVE, "done", "stopped", "failed", "dead", "unknown")
MAX_TEXT = 500
"""Largest number of characters of a text that are shown."""
Curve = dict[str, list[float | None]]
"""Columns of equal length, or empty: ``steps``, ``wall_s``, ``mean``, and a range from ``low`` to
``high``.
"""


RunRow = dict[str, Any]
"""A run in the list. Unknown values are None.

- ``name``: path of its folder below the root.
- ``env``, ``algo``, ``num_seeds``: environment, algorithm and number of seeds.
- ``state``: one of `STATES`; ``error``: reason of a failure.
- ``env_steps``, ``total_steps``: environment steps per seed, so far and in total.
- ``eval_return``, ``eval_steps``: the newest evaluation, a mean over seeds; ``best_return``: the
  highest.
- ``eval_success``: fraction of successful evaluation episodes.
- ``eval_metrics``: means of the environment's metrics over these episodes, by name.
- ``unevaluated``: words in place of ``eval_return`` if the run has no evaluations, else "".
- ``episode_return``: mean return of the training episodes that ended.
- ``sampling_hz``, ``update_hz``, ``update_frame_hz``: steps, updates and samples of updates per
  second.
- ``elapsed_s``, ``left_s``: seconds so far, and remaining at the rate so far.
- ``started_at``: start of its process in seconds since 1970.
"""
NUMBERS = (
    *(
        "num_seeds",
        "env_steps",
        "total_steps",
        "eval_return",
        "eval_steps",
        "best_return",
        "eval_success",
    ),
    *("episode_return", "sampling_hz", "update_hz", "update_frame_hz", "started_at"),
)
"""Numbers of a row that ``run.json`` contains."""


def read_facts(folder: Path) -> Facts:
    """Read ``run.json``, or reconstruct it for a run of an older version or one that has just
    begun.

    Args:
        folder: Folder of the run.

    Returns:
        The entries.
    """
    facts = read_status(folder)
    if "state" not in facts:
        facts = {**_guessed(folder), **facts}
    if "best_return" not in facts:
        facts["best_return"] = _best(folder)
    return facts


def row_of(name: str, facts: Facts) -> RunRow:
    """Make the row of a run.

    Args:
        name: Path of the run below the root.
        facts: Entries of ``run.json``. Values of a wrong type count as unknown.

    Returns:
        The row.
    """
    row: RunRow = {key: _number(facts.get(key)) for key in NUMBERS}
    steps, total, elapsed_s, left_s = (
        row["env_steps"],
        row["total_steps"],
        _number(facts.get("wall_s")),
        None,
    )
    state = _state(facts)
    if state in ACTIVE and steps and elapsed_s and total:
        trained_s = max(elapsed_s - (_number(facts.get("compile_s")) or 0.0), 0.0)
        left_s = max(total - steps, 0.0) * trained_s / steps
    env = _text(facts.get("env.id") or facts.get("env.make") or facts.get("env"))
    algo = _text(facts.get("algo.make") or facts.get("algo"))
    texts = {"name": name, "env": env, "algo": algo, "error": _text(facts.get("error"))}
    texts["unevaluated"] = UNEVALUATED[0] if facts.get("eval.every") == 0 else ""
    measured = facts.get("eval_metrics")
    metrics = (
        {_text(name): _number(x) for name, x in measured.items()}
        if isinstance(measured, dict)
        else {}
    )
    return {
        **row,
        **texts,
        "state": state,
        "elapsed_s": elapsed_s,
        "left_s": left_s,
        "eval_metrics": metrics,
    }


def greedy_curve(evals: Columns) -> Curve:
    """Compute the curve of greedy returns.

    Args:
        evals: Columns of ``evals.csv``.

    Returns:
        Mean over seeds with their range; for one seed with the 10th and 90th percentile of its
        episodes.
    """
    scores = scores_of(evals)
    if not len(scores.env_steps):
        return _curve()
    returns = scores.returns
    several = returns.shape[1] > 1
    low, high = (returns.min(axis=1), returns.max(axis=1)) if several else (scores.low, scores.high)
    return _curve(scores.env_steps, scores.wall_s, returns.mean(axis=1), low, high)


def success_curve(evals: Columns) -> Curve:
    """Compute the curve of successful greedy episodes.

    Args:
        evals: Columns of ``evals.csv``.

    Returns:
        Success rate in per cent.
    """
    scores = scores_of(evals)
    reported = np.isfinite(scores.success)
    return _curve(
        scores.env_steps[reported], scores.wall_s[reported], 100 * scores.success[reported]
    )


def metric_curve(name: str, evals: Columns) -> Curve:
    """Compute the curve of a metric of the environment in greedy episodes.

    Args:
        name: Column of the metric.
        evals: Columns of ``evals.csv``.

    Returns:
        Its means, without a range.
    """
    scores = scores_of(evals)
    if name not in evals or not len(scores.env_steps):
        return _curve()
    return _curve(scores.env_steps, scores.wall_s, means_at(scores, evals, name))


def training_curve(metrics: Columns, name: str = "episode_return") -> Curve:
    """Compute the curve of training returns, or of a metric of the environment.

    Args:
        metrics: Columns of ``metrics.csv``.
        name: Column of a mean over the episodes that ended.

    Returns:
        The means, without a range.
    """
    names = ("env_steps", "wall_s", name)
    if not set(names) <= set(metrics) or not np.isfinite(metrics[name]).any():
        return _curve()
    finite = np.isfinite(metrics[name])
    return _curve(*thinned({name: metrics[name][finite] for name in names}).values())


def _guessed(folder: Path) -> Facts:
    view = read_run(folder)
    last = {name: float(column[-1]) for name, column in view.metrics.items() if len(column)}
    scores = scores_of(view.evals)
    newest = {
        "eval_steps": scores.env_steps,
        "eval_return": scores.returns,
        "eval_success": scores.success,
    }
    evaluated = {name: np.mean(column[-1]) for name, column in newest.items() if len(column)}
    ended = view.state if view.state in ("done", "stopped") else None
    return {
        **last,
        **{name: float(value) for name, value in evaluated.items()},
        "env": name_of(view.settings, "env"),
        "algo": name_of(view.settings, "algo"),
        "num_seeds": view.settings.get("num_seeds"),
        "total_steps": view.settings.get("total_steps"),
        "state": ended or ("training" if last else "compiling"),
        "started_at": _changed_at(folder / "config.yaml"),
        "updated_at": _changed_at(folder / "metrics.csv")
        or _changed_at(folder / "config.yaml")
        or 0.0,
    }


def _state(facts: Facts) -> str:
    whole: Facts = {
        "state": facts.get("state") if facts.get("state") in STATES else "unknown",
        "host": _text(facts.get("host")),
        "pid": int(_number(facts.get("pid")) or 0),
        "process_start": facts.get("process_start"),
        "updated_at": _number(facts.get("updated_at")) or 0.0,
    }
    # Numbers below 1 name groups of processes, and larger numbers are not valid process ids.
    return state_now(whole) if 0 < whole["pid"] < 2**31 or not whole["host"] else "unknown"


def _best(folder: Path) -> float | None:
    scores = scores_of(read_columns(folder / "evals.csv"))
    return float(scores.returns.mean(axis=1).max()) if len(scores.env_steps) else None


def _curve(*columns: np.ndarray) -> Curve:
    names = ("steps", "wall_s", "mean", "low", "high")
    by_name = {
        name: [_number(x) for x in column.tolist()]
        for name, column in zip(names, columns, strict=False)
    }
    return {name: by_name.get(name, []) for name in names}


def _changed_at(path: Path) -> float | None:
    with suppress(OSError):
        return path.stat().st_mtime
    return None


def _number(value: Any) -> float | None:
    """Return a finite number that JSON and browsers support, else None."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not -1e300 < value < 1e300:
        return None
    return value if math.isfinite(value) else None


def _text(value: Any) -> str:
    return "" if value is None else str(value)[:MAX_TEXT]


TABLES = (
    "run.json",
    "config.yaml",
    "summary.json",
    "metrics.csv",
    "metrics_seeds.csv",
    "evals.csv",
    MEMBERS,
)
"""Files of a run that are read."""
SERVED = ("report.html", "policy.html", "policy.gif", "graph.svg", "curve.png")
"""Files of a run that are served unchanged."""
MAX_DEPTH = 4
"""Largest number of folders between the root and a run, as in ``<env>/<algo>/<label>``."""
MAX_FOLDERS = 20_000
"""Number of folders after which the search ends, since a root such as ``/`` contains everything."""
FRESH_S = 1.0
"""Shortest interval between reads of the rows, in seconds."""
IDLE_SHARE = 4.0
"""Shortest interval between reads of the rows, as a multiple of their duration."""

Stamp = tuple[tuple[str, int, int, int], ...]
"""Name, modification time in ns, size and inode of each file. It changes with the contents."""


class FoundRuns:
    """The runs below ``root``; thread-safe.

    Links are not followed, so that nothing outside is read and ``latest`` counts once.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._read: dict[str, tuple[Stamp, Facts]] = {}
        self._rows: dict[str, RunRow] = {}
        self._lock, self._look_at_s = threading.Lock(), 0.0

    def rows(self) -> dict[str, RunRow]:
        """Return a row for each run by its path below the root, at most `FRESH_S` old."""
        with self._lock:
            began_s = time.monotonic()
            if began_s >= self._look_at_s:
                read: dict[str, tuple[Stamp, Facts]] = {}
                for name, stamp in find_runs(self.root):
                    before, facts = self._read.get(name, ((), {}))
                    read[name] = stamp, facts if stamp == before else read_facts(self.root / name)
                self._read = read
                self._rows = {name: row_of(name, facts) for name, (_, facts) in self._read.items()}
                now_s = time.monotonic()
                self._look_at_s = now_s + max(FRESH_S, IDLE_SHARE * (now_s - began_s))
            return self._rows

    def path_of(self, name: str, file: str) -> Path:
        """Return the path of a run's file. Every path of a request is checked here.

        Raises:
            FileNotFoundError: Unknown run or file, a file not in `TABLES` and `SERVED`, or a link
                in the path.
        """
        path = self.root / name / file
        listed = name in self.rows() and file in (*TABLES, *SERVED)
        # A path that resolves to another one has a link in it.
        if not listed or not path.is_file() or path.resolve() != path:
            raise FileNotFoundError(f"no {file} of a run {name}")
        return path


def find_runs(root: Path) -> Iterator[tuple[str, Stamp]]:
    """Search the runs below a folder.

    Folders within runs, hidden folders, and runs whose tables are links or whose names are not
    printable are skipped.

    Args:
        root: Folder.

    Returns:
        Iterator over path below the root and stamp of each run.
    """
    waiting, visited = [""], 0
    while waiting and visited < MAX_FOLDERS:
        folder, visited = waiting.pop(), visited + 1
        entries = _entries(root / folder)
        tables = [entry for entry in entries if entry.name in TABLES]
        if folder and any(entry.name in MARKS for entry in tables):
            stamp = _stamp(tables)
            if stamp is not None:
                yield folder, stamp
        elif not folder or folder.count("/") < MAX_DEPTH - 1:
            waiting += [
                f"{folder}/{entry.name}".lstrip("/") for entry in entries if _may_hold_runs(entry)
            ]


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """List the entries of a folder; empty if it does not exist."""
    with suppress(OSError), os.scandir(folder) as entries:
        return list(entries)
    return []


def _may_hold_runs(entry: os.DirEntry[str]) -> bool:
    # A name that is not printable has no address on the page.
    return entry.name[0] != "." and entry.name.isprintable() and entry.is_dir(follow_symlinks=False)


def _stamp(tables: list[os.DirEntry[str]]) -> Stamp | None:
    """Return the stamp of tables; None if one is a link, a pipe or missing."""
    if not all(entry.is_file(follow_symlinks=False) for entry in tables):
        return None
    with suppress(OSError):
        stats = [(entry.name, entry.stat(follow_symlinks=False)) for entry in tables]
        return tuple(
            sorted((name, stat.st_mtime_ns, stat.st_size, stat.st_ino) for name, stat in stats)
        )
    return None


METHODS = ("GET", "HEAD")
OWN_PAGES = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    + ("base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
)
"""Policy of the dashboard's pages. They contain no inline scripts, so that a script in the name of
a folder does not run.
"""
RUN_FILES = (
    "default-src 'none'; script-src 'unsafe-inline' blob:; style-src 'unsafe-inline'; font-src data:; "
    + (
        "img-src 'self' data: blob:; media-src 'self' data: blob:; frame-src 'self'; "
        "sandbox allow-scripts allow-popups allow-downloads"
    )
)
"""Policy of a run's pages: their scripts run, but cannot access the dashboard's pages or any
server.
"""
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": OWN_PAGES,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Default headers of every response."""


class Guard:
    """Middleware that passes on only read requests of browsers on this machine.

    The ``Host`` must be a name of this machine with the ``port`` of the dashboard. Any website may
    let its name resolve to 127.0.0.1, and then counts for the browser as the same server, but its
    ``Host`` differs.
    """

    def __init__(self, app: ASGIApp, port: int) -> None:
        names = ("127.0.0.1", "localhost", "[::1]")
        self.app, self.port = app, port
        self.hosts = {f"{name}:{port}".encode() for name in names} | {
            name.encode() for name in names if port == 80
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to one request."""
        if scope["type"] != "http":
            return
        hosts = [value.lower() for name, value in scope["headers"] if name == b"host"]
        app: ASGIApp = self.app
        if len(hosts) != 1 or hosts[0] not in self.hosts:
            app = PlainTextResponse(f"open http://127.0.0.1:{self.port}/ on this machine\n", 400)
        elif scope["method"] not in METHODS:
            app = PlainTextResponse("this page is read-only\n", 405, {"Allow": ", ".join(METHODS)})

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await app(scope, receive, send_with_headers)


REPORT, LIVE = "report.html", "live"
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
TYPES |= {"svg": "image/svg+xml", "png": "image/png", "gif": "image/gif"}
CURVES: dict[str, tuple[str, Callable[[Columns], Curve]]] = {
    "eval": ("evals.csv", greedy_curve),
    "success": ("evals.csv", success_curve),
    "train": ("metrics.csv", training_curve),
}
POLL_S = 1.0
"""Interval in seconds at which the folders are checked for an open page."""
HEARTBEAT_S = 10.0
"""Longest interval in seconds between messages to a page, so that both sides notice a lost
connection.
"""


def make_app(runs: FoundRuns, port: int) -> ASGIApp:
    """Make the application.

    Args:
        runs: Runs to show.
        port: Port of the server.

    Returns:
        The ASGI application.
    """
    routes = [
        Route("/", _list_page),
        Route("/assets/{name}", _asset),
        Route("/run/{path:path}", _of_run),
        Route("/api/runs", _rows),
        Route("/api/run", _details),
        Route("/api/curve", _answer_curve),
        Route("/api/members", _members),
        Route("/events", _events),
    ]
    app = Starlette(routes=routes, exception_handlers={404: _not_found, OSError: _not_found})
    app.state.runs = runs
    return Guard(app, port)


def changes(before: dict[str, RunRow], now: dict[str, RunRow]) -> dict[str, Any]:
    """Compute the update of a page.

    Args:
        before: Rows that the page shows.
        now: Current rows.

    Returns:
        ``rows`` that are new or have changed, and names that are ``gone``.
    """
    other = [row for name, row in now.items() if row != before.get(name)]
    return {"rows": other, "gone": [name for name in before if name not in now]}


# Starlette calls these in threads, so they may wait for the disk.


def _list_page(request: Request) -> Response:
    return _file("dashboard.html", assembled("dashboard.html"))


def _asset(request: Request) -> Response:
    name = request.path_params["name"]
    if not name.endswith((".css", ".js")):
        raise FileNotFoundError(name)
    return _file(name, text_of(name))


def _of_run(request: Request) -> Response:
    """Serve a run's page if the path ends with "/", which relative links need, else one of its
    files.
    """
    runs, path = _runs(request), request.path_params["path"]
    name, _, file = path.rpartition("/")
    if not file:
        file = REPORT if _has(runs, name, REPORT) else LIVE
    if file in SERVED:
        return _file(file, runs.path_of(name, file).read_bytes(), RUN_FILES)
    if file == LIVE:
        _row(request, name)
        return _file("run.html", assembled("run.html"))
    _row(request, path)
    return RedirectResponse(f"/run/{quote(path)}/")


def _rows(request: Request) -> Response:
    return JSONResponse(changes({}, _runs(request).rows())["rows"])


def _details(request: Request) -> Response:
    """Serve the messages and the list of files of one run."""
    runs, name = _runs(request), request.query_params.get("run", "")
    _row(request, name)
    lines = (
        read_status(runs.path_of(name, "run.json").parent).get("lines")
        if _has(runs, name, "run.json")
        else []
    )
    shown = [str(line) for line in lines] if isinstance(lines, list) else []
    return JSONResponse(
        {"lines": shown, "files": [file for file in SERVED if _has(runs, name, file)]}
    )


def _members(request: Request) -> Response:
    """Serve the members of a population, or nothing of a run."""
    runs, name = _runs(request), request.query_params.get("run", "")
    _row(request, name)
    return JSONResponse(
        (read_members(runs.path_of(name, MEMBERS).parent) if _has(runs, name, MEMBERS) else None)
        or {}
    )


def _answer_curve(request: Request) -> Response:
    runs, name = _runs(request), request.query_params.get("run", "")
    _row(request, name)
    table, curve_of = _curve_named(request.query_params.get("of", "eval"))
    columns = read_columns(runs.path_of(name, table)) if _has(runs, name, table) else {}
    return JSONResponse({"name": name, **curve_of(columns)})


def _curve_named(of: str) -> tuple[str, Callable[[Columns], Curve]]:
    """Return the table and the function of a curve: one of `CURVES`, or a metric such as
    ``train env/distance``.
    """
    kind, _, column = of.partition(" ")
    if not column.startswith(METRIC):
        return CURVES.get(of, CURVES["eval"])
    if kind == "train":
        return "metrics.csv", partial(training_curve, name=column)
    return "evals.csv", partial(metric_curve, column)


async def _events(request: Request) -> Response:
    headers = {"X-Accel-Buffering": "no"}
    if request.method == "HEAD":
        return Response(media_type="text/event-stream", headers=headers)
    stream = _changing(_runs(request), request.query_params.get("run"))
    return StreamingResponse(stream, media_type="text/event-stream", headers=headers)


async def _changing(runs: FoundRuns, only: str | None) -> AsyncIterator[str]:
    """Send all rows as event ``list``, then changed rows as event ``change``, and ``beat`` in
    between.
    """
    shown: dict[str, RunRow] = {}
    kind, silent_s = "list", 0.0
    while True:
        now = await run_in_threadpool(runs.rows)
        now = now if only is None else {name: row for name, row in now.items() if name == only}
        if kind == "list" or now != shown:
            yield f"event: {kind}\ndata: {json.dumps(changes(shown, now))}\n\n"
            shown, kind, silent_s = now, "change", 0.0
        elif silent_s >= HEARTBEAT_S:
            yield "event: beat\ndata: {}\n\n"
            silent_s = 0.0
        await asyncio.sleep(POLL_S)
        silent_s += POLL_S


def _runs(request: Request) -> FoundRuns:
    return request.app.state.runs


def _row(request: Request, name: str) -> RunRow:
    row = _runs(request).rows().get(name)
    if row is None:
        raise FileNotFoundError(f"no run {name}")
    return row


def _has(runs: FoundRuns, name: str, file: str) -> bool:
    with suppress(OSError):
        return runs.path_of(name, file).is_file()
    return False


def _file(name: str, content: str | bytes, policy: str | None = None) -> Response:
    headers = {"Content-Security-Policy": policy} if policy else None
    return Response(content, headers=headers, media_type=TYPES[name.rpartition(".")[2]])


def _not_found(request: Request, error: Exception) -> Response:
    return PlainTextResponse("not found: the list of runs is at /\n", 404)
