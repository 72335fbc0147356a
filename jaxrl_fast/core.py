"""The types that all packages share: action spaces, time steps, transitions, minibatches.

All packages use these axis letters: ``T`` time, ``E`` environments, ``B`` batch, ``K`` gradient
updates, ``S`` seeds, ``L`` steps of a training sequence, ``G`` logical shards
(`learning.minibatches`). Arrays are time-major: ``[T, E, ...]``. An observation is a pytree:
usually one array, or a dictionary if it contains an ``action_mask``.

An environment of several agents adds a last batch axis ``A``: observations, actions and rewards are
``[T, E, A, ...]``, episode ends ``[T, E]``. A dictionary observation reserves two keys: `STATE` is
the global state, without the axis ``A``, and `OUT`, bool ``[A]``, marks the agents that take no
part in the next step.
"""

import math
import operator
import zlib
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.process import forked_after_jax

__version__ = "0.2.0"

PyTree = Any
"""Nested dictionaries, lists and (named) tuples of arrays, as JAX maps over them."""
Metrics = dict[str, jax.Array]
"""Values to report, by their column in ``metrics.csv``."""
STATE, OUT = "state", "out"


class Discrete(NamedTuple):
    """Discrete actions: int32 scalars ``0 .. num_actions - 1``.

    Attributes:
        num_actions: Number of actions.
    """

    num_actions: int


class Box(NamedTuple):
    """Continuous actions within finite bounds.

    Attributes:
        low: Lower bounds, float32 ``[*action_shape]``.
        high: Upper bounds, float32 ``[*action_shape]``.
    """

    low: np.ndarray
    high: np.ndarray


class MultiDiscrete(NamedTuple):
    """Several discrete actions at once: int32 ``[D]``, each ``0 .. size - 1``.

    An ``action_mask`` has the masks of all parts one after another, ``[sum(sizes)]``.

    Attributes:
        sizes: Number of values of each part.
    """

    sizes: tuple[int, ...]


Actions = Discrete | Box | MultiDiscrete
"""Any action space."""


MAX_SIZE = 2**31 - 1
"""The largest int32, the type of JAX's counters."""


class Number(NamedTuple):
    """Range of a numeric argument or setting; NaN and infinities are outside of every range.

    Attributes:
        least: Smallest allowed number.
        most: Largest allowed number.
        kind: A whole number, any number, or a hyper-parameter, which may be a schedule.
        optional: Whether None is allowed.
    """

    least: float = -math.inf
    most: float = math.inf
    kind: Literal["whole", "number", "rate"] = "rate"
    optional: bool = False

    def holds(self, *numbers: float) -> bool:
        """Return whether all numbers are in range."""
        return all(self.least <= n <= self.most and n - n == 0 for n in numbers)

    def instead_of(self, *numbers: float) -> str:
        """Return what to write instead of numbers of which one is out of range."""
        if any(n < self.least for n in numbers):
            return f"write a number of at least {self.least}"
        return (
            "write a number that is finite"
            if self.most == math.inf
            else f"write a number of at most {self.most}"
        )


def as_whole(value: Any) -> int:
    """Convert a number to an integer of the same value.

    Args:
        value: Number of Python or NumPy.

    Returns:
        The integer.

    Raises:
        TypeError: It is not a whole number.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or value % 1 != 0:
        raise TypeError(value)
    return int(value)  # type: ignore[call-overload]


def as_number(value: Any) -> float:
    """Convert a number to a float.

    Args:
        value: Number of Python or NumPy.

    Returns:
        The float.

    Raises:
        TypeError: It is no number.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(value)
    return float(value)


NO_KINDS: dict[str, str] = {}
"""``EnvSpec.metrics`` of an environment without metrics."""


