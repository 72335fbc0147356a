"""Proximal policy optimization, any actions (arXiv 1707.06347).

Policies are feed-forward or recurrent, and heed an ``action_mask`` in the observation.
Actor and critic have networks, optimizers and gradient-norm clips of their own and nothing passes between them
within a tick, so they can be updated apart without changing a number.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast import distributions, losses, returns
from jaxrl_fast.algorithm import (
    Agent,
    Algorithm,
    Experience,
    Part,
    PartState,
    Statistics,
    adam_init,
    adam_step,
    gradients_of,
    normalizes,
    require_actions,
    require_positive,
    scale_experience,
)
from jaxrl_fast.buffers import epoch_shards, shuffled_epochs
from jaxrl_fast.core import Batches, Box, Discrete, EnvSpec, Metrics, PyTree, Transition
from jaxrl_fast.frames import (
    Frames,
    HistoryState,
    frame_history,
    make_stacks,
    on_stacks,
    stacked,
    take_stacks,
    with_rows,
    without_oldest,
)
from jaxrl_fast.networks import Activation, Cnn, Network, Precision, action_mask, make_network


class PpoHyper(NamedTuple):
    """Rates; each a number, or a schedule such as ``Linear(3e-4, 0.0)``."""

    learning_rate: Any
    critic_learning_rate_ratio: Any
    discount: Any
    gae_lambda: Any
    clip_range: Any
    entropy_coef: Any
    max_grad_norm: Any
    reward_scale: Any


class PpoBatch(NamedTuple):
    """What a gradient update sees, ``[L, B, ...]``. ``carry`` is each network's memory before the step."""

    obs: PyTree
    first: jax.Array
    carry: PyTree
    raw_action: jax.Array
    log_prob: jax.Array
    advantage: jax.Array
    value_target: jax.Array


