"""Optimizers by name, schedules of their rates, and the norm by which gradients are clipped."""

from collections.abc import Callable
from functools import reduce
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax

from jaxrl_fast.core import PyTree

SLICES, FEW = 16, 2**12
"""On a CPU an array of more than `FEW` numbers is added up as so many slices: the sum of 65,536 squares takes XLA's
program 50 microseconds, and 5 where slices are added (2 cores, AMD EPYC of family 26, JAX 0.10.2)."""


def global_norm(tree: PyTree) -> jax.Array:
    """The Euclidean norm of all numbers in ``tree``; a scalar, 0 without any."""
    return jnp.sqrt(sum((_sum_of_squares(leaf) for leaf in jax.tree.leaves(tree)), start=jnp.zeros(())))


def _sum_of_squares(array: jax.Array) -> jax.Array:
    if array.size <= FEW:
        return _at_once(array)
    return jax.lax.platform_dependent(array, cpu=_by_slices, default=_at_once)


def _at_once(array: jax.Array) -> jax.Array:
    return jnp.sum(jnp.square(array))


def _by_slices(array: jax.Array) -> jax.Array:
    flat, length = array.ravel(), array.size // SLICES
    slices = (jnp.square(flat[i * length : (i + 1) * length]) for i in range(SLICES))
    return jnp.sum(reduce(jnp.add, slices)) + jnp.sum(jnp.square(flat[SLICES * length :]))


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


Rate = jax.Array | float
"""A number at one tick, after schedules."""
OptimizerName = Literal["adam", "adamw", "radam", "rmsprop"]
OPTIMIZERS: dict[str, Callable[..., optax.GradientTransformation]] = dict(
    adam=optax.adam, adamw=optax.adamw, radam=optax.radam, rmsprop=optax.rmsprop
)


class MakeOptimizer(Protocol):
    """Makes the optimizer of one network."""

    def __call__(self, hyper: Any, /) -> optax.GradientTransformation:
        """``hyper``: the rates of this tick. The shapes of the optimizer's state must not depend on their values."""


PickRate = Callable[[Any], Rate]
"""(hyper of this tick) -> a learning rate."""


class NamedOptimizer(NamedTuple):
    """One of `OPTIMIZERS` by its ``name``, behind a clip; all treat every number by itself. ``rate`` picks the learning
    rate."""

    name: OptimizerName
    rate: PickRate

    def __call__(self, hyper: Any) -> optax.GradientTransformation:
        """As `MakeOptimizer`."""
        options = {"weight_decay": hyper.weight_decay} if self.name == "adamw" else {}
        return optax.chain(clip_by_global_norm(hyper.max_grad_norm), OPTIMIZERS[self.name](self.rate(hyper), **options))


def make_optimizer(name: OptimizerName, *, rate: PickRate = lambda hyper: hyper.learning_rate) -> NamedOptimizer:
    """optax's optimizer ``name``, with the learning rate that ``rate`` picks, behind a clip to the global norm
    ``hyper.max_grad_norm``; AdamW decays weights by ``hyper.weight_decay``."""
    return NamedOptimizer(name, rate)


def check_optimizer(name: str, weight_decay: Any) -> None:
    """Check that an optimizer exists, and that it uses the weight decay.

    Raises:
        ValueError: with what to write instead.
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"optimizer={name}: write one of {', '.join(OPTIMIZERS)}")
    if name != "adamw" and weight_decay != 0.0:
        raise ValueError(f"optimizer={name} has no weight decay: write optimizer=adamw, or leave weight_decay out")


def clip_by_global_norm(max_norm: Rate) -> optax.GradientTransformation:
    """As optax's, but faster: one factor for all numbers, where optax divides, multiplies and selects for each."""

    def clip(grads: Any, params: Any) -> Any:
        scale = jnp.minimum(1.0, max_norm / jnp.maximum(global_norm(grads), 1e-8))
        return jax.tree.map(lambda g: g * scale, grads)

    return optax.stateless(clip)
