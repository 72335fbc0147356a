"""``python -m jaxrl_fast.sweep env=cartpole sample.algo.learning_rate=log:1e-4:1e-2``: search or train a population."""

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import yaml

from jaxrl_fast.commands import cli, run_config, tuning_cache
from jaxrl_fast.commands.prepare import fill_in, new_folder, print_opening, write_facts
from jaxrl_fast.commands.run_config import Run, compose, env_name, job_options, make_algorithm, make_envs, to_yaml
from jaxrl_fast.core import MAX_SIZE
from jaxrl_fast.envs.env import VecEnv
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.numerics.optimizers import plain
from jaxrl_fast.population.asking import SamplerName
from jaxrl_fast.population.driver import SearchPlan
from jaxrl_fast.population.launching import write_jobs
from jaxrl_fast.population.planning import (
    Needs,
    SearchOptions,
    at_once_of,
    check_host,
    check_options,
    free_bytes,
    make_plan,
    number_of_trials,
)
from jaxrl_fast.population.population_run import Files, PopulationResult, best_summary, run_population, write_best
from jaxrl_fast.population.record import BEST, members
from jaxrl_fast.population.rules import Explore
from jaxrl_fast.population.search_space import PREFIX, SearchSpace, describe_point, make_space
from jaxrl_fast.population.slots import member_bytes
from jaxrl_fast.settings import machine
from jaxrl_fast.settings.machine import collect_garbage_seldom
from jaxrl_fast.settings.schema import (
    SWITCHES,
    ConfigError,
    Key,
    command_line,
    read_value,
    read_word,
    run_keys,
    written,
)
from jaxrl_fast.settings.signatures import algo_keys
from jaxrl_fast.system import CODE, names_code, replace_file
from jaxrl_fast.training.callbacks import StopSignal, to_stderr
from jaxrl_fast.training.job import Job, make_job
from jaxrl_fast.training.progress import clock
from jaxrl_fast.training.run_folder import write_summary
from jaxrl_fast.views.listeners import try_to_write
from jaxrl_fast.views.population_pictures import draw_population

KEYS = {
    "trials": Key(int | None, None, 1, "points that are tried; all of a grid, or 32", MAX_SIZE),
    "at_once": Key(int | None, None, 1, "trials at once in a program; as memory and machine advise", MAX_SIZE),
    "seeds_per_trial": Key(int, 1, 1, "learners of each trial, whose mean is its score", MAX_SIZE),
    "sampler": Key(SamplerName, "random", text="how points are chosen: tpe is Optuna's, gp counts seconds"),
    "halving": Key(int, 0, 0, "at each rung one of so many goes on; 0 none", MAX_SIZE),
    "first_rung": Key(int | None, None, 1, "env steps until the first rung", MAX_SIZE),
    "score": Key(Literal["training", "evaluation"], "training", text="returns by which trials are compared"),
    "population.size": Key(int | None, None, 1, "members that copy each other: population-based training", MAX_SIZE),
    "population.every": Key(int | None, None, 1, "env steps between exchanges; a twentieth of the run", MAX_SIZE),
    "population.explore": Key(Explore, "perturb", text="how the rates of a copy change"),
    "population.quantile": Key(float, 0.25, 0.01, "share that is replaced, and share that is copied", 0.5),
    "population.replay": Key(bool, False, text="a copy takes over the replay buffer, too"),
    "finalists": Key(int, 4, 1, "trials that are evaluated again at the end", 64),
    "final_episodes": Key(int, 128, 1, "episodes of each of them", MAX_SIZE),
    "write_tuned": Key(bool, False, text="write the best settings as a file for config=..."),
    "launcher": Key(Literal["none", "local", "slurm"], "none", text="write a script of jobs instead of training"),
    "jobs": Key(int, 8, 1, "jobs of that script", 10_000),
}
"""Keys of this command, in addition to the keys of training."""
SWEEP_FILE = "sweep.json"

HELP = """python -m jaxrl_fast.sweep KEY=VALUE ... sample.KEY=VALUES ... [key=value ...]
  sample.algo.learning_rate=log:1e-4:1e-2     a rate, drawn on a logarithmic scale
  sample.algo.discount=uniform:0.95:0.999     on a linear one
  sample.algo.gae_lambda=choice:0.9,0.95      from a list; grid:0.9,0.95 tries all
  sample.algo.hidden_sizes=choice:[64,64],[256,256]   a size: a program for each value
  resume=FOLDER                               continue a sweep that was stopped or killed
All members of a group train side by side in one program. Other keys of the command, then all keys of train:"""


