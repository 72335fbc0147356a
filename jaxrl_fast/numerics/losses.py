"""Returns and losses of one environment and one sequence. The caller vmaps over ``E`` or ``B``."""

import jax
import jax.numpy as jnp

from jaxrl_fast.numerics.optimizers import Rate


def gae(
    reward: jax.Array,
    discount: jax.Array,
    value: jax.Array,
    next_value: jax.Array,
    done: jax.Array,
    gae_lambda: Rate,
) -> jax.Array:
    """Compute generalized advantage estimates.

    Args:
        reward: Rewards ``[T]``.
        discount: γ, or 0 where the episode terminated, ``[T]``.
        value: Values of the observations, ``[T]``.
        next_value: Values of ``next_obs``, from which a truncated step bootstraps, ``[T]``.
        done: Terminated or truncated, where the recursion stops, ``[T]``.
        gae_lambda: λ, scalar.

    Returns:
        Advantages ``[T]``.

    Source: Schulman et al. (2016), equation 16, arXiv 1506.02438.
    """
    delta = reward + discount * next_value - value
    decay = discount * gae_lambda * (1.0 - done.astype(reward.dtype))

    def step(advantage: jax.Array, xs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        delta_t, decay_t = xs
        advantage = delta_t + decay_t * advantage
        return advantage, advantage

    return jax.lax.scan(step, jnp.zeros_like(delta[-1]), (delta, decay), reverse=True, unroll=8)[1]


def lambda_return(
    reward: jax.Array,
    discount: jax.Array,
    next_value: jax.Array,
    done: jax.Array,
    return_lambda: jax.Array | float,
) -> jax.Array:
    """Compute λ-returns; Peng's Q(λ) if ``next_value`` is the value of the best action.

    The last step, and a step that ends an episode, bootstrap from ``next_value`` alone.

    Args:
        reward: Rewards ``[T]``.
        discount: γ, or 0 where the episode terminated, ``[T]``.
        next_value: Values of ``next_obs``, ``[T]``.
        done: Terminated or truncated, ``[T]``.
        return_lambda: λ, scalar.

    Returns:
        Returns ``[T]``.

    Source: Sutton and Barto (2018), section 12.1.
    """
    mix = return_lambda * (1.0 - done.astype(reward.dtype))

    def step(following: jax.Array, xs: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        reward_t, discount_t, value_t, mix_t = xs
        total = reward_t + discount_t * (value_t + mix_t * (following - value_t))
        return total, total

    return jax.lax.scan(
        step, next_value[-1], (reward, discount, next_value, mix), reverse=True, unroll=8
    )[1]


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
    """Compute V-trace targets and policy-gradient advantages.

    Args:
        reward: Rewards ``[T]``.
        discount: γ, or 0 where the episode terminated, ``[T]``.
        value: Values of the observations, ``[T]``.
        next_value: Values of ``next_obs``, ``[T]``.
        done: Terminated or truncated, ``[T]``.
        ratio: Probability of the action under the trained policy, divided by that under the policy
            that acted, ``[T]``.
        trace_lambda: λ, which multiplies the traces (remark 2), scalar.
        clip_rho: Upper bound of the importance weights ρ, scalar.
        clip_c: Upper bound of the trace weights c, scalar.

    Returns:
        Value targets and advantages, each ``[T]``.

    Source: Espeholt et al. (2018), equation 1 and section 4.2, arXiv 1802.01561.
    """
    rho, c = jnp.minimum(ratio, clip_rho), trace_lambda * jnp.minimum(ratio, clip_c)
    delta = rho * (reward + discount * next_value - value)
    goes_on = 1.0 - done.astype(reward.dtype)

    def step(
        following: jax.Array, xs: tuple[jax.Array, ...]
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        delta_t, decay_t, goes_on_t = xs
        following = goes_on_t * following
        correction = delta_t + decay_t * following
        return correction, (correction, following)

    xs = delta, discount * c, goes_on
    _, (correction, following) = jax.lax.scan(
        step, jnp.zeros_like(delta[-1]), xs, reverse=True, unroll=8
    )
    advantage = rho * (reward + discount * (next_value + following) - value)
    return value + correction, advantage


def n_step(
    reward: jax.Array, terminated: jax.Array, truncated: jax.Array, discount: jax.Array | float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Compute the n-step return of a window of consecutive steps.

    The sum stops with the step that ends an episode.

    Args:
        reward: Rewards ``[n]``.
        terminated: Terminations, bool ``[n]``.
        truncated: Truncations, bool ``[n]``.
        discount: γ, scalar.

    Returns:
        ``(sum of rewards, discount of the bootstrap value, index of the last step of the sum)``.
        The discount is 0 after a termination, else γ^m after m steps; the bootstrap value is that
        step's ``next_obs``'s.

    Source: Sutton and Barto (2018), equation 7.1.
    """
    done = terminated | truncated
    alive = jnp.cumprod(jnp.concatenate([jnp.ones(1), 1.0 - done[:-1].astype(jnp.float32)]))
    powers = jnp.asarray(discount, jnp.float32) ** jnp.arange(reward.shape[0], dtype=jnp.float32)
    last = jnp.sum(alive).astype(jnp.int32) - 1
    bootstrap = powers[last] * discount * (1.0 - terminated[last].astype(jnp.float32))
    return jnp.sum(reward * alive * powers), bootstrap, last


MAX_LOG_RATIO = 20.0


def ratio_of(log_ratio: jax.Array) -> jax.Array:
    """Compute a ratio of probabilities, at most ``exp(MAX_LOG_RATIO)``: infinity times 0 would be
    NaN in gradients.

    Args:
        log_ratio: Log-probability of an action minus its log-probability at sampling time.

    Returns:
        Ratios of the same shape.
    """
    return jnp.exp(jnp.minimum(log_ratio, MAX_LOG_RATIO))


def clipped_surrogate(
    log_ratio: jax.Array, advantage: jax.Array, clip_range: jax.Array | float
) -> jax.Array:
    """Compute PPO's clipped policy loss, to be minimized.

    Args:
        log_ratio: Log-probability of the action minus its log-probability at sampling time.
        advantage: Advantage, same shape.
        clip_range: ε, scalar.

    Returns:
        Losses of the same shape.

    Source: Schulman et al. (2017), equation 7, arXiv 1707.06347.
    """
    ratio = ratio_of(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - clip_range, 1.0 + clip_range)
    return -jnp.minimum(ratio * advantage, clipped * advantage)


def squared_error(prediction: jax.Array, target: jax.Array) -> jax.Array:
    """Compute half the squared error, whose gradient is the error.

    Args:
        prediction: Values of any shape.
        target: Values of the same shape.

    Returns:
        Losses of the same shape.
    """
    return 0.5 * jnp.square(prediction - target)


def huber(prediction: jax.Array, target: jax.Array) -> jax.Array:
    """Compute the Huber loss with threshold 1: half the squared error up to it, slope 1 beyond.

    Args:
        prediction: Values of any shape.
        target: Values of the same shape.

    Returns:
        Losses of the same shape.

    Source: Mnih et al. (2015), methods (clipped error), Nature 518.
    """
    error = jnp.abs(prediction - target)
    return jnp.where(error <= 1.0, 0.5 * jnp.square(error), error - 0.5)


def soft_target(
    reward: jax.Array,
    discount: jax.Array,
    next_q: jax.Array,
    next_log_prob: jax.Array,
    temperature: jax.Array,
) -> jax.Array:
    """Compute SAC's Bellman target.

    Args:
        reward: Reward, scalar.
        discount: γ, or 0 after a termination, scalar.
        next_q: Values of both target critics, ``[2]``.
        next_log_prob: Log-probability of the next action, scalar.
        temperature: Weight of the entropy, scalar.

    Returns:
        A scalar.

    Source: Haarnoja et al. (2018), equations 2 and 3, arXiv 1812.05905.
    """
    return reward + discount * (jnp.min(next_q) - temperature * next_log_prob)


def soft_policy(q: jax.Array, log_prob: jax.Array, temperature: jax.Array) -> jax.Array:
    """Compute SAC's policy loss.

    Args:
        q: Values of both critics, ``[2]``.
        log_prob: Log-probability of the policy's action, scalar.
        temperature: Weight of the entropy, scalar.

    Returns:
        A scalar.

    Source: Haarnoja et al. (2018), equation 7, arXiv 1812.05905.
    """
    return temperature * log_prob - least(q)


def least(q: jax.Array) -> jax.Array:
    """Return the smallest value; the gradient reaches only the first minimum.

    Args:
        q: Values ``[N]``.

    Returns:
        A scalar.
    """
    return jnp.sum(jnp.where(jax.nn.one_hot(jnp.argmin(q), q.shape[-1], dtype=bool), q, 0.0))


def soft_value(logits: jax.Array, q: jax.Array, temperature: jax.Array) -> jax.Array:
    """Compute the soft value of a categorical policy, exact over its actions.

    Args:
        logits: Logits of the policy, ``[..., num_actions]``.
        q: Action values ``[..., num_actions]``.
        temperature: Weight of the entropy, scalar.

    Returns:
        Values ``[...]``.

    Source: Christodoulou (2019), equation 10, arXiv 1910.07207.
    """
    log_prob = jax.nn.log_softmax(logits)
    return jnp.sum(jnp.exp(log_prob) * (q - temperature * log_prob), axis=-1)


def temperature(
    log_temperature: jax.Array, log_prob: jax.Array, target_entropy: jax.Array | float
) -> jax.Array:
    """Compute SAC's temperature loss; no gradient reaches the policy.

    Args:
        log_temperature: Logarithm of the temperature, scalar.
        log_prob: Log-probability of the policy's action.
        target_entropy: Entropy to hold, in nats.

    Returns:
        Losses of the shape of ``log_prob``.

    Source: Haarnoja et al. (2018), equation 18, arXiv 1812.05905.
    """
    return -jnp.exp(log_temperature) * jax.lax.stop_gradient(log_prob + target_entropy)
