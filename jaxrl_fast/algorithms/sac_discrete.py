"""Soft actor-critic for discrete actions (arXiv 1910.07207), with the mean of the two critics in targets and losses
(arXiv 2209.10081, which found their minimum to underestimate).

Two parts, as in SAC: the critic (two Q-networks with target networks) and the actor (the policy and the temperature).
Expectations over actions are exact, so nothing is sampled in an update.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import Discrete, EnvSpec, Metrics, PyTree
from jaxrl_fast.learning.acting import (
    sample_action,
    temperature_gradient,
    temperature_network,
    temperature_optimizer,
    value_of,
)
from jaxrl_fast.learning.algorithm import (
    Agent,
    Algorithm,
    GradientResult,
    Learned,
    Part,
    Replay,
    ReplayBatch,
    gradients_of,
    off_policy_sizes,
    over_replay,
    over_successors,
    require_actions,
)
from jaxrl_fast.learning.critics import policy_and_critics, regression
from jaxrl_fast.networks.network import Activation, Cnn, Network, Precision, action_mask
from jaxrl_fast.numerics import distributions, losses
from jaxrl_fast.numerics.optimizers import OptimizerName, check_optimizer, make_optimizer


class SacDiscreteHyper(NamedTuple):
    """Rates, each a number or a schedule such as ``Linear(3e-4, 0.0)``.

    - ``learning_rate``, ``temperature_learning_rate``: of the networks, and of the temperature's logarithm.
    - ``discount``: γ per step; ``tau``: how far target networks move at every update (0 to 1).
    - ``target_entropy_ratio``: the entropy that the temperature aims at, as a share of that of random actions.
    - ``max_grad_norm``: to which the gradients of each network are clipped.
    - ``reward_scale``: a factor of rewards; ``weight_decay``: of AdamW.
    """

    learning_rate: Any
    temperature_learning_rate: Any
    discount: Any
    tau: Any
    target_entropy_ratio: Any
    max_grad_norm: Any
    reward_scale: Any
    weight_decay: Any


def sac_discrete(
    *,
    learning_rate: Any = 3e-4,
    temperature_learning_rate: Any = 3e-4,
    discount: Any = 0.99,
    tau: Any = 0.005,
    target_entropy_ratio: Any = 0.3,
    max_grad_norm: Any = 10.0,
    reward_scale: Any = 1.0,
    weight_decay: Any = 0.0,
    rollout_length: int = 4,
    updates_per_tick: int | None = None,
    batch_size: int = 128,
    buffer_size: int = 100_000,
    warmup_steps: int = 2_000,
    n_step: int = 1,
    sequence_length: int = 8,
    burn_in: int = 4,
    normalize_observations: bool | None = None,
    policy_hidden: tuple[int, ...] = (128, 128),
    critic_hidden: tuple[int, ...] = (128, 128),
    policy_keys: tuple[str, ...] = (),
    critic_keys: tuple[str, ...] = (),
    activation: Activation = "relu",
    critic_layer_norm: bool = False,
    recurrent_size: int = 0,
    initial_temperature: float = 1.0,
    cnn: Cnn = "auto",
    optimizer: OptimizerName = "adam",
    precision: Precision = "f32",
    critic_loss: Callable[[jax.Array, jax.Array], jax.Array] = losses.squared_error,
) -> Algorithm:
    """SAC for discrete actions. A tick samples ``rollout_length`` steps in every environment, then makes
    ``updates_per_tick`` updates (by default one for 4 steps, at most 64) of ``batch_size`` transitions each, once
    ``warmup_steps`` steps over all environments are in the buffer. The other arguments are those of `sac`.
    """
    rates = learning_rate, temperature_learning_rate, discount, tau, target_entropy_ratio
    hyper = SacDiscreteHyper(*rates, max_grad_norm, reward_scale, weight_decay)
    options: dict[str, Any] = dict(activation=activation, recurrent_size=recurrent_size, cnn=cnn, precision=precision)
    options |= dict(policy_hidden=tuple(policy_hidden), critic_hidden=tuple(critic_hidden))
    options |= dict(policy_keys=tuple(policy_keys), critic_keys=tuple(critic_keys))
    options |= dict(critic_layer_norm=critic_layer_norm, optimizer=optimizer)
    sizes = off_policy_sizes(rollout_length, updates_per_tick, steps_per_update=4)

    def build(spec: EnvSpec, num_envs: int) -> Agent:
        space = require_actions("sac_discrete", spec, (Discrete,), "sac")
        check_optimizer(optimizer, weight_decay)
        updates = sizes(num_envs)["updates_per_tick"]
        data = Replay(buffer_size, batch_size, updates, warmup_steps, n_step, sequence_length, burn_in)
        size = space.num_actions
        policy, q = policy_and_critics(spec.obs, options, policy_size=size, q_size=size)
        networks = {"policy": policy, "temperature": temperature_network(initial_temperature)}
        return Agent(
            parts={
                "critic": critic_part(policy, q, data, critic_loss, optimizer),
                "actor": actor_part(space, networks, q, data, optimizer),
            },
            data=data,
            acts={"actor": "policy"},
            remembers={"critic": "q"} if recurrent_size else {},
            decide=sample_action(space, remember=False),
            rollout_length=rollout_length,
            normalize_observations=normalize_observations,
        )

    return Algorithm("sac_discrete", hyper, options, build, sizes)


def critic_part(
    policy: Network, q_networks: Network, data: Replay, critic_loss: Callable, optimizer: OptimizerName
) -> Part:
    """Both Q-networks: regression on the soft Bellman target (arXiv 1910.07207, equations 9 and 10)."""

    def gradients(
        own: Learned, peers: dict[str, Learned], batch: ReplayBatch, key: jax.Array, hyper: SacDiscreteHyper
    ) -> GradientResult:
        actor = peers["actor"].params
        logits = over_successors(data, policy, actor["policy"], batch, "actor")
        next_q = jnp.mean(over_successors(data, q_networks, own.target["q"], batch, "critic"), axis=0)
        dist = distributions.categorical(logits, action_mask(batch.next_obs))
        value = losses.soft_value(dist.logits, next_q, jnp.exp(actor["temperature"]))
        target = batch.reward + batch.bootstrap * value

        def loss_fn(params: PyTree) -> tuple[jax.Array, Metrics]:
            outputs = over_replay(data, q_networks, params, batch, "critic")
            q = jnp.stack([value_of(x, batch.action) for x in outputs])
            loss = regression(critic_loss, q, target, batch)
            return loss, {"critic_loss": loss, "q_mean": jnp.mean(q)}

        grads, metrics = gradients_of(loss_fn, own.params["q"])
        return GradientResult({"q": grads}, metrics)

    return Part({"q": q_networks}, gradients, {"q": make_optimizer(optimizer)}, reads=("actor",), targets=("q",))


def actor_part(
    space: Discrete, networks: dict[str, Network], q_networks: Network, data: Replay, optimizer: OptimizerName
) -> Part:
    """The policy, against the critic (arXiv 1910.07207, equation 12), and the temperature, against the target entropy
    (equation 11)."""

    def gradients(
        own: Learned, peers: dict[str, Learned], batch: ReplayBatch, key: jax.Array, hyper: SacDiscreteHyper
    ) -> GradientResult:
        log_temperature = own.params["temperature"]
        temperature = jnp.exp(log_temperature)
        q = jnp.mean(over_replay(data, q_networks, peers["critic"].params["q"], batch, "critic"), axis=0)

        def policy_loss(params: PyTree) -> tuple[jax.Array, Metrics]:
            logits = over_replay(data, networks["policy"], params, batch, "actor")
            dist = distributions.categorical(logits, action_mask(batch.obs))
            loss = -jnp.mean(losses.soft_value(dist.logits, q, temperature))
            return loss, {"policy_loss": loss, "entropy": jnp.mean(distributions.entropy(dist, key))}

        policy_grads, metrics = gradients_of(policy_loss, own.params["policy"])
        target_entropy = hyper.target_entropy_ratio * math.log(space.num_actions)
        temperature_grad = temperature_gradient(log_temperature, metrics["entropy"], target_entropy)
        grads = {"policy": policy_grads, "temperature": temperature_grad}
        return GradientResult(grads, {**metrics, "temperature": temperature})

    optimizers = {"policy": make_optimizer(optimizer), "temperature": temperature_optimizer()}
    return Part(networks, gradients, optimizers, reads=("critic",))
