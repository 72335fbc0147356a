"""FlashSAC, for continuous actions: SAC with bounded networks, for few and large updates (arXiv
2604.04539).

Two parts, as in SAC: the critic (two networks of distributions of returns, and their target
networks) and the actor (the policy, at every second update, and the temperature). Networks are
residual, with batch norms and weights of unit norm. Rewards are normalized so that returns are
within the range of the critic's atoms.
"""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import Box, EnvSpec, Metrics, PyTree
from jaxrl_fast.learning.acting import (
    repeated_noise_action,
    temperature_gradient,
    temperature_network,
    temperature_optimizer,
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
    require_actions,
    require_positive,
)
from jaxrl_fast.learning.critics import ValueHead, categorical_head
from jaxrl_fast.networks.network import Cnn, Network, Precision, ensemble, make_network
from jaxrl_fast.numerics import distributions
from jaxrl_fast.numerics.optimizers import (
    ABOVE_0,
    AnyRate,
    Rate0,
    Rate01,
    checks_numbers,
    make_optimizer,
)


class FlashSacHyper(NamedTuple):
    """Hyper-parameters, each a number or a schedule such as ``Linear(3e-4, 1.5e-4)``.

    Attributes:
        learning_rate: Learning rate of all networks.
        temperature_learning_rate: Learning rate of the temperature's logarithm.
        discount: Discount factor γ per step.
        tau: Weight of the new params in target networks at each update, 0 to 1.
        target_entropy_per_action: Target entropy in nats per action dimension; by default of normal
            noise with a deviation of 0.15.
        max_grad_norm: Norm to which the gradients of each network are clipped.
        reward_scale: Factor of the rewards, before they are normalized.
    """

    learning_rate: Any
    temperature_learning_rate: Any
    discount: Any
    tau: Any
    target_entropy_per_action: Any
    max_grad_norm: Any
    reward_scale: Any


