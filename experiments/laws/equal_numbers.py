"""Equal numbers, the whole check: every placement against one fused program on the same graph.

``python experiments/laws/equal_numbers.py [--fast] [ppo] [sac/pendulum] [sac/pendulum/none]`` (CPU,
four virtual devices; over an hour) runs every algorithm, with two environments of different
observations or actions, every ``overlap``, one and several learners, and 1, 2 and 4 devices; words
select a part. Multi-agent algorithms share their networks in the probe, and have a separate network
per agent in the junction, where ``agents`` shards them too. ``--fast`` compiles with few of XLA's
optimizations, as the tests do; two processes may compute parts at once. Placements that put
fragments on other devices are compared after 20 ticks (difference 0.0), with the compiler options
of the fused program. As users compile them, a program that only acts has its own
(`xla_options.ACTING_OPTIONS`); these, and placements with sharding, are compared after one tick
from the same state (1e-6, relative to numbers over 1). The result is written to
experiments/results/equal_numbers.json.
"""

import itertools
import json
import sys
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import machine, versions

import jaxrl_fast as jf
from jaxrl_fast.assembly import build_graph
from jaxrl_fast.envs.probes import TWO_AGENTS
from jaxrl_fast.learning.run_graph import GraphOptions, Overlap
from jaxrl_fast.runtime import chain
from jaxrl_fast.runtime import program as programs
from jaxrl_fast.runtime.graph import Graph, TrainState
from jaxrl_fast.runtime.placements import PLACEMENTS
from jaxrl_fast.runtime.xla_options import compiler_options

RESULT = Path(__file__).parent.parent / "results" / "equal_numbers.json"
ENVIRONMENTS = {
    "ppo": ("cartpole", "pendulum"),
    "sac": ("pendulum", "mountain_car_continuous"),
    "dqn": ("cartpole", "acrobot"),
    "pqn": ("cartpole", "acrobot"),
    "impala": ("cartpole", "pendulum"),
    "sac_discrete": ("cartpole", "acrobot"),
    "td3": ("pendulum", "mountain_car_continuous"),
    "flash_sac": ("pendulum", "mountain_car_continuous"),
    **dict.fromkeys(
        ("iql", "td3_bc", "fast_td3", "reppo"), ("pendulum", "mountain_car_continuous")
    ),
    **dict.fromkeys(("ippo", "mappo", "pqn_vdn"), ("two_out", "traffic_junction_4")),
}
MOVING = (("actor_critic", 2, 1), ("sampler_learner", 2, 1))
DIVIDING = (
    *(
        (name, devices, 1)
        for name in ("data_parallel", "sharded_sampling")
        for devices in (1, 2, 4)
    ),
    ("sampler_learner", 4, 1),
    ("parameter_server", 2, 2),
    ("parameter_server", 4, 4),
)
"""Placement, devices, learners."""
BY_AGENTS = (("agents", 2, 1), ("agents", 4, 1))
SEEDS = [3]


def algorithm(
    name: str, batch_size: int = 16, buffer_size: int = 1_024, **agents: bool
) -> jf.Algorithm:
    """Build a small algorithm with work in every tick; ``agents``: the networks that agents share."""
    if name in ("ppo", "ippo", "mappo"):
        sizes: dict[str, Any] = dict(rollout_length=8, num_epochs=2, num_minibatches=2)
        make_ppo = {"ppo": jf.ppo, "ippo": jf.ippo, "mappo": jf.mappo}[name]
        return make_ppo(**sizes, policy_hidden=(16,), value_hidden=(16,), **agents)
    if name in ("pqn", "pqn_vdn"):
        make_pqn = {"pqn": jf.pqn, "pqn_vdn": jf.pqn_vdn}[name]
        return make_pqn(rollout_length=8, num_minibatches=2, q_hidden=(16,), **agents)
    if name == "reppo":
        return jf.reppo(
            rollout_length=8,
            num_epochs=2,
            num_minibatches=2,
            policy_hidden=(16,),
            critic_hidden=(16,),
        )
    if name == "impala":
        return jf.impala(rollout_length=8, num_minibatches=2, hidden=(16,))
    replay: dict[str, Any] = dict(
        rollout_length=2,
        updates_per_tick=4,
        batch_size=batch_size,
        buffer_size=buffer_size,
        warmup_steps=16,
    )
    if name == "dqn":
        rainbow: dict[str, Any] = dict(
            dueling=True, priority_exponent=0.6, n_step=3, value_head="categorical"
        )
        return jf.dqn(q_hidden=(16,), **rainbow, **replay)
    return getattr(jf, name)(policy_hidden=(16,), critic_hidden=(16,), **replay)


def world(name: str) -> jf.VecEnv:
    """Build eight environments."""
    return (
        jf.make_env("probe", id=name, num_envs=8)
        if name in TWO_AGENTS
        else jf.make_env(name, num_envs=8)
    )


def shared(algo: str, env_name: str) -> dict[str, bool]:
    """Return the networks that the agents of a multi-agent algorithm share."""
    return (
        {"share_parameters": env_name in TWO_AGENTS} if algo in ("ippo", "mappo", "pqn_vdn") else {}
    )


