"""The dashboard's addresses, as an ASGI application:

- ``/``: the list of runs; ``/assets/<file>``: what this page needs.
- ``/run/<name>/``: ``report.html`` of a run, else the page ``/run/<name>/live``, which keeps itself up to date.
- ``/run/<name>/<file>``: one of `SERVED`.
- ``/api/runs``, ``/api/run?run=<name>``, ``/api/curve?run=<name>&of=<eval, success or train>``: JSON.
- ``/events``: the rows as they change (server-sent events), of all runs or, with ``?run=<name>``, of one.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from jaxrl_fast.inspection.found_runs import SERVED, FoundRuns
from jaxrl_fast.inspection.page_files import assembled, text_of
from jaxrl_fast.inspection.page_guard import RUN_FILES, Guard
from jaxrl_fast.inspection.run_rows import RunRow, greedy_curve, success_curve, training_curve
from jaxrl_fast.runs.reading import read_columns
from jaxrl_fast.runs.status import read_status

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
        Route("/api/curve", _curve),
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


def _curve(request: Request) -> Response:
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
