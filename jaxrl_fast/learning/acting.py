"""How an agent acts: action selection, exploration, and the networks that choose actions with their memory."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import UNKNOWN_PRODUCTS, Box, Discrete, Extras, Products, PyTree
from jaxrl_fast.learning.algorithm import Agent, Decide, InitDecide, Learned, Part
from jaxrl_fast.learning.minibatches import Experience
from jaxrl_fast.networks.network import Network, action_mask, scalar
from jaxrl_fast.numerics import distributions, losses
from jaxrl_fast.numerics.distributions import Distribution
from jaxrl_fast.numerics.optimizers import MakeOptimizer, make_optimizer


def policy_of(space: Discrete | Box, outputs: jax.Array, obs: PyTree) -> Distribution:
    """The policy at network outputs ``[..., out]``, without the actions that an ``action_mask`` forbids."""
    return distributions.of_outputs(space, outputs, action_mask(obs))


def sample_action(
    space: Discrete | Box, *, remember: bool, outputs_of: Callable[[dict], jax.Array] = lambda outputs: outputs["actor"]
) -> Decide:
    """Sample from the policy, by default that of the part ``actor``; greedily, take its mode. ``remember``: store the
    raw action and its log-probability for the update, as ``raw_action`` and ``log_prob``. ``outputs_of``: picks the
    policy's outputs, ``[..., num_outputs(space)]``, from the outputs of the acting parts."""

    def decide(outputs: dict, obs: PyTree, state: PyTree, key: jax.Array, hyper: Any, explore: bool) -> tuple:
        dist = policy_of(space, outputs_of(outputs), obs)
        raw = distributions.sample(dist, key) if explore else distributions.mode(dist)
        extras = {"raw_action": raw, "log_prob": distributions.log_prob(dist, raw)} if explore and remember else {}
        return distributions.to_action(space, raw), state, extras

    return decide


def temperature_network(initial: float) -> Network:
    """The logarithm of a learned temperature of a policy, such as SAC's.

    Raises:
        ValueError: ``initial`` is no positive number.
    """
    if not 0.0 < initial < math.inf:
        raise ValueError(f"initial_temperature={initial}: write a positive number, such as 1.0")
    return scalar(lambda: jnp.log(jnp.float32(initial)))


def temperature_optimizer() -> MakeOptimizer:
    """Adam at ``hyper.temperature_learning_rate``."""
    return make_optimizer("adam", rate=lambda hyper: hyper.temperature_learning_rate)


def temperature_gradient(
    log_temperature: jax.Array, entropy: jax.Array, target_entropy: jax.Array | float
) -> jax.Array:
    """The gradient by which a temperature holds the policy's mean ``entropy`` at its target, in nats; scalars."""
    return jax.grad(losses.temperature)(log_temperature, -entropy, target_entropy)


def unit_policy(outputs: jax.Array) -> jax.Array:
    """The deterministic policy's action in ``[-1, 1]``, ``[..., A]``, at network outputs ``[..., A]``."""
    return jnp.tanh(outputs)


def noisy_action(space: Box, spread: float) -> tuple[Decide, InitDecide]:
    """The action of the part ``actor`` with normal noise, of a standard deviation of its own in each environment: from
    ``hyper.exploration_noise / spread`` in the first to ``hyper.exploration_noise * spread`` in the last, in equal
    ratios, and ``hyper.exploration_noise`` where there is one environment. (Horgan et al., arXiv 1803.00933, section
    4.1, do so with ε.)

    Raises:
        ValueError: ``spread`` is less than 1.
    """
    if not 1.0 <= spread < math.inf:
        raise ValueError(f"noise_spread={spread}: write a number of at least 1, which gives all environments one noise")

    def init(num_envs: int) -> jax.Array:
        place = jnp.linspace(-1.0, 1.0, num_envs) if num_envs > 1 else jnp.zeros(1)
        return spread**place

    def decide(outputs: dict, obs: PyTree, state: PyTree, key: jax.Array, hyper: Any, explore: bool) -> tuple:
        unit = unit_policy(outputs["actor"])
        if explore:
            noise = hyper.exploration_noise * state[:, None] * jax.random.normal(key, unit.shape)
            unit = jnp.clip(unit + noise, -1.0, 1.0)
        return distributions.from_unit(space, unit), state, {}

    return decide, init


