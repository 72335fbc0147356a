"""Environments by name. An adapter and its library are imported only when one of its environments
is made.
"""

import sys
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxrl_fast.envs.errors import EnvFailed as EnvFailed
from jaxrl_fast.envs.errors import RuleBroken as RuleBroken
from jaxrl_fast.plugins import NONE, REFUSED_SUITES, SUITES, Defaults, Suite, registered, suite_of
from jaxrl_fast.system import import_function as import_function

if TYPE_CHECKING:  # the pool's workers import this package and must not import JAX
    from jaxrl_fast.envs.env import Env, VecEnv
    from jaxrl_fast.envs.host_env import HostEnv
    from jaxrl_fast.envs.pool.making import FilmedHost


class ShortName(NamedTuple):
    """An environment that a short name stands for.

    Attributes:
        suite: Its suite.
        id: Its id.
        defaults: Settings of its runs that nothing else sets.
        options: Options that differ from the suite's.
    """

    suite: str
    id: str
    defaults: Defaults
    options: Mapping[str, Any] = NONE


SHORT_NAMES: dict[str, ShortName] = {
    "halfcheetah": ShortName(
        "brax",
        "halfcheetah",
        Defaults(algo="sac", num_envs=64, total_steps=160_000),
        options={"backend": "spring"},
    ),
    "ant": ShortName(
        "brax", "ant", Defaults(num_envs=64, total_steps=5_000_000), options={"backend": "spring"}
    ),
    "hopper": ShortName(
        "brax", "hopper", Defaults(algo="sac", num_envs=128), options={"backend": "spring"}
    ),
    "walker2d": ShortName(
        "brax", "walker2d", Defaults(algo="sac", num_envs=128), options={"backend": "spring"}
    ),
    "humanoid": ShortName(
        "brax",
        "humanoid",
        Defaults(num_envs=2048, total_steps=20_000_000),
        options={"backend": "spring"},
    ),
    "humanoidstandup": ShortName(
        "brax",
        "humanoidstandup",
        Defaults(num_envs=2048, total_steps=20_000_000),
        options={"backend": "spring"},
    ),
    "reacher": ShortName(
        "brax",
        "reacher",
        Defaults(num_envs=256, total_steps=5_000_000),
        options={"backend": "generalized"},
    ),
    "pusher": ShortName(
        "brax",
        "pusher",
        Defaults(num_envs=256, total_steps=5_000_000),
        options={"backend": "generalized"},
    ),
    "inverted_pendulum": ShortName(
        "brax", "inverted_pendulum", Defaults(num_envs=64), options={"backend": "generalized"}
    ),
    "inverted_double_pendulum": ShortName(
        "brax",
        "inverted_double_pendulum",
        Defaults(num_envs=64, total_steps=2_000_000),
        options={"backend": "generalized"},
    ),
    "cartpole": ShortName("gymnax", "CartPole-v1", Defaults(total_steps=200_000)),
    "pendulum": ShortName(
        "gymnax", "Pendulum-v1", Defaults(algo="sac", num_envs=4, total_steps=20_000)
    ),
    "acrobot": ShortName("gymnax", "Acrobot-v1", Defaults(total_steps=500_000)),
    "mountain_car": ShortName("gymnax", "MountainCar-v0", Defaults()),
    "mountain_car_continuous": ShortName(
        "gymnax", "MountainCarContinuous-v0", Defaults(algo="sac", total_steps=100_000)
    ),
    "asterix": ShortName("gymnax", "Asterix-MinAtar", Defaults(num_envs=64, total_steps=5_000_000)),
    "breakout": ShortName(
        "gymnax", "Breakout-MinAtar", Defaults(num_envs=64, total_steps=5_000_000)
    ),
    "freeway": ShortName("gymnax", "Freeway-MinAtar", Defaults(num_envs=64, total_steps=5_000_000)),
    "seaquest": ShortName(
        "gymnax", "Seaquest-MinAtar", Defaults(num_envs=64, total_steps=5_000_000)
    ),
    "space_invaders": ShortName(
        "gymnax", "SpaceInvaders-MinAtar", Defaults(num_envs=64, total_steps=5_000_000)
    ),
    "catch": ShortName("gymnax", "Catch-bsuite", Defaults(total_steps=200_000)),
    "deep_sea": ShortName("gymnax", "DeepSea-bsuite", Defaults(total_steps=200_000)),
    "memory_chain": ShortName("gymnax", "MemoryChain-bsuite", Defaults(total_steps=200_000)),
    "frozen_lake": ShortName("gymnax", "FrozenLake-misc", Defaults(total_steps=500_000)),
    "traffic_junction_4": ShortName("traffic", "TrafficJunction4-v0", Defaults(algo="mappo")),
    "traffic_junction_10": ShortName("traffic", "TrafficJunction10-v0", Defaults(algo="mappo")),
    "spread": ShortName("jaxmarl", "MPE_simple_spread_v3", Defaults(algo="mappo")),
    "smax_3m": ShortName(
        "jaxmarl",
        "HeuristicEnemySMAX",
        Defaults(algo="mappo", num_envs=64, total_steps=3_000_000),
        options={"scenario": "3m"},
    ),
    "smax_2s3z": ShortName(
        "jaxmarl",
        "HeuristicEnemySMAX",
        Defaults(algo="mappo", num_envs=64, total_steps=3_000_000),
        options={"scenario": "2s3z"},
    ),
    "lbf": ShortName(
        "jumanji", "LevelBasedForaging", Defaults(algo="ippo", num_envs=64, total_steps=3_000_000)
    ),
    "rware": ShortName(
        "jumanji", "RobotWarehouse", Defaults(algo="ippo", num_envs=64, total_steps=3_000_000)
    ),
}

