"""Estimated cost of runs on absent accelerators: algorithm x placement x target, from the compiler.

``python experiments/gpu/targets.py`` compiles every row (`make targets` first; half a minute each),
``python experiments/gpu/targets.py sac_h100`` one, ``--page`` none. Figures are written to
experiments/results/targets.json, the table to docs/targets.md.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

RESULTS = Path(__file__).parent.parent / "results" / "targets.json"
PHYSICS = RESULTS.with_name("physics_kernels.json")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "targets.md"
CARTPOLE = (
    "env=cartpole algo=ppo tuned=false num_envs=2048 algo.rollout_length=128 algo.num_epochs=4 algo.num_minibatches=4 "
    "algo.learning_rate=3e-4 algo.normalize_rewards=false total_steps=26_214_400"
)
"""2,048 environments of 128 steps, 16 updates of 16,384, networks of 64 x 64."""
CHEETAH = "env=halfcheetah algo=ppo num_envs=2048 total_steps=6_553_600"
SAC = (
    "env=halfcheetah algo=sac tuned=false num_envs=128 algo.updates_per_tick=64 algo.batch_size=512 "
    "algo.warmup_actions=policy algo.policy_hidden=[256,256] algo.critic_hidden=[256,256] total_steps=1_000_000"
)
DQN = "env=cartpole algo=dqn num_envs=64"
SPREEZE = f"{SAC} placement=actor_critic overlap=actor_critic"
GRAPHS = {"JAXRL_FAST_GPU_GRAPHS": "1"}


class Row(NamedTuple):
    """``words`` of explain, for a ``target``, with these variables in its ``environment``."""

    words: str
    target: str
    environment: Mapping[str, str] = MappingProxyType({})


ROWS = {
    "ppo_cartpole_h100": Row(CARTPOLE, "h100"),
    "ppo_cartpole_h100x8": Row(CARTPOLE, "h100:8"),
    "ppo_cartpole_v5e": Row(CARTPOLE, "tpu-v5e"),
    "ppo_cheetah_h100": Row(CHEETAH, "h100"),
    "ppo_cheetah_h100x8": Row(CHEETAH, "h100:8"),
    "ppo_cheetah_v5e": Row(CHEETAH, "tpu-v5e"),
    "sac_h100": Row(SAC, "h100"),
    "sac_h100x8": Row(SAC, "h100:8"),
    "sac_h100x2_split": Row(SPREEZE, "h100:2"),
    "sac_h100x2_sampler": Row(f"{SAC} placement=sampler_learner overlap=sampling", "h100:2"),
    "sac_h100_sharded": Row(f"{SAC} placement=sharded_sampling", "h100:8"),
    "sac_8192_h100": Row(SAC.replace("batch_size=512", "batch_size=8192"), "h100"),
    "sac_32768_h100": Row(SAC.replace("batch_size=512", "batch_size=32768"), "h100"),
    "sac_v5e": Row(SAC, "tpu-v5e"),
    "sac_v5e_2x4": Row(SAC, "tpu-v5e:2x4"),
    "dqn_h100": Row(DQN, "h100"),
    "dqn_v5e_2x4": Row(DQN, "tpu-v5e:2x4"),
    "td3_h100": Row("env=halfcheetah algo=td3", "h100"),
    "flash_sac_h100": Row("env=halfcheetah algo=flash_sac", "h100"),
    "pqn_breakout_h100": Row("env=breakout algo=pqn", "h100"),
    "impala_h100": Row("env=cartpole algo=impala", "h100"),
    "sac_discrete_h100": Row("env=cartpole algo=sac_discrete", "h100"),
    "ppo_server_h100x4": Row(f"{CARTPOLE} placement=parameter_server learners=4", "h100:4"),
    "ppo_seeds_h100x8": Row(f"{CARTPOLE} num_seeds=8", "h100:8"),
    "sac_h100_graphs": Row(SAC, "h100", GRAPHS),
    "ppo_cartpole_h100_graphs": Row(CARTPOLE, "h100", GRAPHS),
}
HEAD = """# Predicted cost on a GPU or a TPU

`python experiments/gpu/targets.py` writes this page. `python -m jaxrl_fast.explain ... target=h100` prints the same
figures for any run. **Nothing here was measured**: XLA (JAX 0.10.2) compiled the programs for these devices on a
machine without them. One H200 was measured since; its figures stand next to the predictions in
`experiments/results/nvidia-h200/README.md`. Figures are per device. Kernels (copies included), launches and collectives
are facts of the compiled program. Times are a band, so trust only large differences. On a GPU each kernel takes the
time of XLA's device model, and at least 1 µs (lower end) or 4 µs (upper end). A TPU starts a program as a whole, so its
band runs from the roofline to XLA's model. A *tick* is one round of training: environment steps, then updates.
"""


TIME = "row", "target", "ms per tick", "steps/s", "updates/s", "memory", "GFLOP", "GB of traffic"
WORK = (
    "row",
    "kernels per tick",
    "per update",
    "per step",
    "graphs + single kernels + waits",
    "all-reduces",
)
"""Columns of times, and of the programs that a tick starts."""


def compile_row(
    words: str, target: str, environment: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """Return `explain`'s results for a run on a target."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "jaxrl_fast.explain",
            *words.split(),
            f"target={target}",
            f"out={folder}",
        ]
        done = subprocess.run(
            command,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}")
        named = " ".join([*(f"{key}={value}" for key, value in environment.items()), words])
        return {
            "words": named,
            "target": target,
            **json.loads((Path(folder) / "graph.json").read_text())["target"],
        }


