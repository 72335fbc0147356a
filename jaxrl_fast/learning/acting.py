"""Action selection: exploration, greedy actions, and the networks that act with their memory."""

import math
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import (
    UNKNOWN_PRODUCTS,
    Actions,
    Box,
    Discrete,
    Extras,
    MultiDiscrete,
    Products,
    PyTree,
    select,
    stable_hash,
)
from jaxrl_fast.learning.algorithm import Agent, Decide, InitDecide, Learned, Part
from jaxrl_fast.learning.minibatches import Experience
from jaxrl_fast.networks.network import Network, action_mask, scalar
from jaxrl_fast.numerics import distributions, losses
from jaxrl_fast.numerics.distributions import Distribution
from jaxrl_fast.numerics.optimizers import Linear, MakeOptimizer, make_optimizer


def policy_of(space: Actions, outputs: jax.Array, obs: PyTree) -> Distribution:
    """Build the policy from network outputs, without the actions that an ``action_mask`` forbids.

    Args:
        space: Action space.
        outputs: Network outputs ``[..., num_outputs(space)]``.
        obs: Observations, which may have a mask.

    Returns:
        The distribution.
    """
    return distributions.of_outputs(space, outputs, action_mask(obs))


OutputsOf = Callable[[dict], jax.Array]
"""(outputs by part) -> the policy's outputs."""
MakePolicy = Callable[[Actions, jax.Array, PyTree], Distribution]
"""As `policy_of`."""


def sample_action(
    space: Actions,
    *,
    remember: bool,
    outputs_of: OutputsOf = itemgetter("actor"),
    policy: MakePolicy = policy_of,
) -> Decide:
    """Return action selection that samples from the policy, or takes its mode without exploration.

    Args:
        space: Action space.
        remember: Whether to store the raw action and its log-probability, as ``raw_action`` and
            ``log_prob``.
        outputs_of: Picks the policy's outputs, ``[..., num_outputs(space)]``, from the outputs by
            part.
        policy: Builds the distribution, as `policy_of`.

    Returns:
        The `Decide` function.
    """

    def decide(
        outputs: dict, obs: PyTree, state: PyTree, key: jax.Array, hyper: Any, explore: bool
    ) -> tuple:
        dist = policy(space, outputs_of(outputs), obs)
        raw = distributions.sample(dist, key) if explore else distributions.mode(dist)
        extras = (
            {"raw_action": raw, "log_prob": distributions.log_prob(dist, raw)}
            if explore and remember
            else {}
        )
        return distributions.to_action(space, raw, dist), state, extras

    return decide


def temperature_network(initial: float) -> Network:
    """Build the trainable logarithm of a policy's temperature, such as SAC's.

    Args:
        initial: Initial temperature.

    Returns:
        A `scalar` network.

    Raises:
        ValueError: ``initial`` is not a positive number.
    """
    if not 0.0 < initial < math.inf:
        raise ValueError(f"initial_temperature={initial}: write a positive number, such as 1.0")
    return scalar(lambda: jnp.log(jnp.float32(initial)))


TEMPERATURES = 1e-8, 1e4
"""Smallest and largest temperature. One that no policy can hold at its target entropy would grow
without end.
"""


def temperature_optimizer() -> MakeOptimizer:
    """Return Adam with the learning rate ``hyper.temperature_learning_rate``, within
    `TEMPERATURES`.

    Returns:
        The factory of the optimizer.
    """
    made = make_optimizer("adam", rate=lambda hyper: hyper.temperature_learning_rate)
    return made._replace(bounds=(math.log(TEMPERATURES[0]), math.log(TEMPERATURES[1])))


def temperature_gradient(
    log_temperature: jax.Array, entropy: jax.Array, target_entropy: jax.Array | float
) -> jax.Array:
    """Compute the gradient of a temperature that holds the policy's mean entropy at its target.

    Args:
        log_temperature: Logarithm of the temperature, scalar.
        entropy: Mean entropy in nats, scalar.
        target_entropy: Target in nats, scalar.

    Returns:
        A scalar.
    """
    return jax.grad(losses.temperature)(log_temperature, -entropy, target_entropy)


def unit_policy(outputs: jax.Array) -> jax.Array:
    """Compute the deterministic policy's action in ``[-1, 1]``.

    Args:
        outputs: Network outputs ``[..., A]``.

    Returns:
        Actions ``[..., A]``.
    """
    return jnp.tanh(outputs)


