"""The sampler pool against one process, Gymnasium's vector environments, EnvPool and Ray actors.

``python experiments/bench/pool.py [--rounds 5] [--seconds 1] [row ...]`` needs an otherwise idle
machine. It prints a table and writes ``results/pool.json``, where other rows stay unchanged. Rates
are environment steps per second under uniform random actions: the median over rounds in which all
contenders take turns (EnvPool and Ray separately, after them). A call in which Gymnasium's vector
environments only reset is no step. Contenders whose package is not installed (ale-py, envpool, ray)
are left out and named.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import machine

from jaxrl_fast.envs.from_gymnasium import make_custom_host, make_host
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.envs.pool import recipes
from jaxrl_fast.envs.pool.batches import PoolOptions
from jaxrl_fast.envs.pool.codec import sample
from jaxrl_fast.envs.pool.stepping import HostEnvSpec, describe

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
LIGHT = ("CartPole-v1", "Pendulum-v1", "Blackjack-v1")
ROWS = {
    **{
        f"{id} {n}": (
            id,
            n,
            ("one process", "at once", "pool", "pool, one group", "envpool backend", "envpool"),
        )
        for id in ("HalfCheetah-v5", "Hopper-v5")
        for n in (16, 64)
    },
    **{
        f"{id} {n}": (id, n, ("auto", "pool", "pool, one group", "sync", "async", "ray"))
        for id in LIGHT
        for n in (15, 64)
    },
    **{
        f"{id} 15": (
            id,
            15,
            ("auto", "pool, one group", "pool, three groups", "sync", "async", "ray"),
        )
        for id in ("ALE/Pong-v5", "ALE/Pacman-v5", "ALE/SpaceInvaders-v5")
    },
}
"""Row -> environment, number of environments, contenders.

A pool has two groups where they divide the environments. With image observations three groups are
faster than one: the parent copies 1.5 MB while the other groups step.
"""
NEEDS = {"envpool": "envpool", "envpool backend": "envpool", "ray": "ray"}
APART = (("envpool backend", "envpool"), ("ray",))
"""Measured after the others have ended: their threads and servers use the cores also between their
turns.
"""
RESULT = Path(__file__).parent.parent / "results" / "pool.json"


class Contender(NamedTuple):
    """``batch(actions [E, ...]) -> steps made``; ``notes``: its self-description."""

    batch: Callable[[np.ndarray], int]
    close: Callable[[], None]
    notes: list[str]


class Nothing(gymnasium.Env):
    """An environment whose step costs nothing, to measure the pool alone."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,))
    action_space = gymnasium.spaces.Discrete(2)
    obs = np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        return self.obs, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        return self.obs, 0.0, False, False, {}


def of_host(host: HostEnv) -> Contender:
    """Let groups take turns: a group gets its actions as soon as its last step was received."""
    host.reset(0)
    size = host.num_envs // host.num_groups
    begun: set[int] = set()

    def batch(actions: np.ndarray) -> int:
        for group in range(host.num_groups):
            if group in begun:
                host.recv(group)
            host.send(actions[group * size : (group + 1) * size], group)
            begun.add(group)
        return host.num_envs

    return Contender(batch, host.close, host.events())


def one_process(host_spec: HostEnvSpec, num_envs: int) -> Contender:
    """Step the environments alone, in a loop that stores no results."""
    envs = [host_spec.make() for _ in range(num_envs)]
    for i, env in enumerate(envs):
        env.reset(seed=i)

    def batch(actions: np.ndarray) -> int:
        for env, action in zip(envs, host_spec.act.decode(actions), strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        return num_envs

    return Contender(batch, lambda: [env.close() for env in envs] and None, [])


def at_once(id: str, num_envs: int) -> Contender:
    """Run one such loop per core without any communication: the upper bound of the cores."""
    turns, share = 1000, num_envs // CORES
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import pool, numpy\n"
        f"host_spec = pool.describe(pool.recipes.recipe({id!r}), {id!r}); one = pool.one_process(host_spec, {share})\n"
        f"actions = [pool.sample(host_spec.act, numpy.random.default_rng(i), {share}) for i in range({turns})]\n"
        "for _ in sys.stdin: [one.batch(a) for a in actions]; print(1, flush=True)"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(CORES)
    ]

    def batch(actions: np.ndarray) -> int:
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        for process in processes:
            process.stdout.readline()
        return turns * share * CORES

    return Contender(batch, lambda: [process.communicate() for process in processes] and None, [])


def gymnasium_vector(host_spec: HostEnvSpec, num_envs: int, kind: str) -> Contender:
    """Run SyncVectorEnv, or AsyncVectorEnv with shared memory, with default options."""
    makers = [host_spec.make] * num_envs
    if kind == "sync":
        vector = gymnasium.vector.SyncVectorEnv(makers)
    else:
        with warnings.catch_warnings():
            # JAX is imported, not running: its warning of forks does not matter here
            warnings.simplefilter("ignore")
            vector = gymnasium.vector.AsyncVectorEnv(makers)
    vector.reset(seed=0)
    ended = np.zeros(num_envs, bool)

    def batch(actions: np.ndarray) -> int:
        nonlocal ended
        _, _, terminated, truncated, _ = vector.step(np.asarray(host_spec.act.decode(actions)))
        steps = num_envs - int(ended.sum())
        ended = terminated | truncated
        return steps

    return Contender(batch, vector.close, [])


