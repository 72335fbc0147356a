"""The tables of a report: where a run's time went, its settings, its machine and its commands."""

import base64
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl_fast.inspection.report_curves import wall_s
from jaxrl_fast.runs.reading import RunView


def describe_details(view: RunView) -> dict[str, Any]:
    """What the report of a single run shows beside its curves."""
    return {
        "time": time_spent(view),
        "settings": settings_table(view),
        "machine": machine_table(view),
        "lines": view.status.get("lines", []),
        "commands": commands(view),
        "graph": _as_uri(view.path / "graph.svg", "image/svg+xml"),
        "animation": _as_uri(view.path / "policy.gif", "image/gif"),
        "episode": _read_text(view.path / "policy.html"),
    }


def time_spent(view: RunView) -> list[dict[str, Any]]:
    """Where a run's wall-clock seconds went. Sampling and learning are one program, so they are one entry but for the
    chunks that only fill a replay buffer."""
    whole = wall_s(view)
    if whole is None:
        return []
    compile_s = view.summary.get("compile_s") or view.status.get("compile_s") or 0.0
    first_s = view.summary.get("time_to_first_step_s") or compile_s
    filling_s, training_s = chunk_seconds(view)
    waited_s = view.summary.get("eval_wait_s") or 0.0
    parts = [
        ("start", max(0.0, first_s - compile_s)),
        ("compile", compile_s),
        ("sample only (fills the replay buffer)", filling_s),
        ("sample and learn", training_s),
        ("wait for an evaluation", waited_s),
    ]
    beside_s = max(0.0, view.summary.get("eval_s", 0.0) - waited_s)
    rest = whole - sum(seconds for _, seconds in parts)
    parts.append(("between chunks: checkpoints, tables, pages", max(0.0, rest)))
    found = [{"label": label, "seconds": seconds} for label, seconds in parts if seconds > 0]
    aside = {"label": "evaluate, beside the others", "seconds": beside_s, "beside": True}
    return [*found, aside] if beside_s else found


def chunk_seconds(view: RunView) -> tuple[float, float]:
    """Seconds in chunks without and with gradient updates."""
    table = view.metrics
    if not {"env_steps", "sampling_hz", "updates"} <= set(table) or not len(table["env_steps"]):
        return 0.0, 0.0
    steps = np.diff(table["env_steps"], prepend=0.0) * (view.status.get("num_seeds") or 1)
    seconds = np.nan_to_num(steps / table["sampling_hz"])
    learns = np.diff(table["updates"], prepend=0.0) > 0
    return float(seconds[~learns].sum()), float(seconds[learns].sum())


def settings_table(view: RunView) -> list[list[str]]:
    """Rows of key, value, and where the value comes from."""
    sources, chosen = view.status.get("sources", {}), view.status.get("chosen")
    given = {"placement": chosen, "devices": chosen} if chosen else {}
    origin = {**given, **sources}
    return [[key, written(value), origin.get(key, "default")] for key, value in flat(view.settings).items()]


def differing_settings(views: Sequence[RunView]) -> list[list[str]]:
    """Rows of key and each run's value, of the settings that are not the same in all."""
    tables = [{key: written(value) for key, value in flat(view.settings).items()} for view in views]
    keys = list(dict.fromkeys(key for table in tables for key in table))
    rows = [[key, *(table.get(key, "–") for table in tables)] for key in keys]
    return [row for row in rows if len(set(row[1:])) > 1]


def machine_table(view: RunView) -> list[list[str]]:
    """Rows of what computed the run, and with which versions."""
    machine, versions = view.status.get("machine", {}), view.status.get("versions", {})
    rows = [
        ["processor", f"{machine['processor']}, {machine['cores']} cores"] if machine else None,
        ["devices", ", ".join(view.summary.get("devices") or machine.get("devices", []))],
        ["system", f"{view.status['system']}, {view.status['host']}"] if "system" in view.status else None,
        *([name, str(version)] for name, version in versions.items()),
    ]
    return [row for row in rows if row and row[1]]


def commands(view: RunView) -> list[list[str]]:
    """Rows of a purpose and the line to type for it."""
    folder = str(view.path)
    rows: list[tuple[str, ...]] = [("repeat", "train", f"config={folder}/config.yaml")]
    if (view.path / "checkpoints").is_dir():
        rows.append(("resume", "train", f"resume={folder}"))
    if (view.path / "policy").is_dir():
        rows += [("evaluate", "evaluate", folder, "episodes=100"), ("export", "export", folder)]
    return [[what, shlex.join(["python", "-m", f"jaxrl_fast.{command}", *words])] for what, command, *words in rows]


def flat(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Leaves by dotted key; the name of a section has the section's own key."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            leaves |= flat(value, f"{prefix}{key}.")
        else:
            leaves[f"{prefix}{key}".removesuffix(".name")] = value
    return leaves


def written(value: Any) -> str:
    """A setting as it is typed."""
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    return str(value).replace(" ", "") if isinstance(value, list) else str(value)


def _as_uri(file: Path, kind: str) -> str | None:
    with suppress(OSError):
        return f"data:{kind};base64,{base64.b64encode(file.read_bytes()).decode()}"
    return None


def _read_text(file: Path) -> str | None:
    with suppress(OSError, ValueError):
        return file.read_text("utf-8")
    return None