def ppo(
    *,
    learning_rate: Any = 3e-4,
    critic_learning_rate_ratio: Any = 1.0,
    discount: Any = 0.99,
    gae_lambda: Any = 0.95,
    clip_range: Any = 0.2,
    entropy_coef: Any = 0.01,
    max_grad_norm: Any = 0.5,
    reward_scale: Any = 1.0,
    rollout_length: int = 128,
    num_epochs: int = 4,
    num_minibatches: int = 4,
    normalize_observations: bool | None = None,
    normalize_rewards: bool = False,
    normalize_advantages: bool = True,
    policy_hidden: tuple[int, ...] = (64, 64),
    value_hidden: tuple[int, ...] = (64, 64),
    activation: Activation = "tanh",
    layer_norm: bool = False,
    recurrent_size: int = 0,
    cnn: Cnn = "auto",
    precision: Precision = "f32",
    policy_loss: Callable[..., jax.Array] = losses.clipped_surrogate,
    value_loss: Callable[..., jax.Array] = losses.squared_error,
) -> Algorithm:
    """PPO. A tick samples ``rollout_length`` steps in every environment and learns from them
    ``num_epochs * num_minibatches`` times.

    ``recurrent_size`` > 0 puts a GRU in front of both networks; minibatches are then whole sequences.
    ``normalize_observations`` defaults to true, except for images; those go through the convolutions named ``cnn``
    (`networks.make_network`).
    ``policy_loss(log_ratio, advantage, clip_range)`` and ``value_loss(value, target)`` take and give scalars.
    """
    hyper = PpoHyper(
        learning_rate, critic_learning_rate_ratio, discount, gae_lambda, clip_range, entropy_coef,
        max_grad_norm, reward_scale,
    )  # fmt: skip
    options: dict[str, Any] = dict(
        policy_hidden=tuple(policy_hidden), value_hidden=tuple(value_hidden), activation=activation,
        layer_norm=layer_norm, recurrent_size=recurrent_size, cnn=cnn, precision=precision,
    )  # fmt: skip
    sequence_length = rollout_length if recurrent_size else 1

    def build(spec: EnvSpec, num_envs: int) -> Agent:
        require_actions("ppo", spec, (Discrete, Box), "sac")
        require_positive(rollout_length=rollout_length, num_epochs=num_epochs, num_minibatches=num_minibatches)
        batch_size = _minibatch_steps(num_envs, rollout_length, num_minibatches, sequence_length)
        policy, value = _networks(stacked(spec), **options)
        explore, greedy = _acting(spec, policy, value, bool(recurrent_size))
        shards = epoch_shards(num_envs, rollout_length // sequence_length, num_minibatches)
        history = frame_history(frame_stack=spec.frame_stack, num_envs=num_envs, shards=shards)

        def shuffled(data: PpoBatch, key: jax.Array) -> Batches:
            return shuffled_epochs(
                data, key, num_envs=num_envs, sequence_length=sequence_length, num_epochs=num_epochs,
                num_minibatches=num_minibatches,
            )  # fmt: skip

        def to_batches(
            state: tuple[()], rollout: Transition, params: dict, statistics: Statistics, hyper: PpoHyper, key: jax.Array
        ) -> tuple[tuple[()], Batches]:
            data = scale_experience(rollout, statistics, hyper.reward_scale, normalize_rewards)
            return state, shuffled(targets(value, params["critic"], data, hyper), key)

        def to_batches_of_stacks(
            state: HistoryState, rollout: Transition, params: dict, statistics: Statistics, hyper: PpoHyper,
            key: jax.Array,
        ) -> tuple[HistoryState, Batches]:  # fmt: skip
            state, frames = history.add(state, rollout.obs, rollout.first)
            data = scale_experience(rollout, statistics, hyper.reward_scale, normalize_rewards)
            values = values_of_stacks(value, params["critic"], data, frames)
            return state, with_rows(
                shuffled(targets_of(data._replace(obs=frames.rows), *values, hyper), key), frames.table
            )

        agent = Agent(
            parts={
                "critic": critic_part(value, value_loss),
                "actor": actor_part(spec, policy, policy_loss, normalize_advantages),
            },
            experience=Experience(
                lambda example: history.init(example.obs), to_batches_of_stacks, ("critic",), shards, 0, take_stacks
            )
            if spec.frame_stack > 1
            else Experience(lambda example: (), to_batches, ("critic",), shards),
            explore=explore,
            greedy=greedy,
            initial_carry=lambda size: {"actor": policy.initial_carry(size), "critic": value.initial_carry(size)},
            acting_parts=("actor", "critic") if recurrent_size else ("actor",),
            rollout_length=rollout_length,
            updates_per_tick=num_epochs * num_minibatches,
            batch_size=batch_size,
            warmup_ticks=0,
            normalize_observations=normalizes(normalize_observations, spec),
            normalize_rewards=normalize_rewards,
        )
        return on_stacks(agent, spec)

    return Algorithm("ppo", hyper, options, build)


def targets(value: Network, params: PyTree, data: Transition, hyper: PpoHyper) -> PpoBatch:
    """Advantages and value targets of a rollout ``[T, E, ...]``, all with the critic that has not yet seen it."""

    def flat(tree: PyTree) -> PyTree:
        # Environments first: where they are divided among devices, merging the two axes then moves nothing.
        return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(1, -1, *x.shape[2:]), tree)

    def unflat(values: jax.Array) -> jax.Array:
        return values.reshape(data.reward.shape[::-1]).swapaxes(0, 1)

    carry = jax.tree.map(lambda x: x[0], flat(data.extras["carry"]["critic"]))
    values, carry = value.apply(params, carry, flat(data.obs), flat(data.first))
    next_values, _ = value.apply(params, carry, flat(data.next_obs), jnp.zeros((1, data.reward.size), bool))
    return targets_of(data, unflat(values), unflat(next_values), hyper)


