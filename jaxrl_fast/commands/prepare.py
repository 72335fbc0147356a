"""Prepares a run for this machine and reports it: first lines, facts in its folder, closing lines."""

import dataclasses
import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, get_args

import jax

from jaxrl_fast import envs
from jaxrl_fast.commands import tuning_cache
from jaxrl_fast.commands.env_cache import EnvCache, env_cache_of, make_cached_envs
from jaxrl_fast.commands.run_config import (
    CHOSEN,
    WORKER_ACTING,
    env_name,
    make_algorithm,
    with_bridge,
    with_defaults,
)
from jaxrl_fast.envs.env import VecEnv
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.learning.algorithm import AnyAlgorithm
from jaxrl_fast.learning.run_graph import Overlap
from jaxrl_fast.policy.policies import Policy, load_policy
from jaxrl_fast.policy.teacher import TEACHER, with_teacher
from jaxrl_fast.runtime import cluster, hosts
from jaxrl_fast.runtime.cluster import Processes
from jaxrl_fast.runtime.placements import place, runs_in_parallel
from jaxrl_fast.settings import machine
from jaxrl_fast.settings.files import read_yaml
from jaxrl_fast.settings.machine import cpu_cores, processor, setup, versions
from jaxrl_fast.settings.run import Run, algo_words, complete_pool, flat_settings, to_yaml
from jaxrl_fast.settings.schema import command_line, named_again
from jaxrl_fast.training import run_folder
from jaxrl_fast.training.callbacks import STOP_RETURN, to_stderr
from jaxrl_fast.training.checkpoints import FOLDER, all_steps, newest_good
from jaxrl_fast.training.job import Job
from jaxrl_fast.training.progress import clock, share, si
from jaxrl_fast.training.records import read_status, write_status
from jaxrl_fast.training.run_folder import (
    check_tables,
    link_latest,
    locked,
    unwritable,
    write_summary,
)

HOST = machine.Choice("fused", 1, "actions and learning on one device, environments on the host")
WORKERS = machine.Choice(
    WORKER_ACTING, 1, "rollouts in the environments' processes, learning on one device"
)
LEAST_ROLLOUT = 16
"""Least steps of a rollout for `WORKERS`, by rule: a rollout of one step needs a handover for each
step, too.
"""


class Prepared(NamedTuple):
    """A prepared run.

    Attributes:
        run: Settings with every ``auto`` resolved.
        chosen: Reason of the selected placement.
        env: Environments.
        keeper: Cache, or None.
    """

    run: Run
    chosen: str
    env: VecEnv | HostEnv
    keeper: EnvCache | None


@contextmanager
def prepare_run(run: Run, *, keep: bool = False) -> Iterator[Prepared]:
    """Prepare a run, and close its environments at exit.

    Args:
        run: Settings of the run.
        keep: Use and fill the cache of environments and compiled programs.

    Returns:
        Context manager of the prepared run.

    Raises:
        ValueError: The run does not support its processes, or an environment refuses its id or an
            option.
    """
    complete, chosen = fill_in(run)
    if not hosts.is_alone():
        hosts.check_agreement({**flat_settings(complete), "resume": complete.resume})
    keeper = env_cache_of(complete, to_stderr) if keep else None
    env = make_cached_envs(complete, keeper)
    try:
        complete = with_defaults(complete, env.spec)
        defaults = complete_pool({}, complete.num_envs, complete.num_seeds)
        pool = complete.pool | ({"bridge": "host"} if complete.placement == WORKER_ACTING else {})
        if not isinstance(env, HostEnv) and pool != defaults:
            raise ValueError(
                f"pool.* has no effect with env={run.env}, which is compiled here: leave it out"
            )
        is_open = run.placement == machine.AUTO and not envs.is_host(run.env)
        if is_open and isinstance(env, HostEnv):  # a user environment, resolved only here
            complete = dataclasses.replace(complete, placement=HOST.placement, devices=HOST.devices)
            chosen = HOST.reason
        yield Prepared(complete, chosen, env, keeper)
    finally:
        if isinstance(env, HostEnv):
            env.close()


def fill_in(run: Run) -> tuple[Run, str]:
    """Start JAX with the devices that a run needs, and resolve its placement and devices.

    Warns of visible accelerators that are not used.

    Args:
        run: Settings of the run.

    Returns:
        The settings, and the reason of the placement.

    Raises:
        ValueError: The run does not support the processes that were started for it.
    """
    several = run.processes or (cluster.find() if run.distributed == "auto" else None)
    run, chosen = fill_in_alone(run) if several is None else fill_in_among(run, several)
    warning = cluster.unused_devices(run.devices or 1)
    if warning is not None:
        to_stderr(warning)
    return run, chosen


