"""FastTD3: TD3 for many environments, with large batches and values as distributions (arXiv
2505.22642).

Each environment draws its exploration noise anew from a range, critics learn distributions of
returns by cross-entropy, and a tick makes few updates of large batches. Published sizes are for a
GPU: 1,024 environments, batches of 32,768, critics of (1024, 512, 256) and a policy of (512, 256,
128) units.
"""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.algorithms.flash_sac import lower_of
from jaxrl_fast.core import Box, EnvSpec, Metrics, PyTree
from jaxrl_fast.learning.acting import unit_policy
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
from jaxrl_fast.learning.critics import ValueHead, make_value_head, policy_and_critics
from jaxrl_fast.networks.network import Activation, Cnn, Network, Precision, Torso
from jaxrl_fast.numerics import distributions, losses
from jaxrl_fast.numerics.optimizers import (
    ANY,
    OptimizerName,
    Rate0,
    Rate01,
    check_optimizer,
    checks_numbers,
    make_optimizer,
)


class FastTd3Hyper(NamedTuple):
    """Hyper-parameters, each a number or a schedule such as ``Linear(3e-4, 0.0)``.

    Attributes:
        learning_rate: Learning rate.
        discount: Discount factor γ per step.
        tau: Weight of the new params in target networks, 0 to 1.
        noise_min: Smallest standard deviation of an environment's noise in training, in half
            ranges.
        noise_max: Largest standard deviation of an environment's noise.
        target_noise: Standard deviation of the noise on the target's actions.
        target_noise_clip: Bound of that noise.
        max_grad_norm: Norm to which the gradients of each network are clipped.
        reward_scale: Factor of the rewards.
        weight_decay: Weight decay of AdamW; 0 for other optimizers.
    """

    learning_rate: Any
    discount: Any
    tau: Any
    noise_min: Any
    noise_max: Any
    target_noise: Any
    target_noise_clip: Any
    max_grad_norm: Any
    reward_scale: Any
    weight_decay: Any