@checks_numbers()
def flash_sac(
    *,
    learning_rate: Rate0 = 3e-4,
    temperature_learning_rate: Rate0 = 3e-4,
    discount: Rate01 = 0.99,
    tau: Rate01 = 0.01,
    target_entropy_per_action: AnyRate = -0.478,
    max_grad_norm: Rate0 = 1e6,
    reward_scale: Rate0 = 1.0,
    rollout_length: int = 1,
    updates_per_tick: int | None = None,
    batch_size: int = 256,
    buffer_size: int = 1_000_000,
    warmup_steps: int | None = None,
    warmup_actions: WarmupActions = "uniform",
    n_step: int = 1,
    policy_delay: int = 2,
    max_repeats: int = 16,
    num_atoms: int = 101,
    max_return: Annotated[float, ABOVE_0] = 5.0,
    policy_hidden: tuple[int, ...] = (64, 64),
    critic_hidden: tuple[int, ...] = (128, 128),
    policy_keys: tuple[str, ...] = (),
    critic_keys: tuple[str, ...] = (),
    initial_temperature: Annotated[float, ABOVE_0] = 0.01,
    cnn: Cnn = "auto",
    precision: Precision = "f32",
) -> Algorithm:
    """Build FlashSAC.

    A tick samples ``rollout_length`` steps in every environment, then makes ``updates_per_tick``
    updates once ``warmup_steps`` steps are in the buffer. The default widths are for two CPU cores.
    Rewards are divided so that no discounted return so far is larger than ``max_return``.

    Args:
        learning_rate: Learning rate of all networks.
        temperature_learning_rate: Learning rate of the temperature's logarithm.
        discount: Discount factor γ per step.
        tau: Weight of the new params in target networks at each update, 0 to 1.
        target_entropy_per_action: Target entropy in nats per action dimension; by default of normal
            noise with a deviation of 0.15.
        max_grad_norm: Norm to which the gradients of each network are clipped.
        reward_scale: Factor of the rewards, before they are normalized.
        rollout_length: Steps of each environment in a tick.
        updates_per_tick: Gradient updates in a tick; None for one per sampled step, at most 64.
        batch_size: Transitions in a minibatch.
        buffer_size: Capacity of the replay buffer in steps over all environments.
        warmup_steps: Steps over all environments before the first update; None for 5,000, or a 20th
            of a short run.
        warmup_actions: Actions of these steps: uniformly random ones, or the policy's.
        n_step: Steps whose rewards are summed before bootstrapping.
        policy_delay: Updates between two steps of the actor.
        max_repeats: Most steps for which exploration repeats its noise.
        num_atoms: Atoms of the critics, from ``-max_return`` to ``max_return``.
        max_return: Bound of discounted returns of normalized rewards, and of the critic's atoms.
        policy_hidden: Width of each residual block of the policy (published: 128, with batches of
            512 to 2,048).
        critic_hidden: Width of each residual block of the critics (published: 256).
        policy_keys: Entries of a dictionary observation that the policy reads; empty for all.
        critic_keys: Entries of a dictionary observation that the critic reads; empty for all.
        initial_temperature: Temperature at the start of the run.
        cnn: Convolutions for images (`make_network`).
        precision: "f32", or "bf16" for dense layers and convolutions.

    Returns:
        The algorithm.
    """
    rates = learning_rate, temperature_learning_rate, discount, tau, target_entropy_per_action
    hyper = FlashSacHyper(*rates, max_grad_norm, reward_scale)
    options: dict[str, Any] = dict(
        cnn=cnn, precision=precision, num_atoms=num_atoms, max_return=max_return
    )
    options |= dict(policy_hidden=tuple(policy_hidden), critic_hidden=tuple(critic_hidden))
    options |= dict(policy_keys=tuple(policy_keys), critic_keys=tuple(critic_keys))
    sizes = off_policy_sizes(rollout_length, updates_per_tick, warmup_steps)

    def build(spec: EnvSpec, num_envs: int) -> Agent:
        box = require_actions("flash_sac", spec, (Box,), "dqn")
        require_positive(policy_delay=policy_delay, max_repeats=max_repeats)
        if num_atoms < 2 or not max_return > 0.0:
            raise ValueError(
                f"num_atoms={num_atoms} and max_return={max_return}: write such as 101 and 5.0"
            )
        updates, warmup = sizes(num_envs).values()
        data = Replay(buffer_size, batch_size, updates, warmup, n_step)
        data = data._replace(warmup_actions=warmup_actions)
        shared: dict[str, Any] = dict(network="residual", cnn=cnn, precision=precision)
        size = distributions.num_outputs(box)
        policy = make_network(spec.obs, size, hidden=policy_hidden, keys=policy_keys, **shared)
        own: dict[str, Any] = dict(
            hidden=critic_hidden, keys=critic_keys, action_shape=(box.low.size,)
        )
        q = ensemble(make_network(spec.obs, num_atoms, **own, **shared), 2)
        head = categorical_head(num_atoms, (-max_return, max_return))
        decide, init_decide = repeated_noise_action(box, max_repeats)
        temperature = temperature_network(initial_temperature)
        return Agent(
            parts={
                "critic": critic_part(box, policy, q, head),
                "actor": actor_part(
                    box, {"policy": policy, "temperature": temperature}, q, head, policy_delay
                ),
            },
            data=data,
            acts={"actor": "policy"},
            decide=decide,
            init_decide=init_decide,
            rollout_length=rollout_length,
            normalize_observations=False,
            normalize_rewards=True,
            max_return=max_return,
        )

    return Algorithm("flash_sac", hyper, options, build, sizes)


