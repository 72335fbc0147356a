"""Adapter of gymnax's environments (https://github.com/RobertTLange/gymnax, 1.0+).

This is the only file that imports gymnax.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import EnvSpec, PyTree, Timestep
from jaxrl_fast.envs import drawings
from jaxrl_fast.envs.adapter_utils import (
    Delegating,
    actions_of,
    around,
    import_later,
    is_discrete,
    layers_of,
    like,
    relaxed,
    settled,
)
from jaxrl_fast.envs.env import FRESH_INTERVAL, Env, SampleParams, no_params
from jaxrl_fast.envs.env_checks import check_shapes
from jaxrl_fast.envs.options import EnvOptions, OptionalCount, check_others, read_options

# Only for its pictures, and the slowest imports, with pandas and SciPy: so before gymnax.
import_later("seaborn", "matplotlib.pyplot")
import gymnax  # noqa: E402

REFUSED = {"MNISTBandit-bsuite": "it downloads a data set when made"}
LONG_EPISODES = (
    "CartPole-v1",
    "Pendulum-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Freeway-MinAtar",
    "Catch-bsuite",
    "DeepSea-bsuite",
    "DiscountingChain-bsuite",
    "BernoulliBandit-misc",
    "GaussianBandit-misc",
    "PointRobot-misc",
    "Reacher-misc",
    "Swimmer-misc",
)
"""Environments whose episodes last at least `FRESH_INTERVAL` steps with default parameters,
whatever the actions.
"""


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


@dataclass(frozen=True, kw_only=True)
class Options(EnvOptions):
    """Options of a gymnax environment."""

    episode_length: OptionalCount = None
    """Time limit in steps; None for gymnax's default."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Values that override gymnax's default parameters."""


def make(id: str, **values: Any) -> Env:
    """Make a registered gymnax environment.

    Args:
        id: gymnax id.
        **values: `Options`.

    Returns:
        The environment.

    Raises:
        ValueError: Unsupported id, episode length below 1, or a parameter that is unknown or of the
            wrong kind.
    """
    if id in REFUSED:
        raise ValueError(f"env.id={id}: gymnax's {id} is not supported: {REFUSED[id]}")
    chosen = read_options(Options, values, f"gymnax {id}")
    options = dict(chosen.others)
    env, params = gymnax.make(id)
    check_others(f"gymnax {id}", options, vars(params))
    shortest = FRESH_INTERVAL if id in LONG_EPISODES and not options else 1
    if chosen.episode_length is not None:
        options["max_steps_in_episode"] = chosen.episode_length
    params = params.replace(**options)
    adapted = adapt(env, params, name=id)._replace(
        shortest_episode=shortest, **_pictures(id, env, params)
    )
    if options:
        check_shapes(adapted, f"gymnax {id} with these options")
    return adapted


def adapt(
    env: Any, params: Any = None, *, name: str, sample_params: SampleParams = no_params
) -> Env:
    """Convert an object with gymnax's interface to an `Env`.

    Args:
        env: gymnax-style environment.
        params: gymnax parameters, or None for the defaults.
        name: Name in the spec.
        sample_params: ``(key) -> gymnax parameters``, or ``()`` for ``params``; called for every
            episode.

    Returns:
        The environment.
    """
    default = env.default_params if params is None else params
    reset_one, step_one, is_truncated = (
        relaxed(env.reset_env),
        relaxed(env.step_env),
        _truncation(env),
    )
    is_number = is_discrete(obs_space := env.observation_space(default))

    def observed(obs: PyTree) -> PyTree:
        if is_number:
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
        return GymnaxState(following, state.params), Timestep(
            obs, obs, reward, terminated, truncated
        )

    obs = jax.eval_shape(lambda key: reset(key, sample_params(key))[1], jax.random.key(0))
    limit = getattr(default, "max_steps_in_episode", None)
    spec = EnvSpec(
        name,
        obs,
        actions_of(env.action_space(default), name),
        None if limit is None else int(limit),
    )
    return Env(spec, reset, step, sample_params)


NORMALIZING = {
    "NormalizeVecObservation": "write algo.normalize_observations=true",
    "NormalizeVecReward": "write algo.normalize_rewards=true",
}
"""Wrappers of purejaxrl with statistics of a batch -> what to write instead."""
OWN_STEP = "it resets itself there, and jaxrl_fast calls step_env: override step_env and reset_env"


def unwrapped(env: Any, params: Any, name: str) -> Any:
    """Return a wrapped environment with ``reset_env`` and ``step_env`` that call its wrappers and
    do not reset.

    gymnax's ``step`` also starts the next episode. Wrappers override it, and their ``step_env`` is
    the environment's. So the wrappers are put around an environment whose ``step`` does not reset.

    Args:
        env: gymnax-style environment, with or without wrappers.
        params: gymnax parameters, or None for the defaults.
        name: Name in error messages.

    Returns:
        The environment; ``env`` if it has no wrappers.

    Raises:
        ValueError: A wrapper is not supported.
    """
    layers = layers_of(env)
    for layer, _ in layers[:-1]:
        _check_layer(layer, name)
    steppable = [
        index for index, (layer, _) in enumerate(layers) if hasattr(type(layer), "step_env")
    ]
    core = steppable[0] if steppable else len(layers) - 1
    for layer, _ in layers[core:]:
        if overrides(layer, "step", "step_env") or overrides(layer, "reset", "reset_env"):
            raise ValueError(f"{name}: {type(layer).__name__} overrides step or reset: {OWN_STEP}")
    if not any(
        hasattr(type(layer), method) for layer, _ in layers[:core] for method in ("step", "reset")
    ):
        return env  # at most its spaces differ
    default = env.default_params if params is None else params
    failed: Exception | None = None
    for num_values in (6, 5):
        inner: Any = _Unending(layers[core][0], num_values)
        for layer, held in reversed(layers[:core]):
            inner = around(layer, held, inner, name)
        wrapped = _Wrapped(inner, f"{name}: {type(env).__name__}")
        try:
            _trace(wrapped, default)
        except ValueError as error:
            if "to unpack" not in str(error):
                raise ValueError(f"{wrapped.what}: {' '.join(str(error).split())}") from error
            failed = failed or error
        else:
            return wrapped
    raise ValueError(f"{wrapped.what}: step failed: {failed}")


def with_limit(env: Any, params: Any, episode_length: int | None) -> Any:
    """Return an environment's parameters with another time limit, if they have one.

    Args:
        env: gymnax-style environment.
        params: gymnax parameters, or None for the defaults.
        episode_length: Time limit in steps, or None for the environment's.

    Returns:
        The parameters.
    """
    base_params = env.default_params if params is None else params
    if episode_length is None or not (
        hasattr(base_params, "max_steps_in_episode") and hasattr(base_params, "replace")
    ):
        return params
    return base_params.replace(max_steps_in_episode=episode_length)


def overrides(layer: Any, method: str, basis: str) -> bool:
    """Check whether an environment overrides a method below the class that defines another one.

    Args:
        layer: Environment.
        method: Method, such as ``step``.
        basis: Method that ``method`` calls, such as ``step_env``.

    Returns:
        Whether the first class with ``method`` is a subclass of the first class with ``basis``, or
        there is no such class.
    """
    classes = type(layer).__mro__
    first = [
        next((i for i, cls in enumerate(classes) if which in vars(cls)), len(classes))
        for which in (method, basis)
    ]
    return first[0] < first[1]


def _check_layer(layer: Any, name: str) -> None:
    class_name = type(layer).__name__
    if class_name in NORMALIZING:
        raise ValueError(
            f"{name}: {class_name} has statistics that a policy's files would lack: {NORMALIZING[class_name]} instead"
        )
    stored = next(
        (
            attribute
            for attribute in ("reset", "step")
            if attribute in getattr(layer, "__dict__", {})
        ),
        None,
    )
    if stored or class_name.startswith("GymnaxTo"):
        why = f"stores {stored} of a batch" if stored else "gives another library's interface"
        raise ValueError(
            f"{name}: {class_name} {why}: return the environment inside it; jaxrl_fast makes the batch"
        )


def _trace(env: Any, params: Any) -> None:
    """Trace one step to find out whether the wrappers unpack as many values as they get."""

    def once(key: jax.Array) -> Any:
        _, state = relaxed(env.reset_env)(key, params)
        action = env.action_space(params).sample(key)
        return relaxed(env.step_env)(key, state, action, params)

    jax.eval_shape(once, jax.random.key(0))


class _Unending(Delegating):
    """A gymnax-style environment whose ``step`` and ``reset`` are of one episode, so that it never
    resets itself.
    """

    def __init__(self, env: Any, num_values: int) -> None:
        super().__init__(env)
        self.num_values, self.truncates = num_values, _truncation(env)

    def reset(self, key: jax.Array, params: Any = None) -> tuple[Any, Any]:
        """Start an episode."""
        return self.env.reset_env(key, self.env.default_params if params is None else params)

    def step(self, key: jax.Array, state: Any, action: Any, params: Any = None) -> tuple[Any, ...]:
        """Step as gymnax, but with the terminal observation and state at the end of an episode."""
        params = self.env.default_params if params is None else params
        obs, following, reward, terminated, *_, info = self.env.step_env(key, state, action, params)
        truncated = self.truncates(following, params)
        ends = {"terminated": terminated, "truncated": truncated, "final_observation": obs}
        flags = (
            (terminated, truncated)
            if self.num_values == 6
            else (jnp.logical_or(terminated, truncated),)
        )
        return obs, following, reward, *flags, {**info, **ends}


class _Wrapped(Delegating):
    """A gymnax-style environment whose ``reset_env`` and ``step_env`` are ``reset`` and ``step`` of
    a wrapper.
    """

    def __init__(self, env: Any, what: str) -> None:
        super().__init__(env)
        self.what = what

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        """Start an episode; a state is the wrapper's, and whether the step to it was truncated."""
        obs, state = self.env.reset(key, params)
        return obs, (state, jnp.zeros((), bool))

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> tuple[Any, ...]:
        """Step the wrapper."""
        obs, following, reward, *ends, info = self.env.step(key, state[0], action, params)
        if not 1 <= len(ends) <= 2 or (len(ends) == 1 and "truncated" not in info):
            raise ValueError("step must return obs, state, reward, terminated, truncated and info")
        terminated, truncated = ends if len(ends) == 2 else (info["terminated"], info["truncated"])
        return obs, (following, jnp.asarray(truncated, bool).reshape(())), reward, terminated, info

    def is_truncated(self, state: Any, params: Any) -> jax.Array:
        """Return whether the step to this state was truncated."""
        return state[1]


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
    """Return ``is_truncated(state, params)``, which gymnax 1.0 has and an environment in its style
    may lack.
    """
    if not hasattr(env, "is_truncated"):
        return lambda state, params: jnp.zeros((), bool)
    is_truncated = relaxed(env.is_truncated)
    return lambda state, params: jnp.asarray(is_truncated(state, params), bool).reshape(())