def noisy_action(space: Box, spread: float) -> tuple[Decide, InitDecide]:
    """Return action selection that adds normal noise to the action of the part ``actor``.

    Environments have different standard deviations, in equal ratios, from
    ``hyper.exploration_noise / spread`` in the first to ``hyper.exploration_noise * spread`` in the
    last. A single environment has ``hyper.exploration_noise``.

    Args:
        space: Action space.
        spread: Ratio of the largest deviation to the middle one, at least 1.

    Returns:
        The `Decide` function and the initializer of its state.

    Raises:
        ValueError: ``spread`` is less than 1 or infinite.

    Source: Horgan et al. (2018), section 4.1, arXiv 1803.00933, which spreads ε.
    """
    if not 1.0 <= spread < math.inf:
        raise ValueError(
            f"noise_spread={spread}: write a number of at least 1, which gives all environments one noise"
        )

    def init(num_envs: int) -> jax.Array:
        place = jnp.linspace(-1.0, 1.0, num_envs) if num_envs > 1 else jnp.zeros(1)
        return spread**place

    def decide(
        outputs: dict, obs: PyTree, state: PyTree, key: jax.Array, hyper: Any, explore: bool
    ) -> tuple:
        unit = unit_policy(outputs["actor"])
        if explore:
            noise = hyper.exploration_noise * state[:, None] * jax.random.normal(key, unit.shape)
            unit = jnp.clip(unit + noise, -1.0, 1.0)
        return distributions.from_unit(space, unit), state, {}

    return decide, init


class RepeatedNoise(NamedTuple):
    """Noise that an environment repeats for some steps.

    Attributes:
        noise: Standard normal, ``[E, ...]``.
        steps_left: Steps before a new draw, ``[E]``.
    """

    noise: jax.Array
    steps_left: jax.Array


def repeated_noise_action(
    space: Box, max_repeats: int, exponent: float = 2.0
) -> tuple[Decide, InitDecide]:
    """Return action selection that samples from the part ``actor`` with noise that is constant for
    n steps.

    Each environment draws n from 1 to ``max_repeats`` in proportion to ``n ** -exponent``.

    Args:
        space: Action space.
        max_repeats: Largest number of steps with the same noise.
        exponent: Exponent of the distribution of n.

    Returns:
        The `Decide` function and the initializer of its state.

    Source: Dabney et al. (2021), section 5, arXiv 2006.01782; noise instead of an action: arXiv
    2604.04539.
    """

    def init(num_envs: int) -> RepeatedNoise:
        return RepeatedNoise(jnp.zeros((num_envs, space.low.size)), jnp.zeros(num_envs, jnp.int32))

    def decide(
        outputs: dict, obs: PyTree, state: PyTree, key: jax.Array, hyper: Any, explore: bool
    ) -> tuple:
        dist = distributions.tanh_normal(outputs["actor"])
        if not explore:
            return distributions.to_action(space, dist.mean), state, {}
        noise_key, repeats_key = jax.random.split(key)
        ended = state.steps_left == 0
        chances = -exponent * jnp.log(jnp.arange(1, max_repeats + 1, dtype=jnp.float32))
        repeats = 1 + jax.random.categorical(repeats_key, chances, shape=ended.shape).astype(
            jnp.int32
        )
        noise = jnp.where(
            ended[:, None], jax.random.normal(noise_key, state.noise.shape), state.noise
        )
        state = RepeatedNoise(noise, jnp.where(ended, repeats, state.steps_left) - 1)
        return distributions.to_action(space, dist.mean + dist.scale * noise), state, {}

    return decide, init


def greedy_action(space: Actions, q: jax.Array, obs: PyTree) -> jax.Array:
    """Select the allowed action with the largest Q-value.

    Args:
        space: Action space.
        q: Q-values ``[..., num_joint(space)]``.
        obs: Observations, which may have a mask.

    Returns:
        Numbers of actions ``[...]``.
    """
    return distributions.mode(distributions.categorical(q, joint_mask(space, obs)))


FALLING_EPSILON = Linear(1.0, 0.05, 0.1)
"""Default share of random actions, as of Stable-Baselines3's DQN: 5 % after a tenth of the run."""


