"""What a figure was measured on."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

PACKAGES = (
    "jax", "jaxlib", "flax", "brax", "gymnax", "rejax", "gymnasium", "mujoco", "ale-py", "envpool", "ray", "sbx-rl",
    "stable-baselines3", "torch",
)  # fmt: skip


def machine() -> str:
    """The processor and its number of cores."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        name = models[0] if models else name
    return f"{os.cpu_count()} cores, {name}"


def versions(*others: Path) -> dict[str, dict[str, str]]:
    """Versions of Python and the packages that matter, here and in other environments (paths of their Pythons)."""
    script = (
        "import importlib.metadata as m, json, platform\n"
        "known = {d.name.lower(): d.version for d in m.distributions()}\n"
        f"known = {{p: known[p] for p in {PACKAGES} if p in known}}\n"
        "print(json.dumps({'python': platform.python_version(), **known}))"
    )
    found = {}
    for label, python in (("ours", sys.executable), *(("peers", str(other)) for other in others)):
        found[label] = json.loads(
            subprocess.run([python, "-c", script], capture_output=True, text=True, check=True).stdout
        )
    return found
