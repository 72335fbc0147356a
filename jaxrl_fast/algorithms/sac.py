"""Soft actor-critic, for continuous actions (arXiv 1812.05905).

Two parts: the critic (two Q-networks and their target networks) and the actor (the policy and the
temperature). Options: more critics, some of them at random in each target (REDQ, arXiv 2101.05982),
dropout in critics (DroQ, arXiv 2110.02034), prioritized replay (arXiv 1511.05952), a fixed
temperature, bounds of the policy's standard deviation, exploration by noise that depends on the
state and stays for some steps (gSDE, arXiv 2005.05719).
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import Box, EnvSpec, Metrics, Number, PyTree
from jaxrl_fast.learning.acting import (
    RepeatedNoise,
    sample_action,
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
    over_replay,
    over_successors,
    require_actions,
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
    ABOVE_0,
    FROM_0_TO_1,
    AnyRate,
    OptimizerName,
    Rate0,
    Rate01,
    check_optimizer,
    checks_numbers,
    make_optimizer,
)

Normal = Callable[[Any], distributions.TanhNormal]
"""(outputs of the policy, ``[..., 2 A]`` or of a `StateNoise`) -> its distribution."""
OptionalNumber = Annotated[float | None, ABOVE_0._replace(kind="number", optional=True)]


class SacHyper(NamedTuple):
    """Hyper-parameters, each a number or a schedule such as ``Linear(3e-4, 0.0)``.

    Attributes:
        learning_rate: Learning rate of all networks.
        temperature_learning_rate: Learning rate of the temperature's logarithm.
        discount: Discount factor γ per step.
        tau: Weight of the new params in target networks at each update, 0 to 1.
        target_entropy_per_action: Target entropy in nats per action dimension.
        max_grad_norm: Norm to which the gradients of each network are clipped.
        reward_scale: Factor of the rewards.
        weight_decay: Weight decay of AdamW; 0 for other optimizers.
        fixed_temperature: Temperature that is not trained; 0 if it is trained.
        importance_exponent: Exponent of the importance weights in prioritized replay, 0 (none) to 1
            (full).
    """

    learning_rate: Any
    temperature_learning_rate: Any
    discount: Any
    tau: Any
    target_entropy_per_action: Any
    max_grad_norm: Any
    reward_scale: Any
    weight_decay: Any = 0.0
    fixed_temperature: Any = 0.0
    importance_exponent: Any = 0.4


@checks_numbers()
def sac(
    *,
    learning_rate: Rate0 = 3e-4,
    temperature_learning_rate: Rate0 = 3e-4,
    discount: Rate01 = 0.99,
    tau: Rate01 = 0.005,
    target_entropy_per_action: AnyRate = -0.5,
    max_grad_norm: Rate0 = 1e6,
    reward_scale: Rate0 = 1.0,
    weight_decay: Rate0 = 0.0,
    fixed_temperature: Rate0 = 0.0,
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
    num_critics: int = 2,
    target_critics: int | None = None,
    critic_dropout: Annotated[float, Number(0, 0.9)] = 0.0,
    deviation_min: OptionalNumber = None,
    deviation_max: OptionalNumber = None,
    noise_steps: int = 0,
    normalize_observations: bool | None = None,
    policy_hidden: tuple[int, ...] = (256, 256),
    critic_hidden: tuple[int, ...] = (256, 256),
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
    """Build SAC.

    A tick samples ``rollout_length`` steps in every environment, then makes ``updates_per_tick``
    updates once ``warmup_steps`` steps are in the buffer. Images are stored once each.

    Args:
        learning_rate: Learning rate of all networks.
        temperature_learning_rate: Learning rate of the temperature's logarithm.
        discount: Discount factor γ per step.
        tau: Weight of the new params in target networks at each update, 0 to 1.
        target_entropy_per_action: Target entropy in nats per action dimension.
        max_grad_norm: Norm to which the gradients of each network are clipped.
        reward_scale: Factor of the rewards.
        weight_decay: Weight decay of AdamW; 0 for other optimizers.
        fixed_temperature: Temperature that is not trained; 0 to train it from
            ``initial_temperature``.
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
        num_critics: Number of Q-networks; with more than 2 the policy maximizes their mean instead
            of their minimum.
        target_critics: Number of Q-networks whose minimum is the target, drawn anew in every
            update; None for all.
        critic_dropout: Share of the outputs of the critics' hidden layers that an update sets to 0;
            the policy then maximizes the critics' mean.
        deviation_min: Smallest standard deviation of the policy before the squashing by tanh; None
            for no bound, or with ``deviation_max`` for e^-20.
        deviation_max: Largest standard deviation; None for no bound, or with ``deviation_min`` for
            e^2.
        noise_steps: Steps for which exploration repeats its noise matrix (gSDE), also across
            episodes: the standard deviation then depends on the policy's last hidden layer; 0 for
                independent noise in each step. Deviations
            are between e^-20 and e^2 unless bounded otherwise.
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
    rates = learning_rate, temperature_learning_rate, discount, tau, target_entropy_per_action
    hyper = SacHyper(
        *rates, max_grad_norm, reward_scale, weight_decay, fixed_temperature, importance_exponent
    )
    options: dict[str, Any] = dict(
        activation=activation, memory=memory, recurrent_size=recurrent_size
    )
    options |= dict(network=network, cnn=cnn, precision=precision)
    options |= dict(policy_hidden=tuple(policy_hidden), critic_hidden=tuple(critic_hidden))
    options |= dict(policy_keys=tuple(policy_keys), critic_keys=tuple(critic_keys))
    options |= dict(
        critic_layer_norm=critic_layer_norm, critic_dropout=critic_dropout, num_critics=num_critics
    )
    options |= dict(
        deviation_min=deviation_min, deviation_max=deviation_max, noise_steps=noise_steps
    )
    options |= dict(optimizer=optimizer)
    sizes = off_policy_sizes(rollout_length, updates_per_tick, warmup_steps)

    def build(spec: EnvSpec, num_envs: int) -> Agent:
        box = require_actions("sac", spec, (Box,), "sac_discrete")
        check_optimizer(optimizer, weight_decay)
        updates, warmup = sizes(num_envs).values()
        data = Replay(buffer_size, batch_size, updates, warmup, n_step, sequence_length, burn_in)
        data = data._replace(
            warmup_actions=warmup_actions, prioritize=prioritize_critic(priority_exponent)
        )
        targets, bounds = target_size(num_critics, target_critics), (deviation_min, deviation_max)
        normal: Normal = partial(
            distributions.tanh_normal, bounds=distributions.deviation_bounds(*bounds)
        )
        decide = sample_action(
            box, remember=False, policy=lambda space, outputs, obs: normal(outputs)
        )
        acting: dict[str, Any] = dict(decide=decide)
        shapes: dict[str, Any] = dict(action_shape=(box.low.size,), num_critics=num_critics)
        shapes |= dict(policy_size=distributions.num_outputs(box))
        if noise_steps:
            normal = state_noise_normal(*bounds)
            acting, shapes["policy_size"] = (
                state_noise_action(box, normal, policy_hidden, noise_steps),
                box.low.size,
            )
        policy, q = policy_and_critics(spec.obs, options, **shapes)
        temperature = (
            {"temperature": temperature_network(initial_temperature)}
            if fixed_temperature == 0.0
            else {}
        )
        networks = {"policy": policy, **temperature}
        return Agent(
            parts={
                "critic": critic_part(
                    box, policy, normal, q, data, critic_loss, targets, optimizer
                ),
                "actor": actor_part(box, networks, normal, q, data, optimizer),
            },
            data=data,
            acts={"actor": "policy"},
            remembers={"critic": "q"} if recurrent_size else {},
            **acting,
            rollout_length=rollout_length,
            normalize_observations=normalize_observations,
        )

    return Algorithm("sac", hyper, options, build, sizes)


