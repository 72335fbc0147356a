"""Resuming a run from a checkpoint: which settings may change, and how its state is restored.

A run that is resumed with nothing changed computes, on the same machine and placement, bit for bit what it would have
computed without the interruption. ``placement``, ``devices``, ``total_steps``, rates and what concerns only evaluation
and saving may change; anything else makes another run.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl_fast.envs.env import VecEnv
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.learning.agent import BoundAgent
from jaxrl_fast.learning.algorithm import Algorithm
from jaxrl_fast.learning.minibatches import MAX_SHARDS
from jaxrl_fast.numerics.optimizers import plain
from jaxrl_fast.runtime import hosts
from jaxrl_fast.runtime.graph import Graph, TrainState, tagged
from jaxrl_fast.runtime.placements import REPLAY, SAMPLING
from jaxrl_fast.runtime.program import Program
from jaxrl_fast.training import checkpoints
from jaxrl_fast.training import checkpoints as checkpoint_files
from jaxrl_fast.training.callbacks import Tell
from jaxrl_fast.training.checkpoints import FOLDER, Checkpointer, CheckpointError, CheckpointFacts
from jaxrl_fast.training.job import Job, Plan
from jaxrl_fast.training.records import Log
from jaxrl_fast.training.run_folder import RunFolder

FREE = tuple(
    "placement devices total_steps eval.every eval.episodes eval.beside eval.device eval.picture "
    "checkpoint.every checkpoint.keep checkpoint.replay nan debug name log tuned pool.workers "
    "pool.step_timeout_s".split()
)
"""Settings that may change on resume, beside the rates of the algorithm."""
SILENT = ("name", "log", "tuned", "eval.beside", "eval.device", "eval.picture")
"""Those of them whose change is not reported."""


UNWRITTEN = {"shards": MAX_SHARDS}
"""What settings are where a checkpoint does not name them."""


class Resumed(NamedTuple):
    """A checkpoint, read and checked, and how the run that goes on from it differs.

    ``description``: what it says of itself; ``arrays``: its arrays by name; ``changes``: the settings that differ, a
    line each; ``new_rates``: names of the rates that differ, which keep this run's values.
    """

    description: CheckpointFacts
    arrays: dict[str, np.ndarray]
    changes: list[str]
    new_rates: Sequence[str] = ()

    @property
    def progress(self) -> dict[str, Any]:
        """Where the run stood."""
        return self.description.progress

    @property
    def empty_until(self) -> int:
        """The tick from which replay is filled: this one, if the buffer is lost."""
        return self.progress["ticks"] if self.description.replay_lost else self.progress["empty_until"]


def settings_of(env: VecEnv | HostEnv, algorithm: Algorithm, agent: BoundAgent, **run: Any) -> dict[str, Any]:
    """The settings of a run that calls `learn` itself, by key of the command line where there is one."""
    options = {
        **algorithm.options,
        **algorithm.hyper._asdict(),
        "rollout_length": agent.rollout_length,
        "updates_per_tick": agent.updates_per_tick,
        "batch_size": agent.batch_size,
        "normalize_observations": agent.normalize_observations,
        "normalize_rewards": agent.normalize_rewards,
    }
    return {
        "env": env.spec.name,
        "num_envs": env.num_envs,
        "algo": algorithm.name,
        **run,
        **{f"algo.{key}": plain(value) for key, value in options.items()},
    }


def read(path: str | Path, settings: Mapping[str, Any], algorithm: Algorithm) -> Resumed:
    """Read the checkpoint that ``path`` means, for a run with ``settings``.

    Raises:
        CheckpointError: it is missing or damaged, or a setting differs that may not.
    """
    description = checkpoints.read_description(checkpoints.find(Path(path)))
    changes = compare(description, settings, [f"algo.{name}" for name in algorithm.hyper._fields])
    before, now = description.settings, json.loads(json.dumps(settings))
    rates = [name for name in algorithm.hyper._fields if before.get(f"algo.{name}") != now.get(f"algo.{name}")]
    return Resumed(description, checkpoints.read_arrays(description), changes, rates)


def compare(description: CheckpointFacts, settings: Mapping[str, Any], rates: Iterable[str]) -> list[str]:
    """The settings that differ from a checkpoint's, where they may, each as a line; ``rates``: keys that may too.

    Raises:
        CheckpointError: one differs that may not.
    """
    before, now = ({**UNWRITTEN, **known} for known in (description.settings, json.loads(json.dumps(settings))))
    free = [key for key in FREE if key not in SILENT] + list(rates)
    differing = [key for key in {**before, **now} if before.get(key) != now.get(key) and key not in SILENT]
    for key in differing:
        if key not in free:
            raise CheckpointError(
                f"{key} was {before.get(key)} in {description.path} and is {now.get(key)}: a run goes on with the "
                "settings it was started with; only rates, placement, devices, total_steps, eval.*, checkpoint.*, nan "
                "and debug may change"
            )
    changes = [f"{key}: {before.get(key)} -> {now.get(key)}" for key in differing]
    if description.versions != checkpoints.versions():
        changes.append(f"versions: {description.versions} -> {checkpoints.versions()}; rounding may differ")
    return changes


def put_back(state: TrainState, resumed: Resumed, program: Program) -> TrainState:
    """A run's first ``state`` with the checkpoint's arrays put in, on the devices of the program.

    Raises:
        CheckpointError: the checkpoint's arrays are not those of this run.
    """
    restored = checkpoints.restore(state, resumed.description, resumed.arrays, resumed.new_rates)
    # Copied: on a CPU a device may use the memory of a NumPy array as it is, and a chunk overwrites what it is given.
    return hosts.copy(program.place(restored))


def begin_anew(state: TrainState, first: TrainState, graph: Graph, agent: BoundAgent) -> TrainState:
    """A resumed ``state`` whose environments, which live on the host, begin new episodes as in a run's ``first`` state;
    in replay the old ones end there, truncated."""
    anew = {name: first.private[name] for name in tagged(graph, SAMPLING)}
    ended = {name: agent.experience.end_episodes(state.private[name]) for name in tagged(graph, REPLAY)}
    return state._replace(private={**state.private, **anew, **ended})


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
        if hosts.is_first():
            again = [one["env_steps"] for one in resumed.progress.get("snapshots", [])] if own and resumed else []
            facts = {name: settings[name] for name in FACTS if name in settings}
            folder = stack.enter_context(
                RunFolder(
                    path, resume_at=resume_at, evaluated_again=again, tell=tell, facts=facts, log=log, settings=settings
                )
            )
            tell = folder.tell
            checkpoint_files.remove_stale(path / FOLDER, after=resume_at)
        saver = Checkpointer(path / FOLDER, checkpoints, settings, refills, tell) if checkpoints.keep else None
        if saver is not None and own and resumed:
            saver.newest = resumed.description.path
        yield folder, saver and stack.enter_context(saver)
