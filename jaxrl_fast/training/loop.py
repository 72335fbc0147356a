"""The training loop: runs compiled chunks of ticks, and evaluates, saves and reports between them.

A chunk has a fixed size and is compiled once. Its state is donated, and its metrics return at its
end. Everything slow or with a side effect (evaluation, files, callbacks, signals) happens between
chunks.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl_fast.core import Log, Metrics
from jaxrl_fast.envs.env import describe_images
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.policy.policies import Policy
from jaxrl_fast.runtime import hosts
from jaxrl_fast.runtime import program as programs
from jaxrl_fast.runtime.callback_errors import reraise_callback_error
from jaxrl_fast.runtime.graph import TrainState, tagged
from jaxrl_fast.runtime.placements import REPLAY
from jaxrl_fast.system import replace_file
from jaxrl_fast.training import checkpoints, find_nan, resuming
from jaxrl_fast.training.callbacks import Row
from jaxrl_fast.training.calls import Calls
from jaxrl_fast.training.checkpoints import FOLDER, Checkpointer
from jaxrl_fast.training.episodes import evaluation_device, make_periodic_evaluation, tell_limit
from jaxrl_fast.training.evaluations import Evaluations
from jaxrl_fast.training.job import Job, Plan
from jaxrl_fast.training.recorder import NonFiniteError, Recorder, check_start, describe_large
from jaxrl_fast.training.run_folder import RunFolder, write_summary

Trained = tuple[TrainState, Policy, list[Row], Row]
"""Result of a run: state, policy, history and summary, as in `jaxrl_fast.Result`."""


def run_job(
    job: Job, calls: Calls, run_dir: str | Path | None = None, log: Log = "tensorboard"
) -> Trained:
    """Train a job.

    Args:
        job: Job.
        calls: Callbacks.
        run_dir: Folder for files, None to write nothing.
        log: Logger of scalars.

    Returns:
        State, policy, history and summary.

    Raises:
        NonFiniteError: The environment or an update computed a NaN or an infinity.
    """
    if not hosts.is_first():
        calls = calls._replace(on_metrics=None, tell=lambda line: None)
    with ExitStack() as stack:
        folder, saver = None, None
        if run_dir is not None:
            stack.callback(calls.listeners.on_end, Path(run_dir), calls.tell)
            folder, saver = stack.enter_context(open_folder(job, Path(run_dir), log, calls))
            calls = calls if folder is None else calls._replace(tell=folder.tell)
        recorder = Recorder(job, calls, folder)
        evaluations = stack.enter_context(closing(make_evaluations(job, recorder, saver, calls)))
        return train_job(job, evaluations, calls)


def make_evaluations(
    job: Job, recorder: Recorder, saver: Checkpointer | None, calls: Calls
) -> Evaluations:
    """Make the evaluations of a job.

    Args:
        job: Job.
        recorder: Records results.
        saver: Writer of checkpoints, or None.
        calls: Callbacks. ``calls.evaluate`` replaces the evaluation in this process.

    Returns:
        The evaluations.
    """
    asked = job.run.eval
    tell_limit(job.env.spec.max_episode_steps, calls.tell)
    device = (
        evaluation_device(asked.device) if asked.beside and jax.default_backend() != "cpu" else None
    )
    evaluation = make_periodic_evaluation(
        job.env, job.algorithm, job.agent, job.keys, asked, device=device
    )
    return Evaluations(
        evaluation._replace(evaluate=calls.evaluate or evaluation.evaluate),
        job,
        recorder,
        saver,
        calls,
    )


def train_job(job: Job, evaluations: Evaluations, calls: Calls) -> Trained:
    """Train a job whose files are open.

    Args:
        job: Job.
        evaluations: Evaluations of the job.
        calls: Callbacks.

    Returns:
        State, policy, history and summary.

    Raises:
        NonFiniteError: The environment or an update computed a NaN or an infinity.
    """
    tell, resumed = calls.tell, job.resumed
    recorder, folder, saver = evaluations.recorder, evaluations.folder, evaluations.saver
    state, run = start(job, recorder)
    if folder is not None:
        calls.listeners.on_start(folder, job, state, run)
    call = print_events_after(run, job.env, tell) if isinstance(job.env, HostEnv) else run
    for line in describe_images(job.env.spec):
        tell(line)
    if resumed is not None:
        for line in describe_resumed(job, resumed):
            tell(line)
        evaluations.go_on_from(state, resumed.progress, resumed.arrays)
    if saver is not None:
        tell(describe_checkpoints(state, saver, job.plan))
    try:
        with (
            reraise_callback_error(job.failures) if isinstance(job.env, HostEnv) else nullcontext()
        ):
            state = drive(call, state, evaluations, job, calls)
            policy = conclude(state, evaluations, job, calls)
    except NonFiniteError as error:
        raise find_nan.explain_nonfinite(error, job, run, saver) from None
    summary = recorder.summary() | {"stopped_by": calls.ended_by(recorder.scores) or None}
    if folder is not None:
        write_summary(folder.path, summary)
    return programs.with_seed_axis(state, job.num_seeds), policy, recorder.history, summary


def print_events_after(
    run: programs.RunChunk, env: HostEnv, log: Callable[[str], None]
) -> programs.RunChunk:
    """Wrap a chunk to log the environments' events after each call.

    Args:
        run: Compiled chunk.
        env: Host environments with events (`HostEnv.events`).
        log: Receives each message.

    Returns:
        The wrapped chunk.
    """

    def call(state: TrainState) -> tuple[TrainState, Metrics]:
        result = run(state)
        for line in env.events():
            log(line)
        return result

    return call


def start(job: Job, recorder: Recorder) -> tuple[TrainState, programs.RunChunk]:
    """Compute or load the first state, and compile the chunk.

    Both programs are compiled in parallel threads, which uses a second core and lets signals be
    handled.

    Args:
        job: Job.
        recorder: Records times.

    Returns:
        The state, and the compiled chunk.

    Raises:
        NonFiniteError: The first observation is not finite, and ``nan`` is "stop".
    """
    begin_s = time.perf_counter()
    init, run = job.program.ready(job.keys, job.algorithm.hyper, job.store)
    state = init(job.keys, job.algorithm.hyper)
    if job.resumed is not None:
        first, state = state, resuming.put_back(state, job.resumed, job.program)
        if isinstance(job.env, HostEnv):
            state = resuming.begin_anew(state, first, job.graph, job.agent)
        recorder.go_on_from(job.resumed.progress)
    jax.block_until_ready(state)
    # otherwise the first chunk's time would include the compilation of other processes
    hosts.join()
    recorder.compiled(begin_s)
    if job.graph_options.nan == "stop":
        check_start(state, job.graph, job.env)
    return state, run


def drive(
    run: programs.RunChunk, state: TrainState, evaluations: Evaluations, job: Job, calls: Calls
) -> TrainState:
    """Run all chunks, up to the end by ``calls.ended_by``, and save the last state.

    A true ``calls.should_stop`` of any process stops early. The last state of a complete run is
    evaluated, unless the run has no evaluations. A stopped run ends when it is saved.

    Args:
        run: Compiled chunk.
        state: First state.
        evaluations: Evaluations of the job.
        job: Job.
        calls: Callbacks.

    Returns:
        The last state.

    Raises:
        NonFiniteError: The environment or an update computed a NaN or an infinity.
    """
    plan, rates_at = job.plan, make_rates(job)
    recorder, saver = evaluations.recorder, evaluations.saver
    saved = begin = recorder.ticks // plan.ticks_per_chunk
    for chunk in range(begin + 1, plan.num_chunks + 1):
        if hosts.any_process(calls.should_stop() or calls.ended_by(recorder.scores) != ""):
            break
        state, metrics = run(state)
        try:
            recorder.add_chunk(hosts.to_host(metrics), rates_at(state))
        except NonFiniteError as error:
            raise find_nan.blame_observations(error, state, job.graph) from None
        if chunk == begin + 1 and (line := describe_large(state, job.graph)):
            calls.tell(line)
        evaluations.collect()
        last = chunk == plan.num_chunks
        if plan.chunks_per_eval and (last or chunk % plan.chunks_per_eval == 0):
            state = evaluations.add(state)
        changed = calls.between_chunks and calls.between_chunks(state, recorder.scores)
        if changed is not None:
            state = job.program.place(hosts.copy(changed))
        asked_to_save = hosts.any_process(calls.should_save())
        if asked_to_save:
            calls.tell(describe_save(recorder.env_steps(), saver))
        if saver is not None and (last or asked_to_save or chunk % plan.chunks_per_checkpoint == 0):
            save(state, evaluations, saver)
            saved = chunk
    if saver is not None and recorder.ticks // plan.ticks_per_chunk > saved:
        save(state, evaluations, saver)
    return state


def describe_save(env_steps: int, saver: Checkpointer | None) -> str:
    """Describe what a request to save does.

    Args:
        env_steps: Environment steps of the run.
        saver: Writer of checkpoints, None for a run without.

    Returns:
        A line.
    """
    if saver is None:
        return "nothing is saved: the run has no checkpoints (checkpoint.keep=0)"
    return f"saved after {env_steps:,} steps, as requested; the run goes on"


def save(state: TrainState, evaluations: Evaluations, saver: Checkpointer) -> None:
    """Save a state with the progress of its run.

    Args:
        state: State.
        evaluations: Evaluations of the run.
        saver: Writer of checkpoints.
    """
    recorder, now = evaluations.recorder, evaluations.recorder.env_steps()
    progress = {**recorder.progress(), **evaluations.progress()}
    score = recorder.score() if recorder.eval_steps == now else None
    saver.save(now, state, progress, score, evaluations.arrays())


def conclude(state: TrainState, evaluations: Evaluations, job: Job, calls: Calls) -> Policy:
    """Select and write the last policy, and finish the evaluations.

    While evaluations run, ``calls.last`` gets the policy: at once with one seed, else when the best
    seed is determined. The best policy is evaluated again from other initial states.

    Args:
        state: Last state.
        evaluations: Evaluations of the job.
        job: Job.
        calls: Callbacks.

    Returns:
        The last policy, with several seeds the one with the best last evaluation.
    """
    policy_of, recorder, folder = (
        evaluations.evaluation.policy_of,
        evaluations.recorder,
        evaluations.folder,
    )
    params = evaluations.evaluation.copy_params(state)
    policy = policy_of(params, 0)
    whole = (
        recorder.ticks // job.plan.ticks_per_chunk == job.plan.num_chunks
        or calls.ended_by(recorder.scores) != ""
    )
    if whole and job.num_seeds == 1:
        calls.last.show(policy, calls.should_stop)
    evaluations.finish()
    if job.num_seeds > 1 and recorder.scores.size:
        policy = policy_of(params, int(np.argmax(recorder.scores)))
    if whole:
        evaluations.start_scoring_best()
    if folder is not None:
        folder.finish(policy, whole)
        calls.listeners.on_finish(folder, policy)
    if whole:
        calls.last.show(policy, calls.should_stop)
        evaluations.finish_scoring_best()
    calls.last.wait(calls.should_stop)
    return policy


def make_rates(job: Job) -> Callable[[TrainState], dict[str, np.ndarray]]:
    """Make a function that computes the current hyper-parameters, including schedules.

    Args:
        job: Job.

    Returns:
        ``(state) -> {name: values [S]}``.
    """
    rates_at = jax.jit(
        jax.vmap(job.graph.hyper_at, (0, None)) if job.num_seeds > 1 else job.graph.hyper_at
    )

    def rates(state: TrainState) -> dict[str, np.ndarray]:
        found = jax.device_get(rates_at(*hosts.to_host((state.hyper, state.tick))))
        return {name: np.atleast_1d(value) for name, value in found._asdict().items()}

    return rates


FACTS = ("env", "env.id", "env.make", "algo", "algo.make", "total_steps", "num_seeds")
"""Settings that ``run.json`` repeats, in addition to ``eval.every``."""


def describe_resumed(job: Job, resumed: resuming.Resumed) -> list[str]:
    """Describe where a resumed run starts and which settings changed.

    Args:
        job: Job.
        resumed: Its checkpoint.

    Returns:
        Lines.
    """
    lines = [
        f"resumes from {resumed.description.path}, {resumed.progress['env_steps']:,} steps trained"
    ]
    lines += [f"changed: {line}" for line in resumed.changes]
    if resumed.description.replay_lost:
        steps = job.agent.warmup_ticks * job.plan.steps_per_tick
        lines.append(
            f"the replay buffer was not saved: the next {steps:,} steps fill a new one before the next update, "
            "and results differ from a run without the interruption"
        )
    return lines


def describe_checkpoints(state: TrainState, saver: Checkpointer, plan: Plan) -> str:
    """Describe the interval, size and content of checkpoints.

    Args:
        state: State of the run.
        saver: Writer of checkpoints.
        plan: Plan of the chunks.

    Returns:
        A line.
    """
    own, replay = (size / 1e6 for size in checkpoints.sizes(state, saver.refills))
    every = plan.chunks_per_checkpoint * plan.ticks_per_chunk * plan.steps_per_tick
    kept = f"the newest with {replay:.1f} MB of replay"
    if not saver.plan.replay:
        kept = f"without replay ({replay:.1f} MB): a resumed run fills a new buffer before it updates again"
    return f"checkpoint every {every:,} steps, {own:.1f} MB{f', {kept}' if replay else ''}"


@contextmanager
def open_folder(
    job: Job, path: Path, log: Log, calls: Calls
) -> Iterator[tuple[RunFolder | None, Checkpointer | None]]:
    """Open the run's files and the writer of its checkpoints, and close them at exit.

    Only process 0 writes files. A run that resumes in the same folder removes rows and checkpoints
    after its checkpoint.

    Args:
        job: Job.
        path: Folder of the run.
        log: Logger of scalars.
        calls: Callbacks.

    Returns:
        Context manager of the folder (None in processes other than 0) and the writer (None without
        checkpoints).

    Raises:
        ValueError: The folder contains checkpoints, and the run does not resume.
    """
    resumed, settings, asked = job.resumed, job.settings, job.run.checkpoint
    refills = tagged(job.graph, REPLAY)
    if resumed is None and checkpoints.all_steps(path / FOLDER):
        raise ValueError(
            f"{path} contains checkpoints of a run: resume it, or write another run_dir"
        )
    own = (
        resumed is not None
        and resumed.description.path.parent.resolve() == (path / FOLDER).resolve()
    )
    resume_at = resumed.progress["env_steps"] if own and resumed else None
    with ExitStack() as stack:
        folder = None
        if hosts.is_first():
            again = (
                [one["env_steps"] for one in resumed.progress.get("snapshots", [])]
                if own and resumed
                else []
            )
            facts = {n: settings[n] for n in FACTS if n in settings} | {
                "eval.every": job.run.eval.every
            }
            told: dict[str, Any] = dict(tell=calls.tell, facts=facts, log=log, settings=settings)
            folder = stack.enter_context(
                RunFolder(path, resume_at=resume_at, evaluated_again=again, **told)
            )
            if job.config:
                replace_file(path / "config.yaml", job.config)
            calls = calls._replace(tell=folder.tell)
            checkpoints.remove_stale(path / FOLDER, after=resume_at)
        saver = (
            Checkpointer(path / FOLDER, asked, settings, refills, calls.tell, calls.on_checkpoint)
            if asked.keep
            else None
        )
        if saver is not None and own and resumed:
            saver.newest = resumed.description.path
        yield folder, saver and stack.enter_context(saver)
