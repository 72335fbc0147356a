"""Finds the operation that computed the first non-finite number, by repeating the failing tick with
JAX's checks.
"""

import os
import re
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jax.experimental import checkify

from jaxrl_fast.learning.updates import all_finite
from jaxrl_fast.runtime import graph as graphs
from jaxrl_fast.runtime.graph import Channels, Fragment, Graph, TrainState
from jaxrl_fast.runtime.layout import RunChunk
from jaxrl_fast.training import checkpoints, recorder, resuming
from jaxrl_fast.training.checkpoints import Checkpointer
from jaxrl_fast.training.job import Job
from jaxrl_fast.training.recorder import NonFiniteError, describe_large

JAX_FOLDER = os.path.dirname(jax.__file__)
PLACE = re.compile(r"\S+:\d+ \([^)]+\)")
"""A line of a traceback as written by `checkify`: file, line and function."""


def explain_nonfinite(
    error: NonFiniteError, job: Job, run: RunChunk, saver: Checkpointer | None
) -> NonFiniteError:
    """Add the last good checkpoint and, with ``debug``, the failing operation to an error.

    Args:
        error: Error of the run.
        job: Job of the run.
        run: Compiled chunk.
        saver: Writer of checkpoints, or None.

    Returns:
        The extended error.
    """
    if saver is not None:
        saver.wait()
    newest = saver.newest if saver is not None else None
    text = f"{error}; the last good checkpoint is {newest}" if newest else str(error)
    if job.run.debug:
        origin = job.resumed.description.path if job.resumed else None
        state = _one_seed(
            _state_before(error.tick, job, run, newest or origin), error.seed, job.num_seeds
        )
        text = f"{text}; {find_operation(job.graph, state, error.tick, error.fragment)}"
    return NonFiniteError(text, error.fragment, error.tick, error.seed)


def blame_observations(error: NonFiniteError, state: TrainState, graph: Graph) -> NonFiniteError:
    """Name very large observations in place of the learning rate, if there are any.

    Args:
        error: Error of the run.
        state: State after the tick that failed.
        graph: Graph of the run.

    Returns:
        The error.
    """
    line = describe_large(state, graph)
    text = str(error).removesuffix(f": {recorder.ADVICE}")
    if not line or text == str(error):
        return error
    return NonFiniteError(f"{text}: {line}", error.fragment, error.tick, error.seed)


def find_operation(graph: Graph, state: TrainState, tick: int, fragment: str) -> str:
    """Find the operation that computes the first NaN or infinity when a fragment steps.

    Args:
        graph: Graph of the run.
        state: State of one seed without a seed axis, at ``tick`` or earlier.
        tick: Tick of the failure.
        fragment: Name of the fragment.

    Returns:
        A line that describes the operation.
    """
    one_tick = jax.jit(partial(graphs.tick, graph))
    while int(state.tick) < tick:
        state, _ = one_tick(state)
    stages = graphs.stages(graph.fragments)
    place = next(i for i, stage in enumerate(stages) if fragment in [f.name for f in stage])
    before = tuple(f for stage in stages[:place] for f in stage)
    fresh = jax.jit(partial(_step, graph, before))(state, {})[1] if before else {}
    step = partial(_step, graph, stages[place])
    if bool(jax.jit(lambda *args: all_finite(step(*args)))(state, fresh)):
        return f"repeated, fragment {fragment} computed finite numbers in this tick: the operation was not found"
    return (
        _by_checkify(step, state, fresh, checkify.nan_checks)
        or _by_checkify(step, state, fresh, checkify.div_checks)
        or _by_hand(step, state, fresh)
        or f"fragment {fragment} computed an infinity without dividing by 0: a number overflowed float32"
    )


def _state_before(tick: int, job: Job, run: RunChunk, checkpoint: Path | None) -> TrainState:
    """Compute the state at the start of the chunk of ``tick``, from a checkpoint or from the start."""
    state = job.program.init(job.keys, job.algorithm.hyper)
    description = checkpoints.read_description(checkpoint) if checkpoint else None
    if description is not None and not description.replay_lost:
        resumed = resuming.Resumed(description, checkpoints.read_arrays(description), [])
        state = resuming.put_back(state, resumed, job.program)
    while int(state.tick) + job.program.ticks_per_chunk <= tick:
        state, _ = run(state)
    return state


def _one_seed(state: TrainState, seed: int, num_seeds: int) -> TrainState:
    state = jax.device_put(state, jax.devices()[0])
    if num_seeds == 1:
        return state
    picked = jax.tree.map(lambda x: x[seed], state._replace(tick=state.key))
    return picked._replace(tick=state.tick)


def _step(
    graph: Graph, fragments: tuple[Fragment, ...], state: TrainState, fresh: Channels
) -> tuple:
    moment = graphs.Moment(state.hyper, state.key, state.tick)
    return graphs.step_fragments(graph, fragments, state.private, state.channels, fresh, moment)


def _by_checkify(
    step: Callable[..., tuple], state: TrainState, fresh: Channels, errors: Any
) -> str | None:
    """Find the operation with JAX's `checkify` in a compiled program, which is quick but misses
    some.
    """
    error, _ = jax.jit(checkify.checkify(step, errors=errors))(state, fresh)
    found = error.get_exception()
    if found is None:
        return None
    # After the message, the traceback lists where the operation was traced, the innermost call
    # first.
    places = [
        place
        for place in PLACE.findall(str(getattr(found, "traceback_info", "")))
        if not place.startswith(JAX_FOLDER)
    ]
    return " At ".join([str(error.get()), *places[:1]])


def _by_hand(step: Callable[..., tuple], state: TrainState, fresh: Channels) -> str | None:
    """Find the operation without compilation.

    This is slow but finds NaNs that `checkify` misses, such as those selected by a ``where``.
    """
    try:
        with jax.disable_jit(), jax.debug_nans(True):
            jax.block_until_ready(step(state, fresh))
    except FloatingPointError as error:
        frames = [
            f
            for f in traceback.extract_tb(error.__traceback__)
            if not f.filename.startswith(JAX_FOLDER)
        ]
        where = (
            f" At {frames[-1].filename}:{frames[-1].lineno} ({frames[-1].name})" if frames else ""
        )
        return f"{' '.join(str(error).split())}{where}"
    return None