def fill_in_among(run: Run, several: Processes) -> tuple[Run, str]:
    """Resolve placement and devices of a run in several processes.

    ``devices`` counts the devices of all processes; on CPUs the default is one per process.

    Args:
        run: Settings of the run.
        several: The processes.

    Returns:
        The settings, and the reason of the placement.

    Raises:
        ValueError: The placement does not support several processes, or they cannot share the
            devices equally.
    """
    if run.placement in hosts.WITHIN_ONE:
        raise ValueError(hosts.refusal(run.placement, several.num_processes))
    if run.debug:
        hosts.require_one("debug=true", several.num_processes)
    devices = run.devices or several.num_processes
    setup(cpu_devices=hosts.share_of(devices, several.num_processes))
    cluster.start(several)
    if jax.default_backend() != "cpu":
        devices = run.devices or len(jax.devices())
    print(cluster.describe_devices(), flush=True)
    hosts.join()
    placement = hosts.PLACEMENT if run.placement == machine.AUTO else run.placement
    run = dataclasses.replace(run, placement=placement, devices=devices)
    return run, f"of {several.num_processes} processes"


def fill_in_alone(run: Run, *, look_up: bool = True) -> tuple[Run, str]:
    """Resolve placement and devices of a run in a single process.

    A CPU becomes one device per core, unless the placement needs only one. Of several accelerators
    only the first is used, unless a placement is named or was measured.

    Args:
        run: Settings of the run.
        look_up: Prefer the autotuner's measurement on this machine to the package's table.

    Returns:
        The settings, and the reason of the placement.
    """
    # refuses unknown names before anything slow starts
    envs.resolve(run.env, dict(run.env_options))
    finding = remembered(run, tuning_cache.cpu_device()) if look_up else None
    choice = machine.Choice(run.placement_name, run.devices or machine.cpu_cores(), "")
    if run.placement == machine.AUTO:
        choice = as_measured(run, finding) or choose(run, choice.devices)
    elif run.placement in ("fused", WORKER_ACTING):
        choice = choice._replace(devices=1)
    setup(cpu_devices=choice.devices)
    if jax.default_backend() != "cpu":
        available = run.devices or len(jax.devices())
        device = tuning_cache.Device(
            jax.default_backend(), jax.devices()[0].device_kind, len(jax.devices())
        )
        finding = remembered(run, device) if look_up else None
        auto = machine.Choice(
            "fused", 1, f"{available - 1} other devices are unused" if available > 1 else ""
        )
        auto = choice if choice.placement == WORKER_ACTING else auto
        choice = (
            as_measured(run, finding) or auto
            if run.placement == machine.AUTO
            else choice._replace(devices=available)
        )
    is_open = run.placement == machine.AUTO
    run = dataclasses.replace(run, placement=choice.placement, devices=choice.devices)
    run = with_bridge(run) if is_open else run
    return with_workers(run, finding), choice.reason


def remembered(run: Run, device: tuning_cache.Device) -> tuning_cache.Finding | None:
    """Look up the autotuner's finding for a run, if its placement or workers are open.

    Args:
        run: Settings of the run.
        device: Device of the run.

    Returns:
        The finding, or None.
    """
    workers_open = envs.is_host(run.env) and run.pool["workers"] is None
    if run.placement != machine.AUTO and not workers_open:
        return None
    return tuning_cache.look_up_free(tuning_cache.make_key(run, device), to_stderr)


def as_measured(run: Run, finding: tuning_cache.Finding | None) -> machine.Choice | None:
    """Return the placement of a finding, if it supports the run's number of environments.

    Args:
        run: Settings of the run.
        finding: Finding, or None. It may be from other sizes.

    Returns:
        The placement, or None.
    """
    if finding is None or "placement" not in finding.free or run.devices is not None:
        return None
    placement, devices = finding.free["placement"], finding.free["devices"]
    if placement not in ("fused", "sharded_sampling", WORKER_ACTING) or run.num_envs % devices:
        return None
    return machine.Choice(placement, devices, f"measured here by the autotuner, {finding.found}")