class RepeatedNoise(NamedTuple):
    """Noise that an environment keeps for some steps.

    - ``noise``: standard normal, ``[E, A]``.
    - ``steps_left``: for which it stays, ``[E]``.
    """

    noise: jax.Array
    steps_left: jax.Array


def repeated_noise_action(space: Box, max_repeats: int, exponent: float = 2.0) -> tuple[Decide, InitDecide]:
    """Sample from the policy of the part ``actor``, with noise that stays the same for n steps: n is drawn from 1 to
    ``max_repeats`` in proportion to ``n ** -exponent``, by each environment for itself (Dabney et al., arXiv
    2006.01782, section 5; with noise instead of an action, arXiv 2604.04539)."""

    def init(num_envs: int) -> RepeatedNoise:
        return RepeatedNoise(jnp.zeros((num_envs, space.low.size)), jnp.zeros(num_envs, jnp.int32))

    def decide(outputs: dict, obs: PyTree, state: PyTree, key: jax.Array, hyper: Any, explore: bool) -> tuple:
        dist = distributions.tanh_normal(outputs["actor"])
        if not explore:
            return distributions.to_action(space, dist.mean), state, {}
        noise_key, repeats_key = jax.random.split(key)
        ended = state.steps_left == 0
        chances = -exponent * jnp.log(jnp.arange(1, max_repeats + 1, dtype=jnp.float32))
        repeats = 1 + jax.random.categorical(repeats_key, chances, shape=ended.shape).astype(jnp.int32)
        noise = jnp.where(ended[:, None], jax.random.normal(noise_key, state.noise.shape), state.noise)
        state = RepeatedNoise(noise, jnp.where(ended, repeats, state.steps_left) - 1)
        return distributions.to_action(space, dist.mean + dist.scale * noise), state, {}

    return decide, init


def greedy_action(q: jax.Array, obs: PyTree) -> jax.Array:
    """The allowed action ``[...]`` with the largest of the Q-values ``[..., num_actions]``."""
    return distributions.mode(distributions.categorical(q, action_mask(obs)))


def epsilon_greedy(q: jax.Array, obs: PyTree, epsilon: jax.Array, key: jax.Array) -> jax.Array:
    """`greedy_action`, or with probability ``epsilon`` an allowed action, uniformly."""
    best, (which_key, action_key) = greedy_action(q, obs), jax.random.split(key)
    any_allowed = distributions.categorical(jnp.zeros_like(q), action_mask(obs))
    at_random = jax.random.uniform(which_key, best.shape) < epsilon
    return jnp.where(at_random, distributions.sample(any_allowed, action_key), best)


def greedy_value(q: jax.Array, obs: PyTree) -> jax.Array:
    """The Q-value ``[...]`` of the allowed action with the largest, out of ``[..., num_actions]``."""
    return value_of(q, greedy_action(q, obs))


def by_q_values(q_of: Callable[[dict[str, Any]], jax.Array]) -> Decide:
    """`epsilon_greedy` with the share ``hyper.epsilon`` of random actions; greedily, the best action. ``q_of``: picks
    Q-values ``[..., num_actions]`` from the outputs of the acting parts."""

    def decide(outputs: dict, obs: PyTree, state: PyTree, key: jax.Array, hyper: Any, explore: bool) -> tuple:
        q = q_of(outputs)
        return (epsilon_greedy(q, obs, hyper.epsilon, key) if explore else greedy_action(q, obs)), state, {}

    return decide


def value_of(q: jax.Array, action: jax.Array) -> jax.Array:
    """The Q-value ``[...]`` of ``action``, out of ``[..., num_actions]``."""
    return distributions.pick(q, action)


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
