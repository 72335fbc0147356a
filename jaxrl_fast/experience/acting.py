"""Acting: the networks of the parts that act, with their memory and stacks of frames, around an algorithm's choice."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.algorithms.interface import Agent, Learned
from jaxrl_fast.core import Extras, PyTree
from jaxrl_fast.experience.view import View, initial_frames, look
from jaxrl_fast.networks.network import Network

Networks = dict[str, tuple[str, Network]]
"""By part: the name of the network that runs, and the network."""


class Carry(NamedTuple):
    """What acting remembers of each environment, ``[E, ...]``: frames before the last (`view.look`), the memory of each
    part that has one, and what the algorithm's choice keeps."""

    frames: PyTree
    memory: dict[str, PyTree]
    choice: PyTree


class Acting(NamedTuple):
    """Acting on normalized observations ``[E, ...]`` with what the ``parts`` have learned; some of them, ``chooses``,
    say which action.

    ``explore(learned, carry, obs, first, key, hyper) -> (action, carry, Extras)`` in training;
    ``greedy(weights, carry, obs, first, key) -> (action, carry)`` with the weights, by part, of the networks that
    choose: ``greedy_weights(learned)``. Each has a carry of its own, before the first step ``initial_carry(E)`` and
    ``greedy_carry(E)``.
    """

    parts: tuple[str, ...]
    chooses: tuple[str, ...]
    greedy_weights: Callable[[dict[str, Learned]], dict[str, PyTree]]
    explore: Callable[..., tuple[jax.Array, Carry, Extras]]
    greedy: Callable[..., tuple[jax.Array, Carry]]
    initial_carry: Callable[[int], Carry]
    greedy_carry: Callable[[int], Carry]


def make_acting(agent: Agent, view: View) -> Acting:
    """How an agent acts on single frames."""
    chosen_by = {part: (name, agent.parts[part].networks[name]) for part, name in agent.acts.items()}
    followed = {part: (name, agent.parts[part].networks[name]) for part, name in agent.remembers.items()}
    both = chosen_by | followed

    def explore(
        learned: dict[str, Learned], carry: Carry, obs: PyTree, first: jax.Array, key: jax.Array, hyper: Any
    ) -> tuple[jax.Array, Carry, Extras]:
        seen, frames = look(view, carry.frames, obs, first)
        outputs, memory = _run(both, weights_of(both, learned), carry.memory, seen, first)
        outputs = {part: outputs[part] for part in chosen_by}
        action, choice, decision = agent.decide(outputs, seen, carry.choice, key, hyper, True)
        return action, Carry(frames, memory, choice), Extras(decision, carry.memory)

    def greedy(
        weights: dict[str, PyTree], carry: Carry, obs: PyTree, first: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Carry]:
        seen, frames = look(view, carry.frames, obs, first)
        outputs, memory = _run(chosen_by, weights, carry.memory, seen, first)
        action, choice, _ = agent.decide(outputs, seen, carry.choice, key, None, False)
        return action, Carry(frames, memory, choice)

    def initial(networks: Networks, size: int) -> Carry:
        memory = {part: net.initial_memory(size) for part, (_, net) in networks.items() if net.recurrent}
        return Carry(initial_frames(view, size), memory, agent.init_decide(size))

    return Acting(
        tuple(both),
        tuple(chosen_by),
        partial(weights_of, chosen_by),
        explore,
        greedy,
        partial(initial, both),
        partial(initial, chosen_by),
    )


def weights_of(networks: Networks, learned: dict[str, Learned]) -> dict[str, PyTree]:
    """The params of these networks alone, by part."""
    return {part: learned[part].params[name] for part, (name, _) in networks.items()}


def _run(
    networks: Networks, weights: dict[str, PyTree], memory: dict[str, PyTree], obs: PyTree, first: jax.Array
) -> tuple[dict[str, Any], dict[str, PyTree]]:
    """One step of each network: outputs ``[E, out]`` and memory, by part."""
    outputs, after = {}, {}
    for part, (_, network) in networks.items():
        action = None if network.action_shape is None else jnp.zeros((1, *first.shape, *network.action_shape))
        sequence = jax.tree.map(lambda x: x[None], obs)
        result, memories = network.apply(weights[part], memory.get(part, ()), sequence, first[None], action)
        outputs[part] = jax.tree.map(lambda x: x[0], result)
        if network.recurrent:
            after[part] = jax.tree.map(lambda x: x[0], memories)
    return outputs, after
