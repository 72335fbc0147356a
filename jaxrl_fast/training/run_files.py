"""The files of a run while it goes on, and the lines about them as it begins."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from jaxrl_fast.graph import distributed
from jaxrl_fast.graph.dataflow import TrainState, tagged
from jaxrl_fast.graph.placements import REPLAY
from jaxrl_fast.runs import checkpoint_files, checkpointing
from jaxrl_fast.runs.checkpointing import FOLDER, Checkpointer
from jaxrl_fast.runs.folder import RunFolder
from jaxrl_fast.runs.hooks import Tell
from jaxrl_fast.runs.loggers import Log
from jaxrl_fast.training.job import Job
from jaxrl_fast.training.planning import Plan

FACTS = ("env", "env.id", "env.make", "algo", "total_steps", "num_seeds")
"""The settings that ``run.json`` repeats."""


def describe_start(state: TrainState, job: Job, saver: Checkpointer | None, tell: Tell) -> None:
    """Say where a resumed run goes on and what is different, and what the checkpoints will hold."""
    resumed, plan = job.resumed, job.plan
    if resumed is not None:
        tell(f"goes on from {resumed.description.path}, {resumed.progress['env_steps']:,} steps trained")
        for line in resumed.changes:
            tell(f"changed: {line}")
        if resumed.description.replay_lost:
            steps = job.agent.warmup_ticks * plan.steps_per_tick
            tell(
                f"the replay buffer was not saved: the next {steps:,} steps fill a new one before anything is "
                "learned, and what follows differs from the run without the interruption"
            )
    if saver is not None:
        tell(describe_checkpoints(state, saver, plan))


def describe_checkpoints(state: TrainState, saver: Checkpointer, plan: Plan) -> str:
    """How often a checkpoint is made, how large it will be, and what it leaves out."""
    own, replay = (size / 1e6 for size in checkpoint_files.sizes(state, saver.refills))
    every = plan.chunks_per_checkpoint * plan.ticks_per_chunk * plan.steps_per_tick
    text = f"checkpoint every {every:,} steps, {own:.1f} MB"
    if replay and saver.plan.replay:
        return f"{text}, the newest with {replay:.1f} MB of replay"
    if replay:
        return f"{text}, without replay ({replay:.1f} MB): a resumed run fills a new buffer before it learns again"
    return text


@contextmanager
def open_folder(job: Job, path: Path, log: Log, tell: Tell) -> Iterator[tuple[RunFolder | None, Checkpointer | None]]:
    """The run's files and the writer of its checkpoints, closed on leaving. Only process 0 has
    files, the others None.

    A run that goes on in its own folder removes what was written there after the checkpoint.
    """
    resumed, settings, checkpoints = job.resumed, job.settings, job.options.checkpoints
    refills = tagged(job.graph, REPLAY)
    if resumed is None and checkpoint_files.all_steps(path / FOLDER):
        raise ValueError(f"{path} holds the checkpoints of a run: resume it, or write another run_dir")
    own = resumed is not None and resumed.description.path.parent.resolve() == (path / FOLDER).resolve()
    resume_at = resumed.progress["env_steps"] if own and resumed else None
    with ExitStack() as stack:
        folder = None
        if distributed.is_first():
            again = [one["env_steps"] for one in resumed.progress.get("snapshots", [])] if own and resumed else []
            facts = {name: settings[name] for name in FACTS if name in settings}
            folder = stack.enter_context(
                RunFolder(
                    path, resume_at=resume_at, evaluated_again=again, tell=tell, facts=facts, log=log, settings=settings
                )
            )
            tell = folder.tell
            checkpointing.remove_stale(path / FOLDER, after=resume_at)
        saver = Checkpointer(path / FOLDER, checkpoints, settings, refills, tell) if checkpoints.keep else None
        if saver is not None and own and resumed:
            saver.newest = resumed.description.path
        yield folder, saver and stack.enter_context(saver)
