"""The view of an observation: stacks of frames, and images that are stored once.

Environments, rollouts and replay hold single frames, uint8 ``[H, W, C]``, alone or among the entries of a dictionary.
Where ``EnvSpec.frame_stack`` is ``k`` > 1, networks see the last ``k`` of them, oldest first, as ``[H, W, k * C]``, and
of all other entries the last. Before its ``k``-th step an episode repeats its first frame, as after a reset in Mnih et
al. (2015) and Gymnasium; no stack has frames of two episodes.

Acting carries the frames before the newest; learners make the same stacks from tables of frames, where rows of int32
say which frames make up a stack. A *tree of images* has the structure of an observation, with None in place of whatever
is not an image.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import Batches, EnvSpec, Extras, PyTree, Transition, is_image
from jaxrl_fast.learning.acting import Acting, Carry
from jaxrl_fast.learning.algorithm import Agent, OnPolicy, Peers, ReplayBatch, Values
from jaxrl_fast.learning.minibatches import (
    MAX_SHARDS,
    Experience,
    by_shard,
    critic_of,
    epochs_of,
    make_batch,
    shards_of,
    take_batch,
)
from jaxrl_fast.numerics.normalization import Statistics, scale_experience


class View(NamedTuple):
    """How networks see observations.

    - ``spec``: of what networks see, with stacked images.
    - ``images``: the shapes of the images in one observation of the environment, a tree of images.
    - ``stack``: how many frames are seen at once (``k``), at least 1.
    """

    spec: EnvSpec
    images: PyTree
    stack: int


class Recent(NamedTuple):
    """The end of the last rollout, which the next one's first stacks need.

    - ``frames``: its last frames, a tree of images ``[G, k - 1, E / G, H, W, C]``.
    - ``age``: steps since the episode began, at most ``k - 1``, ``[G, E / G]``; -1 before the first rollout.
    """

    frames: PyTree
    age: jax.Array


class Tabled(NamedTuple):
    """Sequences whose images are stored apart.

    - ``batch``: `OnPolicyBatch` or `ReplayBatch`, in which rows int32 ``[..., k]`` of the shard's table, oldest first,
      take the place of images.
    - ``tables``: the frames, a tree of images ``[G, F, H, W, C]``.
    """

    batch: Any
    tables: PyTree


def make_view(spec: EnvSpec) -> View:
    """How networks see the observations of ``spec``.

    Raises:
        ValueError: ``frame_stack`` is no whole number, or there is no image to stack.
    """
    k = spec.frame_stack
    if not (type(k) is int and k >= 0):
        raise ValueError(f"{spec.name}: frame_stack={k}: write how many frames the policy sees, such as 4, or 0")
    images = jax.tree.map(lambda leaf: leaf if is_image(leaf) else None, spec.obs)
    if k > 1 and not jax.tree.leaves(images):
        shown = jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", spec.obs)
        raise ValueError(
            f"{spec.name}: frame_stack={k} stacks images, uint8 [height, width, channels], and its observations are "
            f"{shown}: leave frame_stack out"
        )
    stack = max(k, 1)

    def stacked(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((*leaf.shape[:-1], stack * leaf.shape[-1]), leaf.dtype)

    seen = spec._replace(obs=put_images(spec.obs, jax.tree.map(stacked, images)), frame_stack=0)
    return View(seen, images, stack)


def only_images(view: View, obs: PyTree) -> PyTree:
    """The tree of images of an observation."""
    return jax.tree.map(lambda image, leaf: None if image is None else leaf, view.images, obs, is_leaf=_is_none)


def without_images(view: View, obs: PyTree) -> PyTree:
    """An observation with None in place of its images."""
    return jax.tree.map(lambda image, leaf: leaf if image is None else None, view.images, obs, is_leaf=_is_none)


def put_images(obs: PyTree, images: PyTree) -> PyTree:
    """An observation with other images."""
    return jax.tree.map(lambda image, leaf: leaf if image is None else image, images, obs, is_leaf=_is_none)


def initial_frames(view: View, size: int) -> PyTree:
    """The frames before the first, a tree of images ``[size, H, W, (k - 1) * C]``; ``()`` where nothing is stacked."""

    def zeros(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        return jnp.zeros((size, *leaf.shape[:-1], (view.stack - 1) * leaf.shape[-1]), leaf.dtype)

    return jax.tree.map(zeros, view.images) if view.stack > 1 else ()


def stacked_acting(acting: Acting, view: View) -> Acting:
    """``acting`` on single frames: it sees the last of them stacked, and carries those before the newest."""

    def explore(
        learned: Peers, carry: Carry, obs: PyTree, first: jax.Array, key: jax.Array, hyper: Any
    ) -> tuple[jax.Array, Carry, Extras]:
        seen, frames = look(view, carry.frames, obs, first)
        action, after, extras = acting.explore(learned, carry, seen, first, key, hyper)
        return action, after._replace(frames=frames), extras

    def greedy(
        weights: dict[str, PyTree], carry: Carry, obs: PyTree, first: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Carry]:
        seen, frames = look(view, carry.frames, obs, first)
        action, after = acting.greedy(weights, carry, seen, first, key)
        return action, after._replace(frames=frames)

    def initial_carry(num_envs: int) -> Carry:
        return acting.initial_carry(num_envs)._replace(frames=initial_frames(view, num_envs))

    def greedy_carry(num_envs: int) -> Carry:
        return acting.greedy_carry(num_envs)._replace(frames=initial_frames(view, num_envs))

    return acting._replace(explore=explore, greedy=greedy, initial_carry=initial_carry, greedy_carry=greedy_carry)


def stacked_on_policy(
    view: View, agent: Agent, data: OnPolicy, num_envs: int, max_shards: int = MAX_SHARDS
) -> Experience:
    """As `on_policy_experience`, of rollouts of single frames whose networks see stacks."""
    shards = shards_of(agent, data, num_envs, max_shards)

    def step(
        state: Recent, rollout: Transition, learned: Peers, statistics: Statistics | None, hyper: Any, key: jax.Array
    ) -> tuple[Recent, Batches]:
        scaled = scale_experience(rollout, statistics, hyper.reward_scale, agent.normalize_rewards, agent.max_return)
        state, tables, rows = add_rollout(view, state, rollout.obs, rollout.first, shards)
        scaled = scaled._replace(obs=put_rows(view, scaled.obs, rows))
        batch = make_batch(data, scaled, values_of_stacks(agent, data, scaled, tables, learned), hyper)
        batches = epochs_of(data, batch, scaled.extras.memory, key, num_envs, max_shards)
        return state, batches._replace(data=Tabled(batches.data, tables))

    reads = (data.critic,) if data.targets is not None else ()
    return Experience(
        lambda example: init_recent(view, num_envs, shards), step, take_tabled, shards, reads, state_axes=0
    )


def values_of_stacks(
    agent: Agent, data: OnPolicy, rollout: Transition, tables: PyTree, learned: Peers
) -> Values | None:
    """As `minibatches.values_of` where the observations are rows of tables.

    One time step after another: the stacks of all steps at once would take more memory than the rollout.
    """
    if data.targets is None:
        return None
    network, params, memory = critic_of(agent, data, rollout, learned)

    def one_step(xs: tuple) -> tuple[jax.Array, jax.Array]:
        obs, next_obs, action, first, memory = jax.tree.map(lambda x: x[None], xs)
        stack = put_stacks(tables, obs)
        next_stack = put_next_stacks(tables, stack, next_obs)
        outputs, memory = network.apply(params, jax.tree.map(lambda x: x[0], memory), stack, first)
        after = jax.tree.map(lambda x: x[0], memory)
        following, _ = network.apply(params, after, next_stack, jnp.zeros_like(first))
        return data.value(outputs, stack, action)[0], data.value(following, next_stack, None)[0]

    return Values(*jax.lax.map(one_step, (rollout.obs, rollout.next_obs, rollout.action, rollout.first, memory)))


def look(view: View, before: PyTree, obs: PyTree, first: jax.Array) -> tuple[PyTree, PyTree]:
    """What networks see of ``obs`` ``[E, ...]`` after the frames ``before``, which are discarded where ``first``
    ``[E]``; and the frames to carry to the next step."""
    if view.stack == 1:
        return obs, ()
    frames = only_images(view, obs)
    stacks = jax.tree.map(lambda old, frame: push(old, frame, first), before, frames)
    after = jax.tree.map(lambda stack, frame: without_oldest(stack, frame.shape[-1]), stacks, frames)
    return put_images(obs, stacks), after


def push(before: jax.Array, frame: jax.Array, first: jax.Array) -> jax.Array:
    """The stack ``[E, H, W, k * C]`` that ends with ``frame`` ``[E, H, W, C]``, after ``before``
    ``[E, H, W, (k - 1) * C]``, which is discarded where ``first`` ``[E]``."""
    repeated = jnp.concatenate([frame] * (before.shape[-1] // frame.shape[-1]), axis=-1)
    return jnp.concatenate([jnp.where(first[:, None, None, None], repeated, before), frame], axis=-1)


def without_oldest(stack: jax.Array, channels: int) -> jax.Array:
    """All but the oldest frame of stacks ``[..., k * C]``; a slice also where the batch is symbolic (`export`)."""
    return jax.lax.slice_in_dim(stack, channels, None, axis=-1)


def init_recent(view: View, num_envs: int, shards: int) -> Recent:
    """`Recent` before the first rollout."""
    before, per_shard = view.stack - 1, num_envs // shards
    frames = jax.tree.map(lambda s: jnp.zeros((shards, before, per_shard, *s.shape), s.dtype), view.images)
    return Recent(frames, jnp.full((shards, per_shard), -1, jnp.int32))


def add_rollout(
    view: View, recent: Recent, obs: PyTree, first: jax.Array, shards: int
) -> tuple[Recent, PyTree, jax.Array]:
    """The stacks of a rollout ``[T, E, ...]``. Returns its `Recent`, tables of its frames and the ``k - 1`` before it,
    and rows ``[T, E, k]``."""
    before, (steps, num_envs) = view.stack - 1, first.shape
    per_shard = num_envs // shards
    frames = jax.tree.map(lambda leaf: by_shard(leaf, shards), only_images(view, obs))
    whole = jax.tree.map(lambda old, new: jnp.concatenate([old, new], axis=1), recent.frames, frames)

    def step(age: jax.Array, first: jax.Array) -> tuple[jax.Array, jax.Array]:
        age = jnp.where(first, 0, jnp.minimum(age + 1, before))
        return age, age

    last, age = jax.lax.scan(step, recent.age.reshape(-1), first)
    lag = jnp.minimum(jnp.arange(before, -1, -1)[None, None], age[..., None])
    time = before + jnp.arange(steps)[:, None, None] - lag
    rows = time * per_shard + (jnp.arange(num_envs) % per_shard)[None, :, None]
    ending = jax.tree.map(lambda leaf: leaf[:, steps:], whole)
    tables = jax.tree.map(lambda leaf: leaf.reshape(shards, -1, *leaf.shape[3:]), whole)
    return Recent(ending, last.reshape(shards, per_shard)), tables, rows


def put_rows(view: View, obs: PyTree, rows: jax.Array) -> PyTree:
    """An observation with rows of tables in place of its images."""
    return put_images(obs, jax.tree.map(lambda image: rows, view.images))


def put_stacks(tables: PyTree, obs: PyTree) -> PyTree:
    """Observations ``[L, B, ...]`` with stacks in place of the rows of ``tables``."""
    rows = jax.tree.map(lambda table, leaf: None if table is None else leaf, tables, obs, is_leaf=_is_none)
    return put_images(obs, jax.tree.map(make_stacks, tables, rows))


def put_next_stacks(tables: PyTree, stacked: PyTree, next_obs: PyTree) -> PyTree:
    """The observations ``next_obs`` ``[L, B, ...]`` with the stacks that follow those of ``stacked``."""

    def following(table: Any, stack: jax.Array, frame: jax.Array) -> jax.Array | None:
        if table is None:
            return None
        return jnp.concatenate([without_oldest(stack, frame.shape[-1]), frame], axis=-1)

    return put_images(next_obs, jax.tree.map(following, tables, stacked, next_obs, is_leaf=_is_none))


def make_stacks(table: jax.Array, rows: jax.Array) -> jax.Array:
    """The stacks ``[L, B, H, W, k * C]`` of the rows ``[L, B, k]`` of ``table``; the batch is ``G`` equal shares, each
    from its own shard."""
    length, batch, k = rows.shape
    of_shard = rows.reshape(length, table.shape[0], -1, k).swapaxes(0, 1)
    frames = jax.vmap(lambda shard, i: shard[i])(table, of_shard)
    height, width, channels = table.shape[2:]
    frames = frames.swapaxes(0, 1).reshape(length, batch, k, height, width, channels)
    return jnp.moveaxis(frames, 2, 4).reshape(length, batch, height, width, k * channels)


def take_tabled(data: Tabled, index: jax.Array) -> Any:
    """As `minibatches.take_batch`, with stacks in the observations."""
    batch = take_batch(data.batch, index)
    obs = put_stacks(data.tables, batch.obs)
    if isinstance(batch, ReplayBatch):
        return batch._replace(obs=obs, next_obs=put_stacks(data.tables, batch.next_obs))
    if batch.transition == ():
        return batch._replace(obs=obs)
    next_obs = put_next_stacks(data.tables, obs, batch.transition.next_obs)
    return batch._replace(obs=obs, transition=batch.transition._replace(next_obs=next_obs))


def _is_none(x: Any) -> bool:
    return x is None
