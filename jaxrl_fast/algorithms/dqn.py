"""Deep Q-learning, for discrete actions (DQN, arXiv 1312.5602).

Options: double Q-learning (arXiv 1509.06461, equation 4), dueling heads (arXiv 1511.06581, equation 9), n-step returns,
prioritized replay (arXiv 1511.05952).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.algorithms.choosing import by_q_values, greedy_action, q_values, value_of
from jaxrl_fast.algorithms.interface import (
    Agent,
    Algorithm,
    Found,
    Learned,
    Part,
    Prioritize,
    Replay,
    ReplayBatch,
    elementwise,
    gradients_of,
    require_actions,
    require_positive,
)
from jaxrl_fast.algorithms.sequences import mean_loss, over_replay, over_successors, sequence_priority
from jaxrl_fast.core import Discrete, EnvSpec, Metrics, PyTree
from jaxrl_fast.networks.network import Activation, Cnn, Head, Network, Precision, make_network
from jaxrl_fast.numerics import losses
from jaxrl_fast.numerics.optimizers import OptimizerName, check_optimizer, make_optimizer


class DqnHyper(NamedTuple):
    """Rates, each a number or a schedule such as ``Linear(1.0, 0.05)``: ``learning_rate``; ``discount`` γ per step;
    ``epsilon``, the share of random actions; ``tau``, how far the target network moves (0 to 1) every
    ``target_period`` updates; ``max_grad_norm``, to which gradients are clipped; ``reward_scale``, a factor of rewards;
    ``weight_decay``, of AdamW; ``importance_exponent``, how far weights undo what priorities do (0 to 1)."""

    learning_rate: Any
    discount: Any
    epsilon: Any
    tau: Any
    max_grad_norm: Any
    reward_scale: Any
    weight_decay: Any
    importance_exponent: Any


def dqn(
    *,
    learning_rate: Any = 3e-4,
    discount: Any = 0.99,
    epsilon: Any = 0.1,
    tau: Any = 0.005,
    max_grad_norm: Any = 10.0,
    reward_scale: Any = 1.0,
    weight_decay: Any = 0.0,
    rollout_length: int = 4,
    updates_per_tick: int = 16,
    batch_size: int = 128,
    buffer_size: int = 100_000,
    warmup_steps: int = 2_000,
    n_step: int = 1,
    sequence_length: int = 8,
    burn_in: int = 4,
    priority_exponent: float = 0.0,
    importance_exponent: Any = 0.4,
    target_period: int = 1,
    double: bool = True,
    dueling: bool = False,
    normalize_observations: bool | None = None,
    q_hidden: tuple[int, ...] = (128, 128),
    q_keys: tuple[str, ...] = (),
    activation: Activation = "relu",
    layer_norm: bool = False,
    recurrent_size: int = 0,
    cnn: Cnn = "auto",
    optimizer: OptimizerName = "adam",
    precision: Precision = "f32",
    q_loss: Callable[[jax.Array, jax.Array], jax.Array] = losses.huber,
) -> Algorithm:
    """DQN. A tick samples ``rollout_length`` steps in every environment, then makes ``updates_per_tick`` updates of
    ``batch_size`` transitions each, once ``warmup_steps`` steps over all environments are in the buffer.

    ``priority_exponent`` > 0 prioritizes replay; ``importance_exponent`` says how much of that the weights undo.
    ``recurrent_size`` > 0 puts a GRU in front (DRQN); a batch is then ``batch_size`` sequences of ``sequence_length``
    steps, behind ``burn_in`` steps that only fill the memory. ``q_keys``: which entries of a dictionary observation are
    read, all by default. ``q_loss(q, target)`` takes and gives scalars.
    """
    rates = learning_rate, discount, epsilon, tau, max_grad_norm, reward_scale, weight_decay, importance_exponent
    hyper = DqnHyper(*rates)
    shared: dict[str, Any] = dict(
        activation=activation, layer_norm=layer_norm, recurrent_size=recurrent_size, cnn=cnn, precision=precision
    )
    options = shared | dict(q_hidden=tuple(q_hidden), q_keys=tuple(q_keys), dueling=dueling, optimizer=optimizer)
    data = Replay(
        capacity=buffer_size,
        batch_size=batch_size,
        num_batches=updates_per_tick,
        warmup_steps=warmup_steps,
        n_step=n_step,
        sequence_length=sequence_length,
        burn_in=burn_in,
        prioritize=Prioritize("critic", priority_exponent, lambda hyper: hyper.importance_exponent)
        if priority_exponent
        else None,
    )

    def build(spec: EnvSpec, num_envs: int) -> Agent:
        size = require_actions("dqn", spec, (Discrete,), "sac").num_actions
        require_positive(target_period=target_period)
        check_optimizer(optimizer, weight_decay)
        heads = {"value": Head(1), "advantage": Head(size)}
        q = make_network(spec.obs, heads if dueling else size, hidden=q_hidden, keys=q_keys, **shared)
        parts = {"critic": critic_part(q, data, double, target_period, optimizer, q_loss)}
        decide = by_q_values(lambda outputs: q_values(outputs["critic"]))
        agent = Agent(parts, data, acts={"critic": "q"}, decide=decide, rollout_length=rollout_length)
        return agent._replace(normalize_observations=normalize_observations)

    return Algorithm("dqn", hyper, options, build)


def critic_part(
    q_network: Network, data: Replay, double: bool, target_period: int, optimizer: OptimizerName, q_loss: Callable
) -> Part:
    """The Q-network: regression on the Bellman target, then a step of the target network."""

    def gradients(own: Learned, peers: dict, batch: ReplayBatch, key: jax.Array, hyper: DqnHyper) -> Found:
        next_q = q_values(over_successors(data, q_network, own.target["q"], batch, "critic"))
        online = q_values(over_successors(data, q_network, own.params["q"], batch, "critic")) if double else next_q
        best = greedy_action(online, batch.next_obs)
        target = batch.reward + batch.bootstrap * value_of(next_q, best)

        def loss_fn(params: PyTree) -> tuple[jax.Array, tuple[Metrics, jax.Array]]:
            q = value_of(q_values(over_replay(data, q_network, params, batch, "critic")), batch.action)
            loss = mean_loss(elementwise(q_loss, q, target), batch)
            metrics = {"q_loss": loss, "q_mean": jnp.mean(q), "epsilon": jnp.asarray(hyper.epsilon)}
            return loss, (metrics, sequence_priority(q - target))

        grads, (metrics, priorities) = gradients_of(loss_fn, own.params["q"])
        return Found({"q": grads}, metrics, priorities=priorities)

    def target_rate(hyper: DqnHyper, updates: jax.Array) -> jax.Array:
        return jnp.where((updates + 1) % target_period == 0, hyper.tau, 0.0)

    return Part({"q": q_network}, gradients, {"q": make_optimizer(optimizer)}, targets=("q",), target_rate=target_rate)