def envpool_alone(id: str, num_envs: int) -> Contender:
    """Run EnvPool with default options: all environments in one batch."""
    envpool = import_module("envpool").make(id, env_type="gymnasium", num_envs=num_envs)
    envpool.reset()
    ended = np.zeros(num_envs, bool)

    def batch(actions: np.ndarray) -> int:
        nonlocal ended
        _, _, terminated, truncated, _ = envpool.step(actions.astype(envpool.action_space.dtype))
        steps = num_envs - int(ended.sum())
        ended = terminated | truncated
        return steps

    return Contender(batch, envpool.close, [])


def ray_actors(host_spec: HostEnvSpec, num_envs: int) -> Contender:
    """Run one actor per environment, each called once a step, as the Reactor paper counts it."""
    ray = import_module("ray")
    ray.init(num_cpus=CORES, include_dashboard=False, log_to_driver=False)

    class Actor:
        def __init__(self, make: Callable[[], gymnasium.Env]) -> None:
            self.env = make()
            self.env.reset(seed=0)

        def step(self, action: Any) -> Any:
            result = self.env.step(action)
            if result[2] or result[3]:
                self.env.reset()
            return result[:4]

    actors = [ray.remote(num_cpus=0)(Actor).remote(host_spec.make) for _ in range(num_envs)]

    def batch(actions: np.ndarray) -> int:
        decoded = host_spec.act.decode(actions)
        ray.get([actor.step.remote(action) for actor, action in zip(actors, decoded, strict=True)])
        return num_envs

    return Contender(batch, ray.shutdown, [])


def contender(name: str, id: str, num_envs: int, host_spec: HostEnvSpec) -> Contender:
    """Build a contender by its name in `ROWS`."""
    workers = min(CORES, num_envs)
    groups = 1 if num_envs % 2 else 2
    if name == "one process":
        return one_process(host_spec, num_envs)
    if name == "at once":
        return at_once(id, num_envs)
    if name in ("sync", "async"):
        return gymnasium_vector(host_spec, num_envs, name)
    if name == "envpool":
        return envpool_alone(id, num_envs)
    if name == "ray":
        return ray_actors(host_spec, num_envs)
    options = {
        "auto": PoolOptions(num_groups=groups),
        "pool": PoolOptions(workers=workers, num_groups=groups),
        "pool, one group": PoolOptions(workers=workers, num_groups=1),
        "pool, three groups": PoolOptions(workers=workers, num_groups=3),
        "envpool backend": PoolOptions(backend="envpool", num_groups=1),
    }[name]
    return of_host(make_host(id, num_envs=num_envs, pool=options))


def rate(one: Contender, actions: np.ndarray, seconds: float) -> float:
    """Measure steps per second; cycles through the actions ``[batches, E, ...]``."""
    steps, began, at = 0, time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        steps += one.batch(actions[at % len(actions)])
        at += 1
    return steps / (time.perf_counter() - began)


