"""Twin delayed deep deterministic policy gradient, for continuous actions (TD3, arXiv 1802.09477).

Two parts: the critic (two Q-networks) and the actor, which steps at every second update; all have
target networks. With one Q-network, no delay and no noise on targets it is DDPG (arXiv 1509.02971).
Options: more critics, some of them at random in each target (REDQ, arXiv 2101.05982), dropout in
critics (DroQ, arXiv 2110.02034), prioritized replay (arXiv 1511.05952).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

from jaxrl_fast.algorithms.shared_fields import (
    ActorCriticFields,
    EnsembleFields,
    MemoryFields,
    ObservationFields,
    OptimizerFields,
    PriorityFields,
    SequenceFields,
    TargetRates,
    WarmupFields,
    policy_and_critics,
    replay_of,
    sizes_of_replay,
)
from jaxrl_fast.core import Box, EnvSpec, Metrics, PyTree
from jaxrl_fast.learning.acting import noisy_action, unit_policy
from jaxrl_fast.learning.algorithm import (
    Agent,
    DeclaredAlgorithm,
    GradientResult,
    Learned,
    Part,
    Replay,
    ReplayBatch,
    gradients_of,
    over_replay,
    over_successors,
    require_actions,
    require_positive,
)
from jaxrl_fast.learning.critics import (
    averages_critics,
    critic_priorities,
    random_critics,
    regression,
    target_size,
    with_dropout,
)
from jaxrl_fast.networks.network import Network
from jaxrl_fast.numerics import distributions, losses
from jaxrl_fast.numerics.optimizers import (
    FROM_0,
    OptimizerName,
    Rate0,
    Rate01,
    check_optimizer,
    make_optimizer,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Td3Hyper(TargetRates):
    """Rates of TD3; others are in `PriorityFields` and `OptimizerFields`."""

    learning_rate: Rate0 = 3e-4
    """Learning rate of the critics."""
    actor_learning_rate_ratio: Rate0 = 1.0
    """Learning rate of the actor, relative to ``learning_rate``."""
    tau: Rate01 = 0.005
    """Weight of the new params in target networks when the actor steps, 0 to 1."""
    exploration_noise: Rate0 = 0.1
    """Standard deviation of the noise on actions in training, in half ranges."""
    target_noise: Rate0 = 0.2
    """Standard deviation of the noise on the target's actions, in half ranges."""
    target_noise_clip: Rate0 = 0.5
    """Bound of that noise, in half ranges."""


@dataclass(frozen=True, kw_only=True, eq=False)
class DelayFields(DeclaredAlgorithm):
    """Noise of the environments, and updates between steps of the actor."""

    noise_spread: Annotated[float, FROM_0] = 2.0
    """Ratio of the last environment's noise to ``exploration_noise``; the first environment's noise
    is smaller by the same ratio.
    """
    policy_delay: int = 2
    """Updates between two steps of the actor and of all target networks."""