GYMNASIUM_NAMESAKES = {
    "ant": "Ant-v5",
    "halfcheetah": "HalfCheetah-v5",
    "hopper": "Hopper-v5",
    "humanoid": "Humanoid-v5",
    "humanoidstandup": "HumanoidStandup-v5",
    "inverted_double_pendulum": "InvertedDoublePendulum-v5",
    "inverted_pendulum": "InvertedPendulum-v5",
    "pusher": "Pusher-v5",
    "reacher": "Reacher-v5",
    "walker2d": "Walker2d-v5",
}
"""brax id -> Gymnasium environment of the same name but with different physics."""


def make(name: str, /, **options: Any) -> "Env":
    """Make the compiled environment of a short name or a suite.

    Examples: ``make("halfcheetah")``, ``make("brax", id="ant", backend="mjx")``,
    ``make("gymnax", id="CartPole-v1")``, ``make("probe", id="value")``,
    ``make("custom", make="my_package.make")``.

    Args:
        name: Short name, suite or ``custom``.
        **options: Options of the environment, and ``frame_stack``, the number of stacked images
            that the policy observes.

    Returns:
        The environment.

    Raises:
        ValueError: Unknown name, id or option, an environment stepped on the host, or a package
            that is not installed.
    """
    suite_name, options = resolve(name, options)
    suite = named_suite(suite_name)
    if suite.is_host:
        raise ValueError(
            f"env={name} is stepped on the host and cannot be compiled: write jaxrl_fast.make_env(...)"
        )
    frame_stack = options.pop("frame_stack", None)
    adapter = adapter_of(suite_name)
    if suite.selected_by != "id":
        return _seen(adapter.make(**options), frame_stack)
    id = options.pop("id")
    ids = [*adapter.ids(), *getattr(adapter, "REFUSED", ())]
    if id not in ids:
        raise ValueError(f"env.id={id}: {suite_name} has no such environment; {_nearest(id, ids)}")
    return _seen(adapter.make(id, **options), frame_stack)


