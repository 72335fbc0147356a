"""``python -m jaxrl_fast.sweep env=cartpole sample.algo.learning_rate=log:1e-4:1e-2``: search or
train a population.
"""

import dataclasses
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import jax
import yaml

from jaxrl_fast.assembly import make_job
from jaxrl_fast.commands import cli, run_config, tuning_cache
from jaxrl_fast.commands.prepare import fill_in, new_folder, print_opening, write_facts
from jaxrl_fast.commands.run_config import compose, make_algorithm
from jaxrl_fast.envs.env import VecEnv
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.numerics.optimizers import plain
from jaxrl_fast.population import planning, population_run
from jaxrl_fast.population.launching import write_jobs
from jaxrl_fast.population.member_groups import SearchPlan
from jaxrl_fast.population.record import BEST, members
from jaxrl_fast.population.search_space import all_sizes, describe_point
from jaxrl_fast.population.slots import compile_slots, make_slots, member_bytes, seconds_of_member
from jaxrl_fast.population.sweep_words import (
    HELP,
    MEASURE,
    SWEEP_FILE,
    Sweep,
    read_sweep,
    run_of,
    take_resume,
)
from jaxrl_fast.runtime import cluster, hosts
from jaxrl_fast.settings import machine
from jaxrl_fast.settings.machine import collect_garbage_seldom, free_bytes
from jaxrl_fast.settings.run import Run, may_be_host, to_yaml
from jaxrl_fast.settings.schema import command_line, written
from jaxrl_fast.system import replace_file
from jaxrl_fast.training.callbacks import to_stderr
from jaxrl_fast.training.job import Job, ticks_within
from jaxrl_fast.training.progress import clock
from jaxrl_fast.training.run_folder import write_summary
from jaxrl_fast.training.stop_signals import StopSignal
from jaxrl_fast.views.listeners import try_to_write
from jaxrl_fast.views.population_pictures import draw_population


class Jobs:
    """Makes the jobs of a sweep; environments are made once for each size."""

    def __init__(self, sweep: Sweep, placed: Run) -> None:
        self.sweep, self.placed = sweep, placed
        self.made: dict[tuple[int, int], VecEnv | HostEnv] = {}

    def __call__(self, count: int, sizes: Mapping[str, Any]) -> Job:
        """Make the job of a group with ``count`` learners."""
        placed = {name: getattr(self.placed, name) for name in ("placement", "devices")}
        run = run_of(self.sweep, sizes)
        beside = dataclasses.replace(run.eval, every=0, beside=False)
        run = run_config.with_bridge(
            dataclasses.replace(run, num_seeds=count, eval=beside, **placed)
        )
        env = self._env_of(run)
        return make_job(env, make_algorithm(run_config.with_defaults(run, env.spec)), run, {})

    def _env_of(self, run: Run) -> VecEnv | HostEnv:
        key = run.num_envs, run.num_seeds if may_be_host(run.env) else 1
        if key not in self.made:
            self.made[key] = run_config.make_envs(run)
            count = planning.number_of_trials(self.sweep.options, self.sweep.space)
            planning.check_host(self.made[key], self.sweep.options, count, run.num_envs)
        return self.made[key]

    def close(self) -> None:
        """Close all environments on the host."""
        for env in self.made.values():
            if isinstance(env, HostEnv):
                env.close()


def place_members(run: Run) -> tuple[Run, str]:
    """Start JAX, and choose the devices of all members: compiled ones are divided over all devices.

    Args:
        run: Settings of a member.

    Returns:
        The settings with placement and devices, and the reason.
    """
    if run.placement != machine.AUTO or may_be_host(run.env):
        return fill_in(run)
    run, _ = fill_in(dataclasses.replace(run, placement="data_parallel"))
    one = (run.devices or 1) == 1
    return dataclasses.replace(
        run, placement="fused"
    ) if one else run, "" if one else "members are divided over them"


