"""Does the jobs of `gpu`: reads a `gpu_jobs.Job` per line (JSON), compiles, runs and times it, and
answers in a line.
"""

import hashlib
import json
import math
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import jax
import numpy as np
from gpu_jobs import LAST_WORDS, Job

import jaxrl_fast as jf
from jaxrl_fast.assembly import bind
from jaxrl_fast.commands import run_config
from jaxrl_fast.commands.run_config import make_algorithm, make_envs, with_defaults
from jaxrl_fast.learning.acting import BoundAgent
from jaxrl_fast.runtime.graph import Graph, TrainState, tagged
from jaxrl_fast.runtime.placements import LEARNING, REPLAY, Placement, place
from jaxrl_fast.settings.machine import AUTO
from jaxrl_fast.targets.accelerators import CHIPS, THIS, Target
from jaxrl_fast.targets.compiling import costs_of
from jaxrl_fast.targets.cost_tables import chip_here
from jaxrl_fast.training.job import ticks_within
from jaxrl_fast.tuning import trial

FIRST_CHUNKS = 2
"""Number of chunks after which a state is stored."""


def measure(job: Job) -> dict[str, Any]:
    """Compile a part of a run, run its first chunks, and time it.

    Raises:
        ValueError: It cannot be run, or gave numbers that are not finite.
    """
    run = trial.without_warm_up(run_config.compose(job.words.split()))
    env = make_envs(run)
    algorithm = make_algorithm(with_defaults(run, env.spec))
    agent = bind(algorithm, env.spec, env.num_envs)
    graph = trial.part_of(job.what, run, env, algorithm)  # type: ignore[arg-type]
    placed = place(graph, "fused" if run.placement == AUTO else run.placement, run.devices)
    learns = job.what in ("training", "updates")
    frames = agent.updates_per_tick * agent.batch_size if learns else 1
    ticks = job.ticks or ticks_within(env.num_envs * agent.rollout_length, frames)
    ready = trial.compile_timed(
        graph, placed, algorithm.hyper, ticks=ticks, num_seeds=run.num_seeds
    )
    answer = {
        **trial.describe(run, env, agent),
        "placement": placed.name,
        "compile_s": ready.compile_s,
        "memory_bytes": trial.memory_bytes(ready, placed),
    }
    if job.keep:
        answer["digest"] = keep_first(graph, ready, Path(job.keep))
    if job.repeats:
        answer |= timed(job, ready, agent)
    if job.what == "updates":
        answer |= work_of(ready, placed, agent)
    return {
        **answer,
        "memory": jax.devices()[0].memory_stats() if jax.default_backend() != "cpu" else None,
    }


def keep_first(graph: Graph, ready: trial.Ready, path: Path) -> str:
    """Save the first state and the state after some chunks, without replay; return a digest of the
    whole latter state.
    """
    state = ready.init()
    first = leaves_of(graph, state)
    for _ in range(FIRST_CHUNKS):
        state, _ = ready.run(state)
    learned = [f"private.{name}." for name in tagged(graph, LEARNING)]
    np.savez(
        path,
        learned=np.array(learned),
        **{f"first/{n}": x for n, x in first.items()},
        **leaves_of(graph, state),
    )
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(state):
        digest.update(numbers(leaf).tobytes())
    return digest.hexdigest()


def leaves_of(graph: Graph, state: TrainState) -> dict[str, np.ndarray]:
    """Return the state of the fragments by name, except replay."""
    kept = {name: part for name, part in state.private.items() if name not in tagged(graph, REPLAY)}
    named = jax.tree_util.tree_leaves_with_path({"private": kept})
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): numbers(leaf)
        for path, leaf in named
    }


def numbers(leaf: jax.Array) -> np.ndarray:
    """Copy to the host, with random keys as numbers. A chunk donates the arrays themselves."""
    typed = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.array(jax.random.key_data(leaf) if typed else leaf)


def timed(job: Job, ready: trial.Ready, agent: BoundAgent) -> dict[str, Any]:
    """Time repeats of whole chunks in seconds, each to its end, after the warm-up of replay."""
    repeat = trial.warm(ready, agent.warmup_ticks + 1 if job.what == "training" else 0)
    seconds, metrics = repeat(1)
    if not all(np.isfinite(np.asarray(value)).all() for value in metrics.values()):
        raise ValueError("a metric is not finite")
    chunks = max(1, math.ceil(job.repeat_s / max(seconds, 1e-6)))
    return {
        "ticks": chunks * ready.ticks,
        "seconds": [repeat(chunks)[0] for _ in range(job.repeats)],
    }


def work_of(ready: trial.Ready, placed: Placement, agent: BoundAgent) -> dict[str, Any]:
    """Describe an update: matrix products, memory traffic and kernels of the compiled program, and
    their least time on a supported card; on other cards, on an H100.
    """
    chip = chip_here() or CHIPS["h100"]
    with tempfile.TemporaryDirectory() as nothing:
        cost = costs_of(ready.run, placed, ready.ticks, Target(THIS, chip, 1, ""), Path(nothing))[0]
    found = {
        "flops": cost.product_flops,
        "bytes": cost.moved_bytes,
        "kernels": cost.kernels,
        "us": cost.roofline_us,
    }
    return {
        "roofline_of": chip.title,
        "an_update": {k: v / agent.updates_per_tick for k, v in found.items()},
    }


def main() -> None:
    """Answer jobs until there are no more. Other output goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    jf.setup(cpu_devices=1)
    for line in sys.stdin:
        try:
            answer = measure(Job(**json.loads(line)))
        except Exception as error:
            traceback.print_exc()
            answer = {
                "error": f"{type(error).__name__}: {' '.join(str(error).split())[:LAST_WORDS]}"
            }
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
