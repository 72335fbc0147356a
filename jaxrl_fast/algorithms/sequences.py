"""Runs networks over the sequences of a batch, recurrent or not, so that a loss need not know which."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_fast.algorithms.interface import OnPolicyBatch, Replay, ReplayBatch
from jaxrl_fast.core import PyTree
from jaxrl_fast.networks.network import Network


def over_rollout(network: Network, params: PyTree, batch: OnPolicyBatch, part: str) -> tuple[Any, PyTree]:
    """Outputs ``[L, B, out]`` of a network of ``part``, and its memory after every step ``[L, B, ...]``."""
    memory = jax.tree.map(lambda x: x[0], batch.memory[part]) if network.recurrent else ()
    return network.apply(params, memory, batch.obs, batch.first)


def over_replay(
    data: Replay, network: Network, params: PyTree, batch: ReplayBatch, part: str, action: jax.Array | None = None
) -> Any:
    """Outputs ``[L, B, out]`` of a network of ``part`` at the steps that are learned from; ``action`` ``[L, B, ...]``
    is for networks that take one. No gradient reaches the burn-in (Kapturowski et al., "Recurrent experience replay
    in distributed reinforcement learning", ICLR 2019, section 3)."""
    length = batch.reward.shape[0]
    if not network.recurrent:
        return network.apply(params, (), batch.obs, jnp.zeros(batch.reward.shape, bool), action)[0]
    learned = slice(data.burn_in, data.burn_in + length)
    memory = _before(batch, part)
    if data.burn_in:
        memories = _remember(network, params, memory, batch, slice(0, data.burn_in))
        memory = jax.lax.stop_gradient(jax.tree.map(lambda x: x[-1], memories))
    obs, first = jax.tree.map(lambda x: x[learned], (batch.obs, batch.first))
    return network.apply(params, memory, obs, first, action)[0]


def over_successors(
    data: Replay, network: Network, params: PyTree, batch: ReplayBatch, part: str, action: jax.Array | None = None
) -> Any:
    """As `over_replay`, at ``next_obs``, with the memory of the steps before it."""
    if not network.recurrent:
        return network.apply(params, (), batch.next_obs, jnp.zeros(batch.reward.shape, bool), action)[0]
    memories = _remember(network, params, _before(batch, part), batch, slice(None))
    columns = jnp.arange(batch.last.shape[1])[None]
    memory = jax.tree.map(lambda x: x[batch.last, columns], memories)
    return apply_apart(network, params, memory, batch.next_obs, jnp.zeros(batch.reward.shape, bool), action)[0]


def mean_loss(losses: jax.Array, batch: ReplayBatch) -> jax.Array:
    """The mean of losses ``[L, B]``, each with its importance weight where replay is prioritized (arXiv 1511.05952,
    section 3.4)."""
    return jnp.mean(losses if isinstance(batch.weight, tuple) else batch.weight * losses)


def sequence_priority(errors: jax.Array) -> jax.Array:
    """The priority ``[B]`` of sequences with errors ``[L, B]``: of more than one step, nine parts of the largest and
    one of the mean (Kapturowski et al., ICLR 2019, section 2.3)."""
    size = jnp.abs(errors)
    return 0.9 * jnp.max(size, axis=0) + 0.1 * jnp.mean(size, axis=0)


def apply_apart(
    network: Network, params: PyTree, memory: PyTree, obs: PyTree, first: jax.Array, action: jax.Array | None = None
) -> tuple[Any, PyTree]:
    """Outputs ``[T, B, out]`` at observations ``[T, B, ...]``, each after its own memory ``[T, B, ...]`` and not after
    the step before it; and the memory after each."""
    shape = first.shape

    def flat(tree: PyTree) -> PyTree:
        # Batch first: where it is divided among devices, merging the two axes then moves nothing.
        return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(1, first.size, *x.shape[2:]), tree)

    def apart(x: jax.Array) -> jax.Array:
        lead = x.ndim - network.trailing_axes - 2
        return x.reshape(*x.shape[:lead], *shape[::-1], *x.shape[lead + 2 :]).swapaxes(lead, lead + 1)

    before, own_action = jax.tree.map(lambda x: x[0], flat(memory)), None if action is None else flat(action)
    return jax.tree.map(apart, network.apply(params, before, flat(obs), flat(first), own_action))


def _before(batch: ReplayBatch, part: str) -> PyTree:
    return jax.tree.map(lambda x: x[0], batch.memory[part])


def _remember(network: Network, params: PyTree, memory: PyTree, batch: ReplayBatch, steps: slice) -> PyTree:
    obs, first = jax.tree.map(lambda x: x[steps], (batch.obs, batch.first))
    action = None if network.action_shape is None else jnp.zeros((*first.shape, *network.action_shape))
    return network.apply(params, memory, obs, first, action)[1]