Penalty = Callable[[jax.Array, ReplayBatch, Any], jax.Array]
"""(unit actions ``[L, B, A]``, batch, hyper) -> their penalties ``[L, B]``."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Td3(
    OptimizerFields,
    MemoryFields,
    ActorCriticFields,
    ObservationFields,
    PriorityFields,
    SequenceFields,
    WarmupFields,
    EnsembleFields,
    DelayFields,
    Td3Hyper,
):
    """TD3; DDPG with ``num_critics=1, policy_delay=1, target_noise=0``.

    A tick samples ``rollout_length`` steps in every environment, then makes ``updates_per_tick``
    updates once ``warmup_steps`` steps are in the buffer. With several environments, the first
    explores with ``exploration_noise / noise_spread`` and the last with ``exploration_noise *
    noise_spread``.
    """

    name: ClassVar[str] = "td3"

    num_critics: int = 2
    """Number of Q-networks; with more than 2 the policy maximizes their mean instead of the first
    one.
    """
    critic_loss: Callable[[jax.Array, jax.Array], jax.Array] = losses.squared_error
    """``(q, target) -> loss``, on scalars."""

    def sizes(self, num_envs: int, total_steps: int | None = None) -> dict[str, int]:
        """Compute the updates of a tick and the warm-up, unless they were given."""
        return sizes_of_replay(self, num_envs, total_steps)

    def build(self, spec: EnvSpec, num_envs: int) -> Agent:
        """Build the agent for one environment."""
        box = require_actions("td3", spec, (Box,), "dqn")
        check_optimizer(self.optimizer, self.weight_decay)
        require_positive(policy_delay=self.policy_delay)
        targets = target_size(self.num_critics, self.target_critics)
        data = replay_of(self, num_envs)
        policy, q = policy_and_critics(
            self,
            spec.obs,
            policy_size=box.low.size,
            action_shape=(box.low.size,),
            num_critics=self.num_critics,
            critic_dropout=self.critic_dropout,
        )
        decide, init_decide = noisy_action(box, self.noise_spread)
        step = self.policy_delay, self.optimizer
        return Agent(
            parts={
                "critic": critic_part(box, policy, q, data, self.critic_loss, targets, *step),
                "actor": actor_part(policy, q, data, *step),
            },
            data=data,
            acts={"actor": "policy"},
            remembers={"critic": "q"} if self.recurrent_size else {},
            decide=decide,
            init_decide=init_decide,
            rollout_length=self.rollout_length,
            normalize_observations=self.normalize_observations,
        )


td3 = Td3


def critic_part(
    box: Box,
    policy: Network,
    q_networks: Network,
    data: Replay,
    critic_loss: Callable,
    target_critics: int,
    policy_delay: int,
    optimizer: OptimizerName,
    penalty: Penalty | None = None,
) -> Part:
    """Build the Q-networks' part: regression on the smallest target, with noise on the target
    policy's action.

    Args:
        box: Action space.
        policy: Policy network.
        q_networks: Ensemble of Q-networks.
        data: Data of the updates.
        critic_loss: Loss of a value and its target.
        target_critics: Number of Q-networks in each target.
        policy_delay: Updates between two steps of the target networks.
        optimizer: `OptimizerName`.
        penalty: Subtracted from the value of the next action; None for none.

    Returns:
        The part.

    Source: Fujimoto et al. (2018), equations 10 and 14, arXiv 1802.09477.
    """

    def gradients(
        learned: Learned,
        peers: dict[str, Learned],
        batch: ReplayBatch,
        key: jax.Array,
        hyper: Td3Hyper,
    ) -> GradientResult:
        next_action = unit_policy(
            over_successors(data, policy, peers["actor"].target["policy"], batch, "actor")
        )
        noise = hyper.target_noise * jax.random.normal(key, next_action.shape)
        noise = jnp.clip(noise, -hyper.target_noise_clip, hyper.target_noise_clip)
        smoothed = jnp.clip(next_action + noise, -1.0, 1.0)
        online, slow = (with_dropout(q_networks, key, use) for use in ("loss", "target"))
        next_q = over_successors(data, slow, learned.target["q"], batch, "critic", smoothed)[..., 0]
        next_q = random_critics(next_q, target_critics, key)
        next_value = jnp.min(next_q, axis=0) - (
            0.0 if penalty is None else penalty(smoothed, batch, hyper)
        )
        target = batch.reward + batch.bootstrap * next_value

        def loss_fn(params: PyTree) -> tuple[jax.Array, tuple[Metrics, Any]]:
            action = distributions.to_unit(box, batch.action)
            q = over_replay(data, online, params, batch, "critic", action)[..., 0]
            loss = regression(critic_loss, q, target, batch)
            return loss, (
                {"critic_loss": loss, "q_mean": jnp.mean(q)},
                critic_priorities(data, q, target),
            )

        grads, (metrics, priorities) = gradients_of(loss_fn, learned.params["q"])
        return GradientResult({"q": grads}, metrics, priorities=priorities)

    def target_rate(hyper: Td3Hyper, updates: jax.Array) -> jax.Array:
        return jnp.where(updates % policy_delay == 0, hyper.tau, 0.0)

    optimizers = {"q": make_optimizer(optimizer)}
    return Part(
        {"q": q_networks},
        gradients,
        optimizers,
        reads=("actor",),
        targets=("q",),
        target_rate=target_rate,
    )


def actor_part(
    policy: Network,
    q_networks: Network,
    data: Replay,
    policy_delay: int,
    optimizer: OptimizerName,
    penalty: Penalty | None = None,
) -> Part:
    """Build the policy's part, which maximizes the first Q-network's value, or the mean
    (`averages_critics`).

    Args:
        policy: Policy network.
        q_networks: Ensemble of Q-networks.
        data: Data of the updates.
        policy_delay: Updates between two steps of this part.
        optimizer: `OptimizerName`.
        penalty: Subtracted from the value of the action, which is then divided by its mean size
            (arXiv 2106.06860, equation 5); None for the value alone.

    Returns:
        The part.

    Source: Fujimoto et al. (2018), algorithm 1, arXiv 1802.09477.
    """

    def gradients(
        learned: Learned,
        peers: dict[str, Learned],
        batch: ReplayBatch,
        key: jax.Array,
        hyper: Td3Hyper,
    ) -> GradientResult:
        critic, q_of = peers["critic"].params["q"], with_dropout(q_networks, key, "policy")

        def loss_fn(params: PyTree) -> tuple[jax.Array, Metrics]:
            action = unit_policy(over_replay(data, policy, params, batch, "actor"))
            q = over_replay(data, q_of, critic, batch, "critic", action, learning=False)[..., 0]
            value = q if averages_critics(q_networks) else q[0]
            loss = -jnp.mean(value)
            if penalty is not None:
                size = jax.lax.stop_gradient(jnp.mean(jnp.abs(value)))
                loss = loss / (size + 1e-8) + jnp.mean(penalty(action, batch, hyper))
            return loss, {"policy_loss": loss}

        grads, metrics = gradients_of(loss_fn, learned.params["policy"])
        return GradientResult({"policy": grads}, metrics)

    own_rate = make_optimizer(
        optimizer, rate=lambda hyper: hyper.learning_rate * hyper.actor_learning_rate_ratio
    )
    optimizers = {"policy": own_rate}
    return Part(
        {"policy": policy},
        gradients,
        optimizers,
        reads=("critic",),
        targets=("policy",),
        every=policy_delay,
    )
