"""The library: environments by name, training with evaluation and files, and training as two pure
functions.

It combines training and views: it gives the pages and pictures of a run's folder to the training
loop.
"""

import io
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from jaxrl_fast import envs
from jaxrl_fast.assembly import bind, build_graph, make_job
from jaxrl_fast.core import Log, MadeEnv, require_devices, require_key, require_vectorized
from jaxrl_fast.envs.env import VecEnv
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.hosts.io_callback_env import make_bridge
from jaxrl_fast.learning.algorithm import AnyAlgorithm
from jaxrl_fast.learning.minibatches import MAX_SHARDS
from jaxrl_fast.learning.run_graph import GraphOptions, Overlap
from jaxrl_fast.learning.updates import Average, OnNan
from jaxrl_fast.numerics.optimizers import checks_numbers, schedules
from jaxrl_fast.offline.datasets import Dataset
from jaxrl_fast.policy.policies import Policy
from jaxrl_fast.runtime import hosts
from jaxrl_fast.runtime.graph import TrainState
from jaxrl_fast.runtime.graph import init as init_graph
from jaxrl_fast.runtime.graph import tick as tick_graph
from jaxrl_fast.runtime.placements import Make
from jaxrl_fast.runtime.program_store import FindStore
from jaxrl_fast.settings.run import REPEATABLE, of_program, repeated_by, stored_settings
from jaxrl_fast.settings.schema import Checkpoints, EvalOptions, argument_ranges
from jaxrl_fast.system import local_path, replace_file
from jaxrl_fast.training.callbacks import (
    BetweenChunks,
    OnCheckpoint,
    OnEpisodeEnd,
    OnEval,
    OnLastPolicy,
    OnMetrics,
    OnNewPolicy,
    Row,
    ShouldStop,
    Tell,
    to_stderr,
)
from jaxrl_fast.training.calls import Calls, with_callbacks
from jaxrl_fast.training.checkpoints import CheckpointError, CheckpointFacts, restore, snapshot
from jaxrl_fast.training.episodes import Evaluate, make_periodic_evaluation
from jaxrl_fast.training.job import Job
from jaxrl_fast.training.loop import Trained, run_job
from jaxrl_fast.training.run_folder import locked
from jaxrl_fast.training.stop_signals import stopping_at_signals
from jaxrl_fast.views.listeners import make_listeners


class Result(NamedTuple):
    """Result of `learn`.

    Attributes:
        state: Last state, always with a seed axis, leaves ``[S, ...]``.
        policy: Policy of the seed with the best last evaluation.
        history: A row for each chunk and each evaluation.
        summary: Content of ``summary.json``.
    """

    state: TrainState
    policy: Policy
    history: list[Row]
    summary: Row

    def __repr__(self) -> str:
        found = self.summary.get("eval_return_mean")
        returned = "not evaluated" if found is None else f"return {found:.1f}"
        steps, rows = self.summary.get("env_steps", 0), f"{len(self.history)} rows of history"
        return f"Result({self.policy!r}, {steps:,} steps, {returned}, {rows})"

    def _repr_html_(self) -> str:
        from jaxrl_fast.views.notebook import result_html

        return result_html(self.history, self.summary)


RANGES = argument_ranges()
SIZES = dict.fromkeys(("num_envs", "num_seeds"), RANGES["learners"])
STEP_RANGES = {**RANGES, "total_steps": RANGES["total_steps"]._replace(optional=True)}


@checks_numbers(SIZES)
def make_env(name: str = "", /, *, num_envs: int, **options: Any) -> VecEnv | HostEnv:
    """Make a vectorized environment.

    Examples: ``make_env("halfcheetah", num_envs=64)``,
    ``make_env("brax", id="ant", backend="mjx", num_envs=64)``,
    ``make_env("gymnasium", id="HalfCheetah-v5", num_seeds=4, pool={"workers": 2}, num_envs=8)``,
    ``make_env("custom", make=make_my_env, num_envs=64)``.

    Args:
        name: Short name, suite or ``custom``.
        num_envs: Number of environments, for each seed if stepped on the host.
        **options: Options of the environment; on the host also ``num_seeds`` and ``pool``.

    Returns:
        A compiled environment, or one stepped on the host, which must be closed.

    Raises:
        ValueError: Unknown name or option.
    """
    name = name or options.pop("name", "")  # also by keyword, as until 0.2.0
    env = envs.make_vec(name, num_envs=num_envs, **options)
    return env._replace(made=MadeEnv(name=name, num_envs=num_envs, options=options, result=env))