def make(graph: Graph, placement: str, devices: int, options: str = "own") -> programs.Program:
    """Build a program of one tick; ``options``: "own", or "fused" for a chain with the fused
    program's options.
    """
    placed = PLACEMENTS[placement](graph, jax.devices()[:devices])
    if options == "own":
        return programs.compile(graph, placed, 1)
    as_fused = mock.Mock(
        side_effect=lambda mesh, products, acting: compiler_options(mesh, products=products)
    )
    with mock.patch.object(chain, "compiler_options", as_fused):
        program = programs.compile(graph, placed, 1)
    assert as_fused.called
    return program


def end(program: programs.Program, ticks: int, start: Any) -> Any:
    """Return the state after some ticks and the metrics of the last, both on the host, from a state
    on the host.
    """
    state, metrics = program.place(from_host(start)), {}
    for _ in range(ticks):
        state, metrics = program.run(state)
    return jax.tree.map(to_host, (state, metrics))


def to_host(leaf: Any) -> np.ndarray:
    """Copy to the host, with random keys as numbers."""
    typed = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.array(jax.random.key_data(leaf) if typed else leaf)


def from_host(state: TrainState) -> TrainState:
    """Convert the output of `to_host` to a state."""
    copy = jax.tree.map(np.array, state)
    return copy._replace(key=jax.random.wrap_key_data(copy.key))


def difference(got: Any, want: Any) -> float:
    """Return the largest difference over all leaves, relative to numbers over 1; a different flag
    or count is infinitely far.
    """
    worst = 0.0
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        if not np.issubdtype(b.dtype, np.floating):
            worst = max(worst, 0.0 if np.array_equal(a, b) else float("inf"))
        elif b.size:
            worst = max(worst, float(np.max(np.abs(a - b) / np.maximum(np.abs(b), 1.0))))
    return worst


def compare(algo: str, env_name: str, overlap: Overlap) -> list[dict[str, Any]]:
    """Compare all placements of one graph (and of the graph with several learners)."""
    env, chosen, rows = world(env_name), algorithm(algo, **shared(algo, env_name)), []
    dividing = DIVIDING + (BY_AGENTS if chosen.options.get("share_parameters") is False else ())
    turns = ((2, "turns"),) if algo == "impala" else ()
    for learners, average in (
        (1, "gradients"),
        (2, "gradients"),
        (4, "gradients"),
        (2, "parameters"),
        *turns,
    ):
        graph, _ = build_graph(
            env, chosen, GraphOptions(overlap=overlap, learners=learners, average=average)
        )  # type: ignore[arg-type]
        jobs = [(job, 20, "fused") for job in MOVING] + [
            (job, 1, "own") for job in MOVING + dividing
        ]
        fused = make(graph, "fused", 1)
        keys = jax.vmap(jax.random.key)(np.array(SEEDS))
        first = jax.tree.map(to_host, fused.init(keys, chosen.hyper))
        warm = end(fused, 20, first)
        start, want = {20: first, 1: warm[0]}, {20: warm, 1: end(fused, 1, warm[0])}
        for (placement, devices, _), ticks, options in [
            job for job in jobs if job[0][2] == learners
        ]:
            got = end(make(graph, placement, devices, options), ticks, start[ticks])
            rows.append(
                {
                    "algo": algo,
                    "env": env_name,
                    "overlap": overlap,
                    "learners": learners,
                    "average": average,
                    "placement": placement,
                    "devices": devices,
                    "ticks": ticks,
                    "options": options,
                    "difference": difference(got[0], want[ticks][0]),
                    "allowed": 0.0 if ticks == 20 else 1e-6,
                    "few_optimizations": "--fast" in sys.argv,
                }
            )
        jax.clear_caches()
    return rows


def main() -> None:
    """Compare everything, print a line for each, write the JSON; the exit code is 1 if a placement
    differs.
    """
    jax.config.update("jax_num_cpu_devices", 4)
    jax.config.update("jax_disable_most_optimizations", "--fast" in sys.argv)
    broken = False
    for algo, name, overlap in parts([word for word in sys.argv[1:] if word != "--fast"]):
        rows = compare(algo, name, overlap)
        for row in rows:
            holds = row["difference"] <= row["allowed"]
            print(
                f"{algo} {name:24} overlap={overlap:13} {row['placement']:17} {row['devices']} devices "
                f"{row['learners']} learners ({row['average']}) {row['options']:5} options {row['ticks']:2} ticks: "
                f"{row['difference']:.1e}"
                f"{'' if holds else '   BROKEN'}",
                flush=True,
            )
            broken |= not holds
        keep(rows)
    sys.exit(broken)


def parts(words: list[str]) -> list[tuple[str, str, Overlap]]:
    """Return (algorithm, environment, overlap) of every part that begins with one of the words; all
    parts without words.
    """
    known = [
        (algo, name, overlap)
        for algo, names in ENVIRONMENTS.items()
        for name, overlap in itertools.product(names, get_args(Overlap))
    ]
    return [
        part
        for part in known
        if not words or any(f"{'/'.join(part)}/".startswith(f"{word}/") for word in words)
    ]


def keep(rows: list[dict[str, Any]]) -> None:
    """Write rows into the result, and replace earlier ones."""
    same = [[row[key] for key in ("algo", "env", "overlap")] for row in rows[:1]]
    known = json.loads(RESULT.read_text())["rows"] if RESULT.exists() else []
    others = [row for row in known if [row[key] for key in ("algo", "env", "overlap")] not in same]
    where = {"machine": machine(), "versions": versions()["ours"]}
    document = {"rows": others + [{**row, **where} for row in rows]}
    RESULT.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
