"""Kinds of memory: steps until a task is solved, five seeds, and the time of an update relative to
the GRU's.

``python experiments/learning/memories.py`` makes the missing runs, ``... chain_30 mingru`` only
some, ``speed`` only the times, ``kernels`` only the counts, ``--page`` only the page
``docs/memories.md``. Five seeds are one program. A result is written when its run ends, so an
interrupted script goes on where it was. Run nothing else while it measures times.
"""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import ROOT, commit, machine, machines_line, versions
from gpu.targets import compile_row, counts
from learning import read_curve

import jaxrl_fast as jf
from jaxrl_fast.core import Box, Discrete, EnvSpec, Timestep
from jaxrl_fast.envs.env import Env, VecEnv, vectorize

RESULT = ROOT / "experiments" / "results" / "memories.json"
PAGE = ROOT / "docs" / "memories.md"
KINDS = "gru", "lstm", "mingru", "lru", "gtrxl"
SEEDS, NUM_ENVS, EVALUATIONS, EPISODES = 5, 16, 40, 20
SYMBOLS, RECALLED = 4, 64
LENGTH, REPEATS = 128, 7
GTRXL_STEPS = 300_000
HEAD = """# Kinds of memory

MinGRU, LRU and GTrXL solve the chains of 30 and 100 in a fifth of the GRU's steps or fewer, and, with 64 units,
MinGRU takes a quarter of the GRU's time for a gradient step. Only GTrXL repeats 64 symbols; its gradient step takes 23
times the GRU's. GRU and LSTM learn Pendulum without its velocity in the fewest steps.

`python experiments/learning/memories.py` makes these runs and writes this page. PPO, 64 units, 16 environments,
nothing tuned; greedy evaluations of 20 episodes; five seeds.

- `chain_N`: gymnax's MemoryChain. The first observation shows a bit, which the agent must name N steps later.
- `pendulum_without_velocity`: Pendulum, of which the agent sees the angle only.
- `repeat_64`: 64 random symbols of four, one a step; then the agent must repeat them in order. By chance it has 0.25.

A cell has the steps of a seed's first evaluation above the limit, as the median [least, most] over seeds, and in how
many of them. PPO later falls below it at times, with every kind: *above* is the share of the evaluations from there on
that are above. GTrXL, the slowest, has at most 300,000 steps; *stopped* are runs that were ended after all seeds had
solved the task.
"""


def repeat_after_me() -> Env:
    """Show 64 random symbols, one a step; then pay 1/64 for each that the agent repeats in order."""
    spec = EnvSpec(
        "repeat", jax.ShapeDtypeStruct((SYMBOLS + 1,), jnp.float32), Discrete(SYMBOLS), 2 * RECALLED
    )

    def observe(shown: jax.Array, t: jax.Array) -> jax.Array:
        symbol = jax.nn.one_hot(shown[jnp.minimum(t, RECALLED - 1)], SYMBOLS)
        recall = t >= RECALLED
        return jnp.append(jnp.where(recall, jnp.zeros(SYMBOLS), symbol), recall.astype(jnp.float32))

    def reset(key: jax.Array, params: Any) -> tuple[Any, jax.Array]:
        shown, t = jax.random.randint(key, (RECALLED,), 0, SYMBOLS), jnp.zeros((), jnp.int32)
        return (shown, t), observe(shown, t)

    def step(state: Any, action: jax.Array, key: jax.Array) -> tuple[Any, Timestep]:
        shown, t = state
        right = (t >= RECALLED) & (action == shown[jnp.maximum(t - RECALLED, 0)])
        obs, last = observe(shown, t + 1), t == 2 * RECALLED - 1
        return (shown, t + 1), Timestep(obs, obs, right / RECALLED, last, jnp.zeros((), bool))

    return Env(spec, reset, step, shortest_episode=2 * RECALLED)


def without_velocity() -> Env:
    """Make Pendulum without the angular velocity in its observation."""
    whole = jf.envs.make("pendulum")
    assert isinstance(whole, Env) and isinstance(whole.spec.action, Box)
    spec = whole.spec._replace(obs=jax.ShapeDtypeStruct((2,), jnp.float32))

    def reset(key: jax.Array, params: Any) -> tuple[Any, jax.Array]:
        state, obs = whole.reset(key, params)
        return state, obs[:2]

    def step(state: Any, action: jax.Array, key: jax.Array) -> tuple[Any, Timestep]:
        state, ts = whole.step(state, action, key)
        return state, ts._replace(obs=ts.obs[:2], next_obs=ts.next_obs[:2])

    return whole._replace(spec=spec, reset=reset, step=step)


