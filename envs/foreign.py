"""What the adapters share: calling other libraries' environments, whose code is laxer about dtypes than JAX here."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from jaxrl_fast.core import PyTree

P = ParamSpec("P")
R = TypeVar("R")


def relaxed(function: Callable[P, R]) -> Callable[P, R]:
    """Let ``function`` promote ranks and dtypes implicitly, which may be forbidden elsewhere."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            return function(*args, **kwargs)

    return call


def settled(tree: PyTree) -> PyTree:
    """Every leaf as an array of a definite (not weak) dtype."""

    def settle(x: Any) -> jax.Array:
        x = jnp.asarray(x)
        return jnp.asarray(x, x.dtype)

    return jax.tree.map(settle, tree)


def like(tree: PyTree, before: PyTree) -> PyTree:
    """``tree`` with the dtypes of ``before``: some environments change them between reset and step, which a scan cannot
    carry."""
    return jax.tree.map(lambda x, old: jnp.asarray(x, old.dtype), tree, before)
