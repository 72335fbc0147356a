"""FastTD3: TD3 for many environments, with large batches and values as distributions (arXiv
2505.22642).

Each environment draws its exploration noise anew from a range, critics learn distributions of
returns by cross-entropy, and a tick makes few updates of large batches. Published sizes are for a
GPU: 1,024 environments, batches of 32,768, critics of (1024, 512, 256) and a policy of (512, 256,
128) units.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

from jaxrl_fast.algorithms.flash_sac import lower_of
from jaxrl_fast.algorithms.shared_fields import (
    ActorCriticFields,
    ObservationFields,
    OptimizerFields,
    TargetRates,
    WarmupFields,
    policy_and_critics,
    replay_of,
    sizes_of_replay,
)
from jaxrl_fast.core import Box, EnvSpec, Metrics, PyTree
from jaxrl_fast.learning.acting import unit_policy
from jaxrl_fast.learning.algorithm import (
    Agent,
    GradientResult,
    Learned,
    Part,
    Replay,
    ReplayBatch,
    WarmupActions,
    gradients_of,
    over_replay,
    over_successors,
    require_actions,
    require_positive,
)
from jaxrl_fast.learning.critics import ValueHead, make_value_head
from jaxrl_fast.networks.network import Network
from jaxrl_fast.numerics import distributions, losses
from jaxrl_fast.numerics.optimizers import (
    ANY,
    OptimizerName,
    Rate0,
    Rate01,
    check_optimizer,
    make_optimizer,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class FastTd3Hyper(TargetRates):
    """Rates of FastTD3; ``weight_decay`` is in `OptimizerFields`."""

    tau: Rate01 = 0.1
    noise_min: Rate0 = 0.001
    """Smallest standard deviation of an environment's noise in training, in half ranges."""
    noise_max: Rate0 = 0.4
    """Largest standard deviation of an environment's noise."""
    target_noise: Rate0 = 0.001
    """Standard deviation of the noise on the target's actions."""
    target_noise_clip: Rate0 = 0.5
    """Bound of that noise."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FastTd3(OptimizerFields, ActorCriticFields, ObservationFields, WarmupFields, FastTd3Hyper):
    """FastTD3."""

    name: ClassVar[str] = "fast_td3"

    updates_per_tick: int | None = 2
    batch_size: int = 2048
    """Transitions in a minibatch."""
    warmup_actions: WarmupActions = "policy"
    policy_delay: int = 2
    """Updates between two steps of the actor."""
    num_atoms: int = 101
    """Atoms of the distribution of returns."""
    value_min: Annotated[float, ANY] = -10.0
    """First atom."""
    value_max: Annotated[float, ANY] = 10.0
    """Last atom."""
    normalize_rewards: bool = True
    """Whether to scale rewards so that returns are within the atoms; published: no."""
    policy_hidden: tuple[int, ...] = (256, 128, 64)
    critic_hidden: tuple[int, ...] = (512, 256, 128)
    optimizer: OptimizerName = "adamw"
    weight_decay: Rate0 = 0.1

    def sizes(self, num_envs: int, total_steps: int | None = None) -> dict[str, int]:
        """Compute the updates of a tick and the warm-up, unless they were given."""
        return sizes_of_replay(self, num_envs, total_steps)

    def build(self, spec: EnvSpec, num_envs: int) -> Agent:
        """Build the agent for one environment."""
        box = require_actions("fast_td3", spec, (Box,), "pqn")
        check_optimizer(self.optimizer, self.weight_decay)
        require_positive(policy_delay=self.policy_delay)
        data = replay_of(self, num_envs)
        atoms = self.value_min, self.value_max
        head = make_value_head("categorical", self.num_atoms, atoms, losses.squared_error)
        policy, q = policy_and_critics(
            self,
            spec.obs,
            policy_size=box.low.size,
            q_size=self.num_atoms,
            action_shape=(box.low.size,),
        )
        return Agent(
            parts={
                "critic": critic_part(box, policy, q, head, data, self.optimizer),
                "actor": actor_part(policy, q, head, data, self.policy_delay, self.optimizer),
            },
            data=data,
            acts={"actor": "policy"},
            decide=mixed_noise(box),
            rollout_length=self.rollout_length,
            normalize_observations=self.normalize_observations,
            normalize_rewards=self.normalize_rewards,
            max_return=self.value_max if self.normalize_rewards else None,
        )


fast_td3 = FastTd3


def mixed_noise(box: Box) -> Callable[..., tuple]:
    """Return action selection with noise whose deviation each environment draws anew from a range.

    Args:
        box: Action space.

    Returns:
        The `Decide` function.
    """

    def decide(
        outputs: dict, obs: PyTree, state: PyTree, key: jax.Array, hyper: Any, explore: bool
    ) -> tuple:
        unit = unit_policy(outputs["actor"])
        if explore:
            deviation_key, key = jax.random.split(key)
            share = jax.random.uniform(deviation_key, (*unit.shape[:-1], 1))
            deviation = hyper.noise_min + share * (hyper.noise_max - hyper.noise_min)
            unit = jnp.clip(unit + deviation * jax.random.normal(key, unit.shape), -1.0, 1.0)
        return distributions.from_unit(box, unit), state, {}

    return decide


def critic_part(
    box: Box, policy: Network, q: Network, head: ValueHead, data: Replay, optimizer: OptimizerName
) -> Part:
    """Build the critics' part: cross-entropy with the target of the critic with the lower value.

    Args:
        box: Action space.
        policy: Policy network.
        q: Ensemble of critics.
        head: Representation of values.
        data: Data of the updates.
        optimizer: `OptimizerName`.

    Returns:
        The part.

    Source: Seo et al. (2025), section 2.2, arXiv 2505.22642.
    """

    def gradients(
        learned: Learned, peers: dict[str, Learned], batch: ReplayBatch, key: jax.Array, hyper: Any
    ) -> GradientResult:
        action = unit_policy(
            over_successors(data, policy, peers["actor"].params["policy"], batch, "actor")
        )
        noise = hyper.target_noise * jax.random.normal(key, action.shape)
        action = jnp.clip(
            action + jnp.clip(noise, -hyper.target_noise_clip, hyper.target_noise_clip), -1.0, 1.0
        )
        lower = lower_of(
            over_successors(data, q, learned.target["q"], batch, "critic", action), head
        )

        def loss_fn(params: PyTree) -> tuple[jax.Array, Metrics]:
            outputs = over_replay(
                data, q, params, batch, "critic", distributions.to_unit(box, batch.action)
            )
            each = jax.vmap(jax.vmap(jax.vmap(head.loss)), (0, None, None, None))
            loss = 2.0 * jnp.mean(each(outputs, batch.reward, batch.bootstrap, lower)[0])
            return loss, {"critic_loss": loss, "q_mean": jnp.mean(head.expected(outputs))}

        grads, metrics = gradients_of(loss_fn, learned.params["q"])
        return GradientResult({"q": grads}, metrics)

    return Part(
        {"q": q}, gradients, {"q": make_optimizer(optimizer)}, reads=("actor",), targets=("q",)
    )


def actor_part(
    policy: Network, q: Network, head: ValueHead, data: Replay, delay: int, optimizer: OptimizerName
) -> Part:
    """Build the policy's part, which maximizes the lower critic's value.

    Args:
        policy: Policy network.
        q: Ensemble of critics.
        head: Representation of values.
        data: Data of the updates.
        delay: Updates between two steps of this part.
        optimizer: `OptimizerName`.

    Returns:
        The part.
    """

    def gradients(
        learned: Learned, peers: dict[str, Learned], batch: ReplayBatch, key: jax.Array, hyper: Any
    ) -> GradientResult:
        def loss_fn(params: PyTree) -> tuple[jax.Array, Metrics]:
            action = unit_policy(over_replay(data, policy, params, batch, "actor"))
            outputs = over_replay(
                data, q, peers["critic"].params["q"], batch, "critic", action, learning=False
            )
            loss = -jnp.mean(jnp.min(head.expected(outputs), axis=0))
            return loss, {"policy_loss": loss}

        grads, metrics = gradients_of(loss_fn, learned.params["policy"])
        return GradientResult({"policy": grads}, metrics)

    return Part(
        {"policy": policy},
        gradients,
        {"policy": make_optimizer(optimizer)},
        reads=("critic",),
        every=delay,
    )
