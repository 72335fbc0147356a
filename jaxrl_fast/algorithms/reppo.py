"""Relative-entropy pathwise policy optimization, for continuous actions (REPPO, arXiv 2507.11019).

On-policy, without replay: a Q-network learns λ-returns of the newest rollout by cross-entropy, and
the policy follows the Q-network's gradient with an entropy bonus, where it is close to the policy
that sampled. Temperature and weight of the KL divergence are trained. Here the targets are computed
in every update with the newest parameters (published: once per rollout), the divergence is exact
(published: of 16 samples), and there is no auxiliary loss.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

from jaxrl_fast.algorithms.shared_fields import (
    CriticFields,
    EpochFields,
    LayerFields,
    NormedFields,
    ObservationFields,
    OptimizerFields,
    PolicyFields,
    Rates,
    layers_of,
    sizes_of_rollout,
)
from jaxrl_fast.core import Box, EnvSpec, Metrics, PyTree
from jaxrl_fast.learning.acting import (
    sample_action,
    temperature_gradient,
    temperature_network,
    temperature_optimizer,
)
from jaxrl_fast.learning.algorithm import (
    Agent,
    GradientResult,
    Learned,
    OnPolicy,
    OnPolicyBatch,
    Part,
    gradients_of,
    require_actions,
)
from jaxrl_fast.learning.critics import categorical_head
from jaxrl_fast.networks.network import Activation, Network, make_network
from jaxrl_fast.numerics import distributions, losses
from jaxrl_fast.numerics.distributions import TanhNormal, tanh_normal
from jaxrl_fast.numerics.optimizers import (
    ABOVE_0,
    AnyRate,
    OptimizerName,
    Rate0,
    Rate01,
    check_optimizer,
    make_optimizer,
)

WIDTH = 0.75
"""Standard deviation of a target's histogram, in bins (HL-Gauss, arXiv 2403.03950)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ReppoHyper(Rates):
    """Rates of REPPO; ``weight_decay`` is in `OptimizerFields`."""

    temperature_learning_rate: Rate0 = 3e-4
    """Learning rate of the temperature and of the weight of the divergence."""
    return_lambda: Rate01 = 0.95
    """λ of the returns, 0 (one step) to 1 (whole rollout)."""
    kl_bound: Rate0 = 0.1
    """Bound of the KL divergence from the policy that sampled, in nats per step."""
    target_entropy_per_action: AnyRate = -0.5
    """Target of the entropy per action dimension, in nats."""
    max_grad_norm: Rate0 = 0.5


@dataclass(frozen=True, kw_only=True, eq=False)
class Reppo(
    OptimizerFields,
    NormedFields,
    LayerFields,
    CriticFields,
    PolicyFields,
    ObservationFields,
    EpochFields,
    ReppoHyper,
):
    """REPPO."""

    name: ClassVar[str] = "reppo"

    initial_temperature: Annotated[float, ABOVE_0] = 0.01
    """Temperature at the start of the run."""
    initial_kl_weight: Annotated[float, ABOVE_0] = 1.0
    """Weight of the divergence at the start of the run."""
    num_atoms: int = 151
    """Bins of the distribution of returns."""
    max_return: Annotated[float, ABOVE_0] = 10.0
    """Largest absolute return of the normalized rewards, at the last bin."""
    num_epochs: int = 8
    num_minibatches: int | None = None
    """Minibatches in an epoch, of whole rollouts; None for a power of two that depends on
    ``num_envs`` (`on_policy_sizes`).
    """
    activation: Activation = "swish"
    layer_norm: bool = True

    def sizes(self, num_envs: int, total_steps: int | None = None) -> dict[str, int]:
        """Compute the rollout's length and the minibatches, unless they were given."""
        return sizes_of_rollout(self, num_envs, total_steps, steps=64, least=4, whole_rollouts=True)

    def build(self, spec: EnvSpec, num_envs: int) -> Agent:
        """Build the agent for one environment."""
        box = require_actions("reppo", spec, (Box,), "ppo")
        check_optimizer(self.optimizer, self.weight_decay)
        sizes = self.sizes(num_envs)
        q = make_network(
            spec.obs,
            self.num_atoms,
            hidden=self.critic_hidden,
            keys=self.critic_keys,
            action_shape=(box.low.size,),
            **layers_of(self),
        )
        policy = make_network(
            spec.obs,
            distributions.num_outputs(box),
            hidden=self.policy_hidden,
            keys=self.policy_keys,
            out_scale=0.01,
            **layers_of(self),
        )
        networks = {
            "policy": policy,
            "temperature": temperature_network(self.initial_temperature),
            "kl_weight": temperature_network(self.initial_kl_weight),
        }
        bins = self.max_return, self.num_atoms
        return Agent(
            parts={
                "critic": critic_part(box, policy, q, *bins, self.optimizer),
                "actor": actor_part(box, networks, q, *bins, self.optimizer),
            },
            data=OnPolicy(
                num_epochs=self.num_epochs,
                num_minibatches=sizes["num_minibatches"],
                sequence_length=sizes["rollout_length"],
            ),
            acts={"actor": "policy"},
            decide=storing_outputs(box),
            rollout_length=sizes["rollout_length"],
            normalize_observations=self.normalize_observations,
            normalize_rewards=True,
            max_return=self.max_return,
        )