class Sweep(NamedTuple):
    """A sweep that was read from a command line.

    Attributes:
        words_given: All words of the command line.
        words: Those for training, without this command's.
        run: Settings of a member, without those that vary.
        options: Options of the search.
        given: Values of all keys of this command.
        space: Search space.
    """

    words_given: list[str]
    words: list[str]
    run: Run
    options: SearchOptions
    given: dict[str, Any]
    space: SearchSpace


def help_text() -> str:
    """Return the text of ``--help``.

    Returns:
        The text.
    """
    return "\n".join([HELP, *(f"  {name:<20} {written(key.default):<9} {key.text}" for name, key in KEYS.items())])


def read_sweep(words: Sequence[str]) -> Sweep:
    """Read a command line.

    Args:
        words: Words.

    Returns:
        The sweep.

    Raises:
        ConfigError: A word is wrong, or words contradict each other.
    """
    given = {name: key.default for name, key in KEYS.items()}
    texts: dict[str, str] = {}
    others = []
    for word in words:
        name, equals, text = word.partition("=")
        if name.startswith(PREFIX) and equals:
            texts[name.removeprefix(PREFIX)] = text
        elif name in KEYS:
            given[name] = read_value(name, read_word(word)[1], KEYS[name])
        else:
            others.append(word)
    run = compose(others)
    _check_run(run)
    short = {name.removeprefix("population."): value for name, value in given.items()}
    options = SearchOptions(**{name: short[name] for name in SearchOptions._fields})
    space = make_space(texts, _varying(run, texts), [f"algo.{name}" for name in make_algorithm(run).hyper._fields])
    for key, draw in space.rates.items():
        if key in SWITCHES and draw.kind in ("choice", "grid") and 0 in draw.values and len(draw.values) > 1:
            raise ConfigError(f"{PREFIX}{key}: 0 switches it off, which compiles another program: leave 0 out")
    check_options(options, space, run.total_steps)
    return Sweep(list(words), others, run, options, given, space)


def _check_run(run: Run) -> None:
    if run.num_seeds > 1:
        raise ConfigError(
            f"num_seeds={run.num_seeds}: write seeds_per_trial={run.num_seeds}; a trial's score is their mean"
        )
    for key, value in (("resume", run.resume), ("data", run.data), ("teacher", run.teacher)):
        if value is not None:
            raise ConfigError(f"{key}={value} is for train: leave it out")
    if run.auto_width or run.auto_overlap:
        raise ConfigError("num_envs=auto and overlap=auto are for train: write a value")


def _varying(run: Run, texts: Mapping[str, str]) -> dict[str, Key]:
    """Return the declarations of all settings that may vary."""
    keys = {**algo_keys(run.algo), "num_envs": run_keys()["num_envs"]}
    if "algo" in texts:
        keys["algo"] = Key(str, run.algo)
    return keys


def run_of(sweep: Sweep, sizes: Mapping[str, Any]) -> Run:
    """Return the settings of a group: compiled-in settings as given, rates in the middle of their range.

    Args:
        sweep: The sweep.
        sizes: Values of the settings that are compiled in, by key.

    Returns:
        The settings.
    """
    words = [word for word in sweep.words if word.partition("=")[0] not in sizes]
    middle = {key: draw.at(0.5) for key, draw in sweep.space.rates.items()}
    return compose([*words, *(f"{key}={written(value)}" for key, value in {**sizes, **middle}.items())])


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
        run = dataclasses.replace(run, num_seeds=count, eval=beside, **placed)
        env = self._env_of(run)
        return make_job(env, make_algorithm(run_config.with_defaults(run, env.spec)), job_options(run), {})

    def _env_of(self, run: Run) -> VecEnv | HostEnv:
        key = run.num_envs, run.num_seeds if run_config.may_be_host(run.env) else 1
        if key not in self.made:
            self.made[key] = make_envs(run)
            count = number_of_trials(self.sweep.options, self.sweep.space)
            check_host(self.made[key], self.sweep.options, count, run.num_envs)
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
    if run.placement != machine.AUTO or run_config.may_be_host(run.env):
        return fill_in(run)
    run, _ = fill_in(dataclasses.replace(run, placement="data_parallel"))
    one = (run.devices or 1) == 1
    return dataclasses.replace(run, placement="fused") if one else run, "" if one else "members are divided over them"


