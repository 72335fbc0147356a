"""Resuming a run from a checkpoint: which settings may change, and how the state is restored.

A resumed run without changes computes, on the same machine and placement, bit for bit the results
of an uninterrupted run. ``placement``, ``devices``, ``total_steps``, hyper-parameters and options
of evaluation and saving may change; other changes need a new run.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_fast.contents import differing, is_same
from jaxrl_fast.envs.episode_metrics import NEVER
from jaxrl_fast.learning.acting import BoundAgent
from jaxrl_fast.learning.algorithm import AnyAlgorithm
from jaxrl_fast.runtime import hosts
from jaxrl_fast.runtime.graph import Graph, TrainState, tagged
from jaxrl_fast.runtime.placements import REPLAY, SAMPLING
from jaxrl_fast.runtime.program import Program
from jaxrl_fast.settings.run import CONTENTS, MADE, REPEATABLE
from jaxrl_fast.settings.schema import EARLIER, SWITCHES, resume_rule, run_keys
from jaxrl_fast.training import checkpoints
from jaxrl_fast.training.checkpoints import CheckpointError, CheckpointFacts

ARGUMENTS, MAKE = f"{MADE}arguments", re.compile(r"\bmake=[\w.:]*\b(\w+)")
"""Setting with the arguments of an environment, and in it the function that makes a user's."""
FILE = re.compile(r"(?<!\S)file=\S+ ?")
"""The path of a robot's file in these arguments, whose content is compared."""
COMPUTED = {"algo.normalize_observations", "algo.normalize_rewards"}
"""Settings that `jaxrl_fast.learn` until 0.2.0 stored as the environment decided them."""
METRICS = ".env.episode.metrics."
"""Part of the names of `MetricTotals` in a checkpoint."""


class Resumed(NamedTuple):
    """A verified checkpoint, and the changes of the run that resumes it.

    Attributes:
        description: Description of the checkpoint.
        arrays: Arrays by name.
        changes: Settings that differ, one line each.
        new_rates: Names of the hyper-parameters that differ, which have this run's values.
    """

    description: CheckpointFacts
    arrays: dict[str, np.ndarray]
    changes: list[str]
    new_rates: Sequence[str] = ()

    @property
    def progress(self) -> dict[str, Any]:
        """Progress of the run at the checkpoint."""
        return self.description.progress

    @property
    def empty_until(self) -> int:
        """Tick from which replay is filled: the checkpoint's tick if its buffer is lost, but data
        are never lost.
        """
        if self.description.settings.get("data") is not None:
            return 0
        return (
            self.progress["ticks"] if self.description.replay_lost else self.progress["empty_until"]
        )


def read(path: str | Path, settings: Mapping[str, Any], algorithm: AnyAlgorithm) -> Resumed:
    """Read the checkpoint of a path.

    Args:
        path: A checkpoint, or the folder of a run.
        settings: Settings of the run that resumes it.
        algorithm: Algorithm of the run.

    Returns:
        The checkpoint and the changes.

    Raises:
        CheckpointError: The checkpoint is missing or damaged, or a setting differs that must not
            change.
    """
    description = checkpoints.read_description(checkpoints.find(Path(path)))
    changes = compare(description, settings, [f"algo.{name}" for name in algorithm.hyper._fields])
    before, now = description.settings, json.loads(json.dumps(settings))
    check_boundary(description, now)
    rates = [
        name
        for name in algorithm.hyper._fields
        if before.get(f"algo.{name}") != now.get(f"algo.{name}")
    ]
    return Resumed(description, checkpoints.read_arrays(description), changes, rates)


def check_boundary(description: CheckpointFacts, settings: Mapping[str, Any]) -> None:
    """Check that a resumed run with data goes on to step its environment, if it did so already.

    Args:
        description: Description of the checkpoint.
        settings: Settings of the run that resumes it.

    Raises:
        CheckpointError: The environment would be stepped from another step on.
    """
    old, new = (
        one.get("total_steps", 0) - one.get("online_steps", 0)
        for one in (description.settings, settings)
    )
    if "data" in settings and description.progress["env_steps"] > old != new:
        raise CheckpointError(
            f"online_steps: the environment has been stepped since {old:,} steps: write total_steps and online_steps "
            "that differ by as many"
        )


