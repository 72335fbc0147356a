"""Soft actor-critic for discrete actions (arXiv 1910.07207).

Targets and losses use the mean of the two critics, because their minimum underestimates (arXiv
2209.10081). Two parts, as in SAC: the critic (two Q-networks with target networks) and the actor
(the policy and the temperature). Expectations over actions are exact, so updates sample nothing.
"""

from collections.abc import Callable
from operator import itemgetter
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

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
    Algorithm,
    GradientResult,
    Learned,
    Part,
    Replay,
    ReplayBatch,
    WarmupActions,
    gradients_of,
    off_policy_sizes,
    over_replay,
    over_successors,
    require_actions,
)
from jaxrl_fast.learning.critics import learned_obs, policy_and_critics, regression
from jaxrl_fast.networks.network import Activation, Cnn, MemoryKind, Network, Precision, Torso
from jaxrl_fast.numerics import distributions, losses
from jaxrl_fast.numerics.optimizers import (
    ABOVE_0,
    OptimizerName,
    Rate0,
    Rate01,
    check_optimizer,
    checks_numbers,
    make_optimizer,
)


class SacDiscreteHyper(NamedTuple):
    """Hyper-parameters, each a number or a schedule such as ``Linear(3e-4, 0.0)``.

    Attributes:
        learning_rate: Learning rate of all networks.
        temperature_learning_rate: Learning rate of the temperature's logarithm.
        discount: Discount factor γ per step.
        tau: Weight of the new params in target networks at each update, 0 to 1.
        target_entropy_ratio: Target entropy as a share of the entropy of random choices among the
            allowed actions.
        max_grad_norm: Norm to which the gradients of each network are clipped.
        reward_scale: Factor of the rewards.
        weight_decay: Weight decay of AdamW; 0 for other optimizers.
    """

    learning_rate: Any
    temperature_learning_rate: Any
    discount: Any
    tau: Any
    target_entropy_ratio: Any
    max_grad_norm: Any
    reward_scale: Any
    weight_decay: Any


