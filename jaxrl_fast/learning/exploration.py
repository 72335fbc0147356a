"""Choosing actions: from a stochastic policy, with noise, or by Q-values; and the temperature of a policy."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import Box, Discrete, PyTree
from jaxrl_fast.learning.algorithm import Decide, InitDecide
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