def epsilon_greedy(
    space: Actions, q: jax.Array, obs: PyTree, epsilon: jax.Array, key: jax.Array
) -> jax.Array:
    """Select the greedy action, or with probability ``epsilon`` a uniformly random allowed action.

    Args:
        space: Action space.
        q: Q-values ``[..., num_joint(space)]``.
        obs: Observations, which may have a mask.
        epsilon: Probability of a random action, scalar or one for each environment, which
            broadcasts to ``[...]``.
        key: Random key.

    Returns:
        Numbers of actions ``[...]``.
    """
    best, (which_key, action_key) = greedy_action(space, q, obs), jax.random.split(key)
    any_allowed = distributions.categorical(jnp.zeros_like(q), joint_mask(space, obs))
    at_random = jax.random.uniform(which_key, best.shape) < epsilon
    return jnp.where(at_random, distributions.sample(any_allowed, action_key), best)


def greedy_value(space: Actions, q: jax.Array, obs: PyTree) -> jax.Array:
    """Return the largest Q-value of the allowed actions.

    Args:
        space: Action space.
        q: Q-values ``[..., num_actions]``.
        obs: Observations, which may have a mask.

    Returns:
        Values ``[...]``.
    """
    return value_of(q, greedy_action(space, q, obs))


MAX_JOINT_ACTIONS = 4096
"""Largest number of combinations of a `MultiDiscrete` action that Q-networks number."""


def num_joint(space: Discrete | MultiDiscrete) -> int:
    """Return the number of actions, of a `MultiDiscrete` the number of its combinations.

    Args:
        space: Action space.

    Returns:
        The number.

    Raises:
        ValueError: There are more than `MAX_JOINT_ACTIONS`.
    """
    count = space.num_actions if isinstance(space, Discrete) else math.prod(space.sizes)
    if isinstance(space, MultiDiscrete) and count > MAX_JOINT_ACTIONS:
        raise ValueError(
            f"an action of {len(space.sizes)} parts has {count:,} combinations, and Q-values are for at most "
            f"{MAX_JOINT_ACTIONS:,}: write algo=ppo or algo=sac_discrete, which choose each part"
        )
    return count


def number_of(space: Actions, action: jax.Array) -> jax.Array:
    """Return the number of an action, from 0; the last part varies fastest.

    Args:
        space: Action space.
        action: Actions ``[...]``, or ``[..., D]`` of a `MultiDiscrete`.

    Returns:
        Numbers ``[...]``.
    """
    if not isinstance(space, MultiDiscrete):
        return action
    strides = np.array([math.prod(space.sizes[i + 1 :]) for i in range(len(space.sizes))], np.int32)
    return jnp.sum(action * strides.reshape((*(1,) * (action.ndim - 1), -1)), axis=-1)


def of_number(space: Actions, number: jax.Array) -> jax.Array:
    """Return the action of a number: the inverse of `number_of`.

    Args:
        space: Action space.
        number: Numbers ``[...]``.

    Returns:
        Actions ``[...]``, or ``[..., D]`` of a `MultiDiscrete`.
    """
    if not isinstance(space, MultiDiscrete):
        return number
    strides = [math.prod(space.sizes[i + 1 :]) for i in range(len(space.sizes))]
    # Numbers are not negative, so that C's quotient equals Python's.
    quotients = [jax.lax.div(number, jnp.int32(stride)) for stride in strides]
    parts = [jax.lax.rem(q, jnp.int32(n)) for q, n in zip(quotients, space.sizes, strict=True)]
    return jnp.concatenate([jnp.expand_dims(part, -1) for part in parts], axis=-1)


def joint_mask(space: Actions, obs: PyTree) -> jax.Array | None:
    """Return the mask of actions by number: a combination is allowed if each of its parts is.

    Args:
        space: Action space.
        obs: Observations, which may have a mask.

    Returns:
        Mask ``[..., num_joint(space)]``, or None.
    """
    mask = action_mask(obs)
    if mask is None or not isinstance(space, MultiDiscrete):
        return mask
    joint = jnp.ones((*mask.shape[:-1], 1), bool)
    for part in jnp.split(mask.astype(bool), list(accumulate(space.sizes))[:-1], axis=-1):
        joint = (joint[..., :, None] & part[..., None, :]).reshape(*mask.shape[:-1], -1)
    return joint


