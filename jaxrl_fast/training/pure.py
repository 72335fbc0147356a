"""Training as two pure functions, for programs that have a loop of their own."""

from collections.abc import Callable
from typing import Any

import jax

from jaxrl_fast.algorithms.interface import Algorithm
from jaxrl_fast.environments.env import VecEnv
from jaxrl_fast.environments.host_env import HostEnv
from jaxrl_fast.experience.minibatches import MAX_SHARDS
from jaxrl_fast.fragments.build import GraphOptions, Overlap, build_graph
from jaxrl_fast.fragments.callbacks import make_bridge
from jaxrl_fast.fragments.learning import Average
from jaxrl_fast.graph.dataflow import TrainState
from jaxrl_fast.graph.dataflow import init as init_graph
from jaxrl_fast.graph.dataflow import tick as tick_graph


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
