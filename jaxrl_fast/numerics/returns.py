"""Returns: arrays in, arrays out, written for one environment and one sequence. The caller vmaps over E or B."""

import jax
import jax.numpy as jnp


def gae(
    reward: jax.Array,
    discount: jax.Array,
    value: jax.Array,
    next_value: jax.Array,
    done: jax.Array,
    gae_lambda: jax.Array | float,
) -> jax.Array:
    """Generalized advantage estimates ``[T]`` (arXiv 1506.02438, equation 16).

    ``discount`` is γ where the episode may go on and 0 where it terminated; ``next_value`` is the value of the true
    successor, so a truncated step still bootstraps; ``done`` (terminated or truncated) cuts the recursion.
    All inputs are ``[T]``.
    """
    delta = reward + discount * next_value - value
    decay = discount * gae_lambda * (1.0 - done.astype(reward.dtype))

    def step(advantage: jax.Array, xs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        delta_t, decay_t = xs
        advantage = delta_t + decay_t * advantage
        return advantage, advantage

    return jax.lax.scan(step, jnp.zeros_like(delta[-1]), (delta, decay), reverse=True, unroll=8)[1]


def n_step(
    reward: jax.Array, terminated: jax.Array, truncated: jax.Array, discount: jax.Array | float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The n-step return of a window of consecutive steps ``[n]`` (Sutton & Barto, 2nd edition, equation 7.1).

    Returns ``(reward sum, discount of the bootstrap value, index of the step to bootstrap after)``. The sum stops
    with the step that ends an episode; the bootstrap discount is 0 after a termination, γ^m after m steps otherwise.
    """
    done = terminated | truncated
    alive = jnp.cumprod(jnp.concatenate([jnp.ones(1), 1.0 - done[:-1].astype(jnp.float32)]))
    powers = jnp.asarray(discount, jnp.float32) ** jnp.arange(reward.shape[0], dtype=jnp.float32)
    last = jnp.sum(alive).astype(jnp.int32) - 1
    bootstrap = powers[last] * discount * (1.0 - terminated[last].astype(jnp.float32))
    return jnp.sum(reward * alive * powers), bootstrap, last
