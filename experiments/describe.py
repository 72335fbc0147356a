"""Description of the machine and versions of a measurement, for the scripts of all folders of
``experiments/``.

Those scripts put this folder on `sys.path`. This module adds the repository, from which
``jaxrl_fast`` is then imported.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

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
    "jumanji",
    "playground",
    "craftax",
    "xminigrid",
    "pgx",
    "octax",
    "jaxtari",
    "navix",
    "mujoco",
    "ale-py",
    "envpool",
    "ray",
    "sbx-rl",
    "stable-baselines3",
    "torch",
)


def machine() -> str:
    """Describe the processor, its number of cores, and the number that this process may use where
    it is smaller.
    """
    allowed = f"{cpu_cores()} of " if cpu_cores() != os.cpu_count() else ""
    return f"{allowed}{os.cpu_count()} cores, {processor()}{_generation()}"


def machines_line(runs: Iterable[Mapping[str, Any]]) -> str:
    """Return the sentence of a page that lists the machines of its runs."""
    return f"Machines: {'; '.join(sorted({run['machine'] for run in runs}))}."


def _generation() -> str:
    """Return family and model on Linux, since virtual machines use one name for processors of
    several generations.
    """
    said = first_processor()
    if not {"cpu family", "model"} <= set(said):
        return ""
    return f" (family {said['cpu family']}, model {said['model']})"


def commit() -> str:
    """Return the measured commit, and whether the tree had other changes."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True
        ).stdout.strip()

    changed = (
        ", changed"
        if git("status", "--porcelain", "--untracked-files=no", "--", "*.py", "*.yaml")
        else ""
    )
    return (git("rev-parse", "HEAD") or "unknown") + changed


def versions(*others: Path) -> dict[str, dict[str, str]]:
    """Return versions of Python and the relevant packages, here and in other environments (paths of
    their Pythons).
    """
    script = (
        "import importlib.metadata as m, json, platform\n"
        "have = {d.name.lower(): d.version for d in m.distributions()}\n"
        f"have = {{p: have[p] for p in {PACKAGES} if p in have}}\n"
        "print(json.dumps({'python': platform.python_version(), **have}))"
    )
    found = {}
    for label, python in (("ours", sys.executable), *(("peers", str(other)) for other in others)):
        found[label] = json.loads(
            subprocess.run(
                [python, "-c", script], capture_output=True, text=True, check=True
            ).stdout
        )
    return found
