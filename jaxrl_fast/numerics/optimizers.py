"""Named optimizers, schedules of hyper-parameters, and gradient clipping by the global norm."""

from collections.abc import Callable
from functools import reduce
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax

from jaxrl_fast.core import PyTree

SLICES, FEW = 16, 2**12
"""On a CPU, an array of more than `FEW` numbers is summed in `SLICES` slices. Summing 65,536 squares takes 5
microseconds in slices and 50 without (2 cores, AMD EPYC of family 26, JAX 0.10.2)."""


def global_norm(tree: PyTree) -> jax.Array:
    """Compute the Euclidean norm of all numbers of a pytree.

    Args:
        tree: Arrays.

    Returns:
        A scalar; 0 for an empty tree.
    """
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
    """Linear schedule.

    Attributes:
        start: Value at the start of the run.
        end: Final value.
        until: Share of the run (0 to 1) after which ``end`` is reached.
    """

    start: Any
    end: Any
    until: Any = 1.0


class Cosine(NamedTuple):
    """Schedule along half a cosine wave.

    Attributes:
        start: Value at the start of the run.
        end: Final value.
        until: Share of the run (0 to 1) after which ``end`` is reached.
    """

    start: Any
    end: Any
    until: Any = 1.0


Schedule = Linear | Cosine
SCHEDULES: dict[str, type[Linear] | type[Cosine]] = {"linear": Linear, "cosine": Cosine}


def value_at(rate: Any, progress: jax.Array) -> jax.Array:
    """Evaluate a number or schedule.

    Args:
        rate: Number or schedule.
        progress: Share of the run that is over, in [0, 1].

    Returns:
        The value.
    """
    if isinstance(rate, Schedule):
        progress = jnp.minimum(progress / rate.until, 1.0)
    if isinstance(rate, Linear):
        return rate.start + (rate.end - rate.start) * progress
    if isinstance(rate, Cosine):
        return rate.end + (rate.start - rate.end) * 0.5 * (1.0 + jnp.cos(jnp.pi * progress))
    return rate


def resolve(hyper: Any, progress: jax.Array) -> Any:
    """Evaluate every schedule of a NamedTuple of hyper-parameters.

    Args:
        hyper: Numbers or schedules.
        progress: Share of the run that is over, in [0, 1].

    Returns:
        A NamedTuple of the same type with values.
    """
    return type(hyper)(*(value_at(rate, progress) for rate in hyper))


def at_start(hyper: Any) -> Any:
    """Return every hyper-parameter's value at the start of a run, without computing on a device.

    Args:
        hyper: NamedTuple of numbers or schedules.

    Returns:
        A NamedTuple of the same type with values.
    """
    return type(hyper)(*(rate.start if isinstance(rate, Schedule) else rate for rate in hyper))


def has_schedule(hyper: Any) -> bool:
    """Return whether any hyper-parameter is a schedule.

    Args:
        hyper: NamedTuple of numbers or schedules.

    Returns:
        True if a value depends on progress.
    """
    return any(isinstance(rate, Schedule) for rate in hyper)


def plain(value: Any) -> Any:
    """Convert a value to the form of a config file: schedules as text, tuples as lists.

    Args:
        value: Number, text, schedule or tuple.

    Returns:
        The plain value.
    """
    if isinstance(value, Schedule):
        name = next(name for name, schedule in SCHEDULES.items() if isinstance(value, schedule))
        numbers = value if value.until != 1.0 else value[:2]
        return ":".join([name, *(repr(float(number)) for number in numbers)])
    return [plain(v) for v in value] if isinstance(value, tuple) else value


Rate = jax.Array | float
"""Value of a hyper-parameter at one tick, with schedules evaluated."""
OptimizerName = Literal["adam", "adamw", "radam", "rmsprop"]
OPTIMIZERS: dict[str, Callable[..., optax.GradientTransformation]] = dict(
    adam=optax.adam, adamw=optax.adamw, radam=optax.radam, rmsprop=optax.rmsprop
)


class MakeOptimizer(Protocol):
    """Factory of one network's optimizer."""

    def __call__(self, hyper: Any, /) -> optax.GradientTransformation:
        """Build the optimizer.

        Args:
            hyper: Hyper-parameters of this tick. The shapes of the optimizer's state must not depend on their values.

        Returns:
            An optax optimizer.
        """


PickRate = Callable[[Any], Rate]
"""(hyper-parameters of this tick) -> learning rate."""


class NamedOptimizer(NamedTuple):
    """Factory of one of `OPTIMIZERS` after clipping of gradients; all of them treat each number separately.

    Attributes:
        name: Name of the optimizer.
        rate: Function that picks the learning rate of the hyper-parameters.
    """

    name: OptimizerName
    rate: PickRate

    def __call__(self, hyper: Any) -> optax.GradientTransformation:
        """Build the optimizer, as in `MakeOptimizer`."""
        options = {"weight_decay": hyper.weight_decay} if self.name == "adamw" else {}
        return optax.chain(clip_by_global_norm(hyper.max_grad_norm), OPTIMIZERS[self.name](self.rate(hyper), **options))


def make_optimizer(name: OptimizerName, *, rate: PickRate = lambda hyper: hyper.learning_rate) -> NamedOptimizer:
    """Return a factory of an optax optimizer after clipping to the global norm ``hyper.max_grad_norm``.

    AdamW decays weights by ``hyper.weight_decay``.

    Args:
        name: Name in `OPTIMIZERS`.
        rate: Function that picks the learning rate of the hyper-parameters.

    Returns:
        The factory.
    """
    return NamedOptimizer(name, rate)


def check_optimizer(name: str, weight_decay: Any) -> None:
    """Check that an optimizer exists and supports the weight decay.

    Args:
        name: Name in `OPTIMIZERS`.
        weight_decay: Number or schedule; only AdamW supports values other than 0.

    Raises:
        ValueError: The name is not in `OPTIMIZERS`, or the optimizer has no weight decay.
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"optimizer={name}: write one of {', '.join(OPTIMIZERS)}")
    if name != "adamw" and weight_decay != 0.0:
        raise ValueError(f"optimizer={name} has no weight decay: write optimizer=adamw, or leave weight_decay out")


def clip_by_global_norm(max_norm: Rate) -> optax.GradientTransformation:
    """Return a gradient transformation like optax's `clip_by_global_norm`, but faster.

    It multiplies all numbers by one factor, where optax divides, multiplies and selects for each number.

    Args:
        max_norm: Largest norm of the gradients.

    Returns:
        The gradient transformation.
    """

    def clip(grads: Any, params: Any) -> Any:
        scale = jnp.minimum(1.0, max_norm / jnp.maximum(global_norm(grads), 1e-8))
        return jax.tree.map(lambda g: g * scale, grads)

    return optax.stateless(clip)