@checks_numbers(RANGES)
def learn(
    env: VecEnv | HostEnv,
    algorithm: AnyAlgorithm,
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
    data: Dataset | str | Path | None = None,
    online_steps: int = 0,
    eval_every: int | None = None,
    eval_episodes: int = 32,
    eval_beside: bool | None = None,
    eval_device: Literal["cpu", "same"] = "cpu",
    eval_share: bool = False,
    eval_sample: bool = False,
    evaluator: Evaluate | None = None,
    on_new_policy: OnNewPolicy = lambda: None,
    on_last_policy: OnLastPolicy | None = None,
    on_metrics: OnMetrics | None = None,
    on_eval: OnEval | None = None,
    on_checkpoint: OnCheckpoint | None = None,
    on_episode_end: OnEpisodeEnd | None = None,
    stop_return: float | None = None,
    run_dir: str | Path | None = None,
    log: Log = "tensorboard",
    checkpoints: Checkpoints = Checkpoints(),
    resume: str | Path | None = None,
    nan: OnNan = "stop",
    debug: bool = False,
    should_stop: ShouldStop = lambda: False,
    between_chunks: BetweenChunks | None = None,
    settings: Mapping[str, Any] | None = None,
    keep: FindStore = lambda program: None,
    tell: Tell = to_stderr,
) -> Result:
    """Train several seeds at once, each for a number of environment steps.

    In a program that has called `jax.distributed.initialize`, every process calls this function
    with equal arguments and a placement with devices of all processes. Process 0 evaluates, writes,
    and calls ``on_metrics``, ``on_eval``, ``on_checkpoint``, ``on_episode_end`` and ``tell``.

    Compiled programs are only stored on disk if `setup` was called first:
    ``jaxrl_fast.setup(cache=True)``. A second process then starts without compilation.

    Args:
        env: Vectorized environment.
        algorithm: Algorithm.
        total_steps: Environment steps per seed, over all its environments.
        seed: Seed of the run.
        num_seeds: Number of seeds.
        overlap: Which fragments read data of the last tick, so that they can run parallel to its
            writers.
        learners: Number of learners, each with an equal share of every batch.
        average: What several learners average: gradients, parameters, or nothing ("turns").
        shards: Largest number of logical shards of replay buffer and minibatches, which devices can
            share.
        placement: Name of a placement, or a function ``(graph, devices) -> Placement``.
        devices: Number of JAX's devices to use, None for all.
        data: Recorded episodes to learn from, or their folder (`load_dataset`). A step of the run
            then stands for a recorded one, and no environment is stepped before the last
            ``online_steps``.
        online_steps: Last of ``total_steps``, in which the environment is stepped; half of each
            batch is then recorded.
        eval_every: Environment steps between evaluations, None for a tenth of the run, 0 for no
            evaluation.
        eval_episodes: Episodes per evaluation and seed.
        eval_beside: Evaluate in a thread during training, not between chunks. None: unless
            ``between_chunks`` or ``stop_return`` is given.
        eval_device: Where that thread evaluates if training uses an accelerator: on the CPU or the
            same device.
        eval_share: Let the host environments of training play the evaluations between chunks, and
            make no others; their running episodes are truncated. For simulators of which there is
            only one.
        eval_sample: Evaluate with actions that are drawn from the policy's distribution, not with
            greedy ones.
        evaluator: Replaces the evaluation.
        on_new_policy: Called when the newest evaluated policy was written.
        on_last_policy: Called with the last policy in a thread during the last evaluations, unless
            the run is stopped.
        on_metrics: Called with each row of ``history``.
        on_eval: Called with each evaluation: returns ``[S, episodes]`` and policies.
        on_checkpoint: Called with the path of each complete checkpoint, in a thread during
            training.
        on_episode_end: Called after each chunk in which training episodes ended, with their mean
            return and length.
        stop_return: Stop when the mean greedy return of an evaluation, over all seeds, is at least
            as high. The run is then complete, and ``summary["stopped_by"]`` is "stop.return".
        run_dir: Folder for files, None to write nothing.
        log: Logger of scalars in ``run_dir``, in addition to the tables.
        checkpoints: When to save the whole state in ``run_dir``.
        resume: A run's folder or one of its checkpoints, to continue from; None for a new run.
        nan: "stop" at a non-finite number, or "skip" updates that would compute one.
        debug: Name the operation that computed a non-finite number.
        should_stop: Called before every chunk and during waits for an evaluation, which a resumed
            run then repeats.
        between_chunks: Called after every chunk, and may change the state.
        settings: Settings that a resumed run must have in common with this one, None to take them
            from the arguments.
        keep: Returns the store of compiled programs for later starts, or None.
        tell: Shows messages to the user.

    Returns:
        State, policy, history and summary.

    Raises:
        ValueError: Arguments contradict each other, or the checkpoint; raised before compilation.
        NonFiniteError: The environment or an update computed a NaN or an infinity.
        KeyboardInterrupt: Ctrl-C was pressed; with ``run_dir``, the run stops after its chunk and
            is saved first.
        SystemExit: With ``run_dir``, another signal ended the run, such as ``kill``; it is saved
            first. A signal that the program handles remains the program's.
    """
    require_devices()
    require_vectorized(env, algorithm)
    if run_dir is not None:
        local_path(run_dir, "run_dir")
    beside = (
        between_chunks is None and stop_return is None and not eval_share
        if eval_beside is None
        else eval_beside
    )
    evaluation = EvalOptions(
        every=eval_every,
        episodes=eval_episodes,
        beside=beside,
        device=eval_device,
        share=eval_share,
        sample=eval_sample,
    )
    run = of_program(
        env,
        algorithm,
        total_steps=total_steps,
        seed=seed,
        num_seeds=num_seeds,
        overlap=overlap,
        learners=learners,
        average=average,
        shards=shards,
        nan=nan,
        placement=placement,
        devices=devices,
        eval=evaluation,
        checkpoint=checkpoints,
        log=log,
        resume=resume,
        debug=debug,
        data=str(data) if isinstance(data, Path) else data,
        online_steps=online_steps,
    )
    config = ""
    if settings is None and run_dir is None and resume is None and jax.process_count() == 1:
        settings = {}  # not read without files and other processes
    elif settings is None:
        config = repeated_by(env, algorithm, run)
        settings = stored_settings(run, env, algorithm) | ({} if config else {REPEATABLE: False})
    job = make_job(env, algorithm, run, settings, keep, config)
    calls = Calls(
        on_metrics=on_metrics or live_plot_in_notebook(),
        should_stop=should_stop,
        between_chunks=between_chunks,
        on_new_policy=on_new_policy,
        evaluate=evaluator,
        tell=tell,
    )
    calls = with_callbacks(
        calls,
        job,
        run_dir,
        on_eval=on_eval,
        on_checkpoint=on_checkpoint,
        on_episode_end=on_episode_end,
        on_last_policy=on_last_policy,
        stop_return=stop_return,
    )
    if run_dir is None:
        state, policy, history, summary = run_job(job, calls)
    else:
        state, policy, history, summary = run_in_folder(job, calls, Path(run_dir), log)
    return Result(state=state, policy=policy, history=history, summary=summary)


