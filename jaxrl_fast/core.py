"""The types that all packages share: action spaces, steps, rollouts, minibatches.

Axis letters, the same everywhere: ``T`` time, ``E`` environments, ``B`` batch, ``K`` gradient updates,
``S`` seeds, ``L`` steps of a training sequence, ``G`` logical shards (`learning.minibatches`). Arrays are time-major:
``[T, E, ...]``. An observation is a pytree: usually one array, a dictionary where it has an ``action_mask`` too.

In a world of several agents ``A`` stands behind all of these: observations, actions and rewards are ``[T, E, A, ...]``,
the ends of episodes ``[T, E]``. In a dictionary observation two keys then mean the same everywhere: `STATE` is the
world's own, without the axis ``A``, and `OUT`, bool ``[A]``, tells which agents take no part in the next step.
"""

import math
import zlib
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

__version__ = "0.2.0"

PyTree = Any
"""Nested dictionaries, lists and (named) tuples of arrays, as JAX maps over them."""
Metrics = dict[str, jax.Array]
"""Numbers to report, by the name of their column in ``metrics.csv``."""
STATE, OUT = "state", "out"


class Discrete(NamedTuple):
    """Discrete actions: int32 scalars ``0 .. num_actions - 1``."""

    num_actions: int


class Box(NamedTuple):
    """Continuous actions between ``low`` and ``high``, both float32 ``[*action_shape]`` and finite."""

    low: np.ndarray
    high: np.ndarray


class EnvSpec(NamedTuple):
    """What an algorithm may know of an environment before it runs.

    - ``name``: for messages, tables and files.
    - ``obs``: shapes and dtypes of one observation, a pytree of ``jax.ShapeDtypeStruct``.
    - ``action``: the action space.
    - ``max_episode_steps``: the time limit in steps, which `vectorize` enforces by truncation; None: no limit.
    - ``frame_stack``: how many of the last images the networks see at once (0 and 1: only the newest). The environment
      itself gives single images; `learning.frame_stack` stacks them.
    - ``num_agents``: of a world of several agents (``A``): ``obs`` has that axis then, but for `STATE`, and ``action``
      is what each agent may do. None: one agent, without such an axis.
    - ``shared_reward``: agents get one reward, the team's, and it goes on for those that are out; else each gets its
      own, the team's is their sum, and an agent's own return ends as it goes out.
    - ``own_sizes``: of each agent how many numbers it observes and how many actions it has, where agents differ in
      that: what they lack of the largest is filled up with zeros and masked. Empty: they are alike.
    """

    name: str
    obs: PyTree
    action: Discrete | Box
    max_episode_steps: int | None = None
    frame_stack: int = 0
    num_agents: int | None = None
    shared_reward: bool = False
    own_sizes: tuple[tuple[int, int], ...] = ()


class EpisodeTotals(NamedTuple):
    """An episode up to and including this step, ``[E]``.

    - ``returns``: the undiscounted return, float32.
    - ``length``: the number of steps, int32.
    - ``success``: whether this step led to a success, bool; ``()`` where the environment does not say.
    - ``agents``: the return of each agent, ``[E, A]``, of which ``returns`` is the sum; ``()`` where agents have no
      rewards of their own.
    """

    returns: jax.Array
    length: jax.Array
    success: Any = ()
    agents: Any = ()


class Timestep(NamedTuple):
    """What one step of an environment returns.

    - ``obs``: what the policy sees next; after the end of an episode, the first observation of the next one.
    - ``next_obs``: the true successor, the one to bootstrap from; after the end of an episode, its last observation.
    - ``reward``: of this step; ``[A]`` where each of several agents has its own.
    - ``terminated``: the task ended, so there is no future reward.
    - ``truncated``: the episode was cut, as by a time limit; its future reward is still worth the value of
      ``next_obs``. Never true together with ``terminated``.
    - ``episode``: `EpisodeTotals`, filled by `vectorize`; a single environment leaves it empty.
    """

    obs: PyTree
    next_obs: PyTree
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    episode: Any = ()


class Extras(NamedTuple):
    """What is stored of a decision for the updates.

    - ``decision``: arrays that the algorithm's choice of actions wants back (`algorithm.Decide`), by name, such as
      ``log_prob``.
    - ``memory``: the recurrent memory of the networks before this step, by part.
    """

    decision: dict[str, jax.Array]
    memory: dict[str, PyTree]


