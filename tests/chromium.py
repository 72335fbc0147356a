"""A headless Chromium, driven over a pair of pipes with its DevTools protocol
(https://chromedevtools.github.io/devtools-protocol): no driver and no library is needed."""

import base64
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SWITCHES = (
    "--headless",
    "--no-sandbox",
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


class Page:
    """One page of a browser. ``events``: what it has reported so far."""

    def __init__(self, to: Any, answers: Any) -> None:
        self.to, self.answers, self.events = to, answers, list[dict[str, Any]]()
        self.sent, self.session = 0, ""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol; returns its result."""
        self.sent += 1
        message = {"id": self.sent, "method": method, "params": params}
        self.to.write(json.dumps(message | ({"sessionId": self.session} if self.session else {})).encode() + b"\0")
        self.to.flush()
        while (answer := self.read()).get("id") != self.sent:
            self.events.append(answer)
        assert "result" in answer, answer
        return answer["result"]

    def read(self) -> dict[str, Any]:
        """The next message; they end with a zero byte."""
        message = bytearray()
        while (byte := self.answers.read(1)) != b"\0":
            assert byte, "Chromium has ended"
            message += byte
        return json.loads(message)

    def run(self, script: str) -> Any:
        """The value of an expression of JavaScript, awaited if it is a promise."""
        done = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def open(
        self, what: Path | str, *, width: int = 800, height: int = 600, mobile: bool = False, dark: bool = False
    ) -> None:
        """Show a file of this machine, or an address of it, and wait until it is loaded."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        self.ask("Emulation.setTouchEmulationEnabled", enabled=mobile)
        self.prefer(dark=dark)
        self.ask("Page.navigate", url=what if isinstance(what, str) else what.as_uri())
        self.run("new Promise(done => document.readyState === 'complete' ? done() : addEventListener('load', done))")

    def prefer(self, *, dark: bool) -> None:
        """As if the person had chosen dark or light colors."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])

    def png(self) -> bytes:
        """A picture of what is to be seen."""
        return base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"])

    def pixels(self) -> np.ndarray:
        """What is to be seen, float ``[height, width, 3]`` in [0, 1]."""
        from matplotlib.image import imread

        return imread(io.BytesIO(self.png()))[..., :3]


@contextmanager
def chromium_page(profile: Path) -> Iterator[Page]:
    """A page of a new browser, which ends with it. ``profile``: an empty folder."""
    assert CHROMIUM and sys.platform != "win32"
    its_in, to = os.pipe()
    answers, its_out = os.pipe()
    command = f'exec "$0" "$@" 3<&{its_in} 4>&{its_out}'
    browser = subprocess.Popen(
        ["bash", "-c", command, CHROMIUM, *SWITCHES, f"--user-data-dir={profile}"],
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
            with suppress(AssertionError, OSError):
                to_file.write(b'{"id": 0, "method": "Browser.close"}\0')
    finally:
        with suppress(subprocess.TimeoutExpired):
            browser.wait(10)
        browser.kill()
        browser.wait()
