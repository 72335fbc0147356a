"""The table of the MSRL paper: PPO and SAC under every placement, on a light and a heavy
environment.

``python experiments/bench/distribution.py [algo-env ...]`` needs an otherwise idle machine.
Placements of one algorithm and environment are measured in turn in one process, so that ratios
compare neighbours in time: rates, bytes that cross devices in a tick, the share of the time in
which a device was idle, and the used share of the machine. The result is written to
experiments/results/distribution.json, with a timeline of the two-device placements as
distribution.png.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import machine, versions
from timeline import Timeline, record

import jaxrl_fast as jf
from jaxrl_fast.assembly import bind, build_graph
from jaxrl_fast.commands import run_config
from jaxrl_fast.commands.run_config import make_algorithm
from jaxrl_fast.learning.run_graph import GraphOptions
from jaxrl_fast.runtime import program as programs
from jaxrl_fast.runtime.chain import Chain
from jaxrl_fast.runtime.placements import PLACEMENTS
from jaxrl_fast.settings.machine import cpu_cores
from jaxrl_fast.views.description import describe, run_shapes, trace_shapes

RESULTS = Path(__file__).parent.parent / "results"
REPEATS = 5
JOBS = {"ppo-pendulum": 2, "sac-pendulum": 100, "ppo-halfcheetah": 1, "sac-halfcheetah": 4}
"""Algorithm and environment, and ticks in a repeat."""
HOST_JOBS = {
    "ppo-Pendulum-v1": 2,
    "sac-Pendulum-v1": 20,
    "ppo-HalfCheetah-v5": 1,
    "sac-HalfCheetah-v5": 4,
}


class Case(NamedTuple):
    """A placement at an overlap, with this number of learners."""

    placement: str
    overlap: str = "none"
    learners: int = 1

    @property
    def label(self) -> str:
        """Return the words of the command."""
        more = f" learners={self.learners}" if self.learners > 1 else ""
        return f"{self.placement} overlap={self.overlap}{more}"


CASES = (
    Case("fused"),
    Case("data_parallel"),
    Case("sharded_sampling"),
    Case("actor_critic"),
    Case("actor_critic", "actor_critic"),
    Case("actor_critic", "all"),
    Case("sampler_learner"),
    Case("sampler_learner", "sampling"),
    Case("fused", "none", 2),
    Case("parameter_server", "none", 2),
)
HOST_CASES = (
    Case("fused"),
    Case("central_inference"),
    Case("central_inference", "sampling"),
    Case("sampler_learner"),
    Case("sampler_learner", "sampling"),
)


class Ready(NamedTuple):
    """A warm program: ``repeat() -> (wall_s, cpu_s)`` of one chunk, ``trace()`` its timeline, and
    the bytes that cross devices.
    """

    repeat: Callable[[], tuple[float, float]]
    trace: Callable[[], Timeline | None]
    crossing_bytes: float | None


def make_ready(env: Any, algorithm: jf.Algorithm, case: Case, ticks: int) -> Ready:
    """Compile and warm up one case."""
    graph, agent = build_graph(
        env,
        algorithm,
        GraphOptions(overlap=case.overlap, learners=case.learners, total_steps=10**9),
    )  # type: ignore[arg-type]
    placed = PLACEMENTS[case.placement](graph, jax.devices())
    program = programs.compile(graph, placed, ticks)
    keys = jax.random.split(jax.random.key(0), 1)
    init, run = program.ready(keys, algorithm.hyper)
    state = init(keys, algorithm.hyper)
    shapes = trace_shapes(graph, state, run_shapes(run))
    facts = describe(graph, placed, state, shapes=shapes, run=run, ticks_per_chunk=ticks)
    crossing = [channel.crossing_bytes for channel in facts.channels]
    for _ in range(2 + -(-agent.warmup_ticks // ticks)):
        state, _ = run(state)
    jax.block_until_ready(state)

    def repeat() -> tuple[float, float]:
        nonlocal state
        begin_s, cpu_s = time.perf_counter(), time.process_time()
        state, metrics = run(state)
        jax.block_until_ready((state, metrics))
        return time.perf_counter() - begin_s, time.process_time() - cpu_s

    def trace() -> Timeline | None:
        nonlocal state
        if not isinstance(run, Chain):
            return None
        state, timeline = record(run, state)
        return timeline

    return Ready(
        repeat,
        trace,
        sum(c for c in crossing if c is not None) if any(c is not None for c in crossing) else None,
    )


def measure(
    env: Any, algorithm: jf.Algorithm, cases: tuple[Case, ...], ticks: int
) -> list[dict[str, Any]]:
    """Measure every case, in turn, ``REPEATS`` times; speeds are relative to the first case of the
    same round.
    """
    agent = bind(algorithm, env.spec, env.num_envs)
    ready = {case: make_ready(env, algorithm, case, ticks) for case in cases}
    rounds = [{case: one.repeat() for case, one in ready.items()} for _ in range(REPEATS)]
    steps, updates = ticks * env.num_envs * agent.rollout_length, ticks * agent.updates_per_tick
    rows = []
    for case, one in ready.items():
        wall_s = statistics.median(r[case][0] for r in rounds)
        speeds = [r[cases[0]][0] / r[case][0] for r in rounds]
        timeline = one.trace()
        rows.append(
            {
                **case._asdict(),
                "sampling_hz": steps / wall_s,
                "update_hz": updates / wall_s,
                "update_frame_hz": updates * agent.batch_size / wall_s,
                "batch_size": agent.batch_size,
                "speed": statistics.median(speeds),
                "speed_least": min(speeds),
                "speed_most": max(speeds),
                "tick_s": wall_s / ticks,
                "cores_used": statistics.median(r[case][1] / r[case][0] for r in rounds),
                "crossing_bytes_per_tick": one.crossing_bytes,
                "idle_share": timeline and timeline.idle_share(),
                "together_share": timeline and timeline.together_share(),
                "dispatch_s_per_tick": timeline and timeline.dispatch_s / ticks,
                "spans": timeline and [span._asdict() for span in timeline.spans[:200]],
            }
        )
    return rows


def show(job: str, row: dict[str, Any]) -> str:
    """Write a line of the table."""
    idle = row["idle_share"]
    bytes_moved = row["crossing_bytes_per_tick"]
    label = Case(row["placement"], row["overlap"], row["learners"]).label
    return (
        f"{job:20} {label:44} {row['sampling_hz']:9,.0f} steps/s "
        f"{row['update_hz']:7,.1f} × {row['batch_size']:5} updates/s = {row['update_frame_hz']:10,.0f} frames/s "
        f"{row['speed']:5.2f} × [{row['speed_least']:.2f}, {row['speed_most']:.2f}] {1e3 * row['tick_s']:8.1f} ms/tick "
        f"{row['cores_used']:4.1f} cores, {'-' if bytes_moved is None else f'{bytes_moved / 1e3:,.0f} kB/tick'}, idle "
        f"{'-' if idle is None else ' '.join(f'{share:.0%}' for share in idle.values())}"
    )


def main() -> None:
    """Measure, print and write."""
    jf.setup(cpu_devices=cpu_cores())
    path = RESULTS / "distribution.json"
    wanted = sys.argv[1:] or [*JOBS, *HOST_JOBS]
    jobs = json.loads(path.read_text())["jobs"] if sys.argv[1:] and path.exists() else {}
    for job in wanted:
        algo, _, name = job.partition("-")
        if job in HOST_JOBS:
            run = run_config.compose(
                ["env=gymnasium", f"env.id={name}", f"algo={algo}", *host_settings(algo)]
            )
            env, cases, ticks = (
                jf.make_env("gymnasium", id=name, num_envs=run.num_envs),
                HOST_CASES,
                HOST_JOBS[job],
            )
        else:
            run = run_config.compose([f"env={name}", f"algo={algo}"])
            env, cases, ticks = jf.make_env(name, num_envs=run.num_envs), CASES, JOBS[job]
        jobs[job] = measure(env, make_algorithm(run), cases, ticks)
        for row in jobs[job]:
            print(show(job, row), flush=True)
        document = {"machine": machine(), "versions": versions(), "repeats": REPEATS, "jobs": jobs}
        path.write_text(json.dumps(document, indent=1) + "\n")
        jax.clear_caches()
    draw(jobs)


def host_settings(algo: str) -> list[str]:
    """Return sizes for a host environment: PPO as in its Gymnasium papers, SAC one update a step."""
    if algo == "ppo":
        return [
            "num_envs=16",
            "algo.rollout_length=128",
            "algo.num_epochs=4",
            "algo.num_minibatches=4",
        ]
    return [
        "num_envs=16",
        "algo.updates_per_tick=16",
        "algo.batch_size=256",
        "algo.warmup_steps=1_000",
    ]


def draw(jobs: dict[str, Any]) -> None:
    """Plot the programs on the two devices over time: two ticks of the first tenth of a second or
    more.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    wanted = [
        ("sac-halfcheetah", Case("actor_critic")),
        ("sac-halfcheetah", Case("actor_critic", "actor_critic")),
    ]
    wanted += [
        ("ppo-halfcheetah", Case("sampler_learner")),
        ("ppo-halfcheetah", Case("sampler_learner", "sampling")),
    ]
    found = [
        (job, row)
        for job, case in wanted
        for row in jobs.get(job, ())
        if Case(row["placement"], row["overlap"], row["learners"]) == case
    ]
    if not found:
        return
    known = sorted({span["segment"] for _, row in found for span in row["spans"]})
    figure, axes = plt.subplots(
        len(found), 1, figsize=(10, 1.9 * len(found)), layout="constrained", squeeze=False
    )
    for (job, row), plot in zip(found, axes[:, 0], strict=True):
        names = sorted({span["segment"] for span in row["spans"]})
        devices = sorted({device for span in row["spans"] for device in span["devices"]})
        for span in row["spans"]:
            color = f"C{known.index(span['segment'])}"
            for device in span["devices"]:
                plot.barh(
                    devices.index(device),
                    1e3 * (span["end_s"] - span["start_s"]),
                    left=1e3 * span["start_s"],
                    color=color,
                    edgecolor="white",
                    linewidth=0.5,
                )
        for name in names:
            plot.barh(0, 0, color=f"C{known.index(name)}", label=name)
        plot.set(
            yticks=range(len(devices)),
            yticklabels=devices,
            xlabel="ms",
            title=f"{job}: {Case(row['placement'], row['overlap'], row['learners']).label}",
        )
        plot.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize="small")
    figure.savefig(RESULTS / "distribution.png", dpi=120)


if __name__ == "__main__":
    main()
