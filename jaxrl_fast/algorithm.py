"""What an algorithm is: hyper-parameters as values, and pure functions that know no device.

An `Algorithm` is made by a factory (`jaxrl_fast.ppo`, `jaxrl_fast.sac`) before any environment is known;
``build(spec, num_envs)`` turns it into an `Agent` for one environment and checks, on the host, that the two fit.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxrl_fast.buffers import take_batch
from jaxrl_fast.core import Batches, Box, EnvSpec, Metrics, PyTree, Transition
from jaxrl_fast.networks import is_image
from jaxrl_fast.normalize import RunningStats, normalize

MAX_SCALED_REWARD = 10.0
"""Rewards normalized by the deviation of returns are clipped here, as in Stable-Baselines3's VecNormalize."""


class PartState(NamedTuple):
    """One separately updated part of an agent. ``params`` is what the other parts and the sampler may read."""

    params: PyTree
    opt_state: PyTree
    target: PyTree = ()


class Part(NamedTuple):
    """``init(key) -> PartState``; one update is ``gradients`` and then ``apply``, so that the gradients of several
    learners can be averaged in between.

    ``gradients(state, peers, batch, key, hyper) -> (grads, Metrics)`` uses ``params`` and ``target`` of the state
    only; ``peers`` maps the parts that it ``reads`` (and may map others) to their params; ``batch`` leaves are
    ``[L, B, ...]``.
    ``apply(state, grads, hyper) -> (PartState, Metrics)``.
    """

    init: Callable[[jax.Array], PartState]
    gradients: Callable[[PartState, dict[str, PyTree], Any, jax.Array, Any], tuple[PyTree, Metrics]]
    apply: Callable[[PartState, PyTree, Any], tuple[PartState, Metrics]]
    reads: tuple[str, ...] = ()


class Statistics(NamedTuple):
    """What the run has seen so far: of observations, and of discounted returns (the scale of rewards)."""

    obs: RunningStats
    returns: RunningStats


class Experience(NamedTuple):
    """How rollouts become minibatches.

    ``init(example) -> state`` with ``example`` the shapes of a rollout;
    ``step(state, rollout, params, statistics, hyper, key) -> (state, Batches)``; ``reads``: the parts whose params it
    needs. ``shards`` is the number of logical shards of its batches, ``state_axes`` the axis of the state's leaves that
    counts them (a prefix tree; None: kept whole). ``take(data, index)`` makes one minibatch, as `buffers.take_batch`;
    ``metrics(state)`` says what a person should know of the state.
    """

    init: Callable[[Transition], PyTree]
    step: Callable[..., tuple[PyTree, Batches]]
    reads: tuple[str, ...] = ()
    shards: int = 1
    state_axes: Any = None
    take: Callable[[PyTree, jax.Array], Any] = take_batch
    metrics: Callable[[PyTree], Metrics] = lambda state: {}


class Agent(NamedTuple):
    """An algorithm bound to the shapes of one environment.

    ``explore(params, carry, obs, first, key) -> (action, carry, extras)`` and ``greedy`` alike without extras act on
    normalized observations ``[E, ...]``; ``params`` maps part names to params, and only ``acting_parts`` are read.
    """

    parts: dict[str, Part]
    experience: Experience
    explore: Callable[..., tuple[jax.Array, PyTree, PyTree]]
    greedy: Callable[..., tuple[jax.Array, PyTree]]
    initial_carry: Callable[[int], PyTree]
    acting_parts: tuple[str, ...]
    rollout_length: int
    updates_per_tick: int
    batch_size: int
    warmup_ticks: int
    normalize_observations: bool
    normalize_rewards: bool


class Algorithm(NamedTuple):
    """``hyper``: a NamedTuple of rates that may be swept, scheduled or changed on resume;
    ``options``: the keyword arguments that made it, enough to make its networks again;
    ``build(spec, num_envs) -> Agent`` raises ``ValueError`` where the two do not fit."""

    name: str
    hyper: Any
    options: dict[str, Any]
    build: Callable[[EnvSpec, int], Agent]


def gradients_of(loss_fn: Callable[[PyTree], tuple[jax.Array, Metrics]], params: PyTree) -> tuple[PyTree, Metrics]:
    """Gradients and metrics of ``loss_fn(params) -> (loss, metrics)``."""
    (_, metrics), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    return grads, metrics


