"""The functions that a compiled program consists of, with what they take and give."""

from collections.abc import Callable
from typing import Any, Protocol

import jax

from jaxrl_fast.core import Metrics
from jaxrl_fast.graph.dataflow import TrainState
from jaxrl_fast.graph.kept import Store


class InitState(Protocol):
    """Makes the state before the first tick."""

    def __call__(self, keys: jax.Array, hyper: Any, /) -> TrainState:
        """``keys`` ``[S]``: a random key for each seed; ``hyper``: the rates or schedules that all seeds begin with."""


class RunChunk(Protocol):
    """Trains for a chunk: a fixed number of ticks."""

    def __call__(self, state: TrainState, /) -> tuple[TrainState, Metrics]:
        """``state`` must not be used again: its private states are donated. Returns the state at the end and metrics
        ``[S, ticks]`` named ``fragment/metric``."""


class CompileAhead(Protocol):
    """Compiles before anything runs, in threads."""

    def __call__(self, keys: jax.Array, hyper: Any, /, store: Store | None = None) -> tuple[InitState, RunChunk]:
        """Takes what `InitState` takes, for the shapes. Returns both functions, compiled. Programs that a ``store`` has
        are not traced; it gets those that it lacks."""


CompileRun = Callable[[jax.Array, Any], RunChunk]
"""(as `InitState` takes, or shapes): compiles `RunChunk` alone."""


PlaceState = Callable[[TrainState], TrainState]
"""Puts a state, for instance one from a file, from any device or NumPy on the devices where `RunChunk` expects it."""
