"""Speed of one's own robot and simulator, as `docs/tutorials/robot.md` has them: steps per second
by width.

``python experiments/bench/robots.py`` measures the pole by MJX and by MuJoCo's own C on the pool,
under random actions, and, where PyTorch is installed, the simulator alone and in PPO's sampling. It
writes the table of that page. Run nothing else meanwhile.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import ROOT, commit, machine, versions
from suites import MARKS, middle, playing, timed

RESULT, PAGE = (
    ROOT / "experiments" / "results" / "bench" / "robots.json",
    ROOT / "docs" / "tutorials" / "robot.md",
)
WIDTHS, REPEATS, STEPS, CORES = (2, 16, 128, 1024), 5, 64, "0,1"
KINDS = "mjx", "mujoco", "torch alone", "torch in PPO"


def written(place: Path) -> None:
    """Write the page's files, and import from there."""
    text = PAGE.read_text()
    blocks = {
        kind: re.findall(rf"```{kind}\n(.*?)```", text, flags=re.DOTALL)
        for kind in ("xml", "python")
    }
    (place / "pole.xml").write_text(blocks["xml"][0])
    (place / "pole.py").write_text(blocks["python"][0])
    (place / "pendulums.py").write_text(blocks["python"][1])
    sys.path.insert(0, str(place))
    os.chdir(place)


def rates_of(call: Callable[[], Any], steps: int) -> list[float]:
    """Return steps per second of calls, after a first one that is not counted."""
    rates = []
    for _ in range(REPEATS + 1):
        began = time.perf_counter()
        call()
        rates.append(steps / (time.perf_counter() - began))
    return rates[1:]


def robot(backend: str, width: int) -> list[float]:
    """Measure the pole under random actions."""
    import jax
    import numpy as np

    import jaxrl_fast as jf

    options = {"reward": "pole.reward", "terminated": "pole.terminated", "backend": backend}
    env = jf.make_env("mjcf", file="pole.xml", num_envs=width, **options)
    if backend == "mjx":
        state, obs = jax.jit(env.reset)(jax.random.key(0))
        return timed(playing(env), (state, obs, jax.random.key(1)), width * STEPS, REPEATS)[0]
    env.reset(0)
    actions = (
        np.random.default_rng(0).uniform(-1, 1, (width // env.num_groups, 1)).astype(np.float32)
    )
    for group in range(env.num_groups):
        env.send(actions, group)

    def play() -> None:
        for _ in range(STEPS):
            for group in range(env.num_groups):
                env.recv(group)
                env.send(actions, group)

    rates = rates_of(play, width * STEPS)
    env.close()
    return rates


def simulator(kind: str, width: int) -> list[float]:
    """Measure the pendulums in PyTorch, alone or sampled by PPO's policy."""
    import jax
    import pendulums
    import torch

    import jaxrl_fast as jf
    from jaxrl_fast.assembly import build_graph
    from jaxrl_fast.runtime import graph as graphs

    if kind == "torch alone":
        made, actions = pendulums.make(width), torch.zeros(width, 1)
        made.reset()
        return rates_of(lambda: [made.step(actions) for _ in range(STEPS)], width * STEPS)
    env = jf.make_env("custom", make="pendulums.make", num_envs=width)
    algorithm = jf.ppo(rollout_length=STEPS)
    graph, _ = build_graph(env, algorithm)
    state, sample = graphs.init(graph, jax.random.key(0), algorithm.hyper), graph.fragments[0]
    inputs, now = {name: state.channels[name] for name in sample.reads}, [state.private["sample"]]

    def play() -> None:
        now[0], rollout, _ = sample.step(now[0], inputs, algorithm.hyper, jax.random.key(1))
        jax.block_until_ready(rollout)

    return rates_of(play, width * STEPS)


def write_page() -> None:
    """Write the table between its marks."""
    done = json.loads(RESULT.read_text())
    poles, pendulums = ("this pole, MJX", "this pole, MuJoCo in C"), "the pendulums"
    head = [
        "environments",
        *poles,
        f"{pendulums} below, alone",
        f"{pendulums} sampled by PPO, share of alone",
    ]
    rows = [head, ["---"] * len(head)]
    for width in WIDTHS:
        found = {kind: done["rates"].get(f"{kind} {width}") for kind in KINDS}
        cells = [middle(found[kind]) if found[kind] else "" for kind in KINDS]
        if found[KINDS[2]]:
            cells[3] += (
                f", {statistics.median(found[KINDS[3]]) / statistics.median(found[KINDS[2]]):.2f}"
            )
        rows.append([str(width), *cells])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    before, after = PAGE.read_text().split(MARKS[0])[0], PAGE.read_text().split(MARKS[1])[1]
    note = f"Median [least, most] of {REPEATS}, {done['machine']}."
    PAGE.write_text(f"{before}{MARKS[0]}\n{table}\n\n{note}\n{MARKS[1]}{after}")


def main() -> None:
    """Measure every row in a separate process."""
    rates: dict[str, list[float]] = {}
    for kind in KINDS:
        for width in WIDTHS:
            command = ["taskset", "-c", CORES, sys.executable, __file__, "--here", kind, str(width)]
            done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            if done.returncode and "No module named 'torch'" not in done.stderr:
                raise SystemExit(f"{kind} {width}:\n{done.stderr[-2000:]}")
            if not done.returncode:
                rates[f"{kind} {width}"] = json.loads(done.stdout.splitlines()[-1])
            print(kind, width, rates.get(f"{kind} {width}"), flush=True)
    RESULT.write_text(
        json.dumps(
            {"rates": rates, "machine": machine(), "versions": versions(), "commit": commit()},
            indent=1,
        )
        + "\n"
    )
    write_page()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        with tempfile.TemporaryDirectory() as place:
            written(Path(place))
            measure = simulator if sys.argv[2].startswith("torch") else robot
            print(json.dumps(measure(sys.argv[2], int(sys.argv[3]))))
            os.chdir("/")
    else:
        main()
