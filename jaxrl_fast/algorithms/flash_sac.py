"""FlashSAC, for continuous actions: SAC with bounded networks, for few and large updates (arXiv
2604.04539).

Two parts, as in SAC: the critic (two networks of distributions of returns, and their target
networks) and the actor (the policy, at every second update, and the temperature). Networks are
residual, with batch norms and weights of unit norm. Rewards are normalized so that returns are
within the range of the critic's atoms.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp

from jaxrl_fast.algorithms.shared_fields import (
    CriticFields,
    InputFields,
    PolicyFields,
    TargetRates,
    WarmupFields,
    layers_of,
    replay_of,
    sizes_of_replay,
)
from jaxrl_fast.core import Box, EnvSpec, Metrics, PyTree
from jaxrl_fast.learning.acting import (
    repeated_noise_action,
    temperature_gradient,
    temperature_network,
    temperature_optimizer,
)
from jaxrl_fast.learning.algorithm import (
    Agent,
    GradientResult,
    Learned,
    Part,
    ReplayBatch,
    gradients_of,
    require_actions,
    require_positive,
)
from jaxrl_fast.learning.critics import ValueHead, categorical_head
from jaxrl_fast.networks.network import Network, ensemble, make_network
from jaxrl_fast.numerics import distributions
from jaxrl_fast.numerics.optimizers import (
    ABOVE_0,
    AnyRate,
    Rate0,
    Rate01,
    make_optimizer,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class FlashSacHyper(TargetRates):
    """Rates of FlashSAC."""

    tau: Rate01 = 0.01
    temperature_learning_rate: Rate0 = 3e-4
    """Learning rate of the temperature's logarithm."""
    target_entropy_per_action: AnyRate = -0.478
    """Target entropy in nats per action dimension; by default of normal noise with a deviation of
    0.15.
    """
    reward_scale: Rate0 = 1.0
    """Factor of the rewards, before they are normalized."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FlashSac(InputFields, CriticFields, PolicyFields, WarmupFields, FlashSacHyper):
    """FlashSAC.

    A tick samples ``rollout_length`` steps in every environment, then makes ``updates_per_tick``
    updates once ``warmup_steps`` steps are in the buffer. The default widths are for two CPU cores.
    Rewards are divided so that no discounted return so far is larger than ``max_return``.
    """

    name: ClassVar[str] = "flash_sac"

    batch_size: int = 256
    """Transitions in a minibatch."""
    policy_delay: int = 2
    """Updates between two steps of the actor."""
    max_repeats: int = 16
    """Most steps for which exploration repeats its noise."""
    num_atoms: int = 101
    """Atoms of the critics, from ``-max_return`` to ``max_return``."""
    max_return: Annotated[float, ABOVE_0] = 5.0
    """Bound of discounted returns of normalized rewards, and of the critic's atoms."""
    policy_hidden: tuple[int, ...] = (64, 64)
    """Width of each residual block of the policy (published: 128, with batches of 512 to 2,048).
    """
    critic_hidden: tuple[int, ...] = (128, 128)
    """Width of each residual block of the critics (published: 256)."""
    initial_temperature: Annotated[float, ABOVE_0] = 0.01
    """Temperature at the start of the run."""

    def sizes(self, num_envs: int, total_steps: int | None = None) -> dict[str, int]:
        """Compute the updates of a tick and the warm-up, unless they were given."""
        return sizes_of_replay(self, num_envs, total_steps)

    def build(self, spec: EnvSpec, num_envs: int) -> Agent:
        """Build the agent for one environment."""
        box = require_actions("flash_sac", spec, (Box,), "dqn")
        require_positive(policy_delay=self.policy_delay, max_repeats=self.max_repeats)
        if self.num_atoms < 2 or not self.max_return > 0.0:
            raise ValueError(
                f"num_atoms={self.num_atoms} and max_return={self.max_return}: "
                "write such as 101 and 5.0"
            )
        data = replay_of(self, num_envs)
        layers = {"network": "residual", **layers_of(self)}
        policy = make_network(
            spec.obs,
            distributions.num_outputs(box),
            hidden=self.policy_hidden,
            keys=self.policy_keys,
            **layers,
        )
        critic = make_network(
            spec.obs,
            self.num_atoms,
            hidden=self.critic_hidden,
            keys=self.critic_keys,
            action_shape=(box.low.size,),
            **layers,
        )
        q = ensemble(critic, 2)
        head = categorical_head(self.num_atoms, (-self.max_return, self.max_return))
        decide, init_decide = repeated_noise_action(box, self.max_repeats)
        networks = {
            "policy": policy,
            "temperature": temperature_network(self.initial_temperature),
        }
        return Agent(
            parts={
                "critic": critic_part(box, policy, q, head),
                "actor": actor_part(box, networks, q, head, self.policy_delay),
            },
            data=data,
            acts={"actor": "policy"},
            decide=decide,
            init_decide=init_decide,
            rollout_length=self.rollout_length,
            normalize_observations=False,
            normalize_rewards=True,
            max_return=self.max_return,
        )


flash_sac = FlashSac


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
        learned: Learned,
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
        following = q_networks.in_loss(learned.target["q"], (), obs, first, action)[0]
        lower = lower_of(following[:, len(batch.reward) :], head)
        soft_reward = batch.reward - batch.bootstrap * price

        def loss_fn(params: PyTree) -> tuple[jax.Array, Metrics]:
            outputs = q_networks.in_loss(params, (), obs, first, action)[0][:, : len(batch.reward)]
            over_batch = jax.vmap(jax.vmap(head.loss))
            step_losses, _ = jax.vmap(over_batch, (0, None, None, None))(
                outputs, soft_reward, batch.bootstrap, lower
            )
            loss, q_mean = jnp.mean(step_losses), jnp.mean(head.expected(outputs))
            return loss, {"critic_loss": loss, "q_mean": q_mean}

        grads, metrics = gradients_of(loss_fn, learned.params["q"])
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
        learned: Learned,
        peers: dict[str, Learned],
        batch: ReplayBatch,
        key: jax.Array,
        hyper: FlashSacHyper,
    ) -> GradientResult:
        log_temperature, critic = learned.params["temperature"], peers["critic"].params["q"]
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

        policy_grads, metrics = gradients_of(policy_loss, learned.params["policy"])
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
