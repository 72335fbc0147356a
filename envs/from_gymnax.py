"""Adapter of gymnax's environments (https://github.com/RobertTLange/gymnax, 1.0+).

This is the only file that imports gymnax.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import spaces

from jaxrl_fast.core import Box, Discrete, EnvSpec, PyTree, Timestep
from jaxrl_fast.envs import drawings
from jaxrl_fast.envs.adapter_utils import import_later, like, relaxed, settled
from jaxrl_fast.envs.env import FRESH_INTERVAL, Env, SampleParams, no_params
from jaxrl_fast.envs.env_checks import check_option, check_shapes

import_later("seaborn", "matplotlib.pyplot")  # only for its pictures; the slowest imports, with pandas and SciPy

REFUSED = {"MNISTBandit-bsuite": "it downloads a data set when made"}
LONG_EPISODES = tuple(
    "CartPole-v1 Pendulum-v1 Acrobot-v1 MountainCar-v0 MountainCarContinuous-v0 Freeway-MinAtar Catch-bsuite "
    "DeepSea-bsuite DiscountingChain-bsuite BernoulliBandit-misc GaussianBandit-misc PointRobot-misc "
    "Reacher-misc Swimmer-misc".split()
)
"""Environments whose episodes last at least `FRESH_INTERVAL` steps with default parameters, whatever the actions."""


class GymnaxState(NamedTuple):
    """State of an environment.

    Attributes:
        state: gymnax's state.
        params: gymnax parameters of this episode; ``()`` for the defaults.
    """

    state: PyTree
    params: PyTree


def ids() -> list[str]:
    """List the registered ids that are supported.

    Returns:
        Sorted ids.
    """
    return sorted(set(gymnax.registered_envs) - set(REFUSED))


def make(id: str, *, episode_length: int | None = None, **options: Any) -> Env:
    """Make a registered gymnax environment.

    Args:
        id: gymnax id.
        episode_length: Time limit in steps, or None for gymnax's default.
        **options: Values that override gymnax's default parameters.

    Returns:
        The environment.

    Raises:
        ValueError: Unsupported id, episode length below 1, or a parameter that is unknown or of the wrong kind.
    """
    if id in REFUSED:
        raise ValueError(f"env.id={id}: gymnax's {id} is not supported: {REFUSED[id]}")
    env, params = gymnax.make(id)
    unknown = sorted(set(options) - set(vars(params)))
    if unknown:
        known = ", ".join(sorted(vars(params)))
        raise ValueError(f"gymnax {id} has no parameter '{unknown[0]}': write one of {known}")
    for option, value in options.items():
        check_option(f"env.{option}", value, getattr(params, option))
    shortest = FRESH_INTERVAL if id in LONG_EPISODES and not options else 1
    if episode_length is not None:
        if episode_length < 1:
            raise ValueError(f"env.episode_length={episode_length}: an episode has at least one step, write 500")
        options["max_steps_in_episode"] = episode_length
    params = params.replace(**options)
    adapted = adapt(env, params, name=id)._replace(shortest_episode=shortest, **_pictures(id, env, params))
    if options:
        check_shapes(adapted, f"gymnax {id} with these options")
    return adapted


def adapt(env: Any, params: Any = None, *, name: str, sample_params: SampleParams = no_params) -> Env:
    """Convert an object with gymnax's interface to an `Env`.

    Args:
        env: gymnax-style environment.
        params: gymnax parameters, or None for the defaults.
        name: Name in the spec.
        sample_params: ``(key) -> gymnax parameters``, or ``()`` for ``params``; called for every episode.

    Returns:
        The environment.
    """
    default = env.default_params if params is None else params
    reset_one, step_one, is_truncated = relaxed(env.reset_env), relaxed(env.step_env), _truncation(env)
    obs_space = env.observation_space(default)

    def observed(obs: PyTree) -> PyTree:
        if isinstance(obs_space, spaces.Discrete):
            return jax.nn.one_hot(obs, obs_space.n, dtype=jnp.float32)
        return settled(obs)

    def reset(key: jax.Array, params: PyTree) -> tuple[GymnaxState, PyTree]:
        obs, state = reset_one(key, default if params == () else params)
        return GymnaxState(settled(state), params), observed(obs)

    def step(state: GymnaxState, action: jax.Array, key: jax.Array) -> tuple[GymnaxState, Timestep]:
        params = default if state.params == () else state.params
        obs, following, reward, terminated, *_ = step_one(key, state.state, action, params)
        following, obs = like(following, state.state), observed(obs)
        terminated = jnp.asarray(terminated, bool).reshape(())
        truncated = is_truncated(following, params) & ~terminated
        reward = jnp.asarray(reward, jnp.float32).reshape(())
        return GymnaxState(following, state.params), Timestep(obs, obs, reward, terminated, truncated)

    obs = jax.eval_shape(lambda key: reset(key, sample_params(key))[1], jax.random.key(0))
    limit = getattr(default, "max_steps_in_episode", None)
    spec = EnvSpec(name, obs, _action_space(name, env.action_space(default)), None if limit is None else int(limit))
    return Env(spec, reset, step, sample_params)


def _pictures(id: str, env: Any, params: Any) -> dict[str, Any]:
    """Return `Env.draw` and `Env.step_s` if the environment can be drawn."""
    if id in drawings.LINES:
        picture, step_s = drawings.LINES[id]
        return {"draw": lambda state: picture(state.state, params), "step_s": float(step_s(params))}
    if not drawings.is_grid(jnp.shape(jax.eval_shape(env.reset_env, jax.random.key(0), params)[0])):
        return {}
    observe = jax.jit(lambda state: env.observe(jax.random.key(0), state, None, params))
    return {"draw": lambda state: drawings.grid(observe(state.state))}


def _truncation(env: Any) -> Callable[[PyTree, PyTree], jax.Array]:
    """Return ``is_truncated(state, params)``, which gymnax 1.0 has and an environment in its style may lack."""
    if not hasattr(env, "is_truncated"):
        return lambda state, params: jnp.zeros((), bool)
    is_truncated = relaxed(env.is_truncated)
    return lambda state, params: jnp.asarray(is_truncated(state, params), bool).reshape(())


def _action_space(name: str, space: Any) -> Discrete | Box:
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    if not isinstance(space, spaces.Box):
        raise ValueError(f"{name} has actions of kind {type(space).__name__}; Discrete and Box are supported")
    low = np.broadcast_to(np.asarray(space.low, np.float32), space.shape)
    high = np.broadcast_to(np.asarray(space.high, np.float32), space.shape)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ValueError(f"{name} has unbounded actions; write an environment with finite bounds")
    return Box(low, high)
