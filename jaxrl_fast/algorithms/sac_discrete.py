"""Soft actor-critic for discrete actions (arXiv 1910.07207).

Targets and losses use the mean of the two critics, because their minimum underestimates (arXiv
2209.10081). Two parts, as in SAC: the critic (two Q-networks with target networks) and the actor
(the policy and the temperature). Expectations over actions are exact, so updates sample nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp

from jaxrl_fast.algorithms.shared_fields import (
    ActorCriticFields,
    MemoryFields,
    ObservationFields,
    OptimizerFields,
    SequenceFields,
    TargetRates,
    WarmupFields,
    policy_and_critics,
    replay_of,
    sizes_of_replay,
)
from jaxrl_fast.core import Actions, Discrete, EnvSpec, Metrics, MultiDiscrete, PyTree
from jaxrl_fast.learning.acting import (
    policy_of,
    sample_action,
    temperature_gradient,
    temperature_network,
    temperature_optimizer,
    value_of,
)
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
from jaxrl_fast.learning.critics import learned_obs, regression
from jaxrl_fast.networks.network import Network
from jaxrl_fast.numerics import distributions, losses
from jaxrl_fast.numerics.optimizers import (
    ABOVE_0,
    OptimizerName,
    Rate0,
    Rate01,
    check_optimizer,
    make_optimizer,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class SacDiscreteHyper(TargetRates):
    """Rates of SAC for discrete actions; ``weight_decay`` is in `OptimizerFields`."""

    temperature_learning_rate: Rate0 = 3e-4
    """Learning rate of the temperature's logarithm."""
    target_entropy_ratio: Rate01 = 0.3
    """Target entropy as a share of the entropy of random choices among the allowed actions."""
    max_grad_norm: Rate0 = 10.0


@dataclass(frozen=True, kw_only=True, eq=False)
class SacDiscrete(
    OptimizerFields,
    MemoryFields,
    ActorCriticFields,
    ObservationFields,
    SequenceFields,
    WarmupFields,
    SacDiscreteHyper,
):
    """SAC for discrete actions.

    A tick samples ``rollout_length`` steps in every environment, then makes ``updates_per_tick``
    updates once ``warmup_steps`` steps are in the buffer.
    """

    name: ClassVar[str] = "sac_discrete"

    rollout_length: int = 4
    updates_per_tick: int | None = None
    """Gradient updates in a tick; None for one per 4 sampled steps, at most 64."""
    batch_size: int = 128
    buffer_size: int = 100_000
    policy_hidden: tuple[int, ...] = (128, 128)
    critic_hidden: tuple[int, ...] = (128, 128)
    initial_temperature: Annotated[float, ABOVE_0] = 1.0
    """Temperature at the start of the run."""
    critic_loss: Callable[[jax.Array, jax.Array], jax.Array] = losses.squared_error
    """``(q, target) -> loss``, on scalars."""

    def sizes(self, num_envs: int, total_steps: int | None = None) -> dict[str, int]:
        """Compute the updates of a tick and the warm-up, unless they were given."""
        return sizes_of_replay(self, num_envs, total_steps, steps_per_update=4)

    def build(self, spec: EnvSpec, num_envs: int) -> Agent:
        """Build the agent for one environment."""
        space = require_actions("sac_discrete", spec, (Discrete, MultiDiscrete), "sac")
        check_optimizer(self.optimizer, self.weight_decay)
        data = replay_of(self, num_envs, steps_per_update=4)
        size = distributions.num_outputs(space)
        policy, q = policy_and_critics(self, spec.obs, policy_size=size, q_size=size)
        networks = {
            "policy": policy,
            "temperature": temperature_network(self.initial_temperature),
        }
        return Agent(
            parts={
                "critic": critic_part(space, policy, q, data, self.critic_loss, self.optimizer),
                "actor": actor_part(space, networks, q, data, self.optimizer),
            },
            data=data,
            acts={"actor": "policy"},
            remembers={"critic": "q"} if self.recurrent_size else {},
            decide=sample_action(space, remember=False),
            outputs_of=itemgetter("actor"),
            rollout_length=self.rollout_length,
            normalize_observations=self.normalize_observations,
        )


sac_discrete = SacDiscrete


