"""Optimizers: optax's, by name, each behind a clip of the gradients' global norm."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax

from jaxrl_fast.numerics.norms import global_norm

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
