"""Stacks of frames: what a policy that must see motion is shown, while every frame is kept once.

Environments, rollouts and replay hold single frames, uint8 ``[H, W, C]``. Where ``EnvSpec.frame_stack`` is ``k`` > 1,
networks see the last ``k`` of them, oldest first, as ``[H, W, k * C]``. Before its ``k``-th step an episode repeats its
first frame, as after a reset in Mnih et al. (2015) and Gymnasium; no stack reaches across an episode's start.

Who acts, in training, evaluation or from a file, remembers the frames before the last in its carry (`on_stacks`);
learners make the same stacks from rows of a table of frames (`take_stacks`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.algorithm import Agent
from jaxrl_fast.buffers import take_batch
from jaxrl_fast.core import Batches, EnvSpec, PyTree
from jaxrl_fast.networks import is_image


class Frames(NamedTuple):
    """Stacks that are yet to be made: ``table`` uint8 ``[G, F, H, W, C]``; ``rows`` int32 ``[..., k]``, the rows of
    each stack in its shard's table, oldest first."""

    table: jax.Array
    rows: jax.Array


class Recent(NamedTuple):
    """The end of the last rollout: ``frames`` ``[G, k - 1, E / G, H, W, C]``, and ``age`` ``[G, E / G]``: steps since
    the episode's first, at most ``k - 1``; -1 before there is any."""

    frames: jax.Array
    age: jax.Array


class HistoryState(NamedTuple):
    """What PPO's experience keeps between rollouts. A checkpoint knows it by this name (`checkpoint_files.RECENT`)."""

    recent: Recent


class History(NamedTuple):
    """``init(example) -> HistoryState`` with ``example`` the frames of a rollout ``[T, E, ...]``;
    ``add(state, frames [T, E, ...], first [T, E]) -> (state, Frames)`` with rows ``[T, E, k]``."""

    init: Callable[[Any], HistoryState]
    add: Callable[[HistoryState, jax.Array, jax.Array], tuple[HistoryState, Frames]]


def stacked(spec: EnvSpec) -> EnvSpec:
    """What the networks see: ``spec`` with the observations of a whole stack.

    Raises:
        ValueError: ``frame_stack`` is no whole number, or the observations are no images.
    """
    k, obs = spec.frame_stack, spec.obs
    if not (type(k) is int and k >= 0):
        raise ValueError(f"{spec.name}: frame_stack={k}: write how many frames the policy sees, such as 4, or 0")
    if k <= 1:
        return spec
    if not (isinstance(obs, jax.ShapeDtypeStruct) and is_image(obs)):
        shown = f"{obs.dtype}{list(obs.shape)}" if isinstance(obs, jax.ShapeDtypeStruct) else type(obs).__name__
        raise ValueError(
            f"{spec.name}: frame_stack={k} stacks images, uint8 [height, width, channels], and its observations are "
            f"{shown}: leave frame_stack out"
        )
    height, width, channels = obs.shape
    return spec._replace(obs=jax.ShapeDtypeStruct((height, width, k * channels), obs.dtype), frame_stack=0)


def on_stacks(agent: Agent, spec: EnvSpec) -> Agent:
    """An agent that acts on single frames, from one that acts on the stacks of ``stacked(spec)``.

    Its carry is ``{"frames": uint8 [E, H, W, (k - 1) * C], "policy": the agent's own}``.
    """
    if spec.frame_stack <= 1:
        return agent
    height, width, channels = spec.obs.shape

    def remembering(act: Callable) -> Callable:
        def act_on_frame(params: PyTree, carry: PyTree, obs: jax.Array, first: jax.Array, key: jax.Array) -> tuple:
            stack = push(carry["frames"], obs, first)
            action, own, *extras = act(params, carry["policy"], stack, first, key)
            return action, {"frames": without_oldest(stack, channels), "policy": own}, *extras

        return act_on_frame

    def initial_carry(size: int) -> PyTree:
        frames = jnp.zeros((size, height, width, (spec.frame_stack - 1) * channels), jnp.uint8)
        return {"frames": frames, "policy": agent.initial_carry(size)}

    return agent._replace(
        explore=remembering(agent.explore), greedy=remembering(agent.greedy), initial_carry=initial_carry
    )


