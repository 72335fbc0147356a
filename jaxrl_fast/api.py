"""The library: environments by name, training with everything around it, and training as two pure functions.

It stands above training and views, and hands the pages and pictures of a run's folder to training.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax

from jaxrl_fast import envs
from jaxrl_fast.core import Log
from jaxrl_fast.envs.env import VecEnv
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.learning.algorithm import Algorithm
from jaxrl_fast.learning.io_callback_env import make_bridge
from jaxrl_fast.learning.minibatches import MAX_SHARDS
from jaxrl_fast.learning.run_graph import GraphOptions, Overlap, build_graph
from jaxrl_fast.learning.updates import Average, OnNan
from jaxrl_fast.policy.policies import Policy
from jaxrl_fast.runtime.graph import TrainState
from jaxrl_fast.runtime.graph import init as init_graph
from jaxrl_fast.runtime.graph import tick as tick_graph
from jaxrl_fast.runtime.placements import Make
from jaxrl_fast.runtime.program_store import FindStore
from jaxrl_fast.settings.schema import Checkpoints, EvalOptions
from jaxrl_fast.training.callbacks import (
    BetweenChunks,
    Calls,
    Listeners,
    OnLastPolicy,
    OnMetrics,
    OnNewPolicy,
    Row,
    ShouldStop,
    Tell,
    to_stderr,
)
from jaxrl_fast.training.episodes import Evaluate
from jaxrl_fast.training.job import JobOptions, make_job
from jaxrl_fast.training.loop import run_job
from jaxrl_fast.views.listeners import make_listeners
from jaxrl_fast.views.notebook import live_plot, result_html


class Result(NamedTuple):
    """What `learn` returns: its last ``state``, with a leading seed axis ``[S, ...]`` always; the ``policy`` of the
    seed with the best last evaluation; ``history``: a row for each chunk and each evaluation; ``summary``: what
    ``summary.json`` holds."""

    state: TrainState
    policy: Policy
    history: list[Row]
    summary: Row

    def _repr_html_(self) -> str:
        return result_html(self.history, self.summary)


def make_env(name: str, *, num_envs: int, **options: Any) -> VecEnv | HostEnv:
    """``num_envs`` copies of a named environment: a short name (``"halfcheetah"``), or a suite with its options
    (``"brax", id="ant", backend="mjx"``; ``"gymnasium", id="HalfCheetah-v5", num_seeds=4, pool={"workers": 2}``,
    stepped on the host, for each of four seeds: close it when done; ``"custom", make=make_my_env``).

    Raises:
        ValueError: the name or an option is unknown; the message says what to write instead.
    """
    return envs.make_vec(name, num_envs=num_envs, **options)


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
    on_last_policy: OnLastPolicy | None = None,
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
    keep: FindStore = lambda program: None,
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
    graph = GraphOptions(overlap, learners, average, nan=nan, shards=shards)
    beside = between_chunks is None if eval_beside is None else eval_beside
    evaluated = EvalOptions(eval_every, eval_episodes, beside, eval_device)
    asked = total_steps, seed, num_seeds, graph, placement, devices, evaluated, checkpoints, resume, debug
    if settings is None and run_dir is None and resume is None and jax.process_count() == 1:
        settings = {}  # nobody reads them
    job = make_job(env, algorithm, JobOptions(*asked), settings, keep)
    watch = on_metrics if on_metrics is not None else live_plot()
    listeners = make_listeners() if run_dir is not None else Listeners()
    change = between_chunks or (lambda state, scores: None)
    calls = Calls(watch, should_stop, change, on_new_policy, on_last_policy, evaluator, tell, listeners)
    return Result(*run_job(job, calls, run_dir, log))


def make_train_step(
    env: VecEnv | HostEnv,
    algorithm: Algorithm,
    *,
    overlap: Overlap = "none",
    learners: int = 1,
    average: Average = "gradients",
    shards: int = MAX_SHARDS,
    total_steps: int | None = None,
) -> tuple[Callable[..., TrainState], Callable[[TrainState], tuple[TrainState, dict[str, jax.Array]]]]:
    """Training as two pure functions ``(init, train_step)``: jit, scan, vmap or change them.

    ``init(key, hyper=algorithm.hyper) -> TrainState``; ``train_step(state) -> (state, metrics)`` is one tick: sample,
    then learn. ``overlap``, ``learners``, ``average`` and ``shards`` are those of `GraphOptions`. Donate the state when
    you jit the step. Under a ``vmap`` of your own, the updates of a warm-up are
    computed and discarded; `learn` with ``num_seeds`` skips them. Environments on the host are stepped by ordered
    callbacks: on one device, each state once and in order, and not under a ``vmap`` of your own.

    Raises:
        ValueError: algorithm and environment do not fit.
    """
    vec_env = make_bridge(env).env if isinstance(env, HostEnv) else env
    graph, _ = build_graph(vec_env, algorithm, GraphOptions(overlap, learners, average, total_steps, shards=shards))

    def init(key: jax.Array, hyper: Any = algorithm.hyper) -> TrainState:
        return init_graph(graph, key, hyper)

    def train_step(state: TrainState) -> tuple[TrainState, dict[str, jax.Array]]:
        return tick_graph(graph, state)

    return init, train_step
