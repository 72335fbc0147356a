"""Proximal policy optimization, for any actions (arXiv 1707.06347).

Actor and critic have separate networks, optimizers and gradient-norm clips. Within a tick neither
reads the other's newest parameters, so they can be updated at the same time without changing a
result.
"""

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Annotated, Any, NamedTuple

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
    Algorithm,
    GradientResult,
    Learned,
    OnPolicy,
    OnPolicyBatch,
    Part,
    ValueOf,
    Values,
    elementwise,
    gradients_of,
    on_policy_sizes,
    over_rollout,
    require_actions,
)
from jaxrl_fast.networks.network import (
    SHARED,
    Activation,
    Cnn,
    Head,
    MemoryKind,
    Network,
    Precision,
    Torso,
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
    checks_numbers,
    is_set,
    make_optimizer,
)


class PpoHyper(NamedTuple):
    """Hyper-parameters, each a number or a schedule such as ``Linear(3e-4, 0.0)``.

    Attributes:
        learning_rate: Learning rate of the policy.
        critic_learning_rate_ratio: Learning rate of the critic, relative to ``learning_rate``; of a
            shared torso, the weight of the values' loss.
        discount: Discount factor γ per step.
        gae_lambda: λ of the advantages.
        clip_range: Largest deviation of the probability ratio from 1 (ε of PPO's loss).
        entropy_coef: Weight of the policy's entropy in the loss.
        max_grad_norm: Norm to which the gradients of each network are clipped.
        reward_scale: Factor of the rewards.
        weight_decay: Weight decay of AdamW; 0 for other optimizers.
        value_clip_range: Largest change of a value, relative to its value at sampling time, that
            its loss rewards.
        max_kl: Largest divergence from the policy that acted at which the policy is updated.
        desired_kl: Divergence that the learning rate aims for.
    """

    learning_rate: Any
    critic_learning_rate_ratio: Any
    discount: Any
    gae_lambda: Any
    clip_range: Any
    entropy_coef: Any
    max_grad_norm: Any
    reward_scale: Any
    weight_decay: Any = 0.0
    value_clip_range: Any = 0.0
    max_kl: Any = 0.0
    desired_kl: Any = 0.0


OF_NETWORKS = *SHARED, "orthogonal"
OWN = "optimizer", "free_deviation", "clip_actions", "share_torso", "normalize_values"
LISTS = "policy_hidden", "value_hidden", "policy_keys", "critic_keys"
"""Arguments on which networks depend: of all networks, others, and those with several numbers or
names.
"""
EXTRAS = (
    "share_torso",
    "normalize_values",
    "free_deviation",
    "clip_actions",
    "value_clip_range",
    "max_kl",
    "desired_kl",
)
"""Arguments that `with_options` handles: false or 0 by default."""
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