class EnvSpec(NamedTuple):
    """Static description of an environment.

    Attributes:
        name: Name in messages, tables and file names.
        obs: Shapes and dtypes of one observation, a pytree of ``jax.ShapeDtypeStruct``.
        action: Action space; with several agents, the space of each agent.
        max_episode_steps: Time limit in steps, which `vectorize` enforces by truncation; None for
            no limit.
        frame_stack: Number of images that `learning.frame_stack` stacks for the networks; 0 and 1
            mean only the newest.
        num_agents: Number of agents ``A``, an axis of every leaf of ``obs`` but `STATE`; None for
            one agent without axis.
        shared_reward: True if all agents get one team reward, also after an agent is out. Otherwise
            each agent gets its reward, the team reward is their sum, and an agent's return stops
            when it is out.
        own_sizes: Observation size and number of actions of each agent, where agents differ.
            Smaller observations are padded with zeros and missing actions masked. Empty if all
            agents are alike.
        obs_space: The environment's own observation space as plain data (`jaxrl_fast.spaces`),
            which its policies take; None where it gives ``obs``.
        action_space: The environment's own action space likewise, None where it takes actions of
            ``action``.
        arguments: Options with which `jaxrl_fast.make_env` made the environment, as text; a resumed
            run needs the same.
        goal_reward: ``(achieved, desired) -> reward`` of one step, of an environment whose
            observation has the entries ``achieved_goal`` and ``desired_goal``; None without goals.
        metrics: Kind of each of the environment's own metrics, by name: what an episode's number
            is, ``mean``, ``sum`` or ``max`` over its steps, or the ``last`` step's value.
        contents: Digests of the file that the environment was made from, such as a robot's model
            field by field (`jaxrl_fast.contents`); a resumed run needs the same.
    """

    name: str
    obs: PyTree
    action: Actions
    max_episode_steps: int | None = None
    frame_stack: int = 0
    num_agents: int | None = None
    shared_reward: bool = False
    own_sizes: tuple[tuple[int, int], ...] = ()
    obs_space: dict[str, Any] | None = None
    action_space: dict[str, Any] | None = None
    arguments: str = ""
    goal_reward: Callable[[PyTree, PyTree], jax.Array] | None = None
    metrics: dict[str, str] = NO_KINDS
    contents: dict[str, str] = NO_KINDS


class MadeEnv(NamedTuple):
    """The arguments with which `jaxrl_fast.make_env` made an environment.

    Attributes:
        name: Short name, suite or ``custom``.
        num_envs: Number of environments per seed.
        options: Options of the environment, and of its pool.
        result: The environment. What differs from it was changed since, and the arguments do not
            make it again.
    """

    name: str
    num_envs: int
    options: Mapping[str, Any]
    result: Any


def made_by(env: Any) -> MadeEnv | None:
    """Return the arguments with which an environment was made.

    Args:
        env: Environment with a field ``made``.

    Returns:
        None if it was made in another way, or changed since.
    """
    made = env.made
    is_same = made is not None and all(map(operator.is_, env._replace(made=None), made.result))
    return made if is_same else None


class EpisodeTotals(NamedTuple):
    """Totals of an episode up to and including this step, ``[E]``.

    Attributes:
        returns: Undiscounted return, float32.
        length: Number of steps, int32.
        success: Whether this step led to a success, bool; ``()`` if the environment does not report
            it.
        agents: Return of each agent, ``[E, A]``, whose sum is ``returns``; ``()`` if agents have no
            separate rewards.
        metrics: `envs.episode_metrics.MetricTotals` of the metrics in the spec; in results of
            evaluations, the metrics of each episode by name, NaN without a value. ``()`` without
            metrics.
    """

    returns: jax.Array
    length: jax.Array
    success: Any = ()
    agents: Any = ()
    metrics: Any = ()


class Timestep(NamedTuple):
    """Result of one environment step.

    Attributes:
        obs: Observation that the policy acts on next; after an episode ends, the first of the next
            episode.
        next_obs: Observation that follows the action, for bootstrapping; at an episode's end, its
            terminal observation.
        reward: Reward of this step; ``[A]`` if agents have separate rewards.
        terminated: The task ended, so no reward follows.
        truncated: The episode was cut, for example by a time limit; bootstrap from ``next_obs``.
            Never true together with ``terminated``.
        episode: `EpisodeTotals`, filled by `vectorize`; a single environment leaves it empty.
        metrics: This step's values of ``EnvSpec.metrics``, scalars by name, NaN for no value;
            ``()`` without metrics. `vectorize` adds them up in ``episode``.
    """

    obs: PyTree
    next_obs: PyTree
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    episode: Any = ()
    metrics: Any = ()


class Extras(NamedTuple):
    """Data stored with a decision for the updates.

    Attributes:
        decision: Arrays that the algorithm's exploration returns (`algorithm.Decide`), by name,
            such as ``log_prob``.
        memory: Recurrent memory of the networks before this step, by part; of a rollout, before the
            steps where the sequences of the updates begin.
    """

    decision: dict[str, jax.Array]
    memory: dict[str, PyTree]


class Transition(NamedTuple):
    """One decision and its outcome; a *rollout* is a `Transition` with leaves ``[T, E, ...]``.

    Attributes:
        obs: Observation of the policy.
        action: Action of the policy.
        reward: As in `Timestep`.
        next_obs: As in `Timestep`.
        terminated: As in `Timestep`.
        truncated: As in `Timestep`.
        first: Whether ``obs`` is the first observation of an episode.
        extras: `Extras`.
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
    """Size of the work in a program's updates, which decides how it is compiled.

    Attributes:
        sequences: Whether matrix products have operands of a few sequences of several agents.
        largest: Multiply-adds of the largest product, forward; infinite if not computed.
        params: Number of parameters in all networks; infinite if not computed.
        environments: Whether the program also steps environments, which add products of other
            sizes.
    """

    sequences: bool = False
    largest: float = math.inf
    params: float = math.inf
    environments: bool = True


UNKNOWN_PRODUCTS = Products()


class Batches(NamedTuple):
    """Minibatches of ``K`` gradient updates.

    Attributes:
        data: Leaves ``[G, N, ...]``: ``N`` sequences in each of ``G`` logical shards.
        indices: Sequences of each update, the same number from every shard, int32
            ``[K, G, B / G]``.
        places: Positions of the sequences in prioritized replay, leaves ``[G, N]``; else ``()``.
    """

    data: PyTree
    indices: jax.Array
    places: PyTree = ()


Log = Literal["tensorboard", "wandb", "none"]
"""Destination of a run's scalars, in addition to its tables."""


