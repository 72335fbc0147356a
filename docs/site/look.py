"""Checks every page of the built site in Chromium:
``python docs/site/look.py build/site/html /tmp/look [page ...]``.

Each page is drawn at 1440 and 390 pixels, light and dark. Errors are printed: a page wider than the
screen, an error of a script, a request that is not for a file of the site. Then search is tried,
from disk.
"""

import base64
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from browser import Page, chromium_page, find_chromium

SIZES = ((1440, False), (1440, True), (390, False), (390, True))


def faults(page: Page, site: Path) -> list[str]:
    """Return the browser's reports since the last call."""
    found = []
    for event in page.events:
        text = json.dumps(event.get("params", {}))
        if event.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
            found.append(text[:300])
        if event.get("method") == "Network.requestWillBeSent":
            url = event["params"]["request"]["url"]
            if not url.startswith((site.resolve().as_uri(), "data:", "blob:", "about:")):
                found.append(f"asks for {url}")
    page.events.clear()
    return found


def look(page: Page, file: Path, site: Path, out: Path) -> None:
    """Draw one page at every size, and print its errors."""
    name = file.relative_to(site).with_suffix("").as_posix().replace("/", "-")
    for width, dark in SIZES:
        page.open(file, width=width, height=900, mobile=width < 500, dark=dark)
        scroll, height = page.run(
            "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
        )
        clip = {"x": 0, "y": 0, "width": width, "height": min(height, 6000), "scale": 1}
        shot = page.ask(
            "Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True
        )
        (out / f"{name}-{width}-{'dark' if dark else 'light'}.png").write_bytes(
            base64.b64decode(shot["data"])
        )
        page.run("localStorage.clear()")  # it retains the colors of the first visit
        wrong = [f"{scroll} pixels wide"] if scroll > width else []
        for fault in [*wrong, *faults(page, site)]:
            print(f"{name} at {width}{' dark' if dark else ''}: {fault}", flush=True)


def search(page: Page, site: Path) -> None:
    """Search by the keyboard, and print errors; the result is in ``search.png``."""
    page.open(site / "index.html", width=1440, height=900)
    page.run("new Promise(done => setTimeout(done, 1000))")
    for kind in ("rawKeyDown", "keyUp"):
        page.ask(
            "Input.dispatchKeyEvent",
            type=kind,
            key="k",
            code="KeyK",
            windowsVirtualKeyCode=75,
            modifiers=2,
        )
    page.run("new Promise(done => setTimeout(done, 1000))")
    page.ask("Input.insertText", text="autotuner")
    page.run("new Promise(done => setTimeout(done, 2000))")
    print("search from disk:", *faults(page, site))


def main(site: Path, out: Path, names: list[str]) -> None:
    """Check the named pages, all by default, and search."""
    out.mkdir(parents=True, exist_ok=True)
    files = sorted(
        file
        for file in site.glob("**/*.html")
        if "files" not in file.relative_to(site).parts and file.name != "404.html"
    )
    with chromium_page(find_chromium() or "chromium") as page:
        for file in files:
            if not names or file.relative_to(site).as_posix() in names:
                look(page, file, site, out)
        search(page, site)
        (out / "search.png").write_bytes(page.png())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
