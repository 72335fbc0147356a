"""What bounds training: the environments alone, and the gradient updates alone, as graphs of their own.

They are compiled and placed like any graph, so that they stand beside training on equal terms: on a machine that both
must share, a tick of training needs at least the time of the one and then of the other.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_fast.algorithm import Algorithm, Statistics
from jaxrl_fast.core import Batches, Discrete, PyTree
from jaxrl_fast.env import VecEnv
from jaxrl_fast.fragments import experience_fragment, rollout_shapes
from jaxrl_fast.graph import Channels, Fragment, Graph
from jaxrl_fast.learners import learn_fragment
from jaxrl_fast.normalize import init_stats
from jaxrl_fast.rollout import SamplerState, start, unroll
from jaxrl_fast.schedules import resolve


def environments_only(env: VecEnv, rollout_length: int) -> Graph:
    """A tick steps every environment ``rollout_length`` times under uniform random actions."""

    def act(carry: PyTree, obs: PyTree, first: jax.Array, key: jax.Array) -> tuple:
        return random_actions(env, key), carry, ()

    def init(key: jax.Array) -> SamplerState:
        return start(env, (), key)

    def step(private: SamplerState, inputs: Channels, hyper: Any, key: jax.Array) -> tuple:
        private, rollout, metrics = unroll(env, act, private, key, rollout_length)
        return private, {}, {**metrics, "reward_sum": jnp.sum(rollout.reward)}

    return Graph((Fragment("sample", init, step, (), (), private_axes=0, width=env.num_envs, unit="environments"),))


def updates_only(env: VecEnv, algorithm: Algorithm) -> Graph:
    """A tick makes the gradient updates of one tick of training, always on the same batches of noise."""
    agent = algorithm.build(env.spec, env.num_envs)
    source = experience_fragment(env, agent)
    statistics = Statistics(init_stats(env.spec.obs), init_stats(jax.ShapeDtypeStruct((), jnp.float32)))
    hyper = resolve(algorithm.hyper, jnp.zeros(()))

    def init(key: jax.Array) -> Batches:
        shapes = rollout_shapes(env, agent)
        params = {name: agent.parts[name].init(key).params for name in agent.experience.reads}
        state = agent.experience.init(shapes)
        return agent.experience.step(state, _noise(shapes, key), params, statistics, hyper, key)[1]

    def step(private: Batches, inputs: Channels, hyper: Any, key: jax.Array) -> tuple:
        return private, {"batches": private}, {}

    axes = source.write_axes["batches"]
    batches = Fragment(
        "batches", init, step, (), ("batches",), private_axes=axes, write_axes={"batches": axes},
        width=source.width, unit=source.unit,
    )  # fmt: skip
    return Graph(
        (batches, learn_fragment(agent.parts, take=agent.experience.take)),
        hyper_at=lambda hyper, tick: resolve(hyper, jnp.zeros(())),
    )


def random_actions(env: VecEnv, key: jax.Array) -> jax.Array:
    """Uniform actions for every environment, ``[E, ...]``."""
    space = env.spec.action
    if isinstance(space, Discrete):
        return jax.random.randint(key, (env.num_envs,), 0, space.num_actions)
    shape = (env.num_envs, *space.low.shape)
    return jax.random.uniform(key, shape, jnp.float32, jnp.asarray(space.low)[None], jnp.asarray(space.high)[None])


def _noise(shapes: PyTree, key: jax.Array) -> PyTree:
    """Normal numbers where there are real ones, zeros elsewhere."""

    def fill(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        real = jnp.issubdtype(leaf.dtype, jnp.floating)
        return jax.random.normal(key, leaf.shape, leaf.dtype) if real else jnp.zeros(leaf.shape, leaf.dtype)

    return jax.tree.map(fill, shapes)
