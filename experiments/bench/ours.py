"""Worker: one row of the benchmark with jaxrl_fast, or one of its bounds. A repeat is one compiled
chunk.

``python ours.py <row> train|env|update [placement] [precision] [overlap]``: the whole train step;
the environments alone under random actions; the gradient updates alone on constant batches.
``env:profile`` and ``update:profile`` print once how the time of the two is spent.
``python ours.py solve ...`` as for `peer_rejax.py`.
"""

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import profiling
from worker import say, serve

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "learning"))

from environments import points

import jaxrl_fast as jf
from jaxrl_fast.assembly import build_graph
from jaxrl_fast.learning.run_graph import GraphOptions
from jaxrl_fast.runtime import xla_options
from jaxrl_fast.runtime.placements import PLACEMENTS
from jaxrl_fast.tuning import trial
from jaxrl_fast.tuning.ceiling import environments_only, updates_only

NOTEBOOK = dict(policy_hidden=(32,) * 4, value_hidden=(256,) * 5, activation="swish")


class Row(NamedTuple):
    """A configuration of ours: the environments, the algorithm, its placement, and ticks in a
    repeat.
    """

    env: str
    num_envs: int
    algorithm: Callable[..., jf.Algorithm]
    options: dict[str, Any]
    placement: str
    ticks: int
    env_options: dict[str, Any] = {}  # noqa: RUF012  # of a NamedTuple, never changed


ITERATION = dict(rollout_length=128, num_epochs=4, num_minibatches=4)
"""From JaxMARL's baselines, like `RECURRENT`."""
RECURRENT = dict(recurrent_size=128, policy_hidden=(128,), value_hidden=(128,), activation="relu")


def _points(num_agents: int | None, num_envs: int) -> Row:
    """Agents of equal cost, one alone or three in an environment."""
    algorithm = jf.ppo if num_agents is None else jf.ippo
    make = {"make": partial(points, num_agents)}
    return Row(
        "custom",
        num_envs,
        algorithm,
        {**ITERATION, "normalize_observations": False},
        "fused",
        20,
        make,
    )


def _cartpole(num_envs: int, ticks: int) -> Row:
    """Rejax's work: the same numbers of environments, steps, epochs and minibatches, on raw
    observations.
    """
    return Row(
        "cartpole", num_envs, jf.ppo, {**ITERATION, "normalize_observations": False}, "fused", ticks
    )


def _sac(batch_size: int) -> Row:
    """brax's SAC: 64 updates for each step of 128 environments."""
    sizes = dict(rollout_length=1, updates_per_tick=64, batch_size=batch_size)
    options = {**sizes, "buffer_size": 1_048_576, "warmup_steps": 8192, "learning_rate": 6e-4}
    return Row("halfcheetah", 128, jf.sac, options, "fused", 2)


ROWS = {
    # 1,280 steps of 256 environments are the 327,680 of an iteration of brax's notebook, cut into
    # the same minibatches.
    "ppo_halfcheetah": Row(
        "halfcheetah",
        256,
        jf.ppo,
        dict(
            rollout_length=1280,
            num_epochs=8,
            num_minibatches=32,
            learning_rate=3e-4,
            discount=0.95,
            entropy_coef=1e-3,
            clip_range=0.3,
            **NOTEBOOK,
        ),
        "sharded_sampling",
        1,
    ),
    "sac_halfcheetah": _sac(512),
    "sac_halfcheetah_256": _sac(256),
    "ppo_cartpole": _cartpole(64, 50),
    "ppo_cartpole_4": _cartpole(4, 200),
    "ppo_cartpole_2048": _cartpole(2048, 4),
    "spread_ippo": Row("spread", 16, jf.ippo, ITERATION, "fused", 10),
    "spread_mappo": Row("spread", 16, jf.mappo, ITERATION | RECURRENT, "fused", 1),
    "smax_3m_mappo": Row("smax_3m", 128, jf.mappo, ITERATION | RECURRENT, "fused", 1),
    "one_agent": _points(None, 16),
    "three_agents": _points(3, 16),
    "one_agent_48": _points(None, 48),
}
SHORT = {
    "ppo_halfcheetah_short": ROWS["ppo_halfcheetah"]._replace(
        options={**ROWS["ppo_halfcheetah"].options, "rollout_length": 80, "num_minibatches": 2}
    )
}
"""For `gate`: minibatches as large as in the row, but fewer."""


