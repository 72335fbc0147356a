"""PQN with value decomposition, for several agents and discrete actions.

The value of the team is the sum of the agents' values of their actions (VDN, arXiv 1706.05296), or
a monotonic function of them that depends on the global state (QMIX, arXiv 1803.11485). It is
trained as in PQN (arXiv 2407.04811).
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from jaxrl_fast.algorithms.multi_agent import (
    keys_of_one,
    network_of_all,
    out_of,
    spec_of_one,
    with_own_optimizers,
)
from jaxrl_fast.algorithms.pqn import Pqn, PqnFields, PqnHyper, critic_part, targets
from jaxrl_fast.algorithms.shared_fields import AgentFields, layers_of, same_fields
from jaxrl_fast.core import STATE, Actions, Discrete, EnvSpec, MultiDiscrete, PyTree, Transition
from jaxrl_fast.learning.acting import greedy_value, number_of, value_of
from jaxrl_fast.learning.algorithm import (
    Agent,
    OnPolicy,
    Values,
    require_actions,
    require_positive,
)
from jaxrl_fast.networks.network import (
    Head,
    Network,
    make_network,
)
from jaxrl_fast.networks.per_agent import mixing_network

Mixer = Literal["vdn", "qmix"]
"""How agents' values become the team's: their sum, or a monotonic network of them (`mix`)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PqnVdn(AgentFields, PqnFields):
    """PQN-VDN.

    If agents have separate rewards, the target is their sum. Agents that are out add nothing to the
    sums of rewards and values.
    """

    name: ClassVar[str] = "pqn_vdn"
    for_agents: ClassVar[bool] = True

    normalize_observations: bool = False
    """Whether to normalize observations."""
    mixer: Mixer = "vdn"
    """How the agents' values become the team's: "vdn" for their sum, or "qmix" for a monotonic
    network of them, whose weights depend on the global state, or on all agents' observations if
    there is none.
    """
    mixer_size: int = 32
    """Size of that network's hidden layer."""
    mixer_hidden: tuple[int, ...] = (64,)
    """Sizes of the hidden layers of the network that computes its weights."""

    def of_one(self) -> Pqn:
        """Return PQN for one agent."""
        keys = keys_of_one(self.q_keys, shared=self.share_parameters)
        return Pqn(**same_fields(self, Pqn) | {"q_keys": keys})

    def sizes(self, num_envs: int, total_steps: int | None = None) -> dict[str, int]:
        """Compute the rollout's length and the minibatches, unless they were given."""
        return self.of_one().sizes(num_envs, total_steps)

    def build(self, spec: EnvSpec, num_envs: int) -> Agent:
        """Build the agent for one environment."""
        space = require_actions("pqn_vdn", spec, (Discrete, MultiDiscrete), "ippo")
        one = self.of_one().build(spec_of_one(spec, shared=self.share_parameters), num_envs)
        assert isinstance(one.data, OnPolicy)
        q = network_of_all(one.parts["critic"].networks["q"], spec, shared=self.share_parameters)
        mixing = None
        if self.mixer == "qmix":
            options = layers_of(self)
            del options["memory"], options["recurrent_size"]
            mixing = mixer_network(spec, self.mixer_size, self.mixer_hidden, **options)
        taken = partial(taken_together, space)
        part = critic_part(q, self.q_loss, self.optimizer, taken, mixing)
        return one._replace(
            parts={"critic": with_own_optimizers(part)},
            data=one.data._replace(
                targets=team_targets,
                value=partial(best_together, space),
                mixer="mixer" if mixing else "",
            ),
        )


pqn_vdn = PqnVdn


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


def team_targets(values: Values, rollout: Transition, hyper: PqnHyper) -> dict[str, jax.Array]:
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
    return targets(values, rollout._replace(reward=reward), hyper)


def _combined(q: jax.Array, weights: dict[str, jax.Array] | None, obs: PyTree) -> jax.Array:
    q = _taking_part(q, obs)
    return jnp.sum(q, axis=-1) if weights is None else mix(q, weights)


def _taking_part(x: jax.Array, obs: PyTree) -> jax.Array:
    """Return values ``[..., A]`` of agents, 0 for agents that are out."""
    out = out_of(obs)
    return x if out is None else jnp.where(out, 0.0, x)
