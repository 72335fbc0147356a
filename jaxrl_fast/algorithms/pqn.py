"""Parallelised Q-network, for discrete actions (PQN, arXiv 2407.04811).

It is Q-learning from the newest steps of many environments, with λ-returns and layer norm instead
of a replay buffer and a target network.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import Actions, Discrete, EnvSpec, Metrics, MultiDiscrete, PyTree, Transition
from jaxrl_fast.learning.acting import (
    FALLING_EPSILON,
    by_q_values,
    greedy_value,
    num_joint,
    number_of,
    value_of,
)
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
    MemoryKind,
    Network,
    Precision,
    Torso,
    make_network,
)
from jaxrl_fast.numerics import losses
from jaxrl_fast.numerics.optimizers import (
    FROM_0,
    OptimizerName,
    Rate0,
    Rate01,
    check_optimizer,
    checks_numbers,
    make_optimizer,
)


class PqnHyper(NamedTuple):
    """Hyper-parameters, each a number or a schedule such as ``Linear(1.0, 0.05, 0.2)``.

    Attributes:
        learning_rate: Learning rate of all networks.
        discount: Discount factor γ per step.
        q_lambda: λ of the returns.
        epsilon: Share of random actions.
        max_grad_norm: Norm to which gradients are clipped.
        reward_scale: Factor of the rewards.
        weight_decay: Weight decay of AdamW; 0 for other optimizers.
    """

    learning_rate: Any
    discount: Any
    q_lambda: Any
    epsilon: Any
    max_grad_norm: Any
    reward_scale: Any
    weight_decay: Any


@checks_numbers()
def pqn(
    *,
    learning_rate: Rate0 = 5e-4,
    discount: Rate01 = 0.99,
    q_lambda: Rate01 = 0.65,
    epsilon: Rate01 = FALLING_EPSILON,
    epsilon_spread: Annotated[float, FROM_0] = 0.0,
    max_grad_norm: Rate0 = 10.0,
    reward_scale: Rate0 = 1.0,
    weight_decay: Rate0 = 0.0,
    rollout_length: int = 32,
    num_epochs: int = 2,
    num_minibatches: int | None = None,
    normalize_observations: bool | None = None,
    normalize_rewards: bool = False,
    q_hidden: tuple[int, ...] = (128, 128),
    q_keys: tuple[str, ...] = (),
    activation: Activation = "relu",
    layer_norm: bool = True,
    memory: MemoryKind = "gru",
    recurrent_size: int = 0,
    network: Torso = "mlp",
    cnn: Cnn = "auto",
    optimizer: OptimizerName = "radam",
    precision: Precision = "f32",
    q_loss: Callable[[jax.Array, jax.Array], jax.Array] = losses.squared_error,
) -> Algorithm:
    """Build PQN.

    A tick samples ``rollout_length`` steps in every environment and makes
    ``num_epochs * num_minibatches`` updates with them.

    Args:
        learning_rate: Learning rate of all networks.
        discount: Discount factor γ per step.
        q_lambda: λ of the returns.
        epsilon: Share of random actions.
        epsilon_spread: The last environment's share is ``epsilon ** (1 + epsilon_spread)``; 0 for
            equal shares.
        max_grad_norm: Norm to which gradients are clipped.
        reward_scale: Factor of the rewards.
        weight_decay: Weight decay of AdamW; 0 for other optimizers.
        rollout_length: Steps of each environment in a tick.
        num_epochs: Passes over a rollout.
        num_minibatches: Minibatches in an epoch; None for minibatches of at least 128 steps.
        normalize_observations: Whether to normalize observations; None for all but images and
            grids.
        normalize_rewards: Whether to divide rewards by the deviation of returns.
        q_hidden: Sizes of the Q-network's hidden layers.
        q_keys: Entries of a dictionary observation that the network reads; empty for all.
        activation: Activation of the hidden layers.
        layer_norm: Whether to normalize the hidden layers.
        memory: Kind of the memory: "gru", "lstm", "mingru", "lru", "gtrxl-64x2" (window, layers),
            or your own function (`make_memory`).
        recurrent_size: Size of the memory before the hidden layers; 0 for none.
            With it, minibatches are whole sequences.
        network: Torso of the networks: "mlp", "residual", "simba", or your own function
            (`own_torso`).
        cnn: Convolutions for images (`make_network`).
        optimizer: ``adam``, ``adamw``, ``radam`` or ``rmsprop``; with constants
            ``adam:epsilon:beta1:beta2`` or ``rmsprop:epsilon:decay``.
        precision: "f32", or "bf16" for dense layers and convolutions.
        q_loss: ``(q, target) -> loss``, on scalars.

    Returns:
        The algorithm.
    """
    given = locals()
    hyper = PqnHyper(
        learning_rate, discount, q_lambda, epsilon, max_grad_norm, reward_scale, weight_decay
    )
    shared: dict[str, Any] = {name: given[name] for name in SHARED}
    options = shared | dict(q_hidden=tuple(q_hidden), q_keys=tuple(q_keys), optimizer=optimizer)
    sizes = on_policy_sizes(
        rollout_length, num_minibatches, steps=128, least=4, whole_rollouts=recurrent_size > 0
    )

    def build(spec: EnvSpec, num_envs: int) -> Agent:
        space = require_actions("pqn", spec, (Discrete, MultiDiscrete), "ppo")
        check_optimizer(optimizer, weight_decay)
        sized = sizes(num_envs)
        decide, init_decide = by_q_values(space, lambda outputs: outputs["critic"], epsilon_spread)
        q = make_network(spec.obs, num_joint(space), hidden=q_hidden, keys=q_keys, **shared)
        how: dict[str, Any] = dict(
            critic="critic", network="q", value=partial(best_value, space), targets=targets
        )
        return Agent(
            parts={"critic": critic_part(q, q_loss, optimizer, partial(chosen_value, space))},
            data=OnPolicy(num_epochs, sized["num_minibatches"], **how),
            acts={"critic": "q"},
            decide=decide,
            rollout_length=sized["rollout_length"],
            init_decide=init_decide,
            normalize_observations=normalize_observations,
            normalize_rewards=normalize_rewards,
        )

    return Algorithm("pqn", hyper, options, build, sizes)


def best_value(space: Actions, outputs: PyTree, obs: PyTree, action: jax.Array | None) -> jax.Array:
    """Return the value of the best allowed action (`ValueOf`).

    Args:
        space: Action space.
        outputs: Q-values ``[..., num_joint(space)]``.
        obs: Observations, which may have a mask.
        action: Unused.

    Returns:
        Values ``[...]``.
    """
    return greedy_value(space, outputs, obs)


def targets(values: Values, rollout: Transition, hyper: PqnHyper) -> dict[str, jax.Array]:
    """Compute λ-returns that continue with the best action's value.

    Args:
        values: Values of the critic, ``[T, E]``.
        rollout: Normalized rollout.
        hyper: Hyper-parameters of this tick.

    Returns:
        ``q_target`` ``[T, E]``.

    Source: Gallici et al. (2024), arXiv 2407.04811.
    """
    target = jax.vmap(losses.lambda_return, in_axes=(1, 1, 1, 1, None), out_axes=1)(
        rollout.reward,
        hyper.discount * (1.0 - rollout.terminated),
        values.next,
        rollout.terminated | rollout.truncated,
        hyper.q_lambda,
    )
    return {"q_target": target}


def chosen_value(
    space: Actions, outputs: PyTree, obs: PyTree, action: jax.Array | None
) -> jax.Array:
    """Return the value of the action that was taken (`ValueOf`).

    Args:
        space: Action space.
        outputs: Q-values ``[..., num_joint(space)]``.
        obs: Unused.
        action: Actions ``[...]``.

    Returns:
        Values ``[...]``.
    """
    assert action is not None
    return value_of(outputs, number_of(space, action))


def critic_part(
    q_network: Network,
    q_loss: Callable,
    optimizer: OptimizerName,
    value_taken: ValueOf,
    mixer: Network | None = None,
) -> Part:
    """Build the Q-network's part: regression on the λ-returns.

    Args:
        q_network: Q-network.
        q_loss: Loss of a value and its target.
        optimizer: `OptimizerName`.
        value_taken: Computes the taken action's value from the network's outputs.
        mixer: Second network, if ``value_taken`` reads the pair of both networks' outputs.

    Returns:
        The part.
    """
    networks = {"q": q_network} if mixer is None else {"q": q_network, "mixer": mixer}

    def gradients(
        own: Learned, peers: dict, batch: OnPolicyBatch, key: jax.Array, hyper: PqnHyper
    ) -> GradientResult:
        def loss_fn(params: PyTree) -> tuple[jax.Array, Metrics]:
            outputs, _ = over_rollout(q_network, params["q"], batch, "critic")
            if mixer is not None:
                outputs = outputs, over_rollout(mixer, params["mixer"], batch, "critic")[0]
            q = value_taken(outputs, batch.obs, batch.action)
            loss = jnp.mean(elementwise(q_loss, q, batch.targets["q_target"]))
            return loss, {
                "q_loss": loss,
                "q_mean": jnp.mean(q),
                "epsilon": jnp.asarray(hyper.epsilon),
            }

        grads, metrics = gradients_of(loss_fn, own.params)
        return GradientResult(grads, metrics)

    return Part(networks, gradients, {name: make_optimizer(optimizer) for name in networks})
