"""TD3 that stays close to recorded actions, to learn from data (TD3+BC, arXiv 2106.06860; ReBRAC,
arXiv 2305.09836).

TD3 with two penalties on the squared distance to the recorded actions: of the policy's actions in
its loss, and of the next actions in the critics' target. Critics have layer norms and three hidden
layers, as in ReBRAC.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxrl_fast.algorithms.shared_fields import (
    ActorCriticFields,
    MemoryFields,
    ObservationFields,
    OptimizerFields,
    ReplayFields,
    SequenceFields,
    policy_and_critics,
    replay_of,
    sizes_of_replay,
)
from jaxrl_fast.algorithms.td3 import DelayFields, Td3Hyper, actor_part, critic_part
from jaxrl_fast.core import Box, EnvSpec
from jaxrl_fast.learning.acting import noisy_action
from jaxrl_fast.learning.algorithm import (
    Agent,
    ReplayBatch,
    require_actions,
    require_positive,
)
from jaxrl_fast.learning.data import NEXT_ACTION
from jaxrl_fast.numerics import distributions, losses
from jaxrl_fast.numerics.optimizers import (
    Rate0,
    check_optimizer,
    is_set,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Td3BcHyper(Td3Hyper):
    """Rates of TD3+BC; ``weight_decay`` is in `OptimizerFields`."""

    exploration_noise: Rate0 = 0.1
    """Standard deviation of the noise on actions when the environment is stepped, in half ranges.
    """
    actor_penalty: Rate0 = 0.4
    """Weight of the policy's squared distance to recorded actions, next to values of mean size 1;
    1 / α of TD3+BC.
    """
    critic_penalty: Rate0 = 0.0
    """Weight of the next action's squared distance to the recorded one, in units of the return."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Td3Bc(
    OptimizerFields,
    MemoryFields,
    ActorCriticFields,
    ObservationFields,
    SequenceFields,
    ReplayFields,
    DelayFields,
    Td3BcHyper,
):
    """TD3+BC with ReBRAC's additions; as published with ``critic_penalty=0,
    critic_layer_norm=False``.
    """

    name: ClassVar[str] = "td3_bc"

    buffer_size: int = 1_000_000
    """Capacity of the replay buffer of sampled steps."""
    policy_hidden: tuple[int, ...] = (256, 256, 256)
    critic_hidden: tuple[int, ...] = (256, 256, 256)
    critic_layer_norm: bool = True

    def sizes(self, num_envs: int, total_steps: int | None = None) -> dict[str, int]:
        """Compute the updates of a tick and the warm-up, unless they were given."""
        return sizes_of_replay(self, num_envs, total_steps)

    def build(self, spec: EnvSpec, num_envs: int) -> Agent:
        """Build the agent for one environment."""
        box = require_actions("td3_bc", spec, (Box,), "bc")
        check_optimizer(self.optimizer, self.weight_decay)
        require_positive(policy_delay=self.policy_delay)
        if self.n_step > 1 and is_set(self.critic_penalty):
            raise ValueError(
                f"n_step={self.n_step}: data has the next action only: write n_step=1, "
                "or critic_penalty=0"
            )
        data = replay_of(self, num_envs)._replace(keep=(NEXT_ACTION,))
        policy, q = policy_and_critics(
            self, spec.obs, policy_size=box.low.size, action_shape=(box.low.size,)
        )
        noisy, init_decide = noisy_action(box, self.noise_spread)

        def decide(*inputs: Any) -> tuple:
            action, state, _ = noisy(*inputs)
            return action, state, {NEXT_ACTION: jnp.full_like(action, jnp.nan)}

        def of_policy(action: jax.Array, batch: ReplayBatch, hyper: Td3BcHyper) -> jax.Array:
            return hyper.actor_penalty * squared_distance(
                action, distributions.to_unit(box, batch.action)
            )

        def of_next(action: jax.Array, batch: ReplayBatch, hyper: Td3BcHyper) -> jax.Array:
            recorded = distributions.to_unit(box, batch.extras[NEXT_ACTION])
            return hyper.critic_penalty * squared_distance(action, recorded)

        step = self.policy_delay, self.optimizer
        return Agent(
            parts={
                "critic": critic_part(
                    box, policy, q, data, losses.squared_error, 2, *step, penalty=of_next
                ),
                "actor": actor_part(policy, q, data, *step, penalty=of_policy),
            },
            data=data,
            acts={"actor": "policy"},
            remembers={"critic": "q"} if self.recurrent_size else {},
            decide=decide,
            init_decide=init_decide,
            rollout_length=self.rollout_length,
            normalize_observations=self.normalize_observations,
        )


td3_bc = Td3Bc


def squared_distance(action: jax.Array, recorded: jax.Array) -> jax.Array:
    """Compute the squared distance to recorded actions; 0 where there is none.

    Args:
        action: Unit actions ``[..., A]``.
        recorded: Recorded unit actions ``[..., A]``, or NaN.

    Returns:
        Distances ``[...]``, means over the dimensions of the action.
    """
    there = jnp.isfinite(recorded)
    return jnp.mean(
        jnp.square(jnp.where(there, action - jnp.where(there, recorded, 0.0), 0.0)), axis=-1
    )
