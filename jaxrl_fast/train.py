"""``python -m jaxrl_fast.train env=halfcheetah``: train, show progress, and write a run folder."""

import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import NoReturn

import jax
from rich.console import Console

from jaxrl_fast import IMPORT_START_S
from jaxrl_fast.assembly import make_job
from jaxrl_fast.commands import cli, run_config
from jaxrl_fast.commands.env_cache import store_of
from jaxrl_fast.commands.prepare import (
    Prepared,
    add_to_summary,
    can_draw,
    new_folder,
    prepare_run,
    print_closing,
    print_if_serial,
    print_if_too_short,
    print_opening,
    taught_algorithm,
    write_facts,
)
from jaxrl_fast.core import is_image
from jaxrl_fast.envs.env import VecEnv
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.policy.policies import Policy, save_policy
from jaxrl_fast.policy.teacher import TEACHER
from jaxrl_fast.runtime import cluster, hosts
from jaxrl_fast.runtime.placements import check_placed
from jaxrl_fast.settings.machine import collect_garbage_seldom
from jaxrl_fast.settings.run import Run, algo_words, flat_settings
from jaxrl_fast.settings.schema import named_again
from jaxrl_fast.training.callbacks import Tell, describe_reached, reached
from jaxrl_fast.training.calls import Calls, with_callbacks
from jaxrl_fast.training.checkpoints import read_description
from jaxrl_fast.training.evaluator_process import MANY_EPISODES, EvaluatorProcess
from jaxrl_fast.training.job import Job
from jaxrl_fast.training.loop import run_job
from jaxrl_fast.training.progress import ProgressDisplay, earlier_compile_s
from jaxrl_fast.training.records import check_logger
from jaxrl_fast.training.run_folder import check_unused
from jaxrl_fast.training.stop_signals import EXIT_CODES, StopSignal
from jaxrl_fast.tuning import auto
from jaxrl_fast.views.listeners import make_listeners, try_to_write
from jaxrl_fast.views.viewer import draw_policy, with_bodies
from jaxrl_fast.views.visualizer import Visualizer

PAGE = "policy.html"


def train_run(run: Run, *, keep: bool = False) -> int:
    """Train a run.

    Args:
        run: Settings of the run.
        keep: As in `prepare_run`.

    Returns:
        Exit code: 0, or 128 and the number of the signal that ended the run.
    """
    stop = StopSignal()
    if run.run_dir is not None:
        check_unused(Path(run.run_dir))
    if is_complete(run):
        return 0
    check_logger(run.log)
    run = auto.resolve_overlap(auto.resolve(run, may_measure=True), may_measure=True)
    with prepare_run(run, keep=keep) as prepared, ExitStack() as stack:
        return train_on(prepared, stop, stack)


def train_on(prepared: Prepared, stop: StopSignal, stack: ExitStack) -> int:
    """Train a prepared run.

    Args:
        prepared: The run.
        stop: Handler of signals.
        stack: Unlocks the folder of the run when it ends.

    Returns:
        Exit code: 0, or 128 and the number of the signal that ended the run.
    """
    run, chosen, env, keeper = prepared
    algorithm, teacher = taught_algorithm(run)
    settings = flat_settings(run)
    keep = partial(store_of, keeper, settings) if keeper is not None else lambda program: None
    job = make_job(env, algorithm, run, keep=keep)
    check_placed(job.graph, job.placement, run.num_seeds)
    earlier_s = job.resumed.progress["wall_s"] if job.resumed is not None else 0.0
    folder = Path(hosts.decide(lambda: stack.enter_context(new_folder(run))))
    if hosts.is_first():
        print_opening(run, chosen, folder)
        print_warnings(run, job)
        write_facts(run, chosen, folder, draws=can_draw(env))
        if teacher is not None:
            save_policy(teacher, folder / TEACHER)
    before_s = time.perf_counter() - IMPORT_START_S
    progress = progress_of(run, folder, earlier_s)
    # A visualizer reads what the last evaluation writes, so that it draws after it.
    draws_early = not run.eval.picture and hosts.is_alone()
    with visualizer_of(run, env, folder, progress.tell) as visualizer:
        with progress, evaluator_of(run, env, folder) as evaluator:
            pictures: list[str] = []

            def draw(policy: Policy) -> None:
                pictures.extend(draw_at_end(run, env, policy, folder, visualizer, stop))

            calls = Calls(
                on_metrics=progress,
                should_stop=stop,
                should_save=stop.should_save,
                evaluate=evaluator,
                tell=progress.tell,
                listeners=make_listeners(),
            )
            calls = with_callbacks(
                calls,
                job,
                folder,
                on_last_policy=draw if draws_early else None,
                stop_return=run.stop.return_,
            )
            if visualizer is not None:
                calls = calls._replace(on_new_policy=visualizer)
            _, policy, _, summary = run_job(job, calls, folder, run.log)
        stopped_by = hosts.highest(stop.number or 0) or None
        if hosts.is_first():
            if not draws_early and stopped_by is None:
                draw(policy)
            wall_s = earlier_s + time.perf_counter() - IMPORT_START_S
            measured = {**summary, "evaluator_memory_mb": evaluator and evaluator.memory_mb}
            summary = add_to_summary(run, measured, folder, before_s, wall_s, stopped_by)
            try_to_write(folder, print)
            print_closing(run, summary, folder, pictures, can_draw(env))
    cluster.finish()
    return 128 + stopped_by if stopped_by is not None else 0


