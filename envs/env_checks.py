"""Checks of a user environment's shapes and dtypes against its spec, before training is compiled."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import (
    OUT,
    STATE,
    Actions,
    Box,
    Discrete,
    EnvSpec,
    MultiDiscrete,
    PyTree,
    Timestep,
    action_shape,
    reward_shape,
)
from jaxrl_fast.envs.env import Draw, Env, is_count
from jaxrl_fast.numerics.normalization import is_mask


def check_env(env: Env, name: str) -> None:
    """Check a user's environment for `vectorize`.

    Only its reset is compiled, and only the first state is drawn.

    Args:
        env: Environment.
        name: Name in error messages.

    Raises:
        ValueError: A shape or dtype is wrong, the first observation is not finite, or the picture is wrong.
    """
    check_shapes(env, name)
    state, first = jax.jit(lambda key: env.reset(key, env.sample_params(key)))(jax.random.key(0))
    for leaf in jax.tree.leaves(first):
        if jnp.issubdtype(leaf.dtype, jnp.floating) and not jnp.all(jnp.isfinite(leaf)):
            raise ValueError(f"{name}: reset gives a NaN or an infinity in its observation")
    if env.draw is not None:
        check_picture(env.draw, state, name)


def check_picture(draw: Draw, state: PyTree, name: str) -> None:
    """Check that a state can be drawn.

    Args:
        draw: `Env.draw`.
        state: State to draw.
        name: Name in error messages.

    Raises:
        ValueError: ``draw`` fails or does not return uint8 ``[height, width, 3]``.
    """
    try:
        picture = draw(state)
    except Exception as error:
        raise ValueError(f"{name}: draw failed: {type(error).__name__}: {_first_line(error)}") from error
    shape, dtype = np.shape(picture), getattr(picture, "dtype", type(picture).__name__)
    if dtype != np.uint8 or len(shape) != 3 or shape[2] != 3 or not all(shape):
        raise ValueError(f"{name}: draw gives {dtype}{list(shape)}: write uint8[height, width, 3], an RGB picture")


def check_shapes(env: Env, name: str) -> None:
    """Check the shapes and dtypes of an environment without computing anything.

    Args:
        env: Environment.
        name: Name in error messages.

    Raises:
        ValueError: ``sample_params``, ``reset``, ``step`` or ``success`` fails or contradicts the spec.
    """
    _check_observations(name, env.spec)
    action, key = _an_action(name, env.spec), jax.random.key(0)
    params = _shapes(name, "sample_params", env.sample_params, key)
    began = _shapes(name, "reset", env.reset, key, params)
    if not (isinstance(began, tuple) and len(began) == 2):
        raise ValueError(f"{name}: reset must return (state, observation)")
    state, obs = began
    _require_like(name, "reset gives an observation", obs, "its spec", env.spec.obs)
    stepped = _shapes(name, "step", env.step, state, action, key)
    if not (isinstance(stepped, tuple) and len(stepped) == 2 and isinstance(stepped[1], Timestep)):
        raise ValueError(f"{name}: step must return (state, jaxrl_fast.Timestep)")
    after, timestep = stepped
    _require_like(name, "step gives a state", after, "reset", state)
    _require_like(name, "step gives a next_obs", timestep.next_obs, "its spec", env.spec.obs)
    for field, kind in (("terminated", "bool"), ("truncated", "bool")):
        _require_numbers(name, f"step gives {field}", getattr(timestep, field), kind)
    _require_numbers(name, "step gives reward", timestep.reward, "real number", reward_shape(env.spec))
    if env.success is not None:
        _require_numbers(name, "success gives", _shapes(name, "success", env.success, after), "bool")


def check_spaces(spec: EnvSpec, name: str) -> None:
    """Check the observations and actions of any environment, compiled or on the host.

    Args:
        spec: Environment.
        name: Name in error messages.

    Raises:
        ValueError: Training does not support them.
    """
    _check_observations(name, spec)
    _an_action(name, spec)


def check_option(name: str, value: Any, default: Any) -> None:
    """Check that an option is a bool or a number if its default is one.

    Args:
        name: Name of the option in error messages.
        value: Value to check.
        default: Default value.

    Raises:
        ValueError: The value is of another kind.
    """
    if isinstance(default, bool) and not isinstance(value, bool):
        raise ValueError(f"{name}={value}: write true or false")
    number = isinstance(default, int | float) and not isinstance(default, bool)
    if number and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"{name}={value}: write a number, such as {default}")


def _shapes(name: str, what: str, function: Callable[..., Any], *args: Any) -> Any:
    try:
        return jax.eval_shape(function, *args)
    except Exception as error:
        raise ValueError(f"{name}: {what} failed: {type(error).__name__}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


def _check_observations(name: str, spec: EnvSpec) -> None:
    if not isinstance(spec, EnvSpec):
        raise ValueError(f"{name}: its spec is {type(spec).__name__}: write a jaxrl_fast.EnvSpec")
    odd = _odd_observation(spec.obs)
    if odd is not None:
        raise ValueError(
            f"{name}: its spec has an observation {odd!r}: write jax.ShapeDtypeStruct(shape, dtype) with a dtype such "
            "as jnp.float32, or a dictionary, list or tuple of them"
        )
    leaves = jax.tree_util.tree_leaves_with_path(spec.obs)
    if sum(math.prod(leaf.shape) for path, leaf in leaves if not is_mask(path)) < 1:
        raise ValueError(f"{name}: its spec has no numbers to observe: write jax.ShapeDtypeStruct(shape, dtype)")
    _check_agents(name, spec)
    for mask in [leaf for path, leaf in leaves if is_mask(path)]:
        wanted = () if spec.num_agents is None else (spec.num_agents,)
        size = num_choices(spec.action)
        if size and mask.shape != (*wanted, size):
            raise ValueError(
                f"{name}: action_mask has shape {list(mask.shape)}: write one bool for each of the {size} "
                f"{'actions' if isinstance(spec.action, Discrete) else 'values of all parts of an action'}"
                + (" of each agent" if wanted else "")
            )


def num_choices(space: Actions) -> int:
    """Return the length of an ``action_mask``.

    Args:
        space: Action space.

    Returns:
        Number of actions, or of the values of all parts; 0 for continuous actions.
    """
    if isinstance(space, Box):
        return 0
    return space.num_actions if isinstance(space, Discrete) else sum(space.sizes)


def _check_agents(name: str, spec: EnvSpec) -> None:
    """Check that observations have an axis for the agents if there are several."""
    if spec.num_agents is None:
        return
    if not is_count(spec.num_agents):
        raise ValueError(f"{name}: num_agents={spec.num_agents!r}: write a whole number of at least 1")
    own = {key: leaf for key, leaf in spec.obs.items() if key != STATE} if isinstance(spec.obs, dict) else spec.obs
    for leaf in jax.tree.leaves(own):
        if leaf.shape[:1] != (spec.num_agents,):
            raise ValueError(
                f"{name}: its spec has an observation of shape {list(leaf.shape)}: with num_agents={spec.num_agents} "
                f"write [{spec.num_agents}, ...], one row for each agent; only '{STATE}' has no agent axis"
            )
    out = own.get(OUT) if isinstance(own, dict) else None
    if out is not None and (out.shape != (spec.num_agents,) or out.dtype != jnp.bool_):
        raise ValueError(f"{name}: '{OUT}' is {out.dtype}{list(out.shape)}: write bool[{spec.num_agents}]")


def _odd_observation(spec: PyTree) -> Any:
    """Return the first part of an observation's spec that is not supported in training or policy files, or None."""
    if isinstance(spec, dict | list | tuple):
        inside = list(spec.values()) if isinstance(spec, dict) else spec
        keys = [key for key in spec if not isinstance(key, str)] if isinstance(spec, dict) else []
        return next((odd for odd in (*keys, *map(_odd_observation, inside)) if odd is not None), None)
    known = isinstance(spec, jax.ShapeDtypeStruct) and _is_real(spec.dtype) and jnp.result_type(spec) == spec.dtype
    return None if known or spec is None else spec


