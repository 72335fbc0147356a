"""User environments: calls a user's function and adapts its result to an `Env` or a `HostEnv`."""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxrl_fast.core import not_ours, require_32_bits
from jaxrl_fast.envs.adapter_utils import layers_of, relaxed
from jaxrl_fast.envs.env import A_COUNT, Env, VecEnv, is_count
from jaxrl_fast.envs.env import vectorize as copies_of
from jaxrl_fast.envs.env_checks import check_shapes, check_start
from jaxrl_fast.envs.errors import RuleBroken
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.system import fault_of, import_function

if TYPE_CHECKING:  # Gymnasium is not needed for an `Env`
    from jaxrl_fast.envs.pool.making import FilmedHost


def make(*, make: str | Callable[..., Any], **options: Any) -> Env:
    """Make a user's compiled environment.

    Args:
        make: ``my_package.make``, ``my_package:make`` or the function; the current directory is
            searched, too. It returns an `Env`, a gymnax-style environment (alone or with its
            parameters) or a brax-style one.
        **options: Arguments of ``make``. ``episode_length`` or ``max_episode_steps`` is the time
            limit in steps, unless ``make`` has a parameter of that name.

    Returns:
        The environment.

    Raises:
        ValueError: The function cannot be imported, fails, or returns something else.
    """
    called = _call(make, options)
    if _is_gymnasium(called.made) or _is_parallel(called.made) or _is_batched(called.made):
        getattr(called.made, "close", lambda: None)()
        raise ValueError(
            f"env.make={called.name} is stepped on the host and cannot be compiled: write make_env(...)"
        )
    return _compiled(called)


def make_any(
    *,
    make: str | Callable[..., Any],
    num_envs: int,
    num_seeds: int,
    pool: dict[str, Any] | None,
    **options: Any,
) -> Env | HostEnv:
    """Make a user's compiled environment, or a vectorized one stepped on the host.

    Args:
        make: As in `make`; it may also return a `gymnasium.Env`, a PettingZoo parallel environment
            or a simulator of many environments (`envs.from_batched`). It gets ``num_envs`` if it
            has a parameter of that name.
        num_envs: Number of environments for each seed, if stepped on the host.
        num_seeds: Number of seeds that the pool serves.
        pool: Options of the pool.
        **options: As in `make`.

    Returns:
        An `Env`, or a `HostEnv` where it is stepped on the host.

    Raises:
        ValueError: As `make`, or an option of the pool is wrong.
    """
    called = _call(make, options, num_envs)
    if _is_batched(called.made):
        return _simulator(called, num_envs, num_seeds, pool)
    if _is_gymnasium(called.made) or _is_parallel(called.made):
        pool_values = import_module("jaxrl_fast.envs").pool_options(pool)
        host = import_module("jaxrl_fast.envs.from_gymnasium")
        again: Callable[[], Any] = partial(called.function, **called.options)
        first = called.made
        if _is_parallel(first):
            agents = import_module("jaxrl_fast.envs.pool.several_agents")
            again = partial(agents.acting_together, again, called.episode_length)
            first = agents.AgentsTogether(first, called.episode_length)
        sizes = {
            "num_envs": num_envs,
            "num_seeds": num_seeds,
            "max_episode_steps": called.episode_length,
        }
        pictured = getattr(first, "render_mode", None) == "rgb_array" or _takes_render_mode(
            called.function
        )
        made = host.make_custom_host(
            again, name=called.name, pool=pool_values, first=first, **sizes
        )
        return made._replace(draws=made.draws and pictured)
    return _compiled(called)


def make_to_draw(*, make: str | Callable[..., Any], **options: Any) -> "Env | FilmedHost":
    """Make one user environment that can be drawn.

    Args:
        make: As in `make_any`. If the function takes ``render_mode``, it is called with
            ``rgb_array``.
        **options: As in `make`.

    Returns:
        An `Env`, or an environment on the host with a camera.

    Raises:
        ValueError: As `make`, or an environment on the host has no pictures.
    """
    called = _call(make, options)
    if _is_batched(called.made):
        raise ValueError(
            f"env.make={called.name} is a simulator of many, of which nothing is drawn here: use its renderer"
        )
    if not (_is_gymnasium(called.made) or _is_parallel(called.made)):
        return _compiled(called)
    if _takes_render_mode(called.function):
        getattr(called.made, "close", lambda: None)()
        called = _call(make, {"render_mode": "rgb_array", **options})
    made, limit = called.made, called.episode_length
    host = import_module("jaxrl_fast.envs.from_gymnasium")
    if _is_parallel(made):
        made = import_module("jaxrl_fast.envs.pool.several_agents").AgentsTogether(made, limit)
    elif limit is not None:
        made = host.recipes.limited(lambda: made, limit)
    return host.filmed(made, f"env.make={called.name}", limit)