@checks_numbers()
def fast_td3(
    *,
    learning_rate: Rate0 = 3e-4,
    discount: Rate01 = 0.99,
    tau: Rate01 = 0.1,
    noise_min: Rate0 = 0.001,
    noise_max: Rate0 = 0.4,
    target_noise: Rate0 = 0.001,
    target_noise_clip: Rate0 = 0.5,
    max_grad_norm: Rate0 = 1e6,
    reward_scale: Rate0 = 1.0,
    weight_decay: Rate0 = 0.1,
    policy_delay: int = 2,
    num_atoms: int = 101,
    value_min: Annotated[float, ANY] = -10.0,
    value_max: Annotated[float, ANY] = 10.0,
    rollout_length: int = 1,
    updates_per_tick: int | None = 2,
    batch_size: int = 2048,
    buffer_size: int = 1_000_000,
    warmup_steps: int | None = None,
    warmup_actions: WarmupActions = "policy",
    n_step: int = 1,
    normalize_observations: bool | None = None,
    normalize_rewards: bool = True,
    policy_hidden: tuple[int, ...] = (256, 128, 64),
    critic_hidden: tuple[int, ...] = (512, 256, 128),
    policy_keys: tuple[str, ...] = (),
    critic_keys: tuple[str, ...] = (),
    activation: Activation = "relu",
    critic_layer_norm: bool = False,
    network: Torso = "mlp",
    cnn: Cnn = "auto",
    optimizer: OptimizerName = "adamw",
    precision: Precision = "f32",
) -> Algorithm:
    """Build FastTD3.

    Args:
        learning_rate: Learning rate.
        discount: Discount factor γ per step.
        tau: Weight of the new params in target networks, 0 to 1.
        noise_min: Smallest standard deviation of an environment's noise in training, in half
            ranges.
        noise_max: Largest standard deviation of an environment's noise.
        target_noise: Standard deviation of the noise on the target's actions.
        target_noise_clip: Bound of that noise.
        max_grad_norm: Norm to which the gradients of each network are clipped.
        reward_scale: Factor of the rewards.
        weight_decay: Weight decay of AdamW; 0 for other optimizers.
        policy_delay: Updates between two steps of the actor.
        num_atoms: Atoms of the distribution of returns.
        value_min: First atom.
        value_max: Last atom.
        rollout_length: Steps of each environment in a tick.
        updates_per_tick: Gradient updates in a tick; None for one per sampled step, at most 64.
        batch_size: Transitions in a minibatch.
        buffer_size: Capacity of the replay buffer in steps over all environments.
        warmup_steps: Steps over all environments before the first update; None for 5,000, or a 20th
            of a short run.
        warmup_actions: Actions of these steps: uniformly random ones, or the policy's.
        n_step: Steps whose rewards are summed before bootstrapping.
        normalize_observations: Whether to normalize observations; None for all but images and
            grids.
        normalize_rewards: Whether to scale rewards so that returns are within the atoms; published:
            no.
        policy_hidden: Sizes of the policy's hidden layers.
        critic_hidden: Sizes of the critics' hidden layers.
        policy_keys: Entries of a dictionary observation that the policy reads; empty for all.
        critic_keys: Entries of a dictionary observation that the critics read; empty for all.
        activation: Activation of the hidden layers.
        critic_layer_norm: Whether to normalize the critics' hidden layers.
        network: Torso of the networks: "mlp", "residual", "simba", or your own function
            (`own_torso`).
        cnn: Convolutions for images (`make_network`).
        optimizer: As in `td3`.
        precision: "f32", or "bf16" for dense layers and convolutions.

    Returns:
        The algorithm.
    """
    rates = (
        learning_rate,
        discount,
        tau,
        noise_min,
        noise_max,
        target_noise,
        target_noise_clip,
        max_grad_norm,
    )
    hyper = FastTd3Hyper(*rates, reward_scale, weight_decay)
    options: dict[str, Any] = dict(
        activation=activation, network=network, cnn=cnn, precision=precision
    )
    options |= dict(
        policy_hidden=tuple(policy_hidden), critic_hidden=tuple(critic_hidden), optimizer=optimizer
    )
    options |= dict(
        policy_keys=tuple(policy_keys), critic_keys=tuple(critic_keys), num_atoms=num_atoms
    )
    options |= dict(critic_layer_norm=critic_layer_norm, value_min=value_min, value_max=value_max)
    sizes = off_policy_sizes(rollout_length, updates_per_tick, warmup_steps)

    def build(spec: EnvSpec, num_envs: int) -> Agent:
        box = require_actions("fast_td3", spec, (Box,), "pqn")
        check_optimizer(optimizer, weight_decay)
        require_positive(policy_delay=policy_delay)
        updates, warmup = sizes(num_envs).values()
        data = Replay(
            buffer_size, batch_size, updates, warmup, n_step, warmup_actions=warmup_actions
        )
        head = make_value_head(
            "categorical", num_atoms, (value_min, value_max), losses.squared_error
        )
        shapes: dict[str, Any] = dict(
            policy_size=box.low.size, q_size=num_atoms, action_shape=(box.low.size,)
        )
        policy, q = policy_and_critics(
            spec.obs, {**options, "memory": "gru", "recurrent_size": 0}, **shapes
        )
        return Agent(
            parts={
                "critic": critic_part(box, policy, q, head, data, optimizer),
                "actor": actor_part(policy, q, head, data, policy_delay, optimizer),
            },
            data=data,
            acts={"actor": "policy"},
            decide=mixed_noise(box),
            rollout_length=rollout_length,
            normalize_observations=normalize_observations,
            normalize_rewards=normalize_rewards,
            max_return=value_max if normalize_rewards else None,
        )

    return Algorithm("fast_td3", hyper, options, build, sizes)


