"""Soft actor-critic, for continuous actions (arXiv 1812.05905).

Two parts: the critic (two Q-networks and their slow targets) and the actor (the policy and the temperature).
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

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
from jaxrl_fast.buffers import Buffer, ring_buffer
from jaxrl_fast.core import Batches, Box, EnvSpec, Metrics, PyTree, Transition
from jaxrl_fast.frame_buffer import frame_buffer
from jaxrl_fast.frames import on_stacks, stacked
from jaxrl_fast.networks import Activation, Cnn, Network, Precision, is_image, make_network


class SacHyper(NamedTuple):
    """Rates; each a number, or a schedule such as ``Linear(3e-4, 0.0)``."""

    learning_rate: Any
    temperature_learning_rate: Any
    discount: Any
    tau: Any
    target_entropy_per_action: Any
    max_grad_norm: Any
    reward_scale: Any


class ActorParams(NamedTuple):
    """What the critic reads of the actor part."""

    policy: PyTree
    log_temperature: jax.Array


def sac(
    *,
    learning_rate: Any = 3e-4,
    temperature_learning_rate: Any = 3e-4,
    discount: Any = 0.99,
    tau: Any = 0.005,
    target_entropy_per_action: Any = -0.5,
    max_grad_norm: Any = 1e6,
    reward_scale: Any = 1.0,
    rollout_length: int = 1,
    updates_per_tick: int = 64,
    batch_size: int = 256,
    buffer_size: int = 1_000_000,
    warmup_steps: int = 5_000,
    n_step: int = 1,
    normalize_observations: bool | None = None,
    policy_hidden: tuple[int, ...] = (256, 256),
    critic_hidden: tuple[int, ...] = (256, 256),
    activation: Activation = "relu",
    critic_layer_norm: bool = False,
    initial_temperature: float = 1.0,
    cnn: Cnn = "auto",
    precision: Precision = "f32",
    critic_loss: Callable[[jax.Array, jax.Array], jax.Array] = losses.squared_error,
) -> Algorithm:
    """SAC. A tick samples ``rollout_length`` steps in every environment, then makes ``updates_per_tick`` updates
    of ``batch_size`` transitions each, once ``warmup_steps`` steps over all environments are in the buffer.

    ``normalize_observations`` defaults to true, except for images; those go through the convolutions named ``cnn``
    (`networks.make_network`) and are stored once each (`frame_buffer`). ``critic_loss(q, target)`` takes and gives
    scalars.
    """
    hyper = SacHyper(
        learning_rate, temperature_learning_rate, discount, tau, target_entropy_per_action, max_grad_norm, reward_scale
    )
    options: dict[str, Any] = dict(
        policy_hidden=tuple(policy_hidden), critic_hidden=tuple(critic_hidden), activation=activation,
        critic_layer_norm=critic_layer_norm, cnn=cnn, precision=precision,
    )  # fmt: skip

    def build(spec: EnvSpec, num_envs: int) -> Agent:
        require_actions("sac", spec, (Box,), "ppo")
        require_positive(
            rollout_length=rollout_length, updates_per_tick=updates_per_tick, batch_size=batch_size, n_step=n_step
        )
        if not 0.0 < initial_temperature < math.inf:
            raise ValueError(f"initial_temperature={initial_temperature}: write a positive number, such as 1.0")
        steps_per_tick = num_envs * rollout_length
        if warmup_steps > buffer_size:
            raise ValueError(f"warmup_steps={warmup_steps} exceeds buffer_size={buffer_size}: write a smaller warm-up")
        if rollout_length > buffer_size // num_envs:
            raise ValueError(
                f"rollout_length={rollout_length} in {num_envs} environments does not fit buffer_size={buffer_size}: "
                f"write a buffer_size of at least {steps_per_tick}"
            )
        seen = stacked(spec)
        buffer = _buffer(
            spec, capacity=buffer_size, num_envs=num_envs, batch_size=batch_size, num_batches=updates_per_tick,
            n_step=n_step,
        )  # fmt: skip
        policy, critic = _networks(seen, **options)
        explore, greedy = _acting(spec, policy)

        def to_batches(
            state: PyTree, rollout: Transition, params: dict, statistics: Statistics, hyper: SacHyper, key: jax.Array
        ) -> tuple[PyTree, Batches]:
            state = buffer.add(state, rollout)
            batches = buffer.sample(state, key)
            return state, batches._replace(data=scale_experience(batches.data, statistics, hyper.reward_scale, False))

        agent = Agent(
            parts={
                "critic": critic_part(spec, policy, critic, critic_loss),
                "actor": actor_part(spec, policy, critic, initial_temperature),
            },
            experience=Experience(
                buffer.init,
                to_batches,
                shards=buffer.shards,
                state_axes=buffer.state_axes,
                take=buffer.take,
                metrics=buffer.metrics,
            ),
            explore=explore,
            greedy=greedy,
            initial_carry=lambda size: (),
            acting_parts=("actor",),
            rollout_length=rollout_length,
            updates_per_tick=updates_per_tick,
            batch_size=batch_size,
            warmup_ticks=max(-(-warmup_steps // steps_per_tick), -(-n_step // rollout_length)) - 1,
            normalize_observations=normalizes(normalize_observations, spec),
            normalize_rewards=False,
        )
        return on_stacks(agent, spec)

    return Algorithm("sac", hyper, options, build)


def _buffer(spec: EnvSpec, **sizes: int) -> Buffer:
    """Replay, in which an observation that is an image is kept once."""
    if isinstance(spec.obs, jax.ShapeDtypeStruct) and is_image(spec.obs):
        return frame_buffer(frame_stack=spec.frame_stack, **sizes)
    return ring_buffer(**sizes)


def critic_part(spec: EnvSpec, policy: Network, critic: Network, critic_loss: Callable) -> Part:
    """Both Q-networks: regression on the soft Bellman target, then a step of the slow targets."""

    def init(key: jax.Array) -> PartState:
        params = tuple(critic.init(k) for k in jax.random.split(key))
        return PartState(params, adam_init(params), jax.tree.map(jnp.copy, params))

    def gradients(
        state: PartState, peers: dict, batch: Transition, key: jax.Array, hyper: SacHyper
    ) -> tuple[PyTree, Metrics]:
        actor: ActorParams = peers["actor"]
        reward, bootstrap, next_obs = _n_step(batch, hyper.discount)
        dist = _policy(policy, actor.policy, next_obs)
        raw = distributions.sample(dist, key)
        next_q = q_values(critic, state.target, next_obs, jnp.tanh(raw))
        target = jax.vmap(losses.soft_target, in_axes=(0, 0, 1, 0, None))(
            reward, bootstrap, next_q, distributions.log_prob(dist, raw), jnp.exp(actor.log_temperature)
        )
        obs, action = _first_step((batch.obs, batch.action))

        def loss_fn(params: PyTree) -> tuple[jax.Array, Metrics]:
            q = q_values(critic, params, obs, distributions.to_unit(_box(spec), action))
            over_batch = jax.vmap(critic_loss)
            loss = sum((jnp.mean(over_batch(values, target)) for values in q), start=jnp.zeros(()))
            return loss, {"critic_loss": loss, "q_mean": jnp.mean(q)}

        return gradients_of(loss_fn, state.params)

    def apply(state: PartState, grads: PyTree, hyper: SacHyper) -> tuple[PartState, Metrics]:
        params, opt_state, metrics = adam_step(
            state.params, grads, state.opt_state,
            learning_rate=hyper.learning_rate, max_grad_norm=hyper.max_grad_norm,
        )  # fmt: skip
        slow = optax.incremental_update(params, state.target, hyper.tau)
        return PartState(params, opt_state, slow), metrics

    return Part(init, gradients, apply, reads=("actor",))


def actor_part(spec: EnvSpec, policy: Network, critic: Network, initial_temperature: float) -> Part:
    """The policy, against the critic it is given, and the temperature, against the target entropy."""
    target_entropy_sum = _box(spec).low.size

    def init(key: jax.Array) -> PartState:
        params = ActorParams(policy.init(key), jnp.log(jnp.float32(initial_temperature)))
        return PartState(params, (adam_init(params.policy), adam_init(params.log_temperature)))

    def gradients(
        state: PartState, peers: dict, batch: Transition, key: jax.Array, hyper: SacHyper
    ) -> tuple[ActorParams, Metrics]:
        obs = _first_step(batch.obs)
        temperature = jnp.exp(state.params.log_temperature)

        def policy_loss(params: PyTree) -> tuple[jax.Array, Metrics]:
            dist = _policy(policy, params, obs)
            raw = distributions.sample(dist, key)
            log_prob = distributions.log_prob(dist, raw)
            q = q_values(critic, peers["critic"], obs, jnp.tanh(raw))
            loss = jnp.mean(jax.vmap(losses.soft_policy, in_axes=(1, 0, None))(q, log_prob, temperature))
            return loss, {"policy_loss": loss, "entropy": -jnp.mean(log_prob)}

        policy_grads, metrics = gradients_of(policy_loss, state.params.policy)

        def temperature_loss(log_temperature: jax.Array) -> tuple[jax.Array, Metrics]:
            target_entropy = hyper.target_entropy_per_action * target_entropy_sum
            return losses.temperature(log_temperature, -metrics["entropy"], target_entropy), {}

        temperature_grad, _ = gradients_of(temperature_loss, state.params.log_temperature)
        return ActorParams(policy_grads, temperature_grad), {**metrics, "temperature": temperature}

    def apply(state: PartState, grads: ActorParams, hyper: SacHyper) -> tuple[PartState, Metrics]:
        params, policy_opt, metrics = adam_step(
            state.params.policy, grads.policy, state.opt_state[0],
            learning_rate=hyper.learning_rate, max_grad_norm=hyper.max_grad_norm,
        )  # fmt: skip
        log_temperature, temperature_opt, _ = adam_step(
            state.params.log_temperature, grads.log_temperature, state.opt_state[1],
            learning_rate=hyper.temperature_learning_rate, max_grad_norm=hyper.max_grad_norm,
        )  # fmt: skip
        return PartState(ActorParams(params, log_temperature), (policy_opt, temperature_opt)), metrics

    return Part(init, gradients, apply, reads=("critic",))


def q_values(critic: Network, params: tuple, obs: PyTree, action: jax.Array) -> jax.Array:
    """The two critics' values ``[2, B]`` of observations ``[B, ...]`` and actions ``[B, A]`` in ``[-1, 1]``."""
    inputs = jax.tree.map(lambda x: x[None], {"action": action, "obs": obs})
    first = jnp.zeros(action.shape[:1], bool)[None]
    return jnp.stack([critic.apply(p, (), inputs, first)[0][0, :, 0] for p in params])