def chain(length: int) -> VecEnv:
    """Make bsuite's MemoryChain of a length."""
    return jf.make_env("memory_chain", num_envs=NUM_ENVS, memory_length=length)


TASKS: dict[str, tuple[Any, float, int]] = {
    "chain_10": (lambda: chain(10), 0.9, 300_000),
    "chain_30": (lambda: chain(30), 0.9, 300_000),
    "chain_100": (lambda: chain(100), 0.9, 1_000_000),
    "pendulum_without_velocity": (
        lambda: vectorize(without_velocity(), num_envs=NUM_ENVS),
        -400.0,
        1_000_000,
    ),
    "repeat_64": (lambda: vectorize(repeat_after_me(), num_envs=NUM_ENVS), 0.9, 1_000_000),
}
"""Environment, return from which it is solved, steps."""


def learned(task: str, kind: str) -> dict[str, Any]:
    """Train five seeds; return their curves."""
    make, limit, steps = TASKS[task]
    steps = min(steps, GTRXL_STEPS) if kind == "gtrxl" else steps
    algorithm = jf.ppo(memory=kind, recurrent_size=64, rollout_length=LENGTH)
    began = time.time()
    how: dict[str, Any] = dict(
        num_seeds=SEEDS, eval_every=steps // EVALUATIONS, eval_episodes=EPISODES
    )
    with tempfile.TemporaryDirectory() as place:
        result = jf.learn(make(), algorithm, total_steps=steps, run_dir=f"{place}/run", **how)
        curve = [
            [point["env_steps"], point["returns"]] for point in read_curve(Path(place) / "run")
        ]
    rates = {
        name: result.summary[name]
        for name in ("steps_per_s", "compile_s")
        if name in result.summary
    }
    return {"curve": curve, "limit": limit, "seconds": time.time() - began, **rates}


def update_s(kind: str, size: int) -> dict[str, Any]:
    """Time a gradient step of PPO's policy on 16 sequences of 128 steps, on one core."""
    algorithm = jf.ppo(memory=kind, recurrent_size=size, rollout_length=LENGTH, policy_hidden=(64,))
    agent = algorithm.build(chain(30).spec, NUM_ENVS)
    network = agent.parts["actor"].networks["policy"]
    params = network.init(jax.random.key(0))
    obs = jax.random.normal(jax.random.key(1), (LENGTH, NUM_ENVS, *chain(30).spec.obs.shape))
    first = jax.random.bernoulli(jax.random.key(2), 0.05, (LENGTH, NUM_ENVS))

    def loss(params: Any) -> jax.Array:
        return jnp.mean(
            jnp.square(network.apply(params, network.initial_memory(NUM_ENVS), obs, first)[0])
        )

    began = time.perf_counter()
    step = (
        jax.jit(lambda p: jax.tree.map(lambda x, g: x - 1e-3 * g, p, jax.grad(loss)(p)))
        .lower(params)
        .compile()
    )
    compile_s, times = time.perf_counter() - began, []
    for _ in range(REPEATS + 1):
        began = time.perf_counter()
        for _ in range(20):
            params = step(params)
        jax.block_until_ready(params)
        times.append((time.perf_counter() - began) / 20)
    return {"update_s": times[1:], "compile_s": compile_s}  # the first round warms the caches


def kernels(kind: str) -> dict[str, Any]:
    """Count the kernels of an update on an H100, as ``explain target=h100`` does."""
    words = (
        f"env=memory_chain algo=ppo tuned=false num_envs={NUM_ENVS} algo.rollout_length={LENGTH}"
    )
    row = compile_row(f"{words} algo.recurrent_size=64 algo.memory={kind}", "h100")
    return {"kernels_an_update": row["kernels_an_update"]}


def write(key: str, made: dict[str, Any]) -> None:
    """Add a result to the file."""
    done = read() | {
        key: {**made, "machine": machine(), "versions": versions(), "commit": commit()}
    }
    RESULT.write_text(json.dumps(done, indent=1) + "\n")
    print(key, str(made)[-200:], flush=True)