reppo = Reppo


def storing_outputs(box: Box) -> Callable[..., tuple]:
    """Return action selection that samples, and stores the policy's outputs for its divergence.

    Args:
        box: Action space.

    Returns:
        The `Decide` function.
    """
    sampled = sample_action(box, remember=False)

    def decide(outputs: dict, *inputs: Any) -> tuple:
        action, state, _ = sampled(outputs, *inputs)
        return action, state, {"outputs": outputs["actor"]}

    return decide


def histogram(target: jax.Array, max_return: float, num_atoms: int) -> jax.Array:
    """Compute the share of a normal around a target in each bin.

    Args:
        target: Targets ``[...]``.
        max_return: Centre of the last bin; the first one's is its negative.
        num_atoms: Number of bins.

    Returns:
        Probabilities ``[..., num_atoms]``.

    Source: Farebrother et al. (2024), section 3.1, arXiv 2403.03950.
    """
    spacing = 2.0 * max_return / (num_atoms - 1)
    edges = jnp.linspace(-max_return - spacing / 2, max_return + spacing / 2, num_atoms + 1)
    centre = jnp.clip(target, -max_return, max_return)[..., None]
    below = jax.scipy.stats.norm.cdf(
        (edges.reshape((1,) * target.ndim + edges.shape) - centre) / (WIDTH * spacing)
    )
    shares = jnp.diff(below, axis=-1)
    return shares / jnp.sum(shares, axis=-1, keepdims=True)


def divergence(old: TanhNormal, new: TanhNormal) -> jax.Array:
    """Compute the KL divergence of two policies, which tanh does not change.

    Args:
        old: Policy that sampled.
        new: Trained policy.

    Returns:
        Divergences ``[...]``, summed over the dimensions of the action.
    """
    spread = (jnp.square(old.scale) + jnp.square(old.mean - new.mean)) / (
        2.0 * jnp.square(new.scale)
    )
    return jnp.sum(jnp.log(new.scale / old.scale) + spread - 0.5, axis=-1)


