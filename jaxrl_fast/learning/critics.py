"""Critics of off-policy algorithms: ensembles of Q-networks with their regression, and values as
quantiles or bins.

Also the loss of a policy that imitates actions, of a teacher or from data.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp

from jaxrl_fast.core import Actions, Box, PyTree, stable_hash
from jaxrl_fast.learning.acting import policy_of
from jaxrl_fast.learning.algorithm import (
    Prioritize,
    Replay,
    ReplayBatch,
    elementwise,
    mean_loss,
    require_positive,
    sequence_priority,
)
from jaxrl_fast.networks.network import Head, Heads, Network
from jaxrl_fast.numerics import distributions
from jaxrl_fast.numerics.distributions import (
    categorical,
    cross_entropy,
    divergence,
    pick,
    project,
    quantile_huber,
)
from jaxrl_fast.numerics.optimizers import one_of


def regression(
    critic_loss: Callable, q: jax.Array, target: jax.Array, batch: ReplayBatch
) -> jax.Array:
    """Sum the critics' mean losses.

    Args:
        critic_loss: Loss of a value and its target, scalars.
        q: Values ``[N, L, B]``.
        target: Targets ``[L, B]``.
        batch: Batch with importance weights.

    Returns:
        A scalar.
    """
    return sum(
        (mean_loss(elementwise(critic_loss, x, target), batch) for x in q), start=jnp.zeros(())
    )


def prioritize_critic(exponent: float) -> Prioritize | None:
    """Return prioritized replay by the errors of the part ``critic``, weighted by
    ``hyper.importance_exponent``.

    Args:
        exponent: Exponent of the priorities; 0 for uniform sampling.

    Returns:
        A value of `Replay.prioritize`.
    """
    return (
        Prioritize("critic", exponent, lambda hyper: hyper.importance_exponent)
        if exponent
        else None
    )


def critic_priorities(data: Replay, q: jax.Array, target: jax.Array) -> Any:
    """Compute priorities from the mean absolute error over critics.

    Args:
        data: Data of the updates.
        q: Values ``[N, L, B]``.
        target: Targets ``[L, B]``.

    Returns:
        Priorities ``[B]`` (`sequence_priority`), or ``()`` if replay is not prioritized.
    """
    return sequence_priority(jnp.mean(jnp.abs(q - target[None]), axis=0)) if data.prioritize else ()


def target_size(num_critics: int, target_critics: int | None) -> int:
    """Return the number of critics in a target.

    Args:
        num_critics: Number of critics.
        target_critics: The given number; None for all.

    Returns:
        The number.

    Raises:
        ValueError: There is no critic, or the target has none or more than there are.
    """
    require_positive(num_critics=num_critics)
    if target_critics is not None and not 1 <= target_critics <= num_critics:
        raise ValueError(
            f"target_critics={target_critics}: write 1 to {num_critics} (num_critics), or leave it out"
        )
    return num_critics if target_critics is None else target_critics


def random_critics(q: jax.Array, count: int, key: jax.Array) -> jax.Array:
    """Select the values of some critics at random, the same critics for the whole batch.

    Args:
        q: Values ``[N, L, B]``.
        count: Number of critics to select.
        key: Random key of the update, from which another is derived.

    Returns:
        Values ``[count, L, B]``; all of them, in order, if ``count`` is N.

    Source: Chen et al. (2021), REDQ, algorithm 1, arXiv 2101.05982.
    """
    if count == len(q):
        return q
    return q[
        jax.random.permutation(jax.random.fold_in(key, stable_hash("critics")), len(q))[:count]
    ]


def with_dropout(network: Network, key: jax.Array, use: str) -> Network:
    """Return a network with its dropout switched on, if it has any.

    Args:
        network: Network.
        key: Random key of the update.
        use: Name of this use in the update; each use drops other outputs.

    Returns:
        The network.

    Source: Hiraoka et al. (2022), DroQ, algorithm 2, arXiv 2110.02034.
    """
    return (
        network.with_dropout(jax.random.fold_in(key, stable_hash(use)))
        if network.with_dropout
        else network
    )


def averages_critics(q_networks: Network) -> bool:
    """Return whether the policy maximizes the mean of the critics, as in REDQ and DroQ.

    Args:
        q_networks: Ensemble of Q-networks.

    Returns:
        True for more than two critics, or critics with dropout.
    """
    return q_networks.ensemble_size > 2 or q_networks.with_dropout is not None


ValueKind = Literal["scalar", "categorical", "quantiles", "implicit"]


class ValueHead(NamedTuple):
    """Representation of values.

    Attributes:
        width: Outputs of the network's last layer for each action.
        expected: ``(outputs [..., width]) -> values [...]``.
        loss: ``(outputs, reward, bootstrap, following) -> (loss, priority)``, which compares one
            step with its Bellman target: ``outputs`` ``[width]`` of the step, ``following``
            ``[width]`` of the next one, ``bootstrap`` the discount, 0 after a termination. The
            priority is for prioritized replay.
        num_levels: Random levels of a `QuantileMlp` in a loss. If not 0, outputs have the width 2 N
            instead.
    """

    width: int
    expected: Callable[[jax.Array], jax.Array]
    loss: Callable[[jax.Array, jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
    num_levels: int = 0


def make_value_head(
    kind: ValueKind,
    num_atoms: int,
    value_range: tuple[float, float],
    scalar_loss: Callable[..., jax.Array],
) -> ValueHead:
    """Build a value head by name.

    Args:
        kind: "scalar", "categorical", "quantiles" or "implicit".
        num_atoms: Width of a distribution, or number of random levels.
        value_range: First and last atom of a categorical head.
        scalar_loss: Loss of a value and its target, of a scalar head.

    Returns:
        The head.

    Raises:
        ValueError: The name does not exist, there are fewer than 2 atoms, or the range is empty.
    """
    if kind == "scalar":
        return scalar_head(scalar_loss)
    if kind not in get_args(ValueKind):
        raise ValueError(f"value_head={kind}: write {one_of(get_args(ValueKind))}")
    if num_atoms < 2:
        raise ValueError(f"num_atoms={num_atoms}: write a number of at least 2, such as 51")
    if kind in ("quantiles", "implicit"):
        return quantile_head(num_atoms) if kind == "quantiles" else implicit_head(num_atoms)
    if not value_range[0] < value_range[1]:
        low, high = value_range
        raise ValueError(
            f"value_min={low} is not below value_max={high}: write the range of discounted returns"
        )
    return categorical_head(num_atoms, value_range)


def scalar_head(scalar_loss: Callable[..., jax.Array]) -> ValueHead:
    """Build a head whose output is the value.

    Args:
        scalar_loss: Loss of a value and its target.

    Returns:
        The head; the priority is the error.
    """

    def loss(
        outputs: jax.Array, reward: jax.Array, bootstrap: jax.Array, following: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        target = reward + bootstrap * following[0]
        return scalar_loss(outputs[0], target), outputs[0] - target

    return ValueHead(1, lambda outputs: outputs[..., 0], loss)


def categorical_head(num_atoms: int, value_range: tuple[float, float]) -> ValueHead:
    """Build a head of probabilities of evenly spaced returns, as logits.

    The priority is the Kullback-Leibler divergence from the target, as in Rainbow (arXiv
    1710.02298).

    Args:
        num_atoms: Number of atoms.
        value_range: First and last atom.

    Returns:
        The head.

    Source: Bellemare et al. (2017), C51, arXiv 1707.06887.
    """

    def atoms() -> jax.Array:
        return jnp.linspace(*value_range, num_atoms)

    def expected(outputs: jax.Array) -> jax.Array:
        return jnp.sum(jax.nn.softmax(outputs) * jnp.broadcast_to(atoms(), outputs.shape), axis=-1)

    def loss(
        outputs: jax.Array, reward: jax.Array, bootstrap: jax.Array, following: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        target = project(reward + bootstrap * atoms(), jax.nn.softmax(following), atoms())
        return cross_entropy(outputs, target), divergence(outputs, target)

    return ValueHead(num_atoms, expected, loss)


def quantile_head(num_quantiles: int) -> ValueHead:
    """Build a head of quantiles of the return; the priority is the loss.

    Args:
        num_quantiles: Number of quantiles.

    Returns:
        The head.

    Source: Dabney et al. (2018), QR-DQN, arXiv 1710.10044.
    """

    def loss(
        outputs: jax.Array, reward: jax.Array, bootstrap: jax.Array, following: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        step_losses = quantile_huber(outputs, reward + bootstrap * following)
        return step_losses, step_losses

    return ValueHead(num_quantiles, lambda outputs: jnp.mean(outputs, axis=-1), loss)


def implicit_head(num_levels: int) -> ValueHead:
    """Build a head of quantiles of the return at random levels; the priority is the loss.

    Args:
        num_levels: Number of levels of a step, and of samples of its Bellman target (N and N' of
            the paper).

    Returns:
        The head.

    Source: Dabney et al. (2018), IQN, equations 2 and 3, arXiv 1806.06923.
    """

    def expected(outputs: jax.Array) -> jax.Array:
        return jnp.mean(jnp.split(outputs, 2, axis=-1)[0], axis=-1)

    def loss(
        outputs: jax.Array, reward: jax.Array, bootstrap: jax.Array, following: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        (quantiles, levels), (samples, _) = jnp.split(outputs, 2), jnp.split(following, 2)
        step_losses = quantile_huber(quantiles, reward + bootstrap * samples, levels=levels)
        return step_losses, step_losses

    return ValueHead(1, expected, loss, num_levels)


def with_levels(network: Network, key: jax.Array, use: str) -> Network:
    """Return a network that outputs quantiles at random levels, if it outputs quantiles at any
    level.

    Args:
        network: Network.
        key: Random key of the update.
        use: Name of this use in the update; each use draws other levels.

    Returns:
        The network.
    """
    return (
        network.with_levels(jax.random.fold_in(key, stable_hash(f"levels: {use}")))
        if network.with_levels
        else network
    )


def learned_obs(data: Replay, network: Network, batch: ReplayBatch) -> PyTree:
    """Select the observations of the steps that enter the loss.

    Args:
        data: Lengths of the sequences.
        network: Network that reads them.
        batch: Sequences.

    Returns:
        Observations ``[L, B, ...]``.
    """
    steps = slice(data.burn_in, data.burn_in + batch.reward.shape[0])
    return jax.tree.map(lambda x: x[steps], batch.obs) if network.recurrent else batch.obs


LEAST_LOG_POLICY = -1.0
"""Smallest logarithm of a probability, times the temperature, in `munchausen_reward` (l0 of the
paper, section 4).
"""


def log_softmax_policy(q: jax.Array, mask: jax.Array | None, temperature: float) -> jax.Array:
    """Compute the log-probabilities of the softmax policy of Q-values.

    Args:
        q: Q-values ``[..., num_actions]``.
        mask: True where an action is allowed, ``[..., num_actions]``; None allows all.
        temperature: Temperature τ.

    Returns:
        Log-probabilities ``[..., num_actions]``.
    """
    return jax.nn.log_softmax(categorical(q / temperature, mask).logits)


def soft_outputs(outputs: jax.Array, log_policy: jax.Array, temperature: float) -> jax.Array:
    """Average outputs over a policy, with its entropy as a bonus: the value of the next step in
    soft Q-learning.

    Args:
        outputs: Values, or quantiles of returns, ``[..., num_actions, width]``.
        log_policy: Log-probabilities of the policy ``[..., num_actions]``.
        temperature: Weight τ of the entropy.

    Returns:
        Outputs ``[..., width]``.

    Source: Vieillard et al. (2020), equations 1 and 2, arXiv 2007.14430; quantiles: appendix B.1.
    """
    log_policy = log_policy[..., None]
    return jnp.sum(jnp.exp(log_policy) * (outputs - temperature * log_policy), axis=-2)


def munchausen_reward(
    log_policy: jax.Array, action: jax.Array, weight: float, temperature: float
) -> jax.Array:
    """Compute what Munchausen DQN adds to the reward: the scaled and clipped log-probability of the
    action.

    Args:
        log_policy: Log-probabilities of the policy ``[..., num_actions]``.
        action: Numbers of actions ``[...]``.
        weight: Weight α.
        temperature: Temperature τ.

    Returns:
        Additional rewards ``[...]``, from ``weight * LEAST_LOG_POLICY`` to 0.

    Source: Vieillard et al. (2020), equation 2 and section 4, arXiv 2007.14430.
    """
    return weight * jnp.clip(temperature * pick(log_policy, action), LEAST_LOG_POLICY, 0.0)


def q_outputs(num_actions: int, width: int, dueling: bool) -> int | Heads:
    """Return the heads of a network with ``width`` outputs for each action.

    Args:
        num_actions: Number of actions.
        width: Outputs for each action.
        dueling: Whether to separate values and advantages.

    Returns:
        Number of outputs, or heads by name.
    """
    return (
        {"value": Head(width), "advantage": Head(num_actions * width)}
        if dueling
        else num_actions * width
    )


def by_action(outputs: Any, num_actions: int) -> jax.Array:
    """Arrange the outputs of a `q_outputs` network by action; dueling heads are summed.

    Args:
        outputs: Outputs ``[..., num_actions * width]``, or a dictionary of heads.
        num_actions: Number of actions.

    Returns:
        ``[..., num_actions, width]``.

    Source: Wang et al. (2016), equation 9, arXiv 1511.06581.
    """
    if not isinstance(outputs, dict):
        return outputs.reshape(*outputs.shape[:-1], num_actions, -1)
    advantage = by_action(outputs["advantage"], num_actions)
    return by_action(outputs["value"], 1) + advantage - jnp.mean(advantage, axis=-2, keepdims=True)


def of_action(outputs: jax.Array, action: jax.Array) -> jax.Array:
    """Select the outputs of an action.

    Args:
        outputs: Outputs ``[..., num_actions, width]``.
        action: Actions ``[...]``.

    Returns:
        ``[..., width]``.
    """
    return jnp.take_along_axis(outputs, action[..., None, None], axis=-2)[..., 0, :]


def imitation_loss(space: Actions, decided: jax.Array, obs: PyTree, action: jax.Array) -> jax.Array:
    """Compute the loss of a policy at actions that it shall take.

    Args:
        space: Action space.
        decided: Greedy actions of the policy ``[..., *action_shape]``; of discrete actions, the
            outputs of the policy's network, ``[..., num_outputs(space)]``.
        obs: Observations ``[..., *obs]``, which may have an ``action_mask``.
        action: Actions to take, ``[..., *action_shape]``.

    Returns:
        Losses ``[...]``: mean squared distance in half ranges, or negative log-likelihood.
    """
    if isinstance(space, Box):
        distance = distributions.to_unit(space, decided) - distributions.to_unit(space, action)
        return jnp.mean(jnp.square(distance), axis=-1)
    return -distributions.log_prob(policy_of(space, decided, obs), action)
