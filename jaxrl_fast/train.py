"""``python -m jaxrl_fast.train env=halfcheetah``: train, show, and leave a run folder behind."""

import os
import secrets
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from rich.console import Console

import envs
from jaxrl_fast import IMPORT_START_S, cli, config, distributed, processes, resuming
from jaxrl_fast.bridge import check_placement, in_graph
from jaxrl_fast.checkpoint_files import all_steps, read_description
from jaxrl_fast.checkpointing import FOLDER
from jaxrl_fast.config import Run
from jaxrl_fast.env import VecEnv
from jaxrl_fast.fragments import build_graph
from jaxrl_fast.host_env import HostEnv
from jaxrl_fast.loop import Result, check_host, learn, place
from jaxrl_fast.placement import check
from jaxrl_fast.progress import ProgressDisplay, clock, si
from jaxrl_fast.reporting import check_tables, link_latest, write_summary
from jaxrl_fast.settling import made_ready, print_if_serial
from jaxrl_fast.tuning import auto

RUNS = Path("runs")


class StopSignal:
    """Ctrl-C and SIGTERM: the first ends the run after its chunk (at once while there is nothing to save), the second
    ends the process wherever it is."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.training = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        for again in (signal.SIGINT, signal.SIGTERM):
            signal.signal(again, signal.SIG_DFL)
        if not self.training:
            print("\nstopped before anything was trained", file=sys.stderr)
            self._leave(number, frame)
        print("\nstopping after this chunk; once more to stop at once", file=sys.stderr)

    def _leave(self, number: int, frame: FrameType | None) -> NoReturn:
        """Python drops what is raised within a finalizer, or a callback of its garbage collector (JAX has one)."""

        def raise_later(dropped: "sys.UnraisableHookArgs") -> None:
            if dropped.exc_value is leaving:
                signal.signal(number, self._leave)
                threading.Timer(0.01, os.kill, [os.getpid(), number]).start()
            else:
                sys.__unraisablehook__(dropped)

        leaving = SystemExit(128 + number)
        sys.unraisablehook = raise_later
        raise leaving

    def __call__(self) -> bool:
        self.training = True
        return self.number is not None


def train(run: Run) -> int:
    """Train as ``run`` says; the exit status is 0, or 130 or 143 after a signal.

    Raises:
        ValueError: one line that says what was wrong and what to write instead.
    """
    stop = StopSignal()
    if is_complete(run):
        return 0
    with made_ready(auto.resolve(run, may_measure=True)) as (settled, chosen, env):
        return train_on(env, settled, chosen, stop)


def train_on(env: VecEnv | HostEnv, run: Run, chosen: str, stop: StopSignal) -> int:
    """As `train`, when the machine and the environments are there; ``chosen``: what `made_ready` said."""
    algorithm = config.make_algorithm(run)
    graph, _ = build_graph(
        in_graph(env).env, algorithm, overlap=run.overlap, learners=run.learners, average=run.average,
        total_steps=run.total_steps,
    )  # fmt: skip
    check_host(env, run.num_seeds, run.debug)
    placed = place(graph, run.placement, run.devices)
    check_placement(env, placed)
    check(graph, placed, run.num_seeds)
    earlier_s = 0.0
    if run.resume is not None:
        earlier_s = resuming.check(run.resume, config.settings(run), algorithm)[0].progress["wall_s"]
    folder = Path(distributed.decide(lambda: str(new_folder(run))))
    if distributed.is_first():
        print_opening(run, chosen, folder)
        if len({device for group in placed.groups for device in group.devices}) > 1:
            print_if_serial(run, env, algorithm)
    before_s = time.perf_counter() - IMPORT_START_S
    with ProgressDisplay(run.total_steps, None if distributed.is_first() else Console(quiet=True)) as progress:
        result = learn(
            env, algorithm, total_steps=run.total_steps, seed=run.seed, num_seeds=run.num_seeds,
            overlap=run.overlap, learners=run.learners, average=run.average, placement=run.placement,
            devices=run.devices,
            eval_every=run.eval_every, eval_episodes=run.eval_episodes,
            on_metrics=progress, run_dir=folder, checkpoints=run.checkpoints, resume=run.resume, nan=run.nan,
            debug=run.debug, should_stop=stop, settings=config.settings(run), tell=progress.tell,
        )  # fmt: skip
    stopped_by = distributed.highest(stop.number or 0) or None
    if distributed.is_first():
        # Who has asked for an end gets it at once: a page takes as long to compile as some runs do.
        pages = draw_policy(run, env, result, folder) if stopped_by is None else []
        summary = add_to_summary(run, result, folder, before_s, earlier_s, stopped_by)
        print_closing(summary, folder, pages)
    processes.finish()
    return 128 + stopped_by if stopped_by is not None else 0


def is_complete(run: Run) -> bool:
    """Whether a run to be resumed has nothing left to do, which is said."""
    if run.resume is None:
        return False
    done = read_description(Path(run.resume)).progress["env_steps"]
    if done >= run.total_steps:
        print(f"{run.resume}: all {run.total_steps:,} steps are trained; a larger total_steps=... goes on")
    return done >= run.total_steps


def new_folder(run: Run) -> Path:
    """Make the run's folder, or find it again, and put ``config.yaml`` into it.

    Raises:
        ValueError: it holds a run already, or cannot be written to.
    """
    label = f"{time.strftime('%Y%m%d-%H%M%S')}{f'-{run.name}' if run.name else ''}-{run.seed}-{secrets.token_hex(2)}"
    folder = Path(run.run_dir) if run.run_dir else RUNS / run.env / run.algo / label
    goes_on = run.resume is not None and Path(run.resume).parent.parent.resolve() == folder.resolve()
    if goes_on:
        check_tables(folder)
    holds_a_run = (folder / "config.yaml").exists() or all_steps(folder / FOLDER)
    if holds_a_run and not (goes_on or run.requeued):
        raise ValueError(f"run_dir={folder} holds a run already: write resume={folder}, or another run_dir")
    try:
        if run.requeued and not goes_on and (folder / FOLDER).exists():
            (folder / FOLDER).rename(folder / f"{FOLDER}-damaged-{secrets.token_hex(2)}")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(config.to_yaml(run))
    except OSError as error:
        raise ValueError(
            f"cannot write to the run folder {folder} ({error.strerror}): write another run_dir=..."
        ) from None
    if not run.run_dir:
        link_latest(folder, RUNS)
    return folder


def print_opening(run: Run, chosen: str, folder: Path) -> None:
    """What the names stand for, what was chosen for this machine, and where the run goes."""
    print(envs.describe(run.env, run.env_options))
    print(f"{run.algo}, settings {f'tuned for this environment ({run.tuned_file})' if run.tuned_file else 'untuned'}")
    seeds = f", {run.num_seeds} seeds from {run.seed}" if run.num_seeds > 1 else f", seed {run.seed}"
    print(f"{run.total_steps:,} steps of {run.num_envs} environments{seeds}")
    devices = f"{run.devices} device{'s' if run.devices != 1 else ''}"
    print(f"placement {run.placement} on {devices}{f' ({chosen})' if chosen else ''}")
    print(f"run folder {folder}", flush=True)


def draw_policy(run: Run, env: VecEnv | HostEnv, result: Result, folder: Path) -> list[str]:
    """``policy.html`` for brax's worlds; a page that cannot be made does not spoil a run that has been trained."""
    suite, options = envs.resolve(run.env, dict(run.env_options))
    if suite != "brax" or isinstance(env, HostEnv) or env.world is None:
        return []
    from jaxrl_fast.visualization import write_policy_html

    try:
        write_policy_html(result.policy, env.world, folder / "policy.html", world_options=options, seed=run.seed)
    except Exception as error:
        print(f"no policy.html: {type(error).__name__}: {error}", file=sys.stderr)
        return []
    return ["policy.html"]