def by_q_values(
    space: Actions, q_of: Callable[[dict[str, Any]], jax.Array], epsilon_spread: float = 0.0
) -> tuple[Decide, InitDecide]:
    """Return `epsilon_greedy` action selection with ``hyper.epsilon``, greedy without exploration.

    With a spread, environments have different shares of random actions: ``hyper.epsilon`` to a
    power that grows from 1 in the first environment to ``1 + epsilon_spread`` in the last.

    Args:
        space: Action space.
        q_of: Picks Q-values ``[..., num_joint(space)]`` from the outputs by part.
        epsilon_spread: α of the paper; 0 for equal shares.

    Returns:
        The `Decide` function and the initializer of its state.

    Source: Horgan et al. (2018), section 4.1, arXiv 1803.00933.
    """

    def init(num_envs: int) -> PyTree:
        return (
            1.0 + epsilon_spread * jnp.arange(num_envs) / max(num_envs - 1, 1)
            if epsilon_spread
            else ()
        )

    def decide(
        outputs: dict, obs: PyTree, state: PyTree, key: jax.Array, hyper: Any, explore: bool
    ) -> tuple:
        q = q_of(outputs)
        if not explore:
            return of_number(space, greedy_action(space, q, obs)), state, {}
        epsilon = hyper.epsilon
        if epsilon_spread:
            epsilon = jnp.expand_dims(epsilon**state, tuple(range(1, q.ndim - 1)))
        return of_number(space, epsilon_greedy(space, q, obs, epsilon, key)), state, {}

    return decide, init


def value_of(q: jax.Array, action: jax.Array) -> jax.Array:
    """Return the Q-value of an action.

    Args:
        q: Q-values ``[..., num_actions]``.
        action: Numbers of actions ``[...]``.

    Returns:
        Values ``[...]``.
    """
    return distributions.pick(q, action)


Networks = dict[str, tuple[str, Network]]
"""By part: the name of the network that runs, and the network."""


class Carry(NamedTuple):
    """State of action selection in each environment, ``[E, ...]``.

    Attributes:
        frames: Images before the newest (`frame_stack.stacked_acting`); ``()`` without a frame
            stack.
        memory: Recurrent memory of each part whose network is recurrent.
        choice: State of the algorithm's action selection (`algorithm.InitDecide`).
        uniform_left: Uniformly random actions before the first of the algorithm, int32 ``[E]``
            (`uniform_first`); else ``()``.
    """

    frames: PyTree
    memory: dict[str, PyTree]
    choice: PyTree
    uniform_left: Any = ()


Explore = Callable[
    [dict[str, Learned], Carry, PyTree, jax.Array, jax.Array, Any], tuple[jax.Array, Carry, Extras]
]
"""(`Learned` by part, for all `Acting.parts`; carry; normalized obs ``[E, ...]``; first ``[E]``:
whether it begins an episode; key; hyper) -> (actions ``[E, ...]``, next carry, data to store).
"""


ActGreedily = Callable[
    [dict[str, PyTree], Carry, PyTree, jax.Array, jax.Array], tuple[jax.Array, Carry]
]
"""(params from `Acting.greedy_weights`, carry, normalized obs ``[E, ...]``, first ``[E]``, key) ->
(greedy actions ``[E, ...]``, next carry).
"""


class Acting(NamedTuple):
    """Action selection on normalized single frames ``[E, ...]``.

    Attributes:
        parts: Parts whose networks run in training: those that select actions, and recurrent ones
            whose memory is stored for the updates.
        chooses: Parts that select actions.
        greedy_weights: ``(learned) -> params by part`` that ``greedy`` needs.
        explore: Action selection in training.
        greedy: Action selection in evaluation.
        initial_carry: ``(num_envs) -> carry`` of ``explore`` before the first step, leaves
            ``[num_envs, ...]``.
        greedy_carry: ``(num_envs) -> carry`` of ``greedy`` before the first step.
    """

    parts: tuple[str, ...]
    chooses: tuple[str, ...]
    greedy_weights: Callable[[dict[str, Learned]], dict[str, PyTree]]
    explore: Explore
    greedy: ActGreedily
    initial_carry: Callable[[int], Carry]
    greedy_carry: Callable[[int], Carry]


def make_acting(agent: Agent) -> Acting:
    """Build the `Acting` of an agent, on observations as its networks read them.

    Args:
        agent: Algorithm built for one environment.

    Returns:
        The action selection.
    """
    chosen_by = {
        part: (name, agent.parts[part].networks[name]) for part, name in agent.acts.items()
    }
    followed = {
        part: (name, agent.parts[part].networks[name]) for part, name in agent.remembers.items()
    }
    both = chosen_by | followed

    def explore(
        learned: dict[str, Learned],
        carry: Carry,
        obs: PyTree,
        first: jax.Array,
        key: jax.Array,
        hyper: Any,
    ) -> tuple[jax.Array, Carry, Extras]:
        weights = weights_of(both, learned)
        weights = {
            part: net.draw_noise(weights[part], key, "acting", first.size)
            for part, (_, net) in both.items()
        }
        outputs, memory = _run(both, weights, carry.memory, obs, first)
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
        memory = {
            part: net.initial_memory(size) for part, (_, net) in networks.items() if net.recurrent
        }
        return Carry((), memory, agent.init_decide(size))

    return Acting(
        parts=tuple(both),
        chooses=tuple(chosen_by),
        greedy_weights=partial(weights_of, chosen_by),
        explore=explore,
        greedy=greedy,
        initial_carry=partial(initial, both),
        greedy_carry=partial(initial, chosen_by),
    )


