"""Ours or Optuna's Gaussian process: which finds better points, and what each costs.

``python experiments/bench/samplers.py [seeds] [trials]`` needs ``pip install optuna scipy torch``.
Every sampler gets the same number of trials, the first four of which are random, on functions of
two to six dimensions: one after another, four at a time, and for the same time where trials take 1
to 20 seconds. The result is written to experiments/results/samplers.json: the gap between the
optimum and the best point (quartiles over seeds), CPU seconds of a proposal, the size of the
packages, and whether two processes propose the same to the bit, as `sweep resume=` needs.
"""

import hashlib
import importlib.metadata
import json
import math
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import commit, machine, versions

from jaxrl_fast.population.asking import STARTS, make_sampler
from jaxrl_fast.population.search_space import (
    Draw,
    SearchSpace,
    Shares,
    TrialOutcome,
    random_shares,
)

RESULT = Path(__file__).resolve().parent.parent / "results" / "samplers.json"
STEPS = 1000


def branin(x: np.ndarray) -> float:
    a, b = 15 * x[0] - 5, 15 * x[1]
    curve = b - 5.1 * a**2 / (4 * math.pi**2) + 5 * a / math.pi - 6
    return 0.397887 - float(curve**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(a) + 10)


def hartmann(x: np.ndarray) -> float:
    weights = np.array([1.0, 1.2, 3.0, 3.2])
    if len(x) == 3:
        scale = np.array([[3, 10, 30], [0.1, 10, 35], [3, 10, 30], [0.1, 10, 35]])
        at = [[3689, 1170, 2673], [4699, 4387, 7470], [1091, 8732, 5547], [381, 5743, 8828]]
        best = 3.86278
    else:
        scale = np.array(
            [
                [10, 3, 17, 3.5, 1.7, 8],
                [0.05, 10, 17, 0.1, 8, 14],
                [3, 3.5, 1.7, 10, 17, 8],
                [17, 8, 0.05, 10, 0.1, 14],
            ]
        )
        at = [
            [1312, 1696, 5569, 124, 8283, 5886],
            [2329, 4135, 8307, 3736, 1004, 9991],
            [2348, 1451, 3522, 2883, 3047, 6650],
            [4047, 8828, 8732, 5743, 1091, 381],
        ]
        best = 3.32237
    distances = (scale * (x - np.array(at) * 1e-4) ** 2).sum(axis=1)
    return float(weights @ np.exp(-distances)) - best


def returns(x: np.ndarray) -> float:
    """A return of 500 at best, with a cliff: too large a learning rate learns nothing."""
    rate = math.exp(-(((x[0] - 0.55) / 0.12) ** 2)) if x[0] < 0.62 else 0.1
    return 500 * (rate * (1 - 0.3 * (x[1] - 0.8) ** 2 - 0.1 * (x[2] - 0.4) ** 2) - 1)


class Case(NamedTuple):
    """A function to maximize.

    Attributes:
        function: Shares -> value, 0 at best; of ``returns``, about 0.
        size: Number of dimensions.
        at_once: Points that are asked for together.
        timed: Whether a trial takes 1 to 20 seconds, growing with the last dimension.
    """

    function: Callable[[np.ndarray], float]
    size: int
    at_once: int = 1
    timed: bool = False


CASES = {
    "branin of 2": Case(branin, 2),
    "hartmann of 3": Case(hartmann, 3),
    "cliff of 4": Case(returns, 4),
    "hartmann of 6": Case(hartmann, 6),
    "hartmann of 6, four at a time": Case(hartmann, 6, at_once=4),
    "hartmann of 3, trials of 1 to 20 s": Case(hartmann, 3, timed=True),
}


