"""Resuming a run from a checkpoint: which settings may change, and how its state is restored.

A run that is resumed with nothing changed computes, on the same machine and placement, bit for bit what it would have
computed without the interruption. ``placement``, ``devices``, ``total_steps``, rates and what concerns only evaluation
and saving may change; anything else makes another run.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl_fast.learning.acting import BoundAgent
from jaxrl_fast.learning.algorithm import Algorithm
from jaxrl_fast.runtime import hosts
from jaxrl_fast.runtime.graph import Graph, TrainState, tagged
from jaxrl_fast.runtime.placements import REPLAY, SAMPLING
from jaxrl_fast.runtime.program import Program
from jaxrl_fast.settings.schema import resume_rule, run_keys
from jaxrl_fast.training import checkpoints
from jaxrl_fast.training.checkpoints import CheckpointError, CheckpointFacts


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


def compare(description: CheckpointFacts, settings: Mapping[str, Any], rates: Sequence[str]) -> list[str]:
    """The settings that differ from a checkpoint's, where they may, each as a line; ``rates``: keys that may too.

    Raises:
        CheckpointError: one differs that may not.
    """
    unnamed = {name: key.default for name, key in run_keys().items() if key.stored == "changed"}
    before, now = ({**unnamed, **known} for known in (description.settings, json.loads(json.dumps(settings))))
    rules = {key: "free" if key in rates else resume_rule(key) for key in {**before, **now}}
    differing = [key for key, rule in rules.items() if before.get(key) != now.get(key) and rule != "silent"]
    for key in differing:
        if rules[key] == "fixed":
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
