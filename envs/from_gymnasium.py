"""Adapter of Gymnasium environments (https://gymnasium.farama.org, 1.1+), stepped on the host by
`envs.pool`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium
import jax
import numpy as np

from jaxrl_fast.core import Actions, Box, Discrete, EnvSpec, MultiDiscrete
from jaxrl_fast.envs.env_checks import check_spaces
from jaxrl_fast.envs.episode_metrics import check_kinds
from jaxrl_fast.envs.host_env import HostEnv, HostStep, TakeEvents
from jaxrl_fast.envs.options import Kinds, OptionalCount, read_options
from jaxrl_fast.envs.pool import from_envpool, recipes, stepping
from jaxrl_fast.envs.pool.batches import PoolOptions, check_options
from jaxrl_fast.envs.pool.codec import Outside
from jaxrl_fast.envs.pool.making import (
    Camera,
    FilmedHost,
    in_process,
    make_pool,
    measurement,
    step_cost_s,
)
from jaxrl_fast.envs.pool.stepping import (
    RENDER_MODE,
    HostEnvSpec,
    MakeGymnasium,
    PoolError,
    describe,
    make_one,
    of_env,
)

Wrappers = Sequence[str | Mapping[str, Mapping[str, Any]]]
UNKNOWN_FPS = 10.0
"""Steps per second in the pictures of an environment without ``render_fps``."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a Gymnasium environment."""

    wrappers: Wrappers = ()
    """Wrappers by name, in order: ``["FlattenObservation", {"my_package.Scale": {"factor": 2}}]``.
    """
    max_episode_steps: OptionalCount = None
    """Time limit in steps; None for the limit registered with the id."""
    metrics: Kinds = None
    """Kinds of the entries of ``info`` to report, by name, as in `EnvSpec`; None for those that the
    environment declares, or the means of all numbers. EnvPool reports none."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment's constructor."""


def _recipe(id: str, options: Options, **more: Any) -> MakeGymnasium:
    return recipes.recipe(
        id,
        wrappers=options.wrappers,
        max_episode_steps=options.max_episode_steps,
        **options.others,
        **more,
    )


def make_host(
    id: str,
    *,
    num_envs: int,
    num_seeds: int = 1,
    pool: PoolOptions = PoolOptions(),
    **given: Any,
) -> HostEnv:
    """Make a vectorized host environment of any Gymnasium id.

    The shape and dtype of a Box observation do not change (64 bits become 32). Discrete
    observations become one-hot vectors. A Dict or Tuple becomes a dictionary of arrays, with images
    and an ``action_mask`` as in a compiled environment (`pool.codec.encode_obs`). MultiDiscrete and
    MultiBinary actions become `MultiDiscrete`.

    Args:
        id: Gymnasium id. ``my_package:MyEnv-v0`` imports ``my_package`` first.
        num_envs: Number of environments for each seed.
        num_seeds: Number of seeds that the pool serves.
        pool: Options of the pool.
        **given: `Options`.

    Returns:
        The environment.

    Raises:
        ValueError: Unknown id, option or wrapper, unsupported spaces, or options that EnvPool does
            not support.
    """
    options = read_options(Options, given, f"gymnasium {id}")
    wrappers, metrics = options.wrappers, options.metrics
    pool = check_options(pool, num_envs, num_seeds)
    make = _recipe(id, options)
    limit = options.max_episode_steps or recipes.find(id).max_episode_steps
    if pool.backend == "envpool":
        if num_seeds > 1:
            raise ValueError(
                f"num_seeds={num_seeds}: pool.backend=envpool serves one: write pool.backend=workers"
            )
        if wrappers or pool.order != "fixed":
            raise ValueError(
                "pool.backend=envpool takes no wrappers and no pool.order: write pool.backend=workers"
            )
        sizes = {"num_envs": num_envs, "num_groups": pool.num_groups or 1}
        host = from_envpool.make(id, max_episode_steps=limit, **sizes, **options.others)
        return host._replace(
            bridge=pool.bridge, draws=id.rpartition("-v")[0] in from_envpool.SERVES
        )
    known = _looked_at.pop(_key_of(id, options), None)
    known = known or describe(make, id, measure=measurement(pool, num_envs * num_seeds))
    if metrics is not None:
        check_kinds(metrics, f"env.metrics of {id}")
        known = known._replace(metrics=dict(metrics))
    return pooled(
        make, id, limit, num_envs, num_seeds, pool, _could_envpool(id, wrappers), known=known
    )


_looked_at: dict[str, HostEnvSpec] = {}
"""Results of `look` that the next `make_host` with equal arguments uses instead of another
environment.
"""


