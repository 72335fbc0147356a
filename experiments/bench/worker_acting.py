"""PPO in host environments: ours with workers that act and with central inference, Stable-Baselines3 and SBX, in turn.

``BENCH_PEERS=<python with stable_baselines3 and sbx> python experiments/bench/worker_acting.py [CartPole-v1 ...]``

All sides train with 16 environments x 2048 steps, 10 epochs, minibatches of 64 and networks of 64 x 64 units. A rate is
of a rollout and its updates, after two that warm up. Every contender is a new process. Results are added to
experiments/results/bench/worker_acting.json; run it on an otherwise idle machine.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
RESULT = HERE.parent / "results" / "bench" / "worker_acting.json"
PAGE = RESULT.with_suffix(".md")
PEERS = os.environ.get("BENCH_PEERS", str(HERE.parent.parent / ".venv-peers-host" / "bin" / "python"))
NUM_ENVS, LENGTH, EPOCHS, MINIBATCH = 16, 2048, 10, 64
STEPS = NUM_ENVS * LENGTH
WARM, REPEATS = 2, 3
SIDES = {"ours, workers act": "worker", "ours, central": "host", "SBX": "sbx", "Stable-Baselines3": "sb3"}


def ours(bridge: str, id: str) -> float:
    """Return the seconds of a rollout and its updates."""
    import jaxrl_fast as jf

    jf.setup(cpu_devices=1)
    env = jf.make_env("gymnasium", id=id, num_envs=NUM_ENVS, pool={"bridge": bridge})
    sizes = dict(rollout_length=LENGTH, num_epochs=EPOCHS, num_minibatches=STEPS // MINIBATCH)
    algorithm = jf.ppo(policy_hidden=(64, 64), value_hidden=(64, 64), **sizes)
    ends: dict[str, list[float]] = {"train": [], "eval": []}

    def note(row: dict[str, Any]) -> None:
        ends.setdefault(row["kind"], []).append(time.perf_counter())

    total = (WARM + 1) * STEPS
    how: dict[str, Any] = dict(eval_every=STEPS, eval_episodes=1, eval_beside=False)
    jf.learn(env, algorithm, total_steps=total, on_metrics=note, **how)
    env.close()
    return ends["train"][-1] - ends["eval"][-2]


def peer(library: str, id: str) -> float:
    """Return the same of a rival."""
    from importlib import import_module

    from stable_baselines3.common.env_util import make_vec_env

    module = import_module({"sb3": "stable_baselines3", "sbx": "sbx"}[library])
    sizes = dict(n_steps=LENGTH, n_epochs=EPOCHS, batch_size=MINIBATCH)
    model = module.PPO("MlpPolicy", make_vec_env(id, n_envs=NUM_ENVS, seed=0), seed=0, verbose=0, **sizes)
    model.learn(STEPS)
    began = time.perf_counter()
    model.learn(STEPS, reset_num_timesteps=False)
    return time.perf_counter() - began


def measure(id: str) -> None:
    """Run all sides in turn, and store the seconds."""
    from describe import commit, machine, versions
    from run import once

    document = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    runs: dict[str, list[float]] = {name: [] for name in SIDES}
    for _ in range(REPEATS):
        for name, how in SIDES.items():
            python = sys.executable if name.startswith("ours") else PEERS
            runs[name].append(once(python, "worker_acting.py", how, id)["seconds"])
            print(id, name, f"{STEPS / runs[name][-1]:.0f} steps/s", flush=True)
    document[id] = {"seconds": runs, "machine": machine(), "versions": versions(), "commit": commit()}
    RESULT.write_text(json.dumps(document, indent=1) + "\n")
    write_page(document)


def write_page(document: dict[str, Any]) -> None:
    """Write the table: steps/s, and ratios to the rivals within a turn."""
    import statistics

    lines = ["| environment | side | steps/s | by Stable-Baselines3 | by SBX |", "|---|---|---|---|---|"]
    for id, row in document.items():
        for name, seconds in row["seconds"].items():
            rates = [STEPS / s for s in seconds]
            cells = [id, name, f"{statistics.median(rates):,.0f} [{min(rates):,.0f}, {max(rates):,.0f}]"]
            for rival in ("Stable-Baselines3", "SBX"):
                ratios = [theirs / mine for mine, theirs in zip(seconds, row["seconds"][rival], strict=True)]
                cells.append(f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]")
            lines.append(f"| {' | '.join(cells)} |")
    PAGE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    what, *rest = sys.argv[1:] or ["CartPole-v1", "HalfCheetah-v5"]
    if what in ("worker", "host", "sbx", "sb3"):
        from worker import say

        say({"seconds": ours(what, *rest) if what in ("worker", "host") else peer(what, *rest)})
    else:
        for id in (what, *rest):
            measure(id)