@checks_numbers()
def ppo(
    *,
    learning_rate: Rate0 = 3e-4,
    critic_learning_rate_ratio: Rate0 = 1.0,
    discount: Rate01 = 0.99,
    gae_lambda: Rate01 = 0.95,
    clip_range: Rate0 = 0.2,
    entropy_coef: Rate0 = 0.01,
    max_grad_norm: Rate0 = 0.5,
    reward_scale: Rate0 = 1.0,
    weight_decay: Rate0 = 0.0,
    value_clip_range: Rate0 = 0.0,
    max_kl: Rate0 = 0.0,
    desired_kl: Rate0 = 0.0,
    rollout_length: int | None = None,
    num_epochs: int = 10,
    num_minibatches: int | None = None,
    normalize_observations: bool | None = None,
    normalize_rewards: bool | None = None,
    normalize_advantages: bool = True,
    policy_hidden: tuple[int, ...] = (64, 64),
    value_hidden: tuple[int, ...] = (64, 64),
    policy_keys: tuple[str, ...] = (),
    critic_keys: tuple[str, ...] = (),
    activation: Activation = "tanh",
    layer_norm: bool = False,
    memory: MemoryKind = "gru",
    recurrent_size: int = 0,
    initial_deviation: Annotated[float, FROM_0] = 0.4,
    free_deviation: bool = False,
    clip_actions: bool = False,
    orthogonal: bool = False,
    share_torso: bool = False,
    normalize_values: bool = False,
    network: Torso = "mlp",
    cnn: Cnn = "auto",
    optimizer: OptimizerName = "adam:1e-5",
    precision: Precision = "f32",
    policy_loss: Callable[..., jax.Array] = losses.clipped_surrogate,
    value_loss: Callable[..., jax.Array] = losses.squared_error,
) -> Algorithm:
    """Build PPO.

    A tick samples ``rollout_length`` steps in every environment and makes
    ``num_epochs * num_minibatches`` updates with them.

    Args:
        learning_rate: Learning rate of the policy.
        critic_learning_rate_ratio: Learning rate of the critic, relative to ``learning_rate``; of a
            shared torso, the weight of the values' loss.
        discount: Discount factor γ per step.
        gae_lambda: λ of the advantages.
        clip_range: Largest deviation of the probability ratio from 1 (ε of PPO's loss).
        entropy_coef: Weight of the policy's entropy in the loss.
        max_grad_norm: Norm to which the gradients of each network are clipped.
        reward_scale: Factor of the rewards.
        weight_decay: Weight decay of AdamW; 0 for other optimizers.
        value_clip_range: Largest change of a value, relative to its value at sampling time, that
            its loss rewards; 0 for no limit.
        max_kl: KL divergence from the policy that acted above which a minibatch does not update the
            policy; 0 for no limit.
        desired_kl: KL divergence that the policy's learning rate aims for: it grows or falls with
            each minibatch; 0 for the given rate.
        rollout_length: Steps of each environment in a tick; None for a length that depends on
            ``num_envs`` (`default_rollout`).
        num_epochs: Passes over a rollout.
        num_minibatches: Minibatches in an epoch; None for a power of two that depends on
            ``num_envs`` (`on_policy_sizes`).
        normalize_observations: Whether to normalize observations; None for all but images and
            grids.
        normalize_rewards: Whether to divide rewards by the running deviation of returns; None for
            continuous actions.
        normalize_advantages: Whether to normalize advantages in each minibatch.
        policy_hidden: Sizes of the policy's hidden layers.
        value_hidden: Sizes of the value network's hidden layers.
        policy_keys: Entries of a dictionary observation that the policy reads; empty for all.
        critic_keys: Entries of a dictionary observation that the critic reads; empty for all.
        activation: Activation of the hidden layers.
        layer_norm: Whether to normalize the hidden layers.
        memory: Kind of the memory: "gru", "lstm", "mingru", "lru", "gtrxl-64x2" (window, layers),
            or your own function (`make_memory`).
        recurrent_size: Size of the memory before the hidden layers; 0 for none.
            With it, minibatches are whole sequences.
        initial_deviation: Standard deviation of continuous actions at the start, in half ranges,
            before the squashing.
        free_deviation: Whether the deviations of continuous actions are trained numbers, the same
            in every state.
        clip_actions: Whether continuous actions are normal and clipped to their range, instead of
            squashed by tanh.
        orthogonal: Whether the initial weights of dense layers and convolutions are orthogonal.
        share_torso: Whether policy and value are two heads of one network, whose sizes are
            ``policy_hidden``.
        normalize_values: Whether the value network learns targets that are scaled by their running
            mean and deviation.
        network: Torso of the networks: "mlp", "residual", "simba", or your own function
            (`own_torso`).
        cnn: Convolutions for images (`make_network`).
        optimizer: ``adam``, ``adamw``, ``radam`` or ``rmsprop``; with constants
            ``adam:epsilon:beta1:beta2`` or ``rmsprop:epsilon:decay``.
        precision: "f32", or "bf16" for dense layers and convolutions.
        policy_loss: ``(log_ratio, advantage, clip_range) -> loss``, on scalars.
        value_loss: ``(value, target) -> loss``, on scalars.

    Returns:
        The algorithm.
    """
    given = locals()
    hyper = PpoHyper(*map(given.__getitem__, PpoHyper._fields))
    options = {name: given[name] for name in (*OF_NETWORKS, *OWN)} | {
        name: tuple(given[name]) for name in LISTS
    }
    shared: dict[str, Any] = {name: given[name] for name in OF_NETWORKS}
    sizes = on_policy_sizes(
        rollout_length, num_minibatches, steps=64, least=4, whole_rollouts=recurrent_size > 0
    )

    def build(spec: EnvSpec, num_envs: int) -> Agent:
        space = require_actions("ppo", spec, (Discrete, MultiDiscrete, Box), "sac")
        check_optimizer(optimizer, weight_decay)
        sized, decide, size = (
            sizes(num_envs),
            sample_action(space, remember=True),
            distributions.num_outputs(space),
        )
        bias = (
            distributions.initial_biases(space, initial_deviation) if isinstance(space, Box) else ()
        )
        head: dict[str, Any] = {"out_scale": 0.01, "out_bias": bias}
        policy = make_network(
            spec.obs, size, hidden=policy_hidden, keys=policy_keys, **head, **shared
        )
        value = make_network(spec.obs, 1, hidden=value_hidden, keys=critic_keys, **shared)
        loss = surrogate_loss(space, policy_loss, normalize_advantages)
        parts = {"critic": critic_part(value, value_loss, optimizer)}
        parts["actor"] = part_of("actor", "policy", policy, loss, make_optimizer(optimizer))
        data = OnPolicy(
            num_epochs, sized["num_minibatches"], critic="critic", network="value", targets=targets
        )
        scaled = isinstance(space, Box) if normalize_rewards is None else normalize_rewards
        more: dict[str, Any] = dict(
            normalize_observations=normalize_observations, normalize_rewards=scaled
        )
        more |= dict(
            remembers={"critic": "value"} if recurrent_size else {}, outputs_of=itemgetter("actor")
        )
        agent = Agent(parts, data, {"actor": "policy"}, decide, sized["rollout_length"], **more)
        return (
            with_options(agent, spec, given, bias, shared)
            if any(is_set(given[name]) for name in EXTRAS)
            else agent
        )

    return Algorithm("ppo", hyper, options, build, sizes)