def uniform_first(acting: Acting, space: Actions, steps: int) -> Acting:
    """Take uniformly random actions before the algorithm's.

    Args:
        acting: Action selection of the algorithm.
        space: Action space.
        steps: Number of random actions over all environments.

    Returns:
        Action selection whose first actions are random; greedy actions are unchanged.
    """

    def explore(
        learned: dict[str, Learned],
        carry: Carry,
        obs: PyTree,
        first: jax.Array,
        key: jax.Array,
        hyper: Any,
    ) -> tuple[jax.Array, Carry, Extras]:
        action, after, extras = acting.explore(learned, carry, obs, first, key, hyper)
        left = carry.uniform_left
        action = select(left > 0, uniform_action(space, obs, first.shape, key), action)
        return action, after._replace(uniform_left=jnp.maximum(left - 1, 0)), extras

    def initial_carry(num_envs: int) -> Carry:
        left = jnp.full(num_envs, -(-steps // num_envs), jnp.int32)
        return acting.initial_carry(num_envs)._replace(uniform_left=left)

    return acting._replace(explore=explore, initial_carry=initial_carry)


def uniform_action(
    space: Actions, obs: PyTree, batch: tuple[int, ...], key: jax.Array
) -> jax.Array:
    """Draw uniformly random actions among those that an ``action_mask`` allows.

    Args:
        space: Action space.
        obs: Observations, which may have a mask.
        batch: Shape of the batch, ``[E]``.
        key: Random key of the algorithm's decision, from which another is derived.

    Returns:
        Actions ``[E, ...]``.
    """
    key = jax.random.fold_in(key, stable_hash("uniform"))
    if isinstance(space, Box):
        return distributions.from_unit(
            space, jax.random.uniform(key, (*batch, space.low.size), minval=-1.0)
        )
    equal = jnp.zeros((*batch, distributions.num_outputs(space)))
    return distributions.sample(distributions.of_outputs(space, equal, action_mask(obs)), key)


def weights_of(networks: Networks, trained: dict[str, Learned]) -> dict[str, PyTree]:
    """Select the params of networks.

    Args:
        networks: Networks by part.
        trained: `Learned` by part.

    Returns:
        Params by part.
    """
    return {part: trained[part].params[name] for part, (name, _) in networks.items()}


def _run(
    networks: Networks,
    weights: dict[str, PyTree],
    memory: dict[str, PyTree],
    obs: PyTree,
    first: jax.Array,
) -> tuple[dict[str, Any], dict[str, PyTree]]:
    """Run one step of each network; return outputs ``[E, out]`` and memory, by part."""
    outputs, after = {}, {}
    for part, (_, network) in networks.items():
        action = (
            None
            if network.action_shape is None
            else jnp.zeros((1, *first.shape, *network.action_shape))
        )
        sequence = jax.tree.map(lambda x: x[None], obs)
        result, memories = network.apply(
            weights[part], memory.get(part, ()), sequence, first[None], action
        )
        outputs[part] = jax.tree.map(lambda x: x[0], result)
        if network.recurrent:
            after[part] = jax.tree.map(lambda x: x[0], memories)
    return outputs, after


class BoundAgent(NamedTuple):
    """An algorithm bound to an environment.

    Attributes:
        parts: Networks that are updated together, by name.
        acting: Action selection.
        `experience`: How rollouts become minibatches.
        hyper: Hyper-parameters at the start of the run, from which optimizers get the shapes of
            their state.
        rollout_length: Steps of each environment in a tick.
        updates_per_tick: Gradient updates in a tick (``K``); none in the first ``warmup_ticks``.
        batch_size: Environment steps in the minibatch of an update.
        batch_sequences: Sequences in the minibatch of an update.
        warmup_ticks: Ticks that only fill the replay buffer.
        normalize_observations: Whether networks read normalized observations.
        normalize_rewards: Whether losses get normalized rewards.
        max_return: As in `Agent`.
        num_agents: As in `EnvSpec`.
        products: Matrix products of the updates.
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