def with_workers(run: Run, finding: tuning_cache.Finding | None) -> Run:
    """Set the worker processes of a finding, if they are supported and none were requested.

    Args:
        run: Settings of the run.
        finding: Finding, or None.

    Returns:
        The settings.
    """
    workers = finding.free.get("pool.workers") if finding else None
    groups = 1 if run.pool["bridge"] == "worker" else run.pool["num_groups"]
    if workers is None or run.pool["workers"] is not None or workers > run.num_envs // groups:
        return run
    return tuning_cache.apply(run, {"pool.workers": workers})


def choose(run: Run, devices: int) -> machine.Choice:
    """Select the placement of a run on a CPU by the package's table.

    Args:
        run: Settings of the run.
        devices: Number of devices.

    Returns:
        The placement.
    """
    suite, _ = envs.resolve(run.env, dict(run.env_options))
    if envs.is_host(run.env):
        return WORKERS if may_act_in_workers(run) else HOST
    return machine.choose(
        suite, run.env, run.algo, num_envs=run.num_envs, num_seeds=run.num_seeds, devices=devices
    )


def may_act_in_workers(run: Run) -> bool:
    """Check whether the environments' processes should select the actions of a run on the host.

    Args:
        run: Settings of the run.

    Returns:
        True if ``pool.bridge=worker`` is set, or nothing else is and rollouts are long enough; not
        for ``env=atari``.
    """
    if run.pool["bridge"] == "worker":
        return True
    alone = (
        "pool.bridge" in run.sources
        or run.pool["order"] != "fixed"
        or run.pool["backend"] != "workers"
    )
    if alone or run.eval.share or run.env == "atari":
        return False
    return (run.algo_options.get("rollout_length") or 0) >= LEAST_ROLLOUT


def taught_algorithm(run: Run) -> tuple[AnyAlgorithm, Policy | None]:
    """Make a run's algorithm, with the policy that teaches it.

    Args:
        run: Settings of the run.

    Returns:
        The algorithm, not yet bound to an environment, and the teacher: None without one, and of a
        resumed run the copy in its folder.

    Raises:
        ValueError: Options contradict each other, or the teacher's folder contains no readable
            policy.
    """
    algorithm = make_algorithm(run)
    if run.teacher is None:
        return algorithm, None
    copied = None if run.resume is None else Path(run.resume).parent.parent / TEACHER
    teacher = load_policy(run.teacher if copied is None or not copied.exists() else copied)
    return with_teacher(algorithm, teacher, share=run.teacher_share), teacher


def print_if_too_short(job: Job) -> None:
    """Print a line if a run ends before its first update.

    Args:
        job: Run.
    """
    plan, waits = job.plan, max(fragment.start for fragment in job.graph.fragments)
    if (
        job.resumed is None
        and job.run.data is None
        and plan.num_chunks * plan.ticks_per_chunk <= waits
    ):
        first, least = waits * plan.steps_per_tick, (waits + 1) * plan.steps_per_tick
        print(
            f"no update: learning begins after {first:,} steps; write total_steps={least} or more",
            flush=True,
        )


def print_if_serial(run: Run, job: Job) -> None:
    """Print a line if devices run one after another, with the values of ``overlap`` at which they
    would not.

    Args:
        run: Settings of the run.
        job: Job of the run.
    """

    def parallel(overlap: Overlap) -> bool:
        graph = job.graph_with(job.graph_options._replace(overlap=overlap))
        return runs_in_parallel(graph, place(graph, run.placement, run.devices))

    if not runs_in_parallel(job.graph, job.placement):
        instead = [f"overlap={overlap}" for overlap in get_args(Overlap) if parallel(overlap)]
        print(
            f"placement {run.placement} runs one device after the other at overlap={run.overlap}"
            + (f"; {' or '.join(instead)} runs them at the same time" if instead else "")
        )


RUNS = Path("runs")
REFERENCES = Path(__file__).parent.parent / "config" / "references.yaml"


