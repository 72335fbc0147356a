"""``python -m jaxrl_fast.tuning.trial``: the subprocess that measures settings: builds, compiles,
times.
"""

import dataclasses
import json
import math
import os
import queue
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

from jaxrl_fast.assembly import bind, build_graph, with_own_data
from jaxrl_fast.commands import run_config
from jaxrl_fast.commands.prepare import fill_in_alone, taught_algorithm
from jaxrl_fast.commands.run_config import make_envs, with_defaults
from jaxrl_fast.core import Metrics
from jaxrl_fast.envs.env import VecEnv
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.hosts.io_callback_env import in_graph
from jaxrl_fast.learning.acting import BoundAgent
from jaxrl_fast.learning.algorithm import AnyAlgorithm
from jaxrl_fast.runtime import program as programs
from jaxrl_fast.runtime.chain import Chain
from jaxrl_fast.runtime.graph import Graph, TrainState
from jaxrl_fast.runtime.placements import Placement, check_placed, place
from jaxrl_fast.settings import machine
from jaxrl_fast.settings.run import Run, make_graph_options
from jaxrl_fast.system import current_bytes, peak_bytes
from jaxrl_fast.training.job import ticks_within
from jaxrl_fast.tuning import ceiling
from jaxrl_fast.tuning.measuring import Request, What
from jaxrl_fast.views import hlo


class Ready(NamedTuple):
    """A compiled program that has not run.

    Attributes:
        init: Makes an initial state with a fixed key, a new one each time because a chunk donates
            it.
        run: Runs a chunk.
        ticks: Ticks of a chunk.
        compile_s: Seconds of the compilation.
    """

    init: Callable[[], TrainState]
    run: programs.RunChunk
    ticks: int
    compile_s: float


def compile_timed(
    graph: Graph, placement: Placement, hyper: Any, *, ticks: int, num_seeds: int = 1
) -> Ready:
    """Compile a graph and measure the time.

    Args:
        graph: Graph.
        placement: Its placement.
        hyper: Hyper-parameters.
        ticks: Ticks of a chunk.
        num_seeds: Number of seeds.

    Returns:
        The compiled program.
    """
    program = programs.compile(graph, placement, ticks, num_seeds)
    keys = jax.random.split(jax.random.key(0), num_seeds)
    begin_s = time.perf_counter()
    init, run = program.ready(keys, hyper)
    return Ready(lambda: init(keys, hyper), run, ticks, time.perf_counter() - begin_s)