def train_sweep(words: list[str]) -> int:
    """Run a sweep.

    Args:
        words: Words of the command line.

    Returns:
        Exit code: 0, or 130 or 143 after a signal.

    Raises:
        ConfigError: Wrong words.
    """
    resume, words = take_resume(words)
    sweep = read_sweep(words)
    if sweep.given["launcher"] != "none":
        return write_jobs(words, sweep.given["launcher"], sweep.given["jobs"], env_name(sweep.run))
    stop = StopSignal()
    run, chosen = place_members(sweep.run)
    with closing(Jobs(sweep, run)) as jobs:
        return run_sweep(sweep, run, chosen, jobs, stop, resume)


def run_sweep(sweep: Sweep, run: Run, chosen: str, jobs: Jobs, stop: StopSignal, resume: Path | None) -> int:
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
    options, space = sweep.options, sweep.space
    trials, each = number_of_trials(options, space), options.seeds_per_trial
    first = {key: draw.values[0] for key, draw in space.sizes.items()}
    one = jobs(1, first)
    devices = len({device for group in one.placement.groups for device in group.devices})
    of_machine: dict[str, Any] = {"devices": devices, "platform": jax.default_backend()}
    of_machine["measured"] = measured_at_once(run)
    width = at_once_of(options, trials, member_bytes(one)[0], free_bytes(), **of_machine)
    if isinstance(one.env, HostEnv) and options.size is not None:
        width = trials
    plan, needs = make_plan(options, space, one, at_once=width, seed=run.seed, total_steps=run.total_steps)
    named = dataclasses.replace(run, name=run.name or ("sweep" if options.size is None else "population"))
    named = dataclasses.replace(named, run_dir=str(resume) if resume else run.run_dir)
    with folder_of(named, resume) as path:
        folder = Path(path)
        replace_file(folder / SWEEP_FILE, json.dumps(sweep.words_given) + "\n")
        print_opening(run, chosen, folder)
        print_needs(sweep, plan, needs)
        write_facts(run, chosen, folder)
    steps = plan.trials * each * plan.segments * plan.segment_ticks * one.plan.steps_per_tick
    facts = {"env": run.env, "algo": run.algo, "total_steps": steps}
    result = run_population(
        plan,
        lambda sizes: jobs(width * each, sizes),
        Files(folder, {}, {**facts, "eval.every": 0, "kind": named.name}),
        should_stop=stop,
        tell=print,
        finalists=sweep.given["finalists"],
        final_episodes=sweep.given["final_episodes"],
        resume=resume,
    )
    write_summary(folder, {**best_summary(result), "stopped_by": stop.number})
    conclude_sweep(sweep, result, folder)
    return 128 + stop.number if stop.number else 0


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


