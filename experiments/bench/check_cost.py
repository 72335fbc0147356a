"""The cost of checking for numbers that are not finite, and of a checkpoint.

``python experiments/bench/check_cost.py [repeats]`` measures chunks of training with and without
the checks in turn (A B A B). For the tuned SAC on halfcheetah, it also measures for how long a
checkpoint blocks training (the copy) and for how long it is written in the background. The result
is written to experiments/results/check_cost.json.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import machine, versions

import jaxrl_fast as jf
from jaxrl_fast import envs
from jaxrl_fast.assembly import build_graph
from jaxrl_fast.commands import run_config
from jaxrl_fast.commands.run_config import make_algorithm
from jaxrl_fast.learning import rollout, run_graph
from jaxrl_fast.learning.run_graph import GraphOptions
from jaxrl_fast.runtime import program as programs
from jaxrl_fast.runtime.placements import fused
from jaxrl_fast.training import checkpoints

RESULTS = Path(__file__).resolve().parent.parent / "results"
JOBS = {
    "sac halfcheetah": (["env=halfcheetah", "algo=sac"], 25),
    "ppo cartpole": (["env=cartpole", "algo=ppo"], 40),
}
"""Words of the command, and ticks in a chunk."""


def prepare(
    words: list[str], ticks: int, *, checked: bool
) -> tuple[Callable[[], float], list[Any]]:
    """Return a warm program and a list with its state; calling the program runs a chunk and returns
    its seconds.
    """
    run = run_config.compose(words)
    env = jf.vectorize(envs.make(run.env, **run.env_options), num_envs=run.num_envs)
    algorithm = make_algorithm(run)
    without = [
        mock.patch.object(run_graph, "_norm", lambda params: jnp.float32(0.0)),
        mock.patch.object(rollout, "_first_nonfinite", lambda transitions: jnp.int32(-1)),
    ]
    with ExitStack() as stack:
        for patch in [] if checked else without:
            stack.enter_context(patch)
        graph, agent = build_graph(env, algorithm, GraphOptions(total_steps=run.total_steps))
        program = programs.compile(graph, fused(graph, jax.devices()), ticks)
        init, chunk = program.ready(jax.random.split(jax.random.key(0), 1), algorithm.hyper)
    state = [init(jax.random.split(jax.random.key(0), 1), algorithm.hyper)]

    def measure() -> float:
        begin = time.perf_counter()
        state[0], metrics = chunk(state[0])
        jax.block_until_ready((state[0], metrics))
        return time.perf_counter() - begin

    for _ in range(2 + agent.warmup_ticks // ticks):
        measure()
    return measure, state


def spread(values: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, median, high = statistics.quantiles(values, n=4)
    return {"median": median, "lower quartile": low, "upper quartile": high}


def checkpoint_cost(state: Any, repeats: int) -> dict[str, Any]:
    """Return the seconds of the copy, for which training waits, and of the write, for which it does
    not.
    """
    copies, writes, refills = [], [], ["experience"]
    content = {"settings": {}, "progress": {}, "score": None, "refills": refills, "left_out": False}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(repeats):
            begin = time.perf_counter()
            arrays = checkpoints.snapshot(state, refills)
            copied = time.perf_counter()
            checkpoints.write(Path(folder), number, arrays, content)
            copies.append(copied - begin)
            writes.append(time.perf_counter() - copied)
    return {
        "bytes": sum(checkpoints.sizes(state, refills)),
        "copy_s": spread(copies),
        "write_s": spread(writes),
    }


def main(repeats: int) -> None:
    """Run all jobs."""
    jf.setup(cpu_devices=1)
    result: dict[str, Any] = {
        "command": f"python experiments/bench/check_cost.py {repeats}",
        "machine": machine(),
    }
    result["versions"] = versions()
    for name, (words, ticks) in JOBS.items():
        (checked, state), (bare, _) = (
            prepare(words, ticks, checked=checked) for checked in (True, False)
        )
        pairs = [(checked(), bare()) for _ in range(repeats)]
        result[name] = {
            "cost of the checks": spread([a / b - 1 for a, b in pairs]),
            "pairs_s": pairs,
        }
        print(name, result[name]["cost of the checks"], flush=True)
        if "sac" in name:
            result["checkpoint"] = checkpoint_cost(state[0], 9)
            print(result["checkpoint"], flush=True)
    (RESULTS / "check_cost.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 25)