def adam_step(
    params: PyTree, grads: PyTree, opt_state: PyTree, *, learning_rate: jax.Array, max_grad_norm: jax.Array | float
) -> tuple[PyTree, PyTree, Metrics]:
    """One Adam update of ``params``; gradients are first scaled down to a global norm of ``max_grad_norm``."""
    grad_norm = optax.tree.norm(grads)
    scale = jnp.minimum(1.0, max_grad_norm / jnp.maximum(grad_norm, 1e-8))
    updates, opt_state = optax.scale_by_adam().update(jax.tree.map(lambda g: g * scale, grads), opt_state)
    params = jax.tree.map(lambda p, u: p - learning_rate * u, params, updates)
    return params, opt_state, {"grad_norm": grad_norm}


def adam_init(params: PyTree) -> PyTree:
    """The optimizer state that `adam_step` advances."""
    return optax.scale_by_adam().init(params)


def update(
    part: Part, state: PartState, peers: dict[str, PyTree], batch: Any, key: jax.Array, hyper: Any, *,
    drop_nonfinite: bool = False,
) -> tuple[PartState, Metrics]:  # fmt: skip
    """One gradient update of a part by one learner."""
    grads, metrics = part.gradients(state, peers, batch, key, hyper)
    return apply_gradients(part, state, grads, metrics, hyper, drop_nonfinite=drop_nonfinite)


def apply_gradients(
    part: Part, state: PartState, grads: PyTree, metrics: Metrics, hyper: Any, *, drop_nonfinite: bool = False
) -> tuple[PartState, Metrics]:
    """The part after a step along ``grads``; ``metrics``, those of the gradients, with those of the step.

    With ``drop_nonfinite`` nothing changes where the step would give a NaN or an infinity; ``dropped_updates`` is 1
    then.
    """
    new, more = part.apply(state, grads, hyper)
    metrics = {**metrics, **more}
    if not drop_nonfinite:
        return new, metrics
    sound = all_finite((new, metrics))
    kept = jax.tree.map(lambda after, before: jnp.where(sound, after, before), new, state)
    return kept, {**metrics, "dropped_updates": 1.0 - sound}


def all_finite(tree: PyTree) -> jax.Array:
    """Whether there is no NaN and no infinity anywhere in ``tree``; a scalar."""
    real = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in real]))


def scale_experience(
    data: Transition, statistics: Statistics | None, reward_scale: jax.Array, normalize_rewards: bool
) -> Transition:
    """Observations and rewards as the networks see them; buffers keep the raw ones."""
    reward = data.reward * reward_scale
    if statistics is None:
        return data._replace(reward=reward)
    if normalize_rewards:
        count = jnp.maximum(statistics.returns.samples, 1.0)
        variance = jnp.where(statistics.returns.samples > 0, statistics.returns.m2 / count, 1.0)
        # Clipped, since the first reward of a sparse world would be divided by a deviation of 0.
        reward = jnp.clip(reward * jax.lax.rsqrt(variance + 1e-8), -MAX_SCALED_REWARD, MAX_SCALED_REWARD)
    obs, next_obs = normalize(statistics.obs, data.obs), normalize(statistics.obs, data.next_obs)
    return data._replace(obs=obs, next_obs=next_obs, reward=reward)


def normalizes(asked: bool | None, spec: EnvSpec) -> bool:
    """Whether observations are normalized: as ``asked``, and if nothing was (None), unless they are images.

    Raises:
        ValueError: it was asked for, and there are only images.
    """
    only_images = all(is_image(leaf) for leaf in jax.tree.leaves(spec.obs))
    if asked and only_images:
        raise ValueError(
            f"normalize_observations=true is for real numbers, and {spec.name} observes images, whose bytes are scaled "
            "to 0..1 as they are: leave it out"
        )
    return not only_images if asked is None else asked


def require_positive(**sizes: int) -> None:
    """Refuse a size of zero or less.

    Raises:
        ValueError: naming the size.
    """
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name}={size}: write a positive number")


def require_actions(name: str, spec: EnvSpec, kinds: tuple[type, ...], instead: str) -> None:
    """Refuse an action space that the algorithm does not know.

    Raises:
        ValueError: with what to write instead.
    """
    if not isinstance(spec.action, kinds):
        kind = "continuous" if isinstance(spec.action, Box) else "discrete"
        raise ValueError(f"algo={name} does not work with the {kind} actions of {spec.name}: write algo={instead}")
