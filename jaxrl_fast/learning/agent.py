"""An algorithm bound to an environment, and its acting: the networks that choose actions, with their memory."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import UNKNOWN_PRODUCTS, Extras, Products, PyTree
from jaxrl_fast.learning.algorithm import Agent, Learned, Part
from jaxrl_fast.learning.minibatches import Experience
from jaxrl_fast.networks.network import Network

Networks = dict[str, tuple[str, Network]]
"""By part: the name of the network that runs, and the network."""


class Carry(NamedTuple):
    """What acting remembers of each environment from step to step, ``[E, ...]``.

    - ``frames``: the images before the newest (`frame_stack.stacked_acting`); ``()`` where none are stacked.
    - ``memory``: of each part whose network is recurrent.
    - ``choice``: the state of the algorithm's choice of actions (`algorithm.InitDecide`).
    """

    frames: PyTree
    memory: dict[str, PyTree]
    choice: PyTree


Explore = Callable[[dict[str, Learned], Carry, PyTree, jax.Array, jax.Array, Any], tuple[jax.Array, Carry, Extras]]
"""(learned by part, of all `Acting.parts`; carry; obs ``[E, ...]``, normalized; first ``[E]``: whether it begins an
episode; key; hyper) -> (actions ``[E, ...]``, next carry, what to store)."""


ActGreedily = Callable[[dict[str, PyTree], Carry, PyTree, jax.Array, jax.Array], tuple[jax.Array, Carry]]
"""(weights from `Acting.greedy_weights`, carry, obs ``[E, ...]`` normalized, first ``[E]``, key) -> (best known actions
``[E, ...]``, next carry)."""


class Acting(NamedTuple):
    """How actions are chosen, on normalized single frames ``[E, ...]``.

    - ``parts``: those whose networks run in training: the ones that choose actions, and recurrent ones whose memory is
      stored for the updates.
    - ``chooses``: those of them that choose actions.
    - ``explore``, ``initial_carry(num_envs)``: acting in training, and its carry before the first step, leaves
      ``[num_envs, ...]``.
    - ``greedy``, ``greedy_carry(num_envs)``: acting in evaluation, and its carry before the first step.
    - ``greedy_weights(learned)``: the params that ``greedy`` needs, by part, of what the parts have learned.
    """

    parts: tuple[str, ...]
    chooses: tuple[str, ...]
    greedy_weights: Callable[[dict[str, Learned]], dict[str, PyTree]]
    explore: Explore
    greedy: ActGreedily
    initial_carry: Callable[[int], Carry]
    greedy_carry: Callable[[int], Carry]


def make_acting(agent: Agent) -> Acting:
    """The `Acting` of an agent, on observations as its networks see them."""
    chosen_by = {part: (name, agent.parts[part].networks[name]) for part, name in agent.acts.items()}
    followed = {part: (name, agent.parts[part].networks[name]) for part, name in agent.remembers.items()}
    both = chosen_by | followed

    def explore(
        learned: dict[str, Learned], carry: Carry, obs: PyTree, first: jax.Array, key: jax.Array, hyper: Any
    ) -> tuple[jax.Array, Carry, Extras]:
        outputs, memory = _run(both, weights_of(both, learned), carry.memory, obs, first)
        outputs = {part: outputs[part] for part in chosen_by}
        action, choice, decision = agent.decide(outputs, obs, carry.choice, key, hyper, True)
        return action, Carry((), memory, choice), Extras(decision, carry.memory)

    def greedy(
        weights: dict[str, PyTree], carry: Carry, obs: PyTree, first: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Carry]:
        outputs, memory = _run(chosen_by, weights, carry.memory, obs, first)
        action, choice, _ = agent.decide(outputs, obs, carry.choice, key, None, False)
        return action, Carry((), memory, choice)

    def initial(networks: Networks, size: int) -> Carry:
        memory = {part: net.initial_memory(size) for part, (_, net) in networks.items() if net.recurrent}
        return Carry((), memory, agent.init_decide(size))

    weights, carries = partial(weights_of, chosen_by), (partial(initial, both), partial(initial, chosen_by))
    return Acting(tuple(both), tuple(chosen_by), weights, explore, greedy, *carries)


def weights_of(networks: Networks, learned: dict[str, Learned]) -> dict[str, PyTree]:
    """The params of ``networks``, by part."""
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


class BoundAgent(NamedTuple):
    """An algorithm bound to an environment.

    - ``parts``: the networks that are updated together, by name.
    - ``acting``: how actions are chosen.
    - ``experience``: how rollouts become minibatches.
    - ``hyper``: the rates at the start of the run, which give optimizers the shapes of their state.
    - ``rollout_length``: steps of each environment in a tick.
    - ``updates_per_tick``: gradient updates in a tick (``K``), none in the first ``warmup_ticks``.
    - ``batch_size``: environment steps in the minibatch of an update, in ``batch_sequences`` sequences.
    - ``warmup_ticks``: ticks that only fill the replay buffer.
    - ``normalize_observations``, ``normalize_rewards``: whether networks and losses get them normalized.
    - ``max_return``: as in `Agent`; ``num_agents``: as in `EnvSpec`.
    - ``products``: those of its updates.
    """

    parts: dict[str, Part]
    acting: Acting
    experience: Experience
    hyper: Any
    rollout_length: int
    updates_per_tick: int
    batch_size: int
    batch_sequences: int
    warmup_ticks: int
    normalize_observations: bool
    normalize_rewards: bool
    max_return: float | None = None
    num_agents: int | None = None
    products: Products = UNKNOWN_PRODUCTS
