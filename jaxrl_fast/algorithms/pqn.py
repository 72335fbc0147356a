"""Parallelised Q-network, for discrete actions (PQN, arXiv 2407.04811).

It is Q-learning from the newest steps of many environments, with λ-returns and layer norm instead
of a replay buffer and a target network.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp

from jaxrl_fast.algorithms.shared_fields import (
    EpochFields,
    MemoryFields,
    NormedFields,
    ObservationFields,
    OptimizerFields,
    QFields,
    Rates,
    layers_of,
    sizes_of_rollout,
)
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
    Network,
    make_network,
)
from jaxrl_fast.numerics import losses
from jaxrl_fast.numerics.optimizers import (
    FROM_0,
    OptimizerName,
    Rate0,
    Rate01,
    check_optimizer,
    make_optimizer,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class PqnHyper(Rates):
    """Rates of PQN; ``weight_decay`` is in `OptimizerFields`."""

    learning_rate: Rate0 = 5e-4
    q_lambda: Rate01 = 0.65
    """λ of the returns."""
    epsilon: Rate01 = FALLING_EPSILON
    """Share of random actions."""
    max_grad_norm: Rate0 = 10.0
    """Norm to which gradients are clipped."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PqnFields(
    OptimizerFields,
    NormedFields,
    MemoryFields,
    QFields,
    ObservationFields,
    EpochFields,
    PqnHyper,
):
    """Fields of PQN for one agent or several."""

    epsilon_spread: Annotated[float, FROM_0] = 0.0
    """The last environment's share is ``epsilon ** (1 + epsilon_spread)``; 0 for equal shares."""
    rollout_length: int = 32
    """Steps of each environment in a tick."""
    num_epochs: int = 2
    num_minibatches: int | None = None
    """Minibatches in an epoch; None for minibatches of at least 128 steps."""
    normalize_rewards: bool = False
    """Whether to divide rewards by the deviation of returns."""
    layer_norm: bool = True
    optimizer: OptimizerName = "radam"
    q_loss: Callable[[jax.Array, jax.Array], jax.Array] = losses.squared_error
    """``(q, target) -> loss``, on scalars."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Pqn(PqnFields):
    """PQN.

    A tick samples ``rollout_length`` steps in every environment and makes ``num_epochs *
    num_minibatches`` updates with them.
    """

    name: ClassVar[str] = "pqn"

    def sizes(self, num_envs: int, total_steps: int | None = None) -> dict[str, int]:
        """Compute the rollout's length and the minibatches, unless they were given."""
        whole = self.recurrent_size > 0
        return sizes_of_rollout(
            self, num_envs, total_steps, steps=128, least=4, whole_rollouts=whole
        )

    def build(self, spec: EnvSpec, num_envs: int) -> Agent:
        """Build the agent for one environment."""
        space = require_actions("pqn", spec, (Discrete, MultiDiscrete), "ppo")
        check_optimizer(self.optimizer, self.weight_decay)
        sizes = self.sizes(num_envs)
        decide, init_decide = by_q_values(
            space, lambda outputs: outputs["critic"], self.epsilon_spread
        )
        q = make_network(
            spec.obs,
            num_joint(space),
            hidden=self.q_hidden,
            keys=self.q_keys,
            **layers_of(self),
        )
        chosen = partial(chosen_value, space)
        return Agent(
            parts={"critic": critic_part(q, self.q_loss, self.optimizer, chosen)},
            data=OnPolicy(
                num_epochs=self.num_epochs,
                num_minibatches=sizes["num_minibatches"],
                critic="critic",
                network="q",
                value=partial(best_value, space),
                targets=targets,
            ),
            acts={"critic": "q"},
            decide=decide,
            rollout_length=sizes["rollout_length"],
            init_decide=init_decide,
            normalize_observations=self.normalize_observations,
            normalize_rewards=self.normalize_rewards,
        )


pqn = Pqn


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
        learned: Learned, peers: dict, batch: OnPolicyBatch, key: jax.Array, hyper: PqnHyper
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

        grads, metrics = gradients_of(loss_fn, learned.params)
        return GradientResult(grads, metrics)

    return Part(networks, gradients, {name: make_optimizer(optimizer) for name in networks})
