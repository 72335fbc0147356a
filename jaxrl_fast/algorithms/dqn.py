"""Deep Q-learning, for discrete actions (DQN, arXiv 1312.5602).

Options: double Q-learning (arXiv 1509.06461, equation 4), dueling heads (arXiv 1511.06581), n-step
returns, prioritized replay (arXiv 1511.05952), distributions of returns (C51, arXiv 1707.06887;
quantiles, arXiv 1710.10044; IQN, arXiv 1806.06923), noisy nets (arXiv 1706.10295): all of them
together are Rainbow (arXiv 1710.02298). Also Munchausen DQN (arXiv 2007.14430), and a share of
random actions for each environment (Ape-X, arXiv 1803.00933).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

from jaxrl_fast.algorithms.shared_fields import (
    MemoryFields,
    NormedFields,
    ObservationFields,
    OptimizerFields,
    PriorityFields,
    QFields,
    SequenceFields,
    TargetRates,
    WarmupFields,
    layers_of,
    replay_of,
    sizes_of_replay,
)
from jaxrl_fast.core import Discrete, EnvSpec, Metrics, MultiDiscrete, PyTree
from jaxrl_fast.fields import hyper_of
from jaxrl_fast.learning.acting import (
    FALLING_EPSILON,
    by_q_values,
    greedy_action,
    joint_mask,
    num_joint,
    number_of,
)
from jaxrl_fast.learning.algorithm import (
    Agent,
    GradientResult,
    Learned,
    Part,
    Replay,
    ReplayBatch,
    gradients_of,
    mean_loss,
    over_replay,
    over_successors,
    require_actions,
    require_positive,
    sequence_priority,
)
from jaxrl_fast.learning.critics import (
    ValueHead,
    ValueKind,
    by_action,
    learned_obs,
    log_softmax_policy,
    make_value_head,
    munchausen_reward,
    of_action,
    q_outputs,
    soft_outputs,
    with_levels,
)
from jaxrl_fast.networks.network import (
    Network,
    make_network,
)
from jaxrl_fast.networks.noisy import two_parts
from jaxrl_fast.numerics import losses
from jaxrl_fast.numerics.optimizers import (
    ABOVE_0,
    ANY,
    FROM_0,
    FROM_0_TO_1,
    OptimizerName,
    OptionalRate01,
    Rate0,
    Rate01,
    check_optimizer,
    make_optimizer,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class DqnHyper(TargetRates):
    """Rates of DQN; others are in `PriorityFields` and `OptimizerFields`."""

    epsilon: Rate01 = FALLING_EPSILON
    """Share of random actions. With ``noisy`` write 0, as published."""
    tau: OptionalRate01 = None
    """Weight of the new params in the target network every ``target_period`` updates, 0 to 1; None
    for 0.005, or 1 (a copy) with a period of several updates.
    """
    max_grad_norm: Rate0 = 10.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Dqn(
    OptimizerFields,
    NormedFields,
    MemoryFields,
    QFields,
    ObservationFields,
    PriorityFields,
    SequenceFields,
    WarmupFields,
    DqnHyper,
):
    """DQN.

    A tick samples ``rollout_length`` steps in every environment, then makes ``updates_per_tick``
    updates once ``warmup_steps`` steps are in the buffer.
    """

    name: ClassVar[str] = "dqn"

    epsilon_spread: Annotated[float, FROM_0] = 0.0
    """The last environment's share is ``epsilon ** (1 + epsilon_spread)``; 0 for equal shares."""
    rollout_length: int = 4
    updates_per_tick: int | None = None
    """Gradient updates in a tick; None for one per sampled step, at most 64. Published is one per 4
    steps; CartPole-v1 reaches 82 with it after 50,000 steps, else 475.
    """
    batch_size: int = 128
    buffer_size: int = 100_000
    target_period: int = 1
    """Updates between two steps of the target network."""
    double: bool = True
    """Whether the online network selects the target's action (double Q-learning)."""
    dueling: bool = False
    """Whether values and advantages have separate heads."""
    munchausen: Annotated[float, FROM_0_TO_1] = 0.0
    """Weight α of the policy's log-probability in the reward (Munchausen DQN; published: 0.9); 0
    for none. Targets then average over a softmax policy of the target network, so that ``double``
    has no effect.
    """
    munchausen_temperature: Annotated[float, ABOVE_0] = 0.03
    """Temperature τ of that policy, in units of scaled rewards."""
    noisy: bool = False
    """Whether dense layers have trained noise. Each update draws one noise, each step one per
    environment; greedy actions have none.
    """
    value_head: ValueKind = "scalar"
    """Kind of the values: "scalar", "categorical" (a distribution over ``num_atoms`` returns),
    "quantiles" (``num_atoms`` of them), or "implicit" (quantiles at ``num_atoms`` random levels per
    step, IQN; actions maximize the mean over 32 fixed levels).
    """
    num_atoms: int = 51
    """Atoms or quantiles of a distribution of returns. For "implicit" write fewer than 51, such as
    8.
    """
    value_min: Annotated[float, ANY] = -10.0
    """Smallest return of a categorical head."""
    value_max: Annotated[float, ANY] = 10.0
    """Largest return of a categorical head."""
    q_loss: Callable[[jax.Array, jax.Array], jax.Array] = losses.huber
    """``(q, target) -> loss`` of a "scalar" head, on scalars."""

    @cached_property
    def hyper(self) -> Any:
        """NamedTuple of the rates, with a number for ``tau``."""
        default = 1.0 if self.target_period > 1 else 0.005
        return hyper_of(self)._replace(tau=default if self.tau is None else self.tau)

    def sizes(self, num_envs: int, total_steps: int | None = None) -> dict[str, int]:
        """Compute the updates of a tick and the warm-up, unless they were given."""
        return sizes_of_replay(self, num_envs, total_steps)

    def build(self, spec: EnvSpec, num_envs: int) -> Agent:
        """Build the agent for one environment."""
        space = require_actions("dqn", spec, (Discrete, MultiDiscrete), "sac")
        require_positive(target_period=self.target_period)
        check_optimizer(self.optimizer, self.weight_decay)
        data = replay_of(self, num_envs)
        atoms = self.value_min, self.value_max
        head = make_value_head(self.value_head, self.num_atoms, atoms, self.q_loss)
        num_actions = num_joint(space)
        q = make_network(
            spec.obs,
            q_outputs(num_actions, head.width, self.dueling),
            hidden=self.q_hidden,
            keys=self.q_keys,
            split=partial(two_parts, num_levels=head.num_levels) if head.num_levels else None,
            **layers_of(self),
        )
        successor = greedy_successor(space, q, head, data, self.double)
        if self.munchausen:
            require_munchausen(self.value_head, self.n_step)
            successor = munchausen_successor(
                space, q, head, data, self.munchausen, self.munchausen_temperature
            )
        critic = critic_part(space, q, head, data, successor, self.target_period, self.optimizer)
        decide, init_decide = by_q_values(
            space,
            lambda outputs: head.expected(by_action(outputs["critic"], num_actions)),
            self.epsilon_spread,
        )
        return Agent(
            parts={"critic": critic},
            data=data,
            acts={"critic": "q"},
            decide=decide,
            rollout_length=self.rollout_length,
            init_decide=init_decide,
            normalize_observations=self.normalize_observations,
        )


