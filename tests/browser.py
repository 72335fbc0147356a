"""A headless Chromium, driven through a pair of pipes with the DevTools protocol
(https://chromedevtools.github.io/devtools-protocol).

It needs no driver and no library.
"""

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "chrome", "google-chrome")
SWITCHES = (
    "--headless",
    "--no-sandbox",  # root and many containers have no sandbox; the page shown is our own
    "--disable-gpu",
    "--enable-unsafe-swiftshader",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--remote-debugging-pipe",
)


def find_chromium() -> str | None:
    """Return the path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class BrowserError(RuntimeError):
    """The browser ended or refused a request."""


class Page:
    """One page of a browser. ``events`` holds the events reported so far."""

    def __init__(self, to: Any, answers: Any) -> None:
        self.to, self.answers, self.events = to, answers, list[dict[str, Any]]()
        self.sent, self.session, self.unread = 0, "", b""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol; returns its result.

        Raises:
            BrowserError: it has none.
        """
        self.sent += 1
        message = {"id": self.sent, "method": method, "params": params}
        self.to.write(
            json.dumps(message | ({"sessionId": self.session} if self.session else {})).encode()
            + b"\0"
        )
        self.to.flush()
        while (answer := self._read()).get("id") != self.sent:
            self.events.append(answer)
        if "result" not in answer:
            raise BrowserError(f"{method}: {answer.get('error')}")
        return dict(answer["result"])

    def run(self, script: str) -> Any:
        """Evaluate an expression of JavaScript, awaited if it is a promise.

        Raises:
            BrowserError: it threw.
        """
        done = self.ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in done:
            raise BrowserError(
                done["exceptionDetails"].get("exception", {}).get("description", script)
            )
        return done["result"].get("value")

    def open(
        self,
        what: Path | str,
        *,
        width: int = 800,
        height: int = 600,
        mobile: bool = False,
        dark: bool = False,
    ) -> None:
        """Open a local file or an address and wait until it is loaded."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=mobile,
        )
        self.ask("Emulation.setTouchEmulationEnabled", enabled=mobile)
        self.prefer(dark=dark)
        self.ask("Page.navigate", url=what if isinstance(what, str) else what.resolve().as_uri())
        self.run(
            "new Promise(done => document.readyState === 'complete' ? done() : addEventListener('load', done))"
        )

    def prefer(self, *, dark: bool) -> None:
        """Emulate the preference for dark or light colors."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])

    def png(self) -> bytes:
        """Take a screenshot."""
        return base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"])

    def _read(self) -> dict[str, Any]:
        """Read the next message. A zero byte ends a message."""
        while b"\0" not in self.unread:
            some = self.answers.read1()
            if not some:
                raise BrowserError("Chromium has ended")
            self.unread += some
        message, _, self.unread = self.unread.partition(b"\0")
        return dict(json.loads(message))


@contextmanager
def chromium_page(chromium: str) -> Iterator[Page]:
    """Open a page of a new browser, which ends with the page.

    Raises:
        BrowserError: it does not start.
    """
    its_in, to = os.pipe()
    answers, its_out = os.pipe()
    command = f'exec "$0" "$@" 3<&{its_in} 4>&{its_out}'
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = subprocess.Popen(
            ["bash", "-c", command, chromium, *SWITCHES, f"--user-data-dir={profile}"],
            pass_fds=(its_in, its_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(its_in)
        os.close(its_out)
        try:
            with os.fdopen(to, "wb") as to_file, os.fdopen(answers, "rb") as answers_file:
                yield Page(to_file, answers_file)
                with suppress(OSError):
                    to_file.write(b'{"id": 0, "method": "Browser.close"}\0')
        finally:
            with suppress(subprocess.TimeoutExpired):
                browser.wait(10)
            browser.kill()
            browser.wait()
