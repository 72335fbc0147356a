"""What the adapters share: calling other libraries' environments, whose code is laxer about dtypes than JAX here, and
importing them without all that they import."""

import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
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


def import_later(*names: str) -> None:
    """Let imports of these modules load them only when something of them is used: another library imports them at its
    top, for functions that few call. (`importlib.util.LazyLoader` of Python 3.11 loads at the second import.)"""
    for name in names:
        spec = None if name in sys.modules else find_spec(name)
        if spec is not None:
            module = sys.modules[name] = _Later(name)
            module.__spec__ = spec


class _Later(ModuleType):
    """A module that becomes another of its name as soon as something of it is asked for."""

    def __getattr__(self, attribute: str) -> Any:
        name = self.__name__
        if sys.modules.get(name) is self:
            del sys.modules[name]
        module = import_module(name)
        self.__dict__.update(module.__dict__)
        return getattr(module, attribute)
