"""Times a graph under a placement: compiles it, warms it up, and measures its chunks. Compilation is timed apart."""

import dataclasses
import json
import math
import os
import queue
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np
from jax.errors import JaxRuntimeError
from jax.stages import Compiled

from jaxrl_fast.commands import run_config
from jaxrl_fast.commands.prepare import fill_in_alone
from jaxrl_fast.commands.run_config import Run, graph_options, make_algorithm, make_envs
from jaxrl_fast.core import Metrics
from jaxrl_fast.envs.env import VecEnv
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.learning.acting import BoundAgent
from jaxrl_fast.learning.algorithm import Algorithm
from jaxrl_fast.learning.io_callback_env import in_graph
from jaxrl_fast.learning.run_graph import bind, build_graph
from jaxrl_fast.runtime import program as programs
from jaxrl_fast.runtime.chain import Chain
from jaxrl_fast.runtime.graph import Graph, TrainState
from jaxrl_fast.runtime.placements import Placement, check, place
from jaxrl_fast.settings import machine
from jaxrl_fast.training.job import ticks_within
from jaxrl_fast.tuning import ceiling
from jaxrl_fast.tuning.measuring import Request, What
from jaxrl_fast.views import hlo


class Ready(NamedTuple):
    """A program that is compiled and has not run: ``init()`` makes its first state, a new one each time since a
    chunk donates it, with fixed keys and rates; ``run`` runs a chunk of ``ticks`` ticks; ``compile_s``: the seconds
    that compiling took."""

    init: Callable[[], TrainState]
    run: programs.RunChunk
    ticks: int
    compile_s: float


def compile_timed(graph: Graph, placement: Placement, hyper: Any, *, ticks: int, num_seeds: int = 1) -> Ready:
    """Compile chunks of ``ticks`` ticks."""
    program = programs.compile(graph, placement, ticks, num_seeds)
    keys = jax.random.split(jax.random.key(0), num_seeds)
    begin_s = time.perf_counter()
    init, run = program.ready(keys, hyper)
    return Ready(lambda: init(keys, hyper), run, ticks, time.perf_counter() - begin_s)


def memory_bytes(ready: Ready, placement: Placement) -> int | None:
    """Memory that the programs need, as XLA predicts it: on a CPU that of all devices together, else that of the device
    that needs most. A channel that several programs read counts for each. None where XLA does not say."""
    per_device: dict[jax.Device, int] = {}
    for devices, step in _programs(ready.run, placement):
        wanted = hlo.program_bytes(step)
        if wanted is None:
            return None
        for device in devices:
            per_device[device] = per_device.get(device, 0) + wanted
    together = sum if next(iter(per_device)).platform == "cpu" else max
    return together(per_device.values())


