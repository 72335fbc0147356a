"""Twin delayed deep deterministic policy gradient, for continuous actions (TD3, arXiv 1802.09477).

Two parts: the critic (two Q-networks) and the actor, which steps at every second update; all have
target networks. With one Q-network, no delay and no noise on targets it is DDPG (arXiv 1509.02971).
Options: more critics, some of them at random in each target (REDQ, arXiv 2101.05982), dropout in
critics (DroQ, arXiv 2110.02034), prioritized replay (arXiv 1511.05952).
"""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import Box, EnvSpec, Metrics, Number, PyTree
from jaxrl_fast.learning.acting import noisy_action, unit_policy
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
    require_positive,
)
from jaxrl_fast.learning.critics import (
    averages_critics,
    critic_priorities,
    policy_and_critics,
    prioritize_critic,
    random_critics,
    regression,
    target_size,
    with_dropout,
)
from jaxrl_fast.networks.network import Activation, Cnn, MemoryKind, Network, Precision, Torso
from jaxrl_fast.numerics import distributions, losses
from jaxrl_fast.numerics.optimizers import (
    FROM_0,
    FROM_0_TO_1,
    OptimizerName,
    Rate0,
    Rate01,
    check_optimizer,
    checks_numbers,
    make_optimizer,
)


class Td3Hyper(NamedTuple):
    """Hyper-parameters, each a number or a schedule such as ``Linear(3e-4, 0.0)``.

    Attributes:
        learning_rate: Learning rate of the critics.
        actor_learning_rate_ratio: Learning rate of the actor, relative to ``learning_rate``.
        discount: Discount factor γ per step.
        tau: Weight of the new params in target networks when the actor steps, 0 to 1.
        exploration_noise: Standard deviation of the noise on actions in training, in half ranges.
        target_noise: Standard deviation of the noise on the target's actions, in half ranges.
        target_noise_clip: Bound of that noise, in half ranges.
        max_grad_norm: Norm to which the gradients of each network are clipped.
        reward_scale: Factor of the rewards.
        weight_decay: Weight decay of AdamW; 0 for other optimizers.
        importance_exponent: Exponent of the importance weights in prioritized replay, 0 (none) to 1
            (full).
    """

    learning_rate: Any
    actor_learning_rate_ratio: Any
    discount: Any
    tau: Any
    exploration_noise: Any
    target_noise: Any
    target_noise_clip: Any
    max_grad_norm: Any
    reward_scale: Any
    weight_decay: Any
    importance_exponent: Any


Penalty = Callable[[jax.Array, ReplayBatch, Any], jax.Array]
"""(unit actions ``[L, B, A]``, batch, hyper) -> their penalties ``[L, B]``."""


