"""What a figure was measured on, for the scripts of all folders of ``experiments/``, which put this one on `sys.path`.

It puts the repository there, whose ``jaxrl_fast`` is then imported.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from jaxrl_fast.runtime.xla_options import first_processor  # noqa: E402
from jaxrl_fast.settings.machine import cpu_cores, processor  # noqa: E402

PACKAGES = (
    "jax",
    "jaxlib",
    "flax",
    "brax",
    "gymnax",
    "rejax",
    "gymnasium",
    "jaxmarl",
    "mujoco",
    "ale-py",
    "envpool",
    "ray",
    "sbx-rl",
    "stable-baselines3",
    "torch",
)


def machine() -> str:
    """The processor, its number of cores, and how many of them this process may use where these are fewer."""
    allowed = f"{cpu_cores()} of " if cpu_cores() != os.cpu_count() else ""
    return f"{allowed}{os.cpu_count()} cores, {processor()}{_generation()}"


def _generation() -> str:
    """On Linux, family and model: a virtual machine may call processors of several generations by one name."""
    said = first_processor()
    if not {"cpu family", "model"} <= set(said):
        return ""
    return f" (family {said['cpu family']}, model {said['model']})"


def commit() -> str:
    """The commit that was measured, and whether the tree had other changes."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    changed = ", changed" if git("status", "--porcelain", "--untracked-files=no", "--", "*.py", "*.yaml") else ""
    return (git("rev-parse", "HEAD") or "unknown") + changed


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