def critic_part(
    space: Actions,
    policy: Network,
    q_networks: Network,
    data: Replay,
    critic_loss: Callable,
    optimizer: OptimizerName,
) -> Part:
    """Build the Q-networks' part: regression on the soft Bellman target.

    The value of a `MultiDiscrete` action is the sum of a value for each part, so that its mean
    under the policy is exact.

    Args:
        space: Action space.
        policy: Policy network.
        q_networks: Ensemble of Q-networks.
        data: Data of the updates.
        critic_loss: Loss of a value and its target.
        optimizer: `OptimizerName`.

    Returns:
        The part.

    Source: Christodoulou (2019), equations 9 and 10, arXiv 1910.07207.
    """

    def gradients(
        learned: Learned,
        peers: dict[str, Learned],
        batch: ReplayBatch,
        key: jax.Array,
        hyper: SacDiscreteHyper,
    ) -> GradientResult:
        actor = peers["actor"].params
        logits = over_successors(data, policy, actor["policy"], batch, "actor")
        next_q = jnp.mean(
            over_successors(data, q_networks, learned.target["q"], batch, "critic"), axis=0
        )
        dist = policy_of(space, logits, batch.next_obs)
        value = soft_value(space, dist, next_q, jnp.exp(actor["temperature"]))
        target = batch.reward + batch.bootstrap * value

        def loss_fn(params: PyTree) -> tuple[jax.Array, Metrics]:
            outputs = over_replay(data, q_networks, params, batch, "critic")
            q = jnp.stack([value_taken(space, x, batch.action) for x in outputs])
            loss = regression(critic_loss, q, target, batch)
            return loss, {"critic_loss": loss, "q_mean": jnp.mean(q)}

        grads, metrics = gradients_of(loss_fn, learned.params["q"])
        return GradientResult({"q": grads}, metrics)

    return Part(
        {"q": q_networks},
        gradients,
        {"q": make_optimizer(optimizer)},
        reads=("actor",),
        targets=("q",),
    )


def sizes_of(space: Actions) -> tuple[int, ...]:
    """Return the number of values of each part of an action.

    Args:
        space: Action space.

    Returns:
        One number of a `Discrete` space, several of a `MultiDiscrete`.
    """
    return (space.num_actions,) if isinstance(space, Discrete) else space.sizes  # type: ignore[union-attr]


def soft_value(
    space: Actions, dist: distributions.Distribution, q: jax.Array, temperature: jax.Array
) -> jax.Array:
    """Compute the mean value of the policy's actions with the bonus for entropy, summed over the
    parts of an action.

    Args:
        space: Action space.
        dist: Policy.
        q: Values of all parts, ``[..., sum of sizes]``.
        temperature: Temperature.

    Returns:
        Values ``[...]``.
    """
    assert not isinstance(dist, distributions.TanhNormal | distributions.Normal)
    if isinstance(space, Discrete):
        return losses.soft_value(dist.logits, q, temperature)
    each = losses.soft_value(
        dist.logits, distributions.by_part(sizes_of(space), q, 0.0), temperature
    )
    return jnp.sum(each, axis=-1)


def value_taken(space: Actions, q: jax.Array, action: jax.Array) -> jax.Array:
    """Compute the value of an action, summed over its parts.

    Args:
        space: Action space.
        q: Values of all parts, ``[..., sum of sizes]``.
        action: Actions ``[...]``, or ``[..., D]``.

    Returns:
        Values ``[...]``.
    """
    if isinstance(space, Discrete):
        return value_of(q, action)
    return jnp.sum(value_of(distributions.by_part(sizes_of(space), q, 0.0), action), axis=-1)


def actor_part(
    space: Actions,
    networks: dict[str, Network],
    q_networks: Network,
    data: Replay,
    optimizer: OptimizerName,
) -> Part:
    """Build the part of the policy and of the temperature.

    Args:
        space: Action space.
        networks: Policy and temperature.
        q_networks: Ensemble of Q-networks.
        data: Data of the updates.
        optimizer: `OptimizerName`.

    Returns:
        The part.

    Source: Christodoulou (2019), equations 12 (policy) and 11 (temperature), arXiv 1910.07207.
    """

    def gradients(
        learned: Learned,
        peers: dict[str, Learned],
        batch: ReplayBatch,
        key: jax.Array,
        hyper: SacDiscreteHyper,
    ) -> GradientResult:
        log_temperature = learned.params["temperature"]
        temperature = jnp.exp(log_temperature)
        q = jnp.mean(
            over_replay(
                data, q_networks, peers["critic"].params["q"], batch, "critic", learning=False
            ),
            axis=0,
        )

        def policy_loss(params: PyTree) -> tuple[jax.Array, Metrics]:
            logits = over_replay(data, networks["policy"], params, batch, "actor")
            dist = policy_of(space, logits, learned_obs(data, networks["policy"], batch))
            assert not isinstance(dist, distributions.TanhNormal | distributions.Normal)
            loss = -jnp.mean(soft_value(space, dist, q, temperature))
            target_entropy = hyper.target_entropy_ratio * jnp.mean(
                distributions.largest_entropy(dist)
            )
            metrics = {
                "entropy": jnp.mean(distributions.entropy(dist, key)),
                "target_entropy": target_entropy,
            }
            return loss, {"policy_loss": loss, **metrics}

        policy_grads, metrics = gradients_of(policy_loss, learned.params["policy"])
        temperature_grad = temperature_gradient(
            log_temperature, metrics["entropy"], metrics["target_entropy"]
        )
        grads = {"policy": policy_grads, "temperature": temperature_grad}
        return GradientResult(grads, {**metrics, "temperature": temperature})

    optimizers = {"policy": make_optimizer(optimizer), "temperature": temperature_optimizer()}
    return Part(networks, gradients, optimizers, reads=("critic",))