LIMITS = ("episode_length", "max_episode_steps")
"""Options with the time limit in steps."""


class Called(NamedTuple):
    """What a user's function returned.

    Attributes:
        name: Name of the function.
        function: The function.
        options: Its arguments.
        made: Its result.
        episode_length: Time limit in steps that is not an argument of the function, or None.
    """

    name: str
    function: Callable[..., Any]
    options: dict[str, Any]
    made: Any
    episode_length: int | None


def _simulator(
    called: Called, num_envs: int, num_seeds: int, pool: dict[str, Any] | None
) -> HostEnv:
    """Make a host environment of a simulator of many."""
    if called.episode_length is not None:
        raise ValueError(
            f"env.make={called.name} is a simulator, which sets its limit: leave env.episode_length out"
        )
    options = import_module("jaxrl_fast.envs").pool_options(pool)
    if options._replace(num_groups=None, workers=options.workers or "auto") != type(options)():
        raise ValueError(f"env.make={called.name} is one simulator and has no pool: leave pool out")

    def again(number: int) -> Any:
        sizes = {"num_envs": number} if "num_envs" in called.options else {}
        return called.function(**called.options | sizes)

    from_batched = import_module("jaxrl_fast.envs.from_batched")
    return from_batched.make_host(
        again, called.made, name=called.name, num_envs=num_envs, num_seeds=num_seeds
    )


def vectorize(env: Env, *, num_envs: int) -> VecEnv:
    """Run copies of a single environment as a `VecEnv`, after a check of its shapes and dtypes.

    Args:
        env: Single environment.
        num_envs: Number of copies.

    Returns:
        The vectorized environment.

    Raises:
        ValueError: ``num_envs``, the time limit or the shortest episode is not a positive whole
            number, or ``env`` is not an `Env` or breaks one of its rules.
    """
    require_32_bits()
    if isinstance(env, VecEnv | HostEnv):
        raise ValueError("env is vectorized already: write jaxrl_fast.learn(env, ...)")
    if not isinstance(env, Env):
        raise not_ours(env)
    name = getattr(env.spec, "name", "env")
    with _rules(name):
        check_shapes(env, name)
    return copies_of(env, num_envs=num_envs)


@contextmanager
def _rules(what: str) -> Iterator[None]:
    """Raise errors as `RuleBroken` in one line; ``what`` is the environment, whose functions are
    called.
    """
    try:
        yield
    except ValueError as error:
        raise RuleBroken(_one_line(error)) from error
    except Exception as error:  # raised in the environment, which is called to infer its shapes
        raise RuleBroken(f"{what} failed: {fault_of(error)}") from error


def _call(make: str | Callable[..., Any], options: dict[str, Any], num_envs: int = 1) -> Called:
    name = make if isinstance(make, str) else getattr(make, "__qualname__", "make")
    function = import_function(make, "env.make") if isinstance(make, str) else make
    limits = {
        key: options[key]
        for key in LIMITS
        if options.get(key) is not None and key not in _parameters(function)
    }
    for key, limit in limits.items():
        if not is_count(limit):
            raise ValueError(f"env.{key}={limit}: {A_COUNT}")
    if len(limits) > 1:
        raise ValueError(
            f"env.{' and env.'.join(limits)} are both the time limit: write env.episode_length only"
        )
    arguments = {key: value for key, value in options.items() if key not in limits}
    arguments |= {"num_envs": num_envs} if "num_envs" in _parameters(function) else {}
    _check_takes(name, function, arguments)
    try:
        made = relaxed(function)(**arguments)
    except (Exception, SystemExit) as error:
        raise ValueError(f"env.make={name} failed: {fault_of(error)}") from error
    if _has(made, "agent_iter", "possible_agents", "last"):
        raise ValueError(
            f"env.make={name} returned {type(made).__name__}, a PettingZoo environment whose agents take turns: return "
            "pettingzoo.utils.aec_to_parallel(env), or turn_based_aec_to_parallel(env) for a game of turns"
        )
    return Called(
        name=name,
        function=function,
        options=arguments,
        made=made,
        episode_length=next(iter(limits.values()), None),
    )


