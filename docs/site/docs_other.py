"""Runs the code of ``docs/tutorials/export.md`` in other languages: its page in a Chromium, its
program in C++.

``python docs/site/docs_other.py web=<folder with node_modules> cpp=<folder with include and lib>``
trains a short run, exports it, and compares the actions of both with ONNX Runtime in Python.
Versions and a digest of each block are written to ``experiments/results/docs_other.json``;
``tests/test_docs.py`` refuses a block that changed since.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from docs_run import prepare
from docs_text import FENCE, ROOT

PAGE = ROOT / "docs" / "tutorials" / "export.md"
RECORD = ROOT / "experiments" / "results" / "docs_other.json"
OBS = [1.0, 0.0, 0.0]
TOLERANCE = 1e-4


def blocks() -> dict[str, str]:
    """Return the blocks of the page that are neither Python nor commands, by the file name in their
    first line.
    """
    bodies = [
        m["body"] for m in FENCE.finditer(PAGE.read_text()) if m["language"] in ("html", "cpp")
    ]
    return {re.search(r"[\w.]+\.\w+", body.splitlines()[0])[0]: body for body in bodies}  # type: ignore[index]


def digest(body: str) -> str:
    """Compute the digest that identifies a block."""
    return hashlib.sha256(body.encode()).hexdigest()[:16]


def in_python(folder: Path) -> tuple[float, str]:
    """Return the action by ONNX Runtime in Python, and its version."""
    import numpy as np
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "policy.onnx")
    [action] = session.run(None, {"obs": np.array([OBS], np.float32)})
    return float(action[0, 0]), f"ONNX Runtime {onnxruntime.__version__}"


def in_browser(folder: Path, web: Path) -> tuple[float, str]:
    """Return the action that the page shows in a Chromium, from a server started as in the
    tutorial.
    """
    sys.path.insert(0, str(ROOT / "tests"))
    from browser import chromium_page, find_chromium

    (folder / "node_modules").symlink_to(web / "node_modules")
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    look = "() => document.getElementById('action').textContent ? done(0) : setTimeout(look, 50)"
    waits = f"new Promise(done => {{ const look = {look}; look(); }})"
    chromium = find_chromium() or "chromium"
    with chromium_page(chromium) as page:
        page.open(f"http://127.0.0.1:{server.server_port}/index.html")
        page.run(waits)
        shown = page.run("document.getElementById('action').textContent")
    server.shutdown()
    version = json.loads((web / "node_modules" / "onnxruntime-web" / "package.json").read_text())[
        "version"
    ]
    browser = subprocess.run(
        [chromium, "--version"], capture_output=True, text=True
    ).stdout.split()[1]
    return float(shown.split()[0]), f"onnxruntime-web {version}, Chromium {browser}"


def in_cpp(folder: Path, cpp: Path) -> tuple[float, str]:
    """Return the action of the program in C++, compiled as in the tutorial."""
    (folder / "onnxruntime").symlink_to(cpp)
    line = next(line for line in PAGE.read_text().splitlines() if line.startswith("g++ "))
    subprocess.run(line.split(), cwd=folder, check=True)
    done = subprocess.run(["./play"], cwd=folder, check=True, capture_output=True, text=True)
    compiler = subprocess.run(
        ["g++", "-dumpfullversion"], capture_output=True, text=True
    ).stdout.strip()
    headers = "".join(path.read_text() for path in (cpp / "include").glob("**/onnxruntime_c_api.h"))
    api = re.search(r"define ORT_API_VERSION (\d+)", headers)
    return float(done.stdout), f"g++ {compiler}, headers of API {api[1] if api else 'unknown'}"


def main(web: str, cpp: str) -> None:
    """Run all, compare, and write the record."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        export = [sys.executable, "-m", "jaxrl_fast.export", "runs/latest", "formats=onnx"]
        subprocess.run(export, cwd=folder, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
        shutil.copy(folder / "runs" / "latest" / "policy" / "policy.onnx", folder)
        for file, body in blocks().items():
            (folder / file).write_text(body)
        wanted, with_python = in_python(folder)
        found = {"index.html": in_browser(folder, Path(web)), "play.cpp": in_cpp(folder, Path(cpp))}
    for file, (action, versions) in found.items():
        print(file, action, versions, "Python:", wanted)
        if abs(action - wanted) > TOLERANCE:
            raise SystemExit(f"{file}: {action} instead of {wanted}")
    rows = {
        file: {
            "digest": digest(blocks()[file]),
            "action": action,
            "versions": versions,
            "in Python": wanted,
        }
        for file, (action, versions) in found.items()
    }
    RECORD.write_text(json.dumps({"compared with": with_python, "blocks": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(**dict(word.split("=", 1) for word in sys.argv[1:]))
