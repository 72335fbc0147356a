"""The training loop: runs compiled chunks of ticks and, between them, evaluates, saves and reports.

A chunk has a fixed size and is compiled once; its state is donated, its metrics come back when it ends. Everything
slow or with a side effect (evaluation, files, callbacks, signals) happens between chunks.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from jaxrl_fast.algorithms.interface import Algorithm, require_positive
from jaxrl_fast.environments.env import VecEnv, no_totals
from jaxrl_fast.environments.host_env import HostEnv
from jaxrl_fast.evaluation.periodic import Evaluate, evaluation_device, make_periodic_evaluation
from jaxrl_fast.experience.binding import bind
from jaxrl_fast.experience.minibatches import MAX_SHARDS
from jaxrl_fast.fragments.build import GraphOptions, Overlap, build_graph
from jaxrl_fast.fragments.callbacks import check_placement, in_graph, reraise_callback_error
from jaxrl_fast.fragments.host_sampling import print_events_after
from jaxrl_fast.fragments.learning import Average, OnNan
from jaxrl_fast.graph import distributed
from jaxrl_fast.graph import program as programs
from jaxrl_fast.graph.compiler_choices import starts_kernels_singly
from jaxrl_fast.graph.dataflow import TrainState, tagged
from jaxrl_fast.graph.kept import Keep
from jaxrl_fast.graph.placements import REPLAY, Make, place
from jaxrl_fast.inspection.drawing import draw_run
from jaxrl_fast.inspection.notebook import live_plot, result_html
from jaxrl_fast.policy.policies import Policy
from jaxrl_fast.runs.checkpointing import Checkpointer, Checkpoints
from jaxrl_fast.runs.folder import RunFolder, write_summary
from jaxrl_fast.runs.hooks import OnLastPolicy, OnMetrics, OnNewPolicy, Row, ShouldStop, Tell, to_stderr
from jaxrl_fast.runs.loggers import Log
from jaxrl_fast.training import find_nan, resuming
from jaxrl_fast.training.checks import check_host, check_processes, check_start
from jaxrl_fast.training.evaluations import Evaluations
from jaxrl_fast.training.job import Job
from jaxrl_fast.training.last_policy import LastPolicy
from jaxrl_fast.training.live_report import last_report
from jaxrl_fast.training.planning import plan_run
from jaxrl_fast.training.recorder import NonFiniteError, Recorder
from jaxrl_fast.training.run_files import describe_start, open_folder

BetweenChunks = Callable[[TrainState, np.ndarray], TrainState | None]
"""Sees the state after every chunk, before its checkpoint, and may change it.

