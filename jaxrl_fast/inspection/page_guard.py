"""What every answer of a page on this machine obeys: who may ask, how, and what a browser may do with it."""

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
