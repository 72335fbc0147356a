"""The cost of an overlap in returns, and its gain in time: curves by steps and by wall-clock time.

``python experiments/bench/overlap.py`` on an otherwise idle machine: two environments, every
``overlap``, four seeds in one program, each with the placement that uses it. Written to
experiments/results/overlap.json and overlap.png.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import machine, versions

RESULTS = Path(__file__).parent.parent / "results"
JOBS = (("cartpole", "ppo"), ("pendulum", "sac"))
LAYOUTS = {
    "none": "fused",
    "sampling": "sampler_learner",
    "actor_critic": "actor_critic",
    "all": "actor_critic",
}
NUM_SEEDS = 4


def curve(env: str, algo: str, overlap: str) -> dict[str, Any]:
    """Train with tuned settings in a separate process; return every seed's returns by steps and
    seconds.
    """
    script = (
        "import json, sys; import jaxrl_fast as jf; from jaxrl_fast.commands import run_config\n"
        f"jf.setup(cpu_devices={1 if overlap == 'none' else 2})\n"
        f"run = run_config.compose(['env={env}', 'algo={algo}'])\n"
        f"env, algo = jf.make_env('{env}', num_envs=run.num_envs), run_config.make_algorithm(run)\n"
        f"result = jf.learn(env, algo, total_steps=run.total_steps, num_seeds={NUM_SEEDS}, overlap='{overlap}',\n"
        f"                  placement='{LAYOUTS[overlap]}', eval_every=run.total_steps // 20)\n"
        "rows = [row for row in result.history if row['kind'] == 'eval']\n"
        "print(json.dumps({'rows': rows, 'summary': {k: v for k, v in result.summary.items() if k != 'devices'}}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    return {
        "env": env,
        "algo": algo,
        "overlap": overlap,
        "placement": LAYOUTS[overlap],
        "num_seeds": NUM_SEEDS,
        "env_steps": [row["env_steps"] for row in found["rows"]],
        "wall_s": [row["wall_s"] for row in found["rows"]],
        "returns": [row["eval_return_seeds"] for row in found["rows"]],
        "summary": found["summary"],
    }


def draw(rows: list[dict[str, Any]]) -> None:
    """Plot a row of panels for each environment: against steps, and against seconds."""
    import matplotlib

    matplotlib.use("agg")
    import numpy as np
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(len(JOBS), 2, figsize=(11, 7.5), layout="constrained", sharey="row")
    for (env, algo), pair in zip(JOBS, axes, strict=True):
        for row in (r for r in rows if (r["env"], r["algo"]) == (env, algo)):
            returns = np.array(row["returns"])
            label = f"overlap={row['overlap']}, {row['placement']}"
            for plot, x in zip(pair, (row["env_steps"], row["wall_s"]), strict=True):
                plot.plot(x, returns.mean(axis=1), marker="o", markersize=3, label=label)
                plot.fill_between(
                    x, returns.min(axis=1), returns.max(axis=1), alpha=0.12, linewidth=0
                )
        pair[0].set(ylabel=f"{env}, {algo}: greedy return", xlabel="environment steps of each seed")
        pair[1].set(xlabel=f"seconds, with compilation, {NUM_SEEDS} seeds at once")
        pair[0].xaxis.set_major_formatter(matplotlib.ticker.EngFormatter())
        for plot in pair:
            plot.grid(alpha=0.3)
    axes[0, 0].legend(loc="lower right", frameon=False, fontsize="small")
    figure.suptitle(
        f"Cost and gain of overlap: mean of {NUM_SEEDS} seeds, range shaded ({machine()})",
        fontsize=11,
    )
    figure.savefig(RESULTS / "overlap.png", dpi=120)


def main() -> None:
    """Train everything, write and draw after each job."""
    rows: list[dict[str, Any]] = []
    for env, algo in JOBS:
        for overlap in LAYOUTS:
            rows.append(curve(env, algo, overlap))
            summary, place = rows[-1]["summary"], rows[-1]["placement"]
            print(
                f"{env:9} {algo} overlap={overlap:13} {place:16} return {summary['eval_return_mean']:8.1f} ± "
                f"{summary['eval_return_std']:6.1f} over seeds, {summary['wall_s']:6.1f} s, "
                f"{summary['sampling_hz']:9,.0f} steps/s, {summary['update_hz']:7,.0f} updates/s of "
                f"{summary['batch_size']}, update frame rate {summary['update_frame_hz']:10,.0f}",
                flush=True,
            )
            document = {"machine": machine(), "versions": versions(), "rows": rows}
            (RESULTS / "overlap.json").write_text(json.dumps(document, indent=1) + "\n")
    draw(rows)


if __name__ == "__main__":
    main()
