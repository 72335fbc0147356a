"""Which placement is fastest: the basis of ``placement=auto``, and how well sampling uses every
core.

``python experiments/bench/placements.py`` needs an otherwise idle machine and one XLA device per
core. It measures in one process, in turn, so that ratios compare neighbours in time: first sampling
alone at several widths on one device and on all, then the train step of each environment and
algorithm, with its tuned settings, under every placement.
"""

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import machine, versions

import jaxrl_fast as jf
from jaxrl_fast.assembly import build_graph
from jaxrl_fast.commands import run_config
from jaxrl_fast.commands.run_config import make_algorithm
from jaxrl_fast.learning.run_graph import GraphOptions
from jaxrl_fast.runtime.graph import Graph
from jaxrl_fast.runtime.placements import PLACEMENTS, data_parallel, fused
from jaxrl_fast.settings.machine import cpu_cores
from jaxrl_fast.tuning import trial
from jaxrl_fast.tuning.ceiling import environments_only

RESULT = Path(__file__).parent.parent / "results" / "placements.json"
REPEATS = 5
WIDTHS = (64, 256)
SAMPLING_STEPS = 16_384
RUNS = (
    ("halfcheetah", "ppo", 1),
    ("halfcheetah", "sac", 4),
    ("cartpole", "ppo", 16),
    ("pendulum", "sac", 64),
)
"""Environment, algorithm, and ticks in a repeat."""

Repeat = Callable[[], float]


def ready(
    graph: Graph, place: Any, ticks: int, hyper: Any, warm: int = 1, seeds: int = 1
) -> Repeat:
    """Return a compiled program that has run ``warm`` chunks; calling it returns the seconds of one
    more.
    """
    compiled = trial.compile_timed(
        graph, place(graph, jax.devices()), hyper, ticks=ticks, num_seeds=seeds
    )
    timed = trial.warm(compiled, (warm - 1) * ticks)
    return lambda: timed(1)[0]


def in_turn(repeats: dict[str, Repeat], steps: int) -> dict[str, Any]:
    """Measure the steps/s of each, and its speed relative to the first in the same round."""
    rounds = [{name: repeat() for name, repeat in repeats.items()} for _ in range(REPEATS)]
    first = next(iter(repeats))
    return {
        name: {
            "steps_per_s": steps / statistics.median(r[name] for r in rounds),
            "speed": statistics.median(r[first] / r[name] for r in rounds),
            "speed_least": min(r[first] / r[name] for r in rounds),
            "speed_most": max(r[first] / r[name] for r in rounds),
        }
        for name in repeats
    }


def sampling(name: str, num_envs: int) -> dict[str, Any]:
    """Measure the environments alone, on one device and on all."""
    length = SAMPLING_STEPS // num_envs
    graph = environments_only(jf.make_env(name, num_envs=num_envs), length)
    places = {"one device": fused, "all devices": data_parallel}
    return in_turn(
        {label: ready(graph, place, 1, ()) for label, place in places.items()}, num_envs * length
    )


def training(name: str, algo: str, ticks: int, seeds: int = 1) -> dict[str, Any]:
    """Measure the whole train step with its tuned settings under every placement."""
    run = run_config.compose([f"env={name}", f"algo={algo}"])
    env, algorithm = jf.make_env(name, num_envs=run.num_envs), make_algorithm(run)
    graph, agent = build_graph(env, algorithm, GraphOptions(total_steps=run.total_steps))
    warm = 1 + -(-agent.warmup_ticks // ticks)
    repeats = {
        label: ready(graph, place, ticks, algorithm.hyper, warm, seeds)
        for label, place in PLACEMENTS.items()
    }
    return in_turn(repeats, ticks * seeds * env.num_envs * agent.rollout_length)


def main() -> None:
    """Measure everything, print tables, write the JSON."""
    jf.setup(cpu_devices=cpu_cores())
    result: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(),
        "repeats": REPEATS,
        "rows": {},
    }
    jobs: dict[str, Callable[[], dict[str, Any]]] = {
        **{
            f"sampling halfcheetah, {w} environments": lambda w=w: sampling("halfcheetah", w)
            for w in WIDTHS
        },
        **{
            f"{algo} {name}": lambda job=(name, algo, ticks): training(*job)
            for name, algo, ticks in RUNS
        },
        "ppo cartpole, 8 seeds": lambda: training("cartpole", "ppo", 4, seeds=8),
        "sac pendulum, 8 seeds": lambda: training("pendulum", "sac", 16, seeds=8),
    }
    for label, job in jobs.items():
        result["rows"][label] = row = job()
        for name, figures in row.items():
            spread = f"[{figures['speed_least']:.2f}, {figures['speed_most']:.2f}]"
            print(
                f"{label:38} {name:18} {figures['steps_per_s']:10,.0f} steps/s {figures['speed']:5.2f} × {spread}",
                flush=True,
            )
        RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
