"""Is this tree as fast as another commit? Run it on an otherwise idle machine.

``python experiments/laws/same_speed.py COMMIT [ROW ...]`` trains each row at both commits, in
processes that take turns chunk by chunk (A B A B, the first of a round alternates), after a warm-up
each. Then it starts the command of the main job at both in turn, with programs on disk, and reads
the seconds to the first training step. It prints medians of the ratios of rounds, with the least
and the most: this tree's rate by the other's (start-up: seconds by seconds). The result is written
to experiments/results/same_speed.json.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import machine, versions
from same_numbers import git, unpack

SCRIPT = Path(__file__).with_name("same_speed_run.py")
RESULT = Path(__file__).parent.parent / "results" / "same_speed.json"
ROUNDS, ROUND_S, WARM_UP_CHUNKS = 5, 6.0, 2
ROWS: dict[str, list[str]] = {
    "ppo halfcheetah": ["env=halfcheetah", "algo=ppo"],
    "sac halfcheetah": ["env=halfcheetah", "algo=sac"],
    "ppo cartpole": ["env=cartpole", "algo=ppo"],
    "ppo HalfCheetah-v5, pool": [
        "env=gymnasium",
        "env.id=HalfCheetah-v5",
        "algo=ppo",
        "algo.rollout_length=128",
        "pool.workers=2",
    ],
}
START_UP = "start-up, sac halfcheetah"


class Trainer:
    """A process that trains with the code of one tree, a chunk at a time."""

    def __init__(self, tree: Path, words: list[str], cache: Path) -> None:
        variables = {
            **os.environ,
            "PYTHONPATH": str(tree),
            "JAXRL_FAST_CACHE": str(cache),
            "JAX_PLATFORMS": "cpu",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-P", SCRIPT, *words],
            env=variables,
            cwd=cache.parent,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.steps = self._read()["env_steps"]
        for _ in range(WARM_UP_CHUNKS):
            self.seconds = self._chunk()["seconds"]

    def rate(self) -> float:
        """Return environment steps a second over the chunks of a round."""
        begin, total = self.steps, 0.0
        while total < ROUND_S:
            total += self._chunk()["seconds"]
        return (self.steps - begin) / total

    def end(self) -> None:
        """Stop training."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _chunk(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        said = self._read()
        self.steps = said["env_steps"]
        return said

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError("training ended")


def measure_row(
    trees: tuple[Path, Path], words: list[str], folder: Path
) -> list[tuple[float, float]]:
    """Measure rates of the other tree and of this, a pair a round; half of the rounds have the
    other tree's process first and half this one's, since the first of two equal processes was up to
    2 % faster.
    """
    pairs = []
    for order in ((0, 1), (1, 0)):
        trainers = {i: Trainer(trees[i], words, folder / f"cache{i}") for i in order}
        for number in range(ROUNDS):
            found = {i: trainers[i].rate() for i in ((0, 1) if number % 2 == 0 else (1, 0))}
            pairs.append((found[0], found[1]))
        for trainer in trainers.values():
            trainer.end()
    return pairs


def measure_start_up(trees: tuple[Path, Path], folder: Path) -> list[tuple[float, float]]:
    """Measure seconds from the command to the first training step, programs on disk, a pair a
    round; the first is dropped.
    """
    pairs = []
    for number in range(ROUNDS + 1):
        found = {}
        for i in (0, 1) if number % 2 == 0 else (1, 0):
            run_dir = folder / f"start{number}-{i}"
            variables = {
                **os.environ,
                "PYTHONPATH": str(trees[i]),
                "JAXRL_FAST_CACHE": str(folder / f"starts{i}"),
            }
            words = [
                "env=halfcheetah",
                "total_steps=64",
                "eval.episodes=1",
                "checkpoint.keep=0",
                f"run_dir={run_dir}",
            ]
            subprocess.run(
                [sys.executable, "-P", "-m", "jaxrl_fast.train", *words],
                env=variables,
                cwd=folder,
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            found[i] = json.loads((run_dir / "summary.json").read_text())["time_to_first_step_s"]
        pairs.append((found[0], found[1]))
    return pairs[1:]


def summarize(name: str, pairs: list[tuple[float, float]]) -> dict[str, Any]:
    """Median, least and most of the ratios, and the figures themselves."""
    ratios = sorted(own / other for other, own in pairs)
    print(
        f"{name:28} {statistics.median(ratios):.3f} [{ratios[0]:.3f}, {ratios[-1]:.3f}]", flush=True
    )
    return {
        "ratio": statistics.median(ratios),
        "least": ratios[0],
        "most": ratios[-1],
        "pairs": pairs,
    }


def main(commit: str, names: list[str]) -> None:
    """Measure the rows, print and write."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch).resolve()
        trees = unpack(commit, folder / "other"), unpack("HEAD", folder / "own")
        commits = {"other": git("rev-parse", commit), "this": git("rev-parse", "HEAD")}
        for number, name in enumerate(names or [*ROWS, START_UP]):
            place = folder / str(number)
            place.mkdir()
            pairs = (
                measure_start_up(trees, place)
                if name == START_UP
                else measure_row(trees, ROWS[name], place)
            )
            keep(commits, name, summarize(name, pairs))


def keep(commits: dict[str, str], name: str, row: dict[str, Any]) -> None:
    """Write a row into the file; other rows of the same commits stay."""
    known = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    before = known["rows"] if known.get("commits") == commits else {}
    document = {
        "commits": commits,
        "machine": machine(),
        "versions": versions(),
        "rows": before | {name: row},
    }
    RESULT.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
