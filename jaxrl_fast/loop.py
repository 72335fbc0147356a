"""The loop: drives compiled chunks of ticks, and says what happened between them.

A chunk has a fixed size and is compiled once; its state is donated, its metrics come back when it ends. Everything
slow or with a side effect (evaluation, files, callbacks, signals) happens between chunks.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast import program as programs
from jaxrl_fast.algorithm import Agent, Algorithm, require_positive
from jaxrl_fast.core import EpisodeTotals
from jaxrl_fast.env import VecEnv
from jaxrl_fast.evaluation import play, vectorize
from jaxrl_fast.fragments import Overlap, build_graph
from jaxrl_fast.graph import Graph, TrainState
from jaxrl_fast.graph import init as init_graph
from jaxrl_fast.graph import tick as tick_graph
from jaxrl_fast.placement import PLACEMENTS, Placement
from jaxrl_fast.policy import Policy, PolicyParams, make_policy
from jaxrl_fast.recorder import NonFiniteError, Plan, Recorder, Row
from jaxrl_fast.reporting import RunFolder

CHUNKS_PER_RUN = 100


Place = Callable[[Graph, Sequence[jax.Device]], Placement]


class Result(NamedTuple):
    """``state`` has a leading seed axis ``[S, ...]``; ``policy`` is that of the seed with the best last evaluation;
    ``history`` holds a row a chunk and a row an evaluation; ``summary`` is what ``summary.json`` holds."""

    state: TrainState
    policy: Policy
    history: list[Row]
    summary: Row


def make_train_step(
    env: VecEnv, algorithm: Algorithm, *, overlap: Overlap = "none", total_steps: int | None = None
) -> tuple[Callable[..., TrainState], Callable[[TrainState], tuple[TrainState, dict[str, jax.Array]]]]:
    """``(init, train_step)``, both pure: jit, scan, vmap or change them.

    ``init(key, hyper=algorithm.hyper) -> TrainState``; ``train_step(state) -> (state, metrics)`` is one tick: sample,
    then learn. Donate the state when you jit the step. Under a ``vmap`` of your own, updates that rest during a warm-up
    are computed and discarded; `learn` with ``num_seeds`` skips them.

    Raises:
        ValueError: algorithm and environment do not fit.
    """
    graph, _ = build_graph(env, algorithm, overlap=overlap, total_steps=total_steps)

    def init(key: jax.Array, hyper: Any = algorithm.hyper) -> TrainState:
        return init_graph(graph, key, hyper)

    def train_step(state: TrainState) -> tuple[TrainState, dict[str, jax.Array]]:
        return tick_graph(graph, state)

    return init, train_step


def learn(
    env: VecEnv,
    algorithm: Algorithm,
    *,
    total_steps: int,
    seed: int = 0,
    num_seeds: int = 1,
    overlap: Overlap = "none",
    placement: str | Place = "fused",
    devices: int | None = None,
    eval_every: int | None = None,
    eval_episodes: int = 32,
    on_metrics: Callable[[Row], None] | None = None,
    run_dir: str | Path | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Result:
    """Train for ``total_steps`` environment steps over all environments, for each of ``num_seeds`` seeds at once.

    ``eval_every`` (environment steps; default a tenth of the run) and ``eval_episodes`` say how often and on how many
    episodes the greedy policy is judged. ``placement`` is a name or a function ``(graph, devices) -> Placement``, and
    ``devices`` how many of JAX's devices it may use (default all). ``on_metrics`` gets each row of ``history`` as it
    comes. Nothing is written unless ``run_dir`` is given. ``should_stop`` is asked before every chunk.

    Raises:
        ValueError: arguments do not fit together, found before anything is compiled.
        NonFiniteError: the environment or an update gave a NaN or an infinity.
    """
    require_positive(total_steps=total_steps, num_seeds=num_seeds, eval_episodes=eval_episodes)
    graph, agent = build_graph(env, algorithm, overlap=overlap, total_steps=total_steps)
    plan = plan_run(env, agent, total_steps, eval_every)
    placed = place(graph, placement, devices)
    program = programs.compile(graph, placed, plan.ticks_per_chunk, num_seeds)
    made_by = {
        "algo": algorithm.name, "options": algorithm.options, "num_envs": env.num_envs,
        "normalize_observations": agent.normalize_observations,
    }  # fmt: skip
    keys = jax.random.split(jax.random.key(seed), num_seeds)
    evaluate = make_evaluation(env, agent, made_by, eval_episodes)
    with open_folder(run_dir) as folder:
        recorder = Recorder(env, agent, plan, graph, placed, num_seeds, on_metrics, folder)
        state, run = start(program, keys, algorithm.hyper, recorder)
        check_start(state, env)
        state = drive(
            run, state, lambda s: evaluate(policy_params(agent, s, num_seeds), keys), recorder, should_stop
        )  # fmt: skip
        policy = best_policy(env, agent, policy_params(agent, state, num_seeds), recorder.scores, made_by)
        summary = recorder.summary()
        if folder is not None:
            folder.finish(summary, policy)
    return Result(programs.with_seed_axis(state, num_seeds), policy, recorder.history, summary)


def place(graph: Graph, placement: str | Place, devices: int | None) -> Placement:
    """A placement by name, or a user's own, on the first ``devices`` of JAX's devices.

    Raises:
        ValueError: the name is unknown, or there are not so many devices.
    """
    if isinstance(placement, str) and placement not in PLACEMENTS:
        raise ValueError(f"placement={placement}: write one of {', '.join(PLACEMENTS)}")
    available = jax.devices()
    if devices is not None and not 1 <= devices <= len(available):
        raise ValueError(f"devices={devices}: JAX has {len(available)} here, write a number from 1 to {len(available)}")
    make = PLACEMENTS[placement] if isinstance(placement, str) else placement
    return make(graph, available[:devices])


def start(
    program: programs.Program, keys: jax.Array, hyper: Any, recorder: Recorder
) -> tuple[TrainState, programs.Run]:
    """The first state, and the compiled chunk.

    Both programs are compiled at once, in threads, so that a second core helps and a signal is heard meanwhile.
    """
    recorder.compiling()
    init, run = program.ready(keys, hyper)
    state = jax.block_until_ready(init(keys, hyper))
    recorder.compiled()
    return state, run


def drive(
    run: programs.Run,
    state: TrainState,
    evaluate: Callable[[TrainState], EpisodeTotals],
    recorder: Recorder,
    should_stop: Callable[[], bool],
) -> TrainState:
    """Run all chunks, or until ``should_stop``; the last state is always evaluated."""
    plan, evaluated = recorder.plan, False
    for chunk in range(plan.num_chunks):
        if should_stop():
            break
        state, metrics = run(state)
        recorder.add_chunk(jax.device_get(metrics))
        evaluated = (chunk + 1) % plan.chunks_per_eval == 0
        if evaluated:
            recorder.add_evaluation(jax.device_get(evaluate(state)))
    if not evaluated:
        recorder.add_evaluation(jax.device_get(evaluate(state)))
    return state


def plan_run(env: VecEnv, agent: Agent, total_steps: int, eval_every: int | None) -> Plan:
    """Cut a run into about a hundred equal chunks, with the least overshoot over ``total_steps``."""
    steps_per_tick = env.num_envs * agent.rollout_length
    ticks = -(-total_steps // steps_per_tick)
    smallest, largest = max(1, ticks // (CHUNKS_PER_RUN * 3 // 2)), max(1, -(-ticks // (CHUNKS_PER_RUN // 2)))
    wanted = ticks / CHUNKS_PER_RUN
    ticks_per_chunk = min(range(smallest, largest + 1), key=lambda n: (-(-ticks // n) * n, abs(n - wanted)))
    num_chunks = -(-ticks // ticks_per_chunk)
    eval_every = eval_every or max(1, total_steps // 10)
    chunks_per_eval = max(1, round(eval_every / (steps_per_tick * ticks_per_chunk)))
    return Plan(ticks_per_chunk, num_chunks, chunks_per_eval, steps_per_tick)


def policy_params(agent: Agent, state: TrainState, num_seeds: int) -> PolicyParams:
    """What acting needs, out of a program's state: leaves ``[S, ...]`` on the host, so that they can act anywhere."""
    parts = {name: state.channels[name] for name in agent.acting_parts}
    stats = state.channels["statistics"].obs if agent.normalize_observations else None
    params = PolicyParams(*jax.device_get((parts, stats)))
    return params if num_seeds > 1 else jax.tree.map(lambda x: np.asarray(x)[None], params)


