"""One array for all that a step of the environments gives, so that a device stores it by one kernel."""

from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import PyTree

MAX_NUMBERS = 1024
"""Of each environment: larger arrays, such as images, are stored by themselves."""
WORDS = (jnp.float32, jnp.int32, jnp.uint32)
"""Types that are kept bit by bit; bools become words too."""


class PackedStep(NamedTuple):
    """A step, in a scan's outputs.

    - ``words``: uint32 ``[E, W]``.
    - ``others``: the leaves that are no words, in order.
    """

    words: jax.Array
    others: tuple[jax.Array, ...]


def pack_step(step: PyTree) -> PackedStep:
    """Pack leaves ``[E, ...]``."""
    leaves = jax.tree.leaves(step)
    packed = [_as_words(leaf) for leaf in leaves if is_packed(leaf)]
    return PackedStep(jnp.concatenate(packed, axis=1), tuple(leaf for leaf in leaves if not is_packed(leaf)))


def unpack_steps(packed: PackedStep, like: PyTree) -> PyTree:
    """The steps that a scan has stacked, leaves ``[T, E, ...]``; ``like``: the shapes of one, ``[E, ...]``."""
    shapes, structure = jax.tree.flatten(like)
    others, start, leaves = iter(packed.others), 0, []
    for shape in shapes:
        if not is_packed(shape):
            leaves.append(next(others))
            continue
        width = prod(shape.shape[1:])
        words = packed.words[..., start : start + width]
        leaves.append(_from_words(words.reshape(*words.shape[:1], *shape.shape), shape.dtype))
        start += width
    return jax.tree.unflatten(structure, leaves)


def is_packed(leaf: Any) -> bool:
    """Whether a leaf ``[E, ...]`` is stored as words."""
    return leaf.dtype in (*WORDS, jnp.bool_) and prod(leaf.shape[1:]) <= MAX_NUMBERS


def _as_words(leaf: jax.Array) -> jax.Array:
    flat = leaf.reshape(leaf.shape[0], -1)
    return flat.astype(jnp.uint32) if leaf.dtype == jnp.bool_ else jax.lax.bitcast_convert_type(flat, jnp.uint32)


def _from_words(words: jax.Array, dtype: Any) -> jax.Array:
    return words.astype(jnp.bool_) if dtype == jnp.bool_ else jax.lax.bitcast_convert_type(words, dtype)