def train_sweep(words: list[str]) -> int:
    """Run a sweep.

    Args:
        words: Words of the command line.

    Returns:
        Exit code: 0, or 128 and the number of the signal that ended the sweep.

    Raises:
        ConfigError: Wrong words.
    """
    resume, words = take_resume(words)
    sweep = read_sweep(words)
    if resume is not None and is_complete(resume):
        print(f"resume={resume}: the sweep is complete, and its best member is in {resume / BEST}")
        return 0
    stop = StopSignal()
    run, chosen = place_members(sweep.run)
    with closing(Jobs(sweep, run)) as jobs:
        return run_sweep(sweep, run, chosen, jobs, stop, resume)


def run_sweep(
    sweep: Sweep, run: Run, chosen: str, jobs: Jobs, stop: StopSignal, resume: Path | None
) -> int:
    """Plan, train and conclude a sweep.

    Args:
        sweep: The sweep.
        run: Settings of a member on this machine.
        chosen: Reason of the placement.
        jobs: Makes the jobs of groups.
        stop: Handler of signals.
        resume: Folder to continue, or None.

    Returns:
        Exit code.
    """
    # Of every group, so that one that cannot run is refused before a folder is made.
    ones = [jobs(1, sizes) for sizes in all_sizes(sweep.space)]
    largest = max(ones, key=lambda job: member_bytes(job)[0])
    here = sweep.given["launcher"] == "none"
    width = (stored_width(resume) or choose_width(sweep, jobs, largest)) if here else 1
    coarsest = max(ones, key=lambda job: job.plan.steps_per_tick)
    sized: dict[str, Any] = {"at_once": width, "seed": run.seed, "total_steps": run.total_steps}
    plan = planning.make_plan(sweep.options, sweep.space, coarsest, **sized)
    plan = plan._replace(
        finalists=sweep.given["finalists"], save_every=segments_per_checkpoint(run, plan)
    )
    if not here:
        return write_jobs(
            sweep.words_given,
            sweep.given["launcher"],
            sweep.given["jobs"],
            run_config.env_name(run),
        )
    kind = "sweep" if sweep.options.size is None else "population"
    named = dataclasses.replace(
        run, name=run.name or kind, run_dir=str(resume) if resume else run.run_dir
    )
    with ExitStack() as stack:
        folder = Path(hosts.decide(lambda: stack.enter_context(folder_of(named, resume))))
    begun = resume if resume is not None and population_run.has_checkpoint(resume) else None
    if hosts.is_first():
        if resume is not None and begun is None:
            print(f"{resume} has no checkpoint: the sweep begins anew")
        stored = {"words": sweep.words_given, "at_once": width}
        replace_file(folder / SWEEP_FILE, json.dumps(stored) + "\n")
        print_opening(run, chosen, folder)
        print_needs(
            sweep,
            plan,
            planning.needs_of(plan, sweep.options, largest),
            largest.env.spec.max_episode_steps,
        )
        write_facts(run, chosen, folder)
    each = sweep.options.seeds_per_trial
    steps = plan.trials * each * plan.segments * plan.segment_steps
    best = command_line([f"config={folder / BEST}/config.yaml"])
    again = command_line(
        [word for word in sweep.words_given if not word.startswith("run_dir=")], "sweep"
    )
    go_on = command_line([f"resume={folder}"], "sweep")
    rows = [["train the best alone", best], ["continue", go_on], ["repeat", again]]
    facts = {
        "env": run.env,
        "algo": run.algo,
        "total_steps": steps,
        "commands": rows,
        "eval.every": 0,
        "kind": kind,
    }
    stop.training = True
    result = population_run.run_population(
        plan,
        lambda sizes: jobs(width * each, sizes),
        population_run.Files(folder, facts),
        should_stop=stop,
        should_save=stop.should_save,
        tell=print if hosts.is_first() else lambda line: None,
        final_episodes=sweep.given["final_episodes"],
        resume=begun,
    )
    if hosts.is_first():
        write_summary(folder, {**population_run.best_summary(result), "stopped_by": stop.number})
        conclude_sweep(sweep, result, folder)
    cluster.finish()
    return 128 + stop.number if stop.number else 0


