"""`bind`: connects an algorithm to an environment; written once for all algorithms.

An algorithm only declares its parts and the data it wants. What follows from that is built here: acting with memory and
stacks of frames, values over rollouts, replay, n-step returns, normalization.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax

from jaxrl_fast.algorithms.interface import Agent, Algorithm, OnPolicy, Part, Replay, init_params, require_positive
from jaxrl_fast.core import UNKNOWN_PRODUCTS, EnvSpec, Products, is_image
from jaxrl_fast.experience.acting import Acting, make_acting
from jaxrl_fast.experience.minibatches import MAX_SHARDS, Experience
from jaxrl_fast.experience.off_policy import off_policy_experience, warmup_ticks
from jaxrl_fast.experience.on_policy import on_policy_experience
from jaxrl_fast.experience.scale import normalizes
from jaxrl_fast.experience.view import View, make_view, stacked_acting, stacked_on_policy
from jaxrl_fast.numerics.schedules import at_start


class Bound(NamedTuple):
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


def bind(algorithm: Algorithm, spec: EnvSpec, num_envs: int, shards: int = MAX_SHARDS) -> Bound:
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
    return Bound(agent.parts, acting, experience, at_start(algorithm.hyper), *others)


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
