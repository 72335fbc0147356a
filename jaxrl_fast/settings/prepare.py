"""Prepares a run for this machine: starts JAX with the devices that it needs and resolves settings that are
``auto``."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, get_args

import jax

import envs
from jaxrl_fast.environments.env import VecEnv
from jaxrl_fast.environments.host_env import HostEnv
from jaxrl_fast.fragments.build import graph_of
from jaxrl_fast.fragments.callbacks import in_graph
from jaxrl_fast.fragments.learners import Overlap
from jaxrl_fast.graph import distributed
from jaxrl_fast.graph.placements import place, runs_in_parallel
from jaxrl_fast.runs.hooks import to_stderr
from jaxrl_fast.settings import findings, machine
from jaxrl_fast.settings.kept_worlds import Keeper, keeper_of, make_kept_envs
from jaxrl_fast.settings.run_settings import Run, flat_settings, pool_defaults
from jaxrl_fast.settings.runtime import setup
from jaxrl_fast.training import cluster
from jaxrl_fast.training.cluster import Processes
from jaxrl_fast.training.job import Job

HOST = machine.Choice("fused", 1, "actions and learning on one device, environments on the host")


class Prepared(NamedTuple):
    """A ``run`` with every ``auto`` resolved, a few words on what was ``chosen``, its environments ``env``, and the
    ``keeper`` of what is made for it (None: nothing is kept)."""

    run: Run
    chosen: str
    env: VecEnv | HostEnv
    keeper: Keeper | None


@contextmanager
def prepare_run(run: Run, *, keep: bool = False) -> Iterator[Prepared]:
    """Prepare a run; its environments are closed on leaving. ``keep``: what was made for such a run before is used, and
    what is made now is kept.

    Raises:
        ValueError: the run does not fit its processes, or an environment refuses its id or an option.
    """
    complete, chosen = fill_in(run)
    if not distributed.is_alone():
        distributed.check_agreement({**flat_settings(complete), "resume": complete.resume})
    keeper = keeper_of(complete, to_stderr) if keep else None
    env = make_kept_envs(complete, keeper)
    try:
        if not isinstance(env, HostEnv) and complete.pool != pool_defaults():
            raise ValueError(f"pool.* has no effect with env={run.env}, which is compiled here: leave it out")
        if run.placement == machine.AUTO and isinstance(env, HostEnv):  # only now known of a user's own environment
            complete = dataclasses.replace(complete, placement=HOST.placement, devices=HOST.devices)
            chosen = HOST.reason
        yield Prepared(complete, chosen, env, keeper)
    finally:
        if isinstance(env, HostEnv):
            env.close()


def fill_in(run: Run) -> tuple[Run, str]:
    """Start JAX with the devices that the run needs, and resolve its placement and devices; returns the run and a few
    words on the choice. Warns of visible accelerators that are left unused.

    Raises:
        ValueError: the run does not fit the processes that were started for it.
    """
    several = run.processes or (cluster.find() if run.distributed == "auto" else None)
    run, chosen = fill_in_alone(run) if several is None else fill_in_among(run, several)
    warning = cluster.unused_devices(run.devices or 1)
    if warning is not None:
        to_stderr(warning)
    return run, chosen


def fill_in_among(run: Run, several: Processes) -> tuple[Run, str]:
    """As `fill_in`, for one of several processes. On a CPU each has one device unless ``devices`` says otherwise, which
    counts those of all processes.

    Raises:
        ValueError: the placement does not span processes, or they cannot share the devices evenly.
    """
    if run.placement in distributed.WITHIN_ONE:
        raise ValueError(distributed.refusal(run.placement, several.num_processes))
    if run.debug:
        distributed.require_one("debug=true", several.num_processes)
    devices = run.devices or several.num_processes
    setup(cpu_devices=distributed.share_of(devices, several.num_processes))
    cluster.start(several)
    if jax.default_backend() != "cpu":
        devices = run.devices or len(jax.devices())
    print(cluster.describe_devices(), flush=True)
    distributed.join()
    placement = distributed.PLACEMENT if run.placement == machine.AUTO else run.placement
    run = dataclasses.replace(run, placement=placement, devices=devices)
    return run, f"of {several.num_processes} processes"


def fill_in_alone(run: Run, *, look_up: bool = True) -> tuple[Run, str]:
    """As `fill_in`, for a single process. With ``look_up``, what the autotuner measured here comes before the package's
    table.

    A CPU becomes one device per core, unless the placement needs only one. Of several accelerators only the first is
    used, unless a placement is named or was measured.
    """
    envs.resolve(run.env, dict(run.env_options))  # what it does not know is refused before anything slow starts
    finding = remembered(run, findings.cpu_device()) if look_up else None
    choice = machine.Choice(run.placement, run.devices or machine.cpu_cores(), "")
    if run.placement == machine.AUTO:
        choice = as_measured(run, finding) or choose(run, choice.devices)
    elif run.placement == "fused":
        choice = choice._replace(devices=1)
    setup(cpu_devices=choice.devices)
    if jax.default_backend() != "cpu":
        available = run.devices or len(jax.devices())
        device = findings.Device(jax.default_backend(), jax.devices()[0].device_kind, len(jax.devices()))
        finding = remembered(run, device) if look_up else None
        auto = machine.Choice("fused", 1, f"{available - 1} other devices rest" if available > 1 else "")
        choice = (
            as_measured(run, finding) or auto if run.placement == machine.AUTO else choice._replace(devices=available)
        )
    run = dataclasses.replace(run, placement=choice.placement, devices=choice.devices)
    return with_workers(run, finding), choice.reason


def remembered(run: Run, device: findings.Device) -> findings.Finding | None:
    """The autotuner's finding for such a run, if this one leaves placement or workers open."""
    workers_open = envs.is_host(run.env) and run.pool["workers"] is None
    if run.placement != machine.AUTO and not workers_open:
        return None
    return findings.look_up_free(findings.make_key(run, device), to_stderr)


