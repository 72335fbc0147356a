"""PQN with value decomposition, several agents, discrete actions: what the team can expect is the sum of what each
agent says of its own action (VDN, arXiv 1706.05296), learned as PQN does (arXiv 2407.04811).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_fast.algorithms import pqn as of_one
from jaxrl_fast.algorithms.multi_agent import keys_of_one, network_of_all, out_of, spec_of_one, with_own_optimizers
from jaxrl_fast.core import Discrete, EnvSpec, PyTree, Transition
from jaxrl_fast.learning.acting import greedy_value, value_of
from jaxrl_fast.learning.algorithm import Agent, Algorithm, OnPolicy, Values, require_actions
from jaxrl_fast.networks.network import Activation, Cnn, Precision
from jaxrl_fast.numerics import losses
from jaxrl_fast.numerics.optimizers import OptimizerName


def pqn_vdn(
    *,
    learning_rate: Any = 5e-4,
    discount: Any = 0.99,
    q_lambda: Any = 0.65,
    epsilon: Any = 0.1,
    max_grad_norm: Any = 10.0,
    reward_scale: Any = 1.0,
    weight_decay: Any = 0.0,
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
    """PQN-VDN. Where agents have rewards of their own, it is their sum that is learned; agents that are out add nothing
    to either sum.

    ``share_parameters``: all agents have the same network, which sees the agent's number; else each has a network and
    an optimizer of its own. The other arguments are those of `jaxrl_fast.pqn`.
    """
    given = locals()
    keys = {"q_keys": keys_of_one(q_keys, shared=share_parameters)}
    base = of_one.pqn(**{key: x for key, x in given.items() if key != "share_parameters"} | keys)

    def build(spec: EnvSpec, num_envs: int) -> Agent:
        require_actions("pqn_vdn", spec, (Discrete,), "ippo")
        one = base.build(spec_of_one(spec, shared=share_parameters), num_envs)
        assert isinstance(one.data, OnPolicy)
        q = network_of_all(one.parts["critic"].networks["q"], spec, shared=share_parameters)
        part = of_one.critic_part(q, q_loss, optimizer, taken_together)
        return one._replace(
            parts={"critic": with_own_optimizers(part)},
            data=one.data._replace(targets=team_targets, value=best_together),
        )

    options = base.options | {"q_keys": tuple(q_keys), "share_parameters": share_parameters}
    return Algorithm("pqn_vdn", base.hyper, options, build, base.sizes, for_agents=True)


def taken_together(outputs: PyTree, obs: PyTree, action: jax.Array | None) -> jax.Array:
    """The sum ``[...]`` of the values of the agents' actions (`ValueOf`)."""
    assert action is not None
    return _sum_over_agents(value_of(outputs, action), obs)


def best_together(outputs: PyTree, obs: PyTree, action: jax.Array | None) -> jax.Array:
    """The sum ``[...]`` of the values of the agents' best actions, which is the best of the sums (`ValueOf`)."""
    return _sum_over_agents(greedy_value(outputs, obs), obs)


def team_targets(values: Values, rollout: Transition, hyper: of_one.PqnHyper) -> dict[str, jax.Array]:
    """PQN's targets ``[T, E]`` for the reward of the team."""
    shared = rollout.reward.ndim == values.next.ndim
    reward = rollout.reward if shared else _sum_over_agents(rollout.reward, rollout.obs)
    return of_one.targets(values, rollout._replace(reward=reward), hyper)


def _sum_over_agents(x: jax.Array, obs: PyTree) -> jax.Array:
    out = out_of(obs)
    return jnp.sum(x if out is None else jnp.where(out, 0.0, x), axis=-1)
