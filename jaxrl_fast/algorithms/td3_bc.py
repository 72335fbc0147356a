"""TD3 that stays close to recorded actions, to learn from data (TD3+BC, arXiv 2106.06860; ReBRAC,
arXiv 2305.09836).

TD3 with two penalties on the squared distance to the recorded actions: of the policy's actions in
its loss, and of the next actions in the critics' target. Critics have layer norms and three hidden
layers, as in ReBRAC.
"""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.algorithms.td3 import actor_part, critic_part
from jaxrl_fast.core import Box, EnvSpec
from jaxrl_fast.learning.acting import noisy_action
from jaxrl_fast.learning.algorithm import (
    Agent,
    Algorithm,
    Replay,
    ReplayBatch,
    off_policy_sizes,
    require_actions,
    require_positive,
)
from jaxrl_fast.learning.critics import policy_and_critics
from jaxrl_fast.learning.data import NEXT_ACTION
from jaxrl_fast.networks.network import Activation, Cnn, MemoryKind, Precision, Torso
from jaxrl_fast.numerics import distributions, losses
from jaxrl_fast.numerics.optimizers import (
    FROM_0,
    OptimizerName,
    Rate0,
    Rate01,
    check_optimizer,
    checks_numbers,
    is_set,
)


class Td3BcHyper(NamedTuple):
    """Hyper-parameters, each a number or a schedule such as ``Linear(3e-4, 0.0)``.

    Attributes:
        learning_rate: Learning rate of the critics.
        actor_learning_rate_ratio: Learning rate of the actor, relative to ``learning_rate``.
        discount: Discount factor γ per step.
        tau: Weight of the new params in target networks when the actor steps, 0 to 1.
        actor_penalty: Weight of the policy's squared distance to recorded actions, next to values
            of mean size 1.
        critic_penalty: Weight of the next action's squared distance to the recorded one, in units
            of the return.
        exploration_noise: Standard deviation of the noise on actions when the environment is
            stepped, in half ranges.
        target_noise: Standard deviation of the noise on the target's actions, in half ranges.
        target_noise_clip: Bound of that noise, in half ranges.
        max_grad_norm: Norm to which the gradients of each network are clipped.
        reward_scale: Factor of the rewards.
        weight_decay: Weight decay of AdamW; 0 for other optimizers.
    """

    learning_rate: Any
    actor_learning_rate_ratio: Any
    discount: Any
    tau: Any
    actor_penalty: Any
    critic_penalty: Any
    exploration_noise: Any
    target_noise: Any
    target_noise_clip: Any
    max_grad_norm: Any
    reward_scale: Any
    weight_decay: Any


