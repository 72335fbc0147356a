"""From sampled windows of consecutive steps to the batches of off-policy losses: n-step returns, and burn-in steps for
recurrent networks."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_fast.algorithms.interface import Replay, ReplayBatch
from jaxrl_fast.core import PyTree
from jaxrl_fast.experience.replay import SampledWindows
from jaxrl_fast.numerics import returns


def window_length(data: Replay) -> int:
    """How many consecutive steps a sequence needs."""
    return data.burn_in + data.sequence_length + data.n_step - 1


def fold(sampled: SampledWindows, discount: jax.Array, data: Replay, *, memory: bool) -> ReplayBatch:
    """Windows ``[G, N, W, ...]`` as sequences ``[G, N, L, ...]``; rewards and observations are already normalized.

    ``memory``: whether a network is recurrent. If so, ``obs`` holds the whole window, as `ReplayBatch` says; if not,
    only the steps that are learned from.
    """
    steps = sampled.steps
    learned = slice(data.burn_in, data.burn_in + data.sequence_length)
    inside = data.burn_in + jnp.arange(data.sequence_length)[:, None] + jnp.arange(data.n_step)[None]
    rewards, ends, cuts = (x[:, :, inside] for x in (steps.reward, steps.terminated, steps.truncated))
    reward, bootstrap, last = _n_step(rewards, ends, cuts, discount)
    last += data.burn_in + jnp.arange(data.sequence_length, dtype=jnp.int32)[None, None]

    def of_learned(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[:, :, learned], tree)

    def at_last(leaf: jax.Array) -> jax.Array:
        return leaf[:, :, learned] if data.n_step == 1 else jax.vmap(jax.vmap(lambda x, i: x[i]))(leaf, last)

    extras = of_learned(steps.extras.decision) if data.keep else {}
    batch = ReplayBatch(
        of_learned(steps.obs),
        of_learned(steps.action),
        reward,
        bootstrap,
        jax.tree.map(at_last, steps.next_obs),
        extras,
    )
    if not memory:
        return batch
    before = jax.tree.map(lambda leaf: leaf[:, :, None], sampled.memory)
    return batch._replace(obs=steps.obs, first=steps.first, memory=before, last=last)


def _n_step(reward: jax.Array, terminated: jax.Array, truncated: jax.Array, discount: jax.Array) -> Any:
    """`returns.n_step` of ``[G, N, L, n]``."""
    return jax.vmap(jax.vmap(jax.vmap(returns.n_step, (0, 0, 0, None)), (0, 0, 0, None)), (0, 0, 0, None))(
        reward, terminated, truncated, discount
    )
