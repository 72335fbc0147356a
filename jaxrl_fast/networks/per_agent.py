"""Networks of several agents: one shared network that also reads the agent's number, or one network
per agent.

Both map observations ``[L, B, A, ...]`` to outputs ``[L, B, A, out]``, recurrent networks with a
memory ``[B, A, ...]``. Both drop the entries without the agents' axis: the global state and the
mask of agents that are out.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_fast.core import OUT, STATE, PyTree
from jaxrl_fast.networks.network import UNCONSTRAINED, Network, over

NUMBER = "agent_number"
"""Key of the agent's one-hot number, added to the entries of its observation, or to ``obs``."""


def own_obs(obs: PyTree) -> PyTree:
    """Select the entries of an observation that the agents observe.

    Args:
        obs: Observation with the global state and the mask of agents.

    Returns:
        The observation without `STATE` and `OUT`.
    """
    return (
        {key: leaf for key, leaf in obs.items() if key not in (STATE, OUT)}
        if isinstance(obs, dict)
        else obs
    )


def obs_of_one(obs_spec: PyTree, num_agents: int, *, shared: bool) -> PyTree:
    """Return the shapes that the network of one agent reads.

    Args:
        obs_spec: Shapes of one observation of all agents, ``[A, ...]``.
        num_agents: Number of agents.
        shared: Whether agents share the network, which then also reads `NUMBER`.

    Returns:
        Shapes without the agents' axis.
    """
    one = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), own_obs(obs_spec)
    )
    return _with_number(one, jax.ShapeDtypeStruct((num_agents,), jnp.float32)) if shared else one


def shared_network(one: Network, num_agents: int) -> Network:
    """Build one network for all agents, which are rows of one batch.

    Args:
        one: Network of one agent, which reads `NUMBER`.
        num_agents: Number of agents.

    Returns:
        A network over the agents' axis.
    """

    def run(
        function: Callable,
        params: PyTree,
        memory: PyTree,
        obs: PyTree,
        first: jax.Array,
        action: Any = None,
    ) -> tuple:
        length, batch = first.shape
        rows = batch * num_agents

        def merged(leaf: jax.Array) -> jax.Array:
            return leaf.reshape(length, rows, *leaf.shape[3:])

        def parted(leaf: jax.Array) -> jax.Array:
            return leaf.reshape(length, batch, num_agents, *leaf.shape[2:])

        numbers = jnp.broadcast_to(
            jnp.eye(num_agents)[None, None], (length, batch, num_agents, num_agents)
        )
        agent_obs = jax.tree.map(merged, _with_number(own_obs(obs), numbers))
        begins = merged(jnp.broadcast_to(first[:, :, None], (length, batch, num_agents)))
        before = jax.tree.map(lambda leaf: leaf.reshape(rows, *leaf.shape[2:]), memory)
        return jax.tree.map(parted, function(params, before, agent_obs, begins))

    def initial_memory(batch_size: int) -> PyTree:
        memory = one.initial_memory(batch_size * num_agents)
        return jax.tree.map(
            lambda leaf: leaf.reshape(batch_size, num_agents, *leaf.shape[1:]), memory
        )

    def of_agent(number: int, params: PyTree) -> tuple[Network, PyTree]:
        def run_one(
            function: Callable,
            params: PyTree,
            memory: PyTree,
            obs: PyTree,
            first: jax.Array,
            action: Any = None,
        ) -> tuple:
            one_hot = jnp.broadcast_to(jnp.eye(num_agents)[number], (*first.shape, num_agents))
            return function(params, memory, _with_number(obs, one_hot), first)

        return over(one, run_one), params

    return over(one, run)._replace(
        initial_memory=initial_memory, action_shape=None, trailing_axes=2, of_agent=of_agent
    )


def separate_networks(one: Network, num_agents: int, *, see_all: bool = False) -> Network:
    """Build a network for each agent, with stacked params ``[A, ...]`` and one batched product for
    all.

    Args:
        one: Network of one agent.
        num_agents: Number of agents.
        see_all: Whether each network reads the whole observation, as a critic does, instead of its
            agent's.

    Returns:
        A network over the agents' axis.
    """
    each = None if see_all else 2

    def init(key: jax.Array) -> PyTree:
        return jax.vmap(one.init)(jax.random.split(key, num_agents))

    def run(
        function: Callable,
        params: PyTree,
        memory: PyTree,
        obs: PyTree,
        first: jax.Array,
        action: Any = None,
    ) -> tuple:
        def one_agent(
            agent_params: PyTree, before: PyTree, agent_obs: PyTree
        ) -> tuple[Any, PyTree]:
            return function(agent_params, before, agent_obs, first)

        agent_obs = obs if see_all else own_obs(obs)
        return jax.vmap(one_agent, in_axes=(0, 1, each), out_axes=2)(params, memory, agent_obs)

    def initial_memory(batch_size: int) -> PyTree:
        one_agent = one.initial_memory(batch_size)
        return jax.tree.map(lambda leaf: jnp.repeat(leaf[:, None], num_agents, axis=1), one_agent)

    def of_agent(number: int, params: PyTree) -> tuple[Network, PyTree]:
        return one, jax.tree.map(lambda leaf: leaf[number], params)

    network = over(one, run)._replace(
        init=init, initial_memory=initial_memory, action_shape=None, trailing_axes=2
    )
    network = (
        network if one.project is UNCONSTRAINED else network._replace(project=jax.vmap(one.project))
    )
    return network._replace(separate=True, of_agent=of_agent)


def mixing_network(one: Network) -> Network:
    """Give the outputs of a network of the global state an agents' axis of size 1.

    Args:
        one: Network with outputs ``[L, B, out]``, without memory.

    Returns:
        A network with outputs ``[L, B, 1, out]``.
    """

    def run(
        function: Callable,
        params: PyTree,
        memory: PyTree,
        obs: PyTree,
        first: jax.Array,
        action: Any = None,
    ) -> tuple:
        outputs, _ = function(params, memory, obs, first)
        return jax.tree.map(lambda x: jnp.expand_dims(x, -2), outputs), ()

    return over(one, run)._replace(trailing_axes=2)


def with_mixer(network: Network, mixer: Network) -> Network:
    """Run a `mixing_network` and the network of all agents.

    Args:
        network: Network over the agents' axis.
        mixer: Network of the global state.

    Returns:
        A network with the pairs of both networks' params and outputs, and the memory of
        ``network``, for outputs outside of losses.
    """

    def apply(
        params: PyTree,
        memory: PyTree,
        obs: PyTree,
        first: jax.Array,
        action: jax.Array | None = None,
    ) -> tuple[Any, PyTree]:
        outputs, after = network.apply(params[0], memory, obs, first, action)
        return (outputs, mixer.apply(params[1], (), obs, first)[0]), after

    return network._replace(apply=apply)


def _with_number(obs: PyTree, number: Any) -> PyTree:
    return {**(obs if isinstance(obs, dict) else {"obs": obs}), NUMBER: number}
