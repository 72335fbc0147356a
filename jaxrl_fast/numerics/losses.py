"""Losses: arrays in, arrays out, one sample each. The caller vmaps and takes the mean."""

import jax
import jax.numpy as jnp


def clipped_surrogate(log_ratio: jax.Array, advantage: jax.Array, clip_range: jax.Array | float) -> jax.Array:
    """PPO's pessimistic policy loss, to be minimized (arXiv 1707.06347, equation 7)."""
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - clip_range, 1.0 + clip_range)
    return -jnp.minimum(ratio * advantage, clipped * advantage)


def squared_error(prediction: jax.Array, target: jax.Array) -> jax.Array:
    """Half the squared error, so that its gradient is the error itself."""
    return 0.5 * jnp.square(prediction - target)


def huber(prediction: jax.Array, target: jax.Array) -> jax.Array:
    """Half the squared error within 1 of the target, and beyond it a line of slope 1 (DQN's clipped error; Mnih et al.,
    Nature 2015, methods)."""
    error = jnp.abs(prediction - target)
    return jnp.where(error <= 1.0, 0.5 * jnp.square(error), error - 0.5)


def soft_target(
    reward: jax.Array, discount: jax.Array, next_q: jax.Array, next_log_prob: jax.Array, temperature: jax.Array
) -> jax.Array:
    """SAC's Bellman target (arXiv 1812.05905, equations 2 and 3); ``next_q`` holds the critics' values ``[2]``."""
    return reward + discount * (jnp.min(next_q) - temperature * next_log_prob)


def soft_policy(q: jax.Array, log_prob: jax.Array, temperature: jax.Array) -> jax.Array:
    """SAC's policy loss (arXiv 1812.05905, equation 7); ``q`` holds the critics' values ``[2]``."""
    return temperature * log_prob - least(q)


def least(q: jax.Array) -> jax.Array:
    """The least of the values ``[N]``; its gradient goes to the first of them that is so small."""
    return jnp.sum(jnp.where(jax.nn.one_hot(jnp.argmin(q), q.shape[-1], dtype=bool), q, 0.0))


def soft_value(logits: jax.Array, q: jax.Array, temperature: jax.Array) -> jax.Array:
    """The soft value of a categorical policy (arXiv 1910.07207, equation 10); ``logits`` and ``q`` ``[..., actions]``,
    exact over the actions."""
    log_prob = jax.nn.log_softmax(logits)
    return jnp.sum(jnp.exp(log_prob) * (q - temperature * log_prob), axis=-1)


def temperature(log_temperature: jax.Array, log_prob: jax.Array, target_entropy: jax.Array | float) -> jax.Array:
    """SAC's temperature loss (arXiv 1812.05905, equation 18); no gradient reaches the policy."""
    return -jnp.exp(log_temperature) * jax.lax.stop_gradient(log_prob + target_entropy)