def take_resume(words: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Take ``resume=FOLDER`` out of the words, and read the folder's words.

    Args:
        words: Words of the command line.

    Returns:
        The folder or None, and the words of the sweep.

    Raises:
        ConfigError: The folder is not a sweep's, or other words are given.
    """
    given = [word.partition("=")[2] for word in words if word.startswith("resume=")]
    if not given:
        return None, list(words)
    folder, others = Path(given[-1]), [word for word in words if not word.startswith("resume=")]
    try:
        stored = json.loads((folder / SWEEP_FILE).read_text("utf-8"))
    except (OSError, ValueError):
        raise ConfigError(f"resume={folder}: it is not the folder of a sweep: write one, such as runs/latest") from None
    code = [word for word in stored if names_own_code(word)]
    missing = [word for word in code if word not in others]
    if missing:
        raise ConfigError(f"{folder} names {missing[0]}, and code that a folder names is not executed: write it again")
    strange = [word for word in others if word not in stored]
    if strange:
        raise ConfigError(f"{strange[0]}: a sweep continues with the words that began it: leave it out")
    return folder, stored


def names_own_code(word: str) -> bool:
    """Return whether a word of the command line names code of the user's.

    Args:
        word: Word.

    Returns:
        True for ``algo.make=...`` and the like.
    """
    key, _, value = word.partition("=")
    return key in {f"algo.{name}" for name in CODE} and names_code(value)


def measured_at_once(run: Run) -> int | None:
    """Return how many trials at once cost least, if it was measured for this work on this machine.

    Args:
        run: Settings of a member.

    Returns:
        The number, or None.
    """
    key = tuning_cache.make_key(run, tuning_cache.this_device(), "members")
    finding = tuning_cache.look_up_free(key, to_stderr)
    return None if finding is None else finding.free.get("at_once")


def print_needs(sweep: Sweep, plan: SearchPlan, needs: Needs) -> None:
    """Print what a sweep needs, before anything is compiled.

    Args:
        sweep: The sweep.
        plan: Its plan.
        needs: What it needs.
    """
    each, space = sweep.options.seeds_per_trial, sweep.space
    what = "trials" if plan.exchange is None else "members"
    learners = f", {each} seeds each" if each > 1 else ""
    print(f"{plan.trials} {what}{learners}, {plan.at_once} at once; vary: {', '.join(space.draws)}")
    groups = 1
    for draw in space.sizes.values():
        groups *= len(draw.values)
    turns = -(-plan.trials // plan.at_once)
    how = f"{plan.segments} segments{', an exchange after each' if plan.exchange else ''}"
    if plan.halving is not None:
        how = f"rungs after {', '.join(map(str, plan.halving.rungs))} of {plan.segments} segments"
    print(f"{groups} program{'s' if groups > 1 else ''} to compile, {turns} turn{'s' if turns > 1 else ''}, {how}")
    replay = f", of these {needs.replay_bytes / 1e6:,.1f} MB replay" if needs.replay_bytes else ""
    at_once = needs.member_bytes * needs.slots / 1e6
    print(f"memory {needs.member_bytes / 1e6:,.2f} MB a learner{replay}, {at_once:,.1f} MB at once")
    print(f"a checkpoint of up to {needs.checkpoint_bytes / 1e6:,.1f} MB after each segment")
    given = sweep.given
    at_rungs = f"{sweep.run.eval.episodes} episodes of each learner after each segment, "
    at_rungs = at_rungs if plan.score == "evaluation" else ""
    finalists = min(given["finalists"], plan.trials)
    print(f"evaluations: {at_rungs}{given['final_episodes']} episodes of the best {finalists} at the end", flush=True)


def conclude_sweep(sweep: Sweep, result: PopulationResult, folder: Path) -> None:
    """Write the best member's files, pictures and page, and print them.

    Args:
        sweep: The sweep.
        result: Its result.
        folder: Its folder.
    """
    texts = {}
    if result.best is not None:
        texts = write_best(result, folder / BEST)
        trial = result.book.trials[result.best]
        best = settings_of_best(sweep, result, texts)
        replace_file(folder / BEST / "config.yaml", to_yaml(best))
        returns = result.returns[result.best]
        print(f"\nbest: trial {trial.number}, {describe_point(result.book.point(trial.number))}")
        print(f"greedy return {returns.mean():.1f} ± {returns.std():.1f} ({returns.size} new episodes)")
    seconds = result.seconds
    print(
        f"{clock(seconds['total'])} in total, of these {seconds['compiling']:.0f} s compiling and "
        f"{seconds['evaluating']:.0f} s evaluating at the end"
    )
    draw_population(folder, members(result.book))
    try_to_write(folder, print)
    if not result.complete:
        print(f"stopped; continue it with: python -m jaxrl_fast.sweep resume={folder}")
    elif result.best is not None:
        print(f"repeat the best alone: {command_line([f'config={folder / BEST}/config.yaml'])}")
        if sweep.given["write_tuned"]:
            write_tuned(sweep, result, texts, folder)
    print(f"trials in {folder / 'trials.csv'}, page {folder / 'report.html'}")


def settings_of_best(sweep: Sweep, result: PopulationResult, texts: Mapping[str, str]) -> Run:
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
    words = [word for word in sweep.words if word.partition("=")[0] not in (*point, "run_dir", "seed")]
    seed = result.book.trials[result.best].seeds[0]
    return compose([*words, *(f"{key}={quoted(value)}" for key, value in point.items()), f"seed={seed}"])


def quoted(value: Any) -> str:
    """Format a value for a word of the command line; texts with commas in quotes.

    Args:
        value: Value.

    Returns:
        The text.
    """
    return f"'{value}'" if isinstance(value, str) and not value.isidentifier() else written(value)


def write_tuned(sweep: Sweep, result: PopulationResult, texts: Mapping[str, str], folder: Path) -> None:
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
    for key in {*sweep.space.draws, *(w.partition("=")[0] for w in sweep.words if w.startswith("algo."))}:
        if key.startswith("algo."):
            tree["algo"][key.removeprefix("algo.")] = plain(run.algo_options[key.removeprefix("algo.")])
    path = folder / f"{env_name(run)}_{run.algo.replace('.', '-')}.yaml"
    origin = f"# {folder}: the best of {trials} trials, {returns.mean():.1f} greedy over {returns.size} episodes."
    replace_file(path, f"{origin}\n{yaml.safe_dump(tree, sort_keys=False)}")
    print(f"tuned settings in {path}: config={path} uses them, also for other seeds")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: Words of the command line, None for the arguments of the process.

    Returns:
        Exit code.
    """
    return cli.main("sweep", train_sweep, argv, help_text)


if __name__ == "__main__":
    collect_garbage_seldom()
    sys.exit(main())