(state: all that the run is, leaves ``[S, ...]`` with several seeds, else without that axis; scores ``[S]``: the mean
returns of the last evaluation, empty before the first) -> the state to go on from, with other rates (``state.hyper``)
or params for instance, or None for the same. The state's buffers are overwritten by the next chunk: copy what you need.
"""


class Calls(NamedTuple):
    """What `learn` calls while it runs: ``on_metrics`` for each row (None: nothing), ``should_stop`` before each chunk,
    ``between_chunks`` after each, ``on_last_policy`` at the end, and ``tell`` for what a person should know."""

    on_metrics: OnMetrics | None
    should_stop: ShouldStop
    between_chunks: BetweenChunks
    on_last_policy: OnLastPolicy
    tell: Tell


class Result(NamedTuple):
    """What a run gives: its last ``state``, with a leading seed axis ``[S, ...]`` always; the ``policy`` of the seed
    with the best last evaluation; ``history``: a row for each chunk and each evaluation; ``summary``: what
    ``summary.json`` holds."""

    state: TrainState
    policy: Policy
    history: list[Row]
    summary: Row

    def _repr_html_(self) -> str:
        return result_html(self.history, self.summary)


def learn(
    env: VecEnv | HostEnv,
    algorithm: Algorithm,
    *,
    total_steps: int,
    seed: int = 0,
    num_seeds: int = 1,
    overlap: Overlap = "none",
    learners: int = 1,
    average: Average = "gradients",
    shards: int = MAX_SHARDS,
    placement: str | Make = "fused",
    devices: int | None = None,
    eval_every: int | None = None,
    eval_episodes: int = 32,
    eval_beside: bool | None = None,
    eval_device: Literal["cpu", "same"] = "cpu",
    evaluator: Evaluate | None = None,
    on_new_policy: OnNewPolicy = lambda: None,
    on_last_policy: OnLastPolicy = lambda policy: None,
    on_metrics: OnMetrics | None = None,
    run_dir: str | Path | None = None,
    log: Log = "tensorboard",
    checkpoints: Checkpoints = Checkpoints(),
    resume: str | Path | None = None,
    nan: OnNan = "stop",
    debug: bool = False,
    should_stop: ShouldStop = lambda: False,
    between_chunks: BetweenChunks | None = None,
    settings: Mapping[str, Any] | None = None,
    keep: Keep = lambda program: None,
    tell: Tell = to_stderr,
) -> Result:
    """Train for ``total_steps`` environment steps over all environments, for each of ``num_seeds`` seeds at once.

    ``eval_every`` (environment steps; default a tenth of the run) and ``eval_episodes`` say how often and on how many
    episodes the greedy policy is evaluated: in a thread beside training, by ``evaluator`` if there is one, or between
    chunks with ``eval_beside=False``, the default where a ``between_chunks`` is to see the scores. ``eval_device`` says
    where that thread computes beside an accelerator: on the host's cores, or on the "same" device. ``placement`` is a
    name or a function ``(graph, devices) -> Placement``, and ``devices`` how many of JAX's devices it may use (default
    all). ``on_metrics`` gets each row of ``history`` as it comes, ``on_new_policy`` is called when the newest evaluated
    policy has been written, and ``on_last_policy`` with that of the result, in a thread while the last evaluations go
    on, unless the run is stopped. Nothing is written unless ``run_dir`` is given; then ``log`` says where scalars go
    beside the tables, and ``checkpoints`` when the whole state is saved. ``resume`` is a run's folder or one of its
    checkpoints, to go on from. ``nan="skip"`` drops updates that would give a number that is
    not finite; ``debug`` names the operation that gave one. ``should_stop`` is asked before every chunk, and while an
    evaluation is waited for, which is then left for the resumed run to make. ``between_chunks`` is called after every
    chunk and may change the state. ``settings`` is what a resumed run must have in common with this one (default: taken
    from the arguments). ``keep`` says where programs are kept for later starts. ``tell`` gets what a person should
    know, line by line.

    In a program that has called `jax.distributed.initialize`, every process calls this alike, with a placement that has
    devices of all of them; process 0 evaluates, writes, and calls ``on_metrics`` and ``tell``.

    Raises:
        ValueError: arguments do not fit together, or a checkpoint does not fit them; before anything is compiled.
        NonFiniteError: the environment or an update gave a NaN or an infinity.
    """
    require_positive(total_steps=total_steps, num_seeds=num_seeds, eval_episodes=eval_episodes)
    settings = settings or resuming.settings_of(
        env,
        algorithm,
        bind(algorithm, env.spec, env.num_envs),
        seed=seed,
        num_seeds=num_seeds,
        overlap=overlap,
        learners=learners,
        average=average,
        total_steps=total_steps,
        **({} if shards == MAX_SHARDS else {"shards": shards}),
    )
    check_processes(env, {**settings, "resume": resume, "debug": debug})
    check_host(env, num_seeds, debug)
    vec_env, failures = in_graph(env)
    if not distributed.is_first():
        on_metrics, tell = None, lambda line: None
    elif on_metrics is None:
        on_metrics = live_plot()
    resumed = None if resume is None else resuming.read(resume, settings, algorithm)
    empty_until = resumed.empty_until if resumed else 0
    joined = starts_kernels_singly(jax.default_backend())
    options = GraphOptions(overlap, learners, average, total_steps, nan, empty_until, joined, shards)
    graph, agent = build_graph(vec_env, algorithm, options)
    plan = plan_run(env, agent, total_steps, eval_every, checkpoints.every, resumed.progress if resumed else None)
    placed = place(graph, placement, devices)
    check_placement(env, placed)
    program = programs.compile(graph, placed, plan.ticks_per_chunk, num_seeds)
    keys = jax.random.split(jax.random.key(seed), num_seeds)
    store = keep((options, placed, plan.ticks_per_chunk, num_seeds))
    job = Job(env, algorithm, agent, graph, placed, program, plan, keys, failures, options, debug, store)
    beside = between_chunks is None if eval_beside is None else eval_beside
    device = evaluation_device(eval_device) if beside else None
    evaluation = make_periodic_evaluation(env, algorithm, agent, keys, eval_episodes, device=device)
    if evaluator is not None:
        evaluation = evaluation._replace(evaluate=evaluator)
    with (
        last_report(run_dir, tell),
        open_folder(run_dir, resumed, checkpoints, settings, tagged(graph, REPLAY), log, tell) as (folder, saver),
    ):
        tell = folder.tell if folder is not None else tell
        calls = Calls(on_metrics, should_stop, between_chunks or (lambda state, scores: None), on_last_policy, tell)
        recorder = Recorder(job, on_metrics, folder)
        shapes = jax.eval_shape(lambda: no_totals(env.spec, eval_episodes))
        nothing = jax.tree.map(lambda x: np.zeros((num_seeds, *x.shape), x.dtype), shapes)
        evaluations = Evaluations(
            evaluation,
            recorder,
            nothing,
            folder,
            saver,
            beside=beside,
            should_stop=should_stop,
            tell=tell,
            on_new_policy=on_new_policy,
        )
        with closing(evaluations):
            return run_job(job, evaluations, recorder, folder, saver, resumed, calls)


def run_job(
    job: Job,
    evaluations: Evaluations,
    recorder: Recorder,
    folder: RunFolder | None,
    saver: Checkpointer | None,
    resumed: resuming.Resumed | None,
    calls: Calls,
) -> Result:
    """As `learn`, when everything is checked and the files are open.

    Raises:
        NonFiniteError: the environment or an update gave a NaN or an infinity.
    """
    tell = calls.tell
    state, run = start(job, recorder, resumed)
    describe_start(state, resumed, saver, job.plan, job.agent, tell)
    if folder is not None:
        how = f"placement {job.placement.name}, overlap {job.options.overlap}"
        title = f"{job.env.spec.name}, {job.algorithm.name}, {how}"
        draw_run(folder.path / "graph.svg", title, job.graph, job.placement, state, run, job.num_seeds, tell)
    call = print_events_after(run, job.env, tell) if isinstance(job.env, HostEnv) else run
    if resumed is not None:
        evaluations.go_on_from(state, resumed.progress, resumed.arrays)
    try:
        with reraise_callback_error(job.failures):
            state = drive(call, state, evaluations, recorder, saver, job, calls)
            policy = conclude(state, evaluations, recorder, folder, job, calls)
    except NonFiniteError as error:
        origin = resumed.description.path if resumed else None
        raise find_nan.explain_nonfinite(error, job, run, saver, origin) from None
    summary = recorder.summary()
    if folder is not None:
        write_summary(folder.path, summary)
    return Result(programs.with_seed_axis(state, job.num_seeds), policy, recorder.history, summary)


def start(job: Job, recorder: Recorder, resumed: resuming.Resumed | None) -> tuple[TrainState, programs.RunChunk]:
    """The first state, or that of a checkpoint, and the compiled chunk.

    Both programs are compiled at the same time, in threads: a second core helps, and signals are handled meanwhile.

    Raises:
        NonFiniteError: the first observation is not finite, and ``nan`` is "stop".
    """
    recorder.compiling()
    init, run = job.program.ready(job.keys, job.algorithm.hyper, job.store)
    state = init(job.keys, job.algorithm.hyper)
    if resumed is not None:
        first, state = state, resuming.put_back(state, resumed, job.program)
        if isinstance(job.env, HostEnv):
            state = resuming.begin_anew(state, first, job.graph, job.agent)
        recorder.go_on_from(resumed.progress)
    jax.block_until_ready(state)
    distributed.join()  # or the first chunk's time would include what another process still compiles
    recorder.compiled()
    if job.options.nan == "stop":
        check_start(state, job.graph, job.env)
    return state, run


def drive(
    run: programs.RunChunk,
    state: TrainState,
    evaluations: Evaluations,
    recorder: Recorder,
    saver: Checkpointer | None,
    job: Job,
    calls: Calls,
) -> TrainState:
    """Run all chunks, or until ``calls.should_stop`` in any process, and save the last state.

    The last state of a whole run is always evaluated; a run that is stopped ends as soon as it is saved.
    """
    plan, rates_at = job.plan, make_rates(job)

    def save() -> None:
        now = recorder.env_steps()
        if saver is not None:
            progress = {**recorder.progress(), **evaluations.progress()}
            score = recorder.score() if recorder.eval_steps == now else None
            saver.save(now, state, progress, score, evaluations.arrays())

    saved = begin = recorder.ticks // plan.ticks_per_chunk
    for chunk in range(begin + 1, plan.num_chunks + 1):
        if distributed.any_process(calls.should_stop()):
            break
        state, metrics = run(state)
        recorder.add_chunk(distributed.to_host(metrics), rates_at(state))
        evaluations.collect()
        last = chunk == plan.num_chunks
        if last or chunk % plan.chunks_per_eval == 0:
            evaluations.add(state)
        changed = calls.between_chunks(state, recorder.scores)
        if changed is not None:
            state = job.program.place(distributed.copy(changed))
        if last or chunk % plan.chunks_per_checkpoint == 0:
            save()
            saved = chunk
    if recorder.ticks // plan.ticks_per_chunk > saved:
        save()
    return state


def conclude(
    state: TrainState, evaluations: Evaluations, recorder: Recorder, folder: RunFolder | None, job: Job, calls: Calls
) -> Policy:
    """The policy that a run ends with, shown while evaluations go on: that of the best policy from other initial
    states, and with one seed the last one too; among several seeds that one chooses."""
    last, policy_of = LastPolicy(calls.on_last_policy, calls.should_stop), evaluations.evaluation.policy_of
    params = evaluations.evaluation.copy_params(state)
    policy = policy_of(params, 0)
    whole = recorder.ticks // job.plan.ticks_per_chunk == job.plan.num_chunks
    if whole and job.num_seeds == 1:
        last.show(policy)
    evaluations.finish()
    if job.num_seeds > 1 and recorder.scores.size:
        policy = policy_of(params, int(np.argmax(recorder.scores)))
    if whole:
        evaluations.start_scoring_best()
    if folder is not None:
        folder.finish(policy)
    if whole:
        last.show(policy)
        evaluations.finish_scoring_best()
        last.wait()
    return policy


def make_rates(job: Job) -> Callable[[TrainState], dict[str, np.ndarray]]:
    """The rates of each seed ``[S]`` by name, as they are in the tick that a state is in."""
    axes = (0, None)
    rates_at = jax.jit(jax.vmap(job.graph.hyper_at, axes) if job.num_seeds > 1 else job.graph.hyper_at)

    def rates(state: TrainState) -> dict[str, np.ndarray]:
        found = jax.device_get(rates_at(*distributed.to_host((state.hyper, state.tick))))
        return {name: np.atleast_1d(value) for name, value in found._asdict().items()}

    return rates
