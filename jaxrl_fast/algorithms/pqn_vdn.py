"""PQN with value decomposition, for several agents and discrete actions.

The value of the team is the sum of the agents' values of their actions (VDN, arXiv 1706.05296), or
a monotonic function of them that depends on the global state (QMIX, arXiv 1803.11485). It is
trained as in PQN (arXiv 2407.04811).
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp

from jaxrl_fast.algorithms import pqn as of_one
from jaxrl_fast.algorithms.multi_agent import (
    keys_of_one,
    network_of_all,
    out_of,
    spec_of_one,
    with_own_optimizers,
)
from jaxrl_fast.core import STATE, Actions, Discrete, EnvSpec, MultiDiscrete, PyTree, Transition
from jaxrl_fast.learning.acting import FALLING_EPSILON, greedy_value, number_of, value_of
from jaxrl_fast.learning.algorithm import (
    Agent,
    Algorithm,
    OnPolicy,
    Values,
    require_actions,
    require_positive,
)
from jaxrl_fast.networks.network import (
    Activation,
    Cnn,
    Head,
    MemoryKind,
    Network,
    Precision,
    Torso,
    make_network,
)
from jaxrl_fast.networks.per_agent import mixing_network
from jaxrl_fast.numerics import losses
from jaxrl_fast.numerics.optimizers import FROM_0, OptimizerName, Rate0, Rate01, checks_numbers

Mixer = Literal["vdn", "qmix"]
"""How agents' values become the team's: their sum, or a monotonic network of them (`mix`)."""


@checks_numbers()
def pqn_vdn(
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
    normalize_observations: bool = False,
    normalize_rewards: bool = False,
    share_parameters: bool = True,
    mixer: Mixer = "vdn",
    mixer_size: int = 32,
    mixer_hidden: tuple[int, ...] = (64,),
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
    """Build PQN-VDN.

    If agents have separate rewards, the target is their sum. Agents that are out add nothing to the
    sums of rewards and values.

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
        normalize_observations: Whether to normalize observations.
        normalize_rewards: Whether to divide rewards by the deviation of returns.
        share_parameters: Whether agents share a network, which reads the agent's number, or have
            separate networks and optimizers.
        mixer: "vdn" for the sum of the agents' values, or "qmix" for a monotonic network of them,
            whose weights depend on the global state, or on all agents' observations if there is
            none.
        mixer_size: Size of that network's hidden layer.
        mixer_hidden: Sizes of the hidden layers of the network that computes its weights.
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
    keys = {"q_keys": keys_of_one(q_keys, shared=share_parameters)}
    base = of_one.pqn(**{key: x for key, x in given.items() if key not in OWN_OPTIONS} | keys)

    def build(spec: EnvSpec, num_envs: int) -> Agent:
        space = require_actions("pqn_vdn", spec, (Discrete, MultiDiscrete), "ippo")
        one = base.build(spec_of_one(spec, shared=share_parameters), num_envs)
        assert isinstance(one.data, OnPolicy)
        q = network_of_all(one.parts["critic"].networks["q"], spec, shared=share_parameters)
        shared: dict[str, Any] = dict(
            activation=activation,
            layer_norm=layer_norm,
            network=network,
            cnn=cnn,
            precision=precision,
        )
        mixing = (
            mixer_network(spec, mixer_size, mixer_hidden, **shared) if mixer == "qmix" else None
        )
        part = of_one.critic_part(q, q_loss, optimizer, partial(taken_together, space), mixing)
        value = partial(best_together, space)
        return one._replace(
            parts={"critic": with_own_optimizers(part)},
            data=one.data._replace(
                targets=team_targets, value=value, mixer="mixer" if mixing else ""
            ),
        )

    options = base.options | {"q_keys": tuple(q_keys), "share_parameters": share_parameters}
    options |= {"mixer": mixer, "mixer_size": mixer_size, "mixer_hidden": tuple(mixer_hidden)}
    return Algorithm("pqn_vdn", base.hyper, options, build, base.sizes, for_agents=True)


OWN_OPTIONS = {"share_parameters", "mixer", "mixer_size", "mixer_hidden"}
"""Options that PQN of one agent does not have."""


