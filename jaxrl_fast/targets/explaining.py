"""``explain ... target=h100:8``: finds the compiler, and has it compile and explain, once or for several widths."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxrl_fast.inspection.labels import byte_size
from jaxrl_fast.inspection.tables import new_console, new_table
from jaxrl_fast.runs.progress import si
from jaxrl_fast.settings.grammar import read_word
from jaxrl_fast.settings.schema import ConfigError
from jaxrl_fast.targets.compilers import compile_only, python_for
from jaxrl_fast.targets.target import parse_target

DUMP = "JAXRL_FAST_TARGET_DUMP"
"""Set in the process that has the compiler: where XLA writes."""


def dump_folder() -> Path | None:
    """Where XLA writes in this process; None in one that was not started to compile for a target."""
    folder = os.environ.get(DUMP)
    return Path(folder) if folder else None


def explain_elsewhere(words: Sequence[str], target: str, folder: Path) -> int:
    """Explain in a process that has the compiler; ``num_envs=64,1024`` once for each width, and then by width.

    Raises:
        ConfigError: the target is unknown, or there is no compiler for it.
    """
    parse_target(target)
    widths = asked_widths(words)
    if len(widths) < 2:
        return run_once([*words, f"target={target}", f"out={folder}"], target)
    rest = [word for word in words if not _is_width(word)]
    found = []
    for width in widths:
        own = folder / f"num_envs_{width}"
        status = run_once([*rest, f"num_envs={width}", f"target={target}", f"out={own}"], target, quiet=True)
        if status:
            return status
        found.append((width, json.loads((own / "graph.json").read_text())["target"]))
        print(f"num_envs={width}: compiled in {found[-1][1]['compile_s']:.0f} s", flush=True)
    print_widths(found)
    print(f"written: {folder}/num_envs_*/graph.json")
    return 0


def asked_widths(words: Sequence[str]) -> list[int]:
    """The numbers of environments that ``num_envs`` lists.

    Raises:
        ConfigError: one is no number.
    """
    given = [word.partition("=")[2] if "," in word else str(read_word(word)[1]) for word in words if _is_width(word)]
    parts = given[-1].split(",") if given else []
    if len(parts) > 1 and not all(part.isdecimal() for part in parts):
        raise ConfigError(f"num_envs={given[-1]}: write numbers with commas between them, as in num_envs=64,1024")
    return [int(part) for part in parts] if len(parts) > 1 else []


def run_once(words: Sequence[str], target: str, *, quiet: bool = False) -> int:
    """The command in the process that has the compiler; its exit status."""
    python = python_for(parse_target(target).chip.platform)
    with tempfile.TemporaryDirectory(prefix="jaxrl_fast-target-") as dump:
        command = [str(python), "-m", "jaxrl_fast.explain", *words]
        done = subprocess.run(
            command,
            env={**compile_only(Path(dump)), DUMP: dump},
            stdout=subprocess.DEVNULL if quiet else None,
            stderr=subprocess.PIPE,
            text=True,
        )
    lines = [line for line in done.stderr.splitlines() if not is_compilers_talk(line)]
    if lines:
        print("\n".join(lines), file=sys.stderr)
    return done.returncode


def is_compilers_talk(line: str) -> bool:
    """Whether a line of the other process is XLA's logging, such as ``W1123 08:42:03.615707   20162 sort.cc:929]``."""
    head, bracket, _ = line.partition("]")
    return bool(bracket) and head[:1] in "IWE" and head[1:5].isdecimal() and ".cc:" in head


def print_widths(found: Sequence[tuple[int, dict[str, Any]]]) -> None:
    """A row a width."""
    columns = (">steps a tick", ">kernels a tick", ">ms at 1 µs", ">ms at 4 µs", ">steps/s", ">memory")
    table = new_table("by width", *columns)
    for width, facts in found:
        us = dict(zip(("roofline", *facts["floors_us"]), facts["tick_us"], strict=True))
        rates = sorted(facts["rounds"]["env_steps"] / us[floor] * 1e6 for floor in (1.0, 4.0))
        table.add_row(
            f"num_envs={width}",
            f"{facts['rounds']['env_steps']:,}",
            f"{sum(program['kernels'] for program in facts['programs']):,.0f}",
            f"{us[1.0] / 1e3:.3g}",
            f"{us[4.0] / 1e3:.3g}",
            " to ".join(map(si, rates)),
            byte_size(max(program["memory_bytes"] or 0 for program in facts["programs"])),
        )
    new_console().print(table)


def _is_width(word: str) -> bool:
    return word.partition("=")[0] == "num_envs"
