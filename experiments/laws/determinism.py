"""Does the same ``config.yaml`` give the same numbers every time, bit for bit?

``python experiments/laws/determinism.py [repeats [job ...]]`` trains each job once, and then its
``config.yaml`` ``repeats`` times (default 20) in new processes. ``metrics.csv`` (without rates and
times) and the parameters must be equal to the first. The result is written to
experiments/results/determinism.json.
"""

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import machine, versions
from kill import JOBS, RESULTS, run, without_times

MORE = {
    "ppo halfcheetah on two devices": (
        "env=halfcheetah",
        "algo=ppo",
        "total_steps=20_000",
        "placement=sharded_sampling",
        "devices=2",
        "eval.episodes=2",
        "num_envs=64",
        "algo.rollout_length=32",
    ),
    "two seeds of sac pendulum on two devices": (*JOBS["sac pendulum"], "num_seeds=2", "devices=2"),
}


def digest(folder: Path) -> str:
    """Compute a digest of all numbers of a run, without times."""
    tables = [without_times(folder, name) for name in ("metrics.csv", "evals.csv")]
    params = (folder / "policy" / "params.msgpack").read_bytes()
    return hashlib.sha256(json.dumps(tables).encode() + params).hexdigest()


def repeat(words: tuple[str, ...], repeats: int, folder: Path) -> list[str]:
    """Return the digests of a job and of its repetitions from its ``config.yaml``."""
    run(*words, f"run_dir={folder / 'first'}")
    digests = [digest(folder / "first")]
    for number in range(repeats):
        run(f"config={folder / 'first' / 'config.yaml'}", f"run_dir={folder / str(number)}")
        digests.append(digest(folder / str(number)))
    return digests


def main(repeats: int, names: list[str]) -> None:
    """Run the jobs named, or all; results of the others stay in the file."""
    file, jobs = RESULTS / "determinism.json", {**JOBS, **MORE}
    result: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    result |= {
        "command": f"python experiments/laws/determinism.py {repeats}",
        "machine": machine(),
        "versions": versions(),
    }
    with tempfile.TemporaryDirectory() as folder:
        for name in names or jobs:
            digests = repeat(jobs[name], repeats, Path(folder) / name.replace(" ", "-"))
            equal = sum(digest == digests[0] for digest in digests[1:])
            result[name] = {"repeats": repeats, "equal": equal, "digest": digests[0]}
            print(name, result[name], flush=True)
            file.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20, sys.argv[2:])
