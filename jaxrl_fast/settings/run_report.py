"""The folder of a new run, and what is printed and written as it begins and ends."""

import secrets
import signal
import time
from pathlib import Path
from typing import Any

import jax
from omegaconf import OmegaConf

import envs
from jaxrl_fast.runs.checkpoint_files import all_steps
from jaxrl_fast.runs.checkpointing import FOLDER
from jaxrl_fast.runs.csv_tables import check_tables
from jaxrl_fast.runs.folder import link_latest, write_summary
from jaxrl_fast.runs.progress import clock, share, si
from jaxrl_fast.runs.status import read_status, write_status
from jaxrl_fast.settings.grammar import command_line
from jaxrl_fast.settings.machine import cpu_cores, processor, versions
from jaxrl_fast.settings.run_settings import Run, env_name, to_yaml

RUNS = Path("runs")
REFERENCES = Path(__file__).parent.parent / "config" / "references.yaml"


def new_folder(run: Run) -> Path:
    """Make the run's folder, or take that of a resumed run, and write ``config.yaml`` into it.

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
        (folder / "config.yaml").write_text(to_yaml(run))
    except OSError as error:
        raise ValueError(
            f"cannot write to the run folder {folder} ({error.strerror}): write another run_dir=..."
        ) from None
    if not run.run_dir:
        link_latest(folder, RUNS)
    return folder


def write_facts(run: Run, chosen: str, folder: Path) -> None:
    """Write into ``run.json`` what only the command knows: where settings come from and what computes.

    ``chosen``: `prepare_run`'s words on the placement.
    """
    before = read_status(folder) if run.resume is not None else {}
    computer = {"processor": processor(), "cores": cpu_cores(), "devices": [str(d) for d in jax.devices()]}
    facts = {"sources": run.sources, "chosen": chosen, "versions": versions(), "machine": computer}
    write_status(folder, {**before, **facts, "reference": reference_of(run)})


def reference_of(run: Run) -> dict[str, Any] | None:
    """A ``return`` that is known of the run's environment, and its ``source``; None without one."""
    known: Any = OmegaConf.to_container(OmegaConf.load(REFERENCES))
    return known.get(env_name(run))


def print_opening(run: Run, chosen: str, folder: Path) -> None:
    """Print what the names stand for, what was chosen for this machine, and where the run's files go."""
    print(envs.describe(run.env, run.env_options))
    print(f"{run.algo}, settings {f'tuned for this environment ({run.tuned_file})' if run.tuned_file else 'untuned'}")
    seeds = f", {run.num_seeds} seeds from {run.seed}" if run.num_seeds > 1 else f", seed {run.seed}"
    print(f"{run.total_steps:,} steps of {run.num_envs} environments{seeds}")
    devices = f"{run.devices} device{'s' if run.devices != 1 else ''}"
    print(f"placement {run.placement} on {devices}{f' ({chosen})' if chosen else ''}")
    print(f"run folder {folder}", flush=True)


def add_to_summary(
    run: Run, result: dict[str, Any], folder: Path, before_s: float, wall_s: float, stopped_by: int | None
) -> dict[str, Any]:
    """Complete ``summary.json`` with what only the command knows: the seconds before training, all until now, and the
    signal that ended the run."""
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
        "stopped_by": signal.Signals(stopped_by).name if stopped_by is not None else None,
    }
    write_summary(folder, summary)
    return summary


def print_closing(summary: dict[str, Any], folder: Path, pictures: list[str]) -> None:
    """Print result, speed, paths, and the command that repeats the run."""
    steps = f"{summary['env_steps']:,} steps and {summary['updates']:,} updates"
    interval = summary.get("eval_return_ci95")
    spread = f"95 % of the mean [{interval[0]:.1f}, {interval[1]:.1f}]" if interval else "std over episodes"
    value = "" if interval else f" ± {summary['eval_return_std'] or 0.0:.1f}"
    if summary["eval_return_mean"] is None:
        print(f"\nnot evaluated yet, after {steps}")
    else:
        mean, episodes = summary["eval_return_mean"], f"{summary['eval_episodes']} episodes"
        if "eval_success_rate" in summary:
            episodes = f"{episodes}, {share(summary['eval_success_rate'])} succeeded"
        last = "last measured " if summary["stopped_by"] else ""
        print(f"\n{last}greedy return {mean:.1f}{value} ({spread}, {episodes}) after {steps}")
    best = summary.get("best") or {}
    if "fresh_return_mean" in best:
        chosen = f"chosen for {best['return_mean']:.1f} after {best['env_steps']:,} steps"
        print(
            f"best policy {best['fresh_return_mean']:.1f} ± {best['fresh_return_std']:.1f} from fresh starts ({chosen})"
        )
    if summary["dropped_updates"]:
        print(f"{summary['dropped_updates']:,} updates were dropped, since they gave a number that is not finite")
    print(
        f"{clock(summary['wall_s'])} in all, {summary['time_to_first_step_s']:.1f} s to the first step; "
        f"{si(summary['sampling_hz'])} steps/s, {si(summary['update_hz'])} updates/s of {summary['batch_size']}, "
        f"update frame rate {si(summary['update_frame_hz'])}"
    )
    if summary["evaluator_memory_mb"]:
        waited = f"training waited {summary['eval_wait_s']:.1f} s for it"
        print(f"evaluated in a process of {summary['evaluator_memory_mb']:.0f} MB; {waited}")
    files = ["report.html", "summary.json", "curve.png", "graph.svg", *pictures, "policy/", "metrics.csv", "evals.csv"]
    print(f"{folder}: {', '.join(file for file in files if (folder / file).exists())}")
    if summary["stopped_by"]:
        print(f"go on:    {command_line([f'resume={folder}'])}")
    print(f"again:    {command_line([f'config={folder}/config.yaml'])}")
    print(f"evaluate: {command_line([str(folder), 'episodes=100'], 'evaluate')}")
    print(f"draw:     {command_line([str(folder)], 'render')}")