def as_measured(run: Run, finding: findings.Finding | None) -> machine.Choice | None:
    """The placement of a finding, where it fits: one found at other sizes may not divide these evenly."""
    if finding is None or "placement" not in finding.free or run.devices is not None:
        return None
    placement, devices = finding.free["placement"], finding.free["devices"]
    if placement not in ("fused", "sharded_sampling") or run.num_envs % devices:
        return None
    return machine.Choice(placement, devices, f"measured here by the autotuner, {finding.found}")


def with_workers(run: Run, finding: findings.Finding | None) -> Run:
    """The worker processes of a finding, where they fit and none were asked for."""
    workers = finding.free.get("pool.workers") if finding else None
    if workers is None or run.pool["workers"] is not None or workers > run.num_envs // run.pool["num_groups"]:
        return run
    return findings.apply(run, {"pool.workers": workers})


def choose(run: Run, devices: int) -> machine.Choice:
    """The placement of a run on a CPU by the package's table."""
    suite, _ = envs.resolve(run.env, dict(run.env_options))
    if envs.is_host(run.env):
        return HOST
    return machine.choose(suite, run.env, run.algo, num_envs=run.num_envs, num_seeds=run.num_seeds, devices=devices)


def print_if_serial(run: Run, job: Job) -> None:
    """Print a line if the placement runs its groups one after another, with the values of ``overlap`` at which it would
    not."""

    def parallel(overlap: Overlap) -> bool:
        options = job.options.graph._replace(overlap=overlap)
        graph = graph_of(in_graph(job.env).env, job.algorithm, job.agent, options)
        return runs_in_parallel(graph, place(graph, run.placement, run.devices))

    if not runs_in_parallel(job.graph, job.placement):
        instead = [f"overlap={overlap}" for overlap in get_args(Overlap) if parallel(overlap)]
        print(
            f"placement {run.placement} runs one device after the other at overlap={run.overlap}"
            + (f"; {' or '.join(instead)} lets them run at the same time" if instead else "")
        )
