"""How the time of a row's training is spent: `profiling` of its two parts.

Environments and updates are traced separately, since a whole tick has more events than the
profiler's buffer holds. Their shares in training follow from their separate rates, which `run.py`
has measured. ``python experiments/bench/profile_rows.py`` profiles every row that `run.py` has
measured, and writes its results next to them.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from ours import ROWS
from report import write_report

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results" / "bench"
PARTS = {"environments alone": "env:profile", "updates alone": "update:profile"}


def main(names: list[str]) -> None:
    """Profile rows, each in a separate process, and write the report again."""
    for name in names or [name for name in ROWS if (RESULTS / f"{name}.json").exists()]:
        rate = json.loads((RESULTS / f"{name}.json").read_text())["rate"]
        parts = {part: profile_part(name, words) for part, words in PARTS.items()}
        per_unit = {part: 1 / rate[part]["median"] for part in parts}
        for part, result in parts.items():
            result["share_of_training"] = per_unit[part] / sum(per_unit.values())
        (RESULTS / f"profile_{name}.json").write_text(json.dumps(parts, indent=1) + "\n")
    print(write_report(RESULTS))


def profile_part(row: str, what: str) -> dict[str, Any]:
    """Return one part's profile, from a separate process."""
    command = [sys.executable, "ours.py", row, what]
    answer = subprocess.run(command, cwd=HERE, stdout=subprocess.PIPE, text=True, check=True).stdout
    return json.loads(next(line for line in answer.splitlines() if line.startswith("{")))


if __name__ == "__main__":
    main(sys.argv[1:])
