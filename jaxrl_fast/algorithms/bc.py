"""Behaviour cloning: a policy that imitates recorded actions."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxrl_fast.algorithms.shared_fields import (
    Dropout,
    MemoryFields,
    ObservationFields,
    OptimizerFields,
    PolicyFields,
    Rates,
    SequenceFields,
    UpdateFields,
    layers_of,
    updates_of,
)
from jaxrl_fast.core import Actions, Box, EnvSpec, Metrics, PyTree
from jaxrl_fast.learning.acting import policy_of, unit_policy
from jaxrl_fast.learning.algorithm import (
    Agent,
    Decide,
    GradientResult,
    Learned,
    Part,
    Replay,
    ReplayBatch,
    gradients_of,
    over_replay,
)
from jaxrl_fast.learning.critics import imitation_loss, learned_obs
from jaxrl_fast.networks.network import (
    Network,
    make_network,
)
from jaxrl_fast.numerics import distributions
from jaxrl_fast.numerics.optimizers import (
    OptimizerName,
    Rate0,
    Rate01,
    check_optimizer,
    make_optimizer,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class BcHyper(Rates):
    """Rates of behaviour cloning; ``weight_decay`` is in `OptimizerFields`."""

    learning_rate: Rate0 = 3e-4
    """Learning rate."""
    discount: Rate01 = 0.99
    """Unused, since no return is estimated."""
    max_grad_norm: Rate0 = 1e6
    """Norm to which the gradient is clipped."""
    reward_scale: Rate0 = 1.0
    """Unused."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Bc(
    OptimizerFields,
    MemoryFields,
    PolicyFields,
    ObservationFields,
    SequenceFields,
    UpdateFields,
    BcHyper,
):
    """Behaviour cloning; it needs ``data``, and never steps the environment.

    Source: Pomerleau (1988), ALVINN, NeurIPS 1.
    """

    name: ClassVar[str] = "bc"
    needs_data: ClassVar[bool] = True

    rollout_length: int = 1
    """Steps in a tick for each of ``num_envs``."""
    batch_size: int = 256
    """Steps in a minibatch, or sequences with a memory."""
    policy_dropout: Dropout = 0.0
    """Share of the outputs of the policy's hidden layers that an update sets to 0."""

    def sizes(self, num_envs: int, total_steps: int | None = None) -> dict[str, int]:
        """Compute the updates of a tick, unless they were given."""
        return {"updates_per_tick": updates_of(self, num_envs)}

    def build(self, spec: EnvSpec, num_envs: int) -> Agent:
        """Build the agent for one environment."""
        check_optimizer(self.optimizer, self.weight_decay)
        space = spec.action
        stored_steps = (self.burn_in + self.sequence_length) * 2 if self.recurrent_size else 2
        data = Replay(
            capacity=max(self.batch_size, stored_steps * num_envs, self.rollout_length * num_envs),
            batch_size=self.batch_size,
            num_batches=updates_of(self, num_envs),
            warmup_steps=0,
            n_step=1,
            sequence_length=self.sequence_length,
            burn_in=self.burn_in,
        )
        policy = make_network(
            spec.obs,
            space.low.size if isinstance(space, Box) else distributions.num_outputs(space),
            hidden=self.policy_hidden,
            keys=self.policy_keys,
            dropout=self.policy_dropout,
            out_scale=0.01,
            **layers_of(self),
        )
        return Agent(
            parts={"actor": actor_part(space, policy, data, self.optimizer)},
            data=data,
            acts={"actor": "policy"},
            decide=greedy_decide(space),
            rollout_length=self.rollout_length,
            normalize_observations=self.normalize_observations,
        )


bc = Bc


def greedy_decide(space: Actions) -> Decide:
    """Return action selection of the part ``actor`` that never explores.

    Args:
        space: Action space.

    Returns:
        The `Decide` function.
    """

    def decide(
        outputs: dict, obs: PyTree, state: PyTree, key: jax.Array, hyper: Any, explore: bool
    ) -> tuple:
        if isinstance(space, Box):
            return distributions.from_unit(space, unit_policy(outputs["actor"])), state, {}
        dist = policy_of(space, outputs["actor"], obs)
        return distributions.to_action(space, distributions.mode(dist), dist), state, {}

    return decide


def actor_part(space: Actions, policy: Network, data: Replay, optimizer: OptimizerName) -> Part:
    """Build the policy's part, which imitates the actions of the batch.

    Args:
        space: Action space.
        policy: Policy network.
        data: Data of the updates.
        optimizer: `OptimizerName`.

    Returns:
        The part.
    """

    def gradients(
        learned: Learned,
        peers: dict[str, Learned],
        batch: ReplayBatch,
        key: jax.Array,
        hyper: BcHyper,
    ) -> GradientResult:
        learning = policy.with_dropout(key) if policy.with_dropout else policy

        def loss_fn(params: PyTree) -> tuple[jax.Array, Metrics]:
            outputs = over_replay(data, learning, params, batch, "actor")
            decided: Any = outputs
            if isinstance(space, Box):
                decided = distributions.from_unit(space, unit_policy(outputs))
            loss = jnp.mean(
                imitation_loss(space, decided, learned_obs(data, policy, batch), batch.action)
            )
            return loss, {"policy_loss": loss}

        grads, metrics = gradients_of(loss_fn, learned.params["policy"])
        return GradientResult({"policy": grads}, metrics)

    return Part({"policy": policy}, gradients, {"policy": make_optimizer(optimizer)})