PROFILED: dict[tuple[str, str], dict[str, Any]] = {
    ("ppo_halfcheetah", "env"): {"rollout_length": 4},
    ("ppo_halfcheetah", "update"): {"rollout_length": 40, "num_minibatches": 1},
    ("sac_halfcheetah", "update"): {"updates_per_tick": 8},
}
"""For ticks with more events than the profiler's buffer holds: fewer minibatches of the same size.
"""


def main(
    name: str, what: str, placement: str = "", precision: str = "f32", overlap: str = "none"
) -> None:
    """Compile, warm up, and serve."""
    row = {**ROWS, **SHORT}[name]
    what, _, profiled = what.partition(":")
    if profiled:
        row = row._replace(options={**row.options, **PROFILED.get((name, what), {})}, ticks=1)
    placement = placement or row.placement
    jf.setup(
        cpu_devices=1 if placement == "fused" else 2, cache=bool(os.environ.get("BENCH_CACHE"))
    )
    env = jf.make_env(row.env, num_envs=row.num_envs, **row.env_options)
    algorithm = row.algorithm(**row.options, precision=precision)
    graph, agent = build_graph(env, algorithm, GraphOptions(overlap=overlap))  # type: ignore[arg-type]
    if what == "env":
        graph = environments_only(env, agent.rollout_length)
    if what == "update":
        graph = updates_only(env, algorithm)
    for left_out in filter(None, os.environ.get("BENCH_WITHOUT", "").split(",")):
        getattr(xla_options, left_out).clear()
    place = PLACEMENTS[placement]
    row = row._replace(ticks=int(os.environ.get("BENCH_TICKS", row.ticks)))
    ready = trial.compile_timed(
        graph, place(graph, jax.devices()), algorithm.hyper, ticks=row.ticks
    )
    timed = trial.warm(ready, agent.warmup_ticks if what == "train" else 0)

    def repeat() -> dict[str, Any]:
        seconds, metrics = timed(1)
        assert all(np.isfinite(np.asarray(m)).all() for m in metrics.values())
        return {
            "seconds": seconds,
            "steps": row.ticks * row.num_envs * agent.rollout_length,
            "updates": row.ticks * agent.updates_per_tick,
        }

    if profiled:
        repeat()
        say(profiling.profile(repeat))
        return
    serve(repeat, compile_s=ready.compile_s, fragments=[f.name for f in graph.fragments])


def solve(
    learning_rate: float,
    observations: str,
    steps: int,
    evaluations: int,
    placement: str = "data_parallel",
) -> None:
    """Train eight seeds of the CartPole row at once; print the seconds from an empty cache to the
    last evaluation.
    """
    row = ROWS["ppo_cartpole"]
    options = row.options | {"normalize_observations": observations == "normalized"}
    jf.setup(cpu_devices=2, cache=False)
    begin = time.perf_counter()
    env = jf.make_env(row.env, num_envs=row.num_envs)
    algorithm = row.algorithm(**options, learning_rate=learning_rate)
    result = jf.learn(
        env,
        algorithm,
        total_steps=steps,
        num_seeds=8,
        placement=placement,
        eval_every=steps // evaluations,
        eval_episodes=128,
    )
    seconds = time.perf_counter() - begin
    curve = [line["eval_return_mean"] for line in result.history if line["kind"] == "eval"]
    say(
        {
            "seconds": seconds,
            "compile_s": result.summary["compile_s"],
            "steps": steps,
            "curve": curve,
        }
    )


if __name__ == "__main__":
    if sys.argv[1] == "solve":
        solve(float(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), *sys.argv[6:])
    else:
        main(*sys.argv[1:])