@contextmanager
def new_folder(run: Run) -> Iterator[str]:
    """Make and lock a run's folder, or a resumed run's, and write ``config.yaml`` into it.

    Args:
        run: Settings of the run.

    Returns:
        Context manager of the folder's path, which is unlocked at exit.

    Raises:
        ValueError: The folder contains a run already, is in use, or is not writable.
    """
    label = f"{time.strftime('%Y%m%d-%H%M%S')}{f'-{run.name}' if run.name else ''}-{run.seed}-{secrets.token_hex(2)}"
    folder = Path(run.run_dir) if run.run_dir else RUNS / run.env / run.algo / label
    goes_on = (
        run.resume is not None and Path(run.resume).parent.parent.resolve() == folder.resolve()
    )
    if goes_on:
        check_tables(folder)
    holds_a_run = (folder / "config.yaml").exists() or all_steps(folder / FOLDER)
    if holds_a_run and not (goes_on or run.requeued):
        raise ValueError(
            f"run_dir={folder} contains a run already: write resume={folder}, or another run_dir"
        )
    with locked(folder) as path:
        if run.requeued and not goes_on and newest_good(folder, lambda line: None) is not None:
            raise ValueError(
                f"another process trained in {folder} while this one started: start it again"
            )
        try:
            if run.requeued and not goes_on and (folder / FOLDER).exists():
                (folder / FOLDER).rename(folder / f"{FOLDER}-damaged-{secrets.token_hex(2)}")
            (folder / "config.yaml").write_text(to_yaml(run), encoding="utf-8")
        except OSError as error:
            raise unwritable(folder, error) from None
        link_latest(folder, RUNS)
        yield path


def write_facts(run: Run, chosen: str, folder: Path, *, draws: bool = False) -> None:
    """Write the sources of settings, the versions and the machine to ``run.json``.

    Args:
        run: Settings of the run.
        chosen: Reason of the placement.
        folder: Folder of the run.
        draws: Whether ``python -m jaxrl_fast.render`` supports its environment.
    """
    before = read_status(folder) if run.resume is not None else {}
    computer = {
        "processor": processor(),
        "cores": cpu_cores(),
        "devices": [str(d) for d in jax.devices()],
    }
    facts = {"sources": run.sources, "chosen": chosen, "versions": versions(), "machine": computer}
    write_status(folder, {**before, **facts, "reference": reference_of(run), "draws": draws})


def reference_of(run: Run) -> dict[str, Any] | None:
    """Return a published return for the run's environment.

    Args:
        run: Settings of the run.

    Returns:
        ``return`` and ``source``, or None.
    """
    return read_yaml(REFERENCES).get(env_name(run))


def print_opening(run: Run, chosen: str, folder: Path) -> None:
    """Print the environment, algorithm, sizes, placement and folder of a run.

    Args:
        run: Settings of the run.
        chosen: Reason of the placement.
        folder: Folder of the run.
    """
    print(envs.describe(run.env, run.env_options))
    why = (
        f" (algo not given: {run.sources['algo']})"
        if run.sources.get("algo", "").startswith(CHOSEN)
        else ""
    )
    settings = f"tuned for this environment ({run.tuned_file})" if run.tuned_file else "untuned"
    print(f"{run.algo}{why}, settings {settings}")
    seeds = (
        f", {run.num_seeds} seeds from {run.seed}" if run.num_seeds > 1 else f", seed {run.seed}"
    )
    print(f"{run.total_steps:,} steps of {run.num_envs} environments{seeds}")
    if run.data is not None:
        when = f"in the last {run.online_steps:,} steps" if run.online_steps else "never"
        print(f"learns from {run.data}, and steps the environment {when}")
    elif run.algo in ("iql", "td3_bc"):
        print(
            f"{run.algo} learns from its own steps, without data: write data=... to learn from recorded steps"
        )
    if run.teacher is not None:
        print(
            f"the policy of {run.teacher} teaches it, in the first {run.teacher_share:.0%} of the run"
        )
    why = f" ({chosen})" if chosen else ""
    print(
        f"placement {run.placement} on {run.devices} device{'s' if run.devices != 1 else ''}{why}"
    )
    print(f"run folder {folder}", flush=True)


def add_to_summary(
    run: Run,
    result: dict[str, Any],
    folder: Path,
    before_s: float,
    wall_s: float,
    signalled: int | None,
) -> dict[str, Any]:
    """Complete ``summary.json`` with settings, times and the signal that ended the run.

    Args:
        run: Settings of the run.
        result: Summary of the training loop.
        folder: Folder of the run.
        before_s: Seconds before training.
        wall_s: Seconds until now.
        signalled: Number of the signal, or None.

    Returns:
        The summary.
    """
    _, options = envs.resolve(run.env, dict(run.env_options))
    summary = {
        "env": run.env,
        "env_id": options.get("id", options.get("make")),
        "env_backend": options.get("backend"),
        "algo": run.algo,
        "placement": run.placement,
        "overlap": run.overlap,
        "seed": run.seed,
        **result,
        "time_to_first_step_s": result["time_to_first_step_s"] + before_s,
        "wall_s": wall_s,
        **({"stopped_by": signal.Signals(signalled).name} if signalled is not None else {}),
    }
    write_summary(folder, summary)
    return summary


