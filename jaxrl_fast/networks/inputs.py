"""What a network reads of an observation: the chosen keys, flattened to features, never the ``action_mask``."""

import jax
import jax.numpy as jnp

from jaxrl_fast.core import PyTree, is_image
from jaxrl_fast.networks.images import to_real
from jaxrl_fast.numerics.running_stats import is_mask


def choose_keys(obs: PyTree, keys: tuple[str, ...]) -> PyTree:
    """The entries ``keys`` of a dictionary observation, and its ``action_mask``; all entries where no key is named.

    Raises:
        ValueError: a key is missing, or the observation is not a dictionary.
    """
    if not keys:
        return obs
    known = sorted(set(obs) - {"action_mask"}) if isinstance(obs, dict) else []
    for key in keys:
        if key not in known:
            there = f"write some of {', '.join(known)}" if known else "they are no dictionary: leave the keys out"
            raise ValueError(f"the observations have no key '{key}': {there}")
    return {key: value for key, value in obs.items() if key in keys or key == "action_mask"}


def features(obs: PyTree) -> jax.Array:
    """Flatten an observation ``[L, B, ...]`` into float32 ``[L, B, features]``, its ``action_mask`` left out and its
    images scaled to 0..1."""
    leaves = [
        (to_real(leaf) if is_image(leaf, axes=2) else leaf.astype(jnp.float32)).reshape(*leaf.shape[:2], -1)
        for path, leaf in jax.tree_util.tree_leaves_with_path(obs)
        if not is_mask(path)
    ]
    return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves, axis=-1)


def action_mask(obs: PyTree) -> jax.Array | None:
    """The mask of allowed actions in a dictionary observation, or None."""
    return obs.get("action_mask") if isinstance(obs, dict) else None
