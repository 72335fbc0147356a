"""Speed in the suites of other libraries: steps per second under random actions and in training,
and compile time.

``python experiments/bench/suites.py`` measures the missing rows, ``... craftax`` one suite,
``--page`` only writes the table of ``docs/suites.md``. The numbers of environments are 1, 8 and 64
for each of two cores. It needs the environment of ``make suites``. Run nothing else meanwhile.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import ROOT, commit, machine, machines_line, versions

RESULT, PAGE = (
    ROOT / "experiments" / "results" / "bench" / "suites.json",
    ROOT / "docs" / "suites.md",
)
WIDTHS, REPEATS, CORES = (2, 16, 128), 3, "0,1"
MARKS = "<!-- speed -->", "<!-- end of speed -->"
ROWS = {
    "brax halfcheetah": ("halfcheetah", ""),
    "playground CheetahRun": ("playground", "CheetahRun"),
    "playground CartpoleSwingup": ("playground", "CartpoleSwingup"),
    "craftax Craftax-Classic-Symbolic-v1": ("craftax", "Craftax-Classic-Symbolic-v1"),
    "craftax Craftax-Symbolic-v1": ("craftax", "Craftax-Symbolic-v1"),
    "xminigrid XLand-MiniGrid-R1-9x9": ("xminigrid", "XLand-MiniGrid-R1-9x9"),
    "pgx 2048": ("pgx", "2048"),
    "pgx connect_four": ("pgx", "connect_four"),
    "octax pong": ("octax", "pong"),
    "jumanji Snake-v1": ("jumanji", "Snake-v1"),
    "jumanji Minesweeper-v0": ("jumanji", "Minesweeper-v0"),
    "navix Navix-Empty-8x8-v0": ("navix", "Navix-Empty-8x8-v0"),
}
"""Title -> suite or short name, and id."""
STEPS = 64
"""Steps of a timed call under random actions, resets included."""


def measure_here(name: str, id: str, width: int, repeats: int) -> dict[str, Any]:
    """Measure both rates of an environment."""
    import jax

    import jaxrl_fast as jf

    env = jf.make_env(name, num_envs=width, **({"id": id} if id else {}))
    algorithm = jf.ppo(**jf.defaults("ppo", env, total_steps=100_000))
    init, step = jf.make_train_step(env, algorithm, total_steps=10**6)
    state, obs = jax.jit(env.reset)(jax.random.key(0))
    random, compile_s = timed(playing(env), (state, obs, jax.random.key(1)), width * STEPS, repeats)
    trained = lambda state: (step(state)[0],)  # noqa: E731
    tick = width * algorithm.sizes(width, 100_000)["rollout_length"]
    train, train_compile_s = timed(trained, (jax.jit(init)(jax.random.key(0)),), tick, repeats)
    return {
        "random": random,
        "compile_s": compile_s,
        "train": train,
        "train_compile_s": train_compile_s,
    }


def playing(env: Any) -> Any:
    """Return ``(state, obs, key) -> (state, obs, key)`` of `STEPS` steps with random actions that
    the mask allows.
    """
    import jax
    import jax.numpy as jnp

    from jaxrl_fast.learning.acting import uniform_action

    def play(state: Any, obs: Any, key: Any) -> Any:
        bank = env.draw_fresh(key, STEPS)

        def step(carried: Any, t: Any) -> Any:
            state, obs = carried
            now = jax.random.fold_in(key, t)
            state, ts = env.step(
                state, uniform_action(env.spec.action, obs, (env.num_envs,), now), now, bank, t
            )
            return (state, ts.obs), None

        return *jax.lax.scan(step, (state, obs), jnp.arange(STEPS))[0], jax.random.fold_in(
            key, STEPS
        )

    return play


def timed(function: Any, args: tuple, steps: int, repeats: int) -> tuple[list[float], float]:
    """Return steps per second of calls of a function that returns its next arguments, and the
    seconds to compile it.
    """
    import jax

    began = time.perf_counter()
    compiled = jax.jit(function).lower(*args).compile()
    compile_s, rates = time.perf_counter() - began, []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        args = jax.block_until_ready(compiled(*args))
        rates.append(steps / (time.perf_counter() - began))
    return rates[1:], compile_s


def measure(title: str, width: int) -> dict[str, Any]:
    """Measure a row at a width in a separate process."""
    command = ["taskset", "-c", CORES, sys.executable, __file__, "--here", *ROWS[title], str(width)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        raise SystemExit(f"{title} at {width}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def read() -> dict[str, Any]:
    """Return all results by title and width."""
    return json.loads(RESULT.read_text()) if RESULT.exists() else {}


def middle(values: list[float]) -> str:
    """Return the median and the range of rates."""
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 2]:,.0f} [{ordered[0]:,.0f}, {ordered[-1]:,.0f}]"


def write_page() -> None:
    """Write the table between its marks."""
    done = read()
    head = [
        "environment",
        "environments",
        "steps/s, random actions",
        "compiled in",
        "steps/s, PPO",
        "compiled in",
    ]
    rows = [head, ["---"] * len(head)]
    for key, found in done.items():
        title, _, width = key.rpartition(" ")
        compiled = [f"{found[name]:.1f} s" for name in ("compile_s", "train_compile_s")]
        rows.append(
            [
                title,
                width,
                middle(found["random"]),
                compiled[0],
                middle(found["train"]),
                compiled[1],
            ]
        )
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    before, after = PAGE.read_text().split(MARKS[0])[0], PAGE.read_text().split(MARKS[1])[1]
    PAGE.write_text(
        f"{before}{MARKS[0]}\n{table}\n\n{machines_line(done.values())}\n{MARKS[1]}{after}"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        name, id, width = sys.argv[2:]
        print(json.dumps(measure_here(name, id, int(width), REPEATS)))
        sys.exit()
    asked = [title for title in ROWS if any(word in title for word in sys.argv[1:])] or list(ROWS)
    for title in asked if "--page" not in sys.argv else ():
        for width in WIDTHS:
            if f"{title} {width}" not in read():
                row = {
                    **measure(title, width),
                    "machine": machine(),
                    "versions": versions(),
                    "commit": commit(),
                }
                RESULT.write_text(json.dumps(read() | {f"{title} {width}": row}, indent=1) + "\n")
                print(title, width, row["random"], row["train"], flush=True)
    write_page()