dqn = Dqn


Successor = Callable[[Learned, ReplayBatch, jax.Array], tuple[jax.Array, jax.Array]]
"""(`Learned` of the part, batch, key) -> rewards ``[L, B]``, and outputs ``[L, B, width]`` at
``next_obs``.
"""


def greedy_successor(
    space: Discrete | MultiDiscrete, q: Network, head: ValueHead, data: Replay, double: bool
) -> Successor:
    """Return the function that computes Q-learning's targets: the target network's outputs of the
    best action.

    Args:
        space: Action space.
        q: Q-network.
        head: Representation of values.
        data: Data of the updates.
        double: Whether the online network selects the action.

    Returns:
        The function.
    """

    def successor(
        learned: Learned, batch: ReplayBatch, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        target = q.draw_noise(learned.target["q"], key, "target")
        chooser = q.draw_noise(learned.params["q"], key, "chooser") if double else target
        chosen_by = by_action(over_successors(data, q, chooser, batch, "critic"), num_joint(space))
        best = greedy_action(space, head.expected(chosen_by), batch.next_obs)
        sampled = with_levels(q, key, "target")
        following = by_action(
            over_successors(data, sampled, target, batch, "critic"), num_joint(space)
        )
        return batch.reward, of_action(following, best)

    return successor


def require_munchausen(value_head: ValueKind, n_step: int) -> None:
    """Check that other options support Munchausen DQN.

    Args:
        value_head: Representation of values.
        n_step: Steps whose rewards are summed.

    Raises:
        ValueError: They do not.
    """
    if value_head == "categorical":
        raise ValueError(
            "munchausen does not support value_head=categorical: write value_head=scalar, quantiles or implicit"
        )
    if n_step > 1:
        raise ValueError(
            f"munchausen adds to the reward of one step, and n_step={n_step}: write n_step=1"
        )


def munchausen_successor(
    space: Discrete | MultiDiscrete,
    q: Network,
    head: ValueHead,
    data: Replay,
    weight: float,
    temperature: float,
) -> Successor:
    """Return the function that computes Munchausen DQN's targets, with the target network's softmax
    policy.

    Args:
        space: Action space.
        q: Q-network.
        head: Representation of values.
        data: Data of the updates.
        weight: Weight α of the log-probability in the reward.
        temperature: Temperature τ of the policy.

    Returns:
        The function.

    Source: Vieillard et al. (2020), equation 2, arXiv 2007.14430.
    """

    def policy(outputs: jax.Array, obs: PyTree) -> jax.Array:
        return log_softmax_policy(head.expected(outputs), joint_mask(space, obs), temperature)

    def successor(
        learned: Learned, batch: ReplayBatch, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        target = q.draw_noise(learned.target["q"], key, "target")
        now = by_action(
            over_replay(data, q, target, batch, "critic", learning=False), num_joint(space)
        )
        log_policy = policy(now, learned_obs(data, q, batch))
        added = munchausen_reward(log_policy, number_of(space, batch.action), weight, temperature)
        sampled = with_levels(q, key, "target")
        following = by_action(
            over_successors(data, sampled, target, batch, "critic"), num_joint(space)
        )
        soft = soft_outputs(following, policy(following, batch.next_obs), temperature)
        return batch.reward + added, soft

    return successor


def critic_part(
    space: Discrete | MultiDiscrete,
    q: Network,
    head: ValueHead,
    data: Replay,
    successor: Successor,
    target_period: int,
    optimizer: OptimizerName,
) -> Part:
    """Build the Q-network's part: regression on the Bellman target, then a step of the target
    network.

    Args:
        space: Action space.
        q: Q-network.
        head: Representation of values.
        data: Data of the updates.
        successor: Computes rewards and next outputs of the Bellman target.
        target_period: Updates between two steps of the target network.
        optimizer: `OptimizerName`.

    Returns:
        The part.
    """

    def gradients(
        learned: Learned, peers: dict, batch: ReplayBatch, key: jax.Array, hyper: DqnHyper
    ) -> GradientResult:
        reward, following = successor(learned, batch, key)
        target_parts = reward, batch.bootstrap, following

        def loss_fn(params: PyTree) -> tuple[jax.Array, tuple[Metrics, jax.Array]]:
            params, sampled = q.draw_noise(params, key, "online"), with_levels(q, key, "online")
            outputs = by_action(
                over_replay(data, sampled, params, batch, "critic"), num_joint(space)
            )
            outputs = of_action(outputs, number_of(space, batch.action))
            step_losses, surprise = jax.vmap(jax.vmap(head.loss))(outputs, *target_parts)
            loss, q_mean = mean_loss(step_losses, batch), jnp.mean(head.expected(outputs))
            metrics = {"q_loss": loss, "q_mean": q_mean, "epsilon": jnp.asarray(hyper.epsilon)}
            return loss, (metrics, sequence_priority(surprise))

        grads, (metrics, priorities) = gradients_of(loss_fn, learned.params["q"])
        return GradientResult({"q": grads}, metrics, priorities=priorities)

    def target_rate(hyper: DqnHyper, updates: jax.Array) -> jax.Array:
        return jnp.where((updates + 1) % target_period == 0, hyper.tau, 0.0)

    return Part(
        {"q": q},
        gradients,
        {"q": make_optimizer(optimizer)},
        targets=("q",),
        target_rate=target_rate,
    )