def _check_takes(name: str, function: Callable[..., Any], options: Iterable[str]) -> None:
    """Refuse an option that the function does not take."""
    parameters = _parameters(function).values()
    if not parameters or any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    takes = [p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY]
    for option in options:
        if option not in takes:
            close = get_close_matches(option, takes, n=1)
            hint = f"did you mean +env.{close[0]}=...?" if close else f"it takes {', '.join(takes)}"
            raise ValueError(f"env.make={name} takes no option '{option}': {hint}")


def _is_batched(made: Any) -> bool:
    """Check for the interface of a simulator of many environments, also inside Gymnasium's
    wrappers.
    """
    if _is_gymnasium(made):
        return all(
            hasattr(made.unwrapped, name) for name in ("num_envs", "single_observation_space")
        )
    alone = (
        isinstance(made, Env | tuple) or _has(made, "step_env") or _has(made, "observation_size")
    )
    return not alone and _has(made, "num_envs", "reset", "step")


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # of a function written in C
        return {}


def _takes_render_mode(function: Callable[..., Any]) -> bool:
    parameters = _parameters(function)
    return "render_mode" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _is_gymnasium(made: Any) -> bool:
    """Check for a `gymnasium.Env` without importing Gymnasium, which is imported already if one was
    made.
    """
    gymnasium = sys.modules.get("gymnasium")
    return gymnasium is not None and isinstance(made, gymnasium.Env)


def _is_parallel(made: Any) -> bool:
    """Check for the interface of a PettingZoo parallel environment."""
    return _has(made, "possible_agents", "observation_space", "action_space", "reset", "step")


def _compiled(called: Called) -> Env:
    with _rules(f"env.make={called.name}: the {type(called.made).__name__} that it returned"):
        env = as_env(called.made, name=called.name, episode_length=called.episode_length)
        check_start(env, f"env.make={called.name}")
        return env


def _limited(env: Env, episode_length: int | None) -> Env:
    return (
        env
        if episode_length is None
        else env._replace(spec=env.spec._replace(max_episode_steps=episode_length))
    )


def as_env(made: Any, *, name: str, episode_length: int | None = None) -> Env:
    """Convert an `Env` or an environment in the style of gymnax or brax to an `Env`.

    Wrappers are called, but wrappers of brax, MuJoCo Playground and gymnax make no batches and do
    not reset.

    Args:
        made: Environment, or a pair of a gymnax-style environment and its parameters.
        name: Name in the spec and in error messages.
        episode_length: Time limit in steps, or None for the environment's.

    Returns:
        The environment.

    Raises:
        ValueError: ``made`` is none of these, or has a wrapper that is not supported.
    """
    if isinstance(made, Env):
        return _limited(made, episode_length)
    env, params = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if _has(env, "reset_env", "step_env", "default_params", "action_space"):
        from_gymnax = import_module("jaxrl_fast.envs.from_gymnax")
        params = from_gymnax.with_limit(env, params, episode_length)
        return _limited(
            from_gymnax.adapt(from_gymnax.unwrapped(env, params, name), params, name=name),
            episode_length,
        )
    if params is None and _has(env, "reset", "step", "observation_size", "action_size"):
        from_brax = import_module("jaxrl_fast.envs.from_brax")
        single, limit = from_brax.unwrapped(env, name, episode_length)
        return from_brax.adapt(single, name=name, max_episode_steps=limit)
    if _has(made, "reset", "step", "observation_space", "action_space") and not hasattr(
        made, "num_envs"
    ):
        raise ValueError(
            f"env.make={name} returned {type(made).__name__}, which is no gymnasium.Env: derive it from gymnasium.Env; "
            "reset returns (obs, info), and step returns (obs, reward, terminated, truncated, info)"
        )
    raise ValueError(
        f"env.make={name} returned {type(made).__name__}: return a jaxrl_fast.Env, one gymnasium.Env, a gymnax-style "
        "environment (reset_env, step_env, default_params), a brax-style one (reset, step, observation_size, "
        "action_size), a PettingZoo parallel environment (possible_agents, reset, step) or a simulator of many "
        "(num_envs, reset, step)"
    )


def _has(env: Any, *names: str) -> bool:
    """Check whether an environment, or one that it wraps, has attributes, without computing brax's
    properties.
    """
    classes = [type(layer) for layer, _ in layers_of(env)]
    inside = takewhile(lambda outer: hasattr(outer[0], "__getattr__"), pairwise(classes))
    classes = [classes[0], *(inner for _, inner in inside)]
    return all(any(hasattr(cls, name) for cls in classes) or hasattr(env, name) for name in names)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