def segments_per_checkpoint(run: Run, plan: SearchPlan) -> int:
    """Return the segments between two checkpoints: one, unless ``checkpoint.every`` or
    ``checkpoint.keep=0`` is given.

    Args:
        run: Settings of a member.
        plan: Plan of the sweep.

    Returns:
        The number, 0 for no checkpoints.
    """
    if run.checkpoint.keep == 0:
        return 0
    given = (
        run.sources.get("checkpoint.every", run_config.FOLLOWS_STEPS) != run_config.FOLLOWS_STEPS
    )
    return max(1, round((run.checkpoint.every or 1) / plan.segment_steps)) if given else 1


def is_complete(folder: Path) -> bool:
    """Check whether a sweep has trained all its trials and evaluated the best.

    Args:
        folder: Folder of the sweep.

    Returns:
        True if its summary exists and no signal ended it.
    """
    summary = folder / "summary.json"
    return summary.exists() and json.loads(summary.read_text("utf-8")).get("stopped_by", 0) is None


def stored_width(resume: Path | None) -> int | None:
    """Return how many trials at once a sweep had that is continued; its stored state has as many.

    Args:
        resume: Folder to continue, or None.

    Returns:
        The number, or None for a new sweep.
    """
    return (
        None if resume is None else json.loads((resume / SWEEP_FILE).read_text("utf-8"))["at_once"]
    )


def choose_width(sweep: Sweep, jobs: Jobs, one: Job) -> int:
    """Choose how many trials train at once.

    Args:
        sweep: The sweep.
        jobs: Makes the jobs of groups.
        one: Job of one learner.

    Returns:
        The number.
    """
    options, trials = sweep.options, planning.number_of_trials(sweep.options, sweep.space)
    if isinstance(one.env, HostEnv) and options.size is not None:
        return trials
    devices = len({device for group in one.placement.groups for device in group.devices})
    of_machine: dict[str, Any] = {
        "devices": devices,
        "platform": jax.default_backend(),
        "measured": None,
    }
    member, free = member_bytes(one)[0], free_bytes(jax.local_devices())
    if sweep.given["at_once"] == MEASURE:
        fitting = planning.at_once_of(
            dataclasses.replace(options, at_once=trials), trials, member, free, **of_machine
        )
        sizes = {key: draw.values[0] for key, draw in sweep.space.sizes.items()}
        of_machine["measured"] = measure_at_once(sweep, jobs, sizes, fitting)
    else:
        of_machine["measured"] = measured_at_once(sweep.run)
    return planning.at_once_of(options, trials, member, free, **of_machine)


@contextmanager
def folder_of(run: Run, resume: Path | None) -> Iterator[str]:
    """Make the folder of a sweep, or take the one that is continued.

    Args:
        run: Settings of a member, with the folder's name.
        resume: Folder to continue, or None.

    Returns:
        Context manager of its path.
    """
    if resume is not None:
        yield str(resume)
        return
    with new_folder(run) as path:
        yield path


def measured_at_once(run: Run) -> int | None:
    """Return how many trials at once cost least, if it was measured for this work on this machine.

    Args:
        run: Settings of a member.

    Returns:
        The number, or None.
    """
    finding = tuning_cache.look_up_free(key_of(run), to_stderr)
    return None if finding is None else finding.free.get("at_once")


def key_of(run: Run) -> tuning_cache.FindingKey:
    """Return the key of a measurement of members.

    Args:
        run: Settings of a member before its placement is chosen.

    Returns:
        The key.
    """
    platform = jax.devices()[0]
    device = tuning_cache.cpu_device()
    if platform.platform != "cpu":
        device = tuning_cache.Device(platform.platform, platform.device_kind, len(jax.devices()))
    return tuning_cache.make_key(run, device, "members")


