"""PQN with value decomposition, for several agents and discrete actions.

The value of the team is the sum of the agents' values of their actions (VDN, arXiv 1706.05296), trained as in PQN
(arXiv 2407.04811).
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from jaxrl_fast.algorithms import pqn as of_one
from jaxrl_fast.algorithms.multi_agent import keys_of_one, network_of_all, out_of, spec_of_one, with_own_optimizers
from jaxrl_fast.core import Actions, Discrete, EnvSpec, MultiDiscrete, PyTree, Transition
from jaxrl_fast.learning.acting import FALLING_EPSILON, greedy_value, number_of, value_of
from jaxrl_fast.learning.algorithm import Agent, Algorithm, OnPolicy, Values, require_actions
from jaxrl_fast.networks.network import Activation, Cnn, Precision
from jaxrl_fast.numerics import losses
from jaxrl_fast.numerics.optimizers import OptimizerName, Rate0, Rate01, checks_numbers


@checks_numbers()
def pqn_vdn(
    *,
    learning_rate: Rate0 = 5e-4,
    discount: Rate01 = 0.99,
    q_lambda: Rate01 = 0.65,
    epsilon: Rate01 = FALLING_EPSILON,
    max_grad_norm: Rate0 = 10.0,
    reward_scale: Rate0 = 1.0,
    weight_decay: Rate0 = 0.0,
    rollout_length: int = 32,
    num_epochs: int = 2,
    num_minibatches: int | None = None,
    normalize_observations: bool = False,
    normalize_rewards: bool = False,
    share_parameters: bool = True,
    q_hidden: tuple[int, ...] = (128, 128),
    q_keys: tuple[str, ...] = (),
    activation: Activation = "relu",
    layer_norm: bool = True,
    recurrent_size: int = 0,
    cnn: Cnn = "auto",
    optimizer: OptimizerName = "radam",
    precision: Precision = "f32",
    q_loss: Callable[[jax.Array, jax.Array], jax.Array] = losses.squared_error,
) -> Algorithm:
    """Build PQN-VDN.

    If agents have separate rewards, the target is their sum. Agents that are out add nothing to the sums of rewards and
    values.

    Args:
        learning_rate: Learning rate of all networks.
        discount: Discount factor γ per step.
        q_lambda: λ of the returns.
        epsilon: Share of random actions.
        max_grad_norm: Norm to which gradients are clipped.
        reward_scale: Factor of the rewards.
        weight_decay: Weight decay of AdamW; 0 for other optimizers.
        rollout_length: Steps of each environment in a tick.
        num_epochs: Passes over a rollout.
        num_minibatches: Minibatches in an epoch; None for minibatches of at least 128 steps.
        normalize_observations: Whether to normalize observations.
        normalize_rewards: Whether to divide rewards by the deviation of returns.
        share_parameters: Whether agents share a network, which reads the agent's number, or have separate networks and
            optimizers.
        q_hidden: Sizes of the Q-network's hidden layers.
        q_keys: Entries of a dictionary observation that the network reads; empty for all.
        activation: Activation of the hidden layers.
        layer_norm: Whether to normalize the hidden layers.
        recurrent_size: Size of a GRU before the hidden layers; 0 for none. With a GRU, minibatches are whole sequences.
        cnn: Convolutions for images (`make_network`).
        optimizer: ``adam``, ``adamw``, ``radam`` or ``rmsprop``; with constants ``adam:epsilon:beta1:beta2`` or
            ``rmsprop:epsilon:decay``.
        precision: "f32", or "bf16" for dense layers and convolutions.
        q_loss: ``(q, target) -> loss``, on scalars.

    Returns:
        The algorithm.
    """
    given = locals()
    keys = {"q_keys": keys_of_one(q_keys, shared=share_parameters)}
    base = of_one.pqn(**{key: x for key, x in given.items() if key != "share_parameters"} | keys)

    def build(spec: EnvSpec, num_envs: int) -> Agent:
        space = require_actions("pqn_vdn", spec, (Discrete, MultiDiscrete), "ippo")
        one = base.build(spec_of_one(spec, shared=share_parameters), num_envs)
        assert isinstance(one.data, OnPolicy)
        q = network_of_all(one.parts["critic"].networks["q"], spec, shared=share_parameters)
        part = of_one.critic_part(q, q_loss, optimizer, partial(taken_together, space))
        return one._replace(
            parts={"critic": with_own_optimizers(part)},
            data=one.data._replace(targets=team_targets, value=partial(best_together, space)),
        )

    options = base.options | {"q_keys": tuple(q_keys), "share_parameters": share_parameters}
    return Algorithm("pqn_vdn", base.hyper, options, build, base.sizes, for_agents=True)


def taken_together(space: Actions, outputs: PyTree, obs: PyTree, action: jax.Array | None) -> jax.Array:
    """Sum the values of the agents' actions (`ValueOf`).

    Args:
        space: Action space of an agent.
        outputs: Q-values ``[..., A, num_joint(space)]``.
        obs: Observations, which may mark agents that are out.
        action: Actions ``[..., A]``.

    Returns:
        Values ``[...]``.
    """
    assert action is not None
    return _sum_over_agents(value_of(outputs, number_of(space, action)), obs)


def best_together(space: Actions, outputs: PyTree, obs: PyTree, action: jax.Array | None) -> jax.Array:
    """Sum the values of the agents' best actions, which is the largest of all sums (`ValueOf`).

    Args:
        space: Action space of an agent.
        outputs: Q-values ``[..., A, num_joint(space)]``.
        obs: Observations, which may have masks.
        action: Unused.

    Returns:
        Values ``[...]``.
    """
    return _sum_over_agents(greedy_value(space, outputs, obs), obs)


def team_targets(values: Values, rollout: Transition, hyper: of_one.PqnHyper) -> dict[str, jax.Array]:
    """Compute PQN's targets for the reward of the team.

    Args:
        values: Values of the team, ``[T, E]``.
        rollout: Normalized rollout.
        hyper: Hyper-parameters of this tick.

    Returns:
        ``q_target`` ``[T, E]``.
    """
    shared = rollout.reward.ndim == values.next.ndim
    reward = rollout.reward if shared else _sum_over_agents(rollout.reward, rollout.obs)
    return of_one.targets(values, rollout._replace(reward=reward), hyper)


def _sum_over_agents(x: jax.Array, obs: PyTree) -> jax.Array:
    out = out_of(obs)
    return jnp.sum(x if out is None else jnp.where(out, 0.0, x), axis=-1)