def state_noise_normal(deviation_min: float | None, deviation_max: float | None) -> Normal:
    """Return the distribution of actions of a policy with state-dependent noise, for losses.

    Args:
        deviation_min: Smallest standard deviation; None for the published one.
        deviation_max: Largest standard deviation; None for the published one.

    Returns:
        The function of the outputs of a `StateNoise`.
    """
    bounds = (
        distributions.deviation_bounds(deviation_min, deviation_max)
        or distributions.PUBLISHED_DEVIATIONS
    )

    def normal(outputs: dict[str, jax.Array]) -> distributions.TanhNormal:
        both = jnp.concatenate([outputs["mean"], outputs["log_deviation"]], axis=-1)
        return distributions.tanh_normal(both, bounds)

    return normal


def state_noise_action(
    space: Box, normal: Normal, hidden: tuple[int, ...], noise_steps: int
) -> dict[str, Callable]:
    """Return action selection with noise that is a linear function of the policy's last hidden
    layer.

    All environments draw new matrices of this function at the same steps, which need not begin
    episodes.

    Args:
        space: Action space.
        normal: Distribution of the policy's outputs.
        hidden: Sizes of the policy's hidden layers.
        noise_steps: Steps with the same matrix.

    Returns:
        The functions ``decide`` and ``init_decide`` of an `Agent`, by name.

    Raises:
        ValueError: There is no hidden layer.

    Source: Raffin et al. (2021), gSDE, section 3, arXiv 2005.05719.
    """
    if not hidden:
        raise ValueError(
            "noise_steps makes noise of the last hidden layer: write at least one size in policy_hidden"
        )

    def init(num_envs: int) -> RepeatedNoise:
        return RepeatedNoise(
            jnp.zeros((num_envs, hidden[-1], space.low.size)), jnp.zeros(num_envs, jnp.int32)
        )

    def decide(
        outputs: dict, obs: PyTree, state: PyTree, key: jax.Array, hyper: Any, explore: bool
    ) -> tuple:
        own = outputs["actor"]
        if not explore:
            return distributions.to_action(space, own["mean"]), state, {}
        share = own["share"].reshape(-1, hidden[-1], space.low.size)
        renewed = state.steps_left == 0
        matrix = jnp.where(
            renewed[:, None, None], distributions.standard_normal(key, share.shape), state.noise
        )
        # Divided by its deviation before the bounds, the noise has the deviation within them.
        noise = normal(own).scale * jnp.sum(share * matrix, axis=1) / jnp.exp(own["log_deviation"])
        state = RepeatedNoise(matrix, jnp.where(renewed, noise_steps, state.steps_left) - 1)
        return distributions.to_action(space, own["mean"] + noise), state, {}

    return {"decide": decide, "init_decide": init}


