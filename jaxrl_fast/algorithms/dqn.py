"""Deep Q-learning, for discrete actions (DQN, arXiv 1312.5602).

Options: double Q-learning (arXiv 1509.06461, equation 4), dueling heads (arXiv 1511.06581), n-step
returns, prioritized replay (arXiv 1511.05952), distributions of returns (C51, arXiv 1707.06887;
quantiles, arXiv 1710.10044; IQN, arXiv 1806.06923), noisy nets (arXiv 1706.10295): all of them
together are Rainbow (arXiv 1710.02298). Also Munchausen DQN (arXiv 2007.14430), and a share of
random actions for each environment (Ape-X, arXiv 1803.00933).
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import Discrete, EnvSpec, Metrics, MultiDiscrete, PyTree
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
    Algorithm,
    GradientResult,
    Learned,
    Part,
    Prioritize,
    Replay,
    ReplayBatch,
    WarmupActions,
    gradients_of,
    mean_loss,
    off_policy_sizes,
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
    SHARED,
    Activation,
    Cnn,
    MemoryKind,
    Network,
    Precision,
    Torso,
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
    checks_numbers,
    make_optimizer,
)


class DqnHyper(NamedTuple):
    """Hyper-parameters, each a number or a schedule such as ``Linear(1.0, 0.05)``.

    Attributes:
        learning_rate: Learning rate of all networks.
        discount: Discount factor γ per step.
        epsilon: Share of random actions.
        tau: Weight of the new params in the target network every ``target_period`` updates, 0 to 1.
        max_grad_norm: Norm to which the gradients of each network are clipped.
        reward_scale: Factor of the rewards.
        weight_decay: Weight decay of AdamW; 0 for other optimizers.
        importance_exponent: Exponent of the importance weights in prioritized replay, 0 (none) to 1
            (full).
    """

    learning_rate: Any
    discount: Any
    epsilon: Any
    tau: Any
    max_grad_norm: Any
    reward_scale: Any
    weight_decay: Any
    importance_exponent: Any


@checks_numbers()
def dqn(
    *,
    learning_rate: Rate0 = 3e-4,
    discount: Rate01 = 0.99,
    epsilon: Rate01 = FALLING_EPSILON,
    epsilon_spread: Annotated[float, FROM_0] = 0.0,
    tau: OptionalRate01 = None,
    max_grad_norm: Rate0 = 10.0,
    reward_scale: Rate0 = 1.0,
    weight_decay: Rate0 = 0.0,
    rollout_length: int = 4,
    updates_per_tick: int | None = None,
    batch_size: int = 128,
    buffer_size: int = 100_000,
    warmup_steps: int | None = None,
    warmup_actions: WarmupActions = "uniform",
    n_step: int = 1,
    sequence_length: int = 8,
    burn_in: int = 4,
    priority_exponent: Annotated[float, FROM_0_TO_1] = 0.0,
    importance_exponent: Rate01 = 0.4,
    target_period: int = 1,
    double: bool = True,
    dueling: bool = False,
    munchausen: Annotated[float, FROM_0_TO_1] = 0.0,
    munchausen_temperature: Annotated[float, ABOVE_0] = 0.03,
    noisy: bool = False,
    value_head: ValueKind = "scalar",
    num_atoms: int = 51,
    value_min: Annotated[float, ANY] = -10.0,
    value_max: Annotated[float, ANY] = 10.0,
    normalize_observations: bool | None = None,
    q_hidden: tuple[int, ...] = (128, 128),
    q_keys: tuple[str, ...] = (),
    activation: Activation = "relu",
    layer_norm: bool = False,
    memory: MemoryKind = "gru",
    recurrent_size: int = 0,
    network: Torso = "mlp",
    cnn: Cnn = "auto",
    optimizer: OptimizerName = "adam",
    precision: Precision = "f32",
    q_loss: Callable[[jax.Array, jax.Array], jax.Array] = losses.huber,
) -> Algorithm:
    """Build DQN.

    A tick samples ``rollout_length`` steps in every environment, then makes ``updates_per_tick``
    updates once ``warmup_steps`` steps are in the buffer.

    Args:
        learning_rate: Learning rate of all networks.
        discount: Discount factor γ per step.
        epsilon: Share of random actions. With ``noisy`` write 0, as published.
        epsilon_spread: The last environment's share is ``epsilon ** (1 + epsilon_spread)``; 0 for
            equal shares.
        tau: Weight of the new params in the target network every ``target_period`` updates, 0 to 1;
            None for 0.005, or 1 (a copy) with a period of several updates.
        max_grad_norm: Norm to which the gradients of each network are clipped.
        reward_scale: Factor of the rewards.
        weight_decay: Weight decay of AdamW; 0 for other optimizers.
        rollout_length: Steps of each environment in a tick.
        updates_per_tick: Gradient updates in a tick; None for one per sampled step, at most 64.
            Published is one per 4 steps; CartPole-v1 reaches 82 with it after 50,000 steps, else
            475.
        batch_size: Transitions in a minibatch, or sequences with a memory.
        buffer_size: Capacity of the replay buffer in steps over all environments.
        warmup_steps: Steps over all environments before the first update; None for 5,000, or a 20th
            of a short run.
        warmup_actions: Actions of these steps: uniformly random ones, or the policy's.
        n_step: Steps whose rewards are summed before bootstrapping.
        sequence_length: Steps of a training sequence with a memory.
        burn_in: Steps before each sequence that only compute the memory.
        priority_exponent: Exponent of the priorities in prioritized replay; 0 for uniform sampling.
        importance_exponent: Exponent of the importance weights in prioritized replay, 0 (none) to 1
            (full).
        target_period: Updates between two steps of the target network.
        double: Whether the online network selects the target's action (double Q-learning).
        dueling: Whether values and advantages have separate heads.
        munchausen: Weight α of the policy's log-probability in the reward (Munchausen DQN;
            published: 0.9); 0 for none. Targets then average over a softmax policy of the target
                network, so that ``double`` has no effect.
        munchausen_temperature: Temperature τ of that policy, in units of scaled rewards.
        noisy: Whether dense layers have trained noise. Each update draws one noise, each step one
            per environment; greedy actions have none.
        value_head: "scalar", "categorical" (a distribution over ``num_atoms`` returns), "quantiles"
            (``num_atoms`` of them), or "implicit" (quantiles at ``num_atoms`` random levels per
            step, IQN; actions maximize the mean over 32 fixed levels).
        num_atoms: Atoms or quantiles of a distribution of returns. For "implicit" write fewer than
            51, such as 8.
        value_min: Smallest return of a categorical head.
        value_max: Largest return of a categorical head.
        normalize_observations: Whether to normalize observations; None for all but images and
            grids.
        q_hidden: Sizes of the Q-network's hidden layers.
        q_keys: Entries of a dictionary observation that the network reads; empty for all.
        activation: Activation of the hidden layers.
        layer_norm: Whether to normalize the hidden layers.
        memory: Kind of the memory: "gru", "lstm", "mingru", "lru", "gtrxl-64x2" (window, layers),
            or your own function (`make_memory`).
        recurrent_size: Size of the memory before the hidden layers (DRQN); 0 for none.
        network: Torso of the networks: "mlp", "residual", "simba", or your own function
            (`own_torso`).
        cnn: Convolutions for images (`make_network`).
        optimizer: ``adam``, ``adamw``, ``radam`` or ``rmsprop``; with constants
            ``adam:epsilon:beta1:beta2`` or ``rmsprop:epsilon:decay``.
        precision: "f32", or "bf16" for dense layers and convolutions.
        q_loss: ``(q, target) -> loss`` of a "scalar" head, on scalars.

    Returns:
        The algorithm.
    """
    given = locals()
    weight = (1.0 if target_period > 1 else 0.005) if tau is None else tau
    rates = (
        learning_rate,
        discount,
        epsilon,
        weight,
        max_grad_norm,
        reward_scale,
        weight_decay,
        importance_exponent,
    )
    hyper = DqnHyper(*rates)
    shared: dict[str, Any] = {name: given[name] for name in SHARED} | dict(noisy=noisy)
    options = shared | dict(
        q_hidden=tuple(q_hidden), q_keys=tuple(q_keys), dueling=dueling, optimizer=optimizer
    )
    options |= dict(
        value_head=value_head, num_atoms=num_atoms, value_min=value_min, value_max=value_max
    )
    sizes = off_policy_sizes(rollout_length, updates_per_tick, warmup_steps)

    def build(spec: EnvSpec, num_envs: int) -> Agent:
        space = require_actions("dqn", spec, (Discrete, MultiDiscrete), "sac")
        require_positive(target_period=target_period)
        check_optimizer(optimizer, weight_decay)
        updates, warmup = sizes(num_envs).values()
        data = Replay(buffer_size, batch_size, updates, warmup, n_step, sequence_length, burn_in)
        data = data._replace(warmup_actions=warmup_actions)
        priorities = Prioritize(
            "critic", priority_exponent, lambda hyper: hyper.importance_exponent
        )
        data = data._replace(prioritize=priorities if priority_exponent else None)
        head = make_value_head(value_head, num_atoms, (value_min, value_max), q_loss)
        num_actions = num_joint(space)
        seen: dict[str, Any] = dict(hidden=q_hidden, keys=q_keys)
        seen |= dict(
            split=partial(two_parts, num_levels=head.num_levels) if head.num_levels else None
        )
        q = make_network(spec.obs, q_outputs(num_actions, head.width, dueling), **seen, **shared)
        successor = greedy_successor(space, q, head, data, double)
        if munchausen:
            require_munchausen(value_head, n_step)
            successor = munchausen_successor(
                space, q, head, data, munchausen, munchausen_temperature
            )
        parts = {"critic": critic_part(space, q, head, data, successor, target_period, optimizer)}
        decide, init_decide = by_q_values(
            space,
            lambda outputs: head.expected(by_action(outputs["critic"], num_actions)),
            epsilon_spread,
        )
        return Agent(
            parts,
            data,
            acts={"critic": "q"},
            decide=decide,
            rollout_length=rollout_length,
            init_decide=init_decide,
            normalize_observations=normalize_observations,
        )

    return Algorithm("dqn", hyper, options, build, sizes)


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

    def successor(own: Learned, batch: ReplayBatch, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        target = q.draw_noise(own.target["q"], key, "target")
        chooser = q.draw_noise(own.params["q"], key, "chooser") if double else target
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

    def successor(own: Learned, batch: ReplayBatch, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        target = q.draw_noise(own.target["q"], key, "target")
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
        own: Learned, peers: dict, batch: ReplayBatch, key: jax.Array, hyper: DqnHyper
    ) -> GradientResult:
        reward, following = successor(own, batch, key)
        given = reward, batch.bootstrap, following

        def loss_fn(params: PyTree) -> tuple[jax.Array, tuple[Metrics, jax.Array]]:
            params, sampled = q.draw_noise(params, key, "online"), with_levels(q, key, "online")
            outputs = by_action(
                over_replay(data, sampled, params, batch, "critic"), num_joint(space)
            )
            outputs = of_action(outputs, number_of(space, batch.action))
            found, surprise = jax.vmap(jax.vmap(head.loss))(outputs, *given)
            loss, q_mean = mean_loss(found, batch), jnp.mean(head.expected(outputs))
            metrics = {"q_loss": loss, "q_mean": q_mean, "epsilon": jnp.asarray(hyper.epsilon)}
            return loss, (metrics, sequence_priority(surprise))

        grads, (metrics, priorities) = gradients_of(loss_fn, own.params["q"])
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
