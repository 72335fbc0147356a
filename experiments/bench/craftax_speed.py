"""Craftax-Classic by PPO, steps per second in training: ours and Rejax in turns, with the same
settings.

``python experiments/bench/craftax_speed.py`` measures on both cores, prints both sides and their
ratio, and writes them. A repeat is four iterations of 64 environments x 64 steps, four epochs of
eight minibatches, three layers of 512 units for policy and value (Craftax_Baselines' settings, as
in ``peer_suites.py``), without evaluations. It needs the environment of ``make suites``, and
``.venv-peers`` (or ``BENCH_PEERS``) with ``craftax``. Run nothing else meanwhile.
"""

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

ID, ITERATIONS, REPEATS = "Craftax-Classic-Symbolic-v1", 4, 7
RESULT = HERE.parent / "results" / "bench" / "craftax_speed.json"
PEERS = Path(os.environ.get("BENCH_PEERS", HERE.parent.parent / ".venv-peers" / "bin" / "python"))
STEPS = ITERATIONS * 64 * 64


def ours() -> None:
    """Serve repeats of our train step with the tuned settings of this environment."""
    import jax

    import jaxrl_fast as jf
    from jaxrl_fast.settings.files import read_yaml

    env = jf.make_env("craftax", id=ID, num_envs=64)
    tuned = Path(jf.__file__).parent / "config" / "tuned" / f"craftax_{ID}_ppo.yaml"
    settings = read_yaml(tuned)
    init, step = jf.make_train_step(env, jf.ppo(**settings["algo"]), total_steps=10**6)
    serve_scan(jax.jit(init)(jax.random.key(0)), lambda state: step(state)[0])


def theirs() -> None:
    """Serve repeats of Rejax's iteration."""
    import jax
    from peer_suites import rejax_craftax

    algo, _ = rejax_craftax(ID, total_timesteps=10**6)
    serve_scan(jax.jit(algo.init_state)(jax.random.PRNGKey(0)), algo.train_iteration)


def serve_scan(state: Any, iteration: Any) -> None:
    """Compile `ITERATIONS` iterations to one program, and time its calls."""
    import jax
    from worker import serve

    many = jax.jit(
        lambda state: jax.lax.scan(lambda s, _: (iteration(s), None), state, None, ITERATIONS)[0]
    )
    began = time.perf_counter()
    run = many.lower(state).compile()
    compile_s = time.perf_counter() - began
    state = jax.block_until_ready(run(state))

    def repeat() -> dict[str, Any]:
        nonlocal state
        began = time.perf_counter()
        state = jax.block_until_ready(run(state))
        return {"steps_per_s": STEPS / (time.perf_counter() - began)}

    serve(repeat, compile_s=compile_s)


def main() -> None:
    """Measure both sides in turns."""
    from describe import commit, machine, versions
    from run import Worker

    sides = {
        "ours": Worker(sys.executable, __file__, "ours"),
        "rejax": Worker(str(PEERS), __file__, "theirs"),
    }
    made: dict[str, Any] = {
        name: side.read()["ready"] | {"steps_per_s": []} for name, side in sides.items()
    }
    for _ in range(REPEATS):
        for name, side in sides.items():
            made[name]["steps_per_s"].append(side.repeat()["steps_per_s"])
    ratios = [
        a / b
        for a, b in zip(made["ours"]["steps_per_s"], made["rejax"]["steps_per_s"], strict=True)
    ]
    about = {
        "machine": machine(),
        "versions": versions(),
        "peer_versions": versions(PEERS),
        "commit": commit(),
    }
    RESULT.write_text(json.dumps({**made, "ratios": ratios, **about}, indent=1) + "\n")
    for name, values in (*((name, made[name]["steps_per_s"]) for name in sides), ("ratio", ratios)):
        print(f"{name}: {statistics.median(values):,.2f} [{min(values):,.2f}, {max(values):,.2f}]")


if __name__ == "__main__":
    {"ours": ours, "theirs": theirs}.get("".join(sys.argv[1:]), main)()