def stores_a_part(settings: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint stores only a part of the settings, as `jaxrl_fast.learn` did
    until 0.2.0.

    Args:
        settings: Settings that it stores.

    Returns:
        Whether others may have had any value.
    """
    return "eval.every" not in settings


def compare(
    description: CheckpointFacts, settings: Mapping[str, Any], rates: Sequence[str]
) -> list[str]:
    """List the settings that differ from a checkpoint's.

    Args:
        description: Description of the checkpoint.
        settings: Settings of the run that resumes it.
        rates: Keys of hyper-parameters, which may change.

    Returns:
        One line per changed setting.

    Raises:
        CheckpointError: A setting differs that must not change.
    """
    before, now = comparable(description.settings, json.loads(json.dumps(settings)), rates)
    had, has = before.pop(CONTENTS, {}), now.pop(CONTENTS, {})
    check_contents(description.path, had, has)
    rules = {key: "free" if key in rates else resume_rule(key) for key in {**before, **now}}
    rules.pop(REPEATABLE, None)
    rules |= {
        key: "free" for key, kind in CONTENT_OF.items() if key in rules and is_same(had, has, kind)
    }
    if is_same(had, has, "model"):
        rules[f"{MADE}env"] = "silent"  # the name of the file
    changed = [
        key for key, rule in rules.items() if before.get(key) != now.get(key) and rule != "silent"
    ]
    # A rate that is new since then is 0, as it was without it, unless it was given. Settings of an
    # algorithm, and names of what was made, that were not stored then are not compared.
    changed = [
        key
        for key in changed
        if key in before
        or (now[key] if rules[key] != "fixed" else not key.startswith(("algo.", MADE)))
    ]
    for key in changed:
        was = before.get(key, 0.0 if key in SWITCHES else None)
        named = f"{key} was {was} in {description.path} and is {now.get(key)}"
        if key in SWITCHES and not (was and now.get(key)):
            raise CheckpointError(
                f"{named}: a resumed run may change it, but not from or to 0; start a new run"
            )
        if rules[key] == "fixed":
            raise CheckpointError(
                f"{named}: a resumed run needs the settings it was started with; only hyper-parameters, placement, "
                "devices, total_steps, eval.*, checkpoint.*, stop.*, nan and debug may change"
            )
    changes = [f"{key}: {before.get(key)} -> {now.get(key)}" for key in changed]
    changes += [
        f"{name}: your code differs from the run's" for name in differing(had, has, "source")
    ]
    if description.versions != checkpoints.versions():
        changes.append(
            f"versions: {description.versions} -> {checkpoints.versions()}; rounding may differ"
        )
    return changes


CONTENT_OF = {"env.file": "model", "data": "data"}
"""Settings that are paths, and the kind of their contents: with equal contents the path may change."""


def check_contents(path: Path, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Check that a resumed run has the model and the data that it was started with.

    Args:
        path: Checkpoint.
        before: Digests that it stores.
        now: Digests of the run that resumes it.

    Raises:
        CheckpointError: A content differs.
    """
    for key, kind in CONTENT_OF.items():
        if names := differing(before, now, kind):
            what = "robot's model" if kind == "model" else "recorded data"
            shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
            raise CheckpointError(
                f"{key}: the {what} differs from the one of {path} in {shown}: a resumed run needs the same; write its "
                f"{key}, or start a new run"
            )


def comparable(
    stored: Mapping[str, Any], settings: Mapping[str, Any], rates: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of a checkpoint and of the run that resumes it, in the words of today.

    Args:
        stored: Settings that the checkpoint stores.
        settings: Settings of the run.
        rates: Keys of hyper-parameters.

    Returns:
        The settings of both, in the order in which they are stored, then defaults for keys that
        one of them lacks. If the checkpoint stores only a part, other settings of the run are left
        out.
    """
    defaults = {name: key.default for name, key in run_keys().items() if key.stored != "never"}
    before, now = ({**one, **defaults, **one} for one in (stored, settings))
    if stores_a_part(stored):
        before = {key: value for key, value in _from_a_part(stored).items() if key in now}
        now = {key: value for key, value in now.items() if key in before or key in rates}
    elif before.get("algo") == now.get("algo"):
        before = {name: value for name, value in EARLIER.items() if name in now} | before
    for either in (before, now):
        if ARGUMENTS in either:  # a function and its path are written differently
            either[ARGUMENTS] = MAKE.sub(r"make=\1", either[ARGUMENTS])
            either[ARGUMENTS] = FILE.sub("", either[ARGUMENTS])
        if f"{MADE}env" in either:
            either[f"{MADE}env"] = either[f"{MADE}env"].rpartition(".")[2]
    return before, now


def _from_a_part(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that `jaxrl_fast.learn` stored until 0.2.0 by their keys of today."""
    renamed = {
        "env": f"{MADE}env",
        "env.arguments": ARGUMENTS,
        "algo": f"{MADE}algo",
        "algo.precision": "precision",
    }
    return {renamed.get(key, key): value for key, value in stored.items() if key not in COMPUTED}


def put_back(state: TrainState, resumed: Resumed, program: Program) -> TrainState:
    """Restore the state of a checkpoint on the devices of a program.

    Args:
        state: First state of the run.
        resumed: Checkpoint.
        program: Program of the run.

    Returns:
        The state.

    Raises:
        CheckpointError: Names, shapes or dtypes of the arrays differ from this run's.
    """
    arrays = with_metrics(state, resumed.arrays)
    restored = checkpoints.restore(state, resumed.description, arrays, resumed.new_rates)
    # Copied: a CPU device may use the memory of a NumPy array, and a chunk overwrites its
    # arguments.
    return hosts.copy(program.place(restored))


def with_metrics(state: TrainState, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Replace totals of metrics that a checkpoint lacks, or has of other metrics.

    The metrics of its running episodes are then left out, because their first steps are unknown.

    Args:
        state: First state of the run.
        arrays: Arrays of the checkpoint by name.

    Returns:
        Arrays by name.
    """
    leaves = jax.tree_util.tree_leaves_with_path(state)
    named = [
        (jax.tree_util.keystr(path, simple=True, separator="."), leaf) for path, leaf in leaves
    ]
    ours = {name: leaf for name, leaf in named if METRICS in name}
    others = {name: array for name, array in arrays.items() if METRICS not in name}
    if all(name in arrays and arrays[name].shape == leaf.shape for name, leaf in ours.items()):
        return others | {name: arrays[name] for name in ours}
    unknown = {name: NEVER if name.endswith(".count") else 0.0 for name in ours}
    return others | {
        name: np.full(leaf.shape, unknown[name], leaf.dtype) for name, leaf in ours.items()
    }


def begin_anew(state: TrainState, first: TrainState, graph: Graph, agent: BoundAgent) -> TrainState:
    """Start new episodes in the host environments of a resumed run; in replay, the old ones are
    truncated.

    Args:
        state: Restored state.
        first: First state of a run.
        graph: Graph of the run.
        agent: Algorithm bound to the environment.

    Returns:
        The state.
    """
    anew = {name: first.private[name] for name in tagged(graph, SAMPLING)}
    ended = {
        name: agent.experience.end_episodes(state.private[name]) for name in tagged(graph, REPLAY)
    }
    return state._replace(private={**state.private, **anew, **ended})


def end_episodes(state: TrainState, graph: Graph, agent: BoundAgent) -> tuple[TrainState, int]:
    """Truncate the running episodes of host environments that have been reset and stepped by
    others.

    Args:
        state: State after a tick.
        graph: Graph of the run.
        agent: Algorithm bound to the environment.

    Returns:
        The state, from which the next tick resets the environments, and the number of episodes.
    """
    (name,) = tagged(graph, SAMPLING)
    before = state.private[name]
    anew = before._replace(steps=before.steps * 0)
    number = int(np.sum(~np.asarray(before.first)))
    return begin_anew(state, state._replace(private={name: anew}), graph, agent), number