def look(id: str, **given: Any) -> Actions:
    """Make one environment to read its spaces, measure a step, and close it.

    Args:
        id: As in `make_host`.
        **given: `Options`.

    Returns:
        The space of actions.

    Raises:
        ValueError: As `make_host`.
    """
    options = read_options(Options, given, f"gymnasium {id}")
    host_spec = describe(_recipe(id, options), id, measure=step_cost_s)
    _looked_at[_key_of(id, options)] = host_spec
    return env_spec(host_spec).action


def _key_of(id: str, options: Options) -> str:
    own = sorted(options.others.items())
    return repr((id, list(options.wrappers), options.max_episode_steps, own))


def make_custom_host(
    make: Callable[[], Any],
    *,
    num_envs: int,
    num_seeds: int = 1,
    name: str = "",
    pool: PoolOptions = PoolOptions(),
    max_episode_steps: int | None = None,
    first: Any = None,
) -> HostEnv:
    """Make a vectorized host environment of a user's function.

    Args:
        make: Returns a `gymnasium.Env`. Closures and lambdas of a notebook are supported.
        num_envs: Number of environments for each seed.
        num_seeds: Number of seeds that the pool serves.
        name: Name in the spec, or "" for the name of ``make``.
        pool: Options of the pool.
        max_episode_steps: Time limit in steps, or None for the environment's.
        first: Result of ``make`` that gives the spaces and is then closed; None to make one.

    Returns:
        The environment.

    Raises:
        ValueError: ``make`` fails, returns something else, or cannot be sent to worker processes.
    """
    pool = check_options(pool, num_envs, num_seeds)
    if pool.backend == "envpool":
        raise ValueError("pool.backend=envpool is for env=gymnasium: leave it out for env=custom")
    name, limit = name or getattr(make, "__qualname__", "make"), max_episode_steps
    again = partial(recipes.limited, make, limit) if limit else make
    return pooled(again, name, limit, num_envs, num_seeds, pool, first=first)


def film(id: str, **given: Any) -> FilmedHost:
    """Make one environment that can be drawn.

    Args:
        id: As in `make_host`.
        **given: `Options`.

    Returns:
        The environment and its camera.

    Raises:
        ValueError: As `make_host`, or the environment has no pictures.
    """
    options = read_options(Options, given, f"gymnasium {id}")
    make = _recipe(id, options, render_mode=RENDER_MODE)
    return filmed(
        make_one(make, id), id, options.max_episode_steps or recipes.find(id).max_episode_steps
    )


def filmed(env: gymnasium.Env, name: str, limit: int | None = None) -> FilmedHost:
    """Convert one environment to a host environment with a camera.

    Args:
        env: Environment with ``render_mode="rgb_array"``.
        name: Name in the spec and in error messages.
        limit: Time limit in steps that ``env`` enforces, or None.

    Returns:
        The environment and its camera.

    Raises:
        ValueError: The environment has no pictures, or its spaces are not supported.
    """
    if env.render_mode != RENDER_MODE:
        env.close()
        raise ValueError(
            f"{name} cannot be drawn: its render_mode is {env.render_mode}, and only {RENDER_MODE} gives pictures: "
            "add an argument render_mode to the function that makes it, and pass it to the environment"
        )
    if stepping.lacks_pygame(env):
        env.close()
        raise ValueError(
            f"{name} cannot be drawn: it needs pygame: pip install 'jaxrl_fast[video]'"
        )
    camera = Camera(env)
    host_spec = of_env(camera, lambda: camera, name)
    host = in_process(host_spec, env_spec(host_spec, limit), num_envs=1)
    host = by_entries(host) if isinstance(host.spec.obs, dict) else host
    return FilmedHost(
        host, camera.picture, 1 / float(env.metadata.get("render_fps") or UNKNOWN_FPS)
    )


def env_spec(host_spec: HostEnvSpec, max_episode_steps: int | None = None) -> EnvSpec:
    """Convert the spec of a host environment to an `EnvSpec`.

    Args:
        host_spec: Spec of the host environment.
        max_episode_steps: Time limit in steps that the environments enforce, or None.

    Returns:
        The spec.

    Raises:
        ValueError: The spaces are not supported in training.
    """
    act = host_spec.act
    discrete = MultiDiscrete(act.sizes) if act.sizes else Discrete(act.num_actions)
    action = discrete if act.sizes or act.num_actions else Box(act.low, act.high)
    shape, dtype = host_spec.observe.shape, host_spec.observe.dtype
    obs = {
        name: jax.ShapeDtypeStruct(part[0].shape, part[0].base)
        for name, part in (dtype.fields or {}).items()
    }
    spec = EnvSpec(
        host_spec.name, obs or jax.ShapeDtypeStruct(shape, dtype), action, max_episode_steps
    )
    spec = spec._replace(num_agents=host_spec.num_agents, own_sizes=host_spec.own_sizes)
    spec = spec._replace(
        obs_space=host_spec.observe.space, action_space=act.space, metrics=host_spec.metrics
    )
    check_spaces(spec, host_spec.name)
    return spec


