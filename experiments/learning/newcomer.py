"""Does a return depend on the seed, the processor or the code? Seeds 0 to 4 of SAC on halfcheetah
on one machine.

The code is an earlier commit's and this tree's, with the settings that were tuned at the earlier
commit.

``python experiments/learning/newcomer.py [seeds...]`` (ten minutes a seed for both, on one core)
writes experiments/results/newcomer.json; results in the file are not repeated.
"""

import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import ROOT, commit, machine, versions

RESULT = Path(__file__).parent.parent / "results" / "newcomer.json"
EARLIER = "b035f2d"
"""From the first learning table: three of its seeds had 2,794 to 3,415 on one machine, later code's
seed 0 2,302 on another.
"""
STEPS, EVERY, SEEDS = 40_000, 8_000, 5
SETTINGS = (
    "env=halfcheetah algo=sac num_envs=64 algo.learning_rate=1e-3 algo.temperature_learning_rate=1e-3 "
    "algo.discount=0.98 algo.tau=0.01 algo.n_step=3 algo.updates_per_tick=32 algo.batch_size=256 "
    "algo.buffer_size=204_800 algo.warmup_steps=5_000 algo.critic_layer_norm=true algo.policy_hidden=[256,256] "
    "algo.critic_hidden=[256,256]"
)
TODAY = "algo.initial_temperature=1 eval.beside=false"
"""Words that the earlier commit does not support; it has these values."""


def run(tree: Path, words: str, seed: int, folder: Path) -> dict[str, Any]:
    """Return the mean greedy return at every evaluation, with the code of ``tree``."""
    asked = f"{SETTINGS} {words} total_steps={STEPS} eval.every={EVERY} seed={seed} tuned=false run_dir={folder}"
    command = [sys.executable, "-m", "jaxrl_fast.train", *asked.split()]
    begin = time.perf_counter()
    environment = {**os.environ, "JAXRL_FAST_CACHE": str(folder.parent / "cache")}
    subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.DEVNULL, check=True)
    returns = defaultdict(list)
    with (folder / "evals.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            returns[int(row["env_steps"])].append(float(row["return"]))
    curve = [(steps, sum(values) / len(values)) for steps, values in sorted(returns.items())]
    return {
        "seed": seed,
        "curve": curve,
        "wall_s": time.perf_counter() - begin,
        "command": asked,
        "machine": machine(),
    }


def at_end(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Summarize the last evaluations of all seeds."""
    last = [done["curve"][-1][1] for done in runs]
    return {"mean": sum(last) / len(last), "least": min(last), "most": max(last)} if last else {}


def main(words: list[str]) -> None:
    """Make the missing runs, and print the table."""
    document = (
        json.loads(RESULT.read_text())
        if RESULT.exists()
        else {"steps": STEPS, "runs": {EARLIER: [], "today": []}}
    )
    with tempfile.TemporaryDirectory() as scratch:
        earlier = Path(scratch) / "earlier"
        subprocess.run(
            ["git", "worktree", "add", "--detach", str(earlier), EARLIER], cwd=ROOT, check=True
        )
        try:
            for seed in map(int, words or range(SEEDS)):
                for name, tree, more in ((EARLIER, earlier, ""), ("today", ROOT, TODAY)):
                    document = json.loads(RESULT.read_text()) if RESULT.exists() else document
                    if any(done["seed"] == seed for done in document["runs"][name]):
                        continue
                    found = run(tree, more, seed, Path(scratch) / f"{name}-{seed}")
                    found |= {
                        "versions": versions(),
                        "commit": EARLIER if tree == earlier else commit(),
                    }
                    document["runs"][name].append(found)
                    document["at_end"] = {
                        key: at_end(runs) for key, runs in document["runs"].items()
                    }
                    RESULT.write_text(json.dumps(document, indent=1) + "\n")
                    print(
                        name,
                        seed,
                        [(steps, round(value)) for steps, value in found["curve"]],
                        flush=True,
                    )
        finally:
            subprocess.run(
                ["git", "worktree", "remove", "--force", str(earlier)], cwd=ROOT, check=True
            )


if __name__ == "__main__":
    main(sys.argv[1:])
