"""The effect of XLA's options: each program with the default options, and with one option left out
or added, in turn.

``python experiments/bench/compiler_options.py [job ...] [rounds=5]`` (ten minutes, on an otherwise
idle machine) times whole training. For fast-math, it times the environments' step alone, since
fast-math is never applied to a learner. The result is written to
experiments/results/compiler_options.json; figures of jobs that are not named stay. ``--page``
writes only the table.
"""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import commit, machine, versions
from run import Worker, spread

RESULT = Path(__file__).resolve().parent.parent / "results" / "compiler_options.json"
AS_IT_IS = "as it is"
LABELS = {
    AS_IT_IS: "default",
    "vectors as XLA chooses": "vectors selected by XLA",
    "as if products were large": "options for large products",
    "LLVM's second level": "LLVM optimization level 2",
    "LLVM's first level": "LLVM optimization level 1",
    "fast-math, all liberties": "fast-math, all options",
}
"""Names of the table for names of the result file."""
FAST = "--xla_cpu_enable_fast_math=true"
HONORED = (
    "xla_cpu_fast_math_honor_division",
    "xla_cpu_fast_math_honor_functions",
    "xla_cpu_fast_math_honor_infs",
    "xla_cpu_fast_math_honor_nans",
)
LIBERTIES = " ".join(f"--{option}=false" for option in HONORED)


class Way(NamedTuple):
    """``flags``: additional flags of XLA; ``without``: names of `compiler_choices` whose options
    are left out.
    """

    flags: str = ""
    without: str = ""


ALL = {
    AS_IT_IS: Way(),
    "vectors as XLA chooses": Way(without="WIDE_VECTORS"),
    "as if products were large": Way(without="SMALL_OPTIONS"),
    "products by YNNPACK": Way(without="CPU_OPTIONS"),
    "LLVM's second level": Way("--xla_backend_optimization_level=2"),
    "LLVM's first level": Way("--xla_backend_optimization_level=1"),
}
LARGE = {name: way for name, way in ALL.items() if way.without != "SMALL_OPTIONS"}
JOBS = {
    "PPO, 4 CartPoles": ("ppo_cartpole_4", "train", ALL),
    "PPO, 64 CartPoles": ("ppo_cartpole", "train", LARGE),
    "SAC of 512, brax halfcheetah": ("sac_halfcheetah", "train", LARGE),
    "PPO, brax halfcheetah, minibatches as large, fewer": ("ppo_halfcheetah_short", "train", LARGE),
    "the environments alone, brax halfcheetah": (
        "ppo_halfcheetah",
        "env",
        {
            AS_IT_IS: Way(),
            "fast-math": Way(FAST),
            "fast-math, all liberties": Way(f"{FAST} {LIBERTIES}"),
        },
    ),
}


def measure(row: str, what: str, ways: dict[str, Way], rounds: int) -> dict[str, Any]:
    """Measure the rate of each variant, and its ratio to the default program, round by round."""
    workers: dict[str, Worker] = {}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    try:
        for name, way in ways.items():
            variables = f"XLA_FLAGS={way.flags}", f"BENCH_WITHOUT={way.without}"
            workers[name] = Worker("env", *variables, sys.executable, "ours.py", row, what)
        ready = {name: worker.read()["ready"] for name, worker in workers.items()}
        for _ in range(rounds):
            for name, worker in workers.items():
                answer = worker.repeat()
                rates[name].append(answer["steps"] / answer["seconds"])
    finally:
        for worker in workers.values():
            worker.process.kill()
            worker.process.wait()
    ratios = {
        name: [a / b for a, b in zip(rates[name], rates[AS_IT_IS], strict=True)] for name in ways
    }
    return {
        "steps_per_s": {name: spread(values) for name, values in rates.items()},
        "times_as_it_is": {name: spread(values) for name, values in ratios.items()},
        "compile_s": {name: found["compile_s"] for name, found in ready.items()},
        "rounds": rates,
        "machine": machine(),
        "versions": versions(),
        "commit": commit(),
    }


def page(document: dict[str, Any]) -> str:
    """Write the table. Compilations of one job run at the same time, so compare their seconds only
    with each other.
    """
    lines = [
        "| program | options | steps/s, or ratio to the default | compilation, s |",
        "|---|---|---|---|",
    ]
    for job, found in document.items():
        for name, ratio in found["times_as_it_is"].items():
            said = f"{ratio['median']:.2f} [{ratio['least']:.2f}, {ratio['most']:.2f}]"
            if name == AS_IT_IS:
                said = f"{found['steps_per_s'][name]['median']:,.0f} steps/s"
            lines.append(
                f"| {job} | {LABELS.get(name, name)} | {said} | {found['compile_s'][name]:.0f} |"
            )
    return "\n".join(lines) + "\n"


def main(words: list[str]) -> None:
    """Measure the requested jobs, store the figures, and write the table."""
    given = [
        word
        for word in words
        if word.startswith("rounds=") and word[7:].isdigit() and int(word[7:])
    ]
    unknown = [word for word in words if word not in (*JOBS, *given, "--page")]
    if unknown:
        print(f"{unknown[0]}: write one of {'; '.join(JOBS)}; rounds=5; --page", file=sys.stderr)
        sys.exit(2)
    document = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    asked = [word for word in words if word in JOBS] or list(JOBS)
    for job in [] if "--page" in words else asked:
        document[job] = measure(*JOBS[job], int(given[-1][7:]) if given else 5)
        RESULT.write_text(json.dumps(document, indent=1) + "\n")
    RESULT.with_suffix(".md").write_text(page(document))
    print(page(document))


if __name__ == "__main__":
    main(sys.argv[1:])