def print_warnings(run: Run, job: Job) -> None:
    """Print which settings a user may have to change before the run goes on.

    Args:
        run: Settings of the run.
        job: Its job.
    """
    print_if_too_short(job)
    if len({device for group in job.placement.groups for device in group.devices}) > 1:
        print_if_serial(run, job)


def progress_of(run: Run, folder: Path, earlier_s: float) -> ProgressDisplay:
    """Make the display of a run's progress, which only the first process shows.

    Args:
        run: Settings of the run.
        folder: Folder of the run.
        earlier_s: Seconds of the run before it was resumed.

    Returns:
        The display.
    """
    return ProgressDisplay(
        run.total_steps,
        None if hosts.is_first() else Console(quiet=True),
        compile_s=None if run.run_dir else earlier_compile_s(folder),
        kind="sampled" if run.eval.sample else "greedy",
    )


def draw_at_end(
    run: Run,
    env: VecEnv | HostEnv,
    policy: Policy,
    folder: Path,
    visualizer: Visualizer | None,
    stop: StopSignal,
) -> list[str]:
    """Draw the last policy of a run: a page of bodies, or the picture of ``eval.picture``; nothing
    after a signal.

    Args:
        run: Settings of the run.
        env: Environments of the run.
        policy: Last policy.
        folder: Folder of the run.
        visualizer: Draws during training, or None.
        stop: Handler of signals.

    Returns:
        Names of the files.
    """
    if visualizer is not None and visualizer.out != PAGE:
        return [visualizer.out] if visualizer.finish(stop) else []
    if visualizer is not None:
        visualizer.close()  # otherwise it would overwrite this page
    return [PAGE] if draw_policy(policy, env, run.seed, folder) else []


@contextmanager
def visualizer_of(
    run: Run, env: VecEnv | HostEnv, folder: Path, tell: Tell
) -> Iterator[Visualizer | None]:
    """Start the process that draws during training, and end it at exit.

    Args:
        run: Settings of the run.
        env: Environments of the run.
        folder: Folder of the run.
        tell: Shows messages to the user.

    Returns:
        Context manager of the visualizer, or of None without ``eval.picture``.
    """
    if not run.eval.picture or not hosts.is_first():
        yield None
        return
    own = named_again({"algo": {**run.algo_options, **algo_words(run)}})
    out = PAGE if with_bodies(env) is not None else "policy.gif"
    with closing(Visualizer(folder, out, run.seed, tell, own=own)) as visualizer:
        yield visualizer


@contextmanager
def evaluator_of(
    run: Run, env: VecEnv | HostEnv, folder: Path
) -> Iterator[EvaluatorProcess | None]:
    """Start the process that evaluates during training, and end it at exit.

    Args:
        run: Settings of the run.
        env: Environments of the run.
        folder: Folder of the run.

    Returns:
        Context manager of the evaluator, or of None without ``eval.beside`` or evaluations.
    """
    if not run.eval.beside or run.eval.every == 0 or not hosts.is_first():
        yield None
        return
    few = run.num_seeds * run.eval.episodes <= MANY_EPISODES
    one_thread = few and not any(is_image(leaf) for leaf in jax.tree.leaves(env.spec.obs))
    with closing(EvaluatorProcess(folder, run.eval.device, one_thread=one_thread)) as evaluator:
        yield evaluator


def is_complete(run: Run) -> bool:
    """Check whether a run to be resumed has nothing left to do, and print it.

    Args:
        run: Settings of the run.

    Returns:
        True if all steps are trained and evaluated, or ``stop.return`` is reached.
    """
    if run.resume is None:
        return False
    progress = read_description(Path(run.resume)).progress
    if run.stop.return_ is not None and reached(run.stop.return_, progress["scores"]):
        print(describe_reached(run.stop.return_, Path(run.resume), progress))
        return True
    done = progress["env_steps"] >= run.total_steps and not progress.get("snapshots")
    if done:
        print(
            f"{run.resume}: all {run.total_steps:,} steps are trained; write a larger total_steps=... to continue"
        )
    return done


def main(argv: Sequence[str] | None = None, *, keep: bool = False) -> int:
    """Run the command.

    Args:
        argv: Words of the command line, None for the arguments of the process.
        keep: As in `prepare_run`. Only for a process that runs nothing else, since changes of this
            package at run time are not visible in its files.

    Returns:
        Exit code.
    """
    return cli.main(
        "train", lambda words: train_with_others(run_config.compose(words), keep=keep), argv
    )


def train_with_others(run: Run, *, keep: bool = False) -> int:
    """Train a run; if another process is lost, print one line.

    Args:
        run: Settings of the run.
        keep: As in `prepare_run`.

    Returns:
        Exit code: as `train_run`, or 1 if another process is lost.

    Raises:
        Exception: Any other error of the run.
    """
    try:
        return train_run(run, keep=keep)
    except Exception as error:
        if not cluster.is_lost(error):
            raise
        print(f"jaxrl_fast: error: {cluster.last_word.text}", file=sys.stderr)
        return 1


def run_as_process() -> NoReturn:
    """Run the command and end the process.

    A stopped run does not wait for threads that compile or evaluate, and a failed run does not wait
    for other processes.

    Raises:
        Exception: Any error that is not about lost processes.
    """
    collect_garbage_seldom()
    try:
        status = main(keep=True)
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 1
    except Exception:
        if not cluster.last_word.text:
            raise
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    if cluster.last_word.text:
        cluster.leave(status)
    if status in EXIT_CODES:
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    run_as_process()
