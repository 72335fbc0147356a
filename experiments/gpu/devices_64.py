"""Sixty-four devices: one tick of PPO and SAC under every placement with sharding, against one
device.

``python experiments/gpu/devices_64.py [devices=64] [few] [sac/data_parallel ...]`` (CPU; minutes)
starts a process with this many virtual devices, runs a tick on one of them and on all from the same
state, and compares. The states must be equal within 1e-6, relative to numbers over 1. All graphs
have as many logical shards, ``shards=``, as devices. ``few`` compiles with few of XLA's
optimizations; words select cases. A process without output for `SILENT_S` counts as a deadlock. 64
devices on few cores reach a collective one after another, so XLA's timeout of 40 s is raised. The
result is written to experiments/results/devices_64.json, unless cases are selected.
"""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "laws"))
RESULT = Path(__file__).parent.parent / "results" / "devices_64.json"
CASES = {
    f"{algo}/{placement}": (algo, placement)
    for algo in ("ppo", "sac")
    for placement in ("data_parallel", "sharded_sampling", "sampler_learner", "parameter_server")
}
ALLOWED = 1e-6
WARM_TICKS = 3
SILENT_S = 900
PATIENT = (
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=600 --xla_cpu_collective_call_terminate_timeout_seconds=1200 "
    "--xla_cpu_collective_timeout_seconds=1200"
)


def measure(case: str, devices: int, few: bool) -> dict[str, Any]:
    """Run one tick from the same state, on one device and on all."""
    import jax
    from equal_numbers import algorithm, difference, end, to_host

    import jaxrl_fast as jf
    from jaxrl_fast.assembly import build_graph
    from jaxrl_fast.learning.run_graph import GraphOptions
    from jaxrl_fast.runtime import program as programs
    from jaxrl_fast.runtime.placements import PLACEMENTS

    algo, placement = CASES[case]
    learners = devices if placement == "parameter_server" else 1
    # `sampler_learner` samples on one device less, with two environments on each.
    num_envs = 2 * (devices - 1) if placement == "sampler_learner" else devices
    env = jf.make_env("cartpole" if algo == "ppo" else "pendulum", num_envs=num_envs)
    chosen = algorithm(algo, batch_size=devices, buffer_size=32 * num_envs)
    graph, _ = build_graph(env, chosen, GraphOptions(learners=learners, shards=devices))
    keys = jax.random.split(jax.random.key(3), 1)

    alone = programs.compile(graph, PLACEMENTS["fused"](graph, jax.devices()[:1]), 1)
    start = end(alone, WARM_TICKS, jax.tree.map(to_host, alone.init(keys, chosen.hyper)))[0]
    want = end(alone, 1, start)

    placed = PLACEMENTS[placement](graph, jax.devices())
    program = programs.compile(graph, placed, 1)
    before_s = time.perf_counter()
    _, run = program.ready(keys, chosen.hyper)
    compile_s = time.perf_counter() - before_s
    got = end(program._replace(run=run), 1, start)
    again_s = time.perf_counter()
    end(program._replace(run=run), 1, start)
    return {
        "case": case,
        "devices": len({device for group in placed.groups for device in group.devices}),
        "num_envs": num_envs,
        "learners": learners,
        "few_optimizations": few,
        "difference": difference(got[0], want[0]),
        "learned": difference(want[0].private, start.private) > 1e-4,
        "allowed": ALLOWED,
        "compile_s": round(compile_s, 1),
        "tick_s": round(time.perf_counter() - again_s, 2),
        "state_kb_a_device": round(state_bytes(program.place(start)) / 1e3, 1),
        "process_peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def state_bytes(state: Any) -> int:
    """Return the bytes of a run's state on the device that holds most of it."""
    import jax

    held: dict[Any, int] = {}
    for leaf in jax.tree.leaves(state):
        for part in leaf.addressable_shards:
            held[part.device] = held.get(part.device, 0) + part.data.nbytes
    return max(held.values())


def child(devices: int, few: bool, cases: list[str]) -> None:
    """Measure the cases, and print a line of JSON for each."""
    import jax

    jax.config.update("jax_num_cpu_devices", devices)
    jax.config.update("jax_disable_most_optimizations", few)
    for case in cases:
        print(json.dumps(measure(case, devices, few)), flush=True)
        jax.clear_caches()


def start_child(devices: int, few: bool, case: str) -> dict[str, Any]:
    """Run a case in a separate process.

    Raises:
        SystemExit: It failed, or printed nothing for `SILENT_S`.
    """
    flags = f"{os.environ.get('XLA_FLAGS', '')} {PATIENT}".strip()
    words = [
        sys.executable,
        __file__,
        "child",
        f"devices={devices}",
        *(["few"] if few else []),
        case,
    ]
    try:
        done = subprocess.run(
            words,
            env={**os.environ, "XLA_FLAGS": flags},
            stdout=subprocess.PIPE,
            text=True,
            timeout=SILENT_S,
        )
    except subprocess.TimeoutExpired:
        raise SystemExit(f"{case}: a deadlock, or slower than {SILENT_S} s") from None
    if done.returncode:
        raise SystemExit(f"{case} ended with status {done.returncode}")
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def main(words: list[str]) -> None:
    """Start the cases, print a line for each, write the JSON; the exit code is 1 if a case differs."""
    devices = next(
        (int(word.removeprefix("devices=")) for word in words if word.startswith("devices=")), 64
    )
    few, chosen = "few" in words, [word for word in words if word in CASES]
    if "child" in words:
        child(devices, few, chosen)
        return
    rows = []
    for case in chosen or CASES:
        row = start_child(devices, few, case)
        rows.append(row)
        holds = row["difference"] <= ALLOWED and row["learned"]
        print(
            f"{case:21} {row['devices']} devices: {row['difference']:.1e}{'' if holds else '   BROKEN'}, compiled in "
            f"{row['compile_s']} s, a tick in {row['tick_s']} s, {row['state_kb_a_device']} kB of state on a device, "
            f"{row['process_peak_mb']} MB in the process at most",
            flush=True,
        )
    if not chosen:
        from describe import machine, versions

        document = {
            "rows": rows,
            "xla_flags": PATIENT,
            "machine": machine(),
            "versions": versions()["ours"],
        }
        RESULT.write_text(json.dumps(document, indent=1) + "\n")
    sys.exit(any(row["difference"] > ALLOWED or not row["learned"] for row in rows))


if __name__ == "__main__":
    main(sys.argv[1:])
