"""The loop: drives compiled chunks of ticks, and says what happened between them.

A chunk has a fixed size and is compiled once; its state is donated, its metrics come back when it ends. Everything
slow or with a side effect (evaluation, files, callbacks, signals) happens between chunks.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_fast import checkpoint_files, checkpointing, debugging, distributed, resuming
from jaxrl_fast import program as programs
from jaxrl_fast.algorithm import Agent, Algorithm, require_positive
from jaxrl_fast.bridge import check_placement, in_graph, make_bridge, told_by_name
from jaxrl_fast.checkpointing import FOLDER, Checkpointer, Checkpoints
from jaxrl_fast.core import EpisodeTotals
from jaxrl_fast.drawing import draw_run
from jaxrl_fast.env import VecEnv
from jaxrl_fast.fragments import Overlap, build_graph
from jaxrl_fast.graph import Graph, TrainState
from jaxrl_fast.graph import init as init_graph
from jaxrl_fast.graph import tick as tick_graph
from jaxrl_fast.host import telling
from jaxrl_fast.host_env import HostEnv
from jaxrl_fast.judging import make_judge
from jaxrl_fast.learners import Average, OnNan
from jaxrl_fast.placement import PLACEMENTS, Placement
from jaxrl_fast.planning import Plan, plan_run
from jaxrl_fast.policy import Policy
from jaxrl_fast.recorder import NonFiniteError, Recorder, Row
from jaxrl_fast.reporting import RunFolder

Place = Callable[[Graph, Sequence[jax.Device]], Placement]


class Result(NamedTuple):
    """``state`` has a leading seed axis ``[S, ...]``; ``policy`` is that of the seed with the best last evaluation;
    ``history`` holds a row a chunk and a row an evaluation; ``summary`` is what ``summary.json`` holds."""

    state: TrainState
    policy: Policy
    history: list[Row]
    summary: Row


def make_train_step(
    env: VecEnv | HostEnv,
    algorithm: Algorithm,
    *,
    overlap: Overlap = "none",
    learners: int = 1,
    average: Average = "gradients",
    total_steps: int | None = None,
) -> tuple[Callable[..., TrainState], Callable[[TrainState], tuple[TrainState, dict[str, jax.Array]]]]:
    """``(init, train_step)``, both pure: jit, scan, vmap or change them.

    ``init(key, hyper=algorithm.hyper) -> TrainState``; ``train_step(state) -> (state, metrics)`` is one tick: sample,
    then learn. Donate the state when you jit the step. Under a ``vmap`` of your own, updates that rest during a warm-up
    are computed and discarded; `learn` with ``num_seeds`` skips them. Environments on the host are stepped by ordered
    callbacks: on one device, each state once and in order, and not under a ``vmap`` of your own.

    Raises:
        ValueError: algorithm and environment do not fit.
    """
    worlds = make_bridge(env).env if isinstance(env, HostEnv) else env
    graph, _ = build_graph(
        worlds, algorithm, overlap=overlap, learners=learners, average=average, total_steps=total_steps
    )

    def init(key: jax.Array, hyper: Any = algorithm.hyper) -> TrainState:
        return init_graph(graph, key, hyper)

    def train_step(state: TrainState) -> tuple[TrainState, dict[str, jax.Array]]:
        return tick_graph(graph, state)

    return init, train_step


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
    placement: str | Place = "fused",
    devices: int | None = None,
    eval_every: int | None = None,
    eval_episodes: int = 32,
    on_metrics: Callable[[Row], None] | None = None,
    run_dir: str | Path | None = None,
    checkpoints: Checkpoints = Checkpoints(),
    resume: str | Path | None = None,
    nan: OnNan = "stop",
    debug: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
    settings: Mapping[str, Any] | None = None,
    tell: Callable[[str], None] = lambda line: print(line, file=sys.stderr),
) -> Result:
    """Train for ``total_steps`` environment steps over all environments, for each of ``num_seeds`` seeds at once.

    ``eval_every`` (environment steps; default a tenth of the run) and ``eval_episodes`` say how often and on how many
    episodes the greedy policy is judged. ``placement`` is a name or a function ``(graph, devices) -> Placement``, and
    ``devices`` how many of JAX's devices it may use (default all). ``on_metrics`` gets each row of ``history`` as it
    comes. Nothing is written unless ``run_dir`` is given; then ``checkpoints`` says when the whole state is saved.
    ``resume`` is a run's folder or one of its checkpoints, to go on from. ``nan="skip"`` leaves out updates that would
    give a number that is not finite; ``debug`` names the operation that gave one. ``should_stop`` is asked before every
    chunk, and now and then during an evaluation, which is then left for the resumed run to make. ``settings`` is what a
    resumed run must have in common with this one (default: taken from the arguments);
    ``tell`` gets what a person should know, in lines.

    In a program that has called `jax.distributed.initialize`, every process calls this alike, with
    ``placement="data_parallel"``; process 0 writes, and calls ``on_metrics`` and ``tell``.

    Raises:
        ValueError: arguments do not fit together, or a checkpoint does not fit them; before anything is compiled.
        NonFiniteError: the environment or an update gave a NaN or an infinity.
    """
    require_positive(total_steps=total_steps, num_seeds=num_seeds, eval_episodes=eval_episodes)
    settings = settings or resuming.settings_of(
        env, algorithm, algorithm.build(env.spec, env.num_envs), seed=seed, num_seeds=num_seeds, overlap=overlap,
        learners=learners, average=average, total_steps=total_steps,
    )  # fmt: skip
    check_processes(env, {**settings, "resume": resume, "debug": debug})
    check_host(env, num_seeds, debug)
    worlds, failures = in_graph(env)
    if not distributed.is_first():
        on_metrics, tell = None, lambda line: None
    resumed = None if resume is None else resuming.read(resume, settings, algorithm)
    empty_until = resumed.empty_until if resumed else 0
    graph, agent = build_graph(
        worlds, algorithm, overlap=overlap, learners=learners, average=average, total_steps=total_steps, nan=nan,
        empty_until=empty_until,
    )  # fmt: skip
    plan = plan_run(env, agent, total_steps, eval_every, checkpoints.every, resumed.progress if resumed else None)
    placed = place(graph, placement, devices)
    check_placement(env, placed)
    program = programs.compile(graph, placed, plan.ticks_per_chunk, num_seeds)
    keys = jax.random.split(jax.random.key(seed), num_seeds)
    judge = make_judge(env, algorithm, agent, keys, eval_episodes, should_stop)
    with open_folder(run_dir, resumed, checkpoints, settings, tell) as (folder, saver):
        recorder = Recorder(env, agent, plan, graph, placed, num_seeds, on_metrics, folder, nan, empty_until)
        state, run = start(program, keys, algorithm.hyper, recorder, resumed)
        if nan == "stop":
            check_start(state, env)
        describe_start(state, resumed, saver, plan, agent, tell)
        if folder is not None:
            title = f"{env.spec.name}, {algorithm.name}, placement {placed.name}, overlap {overlap}"
            draw_run(folder.path / "graph.svg", title, graph, placed, state, run, num_seeds, tell)
        try:
            told = telling(run, env, tell) if isinstance(env, HostEnv) else run
            with told_by_name(failures):
                state = drive(told, state, judge.totals, recorder, saver, should_stop)
        except NonFiniteError as error:
            origin = resumed.description.path if resumed else None
            raise debugging.explain_nonfinite(
                error, graph, program, run, keys, algorithm.hyper, saver, origin, name_operation=debug
            ) from None
        policy = judge.best_policy(state, recorder.scores)
        summary = recorder.summary()
        if folder is not None:
            folder.finish(summary, policy)
    return Result(programs.with_seed_axis(state, num_seeds), policy, recorder.history, summary)


def check_host(env: VecEnv | HostEnv, num_seeds: int, debug: bool) -> None:
    """Raises ValueError where environments on the host were not made for so many seeds, or should step again."""
    if isinstance(env, HostEnv) and debug:
        raise ValueError("debug=true computes a tick again, which environments on the host cannot: leave it out")
    if isinstance(env, HostEnv) and env.num_seeds != num_seeds:
        raise ValueError(
            f"num_seeds={num_seeds}: these environments on the host serve {env.num_seeds}: write "
            f"make_env(..., num_seeds={num_seeds})"
        )


def check_processes(env: VecEnv | HostEnv, told: Mapping[str, Any]) -> None:
    """Refuse processes of one run that were ``told`` different things, or one that cannot share it.

    Raises:
        ValueError: naming the setting.
    """
    distributed.check_agreement(told)
    if told["debug"]:
        distributed.require_one("debug=true", jax.process_count())
    if isinstance(env, HostEnv):
        distributed.require_one(f"environment {env.spec.name}, which steps on the host,", jax.process_count())


def place(graph: Graph, placement: str | Place, devices: int | None) -> Placement:
    """A placement by name, or a user's own, on the first ``devices`` of JAX's devices.

    Raises:
        ValueError: the name is unknown, there are not so many devices, or it does not span all processes.
    """
    if isinstance(placement, str) and placement not in PLACEMENTS:
        raise ValueError(f"placement={placement}: write one of {', '.join(PLACEMENTS)}")
    make = PLACEMENTS[placement] if isinstance(placement, str) else placement
    available = distributed.devices(devices)
    try:
        placed = make(graph, available)
    except IndexError:
        name = placement if isinstance(placement, str) else getattr(placement, "__name__", "placement")
        raise ValueError(
            f"placement {name} asks for more devices than the {len(available)} there are: write a larger devices=..., "
            "or let groups share devices"
        ) from None
    distributed.check_placement(placed.name, [group.devices for group in placed.groups])
    return placed


def start(
    program: programs.Program, keys: jax.Array, hyper: Any, recorder: Recorder, resumed: resuming.Resumed | None
) -> tuple[TrainState, programs.Run]:
    """The first state, or that of a checkpoint, and the compiled chunk.

    Both programs are compiled at once, in threads, so that a second core helps and a signal is heard meanwhile.
    """
    recorder.compiling()
    init, run = program.ready(keys, hyper)
    state = init(keys, hyper)
    if resumed is not None:
        first, state = state, resuming.put_back(state, resumed, program)
        if isinstance(recorder.env, HostEnv):
            state = resuming.begin_anew(state, first)
        recorder.go_on_from(resumed.progress)
    jax.block_until_ready(state)
    distributed.join()  # the first chunk's rate is not to hold what another process still compiles
    recorder.compiled()
    return state, run


def drive(
    run: programs.Run,
    state: TrainState,
    evaluate: Callable[[TrainState], EpisodeTotals | None],
    recorder: Recorder,
    saver: Checkpointer | None,
    should_stop: Callable[[], bool],
) -> TrainState:
    """Run all chunks, or until ``should_stop`` in any process, and leave a checkpoint of the end.

    The last state of a whole run is always evaluated; a run that is stopped ends as soon as it is saved.
    """
    plan = recorder.plan

    def judge() -> None:
        totals = evaluate(state)
        recorder.evaluation_due = totals is None
        if totals is not None:
            recorder.add_evaluation(totals)

    if recorder.evaluation_due:
        judge()
    saved = begin = recorder.ticks // plan.ticks_per_chunk
    for chunk in range(begin + 1, plan.num_chunks + 1):
        if distributed.any_process(should_stop()):
            break
        state, metrics = run(state)
        recorder.add_chunk(distributed.to_host(metrics))
        last = chunk == plan.num_chunks
        evaluated = last or chunk % plan.chunks_per_eval == 0
        if evaluated:
            judge()
        if saver is not None and (last or chunk % plan.chunks_per_checkpoint == 0):
            score = recorder.score() if evaluated and not recorder.evaluation_due else None
            saver.save(recorder.env_steps(), state, recorder.progress(), score)
            saved = chunk
    if saver is not None and recorder.ticks // plan.ticks_per_chunk > saved:
        saver.save(recorder.env_steps(), state, recorder.progress(), None)
    return state


def check_start(state: TrainState, env: VecEnv | HostEnv) -> None:
    """Refuse a first observation that is not finite.

    Raises:
        NonFiniteError: naming the environment.
    """
    for leaf in jax.tree.leaves(distributed.to_host(state.private["sample"].obs)):
        if not np.isfinite(np.asarray(leaf, np.float32)).all():
            raise NonFiniteError(
                f"environment {env.spec.name} gave a NaN or an infinity in the observation of its reset"
            )


def describe_start(
    state: TrainState, resumed: resuming.Resumed | None, saver: Checkpointer | None, plan: Plan, agent: Agent,
    tell: Callable[[str], None],
) -> None:  # fmt: skip
    """Tell where a resumed run goes on and what is different, and what the checkpoints will hold."""
    if resumed is not None:
        tell(f"goes on from {resumed.description.path}, {resumed.progress['env_steps']:,} steps trained")
        for line in resumed.changes:
            tell(f"changed: {line}")
        if resumed.description.replay_lost:
            tell(
                f"the replay buffer was not kept: the next {agent.warmup_ticks * plan.steps_per_tick:,} steps fill a "
                "new one before anything is learned, and what follows is not what the unbroken run would have computed"
            )
    if saver is not None:
        tell(describe_checkpoints(state, saver.plan, plan))


def describe_checkpoints(state: TrainState, wanted: Checkpoints, plan: Plan) -> str:
    """How often a checkpoint is made, how large it will be, and what it leaves out."""
    own, replay = (size / 1e6 for size in checkpoint_files.sizes(state))
    every = plan.chunks_per_checkpoint * plan.ticks_per_chunk * plan.steps_per_tick
    text = f"checkpoint every {every:,} steps, {own:.1f} MB"
    if replay and wanted.replay:
        return f"{text}, the newest with {replay:.1f} MB of replay"
    if replay:
        return f"{text}, without replay ({replay:.1f} MB): a resumed run fills a new buffer before it learns again"
    return text


@contextmanager
def open_folder(
    run_dir: str | Path | None,
    resumed: resuming.Resumed | None,
    checkpoints: Checkpoints,
    settings: Mapping[str, Any],
    tell: Callable[[str], None],
) -> Iterator[tuple[RunFolder | None, Checkpointer | None]]:
    """The run's files and the writer of its checkpoints, closed on leaving; None where nothing is to be written. The
    files are process 0's alone.

    A run that goes on in its own folder takes back what was written after the checkpoint.
    """
    if run_dir is None:
        yield None, None
        return
    path = Path(run_dir)
    if resumed is None and checkpoint_files.all_steps(path / FOLDER):
        raise ValueError(f"{path} holds the checkpoints of a run: resume it, or write another run_dir")
    own = resumed is not None and resumed.description.path.parent.resolve() == (path / FOLDER).resolve()
    resume_at = resumed.progress["env_steps"] if own and resumed else None
    with ExitStack() as stack:
        folder = None
        if distributed.is_first():
            folder = stack.enter_context(RunFolder(path, resume_at=resume_at, tell=tell))
            checkpointing.remove_stale(path / FOLDER, after=resume_at)
        saver = Checkpointer(path / FOLDER, checkpoints, settings, tell) if checkpoints.keep else None
        if saver is not None and own and resumed:
            saver.newest = resumed.description.path
        yield folder, saver and stack.enter_context(saver)