def make_vec(
    name: str,
    /,
    *,
    num_envs: int,
    num_seeds: int = 1,
    pool: dict[str, Any] | None = None,
    **options: Any,
) -> "VecEnv | HostEnv":
    """Make a vectorized environment, compiled or stepped on the host.

    Args:
        name: As in `make`.
        num_envs: Number of environments, for each seed if stepped on the host.
        num_seeds: Number of seeds that one pool on the host serves.
        pool: Options of the pool on the host (`jaxrl_fast.envs.pool.batches.PoolOptions`).
        **options: As in `make`.

    Returns:
        A `VecEnv`, or a `HostEnv` with ``num_seeds * num_envs`` environments.

    Raises:
        ValueError: As `make`, or an option of the pool is wrong.
    """
    import_module("jaxrl_fast.core").require_32_bits()
    suite_name, options = resolve(name, options)
    suite = named_suite(suite_name)
    arguments = _as_text(options)
    frame_stack = options.pop("frame_stack", suite.frame_stack)
    sizes = {"num_envs": num_envs, "num_seeds": num_seeds}
    if suite.is_host:
        make_host = adapter_of(suite_name).make_host
        host = make_host(options.pop("id"), **sizes, pool=pool_options(pool), **options)
        return _seen(host, frame_stack, arguments)
    if suite.selected_by == "make":
        made = adapter_of(suite_name).make_any(**sizes, pool=pool, **options)
    elif suite.selected_by == "file" and options.get("backend") == "mujoco":
        made = adapter_of(suite_name).make_host(**sizes, pool=pool_options(pool), **options)
    elif pool and suite.selected_by != "file":
        raise ValueError(f"env={name} is compiled and has no pool: leave pool out")
    else:
        import_module("jaxrl_fast.core").require_devices()
        made = make(name, **options)
    env = import_module("jaxrl_fast.envs.env")
    viewed = _seen(made, frame_stack, arguments)
    return env.vectorize(viewed, num_envs=num_envs) if isinstance(viewed, env.Env) else viewed


def named_suite(name: str) -> Suite:
    """Return a suite that must exist.

    Args:
        name: Name of the suite.

    Returns:
        The suite.

    Raises:
        ValueError: There is none of this name.
    """
    suite = suite_of(name)
    if suite is None:
        raise ValueError(
            f"unknown environment '{name}'; {_nearest(name, [*SHORT_NAMES, *names_of_suites()])}"
        )
    return suite


def names_of_suites() -> list[str]:
    """List all suites.

    Returns:
        Names of ours, and of other packages'.
    """
    return [*SUITES, *registered("suites")]


def adapter_of(suite: str) -> Any:
    """Import the adapter of a suite.

    Args:
        suite: Name of the suite.

    Returns:
        The module (`jaxrl_fast.plugins.Suite`).

    Raises:
        ValueError: Its package is not installed.
    """
    try:
        return import_module(named_suite(suite).module)
    except ModuleNotFoundError as error:
        raise _missing(suite, named_suite(suite), error) from error


def _missing(name: str, suite: Suite, error: ModuleNotFoundError) -> ValueError:
    if sys.version_info < suite.oldest_python:
        oldest = ".".join(map(str, suite.oldest_python))
        return ValueError(f"env={name} needs Python {oldest} or later: make an environment with it")
    needed = f"'jaxrl_fast[{name}]'" if suite.extra else error.name
    return ValueError(f"env={name} needs the package '{error.name}': pip install {needed}")


def make_to_draw(name: str, **options: Any) -> "Env | FilmedHost":
    """Make one environment that can be drawn.

    Args:
        name: As in `make`.
        **options: As in `make`. ``frame_stack`` is ignored for environments stepped on the host.

    Returns:
        A compiled `Env`, or an environment on the host with a camera.

    Raises:
        ValueError: As `make`, or the environment on the host has no pictures.
    """
    suite_name, arguments = resolve(name, options)
    suite = named_suite(suite_name)
    arguments.pop("frame_stack", None)
    if suite.selected_by == "make":
        return adapter_of(suite_name).make_to_draw(**arguments)
    if suite.selected_by == "file" and options.get("backend") == "mujoco":
        return adapter_of(suite_name).film(**arguments)
    if suite.is_host:
        return adapter_of(suite_name).film(arguments.pop("id"), **arguments)
    return make(name, **options)


def pool_options(pool: dict[str, Any] | None) -> Any:
    """Convert a dictionary to `jaxrl_fast.envs.pool.batches.PoolOptions`.

    Args:
        pool: Options by name, or None for the defaults.

    Returns:
        The options.

    Raises:
        ValueError: Unknown option.
    """
    options = import_module("jaxrl_fast.envs.pool.batches").PoolOptions
    if not isinstance(pool, dict | None):
        raise ValueError(f"pool={pool!r}: write options by name, such as pool={{'workers': 2}}")
    for option in pool or {}:
        if option not in options._fields:
            raise ValueError(
                f"unknown pool option '{option}': write one of {', '.join(options._fields)}"
            )
    return options(**(pool or {}))


