"""What the adapters share: calling physics written by others from code that is stricter than theirs."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from jaxrl_fast.core import PyTree

P = ParamSpec("P")
R = TypeVar("R")


def relaxed(function: Callable[P, R]) -> Callable[P, R]:
    """Let others' code promote ranks and dtypes implicitly; our own runs with that forbidden."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            return function(*args, **kwargs)

    return call


def settled(tree: PyTree) -> PyTree:
    """Every leaf as an array whose dtype no longer follows what it is combined with."""

    def settle(x: Any) -> jax.Array:
        x = jnp.asarray(x)
        return jnp.asarray(x, x.dtype)

    return jax.tree.map(settle, tree)


def like(tree: PyTree, before: PyTree) -> PyTree:
    """Some worlds step to other dtypes than they reset with, which a scan cannot carry."""
    return jax.tree.map(lambda x, old: jnp.asarray(x, old.dtype), tree, before)