def push(before: jax.Array, frame: jax.Array, first: jax.Array) -> jax.Array:
    """The stack ``[E, H, W, k * C]`` that ends with ``frame`` ``[E, H, W, C]``, after ``before``
    ``[E, H, W, (k - 1) * C]``, which is forgotten where ``first`` ``[E]``."""
    repeated = jnp.concatenate([frame] * (before.shape[-1] // frame.shape[-1]), axis=-1)
    return jnp.concatenate([jnp.where(first[:, None, None, None], repeated, before), frame], axis=-1)


def without_oldest(stack: jax.Array, channels: int) -> jax.Array:
    """All but the oldest frame of stacks ``[..., k * C]``; a slice also where the batch is symbolic (`export`)."""
    return jax.lax.slice_in_dim(stack, channels, None, axis=-1)


def frame_history(*, frame_stack: int, num_envs: int, shards: int) -> History:
    """The stacks of one rollout after another, each with the ``frame_stack - 1`` frames before it."""
    before, per_shard = frame_stack - 1, num_envs // shards

    def init(example: jax.ShapeDtypeStruct) -> HistoryState:
        frames = jnp.zeros((shards, before, per_shard, *example.shape[2:]), example.dtype)
        return HistoryState(Recent(frames, jnp.full((shards, per_shard), -1, jnp.int32)))

    def add(state: HistoryState, frames: jax.Array, first: jax.Array) -> tuple[HistoryState, Frames]:
        old, steps = state.recent, first.shape[0]
        whole = jnp.concatenate([old.frames, sharded(frames, shards)], axis=1)

        def step(age: jax.Array, first: jax.Array) -> tuple[jax.Array, jax.Array]:
            age = jnp.where(first, 0, jnp.minimum(age + 1, before))
            return age, age

        last, age = jax.lax.scan(step, old.age.reshape(-1), first)
        lag = jnp.minimum(jnp.arange(before, -1, -1)[None, None], age[..., None])
        time = before + jnp.arange(steps)[:, None, None] - lag
        rows = time * per_shard + (jnp.arange(num_envs) % per_shard)[None, :, None]
        recent = Recent(whole[:, steps:], last.reshape(shards, per_shard))
        return HistoryState(recent), Frames(whole.reshape(shards, -1, *whole.shape[3:]), rows)

    return History(init, add)


def sharded(leaf: jax.Array, shards: int) -> jax.Array:
    """``[T, E, ...]`` as ``[G, T, E / G, ...]``."""
    steps, num_envs, *rest = leaf.shape
    return leaf.reshape(steps, shards, num_envs // shards, *rest).swapaxes(0, 1)


def make_stacks(table: jax.Array, rows: jax.Array) -> jax.Array:
    """The stacks ``[L, B, H, W, k * C]`` whose rows ``[L, B, k]`` stand in ``table``; the batch is ``G`` equal shares,
    each from its own shard."""
    length, batch, k = rows.shape
    by_shard = rows.reshape(length, table.shape[0], -1, k).swapaxes(0, 1)
    frames = jax.vmap(lambda shard, i: shard[i])(table, by_shard)
    height, width, channels = table.shape[2:]
    frames = frames.swapaxes(0, 1).reshape(length, batch, k, height, width, channels)
    return jnp.moveaxis(frames, 2, 4).reshape(length, batch, height, width, k * channels)


def take_stacks(data: Any, index: jax.Array) -> Any:
    """As `buffers.take_batch` where ``data.obs`` is `Frames` with rows ``[G, N, L, k]``: with the stacks in their
    place. A ``next_obs``, where there is one, is given as rows of the same table."""
    table = data.obs.table
    batch = take_batch(data._replace(obs=data.obs.rows), index)
    fields = [field for field in ("obs", "next_obs") if hasattr(batch, field)]
    return batch._replace(**{field: make_stacks(table, getattr(batch, field)) for field in fields})


def with_rows(batches: Batches, table: jax.Array) -> Batches:
    """Batches whose ``obs`` are rows, with the table that they stand in."""
    return batches._replace(data=batches.data._replace(obs=Frames(table, batches.data.obs)))
