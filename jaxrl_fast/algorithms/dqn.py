"""Deep Q-learning, for discrete actions (DQN, arXiv 1312.5602).

Options: double Q-learning (arXiv 1509.06461, equation 4), dueling heads (arXiv 1511.06581), n-step returns, prioritized
replay (arXiv 1511.05952), distributions of returns (C51, arXiv 1707.06887; quantiles, arXiv 1710.10044). All of them
together are Rainbow without noisy nets (arXiv 1710.02298).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import Discrete, EnvSpec, Metrics, PyTree
from jaxrl_fast.learning.acting import by_q_values, greedy_action
from jaxrl_fast.learning.algorithm import (
    Agent,
    Algorithm,
    GradientResult,
    Learned,
    Part,
    Prioritize,
    Replay,
    ReplayBatch,
    gradients_of,
    mean_loss,
    off_policy_sizes,
    over_replay,
    over_successors,
    require_actions,
    require_positive,
    sequence_priority,
)
from jaxrl_fast.learning.critics import ValueHead, ValueKind, by_action, make_value_head, of_action, q_outputs
from jaxrl_fast.networks.network import Activation, Cnn, Network, Precision, make_network
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
    updates_per_tick: int | None = None,
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
    value_head: ValueKind = "scalar",
    num_atoms: int = 51,
    value_min: float = -10.0,
    value_max: float = 10.0,
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
    """DQN. A tick samples ``rollout_length`` steps in every environment, then makes ``updates_per_tick`` updates (by
    default one for 4 steps, at most 64) of ``batch_size`` transitions, once ``warmup_steps`` steps are in the buffer.

    ``priority_exponent`` > 0 prioritizes replay; ``importance_exponent`` says how much of that the weights undo.
    ``value_head="categorical"`` learns a distribution over ``num_atoms`` returns from ``value_min`` to ``value_max``,
    ``"quantiles"`` as many quantiles of it; ``q_loss(q, target)``, on scalars, is for ``"scalar"``.
    ``recurrent_size`` > 0 puts a GRU in front (DRQN); a batch is then ``batch_size`` sequences of ``sequence_length``
    steps, behind ``burn_in`` steps that only fill the memory. ``q_keys``: the entries of an observation to read (all).
    """
    rates = learning_rate, discount, epsilon, tau, max_grad_norm, reward_scale, weight_decay, importance_exponent
    hyper = DqnHyper(*rates)
    shared: dict[str, Any] = dict(
        activation=activation, layer_norm=layer_norm, recurrent_size=recurrent_size, cnn=cnn, precision=precision
    )
    options = shared | dict(q_hidden=tuple(q_hidden), q_keys=tuple(q_keys), dueling=dueling, optimizer=optimizer)
    options |= dict(value_head=value_head, num_atoms=num_atoms, value_min=value_min, value_max=value_max)
    sizes = off_policy_sizes(rollout_length, updates_per_tick, steps_per_update=4)

    def build(spec: EnvSpec, num_envs: int) -> Agent:
        size = require_actions("dqn", spec, (Discrete,), "sac").num_actions
        require_positive(target_period=target_period)
        check_optimizer(optimizer, weight_decay)
        updates = sizes(num_envs)["updates_per_tick"]
        data = Replay(buffer_size, batch_size, updates, warmup_steps, n_step, sequence_length, burn_in)
        priorities = Prioritize("critic", priority_exponent, lambda hyper: hyper.importance_exponent)
        data = data._replace(prioritize=priorities if priority_exponent else None)
        head = make_value_head(value_head, num_atoms, (value_min, value_max), q_loss)
        q = make_network(spec.obs, q_outputs(size, head.width, dueling), hidden=q_hidden, keys=q_keys, **shared)
        parts = {"critic": critic_part(q, head, data, double, target_period, optimizer)}
        act = by_q_values(lambda outputs: head.expected(by_action(outputs["critic"], head.width)))
        return Agent(parts, data, {"critic": "q"}, act, rollout_length, normalize_observations=normalize_observations)

    return Algorithm("dqn", hyper, options, build, sizes)


def critic_part(
    q: Network, head: ValueHead, data: Replay, double: bool, target_period: int, optimizer: OptimizerName
) -> Part:
    """The Q-network: regression on the Bellman target, then a step of the target network."""

    def gradients(own: Learned, peers: dict, batch: ReplayBatch, key: jax.Array, hyper: DqnHyper) -> GradientResult:
        chooser = own.params if double else own.target
        chosen_by = by_action(over_successors(data, q, chooser["q"], batch, "critic"), head.width)
        best = greedy_action(head.expected(chosen_by), batch.next_obs)
        following = by_action(over_successors(data, q, own.target["q"], batch, "critic"), head.width)
        given = batch.reward, batch.bootstrap, of_action(following, best)

        def loss_fn(params: PyTree) -> tuple[jax.Array, tuple[Metrics, jax.Array]]:
            outputs = of_action(by_action(over_replay(data, q, params, batch, "critic"), head.width), batch.action)
            found, surprise = jax.vmap(jax.vmap(head.loss))(outputs, *given)
            loss, q_mean = mean_loss(found, batch), jnp.mean(head.expected(outputs))
            metrics = {"q_loss": loss, "q_mean": q_mean, "epsilon": jnp.asarray(hyper.epsilon)}
            return loss, (metrics, sequence_priority(surprise))

        grads, (metrics, priorities) = gradients_of(loss_fn, own.params["q"])
        return GradientResult({"q": grads}, metrics, priorities=priorities)

    def target_rate(hyper: DqnHyper, updates: jax.Array) -> jax.Array:
        return jnp.where((updates + 1) % target_period == 0, hyper.tau, 0.0)

    return Part({"q": q}, gradients, {"q": make_optimizer(optimizer)}, targets=("q",), target_rate=target_rate)