def mixed_noise(box: Box) -> Callable[..., tuple]:
    """Return action selection with noise whose deviation each environment draws anew from a range.

    Args:
        box: Action space.

    Returns:
        The `Decide` function.
    """

    def decide(
        outputs: dict, obs: PyTree, state: PyTree, key: jax.Array, hyper: Any, explore: bool
    ) -> tuple:
        unit = unit_policy(outputs["actor"])
        if explore:
            deviation_key, key = jax.random.split(key)
            share = jax.random.uniform(deviation_key, (*unit.shape[:-1], 1))
            deviation = hyper.noise_min + share * (hyper.noise_max - hyper.noise_min)
            unit = jnp.clip(unit + deviation * jax.random.normal(key, unit.shape), -1.0, 1.0)
        return distributions.from_unit(box, unit), state, {}

    return decide


def critic_part(
    box: Box, policy: Network, q: Network, head: ValueHead, data: Replay, optimizer: OptimizerName
) -> Part:
    """Build the critics' part: cross-entropy with the target of the critic with the lower value.

    Args:
        box: Action space.
        policy: Policy network.
        q: Ensemble of critics.
        head: Representation of values.
        data: Data of the updates.
        optimizer: `OptimizerName`.

    Returns:
        The part.

    Source: Seo et al. (2025), section 2.2, arXiv 2505.22642.
    """

    def gradients(
        own: Learned, peers: dict[str, Learned], batch: ReplayBatch, key: jax.Array, hyper: Any
    ) -> GradientResult:
        action = unit_policy(
            over_successors(data, policy, peers["actor"].params["policy"], batch, "actor")
        )
        noise = hyper.target_noise * jax.random.normal(key, action.shape)
        action = jnp.clip(
            action + jnp.clip(noise, -hyper.target_noise_clip, hyper.target_noise_clip), -1.0, 1.0
        )
        lower = lower_of(over_successors(data, q, own.target["q"], batch, "critic", action), head)

        def loss_fn(params: PyTree) -> tuple[jax.Array, Metrics]:
            outputs = over_replay(
                data, q, params, batch, "critic", distributions.to_unit(box, batch.action)
            )
            each = jax.vmap(jax.vmap(jax.vmap(head.loss)), (0, None, None, None))
            loss = 2.0 * jnp.mean(each(outputs, batch.reward, batch.bootstrap, lower)[0])
            return loss, {"critic_loss": loss, "q_mean": jnp.mean(head.expected(outputs))}

        grads, metrics = gradients_of(loss_fn, own.params["q"])
        return GradientResult({"q": grads}, metrics)

    return Part(
        {"q": q}, gradients, {"q": make_optimizer(optimizer)}, reads=("actor",), targets=("q",)
    )


def actor_part(
    policy: Network, q: Network, head: ValueHead, data: Replay, delay: int, optimizer: OptimizerName
) -> Part:
    """Build the policy's part, which maximizes the lower critic's value.

    Args:
        policy: Policy network.
        q: Ensemble of critics.
        head: Representation of values.
        data: Data of the updates.
        delay: Updates between two steps of this part.
        optimizer: `OptimizerName`.

    Returns:
        The part.
    """

    def gradients(
        own: Learned, peers: dict[str, Learned], batch: ReplayBatch, key: jax.Array, hyper: Any
    ) -> GradientResult:
        def loss_fn(params: PyTree) -> tuple[jax.Array, Metrics]:
            action = unit_policy(over_replay(data, policy, params, batch, "actor"))
            outputs = over_replay(
                data, q, peers["critic"].params["q"], batch, "critic", action, learning=False
            )
            loss = -jnp.mean(jnp.min(head.expected(outputs), axis=0))
            return loss, {"policy_loss": loss}

        grads, metrics = gradients_of(loss_fn, own.params["policy"])
        return GradientResult({"policy": grads}, metrics)

    return Part(
        {"policy": policy},
        gradients,
        {"policy": make_optimizer(optimizer)},
        reads=("critic",),
        every=delay,
    )
