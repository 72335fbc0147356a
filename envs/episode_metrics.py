"""Metrics of an environment over its episodes: their kinds, and their totals. No JAX, because
workers import it.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

NO_KINDS: dict[str, str] = {}
"""Declaration of an environment without metrics."""
KINDS = ("mean", "sum", "last", "max")
"""What one number of an episode is: mean, sum or maximum over its steps, or the value of its last
step.
"""
NEVER = -1e9
"""Count of an episode that no step can make positive: it began in a run that did not measure it."""


class MetricTotals(NamedTuple):
    """Totals of running episodes, of ``K`` metrics in the order of their declaration. All numbers
    are finite.

    Attributes:
        total: Sums, maxima or last values so far, float32 ``[E, K]``.
        count: Number of steps with a value so far; of a last value 1 or 0. Float32 ``[E, K]``.
    """

    total: Any
    count: Any


class WrongMetrics(ValueError):
    """Metrics are declared that an environment does not have, or of an unknown kind."""


def chosen(kinds: Mapping[str, str], wanted: Mapping[str, str] | None, name: str) -> dict[str, str]:
    """Select the metrics to report.

    Args:
        kinds: Kinds of all metrics of the environment, by name.
        wanted: Kinds of the selected metrics, None for all.
        name: Name of the environment in error messages.

    Returns:
        Kinds by name.

    Raises:
        WrongMetrics: A metric is unknown.
    """
    if wanted is None:
        return dict(kinds)
    check_kinds(wanted, name)
    if strange := [metric for metric in wanted if metric not in kinds]:
        raise WrongMetrics(
            f"{name} has no metric '{strange[0]}': write some of {', '.join(kinds) or 'none'}"
        )
    return dict(wanted)


def check_kinds(kinds: Any, name: str) -> None:
    """Check a declaration of metrics.

    Args:
        kinds: Kind of each metric by name.
        name: Name of the environment in error messages.

    Raises:
        WrongMetrics: It is no dictionary of names and `KINDS`.
    """
    if not isinstance(kinds, Mapping) or not all(
        isinstance(metric, str) and metric for metric in kinds
    ):
        raise WrongMetrics(
            f"{name}: its metrics are {kinds!r}: write kinds by name, such as {{'distance': 'last'}}"
        )
    for metric, kind in kinds.items():
        if kind not in KINDS:
            raise WrongMetrics(
                f"{name}: metric '{metric}' is of kind {kind!r}: write one of {', '.join(KINDS)}"
            )


def check_names(kinds: Mapping[str, str], metrics: Any, name: str) -> None:
    """Check that a step reports the declared metrics.

    Args:
        kinds: Kind of each metric by name.
        metrics: ``Timestep.metrics`` of one environment.
        name: Name of the environment in error messages.

    Raises:
        WrongMetrics: Other metrics, or a metric that is no number.
    """
    check_kinds(kinds, name)
    reported: Mapping[str, Any] = metrics or {}
    if set(reported) != set(kinds):
        declared = {metric: kinds.get(metric, "mean") for metric in reported}
        raise WrongMetrics(
            f"{name}: step gives the metrics {sorted(reported)}, and its spec declares {sorted(kinds)}: write "
            f"EnvSpec(metrics={declared}), and give them in every Timestep"
        )
    for metric, value in reported.items():
        if (
            np.shape(value) != ()
            or getattr(value, "dtype", np.dtype(type(value))).kind not in "fiub"
        ):
            raise WrongMetrics(
                f"{name}: metric '{metric}' has shape {list(np.shape(value))}: write one number"
            )


def is_number(value: Any) -> bool:
    """Check whether an entry of ``info`` is one number or bool.

    Args:
        value: Any value.

    Returns:
        True for scalars of Python and NumPy, also in arrays of one element.
    """
    if isinstance(value, np.ndarray):
        return value.size == 1 and value.dtype.kind in "fiub"
    return isinstance(value, bool | int | float | np.bool_ | np.integer | np.floating)


def number_of(value: Any) -> float:
    """Convert an entry of ``info``.

    Args:
        value: Any value.

    Returns:
        The number; NaN if it is none, infinity if a float does not hold it.
    """
    if not is_number(value):
        return np.nan
    try:
        return float(value.item() if isinstance(value, np.ndarray) else value)
    except OverflowError:
        return np.inf


def no_metrics(kinds: Mapping[str, str], num_envs: int, xp: Any = np) -> MetricTotals:
    """Return the totals of episodes that start.

    Args:
        kinds: Kind of each metric by name.
        num_envs: Number of environments.
        xp: NumPy, or JAX's.

    Returns:
        Zeros ``[E, K]``.
    """
    shape = num_envs, len(kinds)
    return MetricTotals(total=xp.zeros(shape, np.float32), count=xp.zeros(shape, np.float32))


def add_metrics(
    kinds: Mapping[str, str], before: MetricTotals, values: Any, xp: Any = np
) -> MetricTotals:
    """Add a step to the totals.

    Args:
        kinds: Kind of each metric by name.
        before: Totals before the step.
        values: Values of the step, float32 ``[E, K]``; NaN where there is none.
        xp: NumPy, or JAX's.

    Returns:
        Totals after the step.
    """
    (total, count), reported = before, ~xp.isnan(values)
    counted = xp.where(reported, values, np.float32(0.0))
    added, number = total + counted, count + reported
    if "max" in kinds.values():
        larger = xp.where(reported & ((count <= 0.0) | (counted > total)), counted, total)
        added = xp.where(_are(kinds, "max", 2), larger, added)
    if "last" in kinds.values():
        last = _are(kinds, "last", 2)
        added, number = (
            xp.where(last, counted, added),
            xp.where(last, reported.astype(np.float32), number),
        )
    return MetricTotals(added, number)


def add_steps(kinds: Mapping[str, str], before: MetricTotals, values: np.ndarray) -> MetricTotals:
    """Add consecutive steps of one episode to its totals, as `add_metrics` does one by one.

    Args:
        kinds: Kind of each metric by name.
        before: Totals before the steps, ``[K]`` or ``[1, K]``.
        values: Values of the steps, float32 ``[n, K]``; NaN where there is none.

    Returns:
        Totals after the steps, likewise.
    """
    (total, count), reported = before, ~np.isnan(values)
    counted, number = (
        np.where(reported, values, np.float32(0.0)),
        count + reported.sum(axis=0, dtype=np.float32),
    )
    largest = np.where(reported, values, -np.inf).max(axis=0)
    largest = np.where(count > 0.0, np.maximum(total, largest), largest)
    last, is_max = _are(kinds, "last", 1), _are(kinds, "max", 1) & (number > 0.0)
    added = np.where(is_max, largest, total + counted.sum(axis=0))
    total = np.where(last, counted[-1], added).astype(np.float32)
    return MetricTotals(total, np.where(last, reported[-1], number).astype(np.float32))


def values_of(kinds: Mapping[str, str], totals: MetricTotals, xp: Any = np) -> Any:
    """Compute the metrics of episodes.

    Args:
        kinds: Kind of each metric by name.
        totals: Totals, ``[..., K]``.
        xp: NumPy, or JAX's.

    Returns:
        Float32 ``[..., K]``; NaN without a step with a value.
    """
    total, count = totals
    means = xp.where(
        _are(kinds, "mean", total.ndim), total / xp.maximum(count, np.float32(1.0)), total
    )
    return xp.where(count > 0.0, means, np.float32(np.nan))


def of_values(values: Any, xp: Any = np) -> MetricTotals:
    """Return totals with given values, the inverse of `values_of`.

    Args:
        values: Metrics of episodes, float32 ``[..., K]``; NaN where there is none.
        xp: NumPy, or JAX's.

    Returns:
        Totals ``[..., K]``.
    """
    reported = ~xp.isnan(values)
    return MetricTotals(xp.where(reported, values, np.float32(0.0)), reported.astype(np.float32))


def by_metric(kinds: Iterable[str], values: Any) -> dict[str, Any]:
    """Split metrics by name.

    Args:
        kinds: Names of the metrics, in order.
        values: Values, ``[..., K]``.

    Returns:
        Values ``[...]`` by name.
    """
    return {name: values[..., k] for k, name in enumerate(kinds)}


METRIC = "env/"
"""Begin of the names of metrics in the tables of a run."""
SUM, EPISODES = "_sum", "_episodes"
"""Ends of the names in `metric_sums`."""


def column_of(name: str) -> str:
    """Return the column of a metric in the tables of a run.

    Args:
        name: Name of the metric.

    Returns:
        The name of the column.
    """
    return f"{METRIC}{name}"


def metric_sums(
    kinds: Iterable[str], done: Any, values: Any, axes: tuple[int, int], xp: Any = np
) -> dict[str, Any]:
    """Sum metrics over the episodes that ended in a rollout. Values that are not finite are left
    out.

    Args:
        kinds: Names of the metrics, in order.
        done: Whether an episode ended, bool ``[T, E]``, or with more leading axes.
        values: Metrics of the episodes so far, ``[T, E, K]`` likewise.
        axes: Axes of ``T`` and ``E``.
        xp: NumPy, or JAX's.

    Returns:
        Sum and number of episodes of each metric, by column.
    """
    reported = done[..., None] & xp.isfinite(values)
    sums = by_metric(kinds, xp.where(reported, values, np.float32(0.0)).sum(axes, dtype=np.float32))
    numbers = by_metric(kinds, reported.sum(axes, dtype=np.int32))
    named = {f"{column_of(name)}{SUM}": value for name, value in sums.items()}
    return named | {f"{column_of(name)}{EPISODES}": value for name, value in numbers.items()}


def metric_means(metrics: Mapping[str, Any], fragment: str) -> dict[str, float | None]:
    """Compute the means of metrics over the ended episodes of a chunk.

    Args:
        metrics: Results of `metric_sums` of all seeds and ticks, by ``fragment/name``, among
            others.
        fragment: Name of the fragment that samples.

    Returns:
        Means by column; None without an episode.
    """
    ours = [
        name.removesuffix(SUM)
        for name in metrics
        if name.startswith(f"{fragment}/{METRIC}") and name.endswith(SUM)
    ]
    sums = {
        name: (metrics[f"{name}{SUM}"].sum(), metrics[f"{name}{EPISODES}"].sum()) for name in ours
    }
    return {
        name.removeprefix(f"{fragment}/"): float(a / b) if b else None
        for name, (a, b) in sums.items()
    }


def mean_of_finite(values: Any) -> float | None:
    """Compute the mean of the values that are finite.

    Args:
        values: Values of any shape.

    Returns:
        The mean; None without a finite value.
    """
    finite = np.asarray(values, np.float64)[np.isfinite(values)]
    return float(finite.mean()) if finite.size else None


def _are(kinds: Mapping[str, str], kind: str, ndim: int) -> np.ndarray:
    """Return which metrics are of a kind, bool ``[1, ..., K]`` of ``ndim`` axes."""
    return np.array([declared == kind for declared in kinds.values()], bool).reshape(
        (1,) * (ndim - 1) + (-1,)
    )
