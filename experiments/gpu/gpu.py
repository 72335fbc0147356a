"""All measurements for a GPU or a TPU, in one command of 10 to 15 minutes.

``python experiments/gpu/gpu.py`` (`make gpu`) needs an otherwise idle machine, with one card or
several. ``parts=law,updates`` selects parts, ``out=FOLDER`` writes elsewhere. A part that fails is
a line in the results and stops no other part. Results are written to experiments/results/<card>/:
gpu.json (all figures) and README.md (tables). ``--short`` runs the same parts at tiny sizes in
seconds, also on a CPU: it shows that they work, but its figures have no meaning.
"""

import importlib.metadata
import json
import re
import shlex
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import ROOT, machine, versions
from gpu_jobs import LAST_WORDS, Processes
from gpu_page import page
from gpu_parts import PARTS, Bench, Skipped
from gpu_plan import short, whole

from jaxrl_fast.commands.tuning_cache import Device, this_device

RESULTS = Path(__file__).parent.parent / "results"
PACKAGES = re.compile(r"jax-cuda|jax-tpu|libtpu|nvidia-")
"""Prefixes of the names of packages on which an accelerator's speed depends."""
SYSTEM = (
    "nvidia-smi --query-gpu=name,driver_version,memory.total,power.limit,clocks.max.sm,clocks.max.mem --format=csv",
    "nvidia-smi topo -m",
)


def main(words: list[str]) -> int:
    """Measure, print and write; the exit code is 1 if a part failed."""
    is_short, given = read(words)
    device = this_device()
    if device.platform == "cpu" and not is_short:
        refuse(
            "JAX sees no accelerator here: write make gpu EXTRA=cuda13 (or cuda12, tpu) where there is one"
        )
    folder = Path(given.get("out", RESULTS / slug(device))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    began, document = time.time(), describe(device, words, is_short)
    with tempfile.TemporaryDirectory(prefix="jaxrl_fast-gpu-") as scratch, Processes() as processes:
        bench = Bench(
            device, short() if is_short else whole(device.number), processes, Path(scratch), {}
        )
        for name in given.get("parts", ",".join(PARTS)).split(","):
            document["parts"][name] = part = measure(bench, name)
            print(f"{name}: {part['status']} in {part['took_s']:.0f} s {part['why']}", flush=True)
            document["took_s"] = time.time() - began
            write(folder, document)
    print_closing(folder, device)
    return int(any(part["status"] == "failed" for part in document["parts"].values()))


def read(words: list[str]) -> tuple[bool, dict[str, str]]:
    """Return whether the short form is requested, and ``out`` and ``parts`` where they are given."""
    given = dict(word.split("=", 1) for word in words if "=" in word)
    unknown = [
        word
        for word in words
        if word != "--short" and word.partition("=")[0] not in ("out", "parts")
    ]
    if unknown:
        refuse(f"{unknown[0]} is unknown: write --short, out=FOLDER or parts={','.join(PARTS)}")
    if set(given.get("parts", "law").split(",")) - set(PARTS):
        refuse(f"parts={given['parts']}: write some of {','.join(PARTS)}")
    return "--short" in words, given


def measure(bench: Bench, name: str) -> dict[str, Any]:
    """Return a part's rows, or a line with the reason why there are none."""
    began = time.time()
    status, why, rows = "measured", "", {}
    try:
        rows = PARTS[name](bench)
    except Skipped as reason:
        status, why = "skipped", str(reason)
    except Exception as error:
        traceback.print_exc()
        status, why = "failed", " ".join(f"{type(error).__name__}: {error}".split())[:LAST_WORDS]
    errors = [f"{row}: {found['error']}" for row, found in rows.items() if "error" in found]
    if errors:
        status, why = "failed" if len(errors) == len(rows) else "measured", "; ".join(errors)
    return {"status": status, "why": why, "took_s": time.time() - began, "rows": rows}


def describe(device: Device, words: list[str], is_short: bool) -> dict[str, Any]:
    """Describe the machine."""
    packages = {
        d.name: d.version
        for d in importlib.metadata.distributions()
        if PACKAGES.match(d.name or "")
    }
    return {
        "device": device.kind,
        "platform": device.platform,
        "short": is_short,
        "number": device.number,
        "machine": machine(),
        "versions": {**versions()["ours"], **packages},
        "commit": commit(),
        "command": shlex.join(["python", "experiments/gpu/gpu.py", *words]),
        "date": time.strftime("%Y-%m-%d"),
        "system": "\n".join(filter(None, map(output, SYSTEM))),
        "parts": {},
    }


def slug(device: Device) -> str:
    """Return a card's name as a folder: nvidia-h100-80gb-hbm3."""
    return (
        "cpu"
        if device.platform == "cpu"
        else re.sub(r"[^a-z0-9]+", "-", device.kind.lower()).strip("-")
    )


def commit() -> str:
    """Return this tree's commit, and whether the tree is changed."""
    return (
        output("git rev-parse HEAD") + (", changed" if output("git status --porcelain") else "")
        or "unknown"
    )


def output(command: str) -> str:
    """Return a program's output; an empty string where it is missing or fails."""
    try:
        done = subprocess.run(
            shlex.split(command), cwd=ROOT, capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def write(folder: Path, document: dict[str, Any]) -> None:
    """Write all available figures and the page."""
    (folder / "gpu.json").write_text(json.dumps(document, indent=1) + "\n")
    targets = RESULTS / "targets.json"
    predicted = json.loads(targets.read_text()) if targets.exists() else {}
    (folder / "README.md").write_text(page(document, predicted))


def print_closing(folder: Path, device: Device) -> None:
    """Print the files to send, and the address."""
    print(f"written: {folder}/README.md, gpu.json")
    if device.platform != "cpu":
        print(
            f"Nothing was measured on a {device.kind} before. Please send this folder: open an issue of the project "
            f'with the title "Measured on {device.kind}" and attach both files, or send a change that adds '
            f"experiments/results/{slug(device)}/."
        )


def refuse(line: str) -> NoReturn:
    """Exit with a line that contains the correction."""
    print(f"gpu: error: {line}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