def make_evaluation(
    env: VecEnv, agent: Agent, made_by: Row, episodes: int
) -> Callable[[PolicyParams, jax.Array], EpisodeTotals]:
    """A compiled evaluation of all seeds: totals ``[S, episodes]``, always from the same starts."""
    policy = make_policy(env.spec, agent, PolicyParams({}, None), made_by)
    if env.world is None:
        raise ValueError("this environment cannot be copied for evaluation")
    worlds = vectorize(env.world, num_envs=episodes)

    def one_seed(params: PolicyParams, key: jax.Array) -> EpisodeTotals:
        return play(policy.act, policy.initial_carry, worlds, params, jax.random.fold_in(key, 0xE7A1))

    return jax.jit(jax.vmap(one_seed))


def best_policy(env: VecEnv, agent: Agent, params: PolicyParams, scores: np.ndarray, made_by: Row) -> Policy:
    """The policy of the seed with the best score ``[S]``; leaves of ``params`` are ``[S, ...]``."""
    best = int(np.argmax(scores)) if scores.size else 0
    return make_policy(env.spec, agent, jax.tree.map(lambda x: jnp.array(x[best]), params), made_by)


def check_start(state: TrainState, env: VecEnv) -> None:
    """Refuse a first observation that is not finite.

    Raises:
        NonFiniteError: naming the environment.
    """
    for leaf in jax.tree.leaves(state.private["sample"].obs):
        if not np.isfinite(np.asarray(leaf, np.float32)).all():
            raise NonFiniteError(
                f"environment {env.spec.name} gave a NaN or an infinity in the observation of its reset"
            )


def open_folder(run_dir: str | Path | None) -> AbstractContextManager[RunFolder | None]:
    """The run's files, closed on leaving; None where nothing is to be written."""
    return nullcontext() if run_dir is None else RunFolder(Path(run_dir))