def live_plot_in_notebook() -> OnMetrics | None:
    """Make the plot of a run that a notebook shows.

    Returns:
        The plot, or None outside of notebooks.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is None:
        return None
    from jaxrl_fast.views.notebook import LivePlot  # what a run does not use is not on its way

    return LivePlot()


def run_in_folder(job: Job, calls: Calls, folder: Path, log: Log) -> Trained:
    """Train a job with files in a folder that no other run may use, and save it if a signal ends
    it.

    Args:
        job: Job.
        calls: Callbacks.
        folder: Folder of the run.
        log: Logger of scalars.

    Returns:
        State, policy, history and summary.

    Raises:
        ValueError: Another run uses the folder, or it is not writable.
        KeyboardInterrupt: Ctrl-C was pressed, and the run is saved.
        SystemExit: Another signal ended the run, which is saved.
    """
    with ExitStack() as stack:
        hosts.decide(lambda: stack.enter_context(locked(folder)))
        stop = stack.enter_context(stopping_at_signals(calls.should_stop))
        calls = calls._replace(**stop._asdict(), listeners=make_listeners())
        return run_job(job, calls, folder, log)


@checks_numbers(STEP_RANGES)
def make_train_step(
    env: VecEnv | HostEnv,
    algorithm: AnyAlgorithm,
    *,
    overlap: Overlap = "none",
    learners: int = 1,
    average: Average = "gradients",
    shards: int = MAX_SHARDS,
    total_steps: int | None = None,
) -> tuple[
    Callable[..., TrainState], Callable[[TrainState], tuple[TrainState, dict[str, jax.Array]]]
]:
    """Make training as two pure functions, to be jitted, scanned, vmapped or changed.

    Donate the state if you jit the step. Under your ``vmap``, the updates of a warm-up are computed
    and discarded; `learn` with ``num_seeds`` skips them. Environments on the host are stepped by
    ordered callbacks: on one device, each state once and in order, and not under ``vmap``.

    Args:
        env: Vectorized environment.
        algorithm: Algorithm.
        overlap: As in `learn`.
        learners: As in `learn`.
        average: As in `learn`.
        shards: As in `learn`.
        total_steps: Environment steps of the run, for schedules of hyper-parameters.

    Returns:
        ``init(key, hyper=algorithm.hyper) -> state``, and
        ``train_step(state) -> (state, metrics)``, which is one tick: sampling, then updates.

    Raises:
        ValueError: The algorithm does not support the environment. Both functions raise it for
            arguments of another kind.
    """
    require_devices()
    vec_env = make_bridge(env).env if isinstance(env, HostEnv) else env
    graph, _ = build_graph(
        vec_env, algorithm, GraphOptions(overlap, learners, average, total_steps, shards=shards)
    )

    def init(key: jax.Array, hyper: Any = algorithm.hyper) -> TrainState:
        require_key(key)
        own = hyper is algorithm.hyper
        return init_graph(
            graph, key, hyper if own else checked_hyper(hyper, algorithm.hyper, total_steps)
        )

    def train_step(state: TrainState) -> tuple[TrainState, dict[str, jax.Array]]:
        check_state(state)
        return tick_graph(graph, state)

    return init, train_step


def trained_policy(env: VecEnv | HostEnv, algorithm: AnyAlgorithm, state: TrainState) -> Policy:
    """Return the policy of a train step's state, for `evaluate_policy`, `save_policy` or a call.

    Args:
        env: Environment of `make_train_step`.
        algorithm: Its algorithm.
        state: State of one seed: of several, as under ``vmap``, write
            ``jax.tree.map(lambda x: x[seed], state)``.

    Returns:
        The policy, with copies of the state's parameters.

    Raises:
        ValueError: The state is of several seeds, or of another algorithm.
    """
    require_vectorized(env, algorithm)
    check_state(state)
    if state.key.shape:
        raise ValueError(
            "the state is of several seeds: write jax.tree.map(lambda x: x[seed], state) for one of them"
        )
    agent = bind(algorithm, env.spec, env.num_envs, MAX_SHARDS)
    evaluation = make_periodic_evaluation(env, algorithm, agent, state.key[None], EvalOptions())
    try:
        return evaluation.policy_of(evaluation.copy_params(state), 0)
    except KeyError as error:
        raise ValueError(f"the state is not of {algorithm.name}: it has no {error}") from None
    finally:
        evaluation.close()


def save_state(path: str | Path, state: TrainState) -> None:
    """Write a train step's state to a file, completely or not at all.

    The file has all arrays, with the replay buffer, the environments and the random keys:
    `load_state` goes on to the bit. Environments on the host are not in it.

    Args:
        path: File, such as ``state.npz``.
        state: State.

    Raises:
        ValueError: ``state`` is not a state.
        OSError: The file cannot be written.
    """
    check_state(state)
    content = io.BytesIO()
    np.savez(content, **snapshot(state, ()))  # type: ignore[arg-type]
    replace_file(local_path(path), content.getvalue())


def load_state(path: str | Path, state: TrainState) -> TrainState:
    """Read a file of `save_state`. Nothing in it is executed.

    Args:
        path: File.
        state: Any state of the same train step, such as ``init(key)``, for its structure.

    Returns:
        The state of the file.

    Raises:
        ValueError: The file is not one of `save_state`, or has arrays of another train step.
        OSError: The file cannot be read.
    """
    check_state(state)
    facts = CheckpointFacts(Path(path), {}, {}, None, {}, {}, {}, [], False)
    content = local_path(path).read_bytes()
    try:
        with np.load(
            io.BytesIO(content if content[:2] == b"PK" else b""), allow_pickle=False
        ) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # errors of zip and NumPy on damaged bytes vary
        raise CheckpointError(
            f"{path} is not a file of save_state: {type(error).__name__}: {error}"
        ) from error
    return jax.tree.map(jax.numpy.asarray, restore(state, facts, arrays))


def check_state(state: object) -> None:
    """Check that an argument is the state of one seed.

    Args:
        state: Argument.

    Raises:
        ValueError: It is something else.
    """
    if not isinstance(state, TrainState):
        raise ValueError(
            f"state is a {type(state).__name__}: write the state that init(key) or train_step returned"
        )


def checked_hyper(hyper: Any, own: Any, total_steps: int | None) -> Any:
    """Check the hyper-parameters given to ``init``.

    Args:
        hyper: Argument.
        own: Hyper-parameters of the algorithm.
        total_steps: Length of the run, which schedules need.

    Returns:
        The argument.

    Raises:
        ValueError: They are of another algorithm, not numbers, or schedules without a length.
    """
    if type(hyper) is not type(own):
        raise ValueError(
            f"hyper is a {type(hyper).__name__}: write algorithm.hyper._replace(learning_rate=...)"
        )
    if (names := ", ".join(schedules(hyper))) and total_steps is None:
        raise ValueError(
            f"{names} of hyper is a schedule: write make_train_step(..., total_steps=...)"
        )
    for name, rate in hyper._asdict().items():
        for value in jax.tree.leaves(rate):
            if isinstance(value, str) or not np.issubdtype(jax.numpy.result_type(value), np.number):
                raise ValueError(
                    f"{name}={value!r} of hyper: write a number, or a schedule such as jf.Linear(1e-3, 0)"
                )
            if np.shape(value):
                raise ValueError(
                    f"{name} of hyper has the shape {list(np.shape(value))}: write jax.vmap(init) for several"
                )
    return hyper