def action_shape(spec: EnvSpec) -> tuple[int, ...]:
    """Return the shape of one environment step's action, with the agents' axis if there are
    several.

    Args:
        spec: Environment.

    Returns:
        ``(*action_shape,)``, or ``(A, *action_shape)`` with several agents.
    """
    one: tuple[int, ...] = () if isinstance(spec.action, Discrete) else _own_shape(spec.action)
    return one if spec.num_agents is None else (spec.num_agents, *one)


def _own_shape(space: Box | MultiDiscrete) -> tuple[int, ...]:
    return space.low.shape if isinstance(space, Box) else (len(space.sizes),)


def reward_shape(spec: EnvSpec) -> tuple[int, ...]:
    """Return the shape of one environment step's reward.

    Args:
        spec: Environment.

    Returns:
        ``(A,)`` if agents have separate rewards, else ``()``.
    """
    return () if spec.num_agents is None or spec.shared_reward else (spec.num_agents,)


def is_image(leaf: Any, *, axes: int = 0) -> bool:
    """Return whether an array's shape and dtype are those for an image, uint8
    ``[height, width, channels]``.

    Args:
        leaf: Array or ``jax.ShapeDtypeStruct``.
        axes: Number of leading batch axes.

    Returns:
        True for an image.
    """
    return leaf.dtype == jnp.uint8 and len(leaf.shape) == axes + 3