def values_of_stacks(value: Network, params: PyTree, data: Transition, frames: Frames) -> tuple[jax.Array, jax.Array]:
    """The critic's values ``[T, E]`` of the stacks of a rollout and of those that follow, a time step after another:
    stacks of all steps at once would take more memory than the rollout."""

    def one_step(xs: tuple) -> tuple[jax.Array, jax.Array]:
        rows, next_frame, first, carry = xs
        stack = make_stacks(frames.table, rows[None])
        older = without_oldest(stack, next_frame.shape[-1])
        following = jnp.concatenate([older, next_frame[None]], axis=-1)
        values, carry = value.apply(params, carry, stack, first[None])
        next_values, _ = value.apply(params, carry, following, jnp.zeros_like(first)[None])
        return values[0, :, 0], next_values[0, :, 0]

    return jax.lax.map(one_step, (frames.rows, data.next_obs, data.first, data.extras["carry"]["critic"]))


def targets_of(data: Transition, values: jax.Array, next_values: jax.Array, hyper: PpoHyper) -> PpoBatch:
    """As `targets`, with the critic's values ``[T, E]`` of each observation and of its true successor."""
    discount = hyper.discount * (1.0 - data.terminated)
    done = data.terminated | data.truncated
    advantage = jax.vmap(returns.gae, in_axes=(1, 1, 1, 1, 1, None), out_axes=1)(
        data.reward, discount, values, next_values, done, hyper.gae_lambda
    )
    extras = data.extras
    return PpoBatch(
        data.obs, data.first, extras["carry"], extras["raw_action"], extras["log_prob"], advantage, advantage + values
    )


def actor_part(spec: EnvSpec, policy: Network, policy_loss: Callable, normalize_advantages: bool) -> Part:
    """The policy's update: clipped surrogate with an entropy bonus."""

    def init(key: jax.Array) -> PartState:
        params = policy.init(key)
        return PartState(params, adam_init(params))

    def gradients(
        state: PartState, peers: dict, batch: PpoBatch, key: jax.Array, hyper: PpoHyper
    ) -> tuple[PyTree, Metrics]:
        advantage = batch.advantage
        if normalize_advantages:
            advantage = (advantage - jnp.mean(advantage)) / (jnp.std(advantage) + 1e-8)

        def loss_fn(params: PyTree) -> tuple[jax.Array, Metrics]:
            outputs, _ = policy.apply(params, _first_step(batch.carry["actor"]), batch.obs, batch.first)
            dist = action_distribution(spec, outputs, batch.obs)
            log_ratio = distributions.log_prob(dist, batch.raw_action) - batch.log_prob
            surrogate = _elementwise(policy_loss, log_ratio, advantage, hyper.clip_range)
            entropy = jnp.mean(distributions.entropy(dist, key))
            metrics = {
                "policy_loss": jnp.mean(surrogate),
                "entropy": entropy,
                "approx_kl": jnp.mean(jnp.expm1(log_ratio) - log_ratio),
                "clip_fraction": jnp.mean(jnp.abs(jnp.expm1(log_ratio)) > hyper.clip_range, dtype=jnp.float32),
            }
            return jnp.mean(surrogate) - hyper.entropy_coef * entropy, metrics

        return gradients_of(loss_fn, state.params)

    def apply(state: PartState, grads: PyTree, hyper: PpoHyper) -> tuple[PartState, Metrics]:
        params, opt_state, metrics = adam_step(
            state.params, grads, state.opt_state,
            learning_rate=hyper.learning_rate, max_grad_norm=hyper.max_grad_norm,
        )  # fmt: skip
        return PartState(params, opt_state), metrics

    return Part(init, gradients, apply)


