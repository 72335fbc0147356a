"""Whether the kernels of a physics substep on a GPU come from brax or from the wrappers around it.

``python experiments/gpu/physics_kernels.py`` (after `make targets`) compiles PPO for one H100 on
two brax environments and reads, for every kernel of the innermost loop of the step, the Python
frames that it came from. The result is written to experiments/results/physics_kernels.json;
`experiments/gpu/targets.py` prints it on its page.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

RESULT = Path(__file__).parent.parent / "results" / "physics_kernels.json"
ENVIRONMENTS = ("halfcheetah", "ant")
TABLES = {
    "files": re.compile(r'^(\d+) "(.*)"$'),
    "locations": re.compile(r"^(\d+) \{file_name_id=(\d+)"),
    "frames": re.compile(r"^(\d+) \{file_location_id=(\d+)(?: parent_frame_id=(\d+))?\}"),
}
HEADS = {
    "FileNames": "files",
    "FunctionNames": "",
    "FileLocations": "locations",
    "StackFrames": "frames",
}
FRAME = re.compile(r"stack_frame_id=(\d+)")


def read_tables(text: str) -> dict[str, dict[int, tuple[str, ...]]]:
    """Read the tables of Python frames at the head of a program's text."""
    found: dict[str, dict[int, tuple[str, ...]]] = {name: {} for name in TABLES}
    now = None
    for line in text.splitlines():
        now = HEADS.get(line, now)
        row = TABLES[now].match(line) if now else None
        if row and now:
            found[now][int(row[1])] = row.groups()[1:]
        elif line.startswith(("%", "ENTRY")):
            break
    return found


def files_of(tables: dict[str, dict[int, tuple[str, ...]]], frame: int) -> list[str]:
    """Return the files of a frame and of its callers, the innermost first."""
    files = []
    while frame in tables["frames"]:
        location, parent = tables["frames"][frame]
        files.append(tables["files"][int(tables["locations"][int(location)][0])][0])
        frame = int(parent or 0) - 1  # printed one higher, so that 1 is no frame
    return files


def whose(files: list[str]) -> str:
    """Return the owner of a kernel: the first of brax and this project among its frames."""
    for file in files:
        if "/brax/" in file:
            return "brax"
        if "/jaxrl_fast/" in file or "/envs/" in file:
            return "this project"
    return "unknown"


def count(env: str, dump: Path) -> dict[str, object]:
    """Count kernels of a substep by owner; runs where the compiler is available."""
    from jaxrl_fast.commands import run_config
    from jaxrl_fast.targets.accelerators import parse_target
    from jaxrl_fast.targets.compiling import compile_for
    from jaxrl_fast.targets.program_cost import scope_of, starts_something
    from jaxrl_fast.views.hlo import read_text

    run = run_config.compose(
        [f"env={env}", "algo=ppo", "tuned=false", "num_envs=2048", "total_steps=6_553_600"]
    )
    found = compile_for(run, parse_target("h100"), dump)
    source = found.compiled.as_text()
    text, tables = read_text(source), read_tables(source)
    often = found.ticks_per_chunk * found.rounds.steps
    rows = []
    for name, runs in text.runs.items():
        own = [i for i in text.computations[name] if starts_something(i)]
        if not any(scope_of(i, ("sample",)) for i in own):
            continue
        owners = Counter(
            whose(files_of(tables, int(m[1]))) if (m := FRAME.search(i.notes)) else "unknown"
            for i in own
        )
        if runs > often and runs % often == 0:
            rows.append(
                {"substeps": int(runs / often), "kernels": len(own), "by_owner": dict(owners)}
            )
    return {
        "env": env,
        "loops_within_a_step": rows,
        "kernels_a_step": found.costs[0].kernels_of["sample"] / often,
    }


def main() -> None:
    """Count for each environment in a process that has the compiler."""
    from jaxrl_fast.targets.accelerators import compile_only, python_for

    results = []
    for env in ENVIRONMENTS:
        with tempfile.TemporaryDirectory() as dump:
            command = [str(python_for("cuda")), __file__, env, dump]
            done = subprocess.run(
                command, env=compile_only(Path(dump)), stdout=subprocess.PIPE, text=True, check=True
            )
        results.append(json.loads(done.stdout.splitlines()[-1]))
        print(json.dumps(results[-1]), flush=True)
    RESULT.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(count(sys.argv[1], Path(sys.argv[2]))))
    else:
        main()
