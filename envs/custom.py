"""User environments: calls a user's function and adapts its result to an `Env` or a `HostEnv`."""

import inspect
import os
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from jaxrl_fast.envs.env import Env
from jaxrl_fast.envs.env_checks import check_env
from jaxrl_fast.envs.host_env import HostEnv

if TYPE_CHECKING:  # Gymnasium is not needed for an `Env`
    from jaxrl_fast.envs.pool.making import FilmedHost


def make(*, make: str | Callable[..., Any], **options: Any) -> Env:
    """Make a user's compiled environment.

    Args:
        make: ``my_package.make``, ``my_package:make`` or the function; the current directory is searched, too. It
            returns an `Env`, a gymnax-style environment (alone or with its parameters) or a brax-style one.
        **options: Arguments of ``make``.

    Returns:
        The environment.

    Raises:
        ValueError: The function cannot be imported, fails, or returns something else.
    """
    name, _, made = _call(make, options)
    if _is_gymnasium(made) or _is_parallel(made):
        made.close()
        raise ValueError(f"env.make={name} is stepped on the host and cannot be compiled: write make_env(...)")
    return _compiled(made, name)


def make_any(
    *, make: str | Callable[..., Any], num_envs: int, num_seeds: int, pool: dict[str, Any] | None, **options: Any
) -> Env | HostEnv:
    """Make a user's compiled environment, or a vectorized one stepped on the host.

    Args:
        make: As in `make`; it may also return a `gymnasium.Env` or a PettingZoo parallel environment.
        num_envs: Number of environments for each seed, if stepped on the host.
        num_seeds: Number of seeds that the pool serves.
        pool: Options of the pool.
        **options: Arguments of ``make``.

    Returns:
        An `Env`, or a `HostEnv` for an environment of Gymnasium or PettingZoo.

    Raises:
        ValueError: As `make`, or an option of the pool is wrong.
    """
    name, function, made = _call(make, options)
    if _is_gymnasium(made) or _is_parallel(made):
        made.close()
        given = import_module("jaxrl_fast.envs").pool_options(pool)
        host = import_module("jaxrl_fast.envs.from_gymnasium")
        again: Callable[[], Any] = partial(function, **options)
        if _is_parallel(made):
            again = partial(import_module("jaxrl_fast.envs.pool.several_agents").acting_together, again)
        return host.make_custom_host(again, num_envs=num_envs, num_seeds=num_seeds, name=name, pool=given)
    return _compiled(made, name)


def make_to_draw(*, make: str | Callable[..., Any], **options: Any) -> "Env | FilmedHost":
    """Make one user environment that can be drawn.

    Args:
        make: As in `make_any`. If the function takes ``render_mode``, it is called with ``rgb_array``.
        **options: Arguments of ``make``.

    Returns:
        An `Env`, or an environment on the host with a camera.

    Raises:
        ValueError: As `make`, or an environment on the host has no pictures.
    """
    name, function, made = _call(make, options)
    if not (_is_gymnasium(made) or _is_parallel(made)):
        return _compiled(made, name)
    parameters = inspect.signature(function).parameters
    if "render_mode" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        made.close()
        made = _call(make, {"render_mode": "rgb_array", **options})[2]
    if _is_parallel(made):
        made = import_module("jaxrl_fast.envs.pool.several_agents").AgentsTogether(made)
    return import_module("jaxrl_fast.envs.from_gymnasium").filmed(made, f"env.make={name}")


def _call(make: str | Callable[..., Any], options: dict[str, Any]) -> tuple[str, Callable[..., Any], Any]:
    name = make if isinstance(make, str) else getattr(make, "__qualname__", "make")
    function = _find(make) if isinstance(make, str) else make
    try:
        return name, function, function(**options)
    except (Exception, SystemExit) as error:
        raise ValueError(f"env.make={name} failed: {type(error).__name__}: {_one_line(error)}") from error


def _is_gymnasium(made: Any) -> bool:
    """Check for a `gymnasium.Env` without importing Gymnasium, which is imported already if one was made."""
    known = sys.modules.get("gymnasium")
    return known is not None and isinstance(made, known.Env)


def _is_parallel(made: Any) -> bool:
    """Check for the interface of a PettingZoo parallel environment."""
    return _has(made, "possible_agents", "observation_space", "action_space", "reset", "step")


def _compiled(made: Any, name: str) -> Env:
    try:
        env = as_env(made, name=name)
    except ValueError:
        raise
    except Exception as error:  # raised in the environment, which is called to infer its shapes
        what = f"env.make={name}: the {type(made).__name__} that it returned"
        raise ValueError(f"{what} failed: {type(error).__name__}: {_one_line(error)}") from error
    check_env(env, f"env.make={name}")
    return env


def as_env(made: Any, *, name: str) -> Env:
    """Convert an `Env` or an environment in the style of gymnax or brax to an `Env`.

    Args:
        made: Environment, or a pair of a gymnax-style environment and its parameters.
        name: Name in the spec and in error messages.

    Returns:
        The environment.

    Raises:
        ValueError: ``made`` is none of these.
    """
    if isinstance(made, Env):
        return made
    env, params = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if _has(env, "reset_env", "step_env", "default_params", "action_space"):
        return import_module("jaxrl_fast.envs.from_gymnax").adapt(env, params, name=name)
    if params is None and _has(env, "reset", "step", "observation_size", "action_size"):
        return import_module("jaxrl_fast.envs.from_brax").adapt(env, name=name)
    raise ValueError(
        f"env.make={name} returned {type(made).__name__}: return a jaxrl_fast.Env, one gymnasium.Env, a gymnax-style "
        "environment (reset_env, step_env, default_params), a brax-style one (reset, step, observation_size, "
        "action_size) or a PettingZoo parallel environment (possible_agents, reset, step)"
    )


def _find(path: str) -> Callable[..., Any]:
    module_name, _, attribute = path.replace(":", ".").rpartition(".")
    if not module_name or not attribute:
        raise ValueError(f"env.make={path}: write the function with its module, for example my_package.make")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = import_module(module_name)
    except (Exception, SystemExit) as error:
        hint = "; run from the folder that holds it, or install it" if isinstance(error, ModuleNotFoundError) else ""
        message = f"cannot import {module_name}: {type(error).__name__}: {_one_line(error)}{hint}"
        raise ValueError(f"env.make={path}: {message}") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise ValueError(f"env.make={path}: {module_name} has no function '{attribute}'")
    return function


def _has(env: Any, *names: str) -> bool:
    return all(hasattr(type(env), name) or hasattr(env, name) for name in names)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
