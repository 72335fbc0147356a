"""The dashboard: finds runs, shows each as a row and as curves, and answers only a browser on this machine."""

import asyncio
import json
import math
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jaxrl_fast.training.records import read_status, state_now
from jaxrl_fast.training.run_folder import MARKS, Columns, name_of, read_columns, read_run, scores_of
from jaxrl_fast.views.report_page import assembled, text_of, thinned

Facts = dict[str, Any]
"""What ``run.json`` says, or would say."""
ACTIVE = ("compiling", "training", "evaluating")
STATES = (*ACTIVE, "done", "stopped", "failed", "dead", "unknown")
MAX_TEXT = 500
"""So many characters of a text are shown."""
Curve = dict[str, list[float | None]]
"""Columns of equal length, or empty: ``steps``, ``wall_s`` and ``mean``, and its range from ``low`` to ``high``."""


RunRow = dict[str, Any]
"""A run in the list. None is not known.

- ``name``: the path of its folder below the root.
- ``env``, ``algo``, ``num_seeds``: what it trains.
- ``state``: one of `STATES`; ``error``: why it failed.
- ``env_steps``, ``total_steps``: of each seed, until now and in the end.
- ``eval_return``, ``eval_steps``: the newest evaluation, a mean over seeds; ``best_return``: the highest.
- ``eval_success``: the share of its episodes that were a success.
- ``episode_return``: of the episodes that training ended.
- ``sampling_hz``, ``update_hz``, ``update_frame_hz``: steps, updates and samples of updates in a second.
- ``elapsed_s``, ``left_s``: seconds trained, and to go at the pace until now.
- ``started_at``: when its process began, in seconds since 1970.
"""
NUMBERS = (
    *("num_seeds", "env_steps", "total_steps", "eval_return", "eval_steps", "best_return", "eval_success"),
    *("episode_return", "sampling_hz", "update_hz", "update_frame_hz", "started_at"),
)
"""Numbers of a row that stand in ``run.json``."""


def read_facts(folder: Path) -> Facts:
    """What ``run.json`` says; of a run that an older version wrote, or that has just begun, what it would say."""
    facts = read_status(folder)
    if "state" not in facts:
        facts = {**_guessed(folder), **facts}
    if "best_return" not in facts:
        facts["best_return"] = _best(folder)
    return facts


def row_of(name: str, facts: Facts) -> RunRow:
    """The row of a run. Facts of a wrong kind count as not known."""
    row: RunRow = {key: _number(facts.get(key)) for key in NUMBERS}
    steps, total, elapsed_s, left_s = row["env_steps"], row["total_steps"], _number(facts.get("wall_s")), None
    state = _state(facts)
    if state in ACTIVE and steps and elapsed_s and total:
        trained_s = max(elapsed_s - (_number(facts.get("compile_s")) or 0.0), 0.0)
        left_s = max(total - steps, 0.0) * trained_s / steps
    env = _text(facts.get("env.id") or facts.get("env.make") or facts.get("env"))
    texts = {"name": name, "env": env, "algo": _text(facts.get("algo")), "error": _text(facts.get("error"))}
    return {**row, **texts, "state": state, "elapsed_s": elapsed_s, "left_s": left_s}


def greedy_curve(evals: Columns) -> Curve:
    """Of ``evals.csv``: the mean over seeds and their range; for one seed the 10th and 90th percentile of its
    episodes."""
    scores = scores_of(evals)
    if not len(scores.env_steps):
        return _curve()
    returns = scores.returns
    several = returns.shape[1] > 1
    low, high = (returns.min(axis=1), returns.max(axis=1)) if several else (scores.low, scores.high)
    return _curve(scores.env_steps, scores.wall_s, returns.mean(axis=1), low, high)


def success_curve(evals: Columns) -> Curve:
    """Of ``evals.csv``: the share of greedy episodes that were a success, in per cent."""
    scores = scores_of(evals)
    told = np.isfinite(scores.success)
    return _curve(scores.env_steps[told], scores.wall_s[told], 100 * scores.success[told])


def training_curve(metrics: Columns) -> Curve:
    """Of ``metrics.csv``: the return of the episodes that training ended, which has no spread."""
    names = ("env_steps", "wall_s", "episode_return")
    if not set(names) <= set(metrics) or not np.isfinite(metrics["episode_return"]).any():
        return _curve()
    kept = np.isfinite(metrics["episode_return"])
    return _curve(*thinned({name: metrics[name][kept] for name in names}).values())


def _guessed(folder: Path) -> Facts:
    view = read_run(folder)
    last = {name: float(column[-1]) for name, column in view.metrics.items() if len(column)}
    scores = scores_of(view.evals)
    newest = {"eval_steps": scores.env_steps, "eval_return": scores.returns, "eval_success": scores.success}
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
        "updated_at": _changed_at(folder / "metrics.csv") or _changed_at(folder / "config.yaml") or 0.0,
    }