def by_entries(host: HostEnv) -> HostEnv:
    """Convert a host environment's record observations to dictionaries.

    Args:
        host: Host environment whose observations are NumPy records.

    Returns:
        The same environment with one array per field.
    """

    def entries(records: np.ndarray) -> dict[str, np.ndarray]:
        return {name: np.ascontiguousarray(records[name]) for name in records.dtype.names or ()}

    def seen(step: HostStep) -> HostStep:
        obs = entries(step.obs)
        return step._replace(
            obs=obs, next_obs=obs if step.next_obs is step.obs else entries(step.next_obs)
        )

    def by_arrival() -> tuple[np.ndarray, HostStep]:
        assert host.recv_any is not None
        indices, step = host.recv_any()
        return indices, seen(step)

    return host._replace(
        reset=lambda seed: entries(host.reset(seed)),
        recv=lambda group: seen(host.recv(group)),
        recv_any=None if host.recv_any is None else by_arrival,
        another=lambda num_envs: by_entries(host.another(num_envs)),
    )


def pooled(
    make: Callable[[], Any],
    name: str,
    limit: int | None,
    num_envs: int,
    num_seeds: int,
    pool: PoolOptions,
    hint: str = "",
    first: Any = None,
    known: HostEnvSpec | None = None,
) -> HostEnv:
    """Make a pool of host environments.

    Args:
        make: Makes one environment.
        name: Name in the spec and in error messages.
        limit: Time limit in steps that the environments enforce, or None.
        num_envs: Number of environments for each seed.
        num_seeds: Number of seeds that the pool serves.
        pool: Options of the pool.
        hint: Line that is reported once to the user, or "".
        first: Environment that gives the spaces and is then closed; None to make one.
        known: Spec of the environments, if an environment was made for it before.

    Returns:
        The environment.

    Raises:
        ValueError: An environment cannot be made, or its spaces are not supported.
    """
    host_spec = known or describe(make, name, first, measurement(pool, num_envs * num_seeds))
    host = make_pool(
        host_spec, env_spec(host_spec, limit), num_envs=num_envs, num_seeds=num_seeds, options=pool
    )
    host = by_entries(host) if isinstance(host.spec.obs, dict) else host
    lines = [hint] if hint else []
    host = host._replace(events=_with_lines(host.events, lines), bridge=pool.bridge)
    if host_spec.observe.outside is None:
        return host
    return host._replace(
        require_inside=_require_inside(host_spec.observe.outside, name, pool.out_of_space, lines)
    )


def _with_lines(events: TakeEvents, lines: list[str]) -> TakeEvents:
    return lambda: [*events(), *(lines.pop(0) for _ in range(len(lines)))]


def _require_inside(
    outside: Outside, name: str, out_of_space: str, lines: list[str]
) -> Callable[[Any, Callable[[int], str]], None]:
    """Return `HostEnv.require_inside`; with ``out_of_space="count"`` it appends to ``lines`` at 1,
    10, 100, ... .
    """
    count, reported = 0, 0

    def require_inside(obs: Any, place: Callable[[int], str]) -> None:
        nonlocal count, reported
        found = outside(obs)
        if not found:
            return
        row, entry, text = found[0]
        what = f"'{entry}'" if entry else "the observation"
        where = f"{name}, {place(row)}: {what} is {text}"
        if out_of_space == "stop":
            raise PoolError(
                f"{where}. Mend its observation_space, or write pool.out_of_space=count"
            )
        count += len(found)
        if count >= 10 * reported:
            lines.append(f"{count:,} observations were outside of their space so far; {where}")
            reported = count

    return require_inside


def _could_envpool(id: str, wrappers: Wrappers) -> str:
    """Return a hint if EnvPool supports ``id``, else an empty string."""
    served = id.rpartition("-v")[0] in from_envpool.SERVES and not wrappers
    return (
        f"EnvPool has {id} too: pool.backend=envpool, pip install 'jaxrl_fast[envpool]'"
        if served
        else ""
    )