def temperature_of(actor: dict[str, PyTree], hyper: SacHyper) -> jax.Array:
    """Return the weight of the entropy.

    Args:
        actor: Params of the actor by network.
        hyper: Hyper-parameters.

    Returns:
        The trained temperature, else the fixed one, a scalar.
    """
    return (
        jnp.exp(actor["temperature"])
        if "temperature" in actor
        else jnp.asarray(hyper.fixed_temperature)
    )


def critic_part(
    box: Box,
    policy: Network,
    normal: Normal,
    q_networks: Network,
    data: Replay,
    critic_loss: Callable,
    target_critics: int,
    optimizer: OptimizerName,
) -> Part:
    """Build the Q-networks' part: regression on the soft Bellman target, then a step of the target
    networks.

    Args:
        box: Action space.
        policy: Policy network.
        normal: Distribution of its outputs.
        q_networks: Ensemble of Q-networks.
        data: Data of the updates.
        critic_loss: Loss of a value and its target.
        target_critics: Number of Q-networks in each target.
        optimizer: `OptimizerName`.

    Returns:
        The part.
    """

    def gradients(
        own: Learned, peers: dict[str, Learned], batch: ReplayBatch, key: jax.Array, hyper: SacHyper
    ) -> GradientResult:
        actor = peers["actor"].params
        dist = normal(over_successors(data, policy, actor["policy"], batch, "actor"))
        raw = distributions.sample(dist, key)
        online, slow = (with_dropout(q_networks, key, use) for use in ("loss", "target"))
        next_q = over_successors(data, slow, own.target["q"], batch, "critic", jnp.tanh(raw))[
            ..., 0
        ]
        next_q = random_critics(next_q, target_critics, key)
        soft_target = jax.vmap(jax.vmap(losses.soft_target, (0, 0, 1, 0, None)), (0, 0, 1, 0, None))
        log_prob, temperature = distributions.log_prob(dist, raw), temperature_of(actor, hyper)
        target = soft_target(batch.reward, batch.bootstrap, next_q, log_prob, temperature)

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

    return Part(
        {"q": q_networks},
        gradients,
        {"q": make_optimizer(optimizer)},
        reads=("actor",),
        targets=("q",),
    )


def actor_part(
    box: Box,
    networks: dict[str, Network],
    normal: Normal,
    q_networks: Network,
    data: Replay,
    optimizer: OptimizerName,
) -> Part:
    """Build the part of the policy, which maximizes the critic's value plus entropy, and of the
    temperature.

    The temperature's logarithm is trained to hold the entropy at its target, if the temperature is
    a network.

    Args:
        box: Action space.
        networks: Policy, and temperature unless it is fixed.
        normal: Distribution of the policy's outputs.
        q_networks: Ensemble of Q-networks.
        data: Data of the updates.
        optimizer: `OptimizerName`.

    Returns:
        The part.
    """

    def gradients(
        own: Learned, peers: dict[str, Learned], batch: ReplayBatch, key: jax.Array, hyper: SacHyper
    ) -> GradientResult:
        temperature, critic = temperature_of(own.params, hyper), peers["critic"].params["q"]
        q_of = with_dropout(q_networks, key, "policy")

        def policy_loss(params: PyTree) -> tuple[jax.Array, Metrics]:
            dist = normal(over_replay(data, networks["policy"], params, batch, "actor"))
            raw = distributions.sample(dist, key)
            log_prob = distributions.log_prob(dist, raw)
            q = over_replay(data, q_of, critic, batch, "critic", jnp.tanh(raw), learning=False)[
                ..., 0
            ]
            q = jnp.mean(q, axis=0, keepdims=True) if averages_critics(q_networks) else q
            soft_policy = jax.vmap(jax.vmap(losses.soft_policy, (1, 0, None)), (1, 0, None))
            loss = jnp.mean(soft_policy(q, log_prob, temperature))
            return loss, {"policy_loss": loss, "entropy": -jnp.mean(log_prob)}

        policy_grads, metrics = gradients_of(policy_loss, own.params["policy"])
        grads = {"policy": policy_grads}
        if "temperature" in networks:
            target_entropy = hyper.target_entropy_per_action * box.low.size
            log_temperature = own.params["temperature"]
            grads["temperature"] = temperature_gradient(
                log_temperature, metrics["entropy"], target_entropy
            )
        return GradientResult(grads, {**metrics, "temperature": temperature})

    optimizers = {"policy": make_optimizer(optimizer), "temperature": temperature_optimizer()}
    return Part(
        networks, gradients, {name: optimizers[name] for name in networks}, reads=("critic",)
    )