@checks_numbers()
def td3(
    *,
    learning_rate: Rate0 = 3e-4,
    actor_learning_rate_ratio: Rate0 = 1.0,
    discount: Rate01 = 0.99,
    tau: Rate01 = 0.005,
    exploration_noise: Rate0 = 0.1,
    target_noise: Rate0 = 0.2,
    target_noise_clip: Rate0 = 0.5,
    max_grad_norm: Rate0 = 1e6,
    reward_scale: Rate0 = 1.0,
    weight_decay: Rate0 = 0.0,
    noise_spread: Annotated[float, FROM_0] = 2.0,
    policy_delay: int = 2,
    num_critics: int = 2,
    target_critics: int | None = None,
    critic_dropout: Annotated[float, Number(0, 0.9)] = 0.0,
    rollout_length: int = 1,
    updates_per_tick: int | None = None,
    batch_size: int = 256,
    buffer_size: int = 1_000_000,
    warmup_steps: int | None = None,
    warmup_actions: WarmupActions = "uniform",
    n_step: int = 1,
    sequence_length: int = 8,
    burn_in: int = 4,
    priority_exponent: Annotated[float, FROM_0_TO_1] = 0.0,
    importance_exponent: Rate01 = 0.4,
    normalize_observations: bool | None = None,
    policy_hidden: tuple[int, ...] = (256, 256),
    critic_hidden: tuple[int, ...] = (256, 256),
    policy_keys: tuple[str, ...] = (),
    critic_keys: tuple[str, ...] = (),
    activation: Activation = "relu",
    critic_layer_norm: bool = False,
    memory: MemoryKind = "gru",
    recurrent_size: int = 0,
    network: Torso = "mlp",
    cnn: Cnn = "auto",
    optimizer: OptimizerName = "adam",
    precision: Precision = "f32",
    critic_loss: Callable[[jax.Array, jax.Array], jax.Array] = losses.squared_error,
) -> Algorithm:
    """Build TD3; DDPG with ``num_critics=1, policy_delay=1, target_noise=0``.

    A tick samples ``rollout_length`` steps in every environment, then makes ``updates_per_tick``
    updates once ``warmup_steps`` steps are in the buffer. With several environments, the first
    explores with ``exploration_noise / noise_spread`` and the last with
    ``exploration_noise * noise_spread``.

    Args:
        learning_rate: Learning rate of the critics.
        actor_learning_rate_ratio: Learning rate of the actor, relative to ``learning_rate``.
        discount: Discount factor γ per step.
        tau: Weight of the new params in target networks when the actor steps, 0 to 1.
        exploration_noise: Standard deviation of the noise on actions in training, in half ranges.
        target_noise: Standard deviation of the noise on the target's actions, in half ranges.
        target_noise_clip: Bound of that noise, in half ranges.
        max_grad_norm: Norm to which the gradients of each network are clipped.
        reward_scale: Factor of the rewards.
        weight_decay: Weight decay of AdamW; 0 for other optimizers.
        noise_spread: Ratio of the last environment's noise to ``exploration_noise``; the first
            environment's noise is smaller by the same ratio.
        policy_delay: Updates between two steps of the actor and of all target networks.
        num_critics: Number of Q-networks; with more than 2 the policy maximizes their mean instead
            of the first one.
        target_critics: Number of Q-networks whose minimum is the target, drawn anew in every
            update; None for all.
        critic_dropout: Share of the outputs of the critics' hidden layers that an update sets to 0;
            the policy then maximizes the critics' mean.
        rollout_length: Steps of each environment in a tick.
        updates_per_tick: Gradient updates in a tick; None for one per sampled step, at most 64.
        batch_size: Transitions in a minibatch, or sequences with a memory.
        buffer_size: Capacity of the replay buffer in steps over all environments.
        warmup_steps: Steps over all environments before the first update; None for 5,000, or a 20th
            of a short run.
        warmup_actions: Actions of these steps: uniformly random ones, or the policy's.
        n_step: Steps whose rewards are summed before bootstrapping.
        sequence_length: Steps of a training sequence with a memory.
        burn_in: Steps before each sequence that only compute the memory.
        priority_exponent: Exponent of the priorities in prioritized replay; 0 for uniform sampling.
        importance_exponent: Exponent of the importance weights in prioritized replay, 0 (none) to 1
            (full).
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
    rates = (
        learning_rate,
        actor_learning_rate_ratio,
        discount,
        tau,
        exploration_noise,
        target_noise,
        target_noise_clip,
    )
    hyper = Td3Hyper(*rates, max_grad_norm, reward_scale, weight_decay, importance_exponent)
    options: dict[str, Any] = dict(
        activation=activation, memory=memory, recurrent_size=recurrent_size
    )
    options |= dict(network=network, cnn=cnn, precision=precision)
    options |= dict(policy_hidden=tuple(policy_hidden), critic_hidden=tuple(critic_hidden))
    options |= dict(policy_keys=tuple(policy_keys), critic_keys=tuple(critic_keys))
    options |= dict(
        critic_layer_norm=critic_layer_norm, critic_dropout=critic_dropout, num_critics=num_critics
    )
    options |= dict(optimizer=optimizer)
    sizes = off_policy_sizes(rollout_length, updates_per_tick, warmup_steps)

    def build(spec: EnvSpec, num_envs: int) -> Agent:
        box = require_actions("td3", spec, (Box,), "dqn")
        check_optimizer(optimizer, weight_decay)
        require_positive(policy_delay=policy_delay)
        targets = target_size(num_critics, target_critics)
        updates, warmup = sizes(num_envs).values()
        data = Replay(buffer_size, batch_size, updates, warmup, n_step, sequence_length, burn_in)
        data = data._replace(
            warmup_actions=warmup_actions, prioritize=prioritize_critic(priority_exponent)
        )
        shapes: dict[str, Any] = dict(
            policy_size=box.low.size, action_shape=(box.low.size,), num_critics=num_critics
        )
        policy, q = policy_and_critics(spec.obs, options, **shapes)
        decide, init_decide = noisy_action(box, noise_spread)
        return Agent(
            parts={
                "critic": critic_part(
                    box, policy, q, data, critic_loss, targets, policy_delay, optimizer
                ),
                "actor": actor_part(policy, q, data, policy_delay, optimizer),
            },
            data=data,
            acts={"actor": "policy"},
            remembers={"critic": "q"} if recurrent_size else {},
            decide=decide,
            init_decide=init_decide,
            rollout_length=rollout_length,
            normalize_observations=normalize_observations,
        )

    return Algorithm("td3", hyper, options, build, sizes)


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
        own: Learned, peers: dict[str, Learned], batch: ReplayBatch, key: jax.Array, hyper: Td3Hyper
    ) -> GradientResult:
        next_action = unit_policy(
            over_successors(data, policy, peers["actor"].target["policy"], batch, "actor")
        )
        noise = hyper.target_noise * jax.random.normal(key, next_action.shape)
        noise = jnp.clip(noise, -hyper.target_noise_clip, hyper.target_noise_clip)
        smoothed = jnp.clip(next_action + noise, -1.0, 1.0)
        online, slow = (with_dropout(q_networks, key, use) for use in ("loss", "target"))
        next_q = over_successors(data, slow, own.target["q"], batch, "critic", smoothed)[..., 0]
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

        grads, (metrics, priorities) = gradients_of(loss_fn, own.params["q"])
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
        own: Learned, peers: dict[str, Learned], batch: ReplayBatch, key: jax.Array, hyper: Td3Hyper
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

        grads, metrics = gradients_of(loss_fn, own.params["policy"])
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