def critic_part(
    box: Box,
    policy: Network,
    q: Network,
    max_return: float,
    num_atoms: int,
    optimizer: OptimizerName,
) -> Part:
    """Build the Q-network's part: cross-entropy with λ-returns of rewards and entropy.

    Args:
        box: Action space.
        policy: Policy network.
        q: Q-network.
        max_return: Largest absolute return.
        num_atoms: Number of bins.
        optimizer: `OptimizerName`.

    Returns:
        The part.

    Source: Voelcker et al. (2025), section 3, arXiv 2507.11019.
    """
    head = categorical_head(num_atoms, (-max_return, max_return))

    def gradients(
        learned: Learned,
        peers: dict[str, Learned],
        batch: OnPolicyBatch,
        key: jax.Array,
        hyper: ReppoHyper,
    ) -> GradientResult:
        steps, actor, new = batch.transition, peers["actor"].params, jnp.zeros_like(batch.first)
        dist = tanh_normal(policy.apply(actor["policy"], (), steps.next_obs, new)[0])
        raw = distributions.sample(dist, key)
        next_value = head.expected(
            q.apply(learned.params["q"], (), steps.next_obs, new, jnp.tanh(raw))[0]
        )
        discount = hyper.discount * (1.0 - steps.terminated)
        price = jnp.exp(actor["temperature"]) * distributions.log_prob(dist, raw)
        returns = jax.vmap(losses.lambda_return, (1, 1, 1, 1, None), 1)
        ends = steps.terminated | steps.truncated
        target = returns(
            steps.reward - discount * price, discount, next_value, ends, hyper.return_lambda
        )
        wanted = histogram(target, max_return, num_atoms)

        def loss_fn(params: PyTree) -> tuple[jax.Array, Metrics]:
            outputs = q.in_loss(
                params, (), batch.obs, batch.first, distributions.to_unit(box, batch.action)
            )[0]
            loss = -jnp.mean(jnp.sum(wanted * jax.nn.log_softmax(outputs), axis=-1))
            return loss, {"critic_loss": loss, "q_mean": jnp.mean(head.expected(outputs))}

        grads, metrics = gradients_of(loss_fn, learned.params["q"])
        return GradientResult({"q": grads}, metrics)

    return Part({"q": q}, gradients, {"q": make_optimizer(optimizer)}, reads=("actor",))


def actor_part(
    box: Box,
    networks: dict[str, Network],
    q: Network,
    max_return: float,
    num_atoms: int,
    optimizer: OptimizerName,
) -> Part:
    """Build the part of the policy, which maximizes value plus entropy within the bound, and of
    both weights.

    Args:
        box: Action space.
        networks: Policy, temperature and weight of the divergence.
        q: Q-network.
        max_return: Largest absolute return.
        num_atoms: Number of bins.
        optimizer: `OptimizerName`.

    Returns:
        The part.

    Source: Voelcker et al. (2025), section 3, arXiv 2507.11019.
    """
    head, policy = categorical_head(num_atoms, (-max_return, max_return)), networks["policy"]

    def gradients(
        learned: Learned,
        peers: dict[str, Learned],
        batch: OnPolicyBatch,
        key: jax.Array,
        hyper: ReppoHyper,
    ) -> GradientResult:
        temperature, kl_weight = (
            jnp.exp(learned.params[name]) for name in ("temperature", "kl_weight")
        )
        old = tanh_normal(batch.extras["outputs"])

        def loss_fn(params: PyTree) -> tuple[jax.Array, Metrics]:
            dist = tanh_normal(policy.in_loss(params, (), batch.obs, batch.first)[0])
            raw = distributions.sample(dist, key)
            log_prob, kl = distributions.log_prob(dist, raw), divergence(old, dist)
            value = head.expected(
                q.apply(peers["critic"].params["q"], (), batch.obs, batch.first, jnp.tanh(raw))[0]
            )
            loss = jnp.mean(
                jnp.where(kl < hyper.kl_bound, temperature * log_prob - value, kl_weight * kl)
            )
            return loss, {"policy_loss": loss, "entropy": -jnp.mean(log_prob), "kl": jnp.mean(kl)}

        grads, metrics = gradients_of(loss_fn, learned.params["policy"])
        target_entropy = hyper.target_entropy_per_action * box.low.size
        warmer = temperature_gradient(
            learned.params["temperature"], metrics["entropy"], target_entropy
        )
        closer = temperature_gradient(
            learned.params["kl_weight"], jnp.asarray(hyper.kl_bound), metrics["kl"]
        )
        metrics |= {"temperature": temperature, "kl_weight": kl_weight}
        return GradientResult(
            {"policy": grads, "temperature": warmer, "kl_weight": closer}, metrics
        )

    optimizers: dict[str, Any] = {"policy": make_optimizer(optimizer)}
    optimizers |= dict.fromkeys(("temperature", "kl_weight"), temperature_optimizer())
    return Part(networks, gradients, optimizers, reads=("critic",))
