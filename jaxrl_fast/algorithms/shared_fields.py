"""Fields that several algorithms declare, each once.

An algorithm lists the classes whose fields it has. In help and files, the last class comes first,
and the algorithm's separate fields come last. A subclass that declares a field again changes its
default, and its text if it has one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from jaxrl_fast.core import Number, PyTree
from jaxrl_fast.fields import types_of
from jaxrl_fast.learning.algorithm import (
    DeclaredAlgorithm,
    Replay,
    WarmupActions,
    off_policy_sizes,
    on_policy_sizes,
)
from jaxrl_fast.learning.critics import prioritize_critic
from jaxrl_fast.networks.network import (
    SHARED,
    Activation,
    Cnn,
    MemoryKind,
    Network,
    Precision,
    Torso,
    ensemble,
    make_network,
)
from jaxrl_fast.numerics.optimizers import FROM_0_TO_1, OptimizerName, Rate0, Rate01

Dropout = Annotated[float, Number(0, 0.9)]
"""Share of the outputs of a layer that an update sets to 0."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Rates(DeclaredAlgorithm):
    """Rates of all algorithms."""

    learning_rate: Rate0 = 3e-4
    """Learning rate of all networks."""
    discount: Rate01 = 0.99
    """Discount factor γ per step."""
    max_grad_norm: Rate0 = 1e6
    """Norm to which the gradients of each network are clipped."""
    reward_scale: Rate0 = 1.0
    """Factor of the rewards."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TargetRates(Rates):
    """Rates of algorithms with target networks."""

    tau: Rate01 = 0.005
    """Weight of the new params in target networks at each update, 0 to 1."""


@dataclass(frozen=True, kw_only=True, eq=False)
class OptimizerFields(DeclaredAlgorithm):
    """The optimizer of all networks."""

    optimizer: OptimizerName = "adam"
    """``adam``, ``adamw``, ``radam`` or ``rmsprop``; with constants ``adam:epsilon:beta1:beta2`` or
    ``rmsprop:epsilon:decay``.
    """
    weight_decay: Rate0 = 0.0
    """Weight decay of AdamW; 0 for other optimizers."""


@dataclass(frozen=True, kw_only=True, eq=False)
class InputFields(DeclaredAlgorithm):
    """How all networks of an algorithm read images, and their precision."""

    cnn: Cnn = "auto"
    """Convolutions for images (`make_network`)."""
    precision: Precision = "f32"
    """Precision of dense layers and convolutions: "f32" or "bf16"."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerFields(InputFields):
    """Hidden layers of all networks."""

    activation: Activation = "relu"
    """Activation of the hidden layers."""
    network: Torso = "mlp"
    """Torso of the networks: "mlp", "residual", "simba", or your own function (`own_torso`)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryFields(LayerFields):
    """Hidden layers of all networks, with a memory before them."""

    memory: MemoryKind = "gru"
    """Kind of the memory: "gru", "lstm", "mingru", "lru", "gtrxl-64x2" (window, layers), or your
    own function (`make_memory`).
    """
    recurrent_size: int = 0
    """Size of the memory before the hidden layers; 0 for none. On-policy minibatches are then whole
    sequences.
    """


@dataclass(frozen=True, kw_only=True, eq=False)
class NormedFields(DeclaredAlgorithm):
    """Normalization of the hidden layers of all networks."""

    layer_norm: bool = False
    """Whether to normalize the hidden layers."""


@dataclass(frozen=True, kw_only=True, eq=False)
class QFields(DeclaredAlgorithm):
    """The network of Q-values."""

    q_hidden: tuple[int, ...] = (128, 128)
    """Sizes of the Q-network's hidden layers."""
    q_keys: tuple[str, ...] = ()
    """Entries of a dictionary observation that the network reads; empty for all."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ObservationFields(DeclaredAlgorithm):
    """Normalization of observations."""

    normalize_observations: bool | None = None
    """Whether to normalize observations; None for all but images and grids."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PolicyFields(DeclaredAlgorithm):
    """The policy's network."""

    policy_hidden: tuple[int, ...] = (256, 256)
    """Sizes of the policy's hidden layers."""
    policy_keys: tuple[str, ...] = ()
    """Entries of a dictionary observation that the policy reads; empty for all."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CriticFields(DeclaredAlgorithm):
    """The critics' networks."""

    critic_hidden: tuple[int, ...] = (256, 256)
    """Sizes of the critics' hidden layers."""
    critic_keys: tuple[str, ...] = ()
    """Entries of a dictionary observation that the critic reads; empty for all."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CriticNormFields(CriticFields):
    """The critics' networks, whose layers may be normalized."""

    critic_layer_norm: bool = False
    """Whether to normalize the critics' hidden layers."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ActorCriticFields(CriticNormFields, PolicyFields, LayerFields):
    """The networks of a policy and its critics."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EnsembleFields(DeclaredAlgorithm):
    """More critics than two, as in REDQ (arXiv 2101.05982) and DroQ (arXiv 2110.02034)."""

    num_critics: int = 2
    """Number of Q-networks."""
    target_critics: int | None = None
    """Number of Q-networks whose minimum is the target, drawn anew in every update; None for all.
    """
    critic_dropout: Dropout = 0.0
    """Share of the outputs of the critics' hidden layers that an update sets to 0; the policy then
    maximizes the critics' mean.
    """


