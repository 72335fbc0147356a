"""Bounds of training, as separate graphs: sampling alone, the environments alone, and the gradient
updates alone.

They are compiled and placed like any graph, with the same joined arrays as training, so they are
comparable with it: on one machine, a tick of training needs at least the time of sampling plus the
time of the updates.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.assembly import bind, sampler
from jaxrl_fast.core import Batches, Box, Discrete, PyTree, action_shape
from jaxrl_fast.envs.env import VecEnv
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.learning.algorithm import AnyAlgorithm
from jaxrl_fast.learning.flat_params import make_learning
from jaxrl_fast.learning.rollout import SamplerState, sample_compiled, start, unroll
from jaxrl_fast.learning.run_graph import (
    experience_fragment,
    init_statistics,
    products_beside,
    rollout_shapes,
)
from jaxrl_fast.learning.updates import init_learned, learn_fragment
from jaxrl_fast.networks.network import action_mask
from jaxrl_fast.numerics.optimizers import resolve
from jaxrl_fast.runtime.graph import Channels, Fragment, Graph, ShardingAxes
from jaxrl_fast.runtime.placements import SAMPLING
from jaxrl_fast.runtime.xla_options import starts_kernels_singly
from jaxrl_fast.spaces import draw_allowed


def sampling_only(env: VecEnv | HostEnv, algorithm: AnyAlgorithm) -> Graph:
    """Build a graph that samples as training does, with constant parameters; the rollout is stored
    and not used.

    Args:
        env: Environments.
        algorithm: Algorithm.

    Returns:
        The graph.
    """
    agent = bind(algorithm, env.spec, env.num_envs)
    sample = sampler(env, agent, joined=starts_kernels_singly(jax.default_backend()))

    def init(key: jax.Array) -> dict[str, PyTree]:
        return {
            **init_learned(agent, agent.acting.parts, key),
            "statistics": init_statistics(env, agent),
        }

    def step(private: dict[str, PyTree], inputs: Channels, hyper: Any, key: jax.Array) -> tuple:
        return private, {channel: private[channel] for channel in sample.reads}, {}

    def init_store(key: jax.Array) -> PyTree:
        return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), rollout_shapes(env, agent))

    def store(private: PyTree, inputs: Channels, hyper: Any, key: jax.Array) -> tuple:
        return inputs["rollout"], {}, {}

    policy = Fragment("policy", init, step, reads=(), writes=sample.reads)
    # Without a reader the compiler removes the parts of a rollout that only updates need.
    stored = Fragment(
        "stored",
        init_store,
        store,
        reads=("rollout",),
        writes=(),
        division=ShardingAxes(1, {}, env.num_envs, "environments"),
    )
    return Graph((policy, sample, stored), products=agent.products)


def environments_only(env: VecEnv, rollout_length: int) -> Graph:
    """Build a graph that steps every environment with uniform random actions.

    Args:
        env: Compiled environments.
        rollout_length: Steps of each environment in a tick.

    Returns:
        The graph.
    """

    def act(carry: PyTree, obs: PyTree, first: jax.Array, key: jax.Array) -> tuple:
        return random_actions(env, key, action_mask(obs)), carry, ()

    def init(key: jax.Array) -> SamplerState:
        return start(env, (), key)

    def make(env: VecEnv) -> Fragment:
        def step(private: SamplerState, inputs: Channels, hyper: Any, key: jax.Array) -> tuple:
            private, rollout, metrics = unroll(env, act, private, key, rollout_length)
            return private, {}, {**metrics, "reward_sum": jnp.sum(rollout.reward)}

        division = ShardingAxes(0, {}, env.num_envs, "environments")
        return Fragment(
            "sample", init, step, reads=(), writes=(), division=division, tags=(SAMPLING,)
        )

    return Graph((sample_compiled(make, env, rollout_length),))


def host_environments_only(env: HostEnv) -> Callable[[int], None]:
    """Return a function that steps host environments with uniform random actions that masks allow, in
    alternating groups.

    Args:
        env: Host environments.

    Returns:
        ``run(num_steps)``, with the steps of every environment.
    """
    size, rng = env.num_seeds * env.num_envs // env.num_groups, np.random.default_rng(0)
    space = env.spec.action
    if not isinstance(space, Box):
        sizes = (space.num_actions,) if isinstance(space, Discrete) else space.sizes
        shape = (64, size, *action_shape(env.spec))
        numbers = space.num_actions if isinstance(space, Discrete) else space.sizes
        actions = rng.integers(0, numbers, shape, np.int32)
    else:
        sizes = ()
        actions = rng.uniform(space.low, space.high, (64, size, *space.low.shape)).astype(
            np.float32
        )
    started = action_mask(env.reset(list(range(env.num_seeds))))
    masks: list[Any] = [None] * env.num_groups
    if started is not None:
        masks = np.split(np.asarray(started), env.num_groups)

    def draw(t: int, group: int) -> np.ndarray:
        if masks[group] is None or not sizes:
            return actions[t % len(actions)]
        uniform = rng.random(masks[group].shape)
        return draw_allowed(masks[group], sizes, uniform, np).reshape(actions.shape[1:])

    def run(num_steps: int) -> None:
        for t in range(num_steps + 1):
            for group in range(env.num_groups):
                if t > 0:
                    masks[group] = action_mask(env.recv(group).obs)
                if t < num_steps:
                    env.send(draw(t, group), group)

    return run


def updates_only(env: VecEnv | HostEnv, algorithm: AnyAlgorithm) -> Graph:
    """Build a graph that makes the gradient updates of training, always on the same batches of
    random numbers.

    Args:
        env: Environments.
        algorithm: Algorithm.

    Returns:
        The graph.
    """
    agent = bind(algorithm, env.spec, env.num_envs)
    source = experience_fragment(env, agent)
    statistics = init_statistics(env, agent)
    hyper = resolve(algorithm.hyper, jnp.zeros(()))

    def init(key: jax.Array) -> Batches:
        shapes = rollout_shapes(env, agent)
        learned = init_learned(agent, agent.experience.reads, key)
        state = agent.experience.init(shapes)
        return agent.experience.step(state, _noise(shapes, key), learned, statistics, hyper, key)[1]

    def step(private: Batches, inputs: Channels, hyper: Any, key: jax.Array) -> tuple:
        return private, {"batches": private}, {}

    learning = make_learning(agent, joined=starts_kernels_singly(jax.default_backend()))
    division = source.division._replace(private=source.division.writes["batches"])
    batches = Fragment("batches", init, step, reads=(), writes=("batches",), division=division)
    fragments = batches, learn_fragment(learning)
    rates = lambda hyper, tick: resolve(hyper, jnp.zeros(()))  # noqa: E731
    return Graph(fragments, hyper_at=rates, products=products_beside(env, agent))


def share_of_bound(training_s: float, environments_s: float, updates_s: float) -> float:
    """Return the time of environments and updates, each alone, as a share of the time of training.

    Args:
        training_s: Seconds of some ticks of training.
        environments_s: Seconds of the environments for as many ticks.
        updates_s: Seconds of the updates for as many ticks.

    Returns:
        1 if training does both one after the other and nothing else.
    """
    return (environments_s + updates_s) / training_s


def random_actions(env: VecEnv, key: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """Draw uniform actions for every environment.

    Args:
        env: Environments.
        key: Random key.
        mask: Allowed values of discrete actions, bool ``[E, ..., n]``; None for all.

    Returns:
        Actions ``[E, ...]``.
    """
    space, shape = env.spec.action, (env.num_envs, *action_shape(env.spec))
    if not isinstance(space, Box):
        numbers = space.num_actions if isinstance(space, Discrete) else jnp.asarray(space.sizes)
        if mask is not None:
            sizes = (space.num_actions,) if isinstance(space, Discrete) else space.sizes
            uniform = jax.random.uniform(key, mask.shape)
            return draw_allowed(mask, sizes, uniform, jnp).reshape(shape)
        return jax.random.randint(key, shape, 0, jnp.broadcast_to(numbers, shape))
    low, high = (jnp.broadcast_to(jnp.asarray(bound), shape) for bound in (space.low, space.high))
    return jax.random.uniform(key, shape, jnp.float32, low, high)


def _noise(shapes: PyTree, key: jax.Array) -> PyTree:
    """Return normal numbers for floating-point leaves, zeros for others."""

    def fill(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        real = jnp.issubdtype(leaf.dtype, jnp.floating)
        return (
            jax.random.normal(key, leaf.shape, leaf.dtype)
            if real
            else jnp.zeros(leaf.shape, leaf.dtype)
        )

    return jax.tree.map(fill, shapes)