def optuna_gp(
    space: SearchSpace, seed: int, number: int, outcomes: Sequence[TrialOutcome]
) -> Shares:
    """Ask Optuna's GPSampler, from a study that is made of the trials so far."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if number < STARTS:
        return random_shares(space, seed, number)
    ranges: dict[str, Any] = {
        key: optuna.distributions.FloatDistribution(0.0, 1.0) for key in space.draws
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampler = optuna.samplers.GPSampler(seed=seed + number, n_startup_trials=STARTS)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for one in outcomes:
            running = one.score is None
            state = optuna.trial.TrialState.RUNNING if running else optuna.trial.TrialState.COMPLETE
            study.add_trial(
                optuna.trial.create_trial(
                    params=dict(one.shares), distributions=ranges, value=one.score, state=state
                )
            )
        return dict(study.ask(ranges).params)


def asker(name: str, space: SearchSpace, seed: int) -> Callable[[int, Any], Shares]:
    if name == "optuna gp":
        return lambda number, outcomes: optuna_gp(space, seed, number, outcomes)
    sampler: Any = {"random": "random", "ours": "gp", "optuna tpe": "tpe"}[name]
    return make_sampler(sampler, space, seed)


NAMES = ("random", "ours", "optuna gp", "optuna tpe")


def space_of(size: int) -> SearchSpace:
    return SearchSpace({f"x{i}": Draw("uniform", (0.0, 1.0)) for i in range(size)}, {})


def search(name: str, case: Case, seed: int, trials: int) -> dict[str, Any]:
    """Return the gap, the seconds of the proposals, and the seconds that trials took until the best
    point.
    """
    space = space_of(case.size)
    ask = asker(name, space, seed)
    outcomes: list[TrialOutcome] = []
    seconds, found, spent, limit = [], [], 0.0, 5.0 * trials
    while len(outcomes) < trials and not (case.timed and spent > limit):
        asked = []
        for _ in range(case.at_once):
            begin = time.process_time()
            shares = ask(len(outcomes) + len(asked), [*outcomes, *asked])
            seconds.append(time.process_time() - begin)
            asked.append(TrialOutcome(shares, None, STEPS, 0.0, False))
        for one in asked:
            x = np.array(list(one.shares.values()))
            found.append(case.function(x))
            took = math.exp(3.0 * x[-1]) if case.timed else 1.0
            spent += took
            outcomes.append(one._replace(score=found[-1], seconds=took, finished=True))
    return {
        "gap": -max(found),
        "seconds": seconds[STARTS:],
        "trials": len(outcomes),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, median, high = (round(float(one), 6) for one in statistics.quantiles(values, n=4))
    return {"median": median, "lower quartile": low, "upper quartile": high}


def installed_mb(root: str) -> dict[str, int]:
    """Megabytes on disk of a package and all that it requires."""
    sizes: dict[str, int] = {}

    def add(name: str) -> None:
        if name in sizes:
            return
        try:
            one = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            return
        paths = [Path(str(one.locate_file(file))) for file in one.files or ()]
        sizes[name] = sum(path.stat().st_size for path in paths if path.is_file()) // 10**6
        for needed in one.requires or ():
            if "extra ==" not in needed:
                add("".join(c if c.isalnum() or c in "-_." else " " for c in needed).split()[0])

    add(root)
    return sizes


def proposals(name: str) -> str:
    """Digest of ten proposals with all their digits."""
    case = CASES["hartmann of 3"]
    space, outcomes = space_of(case.size), []
    for number in range(14):
        shares = asker(name, space, 3)(number, outcomes)
        value = case.function(np.array(list(shares.values())))
        outcomes.append(TrialOutcome(shares, value, STEPS, 1.0, True))
    text = json.dumps([one.shares for one in outcomes])
    return hashlib.sha256(text.encode()).hexdigest()


def digest_elsewhere(name: str) -> str:
    words = [sys.executable, __file__, "--proposals", name]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def main(seeds: int = 10, trials: int = 24) -> None:
    """Measure, and write the result."""
    cases: dict[str, Any] = {}
    times: dict[str, list[float]] = {name: [] for name in NAMES}
    for title, case in CASES.items():
        cases[title] = {}
        for name in NAMES:
            runs = [search(name, case, seed, trials) for seed in range(seeds)]
            times[name] += [second for run in runs for second in run["seconds"]]
            cases[title][name] = {
                "gap": spread([run["gap"] for run in runs]),
                "gaps": [round(float(run["gap"]), 6) for run in runs],
                "trials": statistics.median(run["trials"] for run in runs),
            }
            print(title, name, cases[title][name]["gap"], flush=True)
    packages = {name: installed_mb(name) for name in ("optuna", "torch", "scipy")}
    RESULT.write_text(
        json.dumps(
            {
                "command": f"python experiments/bench/samplers.py {seeds} {trials}",
                "commit": commit(),
                "machine": machine(),
                "versions": versions(),
                "optuna": importlib.metadata.version("optuna"),
                "seeds": seeds,
                "trials": trials,
                "starts": STARTS,
                "cases": cases,
                "CPU seconds of a proposal": {name: spread(all) for name, all in times.items()},
                "megabytes": {name: sum(sizes.values()) for name, sizes in packages.items()},
                "the same in two processes": {
                    name: proposals(name) == digest_elsewhere(name) for name in NAMES
                },
            },
            indent=1,
        )
        + "\n"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--proposals"]:
        print(proposals(sys.argv[2]))
    else:
        main(*map(int, sys.argv[1:]))