def add_to_summary(
    run: Run, result: Result, folder: Path, before_s: float, earlier_s: float, stopped_by: int | None
) -> dict[str, Any]:
    """Complete ``summary.json`` with what only the command knows: the seconds before training, those of earlier starts
    of a resumed run up to its checkpoint, and all until now."""
    _, options = envs.resolve(run.env, dict(run.env_options))
    summary = {
        "env": run.env, "env_id": options.get("id", options.get("make")), "env_backend": options.get("backend"),
        "algo": run.algo, "placement": run.placement, "overlap": run.overlap, "seed": run.seed, **result.summary,
        "time_to_first_step_s": result.summary["time_to_first_step_s"] + before_s,
        "wall_s": earlier_s + time.perf_counter() - IMPORT_START_S,
        "stopped_by": signal.Signals(stopped_by).name if stopped_by is not None else None,
    }  # fmt: skip
    write_summary(folder, summary)
    return summary


def print_closing(summary: dict[str, Any], folder: Path, pages: list[str]) -> None:
    """Result, speed, paths, and the command that repeats the run."""
    steps = f"{summary['env_steps']:,} steps and {summary['updates']:,} updates"
    interval = summary.get("eval_return_ci95")
    spread = f"95 % of the mean [{interval[0]:.1f}, {interval[1]:.1f}]" if interval else "std over episodes"
    value = "" if interval else f" ± {summary['eval_return_std'] or 0.0:.1f}"
    if summary["eval_return_mean"] is None:
        print(f"\nnot evaluated yet, after {steps}")
    else:
        mean, episodes = summary["eval_return_mean"], summary["eval_episodes"]
        last = "last measured " if summary["stopped_by"] else ""
        print(f"\n{last}greedy return {mean:.1f}{value} ({spread}, {episodes} episodes) after {steps}")
    if summary["dropped_updates"]:
        print(f"{summary['dropped_updates']:,} updates were dropped, since they gave a number that is not finite")
    print(
        f"{clock(summary['wall_s'])} in all, {summary['time_to_first_step_s']:.1f} s to the first step; "
        f"{si(summary['sampling_hz'])} steps/s, {si(summary['update_hz'])} updates/s of {summary['batch_size']}, "
        f"update frame rate {si(summary['update_frame_hz'])}"
    )
    files = ["summary.json", "curve.png", "graph.svg", *pages, "policy/", "metrics.csv", "evals.csv"]
    print(f"{folder}: {', '.join(files)}")
    if summary["stopped_by"]:
        print(f"go on:    {config.command_line([f'resume={folder}'])}")
    print(f"again:    {config.command_line([f'config={folder}/config.yaml'])}")
    print(f"evaluate: {config.command_line([str(folder), 'episodes=100'], 'evaluate')}")


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    return cli.main("train", lambda words: train_with_others(config.compose(words)), argv)


def train_with_others(run: Run) -> int:
    """As `train`; the loss of another process is said in one line and ends in status 1."""
    try:
        return train(run)
    except Exception as error:
        if not processes.is_lost(error):
            raise
        print(f"jaxrl_fast: error: {processes.last_word.text}", file=sys.stderr)
        return 1


def run_as_process() -> NoReturn:
    """Run the command and end the process; a stopped run does not wait for threads that compile or evaluate, and none
    waits for other processes that it has not agreed with on an end."""
    try:
        status = main()
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 1
    except Exception:
        if not processes.last_word.text:
            raise
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    if processes.last_word.text:
        processes.leave(status)
    if status in cli.INTERRUPTED:
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    run_as_process()