def _state(facts: Facts) -> str:
    whole: Facts = {
        "state": facts.get("state") if facts.get("state") in STATES else "unknown",
        "host": _text(facts.get("host")),
        "pid": int(_number(facts.get("pid")) or 0),
        "process_start": facts.get("process_start"),
        "updated_at": _number(facts.get("updated_at")) or 0.0,
    }
    # 0 and less are names of groups of processes, and what lies above no process has.
    return state_now(whole) if 0 < whole["pid"] < 2**31 or not whole["host"] else "unknown"


def _best(folder: Path) -> float | None:
    scores = scores_of(read_columns(folder / "evals.csv"))
    return float(scores.returns.mean(axis=1).max()) if len(scores.env_steps) else None


def _curve(*columns: np.ndarray) -> Curve:
    names = ("steps", "wall_s", "mean", "low", "high")
    found = {name: [_number(x) for x in column.tolist()] for name, column in zip(names, columns, strict=False)}
    return {name: found.get(name, []) for name in names}


def _changed_at(path: Path) -> float | None:
    with suppress(OSError):
        return path.stat().st_mtime
    return None


def _number(value: Any) -> float | None:
    """A number that JSON and the browser know."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not -1e300 < value < 1e300:
        return None
    return value if math.isfinite(value) else None


def _text(value: Any) -> str:
    return "" if value is None else str(value)[:MAX_TEXT]


TABLES = ("run.json", "config.yaml", "summary.json", "metrics.csv", "metrics_seeds.csv", "evals.csv")
"""The files of a run that are read."""
SERVED = ("report.html", "policy.html", "policy.gif", "graph.svg", "curve.png")
"""The files of a run that are handed out as they are."""
MAX_DEPTH = 4
"""A run lies at most so many folders below the root, as ``<env>/<algo>/<label>`` does."""
MAX_FOLDERS = 20_000
"""After so many folders the search ends: a root such as ``/`` holds everything."""
FRESH_S = 1.0
"""Rows are looked up at most so often, in seconds."""
IDLE_SHARE = 4.0
"""And never more often than once in so many times the seconds that it takes."""

Stamp = tuple[tuple[str, int, int, int], ...]
"""Name, time of change in ns, size and inode of each file: another stamp, other contents."""


class FoundRuns:
    """The runs below ``root``. Links are never followed, so nothing outside is read and ``latest`` counts once.

    May be called from several threads.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._read: dict[str, tuple[Stamp, Facts]] = {}
        self._rows: dict[str, RunRow] = {}
        self._lock, self._look_at_s = threading.Lock(), 0.0

    def rows(self) -> dict[str, RunRow]:
        """A row for each run by its name, which is its path below the root; at most `FRESH_S` old."""
        with self._lock:
            began_s = time.monotonic()
            if began_s >= self._look_at_s:
                read: dict[str, tuple[Stamp, Facts]] = {}
                for name, stamp in find_runs(self.root):
                    known, facts = self._read.get(name, ((), {}))
                    read[name] = stamp, facts if stamp == known else read_facts(self.root / name)
                self._read = read
                self._rows = {name: row_of(name, facts) for name, (_, facts) in self._read.items()}
                now_s = time.monotonic()
                self._look_at_s = now_s + max(FRESH_S, IDLE_SHARE * (now_s - began_s))
            return self._rows

    def path_of(self, name: str, file: str) -> Path:
        """Where a file of a run lies. Every path that a visitor asks for goes through here.

        Raises:
            FileNotFoundError: no such run or file, a file that is none of `TABLES` and `SERVED`, or a link in its path.
        """
        path = self.root / name / file
        known = name in self.rows() and file in (*TABLES, *SERVED)
        # A path that resolves to another one has a link in it.
        if not known or not path.is_file() or path.resolve() != path:
            raise FileNotFoundError(f"no {file} of a run {name}")
        return path