def _networks(
    spec: EnvSpec,
    *,
    policy_hidden: tuple[int, ...],
    critic_hidden: tuple[int, ...],
    critic_layer_norm: bool,
    **options: Any,
) -> tuple[Network, Network]:
    policy = make_network(
        spec.obs, distributions.num_outputs(spec.action), hidden=policy_hidden, out_scale=0.01, **options
    )
    action = jax.ShapeDtypeStruct(_box(spec).low.shape, jnp.float32)
    inputs = {"action": action, "obs": spec.obs}
    return policy, make_network(inputs, 1, hidden=critic_hidden, layer_norm=critic_layer_norm, **options)


def _box(spec: EnvSpec) -> Box:
    """The actions, which `require_actions` has found to be continuous."""
    assert isinstance(spec.action, Box)
    return spec.action


def _policy(policy: Network, params: PyTree, obs: PyTree) -> distributions.TanhNormal:
    sequence = jax.tree.map(lambda x: x[None], obs)
    outputs, _ = policy.apply(params, (), sequence, jnp.zeros((1, 1), bool))
    return distributions.tanh_normal(outputs[0])


def _acting(spec: EnvSpec, policy: Network) -> tuple[Callable, Callable]:
    def explore(params: dict, carry: tuple, obs: PyTree, first: jax.Array, key: jax.Array) -> tuple:
        raw = distributions.sample(_policy(policy, params["actor"].policy, obs), key)
        return distributions.to_action(spec.action, raw), carry, ()

    def greedy(params: dict, carry: tuple, obs: PyTree, first: jax.Array, key: jax.Array) -> tuple:
        raw = distributions.mode(_policy(policy, params["actor"].policy, obs))
        return distributions.to_action(spec.action, raw), carry

    return explore, greedy


def _n_step(batch: Transition, discount: jax.Array) -> tuple[jax.Array, jax.Array, PyTree]:
    """n-step rewards ``[B]``, bootstrap discounts ``[B]`` and the observations to bootstrap from ``[B, ...]``."""
    reward, bootstrap, last = jax.vmap(returns.n_step, in_axes=(1, 1, 1, None))(
        batch.reward, batch.terminated, batch.truncated, discount
    )
    if batch.reward.shape[0] == 1:
        return reward, bootstrap, _first_step(batch.next_obs)
    pick = jax.vmap(lambda steps, i: steps[i], in_axes=(1, 0))
    return reward, bootstrap, jax.tree.map(lambda x: pick(x, last), batch.next_obs)


def _first_step(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: x[0], tree)
