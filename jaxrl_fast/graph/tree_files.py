"""The structure of a state as JSON, and back, without the modules of the environments that it holds.

Our own NamedTuples come back as what they are. A node of any other type, such as a brax state, comes back as `Other`,
which has its children under the same names: a program takes and gives its arrays either way.
"""

from importlib import import_module
from typing import Any

import jax
from jax.tree_util import DictKey, GetAttrKey, SequenceKey

from jaxrl_fast.core import PyTree

OWN = "jaxrl_fast."
LEAF = "*"


@jax.tree_util.register_pytree_with_keys_class
class Other:
    """A node whose type is not loaded: ``children`` by ``names``, as `jax.tree_util.keystr` has them."""

    def __init__(self, names: tuple[str, ...], children: tuple[PyTree, ...]) -> None:
        self.names, self.children = names, children

    def tree_flatten_with_keys(self) -> tuple[tuple, tuple[str, ...]]:
        """For JAX."""
        return tuple(zip(map(GetAttrKey, self.names), self.children, strict=True)), self.names

    @classmethod
    def tree_unflatten(cls, names: tuple[str, ...], children: Any) -> "Other":
        """For JAX."""
        return cls(names, tuple(children))


def to_json(tree: PyTree) -> Any:
    """The structure of ``tree``, without its leaves."""
    if jax.tree_util.all_leaves([tree]):
        return LEAF
    if tree is None:
        return None
    found, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)
    names = [_name(path[0]) for path, _ in found]
    children = [to_json(child) for _, child in found]
    kind = type(tree)
    if kind in (tuple, list):
        return [kind.__name__, children]
    if kind is dict:
        return ["dict", names, children]
    if kind.__module__.startswith(OWN) and issubclass(kind, tuple):
        return ["own", f"{kind.__module__}:{kind.__qualname__}", children]
    return ["other", names, children]


def from_json(described: Any) -> PyTree:
    """A tree of such a structure, with True for each leaf.

    Raises:
        ValueError: it is of no such structure.
    """
    if described == LEAF:
        return True
    if described is None:
        return None
    kind, *names, children = described
    made = tuple(map(from_json, children))
    if kind in ("tuple", "list"):
        return made if kind == "tuple" else list(made)
    if kind == "dict":
        return dict(zip(names[0], made, strict=True))
    return _own(names[0])(*made) if kind == "own" else Other(tuple(names[0]), made)


def _own(place: str) -> type:
    """A NamedTuple of this package, by where it is defined."""
    module, _, name = place.partition(":")
    found = getattr(import_module(module), name, None) if module.startswith(OWN) else None
    if not isinstance(found, type) or not issubclass(found, tuple) or not hasattr(found, "_fields"):
        raise ValueError(f"{place} is not a type of a state")
    return found


def _name(key: Any) -> str:
    """One step of a path, as a checkpoint names it."""
    if isinstance(key, DictKey):
        if not isinstance(key.key, str):
            raise TypeError(f"a dictionary with the key {key.key!r} cannot be described")
        return key.key
    return key.name if isinstance(key, GetAttrKey) else str(key.idx if isinstance(key, SequenceKey) else key.key)