def warm(ready: Ready, num_ticks: int) -> Callable[[int], tuple[float, Metrics]]:
    """Run at least ``num_ticks`` ticks; then ``repeat(chunks)`` gives the seconds of so many chunks, and the metrics of
    the last."""
    state = ready.init()

    def repeat(chunks: int) -> tuple[float, Metrics]:
        nonlocal state
        begin_s = time.perf_counter()
        for _ in range(chunks):
            state, metrics = ready.run(state)
            # As training does. Several calls in flight can starve each other's collectives of threads on a CPU.
            jax.block_until_ready((state, metrics))
        return time.perf_counter() - begin_s, metrics

    repeat(1 + -(-num_ticks // ready.ticks))
    return repeat


def _programs(run: Any, placement: Placement) -> list[tuple[tuple[jax.Device, ...], Compiled]]:
    if isinstance(run, Chain):
        return [(segment.devices, segment.step) for segment in run.segments if isinstance(segment.step, Compiled)]
    return [(placement.groups[0].devices, run)]


CHUNK_STEPS, CHUNK_FRAMES = 8192, 65_536
"""Limits of a chunk, lower than in training, since a repeat is made of whole chunks."""
ENOUGH = 0.8
"""The share of the free memory that may be used unless a cap is given."""


class Measured(NamedTuple):
    """A candidate that is ready to be timed: ``repeat(chunks)`` returns the seconds that so many chunks of ``ticks``
    ticks took; ``memory_bytes``: what XLA
    predicts for its arrays (None: unknown); ``compile_s``: the seconds that compiling took."""

    repeat: Callable[[int], float]
    ticks: int
    memory_bytes: int | None
    compile_s: float


class DoesNotFit(Exception):
    """A candidate needs more memory than it may have."""


def measure(request: Request, say: Callable[..., None], wait: Callable[[], None]) -> None:
    """Compile, check the memory, warm up, and repeat as often as asked. ``say(kind, **facts)`` answers, ``wait``
    returns when the parent asks for more.

    Raises:
        DoesNotFit: before anything has run.
        ValueError: the settings cannot be run.
    """
    run, _ = fill_in_alone(run_config.compose([f"config={request.path}"]), look_up=False)
    run = without_warm_up(run)
    env = make_envs(run)
    try:
        algorithm = make_algorithm(run)
        agent = bind(algorithm, env.spec, env.num_envs)
        facts = describe(run, env, agent)
        if request.what == "environments" and isinstance(env, HostEnv):
            measured = measure_on_host(env, agent.rollout_length)
        else:
            measured = compiled(request, run, env, algorithm, agent)
        say("ready", **facts, memory_bytes=measured.memory_bytes, compile_s=measured.compile_s)
        wait()  # until then others may be compiling
        first = repeat(measured, 1)
        chunks = max(1, math.ceil(request.repeat_s / max(first["seconds"], 1e-6)))
        say("repeat", **(first if chunks == 1 else repeat(measured, chunks)))
        while True:
            wait()
            say("repeat", **repeat(measured, chunks))
    finally:
        if isinstance(env, HostEnv):
            env.close()


def repeat(measured: Measured, chunks: int) -> dict[str, Any]:
    """The answer about so many chunks: seconds, ticks, peak memory and the share of other programs."""
    before = machine.busy_seconds()
    seconds = measured.repeat(chunks)
    others = share_of_others(before, machine.busy_seconds(), seconds)
    return {"seconds": seconds, "ticks": measured.ticks * chunks, "peak_bytes": peak_bytes(), "others": others}


def measure_on_host(env: HostEnv, rollout_length: int) -> Measured:
    """Environments alone, stepped outside JAX; a chunk is one tick."""
    steps = ceiling.host_environments_only(env)

    def repeat(ticks: int) -> float:
        begin_s = time.perf_counter()
        steps(ticks * rollout_length)
        return time.perf_counter() - begin_s

    repeat(1)
    return Measured(repeat, 1, None, 0.0)


def compiled(request: Request, run: Run, env: VecEnv | HostEnv, algorithm: Algorithm, agent: BoundAgent) -> Measured:
    """A part of the run (``request.what``), compiled and warmed up.

    Raises:
        DoesNotFit: it would need too much memory; nothing has run.
    """
    graph = part_of(request.what, run, env, algorithm)
    placed = place(graph, run.placement, run.devices)
    check(graph, placed, run.num_seeds)
    frames = agent.updates_per_tick * agent.batch_size if request.what in ("training", "updates") else 1
    steps = env.num_envs * agent.rollout_length
    ticks = ticks_within(steps, frames, max_steps=CHUNK_STEPS, max_frames=CHUNK_FRAMES)
    ready = compile_timed(graph, placed, algorithm.hyper, ticks=ticks, num_seeds=run.num_seeds)
    wanted = memory_bytes(ready, placed)
    device = placed.groups[0].devices[0]
    cap = request.memory_cap if request.memory_cap is not None else ENOUGH * free_bytes(device)
    taken = current_bytes() if device.platform == "cpu" else 0  # more if it was compiled here than if it was on disk
    if wanted is not None and wanted + taken > cap:
        raise DoesNotFit(f"wants {(wanted + taken) / 1e9:.3g} GB of memory, and {cap / 1e9:.3g} GB are allowed")
    timed = warm(ready, agent.warmup_ticks + 1 if request.what == "training" else 0)
    return Measured(lambda chunks: _checked(*timed(chunks)), ticks, wanted, ready.compile_s)


def part_of(what: What, run: Run, env: VecEnv | HostEnv, algorithm: Algorithm) -> Graph:
    """The graph of the whole run, or of what bounds it."""
    joined = in_graph(env).env
    if what == "sampling":
        return ceiling.sampling_only(joined, algorithm)
    if what == "updates":
        return ceiling.updates_only(env, algorithm)
    if what == "environments" and not isinstance(env, HostEnv):
        return ceiling.environments_only(env, run.algo_options["rollout_length"])
    return build_graph(joined, algorithm, graph_options(run))[0]


def without_warm_up(run: Run) -> Run:
    """The run with the shortest possible warm-up of replay, since the rate after it is to be measured. Without any
    warm-up the program would be another."""
    if "warmup_steps" not in run.algo_options:
        return run
    shortest = run.num_envs * run.algo_options["rollout_length"] + 1
    steps = min(shortest, run.algo_options["warmup_steps"])
    return dataclasses.replace(run, algo_options={**run.algo_options, "warmup_steps": steps})


def describe(run: Run, env: VecEnv | HostEnv, agent: BoundAgent) -> dict[str, Any]:
    """Facts about the candidate, as prepared on this machine."""
    own = {name: getattr(run, name) for name in ("num_envs", "num_seeds", "placement", "devices")}
    sizes = {name: getattr(agent, name) for name in ("rollout_length", "updates_per_tick", "batch_size")}
    platform, devices = jax.default_backend(), jax.devices()
    return {
        **own,
        **sizes,
        "platform": platform,
        "device_kind": devices[0].device_kind,
        "available": machine.cpu_cores() if platform == "cpu" else len(devices),
        "events": env.events() if isinstance(env, HostEnv) else [],
    }


def share_of_others(
    before: tuple[float, float] | None, after: tuple[float, float] | None, seconds: float
) -> float | None:
    """The share of the machine's CPU time that other programs took meanwhile."""
    if before is None or after is None:
        return None
    all_s, own_s = (b - a for a, b in zip(before, after, strict=True))
    return max(0.0, all_s - own_s) / (seconds * machine.cpu_cores())


def free_bytes(device: jax.Device) -> int:
    """Memory that is free where the program will run."""
    stats = (device.memory_stats() or {}) if device.platform != "cpu" else {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    return machine.free_memory_bytes() + current_bytes()


def current_bytes() -> int:
    """Memory of this process now; its peak so far where the system does not say (Linux does)."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return peak_bytes()


def peak_bytes() -> int:
    """The most memory that this process has had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _checked(seconds: float, metrics: dict[str, Any]) -> float:
    for name, values in metrics.items():
        if not np.isfinite(np.asarray(values)).all():
            raise ValueError(f"metric {name} became NaN or infinite")
    return seconds


def main(argument: str) -> NoReturn:
    """The process: answers on what was its standard output; whatever else is printed goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asked: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()
    _be_the_first_to_go()

    def say(kind: str, **facts: Any) -> None:
        print(json.dumps({"kind": kind, **facts}), file=answers, flush=True)

    def wait() -> None:
        asked.get()

    status = 0
    try:
        measure(Request(*json.loads(argument)), say, wait)
    except DoesNotFit as error:
        say("skipped", why=str(error))
    except (ValueError, OSError, ImportError) as error:
        say("refused", why=" ".join(str(error).split()))
    except (MemoryError, JaxRuntimeError) as error:
        if isinstance(error, JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            traceback.print_exc()
            status = 1
        else:
            say("out of memory", why=" ".join(str(error).split())[:200])
    except Exception:
        traceback.print_exc()
        status = 1
    sys.stderr.flush()
    os._exit(status)


def _listen(asked: queue.SimpleQueue[str]) -> None:
    """Queue what the parent asks; end the process, wherever it is, when the parent has closed the pipe or ended."""
    for line in sys.stdin:
        asked.put(line)
    os._exit(0)


def _be_the_first_to_go() -> None:
    """Have the system end this process before any other if memory runs out after all (Linux)."""
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:
        return


if __name__ == "__main__":
    main(sys.argv[1])