def row(name: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Measure the rates of all contenders of a row, in turns."""
    id, num_envs, names = ROWS[name]
    missing = [n for n in names if n in NEEDS and find_spec(NEEDS[n]) is None]
    if id.startswith("ALE/") and find_spec("ale_py") is None:
        return {"row": name, "left out": "ale-py is not installed"}
    host_spec = describe(recipes.recipe(id), id)
    rng = np.random.default_rng(0)
    actions = np.stack([sample(host_spec.act, rng, num_envs) for _ in range(64)])
    rates, notes = dict[str, list[float]](), list[str]()
    for together in ([n for n in names if n not in sum(APART, ())], *APART):
        entered = {
            n: contender(n, id, num_envs, host_spec)
            for n in together
            if n in names and n not in missing
        }
        rates |= take_turns(entered, actions, rounds, seconds)
        notes += [note for one in entered.values() for note in one.notes]
    medians = {n: statistics.median(values) for n, values in rates.items()}
    return {
        "row": name,
        "env": id,
        "num_envs": num_envs,
        "rates": medians,
        "ratios": ratios(medians),
        "rounds": rates,
        "not installed": missing,
        "notes": notes,
    }


def take_turns(
    entered: dict[str, Contender], actions: np.ndarray, rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Warm up, measure round by round, close."""
    rates: dict[str, list[float]] = {n: [] for n in entered}
    for one in entered.values():
        rate(one, actions, min(0.3, seconds))
    for _ in range(rounds):
        for n, one in entered.items():
            rates[n].append(rate(one, actions, seconds))
    for one in entered.values():
        one.close()
    return rates


def ratios(rates: dict[str, float]) -> dict[str, float]:
    """Compute the required ratios: of the pool (with its best number of groups) to cores times one
    process, and to the best of Gymnasium's, EnvPool and Ray.
    """
    rates = dict(rates)
    rates["pool"] = max(rate for name, rate in rates.items() if name.startswith("pool"))
    found = {}
    if "one process" in rates:
        found["pool / (cores x one process)"] = rates["pool"] / (CORES * rates["one process"])
        found["at once / (cores x one process)"] = rates["at once"] / (CORES * rates["one process"])
    for one in ("auto", "pool"):
        if one in rates and "sync" in rates:
            found[f"{one} / better of sync and async"] = rates[one] / max(
                rates["sync"], rates["async"]
            )
    for one, other in (
        ("auto", "ray"),
        ("pool", "ray"),
        ("pool", "envpool"),
        ("envpool backend", "envpool"),
    ):
        if one in rates and other in rates:
            found[f"{one} / {other}"] = rates[one] / rates[other]
    return found


def round_trip(seconds: float) -> dict[str, float]:
    """Measure the pool's overhead per batch in microseconds: two environments that do nothing, in
    one group and in two.
    """
    found = {}
    for workers in (0, 1, 2):
        for groups in (1, 2):
            options = PoolOptions(workers=workers, num_groups=groups)
            one = of_host(
                make_custom_host(Nothing, num_envs=2 * groups, name="nothing", pool=options)
            )
            batches = rate(one, np.zeros((1, 2 * groups), np.int32), seconds) / 2
            found[f"{workers} workers, {groups} groups"] = 1e6 / batches
            one.close()
    return found


def memory(id: str, num_envs: int) -> dict[str, float]:
    """Measure the proportional memory, MiB, of the pool's workers and of as many plain processes
    with the same environments.
    """
    share = num_envs // CORES
    code = (
        f"import gymnasium, sys; envs = [gymnasium.make({id!r}) for _ in range({share})]; "
        "[(e.reset(), e.step(e.action_space.sample())) for e in envs]; print(1, flush=True); sys.stdin.read()"
    )
    quiet = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code]
    plain = [
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=quiet,
        )
        for _ in range(CORES)
    ]
    for process in plain:
        while process.stdout.readline().strip() != b"1":
            pass
    before = set(children())
    host = make_host(id, num_envs=num_envs, pool=PoolOptions(workers=CORES, num_groups=1))
    one = of_host(host)
    host_spec = describe(recipes.recipe(id), id)
    rate(one, sample(host_spec.act, np.random.default_rng(0), num_envs)[None], 0.2)
    workers = set(children()) - before
    found = {
        "pool_mib": sum(map(pss_mib, workers)),
        "plain_mib": sum(pss_mib(process.pid) for process in plain),
    }
    one.close()
    for process in plain:
        process.communicate()
    return {**found, "ratio": found["pool_mib"] / found["plain_mib"]}


def children() -> Iterator[int]:
    """Return the process ids of this process's children."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if parent == os.getpid():
            yield int(stat.parent.name)


def pss_mib(pid: int) -> float:
    """Return the memory of a process, with shared pages counted in parts."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def start_s(id: str, num_envs: int) -> float:
    """Measure the seconds from the start to the first observations."""
    began = time.perf_counter()
    host = make_host(id, num_envs=num_envs, pool=PoolOptions(workers=CORES))
    host.reset(0)
    took = time.perf_counter() - began
    host.close()
    return took


def main() -> None:
    """Measure, print a table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("rows", nargs="*", metavar="row", help="one of: " + ", ".join(ROWS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    asked = parser.parse_args()
    if unknown := set(asked.rows) - set(ROWS):
        parser.error(f"no row {unknown.pop()!r}: write one of {', '.join(ROWS)}")
    known = (
        {one["row"]: one for one in json.loads(RESULT.read_text())["rows"]}
        if RESULT.exists()
        else {}
    )
    for name in asked.rows or ROWS:
        found = known[name] = row(name, asked.rounds, asked.seconds) | {"machine": machine()}
        print(
            f"{name:24}",
            *(f"{n} {value:,.0f}" for n, value in found.get("rates", {}).items()),
            sep="  ",
        )
        print(
            " " * 24,
            *(f"{n} {value:.2f}" for n, value in found.get("ratios", {}).items()),
            sep="  ",
            flush=True,
        )
    setting = {
        "cores": CORES,
        "rounds": asked.rounds,
        "seconds": asked.seconds,
        "python": platform.python_version(),
        "gymnasium": gymnasium.__version__,
        "unit": "environment steps per second, median over rounds",
    }
    beside = {
        "batch_us": round_trip(asked.seconds),
        "memory": {"HalfCheetah-v5 16": memory("HalfCheetah-v5", 16)},
        "start_s": {id: start_s(id, 16) for id in ("CartPole-v1", "HalfCheetah-v5")},
    }
    print(json.dumps(beside, indent=2))
    rows = [known[name] for name in ROWS if name in known]
    RESULT.write_text(json.dumps({"setting": setting, "rows": rows, **beside}, indent=2) + "\n")


if __name__ == "__main__":
    main()
