"""The cost of several agents: training against bare loops over JaxMARL's environments, and three
agents against one.

``python experiments/bench/agents.py [spread_ippo ...] [points]`` needs the extra ``jaxmarl`` and 15
minutes on an otherwise idle machine. It measures ours and the bare loop in turn, A B A B ..., each
compiled and warm, and writes ``experiments/results/bench/agents.json``. The bare loops have the
networks that JaxMARL publishes. Where these have a memory, a second loop leaves out the layer
before the memory, which our network does not have. On more than one core, ours also runs with actor
and critic on separate devices. ``points`` measures the cost of an agent's step.
"""

import json
import sys
from pathlib import Path
from typing import Any

from run import HERE, RESULTS, Worker, spread

sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent)]

from describe import machine, versions  # noqa: E402

from jaxrl_fast.settings.machine import cpu_cores  # noqa: E402

RESULT = RESULTS / "agents.json"
AS_OURS, APART = "bare, memory as ours", "ours, actor_critic"
ROUNDS = {"spread_ippo": 9, "spread_mappo": 7, "smax_3m_mappo": 5, "points": 9}
AGENTS = {"one_agent": 1, "one_agent_48": 1, "three_agents": 3}


def commands(name: str) -> dict[str, tuple[str, ...]]:
    """Return the workers of a row."""
    if name == "points":
        return {row: ("ours.py", row, "train") for row in AGENTS}
    bare, ours = ("bare_agents.py", "rate", name), ("ours.py", name, "train")
    more = {} if name == "spread_ippo" else {AS_OURS: (*bare, "all")}
    apart = {APART: (*ours, "actor_critic")} if cpu_cores() > 1 else {}
    return {"ours": ours, "bare": bare} | more | apart


def measure(name: str) -> dict[str, Any]:
    """Measure the rates of all workers of a row, in turn, and their ratios round by round."""
    workers: dict[str, Worker] = {}
    rates: dict[str, list[float]] = {what: [] for what in commands(name)}
    try:
        for what, words in commands(name).items():
            workers[what] = Worker(sys.executable, *words)
            print(f"{name}: {what} ready, {workers[what].read()['ready']}", flush=True)
            workers[
                what
                # a bare loop compiles a second time for the state that its first iteration returns
            ].repeat()
        for _ in range(ROUNDS[name]):
            for what, worker in workers.items():
                found = worker.repeat()
                rates[what].append(found["steps"] * AGENTS.get(what, 1) / found["seconds"])
            print(name, {what: round(values[-1]) for what, values in rates.items()}, flush=True)
    finally:
        for worker in workers.values():
            worker.process.kill()
            worker.process.wait()
    return {
        "rate": {what: spread(values) for what, values in rates.items()},
        "ratio": ratios(rates),
        "rates": rates,
    }


def ratios(rates: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Compute the ratio of ours to each bare loop; for `agents`, the cost of three agents against
    one.
    """
    if "ours" in rates:
        pairs = {what: (rates["ours"], rates[what]) for what in rates if what.startswith("bare")}
        pairs |= {
            f"{APART} / {what}": (rates[APART], rates[what]) for what in pairs if APART in rates
        }
    else:
        pairs = {
            what: (rates[what], rates["three_agents"]) for what in rates if what != "three_agents"
        }
    return {
        what: spread([a / b for a, b in zip(*pair, strict=True)]) for what, pair in pairs.items()
    }


def main(names: list[str]) -> None:
    """Measure rows and write them."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in names or ROUNDS:
        if name not in ROUNDS:
            raise SystemExit(f"no row {name}: write one of {', '.join(ROUNDS)}")
        result = measure(name) | {"machine": machine(), "versions": versions(Path(sys.executable))}
        known = json.loads(RESULT.read_text()) if RESULT.exists() else {}
        RESULT.write_text(json.dumps({**known, name: result}, indent=1) + "\n")
        print(name, json.dumps(result["ratio"]))


if __name__ == "__main__":
    main(sys.argv[1:])
