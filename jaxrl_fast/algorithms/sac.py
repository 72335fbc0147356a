"""Soft actor-critic, for continuous actions (arXiv 1812.05905).

Two parts: the critic (two Q-networks and their target networks) and the actor (the policy and the
temperature). Options: more critics, some of them at random in each target (REDQ, arXiv 2101.05982),
dropout in critics (DroQ, arXiv 2110.02034), prioritized replay (arXiv 1511.05952), a fixed
temperature, bounds of the policy's standard deviation, exploration by noise that depends on the
state and stays for some steps (gSDE, arXiv 2005.05719).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

from jaxrl_fast.algorithms.shared_fields import (
    ActorCriticFields,
    EnsembleFields,
    MemoryFields,
    ObservationFields,
    OptimizerFields,
    PriorityFields,
    SequenceFields,
    TargetRates,
    WarmupFields,
    policy_and_critics,
    replay_of,
    sizes_of_replay,
)
from jaxrl_fast.core import Box, EnvSpec, Metrics, PyTree
from jaxrl_fast.learning.acting import (
    RepeatedNoise,
    sample_action,
    temperature_gradient,
    temperature_network,
    temperature_optimizer,
)
from jaxrl_fast.learning.algorithm import (
    Agent,
    GradientResult,
    Learned,
    Part,
    Replay,
    ReplayBatch,
    gradients_of,
    over_replay,
    over_successors,
    require_actions,
)
from jaxrl_fast.learning.critics import (
    averages_critics,
    critic_priorities,
    random_critics,
    regression,
    target_size,
    with_dropout,
)
from jaxrl_fast.networks.network import Network
from jaxrl_fast.networks.noisy import two_parts
from jaxrl_fast.numerics import distributions, losses
from jaxrl_fast.numerics.optimizers import (
    ABOVE_0,
    AnyRate,
    OptimizerName,
    Rate0,
    check_optimizer,
    make_optimizer,
)

Normal = Callable[[Any], distributions.TanhNormal]
"""(outputs of the policy, ``[..., 2 A]`` or of a `StateNoise`) -> its distribution."""
OptionalNumber = Annotated[float | None, ABOVE_0._replace(kind="number", optional=True)]


@dataclass(frozen=True, kw_only=True, eq=False)
class SacHyper(TargetRates):
    """Rates of SAC; others are in `PriorityFields` and `OptimizerFields`."""

    temperature_learning_rate: Rate0 = 3e-4
    """Learning rate of the temperature's logarithm."""
    target_entropy_per_action: AnyRate = -0.5
    """Target entropy in nats per action dimension."""
    fixed_temperature: Rate0 = 0.0
    """Temperature that is not trained; 0 to train it from ``initial_temperature``."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Sac(
    OptimizerFields,
    MemoryFields,
    ActorCriticFields,
    ObservationFields,
    EnsembleFields,
    PriorityFields,
    SequenceFields,
    WarmupFields,
    SacHyper,
):
    """SAC.

    A tick samples ``rollout_length`` steps in every environment, then makes ``updates_per_tick``
    updates once ``warmup_steps`` steps are in the buffer. Images are stored once each.
    """

    name: ClassVar[str] = "sac"

    num_critics: int = 2
    """Number of Q-networks; with more than 2 the policy maximizes their mean instead of their
    minimum.
    """
    deviation_min: OptionalNumber = None
    """Smallest standard deviation of the policy before the squashing by tanh; None for no bound, or
    with ``deviation_max`` for e^-20.
    """
    deviation_max: OptionalNumber = None
    """Largest standard deviation; None for no bound, or with ``deviation_min`` for e^2."""
    noise_steps: int = 0
    """Steps for which exploration repeats its noise matrix (gSDE), also across episodes: the
    standard deviation then depends on the policy's last hidden layer; 0 for independent noise in
    each step. Deviations are between e^-20 and e^2 unless bounded otherwise.
    """
    initial_temperature: Annotated[float, ABOVE_0] = 1.0
    """Temperature at the start of the run."""
    critic_loss: Callable[[jax.Array, jax.Array], jax.Array] = losses.squared_error
    """``(q, target) -> loss``, on scalars."""

    def sizes(self, num_envs: int, total_steps: int | None = None) -> dict[str, int]:
        """Compute the updates of a tick and the warm-up, unless they were given."""
        return sizes_of_replay(self, num_envs, total_steps)

    def build(self, spec: EnvSpec, num_envs: int) -> Agent:
        """Build the agent for one environment."""
        box = require_actions("sac", spec, (Box,), "sac_discrete")
        check_optimizer(self.optimizer, self.weight_decay)
        data = replay_of(self, num_envs)
        bounds = self.deviation_min, self.deviation_max
        if self.noise_steps:
            normal = state_noise_normal(*bounds)
            acting: dict[str, Any] = state_noise_action(
                box, normal, self.policy_hidden, self.noise_steps
            )
        else:
            normal = partial(
                distributions.tanh_normal, bounds=distributions.deviation_bounds(*bounds)
            )
            decide = sample_action(
                box, remember=False, policy=lambda space, outputs, obs: normal(outputs)
            )
            acting = {"decide": decide}
        policy, q = policy_and_critics(
            self,
            spec.obs,
            policy_size=box.low.size if self.noise_steps else distributions.num_outputs(box),
            action_shape=(box.low.size,),
            num_critics=self.num_critics,
            critic_dropout=self.critic_dropout,
            split=two_parts if self.noise_steps else None,
        )
        networks = {"policy": policy}
        if self.fixed_temperature == 0.0:
            networks["temperature"] = temperature_network(self.initial_temperature)
        targets = target_size(self.num_critics, self.target_critics)
        return Agent(
            parts={
                "critic": critic_part(
                    box, policy, normal, q, data, self.critic_loss, targets, self.optimizer
                ),
                "actor": actor_part(box, networks, normal, q, data, self.optimizer),
            },
            data=data,
            acts={"actor": "policy"},
            remembers={"critic": "q"} if self.recurrent_size else {},
            **acting,
            rollout_length=self.rollout_length,
            normalize_observations=self.normalize_observations,
        )


sac = Sac


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
        actor = outputs["actor"]
        if not explore:
            return distributions.to_action(space, actor["mean"]), state, {}
        share = actor["share"].reshape(-1, hidden[-1], space.low.size)
        renewed = state.steps_left == 0
        matrix = jnp.where(
            renewed[:, None, None], distributions.standard_normal(key, share.shape), state.noise
        )
        # Divided by its deviation before the bounds, the noise has the deviation within them.
        noise = (
            normal(actor).scale * jnp.sum(share * matrix, axis=1) / jnp.exp(actor["log_deviation"])
        )
        state = RepeatedNoise(matrix, jnp.where(renewed, noise_steps, state.steps_left) - 1)
        return distributions.to_action(space, actor["mean"] + noise), state, {}

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
        learned: Learned,
        peers: dict[str, Learned],
        batch: ReplayBatch,
        key: jax.Array,
        hyper: SacHyper,
    ) -> GradientResult:
        actor = peers["actor"].params
        dist = normal(over_successors(data, policy, actor["policy"], batch, "actor"))
        raw = distributions.sample(dist, key)
        online, slow = (with_dropout(q_networks, key, use) for use in ("loss", "target"))
        next_q = over_successors(data, slow, learned.target["q"], batch, "critic", jnp.tanh(raw))[
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

        grads, (metrics, priorities) = gradients_of(loss_fn, learned.params["q"])
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
        learned: Learned,
        peers: dict[str, Learned],
        batch: ReplayBatch,
        key: jax.Array,
        hyper: SacHyper,
    ) -> GradientResult:
        temperature, critic = temperature_of(learned.params, hyper), peers["critic"].params["q"]
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

        policy_grads, metrics = gradients_of(policy_loss, learned.params["policy"])
        grads = {"policy": policy_grads}
        if "temperature" in networks:
            target_entropy = hyper.target_entropy_per_action * box.low.size
            log_temperature = learned.params["temperature"]
            grads["temperature"] = temperature_gradient(
                log_temperature, metrics["entropy"], target_entropy
            )
        return GradientResult(grads, {**metrics, "temperature": temperature})

    optimizers = {"policy": make_optimizer(optimizer), "temperature": temperature_optimizer()}
    return Part(
        networks, gradients, {name: optimizers[name] for name in networks}, reads=("critic",)
    )