def with_options(
    agent: Agent, spec: EnvSpec, given: dict[str, Any], bias: tuple[float, ...], shared: dict
) -> Agent:
    """Replace the parts of PPO by parts with the options that are off by default.

    Args:
        agent: PPO without them.
        spec: Environment.
        given: Arguments of `ppo`.
        bias: Initial biases of the policy's outputs.
        shared: Arguments of `make_network` for all networks.

    Returns:
        The agent.

    Raises:
        ValueError: ``share_torso`` with an option that it excludes.
    """
    space, continuous = spec.action, isinstance(spec.action, Box)
    free = bias[len(bias) // 2 :] if continuous and given["free_deviation"] else ()
    head = Head(distributions.num_outputs(space) - len(free), 0.01, bias[: len(bias) - len(free)])
    own = distributions.normal if continuous and given["clip_actions"] else policy_of
    actor = surrogate_loss(space, given["policy_loss"], given["normalize_advantages"], policy=own)
    critic = (clipped_errors if is_set(given["value_clip_range"]) else value_errors)(
        given["value_loss"]
    )
    stop, adapt = is_set(given["max_kl"]), is_set(given["desired_kl"])
    plain = make_optimizer(given["optimizer"])
    near: MakeOptimizer = by_divergence(plain, stop=stop, adapt=adapt) if stop or adapt else plain
    make: Callable[..., Network] = partial(make_network, spec.obs, **shared)
    make = partial(make, hidden=given["policy_hidden"], keys=given["policy_keys"])
    if given["share_torso"]:
        if given["normalize_values"] or tuple(given["policy_keys"]) != tuple(given["critic_keys"]):
            raise ValueError(
                "share_torso=true: leave normalize_values out, and write equal policy_keys and critic_keys"
            )
        torso = with_free_outputs(make({"value": Head(1), "policy": head}), free, "policy")
        return in_one_part(
            agent, part_of("agent", "network", torso, joint_loss(actor, critic), near), space, own
        )
    policy = with_free_outputs(make(head.size, out_scale=head.scale, out_bias=head.bias), free)
    before = agent.parts["critic"]
    value = part_of("critic", "value", before.networks["value"], critic, before.optimizers["value"])
    parts = {
        "critic": with_normalized_values(value, over_all_steps)
        if given["normalize_values"]
        else value
    }
    parts["actor"] = part_of("actor", "policy", policy, actor, near)
    return agent._replace(parts=parts, decide=sample_action(space, remember=True, policy=own))


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
        own: Learned, peers: dict, batch: OnPolicyBatch, key: jax.Array, hyper: PpoHyper
    ) -> GradientResult:
        def loss_fn(params: PyTree) -> tuple[jax.Array, Metrics]:
            return loss(over_rollout(network, params, batch, part)[0], batch, key, hyper)

        grads, metrics = gradients_of(loss_fn, own.params[name])
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
