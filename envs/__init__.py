"""Environments by name. An adapter and its library are imported only when one of its environments
is made.
"""

import sys
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

from jaxrl_fast.system import import_function

if TYPE_CHECKING:  # the pool's workers import this package and must not import JAX
    from jaxrl_fast.envs.env import Env, VecEnv
    from jaxrl_fast.envs.host_env import HostEnv
    from jaxrl_fast.envs.pool.making import FilmedHost

SPRING = "halfcheetah ant hopper walker2d humanoid humanoidstandup"
GENERALIZED = "reacher pusher inverted_pendulum inverted_double_pendulum"
SHORT_NAMES: dict[str, tuple[str, str, dict[str, Any]]] = {
    **{name: ("brax", name, {"backend": "spring"}) for name in SPRING.split()},
    **{name: ("brax", name, {"backend": "generalized"}) for name in GENERALIZED.split()},
    "cartpole": ("gymnax", "CartPole-v1", {}),
    "pendulum": ("gymnax", "Pendulum-v1", {}),
    "acrobot": ("gymnax", "Acrobot-v1", {}),
    "mountain_car": ("gymnax", "MountainCar-v0", {}),
    "mountain_car_continuous": ("gymnax", "MountainCarContinuous-v0", {}),
    "asterix": ("gymnax", "Asterix-MinAtar", {}),
    "breakout": ("gymnax", "Breakout-MinAtar", {}),
    "freeway": ("gymnax", "Freeway-MinAtar", {}),
    "seaquest": ("gymnax", "Seaquest-MinAtar", {}),
    "space_invaders": ("gymnax", "SpaceInvaders-MinAtar", {}),
    "catch": ("gymnax", "Catch-bsuite", {}),
    "deep_sea": ("gymnax", "DeepSea-bsuite", {}),
    "memory_chain": ("gymnax", "MemoryChain-bsuite", {}),
    "frozen_lake": ("gymnax", "FrozenLake-misc", {}),
    "traffic_junction_4": ("traffic", "TrafficJunction4-v0", {}),
    "traffic_junction_10": ("traffic", "TrafficJunction10-v0", {}),
    "spread": ("jaxmarl", "MPE_simple_spread_v3", {}),
    "smax_3m": ("jaxmarl", "HeuristicEnemySMAX", {"scenario": "3m"}),
    "smax_2s3z": ("jaxmarl", "HeuristicEnemySMAX", {"scenario": "2s3z"}),
    "lbf": ("jumanji", "LevelBasedForaging", {}),
    "rware": ("jumanji", "RobotWarehouse", {}),
}
"""Short name -> (suite, id, default options)."""

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

EXAMPLE_IDS = {
    "brax": "ant",
    "gymnax": "CartPole-v1",
    "gymnasium": "HalfCheetah-v5",
    "atari": "Pong",
    "jaxmarl": "MPE_simple_spread_v3",
    "jumanji": "LevelBasedForaging",
    "playground": "CheetahRun",
    "craftax": "Craftax-Classic-Symbolic-v1",
    "xminigrid": "MiniGrid-Empty-8x8",
    "pgx": "minatar-breakout",
    "octax": "pong",
    "jaxtari": "pong",
    "navix": "Navix-Empty-8x8-v0",
    "pettingzoo": "mpe2/simple_spread_v3",
    "traffic": "TrafficJunction4-v0",
    "probe": "value",
}
MODULES = {"probe": "jaxrl_fast.envs.probes", "traffic": "jaxrl_fast.envs.traffic_junction"}
"""Suites written in this package. The adapter of every other compiled suite is
``envs.from_<suite>``.
"""
HOST_SUITES = {
    "gymnasium": ("jaxrl_fast.envs.from_gymnasium", "make_host", "film"),
    "atari": ("jaxrl_fast.envs.from_gymnasium", "make_atari_host", "film_atari"),
    "pettingzoo": ("jaxrl_fast.envs.from_pettingzoo", "make_host", "film"),
}
"""Suites stepped on the host -> (adapter module, function that makes a vectorized one, function
that makes one to draw).
"""
EXTRAS = (
    "jaxmarl",
    "jumanji",
    "playground",
    "craftax",
    "xminigrid",
    "pgx",
    "octax",
    "jaxtari",
    "navix",
)
"""Suites whose package is an optional extra of jaxrl_fast."""
NEEDS_PYTHON = {"navix": (3, 12)}
"""Oldest Python of a suite's package, where it is not jaxrl_fast's."""
REFUSED_SUITES = {
    "kinetix": "it needs JAX 0.9 or earlier",
    "popgym_arcade": "it replaces gymnax by another version",
}
"""Suites that do not install next to jaxrl_fast, and why."""
OF_ONE_AGENT = {
    "brax",
    "gymnax",
    "gymnasium",
    "atari",
    "playground",
    "craftax",
    "xminigrid",
    "pgx",
    "octax",
    "jaxtari",
}
OF_ONE_AGENT |= {"navix"}
"""Suites whose environments take no ``num_agents``."""
OF_FILES = {"mjcf": "robot.xml"}
"""Suites of a file (``env.file``), stepped by ``env.backend``, and an example."""
OF_SEVERAL_AGENTS = {"jaxmarl", "jumanji", "pettingzoo", "traffic"}
FRAME_STACK = {"atari": 4}
"""Default frame stack by suite, in frames."""


