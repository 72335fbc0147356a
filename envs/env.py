"""Compiled environments: a single one (`Env`), a vectorized one (`VecEnv`), and the conversion
(`vectorize`).

Every `VecEnv` guarantees, and tests check, that

* environments do not influence each other;
* after ``terminated | truncated``, ``obs`` starts a new episode and ``next_obs`` is the terminal
  observation;
* an episode that spans two rollouts is counted once.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast import spaces
from jaxrl_fast.core import (
    EnvSpec,
    EpisodeTotals,
    MadeEnv,
    Metrics,
    PyTree,
    Timestep,
    over_two_axes,
    require_32_bits,
    reward_shape,
    select,
)
from jaxrl_fast.envs.episode_metrics import (
    add_metrics,
    check_names,
    metric_sums,
    no_metrics,
    values_of,
)

FRESH_INTERVAL = 8
"""Largest number of steps that share one row of the bank of initial states (see
`VecEnv.draw_fresh`), unless an environment declares `Env.steps_per_reset`.
"""
NUM_GROUPS = 2
"""Groups of environments that share initial states where resets cost more than steps, so that two
devices need no communication for them; more devices do. The number does not depend on the devices,
since results must not.
"""


def no_params(key: jax.Array) -> tuple[()]:
    """Return no parameters: `Env.sample_params` of an environment without randomization.

    Args:
        key: Unused.

    Returns:
        ``()``.
    """
    del key
    return ()


SampleParams = Callable[[jax.Array], PyTree]
"""``(key) -> params``: samples what differs between episodes (domain randomization) for
`Env.reset`, which stores it in the state if ``step`` needs it.
"""


Draw = Callable[[PyTree], np.ndarray]
"""``(state) -> picture``: RGB, uint8 ``[height, width, 3]``, the same size for every state.
``python -m jaxrl_fast.render`` calls it outside of compiled programs, so it may use NumPy.
"""


class Triangles(NamedTuple):
    """The surface of a mesh.

    Attributes:
        vertices: Float32 ``[V, 3]`` in metres, in the frame of the geom.
        faces: Three indices of vertices each, int32 ``[F, 3]``, counter-clockwise as seen from
            outside.
    """

    vertices: np.ndarray
    faces: np.ndarray


class Geom(NamedTuple):
    """A shape that is fixed to a body, with the conventions of MuJoCo
    (https://mujoco.readthedocs.io, XMLreference).

    Attributes:
        kind: ``plane``, ``sphere``, ``capsule``, ``ellipsoid``, ``cylinder``, ``box``, ``mesh``, or
            another word.
        body: Index of the body; -1 for a static shape.
        position: ``(x, y, z)`` in metres, in the body's frame.
        rotation: Unit quaternion ``(w, x, y, z)``, in the body's frame.
        size: Three numbers in metres, radii and half lengths, whose meaning depends on the kind.
        color: ``(red, green, blue, opacity)`` in [0, 1]; None if the model does not define one.
        mesh: The surface of a ``mesh``, else None.
    """

    kind: str
    body: int
    position: tuple[float, ...]
    rotation: tuple[float, ...]
    size: tuple[float, ...]
    color: tuple[float, ...] | None
    mesh: Triangles | None = None


class Scene(NamedTuple):
    """Everything that can be drawn of an environment.

    Attributes:
        title: Title of the picture.
        geoms: Shapes.
        step_s: Simulated time per step in seconds.
    """

    title: str
    geoms: tuple[Geom, ...]
    step_s: float


class Motion(NamedTuple):
    """The motion of ``B`` bodies in one episode of ``T`` steps, including the first and the last
    state.

    Attributes:
        positions: In metres, ``[T + 1, B, 3]``.
        rotations: Unit quaternions ``(w, x, y, z)``, ``[T + 1, B, 4]``.
        rewards: Reward of each step, ``[T]``.
        terminated: Whether the episode ended by termination, not by the time limit.
    """

    positions: np.ndarray
    rotations: np.ndarray
    rewards: np.ndarray
    terminated: bool


class Bodies(NamedTuple):
    """How an environment with bodies is drawn.

    Attributes:
        scene: ``() -> Scene``, collects the shapes.
        pose: ``(state) -> (positions [..., B, 3], rotations [..., B, 4])`` of the bodies in states,
            as in `Motion`; pure.
    """

    scene: Callable[[], Scene]
    pose: Callable[[Any], tuple[Any, Any]]


class Env(NamedTuple):
    """A single environment without a batch axis. All its functions but ``draw`` are pure.

    Attributes:
        spec: Observations, actions and time limit.
        reset: ``(key, params) -> (state, obs)``, starts an episode with parameters of
            ``sample_params``.
        step: ``(state, action, key) -> (state, Timestep)``. ``action`` is in the spec's action
            space, ``[A, ...]`` with several agents. ``obs`` and ``next_obs`` of the result are
            equal, since a single environment does not reset itself.
        sample_params: ``(key) -> params``, samples the parameters of an episode.
        shortest_episode: Lower bound of an episode's steps. Fewer initial states are sampled if it
            is larger.
        step_s: Duration of a step in pictures, in seconds.
        draw: ``(state) -> picture``, or None if states cannot be drawn.
        success: ``(state) -> bool``, whether a state is a success, such as a reached goal. An
            episode is a success if its last state is. None without such a criterion.
        bodies: How MuJoCo's renderer and the page of an episode draw states, or None. It precedes
            ``draw``.
        steps_per_reset: Number of steps for which one draw of initial states serves, where a reset
            costs more than a step; episodes may be shorter. None for as many as `FRESH_INTERVAL`
            and ``shortest_episode`` allow.
    """

    spec: EnvSpec
    reset: Callable[[jax.Array, PyTree], tuple[PyTree, PyTree]]
    step: Callable[[PyTree, jax.Array, jax.Array], tuple[PyTree, Timestep]]
    sample_params: SampleParams = no_params
    shortest_episode: int = 1
    step_s: float = 0.1
    draw: Draw | None = None
    success: Callable[[PyTree], jax.Array] | None = None
    bodies: Bodies | None = None
    steps_per_reset: int | None = None


Index = jax.Array | int
"""Index of a step in a bank of initial states."""


class VecState(NamedTuple):
    """State of a `VecEnv`.

    Attributes:
        env_state: States of the environments, leaves ``[E, ...]``.
        episode: Totals of the running episodes, ``[E]``.
    """

    env_state: PyTree
    episode: EpisodeTotals


def sum_episodes(done: jax.Array, episode: EpisodeTotals) -> Metrics:
    """Sum over the episodes that ended in a rollout.

    Args:
        done: Whether an episode ended, bool ``[T, E]``.
        episode: Totals of the episodes so far, ``[T, E]``.

    Returns:
        Number of episodes, and sums of their returns and lengths.
    """
    done &= episode.length > 0  # excludes steps that a lost worker did not make
    returns, lengths = (jnp.sum(jnp.where(done, x, 0)) for x in (episode.returns, episode.length))
    return {
        "episodes": jnp.sum(done, dtype=jnp.int32),
        "episode_return_sum": returns,
        "episode_length_sum": lengths,
    }


def sum_metrics(spec: EnvSpec, done: jax.Array, episode: EpisodeTotals) -> Metrics:
    """Sum over the episodes that ended in a rollout, as `sum_episodes`, and also their metrics.

    Args:
        spec: Environment with metrics.
        done: Whether an episode ended, bool ``[T, E]``.
        episode: Totals of the episodes so far, ``[T, E]``.

    Returns:
        The sums, and `metric_sums`.
    """
    counted, values = done & (episode.length > 0), values_of(spec.metrics, episode.metrics, jnp)
    return sum_episodes(done, episode) | metric_sums(spec.metrics, counted, values, (0, 1), jnp)


class VecEnv(NamedTuple):
    """A vectorized environment with time limit, auto-reset and episode totals. All its functions
    are pure.

    Attributes:
        spec: Spec of each environment.
        num_envs: Number of environments, ``E``.
        reset: ``(key) -> (state, obs [E, ...])``, starts an episode in every environment.
        draw_fresh: ``(key, num_steps) -> bank``, samples rows of ``E`` initial states and
            observations for the resets of the next steps, outside any scan. A row serves
            `FRESH_INTERVAL` steps, or fewer if ``shortest_episode`` is smaller, so that no
            environment starts twice from the same state and no step pays for a reset. A row of
            `Env.steps_per_reset` steps is passed on from environment to environment, with the same
            result.
        step: ``(state, action [E, ...], key, bank, t) -> (state, Timestep [E, ...])``, takes one
            step in every environment and resets those whose episode ended. ``bank`` is the result
            of ``draw_fresh``, ``t`` the step's index in it.
        env: The single environment that is copied, or None.
        sums: ``(done [T, E], totals [T, E]) -> metrics``, sums over the episodes that ended in a
            rollout, outside of its scan, because a sum over ``E`` is an all-reduce.
        made: How `jaxrl_fast.make_env` made it; None if another function did.
        steps_per_draw: Steps that a row of ``draw_fresh`` serves where resets cost more than steps,
            else 0. A row may then last over several rollouts.
    """

    spec: EnvSpec
    num_envs: int
    reset: Callable[[jax.Array], tuple[VecState, PyTree]]
    draw_fresh: Callable[[jax.Array, int], PyTree]
    step: Callable[[VecState, jax.Array, jax.Array, PyTree, Index], tuple[VecState, Timestep]]
    env: Env | None = None
    sums: Callable[[jax.Array, EpisodeTotals], Metrics] = sum_episodes
    made: MadeEnv | None = None
    steps_per_draw: int = 0


def with_image_axes(env: Env) -> Env:
    """Return an environment whose images are ``[height, width, channels]``.

    Args:
        env: Single environment.

    Returns:
        The environment, unless it has images with other axes (`spaces.layout_of`): then its
        observations are encoded as on the host, and a policy takes the environment's own.
    """
    spec = env.spec
    leaves = jax.tree.leaves(spec.obs)
    described = all(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves)
    if spec.obs_space is not None or spec.num_agents is not None or not described:
        return env
    space = spaces.with_layouts(spaces.space_of_arrays(spec.obs))
    parts = spaces.parts_of(space)
    if not any("layout" in part.space for part in parts):
        return env

    def encode(obs: PyTree) -> PyTree:
        leaves = jax.tree.leaves(obs)
        values = {part.path: leaf for part, leaf in zip(parts, leaves, strict=True)}
        return spaces.encode(space, values, jnp)

    def reset(key: jax.Array, params: PyTree) -> tuple[PyTree, PyTree]:
        state, obs = env.reset(key, params)
        return state, encode(obs)

    def step(state: PyTree, action: jax.Array, key: jax.Array) -> tuple[PyTree, Timestep]:
        state, timestep = env.step(state, action, key)
        obs = encode(timestep.next_obs)
        return state, timestep._replace(obs=obs, next_obs=obs)

    obs = jax.eval_shape(encode, spec.obs)
    return env._replace(spec=spec._replace(obs=obs, obs_space=space), reset=reset, step=step)


def describe_images(spec: EnvSpec) -> list[str]:
    """Describe images whose axes training changes, or their shapes do not determine.

    Args:
        spec: Vectorized environment, or one of `with_image_axes`.

    Returns:
        A line for each image.
    """
    if spec.num_agents is not None:
        return []
    return spaces.describe_images(spec.obs_space or spaces.space_of_arrays(spec.obs))


def vectorize(env: Env, *, num_envs: int) -> VecEnv:
    """Run copies of a single environment as a `VecEnv`.

    Args:
        env: Single environment.
        num_envs: Number of copies.

    Returns:
        The vectorized environment.

    Raises:
        ValueError: ``num_envs``, the time limit or the shortest episode is not a positive whole
            number. ``step`` also raises it for metrics that the spec does not declare.
    """
    require_32_bits()
    if not is_count(num_envs):
        raise ValueError(
            f"num_envs={num_envs!r}: at least one environment is needed, for example num_envs=64"
        )
    env = with_image_axes(env)
    limit = env.spec.max_episode_steps
    for what, steps in (("max_episode_steps", limit), ("shortest_episode", env.shortest_episode)):
        if not (is_count(steps) or (steps is None and what == "max_episode_steps")):
            raise ValueError(f"{env.spec.name}: {what}={steps!r}: {A_COUNT}")
    add_step, sums = (
        _counting(env.spec)
        if env.spec.metrics or reward_shape(env.spec)
        else (_with_step, sum_episodes)
    )
    interval = max(1, min(FRESH_INTERVAL, env.shortest_episode, limit or FRESH_INTERVAL))

    def reset_one(key: jax.Array) -> tuple[PyTree, PyTree]:
        params_key, reset_key = jax.random.split(key)
        return env.reset(reset_key, env.sample_params(params_key))

    def reset(key: jax.Array) -> tuple[VecState, PyTree]:
        env_state, obs = jax.vmap(reset_one)(jax.random.split(key, num_envs))
        return VecState(env_state, no_totals(env.spec, num_envs)), obs

    def draw_fresh(key: jax.Array, num_steps: int) -> PyTree:
        rows = -(-num_steps // interval)
        return over_two_axes(reset_one, jax.random.split(key, (rows, num_envs)))

    def step(
        state: VecState, action: jax.Array, key: jax.Array, bank: PyTree, t: Index
    ) -> tuple[VecState, Timestep]:
        env_state, timestep = jax.vmap(env.step)(
            state.env_state, action, jax.random.split(key, num_envs)
        )
        reward = timestep.reward.astype(jnp.float32)
        episode = add_step(state.episode, reward, timestep.metrics)
        terminated, truncated = timestep.terminated.astype(bool), timestep.truncated.astype(bool)
        if limit is not None:
            truncated |= episode.length >= limit
        truncated &= ~terminated
        done = terminated | truncated
        success = () if env.success is None else jax.vmap(env.success)(env_state).astype(bool)
        fresh = jax.tree.map(lambda rows: rows[t // interval], bank)
        env_state, obs = select(done, fresh, (env_state, timestep.next_obs))
        running, totals = (
            select(done, no_totals(env.spec, num_envs), episode),
            episode._replace(success=success),
        )
        return VecState(env_state, running), Timestep(
            obs, timestep.next_obs, reward, terminated, truncated, totals
        )

    made = VecEnv(env.spec, num_envs, reset, draw_fresh, step, env, sums)
    return made if env.steps_per_reset is None else _sharing(made, env, interval)


def _sharing(vec: VecEnv, env: Env, row_steps: int) -> VecEnv:
    """Draw initial states only once in `Env.steps_per_reset` steps, or as often as needed for the
    rule of `draw_fresh`.

    Between two steps that may both start an episode, a row moves on by one environment, within
    `NUM_GROUPS`.
    """
    if not is_count(env.steps_per_reset):
        raise ValueError(f"{env.spec.name}: steps_per_reset={env.steps_per_reset!r}: {A_COUNT}")
    groups = math.gcd(NUM_GROUPS, vec.num_envs)
    size, lap = (
        vec.num_envs // groups,
        min(env.shortest_episode, env.spec.max_episode_steps or env.shortest_episode),
    )
    interval = min(env.steps_per_reset or 1, lap * size)

    def draw_fresh(key: jax.Array, num_steps: int) -> PyTree:
        # one row after another: a reset may need much memory
        keys = jax.random.split(key, -(-num_steps // interval))
        return jax.tree.map(
            lambda x: x[:, 0], jax.lax.map(lambda key: vec.draw_fresh(key, row_steps), keys)
        )

    def step(
        state: VecState, action: jax.Array, key: jax.Array, bank: PyTree, t: Index
    ) -> tuple[VecState, Timestep]:
        taken = (jnp.arange(size) + t % interval // lap) % size

        def moved(rows: jax.Array) -> jax.Array:
            row = rows[t // interval]
            grouped = row.reshape(groups, size, *row.shape[1:])
            return jnp.take(grouped, taken, axis=1).reshape(1, *row.shape)

        return vec.step(state, action, key, jax.tree.map(moved, bank), 0)

    return vec._replace(draw_fresh=draw_fresh, step=step, steps_per_draw=interval)


A_COUNT = "write a whole number of at least 1 that 32 bits hold (2,147,483,647)"
"""Advice after a value that is not `is_count`."""


def is_count(value: Any) -> bool:
    """Check whether a value is a positive int32.

    Args:
        value: Any value.

    Returns:
        True for Python and NumPy integers from 1 to 2,147,483,647, but not for bools.
    """
    return (
        isinstance(value, int | np.integer)
        and not isinstance(value, bool)
        and 1 <= int(value) < 2**31
    )


def no_totals(spec: EnvSpec, num_envs: int) -> EpisodeTotals:
    """Return the totals of episodes that start.

    Args:
        spec: Spec of the environments.
        num_envs: Number of environments, ``E``.

    Returns:
        Zeros ``[E]``, ``[E, A]`` for agents with separate rewards, and ``[E, K]`` for metrics.
    """
    shape = reward_shape(spec)
    agents = jnp.zeros((num_envs, *shape), jnp.float32) if shape else ()
    metrics = no_metrics(spec.metrics, num_envs, jnp) if spec.metrics else ()
    return EpisodeTotals(
        returns=jnp.zeros(num_envs, jnp.float32),
        length=jnp.zeros(num_envs, jnp.int32),
        success=(),
        agents=agents,
        metrics=metrics,
    )


def _with_step(before: EpisodeTotals, reward: jax.Array, metrics: Any) -> EpisodeTotals:
    """Add a step of an environment with one reward and no metrics to the totals ``[E]``."""
    return EpisodeTotals(before.returns + reward, before.length + 1)


def _counting(spec: EnvSpec) -> tuple[Callable[..., EpisodeTotals], Callable[..., Metrics]]:
    """Return the functions that add a step, and sum ended episodes, of several agents or with
    metrics.
    """
    return partial(_with_all, spec), partial(sum_metrics, spec) if spec.metrics else sum_episodes


def _with_all(
    spec: EnvSpec, before: EpisodeTotals, reward: jax.Array, metrics: Any
) -> EpisodeTotals:
    """Add a step with ``reward`` ``[E]``, or ``[E, A]`` for agents with separate rewards, and
    metrics ``[E]``.
    """
    several = reward_shape(spec)
    returns = before.returns + (jnp.sum(reward, axis=1) if several else reward)
    agents = before.agents + reward if several else ()
    if not spec.metrics:
        return EpisodeTotals(returns, before.length + 1, (), agents)
    check_names(spec.metrics, jax.tree.map(lambda x: x[0], metrics), spec.name)
    values = jnp.stack([jnp.asarray(metrics[name], jnp.float32) for name in spec.metrics], axis=-1)
    return EpisodeTotals(
        returns=returns,
        length=before.length + 1,
        success=(),
        agents=agents,
        metrics=add_metrics(spec.metrics, before.metrics, values, jnp),
    )