def memory_bytes(ready: Ready, placement: Placement) -> int | None:
    """Return the memory that XLA predicts for the programs.

    A channel that several programs read counts for each.

    Args:
        ready: Compiled program.
        placement: Its placement.

    Returns:
        Bytes, on a CPU of all devices together, else of the fullest device; None if XLA does not
        report them.
    """
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
    """Run ticks for warm-up.

    Args:
        ready: Compiled program.
        num_ticks: Fewest ticks to run.

    Returns:
        ``repeat(chunks)``, which returns the seconds of these chunks and the metrics of the last.
    """
    state = ready.init()

    def repeat(chunks: int) -> tuple[float, Metrics]:
        nonlocal state
        begin_s = time.perf_counter()
        for _ in range(chunks):
            state, metrics = ready.run(state)
            # As in training. Several calls in flight can starve each other's collectives of threads
            # on a CPU.
            jax.block_until_ready((state, metrics))
        return time.perf_counter() - begin_s, metrics

    repeat(1 + -(-num_ticks // ready.ticks))
    return repeat


def _programs(run: Any, placement: Placement) -> list[tuple[tuple[jax.Device, ...], Compiled]]:
    if isinstance(run, Chain):
        return [
            (segment.devices, segment.step)
            for segment in run.segments
            if isinstance(segment.step, Compiled)
        ]
    return [(placement.groups[0].devices, run)]


CHUNK_STEPS, CHUNK_FRAMES = 8192, 65_536
"""Limits of a chunk, lower than in training, because a repeat consists of whole chunks."""
ENOUGH = 0.8
"""Share of the free memory that may be used without a cap."""


class Measured(NamedTuple):
    """A candidate that is ready to be timed.

    Attributes:
        repeat: ``(chunks) -> seconds``.
        ticks: Ticks of a chunk.
        memory_bytes: Memory that XLA predicts for its arrays; None without a prediction.
        compile_s: Seconds of the compilation.
    """

    repeat: Callable[[int], float]
    ticks: int
    memory_bytes: int | None
    compile_s: float


class DoesNotFit(Exception):
    """A candidate needs more memory than allowed."""


def measure(request: Request, report: Callable[..., None], wait: Callable[[], None]) -> None:
    """Compile, check the memory, warm up, and repeat on request.

    Args:
        request: Request of the parent.
        report: ``(kind, **facts)``, sends an answer.
        wait: Returns when the parent requests more.

    Raises:
        DoesNotFit: The candidate needs too much memory; nothing has run.
        ValueError: The settings cannot be run.
    """
    run, _ = fill_in_alone(run_config.compose([f"config={request.path}"]), look_up=False)
    run = without_warm_up(run)
    env = make_envs(run)
    try:
        run = with_defaults(run, env.spec)
        algorithm = taught_algorithm(run)[0]
        agent = bind(algorithm, env.spec, env.num_envs)
        facts = describe(run, env, agent)
        if request.what == "environments" and isinstance(env, HostEnv):
            measured = measure_on_host(env, agent.rollout_length)
        else:
            measured = compiled(request, run, env, algorithm, agent)
        report("ready", **facts, memory_bytes=measured.memory_bytes, compile_s=measured.compile_s)
        wait()  # others may be compiling before
        first = repeat(measured, 1)
        chunks = max(1, math.ceil(request.repeat_s / max(first["seconds"], 1e-6)))
        report("repeat", **(first if chunks == 1 else repeat(measured, chunks)))
        while True:
            wait()
            report("repeat", **repeat(measured, chunks))
    finally:
        if isinstance(env, HostEnv):
            env.close()


def repeat(measured: Measured, chunks: int) -> dict[str, Any]:
    """Time some chunks.

    Args:
        measured: Candidate.
        chunks: Number of chunks.

    Returns:
        Seconds, ticks, peak memory and the CPU share of other programs.
    """
    before = machine.busy_seconds()
    seconds = measured.repeat(chunks)
    others = share_of_others(before, machine.busy_seconds(), seconds)
    return {
        "seconds": seconds,
        "ticks": measured.ticks * chunks,
        "peak_bytes": peak_bytes(),
        "others": others,
    }


def measure_on_host(env: HostEnv, rollout_length: int) -> Measured:
    """Prepare the timing of host environments alone; a chunk is one tick.

    Args:
        env: Host environments.
        rollout_length: Steps of each environment in a tick.

    Returns:
        The candidate.
    """
    steps = ceiling.host_environments_only(env)

    def repeat(ticks: int) -> float:
        begin_s = time.perf_counter()
        steps(ticks * rollout_length)
        return time.perf_counter() - begin_s

    repeat(1)
    return Measured(repeat, 1, None, 0.0)


def compiled(
    request: Request, run: Run, env: VecEnv | HostEnv, algorithm: AnyAlgorithm, agent: BoundAgent
) -> Measured:
    """Compile and warm up a part of the run.

    Args:
        request: Request, with the part.
        run: Run.
        env: Environments.
        algorithm: Algorithm.
        agent: Algorithm bound to the environments.

    Returns:
        The candidate.

    Raises:
        DoesNotFit: It needs too much memory; nothing has run.
    """
    graph = part_of(request.what, run, env, algorithm)
    placed = place(graph, run.placement, run.devices)
    check_placed(graph, placed, run.num_seeds)
    frames = (
        agent.updates_per_tick * agent.batch_size if request.what in ("training", "updates") else 1
    )
    steps = env.num_envs * agent.rollout_length
    ticks = ticks_within(steps, frames, max_steps=CHUNK_STEPS, max_frames=CHUNK_FRAMES)
    ready = compile_timed(graph, placed, algorithm.hyper, ticks=ticks, num_seeds=run.num_seeds)
    wanted = memory_bytes(ready, placed)
    device = placed.groups[0].devices[0]
    # more after compiling than after loading from disk
    taken = current_bytes() if device.platform == "cpu" else 0
    free = machine.free_bytes([device]) + taken
    cap = request.memory_cap if request.memory_cap is not None else ENOUGH * free
    if wanted is not None and wanted + taken > cap:
        raise DoesNotFit(
            f"needs {(wanted + taken) / 1e9:.3g} GB of memory, and {cap / 1e9:.3g} GB are allowed"
        )
    timed = warm(ready, agent.warmup_ticks + 1 if request.what == "training" else 0)
    return Measured(lambda chunks: _checked(*timed(chunks)), ticks, wanted, ready.compile_s)


def part_of(what: What, run: Run, env: VecEnv | HostEnv, algorithm: AnyAlgorithm) -> Graph:
    """Build the graph of a run, or of a part that bounds it.

    Args:
        what: Part of the run.
        run: Run.
        env: Environments.
        algorithm: Algorithm.

    Returns:
        The graph.
    """
    joined = in_graph(env).env
    if what == "sampling":
        return ceiling.sampling_only(joined, algorithm)
    if what == "updates":
        return ceiling.updates_only(env, algorithm)
    if what == "environments" and not isinstance(env, HostEnv):
        return ceiling.environments_only(env, run.algo_options["rollout_length"])
    algorithm, recorded = with_own_data(algorithm, run, env.spec)
    return build_graph(joined, algorithm, make_graph_options(run), recorded)[0]


def without_warm_up(run: Run) -> Run:
    """Return the run with the shortest warm-up of replay, because the rate after it is measured.

    No warm-up would change the program.

    Args:
        run: Run.

    Returns:
        The run with fewer warm-up steps.
    """
    if "warmup_steps" not in run.algo_options:
        return run
    shortest = run.num_envs * run.algo_options["rollout_length"] + 1
    steps = min(shortest, run.algo_options["warmup_steps"])
    return dataclasses.replace(run, algo_options={**run.algo_options, "warmup_steps": steps})


def describe(run: Run, env: VecEnv | HostEnv, agent: BoundAgent) -> dict[str, Any]:
    """Describe a candidate as it runs on this machine.

    Args:
        run: Run.
        env: Environments.
        agent: Algorithm bound to the environments.

    Returns:
        Values for JSON.
    """
    fields = {
        name: getattr(run, name) for name in ("num_envs", "num_seeds", "placement", "devices")
    }
    sizes = {
        name: getattr(agent, name) for name in ("rollout_length", "updates_per_tick", "batch_size")
    }
    platform, devices = jax.default_backend(), jax.devices()
    return {
        **fields,
        **sizes,
        "platform": platform,
        "device_kind": devices[0].device_kind,
        "available": machine.cpu_cores() if platform == "cpu" else len(devices),
        "events": env.events() if isinstance(env, HostEnv) else [],
    }


def share_of_others(
    before: tuple[float, float] | None, after: tuple[float, float] | None, seconds: float
) -> float | None:
    """Return the share of the machine's CPU time that other programs used.

    Args:
        before: Result of `busy_seconds` before.
        after: Result of `busy_seconds` after.
        seconds: Seconds between both.

    Returns:
        The share, 0 to 1; None if the system does not report it.
    """
    if before is None or after is None:
        return None
    all_s, own_s = (b - a for a, b in zip(before, after, strict=True))
    return max(0.0, all_s - own_s) / (seconds * machine.cpu_cores())


def _checked(seconds: float, metrics: dict[str, Any]) -> float:
    for name, values in metrics.items():
        if not np.isfinite(np.asarray(values)).all():
            raise ValueError(f"metric {name} became NaN or infinite")
    return seconds


def main(argument: str) -> NoReturn:
    """Run the process: answers go to the original standard output, all other output to stderr.

    Args:
        argument: `Request` as JSON.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    _be_the_first_to_go()

    def report(kind: str, **facts: Any) -> None:
        print(json.dumps({"kind": kind, **facts}), file=answers, flush=True)

    def wait() -> None:
        requests.get()

    status = 0
    try:
        measure(Request(*json.loads(argument)), report, wait)
    except DoesNotFit as error:
        report("skipped", why=str(error))
    except (ValueError, OSError, ImportError) as error:
        report("refused", why=" ".join(str(error).split()))
    except (MemoryError, JaxRuntimeError) as error:
        if isinstance(error, JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            traceback.print_exc()
            status = 1
        else:
            report("out of memory", why=" ".join(str(error).split())[:200])
    except Exception:
        traceback.print_exc()
        status = 1
    sys.stderr.flush()
    os._exit(status)


def _listen(requests: queue.SimpleQueue[str]) -> None:
    """Queue the parent's requests; exit at once when the parent has closed the pipe or ended."""
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)


def _be_the_first_to_go() -> None:
    """Make the system kill this process before any other if memory runs out (Linux)."""
    try:
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="utf-8")
    except OSError:
        return


if __name__ == "__main__":
    main(sys.argv[1])
