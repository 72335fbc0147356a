"""Utilities of the adapters: relaxed dtype promotion, fixed dtypes, wrappers, and imports that are
postponed.
"""

import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import Actions, Box, Discrete, MultiDiscrete, PyTree
from jaxrl_fast.spaces import NO_BOUND, is_bounded

P = ParamSpec("P")
R = TypeVar("R")


def relaxed(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function so that JAX promotes ranks and dtypes implicitly in it, as other libraries
    need.

    Args:
        function: Function to wrap.

    Returns:
        The wrapped function.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            return function(*args, **kwargs)

    return call


def settled(tree: PyTree) -> PyTree:
    """Convert every leaf to an array with a strong (not weak) dtype.

    Args:
        tree: Pytree of numbers and arrays.

    Returns:
        Pytree of arrays.
    """

    def settle(x: Any) -> jax.Array:
        x = jnp.asarray(x)
        return jnp.asarray(x, x.dtype)

    return jax.tree.map(settle, tree)


def like(tree: PyTree, before: PyTree) -> PyTree:
    """Cast the leaves of a pytree to the dtypes of another.

    Some environments change dtypes between reset and step, which a scan cannot carry.

    Args:
        tree: Pytree to cast.
        before: Pytree of the same structure with the dtypes to cast to.

    Returns:
        The cast pytree.
    """
    return jax.tree.map(lambda x, old: jnp.asarray(x, old.dtype), tree, before)


def actions_of(space: Any, name: str) -> Actions:
    """Convert an action space in the style of gymnax, whose classes other libraries copy, by its
    attributes.

    Args:
        space: Space with ``n``, with ``num_categories``, or with ``low``, ``high`` and ``shape``.
        name: Name of the environment in error messages.

    Returns:
        The action space.

    Raises:
        ValueError: The space is of another kind or unbounded.
    """
    return Discrete(int(space.n)) if is_discrete(space) else _other_actions(space, name)


def _other_actions(space: Any, name: str) -> Actions:
    if np.ndim(getattr(space, "num_categories", 0)) == 1:
        return MultiDiscrete(tuple(int(size) for size in space.num_categories))
    if not all(hasattr(space, bound) for bound in ("low", "high", "shape")):
        raise ValueError(
            f"{name} has actions of kind {type(space).__name__}; Discrete and Box are supported"
        )
    low, high = (
        np.broadcast_to(np.asarray(bound, np.float32), space.shape)
        for bound in (space.low, space.high)
    )
    if not is_bounded(low, high).all():
        raise ValueError(
            f"{name} has unbounded actions ({low.min():g} to {high.max():g}); write an environment with bounds below "
            f"{NO_BOUND:g}"
        )
    return Box(low, high)


def is_discrete(space: Any) -> bool:
    """Check whether a space in the style of gymnax holds one whole number.

    Args:
        space: Space of any library.

    Returns:
        Whether it has a number of elements, ``n``, and no axes.
    """
    return isinstance(getattr(space, "n", None), int | np.integer) and not getattr(
        space, "shape", ()
    )


def layers_of(env: Any) -> list[tuple[Any, str]]:
    """List the wrappers around an environment, and the environment.

    Args:
        env: Environment or wrapper of any library. A wrapper has one attribute with ``reset`` and
            ``step``.

    Returns:
        Wrappers from the outermost on, each with the name of that attribute, and last the
        environment with "".
    """
    layers: list[tuple[Any, str]] = []
    while True:
        held = [name for name, value in getattr(env, "__dict__", {}).items() if is_steppable(value)]
        attribute = (
            held[0]
            if len(held) == 1 and getattr(env, held[0]) not in [layer for layer, _ in layers]
            else ""
        )
        layers.append((env, attribute))
        if not attribute:
            return layers
        env = getattr(env, attribute)


def is_steppable(value: Any) -> bool:
    """Check whether a value looks like an environment.

    Args:
        value: Any value.

    Returns:
        Whether it has ``reset`` and ``step``, but is no class.
    """
    return not isinstance(value, type) and hasattr(value, "reset") and hasattr(value, "step")


def around(layer: Any, held: str, inner: Any, name: str) -> Any:
    """Return a copy of a wrapper around another environment.

    Args:
        layer: Wrapper.
        held: Name of its attribute with the environment.
        inner: Environment for the copy.
        name: Name in error messages.

    Returns:
        The copy, or ``layer`` if it holds ``inner`` already.

    Raises:
        ValueError: Another attribute of the wrapper is a function of the environment inside, such
            as its ``step``.
    """
    before = getattr(layer, held)
    if before is inner:
        return layer
    replaced = [one for one, _ in layers_of(before)]
    for attribute, value in vars(layer).items():
        owner = getattr(getattr(value, "__wrapped__", value), "__self__", None)
        if any(owner is one for one in replaced):
            raise ValueError(
                f"{name}: {type(layer).__name__} stores a function of the environment inside when it is made "
                f"({attribute}): write self.{held}.step in a method, or return the environment without this wrapper"
            )
    return changed(layer, **{held: inner})


class Delegating:
    """A wrapper of this package: other attributes are the attributes of the environment inside.

    Attributes:
        env: Environment inside.
    """

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.env, name)


def changed(layer: Any, **attributes: Any) -> Any:
    """Return a copy of an object with other attributes.

    Args:
        layer: Object. `copy.copy` would ask a wrapper without attributes for some, and its
            ``__getattr__`` recurse.
        **attributes: New values.

    Returns:
        The copy.
    """
    copied = object.__new__(type(layer))
    vars(copied).update({**vars(layer), **attributes})
    return copied


def import_later(*names: str) -> None:
    """Postpone the import of modules until one of their attributes is used.

    Another library imports them at its top, for functions that few users call.
    `importlib.util.LazyLoader` of Python 3.11 does not help, because it loads the module at the
    second import.

    Args:
        *names: Modules. Those that are imported already or not installed are skipped.
    """
    for name in names:
        spec = None if name in sys.modules else find_spec(name)
        if spec is not None:
            module = sys.modules[name] = _Later(name)
            module.__spec__ = spec


class _Later(ModuleType):
    """A placeholder that imports its module at the first access of an attribute."""

    def __getattr__(self, attribute: str) -> Any:
        name = self.__name__
        if sys.modules.get(name) is self:
            del sys.modules[name]
        module = import_module(name)
        self.__dict__.update(module.__dict__)
        return getattr(module, attribute)