@checks_numbers()
def sac_discrete(
    *,
    learning_rate: Rate0 = 3e-4,
    temperature_learning_rate: Rate0 = 3e-4,
    discount: Rate01 = 0.99,
    tau: Rate01 = 0.005,
    target_entropy_ratio: Rate01 = 0.3,
    max_grad_norm: Rate0 = 10.0,
    reward_scale: Rate0 = 1.0,
    weight_decay: Rate0 = 0.0,
    rollout_length: int = 4,
    updates_per_tick: int | None = None,
    batch_size: int = 128,
    buffer_size: int = 100_000,
    warmup_steps: int | None = None,
    warmup_actions: WarmupActions = "uniform",
    n_step: int = 1,
    sequence_length: int = 8,
    burn_in: int = 4,
    normalize_observations: bool | None = None,
    policy_hidden: tuple[int, ...] = (128, 128),
    critic_hidden: tuple[int, ...] = (128, 128),
    policy_keys: tuple[str, ...] = (),
    critic_keys: tuple[str, ...] = (),
    activation: Activation = "relu",
    critic_layer_norm: bool = False,
    memory: MemoryKind = "gru",
    recurrent_size: int = 0,
    initial_temperature: Annotated[float, ABOVE_0] = 1.0,
    network: Torso = "mlp",
    cnn: Cnn = "auto",
    optimizer: OptimizerName = "adam",
    precision: Precision = "f32",
    critic_loss: Callable[[jax.Array, jax.Array], jax.Array] = losses.squared_error,
) -> Algorithm:
    """Build SAC for discrete actions.

    A tick samples ``rollout_length`` steps in every environment, then makes ``updates_per_tick``
    updates once ``warmup_steps`` steps are in the buffer.

    Args:
        learning_rate: Learning rate of all networks.
        temperature_learning_rate: Learning rate of the temperature's logarithm.
        discount: Discount factor γ per step.
        tau: Weight of the new params in target networks at each update, 0 to 1.
        target_entropy_ratio: Target entropy as a share of the entropy of random choices among the
            allowed actions.
        max_grad_norm: Norm to which the gradients of each network are clipped.
        reward_scale: Factor of the rewards.
        weight_decay: Weight decay of AdamW; 0 for other optimizers.
        rollout_length: Steps of each environment in a tick.
        updates_per_tick: Gradient updates in a tick; None for one per 4 sampled steps, at most 64.
        batch_size: Transitions in a minibatch, or sequences with a memory.
        buffer_size: Capacity of the replay buffer in steps over all environments.
        warmup_steps: Steps over all environments before the first update; None for 5,000, or a 20th
            of a short run.
        warmup_actions: Actions of these steps: uniformly random ones, or the policy's.
        n_step: Steps whose rewards are summed before bootstrapping.
        sequence_length: Steps of a training sequence with a memory.
        burn_in: Steps before each sequence that only compute the memory.
        normalize_observations: Whether to normalize observations; None for all but images and
            grids.
        policy_hidden: Sizes of the policy's hidden layers.
        critic_hidden: Sizes of the critics' hidden layers.
        policy_keys: Entries of a dictionary observation that the policy reads; empty for all.
        critic_keys: Entries of a dictionary observation that the critic reads; empty for all.
        activation: Activation of the hidden layers.
        critic_layer_norm: Whether to normalize the critics' hidden layers.
        memory: Kind of the memory: "gru", "lstm", "mingru", "lru", "gtrxl-64x2" (window, layers),
            or your own function (`make_memory`).
        recurrent_size: Size of the memory before the hidden layers; 0 for none.
        initial_temperature: Temperature at the start of the run.
        network: Torso of the networks: "mlp", "residual", "simba", or your own function
            (`own_torso`).
        cnn: Convolutions for images (`make_network`).
        optimizer: ``adam``, ``adamw``, ``radam`` or ``rmsprop``; with constants
            ``adam:epsilon:beta1:beta2`` or ``rmsprop:epsilon:decay``.
        precision: "f32", or "bf16" for dense layers and convolutions.
        critic_loss: ``(q, target) -> loss``, on scalars.

    Returns:
        The algorithm.
    """
    rates = learning_rate, temperature_learning_rate, discount, tau, target_entropy_ratio
    hyper = SacDiscreteHyper(*rates, max_grad_norm, reward_scale, weight_decay)
    options: dict[str, Any] = dict(
        activation=activation, memory=memory, recurrent_size=recurrent_size
    )
    options |= dict(network=network, cnn=cnn, precision=precision)
    options |= dict(policy_hidden=tuple(policy_hidden), critic_hidden=tuple(critic_hidden))
    options |= dict(policy_keys=tuple(policy_keys), critic_keys=tuple(critic_keys))
    options |= dict(critic_layer_norm=critic_layer_norm, optimizer=optimizer)
    sizes = off_policy_sizes(rollout_length, updates_per_tick, warmup_steps, steps_per_update=4)

    def build(spec: EnvSpec, num_envs: int) -> Agent:
        space = require_actions("sac_discrete", spec, (Discrete, MultiDiscrete), "sac")
        check_optimizer(optimizer, weight_decay)
        updates, warmup = sizes(num_envs).values()
        data = Replay(buffer_size, batch_size, updates, warmup, n_step, sequence_length, burn_in)
        data = data._replace(warmup_actions=warmup_actions)
        size = distributions.num_outputs(space)
        policy, q = policy_and_critics(spec.obs, options, policy_size=size, q_size=size)
        networks = {"policy": policy, "temperature": temperature_network(initial_temperature)}
        return Agent(
            parts={
                "critic": critic_part(space, policy, q, data, critic_loss, optimizer),
                "actor": actor_part(space, networks, q, data, optimizer),
            },
            data=data,
            acts={"actor": "policy"},
            remembers={"critic": "q"} if recurrent_size else {},
            decide=sample_action(space, remember=False),
            outputs_of=itemgetter("actor"),
            rollout_length=rollout_length,
            normalize_observations=normalize_observations,
        )

    return Algorithm("sac_discrete", hyper, options, build, sizes)


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
        own: Learned,
        peers: dict[str, Learned],
        batch: ReplayBatch,
        key: jax.Array,
        hyper: SacDiscreteHyper,
    ) -> GradientResult:
        actor = peers["actor"].params
        logits = over_successors(data, policy, actor["policy"], batch, "actor")
        next_q = jnp.mean(
            over_successors(data, q_networks, own.target["q"], batch, "critic"), axis=0
        )
        dist = policy_of(space, logits, batch.next_obs)
        value = soft_value(space, dist, next_q, jnp.exp(actor["temperature"]))
        target = batch.reward + batch.bootstrap * value

        def loss_fn(params: PyTree) -> tuple[jax.Array, Metrics]:
            outputs = over_replay(data, q_networks, params, batch, "critic")
            q = jnp.stack([value_taken(space, x, batch.action) for x in outputs])
            loss = regression(critic_loss, q, target, batch)
            return loss, {"critic_loss": loss, "q_mean": jnp.mean(q)}

        grads, metrics = gradients_of(loss_fn, own.params["q"])
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
        own: Learned,
        peers: dict[str, Learned],
        batch: ReplayBatch,
        key: jax.Array,
        hyper: SacDiscreteHyper,
    ) -> GradientResult:
        log_temperature = own.params["temperature"]
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

        policy_grads, metrics = gradients_of(policy_loss, own.params["policy"])
        temperature_grad = temperature_gradient(
            log_temperature, metrics["entropy"], metrics["target_entropy"]
        )
        grads = {"policy": policy_grads, "temperature": temperature_grad}
        return GradientResult(grads, {**metrics, "temperature": temperature})

    optimizers = {"policy": make_optimizer(optimizer), "temperature": temperature_optimizer()}
    return Part(networks, gradients, optimizers, reads=("critic",))