def read() -> dict[str, Any]:
    """Return all results by key."""
    return json.loads(RESULT.read_text()) if RESULT.exists() else {}


def solved_at(curve: list, limit: float, seed: int) -> tuple[float, float]:
    """Return the steps of a seed's first evaluation above the limit, infinity if there is none, and
    the share of those from there on that are above.
    """
    above = [returns[seed] >= limit for _, returns in curve]
    if not any(above):
        return np.inf, np.nan
    first = above.index(True)
    return curve[first][0], float(np.mean(above[first:]))


def write_page() -> None:
    """Write the tables of all results."""
    done, lines = read(), [HEAD]
    made = [task for task in TASKS if any(f"{task} {kind}" in done for kind in KINDS)]
    lines += table(
        "task (solved from)",
        [[f"{task} ({TASKS[task][1]:g})", *steps_of(done, task)] for task in made],
    )
    lines += [
        "A gradient step on 16 sequences of 128, divided by the GRU's median: median of 7 [least, most].",
        "",
    ]
    lines += table(
        "units", [times_of(done, size) for size in (64, 256) if f"speed gru {size}" in done]
    )
    lines += [
        "Kernels of an update with 64 units on an H100, as `explain target=h100` counts them.",
        "",
    ]
    counted = [done.get(f"kernels {kind}", {}).get("kernels_an_update", {}) for kind in KINDS]
    lines += table(
        "",
        [["kernels", *(counts(found) if found else "" for found in counted)]]
        if any(counted)
        else [],
    )
    PAGE.write_text("\n".join([*lines, machines_line(done.values()), ""]))


def table(first: str, rows: list[list[str]]) -> list[str]:
    """Return the lines of a table with a column for each kind, and none without rows."""
    head = [[first, *KINDS], ["---"] * (len(KINDS) + 1)]
    return [f"| {' | '.join(row)} |" for row in head + rows] + [""] if rows else []


def steps_of(done: dict[str, Any], task: str) -> list[str]:
    """Return the cells of a task: steps until it is solved, in how many seeds, and the share above
    from there on.
    """
    return [
        _steps_cell(run) if run else "not run"
        for run in (done.get(f"{task} {kind}") for kind in KINDS)
    ]


def _steps_cell(run: dict[str, Any]) -> str:
    each = [solved_at(run["curve"], run["limit"], seed) for seed in range(SEEDS)]
    steps = sorted(at for at, _ in each)
    solved = [at for at in steps if at < np.inf]
    if not solved:
        return f"not (0 of {SEEDS}), last return {np.mean(run['curve'][-1][1]):.2f}"
    middle = f"{statistics.median(steps):,.0f}" if statistics.median(steps) < np.inf else "not"
    above = np.nanmean([share for _, share in each])
    stopped = f", stopped after {run['stopped']:,}" if "stopped" in run else ""
    return f"{middle} [{solved[0]:,}, {solved[-1]:,}] ({len(solved)} of {SEEDS}), above {above:.0%}{stopped}"


def times_of(done: dict[str, Any], size: int) -> list[str]:
    """Return the cells of a size: the time of a gradient step by the GRU's."""
    base = statistics.median(done[f"speed gru {size}"]["update_s"])
    each = [np.sort(done[f"speed {kind} {size}"]["update_s"]) / base for kind in KINDS]
    return [
        f"{size} ({1e3 * base:.1f} ms)",
        *(f"{np.median(x):.2f} [{x[0]:.2f}, {x[-1]:.2f}]" for x in each),
    ]


if __name__ == "__main__":
    words = sys.argv[1:]
    kinds = [kind for kind in KINDS if kind in words] or KINDS
    asked = [task for task in TASKS if task in words] or (
        [] if {"speed", "kernels", "--page"} & set(words) else list(TASKS)
    )
    for size in (64, 256) if "speed" in words or not words else ():
        for kind in kinds:
            write(f"speed {kind} {size}", update_s(kind, size))
    for kind in kinds if "kernels" in words or not words else ():
        write(f"kernels {kind}", kernels(kind))
    for task in asked:
        for kind in kinds:
            if f"{task} {kind}" not in read():
                write(f"{task} {kind}", learned(task, kind))
    write_page()
