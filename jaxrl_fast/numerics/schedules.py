"""Schedules: rates that change over a run. A schedule is a value, so it can be swept and stored like a number."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Linear(NamedTuple):
    """A straight line from ``start`` to ``end``, reached when the share ``until`` (0 to 1) of the run is over."""

    start: Any
    end: Any
    until: Any = 1.0


class Cosine(NamedTuple):
    """Half a cosine wave from ``start`` to ``end``, reached when the share ``until`` (0 to 1) of the run is over."""

    start: Any
    end: Any
    until: Any = 1.0


Schedule = Linear | Cosine
SCHEDULES: dict[str, type[Linear] | type[Cosine]] = {"linear": Linear, "cosine": Cosine}


def value_at(rate: Any, progress: jax.Array) -> jax.Array:
    """The value of a number or schedule at ``progress`` in [0, 1]."""
    if isinstance(rate, Schedule):
        progress = jnp.minimum(progress / rate.until, 1.0)
    if isinstance(rate, Linear):
        return rate.start + (rate.end - rate.start) * progress
    if isinstance(rate, Cosine):
        return rate.end + (rate.start - rate.end) * 0.5 * (1.0 + jnp.cos(jnp.pi * progress))
    return rate


def resolve(hyper: Any, progress: jax.Array) -> Any:
    """Every rate of a NamedTuple of rates at ``progress``."""
    return type(hyper)(*(value_at(rate, progress) for rate in hyper))


def at_start(hyper: Any) -> Any:
    """Every rate of a NamedTuple of rates as a run begins, without computing anything."""
    return type(hyper)(*(rate.start if isinstance(rate, Schedule) else rate for rate in hyper))


def has_schedule(hyper: Any) -> bool:
    """Whether any rate depends on progress."""
    return any(isinstance(rate, Schedule) for rate in hyper)


def plain(value: Any) -> Any:
    """A value as a config file holds it: schedules as text, tuples as lists."""
    if isinstance(value, Schedule):
        name = next(name for name, schedule in SCHEDULES.items() if isinstance(value, schedule))
        numbers = value if value.until != 1.0 else value[:2]
        return ":".join([name, *(repr(float(number)) for number in numbers)])
    return [plain(v) for v in value] if isinstance(value, tuple) else value