def measure_at_once(sweep: Sweep, jobs: Jobs, sizes: Mapping[str, Any], most: int) -> int:
    """Measure what a member costs by the number of trials at once, and store the cheapest number.

    Args:
        sweep: The sweep.
        jobs: Makes the jobs.
        sizes: Values of the settings that are compiled in.
        most: Most trials at once.

    Returns:
        The number.
    """
    costs: dict[int, float] = {}
    for count in sorted({n for n in planning.MEASURED if n <= most} | {most}):
        job = jobs(count * sweep.options.seeds_per_trial, sizes)
        slots = make_slots(
            job, ticks_within(job.plan.steps_per_tick, 1), own_ticks=sweep.options.halving > 0
        )
        costs[count] = seconds_of_member(slots, compile_slots(slots))
        print(f"{count} at once: {1e3 * costs[count]:.3f} ms a tick for each learner", flush=True)
        if costs[count] > 1.2 * min(costs.values()):
            break
    best = min(costs, key=lambda n: costs[n])
    finding = tuning_cache.Finding(
        {}, {"at_once": best}, "", time.strftime("%Y-%m-%d %H:%M"), False
    )
    tuning_cache.remember(key_of(sweep.run), finding)
    return best


def print_needs(
    sweep: Sweep, plan: SearchPlan, needs: planning.Needs, max_episode_steps: int | None
) -> None:
    """Print what a sweep needs, before anything is compiled.

    Args:
        sweep: The sweep.
        plan: Its plan.
        needs: What it needs.
        max_episode_steps: Time limit of the environment, None for no limit.
    """
    each, space = sweep.options.seeds_per_trial, sweep.space
    what = "trials" if plan.exchange is None else "members"
    learners = f", {each} seeds each" if each > 1 else ""
    print(f"{plan.trials} {what}{learners}, {plan.at_once} at once; vary: {', '.join(space.draws)}")
    groups = len(all_sizes(space))
    turns = -(-plan.trials // plan.at_once)
    how = f"{plan.segments} segments{f', {plan.segments - 1} exchanges' if plan.exchange else ''}"
    if plan.halving is not None:
        how = f"rungs after {', '.join(map(str, plan.halving.rungs))} of {plan.segments} segments"
    print(
        f"{groups} program{'s' if groups > 1 else ''} to compile, {turns} turn{'s' if turns > 1 else ''}, {how}"
    )
    print(f"{plan.segments * plan.segment_steps:,} steps of each learner that trains to the end")
    replay = f", of these {needs.replay_bytes / 1e6:,.1f} MB replay" if needs.replay_bytes else ""
    at_once = needs.member_bytes * needs.slots / 1e6
    print(f"memory {needs.member_bytes / 1e6:,.2f} MB a learner{replay}, {at_once:,.1f} MB at once")
    if plan.save_every:
        after = "each segment" if plan.save_every == 1 else f"every {plan.save_every} segments"
        print(f"a checkpoint of up to {needs.checkpoint_bytes / 1e6:,.1f} MB after {after}")
    finalists, last = min(sweep.given["finalists"], plan.trials), sweep.given["final_episodes"]
    episodes, at_rungs = finalists * each * last, ""
    if plan.score == "evaluation":
        at_rungs = f"{sweep.run.eval.episodes} episodes of each learner after each segment, "
        episodes += plan.trials * each * plan.segments * sweep.run.eval.episodes
    steps = (
        f"; at most {episodes * max_episode_steps:,} environment steps" if max_episode_steps else ""
    )
    print(
        f"evaluations: {at_rungs}{last} episodes of the best {finalists} at the end{steps}",
        flush=True,
    )


def conclude_sweep(sweep: Sweep, result: population_run.PopulationResult, folder: Path) -> None:
    """Write the best member's files, pictures and page, and print them.

    Args:
        sweep: The sweep.
        result: Its result.
        folder: Its folder.
    """
    texts = {}
    if result.best is not None:
        texts = population_run.write_best(result, folder / BEST)
        trial = result.book.trials[result.best]
        best = settings_of_best(sweep, result, texts)
        replace_file(folder / BEST / "config.yaml", to_yaml(best))
        returns = result.returns[result.best]
        print(
            f"\nbest in greedy episodes: trial {trial.number}, {describe_point(result.book.point(trial.number))}"
        )
        each = (
            f" of {len(returns)} learners; the policy is the best one's" if len(returns) > 1 else ""
        )
        print(
            f"greedy return {returns.mean():.1f} ± {returns.std():.1f} ({returns.size} new episodes{each})"
        )
    seconds = result.seconds
    print(
        f"{clock(seconds['total'])} in total, of these {seconds['compiling']:.0f} s compiling and "
        f"{seconds['evaluating']:.0f} s evaluating at the end"
    )
    draw_population(folder, members(result.book))
    try_to_write(folder, print)
    if not result.complete:
        more = f"continue it with: python -m jaxrl_fast.sweep resume={folder}"
        print(
            f"stopped; {more if sweep.run.checkpoint.keep else 'checkpoint.keep=0 saved nothing to continue from'}"
        )
    elif result.best is not None:
        print(f"repeat the best alone: {command_line([f'config={folder / BEST}/config.yaml'])}")
        if sweep.given["write_tuned"]:
            write_tuned(sweep, result, texts, folder)
    print(f"trials in {folder / 'trials.csv'}, page {folder / 'report.html'}")


def settings_of_best(
    sweep: Sweep, result: population_run.PopulationResult, texts: Mapping[str, str]
) -> Run:
    """Return the settings that repeat the best trial alone.

    Args:
        sweep: The sweep.
        result: Its result, with a best trial.
        texts: Schedules of its rates by key.

    Returns:
        The settings.
    """
    assert result.best is not None
    point = {**result.book.point(result.best), **texts}
    trial = result.book.trials[result.best]
    point |= {
        "total_steps": result.book.segments * trial.segment_steps,
        "seed": trial.seeds[result.learner],
    }
    words = [word for word in sweep.words if word.partition("=")[0] not in (*point, "run_dir")]
    return compose([*words, *(f"{key}={quoted(value)}" for key, value in point.items())])


def quoted(value: Any) -> str:
    """Format a value for a word of the command line; texts with commas in quotes.

    Args:
        value: Value.

    Returns:
        The text.
    """
    return f"'{value}'" if isinstance(value, str) and not value.isidentifier() else written(value)


def write_tuned(
    sweep: Sweep, result: population_run.PopulationResult, texts: Mapping[str, str], folder: Path
) -> None:
    """Write the best settings as a tuned file, with the line where its values come from.

    Args:
        sweep: The sweep.
        result: Its result, with a best trial.
        texts: Schedules of its rates by key.
        folder: Folder of the sweep.
    """
    assert result.best is not None
    run = settings_of_best(sweep, result, texts)
    returns, trials = result.returns[result.best], len(result.book.trials)
    tree: dict[str, Any] = {"num_envs": run.num_envs, "total_steps": run.total_steps, "algo": {}}
    named = dict.fromkeys([*sweep.space.draws, *(word.partition("=")[0] for word in sweep.words)])
    for name in [key.removeprefix("algo.") for key in named if key.startswith("algo.")]:
        if name in run.algo_options:  # not the function of a user's algorithm
            tree["algo"][name] = plain(run.algo_options[name])
    path = folder / f"{run_config.env_name(run)}_{run.algo.replace('.', '-')}.yaml"
    origin = f"# {folder}: the best of {trials} trials, {returns.mean():.1f} greedy over {returns.size} episodes."
    replace_file(path, f"{origin}\n{yaml.safe_dump(tree, sort_keys=False)}")
    of_env = [word for word in sweep.words if word.lstrip("+").startswith(("env=", "env."))]
    print(f"tuned settings: {command_line([*of_env, f'algo={run.algo}', f'config={path}'])}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: Words of the command line, None for the arguments of the process.

    Returns:
        Exit code.
    """
    return cli.main("sweep", train_sweep, argv, lambda: HELP)


if __name__ == "__main__":
    collect_garbage_seldom()
    sys.exit(main())