@checks_numbers()
def td3_bc(
    *,
    learning_rate: Rate0 = 3e-4,
    actor_learning_rate_ratio: Rate0 = 1.0,
    discount: Rate01 = 0.99,
    tau: Rate01 = 0.005,
    actor_penalty: Rate0 = 0.4,
    critic_penalty: Rate0 = 0.0,
    exploration_noise: Rate0 = 0.1,
    target_noise: Rate0 = 0.2,
    target_noise_clip: Rate0 = 0.5,
    max_grad_norm: Rate0 = 1e6,
    reward_scale: Rate0 = 1.0,
    weight_decay: Rate0 = 0.0,
    noise_spread: Annotated[float, FROM_0] = 2.0,
    policy_delay: int = 2,
    rollout_length: int = 1,
    updates_per_tick: int | None = None,
    batch_size: int = 256,
    buffer_size: int = 1_000_000,
    warmup_steps: int | None = None,
    n_step: int = 1,
    sequence_length: int = 8,
    burn_in: int = 4,
    normalize_observations: bool | None = None,
    policy_hidden: tuple[int, ...] = (256, 256, 256),
    critic_hidden: tuple[int, ...] = (256, 256, 256),
    policy_keys: tuple[str, ...] = (),
    critic_keys: tuple[str, ...] = (),
    activation: Activation = "relu",
    critic_layer_norm: bool = True,
    memory: MemoryKind = "gru",
    recurrent_size: int = 0,
    network: Torso = "mlp",
    cnn: Cnn = "auto",
    optimizer: OptimizerName = "adam",
    precision: Precision = "f32",
) -> Algorithm:
    """Build TD3+BC with ReBRAC's additions; TD3+BC as published with
    ``critic_penalty=0, critic_layer_norm=False``.

    Args:
        learning_rate: Learning rate of the critics.
        actor_learning_rate_ratio: Learning rate of the actor, relative to ``learning_rate``.
        discount: Discount factor γ per step.
        tau: Weight of the new params in target networks when the actor steps, 0 to 1.
        actor_penalty: Weight of the policy's squared distance to recorded actions, next to values
            of mean size 1; 1 / α of TD3+BC.
        critic_penalty: Weight of the next action's squared distance to the recorded one, in units
            of the return.
        exploration_noise: Standard deviation of the noise on actions when the environment is
            stepped, in half ranges.
        target_noise: Standard deviation of the noise on the target's actions, in half ranges.
        target_noise_clip: Bound of that noise, in half ranges.
        max_grad_norm: Norm to which the gradients of each network are clipped.
        reward_scale: Factor of the rewards.
        weight_decay: Weight decay of AdamW; 0 for other optimizers.
        noise_spread: Ratio of the last environment's noise to ``exploration_noise``; the first
            environment's noise is smaller by the same ratio.
        policy_delay: Updates between two steps of the actor and of all target networks.
        rollout_length: Steps of each environment in a tick.
        updates_per_tick: Gradient updates in a tick; None for one per step, at most 64.
        batch_size: Transitions in a minibatch, or sequences with a memory.
        buffer_size: Capacity of the replay buffer of sampled steps.
        warmup_steps: Steps before the first update, without data; None for 5,000, or a 20th of a
            short run.
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
        network: Torso of the networks: "mlp", "residual", "simba", or your own function
            (`own_torso`).
        cnn: Convolutions for images (`make_network`).
        optimizer: ``adam``, ``adamw``, ``radam`` or ``rmsprop``; with constants
            ``adam:epsilon:beta1:beta2`` or ``rmsprop:epsilon:decay``.
        precision: "f32", or "bf16" for dense layers and convolutions.

    Returns:
        The algorithm.
    """
    rates = (
        learning_rate,
        actor_learning_rate_ratio,
        discount,
        tau,
        actor_penalty,
        critic_penalty,
        exploration_noise,
    )
    hyper = Td3BcHyper(
        *rates, target_noise, target_noise_clip, max_grad_norm, reward_scale, weight_decay
    )
    options: dict[str, Any] = dict(
        activation=activation, memory=memory, recurrent_size=recurrent_size
    )
    options |= dict(network=network, cnn=cnn, precision=precision)
    options |= dict(policy_hidden=tuple(policy_hidden), critic_hidden=tuple(critic_hidden))
    options |= dict(policy_keys=tuple(policy_keys), critic_keys=tuple(critic_keys))
    options |= dict(critic_layer_norm=critic_layer_norm, optimizer=optimizer)
    sizes = off_policy_sizes(rollout_length, updates_per_tick, warmup_steps)

    def build(spec: EnvSpec, num_envs: int) -> Agent:
        box = require_actions("td3_bc", spec, (Box,), "bc")
        check_optimizer(optimizer, weight_decay)
        require_positive(policy_delay=policy_delay)
        if n_step > 1 and is_set(critic_penalty):
            raise ValueError(
                f"n_step={n_step}: data has the next action only: write n_step=1, or critic_penalty=0"
            )
        updates, warmup = sizes(num_envs).values()
        data = Replay(
            buffer_size,
            batch_size,
            updates,
            warmup,
            n_step,
            sequence_length,
            burn_in,
            keep=(NEXT_ACTION,),
        )
        policy, q = policy_and_critics(
            spec.obs, options, policy_size=box.low.size, action_shape=(box.low.size,), num_critics=2
        )
        noisy, init_decide = noisy_action(box, noise_spread)

        def decide(*given: Any) -> tuple:
            action, state, _ = noisy(*given)
            return action, state, {NEXT_ACTION: jnp.full_like(action, jnp.nan)}

        def of_policy(action: jax.Array, batch: ReplayBatch, hyper: Td3BcHyper) -> jax.Array:
            return hyper.actor_penalty * squared_distance(
                action, distributions.to_unit(box, batch.action)
            )

        def of_next(action: jax.Array, batch: ReplayBatch, hyper: Td3BcHyper) -> jax.Array:
            recorded = distributions.to_unit(box, batch.extras[NEXT_ACTION])
            return hyper.critic_penalty * squared_distance(action, recorded)

        step = policy_delay, optimizer
        return Agent(
            parts={
                "critic": critic_part(
                    box, policy, q, data, losses.squared_error, 2, *step, penalty=of_next
                ),
                "actor": actor_part(policy, q, data, *step, penalty=of_policy),
            },
            data=data,
            acts={"actor": "policy"},
            remembers={"critic": "q"} if recurrent_size else {},
            decide=decide,
            init_decide=init_decide,
            rollout_length=rollout_length,
            normalize_observations=normalize_observations,
        )

    return Algorithm("td3_bc", hyper, options, build, sizes)


def squared_distance(action: jax.Array, recorded: jax.Array) -> jax.Array:
    """Compute the squared distance to recorded actions; 0 where there is none.

    Args:
        action: Unit actions ``[..., A]``.
        recorded: Recorded unit actions ``[..., A]``, or NaN.

    Returns:
        Distances ``[...]``, means over the dimensions of the action.
    """
    there = jnp.isfinite(recorded)
    return jnp.mean(
        jnp.square(jnp.where(there, action - jnp.where(there, recorded, 0.0), 0.0)), axis=-1
    )