def time_cells(row: dict[str, Any]) -> list[str]:
    """Write the cells of `TIME`."""
    programs, rounds = row["programs"], row["rounds"]
    us = dict(zip(("roofline", *row["floors_us"]), row["tick_us"], strict=True))
    # A TPU starts a whole program at once.
    ends = sorted(
        (us["roofline"], us[0.0]) if row["target"].startswith("tpu") else (us[1.0], us[4.0])
    )
    return [
        row["name"],
        " to ".join(f"{end / 1e3:.3g}" for end in ends),
        " to ".join(rounded(rounds["env_steps"] / end * 1e6) for end in reversed(ends)),
        " to ".join(rounded(rounds["updates"] / end * 1e6) for end in reversed(ends)),
        f"{max(program['memory_bytes'] or 0 for program in programs) / 1e6:,.0f} MB",
        f"{sum(program['product_flops'] for program in programs) / 1e9:,.0f}",
        f"{sum(program['moved_bytes'] for program in programs) / 1e9:.3g}",
    ]


def work_cells(row: dict[str, Any]) -> list[str]:
    """Write the cells of `WORK`."""
    programs = row["programs"]
    launches = [program["launches"] for program in programs]
    started = (
        "–"
        if None in launches
        else " + ".join(f"{sum(x[key] for x in launches):,.0f}" for key in launches[0])
    )
    reduces = sum(
        found["instructions"] * (found["runs"] or 0)
        for program in programs
        for found in program["collectives"]
        if found["kind"] == "all-reduce"
    )
    return [
        f"{sum(program['kernels'] for program in programs):,.0f}",
        counts(row["kernels_an_update"]),
        counts(row["kernels_a_step"]),
        started,
        f"{reduces:,.0f}",
    ]


def table(columns: Sequence[str], rows: dict[str, list[str]]) -> list[str]:
    """Write a table of cells by row."""
    lines = [f"| {' | '.join([name, *cells])} |" for name, cells in rows.items()]
    return [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *lines, ""]


def rounded(number: float) -> str:
    """Format with three significant digits."""
    return f"{float(f'{number:.3g}'):,.0f}"


def counts(by_fragment: dict[str, float | None]) -> str:
    """Write the kernels of each fragment, where there are several."""
    known = {name: number for name, number in by_fragment.items() if number is not None}
    named = [
        f"{number:.0f}" if len(known) == 1 else f"{name} {number:.0f}"
        for name, number in known.items()
    ]
    return ", ".join(named) or "–"


def main(names: list[str]) -> None:
    """Compile rows, and write the table of all that have results."""
    unknown = set(names) - {"--page", *ROWS}
    if unknown:
        raise SystemExit(f"{', '.join(unknown)}: write one of {', '.join(ROWS)}")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in [] if "--page" in names else names or ROWS:
        results[name] = compile_row(*ROWS[name])
        print(name, *time_cells(results[name]), *work_cells(results[name]), sep=" | ", flush=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    known = {name: results[name] for name in ROWS if name in results}
    lines = [
        "## Time of a tick",
        "",
        *table(TIME, {name: time_cells(row) for name, row in known.items()}),
    ]
    lines += [
        "## What a tick starts",
        "",
        *table(WORK, {name: work_cells(row) for name, row in known.items()}),
    ]
    lines += ["## Commands", ""]
    for words in dict.fromkeys(row["words"] for row in known.values()):
        names = ", ".join(name for name, row in known.items() if row["words"] == words)
        lines.append(f"- {names}: `{words}`")
    PAGE.write_text("\n".join([HEAD, *lines, *physics_lines()]) + "\n")


def physics_lines() -> list[str]:
    """Write the results of `physics_kernels.py`."""
    if not PHYSICS.exists():
        return []
    lines = ["", "## Origin of the kernels of a step", ""]
    for found in json.loads(PHYSICS.read_text()):
        loops = [
            f"a loop of {loop['substeps']} rounds with {loop['kernels']} kernels each "
            f"({', '.join(f'{owner} {number}' for owner, number in loop['by_owner'].items())})"
            for loop in found["loops_within_a_step"]
        ]
        lines.append(
            f"- PPO on {found['env']}: {found['kernels_a_step']:.0f} kernels per step, including {'; '.join(loops)}."
        )
    return lines


if __name__ == "__main__":
    main(sys.argv[1:])