@dataclass(frozen=True, kw_only=True, eq=False)
class UpdateFields(DeclaredAlgorithm):
    """Updates of an off-policy algorithm."""

    rollout_length: int = 1
    """Steps of each environment in a tick."""
    updates_per_tick: int | None = None
    """Gradient updates in a tick; None for one per sampled step, at most 64."""
    batch_size: int = 256
    """Transitions in a minibatch, or sequences with a memory."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ReplayFields(UpdateFields):
    """Replay of an off-policy algorithm."""

    buffer_size: int = 1_000_000
    """Capacity of the replay buffer in steps over all environments."""
    warmup_steps: int | None = None
    """Steps over all environments before the first update; None for 5,000, or a 20th of a short
    run.
    """
    n_step: int = 1
    """Steps whose rewards are summed before bootstrapping."""


@dataclass(frozen=True, kw_only=True, eq=False)
class WarmupFields(ReplayFields):
    """Replay, with a choice of the actions before the first update."""

    warmup_actions: WarmupActions = "uniform"
    """Actions of these steps: uniformly random ones, or the policy's."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SequenceFields(DeclaredAlgorithm):
    """Sequences of replay, with a memory."""

    sequence_length: int = 8
    """Steps of a training sequence with a memory."""
    burn_in: int = 4
    """Steps before each sequence that only compute the memory."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PriorityFields(DeclaredAlgorithm):
    """Prioritized replay (arXiv 1511.05952)."""

    priority_exponent: Annotated[float, FROM_0_TO_1] = 0.0
    """Exponent of the priorities in prioritized replay; 0 for uniform sampling."""
    importance_exponent: Rate01 = 0.4
    """Exponent of the importance weights in prioritized replay, 0 (none) to 1 (full)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RolloutFields(DeclaredAlgorithm):
    """Rollouts of an on-policy algorithm."""

    rollout_length: int | None = None
    """Steps of each environment in a tick; None for a length that depends on ``num_envs``
    (`default_rollout`).
    """
    num_minibatches: int | None = None
    """Minibatches in an epoch; None for a power of two that depends on ``num_envs``
    (`on_policy_sizes`).
    """


