"""What the autotuner varies, and the effect of each change on learning.

Samples per update and updates per sample stay constant: another number of environments also changes
the rollout length or, if a rollout is already a single step, the number of updates in a tick.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from math import log2
from typing import Any, NamedTuple

from jaxrl_fast import envs
from jaxrl_fast.commands.run_config import WORKER_ACTING, with_bridge
from jaxrl_fast.settings.machine import largest_divisor
from jaxrl_fast.settings.run import Run, flat_settings
from jaxrl_fast.settings.schema import written

KNOBS = ("num_envs", "placement", "devices", "pool", "updates_per_tick", "batch_size")
"""Settings that may be varied, in this order."""
ON_REQUEST = ("updates_per_tick", "batch_size")
"""Settings that are adopted only if the user names them, because they change learning."""
FREE = ("placement", "devices", "pool")
"""Settings that do not change learning."""
NO_EFFECT = "none: the same numbers but for rounding"
FIRST_WIDTH, MAX_WIDTH, MAX_HOST_WIDTH = 4, 65_536, 1024
PER_OCTAVE = (4, 5, 6, 7)
"""Widths from a power of two to the next, in quarters of it."""
MIN_ROLLOUT_STEPS = 8
"""Shortest on-policy rollout: advantages look no further ahead than a rollout."""
MIN_STEPS_PER_ENV = 100
"""Fewest steps of an environment in the whole run; wider candidates are not tried."""
BATCHES = (256, 1024, 4096, 8192)


class Candidate(NamedTuple):
    """A variation of a run.

    Attributes:
        knob: Setting, one of `KNOBS`.
        value: Its value.
        run: The run with this value.
        effect: Effect on learning, in a sentence.
    """

    knob: str
    value: Any
    run: Run
    effect: str


def widths(
    requested: Run, *, learns: bool, max_num_envs: int | None = None
) -> tuple[list[int], list[str]]:
    """Return the widths to try.

    They are about four between a power of two and the next, from a fraction of the run's width
    (divided by a power of four) up to the limit.

    Args:
        requested: Run.
        learns: Whether to return only widths that preserve samples per update and updates per
            sample.
        max_num_envs: Largest width; None for the default limit.

    Returns:
        Widths in order, and a message for each reason that excludes others.
    """
    width, notes = requested.num_envs, []
    limit = max_num_envs or (MAX_HOST_WIDTH if envs.is_host(requested.env) else MAX_WIDTH)
    steps_limit = requested.total_steps // MIN_STEPS_PER_ENV
    if learns and steps_limit < limit:
        limit = steps_limit
        notes.append(
            f"no more than {max(limit, width):,} environments: each would take fewer than {MIN_STEPS_PER_ENV} of the "
            f"run's {requested.total_steps:,} steps"
        )
    if (
        learns
        and _on_policy(requested)
        and _samples(requested) // _least_rollout(requested) < limit
    ):
        limit = _samples(requested) // _least_rollout(requested)
        notes.append(
            f"no more than {max(limit, width):,} environments: rollouts would be under "
            f"{_least_rollout(requested)} steps"
        )
    first = (
        width / 4.0 ** max(0, int(log2(width / FIRST_WIDTH) / 2)) if width > FIRST_WIDTH else width
    )
    legal, left_out = {width}, []
    for nominal in _round_numbers(first, max(limit, width)):
        near = next(
            (
                w
                for w in _around(nominal, min(first, width), max(limit, width))
                if fits(requested, w, learns)
            ),
            None,
        )
        if near is None:
            left_out.append(nominal)
        else:
            legal.add(near)
    if left_out:
        notes.append(
            f"excluded, because they change the samples per update: {', '.join(map(str, left_out))}"
        )
    return sorted(legal), notes


def at_width(requested: Run, width: int, *, learns: bool = True) -> Candidate:
    """Return a run with another width, and the rollout length and updates that preserve samples and
    updates.

    Args:
        requested: Run.
        width: Number of environments.
        learns: Whether samples per update and updates per sample must be preserved.

    Returns:
        The candidate.

    Raises:
        ValueError: No rollout length preserves them.
    """
    if not fits(requested, width, learns):
        raise ValueError(
            f"num_envs={width} changes the {_samples(requested):,} samples per update: write another number"
        )
    length = max(1, _samples(requested) // width)
    options = {**requested.algo_options, "rollout_length": length}
    if not _on_policy(requested):
        options["updates_per_tick"] = max(
            1, requested.algo_options["updates_per_tick"] * width * length // _samples(requested)
        )
    if not learns and _on_policy(requested):
        options["num_minibatches"] = 1  # without updates every width is possible
    elif not learns:
        options["buffer_size"] = max(
            options["buffer_size"], 2 * width * (length + options.get("n_step", 1))
        )
    run = dataclasses.replace(requested, num_envs=width, algo_options=options)
    effect = _width_effect(requested, run) if learns else "none: there are no updates"
    return Candidate("num_envs", width, run, effect)


def fits(requested: Run, width: int, learns: bool) -> bool:
    """Return whether a width preserves the samples per update and is divisible into the groups of a
    pool.

    Args:
        requested: Run.
        width: Number of environments.
        learns: Whether samples per update and updates per sample must be preserved.

    Returns:
        True if it is possible.
    """
    length = max(1, _samples(requested) // width)
    if envs.is_host(requested.env):
        size, rest = divmod(width, requested.pool["num_groups"])
        if rest or (requested.pool["workers"] or 0) > size:
            return False
    if not learns:
        return True
    if not _on_policy(requested):
        return (
            requested.algo_options["updates_per_tick"] * width * length % _samples(requested) == 0
        )
    sequences_fit = (
        not requested.algo_options.get("recurrent_size")
        or width % requested.algo_options["num_minibatches"] == 0
    )
    return (
        width * length == _samples(requested)
        and length >= _least_rollout(requested)
        and sequences_fit
    )


def placement_choices(run: Run, devices: int) -> Iterator[Candidate]:
    """List the other placements that can run work at the same time.

    Args:
        run: Run.
        devices: Number of devices, of which as many are used as divide the environments.

    Returns:
        Candidates.
    """
    host, even = envs.is_host(run.env), largest_divisor(run.num_envs, devices)
    names = {"fused": 1}
    if even > 1 and not host:
        names |= {"sharded_sampling": even, "data_parallel": even}
    if devices > 1 and run.overlap in ("actor_critic", "all") and not host:
        names["actor_critic"] = 2
    if devices > 1 and run.overlap in ("sampling", "all"):
        names["sampler_learner"] = 2 if host else devices
    if (
        host
        and run.pool["backend"] == "workers"
        and run.pool["order"] == "fixed"
        and _long_rollouts(run)
    ):
        names[WORKER_ACTING] = 1
    if devices > 1 and run.learners > 1 and not host:
        names["parameter_server"] = devices
    for name, count in names.items():
        if (name, count) != (run.placement, run.devices):
            placed = with_bridge(dataclasses.replace(run, placement=name, devices=count))
            yield Candidate("placement", name, placed, NO_EFFECT)


def _long_rollouts(run: Run) -> bool:
    return (run.algo_options.get("rollout_length") or 0) > 1


def device_counts(run: Run, devices: int) -> Iterator[Candidate]:
    """List other numbers of devices for the run's placement, if it supports any number.

    Args:
        run: Run.
        devices: Number of devices.

    Returns:
        Candidates.
    """
    if run.placement not in (
        "sharded_sampling",
        "data_parallel",
        "sampler_learner",
        "parameter_server",
    ):
        return
    count = devices
    while count > 1:
        if count != run.devices and run.num_envs % count == 0:
            yield Candidate("devices", count, dataclasses.replace(run, devices=count), NO_EFFECT)
        count //= 2


def pools(run: Run, cores: int) -> Iterator[Candidate]:
    """List other numbers of worker processes, each with a share of a group's environments.

    Args:
        run: Run.
        cores: Number of cores.

    Returns:
        Candidates; none for compiled environments.
    """
    if not envs.is_host(run.env) or run.pool["backend"] != "workers":
        return
    size = run.num_envs // (1 if run.pool["bridge"] == "worker" else run.pool["num_groups"])
    for workers in sorted(
        {0, 1, *(cores >> shift for shift in range(cores.bit_length())), 2 * cores}
    ):
        if workers <= size and workers != run.pool["workers"]:
            share = (
                f"{-(-size // workers)} environments of a group to a worker"
                if workers
                else "in the main process"
            )
            changed = dataclasses.replace(run, pool={**run.pool, "workers": workers})
            yield Candidate(
                "pool", workers, changed, f"none: {share}; a seed gives the same numbers"
            )


def bursts(run: Run) -> Iterator[Candidate]:
    """List longer rollouts with proportionally more updates after them.

    Args:
        run: Run.

    Returns:
        Candidates; none for on-policy algorithms.
    """
    if _on_policy(run):
        return
    for factor in (2, 4):
        length, updates = (
            factor * run.algo_options[name] for name in ("rollout_length", "updates_per_tick")
        )
        options = {**run.algo_options, "rollout_length": length, "updates_per_tick": updates}
        changed = dataclasses.replace(run, algo_options=options)
        effect = f"same updates per step; {_age(run, changed)}"
        yield Candidate("updates_per_tick", updates, changed, effect)


def batch_sizes(run: Run, sizes: Sequence[int] = BATCHES) -> Iterator[Candidate]:
    """List other batch sizes. Learning rates are unchanged, although a larger batch often requires
    another.

    Args:
        run: Run.
        sizes: Batch sizes.

    Returns:
        Candidates.
    """
    for size in sizes:
        options = dict(run.algo_options)
        if not _on_policy(run):
            options["batch_size"] = size
            fits_in = size <= options["buffer_size"]
        else:
            options["num_minibatches"] = max(1, _samples(run) // size)
            fits_in = options["num_minibatches"] * size == _samples(run) and not options.get(
                "recurrent_size"
            )
        if fits_in and size != batch_size(run):
            effect = f"changes learning: an update averages {size:,} samples instead of {batch_size(run):,}"
            yield Candidate(
                "batch_size", size, dataclasses.replace(run, algo_options=options), effect
            )


def batch_size(run: Run) -> int:
    """Return the samples of a gradient update.

    Args:
        run: Run.

    Returns:
        Number of samples.
    """
    options = run.algo_options
    return _samples(run) // options["num_minibatches"] if _on_policy(run) else options["batch_size"]


def words(requested: Run, run: Run) -> list[str]:
    """Return the arguments that change one run into another.

    Args:
        requested: Run.
        run: The other run.

    Returns:
        Arguments ``key=value``.
    """
    before, after = flat_settings(requested), flat_settings(run)
    return [f"{key}={written(value)}" for key, value in after.items() if before.get(key) != value]


def check_sizes(run: Run) -> None:
    """Check that a run's algorithm has the sizes that a sweep varies; a user's need not have them.

    Args:
        run: Run.

    Raises:
        ValueError: One is missing.
    """
    needed = ("num_minibatches",) if _on_policy(run) else ("batch_size", "buffer_size")
    if missing := [name for name in ("rollout_length", *needed) if not run.algo_options.get(name)]:
        raise ValueError(
            f"autotune varies {' and '.join(missing)}, which algo.make={run.algo} has not: give the factory whole "
            f"numbers of {'this name' if len(missing) == 1 else 'these names'}"
        )


def _on_policy(run: Run) -> bool:
    return "updates_per_tick" not in run.algo_options


def _samples(run: Run) -> int:
    """Return the environment steps of a tick."""
    return run.num_envs * run.algo_options["rollout_length"]


def _least_rollout(run: Run) -> int:
    return min(MIN_ROLLOUT_STEPS, run.algo_options["rollout_length"])


def _width_effect(requested: Run, run: Run) -> str:
    if run.num_envs == requested.num_envs:
        return "none: the requested width"
    before, after = (r.algo_options["rollout_length"] for r in (requested, run))
    if _on_policy(run):
        text = f"same samples per update and updates per step; advantages over {after} steps instead of {before}"
    elif run.algo_options["updates_per_tick"] == requested.algo_options["updates_per_tick"]:
        text = f"same updates per step, in the same bursts; rollouts of {after} steps instead of {before}"
    else:
        text = f"same updates per step; {_age(requested, run)}"
    changed, other = (r.total_steps // r.num_envs for r in (run, requested))
    return f"{text}; each environment takes {changed:,} steps of the run instead of {other:,}"


def _age(before: Run, after: Run) -> str:
    old, new = (run.algo_options["updates_per_tick"] for run in (before, after))
    return f"sampling uses parameters up to {new} updates old instead of {old}"


def _round_numbers(first: float, last: int) -> list[int]:
    numbers = {
        2**k * part // 4
        for k in range(last.bit_length() + 1)
        for part in PER_OCTAVE
        if 2**k * part % 4 == 0
    }
    return sorted(number for number in numbers if first <= number <= last)


def _around(nominal: int, first: float, last: int) -> list[int]:
    """Return the whole numbers within an eighth of an octave of ``nominal``, the nearest first."""
    near = range(max(1, round(nominal / 2**0.125)), round(nominal * 2**0.125) + 1)
    return sorted((w for w in near if first <= w <= last), key=lambda w: (abs(w - nominal), w))
