"""Returns and losses: arrays in, arrays out, written for one environment and one sequence.

The caller vmaps over E or B.
"""

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


def lambda_return(
    reward: jax.Array, discount: jax.Array, next_value: jax.Array, done: jax.Array, return_lambda: jax.Array | float
) -> jax.Array:
    """λ-returns ``[T]`` (Sutton & Barto, 2nd edition, section 12.1); Peng's Q(λ) where ``next_value`` is that of the
    best action.

    ``discount``, ``next_value`` and ``done`` as for `gae`; the last step, and one that ends an episode, bootstrap from
    ``next_value`` alone. All inputs are ``[T]``.
    """
    mix = return_lambda * (1.0 - done.astype(reward.dtype))

    def step(following: jax.Array, xs: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        reward_t, discount_t, value_t, mix_t = xs
        total = reward_t + discount_t * (value_t + mix_t * (following - value_t))
        return total, total

    return jax.lax.scan(step, next_value[-1], (reward, discount, next_value, mix), reverse=True, unroll=8)[1]


def v_trace(
    reward: jax.Array,
    discount: jax.Array,
    value: jax.Array,
    next_value: jax.Array,
    done: jax.Array,
    ratio: jax.Array,
    trace_lambda: jax.Array | float,
    clip_rho: jax.Array | float,
    clip_c: jax.Array | float,
) -> tuple[jax.Array, jax.Array]:
    """V-trace targets and policy-gradient advantages, each ``[T]`` (arXiv 1802.01561, equation 1 and section 4.2).

    ``ratio``: the probability of the action under the policy that learns by that under the one that acted; λ multiplies
    the traces (remark 2). ``discount``, ``next_value`` and ``done`` as for `gae`. All inputs but the last three are
    ``[T]``.
    """
    rho, c = jnp.minimum(ratio, clip_rho), trace_lambda * jnp.minimum(ratio, clip_c)
    delta = rho * (reward + discount * next_value - value)
    goes_on = 1.0 - done.astype(reward.dtype)

    def step(following: jax.Array, xs: tuple[jax.Array, ...]) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        delta_t, decay_t, goes_on_t = xs
        following = goes_on_t * following
        correction = delta_t + decay_t * following
        return correction, (correction, following)

    xs = delta, discount * c, goes_on
    _, (correction, following) = jax.lax.scan(step, jnp.zeros_like(delta[-1]), xs, reverse=True, unroll=8)
    advantage = rho * (reward + discount * (next_value + following) - value)
    return value + correction, advantage


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