def on_every_device(tree: PyTree) -> PyTree:
    """Replicate arrays over all devices of the current device mesh.

    Computations on the result are then not sharded. Without a mesh
    (`jax.sharding.use_abstract_mesh`) nothing changes.

    Args:
        tree: Arrays.

    Returns:
        The same values, with a replicated sharding constraint.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return tree
    return jax.lax.with_sharding_constraint(tree, jax.sharding.PartitionSpec())


X64 = 'jaxrl_fast computes in 32 bits, and jax_enable_x64 is on: write jax.config.update("jax_enable_x64", False)'


FORKED = (
    "this process was forked from one in which JAX had started, and JAX does not run in it: start it with "
    'multiprocessing.get_context("spawn")'
)


def require_own_jax() -> None:
    """Check that JAX runs in this process; after a fork, its threads are missing and calls wait for
    ever.

    Raises:
        ValueError: The process was forked after JAX had started.
    """
    if forked_after_jax():
        raise ValueError(FORKED)


NO_DEVICE = "JAX finds no such device here: write JAX_PLATFORMS=cpu, or install its driver"


def require_vectorized(env: Any, *algorithms: Any) -> None:
    """Check that an environment was made for training and evaluation, and that algorithms are
    algorithms.

    Args:
        env: Environment of a caller, which should be a `VecEnv` or a `HostEnv`.
        *algorithms: Algorithm of the caller, if it takes one.

    Raises:
        ValueError: It is a single environment, or something else, or JAX does not run in this
            process.
    """
    require_own_jax()
    vectorized = isinstance(getattr(env, "spec", None), EnvSpec) and hasattr(env, "num_envs")
    if not vectorized or not all(_is_algorithm(one) for one in algorithms):
        raise _not_an_algorithm(algorithms[0]) if vectorized else _not_vectorized(env)


def _is_algorithm(value: Any) -> bool:
    return hasattr(value, "needs_data") and not isinstance(value, type)


def _not_an_algorithm(value: Any) -> ValueError:
    if isinstance(value, str):
        return ValueError(f"algorithm={value!r} is a name: write jaxrl_fast.{value}()")
    if callable(value):
        name = getattr(value, "name", "") or getattr(value, "__name__", "it")
        kind = "class" if isinstance(value, type) else "function"
        return ValueError(
            f"algorithm={name} is a {kind}: write {name}(), which makes the algorithm"
        )
    return ValueError(f"algorithm is a {type(value).__name__}: write for example jaxrl_fast.ppo()")


def _not_vectorized(env: Any) -> ValueError:
    if _is_algorithm(env):
        return ValueError("env is an algorithm: write the environment first, then the algorithm")
    if isinstance(env, str):
        return ValueError(f"env={env!r} is a name: write jaxrl_fast.make_env({env!r}, num_envs=64)")
    if isinstance(getattr(env, "spec", None), EnvSpec):
        return ValueError(
            "env is a single environment: write jaxrl_fast.vectorize(env, num_envs=64)"
        )
    if hasattr(env, "num_envs") and hasattr(env, "single_observation_space"):
        return ValueError(
            "env is a vectorized environment of Gymnasium: give jaxrl_fast.make_env what makes a single one"
        )
    return not_ours(env)


def not_ours(env: Any) -> ValueError:
    """Return the error for an environment, or a class or function that makes one, of another
    package.

    Args:
        env: Argument of a caller.

    Returns:
        The error, with what to write.
    """
    name = getattr(env, "__name__", type(env).__name__)
    how = f'jaxrl_fast.make_env("custom", make={name}, num_envs=4), with a class or function {name} that makes one'
    return ValueError(f"env={name} is not made by jaxrl_fast: write {how}")


def require_key(key: Any) -> None:
    """Check that an argument is one random key.

    Args:
        key: Argument.

    Raises:
        ValueError: It is something else, or several keys.
    """
    dtype, shape = getattr(key, "dtype", None), np.shape(key)
    if (typed := dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)) and shape:
        raise ValueError(
            f"key has the shape {list(shape)}: write one key, or map over several by jax.vmap"
        )
    if not typed and (dtype, shape) != (np.uint32, (2,)):  # the older form of a key
        raise ValueError(f"key={key!r} is not a random key: write jax.random.key(0)")


def require_devices() -> None:
    """Start JAX, and check that it finds a device.

    Raises:
        ValueError: There is none of the platform that was asked for, or JAX does not run in this
            process.
    """
    require_own_jax()
    try:
        jax.devices()
    except (AssertionError, RuntimeError):  # JAX raises either
        raise ValueError(
            f"JAX_PLATFORMS={jax.config.values['jax_platforms'] or ''}: {NO_DEVICE}"
        ) from None


def require_32_bits() -> None:
    """Check that JAX computes in 32 bits by default.

    Raises:
        ValueError: The program has set ``jax_enable_x64``, or JAX does not run in this process.
    """
    require_own_jax()
    if jax.config.values["jax_enable_x64"]:
        raise ValueError(X64)


def over_two_axes(function: Callable[[Any], PyTree], tree: PyTree) -> PyTree:
    """Map a function over the two leading axes of a pytree.

    Equals two nested `jax.vmap`, but maps one axis of size ``E * R``: XLA compiles random draws
    over two axes of static sizes two to three times as long on a CPU, and draws are half of the
    code compiled for PPO on CartPole (JAX 0.10.2). ``E`` is the major part of the joint axis, so
    arrays sharded along ``E`` stay on their devices. One row uses two nested `jax.vmap`, because
    the joint axis made a TPU copy SAC's replay buffer in every tick.

    Args:
        function: Function of one element.
        tree: Leaves ``[R, E, ...]``.

    Returns:
        Results with leaves ``[R, E, ...]``.
    """
    rows, columns = jax.tree.leaves(tree)[0].shape[:2]
    return (
        jax.vmap(jax.vmap(function))(tree)
        if rows == 1
        else _over_joint_axis(function, tree, rows, columns)
    )


def _over_joint_axis(function: Callable[..., Any], tree: PyTree, rows: int, columns: int) -> PyTree:
    def joined(leaf: jax.Array) -> jax.Array:
        return jnp.swapaxes(leaf, 0, 1).reshape(-1, *leaf.shape[2:])

    def apart(leaf: jax.Array) -> jax.Array:
        return jnp.swapaxes(leaf.reshape(columns, rows, *leaf.shape[1:]), 0, 1)

    return jax.tree.map(apart, jax.vmap(function)(jax.tree.map(joined, tree)))


def stable_hash(name: str) -> int:
    """Hash a string to the same integer in every process, unlike `hash`.

    Args:
        name: Text.

    Returns:
        32-bit hash.
    """
    return zlib.crc32(name.encode())


def select(mask: jax.Array, on_true: PyTree, on_false: PyTree) -> PyTree:
    """Select whole elements of the leading axis, like `jnp.where`.

    Args:
        mask: Bool ``[E]``.
        on_true: Values where the mask is true, leaves ``[E, ...]``.
        on_false: Values elsewhere, leaves ``[E, ...]``; they set the dtypes.

    Returns:
        Selected values, leaves ``[E, ...]``.
    """

    def choose(a: jax.Array, b: jax.Array) -> jax.Array:
        b = jnp.asarray(b)
        return jnp.where(
            mask.reshape(mask.shape + (1,) * (b.ndim - mask.ndim)), jnp.asarray(a, b.dtype), b
        )

    return jax.tree.map(choose, on_true, on_false)
