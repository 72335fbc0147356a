"""Proximal policy optimization, for any actions (arXiv 1707.06347).

Actor and critic have separate networks, optimizers and gradient-norm clips. Within a tick neither
reads the other's newest parameters, so they can be updated at the same time without changing a
result.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp

from jaxrl_fast.algorithms.ppo_options import (
    KL,
    PartLoss,
    by_divergence,
    clipped_errors,
    in_one_part,
    joint_loss,
    with_free_outputs,
    with_normalized_values,
)
from jaxrl_fast.algorithms.shared_fields import (
    EpochFields,
    MemoryFields,
    NormedFields,
    ObservationFields,
    OptimizerFields,
    PolicyFields,
    Rates,
    layers_of,
    sizes_of_rollout,
)
from jaxrl_fast.core import (
    Actions,
    Box,
    Discrete,
    EnvSpec,
    Metrics,
    MultiDiscrete,
    PyTree,
    Transition,
)
from jaxrl_fast.learning.acting import MakePolicy, policy_of, sample_action
from jaxrl_fast.learning.algorithm import (
    Agent,
    GradientResult,
    Learned,
    OnPolicy,
    OnPolicyBatch,
    Part,
    ValueOf,
    Values,
    elementwise,
    gradients_of,
    over_rollout,
    require_actions,
)
from jaxrl_fast.networks.network import (
    Activation,
    Head,
    Network,
    make_network,
)
from jaxrl_fast.numerics import distributions, losses
from jaxrl_fast.numerics.optimizers import (
    FROM_0,
    MakeOptimizer,
    OptimizerName,
    Rate0,
    Rate01,
    check_optimizer,
    is_set,
    make_optimizer,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class PpoHyper(Rates):
    """Rates of PPO for one agent or several; ``weight_decay`` is in `OptimizerFields`."""

    learning_rate: Rate0 = 3e-4
    """Learning rate of the policy."""
    critic_learning_rate_ratio: Rate0 = 1.0
    """Learning rate of the critic, relative to ``learning_rate``; of a shared torso, the weight of
    the values' loss.
    """
    gae_lambda: Rate01 = 0.95
    """λ of the advantages."""
    clip_range: Rate0 = 0.2
    """Largest deviation of the probability ratio from 1 (ε of PPO's loss)."""
    entropy_coef: Rate0 = 0.01
    """Weight of the policy's entropy in the loss."""
    max_grad_norm: Rate0 = 0.5


@dataclass(frozen=True, kw_only=True, eq=False)
class PpoFields(
    OptimizerFields,
    NormedFields,
    MemoryFields,
    PolicyFields,
    ObservationFields,
    EpochFields,
    PpoHyper,
):
    """Fields of PPO for one agent or several."""

    normalize_advantages: bool = True
    """Whether to normalize advantages in each minibatch."""
    normalize_values: bool = False
    """Whether the value network learns targets that are scaled by their running mean and deviation.
    """
    policy_hidden: tuple[int, ...] = (64, 64)
    value_hidden: tuple[int, ...] = (64, 64)
    """Sizes of the value network's hidden layers."""
    critic_keys: tuple[str, ...] = ()
    """Entries of a dictionary observation that the critic reads; empty for all."""
    activation: Activation = "tanh"
    optimizer: OptimizerName = "adam:1e-5"
    policy_loss: Callable[..., jax.Array] = losses.clipped_surrogate
    """``(log_ratio, advantage, clip_range) -> loss``, on scalars."""
    value_loss: Callable[..., jax.Array] = losses.squared_error
    """``(value, target) -> loss``, on scalars."""


Mean = Callable[[jax.Array, OnPolicyBatch], jax.Array]
"""(x ``[L, B]``, or ``[L, B, A]`` of several agents; its batch) -> mean over the steps that count:
a scalar, or one number for each agent's separate network, ``[1, 1, A]``, whose losses are summed.
"""


def over_all_steps(x: jax.Array, batch: OnPolicyBatch) -> jax.Array:
    """Return the mean of one agent (`Mean`).

    Args:
        x: Values ``[L, B]``.
        batch: Unused.

    Returns:
        A float32 scalar.
    """
    return jnp.mean(x, dtype=jnp.float32)


@dataclass(frozen=True, kw_only=True, eq=False)
class Ppo(PpoFields):
    """PPO.

    A tick samples ``rollout_length`` steps in every environment and makes ``num_epochs *
    num_minibatches`` updates with them.
    """

    name: ClassVar[str] = "ppo"

    normalize_rewards: bool | None = None
    """Whether to divide rewards by the running deviation of returns; None for continuous actions.
    """
    initial_deviation: Annotated[float, FROM_0] = 0.4
    """Standard deviation of continuous actions at the start, in half ranges, before the squashing.
    """
    free_deviation: bool = False
    """Whether the deviations of continuous actions are trained numbers, the same in every state."""
    clip_actions: bool = False
    """Whether continuous actions are normal and clipped to their range, instead of squashed by
    tanh.
    """
    orthogonal: bool = False
    """Whether the initial weights of dense layers and convolutions are orthogonal."""
    share_torso: bool = False
    """Whether policy and value are two heads of one network, whose sizes are ``policy_hidden``."""
    value_clip_range: Rate0 = 0.0
    """Largest change of a value, relative to its value at sampling time, that its loss rewards; 0
    for no limit.
    """
    max_kl: Rate0 = 0.0
    """KL divergence from the policy that acted above which a minibatch does not update the policy;
    0 for no limit.
    """
    desired_kl: Rate0 = 0.0
    """KL divergence that the policy's learning rate aims for: it grows or falls with each
    minibatch; 0 for the given rate.
    """

    def sizes(self, num_envs: int, total_steps: int | None = None) -> dict[str, int]:
        """Compute the rollout's length and the minibatches, unless they were given."""
        whole = self.recurrent_size > 0
        return sizes_of_rollout(
            self, num_envs, total_steps, steps=64, least=4, whole_rollouts=whole
        )

    def build(self, spec: EnvSpec, num_envs: int) -> Agent:
        """Build the agent for one environment."""
        space = require_actions("ppo", spec, (Discrete, MultiDiscrete, Box), "sac")
        check_optimizer(self.optimizer, self.weight_decay)
        sizes = self.sizes(num_envs)
        bias = biases_of(self, space)
        policy = make_network(
            spec.obs,
            distributions.num_outputs(space),
            hidden=self.policy_hidden,
            keys=self.policy_keys,
            out_scale=0.01,
            out_bias=bias,
            **layers_of(self),
        )
        value = make_network(
            spec.obs, 1, hidden=self.value_hidden, keys=self.critic_keys, **layers_of(self)
        )
        loss = surrogate_loss(space, self.policy_loss, self.normalize_advantages)
        optimizer = make_optimizer(self.optimizer)
        scales_rewards = self.normalize_rewards
        agent = Agent(
            parts={
                "critic": critic_part(value, self.value_loss, self.optimizer),
                "actor": part_of("actor", "policy", policy, loss, optimizer),
            },
            data=OnPolicy(
                num_epochs=self.num_epochs,
                num_minibatches=sizes["num_minibatches"],
                critic="critic",
                network="value",
                targets=targets,
            ),
            acts={"actor": "policy"},
            decide=sample_action(space, remember=True),
            rollout_length=sizes["rollout_length"],
            remembers={"critic": "value"} if self.recurrent_size else {},
            normalize_observations=self.normalize_observations,
            normalize_rewards=isinstance(space, Box) if scales_rewards is None else scales_rewards,
            outputs_of=itemgetter("actor"),
        )
        return with_options(self, agent, spec) if has_options(self) else agent


ppo = Ppo


def biases_of(declared: Ppo, space: Actions) -> tuple[float, ...]:
    """Return the initial biases of the policy's outputs.

    Args:
        declared: PPO.
        space: Action space.

    Returns:
        Biases; empty for discrete actions.
    """
    if not isinstance(space, Box):
        return ()
    return distributions.initial_biases(space, declared.initial_deviation)


def has_options(declared: Ppo) -> bool:
    """Return whether an option of PPO that is off by default is on.

    Args:
        declared: PPO.

    Returns:
        True for one that `with_options` handles.
    """
    on = (
        declared.share_torso,
        declared.normalize_values,
        declared.free_deviation,
        declared.clip_actions,
    )
    rates = declared.value_clip_range, declared.max_kl, declared.desired_kl
    return any(on) or any(map(is_set, rates))


def with_options(declared: Ppo, agent: Agent, spec: EnvSpec) -> Agent:
    """Replace the parts of PPO by parts with the options that are off by default.

    Args:
        declared: PPO.
        agent: PPO's agent without them.
        spec: Environment.

    Returns:
        The agent.

    Raises:
        ValueError: ``share_torso`` with an option that it excludes.
    """
    space, continuous = spec.action, isinstance(spec.action, Box)
    bias = biases_of(declared, space)
    free = bias[len(bias) // 2 :] if continuous and declared.free_deviation else ()
    head = Head(distributions.num_outputs(space) - len(free), 0.01, bias[: len(bias) - len(free)])
    distribution = distributions.normal if continuous and declared.clip_actions else policy_of
    actor = surrogate_loss(
        space, declared.policy_loss, declared.normalize_advantages, policy=distribution
    )
    errors = clipped_errors if is_set(declared.value_clip_range) else value_errors
    critic = errors(declared.value_loss)
    stop, adapt = is_set(declared.max_kl), is_set(declared.desired_kl)
    base = make_optimizer(declared.optimizer)
    near = by_divergence(base, stop=stop, adapt=adapt)
    optimizer: MakeOptimizer = near if stop or adapt else base
    make: Callable[..., Network] = partial(
        make_network,
        spec.obs,
        hidden=declared.policy_hidden,
        keys=declared.policy_keys,
        **layers_of(declared),
    )
    if declared.share_torso:
        if declared.normalize_values or declared.policy_keys != declared.critic_keys:
            raise ValueError(
                "share_torso=true: leave normalize_values out, and write equal policy_keys "
                "and critic_keys"
            )
        torso = with_free_outputs(make({"value": Head(1), "policy": head}), free, "policy")
        part = part_of("agent", "network", torso, joint_loss(actor, critic), optimizer)
        return in_one_part(agent, part, space, distribution)
    policy = with_free_outputs(make(head.size, out_scale=head.scale, out_bias=head.bias), free)
    before = agent.parts["critic"]
    value = part_of("critic", "value", before.networks["value"], critic, before.optimizers["value"])
    if declared.normalize_values:
        value = with_normalized_values(value, over_all_steps)
    return agent._replace(
        parts={"critic": value, "actor": part_of("actor", "policy", policy, actor, optimizer)},
        decide=sample_action(space, remember=True, policy=distribution),
    )


def targets(values: Values, rollout: Transition, hyper: PpoHyper) -> dict[str, jax.Array]:
    """Compute advantages and value targets, with the critic from before the tick's updates.

    Args:
        values: Values of the critic, ``[T, E]``.
        rollout: Normalized rollout.
        hyper: Hyper-parameters of this tick.

    Returns:
        ``advantage`` and ``value_target``, ``[T, E]``.
    """
    discount = hyper.discount * (1.0 - rollout.terminated)
    done = rollout.terminated | rollout.truncated
    gae = jax.vmap(losses.gae, in_axes=(1, 1, 1, 1, 1, None), out_axes=1)
    advantage = gae(rollout.reward, discount, values.now, values.next, done, hyper.gae_lambda)
    return {"advantage": advantage, "value_target": advantage + values.now}


def part_of(
    part: str, name: str, network: Network, loss: PartLoss, optimizer: MakeOptimizer
) -> Part:
    """Build a part of one network with one loss.

    Args:
        part: Name of the part.
        name: Name of the network.
        network: Network.
        loss: Its loss.
        optimizer: Its optimizer.

    Returns:
        The part.
    """

    def gradients(
        learned: Learned, peers: dict, batch: OnPolicyBatch, key: jax.Array, hyper: PpoHyper
    ) -> GradientResult:
        def loss_fn(params: PyTree) -> tuple[jax.Array, Metrics]:
            return loss(over_rollout(network, params, batch, part)[0], batch, key, hyper)

        grads, metrics = gradients_of(loss_fn, learned.params[name])
        return GradientResult({name: grads}, metrics)

    return Part({name: network}, gradients, {name: optimizer})


def surrogate_loss(
    space: Actions,
    policy_loss: Callable,
    normalize_advantages: bool,
    mean: Mean = over_all_steps,
    policy: MakePolicy = policy_of,
) -> PartLoss:
    """Return the policy's loss: clipped surrogate with an entropy bonus.

    Args:
        space: Action space.
        policy_loss: Loss of a log-ratio and an advantage.
        normalize_advantages: Whether to normalize advantages in each minibatch.
        mean: Mean over steps.
        policy: Builds the distribution, as `policy_of`.

    Returns:
        The loss.
    """

    def loss_of(
        outputs: PyTree, batch: OnPolicyBatch, key: jax.Array, hyper: PpoHyper
    ) -> tuple[jax.Array, Metrics]:
        advantage = batch.targets["advantage"]
        if normalize_advantages:
            centered = advantage - mean(advantage, batch)
            advantage = centered / (jnp.sqrt(mean(jnp.square(centered), batch)) + 1e-8)
        dist = policy(space, outputs, batch.obs)
        log_ratio = (
            distributions.log_prob(dist, batch.extras["raw_action"]) - batch.extras["log_prob"]
        )
        surrogate = elementwise(policy_loss, log_ratio, advantage, hyper.clip_range)
        loss, entropy = mean(surrogate, batch), mean(distributions.entropy(dist, key), batch)
        change = jnp.expm1(jnp.minimum(log_ratio, losses.MAX_LOG_RATIO))
        metrics = {"policy_loss": loss, "entropy": entropy, KL: mean(change - log_ratio, batch)}
        metrics["clip_fraction"] = mean(jnp.abs(change) > hyper.clip_range, batch)
        return jnp.sum(loss - hyper.entropy_coef * entropy), jax.tree.map(jnp.mean, metrics)

    return loss_of


def first_output(outputs: PyTree, obs: PyTree, action: jax.Array | None) -> jax.Array:
    """Return the first output as the value (`ValueOf`).

    Args:
        outputs: Outputs ``[..., 1]``.
        obs: Unused.
        action: Unused.

    Returns:
        Values ``[...]``.
    """
    return outputs[..., 0]


def value_errors(
    value_loss: Callable, value_of: ValueOf = first_output, mean: Mean = over_all_steps
) -> PartLoss:
    """Return the values' loss: regression on the targets.

    Args:
        value_loss: Loss of a value and its target.
        value_of: Computes values from the network's outputs.
        mean: Mean over steps.

    Returns:
        The loss.
    """

    def loss_of(
        outputs: PyTree, batch: OnPolicyBatch, key: jax.Array, hyper: PpoHyper
    ) -> tuple[jax.Array, Metrics]:
        now, target = value_of(outputs, batch.obs, batch.action), batch.targets["value_target"]
        loss = mean(elementwise(value_loss, now, target), batch)
        return jnp.sum(loss), {"value_loss": jnp.mean(loss)}

    return loss_of


def critic_part(
    value: Network,
    value_loss: Callable,
    optimizer: str,
    value_of: ValueOf = first_output,
    mean: Mean = over_all_steps,
) -> Part:
    """Build the value network's part: regression on the targets.

    Args:
        value: Value network.
        value_loss: Loss of a value and its target.
        optimizer: `OptimizerName`.
        value_of: Computes values from the network's outputs.
        mean: Mean over steps.

    Returns:
        The part.
    """
    own_rate = make_optimizer(
        optimizer, rate=lambda hyper: hyper.learning_rate * hyper.critic_learning_rate_ratio
    )
    return part_of("critic", "value", value, value_errors(value_loss, value_of, mean), own_rate)