@dataclass(frozen=True, kw_only=True, eq=False)
class EpochFields(RolloutFields):
    """Rollouts that are used several times."""

    num_epochs: int = 10
    """Passes over a rollout."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AgentFields(DeclaredAlgorithm):
    """Networks of several agents."""

    share_parameters: bool = True
    """Whether agents share networks, which read the agent's number, or have separate networks and
    optimizers.
    """


def layers_of(declared: DeclaredAlgorithm) -> dict[str, Any]:
    """Return the fields that all networks of an algorithm share.

    Args:
        declared: Algorithm.

    Returns:
        Arguments of `make_network`.
    """
    taken = types_of(type(declared))
    names = (name for name in (*SHARED, "orthogonal", "noisy") if name in taken)
    return {name: getattr(declared, name) for name in names}


def same_fields(declared: DeclaredAlgorithm, other: type) -> dict[str, Any]:
    """Return the fields of an algorithm that another one has, too.

    Args:
        declared: Algorithm.
        other: Class of the other algorithm.

    Returns:
        Values by field.
    """
    names = types_of(type(declared)).keys() & types_of(other).keys()
    return {name: getattr(declared, name) for name in names}


def updates_of(declared: UpdateFields, num_envs: int) -> int:
    """Return the updates of a tick.

    Args:
        declared: Off-policy algorithm.
        num_envs: Number of environments.

    Returns:
        The number.
    """
    sizes = off_policy_sizes(declared.rollout_length, declared.updates_per_tick, 0)
    return sizes(num_envs)["updates_per_tick"]


def sizes_of_replay(
    declared: ReplayFields,
    num_envs: int,
    total_steps: int | None = None,
    *,
    steps_per_update: int = 1,
) -> dict[str, int]:
    """Compute the updates of a tick and the warm-up, unless they were given.

    Args:
        declared: Off-policy algorithm.
        num_envs: Number of environments.
        total_steps: Environment steps of the run; None for a long one.
        steps_per_update: Sampled steps of a tick per default update.

    Returns:
        ``updates_per_tick`` and ``warmup_steps``.
    """
    sizes = off_policy_sizes(
        declared.rollout_length,
        declared.updates_per_tick,
        declared.warmup_steps,
        steps_per_update=steps_per_update,
    )
    return sizes(num_envs, total_steps)


def sizes_of_rollout(
    declared: RolloutFields,
    num_envs: int,
    total_steps: int | None = None,
    *,
    steps: int,
    least: int,
    whole_rollouts: bool,
) -> dict[str, int]:
    """Compute the rollout's length and the minibatches, unless they were given.

    Args:
        declared: On-policy algorithm.
        num_envs: Number of environments.
        total_steps: Environment steps of the run; None for a short one.
        steps: Preferred number of steps in a minibatch.
        least: Number of minibatches that is used even with fewer steps.
        whole_rollouts: Whether a sequence is a whole rollout instead of a single step.

    Returns:
        ``rollout_length`` and ``num_minibatches``.
    """
    sizes = on_policy_sizes(
        declared.rollout_length,
        declared.num_minibatches,
        steps=steps,
        least=least,
        whole_rollouts=whole_rollouts,
    )
    return sizes(num_envs, total_steps)


def replay_of(declared: ReplayFields, num_envs: int, *, steps_per_update: int = 1) -> Replay:
    """Return the data of an off-policy algorithm's updates.

    Args:
        declared: Algorithm.
        num_envs: Number of environments.
        steps_per_update: Sampled steps of a tick per default update.

    Returns:
        The data, with what the algorithm declares of sequences, priorities and warm-up.
    """
    sizes = sizes_of_replay(declared, num_envs, steps_per_update=steps_per_update)
    replay = Replay(
        capacity=declared.buffer_size,
        batch_size=declared.batch_size,
        num_batches=sizes["updates_per_tick"],
        warmup_steps=sizes["warmup_steps"],
        n_step=declared.n_step,
    )
    if isinstance(declared, SequenceFields):
        replay = replay._replace(sequence_length=declared.sequence_length, burn_in=declared.burn_in)
    if isinstance(declared, PriorityFields):
        replay = replay._replace(prioritize=prioritize_critic(declared.priority_exponent))
    if isinstance(declared, WarmupFields):
        replay = replay._replace(warmup_actions=declared.warmup_actions)
    return replay


def policy_and_critics(
    declared: ActorCriticFields,
    obs_spec: PyTree,
    *,
    policy_size: int,
    q_size: int = 1,
    action_shape: tuple[int, ...] | None = None,
    num_critics: int = 2,
    critic_dropout: float = 0.0,
    split: Callable[..., Any] | None = None,
) -> tuple[Network, Network]:
    """Build the policy and an ensemble of Q-networks.

    Args:
        declared: Algorithm, with the sizes of the networks.
        obs_spec: Shapes of one observation.
        policy_size: Outputs of the policy.
        q_size: Outputs of each Q-network.
        action_shape: Shape of the action that Q-networks take; None for no action.
        num_critics: Number of Q-networks.
        critic_dropout: Share of the outputs of their hidden layers that an update sets to 0.
        split: Makes the policy's last layer, as in `make_network`; None for a dense one.

    Returns:
        The policy and the ensemble.
    """
    layers = layers_of(declared)
    policy = make_network(
        obs_spec,
        policy_size,
        hidden=declared.policy_hidden,
        keys=declared.policy_keys,
        out_scale=0.01,
        split=split,
        **layers,
    )
    critic = make_network(
        obs_spec,
        q_size,
        hidden=declared.critic_hidden,
        keys=declared.critic_keys,
        layer_norm=declared.critic_layer_norm,
        action_shape=action_shape,
        dropout=critic_dropout,
        **layers,
    )
    return policy, ensemble(critic, num_critics)