def find_runs(root: Path) -> Iterator[tuple[str, Stamp]]:
    """Name and stamp of each run below ``root``. Folders within runs, hidden ones, and those whose tables are links or
    whose names are not text are left out."""
    waiting, seen = [""], 0
    while waiting and seen < MAX_FOLDERS:
        folder, seen = waiting.pop(), seen + 1
        entries = _entries(root / folder)
        tables = [entry for entry in entries if entry.name in TABLES]
        if folder and any(entry.name in MARKS for entry in tables):
            stamp = _stamp(tables)
            if stamp is not None:
                yield folder, stamp
        elif not folder or folder.count("/") < MAX_DEPTH - 1:
            waiting += [f"{folder}/{entry.name}".lstrip("/") for entry in entries if _may_hold_runs(entry)]


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What a folder holds; nothing once it is gone."""
    with suppress(OSError), os.scandir(folder) as entries:
        return list(entries)
    return []


def _may_hold_runs(entry: os.DirEntry[str]) -> bool:
    # A name that is not text has no address on the page.
    return entry.name[0] != "." and entry.name.isprintable() and entry.is_dir(follow_symlinks=False)


def _stamp(tables: list[os.DirEntry[str]]) -> Stamp | None:
    """None where one of them is a link, a pipe or gone."""
    if not all(entry.is_file(follow_symlinks=False) for entry in tables):
        return None
    with suppress(OSError):
        found = [(entry.name, entry.stat(follow_symlinks=False)) for entry in tables]
        return tuple(sorted((name, stat.st_mtime_ns, stat.st_size, stat.st_ino) for name, stat in found))
    return None


METHODS = ("GET", "HEAD")
OWN_PAGES = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " + (
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""For our pages, which hold no script of their own: one that came in with a name from a folder would not run."""
RUN_FILES = "default-src 'none'; script-src 'unsafe-inline' blob:; style-src 'unsafe-inline'; font-src data:; " + (
    "img-src 'self' data: blob:; media-src 'self' data: blob:; frame-src 'self'; "
    "sandbox allow-scripts allow-popups allow-downloads"
)
"""For pages that a run has left: their scripts run, but reach neither our pages nor any server."""
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": OWN_PAGES,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Of every answer that does not say otherwise."""


class Guard:
    """Lets through to ``app`` only what may be asked: by a browser of this machine, to read.

    The ``Host`` must be one of this machine's own names with our ``port``. Any page on the internet may have its name
    point to 127.0.0.1 and then counts for the browser as the same server; its ``Host`` gives it away.
    """

    def __init__(self, app: ASGIApp, port: int) -> None:
        names = ("127.0.0.1", "localhost", "[::1]")
        self.app, self.port = app, port
        self.hosts = {f"{name}:{port}".encode() for name in names} | {name.encode() for name in names if port == 80}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        given = [value.lower() for name, value in scope["headers"] if name == b"host"]
        app: ASGIApp = self.app
        if len(given) != 1 or given[0] not in self.hosts:
            app = PlainTextResponse(f"open http://127.0.0.1:{self.port}/ on this machine\n", 400)
        elif scope["method"] not in METHODS:
            app = PlainTextResponse("this page only reads\n", 405, {"Allow": ", ".join(METHODS)})

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
CURVES = {
    "eval": ("evals.csv", greedy_curve),
    "success": ("evals.csv", success_curve),
    "train": ("metrics.csv", training_curve),
}
POLL_S = 1.0
"""Between two looks at the folders for a page that is open, in seconds."""
HEARTBEAT_S = 10.0
"""A page hears something at least so often, in seconds: so both sides notice that the other is gone."""


def make_app(runs: FoundRuns, port: int) -> ASGIApp:
    """The application, for the port that it is asked on."""
    routes = [
        Route("/", _list_page),
        Route("/assets/{name}", _asset),
        Route("/run/{path:path}", _of_run),
        Route("/api/runs", _rows),
        Route("/api/run", _details),
        Route("/api/curve", _answer_curve),
        Route("/events", _events),
    ]
    app = Starlette(routes=routes, exception_handlers={404: _not_found, OSError: _not_found})
    app.state.runs = runs
    return Guard(app, port)


def changes(before: dict[str, RunRow], now: dict[str, RunRow]) -> dict[str, Any]:
    """What a page that shows the rows ``before`` must learn: ``rows`` that are new or other, and names ``gone``."""
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
    """A run's page if the path ends with "/", which relative links in it need, else one of its files."""
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
    """Of one run, what the list has no room for: the lines that it printed and the files that it left."""
    runs, name = _runs(request), request.query_params.get("run", "")
    _row(request, name)
    lines = read_status(runs.path_of(name, "run.json").parent).get("lines") if _has(runs, name, "run.json") else []
    shown = [str(line) for line in lines] if isinstance(lines, list) else []
    return JSONResponse({"lines": shown, "files": [file for file in SERVED if _has(runs, name, file)]})


def _answer_curve(request: Request) -> Response:
    runs, name = _runs(request), request.query_params.get("run", "")
    _row(request, name)
    table, curve_of = CURVES.get(request.query_params.get("of", "eval"), CURVES["eval"])
    columns = read_columns(runs.path_of(name, table)) if _has(runs, name, table) else {}
    return JSONResponse({"name": name, **curve_of(columns)})


async def _events(request: Request) -> Response:
    headers = {"X-Accel-Buffering": "no"}
    if request.method == "HEAD":
        return Response(media_type="text/event-stream", headers=headers)
    stream = _changing(_runs(request), request.query_params.get("run"))
    return StreamingResponse(stream, media_type="text/event-stream", headers=headers)


async def _changing(runs: FoundRuns, only: str | None) -> AsyncIterator[str]:
    """All rows, as the event ``list``; then, as the event ``change``, what has changed, and a ``beat`` in between."""
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
