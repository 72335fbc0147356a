"""Behaviour cloning: a policy that imitates recorded actions."""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import Actions, Box, EnvSpec, Metrics, Number, PyTree
from jaxrl_fast.learning.acting import policy_of, unit_policy
from jaxrl_fast.learning.algorithm import (
    Agent,
    Algorithm,
    Decide,
    GradientResult,
    Learned,
    Part,
    Replay,
    ReplayBatch,
    gradients_of,
    off_policy_sizes,
    over_replay,
)
from jaxrl_fast.learning.critics import imitation_loss, learned_obs
from jaxrl_fast.networks.network import (
    Activation,
    Cnn,
    MemoryKind,
    Network,
    Precision,
    Torso,
    make_network,
)
from jaxrl_fast.numerics import distributions
from jaxrl_fast.numerics.optimizers import (
    OptimizerName,
    Rate0,
    Rate01,
    check_optimizer,
    checks_numbers,
    make_optimizer,
)


class BcHyper(NamedTuple):
    """Hyper-parameters, each a number or a schedule such as ``Linear(3e-4, 0.0)``.

    Attributes:
        learning_rate: Learning rate.
        discount: Unused, since no return is estimated.
        max_grad_norm: Norm to which the gradient is clipped.
        reward_scale: Unused.
        weight_decay: Weight decay of AdamW; 0 for other optimizers.
    """

    learning_rate: Any
    discount: Any
    max_grad_norm: Any
    reward_scale: Any
    weight_decay: Any


@checks_numbers()
def bc(
    *,
    learning_rate: Rate0 = 3e-4,
    discount: Rate01 = 0.99,
    max_grad_norm: Rate0 = 1e6,
    reward_scale: Rate0 = 1.0,
    weight_decay: Rate0 = 0.0,
    rollout_length: int = 1,
    updates_per_tick: int | None = None,
    batch_size: int = 256,
    sequence_length: int = 8,
    burn_in: int = 4,
    normalize_observations: bool | None = None,
    policy_hidden: tuple[int, ...] = (256, 256),
    policy_dropout: Annotated[float, Number(0, 0.9)] = 0.0,
    policy_keys: tuple[str, ...] = (),
    activation: Activation = "relu",
    memory: MemoryKind = "gru",
    recurrent_size: int = 0,
    network: Torso = "mlp",
    cnn: Cnn = "auto",
    optimizer: OptimizerName = "adam",
    precision: Precision = "f32",
) -> Algorithm:
    """Build behaviour cloning; it needs ``data``, and never steps the environment.

    Args:
        learning_rate: Learning rate.
        discount: Unused, since no return is estimated.
        max_grad_norm: Norm to which the gradient is clipped.
        reward_scale: Unused.
        weight_decay: Weight decay of AdamW; 0 for other optimizers.
        rollout_length: Steps in a tick for each of ``num_envs``.
        updates_per_tick: Gradient updates in a tick; None for one per step, at most 64.
        batch_size: Steps in a minibatch, or sequences with a memory.
        sequence_length: Steps of a training sequence with a memory.
        burn_in: Steps before each sequence that only compute the memory.
        normalize_observations: Whether to normalize observations; None for all but images and
            grids.
        policy_hidden: Sizes of the policy's hidden layers.
        policy_dropout: Share of the outputs of the policy's hidden layers that an update sets to 0.
        policy_keys: Entries of a dictionary observation that the policy reads; empty for all.
        activation: Activation of the hidden layers.
        memory: Kind of the memory: "gru", "lstm", "mingru", "lru", "gtrxl-64x2" (window, layers),
            or your own function (`make_memory`).
        recurrent_size: Size of the memory before the hidden layers; 0 for none.
        network: Torso of the network: "mlp", "residual", "simba", or your own function
            (`own_torso`).
        cnn: Convolutions for images (`make_network`).
        optimizer: ``adam``, ``adamw``, ``radam`` or ``rmsprop``; with constants
            ``adam:epsilon:beta1:beta2`` or ``rmsprop:epsilon:decay``.
        precision: "f32", or "bf16" for dense layers and convolutions.

    Returns:
        The algorithm.

    Source: Pomerleau (1988), ALVINN, NeurIPS 1.
    """
    hyper = BcHyper(learning_rate, discount, max_grad_norm, reward_scale, weight_decay)
    shared: dict[str, Any] = dict(
        activation=activation, network=network, cnn=cnn, precision=precision
    )
    shared |= dict(memory=memory, recurrent_size=recurrent_size)
    options = dict(policy_hidden=tuple(policy_hidden), policy_keys=tuple(policy_keys), **shared)
    options |= dict(policy_dropout=policy_dropout, optimizer=optimizer)
    per_tick = off_policy_sizes(rollout_length, updates_per_tick, 0)

    def sizes(num_envs: int, total_steps: int | None = None) -> dict[str, int]:
        return {"updates_per_tick": per_tick(num_envs, total_steps)["updates_per_tick"]}

    def build(spec: EnvSpec, num_envs: int) -> Agent:
        check_optimizer(optimizer, weight_decay)
        space, updates = spec.action, sizes(num_envs)["updates_per_tick"]
        length = (burn_in + sequence_length) * 2 if recurrent_size else 2
        capacity = max(batch_size, length * num_envs, rollout_length * num_envs)
        data = Replay(capacity, batch_size, updates, 0, 1, sequence_length, burn_in)
        size = space.low.size if isinstance(space, Box) else distributions.num_outputs(space)
        own = dict(
            hidden=options["policy_hidden"], keys=options["policy_keys"], dropout=policy_dropout
        )
        policy = make_network(spec.obs, size, out_scale=0.01, **own, **shared)
        return Agent(
            parts={"actor": actor_part(space, policy, data, optimizer)},
            data=data,
            acts={"actor": "policy"},
            decide=greedy_decide(space),
            rollout_length=rollout_length,
            normalize_observations=normalize_observations,
        )

    return Algorithm("bc", hyper, options, build, sizes, needs_data=True)


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
        own: Learned, peers: dict[str, Learned], batch: ReplayBatch, key: jax.Array, hyper: BcHyper
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

        grads, metrics = gradients_of(loss_fn, own.params["policy"])
        return GradientResult({"policy": grads}, metrics)

    return Part({"policy": policy}, gradients, {"policy": make_optimizer(optimizer)})