class RuleBroken(ValueError):
    """A user's environment breaks a rule, as `jaxrl_fast.check_env` reports it."""


class EnvFailed(RuntimeError):
    """A user's environment on the host raised an error. The first line describes it, the others are
    its traceback.
    """


def make(name: str, **options: Any) -> "Env":
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
    suite, options = resolve(name, options)
    if suite in HOST_SUITES:
        raise ValueError(
            f"env={name} is stepped on the host and cannot be compiled: write jaxrl_fast.make_env(...)"
        )
    frame_stack = options.pop("frame_stack", None)
    try:
        if suite == "custom" or suite in OF_FILES:
            named = (
                "jaxrl_fast.envs.custom" if suite == "custom" else f"jaxrl_fast.envs.from_{suite}"
            )
            return _seen(import_module(named).make(**options), frame_stack)
        id = options.pop("id")
        module = import_module(MODULES.get(suite, f"jaxrl_fast.envs.from_{suite}"))
    except ModuleNotFoundError as error:
        raise _missing(name, suite, error) from error
    known = [*module.ids(), *getattr(module, "REFUSED", ())]
    if id not in known:
        raise ValueError(f"env.id={id}: {suite} has no such environment; {_nearest(id, known)}")
    return _seen(module.make(id, **options), frame_stack)


