"""Soft actor-critic, for continuous actions (arXiv 1812.05905).

Two parts: the critic (two Q-networks and their slow targets) and the actor (the policy and the temperature).
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast import distributions, losses
from jaxrl_fast.algorithm import (
    Agent,
    Algorithm,
    Decide,
    Found,
    Learned,
    Part,
    Replay,
    ReplayBatch,
    elementwise,
    gradients_of,
    require_actions,
)
from jaxrl_fast.core import Box, EnvSpec, Metrics, PyTree
from jaxrl_fast.experience.sequences import over_replay, over_successors
from jaxrl_fast.networks.dense import Precision
from jaxrl_fast.networks.images import Cnn
from jaxrl_fast.networks.modules import Activation
from jaxrl_fast.networks.network import Network, ensemble, make_network, scalar
from jaxrl_fast.optimizers import MakeOptimizer, OptimizerName, check_optimizer, make_optimizer


class SacHyper(NamedTuple):
    """Rates; each a number, or a schedule such as ``Linear(3e-4, 0.0)``. ``tau``: how far the slow targets move at an
    update; ``target_entropy_per_action`` in nats; ``max_grad_norm`` is that of each network; ``weight_decay`` is
    AdamW's."""

    learning_rate: Any
    temperature_learning_rate: Any
    discount: Any
    tau: Any
    target_entropy_per_action: Any
    max_grad_norm: Any
    reward_scale: Any
    weight_decay: Any = 0.0


class Networks(NamedTuple):
    """``q``: two of them, of observation and action. The temperature is learned as its logarithm."""

    policy: Network
    q: Network
    log_temperature: Network


