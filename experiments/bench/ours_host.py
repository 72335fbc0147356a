"""Worker: SAC on Gymnasium's HalfCheetah-v5 with jaxrl_fast, one update of 256 for every step.

``python ours_host.py train [bridge] [overlap]``, ``update`` (the updates alone, on constant
batches), ``solve`` (a whole run: a curve of greedy returns, as `peer_sb3.py`).
"""

import sys
import time
from typing import Any

import jax
import numpy as np
from worker import say, serve

import jaxrl_fast as jf
from jaxrl_fast.assembly import build_graph
from jaxrl_fast.hosts.io_callback_env import in_graph
from jaxrl_fast.learning.run_graph import GraphOptions
from jaxrl_fast.runtime import program as programs
from jaxrl_fast.runtime.placements import fused
from jaxrl_fast.tuning.ceiling import updates_only

NUM_ENVS, TICKS = 16, 32
SAC = dict(
    rollout_length=1,
    updates_per_tick=NUM_ENVS,
    batch_size=256,
    buffer_size=1_000_000,
    warmup_steps=1_000,
)
TUNED = dict(
    SAC,
    learning_rate=1e-3,
    temperature_learning_rate=1e-3,
    critic_layer_norm=True,
    warmup_steps=5_000,
)


def main(what: str, bridge: str = "host", overlap: str = "none") -> None:
    """Compile, warm up, and serve."""
    jf.setup(cpu_devices=1, cache=False)
    algorithm = jf.sac(**SAC)
    env = jf.make_env("gymnasium", id="HalfCheetah-v5", num_envs=NUM_ENVS, pool={"bridge": bridge})
    graph, agent = build_graph(in_graph(env).env, algorithm, GraphOptions(overlap=overlap))  # type: ignore[arg-type]
    if what == "update":
        graph = updates_only(env, algorithm)  # type: ignore[arg-type]  # shapes are all that it needs
    keys = jax.random.split(jax.random.key(0), 1)
    program = programs.compile(graph, fused(graph, jax.devices()), TICKS)
    begin = time.perf_counter()
    init, run = program.ready(keys, algorithm.hyper)
    state = init(keys, algorithm.hyper)
    compile_s = time.perf_counter() - begin
    for _ in range(2 + (agent.warmup_ticks // TICKS if what == "train" else 0)):
        state, metrics = run(state)
    jax.block_until_ready((state, metrics))

    def repeat() -> dict[str, Any]:
        nonlocal state
        begin = time.perf_counter()
        state, metrics = run(state)
        jax.block_until_ready((state, metrics))
        seconds = time.perf_counter() - begin
        assert all(np.isfinite(np.asarray(m)).all() for m in metrics.values())
        return {"seconds": seconds, "updates": TICKS * agent.updates_per_tick}

    serve(repeat, compile_s=compile_s, told=env.events())


def solve(seed: str, total_steps: str, every: str) -> None:
    """Train a whole run from an empty cache; print (steps, greedy return of 10 episodes, seconds)
    at every evaluation.
    """
    jf.setup(cpu_devices=1, cache=False)
    begin, curve = time.perf_counter(), list[tuple[int, float, float]]()

    def note(row: dict[str, Any]) -> None:
        if row["kind"] == "eval":
            curve.append((row["env_steps"], row["eval_return_mean"], time.perf_counter() - begin))

    env = jf.make_env("gymnasium", id="HalfCheetah-v5", num_envs=NUM_ENVS)
    jf.learn(
        env,
        jf.sac(**TUNED),
        total_steps=int(total_steps),
        seed=int(seed),
        eval_every=int(every),
        eval_episodes=10,
        on_metrics=note,
    )
    env.close()
    say({"curve": curve, "seconds": time.perf_counter() - begin})


if __name__ == "__main__":
    if sys.argv[1] == "solve":
        solve(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