def can_draw(env: VecEnv | HostEnv) -> bool:
    """Check whether ``python -m jaxrl_fast.render`` supports a run's environment, without making
    another one.

    Args:
        env: Environments of the run.

    Returns:
        Whether it has bodies, a ``draw``, or pictures on the host.
    """
    if isinstance(env, VecEnv):
        return env.env is not None and (env.env.bodies is not None or env.env.draw is not None)
    return env.draws


def print_closing(
    run: Run, summary: dict[str, Any], folder: Path, pictures: list[str], draws: bool
) -> None:
    """Print result, speed, paths, and the commands for this run.

    Args:
        run: Settings of the run.
        summary: Summary of the run.
        folder: Folder of the run.
        pictures: Names of pictures in the folder.
        draws: Whether to print the command that draws episodes.
    """
    steps, cut = (
        f"{summary['env_steps']:,} steps and {summary['updates']:,} updates",
        summary["stopped_by"],
    )
    steps += f", stopped by {STOP_RETURN}" if cut == STOP_RETURN else ""
    interval = summary.get("eval_return_ci95")
    seeds = len(summary.get("eval_return_seeds", ())) or 1
    spread = (
        f"95 % of the mean [{interval[0]:.1f}, {interval[1]:.1f}]"
        if interval
        else f"std over {'episodes' if seeds == 1 else f'{seeds} seeds'}"
    )
    value = "" if interval else f" ± {summary['eval_return_std'] or 0.0:.1f}"
    if summary["eval_return_mean"] is None:
        why = run_folder.UNEVALUATED.get(read_status(folder).get("eval.every"), run_folder.NOT_YET)
        print(f"\n{why}, after {steps}")
    else:
        mean, episodes = summary["eval_return_mean"], f"{summary['eval_episodes']} episodes"
        if "eval_success_rate" in summary:
            episodes = f"{episodes}, {share(summary['eval_success_rate'])} succeeded"
        last = "last measured " if cut and cut != STOP_RETURN else ""
        print(f"\n{last}greedy return {mean:.1f}{value} ({spread}, {episodes}) after {steps}")
    if summary.get("truncated_episodes"):
        print(
            f"{summary['truncated_episodes']:,} running episodes were truncated for evaluations (eval.share)"
        )
    best = summary.get("best") or {}
    if "fresh_return_mean" in best:
        chosen = f"selected for {best['return_mean']:.1f} after {best['env_steps']:,} steps"
        print(
            f"best policy {best['fresh_return_mean']:.1f} ± {best['fresh_return_std']:.1f} in new episodes ({chosen})"
        )
    if summary["dropped_updates"]:
        print(
            f"{summary['dropped_updates']:,} updates were dropped because of numbers that are not finite"
        )
    print(
        f"{clock(summary['wall_s'])} in total, {summary['time_to_first_step_s']:.1f} s to the first step; "
        f"{si(summary['sampling_hz'])} steps/s, {si(summary['update_hz'])} updates/s of {summary['batch_size']}, "
        f"update frame rate {si(summary['update_frame_hz'])}"
    )
    if summary["evaluator_memory_mb"]:
        waited = f"training waited {summary['eval_wait_s']:.1f} s for it"
        print(f"evaluated in a process of {summary['evaluator_memory_mb']:.0f} MB; {waited}")
    files = [
        "report.html",
        "summary.json",
        "curve.png",
        "graph.svg",
        *pictures,
        "policy/",
        "metrics.csv",
        "evals.csv",
    ]
    print(f"{folder}: {', '.join(file for file in files if (folder / file).exists())}")
    own = named_again({"algo": {**run.algo_options, **algo_words(run)}})
    if cut:
        further = [f"{STOP_RETURN}=null"] if cut == STOP_RETURN else []
        print(f"resume:   {command_line([f'resume={folder}', *own, *further])}")
    print(f"repeat:   {command_line([f'config={folder}/config.yaml'])}")
    print(f"evaluate: {command_line([str(folder), *own, 'episodes=100'], 'evaluate')}")
    if draws:
        print(f"draw:     {command_line([str(folder), *own], 'render')}")
