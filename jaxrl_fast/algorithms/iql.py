"""Implicit Q-learning from recorded steps, for continuous actions (IQL, arXiv 2110.06169).

No loss evaluates an action that is not in the data: a value network learns an upper expectile of
the Q-values of the recorded actions, Q-networks bootstrap from that value, and the policy imitates
recorded actions with weights that grow with their advantage.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from jaxrl_fast.algorithms.ppo_options import with_free_outputs
from jaxrl_fast.algorithms.shared_fields import (
    ActorCriticFields,
    Dropout,
    ObservationFields,
    OptimizerFields,
    ReplayFields,
    TargetRates,
    layers_of,
    policy_and_critics,
    replay_of,
    sizes_of_replay,
)
from jaxrl_fast.core import Actions, Box, EnvSpec, Metrics, PyTree
from jaxrl_fast.learning.acting import sample_action
from jaxrl_fast.learning.algorithm import (
    Agent,
    GradientResult,
    Learned,
    Part,
    Replay,
    ReplayBatch,
    gradients_of,
    over_replay,
    over_successors,
    require_actions,
)
from jaxrl_fast.learning.critics import regression
from jaxrl_fast.networks.network import Network, make_network
from jaxrl_fast.numerics import distributions, losses
from jaxrl_fast.numerics.distributions import Normal
from jaxrl_fast.numerics.optimizers import (
    OptimizerName,
    Rate0,
    Rate01,
    check_optimizer,
    make_optimizer,
)

MAX_WEIGHT = 100.0
"""Largest weight of a recorded action, as published."""
LOG_DEVIATIONS = -5.0, 2.0
"""Bounds of the logarithm of the policy's standard deviations, as published."""


@dataclass(frozen=True, kw_only=True, eq=False)
class IqlHyper(TargetRates):
    """Rates of IQL; ``weight_decay`` is in `OptimizerFields`."""

    learning_rate: Rate0 = 3e-4
    """Learning rate of the critics."""
    actor_learning_rate_ratio: Rate0 = 1.0
    """Learning rate of the actor, relative to ``learning_rate``."""
    expectile: Rate01 = 0.7
    """Expectile of the Q-values that the value network learns, 0.5 (mean) to 1 (maximum)."""
    advantage_scale: Rate0 = 3.0
    """Factor of the advantage in the exponent of a recorded action's weight; β in the paper."""
    reward_scale: Rate0 = 1.0
    """Factor of the rewards, which scales advantages, too."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Iql(OptimizerFields, ActorCriticFields, ObservationFields, ReplayFields, IqlHyper):
    """IQL."""

    name: ClassVar[str] = "iql"

    batch_size: int = 256
    """Transitions in a minibatch."""
    buffer_size: int = 1_000_000
    """Capacity of the replay buffer of sampled steps."""
    critic_hidden: tuple[int, ...] = (256, 256)
    """Sizes of the hidden layers of critics and value network."""
    policy_dropout: Dropout = 0.0
    """Share of the outputs of the policy's hidden layers that an update sets to 0."""

    def sizes(self, num_envs: int, total_steps: int | None = None) -> dict[str, int]:
        """Compute the updates of a tick and the warm-up, unless they were given."""
        return sizes_of_replay(self, num_envs, total_steps)

    def build(self, spec: EnvSpec, num_envs: int) -> Agent:
        """Build the agent for one environment."""
        box = require_actions("iql", spec, (Box,), "bc")
        check_optimizer(self.optimizer, self.weight_decay)
        data = replay_of(self, num_envs)
        _, q = policy_and_critics(self, spec.obs, policy_size=1, action_shape=(box.low.size,))
        value = make_network(
            spec.obs,
            1,
            hidden=self.critic_hidden,
            keys=self.critic_keys,
            layer_norm=self.critic_layer_norm,
            **layers_of(self),
        )
        means = make_network(
            spec.obs,
            box.low.size,
            hidden=self.policy_hidden,
            keys=self.policy_keys,
            dropout=self.policy_dropout,
            out_scale=0.01,
            **layers_of(self),
        )
        policy = with_deviations(means, box.low.size)
        return Agent(
            parts={
                "critic": critic_part(box, q, value, data, self.optimizer),
                "actor": actor_part(box, policy, q, value, data, self.optimizer),
            },
            data=data,
            acts={"actor": "policy"},
            decide=sample_action(box, remember=False, policy=bounded_normal),
            rollout_length=self.rollout_length,
            normalize_observations=self.normalize_observations,
        )


iql = Iql


def with_deviations(policy: Network, size: int) -> Network:
    """Let trained deviations that are the same in every state follow the policy's means.

    Args:
        policy: Network of the means.
        size: Number of action dimensions.

    Returns:
        The network, also with dropout if ``policy`` has it.
    """
    whole, dropped = with_free_outputs(policy, (0.0,) * size), policy.with_dropout
    if dropped is None:
        return whole
    return whole._replace(with_dropout=lambda key: with_free_outputs(dropped(key), (0.0,) * size))