def mixer_network(spec: EnvSpec, size: int, hidden: tuple[int, ...], **options: Any) -> Network:
    """Build the network that computes the weights of `mix` from the global state.

    It has one torso for all weights (published: a separate network for each).

    Args:
        spec: Environment of several agents.
        size: Size of the hidden layer of `mix`.
        hidden: Sizes of the hidden layers.
        **options: Options of `make_network`.

    Returns:
        The network.
    """
    require_positive(mixer_size=size)
    assert spec.num_agents is not None
    # So scaled, the value of the team initially grows about as the sum of the agents' values,
    # whatever the size.
    scale = size**-0.5
    heads = {
        "first": Head(spec.num_agents * size, scale),
        "bias": Head(size),
        "last": Head(size, scale),
    }
    keys = (STATE,) if isinstance(spec.obs, dict) and STATE in spec.obs else ()
    return mixing_network(
        make_network(spec.obs, heads | {"value": Head(1)}, hidden=hidden, keys=keys, **options)
    )


def mix(q: jax.Array, weights: dict[str, jax.Array]) -> jax.Array:
    """Compute the value of the team by a network of one hidden layer, which grows with the value of
    every agent.

    Args:
        q: Values of the agents' actions ``[..., A]``.
        weights: Outputs of `mixer_network`: ``first`` ``[..., 1, A * size]``, ``bias`` and ``last``
            ``[..., 1, size]``, ``value`` ``[..., 1, 1]``.

    Returns:
        Values ``[...]``.

    Source: Rashid et al. (2018), section 4 and figure 2, arXiv 1803.11485.
    """
    bias, last = weights["bias"][..., 0, :], jnp.abs(weights["last"][..., 0, :])
    first = jnp.abs(weights["first"]).reshape(*q.shape, bias.shape[-1])
    hidden = jax.nn.elu(jnp.sum(q[..., None] * first, axis=-2) + bias)
    return jnp.sum(hidden * last, axis=-1) + weights["value"][..., 0, 0]


def taken_together(
    space: Actions, outputs: PyTree, obs: PyTree, action: jax.Array | None
) -> jax.Array:
    """Combine the values of the agents' actions (`ValueOf`).

    Args:
        space: Action space of an agent.
        outputs: Q-values ``[..., A, num_joint(space)]``; with a mixer the pair of these and the
            weights of `mix`.
        obs: Observations, which may mark agents that are out.
        action: Actions ``[..., A]``.

    Returns:
        Values ``[...]``.
    """
    assert action is not None
    q, weights = outputs if isinstance(outputs, tuple) else (outputs, None)
    return _combined(value_of(q, number_of(space, action)), weights, obs)


def best_together(
    space: Actions, outputs: PyTree, obs: PyTree, action: jax.Array | None
) -> jax.Array:
    """Combine the values of the agents' best actions, which is the largest value of the team
    (`ValueOf`).

    Args:
        space: Action space of an agent.
        outputs: As in `taken_together`.
        obs: Observations, which may have masks.
        action: Unused.

    Returns:
        Values ``[...]``.
    """
    q, weights = outputs if isinstance(outputs, tuple) else (outputs, None)
    return _combined(greedy_value(space, q, obs), weights, obs)


def team_targets(
    values: Values, rollout: Transition, hyper: of_one.PqnHyper
) -> dict[str, jax.Array]:
    """Compute PQN's targets for the reward of the team.

    Args:
        values: Values of the team, ``[T, E]``.
        rollout: Normalized rollout.
        hyper: Hyper-parameters of this tick.

    Returns:
        ``q_target`` ``[T, E]``.
    """
    shared = rollout.reward.ndim == values.next.ndim
    reward = (
        rollout.reward if shared else jnp.sum(_taking_part(rollout.reward, rollout.obs), axis=-1)
    )
    return of_one.targets(values, rollout._replace(reward=reward), hyper)


def _combined(q: jax.Array, weights: dict[str, jax.Array] | None, obs: PyTree) -> jax.Array:
    q = _taking_part(q, obs)
    return jnp.sum(q, axis=-1) if weights is None else mix(q, weights)


def _taking_part(x: jax.Array, obs: PyTree) -> jax.Array:
    """Return values ``[..., A]`` of agents, 0 for agents that are out."""
    out = out_of(obs)
    return x if out is None else jnp.where(out, 0.0, x)