def critic_part(value: Network, value_loss: Callable) -> Part:
    """The value function's update: regression on the targets."""

    def init(key: jax.Array) -> PartState:
        params = value.init(key)
        return PartState(params, adam_init(params))

    def gradients(
        state: PartState, peers: dict, batch: PpoBatch, key: jax.Array, hyper: PpoHyper
    ) -> tuple[PyTree, Metrics]:
        def loss_fn(params: PyTree) -> tuple[jax.Array, Metrics]:
            outputs, _ = value.apply(params, _first_step(batch.carry["critic"]), batch.obs, batch.first)
            loss = jnp.mean(_elementwise(value_loss, outputs[..., 0], batch.value_target))
            return loss, {"value_loss": loss}

        return gradients_of(loss_fn, state.params)

    def apply(state: PartState, grads: PyTree, hyper: PpoHyper) -> tuple[PartState, Metrics]:
        params, opt_state, metrics = adam_step(
            state.params, grads, state.opt_state,
            learning_rate=hyper.learning_rate * hyper.critic_learning_rate_ratio, max_grad_norm=hyper.max_grad_norm,
        )  # fmt: skip
        return PartState(params, opt_state), metrics

    return Part(init, gradients, apply)


def action_distribution(spec: EnvSpec, outputs: jax.Array, obs: PyTree) -> distributions.Distribution:
    """The policy at network outputs ``[..., out]``."""
    if isinstance(spec.action, Discrete):
        return distributions.categorical(outputs, action_mask(obs))
    return distributions.tanh_normal(outputs)


def _networks(
    spec: EnvSpec, *, policy_hidden: tuple[int, ...], value_hidden: tuple[int, ...], **options: Any
) -> tuple[Network, Network]:
    outputs = distributions.num_outputs(spec.action)
    policy = make_network(spec.obs, outputs, hidden=policy_hidden, out_scale=0.01, **options)
    return policy, make_network(spec.obs, 1, hidden=value_hidden, out_scale=1.0, **options)


def _acting(spec: EnvSpec, policy: Network, value: Network, recurrent: bool) -> tuple[Callable, Callable]:
    def distribution(params: dict, carry: dict, obs: PyTree, first: jax.Array) -> tuple:
        sequence = jax.tree.map(lambda x: x[None], (obs, first))
        outputs, actor_carry = policy.apply(params["actor"], carry["actor"], *sequence)
        critic_carry = carry["critic"]
        if recurrent and "critic" in params:
            _, critic_carry = value.apply(params["critic"], critic_carry, *sequence)
        carry = {"actor": actor_carry, "critic": critic_carry}
        return action_distribution(spec, outputs[0], obs), carry

    def explore(params: dict, carry: dict, obs: PyTree, first: jax.Array, key: jax.Array) -> tuple:
        dist, new_carry = distribution(params, carry, obs, first)
        raw = distributions.sample(dist, key)
        extras = {"raw_action": raw, "log_prob": distributions.log_prob(dist, raw), "carry": carry}
        return distributions.to_action(spec.action, raw), new_carry, extras

    def greedy(params: dict, carry: dict, obs: PyTree, first: jax.Array, key: jax.Array) -> tuple:
        dist, carry = distribution(params, carry, obs, first)
        return distributions.to_action(spec.action, distributions.mode(dist)), carry

    return explore, greedy


def _minibatch_steps(num_envs: int, rollout_length: int, num_minibatches: int, sequence_length: int) -> int:
    """Steps per minibatch.

    Raises:
        ValueError: the rollout does not divide into the minibatches.
    """
    sequences = num_envs * rollout_length // sequence_length
    if sequences % num_minibatches:
        raise ValueError(
            f"num_envs={num_envs} with rollout_length={rollout_length} gives {sequences} sequences of "
            f"{sequence_length} steps, which algo.num_minibatches={num_minibatches} does not divide"
        )
    return sequences // num_minibatches * sequence_length


def _first_step(carry: PyTree) -> PyTree:
    return jax.tree.map(lambda x: x[0], carry)


def _elementwise(loss: Callable, x: jax.Array, y: jax.Array, *values: Any) -> jax.Array:
    """Apply a loss on scalars to arrays ``[L, B]``."""
    over_batch = jax.vmap(lambda a, b: loss(a, b, *values))
    return jax.vmap(over_batch)(x, y)