class Transition(NamedTuple):
    """One decision and what came of it; a *rollout* is a `Transition` with leaves ``[T, E, ...]``.

    - ``obs``: what the policy saw; ``action``: what it chose.
    - ``reward``, ``next_obs``, ``terminated``, ``truncated``: as in `Timestep`.
    - ``first``: whether ``obs`` is the first observation of an episode.
    - ``extras``: `Extras`.
    """

    obs: PyTree
    action: jax.Array
    reward: jax.Array
    next_obs: PyTree
    terminated: jax.Array
    truncated: jax.Array
    first: jax.Array
    extras: PyTree


class Products(NamedTuple):
    """How large the work of a program's updates is, to choose by how it is compiled.

    - ``sequences``: whether matrix products are those of a few sequences of several agents.
    - ``largest``: multiply-adds of the largest of them, forward; infinite if unknown.
    - ``params``: numbers in all networks together; infinite if unknown.
    - ``environments``: whether the program steps environments too, whose products are others.
    """

    sequences: bool = False
    largest: float = math.inf
    params: float = math.inf
    environments: bool = True


UNKNOWN_PRODUCTS = Products()


class Batches(NamedTuple):
    """The minibatches of ``K`` gradient updates.

    - ``data``: leaves ``[G, N, ...]``, ``N`` sequences in each of ``G`` logical shards.
    - ``indices``: int32 ``[K, G, B / G]``, the sequences of each update, the same share from every shard.
    - ``places``: where the sequences stand in prioritized replay, leaves ``[G, N]``; else ``()``.
    """

    data: PyTree
    indices: jax.Array
    places: PyTree = ()


Log = Literal["tensorboard", "wandb", "none"]
"""Where the scalars of a run go, beside its tables."""


def action_shape(spec: EnvSpec) -> tuple[int, ...]:
    """Of what an environment takes in a step: of all its agents' actions together."""
    one = () if isinstance(spec.action, Discrete) else spec.action.low.shape
    return one if spec.num_agents is None else (spec.num_agents, *one)


def reward_shape(spec: EnvSpec) -> tuple[int, ...]:
    """Of what an environment pays in a step."""
    return () if spec.num_agents is None or spec.shared_reward else (spec.num_agents,)


def is_image(leaf: Any, *, axes: int = 0) -> bool:
    """Whether an array of this shape and dtype, without its first ``axes``, is one image: bytes
    ``[height, width, channels]``."""
    return leaf.dtype == jnp.uint8 and len(leaf.shape) == axes + 3


def on_every_device(tree: PyTree) -> PyTree:
    """The same values; where a program names its devices (`jax.sharding.use_abstract_mesh`), all of them on each, so
    that what is computed of them is not divided."""
    if jax.sharding.get_abstract_mesh().empty:
        return tree
    return jax.lax.with_sharding_constraint(tree, jax.sharding.PartitionSpec())


def over_two_axes(function: Callable[[Any], PyTree], tree: PyTree) -> PyTree:
    """``function`` of each element of the leaves ``[R, E, ...]``; its results are ``[R, E, ...]``.

    As two `jax.vmap`, but over one axis of ``E * R``: XLA compiles random draws over two axes of known sizes two to
    three times as long on a CPU, and draws are half of what is compiled of CartPole's PPO (JAX 0.10.2). ``E``
    comes first in it, so that what is divided among devices along ``E`` stays where it is. One row stays two
    `jax.vmap`: as one, it made a TPU copy SAC's replay buffer in every tick.
    """
    rows, columns = jax.tree.leaves(tree)[0].shape[:2]
    if rows == 1:
        return jax.vmap(jax.vmap(function))(tree)

    def joined(leaf: jax.Array) -> jax.Array:
        return jnp.swapaxes(leaf, 0, 1).reshape(-1, *leaf.shape[2:])

    def apart(leaf: jax.Array) -> jax.Array:
        return jnp.swapaxes(leaf.reshape(columns, rows, *leaf.shape[1:]), 0, 1)

    return jax.tree.map(apart, jax.vmap(function)(jax.tree.map(joined, tree)))


def stable_hash(name: str) -> int:
    """A hash of ``name`` that is the same in every process, unlike `hash`."""
    return zlib.crc32(name.encode())


def select(mask: jax.Array, on_true: PyTree, on_false: PyTree) -> PyTree:
    """`jnp.where` for whole elements of the leading axis: ``mask`` ``[E]``, leaves ``[E, ...]``."""

    def choose(a: jax.Array, b: jax.Array) -> jax.Array:
        b = jnp.asarray(b)
        return jnp.where(mask.reshape(mask.shape + (1,) * (b.ndim - mask.ndim)), jnp.asarray(a, b.dtype), b)

    return jax.tree.map(choose, on_true, on_false)