def make_vec(
    name: str,
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
    suite, options = resolve(name, options)
    arguments = _as_text(options)
    frame_stack = options.pop("frame_stack", FRAME_STACK.get(suite))
    if suite in HOST_SUITES:
        module_name, many, _ = HOST_SUITES[suite]
        make_suite = getattr(import_module(module_name), many)
        sizes = {"num_envs": num_envs, "num_seeds": num_seeds}
        host = make_suite(options.pop("id"), **sizes, pool=pool_options(pool), **options)
        return _seen(host, frame_stack, arguments)
    if suite == "custom":
        custom = import_module("jaxrl_fast.envs.custom")
        made = custom.make_any(num_envs=num_envs, num_seeds=num_seeds, pool=pool, **options)
    elif suite in OF_FILES and options.get("backend") == "mujoco":
        module = import_module(f"jaxrl_fast.envs.from_{suite}")
        made = module.make_host(
            num_envs=num_envs, num_seeds=num_seeds, pool=pool_options(pool), **options
        )
    elif pool and suite not in OF_FILES:
        raise ValueError(f"env={name} is compiled and has no pool: leave pool out")
    else:
        import_module("jaxrl_fast.core").require_devices()
        made = make(name, **options)
    env = import_module("jaxrl_fast.envs.env")
    seen = _seen(made, frame_stack, arguments)
    return env.vectorize(seen, num_envs=num_envs) if isinstance(seen, env.Env) else seen


def makers(name: str, options: dict[str, Any]) -> list[Any]:
    """Return the functions whose keyword arguments are the options of an environment, without
    calling them.

    Args:
        name: As in `make`.
        options: Options of the environment.

    Returns:
        A function of the suite's adapter, with ``atari`` also the function that makes one game, or
        a user's function.

    Raises:
        ValueError: Unknown name, a user's function that cannot be imported, or a package that is
            not installed.
    """
    suite, options = resolve(name, options)
    if suite == "custom":
        return [import_function(options["make"], "env.make")]
    module, function = HOST_SUITES.get(
        suite, (MODULES.get(suite, f"jaxrl_fast.envs.from_{suite}"), "make", "")
    )[:2]
    try:
        adapter = import_module(module)
    except ModuleNotFoundError as error:
        raise _missing(name, suite, error) from error
    return [getattr(adapter, function), *([adapter.recipes.atari] if suite == "atari" else [])]


def _missing(name: str, suite: str, error: ModuleNotFoundError) -> ValueError:
    oldest = NEEDS_PYTHON.get(suite, (3, 0))
    if sys.version_info < oldest:
        return ValueError(
            f"env={name} needs Python {oldest[0]}.{oldest[1]} or later: make an environment with it"
        )
    needed = f"'jaxrl_fast[{suite}]'" if suite in EXTRAS else error.name
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
    suite, given = resolve(name, options)
    if suite not in (*HOST_SUITES, "custom") and options.get("backend") != "mujoco":
        return make(name, **options)
    given.pop("frame_stack", None)
    if suite in OF_FILES:
        return import_module(f"jaxrl_fast.envs.from_{suite}").film(**given)
    if suite == "custom":
        return import_module("jaxrl_fast.envs.custom").make_to_draw(**given)
    module_name, _, film = HOST_SUITES[suite]
    return getattr(import_module(module_name), film)(given.pop("id"), **given)


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
        True for the suites of `HOST_SUITES`.
    """
    return name in HOST_SUITES


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
    if suite == "custom":
        return f"custom = {options['make']}"
    if suite in OF_FILES:
        host = ", stepped on the host" if options.get("backend") == "mujoco" else ""
        return f"{options['file']} = {suite}{host}"
    id = options["id"]
    if suite in HOST_SUITES:
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
        The suite, and options with the ``id`` (of ``custom``: the ``make``; of `OF_FILES`: the
        ``file``).

    Raises:
        ValueError: Unknown name, missing ``id`` or ``make``, an ``id`` that contradicts the short
            name, or ``num_agents`` for a suite with one agent.
    """
    suite = SHORT_NAMES[name][0] if name in SHORT_NAMES else name
    if suite in OF_ONE_AGENT and options.get("num_agents") is not None:
        raise ValueError(
            f"env.num_agents={options['num_agents']}: env={name} has one agent: leave it out"
        )
    if name in SHORT_NAMES:
        suite, id, defaults = SHORT_NAMES[name]
        if options.get("id") not in (None, id):
            raise ValueError(
                f"env={name} is {suite}'s {id}: leave env.id out, or write env={suite} with it"
            )
        return suite, {**defaults, **options, "id": id}
    if name == "custom":
        if not options.get("make"):
            raise ValueError("env=custom needs env.make, for example env.make=my_package.make")
        return name, options
    if name in OF_FILES:
        if not options.get("file"):
            raise ValueError(f"env={name} needs env.file, for example env.file={OF_FILES[name]}")
        return name, options
    if name in REFUSED_SUITES:
        raise ValueError(f"env={name} is not supported: {REFUSED_SUITES[name]}")
    if name not in EXAMPLE_IDS:
        raise ValueError(
            f"unknown environment '{name}'; {_nearest(name, [*SHORT_NAMES, *EXAMPLE_IDS, *OF_FILES, 'custom'])}"
        )
    if not options.get("id"):
        raise ValueError(f"env={name} needs env.id, for example env.id={EXAMPLE_IDS[name]}")
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


def _nearest(name: str, known: list[str]) -> str:
    lowered: dict[str, str] = {other.lower(): other for other in known}
    close = [
        lowered[other] for other in get_close_matches(str(name).lower(), lowered, n=3, cutoff=0.5)
    ]
    return "nearest: " + ", ".join(close) if close else "write one of " + ", ".join(sorted(known))