def critic_part(box: Box, policy: Network, q_networks: Network, head: ValueHead) -> Part:
    """Build the critics' part: cross-entropy with the target of the critic with the lower value.

    Steps and next steps pass through the networks together, so that batch norms include both.

    Args:
        box: Action space.
        policy: Policy network.
        q_networks: Ensemble of critics.
        head: Representation of values.

    Returns:
        The part.
    """

    def gradients(
        own: Learned,
        peers: dict[str, Learned],
        batch: ReplayBatch,
        key: jax.Array,
        hyper: FlashSacHyper,
    ) -> GradientResult:
        actor = peers["actor"].params
        outputs, _ = policy.apply(
            actor["policy"], (), batch.next_obs, jnp.zeros(batch.reward.shape, bool)
        )
        dist = distributions.tanh_normal(outputs)
        raw = distributions.sample(dist, key)
        price = jnp.exp(actor["temperature"]) * distributions.log_prob(dist, raw)
        obs, first = both_steps(batch)
        action = jnp.concatenate([distributions.to_unit(box, batch.action), jnp.tanh(raw)])
        following = q_networks.in_loss(own.target["q"], (), obs, first, action)[0]
        lower = lower_of(following[:, len(batch.reward) :], head)
        soft_reward = batch.reward - batch.bootstrap * price

        def loss_fn(params: PyTree) -> tuple[jax.Array, Metrics]:
            outputs = q_networks.in_loss(params, (), obs, first, action)[0][:, : len(batch.reward)]
            over_batch = jax.vmap(jax.vmap(head.loss))
            found, _ = jax.vmap(over_batch, (0, None, None, None))(
                outputs, soft_reward, batch.bootstrap, lower
            )
            loss, q_mean = jnp.mean(found), jnp.mean(head.expected(outputs))
            return loss, {"critic_loss": loss, "q_mean": q_mean}

        grads, metrics = gradients_of(loss_fn, own.params["q"])
        return GradientResult({"q": grads}, metrics)

    optimizers = {"q": make_optimizer("adam")}
    return Part({"q": q_networks}, gradients, optimizers, reads=("actor",), targets=("q",))


def actor_part(
    box: Box, networks: dict[str, Network], q_networks: Network, head: ValueHead, policy_delay: int
) -> Part:
    """Build the part of the policy, which maximizes the lower critic's value plus entropy, and of
    the temperature.

    Args:
        box: Action space.
        networks: Policy and temperature.
        q_networks: Ensemble of critics.
        head: Representation of values.
        policy_delay: Updates between two steps of this part.

    Returns:
        The part.
    """

    def gradients(
        own: Learned,
        peers: dict[str, Learned],
        batch: ReplayBatch,
        key: jax.Array,
        hyper: FlashSacHyper,
    ) -> GradientResult:
        log_temperature, critic = own.params["temperature"], peers["critic"].params["q"]
        obs, first = both_steps(batch)
        steps = len(batch.reward)

        def policy_loss(params: PyTree) -> tuple[jax.Array, Metrics]:
            outputs, _ = networks["policy"].in_loss(params, (), obs, first)
            dist = distributions.tanh_normal(outputs[:steps])
            raw = distributions.sample(dist, key)
            log_prob = distributions.log_prob(dist, raw)
            outputs, _ = q_networks.apply(critic, (), batch.obs, first[:steps], jnp.tanh(raw))
            loss = jnp.mean(
                jnp.exp(log_temperature) * log_prob - jnp.min(head.expected(outputs), axis=0)
            )
            return loss, {"policy_loss": loss, "entropy": -jnp.mean(log_prob)}

        policy_grads, metrics = gradients_of(policy_loss, own.params["policy"])
        target_entropy = hyper.target_entropy_per_action * box.low.size
        temperature_grad = temperature_gradient(log_temperature, metrics["entropy"], target_entropy)
        metrics = {**metrics, "temperature": jnp.exp(log_temperature)}
        return GradientResult({"policy": policy_grads, "temperature": temperature_grad}, metrics)

    optimizers = {"policy": make_optimizer("adam"), "temperature": temperature_optimizer()}
    return Part(networks, gradients, optimizers, reads=("critic",), every=policy_delay)


def both_steps(batch: ReplayBatch) -> tuple[PyTree, jax.Array]:
    """Concatenate the observations of a batch and its next observations.

    Args:
        batch: Batch of transitions.

    Returns:
        Observations ``[2 L, B, ...]``, and flags ``[2 L, B]`` that no step begins an episode.
    """
    obs = jax.tree.map(lambda now, after: jnp.concatenate([now, after]), batch.obs, batch.next_obs)
    return obs, jnp.zeros((2 * batch.reward.shape[0], batch.reward.shape[1]), bool)


def lower_of(outputs: jax.Array, head: ValueHead) -> jax.Array:
    """Select the outputs of the critic with the lower value.

    Args:
        outputs: Outputs ``[N, L, B, width]``.
        head: Representation of values.

    Returns:
        Outputs ``[L, B, width]``.
    """
    lowest = jnp.argmin(head.expected(outputs), axis=0)
    return jnp.take_along_axis(outputs, lowest[None, ..., None], axis=0)[0]