def bounded_normal(space: Actions, outputs: jax.Array, obs: PyTree = None) -> Normal:
    """Build the policy: normals with means in (-1, 1), whose samples are clipped.

    Args:
        space: Unused.
        outputs: Means before tanh, then logarithms of standard deviations, ``[..., 2 A]``.
        obs: Unused.

    Returns:
        The distribution.
    """
    mean, log_deviation = jnp.split(outputs, 2, axis=-1)
    return Normal(jnp.tanh(mean), jnp.exp(jnp.clip(log_deviation, *LOG_DEVIATIONS)))


def critic_part(
    box: Box, q_networks: Network, value: Network, data: Replay, optimizer: OptimizerName
) -> Part:
    """Build the part of the value network and the Q-networks.

    Args:
        box: Action space.
        q_networks: Ensemble of two Q-networks.
        value: Value network.
        data: Data of the updates.
        optimizer: `OptimizerName`.

    Returns:
        The part.

    Source: Kostrikov et al. (2021), equations 5 and 6, arXiv 2110.06169.
    """

    def gradients(
        learned: Learned,
        peers: dict[str, Learned],
        batch: ReplayBatch,
        key: jax.Array,
        hyper: IqlHyper,
    ) -> GradientResult:
        action = distributions.to_unit(box, batch.action)
        slow_q = jnp.min(
            over_replay(data, q_networks, learned.target["q"], batch, "critic", action)[..., 0],
            axis=0,
        )
        next_value = over_successors(data, value, learned.params["value"], batch, "critic")[..., 0]
        target = batch.reward + batch.bootstrap * next_value

        def value_loss(params: PyTree) -> tuple[jax.Array, Metrics]:
            now = over_replay(data, value, params, batch, "critic")[..., 0]
            loss = jnp.mean(expectile_error(slow_q - now, hyper.expectile))
            return loss, {"value_loss": loss, "value_mean": jnp.mean(now)}

        def q_loss(params: PyTree) -> tuple[jax.Array, Metrics]:
            q = over_replay(data, q_networks, params, batch, "critic", action)[..., 0]
            loss = regression(losses.squared_error, q, target, batch)
            return loss, {"critic_loss": loss, "q_mean": jnp.mean(q)}

        value_grads, of_value = gradients_of(value_loss, learned.params["value"])
        q_grads, of_q = gradients_of(q_loss, learned.params["q"])
        return GradientResult({"q": q_grads, "value": value_grads}, of_value | of_q)

    optimizers = dict.fromkeys(("q", "value"), make_optimizer(optimizer))
    return Part({"q": q_networks, "value": value}, gradients, optimizers, targets=("q",))


def expectile_error(error: jax.Array, expectile: jax.Array | float) -> jax.Array:
    """Compute the asymmetric squared error, whose minimum is at the expectile.

    Args:
        error: Differences of samples and prediction, ``[...]``.
        expectile: Weight of positive differences; negative ones have the rest.

    Returns:
        Errors ``[...]``.

    Source: Kostrikov et al. (2021), equation 4, arXiv 2110.06169.
    """
    return jnp.where(error > 0, expectile, 1.0 - expectile) * jnp.square(error)


def actor_part(
    box: Box,
    policy: Network,
    q_networks: Network,
    value: Network,
    data: Replay,
    optimizer: OptimizerName,
) -> Part:
    """Build the policy's part, which imitates recorded actions by the exponent of their advantage.

    Args:
        box: Action space.
        policy: Policy network.
        q_networks: Ensemble of Q-networks.
        value: Value network.
        data: Data of the updates.
        optimizer: `OptimizerName`.

    Returns:
        The part.

    Source: Kostrikov et al. (2021), equation 7, arXiv 2110.06169.
    """

    def gradients(
        learned: Learned,
        peers: dict[str, Learned],
        batch: ReplayBatch,
        key: jax.Array,
        hyper: IqlHyper,
    ) -> GradientResult:
        action, critic = distributions.to_unit(box, batch.action), peers["critic"]
        q = over_replay(
            data, q_networks, critic.target["q"], batch, "critic", action, learning=False
        )[..., 0]
        now = over_replay(data, value, critic.params["value"], batch, "critic", learning=False)[
            ..., 0
        ]
        weight = jnp.exp(
            jnp.minimum(hyper.advantage_scale * (jnp.min(q, axis=0) - now), math.log(MAX_WEIGHT))
        )
        learning = policy.with_dropout(key) if policy.with_dropout else policy

        def loss_fn(params: PyTree) -> tuple[jax.Array, Metrics]:
            dist = bounded_normal(box, over_replay(data, learning, params, batch, "actor"))
            loss = -jnp.mean(weight * distributions.log_prob(dist, action))
            return loss, {"policy_loss": loss, "weight_mean": jnp.mean(weight)}

        grads, metrics = gradients_of(loss_fn, learned.params["policy"])
        return GradientResult({"policy": grads}, metrics)

    own_rate = make_optimizer(
        optimizer, rate=lambda hyper: hyper.learning_rate * hyper.actor_learning_rate_ratio
    )
    return Part({"policy": policy}, gradients, {"policy": own_rate}, reads=("critic",))
