"""Acting: runs the networks that choose actions, with their memory, for any algorithm."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import UNKNOWN_PRODUCTS, EnvSpec, Extras, Products, PyTree, is_image
from jaxrl_fast.learning.algorithm import (
    Agent,
    Algorithm,
    Learned,
    OnPolicy,
    Part,
    Replay,
    init_params,
    require_positive,
)
from jaxrl_fast.learning.frame_stack import View, make_view, stacked_acting, stacked_on_policy
from jaxrl_fast.learning.minibatches import MAX_SHARDS, Experience, on_policy_experience
from jaxrl_fast.learning.normalization import normalizes
from jaxrl_fast.learning.off_policy import off_policy_experience, warmup_ticks
from jaxrl_fast.networks.network import Network
from jaxrl_fast.numerics.optimizers import at_start

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


def bind(algorithm: Algorithm, spec: EnvSpec, num_envs: int, shards: int = MAX_SHARDS) -> BoundAgent:
    """Bind an algorithm to ``num_envs`` environments; its data has at most ``shards`` logical shards.

    Raises:
        ValueError: algorithm and environment, or two sizes, do not fit.
    """
    if algorithm.for_agents or spec.num_agents is not None:
        require_agents(algorithm, spec)
    view = view_of(spec)
    agent = algorithm.build(spec if view is None else view.spec, num_envs)
    agent = agent._replace(normalize_observations=normalizes(agent.normalize_observations, spec))
    acting = acting_of(agent, view)
    memory = bool(acting.initial_carry(1).memory)
    data = with_sequences(agent, memory=memory)
    require_positive(rollout_length=agent.rollout_length, sequence_length=data.sequence_length or 1, shards=shards)
    if isinstance(data, OnPolicy):
        steps = _minibatch_steps(agent, data, num_envs)
        sizes = data.num_epochs * data.num_minibatches, steps, steps // (data.sequence_length or 1), 0
        make = on_policy_experience if view is None or view.stack == 1 else partial(stacked_on_policy, view)
        experience = make(agent, data, num_envs, shards)
    else:
        require_positive(updates_per_tick=data.num_batches, batch_size=data.batch_size, n_step=data.n_step)
        steps = data.batch_size * data.sequence_length
        sizes = data.num_batches, steps, data.batch_size, warmup_ticks(agent, data, num_envs)
        experience = off_policy_experience(agent, data, view, num_envs, memory=memory, max_shards=shards)
    observed, rewarded = bool(agent.normalize_observations), (agent.normalize_rewards, agent.max_return)
    others: Any = agent.rollout_length, *sizes, observed, *rewarded, spec.num_agents, products_of(agent, spec, steps)
    return BoundAgent(agent.parts, acting, experience, at_start(algorithm.hyper), *others)


def view_of(spec: EnvSpec) -> View | None:
    """How networks see the images of an observation; None where it has none."""
    images = any(is_image(leaf) for leaf in jax.tree.leaves(spec.obs))
    return make_view(spec) if images or spec.frame_stack != 0 else None


def acting_of(agent: Agent, view: View | None) -> Acting:
    """The `Acting` of an agent, on single frames where it sees stacks of them."""
    acting = make_acting(agent)
    return acting if view is None or view.stack == 1 else stacked_acting(acting, view)


def products_of(agent: Agent, spec: EnvSpec, batch_size: int) -> Products:
    """The matrix products of an agent's updates of ``batch_size`` steps; unknown in size where convolutions, whose
    products have a row for every place of an image, may be among them."""
    networks = [network for part in agent.parts.values() for network in part.networks.values()]
    sequences = spec.num_agents is not None and any(network.recurrent for network in networks)
    params = [jax.eval_shape(partial(init_params, part), jax.random.key(0)) for part in agent.parts.values()]
    sizes = [math.prod(leaf.shape) for leaf in jax.tree.leaves(params)]
    images = any(len(leaf.shape) > 2 for leaf in jax.tree.leaves(spec.obs))
    return Products(sequences, math.inf if images else batch_size * max(sizes), sum(sizes))


def require_agents(algorithm: Algorithm, spec: EnvSpec) -> None:
    """Check that an algorithm is for as many agents as a world has, one or several, and such as they are.

    Raises:
        ValueError: with what to write instead.
    """
    if algorithm.for_agents and spec.num_agents is None:
        raise ValueError(f"algo={algorithm.name} is for several agents, and {spec.name} has one: write algo=ppo")
    if spec.num_agents is not None and not algorithm.for_agents:
        raise ValueError(
            f"algo={algorithm.name} is for one agent, and {spec.name} has {spec.num_agents}: write algo=ippo, "
            "algo=mappo or algo=pqn_vdn"
        )
    if spec.own_sizes and algorithm.options["share_parameters"]:
        sizes = ", ".join(f"{seen} and {number}" for seen, number in spec.own_sizes)
        raise ValueError(
            f"the agents of {spec.name} differ in what they observe or can do (numbers and actions: {sizes}), and one "
            "network for all does not fit: write algo.share_parameters=false"
        )


def with_sequences(agent: Agent, *, memory: bool) -> OnPolicy | Replay:
    """The data that an agent asks for, with the length of its sequences filled in."""
    data = agent.data
    if isinstance(data, Replay):
        return data if memory else data._replace(sequence_length=1, burn_in=0)
    length = data.sequence_length or (agent.rollout_length if memory else 1)
    return data._replace(sequence_length=length)


def _minibatch_steps(agent: Agent, data: OnPolicy, num_envs: int) -> int:
    """Steps per minibatch.

    Raises:
        ValueError: the rollout does not divide into the minibatches.
    """
    require_positive(num_epochs=data.num_epochs, num_minibatches=data.num_minibatches)
    length = data.sequence_length or 1
    if agent.rollout_length % length:
        raise ValueError(f"rollout_length={agent.rollout_length} does not divide into sequences of {length} steps")
    sequences = num_envs * agent.rollout_length // length
    if sequences % data.num_minibatches:
        raise ValueError(
            f"num_envs={num_envs} with rollout_length={agent.rollout_length} gives {sequences} sequences of "
            f"{length} steps, which algo.num_minibatches={data.num_minibatches} does not divide"
        )
    return sequences // data.num_minibatches * length
