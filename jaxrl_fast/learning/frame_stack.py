"""Frame stacks: how networks read images, each stored once.

Environments, rollouts and replay hold single frames, uint8 ``[H, W, C]``, alone or among the
entries of a dictionary. If ``EnvSpec.frame_stack`` is ``k`` > 1, networks read the last ``k``
frames, oldest first, as ``[H, W, k * C]``, and only the last of all other entries. Before its
``k``-th step an episode repeats its first frame, as after a reset in Mnih et al. (2015) and
Gymnasium; no stack has frames of two episodes.

Action selection carries the frames before the newest. Learners build the same stacks from tables of
frames, where rows of int32 index the frames of a stack. A *tree of images* has the structure of an
observation, with None in place of all leaves that are not images.
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
    """How networks read observations.

    Attributes:
        spec: Environment with stacked images in its observations.
        images: Shapes of the images in one observation of the environment, a tree of images.
        stack: Number of frames in a stack (``k``), at least 1.
    """

    spec: EnvSpec
    images: PyTree
    stack: int


class Recent(NamedTuple):
    """The last steps of a rollout, which the next rollout's first stacks need.

    Attributes:
        frames: Last frames, a tree of images ``[G, k - 1, E / G, H, W, C]``.
        age: Steps since the episode began, at most ``k - 1``, ``[G, E / G]``; -1 before the first
            rollout.
    """

    frames: PyTree
    age: jax.Array


class Tabled(NamedTuple):
    """Sequences whose images are in tables.

    Attributes:
        batch: `OnPolicyBatch` or `ReplayBatch`, with rows int32 ``[..., k]`` of the shard's table,
            oldest first, in place of images.
        tables: Frames, a tree of images ``[G, F, H, W, C]``.
    """

    batch: Any
    tables: PyTree


def make_view(spec: EnvSpec) -> View:
    """Return how networks read the observations of an environment.

    Args:
        spec: Environment.

    Returns:
        The view.

    Raises:
        ValueError: ``frame_stack`` is not a whole number, or there is no image to stack.
    """
    k = spec.frame_stack
    if not (type(k) is int and k >= 0):
        raise ValueError(
            f"{spec.name}: frame_stack={k}: write the number of frames to stack, such as 4, or 0"
        )
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

    stacked_spec = spec._replace(
        obs=put_images(spec.obs, jax.tree.map(stacked, images)), frame_stack=0
    )
    return View(stacked_spec, images, stack)


def only_images(view: View, obs: PyTree) -> PyTree:
    """Return the tree of images of an observation.

    Args:
        view: How networks read observations.
        obs: Observation.

    Returns:
        The tree of images.
    """
    return jax.tree.map(
        lambda image, leaf: None if image is None else leaf, view.images, obs, is_leaf=_is_none
    )


def without_images(view: View, obs: PyTree) -> PyTree:
    """Return an observation with None in place of its images.

    Args:
        view: How networks read observations.
        obs: Observation.

    Returns:
        The observation without images.
    """
    return jax.tree.map(
        lambda image, leaf: leaf if image is None else None, view.images, obs, is_leaf=_is_none
    )


def put_images(obs: PyTree, images: PyTree) -> PyTree:
    """Replace the images of an observation.

    Args:
        obs: Observation.
        images: Tree of images.

    Returns:
        The observation with these images.
    """
    return jax.tree.map(
        lambda image, leaf: leaf if image is None else image, images, obs, is_leaf=_is_none
    )


def initial_frames(view: View, size: int) -> PyTree:
    """Return the frames before the first step: zeros.

    Args:
        view: How networks read observations.
        size: Number of environments.

    Returns:
        A tree of images ``[size, H, W, (k - 1) * C]``; ``()`` without a frame stack.
    """

    def zeros(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        return jnp.zeros((size, *leaf.shape[:-1], (view.stack - 1) * leaf.shape[-1]), leaf.dtype)

    return jax.tree.map(zeros, view.images) if view.stack > 1 else ()


def stacked_acting(acting: Acting, view: View) -> Acting:
    """Adapt action selection on stacked frames to single frames.

    Args:
        acting: Action selection on stacks.
        view: How networks read observations.

    Returns:
        Action selection that stacks the last frames and carries those before the newest.
    """

    def explore(
        learned: Peers, carry: Carry, obs: PyTree, first: jax.Array, key: jax.Array, hyper: Any
    ) -> tuple[jax.Array, Carry, Extras]:
        stacked_obs, frames = look(view, carry.frames, obs, first)
        action, after, extras = acting.explore(learned, carry, stacked_obs, first, key, hyper)
        return action, after._replace(frames=frames), extras

    def greedy(
        weights: dict[str, PyTree], carry: Carry, obs: PyTree, first: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Carry]:
        stacked_obs, frames = look(view, carry.frames, obs, first)
        action, after = acting.greedy(weights, carry, stacked_obs, first, key)
        return action, after._replace(frames=frames)

    def initial_carry(num_envs: int) -> Carry:
        return acting.initial_carry(num_envs)._replace(frames=initial_frames(view, num_envs))

    def greedy_carry(num_envs: int) -> Carry:
        return acting.greedy_carry(num_envs)._replace(frames=initial_frames(view, num_envs))

    return acting._replace(
        explore=explore, greedy=greedy, initial_carry=initial_carry, greedy_carry=greedy_carry
    )


def stacked_on_policy(
    view: View, agent: Agent, data: OnPolicy, num_envs: int, max_shards: int = MAX_SHARDS
) -> Experience:
    """Build on-policy minibatches of single frames for networks that read stacks.

    Args:
        view: How networks read observations.
        agent: Algorithm built for one environment.
        data: Data of the updates.
        num_envs: Number of environments.
        max_shards: Most logical shards.

    Returns:
        As `on_policy_experience`.
    """
    shards = shards_of(agent, data, num_envs, max_shards)

    def step(
        state: Recent,
        rollout: Transition,
        learned: Peers,
        statistics: Statistics | None,
        hyper: Any,
        key: jax.Array,
    ) -> tuple[Recent, Batches]:
        scaled = scale_experience(
            rollout, statistics, hyper.reward_scale, agent.normalize_rewards, agent.max_return
        )
        state, tables, rows = add_rollout(view, state, rollout.obs, rollout.first, shards)
        scaled = scaled._replace(obs=put_rows(view, scaled.obs, rows))
        batch = make_batch(
            data, scaled, values_of_stacks(agent, data, scaled, tables, learned), hyper
        )
        batches = epochs_of(data, batch, scaled.extras.memory, key, num_envs, max_shards)
        return state, batches._replace(data=Tabled(batches.data, tables))

    reads = (data.critic,) if data.targets is not None else ()
    made = Experience(
        lambda example: init_recent(view, num_envs, shards),
        step,
        take_tabled,
        shards=shards,
        reads=reads,
        state_axes=0,
    )
    return made._replace(memory_every=data.sequence_length or 1)


def values_of_stacks(
    agent: Agent, data: OnPolicy, rollout: Transition, tables: PyTree, trained: Peers
) -> Values | None:
    """Compute the critic's values of a rollout whose images are rows of tables.

    Computes one time step after another: the stacks of all steps at once take more memory than the
    rollout.

    Args:
        agent: Algorithm built for one environment.
        data: Data of the updates.
        rollout: Normalized rollout, with rows in place of images.
        tables: Frames, a tree of images.
        trained: `Learned` by part.

    Returns:
        Values ``[T, E]``; None if the data has no targets.
    """
    if data.targets is None:
        return None
    network, params, memory = critic_of(agent, data, rollout, trained)

    def one_step(memory: PyTree, xs: tuple) -> tuple[PyTree, tuple[jax.Array, jax.Array]]:
        obs, next_obs, action, first = jax.tree.map(lambda x: x[None], xs)
        stack = put_stacks(tables, obs)
        next_stack = put_next_stacks(tables, stack, next_obs)
        outputs, memories = network.apply(params, memory, stack, first)
        after = jax.tree.map(lambda x: x[0], memories)
        following, _ = network.apply(params, after, next_stack, jnp.zeros_like(first))
        return after, (
            data.value(outputs, stack, action)[0],
            data.value(following, next_stack, None)[0],
        )

    before = jax.tree.map(lambda x: x[0], memory)
    _, (now, following) = jax.lax.scan(
        one_step, before, (rollout.obs, rollout.next_obs, rollout.action, rollout.first)
    )
    return Values(now=now, next=following)


def look(view: View, before: PyTree, obs: PyTree, first: jax.Array) -> tuple[PyTree, PyTree]:
    """Stack the newest frames on those before.

    Args:
        view: How networks read observations.
        before: Frames before, a tree of images; discarded where an episode begins.
        obs: Observations ``[E, ...]`` with single frames.
        first: Whether an episode begins, ``[E]``.

    Returns:
        Observations as networks read them, and the frames to carry to the next step.
    """
    if view.stack == 1:
        return obs, ()
    frames = only_images(view, obs)
    stacks = jax.tree.map(lambda old, frame: push(old, frame, first), before, frames)
    after = jax.tree.map(
        lambda stack, frame: without_oldest(stack, frame.shape[-1]), stacks, frames
    )
    return put_images(obs, stacks), after


def push(before: jax.Array, frame: jax.Array, first: jax.Array) -> jax.Array:
    """Append a frame to a stack.

    Args:
        before: Frames before, ``[E, H, W, (k - 1) * C]``.
        frame: Newest frames ``[E, H, W, C]``.
        first: Where to repeat the newest frame instead of those before, ``[E]``.

    Returns:
        Stacks ``[E, H, W, k * C]``.
    """
    repeated = jnp.concatenate([frame] * (before.shape[-1] // frame.shape[-1]), axis=-1)
    return jnp.concatenate(
        [jnp.where(first[:, None, None, None], repeated, before), frame], axis=-1
    )


def without_oldest(stack: jax.Array, channels: int) -> jax.Array:
    """Drop the oldest frame of stacks, by a slice also where the batch is symbolic (`export`).

    Args:
        stack: Stacks ``[..., k * C]``.
        channels: Channels of a frame, ``C``.

    Returns:
        Stacks ``[..., (k - 1) * C]``.
    """
    return jax.lax.slice_in_dim(stack, channels, None, axis=-1)


def init_recent(view: View, num_envs: int, shards: int) -> Recent:
    """Return `Recent` before the first rollout.

    Args:
        view: How networks read observations.
        num_envs: Number of environments.
        shards: Number of logical shards.

    Returns:
        Frames of zeros.
    """
    before, per_shard = view.stack - 1, num_envs // shards
    frames = jax.tree.map(
        lambda s: jnp.zeros((shards, before, per_shard, *s.shape), s.dtype), view.images
    )
    return Recent(frames, jnp.full((shards, per_shard), -1, jnp.int32))


def add_rollout(
    view: View, recent: Recent, obs: PyTree, first: jax.Array, shards: int
) -> tuple[Recent, PyTree, jax.Array]:
    """Build the tables of a rollout's frames, and the rows of its stacks.

    Args:
        view: How networks read observations.
        recent: Last frames of the rollout before.
        obs: Observations ``[T, E, ...]``.
        first: Whether an episode begins, ``[T, E]``.
        shards: Number of logical shards.

    Returns:
        `Recent` of this rollout, tables of its frames and the ``k - 1`` before it, and rows
        ``[T, E, k]``.
    """
    before, (steps, num_envs) = view.stack - 1, first.shape
    per_shard = num_envs // shards
    frames = jax.tree.map(lambda leaf: by_shard(leaf, shards), only_images(view, obs))
    whole = jax.tree.map(
        lambda old, new: jnp.concatenate([old, new], axis=1), recent.frames, frames
    )

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
    """Replace the images of an observation by rows of tables.

    Args:
        view: How networks read observations.
        obs: Observation.
        rows: Rows ``[..., k]``.

    Returns:
        The observation with rows.
    """
    return put_images(obs, jax.tree.map(lambda image: rows, view.images))


def put_stacks(tables: PyTree, obs: PyTree) -> PyTree:
    """Replace rows of tables by the stacks.

    Args:
        tables: Frames, a tree of images.
        obs: Observations ``[L, B, ...]`` with rows.

    Returns:
        The observations with stacks.
    """
    rows = jax.tree.map(
        lambda table, leaf: None if table is None else leaf, tables, obs, is_leaf=_is_none
    )
    return put_images(obs, jax.tree.map(make_stacks, tables, rows))


def put_next_stacks(tables: PyTree, stacked: PyTree, next_obs: PyTree) -> PyTree:
    """Stack the frames of the next observations.

    Args:
        tables: Frames, a tree of images.
        stacked: Observations ``[L, B, ...]`` with stacks.
        next_obs: Next observations ``[L, B, ...]`` with single frames.

    Returns:
        The next observations with stacks.
    """

    def following(table: Any, stack: jax.Array, frame: jax.Array) -> jax.Array | None:
        if table is None:
            return None
        return jnp.concatenate([without_oldest(stack, frame.shape[-1]), frame], axis=-1)

    return put_images(
        next_obs, jax.tree.map(following, tables, stacked, next_obs, is_leaf=_is_none)
    )


def make_stacks(table: jax.Array, rows: jax.Array) -> jax.Array:
    """Read stacks from a table.

    Args:
        table: Frames ``[G, F, H, W, C]``.
        rows: Rows ``[L, B, k]``; the batch is ``G`` equal shares, each of one shard.

    Returns:
        Stacks ``[L, B, H, W, k * C]``.
    """
    length, batch, k = rows.shape
    of_shard = rows.reshape(length, table.shape[0], -1, k).swapaxes(0, 1)
    frames = jax.vmap(lambda shard, i: shard[i])(table, of_shard)
    height, width, channels = table.shape[2:]
    frames = frames.swapaxes(0, 1).reshape(length, batch, k, height, width, channels)
    return jnp.moveaxis(frames, 2, 4).reshape(length, batch, height, width, k * channels)


def take_tabled(data: Tabled, index: jax.Array) -> Any:
    """Take a minibatch as `minibatches.take_batch`, with stacks in the observations.

    Args:
        data: Sequences and tables.
        index: Sequences ``[G, B / G]``.

    Returns:
        `OnPolicyBatch` or `ReplayBatch`, leaves ``[L, B, ...]``.
    """
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