def is_host(name: str) -> bool:
    """Check whether a suite is always stepped on the host.

    Args:
        name: Short name, suite or ``custom``. A ``custom`` environment may be stepped on the host,
            but gives False.

    Returns:
        Whether the record of the suite has `is_host`.
    """
    suite = None if name in SHORT_NAMES else suite_of(name)
    return suite is not None and suite.is_host


def describe(name: str, options: dict[str, Any] | None = None) -> str:
    """Describe an environment in one line, without making it.

    Args:
        name: As in `make`.
        options: Options of the environment.

    Returns:
        The line that a run prints first.

    Raises:
        ValueError: As `resolve`.
    """
    suite, options = resolve(name, dict(options or {}))
    selected_by = named_suite(suite).selected_by
    if selected_by == "make":
        return f"custom = {options['make']}"
    if selected_by == "file":
        host = ", stepped on the host" if options.get("backend") == "mujoco" else ""
        return f"{options['file']} = {suite}{host}"
    id = options["id"]
    if named_suite(suite).is_host:
        return f"{id} = {suite}, stepped on the host"
    if suite != "brax":
        return f"{id} = {suite}" if name == suite else f"{name} = {suite}, {id}"
    text = f"{id if name == suite else name} = brax, {options.get('backend', 'spring')}"
    if id in GYMNASIUM_NAMESAKES:
        text += f"; returns are not comparable with Gymnasium's {GYMNASIUM_NAMESAKES[id]}"
    return text


def resolve(name: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Resolve a name to a suite and its options.

    Args:
        name: As in `make`.
        options: Options of the environment.

    Returns:
        The suite, and options with the ``id`` (of ``custom``: the ``make``; of a file's: the
        ``file``).

    Raises:
        ValueError: Unknown name, missing ``id`` or ``make``, an ``id`` that contradicts the short
            name, or ``num_agents`` for a suite with one agent.
    """
    if name in REFUSED_SUITES:
        raise ValueError(f"env={name} is not supported: {REFUSED_SUITES[name]}")
    short = SHORT_NAMES.get(name)
    suite_name = name if short is None else short.suite
    suite = named_suite(suite_name)
    if suite.agents == "one" and options.get("num_agents") is not None:
        raise ValueError(
            f"env.num_agents={options['num_agents']}: env={name} has one agent: leave it out"
        )
    if short is not None:
        if options.get("id") not in (None, short.id):
            raise ValueError(
                f"env={name} is {suite_name}'s {short.id}: leave env.id out, or write "
                f"env={suite_name} with it"
            )
        return suite_name, {**short.options, **options, "id": short.id}
    needed = suite.selected_by
    if not options.get(needed):
        raise ValueError(f"env={name} needs env.{needed}, for example env.{needed}={suite.example}")
    return name, options


def _seen(env: Any, frame_stack: int | None, arguments: str = "") -> Any:
    """Set ``frame_stack``, unless None, and ``arguments`` in the spec of an `Env` or `HostEnv`."""
    stack = {} if frame_stack is None else {"frame_stack": frame_stack}
    return env._replace(spec=env.spec._replace(arguments=arguments, **stack))


def _as_text(value: Any) -> str:
    """Format options as text that is equal in every process: functions and objects by name, without
    addresses.
    """
    if isinstance(value, dict):
        return " ".join(f"{key}={_as_text(value[key])}" for key in sorted(value, key=str))
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_as_text, value))}]"
    plain = value is None or isinstance(value, str | int | float)
    return str(value) if plain else getattr(value, "__qualname__", type(value).__qualname__)


def _nearest(name: str, names: list[str]) -> str:
    lowered: dict[str, str] = {other.lower(): other for other in names}
    close = [
        lowered[other] for other in get_close_matches(str(name).lower(), lowered, n=3, cutoff=0.5)
    ]
    return "nearest: " + ", ".join(close) if close else "write one of " + ", ".join(sorted(names))