def sac(
    *,
    learning_rate: Any = 3e-4,
    temperature_learning_rate: Any = 3e-4,
    discount: Any = 0.99,
    tau: Any = 0.005,
    target_entropy_per_action: Any = -0.5,
    max_grad_norm: Any = 1e6,
    reward_scale: Any = 1.0,
    weight_decay: Any = 0.0,
    rollout_length: int = 1,
    updates_per_tick: int = 64,
    batch_size: int = 256,
    buffer_size: int = 1_000_000,
    warmup_steps: int = 5_000,
    n_step: int = 1,
    sequence_length: int = 8,
    burn_in: int = 4,
    normalize_observations: bool | None = None,
    policy_hidden: tuple[int, ...] = (256, 256),
    critic_hidden: tuple[int, ...] = (256, 256),
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
    """SAC. A tick samples ``rollout_length`` steps in every environment, then makes ``updates_per_tick`` updates
    of ``batch_size`` transitions each, once ``warmup_steps`` steps over all environments are in the buffer.

    ``recurrent_size`` > 0 puts a GRU in front of all networks; a batch is then ``batch_size`` sequences of
    ``sequence_length`` steps, behind ``burn_in`` steps that only fill the memory.
    ``normalize_observations`` defaults to true, except for images; those go through the convolutions named ``cnn``
    (`make_network`) and are stored once each. ``policy_keys`` and ``critic_keys``: which entries of a dictionary
    observation each reads, all by default. ``critic_loss(q, target)`` takes and gives scalars.
    """
    hyper = SacHyper(
        learning_rate, temperature_learning_rate, discount, tau, target_entropy_per_action, max_grad_norm, reward_scale,
        weight_decay,
    )  # fmt: skip
    networks: dict[str, Any] = dict(
        policy_hidden=tuple(policy_hidden), critic_hidden=tuple(critic_hidden), policy_keys=tuple(policy_keys),
        critic_keys=tuple(critic_keys), activation=activation, critic_layer_norm=critic_layer_norm,
        recurrent_size=recurrent_size, cnn=cnn, precision=precision,
    )  # fmt: skip
    data = Replay(
        capacity=buffer_size, batch_size=batch_size, num_batches=updates_per_tick, warmup_steps=warmup_steps,
        n_step=n_step, sequence_length=sequence_length if recurrent_size else 1,
        burn_in=burn_in if recurrent_size else 0,
    )  # fmt: skip

    def build(spec: EnvSpec, num_envs: int) -> Agent:
        require_actions("sac", spec, (Box,), "ppo")
        check_optimizer(optimizer, weight_decay)
        if not 0.0 < initial_temperature < math.inf:
            raise ValueError(f"initial_temperature={initial_temperature}: write a positive number, such as 1.0")
        made = make_networks(spec, initial_temperature, **networks)
        return Agent(
            parts={
                "critic": critic_part(spec, made, data, critic_loss, optimizer),
                "actor": actor_part(spec, made, data, optimizer),
            },
            data=data,
            acts={"actor": "policy"},
            remembers={"critic": "q"} if recurrent_size else {},
            decide=make_decide(spec),
            rollout_length=rollout_length,
            normalize_observations=normalize_observations,
        )

    return Algorithm("sac", hyper, {**networks, "optimizer": optimizer}, build)


def critic_part(spec: EnvSpec, nets: Networks, data: Replay, critic_loss: Callable, optimizer: OptimizerName) -> Part:
    """Both Q-networks: regression on the soft Bellman target, then a step of the slow targets."""

    def gradients(
        own: Learned, peers: dict[str, Learned], batch: ReplayBatch, key: jax.Array, hyper: SacHyper
    ) -> Found:
        actor = peers["actor"].params
        outputs = over_successors(data, nets.policy, actor["policy"], batch, "actor")
        dist = distributions.tanh_normal(outputs)
        raw = distributions.sample(dist, key)
        next_q = over_successors(data, nets.q, own.target["q"], batch, "critic", jnp.tanh(raw))[..., 0]
        soft_target = jax.vmap(jax.vmap(losses.soft_target, (0, 0, 1, 0, None)), (0, 0, 1, 0, None))
        target = soft_target(
            batch.reward, batch.bootstrap, next_q, distributions.log_prob(dist, raw), jnp.exp(actor["temperature"])
        )

        def loss_fn(params: PyTree) -> tuple[jax.Array, Metrics]:
            action = distributions.to_unit(_box(spec), batch.action)
            q = over_replay(data, nets.q, params, batch, "critic", action)[..., 0]
            loss = sum((jnp.mean(elementwise(critic_loss, values, target)) for values in q), start=jnp.zeros(()))
            return loss, {"critic_loss": loss, "q_mean": jnp.mean(q)}

        grads, metrics = gradients_of(loss_fn, own.params["q"])
        return Found({"q": grads}, metrics)

    optimizers = {"q": partial(_optimizer, optimizer)}
    return Part({"q": nets.q}, gradients, optimizers, reads=("actor",), targets=("q",))


def actor_part(spec: EnvSpec, nets: Networks, data: Replay, optimizer: OptimizerName) -> Part:
    """The policy, against the critic it is given, and the temperature, against the target entropy."""
    action_size = _box(spec).low.size

    def gradients(
        own: Learned, peers: dict[str, Learned], batch: ReplayBatch, key: jax.Array, hyper: SacHyper
    ) -> Found:
        log_temperature, critic = own.params["temperature"], peers["critic"].params["q"]
        temperature = jnp.exp(log_temperature)

        def policy_loss(params: PyTree) -> tuple[jax.Array, Metrics]:
            dist = distributions.tanh_normal(over_replay(data, nets.policy, params, batch, "actor"))
            raw = distributions.sample(dist, key)
            log_prob = distributions.log_prob(dist, raw)
            q = over_replay(data, nets.q, critic, batch, "critic", jnp.tanh(raw))[..., 0]
            soft_policy = jax.vmap(jax.vmap(losses.soft_policy, (1, 0, None)), (1, 0, None))
            loss = jnp.mean(soft_policy(q, log_prob, temperature))
            return loss, {"policy_loss": loss, "entropy": -jnp.mean(log_prob)}

        def temperature_loss(log_temperature: jax.Array) -> tuple[jax.Array, Metrics]:
            target_entropy = hyper.target_entropy_per_action * action_size
            return losses.temperature(log_temperature, -metrics["entropy"], target_entropy), {}

        policy_grads, metrics = gradients_of(policy_loss, own.params["policy"])
        temperature_grad, _ = gradients_of(temperature_loss, log_temperature)
        grads = {"policy": policy_grads, "temperature": temperature_grad}
        return Found(grads, {**metrics, "temperature": temperature})

    def temperature_optimizer(hyper: SacHyper) -> Any:
        return make_optimizer("adam", learning_rate=hyper.temperature_learning_rate, max_grad_norm=hyper.max_grad_norm)

    optimizers: dict[str, MakeOptimizer] = {
        "policy": partial(_optimizer, optimizer),
        "temperature": temperature_optimizer,
    }
    networks = {"policy": nets.policy, "temperature": nets.log_temperature}
    return Part(networks, gradients, optimizers, reads=("critic",))


def make_decide(spec: EnvSpec) -> Decide:
    """Sample from the policy; greedily, take its mode."""

    def decide(outputs: dict, obs: PyTree, state: PyTree, key: jax.Array, hyper: Any, explore: bool) -> tuple:
        dist = distributions.tanh_normal(outputs["actor"])
        raw = distributions.sample(dist, key) if explore else distributions.mode(dist)
        return distributions.to_action(spec.action, raw), state, {}

    return decide


def make_networks(
    spec: EnvSpec, initial_temperature: float, *, policy_hidden: tuple[int, ...], critic_hidden: tuple[int, ...],
    policy_keys: tuple[str, ...], critic_keys: tuple[str, ...], critic_layer_norm: bool, **options: Any,
) -> Networks:  # fmt: skip
    """Policy, critics and temperature."""
    policy = make_network(
        spec.obs, distributions.num_outputs(spec.action), hidden=policy_hidden, keys=policy_keys, out_scale=0.01,
        **options,
    )  # fmt: skip
    q = make_network(
        spec.obs, 1, hidden=critic_hidden, keys=critic_keys, action_shape=(_box(spec).low.size,),
        layer_norm=critic_layer_norm, **options,
    )  # fmt: skip
    return Networks(policy, ensemble(q, 2), scalar(lambda: jnp.log(jnp.float32(initial_temperature))))


def _box(spec: EnvSpec) -> Box:
    """The actions, which `require_actions` has found to be continuous."""
    assert isinstance(spec.action, Box)
    return spec.action


def _optimizer(name: OptimizerName, hyper: SacHyper) -> Any:
    return make_optimizer(
        name, learning_rate=hyper.learning_rate, max_grad_norm=hyper.max_grad_norm, weight_decay=hyper.weight_decay
    )
