"""A population from its plan to its results: files, checkpoints, the final evaluation, and the
library's function.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from jaxrl_fast.algorithms.registry import declared_named
from jaxrl_fast.assembly import make_job
from jaxrl_fast.core import require_devices, require_vectorized
from jaxrl_fast.envs.env import VecEnv
from jaxrl_fast.learning.algorithm import AnyAlgorithm
from jaxrl_fast.numerics.optimizers import checks_numbers, is_set
from jaxrl_fast.policy.policies import Policy, save_policy
from jaxrl_fast.population import planning
from jaxrl_fast.population.asking import SamplerName
from jaxrl_fast.population.driver import Driver, Hooks, Resume
from jaxrl_fast.population.member_groups import SearchPlan
from jaxrl_fast.population.record import write_schedules, write_tables
from jaxrl_fast.population.rules import Explore
from jaxrl_fast.population.search_space import OF_PROGRAM, SearchSpace, describe_point, make_space
from jaxrl_fast.population.slots import member_bytes
from jaxrl_fast.population.trials import Book
from jaxrl_fast.runtime import hosts
from jaxrl_fast.runtime.graph import TrainState, tagged
from jaxrl_fast.runtime.placements import REPLAY, Make
from jaxrl_fast.settings.machine import free_bytes
from jaxrl_fast.settings.run import of_program
from jaxrl_fast.settings.schema import (
    SWITCHES,
    Checkpoints,
    EvalOptions,
    Key,
    argument_ranges,
    keys_of,
)
from jaxrl_fast.settings.signatures import algo_keys
from jaxrl_fast.system import local_path
from jaxrl_fast.training import checkpoints
from jaxrl_fast.training.callbacks import ShouldStop, Tell, to_stderr
from jaxrl_fast.training.checkpoints import Checkpointer
from jaxrl_fast.training.job import Job
from jaxrl_fast.training.records import RunStatus
from jaxrl_fast.training.run_folder import locked, write_summary
from jaxrl_fast.training.stop_signals import Stop, stopping_at_signals

FOLDER = "population"
"""Folder of a population's checkpoints; not the one of a run's, which `resume` of a run would read.
"""


class PopulationResult(NamedTuple):
    """Result of a search or population.

    Attributes:
        book: All trials with their points and scores.
        complete: Whether it came to its end.
        returns: Returns ``[learners, episodes]`` of the best trials in new episodes, by number of
            the trial.
        best: Number of the trial with the highest of these, None without any.
        policy: Policy of its best learner.
        learner: Number of this learner in the trial.
        seconds: Seconds in total, of these compiling, and of the final evaluation.
        steps_per_tick: Environment steps of a tick, of each learner of the best trial.
    """

    book: Book
    complete: bool
    returns: dict[int, np.ndarray]
    best: int | None
    policy: Policy | None
    seconds: dict[str, float]
    steps_per_tick: int = 1
    learner: int = 0

    def __repr__(self) -> str:
        """Return one line."""
        point = (
            ""
            if self.best is None
            else f", best trial {self.best}: {describe_point(self.book.point(self.best))}"
        )
        return f"PopulationResult({len(self.book.trials)} trials{point})"


class Files(NamedTuple):
    """Where a population writes.

    Attributes:
        folder: Its folder, or None to write nothing.
        facts: More entries for pages.
    """

    folder: Path | None
    facts: Mapping[str, Any] = {}


def run_population(
    plan: SearchPlan,
    make_group_job: Callable[[dict[str, Any]], Job],
    files: Files,
    *,
    should_stop: ShouldStop = lambda: False,
    should_save: Callable[[], bool] = lambda: False,
    tell: Tell = to_stderr,
    final_episodes: int = 128,
    resume: Path | None = None,
) -> PopulationResult:
    """Train a population, and evaluate the best trials.

    Args:
        plan: Plan.
        make_group_job: ``(values of the settings that are compiled in, by key) -> job`` with a seed
            for each slot.
        files: Where it writes.
        should_stop: Called before every chunk.
        should_save: Called after every chunk: whether to save now.
        tell: Shows messages to the user.
        final_episodes: Episodes of each learner of the ``plan.finalists`` best trials at the end.
        resume: Folder of a population to continue, or None.

    Returns:
        The result.
    """
    with ExitStack() as stack:
        if files.folder is not None:
            folder = files.folder
            hosts.decide(lambda: stack.enter_context(locked(folder)))
        book = Book(plan.space, plan.segments, plan.segment_steps, plan.halving)
        writes = files.folder is not None and hosts.is_first()
        status = (
            RunStatus(files.folder, resumed=resume is not None, **files.facts)
            if writes and files.folder
            else None
        )
        if status is not None:
            stack.push(status.end_at_error)
        saver = stack.enter_context(_saver(files, tell)) if files.folder is not None else None

        def on_segment(book: Book) -> None:
            if status is not None and files.folder is not None:
                write_tables(files.folder, book, files.facts)
            report_progress(book, driver.wall_s(), status, tell)

        hooks = Hooks(
            should_stop=should_stop,
            should_save=should_save,
            tell=tell,
            on_segment=on_segment,
            save=lambda *parts: _save(saver, *parts),
        )
        driver = stack.enter_context(closing(Driver(plan, book, make_group_job, hooks)))
        if resume is not None:
            found = checkpoints.read_description(_newest(resume))
            driver.go_on_from(Resume(found.progress, checkpoints.read_arrays(found)))
            tell(f"continues after {driver.done} segments")
        complete = driver.train()
        result = conclude(driver, complete, plan.finalists, final_episodes)
        if files.folder is not None and status is not None:
            write_tables(files.folder, book, files.facts)
            status.set(now=False, wall_s=result.seconds["total"])
            status.end(None, complete=complete)
        return result


def has_checkpoint(folder: Path) -> bool:
    """Return whether a population can continue; one that was killed in its first segment cannot.

    Args:
        folder: Folder of the population.

    Returns:
        True if it has a checkpoint.
    """
    return bool(checkpoints.all_steps(folder / FOLDER))


def _newest(folder: Path) -> Path:
    steps = checkpoints.all_steps(folder / FOLDER)
    if not steps:
        raise ValueError(
            f"resume={folder}: it contains no checkpoint of a population, which the first segment writes"
        )
    return folder / FOLDER / str(steps[-1])


def _saver(files: Files, tell: Tell) -> Checkpointer:
    assert files.folder is not None
    if hosts.is_first():
        checkpoints.remove_stale(files.folder / FOLDER)
    return Checkpointer(files.folder / FOLDER, Checkpoints(keep=2), {}, [], tell)


def _save(
    saver: Checkpointer | None,
    done: int,
    job: Job,
    state: TrainState,
    progress: dict[str, Any],
    beside: dict[str, np.ndarray],
) -> None:
    if saver is not None:
        saver.refills = list(tagged(job.graph, REPLAY))
        saver.save(done, state, progress, None, beside)


def report_progress(book: Book, wall_s: float, status: RunStatus | None, tell: Tell) -> None:
    """Print a line after a segment, and store its figures for the dashboard.

    Args:
        book: The trials.
        wall_s: Seconds so far.
        status: Status of the folder, or None.
        tell: Shows messages to the user.
    """
    ranking = book.ranking()
    best = book.trials[ranking[0]] if ranking else None
    score = None if best is None else best.score
    counts = {
        s: sum(t.status == s for t in book.trials.values())
        for s in ("training", "finished", "diverged")
    }
    words = [f"{number} {name}" for name, number in counts.items() if number]
    steps = sum(t.env_steps * len(t.seeds) for t in book.trials.values())
    line = f"{steps:>13,} steps  {wall_s:7.0f} s  {', '.join(words) or 'all wait'}"
    if best is not None and score is not None:
        point = describe_point(book.point(best.number))
        line += f"; best {score:.1f} after {best.env_steps:,} steps (trial {best.number}: {point})"
    tell(line)
    if status is not None:
        score = score if score is not None and np.isfinite(score) else None
        status.set(
            state="training",
            env_steps=steps,
            wall_s=wall_s,
            episode_return=score,
            best_return=score,
        )


def conclude(driver: Driver, complete: bool, finalists: int, episodes: int) -> PopulationResult:
    """Evaluate the best trials and choose the best one.

    Args:
        driver: Driver of the population.
        complete: Whether it came to its end; otherwise nothing is evaluated.
        finalists: Trials to evaluate.
        episodes: Episodes of each of their learners.

    Returns:
        The result.
    """
    began = time.perf_counter()
    returns = (
        driver.evaluate_best(finalists, episodes)
        if complete and finalists and hosts.is_first()
        else {}
    )
    seconds = {
        "total": driver.wall_s(),
        "compiling": driver.compile_s,
        "evaluating": time.perf_counter() - began,
    }
    if not returns:
        return PopulationResult(driver.book, complete, {}, None, None, seconds)
    best = driver.book.best = max(
        returns, key=lambda number: (float(returns[number].mean()), -number)
    )
    learner = int(np.argmax(returns[best].mean(axis=1)))
    return PopulationResult(
        book=driver.book,
        complete=complete,
        returns=returns,
        best=best,
        policy=driver.policy(best, learner),
        seconds=seconds,
        steps_per_tick=driver.steps_per_tick(best),
        learner=learner,
    )


def write_best(result: PopulationResult, folder: Path) -> dict[str, str]:
    """Write the policy of the best trial, and the rates that it was trained with if they changed.

    Args:
        result: Result with a best trial.
        folder: Folder for them.

    Returns:
        Text of each rate's schedule by key.
    """
    assert result.policy is not None and result.best is not None
    folder.mkdir(parents=True, exist_ok=True)
    save_policy(result.policy, folder / "policy")
    return write_schedules(folder, result.book, result.best, result.steps_per_tick)


def best_summary(result: PopulationResult) -> dict[str, Any]:
    """Return the entries of ``summary.json`` of a population.

    Args:
        result: Result.

    Returns:
        Entries.
    """
    book, best = result.book, result.best
    steps = sum(t.env_steps * len(t.seeds) for t in book.trials.values())
    entries: dict[str, Any] = {
        "trials": len(book.trials),
        "env_steps": steps,
        "wall_s": result.seconds["total"],
    }
    entries |= {"compile_s": result.seconds["compiling"], "eval_s": result.seconds["evaluating"]}
    if best is None:
        return entries
    returns = result.returns[best]
    return {
        **entries,
        "best_trial": best,
        "best_settings": book.point(best),
        "eval_return_mean": float(returns.mean()),
        "eval_return_std": float(returns.std()),
        "eval_episodes": int(returns.size),
        "best": {"return_mean": float(returns.mean()), "env_steps": book.trials[best].env_steps},
    }


def space_of_rates(algorithm: AnyAlgorithm, rates: Mapping[str, str]) -> SearchSpace:
    """Read how the rates of an algorithm vary.

    Args:
        algorithm: Algorithm.
        rates: Texts by name of the hyper-parameter.

    Returns:
        The space.

    Raises:
        ValueError: A rate does not exist, is out of range, or switches a part on that the algorithm
            was made without.
    """
    if not isinstance(rates, Mapping) or not rates:
        raise ValueError(
            f"rates={rates!r}: write how rates vary, such as {{'learning_rate': 'log:1e-4:1e-2'}}"
        )
    declared = {} if declared_named(algorithm.name) is None else algo_keys(algorithm.name)
    keys = {
        f"algo.{name}": declared.get(f"algo.{name}", Key(Any, None))
        for name in algorithm.hyper._fields
    }
    for name, text in rates.items():
        if not isinstance(text, str):
            raise ValueError(
                f"rates: {name}={text!r}: write a text, such as 'log:1e-4:1e-2' or 'choice:0.9,0.99'"
            )
        if str(name).startswith("algo."):
            raise ValueError(f"rates: {name}: write the name alone: {name.removeprefix('algo.')}")
        if f"algo.{name}" in SWITCHES and not is_set(getattr(algorithm.hyper, name)):
            raise ValueError(
                f"rates: {name} is 0 in this algorithm, which was made without it: make it with another value"
            )
    texts = {f"algo.{name}": text for name, text in rates.items()}
    return make_space(texts, keys, list(keys), OF_PROGRAM)


OPTIONS = keys_of(planning.SearchOptions) | planning.AT_THE_END
RANGES = argument_ranges() | {
    name: key.range() for name, key in OPTIONS.items() if key.range().kind == "whole"
}
RANGES["eval_episodes"] = RANGES["final_episodes"]


@checks_numbers(RANGES)
def train_population(
    env: VecEnv,
    algorithm: AnyAlgorithm,
    *,
    rates: Mapping[str, str],
    total_steps: int,
    seed: int = 0,
    trials: int | None = None,
    at_once: int | None = None,
    seeds_per_trial: int = 1,
    sampler: SamplerName = "random",
    halving: int = 0,
    first_rung: int | None = None,
    score: Literal["training", "evaluation"] = "training",
    size: int | None = None,
    every: int | None = None,
    explore: Explore = "perturb",
    quantile: float = 0.25,
    copy_replay: bool = False,
    placement: str | Make = "fused",
    devices: int | None = None,
    eval_episodes: int = 16,
    finalists: int = 4,
    final_episodes: int = 128,
    run_dir: str | Path | None = None,
    resume: str | Path | None = None,
    should_stop: ShouldStop = lambda: False,
    tell: Tell = to_stderr,
) -> PopulationResult:
    """Train many learners with different rates in one program: a search, or a population whose
    members copy each other.

    Args:
        env: Compiled environment.
        algorithm: Algorithm. Its hyper-parameters that ``rates`` does not name are the same for
            all.
        rates: How hyper-parameters vary, by name: ``{"learning_rate": "log:1e-4:1e-2"}``.
        total_steps: Environment steps of each learner.
        seed: Seed of the search, and first seed of the learners.
        trials: Number of trials, None for every point of a grid, or 32.
        at_once: Trials at once in the program; None for what memory and machine advise.
        seeds_per_trial: Learners of each trial, whose mean is its score.
        sampler: How points are chosen: "random", "tpe" or "gp".
        halving: At each rung one of so many trials goes on; 0 for no rungs.
        first_rung: Environment steps until the first rung.
        score: Whether trials are compared by returns of training or by evaluations.
        size: Members of a population; None for a search.
        every: Environment steps between two exchanges of a population.
        explore: How the rates of a copy change.
        quantile: Share of a population that is replaced at an exchange.
        copy_replay: Whether a copy takes over the replay buffer, too.
        placement: As in `jaxrl_fast.learn`.
        devices: As in `jaxrl_fast.learn`.
        eval_episodes: Episodes of an evaluation of each learner, with ``score="evaluation"``.
        finalists: Trials that are evaluated at the end.
        final_episodes: Episodes of each of their learners.
        run_dir: Folder for tables, checkpoints and the best policy; None to write nothing.
        resume: Folder of a population to continue, with equal other arguments; None for a new one.
        should_stop: Called before every chunk.
        tell: Shows messages to the user.

    In several processes (as in `jaxrl_fast.learn`), process 0 evaluates, writes and calls ``tell``;
    others return no policy.

    Returns:
        All trials, and the best policy.

    Raises:
        ValueError: Arguments contradict each other, or a rate does not exist.
    """
    require_devices()
    require_vectorized(env, algorithm)
    folder = None if run_dir is None else local_path(run_dir, "run_dir")
    options = planning.SearchOptions(
        trials=trials,
        at_once=at_once,
        seeds_per_trial=seeds_per_trial,
        sampler=sampler,
        halving=halving,
        first_rung=first_rung,
        score=score,
        size=size,
        every=every,
        explore=explore,
        quantile=quantile,
        replay=copy_replay,
    )
    space = space_of_rates(algorithm, rates)
    planning.check_options(options, space, total_steps, OF_PROGRAM)

    def job_of(count: int) -> Job:
        run = of_program(
            env,
            algorithm,
            total_steps=total_steps,
            seed=seed,
            num_seeds=count,
            placement=placement,
            devices=devices,
            eval=EvalOptions(every=0, episodes=eval_episodes, beside=False),
            checkpoint=Checkpoints(keep=0),
        )
        return make_job(env, algorithm, run, {})

    one = job_of(1)
    used = len({device for group in one.placement.groups for device in group.devices})
    count, platform = planning.number_of_trials(options, space), jax.default_backend()
    width = planning.at_once_of(
        options,
        count,
        member_bytes(one)[0],
        free_bytes(jax.local_devices()),
        devices=used,
        platform=platform,
        measured=None,
    )
    plan = planning.make_plan(
        options,
        space,
        one,
        at_once=width,
        seed=seed,
        total_steps=total_steps,
        names=OF_PROGRAM,
    )
    plan = plan._replace(finalists=finalists)
    with (
        stopping_at_signals(should_stop) if folder is not None else nullcontext(Stop(should_stop))
    ) as stop:
        result = run_population(
            plan,
            lambda sizes: job_of(width * seeds_per_trial),
            Files(folder),
            should_stop=stop.should_stop,
            should_save=stop.should_save,
            tell=tell,
            final_episodes=final_episodes,
            resume=None if resume is None else local_path(resume, "resume"),
        )
    if folder is not None and hosts.is_first():
        write_summary(folder, best_summary(result))
        if result.best is not None:
            write_best(result, folder / "best")
    return result