def _an_action(name: str, spec: EnvSpec) -> jax.ShapeDtypeStruct:
    space = spec.action
    if isinstance(space, MultiDiscrete) and space.sizes and all(map(is_count, space.sizes)):
        return jax.ShapeDtypeStruct(action_shape(spec), jnp.int32)
    if isinstance(space, Discrete) and is_count(space.num_actions):
        return jax.ShapeDtypeStruct(action_shape(spec), jnp.int32)
    if isinstance(space, Box) and all(isinstance(x, np.ndarray | np.generic | jax.Array) for x in space):
        low, high = np.asarray(space.low), np.asarray(space.high)
        real = _is_real(low.dtype) and _is_real(high.dtype)
        if real and low.shape == high.shape and low.size and np.isfinite([low, high]).all() and (low < high).all():
            return jax.ShapeDtypeStruct(action_shape(spec), jnp.float32)
    raise ValueError(
        f"{name}: actions {space!r} are not supported: write Discrete(n) with n >= 1, or "
        "Box(low, high) with arrays of finite bounds, low < high, or MultiDiscrete(sizes)"
    )


def _require_like(name: str, what: str, given: PyTree, whose: str, wanted: PyTree) -> None:
    def text(tree: PyTree) -> str:
        shown = jax.tree.map(lambda x: f"{jnp.result_type(x)}{list(jnp.shape(x))}", tree)
        return str(shown).replace("'", "")

    if text(given) != text(wanted):
        raise ValueError(f"{name}: {what} {text(given)}, but {whose} has {text(wanted)}: shapes and dtypes must agree")


def _require_numbers(name: str, what: str, value: Any, kind: str, shape: tuple[int, ...] = ()) -> None:
    wanted = f"write {'one' if shape == () else 'for each agent one'} {kind}, shape {list(shape)}"
    if not isinstance(value, jax.ShapeDtypeStruct):
        raise ValueError(f"{name}: {what} {value}: {wanted}")
    fits = jnp.issubdtype(value.dtype, jnp.bool_) if kind == "bool" else _is_real(value.dtype) and value.dtype != bool
    if value.shape != shape or not fits:
        raise ValueError(f"{name}: {what} {value.dtype}{list(value.shape)}: {wanted}")


def _is_real(dtype: Any) -> bool:
    """Check whether an observation may have this dtype: real numbers or bools."""
    return any(jnp.issubdtype(dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_))
